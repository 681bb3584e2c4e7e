"""Figures of downloads by size: QUIC of every library beside TLS over TCP, and the size at which the better changes."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.figures.pair_figures import FACET_PX
from quicbed.figures.sheets import Sheet, leading
from quicbed.papers.workloads import sizes
from quicbed.plan.arms import LEFT_OUT
from quicbed.store import runs


@dataclass(frozen=True)
class Quantity:
    """A metric of `quicbed.papers.workloads.sizes.METRICS` in a figure."""

    name: str
    title: str
    axis: str
    better: str
    falls: bool
    """With the size of the download."""


QUANTITIES = {
    "throughput_mbps": Quantity(
        "storage-throughput", "Throughput of single downloads", "Mbit/s", "faster", falls=False
    ),
    "cpu_s_per_gib": Quantity(
        "storage-cpu", "Processor time of single downloads", "CPU s per GiB", "cheaper", falls=True
    ),
}
SOURCE = "Evaluating QUIC Performance over Web, Cloud Storage and Video Workloads, cloud storage"
STYLES: Mapping[str | None, tuple[str, str, str]] = {
    # by version of TLS: name, colour, symbol
    None: ("QUIC", layout.BLUE, "circle"),
    "TLSv1.3": ("TLS 1.3 over TCP", layout.ORANGE, "square"),
    "TLSv1.2": ("TLS 1.2 over TCP", layout.VERMILION, "diamond"),
}
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def size_text(size: float) -> str:
    """A size for people, in powers of 1000 and two digits."""
    factor, unit = next((one for one in _UNITS if float(f"{size:.1e}") >= one[0]), _UNITS[-1])
    return f"{float(f'{size / factor:.1e}'):g} {unit}"


def by_size(
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    changed: pl.DataFrame,
    metric: str,
    titles: Mapping[str, str] | None = None,
) -> output.Drawn:
    """A panel for every QUIC library: a metric by size, and the sizes at which the better one changes.

    *table* is that of `sizes.by_size`, *changed* that of `sizes.changes`.
    """
    quantity = QUANTITIES[metric]
    main = table.filter((pl.col("arm") == "main") & (pl.col("metric") == metric))
    own, others = main.filter(pl.col("tls_version").is_null()), main.filter(pl.col("tls_version").is_not_null())
    libraries = _sorted(own, titles or {})
    figure, places = layout.panels(
        max(len(libraries), 1), below=0.3, titles=list(libraries.values()) or ["no QUIC library"]
    )
    measured = sorted(set(main.filter(pl.col("n") > 0)["workload_bytes"]))
    extent = _range([cell[end] for cell in main.to_dicts() if cell["n"] for end in ("min", "max")])
    for number, (library, place) in enumerate(zip(libraries or [None], places, strict=True)):
        for version in (*reversed(sizes.TLS), None):
            chosen = own.filter(pl.col("client_library") == library) if version is None else others
            cells = chosen.filter(pl.col("tls_version").eq_missing(pl.lit(version))).sort("workload_bytes").to_dicts()
            _line(figure, cells, version, place, quantity, in_legend=number == 0)
            if version is None:
                _missing(figure, cells, place, hangs=quantity.falls)
        about = (pl.col("library") == library) & (pl.col("metric") == metric)
        for line, change in enumerate(changed.filter(about).to_dicts()):
            _mark(figure, change, line, extent, place)
        if place["col"] == 1:
            figure.update_yaxes(title_text=quantity.axis, title_standoff=4, title_font={"size": 11}, **place)
        if number + layout.COLUMNS >= len(libraries):
            figure.update_xaxes(title_text="size", title_standoff=4, title_font={"size": 11}, **place)
    shown = [size for number, size in enumerate(measured) if number % 2 == 0]
    ends = [math.log10(measured[0]) - 0.3, math.log10(measured[-1]) + 0.3] if measured else [3, 9]
    figure.update_xaxes(
        **{**layout.AXIS, "ticks": "outside"},
        type="log",
        range=ends,
        tickvals=shown,
        ticktext=[size_text(size) for size in shown],
        tickfont={"size": 10},
    )
    figure.update_yaxes(**layout.VALUES, type="log", range=extent, dtick=1, tickformat="~g", tickfont={"size": 10})
    lines = [
        "Means, bars from the smallest to the largest run. Marks at the lower edge: the size at which the better of",
        "QUIC and that version of TLS changes last, with its 95 % interval; an arrow is an end beyond those shown.",
        "No mark: no change." + goodput.disturbed(campaign),
        *left_out(main),
    ]
    layout.finish(
        figure,
        f"{quantity.title} by size",
        goodput.conditions(campaign.with_columns(workload_bytes=pl.lit(None, pl.Int64))),
        "<br>".join(lines),
        [campaign],
        height=102 + 12 * len(lines) + places[-1]["row"] * FACET_PX,
        bottom=70 + 12 * len(lines),
        legend=layout.IN_CORNER,
        titles=titles,
    )
    origins = comparison.used_origins(campaign, main["cell"].to_list())
    return output.Drawn(quantity.name, figure, table, origins, SOURCE)


def _sorted(cells: pl.DataFrame, titles: Mapping[str, str]) -> dict[str, str]:
    names = {name: titles.get(name, name) for name in set(cells["client_library"])}
    return dict(sorted(names.items(), key=lambda one: str(one[1]).lower()))


def left_out(cells: pl.DataFrame) -> list[str]:
    """What the scale does not measure, as lines; none where it measures all."""
    reason = pl.col("unsupported").fill_null("")
    labels = cells.filter(reason.str.starts_with(LEFT_OUT)).sort("workload_bytes")["label"].unique(maintain_order=True)
    known = [label for label in labels if "TLS" not in label]
    return [f"Not measured at scale {cells['scale'][0]}: {', '.join(known)}."] if known else []


def _range(values: Sequence[float]) -> list[float]:
    """Ends of a logarithmic axis, as powers of ten, with room for marks at its lower edge."""
    if not values:
        return [0, 3]
    low, high = math.log10(min(values)), math.log10(max(values))
    return [low - 0.22 * (high - low) - 0.2, high + 0.1 * (high - low) + 0.05]


def _line(
    figure: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    version: str | None,
    place: Mapping[str, int],
    quantity: Quantity,
    *,
    in_legend: bool,
) -> None:
    shown = [cell for cell in cells if cell["n"]]
    name, colour, symbol = STYLES[version]
    figure.add_scatter(
        x=[cell["workload_bytes"] for cell in shown],
        y=[cell["mean"] for cell in shown],
        error_y=layout.to_extremes(shown),
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "size": 5, "symbol": symbol},
        hovertext=[
            f"<b>{html.escape(cell['label'])}</b><br>{cell['mean']:.4g} {quantity.axis}, n = {cell['n']}, failed "
            f"{cell['failed']}"
            for cell in shown
        ],
        hoverinfo="text",
        showlegend=in_legend,
        **place,
    )


def _missing(figure: go.Figure, cells: Sequence[Mapping[str, Any]], place: Mapping[str, int], *, hangs: bool) -> None:
    """Say in place where a library has no value, but for what the scale leaves out."""
    for cell in cells:
        if not cell["n"] and not (cell["unsupported"] or "").startswith(LEFT_OUT):
            text, reason = layout.absent(cell)
            layout.in_place(figure, math.log10(cell["workload_bytes"]), text, reason, place, hangs=hangs)


def _mark(
    figure: go.Figure, change: Mapping[str, Any], line: int, extent: Sequence[float], place: Mapping[str, int]
) -> None:
    """The size of a change with its interval, at the lower edge of a panel whose axis has this *extent*."""
    if change["bytes"] is None:
        return
    _, colour, symbol = STYLES[change["tls_version"]]
    height = 10 ** (extent[0] + (0.05 + 0.07 * line) * (extent[1] - extent[0]))
    points = [(change["bytes"], symbol)]
    if change["low"] is not None:
        points.insert(0, (max(change["low"], change["smallest"]), "triangle-left" if change["low"] == 0 else "line-ns"))
        beyond = math.isinf(change["high"])
        points.append((min(change["high"], change["largest"]), "triangle-right" if beyond else "line-ns"))
    figure.add_scatter(
        x=[size for size, _ in points],
        y=[height] * len(points),
        mode="lines+markers",
        line={"color": colour, "width": 1.4},
        marker={
            "color": colour,
            "size": 6,
            "symbol": [one for _, one in points],
            "line": {"color": colour, "width": [1.4 if one == "line-ns" else 0 for _, one in points]},
        },
        hovertext=f"{size_text(change['bytes'])} ({interval_text(change)})",
        hoverinfo="text",
        showlegend=False,
        **place,
    )


# ---- in words --------------------------------------------------------------------------------------------------------


def interval_text(change: Mapping[str, Any]) -> str:
    """The interval of a size of a change."""
    if change["low"] is None:
        return "no interval: one block"
    low, high = (_end_text(change, change[end]) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def _end_text(change: Mapping[str, Any], size: float) -> str:
    if size == 0:
        return f"below {size_text(change['smallest'])}"
    return f"above {size_text(change['largest'])}" if math.isinf(size) else size_text(size)


def _better(change: Mapping[str, Any], end: str) -> str:
    return "QUIC" if change[f"{end}_ratio"] > 1 else f"TLS {change['tls_version'].removeprefix('TLSv')}"


def changes_sheet(changed: pl.DataFrame, titles: Mapping[str, str]) -> Sheet:
    """The size at which the better one changes, for people; `none` where it does not."""
    headers = [
        "library", "against", "what", "better at the smallest", "size of the change", "95 % interval",
        "better at the largest", "changes", "ratio at the smallest", "at the largest", "sizes", "blocks",
    ]  # fmt: skip
    rows = [
        [
            titles.get(row["library"], row["library"]),
            f"{titles.get(row['against'], row['against'])}, {row['tls_version'].replace('v', ' ')}",
            QUANTITIES[row["metric"]].axis,
            _better(row, "small"),
            "none" if row["bytes"] is None else size_text(row["bytes"]),
            interval_text(row),
            _better(row, "large"),
            row["changes"],
            f"{row['small_ratio']:.3g}",
            f"{row['large_ratio']:.3g}",
            f"{size_text(row['smallest'])} to {size_text(row['largest'])}, {row['sizes']}",
            row["blocks"],
        ]
        for row in changed.to_dicts()
    ]
    notes = [
        "A ratio above 1 says that QUIC is better. Where the better one changes more than once, the size is that of "
        "the last change."
    ]
    selected = [runs.selection(row["campaign"], *row["cells"].split(",")) for row in changed.to_dicts()]
    return Sheet(headers, rows, frozenset({7, 8, 9, 11}), notes, leading(selected, (4, 5, *range(7, 12))))


def found(changed: pl.DataFrame, metric: str, titles: Mapping[str, str]) -> Found | None:
    """For each version of TLS how many libraries are better at which end, and the sizes at which that changes."""
    told = []
    for version in sizes.TLS:
        rows = changed.filter((pl.col("metric") == metric) & (pl.col("tls_version") == version)).to_dicts()
        if rows:
            told.append(_sentence(rows, version, QUANTITIES[metric].better, titles))
    return Found(told) if told else None


def _sentence(rows: Sequence[Mapping[str, Any]], version: str, better: str, titles: Mapping[str, str]) -> str:
    small, large = (sum(row[f"{end}_ratio"] > 1 for row in rows) for end in ("small", "large"))
    ends = size_text(min(row["smallest"] for row in rows)), size_text(max(row["largest"] for row in rows))
    text = (
        f"Against {version.replace('v', ' ')}, QUIC is {better} with {small} of {len(rows)} libraries at {ends[0]} and "
        f"with {large} at the largest size, up to {ends[1]}"
    )
    turned = sorted((row for row in rows if row["bytes"] is not None), key=lambda row: (row["bytes"], row["library"]))
    if not turned:
        return f"{text}; the better one changes with none."
    named = [
        f"{titles.get(row['library'], row['library'])} at {size_text(row['bytes'])} ({interval_text(row)}"
        + (f", the last of {row['changes']} changes)" if row["changes"] > 1 else ")")
        for row in turned
    ]
    return f"{text}. The better one changes with {'; '.join(named)}."
