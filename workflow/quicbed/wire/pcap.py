"""Reader of packet captures in the classic pcap format, as ``tcpdump -w`` writes it.

Meant for the short captures that prove a variant (see :mod:`quicbed.wire.proof`): plain Python, tens of
thousands of frames a second. Times are nanoseconds since the Unix epoch. Format:
draft-ietf-opsawg-pcap.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 16

MAXIMUM_FRAME_BYTES = 262_144
"""Largest captured length believed; tcpdump's own limit (MAXIMUM_SNAPLEN)."""

LINK_ETHERNET = 1
LINK_RAW = 101
LINK_SLL = 113
LINK_IPV4 = 228
LINK_IPV6 = 229
LINK_SLL2 = 276

_LINK_NAMES = {
    LINK_ETHERNET: "Ethernet",
    LINK_RAW: "raw IP",
    LINK_SLL: "Linux cooked",
    LINK_IPV4: "raw IPv4",
    LINK_IPV6: "raw IPv6",
    LINK_SLL2: "Linux cooked v2",
}

_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
# First four bytes of a file: struct byte order, nanoseconds in a unit of the fraction field.
_MAGICS: dict[bytes, tuple[Literal["<", ">"], int]] = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}

_ETHERTYPE_IPV4 = 0x0800
_ETHERTYPE_IPV6 = 0x86DD
_ETHERTYPE_VLAN = frozenset({0x8100, 0x88A8})

_PROTOCOL_TCP = 6
_PROTOCOL_UDP = 17
_IPV6_FRAGMENT = 44
# Hop-by-hop options, routing header, destination options: next header, then length in units of 8
# bytes less one.
_IPV6_EXTENSIONS = frozenset({0, 43, 60})

TCP_SYN = 0x02


class CaptureError(Exception):
    """A capture file cannot be read; the message names file, offset in bytes and problem."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One captured frame."""

    index: int
    """0, 1, ... in the file."""
    time_ns: int
    data: bytes
    """Captured bytes, from the link-layer header on; fewer than ``wire_bytes`` when the capture cut
    the frame.
    """
    wire_bytes: int
    """Length of the frame on the link."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One UDP datagram or TCP segment."""

    frame: Frame
    protocol: Literal["udp", "tcp"]
    source: str
    """IP address in its canonical text form."""
    source_port: int
    destination: str
    destination_port: int
    payload: bytes
    """Captured payload."""
    payload_bytes: int
    """Length of the payload on the link, by the headers."""
    sequence: int = 0
    """TCP sequence number of the first byte."""
    flags: int = 0
    """TCP flags (``TCP_SYN`` and others)."""
    ip_header_bytes: int = 0
    """Length of the IP header, with the extensions of IPv6."""
    transport_header_bytes: int = 0
    """Length of the UDP or TCP header, with the options of TCP."""

    @property
    def cut(self) -> bool:
        """Whether the capture holds only the beginning of the payload."""
        return len(self.payload) < self.payload_bytes


class Capture:
    """A capture file, read anew by every iteration.

    With ``allow_truncated`` a file that ends within a frame yields the frames before and then sets
    ``truncation`` to a sentence about it; otherwise that is a :class:`CaptureError`. A file without
    a whole file header is always one.
    """

    def __init__(self, path: Path, *, allow_truncated: bool = False) -> None:
        self.path = path
        self.allow_truncated = allow_truncated
        self.truncation: str | None = None
        with self._open() as file:
            header = self._read(file, FILE_HEADER_BYTES)
        if header[:4] == _PCAPNG_MAGIC:
            raise self._error(
                0,
                "this is a pcapng file; write classic pcap, as tcpdump -w does, or convert it with editcap -F nsecpcap",
            )
        if len(header) >= 4 and header[:4] not in _MAGICS:
            raise self._error(0, f"not a pcap file: it begins with {header[:4].hex()}")
        if len(header) < FILE_HEADER_BYTES:
            raise self._error(len(header), f"the file ends within the {FILE_HEADER_BYTES}-byte file header")
        self.byte_order, self._unit_ns = _MAGICS[header[:4]]
        major, minor, _, _, self.snapshot_bytes, link = struct.unpack(self.byte_order + "HHIIII", header[4:])
        if (major, minor) != (2, 4):
            raise self._error(4, f"pcap version {major}.{minor}, only 2.4 is known")
        # The upper half of the field describes a frame check sequence.
        self.link_type: int = link & 0xFFFF
        if self.link_type not in _LINK_NAMES:
            known = ", ".join(f"{name} ({number})" for number, name in _LINK_NAMES.items())
            raise self._error(20, f"link type {self.link_type} is unknown; known: {known}")

    @property
    def nanoseconds(self) -> bool:
        """Whether the file's times have nanosecond resolution (else microseconds)."""
        return self._unit_ns == 1

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames in the order of the file."""
        self.truncation = None
        layout = struct.Struct(self.byte_order + "IIII")
        units_per_second = 1_000_000_000 // self._unit_ns
        offset = FILE_HEADER_BYTES
        index = 0
        with self._open() as file:
            self._read(file, FILE_HEADER_BYTES)
            while header := self._read(file, RECORD_HEADER_BYTES):
                if len(header) < RECORD_HEADER_BYTES:
                    self._truncated(offset, f"the file ends within the header of frame {index}")
                    return
                seconds, fraction, captured, wire = layout.unpack(header)
                if fraction >= units_per_second:
                    raise self._error(offset, f"frame {index} has {fraction} as its fraction of a second")
                if captured > MAXIMUM_FRAME_BYTES or captured > wire:
                    raise self._error(offset, f"frame {index} says {captured} bytes were captured of {wire}")
                data = self._read(file, captured)
                if len(data) < captured:
                    self._truncated(
                        offset,
                        f"the file ends within frame {index}, after {len(data)} of {captured} bytes",
                    )
                    return
                yield Frame(index, seconds * 1_000_000_000 + fraction * self._unit_ns, data, wire)
                offset += RECORD_HEADER_BYTES + captured
                index += 1

    def packets(self) -> Iterator[Packet]:
        """Yield the UDP datagrams and TCP segments; other frames and fragments are passed over."""
        for frame in self:
            packet = parse_frame(frame, self.link_type)
            if packet is not None:
                yield packet

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be opened: {error.strerror}") from None

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            return file.read(size)
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _error(self, offset: int, problem: str) -> CaptureError:
        return CaptureError(f"{self.path}: at byte {offset}: {problem}")

    def _truncated(self, offset: int, problem: str) -> None:
        if not self.allow_truncated:
            raise self._error(offset, problem)
        self.truncation = f"at byte {offset}: {problem}"


def parse_frame(frame: Frame, link_type: int) -> Packet | None:
    """Parse a frame down to UDP or TCP.

    ``None`` for every other protocol, for IP fragments, and where the captured bytes end before the
    transport payload begins.
    """
    start = _network_offset(frame.data, link_type)
    if start is None or len(frame.data) <= start:
        return None
    data = frame.data[start:]
    version = data[0] >> 4
    if version == 4:
        return _parse_ipv4(frame, data)
    if version == 6:
        return _parse_ipv6(frame, data)
    return None


def _network_offset(data: bytes, link_type: int) -> int | None:
    """Return where the IP header begins, ``None`` where the frame carries no IP."""
    if link_type in (LINK_RAW, LINK_IPV4, LINK_IPV6):
        return 0
    # Offset of the EtherType, and of what follows the link-layer header.
    ethertype_at, start = {LINK_ETHERNET: (12, 14), LINK_SLL: (14, 16), LINK_SLL2: (0, 20)}[link_type]
    while True:
        if len(data) < start:
            return None
        ethertype = int.from_bytes(data[ethertype_at : ethertype_at + 2], "big")
        if ethertype not in _ETHERTYPE_VLAN:
            break
        ethertype_at, start = start + 2, start + 4
    return start if ethertype in (_ETHERTYPE_IPV4, _ETHERTYPE_IPV6) else None


def _parse_ipv4(frame: Frame, data: bytes) -> Packet | None:
    if len(data) < 20:
        return None
    header = (data[0] & 0x0F) * 4
    total = int.from_bytes(data[2:4], "big")
    fragment = int.from_bytes(data[6:8], "big") & 0x3FFF
    if header < 20 or total < header or fragment:
        return None
    return _parse_transport(
        frame,
        data[9],
        str(ipaddress.IPv4Address(data[12:16])),
        str(ipaddress.IPv4Address(data[16:20])),
        data[header:total],
        total - header,
        header,
    )


def _parse_ipv6(frame: Frame, data: bytes) -> Packet | None:
    if len(data) < 40:
        return None
    length = int.from_bytes(data[4:6], "big")
    protocol = data[6]
    source = str(ipaddress.IPv6Address(data[8:24]))
    destination = str(ipaddress.IPv6Address(data[24:40]))
    body = data[40 : 40 + length]
    while protocol in _IPV6_EXTENSIONS:
        if len(body) < 8:
            return None
        size = (body[1] + 1) * 8
        protocol, body, length = body[0], body[size:], length - size
    if protocol == _IPV6_FRAGMENT or length < 0:
        return None
    extensions = int.from_bytes(data[4:6], "big") - length
    return _parse_transport(frame, protocol, source, destination, body, length, 40 + extensions)


def _parse_transport(
    frame: Frame, protocol: int, source: str, destination: str, body: bytes, length: int, ip_header: int
) -> Packet | None:
    """Parse the transport header at the start of ``body``, of which the link carried ``length``
    bytes.
    """
    if protocol == _PROTOCOL_UDP and len(body) >= 8:
        source_port, destination_port, udp_length = struct.unpack("!HHH", body[:6])
        if not 8 <= udp_length <= length:
            return None
        return Packet(
            frame,
            "udp",
            source,
            source_port,
            destination,
            destination_port,
            body[8:udp_length],
            udp_length - 8,
            ip_header_bytes=ip_header,
            transport_header_bytes=8,
        )
    if protocol == _PROTOCOL_TCP and len(body) >= 20:
        source_port, destination_port, sequence = struct.unpack("!HHI", body[:8])
        header = (body[12] >> 4) * 4
        if not 20 <= header <= length:
            return None
        return Packet(
            frame,
            "tcp",
            source,
            source_port,
            destination,
            destination_port,
            body[header:],
            length - header,
            sequence,
            body[13],
            ip_header,
            header,
        )
    return None
