"""What an import read, and what it left out and why: one summary, printed and kept beside the tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed.base import durable
from quicbed.base.untrusted import shown

SUMMARY_FILE = "import.json"
"""Written last: where it is, the tables beside it are whole."""

EXAMPLES = 3
"""Paths shown for a reason; the whole list of thousands would tell no more."""


@dataclass
class _Reason:
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(where)


@dataclass
class Summary:
    """Counts of one import.

    `skip` is for files that gave nothing, `differ` for values that are in the tables although something in the copy
    contradicts them.
    """

    source: str
    files: int = 0
    bytes: int = 0
    files_read: int = 0
    bytes_read: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    _skipped: dict[str, _Reason] = field(default_factory=dict)
    _differences: dict[str, _Reason] = field(default_factory=dict)

    def seen(self, size: int) -> None:
        """A file of the copy, read or not."""
        self.files += 1
        self.bytes += size

    def read(self, size: int) -> None:
        """A file whose content was looked at."""
        self.files_read += 1
        self.bytes_read += size

    def skip(self, reason: str, where: str) -> None:
        """Something was left out; equal reasons are counted together."""
        self._skipped.setdefault(shown(reason), _Reason()).add(shown(where))

    def differ(self, what: str, where: str) -> None:
        """The copy contradicts itself; *what* says which side is in the tables."""
        self._differences.setdefault(shown(what), _Reason()).add(shown(where))

    @property
    def skipped(self) -> dict[str, int]:
        """How often something was left out, by reason."""
        return {reason: found.count for reason, found in self._skipped.items()}

    @property
    def differences(self) -> dict[str, int]:
        """How often the copy contradicts itself, by what."""
        return {what: found.count for what, found in self._differences.items()}

    def text(self) -> str:
        """The summary for a terminal."""
        lines = [f"{self.source}: {self.files_read} of {self.files} files read ({self.bytes_read / 1e6:.1f} MB)"]
        if self.statuses:
            told = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
            lines.append(f"  runs: {told}")
        lines += [f"  {name}: {rows} rows" for name, rows in sorted(self.tables.items())]
        for title, reasons in (("left out", self._skipped), ("contradictions", self._differences)):
            if reasons:
                lines.append(f"  {title}:")
            for reason, found in _sorted(reasons):
                more = ", ..." if found.count > len(found.examples) else ""
                lines.append(f"    {found.count} x {reason}: {', '.join(found.examples)}{more}")
        return "\n".join(lines)

    def write(self, file: Path) -> None:
        """Keep the summary as JSON; equal copies give equal bytes."""
        document: dict[str, Any] = {
            "source": self.source,
            "files": self.files,
            "files_read": self.files_read,
            "bytes_read": self.bytes_read,
            "statuses": dict(sorted(self.statuses.items())),
            "tables": dict(sorted(self.tables.items())),
        }
        for name, reasons in (("skipped", self._skipped), ("differences", self._differences)):
            document[name] = [
                {"reason": reason, "count": found.count, "examples": found.examples}
                for reason, found in _sorted(reasons)
            ]
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_json(file, document)


def _sorted(reasons: dict[str, _Reason]) -> list[tuple[str, _Reason]]:
    """The most frequent first."""
    return sorted(reasons.items(), key=lambda item: (-item[1].count, item[0]))
