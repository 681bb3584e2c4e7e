"""Handshakes as a capture shows them: packets and bytes by role and encryption level, messages, waiting.

The sources are independent of the libraries under test. Datagrams are split into packets by their headers
(:mod:`quicbed.wire.quicwire`), which needs no keys, so that the counts by level are right also where nothing can be
decrypted; what the packets hold is opened with the key log (:mod:`quicbed.wire.opened`). What TLS over TCP holds comes
from one call of tshark (:mod:`quicbed.wire.tshark`).

What counts as *during the handshake*
-------------------------------------

The Initial, Handshake and Retry packets captured from the client's first packet up to and including the packet that
carries the client's Finished: the moment from which the client is able to send its request (RFC 9001, 4.1.1), where
time to first byte ends. The unit is the *packet*, not the datagram: X25519 with an RSA-2048 certificate then takes 3
packets of the client (Initial with the ClientHello; Initial with an ACK; Handshake with the Finished) and 3 of the
server (Initial with the ServerHello; two Handshake packets with EncryptedExtensions to Finished), as Table II of "A
Quantum of QUIC" has it for LSQUIC and quiche. In datagrams it would be 2 and 2, and with the 1-RTT packet that a client
may put behind its Finished in the same datagram 4 and 3. Datagrams are counted beside packets, so that either can be
shown.

Not counted are 1-RTT packets, which belong to the request: one that a server sends before the Finished is listed under
its level, but whether it crosses the tap before the Finished is a race. Nor are acknowledgements that a client sends
after its Finished.

With TCP the units are segments with payload. SYN segments are not counted, bare ACK segments on their own.

Without the keys of a connection the end is the client's first 1-RTT packet, and :attr:`Handshake.problem` says so.

The capture must show datagrams as they are on the link (link mode ``wire``): segments that an offload joins look like
coalesced packets.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from quicbed.base.errors import QuicbedError
from quicbed.config.algorithms import Table
from quicbed.contract.events import ClientConnection, ServerConnection
from quicbed.wire import messages as tls
from quicbed.wire import tshark
from quicbed.wire.messages import Message
from quicbed.wire.opened import Opened, Opener, Role, Secrets
from quicbed.wire.pcap import TCP_SYN, Capture, CaptureError, Packet
from quicbed.wire.quicwire import (
    CRYPTO,
    PacketType,
    QuicPacket,
    UnknownVersionError,
    WireError,
    open_initial,
    parse_datagram,
    passed_over,
)
from quicbed.wire.tshark import QuicDetails, TsharkError

Level = Literal["initial", "0rtt", "handshake", "1rtt", "retry", "version-negotiation"]

_LEVELS: dict[PacketType, Level] = {
    PacketType.INITIAL: "initial",
    PacketType.ZERO_RTT: "0rtt",
    PacketType.HANDSHAKE: "handshake",
    PacketType.ONE_RTT: "1rtt",
    PacketType.RETRY: "retry",
    PacketType.VERSION_NEGOTIATION: "version-negotiation",
}

AMPLIFICATION_FACTOR = 3
"""How many times the bytes received a server may send before it has validated the address (RFC 9000, 8.1)."""

CIPHER_SUITES = {"aes-128-gcm": 0x1301, "aes-256-gcm": 0x1302, "chacha20-poly1305": 0x1303}
"""Code points of the configuration's ciphers (RFC 8446, B.4)."""

TLS12_SUITES = {"aes-128-gcm": 0xC02F, "aes-256-gcm": 0xC030, "chacha20-poly1305": 0xCCA8}
"""Those of TLS 1.2 with ECDHE and RSA (RFC 5289, 3.2; RFC 7905, 2), which TLS 1.3 does not have (RFC 8446, B.4)."""

# RFC 9000, 19
_PADDING = 0x00
_ACKS = (0x02, 0x03)
_HANDSHAKE_DONE = 0x1E
_TLS_RECORD_HEADER = 5
_CHANGE_CIPHER_SPEC_BYTES = 6
"""Of its record, which a client that sends early data puts behind its ClientHello (RFC 8446, D.4)."""


class HandshakeError(QuicbedError):
    """A capture or key log that cannot be used: one line naming the file and the remedy."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LevelCounts(_Model):
    """What one role sent at one encryption level during the handshake."""

    packets: int = Field(description="QUIC packets.")
    bytes: int = Field(description="Their bytes with header and authentication tag, without padding outside packets.")
    crypto_bytes: int = Field(description="TLS bytes in their CRYPTO frames, retransmissions included.")
    ack_only_packets: int = Field(description="Packets with nothing but ACK and PADDING frames.")


class Sent(_Model):
    """What one role sent during the handshake."""

    packets: int = Field(description="Initial, Handshake and Retry packets, or TCP segments with payload.")
    datagrams: int = Field(description="UDP datagrams with at least one of `packets`, or TCP segments with payload.")
    bytes: int = Field(description="Payload of `datagrams` in bytes, padding and retransmissions included.")
    largest_datagram_bytes: int = Field(description="Longest UDP or TCP payload in bytes.")
    levels: dict[Level, LevelCounts] = Field(
        description="By encryption level (QUIC), 1-RTT packets before the Finished included; absent without packets."
    )
    ack_only_packets: int = Field(
        description="QUIC packets with nothing but ACK and PADDING frames, or TCP segments with ACK and no payload."
    )
    packets_before_finished: int = Field(
        description="`packets` without those in the datagram or segment of the client's Finished: what the client had "
        "sent when its handshake was complete."
    )
    datagrams_before_finished: int = Field(description="`datagrams` without the one of the client's Finished.")
    bytes_before_finished: int = Field(description="`bytes` without the datagram of the client's Finished.")
    packets_until_confirmed: int = Field(
        description="All packets, 1-RTT included, up to the datagram with HANDSHAKE_DONE (TCP: as `packets`): the most "
        "a server can have sent when its handshake was complete."
    )
    datagrams_until_confirmed: int = Field(description="Datagrams of `packets_until_confirmed`.")
    bytes_until_confirmed: int = Field(description="Payload of `datagrams_until_confirmed` in bytes.")
    tls_records: int | None = Field(description="TLS records completed (TCP); null for QUIC, which has none.")
    tls_record_bytes: int | None = Field(description="Bytes of these records with their headers (TCP).")


class Messages(_Model):
    """Sizes in bytes; of messages with their 4-byte header (RFC 8446, 4). null: not seen or not decrypted."""

    client_hello: int | None = Field(None, description="ClientHello; after a HelloRetryRequest or Retry the last one.")
    server_hello: int | None = Field(None, description="ServerHello (not a HelloRetryRequest).")
    encrypted_extensions: int | None = Field(None, description="EncryptedExtensions.")
    certificate: int | None = Field(None, description="Certificate: the whole message.")
    certificate_verify: int | None = Field(None, description="CertificateVerify.")
    signature: int | None = Field(None, description="The signature in CertificateVerify.")
    public_key: int | None = Field(None, description="Public key in the server's certificate; of RSA the modulus.")
    client_key_share: int | None = Field(None, description="KeyShareEntry.key_exchange of the last ClientHello.")
    server_key_share: int | None = Field(None, description="KeyShareEntry.key_exchange of the ServerHello.")


class Amplification(_Model):
    """Address validation as seen at the tap (RFC 9000, 8.1).

    The address counts as validated by the client's first Handshake packet or a token of a Retry packet. A server that
    also accepts a connection ID of its own choice as proof, as 8.1 allows, may send more than `limit_bytes`.
    """

    bytes_before_validation: int = Field(description="UDP payload the server sent before the address was validated.")
    received_before_validation: int = Field(description="UDP payload the client had sent by then.")
    limit_bytes: int = Field(description="3 x `received_before_validation`.")
    limit_hits: int = Field(
        description="Times the server had handshake data left, but less allowance than its next datagram was long, and "
        "went on only after a datagram of the client."
    )
    round_trips_blocked: int = Field(
        description="Flights of the client that the server had to wait for in this way: `limit_hits` that ended with "
        "datagrams of the same flight count once. A flight ends where a datagram acknowledges what was sent after it."
    )


class Handshake(_Model):
    """One connection of a capture, up to the client's Finished (see the module for what counts)."""

    index: int = Field(description="0, 1, ... in the order of the ClientHello.")
    transport: Literal["quic", "tcp"] = Field(description="What TLS runs over.")
    client_port: int = Field(description="UDP or TCP port of the client.")
    t_client_hello: int = Field(description="First packet of the client, TCP: ClientHello; ns since 1970.")
    t_server_hello: int | None = Field(description="Packet that completes the ServerHello, ns since 1970.")
    t_client_finished: int | None = Field(description="Packet with the client's Finished, ns since 1970.")
    t_confirmed: int | None = Field(description="First packet with HANDSHAKE_DONE, ns since 1970; null for TCP.")
    decrypted: bool = Field(description="Whether the handshake's packets could be decrypted.")
    problem: str | None = Field(description="Why the handshake is incomplete or not decrypted; null if neither.")
    client: Sent = Field(description="What the client sent.")
    server: Sent = Field(description="What the server sent.")
    retry: bool = Field(description="The server sent a Retry packet.")
    hello_retry_request: bool = Field(description="The server sent a HelloRetryRequest.")
    resumed: bool = Field(
        False,
        description="The ClientHello offers a pre-shared key and the ServerHello takes it (RFC 8446, 4.2.11); TLS 1.2: "
        "the server sends no Certificate (RFC 5246, 7.3).",
    )
    early_data: bool = Field(
        False,
        description="The ClientHello has the extension early_data, and EncryptedExtensions accept it (RFC 8446, "
        "4.2.10).",
    )
    early_bytes: int = Field(
        0,
        description="What the client sent as early data: bytes of 0-RTT packets, or over TCP of segments behind the "
        "ClientHello and before EndOfEarlyData (RFC 8446, 4.5), without ChangeCipherSpec.",
    )
    cipher: int | None = Field(description="Cipher suite of the ServerHello (code point).")
    group: int | None = Field(description="Named group of the ServerHello's key share (code point).")
    signature: int | None = Field(description="Signature scheme of CertificateVerify (code point).")
    messages: Messages = Field(description="Sizes of TLS messages and key shares.")
    amplification: Amplification | None = Field(description="Address validation; null for TCP.")
    server_flights: int | None = Field(
        description="Longest chain of server datagrams with handshake data or Retry, each sent after the client "
        "acknowledged the one before: 1 where the whole handshake is one flight of the server, one more for a Retry or "
        "HelloRetryRequest, for waiting at the anti-amplification limit or for the congestion window. Only where the "
        "round-trip time is longer than the server takes to send a flight: acknowledgements that arrive meanwhile "
        "lengthen the chain. null without acknowledgements."
    )

    @property
    def packets(self) -> tuple[int, int]:
        """Packets of client and server during the handshake, as Tables II and III count them."""
        return self.client.packets, self.server.packets


class Opening(_Model):
    """The beginning of a QUIC connection, as far as a capture shows it without the connection's secrets."""

    index: int = Field(description="0, 1, ... in the order of the ClientHello.")
    client_port: int = Field(description="UDP port of the client.")
    t_client_hello: int = Field(description="First packet of the client, ns since 1970.")
    t_client_one_rtt: int | None = Field(
        description="First 1-RTT packet of the client, ns since 1970; null: none. A client has the keys for one once "
        "it has the server's Finished (RFC 8446, 7.1), with which its handshake is complete (RFC 9001, 4.1.1)."
    )

    @property
    def ttfb_ms(self) -> float | None:
        """Time to first byte in ms, None where the client did not get as far.

        What is measured ends when the client *has sent* the first packet that it could not send before: later than
        the completion that endpoints report themselves, by the time it takes to make and send that packet.
        """
        return None if self.t_client_one_rtt is None else (self.t_client_one_rtt - self.t_client_hello) / 1e6


@dataclass(slots=True)
class Piece:
    """One QUIC packet with what is in it."""

    packet: QuicPacket
    details: QuicDetails | None

    @property
    def level(self) -> Level:
        return _LEVELS[self.packet.type]

    @property
    def ack_only(self) -> bool:
        kinds = set(self.details.frame_types) if self.details else set()
        return bool(kinds & set(_ACKS)) and kinds <= {_PADDING, *_ACKS}

    @property
    def token(self) -> bool:
        """Whether this is an Initial packet with a token (RFC 9000, 17.2.2)."""
        if self.packet.type is not PacketType.INITIAL:
            return False
        header = self.packet.data[5:]
        destination = header[0]
        return header[2 + destination + header[1 + destination]] != 0

    @property
    def crypto(self) -> tuple[tuple[int, int], ...]:
        return self.details.crypto if self.details else ()


@dataclass(slots=True)
class Unit:
    """One datagram or segment of a connection."""

    role: Role
    time_ns: int
    size: int
    """UDP or TCP payload in bytes."""
    pieces: list[Piece] = field(default_factory=list)
    tls: tshark.TlsDetails | None = None
    frame: int = -1
    """Index of the frame in the capture."""

    @property
    def counted(self) -> list[Piece]:
        """The packets that belong to the handshake."""
        return [piece for piece in self.pieces if piece.level != "1rtt"]


@dataclass(slots=True)
class Connection:
    """What belongs to one connection, in the order of the capture."""

    client_port: int
    units: list[Unit] = field(default_factory=list)
    client_cid: bytes = b""
    server_cid_bytes: int | None = None
    """Length of the connection ID the server chose."""
    initial_cids: list[bytes] = field(default_factory=list)
    """Those that Initial keys are made from: the client's first choice, and a Retry's."""
    unread: Counter[int] = field(default_factory=Counter)
    """Datagrams of versions that are not read."""

    def open(self, secrets: Secrets, *, clear: bool = False) -> Opener:
        """Open its packets; see `Opener`."""
        sent = [(unit.role, [piece.packet for piece in unit.pieces]) for unit in self.units]
        return Opener(sent, self.initial_cids, secrets, clear=clear)


@dataclass(slots=True)
class Unread:
    """Datagrams of QUIC that are of no connection."""

    versions: Counter[int] = field(default_factory=Counter)
    """Of those that are not read."""
    others: int = 0
    """Not well-formed, or of a connection whose first packet was not captured."""

    def sentences(self) -> list[str]:
        """What they are, a sentence each."""
        found = [passed_over(self.versions)] if self.versions else []
        if self.others:
            found.append(
                f"passes over {self.others} datagrams that are of no connection whose first packet was captured"
            )
        return found


_MOST_INITIAL_CIDS = 4
_MOST_EARLIER = 4
"""Connections of a client's port that a packet to an unknown connection ID may be of, the last ones."""


class _Port:
    """The connections of a client's address and port."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.by_server_cid: dict[bytes, Connection] = {}
        """By the destination connection IDs that a long-header packet of the client may have."""
        self.by_client_cid: dict[bytes, Connection] = {}

    @property
    def current(self) -> Connection | None:
        return self.connections[-1] if self.connections else None

    def receiving(self, initial: QuicPacket) -> Connection | None:
        """The connection that a client's Initial packet belongs to.

        Its destination may be new and yet not open a connection: an ID that the server issued in a 1-RTT packet before
        the handshake was complete. Then it is protected with the keys of that connection.
        """
        if (known := self.by_server_cid.get(initial.destination_cid)) is not None:
            return known
        for one in reversed(self.connections[-_MOST_EARLIER:]):
            if open_initial(initial, one.initial_cids, from_server=False) is not None:
                return one
        return None


def examine(
    capture: Path,
    key_log: Path,
    *,
    server_ip: str,
    server_port: int,
    transport: Literal["quic", "tcp"],
) -> list[Handshake]:
    """Every handshake with this server in a capture, in the order of the ClientHello.

    A file that cannot be used as a whole is a :class:`HandshakeError`; what is wrong with one connection, such as
    secrets that the key log does not have, is its :attr:`Handshake.problem`.
    """
    return _examined(capture, key_log, server_ip, server_port, transport)[0]


def _examined(
    capture: Path, key_log: Path, server_ip: str, server_port: int, transport: Literal["quic", "tcp"]
) -> tuple[list[Handshake], list[str]]:
    """Handshakes, and what was passed over, a sentence each."""
    server, unread = (server_ip, server_port), Unread()
    try:
        packets = _read(capture, server_ip, server_port, transport)
        known = tshark.read_key_log(key_log)
        if not packets:
            raise HandshakeError(
                f"{capture}: no {'UDP datagram' if transport == 'quic' else 'TCP segment'} from or to "
                f"{server_ip} port {server_port}"
            )
        if transport == "quic":
            found = quic_connections(packets, server, unread)
            for one in found:
                _add_details(one, one.open(known))
        else:
            found = _tcp(packets, tshark.dissect(capture, key_log, port=server_port, transport=transport), server)
    except (CaptureError, TsharkError) as error:
        raise HandshakeError(str(error)) from None
    said = unread.sentences()
    if not found:
        raise HandshakeError(f"{capture}: no connection is there to read{''.join(f'; {one}' for one in said)}")
    handshakes = [
        _Examiner(connection, index, transport, known, key_log).handshake() for index, connection in enumerate(found)
    ]
    return handshakes, [f"{capture}: {one}" for one in said]


def _add_details(connection: Connection, opener: Opener) -> None:
    for unit, opened in zip(connection.units, opener.packets, strict=True):
        for piece, one in zip(unit.pieces, opened, strict=True):
            piece.details = details_of(one)


def details_of(opened: Opened) -> QuicDetails:
    """What is in a packet, as tshark tells it."""
    frames = opened.frames or []
    acknowledged = [frame.acknowledged for frame in frames if frame.acknowledged is not None]
    return QuicDetails(
        bytes=len(opened.packet.data),
        decrypted=opened.frames is not None,
        packet_number=opened.number,
        frame_types=tuple(frame.type for frame in frames),
        crypto=tuple((frame.offset, len(frame.data)) for frame in frames if frame.type == CRYPTO),
        largest_acknowledged=max(acknowledged, default=None),
        messages=opened.messages,
    )


def openings(capture: Path, *, server_ip: str, server_port: int) -> list[Opening]:
    """The beginning of every QUIC connection with this server in a capture, in the order of the ClientHello.

    Raises :class:`HandshakeError` for a capture that cannot be used.
    """
    unread = Unread()
    try:
        packets = _read(capture, server_ip, server_port, "quic")
    except CaptureError as error:
        raise HandshakeError(str(error)) from None
    connections = quic_connections(packets, (server_ip, server_port), unread)
    if not connections and unread.versions:
        raise HandshakeError(f"{capture}: no connection is there to read; {passed_over(unread.versions)}")
    return [
        Opening(
            index=index,
            client_port=connection.client_port,
            t_client_hello=connection.units[0].time_ns,
            t_client_one_rtt=next(
                (
                    unit.time_ns
                    for unit in connection.units
                    if unit.role == "client" and any(piece.level == "1rtt" for piece in unit.pieces)
                ),
                None,
            ),
        )
        for index, connection in enumerate(connections)
    ]


def _read(capture: Path, server_ip: str, server_port: int, transport: str) -> list[Packet]:
    """The datagrams or segments from and to the server; all of them whole."""
    protocol = "udp" if transport == "quic" else "tcp"
    found = []
    file = Capture(capture)
    for packet in file.packets():
        ends = ((packet.source, packet.source_port), (packet.destination, packet.destination_port))
        if packet.protocol != protocol or (server_ip, server_port) not in ends:
            continue
        if packet.cut:
            raise HandshakeError(
                f"{capture}: frame {packet.frame.index} holds {len(packet.frame.data)} of {packet.frame.wire_bytes} "
                "bytes; capture whole frames (snaplen 65535)"
            )
        found.append(packet)
    if problems := file.problems(found):
        raise HandshakeError(f"{capture}: {problems[0]}")
    return found


def quic_connections(
    packets: Iterable[Packet], server: tuple[str, int], unread: Unread | None = None
) -> list[Connection]:
    """QUIC connections in the order of their first Initial packet; a port may be used again.

    What is of none is counted in *unread*.
    """
    unread = unread if unread is not None else Unread()
    found: list[Connection] = []
    by_port: dict[tuple[str, int], _Port] = defaultdict(_Port)
    for packet in packets:
        role: Role = "server" if (packet.source, packet.source_port) == server else "client"
        client = (
            (packet.source, packet.source_port) if role == "client" else (packet.destination, packet.destination_port)
        )
        earlier = by_port[client]
        current = earlier.current
        try:
            parsed = parse_datagram(packet.payload, _receiver_cid_bytes(current, role)).packets
        except UnknownVersionError as error:
            unread.versions[error.version] += 1
            if current is not None:
                current.unread[error.version] += 1
            continue
        except WireError:
            unread.others += 1
            continue
        first = parsed[0]
        if role == "client" and first.type is PacketType.INITIAL:
            current = earlier.receiving(first)
            if current is None:
                current = Connection(
                    client[1], client_cid=first.source_cid or b"", initial_cids=[first.destination_cid]
                )
                found.append(current)
                earlier.connections.append(current)
                earlier.by_client_cid[current.client_cid] = current
            earlier.by_server_cid[first.destination_cid] = current
        elif role == "server" and first.type is not PacketType.ONE_RTT:
            # A late packet of a connection that had this port before.
            current = earlier.by_client_cid.get(first.destination_cid, current)
        if current is None:
            unread.others += first.type is not PacketType.VERSION_NEGOTIATION
            continue
        for one in parsed:
            if role == "server" and one.source_cid is not None:
                earlier.by_server_cid[one.source_cid] = current
                if one.type is not PacketType.VERSION_NEGOTIATION:
                    current.server_cid_bytes = len(one.source_cid)
                if one.type is PacketType.RETRY and len(current.initial_cids) < _MOST_INITIAL_CIDS:
                    current.initial_cids.append(one.source_cid)
        unit = Unit(role, packet.frame.time_ns, packet.payload_bytes, frame=packet.frame.index)
        unit.pieces = [Piece(one, None) for one in parsed]
        current.units.append(unit)
    return found


def _receiver_cid_bytes(connection: Connection | None, sender: Role) -> int | None:
    """Length of the destination connection ID in short headers."""
    if connection is None:
        return None
    return len(connection.client_cid) if sender == "server" else connection.server_cid_bytes


def _tcp(
    packets: Iterable[Packet], frames: dict[int, tshark.FrameDetails], server: tuple[str, int]
) -> list[Connection]:
    """The connections in the order of their SYN; a port may be used again."""
    connections: list[Connection] = []
    by_port: dict[tuple[str, int], Connection] = {}
    for packet in packets:
        role: Role = "server" if (packet.source, packet.source_port) == server else "client"
        client = (
            (packet.source, packet.source_port) if role == "client" else (packet.destination, packet.destination_port)
        )
        begins = role == "client" and packet.flags & TCP_SYN
        if begins and not (client in by_port and not any(unit.size for unit in by_port[client].units)):
            by_port[client] = Connection(client[1])
            connections.append(by_port[client])
        if client not in by_port:
            continue
        if packet.flags & TCP_SYN:
            continue
        details = frames.get(packet.frame.index)
        unit = Unit(role, packet.frame.time_ns, packet.payload_bytes, tls=details.tls if details else None)
        by_port[client].units.append(unit)
    return [connection for connection in connections if any(unit.size for unit in connection.units)]


class _Examiner:
    """Counts what one connection sent until the client's Finished."""

    def __init__(
        self,
        connection: Connection,
        index: int,
        transport: Literal["quic", "tcp"],
        known: dict[str, dict[str, bytes]],
        key_log: Path,
    ) -> None:
        self.connection = connection
        self.index = index
        self.transport = transport
        self.known = known
        self.key_log = key_log
        self.messages = list(self._all_messages())

    def _all_messages(self) -> Iterator[tuple[Unit, Message]]:
        for unit in self.connection.units:
            if unit.tls is not None:
                for message in unit.tls.messages:
                    yield unit, message
            for piece in unit.pieces:
                for message in piece.details.messages if piece.details else ():
                    yield unit, message

    def _first(self, role: Role, kind: int) -> tuple[Unit, Message] | None:
        """First message of a kind; of ServerHellos the first that is no HelloRetryRequest."""
        return next(
            (
                (unit, message)
                for unit, message in self.messages
                if unit.role == role and message.type == kind and not message.hello_retry_request
            ),
            None,
        )

    def handshake(self) -> Handshake:
        finished = self._first("client", tls.FINISHED)
        decrypted = self._first("server", tls.ENCRYPTED_EXTENSIONS) is not None or any(
            piece.level == "handshake" and piece.details is not None and piece.details.decrypted
            for unit in self.connection.units
            for piece in unit.pieces
        )
        before, last = self._span(finished[0] if finished else None)
        hellos = [(unit, message) for unit, message in self.messages if message.type == tls.CLIENT_HELLO]
        server_hello = self._first("server", tls.SERVER_HELLO)
        certificate, verify = (self._first("server", kind) for kind in (tls.CERTIFICATE, tls.CERTIFICATE_VERIFY))
        first = hellos[0][0] if hellos and self.transport == "tcp" else self.connection.units[0]
        done = self._done()
        shares = server_hello[1].key_shares if server_hello else ()
        group = shares[0][0] if shares else None
        offered = dict(hellos[-1][1].key_shares) if hellos else {}
        return Handshake(
            index=self.index,
            transport=self.transport,
            client_port=self.connection.client_port,
            t_client_hello=first.time_ns,
            t_server_hello=server_hello[0].time_ns if server_hello else None,
            t_client_finished=finished[0].time_ns if finished else None,
            t_confirmed=done.time_ns if done else None,
            decrypted=decrypted,
            problem=self._problem(finished is not None, decrypted, [message for _, message in hellos]),
            client=self._sent("client", before, last),
            server=self._sent("server", before, last),
            retry=any(piece.level == "retry" for unit in before for piece in unit.pieces),
            hello_retry_request=any(message.hello_retry_request for _, message in self.messages),
            resumed=self._both(tls.PRE_SHARED_KEY, hellos, server_hello)
            or (finished is not None and certificate is None and self._is_old(server_hello)),
            early_data=self._both(tls.EARLY_DATA, hellos, self._first("server", tls.ENCRYPTED_EXTENSIONS)),
            early_bytes=self._early_bytes(hellos[0][1].bytes if hellos else 0),
            cipher=server_hello[1].cipher if server_hello else None,
            group=group,
            signature=verify[1].signature if verify else None,
            messages=Messages(
                client_hello=hellos[-1][1].bytes if hellos else None,
                server_hello=server_hello[1].bytes if server_hello else None,
                encrypted_extensions=self._bytes(tls.ENCRYPTED_EXTENSIONS),
                certificate=certificate[1].bytes if certificate else None,
                certificate_verify=verify[1].bytes if verify else None,
                signature=verify[1].signature_bytes if verify else None,
                public_key=certificate[1].public_key_bytes if certificate else None,
                client_key_share=offered.get(group) if group is not None else next(iter(offered.values()), None),
                server_key_share=shares[0][1] if shares else None,
            ),
            amplification=self._amplification() if self.transport == "quic" else None,
            server_flights=self._flights([*before, *([last] if last else [])]),
        )

    @staticmethod
    def _is_old(server_hello: tuple[Unit, Message] | None) -> bool:
        """Whether a ServerHello is of TLS 1.2 or before."""
        return server_hello is not None and tls.SUPPORTED_VERSIONS not in server_hello[1].extensions

    @staticmethod
    def _both(
        extension: int,
        hellos: Sequence[tuple[Unit, Message]],
        answer: tuple[Unit, Message] | None,
    ) -> bool:
        """Whether the last ClientHello has an extension, and what answers it has it too."""
        return (
            bool(hellos)
            and answer is not None
            and all(extension in message.extensions for message in (hellos[-1][1], answer[1]))
        )

    def _early_bytes(self, client_hello: int) -> int:
        units = self.connection.units
        if self.transport == "quic":
            return sum(len(piece.packet.data) for unit in units for piece in unit.pieces if piece.level == "0rtt")
        # The server's answer may be captured before data that the client sent without it: the tap is near the server.
        if (end := self._first("client", tls.END_OF_EARLY_DATA)) is None:
            return 0
        before = itertools.takewhile(lambda unit: unit is not end[0], units)
        sent = sum(unit.size for unit in before if unit.role == "client")
        return max(sent - _TLS_RECORD_HEADER - client_hello - _CHANGE_CIPHER_SPEC_BYTES, 0)

    def _bytes(self, kind: int) -> int | None:
        found = self._first("server", kind)
        return found[1].bytes if found else None

    def _span(self, finished: Unit | None) -> tuple[list[Unit], Unit | None]:
        """What was sent before the unit with the client's Finished, and that unit cut behind the Finished."""
        units = self.connection.units
        for position, unit in enumerate(units):
            if unit is finished:
                end = next(
                    (
                        place
                        for place, piece in enumerate(unit.pieces)
                        if piece.details and any(message.type == tls.FINISHED for message in piece.details.messages)
                    ),
                    len(unit.pieces),
                )
                return units[:position], Unit(unit.role, unit.time_ns, unit.size, unit.pieces[: end + 1], unit.tls)
            if finished is None and unit.role == "client":
                one_rtt = next((place for place, one in enumerate(unit.pieces) if one.level == "1rtt"), None)
                if one_rtt is not None:
                    cut = Unit(unit.role, unit.time_ns, unit.size, unit.pieces[:one_rtt]) if one_rtt else None
                    return units[:position], cut
        return units, None

    def _sent(self, role: Role, before: list[Unit], last: Unit | None) -> Sent:
        earlier = [unit for unit in before if unit.role == role and (unit.size or self.transport == "tcp")]
        whole = [*earlier, *([last] if last is not None and last.role == role else [])]
        if self.transport == "tcp":
            payload = [unit for unit in whole if unit.size]
            payload_before = [unit for unit in earlier if unit.size]
            records = [size for unit in whole if unit.tls for size in unit.tls.record_bytes]
            return Sent(
                packets=len(payload),
                datagrams=len(payload),
                bytes=sum(unit.size for unit in payload),
                largest_datagram_bytes=max((unit.size for unit in payload), default=0),
                levels={},
                ack_only_packets=len(whole) - len(payload),
                packets_before_finished=len(payload_before),
                datagrams_before_finished=len(payload_before),
                bytes_before_finished=sum(unit.size for unit in payload_before),
                packets_until_confirmed=len(payload),
                datagrams_until_confirmed=len(payload),
                bytes_until_confirmed=sum(unit.size for unit in payload),
                tls_records=len(records),
                tls_record_bytes=sum(records),
            )
        levels: dict[Level, list[Piece]] = defaultdict(list)
        for unit in whole:
            for piece in unit.pieces:
                levels[piece.level].append(piece)
        confirmed = [unit for unit in self._until_confirmed(last) if unit.role == role]
        counted = [unit for unit in whole if unit.counted]
        counted_before = [unit for unit in earlier if unit.counted]
        return Sent(
            packets=sum(len(unit.counted) for unit in counted),
            datagrams=len(counted),
            bytes=sum(unit.size for unit in counted),
            largest_datagram_bytes=max((unit.size for unit in counted), default=0),
            levels={
                level: LevelCounts(
                    packets=len(sent),
                    bytes=sum(len(piece.packet.data) for piece in sent),
                    crypto_bytes=sum(length for piece in sent for _, length in piece.crypto),
                    ack_only_packets=sum(piece.ack_only for piece in sent),
                )
                for level, sent in levels.items()
            },
            ack_only_packets=sum(piece.ack_only for unit in counted for piece in unit.counted),
            packets_before_finished=sum(len(unit.counted) for unit in counted_before),
            datagrams_before_finished=len(counted_before),
            bytes_before_finished=sum(unit.size for unit in counted_before),
            packets_until_confirmed=sum(len(unit.pieces) for unit in confirmed),
            datagrams_until_confirmed=len(confirmed),
            bytes_until_confirmed=sum(unit.size for unit in confirmed),
            tls_records=None,
            tls_record_bytes=None,
        )

    def _done(self) -> Unit | None:
        """The datagram that brings the first HANDSHAKE_DONE."""
        for unit in self.connection.units:
            for piece in unit.pieces:
                if unit.role == "server" and piece.details and _HANDSHAKE_DONE in piece.details.frame_types:
                    return unit
        return None

    def _until_confirmed(self, last: Unit | None) -> Iterator[Unit]:
        done = self._done()
        for unit in self.connection.units:
            if done is None and last is not None and unit.time_ns > last.time_ns:
                return
            yield unit
            if unit is done:
                return

    def _problem(self, finished: bool, decrypted: bool, hellos: Sequence[Message]) -> str | None:
        if finished:
            return None
        where = f"client port {self.connection.client_port}"
        if not hellos or hellos[0].random is None:
            return f"{where}: the capture holds no whole ClientHello; begin it before the client"
        randoms = [one.random for one in hellos if one.random is not None]
        # after a Retry or Version Negotiation packet it may be another one
        labels = next((self.known[one] for one in reversed(randoms) if one in self.known), {})
        missing = {"CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET"} - labels.keys()
        answered = any(unit.role == "server" and unit.size for unit in self.connection.units)
        if self.connection.unread:
            return f"{where}: the capture {passed_over(self.connection.unread)}"
        if not answered:
            return f"{where}: no answer of the server is captured"
        if not self._first("server", tls.SERVER_HELLO):
            return f"{where}: no ServerHello is captured, the handshake failed"
        if missing:
            return f"{where}: {self.key_log} has no {' and no '.join(sorted(missing))} of this connection"
        if not decrypted:
            return f"{where}: nothing behind the ServerHello could be decrypted with {self.key_log}"
        return f"{where}: the capture ends before the client's Finished, or the handshake failed"

    def _amplification(self) -> Amplification:
        sent = received = hits = 0
        before_validation: tuple[int, int] | None = None
        progress: dict[Level, int] = {}
        largest = 0
        allowance: int | None = None  # when the client was heard of first after handshake data; None: not since
        blocked: set[int] = set()
        flights = _Flights()
        for unit in self.connection.units:
            flights.take(unit)
            if unit.role == "client":
                if allowance is None and before_validation is None:
                    allowance = AMPLIFICATION_FACTOR * received - sent
                if before_validation is None and self._validates(unit):
                    before_validation = sent, received
                received += unit.size
                continue
            largest = max(largest, unit.size)
            went_on = False
            for piece in unit.pieces:
                for offset, length in piece.crypto:
                    went_on |= piece.level in progress and offset + length > progress[piece.level]
                    # The ServerHello starts both levels: Handshake data that are held back are waited for.
                    for level in (piece.level, *(("handshake",) if piece.level == "initial" else ())):
                        progress[level] = max(progress.get(level, 0), offset + length if level == piece.level else 0)
                    allowance_then, allowance = allowance, None
                    if went_on and allowance_then is not None and allowance_then < largest:
                        hits += 1
                        blocked.add(flights.client)
            if any(one is unit and message.hello_retry_request for one, message in self.messages):
                progress.clear()  # a server that has answered with a HelloRetryRequest holds nothing back
            sent += unit.size
        sent_before, received_before = before_validation or (sent, received)
        return Amplification(
            bytes_before_validation=sent_before,
            received_before_validation=received_before,
            limit_bytes=AMPLIFICATION_FACTOR * received_before,
            limit_hits=hits,
            round_trips_blocked=len(blocked),
        )

    @staticmethod
    def _validates(unit: Unit) -> bool:
        """Whether a datagram of the client proves its address: by a Handshake packet, or an Initial with a token."""
        return any(piece.level == "handshake" or piece.token for piece in unit.pieces)

    def _flights(self, units: Iterable[Unit]) -> int | None:
        flights = _Flights()
        for unit in units:
            flights.take(unit)
        return flights.server or None


class _Flights:
    """Which flight a datagram belongs to, by what had been acknowledged when it was sent."""

    def __init__(self) -> None:
        self.client = 0
        """Last flight of the server that the client has acknowledged or answered."""
        self.server = 0
        """Last flight of the server with handshake data."""
        self._of_packet: dict[tuple[Level, int], int] = {}
        self._of_byte: list[tuple[int, int]] = []

    def take(self, unit: Unit) -> None:
        if unit.role == "server":
            self._take_server(unit)
        else:
            self._take_client(unit)

    def _take_server(self, unit: Unit) -> None:
        flight = self.client + 1
        for piece in unit.pieces:
            if piece.level == "retry" or (piece.level != "1rtt" and piece.crypto):
                self.server = max(self.server, flight)
            if piece.details and piece.details.packet_number is not None:
                self._of_packet[piece.level, piece.details.packet_number] = flight
        if unit.tls and unit.size:
            self.server = max(self.server, flight)
            self._of_byte.append((unit.tls.sequence_end, flight))

    def _take_client(self, unit: Unit) -> None:
        acknowledged = [self.client]
        for piece in unit.pieces:
            if piece.details and piece.details.largest_acknowledged is not None:
                acknowledged.append(self._of_packet.get((piece.level, piece.details.largest_acknowledged), 0))
        messages = [message for piece in unit.pieces if piece.details for message in piece.details.messages]
        if unit.tls:
            messages += unit.tls.messages
            acknowledged += [flight for end, flight in self._of_byte if end <= unit.tls.acknowledged]
        # A second ClientHello answers a Retry or a HelloRetryRequest, acknowledged or not.
        if any(message.type == tls.CLIENT_HELLO for message in messages) or any(piece.token for piece in unit.pieces):
            acknowledged.append(self.server)
        self.client = max(acknowledged)


def contradictions(
    handshakes: Sequence[Handshake],
    table: Table,
    *,
    connections: int | None = None,
    group: str | None = None,
    signature: str | None = None,
    cipher: str | None = None,
    retry: bool | None = None,
    hello_retry_request: bool | None = False,
    udp_payload: int | None = None,
    certificate_bytes: int | None = None,
    resumed: bool = False,
    early_data: bool = False,
) -> list[str]:
    """What a capture shows that is not as the cell says, one sentence each; None is not looked at.

    `group`, `signature` and `cipher` are names of the configuration. `udp_payload` is the longest datagram the link
    can carry: longer ones in a capture are several that an offload joined. `certificate_bytes` is the size of the
    Certificate message, which tells how many certificates of what size were sent. Handshakes that are *resumed* have
    neither certificates nor a signature.
    """
    found: list[str] = []
    if connections is not None and connections != len(handshakes):
        found.append(f"the capture holds {len(handshakes)} connections, not {connections}")
    found += [f"connection {one.index}: {one.problem}" for one in handshakes if one.problem]
    wanted: list[tuple[str, str, str, int]] = []
    if group is not None:
        wanted.append(("group", "group", group, table.group(group).code_point))
    if resumed:
        signature, certificate_bytes = None, None
        left = {one.index: one.messages.certificate for one in handshakes if one.decrypted}
        found += _deviation(
            {index: f"a Certificate of {size} bytes" for index, size in left.items() if size is not None},
            "none in a handshake that is resumed",
        )
    if signature is not None:
        wanted.append(("signature", "signature scheme", signature, table.signature(signature).code_point))
    if cipher is not None:
        wanted.append(("cipher", "cipher suite", cipher, CIPHER_SUITES[cipher]))
    for name, title, label, code_point in wanted:
        others = {one.index: getattr(one, name) for one in handshakes if one.decrypted}
        found += _deviation(
            {
                index: f"no {title} was seen" if value is None else f"{title} 0x{value:04x}"
                for index, value in others.items()
                if value != code_point
            },
            f"0x{code_point:04x} ({label})",
        )
    for name, title, expected in (
        ("retry", "Retry", retry),
        ("hello_retry_request", "HelloRetryRequest", hello_retry_request),
        ("resumed", "resumed session", resumed),
        ("early_data", "request as early data", early_data),
    ):
        if expected is not None:
            found += _deviation(
                {
                    one.index: f"{'a' if getattr(one, name) else 'no'} {title}"
                    for one in handshakes
                    if getattr(one, name) != expected
                },
                f"{'one' if expected else 'none'}",
            )
    if early_data:
        found += _deviation(
            {one.index: "nothing before EndOfEarlyData" for one in handshakes if not one.early_bytes},
            "early data",
        )
    if certificate_bytes is not None:
        sizes = {one.index: one.messages.certificate for one in handshakes if one.decrypted}
        found += _deviation(
            {
                index: "no Certificate" if size is None else f"a Certificate of {size} bytes"
                for index, size in sizes.items()
                if size != certificate_bytes
            },
            f"one of {certificate_bytes} bytes",
        )
    if udp_payload is not None:
        longest = {
            one.index: max(one.client.largest_datagram_bytes, one.server.largest_datagram_bytes) for one in handshakes
        }
        found += _deviation(
            {index: f"a payload of {size} bytes" for index, size in longest.items() if size > udp_payload},
            f"at most {udp_payload}; capture in link mode wire",
        )
    return found


def _deviation(by_connection: dict[int, str], expected: str) -> list[str]:
    """One sentence about the connections that deviate, with the first of them as the example."""
    if not by_connection:
        return []
    index, what = next(iter(by_connection.items()))
    more = f" and {len(by_connection) - 1} more" if len(by_connection) > 1 else ""
    return [f"connection {index}{more}: {what}, expected {expected}"]


def count_differences(
    handshakes: Sequence[Handshake],
    client_events: Sequence[ClientConnection],
    server_events: Sequence[ServerConnection],
) -> list[str]:
    """Where the libraries' own counts are not the capture's, one sentence per count.

    A library may count packets or datagrams (TCP: segments with payload, or all), and counts when its side is complete,
    which for the client is before its Finished is sent (ENDPOINT.md, `handshake_packets_sent`). So any number from
    before the datagram of the Finished to the one of HANDSHAKE_DONE is accepted; None is not compared.
    The events are in the order of the handshakes.
    """
    found: list[str] = []
    roles: tuple[tuple[Role, Sequence[ClientConnection] | Sequence[ServerConnection]], ...] = (
        ("client", client_events),
        ("server", server_events),
    )
    for role, events in roles:
        if len(events) != len(handshakes):
            found.append(f"the {role} reports {len(events)} connections, the capture holds {len(handshakes)}")
            continue
        different: dict[str, dict[int, str]] = {"packets": {}, "bytes": {}}
        for one, event in zip(handshakes, events, strict=True):
            sent = one.client if role == "client" else one.server
            spans = [(sent.packets_before_finished, sent.packets_until_confirmed)]
            if one.transport == "tcp":
                # Segments of any kind, as the kernel counts them (tcpi_segs_out): acknowledgements and the SYN too.
                others = sent.ack_only_packets + 1
                spans.append((sent.packets_before_finished + others, sent.packets + others))
            else:
                spans.append((sent.datagrams_before_finished, sent.datagrams_until_confirmed))
            readings = {"packets": spans, "bytes": [(sent.bytes_before_finished, sent.bytes_until_confirmed)]}
            reported = {"packets": event.handshake_packets_sent, "bytes": event.handshake_bytes_sent}
            for what, value in reported.items():
                if value is None or any(low <= value <= high for low, high in readings[what]):
                    continue
                shown = " or ".join(f"{low} to {high}" for low, high in readings[what])
                different[what][one.index] = f"the {role} counts {value} {what} sent, the capture {shown}"
        for cases in different.values():
            if cases:
                first = next(iter(cases.items()))
                found.append(f"{len(cases)} of {len(handshakes)} connections, first {first[0]}: {first[1]}")
    return found


def address_of(server: str) -> tuple[str, int]:
    """Address and port of a server, from IP:PORT; HandshakeError for anything else."""
    address, _, port = server.rpartition(":")
    try:
        known = str(ip_address(address.removeprefix("[").removesuffix("]")))
    except ValueError:
        known = ""
    if not known or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise HandshakeError(f"server {server!r}: give its address and port, as 10.113.0.2:4433")
    return known, int(port)


def main_table(capture: Path, key_log: Path, *, server: str, transport: Literal["quic", "tcp"]) -> str:
    """The handshakes of a capture as a table for reading; `server` is IP:PORT."""
    address, port = address_of(server)
    handshakes, said = _examined(capture, key_log, address, port, transport)
    rows: list[tuple[str, ...]] = [
        ("", "port", "ms", "packets", "datagrams", "bytes", "ack only", "CH", "Cert", "Verify", "flights", "blocked")
    ]
    for one in handshakes:
        milliseconds = (one.t_client_finished - one.t_client_hello) / 1e6 if one.t_client_finished else None
        numbers = (
            one.messages.client_hello,
            one.messages.certificate,
            one.messages.certificate_verify,
            one.server_flights,
            one.amplification.round_trips_blocked if one.amplification else None,
        )
        rows.append(
            (
                str(one.index),
                str(one.client_port),
                f"{milliseconds:.3f}" if milliseconds is not None else "-",
                *(
                    f"{getattr(one.client, name)}/{getattr(one.server, name)}"
                    for name in ("packets", "datagrams", "bytes", "ack_only_packets")
                ),
                *("-" if number is None else str(number) for number in numbers),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [one.problem for one in handshakes if one.problem]
    lines += said
    if handshakes:
        client, server_packets = (median(one.packets[side] for one in handshakes) for side in (0, 1))
        lines.append(f"median packets client/server: {client:g}/{server_packets:g}")
    return "\n".join(lines)
