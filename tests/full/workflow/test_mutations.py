"""Whatever keeps hostile input out is held by a test: with it removed, by a replacement in a copy, that test fails.

data/mutations.toml has the replacements, each with its tests. `QUICBED_MUTATIONS=all` tries all of them, which takes
ten minutes. Where it is not set, a few are tried, and of the others it is checked that text and tests are there.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from clone import DATA, ROOT

TESTS = ROOT / "tests"
ALL = os.environ.get("QUICBED_MUTATIONS") == "all"
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Mutation:
    """A replacement in a file of the workflow."""

    what: str
    """What is removed."""
    file: str
    """Below workflow/; it may be a pattern of several."""
    text: str
    """Stands there once."""
    becomes: str
    tests: Sequence[str]
    """Functions, as `file.py::name`, every one of which fails then; wherever below tests/ the file is."""
    quick: bool = False
    """It is tried each time."""

    def place(self, root: Path) -> Path:
        """The file of a repository in which the text stands."""
        files = sorted((root / "workflow").glob(self.file))
        (found,) = (file for file in files for _ in range(file.read_text(encoding="utf-8").count(self.text)))
        return found

    def mutated(self, source: str) -> str:
        """The file without what is removed."""
        return source.replace(self.text, self.becomes)


def _mutations() -> list[Mutation]:
    with (DATA / "mutations.toml").open("rb") as file:
        return [Mutation(**one) for one in tomllib.load(file)["mutation"]]


MUTATIONS = _mutations()


def _path(test: str) -> tuple[Path, str]:
    """The file of a test, relative to the repository, and its name there."""
    file, _, name = test.partition("::")
    (found,) = TESTS.rglob(file)
    return found.relative_to(ROOT), name


def _functions(file: Path) -> dict[str, bool]:
    """Names of the tests of a file, and whether they need root."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    marked = any("mark.root" in ast.unparse(one) for one in tree.body if isinstance(one, ast.Assign))
    return {
        one.name: marked or any("mark.root" in ast.unparse(decorator) for decorator in one.decorator_list)
        for one in tree.body
        if isinstance(one, ast.FunctionDef)
    }


def _needs_root(mutation: Mutation) -> bool:
    return any(_functions(ROOT / file).get(name, False) for file, name in map(_path, mutation.tests))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_what_is_removed_stands_there_once_and_has_its_tests(mutation: Mutation) -> None:
    file = mutation.place(ROOT)
    source = file.read_text(encoding="utf-8")
    compile(mutation.mutated(source), file.name, "exec")
    assert mutation.mutated(source) != source
    assert mutation.tests
    for test_file, name in map(_path, mutation.tests):
        assert name in _functions(ROOT / test_file)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which all the tests that are named pass."""
    copy = tmp_path_factory.mktemp("mutated") / "clone"
    copy.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("config", "tests", "workflow"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in ("docs", "notebooks", "raw"):
        (copy / name).symlink_to(ROOT / name)
    code = "import quicbed; print(*quicbed.__path__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=_environment(copy), cwd=copy, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [str(copy / "workflow" / "quicbed")]
    wanted = [test for mutation in MUTATIONS if ALL or mutation.quick for test in mutation.tests]
    failed, said = _failed(copy, dict.fromkeys(wanted))
    assert failed == {}, said
    return copy


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy / "workflow")}


def _failed(copy: Path, tests: Sequence[str] | dict[str, None]) -> tuple[dict[str, str], str]:
    """How those tests failed that did, by name, and what was printed; whatever else goes wrong is a failure here."""
    report = copy / "report.xml"
    names = [f"{file}::{name}" for file, name in map(_path, tests)]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *names]
    done = subprocess.run(argv, cwd=copy, env=_environment(copy), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failed = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (our own)
        assert case.find("error") is None, done.stdout
        assert case.find("skipped") is None, done.stdout
        failure = case.find("failure")
        if failure is not None:
            failed.setdefault(case.attrib["name"].partition("[")[0], failure.attrib["message"])
    assert (done.returncode == 1) == bool(failed), done.stdout
    return failed, done.stdout


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, marks=[pytest.mark.root] if _needs_root(one) else [], id=one.what)
        for one in MUTATIONS
        if ALL or one.quick
    ],
)
def test_the_tests_fail_without_it(mutation: Mutation, copy: Path) -> None:
    file = mutation.place(copy)
    source = file.read_text(encoding="utf-8")
    compiled = Path(importlib.util.cache_from_source(file))
    try:
        compiled.unlink(missing_ok=True)
        file.write_text(mutation.mutated(source), encoding="utf-8")
        failed, said = _failed(copy, mutation.tests)
    finally:
        file.write_text(source, encoding="utf-8")
        compiled.unlink(missing_ok=True)
    for name, message in failed.items():
        print(f"{name}: {message}")
    assert failed.keys() == {name for _, name in map(_path, mutation.tests)}, said
