"""Figures of goodput: drawn with plotly from a figure's table.

Box plots are those of the papers: line = median, marker = mean, box = lower to upper quartile;
whiskers reach from the smallest to the largest run that counts, and every one of these runs is a
faint point. The lower panel shows the difference to the baseline, the geometric mean of ratios
paired within blocks with its 95 % interval (`quicbed.analysis.comparison`), over the noise floor: the
interval of the A/A arm, in which the baseline is compared with itself.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison, published
from quicbed.config.model import Project
from quicbed.figures import layout
from quicbed.figures.layout import INK
from quicbed.figures.output import Drawn
from quicbed.store import runs

READS = ("config/libraries/*.yaml",)

COLUMN_GROUPS, COLUMN_ROW_PX = 2, 190
"""Libraries beside each other, and the height of a line of them, where a figure fits one column."""
FLOOR = "#d9d9d9"
PUBLISHED, PUBLISHED_EDGE = "rgba(0, 114, 178, 0.16)", layout.BLUE
"""What a paper states, behind what was measured."""

AEADS: dict[str, tuple[str, str, str, str]] = {
    # key: name, short name, colour (Okabe and Ito: told apart with any colour vision), mark (told apart without colour)
    "aes-128-gcm": ("AES-128-GCM", "AES-128", layout.BLUE, "circle"),
    "aes-256-gcm": ("AES-256-GCM", "AES-256", layout.SKY, "triangle-down"),
    "chacha20-poly1305": ("ChaCha20-Poly1305", "ChaCha20", layout.ORANGE, "triangle-up"),
    "noop": ("NOOP", "NOOP", layout.GREEN, "diamond"),
    "noenc": ("NOENC", "NOENC", layout.VERMILION, "cross"),
    "aes-software": ("AES in software", "AES soft.", layout.PINK, "pentagon"),
}
ROW_GROUPS, PAIRED_GROUPS = 6, 5
"""Libraries beside each other, and where each AEAD has a pair of boxes; more of them go below."""
ROW_PX = 225
LEGEND_ENTRIES, COLUMN_ENTRIES = 5, 3
"""As many stand beside each other, and in a column."""
BY_AEAD = ("aes-128-gcm", "aes-256-gcm", "chacha20-poly1305", "noop", "noenc")
BY_INSTRUCTIONS = ("aes-software", "aes-128-gcm", "chacha20-poly1305")
BY_MASK = ("aes-128-gcm", "chacha20-poly1305", "noop")
UNLIKE_ITSELF = "\N{SECTION SIGN}"
"""Behind a library whose A/A interval excludes 1, in figures and tables."""
UNLIKE_ITSELF_MEANS = (
    f"{UNLIKE_ITSELF} The A/A interval excludes 1: equal cells differ here, and differences of this size are no result."
)
UNPROVEN = "*"
"""Behind the name of a library that cannot report whether it uses AES instructions."""


@dataclass(frozen=True)
class Slot:
    """Where one cell is drawn on the x axis, and how."""

    x: float
    cell: dict[str, Any] | None  # row of the figure's table; None when it was not measured
    aead: str
    hollow: bool = False


@dataclass(frozen=True)
class Group:
    """The slots of one library."""

    title: str
    slots: list[Slot]
    low: float  # extent on the x axis
    high: float
    floor: tuple[float, float, float] | None  # ratio, low and high of the A/A arm


Slots = Callable[[list[dict[str, Any]]], list[Slot]]
"""Places the cells of a library from 0 on."""


def goodput_by_aead(
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    titles: Mapping[str, str] | None = None,
    of_paper: Collection[str] = (),
) -> Drawn:
    """A Quantum of QUIC, Fig. 3: goodput of each library with each AEAD.

    NOOP is the cell without QUIC header protection, as in the paper. Of the libraries *of_paper* there is a version for
    a column.
    """

    def slots(cells: list[dict[str, Any]]) -> list[Slot]:
        found = [(aead, _find(cells, aead, aead in ("noop", "noenc"))) for aead in BY_AEAD]
        # what one library has and all others have not is no gap in each of them
        drawn = [(aead, cell) for aead, cell in found if aead != "noenc" or (cell and not cell["unsupported"])]
        return [Slot(position, cell, aead) for position, (aead, cell) in enumerate(drawn)]

    return _drawn(
        Drawn("goodput-by-aead", go.Figure(), table, [], "A Quantum of QUIC, Fig. 3"),
        ("Goodput by AEAD", "Difference to<br>AES-128-GCM [%]"),
        campaign,
        (slots, len(BY_AEAD)),
        titles or {},
        of_paper,
    )


def aes_instructions(
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    titles: Mapping[str, str] | None = None,
    of_paper: Collection[str] = (),
) -> Drawn:
    """QUIC on the Highway, Fig. 7: AES with and without the processor's AES instructions, and ChaCha20.

    Of the libraries *of_paper* there is a version for a column.
    """

    def slots(cells: list[dict[str, Any]]) -> list[Slot]:
        return [Slot(position, _find(cells, aead, False), aead) for position, aead in enumerate(BY_INSTRUCTIONS)]

    return _drawn(
        Drawn("aes-instructions", go.Figure(), table, [], "QUIC on the Highway, Fig. 7"),
        ("Goodput with and without AES instructions", "Difference to AES<br>with them [%]"),
        campaign,
        (slots, len(BY_INSTRUCTIONS)),
        titles or {},
        of_paper,
    )


def marked(table: pl.DataFrame, titles: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Names of libraries, those whose A/A interval excludes 1 with a mark, and what it means as a line of a caption."""
    unlike = [cell["client_library"] for cell in table.to_dicts() if comparison.unlike_itself(cell)]
    names = {name: f"{titles.get(name, name)} {UNLIKE_ITSELF}" for name in unlike}
    return dict(titles) | names, f"<br>{UNLIKE_ITSELF_MEANS}" if unlike else ""


def within_builds(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """*table* in which every cell without header protection is compared with the one that differs in nothing else.

    That one is measured with the same builds, so that the ratio is free of what their patch costs. Where it was not
    measured there is no ratio.
    """
    keys = ("client_library", "server_library", "client_build", "server_build", "cipher", "aead")
    with_protection = table.filter((pl.col("arm") != "aa") & pl.col("header_protection"))
    by_key = {tuple(cell[key] for key in keys): cell["cell"] for cell in with_protection.to_dicts()}
    without = table.filter((pl.col("arm") == "main") & ~pl.col("header_protection"))
    baselines = {cell["cell"]: by_key.get(tuple(cell[key] for key in keys)) for cell in without.to_dicts()}
    return comparison.compared(campaign, table, baselines)


def header_protection(
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    titles: Mapping[str, str] | None = None,
    of_paper: Collection[str] = (),
) -> Drawn:
    """A Quantum of QUIC, Fig. 4: goodput with and without QUIC header protection, both with one build.

    *table* is that of `within_builds`. Of the libraries *of_paper* there is a version for a column.
    """
    by_id = {cell["cell"]: cell for cell in table.to_dicts()}

    def slots(cells: list[dict[str, Any]]) -> list[Slot]:
        found = []
        for position, aead in enumerate(BY_MASK):
            without = _find(cells, aead, True)
            compared_with = by_id.get(without["baseline"]) if without else None
            found += [Slot(2.5 * position, compared_with, aead), Slot(2.5 * position + 1, without, aead, hollow=True)]
        return found

    return _drawn(
        Drawn("header-protection", go.Figure(), table, [], "A Quantum of QUIC, Fig. 4"),
        ("Goodput with and without header protection", "Gain without header<br>protection [%]"),
        campaign,
        (slots, 2.5 * len(BY_MASK)),
        titles or {},
        of_paper,
    )


def _drawn(
    named: Drawn,
    texts: tuple[str, str],
    campaign: pl.DataFrame,
    placed: tuple[Slots, float],
    titles: Mapping[str, str],
    of_paper: Collection[str],
) -> Drawn:
    """*named* with its figure, the version for a column, and the runs behind both.

    *texts* are the title and that of the axis of differences; *placed* places the cells of a library, and says how wide
    they are.
    """
    table, (slots, width) = named.table, placed

    def groups(pairs: Sequence[tuple[str, str]]) -> list[Group]:
        found = []
        for number, pair in enumerate(pairs):
            cells = _cells(table, pair)
            told = any(cell["unproven"] for cell in cells)
            title = comparison.pair_title(pair, titles) + (UNPROVEN if told else "")
            moved = [replace(slot, x=slot.x + number * (width + 0.7)) for slot in slots(cells)]
            found.append(_group(title, moved, cells))
        return found

    pairs = _pairs(table)
    every, selected = groups(pairs), groups([pair for pair in pairs if set(pair) <= set(of_paper)])
    shown = [slot.cell["cell"] for group in every for slot in group.slots if slot.cell]
    return replace(
        named,
        figure=_draw(*texts, campaign, table, every, titles),
        column=_draw(*texts, campaign, table, selected, titles, column=True) if selected else None,
        origins=comparison.used_origins(campaign, shown + _floor_cells(table)),
    )


def library_titles(root: Path, table: pl.DataFrame) -> dict[str, str]:
    """Names in figures of the libraries in config/libraries/ of the repository at *root*, and of those of runs."""
    return comparison.titles(Project(root).libraries, table)


def _pairs(table: pl.DataFrame) -> list[tuple[str, str]]:
    """Client and server library, QUIC before TCP."""
    main = table.filter(pl.col("arm") == "main")
    keys = main.group_by("client_library", "server_library").agg(tcp=pl.col("header_protection").is_null().all())
    ordered = keys.sort("tcp", "client_library", "server_library")
    return [(client, server) for client, server, _ in ordered.rows()]


def _cells(table: pl.DataFrame, pair: tuple[str, str]) -> list[dict[str, Any]]:
    client, server = pair
    return table.filter((pl.col("client_library") == client) & (pl.col("server_library") == server)).to_dicts()


def _find(cells: list[dict[str, Any]], aead: str, without_hp: bool) -> dict[str, Any] | None:
    for cell in cells:
        kind = cell["aead"] if cell["aead"] in ("noop", "noenc") else cell["cipher"]
        if cell["aes_hardware"] is False:
            kind = "aes-software"
        hp = cell["header_protection"]
        if cell["arm"] == "main" and kind == aead and (hp is None or hp != without_hp):
            return cell
    return None


def _group(title: str, slots: list[Slot], cells: list[dict[str, Any]]) -> Group:
    if any(map(comparison.unlike_itself, cells)):
        title += f" {UNLIKE_ITSELF}"
    floor = next(((c["ratio"], c["ratio_low"], c["ratio_high"]) for c in cells if c["arm"] == "aa"), None)
    if floor and None in floor:
        floor = None
    return Group(title, slots, slots[0].x - 0.6, slots[-1].x + 0.6, floor)


def _floor_cells(table: pl.DataFrame) -> list[str]:
    return table.filter(pl.col("arm") == "aa")["cell"].to_list()


def _draw(
    title: str,
    difference: str,
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    groups: list[Group],
    titles: Mapping[str, str],
    *,
    column: bool = False,
) -> go.Figure:
    """Two panels, goodput above differences, for every few libraries; all with the same axes."""
    paired = any(slot.hollow for group in groups for slot in group.slots)
    row_px = COLUMN_ROW_PX if column else ROW_PX
    most = COLUMN_GROUPS if column else PAIRED_GROUPS if paired else ROW_GROUPS
    beside = -(-len(groups) // max(1, -(-len(groups) // most)))  # as many in each line
    lines = [groups[first : first + beside] for first in range(0, len(groups), beside)]
    caption = _caption(table, campaign, paired)
    # names of libraries, and the caption
    bottom = (48 if paired else 34) + 13 * (1 + caption.count("<br>")) if not column else 34 if paired else 20
    figure = make_subplots(rows=2 * len(lines), cols=1)
    entries = _legend(figure, groups, table, paired, column)
    top = 8 + 15 * -(-entries // COLUMN_ENTRIES) if column else 40 + 20 * -(-entries // LEGEND_ENTRIES)
    inside = len(lines) * row_px - 4
    # in pixels from the bottom: below each line of libraries stand their names
    gap, between = (10.0, 34.0 if paired else 22.0) if column else (12.0, 46.0 if paired else 30.0)
    each = (inside - between * (len(lines) - 1)) / len(lines)
    ranges = _goodput_range(groups), _difference_range(groups, paired)
    for number, line in enumerate(lines):
        lower = inside - each * (number + 1) - between * number
        split = lower + 0.42 * (each - gap)
        row = 2 * number + 1
        figure.update_yaxes(domain=[(split + gap) / inside, min(1.0, (lower + each) / inside)], row=row, col=1)
        figure.update_yaxes(domain=[max(0.0, lower / inside), split / inside], row=row + 1, col=1)
        _floor_band(figure, line, row + 1)
        _published(figure, line, table, paired, row + 1)
        _points(figure, campaign, line, row)
        _boxes(figure, line, row)
        _differences(figure, line, paired, row + 1)
        _missing(figure, line, row)
        _axes(figure, difference, line, paired, row, _extent(lines), ranges, column)
    layout.finish(
        figure,
        title,
        conditions(campaign),
        caption,
        [campaign],
        height=inside + bottom + top + (0 if column else 14),
        left=56 if column else 66,  # names of two lines
        top=top,
        bottom=bottom,
        size=9 if column else 10,
        titles=titles,
        column=column,
    )
    figure.update_layout(boxmode="overlay")
    return figure


def _extent(lines: list[list[Group]]) -> float:
    """Width in units of the x axis that each line is drawn with, so that boxes are equally wide everywhere."""
    return max(line[-1].high - line[0].low for line in lines) + 0.4


def _rgba(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _points(figure: go.Figure, campaign: pl.DataFrame, groups: list[Group], row: int) -> None:
    used = comparison.counted(campaign)
    for group in groups:
        for slot in group.slots:
            if slot.cell is None:
                continue
            points = used.filter(pl.col("cell") == slot.cell["cell"])
            spread = [slot.x + 0.36 * (2 * _jitter(o) - 1) for o in points["origin"]]
            figure.add_scatter(
                x=spread,
                y=(points["goodput_mbps"] / 1000).to_list(),
                mode="markers",
                marker={
                    "color": AEADS[slot.aead][2],
                    "size": 2.5,
                    "opacity": 0.35,
                    "symbol": ["x" if bad else "circle" for bad in points["contaminated"]],
                },
                customdata=points.select("origin", "block").rows(),
                hovertemplate="%{y:.3f} Gbit/s, block %{customdata[1]}<br>%{customdata[0]}<extra></extra>",
                showlegend=False,
                row=row,
                col=1,
            )


def _jitter(text: str) -> float:
    """A number in [0, 1) that only depends on *text*, so that figures are reproducible."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _boxes(figure: go.Figure, groups: list[Group], row: int) -> None:
    slots = [slot for group in groups for slot in group.slots]
    for aead, (name, _, colour, symbol) in AEADS.items():
        for hollow in (False, True):
            shown = [
                (slot.x, slot.cell)
                for slot in slots
                if slot.aead == aead and slot.hollow == hollow and slot.cell and slot.cell["n"]
            ]
            if not shown:
                continue

            def gbit(key: str, shown: Any = shown) -> list[float]:
                return [cell[key] / 1000 for _, cell in shown]

            xs = [x for x, _ in shown]
            figure.add_box(
                x=xs,
                q1=gbit("q1"),
                median=gbit("median"),
                q3=gbit("q3"),
                lowerfence=gbit("min"),
                upperfence=gbit("max"),
                width=0.62,
                name=name,
                fillcolor="white" if hollow else _rgba(colour, 0.45),
                line={"color": colour, "width": 1.2},
                whiskerwidth=0.5,
                hoverinfo="skip",
                showlegend=False,
                row=row,
                col=1,
            )
            figure.add_scatter(
                x=xs,
                y=gbit("mean"),
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 5,
                    "color": "white",
                    "line": {"color": INK, "width": 1},
                },
                hovertext=[_summary(cell) for _, cell in shown],
                hoverinfo="text",
                showlegend=False,
                row=row,
                col=1,
            )


def _summary(cell: dict[str, Any]) -> str:
    lines = [
        f"<b>{html.escape(cell['client_library'])}, {html.escape(cell['label'])}</b>",
        f"mean {cell['mean'] / 1000:.3f}, median {cell['median'] / 1000:.3f} Gbit/s",
        f"quartiles {cell['q1'] / 1000:.3f} to {cell['q3'] / 1000:.3f}",
        f"n = {cell['n']}, failed {cell['failed']}, contaminated {cell['contaminated']}",
        f"cell {cell['cell']}, build {html.escape(cell['client_build'])}",
    ]
    return "<br>".join(lines)


def signed(percent: float) -> str:
    """A difference in per cent with its sign; what rounds to zero has none."""
    rounded = round(percent, 1)
    return "0.0" if rounded == 0 else f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}")


def _brief(percent: float) -> str:
    """As `signed`, from ten on without a decimal: there is no room for one, and tables have it."""
    return signed(percent) if abs(percent) < 9.95 else f"{percent:+.0f}".replace("-", "\N{MINUS SIGN}")


def percent(ratio: float) -> float:
    """A ratio as a difference in per cent."""
    return 100 * (ratio - 1)


def _differences(figure: go.Figure, groups: list[Group], paired: bool, row: int) -> None:
    for group in groups:
        for slot in group.slots:
            cell = slot.cell
            if cell is None or cell["ratio"] is None or (paired and not slot.hollow):
                continue
            (_, _, colour, symbol), up = AEADS[slot.aead], cell["ratio"] >= 1
            figure.add_scatter(
                x=[slot.x - 0.5 if paired else slot.x],
                y=[percent(cell["ratio"])],
                error_y=_error_bar(cell["ratio"], cell["ratio_low"], cell["ratio_high"], colour),
                mode="markers",
                marker={"color": colour, "size": 5.5, "symbol": symbol},
                hovertext=f"<b>{html.escape(cell['label'])} / "
                f"{html.escape(cell['baseline_label'] or '?')}</b><br>"
                + _interval_text(cell["ratio"], cell["ratio_low"], cell["ratio_high"])
                + f"<br>{cell['ratio_n']} paired blocks",
                hoverinfo="text",
                showlegend=False,
                row=row,
                col=1,
            )
            figure.add_annotation(
                x=slot.x - 0.5 if paired else slot.x,
                y=percent((cell["ratio_high"] if up else cell["ratio_low"]) or cell["ratio"]),
                text=_brief(percent(cell["ratio"])),
                # within the column of the cell, beyond its interval
                yanchor="bottom" if up else "top",
                showarrow=False,
                font={"size": 8, "color": INK},
                row=row,
                col=1,
            )


def _error_bar(ratio: float, low: float | None, high: float | None, colour: str) -> dict[str, Any]:
    if low is None or high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [100 * (high - ratio)],
        "arrayminus": [100 * (ratio - low)],
        "color": colour,
        "thickness": 1.4,
        "width": 3,
    }


def _interval_text(ratio: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"ratio {ratio:.4f}, one block: no interval"
    return f"ratio {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}"


def _floor_band(figure: go.Figure, groups: list[Group], row: int) -> None:
    for group in groups:
        if group.floor is None:
            continue
        ratio, low, high = group.floor
        figure.add_shape(
            type="rect",
            x0=group.low,
            x1=group.high,
            y0=percent(low),
            y1=percent(high),
            fillcolor=FLOOR,
            line_width=0,
            layer="below",
            row=row,
            col=1,
        )
        figure.add_scatter(
            x=[group.low, group.high],
            y=[percent(ratio)] * 2,
            mode="lines",
            line={"color": FLOOR, "width": 1},
            hovertext=f"A/A noise floor: {_interval_text(ratio, low, high)}",
            hoverinfo="text",
            showlegend=False,
            row=row,
            col=1,
        )


def _stated(table: pl.DataFrame) -> Mapping[str, tuple[float, float]]:
    """The ratios that a paper states for what is drawn, by label."""
    return published.RATIOS.get(str(table["experiment"][0]), {})


def _published(figure: go.Figure, groups: list[Group], table: pl.DataFrame, paired: bool, row: int) -> None:
    """What a paper states, behind each difference."""
    stated = _stated(table)
    shapes = []
    for slot in (slot for group in groups for slot in group.slots):
        if slot.cell is None or slot.cell["label"] not in stated or (paired and not slot.hollow):
            continue
        x = slot.x - 0.5 if paired else slot.x
        low, high = map(percent, stated[slot.cell["label"]])
        edge = {"color": PUBLISHED_EDGE, "width": 1}
        shapes.append(
            {
                "type": "rect",
                "x0": x - 0.42,
                "x1": x + 0.42,
                "y0": low,
                "y1": high,
                "fillcolor": PUBLISHED,
                "line": edge,
                "layer": "below",
            }
        )
    layout.add(figure, "shapes", shapes, {"row": row, "col": 1})


def _missing(figure: go.Figure, groups: list[Group], row: int) -> None:
    """Say in place why a cell has no box."""
    for group in groups:
        for slot in group.slots:
            cell = slot.cell
            if not cell or not cell["n"]:
                layout.in_place(figure, slot.x, *layout.absent(cell), {"row": row, "col": 1}, size=10)


def conditions(campaign: pl.DataFrame, *, mtu: bool = True) -> str:
    """What the runs were made under, for titles: testbed, link, scale, size; without *mtu* where that is a factor."""
    run = campaign.row(0, named=True)
    rates = campaign["rate_mbit"].unique()
    rate = rates[0] if len(rates) == 1 else None  # otherwise it is a factor
    if run["testbed_kind"] == "local" and not rates.drop_nulls().len() and run["workload"] == "bulk":
        where = "CPU-bound, local"
    elif rate is not None:
        where = f"{run['testbed_kind']}, {rate:g} Mbit/s"
    else:
        where = run["testbed_kind"]
    named = [where] if where != run["testbed"] else []
    parts = [*named, f"testbed {run['testbed']}", f"scale {run['scale']}"]
    if run["workload"] == "handshake":
        parts.append("fresh connections")
    elif run["workload"] == "page":
        parts.append("a page per run")
    elif run["workload"] == "video":
        parts.append("a video per run")
    elif sizes := sorted(set(campaign["workload_bytes"].drop_nulls()) - {0}):
        # a pilot may have found another size for each pair of libraries
        parts.append(" to ".join(dict.fromkeys(map(size_text, (sizes[0], sizes[-1])))) + " per run")
    if mtu and run["mtu"] and campaign["mtu"].n_unique() == 1:
        parts.append(f"MTU {run['mtu']}")
    if modes := sorted(campaign["link_mode"].drop_nulls().unique()):
        parts.append(f"{' and '.join(modes)} mode")
    made = campaign["client_march"]
    if levels := sorted(made.drop_nulls().unique()):
        parts.append(f"march {', '.join(levels)}" + (" in part" if made.null_count() else ""))
    return " · ".join(parts)


def size_text(count: int) -> str:
    """Bytes for people, in the largest unit that there is one of."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def disturbed(*campaigns: pl.DataFrame) -> str:
    """A sentence on runs that count although contaminated, as no attempt in their block was not; empty if none is."""
    counting = [comparison.counted(campaign) for campaign in campaigns]
    contaminated = sum(int(runs["contaminated"].sum()) for runs in counting)
    return f" {contaminated} of {sum(map(len, counting))} runs count although contaminated." if contaminated else ""


def _caption(table: pl.DataFrame, campaign: pl.DataFrame, paired: bool) -> str:
    blocks, floor = campaign["block"].drop_nulls().n_unique(), _floor_name(table)
    failed, contaminated, repeated = (int(table[name].sum()) for name in ("failed", "contaminated", "repeated"))
    builds = dict(table.select("cell", "client_build").rows())
    across = any(
        row["ratio"] is not None and row["arm"] == "main" and builds.get(row["baseline"]) != row["client_build"]
        for row in table.to_dicts()
    )
    return (
        f"{blocks} block{'s' if blocks != 1 else ''}; {failed} failed, {repeated} contaminated and"
        f" repeated, {contaminated} contaminated and shown. Line: median; mark: mean; box:"
        " quartiles;<br>whiskers: smallest and largest run. Below: geometric mean of ratios paired"
        " within blocks, 95 % interval."
        + (f"<br>Grey: {floor}, the baseline against itself; other cells have no A/A arm." if floor else "")
        + ("<br>Blue: the range of goodput ratios that the paper states for its libraries." if _stated(table) else "")
        + (
            f"<br>{UNPROVEN} cannot report whether it uses AES instructions"
            if table["unproven"].is_not_null().any()
            else ""
        )
        + (
            "<br>NOOP and NOENC use another build than the ciphers; their difference includes its own cost."
            if across and not paired
            else ""
        )
        + ("<br>Both boxes of a pair use one build, which can switch header protection off." if paired else "")
        + (f"<br>{UNLIKE_ITSELF_MEANS}" if any(map(comparison.unlike_itself, table.to_dicts())) else "")
    )


def _axes(
    figure: go.Figure,
    difference: str,
    line: list[Group],
    paired: bool,
    row: int,
    extent: float,
    ranges: tuple[list[float], list[float]],
    column: bool,
) -> None:
    """Axes of one line of libraries, and their names; *ranges* are those of goodput and of differences."""
    small, name, names_px = (9, 10, 14) if column else (10, 11, 17)
    axis = {
        **layout.AXIS,
        "linewidth": 1,
        "range": [line[0].low - 0.15, line[0].low - 0.15 + extent],
        "fixedrange": True,
    }
    vertical = {
        **layout.VALUES,
        "ticks": "outside",
        "ticklen": 4,
        "title_standoff": 6,
        "title_font": {"size": small},
        "nticks": 6,
    }
    for one in (row, row + 1):
        figure.update_xaxes(**axis, showticklabels=False, row=one, col=1)
    figure.update_yaxes(**vertical, title_text="Goodput [Gbit/s]", range=ranges[0], row=row, col=1)
    figure.update_yaxes(**vertical, title_text=difference, range=ranges[1], row=row + 1, col=1)
    figure.add_hline(y=0, line={"color": INK, "width": 1}, row=row + 1, col=1)
    if paired:
        first = [group.slots[i] for group in line for i in range(0, len(group.slots), 2)]
        figure.update_xaxes(
            showticklabels=True,
            tickvals=[slot.x + 0.5 for slot in first],
            ticktext=[AEADS[slot.aead][1] for slot in first],
            tickangle=0,
            tickfont={"size": 8 if column or extent >= 24 else 10},
            row=row + 1,
            col=1,
        )
    for group in line:
        figure.add_annotation(
            x=(group.low + group.high) / 2,
            y=0,
            xref=f"x{row + 1}",
            yref=f"y{row + 1} domain",
            yanchor="top",
            yshift=-names_px if paired else -5,
            text=f"<b>{html.escape(group.title)}</b>",
            showarrow=False,
            font={"size": name},
        )


def _floor_name(table: pl.DataFrame) -> str:
    """What the grey bands are the A/A of; empty without one."""
    known = table.filter((pl.col("arm") == "aa") & pl.col("ratio_low").is_not_null())["baseline_label"].drop_nulls()
    return f"A/A of {html.escape(' or '.join(known.unique().sort()))}" if len(known) else ""


def _legend(figure: go.Figure, groups: list[Group], table: pl.DataFrame, paired: bool, column: bool) -> int:
    """One entry for each kind of box that is drawn; returns how many."""
    drawn = {slot.aead for group in groups for slot in group.slots if slot.cell and slot.cell["n"]}
    entries = (
        [("with header protection", "#9a9a9a", INK, "square"), ("without", "white", INK, "square")] if paired else []
    )
    if not paired:
        known = [names for aead, names in AEADS.items() if aead in drawn]
        entries = [(short if column else name, _rgba(edge, 0.45), edge, mark) for name, short, edge, mark in known]
    if floor := _floor_name(table):
        entries.append(("A/A" if column else floor, FLOOR, FLOOR, "square"))
    if _stated(table):
        entries.append(("published", PUBLISHED, PUBLISHED_EDGE, "square"))
    for name, fill, edge, symbol in entries:
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 10, "color": fill, "line": {"color": edge, "width": 1.2}},
            row=1,
            col=1,
        )
    return len(entries)


def _goodput_range(groups: list[Group]) -> list[float]:
    values = [slot.cell["max"] for group in groups for slot in group.slots if slot.cell and slot.cell["n"]]
    return [0, 1.06 * max(values, default=1000.0) / 1000]


def _difference_range(groups: list[Group], paired: bool) -> list[float]:
    values = [0.0]
    for group in groups:
        values += [percent(end) for end in (group.floor or ())[1:]]
        for slot in group.slots:
            if slot.cell and slot.cell["ratio"] is not None and (slot.hollow or not paired):
                ends = (slot.cell[key] for key in ("ratio", "ratio_low", "ratio_high"))
                values += [percent(end) for end in ends if end is not None]
    low, high = min(values), max(values)
    margin = 0.2 * (high - low) or 1.0  # for the numbers beyond the intervals
    return [low - margin, high + margin]


def experiment_table(table: pl.DataFrame, experiment: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The newest campaign of *experiment* and its figure's table; both empty without runs."""
    campaign = runs.select_campaign(table, experiment)
    return campaign, comparison.figure_table(campaign)
