"""Table I of A Quantum of QUIC and Fig. 4 of QUIC on the Highway: processor time by category, and flame graphs.

A share is that of a category in the samples of one endpoint during the transfer (`quicbed.measure.profile`), the mean
over blocks with its 95 % interval. Runs count as in every figure (`quicbed.analysis.comparison`). Other programs take
processor time from an endpoint, and change what it spends its own on only through caches and batch sizes.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.analysis.cpu_shares import BOTH, PAIR, PARTS, ROLES, Profiled
from quicbed.analysis.published import cpu_shares as published
from quicbed.base import durable
from quicbed.figures import font, goodput, layout, output
from quicbed.figures.handshake_tables import Printed
from quicbed.figures.output import Drawn
from quicbed.store import runs, symbols
from quicbed.store.stacks import UNKNOWN, Stacks

CRYPTOGRAPHY = ("packet-protection", "header-protection")
WHISKERS = "Whiskers: 95 % intervals of packet and of header protection, over blocks."
SMALLEST_FRAME = 0.005
"""Frames of a flame graph with a smaller share of the samples are left out."""
UNCATEGORISED_LIMIT = 0.1
"""Where a larger share belongs to no category, figures say so: the mapping needs mending."""
CAPTION_PX, CAPTION_CHARACTERS = 13, 135
"""Height and length of a line of a caption."""
EDGE_PX = 14
PAPERS = "A Quantum of QUIC, Table I; QUIC on the Highway, Fig. 4"
"""With shares of processor time by library."""
FRAME_PX = 13
"""Height of a frame of a flame graph."""
FRAME_COLOURS = (
    "A frame has the colour of the category of samples taken in it. Callers of a library's functions have none, and "
    "the kernel's entry is kernel."
)
SEPARATOR = "\x00"
"""Between the frames of a path."""
_PACKAGES = re.compile(r"[\w.-]+/")

COLOURS: dict[symbols.Category, str] = {
    "packet-protection": layout.BLUE,
    "header-protection": layout.SKY,
    "packet-io": layout.YELLOW,
    "connection-management": layout.GREEN,
    "application": "#882255",
    "kernel": "#b3b3b3",
    "uncategorised": "#e3e3e3",
}
"""Told apart with any colour vision, and in grey: neighbours within a bar are not as bright as each other."""

# ---- Table I ---------------------------------------------------------------------------------------------------------


def table_i(shares: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Printed:
    """Table I: shares of packet and header protection in %, with half the width of their interval.

    Libraries with themselves, in the paper's order of variants. What was neither measured nor published is a note.
    """
    titles = titles or {}
    paper = {(row["label"], row["library"]): row for row in published().to_dicts()}
    own = shares.filter(pl.col("client_library") == pl.col("server_library"))
    columns = [(role, category) for role in ROLES for category in CRYPTOGRAPHY]
    rows: list[list[str]] = []
    notes = []
    behind: dict[tuple[int, int], str] = {}
    for label in ordered_labels(own):
        measured: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        for row in own.filter(pl.col("label") == label).to_dicts():
            measured.setdefault(row["library"], {})[row["role"], row["category"]] = row
        others = [library for of, library in paper if of == label and library not in measured]
        for library in [*sorted(measured), *others]:
            title = titles.get(library) or PUBLISHED_ONLY.get(library, library)
            found = measured.get(library, {})
            known = paper.get((label, library), {})
            problem = next((found[column]["problem"] for column in columns if found and found[column]["problem"]), None)
            if problem:
                notes.append(f"{label}: {problem}" if problem.startswith(title) else f"{label}, {title}: {problem}")
            values = [_percent(known.get(f"{role}_{category.replace('-', '_')}")) for role, category in columns]
            cells = [*(_cell(found.get(column)) for column in columns), *values]
            if set(cells) != {MISSING}:
                if one := next(iter(found.values()), None):
                    chosen = runs.selection(one["campaign"], one["cell"])
                    behind |= dict.fromkeys([(len(rows), 2 + position) for position in range(len(columns))], chosen)
                rows.append([label, title, *cells])
    short = ["PP client", "HP client", "PP server", "HP server"]
    return Printed(
        "Share of samples in packet protection (PP) and header protection (HP) [%]",
        [("", 2), ("measured", 4), ("published", 4)],
        ["variant", "implementation", *short, *short],
        rows,
        [*notes, *layout.measured_on([own])],
        frozenset(range(2, 10)),
        behind,
    )


def ordered_labels(shares: pl.DataFrame) -> list[str]:
    """Variants in the paper's order, then others."""
    return [
        label
        for label in dict.fromkeys([*published()["label"], *shares["label"].unique(maintain_order=True)])
        if label in set(shares["label"])
    ]


PUBLISHED_ONLY = {"lsquic": "LSQUIC", "msquic": "MsQuic", "quiche": "quiche"}
MISSING = "-"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or row["share"] is None:
        return MISSING
    if row["low"] is None:
        return f"{100 * row['share']:.2f}"
    return f"{100 * row['share']:.2f} ± {50 * (row['high'] - row['low']):.2f}"


def header_protection(
    gains: pl.DataFrame,
    timed: pl.DataFrame,
    paired: pl.DataFrame,
    counted: Mapping[tuple[str, str, str], float],
    titles: Mapping[str, str] | None = None,
    measured: Mapping[str, pl.DataFrame] | None = None,
) -> Printed:
    """What header protection costs, as several ways tell: goodput, processor time, samples, and instructions.

    *gains* are those of samples (`quicbed.analysis.cpu_shares.header_protection`), *timed* is the table of Fig. 4,
    *paired* that of pairs at the same time with ratios by processor time, and *counted* has the gains of instructions
    by pair and cipher. All are what is gained without it, in percent. *measured* are the campaigns by what people
    call them.
    """
    titles = titles or {}
    ratios, pairs = _without_header_protection(timed), _without_header_protection(paired)
    rows: list[list[str]] = []
    notes: list[str] = []
    behind: dict[tuple[int, int], str] = {}
    by_key: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for row in gains.to_dicts():
        by_key.setdefault((row["client_library"], row["server_library"], row["label"]), {})[row["end"]] = row
    for key in sorted(by_key, key=lambda key: (key[2], comparison.pair_title(key[:2], titles).lower())):
        ends, title = by_key[key], comparison.pair_title(key[:2], titles)
        of = (*key[:2], ends[BOTH]["cipher"])
        ratio, pair, instructions = ratios.get(of, {}), pairs.get(of, {}), counted.get(of)
        if pair:
            behind[len(rows), 4] = runs.selection(pair["campaign"], pair["cell"])
        behind |= dict.fromkeys(
            [(len(rows), place) for place in (5, 6, 7)], runs.selection(ends[BOTH]["campaign"], ends[BOTH]["cell"])
        )
        rows.append(
            [
                key[2],
                title,
                _gained(ratio.get("ratio"), ratio.get("ratio_low"), ratio.get("ratio_high")),
                _gained(*(ratio.get(f"cpu_ratio{end}") for end in ("", "_low", "_high"))),
                _gained(pair.get("ratio"), pair.get("ratio_low"), pair.get("ratio_high")),
                *(_gain(ends[end]) for end in (BOTH, *ROLES)),
                MISSING if instructions is None else f"{100 * instructions:.2f}",
            ]
        )
        for problem in dict.fromkeys(ends[end]["problem"] for end in (*ROLES, BOTH)):
            notes += [f"{title}, {key[2]}: {problem}"] if problem else []
    stays = sorted({str(name) for name in gains["without"].drop_nulls()})
    if stays:
        notes = [
            f"Samples: what remains in its functions without it is subtracted from {' and '.join(stays)}.",
            "Samples and instructions: functions of header protection, not what calls them (in aioquic, Python).",
            *notes,
        ]
    if not counted:
        notes.append("Instructions are not measured; the experiment `instructions` counts them.")
    for name, campaign in (measured or {}).items():
        notes += [f"{name}: {line[0].lower()}{line[1:]}" for line in layout.measured_on([campaign])]
    return Printed(
        "Gain without header protection [%]",
        [("", 2), ("Fig. 4", 1), ("processor time", 2), ("samples", 3), ("instructions", 1)],
        ["variant", "implementation", "goodput", "both, alone", "both, in pairs", BOTH, *ROLES, "both"],
        rows,
        notes,
        frozenset(range(2, 9)),
        behind,
    )


def _without_header_protection(table: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Cells that differ from their baseline in header protection only, by pair and cipher."""
    if table.is_empty():
        return {}
    cells = table.filter((pl.col("arm") == "main") & (pl.col("aead") == "standard") & ~pl.col("header_protection"))
    return {(row["client_library"], row["server_library"], row["cipher"]): row for row in cells.to_dicts()}


def _gained(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return MISSING
    return f"{100 * (ratio - 1):.2f}" + ("" if low is None or high is None else f" ± {50 * (high - low):.2f}")


def _gain(row: Mapping[str, Any]) -> str:
    if row["gain"] is None:
        return MISSING
    return f"{100 * row['gain']:.2f}" + ("" if row["low"] is None else f" ± {50 * (row['high'] - row['low']):.2f}")


# ---- figures ---------------------------------------------------------------------------------------------------------


def stacked(
    found: Profiled,
    titles: Mapping[str, str] | None = None,
    label: str | None = None,
    *,
    labels: Sequence[str] = (),
    source: str = PAPERS,
) -> Drawn:
    """Shares of all categories as stacked bars, client and server side by side; of one variant or of all.

    Bars of a library stand in the order of *labels*, others below as in the paper.
    """
    titles = titles or {}
    chosen = found.shares if label is None else found.shares.filter(pl.col("label") == label)
    shares = chosen.filter(pl.col("share").is_not_null())
    order = {name: place for place, name in enumerate(dict.fromkeys([*labels, *ordered_labels(shares)]))}
    keys = sorted(
        shares.select(*PAIR, "label").unique().rows(),
        key=lambda key: (comparison.pair_title(key[:2], titles).lower(), order[key[2]]),
    )
    names = [html.escape(comparison.pair_title(key[:2], titles)) for key in keys]
    places = names if label is not None else [names, [html.escape(key[2]) for key in keys]]
    percent = shares.with_columns(percent=100 * pl.col("share"))
    figure = bars(percent, "percent", keys, places, symbols.CATEGORIES, _hover)
    _whiskers(figure, percent, keys, places)
    stated = _published(figure, keys, places)
    for column, role in enumerate(ROLES, 1):
        figure.update_xaxes(title_text=f"{role.capitalize()}: share of samples [%]", row=1, col=column)
    title = "Where processor time goes" + (f", {label}" if label else "")
    caption = [*_caption(chosen, titles), WHISKERS + stated]
    layout.finish(
        figure,
        title,
        goodput.conditions(found.campaign),
        "<br>".join(caption),
        [found.campaign],
        height=158 + CAPTION_PX * len(caption) + 19 * len(keys),
        left=EDGE_PX,
        top=78,  # names of two lines
        bottom=52 + CAPTION_PX * len(caption),
        legend={"traceorder": "normal", "x": 0, "xanchor": "left"},
        titles=titles,
    )
    arrange(figure, 96 if label is not None else 236)
    figure.update_xaxes(range=[0, 100])
    figure.update_yaxes(autorange=False, range=[len(keys) - 0.5, -0.5])  # without the room that markers would get
    experiment = found.shares["experiment"][0]
    name = experiment if label is None else f"{experiment}-by-library"
    return Drawn(name, figure, found.shares, found.origins, source)


def _at(places: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """Some of the *places* of `bars`, which may be names and, within each, labels."""
    if isinstance(places[0], list):
        return [[names[number] for number in numbers] for names in places]
    return [places[number] for number in numbers]


def _whiskers(
    figure: go.Figure, percent: pl.DataFrame, keys: Sequence[tuple[str, str, str]], places: Sequence[Any]
) -> None:
    """Intervals of the shares of cryptography, at the ends of their parts of `bars`, over all of these."""
    for column, role in enumerate(ROLES, 1):
        known: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
        for row in percent.filter(pl.col("role") == role).to_dicts():
            known.setdefault((row["client_library"], row["server_library"], row["label"]), {})[row["category"]] = row
        for number, category in enumerate(CRYPTOGRAPHY):
            before = CRYPTOGRAPHY[:number]
            found = [(at, known[key]) for at, key in enumerate(keys) if category in known.get(key, {})]
            own = [(at, parts) for at, parts in found if parts[category]["high"] is not None]
            figure.add_scatter(
                x=[sum(parts[name]["percent"] for name in (*before, category) if name in parts) for _, parts in own],
                y=_at(places, [at for at, _ in own]),
                error_x={
                    "symmetric": False,
                    "array": [100 * parts[category]["high"] - parts[category]["percent"] for _, parts in own],
                    "arrayminus": [parts[category]["percent"] - 100 * parts[category]["low"] for _, parts in own],
                    "thickness": 1,
                    "width": 3,
                    "color": layout.INK,
                },
                mode="markers",
                marker={"size": 1, "color": layout.INK},
                hoverinfo="skip",
                showlegend=False,
                row=1,
                col=column,
            )


def _published(figure: go.Figure, keys: Sequence[tuple[str, str, str]], places: Sequence[Any]) -> str:
    """Mark what the paper prints on `bars` at *places*; returns a sentence on it, empty without any."""
    paper = {(row["library"], row["label"]): row for row in published().to_dicts()}
    known = [(at, paper[key[0], key[2]]) for at, key in enumerate(keys) if key[0] == key[1] and key[::2] in paper]
    if not known:
        return ""
    for column, role in enumerate(ROLES, 1):
        for parts in (CRYPTOGRAPHY[:1], CRYPTOGRAPHY):
            names = [f"{role}_{part.replace('-', '_')}" for part in parts]
            marks = [(at, sum(row[name] for name in names)) for at, row in known if None not in map(row.get, names)]
            figure.add_scatter(
                x=[value for _, value in marks],
                y=_at(places, [at for at, _ in marks]),
                mode="markers",
                name="published",
                marker={
                    "symbol": "diamond-tall",
                    "size": 9,
                    "color": "white",
                    "line": {"width": 1.2, "color": layout.INK},
                },
                hovertemplate="%{x:.2f} %<extra>published</extra>",
                showlegend=column == 1 and len(parts) == 1,
                row=1,
                col=column,
            )
    return " Diamonds: packet protection as A Quantum of QUIC prints it, and both."


def crypto_cost(found: Profiled, table: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Drawn:
    """What cryptography costs each library, as stacked bars: *table* is that of `cpu_shares.cryptography_cost`."""
    titles = titles or {}
    whole = table.group_by("library").agg(pl.col("s_per_gib").sum()).sort("s_per_gib", "library")
    order = whole["library"].to_list()
    names = [html.escape(titles.get(name, name)) for name in order]
    figure = go.Figure()
    for part in PARTS:
        rows = {row["library"]: row for row in table.filter(pl.col("part") == part).to_dicts()}
        own = [rows[name] for name in order]
        figure.add_bar(
            y=names,
            x=[row["s_per_gib"] for row in own],
            error_x={
                "array": [0 if row["high"] is None else row["high"] - row["s_per_gib"] for row in own],
                "arrayminus": [0 if row["low"] is None else row["s_per_gib"] - row["low"] for row in own],
                "thickness": 1,
                "width": 3,
                "color": "#1a1a1a",
            },
            hovertext=[_cost_hover(row) for row in own],
            hovertemplate="%{y}<br>%{hovertext}",
            name=_COST_NAMES[part],
            marker={"color": _COST_COLOURS[part], "line": {"width": 0}},
            orientation="h",
        )
    counts = sorted(set(table["blocks"]))
    span = " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
    lines = [
        f"AES-128-GCM, unpatched. Share of samples times the processor time of the run; mean of {span} blocks, "
        "whiskers: 95 % interval of each part.",
        *_without(found, set(order), titles),
    ]
    caption = [html.escape(part) for line in lines for part in textwrap.wrap(line, CAPTION_CHARACTERS)]
    layout.finish(
        figure,
        "What cryptography costs",
        goodput.conditions(found.campaign),
        "<br>".join(caption),
        [found.campaign],
        height=168 + CAPTION_PX * len(caption) + 24 * len(names),
        left=110,
        top=78,
        bottom=58 + CAPTION_PX * len(caption),
        legend={"traceorder": "normal", "x": 0, "xanchor": "left"},
        titles=titles,
    )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(
        title={"text": "Processor time of client and server together [s/GiB]", "font": {"size": 11}, "standoff": 6},
        type="linear",
        rangemode="tozero",
        gridcolor=layout.GRID,
        zeroline=False,
    )
    figure.update_yaxes(**layout.NAMES, tickfont_size=11)
    _cut(figure, list(zip(names, whole["s_per_gib"], strict=True)))
    return Drawn("crypto-cost", figure, table, found.origins, "beyond A Quantum of QUIC, Table I", "crypto-cost")


def _cut(figure: go.Figure, ordered: Sequence[tuple[str, float]]) -> None:
    """End the axis where most bars do; what is several times as long says how long it is."""
    within = [value for _, value in ordered if value <= _LONG * ordered[(len(ordered) - 1) // 2][1]]
    end = 1.12 * within[-1]
    figure.update_xaxes(range=[0, end])
    for name, value in ordered[len(within) :]:
        figure.add_annotation(
            x=end,
            y=name,
            xanchor="right",
            text=f"{value:.3g} s/GiB (cut)",
            showarrow=False,
            font={"size": 11},
        )


_LONG = 3
"""Times the middle bar: what is longer is cut."""
_COST_NAMES = {"packet-protection": "packet protection", "header-protection": "header protection", "rest": "all else"}
_COST_COLOURS = {
    "packet-protection": COLOURS["packet-protection"],
    "header-protection": layout.ORANGE,
    "rest": "#cfcfcf",
}


def _cost_hover(row: Mapping[str, Any]) -> str:
    interval = "one block" if row["low"] is None else f"95 % interval {row['low']:.3f} to {row['high']:.3f}"
    return f"{row['s_per_gib']:.3f} s/GiB ({interval})"


def _without(found: Profiled, shown: set[str], titles: Mapping[str, str]) -> list[str]:
    """A line on libraries that have no bar, and why."""
    others = found.shares.filter(
        (pl.col("client_library") == pl.col("server_library"))
        & (pl.col("label") == "AES-128-GCM")
        & ~pl.col("library").is_in(list(shown))
        & pl.col("problem").is_not_null()
    ).unique("library", keep="first", maintain_order=True)
    told = [f"{titles.get(row['library'], row['library'])}: {row['problem']}" for row in others.to_dicts()]
    return [f"Not shown: {'; '.join(told)}."] if told else []


def bars(
    table: pl.DataFrame,
    value: str,
    keys: Sequence[tuple[str, str, str]],
    places: Sequence[Any],
    categories: Sequence[symbols.Category],
    hover: Callable[[Mapping[str, Any] | None], str],
) -> go.Figure:
    """Stacked bars of a column by category, client beside server; *keys* are pairs of libraries with a label."""
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True)
    for column, role in enumerate(ROLES, 1):
        for category in categories:
            part = table.filter((pl.col("role") == role) & (pl.col("category") == category))
            by_key = {(row["client_library"], row["server_library"], row["label"]): row for row in part.to_dicts()}
            rows = [by_key.get(key) for key in keys]
            figure.add_bar(
                y=places,
                x=[row[value] if row else None for row in rows],
                hovertext=[hover(row) for row in rows],
                hovertemplate="%{y}<br>%{hovertext}",
                name=_NAMES[category],
                marker={"color": COLOURS[category], "line": {"width": 0}},
                orientation="h",
                showlegend=column == 1,
                row=1,
                col=column,
            )
    return figure


def arrange(figure: go.Figure, names_px: float) -> None:
    """Give `bars` their places, once the figure has its size: names stand inside of the margins, and the legend is as
    wide as what these leave."""
    names_end = names_px / (layout.WIDTH_PX - EDGE_PX)
    figure.update_layout(
        barmode="stack",
        bargap=0.22,
        xaxis_domain=[names_end, names_end + 0.46 * (1 - names_end)],
        xaxis2_domain=[names_end + 0.54 * (1 - names_end), 1],
    )
    figure.update_xaxes(title_font_size=11, title_standoff=6, gridcolor=layout.GRID, zeroline=False)
    figure.update_yaxes(**layout.NAMES, autorange="reversed", tickfont_size=11, dividercolor=layout.GRID)


_NAMES: dict[symbols.Category, str] = {category: category.replace("-", " ") for category in symbols.CATEGORIES} | {
    "packet-io": "packet I/O"
}


def _hover(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    interval = "one block" if row["low"] is None else f"{100 * row['low']:.2f} to {100 * row['high']:.2f}"
    return f"{100 * row['share']:.2f} % ({interval})"


def _caption(shares: pl.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """Lines under the bars: number of blocks, variants that a library lacks, categories that its stacks do not show."""
    with_share = pl.col("share").is_not_null()
    measured = shares.filter(with_share)
    blocks = sorted(set(measured["blocks"]))
    span = " to ".join(str(count) for count in dict.fromkeys(blocks[:1] + blocks[-1:]))
    lines = [f"Mean of {span} block{'s' if span != '1' else ''}, samples of the transfer only."] if span else []
    lacking = []
    for label in ordered_labels(shares):
        of_label = shares.filter(pl.col("label") == label)
        present, missing = (
            sorted({comparison.pair_title(pair, titles) for pair in part.select(PAIR).rows()})
            for part in (of_label.filter(with_share), of_label.join(measured, on="cell", how="anti"))
        )
        if missing:
            by = ", ".join(missing)
            if present and len(present) < len(missing):
                by = f"all but {', '.join(present)}"
            lacking.append(f"{label} by {by}")
    if lacking:
        lines.append(f"Unsupported or failed: {'; '.join(lacking)}.")
    hidden = shares.filter(~with_share).join(measured, on=["cell", "role"], how="semi")
    for library, category, reason in hidden.select("library", "category", "problem").unique().sort(pl.all()).rows():
        lines.append(f"{titles.get(library, library)} shows no {category}: {reason}.")
    unknown = measured.filter((pl.col("category") == "uncategorised") & (pl.col("share") > UNCATEGORISED_LIMIT))
    if not unknown.is_empty():
        where = (
            f"{titles.get(row['library'], row['library'])} {row['role']}, {row['label']}" for row in unknown.to_dicts()
        )
        lines.append(f"More than {100 * UNCATEGORISED_LIMIT:g} % uncategorised: {'; '.join(where)}.")
    return [html.escape(part) for line in lines for part in textwrap.wrap(line, CAPTION_CHARACTERS)]


def flame(found: Profiled, root: Path, library: str, label: str, titles: Mapping[str, str] | None = None) -> Drawn:
    """Flame graph (icicles: callers on top) of both endpoints of a library with itself.

    A frame has the colour of the category in which a sample counts that is taken in it.
    """
    chosen = found.shares.filter(
        (pl.col("client_library") == library) & (pl.col("server_library") == library) & (pl.col("label") == label)
    )
    cell = chosen["cell"][0]
    icicles = [_icicle(found.stacks[cell, role], symbols.symbol_map(root, library, role), role) for role in ROLES]
    # the deepest frame on show of each
    levels = [1 + max(path.count(SEPARATOR) for path in icicle.ids) for icicle in icicles]
    hosts = layout.measured_on([found.campaign])
    lines = [
        html.escape(part) for line in (FRAME_COLOURS, *hosts) for part in textwrap.wrap(line, layout.HOST_CHARACTERS)
    ]
    top, gap, bottom = 82, 14, 14 + layout.HOST_PX * len(lines)
    height = top + gap + bottom + FRAME_PX * sum(levels)
    figure = make_subplots(
        rows=2,
        cols=1,
        specs=[[{"type": "domain"}]] * 2,
        row_heights=levels,
        vertical_spacing=gap / (height - top - bottom),
    )
    for row, icicle in enumerate(icicles, 1):
        figure.add_trace(icicle, row=row, col=1)
    layout.below(figure, lines, left=10, bottom=bottom)
    title = f"Stacks of client and server, {(titles or {}).get(library, library)}, {label}"
    shown = {colour for icicle in icicles for colour in icicle.marker.colors}
    for category in symbols.CATEGORIES:
        if COLOURS[category] in shown:
            marker = {"symbol": "square", "size": 11, "color": COLOURS[category]}
            figure.add_scatter(x=[None], y=[None], mode="markers", name=_NAMES[category], marker=marker)
    figure.update_layout(
        template="none",
        width=layout.WIDTH_PX,
        height=height,
        margin={"l": 10, "r": 10, "t": top, "b": bottom},
        font={"family": font.FAMILY, "size": 11, "color": layout.INK},
        uniformtext={"minsize": 9, "mode": "hide"},
        title={
            "text": f"<b>{html.escape(title)}</b>",
            "x": 0,
            "xref": "container",
            "y": 1 - 16 / height,
            "yanchor": "top",
            "pad": {"l": 12},
            "font": {"size": 14},
        },
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 10}, "itemclick": False},
        xaxis={"visible": False},
        yaxis={"visible": False},
    )
    slug = f"flame-{library}-{label}".lower().replace(" ", "-")
    return Drawn(slug, figure, chosen, found.origins, "QUIC on the Highway, Fig. 4")


def flames(
    found: Profiled, root: Path, titles: Mapping[str, str] | None = None, label: str = "AES-128-GCM"
) -> list[Drawn]:
    """A flame graph of every library that was measured with itself, with one variant."""
    own = found.shares.filter((pl.col("client_library") == pl.col("server_library")) & (pl.col("label") == label))
    return [
        flame(found, root, library, label, titles)
        for library, cell in own.select("client_library", "cell").unique().sort("client_library").rows()
        if all((cell, role) in found.stacks for role in ROLES)
    ]


def _icicle(stacks: Stacks, mapping: symbols.SymbolMap, role: str) -> go.Icicle:
    total = stacks.total()
    samples: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        path = tuple(frame for frame in reversed(stack) if frame != f"{UNKNOWN}`{UNKNOWN}")
        for depth in range(len(path) + 1):
            samples[path[:depth]] += count
    kept = [path for path, count in sorted(samples.items()) if count >= SMALLEST_FRAME * total]
    own = [mapping.sort(path[::-1]) for path in kept]
    return go.Icicle(
        ids=[SEPARATOR.join((role, *path)) for path in kept],
        parents=[SEPARATOR.join((role, *path[:-1])) if path else "" for path in kept],
        labels=[path[-1].partition("`")[2] if path else role for path in kept],
        # Go names functions by the whole path of their package
        text=[_PACKAGES.sub("", path[-1].partition("`")[2]) if path else f"{role}: {total} samples" for path in kept],
        values=[samples[path] for path in kept],
        branchvalues="total",
        marker={"colors": [COLOURS[category] for category in own], "line": {"color": "white", "width": 0.5}},
        leaf={"opacity": 1},
        customdata=own,
        texttemplate="%{text}",
        textfont={"size": 9},
        hovertemplate="%{label}<br>%{value} samples, %{percentRoot:.2%}<br>%{customdata}<extra></extra>",
        tiling={"orientation": "v", "pad": 0},
        sort=False,
        uid=role,
    )


def export(found: Profiled, directory: Path) -> list[Path]:
    """Write the folded stacks of every cell as ``<client>-<variant>-<role>.folded``, for flame graph tools."""
    directory.mkdir(parents=True, exist_ok=True)
    cells = {row["cell"]: row for row in found.shares.to_dicts()}
    files = []
    for (cell, role), stacks in sorted(found.stacks.items()):
        row = cells[cell]
        name = row["client_library"]
        if row["server_library"] != name:
            name += f"-from-{row['server_library']}"
        file = directory / output.file_name(f"{name}-{row['label']}-{role}.folded".lower().replace(" ", "-"))
        lines = sorted(f"{';'.join(reversed(stack))} {count}" for stack, count in stacks.items())
        durable.write_text(file, "\n".join(lines) + "\n")
        files.append(file)
    return files
