"""Statistics with known answers."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fakeruns
from quicbed.analysis import comparison
from quicbed.base import statistics
from quicbed.config.model import Contrast
from quicbed.store import runs
from quicbed.store.record import Run


def test_a_constant_ratio_is_found_exactly_whatever_drifts_between_blocks() -> None:
    baseline = [(block, 100.0 * (block + 1)) for block in range(8)]
    interval = statistics.paired_ratio([(block, 1.25 * value) for block, value in baseline], baseline)
    assert interval.ratio == pytest.approx(1.25)
    assert interval.low == pytest.approx(1.25)
    assert interval.high == pytest.approx(1.25)
    assert interval.half_width == pytest.approx(0)
    assert interval.n == 8


def test_the_ratio_is_the_geometric_mean_of_the_ratios_of_shared_blocks() -> None:
    values = [(0, 2.0), (1, 8.0), (2, 999.0)]
    baseline = [(3, 5.0), (1, 1.0), (0, 1.0)]
    interval = statistics.paired_ratio(values, baseline)
    assert interval.ratio == pytest.approx(4.0)
    assert interval.n == 2


def test_exchanging_the_two_inverts_the_interval() -> None:
    random = np.random.default_rng(3)
    a = [(i, float(v)) for i, v in enumerate(random.lognormal(0.1, 0.05, 12))]
    b = [(i, float(v)) for i, v in enumerate(random.lognormal(0.0, 0.05, 12))]
    there, back = statistics.paired_ratio(a, b), statistics.paired_ratio(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


def test_the_order_of_the_pairs_does_not_matter() -> None:
    random = np.random.default_rng(4)
    values = [(i, float(v)) for i, v in enumerate(random.lognormal(0, 0.1, 10))]
    baseline = [(i, float(v)) for i, v in enumerate(random.lognormal(0, 0.1, 10))]
    once = statistics.paired_ratio(values, baseline)
    assert statistics.paired_ratio(values[::-1], baseline[3:] + baseline[:3]) == once


@pytest.mark.parametrize("n", [5, 10, 16, 25])
def test_the_interval_covers_the_truth_19_times_in_20(n: int) -> None:
    random = np.random.default_rng(n)
    trials, truth = 600, 1.15
    covered = 0
    for _ in range(trials):
        drift = random.normal(0, 0.1, n)
        values = np.exp(drift + random.normal(0, 0.02, n)) * truth
        baseline = np.exp(drift + random.normal(0, 0.02, n))
        interval = statistics.paired_ratio(enumerate(values), enumerate(baseline))
        covered += interval.low <= truth <= interval.high
    assert 0.923 <= covered / trials <= 0.977  # 0.95 within three standard errors


def test_one_pair_has_no_interval_and_never_stops_a_campaign() -> None:
    interval = statistics.paired_ratio([(0, 3.0)], [(0, 2.0)])
    assert interval.ratio == 1.5
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.half_width == math.inf
    nothing = statistics.paired_ratio([(0, 3.0)], [(1, 2.0)])
    assert nothing.n == 0
    assert math.isnan(nothing.ratio)
    assert nothing.half_width == math.inf


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_ratio_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="block 7"):
        statistics.paired_ratio([(7, value)], [(7, 1.0)])


def test_two_values_in_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="block 1 has two values"):
        statistics.paired_ratio([(1, 1.0), (1, 2.0)], [(1, 1.0)])


@pytest.mark.parametrize(("deviation", "half_width"), [(0.02, 0.01), (0.05, 0.01), (0.2, 0.01)])
def test_as_many_blocks_are_told_as_make_an_interval_narrow_enough(deviation: float, half_width: float) -> None:
    """Of made-up ratios with a known spread, intervals of so many blocks have the half width, and of a third not."""
    blocks = statistics.blocks_for(deviation, half_width)
    assert blocks is not None
    random = np.random.default_rng(5)

    def width(count: int) -> float:
        logs = random.normal(0, deviation, size=(40, count))
        ones = [(block, 1.0) for block in range(count)]
        found = [statistics.paired_ratio(enumerate(np.exp(one)), ones) for one in logs]
        return float(np.median([one.half_width for one in found]))

    assert width(blocks) == pytest.approx(half_width, rel=0.12)
    assert width(blocks // 3) > 1.4 * half_width
    # 1.96 standard errors, which a few blocks make more
    assert blocks == pytest.approx((1.96 * deviation / half_width) ** 2, rel=0.15, abs=3)


def test_blocks_that_cannot_be_asked_for_are_none() -> None:
    assert statistics.blocks_for(0.0, 0.01) == 2
    assert statistics.blocks_for(1e4, 0.01) is None
    assert statistics.blocks_for(math.nan, 0.01) is None


def test_a_ratio_has_the_deviation_of_its_blocks() -> None:
    ones = [(block, 1.0) for block in range(4)]
    logs = [0.1, -0.1, 0.3, -0.3]
    interval = statistics.paired_ratio([(block, math.exp(value)) for block, value in enumerate(logs)], ones)
    assert interval.deviation == pytest.approx(np.std(logs, ddof=1))
    assert math.isnan(statistics.paired_ratio(ones[:1], ones[:1]).deviation)


def spread_table(deviation: float, by_time: float, blocks: int) -> pl.DataFrame:
    """A table of made-up runs whose NOOP differs from its baseline by a known spread, with a known time of a block."""
    random = np.random.default_rng(8)
    logs, times = (_exactly(random.normal(size=blocks), spread) for spread in (deviation, by_time))
    rows = []
    for block in range(blocks):
        for label, goodput, per_cpu in (("AES", 1000.0, 2.0), ("NOOP", 1000 * logs[block], 2 * times[block])):
            rows.append(
                {
                    "experiment": "x",
                    "campaign": "c",
                    "block": block,
                    "arm": "main",
                    "label": label,
                    "cell": label,
                    "baseline": "AES",
                    "client_library": "quiche",
                    "server_library": "quiche",
                    "status": "ok",
                    "contaminated": False,
                    "goodput_mbps": goodput,
                    "gib_per_cpu_s": per_cpu,
                    "client_build": "b",
                    "wall_s": 5.0,
                    "overhead_s": 1.0,
                    "origin": f"{label}{block}",
                    "attempt": 0,
                }
            )
    complete = [{name: row.get(name) for name in runs.SCHEMA} for row in rows]
    return comparison.figure_table(pl.DataFrame(complete, schema=runs.SCHEMA, orient="row"))


def _exactly(draws: np.ndarray[Any, np.dtype[np.float64]], deviation: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.exp(deviation * (draws - draws.mean()) / draws.std(ddof=1))


def test_what_is_not_decided_says_how_many_blocks_and_hours_it_takes() -> None:
    table = spread_table(0.1, 0.05, blocks=20)
    contrast = Contrast(labels=["NOOP"], half_width=0.01)
    (row,) = comparison.undecided(table, contrast).to_dicts()
    assert (row["label"], row["baseline_label"], row["ratio_n"], row["wanted"]) == ("NOOP", "AES", 20, 0.01)
    assert row["half_width"] == pytest.approx(0.0468, rel=0.15)  # t of 19 degrees of freedom times 0.1 / sqrt(20)
    assert row["more_blocks"] == statistics.blocks_for(0.1, 0.01) - 20  # type: ignore[operator]
    assert 350 < row["more_blocks"] < 380  # (1.96 * 0.1 / 0.01)^2, and a few for Student's t
    assert row["more_hours"] == pytest.approx(row["more_blocks"] * 12 / 3600)
    assert row["cpu_more_blocks"] == statistics.blocks_for(0.05, 0.01) - 20  # type: ignore[operator]
    assert row["cpu_half_width"] < row["half_width"]


def test_what_is_narrow_enough_or_no_contrast_is_not_among_the_undecided() -> None:
    table = spread_table(0.1, 0.05, blocks=20)
    for contrast in (None, Contrast(labels=["AES"], half_width=0.01), Contrast(labels=["NOOP"], half_width=0.2)):
        assert comparison.undecided(table, contrast).is_empty()
    barely = comparison.undecided(table, Contrast(labels=["NOOP"], half_width=0.03))
    assert barely["more_blocks"][0] >= 1
    one_block = spread_table(0.1, 0.05, blocks=2).with_columns(pl.col("^ratio_.*$") * None)
    assert comparison.undecided(one_block, Contrast(labels=["NOOP"], half_width=0.01)).is_empty()


def table_of(documents: list[dict[str, Any]]) -> pl.DataFrame:
    rows = [runs.row(f"raw/{fakeruns.place(run)}", Run.made(run)) for run in documents]
    frame = pl.DataFrame([{c: row.get(c) for c in runs.SCHEMA} for row in rows], schema=runs.SCHEMA, orient="row")
    return frame.sort(runs.SORT, nulls_last=True)


def attempt(number: int, goodput: float, *, contaminated: bool = False, status: str = "ok") -> dict[str, Any]:
    run = fakeruns.make_run(attempt=number, contaminated=contaminated, status=status)
    run["metrics"] = run["metrics"] | {"goodput_mbps": goodput} if status == "ok" else {}
    return run


@pytest.mark.parametrize(
    ("attempts", "counts", "contaminated", "repeated", "failed"),
    [
        ([attempt(0, 1.0)], 1.0, 0, 0, 0),
        ([attempt(0, 1.0, contaminated=True), attempt(1, 2.0)], 2.0, 0, 1, 0),
        ([attempt(0, 1.0), attempt(1, 2.0)], 1.0, 0, 0, 0),
        ([attempt(n, float(n + 1), contaminated=True) for n in range(3)], 3.0, 1, 2, 0),
        ([attempt(0, 0, status="failed"), attempt(1, 2.0)], 2.0, 0, 0, 1),
        ([attempt(0, 1.0, contaminated=True), attempt(1, 0, status="failed")], 1.0, 1, 0, 1),
    ],
)
def test_which_attempt_of_a_block_counts(
    attempts: list[dict[str, Any]], counts: float, contaminated: int, repeated: int, failed: int
) -> None:
    table = table_of(attempts)
    assert comparison.counted(table)["goodput_mbps"].to_list() == [counts]
    row = comparison.figure_table(table).row(0, named=True)
    assert (row["n"], row["blocks"]) == (1, 1)
    assert (row["contaminated"], row["repeated"], row["failed"]) == (contaminated, repeated, failed)


def test_summary_of_known_values() -> None:
    documents = []
    for block, goodput in enumerate([40.0, 10.0, 30.0, 20.0, 100.0]):
        documents.append(attempt(0, goodput) | {"block": block})
    row = comparison.figure_table(table_of(documents)).row(0, named=True)
    assert row["n"] == row["blocks"] == 5
    assert (row["min"], row["q1"], row["median"], row["q3"], row["max"]) == (10, 20, 30, 40, 100)
    assert row["mean"] == pytest.approx(40)
    assert row["ratio"] is None


def test_counts_that_may_be_zero_have_no_ratio() -> None:
    documents = []
    for cell, baseline, errors in (("00000001", None, [4, 0]), ("00000002", "00000001", [2, 6])):
        for block, count in enumerate(errors):
            run = attempt(0, 10.0) | {"block": block, "host": {"delta": {"client.udp.RcvbufErrors": count}}}
            run["cell"] = run["cell"] | {"id": cell, "slug": cell, "label": cell, "baseline": baseline}
            documents.append(run)
    rows = comparison.figure_table(table_of(documents), "client_udp_receive_buffer_errors").rows(named=True)
    assert [(row["mean"], row["ratio"], row["ratio_n"]) for row in rows] == [(2, None, None), (4, None, 0)]
    # the goodput of the same runs has one
    assert [row["ratio"] for row in comparison.figure_table(table_of(documents)).rows(named=True)] == [None, 1.0]


def campaign_table(**options: Any) -> pl.DataFrame:
    return table_of(list(fakeruns.campaign("aead-goodput", **options)))


def test_ratios_recover_the_effects_put_in() -> None:
    table = comparison.figure_table(campaign_table(blocks=25, incidents=False))
    effects = {
        (label, arm): effect for label, _, baseline, arm, effect in fakeruns.EXPERIMENTS["aead-goodput"] if baseline
    }
    compared = table.filter(pl.col("ratio").is_not_null()).to_dicts()
    assert len(compared) == 3 * len(effects)
    for cell in compared:
        effect = effects[cell["label"], cell["arm"]]
        assert cell["ratio"] == pytest.approx(effect, rel=0.015)
        assert cell["baseline_label"] == "AES-128-GCM"
        assert cell["ratio_low"] < cell["ratio"] < cell["ratio_high"]
    # blocks drift by several percent; pairing takes that out
    assert max(cell["ratio_high"] / cell["ratio_low"] for cell in compared) < 1.025


def test_the_noise_floor_of_a_library_stands_in_all_its_rows() -> None:
    table = comparison.figure_table(campaign_table(blocks=6))
    floors = table.filter(pl.col("arm") == "aa")
    assert len(floors) == 3
    for floor in floors.to_dicts():
        same = table.filter(pl.col("client_library") == floor["client_library"])
        assert set(same["aa_low"]) == {floor["ratio_low"]}
        assert set(same["aa_high"]) == {floor["ratio_high"]}


def test_processor_time_is_the_twin_of_goodput() -> None:
    """The fixture's processor time per byte is the same share of the reciprocal of goodput in every run."""
    table = comparison.figure_table(campaign_table(blocks=6)).filter(pl.col("ratio").is_not_null())
    assert len(table) > 3
    for row in table.to_dicts():
        for name in ("ratio", "ratio_low", "ratio_high", "aa_ratio", "aa_low", "aa_high"):
            assert row[f"cpu_{name}"] == pytest.approx(row[name])
    made = fakeruns.make_run()
    (run,) = table_of([made]).to_dicts()
    spent = made["metrics"]["client_cpu_s"] + made["metrics"]["server_cpu_s"]
    assert run["gib_per_cpu_s"] == pytest.approx(made["metrics"]["bytes"] / 2**30 / spent)
    assert comparison.figure_table(campaign_table(blocks=2), "server_cpu_s")["cpu_ratio"].is_null().all()


def test_unsupported_and_excluded_cells_keep_their_row() -> None:
    table = campaign_table(blocks=2)
    row = comparison.figure_table(table).filter(pl.col("unsupported").is_not_null()).row(0, named=True)
    assert (row["client_library"], row["label"]) == ("quinn", "NOOP")
    assert row["unsupported"] == "quinn has no NOOP AEAD"
    assert row["n"] == row["blocks"] == 0
    unproven = fakeruns.make_run(block=None, order=None, status="failed", reason="no proof", metrics={})
    row = comparison.figure_table(table_of([unproven])).row(0, named=True)
    assert (row["n"], row["failed"], row["failure"]) == (0, 1, "no proof")


def test_rows_in_any_order_give_the_same_table() -> None:
    table = campaign_table(blocks=5)
    once = comparison.figure_table(table)
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=5)
    assert comparison.figure_table(shuffled).equals(once)


def test_warm_up_does_not_count() -> None:
    warm = fakeruns.make_run(block=None, order=None)
    warm["cell"] = warm["cell"] | {"arm": "warm-up"}
    assert comparison.counted(table_of([warm])).is_empty()


def test_a_newer_build_supersedes_the_older_cell() -> None:
    old, new = fakeruns.make_run(), fakeruns.make_run(block=1, started_at="2031-01-01T00:00:00Z")
    new["cell"] = new["cell"] | {"id": "00000002"}
    table = table_of([old, new])
    assert comparison.figure_table(table)["cell"].to_list() == ["00000002"]
    assert comparison.superseded(table)["cell"].to_list() == ["00000001"]


HOUR = timedelta(hours=1)


def selected(raw: Path) -> pl.DataFrame:
    return runs.select_campaign(runs.table(raw), "aead-goodput")


def test_a_reverted_build_is_shown_again_without_new_runs(tmp_path: Path) -> None:
    first = list(fakeruns.campaign("aead-goodput", blocks=2, incidents=False))
    second = list(fakeruns.campaign("aead-goodput", blocks=2, incidents=False, start=fakeruns.START + HOUR))
    for run in second:  # another build: other ids, later blocks
        cell = run["cell"]
        other = {"id": "b" + cell["id"][1:] + cell["id"][:1]}
        other["baseline"] = cell["baseline"] and "b" + cell["baseline"][1:] + cell["baseline"][:1]
        run |= {"cell": cell | other, "block": run["block"] + 2}
    for hours, plan in enumerate((first, second, first)):
        if hours < 2:
            for run in plan:
                fakeruns.write_run(tmp_path / "raw", run)
        fakeruns.write_session(tmp_path / "raw", "aead-goodput", fakeruns.plan(plan), fakeruns.START + hours * HOUR)
        campaign = selected(tmp_path / "raw")
        ids = {run["cell"]["id"] for run in plan}
        assert set(comparison.figure_table(campaign)["cell"]) == ids
        assert (
            set(comparison.superseded(campaign)["cell"])
            == {run["cell"]["id"] for run in (first + second if hours else [])} - ids
        )
    assert len(campaign) == len(first) + len(second)  # superseded runs are kept


def test_a_variant_removed_from_the_plan_is_superseded(tmp_path: Path) -> None:
    written = fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=2, incidents=False)
    kept = [cell for cell in fakeruns.plan(written) if cell["label"] != "AES-256-GCM"]
    fakeruns.write_session(tmp_path / "raw", "aead-goodput", kept, fakeruns.START + HOUR)
    campaign = selected(tmp_path / "raw")
    assert set(comparison.figure_table(campaign)["cell"]) == {cell["id"] for cell in kept}
    assert set(comparison.superseded(campaign)["label"]) == {"AES-256-GCM"}
    assert len(campaign) == len(written)


def test_baseline_label_and_arm_are_those_of_the_newest_plan(tmp_path: Path) -> None:
    written = fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=6, incidents=False)
    cells = {cell["id"]: dict(cell) for cell in fakeruns.plan(written)}
    by_label = {cell["label"]: cell for cell in cells.values() if cell["slug"].startswith("quiche-")}
    noop, chacha = by_label["NOOP"], by_label["ChaCha20-Poly1305"]
    noop |= {"baseline": chacha["id"], "label": "No AEAD", "arm": "control"}
    chacha["baseline"] = None
    before = comparison.figure_table(selected(tmp_path / "raw"))
    fakeruns.write_session(tmp_path / "raw", "aead-goodput", list(cells.values()), fakeruns.START + HOUR)
    after = comparison.figure_table(selected(tmp_path / "raw"))
    old, new = (table.filter(pl.col("cell") == noop["id"]).row(0, named=True) for table in (before, after))
    assert (old["label"], old["arm"], old["baseline_label"]) == ("NOOP", "main", "AES-128-GCM")
    assert (new["label"], new["arm"], new["baseline_label"]) == ("No AEAD", "control", "ChaCha20-Poly1305")
    assert new["ratio"] == pytest.approx(1.16 / 0.88, rel=0.03)
    alone = after.filter(pl.col("cell") == chacha["id"]).row(0, named=True)
    assert (alone["baseline"], alone["ratio"]) == (None, None)


def exclusion(number: int, status: str, reason: str) -> dict[str, Any]:
    moment = (fakeruns.START + number * HOUR).isoformat()
    place = {"block": None, "order": None, "attempt": number, "started_at": moment}
    return fakeruns.make_run(**place, status=status, reason=reason, metrics={})


def test_of_several_exclusions_of_a_cell_the_newest_says_why() -> None:
    documents = [exclusion(0, "failed", "old"), exclusion(1, "unsupported", "newer"), exclusion(10, "failed", "newest")]
    row = comparison.figure_table(table_of(documents)).row(0, named=True)
    assert (row["failed"], row["failure"], row["unsupported"]) == (1, "newest", None)
    row = comparison.figure_table(table_of(documents[:2])).row(0, named=True)
    assert (row["failed"], row["failure"], row["unsupported"]) == (0, None, "newer")


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_exclusions_count_for_nothing_once_the_cell_was_run(status: str) -> None:
    table = table_of([attempt(0, 5.0), exclusion(1, status, "no proof")])
    row = comparison.figure_table(table).row(0, named=True)
    assert (row["n"], row["failed"], row["failure"], row["unsupported"]) == (1, 0, None, None)


def test_figure_tables_are_written_byte_stable(tmp_path: Path) -> None:
    table = comparison.figure_table(campaign_table(blocks=3))
    for folder in ("a", "b"):
        comparison.write_figure_table(table, "aead-goodput", tmp_path / folder)
    for name in ("aead-goodput.parquet", "aead-goodput.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert pl.read_parquet(tmp_path / "a" / "aead-goodput.parquet").equals(table)
    header = (tmp_path / "a" / "aead-goodput.csv").read_text().splitlines()[0]
    assert header.split(",") == table.columns


def test_an_empty_campaign_gives_an_empty_table() -> None:
    assert comparison.figure_table(table_of([])).is_empty()
