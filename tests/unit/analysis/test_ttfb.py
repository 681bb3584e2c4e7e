"""Statistics of handshakes: medians over blocks, phases, prediction, hybrids; the printed tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from clone import ROOT
from quicbed.analysis import published, ttfb
from quicbed.base import statistics
from quicbed.config import algorithms
from quicbed.figures import handshake_tables
from quicbed.store import runs

KNOWN = algorithms.read(ROOT)
GENERATOR = np.random.default_rng(7)


def test_the_median_is_that_of_all_connections() -> None:
    blocks = [np.array([1.0, 2.0, 3.0]), np.array([10.0]), np.array([4.0, 5.0])]
    median, low, high = ttfb.median_interval(blocks)
    assert median == np.median([1, 2, 3, 10, 4, 5])
    assert low <= median <= high


@pytest.mark.parametrize("lengths", [(4, 4, 4), (1, 2, 7, 3), (1, 1), (5, 30, 2, 11, 8)])
def test_the_interval_is_as_wide_as_that_of_the_medians_of_blocks(lengths: tuple[int, ...]) -> None:
    blocks = [GENERATOR.uniform(1, 9, length) for length in lengths]
    medians = [(number, float(np.median(values))) for number, values in enumerate(blocks)]
    expected = statistics.paired_ratio(medians, [(number, 1.0) for number, _ in medians])
    median, low, high = ttfb.median_interval(blocks)
    factors = expected.low / expected.ratio, expected.high / expected.ratio
    assert (low / median, high / median) == pytest.approx(factors)


def test_one_block_has_no_interval() -> None:
    median, low, high = ttfb.median_interval([np.array([1.0, 3.0])])
    assert median == 2
    assert np.isnan([low, high]).all()


def test_the_interval_sees_blocks_and_not_connections() -> None:
    """A shift between blocks makes it wide, however many connections each block has."""
    few = [np.full(10, level) + GENERATOR.normal(0, 0.01, 10) for level in (1.0, 2.0, 3.0, 4.0, 5.0)]
    many = [np.full(1000, level) + GENERATOR.normal(0, 0.01, 1000) for level in (1.0, 2.0, 3.0, 4.0, 5.0)]
    for blocks in (few, many):
        _, low, high = ttfb.median_interval(blocks)
        assert high - low > 1.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    trials = 300
    for _ in range(trials):
        levels = GENERATOR.normal(5, 0.5, 10)
        blocks = [level + GENERATOR.normal(0, 0.2, 20) for level in levels]
        _, low, high = ttfb.median_interval(blocks)
        hits += low <= 5 <= high
    assert 0.88 <= hits / trials <= 0.995


def test_the_interval_does_not_depend_on_the_order_of_connections() -> None:
    blocks = [GENERATOR.normal(5, 1, 20) for _ in range(5)]
    assert ttfb.median_interval(blocks) == ttfb.median_interval([block[::-1] for block in blocks])


def primitives(**times_ms: float) -> pl.DataFrame:
    """Primitives of library ``a``: names as ``kind__name__operation``."""
    rows = []
    for key, ms in times_ms.items():
        kind, name, operation = key.split("__")
        for block, factor in enumerate((0.9, 1.0, 1.4)):
            rows.append(
                {
                    "campaign": "c",
                    "origin": f"raw/{block}",
                    "library": "a",
                    "kind": kind,
                    "name": name.replace("_", "-"),
                    "operation": operation.replace("_", "-"),
                    "block": block,
                    "median_ns": ms * factor * 1e6,
                    "bytes": {"keygen": 32, "encapsulate": 48, "sign": 64, "verify_chain": 500}.get(operation),
                    "implementation": "test",
                }
            )
    return pl.DataFrame(rows)


PRIMITIVES = primitives(
    group__x25519__keygen=1,
    group__x25519__encapsulate=2,
    group__x25519__decapsulate=4,
    signature__ed25519__sign=8,
    signature__ed25519__verify=16,
    signature__ed25519__verify_chain=32,
)


def cell(**changes: Any) -> dict[str, Any]:
    return {
        "cell": "1",
        "client_library": "a",
        "server_library": "a",
        "group": "x25519",
        "signature": "ed25519",
        "rtt_ms": 0.0,
        "ttfb_ms": 100.0,
        "handshake_bytes": 5000.0,
        "waits": 0.0,
    } | changes


def test_phases_are_medians_over_blocks_added_up_by_role() -> None:
    row = ttfb.phases(pl.DataFrame([cell()]), PRIMITIVES).row(0, named=True)
    assert row["keygen_ms"] == pytest.approx(1)
    assert row["server_crypto_ms"] == pytest.approx(2 + 8)
    assert row["client_crypto_ms"] == pytest.approx(4 + 16 + 32)
    assert row["crypto_ms"] == pytest.approx(62)


def test_a_primitive_that_was_not_timed_makes_its_phase_null() -> None:
    row = ttfb.phases(pl.DataFrame([cell(group="p-256")]), PRIMITIVES).row(0, named=True)
    assert row["crypto_ms"] is row["server_crypto_ms"] is row["client_crypto_ms"] is row["keygen_ms"] is None


def test_sizes_are_those_on_the_wire() -> None:
    row = ttfb.sizes(pl.DataFrame([cell()]), PRIMITIVES).row(0, named=True)
    assert (row["client_share_bytes"], row["server_share_bytes"]) == (32, 48)
    assert (row["signature_bytes"], row["certificate_bytes"]) == (64, 500)


def test_a_fit_finds_what_the_times_were_made_of() -> None:
    truth = ttfb.Transport(0.5, 0.02, 0.1, 0, 0)
    crypto = GENERATOR.uniform(0.1, 20, 30)
    kb = GENERATOR.uniform(3, 60, 30)
    waits = GENERATOR.integers(0, 4, 30)
    times = [truth.predict(c, k, w, 0) for c, k, w in zip(crypto, kb, waits, strict=True)]
    found = ttfb.fit(times, list(crypto), list(kb), list(waits))
    assert (found.fixed_ms, found.per_kb_ms, found.per_wait_ms) == pytest.approx((0.5, 0.02, 0.1), rel=1e-6)
    assert found.median_error == pytest.approx(0, abs=1e-9)


def test_a_prediction_with_delay_counts_every_round_trip() -> None:
    transport = ttfb.Transport(1, 0, 0.5, 10, 0)
    assert transport.predict(2, 10, 0, 40) == pytest.approx(2 + 1 + 40)
    assert transport.predict(2, 10, 2, 40) == pytest.approx(2 + 1 + 2 * 0.5 + 3 * 40)


def test_predictions_are_fitted_without_delay_and_null_without_data() -> None:
    rows = [cell(cell=str(i), crypto_ms=float(i), ttfb_ms=i + 2.0, handshake_bytes=1000.0 * i) for i in range(1, 8)]
    rows.append(cell(cell="far", rtt_ms=100.0, crypto_ms=1.0, ttfb_ms=400.0, waits=2.0))
    rows.append(cell(cell="unknown", crypto_ms=1.0, handshake_bytes=None))
    rows.append(cell(cell="other", client_library="b", server_library="b", crypto_ms=1.0))
    cells, fits = ttfb.predict(pl.DataFrame(rows))
    assert {name: found.cells for name, found in fits.items()} == {"a": 7}
    by_cell = {row["cell"]: row for row in cells.to_dicts()}
    assert by_cell["3"]["residual_ms"] == pytest.approx(0, abs=1e-6)
    assert by_cell["far"]["predicted_ms"] == pytest.approx(303, abs=0.1)
    assert by_cell["far"]["residual_ms"] == pytest.approx(97, abs=0.1)
    assert by_cell["unknown"]["predicted_ms"] is None
    assert by_cell["other"]["predicted_ms"] is None


def test_every_published_algorithm_is_one_of_ours() -> None:
    assert set(published.kems()["algorithm"]) <= {group.title for group in KNOWN.groups}
    assert set(published.signatures()["algorithm"]) <= {signature.title for signature in KNOWN.signatures}
    assert (len(published.kems()), len(published.signatures())) == (22, 19)


def test_published_levels_are_those_of_the_table_of_algorithms() -> None:
    levels = {algorithm.title: algorithm.nist_level for algorithm in (*KNOWN.groups, *KNOWN.signatures)}
    for frame in (published.kems(), published.signatures()):
        for algorithm, level in frame.select("algorithm", "nist_level").rows():
            assert levels[algorithm] == level


CAPTURED = dict.fromkeys(ttfb.CAPTURED, 2.0)


def table(factor: str) -> pl.DataFrame:
    """Cells of two libraries for every algorithm; one of them unsupported, one failed."""
    rows = []
    names = [a.name for a in (KNOWN.groups if factor == "group" else KNOWN.signatures) if a.name != "x448"]
    for number, name in enumerate(names):
        for library in ("quiche", "tcp-tls"):
            lost = (number, library) in ((1, "quiche"), (2, "tcp-tls"))
            rows.append(
                cell(**{factor: name})
                | {
                    "cell": f"{number}-{library}",
                    "campaign": "c0ffee00",
                    "testbed": "local",
                    "host": "h0",
                    "cpu_model": "Example CPU",
                    "kernel": "6.1.0",
                    "client_library": library,
                    "server_library": library,
                    "arm": "main",
                    "header_protection": None if library == "tcp-tls" else True,
                    "ttfb_ms": None if lost else 10.0 + number,
                    "ttfb_low": None if lost else 9.5 + number,
                    "ttfb_high": None if lost else 10.5 + number,
                    "unsupported": "no R&D_key" if lost and library == "quiche" else None,
                    "failure": "exited with 1" if lost and library == "tcp-tls" else None,
                    **({} if lost else CAPTURED | {"packets_client": 3.0, "packets_server": 4.0}),
                    "client_share_bytes": 32,
                    "server_share_bytes": 48,
                    "signature_bytes": 64,
                    "certificate_bytes": 500,
                    "implementation": "BoringSSL + liboqs 0.13.0 (AVX2)" if library == "quiche" else "OpenSSL 3.5.5",
                }
            )
    return ttfb.with_published(pl.DataFrame(rows, infer_schema_length=None), factor, KNOWN)


@pytest.mark.parametrize("factor", ["group", "signature"])
def test_printed_tables_have_every_algorithm_and_the_papers_rows_in_its_order(factor: str) -> None:
    shown = handshake_tables.handshake_table(table(factor), factor, {"tcp-tls": "TCP+TLS"})
    paper = published.kems() if factor == "group" else published.signatures()
    names = [row[1] for row in shown.rows]
    assert len(names) == len(set(names)) == (34 if factor == "group" else 26)
    assert [name for name in names if name in set(paper["algorithm"])] == paper["algorithm"].to_list()
    assert all(len(row) == len(shown.headers) == sum(span for _, span in shown.bands) for row in shown.rows)


def test_printed_values_stand_beside_published_ones() -> None:
    shown = handshake_tables.handshake_table(table("group"), "group")
    row = next(row for row in shown.rows if row[1] == "Kyber768")
    assert row[:5] == ["3", "Kyber768", "yes", "4.23", "3.78"]
    assert row[5:7] == ["15.00 ± 0.50", "15.00 ± 0.50"]
    assert row[7:9] == ["4/3", "4/5"]
    assert row[10:] == ["3/4", "32", "48", "own + liboqs 0.13.0 (AVX2); own"]
    # the paper's HQC stands beside both
    older = next(row for row in shown.rows if row[1] == "HQC-128 (AVX2)")
    newer = next(row for row in shown.rows if row[1] == "HQC-128")
    assert older[3:5] == newer[3:5] == ["5.57", "4.21"]
    # quiche is a library of the paper: what differs from its column is explained
    assert row[9].startswith("3/4 ")
    note = next(note for note in shown.notes if note.startswith(f"{row[9].split()[1]}: "))
    assert "Kyber768, 4/5 in the paper: client 2 Retry (2 B), 2 Initial (2 B)" in note


def test_primitives_have_a_row_for_every_implementation() -> None:
    timed = [
        ("ngtcp2", "BoringSSL", 0.2),
        ("quiche", "BoringSSL", 0.4),
        ("quinn", "liboqs 0.13.0 (AVX2)", 14.8149),
    ]
    rows = [
        {
            "library": library,
            "kind": "signature",
            "name": "mldsa44",
            "operation": "sign",
            "ms": ms,
            "implementation": by,
        }
        for library, by, ms in timed
    ]
    shown = handshake_tables.primitive_times(pl.DataFrame(rows), "c0ffee00", "signature", KNOWN, {"quiche": "Quiche"})
    assert shown.rows == [
        ["2", "ML-DSA-44", "BoringSSL", "Quiche, ngtcp2", "300", "-", "-"],
        ["2", "ML-DSA-44", "liboqs 0.13.0 (AVX2)", "quinn", "14815", "-", "-"],
    ]
    assert len(shown.headers) == sum(span for _, span in shown.bands)
    # two libraries call the one, and one the other
    assert [shown.behind[row, 4] for row in range(2)] == [
        "campaign=c0ffee00&arm=primitives",
        "campaign=c0ffee00&arm=primitives&library=quinn",
    ]


def test_cells_tell_what_computes_the_algorithm_of_the_client() -> None:
    cells = pl.DataFrame([cell(), cell(group="p-256")])
    assert ttfb.computed_by(cells, PRIMITIVES, "group")["implementation"].to_list() == ["test", None]


def test_rows_that_agree_with_the_paper_have_no_note() -> None:
    cells = table("group").with_columns(packets_client=pl.lit(3.0), packets_server=pl.lit(3.0))
    shown = handshake_tables.handshake_table(cells, "group")
    row = next(row for row in shown.rows if row[1] == "X25519")
    assert row[9:11] == ["3/3", "3/3"]
    assert not any("X25519," in note for note in shown.notes)


def test_what_is_missing_is_explained_in_a_note() -> None:
    shown = handshake_tables.handshake_table(table("signature"), "signature")
    cells = {value for row in shown.rows for value in row}
    for reason in ("unsupported: no R&D_key", "failed: exited with 1"):
        (letter,) = [note.partition(": ")[0] for note in shown.notes if note.endswith(reason)]
        assert f"- {letter}" in cells


def test_tables_are_written_for_reading_printing_and_computing(tmp_path: Path) -> None:
    cells = table("signature")
    shown = handshake_tables.handshake_table(cells, "signature")
    files = handshake_tables.write(shown, cells, "table3-signature", tmp_path)
    assert {file.suffix for file in files} == {".html", ".tex", ".csv", ".parquet"}
    latex = (tmp_path / "table3-signature.tex").read_text(encoding="utf-8")
    rows = [line for line in latex.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 2 + 26
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(shown.headers) - 1 for line in rows[1:])
    assert "R\\&D\\_key" in latex
    body = (tmp_path / "table3-signature.html").read_text(encoding="utf-8").partition("<table")
    ElementTree.fromstring("<table" + body[2].partition("</table>")[0] + "</table>")  # noqa: S314 (our own)
    assert len(pl.read_csv(tmp_path / "table3-signature.csv")) == len(cells)
    assert pl.read_parquet(tmp_path / "table3-signature.parquet").equals(cells)


def test_what_another_host_has_timed_or_proven_is_not_taken() -> None:
    columns = ["testbed", "host", "campaign", "source", "arm", "origin", "experiment", "status", "cell", "planned"]
    attempt = {"block": 0, "attempt": 0, "contaminated": False}
    rows = []
    for host in ("ours", "other"):
        for arm in ("main", "primitives", "proof"):
            told = ["local", host, "c", "raw/local", arm, f"raw/{host}/{arm}", "e", "ok", arm, True]
            rows.append(dict(zip(columns, told, strict=True)) | attempt)
    table = pl.DataFrame([{name: row.get(name) for name in runs.SCHEMA} for row in rows], schema=runs.SCHEMA)
    campaign = table.filter((pl.col("arm") == "main") & (pl.col("host") == "ours"))
    timed = pl.concat([PRIMITIVES.with_columns(origin=pl.lit(f"raw/{host}/primitives")) for host in ("ours", "other")])
    assert set(ttfb.timed(table, campaign, timed)["origin"]) == {"raw/ours/primitives"}
    # both proofs have one id, as those had whose id was not of the whole host
    seen = pl.DataFrame(
        {"proof": ["p", "p"], "origin": ["raw/ours/proof", "raw/other/proof"], "packets_client": [3, 9]}
    )
    assert ttfb.proven(table, campaign, seen)["packets_client"].to_list() == [3]


def test_primitives_of_contaminated_attempts_do_not_count() -> None:
    run = {
        "testbed": "local",
        "host": "h",
        "experiment": "e",
        "campaign": "c",
        "source": "own",
        "arm": "primitives",
        "cell": "p",
        "client_library": "a",
        "server_library": "a",
        "label": "primitives",
        "planned": True,
        "status": "ok",
        "contaminated": False,
    }
    attempts = [
        run | {"origin": "raw/0", "block": 0, "attempt": 0},
        run | {"origin": "raw/1", "block": 1, "attempt": 0, "contaminated": True},
        run | {"origin": "raw/2", "block": 1, "attempt": 1},
        run | {"origin": "raw/3", "block": 2, "attempt": 0, "campaign": "another"},
    ]
    missing = [name for name in runs.SORT if name not in attempts[0]]
    table = pl.DataFrame(attempts).with_columns(pl.lit("").alias(name) for name in missing)
    campaign = table.filter(pl.col("campaign") == "c")
    foreign = PRIMITIVES.filter(origin="raw/2").with_columns(origin=pl.lit("raw/3"))
    timed = ttfb.timed(table, campaign, PRIMITIVES.vstack(foreign))
    assert set(timed["origin"]) == {"raw/0", "raw/2"}


@pytest.mark.parametrize("extra", [0.0, 0.25])
def test_a_hybrid_exceeds_its_parts_by_what_it_takes_beyond_them(extra: float) -> None:
    """A library with known costs: X25519's own, which the base is measured with, are in no row."""
    times = {"x25519": (0.06, 0.04, 32), "p-256": (0.2, 0.1, 65), "kyber512": (0.02, 0.01, 800)}
    both = zip(times["p-256"], times["kyber512"], strict=True)
    times["p-256-kyber512"] = tuple(a + b for a, b in both)  # type: ignore[assignment]
    times["kyber768"] = (0.03, 0.02, 1184)
    operations = ("keygen", "encapsulate", "decapsulate")
    primitives = pl.DataFrame(
        [
            {"library": "a", "kind": "group", "name": name, "operation": operation, "implementation": "test"}
            | {"median_ns": 1e6 * dict(zip(operations[1:], row, strict=False)).get(operation, 9.0)}
            | {"bytes": None if operation == "decapsulate" else row[2]}
            for name, row in times.items()
            for operation in operations
        ],
        infer_schema_length=None,
    )
    transport = ttfb.Transport(1.0, 0.05, 0.0, 5, 0.0)
    missing = dict.fromkeys(runs.SORT, "")
    runs_of = [
        missing
        | {"testbed": "local", "host_id": "h", "experiment": "e", "campaign": "c", "source": "own", "arm": "main"}
        | {
            "cell": name,
            "block": block,
            "attempt": 0,
            "status": "ok",
            "contaminated": False,
            "origin": f"{name}{block}",
        }
        | {"ttfb_ms": block + transport.predict(encapsulate + decapsulate, 2 * size / 1000, 0, 0)}
        | {"started_at": None}
        for name, (encapsulate, decapsulate, size) in times.items()
        for block in range(5)
    ]
    for run in runs_of:
        run["ttfb_ms"] += extra if run["cell"] == "p-256-kyber512" else 0.0
    cells = pl.DataFrame([cell(cell=name, group=name) | {"arm": "main"} for name in times])
    measured = ttfb.Handshakes(pl.DataFrame(runs_of), cells, primitives, {"a": transport})
    (row,) = ttfb.hybrids(measured, KNOWN).to_dicts()
    assert (row["algorithm"], row["classical"], row["kem"], row["n"]) == ("P-256+Kyber512", "P-256", "Kyber512", 5)
    assert (row["excess_ms"], row["excess_low"], row["excess_high"]) == pytest.approx([extra] * 3, abs=1e-9)
    # without the primitives of X25519 nothing can be said
    lacking = primitives.filter(pl.col("name") != "x25519")
    assert ttfb.hybrids(ttfb.Handshakes(measured.campaign, cells, lacking, {}), KNOWN).is_empty()
