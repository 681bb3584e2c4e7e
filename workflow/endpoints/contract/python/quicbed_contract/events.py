"""The events an endpoint writes: JSON lines, times in CLOCK_MONOTONIC nanoseconds, null for what cannot be told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, Any

from quicbed_contract import CONTRACT, FAILED, UNSUPPORTED
from quicbed_contract.clock import CpuTime, max_rss_bytes, now_ns, run_delay_ns

COMMON = (
    *(
        "index",
        "ok",
        "error",
        "t_handshake_complete",
        "t_handshake_confirmed",
        "hello_retry_request",
        "retry",
        "t_close",
    ),
    *("cipher", "group", "signature", "alpn", "tls_version", "aead", "header_protection"),
    *("handshake_packets_sent", "handshake_packets_received", "handshake_bytes_sent", "handshake_bytes_received"),
    *("packets_sent", "packets_received", "packets_lost", "cpu_user_ns", "cpu_system_ns"),
)
CLIENT = ("t_client_hello", "t_request_sent", "t_first_byte", "t_last_byte", "bytes_requested", "bytes_received")
SERVER = ("t_accept", "bytes_sent")
FIELDS = {"client": (*COMMON, *CLIENT, "content_ok"), "server": (*COMMON, *SERVER)}
"""Fields of a `connection` event by role."""


class Events:
    """Writes events, each as one line in one write, and counts connections for the last one."""

    def __init__(self, role: str, library: str, version: str, path: str) -> None:
        self.role = role
        self.library = library
        self.version = version
        self.connections = 0
        self.failed = 0
        try:
            self._out: IO[bytes] = sys.stdout.buffer if path == "-" else open(path, "wb")  # noqa: SIM115
        except OSError as error:
            print(f"--events {path}: {error.strerror}", file=sys.stderr)
            sys.exit(FAILED)

    def write(self, event: str, **fields: Any) -> None:
        """Write one event. A program that cannot write events is useless: it ends with a line on standard error."""
        line = json.dumps({"event": event, "t": now_ns(), **fields}, separators=(",", ":"))
        try:
            self._out.write(line.encode() + b"\n")
            self._out.flush()
        except OSError as error:
            print(f"cannot write events: {error.strerror}", file=sys.stderr)
            os._exit(FAILED)  # at exit the interpreter would try to write once more

    def start(self, options: Mapping[str, Any]) -> None:
        """The program runs with these options in force."""
        told = {"contract": CONTRACT, "role": self.role, "library": self.library, "version": self.version}
        self.write("start", **told, pid=os.getpid(), options=dict(options))

    def ready(self, address: str, port: int) -> None:
        """Connections are accepted from now on."""
        self.write("ready", address=address, port=port)

    def connection(self, record: Mapping[str, Any]) -> None:
        """Report a connection; fields that `record` does not have are null."""
        self.connections += 1
        self.failed += not record["ok"]
        self.write("connection", **{name: record.get(name) for name in FIELDS[self.role]})

    def end(self) -> None:
        """Write the last event."""
        cpu = CpuTime.now()
        self.write(
            "end",
            connections=self.connections,
            failed=self.failed,
            cpu_user_ns=cpu.user_ns,
            cpu_system_ns=cpu.system_ns,
            run_delay_ns=run_delay_ns(),
            max_rss_bytes=max_rss_bytes(),
        )

    def unsupported(self, reason: str) -> int:
        """Say that this build cannot do what is asked; returns the exit code."""
        return self._reason("unsupported", reason, UNSUPPORTED)

    def error(self, reason: str) -> int:
        """Say why the program failed; returns the exit code."""
        return self._reason("error", reason, FAILED)

    def _reason(self, event: str, reason: str, code: int) -> int:
        print(f"{event}: {reason}", file=sys.stderr)
        self.write(event, reason=reason)
        self.end()
        return code


def one_line(text: object) -> str:
    """The text without line breaks, as reasons have to be."""
    return " ".join(str(text).split())
