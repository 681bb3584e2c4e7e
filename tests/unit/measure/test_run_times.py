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
from quicbed.measure.run_times import SHIPPED, Finished, shipped
from quicbed.store.record import Run

ONE, TWO = "aead-goodput", "header-protection"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With runs of two experiments as reference data."""
    project = fakeproject.make(tmp_path / "project", EXPERIMENT, monkeypatch)
    for name in (ONE, TWO):
        fakeruns.write_campaign(tmp_path / "raw", name)
        pack(project, tmp_path / "raw", name)
    return project


def pack(project: Project, raw: Path, experiment: str, name: str = "") -> None:
    target = project.root / "raw" / "reference" / f"{name or experiment}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    fakeruns.archive(raw, "local", experiment, target)


def test_shipped_runs_are_read_once_until_they_change(project: Project, tmp_path: Path) -> None:
    read = list(shipped(project))
    assert {run.experiment for run in read} == {ONE, TWO}
    assert any(run.value for run in read)
    assert list(shipped(project)) == read
    kept = project.build / SHIPPED
    told = json.loads(kept.read_text(encoding="utf-8"))
    # what was kept can be told from what is read by its being less
    less = json.dumps(told | {"runs": told["runs"][:1]})
    kept.write_text(less, encoding="utf-8")
    assert list(shipped(project)) == read[:1]
    for damaged in ("", "{", "[]", json.dumps(told | {"runs": 1}), json.dumps(told | {"runs": [[1]]}), less + "x"):
        kept.write_text(damaged, encoding="utf-8")
        assert list(shipped(project)) == read, damaged
    kept.write_text(less, encoding="utf-8")
    pack(project, tmp_path / "raw", ONE, "again")
    assert len(list(shipped(project))) > len(read)
    assert len(list(shipped(project))) > len(read)


def test_runs_in_directories_are_read_again_when_some_are_added(project: Project, tmp_path: Path) -> None:
    count = len(list(shipped(project)))
    shutil.copytree(tmp_path / "raw" / "local", project.root / "raw" / "reference" / "local")
    assert len(list(shipped(project))) == 2 * count
    assert len(list(shipped(project))) == 2 * count


def test_without_reference_data_nothing_is_known(project: Project) -> None:
    shutil.rmtree(project.root / "raw" / "reference")
    assert list(shipped(project)) == []


def test_a_directory_that_cannot_be_written_costs_nothing_but_time(project: Project) -> None:
    shutil.rmtree(project.build, ignore_errors=True)
    project.build.write_text("", encoding="utf-8")
    assert len({run.experiment for run in shipped(project)}) == 2


def test_only_runs_that_count_have_a_value() -> None:
    def value(**changes: object) -> float | None:
        return Finished.of(Run.made(fakeruns.make_run(**changes))).value

    assert value() is not None
    assert value(contaminated=True) is None
    assert value(status="failed") is None
