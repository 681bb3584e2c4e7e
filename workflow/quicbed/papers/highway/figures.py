"""Figures of "QUIC on the Highway": what its authors measured, from their raw data, next to what was measured here.

Every figure has both on axes of their own, and where neither is there, it is not drawn. Values that a library of either
side does not have are said in place.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison, cpu_shares
from quicbed.analysis.place import Place
from quicbed.figures import findings, goodput, layout, output
from quicbed.figures.output import Drawn
from quicbed.figures.sheets import Sheet, leading
from quicbed.importers.names import TITLES
from quicbed.papers.highway import analysis
from quicbed.papers.highway.analysis import Figure, Published
from quicbed.store import runs

PUBLISHED, OWN = "published", "measured"
PREFIX = "highway-"
"""What the names of all its figures and tables begin with."""
COLOURS: Mapping[str, str] = {PUBLISHED: layout.BLUE, OWN: layout.VERMILION}
ROLE_COLOURS: Mapping[str, str] = {"client": layout.SKY, "server": layout.BLUE}
WIDE = 5
"""Settings with which two panels stand beside each other instead of four."""
FACET_PX, ROOM = 176, 1.26
"""Height of a panel with what is below it, and how far its axis goes, in times the largest value."""
CAPTION_WIDTH = 122  # characters
CAPTION_LINES = 2
"""As many have room below the panels of a figure; more of them make it higher."""
DEVIATING = "\N{PILCROW SIGN}"
"""Behind a published value that was not measured as its figure says."""
MARGINS: dict[str, Any] = {"left": 60, "top": 56, "bottom": 86, "size": 10.5}
PAPER = "QUIC on the Highway"


# ---- all of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """Every figure that could be drawn, saved, by name."""

    saved: Mapping[str, output.Saved]
    tables: Mapping[str, pl.DataFrame]
    """Those behind the figures, and one that is no figure: that of a single pair of hosts."""
    titles: Mapping[str, str]

    def show(self, name: str) -> output.Saved | output.NotMeasured | None:
        """A figure; where there is none, how to measure ours; None where ours is in another figure or in a table."""
        if name in self.tables:
            return self.saved.get(name)
        experiment = next((one.experiment for one in analysis.FIGURES if one.name == name and one.alone), None)
        return output.NotMeasured(experiment) if experiment else None

    def found(self, name: str, labels: Mapping[str, str]) -> findings.Found | None:
        """What our runs of a figure of `by_setting` show, by label and the words that a sentence begins with."""
        if name not in self.tables:
            return None
        table = self.tables[name]
        own = table.filter(pl.col("source") != analysis.SOURCE)
        if name == analysis.FIG9.name:  # whose settings are our testbeds
            native = own.filter(pl.col("baseline").is_not_null()).select("label", "baseline").unique().sort("label")
            labels = {label: f"Goodput built for the processor, {host}" for label, host in native.rows()}
        if name == analysis.DROPS.name:
            return findings.drops(own, ("1x", "32x"), self.titles)
        return findings.contrasts(own, labels, self.titles)

    def sheet(self, name: str) -> Sheet | None:
        """The table behind a figure of `by_setting`; None where nothing was measured."""
        if name not in self.tables:
            return None
        unit = next(figure.unit for figure in analysis.FIGURES if figure.name == name)
        return setting_sheet(self.tables[name], unit, self.titles)


def beside(
    published: Published,
    table: pl.DataFrame,
    pairs: tuple[pl.DataFrame, pl.DataFrame],
    measured: cpu_shares.Profiled,
    here: Place,
    titles: Mapping[str, str],
) -> Beside:
    """Draw every figure and write it and its table.

    *table* holds our runs, *pairs* the newest campaign of pairwise and its table, *measured* our perf samples. The
    figure of pairs of hosts has the other testbeds of ours too; of a single pair there is only the table. What an
    earlier call wrote is removed: it may show a copy that is not told any more.
    """
    others = table.clear() if here.reference else analysis.of_other_testbeds(here.raw, analysis.FIG9.experiment)
    by_host = pl.concat([table, others])
    drawn = [
        all_pairs(published, analysis.FIG3, *pairs, "208 KiB", titles),
        all_pairs(published, analysis.FIG10, *pairs, "6.5 MiB", titles),
        samples(published, measured, "AES-128-GCM", titles),
        *(
            by_setting(figure, published, by_host if figure is analysis.FIG9 else table, titles)
            for figure in analysis.FIGURES
        ),
    ]
    found = [one for one in drawn if one is not None]
    tables = {one.name: one.table for one in found}
    saved = output.save_all(found, PREFIX, here)
    hosts = pl.concat(_summaries(analysis.FIG9, published, by_host)[:2])
    if not hosts.is_empty():
        tables[analysis.FIG9.name] = hosts
        comparison.write_figure_table(hosts, analysis.FIG9.name, here.tables)
    return Beside(saved, tables, titles)


# ---- settings of single libraries ------------------------------------------------------------------------------------


def by_setting(
    figure: Figure, published: Published, table: pl.DataFrame, titles: Mapping[str, str] | None = None
) -> Drawn | None:
    """Fig. 5 to 9: a panel for each library, published and measured ones of the same library beside each other.

    *table* holds our runs. None where there is nothing to draw, or only one pair of hosts to compare.
    """
    names = TITLES | dict(titles or {})
    ours, theirs, campaigns = _summaries(figure, published, table)
    if theirs.is_empty() and (ours.is_empty() or not figure.alone):
        return None
    if figure is analysis.FIG9 and theirs.is_empty() and ours["testbed"].n_unique() == 1:
        return None
    panels = _panels(theirs, ours, names)
    columns = min(len(panels), 2 if len(figure.labels) >= WIDE else 4)
    drawing, places = layout.panels(len(panels), columns, below=0.36, beside=0.055 + 0.02 * (columns == 2))
    unlike = {str(row["library"]) for row in ours.to_dicts() if _unlike_itself(row)}
    for (library, source, cells), place in zip(panels, places, strict=True):
        mark = f" {goodput.UNLIKE_ITSELF}" if source == OWN and library in unlike else ""
        title = names.get(library, library) + mark
        _setting_panel(drawing, figure, cells, source, title, not theirs.is_empty(), place)
    _axes(drawing)
    caption = "Box: quartiles; line: median; diamond: mean; whiskers: smallest and largest run. "
    caption += _sides(figure, bool(len(theirs) and len(ours))) + goodput.disturbed(*campaigns)
    if figure.name == analysis.FIG9.name and len(theirs):
        hosts = (f"{name} {processor}" for name, processor in analysis.PROCESSORS.items())
        caption += f" Published processors: {', '.join(hosts)}."
    if different := sorted(set(theirs["deviation"].drop_nulls())):
        caption += f" {DEVIATING} not measured as the figure says: {', or '.join(map(html.escape, different))}."
    lines = textwrap.wrap(caption, CAPTION_WIDTH) + [goodput.UNLIKE_ITSELF_MEANS] * bool(unlike)
    more = 12 * max(0, len(lines) - CAPTION_LINES)
    layout.finish(
        drawing,
        f"{figure.title} ({PAPER}, {figure.number})",
        _sources(theirs, published, campaigns, figure.experiment),
        "<br>".join(lines),
        campaigns,
        height=120 + more + places[-1]["row"] * FACET_PX,
        **MARGINS | {"bottom": MARGINS["bottom"] + more},
    )
    used = [one for own in campaigns for one in comparison.used_origins(own, own["cell"].unique().to_list())]
    origins = used + sorted(analysis.settings(figure, published.runs).drop_nulls("value")["origin"])
    return Drawn(figure.name, drawing, pl.concat([ours, theirs]), origins, f"{PAPER}, {figure.number}", figure.name)


def _summaries(
    figure: Figure, published: Published, table: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[pl.DataFrame]]:
    """Rows of `analysis.SUMMARY` of ours and of theirs, and our campaigns, of the runs in *table*."""
    campaigns = analysis.own_campaigns(figure, table)
    return (
        analysis.own_summary(figure, campaigns),
        analysis.published_summary(figure, published.runs),
        campaigns,
    )


def _unlike_itself(row: Mapping[str, Any]) -> bool:
    """Whether the A/A interval of a row of `analysis.SUMMARY` excludes 1."""
    return row["aa_low"] is not None and not row["aa_low"] <= 1 <= row["aa_high"]


def _panels(
    theirs: pl.DataFrame, ours: pl.DataFrame, names: Mapping[str, str]
) -> list[tuple[str, str, pl.DataFrame | None]]:
    """Library, source and cells of each panel: pairs of panels of what the paper has, then our other libraries."""
    order = [*analysis.LIBRARIES[::-1], "tcp-tls"]
    published = sorted(set(theirs["library"]), key=lambda name: (name not in order, order.index(name), name))
    others = sorted(set(ours["library"]) - set(published), key=lambda name: names.get(name, name).lower())
    found: list[tuple[str, str, pl.DataFrame | None]] = []
    for library in published:
        found.append((library, PUBLISHED, theirs.filter(pl.col("library") == library)))
        mine = ours.filter(pl.col("library") == library)
        if not ours.is_empty():
            found.append((library, OWN, None if mine.is_empty() else mine))
    return found + [(library, OWN, ours.filter(pl.col("library") == library)) for library in others]


def _sides(figure: Figure, both: bool) -> str:
    """What is compared with what."""
    bases = sorted(set(figure.baseline.values()))
    parts = []
    if len(bases) == 1:
        parts.append(
            f"Above: change in % \N{PLUS-MINUS SIGN} half its 95 % interval, compared with {html.escape(bases[0])}."
        )
    elif bases:
        native = f"builds for this processor ({analysis.NATIVE})"
        parts.append(
            f"Above: change in % \N{PLUS-MINUS SIGN} half its 95 % interval, {native} compared with the others."
        )
    parts.append("Vertical axes differ")
    if both and figure.sides:
        parts[-1] += f"; {figure.sides}"
    return " ".join(parts) + "."


def _setting_panel(
    drawing: go.Figure,
    figure: Figure,
    cells: pl.DataFrame | None,
    source: str,
    title: str,
    of_two: bool,
    place: Mapping[str, int],
) -> None:
    """Boxes of one library and source; *of_two*: the source is named, because there is another one."""
    colour = COLOURS[source]
    by_label = {row["label"]: row for row in cells.to_dicts()} if cells is not None else {}
    # ours may have settings of their own: other hosts
    labels = figure.labels if not by_label or set(by_label) & set(figure.labels) else tuple(by_label)
    half = max(len(labels) / 2, len(figure.labels) / 4) + 0.1
    shown = [(position, by_label[label]) for position, label in enumerate(labels) if label in by_label]
    drawn = [(position, cell) for position, cell in shown if cell["n"]]
    top = max((cell["max"] for _, cell in drawn), default=0.0) or 1.0
    drawing.add_box(
        x=[position for position, _ in drawn],
        q1=[cell["q1"] for _, cell in drawn],
        median=[cell["median"] for _, cell in drawn],
        q3=[cell["q3"] for _, cell in drawn],
        lowerfence=[cell["min"] for _, cell in drawn],
        upperfence=[cell["max"] for _, cell in drawn],
        width=0.6,
        fillcolor=goodput._rgba(colour, 0.3),
        line={"color": colour, "width": 1.1},
        whiskerwidth=0.5,
        hoverinfo="skip",
        showlegend=False,
        **place,
    )
    drawing.add_scatter(
        x=[position for position, _ in drawn],
        y=[cell["mean"] for _, cell in drawn],
        mode="markers",
        marker={"symbol": "diamond", "size": 5, "color": "white", "line": {"color": layout.INK, "width": 1}},
        hovertext=[_hover(cell, title, figure) for _, cell in drawn],
        hoverinfo="text",
        showlegend=False,
        **place,
    )
    for position, cell in drawn:
        compared = cell["ratio"] is not None and cell["baseline"]
        if compared or cell["deviation"]:
            drawing.add_annotation(
                x=position,
                y=cell["max"],
                text=(_change(cell) if compared else "") + (DEVIATING if cell["deviation"] else ""),
                yanchor="bottom",
                yshift=2,  # clear of the mean where all runs are alike
                showarrow=False,
                font={"size": 8.5, "color": layout.SOFT},
                **place,
            )
    for position, cell in shown:
        if not cell["n"]:
            text = "failed" if cell["failed"] else "unsupported" if source == OWN else "no value"
            layout.in_place(drawing, position, text, cell["problem"] or "", place)
    if not shown:
        drawing.add_annotation(
            x=(len(labels) - 1) / 2,
            y=0.5,
            text="not among our libraries,<br>or not measured",
            showarrow=False,
            font={"size": 10, "color": layout.SOFT},
            **place,
        )
    drawing.update_xaxes(
        tickvals=list(range(len(labels))),
        ticktext=[_tick(label, labels) for label in labels],
        range=[(len(labels) - 1) / 2 - half, (len(labels) - 1) / 2 + half],
        tickangle=0,
        title={
            "text": f"<b>{html.escape(title)}</b>" + f", <span style='color:{colour}'>{source}</span>" * of_two,
            "font": {"size": 11},
            "standoff": 3,
        },
        **place,
    )
    drawing.update_yaxes(range=[0, ROOM * top], nticks=5, showticklabels=bool(drawn), **place)
    if place["col"] == 1:
        drawing.update_yaxes(title={"text": figure.unit, "font": {"size": 10.5}, "standoff": 4}, **place)


def _change(cell: Mapping[str, Any]) -> str:
    """A ratio as a change in per cent, and below it half the length of its interval."""
    if cell["ratio_low"] is None:
        return goodput.signed(goodput.percent(cell["ratio"]))
    half = 50 * (cell["ratio_high"] - cell["ratio_low"])
    return f"{goodput.signed(goodput.percent(cell['ratio']))}<br>\N{PLUS-MINUS SIGN}{half:.1f}"


_TICKS: Mapping[str, str] = {
    "AES without AES-NI": "AES<br>w/o NI",
    "AES with AES-NI": "AES-NI",
    "ChaCha20": "Cha-<br>Cha20",
    "gso-gro": "GSO,<br>GRO",
}


def _tick(label: str, labels: Sequence[str]) -> str:
    # beside the same hosts with other builds
    if label.endswith(analysis.NATIVE) and label.removesuffix(analysis.NATIVE) in labels:
        return analysis.NATIVE
    return _TICKS.get(label, html.escape(label))


def _hover(cell: Mapping[str, Any], title: str, figure: Figure) -> str:
    lines = [
        f"<b>{html.escape(title)}, {html.escape(cell['label'])}</b>",
        f"{figure.unit}: mean {cell['mean']:.3f}, median {cell['median']:.3f}",
        f"n = {cell['n']}, failed {cell['failed']}",
        f"{cell['experiment']}, {cell['testbed']}",
    ]
    if cell["deviation"]:
        lines.append(html.escape(cell["deviation"]))
    if cell["ratio"] is not None and cell["baseline"]:
        lines.append(f"{goodput._interval_text(cell['ratio'], cell['ratio_low'], cell['ratio_high'])}")
    return "<br>".join(lines)


def setting_sheet(table: pl.DataFrame, unit: str, titles: Mapping[str, str] | None = None) -> Sheet:
    """Rows of `analysis.SUMMARY` to read: published and measured changes of a library side by side.

    Published ones have columns only where there are any. *unit* is what means are of, with its unit in brackets.
    """
    names = TITLES | dict(titles or {})
    theirs = _by_cell(table.filter(pl.col("source") == analysis.SOURCE))
    ours = _by_cell(table.filter(pl.col("source") != analysis.SOURCE))
    sides = {"published": theirs, "measured here": ours} if theirs else {"measured here": ours}
    keys = list(dict.fromkeys([*theirs, *ours]))
    keys.sort(key=lambda key: (key not in theirs, names.get(key[0], key[0]).lower()))
    headers = ["library", "setting"]
    for side in sides:
        headers += [f"{side}: n", f"mean of {unit[0].lower()}{unit[1:]}", "ratio", "95 % interval"]
    unlike = {key[0] for key, row in ours.items() if _unlike_itself(row)}
    rows = []
    values: list[str | None] = []
    ratios: list[str | None] = []
    for library, label in keys:
        cells = [found.get((library, label)) for found in sides.values()]
        values.append(_selection(cells[-1], "cell"))
        ratios.append(_selection(cells[-1], "cell", "baseline_cell"))
        told = (cell[key] for cell in cells if cell for key in ("problem", "deviation"))
        remark = "; ".join(filter(None, told))
        setting = label.replace(analysis.NATIVE, ", built for its processor")
        numbers = (number for cell in cells for number in _numbers(cell))
        name = names.get(library, library) + f" {goodput.UNLIKE_ITSELF}" * (library in unlike)
        rows.append([name, setting, *numbers, remark])
    first, after = len(headers) - 4, len(headers)
    behind = leading(values, (first, first + 1)) | leading(ratios, (first + 2, first + 3))
    notes = [goodput.UNLIKE_ITSELF_MEANS] if unlike else []
    return Sheet([*headers, "remark"], rows, frozenset(range(2, after)), notes, behind)


def _selection(row: Mapping[str, Any] | None, *columns: str) -> str | None:
    """What selects the runs of the cells that a row of ours has in *columns*."""
    if row is None:
        return None
    return runs.selection(row["campaign"], *filter(None, (row[column] for column in columns)))


def _by_cell(table: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["library"], row["label"]): row for row in table.to_dicts()}


def _numbers(cell: Mapping[str, Any] | None) -> list[str | None]:
    if cell is None or not cell["n"]:
        return [None] * 4
    compared = cell["ratio"] is not None and cell["baseline"]
    interval = f"{cell['ratio_low']:.3f} to {cell['ratio_high']:.3f}" if compared and cell["ratio_low"] else None
    return [str(cell["n"]), f"{cell['mean']:.3f}", f"{cell['ratio']:.3f}" if compared else None, interval]


# ---- every client with every server ----------------------------------------------------------------------------------


def all_pairs(
    published: Published,
    directory: str,
    campaign: pl.DataFrame,
    table: pl.DataFrame,
    label: str,
    titles: Mapping[str, str] | None = None,
) -> Drawn | None:
    """Fig. 3 and 10: published pairs, and ours with the same buffers, as `quicbed.analysis.pairs.pair_table` has them.

    None without published pairs; ours alone are in a figure of their own.
    """
    theirs = analysis.published_pairs(published.runs, directory)
    if theirs.is_empty():
        return None
    names = TITLES | dict(titles or {})
    ours = table.filter((pl.col("arm") == "main") & (pl.col("label") == label)) if not table.is_empty() else table
    sides: list[tuple[str, list[dict[str, Any]]]] = [(PUBLISHED, theirs.to_dicts())]
    if not ours.is_empty():
        sides.append((OWN, ours.to_dicts()))
    libraries = [_libraries(cells, side, names) for side, cells in sides]
    widths = [len(found) + 1.5 for found in libraries]
    drawing = make_subplots(
        rows=1,
        cols=len(sides),
        column_widths=widths,
        horizontal_spacing=0.13,
        subplot_titles=[f"<b>{side}</b>" for side, _ in sides],
    )
    drawing.update_annotations(font_size=12)
    for number, ((side, cells), order) in enumerate(zip(sides, libraries, strict=True), 1):
        _heat_map(drawing, cells, order, side, names, {"row": 1, "col": number})
    number_of = analysis.NUMBERS[directory]
    deviating = theirs.filter(pl.col("deviation").is_not_null())
    caption = ["Mean goodput in Gbit/s; colours from 0 to the largest of each side. Rows are clients, columns servers."]
    if not deviating.is_empty():
        different = sorted(set(deviating["deviation"]))
        caption.append(f"{DEVIATING} not measured as the figure says: " + ", or ".join(different) + ".")
    rows = max(len(found) for found in libraries)
    _axes(drawing)
    layout.finish(
        drawing,
        f"Goodput of every client with every server, receive buffers of {label} ({PAPER}, {number_of})",
        _sources(theirs, published, [campaign], "pairwise"),
        "<br>".join(caption),
        [campaign] if len(sides) > 1 else [],
        height=150 + 30 * rows,
        **MARGINS | {"left": 74, "bottom": 108 + 12 * (len(caption) - 1)},
    )
    shown = pl.concat([_as_pairs(ours, campaign), theirs]) if len(sides) > 1 else theirs
    origins = comparison.used_origins(campaign, ours["cell"].to_list()) if len(sides) > 1 else []
    used = analysis.in_directory(published.runs, directory).filter(pl.col("status") == "ok")
    name = f"highway-{number_of.lower().replace('. ', '')}"
    return Drawn(name, drawing, shown, origins + sorted(used["origin"]), f"{PAPER}, {number_of}", name)


def _as_pairs(ours: pl.DataFrame, campaign: pl.DataFrame) -> pl.DataFrame:
    """Our pairs with the columns of the published ones."""
    source = campaign.select("cell", "source").unique("cell", keep="last")
    joined = ours.join(source, on="cell", how="left")
    missing = [
        pl.lit(None, dtype=kind).alias(name) for name, kind in analysis.PAIR.items() if name not in joined.columns
    ]
    return joined.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in analysis.PAIR.items())


def _libraries(cells: Sequence[Mapping[str, Any]], side: str, names: Mapping[str, str]) -> list[str]:
    found = {cell[f"{role}_library"] for cell in cells for role in ("client", "server")}
    if side == PUBLISHED:
        return sorted(
            found,
            key=lambda name: (analysis.LIBRARIES.index(name) if name in analysis.LIBRARIES else 99, name),
        )
    return sorted(found, key=lambda name: names.get(name, name).lower())


def _heat_map(
    drawing: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    side: str,
    names: Mapping[str, str],
    place: Mapping[str, int],
) -> None:
    by_pair = {(cell["client_library"], cell["server_library"]): cell for cell in cells}
    grid = [[by_pair.get((client, server)) for server in order] for client in order]
    shown = [html.escape(names.get(name, name)) for name in order]
    drawing.add_heatmap(
        x=shown,
        y=shown,
        z=[[cell["mean"] / 1000 if cell and cell["n"] else None for cell in row] for row in grid],
        text=[[_pair_text(cell) for cell in row] for row in grid],
        hovertext=[[_pair_hover(cell, names) for cell in row] for row in grid],
        texttemplate="%{text}",
        textfont={"size": 9.5 if len(order) <= 8 else 8},
        hovertemplate="%{hovertext}<extra></extra>",
        hoverongaps=True,
        zmin=0,
        colorscale="Blues" if side == PUBLISHED else "Oranges",
        xgap=1,
        ygap=1,
        showscale=False,
        **place,
    )
    drawing.update_yaxes(autorange="reversed", ticks="", showgrid=False, tickfont={"size": 10}, **place)
    drawing.update_xaxes(ticks="", showgrid=False, tickangle=-40, tickfont={"size": 10}, **place)


def _pair_text(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    if not cell["n"]:
        return "unsup." if cell.get("unsupported") else "failed"
    return f"{cell['mean'] / 1000:.2f}" + (DEVIATING if cell.get("deviation") else "")


def _pair_hover(cell: Mapping[str, Any] | None, names: Mapping[str, str]) -> str:
    if cell is None:
        return "not paired"
    client, server = (names.get(cell[f"{role}_library"], cell[f"{role}_library"]) for role in ("client", "server"))
    lines = [f"<b>client {html.escape(client)}, server {html.escape(server)}</b>"]
    if cell["n"]:
        lines.append(f"mean {cell['mean'] / 1000:.3f} Gbit/s, n = {cell['n']}, failed {cell['failed']}")
    if cell["n"] and cell["mean_low"] is not None:
        lines.append(f"95 % interval {cell['mean_low'] / 1000:.3f} to {cell['mean_high'] / 1000:.3f}")
    lines += [html.escape(cell[key]) for key in ("deviation", "unsupported", "failure") if cell.get(key)]
    return "<br>".join(lines)


# ---- perf samples ----------------------------------------------------------------------------------------------------


def samples(
    published: Published, measured: cpu_shares.Profiled, label: str, titles: Mapping[str, str] | None = None
) -> Drawn | None:
    """Fig. 4: shares of perf samples by category, of clients and servers; None without published samples."""
    theirs = analysis.published_shares(published)
    if theirs.is_empty():
        return None
    names = TITLES | dict(titles or {})
    ours = analysis.own_shares(measured.shares, measured.blocks, label)
    panels = [(library, source, cells) for library, source, cells in _panels(theirs, ours, names) if cells is not None]
    drawing, places = layout.panels(len(panels), below=0.36, beside=0.05)
    for number, ((library, source, cells), place) in enumerate(zip(panels, places, strict=True)):
        _share_panel(drawing, cells, source, names.get(library, library), number == 0, place)
    highest = max(part["mean"].max() or 0.0 for part in (theirs, ours))
    drawing.update_yaxes(range=[0, 100 if highest > 75 else 80], nticks=5)  # type: ignore[operator]
    _axes(drawing)
    layout.finish(
        drawing,
        f"Where processor time goes ({PAPER}, Fig. 4)",
        _sources(theirs, published, [measured.campaign], cpu_shares.EXPERIMENT),
        "Mean share of samples with its 95 % interval. Published: of all samples of the host; ours, "
        f"{html.escape(label)}: of those of the endpoint.<br>"
        "Ours: I/O is the application's; Kernel, which the paper lacks, excludes packet I/O.",
        [measured.campaign],
        height=134 + places[-1]["row"] * FACET_PX,
        **MARGINS,
        legend=layout.IN_CORNER,
    )
    drawing.update_layout(barmode="group", bargap=0.25)
    origins = sorted(set(published.shares["origin"]))
    name = "highway-fig4"
    return Drawn(name, drawing, pl.concat([ours, theirs]), measured.origins + origins, f"{PAPER}, Fig. 4", name)


def _share_panel(
    drawing: go.Figure, cells: pl.DataFrame, source: str, title: str, in_legend: bool, place: Mapping[str, int]
) -> None:
    short = [name.replace(" ", "<br>", 1).replace("Uncategorised", "Uncat.") for name in analysis.CATEGORIES]
    for role in ("client", "server"):
        found = {row["category"]: row for row in cells.filter(pl.col("role") == role).to_dicts()}
        shown = [found.get(name) for name in analysis.CATEGORIES]
        drawing.add_bar(
            x=short,
            y=[cell["mean"] if cell else None for cell in shown],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [cell["high"] - cell["mean"] if cell and cell["high"] else None for cell in shown],
                "arrayminus": [cell["mean"] - cell["low"] if cell and cell["low"] else None for cell in shown],
                "thickness": 1,
                "width": 2,
            },
            name=role,
            legendgroup=role,
            showlegend=in_legend,
            marker={"color": ROLE_COLOURS[role], "line": {"width": 0}},
            hovertemplate="%{x}: %{y:.1f} %<extra>" + role + "</extra>",
            **place,
        )
    drawing.update_xaxes(
        tickangle=0,
        tickfont={"size": 8},
        title={
            "text": f"<b>{html.escape(title)}</b>, <span style='color:{COLOURS[source]}'>{source}</span>",
            "font": {"size": 11},
            "standoff": 3,
        },
        **place,
    )
    if place["col"] == 1:
        drawing.update_yaxes(title={"text": "Samples [%]", "font": {"size": 10.5}, "standoff": 4}, **place)


# ---- tables ----------------------------------------------------------------------------------------------------------


def implementations(published: Published) -> Sheet | None:
    """What was measured: library, build, version and pairs of hosts of the published runs; None without a copy."""
    if published.empty:
        return None
    both = pl.concat(
        published.runs.select(
            library=f"{role}_library", build=f"{role}_flavour", version=f"{role}_version", hosts="testbed"
        )
        for role in ("client", "server")
    )
    found = both.group_by("library", "build").agg(
        versions=pl.col("version").drop_nulls().unique().sort(), hosts=pl.col("hosts").drop_nulls().unique().sort()
    )
    rows = [
        [
            TITLES.get(row["library"], row["library"]),
            row["build"],
            ", ".join(row["versions"]),
            ", ".join(analysis.PAIRS_OF_HOSTS.get(pair.partition("-")[0], pair) for pair in row["hosts"]),
        ]
        for row in found.sort("library", "build").to_dicts()
    ]
    return Sheet(["library", "build", "versions", "pairs of hosts"], rows)


def difference_sheet(published: Published, directory: Path) -> Sheet | None:
    """The table of `analysis.differences`, also written to *directory*; None without a copy."""
    if published.empty:
        return None
    found = analysis.differences(published)
    comparison.write_figure_table(found, "highway-differences", directory)
    rows = [
        [
            row["figure"],
            row["file"],
            row["quantity"],
            row["problem"],
            row["differing"],
            row["compared"] if row["quantity"] else None,
            f"{100 * row['largest']:.3g} %" if row["largest"] is not None else None,
        ]
        for row in found.to_dicts()
    ]
    headers = ["figure", "file", "quantity", "the file has", "repetitions", "of", "largest difference"]
    return Sheet(headers, rows, frozenset({4, 5, 6}))


def changed_sheet(published: Published, directory: Path) -> Sheet | Published:
    """The table of `analysis.changed_means`, also written to *directory*.

    Without a copy, what says how to get one.
    """
    if published.empty:
        return published
    found = analysis.changed_means(published)
    comparison.write_figure_table(found, "highway-changed-means", directory)
    rows = [
        [
            row["figure"],
            row["slug"],
            row["experiment"],
            _mbit(row["processed"]),
            row["processed_n"],
            _mbit(row["raw"]),
            row["raw_n"],
            f"{100 * row['change']:+.3f} %" if row["change"] is not None else None,
        ]
        for row in found.to_dicts()
    ]
    headers = ["figure", "server_client", "experiment", "mean of processed.csv [Mbit/s]", "n"]
    return Sheet([*headers, "mean of the raw files [Mbit/s]", "n", "difference"], rows, frozenset(range(3, 8)))


def _mbit(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def deviations(published: Published) -> Sheet | None:
    """Pairs of Fig. 3 and 10 and settings of Fig. 7 and 8 that were not measured as the figure says.

    Of Fig. 7 and 8 also those runs that were left out because others of the same setting were. None without a copy.
    """
    if published.empty:
        return None
    rows: list[list[Any]] = []
    for directory in (analysis.FIG3, analysis.FIG10):
        pairs = analysis.published_pairs(published.runs, directory)
        for pair in pairs.filter(pl.col("deviation").is_not_null()).to_dicts():
            client, server = (TITLES.get(pair[key], pair[key]) for key in ("client_library", "server_library"))
            rows.append([analysis.NUMBERS[directory], None, client, server, pair["n"], pair["deviation"]])
    for figure in (analysis.FIG7, analysis.FIG8):
        other = analysis.labelled(figure, published.runs).filter(pl.col("deviation").is_not_null())
        counted = other.group_by("label", "client_library", "deviation").agg(pl.col("value").count())
        for label, library, deviation, n in counted.sort(counted.columns[:3]).rows():
            title = TITLES.get(library, library)
            rows.append([figure.number, label, title, title, n, deviation])
    return Sheet(["figure", "setting", "client", "server", "n", "measured with"], rows, frozenset({4}))


# ---- what all figures look like --------------------------------------------------------------------------------------


def _sources(
    theirs: pl.DataFrame, published: Published, campaigns: Sequence[pl.DataFrame], experiment: str
) -> list[str]:
    """What both sides were measured under; ours alone where there is no local copy of the published results."""
    ours = [goodput.conditions(one) for one in campaigns if not one.is_empty()]
    if published.empty:
        return ours
    hosts = sorted({pair for text in theirs["testbed"].drop_nulls() for pair in text.split(", ") if pair})
    most = int(theirs["n"].max() or 0)  # type: ignore[arg-type]
    shown = f"{most} repetitions at most, hosts {', '.join(hosts)}" if len(theirs) else "nothing in the local copy"
    return [
        f"published: {shown}",
        *(f"measured here: {one}" for one in ours or [f"nothing yet, see experiment {experiment}"]),
    ]


def _axes(drawing: go.Figure) -> None:
    drawing.update_xaxes(**layout.AXIS)
    drawing.update_yaxes(**layout.VALUES)
