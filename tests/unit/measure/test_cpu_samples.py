"""Processor time of two programs by the second, and over the time the client runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicbed.measure import cpu_samples
from quicbed.measure.cpu_samples import CpuSamples
from quicbed.testbed import Exit, Process


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Program(Process):
    """Uses so many seconds of a processor per second, until it ends."""

    def __init__(
        self, clock: Clock, rate: float, ends_at: float, *, tells: bool = True, started_with: float = 0
    ) -> None:
        self.pid = 1
        self.clock, self.rate, self.ends_at, self.tells = clock, rate, ends_at, tells
        self.begin, self.before = clock.now, started_with

    def _used(self) -> float:
        return self.before + self.rate * (min(self.clock.now, self.ends_at) - self.begin)

    def poll(self) -> Exit | None:
        return Exit(0, self._used(), 0.0, 1) if self.clock.now >= self.ends_at else None

    def wait(self, timeout: float) -> Exit:
        self.clock.now = min(self.clock.now + timeout, max(self.ends_at, self.clock.now))
        ended = self.poll()
        if ended is None:
            raise TimeoutError
        return ended

    def signal(self, number: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def sample_run_delay(self) -> float | None:
        return None

    def sample_cpu(self) -> float | None:
        return self._used() if self.tells and self.poll() is None else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cpu_samples, "time", made)
    return made


def test_a_sample_every_second_and_a_mean_to_the_end(clock: Clock) -> None:
    client = Program(clock, 0.5, 102.5)
    server = Program(clock, 0.75, 1000, started_with=7)  # what it used before does not count
    samples = CpuSamples({"client": client, "server": server})
    assert samples.wait("client", 60).user_s == 1.25
    assert samples.result() == {
        "client": {"percent": pytest.approx(50), "samples": [pytest.approx(50)] * 2, "seconds": 1.25},
        "server": {"percent": pytest.approx(75), "samples": [pytest.approx(75)] * 2, "seconds": 1.875},
    }


def test_a_short_run_has_a_mean_and_no_sample(clock: Clock) -> None:
    samples = CpuSamples({"client": Program(clock, 1, 100.25), "server": Program(clock, 0.25, 1000)})
    samples.wait("client", 60)
    assert {role: (one["percent"], one["samples"]) for role, one in samples.result().items()} == {
        "client": (pytest.approx(100), []),
        "server": (pytest.approx(25), []),
    }


def test_who_cannot_tell_is_left_out(clock: Clock) -> None:
    samples = CpuSamples({"client": Program(clock, 1, 101.5, tells=False), "server": Program(clock, 1, 101.2)})
    samples.wait("client", 60)
    assert samples.result() == {}  # the server had ended before the client


def test_who_has_done_all_its_work_before_the_first_sample_is_left_out(clock: Clock) -> None:
    client = Program(clock, 0, 100.01, started_with=0.0012345)
    server = Program(clock, 0.5, 1000)
    samples = CpuSamples({"client": client, "server": server})
    client.before = 0.001234  # as its exit tells, in microseconds
    samples.wait("client", 60)
    assert list(samples.result()) == ["server"]


def test_the_time_limit_is_kept(clock: Clock) -> None:
    samples = CpuSamples({"client": Program(clock, 1, 1000), "server": Program(clock, 1, 1000)})
    with pytest.raises(TimeoutError):
        samples.wait("client", 3.5)
    assert clock.now == 103.5


def test_the_memory_of_a_program_has_that_of_its_children(tmp_path: Path) -> None:
    from quicbed.testbed.agent import memory_bytes, proportional_set
    from quicbed.testbed.process import LocalProcess, start

    with pytest.raises(ValueError, match="no Pss"):
        proportional_set(b"Rss: 12 kB\n")
    assert proportional_set(b"Rss: 12 kB\nPss:   7 kB\nPss_Dirty: 3 kB\n") == 7 << 10
    script = tmp_path / "parent"
    # the child, which is not waited for, has a text of 8 MB
    held = "x=$(head -c 8000000 /dev/zero | tr '\\0' a)"
    script.write_text(f"#!/bin/sh\n({held}; echo done > {tmp_path}/done; sleep 60; : $x) &\nsleep 60\n")
    script.chmod(0o755)
    process = LocalProcess(start("here", [str(script)]))
    try:
        while not (tmp_path / "done").exists():
            assert process.poll() is None
        taken = process.sample_memory()
        assert taken is not None
        assert 8_000_000 < taken < 80_000_000
    finally:
        process.kill()
        process.wait(20)
    assert process.sample_memory() is None
    assert memory_bytes(process.pid) is None


def test_a_program_and_its_children_are_counted_together(tmp_path: Path) -> None:
    from quicbed.testbed.process import LocalProcess, start

    script = tmp_path / "parent"
    busy = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"
    # the child, which is not waited for, does the work and then both stay
    script.write_text(f"#!/bin/sh\n({busy}; echo done > {tmp_path}/done; sleep 60) &\nsleep 60\n")
    script.chmod(0o755)
    process = LocalProcess(start("here", [str(script)]))
    try:
        while not (tmp_path / "done").exists():
            assert process.poll() is None
        used = process.sample_cpu()
        assert used is not None
        assert used > 0.05
    finally:
        process.kill()
        process.wait(20)
    assert process.sample_cpu() is None
