"""ServerHello messages, which anybody on the path can read: cipher suite and key-exchange group of a connection.

No secrets are needed: over TCP they are in the clear, and in QUIC they are in Initial packets, whose keys are made from
a connection ID (RFC 9001, 5.2). So they tell what was negotiated where neither end does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# RFC 8446, 4 and 4.2
_SERVER_HELLO = 2
_CERTIFICATE = 11
_PRE_SHARED_KEY = 41
_SUPPORTED_VERSIONS = 43
_KEY_SHARE = 51

_LEGACY_VERSION = b"\x03\x03"
# Random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
_RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


@dataclass(frozen=True, slots=True)
class ServerHello:
    """What a server chose (RFC 8446, 4.1.3), in code points of TLS."""

    cipher_suite: int
    group: int | None
    """Of the key share; ``None`` without one."""
    retry_request: bool
    """Whether this is a HelloRetryRequest, which asks for a key share of `group`."""
    resumed: bool = False
    """Whether it takes a pre-shared key, as of a ticket of an earlier connection (RFC 8446, 2.2)."""
    old: bool = False
    """Whether it is of TLS 1.2 or before: it has no supported_versions (RFC 8446, 4.2.1)."""


def read(messages: bytes) -> list[ServerHello]:
    """Return the ServerHello at the beginning of a server's handshake messages, behind its HelloRetryRequest if any.

    Empty where there is none that is whole and well-formed.
    """
    found = []
    offset = 0
    while messages[offset : offset + 1] == bytes([_SERVER_HELLO]):
        size = int.from_bytes(messages[offset + 1 : offset + 4], "big")
        body = messages[offset + 4 : offset + 4 + size]
        hello = _parse(body) if len(body) == size else None
        if hello is None:
            break
        found.append(hello)
        offset += 4 + size
    return found


def _parse(body: bytes) -> ServerHello | None:
    """Read the message without its header of 4 bytes; ``None`` if it is not well-formed."""
    if body[:2] != _LEGACY_VERSION:
        return None
    group: int | None = None
    resumed, old = False, True
    try:
        # legacy version, random, session id, cipher suite, compression method, length of the extensions
        cipher_suite, _, length = struct.unpack_from("!HBH", body, 35 + body[34])
        at = 40 + body[34]
        end = at + length
        while at < end:
            kind, size = struct.unpack_from("!HH", body, at)
            if kind == _KEY_SHARE:
                (group,) = struct.unpack_from("!H", body, at + 4)
            resumed = resumed or kind == _PRE_SHARED_KEY
            old = old and kind != _SUPPORTED_VERSIONS
            at += 4 + size
    except (IndexError, struct.error):
        return None
    if at != end or end != len(body):
        return None
    return ServerHello(cipher_suite, group, body[2:34] == _RETRY_RANDOM, resumed, old)


def abbreviated(messages: bytes) -> bool:
    """Whether a server's handshake messages up to its ChangeCipherSpec resume a session of TLS 1.2 (RFC 5246, 7.3).

    They have no Certificate behind the ServerHello, at most a NewSessionTicket (RFC 5077, 3.1).
    """
    if not any(hello.old for hello in read(messages)):
        return False
    offset, kinds = 0, set()
    while offset + 4 <= len(messages):
        kinds.add(messages[offset])
        offset += 4 + int.from_bytes(messages[offset + 1 : offset + 4], "big")
    return _CERTIFICATE not in kinds
