"""A library that nobody has heard of is added as docs/adding-a-library.md says, and keeps the contract like others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import DATA, ROOT
from quicbed.builds import kit, making
from quicbed.config.model import Project

MADE_UP = {"murmur": "quinn", "sockets": "tcp-tls"}
"""Made-up libraries, one in Rust and one in C, and whose functions theirs are (config/symbols/)."""
MOST_LINES = 250
CRATES = {"murmur"}
"""Those in Rust."""


LISTED = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]


def lines(name: str) -> int:
    """Lines of all files of a made-up library."""
    files = [path for path in (DATA / "libraries" / name).rglob("*") if path.is_file()]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def run(project: Path, *argv: str) -> str:
    """What a command printed in a project; it has to succeed."""
    environment = os.environ | {"PYTHONPATH": str(project / "workflow"), "QUICBED_LAYER": "full"}
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def copied(target: Path) -> None:
    """A copy of what git does not ignore in this clone, with links to its builds."""
    listed = subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if file.is_file() and not name.startswith("raw/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / name)
    (target / "build" / "work").mkdir(parents=True)
    for entry in (entry for entry in (ROOT / "build").iterdir() if entry.name != "work"):
        subprocess.run(["cp", "-al", str(entry), str(target / entry.relative_to(ROOT))], check=True)


def add(project: Path, name: str) -> None:
    """Follow the page: files of its own, the member of the workspace, and the mapping of its functions."""
    shutil.copytree(DATA / "libraries" / name, project, dirs_exist_ok=True)
    symbols = project / "config" / "symbols"
    shutil.copy2(symbols / f"{MADE_UP[name]}.yaml", symbols / f"{name}.yaml")
    if name in CRATES:
        manifest = project / kit.SOURCES / "Cargo.toml"
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(text.replace("members = [", f'members = [\n  "../endpoints/{name}",', 1), encoding="utf-8")
        run(project, "cargo", "update", "--workspace", "--offline", "--manifest-path", str(manifest))


@pytest.mark.parametrize("name", sorted(MADE_UP))
def test_a_library_is_no_more_than_a_page_or_two(name: str) -> None:
    assert 0 < lines(name) <= MOST_LINES


def test_a_new_library_is_built_and_keeps_the_contract(every_build: Callable[[], None], tmp_path: Path) -> None:
    project = tmp_path / "project"
    copied(project)
    before = {name: making.build_id(Project(ROOT), name, "stock") for name in Project(ROOT).libraries}
    for name in MADE_UP:
        add(project, name)
    quicbed = [sys.executable, "-m", "quicbed"]
    run(project, *quicbed, "generate")
    for name in MADE_UP:
        run(project, *quicbed, "build", name, "stock")
    # nothing else is built anew
    assert {name: making.build_id(Project(project), name, "stock") for name in before} == before
    pytest_of_it = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(MADE_UP)]
    passed = run(project, *pytest_of_it, "tests/built/test_endpoints.py")
    assert " failed" not in passed
    assert int(passed.rsplit(" passed", 1)[0].split()[-1].lstrip("=")) > 60
