"""Snakemake's own report: which figures and tables it shows, and what it says of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.papers import TITLES
from quicbed.report import workflow_report
from quicbed.store import runs
from runlinks import runs_behind

SNAKEMAKE = str(Path(sys.executable).parent / "snakemake")


def manifest(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "figure": name,
        "title": f"Title of {name}",
        "conditions": ["testbed local · 1*2 runs"],
        "caption": "What_ is seen.",
        "source": "A Quantum of QUIC, Fig. 3",
        "experiment": "aead-goodput",
        "campaign": "c0ffee00",
        "testbed": "local",
        "scale": "quick",
        "table": "tables/aead-goodput.parquet",
        "files": {f"{name}.html": "", f"{name}.svg": ""},
        "runs": ["a", "b"],
    } | changes


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    for directory in ("figures", "tables", "report"):
        (tmp_path / directory).mkdir()
    for name in ("one.svg", "one.html", "two.html", "three.svg", "plotly.min.js", "stale.svg"):
        (tmp_path / "figures" / name).write_text(name)
    for name in ("aead-goodput.csv", "aead-goodput.html", "aead-goodput.parquet", "claims.csv", "stale.csv"):
        (tmp_path / "tables" / name).write_text(name)
    return tmp_path


def files(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}


def test_figures_are_sorted_by_paper_and_tables_follow_from_them(artifacts: Path) -> None:
    made = workflow_report.write(
        artifacts,
        [
            manifest("one"),
            manifest("two", source="QUIC on the Highway, Fig. 4", files={"two.html": ""}),
            manifest("three", source="of our own", table="tables/none.parquet"),
        ],
    )
    assert files(made) == {
        "labels.json",
        *("quantum-of-quic/one.svg", "quantum-of-quic/one.rst"),
        # without a Chromium: the page, and what it loads
        *("quic-on-the-highway/two.html", "quic-on-the-highway/two.rst"),
        *("quic-on-the-highway/plotly.min.js", "quic-on-the-highway/plotly.min.rst"),
        *("beyond/three.svg", "beyond/three.rst"),
        *("tables/aead-goodput.csv", "tables/aead-goodput.html", "tables/aead-goodput.rst"),
        *("tables/claims.csv", "tables/claims.rst"),
    }
    shown = [file for file in files(made) if Path(file).suffix not in (".rst", ".json")]
    for file in shown:
        group, name = file.split("/")
        assert group in workflow_report.CATEGORIES
        found = workflow_report.labels(made, group, name.rpartition(".")[0])
        assert list(found) == ["result", "of", "experiment", "scale"]
        assert found["result"]
    assert workflow_report.labels(made, "quantum-of-quic", "one")["result"] == "Title of one"


def test_what_is_not_there_any_more_is_not_shown_any_more(artifacts: Path) -> None:
    workflow_report.write(artifacts, [manifest("one")])
    made = workflow_report.write(artifacts, [])
    assert files(made) == {"labels.json", "tables/claims.csv", "tables/claims.rst"}
    assert sorted(path.name for path in made.parent.iterdir()) == ["results"]


def test_captions_are_plain_text(artifacts: Path) -> None:
    from docutils.core import publish_parts

    made = workflow_report.write(artifacts, [manifest("one"), manifest("three", runs=[], scale="published")])
    text = (made / "quantum-of-quic" / "one.rst").read_text(encoding="utf-8")
    page = publish_parts(text, writer="html", settings_overrides={"halt_level": 2, "report_level": 2})["body"]
    words = re.sub(r"<[^>]+>", "", page)
    assert "Title of one (A Quantum of QUIC, Fig. 3)" in words
    assert "testbed local · 1*2 runs" in words
    assert "What_ is seen." in words
    assert "Drawn from 2 runs of aead-goodput (campaign c0ffee00, testbed local, scale quick)" in words
    assert "published results" in (made / "quantum-of-quic" / "three.rst").read_text(encoding="utf-8")


def test_snakemake_reports_on_the_reference_data_of_one_experiment(tmp_path: Path) -> None:
    """In a clone with one archive: figures are made, reported, and not made again."""
    ignore = shutil.ignore_patterns("__pycache__", "target")
    for part in ("config", "envs", "notebooks", "profiles", "workflow"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignore)
    for file in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "raw" / "reference").mkdir(parents=True)
    shutil.copy(ROOT / "raw" / "reference" / "aes-ni.tar.xz", tmp_path / "raw" / "reference")

    def snakemake(*arguments: str) -> str:
        done = subprocess.run([SNAKEMAKE, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout + done.stderr

    snakemake("--cores", "2", "figures")
    drawn = tmp_path / "artifacts" / "reference" / "figures"
    before = {path: path.stat().st_mtime_ns for path in drawn.iterdir()}
    table = runs.table(tmp_path / "raw" / "reference")
    behind = runs_behind(tmp_path / "artifacts" / "reference" / "notebooks" / "quic-on-the-highway.html", table)
    assert len(behind) > 5
    assert [selected for selected, found in behind.items() if not found] == []
    snakemake("figures", "--report", "report.zip")
    assert "Nothing to be done" in snakemake("--cores", "2", "figures")
    assert {path: path.stat().st_mtime_ns for path in drawn.iterdir()} == before

    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        names = archive.namelist()
        page = archive.read("report/report.html").decode()
    suffix = "svg" if (drawn / "aes-instructions.svg").is_file() else "html"
    for name in (f"quic-on-the-highway/aes-instructions.{suffix}", "tables/aes-ni.csv", "tables/claims.csv"):
        assert any(one.endswith(f"/{name}") for one in names), name
    for notebook in TITLES:
        assert any(one.endswith(f"/{notebook}.html") for one in names)
    begin = page.rindex("var results = {") + len("var results = ")
    results = json.JSONDecoder().raw_decode(page[begin:])[0]
    (shown,) = [one for one in results.values() if one["name"] == f"aes-instructions.{suffix}"]
    assert "Goodput with and without AES instructions (QUIC on the Highway, Fig. 7)" in shown["caption"]
    assert re.search(r"Drawn from \d+ runs of aes-ni", shown["caption"])
    assert shown["labels"]["experiment"] == "aes-ni"
    for result in results.values():
        assert result["caption"].strip(), result["name"]
    for heading in (*TITLES.values(), "Tables"):
        assert f'"{heading}"' in page
    # the description of the workflow
    assert "by the paper whose" in page
