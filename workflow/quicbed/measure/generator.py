"""Competing traffic on the measured link: what generates it, and the rates that were achieved.

A generator starts before the runs of a block that compete with it and stops after them. What it sent and what arrived
during a run is taken from its own counters, so that both have one clock.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicbed.base.untrusted import one_line
from quicbed.config import model
from quicbed.config.model import Link, Load
from quicbed.measure import trex
from quicbed.testbed import Feature, HostLostError, Process, Testbed, TestbedError
from quicbed.testbed.process import find_program

FCS_BYTES = trex.FCS_BYTES
HEADER_BYTES = trex.HEADER_BYTES
IPERF_PORT = 5201
_START_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.02
_INTERVAL_S = 0.1
# Shortest time between two samples of TRex: errors of some milliseconds are less than what is told from the asked rate.
_LEAST_S = 0.5
_IDLE_S = 0.6
_SETTLE_S = 5.0
# iperf3's longest
_FOREVER_S = 86400


class GeneratorError(TestbedError):
    """Competing traffic that is not what it should be, in one line with the remedy."""


@dataclass(frozen=True)
class Count:
    """Packets counted until a time of the clock of what counts them; bytes of frames with check sequences."""

    time_s: float
    packets: int
    bytes: int


@dataclass(frozen=True)
class Sample:
    """Competing traffic so far."""

    sent: Count
    received: Count | None
    """None where nothing counts what arrives."""


@dataclass(frozen=True)
class Trial:
    """Traffic that was sent alone, from its beginning to its end."""

    begin: Sample
    end: Sample
    """Counters some time after its start and some time before its end: rates are those between them."""
    sent: int
    """Packets, of all of it."""
    received: int | None
    """Packets that arrived of them; None where nothing counts what arrives."""


def achieved(before: Sample, after: Sample) -> dict[str, float]:
    """Mean rates between two samples: `background_sent_mbps` and, where known, `background_received_mbps`."""
    rates = {"background_sent_mbps": _mbps(before.sent, after.sent)}
    if before.received is not None and after.received is not None:
        rates["background_received_mbps"] = _mbps(before.received, after.received)
    return {name: rate for name, rate in rates.items() if rate is not None}


MOST_OFF = 0.03
"""Largest share by which the rate that was sent may differ from the one that was asked for."""


def rate_problem(asked_mbps: float | None, rates: Mapping[str, float]) -> str | None:
    """Why rates that were achieved are not what was asked for; None if they are, or nothing tells."""
    sent = rates.get("background_sent_mbps")
    if asked_mbps is None or sent is None or abs(sent - asked_mbps) <= MOST_OFF * asked_mbps:
        return None
    return (
        f"{sent:.1f} Mbit/s were sent and {asked_mbps:.1f} were asked for, {abs(sent / asked_mbps - 1):.1%} off; give "
        "the generator more cores, or ask for less"
    )


def _mbps(before: Count, after: Count) -> float | None:
    """None where the counters were not refreshed in between."""
    seconds = after.time_s - before.time_s
    return (after.bytes - before.bytes) * 8 / seconds / 1e6 if seconds > 0 else None


class Generator(ABC):
    """What sends competing traffic towards the client."""

    @abstractmethod
    def problem(self, load: Load, link: Link) -> str | None:
        """Why it cannot send such traffic over such a link; None if nothing is known against it."""

    @abstractmethod
    def start(self, load: Load, link: Link) -> None:
        """Send it until :meth:`stop`; TestbedError unless it is sent when this returns."""

    @abstractmethod
    def sample(self) -> Sample:
        """The counters now; TestbedError if it is not sent any more."""

    @abstractmethod
    def stop(self) -> None:
        """Stop; nothing happens if nothing is sent. TestbedError if it may still be sent."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What identifies it."""

    def asked_mbps(self) -> float | None:
        """The rate in Mbit/s that has to be sent, which samples are held against; None where that is not known."""
        return None

    def cpu_s(self) -> dict[str, float]:
        """Processor time in seconds that it has used so far on the hosts of the endpoints, by role."""
        return {}


def of(settings: model.Generator | None, testbed: Testbed) -> Generator | None:
    """The generator that a testbed names; None if it names none."""
    if settings is None:
        return None
    return Trex(settings, testbed.name) if settings.kind == "trex" else Iperf3(testbed)


def inspect(settings: model.Generator, testbed: str) -> dict[str, Feature]:
    """What the generator of a testbed that this machine starts or reaches is, in rows by name.

    Nothing is started or acquired.
    """
    return _inspect_trex(settings, testbed) if settings.kind == "trex" else {"iperf3": _inspect_iperf3()}


# ---- iperf3 ----------------------------------------------------------------------------------------------------------

# `[  5]   0.20-0.30   sec  1.19 MBytes  50.0 Mbits/sec  849`, and with jitter and `0/850 (0%)` at the receiver, where
# fewer than none are lost if some of an interval before have come late
_LINE = re.compile(r"^\[ *\d+\] +[\d.]+-([\d.]+) +sec .*?(?:(-?\d+)/)?(\d+)(?: \([^)]*\))? *$")


class Iperf3(Generator):
    """UDP datagrams of one size from the server host to the client host, sent by iperf3."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._hosts = {"sender": testbed.server, "receiver": testbed.client}
        self._processes: dict[str, Process] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._frame_bytes = 0
        self._cpu_s = {"client": 0.0, "server": 0.0}
        self._version: str | None = None

    def problem(self, load: Load, link: Link) -> str | None:
        sizes = load.sizes()
        if len(sizes) != 1:
            return "iperf3 sends datagrams of one size"
        if sizes[0].bytes - FCS_BYTES - 14 > link.mtu:
            return f"frames of {sizes[0].bytes} bytes do not fit an MTU of {link.mtu}"
        if load.percent is not None and link.rate_mbit is None:
            return "the link has no rate that a percentage is of: set link.rate_mbit"
        try:
            versions = [host.run(["iperf3", "--version"]).stdout.split("\n")[0] for host in self._hosts.values()]
        except HostLostError:
            raise
        except (TestbedError, OSError) as error:
            return str(error)
        self._version = ", ".join(dict.fromkeys(versions))
        return None

    def start(self, load: Load, link: Link) -> None:
        self.stop()
        (size,) = load.sizes()
        payload = size.bytes - FCS_BYTES - HEADER_BYTES
        bits = payload * 8 * packets_per_second(load, link.rate_mbit)
        self._frame_bytes = size.bytes
        self._directory = tempfile.TemporaryDirectory(prefix="quicbed-iperf3-")
        common = ["--port", str(IPERF_PORT), "--interval", f"{_INTERVAL_S:g}", "--forceflush"]
        address = str(self._testbed.client.address)
        try:
            self._spawn("receiver", ["iperf3", "--server", "--one-off", "--bind", address, *common])
            self._await("receiver", lambda: "Server listening" in self.output("receiver"))
            sender = ["iperf3", "--client", address, "--udp", "--bitrate", f"{bits:.0f}", "--length", str(payload)]
            self._spawn("sender", [*sender, "--time", str(_FOREVER_S), *common])
            self._await("sender", lambda: self._count("sender")[0] > 0 and self._count("receiver")[0] > 0)
        except BaseException:
            self.stop()
            raise

    def sample(self) -> Sample:
        for role in ("sender", "receiver"):
            self._check(role)
        sent_s, sent, _ = self._count("sender")
        received_s, expected, lost = self._count("receiver")
        arrived, size = expected - lost, self._frame_bytes
        return Sample(Count(sent_s, sent, sent * size), Count(received_s, arrived, arrived * size))

    def stop(self) -> None:
        for role in ("sender", "receiver"):
            process = self._processes.get(role)
            if process is None:
                continue
            # the receiver ends by itself when the sender has told it to
            if role == "sender":
                process.terminate()
            # it ended with a host that was lost
            with contextlib.suppress(HostLostError):
                self._cpu_s[self._hosts[role].name] += self._end(process)
            del self._processes[role]
        if self._directory is not None:
            for host in self._hosts.values():
                host.forget(Path(self._directory.name))
            self._directory.cleanup()
            self._directory = None

    def facts(self) -> dict[str, Any]:
        return {"kind": "iperf3", "version": self._version}

    def cpu_s(self) -> dict[str, float]:
        used = dict(self._cpu_s)
        for role, process in self._processes.items():
            used[self._hosts[role].name] += process.sample_cpu() or 0.0
        return used

    @staticmethod
    def _end(process: Process) -> float:
        """Processor time of a process that is ending, or is made to."""
        try:
            ended = process.wait(_STOP_S)
        except TimeoutError:
            process.kill()
            ended = process.wait(_STOP_S)
        return ended.user_s + ended.system_s

    def _spawn(self, role: str, argv: list[str]) -> None:
        out, err = self._files(role)
        self._processes[role] = self._hosts[role].spawn(argv, stdout=out, stderr=err)

    def _files(self, role: str) -> tuple[Path, Path]:
        """Where a role's host has its output and its complaints."""
        if self._directory is None:
            raise GeneratorError("iperf3: is not running")
        place = self._hosts[role].workspace(Path(self._directory.name))
        return place / f"{role}.out", place / f"{role}.err"

    def output(self, role: str) -> str:
        return self._hosts[role].read(str(self._files(role)[0]))

    def _await(self, role: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not done():
            self._check(role)
            if time.monotonic() > deadline:
                told = one_line(self.output(role).strip().rpartition("\n")[2], 100)
                says = f", it says {told!r}" if told else ""
                raise GeneratorError(
                    f"iperf3: the {role} has sent nothing for {_START_S:g} s{says}; try another version than "
                    f"{self._version}"
                )
            time.sleep(_POLL_S)

    def _check(self, role: str) -> None:
        """GeneratorError with what it says if one of the two has ended."""
        process = self._processes.get(role)
        if process is None:
            raise GeneratorError(f"iperf3: there is no {role}")
        if (ended := process.poll()) is not None:
            said = self._hosts[role].read(str(self._files(role)[1])).strip().replace("\n", "; ")
            raise GeneratorError(f"iperf3: the {role} ended with {ended.returncode}: {said or 'it says nothing'}")

    def _count(self, role: str) -> tuple[float, int, int]:
        """End of the last interval in seconds, and datagrams sent (or expected) and lost until then."""
        end_s, total, lost = 0.0, 0, 0
        # the last line may be half written
        for line in self.output(role).rpartition("\n")[0].splitlines():
            if found := _LINE.match(line):
                end_s, total, lost = float(found[1]), total + int(found[3]), lost + int(found[2] or 0)
        return end_s, total, lost


def _inspect_iperf3() -> Feature:
    """Whether this machine has iperf3, and its version."""
    program = find_program("iperf3")
    if program is None:
        return Feature(False, "iperf3 is missing; install with: apt-get install iperf3")
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_START_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Feature(False, f"{program} does not work: {error}")
    return Feature(True, done.stdout.partition("\n")[0])


def packets_per_second(load: Load, rate_mbit: float | None) -> float:
    """Packets per second of a load of one frame size; percentages are of *rate_mbit*, without check sequences."""
    (size,) = load.sizes()
    if load.pps is not None:
        return load.pps
    if load.bps is not None:
        return load.bps / 8 / size.bytes
    return (load.percent or 0) / 100 * (rate_mbit or 0) * 1e6 / 8 / (size.bytes - FCS_BYTES)


# ---- TRex ------------------------------------------------------------------------------------------------------------


class Trex(Generator):
    """UDP packets of any mix of sizes, sent by a port of a TRex server."""

    def __init__(self, settings: model.Generator, testbed: str) -> None:
        self._settings = settings
        self._server = trex.Server(str(settings.host), settings.rpc_port, timeout_s=settings.timeout_s)
        user, session = _owner(settings, testbed)
        self._port = trex.Port(self._server, settings.port, user=user, session=session, force=settings.force)
        self._receiver = (
            None
            if settings.receiver is None
            else trex.Port(self._server, settings.receiver, user=user, session=session, force=settings.force)
        )
        self._opened = False
        """Whether the receiver takes frames for other addresses because of us."""
        self._sampled_s = -_LEAST_S
        self._version: str | None = None

    def problem(self, load: Load, link: Link) -> str | None:
        largest = max(size.bytes for size in load.sizes())
        if largest - FCS_BYTES - 14 > link.mtu:
            return f"frames of {largest} bytes do not fit an MTU of {link.mtu}"
        if link.rate_mbit is not None:
            return (
                "TRex's traffic does not pass the queue at the server that limits the link, so it takes nothing of "
                "its rate: leave out link.rate_mbit"
            )
        # a server that does not answer is an error, not something that a cell does not support
        self._version = self._server.version()
        return None

    def start(self, load: Load, link: Link) -> None:
        del link  # percentages are of the port's line rate
        if self._receiver is not None and self._receiver.take_all():
            # a network card drops what is for another address
            self._opened = True
        self._port.start(self._streams(load), *_rate(load))

    def asked_mbps(self) -> float | None:
        return None if self._port.asked_bps is None else self._port.asked_bps / 1e6

    def sample(self) -> Sample:
        """As the base class has it; at least 0.5 s after the one before."""
        time.sleep(max(0.0, self._sampled_s + _LEAST_S - time.monotonic()))
        self._port.check_sending()
        now = self._counts()
        self._sampled_s = time.monotonic()
        return Sample(now["sent"], now.get("received"))

    def stop(self) -> None:
        try:
            self._port.stop()
            if self._opened and self._receiver is not None:
                self._receiver.take_own()
            self._opened = False
        finally:
            self._server.close()

    def facts(self) -> dict[str, Any]:
        shown = self._settings.model_dump(include={"kind", "host", "rpc_port", "port", "receiver"})
        return {**shown, "version": self._version}

    def trial(self, load: Load, link: Link, seconds: float) -> Trial:
        """Send a load for so long while nothing else is sent, and count what arrives of it."""
        before = self._settled()
        try:
            self.start(load, link)
            begin = self.sample()
            time.sleep(seconds)
            end = self.sample()
        finally:
            self.stop()
        after = self._settled()
        packets = {way: after[way].packets - before[way].packets for way in after}
        return Trial(begin, end, packets["sent"], packets.get("received"))

    def _settled(self) -> dict[str, Count]:
        """The counters once they stand still; after 5 s as they are, because something else may be counted too."""
        counts = self._counts()
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            time.sleep(_IDLE_S)
            before, counts = counts, self._counts()
            if all(before[way].packets == counts[way].packets for way in counts):
                break
        return counts

    def _counts(self) -> dict[str, Count]:
        """What was sent and, where it is counted, what arrived."""
        return {way: self._count(way) for way in ("sent", *(["received"] if self._receiver else []))}

    def _count(self, way: str) -> Count:
        asked_s = time.monotonic()
        if way == "received" and self._receiver is not None:
            counted = self._receiver.counters()
            packets, size = counted.received_packets, counted.received_bytes
        else:
            counted = self._port.counters()
            packets, size = counted.sent_packets, counted.sent_bytes
        # they were read at some time of the call
        return Count((asked_s + time.monotonic()) / 2, packets, size)

    def _streams(self, load: Load) -> list[trex.Stream]:
        ends = [trex.Address(end.ip, end.port, end.mac) for end in (self._settings.source, self._settings.destination)]
        return [trex.Stream(trex.udp_frame(size.bytes - FCS_BYTES, *ends), size.share) for size in load.sizes()]


def _owner(settings: model.Generator, testbed: str) -> tuple[str, int]:
    """Name and session with which this controller owns a port for a testbed.

    The same after a crash, so that traffic that was left running is ours to stop; another controller has another.
    """
    session = zlib.crc32(f"{uuid.getnode():x} {testbed}".encode()) >> 1 or trex.SESSION
    return f"{settings.user}-{session:08x}", session


def _rate(load: Load) -> tuple[str, float]:
    """Unit and value of a total rate as TRex has them."""
    for unit, value in (("percentage", load.percent), ("bps", load.bps), ("pps", load.pps)):
        if value is not None:
            return unit, value
    raise ValueError("a load without a rate")


def _inspect_trex(settings: model.Generator, testbed: str) -> dict[str, Feature]:
    """Whether the server answers, and each port of it that is used is free and has a link."""
    server = trex.Server(str(settings.host), settings.rpc_port, timeout_s=settings.timeout_s)
    with server:
        try:
            rows = {"server": Feature(True, f"{server.name}, version {server.version()}")}
        except trex.TrexError as error:
            return {"server": Feature(False, str(error))}
        for number in dict.fromkeys((settings.port, settings.receiver)):
            if number is None:
                continue
            try:
                status = trex.Port(server, number).status()
            except trex.TrexError as error:
                rows[f"port {number}"] = Feature(False, str(error))
                continue
            owner = status.get("owner") if number == settings.port else None
            usable = settings.force or owner == _owner(settings, testbed)[0]
            rows[f"port {number}"] = _port(status, owner, usable=usable)
    return rows


def _port(status: Mapping[str, Any], owner: str | None, *, usable: bool) -> Feature:
    """A port by what get_port_status says of it.

    *owner* is who has it, if it is to be acquired, and *usable* whether it can be then.
    """
    if owner and not usable:
        return Feature(
            False, f"is owned by {one_line(owner, 60)}; wait until it is released, or set `force: true` to take it"
        )
    attributes = status.get("attr")
    attributes = attributes if isinstance(attributes, dict) else {}
    up = trex.link_is_up(status)
    if up is False or status.get("state") == "DOWN":
        return Feature(False, "its link is down; check the cable and the interface at its other end")
    # Gbit/s
    speed = attributes.get("speed")
    text = f"{one_line(status.get('state'), 40)}, link {'up' if up else 'unknown'}"
    text += f", {speed:g} Gbit/s" if isinstance(speed, int | float) and speed else ", speed unknown"
    return Feature(True, text + (f", owned by {one_line(owner, 60)}" if owner else ""))
