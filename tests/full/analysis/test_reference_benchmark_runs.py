"""Captures of the reference data show what tshark has counted in them."""

from __future__ import annotations

import json

import polars as pl
import pytest

from clone import ROOT
from quicbed.papers.quic_benchmark import analysis
from quicbed.store import runs, walk
from quicbed.store.paths import RUN_FILE
from quicbed.wire.layers import LAYERS

RAW = ROOT / "raw" / "reference"


def test_shipped_captures_show_what_tshark_counted() -> None:
    """Moments and sizes of handshakes as they were stored when tshark dissected the same captures."""
    (archive,) = RAW.glob("native-handshake.tar.*")
    place = walk.packed(archive, f"raw/reference/{archive.name}", {RUN_FILE, "handshakes.json"})
    rows = [runs.values_of(origin, run) for origin, run in runs.read(place)]
    found = analysis.own(runs.tabled(rows, []), RAW)
    assert found.runs["client_library"].n_unique() == len(found.runs) > 2
    assert found.problems == ()
    assert found.packets["opaque"].sum() == 0
    assert found.packets.select(pl.sum_horizontal(LAYERS)).to_series().equals(found.packets["frame_bytes"])
    compared = 0
    captured = found.durations.filter(pl.col("basis") == "capture")
    for origin in found.runs["origin"]:
        stored = json.loads(place.runs[origin]["handshakes.json"])
        own = captured.filter(pl.col("origin") == origin).sort("connection")
        expected = [(one["t_client_finished"] - one["t_client_hello"]) / 1e6 for one in stored]
        assert own["handshake_ms"].to_list() == pytest.approx(expected)
        for one in stored:
            if one["transport"] == "quic":
                sent = found.packets.filter((pl.col("origin") == origin) & (pl.col("connection") == one["index"]))
                before = sent.filter(pl.col("time_ms") <= expected[one["index"]])
                crypto = sum(
                    side["crypto_bytes"] for role in ("client", "server") for side in one[role]["levels"].values()
                )
                compared += 1
                assert before["tls"].sum() == crypto
    assert compared > 20
