"""Figure of pacing precision by rate, and by the processor time that the server spends at it."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.floors import Floor
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.figures.sheets import Sheet, leading
from quicbed.papers.steps import analysis
from quicbed.store import runs

NAME = "steps-precision"
METRIC = "pacing_precision_us"
STYLES: Mapping[bool, tuple[str, str, str]] = {
    # by whether the processor's AES instructions are used: name, colour, symbol
    True: ("with AES instructions", layout.BLUE, "circle"),
    False: ("without", layout.VERMILION, "diamond"),
}
PANEL_PX, TITLE_PX, TOP_PX = 250, 22, 78
"""Height of a panel, of the title above it, and of what is above the panels."""
PACKET_BITS = 8 * (1500 + 14)
"""A packet of full size as it passes the link."""
GAP = "gap that is meant"
"""Name of the line of the time of a full-size packet at the rate of the link."""


def by_rate(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every rate, with and without AES instructions: `quicbed.analysis.comparison.FIGURE_SCHEMA` of the
    precision in µs, and

    - ``mean_low``, ``mean_high``: its 95 % interval over runs;
    - ``load``: processor time of the server per second of the transfer, ``goodput_mbps``: means over the same runs.
    """
    main = campaign.filter(pl.col("arm") == "main")
    used = comparison.counted(main).filter(pl.col(METRIC).is_not_null())
    numbers = analysis.numbers(used).select(
        "label", "goodput_mbps", mean_low=f"{METRIC}_low", mean_high=f"{METRIC}_high"
    )
    transfer_s = 8e-6 * pl.col("bytes") / pl.col("goodput_mbps")
    loads = used.group_by("label").agg(load=(pl.col("server_cpu_s") / transfer_s).mean())
    table = comparison.figure_table(campaign, METRIC).filter(pl.col("arm") == "main")
    found = table.join(numbers, on="label", how="left").join(loads, on="label", how="left")
    return found.sort(pl.col("aes_hardware").not_(), "rate_mbit", nulls_last=True)


def precision(campaign: pl.DataFrame, table: pl.DataFrame, floor: Floor | None) -> output.Drawn:
    """Mean precision by rate and by load, bars from the smallest to the largest run, above the floor of the timers.

    *table* is that of `by_rate`.
    """
    figure, places = layout.panels(2, 2, below=0.3, beside=0.1, titles=["by rate", "by load of the server"])
    rates = sorted(set(table["rate_mbit"].drop_nulls()))
    floor_us = floor.of(METRIC) if floor is not None else None
    for with_aes, style in STYLES.items():
        cells = table.filter(pl.col("aes_hardware") == with_aes).to_dicts()
        shown = [cell for cell in cells if cell["n"]]
        _line(figure, [rates.index(cell["rate_mbit"]) for cell in shown], shown, style, places[0])
        loaded = [cell for cell in shown if cell["load"] is not None]
        _line(figure, [100 * cell["load"] for cell in loaded], loaded, style, places[1], in_legend=False)
        for cell in cells:
            if not cell["n"]:
                text, reason = layout.absent(cell)
                layout.in_place(figure, rates.index(cell["rate_mbit"]) + 0.15 * (not with_aes), text, reason, places[0])
    figure.add_scatter(
        x=list(range(len(rates))),
        y=[PACKET_BITS / rate for rate in rates],
        mode="lines",
        name=GAP,
        line={"color": layout.SOFT, "width": 1.2, "dash": "dot"},
        hoverinfo="skip",
        **places[0],
    )
    if floor_us is not None:
        for place in places:
            figure.add_hline(y=floor_us, line={"color": goodput.FLOOR, "width": 4}, layer="below", **place)
    figure.update_xaxes(
        tickvals=list(range(len(rates))),
        ticktext=[f"{rate:g}" for rate in rates],
        range=[-0.4, len(rates) - 0.6],
        title={"text": "Rate of the link [Mbit/s]", "font": {"size": 10.5}, "standoff": 4},
        **places[0],
    )
    figure.update_xaxes(
        title={"text": "Processor time of the server [% of the transfer]", "font": {"size": 10.5}, "standoff": 4},
        rangemode="tozero",
        **places[1],
    )
    figure.update_xaxes(**dict(layout.AXIS) | {"ticks": "outside", "ticklen": 3})
    figure.update_yaxes(**layout.VALUES, rangemode="tozero", nticks=6)
    figure.update_yaxes(title={"text": "Pacing precision [µs]", "font": {"size": 10.5}, "standoff": 4}, **places[0])
    caption = textwrap.wrap(
        "Standard deviation of captured gap minus the gap that quiche intended, with BBR: less is better. Means, bars "
        "from the smallest to the largest run. Dotted: the time of a full-size packet at the rate of the link. "
        + _floor(floor_us)
        + goodput.disturbed(campaign),
        layout.HOST_CHARACTERS + 20,
    )
    layout.finish(
        figure,
        "Pacing precision by rate and load (beyond QUIC Steps)",
        goodput.conditions(campaign),
        "<br>".join(caption),
        [campaign],
        height=PANEL_PX + TOP_PX + 64 + 12 * len(caption),
        top=TOP_PX,
        bottom=50 + 12 * len(caption),
        legend={"y": 1 + TITLE_PX / PANEL_PX},
    )
    origins = comparison.used_origins(campaign, table["cell"].to_list())
    return output.Drawn(NAME, figure, table, origins, "beyond QUIC Steps")


def _floor(floor_us: float | None) -> str:
    if floor_us is None:
        return "The floor of the timers was not measured, so no value can be interpreted."
    return f"Grey: the floor of the timers here, {floor_us:.1f} µs, which a bare sender at 40 Mbit/s has."


def _line(
    figure: go.Figure,
    xs: Sequence[float],
    cells: Sequence[Mapping[str, Any]],
    style: tuple[str, str, str],
    place: Mapping[str, int],
    *,
    in_legend: bool = True,
) -> None:
    name, colour, symbol = style
    figure.add_scatter(
        x=list(xs),
        y=[cell["mean"] for cell in cells],
        error_y=layout.to_extremes(cells),
        mode="lines+markers" if in_legend else "markers",
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "size": 6, "symbol": symbol},
        hovertext=[_hover(cell) for cell in cells],
        hoverinfo="text",
        **place,
    )


def _hover(cell: Mapping[str, Any]) -> str:
    return (
        f"<b>{html.escape(cell['label'])}</b><br>mean {cell['mean']:.1f} µs, n = {cell['n']}, failed {cell['failed']}"
        f"<br>{cell['goodput_mbps']:.1f} Mbit/s{_busy(cell)}"
    )


def found(table: pl.DataFrame, floor: Floor | None) -> Found | None:
    """What the precision is at the ends of the rates, with and without AES instructions; None without values."""
    told = []
    for with_aes, (name, *_) in STYLES.items():
        cells = table.filter((pl.col("aes_hardware") == with_aes) & (pl.col("n") > 0)).to_dicts()
        if cells:
            ends = [cells[0], *cells[1:][-1:]]
            said = " and ".join(f"{cell['mean']:.0f} µs at {cell['rate_mbit']:g} Mbit/s{_busy(cell)}" for cell in ends)
            told.append(f"quiche {name if with_aes else 'without them'}: {said}.")
    if told and floor is not None:
        told.append(f"The floor of the timers is {floor.of(METRIC):.0f} µs.")
    return Found(told) if told else None


def _busy(cell: Mapping[str, Any]) -> str:
    return f" (server busy for {100 * cell['load']:.0f} % of the transfer)" if cell["load"] is not None else ""


def sheet(campaign: pl.DataFrame, table: pl.DataFrame) -> Sheet:
    """The numbers of the figure."""
    headers = ["rate [Mbit/s]", "AES instructions", "runs", "precision [µs]", "95 % interval", "goodput [Mbit/s]"]
    headers += ["server's processor time [% of the transfer]"]
    cells = table.to_dicts()
    rows = [
        [
            f"{cell['rate_mbit']:g}",
            "yes" if cell["aes_hardware"] else "no",
            cell["n"],
            _number(cell["mean"]),
            f"{cell['mean_low']:.1f} to {cell['mean_high']:.1f}" if cell["mean_low"] is not None else None,
            _number(cell["goodput_mbps"]),
            _number(cell["load"], 100),
        ]
        for cell in cells
    ]
    behind = leading([runs.selection(campaign["campaign"][0], label=cell["label"]) for cell in cells], range(2, 7))
    return Sheet(headers, rows, frozenset({0, *range(2, 7)}), ["Means over runs."], behind)


def _number(value: float | None, scale: float = 1.0) -> str | None:
    return None if value is None else f"{scale * value:.1f}"
