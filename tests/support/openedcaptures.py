"""Connections made by hand whose every byte is known, with the key logs that open them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from quicbed.contract.content import content
from quicbed.wire.quicwire import TAG_BYTES, VERSION_1, initial_keys, nonce, traffic_keys
from wirefixtures import CLIENT, SERVER, Protection, crypto_frame, long_header_packet, server_hello, tcp, udp, varint

RANDOM = bytes(range(32))
CLIENT_HELLO = b"\x01\x00\x00\x64\x03\x03" + RANDOM + bytes(66)  # 104 bytes
EXTENSIONS = b"\x08\x00\x00\x02\x00\x00"
CERTIFICATE = b"\x0b\x00\x01\xf4" + bytes(500)
FINISHED = b"\x14\x00\x00\x20" + bytes(32)
TICKET = b"\x04\x00\x00\x10" + bytes(16)
REQUEST = b"GET /3000\r\n"
SIZE = 3000
ACK = b"\x02\x00\x00\x00\x00"
DRAFT_27 = 0xFF00001B


def secret(label: str, suite: int) -> bytes:
    return hashlib.sha512(label.encode()).digest()[: 48 if suite == 0x1302 else 32]


def key_log(suite: int) -> str:
    labels = [
        f"{role}_{end}" for role in ("CLIENT", "SERVER") for end in ("HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0")
    ]
    return "".join(f"{label} {RANDOM.hex()} {secret(label, suite).hex()}\n" for label in labels)


@dataclass
class Quic:
    """A QUIC connection that fetches `SIZE` bytes; six datagrams, the server's with connection IDs of 8 bytes."""

    suite: int = 0x1301
    version: int = VERSION_1
    noop: bool = False
    first_version: int | None = None
    """Of the client's first packet, if another one is negotiated (RFC 9368, 2.3)."""
    keeps_keys: bool = False
    """Whether the client's other Initial packets have keys of that version for all that."""

    def frames(self) -> list[bytes]:
        client_cid, server_cid, original = b"\xc1" * 8, b"\x51" * 8, b"\x83" * 8

        def packet(kind: int, role: str, number: int, payload: bytes) -> bytes:
            first = kind == 0 and role == "CLIENT" and number == 0
            version = self.first_version or self.version if first else self.version
            keeps = self.keeps_keys and role == "CLIENT"
            initial = initial_keys(original, (self.first_version or version) if keeps else version)
            to, source = (server_cid, client_cid) if role == "CLIENT" else (client_cid, server_cid)
            if kind == 0:
                keys = initial.client if role == "CLIENT" else initial.server
                to = original if number == 0 and role == "CLIENT" else to
                return long_header_packet(0, Protection(keys), to, source, number, payload, version)
            label = f"{role}_{'HANDSHAKE_TRAFFIC_SECRET' if kind == 2 else 'TRAFFIC_SECRET_0'}"
            keys = traffic_keys(secret(label, self.suite), self.suite, version=version)
            protection = Protection(keys, noop=self.noop, header_protection=not self.noop)
            if kind == 2:
                return long_header_packet(2, protection, to, source, number, payload, version)
            return protection.seal(b"\x41" + to, number, 2, payload)

        def stream(offset: int, data: bytes) -> bytes:
            return b"\x0e\x00" + varint(offset) + varint(len(data)) + data

        hello = server_hello(self.suite)
        flight = EXTENSIONS + CERTIFICATE + FINISHED
        return [
            udp(CLIENT, SERVER, packet(0, "CLIENT", 0, crypto_frame(CLIENT_HELLO) + bytes(1000))),
            udp(
                SERVER,
                CLIENT,
                packet(0, "SERVER", 0, ACK + crypto_frame(hello)) + packet(2, "SERVER", 0, crypto_frame(flight)),
            ),
            udp(
                CLIENT,
                SERVER,
                (packet(0, "CLIENT", 1, ACK) if self.keeps_keys else b"")
                + packet(2, "CLIENT", 0, crypto_frame(FINISHED))
                + packet(3, "CLIENT", 0, stream(0, REQUEST)),
            ),
            udp(SERVER, CLIENT, packet(3, "SERVER", 0, b"\x1e" + stream(0, content(1000)))),
            udp(SERVER, CLIENT, packet(3, "SERVER", 1, crypto_frame(TICKET) + stream(1000, content(2000, 1000)))),
            udp(CLIENT, SERVER, packet(3, "CLIENT", 1, b"\x1d\x00\x00" + bytes(9))),
        ]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n"
GET = b"GET /3000 HTTP/1.1\r\nHost: server\r\n\r\n"
SYN, ACK_FLAG, FIN = 0x02, 0x10, 0x01


@dataclass
class Tls:
    """The same over TCP with TLS 1.3; the response is one record in three segments, the second of which comes twice."""

    suite: int = 0x1301
    noop: bool = False

    def frames(self) -> list[bytes]:
        numbers: dict[str, int] = {}

        def plain(message: bytes) -> bytes:
            return b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message

        def protected(label: str, data: bytes, kind: int) -> bytes:
            header = b"\x17\x03\x03" + (len(data) + 1 + TAG_BYTES).to_bytes(2, "big")
            keys = traffic_keys(secret(label, self.suite), self.suite, quic=False)
            number = numbers[label] = numbers.get(label, -1) + 1
            inner = data + bytes([kind])
            return header + (
                inner + b"\x2a" * TAG_BYTES if self.noop else keys.aead.encrypt(nonce(keys.iv, number), inner, header)
            )

        flight = plain(server_hello(self.suite)) + protected(
            "SERVER_HANDSHAKE_TRAFFIC_SECRET", EXTENSIONS + CERTIFICATE + FINISHED, 22
        )
        finished = protected("CLIENT_HANDSHAKE_TRAFFIC_SECRET", FINISHED, 22)
        request = protected("CLIENT_TRAFFIC_SECRET_0", GET, 23)
        body = protected("SERVER_TRAFFIC_SECRET_0", HEAD + content(SIZE), 23)
        hello = plain(CLIENT_HELLO)
        up, down = 2**32 - 50, 7  # the client's numbers wrap around
        found = [
            tcp(CLIENT, SERVER, up, flags=SYN),
            tcp(SERVER, CLIENT, down, flags=SYN | ACK_FLAG),
            tcp(CLIENT, SERVER, up + 1, hello),
            tcp(SERVER, CLIENT, down + 1, flight),
            tcp(CLIENT, SERVER, (up + 1 + len(hello)) % 2**32, finished + request),
        ]
        at = down + 1 + len(flight)
        for begin, end in ((0, 1400), (1400, 2800), (1400, 2800), (2800, len(body))):
            found.append(tcp(SERVER, CLIENT, at + begin, body[begin:end]))
        last = (up + 1 + len(hello) + len(finished) + len(request)) % 2**32
        return [*found, tcp(CLIENT, SERVER, last), tcp(SERVER, CLIENT, at + len(body), flags=FIN | ACK_FLAG)]
