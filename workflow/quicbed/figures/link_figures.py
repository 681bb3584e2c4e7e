"""Figure of goodput by what the link does: round-trip time and loss."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.pair_figures import FACET_PX

COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#CC79A7")
SYMBOLS = ("circle", "square", "diamond", "cross")
"""Of losses in rising order: told apart without colours too."""


def link_table(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """*table* with `rtt_ms` and `loss_percent` of each cell, and the mean of the round-trip times that pings found."""
    measured = (
        comparison.counted(campaign).group_by("cell").agg(pl.col("rtt_mean_ms").mean()).select("cell", "rtt_mean_ms")
    )
    link = campaign.select("cell", "rtt_ms", pl.col("loss_percent").fill_null(0.0)).unique("cell", keep="last")
    return table.join(link, on="cell", how="left").join(measured, on="cell", how="left")


def goodput_by_delay(
    campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None
) -> output.Drawn:
    """Goodput of each library by round-trip time, a line for each share of frames lost.

    *table* is that of `link_table`.
    """
    main = table.filter(pl.col("arm") == "main")
    shown_as, unlike = goodput.marked(table, titles or {})
    libraries = sorted(set(main["client_library"]), key=lambda name: str(shown_as.get(name, name)).lower())
    names = [shown_as.get(name, name) for name in libraries]
    figure, places = layout.panels(len(names), below=0.3, titles=names)
    delays, losses = (sorted(set(main[name].drop_nulls())) for name in ("rtt_ms", "loss_percent"))
    for number, (library, place) in enumerate(zip(libraries, places, strict=True)):
        cells = main.filter(pl.col("client_library") == library).to_dicts()
        for kind, loss in enumerate(losses):
            at = [cell for rtt in delays for cell in cells if (cell["rtt_ms"], cell["loss_percent"]) == (rtt, loss)]
            _line(figure, at, delays, loss, kind, number == 0, place)
        _missing(figure, cells, delays, place)
        figure.update_xaxes(
            tickvals=list(range(len(delays))),
            ticktext=[f"{rtt:g}" for rtt in delays],
            range=[-0.4, len(delays) - 0.6],
            tickfont={"size": 10},
            **place,
        )
        if place["col"] == 1:
            figure.update_yaxes(title_text="Mbit/s", title_standoff=4, title_font={"size": 11}, **place)
        if number + layout.COLUMNS >= len(libraries):
            figure.update_xaxes(title_text="round-trip time [ms]", title_standoff=4, title_font={"size": 11}, **place)
    values = [cell[end] for cell in main.to_dicts() if cell["n"] for end in ("min", "max")]
    figure.update_xaxes(**layout.AXIS)
    figure.update_yaxes(**layout.VALUES, type="log", range=_range(values), dtick=1, tickfont={"size": 10})
    caption = (
        "Mean goodput, bars from the smallest to the largest run. Within a block the same frames are lost for every "
        "library.<br>Congestion control is CUBIC, else Reno." + goodput.disturbed(campaign) + unlike
    )
    layout.finish(
        figure,
        "Goodput by round-trip time and loss",
        goodput.conditions(campaign),
        caption,
        [campaign],
        height=126 + 12 * bool(unlike) + places[-1]["row"] * FACET_PX,
        bottom=94 + 12 * bool(unlike),
        legend=layout.IN_CORNER,
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    return output.Drawn("goodput-by-delay", figure, table, origins, "beyond QUIC on the Highway")


def _range(values: Sequence[float]) -> list[float]:
    """Ends of a logarithmic axis for values, as powers of ten."""
    return [math.log10(min(values) / 1.5), math.log10(max(values) * 1.5)] if values else [0, 3]


def _line(
    figure: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    delays: Sequence[float],
    loss: float,
    kind: int,
    in_legend: bool,
    place: Mapping[str, int],
) -> None:
    shown = [cell for cell in cells if cell["n"]]
    colour = COLOURS[kind % len(COLOURS)]
    figure.add_scatter(
        # beside each other where values are alike
        x=[delays.index(cell["rtt_ms"]) + 0.07 * (kind - 1) for cell in shown],
        y=[cell["mean"] for cell in shown],
        error_y=layout.to_extremes(shown),
        mode="lines+markers",
        name=f"{loss:g} % lost",
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "size": 6, "symbol": SYMBOLS[kind % len(SYMBOLS)]},
        hovertext=[_hover(cell) for cell in shown],
        hoverinfo="text",
        showlegend=in_legend,
        **place,
    )


def _hover(cell: Mapping[str, Any]) -> str:
    pinged = cell["rtt_mean_ms"]
    return (
        f"<b>{html.escape(cell['label'])}</b><br>mean {cell['mean']:.1f} Mbit/s, n = {cell['n']}, failed "
        f"{cell['failed']}" + (f"<br>pings before runs: {pinged:.2f} ms" if pinged is not None else "")
    )


def _missing(
    figure: go.Figure, cells: Sequence[Mapping[str, Any]], delays: Sequence[float], place: Mapping[str, int]
) -> None:
    """Say in place where a library has no value, and why."""
    for position, rtt in enumerate(delays):
        lacking = [cell for cell in cells if cell["rtt_ms"] == rtt and not cell["n"]]
        if not lacking:
            continue
        reasons = dict.fromkeys(layout.absent(cell)[1] for cell in lacking)
        text = f"{len(lacking)} " + ("unsupported" if all(cell["unsupported"] for cell in lacking) else "failed")
        layout.in_place(figure, position, text, "; ".join(reasons), place)
