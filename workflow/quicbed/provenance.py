"""What the runs were made with: campaigns, sessions and builds recorded beside them.

The driver keeps ``campaign.json``, ``sessions/*.json`` (host facts, configuration, revision) and
``builds/*.json`` (sources, checksums, patches, compiler, flags) in the directory of each campaign,
so that they travel with the runs, also in the archives of the reference data.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass(frozen=True)
class PlannedCell:
    """A cell as a session planned it."""

    arm: str
    label: str
    baseline: str | None


@dataclass(frozen=True)
class Plan:
    """What a session set out to measure, also when nothing was left to do: cells by id."""

    started_at: datetime
    cells: dict[str, PlannedCell]


@dataclass
class Campaign:
    """The records of one campaign; *problems* names those that could not be read."""

    origin: str  # directory of the campaign, as in the origins of its runs
    identity: dict[str, Any] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)  # by session
    builds: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def plan(self) -> Plan | None:
        """The plan of the newest session, None when no session left one."""
        newest = max(self.plans, key=lambda name: (self.plans[name].started_at, name), default=None)
        return None if newest is None else self.plans[newest]


def campaigns(raw: Path, experiment: str = "") -> list[Campaign]:
    """All campaigns below *raw*, or of one experiment there, that left records, sorted by origin."""
    from quicbed.runs import origin_of

    found: dict[str, Campaign] = {}
    for archive in sorted((raw / experiment).rglob("*.tar.gz")):
        prefix = origin_of(archive, raw) + "!"
        for path, content in _members(archive):
            _add(found, prefix, path, content)
    for file in sorted(_records(raw / experiment)):
        try:
            content = file.read_bytes()
        except OSError:
            content = b""
        _add(found, "", PurePosixPath(origin_of(file, raw)), content)
    return [found[origin] for origin in sorted(found)]


def _records(raw: Path) -> Iterator[Path]:
    for campaign in raw.rglob("campaign.json"):
        yield campaign
        yield from (campaign.parent / "sessions").glob("*.json")
        yield from (campaign.parent / "builds").glob("*.json")


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """JSON files of an archive that are records; `quicbed.runs` reports damaged archives."""
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                path = PurePosixPath(member.name)
                record = path.name == "campaign.json" or (
                    path.parent.name in ("sessions", "builds") and path.suffix == ".json"
                )
                if record and (file := packed.extractfile(member)):
                    yield path, file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return


def _add(found: dict[str, Campaign], prefix: str, path: PurePosixPath, content: bytes) -> None:
    kind = path.parent.name if path.name != "campaign.json" else "campaign"
    directory = path.parent if kind == "campaign" else path.parent.parent
    campaign = found.setdefault(f"{prefix}{directory}", Campaign(f"{prefix}{directory}"))
    try:
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("not an object")
    except ValueError as error:
        campaign.problems.append(f"{prefix}{path}: truncated or corrupt: {error}")
        return
    if kind == "campaign":
        campaign.identity = document
    elif kind == "sessions":
        campaign.sessions[path.stem] = document
        try:
            campaign.plans[path.stem] = _plan(document)
        except (KeyError, TypeError, ValueError) as error:
            campaign.problems.append(f"{prefix}{path}: without a usable plan: {type(error).__name__}: {error}")
    else:
        campaign.builds[path.stem] = document


def _plan(session: dict[str, Any]) -> Plan:
    started_at = datetime.fromisoformat(session["started_at"])
    if started_at.tzinfo is None:
        raise ValueError(f"started_at {session['started_at']!r} has no time zone")
    cells = {}
    for cell in session["cells"]:
        planned = PlannedCell(cell["arm"], cell["label"], cell["baseline"])
        texts = (cell["id"], planned.arm, planned.label, planned.baseline or "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"a cell with a value that is no string: {cell!r:.80}")
        cells[cell["id"]] = planned
    return Plan(started_at, cells)
