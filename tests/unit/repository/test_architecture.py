"""Packages: which imports which, and what the workflow's rules are made from."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import grimp
import pytest

from clone import ROOT
from quicbed.builds import making
from quicbed.cli import inputs
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.papers import FORMATS
from quicbed.plan.cells import builds_needed

PACKAGE = ROOT / "workflow" / "quicbed"
SNAKEMAKE = Path(sys.executable).parent / "snakemake"
RESULTS = (
    *(f"tables/{name}.parquet" for name in ("runs", "connections", "primitives", "handshakes")),
    "tables/verdicts.json",
    *(f"notebooks/{notebook.stem}.html" for notebook in (ROOT / "notebooks").glob("*.ipynb")),
    "report/index.html",
    # in a directory that Snakemake has written
    "report/results/.snakemake_timestamp",
)


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    specification = importlib.util.spec_from_file_location("architecture", ROOT / "tools" / "architecture.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_all_arrows_go_one_way(architecture: ModuleType) -> None:
    order = [package for packages in architecture.PARTS.values() for package in packages]
    assert sorted(order) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    wing = {package: part for part, packages in architecture.PARTS.items() for package in packages}
    for package, targets in architecture.imports().items():
        for target in targets:
            assert order.index(target) < order.index(package), f"{package} imports {target}"
            assert {wing[package], wing[target]} != {"measuring", "reading"}, f"{package} imports {target}"


def test_a_function_whose_name_another_module_has_too_is_called_by_its_module() -> None:
    """`record.read(file)` says what is read; a bare `read(file)` does so only where no other module reads."""
    # the agent goes to hosts as one file, and main is what Python calls such a function
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    named = Counter(
        one.name
        for path, tree in trees.items()
        if path.name != "agent.py"
        for one in {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}.values()
    )
    shared = {name for name, count in named.items() if count > 1} - {"main"}
    assert "read" in shared
    bare = [
        f"{path.relative_to(PACKAGE)}: from {one.module} import {name.name}"
        for path, tree in trees.items()
        for one in ast.walk(tree)
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("quicbed.")
        for name in one.names
        if name.name in shared and not (PACKAGE.parent / one.module.replace(".", "/") / f"{name.name}.py").is_file()
    ]
    assert bare == []


def test_no_test_changes_what_is_private_to_a_module() -> None:
    """Renaming it would break the test, which would tell nothing."""
    patched = re.compile(r"\bsetattr\(\s*[\w.]+,\s*[\"']_[a-z]|\bsetattr\(\s*[\"'][\w.]*\._[a-z]", re.IGNORECASE)
    # the directory where cargo compiles belongs to the identity of builds, as the code does that names it
    allowed = {"test_compiled.py"}
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in allowed]
    assert [path.name for path in files if patched.search(path.read_text(encoding="utf-8"))] == []


def test_the_drawing_leaves_out_only_what_is_reached_otherwise(architecture: ModuleType) -> None:
    found = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a"}}
    assert architecture.direct(found) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"a"}}


def test_a_drawing_that_is_not_current_is_told(
    architecture: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "architecture.md"
    page.write_text(architecture.PAGE.read_text(encoding="utf-8").replace("store --> plan", "plan --> store"))
    monkeypatch.setattr(architecture, "PAGE", page)
    assert architecture.main(["--check"]) == 1
    assert "tools/architecture.py" in capsys.readouterr().err
    assert architecture.main([]) == 0
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_inputs_follow_the_very_imports_that_python_has() -> None:
    graph = grimp.build_graph("quicbed", cache_dir=None)
    for module in graph.modules:
        expected = graph.find_modules_directly_imported_by(module) - {module}
        # the packages that a module stands in, and those it names modules of, are loaded with it
        packages = {name.rpartition(".")[0] for name in {module, *expected}}
        found = inputs.imports(ROOT, module)
        assert expected <= found, module
        assert found - expected <= packages, module


def behind(files: list[str]) -> set[str]:
    return {Path(file).relative_to(ROOT).as_posix() for file in files}


def notebook(name: str) -> set[str]:
    return behind(inputs.of_notebook(ROOT, ROOT / "notebooks" / f"{name}.ipynb"))


def test_figures_come_from_their_modules_and_data() -> None:
    quantum, highway = notebook("quantum-of-quic"), notebook("quic-on-the-highway")
    code = {f"workflow/quicbed/{name}.py" for name in ("analysis/pairs", "figures/layout", "store/runs", "report/look")}
    data = {"config/symbols/shared/linux.yaml", "config/symbols/quiche.yaml", "config/libraries/quiche.yaml"}
    published = "workflow/quicbed/analysis/published/quantum-of-quic-table2.csv"
    assert {*code, *data, "workflow/crypto/algorithms.csv", published} <= quantum
    assert "workflow/quicbed/papers/highway/figures.py" in highway - quantum
    for files in (quantum, highway):
        # claims tell which libraries a paper has, for the versions that fit a column, and nothing else
        others = files - {"workflow/quicbed/claims/__init__.py", "workflow/quicbed/claims/papers.py"}
        assert not [file for file in others if re.search("quicbed/(testbed|builds|measure|claims)/.", file)]


def test_tables_of_runs_come_from_no_figure_and_no_configuration() -> None:
    tables = behind(inputs.of_command(ROOT, "tables"))
    assert {"workflow/quicbed/store/runs.py", "workflow/quicbed/store/details.py"} <= tables
    assert all(file.startswith("workflow/quicbed/") and file.endswith(".py") for file in tables)
    assert not [file for file in tables if "/figures/" in file or "/analysis/" in file]


def test_dissecting_comes_from_all_that_reads_captures() -> None:
    dissection = behind(inputs.of_command(ROOT, "dissect"))
    # nothing of these tables of packets is stored with runs, and release times are read when a run is measured
    tables = {"packets.py", "numbers.py", "pacing.py", "trains.py", "layers.py", "releases.py"}
    readers = [file for file in PACKAGE.glob("wire/*.py") if file.name not in tables]
    assert {file.relative_to(ROOT).as_posix() for file in readers} <= dissection
    assert not [file for file in dissection if "/figures/" in file or "/claims/" in file]


def test_the_report_comes_from_everything_that_verdicts_are_made_of() -> None:
    report = behind(inputs.of_command(ROOT, "report"))
    data = [*ROOT.glob("config/claims/*.yaml"), *ROOT.glob("config/symbols/**/*.yaml")]
    data += [
        *PACKAGE.glob("claims/*.py"),
        *PACKAGE.glob("analysis/published/*.csv"),
        *PACKAGE.glob("report/templates/*"),
    ]
    assert {file.relative_to(ROOT).as_posix() for file in data} <= report


def test_every_importer_is_known_by_its_format() -> None:
    for known in FORMATS.values():
        assert f"workflow/{known.importer.replace('.', '/')}.py" in behind(inputs.of_modules(ROOT, [known.importer]))


def test_no_data_of_the_reading_wing_is_forgotten(architecture: ModuleType) -> None:
    known = notebook("quantum-of-quic") | notebook("quic-on-the-highway") | behind(inputs.of_command(ROOT, "report"))
    for package in architecture.PARTS["reading"]:
        data = [
            file for file in (PACKAGE / package).rglob("*") if file.suffix not in (".py", ".pyc") and file.is_file()
        ]
        assert {file.relative_to(ROOT).as_posix() for file in data} <= known


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which everything is made: empty results, newer than all they are made from."""
    root = tmp_path_factory.mktemp("made")
    for name in ("config", "workflow", "notebooks"):
        ignored = shutil.ignore_patterns("target", "__pycache__")
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "Snakefile", root)
    (root / "raw").mkdir()
    (root / "raw" / "reference").symlink_to(ROOT / "raw" / "reference")
    for name in RESULTS:
        file = root / "artifacts" / "reference" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


def made_again(root: Path, edited: str) -> set[str]:
    """Rules that run for the figures once a file has changed."""
    now = max(file.stat().st_mtime for file in (root / "artifacts").rglob("*"))
    file = root / edited
    before = file.stat()
    os.utime(file, (now + 10, now + 10))
    try:
        argv = [str(SNAKEMAKE), "--cores", "1", "-n", "--quiet", "host", "--rerun-triggers", "mtime", "--", "figures"]
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    finally:
        os.utime(file, (before.st_atime, before.st_mtime))
    assert done.returncode == 0, done.stderr[-3000:]
    return set(re.findall(r"^(\w+)_reference +\d+$", done.stdout + done.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ("config/symbols/quiche.yaml", {"verdicts", "notebooks", "report"}),
        ("workflow/crypto/algorithms.csv", {"verdicts", "notebooks", "report"}),
        ("workflow/quicbed/figures/pair_figures.py", {"notebooks", "report"}),
        ("workflow/quicbed/claims/verdicts.py", {"verdicts", "notebooks", "report"}),
        ("workflow/quicbed/store/runs.py", {"runs", "verdicts", "notebooks", "report"}),
        ("workflow/quicbed/measure/driver.py", set()),
        ("workflow/quicbed/testbed/agent.py", set()),
        ("workflow/crypto/patches/quiche/noop.patch", set()),
        ("config/experiments/aead-goodput.yaml", {"verdicts", "notebooks", "report"}),
    ],
)
def test_what_depends_on_a_file_is_made_again_and_nothing_else(made: Path, edited: str, expected: set[str]) -> None:
    assert made_again(made, edited) == expected


def test_what_is_made_again_hides_nothing_that_is_missing(made: Path) -> None:
    """As after an update: everything is built, sources are older than their lock files, and nothing is measured."""
    name = "aead-goodput"
    project = Project(made, {"experiments": [name], "libraries": ["quinn"]})
    sources = project.build / "sources" / "sources.json"
    builds = [making.listing(project, *key) for key in builds_needed(project, [name])]
    directories = [certificates.directory(project, signature) for signature in certificates.needed(project, [name])]
    for file in (sources, *builds, *(directory / file for directory in directories for file in certificates.FILES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    os.utime(sources, (1, 1))
    argv = [str(SNAKEMAKE), "--cores", "1", "-n", "--quiet", "host", "--config", f"experiments=[{name}]"]
    argv += ["libraries=[quinn]", "--", "all"]
    done = subprocess.run(argv, cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run = set(re.findall(r"^(\w+) +\d+$", done.stdout + done.stderr, re.MULTILINE))
    assert {"sources", "measure", "draw", "runs_own", "verdicts_own", "notebooks_own", "report_own", "all"} <= run
