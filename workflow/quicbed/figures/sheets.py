"""Tables for people: the same in a notebook and on the report page."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.place import RUNS_PAGE, RUNS_PAGE_VARIABLE
from quicbed.figures.goodput import UNLIKE_ITSELF, UNLIKE_ITSELF_MEANS
from quicbed.plan.arms import ARMS, CAPTURED
from quicbed.store import described, runs


@dataclass(frozen=True)
class Sheet:
    """A table for people: the same in a notebook and on the report page."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numeric: frozenset[int] = field(default_factory=frozenset)  # columns aligned as numbers
    notes: Sequence[str] = ()
    behind: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """What selects the runs behind a value (`quicbed.store.runs.selection`), by row and column."""

    def table(self, runs_page: str | None = None) -> str:
        """The table; its values lead to their runs where it is told the address of the page of runs."""
        head = "".join(f"<th scope='col'{self._align(i)}>{_text(h)}</th>" for i, h in enumerate(self.headers))
        body = []
        for number, row in enumerate(self.rows):
            texts = [_text(value) for value in row]
            for column, text in enumerate(texts):
                if runs_page and text and (selected := self.behind.get((number, column))):
                    texts[column] = f"<a href='{html.escape(runs_page)}#{html.escape(selected)}'>{text}</a>"
            body.append("".join(f"<td{self._align(i)}>{text}</td>" for i, text in enumerate(texts)))
        rows = "".join(f"<tr>{cells}</tr>\n" for cells in body)
        notes = "".join(f"<p class='note'>{_text(note)}</p>" for note in self.notes)
        return f"<table class='sheet'><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table>{notes}"

    def _repr_html_(self) -> str:
        return self.table(runs_page())

    def __html__(self) -> str:
        return self.table(RUNS_PAGE)

    def _align(self, column: int) -> str:
        number = "text-align:right;white-space:nowrap"
        return f" style='{number if column in self.numeric else 'text-align:left'}'"


def runs_page() -> str | None:
    """Address of the page of runs, where there is one."""
    return os.environ.get(RUNS_PAGE_VARIABLE)


def leading(selected: Sequence[str | None], columns: Iterable[int]) -> dict[tuple[int, int], str]:
    """`Sheet.behind` of rows whose values in *columns* all come from what is *selected* by row; None: from no run."""
    return {(row, column): one for row, one in enumerate(selected) if one for column in columns}


def joined(parts: Sequence[Sheet]) -> Sheet:
    """The rows of tables with the same columns, as one with the notes of the first."""
    behind: dict[tuple[int, int], str] = {}
    above = 0
    for part in parts:
        behind |= {(above + row, column): selected for (row, column), selected in part.behind.items()}
        above += len(part.rows)
    return replace(parts[0], rows=[row for part in parts for row in part.rows], behind=behind)


def _text(value: Any) -> str:
    return "" if value is None else html.escape(str(value))


def overview(table: pl.DataFrame) -> Sheet:
    """How many runs of each campaign there are, by status."""
    known = table.filter(pl.col("status") != runs.UNREADABLE)
    keys = ["testbed", "host", "cpu_model", "kernel", "experiment", "campaign", "scale"]
    status = pl.col("status")
    counting = pl.col("arm").is_in(ARMS)
    summary = (
        known.group_by(keys)
        .agg(
            pl.col("block").drop_nulls().n_unique().alias("blocks"),
            counting.sum().alias("runs"),
            (counting & (status == "ok")).sum().alias("ok"),
            (counting & pl.col("contaminated")).sum().alias("contaminated"),
            (status == "failed").sum().alias("failed"),
            ((status == "unsupported") & (pl.col("arm") != CAPTURED)).sum().alias("unsupported"),
            (~counting).sum().alias("warm-up, proof, captured"),
            pl.col("started_at").min().dt.strftime("%Y-%m-%d %H:%M UTC").alias("first"),
        )
        .sort(keys, nulls_last=True)
    )
    numeric = frozenset(range(7, 14))
    behind = leading([runs.selection(campaign) for campaign in summary["campaign"]], numeric)
    return Sheet(["testbed", "host", "processor", *summary.columns[3:]], summary.rows(), numeric, behind=behind)


def columns(table: pl.DataFrame) -> Sheet:
    """What the columns of a table mean that have a value in it, with their units and the first value."""
    known = {name: values.drop_nulls() for name, values in table.to_dict().items()}
    rows = [
        [one.column, one.unit, one.meaning, f"{known[one.column][0]!s:.60}"]
        for one in described.columns(table.schema)
        if not known[one.column].is_empty()
    ]
    return Sheet(["column", "unit", "meaning", "for example"], rows)


def paired(table: pl.DataFrame, titles: Mapping[str, str] | None = None, alone: str | None = None) -> Sheet:
    """The table of an experiment of pairs (`quicbed.analysis.paired_runs`): ratios with their 95 % intervals.

    *alone* is the experiment whose runs measure the same labels alone.
    """
    parts = {
        "ratio of processor time per byte, both ends": "both_",
        "ratio, client": "client_",
        "ratio, server": "server_",
        "implied ratio of goodput, from the busier end": "follows_",
        "ratio of goodput of separate runs": "goodput_",
    }
    used = "CPU client + server [s/GiB]"
    headers = ["library", "cell", "arm", "pairs", "compared with", *parts, used, "failed", "disturbed"]
    rows = [
        [
            comparison.pair_title((cell["client_library"], cell["server_library"]), titles or {}),
            cell["label"] + _gap(cell),
            {"aa": "A/A"}.get(cell["arm"], cell["arm"]),
            cell["ratio_n"],
            _beside(cell, titles or {}),
            *(_with_interval(cell, part) for part in parts.values()),
            _range(_number(cell["client_cpu_s_per_gib"], 2), _number(cell["server_cpu_s_per_gib"], 2), "+"),
            cell["failed"],
            cell["contaminated"],
        ]
        for cell in table.to_dicts()
    ]
    sheet = _led(
        Sheet(headers, rows, frozenset({3, *range(5, 13)}), _notes(table, ("both_", "client_", "server_"))), table
    )
    # those are of another experiment
    selected = [
        runs.selection(None, experiment=alone, library=cell["client_library"])
        if alone is not None and cell["goodput_ratio"] is not None
        else None
        for cell in table.to_dicts()
    ]
    column = {headers.index("ratio of goodput of separate runs")}
    kept = {place: one for place, one in sheet.behind.items() if place[1] not in column}
    return replace(sheet, behind=kept | leading(selected, column))


def _beside(cell: Mapping[str, Any], titles: Mapping[str, str]) -> str | None:
    """What ran beside a cell, with its library where it is another one."""
    label, library = cell["baseline_label"], cell["baseline_library"]
    return label if library in (None, cell["client_library"]) else f"{titles.get(library, library)}, {label}"


def _with_interval(cell: Mapping[str, Any], part: str) -> str | None:
    ratio, interval = _number(cell[f"{part}ratio"], 3), _interval(cell, part)
    return f"{ratio} {interval}" if ratio and interval else ratio


def summary(table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Sheet:
    """A figure's table as it would be printed: goodput in Gbit/s and ratios with intervals."""
    titles = titles or {}
    headers = [
        "library", "cell", "arm", "n", "mean [Gbit/s]", "median", "quartiles", "compared with", "ratio",
        "95 % interval", "CPU client + server [s/GiB]", "ratio of GiB per CPU second", "its 95 % interval", "failed",
        "contaminated", "repeated",
    ]  # fmt: skip
    rows = [
        [
            comparison.pair_title((cell["client_library"], cell["server_library"]), titles),
            cell["label"] + _gap(cell),
            {"aa": "A/A"}.get(cell["arm"], cell["arm"]),
            cell["n"],
            _gbit(cell["mean"]),
            _gbit(cell["median"]),
            _range(_gbit(cell["q1"]), _gbit(cell["q3"])),
            cell["baseline_label"],
            _number(cell["ratio"], 3),
            _interval(cell),
            _range(_number(cell["client_cpu_s_per_gib"], 2), _number(cell["server_cpu_s_per_gib"], 2), "+"),
            _number(cell["cpu_ratio"], 3),
            _interval(cell, "cpu_"),
            cell["failed"],
            cell["contaminated"],
            cell["repeated"],
        ]
        for cell in table.to_dicts()
    ]
    notes = _notes(table, ("", "cpu_"), comparison.starts(table, titles))
    return _led(Sheet(headers, rows, frozenset({3, 4, 5, 6, *range(8, 16)}), notes), table)


def latency_summary(table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Sheet:
    """As `summary` for handshakes: TTFB in ms, of every run the median over its connections."""
    titles = titles or {}
    headers = [
        "library", "cell", "arm", "runs", "mean TTFB [ms]", "median", "quartiles", "compared with", "ratio",
        "95 % interval", "failed", "contaminated", "repeated",
    ]  # fmt: skip
    rows = [
        [
            titles.get(cell["client_library"], cell["client_library"]),
            cell["label"] + _gap(cell),
            {"aa": "A/A"}.get(cell["arm"], cell["arm"]),
            cell["n"],
            _number(cell["mean"], 3),
            _number(cell["median"], 3),
            _range(_number(cell["q1"], 3), _number(cell["q3"], 3)),
            cell["baseline_label"],
            _number(cell["ratio"], 3),
            _interval(cell),
            cell["failed"],
            cell["contaminated"],
            cell["repeated"],
        ]
        for cell in table.to_dicts()
    ]
    return _led(Sheet(headers, rows, frozenset({3, 4, 5, 6, *range(8, 13)}), _notes(table)), table)


def _led(sheet: Sheet, cells: pl.DataFrame) -> Sheet:
    """The table of an experiment, each of whose numbers leads to its runs: a ratio to those of both its cells."""
    compared = frozenset(number for number, name in enumerate(sheet.headers) if "ratio" in name or "interval" in name)
    own = [runs.selection(cell["campaign"], cell["cell"]) for cell in cells.to_dicts()]
    both = [_both(cell) for cell in cells.to_dicts()]
    return replace(sheet, behind=leading(own, sheet.numeric - compared) | leading(both, sheet.numeric & compared))


def undecided(found: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Sheet:
    """Ratios whose interval is wider than the experiment asks for (`quicbed.analysis.comparison.undecided`)."""
    headers = [
        "library", "cell", "compared with", "ratio", "half width [%]", "blocks", "more blocks", "hours",
        "CPU: half width [%]", "more blocks",
    ]  # fmt: skip
    rows = [
        [
            comparison.pair_title((row["client_library"], row["server_library"]), titles or {}),
            row["label"],
            row["baseline_label"],
            _number(row["ratio"], 3),
            _number(100 * row["half_width"], 1),
            row["ratio_n"],
            row["more_blocks"],
            _number(row["more_hours"], 1),
            None if row["cpu_half_width"] is None else _number(100 * row["cpu_half_width"], 1),
            row["cpu_more_blocks"],
        ]
        for row in found.to_dicts()
    ]
    numeric = frozenset(range(3, 10))
    return Sheet(headers, rows, numeric, behind=leading([_both(row) for row in found.to_dicts()], numeric))


def _both(row: Mapping[str, Any]) -> str:
    """What selects the runs of a cell and of the one that it is compared with, if it is."""
    return runs.selection(row["campaign"], row["cell"], *filter(None, [row["baseline"]]))


def _interval(cell: Mapping[str, Any], kind: str = "") -> str | None:
    """Interval of a ratio, marked where it is that of equal cells and excludes 1."""
    interval = _range(_number(cell[f"{kind}ratio_low"], 3), _number(cell[f"{kind}ratio_high"], 3))
    return f"{interval} {UNLIKE_ITSELF}" if comparison.unlike_itself(cell, kind) else interval


def _notes(table: pl.DataFrame, kinds: Sequence[str] = ("",), with_start: Sequence[str] = ()) -> list[str]:
    unlike = any(comparison.unlike_itself(cell, kind) for cell in table.to_dicts() for kind in kinds)
    return [*([UNLIKE_ITSELF_MEANS] if unlike else []), *with_start]


def _gap(cell: Mapping[str, Any]) -> str:
    """Why a cell has no numbers."""
    if cell["unsupported"]:
        return f" (unsupported: {cell['unsupported']})"
    if cell["failure"] and not cell["n"]:
        return f" (failed: {cell['failure']})"
    return ""


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _gbit(mbit: float | None) -> str | None:
    return None if mbit is None else _number(mbit / 1000, 3)


def _range(low: str | None, high: str | None, between: str = "to") -> str | None:
    return None if low is None or high is None else f"{low} {between} {high}"
