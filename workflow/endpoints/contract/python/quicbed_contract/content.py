"""The content that is served and verified: records of 16 ASCII bytes, the same for every endpoint."""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from typing import BinaryIO

RECORDS = 4093
PERIOD = 16 * RECORDS
"""Bytes after which the content repeats itself."""

_TWICE = 2 * b"".join(b"quicbed%08x\n" % record for record in range(RECORDS))


def at(offset: int, length: int) -> bytes:
    """`length` bytes of content from `offset` on, but never more than a period."""
    start = offset % PERIOD
    return _TWICE[start : start + min(length, PERIOD)]


class Body:
    """What a request asks for: content made in memory, or a file."""

    def __init__(self, length: int, file: mmap | bytes | None = None) -> None:
        self.length = length
        self._file = None if file is None else memoryview(file)

    def at(self, offset: int) -> bytes:
        """What is sent from `offset` on, at most a period."""
        length = min(self.length - offset, PERIOD)
        if self._file is not None:
            return bytes(self._file[offset : offset + length])
        return at(offset, length)


class Saver:
    """Writes what is received to a new file: a Checker that compares nothing and expects any number of bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.received = 0
        self.error: str | None = None
        self._file: BinaryIO | None = None
        try:
            self._file = open(path, "wb")  # noqa: SIM115 (it is open for as long as bytes arrive)
        except OSError as error:
            self.error = f"--save {path}: {error.strerror}"

    @property
    def expected(self) -> int:
        """Bytes asked for: a file has no size before its end, so those received so far."""
        return self.received

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        self.received += len(data)
        self._try(lambda file: file.write(data))

    def verdict(self) -> str | None:
        """Why not everything is in the file, or None."""
        self._try(lambda file: file.flush())
        return self.error

    def _try(self, act: Callable[[BinaryIO], object]) -> None:
        if self._file is None or self.error is not None:
            return
        try:
            act(self._file)
        except OSError as error:
            self.error = f"--save {self.path}: {error.strerror}"


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
