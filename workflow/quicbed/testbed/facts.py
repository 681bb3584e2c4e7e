"""What identifies the machine a testbed runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from . import agent

# Settings of the whole machine that change what transport protocols can do.
_MACHINE_SETTINGS = (
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.default_qdisc",
    "net.ipv4.tcp_mem",
    "net.ipv4.udp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
)


def read_optional(path: str) -> str | None:
    """A file's content without surrounding white space, or ``None`` if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def sysctl_path(name: str) -> str:
    """``net.ipv4.tcp_rmem`` to ``/proc/sys/net/ipv4/tcp_rmem``."""
    return "/proc/sys/" + name.replace(".", "/")


def host_id() -> str:
    """A name for the machine that does not tell which it is."""
    return agent.host_id(read_optional)


def _cpu() -> dict[str, Any]:
    return {**agent.processor(Path("/proc/cpuinfo").read_text()), "cpus": len(os.sched_getaffinity(0))}


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> dict[str, Any]:
    """Kernel, processor, clock and settings of the whole machine."""
    return {
        "host_id": host_id(),
        **_cpu(),
        "kernel": platform.release(),
        "kernel_version": platform.version(),
        "architecture": platform.machine(),
        "memory_bytes": _memory_bytes(),
        "clock_source": read_optional("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "cpu_governor": read_optional("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "machine_settings": {name: read_optional(sysctl_path(name)) for name in _MACHINE_SETTINGS},
    }
