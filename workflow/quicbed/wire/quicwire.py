"""QUIC version 1 on the wire: packet headers (RFC 9000) and Initial protection (RFC 9001, 5.2).

Only what an observer without secrets can know. The fixed bit is not looked at, because endpoints
that both support it may send it as 0 (RFC 9287).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

VERSION_1 = 0x00000001
MAXIMUM_CID_BYTES = 20
"""Longest connection ID of QUIC version 1 (RFC 9000, 17.2)."""

SAMPLE_BYTES = 16
"""Length of the ciphertext sample that header protection uses (RFC 9001, 5.4.2)."""

TAG_BYTES = 16
"""Length of the authentication tag of every QUIC AEAD (RFC 9001, 5.3)."""

_INITIAL_SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")


class WireError(Exception):
    """Bytes that are no QUIC packet, or one that is not protected with the keys at hand."""


class PacketType(Enum):
    """Kinds of QUIC packets (RFC 9000, 17)."""

    INITIAL = "Initial"
    ZERO_RTT = "0-RTT"
    HANDSHAKE = "Handshake"
    RETRY = "Retry"
    VERSION_NEGOTIATION = "Version Negotiation"
    ONE_RTT = "1-RTT"


_LONG_TYPES = (
    PacketType.INITIAL,
    PacketType.ZERO_RTT,
    PacketType.HANDSHAKE,
    PacketType.RETRY,
)


@dataclass(frozen=True, slots=True)
class QuicPacket:
    """One packet, still protected."""

    type: PacketType
    data: bytes
    """The whole packet: header, packet number, payload, tag."""
    destination_cid: bytes
    source_cid: bytes | None
    """``None`` in a 1-RTT packet."""
    version: int | None
    """``None`` in a 1-RTT packet."""
    packet_number_offset: int | None
    """Where the packet number begins in ``data``; ``None`` for Retry and Version Negotiation, which
    have none.
    """

    @property
    def sample(self) -> bytes:
        """The sample header protection is computed from, shorter than 16 bytes if the packet is too
        short (RFC 9001, 5.4.2).
        """
        if self.packet_number_offset is None:
            return b""
        start = self.packet_number_offset + 4
        return self.data[start : start + SAMPLE_BYTES]


@dataclass(frozen=True, slots=True)
class Datagram:
    """The packets coalesced in a UDP datagram (RFC 9000, 12.2)."""

    packets: tuple[QuicPacket, ...]
    trailing: bytes
    """What follows the last packet and is not a packet of the same connection (padding, garbage).
    """


class _Cursor:
    """Reads fields of a packet one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.offset:
            raise WireError(f"{what} needs {size} bytes at byte {self.offset}, {len(self.data) - self.offset} are left")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def varint(self, what: str) -> int:
        """Read a variable-length integer (RFC 9000, 16)."""
        first = self.take(1, what)[0]
        rest = self.take((1 << (first >> 6)) - 1, what)
        return int.from_bytes(bytes([first & 0x3F]) + rest, "big")

    def cid(self, what: str) -> bytes:
        return self.take(self.take(1, what)[0], what)


def parse_datagram(data: bytes, short_cid_bytes: int | None = None) -> Datagram:
    """Split a UDP payload into QUIC packets.

    ``short_cid_bytes`` is the length of the connection ID that the receiver of this datagram chose,
    which a short header does not tell; ``None`` where it is not known yet. Raises
    :class:`WireError` if the first packet cannot be parsed. Later bytes that are not a packet to
    the same connection ID are returned as ``trailing``.
    """
    if not data:
        raise WireError("an empty datagram holds no packet")
    first = _parse_packet(data, short_cid_bytes)
    packets = [first]
    rest = data[len(first.data) :]
    while rest and any(rest):
        try:
            packet = _parse_packet(rest, len(first.destination_cid))
        except WireError:
            break
        # RFC 9000, 12.2: packets with different connection IDs must not be coalesced.
        if packet.destination_cid != first.destination_cid:
            break
        packets.append(packet)
        rest = rest[len(packet.data) :]
    return Datagram(tuple(packets), rest)


def _parse_packet(data: bytes, short_cid_bytes: int | None) -> QuicPacket:
    """Parse the packet at the start of ``data``."""
    if data[0] & 0x80:
        return _parse_long(data)
    if short_cid_bytes is None:
        raise WireError("a short header, and the length of its connection ID is not known")
    if len(data) < 1 + short_cid_bytes + 1 + TAG_BYTES:
        raise WireError(f"{len(data)} bytes are too short for a 1-RTT packet")
    return QuicPacket(PacketType.ONE_RTT, data, data[1 : 1 + short_cid_bytes], None, None, 1 + short_cid_bytes)


def _parse_long(data: bytes) -> QuicPacket:
    cursor = _Cursor(data)
    first = cursor.take(1, "the first byte")[0]
    version = int.from_bytes(cursor.take(4, "the version"), "big")
    destination_cid = cursor.cid("the destination connection ID")
    source_cid = cursor.cid("the source connection ID")
    if version == 0:
        return QuicPacket(PacketType.VERSION_NEGOTIATION, data, destination_cid, source_cid, version, None)
    if version != VERSION_1:
        raise WireError(f"QUIC version 0x{version:08x}, only version 1 is known")
    if max(len(destination_cid), len(source_cid)) > MAXIMUM_CID_BYTES:
        raise WireError(f"a connection ID of more than {MAXIMUM_CID_BYTES} bytes")
    packet_type = _LONG_TYPES[first >> 4 & 0x03]
    if packet_type is PacketType.RETRY:
        return QuicPacket(packet_type, data, destination_cid, source_cid, version, None)
    if packet_type is PacketType.INITIAL:
        cursor.take(cursor.varint("the token length"), "the token")
    length = cursor.varint("the length")
    packet_number_offset = cursor.offset
    cursor.take(length, "the packet number and payload")
    return QuicPacket(
        packet_type,
        data[: cursor.offset],
        destination_cid,
        source_cid,
        version,
        packet_number_offset,
    )


def decode_packet_number(largest: int, truncated: int, size: int) -> int:
    """Recover a packet number from its ``size`` low bytes, given the largest one seen (RFC 9000,
    A.3; -1 for none).
    """
    expected = largest + 1
    window = 1 << (8 * size)
    candidate = (expected & ~(window - 1)) | truncated
    if candidate <= expected - window // 2 and candidate < (1 << 62) - window:
        return candidate + window
    if candidate > expected + window // 2 and candidate >= window:
        return candidate - window
    return candidate


@dataclass(frozen=True, slots=True)
class PacketKeys:
    """Keys of one direction at one encryption level (RFC 9001, 5.1)."""

    key: bytes
    iv: bytes
    header_protection: bytes


@dataclass(frozen=True, slots=True)
class InitialKeys:
    """Keys of the Initial packets of a connection."""

    client: PacketKeys
    server: PacketKeys


def _expand_label(secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label with an empty context (RFC 8446, 7.1)."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return HKDFExpand(SHA256(), size, info).derive(secret)


@lru_cache(maxsize=1024)
def initial_keys(destination_cid: bytes) -> InitialKeys:
    """Derive the Initial keys from the connection ID of the client's first Initial, or of a Retry
    (RFC 9001, 5.2).
    """
    secret = hmac.new(_INITIAL_SALT, destination_cid, hashlib.sha256).digest()

    def direction(label: str) -> PacketKeys:
        traffic = _expand_label(secret, label, 32)
        return PacketKeys(
            _expand_label(traffic, "quic key", 16),
            _expand_label(traffic, "quic iv", 12),
            _expand_label(traffic, "quic hp", 16),
        )

    return InitialKeys(direction("client in"), direction("server in"))


def aes_mask(key: bytes, sample: bytes) -> bytes:
    """Return the five mask bytes of AES-based header protection (RFC 9001, 5.4.3)."""
    # One block of ECB is the AES permutation itself, as the RFC asks for.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(sample)[:5]


def nonce(iv: bytes, packet_number: int) -> bytes:
    """Return the AEAD nonce of a packet (RFC 9001, 5.3)."""
    return (int.from_bytes(iv, "big") ^ packet_number).to_bytes(len(iv), "big")


def unprotect(packet: QuicPacket, keys: PacketKeys) -> tuple[int, bytes]:
    """Remove AES header protection and AES-GCM from a packet; return its packet number and
    plaintext.

    The packet number is taken as it is encoded, which is right as long as fewer than 2**(8 * size -
    1) packets came before. Raises :class:`WireError` if the tag is not right for these keys.
    """
    start = packet.packet_number_offset
    sample = packet.sample
    if start is None or len(sample) < SAMPLE_BYTES:
        raise WireError(f"the {packet.type.value} packet has no protected payload")
    protection = aes_mask(keys.header_protection, sample)
    first_bits = 0x1F if packet.type is PacketType.ONE_RTT else 0x0F
    header = bytearray(packet.data[: start + 4])
    header[0] ^= protection[0] & first_bits
    size = (header[0] & 0x03) + 1
    for i in range(size):
        header[start + i] ^= protection[1 + i]
    header = header[: start + size]
    number = int.from_bytes(header[start:], "big")
    try:
        plaintext = AESGCM(keys.key).decrypt(nonce(keys.iv, number), packet.data[start + size :], bytes(header))
    except InvalidTag:
        raise WireError(f"the tag of the {packet.type.value} packet is not right for these keys") from None
    return number, plaintext


def crypto_stream(payloads: Iterable[bytes]) -> bytes:
    """Return the data in the CRYPTO frames of the packets of one encryption level, from the first byte to the first
    that is missing (RFC 9000, 19.6).

    ``payloads`` are plaintexts of Initial packets, in any order; one with other frames counts up to the first of them.
    """
    pieces: list[tuple[int, bytes]] = []
    for payload in payloads:
        try:
            _crypto_frames(payload, pieces)
        except WireError:
            continue
    stream = b""
    for offset, data in sorted(pieces):
        if offset > len(stream):
            break
        stream += data[len(stream) - offset :]
    return stream


def _crypto_frames(payload: bytes, pieces: list[tuple[int, bytes]]) -> None:
    """Add offset and data of each CRYPTO frame to ``pieces``."""
    cursor = _Cursor(payload)
    while cursor.offset < len(payload):
        match cursor.varint("a frame type"):
            case 0x00 | 0x01:  # PADDING, PING
                pass
            case 0x02 | 0x03 as kind:  # ACK
                cursor.varint("the largest acknowledged")
                cursor.varint("the ACK delay")
                ranges = cursor.varint("the number of ACK ranges")
                for _ in range(1 + 2 * ranges + (3 if kind == 0x03 else 0)):
                    cursor.varint("an ACK range or ECN count")
            case 0x06:  # CRYPTO
                offset = cursor.varint("an offset")
                pieces.append((offset, cursor.take(cursor.varint("a length"), "CRYPTO data")))
            case kind:
                raise WireError(f"a frame of type 0x{kind:x}, which is not read here")


def open_initial(packet: QuicPacket, cids: Iterable[bytes], *, from_server: bool) -> bytes | None:
    """Return the plaintext of an Initial packet whose keys are made from one of these connection IDs.

    ``None`` if it decrypts with the keys of none of them (RFC 9001, 5.2).
    """
    for cid in cids:
        keys = initial_keys(cid)
        try:
            return unprotect(packet, keys.server if from_server else keys.client)[1]
        except WireError:
            continue
    return None
