"""Figure of downloads beside competing traffic: goodput and time to the first byte of each library by load."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output

METRICS = {"goodput_mbps": "Goodput [Mbit/s]", "ttfb_ms": "Time to first byte [ms]"}
COLOURS = (layout.BLUE, layout.ORANGE, layout.VERMILION, layout.PINK, layout.GREEN)
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up")
"""Of loads in rising order: told apart without colours too."""
PANEL_PX = 230
NAMES_ANGLE, NAME_PX = -30, 3
"""Degrees by which names of libraries slope, and the height that a letter of such a name takes."""


def load_table(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell and metric: the columns of `quicbed.analysis.comparison.figure_table` with `metric`.

    `background_percent` is the load that was asked for (0 without any), and `background_sent_mbps` and
    `background_received_mbps` are means over the runs that count.
    """
    rates = ("background_sent_mbps", "background_received_mbps")
    loads = campaign.group_by("cell").agg(pl.col("background_percent").max().fill_null(0.0))
    achieved = comparison.counted(campaign).group_by("cell").agg(pl.col(name).mean() for name in rates)
    parts = [
        comparison.figure_table(campaign, metric)
        .with_columns(metric=pl.lit(metric))
        .join(loads, on="cell", how="left", maintain_order="left")
        .join(achieved, on="cell", how="left", maintain_order="left")
        for metric in METRICS
    ]
    return pl.concat(parts)


def beside_load(campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> output.Drawn:
    """Mean goodput and time to the first byte, bars from the smallest to the largest run; *table* is `load_table`'s.

    Dotted lines are what competing traffic leaves of the link.
    """
    main = table.filter(pl.col("arm") == "main")
    names = dict(titles or {})
    libraries = sorted(set(main["client_library"]), key=lambda name: str(names.get(name, name)).lower())
    loads = sorted(set(main["background_percent"]))
    figure = make_subplots(rows=len(METRICS), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for row, (metric, axis) in enumerate(METRICS.items(), 1):
        cells = main.filter(pl.col("metric") == metric).to_dicts()
        for number, load in enumerate(loads):
            offset = 0.22 * (number - (len(loads) - 1) / 2)
            own = {cell["client_library"]: cell for cell in cells if cell["background_percent"] == load}
            places = [(place + offset, own.get(name)) for place, name in enumerate(libraries)]
            style = {"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)]}
            _points(figure, places, load, style, row)
            _missing(figure, places, row)
        figure.update_yaxes(title_text=axis, rangemode="tozero", row=row, col=1)
    rate = main["rate_mbit"].max()
    if isinstance(rate, float):
        for number, load in enumerate(loads):
            colour = COLOURS[number % len(COLOURS)]
            figure.add_hline(y=rate * (1 - load / 100), line={"color": colour, "width": 1, "dash": "dot"}, row=1, col=1)
    figure.update_xaxes(
        tickvals=list(range(len(libraries))),
        ticktext=[html.escape(names.get(name, name)) for name in libraries],
        range=[-0.6, len(libraries) - 0.4],
        tickangle=NAMES_ANGLE,
        **layout.AXIS,
    )
    figure.update_yaxes(**layout.VALUES)
    caption = textwrap.wrap(
        "Means, bars from the smallest to the largest run. Dotted: the part of the link that the competing UDP traffic "
        "leaves. That has no congestion control; its losses are in the table and in the text of each mark."
        + goodput.disturbed(campaign),
        layout.HOST_CHARACTERS,
    )
    bottom = 40 + NAME_PX * max(len(names.get(name, name)) for name in libraries) + layout.HOST_PX * len(caption)
    layout.finish(
        figure,
        "Downloads beside competing traffic",
        goodput.conditions(campaign),
        "<br>".join(caption),
        [campaign],
        height=50 + PANEL_PX * len(METRICS) + bottom,
        bottom=bottom,
        titles=names,
    )
    origins = comparison.used_origins(campaign, main["cell"].unique().sort().to_list())
    return output.Drawn(str(campaign["experiment"][0]), figure, table, origins, "beyond QUIC on the Highway")


def _points(
    figure: go.Figure, places: list[tuple[float, dict[str, Any] | None]], load: float, style: dict[str, str], row: int
) -> None:
    shown = [(x, cell) for x, cell in places if cell and cell["n"]]
    figure.add_scatter(
        x=[x for x, _ in shown],
        y=[cell["mean"] for _, cell in shown],
        error_y=layout.to_extremes([cell for _, cell in shown]),
        mode="markers",
        name=f"{load:g} % load" if load else "no load",
        legendgroup=f"{load:g}",
        marker={**style, "size": 7},
        hovertext=[_hover(cell) for _, cell in shown],
        hoverinfo="text",
        showlegend=row == 1,
        row=row,
        col=1,
    )


def _hover(cell: Mapping[str, Any]) -> str:
    lines = [
        f"<b>{html.escape(cell['label'])}</b>",
        f"mean {cell['mean']:.4g}, n = {cell['n']}, failed {cell['failed']}",
    ]
    if cell["background_sent_mbps"] is not None:
        arrived = cell["background_received_mbps"]
        known = f", {arrived:.1f} arrived" if arrived is not None else ""
        lines.append(f"competing: {cell['background_sent_mbps']:.1f} Mbit/s sent{known}")
    return "<br>".join(lines)


def _missing(figure: go.Figure, places: list[tuple[float, dict[str, Any] | None]], row: int) -> None:
    """Say in place where a library has no value, and why."""
    for x, cell in places:
        if cell is not None and not cell["n"]:
            layout.in_place(figure, x, *layout.absent(cell), {"row": row, "col": 1})
