"""Competing traffic: iperf3 as its source, and what the driver does with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import fakeproject
import wording
from fakeproject import orders, run, runs
from faketestbed import FakeTestbed
from quicbed.config import model
from quicbed.config.model import ConfigError, Link, Load, Project, parse_model
from quicbed.measure import doctor, generator
from quicbed.measure.attempt import MeasureError
from quicbed.measure.generator import Count, Generator, GeneratorError, Iperf3, Sample
from quicbed.plan import estimate
from quicbed.testbed import Feature, HostLostError, LinkSettings
from quicbed.wire import proof

LINK = Link(mode="wire", rate_mbit=100)


def load(**given: Any) -> Load:
    return Load.model_validate(given)


# ---- iperf3 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def iperf3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Iperf3]:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed")
    monkeypatch.setattr(generator, "IPERF_PORT", 20000 + os.getpid() % 10000)
    source = Iperf3(FakeTestbed())
    yield source
    source.stop()


def test_iperf3_sends_until_it_is_stopped(iperf3: Iperf3) -> None:
    wanted = load(pps=500, frames=[{"bytes": 500}])
    assert iperf3.problem(wanted, LINK) is None
    iperf3.start(wanted, LINK)
    sample = iperf3.sample()
    assert sample.sent.packets > 0
    assert sample.received is not None
    assert sample.received.packets > 0
    assert sample.sent.bytes == 500 * sample.sent.packets
    processes = list(iperf3._processes.values())
    iperf3.stop()
    assert all(process.poll() is not None for process in processes)
    used = iperf3.cpu_s()
    assert min(used["client"], used["server"]) > 0
    assert "iperf 3" in iperf3.facts()["version"]
    with pytest.raises(GeneratorError, match="there is no sender"):
        iperf3.sample()


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_an_iperf3_that_ended_is_told(iperf3: Iperf3, role: str) -> None:
    iperf3.start(load(pps=100), LINK)
    process = iperf3._processes[role]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(5)
    # the other one ends with it, and may be the first that is seen
    with pytest.raises(GeneratorError, match=r"iperf3: the (sender|receiver) ended with (-9|1): "):
        iperf3.sample()


def test_an_iperf3_that_cannot_start_says_why(iperf3: Iperf3) -> None:
    iperf3._testbed.client.address = "192.0.2.1"
    with pytest.raises(GeneratorError, match=r"iperf3: the receiver ended with 1: .*unable to start listener"):
        iperf3.start(load(pps=100), LINK)
    assert iperf3._processes == {}


LINES = """[ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams
[  5]   0.00-0.20   sec  1.17 MBytes  48.9 Mbits/sec  0.009 ms  0/833 (0%)
[  5]   0.20-0.40   sec  1.16 MBytes  46.7 Mbits/sec  0.005 ms  20/849 (2.4%)
[  5]   0.40-0.60   sec  1.19 MBytes  50"""


def test_packets_that_come_late_are_not_lost(iperf3: Iperf3, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "[  5]   0.00-1.00   sec  1.17 MBytes  9.83 Mbits/sec  0.010 ms  12/1024 (1.2%)  ",
        "[  5]   1.00-2.00   sec  1.17 MBytes  9.83 Mbits/sec  0.010 ms  -5/1024 (-0.49%)  ",
        "[  5]   2.00-3.00   sec  1.17 MBytes  9.83 Mbits/sec  0.010 ms  0/0 (nan%)  ",
    ]
    monkeypatch.setattr(Iperf3, "output", lambda *_: "\n".join([*lines, ""]))
    assert iperf3._count("receiver") == (3.0, 2048, 7)


def test_only_complete_lines_count(iperf3: Iperf3, monkeypatch: pytest.MonkeyPatch) -> None:
    # iperf3 ends lines with blanks
    monkeypatch.setattr(iperf3, "output", lambda _role: LINES.replace("%)", "%)  "))
    assert iperf3._count("receiver") == (0.4, 1682, 20)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"percent": 50, "frames": "imix"}, "datagrams of one size"),
        ({"percent": 50, "frames": [{"bytes": 1519}]}, "1519 bytes do not fit an MTU of 1500"),
    ],
)
def test_what_iperf3_cannot_send_is_unsupported(iperf3: Iperf3, given: dict[str, Any], reason: str) -> None:
    assert reason in (iperf3.problem(load(**given), LINK) or "")


def test_a_percentage_needs_a_rate_that_it_is_of(iperf3: Iperf3) -> None:
    unlimited = LINK.model_copy(update={"rate_mbit": None})
    assert "set link.rate_mbit" in (iperf3.problem(load(percent=50), unlimited) or "")
    assert iperf3.problem(load(bps=1e6), unlimited) is None


def test_rates_in_packets_per_second() -> None:
    assert generator.packets_per_second(load(pps=7), 100) == 7
    assert generator.packets_per_second(load(bps=8e6, frames=[{"bytes": 1000}]), 100) == 1000
    # what limits the link counts frames without their check sequences
    assert generator.packets_per_second(load(percent=50, frames=[{"bytes": 1254}]), 100) == 5000


# ---- the driver ------------------------------------------------------------------------------------------------------

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire, rate_mbit: 100}
libraries: [quiche, quinn]
variants:
  - {label: none, cipher: aes-128-gcm}
  - {label: half, cipher: aes-128-gcm, background: {percent: 50}}
  - {label: most, cipher: aes-128-gcm, background: {percent: 90}}
baseline: none
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 1}
"""


class Recorder(Generator):
    """Sends nothing, and records what it was asked."""

    def __init__(self, testbed: FakeTestbed) -> None:
        self.testbed = testbed
        self.done: list[str] = []
        self.packets = 0
        self.broken_samples = 0
        self.refusal: str | None = None
        self.sends = False

    def problem(self, load: Load, link: Link) -> str | None:
        assert link.rate_mbit == 100
        return self.refusal if load.percent == 90 else None

    def start(self, load: Load, link: Link) -> None:
        del link
        # links are changed while nothing is sent
        self.done.append(f"start {load.percent:g} after {len(self.testbed.applied)}")
        self.sends = True

    def sample(self) -> Sample:
        assert self.sends
        if self.broken_samples:
            self.broken_samples -= 1
            raise GeneratorError("iperf3: the sender ended with 1")
        self.packets += 1000
        return Sample(Count(self.packets / 1000, self.packets, self.packets * 1250), None)

    def stop(self) -> None:
        if self.sends:
            self.done.append("stop")
        self.sends = False

    def facts(self) -> dict[str, Any]:
        return {"kind": "recorder"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    class Proven:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode}

    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    source = Recorder(FakeTestbed())
    monkeypatch.setattr(generator, "of", lambda *_: source)
    return source


def labels(project: Project) -> list[list[str]]:
    """Labels of the cells of each block in the order of measuring."""
    by_id = {entry["cell"]["id"]: entry["cell"]["label"] for entry in runs(project)}
    return [[by_id[cell] for cell in order] for order in orders(project)]


def test_traffic_lasts_from_the_first_to_the_last_run_of_a_block_beside_it(
    project: Project, recorder: Recorder
) -> None:
    run(project, recorder.testbed)
    expected = []
    changes = len(recorder.testbed.applied)
    for order in labels(project):
        groups = [label for i, label in enumerate(order) if i == 0 or order[i - 1] != label]
        assert sorted(groups) == ["half", "most", "none"]
        for label in groups:
            if label != "none":
                expected += [f"start {50 if label == 'half' else 90} after {changes}", "stop"]
    assert recorder.done == expected
    for entry in runs(project):
        beside = entry["cell"]["label"] != "none"
        assert (entry["metrics"].get("background_sent_mbps") == 10) is beside
        assert ("background" in entry["host"]) is beside
    # what is proven is the same with and without
    assert len(runs(project, "proofs/*")) == 2


def test_a_run_whose_traffic_ended_has_failed_and_it_is_started_again(project: Project, recorder: Recorder) -> None:
    recorder.broken_samples = 1
    run(project, recorder.testbed)
    failed = [entry for entry in runs(project) if entry["status"] == "failed"]
    assert [entry["reason"] for entry in failed] == ["competing traffic: iperf3: the sender ended with 1"]
    assert sum(done.startswith("start") for done in recorder.done) == 3


def test_traffic_that_cannot_be_started_ends_the_measurement(
    project: Project, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise GeneratorError("TRex at host:4501: acquire: port is already taken")

    monkeypatch.setattr(recorder, "start", refuse)
    with pytest.raises(MeasureError, match="port is already taken"):
        run(project, recorder.testbed)


def test_a_host_that_is_lost_as_traffic_begins_is_connected_to_again_and_has_its_link_and_traffic(
    project: Project, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    start, apply = recorder.start, recorder.testbed.apply

    def losing(load: Load, link: Link) -> None:
        done.append("start")
        if done.count("start") == 2:
            raise HostLostError("server: the connection was lost")
        start(load, link)

    def noted(link: LinkSettings) -> None:
        done.append(f"apply {link.mode}")
        apply(link)

    monkeypatch.setattr(recorder, "start", losing)
    monkeypatch.setattr(recorder.testbed, "apply", noted)
    monkeypatch.setattr(recorder.testbed, "recover", lambda: done.append("connect"))
    run(project, recorder.testbed)
    lost = done.index("connect")
    assert done[lost - 1 : lost + 3] == ["start", "connect", "apply wire", "start"]
    assert done.count("connect") == 1
    measured = runs(project)
    assert {entry["status"] for entry in measured} == {"ok"}
    assert [len(order) for order in orders(project)] == [6]
    for entry in measured:
        assert ("background_sent_mbps" in entry["metrics"]) is (entry["cell"]["label"] != "none")
    assert recorder.done.count("stop") == sum(one.startswith("start") for one in recorder.done)


def test_traffic_ends_with_an_interrupted_measurement(
    project: Project, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> Sample:
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "sample", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(project, recorder.testbed)
    assert recorder.done[-1] == "stop"


def test_what_the_generator_cannot_send_is_unsupported(project: Project, recorder: Recorder) -> None:
    recorder.refusal = "iperf3 sends datagrams of one size"
    run(project, recorder.testbed)
    excluded = [json.loads(file.read_text()) for file in project.raw.glob("local/test/*/excluded/*/run.json")]
    assert {(one["cell"]["label"], one["status"], one["reason"]) for one in excluded} == {
        ("most", "unsupported", recorder.refusal)
    }
    assert {label for order in labels(project) for label in order} == {"none", "half"}


def test_a_testbed_without_a_generator_has_no_competing_traffic(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "of", lambda *_: None)
    run(project)
    assert {label for order in labels(project) for label in order} == {"none"}


@pytest.mark.parametrize("competing", [True, False])
def test_doctor_asks_for_the_generator_where_traffic_competes(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], competing: bool
) -> None:
    needed = ("root", "namespaces", "veth", "bridge")
    monkeypatch.setattr(doctor.workflow_estimate, "disk_mb", lambda *_: 0.0)
    monkeypatch.setattr(doctor, "features", lambda: dict.fromkeys(needed, Feature(True)))
    monkeypatch.setattr(generator, "find_program", lambda _name: None)
    if not competing:
        text = EXPERIMENT.replace(", background: {percent: 50}", "").replace(", background: {percent: 90}", "")
        (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    local = project.root / "config" / "testbeds" / "local.yaml"
    local.write_text("kind: local\ngenerator: {kind: iperf3}\n", encoding="utf-8")
    chosen = Project(project.root, project.config.model_dump())
    assert doctor.doctor(chosen) == int(competing)
    state = "MISSING" if competing else "unsupported"
    said = rf"generator iperf3\n  iperf3 +{state}: iperf3 is missing; install with: apt-get install iperf3\n"
    assert re.search(said, capsys.readouterr().out)


# ---- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "trex"},
        {"kind": "iperf3", "port": 1},
        {"kind": "trex", "host": "tg", "receivers": 1},
        {"kind": "moongen"},
    ],
    ids=wording.name,
)
def test_a_generator_that_cannot_be_is_named(given: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as error:
        parse_model(model.Generator, given, Path("local.yaml"))
    assert wording.one_line(error.value, names="local.yaml: ") == snapshot


@pytest.mark.parametrize(
    "given", [{}, {"percent": 50, "bps": 1}, {"percent": 101}, {"percent": 5, "frames": [{"bytes": 63}]}]
)
def test_a_load_has_one_rate_within_the_line_and_frames_of_ethernet(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_model(Load, given, Path("test.yaml"))


def test_estimates_know_what_is_left_of_the_link(project: Project) -> None:
    with_load = estimate.cost(project.restricted(["test"], ["quiche"]))
    experiment = project.experiments["test"]
    bare = [variant.model_copy(update={"background": None}) for variant in experiment.variants]
    project.experiments["test"] = experiment.model_copy(update={"variants": bare})
    without = estimate.cost(project.restricted(["test"], ["quiche"]))
    assert with_load.measure_minutes > without.measure_minutes
