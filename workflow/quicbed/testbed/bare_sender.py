"""A sender of UDP packets at known times, which needs no library: no pacer here can be more precise than it is.

A program of the standard library: `python3 -IS - '<plan as JSON>' < bare_sender.py` on the host that sends. The plan
has `address` and `port`, `payload_bytes`, and `series`, each with its `number`, `method`, `packets`, `train_packets`,
`gap_ns`, and whether the queueing discipline is `etf`. Packets of a series are sent in trains of so many at once, and
trains so far apart that a packet takes `gap_ns` on average. The answer is a JSON object on standard output: `sent_ns`,
by series, when each packet was handed to the kernel (CLOCK_MONOTONIC), and `missing`, by series, why it could not be
sent.

Methods: `sleep` waits for each time with clock_nanosleep(2), as pacers in user space do; `txtime` hands each packet to
the kernel `LEAD_NS` ahead of its time and tells it that time (SO_TXTIME), to which a queueing discipline keeps; ETF
takes times of CLOCK_TAI, from packets of its priority.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import socket
import struct
import sys
import time
from typing import Any

MAGIC = b"qbfloor1"
HEADER = struct.Struct("!8sII")
"""What the payload of a packet begins with: `MAGIC`, number of the series, number of the packet from 0 on."""
LEAD_NS = 2_000_000
"""So long ahead of its time the kernel gets a packet: more than a sleep is late by."""
_BEGIN_NS = 5_000_000
# <time.h>, <linux/prctl.h>, <asm-generic/socket.h>
_CLOCK_MONOTONIC, _TIMER_ABSTIME, _SET_TIMERSLACK, _SO_TXTIME = 1, 1, 29, 61
_CLOCK_TAI, _ETF_PRIORITY = 11, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


def _sleep_until(moment_ns: int) -> None:
    """Wait until CLOCK_MONOTONIC has reached a time; not at all where it has."""
    until = _Timespec(*divmod(moment_ns, 1_000_000_000))
    while _libc.clock_nanosleep(_CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(until), None) == errno.EINTR:
        pass


def offsets(packets: int, train_packets: int, gap_ns: int) -> list[int]:
    """When each packet of a series is to leave, in ns since the first."""
    return [number // train_packets * train_packets * gap_ns for number in range(packets)]


def _send(series: dict[str, Any], destination: tuple[str, int], payload_bytes: int) -> list[int]:
    """Send a series; returns when each packet was handed to the kernel. Raises OSError."""
    released = series["method"] == "txtime"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        if released:
            clock = _CLOCK_TAI if series["etf"] else _CLOCK_MONOTONIC
            opened.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, struct.pack("iI", clock, 0))
        if series["etf"]:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _ETF_PRIORITY)
        after = offsets(series["packets"], series["train_packets"], series["gap_ns"])
        packets = [
            HEADER.pack(MAGIC, series["number"], number).ljust(payload_bytes, b"\0") for number in range(len(after))
        ]
        begin = time.monotonic_ns() + _BEGIN_NS
        sent = []
        for packet, offset in zip(packets, after):  # noqa: B905 (this program also runs on Python 3.9)
            moment = begin + offset
            _sleep_until(moment - LEAD_NS if released else moment)
            sent.append(time.monotonic_ns())
            if released:
                ahead = time.clock_gettime_ns(_CLOCK_TAI) - time.monotonic_ns() if series["etf"] else 0
                told = [(socket.SOL_SOCKET, _SO_TXTIME, struct.pack("Q", moment + ahead))]
                opened.sendmsg([packet], told, 0, destination)
            else:
                opened.sendto(packet, destination)
        # the last ones have left before the socket is closed
        _sleep_until(begin + after[-1] + LEAD_NS)
        return sent


def main(argv: list[str]) -> int:
    """Send what the plan says, and tell when."""
    plan = json.loads(argv[0])
    # a timer may not be late for the sake of others
    _libc.prctl(_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.disable()
    sent: dict[str, list[int]] = {}
    missing: dict[str, str] = {}
    for series in plan["series"]:
        try:
            found = _send(series, (plan["address"], plan["port"]), plan["payload_bytes"])
            sent[str(series["number"])] = found
        except OSError as error:
            missing[str(series["number"])] = os.strerror(error.errno) if error.errno else str(error)
    json.dump({"sent_ns": sent, "missing": missing}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
