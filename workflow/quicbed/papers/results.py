"""Which results of a paper hold today: one table, the same in its notebook and on its page of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from quicbed.claims import claims_report, judged, papers, verdicts
from quicbed.claims.verdicts import Result
from quicbed.config.model import Project
from quicbed.figures.sheets import Sheet, leading

HEADERS = (
    "of", "what the paper found", "bounds", "verdict", "measured here, with 95 % interval", "blocks", "experiment",
    "host", "would decide it",
)  # fmt: skip
MEASURED, BLOCKS = 4, 5
"""Columns."""


def sheet(results: Sequence[Result], table: pl.DataFrame, project: Project) -> Sheet:
    """The published results of a paper, a row each; *table* has the runs that they were judged by."""
    standing = claims_report.standing(results, claims_report.Commands(project))
    hosts = _hosts(table)
    rows = [
        [
            one.source,
            one.statement,
            one.bounds,
            one.verdict,
            one.measured,
            one.blocks,
            one.experiment,
            hosts.get(one.campaign or ""),
            one.open,
        ]
        for one in standing
    ]
    notes = [f"{claims_report.tally(own(results))}. The command that measures a claim is in docs/claims.md."]
    behind = leading([one.behind for one in standing], [MEASURED])
    return Sheet(HEADERS, rows, frozenset({BLOCKS}), notes, behind)


def own(results: Sequence[Result]) -> list[Result]:
    """Those that have a row: all but numbers of tables."""
    return [result for result in results if result.stated.group is None]


def of_paper(name: str, table: pl.DataFrame, raw: Path, project: Project) -> Sheet:
    """The same of one paper by the runs in *table*, which lie below *raw*, as the workflow judged them if it did."""
    if (known := judged.made(raw, project)) is not None:
        return sheet(known.of_papers([name]), table, project)
    stated = [one for one in papers.stated(project) if one.name == name]
    if {one.claim.reads.table for one in stated} <= {"runs"}:
        found = verdicts.Tables(table)  # reading captured handshakes and samples takes many times as long
    else:
        found = verdicts.tables(raw, project.root, table)
    return sheet(verdicts.evaluate(project, stated, found), table, project)


def _hosts(table: pl.DataFrame) -> dict[str, str]:
    """Hosts by campaign, with their processor and kernel."""
    known = table.filter(pl.col("campaign").is_not_null()).select("campaign", "host", "cpu_model", "kernel").unique()
    found: dict[str, list[str]] = {}
    for campaign, host, *of in known.sort("campaign", "host", "cpu_model", "kernel").rows():
        details = ", ".join(filter(None, of))
        found.setdefault(campaign, []).append(f"{host} ({details})" if details else str(host))
    return {campaign: "; ".join(hosts) for campaign, hosts in found.items()}
