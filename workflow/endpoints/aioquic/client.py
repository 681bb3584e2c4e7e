"""Downloads content over fresh connections, one after the other, and reports each of them."""

from __future__ import annotations

import gc
import ssl
import time
from typing import Any, cast

from cryptography.hazmat.primitives.serialization import Encoding
from quicbed_contract import FAILED, HTTP3, OK, request
from quicbed_contract.clock import CpuTime, now_ns
from quicbed_contract.content import Checker, Saver
from quicbed_contract.events import Events, one_line
from quicbed_contract.options import ClientOptions, from_command_line, in_force
from quicbed_contract.options import unsupported as not_described
from quicbed_contract.udp import Socket, Waiter

from aioquic.quic import events as quic_events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import load_pem_x509_certificates

from . import library
from .http3 import Http3

RECEIVE_AT_ONCE = 32
"""Datagrams taken in before it is the turn of what there is to send, at least acknowledgements."""


class Download:
    """One connection, from its ClientHello to its end."""

    def __init__(self, options: ClientOptions, configuration: QuicConfiguration, index: int) -> None:
        self.options = options
        self.socket = Socket.for_peer(options.connect, options)
        self.quic = library.Connection(options, configuration=configuration)
        self.content = Saver(options.save) if options.save else Checker(options.bytes or 0)
        self.traffic = library.Traffic()
        self.stream: int | None = None
        self.http3: Http3 | None = None
        self.finished = False
        self.refused: str | None = None
        self.record: dict[str, Any] = {"index": index}
        self._unsent: list[bytes] = []

    def run(self, waiter: Waiter) -> dict[str, Any]:
        """Make the connection and download; returns the fields of its `connection` event."""
        error = None
        deadline = time.monotonic() + self.options.timeout
        try:
            self._begin()
            error = self._drive(waiter, deadline)
        except Exception as failure:  # noqa: BLE001 - whatever aioquic raises, it is this connection that failed
            error = one_line(f"{type(failure).__name__}: {failure}")
        end = CpuTime.now()
        self._close(error)
        record = self.record | self.quic.report() | self.traffic.report(end)
        wrong = self.content.verdict()
        error = error or wrong
        record |= {
            "ok": error is None,
            "error": error,
            "retry": self.quic._retry_count > 0,
            "t_close": now_ns(),
            "bytes_requested": self.content.expected,
            "bytes_received": self.content.received,
            "content_ok": wrong is None,
        }
        self.socket.close()
        self.quic.take_apart()
        return record

    def _begin(self) -> None:
        now = time.monotonic()
        self.quic.connect(self.options.connect, now)
        datagrams = [data for data, _ in self.quic.datagrams_to_send(now)]
        self.traffic.cpu = CpuTime.now()
        self.record["t_client_hello"] = now_ns()
        self._send(datagrams)

    def _drive(self, waiter: Waiter, deadline: float) -> str | None:
        """Receive and send until everything is there; returns why it is not."""
        while True:
            timer = self.quic.get_timer()
            now = time.monotonic()
            until = deadline if timer is None else min(timer, deadline)
            readable, _, stop = waiter.wait(self.socket, bool(self._unsent), max(0.0, until - now))
            now = time.monotonic()
            if readable:
                self._receive(now)
            if timer is not None and now >= timer:
                self.quic.handle_timer(now)
            self._events()
            if self.refused:
                return self.refused
            if self.finished:
                return None
            self._transmit(time.monotonic())
            if self.quic.closed:
                return self.quic.why_closed() or "the server closed the connection before all content arrived"
            if stop:
                return "the client was stopped"
            if now >= deadline:
                done = "download" if self.quic.t_handshake_complete else "handshake"
                return f"{done} not finished within {self.options.timeout:g} s"

    def _receive(self, now: float) -> None:
        taken = 0
        while taken < RECEIVE_AT_ONCE and (received := self.socket.receive()):
            datagrams, sender = received
            taken += len(datagrams)
            for datagram in datagrams:
                self.traffic.received(datagram)
                self.quic.receive_datagram(datagram, sender, now)
                self._events()

    def _events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            if self.http3 is not None:
                self._answered(self.http3, event)
            if isinstance(event, quic_events.StreamDataReceived):
                if event.stream_id == self.stream and self.http3 is None:
                    self._data(event.data, event.end_stream)
            elif isinstance(event, quic_events.HandshakeCompleted):
                self.quic.completed()
                self.traffic.counting = False
                self.stream = self.quic.get_next_available_stream_id()
                if self.options.alpn == HTTP3:
                    self.http3 = Http3(self.quic)
                    self.http3.ask(self.stream, self.options.server_name or "", self._path())
                else:
                    self.quic.send_stream_data(self.stream, b"GET %s\r\n" % self._path(), end_stream=True)
            elif isinstance(event, quic_events.StreamReset) and event.stream_id == self.stream:
                self.refused = f"the server reset the stream with error 0x{event.error_code:x}"

    def _path(self) -> bytes:
        if self.options.save:
            return b"/%s" % request.name_of(self.options.save).encode()
        return b"/%d" % self.content.expected

    def _answered(self, http3: Http3, event: quic_events.QuicEvent) -> None:
        """Take what HTTP/3 makes of an event."""
        for part in http3.take(event):
            if part.stream != self.stream:
                continue
            if part.problem:
                self.refused = part.problem
                return
            self._data(part.body, part.end)

    def _data(self, data: bytes, end: bool) -> None:
        now = now_ns()
        if data:
            self.record.setdefault("t_first_byte", now)
            self.record["t_last_byte"] = now
            self.content.receive(data)
        self.finished = self.finished or end

    def _transmit(self, now: float) -> None:
        """Send what there is; the end of the handshake and the request still go in datagrams of the Initial size."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(unsent)
            if self._unsent:
                return
        datagrams = [data for data, _ in self.quic.datagrams_to_send(now)]
        if not datagrams:
            return
        self._send(datagrams)
        if self.stream is not None and "t_request_sent" not in self.record and self.quic.sent(self.stream):
            self.record["t_request_sent"] = now_ns()
            self.quic.full_size()

    def _send(self, datagrams: list[bytes]) -> None:
        sent = self.socket.send(datagrams, self.options.connect)
        self.traffic.sent(datagrams[:sent])
        self._unsent = datagrams[sent:]

    def _close(self, error: str | None) -> None:
        """Tell the server that it is over; nothing can be done where that fails too."""
        try:
            self.quic.end(FAILED if error else OK)
            for datagram, _ in self.quic.datagrams_to_send(time.monotonic()):
                self.socket.send([datagram], self.options.connect)
        except Exception:  # noqa: BLE001, S110 - the connection has failed, and its reason is known
            pass


def main() -> int:
    """Run the program; returns its exit code."""
    description = library.description()
    options = cast(ClientOptions, from_command_line("client", description))
    events = Events("client", library.LIBRARY, library.VERSION, options.events)
    told = in_force(options)
    probe = Socket.for_peer(options.connect, options)
    events.start(told | probe.in_force() | {"aes_hardware": library.aes_hardware()})
    probe.close()
    if reason := not_described(options, description) or library.unsupported(options):
        return events.unsupported(reason)
    try:
        key_log = library.KeyLog(options.key_log) if options.key_log else None
        trusted = library.read("ca", options.ca, load_pem_x509_certificates) if options.verify else []
    except (OSError, ValueError) as error:
        return events.error(one_line(error))
    library.set_up(options)
    configuration = library.configuration(options, key_log, is_client=True, idle_timeout=options.timeout)
    configuration.server_name = options.server_name
    if options.verify:
        configuration.load_verify_locations(
            cadata=b"".join(certificate.public_bytes(Encoding.PEM) for certificate in trusted)
        )
    else:
        configuration.verify_mode = ssl.CERT_NONE
    waiter = Waiter()
    gc.collect()
    gc.freeze()
    for index in range(options.connections):
        events.connection(Download(options, configuration, index).run(waiter))
        if key_log:
            key_log.save()
    events.end()
    return FAILED if events.failed else OK
