"""Processors that programs can be kept to: one of each core, as the threads of a core share what they compute with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from quicbed.config.model import cpus_of

CPUS = Path("/sys/devices/system/cpu")


def cores(allowed: Collection[int], directory: Path = CPUS) -> list[int]:
    """The first *allowed* processor of every core, in ascending order; those that say nothing are a core each."""
    found: list[int] = []
    taken: set[int] = set()
    for cpu in sorted(allowed):
        if cpu not in taken:
            found.append(cpu)
            taken |= _siblings(cpu, directory)
    return found


def _siblings(cpu: int, directory: Path) -> set[int]:
    """Processors of the same core (Documentation/ABI/stable/sysfs-devices-system-cpu); empty where it is not told."""
    try:
        text = (directory / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
        return set(cpus_of(text.strip()))
    except (OSError, ValueError):
        return set()
