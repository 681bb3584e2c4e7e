"""Lines that say when all will be done, while a campaign of fake endpoints is measured."""

from __future__ import annotations

import json
import math
import random
import re
import time
from pathlib import Path

import pytest

import fakeproject
import fakeruns
from fakeproject import EXPERIMENT, run
from faketestbed import FakeTestbed
from quicbed.base.environment import STARTED
from quicbed.base.statistics import Interval
from quicbed.config.model import Project
from quicbed.measure import campaign, link, session, time_left
from quicbed.measure.campaign import Campaign
from quicbed.measure.driver import Driver
from quicbed.measure.time_left import Outlook, Times
from quicbed.store.record import Run

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
    assert told["expected"] > told["said"]
    line = time_left.compared(project.root / "logs")
    assert line is not None
    assert re.fullmatch(r"predicted at (\w{3} )?\d\d:\d\d: \d+ (s|min); it took \d+ s \([+-]\d+ %\)", line)
    monkeypatch.setenv(STARTED, "2")
    assert time_left.compared(project.root / "logs") is None  # it was told by another run of the workflow


def test_only_the_first_prediction_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTED, "1")
    assert time_left.compared(tmp_path) is None
    time_left.record(tmp_path, 100)
    time_left.record(tmp_path, 10)
    told = json.loads((tmp_path / time_left.RECORD).read_text(encoding="utf-8"))
    assert told["expected"] - told["said"] == pytest.approx(100)
    monkeypatch.setenv(STARTED, "2")
    time_left.record(tmp_path, 10)
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
    later = watched(project, whole=True)
    later.begin()
    later.warmed()
    assert kept.read_bytes() != first


def test_runs_on_disk_tell_and_finished_ones_are_not_left(project: Project) -> None:
    run(project)
    for file in (project.raw / "local").glob("*/*/**/run.json"):
        one = json.loads(file.read_text(encoding="utf-8"))
        assert one["metrics"]["spent_s"] >= one["metrics"]["run_wall_s"]
        one["metrics"] |= {"spent_s": 5.0, "run_wall_s": 5.0, "wall_s": 4.0}
        file.write_text(json.dumps(one | {"contaminated": False}), encoding="utf-8")
    assert watched(project).look().experiment == 0
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(EXPERIMENT.replace("blocks: 3", "blocks: 6"), encoding="utf-8")
    # a session warms up with a run of both libraries
    assert watched(Project(project.root)).look().experiment == pytest.approx((2 + 3 * 6) * 5, rel=0.1)


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
    monkeypatch.setattr(time_left, "LOOK_S", 0.1)
    assert 0 <= time_left.busy() <= 1
    ticks = iter([(0, 0), (50, 100)])
    assert time_left.busy(lambda: next(ticks)) == 0.5
    assert time_left.busy(lambda: (7, 100)) == 0.0


# ---- how long runs take ----------------------------------------------------------------------------------------------


def test_runs_of_a_cell_tell_before_those_of_its_experiment_and_those_before_all_others() -> None:
    times = Times()
    for cell, of in (("a", "one"), ("b", "one"), ("c", "two")):
        times.think(cell, of, 2.0)
    assert [times.seconds(cell) for cell in "abc"] == [2, 2, 2]
    times.saw("c", 4.0)
    assert [times.seconds(cell) for cell in "abc"] == [4, 4, 4]
    times.saw("a", 8.0)
    times.saw("a", 4.0)
    assert [times.seconds(cell) for cell in "abc"] == [6, 6, 4]
    assert times.slower() == pytest.approx(16 / 6)
    times.saw("of nothing that is planned", 1e9)
    assert times.slower() == pytest.approx(16 / 6)


def test_proofs_tell_of_proofs_only() -> None:
    times = Times()
    times.think("proof", time_left.PROOFS, 1.0)
    times.think("a", "one", 1.0)
    times.saw("proof", 3.0)
    assert [times.seconds(cell) for cell in ("proof", "a")] == [3, 1]


def test_the_warm_up_tells_how_fast_the_machine_is_unless_it_is_of_another_kind(project: Project) -> None:
    outlook = watched(project)
    before = outlook.look().experiment
    one = fakeruns.make_run(experiment="test", block=None)
    one["cell"] |= {"id": next(iter(outlook._active[outlook._campaign])), "arm": "warm-up"}
    one["metrics"]["spent_s"] = 1e3
    outlook.saw(Run.made(one | {"cell": one["cell"] | {"arm": "pilot"}}))
    assert outlook.look().experiment == before
    outlook.saw(Run.made(one))
    assert outlook.look().experiment > 1000 * before


def test_a_noisy_machine_of_another_speed_is_predicted_within_a_quarter() -> None:
    """Half of the cells of one experiment are measured; the rest of it and another one are left."""
    random_ = random.Random(7)
    times, truth = Times(), {}
    for number in range(200):
        of, thought = ("first", "second")[number % 2], random_.uniform(0.3, 3)
        times.think(str(number), of, thought)
        truth[str(number)] = 1.8 * thought * math.exp(random_.gauss(0, 0.3))
    for cell in map(str, range(0, 100, 2)):
        times.saw(cell, truth[cell] * math.exp(random_.gauss(0, 0.15)))
    told = sum(map(times.seconds, truth))
    assert told == pytest.approx(sum(truth.values()), rel=0.25)
    assert told > 1.3 * sum(thought for _, thought in times._thought.values())


def test_shipped_runs_are_what_is_thought_before_anything_is_measured(project: Project) -> None:
    """Of larger downloads, which took longer than the rough figures say; where there are none, those count."""
    rough = watched(project).look().experiment
    for label in ("AES-128-GCM", "NOOP"):
        one = fakeruns.make_run(experiment="test")
        one["workload"]["bytes"], one["cell"]["label"] = 2000, label
        one["metrics"] |= {"wall_s": 200.0, "spent_s": 201.0}
        for library in ("quiche", "quinn"):
            place = project.root / "raw" / "reference" / "local" / "test" / "c0ffee00" / "b0000" / f"{library}-{label}"
            place.mkdir(parents=True)
            mine = one | {end: one[end] | {"library": library} for end in ("client", "server")}
            (place / "run.json").write_text(json.dumps(mine), encoding="utf-8")
    shipped = watched(project).look().experiment
    # the A/A runs and the warm-up are of arms that were not shipped
    assert shipped == pytest.approx(3 * 4 * 101 + rough, rel=0.01)
    assert rough < 3 * 6


def test_contaminated_runs_are_measured_again_as_often_as_before(project: Project) -> None:
    outlook = watched(project)
    before = outlook.look().experiment
    for _ in range(10):
        outlook.saw(Run.made(fakeruns.make_run(contaminated=True)))
    assert outlook.look().experiment > 1.3 * before


@pytest.mark.parametrize(("half_width", "blocks"), [(0.45, 2), (1.8, 16), (9.0, 20)])
def test_the_width_of_intervals_tells_how_many_blocks_are_left(
    project: Project, monkeypatch: pytest.MonkeyPatch, half_width: float, blocks: int
) -> None:
    """It falls with the root of their number; before there are four, all that the scale allows are expected."""
    file = project.root / "config" / "experiments" / "test.yaml"
    file.write_text(RANGE.replace("blocks: 8", "blocks: 20"), encoding="utf-8")
    outlook = watched(Project(project.root))
    of, active = outlook._campaign, outlook._active[outlook._campaign]
    assert outlook._needed(of, active) == {}
    monkeypatch.setattr(Campaign, "blocks", lambda _: {number: [] for number in range(4)})
    one = Interval(1.0, 1.0 - half_width, 1.0 + half_width, 4)
    monkeypatch.setattr(Campaign, "intervals", lambda *_: {("quinn", "quinn"): one})
    assert outlook._needed(of, active) == {("quinn", "quinn"): blocks}


def test_an_experiment_that_ends_after_some_minutes_is_not_thought_to_last_longer(project: Project) -> None:
    file = project.root / "config" / "experiments" / "test.yaml"
    unlimited = RANGE.replace("blocks: 8", "blocks: 8000")
    file.write_text(unlimited, encoding="utf-8")
    long = watched(Project(project.root)).look().experiment
    file.write_text(unlimited.replace("min_blocks", "max_minutes: 1, min_blocks"), encoding="utf-8")
    assert 60 < watched(Project(project.root)).look().experiment < 75 < long
