"""Figures of handshake experiments, from the cells of `quicbed.analysis.ttfb.table`.

Dot plots: a marker is the median TTFB over all connections, its bar the 95 % interval over blocks; hollow grey markers
are what A Quantum of QUIC prints, measured on other hardware. Time axes are logarithmic.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison, published
from quicbed.analysis.ttfb import Transport
from quicbed.config import algorithms
from quicbed.figures import goodput, layout
from quicbed.figures.layout import GRID, INK, SOFT
from quicbed.figures.output import Drawn

COLOURS = (layout.BLUE, layout.ORANGE, layout.GREEN, layout.VERMILION, layout.PINK, layout.SKY, "#8c6d31", "#6b6b6b")
"""Okabe and Ito's colours: told apart with any colour vision; libraries take them in order of their names."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "star")
PUBLISHED = {"lsquic": ("LSQUIC, published", "triangle-left-open"), "quiche": ("quiche, published", "circle-open")}
ROW_PX, BARS_PX = 17, 20
"""Height of a row, and of one with two bars."""
MARK_PX, BAND = 4, "#f5f5f5"
"""Height of a mark in a row with one for each library, and what is behind every other row."""
NAME_PX, LETTER_PX = 10, 4.6
"""Height of a name beside a mark, and width of a letter in it."""
BYTES_PX = 560
"""Height of a figure by the size of the handshake."""
LINE_PX = 10
"""Height of a line of text within a row."""
EXPERIMENTS = {
    "table3-signature": "signatures",
    "table2-kem": "key exchanges",
    "hybrid-cost": "hybrids and parts",
    "amplification": "delays",
}
"""What is measured in experiments of handshakes, where there is no room for more."""
LEGEND_ENTRIES = 6
"""As many stand beside each other."""
PHASES = (
    ("keygen_ms", "client: key generation (before TTFB)", "#bdbdbd"),
    ("server_crypto_ms", "server: encapsulation, signature", layout.VERMILION),
    ("client_crypto_ms", "client: decapsulation, verification", layout.BLUE),
    ("transport_ms", "transport and the rest", layout.YELLOW),
)


def libraries(cells: pl.DataFrame) -> list[str]:
    """Libraries of cells whose client and server are the same, sorted; TCP last."""
    own = cells.filter((pl.col("client_library") == pl.col("server_library")) & (pl.col("arm") == "main"))
    keys = own.group_by("client_library").agg(tcp=pl.col("header_protection").is_null().all())
    return [name for name, _ in keys.sort("tcp", "client_library").rows()]


def ttfb_by_algorithm(
    campaign: pl.DataFrame, cells: pl.DataFrame, factor: str, titles: Mapping[str, str] | None = None
) -> Drawn:
    """TTFB of every algorithm and library, grouped by NIST level; the published values beside them (Tables II and
    III).
    """
    titles, unlike = goodput.marked(cells, titles or {})
    shown = cells.filter(pl.col("arm") == "main")
    rows = _rows(shown)
    names = libraries(shown)
    figure = go.Figure()
    step = 0.8 / max(len(names), 1)
    for number, library in enumerate(names):
        own = shown.filter((pl.col("client_library") == library) & pl.col("ttfb_ms").is_not_null())
        dodge = step * (number - (len(names) - 1) / 2)
        _markers(
            figure,
            x=own["ttfb_ms"].to_list(),
            y=[rows[name] + dodge for name in own["algorithm"]],
            low=own["ttfb_low"].to_list(),
            high=own["ttfb_high"].to_list(),
            name=titles.get(library, library),
            number=number,
            text=[_hover(cell, titles) for cell in own.to_dicts()],
        )
    # HQC of the paper is that with vector instructions
    stated = [row["label"] for row in published.rows("table2" if factor == "group" else "table3")]
    for library, (name, symbol) in PUBLISHED.items():
        column = f"published_ttfb_ms_{library}"
        of_paper = pl.col(column).is_not_null() & pl.col("algorithm").is_in(stated)
        printed = shown.filter(of_paper).unique("algorithm", keep="first", maintain_order=True)
        if printed.is_empty():
            continue
        figure.add_scatter(
            x=printed[column].to_list(),
            y=[rows[name] for name in printed["algorithm"]],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 9, "color": "#8a8a8a", "line": {"width": 1.2}},
            hovertemplate="%{x} ms<extra>" + name + "</extra>",
        )
    _missing(figure, shown, rows, names, titles)
    _bands(figure, rows)
    _levels(figure, shown, rows)
    what = "key exchange" if factor == "group" else "signature algorithm"
    _frame(
        figure,
        f"Time to first byte by {what}",
        campaign,
        height=170 + _row_px(names) * len(rows),
        caption="Median over all connections and its 95 % interval over blocks. Hollow: A Quantum of QUIC, "
        + ("Table II" if factor == "group" else "Table III")
        + ",<br>two hosts with AMD EPYC 7543 and a 10 Gbit/s link: compare order and ratios, not milliseconds."
        + unlike,
        left=150,
    )
    room = 3 if shown["ttfb_ms"].null_count() else 1  # for what is said at the left edge
    _log_axis(figure, "x", "TTFB [ms]", shown["ttfb_ms"].drop_nulls().to_list(), room=room)
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=list(rows),
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        showline=True,
        linecolor=INK,
        **layout.NAMES,
    )
    name = "ttfb-by-kem" if factor == "group" else "ttfb-by-signature"
    source = f"A Quantum of QUIC, {'Table II' if factor == 'group' else 'Table III'}"
    return Drawn(name, figure, cells, _origins(campaign, shown), source)


def _rows(cells: pl.DataFrame) -> dict[str, int]:
    """Algorithms in the order of the cells, numbered."""
    rows: dict[str, int] = {}
    for name in cells["algorithm"]:
        rows.setdefault(name, len(rows))
    return rows


def _row_px(names: Sequence[str]) -> int:
    """Height of a row in which each library has a mark of its own."""
    return max(ROW_PX, MARK_PX * len(names) + 2)


def _bands(figure: go.Figure, rows: Mapping[str, int]) -> None:
    """Every other row on a light ground, so that marks are seen to belong to one."""
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "fillcolor": BAND, "line": {"width": 0}}
    layout.add(
        figure,
        "shapes",
        [{**band, "y0": row - 0.5, "y1": row + 0.5, "layer": "below"} for row in range(1, len(rows), 2)],
    )


def _levels(figure: go.Figure, cells: pl.DataFrame, rows: Mapping[str, int]) -> None:
    """Lines between NIST levels, and their names at the right edge."""
    levels = cells.unique("algorithm", keep="first", maintain_order=True).select("algorithm", "nist_level").rows()
    first: dict[int, int] = {}
    for name, level in levels:
        first.setdefault(level, rows[name])
    for level, row in first.items():
        if row > 0:
            figure.add_hline(y=row - 0.5, line={"color": INK, "width": 0.7, "dash": "dot"})
        figure.add_annotation(
            x=1,
            xref="paper",
            y=row - 0.42,
            yanchor="top",
            xanchor="right",
            text=f"NIST level {level}",
            showarrow=False,
            font={"size": 9.5, "color": SOFT},
        )


def _missing(
    figure: go.Figure,
    cells: pl.DataFrame,
    rows: Mapping[str, int],
    names: Sequence[str],
    titles: Mapping[str, str],
) -> None:
    """Say at the left edge of a row which libraries have no value, and why in the hover text."""
    without = cells.filter(pl.col("ttfb_ms").is_null() & pl.col("client_library").is_in(list(names)))
    for (algorithm,), own in without.group_by("algorithm", maintain_order=True):
        parts = []
        for cell in own.to_dicts():
            parts.append((titles.get(cell["client_library"], cell["client_library"]), *_absent(cell)))
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            xshift=3,
            y=rows[str(algorithm)],
            text="; ".join(f"{library} {kind}" for library, kind, _ in parts),
            hovertext="<br>".join(f"{library}: {html.escape(reason)}" for library, _, reason in parts),
            showarrow=False,
            font={"size": 9, "color": SOFT},
        )


def _absent(cell: Mapping[str, Any]) -> tuple[str, str]:
    """What a cell without a value is, and why."""
    kind = "unsupported" if cell["unsupported"] else "failed" if cell["failure"] else "not measured"
    return kind, cell["unsupported"] or cell["failure"] or "no run counts"


def native(
    campaign: pl.DataFrame, cells: pl.DataFrame, known: algorithms.Table, titles: Mapping[str, str] | None = None
) -> Drawn:
    """TTFB of unpatched builds: a row for each library, and in it a line for each variant."""
    titles, unlike = goodput.marked(cells, titles or {})
    shown = cells.filter((pl.col("arm") == "main") & (pl.col("client_library") == pl.col("server_library")))
    names = libraries(shown)
    rows = {name: row for row, name in enumerate(names)}
    position = {entry.name: place for place, entry in enumerate((*known.groups, *known.signatures))}
    variants = sorted(
        set(shown.select("signature", "group", "label").rows()),
        key=lambda variant: (position[variant[0]], position[variant[1]], variant[2]),
    )
    figure = go.Figure()
    step = 0.84 / max(len(variants), 1)
    for number, (_, _, label) in enumerate(variants):
        own = shown.filter(pl.col("label") == label)
        drawn = own.filter(pl.col("ttfb_ms").is_not_null())
        offset = step * (number - (len(variants) - 1) / 2)
        _markers(
            figure,
            x=drawn["ttfb_ms"].to_list(),
            y=[rows[name] + offset for name in drawn["client_library"]],
            low=drawn["ttfb_low"].to_list(),
            high=drawn["ttfb_high"].to_list(),
            name=label,
            number=number,
            text=[_hover(cell, titles) for cell in drawn.to_dicts()],
        )
        for cell in own.filter(pl.col("ttfb_ms").is_null()).to_dicts():
            kind, reason = _absent(cell)
            figure.add_annotation(
                x=0,
                xref="paper",
                xanchor="left",
                xshift=3,
                y=rows[cell["client_library"]] + offset,
                text=html.escape(f"{label} {kind}"),
                hovertext=html.escape(reason),
                showarrow=False,
                font={"size": 8.5, "color": SOFT},
            )
    for row in range(1, len(rows)):
        figure.add_hline(y=row - 0.5, line={"color": GRID, "width": 1})
    _frame(
        figure,
        "Time to first byte with the libraries' own algorithms",
        campaign,
        height=194 + len(rows) * (8 + LINE_PX * len(variants)),
        caption="Median over all connections and its 95 % interval over blocks; unpatched builds."
        "<br>Unsupported: the library's own TLS has no such algorithm, see docs/libraries.md." + unlike,
        left=110,
        top=94,  # names of two lines
    )
    room = 3 if shown["ttfb_ms"].null_count() else 1  # for what is said at the left edge
    _log_axis(figure, "x", "TTFB [ms]", shown["ttfb_ms"].drop_nulls().to_list(), room=room)
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[html.escape(titles.get(name, name)) for name in rows],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        showline=True,
        linecolor=INK,
        **layout.NAMES,
    )
    source = "beyond A Quantum of QUIC, Tables II and III"
    return Drawn("native-handshake", figure, cells, _origins(campaign, shown), source)


def kem_sizes(campaign: pl.DataFrame, cells: pl.DataFrame, primitives: pl.DataFrame) -> Drawn:
    """A Quantum of QUIC, Fig. 6: sizes of the key shares of client (public key) and server (ciphertext)."""
    own = primitives.filter(pl.col("kind") == "group")
    shares = (
        own.filter(pl.col("operation").is_in(["keygen", "encapsulate"]) & pl.col("bytes").is_not_null())
        .group_by("name", "operation")
        .agg(pl.col("bytes").max())
    )
    shown = cells.filter(pl.col("arm") == "main").unique("group", keep="first", maintain_order=True)
    rows = _rows(shown)
    figure = go.Figure()
    for operation, name, colour in (
        ("keygen", "public key, in the ClientHello", layout.BLUE),
        ("encapsulate", "ciphertext, in the ServerHello", layout.ORANGE),
    ):
        found = shown.join(
            shares.filter(pl.col("operation") == operation), left_on="group", right_on="name", maintain_order="left"
        )
        offset = -0.2 if operation == "keygen" else 0.2
        figure.add_bar(
            x=found["bytes"].to_list(),
            y=[rows[algorithm] + offset for algorithm in found["algorithm"]],
            orientation="h",
            width=0.38,
            name=name,
            marker={"color": colour},
            text=[f"{size}" for size in found["bytes"]],
            textposition="outside",
            textfont={"size": 8},
            constraintext="none",
            cliponaxis=False,
            hovertemplate="%{x} bytes<extra>" + name + "</extra>",
        )
    _levels(figure, shown, rows)
    _frame(
        figure,
        "Sizes of key shares",
        campaign,
        height=150 + BARS_PX * len(rows),
        caption="As sent: the key_share extension's contents without its 4 bytes of group and length.",
        left=150,
    )
    highest = max(shares["bytes"].to_list(), default=1)
    figure.update_xaxes(**_linear("bytes"), range=[0, 1.12 * highest])
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=list(rows),
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        **layout.NAMES,
    )
    return Drawn("kem-sizes", figure, cells, sorted(set(own["origin"])), "A Quantum of QUIC, Fig. 6")


def ttfb_by_bytes(
    campaign: pl.DataFrame, cells: pl.DataFrame, fits: Mapping[str, Transport], titles: Mapping[str, str] | None = None
) -> Drawn:
    """TTFB against the bytes of the handshake, with what the transport of each library takes for them."""
    titles = titles or {}
    shown = cells.filter(
        (pl.col("arm") == "main") & pl.col("ttfb_ms").is_not_null() & pl.col("handshake_bytes").is_not_null()
    )
    figure = go.Figure()
    sizes = sorted(shown["handshake_bytes"].to_list())
    times = shown["ttfb_ms"].to_list()
    for number, library in enumerate(libraries(shown)):
        own = shown.filter(pl.col("client_library") == library)
        _markers(
            figure,
            x=own["handshake_bytes"].to_list(),
            y=own["ttfb_ms"].to_list(),
            name=titles.get(library, library),
            number=number,
            text=[_hover(cell, titles) for cell in own.to_dicts()],
        )
        if library in fits and sizes:
            line = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 60) for i in range(61)]
            transport = [fits[library].predict(0, size / 1000, 0, 0) for size in line]
            times += [transport[0], transport[-1]]
            figure.add_scatter(
                x=line,
                y=transport,
                mode="lines",
                line={"color": COLOURS[number % len(COLOURS)], "width": 1, "dash": "dot"},
                hoverinfo="skip",
                showlegend=False,
            )
    _frame(
        figure,
        "Time to first byte and size of the handshake",
        campaign,
        height=BYTES_PX,
        caption="A point is one algorithm, named where there is room. Dotted: fitted time of the transport alone for"
        " this many<br>bytes, without cryptography and further round trips. The rest is computing and waiting.",
    )
    _log_axis(figure, "x", "bytes of UDP or TCP payload, both directions", sizes)
    _log_axis(figure, "y", "TTFB [ms]", times)
    _name(figure, shown)
    name = f"ttfb-by-bytes-{campaign['experiment'][0]}"
    return Drawn(name, figure, cells, _origins(campaign, shown), "beyond A Quantum of QUIC, Sec. VI")


def predicted(campaign: pl.DataFrame, cells: pl.DataFrame, titles: Mapping[str, str] | None = None) -> Drawn:
    """Measured against predicted TTFB, and the residual in per cent of the measured one."""
    titles = titles or {}
    shown = cells.filter((pl.col("arm") == "main") & pl.col("predicted_ms").is_not_null())
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.64, 0.36], vertical_spacing=0.05)
    times = shown["predicted_ms"].to_list() + shown["ttfb_ms"].to_list()
    if times:
        ends = [min(times) * 0.85, max(times) * 1.15]
        figure.add_scatter(
            x=ends,
            y=ends,
            mode="lines",
            line={"color": INK, "width": 1},
            hoverinfo="skip",
            showlegend=False,
            row=1,
            col=1,
        )
    for number, library in enumerate(libraries(shown)):
        own = shown.filter(pl.col("client_library") == library)
        text = [_hover(cell, titles) for cell in own.to_dicts()]
        xs = own["predicted_ms"].to_list()
        name = titles.get(library, library)
        _markers(figure, x=xs, y=own["ttfb_ms"].to_list(), name=name, number=number, text=text, row=1, col=1)
        residual = (100 * own["residual_ms"] / own["ttfb_ms"]).to_list()
        _markers(figure, x=xs, y=residual, name=name, number=number, text=text, legend=False, row=2, col=1)
    figure.add_hline(y=0, line={"color": INK, "width": 1}, row=2, col=1)
    _frame(
        figure,
        "Measured and predicted time to first byte",
        campaign,
        height=480,
        caption="Predicted: primitives timed on the same host, plus a fixed time, a time per byte and one per"
        " further round trip,"
        "<br>three numbers per library. Residual: measured minus predicted, in per cent of the measured time.",
    )
    _log_axis(figure, "x", "predicted TTFB [ms]", times, row=2, col=1)
    _log_axis(figure, "x", "", times, row=1, col=1)
    _log_axis(figure, "y", "measured TTFB [ms]", times, row=1, col=1)
    figure.update_yaxes(**_linear("residual [%]"), row=2, col=1)
    name = f"ttfb-predicted-{campaign['experiment'][0]}"
    return Drawn(name, figure, cells, _origins(campaign, shown), "beyond A Quantum of QUIC, Sec. VI")


def _tested(experiment: str) -> str:
    """What an experiment of handshakes measures, for the title of a panel."""
    for name, what in EXPERIMENTS.items():
        experiment = experiment.replace(name, what)
    return experiment


def additive(
    campaigns: Sequence[pl.DataFrame],
    predictions: pl.DataFrame,
    known: algorithms.Table,
    titles: Mapping[str, str] | None = None,
) -> Drawn:
    """Errors of TTFB predicted out of sample (`quicbed.analysis.additivity.out_of_sample`): a panel for each
    prediction.

    *campaigns* are those that were predicted.
    """
    titles = titles or {}
    panels = predictions.select("fitted_on", "experiment").unique(maintain_order=True).rows()
    names = sorted(set(predictions["library"]))
    figure = make_subplots(
        rows=max(1, math.ceil(len(panels) / 2)),
        cols=2,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.11,
        subplot_titles=[f"{_tested(fitted_on)} predict {_tested(predicted)}" for fitted_on, predicted in panels],
    )
    for place, (fitted_on, predicted) in enumerate(panels):
        row, column = 1 + place // 2, 1 + place % 2
        panel = predictions.filter((pl.col("fitted_on") == fitted_on) & (pl.col("experiment") == predicted))
        for number, library in enumerate(names):
            own = panel.filter(pl.col("library") == library)
            name = titles.get(library, library)
            _markers(
                figure,
                x=own["predicted_ms"].to_list(),
                y=(100 * own["error"]).to_list(),
                name=name,
                number=number,
                group=name,
                legend=place == 0,
                text=[
                    f"<b>{html.escape(name)}, {known.group(cell['group']).title}, "
                    f"{known.signature(cell['signature']).title}</b><br>{cell['predicted_ms']:.3f} ms predicted,"
                    f" {cell['ttfb_ms']:.3f} ms measured<br>{cell['condition']}"
                    for cell in own.to_dicts()
                ],
                row=row,
                col=column,
            )
        figure.add_hline(y=0, line={"color": INK, "width": 1}, row=row, col=column)
    _frame(
        figure,
        "Time to first byte, predicted out of sample",
        campaigns[0],
        height=150 + 190 * math.ceil(len(panels) / 2),
        caption="Error: predicted over measured TTFB, minus 1. Predicted from separately timed primitives and a "
        "transport fitted on<br>other handshakes; bytes and round trips follow from sizes of key shares, certificate "
        "and signature.",
        top=98,
    )
    figure.update_annotations(selector={"yanchor": "bottom", "xanchor": "center"}, font={"size": 11})
    figure.update_layout(legend={"y": 1.1})
    _log_axis(figure, "x", "", predictions["predicted_ms"].to_list())
    errors = [100 * error for error in predictions["error"]]
    room = 0.05 * (max(errors) - min(errors))
    figure.update_yaxes(**_linear(""), range=[min(errors) - room, max(errors) + room])
    figure.update_xaxes(title_text="predicted TTFB [ms]", title_standoff=2, row=math.ceil(len(panels) / 2))
    figure.update_yaxes(title_text="error [%]", col=1)
    used = [(campaign, predictions.filter(pl.col("cell").is_in(campaign["cell"].to_list()))) for campaign in campaigns]
    origins = sorted({origin for campaign, shown in used for origin in _origins(campaign, shown)})
    source = "beyond A Quantum of QUIC, Tables II and III"
    return Drawn("ttfb-additivity", figure, predictions, origins, source, table_name="ttfb-additivity")


def phases(campaign: pl.DataFrame, cells: pl.DataFrame, library: str, titles: Mapping[str, str] | None = None) -> Drawn:
    """What a library's TTFB consists of: cryptography of server and client, transport; and the key generation before
    it.
    """
    shown = cells.filter(
        (pl.col("arm") == "main")
        & (pl.col("client_library") == library)
        & (pl.col("server_library") == library)
        & pl.col("ttfb_ms").is_not_null()
        & pl.col("crypto_ms").is_not_null()
    ).with_columns((pl.col("ttfb_ms") - pl.col("crypto_ms")).clip(lower_bound=0).alias("transport_ms"))
    rows = _rows(shown)
    figure = go.Figure()
    whole = (shown["keygen_ms"] + shown["crypto_ms"] + shown["transport_ms"]).to_list()
    for column, name, colour in PHASES:
        values = shown[column].to_list()
        figure.add_bar(
            x=[100 * value / all_ for value, all_ in zip(values, whole, strict=True)],
            y=[rows[name] for name in shown["algorithm"]],
            orientation="h",
            width=0.72,
            name=name,
            marker={"color": colour},
            customdata=values,
            hovertemplate="%{customdata:.3f} ms, %{x:.1f} %<extra>" + name + "</extra>",
        )
    beside = {"x": 101, "xanchor": "left", "showarrow": False}
    values = [
        {"y": rows[algorithm], "text": f"{value:.2f}" if value < 100 else f"{value:.0f}", "font": {"size": 10}}
        for value, algorithm in zip(shown["ttfb_ms"], shown["algorithm"], strict=True)
    ]
    head = {"y": -0.9, "text": "TTFB [ms]", "font": {"size": 9.5, "color": SOFT}}
    layout.add(figure, "annotations", [{**beside, **one} for one in (*values, head)])
    title = (titles or {}).get(library, library)
    _frame(
        figure,
        f"Where the handshake's time goes: {title}",
        campaign,
        height=184 + ROW_PX * len(rows),
        caption="Shares of key generation plus TTFB. Cryptography from the primitives timed on the same host,"
        " transport is"
        " the rest<br>of the measured TTFB, and 0 where the primitives took longer separately than the handshake.",
        left=150,
        top=84,  # names of two lines
    )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    figure.update_xaxes(**_linear("share [%]"), range=[0, 112], tickvals=[0, 20, 40, 60, 80, 100])
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=list(rows),
        range=[len(rows) - 0.4, -1.4],
        showgrid=False,
        zeroline=False,
        **layout.NAMES,
    )
    name = f"phases-{campaign['experiment'][0]}-{library}"
    return Drawn(name, figure, cells, _origins(campaign, shown), "beyond A Quantum of QUIC, Sec. VI")


def amplification(
    campaign: pl.DataFrame, cells: pl.DataFrame, known: algorithms.Table, titles: Mapping[str, str] | None = None
) -> Drawn:
    """TTFB by round-trip time, certificate and mitigation: a panel for each library and arm.

    The slope of a line is the number of round trips before the request (RFC 9000, 8.1: a server sends at most three
    times what it has received until the client's address is validated).
    """
    titles = titles or {}
    shown = cells.filter((pl.col("arm") == "main") & pl.col("ttfb_ms").is_not_null())
    arms = [
        ("default", (~pl.col("retry").fill_null(False)) & (pl.col("initial_size").fill_null(1200) == 1200)),
        ("Retry", pl.col("retry").fill_null(False)),
        ("larger Initial", (~pl.col("retry").fill_null(False)) & (pl.col("initial_size").fill_null(1200) > 1200)),
    ]
    names = libraries(shown)
    figure = make_subplots(
        rows=len(arms),
        cols=max(len(names), 1),
        shared_xaxes=True,
        shared_yaxes="all",
        horizontal_spacing=0.015,
        vertical_spacing=0.035,
        column_titles=[titles.get(name, name) for name in names] or None,
        row_titles=[name for name, _ in arms],
    )
    kinds = sorted(set(shown.select("group", "signature").rows()))
    for column, library in enumerate(names, 1):
        for row, (_, condition) in enumerate(arms, 1):
            panel = shown.filter(condition & (pl.col("client_library") == library))
            if panel.is_empty():
                refused = cells.filter(condition & (pl.col("client_library") == library))["unsupported"].drop_nulls()
                figure.add_annotation(
                    x=50,
                    y=0,
                    yanchor="bottom",
                    text="unsupported" if len(refused) else "not measured",
                    hovertext=html.escape(refused[0]) if len(refused) else None,
                    showarrow=False,
                    font={"size": 10, "color": SOFT},
                    row=row,
                    col=column,
                )
            for number, (group, signature) in enumerate(kinds):
                line = panel.filter((pl.col("group") == group) & (pl.col("signature") == signature)).sort("rtt_ms")
                label = _kind(known, group, signature)
                _markers(
                    figure,
                    x=line["rtt_ms"].to_list(),
                    y=line["ttfb_ms"].to_list(),
                    low=line["ttfb_low"].to_list(),
                    high=line["ttfb_high"].to_list(),
                    vertical=True,
                    name=label,
                    number=number,
                    mode="lines+markers",
                    legend=(row, column) == (1, 1),
                    group=label,
                    # what lies over others does not hide them
                    weight=1 + 0.2 * (len(kinds) - 1 - number),
                    text=[_hover(cell, titles) for cell in line.to_dicts()],
                    row=row,
                    col=column,
                )
    _frame(
        figure,
        "Time to first byte by round-trip time, certificate and mitigation",
        campaign,
        height=540,
        caption="The slope is the number of round trips before the request. Retry validates the address for one"
        " round trip;"
        " larger<br>Initial datagrams give the server more to send before it must wait. Equal lines coincide,"
        " the last the thinnest." + _left_out(cells, [(name, shown.filter(of)) for name, of in arms], known, titles),
        top=98,
    )
    figure.update_annotations(selector={"textangle": 90}, font={"size": 11})
    for title in figure.layout.annotations[: len(names)]:
        title.font = {"size": 12}
    figure.update_layout(legend={"y": 1.06})
    ticks = sorted(set(shown["rtt_ms"].drop_nulls()))
    named: list[float] = []
    for tick in ticks:  # where there is room for its name
        if not named or tick - named[-1] > 0.2 * ticks[-1]:
            named.append(tick)
    figure.update_xaxes(
        tickvals=ticks,
        ticktext=[f"{tick:g}" if tick in named else "" for tick in ticks],
        tickangle=0,
        gridcolor=GRID,
        zeroline=False,
        showline=True,
        linecolor=INK,
        tickfont={"size": 10},
    )
    figure.update_yaxes(
        gridcolor=GRID, zeroline=False, showline=True, linecolor=INK, rangemode="tozero", tickfont={"size": 10}
    )
    figure.update_xaxes(title_text="RTT [ms]", title_font={"size": 11}, title_standoff=4, row=len(arms))
    figure.update_yaxes(title_text="TTFB [ms]", title_font={"size": 11}, title_standoff=4, col=1)
    source = "beyond A Quantum of QUIC, Sec. VI: the anti-amplification limit"
    return Drawn("amplification", figure, cells, _origins(campaign, shown), source)


def _kind(known: algorithms.Table, group: str, signature: str) -> str:
    """The name of a key exchange and certificate; X25519 goes without saying."""
    title = known.signature(signature).title
    return title if group == "x25519" else f"{known.group(group).title} with {title}"


def _left_out(
    cells: pl.DataFrame,
    arms: Sequence[tuple[str, pl.DataFrame]],
    known: algorithms.Table,
    titles: Mapping[str, str],
) -> str:
    """Lines of a caption: what has no values in some of the *arms*, and libraries without any."""
    of_arm = {name: set(found.select("group", "signature").rows()) for name, found in arms}
    every = sorted(set().union(*of_arm.values()))
    lines = []
    for name, own in of_arm.items():
        if own and (lacking := [_kind(known, *kind) for kind in every if kind not in own]):
            lines.append(f"Not measured with {name}: {', '.join(lacking)}.")
    measured = {library for _, found in arms for library in found["client_library"]}
    alike = cells.filter((pl.col("arm") == "main") & (pl.col("client_library") == pl.col("server_library")))
    for library in sorted(set(alike["client_library"]) - measured):
        row = alike.filter(pl.col("client_library") == library).row(0, named=True)
        lines.append(f"{titles.get(library, library)}: {_absent(row)[0]}.")
    return "".join(f"<br>{html.escape(part)}" for part in textwrap.wrap(" ".join(lines), layout.HOST_CHARACTERS))


def hybrid_cost(
    campaign: pl.DataFrame, cells: pl.DataFrame, table: pl.DataFrame, titles: Mapping[str, str] | None = None
) -> Drawn:
    """TTFB of hybrids against the sum of their parts, in per cent of the former.

    *table* is that of `quicbed.analysis.ttfb.hybrids`.
    """
    titles = titles or {}
    figure = go.Figure()
    rows: dict[str, int] = {}
    for name in table["algorithm"]:
        rows.setdefault(name, len(rows))
    names = [name for name in libraries(cells) if name in set(table["client_library"])]
    step = 0.8 / max(len(names), 1)
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    half = table.select((50 * (pl.col("excess_high") - pl.col("excess_low")) / pl.col("ttfb_ms")).median()).item()
    known = table.filter(pl.col("excess_low").is_not_null())
    table = table.with_columns(open=((pl.col("excess_low") <= 0) & (pl.col("excess_high") >= 0)).fill_null(True))
    ends = [0.0]
    for number, library in enumerate(names):
        dodge = step * (number - (len(names) - 1) / 2)
        legend = True
        for undecided in (True, False):
            own = table.filter((pl.col("client_library") == library) & (pl.col("open") == undecided))
            if own.is_empty():
                continue
            mean, low, high = ((100 * own[f"excess_{end}"] / own["ttfb_ms"]).to_list() for end in ("ms", "low", "high"))
            ends += [end for end in (*mean, *low, *high) if end is not None]
            _markers(
                figure,
                x=mean,
                y=[rows[name] + dodge for name in own["algorithm"]],
                low=low,
                high=high,
                name=titles.get(library, library),
                number=number,
                legend=legend,
                pale=undecided,
                text=[
                    f"{html.escape(row['algorithm'])}: TTFB {row['ttfb_ms']:.3f} ms<br>{row['excess_ms']:+.3f} ms to"
                    f" the sum of"
                    f" {html.escape(row['classical'])} and {html.escape(row['kem'])}"
                    for row in own.to_dicts()
                ],
            )
            legend = False
    clear = table.filter(~pl.col("open")).height
    _frame(
        figure,
        "Hybrids and the sum of their parts",
        campaign,
        height=170 + _row_px(names) * len(rows),
        caption="TTFB of the hybrid minus (classical part + KEM - base), paired within blocks, mean and 95 % interval."
        "<br>Base: TTFB with X25519 less X25519's own primitives and key shares. Zero: the parts add up."
        "<br>Pale and hollow: the interval has 0 in it, so that the sign of the difference is not decided.",
        left=150,
        says=[
            f"{clear} of {len(known)} intervals exclude 0, where chance alone makes {0.05 * len(known):.1f}; half are "
            f"longer than \N{PLUS-MINUS SIGN}{half:.2g} %: a difference of some per cent is not decided"
        ]
        if half
        else [],
    )
    _bands(figure, rows)
    _levels(figure, cells.filter(pl.col("algorithm").is_in(list(rows))), rows)
    room = 0.15 * (max(ends) - min(ends))  # for the names of levels
    figure.update_xaxes(
        **_linear("beyond the sum of the parts [% of the TTFB]"), range=[min(ends) - 0.2 * room, max(ends) + room]
    )
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=list(rows),
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        **layout.NAMES,
    )
    shown = cells.filter(pl.col("arm") == "main")
    return Drawn("hybrid-cost", figure, cells, _origins(campaign, shown), "A Quantum of QUIC, Table II")


def _name(figure: go.Figure, shown: pl.DataFrame) -> None:
    """The name of each algorithm beside one of its marks, where it covers neither a mark nor another name."""
    margin, ends = figure.layout.margin, [figure.layout[f"{axis}axis"].range for axis in "xy"]
    spans = [figure.layout[side] - margin[low] - margin[high] for side, low, high in
             (("width", "l", "r"), ("height", "t", "b"))]  # fmt: skip

    def place(row: Mapping[str, Any]) -> tuple[float, float]:
        values = (row["handshake_bytes"], row["ttfb_ms"])
        x, y = (
            span * (math.log10(value) - low) / (high - low)
            for value, span, (low, high) in zip(values, spans, ends, strict=True)
        )
        return x, y

    marks = [(*place(row), row["algorithm"]) for row in shown.to_dicts()]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in marks]
    found = []
    for algorithm in dict.fromkeys(shown.sort("ttfb_ms", descending=True)["algorithm"]):
        width = LETTER_PX * len(algorithm)
        for x, y in ((x, y) for x, y, name in marks if name == algorithm):
            boxes = [
                (left, bottom, left + width, bottom + NAME_PX)
                for left, bottom in (
                    (x + 6, y - NAME_PX / 2), (x - 6 - width, y - NAME_PX / 2),
                    (x - width / 2, y + 6), (x - width / 2, y - 6 - NAME_PX),
                )
            ]  # fmt: skip
            box = next((box for box in boxes if _free(box, taken, spans)), None)
            if box is not None:
                taken.append(box)
                found.append((algorithm, (box[0] + box[2]) / 2 / spans[0], (box[1] + box[3]) / 2 / spans[1]))
                break
    same = {"xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "middle", "showarrow": False}
    names = [{**same, "text": html.escape(name), "x": x, "y": y} for name, x, y in found]
    layout.add(figure, "annotations", [{**name, "font": {"size": 8, "color": SOFT}} for name in names])


def _free(box: Sequence[float], taken: Sequence[Sequence[float]], spans: Sequence[float]) -> bool:
    """Whether a box, as left, bottom, right and top, is within *spans* and clear of all that are taken."""
    inside = box[0] >= 0 and box[1] >= 0 and box[2] <= spans[0] and box[3] <= spans[1]
    return inside and all(
        box[2] < other[0] or other[2] < box[0] or box[3] < other[1] or other[3] < box[1] for other in taken
    )


def _markers(
    figure: go.Figure,
    *,
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    number: int,
    text: Sequence[str],
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    vertical: bool = False,
    mode: str = "markers",
    legend: bool = True,
    group: str | None = None,
    weight: float = 1,
    pale: bool = False,
    **place: int,
) -> None:
    """Markers of a series with the colour and symbol of its number, and intervals where there are any.

    *weight* is how many times the usual size they have; *pale* ones are hollow.
    """
    colour, symbol = COLOURS[number % len(COLOURS)], SYMBOLS[number % len(SYMBOLS)]
    if pale:
        colour, symbol = goodput._rgba(colour, 0.55), f"{symbol}-open"
    values = y if vertical else x
    error: dict[str, Any] = {"visible": False}
    if low is not None and high is not None:
        error = {
            "type": "data",
            "symmetric": False,
            "array": [0 if h is None else h - v for v, h in zip(values, high, strict=True)],
            "arrayminus": [0 if lo is None else v - lo for v, lo in zip(values, low, strict=True)],
            "color": colour,
            "thickness": 1.1,
            "width": 2,
        }
    figure.add_scatter(
        x=list(x),
        y=list(y),
        mode=mode,
        name=name,
        legendgroup=group or name,
        showlegend=legend,
        marker={"color": colour, "symbol": symbol, "size": 5.5 * weight},
        line={"color": colour, "width": 1.2 * weight},
        hovertext=list(text),
        hoverinfo="text",
        **{"error_y" if vertical else "error_x": error},
        **place,
    )


def _hover(cell: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Everything about a cell, for the interactive page."""
    library = titles.get(cell["client_library"], cell["client_library"])
    lines = [f"<b>{html.escape(library)}, {html.escape(cell['label'])}</b>"]
    interval = ""
    if cell["ttfb_low"] is not None:
        interval = f" [{cell['ttfb_low']:.3f}, {cell['ttfb_high']:.3f}]"
    lines.append(f"TTFB {cell['ttfb_ms']:.3f}{interval} ms, {cell['n']} connections")
    if cell["packets_client"] is not None:
        lines.append(
            f"packets {cell['packets_client']:g}/{cell['packets_server']:g}, {cell['handshake_bytes']:.0f} bytes,"
            f" {cell['waits']:g} further round trips"
        )
    if cell["predicted_ms"] is not None:
        lines.append(f"predicted {cell['predicted_ms']:.3f} ms, of that cryptography {cell['crypto_ms']:.3f} ms")
    lines.append(f"cell {cell['cell']}, build {html.escape(str(cell['client_build']))}")
    return "<br>".join(lines)


def _origins(campaign: pl.DataFrame, shown: pl.DataFrame) -> list[str]:
    return comparison.used_origins(campaign, shown["cell"].to_list())


def _linear(title: str) -> dict[str, Any]:
    return {
        "title_text": title,
        "gridcolor": GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": INK,
        "ticks": "outside",
        "ticklen": 4,
        "title_standoff": 6,
        "title_font": {"size": 12},
    }


def _log_axis(
    figure: go.Figure, axis: str, title: str, values: Sequence[float], *, room: float = 1, **place: int
) -> None:
    """A logarithmic axis with ticks at 1, 2 and 5 times the powers of ten, spelled out; begins *room* times earlier."""
    present = [value for value in values if value and value > 0]
    low, high = (min(present), max(present)) if present else (1.0, 10.0)
    ticks = [m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5) if 0.5 * low <= m * 10.0**e <= 2 * high]
    if len(ticks) > 10:
        ticks = [tick for tick in ticks if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9)]
    settings = _linear(title) | {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" if tick < 10_000 else f"{tick / 1000:g}k" for tick in ticks],
        "range": [math.log10(low * 0.8 / room), math.log10(high * 1.25)],
    }
    (figure.update_xaxes if axis == "x" else figure.update_yaxes)(**settings, **place)


def _frame(
    figure: go.Figure,
    title: str,
    campaign: pl.DataFrame,
    *,
    height: float,
    caption: str,
    left: int = 66,
    top: int = 70,
    says: Sequence[str] = (),
) -> None:
    """As `layout.finish`; *says* are lines below the conditions, on what the figure does not show."""
    more = 12 * max(0, caption.count("<br>") - 1)  # of two lines in general
    two_lines = sum(trace.showlegend is not False and bool(trace.name) for trace in figure.data) > LEGEND_ENTRIES
    layout.finish(
        figure,
        title,
        [goodput.conditions(campaign), *says],
        caption,
        [campaign],
        height=height + 24 * two_lines + more + 14 * len(says),
        left=left,
        top=top + 24 * two_lines,
        bottom=76 + more,
        size=11.5,
        legend={"font": {"size": 10}},
    )
