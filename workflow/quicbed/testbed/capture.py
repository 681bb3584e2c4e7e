"""Captures at the tap, from the first frame to the last: none is missed at either end.

A program captures an interface into a pcap file with nanoseconds: tcpdump, dumpcap or one that the configuration names
(:class:`Tool`). It runs on the host of the tap, next to others if the tap has several interfaces, whose files become
one. It is told to end when its file has every frame that was sent, as far as that can be known; what is missing then
was lost in the capture.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import signal
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quicbed.base import trees
from quicbed.config.model import CaptureCommand
from quicbed.config.model import Testbed as Settings
from quicbed.wire import pcap

from .base import Capture, Host, TestbedError, understood

START_TIMEOUT_S = 20.0
_DRAIN_TIMEOUT_S = 20.0
_CONVERT_TIMEOUT_S = 600.0
_POLL_S = 0.005
_BUFFER_MIB = 64
FREE_BYTES = 200 * 2**20
# How long a file does not grow when all is written that there is: dumpcap flushes every half second.
QUIET_S = 1.0
# Longest time from an end of the link to the tap: half of the longest round-trip time, and a scheduler's turn.
IN_FLIGHT_S = 2.0


@dataclass(frozen=True)
class Counts:
    """What a program says of its capture; None for what it has not said."""

    captured: int | None = None
    received: int | None = None
    """Frames that the filter let through, including the dropped ones."""
    dropped: int | None = None
    """Frames lost for want of buffer space."""
    missed: int | None = None
    """Frames that the interface could not take."""

    @property
    def is_complete(self) -> bool:
        """Whether every frame that the filter let through has been written or dropped."""
        if self.captured is None or self.received is None or self.dropped is None:
            return False
        return self.captured + self.dropped >= self.received

    @property
    def lost(self) -> int | None:
        """Frames that are not in the file."""
        return None if self.dropped is None else self.dropped + (self.missed or 0)


class Tool(ABC):
    """A program that captures."""

    name: str
    programs: tuple[str, ...]
    """What has to be installed."""
    begun: str
    """What it says once frames are being captured."""
    ending: int = signal.SIGTERM
    tells_on_request = False
    """Whether it prints its counts on SIGUSR1 and goes on."""
    counts: Mapping[str, re.Pattern[str]]
    """Names of :class:`Counts`, and where the number stands in what it says; the last time counts."""

    @abstractmethod
    def arguments(self, interface: str, path: Path, *, snaplen: int, count: int | None, expression: str) -> list[str]:
        """The command line of a capture of an interface into a file."""

    def writes(self, path: Path) -> Path:
        """The file that grows while *path* is being captured."""
        return path

    def complete(self, host: Host, path: Path) -> None:  # noqa: B027 (for programs that write something else)
        """Make *path* of what was written."""

    def read(self, said: str) -> Counts:
        """The counts that it has told last."""
        found = {name: pattern.findall(said) for name, pattern in self.counts.items()}
        return Counts(**{name: int(numbers[-1]) for name, numbers in found.items() if numbers})


class Tcpdump(Tool):
    """tcpdump(1)."""

    name = "tcpdump"
    programs = ("tcpdump",)
    begun = "listening on"
    tells_on_request = True
    counts: Mapping[str, re.Pattern[str]] = {
        "captured": re.compile(r"(\d+) packets? captured"),
        "received": re.compile(r"(\d+) packets? received by filter"),
        "dropped": re.compile(r"(\d+) packets? dropped by kernel"),
        "missed": re.compile(r"(\d+) packets? dropped by interface"),
    }

    def arguments(self, interface: str, path: Path, *, snaplen: int, count: int | None, expression: str) -> list[str]:
        argv = ["tcpdump", "-i", interface, "-n", "-s", str(_rounded(snaplen)), "-w", str(path)]
        argv += ["-B", str(_BUFFER_MIB << 10)]
        # --immediate-mode: otherwise the kernel holds frames back for up to a second. -Z root: changing the user would
        # clear the parent-death signal.
        argv += ["--immediate-mode", "--time-stamp-precision=nano", "-Z", "root"]
        if count is not None:
            argv += ["-c", str(count)]
        return argv + (["--", expression] if expression else [])


class Dumpcap(Tool):
    """dumpcap(1). It writes nanoseconds as pcapng only; editcap(1), which is where it is, makes pcap of them."""

    name = "dumpcap"
    programs = ("dumpcap", "editcap")
    begun = "File: "
    counts: Mapping[str, re.Pattern[str]] = {
        "captured": re.compile(r"Packets captured: (\d+)"),
        "dropped": re.compile(r"Packets received/dropped on interface .*: \d+/(\d+) \("),
        "missed": re.compile(r"ps_ifdrop:(\d+)"),
    }

    def arguments(self, interface: str, path: Path, *, snaplen: int, count: int | None, expression: str) -> list[str]:
        argv = ["dumpcap", "-i", interface, "-s", str(_rounded(snaplen)), "-w", str(self.writes(path))]
        argv += ["-B", str(_BUFFER_MIB)]
        if count is not None:
            argv += ["-c", str(count)]
        return argv + (["-f", expression] if expression else [])

    def writes(self, path: Path) -> Path:
        return path.with_suffix(".pcapng")

    def complete(self, host: Host, path: Path) -> None:
        written = str(self.writes(path))
        host.run(["editcap", "-F", "nsecpcap", written, str(path)], timeout=_CONVERT_TIMEOUT_S)
        host.run(["rm", "--", written])


class Command(Tool):
    """A program that the configuration names."""

    def __init__(self, settings: CaptureCommand) -> None:
        self.name = settings.command[0]
        self.programs = (settings.command[0],)
        self.begun = settings.begins
        self.ending = signal.Signals[f"SIG{settings.signal}"]
        self._words = settings.command
        patterns = {"captured": settings.captured, "dropped": settings.dropped}
        self.counts = {name: re.compile(pattern) for name, pattern in patterns.items() if pattern is not None}

    def arguments(self, interface: str, path: Path, *, snaplen: int, count: int | None, expression: str) -> list[str]:
        if count is not None or expression:
            raise TestbedError(f"{self.name}: captures by filter or of a number of frames are tcpdump's or dumpcap's")
        values = {"{interface}": interface, "{file}": str(path), "{snaplen}": str(snaplen)}
        argv = []
        for word in self._words:
            for placeholder, value in values.items():
                word = word.replace(placeholder, value)
            argv.append(word)
        return argv


def tool_of(settings: Settings) -> Tool:
    """The program that the configuration of a testbed names."""
    if settings.capture_command is not None:
        return Command(settings.capture_command)
    return Dumpcap() if settings.capture == "dumpcap" else Tcpdump()


def _rounded(snaplen: int) -> int:
    """libpcap keeps a few bytes less than asked for unless the ring's slots have a round size."""
    return -(-snaplen // 16) * 16


class _Program:
    """A capture of one interface at work."""

    def __init__(self, host: Host, place: Path, number: int, tool: Tool, argv: Sequence[str]) -> None:
        self.file = place / file_name(number)
        self._host = host
        self._tool = tool
        self._outputs = [place / f"{number}.{stream}" for stream in ("out", "err")]
        stdout, stderr = self._outputs
        self._process = host.spawn(argv, stdout=stdout, stderr=stderr)

    def _said(self) -> str:
        return "".join(self._host.read(str(output)) for output in self._outputs)

    def _error(self, what: str) -> TestbedError:
        lines = self._said().strip().splitlines()
        said = lines[-1] if lines else "no message"
        return TestbedError(f"{self._host.where}: {self._tool.name} {what}: {said}")

    def await_begin(self) -> None:
        """Return when frames are being captured."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            ended = self._process.poll() is not None
            if self._tool.begun in self._said():
                return
            if ended or time.monotonic() > deadline:
                raise self._error("does not begin to capture")
            time.sleep(_POLL_S)

    @property
    def counts(self) -> Counts:
        """What it has said last."""
        return self._tool.read(self._said())

    def drain(self) -> None:
        """Wait until it has written what the kernel holds for it, which programs drop when they are told to end."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        if self._tool.tells_on_request:
            self._ask_until_complete(deadline)
        else:
            self._await_quiet(deadline)

    def _ask_until_complete(self, deadline: float) -> None:
        pattern = self._tool.counts["dropped"]
        while self._process.poll() is None:
            answers = len(pattern.findall(self._said()))
            self._process.signal(signal.SIGUSR1)
            while len(pattern.findall(self._said())) == answers and self._process.poll() is None:
                if time.monotonic() > deadline:
                    raise self._error(f"does not print its counts for {_DRAIN_TIMEOUT_S:g} s")
                time.sleep(_POLL_S)
            if self.counts.is_complete:
                return
            if time.monotonic() > deadline:
                raise self._error(f"has not written every frame after {_DRAIN_TIMEOUT_S:g} s")

    def _await_quiet(self, deadline: float) -> None:
        size, since = -1, time.monotonic()
        while self._process.poll() is None and time.monotonic() - since < QUIET_S:
            found = int(self._host.run(["stat", "-c", "%s", str(self._tool.writes(self.file))]).stdout)
            if found != size:
                size, since = found, time.monotonic()
            if time.monotonic() > deadline:
                raise self._error(f"has not written every frame after {_DRAIN_TIMEOUT_S:g} s")
            time.sleep(QUIET_S / 10)

    def end(self) -> None:
        """End it, with its file whole and its counts known."""
        self._process.signal(self._tool.ending)
        try:
            status = self._process.wait(_DRAIN_TIMEOUT_S).returncode
        except TimeoutError:
            raise self._error("does not end") from None
        if status != 0:
            raise self._error(f"ended with status {status}")
        if "captured" in self._tool.counts and self.counts.captured is None:
            raise self._error("did not report what it captured")
        self._tool.complete(self._host, self.file)

    def kill(self) -> None:
        """End it if it still runs."""
        self._process.kill()
        with contextlib.suppress(TimeoutError, TestbedError):
            self._process.wait(_DRAIN_TIMEOUT_S)


def file_name(number: int) -> str:
    """Name of the file of the tap's n-th interface while it is written."""
    return f"{number}.pcap"


@contextlib.contextmanager
def capturing(
    host: Host,
    interfaces: Sequence[str],
    tool: Tool,
    path: Path,
    *,
    snaplen: int,
    count: int | None,
    expression: str,
    sent: Callable[[], float] | None,
) -> Iterator[Capture]:
    """Capture interfaces of a host into *path* while the context lasts.

    *sent* is how many frames have been sent so far that have to be in the capture, None if that cannot be compared.
    """
    # beside the file, so that a capture need not be copied
    parts = path.with_name(f"{path.name}.parts")
    try:
        parts.mkdir()
    except OSError as error:
        raise TestbedError(f"{path}: cannot be written: {error.strerror}") from None
    programs: list[_Program] = []
    try:
        place = host.workspace(parts)
        with understood(host.where):
            _check_disk(host, place)
        for number, interface in enumerate(interfaces):
            file = place / file_name(number)
            argv = tool.arguments(interface, file, snaplen=snaplen, count=count, expression=expression)
            programs.append(_Program(host, place, number, tool, argv))
        for program in programs:
            program.await_begin()
        before = None if sent is None else sent()
        capture = Capture(path, tool=tool.name, where=host.name)
        yield capture
        with understood(host.where):
            expected = _await_frames(programs, sent, before)
            for program in programs:
                program.end()
        counts = [program.counts for program in programs]
        host.collect(parts)
        files = [parts / file_name(number) for number in range(len(interfaces))]
        frames = _join(f"{host.where}: {tool.name}", files, path, count=any(one.captured is None for one in counts))
        capture.packets_captured = frames if frames is not None else sum(one.captured or 0 for one in counts)
        lost = [one.lost for one in counts]
        capture.packets_dropped = None if None in lost else sum(one or 0 for one in lost)
        if expected is not None:
            capture.packets_missing = max(0, expected - capture.packets_captured)
    except BaseException:
        for program in programs:
            program.kill()
        host.forget(parts)
        raise
    finally:
        trees.remove(parts, ignore_errors=True)


def _check_disk(host: Host, place: Path) -> None:
    """Raise TestbedError if the disk that a capture goes to is about to be full."""
    free = int(host.run(["df", "--output=avail", "-B1", str(place)]).stdout.split()[-1])
    if free < FREE_BYTES:
        raise TestbedError(
            f"{host.where}: {free >> 20} MiB free in {place.parent}, {FREE_BYTES >> 20} MiB are needed for a capture; "
            "make room"
        )


def _await_frames(programs: Sequence[_Program], sent: Callable[[], float] | None, before: float | None) -> int | None:
    """Wait for frames that are still on their way; returns how many have been sent since *before*."""
    deadline = time.monotonic() + IN_FLIGHT_S
    while True:
        expected = None if sent is None or before is None else round(sent() - before)
        for program in programs:
            program.drain()
        if expected is None:
            return None
        known = [program.counts for program in programs]
        told = [one.captured for one in known if one.captured is not None]
        seen = sum(told) + sum(one.lost or 0 for one in known)
        if len(told) < len(known) or seen >= expected or time.monotonic() > deadline:
            return expected
        time.sleep(_POLL_S)


def _join(who: str, files: Sequence[Path], path: Path, *, count: bool) -> int | None:
    """Make one capture of those of several interfaces, in the order of their times; returns its frames if *count*."""
    try:
        captures = [pcap.Capture(file) for file in files]
        for capture in captures:
            if not capture.nanoseconds:
                raise TestbedError(
                    f"{who} stamps frames with microseconds; let it write nanoseconds (pcap, magic number a1b23c4d)"
                )
        if len(captures) == 1:
            frames = sum(1 for _ in captures[0]) if count else None
            files[0].replace(path)
            return frames
        return _merge(captures, path)
    except (pcap.CaptureError, OSError) as error:
        text = str(error)
        for file in files:
            text = text.replace(f"{file}: ", "")
        raise TestbedError(f"{who}: {text}") from None


def _merge(captures: Sequence[pcap.Capture], path: Path) -> int:
    """Frames of several captures in one file (draft-ietf-opsawg-pcap); returns their number."""
    kinds = {capture.link_type for capture in captures}
    if len(kinds) > 1:
        raise TestbedError(f"{path.name}: the tap's interfaces have different link-layer headers")
    snaplen = max(capture.snapshot_bytes for capture in captures)
    frames = 0
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snaplen, kinds.pop()))
        for frame in heapq.merge(*captures, key=lambda frame: frame.time_ns):
            seconds, nanoseconds = divmod(frame.time_ns, 10**9)
            file.write(struct.pack("<IIII", seconds, nanoseconds, len(frame.data), frame.wire_bytes) + frame.data)
            frames += 1
    return frames
