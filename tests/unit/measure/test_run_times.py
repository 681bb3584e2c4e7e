"""What is kept of the reference data for saying when measuring will be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fakeproject
import fakeruns
from fakeproject import EXPERIMENT
from quicbed.config.model import Project
from quicbed.measure import run_times
from quicbed.measure.run_times import SHIPPED, Took, shipped

ONE, TWO = "aead-goodput", "header-protection"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With runs of two experiments as reference data."""
    project = fakeproject.make(tmp_path / "project", EXPERIMENT, monkeypatch)
    for name in (ONE, TWO):
        fakeruns.write_campaign(tmp_path / "raw", name)
        for file in (tmp_path / "raw" / "local" / name).glob("**/run.json"):
            run = json.loads(file.read_text(encoding="utf-8"))
            run["metrics"]["spent_s"] = 5.0
            file.write_text(json.dumps(run), encoding="utf-8")
        pack(project, tmp_path / "raw", name)
    return project


def pack(project: Project, raw: Path, experiment: str, name: str = "") -> None:
    target = project.root / "raw" / "reference" / f"{name or experiment}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    fakeruns.archive(raw, "local", experiment, target)


def count(project: Project) -> int:
    """Runs of which the times are known."""
    return sum(took.runs for took in shipped(project).values())


def test_shipped_runs_are_read_once_until_they_change(project: Project, tmp_path: Path) -> None:
    read = shipped(project)
    assert {json.loads(key)[0] for key in read} == {ONE, TWO}
    assert all(took.runs and took.spent_s > took.transfer_s > 0 for took in read.values())
    assert shipped(project) == read
    kept = project.build / SHIPPED
    told = json.loads(kept.read_text(encoding="utf-8"))
    # what was kept can be told from what is read by its being less
    first = dict(list(read.items())[:1])
    less = json.dumps(told | {"times": first})
    kept.write_text(less, encoding="utf-8")
    assert shipped(project) == first
    for damaged in (
        "",
        "{",
        "[]",
        json.dumps(told | {"times": 1}),
        json.dumps(told | {"times": {"a": [1, 2, 3, 4, 5]}}),
    ):
        kept.write_text(damaged, encoding="utf-8")
        assert shipped(project) == read, damaged
    kept.write_text(less, encoding="utf-8")
    runs = sum(took.runs for took in read.values())
    pack(project, tmp_path / "raw", ONE, "again")
    assert count(project) > runs
    assert count(project) > runs


def test_runs_in_directories_are_read_again_when_some_are_added(project: Project, tmp_path: Path) -> None:
    before = count(project)
    shutil.copytree(tmp_path / "raw" / "local", project.root / "raw" / "reference" / "local")
    assert count(project) == 2 * before
    assert count(project) == 2 * before


def test_without_reference_data_nothing_is_known(project: Project) -> None:
    shutil.rmtree(project.root / "raw" / "reference")
    assert shipped(project) == {}


def test_a_directory_that_cannot_be_written_costs_nothing_but_time(project: Project) -> None:
    shutil.rmtree(project.build, ignore_errors=True)
    project.build.write_text("", encoding="utf-8")
    assert {json.loads(key)[0] for key in shipped(project)} == {ONE, TWO}


def test_failed_runs_are_left_out_and_sizes_are_scaled(project: Project) -> None:
    raw = project.root / "raw" / "reference" / "local" / "mine" / "c0ffee00" / "b0000"
    for number, status in enumerate(("ok", "ok", "failed")):
        run = fakeruns.make_run(experiment="mine", status=status, workload={"bytes": 1000 << 20})
        run["metrics"] |= {"wall_s": 2.0, "spent_s": 3.0}
        (raw / str(number)).mkdir(parents=True)
        (raw / str(number) / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (mine,) = (took for key, took in shipped(project).items() if json.loads(key)[0] == "mine")
    assert mine == Took(2, 6.0, 4.0, 2000 << 20)
    assert mine.seconds(500 << 20) == pytest.approx(1 + 1)
    assert Took(2, 6.0).seconds(7) == pytest.approx(3)


def test_downloads_of_a_single_byte_tell_nothing_of_larger_ones() -> None:
    of = ("instructions", "main", ("quinn", "quinn"), "NOOP")
    assert run_times.key(*of, 1) != run_times.key(*of, 4 << 20)
    assert run_times.key(*of, 64 << 20) == run_times.key(*of, 4 << 20)
