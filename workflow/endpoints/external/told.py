"""What the scripts of a folder report of their connections: event lines as of any endpoint, written by strangers.

Every line is an object with `event`. Of a `start` event its `options` are taken, of `connection` events the fields of
the contract; what is left out cannot be told. Other events of the contract are passed over.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed_contract.events import FIELDS, one_line

MOST_BYTES = 16 << 20
"""Largest file that is read."""
MOST_LINE = 64 << 10
"""Longest line."""
MOST_TEXT = 200
OPTIONS = (
    *("gso", "gso_paced", "gro", "udp_payload", "receive_buffer", "send_buffer", "window", "congestion_control"),
    *("pacing", "aes_hardware"),
)
"""Of a `start` event: what only the program itself knows to be in force."""
NEGOTIATED = ("cipher", "group", "signature", "alpn", "tls_version", "aead", "header_protection")
CLIENT_TIMES = ("t_client_hello", "t_handshake_complete", "t_request_sent", "t_first_byte", "t_last_byte")
"""In the order in which they follow each other."""
_PASSED_OVER = {"ready", "unsupported", "error", "end"}
_OF_THE_PROGRAM = {"index", "ok", "error"}
_SWITCHES = {"hello_retry_request", "retry", "content_ok", "gso", "gso_paced", "gro", "aes_hardware"}
_TEXTS = {*NEGOTIATED, "congestion_control", "pacing"}
_CHOICES = {"aead": ("standard", "noop", "noenc"), "header_protection": ("on", "off")}
_MOST = (1 << 63) - 1


class ReportError(Exception):
    """A report that is not used: one line that says what is wrong."""


@dataclass
class Report:
    """What a script has reported."""

    options: dict[str, Any] = field(default_factory=dict)
    connections: list[dict[str, Any]] = field(default_factory=list)
    """Fields of `connection` events; null where it cannot be told."""


def read(file: Path, role: str, begin: int, end: int, *, unfinished: bool = False) -> Report:
    """The report of a script that ran from *begin* to *end* (ns); an empty one where it has written none.

    Of a script that is still running (*unfinished*) the last line may be there in part, and is not taken then.
    """
    report = Report()
    content = _content(file)
    if unfinished:
        content = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(content.splitlines(), 1):
        try:
            if len(line) > MOST_LINE:
                raise ReportError(f"is longer than {MOST_LINE >> 10} KiB")
            event = _event(line)
            if event["event"] == "start":
                report.options |= _values(event.get("options"), OPTIONS)
            elif event["event"] == "connection":
                report.connections.append(_connection(event, role, begin, end))
        except ReportError as error:
            raise ReportError(f"{file.name}: line {number}: {error}") from None
    return report


def _content(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ReportError(f"{file.name}: cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ReportError(f"{file.name}: is not a regular file")
        if os.fstat(descriptor).st_size > MOST_BYTES:
            raise ReportError(f"{file.name}: is larger than {MOST_BYTES >> 20} MiB")
        with open(descriptor, "rb", closefd=False) as source:
            return source.read(MOST_BYTES)
    finally:
        os.close(descriptor)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise ReportError("is not JSON") from None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ReportError("is no object with `event`")
    if event["event"] not in {"start", "connection", *_PASSED_OVER}:
        raise ReportError(f"`event` is {_shown(event['event'])}, which the contract does not have")
    return event


def _connection(event: dict[str, Any], role: str, begin: int, end: int) -> dict[str, Any]:
    if event.get("ok") is False or event.get("error"):
        raise ReportError(f"the connection failed: {one_line(event.get('error') or 'it does not say why')[:MOST_TEXT]}")
    values = _values(event, [name for name in FIELDS[role] if name not in _OF_THE_PROGRAM])
    for name, value in values.items():
        if name.startswith("t_") and value is not None and not begin <= value <= end:
            raise ReportError(f"`{name}` is not within the run of the script (CLOCK_MONOTONIC in ns)")
    ordered = CLIENT_TIMES if role == "client" else ("t_accept", "t_handshake_complete", "t_close")
    told = [(name, values[name]) for name in ordered if values.get(name) is not None]
    for (earlier, first), (later, second) in itertools.pairwise(told):
        if second < first:
            raise ReportError(f"`{later}` is before `{earlier}`")
    return values


def _values(given: object, names: Any) -> dict[str, Any]:
    """The values of these names that are told, each of its kind."""
    if not isinstance(given, dict):
        raise ReportError("`options` is no object")
    return {name: _value(name, given[name]) for name in names if given.get(name) is not None}


def _value(name: str, value: object) -> object:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ReportError(f"`{name}` is {_shown(value)}, neither true nor false")
    elif name in _TEXTS:
        if not isinstance(value, str) or not value.isprintable() or len(value) > MOST_TEXT:
            raise ReportError(f"`{name}` is {_shown(value)}, no text of one line")
        if value not in _CHOICES.get(name, (value,)):
            raise ReportError(f"`{name}` is {_shown(value)}, not one of {', '.join(_CHOICES[name])}")
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ReportError(f"`{name}` is {_shown(value)}, no whole number of 64 bits")
    return value


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
