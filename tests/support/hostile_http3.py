"""A server of HTTP/3 that answers as it should not, on the aioquic of a build.

Run by an interpreter of its own, with the packages of the build: directory of these, directory of the identity, what is
wrong, and a size in bytes. It prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

PACKAGES, IDENTITY, WRONG, SIZE = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sys.path.insert(0, PACKAGES)

from aioquic.asyncio import QuicConnectionProtocol, serve  # noqa: E402
from aioquic.buffer import encode_uint_var  # noqa: E402
from aioquic.h3.connection import H3_ALPN, H3Connection  # noqa: E402
from aioquic.h3.events import H3Event, HeadersReceived  # noqa: E402
from aioquic.quic.configuration import QuicConfiguration  # noqa: E402
from aioquic.quic.events import ProtocolNegotiated, QuicEvent  # noqa: E402

RECORDS = b"".join(b"quicbed%08x\n" % record for record in range(4093))
DATA = 0
"""Type of a frame (RFC 9114, 7.2.1)."""


def content(size: int) -> bytes:
    """The content of the contract."""
    return (RECORDS * (size // len(RECORDS) + 1))[:size]


class Answering(QuicConnectionProtocol):
    """One connection."""

    http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        for told in self.http.handle_event(event) if self.http else ():
            self.answer(told)
        self.transmit()

    def answer(self, told: H3Event) -> None:
        """Answer a request wrongly."""
        if not isinstance(told, HeadersReceived) or self.http is None:
            return
        stream, status, fields, size = told.stream_id, b"200", [], SIZE
        if WRONG == "status":
            status = b"404"
        elif WRONG == "huge headers":
            fields = [(b"x-%d" % number, b"v" * 1000) for number in range(1000)]
        elif WRONG == "short":
            size = SIZE - 1
            fields = [(b"content-length", b"%d" % SIZE)]
        elif WRONG == "long":
            size = SIZE + 1
        elif WRONG == "no headers":
            self._quic.send_stream_data(stream, encode_uint_var(DATA) + encode_uint_var(SIZE) + content(SIZE), True)
            return
        elif WRONG == "reset":
            self.http.send_headers(stream, [(b":status", status)])
            self._quic.reset_stream(stream, 0x10C)
            return
        self.http.send_headers(stream, [(b":status", status), *fields])
        self.http.send_data(stream, content(size), end_stream=True)


async def main() -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(IDENTITY / "server.pem", IDENTITY / "server.key")
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Answering)
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.Future()


asyncio.run(main())
