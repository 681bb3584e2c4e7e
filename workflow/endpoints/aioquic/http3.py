"""HTTP/3 of aioquic (RFC 9114): one request a stream, answered with content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.events import QuicEvent, StreamDataReceived

from .library import Connection

MAX_FIELD_SECTION = 16384
"""Bytes that may arrive on a stream before its header section is complete, for which aioquic has no limit."""


@dataclass
class Part:
    """What arrived on a stream: a request, or a part of an answer."""

    stream: int
    request: bytes = b""
    """Method and path, as `hq-interop` has them."""
    body: bytes = b""
    end: bool = False
    problem: str | None = None
    """Why there is no content, as one line."""


class Http3:
    """HTTP/3 on a connection whose handshake is complete."""

    def __init__(self, quic: Connection) -> None:
        self._quic = quic
        self._layer = H3Connection(quic)
        self._client = quic.configuration.is_client
        self._arrived: dict[int, int] = {}
        """Bytes of streams without a header section so far."""
        self._headed: set[int] = set()
        """Streams with one."""
        self._accepted: set[int] = set()
        """Streams of a client whose answer has status 200."""

    def ask(self, stream: int, authority: str, path: bytes) -> None:
        """Ask for a path."""
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority.encode()), (b":path", path)]
        self._layer.send_headers(stream, fields, end_stream=True)

    def send(self, stream: int, length: int, part: bytes, *, begin: bool, end: bool) -> None:
        """Answer with the next part of a body of `length` bytes, the header section before the first."""
        if begin:
            self._layer.send_headers(stream, [(b":status", b"200"), (b"content-length", b"%d" % length)])
        self._layer.send_data(stream, part, end_stream=end)

    def take(self, event: QuicEvent) -> Iterator[Part]:
        """What an event of QUIC brings. Where it breaks the rules of HTTP/3 the connection is closed."""
        for told in self._layer.handle_event(event):
            if isinstance(told, HeadersReceived):
                yield from self._headers(told)
            elif isinstance(told, DataReceived) and (not self._client or told.stream_id in self._accepted):
                yield Part(told.stream_id, body=told.data, end=told.stream_ended)
            elif isinstance(told, DataReceived) and told.stream_ended and told.stream_id not in self._headed:
                yield Part(told.stream_id, problem="HTTP/3: the answer has no status")
        if isinstance(event, StreamDataReceived):
            self._bound(event)

    def _headers(self, told: HeadersReceived) -> Iterator[Part]:
        stream, fields = told.stream_id, dict(told.headers)
        if stream in self._headed:  # trailers
            if told.stream_ended:
                yield Part(stream, end=True)
            return
        status = fields.get(b":status", b"")
        if status.startswith(b"1"):  # an interim response (RFC 9114, section 4.1)
            return
        self._headed.add(stream)
        self._arrived.pop(stream, None)
        if not self._client:
            yield Part(stream, request=fields.get(b":method", b"") + b" " + fields.get(b":path", b""))
        elif status == b"200":
            self._accepted.add(stream)
            yield Part(stream, end=told.stream_ended)
        else:
            yield Part(stream, problem=f"HTTP/3: status {status.decode(errors='replace')} instead of 200")

    def _bound(self, event: StreamDataReceived) -> None:
        """Close a connection whose peer sends and sends without a header section."""
        stream = event.stream_id
        if stream % 4 or stream in self._headed:
            return
        self._arrived[stream] = self._arrived.get(stream, 0) + len(event.data)
        if self._arrived[stream] > MAX_FIELD_SECTION:
            reason = f"header section of more than {MAX_FIELD_SECTION} bytes"
            self._quic.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase=reason)
