"""Captures in the pcapng format, as dumpcap writes it, turned into classic pcap with nanoseconds for
`quicbed.wire.pcap`.

Format: draft-ietf-opsawg-pcapng. Only what a capture of one section and one interface has: section header, interface
description, enhanced packet blocks and the obsolete packet blocks. Frames of several interfaces are refused, because
one may be there twice, and so are frames without a time; blocks that hold no frames are passed over.
"""

from __future__ import annotations

import struct

MAGIC = b"\x0a\x0d\x0d\x0a"
_SECTION, _INTERFACE, _OBSOLETE_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_RESOLUTION, _OFFSET = 9, 14
"""Options of an interface: the unit of its times, and the seconds that are added to them."""
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
    interfaces: list[tuple[int, int, int]] = []  # link type, units per second, seconds to add
    packets = []
    used: set[int] = set()
    offset = 0
    while offset + _BLOCK_FRAME_BYTES <= len(data):
        kind, length = struct.unpack_from(f"{order}II", data, offset)
        if length < _BLOCK_FRAME_BYTES or length % 4 or offset + length > len(data):
            break
        body = data[offset + 8 : offset + length - 4]
        if kind == _SECTION and offset:
            raise PcapngError("a pcapng file of several sections")
        if kind == _SIMPLE_PACKET:
            raise PcapngError("a pcapng packet without a time")
        if kind == _INTERFACE and len(body) >= 8:
            interfaces.append((struct.unpack_from(f"{order}H", body)[0], *_times(body[8:], order)))
        elif kind in (_PACKET, _OBSOLETE_PACKET) and len(body) >= 20:
            # the obsolete one has a count of lost frames in half of the first number
            layout = f"{order}IIIII" if kind == _PACKET else f"{order}HxxIIII"
            interface, high, low, captured, wire = struct.unpack_from(layout, body)
            if interface >= len(interfaces):
                raise PcapngError("a pcapng packet of an interface that is not described")
            used.add(interface)
            _, units_per_second, seconds_to_add = interfaces[interface]
            seconds, units = divmod(high << 32 | low, units_per_second)
            seconds += seconds_to_add
            nanoseconds = units * _NS_PER_S // units_per_second
            if not 0 <= seconds < 1 << 32:
                raise PcapngError("a pcapng packet of a time that no clock showed")
            frame = body[20 : 20 + captured]
            packets.append(struct.pack("<IIII", seconds, nanoseconds, len(frame), wire) + frame)
        offset += length
    if len(used) > 1:
        raise PcapngError("a pcapng file with packets of several interfaces, which may be there twice")
    links = {interfaces[one][0] for one in used} or {link for link, _, _ in interfaces}
    if len(links) != 1:
        raise PcapngError("a pcapng file of no or several kinds of links")
    header = struct.pack("<IHHIIII", _PCAP_NANOSECONDS, 2, 4, 0, 0, 262_144, *links)
    return header + b"".join(packets)


def _times(options: bytes, order: str) -> tuple[int, int]:
    """Units of time per second, by default microseconds, and the seconds that are added.

    The unit is a power of ten, or of two where the highest bit is set.
    """
    units, seconds = 1_000_000, 0
    offset = 0
    while offset + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, offset)
        value = options[offset + 4 : offset + 4 + length]
        if code == _RESOLUTION and len(value) == 1:
            units = int(2 ** (value[0] & 0x7F)) if value[0] & 0x80 else int(10 ** value[0])
        elif code == _OFFSET and len(value) == 8:
            (seconds,) = struct.unpack(f"{order}q", value)
        offset += 4 + (length + 3) // 4 * 4
    return units, seconds
