"""Instructions of a byte by category, and of packets and handshakes (`quicbed.analysis.instructions`)."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.cpu_shares import PAIR, ROLES
from quicbed.analysis.instructions import ALL, USER, Counted
from quicbed.figures import cpu_figures, goodput, layout
from quicbed.figures.handshake_tables import Printed
from quicbed.figures.output import Drawn
from quicbed.store import runs

FAR = 4.0
"""A bar that is longer than this many times the median one ends at the edge, and says how long it is."""
MISSING = "-"
NO_TIME = "Instructions are not time: they ignore caches and the duration of each, and the kernel's are not counted."


def what_it_is_not(processor: tuple[str, ...]) -> str:
    """What counts do not tell, for under a figure or table."""
    if not processor:
        return NO_TIME
    lacking = [title for flag, title in (("avx512f", "AVX-512"), ("vaes", "VAES")) if flag not in processor]
    without = f", without {' and '.join(lacking)}" if lacking else ""
    return f"{NO_TIME} Programs saw a processor with {', '.join(processor)}{without}, and selected their code for it."


def per_byte(found: Counted, titles: Mapping[str, str] | None = None) -> Drawn:
    """Instructions for a byte of content as stacked bars, client and server side by side."""
    titles = titles or {}
    counts = found.counts.filter(pl.col("per_byte").is_not_null())
    order = {label: position for position, label in enumerate(cpu_figures.ordered_labels(counts))}
    keys = sorted(
        counts.select(*PAIR, "label").unique().rows(),
        key=lambda key: (comparison.pair_title(key[:2], titles).lower(), order[key[2]]),
    )
    places = [
        [html.escape(comparison.pair_title(key[:2], titles)) for key in keys],
        [html.escape(key[2]) for key in keys],
    ]
    figure = cpu_figures.bars(counts, "per_byte", keys, places, USER, _hover)
    caption = _caption(found, titles)
    layout.finish(
        figure,
        "Instructions for a byte",
        goodput.conditions(found.campaign),
        "<br>".join(caption),
        [found.campaign],
        height=158 + cpu_figures.CAPTION_PX * len(caption) + 19 * len(keys),
        left=cpu_figures.EDGE_PX,
        top=78,
        bottom=52 + cpu_figures.CAPTION_PX * len(caption),
        legend={"traceorder": "normal", "x": 0, "xanchor": "left"},
        titles=titles,
    )
    cpu_figures.arrange(figure, 266)
    totals = counts.filter(pl.col("category") == ALL)
    for column, role in enumerate(ROLES, 1):
        own = {tuple(row[name] for name in (*PAIR, "label")): row["per_byte"] for row in _of(totals, role)}
        typical = sorted(own.values())[(len(own) - 1) // 2] if own else 0.0
        edge = 1.06 * max((value for value in own.values() if value <= FAR * typical), default=1.0)
        for position, key in enumerate(keys):
            if own.get(key, 0.0) > edge:
                figure.add_annotation(
                    x=edge,
                    y=position,
                    xref=f"x{column if column > 1 else ''}",
                    yref="y",
                    text=f"<b>{own[key]:.0f} ›</b>",
                    showarrow=False,
                    xanchor="right",
                    bgcolor="white",
                    font_size=10,
                    borderpad=1,
                )
        figure.update_xaxes(
            title_text=f"{role.capitalize()}: instructions per byte", range=[0, edge], row=1, col=column
        )
    source = "A Quantum of QUIC, Table I and Fig. 3 and 4, counted"
    return Drawn("instructions", figure, found.counts, found.origins, source)


def _of(counts: pl.DataFrame, role: str) -> list[dict[str, Any]]:
    return counts.filter(pl.col("role") == role).to_dicts()


def _hover(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    ratio = "" if row["ratio"] is None else f", {row['ratio']:.3f} of the baseline's"
    return f"{row['per_byte']:.3f} for a byte{ratio}"


def _caption(found: Counted, titles: Mapping[str, str]) -> list[str]:
    counts = found.counts
    blocks = sorted(set(counts.filter(pl.col("per_byte").is_not_null())["blocks"]))
    span = " to ".join(dict.fromkeys(map(str, blocks[:1] + blocks[-1:])))
    lines = [f"Mean of {span} block{'s' if span != '1' else ''}."] if span else []
    spreads = counts.filter(pl.col("category") == ALL)["spread"].drop_nulls().sort().to_list()
    if spreads:
        middle, most = 100 * spreads[(len(spreads) - 1) // 2], 100 * spreads[-1]
        lines[0] += f" Blocks differ by {middle:.2g} % in the median, at most by {most:.2g} %."
    lines.append(what_it_is_not(found.processor))
    measured = set(counts.filter(pl.col("per_byte").is_not_null()).select(*PAIR, "label").rows())
    some = {(client, server) for client, server, _ in measured}
    lacking: dict[str, set[str]] = {}
    for pair, label, _ in _problems(counts):
        if (*pair, label) not in measured:
            lacking.setdefault(label if pair in some else "everything", set()).add(comparison.pair_title(pair, titles))
    if lacking:
        by = "; ".join(f"{label} by {', '.join(sorted(names))}" for label, names in lacking.items())
        lines.append(f"Unsupported, failed or not measured, the table says why: {by}.")
    return [html.escape(part) for line in lines for part in textwrap.wrap(line, cpu_figures.CAPTION_CHARACTERS)]


def _problems(counts: pl.DataFrame) -> list[tuple[tuple[str, str], str, str]]:
    rows = (
        counts.filter(pl.col("problem").is_not_null()).select(*PAIR, "label", "problem").unique().sort(pl.all()).rows()
    )
    return [((client, server), label, problem) for client, server, label, problem in rows]


def table(found: Counted, titles: Mapping[str, str] | None = None) -> Printed:
    """What bytes, packets and handshakes take, by library and variant: all, and packet and header protection."""
    titles = titles or {}
    counts = found.counts.filter(pl.col("per_byte").is_not_null())
    order = {label: position for position, label in enumerate(cpu_figures.ordered_labels(counts))}
    by_key: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = {}
    for row in counts.to_dicts():
        key = (row["client_library"], row["server_library"], row["label"], row["role"])
        by_key.setdefault(key, {})[row["category"]] = row
    rows: list[list[str]] = []
    behind: dict[tuple[int, int], str] = {}
    for key in sorted(by_key, key=lambda key: (comparison.pair_title(key[:2], titles).lower(), order[key[2]], key[3])):
        parts = by_key[key]
        whole = parts[ALL]
        protections = [parts[name] for name in cpu_figures.CRYPTOGRAPHY]
        behind |= dict.fromkeys(
            [(len(rows), 3 + place) for place in range(9)], runs.selection(whole["campaign"], whole["cell"])
        )
        rows.append(
            [
                comparison.pair_title(key[:2], titles),
                key[2],
                key[3],
                *(_number(one["per_byte"], 3) for one in (whole, *protections)),
                _number(whole["ratio"], 3),
                *(_number(one["per_packet"], 0) for one in (whole, *protections)),
                _number(whole["per_handshake"], 0),
                MISSING if whole["spread"] is None else f"{100 * whole['spread']:.2f}",
            ]
        )
    notes = [what_it_is_not(found.processor)]
    for pair, label, text in _problems(found.counts):
        title = comparison.pair_title(pair, titles)
        notes.append(f"{label}: {text}" if text.startswith(title) else f"{label}, {title}: {text}")
    parts_of = ["all", "PP", "HP"]
    return Printed(
        "Instructions: all, in packet protection (PP) and in header protection (HP)",
        [("", 3), ("for a byte", 3), ("", 1), ("for a packet", 3), ("for a handshake", 1), ("", 1)],
        ["implementation", "variant", "end", *parts_of, "ratio", *parts_of, "all", "blocks differ [%]"],
        rows,
        [*notes, *layout.measured_on([found.campaign])],
        frozenset(range(3, 12)),
        behind,
    )


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
