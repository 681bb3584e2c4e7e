"""What handshakes cost a server: rates at which it is slow, processor time per connection, and both as predicted.

Connections begin at a rate, at the times of a Poisson process, whatever becomes of those before (experiment
`capacity`). Their time to first byte (TTFB) counts from when they were to begin, so that all waiting is in it.

**Doubling rate.** The 99th percentile of TTFB of a run, as the median over blocks, is a function of the rate. The
doubling rate is where it is twice what it is at the lowest rate, interpolated by its logarithm between two rates. As
more connections never shorten a queue, the function is made one that does not fall, by isotonic regression of the
logarithm (Barlow et al.: Statistical Inference under Order Restrictions, 1972), which takes out what is noise. The 95 %
interval is that of where the mean of the logarithm crosses twice that of the lowest rate of the same block
(`quicbed.base.statistics.rise`); an end beyond the highest rate is null. A run whose client fell behind has failed
(`events.MOST_LATE`). A rate with such a run is no data point, as chance has chosen the runs of its other blocks;
without one at the lowest rate there is no doubling rate.

**Cost.** Processor time of the server's process while the client runs, by connection, of loads from `BUSY` on: a
server that is idle now and then pays for going to sleep and waking up. 10 000 connections a second take ten times its
milliseconds in cores.

**Memory.** Connections that stay open and idle: the proportional set size (PSS, proc(5)) of the server's processes with
all of them, less that before the first one, by connection. What a server allocates once is in it.

**All processors** (experiment `capacity-cores`). A server that is one program for each processor, each with a client
of its own at an equal share of the rate, against a single one: the ratio of their doubling rates, which the number of
programs bounds unless they get into each other's way, and of the costs of a connection.

**Prediction.** The cost of the experiment's baseline, measured, plus what the server's primitives (encapsulation and
CertificateVerify) take more than those of the baseline, timed alone: means, as times of ML-DSA signatures differ and
costs add up, of the block in which each is the least, as what interrupts a program only adds to them. There is none
where the sum would not be positive. The predicted doubling rate is that of the baseline by the ratio of the costs: the
same server at the same utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from quicbed.analysis import comparison, ttfb
from quicbed.base import statistics
from quicbed.config.model import held_open
from quicbed.contract import events
from quicbed.store import details, runs

EXPERIMENT = "capacity"
CORES = "capacity-cores"
BUSY = 0.5
CONNECTIONS_PER_S = 10_000
"""Whose cores are told."""

PLACE = ("testbed", "host", "experiment", "campaign", "scale")
KEYS = ("server_library", "group", "signature", "processors")
"""A series: what has several rates."""

HELD = held_open("")
"""What labels of variants end with whose connections are held open."""

_BEHIND = (pl.col("status") == "failed") & (pl.col("late_ms_p99") > events.MOST_LATE * pl.col("ttfb_ms_p99"))
"""Runs whose client fell behind."""

Curve = Sequence[tuple[float, Sequence[float]]]
"""By rising rate the values of the blocks, as many at every rate: NaN of a block that has none there."""


def doubling_rate(rates: Sequence[float], values: Sequence[float]) -> float:
    """The rate at which *values*, of rates that rise, are twice the first of them; infinite if they never are.

    The values are made ones that do not fall; between two rates the logarithm is linear.
    """
    from scipy.optimize import isotonic_regression

    logs = isotonic_regression(np.log(values)).x
    wanted = logs[0] + math.log(2)
    for number in range(1, len(logs)):
        if logs[number] >= wanted:
            share = (wanted - logs[number - 1]) / (logs[number] - logs[number - 1])
            return float(rates[number - 1] + share * (rates[number] - rates[number - 1]))
    return math.inf


def doubling(curve: Curve) -> tuple[float, float, float]:
    """Doubling rate of the medians over blocks, with its 95 % interval; NaN for the interval of fewer than two blocks.

    Infinite where it is beyond the highest rate. Blocks that lack a rate are in the medians and not in the interval.
    """
    rates = [rate for rate, _ in curve]
    values = np.array([values for _, values in curve]).T
    found = doubling_rate(rates, list(np.nanmedian(values, axis=0)))
    whole = np.log(values[~np.isnan(values).any(axis=1)])
    if len(whole) < 2 or len(rates) < 2:
        return found, math.nan, math.nan
    low, high = statistics.rise(rates, whole - whole[:, :1] - math.log(2))
    # of runs that differ much, the medians may say something else than the means
    return found, min(found, low), max(found, high)


def by_rate(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell with a load, measured or not, in the order of its rates.

    Columns: `PLACE`, `KEYS`, label, cell, load, rate_per_s, n (runs that count), ttfb_ms and p99_ms (medians over
    blocks), p99_low and p99_high (smallest and largest), handshakes_per_s, server_cpu_ms, client_cpu_ms and late_share
    (means), late_ms (median), peak_mib (of the server's memory) and in_flight (largest), failed (runs), behind (those
    of them whose client fell behind: above 0 the rate is no data point), and unsupported and failure (the last reason
    of each).
    """
    own = campaign.filter((pl.col("arm") == "main") & pl.col("load").is_not_null() & pl.col("held").is_null())
    good = comparison.counted(own)
    cells = own.group_by("cell").agg(
        *(pl.col(name).last() for name in (*PLACE, *KEYS, "label", "load")),
        pl.col("rate_per_s").drop_nulls().last(),
        (pl.col("status") == "failed").sum().alias("failed"),
        _BEHIND.sum().alias("behind"),
        pl.col("reason").filter(pl.col("status") == "unsupported").last().alias("unsupported"),
        pl.col("reason").filter(pl.col("status") == "failed").last().alias("failure"),
    )
    measured = good.group_by("cell").agg(
        pl.len().alias("n"),
        pl.col("ttfb_ms").median(),
        pl.col("ttfb_ms_p99").median().alias("p99_ms"),
        pl.col("ttfb_ms_p99").min().alias("p99_low"),
        pl.col("ttfb_ms_p99").max().alias("p99_high"),
        *(pl.col(name).mean() for name in ("handshakes_per_s", "server_cpu_ms", "client_cpu_ms", "late_share")),
        pl.col("late_ms_p99").median().alias("late_ms"),
        (pl.col("server_max_rss_bytes").max() / 2**20).alias("peak_mib"),
        pl.col("most_in_flight").max().alias("in_flight"),
    )
    joined = cells.join(measured, on="cell", how="left").with_columns(pl.col("n").fill_null(0))
    return joined.sort(*KEYS, "load", "cell")


def by_series(campaign: pl.DataFrame, primitives: pl.DataFrame) -> pl.DataFrame:
    """A row for every server, group and signature that has a value.

    Columns: `PLACE`, `KEYS`, label (without the load), cells (ids, with commas), n (blocks), copies (programs of the
    server), lowest_p99_ms, highest_rate (that is a data point), doubling_per_s with doubling_low and doubling_high
    (null: beyond the highest rate or, where lowest_p99_ms is null too, unknown), server_cpu_ms with cpu_low and
    cpu_high, client_cpu_ms, cores, peak_mib, predicted_cpu_ms, predicted_cores and predicted_doubling (of the baseline
    null).
    """
    rated = pl.col("load").is_not_null() & pl.col("held").is_null()
    good = comparison.counted(campaign).filter(rated & (pl.col("arm") == "main"))
    lowest = campaign["load"].min()
    behind = campaign.filter(rated & (pl.col("arm") == "main") & _BEHIND)["cell"].unique()
    good = good.with_columns(pl.col("cell").is_in(behind.implode()).alias("behind"))
    rows = [_series(own, lowest) for _, own in good.sort("load", "block").group_by(*KEYS, maintain_order=True)]
    _predict(rows, _baseline(campaign), _mean_ms(primitives))
    texts = dict.fromkeys((*PLACE, *KEYS, "label", "cells"), pl.String())
    schema = {**texts, "n": pl.Int64(), "copies": pl.Int64(), **dict.fromkeys(_NUMBERS, pl.Float64())}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.sort("server_library", "server_cpu_ms", "label")


_NUMBERS = (
    "lowest_p99_ms", "highest_rate", "doubling_per_s", "doubling_low", "doubling_high", "server_cpu_ms", "cpu_low",
    "cpu_high", "client_cpu_ms", "cores", "peak_mib", "predicted_cpu_ms", "predicted_cores", "predicted_doubling",
)  # fmt: skip


def _series(own: pl.DataFrame, lowest: object) -> dict[str, Any]:
    """A series of the runs that count, of which some are `behind` others of their rate; *lowest* is the load that its
    rates are compared with.
    """
    points = own.filter(~pl.col("behind"))
    blocks_of = points["block"].unique().to_list()
    curve = []
    for (rate,), part in points.group_by("rate_per_s", maintain_order=True):
        by_block = dict(part.select("block", "ttfb_ms_p99").rows())
        if isinstance(rate, float):
            curve.append((rate, [by_block.get(block, math.nan) for block in blocks_of]))
    first = own.row(0, named=True)
    known = lowest in points["load"]
    rate, low, high = doubling(sorted(curve)) if known else (math.nan,) * 3
    busy = own.filter((pl.col("load") >= BUSY) & pl.col("server_cpu_ms").is_not_null())
    blocks = busy.group_by("block").agg(pl.col("server_cpu_ms").mean()).sort("block")["server_cpu_ms"].to_numpy()
    cost = float(blocks.mean()) if len(blocks) else None
    cost_low, cost_high = statistics.mean_interval(np.sort(blocks), 0) if len(blocks) > 1 else (None, None)
    memory = own["server_max_rss_bytes"].max()
    return {
        **{name: first[name] for name in (*PLACE, *KEYS)},
        "label": without_load(first["label"]),
        "cells": ",".join(own["cell"].unique(maintain_order=True)),
        "n": own["block"].n_unique(),
        "copies": first["copies"] or 1,
        "lowest_p99_ms": float(np.nanmedian(min(curve)[1])) if known else None,
        "highest_rate": max(curve)[0] if curve else None,
        "doubling_per_s": _finite(rate),
        "doubling_low": _finite(low),
        "doubling_high": _finite(high),
        "server_cpu_ms": cost,
        "cpu_low": cost_low,
        "cpu_high": cost_high,
        "client_cpu_ms": busy["client_cpu_ms"].mean(),
        "cores": None if cost is None else cores(cost),
        "peak_mib": memory / 2**20 if isinstance(memory, int) else None,
    }


def by_memory(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell whose connections are held open, measured or not, by server and signature.

    Columns: `PLACE`, `KEYS`, label (without what is done), cell, n (blocks that count), connections (held open),
    none_bytes and held_bytes (means of the server's memory), bytes_per_connection (mean over blocks) with bytes_low and
    bytes_high (its 95 % interval; null for fewer than two blocks), failed (runs), unsupported and failure (the last
    reason of each).
    """
    own = campaign.filter((pl.col("arm") == "main") & pl.col("held").is_not_null())
    good = comparison.counted(own)
    cells = own.group_by("cell").agg(
        *(pl.col(name).last() for name in (*PLACE, *KEYS)),
        pl.col("label").last().str.strip_suffix(HELD),
        (pl.col("status") == "failed").sum().alias("failed"),
        pl.col("reason").filter(pl.col("status") == "unsupported").last().alias("unsupported"),
        pl.col("reason").filter(pl.col("status") == "failed").last().alias("failure"),
    )
    rows = []
    for (cell,), part in good.group_by("cell"):
        blocks = part.group_by("block").agg(pl.col("memory_per_connection_bytes").mean()).sort("block")
        values = np.sort(blocks["memory_per_connection_bytes"].to_numpy())
        low, high = statistics.mean_interval(values) if len(values) > 1 else (None, None)
        rows.append(
            {
                "cell": cell,
                "n": len(values),
                "connections": part["connections"].max(),
                "none_bytes": part["memory_none_bytes"].mean(),
                "held_bytes": part["memory_held_bytes"].mean(),
                "bytes_per_connection": float(values.mean()),
                "bytes_low": low,
                "bytes_high": high,
            }
        )
    schema: dict[str, Any] = {"cell": pl.String(), "n": pl.Int64(), "connections": pl.Int64()}
    schema |= dict.fromkeys(
        ("none_bytes", "held_bytes", "bytes_per_connection", "bytes_low", "bytes_high"), pl.Float64()
    )
    measured = pl.DataFrame(rows, schema=schema, orient="row")
    joined = cells.join(measured, on="cell", how="left").with_columns(pl.col("n").fill_null(0))
    return joined.sort("server_library", "signature", "group", "cell")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cores(cpu_ms: float) -> float:
    """Processors that `CONNECTIONS_PER_S` take, of so many ms each."""
    return CONNECTIONS_PER_S * cpu_ms / 1e3


def without_load(label: str) -> str:
    """Label of a variant, of its label with a load."""
    return label.rpartition(", load ")[0] or label


def _baseline(campaign: pl.DataFrame) -> tuple[str, str] | None:
    """Group and signature of what the others are compared with: they of the cells that have no baseline."""
    known = campaign.filter((pl.col("arm") == "main") & pl.col("baseline").is_null() & pl.col("load").is_not_null())
    found = known.sort("load").select("group", "signature").unique(maintain_order=True).rows()
    return found[0] if found else None


_Primitive = tuple[str, str, str, str]
"""Library, kind, name and operation."""


def _mean_ms(primitives: pl.DataFrame) -> dict[_Primitive, float]:
    """Mean time of every primitive, of the block in which it is the least."""
    means = primitives.group_by("library", "kind", "name", "operation").agg(pl.col("mean_ns").min() / 1e6)
    return {(library, kind, name, operation): ms for library, kind, name, operation, ms in means.rows()}


def _predict(
    rows: Sequence[dict[str, Any]], baseline: tuple[str, str] | None, times: Mapping[_Primitive, float]
) -> None:
    """Add to series what the baseline of their server and the primitives say."""
    of_server = {
        (row["server_library"], row["processors"]): row for row in rows if (row["group"], row["signature"]) == baseline
    }
    for row in rows:
        reference = of_server.get((row["server_library"], row["processors"]))
        if reference is None or reference is row or reference["server_cpu_ms"] is None:
            continue
        own, other = (_server_crypto_ms(one, times) for one in (row, reference))
        if own is None or other is None:
            continue
        predicted = reference["server_cpu_ms"] + own - other
        if predicted <= 0:
            continue
        row |= {"predicted_cpu_ms": predicted, "predicted_cores": cores(predicted)}
        if reference["doubling_per_s"] is not None:
            row["predicted_doubling"] = reference["doubling_per_s"] * reference["server_cpu_ms"] / predicted


def _server_crypto_ms(row: Mapping[str, Any], times: Mapping[_Primitive, float]) -> float | None:
    found = [times.get((row["server_library"], kind, row[kind], name)) for kind, name in ttfb.SERVER_OPERATIONS]
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def on_all_processors(series: pl.DataFrame) -> pl.DataFrame:
    """A row for every series of `by_series` on all processors, beside that of the same server on one.

    Columns: `PLACE`, `KEYS` without processors, label (of the latter), cells (of both), n (blocks, of the fewer),
    copies, one_per_s and all_per_s (doubling rates; null: beyond the highest rate or unknown), times (their ratio) with
    times_low and times_high (from the ends of both intervals), one_cpu_ms, all_cpu_ms and cost_ratio (of a connection).
    """
    names = [*PLACE, *(key for key in KEYS if key != "processors")]
    ends = ("doubling_per_s", "doubling_low", "doubling_high", "server_cpu_ms", "cells", "n")
    one, every = (
        series.filter(pl.col("copies") == 1 if alone else pl.col("copies") > 1).select(
            *names, *(["label"] if alone else ["copies"]), *(pl.col(name).alias(f"{word}_{name}") for name in ends)
        )
        for word, alone in (("one", True), ("all", False))
    )
    return (
        every.join(one, on=names, nulls_equal=True)
        .select(
            *names,
            "label",
            pl.concat_str("one_cells", "all_cells", separator=",").alias("cells"),
            pl.min_horizontal("one_n", "all_n").alias("n"),
            "copies",
            pl.col("one_doubling_per_s").alias("one_per_s"),
            pl.col("all_doubling_per_s").alias("all_per_s"),
            (pl.col("all_doubling_per_s") / pl.col("one_doubling_per_s")).alias("times"),
            (pl.col("all_doubling_low") / pl.col("one_doubling_high")).alias("times_low"),
            (pl.col("all_doubling_high") / pl.col("one_doubling_low")).alias("times_high"),
            pl.col("one_server_cpu_ms").alias("one_cpu_ms"),
            pl.col("all_server_cpu_ms").alias("all_cpu_ms"),
            (pl.col("all_server_cpu_ms") / pl.col("one_server_cpu_ms")).alias("cost_ratio"),
        )
        .sort("server_library", "label")
    )


def measured(runs_table: pl.DataFrame, found: details.Details) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The newest campaign of the experiment, empty without runs of it, and its primitives."""
    campaign = runs.select_campaign(runs_table, EXPERIMENT)
    if campaign.is_empty():
        return campaign, found.primitives.clear()
    return campaign, ttfb.timed(runs_table, campaign, found.primitives)
