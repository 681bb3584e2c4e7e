"""What hosts and driver used while programs ran."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from quicbed.config.model import Gate, Library
from quicbed.measure.attempt import Attempt
from quicbed.testbed import Exit, Testbed

# Hundreds of counters, of which a run keeps those that moved.
_DETAIL = re.compile(r"(client|server)\.(netstat|ethtool)\.")


class Usage:
    """Counters of hosts, link and driver from the making of this object to `end`."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._begin = time.monotonic()
        self._before = testbed.counters()
        self._own_before = time.process_time()
        self.delta: dict[str, float] = {}
        """By how much the counters grew."""
        self._own_s = self.wall_s = 0.0

    def end(self) -> None:
        """The programs have ended."""
        after = self._testbed.counters()
        self._own_s = time.process_time() - self._own_before
        self.wall_s = time.monotonic() - self._begin
        self.delta = {key: after[key] - self._before[key] for key in after.keys() & self._before.keys()}

    def facts(self, used: Mapping[str, float], link_s: float = 0.0) -> dict[str, Any]:
        """How busy the hosts were, for the `host` of a run; *used* are the seconds of processors that are its own.

        *link_s* are those of a link made of programs.
        """
        return {
            "load_1m": self._before["machine.load_1m"],
            "psi_cpu_some_s": self.delta.get("machine.psi.cpu_some_s"),
            "foreign_cpu_share": foreign_share(self._before, self.delta, used, self._own_s + link_s, self.wall_s),
        }

    def counters(self) -> dict[str, Any]:
        """The counters themselves, for the `host` of a run."""
        return {
            "before": {key: value for key, value in self._before.items() if not _DETAIL.match(key)},
            "delta": {key: value for key, value in sorted(self.delta.items()) if value or not _DETAIL.match(key)},
            "driver_cpu_s": self._own_s,
        }


def processor_s(ended: Exit | None) -> float:
    """Seconds of processors that a program took, as far as known."""
    return 0.0 if ended is None else ended.user_s + ended.system_s


def foreign_share(
    before: Mapping[str, float], delta: Mapping[str, float], used: Mapping[str, float], own_s: float, wall_s: float
) -> float | None:
    """Share of all processor time in `wall_s` that neither the endpoints nor the driver used; the larger of two hosts'.

    `used` are the seconds of client and server, of what samples them and of competing traffic there; `own_s` those of
    the driver and of a link made of programs, which are on their machine or on another.
    Interrupt time counts as used, because the kernel charges it to whichever program it interrupts: mostly the
    endpoints, for their own packets. The counters advance by ticks, so a tick of every processor is nobody's.
    """
    machines = {"machine": sum(used.values()) + own_s, **{f"{role}.machine": seconds for role, seconds in used.items()}}
    shares = []
    for machine, accounted_s in machines.items():
        if f"{machine}.cpu.user_s" not in delta:
            continue
        cpus = before.get(f"{machine}.cpus") or os.cpu_count() or 1
        busy = sum(delta[f"{machine}.cpu.{name}_s"] for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        nobodys = cpus / os.sysconf("SC_CLK_TCK")
        shares.append(max(0.0, busy - accounted_s - nobodys) / (cpus * wall_s))
    return max(shares, default=None)


def gate(attempt: Attempt, libraries: Mapping[Any, Library], limits: Gate, copies: int = 1) -> None:
    """Note what else the machine was doing, where it was too much; *copies* of the programs have waited."""
    # a series of handshakes may be so short that starting its programs is most of what they are delayed in
    wall = attempt.metrics.get("run_wall_s" if "connections" in attempt.metrics else "wall_s")
    if wall:
        for role, delay in attempt.host.get("run_delay_s", {}).items():
            one_thread = libraries[role].threads == "one"
            if delay is not None and one_thread and delay / copies / wall > limits.max_run_delay:
                attempt.contamination.append(
                    f"{role} waited for a processor {delay / copies / wall:.2f} of the wall time, more than "
                    f"{limits.max_run_delay:g}"
                )
    gate_foreign(attempt, limits)


def gate_foreign(attempt: Attempt, limits: Gate) -> None:
    """Note where too much of the processors went elsewhere."""
    share = attempt.host.get("foreign_cpu_share")
    if share is not None and share > limits.max_foreign_cpu:
        attempt.contamination.append(
            f"{share:.2f} of all processor time went elsewhere, more than {limits.max_foreign_cpu:g}"
        )
