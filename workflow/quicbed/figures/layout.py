"""What all figures look like: size, title, caption, axes, small multiples, and what is said in place of a value."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.figures import font

WIDTH_PX = 688  # 7.16 in at 96 px/in: the text width of a two-column page
COLUMN_PX = 333
"""88 mm: the width of one of two columns."""
INK, SOFT, GRID = "#222222", "#6b6b6b", "#ececec"
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PINK, YELLOW = "#D55E00", "#CC79A7", "#F0E442"
"""Okabe and Ito's colours, told apart with any colour vision. In grey some are as bright as each other (sky and orange,
green and vermilion and pink): what they tell apart has marks, dashes or an order of its own too.
"""
HOST_PX, HOST_CHARACTERS = 13, 110
"""Height and length of a line that names a host."""
COLUMNS = 3
"""Small multiples beside each other; more of them go below."""

AXIS: Mapping[str, Any] = {"showgrid": False, "zeroline": False, "showline": True, "linecolor": INK, "ticks": ""}
"""Of what is compared."""
NAMES: Mapping[str, Any] = {"ticks": "", "ticklabelstandoff": 4}
"""Of an axis of names beside bars or rows, clear of what is drawn."""
VALUES: Mapping[str, Any] = {"gridcolor": GRID, "zeroline": False, "showline": True, "linecolor": INK}
"""Of what was measured."""
IN_CORNER: Mapping[str, Any] = {"yref": "container", "y": 0.99, "yanchor": "top"}
"""A legend in the upper right corner, beside the title."""


def panels(
    count: int, columns: int = COLUMNS, *, below: float, beside: float = 0.09, titles: Sequence[str] = ()
) -> tuple[go.Figure, list[dict[str, int]]]:
    """Small multiples and the place of each.

    *below* is the room between two lines of panels in shares of the figure's height, times the number of lines (two at
    least); *beside* that between two columns, in shares of its width. *titles* are text.
    """
    rows = -(-count // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        vertical_spacing=below / max(rows, 2),
        horizontal_spacing=beside,
        subplot_titles=[f"<b>{html.escape(title)}</b>" for title in titles] or None,
    )
    figure.update_annotations(font_size=12)
    places = [{"row": number // columns + 1, "col": number % columns + 1} for number in range(rows * columns)]
    for place in places[count:]:
        figure.update_xaxes(visible=False, **place)
        figure.update_yaxes(visible=False, **place)
    return figure, places[:count]


def bars(cells: Sequence[Mapping[str, Any]], value: str, low: str, high: str, scale: float = 1.0) -> dict[str, Any]:
    """Error bars around one column of cells between two others; none where these have no value."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0 if cell[high] is None else scale * (cell[high] - cell[value]) for cell in cells],
        "arrayminus": [0 if cell[low] is None else scale * (cell[value] - cell[low]) for cell in cells],
        "thickness": 1.2,
        "width": 3,
    }


def to_extremes(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Error bars around means, from the smallest to the largest run of each cell."""
    return bars(cells, "mean", "min", "max")


def divided(figure: go.Figure, place: Mapping[str, int], share: float, gap: float) -> dict[str, str]:
    """Take *share* of a panel's height for a lower part, and *gap* between both; returns the axes of the lower part."""
    x, y = figure.get_subplot(**place)
    low, high = y.domain
    axes = {axis: one.plotly_name.replace("axis", "") for axis, one in (("x", x), ("y", y))}
    lower = f"y{1 + sum(name.startswith('yaxis') for name in figure.layout)}"
    y.domain = (low + (share + gap) * (high - low), high)
    figure.layout[f"yaxis{lower[1:]}"] = {"domain": (low, low + share * (high - low)), "anchor": axes["x"]}
    x.anchor = lower
    return {"xaxis": axes["x"], "yaxis": lower}


def absent(cell: Mapping[str, Any] | None) -> tuple[str, str]:
    """What is said in place of a cell without a value, and why it has none."""
    if cell is None:
        return "not measured", "not part of this campaign"
    if cell["unsupported"]:
        return "unsupported", cell["unsupported"]
    return "failed", cell["failure"] or "no run has finished"


def add(
    figure: go.Figure,
    what: Literal["annotations", "shapes"],
    new: Iterable[Mapping[str, Any]],
    place: Mapping[str, int] | None = None,
) -> None:
    """Add annotations or shapes, to a panel where *place* is its row and column.

    All at once: for each one that is added plotly checks all that are there.
    """
    axes = {}
    if place is not None:
        panel = figure.get_subplot(**place)
        axes = {f"{axis}ref": getattr(panel, f"{axis}axis").plotly_name.replace("axis", "") for axis in "xy"}
    figure.layout[what] += tuple({**axes, **one} for one in new)


def in_place(
    figure: go.Figure,
    x: float,
    text: str,
    reason: str,
    place: Mapping[str, int],
    size: float = 9,
    *,
    hangs: bool = False,
) -> None:
    """Text that stands upright on the horizontal axis, with the reason where the pointer rests on it.

    It *hangs* from the upper edge where values lie below.
    """
    figure.add_annotation(
        x=x,
        y=1 if hangs else 0,
        yref="y domain",
        text=text,
        hovertext=html.escape(reason),
        textangle=-90,
        yanchor="top" if hangs else "bottom",
        showarrow=False,
        font={"size": size, "color": SOFT},
        **place,
    )


def measured_on(measured: Sequence[pl.DataFrame]) -> list[str]:
    """A line of text for every host that measured the runs of campaigns, or the cells of their tables.

    Of one campaign only external endpoints may be from another host than most runs; its line names them.
    """
    found: dict[tuple[str | None, ...], dict[str, None]] = {}
    others: dict[str, str] = {}
    for campaign in measured:
        name = next((name for name in ("client_library", "library") if name in campaign.columns), None)
        if name is not None and len(campaign):
            most = campaign["host"].value_counts().sort("count", "host", descending=[True, False])["host"][0]
            theirs = campaign.filter(pl.col("host") != most).group_by("host").agg(pl.col(name).unique())
            others |= {host: f"; {', '.join(sorted(names))}" for host, names in theirs.rows()}
        for testbed, *who in (
            campaign.select("testbed", "cpu_model", "kernel", "host").unique(maintain_order=True).rows()
        ):
            found.setdefault(tuple(who), {})[testbed] = None
    lines = []
    for (processor, kernel, host), testbeds in found.items():
        place = f"testbed {', '.join(testbeds)}, " if len(found) > 1 else ""
        named = f"{processor or 'unknown processor'}, kernel {kernel or 'unknown'}"
        lines.append(f"Measured on {named} ({place}host {host}{others.get(host or '', '')}).")
    return lines


def below(figure: go.Figure, lines: Sequence[str], *, left: float, bottom: float) -> None:
    """Lines with markup at the lower edge, within margins in pixels."""
    figure.add_annotation(
        x=0,
        y=0,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        xshift=12 - left,
        yshift=8 - bottom,
        text="<br>".join(lines),
        align="left",
        showarrow=False,
        font={"size": 9.5, "color": SOFT},
    )


def started(measured: Sequence[pl.DataFrame], titles: Mapping[str, str]) -> list[str]:
    """Whose goodput has the start of a program in it, of campaigns; as lines."""
    return list(dict.fromkeys(line for campaign in measured for line in comparison.starts(campaign, titles)))


def loaded_by(measured: Sequence[pl.DataFrame]) -> list[str]:
    """Which browsers loaded pages, of campaigns; as a line."""
    told = {
        name
        for campaign in measured
        if "client_browser" in campaign.columns
        for name in campaign["client_browser"].drop_nulls()
    }
    return [f"Pages loaded by {', '.join(sorted(told))}."] if told else []


def finish(
    figure: go.Figure,
    title: str,
    conditions: str | Sequence[str],
    caption: str,
    measured: Sequence[pl.DataFrame],
    *,
    height: float,
    left: int = 70,
    top: int = 70,
    bottom: int = 118,
    size: float = 11,
    legend: Mapping[str, Any] | None = None,
    titles: Mapping[str, str] | None = None,
    column: bool = False,
) -> None:
    """Title, what was measured under which conditions, caption (with markup), and what makes files reproducible.

    Margins and *height* are in pixels, *top* without the lines of conditions; the caption stands at the lower edge,
    and below it, in room of their own, the hosts that *measured* the campaigns that are shown. *legend* changes where
    the legend stands, by default above the panels on the right. *titles* are names of libraries. In a *column* of a
    paper the text around it says what title and caption would.
    """
    hosts = [*started(measured, titles or {}), *loaded_by(measured), *measured_on(measured)]
    wrapped = [html.escape(line) for host in hosts for line in textwrap.wrap(host, HOST_CHARACTERS)]
    lines = [conditions] if isinstance(conditions, str) else conditions
    room, above = (0, 0) if column else (HOST_PX * len(wrapped), 14 * len(lines))
    if not column:
        below(figure, [caption, *wrapped], left=left, bottom=bottom + room)
    subtitle = "<br>".join(html.escape(line) for line in lines)
    plain = html.unescape(re.sub(r"<[^>]+>", " ", caption))
    figure.update_layout(
        template="none",
        width=COLUMN_PX if column else WIDTH_PX,
        height=round(height + room),
        margin={"l": left, "r": 6 if column else 14, "t": top + above, "b": bottom + room},
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"family": font.FAMILY, "size": size, "color": INK},
        hoverlabel={"font": {"family": font.FAMILY, "size": 12}, "align": "left"},
        title=None
        if column
        else {
            "text": f"<b>{html.escape(title)}</b><br><span style='font-size:11px;color:{SOFT}'>{subtitle}</span>",
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1 - 25 / (height + room),
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 12},
            "font": {"size": 13},
        },
        legend={
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1.0,
            "yanchor": "bottom",
            "font": {"size": size if column else 11},
            "itemwidth": 30,
            "itemclick": False,
            "itemdoubleclick": False,
            **(legend or {}),
        },
        hovermode="closest",
        # for captions beside the figure
        meta={"title": title, "conditions": list(lines), "caption": " ".join([plain, *hosts])},
    )
    for number, trace in enumerate(figure.data):
        trace.uid = f"t{number}"  # plotly.js would draw it at random, and it ends up in the SVG
