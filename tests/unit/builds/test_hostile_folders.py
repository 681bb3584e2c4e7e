"""What identifies the folder of an external endpoint is all that may run, and it is looked at while it is measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import fakeproject
from clone import EXTERNAL, ROOT
from fakeproject import EXPERIMENT, described, outside
from faketestbed import FakeTestbed
from quicbed.builds import making
from quicbed.builds.recipes import external
from quicbed.config.model import Project
from quicbed.measure import campaign as campaigns
from quicbed.measure import sent_bytes
from quicbed.measure.driver import Driver
from quicbed.testbed import LinkSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a build in target/, and links to a file and to a directory outside."""
    made = tmp_path / "folder"
    (made / "target" / "release").mkdir(parents=True)
    (made / "target" / "release" / "server").write_text("1", encoding="ascii")
    (made / "venv").mkdir()
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "program").write_text("1", encoding="ascii")
    (outside / "deep" / "library").write_text("1", encoding="ascii")
    (made / "program").symlink_to(outside / "program")
    (made / "lib").symlink_to(outside)
    (outside / "back").symlink_to(made)  # a circle
    (made / "VERSION").write_text("1\n", encoding="ascii")
    shutil.copy(EXTERNAL / "misbehaving" / "quicbed.yaml", made)
    for name in ("setup-env.sh", "run-client.sh", "run-server.sh"):
        (made / name).write_text("#!/bin/sh\n", encoding="ascii")
    return made


def identity(folder: Path) -> str:
    project = Project(ROOT)
    project.libraries["ext"] = described(path=str(folder))
    return external.sources(project, "ext")[0]["checksum"]


def in_build(folder: Path) -> None:
    (folder / "target" / "release" / "server").write_text("2", encoding="ascii")


def behind_a_link(folder: Path) -> None:
    (folder.parent / "outside" / "program").write_text("2", encoding="ascii")


def behind_a_linked_directory(folder: Path) -> None:
    (folder.parent / "outside" / "deep" / "library").write_text("2", encoding="ascii")


def another_link(folder: Path) -> None:
    (folder / "program").unlink()
    (folder / "program").symlink_to("lib/deep/library")


def executable(folder: Path) -> None:
    (folder / "VERSION").chmod(0o755)


def with_the_old_time(folder: Path) -> None:
    file = folder / "target" / "release" / "server"
    status = file.stat()
    file.write_text("2", encoding="ascii")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change", [in_build, behind_a_link, behind_a_linked_directory, another_link, executable, with_the_old_time]
)
def test_a_change_of_what_runs_is_another_endpoint(folder: Path, change: Callable[[Path], None]) -> None:
    before = identity(folder)
    assert identity(folder) == before
    change(folder)
    assert identity(folder) != before


def test_the_components_that_a_folder_states_are_a_part_of_its_build(folder: Path) -> None:
    def identified(components: list[str]) -> dict[str, Any]:
        stated = yaml.safe_load((EXTERNAL / "misbehaving" / "quicbed.yaml").read_text(encoding="utf-8"))
        stated["flavours"] = {"stock": {"components": components}}
        (folder / "quicbed.yaml").write_text(yaml.safe_dump(stated), encoding="utf-8")
        project = Project(ROOT)
        project.libraries["ext"] = described(path=str(folder))
        return making.identity(project, "ext", "stock")

    without, plain, patched = identified([]), identified(["boringssl"]), identified(["boringssl-pq"])
    assert (without["components"], list(plain["components"])) == ({}, ["boringssl"])
    assert plain["components"] != patched["components"]
    assert {"workflow/crypto/noop-aead/noop_aead.cc", "workflow/crypto/pq/pq.c"} <= set(plain["files"])
    assert "workflow/crypto/pq/pq.c" not in without["files"]


def test_what_setting_up_makes_and_what_is_no_file_does_not_hinder(folder: Path) -> None:
    before = identity(folder)
    (folder / "venv" / "made").write_text("1", encoding="ascii")
    assert identity(folder) == before
    os.mkfifo(folder / "fifo")
    (folder / "dangling").symlink_to("/nowhere/else")
    assert identity(folder) != before


def test_a_folder_of_too_many_files_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT)
    project.libraries["ext"] = described(path=str(folder))
    assert external.problem(project, "ext") is None
    monkeypatch.setattr(external, "MOST_FILES", 3)
    assert "have more than 3 files" in (external.problem(project, "ext") or "")
    assert identity(folder)


def test_cells_of_a_folder_that_changes_meanwhile_have_failed_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakeproject.prove(monkeypatch)
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    testbed = FakeTestbed()
    campaign = campaigns.Campaign(Driver(project, testbed, testbed.facts()), "test")
    campaign.open()
    campaign.prove()
    measured: list[Any] = []
    once = campaign.measure_once
    library = project.libraries["quiche"]

    def changing(cell: Any, block: int, order: int, number: int) -> dict[str, Any]:
        measured.append((block, cell.client.library))
        if block == 0:
            project.libraries["quiche"] = library
        run = once(cell, block, order, number)
        if block == 0:
            project.libraries["quiche"] = outside(library)
        return run

    monkeypatch.setattr(campaign, "measure_once", changing)
    monkeypatch.setattr(making, "changed", lambda *_: "x: was changed since it was built")
    campaign.measure()
    assert {library for block, library in measured if block == 0} == {"quiche", "quinn"}
    assert {library for block, library in measured if block > 0} == {"quinn"}
    assert {block for block, _ in measured} == {0, 1, 2}
    reasons = [run["reason"] for run in fakeproject.runs(project, "test/*/excluded")]
    assert reasons == ["x: was changed since it was built"] * 3
    assert any("x: was changed since it was built" in problem for problem in campaign.problems())


@pytest.mark.parametrize(("external_client", "length_ms", "ok"), [(True, 3, True), (False, 3, False), (True, 1, False)])
def test_a_script_may_go_on_after_the_interval_that_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external_client: bool, length_ms: int, ok: bool
) -> None:
    """300 kB were sent from 1 to 4 ms after the start of a client that ended after 9 ms."""
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    if external_client:
        project.libraries["quiche"] = outside(project.libraries["quiche"])
    testbed = FakeTestbed()
    now = SimpleNamespace(ms=0)
    monkeypatch.setattr(sent_bytes, "time", SimpleNamespace(monotonic_ns=lambda: now.ms * 1_000_000))
    monkeypatch.setattr(testbed, "sent_by_server", lambda: 100_000 * min(max(0, now.ms - 1), 3), raising=False)
    sent = sent_bytes.SentBytes(testbed)
    for now.ms in range(1, 10):
        sent.take()
    sent.end()
    begin, end = (9 - length_ms) * 1_000_000, 9_000_000
    times = {"t_client_hello": begin, "t_request_sent": begin, "t_last_byte": end}
    connections: Any = [SimpleNamespace(bytes_received=300_000, **times)]
    campaign = campaigns.Campaign(Driver(project, testbed, testbed.facts()), "test")
    spec = campaign.spec(campaign.cells[0])
    link = LinkSettings(mode="throughput")
    problem = sent.contradiction(spec, connections, {}, link, 400_000)
    assert (problem is None) is ok
