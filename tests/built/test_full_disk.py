"""A disk that is full, a small one in memory: one line names it, what is finished stays, and it is gone on with."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from fakeproject import run, runs
from faketestbed import FakeHost, FakeTestbed
from keptruns import EXPERIMENT, Kept
from quicbed.cli.commands import main
from quicbed.config.model import Project
from quicbed.importers import samples
from quicbed.measure import storing
from quicbed.measure.attempt import MeasureError
from quicbed.testbed import Process

pytestmark = pytest.mark.root


class Disk:
    """A file system of 4 MiB."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def fill(self, left: int = 0) -> None:
        """Use it up but for so many bytes."""
        with contextlib.suppress(OSError), (self.place / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        self.give_back(left)

    def give_back(self, size: int) -> None:
        """Let so many bytes be free again."""
        with (self.place / "filler").open("r+b") as file:
            file.truncate((self.place / "filler").stat().st_size - size)

    def make_room(self) -> None:
        (self.place / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", place], check=True)
    yield Disk(place)
    subprocess.run(["umount", place], check=True)


class Filling(FakeTestbed):
    """Its disk fills up before one of the programs that are started; somebody gives back a little after it."""

    def __init__(self, disk: Disk, program: int, left: int, after: int) -> None:
        super().__init__()
        self.disk, self.left, self.after, self.programs = disk, left, after, program
        for role in ("client", "server"):
            self.hosts[role] = FillingHost(role, self)

    def started(self) -> None:
        self.programs -= 1
        if self.programs == 0:
            self.disk.fill(self.left)

    def ended(self) -> None:
        if self.programs <= 0:
            self.disk.give_back(self.after)
            self.after = 0


class FillingHost(FakeHost):
    def __init__(self, name: Any, testbed: Filling) -> None:
        super().__init__(name)
        self.testbed = testbed

    def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        self.testbed.started()
        return super().spawn(argv, **options)

    def collect(self, directory: Path) -> None:
        self.testbed.ended()
        super().collect(directory)


@pytest.fixture
def project(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    monkeypatch.setattr(storing, "FREE_BYTES", 1 << 20)
    made = fakeproject.make(tmp_path / "project", EXPERIMENT, monkeypatch)
    made.raw.parent.mkdir(exist_ok=True)
    made.raw.symlink_to(disk.place)
    return made


def test_measuring_goes_on_when_there_is_room(project: Project, disk: Disk) -> None:
    """In a proof, the warm-up and runs; with room for nothing, for a part, and for run.json after programs had none."""
    kept = Kept(project)
    full = [(1, 0, 0), (2, 4096, 0), (2, 0, 100_000), (3, 0, 0), (4, 8192, 0), (4, 0, 100_000), (5, 4096, 0)]
    for program, left, after in (*full, (4, 0, 0), (3, 20_000, 0), (6, 0, 100_000), (5, 0, 0)):
        with pytest.raises(
            MeasureError, match=r"make room|No space left on device: '.*'; finished runs remain"
        ) as told:
            run(project, Filling(disk, program, left, after))
        assert "\n" not in str(told.value)
        kept.look()
        disk.make_room()
    run(project)
    kept.look()
    assert {one["status"] for one in runs(project)} == {"ok"}
    assert len(runs(project)) == 6


def test_an_import_goes_on_when_there_is_room(disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {
        f"run/quiche_lsquic/goodput/{number}/{name}": data
        for number in range(2)
        for name, data in samples.repetition("quiche", "lsquic", 9.0).items()
    }
    few, more = (
        samples.write(dict(list(content.items())[:count]), tmp_path / str(count))
        for count in (len(content) // 2, len(content))
    )
    out = disk.place / "out"
    assert main(["import", "highway", str(few), "--out", str(out)]) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    capsys.readouterr()
    for left in (0, 4096, 8192, 12288):
        disk.fill(left)
        assert main(["import", "highway", str(more), "--out", str(out)]) == 1, left
        said = capsys.readouterr().err
        assert said.startswith("quicbed: ")
        assert said.count("\n") == 1
        assert f"{disk.place}/" in said
        assert "No space left on device" in said
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        assert [file.name for file in disk.place.iterdir()] == ["filler", "out"]
        disk.make_room()
    assert main(["import", "highway", str(more), "--out", str(out)]) == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} != before
