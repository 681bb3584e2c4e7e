"""Figures of videos: how they start, which bit rates the player chooses and how they stall, over HTTP/3 and HTTP/2."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from quicbed.analysis import comparison
from quicbed.figures import goodput, layout, output
from quicbed.figures.findings import Found
from quicbed.papers.workloads import video, web_figures
from quicbed.papers.workloads.web_figures import Series

SOURCE = "Evaluating QUIC Performance over Web, Cloud Storage and Video Workloads, video"
UNITS = {
    "connection_ms": "ms",
    "startup_delay_ms": "ms",
    "bit_rate_mbps": "Mbit/s",
    "download_rate_mbps": "Mbit/s",
    "quality_switches": "per video",
    "stalls": "per video",
    "stall_s": "s per video",
}
START = ("connection_ms", "startup_delay_ms")
QUALITY = ("bit_rate_mbps", "download_rate_mbps", "quality_switches")
STALLS = ("stalls", "stall_s")
LABEL_CHARACTERS = {2: 11, 3: 7}
"""Of a line of a label, by how many panels there are."""


def start(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """How long connecting takes, and how long until the first frame."""
    caption = (
        "Connection time begins with the connection, before the handshake of<br>TCP; start-up delay begins with the "
        "navigation and ends with the first frame."
    )
    return _drawn(campaign, table, "start", "How videos start in Chromium", START, caption)


def quality(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """The bit rates that the player chooses, what it downloads them with, and how often it changes."""
    caption = (
        "Bit rate: mean of the segments that the player chose. Download<br>rate: bytes of the segments by the time "
        "from their request to their last byte. A switch is a segment with another bit rate<br>than the one before."
    )
    return _drawn(campaign, table, "quality", "Bit rates of videos in Chromium", QUALITY, caption)


def stalls(campaign: pl.DataFrame, table: pl.DataFrame) -> output.Drawn:
    """How often and for how long videos stand still."""
    caption = (
        "A stall begins when the buffer is empty after the<br>start, ends when the video resumes, and lasts at least a "
        "frame."
    )
    return _drawn(campaign, table, "stalls", "Stalls of videos in Chromium", STALLS, caption)


def found(table: pl.DataFrame, ratios: pl.DataFrame, metrics: tuple[str, ...]) -> Found | None:
    """Sentences on every condition: ratios where a metric has them, else means; None where there is nothing to say."""
    told = []
    for label, factors in video.conditions(table):
        for metric in metrics:
            if metric in video.RATIOS:
                own = ratios.filter((pl.col("metric") == metric) & (pl.col("label") == label))
                told += web_figures.sentences(own, video.METRICS[metric])
            else:
                told += _means(table.filter(pl.col("metric") == metric), metric, label, factors)
    return Found(told) if told else None


def _means(table: pl.DataFrame, metric: str, label: str, factors: Mapping[str, Any]) -> list[str]:
    means = []
    for one in web_figures.all_series(table):
        cell = _cell(table, one, factors)
        if cell is not None and cell["n"] > 1:
            means.append(f"{cell['mean']:.2g} over {web_figures.named(one)}")
    unit = "" if UNITS[metric] == "per video" else " in s"
    return [f"{label}: {video.METRICS[metric].lower()} in a video, mean{unit}: {', '.join(means)}."] if means else []


def _drawn(
    campaign: pl.DataFrame, table: pl.DataFrame, name: str, title: str, metrics: tuple[str, ...], caption: str
) -> output.Drawn:
    table = table.filter(pl.col("metric").is_in(metrics))
    shown, series = video.conditions(table), web_figures.all_series(table)
    figure = make_subplots(
        rows=1,
        cols=len(metrics),
        horizontal_spacing=0.09,
        subplot_titles=[f"<b>{video.METRICS[metric]}</b>" for metric in metrics],
    )
    figure.update_annotations(font_size=11)
    for column, metric in enumerate(metrics, 1):
        place = {"row": 1, "col": column}
        own = table.filter(pl.col("metric") == metric)
        for number, one in enumerate(series):
            _points(figure, own, one, number, len(series), shown, place)
        figure.update_xaxes(
            tickvals=list(range(len(shown))),
            ticktext=[
                "<br>".join(textwrap.wrap(html.escape(label), LABEL_CHARACTERS[len(metrics)])) for label, _ in shown
            ],
            range=[-0.5, max(len(shown) - 0.5, 0.5)],
            tickfont={"size": 9.5},
            **layout.AXIS,
            **place,
        )
        top = max((row["max"] for row in own.to_dicts() if row["n"]), default=1) or 1
        figure.update_yaxes(
            title_text=UNITS[metric],
            # what is zero is drawn whole
            range=[-0.05 * top if metric in video.COUNTS else 0, 1.08 * top],
            tickfont={"size": 10},
            title_font={"size": 11},
            title_standoff=4,
            **layout.VALUES,
            **place,
        )
    runs = campaign.with_columns(rate_mbit=pl.lit(None, pl.Float64))
    rtts = sorted({factors["rtt_ms"] for _, factors in shown})
    around = [f"round-trip time {rtts[-1]:g} ms unless stated otherwise"] if rtts else []
    layout.finish(
        figure,
        title,
        [goodput.conditions(runs), *around],
        f"Means, bars from the smallest to the largest run. {caption}" + goodput.disturbed(campaign),
        [campaign],
        height=320,
        left=58,
        bottom=96 if metrics == QUALITY else 82,
        legend=layout.IN_CORNER,
    )
    cells = table.filter(pl.col("arm") == "main")["cell"].unique().sort().to_list()
    origins = comparison.used_origins(campaign, cells)
    experiment = str(campaign["experiment"][0])
    return output.Drawn(f"{experiment}-{name}", figure, table, origins, SOURCE, experiment)


def _points(
    figure: go.Figure,
    table: pl.DataFrame,
    one: Series,
    number: int,
    of: int,
    shown: list[tuple[str, dict[str, Any]]],
    place: Mapping[str, int],
) -> None:
    beside = 0.17 * (number - (of - 1) / 2)
    cells = {x: _cell(table, one, factors) for x, (_, factors) in enumerate(shown)}
    drawn = {x: cell for x, cell in cells.items() if cell is not None and cell["n"]}
    figure.add_scatter(
        x=[x + beside for x in drawn],
        y=[cell["mean"] for cell in drawn.values()],
        error_y=layout.to_extremes(list(drawn.values())),
        mode="markers",
        name=web_figures.named(one),
        legendgroup=web_figures.named(one),
        marker=web_figures.marker(number),
        hovertext=[_hover(cell, one) for cell in drawn.values()],
        hoverinfo="text",
        showlegend=place["col"] == 1,
        **place,
    )
    for x, cell in cells.items():
        # a version of TLS may be measured under some conditions only
        if cell is not None and not cell["n"]:
            layout.in_place(figure, x + beside, *layout.absent(cell), place)


def _hover(cell: Mapping[str, Any], one: Series) -> str:
    metric = cell["metric"]
    return (
        f"<b>{html.escape(web_figures.named(one))}</b>, {html.escape(cell['label'])}<br>"
        f"{video.METRICS[metric].lower()} {cell['mean']:.4g} {UNITS[metric]}, n = {cell['n']}, failed {cell['failed']}"
    )


def _cell(table: pl.DataFrame, one: Series, factors: Mapping[str, Any]) -> dict[str, Any] | None:
    library, version = one
    own = table.filter(
        pl.col("arm") == "main", pl.col("client_library") == library, pl.col("tls_version").eq_missing(version)
    )
    return next((cell for cell in own.to_dicts() if video.same(cell, factors)), None)
