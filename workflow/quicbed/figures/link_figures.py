"""Figures by what the link does: round-trip time and loss, and packets put back."""

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

COLOURS = (layout.BLUE, layout.ORANGE, layout.VERMILION, layout.PINK)
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


def reorder_table(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """*table* with what the link does to each cell and how it was made, and what runs that count took and lost.

    Columns are `reorder_permille`, `reorder_packets`, `congestion_control` (null: that of the workload), `flavour`;
    mean, smallest and largest processor time of both ends in s/GiB (`cpu_s_per_gib_mean` and so on), and
    `server_packets_lost`, the mean of the packets that servers declared lost.
    """
    varied = ("reorder_permille", "reorder_packets", "congestion_control", "flavour")
    cost = pl.col("cpu_s_per_gib")
    measured = (
        comparison.counted(comparison.with_cost(campaign))
        .group_by("cell")
        .agg(
            cost.mean().alias("cpu_s_per_gib_mean"),
            cost.min().alias("cpu_s_per_gib_min"),
            cost.max().alias("cpu_s_per_gib_max"),
            pl.col("server_packets_lost").mean(),
        )
    )
    link = campaign.select("cell", *varied).unique("cell", keep="last")
    return table.join(link, on="cell", how="left").join(measured, on="cell", how="left")


def reordering(campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> output.Drawn:
    """Goodput and processor time of each library by how many packets are put back, a line for each distance.

    *table* is that of `reorder_table`.
    """
    main = table.filter(pl.col("arm") == "main")
    shown_as, unlike = goodput.marked(table, titles or {})
    # a flavour that other libraries do not have
    able = main.filter(pl.col("unsupported").is_null())
    stock = main.filter(pl.col("flavour") == "stock")
    groups = sorted(
        {*stock.select("client_library", "flavour").rows(), *able.select("client_library", "flavour").rows()},
        key=lambda one: (str(shown_as.get(one[0], one[0])).lower(), one[1] != "stock", one[1]),
    )
    names = [
        shown_as.get(library, library) + ("" if flavour == "stock" else f" ({flavour})") for library, flavour in groups
    ]
    ends = ("Mbit/s", "CPU s/GiB")
    figure, places = layout.panels(
        2 * len(groups), 4, below=0.34, beside=0.075, titles=[f"{name}: {end}" for name in names for end in ends]
    )
    figure.update_annotations(font_size=10)
    shares = sorted(set(main["reorder_permille"].drop_nulls()))
    distances = sorted(set(main.filter(pl.col("reorder_permille") > 0)["reorder_packets"].drop_nulls()))
    for number, (library, flavour) in enumerate(groups):
        cells = main.filter((pl.col("client_library") == library) & (pl.col("flavour") == flavour)).to_dicts()
        for end, place in zip(_ENDS, places[2 * number :], strict=False):
            for kind, distance in enumerate(distances):
                for own in (None, "bbr"):
                    at = [
                        cell
                        for cell in cells
                        if cell["congestion_control"] == own
                        and (cell["reorder_packets"] == distance or not cell["reorder_permille"])
                    ]
                    _distance(figure, at, shares, end, distance, kind, number == 0 and end == _ENDS[0], place)
            if not any(cell["n"] for cell in cells):
                layout.in_place(figure, 0, *layout.absent(cells[0] if cells else None), place)
            figure.update_xaxes(
                tickvals=list(range(len(shares))),
                ticktext=[f"{share:g}" for share in shares],
                range=[-0.4, len(shares) - 0.6],
                tickfont={"size": 9},
                **place,
            )
            if 2 * number + 4 >= 2 * len(groups):
                figure.update_xaxes(title_text="permille", title_standoff=4, title_font={"size": 10}, **place)
    figure.update_xaxes(**layout.AXIS)
    figure.update_yaxes(**layout.VALUES, rangemode="tozero", tickfont={"size": 9})
    caption = (
        "Means, bars from the smallest to the largest run; processor time of both ends. A reordered packet "
        "leaves so many packets later.<br>Filled: CUBIC, else Reno. Hollow: BBR. Within a block it is the same packets "
        "for every library." + goodput.disturbed(campaign) + unlike
    )
    # the legend has a line of its own: what was measured reaches below the corner
    height = 138 + 12 * bool(unlike) + max([place["row"] for place in places], default=1) * FACET_PX
    layout.finish(
        figure,
        "Goodput and processor time by reordered packets",
        goodput.conditions(campaign),
        caption,
        [campaign],
        height=height,
        top=86,
        bottom=94 + 12 * bool(unlike),
        legend={"yref": "container", "y": 1 - 56 / height, "yanchor": "top"},
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    source = "Dissecting QUIC Implementation Performance, reordering"
    return output.Drawn("reordering", figure, table, origins, source)


_ENDS = ("", "cpu_s_per_gib_")
"""What names of columns of a quantity begin with: goodput, and processor time."""


def _distance(
    figure: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    shares: Sequence[float],
    quantity: str,
    distance: int,
    kind: int,
    in_legend: bool,
    place: Mapping[str, int],
) -> None:
    """A line of cells with one congestion control, whose packets are put back by *distance* or not at all."""
    own = {end: f"{quantity}{end}" for end in ("mean", "min", "max")}
    shown = [{**cell, **{end: cell[name] for end, name in own.items()}} for cell in cells if cell["n"]]
    shown = sorted((cell for cell in shown if cell["mean"] is not None), key=lambda cell: cell["reorder_permille"])
    hollow = any(cell["congestion_control"] for cell in cells)
    if not any(cell["reorder_permille"] for cell in shown):
        return
    colour = COLOURS[kind % len(COLOURS)]
    figure.add_scatter(
        # beside each other where values are alike
        x=[shares.index(cell["reorder_permille"]) + 0.07 * (kind - 1.5) for cell in shown],
        y=[cell["mean"] for cell in shown],
        error_y=layout.to_extremes(shown),
        mode="markers" if hollow else "lines+markers",
        name=f"by {distance}",
        legendgroup=str(distance),
        line={"color": colour, "width": 1.2},
        marker={"color": colour, "size": 5, "symbol": SYMBOLS[kind % len(SYMBOLS)] + ("-open" if hollow else "")},
        hovertext=[_told(cell) for cell in shown],
        hoverinfo="text",
        showlegend=in_legend and not hollow,
        **place,
    )


def _told(cell: Mapping[str, Any]) -> str:
    lost = cell["server_packets_lost"]
    return (
        f"<b>{html.escape(cell['label'])}</b><br>mean {cell['mean']:.4g}, n = {cell['n']}, failed {cell['failed']}"
        + (f"<br>declared lost by the server: {lost:.0f} packets" if lost is not None else "")
    )


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
