"""What a finished run amounts to: its metrics, and whether both ends did and negotiated what its cell says."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quicbed.config.model import Project, Side
from quicbed.contract import events
from quicbed.measure.attempt import Attempt
from quicbed.measure.said import Logs, failures
from quicbed.plan.cells import Cell
from quicbed.plan.spec import RunSpec

SUITES = {
    "aes-128-gcm": "TLS_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_CHACHA20_POLY1305_SHA256",
}
# What a program may be unable to tell, while the other end and captures can.
_OPTIONAL = ("signature", "hello_retry_request", "retry")
# What an external endpoint cannot tell: the contract of its scripts has no place for it.
_EXTERNAL_SILENT = ("cipher", "group", "aead", "header_protection")
_NEGOTIATED = ("cipher", "group", "signature", "aead", "header_protection", "hello_retry_request", "retry")
_OVERLAPPING = "the client made {} connections, which a server's processor times by connection may each count"


def judge(attempt: Attempt, project: Project, spec: RunSpec, logs: Logs) -> None:
    """Keep what both programs of a run measured, and fail where it is not what was asked for."""
    judged = _handshakes(attempt, spec, logs) if spec.handshakes else _download(attempt, spec, logs)
    if judged:
        _both_ends(attempt, project, spec, logs)


# ---- downloads -------------------------------------------------------------------------------------------------------


def _download(attempt: Attempt, spec: RunSpec, logs: Logs) -> bool:
    """Metrics of a finished download; False where it has failed."""
    # only an external client may spread a download over several connections
    served = logs.server.connections if spec.external("client") else logs.server.connections[-1:]
    if (problem := _incomplete(spec, logs, served)) is not None:
        attempt.fail(problem)
        return False
    (connection,) = logs.client.connections
    if connection.t_last_byte is None or connection.t_client_hello is None:
        attempt.fail("the client reported a transfer without its times")
        return False
    attempt.metrics |= {
        "bytes": connection.bytes_received,
        "wall_s": (connection.t_last_byte - connection.t_client_hello) / 1e9,
    }
    for metric, value in (
        ("goodput_mbps", events.goodput_mbps(connection)),
        ("ttfb_ms", events.ttfb_ms(connection)),
        ("first_byte_ms", events.first_byte_ms(connection)),
    ):
        if value is not None:
            attempt.metrics[metric] = value
    if "goodput_mbps" not in attempt.metrics:
        attempt.fail("the client reported a transfer without the time of its request")
        return False
    if len(served) > 1:
        attempt.evidence["unknown"] = {"server_cpu_s": _OVERLAPPING.format(len(served))}
    _costs(attempt, "client", [connection], spec.bytes)
    _costs(attempt, "server", served, spec.bytes)
    if connection.packets_sent is not None and connection.handshake_packets_sent is not None:
        # but for one with the request, what the client of a download sends after its handshake acknowledges
        attempt.metrics["client_ack_packets"] = connection.packets_sent - connection.handshake_packets_sent
    return True


def _incomplete(spec: RunSpec, logs: Logs, served: Sequence[events.ServerConnection]) -> str | None:
    """Why a download is not what was asked for; None if it is."""
    client, server = logs.client, logs.server
    if len(client.connections) != 1 or not client.connections[0].ok:
        error = client.connections[0].error if client.connections else "no connection was reported"
        return f"the client's connection failed: {error}"
    connection = client.connections[0]
    if connection.bytes_received != spec.bytes or not connection.content_ok:
        return (
            f"wrong content: {connection.bytes_received} of {spec.bytes} bytes received, content_ok is "
            f"{connection.content_ok}"
        )
    if not server.connections and not spec.external("server"):
        return "the server reported no connection"
    sent = [one.bytes_sent for one in served if one.bytes_sent is not None]
    if spec.external("client") and served and len(sent) == len(served) and sum(sent) < spec.bytes:
        return f"the server sent {sum(sent)} of {spec.bytes} bytes, on {len(served)} connections"
    return None


def _costs(attempt: Attempt, role: Side, connections: Sequence[events.Connection], size: int) -> None:
    """Processor time and packets of one end of a download."""
    if len(connections) == 1 and (cpu_s := _cpu_s(connections[0])) is not None:
        attempt.metrics[f"{role}_cpu_s"] = cpu_s
        attempt.metrics[f"{role}_cpu_s_per_gib"] = cpu_s / (size / 2**30)
    for name in ("packets_sent", "packets_received", "packets_lost"):
        values = [getattr(one, name) for one in connections]
        if values and None not in values:
            attempt.metrics[f"{role}_{name}"] = sum(values)


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
    if not spec.external("client"):
        attempt.metrics["handshakes_per_s"] = count / attempt.metrics["wall_s"]
        ttfb_metrics(attempt, [events.ttfb_ms(connection) for connection in connections])
        if not attempt.ok:
            return False
    for metric, function in (("confirmed_ms", events.confirmed_ms), ("first_byte_ms", events.first_byte_ms)):
        _median_metric(attempt, metric, (function(connection) for connection in connections))
    for role, log in (("client", logs.client), ("server", logs.server)):
        cpu = (_cpu_s(connection) for connection in log.connections)
        _median_metric(attempt, f"{role}_cpu_ms", (None if value is None else value * 1e3 for value in cpu))
        for name in ("handshake_packets_sent", "handshake_bytes_sent", "packets_lost"):
            values = (getattr(connection, name) for connection in log.connections)
            _median_metric(attempt, f"{role}_{name}", values)
    return True


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


def _median_metric(attempt: Attempt, name: str, values: Iterable[float | None]) -> None:
    """Keep the median of what connections report, unless one cannot tell."""
    known = list(values)
    present = [value for value in known if value is not None]
    if present and len(present) == len(known):
        attempt.metrics[name] = statistics.median(present)


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
    expected = expectations(project, spec.cell)
    for role, log in ends.items():
        # an external endpoint tells nothing; the other end does, and captures do
        silent = _EXTERNAL_SILENT if spec.external(role) else ()
        told = {name: wanted for name, wanted in expected.items() if name not in silent}
        _negotiated(attempt, role, log.connections, told)
        _processor(attempt, spec.cell, role, log.start.options)


def _negotiated(
    attempt: Attempt, role: Side, connections: Sequence[events.Connection], expected: Mapping[str, Any]
) -> None:
    """Keep what one end negotiated: of its last connection, or of the first that is not as expected."""
    seen = [{name: getattr(connection, name) for name in _NEGOTIATED} for connection in connections]
    attempt.evidence[role] = seen[-1] if seen else dict.fromkeys(_NEGOTIATED)
    for connection, values in zip(connections, seen, strict=True):
        if problems := contradictions(expected, role, values):
            where = f" (connection {connection.index} of {len(seen)})" if len(seen) > 1 else ""
            for problem in problems:
                attempt.contradict(problem + where)
            attempt.evidence[role] = values
            return


def expectations(project: Project, cell: Cell) -> dict[str, Any]:
    """What both ends of a cell's connections must have negotiated; None where the transport has no such thing."""
    header_protection = cell.variant.header_protection
    return {
        "cipher": SUITES[cell.variant.cipher],
        "group": project.algorithms.group(cell.variant.group).tls_name,
        "signature": project.algorithms.signature(cell.variant.signature).tls_name,
        "aead": cell.variant.aead,
        "header_protection": None if header_protection is None else ("on" if header_protection else "off"),
        "hello_retry_request": False,
        "retry": cell.variant.retry,
    }


def contradictions(expected: Mapping[str, Any], role: str, seen: Mapping[str, Any]) -> list[str]:
    """Where the values that one end read back from its TLS library are not those expected."""
    problems = []
    for name, wanted in expected.items():
        value = seen[name]
        if value is None and name in _OPTIONAL:
            continue
        same = (
            value.lower() == wanted.lower() if isinstance(value, str) and isinstance(wanted, str) else value == wanted
        )
        if not same and not (name == "retry" and wanted is None and not value):
            problems.append(f"evidence: the {role} reports {name} {value}, the cell says {wanted}")
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
        attempt.unproven(f"the {role} cannot tell whether it uses AES instructions")
        return
    attempt.contradict(
        f"evidence: the {role} reports aes_hardware {json.dumps(told)}, the cell says {json.dumps(wanted)}"
    )
