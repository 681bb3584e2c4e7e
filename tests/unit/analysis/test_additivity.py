"""Handshakes predicted from others: a made-up library is predicted exactly, and what is missing is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis import additivity, ttfb
from quicbed.analysis.additivity import LIMIT, PLAIN, SILENT, Measured
from quicbed.config import algorithms
from quicbed.figures import handshake_figures, handshake_tables
from quicbed.store import runs

KNOWN = algorithms.read(ROOT)

GROUPS = {  # encapsulation and decapsulation in ms, shares of client and server in bytes
    "x25519": (0.05, 0.05, 32, 32),
    "p-256": (0.1, 0.1, 65, 65),
    "kyber512": (0.01, 0.02, 800, 768),
    "kyber768": (0.02, 0.03, 1184, 1088),
    "bike-l1": (0.1, 0.5, 1541, 1573),
    "hqc-256": (18.0, 27.0, 7245, 14421),
}
SIGNATURES = {  # signature, verification and that of the chain in ms, bytes of signature and certificate
    "rsa-2048": (0.6, 0.02, 0.02, 256, 787),
    "ed25519": (0.05, 0.1, 0.1, 64, 326),
    "falcon-512": (0.2, 0.05, 0.05, 666, 1806),
    "dilithium2": (0.1, 0.05, 0.05, 2420, 3993),
    "mldsa65": (0.3, 0.1, 0.1, 3309, 5516),
    "sphincs-sha2-128f": (6.0, 0.5, 0.5, 17088, 17361),
}
FIXED, PER_KB, PER_WAIT = 0.3, 0.01, 0.1


def cell(group: str, signature: str, *, speed: float = 1.0, wait: float = PER_WAIT, **changes: Any) -> dict[str, Any]:
    """A handshake of a library whose costs are known; *speed* is that of its processor's cryptography."""
    encapsulate, decapsulate, client_share, server_share = GROUPS[group]
    sign, verify, chain, signature_bytes, certificate = SIGNATURES[signature]
    server_ms, client_ms = (encapsulate + sign) / speed, (decapsulate + verify + chain) / speed
    answer = server_share + signature_bytes + certificate
    datagrams = math.ceil((180 + client_share) / additivity.HELLO_PER_DATAGRAM)
    sent = {"client": 1200.0 * datagrams + 1300 + 0.01 * answer, "server": 800 + 1.05 * answer}
    waits = float(sent["server"] > 3600 * datagrams)
    handshake_bytes = sum(sent.values())
    return {
        "experiment": "e",
        "campaign": "c",
        "testbed": "local",
        "host": "h",
        "scale": "quick",
        "arm": "main",
        "cell": f"{group}-{signature}",
        "client_library": "quiche",
        "server_library": "quiche",
        "group": group,
        "signature": signature,
        "retry": False,
        "initial_size": 1200,
        "rtt_ms": 0.0,
        "ttfb_ms": server_ms + client_ms + FIXED + PER_KB * handshake_bytes / 1000 + wait * waits,
        "ttfb_low": None,
        "ttfb_high": None,
        "crypto_ms": server_ms + client_ms,
        "client_crypto_ms": client_ms,
        "handshake_bytes": handshake_bytes,
        "bytes_client": sent["client"],
        "bytes_server": sent["server"],
        "packets_client": datagrams + 2.0,
        "packets_server": 2 + 0.001 * answer,
        "waits": waits,
        "limit_hits": waits,
        "tls_client_hello_bytes": 180.0 + client_share,
        "client_share_bytes": client_share,
        "server_share_bytes": server_share,
        "signature_bytes": signature_bytes,
        "certificate_bytes": certificate,
    } | changes


def primitives() -> pl.DataFrame:
    rows = []
    for name, (encapsulate, decapsulate, client_share, server_share) in GROUPS.items():
        for operation, ms, size in (
            ("keygen", 1.0, client_share),
            ("encapsulate", encapsulate, server_share),
            ("decapsulate", decapsulate, None),
        ):
            rows.append(("group", name, operation, ms, size))
    for name, (sign, verify, chain, signature_bytes, certificate) in SIGNATURES.items():
        for operation, ms, size in (
            ("sign", sign, signature_bytes),
            ("verify", verify, None),
            ("verify-chain", chain, certificate),
        ):
            rows.append(("signature", name, operation, ms, size))
    return pl.DataFrame(
        [
            {"library": "quiche", "kind": kind, "name": name, "operation": operation, "median_ns": ms * 1e6}
            | {"bytes": size, "implementation": "test"}
            for kind, name, operation, ms, size in rows
        ],
        infer_schema_length=None,
    )


def measured(experiment: str, cells: Sequence[dict[str, Any]], host: str = "h") -> Measured:
    factor = (additivity.FITTED | additivity.FURTHER)[experiment]
    table = pl.DataFrame(
        [row | {"experiment": experiment, "host": host} for row in cells], infer_schema_length=None
    ).with_columns(pl.col("ttfb_low", "ttfb_high").cast(pl.Float64()))
    campaign = pl.DataFrame(
        {"started_at": [datetime(2024, 1, 1, tzinfo=UTC)], "campaign": ["c"], "study": [None], "scale": ["quick"]}
    )
    return Measured(host, f"CPU {host}", experiment, factor, ttfb.Handshakes(campaign, table, primitives(), {}))


BY_SIGNATURE = measured("table3-signature", [cell("x25519", name) for name in SIGNATURES])
BY_GROUP = measured("table2-kem", [cell(name, "rsa-2048") for name in GROUPS])
NONE = pl.DataFrame(schema=additivity.SCHEMA)


def test_a_library_whose_costs_add_up_is_predicted_exactly() -> None:
    table = additivity.out_of_sample([BY_SIGNATURE, BY_GROUP])
    forth = table.filter(pl.col("experiment") == "table2-kem")
    # the pair that both have is no prediction
    assert set(forth["group"]) == set(GROUPS) - {"x25519"}
    assert forth["error"].to_list() == pytest.approx([0] * len(forth), abs=1e-6)
    assert (forth["predicted_bytes"] / forth["handshake_bytes"]).to_list() == pytest.approx([1] * len(forth))
    for side in ("client", "server"):
        assert (forth[f"predicted_packets_{side}"] - forth[f"packets_{side}"]).abs().max() <= 0.5 + 1e-6
    conditions = dict(forth.select("group", "condition").rows())
    assert conditions.pop("hqc-256") == SILENT
    assert set(conditions.values()) == {PLAIN}


def test_what_a_model_was_not_fitted_on_is_missing_in_its_predictions() -> None:
    """No key exchange waits at the limit: what a wait takes is unknown, that there is one follows from sizes."""
    table = additivity.out_of_sample([BY_SIGNATURE, BY_GROUP]).filter(pl.col("experiment") == "table3-signature")
    assert set(table.filter(pl.col("condition") == LIMIT)["signature"]) == {
        "dilithium2",
        "mldsa65",
        "sphincs-sha2-128f",
    }
    missing = (table["ttfb_ms"] - table["predicted_ms"]).to_list()
    assert missing == pytest.approx((PER_WAIT * table["waits"]).to_list(), abs=1e-6)
    assert (table["waits"] > 0).to_list() == (table["condition"] == LIMIT).to_list()


def test_another_processor_is_predicted_with_its_own_primitives() -> None:
    fast = measured("table3-signature", [cell("x25519", name, speed=3) for name in SIGNATURES], "fast")
    table = additivity.out_of_sample([BY_SIGNATURE, fast])
    assert set(table["fitted_on"]) == {"table3-signature on CPU h (h)", "table3-signature on CPU fast (fast)"}
    assert table["error"].to_list() == pytest.approx([0] * len(table), abs=1e-6)
    assert not any("processor" in note for note in additivity.lacking([BY_SIGNATURE, fast], table.clear()))


def test_every_flight_of_the_server_is_a_round_trip() -> None:
    far = [
        cell("x25519", "rsa-2048", rtt_ms=50.0, ttfb_ms=51.0),
        cell("x25519", "mldsa65", rtt_ms=50.0, ttfb_ms=101.0),
        cell("x25519", "mldsa65", rtt_ms=50.0, ttfb_ms=101.0, retry=True),
        cell("x25519", "sphincs-sha2-128f", rtt_ms=50.0, ttfb_ms=201.0),
    ]
    table = additivity.out_of_sample([BY_SIGNATURE, measured("amplification", far)])
    trips = dict(zip(table["signature"], (table["predicted_ms"] / 50).to_list(), strict=True))
    assert {name: math.floor(value) for name, value in trips.items()} == {
        "rsa-2048": 1,
        "mldsa65": 2,  # the limit
        "sphincs-sha2-128f": 3,  # 3600, 15600 and up to 31200 bytes
    }
    # over TCP there is no limit: 12000 bytes, then 24000
    over_tcp = [cell("x25519", name, limit_hits=None) for name in SIGNATURES]
    model = additivity.fit(measured("table3-signature", over_tcp).found.cells)["quiche"]
    assert not model.quic
    assert [model.predict(row).flights for row in over_tcp] == [1, 1, 1, 1, 1, 3]


def test_a_ratio_is_kept_by_95_of_100() -> None:
    ones = [1.0] * 100
    found = [math.exp(0.01 * (-1) ** n * n) for n in range(1, 101)]
    assert additivity.kept_ratio(ones, found) == pytest.approx(math.exp(0.96))
    assert additivity.kept_ratio(ones[:19], found[:19]) == pytest.approx(math.exp(0.19))
    assert additivity.kept_ratio(ones[:18], found[:18]) == math.inf


def test_what_was_measured_by_other_rules_predicts_with_a_word_on_it() -> None:
    other = BY_GROUP.found.campaign.with_columns(study=pl.lit("0123456789ab"))
    found = ttfb.Handshakes(other, BY_GROUP.found.cells, BY_GROUP.found.primitives, {})
    studied = Measured(BY_GROUP.host, BY_GROUP.processor, BY_GROUP.experiment, BY_GROUP.factor, found)
    told = additivity.out_of_sample([BY_SIGNATURE, studied])["fitted_on"].unique()
    assert all(one.endswith(", measured under other rules") for one in told)
    assert not any("rules" in one for one in additivity.out_of_sample([BY_SIGNATURE, BY_GROUP])["fitted_on"])


def many() -> list[Measured]:
    """As the made-up library, with 20 % more or less in every other cell: enough of them for intervals."""
    hybrids = measured("hybrid-cost", [cell(name, "ed25519") for name in GROUPS])
    every = []
    for one in (BY_SIGNATURE, BY_GROUP, hybrids):
        off = pl.when(pl.int_range(pl.len()) % 2 == 0).then(1.2).otherwise(0.8)
        cells = one.found.cells.with_columns(pl.col("ttfb_ms") * off)
        found = ttfb.Handshakes(one.found.campaign, cells, one.found.primitives, {})
        every.append(Measured(one.host, one.processor, one.experiment, one.factor, found))
    return every


def test_a_pair_that_was_not_measured_is_predicted_with_its_interval() -> None:
    truth = cell("bike-l1", "mldsa65")
    exact = additivity.pair([BY_SIGNATURE, BY_GROUP], NONE, "quiche", "bike-l1", "mldsa65", 0)
    assert exact.time.value == pytest.approx(truth["ttfb_ms"])
    assert exact.handshake_bytes.value == pytest.approx(truth["handshake_bytes"])
    assert exact.time.low is exact.time.high is None
    assert "10 cells of quiche were predicted out of sample, 19 are needed" in additivity.text(
        exact, "quiche", "bike-l1", "mldsa65"
    )
    found = additivity.pair(many(), NONE, "quiche", "bike-l1", "mldsa65", 0)
    assert found.tested >= 19
    assert found.time.low is not None
    assert found.time.high is not None
    assert found.time.low < truth["ttfb_ms"] < found.time.high
    told = additivity.text(found, "quiche", "bike-l1", "mldsa65")
    assert "RFC 9000, 8.1" in told
    assert "host h, CPU h" in told


def test_round_trips_widen_the_interval_by_what_they_took_beyond_prediction() -> None:
    near = additivity.pair(many(), NONE, "quiche", "bike-l1", "mldsa65", 0).time
    blind = additivity.pair(many(), NONE, "quiche", "bike-l1", "mldsa65", 10)
    assert (blind.time.value, blind.time.low) == (pytest.approx(near.value + 20), None)
    assert "no handshake of quiche with delay" in additivity.text(blind, "quiche", "bike-l1", "mldsa65")
    late = dict.fromkeys(additivity.SCHEMA) | {"library": "quiche", "host": "h", "rtt_ms": 10.0, "flights": 1}
    rows = [late | {"predicted_ms": 12.0, "ttfb_ms": ms} for ms in (12.5, 13.0)]
    rows.append(rows[0] | {"library": "noq", "ttfb_ms": 24.0})
    far = pl.DataFrame(rows, schema=additivity.SCHEMA, orient="row")
    found = additivity.pair(many(), far, "quiche", "bike-l1", "mldsa65", 10)
    assert near.low is not None
    assert near.high is not None
    assert (found.time.low, found.time.high) == (pytest.approx(near.low + 20), pytest.approx(near.high + 22))
    told = additivity.text(found, "quiche", "bike-l1", "mldsa65")
    assert "round trips 2 x 10 ms" in told
    assert "+0.000 to +1.000 ms a round trip" in told


def test_a_measured_pair_and_a_silent_client_are_named() -> None:
    found = additivity.pair(many(), NONE, "quiche", "hqc-256", "rsa-2048", 0)
    told = additivity.text(found, "quiche", "hqc-256", "rsa-2048")
    assert "this pair is among the data" in told
    assert "the client computes longer than 25 ms" in told


def test_what_cannot_be_predicted_is_one_line() -> None:
    every = [BY_SIGNATURE, BY_GROUP]
    for library, group, signature, said in (
        ("quinn", "x25519", "rsa-2048", "no handshakes of quinn .* they have those of quiche"),
        ("quiche", "p-521", "rsa-2048", "the group `p-521` was not timed with quiche; timed are bike-l1, "),
        ("quiche", "x25519", "rsa-1024", "the signature `rsa-1024` was not timed"),
    ):
        with pytest.raises(additivity.PredictionError, match=said) as told:
            additivity.pair(every, NONE, library, group, signature, 0)
        assert "\n" not in str(told.value)
    few = measured("table2-kem", [cell("x25519", "rsa-2048"), cell("p-256", "rsa-2048")])
    with pytest.raises(additivity.PredictionError, match="has 2 complete handshake cells"):
        additivity.pair([few], NONE, "quiche", "x25519", "rsa-2048", 0)


def test_downloads_with_delay_are_predicted_from_those_without(tmp_path: Path) -> None:
    base = fakeruns.make_run(experiment="delay-loss")
    for number, (rtt, loss, ttfb_ms) in enumerate([(0, 0, 2.0), (10, 0, 12.5), (50, 0, 104.0), (10, 1, 500.0)]):
        run = fakeruns.make_run(
            experiment="delay-loss",
            cell=base["cell"] | {"id": f"{number:08}", "slug": f"c{number}", "label": f"{rtt} ms, {loss} %"},
            order=number,
            variant=base["variant"] | {"signature": "rsa-2048"},
            link={"mode": "wire", "mtu": 1500, "rate_mbit": 200, "rtt_ms": rtt, "loss_percent": loss},
            metrics=base["metrics"] | {"ttfb_ms": ttfb_ms},
        )
        fakeruns.write_run(tmp_path / "raw", run)
    table = additivity.delayed(runs.table(tmp_path / "raw"))
    assert table.select("rtt_ms", "predicted_ms").rows() == [(10, 12), (50, 52)]
    assert table["error"].to_list() == pytest.approx([12 / 12.5 - 1, 52 / 104 - 1])


def test_tables_have_errors_and_what_is_lacking() -> None:
    alone = measured("hybrid-cost", [cell("x25519", "ed25519", client_library="msquic", server_library="msquic")])
    every = [BY_SIGNATURE, BY_GROUP, alone]
    table = additivity.out_of_sample([BY_SIGNATURE, BY_GROUP])
    lacking = additivity.lacking(every, table.clear())
    assert any("another processor" in note for note in lacking)
    assert any(note.endswith("therefore not predicted: msquic.") for note in lacking)
    shown = handshake_tables.additivity_table(table, lacking, KNOWN, {"quiche": "Quiche"})
    assert [row[:5] for row in shown.rows] == [
        ["table3-signature", "table2-kem", "Quiche", "5", "0.0"],
        ["table2-kem", "table3-signature", "Quiche", "5", shown.rows[1][4]],
    ]
    assert all(len(row) == len(shown.headers) == sum(span for _, span in shown.bands) for row in shown.rows)
    worst = table.sort(pl.col("error").abs()).row(-1, named=True)
    assert KNOWN.signature(worst["signature"]).title in shown.rows[1][7]
    assert shown.notes == lacking
    broken = handshake_tables.breaks(table, KNOWN)
    assert [row[:4] for row in broken.rows] == [
        [PLAIN, "quiche", 6, 0],
        [LIMIT, "quiche", 3, 3],
        [SILENT, "quiche", 1, 0],
    ]


def test_the_figure_has_a_panel_for_each_prediction(tmp_path: Path) -> None:
    fakeruns.write_run(tmp_path / "raw", fakeruns.make_run(experiment="table2-kem"))
    campaign = runs.select_campaign(runs.table(tmp_path / "raw"), "table2-kem")
    table = additivity.out_of_sample([BY_SIGNATURE, BY_GROUP])
    drawn = handshake_figures.additive([campaign], table, KNOWN)
    titles = [note.text for note in drawn.figure.layout.annotations]
    assert {"signatures predict key exchanges", "key exchanges predict signatures"} <= set(titles)
    assert sum(len(trace.x) for trace in drawn.figure.data) == len(table)
    low, high = drawn.figure.layout.yaxis.range
    assert low < 100 * table["error"].min() <= 100 * table["error"].max() < high
