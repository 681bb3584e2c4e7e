"""Figure and table of what HTTP/3 costs a download, against a bare stream of the same library."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.figures.sheets import Sheet, leading
from quicbed.papers.workloads import http3, size_figures
from quicbed.store import runs

TITLES = {
    "goodput_mbps": "Goodput",
    "first_byte_ms": "Time to first byte",
    "cpu_s_per_gib": "CPU s per GiB, both ends",
}
UNITS = {"goodput_mbps": "Mbit/s", "first_byte_ms": "ms", "cpu_s_per_gib": "CPU s per GiB"}
STYLES = ((layout.BLUE, "circle"), (layout.ORANGE, "square"), (layout.GREEN, "diamond"), (layout.VERMILION, "cross"))
"""Colour and symbol of each library, in their order."""
SOURCE = "quic-benchmark, future work"
PANEL_PX = 230


def costs(
    campaign: pl.DataFrame, table: pl.DataFrame, found_costs: pl.DataFrame, titles: Mapping[str, str]
) -> output.Drawn:
    """A panel for every metric: the difference of HTTP/3 to a bare stream in per cent, by size and library.

    *table* is that of `http3.by_metric`, *found_costs* of `http3.costs`.
    """
    shown_as, unlike = goodput.marked(table, titles)
    libraries = _sorted(found_costs, shown_as)
    sizes = sorted(set(found_costs["bytes"]))
    figure, places = layout.panels(len(http3.METRICS), below=0.3, titles=list(TITLES.values()))
    for metric, place in zip(http3.METRICS, places, strict=True):
        figure.update_yaxes(range=_around_zero(found_costs.filter(pl.col("metric") == metric)), **place)
        for number, library in enumerate(libraries):
            chosen = (pl.col("library") == library) & (pl.col("metric") == metric)
            beside = 0.22 * (number - (len(libraries) - 1) / 2)
            rows = [(sizes.index(row["bytes"]) + beside, row) for row in found_costs.filter(chosen).to_dicts()]
            _points(figure, rows, libraries[library], STYLES[number % len(STYLES)], place)
        # which is left out of a panel without points
        figure.add_hline(y=0, line={"color": layout.INK, "width": 1}, **place)
        if place["col"] == 1:
            axis = "HTTP/3 against a bare stream [%]"
            figure.update_yaxes(title_text=axis, title_standoff=4, title_font={"size": 11}, **place)
        figure.update_xaxes(title_text="size", title_standoff=4, title_font={"size": 11}, **place)
    figure.update_xaxes(
        **layout.AXIS,
        tickvals=list(range(len(sizes))),
        ticktext=[size_figures.size_text(size) for size in sizes],
        range=[-0.5, max(len(sizes), 1) - 0.5],
        tickfont={"size": 10},
    )
    figure.update_yaxes(**layout.VALUES, tickfont={"size": 10}, ticksuffix=" ")
    caption = (
        "Geometric means of ratios paired within blocks, bars are 95 % intervals. More is better for goodput, less for"
        f"<br>the others. Time to first byte begins with the ClientHello.{goodput.disturbed(campaign)}{unlike}"
    )
    layout.finish(
        figure,
        "What HTTP/3 costs a download",
        goodput.conditions(campaign.with_columns(workload_bytes=pl.lit(None, pl.Int64))),
        caption,
        [campaign],
        height=126 + 12 * bool(unlike) + PANEL_PX,
        bottom=94 + 12 * bool(unlike),
        legend=layout.IN_CORNER,
        titles=titles,
    )
    origins = comparison.used_origins(campaign, table.filter(pl.col("arm") == "main")["cell"].unique().sort().to_list())
    return output.Drawn("http3", figure, table, origins, SOURCE)


def _sorted(found_costs: pl.DataFrame, titles: Mapping[str, str]) -> dict[str, str]:
    names = {name: titles.get(name, name) for name in set(found_costs["library"])}
    return dict(sorted(names.items(), key=lambda one: str(one[1]).lower()))


def _points(
    figure: go.Figure,
    rows: Sequence[tuple[float, Mapping[str, Any]]],
    name: str,
    style: tuple[str, str],
    place: Mapping[str, int],
) -> None:
    shown = [(x, row) for x, row in rows if row["ratio"] is not None]
    colour, symbol = style
    figure.add_scatter(
        x=[x for x, _ in shown],
        y=[goodput.percent(row["ratio"]) for _, row in shown],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_length(row, "high") for _, row in shown],
            "arrayminus": [_length(row, "low") for _, row in shown],
            "thickness": 1.2,
            "width": 3,
        },
        mode="markers",
        name=html.escape(name),
        legendgroup=name,
        showlegend=place["col"] == 1,
        marker={"color": colour, "size": 7, "symbol": symbol},
        hovertext=[_hover(name, row) for _, row in shown],
        hoverinfo="text",
        **place,
    )
    for x, row in rows:
        if row["ratio"] is None:
            layout.in_place(figure, x, *layout.absent(row), place)


def _around_zero(rows: pl.DataFrame) -> list[float]:
    """Range of an axis in per cent that has all intervals, and zero, with some room."""
    known = rows.filter(pl.col("ratio").is_not_null()).to_dicts()
    ends = [goodput.percent(row[end]) for row in known for end in ("ratio", "low", "high") if row[end] is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.08 * (high - low) or 1.0
    return [low - room, high + room]


def _length(row: Mapping[str, Any], end: str) -> float:
    """Of an interval from the ratio to one of its ends, in per cent; none of a single block."""
    return 0.0 if row[end] is None else 100 * abs(row[end] - row["ratio"])


def _hover(name: str, row: Mapping[str, Any]) -> str:
    unit = UNITS[row["metric"]]
    return (
        f"<b>{html.escape(name)}, {size_figures.size_text(row['bytes'])}</b><br>{_interval(row)}"
        f"<br>{row['bare']:.4g} {unit} over a bare stream, {row['http3']:.4g} over HTTP/3<br>n = {row['n']}"
    )


def _interval(row: Mapping[str, Any]) -> str:
    value = f"{goodput.signed(goodput.percent(row['ratio']))} %"
    if row["low"] is None:
        return f"{value}, one block"
    low, high = (goodput.signed(goodput.percent(row[end])) for end in ("low", "high"))
    return f"{value} (95 % interval {low} to {high} %)"


# ---- in words --------------------------------------------------------------------------------------------------------


def sheet(found_costs: pl.DataFrame, titles: Mapping[str, str]) -> Sheet:
    """What HTTP/3 costs, for people."""
    headers = ["library", "size", "what", "bare stream", "HTTP/3", "ratio", "95 % interval", "blocks", "remark"]
    ordered = found_costs.sort("library", "bytes").to_dicts()
    rows = [
        [
            titles.get(row["library"], row["library"]),
            size_figures.size_text(row["bytes"]),
            f"{TITLES[row['metric']]} [{UNITS[row['metric']]}]"
            if row["metric"] != "cpu_s_per_gib"
            else TITLES[row["metric"]],
            _number(row["bare"]),
            _number(row["http3"]),
            _number(row["ratio"]),
            None if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
            row["n"],
            None if row["ratio"] is not None else ": ".join(layout.absent(row)),
        ]
        for row in ordered
    ]
    notes = ["A ratio above 1 means more over HTTP/3 than over a bare stream of the same library."]
    selected = [runs.selection(row["campaign"], *row["cells"].split(",")) for row in ordered]
    return Sheet(headers, rows, frozenset({3, 4, 5, 6, 7}), notes, leading(selected, range(3, 8)))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def found(found_costs: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """A sentence on every size: what HTTP/3 changes of each library; None where nothing has two blocks."""
    told = []
    known = found_costs.filter(pl.col("low").is_not_null())
    for size in sorted(set(known["bytes"])):
        for library, name in _sorted(known, titles).items():
            rows = {
                row["metric"]: row
                for row in known.filter((pl.col("bytes") == size) & (pl.col("library") == library)).to_dicts()
            }
            parts = [
                f"{TITLES[metric].lower()} by {_interval(rows[metric])}" for metric in http3.METRICS if metric in rows
            ]
            if parts:
                told.append(
                    f"{name}, {size_figures.size_text(size)}: HTTP/3 changes {', '.join(parts)}.".replace(
                        "cpu s", "CPU s"
                    )
                )
    return Found(told) if told else None
