"""All that a driver stores, with each of its steps on the file system failing once, or with the driver killed there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import fakeproject
import killed
from failingsteps import ENOUGH, KilledError, Steps
from quicbed.base.untrusted import read
from quicbed.config.model import Project
from quicbed.measure.attempt import MeasureError
from quicbed.store import runs
from quicbed.store.record import Run

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [quiche]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
baseline: AES-128-GCM
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 1}
"""


@pytest.fixture(autouse=True)
def nothing_is_left_running(tmp_path: Path) -> Iterator[None]:
    """A driver that is killed by an exception ends nothing."""
    yield
    for pid in killed.processes(f"{tmp_path}/"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [False, True])
def test_no_step_of_a_driver_loses_a_run_and_the_next_start_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    fakeproject.prove(monkeypatch)
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    fakeproject.run(project)  # builds are made
    whole = shape(project)
    for number in range(ENOUGH):
        shutil.rmtree(project.raw)
        (tmp_path / "marker.json").unlink()
        with monkeypatch.context() as patched:
            steps = Steps(patched, kills=kills, below=project.raw)
            steps.left = number
            try:
                fakeproject.run(project)
                failed = False
            except (MeasureError, OSError, KilledError):
                failed = True
        kept = {file: read(file) for file in finished(project)}
        for content in kept.values():
            Run.parse(content)
        fakeproject.run(project)
        assert {file: read(file) for file in kept} == kept, number
        assert shape(project) == whole, number
        assert not list(project.raw.rglob(".*.partial")), number
        assert not runs.problems(runs.table(project.raw)), number
        if not failed and steps.left >= 0:
            assert number > 50
            return
    pytest.fail(f"more than {ENOUGH} steps")


def finished(project: Project) -> list[Path]:
    """Every run that has its name."""
    return [file for file in project.raw.rglob("run.json") if ".partial" not in str(file)]


def shape(project: Project) -> list[str]:
    """Successful proofs and runs that count, by arm and cell; a warm-up that fails is not made again."""
    table = runs.table(project.raw).filter(pl.col("arm") != "warm-up", pl.col("status") == "ok")
    return sorted(f"{arm} {cell}" for arm, cell in table.select("arm", "cell").rows())
