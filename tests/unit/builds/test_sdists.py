"""Source distributions of PyPI: how they are pinned, and what is made of what pip brings."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.builds import kit, sources
from quicbed.builds.kit import BuildError


def archive(directory: str, files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    return made.getvalue()


def pip_brings(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[list[str]]:
    """Let pip leave an archive where it is told to; returns its command lines."""
    asked: list[list[str]] = []

    def fetch(argv: Sequence[str], *, log: Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        asked.append(list(argv))
        target = Path(argv[argv.index("--dest") + 1])
        (target / "thing-1.0.tar.gz").write_bytes(content)

    monkeypatch.setattr(kit, "fetch", fetch)
    return asked


def package(content: bytes) -> dict[str, Any]:
    return {"name": "thing", "version": "1.0", "checksum": hashlib.sha256(content).hexdigest(), "registry": "pypi"}


def test_it_becomes_a_directory_like_that_of_a_crate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive("thing-1.0", {"PKG-INFO": "Name: thing\n", "src/a.c": "int a;\n"})
    asked = pip_brings(monkeypatch, content)
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    sources._fetch_sdist(package(content), vendor, tmp_path / "log")
    ((*_, last),) = asked
    assert last.endswith("lock.txt")
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(asked[0])
    assert list(tmp_path.iterdir()) == [vendor]
    kit.verify_source(vendor, package(content))
    (vendor / "thing-1.0" / "src" / "a.c").write_text("int b;\n", encoding="utf-8")
    with pytest.raises(BuildError, match=r"a\.c: differs from the registry's source"):
        kit.verify_source(vendor, package(content))


@pytest.mark.parametrize(
    ("directory", "checksum", "told"),
    [
        ("thing-1.0", "0" * 64, "thing-1.0: is not what workflow/sources/sdists.txt names (wrong SHA-256); see "),
        ("thing", None, "thing-1.0: the archive has no directory thing-1.0; workflow/sources/sdists.txt needs another"),
    ],
)
def test_another_archive_is_refused(
    directory: str, checksum: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive(directory, {"a.c": "int a;\n"})
    pip_brings(monkeypatch, content)
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    wanted = package(content) | ({} if checksum is None else {"checksum": checksum})
    with pytest.raises(BuildError) as caught:
        sources._fetch_sdist(wanted, vendor, tmp_path / "log")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(vendor.iterdir()) == []


def test_pip_learns_name_and_version_without_running_anything_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "setuptools").mkdir()
    (tmp_path / "setuptools" / "__init__.py").touch()
    (tmp_path / "setuptools" / "build_meta.py").write_text(sources.BACKEND, encoding="utf-8")
    inside = tmp_path / "thing-1.0"
    inside.mkdir()
    (inside / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n", encoding="utf-8")
    (inside / "setup.py").write_text("raise SystemExit('run')\n", encoding="utf-8")
    asking = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-c", asking]
    done = subprocess.run(argv, cwd=inside, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "thing-1.0.dist-info\n"
    assert (inside / "thing-1.0.dist-info" / "METADATA").read_text(encoding="utf-8").startswith("Metadata-Version")


def test_each_is_pinned_by_checksum(tmp_path: Path) -> None:
    assert {one["name"] for one in kit.sdists(ROOT)} == {"aiopquic"}
    file = tmp_path / kit.SDISTS
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / kit.SDISTS, file)
    assert kit.sdists(tmp_path) == kit.sdists(ROOT)
    file.write_text("# a comment\n\nthing==1.0\n", encoding="utf-8")
    with pytest.raises(BuildError, match=r"sdists\.txt: `thing==1\.0` is not `<name>==<version> --hash=sha256:"):
        kit.sdists(tmp_path)
    file.unlink()
    with pytest.raises(BuildError, match=r"sdists\.txt: cannot be read: .*restore it from version control"):
        kit.sdists(tmp_path)


def test_an_sdist_is_unpacked_as_files_of_whoever_builds(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for name, mode in (("a-1/run", 0o4777), ("a-1/text", 0o600)):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid = 4, mode, 12345
            made.addfile(member, io.BytesIO(b"text"))
        link = tarfile.TarInfo("a-1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(link)
    sources._unpack(archive, tmp_path, "a")
    found = {path.name: path.stat() for path in (tmp_path / "a-1").iterdir()}
    assert {name: (one.st_mode & 0o7777, one.st_uid) for name, one in found.items()} == {
        "run": (0o755, os.geteuid()),
        "text": (0o644, os.geteuid()),
    }
    outside = tmp_path / "b.tar.gz"
    with tarfile.open(outside, "w:gz") as made:
        made.addfile(tarfile.TarInfo("../b"))
    with pytest.raises(BuildError, match="lies outside of it"):
        sources._unpack(outside, tmp_path, "b")
