"""What a finished run amounts to: its metrics, and whether both ends did and negotiated what its cell says."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quicbed.config.model import Project, Side
from quicbed.contract import events
from quicbed.measure import playback
from quicbed.measure.attempt import Attempt
from quicbed.measure.event_logs import Logs, failures
from quicbed.plan.cells import Cell
from quicbed.plan.factors import alpn_of, congestion_control_of, io_of, pacing_of
from quicbed.plan.spec import RunSpec

SUITES = {
    "aes-128-gcm": "TLS_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_CHACHA20_POLY1305_SHA256",
}
TLS12_SUITES = {
    "aes-128-gcm": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
}
# What a program may be unable to tell, while the other end and captures can.
_OPTIONAL = ("signature", "alpn", "hello_retry_request", "retry", "resumed", "early_data")
# What a program has to tell of a second visit; the browser does not, but the server and the capture do.
_VISITS = ("resumed", "early_data")
# What an external endpoint need not report.
_EXTERNAL_OPTIONAL = (*_OPTIONAL, "cipher", "group", "tls_version", "aead", "header_protection")
_NEGOTIATED = (
    "cipher",
    "group",
    "signature",
    "alpn",
    "tls_version",
    "aead",
    "header_protection",
    "hello_retry_request",
    "retry",
    "resumed",
    "early_data",
)
RTT_SHORTER = 0.98
"""A round trip takes no less than this part of the link's round-trip time."""
CPU_MARGIN, CPU_MARGIN_S = 1.02, 0.02
"""By how much two of the kernel's clocks may differ that count processor time, as a part and in seconds."""
LATE_MS = 1.0
"""A connection with which the client begins later than so many ms after it was to begin is late."""
_NOT_OF_A_LOAD = dict.fromkeys(
    ("connection_ms", "ttfb_ms", "first_byte_ms", "throughput_mbps"),
    "the connection was open already, so that there is no ClientHello to count from",
) | dict.fromkeys(
    (
        "server_cpu_s",
        "server_cpu_s_per_gib",
        *(f"{role}_packets_{what}" for role in ("client", "server") for what in ("sent", "received", "lost")),
    ),
    "it is counted over the whole connection, with the load before",
)
"""Metrics that a load over a connection that is kept does not have, with the reason."""
_OVERLAPPING = "the client made {} connections, which a server's processor times by connection may each count"


def judge(attempt: Attempt, project: Project, spec: RunSpec, logs: Logs) -> None:
    """Keep what both programs of a run measured, and fail where it is not what was asked for."""
    if spec.held:
        judged = _held(attempt, spec, logs)
    elif spec.rate_per_s is not None:
        judged = _open_loop(attempt, spec, logs)
    else:
        judged = _handshakes(attempt, spec, logs) if spec.handshakes else _download(attempt, spec, logs)
    if judged:
        _both_ends(attempt, project, spec, logs)
        for connection in logs.client.connections:
            if (problem := _too_quick(connection, spec.cell.variant.rtt_ms or 0)) is not None:
                attempt.fail(problem)


def _too_quick(connection: events.ClientConnection, rtt_ms: float) -> str | None:
    """Which time of a connection is shorter than the way to the server and back; None if none is."""
    begin = connection.t_request_sent if connection.kept else connection.t_client_hello
    ends = {
        "the end of its handshake": connection.t_handshake_complete,
        "its first byte": connection.t_first_byte,
        "its last byte": connection.t_last_byte,
    }
    for what, end in ends.items():
        # as exact as the delay of the link is (`quicbed.testbed.shaping.rtt_problem`)
        if begin is not None and end is not None and (end - begin) / 1e6 < RTT_SHORTER * rtt_ms:
            return (
                f"the client reports {what} {(end - begin) / 1e6:.3f} ms after its first packet, on a link with a "
                f"round-trip time of {rtt_ms:g} ms"
            )
    return None


def held_against_kernel(attempt: Attempt, role: Side, connections: Sequence[events.Connection], spent_s: float) -> None:
    """Fail where a program tells more processor time of a connection than the kernel counted for it in all."""
    told = max((value for value in map(_cpu_s, connections) if value is not None), default=0.0)
    if told > CPU_MARGIN * spent_s + CPU_MARGIN_S:
        attempt.fail(
            f"the {role} reports {told:.3f} s of processor time for a connection, and the kernel counted "
            f"{spent_s:.3f} s for the whole program"
        )


# ---- downloads -------------------------------------------------------------------------------------------------------


def _download(attempt: Attempt, spec: RunSpec, logs: Logs) -> bool:
    """Metrics of a finished download; False where it has failed."""
    # only an external client may spread a download over several connections
    count = spec.connections
    served = logs.server.connections if spec.external("client") else logs.server.connections[-count:]
    if (problem := _incomplete(spec, logs, served)) is not None:
        attempt.fail(problem)
        return False
    connections = logs.client.connections[spec.visits_before :]
    if spec.visits_before:
        attempt.evidence["visits_before"] = [_told(one) for one in logs.client.connections[: spec.visits_before]]
    if spec.kept:
        return _kept(attempt, spec, connections[0])
    begin, last = connections[0].t_client_hello, connections[-1].t_last_byte
    if spec.video is not None and begin is not None and last is not None:
        attempt.metrics |= {"bytes": connections[0].bytes_received, "wall_s": (last - begin) / 1e9}
        _metric(attempt, "ttfb_ms", map(events.ttfb_ms, connections))
        return playback.judge(attempt, spec, connections[0])
    throughput = [events.throughput_mbps(one) for one in connections]
    if begin is None or last is None or None in throughput:
        attempt.fail("the client reported a transfer without its times")
        return False
    attempt.metrics |= {"bytes": spec.bytes * count, "wall_s": (last - begin) / 1e9}
    # of downloads of one size, that is what all have by the sum of their times
    _metric(attempt, "throughput_mbps", throughput, statistics.harmonic_mean)
    _metric(attempt, "goodput_mbps", map(events.goodput_mbps, connections), statistics.harmonic_mean)
    _metric(attempt, "ttfb_ms", map(events.ttfb_ms, connections))
    _metric(attempt, "first_byte_ms", map(events.first_byte_ms, connections))
    if "goodput_mbps" not in attempt.metrics:
        attempt.fail("the client reported a transfer without the time of its request")
        return False
    if spec.page and not _page(attempt, connections[0], browser=spec.browser):
        return False
    if len(served) > count:
        attempt.evidence["unknown"] = {"server_cpu_s": _OVERLAPPING.format(len(served))}
    _costs(attempt, "client", connections, spec)
    _costs(attempt, "server", served, spec)
    _metric(attempt, "client_ack_packets", map(_acknowledging, connections), sum)
    return True


def _kept(attempt: Attempt, spec: RunSpec, connection: events.ClientConnection) -> bool:
    """Metrics of a load over a connection that was open already; those of its handshake and its whole life are not."""
    begin, last = connection.t_connect, connection.t_last_byte
    goodput = events.goodput_mbps(connection)
    if begin is None or last is None or goodput is None:
        attempt.fail("the client reported a load without its times")
        return False
    attempt.metrics |= {"bytes": spec.bytes, "wall_s": (last - begin) / 1e9, "goodput_mbps": goodput}
    if spec.page and not _page(attempt, connection, browser=False):
        return False
    attempt.evidence["unknown"] = dict(_NOT_OF_A_LOAD)
    _costs(attempt, "client", [connection], spec)
    return True


def _told(connection: events.ClientConnection) -> dict[str, Any]:
    """The times of a first visit that is not measured, in ms from the begin of its connection."""
    begin = connection.t_connect if connection.t_connect is not None else connection.t_client_hello
    ends = {"connection_ms": connection.t_handshake_complete, "page_load_ms": connection.t_last_byte}
    return {name: None if begin is None or end is None else (end - begin) / 1e6 for name, end in ends.items()}


def _acknowledging(connection: events.ClientConnection) -> int | None:
    """Packets of the client of a download after its handshake: but for one with the request, they acknowledge."""
    if connection.packets_sent is None or connection.handshake_packets_sent is None:
        return None
    return connection.packets_sent - connection.handshake_packets_sent


def _page(attempt: Attempt, connection: events.ClientConnection, *, browser: bool) -> bool:
    """Keep the times of a page from the begin of its connection, or of the load where that is kept.

    False where the client does not tell them.
    """
    times = {
        "connection_ms": connection.t_handshake_complete,
        "page_first_byte_ms": connection.t_first_byte,
        "page_load_ms": connection.t_last_byte,
    }
    begin = connection.t_connect
    if connection.kept:
        del times["connection_ms"]
    for metric, end in times.items():
        # a browser tells no end of a handshake that its request does not wait for
        if metric == "connection_ms" and end is None and browser and connection.early_data is not False:
            continue
        if begin is None or end is None:
            attempt.fail("the client reported a page without the times of its connection")
            return False
        attempt.metrics[metric] = (end - begin) / 1e6
    return not browser or _drawn(attempt, connection)


def _drawn(attempt: Attempt, connection: events.ClientConnection) -> bool:
    """Keep the times of a page in a browser from the begin of its navigation; False where they are not told."""
    times = {"load_event_ms": connection.t_load, "largest_contentful_paint_ms": connection.t_largest_paint}
    begin = connection.t_navigation
    for metric, end in times.items():
        if begin is None or end is None or end <= begin:
            attempt.fail("the browser reported a page without its load event or its largest contentful paint")
            return False
        attempt.metrics[metric] = (end - begin) / 1e6
    return True


def _incomplete(spec: RunSpec, logs: Logs, served: Sequence[events.ServerConnection]) -> str | None:
    """Why a download is not what was asked for; None if it is."""
    client = logs.client
    failed = [one for one in client.connections if not one.ok]
    if failed or not client.connections:
        error = failed[0].error if failed else "no connection was reported"
        return f"the client's connection failed: {error}"
    asked = spec.connections + spec.visits_before
    if len(client.connections) != asked:
        return f"the client reported {len(client.connections)} connections, {asked} were asked for"
    for connection in client.connections:
        # of a video it depends on the bit rates that the player chose
        size = connection.bytes_requested if spec.video is not None else spec.bytes
        if connection.bytes_received != size or not connection.content_ok:
            return (
                f"wrong content: {connection.bytes_received} of {size} bytes received, content_ok is "
                f"{connection.content_ok}"
            )
    if spec.kept and (problem := _several(spec, logs)) is not None:
        return problem
    if len(served) < spec.connections and not spec.external("server"):
        some = f"{len(served)} of {spec.connections} connections"
        return f"the server reported {some if served else 'no connection'}"
    sent = [one.bytes_sent for one in served if one.bytes_sent is not None]
    if spec.external("client") and served and len(sent) == len(served) and sum(sent) < spec.bytes:
        return f"the server sent {sum(sent)} of {spec.bytes} bytes, on {len(served)} connections"
    return None


def _several(spec: RunSpec, logs: Logs) -> str | None:
    """Why two loads did not go over one connection that stayed open; None if they did, as both ends tell."""
    told = [connection.kept for connection in logs.client.connections]
    if told != [index >= spec.visits_before for index in range(len(told))]:
        return f"the client reports for its loads that the connection was kept: {told}, only the first was to open one"
    loads, served = len(told), logs.server.connections
    if len(served) != 1:
        return f"the server reported {len(served)} connections, {loads} loads were to go over one"
    if served[0].error is not None:
        return f"the server's connection failed: {served[0].error}"
    if served[0].bytes_sent != loads * spec.bytes:
        return (
            f"the server sent {served[0].bytes_sent} bytes over the connection, {loads} loads have {loads * spec.bytes}"
        )
    return None


def _costs(attempt: Attempt, role: Side, connections: Sequence[events.Connection], spec: RunSpec) -> None:
    """Processor time and packets of one end of the downloads of a run."""
    if len(connections) == spec.connections and _metric(attempt, f"{role}_cpu_s", map(_cpu_s, connections), sum):
        gib = attempt.metrics["bytes"] / 2**30
        attempt.metrics[f"{role}_cpu_s_per_gib"] = attempt.metrics[f"{role}_cpu_s"] / gib
    for name in ("packets_sent", "packets_received", "packets_lost"):
        _metric(attempt, f"{role}_{name}", [getattr(one, name) for one in connections], sum)


# ---- handshakes ------------------------------------------------------------------------------------------------------


def _handshakes(attempt: Attempt, spec: RunSpec, logs: Logs) -> bool:
    """As `_download` for a run of many connections: medians over them, evidence of each."""
    connections = logs.client.connections
    if (problem := _wrong_connections(spec, logs)) is not None:
        attempt.fail(problem)
        return False
    begin, last = connections[0].t_client_hello, connections[-1].t_close
    if begin is None or last is None:
        attempt.fail("the client reported connections without their beginning or end")
        return False
    if last <= begin:
        attempt.fail("the client reported connections that take no time")
        return False
    count = spec.connections
    attempt.metrics |= {"bytes": spec.bytes * count, "connections": count, "wall_s": (last - begin) / 1e9}
    if not spec.silent("client"):
        attempt.metrics["handshakes_per_s"] = count / attempt.metrics["wall_s"]
        ttfb_metrics(attempt, [events.ttfb_ms(connection) for connection in connections])
        if not attempt.ok:
            return False
    for metric, function in (("confirmed_ms", events.confirmed_ms), ("first_byte_ms", events.first_byte_ms)):
        _metric(attempt, metric, map(function, connections))
    for role, log in (("client", logs.client), ("server", logs.server)):
        cpu = (_cpu_s(connection) for connection in log.connections)
        _metric(attempt, f"{role}_cpu_ms", (None if value is None else value * 1e3 for value in cpu))
        for name in ("handshake_packets_sent", "handshake_bytes_sent", "packets_lost"):
            values = (getattr(connection, name) for connection in log.connections)
            _metric(attempt, f"{role}_{name}", values)
    return True


def _open_loop(attempt: Attempt, spec: RunSpec, logs: Logs) -> bool:
    """As `_handshakes` for connections that begin at a rate: times count from when they were to begin.

    A run whose client has fallen behind (`events.MOST_LATE`) has failed.
    """
    connections, count = logs.client.connections, spec.connections
    if (problem := _wrong_connections(spec, logs)) is not None:
        attempt.fail(problem)
        return False
    late = [value for value in map(events.late_ms, connections) if value is not None]
    ends = [one.t_close for one in connections if one.t_close is not None]
    intended = [one.t_intended for one in connections if one.t_intended is not None]
    complete = [one.t_handshake_complete for one in connections if one.t_handshake_complete is not None]
    if min(len(late), len(ends), len(complete)) < count:
        attempt.fail("the client reported connections without when they were to begin, began, or ended")
        return False
    times = [events.ttfb_from_intended_ms(connection) for connection in connections]
    ttfb_metrics(attempt, times)
    slowest, latest = percentile_99([time for time in times if time is not None]), percentile_99(late)
    attempt.metrics |= {
        "bytes": spec.bytes * count,
        "connections": count,
        "wall_s": (max(ends) - min(intended)) / 1e9,
        # of a server that does not keep up it is less than the rate
        "handshakes_per_s": count / ((max(complete) - min(intended)) / 1e9),
        "ttfb_ms_p99": slowest,
        "late_ms_p99": latest,
        "late_share": sum(value > LATE_MS for value in late) / count,
        "most_in_flight": _most_in_flight(connections),
    }
    for role, share in attempt.host.get("cpu", {}).items():
        attempt.metrics[f"{role}_cpu_ms"] = 1e3 * share["seconds"] / count
    if latest > events.MOST_LATE * slowest:
        attempt.fail(
            f"the client fell behind: it began 1 % of connections more than {latest:.2f} ms late, which is more than "
            f"{events.MOST_LATE:g} of the TTFB of the slowest 1 %, {slowest:.2f} ms"
        )
    return attempt.ok


def _held(attempt: Attempt, spec: RunSpec, logs: Logs) -> bool:
    """What connections that were held open took of the server's memory; they have failed where the server ended one."""
    if (problem := _wrong_connections(spec, logs)) is not None:
        attempt.fail(problem)
        return False
    count = spec.connections
    before, after = (attempt.metrics.get(f"memory_{name}_bytes") for name in ("none", "held"))
    if before is None or after is None:
        attempt.fail("the client did not say that it held its connections open")
        return False
    if after <= before:
        attempt.fail(f"the server took {after:.0f} bytes with {count} open connections and {before:.0f} with none")
        return False
    answered = [one.t_last_byte for one in logs.client.connections if one.t_last_byte is not None]
    closed = [one.t_close for one in logs.client.connections if one.t_close is not None]
    if len(answered) < count or len(closed) < count or min(closed) <= max(answered):
        attempt.fail("the client closed a connection before all had their answers, so that they were not open together")
        return False
    attempt.metrics |= {
        "bytes": spec.bytes * count,
        "connections": count,
        "memory_per_connection_bytes": (after - before) / count,
    }
    ttfb_metrics(attempt, [events.ttfb_from_intended_ms(connection) for connection in logs.client.connections])
    return attempt.ok


def percentile_99(values: Sequence[float]) -> float:
    """The 99th percentile, interpolated; of a single value that value."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def _most_in_flight(connections: Sequence[events.ClientConnection]) -> int:
    """Most connections that had begun and not ended at a time."""
    changes = [(one.t_begun, 1) for one in connections] + [(one.t_close, -1) for one in connections]
    return max(itertools.accumulate(change for _, change in sorted((time or 0, change) for time, change in changes)))


def _wrong_connections(spec: RunSpec, logs: Logs) -> str | None:
    """Why a series of handshakes is not what was asked for; None if it is."""
    connections, count = logs.client.connections, spec.connections
    errors = [connection.error for connection in connections if connection.error]
    if errors:
        return failures(len(errors), len(connections), errors[0])
    if len(connections) != count:
        return f"the client reported {len(connections)} connections, {count} were asked for"
    if len(logs.server.connections) != count and not spec.external("server"):
        return f"the server reported {len(logs.server.connections)} connections, the client {count}"
    wrong = [c for c in connections if c.bytes_received != spec.bytes or not c.content_ok]
    if wrong:
        return f"wrong content on connection {wrong[0].index}: {wrong[0].bytes_received} bytes received"
    return None


def ttfb_metrics(attempt: Attempt, times: Sequence[float | None]) -> None:
    """Keep what the times to first byte (ms) of a run's connections amount to; fail where one is missing."""
    measured = sorted(time for time in times if time is not None)
    if len(measured) < len(times):
        attempt.fail(f"{len(times) - len(measured)} of {len(times)} handshakes are without their times")
        return
    q1, median, q3 = statistics.quantiles(measured, n=4, method="inclusive") if len(measured) > 1 else measured * 3
    attempt.metrics |= {
        "ttfb_ms": median,
        "ttfb_ms_mean": statistics.fmean(measured),
        "ttfb_ms_p25": q1,
        "ttfb_ms_p75": q3,
    }


def _metric(
    attempt: Attempt,
    name: str,
    values: Iterable[float | None],
    together: Callable[[Sequence[float]], float] = statistics.median,
) -> bool:
    """Keep what the values that connections report amount to, unless one cannot tell; whether all could."""
    known = list(values)
    present = [value for value in known if value is not None]
    told = bool(present) and len(present) == len(known)
    if told:
        attempt.metrics[name] = together(present)
    return told


def _cpu_s(connection: events.Connection) -> float | None:
    """CPU time of a connection in seconds, None where the endpoint cannot tell."""
    if connection.cpu_user_ns is None or connection.cpu_system_ns is None:
        return None
    return (connection.cpu_user_ns + connection.cpu_system_ns) / 1e9


# ---- both ends -------------------------------------------------------------------------------------------------------


def _both_ends(attempt: Attempt, project: Project, spec: RunSpec, logs: Logs) -> None:
    """Keep what both ends say of themselves, and fail where a connection is not as the cell says."""
    ends: dict[Side, events.EndpointLog[Any]] = {"client": logs.client, "server": logs.server}
    attempt.host["run_delay_s"] = {
        role: None if log.end.run_delay_ns is None else log.end.run_delay_ns / 1e9 for role, log in ends.items()
    }
    attempt.host["max_rss_bytes"] = {role: log.end.max_rss_bytes for role, log in ends.items()}
    attempt.host["options"] = {role: log.start.options for role, log in ends.items()}
    first, later = expectations(project, spec.cell), second_visit(project, spec.cell)
    for role, log in ends.items():
        # where an external endpoint reports nothing, the other end and captures tell
        optional: tuple[str, ...] = _EXTERNAL_OPTIONAL if spec.external(role) else _OPTIONAL
        if spec.visits_before and not (spec.browser and role == "client"):
            optional = tuple(name for name in optional if name not in _VISITS)
        if spec.cell.variant.alpn is not None and not spec.external(role):
            optional = tuple(name for name in optional if name != "alpn")
        expected = [first if index < spec.visits_before else later for index in range(len(log.connections))]
        _negotiated(attempt, role, log.connections, expected, optional)
        _processor(attempt, spec.cell, role, log.start.options)
        for problem in _sending(attempt, spec, role, log.start.options):
            attempt.contradict(problem)


def _negotiated(
    attempt: Attempt,
    role: Side,
    connections: Sequence[events.Connection],
    expected: Sequence[Mapping[str, Any]],
    optional: Sequence[str],
) -> None:
    """Keep what one end negotiated: of its last connection, or of the first that is not as expected."""
    seen = [{name: getattr(connection, name) for name in _NEGOTIATED} for connection in connections]
    attempt.evidence[role] = seen[-1] if seen else dict.fromkeys(_NEGOTIATED)
    for connection, values, wanted in zip(connections, seen, expected, strict=True):
        if problems := contradictions(wanted, role, values, optional):
            where = f" (connection {connection.index} of {len(seen)})" if len(seen) > 1 else ""
            for problem in problems:
                attempt.contradict(problem + where)
            attempt.evidence[role] = values
            return


def expectations(project: Project, cell: Cell) -> dict[str, Any]:
    """What both ends of a cell's connections must have negotiated; None where the transport has no such thing."""
    header_protection = cell.variant.header_protection
    client = project.libraries[cell.client.library]
    # where there is a choice
    chosen = cell.variant.alpn is not None or client.supports.http3 is True
    protocol = {"alpn": alpn_of(client, cell.variant)} if chosen else {}
    if cell.transport == "udp":
        # there is no handshake, and without a cipher nothing to tell
        cipher = SUITES[cell.variant.cipher] if cell.variant.aead == "standard" else None
        return dict.fromkeys(_NEGOTIATED) | {"cipher": cipher, "aead": cell.variant.aead}
    return protocol | {
        "cipher": (TLS12_SUITES if cell.variant.tls_version == "TLSv1.2" else SUITES)[cell.variant.cipher],
        "group": project.algorithms.group(cell.variant.group).tls_name,
        "signature": project.algorithms.signature(cell.variant.signature).tls_name,
        "tls_version": cell.variant.tls_version or "TLSv1.3",
        "aead": cell.variant.aead,
        "header_protection": None if header_protection is None else ("on" if header_protection else "off"),
        "hello_retry_request": False,
        "retry": cell.variant.retry,
        "resumed": False,
        "early_data": False,
    }


def second_visit(project: Project, cell: Cell) -> dict[str, Any]:
    """As `expectations`, of the connections that are measured: where they are second visits, without a signature.

    With TLS 1.2 they have no key exchange either (RFC 5246, 7.3). A connection that is kept is that of the first visit.
    """
    expected, variant = expectations(project, cell), cell.variant
    if variant.visit in (None, "kept"):
        return expected
    without = ("signature", "group") if variant.tls_version == "TLSv1.2" else ("signature",)
    visit = {"resumed": True, "early_data": variant.visit == "early-data"}
    return expected | dict.fromkeys(without) | visit


def contradictions(
    expected: Mapping[str, Any], role: str, seen: Mapping[str, Any], optional: Sequence[str] = _OPTIONAL
) -> list[str]:
    """Where the values that one end read back from its TLS library are not those expected; *optional* may be null."""
    problems = []
    for name, wanted in expected.items():
        value = seen[name]
        if value is None and name in optional:
            continue
        same = (
            value.lower() == wanted.lower() if isinstance(value, str) and isinstance(wanted, str) else value == wanted
        )
        if not same and not (name == "retry" and wanted is None and not value):
            problems.append(f"evidence: the {role} reports {name} {value}, the cell says {wanted}")
    return problems


def _sending(attempt: Attempt, spec: RunSpec, role: Side, options: Mapping[str, Any]) -> list[str]:
    """Where a program does not pace, or send batches, as the cell says.

    An external endpoint may be unable to tell what is in force, which is noted as unproven; what is varied of its
    buffers and offloads is held against what it reports.
    """
    variant, library = spec.cell.variant, spec.libraries[role]
    controlled = congestion_control_of(library, spec.workload.congestion_control)
    wanted: dict[str, Any] = {}
    if (pacing := pacing_of(library, variant.pacing, controlled)) is not None:
        wanted["pacing"] = pacing
    if role == "server" and variant.qdisc == "etf":
        wanted["etf"] = True
    if variant.gso is not None:
        wanted |= {"gso": variant.gso != "off", "gso_paced": variant.gso == "paced"}
    if variant.gro is not None:
        wanted["gro"] = variant.gro
    # bare UDP has no other way
    if spec.quic and (io := io_of(variant, role)) is not None:
        wanted |= {"gso": io == "gso", "gro": io == "gso"} | ({} if io in ("single", "gso") else {"io": io})
    external = library.external is not None
    if external and spec.quic:
        if variant.offloads is not None:
            supports = library.supports
            wanted |= {name: variant.offloads != "off" and getattr(supports, name) is True for name in ("gso", "gro")}
        if variant.congestion_control is not None:
            wanted["congestion_control"] = controlled
        if variant.receive_buffer is not None:
            wanted["receive_buffer"] = variant.receive_buffer
    problems, untold = [], []
    for name, value in wanted.items():
        told = options.get(name, False if name == "gso_paced" else None)
        if told is None and external:
            untold.append(name)
        elif told != value:
            problems.append(f"evidence: the {role} reports {name} {told}, the cell says {value}")
    if untold:
        attempt.unproven(f"the {role} does not report its {', '.join(untold)}")
    return problems


def _processor(attempt: Attempt, cell: Cell, role: Side, options: Mapping[str, Any]) -> None:
    """Hold what a program tells of the processor's AES instructions against the cell.

    Without them a run must be proven; a program that uses them by default and cannot tell is noted as unproven.
    """
    wanted = cell.variant.aes_hardware
    if wanted is None:
        return
    told = options.get("aes_hardware")
    attempt.evidence[role]["aes_hardware"] = told
    if told is wanted:
        return
    if told is None and wanted:
        attempt.unproven(f"the {role} cannot report whether it uses AES instructions")
        return
    attempt.contradict(
        f"evidence: the {role} reports aes_hardware {json.dumps(told)}, the cell says {json.dumps(wanted)}"
    )
