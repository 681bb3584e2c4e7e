"""What a notebook reads and where it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUNS_PAGE = "runs.html"
"""Beside the other pages of the report."""
RUNS_PAGE_VARIABLE = "QUICBED_RUNS_PAGE"
"""Names the address of that page for the page that a notebook becomes; in an open notebook there is none."""


@dataclass(frozen=True)
class Place:
    """What a notebook reads and where it writes."""

    root: Path  # of the repository
    raw: Path
    artifacts: Path
    published: Mapping[str, Path]  # directories of tables of published results, by format

    @property
    def tables(self) -> Path:
        return self.artifacts / "tables"

    @property
    def figures(self) -> Path:
        return self.artifacts / "figures"

    @property
    def reference(self) -> bool:
        """Whether the runs are the reference data shipped with the repository."""
        return self.raw.resolve() == (self.root / "raw" / "reference").resolve()
