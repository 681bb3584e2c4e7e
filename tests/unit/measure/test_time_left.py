"""Lines that say when all will be done, while a campaign of fake endpoints is measured."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from pathlib import Path

import polars as pl
import pytest

import fakeproject
import fakeruns
from clone import ROOT
from fakeproject import EXPERIMENT, run, runs
from faketestbed import FakeTestbed
from quicbed.base.environment import STARTED
from quicbed.base.statistics import Interval
from quicbed.config.model import Contrast, Project
from quicbed.measure import campaign, link, session, time_left
from quicbed.measure.campaign import Campaign
from quicbed.measure.driver import Driver
from quicbed.measure.run_times import Finished, shipped
from quicbed.measure.time_left import Outlook, Works
from quicbed.plan.forecast import FEWEST_PAIRS, Pace, Span
from quicbed.plan.host import host_of
from quicbed.store.record import Run

HOST = host_of(FakeTestbed().facts())
RANGE = EXPERIMENT.replace("blocks: 3", "blocks: 8, min_blocks: 2") + "contrast: {labels: [NOOP], half_width: 0.9}\n"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in (campaign, link, time_left, session):
        monkeypatch.setattr(module, "say", lambda text, _at=None: lines.append(text))
    return lines


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    monkeypatch.delenv(STARTED, raising=False)
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


def add(project: Project, name: str, text: str) -> Project:
    (project.root / "config" / "experiments" / f"{name}.yaml").write_text(text, encoding="utf-8")
    config = project.root / "config" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("[test]", f"[test, {name}]"), encoding="utf-8")
    return Project(project.root)


def test_begin_and_end_of_an_experiment_are_said_with_times(project: Project, said: list[str]) -> None:
    run(project)
    begins = [line for line in said if "begins" in line]
    assert len(begins) == 1
    done = r"done about (\w{3} )?\d\d:\d\d \(in \d+ s\)"
    assert re.fullmatch(rf"test: begins, 3 blocks, roughly as on the machine of the reference data: {done}", begins[0])
    (warmed,) = (line for line in said if "warmed up" in line)
    assert re.fullmatch(rf"test: warmed up: {done}", warmed)
    assert re.fullmatch(r"test: measured in \d+ s, expected were \d+ s", said[-1])
    measured = [line for line in said if "block " in line]
    assert len(measured) == 18
    assert all(re.search(r"; done about (\w{3} )?\d\d:\d\d$", line) for line in measured)
    assert not any("\r" in line or "\x1b" in line for line in said)


def test_while_the_workflow_runs_everything_counts(
    project: Project, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTED, "1")
    run(add(project, "later", RANGE))
    begin = next(line for line in said if "begins" in line)
    assert "; everything about " in begin
    told = json.loads((project.root / "logs" / time_left.RECORD).read_text(encoding="utf-8"))
    assert told["least"] == told["expected"] < told["most"]  # the later one may take 2 blocks or 8
    line = time_left.compared(project.root / "logs")
    assert line is not None
    span = r"\d+ (s|min)(, between .* and .*)?"  # ends that read alike are told once
    assert re.fullmatch(rf"predicted at (\w{{3}} )?\d\d:\d\d: {span}; it took \d+ s \([+-]\d+ %\)", line)
    monkeypatch.setenv(STARTED, "2")
    assert time_left.compared(project.root / "logs") is None  # it was told by another run of the workflow


def test_only_the_first_prediction_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTED, "1")
    assert time_left.compared(tmp_path) is None
    time_left.record(tmp_path, Span(100, 100, 100))
    time_left.record(tmp_path, Span(10, 10, 10))
    told = json.loads((tmp_path / time_left.RECORD).read_text(encoding="utf-8"))
    assert told["expected"] - told["said"] == pytest.approx(100)
    monkeypatch.setenv(STARTED, "2")
    time_left.record(tmp_path, Span(10, 10, 10))
    told = json.loads((tmp_path / time_left.RECORD).read_text(encoding="utf-8"))
    assert told["expected"] - told["said"] == pytest.approx(10)
    (tmp_path / time_left.RECORD).write_text("{", encoding="utf-8")
    assert time_left.compared(tmp_path) is None


def watched(project: Project, *, whole: bool = False) -> Outlook:
    testbed = FakeTestbed()
    return Outlook(Campaign(Driver(project, testbed, testbed.facts()), "test"), whole=whole)


def test_the_prediction_that_is_kept_knows_the_machine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything was measured on it only the machine of the reference data is known."""
    monkeypatch.setenv(STARTED, "1")
    kept = project.root / "logs" / time_left.RECORD
    watched(project, whole=True).begin()
    assert not kept.exists()
    run(project)
    first = kept.read_bytes()
    monkeypatch.setenv(STARTED, "2")
    watched(project, whole=True).begin()
    assert kept.read_bytes() != first


def test_where_the_noise_ends_an_experiment_it_is_known_first(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTED, "1")
    monkeypatch.setattr(time_left, "AGAIN_S", 0.0)
    kept: list[int] = []
    blocks = project.raw / "local" / "test"
    monkeypatch.setattr(time_left, "record", lambda *_: kept.append(len(list(blocks.glob("*/b*")))))

    def intervals(of: Campaign, *_: object) -> dict[tuple[str, str], Interval]:
        one = Interval(1.0, 0.5, 1.5, len(list(blocks.glob("*/b*"))) - 1)  # a block is being measured
        return {cell.libraries: one for cell in of.cells}

    monkeypatch.setattr(Campaign, "intervals", intervals)
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(RANGE.replace("min_blocks: 2", "min_blocks: 6"), encoding="utf-8")
    run(Project(project.root))
    assert min(kept) == FEWEST_PAIRS + 1
    assert max(kept) >= 6


def test_runs_on_disk_tell_and_finished_ones_are_not_left(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "busy", lambda: time_left.Busy(0.0, 1.0))
    run(project)
    for file in (project.raw / "local").glob("*/*/**/run.json"):
        one = json.loads(file.read_text(encoding="utf-8"))
        assert one["metrics"]["spent_s"] >= one["metrics"]["run_wall_s"]
        one["metrics"] |= {"spent_s": 5.0, "run_wall_s": 5.0, "wall_s": 4.0}
        file.write_text(json.dumps(one | {"contaminated": False}), encoding="utf-8")
    # a session warms up with a run of both libraries
    assert watched(project).look().experiment.expected == pytest.approx(2 * 5, rel=0.1)
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(EXPERIMENT.replace("blocks: 3", "blocks: 6"), encoding="utf-8")
    assert watched(Project(project.root)).look().experiment.expected == pytest.approx((2 + 3 * 6) * 5, rel=0.1)


def test_a_damaged_run_or_one_of_another_host_tells_nothing(project: Project) -> None:
    run(project)
    files = sorted((project.raw / "local" / "test").glob("*/b*/*/run.json"))
    known = list(time_left._past(project.raw / "local", HOST))
    assert len(known) >= len(files)
    assert {one.testbed.host for one in known} == {HOST}
    files[0].write_text("{", encoding="utf-8")
    assert len(list(time_left._past(project.raw / "local", HOST))) == len(known) - 1
    assert list(time_left._past(project.raw / "local", dataclasses.replace(HOST, kernel="6.2"))) == []


def test_a_planned_run_and_a_stored_one_are_the_same_work(project: Project) -> None:
    run(project)
    testbed = FakeTestbed()
    of = Campaign(Driver(project, testbed, testbed.facts()), "test")
    works = Works(project)
    planned = {cell.id: works.planned(of, cell) for cell in of.cells}
    for entry in runs(project):
        told = works.stored(Finished.of(Run.made(entry)))
        assert told is not None
        assert told[0] == planned[entry["cell"]["id"]]
    proofs = {works.proof(of, cell) for cell in of.cells}
    stored = {
        told[0]
        for entry in runs(project, "proofs/*")
        if (told := works.stored(Finished.of(Run.made(entry)))) is not None
    }
    assert stored == proofs


def test_connections_one_after_the_other_do_not_tell_how_long_a_rate_takes() -> None:
    """The pilot of a load has the variant of the runs at its rate, which take seven times as long."""
    works, before = Works(Project(ROOT)), Pace(forgets=False)
    run = fakeruns.make_run(workload={"kind": "handshake", "bytes": 1, "connections": 1000})
    run["variant"] |= {"load": 0.1, "signature": "rsa-2048"}
    run["cell"] |= {"arm": "pilot"}
    run["metrics"] |= {"run_wall_s": 1.6, "wall_s": 1.5, "spent_s": 1.8}
    pilot = works.stored(Finished.of(Run.made(run)))
    run["cell"] |= {"arm": "main"}
    run["workload"] |= {"rate_per_s": 100.0, "arrival_seed": 1}
    run["metrics"] |= {"run_wall_s": 10.1, "wall_s": 10.0, "spent_s": 10.3}
    at_rate = works.stored(Finished.of(Run.made(run)))
    assert pilot is not None
    assert at_rate is not None
    for told in (pilot, at_rate) * 10:
        before.saw(*told)
    here = Pace(before)
    for _ in range(20):
        here.saw(*pilot)
    assert here.parts(at_rate[0])[0] == pytest.approx(10, rel=0.1)
    assert here.parts(pilot[0])[0] == pytest.approx(1.5, rel=0.1)


def test_reference_runs_tell_how_libraries_differ() -> None:
    """The shipped data is read as it is, and knows that aioquic is slow."""
    root = ROOT
    works, pace = Works(Project(root)), Pace(forgets=False)
    seconds: dict[str, list[float]] = {}
    for one in shipped(Project(root)):
        if one.experiment == "aead-goodput" and one.arm == "main":
            told = works.stored(one)
            if told is not None:
                pace.saw(*told)
                seconds.setdefault(one.client, []).append(pace.parts(told[0])[0] / (one.bytes or 0))
    assert seconds["aioquic"][-1] > 3 * seconds["quinn"][-1]


def test_before_anything_is_measured_the_shipped_runs_tell_how_many_blocks_it_takes(project: Project) -> None:
    """A half width that is half as large takes four times as many blocks."""
    run(project)
    testbed = FakeTestbed()
    of = Campaign(Driver(project, testbed, testbed.facts()), "test")
    by_id = {cell.id: cell for cell in of.cells}
    as_wanted = of.experiment

    def wanted(half_width: float) -> None:
        of.experiment = as_wanted.model_copy(update={"contrast": Contrast(labels=["NOOP"], half_width=half_width)})

    wanted(0.9)
    shipped = time_left.Shipped()
    assert shipped.blocks(of, by_id, 2) == {}
    for entry in runs(project):
        for block in range(16):
            noise = 1.02 if block % 2 and entry["cell"]["label"] == "NOOP" else 1.0
            values = {"goodput_mbps": 1000 * noise, "bytes": 1}
            shipped.saw(Finished.of(Run.made(entry | {"block": block, "metrics": values})))
    assert shipped.blocks(of, by_id, 2) == dict.fromkeys(by_id, 2)
    wanted(0.002)
    half = shipped.blocks(of, by_id, 2)
    wanted(0.001)
    narrow = shipped.blocks(of, by_id, 2)
    assert narrow == pytest.approx({cell: 4 * blocks for cell, blocks in half.items()}, rel=0.05)
    assert min(half.values()) > 16


def test_the_line_of_a_build_says_which_and_how_many_are_left(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_left.making, "build_id", lambda _, name, build: f"{name}-{build}-0")
    monkeypatch.setattr(
        time_left.making,
        "is_made",
        lambda made, name, build: (made.build / f"{name}-{build}-0" / "build.json").exists(),
    )
    monkeypatch.setattr(time_left.making, "listing", lambda made, name, build: made.build / f"{name}-{build}-0.json")
    needed = [("quiche", "noop"), ("quiche", "stock"), ("quinn", "noop"), ("quinn", "stock")]
    line = time_left.building(project, *needed[0])
    assert line.startswith("build 1 of 4: quiche, noop; the builds are done roughly at ")
    minutes = {key: time_left.estimate.build_estimate(project, *key).minutes for key in needed}
    assert line.endswith(f"(in {time_left.in_words(60 * sum(minutes.values()))})")
    # the first took three times as long as thought
    project.build.mkdir(exist_ok=True)
    (project.build / "quiche-noop-0.json").write_text("{}", encoding="utf-8")
    (project.root / "logs").mkdir()
    took = 180 * minutes[needed[0]]
    (project.root / "logs" / "build-quiche-noop-0.tsv").write_text(f"s\th:m:s\n{took}\t-\n", encoding="utf-8")
    own = 60 * minutes[needed[1]]
    ratio = (took + own) / (took / 3 + own)
    rest = ratio * 60 * sum(minutes[key] for key in needed[1:])
    line = time_left.building(project, *needed[1])
    assert line.startswith("build 2 of 4: quiche, stock; ")
    assert line.endswith(f"(in {time_left.in_words(rest)})")


def test_times_are_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [time_left.in_words(one) for one in (-3, 12.4, 89, 91, 3600, 9000)] == [
        "0 s", "12 s", "89 s", "2 min", "60 min", "2 h 30 min",
    ]  # fmt: skip
    monkeypatch.setattr(time_left.time, "time", lambda: time.mktime((2030, 1, 2, 23, 50, 0, 0, 0, -1)))
    assert time_left.clock(60) == "23:51"
    assert time_left.clock(1200) == "Thu 00:10"


def test_what_other_programs_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "LOOK_S", 0.2)
    seen = time_left.busy()
    assert 0 <= seen.share <= 1
    assert seen.slowdown >= 1
    ticks = iter([(0, 0, 5)] + [(0, 0, 5)] * time_left.LOOKS + [(50, 100, 5)])
    monkeypatch.setattr(time_left.os, "cpu_count", lambda: 2)
    assert time_left.busy(lambda: next(ticks)) == time_left.Busy(0.5, math.sqrt(3.0))


def test_the_last_analysis_tells_how_long_the_next_takes(project: Project) -> None:
    assert time_left._analysed(project) == time_left._Analysed(None, None)
    logs, tables = project.root / "logs", project.artifacts / "tables"
    logs.mkdir()
    tables.mkdir(parents=True)
    for name, seconds in {
        "runs-own": 10,
        "dissect-own": 20,
        "report-own": 30,
        "verdicts-own": 5,
        "notebooks-own": 45,
        "draw-test": 9,
    }.items():
        (logs / f"{name}.tsv").write_text(f"s\th:m:s\n{seconds}\t-\n", encoding="utf-8")
    for name, height in (("runs", 1000), ("captures", 50)):
        pl.DataFrame({"origin": ["run"] * height}).write_parquet(tables / f"{name}.parquet")
    expected = time_left.ANALYSIS_S + 1000 * time_left.ANALYSIS_RUN_S + 50 * time_left.DISSECT_S
    assert time_left._analysed(project) == time_left._Analysed((110 + 5 * time_left.JOB_S) / expected, 9)
    (logs / "report-own.tsv").write_text("s\n", encoding="utf-8")
    assert time_left._analysed(project).ratio is None
