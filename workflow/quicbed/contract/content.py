"""The content every endpoint sends (workflow/endpoints/ENDPOINT.md, "What is exchanged").

Content is the endless repetition of 4093 records of 16 ASCII bytes, record *i* being ``quicbed``,
*i* as eight lower-case hexadecimal digits, and a newline. It can be recognised anywhere in a packet
that is not encrypted.
"""

from __future__ import annotations

import re

RECORD_BYTES = 16
"""Length of one record in bytes."""

RECORDS = 4093
"""Number of different records. A prime, so that the period does not align with packet sizes."""

PERIOD = RECORDS * RECORD_BYTES
"""Bytes after which content repeats (65 488)."""

_RECORD = re.compile(rb"quicbed([0-9a-f]{8})\n")


def record(index: int) -> bytes:
    """Return record ``index`` (counted without end, so record 4093 is record 0 again)."""
    return b"quicbed%08x\n" % (index % RECORDS)


_CYCLE = b"".join(record(index) for index in range(RECORDS))


def content(length: int, offset: int = 0) -> bytes:
    """Return ``length`` bytes of content from byte ``offset`` on."""
    if length < 0 or offset < 0:
        raise ValueError(f"content has no negative length or offset: {length}, {offset}")
    start = offset % PERIOD
    cycles = (start + length) // PERIOD + 1
    return (_CYCLE * cycles)[start : start + length]


def visible_bytes(data: bytes) -> int:
    """Count the bytes of ``data`` that belong to whole records of content in the clear.

    The records cut at either end of ``data`` are not counted, so a full packet of content has up to
    30 bytes more than this says. A false positive needs 12 given bytes out of 16 in encrypted data
    (2**-96 at each position), so one visible record is evidence.
    """
    return RECORD_BYTES * sum(int(match[1], 16) < RECORDS for match in _RECORD.finditer(data))
