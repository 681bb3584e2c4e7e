"""Figures of every client with every server (QUIC on the Highway, Fig. 3, 10), and by MTU (A Quantum of QUIC, 5)."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.analysis.pairs import _SIZES
from quicbed.figures import goodput, layout, output
from quicbed.plan.arms import CAPTURED

PANEL_PX = 46  # height of a row of a heat map
MTU_COLUMNS, FACET_PX = 4, 196
LOWER, BETWEEN = 0.32, 0.08
"""Shares of a panel's height, of its lower part and of the gap above that."""
MTU_AEADS = ("aes-128-gcm", "noop")


def pairwise(campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> output.Drawn:
    """Heat maps of mean goodput, clients by servers; a panel for each size of the socket buffers.

    *table* is that of `pair_table`. A cell says its mean, half the length of its interval and how many of its runs
    failed; one without a mean says why.
    """
    names = dict(titles or {})
    main = table.filter(pl.col("arm") == "main")
    # in the order of the sizes
    sizes = campaign.group_by("label").agg(pl.col("asked_receive_buffer").max()).sort("asked_receive_buffer", "label")
    panels = [label for label in sizes["label"] if label in set(main["label"])]
    clients = sorted(set(main["client_library"]), key=lambda name: str(names.get(name, name)).lower())
    servers = sorted(set(main["server_library"]), key=lambda name: str(names.get(name, name)).lower())
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        vertical_spacing=0.5 / max(6, len(panels) * len(servers)),
        subplot_titles=[f"Socket buffers of {html.escape(label)}" for label in panels],
        shared_xaxes=True,
    )
    # libraries differ by a factor of a hundred
    known = [value for value in main["mean"].drop_nulls() if value > 0] or [1000.0]
    ends = [math.log10(end(known) / 1000) for end in (min, max)]
    ticks = [tick for tick in _GOODPUT_TICKS if ends[0] <= math.log10(tick) <= ends[1]]
    for number, label in enumerate(panels, 1):
        cells = {
            (c["client_library"], c["server_library"]): c for c in main.filter(pl.col("label") == label).to_dicts()
        }
        grid = [[cells.get((client, server)) for client in clients] for server in servers]
        figure.add_heatmap(
            x=[html.escape(names.get(name, name)) for name in clients],
            y=[html.escape(names.get(name, name)) for name in servers],
            z=[[_colour(cell) for cell in row] for row in grid],
            text=[[_cell_text(cell) for cell in row] for row in grid],
            hovertext=[[_cell_hover(cell, names) for cell in row] for row in grid],
            texttemplate="%{text}",
            textfont={"size": 9},
            hovertemplate="%{hovertext}<extra></extra>",
            hoverongaps=True,
            zmin=ends[0],
            zmax=ends[1],
            colorscale=_BLUES,
            xgap=1,
            ygap=1,
            showscale=number == 1,
            colorbar={
                "title": {"text": "Gbit/s, logarithmic", "side": "right"},
                "thickness": 10,
                "outlinewidth": 0,
                "tickvals": [math.log10(tick) for tick in ticks],
                "ticktext": [f"{tick:g}" for tick in ticks],
            },
            row=number,
            col=1,
        )
    figure.update_annotations(font_size=12)
    figure.update_yaxes(autorange="reversed", title_text="Server", title_standoff=4, showgrid=False, ticks="")
    figure.update_xaxes(showgrid=False, ticks="", tickangle=-30)
    figure.update_xaxes(title_text="Client", row=len(panels), col=1)
    height = 150 + len(panels) * (PANEL_PX * max(3, len(servers)) + 30)
    tried = main.filter(pl.col("runs") > 0)
    unproven = len(main.filter((pl.col("runs") == 0) & (pl.col("failed") > 0)))
    caption = (
        "Mean goodput in Gbit/s ± half of its 95 % interval; below, how many runs of the pair failed.<br>"
        f"{int(tried['failed'].sum())} of {int(tried['runs'].sum())} runs failed, {int(main['contaminated'].sum())} "
        f"counted although contaminated; {unproven} cells could not be proven. Empty: different application protocols."
    )
    layout.finish(
        figure,
        "Goodput of every client with every server",
        goodput.conditions(campaign),
        caption,
        [campaign],
        height=height,
        left=112,  # names of servers and the title of their axis
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    return output.Drawn("pairwise", figure, table, origins, "QUIC on the Highway, Fig. 3 and 10")


_GOODPUT_TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
"""Of the scale of colours, in Gbit/s."""
_BLUES = [[0.0, "#dbe9f6"], [0.35, "#9ac8e1"], [0.65, "#4a98c9"], [0.85, "#1764ab"], [1.0, "#083979"]]
"""From a blue that nobody takes for an empty cell."""


def _colour(cell: Mapping[str, Any] | None) -> float | None:
    return math.log10(cell["mean"] / 1000) if cell and cell["n"] and cell["mean"] > 0 else None


def _cell_text(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    failures = f"<br>{cell['failed']}/{cell['runs']} failed" if cell["failed"] else ""
    if not cell["n"] and cell["unsupported"]:
        return "unsup-<br>ported"
    if not cell["n"]:
        return failures.removeprefix("<br>") if cell["runs"] else "not<br>proven"
    spread = f"<br>±{(cell['mean_high'] - cell['mean_low']) / 2000:.2f}" if cell["mean_low"] is not None else ""
    return f"{cell['mean'] / 1000:.2f}{spread}{failures}"


def _cell_hover(cell: Mapping[str, Any] | None, names: Mapping[str, str]) -> str:
    if cell is None:
        return "not paired: different application protocols"
    server, client = (names.get(cell[key], cell[key]) for key in ("server_library", "client_library"))
    lines = [f"<b>server {html.escape(server)}, client {html.escape(client)}</b>"]
    if cell["n"]:
        lines.append(f"mean {cell['mean'] / 1000:.3f} Gbit/s, median {cell['median'] / 1000:.3f}, n = {cell['n']}")
    if cell["n"] and cell["mean_low"] is not None:
        lines.append(f"95 % interval {cell['mean_low'] / 1000:.3f} to {cell['mean_high'] / 1000:.3f}")
    if cell["unsupported"]:
        lines.append(f"unsupported: {html.escape(cell['unsupported'])}")
    if cell["failed"]:
        what = f"{cell['failed']} of {cell['runs']} runs failed, the last" if cell["runs"] else "not proven"
        lines.append(f"{what}: {html.escape(cell['failure'] or '')}")
    return "<br>".join(lines)


def goodput_by_mtu(
    campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None
) -> output.Drawn:
    """A Quantum of QUIC, Fig. 5: goodput of each library by MTU, with AES-128-GCM and NOOP.

    *table* is that of `mtu_table`. Below each MTU stand the mean sizes of the frames of server and client, marked where
    they are those of a proof and others are not.
    """
    main = table.filter(pl.col("arm") == "main")
    shown_as, unlike = goodput.marked(table, titles or {})
    libraries = sorted(set(main["client_library"]), key=lambda name: str(shown_as.get(name, name)).lower())
    names = [shown_as.get(name, name) for name in libraries]
    figure, places = layout.panels(len(names), MTU_COLUMNS, below=0.38, beside=0.06, titles=names)
    mtus = sorted(set(main["mtu"].drop_nulls()))
    whence, marked = _whence(main)
    for number, (library, place) in enumerate(zip(libraries, places, strict=True)):
        cells = main.filter(pl.col("client_library") == library).to_dicts()
        for offset, aead in zip((-0.08, 0.08), MTU_AEADS, strict=True):
            _mtu_line(figure, [_at(cells, mtu, aead) for mtu in mtus], offset, aead, number == 0, place)
        below = layout.divided(figure, place, LOWER, BETWEEN)
        _mtu_gain(figure, [_at(cells, mtu, "noop") for mtu in mtus], below)
        _mtu_missing(figure, [[_at(cells, mtu, aead) for aead in MTU_AEADS] for mtu in mtus], place)
        ticks = [f"{mtu}<br>{_frames(_at(cells, mtu, MTU_AEADS[0]), marked)}" for mtu in mtus]
        figure.update_xaxes(
            tickvals=list(range(len(mtus))),
            ticktext=ticks,
            range=[-0.5, len(mtus) - 0.5],
            tickangle=0,
            tickfont={"size": 8},
            **place,
        )
        tops = [cell["max"] / 1000 for cell in cells if cell["n"]]
        figure.update_yaxes(range=[0, 1.1 * max(tops, default=1.0)], tickfont={"size": 10}, nticks=5, **place)
        if place["col"] == 1:
            figure.update_yaxes(title_text="Gbit/s", **place)
            figure.layout[f"yaxis{below['yaxis'][1:]}"].title.text = "NOOP [%]"
    figure.update_xaxes(**layout.AXIS)
    figure.update_yaxes(**layout.VALUES, title_standoff=4, title_font={"size": 11})
    gains = main.select("noop_ratio", "noop_low", "noop_high").drop_nulls()
    ends = [goodput.percent(end) for column in gains.iter_columns() for end in column] or [0.0]
    for axis in figure.select_yaxes(lambda axis: axis.range is None):
        axis.update(range=[min(0.0, *ends) - 4, max(0.0, *ends) + 4], nticks=4, tickfont={"size": 10})
    caption = (
        "Mean goodput and its 95 % interval over blocks; its axes differ. Lower part: gain of NOOP over AES-128-GCM at "
        "the same MTU,<br>paired within blocks, 95 % interval; one scale. Below each MTU: mean size in bytes of the "
        "frames of the server \N{DOWNWARDS ARROW} and<br>of the client \N{UPWARDS ARROW} with AES-128-GCM, "
        f"{whence}." + goodput.disturbed(campaign) + unlike
    )
    layout.finish(
        figure,
        "Goodput by MTU",
        goodput.conditions(campaign, mtu=False),
        caption,
        [campaign],
        height=124 + 12 * bool(unlike) + places[-1]["row"] * FACET_PX,
        bottom=112 + 12 * bool(unlike),
        legend=layout.IN_CORNER,
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    return output.Drawn("goodput-by-mtu", figure, table, origins, "A Quantum of QUIC, Fig. 5")


def _at(cells: list[dict[str, Any]], mtu: int, aead: str) -> dict[str, Any] | None:
    kinds = ((cell, "noop" if cell["aead"] == "noop" else cell["cipher"]) for cell in cells)
    return next((cell for cell, kind in kinds if cell["mtu"] == mtu and kind == aead), None)


def _whence(main: pl.DataFrame) -> tuple[str, bool]:
    """What the sizes of frames below the axes are from, and whether those of proofs are marked."""
    kind = pl.when(pl.col("aead") == "noop").then(pl.lit("noop")).otherwise("cipher")
    shown = main.filter((kind == MTU_AEADS[0]) & pl.all_horizontal(pl.col(*_SIZES).is_not_null()))
    downloads = {
        arm: " or ".join(map(goodput.size_text, sizes["frames_download_bytes"].drop_nulls().unique().sort()))
        for (arm,), sizes in shown.group_by("frames_arm")
    }
    if not downloads:
        return "which were not captured", False
    if len(downloads) == 1:
        return f"from a capture of a download of {next(iter(downloads.values()))} that is not timed", False
    return f"from a capture of a download that is not timed, of {downloads[CAPTURED]}, * of {downloads['proof']}", True


def _frames(cell: Mapping[str, Any] | None, marked: bool) -> str:
    """Mean frame sizes of server and client on two lines."""
    if cell is None or cell["server_mean_frame_bytes"] is None or cell["client_mean_frame_bytes"] is None:
        return "\N{EN DASH}<br>\N{EN DASH}"
    mark = "*" if marked and cell["frames_arm"] != CAPTURED else ""
    return (
        f"{cell['server_mean_frame_bytes']:.0f}\N{DOWNWARDS ARROW}{mark}<br>"
        f"{cell['client_mean_frame_bytes']:.0f}\N{UPWARDS ARROW}{mark}"
    )


def _mtu_line(
    figure: go.Figure,
    cells: list[dict[str, Any] | None],
    offset: float,
    aead: str,
    in_legend: bool,
    place: Mapping[str, int],
) -> None:
    shown = [(position + offset, cell) for position, cell in enumerate(cells) if cell and cell["n"]]
    name, _, colour, symbol = goodput.AEADS[aead]
    figure.add_scatter(
        x=[x for x, _ in shown],
        y=[cell["mean"] / 1000 for _, cell in shown],
        error_y=layout.bars([cell for _, cell in shown], "mean", "mean_low", "mean_high", 1e-3),
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "size": 6, "symbol": symbol},
        hovertext=[_mtu_hover(cell) for _, cell in shown],
        hoverinfo="text",
        showlegend=in_legend,
        **place,
    )


def _mtu_gain(figure: go.Figure, cells: list[dict[str, Any] | None], axes: Mapping[str, str]) -> None:
    """The lower part of a panel: the gain of NOOP by MTU, in per cent."""
    shown = [(x, cell) for x, cell in enumerate(cells) if cell and cell["noop_ratio"] is not None]
    _, _, colour, symbol = goodput.AEADS["noop"]
    figure.add_scatter(
        x=[-0.5, len(cells) - 0.5], y=[0, 0], mode="lines", line={"color": layout.INK, "width": 0.7}, hoverinfo="skip",
        showlegend=False, **axes,
    )  # fmt: skip
    figure.add_scatter(
        x=[x for x, _ in shown],
        y=[goodput.percent(cell["noop_ratio"]) for _, cell in shown],
        error_y=layout.bars([cell for _, cell in shown], "noop_ratio", "noop_low", "noop_high", 100),
        mode="markers",
        marker={"color": colour, "size": 6, "symbol": symbol},
        hovertext=[f"{goodput.signed(goodput.percent(cell['noop_ratio']))} %" for _, cell in shown],
        hoverinfo="text",
        showlegend=False,
        **axes,
    )


def _mtu_hover(cell: Mapping[str, Any]) -> str:
    return (
        f"<b>{html.escape(cell['label'])}</b><br>mean {cell['mean'] / 1000:.3f} Gbit/s, n = {cell['n']}, "
        f"failed {cell['failed']}"
    )


def _mtu_missing(figure: go.Figure, cells: list[list[dict[str, Any] | None]], place: Mapping[str, int]) -> None:
    """Say in place where a library has no value, and why."""
    for position, both in enumerate(cells):
        lacking = [
            (offset, layout.absent(cell))
            for offset, cell in zip((-0.16, 0.16), both, strict=True)
            if cell is None or not cell["n"]
        ]
        if len(lacking) > 1 and len({text for _, (text, _) in lacking}) == 1:  # once for both
            reasons = "; ".join(dict.fromkeys(reason for _, (_, reason) in lacking))
            lacking = [(0.0, (lacking[0][1][0], reasons))]
        for offset, told in lacking:
            layout.in_place(figure, position + offset, *told, place)
