"""What the runs were made with: campaigns, sessions and builds recorded beside them.

The driver keeps ``campaign.json`` and ``sessions/*.json`` (`quicbed.store.campaign`) and ``builds/*.json``
(`quicbed.plan.built`) in the directory of each campaign, so that they travel with the runs, also in the archives of the
reference data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quicbed.base.models import RecordError
from quicbed.base.untrusted import UntrustedError
from quicbed.plan.built import Build
from quicbed.store import walk
from quicbed.store.campaign import CAMPAIGN_FILE, FLOOR_FILE, Campaign, Session


@dataclass
class Records:
    """The records of one campaign; *problems* names those that could not be read."""

    origin: str  # directory of the campaign, as in the origins of its runs
    campaign: Campaign | None = None
    sessions: dict[str, Session] = field(default_factory=dict)
    builds: dict[str, Build] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def newest(self) -> Session | None:
        """The newest session, whose plan holds; None when no session left one."""
        name = max(self.sessions, key=lambda name: (self.sessions[name].started_at, name), default=None)
        return None if name is None else self.sessions[name]


class Found:
    """Campaigns that left records, by origin."""

    def __init__(self) -> None:
        self._campaigns: dict[str, Records] = {}

    def add(self, place: walk.Place) -> None:
        """The records of a place; damage is told with its runs."""
        for path, content in place.records.items():
            if path.name != FLOOR_FILE:  # `quicbed.store.details` has it
                _add(self._campaigns, place.prefix, path, content)

    def merge(self, other: Found) -> None:
        """The campaigns of other places."""
        self._campaigns |= other._campaigns

    def sorted(self) -> list[Records]:
        """The campaigns in the order of their origins."""
        return [self._campaigns[origin] for origin in sorted(self._campaigns)]


def campaigns(raw: Path, experiment: str = "") -> list[Records]:
    """All campaigns below *raw*, or of one experiment there, that left records, sorted by origin."""
    found = Found()
    for place in walk.walk(raw, (), experiment=experiment, records=True):
        found.add(place)
    return found.sorted()


def _add(found: dict[str, Records], prefix: str, path: PurePosixPath, content: bytes | UntrustedError) -> None:
    kind = path.parent.name if path.name != CAMPAIGN_FILE else "campaign"
    directory = path.parent if kind == "campaign" else path.parent.parent
    records = found.setdefault(f"{prefix}{directory}", Records(f"{prefix}{directory}"))
    try:
        if isinstance(content, UntrustedError):
            raise content
        if kind == "campaign":
            records.campaign = Campaign.parse(content)
        elif kind == "sessions":
            records.sessions[path.stem] = Session.parse(content)
        else:
            records.builds[path.stem] = Build.parse(content)
    except (RecordError, UntrustedError) as error:
        records.problems.append(f"{prefix}{path}: {error}")
