"""What the runs were made with: campaigns, sessions and builds recorded beside them.

The driver keeps ``campaign.json``, ``sessions/*.json`` (host facts, configuration, revision) and
``builds/*.json`` (sources, checksums, patches, compiler, flags) in the directory of each campaign,
so that they travel with the runs, also in the archives of the reference data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.plan import built
from quicbed.plan.built import Build, BuiltError
from quicbed.plan.host import Host, host_of
from quicbed.store import walk
from quicbed.store.walk import CAMPAIGN_FILE


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
    builds: dict[str, Build] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> list[tuple[datetime, Host]]:
        """When each session began, and who measured in it; those without a usable plan are left out."""
        return [
            (plan.started_at, host_of(facts))
            for name, plan in self.plans.items()
            if isinstance(facts := self.sessions[name].get("facts"), dict)
        ]

    @property
    def plan(self) -> Plan | None:
        """The plan of the newest session, None when no session left one."""
        newest = max(self.plans, key=lambda name: (self.plans[name].started_at, name), default=None)
        return None if newest is None else self.plans[newest]


class Found:
    """Campaigns that left records, by origin."""

    def __init__(self) -> None:
        self._campaigns: dict[str, Campaign] = {}

    def add(self, place: walk.Place) -> None:
        """The records of a place; damage is told with its runs."""
        for path, content in place.records.items():
            _add(self._campaigns, place.prefix, path, content)

    def merge(self, other: Found) -> None:
        """The campaigns of other places."""
        self._campaigns |= other._campaigns

    def sorted(self) -> list[Campaign]:
        """The campaigns in the order of their origins."""
        return [self._campaigns[origin] for origin in sorted(self._campaigns)]


def campaigns(raw: Path, experiment: str = "") -> list[Campaign]:
    """All campaigns below *raw*, or of one experiment there, that left records, sorted by origin."""
    found = Found()
    for place in walk.walk(raw, (), experiment=experiment, records=True):
        found.add(place)
    return found.sorted()


def _add(found: dict[str, Campaign], prefix: str, path: PurePosixPath, content: bytes | UntrustedError) -> None:
    kind = path.parent.name if path.name != CAMPAIGN_FILE else "campaign"
    directory = path.parent if kind == "campaign" else path.parent.parent
    campaign = found.setdefault(f"{prefix}{directory}", Campaign(f"{prefix}{directory}"))
    try:
        if isinstance(content, UntrustedError):
            raise content
        document = untrusted.parse(content)
        if not isinstance(document, dict):
            raise UntrustedError("truncated or corrupt: not an object")
    except UntrustedError as error:
        campaign.problems.append(f"{prefix}{path}: {error}")
        return
    if kind == "campaign":
        campaign.identity = document
    elif kind == "sessions":
        campaign.sessions[path.stem] = document
        try:
            campaign.plans[path.stem] = _plan(document)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            told = untrusted.shown(error)
            campaign.problems.append(f"{prefix}{path}: without a usable plan: {type(error).__name__}: {told}")
    else:
        try:
            campaign.builds[path.stem] = built.parse(content)
        except BuiltError as error:
            campaign.problems.append(f"{prefix}{path}: {error}")


def _plan(session: dict[str, Any]) -> Plan:
    started_at = datetime.fromisoformat(session["started_at"])
    if started_at.tzinfo is None:
        raise ValueError(f"started_at {session['started_at']!r} has no time zone")
    cells = {}
    for cell in session["cells"]:
        planned = PlannedCell(cell["arm"], cell["label"], cell["baseline"])
        texts = (cell["id"], planned.arm, planned.label, "" if planned.baseline is None else planned.baseline)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"a cell with a value that is no string: {cell!r:.80}")
        cells[cell["id"]] = planned
    return Plan(started_at.astimezone(UTC), cells)
