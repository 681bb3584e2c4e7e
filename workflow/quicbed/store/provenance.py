"""What the runs were made with: campaigns, sessions and builds recorded beside them.

The driver keeps ``campaign.json`` and ``sessions/*.json`` (`quicbed.store.campaign`) and ``builds/*.json``
(`quicbed.plan.built`) in the directory of each campaign, so that they travel with the runs, also in the archives of the
reference data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import polars as pl

from quicbed.base.models import Record, RecordError
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


RECORDS: dict[str, pl.DataType] = dict.fromkeys(["origin", "kind", "name", "content"], pl.String())
"""Columns of `frame`: a row for every file and every problem of a campaign."""


class Found:
    """Campaigns that left records, by origin."""

    def __init__(self) -> None:
        self._campaigns: dict[str, Records] = {}

    def add(self, place: walk.Place) -> None:
        """The records of a place; damage is told with its runs."""
        for path, content in place.records.items():
            if path.name != FLOOR_FILE:  # `quicbed.store.details` has it
                _add(self._campaigns, place.prefix, path, content)

    def sorted(self) -> list[Records]:
        """The campaigns in the order of their origins."""
        return [self._campaigns[origin] for origin in sorted(self._campaigns)]


def _add(found: dict[str, Records], prefix: str, path: PurePosixPath, content: bytes | UntrustedError) -> None:
    kind = path.parent.name if path.name != CAMPAIGN_FILE else "campaign"
    directory = path.parent if kind == "campaign" else path.parent.parent
    records = found.setdefault(f"{prefix}{directory}", Records(f"{prefix}{directory}"))
    try:
        if isinstance(content, UntrustedError):
            raise content
        _keep(records, kind, path.stem, content)
    except (RecordError, UntrustedError) as error:
        records.problems.append(f"{prefix}{path}: {error}")


def _keep(records: Records, kind: str, name: str, content: bytes) -> None:
    if kind == "campaign":
        records.campaign = Campaign.parse(content)
    elif kind == "sessions":
        records.sessions[name] = Session.parse(content)
    else:
        records.builds[name] = Build.parse(content)


def frame(campaigns: Sequence[Records]) -> pl.DataFrame:
    """The records as a table, of which `of_frame` makes them again."""
    rows: list[tuple[str, str, str, str]] = []
    for one in campaigns:
        files: list[tuple[str, str, Record]] = [("campaign", "", one.campaign)] if one.campaign else []
        files += [("sessions", name, session) for name, session in one.sessions.items()]
        files += [("builds", name, build) for name, build in one.builds.items()]
        rows += [(one.origin, kind, name, file.content().decode()) for kind, name, file in files]
        rows += [(one.origin, "problem", "", problem) for problem in one.problems]
    return pl.DataFrame(rows, schema=RECORDS, orient="row")


def of_frame(told: pl.DataFrame) -> list[Records]:
    """The records in a table of `frame`."""
    found: dict[str, Records] = {}
    for origin, kind, name, content in told.rows():
        records = found.setdefault(origin, Records(origin))
        if kind == "problem":
            records.problems.append(content)
        else:
            _keep(records, kind, name, content.encode())
    return list(found.values())
