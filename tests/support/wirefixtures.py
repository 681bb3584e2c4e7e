"""Captures made by hand: pcap files, and the packets of QUIC and TCP+TLS transfers in every
variant.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quicbed.contract.content import content
from quicbed.wire.quicwire import (
    VERSION_1,
    VERSIONS,
    PacketKeys,
    PacketType,
    aes_mask,
    chacha20_mask,
    initial_keys,
    nonce,
)

CLIENT = ("10.0.0.2", 50_000)
SERVER = ("10.0.0.1", 4433)
Address = tuple[str, int]


def pcap(
    path: Path,
    frames: list[bytes],
    *,
    order: Literal["<", ">"] = "<",
    nanoseconds: bool = True,
    link: int = 1,
    snapshot: int = 262_144,
) -> Path:
    """Write frames, a millisecond apart, as a classic pcap file."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    data = struct.pack(order + "IHHIIII", magic, 2, 4, 0, 0, snapshot, link)
    for index, frame in enumerate(frames):
        seconds, milliseconds = divmod(index, 1000)
        fraction = milliseconds * (1_000_000 if nanoseconds else 1_000)
        kept = frame[:snapshot]
        data += struct.pack(order + "IIII", 1_700_000_000 + seconds, fraction, len(kept), len(frame)) + kept
    path.write_bytes(data)
    return path


def stamped(path: Path, frames: Sequence[tuple[int, bytes]], snapshot: int = 128) -> Path:
    """Write frames with their times in ns since 1970 as a classic pcap file."""
    data = struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, snapshot, 1)
    for moment, frame in frames:
        kept = frame[:snapshot]
        data += struct.pack("<IIII", *divmod(moment, 10**9), len(kept), len(frame)) + kept
    path.write_bytes(data)
    return path


def ip_packet(source: str, destination: str, protocol: int, body: bytes) -> bytes:
    """Return an IPv4 or IPv6 packet (checksum left out)."""
    a, b = ip_address(source), ip_address(destination)
    if a.version == 6:
        header = struct.pack("!IHBB", 6 << 28, len(body), protocol, 64)
    else:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0x4000, 64, protocol, 0)
    return header + a.packed + b.packed + body


def ethernet(packet: bytes, vlans: int = 0) -> bytes:
    """Return the Ethernet frame of an IP packet, below so many VLAN tags."""
    ethertype = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
    return bytes(range(12)) + b"\x81\x00\x00\x07" * vlans + ethertype + packet


def udp(source: Address, destination: Address, payload: bytes) -> bytes:
    """Return the frame of a UDP datagram."""
    header = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0)
    return ethernet(ip_packet(source[0], destination[0], 17, header + payload))


def tcp(source: Address, destination: Address, sequence: int, payload: bytes = b"", flags: int = 0x10) -> bytes:
    """Return the frame of a TCP segment (with 12 bytes of options)."""
    header = struct.pack("!HHIIBBHHH", *(source[1], destination[1]), sequence, 0, 0x80, flags, 9, 0, 0)
    return ethernet(ip_packet(source[0], destination[0], 6, header + b"\x01" * 12 + payload))


def varint(value: int) -> bytes:
    """Encode a variable-length integer in 2 or 4 bytes (RFC 9000, 16)."""
    if value < 1 << 14:
        return (value | 0x4000).to_bytes(2, "big")
    return (value | 0x80000000).to_bytes(4, "big")


@dataclass
class Protection:
    """How packets of one encryption level are protected."""

    keys: PacketKeys
    noop: bool = False
    header_protection: bool = True
    tag: bytes = b"\x2a" * 16

    def seal(self, header: bytes, number: int, size: int, payload: bytes) -> bytes:
        """Protect a packet whose ``header`` ends before the ``size``-byte packet number."""
        head = header + number.to_bytes(8, "big")[-size:]
        body = payload + self.tag if self.noop else self.keys.aead.encrypt(nonce(self.keys.iv, number), payload, head)
        packet = bytearray(head + body)
        if self.header_protection:
            at = len(header)
            sample = bytes(packet[at + 4 : at + 20])
            mask = (chacha20_mask if self.keys.chacha20 else aes_mask)(self.keys.header_protection, sample)
            packet[0] ^= mask[0] & (0x0F if packet[0] & 0x80 else 0x1F)
            for i in range(size):
                packet[at + i] ^= mask[1 + i]
        return bytes(packet)


def long_header_packet(
    kind: int,
    protection: Protection,
    destination: bytes,
    source: bytes,
    number: int,
    payload: bytes,
    version: int = VERSION_1,
) -> bytes:
    """Return an Initial (0) or Handshake (2) packet with a 2-byte packet number."""
    wanted = PacketType.INITIAL if kind == 0 else PacketType.HANDSHAKE
    (code,) = (code for code, one in VERSIONS[version].types.items() if one is wanted)
    header = bytes([0xC1 | code << 4]) + version.to_bytes(4, "big")
    header += bytes([len(destination)]) + destination + bytes([len(source)]) + source
    header += (b"\x00" if kind == 0 else b"") + varint(2 + len(payload) + 16)
    return protection.seal(header, number, 2, payload)


RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def server_hello(
    cipher_suite: int = 0x1301,
    group: int | None = 0x001D,
    random_bytes: bytes = bytes(32),
    *,
    resumed: bool = False,
) -> bytes:
    """Return a ServerHello message (RFC 8446, 4.1.3); with `RETRY_RANDOM` it is a HelloRetryRequest.

    One that is *resumed* takes the first pre-shared key that it is offered (RFC 8446, 4.2.11).
    """
    extensions = b"\x00\x2b\x00\x02\x03\x04"
    if group is not None:
        share = struct.pack("!H", group)
        if random_bytes != RETRY_RANDOM:
            share += b"\x00\x20" + bytes(range(32))
        extensions += struct.pack("!HH", 51, len(share)) + share
    if resumed:
        extensions += struct.pack("!HHH", 41, 2, 0)
    body = b"\x03\x03" + random_bytes + b"\x00" + struct.pack("!HBH", cipher_suite, 0, len(extensions)) + extensions
    return b"\x02" + len(body).to_bytes(3, "big") + body


def crypto_frame(data: bytes, offset: int = 0) -> bytes:
    """Return a CRYPTO frame (RFC 9000, 19.6)."""
    return b"\x06" + varint(offset) + varint(len(data)) + data


def some_keys(seed: str) -> PacketKeys:
    """Return keys nobody on the wire knows."""
    secret = hashlib.sha512(seed.encode()).digest()
    return PacketKeys(secret[:16], secret[16:28], secret[28:44])


@dataclass
class QuicTransfer:
    """A QUIC connection that transfers ``size`` bytes of content from server to client."""

    noop: bool = False
    header_protection: bool = True
    size: int = 65_536
    client_noop: bool | None = None
    client_header_protection: bool | None = None
    initial_standard: bool = True
    datagram: int = 1472
    client: Address = CLIENT
    server: Address = SERVER
    client_cid: bytes = b"\xc1\xc2\xc3\xc4\xc5\xc6\xc7\xc8"
    server_cid: bytes = b"\x51" * 16
    original_cid: bytes = bytes.fromhex("8394c8f03e515708")
    first_number: int = 0
    retry_cid: bytes | None = None
    issued_cid: bytes | None = None
    """An ID that the server issues with its first flight and the client uses from then on."""
    hello: bytes = server_hello()
    """The server's messages in Initial packets."""
    name: str = "connection"
    frames: list[bytes] = field(default_factory=list)

    def to_server(self, payload: bytes) -> None:
        """Send a datagram."""
        self.frames.append(udp(self.client, self.server, payload))

    def to_client(self, payload: bytes) -> None:
        """Send a datagram."""
        self.frames.append(udp(self.server, self.client, payload))

    def run(self) -> list[bytes]:
        """Return the frames of the whole connection."""
        dice = random.Random(self.name)
        client = Protection(
            some_keys(self.name + " client"),
            self.noop if self.client_noop is None else self.client_noop,
            self.header_protection if self.client_header_protection is None else self.client_header_protection,
        )
        server = Protection(some_keys(self.name + " server"), self.noop, self.header_protection)
        handshake = Protection(some_keys(self.name + " handshake"))
        first_cid = self.original_cid
        if self.retry_cid is not None:
            self.to_server(self._client_initial(first_cid, 0, dice))
            cids = bytes([len(self.client_cid)]) + self.client_cid
            cids += bytes([len(self.retry_cid)]) + self.retry_cid
            self.to_client(b"\xf0\x00\x00\x00\x01" + cids + b"token" + dice.randbytes(16))
            first_cid = self.retry_cid
        self.to_server(self._client_initial(first_cid, 1, dice))
        initial = Protection(initial_keys(first_cid).server, noop=not self.initial_standard)
        ack = b"\x02\x01\x00\x00\x01"
        self.to_client(
            long_header_packet(0, initial, self.client_cid, self.server_cid, 0, ack + crypto_frame(self.hello))
            + long_header_packet(2, handshake, self.client_cid, self.server_cid, 0, dice.randbytes(900))
        )
        sent = self.first_number
        server_cid, first = self.server_cid, b""
        if self.issued_cid is not None:
            server_cid = self.issued_cid
            keys = Protection(initial_keys(first_cid).client, noop=not self.initial_standard)
            first = long_header_packet(0, keys, server_cid, self.client_cid, 2, ack)
        self.to_server(
            first
            + long_header_packet(2, handshake, server_cid, self.client_cid, 0, dice.randbytes(60))
            + self._short(client, server_cid, sent, b"\x0a\x00GET /%d\r\n" % self.size)
        )
        room = self.datagram - 1 - len(self.client_cid) - 2 - 16 - 8
        for number, offset in enumerate(range(0, self.size, room), self.first_number):
            data = content(min(room, self.size - offset), offset)
            stream = b"\x0e\x00" + varint(offset) + varint(len(data)) + data
            self.to_client(self._short(server, self.client_cid, number, stream))
            if number % 2:
                sent += 1
                ack = b"\x02" + varint(number) + varint(dice.randrange(1000)) + b"\x00"
                ack += varint(number - self.first_number)
                self.to_server(self._short(client, server_cid, sent, ack))
        return self.frames

    def _client_initial(self, destination: bytes, number: int, dice: random.Random) -> bytes:
        keys = initial_keys(destination).client
        protection = Protection(keys, noop=not self.initial_standard)
        hello = b"\x06" + dice.randbytes(280) + bytes(860)
        return long_header_packet(0, protection, destination, self.client_cid, number, hello)

    def _short(self, protection: Protection, cid: bytes, number: int, payload: bytes) -> bytes:
        return protection.seal(b"\x41" + cid, number, 2, payload)


def tls_transfer(
    *,
    noop: bool = False,
    size: int = 65_536,
    client_noop: bool | None = None,
    segment: int = 1448,
    sequence: int = 0xFFFFFF00,
    client: Address = CLIENT,
    server: Address = SERVER,
    messages: tuple[bytes, ...] = (server_hello(),),
) -> list[bytes]:
    """Return the frames of a TLS 1.3 transfer; the sequence numbers wrap around."""
    dice = random.Random("tls")

    def record(data: bytes, number: int, keys: PacketKeys, clear: bool) -> bytes:
        inner = data + b"\x17"
        header = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        if clear:
            return header + inner + b"\x2a" * 16
        return header + AESGCM(keys.key).encrypt(nonce(keys.iv, number), inner, header)

    def hello(size: int) -> bytes:
        return b"\x16\x03\x03" + size.to_bytes(2, "big") + dice.randbytes(size)

    up_keys, down_keys = some_keys("tls client"), some_keys("tls server")
    up_clear = noop if client_noop is None else client_noop
    request = b"GET /%d HTTP/1.1\r\nHost: server\r\n\r\n" % size
    up = [hello(250)]
    up += [record(d, i, up_keys, up_clear) for i, d in enumerate([bytes(36), request, b"\x01\x00"])]
    # change_cipher_spec for middleboxes follows the server's first message (RFC 8446, D.4)
    first, *others = [b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message for message in messages]
    down = [first, b"\x14\x03\x03\x00\x01\x01", *others, record(dice.randbytes(1200), 0, down_keys, noop)]
    body = b"HTTP/1.1 200 OK\r\n\r\n" + content(size)
    for number, at in enumerate(range(0, len(body), 16_384), 1):
        down.append(record(body[at : at + 16_384], number, down_keys, noop))
    stream = b"".join(down)
    frames = [tcp(client, server, sequence, flags=0x02), tcp(server, client, sequence, flags=0x12)]
    at = sequence + 1
    for data in up:
        frames.append(tcp(client, server, at & 0xFFFFFFFF, data))
        at += len(data)
    for offset in range(0, len(stream), segment):
        position = (sequence + 1 + offset) & 0xFFFFFFFF
        frames.append(tcp(server, client, position, stream[offset : offset + segment]))
        frames.append(tcp(client, server, at & 0xFFFFFFFF))
    return frames
