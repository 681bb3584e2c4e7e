"""Statistics of an experiment: which runs count, summaries by cell, ratios paired within blocks.

**Which runs count.** A run counts when its status is ``ok``. Of the attempts at a cell in one
block the first uncontaminated one counts; when every attempt was contaminated, the last one
counts and is reported in the column ``contaminated``.

**Ratios.** The ratio of a cell to its baseline is the geometric mean of the ratios of the two
runs in the same block: machine-wide changes between blocks cancel, and the ratio of A to B is the
inverse of that of B to A. Its 95 % interval is that of the mean log ratio (`quicbed.base.statistics.mean_interval`).

**Processor time.** Beside goodput stands what both ends downloaded per second of their processor time, paired in the
same way: other programs of a machine take time from a run, and change the time that it needs far less.

**Noise floor.** The A/A arm repeats the baseline cell of each library; the interval of its ratio
to the baseline shows what a difference of nothing looks like on this testbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from quicbed.base.statistics import Interval, blocks_for, paired_ratio
from quicbed.config.model import EXTERNAL, Contrast, Library
from quicbed.plan.arms import BESIDE
from quicbed.store import runs

TWIN = "gib_per_cpu_s"
"""What is compared beside goodput."""


def with_cost(campaign: pl.DataFrame) -> pl.DataFrame:
    """Runs with `cpu_s_per_gib`, the processor time of both ends; null where one cannot tell or has spent none."""
    return campaign.with_columns(cpu_s_per_gib=1 / pl.col("gib_per_cpu_s"))


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


Values = dict[str, dict[int, float]]
"""Of a metric, by cell and block."""


def _values(used: pl.DataFrame, metric: str) -> Values:
    values: dict[str, dict[int, float]] = {}
    for cell, block, value in used.filter(pl.col(metric).is_not_null()).select("cell", "block", metric).rows():
        values.setdefault(cell, {})[block] = float(value)
    return values


def block_values(campaign: pl.DataFrame, metric: str) -> Values:
    """*metric* of the runs that count, by cell and block, of the cells that are still planned."""
    return _values(counted(campaign.join(_current_cells(campaign), on="cell", how="semi")), metric)


def superseded(table: pl.DataFrame) -> pl.DataFrame:
    """Runs of cells that the newest plan of their campaign no longer has: another build, a variant removed."""
    return table.join(_current_cells(table), on="cell", how="anti").sort(runs.SORT, nulls_last=True)


_PLACE = ["client_library", "server_library", "label", "arm"]


def _current_cells(table: pl.DataFrame) -> pl.DataFrame:
    """Cells of the newest session's plan; where no session left one, the newest of each arm and label."""
    known = table.filter(pl.col("planned").is_not_null())
    if not known.is_empty():
        return known.filter(pl.col("planned")).select("cell").unique(maintain_order=True)
    # of one label there is a cell beside each that it is the baseline of
    several = pl.when(pl.col("arm") == BESIDE).then("cell")
    return (
        table.group_by([*_PLACE, "cell"])
        .agg(pl.col("started_at").max())
        .with_columns(_one=several)
        .sort([*_PLACE, "started_at", "cell"], nulls_last=False)
        .unique([*_PLACE, "_one"], keep="last", maintain_order=True)
        .select("cell")
    )


_OF_RUNS = (
    "testbed testbed_kind host cpu_model kernel experiment campaign scale link_mode mtu rate_mbit workload_bytes "
    "client_library server_library client_build server_build arm label cell cipher aead header_protection aes_hardware "
    "client_march server_march client_external server_external client_times start_share unproven"
)
FIGURE_SCHEMA: dict[str, pl.DataType] = {
    **{name: runs.SCHEMA[name] for name in _OF_RUNS.split()},  # `start_share`: mean over the runs that count
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
    "ratio_deviation": pl.Float64(),  # standard deviation of the logarithm of the ratio over blocks
    "aa_ratio": pl.Float64(),  # A/A arm of the same library
    "aa_low": pl.Float64(),
    "aa_high": pl.Float64(),
    # the twin of goodput: GiB per second of processor time of both ends, which other programs on a machine change less
    "cpu_ratio": pl.Float64(),
    "cpu_ratio_low": pl.Float64(),
    "cpu_ratio_high": pl.Float64(),
    "cpu_ratio_deviation": pl.Float64(),
    "cpu_aa_ratio": pl.Float64(),
    "cpu_aa_low": pl.Float64(),
    "cpu_aa_high": pl.Float64(),
    "block_s": pl.Float64(),  # that all runs of the cell's pair of libraries took in a block, repetitions included
}
"""Columns of a figure's table: one row a cell, metric in the unit of `figure_table`'s metric."""


MOST_START = 0.01
"""Of a run, that the start of an external client's program should be."""


def figure_table(campaign: pl.DataFrame, metric: str = "goodput_mbps") -> pl.DataFrame:
    """One row a cell of one campaign (see `quicbed.store.runs.select_campaign`).

    mean ... max are of *metric* over the runs that count; quartiles interpolate linearly between
    order statistics. Cells that `superseded` names are left out.
    """
    current = campaign.join(_current_cells(campaign), on="cell", how="semi")
    used = counted(current)
    values = _compared_values(used, metric)
    counting = _by_cell(used.filter(pl.col(metric).is_not_null()), metric)
    tried = _by_cell(current.sort("started_at", *runs.SORT, nulls_last=False), metric)
    rows = [_figure_row(tried[cell], counting.get(cell, []), metric, values) for cell in sorted(tried)]
    labels = {row["cell"]: row["label"] for row in rows}
    floors = {(row["client_library"], row["server_library"]): row for row in rows if row["arm"] == "aa"}
    took = _block_s(current)
    for row in rows:
        row["baseline_label"] = labels.get(row["baseline"])
        row["block_s"] = took.get((row["client_library"], row["server_library"]))
        floor = floors.get((row["client_library"], row["server_library"]))
        if floor is None:
            continue
        for kind in ("", "cpu_"):
            found = {end: floor.get(f"{kind}ratio{end}") for end in ("", "_low", "_high")}
            row |= {f"{kind}aa{end or '_ratio'}": value for end, value in found.items()}
    complete = [{name: row.get(name) for name in FIGURE_SCHEMA} for row in rows]
    return pl.DataFrame(complete, schema=FIGURE_SCHEMA, orient="row").sort(
        "client_library",
        "server_library",
        pl.col("arm").cast(pl.Enum(["main", "control", "aa", BESIDE])),
        "label",
        "cell",
        nulls_last=True,
    )


class Campaigns:
    """The newest campaign of every experiment and the tables of its figures, each worked out once."""

    def __init__(self, table: pl.DataFrame) -> None:
        self._runs = table
        self._newest: dict[str, pl.DataFrame] = {}
        self._figures: dict[tuple[str, str], pl.DataFrame] = {}

    def newest(self, experiment: str) -> pl.DataFrame:
        """`quicbed.store.runs.select_campaign`: empty without runs."""
        if experiment not in self._newest:
            self._newest[experiment] = runs.select_campaign(self._runs, experiment)
        return self._newest[experiment]

    def figure(self, experiment: str, metric: str = "goodput_mbps") -> pl.DataFrame:
        """`figure_table` of the newest campaign."""
        if (experiment, metric) not in self._figures:
            self._figures[experiment, metric] = figure_table(self.newest(experiment), metric)
        return self._figures[experiment, metric]


def _block_s(campaign: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Seconds that a block took of each pair of libraries."""
    pair = ("client_library", "server_library")
    took = pl.col("wall_s") + pl.col("overhead_s")
    runs_of = campaign.filter(pl.col("block").is_not_null() & took.is_not_null()).group_by(pair)
    found = runs_of.agg(took.sum() / pl.col("block").n_unique())
    return {(client, server): seconds for client, server, seconds in found.rows()}


def _by_cell(table: pl.DataFrame, metric: str) -> dict[str, list[dict[str, Any]]]:
    """Runs of each cell, in their order, with what a figure's table needs: a frame for each would take far longer."""
    needed = {*FIGURE_SCHEMA, "block", "status", "reason", metric}
    found: dict[str, list[dict[str, Any]]] = {}
    for run in table.select(name for name in table.columns if name in needed).iter_rows(named=True):
        found.setdefault(run["cell"], []).append(run)
    return found


def _figure_row(
    tried: Sequence[Mapping[str, Any]],
    counting: Sequence[Mapping[str, Any]],
    metric: str,
    values_of: Sequence[Values],
) -> dict[str, Any]:
    """The row of a cell, from its runs and those of them that count and have the metric."""
    # a record without a block says why a cell was not measured: the last one holds, until there are runs
    tried = [run for run in tried if run["block"] is not None] or tried[-1:]
    newest = tried[-1]
    row = {name: newest.get(name) for name in FIGURE_SCHEMA}
    values = np.sort(np.array([run[metric] for run in counting]))
    ok, broken, refused = (
        [run for run in tried if run["status"] == status] for status in ("ok", "failed", "unsupported")
    )
    contaminated = sum(bool(run["contaminated"]) for run in counting)
    row |= {
        "unsupported": refused[-1]["reason"] if refused and not ok else None,
        "n": len(values),
        "blocks": len({run["block"] for run in tried} - {None}),
        "failed": len(broken),
        "failure": broken[-1]["reason"] if broken else None,
        "contaminated": contaminated,
        "repeated": sum(bool(run["contaminated"]) for run in ok) - contaminated,
    }
    for name in ("client_cpu_s_per_gib", "server_cpu_s_per_gib", "start_share"):
        known = sorted(run[name] for run in counting if run[name] is not None)  # whatever their order
        row[name] = pl.Series(known, dtype=pl.Float64).mean()
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
        row |= _compared(values_of, newest["cell"], newest["baseline"])
    return row


def _compared_values(used: pl.DataFrame, metric: str) -> list[Values]:
    """Values of a metric and, of goodput, of its twin."""
    return [_values(used, one) for one in (metric, *([TWIN] if metric == "goodput_mbps" else []))]


def _compared(values_of: Sequence[Values], cell: str, baseline: str) -> dict[str, Any]:
    """Columns of a figure's table on the ratio of a cell to another one, of `_compared_values`."""
    row: dict[str, Any] = {}
    for kind, values in zip(("", "cpu_"), values_of, strict=False):
        own, other = values.get(cell, {}), values.get(baseline, {})
        if not kind and 0 in (*own.values(), *other.values()):
            own, other = {}, {}  # a count may be zero, of which there is no ratio
        interval = paired_ratio(own.items(), other.items())
        row |= _columns(interval, kind) | ({} if kind else {"ratio_n": interval.n})
    return row


def _columns(interval: Interval, kind: str = "") -> dict[str, Any]:
    """The columns of a ratio: the interval of two blocks or more."""
    row = {f"{kind}ratio": interval.ratio} if interval.n else {}
    if interval.n > 1:
        row |= {f"{kind}ratio_low": interval.low, f"{kind}ratio_high": interval.high}
        row |= {f"{kind}ratio_deviation": interval.deviation}
    return row


def compared(
    campaign: pl.DataFrame, table: pl.DataFrame, baselines: Mapping[str, str | None], metric: str = "goodput_mbps"
) -> pl.DataFrame:
    """*table* of `figure_table` with *baselines*, by cell, in place of those that were planned; None: with none."""
    values_of = _compared_values(counted(campaign), metric)
    labels = dict(table.select("cell", "label").rows())
    ends = [f"{kind}ratio{end}" for kind in ("", "cpu_") for end in ("", "_low", "_high", "_deviation")]
    nothing = dict.fromkeys(["baseline", "baseline_label", "ratio_n", *ends])
    rows = table.to_dicts()
    for row in rows:
        cell, target = row["cell"], baselines.get(row["cell"])
        if cell not in baselines or target == row["baseline"]:
            continue
        row |= nothing
        if target is not None:
            row |= {"baseline": target, "baseline_label": labels[target], **_compared(values_of, cell, target)}
    return pl.DataFrame(rows, schema=table.schema, orient="row")


UNDECIDED: dict[str, pl.DataType] = {
    **{
        name: FIGURE_SCHEMA[name]
        for name in (
            *("experiment", "campaign", "client_library", "server_library", "label", "cell", "baseline"),
            *("baseline_label", "ratio", "ratio_low", "ratio_high", "ratio_n"),
        )
    },
    "half_width": pl.Float64(),  # of the interval, as a fraction of the ratio
    "wanted": pl.Float64(),  # the half width that the experiment is to reach
    "more_blocks": pl.Int64(),  # until it does, if blocks go on to differ as they do; null for more than can be asked
    "more_hours": pl.Float64(),  # that these take, with all cells of the pair of libraries
    "cpu_half_width": pl.Float64(),  # the same of what is downloaded per second of processor time
    "cpu_more_blocks": pl.Int64(),
}
"""Columns of `undecided`."""


def undecided(table: pl.DataFrame, contrast: Contrast | None) -> pl.DataFrame:
    """Rows of `UNDECIDED`: ratios of a figure's table that *contrast* names and whose interval is wider than it wants.

    How many blocks they take follows from the standard deviation of their logarithm over blocks
    (`quicbed.base.statistics.blocks_for`). Of two blocks or more; empty without a contrast.
    """
    wanted = contrast.half_width if contrast is not None else math.inf
    labels = contrast.labels if contrast is not None else []
    named = (pl.col("arm") == "main") & pl.col("label").is_in(labels)
    compared = table.filter(named & pl.col("ratio_high").is_not_null())
    rows = []
    for cell in compared.to_dicts():
        width, by_time = (_half_width(cell, kind) for kind in ("", "cpu_"))
        if width is None or width <= wanted:
            continue
        more = _more_blocks(cell, "", wanted)
        hours = more * cell["block_s"] / 3600 if more is not None and cell["block_s"] is not None else None
        told = {"half_width": width, "wanted": wanted, "more_blocks": more, "more_hours": hours}
        told |= {"cpu_half_width": by_time, "cpu_more_blocks": _more_blocks(cell, "cpu_", wanted)}
        rows.append({name: (cell | told)[name] for name in UNDECIDED})
    return pl.DataFrame(rows, schema=UNDECIDED, orient="row")


def _half_width(cell: Mapping[str, Any], kind: str) -> float | None:
    """Of the interval of a ratio, as a fraction of it."""
    low, high = cell[f"{kind}ratio_low"], cell[f"{kind}ratio_high"]
    return None if low is None else float((high - low) / (2 * cell[f"{kind}ratio"]))


def _more_blocks(cell: Mapping[str, Any], kind: str, wanted: float) -> int | None:
    """Until an interval is narrow enough: at least one for one that is not, though Student's t may say so already."""
    deviation, width = cell[f"{kind}ratio_deviation"], _half_width(cell, kind)
    blocks = None if deviation is None else blocks_for(deviation, wanted)
    return None if blocks is None or width is None else max(blocks - cell["ratio_n"], int(width > wanted))


def pair_title(pair: tuple[str, str], titles: Mapping[str, str]) -> str:
    """Name of a client and a server library: one name where they are the same."""
    client, server = (titles.get(name, name) for name in pair)
    return client if client == server else f"{server} to {client}"


def unlike_itself(cell: Mapping[str, Any], kind: str = "") -> bool:
    """Whether a row of a figure's table is of an A/A arm whose interval excludes 1: equal cells differ there.

    *kind* is what the names of the ratio's columns begin with: nothing, or `cpu_` for that of processor time.
    """
    if cell["arm"] != "aa" or cell[f"{kind}ratio_low"] is None:
        return False
    return not cell[f"{kind}ratio_low"] <= 1 <= cell[f"{kind}ratio_high"]


def titles(libraries: Mapping[str, Library], table: pl.DataFrame) -> dict[str, str]:
    """Names of libraries in figures and tables, in which every external endpoint is marked.

    *table* has runs. Those of an external endpoint may come from a machine whose folder nothing describes here.
    """
    named = {name: library.shown_as for name, library in libraries.items()}
    for side in ("client", "server"):
        for name in table.filter(pl.col(f"{side}_external"))[f"{side}_library"].unique().sort():
            named[name] = f"{named.get(name, name).removesuffix(EXTERNAL)}{EXTERNAL}"
    return named


def starts(rows: pl.DataFrame, titles: Mapping[str, str] | None = None) -> list[str]:
    """Whose goodput has the start of an external client's program in it and how much of it, as lines; may be empty.

    *rows* are runs, or cells of a figure's table; *titles* are names of libraries, which may say that one is external.
    """
    columns = {"client_external", "client_times", "start_share", "goodput_mbps", "n"} & set(rows.columns)
    if "client_external" not in columns or not columns & {"goodput_mbps", "n"}:
        return []
    theirs = rows.filter(pl.col("client_external"))
    if "client_times" in columns:
        theirs = theirs.filter(~pl.col("client_times").fill_null(value=False))
    measured = pl.col("goodput_mbps").is_not_null() if "goodput_mbps" in columns else pl.col("n") > 0
    theirs = theirs.filter(measured)
    found = []
    for (library,), own in theirs.sort("client_library").group_by("client_library", maintain_order=True):
        most: Any = own["start_share"].max() if "start_share" in columns else None
        size = "not measured" if most is None else f"at most {100 * most:.2f} % of a run"
        beyond = ", which is more than 1 %" if most is not None and most > MOST_START else ""
        name = (titles or {}).get(library, library).removesuffix(EXTERNAL)
        found.append(f"{name} ({size}{beyond})")
    return (
        [f"{EXTERNAL.strip()}: the start of the program is within the goodput of {'; '.join(found)}."] if found else []
    )


def write_figure_table(table: pl.DataFrame, name: str, directory: Path) -> list[Path]:
    """Write *table* as ``<name>.parquet`` and ``<name>.csv``."""
    parquet, csv = directory / f"{name}.parquet", directory / f"{name}.csv"
    runs.write_parquet(table, parquet)
    runs.write_csv(table, csv)
    return [parquet, csv]


def used_origins(campaign: pl.DataFrame, cells: Sequence[str]) -> list[str]:
    """Directories of the runs that count for *cells*: the data behind a figure."""
    return counted(campaign).filter(pl.col("cell").is_in(list(cells)))["origin"].sort().to_list()
