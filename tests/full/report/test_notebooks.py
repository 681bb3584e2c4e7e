"""Notebooks that are run by a kernel: what they write, twice the same, and what a failure says."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis import comparison
from quicbed.report import notebooks
from quicbed.store import runs

HANDSHAKE_EXPERIMENTS = ("table2-kem", "table3-signature", "hybrid-cost", "native-handshake", "amplification")


def run_notebook(raw: Path, artifacts: Path) -> str:
    page = artifacts / "notebooks" / "quantum-of-quic.html"
    environment = {"QUICBED_RAW": str(raw), "QUICBED_ARTIFACTS": str(artifacts)}
    notebooks.run([ROOT / "notebooks" / "quantum-of-quic.ipynb"], environment, page.parent)
    return page.read_text(encoding="utf-8")


def test_the_notebook_writes_tables_and_figures_and_is_reproducible(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for experiment in fakeruns.EXPERIMENTS:
        fakeruns.write_campaign(raw, experiment, blocks=4)
    before = (ROOT / "notebooks" / "quantum-of-quic.ipynb").read_bytes()
    contents = []
    for folder in ("a", "b"):
        artifacts = tmp_path / folder
        run_notebook(raw, artifacts)
        contents.append({p.relative_to(artifacts): p.read_bytes() for p in sorted(artifacts.rglob("*")) if p.is_file()})
    names = {str(path) for path in contents[0]}
    for name in ("aead-goodput", "header-protection"):
        assert {f"tables/{name}.parquet", f"tables/{name}.csv"} <= names
    for name in ("goodput-by-aead", "header-protection"):
        assert {f"figures/{name}.html", f"figures/{name}.json"} <= names
    assert contents[0] == contents[1]
    assert (ROOT / "notebooks" / "quantum-of-quic.ipynb").read_bytes() == before
    table = pl.read_parquet(tmp_path / "a" / "tables" / "aead-goodput.parquet")
    assert table.equals(comparison.figure_table(runs.select_campaign(runs.table(raw), "aead-goodput")))


def test_the_notebook_says_what_was_not_measured(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, libraries=("quinn",))
    page = run_notebook(raw, tmp_path / "artifacts")
    lacking = set(re.findall(r"Not measured:</strong> there are no runs of ([^<]*) here", page))
    of_cost = {"aead-pairs", "header-protection-pairs", "instructions", "cpu-shares"}
    assert lacking == {"header-protection", "mtu", *of_cost, *HANDSHAKE_EXPERIMENTS}
    assert (tmp_path / "artifacts" / "figures" / "goodput-by-aead.html").is_file()


def test_a_notebook_that_fails_is_one_error_that_names_it(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    path = tmp_path / "broken.ipynb"
    nbformat.write(notebook, path)
    with pytest.raises(notebooks.NotebookError, match=r"broken\.ipynb: ZeroDivisionError"):
        notebooks.run([path], {}, tmp_path)
    assert not (tmp_path / "broken.html").exists()


def test_what_the_machine_lacks_is_one_line(tmp_path: Path) -> None:
    cell = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'x.csv')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    path = tmp_path / "full.ipynb"
    nbformat.write(notebook, path)
    says = r".*full\.ipynb: OSError: .*No space left on device: 'x\.csv': free some of the disk, then run the same .*"
    with pytest.raises(notebooks.NotebookError, match=f"^{says}$"):
        notebooks.run([path], {}, tmp_path)
