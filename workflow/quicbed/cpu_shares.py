"""Table I of A Quantum of QUIC and Fig. 4 of QUIC on the Highway: processor time by category, and flame graphs.

A share is that of a category in the samples of one endpoint during the transfer (`quicbed.perf`), the mean over blocks
with a 95 % bootstrap interval that resamples blocks. Runs count as in every figure (`quicbed.analysis`). Other programs
take processor time from an endpoint, and change what it spends its own on only through caches and batch sizes.
"""

from __future__ import annotations

import html
import io
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed import analysis, figures, layout, perf, runs
from quicbed.config import ConfigError
from quicbed.figures import Drawn
from quicbed.handshake_tables import Printed
from quicbed.published import cpu_shares as published

EXPERIMENT = "cpu-shares"
ROLES = ("client", "server")
PAIR = ("client_library", "server_library")
CRYPTOGRAPHY = ("packet-protection", "header-protection")
SMALLEST_FRAME = 0.005
"""Frames of a flame graph with a smaller share of the samples are left out."""
UNCATEGORISED_LIMIT = 0.1
"""Where a larger share belongs to no category, figures say so: the mapping needs mending."""
FLAME_PX, FRAME_PX = 1376, 17
"""Width of a flame graph, and height of a frame in it."""
SEPARATOR = "\x00"
"""Between the frames of a path."""
_PACKAGES = re.compile(r"[\w.-]+/")

COLOURS: dict[perf.Category, str] = {
    "packet-protection": "#0072B2",
    "header-protection": "#56B4E9",
    "packet-io": "#E69F00",
    "connection-management": "#009E73",
    "application": "#CC79A7",
    "kernel": "#999999",
    "uncategorised": "#e3e3e3",
}

SHARES: Mapping[str, pl.DataType] = (
    dict.fromkeys(
        ["testbed", "host_id", "experiment", "campaign", "scale", "cell", "label", "cipher", "aead"], pl.String()
    )
    | dict.fromkeys(["client_library", "server_library", "role", "library", "category"], pl.String())
    | dict.fromkeys(["share", "low", "high"], pl.Float64())
    | dict.fromkeys(["blocks", "samples"], pl.Int64())
    | dict.fromkeys(["problem"], pl.String())
)
"""Columns of the table: a row for every cell, role and category; shares from 0 to 1, null with a `problem`."""

BLOCKS: Mapping[str, pl.DataType] = dict.fromkeys(["cell", "role", "category"], pl.String()) | {
    "block": pl.Int64(),
    "share": pl.Float64(),
}
"""Columns of the shares of single blocks, whose means the other table has."""


@dataclass
class Measured:
    """Shares of one campaign, and the stacks behind them by (cell, role)."""

    campaign: pl.DataFrame
    shares: pl.DataFrame
    blocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BLOCKS))
    stacks: dict[tuple[str, str], perf.Stacks] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return self.shares.is_empty()


def measured(table: pl.DataFrame, raw: Path, root: Path, experiment: str = EXPERIMENT) -> Measured:
    """Shares of the newest campaign; `raw` holds its runs, `root` is the repository with the mappings."""
    campaign = runs.select_campaign(table, experiment)
    if campaign.is_empty():
        return Measured(campaign, pl.DataFrame(schema=SHARES))
    cells = analysis.figure_table(campaign).filter(pl.col("arm") == "main")
    used = analysis.counted(campaign).filter(pl.col("cell").is_in(cells["cell"].to_list()))
    files = _Files(raw)
    result = Measured(campaign, pl.DataFrame(schema=SHARES), origins=used["origin"].sort().to_list())
    rows: list[dict[str, Any]] = []
    blocks: list[tuple[str, str, str, int, float]] = []
    for cell in cells.to_dicts():
        counting = used.filter(pl.col("cell") == cell["cell"]).sort("block")
        origins = counting["origin"].to_list()
        for role in ROLES:
            base = {name: cell.get(name) for name in SHARES} | {"role": role, "library": cell[f"{role}_library"]}
            problem = cell["unsupported"] or cell["failure"] or "not measured" if not origins else None
            lacking: Mapping[perf.Category, str] = {}
            counts: list[Counter[perf.Category]] = []
            try:
                if problem is None:
                    mapping = perf.symbol_map(root, base["library"])
                    lacking = mapping.unsupported
                    total: perf.Stacks = Counter()
                    for origin in origins:
                        stacks = files.stacks(origin, role)
                        counts.append(mapping.count(stacks))
                        total.update(stacks)
                    result.stacks[cell["cell"], role] = total
            except (ConfigError, perf.PerfError) as error:
                problem = str(error).replace(f"{root}/", "")
            for category in perf.CATEGORIES:
                reason = problem or lacking.get(category)
                rows.append(base | {"category": category, "problem": reason} | _share(counts, category, reason))
                if reason is None:
                    for block, count in zip(counting["block"], counts, strict=True):
                        blocks.append((cell["cell"], role, category, block, count[category] / count.total()))
    result.blocks = pl.DataFrame(blocks, schema=BLOCKS, orient="row")
    result.shares = pl.DataFrame(
        [{name: row.get(name) for name in SHARES} for row in rows], schema=SHARES, orient="row"
    )
    return result


def _share(counts: list[Counter[perf.Category]], category: perf.Category, problem: str | None) -> dict[str, Any]:
    if problem is not None or not counts:
        return {"blocks": 0}
    values = np.array([count[category] / count.total() for count in counts])
    low, high = analysis.mean_interval(values) if len(values) > 1 else (None, None)
    samples = sum(count.total() for count in counts)
    return {"share": float(values.mean()), "low": low, "high": high, "blocks": len(values), "samples": samples}


class _Files:
    """Files beside run.json, by the run's origin, in directories and archives."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw.absolute()
        self._archives: dict[Path, dict[str, bytes]] = {}

    def stacks(self, origin: str, role: str) -> perf.Stacks:
        """Folded stacks of an endpoint in one run; PerfError names the run."""
        content = self._read(origin, perf.folded_name(role))
        try:
            return perf.read_folded(content)
        except perf.PerfError as error:
            raise perf.PerfError(f"{origin}: {role}: {error}") from None

    def _read(self, origin: str, name: str) -> bytes:
        archive, _, inside = origin.partition("!")
        base = next((path.parent for path in (self._raw, *self._raw.parents) if path.name == "raw"), self._raw.parent)
        try:
            if not inside:
                return (base / origin / name).read_bytes()
            return self._archive(base / archive)[f"{inside}/{name}"]
        except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error):
            raise perf.PerfError(f"{origin}: {name} is missing or cannot be read") from None

    def _archive(self, path: Path) -> dict[str, bytes]:
        if path not in self._archives:
            with tarfile.open(path, "r:gz") as archive:
                members = [member for member in archive if member.isfile() and member.name.endswith(".folded.gz")]
                opened = ((member.name, archive.extractfile(member)) for member in members)
                self._archives[path] = {name: (file or io.BytesIO()).read() for name, file in opened}
        return self._archives[path]


# ---- Table I ---------------------------------------------------------------------------------------------------------


def printed(shares: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Printed:
    """Table I: shares of packet and header protection in %, with half the width of their interval.

    Libraries with themselves, in the paper's order of variants. What was neither measured nor published is a note.
    """
    titles = titles or {}
    paper = {(row["label"], row["library"]): row for row in published().to_dicts()}
    own = shares.filter(pl.col("client_library") == pl.col("server_library"))
    columns = [(role, category) for role in ROLES for category in CRYPTOGRAPHY]
    rows, notes = [], []
    for label in _labels(own):
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
                rows.append([label, title, *cells])
    short = ["PP client", "HP client", "PP server", "HP server"]
    return Printed(
        "Share of samples in packet protection (PP) and header protection (HP) [%]",
        [("", 2), ("measured", 4), ("published", 4)],
        ["variant", "implementation", *short, *short],
        rows,
        notes,
        frozenset(range(2, 10)),
    )


def _labels(shares: pl.DataFrame) -> list[str]:
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


# ---- figures ---------------------------------------------------------------------------------------------------------


def stacked(found: Measured, titles: Mapping[str, str] | None = None, label: str | None = None) -> Drawn:
    """Shares of all categories as stacked bars, client and server side by side; of one variant or of all."""
    titles = titles or {}
    chosen = found.shares if label is None else found.shares.filter(pl.col("label") == label)
    shares = chosen.filter(pl.col("share").is_not_null())
    order = {name: position for position, name in enumerate(_labels(shares))}
    keys = sorted(
        shares.select(*PAIR, "label").unique().rows(),
        key=lambda key: (analysis.pair_title(key[:2], titles).lower(), order[key[2]]),
    )
    names = [html.escape(analysis.pair_title(key[:2], titles)) for key in keys]
    places = names if label is not None else [names, [html.escape(key[2]) for key in keys]]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.07)
    for column, role in enumerate(ROLES, 1):
        for category in perf.CATEGORIES:
            part = shares.filter((pl.col("role") == role) & (pl.col("category") == category))
            by_key = {(row["client_library"], row["server_library"], row["label"]): row for row in part.to_dicts()}
            rows = [by_key.get(key) for key in keys]
            figure.add_bar(
                y=places,
                x=[100 * row["share"] if row else None for row in rows],
                hovertext=[_hover(row) for row in rows],
                hovertemplate="%{y}<br>%{hovertext}",
                name=_NAMES[category],
                marker={"color": COLOURS[category], "line": {"width": 0}},
                orientation="h",
                row=1,
                col=column,
            )
        figure.update_xaxes(title_text=f"{role.capitalize()}: share of samples [%]", row=1, col=column)
    title = "Where processor time goes" + (f", {label}" if label else "")
    layout.finish(
        figure,
        title,
        figures.conditions(found.campaign),
        "<br>".join(_caption(chosen, titles)),
        height=176 + 19 * len(keys),
        left=96 if label is not None else 236,
        bottom=92,
    )
    figure.layout.title.text += f"<br><span style='font-size:11px'>{_legend(perf.CATEGORIES)}</span>"
    figure.update_layout(barmode="stack", bargap=0.22, showlegend=False)
    figure.update_xaxes(range=[0, 100], title_font_size=11, title_standoff=6, gridcolor=layout.GRID, zeroline=False)
    figure.update_yaxes(autorange="reversed", ticks="", tickfont_size=11, dividercolor=layout.GRID)
    name = "cpu-shares" if label is None else "cpu-shares-by-library"
    return Drawn(name, figure, found.shares, found.origins, "A Quantum of QUIC, Table I; QUIC on the Highway, Fig. 4")


_NAMES: dict[perf.Category, str] = {category: category.replace("-", " ") for category in perf.CATEGORIES} | {
    "packet-io": "packet I/O"
}


def _legend(categories: Iterable[perf.Category]) -> str:
    """Names of categories behind squares of their colour."""
    square = "\N{BLACK SQUARE}"
    names = (f"<span style='color:{COLOURS[category]}'>{square}</span> {_NAMES[category]}" for category in categories)
    return "   ".join(names)


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
    for label in _labels(shares):
        of_label = shares.filter(pl.col("label") == label)
        present, missing = (
            sorted({analysis.pair_title(pair, titles) for pair in part.select(PAIR).rows()})
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
    return [html.escape(line) for line in lines]


def flame(found: Measured, root: Path, library: str, label: str, titles: Mapping[str, str] | None = None) -> Drawn:
    """Flame graph (icicles: callers on top) of both endpoints of a library with itself, coloured by category."""
    chosen = found.shares.filter(
        (pl.col("client_library") == library) & (pl.col("server_library") == library) & (pl.col("label") == label)
    )
    cell = chosen["cell"][0]
    mapping = perf.symbol_map(root, library)
    icicles = [_icicle(found.stacks[cell, role], mapping, role) for role in ROLES]
    # the deepest frame on show of each
    levels = [1 + max(path.count(SEPARATOR) for path in icicle.ids) for icicle in icicles]
    top, gap, bottom = 62, 14, 10
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
    title = f"Stacks of client and server, {(titles or {}).get(library, library)}, {label}"
    shown = set(chosen.filter(pl.col("share") > 0)["category"])
    legend = _legend(category for category in perf.CATEGORIES if category in shown)
    figure.update_layout(
        template="none",
        width=FLAME_PX,
        height=height,
        margin={"l": 10, "r": 10, "t": top, "b": bottom},
        font={"family": layout.FONT, "size": 11, "color": layout.INK},
        uniformtext={"minsize": 9, "mode": "hide"},
        title={
            "text": f"<b>{html.escape(title)}</b><br><span style='font-size:12px'>{legend}</span>",
            "x": 0,
            "xref": "container",
            "y": 1 - 16 / height,
            "yanchor": "top",
            "pad": {"l": 12},
            "font": {"size": 14},
        },
    )
    slug = f"flame-{library}-{label}".lower().replace(" ", "-")
    return Drawn(slug, figure, chosen, found.origins, "QUIC on the Highway, Fig. 4")


def flames(
    found: Measured, root: Path, titles: Mapping[str, str] | None = None, label: str = "AES-128-GCM"
) -> list[Drawn]:
    """A flame graph of every library that was measured with itself, with one variant."""
    own = found.shares.filter((pl.col("client_library") == pl.col("server_library")) & (pl.col("label") == label))
    return [
        flame(found, root, library, label, titles)
        for library, cell in own.select("client_library", "cell").unique().sort("client_library").rows()
        if all((cell, role) in found.stacks for role in ROLES)
    ]


def _icicle(stacks: perf.Stacks, mapping: perf.SymbolMap, role: str) -> go.Icicle:
    total = stacks.total()
    samples: Counter[tuple[str, ...]] = Counter()
    categories: dict[tuple[str, ...], Counter[perf.Category]] = {}
    for stack, count in stacks.items():
        path = tuple(frame for frame in reversed(stack) if frame != f"{perf.UNKNOWN}`{perf.UNKNOWN}")
        category = mapping.sort(stack)
        for depth in range(len(path) + 1):
            samples[path[:depth]] += count
            categories.setdefault(path[:depth], Counter())[category] += count
    kept = [path for path, count in sorted(samples.items()) if count >= SMALLEST_FRAME * total]
    mostly = [categories[path].most_common(1)[0][0] for path in kept]
    return go.Icicle(
        ids=[SEPARATOR.join((role, *path)) for path in kept],
        parents=[SEPARATOR.join((role, *path[:-1])) if path else "" for path in kept],
        labels=[path[-1].partition("`")[2] if path else role for path in kept],
        # Go names functions by the whole path of their package
        text=[_PACKAGES.sub("", path[-1].partition("`")[2]) if path else f"{role}: {total} samples" for path in kept],
        values=[samples[path] for path in kept],
        branchvalues="total",
        marker={"colors": [COLOURS[category] for category in mostly], "line": {"color": "white", "width": 0.5}},
        customdata=mostly,
        texttemplate="%{text}",
        textfont={"size": 9},
        hovertemplate="%{label}<br>%{value} samples, %{percentRoot:.2%}<br>mostly %{customdata}<extra></extra>",
        tiling={"orientation": "v", "pad": 0},
        sort=False,
        uid=role,
    )


def export(found: Measured, directory: Path) -> list[Path]:
    """Write the folded stacks of every cell as ``<client>-<variant>-<role>.folded``, for flame graph tools."""
    directory.mkdir(parents=True, exist_ok=True)
    cells = {row["cell"]: row for row in found.shares.to_dicts()}
    files = []
    for (cell, role), stacks in sorted(found.stacks.items()):
        row = cells[cell]
        name = row["client_library"]
        if row["server_library"] != name:
            name += f"-from-{row['server_library']}"
        file = directory / f"{name}-{row['label']}-{role}.folded".lower().replace(" ", "-")
        lines = sorted(f"{';'.join(reversed(stack))} {count}" for stack, count in stacks.items())
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(file)
    return files
