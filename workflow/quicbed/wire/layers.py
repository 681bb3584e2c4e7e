"""Every byte of a decrypted capture by its layer, packet by packet, for QUIC and for TLS 1.3 over TCP.

A packet is a frame of the link: a UDP datagram or a TCP segment. Its bytes are all in one of `LAYERS`, so that they add
up to the size of the frame. Retransmitted bytes count as often as they are sent.

Packets are opened with the secrets of a key log (RFC 9001, 5.1; RFC 8446, 7.3). Initial packets need none, and neither
does a build with the NOOP AEAD and without header protection, whose packets are laid out as any others. What cannot be
opened is `opaque`: TLS 1.2, records after a key update of TLS, and what the key log has no secrets of.

HTTP is told by its bytes: HTTP/1 and HTTP/0.9 by a request, HTTP/2 by its preface (RFC 9113, 3.4), HTTP/3 by a HEADERS
frame at the beginning of a request stream (RFC 9114, 4.1). Other protocols have no bytes but content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl
from cryptography.exceptions import InvalidTag

from quicbed.wire import handshake, quicwire, serverhello, tshark
from quicbed.wire.opened import Opened, Place, Role
from quicbed.wire.pcap import TCP_SYN, Capture, CaptureError, Packet
from quicbed.wire.quicwire import TAG_BYTES, PacketKeys, PacketType, WireError

Layer = Literal[
    "link",  # header and padding of the frame
    "ip",
    "udp_tcp",  # header of either
    "quic_long",  # long headers with packet numbers, Retry and Version Negotiation packets
    "quic_short",  # short headers with packet numbers
    "tag",  # of the AEAD
    "frames",  # QUIC frames but for the data in them
    "padding",  # PADDING frames, and bytes behind the last packet of a datagram
    "records",  # headers and content types of TLS records
    "tls",  # messages of TLS: in CRYPTO frames, or in records that have no application data
    "http",
    "content",
    "opaque",  # not decrypted
]
LAYERS: tuple[Layer, ...] = get_args(Layer)

ROW: Mapping[str, pl.DataType] = {
    "connection": pl.Int64(),  # of the capture: 0, 1, ...
    "packet": pl.Int64(),  # of the connection: 0, 1, ...
    "time_ms": pl.Float64(),  # since its first packet
    "role": pl.String(),  # who sent it
    "what": pl.String(),  # messages and frames in it, for people
    "frame_bytes": pl.Int64(),  # of the frame on the link
    **dict.fromkeys(LAYERS, pl.Int64()),  # of these
}
"""Columns of a table of packets."""

_MESSAGES = {
    1: "ClientHello",
    2: "ServerHello",
    4: "Ticket",
    8: "EncryptedExtensions",
    11: "Certificate",
    13: "CertificateRequest",
    15: "CertificateVerify",
    20: "Finished",
    24: "KeyUpdate",
    25: "CompressedCertificate",
}

# RFC 8446, 5.1
_RECORD_HEADER_BYTES = 5
_ALERT, _HANDSHAKE, _APPLICATION_DATA = 21, 22, 23
_PLAIN_TYPES = {20: "ChangeCipherSpec", _ALERT: "alert", _HANDSHAKE: "handshake", _APPLICATION_DATA: "data"}

# RFC 9293, 3.1
_TCP_FLAGS = {0x02: "SYN", 0x01: "FIN", 0x04: "RST"}
_TCP_ACK = 0x10

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP3_HEADERS = b"\x01"


@dataclass(slots=True)
class Unit:
    """A packet of a connection."""

    time_ns: int
    """Since 1970."""
    role: Role
    """Who sent it."""
    frame_bytes: int
    """Of the frame on the link."""
    layers: dict[Layer, int] = field(default_factory=dict)
    """Bytes by layer; they add up to `frame_bytes`."""
    label: str = ""
    """What is in it, for people."""
    messages: frozenset[str] = frozenset()
    """TLS messages of which it brings the last byte."""


@dataclass(slots=True)
class Connection:
    """A connection of a capture, of the order of the packets in the file."""

    index: int
    """0, 1, ... in the order of the first packets."""
    transport: Literal["quic", "tcp"]
    units: list[Unit]

    def moment(self, role: Role, message: str) -> int | None:
        """When the packet came that completes a TLS message of an end, ns since 1970; the first one."""
        sent = (unit for unit in self.units if unit.role == role)
        return next((unit.time_ns for unit in sent if message in unit.messages), None)

    @property
    def contents(self) -> list[int]:
        """When packets of the server with content came, ns since 1970."""
        return [unit.time_ns for unit in self.units if unit.role == "server" and unit.layers.get("content")]

    def rows(self) -> list[dict[str, Any]]:
        """A row a packet, with the columns `ROW`."""
        begin = self.units[0].time_ns
        return [
            {
                "connection": self.index,
                "packet": number,
                "time_ms": (unit.time_ns - begin) / 1e6,
                "role": unit.role,
                "what": unit.label,
                "frame_bytes": unit.frame_bytes,
                **{layer: unit.layers.get(layer, 0) for layer in LAYERS},
            }
            for number, unit in enumerate(self.units)
        ]

    @property
    def opaque(self) -> int:
        """Bytes that could not be decrypted."""
        return sum(unit.layers.get("opaque", 0) for unit in self.units)


def read(capture: Path, key_log: Path | None, *, port: int, clear: bool = False) -> list[Connection]:
    """The connections of a capture with the first server that has this *port*, in their order; see `connections`.

    Raises CaptureError for a capture that cannot be used, and TsharkError for a key log that is none.
    """
    file = Capture(capture, allow_truncated=True)
    packets = [packet for packet in file.packets() if port in (packet.source_port, packet.destination_port)]
    if problems := file.problems(packets):
        raise CaptureError(f"{capture}: {problems[0]}")
    if not packets:
        raise CaptureError(f"{capture}: no packet from or to port {port}")
    first = packets[0]
    to_server = first.destination_port == port
    server = (first.destination, port) if to_server else (first.source, port)
    secrets = {} if key_log is None else tshark.read_key_log(key_log)
    unread = handshake.Unread()
    own = [one for one in packets if one.protocol == first.protocol]
    found = connections(own, server, secrets, clear=clear, unread=unread)
    if not found and (said := unread.sentences()):
        raise CaptureError(f"{capture}: no connection is there to read; {'; '.join(said)}")
    return found


def connections(
    packets: Sequence[Packet],
    server: tuple[str, int],
    secrets: Mapping[str, Mapping[str, bytes]],
    *,
    clear: bool = False,
    unread: handshake.Unread | None = None,
) -> list[Connection]:
    """The connections with a server, by address and port, among packets of UDP or of TCP.

    *secrets* are those of a key log by client random and label. *clear* says that the build has the NOOP AEAD and, of
    QUIC, no header protection. Datagrams of no connection are counted in *unread*. Raises CaptureError where a frame
    was not captured whole.
    """
    own = []
    for packet in packets:
        if packet.cut:
            raise CaptureError(f"frame {packet.frame.index} was cut off; capture whole frames")
        if server in ((packet.source, packet.source_port), (packet.destination, packet.destination_port)):
            own.append(packet)
    if own and own[0].protocol == "tcp":
        return [
            Connection(index, "tcp", _Tcp(one, server, secrets, clear).units())
            for index, one in enumerate(_tcp_connections(own, server))
        ]
    by_frame = {packet.frame.index: packet for packet in own}
    known = handshake.quic_connections(own, server, unread)
    return [Connection(index, "quic", _Quic(one, by_frame, secrets, clear).units()) for index, one in enumerate(known)]


def _outside(packet: Packet) -> dict[Layer, int]:
    """Bytes of the headers around a UDP or TCP payload."""
    headers = packet.ip_header_bytes + packet.transport_header_bytes
    return {
        "link": packet.frame.wire_bytes - headers - packet.payload_bytes,
        "ip": packet.ip_header_bytes,
        "udp_tcp": packet.transport_header_bytes,
    }


def _nonzero(layers: Mapping[Layer, int]) -> dict[Layer, int]:
    return {layer: layers[layer] for layer in LAYERS if layers.get(layer)}


# ---- parts of streams ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of a stream that are of one kind."""

    start: int
    end: int
    kind: str


def _within(spans: Sequence[_Span], start: int, end: int) -> Iterator[tuple[str, int]]:
    """Kind and number of bytes of every span that has some between two offsets."""
    for span in spans:
        if (size := min(end, span.end) - max(start, span.start)) > 0:
            yield span.kind, size


def _messages(stream: bytes) -> list[_Span]:
    """TLS handshake messages (RFC 8446, 4) by name."""
    found, at = [], 0
    while at + 4 <= len(stream):
        end = at + 4 + int.from_bytes(stream[at + 1 : at + 4], "big")
        found.append(_Span(at, end, _MESSAGES.get(stream[at], f"message {stream[at]}")))
        at = end
    return found


def _http(up: bytes, down: bytes) -> tuple[list[_Span], list[_Span]]:
    """The parts of both directions of a stream that are HTTP and not content."""
    if up.startswith(_HTTP2_PREFACE):
        begin = len(_HTTP2_PREFACE)
        return [_Span(0, begin, "http"), *_http2(up, begin)], _http2(down, 0)
    if up.startswith(_HTTP3_HEADERS):
        return _http3(up), _http3(down)
    if up.startswith((b"GET ", b"HEAD ", b"POST ")):
        return [_Span(0, len(up), "http")], _http1(down)
    return [], []


def _http1(data: bytes) -> list[_Span]:
    """Heads of responses (RFC 9112, 4 to 6); HTTP/0.9 has none."""
    found, at = [], 0
    while data.startswith(b"HTTP/1.", at) and (end := data.find(b"\r\n\r\n", at)) >= 0:
        found.append(_Span(at, end + 4, "http"))
        lines = data[at:end].lower().split(b"\r\n")
        length = next((line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")), b"")
        if not length.strip().isdigit():
            break  # up to the end of the connection
        at = end + 4 + int(length)
    return found


def _http2(data: bytes, at: int) -> list[_Span]:
    """Frames of HTTP/2 (RFC 9113, 4.1), of DATA frames without padding the header only."""
    found = []
    while at + 9 <= len(data):
        length, is_data = int.from_bytes(data[at : at + 3], "big"), data[at + 3] == 0
        found.append(_Span(at, at + 9 + (0 if is_data else length), "http"))
        at += 9 + length
    return found


def _http3(data: bytes) -> list[_Span]:
    """Frames of HTTP/3 (RFC 9114, 7.1), of DATA frames the header only."""
    found, at = [], 0
    while at < len(data):
        try:
            kind, body = quicwire.varint(data, at)
            length, body = quicwire.varint(data, body)
        except WireError:
            break
        found.append(_Span(at, body if kind == 0 else body + length, "http"))
        at = body + length
    return found


# ---- QUIC ------------------------------------------------------------------------------------------------------------

Sides = dict[Role, PacketKeys]
Stream = tuple[Role, int]


class _Quic:
    """Sorts the bytes of the packets of a connection."""

    def __init__(
        self,
        connection: handshake.Connection,
        by_frame: Mapping[int, Packet],
        secrets: Mapping[str, Mapping[str, bytes]],
        clear: bool,
    ):
        self.connection = connection
        self.by_frame = by_frame
        self.opened = connection.open(secrets, clear=clear).packets
        self._spans()

    def _spans(self) -> None:
        """What the bytes of CRYPTO and other streams are."""
        crypto: dict[Place, list[tuple[int, bytes]]] = defaultdict(list)
        streams: dict[Stream, list[tuple[int, bytes]]] = defaultdict(list)
        for unit, opened in zip(self.connection.units, self.opened, strict=True):
            for one in opened:
                for frame in one.frames or ():
                    if frame.type == quicwire.CRYPTO:
                        crypto[one.place].append((frame.offset, frame.data))
                    elif frame.stream is not None:
                        streams[unit.role, frame.stream].append((frame.offset, frame.data))
        self.messages = {place: _messages(quicwire.joined(pieces)) for place, pieces in crypto.items()}
        self.http: dict[Stream, list[_Span]] = {}
        whole = {place: quicwire.joined(pieces) for place, pieces in streams.items()}
        requests = {stream for _, stream in whole if stream % 4 == 0}  # RFC 9000, 2.1: bidirectional, of the client
        for stream in requests:
            up, down = _http(whole.get(("client", stream), b""), whole.get(("server", stream), b""))
            self.http["client", stream], self.http["server", stream] = up, down
        if any(whole.get(("client", stream), b"").startswith(_HTTP3_HEADERS) for stream in requests):
            for place, data in whole.items():
                if place[1] % 4 >= 2:  # unidirectional: control and QPACK streams (RFC 9114, 6.2)
                    self.http[place] = [_Span(0, len(data), "http")]

    def units(self) -> list[Unit]:
        """Every datagram."""
        return [self._unit(unit, opened) for unit, opened in zip(self.connection.units, self.opened, strict=True)]

    def _unit(self, unit: handshake.Unit, opened: Sequence[Opened]) -> Unit:
        packet = self.by_frame[unit.frame]
        layers: dict[Layer, int] = defaultdict(int, _outside(packet))
        layers["padding"] = unit.size - sum(len(one.packet.data) for one in opened)
        words: list[str] = []
        complete: set[str] = set()
        for one in opened:
            names = self._count(one, unit.role, layers, complete)
            words.append(f"{one.packet.type.value}: {', '.join(names)}" if names else one.packet.type.value)
        label = " + ".join(words)
        return Unit(unit.time_ns, unit.role, packet.frame.wire_bytes, _nonzero(layers), label, frozenset(complete))

    def _count(self, one: Opened, role: Role, layers: dict[Layer, int], complete: set[str]) -> list[str]:
        """Add the bytes of a packet to *layers*, and the messages it completes; returns what is in it, in order."""
        header: Layer = "quic_short" if one.packet.type is PacketType.ONE_RTT else "quic_long"
        if one.frames is None or not one.whole:
            known = one.header_bytes if one.frames is None else 0
            layers[header] += known
            layers["opaque"] += len(one.packet.data) - known
            return []
        layers[header] += one.header_bytes
        layers["tag"] += TAG_BYTES
        names: dict[str, None] = {}
        for frame in one.frames:
            end = frame.offset + len(frame.data)
            if frame.type == quicwire.PADDING:
                layers["padding"] += frame.size
                continue
            layers["frames"] += frame.size - len(frame.data)
            if frame.type == quicwire.CRYPTO:
                layers["tls"] += len(frame.data)
                spans = self.messages[one.place]
                names |= dict.fromkeys(kind for kind, _ in _within(spans, frame.offset, end))
                complete |= {span.kind for span in spans if frame.offset < span.end <= end}
                continue
            names[frame.name] = None
            if frame.stream is not None:
                http = sum(size for _, size in _within(self.http.get((role, frame.stream), ()), frame.offset, end))
                layers["http"] += http
                layers["content"] += len(frame.data) - http
        return list(names)


def _keys(own: Mapping[str, bytes], label: str, cipher_suite: int | None) -> Sides:
    """Keys of TLS of both ends from secrets whose labels end alike; without those that cannot be told."""
    found: Sides = {}
    roles: tuple[Role, ...] = ("client", "server")
    for role in roles:
        secret = own.get(f"{role.upper()}_{label}")
        if secret is not None and cipher_suite is not None:
            try:
                found[role] = quicwire.traffic_keys(secret, cipher_suite, quic=False)
            except WireError:
                continue
    return found


# ---- TLS over TCP ----------------------------------------------------------------------------------------------------


def _tcp_connections(packets: Sequence[Packet], server: tuple[str, int]) -> list[list[Packet]]:
    """The packets of connections whose SYN was captured; a port may be used again."""
    found: list[list[Packet]] = []
    current: dict[tuple[str, int], list[Packet]] = {}
    for packet in packets:
        source = packet.source, packet.source_port
        client = (packet.destination, packet.destination_port) if source == server else source
        again = client in current and not any(one.payload_bytes for one in current[client])
        if source == client and packet.flags & TCP_SYN and not again:
            current[client] = []
            found.append(current[client])
        if client in current:
            current[client].append(packet)
    return found


@dataclass(slots=True)
class _Record:
    """A TLS record of a stream."""

    start: int
    end: int
    kind: int
    """Its content type, once it is opened that in it."""
    plain: bytes | None
    """Its content; None: not opened."""
    opened: bool = False
    """Whether it was protected."""


class _Tcp:
    """Opens the records of a connection and sorts the bytes of its segments."""

    def __init__(
        self,
        packets: Sequence[Packet],
        server: tuple[str, int],
        secrets: Mapping[str, Mapping[str, bytes]],
        clear: bool,
    ):
        self.packets = packets
        self.server = server
        self.clear = clear
        pieces: dict[Role, list[tuple[int, bytes]]] = {"client": [], "server": []}
        self.base: dict[Role, int] = {}
        for packet in packets:
            role = self._role(packet)
            if packet.flags & TCP_SYN or role not in self.base:
                self.base[role] = packet.sequence + bool(packet.flags & TCP_SYN)
            if packet.payload:
                pieces[role].append((self._offset(packet), packet.payload))
        streams = {role: quicwire.joined(one) for role, one in pieces.items()}
        self.records = {role: list(_records(stream)) for role, stream in streams.items()}
        hello, answers = (self._plain(role) for role in pieces)
        own = secrets.get(hello[6:38].hex(), {})
        chosen = next((one.cipher_suite for one in serverhello.read(answers) if not one.retry_request), None)
        stages = [_keys(own, f"{name}TRAFFIC_SECRET{end}", chosen) for name, end in _STAGES]
        for role in pieces:
            self._open(role, streams[role], [keys[role] for keys in stages if role in keys])
        self._spans()

    def _role(self, packet: Packet) -> Role:
        return "server" if (packet.source, packet.source_port) == self.server else "client"

    def _offset(self, packet: Packet) -> int:
        """Of the first byte in the stream of its sender."""
        ahead = packet.sequence - self.base[self._role(packet)]
        return (ahead + 2**31) % 2**32 - 2**31

    def _plain(self, role: Role) -> bytes:
        """Handshake messages in the clear."""
        return b"".join(one.plain or b"" for one in self.records[role] if one.kind == _HANDSHAKE)

    def _content(self, role: Role) -> bytes:
        """Application data, HTTP or not."""
        return b"".join(one.plain or b"" for one in self.records[role] if one.kind == _APPLICATION_DATA)

    def _open(self, role: Role, stream: bytes, stages: list[PacketKeys]) -> None:
        """Open protected records, with the keys of each stage in turn (RFC 8446, 5.2 and 5.3)."""
        number = 0
        for record in self.records[role]:
            if record.kind != _APPLICATION_DATA:
                continue
            header = stream[record.start : record.start + _RECORD_HEADER_BYTES]
            body = stream[record.start + _RECORD_HEADER_BYTES : record.end]
            inner = body[:-TAG_BYTES] if self.clear else None
            while inner is None and stages:
                try:
                    inner = stages[0].aead.decrypt(quicwire.nonce(stages[0].iv, number), body, header)
                    number += 1
                except InvalidTag:
                    stages.pop(0)
                    number = 0
            inner = (inner or b"").rstrip(b"\0")
            if inner and inner[-1] in _PLAIN_TYPES:
                record.kind, record.plain, record.opened = inner[-1], inner[:-1], True

    def _spans(self) -> None:
        up, down = _http(self._content("client"), self._content("server"))
        self.spans: dict[Role, list[_Span]] = {}
        self.messages: dict[Role, list[_Span]] = {}
        self.spans["client"], self.messages["client"] = _layered(self.records["client"], up)
        self.spans["server"], self.messages["server"] = _layered(self.records["server"], down)

    def units(self) -> list[Unit]:
        """Every segment."""
        return [self._unit(packet) for packet in self.packets]

    def _unit(self, packet: Packet) -> Unit:
        role = self._role(packet)
        layers: dict[Layer, int] = defaultdict(int, _outside(packet))
        names: dict[str, None] = dict.fromkeys(name for flag, name in _TCP_FLAGS.items() if packet.flags & flag)
        if "SYN" in names and packet.flags & _TCP_ACK:
            names["ACK"] = None
        complete: set[str] = set()
        if packet.payload_bytes:
            start = self._offset(packet)
            end = start + packet.payload_bytes
            kinds = set()
            for kind, size in _within(self.spans[role], start, end):
                layers[_layer(kind)] += size
                kinds.add(kind)
            layers["opaque"] += packet.payload_bytes - sum(size for _, size in _within(self.spans[role], start, end))
            names |= dict.fromkeys(kind for kind, _ in _within(self.messages[role], start, end))
            complete = {span.kind for span in self.messages[role] if start < span.end <= end}
            if layers["content"] or layers["http"]:
                names["data"] = None
            if "opaque" in kinds or not names:
                names["protected"] = None  # a record that was not opened, or a part of one
        label = ", ".join(names) or "ACK"
        return Unit(packet.frame.time_ns, role, packet.frame.wire_bytes, _nonzero(layers), label, frozenset(complete))


_STAGES = (("HANDSHAKE_", ""), ("", "_0"))


def _layer(kind: str) -> Layer:
    return next(layer for layer in LAYERS if layer == kind)


def _records(stream: bytes) -> Iterator[_Record]:
    """TLS records at the start of a stream that are whole (RFC 8446, 5.1)."""
    at = 0
    while at + _RECORD_HEADER_BYTES <= len(stream) and stream[at] in _PLAIN_TYPES and stream[at + 1] == 3:
        end = at + _RECORD_HEADER_BYTES + int.from_bytes(stream[at + 3 : at + 5], "big")
        if end > len(stream):
            return
        protected = stream[at] == _APPLICATION_DATA
        yield _Record(at, end, stream[at], None if protected else stream[at + _RECORD_HEADER_BYTES : end])
        at = end


def _layered(records: Sequence[_Record], http: Sequence[_Span]) -> tuple[list[_Span], list[_Span]]:
    """Layers of the bytes of a TCP stream, and the names of messages in it, by offset in the stream."""
    layers, names = [], []
    # offsets of the application data, and of the handshake messages by whether they are protected
    data = 0
    begun: dict[bool, bytes] = {False: b"", True: b""}
    places: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for record in records:
        at = record.start + _RECORD_HEADER_BYTES
        layers.append(_Span(record.start, at, "records"))
        if record.plain is None:
            layers.append(_Span(at, record.end, "opaque"))
            continue
        end = at + len(record.plain)
        if record.kind == _APPLICATION_DATA:
            part = sorted((max(span.start, data), min(span.end, data + len(record.plain))) for span in http)
            before = data
            for first, last in part:
                if first < last:
                    layers.append(_Span(at + before - data, at + first - data, "content"))
                    layers.append(_Span(at + first - data, at + last - data, "http"))
                    before = last
            layers.append(_Span(at + before - data, end, "content"))
            data += len(record.plain)
        else:
            layers.append(_Span(at, end, "tls"))
            if record.kind == _HANDSHAKE:
                places[record.opened].append((len(begun[record.opened]), at))
                begun[record.opened] += record.plain
            else:
                names.append(_Span(at, end, _PLAIN_TYPES[record.kind]))
        if record.opened:
            layers.append(_Span(end, record.end - TAG_BYTES, "records"))
            layers.append(_Span(record.end - TAG_BYTES, record.end, "tag"))
    for opened, messages in begun.items():
        for span in _messages(messages):
            start, last = (_placed(places[opened], offset) for offset in (span.start, span.end - 1))
            names.append(_Span(start, last + 1, span.kind))
    return layers, sorted(names, key=lambda span: span.start)


def _placed(places: Sequence[tuple[int, int]], offset: int) -> int:
    """Where in a TCP stream a byte of the handshake messages is."""
    begin, at = [place for place in places if place[0] <= offset][-1]
    return at + offset - begin
