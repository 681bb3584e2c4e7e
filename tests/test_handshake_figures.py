"""Figures of handshakes: what is drawn of cells, and that nothing is drawn over something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed import algorithms, handshake_figures, runs

KNOWN = algorithms.read(Path(__file__).resolve().parents[1])


@pytest.fixture
def campaign(tmp_path: Path) -> pl.DataFrame:
    """One run: figures take what they were measured under from it."""
    run = fakeruns.make_run(experiment="amplification", workload={"kind": "handshake", "connections": 10})
    fakeruns.write_run(tmp_path / "raw", run)
    return runs.select_campaign(runs.table(tmp_path / "raw"), "amplification")


def cell(**changes: Any) -> dict[str, Any]:
    text = dict.fromkeys(["unsupported", "packets_client", "predicted_ms"])
    return {
        **text,
        "arm": "main",
        "cell": str(changes),
        "label": "a cell",
        "client_library": "quiche",
        "server_library": "quiche",
        "client_build": "quiche-pq",
        "header_protection": True,
        "group": "x25519",
        "signature": "rsa-2048",
        "retry": False,
        "initial_size": 1200,
        "rtt_ms": 0.0,
        "ttfb_ms": 2.0,
        "ttfb_low": 1.5,
        "ttfb_high": 2.5,
        "n": 10,
    } | changes


def test_round_trip_times_are_named_where_there_is_room(campaign: pl.DataFrame) -> None:
    cells = pl.DataFrame([cell(rtt_ms=float(rtt), ttfb_ms=2.0 + rtt) for rtt in (0, 10, 40, 100)])
    figure = handshake_figures.amplification(campaign, cells, KNOWN).figure
    assert list(figure.layout.xaxis.tickvals) == [0, 10, 40, 100]
    assert list(figure.layout.xaxis.ticktext) == ["0", "", "40", "100"]
    (line,) = [trace for trace in figure.data if len(trace.x)]
    assert list(line.y) == [2, 12, 42, 102]
    assert [note.text for note in figure.layout.annotations].count("not measured") == 2  # Retry, larger Initial


def test_hybrids_are_compared_with_their_parts_in_per_cent(campaign: pl.DataFrame) -> None:
    names = {"p-256-kyber512": ("P-256+Kyber512", 1), "p-521-hqc-256": ("P-521+HQC-256", 5)}
    cells = pl.DataFrame(
        [cell(group=group, algorithm=title, nist_level=level) for group, (title, level) in names.items()]
    )
    times = {"P-256+Kyber512": (1.0, 0.1, 0.0, 0.2), "P-521+HQC-256": (50.0, -5.0, -10.0, 0.0)}
    sums = pl.DataFrame(
        [
            {"client_library": "quiche", "algorithm": title, "classical": "a", "kem": "b"}
            | dict(zip(("ttfb_ms", "excess_ms", "excess_low", "excess_high"), values, strict=True))
            for title, values in times.items()
        ]
    )
    figure = handshake_figures.hybrid_cost(campaign, cells, sums).figure
    (markers,) = [trace for trace in figure.data if trace.mode == "markers"]
    assert list(markers.x) == pytest.approx([10, -10])
    assert list(markers.error_x.array) == pytest.approx([10, 10])
    low, high = figure.layout.xaxis.range
    assert low < -20 < 20 < high
    texts = [note.text for note in figure.layout.annotations]
    assert {"NIST level 1", "NIST level 5"} <= set(texts)


@pytest.mark.parametrize(("libraries", "more"), [(6, 0), (7, 24)])
def test_a_legend_of_two_lines_has_room(campaign: pl.DataFrame, libraries: int, more: int) -> None:
    cells = pl.DataFrame(
        [
            cell(client_library=f"lib{number}", server_library=f"lib{number}", handshake_bytes=5000.0)
            for number in range(libraries)
        ]
    )
    layout = handshake_figures.ttfb_by_bytes(campaign, cells, {}).figure.layout
    assert (layout.height, layout.margin.t) == (430 + more, 84 + more)
