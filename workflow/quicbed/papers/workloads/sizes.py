"""Downloads by size, over QUIC and over TCP with each version of TLS: which is better, and where that changes.

**Where it changes.** For a QUIC library and a version of TLS the logarithm of the ratio of their values is taken within
each block at every size that both have, and its mean over blocks is joined by straight lines over the logarithm of the
size. The size of a change is the last one at which that line crosses zero: from there on, what is better at the largest
size is better. Its 95 % interval has the sizes at which neither is clearly better
(`quicbed.base.statistics.last_change`). It has no end where that is beyond the sizes that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from quicbed.analysis import comparison
from quicbed.base.statistics import last_change

EXPERIMENT = "cloud-storage"

METRICS = {"throughput_mbps": 1, "cpu_s_per_gib": -1}
"""What is compared, with 1 where more of it is better and -1 where less is."""

TLS = ("TLSv1.3", "TLSv1.2")

CHANGES: dict[str, pl.DataType] = {
    "experiment": pl.String(),
    "campaign": pl.String(),
    "library": pl.String(),  # that speaks QUIC
    "against": pl.String(),  # that speaks TLS over TCP
    "tls_version": pl.String(),  # which that one speaks
    "metric": pl.String(),  # of `METRICS`
    "smallest": pl.Int64(),  # sizes that both have, in bytes
    "largest": pl.Int64(),
    "sizes": pl.Int64(),  # how many these are
    "blocks": pl.Int64(),  # that have all of them
    "cells": pl.String(),  # ids of both at these sizes, with commas
    "small_ratio": pl.Float64(),  # QUIC to TLS at the smallest size, above 1 where QUIC is better
    "large_ratio": pl.Float64(),  # the same at the largest
    "changes": pl.Int64(),  # how often the better one changes from one size to the next
    "bytes": pl.Float64(),  # size of the last change; null where there is none
    "low": pl.Float64(),  # its 95 % interval: 0 is below the smallest size, infinity above the largest one
    "high": pl.Float64(),
}
"""Columns of `changes`, a row for each QUIC library, version of TLS and metric."""


def by_size(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell and metric: `quicbed.analysis.comparison.figure_table` with `metric`, and `tls_version`.

    That is null of QUIC, of which cells that ask for another version in vain are left out. `cpu_s_per_gib` is the
    processor time of both ends.
    """
    known = comparison.with_cost(campaign)
    versions = known.select("cell", version="tls_version").unique("cell")
    over_tcp = pl.col("header_protection").is_null()
    tables = [comparison.figure_table(known, metric).with_columns(metric=pl.lit(metric)) for metric in METRICS]
    joined = pl.concat(tables).join(versions, on="cell", how="left", maintain_order="left")
    version = pl.when(over_tcp).then(pl.col("version").fill_null(TLS[0]))
    able = joined.filter(over_tcp | pl.col("version").is_null())
    return able.with_columns(tls_version=version).drop("version")


def changes(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Rows of `CHANGES` for a campaign and its table by size (`by_size`); none for pairs with fewer than two sizes."""
    known = comparison.with_cost(campaign)
    main = table.filter(pl.col("arm") == "main")
    rows = []
    for metric, sign in METRICS.items():
        values = comparison.block_values(known, metric)
        found: dict[tuple[str, str | None], dict[int, str]] = {}
        for cell in main.filter(pl.col("metric") == metric).to_dicts():
            if values.get(cell["cell"]):
                found.setdefault((cell["client_library"], cell["tls_version"]), {})[cell["workload_bytes"]] = cell[
                    "cell"
                ]
        over_tcp = sorted((one for one in found if one[1]), key=lambda one: (one[0], TLS.index(str(one[1]))))
        for library in sorted(name for name, version in found if version is None):
            for against, version in over_tcp:
                row = _change(found[library, None], found[against, version], values, sign)
                named = {"library": library, "against": against, "tls_version": version, "metric": metric}
                rows += [row | named | {name: main[name][0] for name in ("experiment", "campaign")}] if row else []
    return pl.DataFrame(rows, schema=CHANGES, orient="row")


def _change(
    quic: Mapping[int, str], tcp: Mapping[int, str], values: comparison.Values, sign: int
) -> dict[str, Any] | None:
    """Of cells by size; None for fewer than two sizes, or without a block that has all of them."""
    sizes = sorted(quic.keys() & tcp.keys())
    cells = [one[size] for one in (quic, tcp) for size in sizes]
    blocks = sorted(set.intersection(*(set(values[cell]) for cell in cells))) if sizes else []
    if len(sizes) < 2 or not blocks:
        return None
    ratios = [
        [sign * math.log(values[quic[size]][block] / values[tcp[size]][block]) for size in sizes] for block in blocks
    ]
    logs = np.array(ratios)
    change = last_change([math.log(size) for size in sizes], logs)
    ends = [None if math.isnan(end) else math.exp(end) for end in (change.low, change.high)]
    return {
        "smallest": sizes[0],
        "largest": sizes[-1],
        "sizes": len(sizes),
        "blocks": len(blocks),
        "cells": ",".join(cells),
        "small_ratio": math.exp(logs[:, 0].mean()),
        "large_ratio": math.exp(logs[:, -1].mean()),
        "changes": change.changes,
        "bytes": math.exp(change.at) if change.changes else None,
        "low": ends[0],
        "high": ends[1],
    }
