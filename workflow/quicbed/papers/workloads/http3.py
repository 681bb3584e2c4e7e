"""Downloads over HTTP/3 and over a bare stream: what HTTP/3 costs the same library, paired within blocks."""

from __future__ import annotations

import polars as pl

from quicbed.analysis import comparison

EXPERIMENT = "http3"
PROTOCOL = "h3"

METRICS = ("goodput_mbps", "first_byte_ms", "cpu_s_per_gib")
"""What is compared: the last is the processor time of both ends."""

COSTS: dict[str, pl.DataType] = {
    "experiment": pl.String(),
    "campaign": pl.String(),
    "library": pl.String(),
    "metric": pl.String(),  # of `METRICS`
    "bytes": pl.Int64(),  # size of a download
    "label": pl.String(),  # of the cell over HTTP/3
    "cells": pl.String(),  # ids of both cells, with a comma
    "bare": pl.Float64(),  # mean over a bare stream
    "http3": pl.Float64(),  # mean over HTTP/3
    "ratio": pl.Float64(),  # HTTP/3 by bare stream, geometric mean of blocks
    "low": pl.Float64(),  # its 95 % interval, null for fewer than two blocks
    "high": pl.Float64(),
    "n": pl.Int64(),  # blocks that have both
    "unsupported": pl.String(),  # why there is no ratio, or null
    "failure": pl.String(),
}
"""Columns of `costs`, a row for each library, metric and size."""


def by_metric(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell and metric: `quicbed.analysis.comparison.figure_table` with `metric` and `alpn`.

    That is null over a bare stream. Ratios are those to the bare stream of the same size.
    """
    known = comparison.with_cost(campaign)
    spoken = known.select("cell", "alpn").unique("cell")
    tables = [comparison.figure_table(known, metric).with_columns(metric=pl.lit(metric)) for metric in METRICS]
    return pl.concat(tables).join(spoken, on="cell", how="left", maintain_order="left")


def costs(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of `COSTS`, of a table of `by_metric`."""
    main = table.filter(pl.col("arm") == "main")
    means = {(row["cell"], row["metric"]): row["mean"] for row in main.to_dicts()}
    rows = [
        {
            "experiment": row["experiment"],
            "campaign": row["campaign"],
            "library": row["client_library"],
            "metric": row["metric"],
            "bytes": row["workload_bytes"],
            "label": row["label"],
            "cells": ",".join(filter(None, (row["cell"], row["baseline"]))),
            "bare": means.get((row["baseline"], row["metric"])),
            "http3": row["mean"],
            "ratio": row["ratio"],
            "low": row["ratio_low"],
            "high": row["ratio_high"],
            "n": row["ratio_n"] or 0,
            "unsupported": row["unsupported"],
            "failure": row["failure"],
        }
        for row in main.filter(pl.col("alpn") == PROTOCOL).to_dicts()
    ]
    return pl.DataFrame(rows, schema=COSTS, orient="row").sort("library", "metric", "bytes")
