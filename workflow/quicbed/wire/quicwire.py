"""QUIC on the wire: packet headers and frames (RFC 9000) and packet protection (RFC 9001, 5).

What versions differ in is in versions.csv, of which the reader in workflow/capture is made too: version 1, version 2
(RFC 9369) and late drafts, which published captures have. The fixed bit is not looked at, because endpoints that both
support it may send it as 0 (RFC 9287).
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

READS = ("workflow/quicbed/wire/versions.csv",)

VERSION_1 = 0x00000001
VERSION_2 = 0x6B3343CF
MAXIMUM_CID_BYTES = 20
"""Longest connection ID of QUIC version 1 (RFC 9000, 17.2)."""

SAMPLE_BYTES = 16
"""Length of the ciphertext sample that header protection uses (RFC 9001, 5.4.2)."""

TAG_BYTES = 16
"""Length of the authentication tag of every QUIC AEAD (RFC 9001, 5.3)."""

# Key length of cipher suites (RFC 8446, B.4); that of the last one is no AES.
_KEY_BYTES = {0x1301: 16, 0x1302: 32, 0x1303: 32}
_CHACHA20 = 0x1303


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


@dataclass(frozen=True, slots=True)
class Version:
    """What a version of QUIC has of its own."""

    name: str
    """``1``, ``2`` or ``draft 29``."""
    salt: bytes
    """Of Initial keys (RFC 9001, 5.2; RFC 9369, 3.3.1)."""
    labels: str
    """With which the labels of its keys begin: ``quic`` or ``quicv2`` (RFC 9369, 3.3.2)."""
    types: Mapping[int, PacketType]
    """Packets by the type in a long header (RFC 9000, 17.2; RFC 9369, 3.2)."""


def _versions() -> dict[int, Version]:
    columns = {
        "initial": PacketType.INITIAL,
        "0rtt": PacketType.ZERO_RTT,
        "handshake": PacketType.HANDSHAKE,
        "retry": PacketType.RETRY,
    }
    with Path(__file__).with_name("versions.csv").open(encoding="ascii", newline="") as file:
        return {
            int(row["version"], 16): Version(
                row["name"],
                bytes.fromhex(row["salt"]),
                row["labels"],
                {int(row[column]): kind for column, kind in columns.items()},
            )
            for row in csv.DictReader(file)
        }


VERSIONS = _versions()
"""The versions that are read."""


class UnknownVersionError(WireError):
    """A packet of a version that is not read."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"QUIC version 0x{version:08x}, which is not read; known are versions 1 and 2, drafts 23 to 34"
        )
        self.version = version


def passed_over(versions: Mapping[int, int]) -> str:
    """A sentence about datagrams of versions that are not read, by how many there are; empty for none."""
    if not versions:
        return ""
    most = Counter(versions).most_common(_MOST_NAMED)
    named = ", ".join(f"{count} of QUIC version 0x{version:08x}" for version, count in most)
    more = f" and {len(versions) - len(most)} more versions" if len(versions) > len(most) else ""
    return f"passes over {sum(versions.values())} datagrams, {named}{more}; read are versions 1 and 2, drafts 23 to 34"


_MOST_NAMED = 5


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


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a variable-length integer (RFC 9000, 16) and the offset behind it; WireError if it is cut."""
    cursor = _Cursor(data)
    cursor.offset = offset
    return cursor.varint("an integer"), cursor.offset


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
    if version not in VERSIONS:
        raise UnknownVersionError(version)
    if max(len(destination_cid), len(source_cid)) > MAXIMUM_CID_BYTES:
        raise WireError(f"a connection ID of more than {MAXIMUM_CID_BYTES} bytes")
    packet_type = VERSIONS[version].types[first >> 4 & 0x03]
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
    chacha20: bool = False
    """Whether they are of ChaCha20-Poly1305, else of AES-GCM."""
    secret: bytes = field(default=b"", compare=False, repr=False)
    """What they are made from, and those of the next key phase are."""
    version: int = field(default=VERSION_1, compare=False)
    """Of the labels that they are made with."""

    @property
    def aead(self) -> AESGCM | ChaCha20Poly1305:
        """What encrypts payloads."""
        return (ChaCha20Poly1305 if self.chacha20 else AESGCM)(self.key)


@dataclass(frozen=True, slots=True)
class InitialKeys:
    """Keys of the Initial packets of a connection."""

    client: PacketKeys
    server: PacketKeys


def _expand_label(secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label with an empty context (RFC 8446, 7.1) and the hash whose length the secret has."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return HKDFExpand(SHA384() if len(secret) == 48 else SHA256(), size, info).derive(secret)


@lru_cache(maxsize=1024)
def initial_keys(destination_cid: bytes, version: int = VERSION_1) -> InitialKeys:
    """Derive the Initial keys from the connection ID of the client's first Initial, or of a Retry
    (RFC 9001, 5.2).
    """
    secret = hmac.new(VERSIONS[version].salt, destination_cid, hashlib.sha256).digest()
    sides = (_expand_label(secret, label, 32) for label in ("client in", "server in"))
    client, server = (traffic_keys(side, 0x1301, version=version) for side in sides)
    return InitialKeys(client, server)


def traffic_keys(secret: bytes, cipher_suite: int, *, quic: bool = True, version: int = VERSION_1) -> PacketKeys:
    """Derive keys from a traffic secret of TLS: of QUIC packets (RFC 9001, 5.1) or TLS records (RFC 8446, 7.3), which
    have no header protection.

    Raises :class:`WireError` for a cipher suite that is not one of the three that libraries have.
    """
    if cipher_suite not in _KEY_BYTES:
        raise WireError(f"cipher suite 0x{cipher_suite:04x} is not known")
    size, prefix = _KEY_BYTES[cipher_suite], f"{VERSIONS[version].labels} " if quic else ""
    return PacketKeys(
        _expand_label(secret, f"{prefix}key", size),
        _expand_label(secret, f"{prefix}iv", 12),
        _expand_label(secret, f"{prefix}hp", size) if quic else b"",
        chacha20=cipher_suite == _CHACHA20,
        secret=secret,
        version=version,
    )


def updated(keys: PacketKeys) -> PacketKeys:
    """Keys of the next key phase, with the same header protection (RFC 9001, 6.1)."""
    labels = VERSIONS[keys.version].labels
    secret = _expand_label(keys.secret, f"{labels} ku", len(keys.secret))
    return replace(
        keys,
        secret=secret,
        key=_expand_label(secret, f"{labels} key", len(keys.key)),
        iv=_expand_label(secret, f"{labels} iv", 12),
    )


def aes_mask(key: bytes, sample: bytes) -> bytes:
    """Return the five mask bytes of AES-based header protection (RFC 9001, 5.4.3)."""
    # One block of ECB is the AES permutation itself, as the RFC asks for.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(sample)[:5]


def chacha20_mask(key: bytes, sample: bytes) -> bytes:
    """Return the five mask bytes of header protection with ChaCha20, whose counter and nonce the sample is (RFC 9001,
    5.4.4).
    """
    return Cipher(algorithms.ChaCha20(key, sample), None).encryptor().update(bytes(5))


def nonce(iv: bytes, packet_number: int) -> bytes:
    """Return the AEAD nonce of a packet (RFC 9001, 5.3)."""
    return (int.from_bytes(iv, "big") ^ packet_number).to_bytes(len(iv), "big")


@dataclass(frozen=True, slots=True)
class Exposed:
    """A packet without header protection."""

    type: PacketType
    header: bytes
    """Up to and with the packet number."""
    number: int
    body: bytes
    """Payload and tag, still encrypted."""

    @property
    def phase(self) -> bool:
        """The key phase of a 1-RTT packet (RFC 9001, 6)."""
        return bool(self.header[0] & 0x04)

    def decrypt(self, keys: PacketKeys) -> bytes:
        """Return the plaintext; raises :class:`WireError` if the tag is not right for these keys."""
        try:
            return keys.aead.decrypt(nonce(keys.iv, self.number), self.body, self.header)
        except InvalidTag:
            raise WireError(f"the tag of the {self.type.value} packet is not right for these keys") from None


def expose(packet: QuicPacket, keys: PacketKeys, largest: int = -1) -> Exposed:
    """Remove header protection from a packet.

    ``largest`` is the largest packet number before it, which the encoded one is to be completed from (RFC 9000, A.3).
    Raises :class:`WireError` if the packet is too short for it.
    """
    start = packet.packet_number_offset
    sample = packet.sample
    if start is None or len(sample) < SAMPLE_BYTES:
        raise WireError(f"the {packet.type.value} packet has no protected payload")
    protection = (chacha20_mask if keys.chacha20 else aes_mask)(keys.header_protection, sample)
    first_bits = 0x1F if packet.type is PacketType.ONE_RTT else 0x0F
    header = bytearray(packet.data[: start + 4])
    header[0] ^= protection[0] & first_bits
    size = (header[0] & 0x03) + 1
    for i in range(size):
        header[start + i] ^= protection[1 + i]
    header = header[: start + size]
    number = decode_packet_number(largest, int.from_bytes(header[start:], "big"), size)
    return Exposed(packet.type, bytes(header), number, packet.data[start + size :])


def unprotect(packet: QuicPacket, keys: PacketKeys, largest: int = -1) -> tuple[int, bytes]:
    """Remove header protection and AEAD from a packet; return its packet number and plaintext.

    See `expose`. Raises :class:`WireError` if the tag is not right for these keys.
    """
    exposed = expose(packet, keys, largest)
    return exposed.number, exposed.decrypt(keys)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame in the plaintext of a packet (RFC 9000, 19); a run of PADDING is one."""

    type: int
    size: int
    """Its whole length in bytes."""
    stream: int | None = None
    """ID of the stream, of a STREAM frame."""
    offset: int = 0
    """Of the data in the stream, of STREAM and CRYPTO frames."""
    data: bytes = b""
    acknowledged: int | None = None
    """The largest packet number in an ACK frame."""

    @property
    def name(self) -> str:
        """As RFC 9000 calls it."""
        return "STREAM" if self.stream is not None else _FRAME_NAMES[self.type]


PADDING, ACK, CRYPTO = 0x00, 0x02, 0x06
_STREAMS = range(0x08, 0x10)
_FRAME_NAMES = {
    PADDING: "PADDING",
    0x01: "PING",
    ACK: "ACK",
    0x03: "ACK",
    0x04: "RESET_STREAM",
    0x05: "STOP_SENDING",
    CRYPTO: "CRYPTO",
    0x07: "NEW_TOKEN",
    0x10: "MAX_DATA",
    0x11: "MAX_STREAM_DATA",
    0x12: "MAX_STREAMS",
    0x13: "MAX_STREAMS",
    0x14: "DATA_BLOCKED",
    0x15: "STREAM_DATA_BLOCKED",
    0x16: "STREAMS_BLOCKED",
    0x17: "STREAMS_BLOCKED",
    0x18: "NEW_CONNECTION_ID",
    0x19: "RETIRE_CONNECTION_ID",
    0x1A: "PATH_CHALLENGE",
    0x1B: "PATH_RESPONSE",
    0x1C: "CONNECTION_CLOSE",
    0x1D: "CONNECTION_CLOSE",
    0x1E: "HANDSHAKE_DONE",
    # draft-ietf-quic-ack-frequency
    0x1F: "IMMEDIATE_ACK",
    0xAF: "ACK_FREQUENCY",
}
# Frames that are so many integers of variable length, and nothing else.
_INTEGERS = {0x01: 0, 0x04: 3, 0x05: 2, 0x10: 1, 0x11: 2, 0x12: 1, 0x13: 1, 0x14: 1, 0x15: 2, 0x16: 1, 0x17: 1, 0x19: 1}
_INTEGERS |= {0x1E: 0, 0x1F: 0, 0xAF: 4}


def frames(payload: bytes) -> Iterator[Frame]:
    """Yield the frames in the plaintext of a packet; raises :class:`WireError` at the first that is not known."""
    cursor = _Cursor(payload)
    while cursor.offset < len(payload):
        start = cursor.offset
        kind = cursor.varint("a frame type")
        stream, offset, data = None, 0, b""
        acknowledged: int | None = None
        match kind:
            case 0x00:
                rest = payload[cursor.offset :]
                cursor.offset += len(rest) - len(rest.lstrip(b"\x00"))
            case 0x02 | 0x03:
                acknowledged = cursor.varint("the largest acknowledged")
                cursor.varint("the ACK delay")
                ranges = cursor.varint("the number of ACK ranges")
                for _ in range(1 + 2 * ranges + (3 if kind == 0x03 else 0)):
                    cursor.varint("an ACK range or ECN count")
            case 0x06:
                offset = cursor.varint("an offset")
                data = cursor.take(cursor.varint("a length"), "CRYPTO data")
            case 0x07:
                cursor.take(cursor.varint("a length"), "a token")
            case 0x18:
                cursor.varint("a sequence number")
                cursor.varint("the sequence number to retire")
                cursor.cid("a connection ID")
                cursor.take(16, "a stateless reset token")
            case 0x1A | 0x1B:
                cursor.take(8, "a path challenge")
            case 0x1C | 0x1D:
                cursor.varint("an error code")
                if kind == 0x1C:
                    cursor.varint("a frame type")
                cursor.take(cursor.varint("a length"), "a reason")
            case _ if kind in _STREAMS:
                stream = cursor.varint("a stream ID")
                offset = cursor.varint("an offset") if kind & 0x04 else 0
                rest_bytes = len(payload) - cursor.offset
                data = cursor.take(cursor.varint("a length") if kind & 0x02 else rest_bytes, "STREAM data")
            case _ if kind in _INTEGERS:
                for _ in range(_INTEGERS[kind]):
                    cursor.varint("a field")
            case _:
                raise WireError(f"a frame of type 0x{kind:x}, which is not read here")
        yield Frame(kind, cursor.offset - start, stream, offset, data, acknowledged)


def crypto_stream(payloads: Iterable[bytes]) -> bytes:
    """Return the data in the CRYPTO frames of the packets of one encryption level, from the first byte to the first
    that is missing (RFC 9000, 19.6).

    ``payloads`` are plaintexts of packets, in any order; one with frames that are not known counts up to the first of
    them.
    """
    pieces: list[tuple[int, bytes]] = []
    for payload in payloads:
        try:
            for frame in frames(payload):
                if frame.type == CRYPTO:
                    pieces.append((frame.offset, frame.data))
        except WireError:
            continue
    return joined(pieces)


def joined(pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Pieces of a stream, each with its offset, from the first byte to the first that is missing."""
    stream = bytearray()
    for offset, data in sorted(pieces, key=lambda piece: piece[0]):
        if offset > len(stream):
            break
        stream += data[len(stream) - offset :]
    return bytes(stream)


def open_initial(packet: QuicPacket, cids: Iterable[bytes], *, from_server: bool) -> bytes | None:
    """Return the plaintext of an Initial packet whose keys are made from one of these connection IDs.

    ``None`` if it decrypts with the keys of none of them (RFC 9001, 5.2).
    """
    for cid in cids:
        keys = initial_keys(cid, packet.version or VERSION_1)
        try:
            return unprotect(packet, keys.server if from_server else keys.client)[1]
        except WireError:
            continue
    return None
