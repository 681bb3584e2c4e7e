"""Figures of handshakes: what is drawn of cells, and that nothing is drawn over something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.config import algorithms
from quicbed.figures import handshake_figures
from quicbed.store import runs

KNOWN = algorithms.read(ROOT)


@pytest.fixture
def campaign(tmp_path: Path) -> pl.DataFrame:
    """One run: figures take what they were measured under from it."""
    run = fakeruns.make_run(experiment="amplification", workload={"kind": "handshake", "connections": 10})
    fakeruns.write_run(tmp_path / "raw", run)
    return runs.select_campaign(runs.table(tmp_path / "raw"), "amplification")


def cell(**changes: Any) -> dict[str, Any]:
    text = dict.fromkeys(["unsupported", "failure", "packets_client", "predicted_ms"])
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
        "algorithm": "X25519",
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


def test_what_an_arm_has_not_and_equal_lines_are_seen(campaign: pl.DataFrame) -> None:
    kinds = [{"signature": name, "retry": retry} for name in ("dilithium3", "rsa-2048") for retry in (False, True)]
    lacking = cell(client_library="quinn", server_library="quinn", ttfb_ms=None, unsupported="it has no Retry")
    cells = pl.DataFrame([*(cell(**kind) for kind in kinds[:1] + kinds[2:]), lacking], infer_schema_length=None)
    figure = handshake_figures.amplification(campaign, cells, KNOWN).figure
    caption = figure.layout.meta["caption"]
    assert "Not measured with Retry: Dilithium3." in caption
    assert "with larger Initial" not in caption  # nothing was
    assert "quinn: unsupported." in caption
    below, above = (trace for trace in figure.data if len(trace.x) and trace.xaxis in (None, "x"))
    assert (below.name, above.name) == ("Dilithium3", "RSA-2048")
    assert below.marker.size > above.marker.size


def test_a_published_value_is_drawn_beside_the_algorithm_that_it_is_of(campaign: pl.DataFrame) -> None:
    """HQC of the paper has vector instructions."""
    names = ("X25519", "HQC-128", "HQC-128 (AVX2)")
    cells = pl.DataFrame([cell(algorithm=name, nist_level=1, published_ttfb_ms_quiche=3.0) for name in names])
    cells = cells.with_columns(published_ttfb_ms_lsquic=None)
    figure = handshake_figures.ttfb_by_algorithm(campaign, cells, "group").figure
    (printed,) = [trace for trace in figure.data if trace.name == "quiche, published"]
    assert [figure.layout.yaxis.ticktext[row] for row in printed.y] == ["X25519", "HQC-128 (AVX2)"]


def test_algorithms_are_named_where_their_names_cover_nothing(campaign: pl.DataFrame) -> None:
    sizes = {"alone": 20_000.0, "one": 2_000.0, "its-neighbour": 2_010.0}
    rows = [cell(algorithm=name, handshake_bytes=size, group=name) for name, size in sizes.items()]
    crowd = [cell(algorithm=f"crowd-{n}", handshake_bytes=5_000.0 + n, ttfb_ms=9.0) for n in range(30)]
    figure = handshake_figures.ttfb_by_bytes(campaign, pl.DataFrame(rows + crowd), {}).figure
    named = [note.text for note in figure.layout.annotations]
    assert named.count("alone") == 1
    assert {"one", "its-neighbour"} <= set(named)
    assert 0 < sum(name.startswith("crowd") for name in named) < 30


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
    # neither interval decides; one that does is not hollow
    assert markers.marker.symbol == "circle-open"
    assert "0 of 2 intervals exclude 0, where chance alone makes 0.1" in figure.layout.title.text
    clear = sums.with_columns(excess_low=pl.when(pl.col("excess_ms") > 0).then(0.01).otherwise("excess_low"))
    figure = handshake_figures.hybrid_cost(campaign, cells, clear).figure
    assert "1 of 2 intervals exclude 0" in figure.layout.title.text
    found = {trace.marker.symbol: list(trace.x) for trace in figure.data if trace.mode == "markers"}
    assert found == {"circle-open": pytest.approx([-10]), "circle": pytest.approx([10])}
    assert [trace.showlegend for trace in figure.data if trace.mode == "markers"] == [True, False]


def test_unpatched_builds_have_a_line_for_every_variant_and_a_reason_where_it_is_empty(campaign: pl.DataFrame) -> None:
    missing = dict.fromkeys(["ttfb_ms", "ttfb_low", "ttfb_high"])
    cells = pl.DataFrame(
        [
            cell(label="ML-DSA-65", signature="mldsa65", ttfb_ms=4.0),
            cell(label="X25519MLKEM768", group="x25519-mlkem768", ttfb_ms=3.0),
            cell(label="X25519"),
            cell(label="X25519", client_library="noq", server_library="noq", ttfb_ms=8.0),
            cell(label="X25519", client_library="noq", ttfb_ms=9.0),  # of no library with itself
            cell(label="X25519", arm="aa", ttfb_ms=10.0, ratio_low=0.9, ratio_high=1.1),
            cell(label="X25519MLKEM768", client_library="noq", server_library="noq", group="x25519-mlkem768")
            | missing
            | {"unsupported": "noq has no group"},
            cell(label="ML-DSA-65", client_library="noq", server_library="noq", signature="mldsa65")
            | missing
            | {"failure": "timed out"},
        ],
        infer_schema_length=None,
    )
    drawn = handshake_figures.native(campaign, cells, KNOWN, {"quiche": "Quiche"})
    assert {trace.name: list(trace.x) for trace in drawn.figure.data} == {
        "X25519": [2.0, 8.0],
        "X25519MLKEM768": [3.0],
        "ML-DSA-65": [4.0],
    }
    assert list(drawn.figure.layout.yaxis.ticktext) == ["noq", "Quiche"]
    lines = {note.text: note for note in drawn.figure.layout.annotations if note.hovertext}
    assert {text: note.hovertext for text, note in lines.items()} == {
        "X25519MLKEM768 unsupported": "noq has no group",
        "ML-DSA-65 failed": "timed out",
    }
    # each where the marker would be: in the library's row, on the variant's line
    places = {trace.name: trace.y for trace in drawn.figure.data}
    assert lines["X25519MLKEM768 unsupported"].y == pytest.approx(places["X25519MLKEM768"][0] - 1)
    assert lines["ML-DSA-65 failed"].y == pytest.approx(places["ML-DSA-65"][0] - 1)


@pytest.mark.parametrize(("libraries", "more"), [(6, 0), (7, 24)])
def test_a_legend_of_two_lines_has_room(campaign: pl.DataFrame, libraries: int, more: int) -> None:
    cells = pl.DataFrame(
        [
            cell(client_library=f"lib{number}", server_library=f"lib{number}", handshake_bytes=5000.0)
            for number in range(libraries)
        ]
    )
    layout = handshake_figures.ttfb_by_bytes(campaign, cells, {}).figure.layout
    assert (layout.height, layout.margin.t) == (handshake_figures.BYTES_PX + 13 + more, 84 + more)
