"""Claims: reading them, their predicates, verdicts on made-up tables, multiple testing, how they are shown."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

import fakeruns
import wording
from clone import ROOT
from quicbed.analysis import cpu_shares, paired_runs, published
from quicbed.claims import causes, claims_report, judged, papers, verdicts
from quicbed.claims.papers import Claim, Paper, Stated
from quicbed.claims.verdict import Verdicts, record_of
from quicbed.claims.verdicts import Result, Tables
from quicbed.cli import commands as cli
from quicbed.config.model import ConfigError, Project, parse_model
from quicbed.plan.estimate import duration
from quicbed.store import details, runs
from quicbed.store.stacks import folded_name, write_folded

PROJECT = Project(ROOT).without_folders()
STATED = papers.stated(PROJECT)

# ---- made-up tables --------------------------------------------------------------------------------------------------

Values = Mapping[tuple[str, str], Sequence[float]]
"""By library (or client>server) and label: a value for each block."""


def make_rows(values: Values, metric: str = "goodput_mbps", **changes: Any) -> list[dict[str, Any]]:
    """Runs of one campaign."""
    rows = []
    for number, ((library, label), series) in enumerate(values.items()):
        client, _, server = library.partition(">")
        for block, value in enumerate(series):
            row: dict[str, Any] = {
                "testbed": "local",
                "testbed_kind": "local",
                "host": "h",
                "experiment": "aead-goodput",
                "campaign": "c",
                "scale": "quick",
                "block": block,
                "order": number,
                "attempt": 0,
                "cell": f"{library}/{label}",
                "arm": "main",
                "label": label,
                "client_library": client,
                "server_library": server or client,
                "workload": "handshake" if metric == "ttfb_ms" else "bulk",
                "status": "ok",
                "contaminated": False,
                "group": "x25519",
                "signature": "rsa-2048",
                "proof": f"proof of {library}/{label}",
                "source": "raw/local",
                "origin": f"raw/local/{library}/{label}/{block}",
                "started_at": fakeruns.START + timedelta(seconds=block),
                metric: value,
            }
            rows.append(row | changes)
    return rows


def frame(*groups: list[dict[str, Any]]) -> pl.DataFrame:
    """The table of runs."""
    complete = [{name: row.get(name) for name in runs.SCHEMA} for rows in groups for row in rows]
    return pl.DataFrame(complete, schema=runs.SCHEMA, orient="row")


def tables(*groups: list[dict[str, Any]], **beside: pl.DataFrame) -> Tables:
    """Tables with these runs, the proofs of captured handshakes, and nothing beside them but what is given."""
    handshakes = beside.get("handshakes", pl.DataFrame(schema=details.HANDSHAKES))
    origins = handshakes["origin"].unique().sort()
    proofs = [{"host": "h", "experiment": "proofs", "arm": "proof", "origin": origin} for origin in origins]
    return Tables(frame(*groups, proofs), **beside)


def around(mean: float, spread: float = 0.01, n: int = 10, seed: int = 1) -> list[float]:
    """Values of *n* blocks whose geometric mean is exactly *mean*."""
    draw = random.Random(f"{seed}/{mean}")
    logs = [draw.gauss(0, spread) for _ in range(n)]
    middle = math.fsum(logs) / n
    return [mean * math.exp(value - middle) for value in logs]


PAPER = {
    "title": "A paper",
    "citation": "A. Author",
    "population": "two hosts",
    "libraries": {"quiche": "quiche", "quinn": "Quinn", "tcp-tls": "TCP+TLS", "lsquic": "LSQUIC"},
    "awaited": {"satellite": "delay"},
}
RATIO = {"of": [{"label": "NOOP"}], "over": [{"label": "AES-128-GCM"}]}
VALUE = {"of": [{"label": "NOOP"}]}


def make_claim(**changes: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "source": "Fig. 1",
        "statement": "NOOP is faster.",
        "libraries": ["quiche"],
        "reads": {"experiment": "aead-goodput", "metric": "goodput_mbps"},
        "compare": [RATIO],
        "predicate": {"kind": "at-least", "value": 1.1},
        "figure": "goodput-by-aead",
    } | changes


def evaluate(found: Tables, *given: dict[str, Any], **paper: Any) -> list[Result]:
    """Verdicts on claims of one paper."""
    about = parse_model(Paper, PAPER | paper | {"claims": list(given)}, "paper.yaml")
    return verdicts.evaluate(PROJECT, [Stated("paper", about, claim) for claim in about.claims], found)


def evaluate_one(found: Tables, paper: dict[str, Any] | None = None, **changes: Any) -> Result:
    (result,) = evaluate(found, make_claim(**changes), **(paper or {}))
    return result


def goodputs(
    noop: float, spread: float = 0.01, n: int = 10, library: str = "quiche"
) -> dict[tuple[str, str], list[float]]:
    """AES-128-GCM and NOOP, whose ratio is exactly *noop*."""
    return {
        (library, "AES-128-GCM"): around(2000, spread, n, seed=2),
        (library, "NOOP"): around(2000 * noop, spread, n, seed=3),
    }


# ---- processor time --------------------------------------------------------------------------------------------------


def with_time(noop: float, by_time: float, n: int = 10, **changes: Any) -> Tables:
    """Runs whose NOOP gains *noop* in goodput, and *by_time* in GiB per second of processor time."""
    rows = make_rows(goodputs(noop, n=n), **changes)
    times = make_rows(goodputs(by_time, n=n), "gib_per_cpu_s")
    for row, other in zip(rows, times, strict=True):
        row["gib_per_cpu_s"] = other["gib_per_cpu_s"]
    return tables(rows)


@pytest.mark.parametrize(
    ("noop", "by_time", "verdict", "beside", "differs"),
    [
        (1.2, 1.2, "holds", "holds", ""),
        (1.0, 1.0, "fails", "fails", ""),
        (1.2, 1.0, "holds", "fails", "the two disagree: by goodput it holds, by processor time it fails"),
        (1.0, 1.2, "fails", "holds", "the two disagree: by goodput it fails, by processor time it holds"),
        (1.2, 1.1001, "holds", "inconclusive", "processor time does not decide it"),
        (
            1.1001,
            1.2,
            "inconclusive",
            "holds",
            "processor time decides it, goodput does not: by processor time it holds",
        ),
    ],
)
def test_processor_time_is_judged_beside_goodput_and_decides_nothing(
    noop: float, by_time: float, verdict: str, beside: str, differs: str
) -> None:
    result = evaluate_one(with_time(noop, by_time), cost=True)
    assert result.twin is not None
    assert (result.verdict, result.twin.verdict, result.differs) == (verdict, beside, differs)
    assert result.outcomes[0].value == pytest.approx(noop)
    assert result.twin.outcomes[0].value == pytest.approx(by_time)
    alone = evaluate_one(with_time(noop, by_time))
    assert alone.twin is None
    assert (alone.verdict, alone.adjusted, alone.outcomes) == (result.verdict, result.adjusted, result.outcomes)
    said = claims_report.text([result], cells=True, tested={"paper": 1})
    assert f"GiB per second of processor time: {beside}: " in said.replace("\n" + " " * 18, " ")


# ---- pairs -----------------------------------------------------------------------------------------------------------


def of_pairs(noop: float, n: int = 10, **changes: Any) -> list[dict[str, Any]]:
    """Pairs of NOOP and AES-128-GCM, and of AES-128-GCM with itself, in which the busier end does *noop* times more."""
    place = {"experiment": "aead-pairs", "campaign": "p"}
    rows = []
    for label, arm, ratio in (("NOOP", "main", noop), ("AES-128-GCM", "aa", 1.0)):
        own, other = f"{label} {arm}", f"beside {label} {arm}"
        series = {("quiche", label): around(2 * ratio, 0.005, n)}
        rows += make_rows(series, paired_runs.BUSY, **place, cell=own, arm=arm, baseline=other)
        beside = make_rows({("quiche", "AES-128-GCM"): around(2, 0.005, n, seed=7)}, paired_runs.BUSY, **place)
        rows += [row | {"cell": other, "arm": "beside"} for row in beside]
    for row in rows:
        row |= {"pair": f"p/{row['block']}", "gib_per_cpu_s": row[paired_runs.BUSY] / 2, "contaminated": True} | changes
    return rows


PAIRED = {"cost": True, "pairs": "aead-pairs"}


def test_a_claim_is_decided_through_pairs_where_the_measured_goodput_agrees() -> None:
    alone = make_rows(goodputs(1.13, spread=0.1))
    result = evaluate_one(tables(alone), **PAIRED)
    assert (result.verdict, result.outcomes[0].through) == ("inconclusive", None)
    result = evaluate_one(tables(alone, of_pairs(1.15)), **PAIRED)
    (outcome,) = result.outcomes
    assert result.verdict == "holds"
    assert (outcome.through, outcome.n, outcome.contaminated) == ("aead-pairs", 10, 10)
    assert outcome.value == pytest.approx(1.15)
    assert outcome.low < 1.15 < outcome.high
    assert outcome.floor is not None
    assert outcome.floor[0] < 1 < outcome.floor[1]
    assert outcome.cells == ("NOOP main",)
    assert "through concurrent pairs (aead-pairs): quiche (separate runs 1.130 [" in result.conditions
    assert result.conditions in claims_report.text([result], cells=True, tested={"paper": 1}).replace(
        "\n" + " " * 18, " "
    )
    assert record_of([result]).verdicts[0].outcomes[0].pairs == "aead-pairs"
    unpaired = evaluate_one(tables(alone, of_pairs(1.15)), cost=True)
    assert unpaired.outcomes[0].through is None


@pytest.mark.parametrize(
    ("compare", "text", "value"),
    [
        (VALUE, "NOOP, to the run beside it", 1.15),
        ({"of": [{"label": "NOENC"}], "over": [{"label": "NOOP"}]}, "NOENC / NOOP, to the run beside it", 1.05 / 1.15),
    ],
)
def test_a_cell_of_an_experiment_of_pairs_counts_as_its_ratio_to_the_run_beside_it(
    compare: dict[str, Any], text: str, value: float
) -> None:
    noenc = [row | {"label": row["label"].replace("NOOP", "NOENC")} for row in of_pairs(1.05)]
    noenc = [row | {key: f"{row[key]} 2" for key in ("cell", "baseline") if row.get(key)} for row in noenc]
    found = tables(of_pairs(1.15), [row for row in noenc if row["arm"] != "aa"])
    reads = {"experiment": "aead-pairs", "metric": "gib_per_cpu_s"}
    result = evaluate_one(found, reads=reads, compare=[compare], predicate={"kind": "at-least", "value": value / 1.1})
    (outcome,) = result.outcomes
    assert (result.verdict, result.basis, outcome.text) == ("holds", "ratio", text)
    assert outcome.value == pytest.approx(value)
    assert outcome.low < value < outcome.high


def test_a_claim_is_decided_by_the_measured_goodput_where_pairs_contradict_it() -> None:
    result = evaluate_one(tables(make_rows(goodputs(1.2)), of_pairs(1.02)), **PAIRED)
    assert (result.verdict, result.outcomes[0].through) == ("holds", None)
    assert result.outcomes[0].value == pytest.approx(1.2)
    assert "not through pairs: quiche (separate runs 1.200 [" in result.conditions
    assert "by pairs 1.020 [" in result.conditions


def test_processor_time_is_that_of_pairs_whatever_the_goodput_is() -> None:
    rows = make_rows(goodputs(1.2))
    for row in rows:
        row["gib_per_cpu_s"] = row["goodput_mbps"]
    result = evaluate_one(tables(rows, of_pairs(1.02)), **PAIRED)
    assert result.twin is not None
    assert result.twin.outcomes[0].through == "aead-pairs"
    assert result.twin.outcomes[0].value == pytest.approx(1.02)
    assert result.twin.verdict == "fails"


def test_pairs_that_do_not_tell_are_left_alone() -> None:
    alone = make_rows(goodputs(1.2))
    for pairs in (
        of_pairs(1.2, n=1),
        of_pairs(1.2, client_library="quinn", server_library="quinn"),
        [row | {"label": "NOENC"} if row["label"] == "NOOP" else row for row in of_pairs(1.2)],
        [row | {"status": "failed", paired_runs.BUSY: None} for row in of_pairs(1.2)],
    ):
        result = evaluate_one(tables(alone, pairs), **PAIRED)
        assert (result.outcomes[0].through, result.verdict) == (None, "holds")


@pytest.mark.parametrize(
    "changes",
    [
        {"pairs": "aead-pairs"},
        {"pairs": "aead-pairs", "cost": True, "compare": [RATIO | {"against": RATIO}]},
    ],
)
def test_pairs_go_with_ratios_of_cost(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="pairs: goes with `cost` and ratios of one cell to another"):
        evaluate(tables([]), make_claim(**changes))


# ---- results of a paper ----------------------------------------------------------------------------------------------


def standing(*results: Result) -> list[claims_report.Standing]:
    return claims_report.standing(results, claims_report.Commands(PROJECT))


def test_a_result_is_told_with_its_values_and_what_decides_it() -> None:
    decided, near = (evaluate_one(tables(make_rows(goodputs(ratio, 0.01)))) for ratio in (1.2, 1.103))
    clear, open_ = standing(decided, near)
    assert (clear.verdict, clear.open) == ("holds", "")
    assert (clear.bounds, clear.blocks, clear.campaign, clear.experiment) == ("at least 1.1", "10", "c", "aead-goodput")
    low, high = (claims_report.digits(end) for end in (decided.outcomes[0].low, decided.outcomes[0].high))
    assert clear.measured == f"1.2 [{low}, {high}]"
    assert "cell=" in clear.behind
    assert open_.verdict == "inconclusive"
    assert near.more_blocks is not None
    assert open_.open == f"about {near.more_blocks} more blocks"
    near.block_s = 90.0
    assert standing(near)[0].open == f"about {near.more_blocks} more blocks, {duration(1.5 * near.more_blocks)}"
    single = evaluate_one(tables(make_rows(goodputs(1.2, n=1))))
    assert standing(single)[0].open == single.reason


def test_verdicts_are_printed_like_this(snapshot: SnapshotAssertion) -> None:
    claims = (
        make_claim(cost=True),
        make_claim(id="near", predicate={"kind": "at-least", "value": 1.199}),
        make_claim(id="absent", libraries=["lsquic"]),
        make_claim(id="elsewhere", needs="hosts"),
    )
    results = evaluate(with_time(1.2, 1.0), *claims)
    assert [one.verdict for one in results] == ["holds", "inconclusive", "not measured", "not applicable"]
    assert claims_report.text(results, cells=True, tested={"paper": 2}) == snapshot


def test_few_comparisons_of_a_result_are_named_and_many_are_summed_up() -> None:
    found = tables(make_rows(goodputs(1.2) | goodputs(1.3, library="quinn", n=8)))
    both = evaluate_one(found, libraries=["quiche", "quinn"])
    (told,) = standing(both)
    assert [part.partition(" [")[0] for part in told.measured.split("; ")] == [
        "quiche: NOOP / AES-128-GCM: 1.2",
        "Quinn: NOOP / AES-128-GCM: 1.3",
    ]
    assert told.blocks == "8 to 10"
    many = evaluate_one(found, libraries=["quiche", "quinn"], compare=[RATIO] * 3)
    (told,) = standing(many)
    # the one that is closest to the bounds, or furthest beyond them
    assert re.fullmatch(r"quiche: 1\.2 \[1\.1\d*, 1\.2\d*\]; 6 of 6 within the bounds", told.measured)


def test_what_was_not_measured_has_its_cost_and_what_cannot_be_the_reason() -> None:
    results = evaluate(tables(), make_claim(), make_claim(id="two", needs="a radio"), make_claim(id="three"))
    results[2].stated = Stated("paper", results[2].stated.paper, results[2].stated.claim, "a-table")
    missing, needed = standing(*results)  # numbers of tables are no results of their own
    scale = PROJECT.config.scale
    blocks = PROJECT.experiments["aead-goodput"].scales[scale].blocks
    command = claims_report.Commands(PROJECT).of(results[0].stated.claim)
    assert command is not None
    assert missing.open == f"{blocks} blocks at scale {scale}: {command.cost.text()}"
    assert (missing.measured, missing.blocks, missing.campaign, missing.behind) == ("", "", None, "")
    assert (needed.verdict, needed.open) == ("not applicable", "needs a radio")


def test_p_values_of_processor_time_are_a_family_of_their_own() -> None:
    found = with_time(1.102, 1.2)
    claims = [make_claim(id=f"c{number}", cost=bool(number)) for number in range(4)]
    results = evaluate(found, *claims)
    twins = [result.twin for result in results if result.twin is not None]
    assert len(twins) == 3
    assert [twin.adjusted for twin in twins] == pytest.approx(verdicts.adjusted([twin.p or 0.0 for twin in twins]))
    goodput = [result.p or 0.0 for result in results]
    assert [result.adjusted for result in results] == pytest.approx(verdicts.adjusted(goodput))


def test_the_floor_of_processor_time_is_that_of_its_own_arm() -> None:
    rows = make_rows(goodputs(1.2)) + make_rows({("quiche", "A/A"): around(2040)}, arm="aa")
    times = make_rows(goodputs(1.2), "gib_per_cpu_s") + make_rows({("quiche", "A/A"): around(2000)}, "gib_per_cpu_s")
    for row, other in zip(rows, times, strict=True):
        row["gib_per_cpu_s"] = other["gib_per_cpu_s"]
        row["baseline"] = None if row["label"] == "AES-128-GCM" else "quiche/AES-128-GCM"
    result = evaluate_one(tables(rows), cost=True)
    assert result.floor is not None
    assert result.twin is not None
    assert result.twin.floor is not None
    assert result.floor[0] < 1.02 < result.floor[1]
    assert result.twin.floor[0] < 1.0 < result.twin.floor[1] < 1.02
    assert result.twin.floor[0] < result.floor[0]


def test_runs_without_processor_time_say_so_beside_the_verdict() -> None:
    result = evaluate_one(tables(make_rows(goodputs(1.2))), cost=True)
    assert result.verdict == "holds"
    assert result.twin is not None
    assert result.twin.verdict == "not measured"
    assert result.differs == ""
    published = Tables(
        *(getattr(with_time(1.2, 1.2), name) for name in ("runs", "handshakes", "primitives", "shares")), True
    )
    assert evaluate_one(published, cost=True).twin is None


def test_processor_time_has_columns_of_its_own(tmp_path: Path) -> None:
    results = evaluate(with_time(1.2, 1.0), make_claim(cost=True), make_claim(id="two"))
    kept, parquet, _ = claims_report.write_table(results, tmp_path)
    with_twin, without = pl.read_parquet(parquet).to_dicts()
    assert (with_twin["verdict"], with_twin["cpu_verdict"]) == ("holds", "fails")
    assert (with_twin["value"], with_twin["cpu_value"]) == (pytest.approx(1.2), pytest.approx(1.0))
    assert with_twin["cpu_low"] < with_twin["cpu_value"] < with_twin["cpu_high"]
    assert {value for name, value in without.items() if name.startswith("cpu_")} == {None}
    assert claims_report.frame(Verdicts.read(kept)).equals(pl.read_parquet(parquet))


@pytest.mark.parametrize(
    "changes",
    [
        {"reads": {"experiment": "table2-kem", "metric": "ttfb_ms"}},
        {"compare": [VALUE], "predicate": {"kind": "equal", "value": 1}},
        {"compare": [{"of": [{"label": "NOOP", "library": "tcp-tls"}], "over": [{"label": "NOOP"}]}]},
        {"compare": [{"spread": {"label": "NOOP"}}]},
    ],
)
def test_cost_is_told_by_goodput_of_one_library(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cost: goes with ratios and orders of `goodput_mbps` of one library"):
        Claim.model_validate(make_claim(cost=True, **changes))


# ---- predicates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "holds", "fails"),
    [
        ({"kind": "between", "low": 1.1, "high": 1.2}, [1.15], [1.0, 1.3]),
        ({"kind": "between", "low": 1.1, "high": 1.2, "slack": 0.1}, [1.05, 1.25], [0.95, 1.35]),
        ({"kind": "equal", "value": 1.1, "tolerance": 0.1}, [1.05, 1.17], [0.95, 1.3]),
        ({"kind": "at-most", "value": 1.1}, [0.5, 1.05], [1.15]),
        ({"kind": "at-least", "value": 1.1}, [1.15, 9.0], [1.05]),
        ({"kind": "magnitude", "value": 10}, [4.0, 25.0], [2.5, 40.0]),
    ],
)
def test_a_ratio_is_held_against_the_bounds(predicate: dict[str, Any], holds: list[float], fails: list[float]) -> None:
    for ratios, verdict in ((holds, "holds"), (fails, "fails")):
        for ratio in ratios:
            result = evaluate_one(tables(make_rows(goodputs(ratio))), predicate=predicate)
            assert (result.verdict, result.reason) == (verdict, "")
            (outcome,) = result.outcomes
            assert outcome.value == pytest.approx(ratio)
            assert outcome.low < ratio < outcome.high
            assert outcome.n == 10


def test_the_interval_is_the_one_of_the_figures() -> None:
    from quicbed.base import statistics

    values = goodputs(1.2, 0.05)
    result = evaluate_one(tables(make_rows(values)))
    series = {label: list(enumerate(one)) for (_, label), one in values.items()}
    interval = statistics.paired_ratio(series["NOOP"], series["AES-128-GCM"])
    (outcome,) = result.outcomes
    assert (outcome.value, outcome.low, outcome.high) == pytest.approx((interval.ratio, interval.low, interval.high))


@pytest.mark.parametrize(("middle", "verdict"), [(1900, "holds"), (1500, "fails")])
def test_an_order_is_one_of_neighbours(middle: float, verdict: str) -> None:
    labels = ["ChaCha20-Poly1305", "AES-128-GCM", "NOOP"]
    values = dict(zip([("quiche", one) for one in labels], map(around, (1600, middle, 2100)), strict=True))
    order = [{"rising": [{"label": label} for label in labels]}]
    result = evaluate_one(tables(make_rows(values)), compare=order, predicate={"kind": "order"})
    assert result.verdict == verdict
    assert result.basis == "order"
    assert [one.text for one in result.outcomes] == ["AES-128-GCM / ChaCha20-Poly1305", "NOOP / AES-128-GCM"]


def test_sums_and_ratios_of_ratios_are_formed_within_blocks() -> None:
    drift = [1.0, 3.0, 0.2, 7.0, 1.5]
    values = {
        ("quiche", "AES-128-GCM"): [100 * one for one in drift],
        ("quiche", "AES-256-GCM"): [50 * one for one in drift],
        ("quiche", "NOOP"): [120 * one for one in drift],
    }
    total = {"of": [{"label": "NOOP"}], "over": [{"label": "AES-128-GCM"}, {"label": "AES-256-GCM"}]}
    both = RATIO | {"against": {"of": [{"label": "AES-256-GCM"}], "over": [{"label": "AES-128-GCM"}]}}
    result = evaluate_one(tables(make_rows(values)), compare=[total, both])
    assert [one.value for one in result.outcomes] == pytest.approx([0.8, 1.2 / 0.5])
    assert [one.high - one.low for one in result.outcomes] == pytest.approx([0, 0], abs=1e-9)


def test_a_spread_is_that_of_the_pairs_within_a_block() -> None:
    values = {
        ("quiche", "208 KiB"): [1000.0, 1100.0, 990.0],
        ("quiche>quinn", "208 KiB"): [100.0, 110.0, 99.0],
        ("quinn", "208 KiB"): [500.0, 550.0, 495.0],
        ("aioquic", "208 KiB"): [1.0, 1.0, 1.0],
    }
    result = evaluate_one(
        tables(make_rows(values, experiment="pairwise")),
        libraries=["quiche", "quinn", "lsquic"],
        reads={"experiment": "pairwise", "metric": "goodput_mbps"},
        compare=[{"spread": {"label": "208 KiB"}}],
        predicate={"kind": "magnitude", "value": 12},
    )
    (outcome,) = result.outcomes
    assert outcome.value == pytest.approx(10)
    assert outcome.text == "largest / smallest, 208 KiB: quiche / Quinn to quiche, 3 of 9 pairs"


PAIRS = {
    ("quiche", "208 KiB"): [1000.0, 1100.0, 990.0],
    ("quiche>quinn", "208 KiB"): [100.0, 110.0, 99.0],
    ("quinn>quiche", "208 KiB"): [400.0, 440.0, 396.0],
    ("quinn", "208 KiB"): [500.0, 550.0, 495.0],
}


def over_pairs(rows: list[dict[str, Any]], what: str, wanted: float) -> Result:
    return evaluate_one(
        tables(rows),
        libraries=["quiche", "quinn"],
        reads={"experiment": "pairwise", "metric": "goodput_mbps"},
        compare=[{what: {"label": "208 KiB"}}],
        predicate={"kind": "equal", "value": wanted, "tolerance": 0.5},
    )


@pytest.mark.parametrize(
    ("what", "wanted", "verdict"),
    [
        ("spread", 10, "holds"),
        ("spread", 100, "fails"),
        ("largest", 1000, "holds"),
        ("largest", 2000, "fails"),
        ("smallest", 100, "holds"),
        ("smallest", 10, "fails"),
    ],
)
def test_the_fastest_and_the_slowest_of_all_pairs_are_judged(what: str, wanted: float, verdict: str) -> None:
    result = over_pairs(make_rows(PAIRS, experiment="pairwise"), what, wanted)
    assert (result.verdict, result.reason) == (verdict, "")
    (outcome,) = result.outcomes
    assert outcome.text.endswith(", 4 of 4 pairs")
    assert outcome.value == pytest.approx({"spread": 10, "largest": 1030, "smallest": 103}[what])
    assert result.basis == ("ratio" if what == "spread" else "value")


@pytest.mark.parametrize(
    ("what", "wanted", "verdict"),
    [
        # more pairs can only make the largest larger
        ("spread", 1, "fails"),
        ("spread", 10, "inconclusive"),
        ("spread", 120, "inconclusive"),
        ("largest", 100, "fails"),
        ("largest", 1000, "inconclusive"),
        ("largest", 9000, "inconclusive"),
        # and the smallest smaller
        ("smallest", 10, "inconclusive"),
        ("smallest", 100, "inconclusive"),
        ("smallest", 1000, "fails"),
    ],
)
def test_some_of_the_pairs_tell_only_what_more_of_them_cannot_change(what: str, wanted: float, verdict: str) -> None:
    some = {pair: PAIRS[pair] for pair in (("quiche", "208 KiB"), ("quiche>quinn", "208 KiB"))}
    result = over_pairs(make_rows(some, experiment="pairwise"), what, wanted)
    assert result.verdict == verdict
    bound = "most" if what == "smallest" else "least"
    told = f"over 2 of 4 pairs is the {bound} that it can be over all"
    assert (told in result.reason) is (verdict == "inconclusive")


def test_a_pair_that_does_not_get_on_is_none_that_is_missing() -> None:
    rows = make_rows(PAIRS, experiment="pairwise")
    for row in rows:
        if row["cell"].startswith("quinn>quiche/"):
            row |= {"status": "failed", "reason": "timed out", "goodput_mbps": None}
    result = over_pairs(rows, "smallest", 100)
    assert result.verdict == "holds"
    assert result.outcomes[0].text == "smallest, 208 KiB: Quinn to quiche, 3 of 4 pairs, 1 failed"


def test_pairs_that_never_ran_in_the_same_block_have_no_spread() -> None:
    rows = make_rows(
        {("quiche", "208 KiB"): [1000.0, 1100.0], ("quinn", "208 KiB"): [100.0, 110.0]}, experiment="pairwise"
    )
    for row in rows:
        row["block"] += 10 if row["client_library"] == "quinn" else 0
    result = evaluate_one(
        tables(rows),
        libraries=["quiche", "quinn"],
        reads={"experiment": "pairwise", "metric": "goodput_mbps"},
        compare=[{"spread": {"label": "208 KiB"}}],
        predicate={"kind": "magnitude", "value": 12},
    )
    assert (result.verdict, result.reason) == ("not measured", "no block has all compared cells")


def signatures(**ends: str) -> list[dict[str, Any]]:
    """Runs of table3-signature; an algorithm ends as `ok` or with the reason of its failure."""
    rows: list[dict[str, Any]] = []
    for label, end in ends.items():
        own = make_rows({("quiche", label): [2.0, 2.1]}, "ttfb_ms", experiment="table3-signature")
        rows += own if end == "ok" else [row | {"status": "failed", "reason": end, "ttfb_ms": None} for row in own]
    return rows


@pytest.mark.parametrize(
    ("large", "small", "verdict"),
    [("timed out", "ok", "holds"), ("ok", "ok", "fails"), ("timed out", "refused", "fails")],
)
def test_failures_are_expected_above_a_size_and_nowhere_else(large: str, small: str, verdict: str) -> None:
    ends = {"SPHINCS+-SHA2-192f": large, "Dilithium5": small}
    result = evaluate_one(
        tables(signatures(**ends)),
        reads={"experiment": "table3-signature", "metric": "ttfb_ms"},
        compare=[{"of": [{"label": label} for label in ends]}],
        predicate={"kind": "fails-above", "value": 30000},
    )
    assert (result.verdict, result.basis, result.p) == (verdict, "failures", None)
    assert f"SPHINCS+-SHA2-192f (35956 B): {'succeeds' if large == 'ok' else 'fails'}" in result.outcomes[0].text


# ---- counts, shares, sizes -------------------------------------------------------------------------------------------

KEMS = {"experiment": "table2-kem", "metric": "packets_client", "table": "handshakes"}


def captured(counts: Sequence[int], label: str = "X25519") -> pl.DataFrame:
    rows = [
        dict.fromkeys(details.HANDSHAKES)
        | {"proof": f"proof of quiche/{label}", "origin": "raw/p", "index": number, "packets_client": count}
        for number, count in enumerate(counts)
    ]
    return pl.DataFrame(rows, schema=details.HANDSHAKES, orient="row")


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ([3] * 20, "holds"),
        ([3] * 18 + [4, 4], "holds"),
        ([4] * 20, "fails"),
        ([3, 3, 3, 4, 4], "inconclusive"),
        ([3] * 3, "holds"),
        # so few have no quartiles of their own
        ([3] * 2, "inconclusive"),
        ([4], "inconclusive"),
    ],
)
def test_packets_are_judged_by_their_median_and_quartiles(counts: list[int], verdict: str) -> None:
    runs_ = make_rows({("quiche", "X25519"): [2.0]}, "ttfb_ms", experiment="table2-kem")
    result = evaluate_one(
        tables(runs_, handshakes=captured(counts)),
        reads=KEMS,
        compare=[{"of": [{"label": "X25519"}]}],
        predicate={"kind": "equal", "value": 3},
    )
    assert (result.verdict, result.basis, result.p) == (verdict, "count", None)
    assert result.outcomes[0].n == len(counts)
    told = {
        5: "further captures would decide, not further blocks",
        2: "2 captured connections cannot show how others vary",
        1: "1 captured connection cannot show how others vary; 3 can",
    }
    assert told.get(len(counts), "") in result.reason
    assert bool(result.reason) is (verdict == "inconclusive")


def shares(values: Sequence[float], category: str = "packet-io", role: str = "client") -> pl.DataFrame:
    rows = [("quiche/AES-128-GCM", role, category, block, value, 1000) for block, value in enumerate(values)]
    return pl.DataFrame(rows, schema=cpu_shares.BLOCKS, orient="row")


def test_a_share_is_a_mean_over_blocks_and_judged_everywhere() -> None:
    runs_ = make_rows({("quiche", "AES-128-GCM"): [1.0] * 3}, experiment="cpu-shares")
    term = {"label": "AES-128-GCM", "role": "client", "category": "packet-io"}
    given = {
        "reads": {"experiment": "cpu-shares", "table": "shares", "metric": "share"},
        "compare": [{"of": [term]}],
        "predicate": {"kind": "between", "low": 0.4, "high": 0.6},
    }
    found = tables(runs_, shares=shares([0.49, 0.5, 0.51]))
    result = evaluate_one(found, {"hardware": "other hosts"}, **given)
    assert (result.verdict, result.basis) == ("holds", "share")
    assert result.outcomes[0].value == pytest.approx(0.5)
    assert "between 40 and 60 %: 50 [" in claims_report.text([result], cells=True, tested={})
    assert "only: stated for other hosts, measured on a local testbed" in result.judged


@pytest.mark.parametrize(
    ("over", "kind", "verdict", "value"),
    [
        ([0.1, 0, 0.1], "at-least", "holds", 7.5),
        ([0.1, 0, 0.1], "at-most", "fails", 7.5),
        ([0.6, 0.0, 0.8], "at-least", "inconclusive", 1.5 / 1.4),
        ([0, 0, 0], "at-least", "holds", math.inf),
        ([0, 0, 0], "at-most", "fails", math.inf),
    ],
)
def test_a_share_that_is_zero_at_times_is_compared_by_its_sum(
    over: list[float], kind: str, verdict: str, value: float
) -> None:
    runs_ = make_rows({("quiche", "AES-128-GCM"): [1.0] * 3}, experiment="cpu-shares")
    term = {"label": "AES-128-GCM", "role": "client"}
    compared = {"of": [term | {"category": "packet-io"}], "over": [term | {"category": "kernel"}]}
    found = tables(runs_, shares=pl.concat([shares([0.5] * 3), shares(over, "kernel")]))
    reads = {"experiment": "cpu-shares", "table": "shares", "metric": "share"}
    result = evaluate_one(found, reads=reads, compare=[compared], predicate={"kind": kind, "value": 1.1})
    assert result.verdict == verdict
    assert result.outcomes[0].value == pytest.approx(value)
    claims_report.text([result], cells=True, tested={})
    # of a ratio of ratios there is none
    against = {"of": [term | {"category": "packet-io"}], "over": [term | {"category": "packet-io"}]}
    result = evaluate_one(found, reads=reads, compare=[compared | {"against": against}])
    assert result.verdict == "not measured"
    zeros = over.count(0)
    assert f"in {zeros} of 3 blocks the divisor is zero" in result.reason


def test_a_category_that_samples_were_not_sorted_into_is_left_out() -> None:
    runs_ = make_rows({("quiche", "AES-128-GCM"): [1.0] * 3}, experiment="cpu-shares")
    term = {"label": "AES-128-GCM", "role": "client"}
    result = evaluate_one(
        tables(runs_, shares=pl.concat([shares([0.5] * 3), shares([0.1, 0.11, 0.1], "application")])),
        reads={"experiment": "cpu-shares", "table": "shares", "metric": "share"},
        compare=[
            {"of": [term | {"category": "packet-io"}], "over": [term | {"category": name}]}
            for name in ("application", "kernel")
        ],
    )
    assert result.verdict == "holds"
    assert result.reason == "left out: quiche: the samples have no category kernel"


@pytest.mark.parametrize(("bound", "verdict"), [(0.5, "holds"), (0.001, "fails")])
def test_nothing_may_be_left_of_what_is_divided(bound: float, verdict: str) -> None:
    runs_ = make_rows({("quiche", "AES-128-GCM"): [1.0] * 3}, experiment="cpu-shares")
    term = {"label": "AES-128-GCM", "role": "client"}
    left = shares([0.01, 0.0, 0.0101], "kernel") if verdict == "holds" else shares([0.1, 0.101, 0.0999], "kernel")
    result = evaluate_one(
        tables(runs_, shares=pl.concat([shares([0.5] * 3), left])),
        reads={"experiment": "cpu-shares", "table": "shares", "metric": "share"},
        compare=[{"of": [term | {"category": "kernel"}], "over": [term | {"category": "packet-io"}]}],
        predicate={"kind": "at-most", "value": bound},
    )
    assert result.verdict == verdict


@pytest.mark.parametrize(
    ("many", "few", "verdict", "value"),
    [
        ([90, 110, 100, 0, 105], [0, 2, 1, 0, 2], "holds", 5 / 405),
        ([0, 2, 1, 0, 2], [90, 110, 100, 60, 105], "fails", 93),
        ([0, 2, 1, 0, 2], [1, 0, 1, 2, 0], "inconclusive", 4 / 5),
        ([0, 0, 0], [1, 0, 1], "not measured", None),
    ],
)
def test_counts_that_are_zero_at_times_are_compared_by_their_sums(
    many: list[float], few: list[float], verdict: str, value: float | None
) -> None:
    metric = "client_udp_receive_buffer_errors"
    result = evaluate_one(
        tables(make_rows({("quiche", "AES-128-GCM"): many, ("quiche", "NOOP"): few}, metric)),
        reads={"experiment": "aead-goodput", "metric": metric},
        predicate={"kind": "at-most", "value": 1},
    )
    assert result.verdict == verdict
    if value is None:
        assert "all divisors are zero" in result.reason
        return
    (outcome,) = result.outcomes
    assert outcome.value == pytest.approx(value)
    assert outcome.low <= value <= outcome.high


def test_shares_of_blocks_are_read_beside_the_runs(tmp_path: Path) -> None:
    for block, packets in enumerate((1, 3)):
        run = fakeruns.make_run(experiment="cpu-shares", block=block)
        directory = fakeruns.write_run(tmp_path / "raw", run)
        for role in ("client", "server"):
            stacks = {"client;a`main;kernel`udp_sendmsg": packets, "client;a`what no mapping knows": 4 - packets}
            write_folded(directory / folded_name(role), stacks)
    found = verdicts.tables(tmp_path / "raw", ROOT)
    own = found.shares.filter((pl.col("category") == "packet-io") & (pl.col("role") == "server"))
    assert own.sort("block").select("block", "share").rows() == [(0, 0.25), (1, 0.75)]
    assert found.shares.group_by("role", "block").agg(pl.col("share").sum())["share"].to_list() == [1.0] * 4


def test_frames_are_those_of_the_capture_of_a_cell() -> None:
    label = "AES-128-GCM, MTU 3000"
    measured = make_rows({("quiche", label): [1.0, 2.0]}, experiment="mtu")
    proof = make_rows({("quiche", "proof"): [1.0]}, experiment="proofs", arm="proof", cell=f"proof of quiche/{label}")
    result = evaluate_one(
        tables(measured, [row | {"server_mean_frame_bytes": 2960.0} for row in proof]),
        reads={"experiment": "mtu", "table": "frames", "metric": "server_mean_frame_bytes"},
        compare=[{"of": [{"label": label}]}],
        predicate={"kind": "between", "low": 2953, "high": 2999},
    )
    assert (result.verdict, result.basis, result.outcomes[0].value) == ("holds", "count", 2960)


@pytest.mark.parametrize(("size", "verdict"), [(32, "holds"), (800, "fails")])
def test_sizes_are_those_of_the_primitives_of_a_library(size: int, verdict: str) -> None:
    measured = make_rows({("quiche", "X25519"): [2.0, 2.1]}, "ttfb_ms", experiment="table2-kem")
    timed = make_rows({("quiche", "primitives"): [0.0]}, experiment="table2-kem", arm="primitives", goodput_mbps=None)
    known = {"library": "quiche", "kind": "group", "name": "x25519", "operation": "keygen", "median_ns": 1.0}
    row = dict.fromkeys(details.PRIMITIVE_TIMES) | known | {"bytes": size, "origin": timed[0]["origin"]}
    result = evaluate_one(
        tables(measured, timed, primitives=pl.DataFrame([row], schema=details.PRIMITIVE_TIMES)),
        reads={"experiment": "table2-kem", "table": "sizes", "metric": "client_share_bytes"},
        compare=[{"of": [{"label": "X25519"}]}],
        predicate={"kind": "equal", "value": 32},
    )
    assert (result.verdict, result.basis) == (verdict, "count")


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_a_claim_holds_for_all_its_libraries_and_fails_for_one() -> None:
    both = make_rows(goodputs(1.2)) + make_rows(goodputs(1.3, library="quinn"))
    assert evaluate_one(tables(both), libraries=["quiche", "quinn"]).verdict == "holds"
    one = make_rows(goodputs(1.2)) + make_rows(goodputs(1.0, library="quinn"))
    result = evaluate_one(tables(one), libraries=["quiche", "quinn"])
    assert result.verdict == "fails"
    assert [outcome.library for outcome in result.outside] == ["quinn"]


def test_other_libraries_are_shown_and_decide_nothing() -> None:
    rows = make_rows(goodputs(1.2)) + make_rows(goodputs(0.9, library="quinn"))
    rows += make_rows(goodputs(2, library="tcp-tls"))
    result = evaluate_one(tables(rows))
    assert result.verdict == "holds"
    assert [(one.library, one.inside) for one in result.beyond] == [("quinn", False)]
    assert evaluate_one(tables(rows), beyond=False).beyond == []


@pytest.mark.parametrize("ratio", [1.09, 1.11])
def test_an_interval_that_straddles_the_bound_is_inconclusive_and_says_how_many_blocks_decide(ratio: float) -> None:
    result = evaluate_one(tables(make_rows(goodputs(ratio, 0.03, 6))))
    assert result.verdict == "inconclusive"
    assert result.p is not None
    assert result.p > 0.05
    assert result.more_blocks is not None
    assert f"straddles a bound; about {result.more_blocks} more blocks would decide it" in result.reason
    assert result.more_hours is None
    timed = make_rows(goodputs(ratio, 0.03, 6), wall_s=50.0, overhead_s=10.0)
    hours = evaluate_one(tables(timed)).more_hours
    assert hours == pytest.approx(result.more_blocks * 2 * 60 / 3600)
    assert f" more blocks ({duration(60 * hours)}) would decide it" in evaluate_one(tables(timed)).reason
    # the same spread in as many blocks
    more = evaluate_one(tables(make_rows(goodputs(ratio, 0.03, 6 + 3 * result.more_blocks))))
    assert more.verdict == ("holds" if ratio > 1.1 else "fails")


def test_as_many_blocks_are_asked_for_as_make_the_p_value_small_enough() -> None:
    from scipy.special import stdtr

    for margin, n, level in ((0.5, 5, 0.05), (0.1, 20, 0.01), (3.0, 2, 0.001)):
        needed = verdicts.more_blocks_needed(margin, n, level)
        assert needed is not None

        def p(count: int, margin: float = margin) -> float:
            return 2 * float(stdtr(count - 1, -margin * math.sqrt(count)))

        assert p(n + needed) <= level < p(n + needed - 1)
    assert verdicts.more_blocks_needed(0.0, 5, 0.05) is None
    assert verdicts.more_blocks_needed(1e-6, 5, 0.05) is None


def test_one_block_decides_nothing() -> None:
    result = evaluate_one(tables(make_rows(goodputs(5.0, n=1))))
    assert result.verdict == "inconclusive"
    assert result.reason == "one block gives no interval; at least two are needed"


def test_two_blocks_are_not_taken_for_many() -> None:
    """Student's t knows how little two blocks tell."""
    values = {("quiche", "AES-128-GCM"): [2000.0, 2000.0], ("quiche", "NOOP"): [2300.0, 2500.0]}
    result = evaluate_one(tables(make_rows(values)))
    assert not result.outcomes[0].clear
    assert result.verdict == "inconclusive"


def test_the_evidence_says_what_was_measured_under() -> None:
    rows = make_rows(goodputs(1.2))
    rows[0] |= {"contaminated": True}
    again = make_rows({("quiche", "AES-128-GCM"): around(2000, seed=9)}, arm="aa", cell="again")
    arms = [row | {"baseline": "quiche/AES-128-GCM"} for row in again]
    result = evaluate_one(tables(rows, arms))
    assert result.floor is not None
    low, high = result.floor
    assert low < 1 < high
    assert result.conditions == f"testbed local, scale quick, 1 contaminated run, A/A {low:.3f} to {high:.3f}"
    assert result.conditions in claims_report.text([result], cells=True, tested={})
    (row,) = claims_report.frame(record_of([result])).to_dicts()
    assert (row["testbed"], row["scale"], row["contaminated"]) == ("local", "quick", 1)
    assert (row["aa_low"], row["aa_high"]) == (low, high)
    without = evaluate_one(tables(make_rows(goodputs(1.2))))
    assert without.conditions == "testbed local, scale quick, no contaminated runs"
    assert evaluate_one(tables(rows), libraries=["quinn"]).conditions == ""


# ---- not measured, not applicable ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"libraries": ["lsquic"]},
        {"libraries": ["quinn"]},
        {"reads": {"experiment": "mtu", "metric": "goodput_mbps"}},
        {"reads": {"experiment": "satellite", "metric": "goodput_mbps"}},
        {"compare": [{"of": [{"label": "NOENC"}], "over": [{"label": "NOOP"}]}]},
    ],
)
def test_what_was_not_measured_says_why(changes: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    lost = make_rows({("quiche", "NOENC"): [1.0]}, status="failed", reason="timed out", goodput_mbps=None)
    result = evaluate_one(tables(make_rows(goodputs(1.2)), lost), **changes)
    assert result.verdict == "not measured"
    assert result.reason == snapshot


@pytest.mark.parametrize(
    ("reason", "verdict", "told"),
    [
        ("cannot", "not applicable", "quiche: unsupported: cannot"),
        ("left out: too large", "not measured", "quiche: left out: too large"),
    ],
)
def test_what_a_library_cannot_do_or_a_scale_leaves_out_has_no_verdict(reason: str, verdict: str, told: str) -> None:
    refused = make_rows(
        {("quiche", "NOENC"): [1.0]}, status="unsupported", reason=reason, goodput_mbps=None, block=None
    )
    compare = [{"of": [{"label": "NOENC"}], "over": [{"label": "NOOP"}]}]
    result = evaluate_one(tables(make_rows(goodputs(1.2)), refused), compare=compare)
    assert (result.verdict, result.reason) == (verdict, told)


def test_a_part_that_is_missing_is_named_beside_the_verdict() -> None:
    result = evaluate_one(tables(make_rows(goodputs(1.2))), libraries=["quiche", "lsquic"])
    assert result.verdict == "holds"
    assert result.reason == "left out: LSQUIC is not configured; it can take part as an external endpoint"


# ---- external programs, whose goodput has their start in it ----------------------------------------------------------


def with_external(noop: float, **ours: float) -> Tables:
    """Goodputs of NOOP over AES of LSQUIC, an external endpoint, and of libraries of ours."""
    rows = make_rows(goodputs(noop, library="lsquic"), client_external=True, server_external=True)
    return tables(rows, *(make_rows(goodputs(ratio, library=name)) for name, ratio in ours.items()))


def test_goodput_of_external_programs_is_in_no_verdict_on_others() -> None:
    result = evaluate_one(with_external(0.9, quiche=1.2), libraries=["lsquic", "quiche"])
    assert (result.verdict, [one.library for one in result.measured]) == ("holds", ["quiche"])
    reason = "left out: LSQUIC: its goodput includes the start of its external program, the others' does not"
    assert result.reason == reason
    assert not result.external
    assert result.beyond == []


def test_a_client_that_reports_its_times_is_judged_beside_others() -> None:
    rows = make_rows(goodputs(0.9, library="lsquic"), client_external=True, client_times=True)
    result = evaluate_one(tables(rows, make_rows(goodputs(1.2, library="quiche"))), libraries=["lsquic", "quiche"])
    assert {one.library: one.external for one in result.measured} == {"lsquic": False, "quiche": False}


def test_a_verdict_on_external_programs_alone_says_so() -> None:
    result = evaluate_one(with_external(1.2), libraries=["lsquic"])
    assert result.verdict == "holds"
    assert "the start of external programs included" in result.conditions


def test_goodput_of_an_external_program_is_not_divided_by_another() -> None:
    compare = [{"of": [{"label": "NOOP", "library": "quiche"}], "over": [{"label": "NOOP", "library": "lsquic"}]}]
    result = evaluate_one(with_external(1.2, quiche=1.2), compare=compare)
    assert result.verdict == "not applicable"
    assert result.reason.startswith("goodput of an external client includes the start of its program")


def test_a_spread_over_pairs_is_one_of_clients_of_one_kind() -> None:
    values = {("quiche", "NOOP"): around(1000), ("quinn", "NOOP"): around(2000), ("quinn>quiche", "NOOP"): around(1500)}
    rows = make_rows({("lsquic>quiche", "NOOP"): around(100)}, client_external=True)
    compare = [{"spread": {"label": "NOOP"}}]
    (outcome,) = evaluate_one(
        tables(make_rows(values), rows), libraries=["lsquic", "quiche", "quinn"], compare=compare
    ).outcomes
    assert outcome.value == pytest.approx(2, rel=0.05)
    assert "3 of 9 pairs" in outcome.text


def test_times_to_first_byte_are_taken_from_captures_and_go_together() -> None:
    times = {("quiche", "NOOP"): around(1.0), ("quiche", "AES-128-GCM"): around(1.5)}
    external = {("lsquic", label): series for (_, label), series in times.items()}
    found = tables(make_rows(times, "ttfb_ms"), make_rows(external, "ttfb_ms", client_external=True))
    reads = {"experiment": "aead-goodput", "metric": "ttfb_ms"}
    predicate = {"kind": "at-most", "value": 1}
    result = evaluate_one(found, libraries=["quiche", "lsquic"], reads=reads, predicate=predicate)
    assert [one.library for one in result.measured] == ["quiche", "lsquic"]


HARDWARE = {"hardware": "hosts with 10 Gbit/s"}
ABSOLUTE = {"compare": [VALUE], "predicate": {"kind": "equal", "value": 4782, "tolerance": 0.1}}


def test_a_value_of_other_hardware_is_not_judged_on_a_local_testbed() -> None:
    result = evaluate_one(tables(make_rows(goodputs(1.2))), HARDWARE, **ABSOLUTE)
    assert result.verdict == "not applicable"
    assert result.reason == "a value of hosts with 10 Gbit/s: on a local testbed only ratios and orders can be compared"


def test_a_value_is_judged_where_hardware_is_or_where_none_matters() -> None:
    rows = make_rows({("quiche", "NOOP"): around(4800)})
    for found, paper, changes in (
        (tables([row | {"testbed_kind": "ssh"} for row in rows]), HARDWARE, {}),
        (tables(rows), {}, {}),
        (tables(rows), HARDWARE, {"hardware": False}),
    ):
        result = evaluate_one(found, paper, **(ABSOLUTE | changes))
        assert (result.verdict, result.basis) == ("holds", "value")


def test_a_value_becomes_a_ratio_on_a_local_testbed_and_says_so() -> None:
    ratio = {"over": [{"label": "AES-128-GCM"}], "predicate": {"kind": "equal", "value": 1.2, "tolerance": 0.05}}
    result = evaluate_one(tables(make_rows(goodputs(1.2))), HARDWARE, **ABSOLUTE, locally=ratio)
    assert (result.verdict, result.basis) == ("holds", "ratio")
    assert result.judged == "a ratio only: stated for hosts with 10 Gbit/s, measured on a local testbed"
    assert result.outcomes[0].text == "NOOP / AES-128-GCM"
    remote = tables([row | {"testbed_kind": "ssh"} for row in make_rows(goodputs(1.2))])
    assert evaluate_one(remote, HARDWARE, **ABSOLUTE, locally=ratio).verdict == "fails"


def test_what_needs_hardware_is_judged_on_hardware_only() -> None:
    rows = make_rows(goodputs(1.2))
    result = evaluate_one(tables(rows), needs="five pairs of hosts")
    assert (result.verdict, result.reason) == ("not applicable", "needs five pairs of hosts")
    assert evaluate_one(tables([row | {"testbed_kind": "ssh"} for row in rows]), needs="hosts").verdict == "holds"


# ---- multiple testing ------------------------------------------------------------------------------------------------


def test_adjusted_p_values_are_benjamini_and_hochbergs() -> None:
    """The example of their paper (Journal of the Royal Statistical Society B 57(1), 1995, sec. 3.2): 4 of 15."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528, 0.759]
    p += [1.0]
    found = verdicts.adjusted(p[::-1])[::-1]
    assert sum(value <= 0.05 for value in found) == 4
    assert found[:3] == pytest.approx([0.0015, 0.003, 0.0095])
    assert found == sorted(found)
    assert verdicts.adjusted([]) == []


def test_a_claim_that_is_one_of_many_needs_a_smaller_p_value() -> None:
    values = goodputs(1.15, 0.03, 8)
    near = {("quinn", label): series for (_, label), series in goodputs(1.101, 0.03, 8).items()}
    found = tables(make_rows(values), make_rows(near))
    alone = evaluate_one(found)
    assert alone.verdict == "holds"
    assert alone.p is not None
    assert 0.005 < alone.p < 0.05
    others = [make_claim(id=f"other-{number}", libraries=["quinn"]) for number in range(30)]
    first, *rest = evaluate(found, make_claim(), *others)
    assert first.verdict == "inconclusive"
    assert "not by enough for one of 31 claims tested together" in first.reason
    assert first.adjusted == pytest.approx(min(1, 31 * alone.p))
    assert {one.verdict for one in rest} == {"inconclusive"}


def test_true_values_on_the_bound_are_hardly_ever_decided() -> None:
    draw = random.Random(7)
    decided = 0
    for _ in range(60):
        values = {
            ("quiche", "AES-128-GCM"): [math.exp(draw.gauss(0, 0.02)) for _ in range(6)],
            ("quiche", "NOOP"): [1.1 * math.exp(draw.gauss(0, 0.02)) for _ in range(6)],
        }
        decided += evaluate_one(tables(make_rows(values))).verdict != "inconclusive"
    assert decided <= 0.1 * 60


# ---- the published tables --------------------------------------------------------------------------------------------


def as_published() -> Tables:
    """What a testbed would have measured on which everything is as the paper prints it."""
    rows: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    for experiment, table in (("table2-kem", "table2"), ("table3-signature", "table3")):
        for row in published.rows(table):
            values = {("quiche", row["label"]): around(row["ttfb_ms_quiche"], 0.002, 6)}
            own = make_rows(values, "ttfb_ms", experiment=experiment)
            proof = f"proof of {experiment}/{row['label']}"
            rows += [one | {"cell": f"{experiment}/{row['label']}", "proof": proof} for one in own]
            packets = {f"packets_{role}": row[f"packets_{role}_quiche"] for role in ("client", "server")}
            seen += [
                dict.fromkeys(details.HANDSHAKES) | packets | {"proof": proof, "origin": proof, "index": i}
                for i in range(3)
            ]
    taken = []
    for row in published.rows("table1"):
        if row["library"] in PROJECT.libraries:
            cell = f"cpu-shares/{row['library']}/{row['label']}"
            own = make_rows({(row["library"], row["label"]): [1.0] * 6}, experiment="cpu-shares")
            rows += [one | {"cell": cell} for one in own]
            for role in ("client", "server"):
                for category in ("packet-protection", "header-protection"):
                    share = row[f"{role}_{category.replace('-', '_')}"] / 100
                    series = around(share, 0.01, 6)
                    taken += [(cell, role, category, block, value, 1000) for block, value in enumerate(series)]
    return tables(
        rows,
        handshakes=pl.DataFrame(seen, schema=details.HANDSHAKES, orient="row"),
        shares=pl.DataFrame(taken, schema=cpu_shares.BLOCKS, orient="row"),
    )


BEYOND_ITS_WORDS = {"quantum-of-quic/table2-p256-hybrid-free", "quantum-of-quic/table3-dilithium-close"}
"""Claims that the paper's own numbers do not make hold, as we read its words; their notes say so."""


def test_the_papers_own_numbers_make_its_claims_hold() -> None:
    own = [one for one in STATED if one.name == "quantum-of-quic"]
    results = verdicts.evaluate(PROJECT, own, as_published())
    told = [result for result in results if result.experiment in own[0].paper.published and result.p is not None]
    assert len(told) > 60
    assert {result.stated.id for result in told if result.verdict != "holds"} == BEYOND_ITS_WORDS
    printed = [one for result in results for one in result.outcomes if one.published is not None]
    assert len(printed) > 250
    beyond = {result.stated.id for result in results for one in result.outcomes if one.agrees is False}
    assert beyond == BEYOND_ITS_WORDS
    packets = [result for result in results if result.stated.group in ("table2-packets", "table3-packets")]
    assert {result.verdict for result in packets if result.stated.claim.libraries == ["quiche"]} == {"holds"}
    # times of the row that all others are divided by say nothing on another machine
    reference = {result.stated.claim.id: result.verdict for result in results}
    assert reference["table2-ttfb-x25519-quiche"] == "not applicable"


def test_every_number_of_the_tables_is_a_claim() -> None:
    for table, groups in (
        ("table1", ["table1"]),
        ("table2", ["table2-ttfb", "table2-packets"]),
        ("table3", ["table3-ttfb", "table3-packets", *(f"table3-{x}" for x in ("public-key", "signature-size"))]),
    ):
        if table == "table3":
            groups.append("table3-certificate-size")
        numbers = [
            value
            for row in published.rows(table)
            for name, value in row.items()
            if name not in ("nist_level", "quantum_safe") and isinstance(value, (int, float))
        ]
        assert len([one for one in STATED if one.group in groups]) == len(numbers)


# ---- causes ----------------------------------------------------------------------------------------------------------

MADE = {
    "how": "NOOP is twice as fast.",
    "reads": {"experiment": "aead-goodput", "metric": "goodput_mbps"},
    "libraries": ["quinn"],
    "compare": [RATIO],
    "predicate": {"kind": "at-least", "value": 1.5},
}
COUNTED = {"how": "Files are counted.", "seen": "There are three."}


def found_causes(project: Project, noop: float, *given: dict[str, Any]) -> causes.Found:
    """Causes of a claim on quiche that fails, by a test on quinn whose NOOP has *noop* times the goodput."""
    (project.root / causes.FILE).write_text(yaml.safe_dump({"causes": list(given)}), encoding="utf-8")
    table = tables(make_rows(goodputs(1.0)), make_rows(goodputs(noop, library="quinn")))
    known = papers.stated(project)
    results = verdicts.evaluate(project, known, table)
    return causes.find(project, known, results, causes.tested(project, known, table))


def cause(**changes: Any) -> dict[str, Any]:
    told = {} if changes.get("tests") else {"would_tell": "A build without the patch."}
    return {"id": "patched", "text": "It is patched.", "explains": [{"claims": "paper/one"}]} | told | changes


@pytest.mark.parametrize(
    ("tests", "noop", "status"),
    [
        ([], 2.0, "untested"),
        ([COUNTED], 1.0, "supported"),
        ([MADE], 2.0, "supported"),
        ([MADE], 1.0, "contradicted"),
        ([COUNTED, MADE], 1.0, "contradicted"),
        ([MADE | {"libraries": ["ngtcp2"]}], 2.0, "untested"),
        ([MADE | {"predicate": {"kind": "at-least", "value": 2.0}}], 2.0, "undecided"),
    ],
)
def test_a_cause_is_what_its_tests_say_of_it(
    project: Project, tests: list[dict[str, Any]], noop: float, status: str
) -> None:
    write(project)
    found = found_causes(project, noop, cause(tests=tests))
    (one,) = found.causes
    assert one.status == status
    (explained,) = found.of["paper/one"]
    assert explained is one
    assert found.unknown == []
    results = [result for result, _ in one.explained]
    text = claims_report.text(results, cells=True, tested={}, found=found)
    assert f"cause ({status}): It is patched." in text
    assert ("What would decide: A build without the patch." in text) == (not tests)
    assert set(claims_report.frame(record_of(results, found))["causes"]) == {f"patched ({status})"}


def test_what_a_test_of_a_cause_saw_leads_to_its_runs(project: Project, tmp_path: Path) -> None:
    write(project)
    found = found_causes(project, 2.0, cause(tests=[COUNTED, MADE]))
    results = [result for result, _ in found.causes[0].explained]
    shown = claims_report.page(results, project, tmp_path / "artifacts", tmp_path / "report", found=found)
    counted, made = shown["causes"][0]["tests"]
    assert (counted["verdict"], counted["behind"], counted["predicted"]) == ("counted", "", "")
    assert (made["verdict"], made["predicted"]) == ("as predicted", "at least 1.5")
    campaign = results[0].campaign
    assert campaign
    assert made["behind"].startswith(runs.selection(campaign) + "&cell=")


def test_a_failing_claim_without_a_cause_is_told(project: Project) -> None:
    write(project)
    found = found_causes(project, 1.0, cause(explains=[{"claims": "paper/one", "libraries": ["msquic"]}]))
    (unknown,) = found.unknown
    assert unknown.stated.id == "paper/one"
    assert "no cause known yet" in claims_report.text([unknown], cells=True, tested={}, found=found)
    told = claims_report.told([unknown], found)
    assert told == (
        "1 claims: 1 fails. Of those that fail, 0 have a cause that tests support, 0 one that is untested or "
        "undecided, and for 1 no cause is known yet."
    )


def test_a_cause_explains_what_is_beyond_the_papers_libraries_where_it_names_it(project: Project) -> None:
    write(project)
    found = found_causes(project, 0.3, cause(explains=[{"claims": "paper/*", "libraries": ["quinn"]}]))
    ((result, beyond),) = found.causes[0].explained
    assert (result.stated.id, [one.library for one in beyond]) == ("paper/one", ["quinn"])


@pytest.mark.parametrize(
    "given",
    [
        [cause(explains=[{"claims": "paper/two"}])],
        [cause(), cause()],
        [cause(tests=[{"how": "Somebody says so."}])],
        [cause(tests=[MADE | COUNTED])],
        [cause(tests=[MADE | {"compare": [{"of": [{"label": "NOP"}]}]}])],
        [cause(because="x")],
        [cause(would_tell=None)],
        [cause(tests=[COUNTED], would_tell="Another build.")],
    ],
)
def test_a_mistake_in_causes_is_one_line(
    project: Project, given: list[dict[str, Any]], snapshot: SnapshotAssertion
) -> None:
    write(project)
    with pytest.raises(ConfigError) as caught:
        found_causes(project, 1.0, *given)
    assert str(caught.value).startswith(str(project.root / "config" / "causes.yaml"))
    assert wording.one_line(caught.value, project.root) == snapshot


def test_every_cause_of_ours_explains_claims_that_there_are() -> None:
    known = causes.read(PROJECT, STATED)
    assert {one.id for one in known} >= {
        "x25519-denominator",
        "rsa-denominator",
        "s2n-quic-chacha20",
        "offloads-on-veth",
    }


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs whose verdicts are kept."""
    raw, artifacts = tmp_path / "raw" / "local", tmp_path / "artifacts"
    fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=3, libraries=("quinn",))
    monkeypatch.setenv("QUICBED_RAW", str(raw))
    monkeypatch.setenv("QUICBED_ARTIFACTS", str(artifacts))
    monkeypatch.delenv("QUICBED_TABLE", raising=False)
    assert cli.main(["verdicts", str(raw), str(artifacts / "tables" / judged.FILE)]) == 0
    return raw


def judging(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an element for each time that claims are judged from now on."""
    calls: list[None] = []
    evaluate = verdicts.evaluate
    monkeypatch.setattr(verdicts, "evaluate", lambda *args: (calls.append(None), evaluate(*args))[1])
    return calls


@pytest.mark.parametrize("options", [[], ["fig3-aes-equal"], ["--all"], ["--verdict", "not-measured"]])
def test_kept_verdicts_are_printed_as_those_that_are_worked_out(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    calls = judging(monkeypatch)
    assert cli.main(["claims", *options]) == 0
    told = capsys.readouterr().out
    assert not calls
    assert "fig3-aes-equal" in told
    (kept.parents[1] / "artifacts" / "tables" / judged.FILE).unlink()
    assert cli.main(["claims", *options]) == 0
    assert capsys.readouterr().out == told
    assert calls


def test_verdicts_on_other_runs_or_of_other_code_do_not_count(
    kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = kept.parents[1] / "artifacts" / "tables" / judged.FILE
    content = file.read_text(encoding="utf-8")
    calls = judging(monkeypatch)

    def are_taken(*options: str) -> bool:
        calls.clear()
        assert cli.main(["claims", "fig3-aes-equal", *options]) == 0
        return not calls

    assert are_taken()
    other = tmp_path / "other" / "local"
    fakeruns.write_campaign(other.parent, "aead-goodput", blocks=2, libraries=("quinn",))
    assert not are_taken("--raw", str(other))
    for spoilt in ("", "{}", content.replace('"of": "', '"of": "0')):
        file.write_text(spoilt, encoding="utf-8")
        assert not are_taken()
    file.write_text(content, encoding="utf-8")
    assert are_taken()
    run = next(kept.rglob("run.json"))
    run.write_text(run.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert not are_taken()


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_every_paper_has_claims() -> None:
    ids = [one.id for one in STATED]
    assert len(set(ids)) == len(ids)
    assert {one.name for one in STATED} == {file.stem for file in (ROOT / papers.DIRECTORY).glob("*.yaml")}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose only paper is to be written."""
    made = Project(ROOT).without_folders().restricted(PROJECT.config.experiments, list(PROJECT.libraries))
    made.root = tmp_path
    (tmp_path / papers.DIRECTORY).mkdir(parents=True)
    return made


def write(project: Project, **changes: Any) -> None:
    file = project.root / papers.DIRECTORY / "paper.yaml"
    file.write_text(yaml.safe_dump(PAPER | {"claims": [make_claim()]} | changes), encoding="utf-8")


CELLS = {
    "id": "t",
    "source": "Table II",
    "statement": "{value}",
    "data": "table2",
    "column": "ttfb_ms_{library}",
    "libraries": ["quiche"],
    "reads": {"experiment": "table2-kem", "metric": "ttfb_ms"},
    "figure": "ttfb-by-kem",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"clams": []},
        {"claims": [make_claim(sauce="Fig. 1")]},
        {"claims": [make_claim(predicate={"kind": "at-lest", "value": 1})]},
        {"claims": [make_claim(predicate={"kind": "between", "low": 1})]},
        {"claims": [make_claim(predicate={"kind": "at-most", "low": 1, "value": 2})]},
        {"claims": [make_claim(predicate={"kind": "between", "low": 2, "high": 1})]},
        {"claims": [make_claim(compare=[RATIO, VALUE])]},
        {"claims": [make_claim(predicate={"kind": "order"})]},
        {"claims": [make_claim(compare=[{"over": [{"label": "NOOP"}]}])]},
        {"claims": [make_claim(compare=[{"rising": [{"label": "NOOP"}]}])]},
        {"claims": [make_claim(compare=[VALUE, {"largest": {"label": "NOOP"}}])]},
        {"claims": [make_claim(libraries=[])]},
        {"claims": [make_claim(libraries=["quich"])]},
        {"claims": [make_claim(compare=[{"of": [{"label": "NOP"}]}])]},
        {"claims": [make_claim(reads={"experiment": "aead-godput", "metric": "goodput_mbps"})]},
        {"claims": [make_claim(reads={"experiment": "aead-goodput", "metric": "goodput"})]},
        # an experiment that was awaited has to have the cells once it is there
        {
            "awaited": {"aead-goodput": "AEADs"},
            "claims": [make_claim(compare=[{"of": [{"label": "NOP"}], "over": [{"label": "NOOP"}]}])],
        },
        # and its table the metric
        {
            "awaited": {"aead-goodput": "AEADs"},
            "claims": [make_claim(reads={"experiment": "aead-goodput", "metric": "gap"})],
        },
        {"claims": [make_claim(), make_claim()]},
        {"claims": [make_claim(figure=None)]},
        {"claims": [make_claim(no_figure="?")]},
        {"claims": [make_claim(locally={"over": [{"label": "NOOP"}], "predicate": {"kind": "order"}})]},
        {"cells": [CELLS, CELLS]},
        {"cells": [CELLS | {"column": "ttfb_{library}"}]},
        {"cells": [CELLS | {"reference": "X25591"}]},
    ],
)
def test_a_mistake_is_one_line_that_names_file_key_and_remedy(
    project: Project, changes: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    write(project, **changes)
    with pytest.raises(ConfigError) as error:
        papers.stated(project)
    assert wording.one_line(error.value, project.root, names="paper.yaml: ") == snapshot


def test_claims_are_chosen_by_id_table_and_paper() -> None:
    assert [one.id for one in papers.chosen(STATED, ["fig3-tcp-fastest"])] == ["quantum-of-quic/fig3-tcp-fastest"]
    assert len(papers.chosen(STATED, ["table1"])) == len(published.rows("table1")) * 4
    assert {one.name for one in papers.chosen(STATED, ["quic-steps"])} == {"quic-steps"}
    with pytest.raises(ConfigError, match="claim `fig3-tcp-fast` is unknown; did you mean `fig3-tcp-fastest`"):
        papers.chosen(STATED, ["fig3-tcp-fast"])


# ---- shown -----------------------------------------------------------------------------------------------------------


@functools.cache
def documentation() -> str:
    return claims_report.documentation(PROJECT)


def test_commands_are_those_of_no_study() -> None:
    """A study has few of the experiments that claims are about, and the commands do not name it."""
    studied = claims_report.Commands(Project(ROOT, {"study": "reference"}))
    usual = claims_report.Commands(PROJECT)
    claims = [one.claim for one in papers.stated(PROJECT)]
    assert {claim.reads.experiment for claim in claims} - set(studied.project.studies["reference"].experiments)
    assert [studied.of(claim) for claim in claims] == [usual.of(claim) for claim in claims]


def test_a_command_measures_the_libraries_of_a_claim_alone() -> None:
    commands = claims_report.Commands(PROJECT)
    by_id = {one.id: one.claim for one in STATED}
    first = commands.of(by_id["quantum-of-quic/fig3-tcp-fastest"])
    assert first is not None
    assert first.text() == 'make all CONFIG="experiments=[aead-goodput] libraries=[msquic,quiche,tcp-tls]"'
    less = commands.of(by_id["quantum-of-quic/fig3-noop-gain-tcp"])
    assert less is not None
    assert 0 < less.cost.disk_mb < first.cost.disk_mb
    assert 0 < less.cost.build_minutes < first.cost.build_minutes
    assert commands.of(by_id["quantum-of-quic/table3-lsquic-fails-30kb"]) is None
    beyond = commands.of(by_id["quic-steps/trains-picoquic"])
    assert beyond is not None
    assert beyond.libraries == ("picoquic",)


@pytest.mark.parametrize(
    ("name", "libraries", "why"),
    [
        # one of the two libraries that are compared is not ours
        ("quantum-of-quic/fig5-frames-lsquic", "", "LSQUIC as an external endpoint"),
        ("quic-on-the-highway/fig3-lsquic-quiche", "", "LSQUIC as an external endpoint"),
        ("quic-on-the-highway/fig3-range", "", "mvfst and LSQUIC as external endpoints"),
        ("quic-on-the-highway/fig3-tcp", "aioquic,picoquic,quic-go,quiche,tcp-tls", ""),
        ("quic-on-the-highway/fig9-native", "picoquic,quiche", ""),
        ("quic-on-the-highway/fig9-native-hosts", "", "experiment `hardware-native`"),
        # MsQuic has a flavour for larger MTUs
        ("quantum-of-quic/fig5-mtu-gain", "msquic", ""),
        ("quantum-of-quic/fig5-noop-gain-flat", "msquic,tcp-tls", ""),
        ("quantum-of-quic/fig5-frames-full", "msquic,tcp-tls", ""),
    ],
)
def test_a_command_measures_what_a_claim_compares_or_there_is_none(name: str, libraries: str, why: str) -> None:
    commands = claims_report.Commands(PROJECT)
    (one,) = papers.chosen(STATED, [name])
    command = commands.of(one.claim)
    if command is None:
        assert libraries == ""
        assert why in commands.why_not(one)
    else:
        assert ",".join(command.libraries) == libraries
    (line,) = (line for line in documentation().splitlines() if f"| `{one.claim.id}` | Fig" in line)
    assert ("make all" in line) == (libraries != "")
    assert ("not yet: " in line) == (libraries == "")


def test_a_value_of_hardware_is_not_among_what_a_local_testbed_tells() -> None:
    (one,) = papers.chosen(STATED, ["fig3-noenc-goodput"])
    assert one.not_locally is not None
    page = documentation()
    (line,) = (line for line in page.splitlines() if "| `fig3-noenc-goodput` |" in line)
    assert "libraries=[msquic]" in line
    assert "not on a local testbed: the value is specific to the paper's hardware" in line
    # all but the time of the row that the others are divided by
    (line,) = (line for line in page.splitlines() if "| `table2-ttfb` |" in line and "numbers for quiche" in line)
    assert "1 of them not on a local testbed" in line


def test_every_claim_is_in_the_documentation_with_how_it_is_measured() -> None:
    page = documentation()
    for one in STATED:
        assert f"| `{one.group or one.claim.id}` |" in page
    for line in page.splitlines():
        if line.startswith("| `"):
            assert "`make all CONFIG=" in line or "not yet: " in line or "needs " in line


def test_the_documentation_starts_with_figures_and_tables() -> None:
    page = documentation()
    overview = page.split("## Figures and tables\n\n")[1].split("\n\n")[1].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in overview]
    commands = claims_report.Commands(PROJECT)
    measured = [one for one in STATED if one.not_locally is None and commands.of(one.claim)]
    assert sum(int(row[2]) for row in rows) == len(measured)
    for one in measured:
        command = commands.of(one.claim)
        assert command is not None
        (row,) = (r for r in rows if r[0] == one.paper.title and f"[{command.experiment}]" in r[3])
        assert one.claim.source.partition(",")[0] in row[1]
        libraries = row[3].partition("libraries=[")[2].partition("]")[0].split(",")
        assert {*command.libraries} <= {*libraries}
    whole = page.split("All of them, with all libraries (")[1].split("```")[1]
    experiments = whole.partition("experiments=[")[2].partition("]")[0].split(",")
    assert sorted(experiments) == sorted({one.claim.reads.experiment for one in measured})


def test_the_table_has_a_row_for_every_outcome_and_for_claims_without_one(tmp_path: Path) -> None:
    results = evaluate(
        tables(make_rows(goodputs(1.2)), make_rows(goodputs(1.3, library="quinn"))),
        make_claim(),
        make_claim(id="two", needs="hosts"),
    )
    kept, parquet, csv = claims_report.write_table(results, tmp_path)
    table = pl.read_parquet(parquet)
    shown = table.select("claim", "verdict", "library", "in_population").rows()
    assert shown == [
        ("one", "holds", "quiche", True),
        ("one", "holds", "quinn", False),
        ("two", "not applicable", None, None),
    ]
    assert table["low"][0] < table["value"][0] < table["high"][0]
    assert len(pl.read_csv(csv)) == 3
    assert Verdicts.read(kept) == record_of(results)
    assert claims_report.frame(Verdicts.read(kept)).equals(table)


def test_the_command_prints_verdicts_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=6)
    assert cli.main(["claims", "--raw", str(raw)]) == 0
    said = capsys.readouterr().out
    # of the made-up runs NOOP gains 16 %, and ChaCha20-Poly1305 loses 12 %
    assert "  holds           fig3-noop-gain-quic" in said
    assert "  not measured    fig4-aes-small" in said
    assert "  not applicable  fig3-noenc-goodput" in said
    assert " 4782 Mbit/s (± 10 %)\n" in said
    assert "table1-ttfb" not in said
    assert "  table           table2-ttfb" in said
    assert "table2-ttfb-kyber512-quiche" not in said
    assert cli.main(["claims", "--raw", str(raw), "table2-ttfb", "fig3-aes-equal"]) == 0
    said = capsys.readouterr().out
    assert "table2-ttfb-kyber512-quiche" in said
    assert "fig3-aes-equal" in said
    assert "fig3-noop-gain-quic" not in said


def test_a_claim_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw").mkdir()
    assert cli.main(["claims", "--raw", str(tmp_path / "raw"), "fig3-aes-eqal"]) == 1
    assert "claim `fig3-aes-eqal` is unknown; did you mean `fig3-aes-equal`?" in capsys.readouterr().err


def test_a_claim_says_what_it_is_about() -> None:
    claim = Claim.model_validate(make_claim(predicate={"kind": "between", "low": 0.84, "high": 0.91, "slack": 0.02}))
    assert claims_report.bounds(claim) == "between 0.84 and 0.91 (± 0.02)"
    value = Claim.model_validate(make_claim(**ABSOLUTE))
    assert claims_report.bounds(value) == "4782 Mbit/s (± 10 %)"


def bare(misplaced: int, campaign: str = "c") -> pl.DataFrame:
    """The floor of a campaign whose bare sender sent 1000 packets evenly, of which so many were captured in a burst."""
    place: dict[str, Any] = dict.fromkeys(("testbed", "experiment", "origin", "qdisc"))
    series = place | {"campaign": campaign, "method": "sleep", "schedule": "even"}
    series |= {"intended_train_packets": 1, "intended_gap_ns": 302_800}
    points = [(details.DEVIATIONS, -20_000, 500), (details.DEVIATIONS, 20_000, 499)]
    points += [
        ("train_packets", 1, 1000 - misplaced),
        *([("train_packets", misplaced, misplaced)] if misplaced else []),
    ]
    rows = [series | {"quantity": name, "value": value, "count": count} for name, value, count in points]
    return pl.DataFrame(rows, schema=details.FLOORS)


@pytest.mark.parametrize(
    ("floors", "value", "verdict", "told"),
    [
        (bare(0), 0.999, "holds", ""),
        # 0.9 + 0.1 is where the floor of 100 in 1000 ends
        (bare(100), 0.999, "inconclusive", "is nearer to the bound than 0.1"),
        (bare(100), 0.5, "fails", ""),
        (bare(100), 0.85, "inconclusive", "is nearer to the bound than 0.1"),
        (bare(0, "another"), 0.999, "inconclusive", "the floor of the timers of this testbed was not measured"),
        (None, 0.5, "inconclusive", "below which nothing is claimed about gaps and trains"),
    ],
)
def test_what_is_below_the_floor_of_timers_is_not_claimed(
    floors: pl.DataFrame | None, value: float, verdict: str, told: str
) -> None:
    rows = make_rows({("quiche", "NOOP"): around(value, 0.0001)}, "packets_in_trains_to_5")
    beside = {} if floors is None else {"floors": floors}
    reads = {"experiment": "aead-goodput", "metric": "packets_in_trains_to_5"}
    at_least = {"kind": "at-least", "value": 0.9}
    (result,) = evaluate(tables(rows, **beside), make_claim(reads=reads, compare=[VALUE], predicate=at_least))
    assert (result.verdict, told in result.reason) == (verdict, True)


def test_the_floor_of_a_ratio_is_that_of_its_parts() -> None:
    values = {("quiche", "NOOP"): around(0.3, 0.0001), ("quiche", "AES-128-GCM"): around(0.2, 0.0001)}
    rows = make_rows(values, "gap_ms")
    reads = {"experiment": "aead-goodput", "metric": "gap_ms"}
    verdicts_ = []
    # 20 us are a tenth of one and a fifteenth of the other, so that 1.5 is good to 0.25
    for bound in (1.4, 1.2):
        claim = make_claim(reads=reads, predicate={"kind": "at-least", "value": bound})
        (result,) = evaluate(tables(rows, floors=bare(0)), claim)
        verdicts_.append(result.verdict)
    assert verdicts_ == ["inconclusive", "holds"]


def test_goodput_has_no_floor_of_timers() -> None:
    rows = make_rows({("quiche", "NOOP"): around(5.0)})
    claim = make_claim(compare=[VALUE], predicate={"kind": "at-least", "value": 4.9})
    (result,) = evaluate(tables(rows), claim)
    assert result.verdict == "holds"
