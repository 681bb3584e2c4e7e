"""Figures and tables of "QUIC Steps": what its authors measured, from their raw data, next to what was measured
here.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison, floors
from quicbed.analysis.floors import Floor
from quicbed.analysis.place import Place
from quicbed.figures import goodput, handshake_figures, layout, output
from quicbed.figures.findings import Found
from quicbed.figures.output import Drawn, NotMeasured, Saved
from quicbed.figures.sheets import Sheet, leading
from quicbed.importers.names import TITLES
from quicbed.papers.steps import analysis
from quicbed.papers.steps.analysis import Published
from quicbed.store import details, runs
from quicbed.wire import pacing
from quicbed.wire.trains import TRAIN_GAP_NS

PAPER = "QUIC Steps"
PREFIX = "steps-"
"""What the names of all its figures and tables begin with."""
PUBLISHED, OWN = "published", "measured here"
DASHES = ("solid", "dash", "dot", "dashdot")
FACET_PX, ALONE_PX = 190, 250
"""Height of a panel among others, and of one in a line of its own."""
LEGEND_ENTRIES, LEGEND_PX = 6, 28
"""As many stand beside each other, in a line of this height."""
TITLE_PX = 22
"""Height of the titles of panels."""
CAPTION_WIDTH = 148  # characters
SHORT_QUEUE = 10
"""Packets that fit in the queue of which a sentence tells the predicted loss."""
NAMED = 5
"""As many cells are all named in a sentence."""


@dataclass(frozen=True)
class Quantity:
    """What lines show, and what is told of every cell."""

    name: str  # in `quicbed.papers.steps.analysis.CURVES`
    title: str
    axes: tuple[str, str]
    limit: int  # the largest value that is drawn, as in the paper
    caption: str
    told: str
    share: Callable[[Side], pl.DataFrame]  # by ``library`` and ``label``
    scale: float = 1.0


def _short_gaps(side: Side) -> pl.DataFrame:
    short = pl.col("count").filter(pl.col("value") <= TRAIN_GAP_NS).sum() / pl.col("count").sum()
    return side.curves.filter(pl.col("quantity") == pacing.GAPS).group_by("library", "label").agg(share=short)


GAPS = Quantity(
    pacing.GAPS,
    "Gaps between packets",
    ("Gap [ms]", "Gaps [CDF]"),
    2_000_000,
    "Share of gaps between packets of the server that are at most as long; gaps above 2 ms are not shown.",
    "gaps of at most 0.1 ms",
    _short_gaps,
    1e-6,
)
TRAINS = Quantity(
    pacing.TRAINS,
    "Packets by length of their train",
    ("Length of the packet train [packets]", "Packets [CDF]"),
    20,
    "Share of packets in trains that are at most as long; in a train, gaps are of at most 0.1 ms.",
    "packets in trains of at most five",
    lambda side: side.numbers.select("library", "label", share="packets_in_trains_to_5"),
)
LOSS = Quantity(
    analysis.LOSS,
    "Loss that trains predict in a short queue",
    ("Room in the queue [packets]", "Predicted loss [share]"),
    analysis.QUEUES[-1],
    "Share of packets beyond the room in the queue if each train meets it empty and arrives at once.",
    f"packets that a queue of {SHORT_QUEUE} packets drops",
    lambda side: side.curves.filter((pl.col("quantity") == analysis.LOSS) & (pl.col("value") == SHORT_QUEUE)),
)


@dataclass(frozen=True)
class Figure:
    """A quantity of an experiment, of the published data and of ours."""

    name: str
    number: str
    """In the paper; empty: it has none."""
    title: str
    experiment: str
    quantity: Quantity
    labels: tuple[str, ...] = ()
    """Settings in their order, a line each in the panel of a library; none: a line for each library."""


_CONTROLS = ("CUBIC", "Reno", "BBR", "BBR2")
_QUEUEING = ("default", "FQ", "no roll-back", "FQ, no roll-back", "BBR, FQ")
_RELEASING = ("no discipline", "FQ", "ETF", "ETF, LaunchTime")
_CIPHERS = ("AES-128-GCM", "ChaCha20-Poly1305", "NOOP")
_OFFLOAD = ("GSO", "no GSO", "paced GSO", "BBR, GSO", "BBR, no GSO", "BBR, paced GSO")
BARE = "floor: bare sender"
"""Name of the line of the packets that the floor of timers was measured with."""
NO_CURVE = pl.DataFrame(schema={"value": pl.Int64(), "share": pl.Float64()})
NO_FLOORS = pl.DataFrame(schema=details.FLOORS)
FLOOR_COLUMNS: Mapping[str, pl.DataType] = {
    **dict.fromkeys(["experiment", "campaign", "qdisc", "method", "schedule"], pl.String()),
    "intended_gap_ns": pl.Int64(),
    "packets": pl.Int64(),
    **dict.fromkeys(["sd_ns", "p99_ns", "sender_sd_ns", "misplaced"], pl.Float64()),
}
"""Columns of the table of floors (`quicbed.analysis.floors.Series`)."""
FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("steps-fig2", "Fig. 2", GAPS.title, analysis.BASELINE, GAPS),
        Figure("steps-fig3", "Fig. 3", TRAINS.title, analysis.BASELINE, TRAINS),
        *(
            Figure(f"steps-{name}{ending}", number, f"{quantity.title}, {what}", experiment, quantity, labels)
            for name, number, what, experiment, labels in (
                ("fig4", "Fig. 4", "by congestion control", analysis.CONGESTION_CONTROL, _CONTROLS),
                ("fig5", "Fig. 5", "with and without FQ", analysis.FQ, _QUEUEING),
                ("fig6", "Fig. 6", "with and without GSO", analysis.GSO, _OFFLOAD),
                ("etf", "ETF", "by what keeps to release times", analysis.ETF, _RELEASING),
                ("cipher", "", "by cipher", analysis.CIPHER, _CIPHERS),
            )
            for ending, quantity in (("", TRAINS), ("-gaps", GAPS))
        ),
        Figure("steps-loss", "", LOSS.title, analysis.BASELINE, LOSS),
    )
}


@dataclass(frozen=True)
class Side:
    """What is known of an experiment, of the published data or of ours."""

    name: str
    curves: pl.DataFrame
    """`quicbed.papers.steps.analysis.CURVES`."""
    numbers: pl.DataFrame
    """`quicbed.papers.steps.analysis.NUMBERS`."""
    origins: Sequence[str]
    campaign: pl.DataFrame | None = None
    """Of ours."""
    floor: Floor | None = None
    """Of ours, if it was measured."""
    bare: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Gaps and trains of the bare sender that it was measured with (`quicbed.analysis.floors.curves`)."""


def sides(
    published: Published,
    table: pl.DataFrame,
    paced: pl.DataFrame,
    experiment: str,
    measured_floors: pl.DataFrame = NO_FLOORS,
) -> list[Side]:
    """The published data on an experiment, then ours; only those of which there are runs.

    *table* holds our runs, *paced* their gaps and trains, *measured_floors* the floors of campaigns
    (`quicbed.store.details.Details`).
    """
    theirs, campaign = analysis.published_runs(published, experiment), analysis.own_campaign(table, experiment)
    used, identity = comparison.counted(campaign), next(iter(campaign["campaign"]), "")
    curves = analysis.published_curves(published, experiment), analysis.own_curves(campaign, paced)
    floor, bare = floors.of_campaign(measured_floors, identity), floors.curves(measured_floors, identity)
    found = [
        Side(PUBLISHED, curves[0], analysis.numbers(theirs), theirs["origin"].unique().sort().to_list()),
        Side(OWN, curves[1], analysis.numbers(used), used["origin"].to_list(), campaign, floor, bare),
    ]
    return [side for side in found if not side.numbers.is_empty()]


@dataclass(frozen=True)
class Beside:
    """Every figure that could be drawn, saved, by name, and the sides of every experiment."""

    saved: Mapping[str, Saved]
    sides: Mapping[str, Sequence[Side]]
    names: Mapping[str, str]

    def show(self, name: str) -> Saved | NotMeasured:
        """A figure, or how to measure what is in it."""
        return self.saved.get(name) or NotMeasured(FIGURES[name].experiment)

    def missing(self, experiment: str) -> NotMeasured | None:
        """How to measure ours of an experiment of which there is only published data."""
        measured = {side.name for side in self.sides[experiment]}
        return NotMeasured(experiment) if measured == {PUBLISHED} else None


def beside(
    published: Published,
    table: pl.DataFrame,
    paced: pl.DataFrame,
    here: Place,
    titles: Mapping[str, str],
    measured_floors: pl.DataFrame = NO_FLOORS,
) -> Beside:
    """Draw every figure and write it and its table; what an earlier call wrote is removed, see `sides`."""
    names = TITLES | dict(titles)
    experiments = dict.fromkeys(figure.experiment for figure in FIGURES.values())
    known = {experiment: sides(published, table, paced, experiment, measured_floors) for experiment in experiments}
    found = [cdf(figure, known[figure.experiment], names) for figure in FIGURES.values()]
    return Beside(output.save_all([one for one in found if one is not None], PREFIX, here), known, names)


# ---- figures ---------------------------------------------------------------------------------------------------------


def cdf(figure: Figure, known: Sequence[Side], names: Mapping[str, str]) -> Drawn | None:
    """A figure of the paper, with panels of the published data before ours; None where there is nothing to draw."""
    curves = {side.name: side.curves.filter(pl.col("quantity") == figure.quantity.name) for side in known}
    shown = [side for side in known if not curves[side.name].is_empty()]
    if not shown:
        return None
    panels: list[tuple[str, pl.DataFrame]] = []
    bare: list[pl.DataFrame] = []
    for side in shown:
        found = curves[side.name]
        if not figure.labels:
            panels.append((side.name, found))
        else:
            for library in sorted(set(found["library"]), key=lambda name: _rank(name, names)):
                one = found.filter(pl.col("library") == library)
                panels.append((f"{names.get(library, library)}, {side.name}", one))
        sent = side.bare.get(figure.quantity.name, NO_CURVE)
        bare += [sent] * (len(panels) - len(bare))
    by, order = _lines(figure, list(curves.values()), names)
    columns = min(len(panels), 2 if len(panels) % 3 and len(panels) < 5 else layout.COLUMNS)
    drawing, places = layout.panels(
        len(panels), columns, below=0.3, beside=0.06 if columns > 1 else 0, titles=[title for title, _ in panels]
    )
    met: set[str] = set()
    for (_, found), sent, place in zip(panels, bare, places, strict=True):
        if not sent.is_empty():  # under all others
            _line(drawing, figure.quantity, sent, BARE, -1, place, in_legend=BARE not in met)
            met.add(BARE)
        for number, line in enumerate(order):
            cells = found.filter(pl.col(by) == line)
            if not cells.is_empty():
                name = names.get(line, line) if by == "library" else line
                _line(drawing, figure.quantity, cells, name, number, place, in_legend=line not in met)
                met.add(line)
    _axes(drawing, figure.quantity, places, columns)
    campaigns = [side.campaign for side in shown if side.campaign is not None]
    source = f"{PAPER}, {figure.number}" if figure.number else f"beyond {PAPER}"
    # of long names fewer stand beside each other
    rows, legend_rows = places[-1]["row"], -(-len(met) // LEGEND_ENTRIES) + any(len(name) > 10 for name in met)
    told = f"{figure.quantity.caption} All runs of a cell together, gaps within runs only."
    told += _floors(shown) + goodput.disturbed(*campaigns)
    caption = textwrap.wrap(told, CAPTION_WIDTH)
    conditions = _conditions(figure.experiment, shown)
    inside = rows * (FACET_PX if rows > 1 else ALONE_PX)
    top, bottom = 38 + LEGEND_PX * legend_rows + TITLE_PX, 50 + 12 * len(caption)
    layout.finish(
        drawing,
        f"{figure.title} ({source})",
        conditions,
        "<br>".join(caption),
        campaigns,
        height=inside + top + 14 * len(conditions) + bottom,
        left=56,
        top=top,
        bottom=bottom,
        legend={"y": 1 + TITLE_PX / inside},
    )
    table = pl.concat([curves[side.name] for side in reversed(shown)])
    if campaigns:  # the figure is of their testbed
        table = table.with_columns(pl.when(pl.col("campaign").is_not_null()).then("testbed").alias("testbed"))
    origins = [origin for side in reversed(shown) for origin in side.origins]
    return Drawn(figure.name, drawing, table, origins, source, figure.name)


def _rank(library: str, names: Mapping[str, str]) -> tuple[bool, str]:
    """By name, TCP last."""
    return library == "tcp-tls", names.get(library, library).lower()


def _lines(figure: Figure, curves: Sequence[pl.DataFrame], names: Mapping[str, str]) -> tuple[str, list[str]]:
    """What a line of a panel stands for, and the lines of all panels, which look alike everywhere: those of the first
    side before the others.
    """
    if figure.labels:
        known = {label for one in curves for label in one["label"]}
        return "label", [label for label in figure.labels if label in known] + sorted(known - set(figure.labels))
    first, *_ = (set(one["library"]) for one in curves)
    libraries = {library for one in curves for library in one["library"]}
    return "library", sorted(libraries, key=lambda name: (name not in first, _rank(name, names)))


def _line(
    drawing: go.Figure,
    quantity: Quantity,
    cells: pl.DataFrame,
    name: str,
    number: int,
    place: Mapping[str, int],
    *,
    in_legend: bool,
) -> None:
    """The line of a cell, up to the end of the axis; that of a CDF begins at 0."""
    limit, scale = quantity.limit, quantity.scale
    inside = cells.filter(pl.col("value") <= limit)
    values, shares = inside["value"].to_list(), inside["share"].to_list()
    last = shares[-1] if shares else 0.0
    xs, ys = [*values, limit * 1.05], [*shares, last]
    if quantity is not LOSS:
        xs, ys = [values[0] if values else limit, *xs], [0.0, *ys]
    colours = handshake_figures.COLOURS
    is_bare = number < 0
    drawing.add_scatter(
        x=[x * scale for x in xs],
        y=ys,
        mode="lines",
        name=name,
        legendgroup=name,
        legendrank=1000 if is_bare else number + 1,
        showlegend=in_legend,
        line={
            # gaps are exact at the points, of which there are many; trains are whole numbers
            "shape": "hv" if quantity is TRAINS else "linear",
            "width": 4 if is_bare else 1.6,
            "color": goodput.FLOOR if is_bare else colours[number % len(colours)],
            "dash": "solid" if is_bare else DASHES[(number + number // len(colours)) % len(DASHES)],
            "simplify": False,
        },
        hovertemplate=f"%{{x:.3g}}: %{{y:.4f}}<extra>{name}</extra>",
        **place,
    )


def _axes(drawing: go.Figure, quantity: Quantity, places: Sequence[Mapping[str, int]], columns: int) -> None:
    (beneath, beside_), limit, whole = quantity.axes, quantity.limit * quantity.scale, quantity is not GAPS
    drawing.update_xaxes(
        **dict(layout.AXIS) | {"ticks": "outside", "ticklen": 3},
        range=[0.5, limit + 0.5] if whole else [-0.02 * limit, 1.02 * limit],
        tickvals=[1, *range(5, int(limit) + 1, 5)] if whole else None,
        title={"text": beneath, "font": {"size": 10.5}, "standoff": 4},
    )
    drawing.update_yaxes(**layout.VALUES, range=[0, 1.03], nticks=6)
    for place in places:
        if place["col"] == 1:
            drawing.update_yaxes(title={"text": beside_, "font": {"size": 10.5}, "standoff": 4}, **place)
        if len(places) - (place["row"] - 1) * columns - place["col"] >= columns:  # another panel is below
            drawing.update_xaxes(title=None, **place)


def _floors(shown: Sequence[Side]) -> str:
    """How ours are stamped, and the floor of the timers of our campaign, for a caption."""
    ours = next((side for side in shown if side.name == OWN), None)
    if ours is None:
        return ""
    text = " Our packets are stamped by the host that sends them, the published ones by another."
    if (floor := ours.floor) is None:
        unknown = floors.NOT_MEASURED[0].upper() + floors.NOT_MEASURED[1:]
        return f"{text} {unknown}, so our gaps and trains cannot be interpreted."
    return (
        f"{text} Floor of the timers here: gaps of a bare sender deviate from the intended ones by "
        f"{floor.gap_ns / 1e3:.1f} µs (standard deviation; 99 % by at most {floor.p99_ns / 1e3:.1f} µs), and "
        f"{100 * floor.misplaced:.2f} % of its packets are not in the trains that they were sent in. "
        "Smaller differences mean nothing."
    )


def _conditions(experiment: str, shown: Sequence[Side]) -> list[str]:
    lines = []
    for side in shown:
        if side.campaign is None:
            lines.append(f"published: 40 Mbit/s, 100 MiB, {int(side.curves['runs'].max() or 0)} repetitions")  # type: ignore[arg-type]
        else:
            lines.append(f"measured here: {goodput.conditions(side.campaign)}")
    if all(side.campaign is None for side in shown):
        lines.append(f"measured here: nothing yet, see experiment {experiment}")
    return lines


def floor_table(known: Mapping[str, Sequence[Side]], here: Place) -> Sheet | None:
    """What the bare sender's packets missed their times by, in every campaign of ours; also written. None without."""
    rows: list[dict[str, Any]] = []
    for experiment, found in known.items():
        for side in found:
            if side.floor is not None and side.campaign is not None:
                named = {"experiment": experiment, "campaign": side.campaign["campaign"][0]}
                rows += [named | dataclasses.asdict(one) for one in side.floor.series]
    if not rows:
        return None
    comparison.write_figure_table(pl.DataFrame(rows, schema=FLOOR_COLUMNS, orient="row"), f"{PREFIX}floor", here.tables)
    headers = ["experiment", "discipline", "released by", "packets sent", "deviation [µs]", "99 % within [µs]"]
    headers += ["of the sender itself [µs]", "in other trains [%]"]
    shown = [
        [
            row["experiment"],
            row["qdisc"] or "default",
            "program" if row["method"] == "sleep" else "kernel",
            "evenly" if row["schedule"] == "even" else "in trains",
            f"{row['sd_ns'] / 1e3:.1f}",
            f"{row['p99_ns'] / 1e3:.1f}",
            None if row["sender_sd_ns"] is None else f"{row['sender_sd_ns'] / 1e3:.1f}",
            f"{100 * row['misplaced']:.2f}",
        ]
        for row in rows
    ]
    notes = ["Deviation: standard deviation of captured gap minus intended gap; of the sender itself when it sends."]
    return Sheet(headers, shown, frozenset(range(4, 8)), notes)


# ---- tables and findings ---------------------------------------------------------------------------------------------


def table(name: str, experiment: str, known: Sequence[Side], names: Mapping[str, str], here: Place) -> Sheet | None:
    """Table 1 or 2: drops and goodput of every cell, published and measured; also written. None without runs."""
    if not known:
        return None
    numbers = pl.concat([side.numbers for side in reversed(known)])
    comparison.write_figure_table(numbers, name, here.tables)
    by_cell: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for side in known:
        for row in side.numbers.to_dicts():
            by_cell.setdefault((row["library"], row["label"]), {})[side.name] = row
    order = [label for figure in FIGURES.values() if figure.experiment == experiment for label in figure.labels]
    keys = sorted(
        by_cell, key=lambda key: (_rank(key[0], names), order.index(key[1]) if key[1] in order else 99, key[1])
    )
    columns = (("dropped_packets", 1.0, 2), ("goodput_mbps", 1.0, 2), ("packets_in_trains_to_5", 100.0, 2))
    headers = ["library", "setting"]
    for who in (PUBLISHED, OWN):
        headers += [f"{who}: runs", "dropped packets", "goodput [Mbit/s]", "in trains to 5 [%]"]
    rows = [
        [
            names.get(library, library),
            label,
            *(text for who in (PUBLISHED, OWN) for text in _cells(by_cell[library, label].get(who), columns)),
        ]
        for library, label in keys
    ]
    selected = [
        runs.selection(ours["campaign"], library=key[0], label=key[1]) if (ours := by_cell[key].get(OWN)) else None
        for key in keys
    ]
    notes = ["Means with their 95 % interval over runs."]
    precise = [_interval(by_cell[key].get(OWN, {}), "pacing_precision_us", 1.0, 1) for key in keys]
    if any(precise):
        headers.append("pacing precision [µs]")
        rows = [[*row, text] for row, text in zip(rows, precise, strict=True)]
        notes.append(
            "Pacing precision: standard deviation of captured gap minus the library's intended gap, if it reports it."
        )
    return Sheet(headers, rows, frozenset(range(2, len(headers))), notes, leading(selected, range(6, len(headers))))


def _cells(row: Mapping[str, Any] | None, columns: Sequence[tuple[str, float, int]]) -> list[str | None]:
    """Runs, and the means of a cell with their intervals."""
    if row is None:
        return [None] * (1 + len(columns))
    return [str(row["goodput_mbps_n"]), *(_interval(row, *column) for column in columns)]


def _interval(row: Mapping[str, Any], metric: str, scale: float, digits: int) -> str | None:
    value, low, high = (row.get(f"{metric}{end}") for end in ("", "_low", "_high"))
    if not isinstance(value, float):
        return None
    text = f"{value * scale:.{digits}f}"
    if isinstance(low, float) and isinstance(high, float):
        text += f" ({low * scale:.{digits}f} to {high * scale:.{digits}f})"
    return text


def found(quantity: Quantity, known: Sequence[Side], names: Mapping[str, str]) -> Found | None:
    """What a quantity tells of each cell."""
    texts = {_who(side): _said(quantity.share(side).to_dicts(), names) for side in known}
    told = [f"{who}: share of {quantity.told}: {text}." for who, text in texts.items() if text]
    return Found(told) if told else None


def found_drops(known: Sequence[Side], names: Mapping[str, str]) -> Found | None:
    """The cells with the fewest and the most dropped packets."""
    told = []
    for side in known:
        cells = side.numbers.drop_nulls("dropped_packets").sort("dropped_packets", "library", "label").to_dicts()
        if cells:
            ends = [
                f"{cell['dropped_packets']:.2f} packets dropped at {cell['goodput_mbps']:.2f} Mbit/s"
                f" ({_cell(cell, names)})"
                for cell in (cells[0], cells[-1])[: len(cells)]
            ]
            told.append(f"{_who(side)}: {'from ' if len(ends) > 1 else ''}{' to '.join(ends)}.")
    return Found(told) if told else None


def _who(side: Side) -> str:
    return "Published runs" if side.name == PUBLISHED else "Measured here"


def _cell(cell: Mapping[str, Any], names: Mapping[str, str]) -> str:
    library = names.get(cell["library"], cell["library"])
    return library if cell["label"] == "baseline" else f"{library}, {cell['label']}"


def _said(cells: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Shares in per cent, the largest first; of many the largest, the middle and the smallest."""
    known = [(float(cell["share"]), _cell(cell, names)) for cell in cells if cell["share"] is not None]
    ordered = [f"{100 * value:.2f} % ({name})" for value, name in sorted(known, key=lambda one: (-one[0], one[1]))]
    if len(ordered) <= NAMED:
        return "; ".join(ordered)
    return f"from {ordered[0]} to {ordered[-1]}; {ordered[len(ordered) // 2]} is in the middle of {len(ordered)}"
