"""Sentences on what was found have the numbers of the tables."""

from __future__ import annotations

from typing import Any

import polars as pl
from syrupy.assertion import SnapshotAssertion

import wording
from quicbed.analysis import comparison
from quicbed.analysis.ttfb import Transport
from quicbed.figures import findings

TITLES = {"a": "A", "b": "B", "c": "C"}


def cell(library: str, ratio: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Any:
    return {
        "client_library": library,
        "server_library": library,
        "arm": "main",
        "label": "new",
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
    } | more


def sentences(found: findings.Found | None) -> list[str]:
    assert found is not None
    return list(found.sentences)


def test_a_contrast_names_the_middle_library_and_the_ends(snapshot: SnapshotAssertion) -> None:
    table = pl.DataFrame(
        [
            cell("a", 0.5, 0.4, 0.6),
            cell("b", 0.9, 0.8, 1.1),
            cell("c", 1.2, 1.1, 1.3),
            cell("d", 7.0),  # of one block, without an interval
            cell("a", 9.0, 8.0, 9.5, arm="aa"),
            cell("b", 9.0, 8.0, 9.5, label="other"),
        ],
        infer_schema_length=None,
    )
    (told,) = sentences(findings.contrasts(table, {"new": "Goodput", "absent": "Nothing"}, TITLES))
    assert wording.numbers(told) == [-10, 95, -20, 10, 3, -50, 20, 2, 3, 0]
    assert told == snapshot
    assert "Goodput: &#x27;" not in findings.Found([told])._repr_html_()
    assert findings.contrasts(table, {"absent": "Nothing"}, TITLES) is None


def test_a_contrast_of_a_figure_in_multiples_is_told_in_times() -> None:
    table = pl.DataFrame([cell("a", 0.5, 0.4, 0.6), cell("b", 3.24, 2.91, 3.6), cell("c", 44.51, 40.0, 51.0)])
    (told,) = sentences(findings.contrasts(table, {"new": "Time"}, TITLES, times=True))
    assert told.startswith("Time: 3.24 times with B (95 % interval 2.91 to 3.6)")
    assert wording.numbers(told) == [3.24, 95, 2.91, 3.6, 3, 0.5, 44.5, 3, 3, 1]
    assert "%" not in told.replace("95 %", "")


def test_one_library_is_no_middle_and_the_strongest_label_is_told() -> None:
    table = pl.DataFrame([cell("a", 0.5, 0.4, 0.6), cell("a", 1.1, 1.0, 1.2, label="weak")])
    assert sentences(findings.strongest(table, "TTFB", TITLES)) == [
        "TTFB, new: −50.0 % with A (95 % interval −60.0 to −40.0 %)."
    ]
    assert findings.strongest(table.clear(), "TTFB", TITLES) is None


def test_errors_shares_and_pairs_have_their_ranges(snapshot: SnapshotAssertion) -> None:
    (told,) = sentences(findings.errors(pl.Series([-0.1, 0.0, 0.1, None]), "Residual"))
    assert told == "Residual: 0.0 % in the middle, 95 % of 3 between −9.5 and +9.5 %."
    assert findings.errors(pl.Series([None], dtype=pl.Float64()), "Residual") is None

    share = {"category": "packet-io", "role": "server", "label": "new", "low": 0.1, "high": 0.3}
    both = [
        {"client_library": name, "server_library": name, "library": name, "share": value, **share}
        for name, value in (("a", 0.2), ("b", 0.25))
    ]
    (told,) = sentences(findings.shares(pl.DataFrame(both), "packet-io", "I/O", ["new", "absent"], TITLES))
    assert told.startswith("I/O of servers with new: 20.0 % of the samples with A (95 % interval 10.0 to 30.0 %)")
    assert told.endswith("the middle one of 2; from 20.0 % (A) to 25.0 % (B).")
    (told,) = sentences(findings.shares(pl.DataFrame(both[:1]), "packet-io", "I/O", ["new"], TITLES))
    assert told == "I/O of the server with new: 20.0 % of the samples with A (95 % interval 10.0 to 30.0 %)."

    pairs = [
        cell("a", None, mean=1000.0, mean_low=900.0, mean_high=1100.0, failed=1, runs=4, cell="1"),
        cell("b", None, mean=3000.0, mean_low=2900.0, mean_high=3100.0, failed=0, runs=4, cell="2", server_library="a"),
    ]
    (told,) = sentences(findings.extremes(pl.DataFrame(pairs), TITLES))
    assert wording.numbers(told) == [1, 95, 0.9, 1.1, 3, 95, 2.9, 3.1, 1, 8]
    assert told == snapshot


def test_hybrids_are_told_in_shares_of_their_ttfb() -> None:
    sums = pl.DataFrame(
        {
            "client_library": ["a"],
            "algorithm": ["P-256+Kyber512"],
            "ttfb_ms": [2.0],
            "excess_ms": [0.1],
            "excess_low": [-0.1],
            "excess_high": [0.2],
        }
    )
    (told,) = sentences(findings.hybrids(sums, TITLES))
    assert told.endswith("+5.0 % with P-256+Kyber512 by A (95 % interval −5.0 to +10.0 %).")


def test_what_is_undecided_is_told_with_blocks_and_hours(snapshot: SnapshotAssertion) -> None:
    def row(library: str, label: str, blocks: int | None, hours: float | None) -> dict[str, Any]:
        named = {"client_library": library, "server_library": library, "label": label, "wanted": 0.01}
        return named | {"more_blocks": blocks, "more_hours": hours}

    def told(*rows: dict[str, Any]) -> str:
        complete = [{name: one.get(name) for name in comparison.UNDECIDED} for one in rows]
        found = findings.undecided(
            pl.DataFrame(complete, schema=comparison.UNDECIDED, orient="row"), {"quinn": "Quinn"}
        )
        assert found is not None
        return found.sentences[0]

    # a library goes on until the widest of its ratios is narrow enough
    said = told(row("quiche", "A", 40, 0.5), row("quiche", "B", 400, 5.0), row("quinn", "A", 30, 0.25))
    assert wording.numbers(said) == [3, 1, 30, 15, 400, 5, 5.2]
    alone = told(row("quinn", "A", 30, 0.25))
    assert wording.numbers(alone) == [1, 1, 30, 15, 15]
    assert [said, alone, told(row("quinn", "A", None, None))] == snapshot
    assert findings.undecided(pl.DataFrame(schema=comparison.UNDECIDED), {}) is None
    assert findings.joined(None, None) is None


def test_dropped_datagrams_are_told_although_they_may_be_none(snapshot: SnapshotAssertion) -> None:
    table = pl.DataFrame(
        {
            "library": ["a", "a", "b", "b", "c"],
            "label": ["1x", "32x", "1x", "32x", "1x"],
            "mean": [3.0, 0.0, 0.5, 0.5, 9.0],
        }
    )
    (told,) = sentences(findings.drops(table, ("1x", "32x"), TITLES))
    assert wording.numbers(told) == [1, 2, 3, 0]
    assert told == snapshot
    assert findings.drops(table.filter(pl.col("library") == "c"), ("1x", "32x"), TITLES) is None


def test_the_share_of_cryptography_is_that_of_one_library_with_itself(snapshot: SnapshotAssertion) -> None:
    rows = [("X25519", "a", "a", 4.0, 1.0), ("HQC", "a", "a", 4.0, 3.0), ("Kyber", "a", "a", 4.0, 2.0)]
    rows += [("other", "a", "b", 4.0, 4.0), ("untimed", "a", "a", 4.0, None)]
    columns = ["label", "client_library", "server_library", "ttfb_ms", "crypto_ms"]
    cells = pl.DataFrame(rows, schema=columns, orient="row").with_columns(arm=pl.lit("main"))
    (told,) = sentences(findings.parts(cells, "a", TITLES))
    assert wording.numbers(told) == [50, 3, 25, 75]
    assert told == snapshot
    assert findings.parts(cells, "b", TITLES) is None


def test_what_bytes_take_is_that_of_the_fits() -> None:
    fits = {name: Transport(1.0, per_kb, 0.0, 9, 0.01) for name, per_kb in (("a", 0.03), ("b", 0.01), ("c", 0.02))}
    (told,) = sentences(findings.per_bytes(fits, TITLES))
    assert "0.020 ms with C, as fitted, the middle one of 3; from 0.010 ms (B) to 0.030 ms (A)." in told
    assert sentences(findings.per_bytes({"a": fits["a"]}, TITLES)) == [
        "A further 1000 bytes of handshake take 0.030 ms with A, as fitted."
    ]
    assert findings.per_bytes({}, TITLES) is None
