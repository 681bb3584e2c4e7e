"""The figure of how datagrams pass between endpoints and the kernel."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.config.model import Io
from quicbed.figures import goodput, layout, output

AEADS = ("aes-128-gcm", "chacha20-poly1305", "noop", "noenc")
"""What protects packets, in the order of rows."""
QUANTITIES: Mapping[str, str] = {
    "": "{library}: Mbit/s",
    "client_cpu_s_per_gib_": "CPU s/GiB, client",
    "server_cpu_s_per_gib_": "CPU s/GiB, server",
}
"""What names of columns of each panel begin with, and its title."""
ROW_PX = 21


def io_table(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """*table* with `io`, `io_at`, `client_xdp` and `server_xdp` of each cell, and the processor time of its runs.

    That is in s/GiB by end: mean, smallest and largest of the runs that count (`client_cpu_s_per_gib_mean` etc.).
    """
    names = [f"{role}_cpu_s_per_gib" for role in ("client", "server")]
    spent = [getattr(pl.col(name), what)().alias(f"{name}_{what}") for name in names for what in ("mean", "min", "max")]
    told = [pl.col(f"{role}_xdp").drop_nulls().first() for role in ("client", "server")]
    measured = comparison.counted(campaign).group_by("cell").agg(*spent, *told)
    ways = campaign.select("cell", "io", "io_at").unique("cell", keep="last")
    return table.join(ways, on="cell", how="left").join(measured, on="cell", how="left")


def by_io(campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> output.Drawn:
    """Goodput and processor time of both ends, a row for each way of datagrams; *table* is that of `io_table`."""
    main = table.filter(pl.col("arm") == "main")
    shown_as, unlike = goodput.marked(table, titles or {})
    libraries = sorted(set(main["client_library"]), key=lambda name: str(shown_as.get(name, name)).lower())
    labels = list(dict.fromkeys(cell["label"] for cell in sorted(main.to_dicts(), key=_order)))
    names = [
        title.format(library=shown_as.get(library, library)) for library in libraries for title in QUANTITIES.values()
    ]
    figure, places = layout.panels(len(names), below=0.3, beside=0.05, titles=names)
    figure.update_annotations(font_size=10)
    for number, library in enumerate(libraries):
        cells = {cell["label"]: cell for cell in main.filter(pl.col("client_library") == library).to_dicts()}
        own = places[number * len(QUANTITIES) :]
        for quantity, place in zip(QUANTITIES, own, strict=False):
            for kind in AEADS:
                chosen = [cells[label] for label in labels if label in cells and _kind(cells[label]) == kind]
                _points(figure, chosen, labels, quantity, kind, place)
            _missing(figure, [cells.get(label) for label in labels], place)
            figure.update_yaxes(
                tickvals=list(range(len(labels))),
                ticktext=[html.escape(label) for label in labels],
                range=[len(labels) - 0.5, -0.5],
                showticklabels=place["col"] == 1,
                zeroline=False,
                tickfont={"size": 10},
                **layout.NAMES,
                **place,
            )
    figure.update_xaxes(**layout.VALUES, rangemode="tozero", tickfont={"size": 9})
    copied = sorted({*main["client_xdp"].drop_nulls(), *main["server_xdp"].drop_nulls()})
    caption = (
        "Means, bars from the smallest to the largest run. Where one end alone has AF_XDP, the other has GSO and GRO."
        + (f"<br>AF_XDP: {', '.join(copied)}." if copied else "")
        + goodput.disturbed(campaign)
        + unlike
    )
    layout.finish(
        figure,
        "Kernel bypass: goodput and processor time",
        goodput.conditions(campaign),
        caption,
        [campaign],
        height=110 + (40 + ROW_PX * len(labels)) * max(len(libraries), 1),
        left=140,
        bottom=78 + 12 * bool(unlike),
        legend=layout.IN_CORNER,
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    source = "Dissecting QUIC Implementation Performance, comparison of implementations"
    return output.Drawn("kernel-bypass", figure, table, origins, source)


def _order(cell: Mapping[str, Any]) -> tuple[int, int, str, str]:
    """Rows by what protects packets, then by way, both ends first."""
    ways = get_args(Io)
    way = ways.index(cell["io"]) if cell["io"] in ways else len(ways)
    return AEADS.index(_kind(cell)), way, cell["io_at"] or "", cell["label"]


def _kind(cell: Mapping[str, Any]) -> str:
    if cell["aead"] != "standard":
        return str(cell["aead"])
    return "chacha20-poly1305" if cell["cipher"] == "chacha20-poly1305" else "aes-128-gcm"


def _points(
    figure: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    quantity: str,
    kind: str,
    place: Mapping[str, int],
) -> None:
    own = {end: f"{quantity}{end}" for end in ("mean", "min", "max")}
    shown = [{**cell, **{end: cell[name] for end, name in own.items()}} for cell in cells if cell["n"]]
    shown = [cell for cell in shown if cell["mean"] is not None]
    if not shown:
        return
    _, name, colour, symbol = goodput.AEADS[kind]
    figure.add_scatter(
        x=[cell["mean"] for cell in shown],
        y=[labels.index(cell["label"]) for cell in shown],
        error_x=layout.to_extremes(shown),
        mode="markers",
        name=name,
        legendgroup=kind,
        marker={"color": colour, "size": 7, "symbol": symbol},
        hovertext=[_hover(cell) for cell in shown],
        hoverinfo="text",
        showlegend=kind not in {mark.legendgroup for mark in figure.data},
        **place,
    )


def _hover(cell: Mapping[str, Any]) -> str:
    xdp = {role: cell[f"{role}_xdp"] for role in ("client", "server") if cell[f"{role}_xdp"]}
    told = "".join(f"<br>AF_XDP of the {role}: {html.escape(mode)}" for role, mode in xdp.items())
    mean = f"mean {cell['mean']:.4g}, n = {cell['n']}, failed {cell['failed']}"
    return f"<b>{html.escape(cell['label'])}</b><br>{mean}{told}"


def _missing(figure: go.Figure, cells: Sequence[Mapping[str, Any] | None], place: Mapping[str, int]) -> None:
    """Say in place where a row has no value, and why."""
    for row, cell in enumerate(cells):
        if cell is not None and cell["n"]:
            continue
        text, reason = layout.absent(cell)
        figure.add_annotation(
            x=0,
            y=row,
            xref="x domain",
            text=text,
            hovertext=html.escape(reason),
            xanchor="left",
            showarrow=False,
            font={"size": 9, "color": layout.SOFT},
            **place,
        )
