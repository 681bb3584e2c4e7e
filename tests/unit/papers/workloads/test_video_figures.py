"""Figures of videos: which cells stand beside each other, what is compared, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.papers.workloads import video, video_figures
from quicbed.store import runs

QUIC, TCP = "nginx-h3", "tcp-tls"
VARIANTS: dict[str, dict[str, Any]] = {
    "fast": {"rate_mbit": 20.0},
    "drop": {"rate_mbit": 5.0, "rate_trace": "drop"},
    "slow": {"rate_mbit": 1.0},
    "fast, old": {"rate_mbit": 20.0, "tls_version": "TLSv1.2"},
}
BLOCKS = 3


def made(library: str, label: str, block: int | None, **changes: Any) -> dict[str, Any]:
    factors = VARIANTS[label]
    run = fakeruns.make_run(experiment="video", block=block, **changes)
    run["cell"] |= {"id": f"{library}-{label}", "slug": f"{library}-{label}", "label": label, "baseline": None}
    run["client"] = run["server"] = run["client"] | {"library": library}
    run["link"] = {"mode": "wire", "mtu": 1500, "rtt_ms": 50.0, "rate_mbit": factors["rate_mbit"]}
    run["variant"] |= {"video": "ladder-2s", "loaded_by": "chromium", "rtt_ms": 50} | factors
    run["variant"]["header_protection"] = True if library == QUIC else None
    run["workload"] = {"kind": "video", "bytes": 1, "connections": 1}
    if run["status"] == "ok":
        better = 1.0 if library == TCP or label != "fast" else 0.5
        run["metrics"] |= {
            "connection_ms": 50.0 if library == QUIC else 100.0,
            "startup_delay_ms": 600.0 + 10 * (block or 0),
            "bit_rate_mbps": better * 5.6,
            "download_rate_mbps": better * 16,
            "quality_switches": 1 + (block or 0),
            "stalls": int(label == "drop"),
            "stall_s": 1.5 * (label == "drop"),
        }
    return run


@pytest.fixture
def campaign(tmp_path: Path) -> pl.DataFrame:
    for library in (QUIC, TCP):
        for label, factors in VARIANTS.items():
            if library == QUIC and "tls_version" in factors:
                fakeruns.write_run(tmp_path, made(library, label, None, status="unsupported", reason="TLS 1.3 only"))
            elif (library, label) == (TCP, "slow"):
                fakeruns.write_run(tmp_path, made(library, label, None, status="unsupported", reason="no <npm>"))
            else:
                for block in range(BLOCKS):
                    fakeruns.write_run(tmp_path, made(library, label, block))
    return runs.select_campaign(runs.table(tmp_path), video.EXPERIMENT)


def test_a_table_has_a_row_for_every_cell_and_metric(campaign: pl.DataFrame) -> None:
    table = video.by_metric(campaign)
    assert table.height == 7 * len(video.METRICS)
    row = table.filter(metric="quality_switches", client_library=QUIC, label="fast").row(0, named=True)
    assert (row["n"], row["mean"], row["min"], row["max"], row["tls_version"]) == (3, 2, 1, 3, None)
    lacking = table.filter(metric="stalls", client_library=TCP, label="slow").row(0, named=True)
    assert (lacking["n"], lacking["mean"], lacking["unsupported"]) == (0, None, "no <npm>")


def test_a_cell_and_its_repetition_stand_in_one_order(tmp_path: Path) -> None:
    """They have one label and one pair of libraries, and the same runs give the same table."""
    pairs = [(TCP, label) for label in VARIANTS] + [(QUIC, label) for label in VARIANTS if "old" not in label]
    for library, label in pairs:
        for arm in ("main", "aa"):
            run = made(library, label, 0)
            run["cell"] |= {"id": f"{arm}-{library}-{label}", "slug": f"{arm}-{library}-{label}", "arm": arm}
            fakeruns.write_run(tmp_path, run)
    table = video.by_metric(runs.select_campaign(runs.table(tmp_path), video.EXPERIMENT))
    cells = table.filter(metric="stalls")
    assert cells.height == 2 * len(pairs)
    assert cells.equals(cells.sort("label", "client_library", "arm"))


def test_conditions_are_those_of_the_link_traces_last(campaign: pl.DataFrame) -> None:
    assert [label for label, _ in video.conditions(video.by_metric(campaign))] == ["slow", "fast", "drop"]


def test_http_3_is_compared_with_each_version_of_tls_within_blocks(campaign: pl.DataFrame) -> None:
    ratios = video.against_tcp(campaign, video.by_metric(campaign))
    rates = ratios.filter(metric="bit_rate_mbps").select("label", "tls_version", "ratio", "n").sort(pl.all())
    assert [(*row[:2], round(row[2], 9), row[3]) for row in rates.rows()] == [
        ("drop", "TLSv1.3", 1, 3),
        ("fast", "TLSv1.2", 0.5, 3),
        ("fast", "TLSv1.3", 0.5, 3),
    ]
    assert set(ratios["metric"]) == set(video.RATIOS)


def test_figures_show_means_and_what_is_unsupported(campaign: pl.DataFrame) -> None:
    table = video.by_metric(campaign)
    drawn = video_figures.quality(campaign, table)
    assert (drawn.name, drawn.table_name) == ("video-quality", "video")
    names = [trace.name for trace in drawn.figure.data[:3]]
    assert names == ["HTTP/3", "HTTP/2, TLS 1.3", "HTTP/2, TLS 1.2"]
    assert [len(trace.x) for trace in drawn.figure.data] == [3, 2, 1] * 3
    told = [note.hovertext for note in drawn.figure.layout.annotations if note.text == "unsupported"]
    assert told == ["no &lt;npm&gt;"] * 3
    assert len(drawn.origins) == BLOCKS * 6
    assert {video_figures.start(campaign, table).name, video_figures.stalls(campaign, table).name} == {
        "video-start",
        "video-stalls",
    }


def test_sentences_compare_rates_and_tell_stalls(campaign: pl.DataFrame) -> None:
    table = video.by_metric(campaign)
    ratios = video.against_tcp(campaign, table)
    found = video_figures.found(table, ratios, ("bit_rate_mbps",))
    assert found is not None
    assert found.sentences[0] == (
        "fast: bit rate chosen over HTTP/3 differs from that over HTTP/2, TLS 1.3 by −50.0 % (95 % interval −50.0 to "
        "−50.0 %)."
    )
    stalls = video_figures.found(table, ratios, ("stall_s",))
    assert stalls is not None
    assert (
        stalls.sentences[-1] == "drop: time stalled in a video, mean in s: 1.5 over HTTP/3, 1.5 over HTTP/2, TLS 1.3."
    )
    assert video_figures.found(table.clear(), ratios.clear(), ("bit_rate_mbps", "stalls")) is None
