"""Pings before runs: what ping prints, limits, repetition, and what becomes of a run whose link does not hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fakeproject
from fakeproject import run, runs
from faketestbed import FakeHost, FakeTestbed
from quicbed.config.model import PingLimits, Project
from quicbed.measure import ping
from quicbed.testbed import Completed, TestbedError
from quicbed.wire import proof

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire}
libraries: [quiche]
ping: true
variants:
  - {label: near, cipher: aes-128-gcm}
  - {label: far, cipher: aes-128-gcm, rtt_ms: 20}
baseline: near
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 5}
"""
LIMITS = PingLimits(count=20, interval_ms=10, max_difference_ms=2, max_deviation_ms=1, attempts=3)


def said(mean: float | None, deviation: float = 0.1, received: int = 20) -> str:
    """What iputils prints."""
    text = (
        "PING 10.113.0.2 (10.113.0.2) 56(84) bytes of data.\n\n--- 10.113.0.2 ping statistics ---\n"
        f"20 packets transmitted, {received} received, {100 - 5 * received}% packet loss, time 190ms\n"
    )
    if mean is None:
        return text
    return f"{text}rtt min/avg/max/mdev = {mean - deviation}/{mean}/{mean + 3 * deviation}/{deviation} ms, pipe 2\n"


class Answers:
    """Outputs of ping one after the other, the last one repeating."""

    def __init__(self, *outputs: str, returncode: int = 0, stderr: str = "") -> None:
        self.outputs = list(outputs)
        self.returncode = returncode
        self.stderr = stderr
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], **_: object) -> Completed:
        self.asked.append(list(argv))
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        return Completed(tuple(argv), self.returncode, output, self.stderr)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(ping, "PAUSE_S", 0)
    return FakeHost("client")


def test_what_ping_prints_is_read() -> None:
    assert ping.parse(said(10.456, 0.376, 18)) == {
        "sent": 20,
        "received": 18,
        "mean_ms": 10.456,
        "deviation_ms": 0.376,
    }
    assert ping.parse(said(None, received=0)) == {"sent": 20, "received": 0, "mean_ms": None, "deviation_ms": None}


@pytest.mark.parametrize("text", ["", "ping: unknown host\n", "5 packets transmitted, 5 received, 0% packet loss\n"])
def test_what_it_does_not_print_is_an_error(text: str) -> None:
    with pytest.raises(TestbedError, match="cannot read what it prints"):
        ping.parse(text)


@pytest.mark.parametrize(
    ("mean", "deviation", "problem"),
    [
        (21.9, 0.9, None),
        (18.1, 0.9, None),
        (22.1, 0.1, "the mean of pings is 22.10 ms, more than 2 ms off 20 ms"),
        (17.9, 0.1, "the mean of pings is 17.90 ms, more than 2 ms off 20 ms"),
        (20.0, 1.1, "the deviation of pings is 1.10 ms, more than 1 ms"),
        (None, 0.0, "none of 20 pings came back"),
    ],
)
def test_mean_and_deviation_have_limits(mean: float | None, deviation: float, problem: str | None) -> None:
    pinged = ping.parse(said(mean, deviation, 0 if mean is None else 20))
    assert ping.judge(pinged, 20, LIMITS) == problem


def test_pings_are_repeated_until_they_hold(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(said(20, 5), said(25), said(20.4))
    monkeypatch.setattr(host, "run", answers)
    pinged, problem = ping.settle(host, "10.113.0.2", 20, LIMITS)
    assert problem is None
    assert (pinged["mean_ms"], pinged["attempts"], pinged["within_limits"]) == (20.4, 3, True)
    assert [argv[argv.index("-c") + 1] for argv in answers.asked] == ["20"] * 3
    assert all(argv[-1] == "10.113.0.2" and argv[argv.index("-i") + 1] == "0.01" for argv in answers.asked)


def test_they_are_not_repeated_for_ever(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(said(20, 5))
    monkeypatch.setattr(host, "run", answers)
    pinged, problem = ping.settle(host, "10.113.0.2", 20, LIMITS)
    assert len(answers.asked) == pinged["attempts"] == 3
    assert not pinged["within_limits"]
    assert problem == "the deviation of pings is 5.00 ms, more than 1 ms"


def test_a_ping_that_cannot_be_run_says_why(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers("", returncode=127, stderr="env: 'ping': No such file or directory\n")
    monkeypatch.setattr(host, "run", answers)
    with pytest.raises(TestbedError, match=r"client: ping: env: .*No such file.*; install iputils-ping"):
        ping.settle(host, "10.113.0.2", 20, LIMITS)


class Proven:
    def model_dump(self, mode: str) -> dict[str, object]:
        return {"mode": mode}


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    monkeypatch.setattr(ping, "PAUSE_S", 0)
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


def measured(project: Project, testbed: FakeTestbed) -> dict[str, list[dict[str, Any]]]:
    """Runs by label, in the order of their attempts."""
    run(project, testbed)
    found: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(runs(project), key=lambda one: one["attempt"]):
        found.setdefault(one["cell"]["label"], []).append(one)
    return found


def test_every_run_has_the_pings_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = FakeTestbed()

    def answer(argv: list[str], **_: object) -> Completed:
        return Completed(tuple(argv), 0, said(testbed.applied[-1].rtt_ms + 0.5), "")

    monkeypatch.setattr(testbed.client, "run", answer)
    found = measured(made(tmp_path, monkeypatch), testbed)
    assert {label: [one["host"]["ping"]["mean_ms"] for one in them] for label, them in found.items()} == {
        "near": [0.5],
        "far": [20.5],
    }
    assert not any(one["contaminated"] for them in found.values() for one in them)


def test_a_run_on_a_link_that_does_not_hold_is_marked_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = FakeTestbed()
    monkeypatch.setattr(testbed.client, "run", Answers(said(0.4)))
    found = measured(made(tmp_path, monkeypatch), testbed)
    assert [one["contaminated"] for one in found["near"]] == [False]
    assert [one["contamination"] for one in found["far"]] == [
        ["the mean of pings is 0.40 ms, more than 2 ms off 20 ms"]
    ] * 2  # gate.retries is 1
    assert [one["status"] for one in found["far"]] == ["ok", "ok"]
