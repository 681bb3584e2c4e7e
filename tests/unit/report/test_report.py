"""The report, the notebook that makes the figures, and the records they tell provenance from."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis import comparison
from quicbed.cli import commands
from quicbed.config.model import Project
from quicbed.figures import goodput
from quicbed.importers import reading, samples
from quicbed.report import notebooks
from quicbed.report import page as report
from quicbed.store import details, provenance, runs

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HANDSHAKE_EXPERIMENTS = ("table2-kem", "table3-signature", "hybrid-cost", "native-handshake", "amplification")


class Links(HTMLParser):
    """Checks that elements are closed, and collects what a page refers to."""

    VOID = frozenset({"meta", "img", "input", "br", "link", "hr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for key, value in attrs if key in ("href", "src") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def write_records(raw: Path, experiment: str = "aead-goodput") -> Path:
    """What the driver leaves beside the runs of a campaign."""
    directory = raw / "local" / experiment / "c0ffee00"
    documents: dict[str, Any] = {
        "campaign.json": {"format": 1, "id": "c0ffee00", "experiment": experiment},
        "sessions/20300102T030405-7.json": {
            "started_at": "2030-01-02T03:04:05Z",
            "facts": {"host_id": "h0", "kernel": "6.1.0", "sysctl": {"net.core.rmem_max": 212992}},
            "config": {"scale": "quick", "seed": 1},
            "experiment": {"title": "Goodput by AEAD"},
            "revision": "0123456789ab",
            "cells": fakeruns.plan(fakeruns.campaign(experiment)),
        },
        "builds/quinn-stock-000000000001.json": {
            "build": "quinn-stock-000000000001",
            "library": "quinn",
            "flavour": "stock",
            "version": "0.11.12",
            "crates": [{"name": "quinn", "version": "0.11.12", "checksum": "ab" * 32, "patched": False}],
            "patches": [],
            "flags": {"profile": "release"},
        },
    }
    for name, document in documents.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
    return directory


@pytest.fixture
def no_chromium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choreographer.browsers.chromium.Chromium.find_browser", lambda **_: None)


def make(tmp_path: Path) -> tuple[Path, Path]:
    """Runs, and artifacts with a figure and its tables."""
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=6)
    write_records(raw)
    table = details.write_tables(raw, artifacts / "tables" / "runs.parquet")
    campaign, cells = goodput.experiment_table(table, "aead-goodput")
    comparison.write_figure_table(cells, "aead-goodput", artifacts / "tables")
    goodput.save(goodput.goodput_by_aead(campaign, cells), artifacts / "figures")
    return raw, artifacts


@pytest.mark.usefixtures("no_chromium")
def test_pages_are_well_formed_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    index = report.write(artifacts, raw)
    pages = sorted(index.parent.glob("*.html"))
    assert [page.name for page in pages] == ["index.html", "runs.html"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in Links(text).targets:
            path, _, anchor = target.partition("#")
            if path:
                assert (page.parent / path).is_file(), target
            else:
                assert f'id="{anchor}"' in text, target
        assert "http://" not in text
        assert "https://" not in text  # nothing is fetched from elsewhere


@pytest.mark.usefixtures("no_chromium")
def test_every_host_is_listed_with_what_it_measured(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    other = fakeruns.make_run()["testbed"] | {"cpu_model": "Other <CPU>", "microcode": "0x2b", "memory": "64 GiB"}
    for experiment in ("mtu", "offloads"):
        fakeruns.write_run(raw, fakeruns.make_run(experiment=experiment, testbed=other))
    text = report.write(artifacts, raw).read_text(encoding="utf-8")
    section = text.partition('<h2 id="hosts">')[2].partition("<h2 ")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", section, re.DOTALL)]
    listed = {row[2]: [*row[1:2], *row[3:7], *row[8:]] for row in rows if row}
    assert listed == {
        "Example CPU": ["h0", "unknown", "6.1.0", "unknown", "local", "aead-goodput"],
        "Other &lt;CPU&gt;": ["h0", "0x2b", "6.1.0", "64 GiB", "local", "mtu, offloads"],
    }
    assert set(runs.table(raw)["host"]) == {row[0] for row in rows if row}


@pytest.mark.usefixtures("no_chromium")
def test_claims_have_a_page_with_verdicts_evidence_and_commands(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    index = report.write(artifacts, raw, project=Project(ROOT))
    page = (index.parent / "claims.html").read_text(encoding="utf-8")
    links = Links(page).targets
    assert "../figures/goodput-by-aead.html" in links
    assert "../tables/aead-goodput.csv" in links
    for target in links:
        path, _, anchor = target.partition("#")
        assert (index.parent / path).is_file() if path else f'id="{anchor}"' in page, target
    assert "https://" not in page
    assert "libraries=[msquic,quiche,tcp-tls]&#34;</code>" in page
    row = page.partition('<tr id="quantum-of-quic-fig3-noop-gain-quic">')[2].partition("</tr>")[0]
    assert '<td class="verdict holds">holds</td>' in row
    assert "NOOP / AES-128-GCM = 1.1" in row
    *others, runs_link = Links(row).targets[1:]
    assert others == ["../figures/goodput-by-aead.html", "../tables/aead-goodput.csv"]
    page_of_runs, _, words = runs_link.partition("#")
    assert page_of_runs == "runs.html"
    experiment, campaign, cells = unquote(words).split("+")
    assert (experiment, campaign) == ("aead-goodput", "c0ffee00")
    known = runs.table(raw).filter(pl.col("cell").is_in(cells.split("|")))
    assert set(known["label"]) == {"NOOP", "AES-128-GCM"}  # of what is compared, and nothing else
    assert re.search(r"testbed local, scale quick, (no|\d+) contaminated runs?, A/A 0\.\d{3} to 1\.\d{3}<", row)
    assert "raw/&lt;testbed&gt;/&lt;experiment&gt;</code> away" in page
    missing = page.partition('<tr id="quic-on-the-highway-fig3-lsquic-quiche">')[2].partition("</tr>")[0]
    assert "not yet: no programs of LSQUIC, and an external endpoint is not told the size of its buffers</p>" in missing
    assert "make all" not in missing
    # every claim leads to its figure, or says why to none
    for claim in page.split('<tr id="')[1:]:
        assert ("../figures/" in claim) != ("no figure: " in claim), claim.partition('"')[0]
    for claim, reason in (
        ("quantum-of-quic-fig4-aes-small", "header-protection shows it once it is measured"),
        ("quantum-of-quic-table3-public-key-falcon-512", "a number of our Table III"),
        ("quic-steps-trains-short", "there is no experiment pacing-baseline"),
    ):
        assert f"no figure: {reason}</p>" in page.partition(f'<tr id="{claim}">')[2].partition("</tr>")[0]
    overview = index.read_text(encoding="utf-8")
    assert 'href="claims.html#quantum-of-quic"' in overview
    assert "../tables/claims.csv" in Links(overview).targets


@pytest.mark.usefixtures("no_chromium")
def test_every_run_is_listed_with_its_directory(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    listing = (report.write(artifacts, raw).parent / "runs.html").read_text(encoding="utf-8")
    table = runs.table(raw)
    assert all(f">{origin}<" in listing for origin in table["origin"])
    assert listing.count("<tr>") == len(table) + 1


@pytest.mark.usefixtures("no_chromium")
def test_gaps_provenance_and_numbers_are_on_the_page(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    unreadable = fakeruns.write_run(raw, fakeruns.make_run(block=99)) / "run.json"
    unreadable.write_text("{")
    failed = fakeruns.write_run(raw, fakeruns.make_run(block=98, status="failed", reason="exit <1> & more", metrics={}))
    page = report.write(artifacts, raw).read_text(encoding="utf-8")
    assert unreadable.parent.relative_to(tmp_path).as_posix() + ": run.json: truncated" in page
    assert "quinn has no NOOP AEAD" in page
    assert "exit &lt;1&gt; &amp; more" in page
    assert failed.relative_to(tmp_path).as_posix() in page
    assert "run delay 0.21 of wall time" in page
    assert "sysctl.net.core.rmem_max" in page
    assert "ab" * 32 in page
    assert "revision 0123456789ab" in page
    ratio = comparison.figure_table(runs.select_campaign(runs.table(raw), "aead-goodput"))["ratio"].drop_nulls()[0]
    assert f">{ratio:.3f}<" in page


def test_failed_runs_name_both_ends(tmp_path: Path) -> None:
    made = fakeruns.make_run(status="failed", reason="it hung", metrics={})
    fakeruns.write_run(tmp_path / "raw", made | {"server": made["server"] | {"library": "ngtcp2"}})
    sheet = report._incidents(runs.table(tmp_path / "raw"), pl.col("status") == "failed")
    seen = dict(zip(sheet.headers, sheet.rows[0], strict=True))
    assert (seen["client"], seen["server"], seen["reason"]) == ("quinn", "ngtcp2", "it hung")


@pytest.mark.usefixtures("no_chromium")
def test_a_figure_of_other_runs_is_not_shown(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    manifest = artifacts / "figures" / "goodput-by-aead.json"
    assert "goodput-by-aead.html" in report.write(artifacts, raw).read_text(encoding="utf-8")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"campaign": "deadbeef"}))
    assert "goodput-by-aead.html" not in report.write(artifacts, raw).read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_chromium")
def test_what_was_captured_besides_is_listed_only_where_it_failed(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)

    def listed() -> dict[str, int]:
        page = report.write(artifacts, raw).read_text(encoding="utf-8")
        found = re.findall(r"<strong>(Unsupported cells|Failed runs|Contaminated runs)</strong>: (none|\d+)", page)
        return {what: 0 if count == "none" else int(count) for what, count in found}

    before = listed()
    changes: list[dict[str, Any]] = [
        {"contaminated": True, "contamination": ["the capture took processor time"]},
        {"status": "unsupported", "reason": "no NOOP AEAD", "block": None},
        {"status": "failed", "reason": "capture: no room"},
    ]
    for number, change in enumerate(changes):
        cell = {"id": f"besides{number}", "slug": "quinn-captured", "arm": "captured", "label": "x", "baseline": None}
        fakeruns.write_run(raw, fakeruns.make_run(cell=cell, **change))
    assert len(before) == 3
    assert listed() == before | {"Failed runs": before["Failed runs"] + 1}


def test_nothing_measured_is_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    page = report.write(tmp_path / "artifacts", tmp_path / "raw").read_text(encoding="utf-8")
    assert "Nothing measured yet." in page
    Links(page)


def test_records_are_read_from_archives_as_from_directories(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1)
    write_records(raw)
    (tree,) = provenance.campaigns(raw / "local")
    archive = fakeruns.archive(raw, "local", "aead-goodput", raw / "reference" / "aead-goodput.tar.gz")
    (packed,) = provenance.campaigns(archive.parent)
    assert tree.origin == "raw/local/aead-goodput/c0ffee00"
    assert packed.origin == "raw/reference/aead-goodput.tar.gz!local/aead-goodput/c0ffee00"
    assert packed.identity == tree.identity
    assert packed.sessions == tree.sessions
    assert packed.builds == tree.builds
    assert list(tree.builds) == ["quinn-stock-000000000001"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (write_records(raw) / "campaign.json").write_text("[")
    page = report.write(tmp_path / "artifacts", raw).read_text(encoding="utf-8")
    assert "raw/local/aead-goodput/c0ffee00/campaign.json: truncated or corrupt" in page


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"started_at": "2030-01-02T03:04:05"}, "has no time zone"),
        ({"started_at": "soon"}, "ValueError"),
        ({"cells": None}, "TypeError"),
        ({"cells": [{"id": "00000001"}]}, "KeyError: 'arm'"),
        ({"cells": [{"id": "1", "arm": "main", "label": 2, "baseline": None}]}, "no string"),
    ],
)
def test_a_session_without_a_usable_plan_is_named_and_an_older_one_holds(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    raw = tmp_path / "raw"
    directory = write_records(raw)
    good = json.loads((directory / "sessions" / "20300102T030405-7.json").read_text())
    (directory / "sessions" / "20310102T030405-7.json").write_text(json.dumps(good | change))
    (campaign,) = provenance.campaigns(raw)
    (problem,) = campaign.problems
    assert problem.startswith("raw/local/aead-goodput/c0ffee00/sessions/20310102T030405-7.json: ")
    assert reason in problem
    assert campaign.plan is not None
    assert campaign.plan.started_at.year == 2030


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


def run_notebook(raw: Path, artifacts: Path) -> str:
    page = artifacts / "notebooks" / "quantum-of-quic.html"
    environment = {"QUICBED_RAW": str(raw), "QUICBED_ARTIFACTS": str(artifacts)}
    notebooks.run(ROOT / "notebooks" / "quantum-of-quic.ipynb", environment, page)
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_notebook_says_what_was_not_measured(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, libraries=("quinn",))
    page = run_notebook(raw, tmp_path / "artifacts")
    lacking = set(re.findall(r"Not measured:</strong> there are no runs of ([^<]*) here", page))
    assert lacking == {"header-protection", "mtu", "cpu-shares", *HANDSHAKE_EXPERIMENTS}
    assert (tmp_path / "artifacts" / "figures" / "goodput-by-aead.html").is_file()


@pytest.mark.slow
def test_a_notebook_that_fails_is_one_error_that_names_it(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    path = tmp_path / "broken.ipynb"
    nbformat.write(notebook, path)
    with pytest.raises(notebooks.NotebookError, match=r"broken\.ipynb: ZeroDivisionError"):
        notebooks.run(path, {}, tmp_path / "broken.html")
    assert not (tmp_path / "broken.html").exists()


@pytest.mark.slow
def test_what_the_machine_lacks_is_one_line(tmp_path: Path) -> None:
    cell = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'x.csv')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    path = tmp_path / "full.ipynb"
    nbformat.write(notebook, path)
    says = r".*full\.ipynb: OSError: .*No space left on device: 'x\.csv': free some of the disk, then run the same .*"
    with pytest.raises(notebooks.NotebookError, match=f"^{says}$"):
        notebooks.run(path, {}, tmp_path / "full.html")


@pytest.mark.parametrize("content", ["", "{}", "[]", "no JSON"])
def test_a_file_that_is_no_notebook_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.ipynb"
    path.write_text(content)
    with pytest.raises(notebooks.NotebookError, match=r"odd\.ipynb"):
        notebooks.run(path, {}, tmp_path / "odd.html")
    with pytest.raises(notebooks.NotebookError, match="no such notebook"):
        notebooks.run(tmp_path / "absent.ipynb", {}, tmp_path / "odd.html")


def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    (root / "notebooks").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    configure(root)
    return root


def configure(root: Path, **more: object) -> None:
    (root / "config").mkdir(exist_ok=True)
    chosen = {"experiments": ["aead-goodput"], **more}
    (root / "config" / "config.yaml").write_text(json.dumps(chosen), encoding="utf-8")


def test_a_fresh_clone_reads_reference_data_and_a_used_one_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUICBED_RAW", raising=False)
    monkeypatch.delenv("QUICBED_ARTIFACTS", raising=False)
    monkeypatch.delenv("QUICBED_PUBLISHED", raising=False)
    root = clone(tmp_path)
    fresh = notebooks.place(root / "notebooks")
    assert fresh.raw == root / "raw" / "reference"
    assert fresh.artifacts == root / "artifacts" / "reference"
    assert fresh.published == {}
    assert fresh.reference
    (root / "artifacts" / "published" / "highway").mkdir(parents=True)
    assert notebooks.place(root).published == {}  # one that did not end
    (root / "artifacts" / "published" / "highway" / "import.json").touch()
    assert notebooks.place(root).published == {"highway": root / "artifacts" / "published" / "highway"}
    monkeypatch.setenv("QUICBED_PUBLISHED", "")
    assert notebooks.place(root).published == {}
    fakeruns.write_run(root / "raw", fakeruns.make_run())
    used = notebooks.place(root / "notebooks")
    assert used.raw == root / "raw" / "local"
    assert used.artifacts == root / "artifacts"
    assert not used.reference
    # what was measured on another testbed is not shown as if it were this one's
    configure(root, testbed="lab", paths={"raw": "kept/raw", "artifacts": "results"})
    other = notebooks.place(root / "notebooks")
    assert (other.raw, other.artifacts) == (root / "raw" / "reference", root / "results" / "reference")
    made = fakeruns.make_run()
    fakeruns.write_run(root / "kept" / "raw", made | {"testbed": made["testbed"] | {"name": "lab"}})
    lab = notebooks.place(root / "notebooks")
    assert (lab.raw, lab.artifacts) == (root / "kept" / "raw" / "lab", root / "results")


def test_the_environment_says_where_to_read_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICBED_RAW", str(tmp_path / "runs"))
    monkeypatch.setenv("QUICBED_ARTIFACTS", str(tmp_path / "out"))
    monkeypatch.setenv("QUICBED_PUBLISHED", str(tmp_path / "theirs" / "highway"))
    root = clone(tmp_path)
    place = notebooks.place(root)
    assert place.published == {"highway": tmp_path / "theirs" / "highway"}
    assert (place.raw, place.tables, place.figures) == (
        tmp_path / "runs",
        tmp_path / "out" / "tables",
        tmp_path / "out" / "figures",
    )


def test_an_import_that_lies_about_changes_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    config = ["--config", json.dumps({"paths": {"artifacts": str(artifacts)}})]
    told: list[str] = []
    monkeypatch.setattr(notebooks, "run", lambda _, environment, __: told.append(environment["QUICBED_PUBLISHED"]))

    def write(*published: str) -> dict[str, bytes]:
        notebook = ["notebook", str(NOTEBOOKS[0]), str(raw), str(artifacts), str(tmp_path / "page.html")]
        assert commands.main([*config, *notebook, *published]) == 0
        assert commands.main([*config, "report", str(raw), str(artifacts), *published]) == 0
        found = {}
        for directory in (artifacts / "report", artifacts / "tables"):
            files = (path for path in directory.rglob("*") if path.is_file())
            found |= {str(path.relative_to(directory)): path.read_bytes() for path in files}
        return found

    before = write()
    theirs = artifacts / "published" / "steps"
    packets = json.dumps([[moment, moment, 1242, -1] for moment in range(0, 90_000_000, 1_000_000)]).encode()
    gaps = {f"picoquic-cubic/picoquic-cubic-rep{number}.pcap.json": packets for number in (1, 2, 3)}
    reading.read("steps", samples.write(gaps, tmp_path / "copy"), theirs)
    assert write() == before
    beside = write("--published", str(theirs))
    assert "claims-published.csv" in beside
    assert beside["claims.html"] != before["claims.html"]
    assert write() == before
    assert told == ["", "", str(theirs), ""]


def test_outside_a_clone_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(notebooks.NotebookError, match="not inside a clone"):
        notebooks.place(tmp_path)


def test_the_figures_of_one_experiment_are_drawn_as_the_notebook_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(goodput, "_write_static", lambda *_: "not here")
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    for name in ("aead-goodput", "header-protection"):
        for one in fakeruns.campaign(name, blocks=3):
            fakeruns.write_run(raw, one)
    log, marker = tmp_path / "log", tmp_path / "marker.json"
    argv = ["draw", "aead-goodput", str(raw), str(artifacts), "--messages", str(log), "--marker", str(marker)]
    assert commands.main(argv) == 0
    page = artifacts / "figures" / "goodput-by-aead.html"
    assert capsys.readouterr().err == f"figure goodput-by-aead is ready: {page}\n"
    assert page.is_file()
    assert (artifacts / "tables" / "aead-goodput.parquet").is_file()
    assert {file.stem for file in (artifacts / "figures").glob("*.html")} == {"goodput-by-aead"}  # and no other
    assert json.loads(marker.read_text(encoding="utf-8")) == {"figures": ["goodput-by-aead"]}
    # one that has no cells of its own, and one that cannot be drawn
    assert commands.main(["draw", "offloads", *argv[2:]]) == 0
    assert capsys.readouterr().err == "offloads: its figures are drawn at the end\n"
    monkeypatch.setattr(goodput, "goodput_by_aead", lambda *_: 1 / 0)
    assert commands.main(argv) == 0
    assert "its figures cannot be drawn yet" in capsys.readouterr().err
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")


def test_tags_of_notebooks_are_names_of_experiments() -> None:
    known = {path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml")} | {notebooks.FIRST}
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert {tag for cell in cells for tag in cell.metadata.get("tags", [])} <= known
        first = [number for number, cell in enumerate(cells) if notebooks.FIRST in cell.metadata.get("tags", [])]
        assert len(first) == 1
