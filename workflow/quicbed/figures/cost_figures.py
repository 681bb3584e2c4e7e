"""Goodput and processor time beside each other: what a cipher or a setting costs a library, by both.

A figure has a panel for every contrast, and in it two intervals for every library: that of the ratio of goodput, and of
what both ends download per second of their processor time, both paired within blocks (`quicbed.analysis.comparison`).
Behind each is the interval of its own A/A arm.

Of experiments whose runs are measured in concurrent pairs (`PAIRS`), the intervals are those of processor time
per byte, of both ends together and of each, with the goodput that the paper printed beside them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison, paired_runs, published
from quicbed.config.model import Experiment
from quicbed.figures import findings, goodput, layout
from quicbed.figures.findings import Found
from quicbed.figures.output import Drawn

KINDS: Mapping[str, tuple[str, str, str, float]] = {
    # columns begin with: what it is, colour (Okabe and Ito), marker, place within the row
    "": ("goodput", layout.BLUE, "circle", -0.2),
    "cpu_": ("GiB per second of processor time", layout.VERMILION, "diamond", 0.2),
}
BY_END: Mapping[str, tuple[str, str, str, float]] = {
    "both_": ("both ends", layout.VERMILION, "diamond", -0.28),
    "client_": ("client", layout.SKY, "circle-open", 0.0),
    "server_": ("server", layout.GREEN, "square-open", 0.28),
}
"""The same of pairs: processor time per byte."""
HALF = 0.17
"""Half the height of a band, in rows; of three in a row it is less."""
ROW_PX, BETWEEN_PX, TOP_PX, BOTTOM_PX = 24, 62, 84, 82
"""Heights of a row, of the room between two lines of panels, and of the margins."""
TICKS = 20
FEW_TIMES, MANY_TIMES = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7], [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
"""Ticks of logarithmic axes that have less than a power of ten, and more."""
"""On the horizontal axes of a line of panels, at most."""
_ENDS = ("ratio_low", "ratio", "ratio_high")
SUFFIX = "-cost"
"""Behind the name of the figure that one is the twin of."""


@dataclass(frozen=True)
class Twin:
    """What the twin of a figure shows."""

    name: str
    """Of the figure that it is the twin of."""
    title: str
    source: str
    difference: str
    """Title of the horizontal axes."""
    contrasts: Mapping[str, str]
    """Labels of the rows of the figure's table that are shown, and the titles of their panels."""
    prepare: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame] = lambda _, table: table
    """Makes of a campaign and its table the one that is shown."""
    kinds: Mapping[str, tuple[str, str, str, float]] = field(default_factory=lambda: KINDS)
    stated: str = ""
    """The experiment that the paper states ratios of goodput for (`published.RATIOS`)."""
    row_px: float = ROW_PX
    paired: bool = False
    times: bool = False
    """Whether ratios are shown as they are, on logarithmic axes, and not as differences in per cent."""

    def place(self, ratio: float) -> float:
        """Where a ratio is on the horizontal axes."""
        return ratio if self.times else goodput.percent(ratio)

    def extent(self, ratios: Sequence[float]) -> list[float]:
        """The range of a horizontal axis that shows these ratios, of which there are two different ones."""
        low, high = (math.log10(end) if self.times else goodput.percent(end) for end in (min(ratios), max(ratios)))
        return [low - 0.04 * (high - low), high + 0.04 * (high - low)]

    @property
    def published(self) -> Mapping[str, tuple[float, float]]:
        """By label, the ratio of goodput that the paper states, turned round."""
        return {label: (1 / high, 1 / low) for label, (low, high) in published.RATIOS.get(self.stated, {}).items()}

    @property
    def half(self) -> float:
        """Half the height of a band, in rows."""
        return HALF if len(self.kinds) < 3 else 0.13

    @property
    def heading(self) -> str:
        """The figure's title."""
        return f"{self.title}, {'in concurrent pairs' if self.paired else 'by goodput and by processor time'}"

    @property
    def drawn(self) -> str:
        """The figure's name."""
        return self.name if self.paired else f"{self.name}{SUFFIX}"


TWINS: Mapping[str, Twin] = {
    "aead-goodput": Twin(
        "goodput-by-aead",
        "What each AEAD costs",
        "A Quantum of QUIC, Fig. 3, processor time",
        "Difference to AES-128-GCM [%]",
        {name: name for name in ("AES-256-GCM", "ChaCha20-Poly1305", "NOOP")},
    ),
    "header-protection": Twin(
        "header-protection",
        "What header protection costs",
        "A Quantum of QUIC, Fig. 4, processor time",
        "Gain without it [%]",
        {
            "AES-128-GCM without HP": "AES-128-GCM",
            "ChaCha20-Poly1305 without HP": "ChaCha20-Poly1305",
            "NOOP": "NOOP",
        },
        goodput.within_builds,
    ),
    "mtu": Twin(
        "goodput-by-mtu",
        "What a larger MTU brings",
        "A Quantum of QUIC, Fig. 5, processor time",
        "Difference to an MTU of 1500 [%]",
        {f"AES-128-GCM, MTU {mtu}": f"MTU {mtu}" for mtu in (3000, 6000, 9000)},
    ),
    "aes-ni": Twin(
        "aes-instructions",
        "Cost of AES without its instructions, and of ChaCha20-Poly1305",
        "QUIC on the Highway, Fig. 7, processor time",
        "Difference to AES with its instructions [%]",
        {"AES without AES-NI": "AES in software", "ChaCha20": "ChaCha20-Poly1305"},
    ),
    "udp-buffer": Twin(
        "highway-fig5",
        "What UDP receive buffers bring",
        "QUIC on the Highway, Fig. 5, processor time",
        "Difference to 1x [%]",
        {label: label for label in ("0.5x", "2x", "4x", "8x", "16x", "32x")},
    ),
    "offloads": Twin(
        "highway-fig8",
        "What offloads bring",
        "QUIC on the Highway, Fig. 8, processor time",
        "Difference to the default ones [%]",
        {"off": "no offloads", "gso-gro": "GSO and GRO only"},
    ),
    "hardware": Twin(
        "highway-fig9",
        "Effect of building for the processor",
        "QUIC on the Highway, Fig. 9, processor time",
        "Difference to the default build [%]",
        {"march=native": "march=native"},
    ),
}
"""By experiment."""
PAIRS: Mapping[str, Twin] = {
    "aead-pairs": Twin(
        "aead-pairs",
        "Processor time per byte by AEAD",
        "A Quantum of QUIC, Fig. 3, processor time in pairs",
        "Difference to AES-128-GCM [%]",
        {name: name for name in ("AES-256-GCM", "ChaCha20-Poly1305", "NOOP", "NOENC")},
        kinds=BY_END,
        stated="aead-goodput",
        row_px=40,
        paired=True,
    ),
    "header-protection-pairs": Twin(
        "header-protection-pairs",
        "Processor time per byte without header protection",
        "A Quantum of QUIC, Fig. 4, processor time in pairs",
        "Difference without it [%]",
        {
            "AES-128-GCM without HP": "AES-128-GCM",
            "ChaCha20-Poly1305 without HP": "ChaCha20-Poly1305",
            "NOOP": "NOOP",
        },
        kinds=BY_END,
        stated="header-protection",
        row_px=40,
        paired=True,
    ),
    "udp-offloads": Twin(
        "udp-offloads",
        "Processor time per byte without UDP offloads, and against TCP+TLS",
        "beyond QUIC on the Highway, Fig. 8, processor time in pairs",
        "Ratio of processor time per byte",
        {
            "no GSO": "without GSO",
            "no GRO": "without GRO",
            "neither": "without both",
            "against TCP+TLS": "with both, to TCP+TLS",
            "neither, against TCP+TLS": "without both, to TCP+TLS",
            "no offloads, against TCP+TLS": "neither has any, to TCP+TLS",
        },
        kinds=BY_END,
        row_px=40,
        paired=True,
        times=True,
    ),
    "floor": Twin(
        "floor",
        "How far each library is from the floor: processor time per byte",
        "beyond the papers, processor time in pairs",
        "multiple of TCP+TLS",
        {"AES-128-GCM": "AES-128-GCM", "NOOP": "NOOP", "NOENC": "no packet protection"},
        kinds=BY_END,
        row_px=40,
        paired=True,
        times=True,
    ),
}
"""Of experiments of pairs; their tables are those of `quicbed.analysis.paired_runs`."""


def as_drawn(experiment: str, campaign: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """The table of an experiment with the ratios that its figure shows."""
    twin = TWINS.get(experiment)
    return twin.prepare(campaign, cells) if twin is not None else cells


def metric(campaign: pl.DataFrame) -> str:
    """What an experiment compares: of handshakes, of concurrent pairs, and of separate runs."""
    if "handshake" in set(campaign["workload"].drop_nulls()):
        return "ttfb_ms"
    return comparison.TWIN if paired_runs.is_paired(campaign) else "goodput_mbps"


def undecided(campaigns: comparison.Campaigns, known: Mapping[str, Experiment], experiment: str) -> pl.DataFrame:
    """Ratios of an experiment that are not as narrow as its contrast wants: rows of `comparison.undecided`.

    Of separate runs none, where pairs were measured: these decide. *known* are all experiments.
    """
    campaign = campaigns.newest(experiment)
    one = known.get(experiment)
    if campaign.is_empty() or one is None or paired_runs.deciding(campaigns, known, experiment) is not None:
        return pl.DataFrame(schema=comparison.UNDECIDED)
    cells = campaigns.figure(experiment, metric(campaign))
    return comparison.undecided(as_drawn(experiment, campaign, cells), one.contrast)


def both_ways(
    campaign: pl.DataFrame, table: pl.DataFrame, twin: Twin, titles: Mapping[str, str] | None = None
) -> Drawn | None:
    """The twin of a figure, of the *table* that it prepares; None where no library has both ratios with intervals."""
    compared = _of_libraries(table).filter(
        pl.col("label").is_in(list(twin.contrasts)),
        *(pl.col(f"{kind}ratio_low").is_not_null() for kind in twin.kinds),
    )
    if compared.is_empty():
        return None
    names = titles or {}
    libraries = sorted(set(compared["client_library"]), key=lambda one: names.get(one, one).lower())
    shown = [label for label in twin.contrasts if label in set(compared["label"])]
    columns = min(len(shown), layout.COLUMNS)
    lines = -(-len(shown) // columns)
    height = lines * twin.row_px * len(libraries) + (lines - 1) * BETWEEN_PX
    drawing, places = layout.panels(
        len(shown),
        columns,
        below=lines * BETWEEN_PX / height if lines > 1 else 0,
        beside=0.03,
        titles=[twin.contrasts[label] for label in shown],
    )
    floors = {row["client_library"]: row for row in compared.to_dicts()}
    for label, place in zip(shown, places, strict=True):
        cells = {row["client_library"]: row for row in compared.filter(pl.col("label") == label).to_dicts()}
        _panel(drawing, [cells.get(library) for library in libraries], place, twin, label)
        every = {row["client_library"]: row for row in _of_libraries(table).filter(pl.col("label") == label).to_dicts()}
        beside = {row.get("baseline_library") for row in every.values() if row["baseline_label"] == label}
        for number, library in enumerate(libraries):
            if library not in cells:
                alone = library in beside and library not in every
                told = ("baseline", "ratios are to this one") if alone else _absence(every.get(library))
                _absent(drawing, number, told, place)
        ticks = TICKS // columns
        named = [_name(floors[library], names, twin) for library in libraries]
        _axes(drawing, named, twin, ticks, place)
    _legend(drawing, twin)
    marked = any(_unlike_itself(cell, twin) for cell in floors.values())
    shown_as = "on logarithmic axes" if twin.times else "as differences"
    caption = (
        f"Ratios paired within blocks, {shown_as}, with their 95 % intervals. Grey: the interval of the "
        "A/A arm<br>of the same quantity, the baseline against itself. Horizontal axes differ."
    )
    if twin.paired:
        caption += "<br>Both runs of a ratio share processors and run at the same time."
    if twin.published:
        caption += " Blue: 1 / goodput, as the paper states it."
    layout.finish(
        drawing,
        twin.heading,
        goodput.conditions(campaign),
        caption + goodput.disturbed(campaign) + (f"<br>{goodput.UNLIKE_ITSELF_MEANS}" if marked else ""),
        [campaign],
        height=height + TOP_PX + 14 + BOTTOM_PX + 12 * marked,
        left=104,
        top=TOP_PX,
        bottom=BOTTOM_PX + 12 * marked,
        legend={"y": 1 + 20 / height},
        titles=names,
    )
    floor = table.filter(pl.col("arm") == "aa")
    used = [*compared["cell"], *compared["baseline"], *floor["cell"], *floor["baseline"].drop_nulls()]
    origins = comparison.used_origins(campaign, used)
    return Drawn(twin.drawn, drawing, table, origins, twin.source)


def _of_libraries(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of libraries with themselves, without the A/A and control arms."""
    return table.filter((pl.col("arm") == "main") & (pl.col("client_library") == pl.col("server_library")))


def found(table: pl.DataFrame, twin: Twin, titles: Mapping[str, str]) -> Found | None:
    """What processor time shows, a sentence for each contrast."""
    ends = ("ratio", "ratio_low", "ratio_high")
    kind, what = ("both_", "processor time per byte in pairs") if twin.paired else ("cpu_", "by processor time")
    by_time = table.with_columns(pl.col(f"{kind}{end}").alias(end) for end in ends)
    words = {label: f"{title}, {what}" for label, title in twin.contrasts.items()}
    return findings.contrasts(by_time, words, titles, times=twin.times)


def _unlike_itself(cell: Mapping[str, Any], twin: Twin) -> bool:
    """Whether an A/A interval of the library of a cell excludes 1."""
    known = ((cell[f"{kind}aa_low"], cell[f"{kind}aa_high"]) for kind in twin.kinds)
    return any(low is not None and not low <= 1 <= high for low, high in known)


def _name(cell: Mapping[str, Any], titles: Mapping[str, str], twin: Twin) -> str:
    name = html.escape(titles.get(cell["client_library"], cell["client_library"]))
    return f"{name} {goodput.UNLIKE_ITSELF}" if _unlike_itself(cell, twin) else name


def _panel(
    drawing: go.Figure, cells: Sequence[Mapping[str, Any] | None], place: Mapping[str, int], twin: Twin, label: str
) -> None:
    """One contrast: a row for each library, of which some may lack it."""
    printed = twin.published.get(label, ())
    ends = [
        cell[f"{kind}{end}"]
        for cell in cells
        for kind in twin.kinds
        for end in ("ratio_low", "ratio_high", "aa_low", "aa_high")
        if cell is not None and cell[f"{kind}{end}"] is not None
    ]
    extent = twin.extent([1.0, *ends, *printed])
    drawing.update_xaxes(range=extent, **place)
    if twin.times:
        drawing.update_xaxes(tickvals=FEW_TIMES if extent[1] - extent[0] < 1 else MANY_TIMES, **place)
    if printed:
        least, most = map(twin.place, printed)
        shown = {
            "type": "rect",
            "x0": least,
            "x1": most,
            "y0": -0.5,
            "y1": len(cells) - 0.5,
            "fillcolor": goodput.PUBLISHED,
        }
        edge = {"width": 0 if least < most else 3, "color": goodput.PUBLISHED}
        layout.add(drawing, "shapes", [{**shown, "line": edge, "layer": "below"}], place)
    for kind, (what, colour, symbol, offset) in twin.kinds.items():
        rows = [(row + offset, cell) for row, cell in enumerate(cells) if cell is not None]
        floors = [
            {
                "type": "rect",
                "x0": twin.place(cell[f"{kind}aa_low"]),
                "x1": twin.place(cell[f"{kind}aa_high"]),
                "y0": y - twin.half,
                "y1": y + twin.half,
                "fillcolor": goodput.FLOOR,
                "line": {"width": 0},
                "layer": "below",
            }
            for y, cell in rows
            if cell[f"{kind}aa_low"] is not None
        ]
        layout.add(drawing, "shapes", floors, place)
        low, ratios, high = ([twin.place(cell[f"{kind}{end}"]) for _, cell in rows] for end in _ENDS)
        drawing.add_scatter(
            x=ratios,
            y=[y for y, _ in rows],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [end - ratio for ratio, end in zip(ratios, high, strict=True)],
                "arrayminus": [ratio - end for ratio, end in zip(ratios, low, strict=True)],
                "color": colour,
                "thickness": 1.4,
                "width": 3,
            },
            mode="markers",
            marker={"color": colour, "size": 6, "symbol": symbol},
            hovertext=[f"<b>{html.escape(cell['label'])}</b>, {what}<br>{_hover(cell, kind)}" for _, cell in rows],
            hoverinfo="text",
            showlegend=False,
            **place,
        )


def _absence(cell: Mapping[str, Any] | None) -> tuple[str, str]:
    """What is said in place of an interval, and why there is none."""
    return ("no interval", "too few blocks") if cell and cell["n"] else layout.absent(cell)


def _absent(drawing: go.Figure, row: int, told: tuple[str, str], place: Mapping[str, int]) -> None:
    """Say in place why a library has no interval."""
    text, reason = told
    drawing.add_annotation(
        x=0,
        xref="x domain",
        xanchor="left",
        xshift=6,
        y=row,
        text=text,
        hovertext=html.escape(reason),
        showarrow=False,
        font={"size": 9, "color": layout.SOFT},
        **place,
    )


def _hover(cell: Mapping[str, Any], kind: str) -> str:
    ratio, low, high = (cell[f"{kind}{end}"] for end in ("ratio", "ratio_low", "ratio_high"))
    told = f"ratio {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}, {cell['ratio_n']} paired blocks"
    if cell[f"{kind}aa_low"] is not None:
        told += f"<br>A/A {cell[f'{kind}aa_low']:.4f} to {cell[f'{kind}aa_high']:.4f}"
    return told


def _axes(drawing: go.Figure, names: Sequence[str], twin: Twin, ticks: int, place: Mapping[str, int]) -> None:
    title = {"text": twin.difference, "font": {"size": 11}, "standoff": 4}
    drawing.update_xaxes(**layout.VALUES, nticks=ticks, title=title, **place)
    if twin.times:
        drawing.update_xaxes(type="log", **place)
    drawing.add_vline(x=twin.place(1), line={"color": layout.INK, "width": 1}, **place)
    drawing.update_yaxes(
        **{**layout.AXIS, **layout.NAMES},
        tickvals=list(range(len(names))),
        ticktext=names,
        range=[len(names) - 0.5, -0.5],
        showticklabels=place["col"] == 1,
        **place,
    )


def _legend(drawing: go.Figure, twin: Twin) -> None:
    entries = [(what, symbol, colour) for what, colour, symbol, _ in twin.kinds.values()]
    entries += [("published", "square", goodput.PUBLISHED)] if twin.published else []
    for name, symbol, colour in [*entries, ("A/A", "square", goodput.FLOOR)]:
        drawing.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 9, "color": colour},
            row=1,
            col=1,
        )
