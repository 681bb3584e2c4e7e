"""Serves content made in memory, or files, until it is stopped, and reports each connection."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from quicbed_contract import FAILED, HTTP3, OK, content, request
from quicbed_contract.clock import CpuTime, now_ns
from quicbed_contract.events import Events, one_line
from quicbed_contract.options import Address, ServerOptions, from_command_line, in_force
from quicbed_contract.options import unsupported as not_described
from quicbed_contract.udp import Socket, Waiter

from aioquic.buffer import Buffer
from aioquic.quic import events as quic_events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.tls import load_pem_x509_certificates

from . import library
from .http3 import Http3

RECEIVE_AT_ONCE = 32
"""Datagrams taken in before it is the turn of what there is to send."""

BACKLOG = 4 * content.PERIOD
"""Bytes of content handed to aioquic ahead of what it has sent."""

IDLE_TIMEOUT = 30.0
"""Seconds after which a connection whose client is gone is given up."""

SMALLEST_INITIAL = 1200
"""Datagrams with a client's Initial packet are at least this long (RFC 9000, section 14.1)."""


class Start(NamedTuple):
    """When a connection began, and the processor time until then."""

    t: int
    cpu: CpuTime


class Answer:
    """One stream: a request, and the body it asks for."""

    def __init__(self) -> None:
        self.request = b""
        self.body: content.Body | None = None
        self.written = 0
        self.begun = False
        """Whether it has its header section, where HTTP/3 is spoken."""


class Session:
    """One connection, from its first datagram to the end of its closing period."""

    def __init__(
        self,
        index: int,
        quic: library.Connection,
        peer: Address,
        retried: bool,
        start: Start,
        files: request.Files,
    ) -> None:
        self.index = index
        self.files = files
        self.quic = quic
        self.peer = peer
        self.retried = retried
        self.t_accept = start.t
        self.traffic = library.Traffic()
        self.traffic.cpu = start.cpu
        self.answers: dict[int, Answer] = {}
        self.http3: Http3 | None = None
        self.bytes_sent = 0
        self.ids: set[bytes] = set()
        self.timer: float | None = None
        self.unsent: list[bytes] = []
        self.refused: str | None = None
        self.reported = False
        self.terminated = False

    def receive(self, datagram: bytes, sender: Address, now: float) -> None:
        """Take in a datagram."""
        self.traffic.received(datagram)
        self.quic.receive_datagram(datagram, sender, now)

    def data(self, stream: int, data: bytes, end: bool) -> None:
        """Take in a part of a request."""
        answer = self.answers.setdefault(stream, Answer())
        answer.request += data
        try:
            if len(answer.request) > request.MAX_REQUEST:
                raise request.BadRequestError("request is longer than `GET /<bytes>` can be")
            if end:
                answer.body = self.files.parse(answer.request)
        except request.BadRequestError as error:
            self.refused = str(error)
            self.quic.end(FAILED, self.refused)

    def write(self) -> None:
        """Keep aioquic supplied with content."""
        for stream, answer in list(self.answers.items()):
            while answer.body is not None and answer.written - self.quic.sent(stream) < BACKLOG:
                part = answer.body.at(answer.written)
                answer.written += len(part)
                self.bytes_sent += len(part)
                done = answer.written == answer.body.length
                if self.http3 is None:
                    self.quic.send_stream_data(stream, part, end_stream=done)
                else:
                    self.http3.send(stream, answer.body.length, part, begin=not answer.begun, end=done)
                    answer.begun = True
                if done:
                    del self.answers[stream]
                    break

    def outcome(self) -> str | None:
        """Why a connection that was closed has failed; None if it has not."""
        if self.refused:
            return self.refused
        if reason := self.quic.why_closed():
            return reason
        if self.quic.t_handshake_complete is None:
            return "the client closed the connection before the handshake was complete"
        if self.answers:
            return "the client closed the connection before all content was written"
        return None

    def report(self, error: str | None) -> dict[str, Any]:
        """Fields of the `connection` event."""
        t_close = now_ns()
        self.reported = True
        return {
            "index": self.index,
            "ok": error is None,
            "error": error,
            "hello_retry_request": False,  # aioquic has none
            "retry": self.retried,
            "t_accept": self.t_accept,
            "t_close": t_close,
            "bytes_sent": self.bytes_sent,
            **self.quic.report(),
            **self.traffic.report(CpuTime.now()),
        }


class Server:
    """All connections of the one socket."""

    def __init__(
        self,
        options: ServerOptions,
        configuration: QuicConfiguration,
        events: Events,
        sock: Socket,
        files: request.Files,
    ) -> None:
        self.options = options
        self.files = files
        self.configuration = configuration
        self.events = events
        self.socket = sock
        self.tokens = QuicRetryTokenHandler() if options.retry else None
        self.by_id: dict[bytes, Session] = {}
        self.sessions: dict[Session, None] = {}
        self.accepted = 0

    def run(self, waiter: Waiter) -> None:
        """Serve until SIGTERM or SIGINT."""
        while True:
            timers = [session.timer for session in self.sessions if session.timer is not None]
            seconds = max(0.0, min(timers) - time.monotonic()) if timers else None
            blocked = any(session.unsent for session in self.sessions)
            readable, _, stop = waiter.wait(self.socket, blocked, seconds)
            now = time.monotonic()
            touched = self._receive(now) if readable else {}
            for session in list(self.sessions):
                if session.timer is not None and now >= session.timer:
                    self._guarded(session, session.quic.handle_timer, now)
                    touched[session] = None
                elif session.unsent:
                    touched[session] = None
            for session in touched:
                self._guarded(session, self._transmit, session)
            if stop:  # after what had arrived until then, as the end of a connection
                break
        for session in list(self.sessions):
            if not session.reported:
                session.refused = "the server was stopped"
                session.quic.end(FAILED, session.refused)
                self._guarded(session, self._transmit, session)

    def _guarded(self, session: Session, act: Callable[..., None], *arguments: Any) -> None:
        """Do something with a connection unless it is over; whatever aioquic raises, it is this one that has failed."""
        if session not in self.sessions:
            return
        try:
            act(*arguments)
        except Exception as failure:  # noqa: BLE001
            if not session.reported:
                self.events.connection(session.report(one_line(f"{type(failure).__name__}: {failure}")))
            self._forget(session)

    def _receive(self, now: float) -> dict[Session, None]:
        """Take in datagrams; returns the connections they belong to."""
        touched: dict[Session, None] = {}
        taken = 0
        while taken < RECEIVE_AT_ONCE and (received := self.socket.receive()):
            datagrams, sender = received
            taken += len(datagrams)
            for datagram in datagrams:
                session = self._session(datagram, sender, now)
                if session is not None:
                    self._guarded(session, self._take, session, datagram, sender, now)
                    touched[session] = None
        return touched

    def _take(self, session: Session, datagram: bytes, sender: Address, now: float) -> None:
        session.receive(datagram, sender, now)
        if not session.quic.packets_received:
            # looked like a first Initial packet, but was none
            self._forget(session)
            self.accepted -= 1
            return
        self._events(session)

    def _session(self, datagram: bytes, sender: Address, now: float) -> Session | None:
        """The connection of a datagram, a new one for a first Initial packet, or None if it is to be dropped."""
        length = self.configuration.connection_id_length
        if not datagram:
            return None
        if not datagram[0] & 0x80:
            return self.by_id.get(datagram[1 : 1 + length])
        try:
            header = pull_quic_header(Buffer(data=datagram), host_cid_length=length)
        except ValueError:
            return None
        session = self.by_id.get(header.destination_cid)
        if session is not None or len(datagram) < SMALLEST_INITIAL:
            return session
        if header.version not in self.configuration.supported_versions:
            if header.packet_type != QuicPacketType.VERSION_NEGOTIATION:
                answer = encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=self.configuration.supported_versions,
                )
                self.socket.send([answer], sender)
            return None
        if header.packet_type != QuicPacketType.INITIAL:
            return None
        original, retried = header.destination_cid, False
        if self.tokens is not None:
            if not header.token:
                self._retry(self.tokens, header, sender, now)
                return None
            try:
                original = self.tokens.validate_token(
                    address=sender, destination_cid=header.destination_cid, token=header.token, now=now
                )
            except ValueError:
                return None
            retried = True
        start = Start(now_ns(), CpuTime.now())
        quic = library.Connection(
            self.options,
            configuration=self.configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=header.destination_cid if retried else None,
        )
        session = Session(self.accepted, quic, sender, retried, start, self.files)
        self.accepted += 1
        self.sessions[session] = None
        for name in (header.destination_cid, quic.host_cid):
            self._name(session, name)
        return session

    def _retry(self, tokens: QuicRetryTokenHandler, header: QuicHeader, sender: Address, now: float) -> None:
        """Answer an Initial packet with a Retry packet."""
        source = os.urandom(self.configuration.connection_id_length)
        token = tokens.create_token(
            address=sender,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=now,
        )
        packet = encode_quic_retry(
            version=header.version,
            source_cid=source,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self.socket.send([packet], sender)

    def _events(self, session: Session) -> None:
        while (event := session.quic.next_event()) is not None:
            if session.http3 is not None:
                for part in session.http3.take(event):
                    if part.request:
                        session.data(part.stream, part.request, end=True)
            elif isinstance(event, quic_events.StreamDataReceived):
                session.data(event.stream_id, event.data, event.end_stream)
            if isinstance(event, quic_events.HandshakeCompleted):
                session.quic.completed()
                session.traffic.counting = False
                session.quic.full_size()
                if self.options.alpn == HTTP3:
                    session.http3 = Http3(session.quic)
            elif isinstance(event, quic_events.ConnectionIdIssued):
                self._name(session, event.connection_id)
            elif isinstance(event, quic_events.ConnectionIdRetired):
                session.ids.discard(event.connection_id)
                self.by_id.pop(event.connection_id, None)
            elif isinstance(event, quic_events.ConnectionTerminated):
                session.terminated = True

    def _transmit(self, session: Session) -> None:
        """Send what a connection has to send, and see whether it is over."""
        self._events(session)
        if session.unsent:
            self._send(session, session.unsent)
        if not session.unsent:
            session.write()
            datagrams = [data for data, _ in session.quic.datagrams_to_send(time.monotonic())]
            if datagrams:
                session.peer = session.quic.get_peer_address()
                self._send(session, datagrams)
            self._events(session)
        session.timer = session.quic.get_timer()
        if session.quic.closed and not session.reported:
            self.events.connection(session.report(session.outcome()))
            if key_log := self.configuration.secrets_log_file:
                key_log.save()
        if session.terminated:
            self._forget(session)

    def _send(self, session: Session, datagrams: list[bytes]) -> None:
        sent = self.socket.send(datagrams, session.peer)
        session.traffic.sent(datagrams[:sent])
        session.unsent = datagrams[sent:]

    def _name(self, session: Session, connection_id: bytes) -> None:
        session.ids.add(connection_id)
        self.by_id[connection_id] = session

    def _forget(self, session: Session) -> None:
        del self.sessions[session]
        for connection_id in session.ids:
            self.by_id.pop(connection_id, None)
        session.quic.take_apart()


def main() -> int:
    """Run the program; returns its exit code."""
    description = library.description()
    options = cast(ServerOptions, from_command_line("server", description))
    events = Events("server", library.LIBRARY, library.VERSION, options.events)
    waiter = Waiter()
    try:
        sock = Socket(options.listen, options)
    except OSError as error:
        events.start(in_force(options) | {"aes_hardware": library.aes_hardware()})
        return events.error(f"--listen {options.listen[0]}:{options.listen[1]}: {error.strerror}")
    events.start(in_force(options) | sock.in_force() | {"aes_hardware": library.aes_hardware()})
    if reason := not_described(options, description) or library.unsupported(options):
        return events.unsupported(reason)
    try:
        key_log = library.KeyLog(options.key_log) if options.key_log else None
        configuration = library.configuration(options, key_log, is_client=False, idle_timeout=IDLE_TIMEOUT)
        chain = library.read("certificate", options.certificate, load_pem_x509_certificates)
        configuration.certificate, *configuration.certificate_chain = chain
        configuration.private_key = library.read("private-key", options.private_key, library.load_private_key)
    except (OSError, ValueError) as error:
        return events.error(one_line(error))
    if not library.belongs(configuration.private_key, configuration.certificate):
        return events.error(f"--private-key {options.private_key}: does not match the certificate")
    try:
        files = request.Files(options.www)
    except OSError as error:
        return events.error(f"--www {options.www}: {error.strerror}")
    library.set_up(options)
    gc.collect()
    gc.freeze()
    address, port = sock.socket.getsockname()[:2]
    events.ready(address, port)
    Server(options, configuration, events, sock, files).run(waiter)
    events.end()
    return OK
