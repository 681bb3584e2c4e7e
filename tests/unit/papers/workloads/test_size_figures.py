"""Figures and the table of downloads by size: every value is drawn, every change told, and what is left out said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis.place import ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE
from quicbed.claims import papers
from quicbed.config.model import Project
from quicbed.figures.output import NotMeasured
from quicbed.papers.workloads import http3, size_figures, sizes, video, web
from quicbed.papers.workloads.sections import Workloads
from quicbed.plan.arms import LEFT_OUT
from quicbed.store import runs
from quicbed.store.paths import RAW_VARIABLE
from runlinks import filters

SIZES = {"1 kB": 1_000, "1 MB": 1_000_000, "200 MB": 200_000_000}
RATES = {
    # throughput by size, of QUIC: turns at 1 MB, is always slower, and has no large download
    ("quinn", None): (40.0, 1000.0, 1500.0),
    ("noq", None): (5.0, 500.0, 1000.0),
    ("aioquic", None): (30.0, 100.0, None),
    ("tcp-tls", "TLSv1.3"): (20.0, 1000.0, 6000.0),
    ("tcp-tls", "TLSv1.2"): (10.0, 1100.0, 6000.0),
}
TITLES = {"quinn": "Quinn & co"}


def storage(raw: Path, blocks: int = 3) -> pl.DataFrame:
    """Runs of these; the largest size is left out, with all libraries, where there is none of any."""
    for (library, version), rates in RATES.items():
        for (label, size), rate in zip(SIZES.items(), rates, strict=True):
            for block in range(blocks if rate else 1):
                made = fakeruns.make_run(
                    experiment="cloud-storage",
                    cell={
                        "id": f"{library}-{version}-{size}",
                        "slug": f"{library}-{version}-{size}",
                        "label": label if version != "TLSv1.2" else f"{label}, TLS 1.2",
                        "arm": "main",
                        "baseline": None,
                    },
                    client={"library": library, "flavour": "stock", "version": "1", "build": library},
                    server={"library": library, "flavour": "stock", "version": "1", "build": library},
                    block=block,
                )
                header_protection = True if version is None else None
                made["variant"] = made["variant"] | {"header_protection": header_protection, "tls_version": version}
                made["workload"] = made["workload"] | {"bytes": size}
                if rate is None:
                    made |= {"status": "unsupported", "reason": "it takes <long>", "metrics": {}, "block": None}
                else:
                    own = rate * (1 + 0.01 * block)
                    cpu = {"client_cpu_s": size / own / 1e6, "server_cpu_s": size / own / 1e6}
                    made["metrics"] = {"goodput_mbps": own, "throughput_mbps": own, "bytes": size, **cpu}
                fakeruns.write_run(raw, made)
    left = fakeruns.make_run(experiment="cloud-storage", status="unsupported", block=None, metrics={})
    left |= {"reason": f"{LEFT_OUT}scale quick has no larger ones"}
    left["cell"] |= {"id": "2", "slug": "2", "label": "2 GB"}
    left["workload"] = left["workload"] | {"bytes": 2_000_000_000}
    fakeruns.write_run(raw, left)
    vain = fakeruns.make_run(experiment="cloud-storage", status="unsupported", block=None, metrics={})
    vain |= {"reason": "QUIC has no TLS before 1.3", "variant": vain["variant"] | {"tls_version": "TLSv1.2"}}
    vain["cell"] |= {"id": "3", "slug": "3", "label": "1 kB, TLS 1.2"}
    vain["workload"] = vain["workload"] | {"bytes": 1000}
    fakeruns.write_run(raw, vain)
    return runs.table(raw)


@pytest.fixture
def found(tmp_path: Path) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    campaign = runs.select_campaign(storage(tmp_path / "raw"), sizes.EXPERIMENT)
    table = sizes.by_size(campaign)
    return campaign, table, sizes.changes(campaign, table)


def test_every_library_has_its_line_beside_both_versions_of_tls(
    found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    drawn = size_figures.by_size(*found, "throughput_mbps", TITLES)
    lines = [trace for trace in drawn.figure.data if trace.name]
    assert [trace.name for trace in lines] == ["TLS 1.2 over TCP", "TLS 1.3 over TCP", "QUIC"] * 3
    assert sum(trace.showlegend for trace in lines) == 3
    titles = [annotation.text for annotation in drawn.figure.layout.annotations]
    assert titles[:3] == ["<b>aioquic</b>", "<b>noq</b>", "<b>Quinn &amp; co</b>"]
    quinn = lines[8]
    assert list(quinn.x) == list(SIZES.values())
    assert list(quinn.y) == pytest.approx([40.4, 1010, 1515])
    assert len(lines[2].x) == 2
    absent = [one for one in drawn.figure.layout.annotations if one.text == "unsupported"]
    assert [(one.hovertext, one.x) for one in absent] == [("it takes &lt;long&gt;", pytest.approx(8.301, abs=1e-3))]
    assert "Not measured at scale quick: 2 GB." in drawn.figure.layout.meta["caption"]
    assert len(drawn.origins) == 3 * (3 * 5 - 1)


def test_the_size_of_a_change_is_marked_with_its_interval(
    found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    drawn = size_figures.by_size(*found, "throughput_mbps", TITLES)
    marks = [trace for trace in drawn.figure.data if not trace.name]
    by_text = {trace.hovertext: trace for trace in marks}
    # quinn is as fast as TLS 1.3 at 1 MB in every block
    assert list(by_text["1 MB (1 MB)"].x) == pytest.approx([1e6] * 3)
    # aioquic turns below 1 MB against both versions, quinn against TLS 1.2
    assert len(marks) == 4
    assert {tuple(trace.marker.symbol[1:2]) for trace in marks} == {("square",), ("diamond",)}


def test_an_open_end_of_an_interval_is_an_arrow() -> None:
    change = {"smallest": 1000, "largest": 10**9, "bytes": 2e6, "low": 0.0, "high": float("inf")}
    assert size_figures.interval_text(change) == "below 1 kB to above 1 GB"
    assert size_figures.interval_text(change | {"low": None}) == "no interval: one block"


@pytest.mark.parametrize(
    ("size", "text"),
    [(1000, "1 kB"), (999.9, "1 kB"), (20_000_000, "20 MB"), (1_549_000, "1.5 MB"), (2e9, "2 GB"), (12, "12 B")],
)
def test_sizes_are_told_in_two_digits(size: float, text: str) -> None:
    assert size_figures.size_text(size) == text


def test_the_table_names_what_is_better_and_says_none(
    found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    sheet = size_figures.changes_sheet(found[2], TITLES)
    rows = {(row[0], row[1], row[2]): row for row in sheet.rows}
    assert len(rows) == len(sheet.rows) == 12
    never = rows["noq", "tcp-tls, TLS 1.3", "Mbit/s"]
    assert never[3:7] == ["TLS 1.3", "none", "below 1 kB", "TLS 1.3"]
    turned = rows["Quinn & co", "tcp-tls, TLS 1.3", "Mbit/s"]
    assert turned[3:7] == ["QUIC", "1 MB", "1 MB", "TLS 1.3"]
    selected = sheet.behind[sheet.rows.index(turned), 4]
    behind = found[0].filter(filters(selected))
    assert set(behind["client_library"]) == {"quinn", "tcp-tls"}
    assert set(behind.filter(client_library="tcp-tls")["tls_version"]) == {"TLSv1.3"}
    assert len(set(behind["cell"])) == 2 * len(set(behind["bytes"]))
    # what is faster takes less time of the processor in these runs
    assert rows["Quinn & co", "tcp-tls, TLS 1.3", "CPU s per GiB"][4] == "1 MB"


def test_a_sentence_counts_libraries_and_names_sizes(
    found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    told = size_figures.found(found[2], "throughput_mbps", TITLES)
    assert told is not None
    assert told.sentences[0].startswith(
        "Against TLS 1.3, QUIC is faster with 2 of 3 libraries at 1 kB and with 0 at the largest size, up to 200 MB."
    )
    assert "Quinn & co at 1 MB (1 MB)" in told.sentences[0]
    assert size_figures.found(found[2].clear(), "throughput_mbps", TITLES) is None


# ---- notebook --------------------------------------------------------------------------------------------------------


def shown(monkeypatch: pytest.MonkeyPatch, raw: Path, artifacts: Path) -> list[Any]:
    """What the cells of the notebook show."""
    environment = {RAW_VARIABLE: str(raw), ARTIFACTS_VARIABLE: str(artifacts), PUBLISHED_VARIABLE: ""}
    monkeypatch.setattr(os, "environ", {**os.environ, **environment})
    monkeypatch.chdir(ROOT / "notebooks")
    namespace: dict[str, Any] = {}
    found = []
    for cell in json.loads(Path("workloads.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            *statements, last = "".join(cell["source"]).splitlines()
            exec("\n".join(statements), namespace)  # noqa: S102 (our own notebook)
            found.append(eval(last, namespace))  # noqa: S307
    return found


def test_the_notebook_says_how_to_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    missing = [one for one in shown(monkeypatch, tmp_path / "raw", tmp_path / "made") if isinstance(one, NotMeasured)]
    sections = {
        sizes.EXPERIMENT: 3,
        http3.EXPERIMENT: 2,
        web.EXPERIMENT: 6,
        web.REUSE: 1,
        web.BROWSER: 4,
        video.EXPERIMENT: 3,
    }
    assert [one.experiment for one in missing] == [name for name, count in sections.items() for _ in range(count)]
    for one in missing:
        assert f"experiments=[{one.experiment}]" in one._repr_html_()


def test_the_notebook_writes_figures_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage(tmp_path / "raw")
    found = shown(monkeypatch, tmp_path / "raw", tmp_path / "made")
    assert {one.experiment for one in found if isinstance(one, NotMeasured)} == {
        http3.EXPERIMENT,
        web.EXPERIMENT,
        web.REUSE,
        web.BROWSER,
        video.EXPERIMENT,
    }
    figures = {file.stem for file in (tmp_path / "made" / "figures").glob("*.json")}
    assert figures == {"storage-throughput", "storage-cpu"}
    changes = pl.read_parquet(tmp_path / "made" / "tables" / "cloud-storage-changes.parquet")
    assert changes.schema == sizes.CHANGES
    assert isinstance(Workloads().storage_changes(), size_figures.Sheet)


def test_the_table_of_results_is_judged_by_the_runs_of_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RATES, ("nginx-h3", None), RATES["quinn", None])
    storage(tmp_path / "raw")
    (sheet,) = (
        one
        for one in shown(monkeypatch, tmp_path / "raw", tmp_path / "made")
        if isinstance(one, size_figures.Sheet) and "what the paper found" in one.headers
    )
    place = {name: number for number, name in enumerate(sheet.headers)}
    rows = {row[place["what the paper found"]]: row for row in sheet.rows}
    stated = [one for one in papers.stated(Project(ROOT)) if one.name == "web-cloud-video"]
    assert list(rows) == [one.claim.statement for one in stated]
    large = next(row for text, row in rows.items() if "above 20 MB" in text)
    # of 200 MB: TLS 1.2 with 6000 Mbit/s over 1500
    assert large[place["measured here, with 95 % interval"]] == "4 [4, 4]"
    assert (large[place["verdict"]], large[place["blocks"]], large[place["host"]]) == (
        "holds",
        "3",
        "555cfcdb (Example CPU, 6.1.0)",
    )
    selected = sheet.behind[sheet.rows.index(large), place["measured here, with 95 % interval"]]
    assert set(runs.table(tmp_path / "raw").filter(filters(selected))["bytes"]) == {200_000_000}
    web_row = next(row for text, row in rows.items() if "TLS 1.3" in text)
    assert web_row[place["verdict"]] == "not measured"
    assert "10 blocks at scale quick" in web_row[place["would decide it"]]
