"""The published samples of "quic-benchmark" as tables that its claims can be judged by (`quicbed.claims.verdicts`).

Repetitions were not measured in blocks; those with the same number are taken as one, which for independent values is as
good as any other pairing.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from quicbed.claims import verdicts
from quicbed.papers.quic_benchmark import analysis

PAPER, SOURCE = "quic-benchmark", analysis.SOURCE
EXPERIMENT = "delay-loss"
"""Ours with the delays of the samples; its loss has no counterpart."""


def campaigns(directory: Path | None) -> verdicts.Tables | None:
    """The published repetitions in *directory* as if they were a campaign of our experiment; None without any."""
    found = analysis.published(directory)
    if found.runs.is_empty():
        return None
    delays = pl.format("{} ms, 0 %", pl.col("rtt_ms").round().cast(pl.Int64))
    table = (
        found.runs.filter(pl.col("rtt_ms").is_not_null())
        .with_columns(label=delays, experiment=pl.lit(EXPERIMENT))
        .with_columns(
            pl.when(pl.col(name) == "tcp").then(pl.lit("tcp-tls")).otherwise(pl.col(name)).alias(name)
            for name in ("library", "client_library", "server_library")
        )
        .pipe(verdicts.as_campaign)
        .sort("cell", "origin")
        .with_columns(block=pl.int_range(pl.len(), dtype=pl.Int64).over("cell"))
    )
    return verdicts.Tables(table, published=True)
