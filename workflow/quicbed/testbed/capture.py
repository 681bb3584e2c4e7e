"""Captures with tcpdump, from the first frame to the last: none is missed at either end."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .base import Capture, TestbedError

_START_TIMEOUT_S = 20.0
_DRAIN_TIMEOUT_S = 20.0
_BUFFER_KIB = 65536

_COUNTS = {
    "packets_captured": re.compile(r"(\d+) packets? captured"),
    "packets_received": re.compile(r"(\d+) packets? received by filter"),
    "packets_dropped": re.compile(r"(\d+) packets? dropped by kernel"),
}


def tcpdump_arguments(
    interface: str, path: Path, *, snaplen: int, count: int | None = None, expression: str = ""
) -> list[str]:
    """The command line of a capture of an interface into a file."""
    # libpcap keeps a few bytes less than asked for unless the ring's slots have a round size.
    snaplen = -(-snaplen // 16) * 16
    argv = ["tcpdump", "-i", interface, "-n", "-s", str(snaplen), "-w", str(path), "-B", str(_BUFFER_KIB)]
    # --immediate-mode: otherwise the kernel holds frames back for up to a second. -Z root: changing the user would
    # clear the parent-death signal.
    argv += ["--immediate-mode", "--time-stamp-precision=nano", "-Z", "root"]
    if count is not None:
        argv += ["-c", str(count)]
    if expression:
        argv += ["--", expression]
    return argv


def read_counts(messages: str, capture: Capture) -> int:
    """Keep the counts that tcpdump has told last; returns how often it has told them."""
    for name, pattern in _COUNTS.items():
        found = pattern.findall(messages)
        if found:
            setattr(capture, name, int(found[-1]))
    return len(_COUNTS["packets_dropped"].findall(messages))


class Tcpdump:
    """A running tcpdump."""

    def __init__(
        self,
        start: Callable[[Sequence[str]], subprocess.Popen[bytes]],
        where: str,
        interface: str,
        path: Path,
        *,
        snaplen: int,
        count: int | None,
        expression: str,
    ) -> None:
        """*start* starts a program on the host of the tap, *where* names that host in errors."""
        self._where = where
        self.capture = Capture(path)
        self._messages = ""
        path.unlink(missing_ok=True)
        self._process = start(tcpdump_arguments(interface, path, snaplen=snaplen, count=count, expression=expression))
        try:
            self._read_until(lambda: "listening on" in self._messages, _START_TIMEOUT_S)
            if "listening on" not in self._messages:
                raise self._error("does not begin to capture")
        except BaseException:
            self.kill()
            raise

    def _error(self, what: str) -> TestbedError:
        lines = self._messages.strip().splitlines()
        return TestbedError(
            f"{self._where}: tcpdump {what}: {lines[-1] if lines else 'no message'} ({self.capture.path})"
        )

    def _read_until(self, done: Callable[[], bool], timeout: float) -> None:
        """Read messages until *done*, the end of tcpdump or the timeout."""
        assert self._process.stderr is not None  # noqa: S101 (started with a pipe)
        descriptor = self._process.stderr.fileno()
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + timeout
        while not done():
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poller.poll(remaining * 1000):
                return
            content = os.read(descriptor, 65536)
            if not content:
                return
            self._messages += content.decode(errors="replace")

    def _answers(self) -> int:
        """How often tcpdump has told its counts."""
        return read_counts(self._messages, self.capture)

    def _drain(self) -> None:
        """Wait until tcpdump has read what the kernel holds: it drops that when told to end."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while self._process.poll() is None:
            answers = self._answers() + 1
            self._process.send_signal(signal.SIGUSR1)  # print the counts and go on
            self._read_until(lambda: self._answers() >= answers, 1.0)  # noqa: B023 (called at once)
            if self.capture.is_complete:
                return
            if time.monotonic() > deadline:
                raise self._error(f"has not written every frame after {_DRAIN_TIMEOUT_S:g} s")
            time.sleep(0.005)

    def stop(self) -> None:
        """End the capture with every frame written and the counts known."""
        try:
            self._drain()
            self._process.terminate()
            self._read_until(lambda: False, _DRAIN_TIMEOUT_S)
            returncode = self._process.wait(_DRAIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._error("does not end") from None
        finally:
            self.kill()
        if returncode != 0:
            raise self._error(f"ended with status {returncode}")
        self._answers()
        if self.capture.packets_captured is None:
            raise self._error("did not report what it captured")

    def kill(self) -> None:
        """End tcpdump if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
