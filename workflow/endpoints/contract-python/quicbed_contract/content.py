"""The content that is served and verified: records of 16 ASCII bytes, the same for every endpoint."""

from __future__ import annotations

RECORDS = 4093
PERIOD = 16 * RECORDS
"""Bytes after which the content repeats itself."""

_TWICE = 2 * b"".join(b"quicbed%08x\n" % record for record in range(RECORDS))


def at(offset: int, length: int) -> bytes:
    """`length` bytes of content from `offset` on, but never more than a period."""
    start = offset % PERIOD
    return _TWICE[start : start + min(length, PERIOD)]


class Checker:
    """Compares what is received, in order, with the content, every byte of it."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.received = 0
        self.error: str | None = None
        """Where the first wrong byte is, once there is one."""

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        offset = self.received
        self.received += len(data)
        if data == at(offset, len(data)) or self.error is not None:
            return
        for start in range(0, len(data), PERIOD):
            part = data[start : start + PERIOD]
            right = at(offset + start, len(part))
            if part != right:
                first = next(i for i, byte in enumerate(part) if byte != right[i])
                self.error = f"byte {offset + start + first} of the content is wrong"
                return

    def verdict(self) -> str | None:
        """What is wrong with all that was received, or None."""
        if self.error is None and self.received != self.expected:
            return f"{self.received} bytes of content arrived instead of {self.expected}"
        return self.error
