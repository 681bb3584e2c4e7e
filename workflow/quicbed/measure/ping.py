"""Pings before a run: whether the round-trip time of the link is what a cell asks for, and steady."""

from __future__ import annotations

import re
import time
from typing import Any

from quicbed.config.model import PingLimits
from quicbed.testbed import Host, TestbedError

# Seconds that the last echo is waited for, and between two attempts.
LAST_S = 1
PAUSE_S = 0.5

_COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) received")
_TIMES = re.compile(r"rtt min/avg/max/mdev = [\d.]+/([\d.]+)/[\d.]+/([\d.]+) ms")


def parse(output: str) -> dict[str, Any]:
    """What ``ping -q`` of iputils prints at its end: ``sent``, ``received``, ``mean_ms`` and ``deviation_ms``.

    The times are null where nothing came back; :class:`TestbedError` if it prints something else.
    """
    counts, times = _COUNTS.search(output), _TIMES.search(output)
    if counts is None or (times is None and int(counts[2]) > 0):
        lines = output.strip().splitlines()
        raise TestbedError(f"ping: cannot read what it prints: {lines[-1] if lines else 'nothing'}")
    return {
        "sent": int(counts[1]),
        "received": int(counts[2]),
        "mean_ms": float(times[1]) if times else None,
        "deviation_ms": float(times[2]) if times else None,
    }


def judge(pinged: dict[str, Any], wanted_ms: float, limits: PingLimits) -> str | None:
    """Why pings do not hold a link to be what is asked for; None if they do."""
    mean, deviation = pinged["mean_ms"], pinged["deviation_ms"]
    if mean is None:
        return f"none of {pinged['sent']} pings came back"
    if abs(mean - wanted_ms) > limits.max_difference_ms:
        return f"the mean of pings is {mean:.2f} ms, more than {limits.max_difference_ms:g} ms off {wanted_ms:g} ms"
    if deviation > limits.max_deviation_ms:
        return f"the deviation of pings is {deviation:.2f} ms, more than {limits.max_deviation_ms:g} ms"
    return None


def settle(host: Host, address: str, wanted_ms: float, limits: PingLimits) -> tuple[dict[str, Any], str | None]:
    """Ping until the limits hold or the attempts are used up.

    The last result with ``attempts`` and ``within_limits``, and why it is not within the limits.
    """
    argv = ["env", "LC_ALL=C", "ping", "-n", "-q", "-c", str(limits.count), "-i", f"{limits.interval_ms / 1000:g}"]
    argv += ["-W", str(LAST_S), address]
    timeout = 30 + limits.count * limits.interval_ms / 1000
    attempt = 1
    while True:
        done = host.run(argv, check=False, timeout=timeout)
        if done.returncode not in (0, 1):  # 1: some or all echoes are missing
            message = (done.stderr or done.stdout).strip().splitlines()
            raise TestbedError(
                f"{host.name}: ping: {message[-1] if message else f'exit status {done.returncode}'}; "
                "install iputils-ping if it is missing"
            )
        pinged = parse(done.stdout)
        problem = judge(pinged, wanted_ms, limits)
        if problem is None or attempt >= limits.attempts:
            return pinged | {"attempts": attempt, "within_limits": problem is None}, problem
        attempt += 1
        time.sleep(PAUSE_S)
