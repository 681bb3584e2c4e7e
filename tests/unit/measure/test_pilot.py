"""The pilot: downloads of every pair of libraries as large as the fastest of its cells needs to last long enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import fakeproject
from fakeproject import EXPERIMENT, behave, outside, run, runs
from faketestbed import FakeTestbed
from quicbed.analysis import comparison
from quicbed.builds import making
from quicbed.config.model import Project, Scale
from quicbed.figures import layout
from quicbed.measure import program, time_left
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign import Campaign
from quicbed.measure.driver import Driver
from quicbed.measure.pilot import START_PILOT_BYTES, Pilot
from quicbed.measure.program import Program
from quicbed.plan import estimate
from quicbed.plan.cells import GOODPUT_BITS, cells_of
from quicbed.plan.sizing import MOST_BYTES, ROOM, START_ROOM, STEP_BYTES, TIME_SHARE, needed_bytes
from quicbed.store import runs as quicbed_runs
from quicbed.testbed import Confined

STUDY: dict[str, Any] = {
    "title": "A study",
    "question": "None.",
    "experiments": {
        "test": {"bytes": 1000, "blocks": 2, "least_s": 0.5, "timeout_s": 5, "figures": ["goodput-by-aead"]},
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    (tmp_path / "config" / "studies").mkdir()
    (tmp_path / "config" / "studies" / "mine.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return Project(tmp_path, {"study": "mine"})


def told(project: Project) -> dict[str, Any]:
    """pilot.json."""
    (file,) = (project.raw / "local" / "test").glob("*/pilot.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_bytes_are_in_whole_mebibytes_and_last_long_enough() -> None:
    for goodput in (0.001, 8.0, 5000.0, 400_000.0):
        size = needed_bytes(goodput, 2)
        assert size % STEP_BYTES == 0
        assert size * 8 / (goodput * 1e6) >= 2 * ROOM
        assert size - STEP_BYTES < goodput * 1e6 / 8 * 2 * ROOM


def test_all_cells_of_a_pair_download_what_its_fastest_needs(project: Project) -> None:
    run(project)
    pilot = told(project)
    assert {pair["client"] for pair in pilot["pairs"]} == {"quiche", "quinn"}
    done = runs(project)
    for pair in pilot["pairs"]:
        assert set(pair["goodput_mbps"]) == {"AES-128-GCM", "NOOP"}
        assert pair["bytes"] == needed_bytes(max(pair["goodput_mbps"].values()), 0.5)
        own = [entry for entry in done if entry["client"]["library"] == pair["client"]]
        assert {entry["workload"]["bytes"] for entry in own} == {pair["bytes"]}
        assert len(own) == 2 * 3
    tried = runs(project, "test/*/pilot")
    assert {entry["workload"]["bytes"] for entry in tried} == {1000}
    assert {entry["cell"]["arm"] for entry in tried} == {"pilot"}
    assert quicbed_runs.select_campaign(quicbed_runs.table(project.raw), "test")["arm"].unique().to_list() != ["pilot"]


def test_every_run_says_by_which_rules_it_was_measured(project: Project) -> None:
    run(project)
    study = project.study
    assert study is not None
    for entry in runs(project) + runs(project, "test/*/warm-up") + runs(project, "test/*/pilot"):
        assert entry["study"] == {"name": "mine", "digest": study.digest}
        assert entry["scale"] == "mine"
    assert set(quicbed_runs.table(project.raw).filter(experiment="test")["study"]) == {study.digest}


def test_a_pilot_is_not_repeated(project: Project) -> None:
    run(project)
    before, tried = told(project), len(runs(project, "test/*/pilot"))
    run(project)
    assert told(project) == before
    assert len(runs(project, "test/*/pilot")) == tried
    assert len(runs(project)) == 2 * 6


def test_a_pair_without_a_success_is_tried_again_and_costs_itself_only(project: Project) -> None:
    behave(project, "quiche", "stock", client=["crash"])
    behave(project, "quiche", "noop", client=["crash"])
    with pytest.raises(MeasureError, match="quiche"):
        run(project)
    assert [pair["client"] for pair in told(project)["pairs"]] == ["quinn"]
    assert sum(entry["status"] == "ok" for entry in runs(project)) == 6
    for flavour in ("stock", "noop"):
        behave(project, "quiche", flavour)
    run(project)
    assert [pair["client"] for pair in told(project)["pairs"]] == ["quinn", "quiche"]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": 2, "least_s": 0.5}', '{"format": 1, "least_s": 3, "pairs": []}']
)
def test_a_damaged_pilot_is_named_before_anything_is_measured(project: Project, content: str) -> None:
    run(project)
    (file,) = (project.raw / "local" / "test").glob("*/pilot.json")
    file.write_text(content, encoding="utf-8")
    done = len(runs(project))
    with pytest.raises(MeasureError, match=r"pilot\.json: is .*out of the way"):
        run(project)
    assert len(runs(project)) == done


# ---- external clients, whose programs start within what is measured --------------------------------------------------


def alone(root: Path, monkeypatch: pytest.MonkeyPatch, **stated: Any) -> Project:
    """A project in which quiche's client is a folder that states this, and quinn's is one of ours; no study."""
    fakeproject.prove(monkeypatch)
    project = fakeproject.make(root, EXPERIMENT, monkeypatch)
    monkeypatch.setattr(making, "changed", lambda *_: None)
    monkeypatch.setattr(Program, "environment", lambda _: None)
    monkeypatch.setattr(Program, "provide", lambda _: None)
    monkeypatch.setattr(program, "confined", lambda project, *_: Confined(project.config.limits))
    project.libraries["quiche"] = outside(project.libraries["quiche"], **stated)
    return project


def test_downloads_of_an_external_client_are_so_large_that_its_start_hardly_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = alone(tmp_path, monkeypatch)
    run(project)
    (pair,) = told(project)["pairs"]
    assert (pair["client"], told(project)["least_s"]) == ("quiche", None)
    sizes = {entry["workload"]["bytes"] for entry in runs(project, "test/*/pilot")}
    assert sizes == {1, START_PILOT_BYTES}
    theirs = [entry for entry in runs(project) if entry["client"]["library"] == "quiche"]
    assert {entry["workload"]["bytes"] for entry in theirs} == {pair["bytes"]}
    assert pair["bytes"] > 1000
    for entry in theirs:
        took = 8 * entry["metrics"]["bytes"] / entry["metrics"]["goodput_mbps"] / 1e6
        assert entry["metrics"]["start_share"] == pytest.approx(pair["start_s"] / took)
    ours = [entry for entry in runs(project) if entry["client"]["library"] == "quinn"]
    assert {entry["workload"]["bytes"] for entry in ours} == {1000}
    assert not any("start_share" in entry["metrics"] for entry in ours)
    campaign = quicbed_runs.select_campaign(quicbed_runs.table(project.raw), "test")
    (line,) = comparison.starts(campaign)
    assert line.startswith("(external): the start of the program is within the goodput of quiche (at most ")
    (named,) = comparison.starts(campaign, {"quiche": "A title (external)"})
    assert named.startswith("(external): the start of the program is within the goodput of A title (at most ")
    (below,) = layout.started([campaign], {"quiche": "A title (external)"})
    assert below == named
    (same,) = comparison.starts(comparison.figure_table(campaign))
    assert same.partition("(at")[0] == line.partition("(at")[0]
    assert comparison.starts(campaign.filter(client_library="quinn")) == []


def test_a_client_that_reports_times_has_no_start_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = alone(tmp_path, monkeypatch, times=True)
    run(project)
    assert not list((project.raw / "local" / "test").glob("*/pilot.json"))
    assert {entry["workload"]["bytes"] for entry in runs(project)} == {1000}
    assert comparison.starts(quicbed_runs.select_campaign(quicbed_runs.table(project.raw), "test")) == []


def test_plans_count_downloads_as_large_as_a_start_will_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_left, "busy", lambda: time_left.Busy(0.0, 1.0))
    project = alone(tmp_path, monkeypatch)
    cells = [cell for cell in cells_of(project, "test", "", {}) if cell.unsupported is None]
    sized = {(cell.client.library, cell.arm): cell.bytes for cell in estimate.as_sized(project, "test", cells)}
    # a fifth of the time limit of a run, at the goodput that plans take
    most = int(GOODPUT_BITS / 8 * project.scale("test").timeout_s * TIME_SHARE)
    assert {size for (library, _), size in sized.items() if library == "quiche"} == {min(most, MOST_BYTES)}
    assert {size for (library, _), size in sized.items() if library == "quinn"} == {1000}
    text, minutes, _ = estimate.of_measuring(project, "test")
    expected = campaign_outlook(project)
    # what the pilot of a pair has told is not enlarged again
    assert estimate.as_sized(project, "test", cells, {("quiche", "quiche")}) == cells
    stated: Any = project.libraries["quiche"]
    project.libraries["quiche"] = stated.model_copy(update={"max_bytes": 5_000_000})
    limited = {cell.bytes for cell in estimate.as_sized(project, "test", cells) if cell.client.library == "quiche"}
    assert limited == {5_000_000}
    # one that reports times is as before
    reporting = stated.statement.model_copy(update={"times": True})
    project.libraries["quiche"] = stated.model_copy(update={"statement": reporting})
    shorter, less, _ = estimate.of_measuring(project, "test")
    assert less < minutes
    assert "at most 0 GiB" in shorter
    assert "at most 0 GiB" not in text
    assert campaign_outlook(project) < expected


def session_campaign(project: Project) -> Campaign:
    """The campaign of the project's experiment, as a session has it."""
    testbed = FakeTestbed()
    return Campaign(Driver(project, testbed, testbed.facts()), "test")


def campaign_outlook(project: Project) -> float:
    """Seconds that measuring is expected to take."""
    return time_left.Outlook(session_campaign(project), whole=False).look().experiment


@pytest.mark.parametrize(("timeout_s", "seconds"), [(60, 5 * START_ROOM * ROOM), (10, 2.0)])
def test_a_download_is_as_large_as_time_and_room_allow(timeout_s: float, seconds: float) -> None:
    """A start of 50 ms before 0.8 s at 10 Mbit/s is 1 % of 5 s, and a fifth of the time limit of a run may be taken."""
    scale = Scale(bytes=1_000_000, blocks=1, timeout_s=timeout_s)
    found = Pilot.made({"least_s": None}).with_pair(("x", "x"), {"a": 8 / 0.85}, scale, 1_000_000, 0.05)
    assert found.sizes["x", "x"] * 8 / 10e6 == pytest.approx(seconds, rel=0.1)
    large = Scale(bytes=2**30, blocks=1, timeout_s=600)
    enormous = Pilot.made({"least_s": None}).with_pair(("x", "x"), {"a": 1e5}, large, 2**30, 0.02)
    assert enormous.sizes["x", "x"] == MOST_BYTES
