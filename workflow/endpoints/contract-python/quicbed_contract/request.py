"""The one request of `hq-interop` as the contract uses it: `GET /<n>` asks for `n` bytes of content."""

from __future__ import annotations

MAX_REQUEST = 27
"""Longest request: `GET /`, the 20 digits of the largest 64-bit number, CRLF."""


class BadRequestError(Exception):
    """A request that is not `GET /<n>`."""


def write(size: int) -> bytes:
    """The request for `size` bytes of content."""
    return b"GET /%d\r\n" % size


def parse(request: bytes) -> int:
    """Number of bytes a complete request asks for; the end of the line may be missing."""
    line = request.removesuffix(b"\n").removesuffix(b"\r")
    number = line.removeprefix(b"GET /")
    if number == line or not number.isdigit() or int(number) >= 1 << 64:
        raise BadRequestError(f"request is not `GET /<bytes>`: {request[:MAX_REQUEST]!r}")
    return int(number)
