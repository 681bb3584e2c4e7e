"""Figures and table of what handshakes cost servers: TTFB by rate, and cores by key exchange and signature."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from quicbed.analysis import capacity, comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.figures.sheets import Sheet, leading
from quicbed.store import runs

COLOURS = (layout.BLUE, layout.SKY, layout.GREEN, layout.ORANGE, layout.VERMILION, layout.PINK)
SYMBOLS = ("circle", "circle-open", "square", "square-open", "diamond", "diamond-open")
PANEL_PX = 205
BESIDES_PX, BELOW_PX, CORES_PX = 129, 58, 440
"""Heights: of what stands above panels, of their axis below, and of a figure with one panel."""
LEGEND_TOP_PX, LEGEND_PX = 52, 64
"""Where the legend begins, and what it takes, between the title and the panels."""
SOURCE = "beyond A Quantum of QUIC, Tables II and III"


TICKS = [step * 10**power for power in range(7) for step in (1, 2, 5)]
"""Of logarithmic axes."""
APART = 2
"""Times that two rates are apart at most for what doubles between them to have a place."""


def ttfb_by_rate(
    campaign: pl.DataFrame, cells: pl.DataFrame, series: pl.DataFrame, titles: Mapping[str, str]
) -> output.Drawn:
    """99th percentile of TTFB by rate, a panel for each server, of `capacity.by_rate` and `capacity.by_series`."""
    kept = cells.filter((pl.col("n") > 0) & (pl.col("behind") == 0))
    servers, labels = _servers(cells, titles), _labels(cells)
    names = [titles.get(name, name) for name in servers]
    figure, places = layout.panels(len(servers), below=0.3, beside=0.07, titles=names)
    for server, title in zip(servers, figure.layout.annotations, strict=True):
        rates = cells.filter(pl.col("server_library") == server)["behind"]
        if late := int((rates > 0).sum()):
            title.text += f" <span style='color:{layout.SOFT};font-size:10px'>{late} of {len(rates)} left out</span>"
    shown = set[str]()
    apart: list[float] = []
    for server, place in zip(servers, places, strict=True):
        own = kept.filter(pl.col("server_library") == server).to_dicts()
        for number, label in enumerate(labels):
            points = [cell for cell in own if capacity.without_load(cell["label"]) == label]
            if not points:
                continue
            figure.add_scatter(
                x=[cell["rate_per_s"] for cell in points],
                y=[cell["p99_ms"] for cell in points],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [cell["p99_high"] - cell["p99_ms"] for cell in points],
                    "arrayminus": [cell["p99_ms"] - cell["p99_low"] for cell in points],
                    "thickness": 0.8,
                    "width": 0,
                },
                mode="lines+markers",
                name=label,
                legendgroup=label,
                showlegend=label not in shown,
                line={"color": COLOURS[number % len(COLOURS)], "width": 1.4},
                marker={"size": 5, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                hovertext=[_hover(cell) for cell in points],
                hoverinfo="text",
                **place,
            )
            shown.add(label)
        behind = cells.filter((pl.col("server_library") == server) & (pl.col("behind") > 0))
        _left_out(figure, behind.to_dicts(), labels, place)
        for one in series.filter(pl.col("server_library") == server).to_dicts():
            if one["doubling_per_s"] is not None and one["label"] in labels:
                apart.append(_doubled(figure, one, own, labels, place))
        if place["col"] == 1:
            figure.update_yaxes(title_text="p99 of TTFB [ms]", title_standoff=4, title_font={"size": 11}, **place)
        if place["row"] == places[-1]["row"] or len(servers) - servers.index(server) <= layout.COLUMNS:
            figure.update_xaxes(title_text="connections a second", title_standoff=4, title_font={"size": 11}, **place)
    figure.update_xaxes(**{**layout.AXIS, "ticks": "outside"}, type="log", tickvals=TICKS, tickfont={"size": 10})
    figure.update_yaxes(**layout.VALUES, type="log", tickvals=TICKS, tickfont={"size": 10})
    failed, left_out = int(cells["failed"].sum()), int((cells["behind"] > 0).sum())
    told = [
        "Connections begin at Poisson times, independently of earlier ones; TTFB counts from the scheduled time.",
        f"Medians over blocks, bars from the smallest to the largest run. {_doubling_told(apart)}",
    ]
    if left_out:
        told.append(
            f"Left out: {left_out} of {len(cells)} rates, at which the client fell behind in a block, so that TTFB is "
            "not the server's (tick at the lower edge, in the colour of its series; a single mark has no other rate)."
        )
    if failed:
        told.append(f"{failed} runs failed.")
    lines = textwrap.wrap(" ".join(told) + goodput.disturbed(campaign), layout.HOST_CHARACTERS)
    height = BESIDES_PX + BELOW_PX + 12 * len(lines) + places[-1]["row"] * PANEL_PX
    layout.finish(
        figure,
        "99th percentile of TTFB by rate of connections",
        goodput.conditions(campaign),
        "<br>".join(lines),
        [campaign],
        height=height,
        top=LEGEND_TOP_PX + LEGEND_PX,
        bottom=BELOW_PX + 12 * len(lines),
        legend=_legend(height, campaign),
    )
    origins = comparison.used_origins(campaign, cells["cell"].to_list())
    return output.Drawn("capacity-ttfb", figure, cells, origins, SOURCE, "capacity-rates")


def _legend(height: float, campaign: pl.DataFrame) -> dict[str, Any]:
    """Below the title of a figure of so many pixels, without the lines on hosts."""
    whole = height + layout.HOST_PX * len(layout.measured_on([campaign]))
    place = {"x": 0.01, "xref": "container", "xanchor": "left", "yref": "container", "yanchor": "top"}
    return {**place, "y": 1 - LEGEND_TOP_PX / whole, "font": {"size": 10}}


def _servers(table: pl.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """Servers of which there are values, by their titles."""
    known = table.filter(pl.col("n") > 0)["server_library"].unique().sort().to_list()
    return sorted(known, key=lambda name: str(titles.get(name, name)).lower())


def _labels(table: pl.DataFrame) -> list[str]:
    """What is compared: by key exchange within a signature, in the order of their names."""
    ordered = table.filter(pl.col("n") > 0).sort("signature", "group")
    return list(dict.fromkeys(capacity.without_load(label) for label in ordered["label"]))


def _hover(cell: Mapping[str, Any]) -> str:
    return (
        f"<b>{html.escape(cell['label'])}</b>"
        f"<br>{cell['rate_per_s']:.0f}/s asked, {cell['handshakes_per_s']:.0f}/s done"
        f"<br>TTFB: median {cell['ttfb_ms']:.2f} ms, p99 {cell['p99_ms']:.2f} ms"
        f"<br>n = {cell['n']}, failed {cell['failed']}<br>client late: p99 {cell['late_ms']:.2f} ms"
    )


def _left_out(figure: Any, cells: Sequence[Mapping[str, Any]], labels: Sequence[str], place: Mapping[str, int]) -> None:
    """Ticks at the lower edge of a panel where rates have no value."""
    ticks = [
        {
            "type": "line",
            "xref": "x",
            "x0": cell["rate_per_s"],
            "x1": cell["rate_per_s"],
            "y0": 0,
            "y1": 0.05,
            "line": {"color": COLOURS[labels.index(capacity.without_load(cell["label"])) % len(COLOURS)], "width": 1.4},
        }
        for cell in cells
        if capacity.without_load(cell["label"]) in labels
    ]
    axes = figure.get_subplot(**place)
    edge = {"xref": axes.xaxis.plotly_name.replace("axis", ""), "yref": f"{axes.yaxis.plotly_name} domain"}
    layout.add(figure, "shapes", [{**tick, **edge, "yref": edge["yref"].replace("axis", "")} for tick in ticks])


def _doubled(
    figure: Any,
    one: Mapping[str, Any],
    cells: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    place: Mapping[str, int],
) -> float:
    """A cross where the TTFB of a series has doubled, with a bar to the rates on both sides, of a server's *cells*.

    Returns how many times the upper rate is the lower one.
    """
    rates = sorted(cell["rate_per_s"] for cell in cells if capacity.without_load(cell["label"]) == one["label"])
    at = one["doubling_per_s"]
    lower, upper = max(rate for rate in rates if rate <= at), min(rate for rate in rates if rate >= at)
    colour = COLOURS[labels.index(one["label"]) % len(COLOURS)]
    figure.add_scatter(
        x=[at],
        y=[2 * one["lowest_p99_ms"]],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [upper - at],
            "arrayminus": [at - lower],
            "color": colour,
            "thickness": 0.8,
            "width": 3,
        },
        mode="markers",
        marker={"symbol": "cross-thin", "size": 9, "line": {"width": 1.6, "color": layout.INK}},
        hovertext=[
            f"<b>{html.escape(one['label'])}</b><br>doubled at {_rate(one)}, between {lower:.0f} and {upper:.0f}"
        ],
        hoverinfo="text",
        showlegend=False,
        **place,
    )
    return float(upper / lower)


def _doubling_told(apart: Sequence[float]) -> str:
    """What crosses are, and how exact; *apart* is how many times the rates on both sides of each are apart."""
    if not apart:
        return "TTFB has not doubled at any rate that is shown."
    told = "Cross: where TTFB is twice that of the lowest rate, interpolated between two rates (its bar)."
    if wide := sorted(times for times in apart if times > APART):
        times = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (wide[0], wide[-1])))
        told += (
            f" {len(wide)} of {len(apart)} crosses have rates {times} times apart beside them, which is too coarse to "
            "rank algorithms; their costs do (figure of cores)."
        )
    return told


def _bar(number: int) -> dict[str, Any]:
    """As bars of a series look: hollow where its marks are, so that neighbours are told apart without colours."""
    colour = COLOURS[number % len(COLOURS)]
    hollow = SYMBOLS[number % len(SYMBOLS)].endswith("-open")
    return {"color": "white" if hollow else colour, "line": {"color": colour, "width": 1.2}}


def cores(campaign: pl.DataFrame, series: pl.DataFrame, titles: Mapping[str, str]) -> output.Drawn:
    """Cores that 10 000 connections a second take, measured and predicted; *series* is of `capacity.by_series`."""
    known = series.filter(pl.col("cores").is_not_null())
    servers = _servers(known, titles)
    labels = _labels(known)
    figure, (place,) = layout.panels(1, 1, below=0)
    step = 0.84 / max(len(labels), 1)
    for number, label in enumerate(labels):
        own = {one["server_library"]: one for one in known.filter(pl.col("label") == label).to_dicts()}
        offset = step * (number - (len(labels) - 1) / 2)
        at = [(position + offset, own[server]) for position, server in enumerate(servers) if server in own]
        figure.add_bar(
            x=[x for x, _ in at],
            y=[one["cores"] for _, one in at],
            width=step * 0.9,
            name=label,
            marker=_bar(number),
            error_y=_interval([one for _, one in at]),
            hovertext=[_cost(one) for _, one in at],
            hoverinfo="text",
            **place,
        )
        predicted = [(x, one) for x, one in at if one["predicted_cores"] is not None]
        figure.add_scatter(
            x=[x for x, _ in predicted],
            y=[one["predicted_cores"] for _, one in predicted],
            mode="markers",
            name="predicted from primitives",
            legendgroup="predicted",
            showlegend=number == len(labels) - 1,
            marker={"symbol": "line-ew", "size": 11, "line": {"width": 2, "color": layout.INK}},
            hovertext=[_cost(one) for _, one in predicted],
            hoverinfo="text",
            **place,
        )
    figure.update_xaxes(
        tickvals=list(range(len(servers))),
        ticktext=[html.escape(titles.get(name, name)) for name in servers],
        range=[-0.5, len(servers) - 0.5],
        **layout.AXIS,
    )
    figure.update_yaxes(**layout.VALUES, title_text="cores for 10 000 connections/s", rangemode="tozero")
    layout.finish(
        figure,
        "Cores of a server for 10 000 connections a second",
        goodput.conditions(campaign),
        f"Processor time of the server by connection, of loads of {capacity.BUSY:g} and more; bars are 95 % intervals "
        "over blocks.<br>Predicted: the baseline's cost plus the difference of the primitives, timed separately."
        + goodput.disturbed(campaign),
        [campaign],
        height=CORES_PX,
        top=LEGEND_TOP_PX + LEGEND_PX,
        bottom=84,
        legend=_legend(CORES_PX, campaign),
    )
    origins = comparison.used_origins(campaign, campaign["cell"].unique().sort().to_list())
    return output.Drawn("capacity-cores", figure, series, origins, SOURCE, "capacity")


def memory(campaign: pl.DataFrame, cells: pl.DataFrame, titles: Mapping[str, str]) -> output.Drawn:
    """Memory of a server by open connection, of `capacity.by_memory`."""
    servers = sorted(cells["server_library"].unique(), key=lambda name: str(titles.get(name, name)).lower())
    labels = list(dict.fromkeys(cells.sort("signature", "group")["label"]))
    figure, (place,) = layout.panels(1, 1, below=0)
    step = 0.84 / max(len(labels), 1)
    for number, label in enumerate(labels):
        own = {one["server_library"]: one for one in cells.filter(pl.col("label") == label).to_dicts()}
        offset = step * (number - (len(labels) - 1) / 2)
        at = [(position + offset, own[server]) for position, server in enumerate(servers) if server in own]
        known = [(x, one) for x, one in at if one["n"]]
        figure.add_bar(
            x=[x for x, _ in known],
            y=[one["bytes_per_connection"] / 1024 for _, one in known],
            width=step * 0.9,
            name=label,
            marker=_bar(number),
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_beyond(one, "bytes_high") for _, one in known],
                "arrayminus": [-_beyond(one, "bytes_low") for _, one in known],
                "color": layout.INK,
                "thickness": 1,
                "width": 2,
            },
            hovertext=[_memory(one) for _, one in known],
            hoverinfo="text",
            **place,
        )
        for x, one in at:
            if not one["n"]:
                layout.in_place(figure, x, *layout.absent(one), place)
    figure.update_xaxes(
        tickvals=list(range(len(servers))),
        ticktext=[html.escape(titles.get(name, name)) for name in servers],
        range=[-0.5, len(servers) - 0.5],
        **layout.AXIS,
    )
    figure.update_yaxes(**layout.VALUES, title_text="KiB per open connection", rangemode="tozero")
    held = cells["connections"].drop_nulls().unique().sort().to_list()
    many = " or ".join(f"{count}" for count in held)
    layout.finish(
        figure,
        "Memory of a server by open, idle connection",
        goodput.conditions(campaign),
        f"Proportional set size (PSS) of the server with {many} open connections, minus that without any, "
        "per connection;<br>bars are 95 % intervals over blocks." + goodput.disturbed(campaign),
        [campaign],
        height=CORES_PX,
        top=LEGEND_TOP_PX + LEGEND_PX,
        bottom=84,
        legend=_legend(CORES_PX, campaign),
    )
    origins = comparison.used_origins(campaign, cells["cell"].to_list())
    return output.Drawn("capacity-memory", figure, cells, origins, SOURCE, "capacity-memory")


def _beyond(one: Mapping[str, Any], end: str) -> float:
    """KiB from the value to an end of its interval; 0 without one."""
    return 0.0 if one[end] is None else float(one[end] - one["bytes_per_connection"]) / 1024


def _memory(one: Mapping[str, Any]) -> str:
    return (
        f"<b>{html.escape(one['label'])}</b><br>{one['bytes_per_connection'] / 1024:.1f} KiB per connection"
        f"<br>{one['none_bytes'] / 2**20:.1f} MiB with none, {one['held_bytes'] / 2**20:.1f} MiB with "
        f"{one['connections']}<br>n = {one['n']}, failed {one['failed']}"
    )


def memory_table(cells: pl.DataFrame, titles: Mapping[str, str]) -> Sheet:
    """A line for every server, key exchange and signature whose connections were held open, or why it has none."""
    headers = [
        "server", "key exchange, signature", "blocks", "open connections", "server with none [MiB]",
        "server with them [MiB]", "per connection [KiB]", "95 % interval", "without a value because",
    ]  # fmt: skip
    rows = []
    for one in cells.to_dicts():
        ends = [None if one[end] is None else one[end] / 1024 for end in ("bytes_low", "bytes_high")]
        none, held = (None if one[name] is None else one[name] / 2**20 for name in ("none_bytes", "held_bytes"))
        each = one["bytes_per_connection"]
        rows.append(
            [
                titles.get(one["server_library"], one["server_library"]),
                one["label"],
                one["n"],
                "" if one["connections"] is None else one["connections"],
                _number(none, 1),
                _number(held, 1),
                _number(None if each is None else each / 1024, 1),
                _range(ends[0], ends[1], 1),
                "" if one["n"] else one["unsupported"] or one["failure"] or "",
            ]
        )
    notes = ("Memory is the proportional set size (PSS) of the server and its descendants, of proc(5).",)
    numeric = frozenset(range(2, 8))
    selected = [runs.selection(one["campaign"], one["cell"]) for one in cells.to_dicts()]
    return Sheet(headers, rows, numeric, notes, leading(selected, numeric))


def found_memory(cells: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """What open connections take of each server, with which algorithms least and most; None without values."""
    sentences = []
    known = cells.filter(pl.col("n") > 0)
    for (server,), own in known.sort("server_library").group_by("server_library", maintain_order=True):
        ordered = own.sort("bytes_per_connection")
        least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
        sentences.append(
            f"{titles.get(str(server), str(server))}: an open connection takes "
            f"{least['bytes_per_connection'] / 1024:.1f} KiB of the server with {least['label']} "
            f"and {most['bytes_per_connection'] / 1024:.1f} KiB with {most['label']}."
        )
    return Found(sentences) if sentences else None


def scaling(campaign: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str]) -> output.Drawn:
    """Doubling rate on all processors by that on one, of `capacity.on_all_processors`."""
    known = table.filter(pl.col("times").is_not_null())
    servers = sorted(table["server_library"].unique(), key=lambda name: str(titles.get(name, name)).lower())
    labels = list(dict.fromkeys(table["label"]))
    copies = table["copies"].unique().sort().to_list()
    figure, (place,) = layout.panels(1, 1, below=0)
    step = 0.6 / max(len(labels), 1)
    for number, label in enumerate(labels):
        own = known.filter(pl.col("label") == label).to_dicts()
        offset = step * (number - (len(labels) - 1) / 2)
        figure.add_scatter(
            x=[servers.index(one["server_library"]) + offset for one in own],
            y=[one["times"] for one in own],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [max(0, (one["times_high"] or one["times"]) - one["times"]) for one in own],
                "arrayminus": [max(0, one["times"] - (one["times_low"] or one["times"])) for one in own],
                "thickness": 1,
                "width": 3,
            },
            mode="markers",
            name=label,
            marker={"color": COLOURS[number % len(COLOURS)], "size": 8, "symbol": SYMBOLS[number % len(SYMBOLS)]},
            hovertext=[_scaled(one) for one in own],
            hoverinfo="text",
            **place,
        )
        for one in table.filter((pl.col("label") == label) & pl.col("times").is_null()).to_dicts():
            layout.in_place(figure, servers.index(one["server_library"]) + offset, "unknown", _unscaled(one), place)
    for count in copies:
        figure.add_hline(y=count, line={"dash": "dot", "width": 1, "color": layout.SOFT}, **place)
    figure.update_xaxes(
        tickvals=list(range(len(servers))),
        ticktext=[html.escape(titles.get(name, name)) for name in servers],
        range=[-0.5, len(servers) - 0.5],
        **layout.AXIS,
    )
    figure.update_yaxes(**layout.VALUES, title_text="times the rate on one processor", rangemode="tozero")
    layout.finish(
        figure,
        "Rate of connections that a server takes on all processors",
        goodput.conditions(campaign),
        "Ratio of the rates at which the 99th percentile of TTFB is twice that of the lowest rate, for a program per "
        "processor and for one;<br>bars from the ends of both 95 % intervals. Dotted: the number of programs, "
        f"{' or '.join(map(str, copies))}.{goodput.disturbed(campaign)}",
        [campaign],
        height=CORES_PX,
        top=LEGEND_TOP_PX + LEGEND_PX,
        bottom=84,
        legend=_legend(CORES_PX, campaign),
    )
    origins = comparison.used_origins(campaign, _cells(table))
    return output.Drawn("capacity-scaling", figure, table, origins, SOURCE, "capacity-scaling")


def _cells(table: pl.DataFrame) -> list[str]:
    return [cell for cells in table["cells"] for cell in cells.split(",")]


def _scaled(one: Mapping[str, Any]) -> str:
    return (
        f"<b>{html.escape(one['label'])}</b><br>{one['one_per_s']:.0f}/s with one program, {one['all_per_s']:.0f}/s "
        f"with {one['copies']}<br>cost of a connection: {_number(one['cost_ratio'], 2)} times<br>n = {one['n']}"
    )


def _unscaled(one: Mapping[str, Any]) -> str:
    ends = ("one program", one["one_per_s"]), (f"{one['copies']} programs", one["all_per_s"])
    return f"TTFB has not doubled at the highest rate of {' and '.join(name for name, rate in ends if rate is None)}"


def scaling_table(table: pl.DataFrame, titles: Mapping[str, str]) -> Sheet:
    """A line for every server, key exchange and signature that was measured on one processor and on all."""
    headers = [
        "server", "key exchange, signature", "blocks", "programs", "one: doubles at [1/s]", "all: doubles at [1/s]",
        "times", "95 % interval", "one: server CPU [ms]", "all: server CPU [ms]", "times",
    ]  # fmt: skip
    rows = [
        [
            titles.get(one["server_library"], one["server_library"]),
            one["label"],
            one["n"],
            one["copies"],
            _number(one["one_per_s"], 0),
            _number(one["all_per_s"], 0),
            _number(one["times"], 2),
            _range(one["times_low"], one["times_high"], 2),
            _number(one["one_cpu_ms"], 3),
            _number(one["all_cpu_ms"], 3),
            _number(one["cost_ratio"], 2),
        ]
        for one in table.to_dicts()
    ]
    notes = ("Empty: TTFB has not doubled at the highest rate, or there is no run at the lowest.",)
    numeric = frozenset(range(2, 11))
    selected = [runs.selection(one["campaign"], *one["cells"].split(",")) for one in table.to_dicts()]
    return Sheet(headers, rows, numeric, notes, leading(selected, numeric))


def found_scaling(table: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """How many times the rate of one processor each server takes on all; None where no rate is known."""
    sentences = [
        f"{titles.get(one['server_library'], one['server_library'])} with {one['label']}: {one['copies']} programs "
        f"take {one['times']:.2f} times the connections of one."
        for one in table.filter(pl.col("times").is_not_null()).to_dicts()
    ]
    return Found(sentences) if sentences else None


def _interval(series: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ends = [(one["cpu_low"] or one["server_cpu_ms"], one["cpu_high"] or one["server_cpu_ms"]) for one in series]
    return {
        "type": "data",
        "symmetric": False,
        "array": [capacity.cores(high) - one["cores"] for (_, high), one in zip(ends, series, strict=True)],
        "arrayminus": [one["cores"] - capacity.cores(low) for (low, _), one in zip(ends, series, strict=True)],
        "color": layout.INK,
        "thickness": 1,
        "width": 2,
    }


def _cost(one: Mapping[str, Any]) -> str:
    predicted = one["predicted_cpu_ms"]
    told = "" if predicted is None else f"<br>predicted {predicted:.3f} ms, {one['predicted_cores']:.2f} cores"
    return f"<b>{html.escape(one['label'])}</b><br>{one['server_cpu_ms']:.3f} ms, {one['cores']:.2f} cores{told}"


def table(series: pl.DataFrame, titles: Mapping[str, str]) -> Sheet:
    """A line for every server, key exchange and signature."""
    headers = [
        "server", "key exchange, signature", "blocks", "p99 TTFB at the lowest rate [ms]",
        "rate at which it doubles [1/s]", "95 % interval", "predicted", "server CPU [ms]", "95 % interval", "predicted",
        "cores for 10 000/s", "predicted", "client CPU [ms]", "server memory, peak [MiB]",
    ]  # fmt: skip
    rows = [
        [
            titles.get(one["server_library"], one["server_library"]),
            one["label"],
            one["n"],
            _number(one["lowest_p99_ms"], 2),
            _rate(one),
            _range(one["doubling_low"], one["doubling_high"], 0, one["highest_rate"] if _has_interval(one) else None),
            _number(one["predicted_doubling"], 0),
            _number(one["server_cpu_ms"], 3),
            _range(one["cpu_low"], one["cpu_high"], 3),
            _number(one["predicted_cpu_ms"], 3),
            _number(one["cores"], 2),
            _number(one["predicted_cores"], 2),
            _number(one["client_cpu_ms"], 3),
            _number(one["peak_mib"], 1),
        ]
        for one in series.to_dicts()
    ]
    notes = (
        "Predicted: the server's cost with the experiment's baseline, plus the difference between the primitives of "
        "the other algorithms and the baseline's, timed separately. >: TTFB has not doubled at the highest rate.",
    )
    numeric = frozenset(range(2, 14))
    selected = [runs.selection(one["campaign"], *one["cells"].split(",")) for one in series.to_dicts()]
    return Sheet(headers, rows, numeric, notes, leading(selected, numeric))


def _has_interval(one: Mapping[str, Any]) -> bool:
    return one["lowest_p99_ms"] is not None and one["n"] > 1


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _rate(one: Mapping[str, Any]) -> str:
    if one["lowest_p99_ms"] is None:
        return ""
    return f"> {one['highest_rate']:.0f}" if one["doubling_per_s"] is None else f"{one['doubling_per_s']:.0f}"


def _range(low: float | None, high: float | None, digits: int, beyond: float | None = None) -> str:
    """Ends of an interval; one that is null is beyond *beyond*, if that is told."""
    ends = [_number(end, digits) or (f"> {beyond:.{digits}f}" if beyond is not None else "") for end in (low, high)]
    return f"{ends[0]} to {ends[1]}" if all(ends) else ""


def found(series: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """What post-quantum algorithms cost each server, and how far off the prediction is; None without a comparison."""
    compared = series.filter(pl.col("predicted_cpu_ms").is_not_null() & pl.col("server_cpu_ms").is_not_null())
    sentences = []
    for (server,), own in series.sort("server_library").group_by("server_library", maintain_order=True):
        costs = own.filter(pl.col("cores").is_not_null()).sort("cores")
        if len(costs) > 1:
            least, most = costs.row(0, named=True), costs.row(-1, named=True)
            sentences.append(
                f"{titles.get(str(server), str(server))}: 10 000 connections a second take {least['cores']:.1f} cores "
                f"with {least['label']} and {most['cores']:.1f} with {most['label']}."
            )
    if compared.height:
        errors = compared.select(((pl.col("predicted_cpu_ms") / pl.col("server_cpu_ms")) - 1).abs().alias("error"))
        sentences.append(
            f"The prediction from primitives is off by {100 * _median(errors):.0f} % in the median of {len(compared)} "
            "costs."
        )
    return Found(sentences) if sentences else None


def _median(errors: pl.DataFrame) -> float:
    return float(sorted(errors["error"])[len(errors) // 2])
