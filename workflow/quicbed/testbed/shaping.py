"""What the settings of a link are in the words of tc(8) and sysctl(7), and whether what tc shows is that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .agent import AgentError, json_rows
from .base import LinkSettings, TestbedError

ETF_PRIORITY = 1
"""Of the frames that go through ETF (SO_PRIORITY): those of endpoints with `--etf on`, and of the bare sender."""
ETF_DELTA_NS = 200_000
"""How long before its time ETF takes a frame, and how late its timer may be."""
_BURST_S = 0.004
_SUPER_FRAME_BYTES = 2**17  # a GSO frame of 64 kB and the headers of its segments, with room
# tc keeps the burst as a time in clock ticks, so it comes back slightly rounded.
_BURST_TOLERANCE = 0.01
# More frames than 100 ms at 1 Gbit/s hold, so that netem itself drops nothing.
_DELAYED_FRAMES = 20_000
_DELAY_TOLERANCE_MS = 0.01
# A round-trip time is right if the fastest of some echoes is not shorter and not much longer.
_RTT_SHORTER = 0.98
_RTT_LONGER = 1.1
_RTT_LONGER_MS = 2.0


def told_rows(where: str, command: str, shown: str, key: str) -> list[dict[str, Any]]:
    """`json_rows` of what a command has printed on a host; :class:`TestbedError` where it is something else."""
    try:
        return json_rows(command, shown, key)
    except AgentError as error:
        raise TestbedError(f"{where}: {error}") from None


def told_number(row: Mapping[str, Any], name: str) -> float | None:
    """A number that a row tells; None where it tells something else."""
    value = row.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _qdiscs(where: str, shown: str) -> list[dict[str, Any]]:
    return told_rows(where, "tc -j qdisc show", shown, "kind")


def _options(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    options = shown.get("options")
    return options if isinstance(options, dict) else {}


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
    options = _options(shown)
    rate, burst = rate_bytes(link), burst_bytes(link)
    if (
        shown.get("kind") != "tbf"
        or options.get("rate") != rate
        or abs((told_number(options, "burst") or 0) - burst) > _BURST_TOLERANCE * burst
    ):
        raise TestbedError(
            f"{where}: {interface} has {shown.get('kind')} {dict(options)} after tbf with {rate} B/s and a burst of "
            f"{burst} B was set"
        )


def constant_delay(milliseconds: float) -> list[str]:
    """The queueing discipline that delays every frame by this time, tc-netem(8)."""
    return ["netem", "delay", f"{milliseconds * 1000:.0f}us", "limit", str(_DELAYED_FRAMES)]


def verify_delay(where: str, interface: str, milliseconds: float, shown: Mapping[str, Any]) -> None:
    """:class:`TestbedError` unless what tc shows of a queueing discipline delays by this time."""
    delay = _options(shown).get("delay")
    found = told_number(delay, "delay") if isinstance(delay, dict) else None
    if shown.get("kind") != "netem" or found is None or abs(found * 1000 - milliseconds) > _DELAY_TOLERANCE_MS:
        raise TestbedError(f"{where}: {interface} has {dict(shown)} after netem with {milliseconds:g} ms was set")


def egress(link: LinkSettings, *, limited: bool) -> list[str]:
    """The root queueing discipline of an end of a link, as words of :mod:`.agent`.

    It delays what the end sends by half of the round-trip time, and then limits its rate if it is the *limited* end.
    """
    delay = constant_delay(link.rtt_ms / 2) if link.rtt_ms else []
    bucket = token_bucket(link) if limited and link.rate_mbit is not None else []
    if delay and bucket:
        return [*delay, "child", *bucket]
    return delay or bucket or ["default"]


def verify_egress(where: str, interface: str, link: LinkSettings, shown: str, *, limited: bool) -> None:
    """:class:`TestbedError` unless what ``tc -j qdisc show dev`` prints is what :func:`egress` asks for."""
    rows = _qdiscs(where, shown)
    inner = next((row for row in rows if not row.get("root") and row.get("kind") == "tbf"), {})
    if link.rtt_ms:
        verify_delay(where, interface, link.rtt_ms / 2, root_qdisc(shown, where))
    if limited and link.rate_mbit is not None:
        verify_token_bucket(where, interface, link, inner if link.rtt_ms else root_qdisc(shown, where))


def at_server(name: str | None) -> list[str]:
    """A queueing discipline of the server's interface (`LinkSettings.qdisc`), as words of :mod:`.agent`.

    ETF drops every frame that is told no time, so only frames of its priority go through it, tc-prio(8) and tc-etf(8).
    """
    if name == "etf":
        bands = ["0" if priority == ETF_PRIORITY else "1" for priority in range(16)]
        etf = ["etf", "clockid", "CLOCK_TAI", "delta", str(ETF_DELTA_NS)]
        return ["prio", "bands", "2", "priomap", *bands, "child", *etf]
    return [name or "default"]


def verify_at_server(where: str, interface: str, name: str | None, shown: str) -> None:
    """:class:`TestbedError` unless what ``tc -j qdisc show dev`` prints is what :func:`at_server` asks for."""
    words = at_server(name)
    wanted = [words[0], *(words[words.index("child") + 1 :][:1] if "child" in words else [])]
    rows = _qdiscs(where, shown)
    found = [str(row.get("kind")) for row in rows if row.get("root") or row.get("kind") == "etf"]
    if name is not None and found != wanted:
        raise TestbedError(f"{where}: {interface} has {', '.join(found) or 'nothing'} after {name} was set")


def dropped_at_server(shown: str, where: str = "server") -> int:
    """Frames that the queueing disciplines of an interface have dropped, of what ``tc -s -j qdisc show dev`` prints."""
    rows = _qdiscs(where, shown)
    # an outer discipline counts what it drops itself
    return sum(dropped(row, where) for row in rows if row.get("root") or row.get("kind") == "etf")


def dropped(shown: Mapping[str, Any], where: str) -> int:
    """Frames that a queueing discipline of ``tc -s -j`` has dropped."""
    count = told_number(shown, "drops")
    if count is None:
        raise TestbedError(
            f"{where}: tc -s -j qdisc show: reports no `drops` of {shown.get('kind')}; install a newer iproute2"
        )
    return int(count)


def qdisc_problem(name: str | None, lacks: str, *, at_client: bool = True) -> str | None:
    """Why a server cannot be given this queueing discipline (`LinkSettings.qdisc`), or None if it can.

    *lacks* is why its kernel does not have it, *at_client* whether nothing else queues what it sends.
    """
    if name is None:
        return None
    if name == "etf-launchtime":
        return (
            "no queueing discipline etf-launchtime: it takes a network card that keeps to times, and queues of it set "
            "apart for them (tc-etf(8), `offload`), which is not set up"
        )
    if lacks:
        return f"no queueing discipline {name}: {lacks}"
    return (
        None
        if at_client
        else f"no queueing discipline {name}: the link is limited where it would be; set link.bottleneck"
    )


def rtt_problem(wanted_ms: float, times_ms: Sequence[float]) -> str | None:
    """Why echoes over a link with this round-trip time took the wrong time, judged by the fastest; None if not."""
    fastest = min(times_ms)
    if _RTT_SHORTER * wanted_ms <= fastest <= max(_RTT_LONGER * wanted_ms, wanted_ms + _RTT_LONGER_MS):
        return None
    return f"round-trip time is at least {fastest:.2f} ms after {wanted_ms:g} ms was set"


def root_qdisc(shown: str, where: str = "host") -> dict[str, Any]:
    """The root queueing discipline in what ``tc -j qdisc show dev`` prints; empty if there is none."""
    return next((row for row in _qdiscs(where, shown) if row.get("root")), {})


def tcp_settings(link: LinkSettings) -> dict[str, str]:
    """Settings of the kernel (sysctl) for TCP at both ends of a link, but for its congestion control."""
    return {
        # minimum and initial size are the kernel's defaults
        "net.ipv4.tcp_rmem": f"4096 131072 {link.tcp_buffer_bytes}",
        "net.ipv4.tcp_wmem": f"4096 16384 {link.tcp_buffer_bytes}",
        # a connection must not start from what an earlier one learned about the path
        "net.ipv4.tcp_no_metrics_save": "1",
    }
