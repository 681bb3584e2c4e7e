"""Reader of the event files that endpoints write (workflow/endpoints/ENDPOINT.md, "Events").

A file that keeps the contract becomes an :class:`EndpointLog`; anything else is an
:class:`EventError`, whatever it is. All times are ``CLOCK_MONOTONIC`` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, overload

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypeAliasType

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError, one_line
from quicbed.config.model import Limits

CONTRACT = 2
"""Version of the endpoint contract this module reads."""

LIMITS = Limits()
"""Sizes that are accepted by default, so that an endpoint that prints garbage does not fill the memory."""
MAXIMUM_LINE_BYTES = LIMITS.line_kib << 10
MAXIMUM_OPTIONS = 256
MAXIMUM_STALLS = 1000
MAXIMUM_SEGMENTS = 1000

Role = Literal["client", "server", "primitives"]

_INT64 = (1 << 63) - 1
# named, so that the JSON schema says once what they are
Time = TypeAliasType("Time", Annotated[int, Field(ge=0, le=_INT64)])
Count = TypeAliasType("Count", Annotated[int, Field(ge=0, le=_INT64)])
Text = Annotated[str, AfterValidator(one_line)]
"""What a program says, in one line of limited length."""
Number = Annotated[int, Field(ge=-_INT64, le=_INT64)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Option = bool | Number | Finite | Text | Annotated[list[Text], Field(max_length=MAXIMUM_OPTIONS)] | None


class EventError(Exception):
    """An event file breaks the contract; the message names the file, the line and what is wrong.

    ``reasons`` holds what the endpoint itself had to say before that line: the reasons of its
    ``error`` and ``unsupported`` events and the errors of failed connections, in their order.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class _Event(BaseModel):
    # Fields that the contract does not name are an endpoint's own business.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True)

    t: Time
    """When the event was written."""


class Start(_Event):
    """The program has started."""

    contract: int
    role: Role
    library: Text
    version: Text
    pid: Annotated[int, Field(gt=0, le=_INT64)]
    options: Annotated[dict[Text, Option], Field(max_length=MAXIMUM_OPTIONS)]
    """Values in effect after the start, read back from the system where possible."""


class Ready(_Event):
    """The server accepts connections."""

    address: Text
    port: Annotated[int, Field(gt=0, lt=65536)]


class Reason(_Event):
    """An ``unsupported`` or ``error`` event."""

    reason: Text


class NamedReason(Reason):
    """An ``unsupported`` event about one algorithm, from a program that times primitives."""

    name: Text


class Primitive(_Event):
    """Measured times of one cryptographic operation."""

    kind: Literal["group", "signature"]
    name: Text
    operation: Literal["keygen", "encapsulate", "decapsulate", "sign", "verify", "verify-chain"]
    implementation: Text
    samples_ns: Annotated[list[Count], Field(min_length=1)]
    bytes: Count | None


class End(_Event):
    """The last event; counts are for the whole process."""

    connections: Count
    failed: Count
    cpu_user_ns: Count | None
    cpu_system_ns: Count | None
    run_delay_ns: Count | None
    max_rss_bytes: Count | None


class Connection(_Event):
    """What both programs report about a connection; ``None`` where the library cannot report it."""

    index: Count
    ok: bool
    error: Text | None
    t_handshake_complete: Time | None
    t_handshake_confirmed: Time | None
    hello_retry_request: bool | None
    retry: bool | None
    t_close: Time | None
    cipher: Text | None
    group: Text | None
    signature: Text | None
    alpn: Text | None
    tls_version: Text | None
    resumed: bool | None = None
    """Whether the handshake resumed the session of an earlier connection; left out by programs without `--visit`."""
    early_data: bool | None = None
    """Whether what was sent before the handshake was complete was accepted; likewise."""
    aead: Literal["standard", "noop", "noenc"] | None
    header_protection: Literal["on", "off"] | None
    handshake_packets_sent: Count | None
    handshake_packets_received: Count | None
    handshake_bytes_sent: Count | None
    handshake_bytes_received: Count | None
    packets_sent: Count | None
    packets_received: Count | None
    packets_lost: Count | None
    cpu_user_ns: Count | None
    cpu_system_ns: Count | None

    def times(self) -> list[tuple[str, int | None]]:
        """Return the times that must follow each other, in their order."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_outcome(self) -> Self:
        if self.ok and self.error is not None:
            raise ValueError(f"ok is true, but there is an error: {self.error}")
        if not self.ok and not self.error:
            raise ValueError("ok is false, but no error says why")
        return self

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        earlier = ""
        latest = 0
        for name, time in [*self.times(), ("t", self.t)]:
            if time is None:
                continue
            if time < latest:
                raise ValueError(f"{name} ({time}) is before {earlier} ({latest})")
            earlier, latest = name, time
        complete, confirmed = self.t_handshake_complete, self.t_handshake_confirmed
        if confirmed is not None and (complete is None or confirmed < complete):
            raise ValueError(f"t_handshake_confirmed ({confirmed}) is before t_handshake_complete ({complete})")
        return self


class Segment(BaseModel):
    """A segment of a video that a player has loaded."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True)

    number: Annotated[int, Field(gt=0, le=_INT64)]
    """The first is 1."""
    kbit: Annotated[int, Field(gt=0, le=_INT64)]
    """Bit rate of its representation in kbit/s."""
    t_request: Time
    t_last_byte: Time

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.t_last_byte < self.t_request:
            raise ValueError(f"segment {self.number} was loaded before it was asked for")
        return self


class Playback(BaseModel):
    """How a player has played a video to its end."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True)

    t_navigation: Time
    """When the browser began to load the page with the player."""
    t_playing: Time
    """The first event `playing` of the video (HTML, 4.8.11.16)."""
    t_ended: Time
    stalls: Annotated[list[Annotated[list[Time], Field(min_length=2, max_length=2)]], Field(max_length=MAXIMUM_STALLS)]
    """Begin and end of each: an event `waiting` after the start, and the next `playing`."""
    segments: Annotated[list[Segment], Field(min_length=1, max_length=MAXIMUM_SEGMENTS)]
    """Those that were loaded, in the order in which they were asked for."""

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        times = [self.t_navigation, self.t_playing, *(time for stall in self.stalls for time in stall), self.t_ended]
        if times != sorted(times):
            raise ValueError(
                "the times of the navigation, the first frame, stalls and the end do not follow each other"
            )
        return self


class ClientConnection(Connection):
    """A connection as the client saw it."""

    t_intended: Time | None = None
    """Planned start of the connection; only from a client with `--rate`."""
    t_begun: Time | None = None
    """Actual start of the connection; only from such a client."""
    t_connect: Time | None = None
    """When the client began to connect, before the TCP handshake; not every client reports it."""
    kept: bool | None = None
    """Whether the load went over a connection that was open already (`--visit kept`), so that it has no handshake."""
    t_navigation: Time | None = None
    """When a browser began to load the page, as the two that follow only from one."""
    t_load: Time | None = None
    """The event `load` of the page (HTML, 13.2.7)."""
    t_largest_paint: Time | None = None
    """The largest contentful paint until a while after that (W3C, Largest Contentful Paint)."""
    playback: Playback | None = None
    """Of a browser that has played a video."""
    t_client_hello: Time | None
    t_request_sent: Time | None
    t_first_byte: Time | None
    t_last_byte: Time | None
    bytes_requested: Count
    bytes_received: Count
    content_ok: bool | None

    def times(self) -> list[tuple[str, int | None]]:
        """Return the times that must follow each other, in their order."""
        handshake = [("t_handshake_complete", self.t_handshake_complete), ("t_request_sent", self.t_request_sent)]
        return [
            ("t_intended", self.t_intended),
            ("t_begun", self.t_begun),
            ("t_connect", self.t_connect),
            ("t_client_hello", self.t_client_hello),
            *(reversed(handshake) if self.early_data else handshake),
            ("t_first_byte", self.t_first_byte),
            ("t_last_byte", self.t_last_byte),
            ("t_close", self.t_close),
        ]

    @model_validator(mode="after")
    def _check_kept(self) -> Self:
        for name in ("t_client_hello", "t_handshake_complete", "t_handshake_confirmed"):
            if self.kept and getattr(self, name) is not None:
                raise ValueError(f"kept is true, but there is a {name} of this load")
        if self.kept and (self.resumed or self.early_data):
            raise ValueError("kept is true, but the connection resumes an earlier session")
        return self

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.ok and self.content_ok is not True:
            raise ValueError("ok is true, but content_ok is not")
        if self.ok and self.bytes_received != self.bytes_requested:
            raise ValueError(f"ok is true, but {self.bytes_received} of {self.bytes_requested} bytes arrived")
        return self


class ServerConnection(Connection):
    """A connection as the server saw it."""

    t_accept: Time | None
    bytes_sent: Count | None

    def times(self) -> list[tuple[str, int | None]]:
        """Return the times that must follow each other, in their order."""
        return [
            ("t_accept", self.t_accept),
            ("t_handshake_complete", self.t_handshake_complete),
            ("t_close", self.t_close),
        ]


C = TypeVar("C", ClientConnection, ServerConnection)
M = TypeVar("M", bound=_Event)


@dataclass(frozen=True)
class EndpointLog(Generic[C]):
    """A whole event file."""

    path: Path
    start: Start
    ready: Ready | None
    """``None`` for a client, and for a server that ended before it accepted connections."""
    connections: tuple[C, ...]
    """In the order of their ``index``, without gaps."""
    unsupported: str | None
    """Why this build cannot do what it was asked for, ``None`` if it can."""
    errors: tuple[str, ...]
    """Reasons of the ``error`` events."""
    end: End


@dataclass(frozen=True)
class PrimitivesLog:
    """A whole event file of a program that times primitives."""

    path: Path
    primitives: tuple[Primitive, ...]
    unsupported: tuple[NamedReason, ...]
    """Algorithms that the build does not have."""
    errors: tuple[str, ...]


def read_primitives(path: Path, limits: Limits = LIMITS) -> PrimitivesLog:
    """Read and check the event file that a program ``primitives`` wrote."""
    reader = _Reader(path, "primitives", ClientConnection, limits)
    primitives: list[Primitive] = []
    unsupported: list[NamedReason] = []
    for line in reader._lines():
        event = reader._parse(line)
        expected = reader.start is not None and reader.end is None
        match event["event"]:
            case "primitive" if expected:
                primitives.append(reader._model(Primitive, event))
            case "unsupported" if expected:
                unsupported.append(reader._model(NamedReason, event))
            case "connection" | "ready" if expected:
                raise reader._error(f"a {event['event']!r:.60} event of a program that only times primitives")
            case _:
                reader._take(event)
    if reader.end is None:
        raise reader._error("there is no end event: the program crashed or was killed")
    return PrimitivesLog(path, tuple(primitives), tuple(unsupported), tuple(reader.errors))


@overload
def read(path: Path, role: Literal["client"], limits: Limits = LIMITS) -> EndpointLog[ClientConnection]: ...
@overload
def read(path: Path, role: Literal["server"], limits: Limits = LIMITS) -> EndpointLog[ServerConnection]: ...
def read(
    path: Path, role: Literal["client", "server"], limits: Limits = LIMITS
) -> EndpointLog[ClientConnection] | EndpointLog[ServerConnection]:
    """Read and check the event file that the program in ``role`` wrote."""
    if role == "client":
        return _Reader(path, role, ClientConnection, limits).read()
    return _Reader(path, role, ServerConnection, limits).read()


def said(path: Path, limits: Limits = LIMITS) -> Iterator[dict[str, Any]]:
    """The events of a file that need not keep the contract and may end anywhere, as far as they are objects."""
    lines = _Reader(path, "client", ClientConnection, limits)._lines()
    with suppress(EventError):
        for line in lines:
            with suppress(UntrustedError):
                event = untrusted.parse(line)
                if isinstance(event, dict):
                    yield event


def goodput_mbps(connection: ClientConnection) -> float | None:
    """Goodput in Mbit/s: ``8 * bytes_received / (t_last_byte - t_request_sent)``; ``None`` where a
    time is unknown.
    """
    duration_ns = _duration(connection.t_request_sent, connection.t_last_byte)
    if not duration_ns:
        return None
    return 8e3 * connection.bytes_received / duration_ns


def throughput_mbps(connection: ClientConnection) -> float | None:
    """``8 * bytes_received / (t_last_byte - t_client_hello)`` in Mbit/s, with the handshake; ``None`` where a time is
    unknown.
    """
    duration_ns = _duration(connection.t_client_hello, connection.t_last_byte)
    return 8e3 * connection.bytes_received / duration_ns if duration_ns else None


def ttfb_ms(connection: ClientConnection) -> float | None:
    """Time to first byte in ms: from the ClientHello to the client being able to send its request, which is the
    complete handshake (A Quantum of QUIC, Sec. IV); ``None`` where a time is unknown.
    """
    return _milliseconds(connection.t_client_hello, connection.t_handshake_complete)


def ttfb_from_intended_ms(connection: ClientConnection) -> float | None:
    """As `ttfb_ms`, from when the connection was to begin, so that what it had to wait for counts; ``None`` where a
    time is unknown.
    """
    return _milliseconds(connection.t_intended, connection.t_handshake_complete)


MOST_LATE = 0.5
"""A client has fallen behind where the 99th percentile of `late_ms` is more than this part of that of TTFB.

As connections begin at Poisson times, they find the client as busy as answers do: what they wait, answers wait too.
"""


def late_ms(connection: ClientConnection) -> float | None:
    """Milliseconds by which the client began a connection later than it was to; ``None`` where a time is unknown."""
    return _milliseconds(connection.t_intended, connection.t_begun)


def confirmed_ms(connection: ClientConnection) -> float | None:
    """Milliseconds from the ClientHello to the confirmed handshake at the client (RFC 9001, 4.1.2); ``None`` where a
    time is unknown.
    """
    return _milliseconds(connection.t_client_hello, connection.t_handshake_confirmed)


def first_byte_ms(connection: ClientConnection) -> float | None:
    """Milliseconds from the ClientHello to the first byte of content; ``None`` where a time is unknown."""
    return _milliseconds(connection.t_client_hello, connection.t_first_byte)


def _duration(begin: int | None, end: int | None) -> int | None:
    return None if begin is None or end is None else end - begin


def _milliseconds(begin: int | None, end: int | None) -> float | None:
    duration_ns = _duration(begin, end)
    return None if duration_ns is None else duration_ns / 1e6


class _Reader(Generic[C]):
    """Reads one file, event by event."""

    def __init__(self, path: Path, role: Role, connection_model: type[C], limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.role = role
        self.connection_model: type[C] = connection_model
        self.line = 0
        self.time = 0
        self.start: Start | None = None
        self.ready: Ready | None = None
        self.connections: dict[int, C] = {}
        self.unsupported: str | None = None
        self.errors: list[str] = []
        self.end: End | None = None
        self.reasons: list[str] = []

    def read(self) -> EndpointLog[C]:
        for line in self._lines():
            self._take(self._parse(line))
        if self.start is None:
            raise self._error("the file is empty: the program did not get as far as its start event")
        if self.end is None:
            raise self._error("there is no end event: the program crashed or was killed")
        ordered = tuple(self.connections[index] for index in sorted(self.connections))
        failed = sum(not connection.ok for connection in ordered)
        if (self.end.connections, self.end.failed) != (len(ordered), failed):
            raise self._error(
                f"the end event counts {self.end.connections} connections, "
                f"{self.end.failed} failed; the file holds {len(ordered)}, {failed} failed"
            )
        if ordered and ordered[-1].index != len(ordered) - 1:
            raise self._error(f"{len(ordered)} connections, but one has index {ordered[-1].index}")
        return EndpointLog(
            self.path,
            self.start,
            self.ready,
            ordered,
            self.unsupported,
            tuple(self.errors),
            self.end,
        )

    def _lines(self) -> Iterator[bytes]:
        longest, left = self.limits.line_kib << 10, self.limits.log_mib << 20
        try:
            with untrusted.opened(self.path, None) as file:
                while line := file.readline(longest + 1):
                    self.line += 1
                    left -= len(line)
                    if len(line) > longest:
                        raise self._error(f"the line is longer than {longest} bytes")
                    if left < 0:
                        raise self._error(f"the file is larger than {self.limits.log_mib} MiB (limits.log_mib)")
                    yield line
        except UntrustedError as error:
            raise EventError(f"{self.path}: {error}", tuple(self.reasons)) from None
        except OSError as error:
            raise EventError(f"{self.path}: cannot be read: {error.strerror}", tuple(self.reasons)) from None

    def _parse(self, content: bytes) -> dict[str, Any]:
        try:
            line = content.decode()
        except UnicodeDecodeError:
            raise self._error(f"the line is not UTF-8: {content[:40]!r}") from None
        try:
            event = untrusted.parse(content)
        except UntrustedError:
            cut = "" if line.endswith("\n") else ", the file ends within it"
            raise self._error(f"the line is not JSON{cut}: {line[:40].rstrip()!r}") from None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise self._error(f"the line is no event, an object with `event` and `t`: {line[:40].rstrip()!r}")
        return event

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if self.end is not None:
            raise self._error(f"a {kind!r:.60} event after the end event")
        if self.start is None and kind != "start":
            raise self._error(f"the first event is {kind!r:.60}, not 'start'")
        match kind:
            case "start":
                self._take_start(event)
            case "ready":
                if self.role == "client" or self.ready is not None:
                    raise self._error("a 'ready' event that is not a server's first one")
                self.ready = self._model(Ready, event)
            case "connection":
                self._take_connection(event)
            case "unsupported" | "error":
                reason = self._model(Reason, event).reason
                self.reasons.append(reason)
                if kind == "error":
                    self.errors.append(reason)
                elif self.unsupported is None:
                    self.unsupported = reason
            case "end":
                self.end = self._model(End, event)
            case _:
                raise self._error(f"unknown event {kind!r:.60}")

    def _take_start(self, event: dict[str, Any]) -> None:
        if self.start is not None:
            raise self._error("a second 'start' event")
        # Before anything else: another version may have other fields.
        if event.get("contract") != CONTRACT:
            raise self._error(
                f"version {event.get('contract')!r:.60} of the endpoint contract, only {CONTRACT} is known"
            )
        start = self._model(Start, event)
        if start.role != self.role:
            raise self._error(f"a {start.role} wrote this file, it should be a {self.role}'s")
        self.start = start

    def _take_connection(self, event: dict[str, Any]) -> None:
        if self.role == "server" and self.ready is None:
            raise self._error("a connection before the ready event")
        connection = self._model(self.connection_model, event)
        if connection.index in self.connections:
            raise self._error(f"a second connection with index {connection.index}")
        self.connections[connection.index] = connection
        if connection.error is not None:
            self.reasons.append(connection.error)

    def _model(self, model: type[M], event: dict[str, Any]) -> M:
        try:
            parsed = model.model_validate(event)
        except ValidationError as error:
            raise self._error(f"event {event['event']!r:.60}: {_first_problem(error)}") from None
        if parsed.t < self.time:
            raise self._error(f"time goes back: t is {parsed.t} after {self.time}")
        self.time = parsed.t
        return parsed

    def _error(self, problem: str) -> EventError:
        return EventError(f"{self.path}: line {self.line}: {one_line(problem)}", tuple(self.reasons))


def _first_problem(error: ValidationError) -> str:
    """Return the first problem of a validation as `field: problem`."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(map(str, problem["loc"]))
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"{field} is missing (null: the library cannot report it)"
    return f"{field}: {problem['msg']}, not {problem['input']!r:.60}"
