"""Captures in the pcapng format, as dumpcap writes it, turned into classic pcap with nanoseconds for
`quicbed.wire.pcap`.

Format: draft-ietf-opsawg-pcapng. Only what a capture of one section and one kind of link has: section header, interface
description and enhanced packet blocks; other blocks are passed over.
"""

from __future__ import annotations

import struct

MAGIC = b"\x0a\x0d\x0d\x0a"
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_RESOLUTION = 9
"""Option of an interface: the unit of its times."""
_BLOCK_FRAME_BYTES = 12
_PCAP_NANOSECONDS = 0xA1B23C4D
_NS_PER_S = 1_000_000_000


class PcapngError(Exception):
    """A file that is not in this format, or of several kinds of links."""


def to_pcap(data: bytes) -> bytes:
    """The packets as a classic pcap file; a file that ends within a block gives the packets before it."""
    if not data.startswith(MAGIC) or len(data) < 28 or data[8:12] not in _ORDERS:
        raise PcapngError("not a pcapng file")
    order = _ORDERS[data[8:12]]
    interfaces: list[tuple[int, int]] = []  # link type, units per second
    packets = []
    offset = 0
    while offset + _BLOCK_FRAME_BYTES <= len(data):
        kind, length = struct.unpack_from(f"{order}II", data, offset)
        if length < _BLOCK_FRAME_BYTES or length % 4 or offset + length > len(data):
            break
        body = data[offset + 8 : offset + length - 4]
        if kind == _SECTION and offset:
            raise PcapngError("a pcapng file of several sections")
        if kind == _INTERFACE and len(body) >= 8:
            interfaces.append((struct.unpack_from(f"{order}H", body)[0], _units(body[8:], order)))
        elif kind == _PACKET and len(body) >= 20:
            interface, high, low, captured, wire = struct.unpack_from(f"{order}IIIII", body)
            if interface >= len(interfaces):
                raise PcapngError("a pcapng packet of an interface that is not described")
            seconds, units = divmod(high << 32 | low, interfaces[interface][1])
            nanoseconds = units * _NS_PER_S // interfaces[interface][1]
            if seconds >= 1 << 32:
                raise PcapngError("a pcapng packet of a time that no clock showed")
            frame = body[20 : 20 + captured]
            packets.append(struct.pack("<IIII", seconds, nanoseconds, len(frame), wire) + frame)
        offset += length
    if len({link for link, _ in interfaces}) != 1:
        raise PcapngError("a pcapng file of no or several kinds of links")
    header = struct.pack("<IHHIIII", _PCAP_NANOSECONDS, 2, 4, 0, 0, 262_144, interfaces[0][0])
    return header + b"".join(packets)


def _units(options: bytes, order: str) -> int:
    """Units of time per second: a power of ten, or of two where the highest bit is set; microseconds by default."""
    offset = 0
    while offset + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, offset)
        if code == _RESOLUTION and length == 1 and offset + 4 < len(options):
            value = options[offset + 4]
            return int(2 ** (value & 0x7F)) if value & 0x80 else int(10**value)
        offset += 4 + (length + 3) // 4 * 4
    return 1_000_000
