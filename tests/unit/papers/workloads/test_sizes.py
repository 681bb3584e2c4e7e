"""Where the better of two changes: of runs that are made up, so that the size is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fakeruns
from quicbed.base.statistics import last_change
from quicbed.papers.workloads import sizes
from quicbed.store import runs

SIZES = (1_000, 100_000, 10_000_000, 1_000_000_000)
TURNS = 1_000_000
"""Size at which QUIC is as fast as TLS 1.2 in what is made up, in the middle of two sizes on a logarithmic axis."""


def ratio(size: int, noise: float = 0.0) -> float:
    """Throughput of QUIC by that of TLS 1.2: falls with the logarithm of the size, and is 1 at `TURNS`."""
    return math.exp(0.1 * math.log(TURNS / size) + noise)


def storage_runs(raw: Path, blocks: int = 4, lacking: tuple[str, int, int] | None = None) -> pl.DataFrame:
    """Runs of quinn and of both versions of TLS by size: QUIC is half as fast as TLS 1.3, and turns against TLS 1.2.

    *lacking* names the cell's version of TLS, size and block of a run that is not there.
    """
    for version in (None, "TLSv1.3", "TLSv1.2"):
        library = "quinn" if version is None else "tcp-tls"
        for size in SIZES:
            for block in range(blocks):
                if lacking == (str(version), size, block):
                    continue
                machine = 1000.0 * (block + 1)  # differs from block to block, and cancels within one
                noise = 0.05 * (-1) ** block
                rate = {None: machine * ratio(size, noise), "TLSv1.3": 2 * machine * ratio(size), "TLSv1.2": machine}
                made = fakeruns.make_run(
                    experiment="cloud-storage",
                    cell={
                        "id": f"{version}-{size}",
                        "slug": f"{version}-{size}",
                        "label": f"{size} B" + (", TLS 1.2" if version == "TLSv1.2" else ""),
                        "arm": "main",
                        "baseline": None,
                    },
                    client={"library": library, "flavour": "stock", "version": "1", "build": library},
                    server={"library": library, "flavour": "stock", "version": "1", "build": library},
                    block=block,
                    metrics=measured(rate[version], size, 4.0 if version is None else 2.0),
                )
                variant: dict[str, Any] = {"header_protection": True if version is None else None}
                variant |= {"tls_version": version} if version == "TLSv1.2" else {}
                made["variant"] = made["variant"] | variant
                made["workload"] = made["workload"] | {"bytes": size}
                fakeruns.write_run(raw, made)
    return runs.select_campaign(runs.table(raw), sizes.EXPERIMENT)


def measured(rate: float, size: int, cost: float) -> dict[str, float]:
    """Metrics of a run whose ends together take *cost* seconds of processor time for a GiB."""
    each = cost / 2 * size / 2**30
    return {"goodput_mbps": rate, "throughput_mbps": rate, "bytes": size, "client_cpu_s": each, "server_cpu_s": each}


def found(campaign: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    rows = sizes.changes(campaign, sizes.by_size(campaign)).to_dicts()
    return {(row["metric"], row["tls_version"]): row for row in rows}


def test_the_size_of_a_change_is_found_with_an_interval_around_it(tmp_path: Path) -> None:
    change = found(storage_runs(tmp_path))["throughput_mbps", "TLSv1.2"]
    # the noise of blocks cancels in their mean
    assert change["bytes"] == pytest.approx(TURNS)
    # 3.182 is Student's t; four logarithms of ± 0.05, of a ratio that changes by 0.1 with that of the size
    half = 3.182 * 0.05 * math.sqrt(4 / 3) / math.sqrt(4) / 0.1
    ends = TURNS * math.exp(-half), TURNS * math.exp(half)
    assert (change["low"], change["high"]) == pytest.approx(ends, rel=1e-3)
    assert (change["library"], change["against"], change["changes"]) == ("quinn", "tcp-tls", 1)
    assert (change["small_ratio"], change["large_ratio"]) == pytest.approx((ratio(SIZES[0]), ratio(SIZES[-1])))
    assert (change["smallest"], change["largest"], change["sizes"], change["blocks"]) == (SIZES[0], SIZES[-1], 4, 4)


def test_there_is_no_size_where_the_better_one_does_not_change(tmp_path: Path) -> None:
    changes = found(storage_runs(tmp_path))
    slower, dearer = changes["throughput_mbps", "TLSv1.3"], changes["cpu_s_per_gib", "TLSv1.2"]
    assert (slower["bytes"], slower["changes"]) == (None, 0)
    assert slower["large_ratio"] == pytest.approx(0.5)
    # less processor time is better
    assert (dearer["bytes"], dearer["small_ratio"]) == (None, pytest.approx(0.5))
    assert (slower["low"], slower["high"]) == (0, 0)


def test_only_blocks_with_all_sizes_count(tmp_path: Path) -> None:
    change = found(storage_runs(tmp_path, lacking=("TLSv1.2", SIZES[2], 3)))["throughput_mbps", "TLSv1.2"]
    assert change["blocks"] == 3


def test_one_block_has_no_interval(tmp_path: Path) -> None:
    change = found(storage_runs(tmp_path, blocks=1))["throughput_mbps", "TLSv1.2"]
    assert change["bytes"] == pytest.approx(TURNS * math.exp(0.5))
    assert (change["low"], change["high"]) == (None, None)


def test_both_versions_of_tls_are_told_apart(tmp_path: Path) -> None:
    table = sizes.by_size(storage_runs(tmp_path))
    assert set(table["metric"]) == set(sizes.METRICS)
    own = table.filter(pl.col("metric") == "cpu_s_per_gib")
    means = own.with_columns(pl.col("mean").round(6)).select("client_library", "tls_version", "mean")
    assert set(means.rows()) == {("quinn", None, 4.0), ("tcp-tls", "TLSv1.3", 2.0), ("tcp-tls", "TLSv1.2", 2.0)}


# ---- the statistic ---------------------------------------------------------------------------------------------------

AT = (0.0, 1.0, 2.0, 3.0)


def test_a_change_lies_on_the_line_between_two_means() -> None:
    change = last_change(AT, np.array([[3.0, 1.0, -3.0, -4.0], [5.0, 3.0, -3.0, -4.0]]))
    assert change.at == pytest.approx(1.4)
    assert change.changes == 1
    assert change.low < 1.4 < change.high


def test_of_several_changes_the_last_one_counts() -> None:
    change = last_change(AT, np.array([[-1.0, 1.0, -1.0, 1.0]] * 3))
    assert (change.at, change.changes) == (2.5, 3)
    assert (change.low, change.high) == (2.5, 2.5)


def test_a_mean_of_zero_is_where_it_changes_and_no_change_more() -> None:
    change = last_change(AT, np.array([[2.0, 0.0, -1.0, -1.0]] * 3))
    assert (change.at, change.changes) == (1.0, 1)


def test_an_end_that_is_not_decided_leaves_the_interval_open() -> None:
    values = np.array([[2.0, 1.0, 0.5, -1.0], [2.0, 1.0, 0.5, -1.0], [2.0, 1.0, 0.5, 0.9]])
    change = last_change(AT, values)
    assert change.high == math.inf
    assert 2 < change.at < 3
    assert math.isinf(last_change(AT, -values).high)


def test_the_interval_of_the_last_change_covers_the_true_one() -> None:
    rng = np.random.default_rng(7)
    truth, covered = 1.5, 0
    for _ in range(200):
        values = truth - np.array(AT) + rng.normal(0, 0.4, size=(10, len(AT)))
        change = last_change(AT, values)
        covered += change.low <= truth <= change.high
    # of 95 %, less five standard errors of 200 draws
    assert covered >= 200 * (0.95 - 5 * math.sqrt(0.95 * 0.05 / 200))
