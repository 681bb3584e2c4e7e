"""Videos over HTTP/3 and HTTP/2: how they began, what they looked like and whether they stalled, by what the link did.

Counts and times of stalls may be zero, so of these there are means and no ratios.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.papers.workloads import web

EXPERIMENT = "video"

RATIOS = {
    "connection_ms": "Connection time",
    "startup_delay_ms": "Start-up delay",
    "bit_rate_mbps": "Bit rate chosen",
    "download_rate_mbps": "Download rate",
}
"""Metrics that are above zero, with their titles."""
COUNTS = {
    "quality_switches": "Quality switches",
    "stalls": "Stalls",
    "stall_s": "Time stalled",
}
METRICS = RATIOS | COUNTS

FACTORS = ("rtt_ms", "rate_mbit", "rate_trace", "loss_percent", "group", "signature", "chain")
"""What two cells must have the same of to be under one condition."""

SCHEMA: dict[str, pl.DataType] = {
    "testbed": pl.String(),
    "host": pl.String(),
    "cpu_model": pl.String(),
    "kernel": pl.String(),
    "scale": pl.String(),
    "experiment": pl.String(),
    "campaign": pl.String(),
    "cell": pl.String(),
    "label": pl.String(),
    "arm": pl.String(),
    "client_library": pl.String(),
    "tls_version": pl.String(),  # null over QUIC
    "rtt_ms": pl.Float64(),
    "rate_mbit": pl.Float64(),
    "rate_trace": pl.String(),
    "loss_percent": pl.Float64(),
    "group": pl.String(),
    "signature": pl.String(),
    "chain": pl.String(),
    "unsupported": pl.String(),
    "failure": pl.String(),  # of the last run that failed
    "metric": pl.String(),
    "n": pl.Int64(),  # runs that count
    "failed": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Float64(),
    "max": pl.Float64(),
}
"""Columns of `by_metric`, a row for each cell and metric."""


def by_metric(campaign: pl.DataFrame) -> pl.DataFrame:
    """Rows of `SCHEMA`; cells over QUIC that ask for an older TLS in vain are left out."""
    rows: list[dict[str, Any]] = []
    campaign = campaign.join(comparison.superseded(campaign), on="cell", how="anti")
    counted = comparison.counted(campaign)
    newest = campaign.sort("started_at", nulls_last=False).unique("cell", keep="last")
    newest = newest.sort("label", "client_library", "arm", "cell")
    for cell in newest.to_dicts():
        over_tcp = cell["header_protection"] is None
        if cell["tls_version"] is not None and not over_tcp:
            continue
        own = campaign.filter(pl.col("cell") == cell["cell"])
        used = counted.filter((pl.col("cell") == cell["cell"]) & (pl.col("status") == "ok"))
        base = {name: cell.get(name) for name in SCHEMA} | {
            "tls_version": (cell["tls_version"] or "TLSv1.3") if over_tcp else None,
            "loss_percent": cell["loss_percent"] or 0.0,
            "unsupported": cell["reason"] if cell["status"] == "unsupported" else None,
            "failed": (failed := own.filter(pl.col("status") == "failed")).height,
            "failure": failed["reason"].drop_nulls().last() if failed.height else None,
        }
        for metric in METRICS:
            values = used[metric].drop_nulls().to_list()
            ends = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)} if values else {}
            rows.append(base | {"metric": metric, "n": len(values), "mean": None, "min": None, "max": None} | ends)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def conditions(table: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """Label and `FACTORS` of every condition of the link: constant rates first, by rate and round-trip time."""
    main = table.filter((pl.col("arm") == "main") & ~pl.col("tls_version").eq_missing("TLSv1.2"))
    found: dict[str, dict[str, Any]] = {}
    for row in main.sort("rate_mbit", "rtt_ms", descending=[False, True]).to_dicts():
        found.setdefault(row["label"], {name: row[name] for name in FACTORS})
    return sorted(found.items(), key=lambda one: one[1]["rate_trace"] is not None)


def same(cell: Mapping[str, Any], factors: Mapping[str, Any]) -> bool:
    """Whether a cell is under a condition."""
    return all(cell[name] == factors[name] for name in FACTORS)


def against_tcp(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Rows of `web.RATIOS`: every condition under which a library over QUIC and one over TCP have played a video."""
    return web.against_tcp(campaign, table, RATIOS, FACTORS)
