"""What the bytes on the wire prove about the variant of a transfer.

A build claims to encrypt, or to leave packets in the clear; this module looks. It takes a capture
of a short transfer from server to client (64 KiB or more of the content of :mod:`quicbed.contract.content`;
256 KiB make sure that the client acknowledges often enough), taken in link mode ``wire`` with whole
frames, and needs no secrets:

- the payload is in the clear where whole records of content can be read in it;
- QUIC header protection is off where reserved bits and packet numbers can be read
  (:func:`judge_headers`);
- the tag of the NOOP AEAD is the last 16 bytes of every packet, always the same;
- Initial packets are standard where they decrypt with the keys of RFC 9001, 5.2;
- cipher suite and key-exchange group are those of the ServerHello (:mod:`quicbed.wire.serverhello`).
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import exp, lgamma, log
from pathlib import Path
from statistics import fmean
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from quicbed.contract.content import visible_bytes
from quicbed.wire import serverhello
from quicbed.wire.pcap import ETHERNET_HEADER_BYTES, TCP_SYN, Capture, Packet
from quicbed.wire.quicwire import (
    SAMPLE_BYTES,
    TAG_BYTES,
    PacketType,
    QuicPacket,
    UnknownVersionError,
    WireError,
    crypto_stream,
    decode_packet_number,
    open_initial,
    parse_datagram,
    passed_over,
)

Transport = Literal["quic", "tcp", "udp"]
"""`udp`: datagrams without a handshake, whose payload is all there is to look at."""
Headers = Literal["clear", "protected", "mixed", "undecided"]
Tags = Literal["constant", "varying", "mixed", "undecided"]

MINIMUM_PAYLOAD_BYTES = 16_384
"""Less payload from the server than this says nothing about whether content is visible in it."""

CLEAR_FRACTION = 0.5
"""Smallest part of the server's payload that is readable content when the payload is in the clear.

Content is over 95 % of a bulk transfer; the margin is for handshakes with large certificates over
TCP.
"""

MINIMUM_SAMPLES = 10
"""Fewest different header-protection samples to judge headers by: 4**-10 < 1e-6."""

MIXED_PROBABILITY = 1e-6
"""Headers are mixed where so few packets look protected only with less than this probability."""

MAXIMUM_NUMBER_STEP = 64
"""Largest step between the packet numbers of neighbouring packets that counts as a plausible one.
"""

PLAUSIBLE_STEPS = 0.9
"""Smallest part of plausible steps in a plausible sequence; the rest is for losses and reordering.
"""

MINIMUM_TAGS = 2
"""Fewest tags to compare."""

_RESERVED_BITS = 0x18
REQUEST = re.compile(
    rb"GET /\d+(?: HTTP/1\.[01])?\r\n"
    # HTTP/3: a HEADERS frame (RFC 9114, 7.2.2) whose field section begins, after its prefix, with `:method: GET` and
    # `:scheme: https` of QPACK's static table, and later has a literal `:path` (RFC 9204, 4.5 and Appendix A)
    rb"|\x01[\x04-\x3f]..\xd1\xd7.{1,56}?\x51[\x80-\xbf]",
    re.DOTALL,
)
"""A client's request as it can be read in an unprotected packet."""
_TLS_CHANGE_CIPHER_SPEC = 20
_TLS_HANDSHAKE = 22
_TLS_APPLICATION_DATA = 23
_TLS_HEADER_BYTES = 5


class Variant(Protocol):
    """The part of a variant that can be seen on the wire."""

    @property
    def aead(self) -> str:
        """``standard``, ``noop`` or ``noenc``."""

    @property
    def header_protection(self) -> bool | None:
        """Whether QUIC header protection is on; without meaning for TCP."""

    @property
    def cipher_suite(self) -> int | None:
        """Code point of the cipher suite; ``None`` for any."""

    @property
    def group(self) -> int | None:
        """Code point of the key-exchange group; ``None`` for any."""


class Direction(BaseModel):
    """What one side sent."""

    model_config = ConfigDict(frozen=True)

    packets: int
    """UDP datagrams or TCP segments."""
    payload_bytes: int
    """UDP or TCP payload on the link, retransmissions included."""
    mean_frame_bytes: float | None
    """Mean size of the frames as they are on an Ethernet without tags and trailers: of the IP packets, whatever link
    was captured, and 14 bytes; ``None`` without any.
    """
    initial_packets: int | None
    """QUIC Initial packets; ``None`` for TCP."""
    initial_decrypted: int | None
    """Those of them that decrypt with the Initial keys of RFC 9001."""
    one_rtt_packets: int | None
    """QUIC 1-RTT packets, on which the verdicts about headers and tags rest; ``None`` for TCP."""
    samples: int | None
    """Different header-protection samples among them."""
    reserved_bits_set: int | None
    """Samples with a packet whose reserved bits read as other than zero."""
    headers: Headers | None
    """Whether QUIC headers can be read; ``None`` for TCP."""
    tags: Tags
    """Whether the last 16 bytes of the packets (TCP: of the TLS records) are always the same."""
    tag: str | None
    """The constant tag in hexadecimal."""


class Proof(BaseModel):
    """What a capture shows. A verdict is ``None`` where the capture decides nothing."""

    model_config = ConfigDict(frozen=True)

    transport: Transport
    server: str
    """Address and port of the server."""
    mtu: int
    """IP MTU of the link in bytes."""
    connections: int
    client_to_server: Direction
    server_to_client: Direction
    payload_in_clear: bool | None
    """Whether content can be read in what the server sent."""
    examined_bytes: int
    """The server's payload that was looked at (QUIC: of 1-RTT packets; TCP: every byte once)."""
    clear_fraction: float | None
    """Readable content as a part of that."""
    request_in_clear: bool | None
    """Whether the client's request can be read."""
    header_protection_off: bool | None
    """Whether QUIC headers can be read, in both directions."""
    tag_constant: bool | None
    """Whether both directions have constant tags."""
    initial_standard: bool | None
    """Whether all Initial packets, some from each side, are protected as RFC 9001 says."""
    cipher_suites: tuple[int, ...]
    """Cipher suites of the ServerHellos (code points), each once."""
    groups: tuple[int, ...]
    """Groups of their key shares (code points), each once."""
    hello_retry_requests: int
    """Connections with a HelloRetryRequest."""
    resumed: int = 0
    """Connections that resume the session of an earlier one: with a pre-shared key, or of TLS 1.2 abbreviated."""
    unread_hellos: int
    """Connections without a ServerHello that can be read."""
    max_frame_bytes: int | None
    """Longest frame, as in `Direction.mean_frame_bytes`."""
    cut_packets: int
    """Packets of which the capture holds only the beginning."""
    unattributed_packets: int
    """Datagrams that belong to no known QUIC connection or could not be parsed."""
    drops: int | None
    """Frames the capturing program lost, as far as it told."""
    truncation: str | None
    """Where the capture file ends within a frame."""
    left_out: tuple[str, ...] = ()
    """What is not in all of this, or in it twice, a sentence each without its full stop."""
    passed_over: str = ""
    """Datagrams of QUIC versions that are not read, in such a sentence; empty for none."""


@dataclass
class _Side:
    """What one end of one connection sent, in the order of the capture."""

    cid: bytes | None = None
    """The connection ID this end chose for itself: the one in packets it receives."""
    initials: list[QuicPacket] = field(default_factory=list)
    one_rtt: list[QuicPacket] = field(default_factory=list)


@dataclass
class _QuicConnection:
    client: _Side
    server: _Side
    initial_cids: list[bytes]
    """The connection IDs that Initial keys are made from: the client's first choice, then a
    Retry's.
    """


@dataclass(frozen=True)
class _Sighting:
    """A packet between the server and some client."""

    packet: Packet
    client: tuple[str, int]
    """The client's address and port."""
    from_server: bool


@dataclass(frozen=True)
class _Judgement:
    """What the protected packets of one direction show."""

    packets: int
    samples: int
    reserved_bits_set: int
    headers: Headers


@dataclass(frozen=True)
class _Sent:
    """What one end sent, over all connections."""

    payload: list[bytes]
    """Payload of the 1-RTT packets, or the reassembled TCP streams."""
    tags: list[bytes]
    headers: _Judgement | None = None
    initials: tuple[int, int] | None = None
    """How many Initial packets there are, and how many of them decrypt."""
    hellos: list[list[serverhello.ServerHello]] = field(default_factory=list)
    """What each connection has of ServerHello and HelloRetryRequest."""


@dataclass(frozen=True)
class _Seen:
    """What all packets of a capture say."""

    connections: int
    client: _Sent
    server: _Sent
    unattributed: int = 0
    unread: Counter[int] = field(default_factory=Counter)
    """Datagrams of QUIC versions that are not read."""


def examine(
    capture: Path,
    *,
    server_ip: str,
    server_port: int,
    transport: Transport,
    mtu: int,
    drops: int | None = None,
) -> Proof:
    """Say what a capture of transfers from one server proves.

    ``mtu`` is the IP MTU of the link in bytes, ``drops`` what
    the capturing program says it lost. Packets of other hosts and ports are passed over.
    Raises :class:`quicbed.wire.pcap.CaptureError` if the file is not a capture.
    """
    server = (str(ipaddress.ip_address(server_ip)), server_port)
    file = Capture(capture, allow_truncated=True)
    packets = _sightings(file, server, transport)
    seen = _examined(packets, transport)
    client_to_server = _direction(seen.client, [p.packet for p in packets if not p.from_server])
    server_to_client = _direction(seen.server, [p.packet for p in packets if p.from_server])
    both = (client_to_server, server_to_client)
    content_bytes = sum(map(visible_bytes, seen.server.payload))
    payload_bytes = sum(map(len, seen.server.payload))
    chosen = [hello for hellos in seen.server.hellos for hello in hellos if not hello.retry_request]
    return Proof(
        transport=transport,
        server=f"[{server[0]}]:{server_port}" if ":" in server[0] else f"{server[0]}:{server_port}",
        mtu=mtu,
        connections=seen.connections,
        client_to_server=client_to_server,
        server_to_client=server_to_client,
        payload_in_clear=_payload_verdict(content_bytes, payload_bytes),
        examined_bytes=payload_bytes,
        clear_fraction=round(content_bytes / payload_bytes, 4) if payload_bytes else None,
        request_in_clear=_request_verdict(seen.client.payload),
        header_protection_off=_agreement([side.headers for side in both], "clear", "protected"),
        tag_constant=_agreement([side.tags for side in both], "constant", "varying"),
        initial_standard=_initial_verdict(both),
        cipher_suites=tuple(sorted({hello.cipher_suite for hello in chosen})),
        groups=tuple(sorted({hello.group for hello in chosen if hello.group is not None})),
        hello_retry_requests=sum(any(h.retry_request for h in hellos) for hellos in seen.server.hellos),
        resumed=_resumed(seen),
        unread_hellos=sum(all(h.retry_request for h in hellos) for hellos in seen.server.hellos),
        max_frame_bytes=max((p.packet.ethernet_bytes for p in packets), default=None),
        cut_packets=sum(p.packet.cut for p in packets),
        unattributed_packets=seen.unattributed,
        drops=drops,
        truncation=file.truncation,
        left_out=tuple(file.problems(sighting.packet for sighting in packets)),
        passed_over=f"the capture {passed_over(seen.unread)}" if seen.unread else "",
    )


def resumed(capture: Path, *, server_ip: str, server_port: int, transport: Transport) -> int:
    """Connections in a capture that resumed the session of an earlier one, by what their servers sent.

    That is a ServerHello with a pre-shared key, or with TLS 1.2 a handshake without a certificate. Raises
    :class:`quicbed.wire.pcap.CaptureError` if the file is not a capture.
    """
    server = (str(ipaddress.ip_address(server_ip)), server_port)
    packets = _sightings(Capture(capture, allow_truncated=True), server, transport)
    return _resumed(_examined(packets, transport))


def _resumed(seen: _Seen) -> int:
    return sum(any(hello.resumed for hello in hellos) for hellos in seen.server.hellos)


def _sightings(file: Capture, server: tuple[str, int], transport: Transport) -> list[_Sighting]:
    protocol = "tcp" if transport == "tcp" else "udp"
    packets: list[_Sighting] = []
    for packet in file.packets():
        source = (packet.source, packet.source_port)
        destination = (packet.destination, packet.destination_port)
        if packet.protocol == protocol and server in (source, destination):
            from_server = source == server
            packets.append(_Sighting(packet, destination if from_server else source, from_server))
    return packets


def _examined(packets: list[_Sighting], transport: Transport) -> _Seen:
    if transport == "udp":
        return _examine_udp(packets)
    return _examine_quic(packets) if transport == "quic" else _examine_tcp(packets)


def check(proof: Proof, variant: Variant, resumed: int | None = None) -> list[str]:
    """Return the contradictions between what a variant claims and what was seen, as sentences.

    An empty list is a proof. A capture that decides nothing contradicts every variant. *resumed* is how many
    connections have to resume the session of an earlier one; None is not looked at.
    """
    client, server = proof.client_to_server, proof.server_to_client
    if not client.packets or not server.packets:
        return [
            f"The capture proves nothing: it holds {client.packets} packets to and "
            f"{server.packets} packets from {proof.server}.",
            *_left_out(proof),
        ]
    problems = _check_capture(proof)
    if not proof.connections and (proof.left_out or proof.passed_over):
        return problems
    problems += _check_hello(proof, variant)
    if resumed is not None and proof.resumed != resumed:
        problems.append(
            f"{proof.resumed} of {proof.connections} connections resume the session of an earlier one, instead of "
            f"{resumed}."
        )
    problems += _check_aead(proof, variant.aead)
    if proof.transport == "quic":
        problems += _check_headers(proof, protected=variant.header_protection is not False)
        problems += _check_initials(proof)
    elif variant.header_protection is False:
        problems.append("The variant has no header protection, but TCP has none to switch off.")
    if problems and proof.drops:
        problems.append(
            f"The capture lost {proof.drops} packets, which may be the reason: give tcpdump a larger "
            "buffer (-B) and a snapshot length little above the frame size (-s)."
        )
    return problems


def undecided(proof: Proof, variant: Variant, resumed: int | None = None) -> float | None:
    """How many times as large a transfer should be, where all that a proof (:func:`check`) lacks is enough packets to
    judge headers by; None for every other one.
    """
    judged = "clear" if variant.header_protection is False else "protected"
    sides = {"client_to_server": proof.client_to_server, "server_to_client": proof.server_to_client}
    few = {name: side for name, side in sides.items() if side.samples is not None and side.samples < MINIMUM_SAMPLES}
    decided = {name: side.model_copy(update={"headers": judged}) for name, side in few.items()}
    if not few or check(proof.model_copy(update=decided), variant, resumed):
        return None
    return 2 * MINIMUM_SAMPLES / max(1, min(side.samples or 0 for side in few.values()))


def judge_headers(connections: Iterable[list[QuicPacket]]) -> _Judgement:
    """Judge whether the 1-RTT headers of one direction can be read, from the packets of each
    connection.

    Without header protection the two reserved bits are zero in every packet (RFC 9000, 17.3.1) and
    the packet numbers that follow the connection ID, as long as the two low bits of the first byte
    say, make an increasing sequence. With header protection all of that is masked with a
    pseudo-random function of the packet's sample (RFC 9001, 5.4.1): both reserved bits read as zero
    in one sample out of four. Packets with the same sample have the same mask, so only different
    samples count; this matters where the NOOP AEAD leaves the sample in the clear.

    - ``clear``: reserved bits zero for all of n >= 10 samples, and at least 90 % of the steps
      between neighbouring packet
      numbers are other than zero and at most 64. Protected headers look so with a probability below
      4**-n, at most 1e-6.
    - ``protected``: a reserved bit is set for k > 0 of n >= 10 samples, and a binomial (n, 3/4) is
      k or less with a
      probability of 1e-6 or more. Clear headers never look so.
    - ``mixed``: k > 0, but smaller than that: only a part of the packets is protected. Protected
      headers look so with a
      probability below 1e-6.
    - ``undecided``: fewer samples, or zero reserved bits without plausible packet numbers.
    """
    packets = 0
    plausible = True
    reserved_bits_set: dict[bytes, bool] = {}
    for connection in connections:
        packets += len(connection)
        plausible &= _plausible_numbers(connection)
        for packet in connection:
            seen = reserved_bits_set.get(packet.sample, False)
            reserved_bits_set[packet.sample] = seen or bool(packet.data[0] & _RESERVED_BITS)
    samples, set_count = len(reserved_bits_set), sum(reserved_bits_set.values())
    headers: Headers
    if samples < MINIMUM_SAMPLES:
        headers = "undecided"
    elif set_count == 0:
        headers = "clear" if plausible else "undecided"
    elif _binomial_tail(set_count, samples) < MIXED_PROBABILITY:
        headers = "mixed"
    else:
        headers = "protected"
    return _Judgement(packets, samples, set_count, headers)


def _binomial_tail(count: int, trials: int) -> float:
    """Return the probability of at most ``count`` successes in ``trials``, each with 3/4."""
    return sum(
        exp(lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(0.75) + (trials - k) * log(0.25))
        for k in range(count + 1)
    )


def _plausible_numbers(packets: list[QuicPacket]) -> bool:
    """Whether the packet numbers, read as if they were in the clear, increase in small steps."""
    largest: int | None = None
    plausible = 0
    for packet in packets:
        size = (packet.data[0] & 0x03) + 1
        start = packet.packet_number_offset or 0
        truncated = int.from_bytes(packet.data[start : start + size], "big")
        if largest is None:
            largest = truncated
            continue
        number = decode_packet_number(largest, truncated, size)
        if 0 < abs(number - largest) <= MAXIMUM_NUMBER_STEP:
            plausible += 1
        largest = max(largest, number)
    return plausible >= PLAUSIBLE_STEPS * (len(packets) - 1)


def _judge_tags(tags: list[bytes]) -> Tags:
    """Judge whether tags are constant; two of a real AEAD are the same with probability 2**-128."""
    if len(tags) < MINIMUM_TAGS:
        return "undecided"
    different = len(set(tags))
    if different == 1:
        return "constant"
    return "varying" if different == len(tags) else "mixed"


def _direction(sent: _Sent, packets: list[Packet]) -> Direction:
    tags = _judge_tags(sent.tags)
    return Direction(
        packets=len(packets),
        payload_bytes=sum(packet.payload_bytes for packet in packets),
        mean_frame_bytes=round(fmean(packet.ethernet_bytes for packet in packets), 1) if packets else None,
        initial_packets=sent.initials[0] if sent.initials else None,
        initial_decrypted=sent.initials[1] if sent.initials else None,
        one_rtt_packets=sent.headers.packets if sent.headers else None,
        samples=sent.headers.samples if sent.headers else None,
        reserved_bits_set=sent.headers.reserved_bits_set if sent.headers else None,
        headers=sent.headers.headers if sent.headers else None,
        tags=tags,
        tag=sent.tags[0].hex() if tags == "constant" else None,
    )


def _payload_verdict(content_bytes: int, payload_bytes: int) -> bool | None:
    if payload_bytes < MINIMUM_PAYLOAD_BYTES:
        return None
    if content_bytes == 0:
        return False
    return True if content_bytes >= CLEAR_FRACTION * payload_bytes else None


def _agreement(verdicts: list[str | None], yes: str, no: str) -> bool | None:
    """``True`` where all directions say ``yes``, ``False`` where all say ``no``."""
    if all(verdict == yes for verdict in verdicts):
        return True
    return False if all(verdict == no for verdict in verdicts) else None


def _initial_verdict(directions: tuple[Direction, Direction]) -> bool | None:
    if not all(direction.initial_packets for direction in directions):
        return None
    return all(direction.initial_decrypted == direction.initial_packets for direction in directions)


def _request_verdict(payload: list[bytes]) -> bool | None:
    if not any(payload):
        return None
    return any(REQUEST.search(data) for data in payload)


def _examine_quic(packets: list[_Sighting]) -> _Seen:
    unread: Counter[int] = Counter()
    connections, unattributed = _quic_connections(packets, unread)
    return _Seen(
        connections=len(connections),
        client=_sent_quic(connections, from_server=False),
        server=_sent_quic(connections, from_server=True),
        unattributed=unattributed,
        unread=unread,
    )


def _sent_quic(connections: list[_QuicConnection], *, from_server: bool) -> _Sent:
    ends = [(c.server, c.client) if from_server else (c.client, c.server) for c in connections]
    one_rtt = [_without_strangers(sender.one_rtt, receiver.cid) for sender, receiver in ends]
    packets = [packet for connection in one_rtt for packet in connection]
    decrypted = [_decrypted(connection, from_server) for connection in connections]
    return _Sent(
        payload=[packet.data[1 + len(packet.destination_cid) : -TAG_BYTES] for packet in packets],
        tags=[packet.data[-TAG_BYTES:] for packet in packets],
        headers=judge_headers(one_rtt),
        initials=(sum(len(sender.initials) for sender, _ in ends), sum(map(len, decrypted))),
        hellos=[serverhello.read(crypto_stream(payloads)) for payloads in decrypted],
    )


def _quic_connections(packets: list[_Sighting], unread: Counter[int]) -> tuple[list[_QuicConnection], int]:
    """Attribute packets to connections; the second value counts datagrams that belong to none.

    Versions that are not read are counted in *unread*.
    """
    connections: list[_QuicConnection] = []
    # By the client's address: the connection that uses it now.
    current: dict[tuple[str, int], _QuicConnection] = {}
    unattributed = 0
    for sighting in packets:
        if sighting.packet.cut:
            continue
        connection = current.get(sighting.client)
        cid = None
        if connection is not None:
            cid = (connection.client if sighting.from_server else connection.server).cid
        try:
            datagram = parse_datagram(sighting.packet.payload, None if cid is None else len(cid))
        except WireError as error:
            if isinstance(error, UnknownVersionError):
                unread[error.version] += 1
            unattributed += 1
            continue
        first = datagram.packets[0]
        if not sighting.from_server and _opens(first, connection):
            connection = _QuicConnection(_Side(first.source_cid), _Side(), [first.destination_cid])
            connections.append(connection)
            current[sighting.client] = connection
        if connection is None:
            unattributed += 1
            continue
        for packet in datagram.packets:
            _attribute(connection, packet, from_server=sighting.from_server)
    return connections, unattributed


def _opens(packet: QuicPacket, connection: _QuicConnection | None) -> bool:
    """Whether a client's packet opens a connection other than the one its address uses so far.

    A client keeps its own connection ID during the handshake. An empty one tells nothing, but then
    the other one is new too. It may also be one that the server issued in a 1-RTT packet before the
    handshake was complete (OpenSSL's client uses such an ID at once, even in Initial packets): the
    packet's keys are those of the connection all the same.
    """
    if packet.type is not PacketType.INITIAL:
        return False
    if connection is None or packet.source_cid != connection.client.cid:
        return True
    known = (*connection.initial_cids, connection.server.cid)
    if packet.source_cid or packet.destination_cid in known:
        return False
    return open_initial(packet, connection.initial_cids, from_server=False) is None


def _attribute(connection: _QuicConnection, packet: QuicPacket, *, from_server: bool) -> None:
    """Add a packet to its connection and learn from it."""
    sender = connection.server if from_server else connection.client
    match packet.type:
        case PacketType.INITIAL:
            sender.cid = packet.source_cid
            sender.initials.append(packet)
        case PacketType.HANDSHAKE:
            sender.cid = packet.source_cid
        case PacketType.RETRY if packet.source_cid is not None:
            # The client's next Initial has this connection ID and keys made from it.
            connection.initial_cids.append(packet.source_cid)
        case PacketType.ONE_RTT if len(packet.sample) == SAMPLE_BYTES:
            sender.one_rtt.append(packet)
        case _:
            pass


def _without_strangers(packets: list[QuicPacket], cid: bytes | None) -> list[QuicPacket]:
    """Leave out stateless resets, which look like 1-RTT packets with random bytes (RFC 9000, 10.3).

    Their connection ID is random too: it is not the one of the handshake and, unlike one that was
    issued later, it does not come again.
    """
    seen = Counter(packet.destination_cid for packet in packets)
    return [packet for packet in packets if packet.destination_cid == cid or seen[packet.destination_cid] > 1]


def _decrypted(connection: _QuicConnection, from_server: bool) -> list[bytes]:
    """Plaintexts of the Initial packets of one side that decrypt with the Initial keys of RFC 9001."""
    side = connection.server if from_server else connection.client
    opened = (open_initial(packet, connection.initial_cids, from_server=from_server) for packet in side.initials)
    return [plaintext for plaintext in opened if plaintext is not None]


def _examine_udp(packets: list[_Sighting]) -> _Seen:
    def sent(*, from_server: bool) -> _Sent:
        payload = [one.packet.payload for one in packets if one.from_server == from_server]
        return _Sent(payload=payload, tags=[one[-TAG_BYTES:] for one in payload])

    connections = len({sighting.client for sighting in packets})
    return _Seen(connections, sent(from_server=False), sent(from_server=True))


def _examine_tcp(packets: list[_Sighting]) -> _Seen:
    return _Seen(
        connections=len({sighting.client for sighting in packets}),
        client=_sent_tcp([sighting for sighting in packets if not sighting.from_server]),
        server=_sent_tcp([sighting for sighting in packets if sighting.from_server]),
    )


def _sent_tcp(packets: list[_Sighting]) -> _Sent:
    segments: dict[tuple[str, int], list[Packet]] = {}
    for sighting in packets:
        segments.setdefault(sighting.client, []).append(sighting.packet)
    streams = [_reassemble(connection) for connection in segments.values()]
    return _Sent(
        payload=[run for stream in streams for run in stream],
        tags=[tag for stream in streams for tag in _tls_tags(stream[0])],
        hellos=[_hellos(stream[0]) for stream in streams],
    )


def _reassemble(segments: list[Packet]) -> list[bytes]:
    """Put one direction of a TCP connection together; every hole begins a new run of bytes.

    The first run begins at the first byte of the stream, or is empty where that was not captured.
    """
    first = next((s for s in segments if s.flags & TCP_SYN), None)
    base = (first.sequence + 1 if first else segments[0].sequence) & 0xFFFFFFFF
    # Offsets relative to the first byte, as signed 32-bit differences (RFC 9293, 3.4).
    pieces = sorted(
        (
            ((segment.sequence - base + 0x80000000) & 0xFFFFFFFF) - 0x80000000,
            segment.payload,
        )
        for segment in segments
        if segment.payload and not segment.flags & TCP_SYN
    )
    runs = [bytearray()]
    end = 0 if first else None
    for offset, data in pieces:
        if end is None or offset > end:
            runs.append(bytearray())
            end = offset
        if offset + len(data) > end:
            runs[-1] += data[end - offset :]
            end = offset + len(data)
    return [bytes(run) for run in runs]


def _tls_records(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each record at the start of a TLS stream (RFC 8446, 5.1)."""
    offset = 0
    while offset + _TLS_HEADER_BYTES <= len(stream):
        kind, major = stream[offset], stream[offset + 1]
        end = offset + _TLS_HEADER_BYTES + int.from_bytes(stream[offset + 3 : offset + 5], "big")
        if major != 3 or end > len(stream):
            break
        yield kind, stream[offset + _TLS_HEADER_BYTES : end]
        offset = end


def _tls_tags(stream: bytes) -> list[bytes]:
    """Return the last 16 bytes of each application-data record at the start of a TLS stream (RFC
    8446, 5.2).
    """
    return [
        content[-TAG_BYTES:]
        for kind, content in _tls_records(stream)
        if kind == _TLS_APPLICATION_DATA and len(content) > TAG_BYTES
    ]


def _hellos(stream: bytes) -> list[serverhello.ServerHello]:
    """ServerHello and HelloRetryRequest at the start of what a server sent."""
    found = serverhello.read(_tls_handshake(stream))
    before = itertools.takewhile(lambda record: record[0] != _TLS_CHANGE_CIPHER_SPEC, _tls_records(stream))
    changes = any(kind == _TLS_CHANGE_CIPHER_SPEC for kind, _ in _tls_records(stream))
    messages = b"".join(content for kind, content in before if kind == _TLS_HANDSHAKE)
    if changes and serverhello.abbreviated(messages):
        return [replace(hello, resumed=True) for hello in found]
    return found


def _tls_handshake(stream: bytes) -> bytes:
    """Return the handshake messages in the clear at the start of a TLS stream."""
    return b"".join(content for kind, content in _tls_records(stream) if kind == _TLS_HANDSHAKE)


def _left_out(proof: Proof) -> list[str]:
    # beside connections that are read, others prove nothing and contradict nothing
    told = [*proof.left_out, *([proof.passed_over] if proof.passed_over and not proof.connections else [])]
    return [f"{one[0].upper()}{one[1:]}." for one in told]


def _check_capture(proof: Proof) -> list[str]:
    """Contradictions between the capture and what a capture has to be."""
    problems = []
    if proof.truncation is not None:
        problems.append(f"The capture file is cut off: {proof.truncation}.")
    if proof.cut_packets:
        problems.append(
            f"The capture holds only the beginning of {proof.cut_packets} packets; capture whole frames (tcpdump -s)."
        )
    problems += _left_out(proof)
    limit = proof.mtu + ETHERNET_HEADER_BYTES
    if proof.max_frame_bytes is not None and proof.max_frame_bytes > limit:
        problems.append(
            f"A frame of {proof.max_frame_bytes} bytes was seen on a link with MTU {proof.mtu} "
            f"(frames of at most {limit} bytes): the link is not in wire mode, or has another MTU."
        )
    return problems


def _check_hello(proof: Proof, variant: Variant) -> list[str]:
    """Contradictions between what was to be negotiated and the ServerHellos."""
    asked = (("cipher suite", variant.cipher_suite, proof.cipher_suites), ("group", variant.group, proof.groups))
    if all(expected is None for _, expected, _ in asked):
        return []
    problems = []
    if proof.unread_hellos or not proof.connections:
        problems.append(f"No ServerHello can be read in {proof.unread_hellos} of {proof.connections} connections.")
    for what, expected, seen in asked:
        if expected is not None and seen and seen != (expected,):
            others = ", ".join(f"0x{value:04x}" for value in seen if value != expected)
            problems.append(f"The {what} is 0x{expected:04x}, but a ServerHello has {others}.")
    if variant.group is not None and proof.cipher_suites and not proof.groups:
        problems.append("A group is to be negotiated, but the ServerHello has no key share.")
    if proof.hello_retry_requests:
        problems.append("The server asked for another key share with a HelloRetryRequest.")
    return problems


def _check_aead(proof: Proof, aead: str) -> list[str]:
    """Contradictions between the claimed AEAD and payload, request and tags."""
    problems = []
    claim = f"The AEAD is {aead}"
    readable = aead != "standard"
    server = proof.server_to_client
    if proof.examined_bytes < MINIMUM_PAYLOAD_BYTES:
        problems.append(
            f"{claim}, but the capture holds only {proof.examined_bytes} bytes of payload from the "
            f"server; at least {MINIMUM_PAYLOAD_BYTES} are needed to judge it."
        )
    elif proof.payload_in_clear is None:
        problems.append(
            f"{claim}, but content is readable in {proof.clear_fraction:.1%} of what the server "
            "sent, neither nowhere nor in most of it."
        )
    elif proof.payload_in_clear != readable:
        problems.append(
            f"{claim}, but content is "
            + (
                "readable nowhere in what the server sent."
                if readable
                else f"readable in {proof.clear_fraction:.0%} of what the server sent."
            )
        )
    # a request that shares its datagram with the end of the handshake may not be told from it; the content still tells
    if proof.request_in_clear is not readable and (readable or proof.request_in_clear is not None):
        seen = {True: "can be read", False: "cannot be read", None: "was not captured"}[proof.request_in_clear]
        problems.append(f"{claim}, but the client's request {seen}.")
    expected: Tags = "constant" if aead == "noop" else "varying"
    for name, direction in (("client", proof.client_to_server), ("server", server)):
        # Without packet protection there is no tag: a packet ends with what it carries, which may be the same padding.
        if aead == "noenc" and direction.tags == "mixed":
            continue
        # Too few TLS records are no contradiction: the payload has been judged already.
        if direction.tags == expected or (proof.transport == "tcp" and direction.tags == "undecided"):
            continue
        problems.append(
            f"{claim}, so the tags of the {name}'s packets must be {expected}, but they are {direction.tags}."
        )
    return problems


def _check_headers(proof: Proof, *, protected: bool) -> list[str]:
    """Contradictions between the claimed header protection and the 1-RTT headers of both sides."""
    expected: Headers = "protected" if protected else "clear"
    claim = f"Header protection is {'on' if protected else 'off'}"
    return [
        f"{claim}, so the {name}'s headers must be {expected}, but they are {direction.headers}: "
        f"reserved bits are set for {direction.reserved_bits_set} of {direction.samples} different "
        f"samples in {direction.one_rtt_packets} packets (at least {MINIMUM_SAMPLES} samples are "
        "needed)."
        for name, direction in (
            ("client", proof.client_to_server),
            ("server", proof.server_to_client),
        )
        if direction.headers != expected
    ]


def _check_initials(proof: Proof) -> list[str]:
    """Contradictions between the Initial packets and RFC 9001."""
    return [
        f"Initial packets must be standard, but {direction.initial_decrypted} of the "
        f"{direction.initial_packets} from the {name} decrypt with the Initial keys of RFC 9001."
        for name, direction in (
            ("client", proof.client_to_server),
            ("server", proof.server_to_client),
        )
        if not direction.initial_packets or direction.initial_decrypted != direction.initial_packets
    ]
