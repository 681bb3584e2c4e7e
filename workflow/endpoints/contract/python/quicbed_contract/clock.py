"""Time and resources of this process, in the units of the event format: nanoseconds and bytes."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import NamedTuple

now_ns = time.monotonic_ns
"""CLOCK_MONOTONIC in nanoseconds."""


class CpuTime(NamedTuple):
    """CPU time of the whole process, all threads, ended ones too."""

    user_ns: int
    system_ns: int

    @classmethod
    def now(cls) -> CpuTime:
        """CPU time until now (getrusage, in microseconds)."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(round(usage.ru_utime * 1e6) * 1000, round(usage.ru_stime * 1e6) * 1000)


def run_delay_ns() -> int | None:
    """Time that threads were runnable but waited for a processor; None where the kernel does not tell."""
    try:
        files = list(Path("/proc/self/task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[1]) for file in files) if files else None
    except (OSError, IndexError, ValueError):
        return None


def max_rss_bytes() -> int:
    """Largest resident set so far (getrusage tells it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
