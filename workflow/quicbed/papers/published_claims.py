"""Verdicts on claims by the raw data that their authors published, where a copy was imported (docs/importing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from quicbed.analysis import benchmark_runs, highway_runs
from quicbed.claims import benchmark_claims, highway_claims, verdicts
from quicbed.claims.papers import Stated
from quicbed.claims.verdicts import Result
from quicbed.config.model import Project
from quicbed.papers.steps import claims as steps


def evaluate(project: Project, claims: Sequence[Stated], imported: Mapping[str, Path]) -> list[Result]:
    """Verdicts on the claims of the papers whose data was imported, in the order of *claims*.

    *imported* are directories of tables by format; nothing else is looked at.
    """
    theirs = highway_runs.published(imported.get(highway_runs.SOURCE))
    samples = benchmark_runs.published(imported.get(benchmark_runs.SOURCE))
    found = {
        highway_claims.PAPER: None if theirs.empty else highway_claims.highway_campaigns(theirs),
        steps.PAPER: steps.campaigns(imported.get(steps.SOURCE)),
        benchmark_claims.PAPER: None if samples.runs.is_empty() else benchmark_claims.benchmark_campaigns(samples),
    }
    results: list[Result] = []
    for name in dict.fromkeys(one.name for one in claims):
        tables = found.get(name)
        if tables is not None:
            results += verdicts.evaluate(project, [one for one in claims if one.name == name], tables)
    return results
