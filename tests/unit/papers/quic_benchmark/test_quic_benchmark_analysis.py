"""What the figures of quic-benchmark are made of: exact on tables and captures made by hand, and on what is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from openedcaptures import GET, HEAD, SIZE, Quic, Tls, key_log
from quicbed.importers import tables
from quicbed.papers.quic_benchmark import analysis
from quicbed.store import runs
from quicbed.wire.layers import LAYERS
from wirefixtures import pcap

PLACE = {"source": "raw/local", "library": "quiche", "label": "handshake", "origin": "raw/local/proofs/1/a"}


def packet(connection: int, number: int, role: str, what: str, ms: float, size: int, **layers: int) -> dict[str, Any]:
    own = {"connection": connection, "packet": number, "role": role, "what": what, "time_ms": ms, "frame_bytes": size}
    return PLACE | own | dict.fromkeys(LAYERS, 0) | layers


def packets() -> pl.DataFrame:
    rows = [
        packet(0, 0, "client", "Initial", 0.0, 1200, link=100, tls=1100),
        packet(0, 1, "server", "ACK", 1.0, 60, link=60),
        packet(0, 2, "server", "ACK", 2.0, 80, link=80),
        packet(1, 0, "client", "Initial", 0.0, 1200, link=100, tls=1100),
        packet(1, 1, "server", "ACK", 3.0, 70, link=20, content=50),
        packet(2, 0, "client", "Initial", 0.0, 1200, link=100, tls=1100),
        packet(2, 1, "client", "PING", 0.5, 50, link=50),
        packet(2, 2, "server", "ACK", 5.0, 80, link=80),
        packet(2, 3, "server", "ACK", 6.0, 90, link=90),
    ]
    return tables.frame(rows, analysis.PACKETS, ["connection", "packet"])


def test_the_packets_of_a_usual_run() -> None:
    found = analysis.flow(packets())
    names = ["role", "what", "time_ms", "time_sd_ms", "frame_bytes", "runs", "share"]
    assert found.select(names).rows() == [
        ("client", "Initial", 0.0, 0.0, 1200.0, 3, 1.0),
        ("server", "ACK", 3.0, 2.0, 70.0, 3, 1.0),
        # the second of a run, which two of three have; one of three has a PING
        ("server", "ACK", 4.0, pytest.approx(8**0.5), 85.0, 3, pytest.approx(2 / 3)),
    ]
    assert analysis.flow(packets(), 1)["what"].to_list() == ["Initial"]


def test_overhead_is_the_mean_of_runs_by_end() -> None:
    found = analysis.overhead(packets())
    shown = found.filter(pl.col("bytes") > 0).select("role", "layer", "bytes", "runs")
    assert shown.rows() == [
        ("client", "link", pytest.approx(350 / 3), 3),
        ("client", "tls", 1100.0, 3),
        ("server", "link", 110.0, 3),
        ("server", "content", pytest.approx(50 / 3), 3),
    ]
    assert found.group_by("role").agg(pl.col("percent").sum())["percent"].to_list() == pytest.approx([100, 100])


def durations() -> pl.DataFrame:
    times = {"handshake_ms": 2.0, "first_byte_ms": 4.0, "transfer_ms": 0.0, "close_ms": None}
    rows = []
    for connection, shift in enumerate((0.0, 1.0)):
        for basis, more in (("events", shift), ("capture", 3 * shift)):
            shifted = {name: None if value is None else value + more for name, value in times.items()}
            rows.append(PLACE | {"connection": connection, "basis": basis} | shifted)
    rows.append(PLACE | {"connection": 2, "basis": "events", "handshake_ms": 9.0})
    return tables.frame(rows, analysis.DURATIONS, ["connection", "basis"])


def test_durations_are_compared_within_a_run() -> None:
    found = analysis.differences(durations())
    assert found.select("connection", "phase", "difference_ms").rows() == [
        (connection, phase, difference)
        for connection, difference in ((0, 0.0), (1, -2.0))
        for phase in ("first_byte_ms", "handshake_ms", "transfer_ms")
    ]
    means = analysis.timelines(durations()).select("basis", "phase", "mean_ms", "runs")
    assert means.rows()[:3] == [
        ("capture", "handshake_ms", 3.5, 2),
        ("capture", "first_byte_ms", 5.5, 2),
        ("capture", "transfer_ms", 1.5, 2),
    ]
    assert means.rows()[3] == ("events", "handshake_ms", pytest.approx((2 + 3 + 9) / 3), 3)


# ---- captures of proofs ----------------------------------------------------------------------------------------------


def proof(raw: Path, name: str, frames: list[bytes], keys: str | None, **columns: Any) -> dict[str, Any]:
    """Files of a proof below *raw*; returns its row in the table of runs."""
    directory = raw / "local" / "proofs" / "1" / name
    directory.mkdir(parents=True)
    pcap(directory / "capture.pcap", frames)
    if keys is not None:
        (directory / "keys.log").write_text(keys)
    names = ("client_hello", "handshake_complete", "first_byte", "last_byte", "close")
    times = {f"t_{event}": 1_000_000 * at for at, event in enumerate(names)}
    (directory / "client.jsonl").write_text(json.dumps({"event": "connection", "index": 0} | times) + "\n")
    row = {"origin": f"raw/local/proofs/1/{name}", "arm": "proof", "status": "ok", "source": "raw/local"}
    alike = {"client_library": "quiche", "server_library": "quiche", "header_protection": True}
    series = {"workload": "handshake", "group": "x25519", "signature": "rsa-2048", "aead": "standard"}
    return row | alike | series | columns


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return tables.frame(rows, runs.SCHEMA, ["origin"])


def test_proofs_with_keys_and_of_the_noop_aead_are_read(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    tcp = {"client_library": "tcp-tls", "server_library": "tcp-tls", "header_protection": None}
    found = analysis.own(
        table(
            [
                proof(raw, "a", Quic().frames(), key_log(0x1301)),
                proof(raw, "b", Tls(noop=True).frames(), None, **tcp, workload="bulk", aead="noop"),
                proof(raw, "c", Quic().frames(), None, workload="bulk"),  # encrypted, and no keys are kept
                proof(raw, "d", Quic().frames(), key_log(0x1301), group="mlkem768"),
                proof(raw, "e", Quic().frames(), key_log(0x1301), rtt_ms=20.0),
                proof(raw, "f", Quic().frames(), "broken", client_library="noq", server_library="noq"),
            ]
        ),
        raw,
    )
    assert found.packets.group_by("library", "label").len().sort("library").rows() == [
        ("quiche", "handshake", 6),
        ("tcp-tls", "download", 11),
    ]
    down = found.packets.filter((pl.col("library") == "tcp-tls") & (pl.col("role") == "server"))
    assert (down["http"].sum(), down["content"].sum()) == (len(HEAD), SIZE + 1400)
    assert found.packets.filter(pl.col("library") == "tcp-tls")["http"].sum() == len(GET) + len(HEAD)
    phases = ["handshake_ms", "first_byte_ms", "transfer_ms", "close_ms"]
    of_quic = found.durations.filter(pl.col("library") == "quiche").select("basis", *phases).rows()
    assert of_quic == [("capture", 2.0, 3.0, 1.0, 1.0), ("events", 1.0, 2.0, 1.0, 1.0)]
    over_tcp = found.durations.filter((pl.col("library") == "tcp-tls") & (pl.col("basis") == "capture"))
    assert over_tcp.select(phases).rows() == [(2.0, 3.0, 3.0, 2.0)]
    assert sorted(found.runs["origin"]) == ["raw/local/proofs/1/a", "raw/local/proofs/1/b"]
    (problem,) = found.problems
    assert problem.startswith("raw/local/proofs/1/f: keys.log: line 1 is not a whole line of a key log")


def test_without_a_copy_nothing_is_published(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        found = analysis.published(directory)
        assert found.packets.is_empty()
        assert "published: {quic-benchmark: PATH}" in found._repr_html_()
