"""A repetition of the bare-metal QUIC Interop Runner: its files gathered one by one, then judged.

The files may come in any order, and any of them may be missing or damaged. Whether a repetition succeeded is what its
``output.txt`` says, never whether other files are there: a failed repetition can leave a ``time.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from quicbed.importers import names, tables
from quicbed.importers.logs import (
    QDISC_SCRIPTS,
    ROLES,
    Bottleneck,
    Counters,
    Output,
    ParseError,
    Role,
    applied_parameters,
    buffer,
    delta,
    parse_ethtool,
    parse_netstat,
    parse_output,
    parse_pidstat,
    parse_tc,
    parse_time,
)
from quicbed.importers.summary import Summary
from quicbed.store import runs

TOOLS: dict[str, Callable[[bytes], Counters]] = {"ethtool": parse_ethtool, "netstat": parse_netstat}

RECEIVE_ERRORS = "Udp: receive buffer errors"
SENT, RECEIVED = "Udp: packets sent", "Udp: packets received"

ENDPOINT_READS: dict[str, frozenset[str]] = {
    "lsquic": frozenset(
        ["CC_ALGO", "DELAYED_ACKS", "IDLE_TIMEOUT", "MAX_UDP_PAYLOAD", "INITIAL_MAX_DATA"]
        + [f"INITIAL_MAX_STREAM_DATA_{kind}" for kind in ("BIDI_LOCAL", "BIDI_REMOTE", "UNI")]
        + ["INITIAL_MAX_STREAMS_BIDI", "INITIAL_MAX_STREAMS_UNI"]
    ),
    "quiche": frozenset(["MAX_DATA", "MAX_WINDOW", "MAX_STREAM_DATA", "MAX_STREAM_WINDOW"]),
}
"""Parameters that the published run scripts of a library read without leaving a trace in the log."""

SERVER_READS: dict[str, frozenset[str]] = {"tcp-tls": frozenset(["cipher"])}
"""The same of the server's script alone.

nginx offers and accepts only the cipher suite it is told. That the value took effect is seen in the published goodputs,
2.7 Gbit/s with ChaCha20 and 8.0 Gbit/s with AES on the same hosts. No other script reads `cipher`.
"""

CIPHERS = {
    "TLS_AES_128_GCM_SHA256": "aes-128-gcm",
    "TLS_AES_256_GCM_SHA384": "aes-256-gcm",
    "TLS_CHACHA20_POLY1305_SHA256": "chacha20-poly1305",
}
"""Our name of a cipher suite (RFC 8446, B.4)."""

UNKNOWN_CONDITIONS = "its settings are not known and null, and it is in a cell of its own"

FASTEST_MBPS = 1e6
LOGGED_TO_S, SAME = 0.002, 0.01
"""The log has milliseconds; a part of the duration beyond them is no rounding."""
ABOUT = 1.5
"""Goodputs of one duration differ by less, whether MB are meant or MiB."""


@dataclass
class Repetition:
    """What is known of one repetition so far."""

    server: str
    client: str
    test: str
    number: int
    output: Output | None = None
    problem: str | None = None
    """Why the log cannot be used."""
    time_ns: tuple[int, int] | None = None
    counted: dict[tuple[Role, str], Counters] = field(default_factory=dict)
    """By role and tool."""
    cpu: dict[Role, float] = field(default_factory=dict)
    bottleneck: Bottleneck | None = None
    fallen: dict[tuple[Role, str], list[str]] = field(default_factory=dict)
    """Counters by role and tool that are lower after the repetition than before it."""
    doubled: str | None = None
    """A file that came twice: nobody knows which one is of the repetition."""
    _taken: set[str] = field(default_factory=set)
    _halves: dict[tuple[Role, str], tuple[str, Counters]] = field(default_factory=dict)

    def take(self, file: str, data: bytes) -> bool:
        """Use a file, named relative to the repetition; False if it is none that is read.

        Raises `ParseError` if it is damaged.
        """
        if file in self._taken:
            self.doubled = self.doubled or file
            raise ParseError("is there twice")
        self._taken.add(file)
        if file == "output.txt":
            try:
                self.output = parse_output(data)
            except ParseError as error:
                self.problem = f"output.txt: {error}"
                raise
            return True
        role, _, name = file.partition("/")
        if role not in ROLES:
            return False
        if name == "time.json" and role == "client":
            self.time_ns = parse_time(data)
        elif name == "pidstat.txt":
            self.cpu[role] = parse_pidstat(data)
        elif name == "tc-stats.txt" and role == "client":
            self.bottleneck = parse_tc(data)
        else:
            tool, _, moment = name.removesuffix(".txt").partition("-")
            if tool not in TOOLS or moment not in ("start", "stop"):
                return False
            self._count(role, tool, moment, TOOLS[tool](data))
        return True

    def wants(self, file: str) -> bool:
        """Whether `take` would use a file of this name."""
        role, _, name = file.partition("/")
        if role == "client" and name in ("time.json", "tc-stats.txt"):
            return True
        tool = name.removesuffix(".txt").removesuffix("-start").removesuffix("-stop")
        return file == "output.txt" or (role in ROLES and (name == "pidstat.txt" or tool in TOOLS))

    def _count(self, role: Role, tool: str, moment: str, counters: Counters) -> None:
        """Keep one half until the other is there: whole counters of thousands of repetitions would fill the memory."""
        other = self._halves.pop((role, tool), None)
        if other is None:
            self._halves[role, tool] = (moment, counters)
            return
        start, stop = (counters, other[1]) if moment == "start" else (other[1], counters)
        self.counted[role, tool], fallen = delta(start, stop)
        if fallen:
            self.fallen[role, tool] = fallen

    def close(self, where: str, summary: Summary) -> None:
        """Tell what is missing or left out, once all files were seen."""
        for (role, tool), fallen in sorted(self.fallen.items()):
            for name in fallen:
                reason = f"{tool} counter of a {role} that is lower after the repetition than before it"
                summary.skip(reason, f"{where}: {name}")
        self.fallen.clear()
        for role, tool in self._halves:
            missing = "stop" if self._halves[role, tool][0] == "start" else "start"
            summary.skip(f"{tool} of a {role} without its -{missing} half", where)
        self._halves.clear()
        if self.output is None and self.problem is None:
            self.problem = "output.txt is missing"
            summary.skip("repetition without output.txt, which shows whether it succeeded", where)
        if self.output is not None and not self.conditions_known:
            lacking = " and ".join(role for role in ROLES if role not in self.output.hosts)
            summary.skip(f"output.txt without variables of {lacking}: {UNKNOWN_CONDITIONS}", where)
        for (role, tool), counted in sorted(self.counted.items()):
            if tool == "netstat" and not {RECEIVED, SENT} <= counted.keys():
                summary.skip(f"netstat of a {role} in words that are not English: its packets are null", where)

    @property
    def conditions_known(self) -> bool:
        """Whether the log tells what both hosts were told, and so which cell the repetition is of."""
        return self.output is not None and len(self.output.hosts) == len(ROLES)

    # ---- its row -----------------------------------------------------------------------------------------------------

    def row(self, source: str, origin: str, summary: Summary, **known: Any) -> dict[str, Any]:
        """Its row of ``runs.parquet``; *known* are columns that the files around it tell."""
        if self.doubled is not None:
            twice = f"{self.doubled} is there twice"
            return tables.run(source, origin, runs.UNREADABLE, reason=twice, **(self._identity() | known))
        if self.output is None:
            return tables.run(source, origin, runs.UNREADABLE, reason=self.problem, **(self._identity() | known))
        output = self.output
        # what the log says of the repetition itself comes before what was said about many
        values = self._identity() | known | self._conditions(output)
        if not self.conditions_known:
            values["cell"] = f"{self.server}_{self.client}, unknown settings: {origin}"
        size = output.file_bytes or values.get("workload_bytes")
        values["workload_bytes"] = size
        if output.status != "ok":
            return tables.run(source, origin, output.status, reason=output.reason, **values)
        duration, basis = self._duration(output, origin, summary)
        if duration is None or not size:
            lacking = "size of the download" if duration else "duration"
            return tables.run(source, origin, runs.UNREADABLE, reason=f"successful, but without a {lacking}", **values)
        if problem := _contradiction(size, duration, output):
            summary.skip("repetition whose duration is not that of its log", origin)
            return tables.run(source, origin, runs.UNREADABLE, reason=problem, **values)
        values |= {
            "goodput_mbps": 8 * size / duration / 1e6,
            "goodput_basis": basis,
            "bytes": size,
            "wall_s": duration,
            "started_at": datetime.fromtimestamp(self.time_ns[0] / 1e9, UTC) if self.time_ns else None,
        }
        return tables.run(source, origin, output.status, **(values | self._measured()))

    def _identity(self) -> dict[str, Any]:
        client, client_flavour = names.library(self.client)
        server, server_flavour = names.library(self.server)
        return {
            "client_implementation": self.client,
            "server_implementation": self.server,
            "library": client,
            "flavour": client_flavour,
            "client_library": client,
            "client_flavour": client_flavour,
            "server_library": server,
            "server_flavour": server_flavour,
            "label": self.client if self.client == self.server else f"{self.client} from {self.server}",
            "slug": f"{self.server}_{self.client}",
            "repetition": self.number,
            "block": self.number,
            "workload": "bulk" if self.test == "goodput" else self.test,
            "connections": 1,
        }

    def _conditions(self, output: Output) -> dict[str, Any]:
        """Hosts and parameters as they were really applied."""
        taken: dict[Role, dict[str, Any]] = {}
        unread: dict[Role, dict[str, Any]] = {}
        columns: dict[str, Any] = {}
        for role in ROLES:
            base, _ = names.library(self.client if role == "client" else self.server)
            reads = ENDPOINT_READS.get(base, frozenset())
            if role == "server":
                reads |= SERVER_READS.get(base, frozenset())
            took, unread[role] = applied_parameters(output, role, reads)
            taken[role] = took
            if role in output.hosts:
                columns[f"{role}_host"] = output.hosts[role]
                columns[f"{role}_scripts"] = " ".join(output.scripts[role])
                columns[f"{role}_receive_buffer"] = buffer(took, "rmem_value")
                columns[f"{role}_send_buffer"] = buffer(took, "wmem_value")
        sender = taken["server"]
        switched = {output.aes_switched_off[role] for role in ROLES if role in output.aes_switched_off}
        parameters = _json(taken)
        columns |= {
            "testbed": "-".join(output.hosts[role] for role in reversed(ROLES)) if len(output.hosts) == 2 else None,
            "congestion_control": _text(sender.get("cc")),
            # what the server was told and reads; null where no log tells
            "cipher": CIPHERS.get(str(sender.get("cipher"))),
            "gso": _text(sender.get("gso")),
            "qdisc": next((QDISC_SCRIPTS[s] for s in output.scripts.get("server", []) if s in QDISC_SCRIPTS), None),
            "parameters": parameters,
            "unread_parameters": _json(unread),
            # what is the same on both sides; with the AES instructions off on one only it is neither
            "aes_hardware": not switched.pop() if len(switched) == 1 else None,
            "cell": " ".join(filter(None, [f"{self.server}_{self.client}", parameters])),
        }
        return {name: value for name, value in columns.items() if value is not None}

    def _duration(self, output: Output, origin: str, summary: Summary) -> tuple[float | None, str | None]:
        """Wall time of the client process in s, and where it is from."""
        if self.time_ns is not None:
            return (self.time_ns[1] - self.time_ns[0]) / 1e9, "time.json"
        if output.logged_s:
            summary.differ("no usable time.json; the duration is the one in output.txt, to the ms", origin)
            return output.logged_s, "output.txt"
        return None, None

    def _measured(self) -> dict[str, Any]:
        columns: dict[str, Any] = {f"{role}_cpu_percent": self.cpu.get(role) for role in ROLES}
        for role in ROLES:
            udp = self.counted.get((role, "netstat"), {})
            columns[f"{role}_udp_receive_buffer_errors"] = udp.get(RECEIVE_ERRORS)
            columns[f"{role}_udp_packets_sent"] = udp.get(SENT)
            columns[f"{role}_udp_packets_received"] = udp.get(RECEIVED)
        if self.bottleneck is not None:
            columns |= {
                "bottleneck_dropped": self.bottleneck.dropped,
                "bottleneck_queue": self.bottleneck.queue,
                "rate_mbit": self.bottleneck.rate_mbit,
                "rtt_ms": self.bottleneck.rtt_ms,
            }
        return {name: value for name, value in columns.items() if value is not None}

    def counters(self, source: str, origin: str) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Its rows of ``counters.parquet``; none of a repetition that is no result."""
        if self.output is None or self.output.status != "ok":
            return
        for (role, tool), counted in self.counted.items():
            for name, value in counted.items():
                yield source, origin, role, tool, name, value


def _contradiction(size: int, duration: float, output: Output) -> str | None:
    """Why a duration in s cannot be that of a download of *size* bytes, or None."""
    goodput = 8 * size / duration / 1e6
    if goodput > FASTEST_MBPS:
        return f"{size} bytes in {duration:g} s are more than any link carries"
    if output.logged_s is not None and abs(duration - output.logged_s) > LOGGED_TO_S + SAME * output.logged_s:
        return f"time.json has {duration:g} s, output.txt {output.logged_s:g} s"
    if output.logged_mbps is not None and not 1 / ABOUT < goodput / output.logged_mbps < ABOUT:
        return f"{goodput:.0f} Mbit/s by time.json, {output.logged_mbps:.0f} Mbit/s by output.txt"
    return None


def _json(by_role: dict[Role, dict[str, Any]]) -> str | None:
    """One text for equal settings; null where there are none."""
    return json.dumps(by_role, sort_keys=True, default=str) if any(by_role.values()) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
