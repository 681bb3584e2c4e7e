"""The floor of timers: what a bare sender's captured packets tell, when it is measured, and who reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from faketestbed import FakeTestbed
from quicbed.analysis import floors
from quicbed.builds import components
from quicbed.config.model import Project
from quicbed.measure import floor
from quicbed.measure.attempt import MeasureError
from quicbed.store import details
from quicbed.store.campaign import Floor
from quicbed.testbed import Capture, Completed, LinkSettings, bare_sender
from quicbed.wire.pcap import CaptureError
from wirefixtures import stamped, udp

GAP = 302_800
EXPERIMENT = """\
title: Traced
source: none
question: none?
trace: true
workload: {kind: bulk, congestion_control: any}
link: {mode: wire}
libraries: [quiche]
defaults: {cipher: aes-128-gcm}
variants: [{label: one}]
baseline: one
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 20}
  quick: {bytes: 1000, blocks: 1, timeout_s: 20}
  paper: {bytes: 1000, blocks: 1, timeout_s: 20}
"""


def frames(times: dict[int, Sequence[int]], server: str = "10.0.0.2") -> list[tuple[int, bytes]]:
    """Packets of series at these times, with one of somebody else among them."""
    sent = [
        (moment, bare_sender.HEADER.pack(bare_sender.MAGIC, series, number))
        for series, moments in times.items()
        for number, moment in enumerate(moments)
    ]
    found = [(moment, udp((server, 40_000), ("10.0.0.1", 9), payload.ljust(100, b"\0"))) for moment, payload in sent]
    stranger = bare_sender.HEADER.pack(bare_sender.MAGIC, 0, 0)
    others = [(5, udp(("10.0.0.1", 9), (server, 9), stranger)), (9, udp((server, 1), (server, 9), b"x"))]
    return [*others, *found]


def test_the_sender_s_times_are_those_of_the_plan() -> None:
    assert bare_sender.offsets(4, 1, 10) == [0, 10, 20, 30]
    assert bare_sender.offsets(6, 3, 10) == [0, 0, 0, 30, 30, 30]
    assert floor.gap_ns(LinkSettings(mode="wire", rate_mbit=40)) == GAP
    # no faster than the paper's link
    assert floor.gap_ns(LinkSettings(mode="wire")) == floor.gap_ns(LinkSettings(mode="wire", rate_mbit=400)) == GAP
    assert floor.gap_ns(LinkSettings(mode="wire", rate_mbit=10)) == 4 * GAP


@pytest.mark.parametrize(("qdisc", "etf"), [(None, []), ("fq", [False, False]), ("etf", [True, True])])
def test_times_are_told_where_the_discipline_keeps_to_them(qdisc: Any, etf: list[bool]) -> None:
    testbed = Sending()
    link = LinkSettings(mode="wire", rate_mbit=40, bottleneck="client", queue_ms=80, qdisc=qdisc)
    floor.of_link(testbed, link)
    (plan,) = testbed.plans
    assert [one["etf"] for one in plan["series"] if one["method"] == "txtime"] == etf
    assert [one["etf"] for one in plan["series"] if one["method"] == "sleep"] == [False, False]


def test_captured_packets_are_told_by_series_and_number(tmp_path: Path) -> None:
    file = tmp_path / "floor.pcap"
    stamped(file, frames({0: [100, 200], 3: [300]}))
    assert floor.captured_ns(file, "10.0.0.2") == {0: {0: 100, 1: 200}, 3: {0: 300}}
    assert floor.captured_ns(file, "10.0.0.3") == {}
    file.write_bytes(b"no capture")
    with pytest.raises(CaptureError):
        floor.captured_ns(file, "10.0.0.2")


def test_a_series_tells_deviations_of_sender_and_capture_and_its_trains() -> None:
    # the second packet is 50 us late, the last one of four follows the third at once
    captured = dict(enumerate([0, GAP + 50_000, 2 * GAP, 2 * GAP + 20_000]))
    one = floor.series_of("sleep", "even", 1, GAP, [7, 7 + GAP, 9 + 2 * GAP, 7 + 3 * GAP], captured)
    assert one.deviation_ns == [20_000 - GAP, -50_000, 50_000]
    assert one.sender_deviation_ns == [-2, 0, 2]
    assert (one.captured_train_packets, one.packets) == ([1, 2], [2, 2])
    # the kernel released them: when they were handed over tells nothing
    assert floor.series_of("txtime", "even", 1, GAP, [0, 0, 0, 0], captured, "fq").sender_deviation_ns == []


class Sending(FakeTestbed):
    """Whose server sends at these times by series, and whose tap captures all of it, or loses packets."""

    def __init__(self, *, missing: dict[str, str] | None = None, said: str | None = None) -> None:
        super().__init__()
        self.plans: list[dict[str, Any]] = []
        self._missing, self._said = missing or {}, said
        self.blocks_then: list[int] = []
        server = self.hosts["server"]
        real = server.run

        def run(argv: Sequence[str], **options: Any) -> Completed:
            if "-IS" not in argv:
                return real(argv, **options)
            assert bare_sender.__doc__ in options["input"]
            plan = json.loads(argv[-1])
            self.plans.append(plan)
            sent = {str(one["number"]): self.times(one) for one in plan["series"]}
            told = {number: moments for number, moments in sent.items() if number not in self._missing}
            answer = json.dumps({"sent_ns": told, "missing": self._missing})
            return Completed(tuple(argv), 0, self._said or answer, "")

        server.run = run  # type: ignore[method-assign]

    @staticmethod
    def times(series: dict[str, Any]) -> list[int]:
        after = bare_sender.offsets(series["packets"], series["train_packets"], series["gap_ns"])
        return [10**9 + moment + 1000 * number for number, moment in enumerate(after)]

    @contextlib.contextmanager
    def capture(self, path: Path, *, snaplen: int = 128, **options: Any) -> Iterator[Capture]:
        before = len(self.plans)
        with super().capture(path, snaplen=snaplen, **options) as seen:
            yield seen
        for plan in self.plans[before:]:
            of_series = {one["number"]: self.times(one) for one in plan["series"]}
            stamped(path, frames(of_series, "127.0.0.1"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    fakeproject.prove(monkeypatch)
    monkeypatch.setattr(floor, "PACKETS", 40)
    monkeypatch.setattr(components, "directory", lambda of, name: of.build / "work" / name)
    monkeypatch.setattr(components, "is_built", lambda *_: True)
    monkeypatch.setattr("quicbed.measure.captures.measure_pacing", lambda *_: None)
    return made


def kept(project: Project) -> list[Path]:
    return list(project.raw.glob("local/test/*/floor.json"))


def test_the_floor_is_measured_once_before_the_first_block(project: Project) -> None:
    testbed = Sending()
    fakeproject.run(project, testbed)
    (file,) = kept(project)
    found = Floor.read(file)
    assert [(one.method, one.schedule, one.qdisc) for one in found.series] == [
        ("sleep", "even", None),
        ("sleep", "trains", None),
    ]
    assert found.frame_bytes == 1514
    assert found.series[0].deviation_ns == [1000] * 39
    (first_block,) = project.raw.glob("local/test/*/b0000/block.json")
    assert file.stat().st_mtime_ns <= first_block.stat().st_mtime_ns
    fakeproject.run(project, testbed)
    assert len(testbed.plans) == 1
    read = details.read(project.raw / "local")
    assert not read.problems
    told = floors.of_campaign(read.floors, file.parent.name)
    assert told is not None
    assert (told.gap_ns, told.p99_ns, told.misplaced) == (0.0, 1000.0, 0.0)
    assert {name: len(rows) for name, rows in floors.curves(read.floors, file.parent.name).items()} == {
        "gap_ns": 1,
        "train_packets": 1,
    }


@pytest.mark.parametrize(
    ("testbed", "told"),
    [
        (FakeTestbed, "0 of 40 packets"),
        (lambda: Sending(said="not JSON"), "printed something other than times"),
        (lambda: Sending(said='{"sent_ns": {"0": ["x"]}, "missing": {}}'), "printed something other than times"),
    ],
)
def test_without_a_floor_the_campaign_goes_on_and_says_so(
    project: Project, testbed: Any, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if testbed is FakeTestbed:
        monkeypatch.setattr(floor, "captured_ns", lambda *_: {})
    fakeproject.run(project, testbed())
    assert not kept(project)
    assert [one["status"] for one in fakeproject.runs(project)] == ["ok"]
    assert told in caplog.text


class Late(Sending):
    """Whose ETF drops all but a packet."""

    @contextlib.contextmanager
    def capture(self, path: Path, *, snaplen: int = 128, **options: Any) -> Iterator[Capture]:
        before = len(self.plans)
        with super().capture(path, snaplen=snaplen, **options) as seen:
            yield seen
        if any(one["etf"] for plan in self.plans[before:] for one in plan["series"]):
            stamped(path, frames({0: [1]}, "127.0.0.1"))


def test_what_one_discipline_drops_leaves_the_floor_of_the_others(project: Project) -> None:
    file = project.root / "config" / "experiments" / "test.yaml"
    etf = "{label: two, qdisc: etf, pacing: txtime, congestion_control: bbr}"
    file.write_text(EXPERIMENT.replace("[{label: one}]", f"[{{label: one}}, {etf}]"), encoding="utf-8")
    changed = Project(project.root)
    fakeproject.run(changed, Late())
    (kept_file,) = kept(changed)
    found = Floor.read(kept_file)
    assert {one.qdisc for one in found.series} == {None}
    assert found.missing == ["etf: 1 of 40 packets of the bare sender were captured"]


def test_what_cannot_be_sent_is_named(project: Project) -> None:
    fakeproject.run(project, Sending(missing={"1": "Operation not permitted"}))
    (file,) = kept(project)
    found = Floor.read(file)
    assert [one.schedule for one in found.series] == ["even"]
    assert found.missing == ["sleep, trains: Operation not permitted"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "truncated or corrupt"),
        ('{"format": 1, "measured_at": "2026-01-01T00:00:00Z", "frame_bytes": 1514, "series": []}', "series"),
        ('{"format": 9}', "format 9"),
    ],
)
def test_a_damaged_floor_is_named_and_costs_nothing_else(project: Project, content: str, told: str) -> None:
    fakeproject.run(project, Sending())
    (file,) = kept(project)
    file.write_text(content, encoding="utf-8")
    read = details.read(project.raw / "local")
    assert read.floors.is_empty()
    (problem,) = read.problems
    assert "floor.json" in problem
    assert told in problem
    with pytest.raises(MeasureError, match="move it out of the way"):
        fakeproject.run(project, Sending())


def test_the_sender_sends_what_it_is_told(tmp_path: Path) -> None:
    import socket
    import subprocess
    import sys

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(20)
        plain = {"gap_ns": 1000, "etf": False}
        series = [{"number": 7, "method": "sleep", "packets": 6, "train_packets": 3, **plain}]
        series.append({"number": 8, "method": "txtime", "packets": 2, "train_packets": 1, **plain})
        series.append({**series[-1], "number": 9, "etf": True})
        address, port = receiver.getsockname()
        plan = {"address": address, "port": port, "payload_bytes": 200, "series": series}
        program = Path(bare_sender.__file__).read_text(encoding="utf-8")
        argv = [sys.executable, "-IS", "-", json.dumps(plan)]
        done = subprocess.run(argv, input=program, capture_output=True, text=True, check=True, cwd=tmp_path)
        received = [receiver.recv(2000) for _ in range(10)]
    answer = json.loads(done.stdout)
    assert {number: len(sent) for number, sent in answer["sent_ns"].items()} == {"7": 6, "8": 2, "9": 2}
    assert answer["missing"] == {}
    assert [bare_sender.HEADER.unpack(one[: bare_sender.HEADER.size])[1:] for one in received] == [
        *((7, number) for number in range(6)),
        *((number, index) for number in (8, 9) for index in range(2)),
    ]
    assert {len(one) for one in received} == {200}
