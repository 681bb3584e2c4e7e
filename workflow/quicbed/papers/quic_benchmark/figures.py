"""Figures and tables of "quic-benchmark", of its published captures and of ours: packet flows, overhead by layer, and
durations by events and by captures.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis.place import Place
from quicbed.figures import layout, output
from quicbed.figures.findings import Found
from quicbed.figures.layout import INK, SOFT
from quicbed.figures.output import Drawn, Saved
from quicbed.figures.sheets import Sheet, leading
from quicbed.papers.quic_benchmark import analysis
from quicbed.papers.quic_benchmark.analysis import DOWNLOADS, HANDSHAKES, Measured
from quicbed.papers.quic_benchmark.published import NGINX
from quicbed.store import runs

PREFIX = "benchmark-"
PAPER = "quic-benchmark"
TRANSFER_PACKETS = 24
"""Of a download as many packets are drawn."""

_TITLES = {"quic": "QUIC", "tcp": "TCP+TLS"}
_TCP = ("tcp-tls", "tcp")
_LAYERS: Mapping[str, tuple[str, str]] = {
    # layer: name, colour
    "link": ("Ethernet", "#4d4d4d"),
    "ip": ("IP", "#7f7f7f"),
    "udp_tcp": ("UDP or TCP", "#b3b3b3"),
    "quic_long": ("QUIC long header", "#004b76"),
    "quic_short": ("QUIC short header", layout.BLUE),
    "records": ("TLS records", layout.SKY),
    "tag": ("AEAD tag", layout.VERMILION),
    "frames": ("QUIC frames", layout.ORANGE),
    "padding": ("padding", "#f2dc9b"),
    "tls": ("TLS messages", layout.PINK),
    "http": ("HTTP", "#8c6d31"),
    "content": ("content", layout.GREEN),
    "opaque": ("not decrypted", "#e8e8e8"),
}
_LIGHT = ("udp_tcp", "records", "padding", "opaque")
"""Layers whose colour white letters do not show on."""
_PHASES: Mapping[str, str] = {
    "handshake_ms": "handshake",
    "first_byte_ms": "time to first byte",
    "transfer_ms": "content transfer",
    "close_ms": "close",
}
_BASES = {"events": "by events", "capture": "by capture"}
_SHORT = {
    "EncryptedExtensions": "EE",
    "CertificateVerify": "CV",
    "Certificate": "Cert",
    "CompressedCertificate": "Cert",
    "ChangeCipherSpec": "CCS",
    "ClientHello": "CH",
    "ServerHello": "SH",
    "Finished": "Fin",
    "HANDSHAKE_DONE": "HSD",
    "NEW_CONNECTION_ID": "NCI",
    "RETIRE_CONNECTION_ID": "RCI",
    "CONNECTION_CLOSE": "CLOSE",
    "MAX_STREAM_DATA": "MSD",
}
_LONG = "CH, SH: ClientHello, ServerHello; EE: EncryptedExtensions; CV: CertificateVerify; Fin: Finished; "
_LONG += "CCS: ChangeCipherSpec; HSD: HANDSHAKE_DONE; NCI, RCI: NEW_, RETIRE_CONNECTION_ID; MSD: MAX_STREAM_DATA."
_SETTING = re.compile(r"samples_threshold(?P<threshold>[\d.]+)_dev2_delay(?P<delay>[\d.]+)")
"""Of a published sample: pings of at most 5 ms more than the delay, as the project measured."""
_LIMIT_MS = 5
_CELL = ["source", "label", "library"]
_LONGEST = 3
"""A timeline is cut off after so many times what connections last until they are closed."""
_ROW_PX, _CAPTION_CHARACTERS, _NAME_PX = 17, 118, 12
_LABEL_CHARACTERS = 50


def _rank(cell: Sequence[str]) -> tuple[str, bool, str]:
    _, label, library = cell
    return label, library in _TCP, library


def _cells(table: pl.DataFrame) -> list[tuple[str, str, str]]:
    """Cells of a table, TCP last."""
    return sorted(table.select(_CELL).unique().rows(), key=_rank)


def _of(table: pl.DataFrame, cell: Sequence[str]) -> pl.DataFrame:
    return table.filter(*(pl.col(name) == value for name, value in zip(_CELL, cell, strict=True)))


def _named(cell: Sequence[str], titles: Mapping[str, str]) -> str:
    """Name of a cell; a published one has its setting."""
    source, label, library = cell
    name = titles.get(library, _TITLES.get(library, library))
    return f"{name}, {_setting(label)}" if source == analysis.SOURCE else name


def _setting(label: str) -> str:
    """A published setting for people; one with other limits than those of the project keeps its name."""
    known = _SETTING.fullmatch(label)
    if known is not None and float(known["threshold"]) == float(known["delay"]) + _LIMIT_MS:
        return f"{known['delay']} ms delay"
    return "nginx" if label == NGINX else label


def _margin(cells: Sequence[Sequence[str]], titles: Mapping[str, str], size: float) -> int:
    """Pixels for the names of cells beside an axis, in letters of this size."""
    return round(24 + 0.56 * size * max(len(_named(cell, titles)) for cell in cells))


def _runs(number: int) -> str:
    return f"{number} run{'s' if number != 1 else ''}"


def _behind(measured: Measured, label: str | None) -> pl.DataFrame:
    """The runs behind what is shown."""
    if label is None:
        return measured.runs
    origins = measured.packets.filter(pl.col("label") == label)["origin"].unique()
    return measured.runs.filter(pl.col("origin").is_in(origins.to_list()))


def _conditions(measured: Measured, label: str | None) -> str:
    if label is None:
        return "published captures"
    what = "fresh connections, X25519, RSA-2048" if label == HANDSHAKES else "first 256 KiB, NOOP AEAD"
    testbeds = ", ".join(sorted(measured.runs["testbed"].drop_nulls().unique()))
    return f"testbed {testbeds} · proofs: {what}"


def _finished(
    drawing: go.Figure,
    name: str,
    title: str,
    caption: str,
    measured: Measured,
    label: str | None,
    table: pl.DataFrame,
    *,
    height: float,
    left: int,
    top: int = 46,
    below: int = 22,
    legend: Mapping[str, Any] | None = None,
) -> Drawn:
    """The figure with its title, and the table behind it with the columns that its manifest names."""
    lines = textwrap.wrap(caption, _CAPTION_CHARACTERS)
    runs = _behind(measured, label)
    hosts = [runs] if label is not None else []
    bottom = below + 13 * len(lines)
    layout.finish(
        drawing,
        f"{title} ({PAPER})",
        _conditions(measured, label),
        "<br>".join(html.escape(line) for line in lines),
        hosts,
        height=height + top + 14 + bottom,
        left=left,
        top=top,
        bottom=bottom,
        legend=legend,
    )
    own = label is not None
    first = runs.sort("origin").row(0, named=True)
    # published settings are a campaign each, on a host each
    only = {name: values[0] if len(values := runs[name].unique()) == 1 else None for name in ("campaign", "testbed")}
    behind = table.with_columns(
        experiment=pl.lit(first["experiment"] if own else "published"),
        campaign=pl.lit(first["campaign"] if own else only["campaign"], pl.String),
        testbed=pl.lit(first["testbed"] if own else only["testbed"], pl.String),
        scale=pl.lit(first["scale"] if own else "published", pl.String),
    )
    origins = runs["origin"].sort().to_list()
    return Drawn(name, drawing, behind, origins if own else [], PAPER, name)


# ---- packet flow -----------------------------------------------------------------------------------------------------


def _short(what: str) -> str:
    for long, short in _SHORT.items():
        what = re.sub(rf"\b{long}\b", short, what)
    what = what.replace(" + ", " | ")
    return what if len(what) <= _LABEL_CHARACTERS else f"{what[: _LABEL_CHARACTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def flow(
    name: str, measured: Measured, label: str | None, titles: Mapping[str, str], most: int | None = None
) -> Drawn | None:
    """A sequence chart of every cell: its usual packets in the order of their mean times; None without packets."""
    packets = measured.packets if label is None else measured.packets.filter(pl.col("label") == label)
    table = analysis.flow(packets, most)
    cells = _cells(table)
    if not cells:
        return None
    columns = min(len(cells), 2)
    names = [f"{_named(cell, titles)} ({_runs(_of(table, cell)['runs'][0])})" for cell in cells]
    lines = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    heights = [max(_of(table, cell).height for cell in line) + 0.4 for line in lines]
    between = 34.0
    height = sum(heights) * _ROW_PX + between * (len(lines) - 1)
    drawing, places = layout.panels(len(cells), columns, below=0.0, beside=0.05, titles=names)
    top = height
    for number, line in enumerate(lines):
        size = heights[number] * _ROW_PX
        for column, cell in enumerate(line):
            index = number * columns + column
            place = places[index]
            rows = _of(table, cell).to_dicts()
            drawing.update_yaxes(
                domain=[max(0.0, (top - size) / height), top / height],
                range=[heights[number] - 0.5, -0.7],
                visible=False,
                **place,
            )
            drawing.update_xaxes(range=[-0.3, 1.03], visible=False, **place)
            drawing.layout.annotations[index].update(y=top / height, yanchor="bottom", yshift=4)
            _sequence(drawing, rows, place)
        top -= size + between
    single = int(table["runs"].max() or 0) == 1  # type: ignore[arg-type]
    spread = "" if single else " \N{PLUS-MINUS SIGN} standard deviation"
    caption = (
        f"The client is on the left, the server on the right. Beside the client: mean time{spread} since the first "
        "packet [ms]; behind the text: mean size of the frame [B]. A packet "
        f"is shown if at least {analysis.USUAL:.0%} of the runs have it, once for each time they do. "
        + (f"The first {most} of them. " if most is not None else "")
        + _LONG
    )
    title = "Packets of a handshake" if label == HANDSHAKES else "Packets at the start of a transfer"
    title = "Packets of a connection" if label is None else title
    return _finished(drawing, name, title, caption, measured, label, table, height=height, left=14, top=58)


def _sequence(drawing: go.Figure, rows: Sequence[Mapping[str, Any]], place: Mapping[str, int]) -> None:
    """Arrows between the lines of client and server, from above to below; few traces, for many are slow to draw."""
    ends = [-0.6, len(rows) - 0.4]
    _lines(drawing, [0, 0, None, 1, 1], [*ends, None, *ends], SOFT, 1, place)
    for role, colour, tip, symbol in (
        ("client", layout.BLUE, 0.985, "triangle-right"),
        ("server", layout.VERMILION, 0.015, "triangle-left"),
    ):
        own = [(number + _ARROW, row) for number, row in enumerate(rows) if row["role"] == role]
        _lines(drawing, [0, 1, None] * len(own), [y for at, _ in own for y in (at, at, None)], colour, 1.3, place)
        drawing.add_scatter(
            x=[tip] * len(own),
            y=[at for at, _ in own],
            mode="markers",
            marker={"symbol": symbol, "size": 6, "color": colour},
            showlegend=False,
            hovertext=[f"{role}: {html.escape(row['what'])}, in {row['share']:.0%} of the runs" for _, row in own],
            hoverinfo="text",
            **place,
        )
    times = [
        f"{row['time_ms']:.2f}" + ("" if row["time_sd_ms"] is None else f" \N{PLUS-MINUS SIGN} {row['time_sd_ms']:.2f}")
        for row in rows
    ]
    labels = [
        f"{html.escape(_short(row['what']))} <span style='color:{SOFT}'>{row['frame_bytes']:.0f}</span>" for row in rows
    ]
    for x, texts, shift, where in ((-0.02, times, _ARROW, "middle left"), (0.5, labels, -0.1, "middle center")):
        drawing.add_scatter(
            x=[x] * len(rows),
            y=[number + shift for number in range(len(rows))],
            mode="text",
            text=texts,
            textposition=where,
            textfont={"size": 8.5, "color": INK},
            showlegend=False,
            hoverinfo="skip",
            cliponaxis=False,
            **place,
        )


def _lines(
    drawing: go.Figure, xs: Sequence[Any], ys: Sequence[Any], colour: str, width: float, place: Mapping[str, int]
) -> None:
    line = {"color": colour, "width": width}
    drawing.add_scatter(x=xs, y=ys, mode="lines", line=line, showlegend=False, hoverinfo="skip", **place)


_ARROW = 0.32
"""How far an arrow is below the middle of its row."""


# ---- overhead --------------------------------------------------------------------------------------------------------


def overhead(name: str, measured: Measured, label: str | None, titles: Mapping[str, str]) -> Drawn | None:
    """Per cent of the bytes of each end by layer, a bar a cell; None without packets."""
    packets = measured.packets if label is None else measured.packets.filter(pl.col("label") == label)
    table = analysis.overhead(packets)
    cells = _cells(table)
    if not cells:
        return None
    drawing, places = layout.panels(2, 2, below=0.1, beside=0.04, titles=["client to server", "server to client"])
    shown = [layer for layer in _LAYERS if table.filter((pl.col("layer") == layer) & (pl.col("bytes") > 0)).height]
    for place, role in zip(places, ("client", "server"), strict=True):
        for layer in shown:
            title, colour = _LAYERS[layer]
            found = [_of(table, cell).filter((pl.col("role") == role) & (pl.col("layer") == layer)) for cell in cells]
            values = [one["percent"].sum() for one in found]
            drawing.add_bar(
                x=values,
                y=[_named(cell, titles) for cell in cells],
                orientation="h",
                name=title,
                legendgroup=layer,
                showlegend=place["col"] == 1,
                marker={"color": colour, "line": {"color": "white", "width": 0.5}},
                text=[f"{value:.0f}" if value >= 5 else "" for value in values],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"size": 8.5, "color": INK if layer in _LIGHT else "white"},
                hovertemplate=f"%{{y}}, {title}: %{{x:.2f}} %<extra></extra>",
                **place,
            )
        drawing.update_yaxes(**layout.NAMES, autorange="reversed", showticklabels=place["col"] == 1, **place)
        drawing.update_xaxes(
            **layout.VALUES, range=[0, 100], title={"text": "Bytes on the link [%]", "font": {"size": 10.5}}, **place
        )
    drawing.update_layout(barmode="stack", bargap=0.25)
    caption = (
        "Share of all bytes that an end sends, mean of the runs. Frames of QUIC without the data in them; TLS records "
        "are their headers and content types."
    )
    what = {HANDSHAKES: "handshakes and one byte", DOWNLOADS: "downloads of 256 KiB"}.get(label or "", "connections")
    height = 20 * len(cells) + 14
    return _finished(
        drawing,
        name,
        f"Overhead by layer of {what}",
        caption,
        measured,
        label,
        table,
        height=height,
        left=98 if label is not None else _margin(cells, titles, _NAME_PX),
        top=122,
        below=56,
        legend={"y": 1 + 26 / height, "font": {"size": 9.5}, "traceorder": "normal"},
    )


def overhead_table(measured: Measured, titles: Mapping[str, str]) -> Sheet | None:
    """Bytes and per cent of every layer, by cell and direction; None without packets."""
    table = analysis.overhead(measured.packets)
    if table.is_empty():
        return None
    rows, selected = [], []
    for cell in _cells(table):
        for role in ("client", "server"):
            by_layer = {row["layer"]: row for row in _of(table, cell).filter(pl.col("role") == role).to_dicts()}
            if not by_layer:
                continue
            whole = sum(row["bytes"] for row in by_layer.values())
            values = [
                f"{by_layer[layer]['bytes']:.0f} ({by_layer[layer]['percent']:.1f} %)"
                if by_layer[layer]["bytes"]
                else None
                for layer in _LAYERS
            ]
            label = None if cell[0] == analysis.SOURCE else cell[1]
            rows.append([_named(cell, titles), label, role, by_layer["link"]["runs"], f"{whole:.0f}", *values])
            selected.append(_selection(measured.packets, cell))
    headers = ["library", "of", "sent by", "runs", "all [B]", *(f"{title} [B]" for title, _ in _LAYERS.values())]
    numeric = frozenset(range(3, len(headers)))
    return Sheet(headers, rows, numeric, behind=leading(selected, numeric))


def _selection(measured: pl.DataFrame, cell: Sequence[Any]) -> str | None:
    """What selects the run that a cell of ours was captured in; None of published ones."""
    return None if cell[0] == analysis.SOURCE else runs.selection(None, run=_of(measured, cell)["origin"][0])


# ---- durations -------------------------------------------------------------------------------------------------------


def timelines(name: str, measured: Measured, label: str | None, titles: Mapping[str, str]) -> Drawn | None:
    """When the phases of a connection end, mean of the runs of each cell, by events and by captures."""
    durations = measured.durations if label is None else measured.durations.filter(pl.col("label") == label)
    table = analysis.timelines(durations)
    cells = _cells(table)
    if not cells:
        return None
    # what follows each other: until the handshake is complete, until the first byte, until the last, until the end
    parts = {
        "handshake_ms": layout.BLUE,
        "first_byte_ms": layout.SKY,
        "transfer_ms": layout.GREEN,
        "close_ms": "#b3b3b3",
    }
    drawing, (place,) = layout.panels(1, 1, below=0.1)
    known = [(cell, base) for cell in cells for base in _BASES if not _by(table, cell, base).is_empty()]
    # those with both first: their order is the one that the axis takes
    known = sorted(known, key=lambda one: sum(cell == one[0] for cell, _ in known), reverse=True)
    ys = [[_named(cell, titles) for cell, _ in known], [_BASES[base] for _, base in known]]
    ends: list[dict[str, Mapping[str, Any]]] = [
        {row["phase"]: row for row in _by(table, cell, base).to_dicts()} for cell, base in known
    ]
    until = _until(ends)
    for phase, colour in parts.items():
        lengths = []
        for row in ends:
            value = row[phase]["mean_ms"] if phase in row else None
            before = row["handshake_ms"]["mean_ms"] if phase == "first_byte_ms" and "handshake_ms" in row else 0.0
            lengths.append(None if value is None else max(value - before, 0.0))
        spreads = [row[phase]["sd_ms"] if phase in row else None for row in ends]
        drawing.add_bar(
            x=lengths,
            y=ys,
            orientation="h",
            name={"first_byte_ms": "until the first byte"}.get(phase, _PHASES[phase]),
            marker={"color": colour, "line": {"color": "white", "width": 0.5}},
            customdata=[[spread or 0.0] for spread in spreads],
            hovertemplate=f"%{{y}}, {_PHASES[phase]}: %{{x:.3f}} ms, s. d. %{{customdata[0]:.3f}} ms<extra></extra>",
            **place,
        )
    drawing.update_layout(barmode="stack", bargap=0.2)
    drawing.update_yaxes(**layout.NAMES, autorange="reversed", tickfont={"size": 9}, dividercolor="white", **place)
    drawing.update_xaxes(
        **layout.VALUES, title={"text": "Time since the ClientHello [ms]", "font": {"size": 10.5}}, **place
    )
    cut = [] if until is None else [number for number, row in enumerate(ends) if sum(_span(row)) > until]
    if cut:
        drawing.update_xaxes(range=[0, until], **place)
    caption = (
        "Means of the runs. By events of the client: it has sent or received. By capture: the packet passed the tap."
    )
    if label is None:
        caption = "Means of the runs. By events of the server; by capture: the packet passed the tap."
    if cut:
        told = [f"{_named(known[at][0], titles)} {_BASES[known[at][1]]} {_span(ends[at])[1]:.0f} ms" for at in cut]
        caption += f" Closing continues beyond the axis: {', '.join(told)}."
    height = 13 * len(known) + 20
    return _finished(
        drawing,
        name,
        "Timeline of a connection",
        caption,
        measured,
        label,
        table,
        height=height,
        left=150 if label is not None else 70 + _margin(cells, titles, 9),
        top=64,
        below=52,
        legend={"y": 1 + 4 / height, "traceorder": "normal"},
    )


def _by(table: pl.DataFrame, cell: Sequence[str], basis: str) -> pl.DataFrame:
    return _of(table, cell).filter(pl.col("basis") == basis)


def _span(phases: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """How long a connection lasts until its last byte, and from there until it is closed; ms."""
    means = {phase: row["mean_ms"] for phase, row in phases.items()}
    before = max(means.get("handshake_ms", 0.0), means.get("first_byte_ms", 0.0)) + means.get("transfer_ms", 0.0)
    return before, means.get("close_ms", 0.0)


def _until(ends: Sequence[Mapping[str, Mapping[str, Any]]]) -> float | None:
    """Where the axis of a timeline ends if some close long after all others, such as after an idle timeout; else None.

    A server that waits for its timeout would make all else too small to be seen.
    """
    spans = sorted(sum(_span(row)) for row in ends)
    most = _LONGEST * max((_span(row)[0] for row in ends), default=0.0)
    shown = [span for span in spans if span <= most]
    return 1.05 * max(most / _LONGEST, *shown) if shown and spans[-1] > most else None


def _lasting(durations: pl.DataFrame, apart: pl.DataFrame) -> list[str]:
    """Phases that both kinds of durations have and that take any time in captures: that of one byte has no transfer."""
    captured = durations.filter(pl.col("basis") == "capture")
    return [phase for phase in _PHASES if phase in set(apart["phase"]) and (captured[phase] > 0).any()]


def differences(name: str, measured: Measured, label: str | None, titles: Mapping[str, str]) -> Drawn | None:
    """Durations by events less those by captures, every run and its quartiles; None where no run has both."""
    durations = measured.durations if label is None else measured.durations.filter(pl.col("label") == label)
    table = analysis.differences(durations)
    cells = _cells(table)
    if not cells:
        return None
    phases = _lasting(durations, table)
    columns = 3 if len(phases) == 3 else 2
    rows = -(-len(phases) // columns)
    height = 17 * len(cells) + 50
    # of few cells the axes and titles between two rows take more of the figure
    drawing, places = layout.panels(
        len(phases), columns, below=max(0.3, 44 / height), beside=0.04, titles=[_PHASES[phase] for phase in phases]
    )
    for place, phase in zip(places, phases, strict=True):
        for cell in cells:
            values = _of(table, cell).filter(pl.col("phase") == phase)["difference_ms"].to_list()
            drawing.add_box(
                x=values,
                y=[_named(cell, titles)] * len(values),
                orientation="h",
                boxpoints="all",
                jitter=0.0,
                pointpos=0,
                marker={"size": 3, "color": layout.BLUE, "opacity": 0.35},
                line={"width": 1, "color": INK},
                fillcolor="rgba(0,0,0,0)",
                showlegend=False,
                **place,
            )
        drawing.add_vline(x=0, line={"color": SOFT, "width": 1}, **place)
        drawing.update_yaxes(
            **layout.NAMES, autorange="reversed", showticklabels=place["col"] == 1, tickfont={"size": 9}, **place
        )
        drawing.update_xaxes(**layout.VALUES, tickfont={"size": 9}, nticks=6, **place)
    for place in places[-columns:]:
        drawing.update_xaxes(title={"text": "By events less by capture [ms]", "font": {"size": 10.5}}, **place)
    caption = "Each point is a run; boxes are quartiles. Durations, so that no clock is compared with another."
    return _finished(
        drawing,
        name,
        "Durations by events against those by captures",
        caption,
        measured,
        label,
        table,
        height=rows * height,
        left=98 if label is not None else _margin(cells, titles, 9),
        top=58,
        below=52,
    )


def durations_table(measured: Measured, titles: Mapping[str, str]) -> Sheet | None:
    """Mean and deviation of every phase by events and by captures, and of their differences; None without any."""
    times = analysis.timelines(measured.durations)
    if times.is_empty():
        return None
    apart = analysis.differences(measured.durations)
    rows, selected = [], []
    for cell in _cells(times):
        own, between = _of(times, cell), _of(apart, cell)
        for phase, title in _PHASES.items():
            by_basis = {row["basis"]: row for row in own.filter(pl.col("phase") == phase).to_dicts()}
            values = between.filter(pl.col("phase") == phase)["difference_ms"]
            label = None if cell[0] == analysis.SOURCE else cell[1]
            told = [
                _mean(by_basis[base]["mean_ms"], by_basis[base]["sd_ms"]) if base in by_basis else None
                for base in _BASES
            ]
            known = sorted(values)
            extremes = f"{known[0]:.3f} to {known[-1]:.3f}" if known else None
            difference = _mean(values.mean(), values.std()) if len(values) else None
            rows.append([_named(cell, titles), label, title, len(values), *told, difference, extremes])
            selected.append(_selection(measured.durations, cell))
    headers = [
        "library",
        "of",
        "phase",
        "runs with both",
        "by events [ms]",
        "by capture [ms]",
        "difference [ms]",
        "from, to [ms]",
    ]
    numeric, notes = frozenset(range(3, len(headers))), ["Means and standard deviations of the runs."]
    return Sheet(headers, rows, numeric, notes, leading(selected, numeric))


def _mean(mean: Any, deviation: Any) -> str:
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} \N{PLUS-MINUS SIGN} {deviation:.3f}"


# ---- findings --------------------------------------------------------------------------------------------------------


def found_flow(measured: Measured, titles: Mapping[str, str]) -> Found | None:
    """With which libraries a connection takes the fewest and the most packets."""
    packets = measured.packets.filter(pl.col("label") != DOWNLOADS)
    told = []
    for source, group in _sides(packets):
        many = group.group_by(_CELL).agg(
            packets=pl.len() / pl.struct("origin", "connection").n_unique(),
            runs=pl.struct("origin", "connection").n_unique(),
        )
        rows = many.sort("packets", "label", "library").to_dicts()
        first, last = rows[0], rows[-1]
        names = [_named([row[key] for key in _CELL], titles) for row in (first, last)]
        told.append(
            f"{source}: a connection takes {first['packets']:.1f} packets ({names[0]}) to {last['packets']:.1f} "
            f"({names[1]}) in both directions, means of {_runs(first['runs'])} and {_runs(last['runs'])}."
        )
    return Found(told) if told else None


def found_overhead(measured: Measured, titles: Mapping[str, str]) -> Found | None:
    """What is not content among the bytes of the end that sends the content, the server unless only the client does."""
    table = analysis.overhead(measured.packets)
    told = []
    for cell in _cells(table):
        if cell[1] == HANDSHAKES:
            continue
        sent: dict[str, dict[str, float]] = {}
        for row in _of(table, cell).to_dicts():
            sent.setdefault(row["role"], {})[row["layer"]] = row["percent"]
        role = next((end for end in ("server", "client") if sent.get(end, {}).get("content")), "server")
        if role not in sent:
            continue
        by_layer = sent[role]
        headers = sum(by_layer[name] for name in ("link", "ip", "udp_tcp"))
        quic = sum(by_layer[name] for name in ("quic_long", "quic_short", "frames", "records"))
        parts = [f"{headers:.2f} % Ethernet, IP and UDP or TCP"]
        if by_layer["opaque"]:
            # headers and tags within it are not known either
            whole = (
                f"{by_layer['opaque']:.2f} % of what the {role} sends is not decrypted, so that content is not known"
            )
        else:
            whole = f"{100 - by_layer['content']:.2f} % of what the {role} sends is no content"
            parts += [
                f"{quic:.2f} % headers and frames of QUIC or TLS records",
                f"{by_layer['tag']:.2f} % tags",
                *(f"{by_layer[name]:.2f} % {_LAYERS[name][0]}" for name in ("padding", "tls") if by_layer[name]),
            ]
        told.append(f"{_named(cell, titles)}: {whole}: {', '.join(parts)}.")
    return Found(told) if told else None


def found_durations(measured: Measured, titles: Mapping[str, str]) -> Found | None:
    """How far durations by events and by captures are apart."""
    durations = measured.durations.filter(pl.col("label") != DOWNLOADS)
    table = analysis.differences(durations)
    told = []
    for source, group in _sides(table):
        for phase in _lasting(durations, table):
            own, title = group.filter(pl.col("phase") == phase), _PHASES[phase]
            means = own.group_by(_CELL).agg(pl.col("difference_ms").mean(), runs=pl.len())
            rows = means.sort("difference_ms", "library").to_dicts()
            names = [_named([row[key] for key in _CELL], titles) for row in (rows[0], rows[-1])]
            told.append(
                f"{source}, {title}: events less captures are {rows[0]['difference_ms']:+.3f} ms ({names[0]}) to "
                f"{rows[-1]['difference_ms']:+.3f} ms ({names[1]}), means of {_runs(rows[0]['runs'])} and "
                f"{_runs(rows[-1]['runs'])}."
            )
    return Found(told) if told else None


def _sides(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The part of a table that is published, then ours; without empty ones."""
    theirs = pl.col("source") == analysis.SOURCE
    parts = (("Published data", table.filter(theirs)), ("Measured here", table.filter(~theirs)))
    return [(name, part) for name, part in parts if not part.is_empty()]


def captures(measured: Measured, titles: Mapping[str, str]) -> Sheet:
    """The captures of ours that are shown, and those that could not be read."""
    place = ["label", "library", "origin"]
    counted = measured.packets.group_by(place).agg(
        pl.col("connection").n_unique().alias("runs"), pl.len().alias("packets"), pl.col("opaque").sum()
    )
    rows = [
        [label, titles.get(library, library), runs, packets, opaque, origin]
        for label, library, origin, runs, packets, opaque in counted.sort(place).rows()
    ]
    headers = ["of", "library", "runs", "packets", "not decrypted [B]", "capture"]
    behind = leading([runs.selection(None, run=row[5]) for row in rows], [5])
    return Sheet(headers, rows, frozenset({2, 3, 4}), measured.problems, behind)


# ---- all of them -----------------------------------------------------------------------------------------------------


def drawn(published: Measured, own: Measured, titles: Mapping[str, str]) -> list[Drawn]:
    """Every figure there is data for."""
    found = [
        flow(f"{PREFIX}flow-handshake", own, HANDSHAKES, titles),
        flow(f"{PREFIX}flow-transfer", own, DOWNLOADS, titles, TRANSFER_PACKETS),
        overhead(f"{PREFIX}overhead-handshake", own, HANDSHAKES, titles),
        overhead(f"{PREFIX}overhead-transfer", own, DOWNLOADS, titles),
        timelines(f"{PREFIX}timeline", own, HANDSHAKES, titles),
        differences(f"{PREFIX}differences", own, HANDSHAKES, titles),
        flow(f"{PREFIX}published-flow", published, None, titles, TRANSFER_PACKETS),
        overhead(f"{PREFIX}published-overhead", published, None, titles),
        timelines(f"{PREFIX}published-timeline", published, None, titles),
        differences(f"{PREFIX}published-differences", published, None, titles),
    ]
    return [one for one in found if one is not None]


def save(published: Measured, own: Measured, titles: Mapping[str, str], here: Place) -> dict[str, Saved]:
    """Draw every figure and write it and its table; what an earlier call wrote is removed. By name."""
    return output.save_all(drawn(published, own, titles), PREFIX, here)
