"""Tables for people: the same in a notebook and on the report page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.plan.arms import ARMS, CAPTURED
from quicbed.store import runs


@dataclass(frozen=True)
class Sheet:
    """A table for people: the same in a notebook and on the report page."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numeric: frozenset[int] = field(default_factory=frozenset)  # columns aligned as numbers

    def _repr_html_(self) -> str:
        head = "".join(f"<th{self._align(i)}>{_text(h)}</th>" for i, h in enumerate(self.headers))
        body = "".join(
            "<tr>" + "".join(f"<td{self._align(i)}>{_text(v)}</td>" for i, v in enumerate(row)) + "</tr>\n"
            for row in self.rows
        )
        return f"<table class='sheet'><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"

    def __html__(self) -> str:
        return self._repr_html_()

    def _align(self, column: int) -> str:
        number = "text-align:right;white-space:nowrap"
        return f" style='{number if column in self.numeric else 'text-align:left'}'"


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
    return Sheet(["testbed", "host", "processor", *summary.columns[3:]], summary.rows(), frozenset(range(7, 14)))


def summary(table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Sheet:
    """A figure's table as it would be printed: goodput in Gbit/s and ratios with intervals."""
    titles = titles or {}
    headers = [
        "library", "cell", "arm", "n", "mean [Gbit/s]", "median", "quartiles", "compared with", "ratio",
        "95 % interval", "CPU client + server [s/GiB]", "failed", "contaminated", "repeated",
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
            _range(_number(cell["ratio_low"], 3), _number(cell["ratio_high"], 3)),
            _range(_number(cell["client_cpu_s_per_gib"], 2), _number(cell["server_cpu_s_per_gib"], 2), "+"),
            cell["failed"],
            cell["contaminated"],
            cell["repeated"],
        ]
        for cell in table.to_dicts()
    ]
    return Sheet(headers, rows, frozenset({3, 4, 5, 6, *range(8, 14)}))


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
            _range(_number(cell["ratio_low"], 3), _number(cell["ratio_high"], 3)),
            cell["failed"],
            cell["contaminated"],
            cell["repeated"],
        ]
        for cell in table.to_dicts()
    ]
    return Sheet(headers, rows, frozenset({3, 4, 5, 6, *range(8, 13)}))


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
