"""The capacity of servers: rates at which TTFB doubles, costs and predictions of made-up runs with known answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import capacityruns
from capacityruns import LOADS, RATE
from quicbed.analysis import capacity
from quicbed.store import details, runs


def test_the_doubling_rate_is_interpolated_by_the_logarithm() -> None:
    assert capacity.doubling_rate([100, 200], [1, 4]) == pytest.approx(150)
    assert capacity.doubling_rate([100, 200, 300], [1, 2, 8]) == pytest.approx(200)
    assert capacity.doubling_rate([100, 200, 300], [1, 1.5, 1.9]) == math.inf


def test_a_slow_run_at_a_low_rate_is_noise() -> None:
    # 1, 3, 1.5 do not rise: what does not fall, and is nearest, is far below twice the first
    assert capacity.doubling_rate([100, 200, 300, 400], [1, 3, 1 / 3, 16]) == pytest.approx(325)


def test_the_interval_is_that_of_blocks() -> None:
    same = [(100.0, [1.0] * 5), (200.0, [4.0] * 5)]
    assert capacity.doubling(same) == pytest.approx((150, 150, 150))
    differing = [(100.0, [1.0] * 5), (200.0, [3.0, 3.5, 4.0, 4.5, 5.0])]
    rate, low, high = capacity.doubling(differing)
    assert low < rate < high
    assert rate == pytest.approx(150)
    rate, low, high = capacity.doubling([(100.0, [1.0] * 5), (200.0, [1.0, 1.0, 4.0, 4.0, 4.0])])
    assert (rate, high) == (pytest.approx(150), math.inf)
    assert math.isnan(capacity.doubling([(100.0, [1.0]), (200.0, [4.0])])[1])


def series(tmp_path: Path, **options: Any) -> Mapping[tuple[str, str], dict[str, Any]]:
    campaign, primitives = capacityruns.measured(tmp_path, **options)
    table = capacity.by_series(campaign, primitives)
    return {(one["server_library"], one["label"]): one for one in table.to_dicts()}


def test_costs_and_rates_are_those_of_the_runs_and_predicted_by_the_primitives(tmp_path: Path) -> None:
    found = series(tmp_path)
    assert set(found) == {(server, label) for server in ("quiche", "quinn") for label in ("RSA", "ML-DSA")}
    rsa, mldsa = found["quiche", "RSA"], found["quiche", "ML-DSA"]
    assert rsa["server_cpu_ms"] == pytest.approx(1.0)
    assert rsa["cores"] == pytest.approx(10)
    assert mldsa["server_cpu_ms"] == pytest.approx(0.7)
    # sign 0.6 ms against 0.2 ms: the means of the primitives, not their medians, where nothing has disturbed them
    assert mldsa["predicted_cpu_ms"] == pytest.approx(0.6)
    assert mldsa["predicted_cores"] == pytest.approx(6)
    assert rsa["predicted_cpu_ms"] is None
    # p99 is 1, 1, 2 and 8 ms at the loads
    assert rsa["doubling_per_s"] == pytest.approx(RATE * LOADS[2])
    assert (rsa["doubling_low"], rsa["doubling_high"]) == pytest.approx((RATE * LOADS[2],) * 2)
    assert mldsa["predicted_doubling"] == pytest.approx(RATE * LOADS[2] / 0.6)
    assert (rsa["peak_mib"], rsa["n"]) == (64, 3)


def test_a_server_that_never_gets_slow_has_no_doubling_rate(tmp_path: Path) -> None:
    found = series(tmp_path, p99_ms=[1, 1, 1.5, 1.9])["quiche", "RSA"]
    assert found["doubling_per_s"] is found["doubling_high"] is None
    assert (found["lowest_p99_ms"], found["highest_rate"]) == (1, RATE * LOADS[-1])


def test_without_a_run_at_the_lowest_rate_nothing_is_twice_that(tmp_path: Path) -> None:
    found = series(tmp_path, behind={("RSA", LOADS[0])})
    assert found["quiche", "RSA"]["lowest_p99_ms"] is found["quiche", "RSA"]["doubling_per_s"] is None
    assert found["quiche", "RSA"]["server_cpu_ms"] == pytest.approx(1.0)
    assert found["quiche", "ML-DSA"]["predicted_doubling"] is None


def test_a_run_whose_client_fell_behind_is_no_data_point(tmp_path: Path) -> None:
    campaign, _ = capacityruns.measured(tmp_path, behind={("RSA", LOADS[-1])})
    cells = capacity.by_rate(campaign).filter(pl.col("signature") == "rsa-2048")
    last = cells.filter(pl.col("load") == LOADS[-1]).to_dicts()
    assert [(one["n"], one["failed"], one["p99_ms"]) for one in last] == [(0, 3, None)] * 2
    assert {one["failure"] for one in last} == {"the client fell behind"}
    assert cells.filter(pl.col("load") == LOADS[2])["p99_ms"].to_list() == [2, 2]


def test_a_rate_whose_client_fell_behind_in_one_block_is_no_data_point_either(tmp_path: Path) -> None:
    """Chance has chosen the runs of the other blocks."""
    p99_ms = [1, 1, 1.5, 8]
    whole = series(tmp_path / "whole", p99_ms=p99_ms)["quiche", "RSA"]
    behind = {("RSA", LOADS[-1])}
    part = series(tmp_path / "part", p99_ms=p99_ms, behind=behind, blocks_behind=[1])["quiche", "RSA"]
    assert (whole["highest_rate"], part["highest_rate"]) == (RATE * LOADS[-1], RATE * LOADS[-2])
    assert whole["doubling_per_s"] is not None
    assert part["doubling_per_s"] is None
    # what a connection costs is no matter of when it begins
    assert part["server_cpu_ms"] == whole["server_cpu_ms"]
    cells = capacity.by_rate(runs.table(tmp_path / "part" / "raw"))
    assert (
        cells.filter((pl.col("signature") == "rsa-2048") & (pl.col("load") == LOADS[-1]))
        .select("n", "failed", "behind")
        .rows()
        == [(2, 1, 1)] * 2
    )


def test_no_cost_below_zero_is_predicted(tmp_path: Path) -> None:
    campaign, primitives = capacityruns.measured(tmp_path)
    longer = pl.when(pl.col("name") == "rsa-2048").then(20).otherwise(1)
    table = capacity.by_series(campaign, primitives.with_columns(pl.col("mean_ns") * longer))
    assert table["predicted_cpu_ms"].null_count() == len(table)


def test_without_primitives_nothing_is_predicted(tmp_path: Path) -> None:
    campaign, primitives = capacityruns.measured(tmp_path)
    table = capacity.by_series(campaign, primitives.filter(pl.col("operation") != "sign"))
    assert table["predicted_cpu_ms"].null_count() == len(table)


def test_all_processors_are_compared_with_one(tmp_path: Path) -> None:
    capacityruns.write_scaling(tmp_path)
    campaign = runs.select_campaign(runs.table(tmp_path), capacity.CORES)
    found = capacity.by_series(campaign, details.read(tmp_path).primitives)
    assert found["copies"].value_counts().sort("copies").rows() == [(1, 2), (capacityruns.COPIES, 2)]
    table = capacity.on_all_processors(found)
    assert table["server_library"].to_list() == ["quiche", "quinn"]
    for one in table.to_dicts():
        times = capacityruns.SCALING[one["server_library"]]
        assert (one["label"], one["copies"], one["n"]) == ("RSA", capacityruns.COPIES, 3)
        assert (one["times"], one["times_low"], one["times_high"]) == pytest.approx((times,) * 3)
        assert one["cost_ratio"] == pytest.approx(1.1)
        assert len(set(one["cells"].split(","))) == 2 * len(LOADS)
    # a server that is measured on one processor alone is not in it
    assert capacity.on_all_processors(found.filter(pl.col("copies") == 1)).is_empty()


def test_the_memory_of_a_connection_has_its_interval_over_blocks(tmp_path: Path) -> None:
    capacityruns.write(tmp_path / "raw")
    rates = capacity.by_rate(runs.select_campaign(runs.table(tmp_path / "raw"), capacity.EXPERIMENT))
    capacityruns.write_held(tmp_path / "raw", failed=["quinn"])
    campaign = runs.select_campaign(runs.table(tmp_path / "raw"), capacity.EXPERIMENT)
    table = capacity.by_memory(campaign)
    rsa, mldsa = table.filter(server_library="quiche").sort("label", descending=True).to_dicts()
    assert (rsa["label"], mldsa["label"]) == ("RSA", "ML-DSA")
    assert (rsa["n"], rsa["connections"], rsa["failed"]) == (3, capacityruns.HELD, 0)
    assert rsa["bytes_per_connection"] == pytest.approx(21 * 1024)
    assert rsa["bytes_low"] < rsa["bytes_per_connection"] < rsa["bytes_high"]
    assert rsa["none_bytes"] == capacityruns.NONE_BYTES
    assert rsa["held_bytes"] == pytest.approx(capacityruns.NONE_BYTES + capacityruns.HELD * 21 * 1024)
    assert mldsa["bytes_per_connection"] == pytest.approx(26 * 1024)
    lost = table.filter(server_library="quinn").to_dicts()
    assert [(one["n"], one["failed"], one["failure"]) for one in lost] == [(0, 3, "ended while it was held open")] * 2
    # rates are those of connections that end with their answers
    assert capacity.by_rate(campaign).equals(rates)
