"""Table I of A Quantum of QUIC and Fig. 4 of QUIC on the Highway: processor time by category, and flame graphs.

A share is that of a category in the samples of one endpoint during the transfer (`quicbed.perf`), the mean over blocks
with a 95 % bootstrap interval that resamples blocks. Runs count as in every figure (`quicbed.analysis`). Other programs
take processor time from an endpoint, and change what it spends its own on only through caches and batch sizes.
"""

from __future__ import annotations

import html
import io
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed import analysis, figures, perf, runs
from quicbed.config import ConfigError
from quicbed.figures import Drawn
from quicbed.handshake_tables import Printed
from quicbed.published import cpu_shares as published

EXPERIMENT = "cpu-shares"
ROLES = ("client", "server")
CRYPTOGRAPHY = ("packet-protection", "header-protection")
SMALLEST_FRAME = 0.002
"""Frames of a flame graph with a smaller share of the samples are left out."""

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
            problem = cell["unsupported"] or cell["failure"] if not origins else None
            counts: list[Counter[perf.Category]] = []
            try:
                if problem is None:
                    mapping = perf.symbol_map(root, base["library"])
                    total = result.stacks.setdefault((cell["cell"], role), Counter())
                    for origin in origins:
                        stacks = perf.read_folded(files.read(origin, perf.folded_name(role)))
                        counts.append(mapping.count(stacks))
                        total.update(stacks)
            except (ConfigError, perf.PerfError) as error:
                problem = str(error).replace(f"{root}/", "")
            for category in perf.CATEGORIES:
                rows.append(base | {"category": category, "problem": problem} | _share(counts, category, problem))
                if problem is None:
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

    def read(self, origin: str, name: str) -> bytes:
        archive, _, inside = origin.partition("!")
        base = next((path.parent for path in (self._raw, *self._raw.parents) if path.name == "raw"), self._raw.parent)
        try:
            if not inside:
                return (base / origin / name).read_bytes()
            return self._archive(base / archive)[f"{inside}/{name}"]
        except (OSError, KeyError, tarfile.TarError):
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
    """Table I: shares of packet and header protection in %, with half the width of their interval."""
    paper = {(row["label"], row["library"]): row for row in published().to_dicts()}
    names = {library: (titles or {}).get(library, library) for library in shares["library"].unique().sort()}
    columns = [(role, category) for role in ROLES for category in CRYPTOGRAPHY]
    rows, notes = [], []
    for label in shares["label"].unique(maintain_order=True):
        own = shares.filter((pl.col("label") == label) & (pl.col("client_library") == pl.col("server_library")))
        shown = [*own["library"].unique().sort(), *(lib for lab, lib in paper if lab == label and lib not in names)]
        for library in shown:
            cells = own.filter(pl.col("library") == library)
            found = {(row["role"], row["category"]): row for row in cells.to_dicts()}
            known = paper.get((label, library), {})
            problem = next((row["problem"] for row in found.values() if row["problem"]), None)
            if problem:
                notes.append(f"{label}, {names[library]}: {problem}")
            title = names.get(library) or PUBLISHED_ONLY.get(library, library)
            values = [_percent(known.get(f"{role}_{category.replace('-', '_')}")) for role, category in columns]
            rows.append([label, title, *(_cell(found.get(column)) for column in columns), *values])
    short = ["PP client", "HP client", "PP server", "HP server"]
    return Printed(
        "Share of samples in packet protection (PP) and header protection (HP) [%]",
        [("", 2), ("measured", 4), ("published", 4)],
        ["variant", "implementation", *short, *short],
        rows,
        notes,
        frozenset(range(2, 10)),
    )


PUBLISHED_ONLY = {"lsquic": "LSQUIC", "msquic": "MsQuic", "quiche": "quiche"}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or row["share"] is None:
        return "-"
    if row["low"] is None:
        return f"{100 * row['share']:.2f}"
    return f"{100 * row['share']:.2f} ± {50 * (row['high'] - row['low']):.2f}"


# ---- figures ---------------------------------------------------------------------------------------------------------


def stacked(found: Measured, titles: Mapping[str, str] | None = None, label: str | None = None) -> Drawn:
    """Shares of all categories as stacked bars, client and server side by side; of one variant or of all."""
    shares = found.shares.filter(pl.col("share").is_not_null())
    if label is not None:
        shares = shares.filter(pl.col("label") == label)
    keys = shares.select("client_library", "server_library", "label").unique(maintain_order=True).rows()
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=["Client", "Server"])
    for column, role in enumerate(ROLES, 1):
        for category in perf.CATEGORIES:
            part = shares.filter((pl.col("role") == role) & (pl.col("category") == category))
            by_key = {(row["client_library"], row["server_library"], row["label"]): row for row in part.to_dicts()}
            found_keys = [key for key in keys if key in by_key]
            rows = [by_key[key] for key in found_keys]
            figure.add_bar(
                y=[_name(key, titles or {}, label) for key in found_keys],
                x=[100 * row["share"] for row in rows],
                customdata=[[100 * (row["low"] or row["share"]), 100 * (row["high"] or row["share"])] for row in rows],
                hovertemplate="%{y}<br>%{x:.2f} % (%{customdata[0]:.2f} to %{customdata[1]:.2f})",
                name=category.replace("-", " "),
                legendgroup=category,
                showlegend=column == 1,
                marker={"color": COLOURS[category], "line": {"width": 0}},
                orientation="h",
                row=1,
                col=column,
            )
    title = "Where processor time goes" + (f", {label}" if label else "")
    subtitle = html.escape(figures.conditions(found.campaign))
    figure.update_layout(
        template="none",
        barmode="stack",
        width=figures.WIDTH_PX,
        height=186 + 20 * len(keys),
        margin={"l": 190 if label is None else 90, "r": 14, "t": 84, "b": 102},
        font={"family": figures.FONT, "size": 11, "color": figures.INK},
        title={
            "text": f"<b>{html.escape(title)}</b><br><span style='font-size:11px'>{subtitle}</span>",
            "x": 0,
            "xref": "container",
            "pad": {"l": 12},
            "font": {"size": 13},
        },
        legend={"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "x": 0, "xref": "container"},
    )
    figure.update_xaxes(
        range=[0, 100],
        title={"text": "Share of samples [%]", "font": {"size": 11}, "standoff": 22},
        gridcolor="#ececec",
    )
    figure.update_annotations(font_size=12)
    figure.update_yaxes(autorange="reversed")
    for number, trace in enumerate(figure.data):
        trace.uid = f"t{number}"
    name = "cpu-shares" if label is None else "cpu-shares-by-library"
    return Drawn(name, figure, found.shares, found.origins, "A Quantum of QUIC, Table I; QUIC on the Highway, Fig. 4")


def _name(key: tuple[str, str, str], titles: Mapping[str, str], label: str | None) -> str:
    client, server = (titles.get(name, name) for name in key[:2])
    pair = client if client == server else f"{server} to {client}"
    return pair if label is not None else f"{pair}, {key[2]}"


def flame(found: Measured, root: Path, library: str, label: str, titles: Mapping[str, str] | None = None) -> Drawn:
    """Flame graph (icicles: callers on top) of both endpoints of a library with itself, coloured by category."""
    chosen = found.shares.filter(
        (pl.col("client_library") == library) & (pl.col("server_library") == library) & (pl.col("label") == label)
    )
    cell = chosen["cell"][0]
    mapping = perf.symbol_map(root, library)
    figure = make_subplots(rows=1, cols=2, specs=[[{"type": "domain"}] * 2], horizontal_spacing=0.02)
    for column, role in enumerate(ROLES, 1):
        figure.add_trace(_icicle(found.stacks[cell, role], mapping, role), row=1, col=column)
    title = html.escape(f"Stacks of {(titles or {}).get(library, library)}, {label}: client and server")
    figure.update_layout(
        template="none",
        width=1376,
        height=620,
        margin={"l": 10, "r": 10, "t": 50, "b": 10},
        font={"family": figures.FONT, "size": 11, "color": figures.INK},
        title={"text": f"<b>{title}</b>", "x": 0, "xref": "container", "pad": {"l": 12}, "font": {"size": 13}},
    )
    slug = f"flame-{library}-{label}".lower().replace(" ", "-")
    return Drawn(slug, figure, chosen, found.origins, "QUIC on the Highway, Fig. 4")


def flames(
    found: Measured, root: Path, titles: Mapping[str, str] | None = None, label: str = "AES-128-GCM"
) -> list[Drawn]:
    """A flame graph of every library that was measured with itself, with one variant."""
    own = found.shares.filter(
        (pl.col("client_library") == pl.col("server_library"))
        & (pl.col("label") == label)
        & pl.col("share").is_not_null()
    )
    return [flame(found, root, library, label, titles) for library in own["client_library"].unique().sort()]


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
    return go.Icicle(
        ids=["\x00".join((role, *path)) for path in kept],
        parents=["\x00".join((role, *path[:-1])) if path else "" for path in kept],
        labels=[path[-1].partition("`")[2] if path else role for path in kept],
        values=[samples[path] for path in kept],
        branchvalues="total",
        marker={"colors": [COLOURS[categories[path].most_common(1)[0][0]] for path in kept]},
        text=[categories[path].most_common(1)[0][0] for path in kept],
        textinfo="label",
        hovertemplate="%{label}<br>%{value} samples, %{percentRoot:.2%}<br>mostly %{text}<extra></extra>",
        tiling={"orientation": "v"},
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
