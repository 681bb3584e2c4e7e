"""Figures of web pages: times by round-trip time, rate and page over HTTP/3 and HTTP/2, and by their cryptography."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.papers.workloads import web

SOURCE = "Evaluating QUIC Performance over Web, Cloud Storage and Video Workloads, web"
COLOURS = (layout.BLUE, layout.VERMILION, layout.GREEN, layout.PINK)
SYMBOLS = ("circle", "square", "diamond", "cross")
PANELS = {
    "rtt": ("No loss", "round-trip time [ms]"),
    "loss": ("1 % of frames lost", "round-trip time [ms]"),
    "rate": ("Rate", "rate [Mbit/s]"),
    "page": ("Page", ""),
}
"""Title and axis of a panel of `web.PANELS`, from left to right."""
NAMES = {"nginx-h3": "HTTP/3", "tcp-tls": "HTTP/2"}
"""What nginx speaks with each library; of others, their own names."""

TITLES = web.METRICS | web.DRAWN

VISITS = {None: "first visit", "resumed": "resumed", "early-data": "0-RTT", "kept": "kept open"}
"""What a visit is called."""

CHARACTER_PX = 5.6
"""Of a label, on average."""

Series = tuple[str, str | None]
"""A library and, over TCP, a version of TLS."""
Kind = tuple[str | None, str, str, float]
"""Visit, group, signature algorithm and round-trip time of a cell."""
Gap = tuple[str, Series, str]
"""Why there is no value, and of which series and cells."""
NO_VALUE = "\N{MULTIPLICATION SIGN}"
"""Stands on the horizontal axis in place of a value."""


def times(campaign: pl.DataFrame, table: pl.DataFrame, ratios: pl.DataFrame, metric: str) -> output.Drawn:
    """A metric by round-trip time, rate and page, and below it HTTP/3 against HTTP/2, paired within blocks.

    *table* is that of `web.by_metric`, *ratios* that of `web.against_tcp`.
    """
    own = table.filter(pl.col("metric") == metric)
    series = all_series(own)
    gaps: list[Gap] = []
    figure = make_subplots(
        rows=2,
        cols=len(PANELS),
        shared_xaxes=True,
        shared_yaxes="rows",
        vertical_spacing=0.06,
        horizontal_spacing=0.02,
        row_heights=[0.6, 0.4],
        subplot_titles=[f"<b>{_title(name, own)}</b>" for name in PANELS],
    )
    figure.update_annotations(font_size=11)
    for column, (name, (_, axis)) in enumerate(PANELS.items(), 1):
        cells = web.panel(own, name)
        positions = list(dict.fromkeys(cells[web.PANELS[name][0]]))
        if name == "page":
            positions = _by_size(cells)
        compared = ratios.filter(pl.col("metric") == metric)
        for number, one in enumerate(series):
            place = {"col": column}
            gaps += _line(figure, _of(cells, one), positions, name, number, one, len(series), place | {"row": 1})
            _ratios(figure, cells, compared, positions, name, number, one, len(series), place | {"row": 2})
        for row in (1, 2):
            figure.update_xaxes(
                tickvals=list(range(len(positions))),
                ticktext=[_tick(value) for value in positions],
                range=[-0.5, max(len(positions) - 0.5, 0.5)],
                tickfont={"size": 9.5},
                **layout.AXIS,
                row=row,
                col=column,
            )
        figure.update_xaxes(title_text=axis, title_standoff=4, title_font={"size": 11}, row=2, col=column)
    figure.update_yaxes(**layout.VALUES, tickfont={"size": 10}, title_font={"size": 11}, title_standoff=4)
    low, high, ticks = _decades([cell[end] for cell in own.to_dicts() if cell["n"] for end in ("min", "max")])
    figure.update_yaxes(type="log", range=[low, high], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], row=1)
    compared = ratios.filter((pl.col("metric") == metric) & pl.col("low").is_not_null())
    ends = _around_zero([goodput.percent(value) for key in ("low", "high") for value in compared[key]])
    figure.update_yaxes(zeroline=True, zerolinecolor=layout.INK, range=ends, row=2)
    figure.update_yaxes(title_text="ms", row=1, col=1)
    figure.update_yaxes(title_text="difference [%]", row=2, col=1)
    without = _without_value(gaps, series)
    layout.finish(
        figure,
        f"{TITLES[metric]} of web pages{_in_browser(campaign)}",
        _conditions(campaign, own),
        "Above: means, bars from the smallest to the largest run. Below: HTTP/3 against HTTP/2 with each version of "
        "TLS, ratios paired within blocks,<br>95 % interval; below 0 HTTP/3 is faster. "
        f"{_begin(metric)}" + goodput.disturbed(campaign) + "".join(f"<br>{line}" for line in without),
        [campaign],
        height=440 + 12 * len(without),
        bottom=88 + 12 * len(without),
        legend=layout.IN_CORNER,
    )
    origins = comparison.used_origins(campaign, own.filter(pl.col("arm") == "main")["cell"].to_list())
    experiment = str(campaign["experiment"][0])
    return output.Drawn(f"{experiment}-{_file(metric)}", figure, table, origins, SOURCE, experiment)


def cryptography(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """What post-quantum key exchange and certificates change of connection and page load time, with intervals."""
    return _changes(campaign, table, "cryptography", "Post-quantum cryptography and web pages", "an RSA certificate")


def chains(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """What chains of certificates change of connection and page load time, with intervals."""
    return _changes(campaign, table, "chains", "Chains of certificates and web pages", "one RSA certificate")


def handshakes(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """What hybrid key exchange and chains of certificates change of pages in a browser, with intervals."""
    return _changes(campaign, table, "handshake", "Handshakes and web pages in Chromium", "one RSA certificate")


def _changes(campaign: pl.DataFrame, table: pl.DataFrame, panel: str, title: str, base: str) -> output.Drawn:
    """Differences of the cells of a panel to the baseline, which has X25519 with *base*."""
    last = "largest_contentful_paint_ms" if web.DRAWN.keys() & set(table["metric"]) else "page_load_ms"
    metrics = ("connection_ms", last)
    experiment = str(campaign["experiment"][0])
    figure = make_subplots(rows=1, cols=len(metrics), shared_yaxes=True, horizontal_spacing=0.04)
    for column, metric in enumerate(metrics, 1):
        cells = web.panel(table.filter(pl.col("metric") == metric), panel)
        compared = pl.col("baseline").is_not_null() & (pl.col("n") > 0)
        cells = cells.filter(compared & ~pl.col("tls_version").eq_missing("TLSv1.2"))
        labels = list(dict.fromkeys(cells["label"]))
        series = all_series(cells)
        for number, one in enumerate(series):
            shown = [cell for cell in _of(cells, one) if cell["ratio_low"] is not None]
            values = [[goodput.percent(cell[key]) for cell in shown] for key in ("ratio", "ratio_low", "ratio_high")]
            figure.add_scatter(
                x=values[0],
                y=[labels.index(cell["label"]) + _beside(number, len(series)) for cell in shown],
                error_x=_interval(*values),
                mode="markers",
                name=named(one),
                marker=marker(number),
                hovertext=[_hover(cell, metric) for cell in shown],
                hoverinfo="text",
                showlegend=column == 1,
                row=1,
                col=column,
            )
        # the first at the top
        figure.update_yaxes(
            tickvals=list(range(len(labels))),
            ticktext=[html.escape(label) for label in labels],
            range=[max(len(labels) - 0.5, 0.5), -0.5],
            row=1,
            col=column,
        )
        ends = _around_zero(
            [goodput.percent(value) for key in ("ratio_low", "ratio_high") for value in cells[key].drop_nulls()]
        )
        figure.update_xaxes(title_text=f"{TITLES[metric].lower()} [%]", range=ends, row=1, col=column)
    figure.update_xaxes(**(dict(layout.VALUES) | {"zeroline": True, "zerolinecolor": layout.INK}))
    figure.update_xaxes(tickfont={"size": 10}, title_font={"size": 11}, title_standoff=4)
    figure.update_yaxes(**layout.AXIS, tickfont={"size": 10})
    layout.finish(
        figure,
        title,
        _conditions(campaign, table),
        f"Difference to X25519 with {base} over the same protocol: geometric mean of ratios paired within blocks,<br>"
        "95 % interval." + goodput.disturbed(campaign),
        [campaign],
        height=270 + 18 * len(labels),
        left=max(70, round(24 + CHARACTER_PX * max(map(len, labels), default=0))),
        bottom=96,
        legend=layout.IN_CORNER,
    )
    shown_cells = web.panel(table, panel)["cell"].unique().sort().to_list()
    origins = comparison.used_origins(campaign, shown_cells)
    return output.Drawn(f"{experiment}-{panel}", figure, table, origins, SOURCE, experiment)


def visits(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn | output.NotMeasured:
    """Connection and page load time of first and second visits, side by side."""
    experiment = str(campaign["experiment"][0])
    if table.filter(pl.col("visit").is_not_null()).is_empty():
        return output.NotMeasured(experiment, what="second visits")
    last = "largest_contentful_paint_ms" if web.DRAWN.keys() & set(table["metric"]) else "page_load_ms"
    metrics = ("connection_ms", last)
    figure = make_subplots(rows=len(metrics), cols=1, shared_xaxes=True, vertical_spacing=0.07)
    own = [web.visits(table.filter(pl.col("metric") == metric)) for metric in metrics]
    titles = _kinds(own[0])
    kinds = list(titles)
    # of the longest tick label, beyond the two that there is room for
    lines = max(max((title.count("<br>") for title in titles.values()), default=0) - 1, 0)
    gaps: list[Gap] = []
    series = all_series(own[0])
    for row, (metric, cells) in enumerate(zip(metrics, own, strict=True), 1):
        place = {"row": row, "col": 1}
        for number, one in enumerate(series):
            shown = _of(cells, one)
            known = [cell for cell in shown if cell["n"]]
            figure.add_scatter(
                x=[kinds.index(_kind(cell)) + _beside(number, len(series)) for cell in known],
                y=[cell["mean"] for cell in known],
                error_y=layout.to_extremes(known),
                mode="markers",
                name=named(one),
                marker=marker(number),
                hovertext=[_hover(cell, metric) for cell in known],
                hoverinfo="text",
                showlegend=row == 1,
                **place,
            )
            for cell in shown:
                if not cell["n"]:
                    where = kinds.index(_kind(cell)) + _beside(number, len(series))
                    text, reason = _absent(cell, metric)
                    _in_place(figure, where, number, reason, place)
                    gaps.append((text, one, VISITS[cell["visit"]]))
        figure.update_xaxes(
            tickvals=list(range(len(kinds))),
            ticktext=list(titles.values()),
            tickangle=0,
            # with room for the longest label at the end
            range=[-0.5, max(len(kinds) - 0.5, 0.5) + (0.25 if lines else 0.0)],
            tickfont={"size": 9 if lines else 9.5},
            **layout.AXIS,
            **place,
        )
        figure.update_yaxes(title_text=f"{TITLES[metric].lower()} [ms]", rangemode="tozero", **place)
    figure.update_yaxes(**layout.VALUES, tickfont={"size": 10}, title_font={"size": 11}, title_standoff=4)
    without = _without_value(gaps, series)
    lines += len(without)
    layout.finish(
        figure,
        f"First and second visits{_in_browser(campaign)}",
        _conditions(campaign, table),
        "Means, bars from the smallest to the largest run. X25519 and RSA unless stated otherwise.<br>"
        f"{_begin(last)}{_kept(own[0])}" + goodput.disturbed(campaign) + "".join(f"<br>{line}" for line in without),
        [campaign],
        height=510 + 14 * lines,
        bottom=96 + 14 * lines,
        legend=layout.IN_CORNER,
    )
    origins = comparison.used_origins(campaign, own[0]["cell"].unique().sort().to_list())
    return output.Drawn(f"{experiment}-visits", figure, table, origins, SOURCE, experiment)


def _kept(cells: pl.DataFrame) -> str:
    kept = cells.filter(pl.col("visit") == "kept")
    return (
        ""
        if kept.is_empty()
        else "<br>Kept open: over the connection of the first visit, from the beginning of the load."
    )


def _absent(cell: Mapping[str, Any], metric: str) -> tuple[str, str]:
    """As `layout.absent`; a browser reports no end of a handshake that its request does not wait for."""
    if cell["visit"] == "kept" and metric == "connection_ms" and not cell["unsupported"] and not cell["failed"]:
        return "connection open already", "the connection is that of the first visit"
    if cell["visit"] == "early-data" and not cell["unsupported"] and not cell["failed"]:
        why = "Chromium does not report when a handshake with early data is complete"
        return "connection not reported by Chromium", why
    return layout.absent(cell)


def _in_place(figure: go.Figure, x: float, number: int, reason: str, place: Mapping[str, int]) -> None:
    """A cross on the horizontal axis, in the colour of a series, with the reason where the pointer rests on it."""
    figure.add_annotation(
        x=x,
        y=0,
        yref="y domain",
        text=NO_VALUE,
        hovertext=html.escape(reason),
        yanchor="middle",  # no value stands there
        yshift=2,  # clear of what is below the axis
        showarrow=False,
        font={"size": 13, "color": COLOURS[number % len(COLOURS)]},
        **place,
    )


def _without_value(gaps: Sequence[Gap], series: Sequence[Series]) -> list[str]:
    """Lines of a caption, with markup, that say what has no value and why; none where nothing lacks one."""
    of_series: dict[str, dict[Series, dict[str, None]]] = {}
    for text, one, name in gaps:
        of_series.setdefault(text, {}).setdefault(one, {})[name] = None
    told = []
    for text, found in of_series.items():
        alike: dict[tuple[str, ...], list[Series]] = {}
        for one, names in found.items():
            alike.setdefault(tuple(names), []).append(one)
        for same, ones in alike.items():
            over = "" if len(ones) == len(series) else f" over {' and '.join(map(named, ones))}"
            told.append(f"{text} ({', '.join(same)}{over})")
    if not told:
        return []
    return [
        html.escape(line) for line in textwrap.wrap(f"{NO_VALUE} no value: {', '.join(told)}.", layout.HOST_CHARACTERS)
    ]


def _kind(cell: Mapping[str, Any]) -> Kind:
    return cell["visit"], cell["group"], cell["signature"], cell["rtt_ms"]


def _kinds(cells: pl.DataFrame) -> dict[Kind, str]:
    """What cells of visits are called: the visit, and what a first visit with the same cryptography is labelled."""
    rows = cells.to_dicts()
    base = next((_kind(row) for row in rows if row["baseline"] is None), None)
    labels = {_kind(row)[1:]: row["label"] for row in rows if not row["visit"] and row["tls_version"] != "TLSv1.2"}
    named = {}
    for visit, title in VISITS.items():
        for kind in sorted({_kind(row) for row in rows if row["visit"] == visit}, key=lambda kind: kind[1:]):
            usual = base is not None and kind[1:] == base[1:]
            known = labels.get(kind[1:], f"{kind[1]}, {kind[2]}, {kind[3]:g} ms")
            named[kind] = title if usual else f"{title}<br>{html.escape(known).replace(', ', '<br>')}"
    return dict(sorted(named.items(), key=lambda one: (list(VISITS).index(one[0][0]), "<br>" in one[1])))


def found_visits(saved: pl.DataFrame, metric: str) -> Found | None:
    """A sentence on each row of `web.saved`: against visits that keep less, and against other cryptography.

    None without two blocks.
    """
    told = []
    for row in saved.filter((pl.col("metric") == metric) & pl.col("low").is_not_null()).to_dicts():
        value, low, high = (goodput.signed(goodput.percent(row[key])) for key in ("ratio", "low", "high"))
        told.append(
            f"{named((row['library'], row['tls_version']))}, {row['label']}: {TITLES[metric].lower()} differs from "
            f"that of {row['against']} by {value} % (95 % interval {low} to {high} %)."
        )
    return Found(told) if told else None


def found(ratios: pl.DataFrame, metric: str, labels: Sequence[str]) -> Found | None:
    """A sentence on each of some variants: how HTTP/3 compares with HTTP/2; None where none has two blocks."""
    compared = ratios.filter(pl.col("metric") == metric)
    told = [one for label in labels for one in sentences(compared.filter(pl.col("label") == label), TITLES[metric])]
    return Found(told) if told else None


def sentences(ratios: pl.DataFrame, title: str) -> list[str]:
    """A sentence on each row of `web.RATIOS` that has an interval; *title* is that of its metric."""
    told = []
    for row in ratios.filter(pl.col("low").is_not_null()).to_dicts():
        value, low, high = (goodput.signed(goodput.percent(row[key])) for key in ("ratio", "low", "high"))
        told.append(
            f"{row['label']}: {title.lower()} over {named((row['quic'], None))} differs from that over "
            f"{named((row['tcp'], row['tls_version']))} by {value} % (95 % interval {low} to {high} %)."
        )
    return told


def _in_browser(campaign: pl.DataFrame) -> str:
    return " in Chromium" if campaign["loaded_by"].is_not_null().any() else ""


def _begin(metric: str) -> str:
    if metric in web.DRAWN:
        begin = "Times begin with the navigation, before the connection."
        late = metric == "largest_contentful_paint_ms"
        # docs/web.md, "Order of objects"
        return begin + ("<br>nginx heeds the browser's priorities of objects over HTTP/2 only." if late else "")
    return "Times begin with the connection, before the handshake of TCP."


def _file(metric: str) -> str:
    return metric.removeprefix("page_").removesuffix("_ms").replace("_", "-")


def all_series(table: pl.DataFrame) -> list[Series]:
    """Those over QUIC first, then the newest version of TLS."""
    rows = table.select("client_library", "tls_version").unique()
    return sorted(rows.sort("client_library").rows(), key=lambda one: (one[1] is not None, one[1] != "TLSv1.3"))


def _of(cells: pl.DataFrame, one: Series) -> list[dict[str, Any]]:
    library, version = one
    return cells.filter(pl.col("client_library") == library, pl.col("tls_version").eq_missing(version)).to_dicts()


def named(one: Series) -> str:
    library, version = one
    name = NAMES.get(library, library)
    return name if version is None else f"{name}, TLS {version.removeprefix('TLSv')}"


def _conditions(campaign: pl.DataFrame, table: pl.DataFrame) -> list[str]:
    """What all runs were made under, and what holds where a panel varies something else."""
    main = table.filter((pl.col("arm") == "main") & pl.col("baseline").is_null())
    if main.is_empty():
        return [goodput.conditions(campaign)]
    base = main.row(0, named=True)
    runs = campaign.filter(pl.col("cell") == base["cell"]).with_columns(rate_mbit=pl.lit(None, pl.Float64))
    around = f"{base['rtt_ms']:g} ms, {base['rate_mbit']:g} Mbit/s and page {base['page']} unless stated otherwise"
    return [goodput.conditions(runs), around]


def _decades(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Ends of a logarithmic axis for values, as powers of ten, and where it has ticks: at 1, 2 and 5 of each decade."""
    if not values:
        return 0, 3, [1, 10, 100, 1000]
    low, high = math.log10(min(values) / 1.4), math.log10(max(values) * 1.4)
    steps = (1, 2, 5) if high - low < 3 else (1,)
    ticks = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    return low, high, [tick for tick in ticks if low <= math.log10(tick) <= high]


def _around_zero(ends: Sequence[float]) -> list[float]:
    """Range of an axis for intervals, with zero in it and some room."""
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.08 * (high - low) or 1.0
    return [low - room, high + room]


def _title(name: str, table: pl.DataFrame) -> str:
    lost = sorted(set(web.panel(table, "loss")["loss_percent"])) if name == "loss" else []
    return html.escape(f"{lost[0]:g} % of frames lost" if lost else PANELS[name][0])


def _by_size(cells: pl.DataFrame) -> list[str]:
    """Pages, the smallest first."""
    sizes = cells.group_by("page").agg(pl.col("workload_bytes").max()).sort("workload_bytes")
    return sizes["page"].to_list()


def _tick(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else html.escape(str(value)).replace("-", "<br>")


def _beside(number: int, of: int) -> float:
    return 0.14 * (number - (of - 1) / 2)


def marker(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "size": 6, "symbol": SYMBOLS[number % len(SYMBOLS)]}


def _line(
    figure: go.Figure,
    cells: Sequence[Mapping[str, Any]],
    positions: Sequence[Any],
    name: str,
    number: int,
    one: Series,
    of: int,
    place: Mapping[str, int],
) -> list[Gap]:
    """Means of one series in one panel; returns what has none."""
    shown = [cell for cell in cells if cell["n"]]
    along = web.PANELS[name][0]
    shown.sort(key=lambda cell: positions.index(cell[along]))
    figure.add_scatter(
        x=[positions.index(cell[along]) + _beside(number, of) for cell in shown],
        y=[cell["mean"] for cell in shown],
        error_y=layout.to_extremes(shown),
        mode="markers" if name == "page" else "lines+markers",
        name=named(one),
        legendgroup=named(one),
        line={"color": COLOURS[number % len(COLOURS)], "width": 1.4},
        marker=marker(number),
        hovertext=[_hover(cell, cell["metric"]) for cell in shown],
        hoverinfo="text",
        showlegend=place["col"] == 1,
        **place,
    )
    gaps = []
    for cell in (cell for cell in cells if not cell["n"]):
        text, reason = layout.absent(cell)
        _in_place(figure, positions.index(cell[along]) + _beside(number, of), number, reason, place)
        gaps.append((text, one, str(cell["label"])))
    return gaps


def _ratios(
    figure: go.Figure,
    cells: pl.DataFrame,
    ratios: pl.DataFrame,
    positions: Sequence[Any],
    name: str,
    number: int,
    one: Series,
    of: int,
    place: Mapping[str, int],
) -> None:
    """HTTP/3 against what *one* speaks over TCP; nothing for a series over QUIC."""
    ratios = ratios.filter(pl.col("tcp") == one[0], pl.col("tls_version").eq_missing(one[1]))
    along = dict(cells.select("label", web.PANELS[name][0]).unique().rows())
    shown = [row for row in ratios.to_dicts() if row["label"] in along and row["low"] is not None]
    if not shown:
        return
    values = [[goodput.percent(row[key]) for row in shown] for key in ("ratio", "low", "high")]
    figure.add_scatter(
        x=[positions.index(along[row["label"]]) + _beside(number - 1, of - 1) for row in shown],
        y=values[0],
        error_y=_interval(*values),
        mode="markers",
        marker=marker(number),
        hovertext=[
            f"<b>{html.escape(row['label'])}</b>, against {html.escape(named(one))}<br>{value:.1f} %, {low:.1f} to "
            f"{high:.1f} %, {row['n']} blocks"
            for row, value, low, high in zip(shown, *values, strict=True)
        ],
        hoverinfo="text",
        showlegend=False,
        **place,
    )


def _interval(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [end - value for value, end in zip(values, high, strict=True)],
        "arrayminus": [value - end for value, end in zip(values, low, strict=True)],
        "thickness": 1.2,
        "width": 3,
    }


def _hover(cell: Mapping[str, Any], metric: str) -> str:
    return (
        f"<b>{html.escape(named((cell['client_library'], cell['tls_version'])))}</b>, "
        f"{html.escape(cell['label'])}<br>{TITLES[metric].lower()} {cell['mean']:.1f} ms, n = {cell['n']}, failed "
        f"{cell['failed']}"
    )
