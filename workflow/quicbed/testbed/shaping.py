"""What the settings of a link are in the words of tc(8) and sysctl(7), and whether what tc shows is that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .base import LinkSettings, TestbedError

_BURST_S = 0.004
_SUPER_FRAME_BYTES = 2**17  # a GSO frame of 64 kB and the headers of its segments, with room
# tc keeps the burst as a time in clock ticks, so it comes back slightly rounded.
_BURST_TOLERANCE = 0.01


def burst_bytes(link: LinkSettings) -> int:
    """Size of the token bucket in bytes: what the rate sends in 4 ms.

    A timer that is late by less than that costs no throughput: with 4 ms a bulk transfer gets its
    rate to 0.1 %, with 1 ms to 1 %. There is room for one frame as large as they come in this mode.
    """
    assert link.rate_mbit is not None  # noqa: S101 (callers check)
    frame = _SUPER_FRAME_BYTES if link.mode == "throughput" else 4 * (link.mtu + 14)
    return max(frame, round(link.rate_mbit * 1e6 / 8 * _BURST_S))


def rate_bytes(link: LinkSettings) -> int:
    """The rate in bytes/s, as tc counts it."""
    assert link.rate_mbit is not None  # noqa: S101 (callers check)
    return round(link.rate_mbit * 1e6 / 8)


def token_bucket(link: LinkSettings) -> list[str]:
    """The queueing discipline that limits the rate, tc-tbf(8)."""
    latency = f"{link.queue_ms * 1000:.0f}us"
    return ["tbf", "rate", f"{rate_bytes(link) * 8}bit", "burst", str(burst_bytes(link)), "latency", latency]


def verify_token_bucket(where: str, interface: str, link: LinkSettings, shown: Mapping[str, Any]) -> None:
    """:class:`TestbedError` unless what tc shows of a queueing discipline is the one that was set."""
    options = shown.get("options", {})
    rate, burst = rate_bytes(link), burst_bytes(link)
    if (
        shown.get("kind") != "tbf"
        or options.get("rate") != rate
        or abs(options.get("burst", 0) - burst) > _BURST_TOLERANCE * burst
    ):
        raise TestbedError(
            f"{where}: {interface} has {shown.get('kind')} {options} after tbf with {rate} B/s and a burst of "
            f"{burst} B was set"
        )


def root_qdisc(shown: str) -> dict[str, Any]:
    """The root queueing discipline in what ``tc -j qdisc show dev`` prints; empty if there is none."""
    rows: list[dict[str, Any]] = json.loads(shown or "[]")
    return next((row for row in rows if row.get("root")), {})


def tcp_settings(link: LinkSettings) -> dict[str, str]:
    """Settings of the kernel (sysctl) for TCP at both ends of a link, but for its congestion control."""
    return {
        # minimum and initial size are the kernel's defaults
        "net.ipv4.tcp_rmem": f"4096 131072 {link.tcp_buffer_bytes}",
        "net.ipv4.tcp_wmem": f"4096 16384 {link.tcp_buffer_bytes}",
        # a connection must not start from what an earlier one learned about the path
        "net.ipv4.tcp_no_metrics_save": "1",
    }
