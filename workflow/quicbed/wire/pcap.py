"""Reader of packet captures in the classic pcap format, as ``tcpdump -w`` writes it.

Meant for the short captures that prove a variant (see :mod:`quicbed.wire.proof`): plain Python, tens of
thousands of frames a second. Times are nanoseconds since the Unix epoch. Format:
draft-ietf-opsawg-pcap.

Every frame is a packet or is left out for a reason that is counted, so that both together are the frames of the file.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import UntrustedError

FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 16

MAXIMUM_FRAME_BYTES = 262_144
"""Largest captured length believed; tcpdump's own limit (MAXIMUM_SNAPLEN)."""

LINK_NULL = 0
LINK_ETHERNET = 1
LINK_PPP = 9
LINK_PPP_HDLC = 50
LINK_RAW = 101
LINK_LOOP = 108
LINK_SLL = 113
LINK_IPV4 = 228
LINK_IPV6 = 229
LINK_SLL2 = 276

_LINK_NAMES = {
    LINK_NULL: "BSD loopback",
    LINK_ETHERNET: "Ethernet",
    LINK_PPP: "PPP",
    LINK_PPP_HDLC: "PPP in HDLC-like framing",
    LINK_RAW: "raw IP",
    LINK_LOOP: "OpenBSD loopback",
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
_ETHERTYPE_VLAN = frozenset({0x8100, 0x88A8, 0x9100})
# Address families of systems with a BSD loopback; IPv6 has another number on each.
_FAMILIES = frozenset({2, 10, 24, 28, 30})
_PPP_ADDRESS_AND_CONTROL = b"\xff\x03"
_PPP_PROTOCOLS = frozenset({0x21, 0x57})
"""IPv4 and IPv6 (RFC 1332, RFC 5072); the first byte may be left out where it is 0 (RFC 1661, 6.5)."""
_SLL_OUTGOING = 4

ETHERNET_HEADER_BYTES = 14

_PROTOCOL_TCP = 6
_PROTOCOL_UDP = 17
_IPV6_FRAGMENT = 44
# Hop-by-hop options, routing header, destination options: next header, then length in units of 8
# bytes less one.
_IPV6_EXTENSIONS = frozenset({0, 43, 60})

TCP_SYN = 0x02

Reason = Literal["other", "malformed", "fragment", "cut"]
"""Why a frame is no packet: neither UDP nor TCP, lengths that cannot be, a fragment of either, captured too short."""


class CaptureError(QuicbedError):
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
    ip_bytes: int = 0
    """Length of the IP packet, which is what an MTU limits."""
    interface: int = 0
    """Where it was captured: index of the interface in Linux cooked v2; in Linux cooked 1 where it was sent, else 0."""

    @property
    def cut(self) -> bool:
        """Whether the capture holds only the beginning of the payload."""
        return len(self.payload) < self.payload_bytes

    @property
    def ethernet_bytes(self) -> int:
        """Length of the frame that it is on an Ethernet without tags and trailers, whatever link was captured."""
        return ETHERNET_HEADER_BYTES + self.ip_bytes


@dataclass(slots=True)
class LeftOut:
    """Frames that are left out for one reason."""

    frames: int
    first: int
    """Index of the first one: 0, 1, ... in the file."""


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
        self.left_out: dict[Reason, LeftOut] = {}
        """Frames that the last iteration of `packets` has passed over so far."""
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
                if not (seconds or fraction or captured or wire):
                    self._truncated(offset, f"the file holds zeros from frame {index} on")
                    return
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
        """Yield the UDP datagrams and TCP segments; what is passed over is counted in ``left_out``."""
        self.left_out = {}
        for frame in self:
            found = _parse(frame, self.link_type)
            if isinstance(found, Packet):
                yield found
            elif found in self.left_out:
                self.left_out[found].frames += 1
            else:
                self.left_out[found] = LeftOut(1, frame.index)

    def problems(self, packets: Iterable[Packet]) -> list[str]:
        """Why the packets that were read are not all of those that were sent, or are more; a sentence each.

        *packets* are those of them that count.
        """
        found = []
        told: tuple[tuple[Reason, str], ...] = (
            ("fragment", "hold fragments of IP packets, which are not put together; capture with a larger MTU"),
            ("cut", "were captured too short for their headers; capture whole frames (snaplen 65535)"),
            ("malformed", "have lengths that cannot be in their headers of IP, UDP or TCP; capture again"),
        )
        for reason, what in told:
            if (one := self.left_out.get(reason)) is not None:
                found.append(f"{one.frames} frames, the first is frame {one.first}, {what}")
        if self.link_type in (LINK_SLL, LINK_SLL2):
            where: dict[tuple[str, int, str, int], int] = {}
            for packet in packets:
                ends = packet.source, packet.source_port, packet.destination, packet.destination_port
                if (other := where.setdefault(ends, packet.interface)) != packet.interface:
                    found.append(
                        f"frame {packet.frame.index} is of interface {packet.interface} and those before it, from and "
                        f"to the same ports, of interface {other}, so that packets may be there twice; "
                        "capture on one interface"
                    )
                    break
        return found

    def _open(self) -> BinaryIO:
        try:
            return untrusted.opened(self.path, None, links=True)
        except UntrustedError as error:
            said = str(error).removeprefix("cannot be read: ")
            raise CaptureError(f"{self.path}: cannot be opened: {said}") from None

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
    """Parse a frame down to UDP or TCP; ``None`` for what has another `Reason`."""
    found = _parse(frame, link_type)
    return found if isinstance(found, Packet) else None


def _parse(frame: Frame, link_type: int) -> Packet | Reason:
    found = _parse_link(frame, link_type)
    return "malformed" if found == "cut" and len(frame.data) >= frame.wire_bytes else found


def _parse_link(frame: Frame, link_type: int) -> Packet | Reason:
    start = _network_offset(frame.data, link_type)
    if not isinstance(start, int):
        return start
    if len(frame.data) <= start:
        return "cut"
    data = frame.data[start:]
    version = data[0] >> 4
    if version == 4:
        return _parse_ipv4(frame, data, link_type)
    if version == 6:
        return _parse_ipv6(frame, data, link_type)
    return "other"


def _network_offset(data: bytes, link_type: int) -> int | Reason:
    """Return where the IP header begins, or why there is none."""
    match link_type:
        case _ if link_type in (LINK_RAW, LINK_IPV4, LINK_IPV6):
            return 0
        case _ if link_type in (LINK_NULL, LINK_LOOP):
            if len(data) < 4:
                return "cut"
            # in the order of the machine that captured, which need not be that of the file
            return 4 if {int.from_bytes(data[:4], "big"), int.from_bytes(data[:4], "little")} & _FAMILIES else "other"
        case _ if link_type in (LINK_PPP, LINK_PPP_HDLC):
            start = 2 if data.startswith(_PPP_ADDRESS_AND_CONTROL) else 0
            if len(data) < start + 2:
                return "cut"
            size = 1 if data[start] & 1 else 2
            protocol = int.from_bytes(data[start : start + size], "big")
            return start + size if protocol in _PPP_PROTOCOLS else "other"
    # Offset of the EtherType, and of what follows the link-layer header.
    ethertype_at, start = {LINK_ETHERNET: (12, 14), LINK_SLL: (14, 16), LINK_SLL2: (0, 20)}[link_type]
    while True:
        if len(data) < start:
            return "cut"
        ethertype = int.from_bytes(data[ethertype_at : ethertype_at + 2], "big")
        if ethertype not in _ETHERTYPE_VLAN:
            break
        ethertype_at, start = start + 2, start + 4
    return start if ethertype in (_ETHERTYPE_IPV4, _ETHERTYPE_IPV6) else "other"


def _interface(frame: Frame, link_type: int) -> int:
    if link_type == LINK_SLL2:
        return int.from_bytes(frame.data[4:8], "big")
    return int(link_type == LINK_SLL and int.from_bytes(frame.data[:2], "big") == _SLL_OUTGOING)


def _parse_ipv4(frame: Frame, data: bytes, link_type: int) -> Packet | Reason:
    if len(data) < 20:
        return "cut"
    header = (data[0] & 0x0F) * 4
    # Where the network card is to cut the packet, the length may be left 0: it is the frame's.
    total = int.from_bytes(data[2:4], "big") or _left(frame, data)
    if header < 20 or total < header:
        return "malformed"
    if int.from_bytes(data[6:8], "big") & 0x3FFF:
        return "fragment" if data[9] in (_PROTOCOL_UDP, _PROTOCOL_TCP) else "other"
    return _parse_transport(
        frame,
        data[9],
        str(ipaddress.IPv4Address(data[12:16])),
        str(ipaddress.IPv4Address(data[16:20])),
        data[header:total],
        total - header,
        header,
        _interface(frame, link_type),
    )


def _left(frame: Frame, data: bytes) -> int:
    """Bytes of a frame from the IP header on."""
    return len(data) + frame.wire_bytes - len(frame.data)


def _parse_ipv6(frame: Frame, data: bytes, link_type: int) -> Packet | Reason:
    if len(data) < 40:
        return "cut"
    length = whole = int.from_bytes(data[4:6], "big") or _left(frame, data) - 40
    protocol = data[6]
    source = str(ipaddress.IPv6Address(data[8:24]))
    destination = str(ipaddress.IPv6Address(data[24:40]))
    body = data[40 : 40 + length]
    while protocol in _IPV6_EXTENSIONS:
        if length < 8:
            return "malformed"
        if len(body) < 8:
            return "cut"
        size = (body[1] + 1) * 8
        if size > length:
            return "malformed"
        protocol, body, length = body[0], body[size:], length - size
    whole_in_one = min(length, len(body)) >= 8 and not int.from_bytes(body[2:4], "big") & ~0x6
    if protocol == _IPV6_FRAGMENT and whole_in_one:
        # neither an offset nor more to come: a whole packet (RFC 6946)
        protocol, body, length = body[0], body[8:], length - 8
    if protocol == _IPV6_FRAGMENT:
        return "fragment" if body[:1] in (bytes([_PROTOCOL_UDP]), bytes([_PROTOCOL_TCP])) else "other"
    header = 40 + whole - length
    return _parse_transport(frame, protocol, source, destination, body, length, header, _interface(frame, link_type))


def _parse_transport(
    frame: Frame, protocol: int, source: str, destination: str, body: bytes, length: int, ip_header: int, interface: int
) -> Packet | Reason:
    """Parse the transport header at the start of ``body``, of which the link carried ``length`` bytes."""
    needed = {_PROTOCOL_UDP: 8, _PROTOCOL_TCP: 20}.get(protocol)
    if needed is None:
        return "other"
    if length < needed:
        return "malformed"
    if len(body) < needed:
        return "cut"
    if protocol == _PROTOCOL_UDP:
        source_port, destination_port, udp_length = struct.unpack("!HHH", body[:6])
        udp_length = udp_length or length  # as that of IP
        if not 8 <= udp_length <= length:
            return "malformed"
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
            ip_bytes=ip_header + length,
            interface=interface,
        )
    source_port, destination_port, sequence = struct.unpack("!HHI", body[:8])
    header = (body[12] >> 4) * 4
    if not 20 <= header <= length:
        return "malformed"
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
        ip_header + length,
        interface,
    )
