"""Experiments whose runs are measured in pairs, by the driver, with endpoints that misbehave on demand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakedriver
import fakeproject
from fakeproject import behave, orders, run, runs
from faketestbed import FakeProcess, FakeTestbed, Sending
from killed import processes
from quicbed.analysis import comparison
from quicbed.config.model import ConfigError, Project
from quicbed.measure import concurrent_pair, endpoint_pair, stored_pairs
from quicbed.measure.attempt import MeasureError
from quicbed.plan import estimate
from quicbed.plan.cells import Cell, builds_needed, campaign_of, cells_of
from quicbed.plan.spec import run_spec
from quicbed.store import runs as stored_runs
from quicbed.store.record import Run
from quicbed.testbed import Exit
from quicbed.testbed.agent import cpu_seconds

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: NOOP, cipher: aes-128-gcm, aead: noop, header_protection: false}
baseline: AES-128-GCM
paired: concurrent
contrast: {labels: [NOOP], half_width: 0.5}
scales:
  tiny: {bytes: 1000000, blocks: 2, timeout_s: 5}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return prepared(tmp_path, EXPERIMENT, monkeypatch)


def prepared(directory: Path, experiment: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    made = fakeproject.make(directory, experiment, monkeypatch)
    monkeypatch.setattr(FakeProcess, "sample_cpu", lambda self: cpu_seconds(self.pid))
    monkeypatch.setattr(endpoint_pair, "READY_TIMEOUT", 20.0)
    # on a busy machine a program may take much longer than the one beside it
    monkeypatch.setattr(concurrent_pair, "LEAST_OVERLAP", 0.0)
    for flavour in ("stock", "noop"):
        behave(made, "quinn", flavour, client=["lasting"])
    return made


def pairs(project: Project) -> list[dict[str, Run]]:
    """Both runs of every pair that is stored, in the order of blocks."""
    directories = sorted(file.parent.parent for file in project.raw.glob("local/test/*/b*/[!.]*/a/run.json"))
    return [dict(stored_pairs.read(directory)) for directory in directories]


def planned(project: Project) -> list[Cell]:
    return cells_of(project, "test", "0123abcd", {})


# ---- planning --------------------------------------------------------------------------------------------------------


def test_every_compared_cell_has_a_baseline_of_its_own(project: Project) -> None:
    cells = planned(project)
    assert [(cell.label, cell.arm) for cell in cells] == [
        ("AES-128-GCM", "beside"),
        ("NOOP", "main"),
        ("AES-128-GCM", "beside"),
        ("AES-128-GCM", "aa"),
    ]
    assert [cell.baseline for cell in cells] == [None, cells[0].id, None, cells[2].id]
    assert len({cell.id for cell in cells}) == len({cell.slug for cell in cells}) == 4
    alone = Project(project.root)
    alone.experiments["test"] = alone.experiments["test"].model_copy(update={"paired": None})
    facts = {"host_id": "a", "cpu_model": "b", "kernel": "c", "microcode": "d", "memory": "e"}
    assert campaign_of(alone, "test", facts)[0] != campaign_of(project, "test", facts)[0]
    told, minutes, _ = estimate.of_measuring(project, "test")
    assert "2 concurrent pairs of runs, 2 blocks" in told
    assert minutes > 0


def test_a_variant_may_be_compared_with_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    against = EXPERIMENT.replace("[quinn]", "[quinn, tcp-tls]\ndefaults: {against: tcp-tls}")
    against = against.replace("labels: [NOOP]", "labels: [AES-128-GCM, NOOP]")
    against = against.replace("aead: noop", "baseline: AES-128-GCM, aead: noop")
    project = prepared(tmp_path, against, monkeypatch)
    cells = planned(project)
    by_id = {cell.id: cell for cell in cells}
    assert len(by_id) == len({cell.slug for cell in cells}) == 10
    compared = [(cell, by_id[cell.baseline]) for cell in cells if cell.baseline is not None]
    assert [(a.client.library, a.label, a.arm, b.client.library, b.label) for a, b in compared] == [
        ("quinn", "AES-128-GCM", "main", "tcp-tls", "AES-128-GCM"),
        ("quinn", "NOOP", "main", "tcp-tls", "AES-128-GCM"),
        ("quinn", "AES-128-GCM", "aa", "quinn", "AES-128-GCM"),
        # of the other library itself, the same beside the same is the A/A arm
        ("tcp-tls", "NOOP", "main", "tcp-tls", "AES-128-GCM"),
        ("tcp-tls", "AES-128-GCM", "aa", "tcp-tls", "AES-128-GCM"),
    ]
    # what runs beside is built also where its library is not chosen
    alone = Project(project.root, {"libraries": ["quinn"]})
    assert {("quinn", "stock"), ("quinn", "noop"), ("tcp-tls", "stock")} == set(builds_needed(alone, ["test"]))
    assert "3 concurrent pairs of runs" in estimate.of_measuring(alone, "test")[0]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("kind: bulk", "kind: handshake", "paired: needs workload.kind `bulk`"),
        ("contrast: {labels: [NOOP], half_width: 0.5}", "", "paired: `contrast` names what is compared; add it"),
        ("paired: concurrent", "paired: concurrent\nping: true", "paired: two runs at the same time have no ping"),
        ("paired: concurrent", "paired: concurrent\ncapture: 1", "paired: two runs at the same time have no capture"),
        ("paired: concurrent", "paired: concurrent\nfailures: findings", "paired: .* leave out failures: findings"),
        ("paired: concurrent", "paired: one-after-the-other", "paired: Input should be 'concurrent'"),
        ("paired: concurrent", "paired: concurrent\nalone: other", "alone: `other` is unknown; known are test"),
        ("paired: concurrent", "alone: test", "alone: is only for experiments that are `paired`"),
        ("header_protection: false", "header_protection: false, mtu: 9000", "`NOOP` and `AES-128-GCM` share the link"),
        ("header_protection: false", "header_protection: false, bytes: 1000", "paired: `NOOP` has bytes"),
        ("header_protection: false", "header_protection: false, against: quinnn", "`quinnn` is unknown; did you mean"),
        ("paired: concurrent", "defaults: {against: quinn}", "`AES-128-GCM`: against needs `paired`"),
        (
            "baseline: AES-128-GCM",
            "  - {label: AES-256-GCM, cipher: aes-256-gcm}\nbaseline: AES-128-GCM",
            "paired: `AES-256-GCM` is in no pair; add it to contrast.labels",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(project: Project, old: str, new: str, problem: str) -> None:
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(EXPERIMENT.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        Project(project.root)


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_pairs_are_measured_stored_and_read(project: Project) -> None:
    testbed = Sending()
    run(project, testbed)
    # on a busy machine one may fail, and is repeated
    found = [one for one in pairs(project) if all(run.status == "ok" for run in one.values())]
    assert len(found) == 4
    for one in found:
        a, b = one["a"], one["b"]
        assert (a.cell.arm, a.cell.baseline) == ("beside", None)
        assert b.cell.baseline == a.cell.id
        assert a.together is not None
        assert b.together is not None
        assert a.together.pair == b.together.pair
        assert (a.together.beside, b.together.beside) == ("b", "a")
        assert a.together.processors == testbed.pinned
        assert a.together.first is not b.together.first
        assert a.evidence.proof
        assert b.evidence.proof
        assert (a.block, a.attempt) == (b.block, b.attempt)
    for cell in {one["b"].cell.id for one in found}:
        first = [one["b"].together.first for one in found if one["b"].cell.id == cell and one["b"].together]
        assert sorted(first) == [False, True], "the slot alternates by block"
    for order in orders(project):
        assert len(order) == 4
        assert {(one["a"].cell.id, one["b"].cell.id) for one in found} == set(zip(order[::2], order[1::2], strict=True))
    # what is beside is warmed up once, and proven once
    assert len(list(project.raw.glob("local/test/*/warm-up/*/run.json"))) == 1
    assert len(runs(project, "proofs/*")) == 2
    before = {file: file.stat().st_mtime_ns for file in project.raw.rglob("run.json")}
    run(project, testbed)
    assert {file: file.stat().st_mtime_ns for file in project.raw.rglob("run.json")} == before

    table = stored_runs.table(project.raw)
    paired = table.filter(pl.col("pair").is_not_null())
    assert paired.height == 8
    assert paired["goodput_mbps"].null_count() == 8, "what shares processors has no goodput of its own"
    assert paired["pair_overlap"].null_count() == 0
    assert paired["planned"].all()
    shown = comparison.figure_table(stored_runs.select_campaign(table, "test"), comparison.TWIN)
    compared = {row["label"]: row for row in shown.filter(pl.col("arm") != "beside").to_dicts()}
    assert compared["NOOP"]["ratio_n"] == compared["AES-128-GCM"]["ratio_n"] == 2
    assert compared["NOOP"]["aa_low"] == compared["AES-128-GCM"]["ratio_low"] is not None
    by_hand = [
        (one["b"].cell.label, stored_pairs.per_byte(one["a"]) / stored_pairs.per_byte(one["b"]))
        for one in found
        if one["b"].cell.label == "NOOP"
    ]
    assert compared["NOOP"]["ratio"] == pytest.approx((by_hand[0][1] * by_hand[1][1]) ** 0.5)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ({"client": ["lasting", "crash", "lasting"]}, "arm b: failed: the client was killed by SIGSEGV"),
        ({"client": ["lasting", "hang", "lasting"]}, "arm b: failed: the client hung"),
        ({"client": ["lasting", "wrong-cipher", "lasting"]}, "arm b: failed: evidence: the client reports cipher"),
        (
            {"client": ["lasting"], "server": ["ok", "crash", "ok"]},
            "arm b: failed: the server ended before it was ready; the server exited with 1",
        ),
        ({"client": ["lasting", "trailing", "lasting"]}, "one arm transferred alone for"),
    ],
)
def test_nothing_counts_of_a_pair_of_which_one_arm_fails(
    project: Project, behaviour: dict[str, list[str]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason.startswith("one arm"):
        monkeypatch.setattr(concurrent_pair, "LEAST_OVERLAP", 0.45)
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(EXPERIMENT.replace("timeout_s: 5", "timeout_s: 2"), encoding="utf-8")
    project = Project(project.root)
    behave(project, "quinn", "noop", **behaviour)
    if "cipher" in reason:
        with pytest.raises(MeasureError, match="client reports cipher"):
            run(project, Sending())
    else:
        run(project, Sending())
    mine = [one for one in pairs(project) if one["b"].cell.label == "NOOP"]
    assert [one["b"].status for one in mine] == ["failed", "ok", "ok"]
    assert [(one["b"].block, one["b"].attempt) for one in mine] == [(0, 0), (0, 1), (1, 0)]
    assert str(mine[0]["a"].reason).startswith(reason)
    assert mine[0]["a"].status == "failed"
    if reason.startswith("one arm"):
        sizes = [one["b"].workload.bytes for one in mine]
        assert sizes[1] < sizes[0], "both are about equally long the next time"
    assert processes(f"{project.build}/") == []


def test_a_pair_that_is_disturbed_counts_and_says_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sending, "disturbances", lambda _self, _delta: ["something else was going on"])
    run(project, Sending())
    found = pairs(project)
    assert len(found) == 4
    assert all(run.contamination == ["something else was going on"] for one in found for run in one.values())


class Ending(FakeProcess):
    """Is about to end: the kernel tells nothing of it any more, and that it has ended only when asked again."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0

    def poll(self) -> Exit | None:
        self.asked += 1
        return Exit(0, 1.0, 0.5, 1) if self.asked > 1 else None

    def sample_cpu(self) -> float | None:
        return None


def test_a_client_has_ended_only_if_its_processor_time_is_known(project: Project, tmp_path: Path) -> None:
    (first, *_) = planned(project)
    spec = run_spec(project, project.experiments["test"], first, project.scale("test"))
    specs = dict.fromkeys(concurrent_pair.ARMS, spec)
    pair = concurrent_pair.Together(
        project, Sending(), specs, dict.fromkeys(specs, tmp_path), first="a", pins={"client": 0, "server": 0}
    )
    for arm in pair._arms.values():
        arm.processes["client"] = Ending()
    first_sample, second = pair._sample(), pair._sample()
    assert "a" not in first_sample.ended
    assert "a" in second.ended
    assert second.used["a", "client"] == 1.5


def test_where_programs_cannot_be_kept_to_processors_nothing_is_measured(project: Project) -> None:
    for testbed, reason in ((FakeTestbed(), "does not keep programs to processors"), (Sending(), "one core")):
        if isinstance(testbed, Sending):
            testbed.pinned = (
                "each end needs a core of its own, and this process may use 1 of 1 processors, all of one core"
            )
        shutil.rmtree(project.raw, ignore_errors=True)
        marker = run(project, testbed)
        assert len(marker["excluded"]) == 4
        assert all(reason in told for told in marker["excluded"].values())
        assert pairs(project) == []
        assert runs(project, "proofs/*") == []
        assert {entry["status"] for entry in runs(project)} <= {"unsupported"}


def test_a_cell_whose_other_half_is_not_proven_is_not_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(project, "quinn", "noop", client=["crash"])
    with pytest.raises(MeasureError, match="quinn-noop: not measured"):
        run(project, Sending())
    assert {one["b"].cell.arm for one in pairs(project)} == {"aa"}
    excluded = [Run.read(file) for file in project.raw.glob("local/test/*/excluded/*/run.json")]
    assert {(one.cell.label, one.cell.arm) for one in excluded} == {("NOOP", "main"), ("AES-128-GCM", "beside")}
    assert any("NOOP, which it is paired with: " in (one.reason or "") for one in excluded)


def test_it_ends_when_the_interval_is_narrow_enough(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(EXPERIMENT.replace("blocks: 2", "blocks: 5, min_blocks: 2"), encoding="utf-8")
    used = iter([1.0] * 1000)
    monkeypatch.setattr(stored_pairs, "per_byte", lambda *_: next(used))
    run(Project(project.root), Sending())
    assert len(orders(project)) == 2


def test_half_a_pair_is_named(project: Project) -> None:
    run(project, Sending())
    lost = next(project.raw.glob("local/test/*/b0001/*/a/run.json"))
    lost.unlink()
    with pytest.raises(MeasureError, match=f"{lost}: is damaged"):
        run(project, Sending())


def test_a_killed_driver_goes_on(project: Project, tmp_path: Path) -> None:
    argv = [sys.executable, fakedriver.__file__, str(project.root), str(tmp_path / "marker"), "paired"]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as driver:
        deadline = time.monotonic() + 60
        # while the second pair runs
        while len(pairs(project)) < 1 or not list(project.raw.glob("local/test/*/b*/.*/*/client.jsonl")):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        driver.send_signal(signal.SIGKILL)
    before = {one["b"].together.pair: one for one in pairs(project) if one["b"].together}
    assert list(project.raw.glob("local/test/*/b*/.*")), "half a pair was there"
    run(project, Sending())
    after: dict[Any, Any] = {one["b"].together.pair: one for one in pairs(project) if one["b"].together}
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    assert not list(project.raw.glob("local/test/*/b*/.*"))
