"""QUIC packets opened with the secrets of a key log: Initial packets without any, the others with those that stand
under the random of the ClientHello that counts, in every key phase (RFC 9001, 5 and 6).

A client may begin again after a Retry or a Version Negotiation packet, with another ClientHello: CRYPTO data of each
attempt are a stream of their own. A HelloRetryRequest goes on in the same stream. The keys of packets with long headers
are of the version in them (RFC 9369, 3.3), those of 1-RTT packets of the version in which the server has answered.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quicbed.wire import quicwire
from quicbed.wire.messages import CLIENT_HELLO, SERVER_HELLO, Message, Stream
from quicbed.wire.quicwire import (
    TAG_BYTES,
    VERSION_1,
    Exposed,
    Frame,
    PacketKeys,
    PacketType,
    QuicPacket,
    WireError,
    initial_keys,
    traffic_keys,
)

Role = Literal["client", "server"]
Secrets = Mapping[str, Mapping[str, bytes]]
"""Of a key log by client random, hexadecimal, and label."""
Place = tuple[Role, PacketType, bytes, int]
"""Which stream CRYPTO data are of: sender, level, and of Initial packets the attempt."""

_LABELS = {
    PacketType.ZERO_RTT: "EARLY_TRAFFIC_SECRET",
    PacketType.HANDSHAKE: "HANDSHAKE_TRAFFIC_SECRET",
    PacketType.ONE_RTT: "TRAFFIC_SECRET_0",
}


@dataclass(slots=True)
class Opened:
    """A QUIC packet, and what is in it where it could be opened."""

    packet: QuicPacket
    place: Place
    number: int | None = None
    frames: list[Frame] | None = None
    """None: not opened."""
    whole: bool = True
    """Whether all of its frames are known; else those before the first that is not are there."""
    header_bytes: int = 0
    """With the packet number."""
    messages: tuple[Message, ...] = ()
    """Messages that this packet completes."""


class _Phases:
    """The keys of one end's 1-RTT packets, which it may update (RFC 9001, 6)."""

    def __init__(self, keys: PacketKeys) -> None:
        self.before: PacketKeys | None = None
        self.now = keys
        self.next = quicwire.updated(keys)
        self.phase = False
        self.begin = 0
        """Smallest packet number of this phase."""

    def decrypt(self, exposed: Exposed) -> bytes:
        if exposed.phase == self.phase:
            try:
                plain = exposed.decrypt(self.now)
            except WireError:
                # or all packets of a phase are missing
                return self._advance(exposed, quicwire.updated(self.next), 2)
            self.begin = min(self.begin, exposed.number)
            return plain
        if self.before is not None and exposed.number < self.begin:
            return exposed.decrypt(self.before)  # it comes late
        return self._advance(exposed, self.next, 1)

    def _advance(self, exposed: Exposed, keys: PacketKeys, steps: int) -> bytes:
        plain = exposed.decrypt(keys)
        self.before = self.now if steps == 1 else self.next
        self.now, self.next = keys, quicwire.updated(keys)
        self.phase, self.begin = exposed.phase, exposed.number
        return plain


class Opener:
    """Opens the packets of a connection."""

    def __init__(
        self,
        sent: Sequence[tuple[Role, Sequence[QuicPacket]]],
        cids: Sequence[bytes],
        secrets: Secrets,
        *,
        clear: bool = False,
    ) -> None:
        """*sent* are the packets of every datagram in the order of the capture.

        *cids* are those that Initial keys are made from: the client's first choice and a Retry's. *clear* says that the
        build has the NOOP AEAD and no header protection.
        """
        self._cids = cids
        self._clear = clear
        self._largest: dict[tuple[Role, PacketType], int] = {}
        of_initials = (one.version for _, packets in sent for one in packets if one.type is PacketType.INITIAL)
        self._versions = dict.fromkeys(version for version in of_initials if version is not None)
        self._again = any(one.type is PacketType.VERSION_NEGOTIATION for _, packets in sent for one in packets)
        self._keys: dict[tuple[Role, PacketType, int], PacketKeys | None] = {}
        self._phases: dict[Role, _Phases] = {}
        self._version = VERSION_1
        self._own: Mapping[str, bytes] = {}
        self._suite: int | None = None
        self.randoms: list[str] = []
        """Of the ClientHellos, hexadecimal."""
        initials = {
            id(packet): self._initial(packet, role)
            for role, packets in sent
            for packet in packets
            if packet.type is PacketType.INITIAL
        }
        self._choose(sent, initials, secrets)
        self.packets = [
            [initials.get(id(packet)) or self._open(packet, role) for packet in packets] for role, packets in sent
        ]
        """What is in the packets of every datagram."""
        self._complete()

    def _initial(self, packet: QuicPacket, role: Role) -> Opened:
        own = packet.version or VERSION_1
        # a client of aioquic keeps its first keys when the server has chosen another version (RFC 9368, 2.3)
        for cid, version in itertools.product(self._cids, dict.fromkeys([own, *self._versions])):
            keys = initial_keys(cid, version)
            place: Place = (role, packet.type, cid, (packet.version or 0) if self._again else 0)
            found = self._with(packet, place, keys.server if role == "server" else keys.client)
            if found is not None:
                return found
        return Opened(packet, (role, packet.type, b"", 0))

    def _choose(
        self,
        sent: Iterable[tuple[Role, Sequence[QuicPacket]]],
        initials: Mapping[int, Opened],
        secrets: Secrets,
    ) -> None:
        """Find the secrets and the cipher suite: of the last ClientHello of which there are some, and ServerHello."""
        streams: dict[Place, Stream] = defaultdict(Stream)
        for role, packets in sent:
            for packet in packets:
                opened = initials.get(id(packet))
                if opened is None or opened.frames is None:
                    continue
                if role == "server" and packet.version:
                    self._version = packet.version
                for frame in opened.frames:
                    if frame.type != quicwire.CRYPTO:
                        continue
                    for message in streams[opened.place].take(frame.offset, frame.data):
                        if role == "client" and message.type == CLIENT_HELLO and message.random:
                            self.randoms.append(message.random)
                        elif role == "server" and message.type == SERVER_HELLO and not message.hello_retry_request:
                            self._suite = message.cipher
        self._own = next((secrets[one] for one in reversed(self.randoms) if one in secrets), {})

    def _keys_of(self, packet: QuicPacket, role: Role) -> PacketKeys | None:
        version = packet.version or self._version
        place = role, packet.type, version
        if place not in self._keys:
            secret = self._own.get(f"{role.upper()}_{_LABELS.get(packet.type)}")
            self._keys[place] = None
            if secret is not None and self._suite is not None:
                with contextlib.suppress(WireError):
                    self._keys[place] = traffic_keys(secret, self._suite, version=version)
        return self._keys[place]

    def _open(self, packet: QuicPacket, role: Role) -> Opened:
        place: Place = (role, packet.type, b"", 0)
        start = packet.packet_number_offset
        if start is None:
            return Opened(packet, place, header_bytes=len(packet.data))
        keys = self._keys_of(packet, role)
        if keys is not None:
            return self._with(packet, place, keys) or Opened(packet, place)
        if self._clear:
            size = (packet.data[0] & 0x03) + 1
            number = int.from_bytes(packet.data[start : start + size], "big")
            return _opened(packet, place, number, packet.data[start + size : -TAG_BYTES])
        return Opened(packet, place)

    def _with(self, packet: QuicPacket, place: Place, keys: PacketKeys) -> Opened | None:
        # 0-RTT and 1-RTT packets are numbered together (RFC 9000, 12.3)
        space = place[0], PacketType.ONE_RTT if packet.type is PacketType.ZERO_RTT else packet.type
        try:
            exposed = quicwire.expose(packet, keys, self._largest.get(space, -1))
            if packet.type is PacketType.ONE_RTT:
                if place[0] not in self._phases:
                    self._phases[place[0]] = _Phases(keys)
                plain = self._phases[place[0]].decrypt(exposed)
            else:
                plain = exposed.decrypt(keys)
        except WireError:
            return None
        self._largest[space] = max(exposed.number, self._largest.get(space, -1))
        return _opened(packet, place, exposed.number, plain)

    def _complete(self) -> None:
        """Find the messages that each packet completes."""
        streams: dict[Place, Stream] = defaultdict(Stream)
        for opened in (one for packets in self.packets for one in packets):
            opened.messages = tuple(
                message
                for frame in opened.frames or ()
                if frame.type == quicwire.CRYPTO
                for message in streams[opened.place].take(frame.offset, frame.data)
            )


def _opened(packet: QuicPacket, place: Place, number: int, plain: bytes) -> Opened:
    frames: list[Frame] = []
    whole = True
    try:
        for frame in quicwire.frames(plain):
            frames.append(frame)
    except WireError:
        whole = False
    return Opened(packet, place, number, frames, whole, len(packet.data) - TAG_BYTES - len(plain))
