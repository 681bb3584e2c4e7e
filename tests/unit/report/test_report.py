"""The report, the notebook that makes the figures, and the records they tell provenance from."""

from __future__ import annotations

import json
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import nbformat
import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

import fakeruns
import wording
from clone import ROOT
from quicbed.analysis import comparison, place
from quicbed.base.errors import QuicbedError
from quicbed.cli import commands
from quicbed.config.model import Project
from quicbed.figures import goodput, output
from quicbed.importers import samples
from quicbed.papers import reading
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
        "campaign.json": fakeruns.CAMPAIGN | {"experiment": experiment},
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


def assert_links(page: Path) -> None:
    """Every link of a page leads to a file and a place in it, or selects runs; nothing is fetched from elsewhere."""
    text = page.read_text(encoding="utf-8")
    for target in Links(text).targets:
        path, _, anchor = target.partition("#")
        if target == "data:,":  # there is no icon
            continue
        file = page.parent / unquote(path) if path else page
        assert file.is_file(), target
        if "=" in anchor:
            assert path in ("runs.html", "claims.html"), target
        elif anchor:
            assert f'id="{unquote(anchor)}"' in file.read_text(encoding="utf-8"), target
    assert "http://" not in text
    assert "https://" not in text


def listed(index: Path) -> dict[str, Any]:
    """What the page of runs lists: as `runs.js` unpacks it."""
    page = (index.parent / "runs.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    texts = {name: [known[place] for place in places] for name, (known, places) in found["texts"].items()}
    return {**found["numbers"], **texts, "figures": found["figures"]}


def make(tmp_path: Path) -> tuple[Path, Path]:
    """Runs, and artifacts with a figure and its tables."""
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=6)
    write_records(raw)
    table = details.write_tables(raw, artifacts / "tables" / "runs.parquet")
    campaign, cells = goodput.experiment_table(table, "aead-goodput")
    comparison.write_figure_table(cells, "aead-goodput", artifacts / "tables")
    output.save(goodput.goodput_by_aead(campaign, cells), artifacts / "figures")
    return raw, artifacts


def test_pages_are_well_formed_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    index = report.write(artifacts, raw)
    pages = sorted(index.parent.glob("*.html"))
    named = ["experiment-aead-goodput.html", "index.html", "provenance.html", "runs.html"]
    assert [page.name for page in pages] == named
    for page in pages:
        assert_links(page)


def cells_of(table: str) -> list[list[str]]:
    """The texts of the cells of a table, a list each row."""
    rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    return [re.findall(r"<td[^>]*>(?:<a [^>]*>)?([^<]*)<", row) for row in rows]


def test_every_host_is_listed_with_what_it_measured(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    other = fakeruns.make_run()["testbed"] | {"cpu_model": "Other <CPU>", "microcode": "0x2b", "memory": "64 GiB"}
    for experiment in ("mtu", "offloads"):
        fakeruns.write_run(raw, fakeruns.make_run(experiment=experiment, testbed=other))
    text = (report.write(artifacts, raw).parent / "provenance.html").read_text(encoding="utf-8")
    section = text.partition('<h2 id="hosts">')[2].partition("</table>")[0]
    rows = cells_of(section)
    listed = {row[2]: [*row[1:2], *row[3:7], *row[8:]] for row in rows if row}
    assert listed == {
        "Example CPU": ["h0", "unknown", "6.1.0", "unknown", "local", "aead-goodput"],
        "Other &lt;CPU&gt;": ["h0", "0x2b", "6.1.0", "64 GiB", "local", "mtu, offloads"],
    }
    assert set(runs.table(raw)["host"]) == {row[0] for row in rows if row}


@pytest.fixture
def studied(tmp_path: Path) -> Project:
    """A project with the study `mine`, which leaves out a campaign that was measured later."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for name in ("crypto", "sources"):
        (tmp_path / "workflow").mkdir(exist_ok=True)
        (tmp_path / "workflow" / name).symlink_to(ROOT / "workflow" / name)
    study = {
        "title": "Mine",
        "question": "None.",
        "experiments": {"aead-goodput": {"bytes": 1000, "blocks": 2, "figures": ["goodput-by-aead"]}},
        "left_out": [{"experiment": "aead-goodput", "campaign": "bad00000", "reason": "the machine <slept>"}],
    }
    (tmp_path / "config" / "studies" / "mine.yaml").write_text(json.dumps(study), encoding="utf-8")
    return Project(tmp_path)


def of_study(raw: Path, digest: str, campaign: str, *, later: int = 0) -> None:
    """A campaign of a study."""
    start = fakeruns.START.replace(year=fakeruns.START.year + later)
    written = list(fakeruns.campaign("aead-goodput", blocks=3, campaign_id=campaign, start=start, scale="mine"))
    for run in written:
        fakeruns.write_run(raw, run | {"study": {"name": "mine", "digest": digest}})
    fakeruns.write_session(raw, "aead-goodput", fakeruns.plan(written), start, campaign)


def test_what_a_study_leaves_out_is_named_with_the_reason_and_counts_for_nothing(
    tmp_path: Path, studied: Project
) -> None:
    raw = tmp_path / "raw"
    digest = studied.studies["mine"].digest
    of_study(raw, digest, "90000000")
    of_study(raw, digest, "bad00000", later=1)
    index = report.write(tmp_path / "artifacts", raw, project=studied)
    page = (index.parent / "experiment-aead-goodput.html").read_text(encoding="utf-8")
    how = page.partition('<h2 id="how">')[2]
    assert "of campaign 90000000</a>" in how
    assert "study mine," in how
    assert ">bad00000</a> (study mine, left out: the machine &lt;slept&gt;)" in how
    told = (index.parent / "provenance.html").read_text(encoding="utf-8")
    section = told.partition('<h2 id="left-out">')[2].partition("<h2")[0]
    row = re.findall(r"<td[^>]*>(.*?)</td>", section)
    of_it = (runs.table(raw)["campaign"] == "bad00000").sum()
    link = f"<a href='runs.html#campaign=bad00000'>{of_it}</a>"
    assert row == ["mine", "aead-goodput", "bad00000", "the machine &lt;slept&gt;", link]
    first = index.read_text(encoding="utf-8")
    assert "1 campaign</a> of a study\nis left out, with the reason" in first
    assert "under different rules" not in first
    verdicts = json.loads((tmp_path / "artifacts" / "tables" / "claims.json").read_text(encoding="utf-8"))["verdicts"]
    assert {one["campaign"] for one in verdicts if one["campaign"]} == {"90000000"}


def test_runs_of_another_study_replace_none_silently(tmp_path: Path, studied: Project) -> None:
    raw = tmp_path / "raw"
    of_study(raw, "0" * 12, "90000000")
    fakeruns.write_campaign(raw, "header-protection", blocks=3)
    fakeruns.write_campaign(raw, "aead-goodput", blocks=3, start=fakeruns.START.replace(year=2031))
    index = report.write(tmp_path / "artifacts", raw, project=studied)
    page = (index.parent / "experiment-aead-goodput.html").read_text(encoding="utf-8")
    assert "scale quick, of no study" in page
    assert ">90000000</a> (study with rules that no longer exist (000000000000))" in page
    assert "under different rules" not in index.read_text(encoding="utf-8")
    of_study(raw, studied.studies["mine"].digest, "80000000", later=9)
    index = report.write(tmp_path / "artifacts", raw, project=studied)
    assert "measured under different rules: scale quick, study mine." in index.read_text(encoding="utf-8")


def test_what_is_not_decided_is_listed_with_what_would_decide_it(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    index = report.write(artifacts, raw, project=Project(ROOT))
    table = pl.read_parquet(artifacts / "tables" / "undecided.parquet")
    assert len(table) > 3
    assert (table["half_width"] > 0.01).all()
    assert (table["more_blocks"] > 0).all()
    page = (index.parent / "experiment-aead-goodput.html").read_text(encoding="utf-8")
    section = page.partition('<h2 id="undecided">')[2].partition("<h2")[0]
    rows = cells_of(section)
    assert [(row[1], row[6]) for row in rows if row] == [
        (label, str(blocks)) for label, blocks in table.select("label", "more_blocks").rows()
    ]
    assert f"{len(table)} intervals are wider than \N{PLUS-MINUS SIGN}1 %" in section


def test_claims_have_a_page_with_verdicts_evidence_and_commands(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    index = report.write(artifacts, raw, project=Project(ROOT))
    for page in index.parent.glob("*.html"):
        assert_links(page)
    page = (index.parent / "claims.html").read_text(encoding="utf-8")
    assert "../figures/goodput-by-aead.html" in Links(page).targets
    assert "../tables/aead-goodput.csv" in Links(page).targets
    assert "libraries=[msquic,quiche,tcp-tls]&#34;</code>" in page
    row = page.partition('id="quantum-of-quic-fig3-noop-gain-quic"')[2].partition("</article>")[0]
    assert '<span class="verdict holds">holds</span>' in row
    assert "NOOP / AES-128-GCM = <a" in row
    page_of_runs, _, chosen = next(one for one in Links(f"<p {row}</p>").targets if "cell=" in one).partition("#")
    assert page_of_runs == "runs.html"
    selected = dict(parse_qsl(chosen))
    assert selected["campaign"] == "c0ffee00"
    known = runs.table(raw).filter(pl.col("cell").is_in(selected["cell"].split(",")))
    assert set(known["label"]) == {"NOOP", "AES-128-GCM"}  # of what is compared, and nothing else
    assert re.search(r"testbed local, scale quick, (no|\d+) contaminated runs?, A/A 0\.\d{3} to 1\.\d{3}<", row)
    missing = page.partition('id="quic-on-the-highway-fig3-lsquic-quiche"')[2].partition("</article>")[0]
    assert "not yet: needs LSQUIC as an external endpoint</p>" in missing
    assert "make all" not in missing
    # every claim leads to its figure, or says why to none
    for claim in page.split('<article class="claim" id="')[1:]:
        claim = claim.partition("</article>")[0]
        assert ("../figures/" in claim) != ("no figure: " in claim), claim.partition('"')[0]
    for name, reason in (
        ("quantum-of-quic-fig4-aes-small", "header-protection shows it once it is measured"),
        ("quic-steps-trains-short", "steps-fig3 shows it once it is measured"),
        ("quic-steps-table1-dropped-quiche", "a number from Table 1"),
    ):
        assert f"no figure: {reason}</span>" in page.partition(f'id="{name}"')[2].partition("</article>")[0]
    # every result of a paper beside what was measured, and where
    of_paper = (index.parent / "paper-quantum-of-quic.html").read_text(encoding="utf-8")
    results = of_paper.partition('id="results"')[2].partition("</table>")[0]
    told = next(
        row for row in cells_of(results) if row and row[1].startswith("For QUIC, goodput with NOOP is 10 to 20 %")
    )
    assert (told[3], told[6], told[7][-20:]) == ("holds", "aead-goodput", "(Example CPU, 6.1.0)")
    # each claim once, however many causes it has
    ids = re.findall(r'class="claim" id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == pl.read_parquet(artifacts / "tables" / "claims.parquet")["claim"].n_unique()
    first = index.read_text(encoding="utf-8")
    assert 'href="paper-quantum-of-quic.html"' in first
    assert "For QUIC, goodput with NOOP is 10 to 20 % higher than with AES." in first
    assert "experiment-aead-goodput.html#figure-goodput-by-aead" in Links(first).targets


def test_every_run_is_listed_with_its_directory(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    shown = listed(report.write(artifacts, raw))
    table = runs.table(raw)
    origins = [f"{place}/{name}" for place, name in zip(shown["place"], shown["name"], strict=True)]
    assert origins == table["origin"].to_list()
    assert shown["label"] == table["label"].to_list()
    assert shown["goodput_mbps"] == pytest.approx(table["goodput_mbps"].to_list(), abs=0.05, nan_ok=True)
    manifest = json.loads((artifacts / "figures" / "goodput-by-aead.json").read_text())
    ranges = shown["figures"]["goodput-by-aead"]
    assert {origins[first + more] for first, count in ranges for more in range(count)} == set(manifest["runs"])


def test_gaps_provenance_and_numbers_are_on_the_page(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    unreadable = fakeruns.write_run(raw, fakeruns.make_run(block=99)) / "run.json"
    unreadable.write_text("{")
    failed = fakeruns.write_run(raw, fakeruns.make_run(block=98, status="failed", reason="exit <1> & more", metrics={}))
    index = report.write(artifacts, raw)
    first = index.read_text(encoding="utf-8")
    assert unreadable.parent.relative_to(tmp_path).as_posix() + ": run.json: truncated" in first
    page = (index.parent / "experiment-aead-goodput.html").read_text(encoding="utf-8")
    assert "quinn has no NOOP AEAD" in page
    assert "exit &lt;1&gt; &amp; more" in page
    assert failed.relative_to(tmp_path).as_posix() in page
    assert "run delay 0.21 of wall time" in page
    made_with = (index.parent / "provenance.html").read_text(encoding="utf-8")
    assert "sysctl.net.core.rmem_max" in made_with
    assert "ab" * 32 in made_with
    assert "revision 0123456789ab" in made_with
    ratio = comparison.figure_table(runs.select_campaign(runs.table(raw), "aead-goodput"))["ratio"].drop_nulls()[0]
    # with the runs of both cells behind it; that of processor time is the same in made-up runs
    (behind,) = set(re.findall(rf"<a href='runs.html#([^']*)'>{ratio:.3f}</a>", page))
    assert len(dict(parse_qsl(unescape(behind)))["cell"].split(",")) == 2


def test_failed_runs_name_both_ends(tmp_path: Path) -> None:
    made = fakeruns.make_run(status="failed", reason="it hung", metrics={})
    fakeruns.write_run(tmp_path / "raw", made | {"server": made["server"] | {"library": "ngtcp2"}})
    sheet = report._incidents(runs.table(tmp_path / "raw"), pl.col("status") == "failed")
    seen = dict(zip(sheet.headers, sheet.rows[0], strict=True))
    assert (seen["client"], seen["server"], seen["reason"]) == ("quinn", "ngtcp2", "it hung")


def test_a_figure_of_other_runs_is_not_shown(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)
    manifest = artifacts / "figures" / "goodput-by-aead.json"

    def page() -> str:
        written = report.write(artifacts, raw).parent / "experiment-aead-goodput.html"
        return written.read_text(encoding="utf-8")

    assert "goodput-by-aead.html" in page()
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"campaign": "deadbeef"}))
    assert "goodput-by-aead.html" not in page()


def test_what_was_captured_besides_is_listed_only_where_it_failed(tmp_path: Path) -> None:
    raw, artifacts = make(tmp_path)

    def counted() -> dict[str, int]:
        page = (report.write(artifacts, raw).parent / "experiment-aead-goodput.html").read_text(encoding="utf-8")
        found = re.findall(r"<strong>(Unsupported cells|Failed runs|Contaminated runs)</strong>: (\d+)", page)
        return {what: int(count) for what, count in found}

    before = counted()
    changes: list[dict[str, Any]] = [
        {"contaminated": True, "contamination": ["the capture took processor time"]},
        {"status": "unsupported", "reason": "no NOOP AEAD", "block": None},
        {"status": "failed", "reason": "capture: no room"},
    ]
    for number, change in enumerate(changes):
        cell = {"id": f"besides{number}", "slug": "quinn-captured", "arm": "captured", "label": "x", "baseline": None}
        fakeruns.write_run(raw, fakeruns.make_run(cell=cell, **change))
    assert "Unsupported cells" in before
    assert counted() == before | {"Failed runs": before.get("Failed runs", 0) + 1}


def test_nothing_measured_is_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    page = report.write(tmp_path / "artifacts", tmp_path / "raw").read_text(encoding="utf-8")
    assert "Nothing measured yet." in page
    Links(page)


def test_records_are_read_from_archives_as_from_directories(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1)
    write_records(raw)
    (tree,) = details.read(raw / "local").campaigns
    archive = fakeruns.archive(raw, "local", "aead-goodput", raw / "reference" / "aead-goodput.tar.gz")
    (packed,) = details.read(archive.parent).campaigns
    assert tree.origin == "raw/local/aead-goodput/c0ffee00"
    assert packed.origin == "raw/reference/aead-goodput.tar.gz!local/aead-goodput/c0ffee00"
    assert packed.campaign == tree.campaign is not None
    assert packed.sessions == tree.sessions
    assert packed.builds == tree.builds
    assert list(tree.builds) == ["quinn-stock-000000000001"]
    assert provenance.of_frame(provenance.frame([tree, packed])) == [tree, packed]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (write_records(raw) / "campaign.json").write_text("[")
    page = report.write(tmp_path / "artifacts", raw).read_text(encoding="utf-8")
    assert "raw/local/aead-goodput/c0ffee00/campaign.json: truncated or corrupt" in page


@pytest.mark.parametrize(
    "change",
    [
        {"started_at": "2030-01-02T03:04:05"},
        {"started_at": "soon"},
        {"cells": None},
        {"cells": [{"id": "00000001", "slug": "a", "label": "A"}]},
        {"cells": [{"id": "1", "slug": "a", "arm": "main", "label": 2}]},
        {"format": 2},
    ],
    ids=wording.name,
)
def test_a_session_without_a_usable_plan_is_named_and_an_older_one_holds(
    tmp_path: Path, change: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    raw = tmp_path / "raw"
    directory = write_records(raw)
    good = json.loads((directory / "sessions" / "20300102T030405-7.json").read_text())
    (directory / "sessions" / "20310102T030405-7.json").write_text(json.dumps(good | change))
    (campaign,) = details.read(raw).campaigns
    (problem,) = campaign.problems
    assert problem.startswith("raw/local/aead-goodput/c0ffee00/sessions/20310102T030405-7.json: ")
    assert wording.one_line(problem) == snapshot
    assert campaign.newest is not None
    assert campaign.newest.started_at.year == 2030


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("content", ["", "{}", "[]", "no JSON"])
def test_a_file_that_is_no_notebook_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.ipynb"
    path.write_text(content)
    with pytest.raises(notebooks.NotebookError, match=r"odd\.ipynb"):
        notebooks.run([path], {}, tmp_path)
    with pytest.raises(notebooks.NotebookError, match="no such notebook"):
        notebooks.run([tmp_path / "absent.ipynb"], {}, tmp_path)


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
    fresh = place.here(root / "notebooks")
    assert fresh.raw == root / "raw" / "reference"
    assert fresh.artifacts == root / "artifacts" / "reference"
    assert fresh.published == {}
    assert fresh.reference
    (root / "artifacts" / "published" / "highway").mkdir(parents=True)
    assert place.here(root).published == {}  # one that did not end
    (root / "artifacts" / "published" / "highway" / "import.json").touch()
    assert place.here(root).published == {"highway": root / "artifacts" / "published" / "highway"}
    monkeypatch.setenv("QUICBED_PUBLISHED", "")
    assert place.here(root).published == {}
    fakeruns.write_run(root / "raw", fakeruns.make_run())
    used = place.here(root / "notebooks")
    assert used.raw == root / "raw" / "local"
    assert used.artifacts == root / "artifacts"
    assert not used.reference
    # what was measured on another testbed is not shown as if it were this one's
    configure(root, testbed="lab", paths={"raw": "kept/raw", "artifacts": "results"})
    other = place.here(root / "notebooks")
    assert (other.raw, other.artifacts) == (root / "raw" / "reference", root / "results" / "reference")
    made = fakeruns.make_run()
    fakeruns.write_run(root / "kept" / "raw", made | {"testbed": made["testbed"] | {"name": "lab"}})
    lab = place.here(root / "notebooks")
    assert (lab.raw, lab.artifacts) == (root / "kept" / "raw" / "lab", root / "results")


def test_the_environment_says_where_to_read_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICBED_RAW", str(tmp_path / "runs"))
    monkeypatch.setenv("QUICBED_ARTIFACTS", str(tmp_path / "out"))
    monkeypatch.setenv("QUICBED_PUBLISHED", str(tmp_path / "theirs" / "highway"))
    root = clone(tmp_path)
    here = place.here(root)
    assert here.published == {"highway": tmp_path / "theirs" / "highway"}
    assert (here.raw, here.tables, here.figures) == (
        tmp_path / "runs",
        tmp_path / "out" / "tables",
        tmp_path / "out" / "figures",
    )


def test_an_import_that_lies_about_changes_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    config = ["--config", json.dumps({"paths": {"artifacts": str(artifacts)}})]
    told: list[str] = []
    monkeypatch.setattr(notebooks, "run", lambda _, environment, *__: told.append(environment["QUICBED_PUBLISHED"]))

    def write(*published: str) -> dict[str, bytes]:
        notebook = ["notebooks", str(raw), str(artifacts), str(NOTEBOOKS[0])]
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
    with pytest.raises(QuicbedError, match="not inside a clone"):
        place.here(tmp_path)


def test_the_figures_of_one_experiment_are_drawn_as_the_notebook_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "environ", dict(os.environ))
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
    monkeypatch.setattr(goodput, "goodput_by_aead", lambda *_, **__: 1 / 0)
    assert commands.main(argv) == 0
    assert "its figures cannot be drawn yet" in capsys.readouterr().err
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("measured", [True, False])
def test_the_example_of_an_own_analysis_has_the_ratios_of_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    raw, artifacts = tmp_path / "raw", tmp_path / "artifacts"
    raw.mkdir()
    if measured:
        fakeruns.write_campaign(raw, "aead-goodput", blocks=4)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("QUICBED_RAW", str(raw))
    monkeypatch.setenv("QUICBED_ARTIFACTS", str(artifacts))
    namespace: dict[str, Any] = {}
    for cell in nbformat.read(ROOT / "notebooks" / "your-own-analysis.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "your-own-analysis", "exec"), namespace)  # noqa: S102 (our own notebook)
    table = comparison.figure_table(runs.select_campaign(runs.table(raw), "aead-goodput"))
    shown = table.filter(label="ChaCha20-Poly1305", arm="main").filter(pl.col("ratio_low").is_not_null())
    assert shown.is_empty() is not measured
    ratios = namespace["ratios"].table
    assert ratios.drop("library").rows() == shown.select("ratio", "ratio_low", "ratio_high", "ratio_n").rows()
    assert ratios["library"].to_list() == [namespace["mine"].titles[name] for name in shown["client_library"]]
    assert (artifacts / "figures" / "own" / "own-ratios.html").is_file() is measured


def test_tags_of_notebooks_are_names_of_experiments() -> None:
    known = {path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml")} | {notebooks.FIRST}
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert {tag for cell in cells for tag in cell.metadata.get("tags", [])} <= known
        first = [number for number, cell in enumerate(cells) if notebooks.FIRST in cell.metadata.get("tags", [])]
        assert len(first) == 1


def test_an_experiment_of_pairs_has_a_page_of_ratios(tmp_path: Path) -> None:
    fakeruns.write_pairs(tmp_path / "raw")
    written = report.write(tmp_path / "artifacts", tmp_path / "raw").parent / "experiment-aead-pairs.html"
    text = written.read_text(encoding="utf-8")
    assert "ratio of processor time per byte, both ends" in text
    assert "Gbit/s" not in text, "they have no goodput"
    Links(text)
