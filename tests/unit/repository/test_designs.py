"""The benchmark of designs: bytes until an interval is narrow, of values whose spread is known."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fakeruns
from benchmarks import bench as bench_module
from benchmarks import designs
from clone import ROOT
from quicbed.config.model import Project
from quicbed.store import runs

RANDOM = np.random.default_rng(4)
LOGS = RANDOM.normal(0, 0.1, size=400)
PAIR = np.array([LOGS, RANDOM.normal(7, 0.1, size=400)])


@pytest.mark.parametrize("count", [20, 100, 1000])
def test_half_widths_are_those_of_students_t(count: int) -> None:
    error = 0.1 / math.sqrt(count)
    paired = designs.half_width_paired(LOGS, count)
    assert paired == pytest.approx(1.98 * error, rel=0.1)
    # of two cells, and of the mean of 32 runs a repetition
    assert designs.half_width_apart(PAIR, count) == pytest.approx(1.97 * math.sqrt(2) * error, rel=0.1)
    many = designs.half_width_apart(PAIR, count, 32)
    assert many == pytest.approx(1.97 * math.sqrt(2 / 32) * error, rel=0.1)


def measured(tmp_path: Path, noise: float) -> list[designs.Needed]:
    """Of made-up runs of 256 MiB, whose blocks drift by more than they differ within."""
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=24, noise=noise, incidents=False, libraries=("quiche",))
    campaign = runs.select_campaign(runs.table(raw), "aead-goodput")
    return designs.needed(campaign, ["AES-256-GCM", "NOOP"], 10)


def test_paired_blocks_take_fewer_bytes_where_blocks_drift(tmp_path: Path) -> None:
    found = measured(tmp_path, 0.05)
    assert [(one.library, one.label) for one in found] == [("quiche", "AES-256-GCM"), ("quiche", "NOOP")]
    for one in found:
        assert one.paired < 0.5 * one.apart
        assert one.paired % (2 * 2**28) == 0
        assert one.long >= 2 * 2 * designs.REPETITION_BYTES
        assert one.reached["QUIC on the Highway"] < one.reached["A Quantum of QUIC"] < 0.05


def test_more_noise_takes_more_bytes_and_few_blocks_tell_nothing(tmp_path: Path) -> None:
    calm, noisy = (measured(tmp_path / str(noise), noise) for noise in (0.02, 0.1))
    assert all(few.paired < many.paired and few.apart < many.apart for few, many in zip(calm, noisy, strict=True))
    campaign = runs.select_campaign(runs.table(tmp_path / "0.02" / "raw"), "aead-goodput")
    assert designs.needed(campaign, ["NOOP"], 25) == []


def test_baselines_differ_by_as_much_as_the_machine_drifts_between_them() -> None:
    """Made-up runs whose goodput grows by 1 % with every run of a block."""
    rows = []
    for block, (first, second) in enumerate([(0, 1), (2, 4), (9, 1), (10, 30)]):
        for cell, arm, order in (("a", "main", first), ("b", "aa", second)):
            goodput = 1000 * math.exp(0.01 * order)
            row = {"cell": cell, "arm": arm, "block": block, "order": order, "goodput_mbps": goodput, "attempt": 1}
            rows.append({**row, "baseline": "a", "status": "ok", "contaminated": False})
    campaign = pl.DataFrame(rows, schema=runs.SCHEMA)
    found = designs.baselines_by_distance(campaign, parts=4)
    assert [(least, most) for least, most, _ in found] == [(1, 1), (2, 2), (8, 8), (20, 20)]
    assert [apart for *_, apart in found] == pytest.approx([0.01, 0.02, 0.08, 0.2])
    (together,) = designs.baselines_by_distance(campaign, parts=1)
    assert together == (1, 20, pytest.approx(0.05))


def test_the_benchmark_prints_every_design_and_what_papers_spend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(ROOT)
    project.root = tmp_path
    raw = tmp_path / "raw"
    (raw / "reference").mkdir(parents=True)
    assert bench_module.bench(project, ["designs"]) == 1
    assert "not run: raw/reference has no 10 blocks of aead-goodput" in capsys.readouterr().out
    fakeruns.write_campaign(raw, "aead-goodput", blocks=12, noise=0.05, incidents=False)
    fakeruns.archive(raw, "local", "aead-goodput", raw / "reference" / "aead-goodput.tar.gz")
    assert bench_module.bench(project, ["designs"]) == 0
    said = capsys.readouterr().out
    for text in ("paired  median ", "apart   median ", "long    median ", "(400 GiB)", "(800 GiB)"):
        assert text in said
    assert said.count(", target at most 1: ") == 3
    assert len(re.findall(r"(?m)^  \d+ to \d+ runs: \d+\.\d % in the middle$", said)) == 4
