"""What cargo has compiled for one build is where the next one is compiled."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.builds import compiled, kit
from quicbed.builds.recipes import cargo
from quicbed.config.model import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """This clone, compiled in a temporary directory."""
    monkeypatch.setattr(cargo, "_target", lambda _, name, flavour: tmp_path / f"{name}-{flavour}")
    return Project(ROOT)


def compile_in(directory: Path, crate: str) -> Path:
    """As cargo leaves a directory: a fetched crate, and an endpoint of this repository."""
    release = directory / "release"
    for file in (
        f".fingerprint/{crate}-1/lib-{crate}",
        f"build/{crate}-1/output",
        f"deps/lib{crate}-1.rlib",
        ".fingerprint/quicbed-contract-1/lib-quicbed_contract",
        "deps/libquicbed_contract-1.rlib",
        "deps/quicbed_quinn_client-1",
        "quicbed-quinn-client",
        ".cargo-lock",
    ):
        path = release / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(crate)
    return release


def files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_fetched_crates_are_taken_over_and_own_ones_are_not(project: Project, tmp_path: Path) -> None:
    release = compile_in(tmp_path / "quinn-stock", "ring")
    assert compiled.take_over(project, "quinn", "noop") == tmp_path / "quinn-stock"
    taken = tmp_path / "quinn-noop" / "release"
    assert files(taken) == [".fingerprint/ring-1/lib-ring", "build/ring-1/output", "deps/libring-1.rlib"]
    for file in files(taken):
        # cargo compares times
        assert (taken / file).stat().st_mtime_ns == (release / file).stat().st_mtime_ns
        # what the compiler replaces may be one file, and what is written to may not
        assert (taken / file).samefile(release / file) == file.endswith(".rlib")
    assert not list(tmp_path.glob("*.partial"))


def test_files_that_cannot_be_linked_are_copied(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    release = compile_in(tmp_path / "quinn-stock", "ring")
    monkeypatch.setattr(os, "link", refused)
    assert compiled.take_over(project, "quinn", "noop") == tmp_path / "quinn-stock"
    taken, source = (directory / "deps/libring-1.rlib" for directory in (tmp_path / "quinn-noop" / "release", release))
    assert (taken.read_text(), taken.stat().st_mtime_ns) == ("ring", source.stat().st_mtime_ns)
    assert not taken.samefile(source)


def test_a_disk_that_is_full_is_said_in_one_line(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_in(tmp_path / "quinn-stock", "ring")

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(kit.BuildError, match=r"quinn-noop: \[Errno 28\] No space left on device$"):
        compiled.take_over(project, "quinn", "noop")
    assert files(tmp_path / "quinn-noop") == []


def test_they_come_from_the_build_with_most_crates_in_common(project: Project, tmp_path: Path) -> None:
    for name in ("quiche", "quinn", "ngtcp2"):
        compile_in(tmp_path / f"{name}-stock", name)
    assert compiled.take_over(project, "noq", "stock") == tmp_path / "quinn-stock"


def test_nothing_is_taken_from_where_cargo_is_at_work(project: Project, tmp_path: Path) -> None:
    release = compile_in(tmp_path / "quinn-stock", "ring")
    with (release / ".cargo-lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compiled.take_over(project, "quinn", "noop") is None
        compile_in(tmp_path / "noq-stock", "noq")
        assert compiled.take_over(project, "quinn", "noop") == tmp_path / "noq-stock"


def test_what_has_been_compiled_before_stays(project: Project, tmp_path: Path) -> None:
    compile_in(tmp_path / "quinn-stock", "ring")
    (tmp_path / "quinn-noop").mkdir()
    assert compiled.take_over(project, "quinn", "noop") is None
    assert files(tmp_path / "quinn-noop") == []


def test_a_patched_flavour_takes_and_gives(project: Project, tmp_path: Path) -> None:
    assert project.libraries["quiche"].flavours["noop"].patches
    compile_in(tmp_path / "quiche-noop", "boring")
    assert compiled.take_over(project, "quiche", "stock") == tmp_path / "quiche-noop"
    (tmp_path / "quiche-noop" / "release" / ".cargo-lock").unlink()
    shutil.rmtree(tmp_path / "quiche-stock")
    compile_in(tmp_path / "quiche-stock", "boring")
    assert compiled.take_over(project, "quiche", "pq") == tmp_path / "quiche-stock"
