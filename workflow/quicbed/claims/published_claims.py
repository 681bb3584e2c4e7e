"""Verdicts on claims by the raw data that their authors published, where a copy was imported (docs/importing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from quicbed.analysis import highway_runs
from quicbed.claims import highway_claims, steps_claims, verdicts
from quicbed.claims.papers import Stated
from quicbed.claims.verdicts import Result
from quicbed.config.model import Project


def evaluate(project: Project, claims: Sequence[Stated], imported: Mapping[str, Path]) -> list[Result]:
    """Verdicts on the claims of the papers whose data was imported, in the order of *claims*.

    *imported* are directories of tables by format; nothing else is looked at.
    """
    theirs = highway_runs.published(imported.get(highway_runs.SOURCE))
    steps = imported.get(steps_claims.SOURCE)
    found = {
        highway_claims.PAPER: None if theirs.empty else highway_claims.highway_campaigns(theirs),
        steps_claims.PAPER: steps_claims.steps_campaigns(steps) if steps else None,
    }
    results: list[Result] = []
    for name in dict.fromkeys(one.name for one in claims):
        tables = found.get(name)
        if tables is not None:
            results += verdicts.evaluate(project, [one for one in claims if one.name == name], tables)
    return results
