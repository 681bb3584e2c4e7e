"""Statistics of an experiment: which runs count, summaries by cell, ratios paired within blocks.

**Which runs count.** A run counts when its status is ``ok``. Of the attempts at a cell in one
block the first uncontaminated one counts; when every attempt was contaminated, the last one
counts and is reported in the column ``contaminated``.

**Ratios.** The ratio of a cell to its baseline is the geometric mean of the ratios of the two
runs in the same block: machine-wide changes between blocks cancel, and the ratio of A to B is the
inverse of that of B to A. Its 95 % interval is an *expanded percentile* bootstrap interval of the
mean log ratio (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American
Statistician 69(4), 2015, sec. 4.4): a plain percentile interval is too narrow by the factor
``sqrt((n - 1) / n) * z / t`` in small samples, at 10 blocks it covers about 90 % instead of 95 %.
BCa corrects skewness but not this. No resampling reaches beyond the data: with fewer than five blocks
the interval is too narrow all the same. Seed and number of resamples are fixed.

**Noise floor.** The A/A arm repeats the baseline cell of each library; the interval of its ratio
to the baseline shows what a difference of nothing looks like on this testbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from quicbed.base.statistics import paired_ratio
from quicbed.store import runs


def counted(table: pl.DataFrame) -> pl.DataFrame:
    """The runs that count: one for every cell and block that has a finished run."""
    block = ["testbed", "host", "experiment", "campaign", "source", "cell", "block"]
    return (
        table.filter((pl.col("status") == "ok") & pl.col("block").is_not_null())
        # first the uncontaminated by attempt, then the contaminated from the last attempt down
        .with_columns(
            _rank=pl.when(pl.col("contaminated"))
            .then(1_000_000 - pl.col("attempt").fill_null(0))
            .otherwise(pl.col("attempt").fill_null(0))
        )
        .sort([*block, "_rank", "origin"], nulls_last=True)
        .unique(block, keep="first", maintain_order=True)
        .drop("_rank")
        .sort(runs.SORT, nulls_last=True)
    )


def _values(used: pl.DataFrame, cell: str | None, metric: str) -> list[tuple[int, float]]:
    found = used.filter((pl.col("cell") == cell) & pl.col(metric).is_not_null())
    return found.select("block", metric).rows()


def block_values(campaign: pl.DataFrame, metric: str) -> dict[str, dict[int, float]]:
    """*metric* of the runs that count, by cell and block, of the cells that are still planned."""
    used = counted(campaign.join(_current_cells(campaign), on="cell", how="semi"))
    values: dict[str, dict[int, float]] = {}
    for cell, block, value in used.filter(pl.col(metric).is_not_null()).select("cell", "block", metric).rows():
        values.setdefault(cell, {})[block] = float(value)
    return values


def superseded(table: pl.DataFrame) -> pl.DataFrame:
    """Runs of cells that the newest plan of their campaign no longer has: another build, a variant removed."""
    return table.join(_current_cells(table), on="cell", how="anti").sort(runs.SORT, nulls_last=True)


_PLACE = ["client_library", "server_library", "label", "arm"]


def _current_cells(table: pl.DataFrame) -> pl.DataFrame:
    """Cells of the newest session's plan; where no session left one, the newest of each arm and label."""
    known = table.filter(pl.col("planned").is_not_null())
    if not known.is_empty():
        return known.filter(pl.col("planned")).select("cell").unique(maintain_order=True)
    return (
        table.group_by([*_PLACE, "cell"])
        .agg(pl.col("started_at").max())
        .sort([*_PLACE, "started_at", "cell"], nulls_last=False)
        .unique(_PLACE, keep="last", maintain_order=True)
        .select("cell")
    )


FIGURE_SCHEMA: dict[str, pl.DataType] = {
    "testbed": pl.String(),
    "testbed_kind": pl.String(),
    "host": pl.String(),
    "cpu_model": pl.String(),
    "kernel": pl.String(),
    "experiment": pl.String(),
    "campaign": pl.String(),
    "scale": pl.String(),
    "link_mode": pl.String(),
    "mtu": pl.Int64(),
    "rate_mbit": pl.Float64(),
    "workload_bytes": pl.Int64(),
    "client_library": pl.String(),
    "server_library": pl.String(),
    "client_build": pl.String(),
    "server_build": pl.String(),
    "arm": pl.String(),
    "label": pl.String(),
    "cell": pl.String(),
    "cipher": pl.String(),
    "aead": pl.String(),
    "header_protection": pl.Boolean(),
    "aes_hardware": pl.Boolean(),  # null where the experiment does not vary it
    "client_march": pl.String(),  # instruction set of a build that is not for every processor
    "server_march": pl.String(),
    "client_external": pl.Boolean(),  # an external endpoint, whose goodput has the start of its program in it
    "server_external": pl.Boolean(),
    "unproven": pl.String(),  # what the evidence leaves open
    "unsupported": pl.String(),  # the reason, null for a supported cell
    "n": pl.Int64(),  # runs that count
    "mean": pl.Float64(),
    "median": pl.Float64(),
    "q1": pl.Float64(),
    "q3": pl.Float64(),
    "min": pl.Float64(),
    "max": pl.Float64(),
    "blocks": pl.Int64(),  # blocks the cell was tried in
    "failed": pl.Int64(),  # failed runs, or 1 for a cell that was never run because its proof failed
    "failure": pl.String(),  # the reason of the last one
    "contaminated": pl.Int64(),  # runs that count although contaminated
    "repeated": pl.Int64(),  # contaminated runs that an uncontaminated repetition replaced
    "client_cpu_s_per_gib": pl.Float64(),  # means over the runs that count
    "server_cpu_s_per_gib": pl.Float64(),
    "baseline": pl.String(),
    "baseline_label": pl.String(),
    "ratio": pl.Float64(),  # paired ratio to the baseline cell
    "ratio_low": pl.Float64(),
    "ratio_high": pl.Float64(),
    "ratio_n": pl.Int64(),
    "aa_ratio": pl.Float64(),  # A/A arm of the same library
    "aa_low": pl.Float64(),
    "aa_high": pl.Float64(),
}
"""Columns of a figure's table: one row a cell, metric in the unit of `figure_table`'s metric."""


def figure_table(campaign: pl.DataFrame, metric: str = "goodput_mbps") -> pl.DataFrame:
    """One row a cell of one campaign (see `quicbed.store.runs.select_campaign`).

    mean ... max are of *metric* over the runs that count; quartiles interpolate linearly between
    order statistics. Cells that `superseded` names are left out.
    """
    current = campaign.join(_current_cells(campaign), on="cell", how="semi")
    used = counted(current)
    rows = [_figure_row(current, used, cell, metric) for cell in sorted(set(current["cell"]))]
    labels = {row["cell"]: row["label"] for row in rows}
    floors = {(row["client_library"], row["server_library"]): row for row in rows if row["arm"] == "aa"}
    for row in rows:
        row["baseline_label"] = labels.get(row["baseline"])
        floor = floors.get((row["client_library"], row["server_library"]))
        if floor:
            row |= {f"aa_{end}": floor[f"ratio_{end}"] for end in ("low", "high")}
            row["aa_ratio"] = floor["ratio"]
    complete = [{name: row.get(name) for name in FIGURE_SCHEMA} for row in rows]
    return pl.DataFrame(complete, schema=FIGURE_SCHEMA, orient="row").sort(
        "client_library",
        "server_library",
        pl.col("arm").cast(pl.Enum(["main", "control", "aa"])),
        "label",
        "cell",
        nulls_last=True,
    )


def _figure_row(campaign: pl.DataFrame, used: pl.DataFrame, cell: str, metric: str) -> dict[str, Any]:
    tried = campaign.filter(pl.col("cell") == cell).sort("started_at", *runs.SORT, nulls_last=False)
    in_blocks = tried.filter(pl.col("block").is_not_null())
    # a record without a block says why a cell was not measured: the last one holds, until there are runs
    tried = tried.tail(1) if in_blocks.is_empty() else in_blocks
    newest = tried.row(-1, named=True)
    row = {name: newest.get(name) for name in FIGURE_SCHEMA}
    counting = used.filter((pl.col("cell") == cell) & pl.col(metric).is_not_null())
    values = counting[metric].sort().to_numpy()
    refused = tried.filter(pl.col("status") == "unsupported")
    broken = tried.filter(pl.col("status") == "failed")
    ok = tried.filter(pl.col("status") == "ok")
    row |= {
        "unsupported": refused["reason"][-1] if len(refused) and ok.is_empty() else None,
        "n": len(values),
        "blocks": tried["block"].drop_nulls().n_unique(),
        "failed": len(broken),
        "failure": broken["reason"][-1] if len(broken) else None,
        "contaminated": int(counting["contaminated"].sum()),
        "repeated": int(ok["contaminated"].sum()) - int(counting["contaminated"].sum()),
    }
    for role in ("client", "server"):
        row[f"{role}_cpu_s_per_gib"] = counting[f"{role}_cpu_s_per_gib"].sort().mean()
    if len(values):
        q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
        row |= {
            "mean": float(values.mean()),
            "median": float(median),
            "q1": float(q1),
            "q3": float(q3),
            "min": float(values[0]),
            "max": float(values[-1]),
        }
    if newest["baseline"] is not None:
        row |= _compared(used, cell, newest["baseline"], metric)
    return row


def _compared(used: pl.DataFrame, cell: str, baseline: str, metric: str) -> dict[str, Any]:
    """Columns of a figure's table on the ratio of a cell to another one."""
    own, other = _values(used, cell, metric), _values(used, baseline, metric)
    if any(value == 0 for _, value in [*own, *other]):
        own, other = [], []  # a count may be zero, of which there is no ratio
    interval = paired_ratio(own, other)
    row: dict[str, Any] = {"ratio_n": interval.n}
    if interval.n:
        row["ratio"] = interval.ratio
    if interval.n > 1:
        row |= {"ratio_low": interval.low, "ratio_high": interval.high}
    return row


def compared(
    campaign: pl.DataFrame, table: pl.DataFrame, baselines: Mapping[str, str | None], metric: str = "goodput_mbps"
) -> pl.DataFrame:
    """*table* of `figure_table` with *baselines*, by cell, in place of those that were planned; None: with none."""
    used = counted(campaign)
    labels = dict(table.select("cell", "label").rows())
    nothing = dict.fromkeys(["baseline", "baseline_label", "ratio", "ratio_low", "ratio_high", "ratio_n"])
    rows = table.to_dicts()
    for row in rows:
        cell, target = row["cell"], baselines.get(row["cell"])
        if cell not in baselines or target == row["baseline"]:
            continue
        row |= nothing
        if target is not None:
            row |= {"baseline": target, "baseline_label": labels[target], **_compared(used, cell, target, metric)}
    return pl.DataFrame(rows, schema=table.schema, orient="row")


def pair_title(pair: tuple[str, str], titles: Mapping[str, str]) -> str:
    """Name of a client and a server library: one name where they are the same."""
    client, server = (titles.get(name, name) for name in pair)
    return client if client == server else f"{server} to {client}"


def write_figure_table(table: pl.DataFrame, name: str, directory: Path) -> list[Path]:
    """Write *table* as ``<name>.parquet`` and ``<name>.csv``."""
    parquet, csv = directory / f"{name}.parquet", directory / f"{name}.csv"
    runs.write_parquet(table, parquet)
    runs.write_csv(table, csv)
    return [parquet, csv]


def used_origins(campaign: pl.DataFrame, cells: Sequence[str]) -> list[str]:
    """Directories of the runs that count for *cells*: the data behind a figure."""
    return counted(campaign).filter(pl.col("cell").is_in(list(cells)))["origin"].sort().to_list()
