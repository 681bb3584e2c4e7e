"""The floor of timers: how precisely hosts send and stamp packets, measured before a traced experiment's first block.

A bare sender (`quicbed.testbed.bare_sender`) sends packets of full size from the server's host over the link, at known
times: evenly, as a link of this rate would pass them, and in trains. The tap captures them as it captures those of
runs. What the captured gaps miss the intended ones by comes of timers, the way through the kernel, and stamps, and no
library. Where the server's queueing discipline keeps to times of release, the sender also tells them to the kernel.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quicbed.measure.attempt import MeasureError
from quicbed.measure.captures import CAPTURED_BYTES, lost_packets
from quicbed.measure.driver import Driver
from quicbed.measure.link import link_settings
from quicbed.measure.progress import now, say
from quicbed.plan.factors import UDP_OVERHEAD
from quicbed.plan.spec import RunSpec
from quicbed.store.campaign import FLOOR_FILE, Floor, FloorSeries
from quicbed.testbed import HostLostError, LinkSettings, Testbed, TestbedError, bare_sender
from quicbed.wire import pacing
from quicbed.wire.pcap import Capture, CaptureError
from quicbed.wire.trains import with_trains

PACKETS = 2000
"""Of each series: 0.6 s at 40 Mbit/s."""
TRAIN_PACKETS = 10
RATE_MBIT = 40.0
"""At which packets are spaced where the link has no limit, or a higher one."""
PORT = 9
"""Discard (RFC 863): nobody listens there."""
ATTEMPTS = 3
_ETHERNET_BYTES = 14
_TIMEOUT_S = 60.0
_MOST_OUTPUT = 1 << 22
RELEASING = frozenset({"fq", "etf"})
"""Queueing disciplines that keep to times of release."""


class _Answer(BaseModel):
    """What the sender says when it has ended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sent_ns: dict[str, list[int]]
    missing: dict[str, str] = Field({})


class _UnmeasuredError(Exception):
    """Why the floor of a link could not be measured, in one line."""


@dataclass(frozen=True)
class _Series:
    method: str
    schedule: str
    train_packets: int


def _planned(qdisc: str | None) -> list[_Series]:
    methods = ["sleep", *(["txtime"] if qdisc in RELEASING else [])]
    schedules = {"even": 1, "trains": TRAIN_PACKETS}
    return [_Series(method, name, size) for method in methods for name, size in schedules.items()]


def gap_ns(link: LinkSettings) -> int:
    """What a packet of full size takes at the rate of a link, or at `RATE_MBIT`."""
    rate = min(link.rate_mbit or RATE_MBIT, RATE_MBIT)
    return round((link.mtu + _ETHERNET_BYTES) * 8e3 / rate)


def read(directory: Path) -> Floor | None:
    """The floor of the campaign of a directory, or None if it was not measured; MeasureError if the file is damaged."""
    file = directory / FLOOR_FILE
    if not file.exists():
        return None
    try:
        return Floor.read(file)
    except ValueError as error:
        raise MeasureError(f"{file}: is damaged ({error}); move it out of the way") from None


def find(driver: Driver, name: str, directory: Path, specs: Sequence[RunSpec]) -> None:
    """Measure the floor of every link of *specs*, once for a campaign, and keep it in its directory.

    Where it cannot be measured, the campaign goes on without it: nothing about its gaps and trains is then claimed.
    Where only that of a queueing discipline cannot, the others are kept.
    """
    if read(directory) is not None:
        return
    # the congestion control of TCP changes nothing for a sender of UDP
    by_link: dict[LinkSettings, RunSpec] = {}
    for spec in specs:
        if spec.load is None:
            by_link.setdefault(link_settings(spec).model_copy(update={"congestion_control": "cubic"}), spec)
    series: list[FloorSeries] = []
    missing: list[str] = []
    frames: set[int] = set()
    for settings, spec in by_link.items():
        say(f"{name}: floor of timers{f' with {settings.qdisc}' if settings.qdisc else ''}")
        try:
            driver.link.prepare(spec)
            found, lacking = of_link(driver.testbed, settings)
        except HostLostError as error:
            driver.link.lost(error, now())
            say(f"{name}: floor of timers: not measured: {error}")
            return
        except (TestbedError, CaptureError, _UnmeasuredError) as error:
            say(f"{name}: floor of timers: not measured: {error}")
            if settings.qdisc is None:
                return
            # what another queueing discipline loses says nothing of the others
            missing.append(f"{settings.qdisc}: {error}")
            continue
        series += found
        missing += lacking
        frames.add(settings.mtu + _ETHERNET_BYTES)
    if not series:
        return
    values = {"measured_at": now(), "frame_bytes": max(frames), "series": [one.model_dump() for one in series]}
    Floor.made(values | ({"missing": missing} if missing else {})).write(directory / FLOOR_FILE)


def of_link(testbed: Testbed, link: LinkSettings) -> tuple[list[FloorSeries], list[str]]:
    """The series of a prepared link, and what could not be sent; tried again where the capture lost packets."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _captured(testbed, link)
        except _UnmeasuredError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


def _captured(testbed: Testbed, link: LinkSettings) -> tuple[list[FloorSeries], list[str]]:
    gap, planned = gap_ns(link), dict(enumerate(_planned(link.qdisc)))
    described = [
        {
            "number": number,
            "method": one.method,
            "packets": PACKETS,
            "train_packets": one.train_packets,
            "gap_ns": gap,
            "etf": one.method == "txtime" and link.qdisc == "etf",
        }
        for number, one in planned.items()
    ]
    plan = {
        "address": str(testbed.client.address),
        "port": PORT,
        "payload_bytes": link.mtu - UDP_OVERHEAD,
        "series": described,
    }
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "floor.pcap"
        with testbed.capture(file, snaplen=CAPTURED_BYTES) as seen:
            answer = _sent(testbed, plan)
        if seen.packets_lost:
            raise _UnmeasuredError(lost_packets(seen))
        captured = captured_ns(file, str(testbed.server.address))
    found, missing = [], []
    for number, one in planned.items():
        if (why := answer.missing.get(str(number))) is not None:
            missing.append(f"{one.method}, {one.schedule}: {why}")
            continue
        times = captured.get(number, {})
        sent = answer.sent_ns.get(str(number), [])
        if len(sent) != PACKETS or sorted(times) != list(range(PACKETS)):
            raise _UnmeasuredError(f"{len(times)} of {PACKETS} packets of the bare sender were captured")
        found.append(series_of(one.method, one.schedule, one.train_packets, gap, sent, times, link.qdisc))
    return found, missing


def _sent(testbed: Testbed, plan: Mapping[str, Any]) -> _Answer:
    """What the sender says, once it has ended on the server's host."""
    interpreter = sys.executable if testbed.kind == "local" else "python3"
    program = Path(bare_sender.__file__).read_text(encoding="utf-8")
    argv = [interpreter, "-IS", "-", json.dumps(plan)]
    done = testbed.server.run(argv, timeout=_TIMEOUT_S, input=program)
    try:
        return _Answer.model_validate_json(done.stdout[:_MOST_OUTPUT])
    except ValidationError:
        raise _UnmeasuredError(f"{testbed.server.where}: the bare sender printed something other than times") from None


def captured_ns(file: Path, server: str) -> dict[int, dict[int, int]]:
    """When packets of the bare sender were captured, by series and number; *server* is the address that sends them.

    Raises CaptureError.
    """
    found: dict[int, dict[int, int]] = {}
    for packet in Capture(file).packets():
        payload = packet.payload[: bare_sender.HEADER.size]
        if packet.source != server or len(payload) < bare_sender.HEADER.size:
            continue
        magic, series, number = bare_sender.HEADER.unpack(payload)
        if magic == bare_sender.MAGIC:
            found.setdefault(series, {})[number] = packet.frame.time_ns
    return found


def series_of(
    method: str,
    schedule: str,
    train_packets: int,
    gap: int,
    sent: Sequence[int],
    captured: Mapping[int, int],
    qdisc: str | None = None,
) -> FloorSeries:
    """What the captured times of a series tell; *sent* is when its packets were handed to the kernel."""
    times = [captured[number] for number in range(len(captured))]
    intended = bare_sender.offsets(len(times), train_packets, gap)
    kept = pacing.distributions(with_trains(pl.LazyFrame({"time_ns": sorted(times)})).collect())
    gaps, trains = (kept.filter(pl.col("quantity") == quantity) for quantity in (pacing.GAPS, pacing.TRAINS))
    values = {
        "qdisc": qdisc,
        "method": method,
        "schedule": schedule,
        "train_packets": train_packets,
        "gap_ns": gap,
        "deviation_ns": _deviations(times, intended),
        "sender_deviation_ns": _deviations(sent, intended) if method == "sleep" else [],
        "captured_gap_ns": gaps["value"].to_list(),
        "gaps": gaps["count"].to_list(),
        "captured_train_packets": trains["value"].to_list(),
        "packets": trains["count"].to_list(),
    }
    return FloorSeries.model_validate(values)


def _deviations(times: Sequence[int], intended: Sequence[int]) -> list[int]:
    """Gaps between times minus those between the intended ones, rising."""
    pairs = zip(pairwise(times), pairwise(intended), strict=True)
    return sorted((after - before) - (then - once) for (before, after), (once, then) in pairs)
