"""Handshake messages of TLS 1.3 (RFC 8446, 4) as far as proofs and handshakes need them: sizes and code points."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# HandshakeType (RFC 8446, 4)
CLIENT_HELLO = 1
SERVER_HELLO = 2
END_OF_EARLY_DATA = 5
ENCRYPTED_EXTENSIONS = 8
CERTIFICATE = 11
CERTIFICATE_VERIFY = 15
FINISHED = 20

# ExtensionType (RFC 8446, 4.2)
PRE_SHARED_KEY = 41
EARLY_DATA = 42
SUPPORTED_VERSIONS = 43
KEY_SHARE = 51

# Random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
RETRY_RANDOM = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"

_HEADER_BYTES = 4
# Tags of DER, and the key type rsaEncryption (RFC 8017, A.1).
_SEQUENCE, _BIT_STRING, _INTEGER, _VERSION = 0x30, 0x03, 0x02, 0xA0
_RSA = bytes.fromhex("06092a864886f70d010101")


@dataclass(frozen=True, slots=True)
class Message:
    """A TLS handshake message (RFC 8446, 4)."""

    type: int
    bytes: int
    """Length with the header of 4 bytes."""
    random: str | None = None
    """Random of a ClientHello or ServerHello, hexadecimal."""
    cipher: int | None = None
    """Cipher suite of a ServerHello."""
    extensions: tuple[int, ...] = ()
    """Types of the extensions of a ClientHello, ServerHello or EncryptedExtensions (RFC 8446, 4.2)."""
    key_shares: tuple[tuple[int, int], ...] = ()
    """Group and length of every key share of a ClientHello or ServerHello."""
    signature: int | None = None
    """Signature scheme of a CertificateVerify."""
    signature_bytes: int | None = None
    public_key_bytes: int | None = None
    """Public key in the first certificate of a Certificate: contents of its BIT STRING, of RSA the modulus."""

    @property
    def hello_retry_request(self) -> bool:
        """Whether this ServerHello is a HelloRetryRequest."""
        return self.random == RETRY_RANDOM


class Stream:
    """Puts CRYPTO data together, and tells the messages that each piece completes; what comes again is passed over."""

    def __init__(self) -> None:
        self.data = bytearray()
        """From the first byte to the first that is missing."""
        self._waiting: list[tuple[int, bytes]] = []
        self._next = 0

    def take(self, offset: int, data: bytes) -> list[Message]:
        """Add data at an offset."""
        heapq.heappush(self._waiting, (offset, data))
        while self._waiting and self._waiting[0][0] <= len(self.data):
            begin, piece = heapq.heappop(self._waiting)
            self.data += piece[len(self.data) - begin :]
        found = []
        while (end := self._next + _HEADER_BYTES) <= len(self.data):
            end += int.from_bytes(self.data[self._next + 1 : end], "big")
            if end > len(self.data):
                break
            found.append(parse(bytes(self.data[self._next : end])))
            self._next = end
        return found


def parse(message: bytes) -> Message:
    """Read a whole message with its header of 4 bytes; of one that is not well-formed no more than type and length."""
    kind, body = message[0], message[_HEADER_BYTES:]
    try:
        return _parse(kind, body, len(message))
    except (IndexError, ValueError, struct.error):
        return Message(kind, len(message))


def _parse(kind: int, body: bytes, size: int) -> Message:
    if kind == CLIENT_HELLO:
        at = 35 + body[34]
        at += 2 + int.from_bytes(body[at : at + 2], "big")
        at += 1 + body[at]
        extensions = list(_extensions(body, at))
        shares = next((value for code, value in extensions if code == KEY_SHARE), b"")
        return Message(
            kind,
            size,
            random=body[2:34].hex(),
            extensions=tuple(code for code, _ in extensions),
            key_shares=tuple(_key_shares(shares, 2)),
        )
    if kind == SERVER_HELLO:
        at = 35 + body[34]
        (cipher,) = struct.unpack_from("!H", body, at)
        extensions = list(_extensions(body, at + 3))
        share = next((value for code, value in extensions if code == KEY_SHARE), b"")
        return Message(
            kind,
            size,
            random=body[2:34].hex(),
            cipher=cipher,
            extensions=tuple(code for code, _ in extensions),
            # that of a HelloRetryRequest is a group alone
            key_shares=tuple(_key_shares(share, 0)) if len(share) > 2 else (),
        )
    if kind == ENCRYPTED_EXTENSIONS:
        return Message(kind, size, extensions=tuple(code for code, _ in _extensions(body, 0)))
    if kind == CERTIFICATE:
        at = 4 + body[0]
        length = int.from_bytes(body[at : at + 3], "big")
        return Message(kind, size, public_key_bytes=_public_key_bytes(body[at + 3 : at + 3 + length]))
    if kind == CERTIFICATE_VERIFY:
        scheme, length = struct.unpack_from("!HH", body)
        return Message(kind, size, signature=scheme, signature_bytes=length)
    return Message(kind, size)


def _extensions(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Type and content of the extensions whose length is at an offset; none where the message ends there."""
    if at >= len(body):
        return
    (length,) = struct.unpack_from("!H", body, at)
    at, end = at + 2, at + 2 + length
    while at < end:
        kind, size = struct.unpack_from("!HH", body, at)
        yield kind, body[at + 4 : at + 4 + size]
        at += 4 + size


def _key_shares(content: bytes, at: int) -> Iterator[tuple[int, int]]:
    while at < len(content):
        group, size = struct.unpack_from("!HH", content, at)
        yield group, size
        at += 4 + size


def _public_key_bytes(certificate: bytes) -> int | None:
    """Of a certificate of X.509 (RFC 5280, 4.1)."""
    to_be_signed = _content(_content(certificate, _SEQUENCE), _SEQUENCE)
    elements = [one for one in _elements(to_be_signed) if one[0] != _VERSION]
    # serial number, signature algorithm, issuer, validity, subject
    algorithm, key = list(_elements(elements[5][1]))[:2]
    if key[0] != _BIT_STRING:
        return None
    bits = key[1][1:]
    if not algorithm[1].startswith(_RSA):
        return len(bits)
    return len(_content(_content(bits, _SEQUENCE), _INTEGER).lstrip(b"\0"))


def _content(data: bytes, tag: int) -> bytes:
    """Content of the first element of DER."""
    kind, content = next(_elements(data), (None, b""))
    if kind != tag:
        raise ValueError(f"tag {kind}, not {tag}")
    return content


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of elements of DER in succession (X.690, 8.1)."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            octets = size & 0x7F
            size = int.from_bytes(data[at : at + octets], "big")
            at += octets
        if at + size > len(data):
            raise ValueError("an element of DER is longer than what holds it")
        yield tag, data[at : at + size]
        at += size
