"""The pcap reader and the QUIC wire format."""

import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from quicbed.wire.pcap import Capture, CaptureError
from quicbed.wire.quicwire import (
    InitialKeys,
    PacketKeys,
    PacketType,
    WireError,
    decode_packet_number,
    initial_keys,
    parse_datagram,
    unprotect,
)
from wirefixtures import (
    CLIENT,
    SERVER,
    Protection,
    ethernet,
    ip_packet,
    long_header_packet,
    pcap,
    some_keys,
    tcp,
    udp,
)

DATAGRAM = udp(CLIENT, SERVER, b"hello")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_frames_of_every_byte_order_and_resolution(tmp_path: Path, order: str, nanoseconds: bool) -> None:
    path = pcap(
        tmp_path / "c.pcap",
        [DATAGRAM, tcp(SERVER, CLIENT, 77, b"tls")],
        order=order,  # type: ignore[arg-type]
        nanoseconds=nanoseconds,
    )
    capture = Capture(path)
    assert (capture.byte_order, capture.nanoseconds, capture.link_type) == (order, nanoseconds, 1)
    first, second = capture.packets()
    assert first.frame.time_ns == 1_700_000_000 * 10**9
    assert second.frame.time_ns - first.frame.time_ns == 10**6
    assert (first.protocol, first.source, first.source_port) == ("udp", *CLIENT)
    assert (first.destination, first.destination_port) == SERVER
    assert (first.payload, first.payload_bytes, first.cut) == (b"hello", 5, False)
    assert first.frame.wire_bytes == 14 + 20 + 8 + 5
    assert (second.protocol, second.payload, second.sequence) == ("tcp", b"tls", 77)
    assert capture.truncation is None
    assert len(list(capture)) == 2  # it can be read again


def frames_of_links() -> list[tuple[int, bytes]]:
    """A datagram below the headers of simulators and of other systems."""
    packet = DATAGRAM[14:]
    return [
        *((0, struct.pack(order + "I", 2) + packet) for order in "<>"),
        (108, struct.pack(">I", 2) + packet),
        *((link, head + packet) for link in (9, 50) for head in (b"\x00\x21", b"\xff\x03\x00\x21", b"\x21")),
    ]


def six_of_links() -> list[tuple[int, bytes]]:
    packet = udp(("fd00::1", 1), ("fd00::2", 2), b"hello")[14:]
    families = [(0, struct.pack("<I", family) + packet) for family in (24, 28, 30)]
    return [*families, (108, struct.pack(">I", 24) + packet), (9, b"\x00\x57" + packet)]


@pytest.mark.parametrize(("link", "frame"), [*frames_of_links(), *six_of_links()])
def test_links_of_simulators_and_other_systems(tmp_path: Path, link: int, frame: bytes) -> None:
    capture = Capture(pcap(tmp_path / "c.pcap", [frame, frame[:3], b"\x00\x99" * 9], link=link))
    (packet,) = capture.packets()
    assert packet.payload == b"hello"
    assert sum(one.frames for one in capture.left_out.values()) == 2


def sll(packet: bytes) -> bytes:
    return struct.pack("!HHH8sH", 0, 1, 6, bytes(8), 0x0800) + packet


def sll2(packet: bytes) -> bytes:
    return struct.pack("!HHIHBB8s", 0x0800, 0, 2, 1, 0, 6, bytes(8)) + packet


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (1, DATAGRAM),
        (1, ethernet(DATAGRAM[14:], vlans=2)),
        (1, DATAGRAM + bytes(20)),  # padded to the shortest Ethernet frame
        (101, DATAGRAM[14:]),
        (228, DATAGRAM[14:]),
        (113, sll(DATAGRAM[14:])),
        (276, sll2(DATAGRAM[14:])),
        (1 | 0x14000000, DATAGRAM),  # with the length of a frame check sequence
    ],
)
def test_link_types(tmp_path: Path, link: int, frame: bytes) -> None:
    (packet,) = Capture(pcap(tmp_path / "c.pcap", [frame], link=link)).packets()
    assert (packet.source, packet.payload) == (CLIENT[0], b"hello")


def test_ipv6_with_extension_headers(tmp_path: Path) -> None:
    body = struct.pack("!HHHH", 1, 2, 8 + 3, 0) + b"abc"
    options = bytes([60, 0, 1, 4, 0, 0, 0, 0]) + bytes([17, 1]) + bytes(14)
    frames = [
        ethernet(ip_packet("fd00::1", "fd00:0::2", 17, body)),
        ethernet(ip_packet("fd00::1", "fd00::2", 0, options + body)),
        ethernet(ip_packet("fd00::1", "fd00::2", 44, bytes([17, 0, 0, 1]) + bytes(4) + body)),
        ethernet(ip_packet("fd00::1", "fd00::2", 44, bytes([17, 0, 0, 8]) + bytes(4) + body)),
        # of a translator that says that it would cut, and has not (RFC 6946)
        ethernet(ip_packet("fd00::1", "fd00::2", 44, bytes([17]) + bytes(7) + body)),
    ]
    capture = Capture(pcap(tmp_path / "c.pcap", frames, link=1))
    packets = list(capture.packets())
    assert [p.frame.index for p in packets] == [0, 1, 4]
    assert capture.left_out["fragment"].frames == 2
    assert {p.ip_header_bytes for p in packets} == {40, 64, 48}
    assert {(p.source, p.destination, p.payload) for p in packets} == {("fd00::1", "fd00::2", b"abc")}


def test_what_is_not_udp_or_tcp_is_passed_over(tmp_path: Path) -> None:
    fragment = bytearray(DATAGRAM)
    fragment[20:22] = b"\x20\x00"
    wrong_length = bytearray(DATAGRAM)
    wrong_length[38:40] = b"\x00\x07"
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    icmp = ethernet(ip_packet("10.0.0.1", "10.0.0.2", 1, bytes(16)))
    frames = [b"", arp, icmp, bytes(fragment), bytes(wrong_length), DATAGRAM]
    capture = Capture(pcap(tmp_path / "c.pcap", frames))
    packets = list(capture.packets())
    assert [packet.frame.index for packet in packets] == [5]
    told = {reason: (one.frames, one.first) for reason, one in capture.left_out.items()}
    assert told == {"malformed": (2, 0), "other": (2, 1), "fragment": (1, 3)}
    fragments, lengths = capture.problems(packets)
    assert fragments.startswith("1 frames, the first is frame 3, hold fragments")
    assert lengths.startswith("2 frames, the first is frame 0, have lengths that cannot be")


@pytest.mark.parametrize("source", ["10.0.0.1", "fd00::1"])
def test_a_length_that_is_left_to_the_network_card_is_that_of_the_frame(tmp_path: Path, source: str) -> None:
    destination = "fd00::2" if ":" in source else "10.0.0.2"
    frame = bytearray(udp((source, 1), (destination, 2), b"x" * 3000))
    at = 14 + (4 if ":" in source else 2)
    frame[at : at + 2] = bytes(2)
    (packet,) = Capture(pcap(tmp_path / "c.pcap", [bytes(frame)])).packets()
    assert (packet.payload, packet.ip_bytes) == (b"x" * 3000, len(frame) - 14)


def test_a_packet_that_two_interfaces_of_a_machine_have_seen_is_told(tmp_path: Path) -> None:
    """As `tcpdump -i any` captures it on a router."""
    first = sll2(DATAGRAM[14:])
    second = first[:4] + struct.pack("!I", 7) + first[8:]
    back = sll2(udp(SERVER, CLIENT, b"hello")[14:])
    capture = Capture(pcap(tmp_path / "c.pcap", [first, back, second], link=276))
    (told,) = capture.problems(list(capture.packets()))
    assert told.startswith("frame 2 is of interface 7 and those before it, from and to the same ports, of interface 2")
    capture = Capture(pcap(tmp_path / "d.pcap", [first, back, first], link=276))
    assert capture.problems(list(capture.packets())) == []


def test_a_snapshot_length_cuts_payloads(tmp_path: Path) -> None:
    (packet,) = Capture(pcap(tmp_path / "c.pcap", [DATAGRAM], snapshot=44)).packets()
    assert (packet.payload, packet.payload_bytes, packet.cut) == (b"he", 5, True)
    assert packet.frame.wire_bytes == len(DATAGRAM)
    assert not list(Capture(pcap(tmp_path / "d.pcap", [DATAGRAM], snapshot=30)).packets())


@pytest.mark.parametrize(
    "cut",
    [
        -1,
        -47,
        -48,
        -62,
    ],
)
def test_a_truncated_file(tmp_path: Path, cut: int, snapshot: SnapshotAssertion) -> None:
    path = pcap(tmp_path / "c.pcap", [DATAGRAM, DATAGRAM])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CaptureError) as caught:
        list(Capture(path))
    told = str(caught.value).removeprefix(f"{path}: ")
    assert wording.one_line(told, names="at byte ") == snapshot
    capture = Capture(path, allow_truncated=True)
    assert len(list(capture)) == 1
    assert capture.truncation == told


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xd4\xc3",
        b"\xd4\xc3\xb2\xa1\x02\x00",
        b"\x0a\x0d\x0d\x0a" + bytes(60),
        b"GET / HTTP/1.1",
        struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 3, 0, 0, 9, 1),
        struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 9, 105),
    ],
)
@pytest.mark.parametrize("allow_truncated", [False, True])
def test_foreign_files(tmp_path: Path, data: bytes, snapshot: SnapshotAssertion, allow_truncated: bool) -> None:
    path = tmp_path / "c.pcap"
    path.write_bytes(data)
    with pytest.raises(CaptureError) as caught:
        Capture(path, allow_truncated=allow_truncated)
    assert str(caught.value).startswith(f"{path}: at byte ")
    assert wording.one_line(caught.value, tmp_path) == snapshot


def test_impossible_frame_headers(tmp_path: Path) -> None:
    path = pcap(tmp_path / "c.pcap", [DATAGRAM])
    data = path.read_bytes()
    for at, value, expected in [
        (28, 1_000_000_000, "frame 0 has 1000000000 as its fraction of a second"),
        (32, 1_000_000, "frame 0 says 1000000 bytes were captured of 47"),
        (36, 46, "frame 0 says 47 bytes were captured of 46"),
    ]:
        path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
        with pytest.raises(CaptureError, match=f"at byte 24: {expected}"):
            list(Capture(path, allow_truncated=True))


def test_missing_files_and_directories(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"none\.pcap: cannot be opened: No such file"):
        Capture(tmp_path / "none.pcap")
    with pytest.raises(CaptureError, match=r"cannot be (opened|read): Is a directory"):
        Capture(tmp_path)


# RFC 9001, Appendix A.

DCID = bytes.fromhex("8394c8f03e515708")

CLIENT_HELLO_FRAME = bytes.fromhex(
    "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868"
    "04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578"
    "616d706c652e636f6dff01000100000a00080006001d00170018001000070005"
    "04616c706e000500050100000000003300260024001d00209370b2c9caa47fba"
    "baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400"
    "0d0010000e0403050306030203080408050806002d00020101001c0002400100"
    "3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000"
    "75300901100f088394c8f03e51570806048000ffff"
)

SERVER_INITIAL = bytes.fromhex(
    "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a"
    "5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3"
    "dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84"
    "022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4"
    "2158407dd074ee"
)

SERVER_PAYLOAD = bytes.fromhex(
    "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf739"
    "88cfc79825df566dc5430b9a045a1200130100002e00330024001d00209d3c94"
    "0d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00"
    "020304"
)


def test_initial_keys_of_rfc_9001_a1() -> None:
    assert initial_keys(DCID) == InitialKeys(
        PacketKeys(
            bytes.fromhex("1f369613dd76d5467730efcbe3b1a22d"),
            bytes.fromhex("fa044b2f42a3fd3b46fb255c"),
            bytes.fromhex("9f50449e04a0e810283a1e9933adedd2"),
        ),
        PacketKeys(
            bytes.fromhex("cf3a5331653c364c88f0f379b6067e37"),
            bytes.fromhex("0ac1493ca1905853b0bba03e"),
            bytes.fromhex("c206b8d9b9f0f37644430b490eeaa314"),
        ),
    )


def test_client_initial_of_rfc_9001_a2() -> None:
    """The packet is sealed again from its plaintext; its beginning and its tag are the RFC's."""
    header = bytes.fromhex("c300000001088394c8f03e5157080000449e")
    plaintext = CLIENT_HELLO_FRAME + bytes(1162 - len(CLIENT_HELLO_FRAME))
    data = Protection(initial_keys(DCID).client).seal(header, 2, 4, plaintext)
    assert len(data) == 1200
    assert data[:40].hex() == ("c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11d242b123dc9bd8ba")
    assert data[-16:].hex() == "e221af44860018ab0856972e194cd934"
    (packet,) = parse_datagram(data).packets
    assert (packet.type, packet.destination_cid, packet.source_cid) == (
        PacketType.INITIAL,
        DCID,
        b"",
    )
    assert packet.sample.hex() == "d1b1c98dd7689fb8ec11d242b123dc9b"
    assert unprotect(packet, initial_keys(DCID).client) == (2, plaintext)
    with pytest.raises(WireError, match="tag of the Initial packet"):
        unprotect(packet, initial_keys(DCID).server)


def test_server_initial_of_rfc_9001_a3() -> None:
    (packet,) = parse_datagram(SERVER_INITIAL).packets
    assert packet.source_cid == bytes.fromhex("f067a5502a4262b5")
    assert packet.sample.hex() == "2cd0991cd25b0aac406a5816b6394100"
    assert unprotect(packet, initial_keys(DCID).server) == (1, SERVER_PAYLOAD)
    with pytest.raises(WireError, match="tag of the Initial packet"):
        unprotect(packet, initial_keys(b"another").server)


def test_packet_numbers_of_rfc_9000_a3() -> None:
    assert decode_packet_number(0xA82F30EA, 0x9B32, 2) == 0xA82F9B32
    assert decode_packet_number(-1, 0, 1) == 0
    assert decode_packet_number(0xFF, 0x00, 1) == 0x100
    assert decode_packet_number(0x100, 0xFF, 1) == 0xFF


def test_coalesced_packets() -> None:
    keys = Protection(some_keys("any"))
    initial = long_header_packet(0, keys, b"client!", b"server", 0, bytes(40))
    handshake = long_header_packet(2, keys, b"client!", b"server", 0, bytes(50))
    short = keys.seal(b"\x40client!", 3, 1, bytes(30))
    datagram = parse_datagram(initial + handshake + short)
    assert [p.type for p in datagram.packets] == [
        PacketType.INITIAL,
        PacketType.HANDSHAKE,
        PacketType.ONE_RTT,
    ]
    assert [p.data for p in datagram.packets] == [initial, handshake, short]
    assert datagram.trailing == b""
    assert parse_datagram(short, 7).packets[0].destination_cid == b"client!"


def test_what_follows_a_packet_and_is_none_is_trailing() -> None:
    keys = Protection(some_keys("any"))
    initial = long_header_packet(0, keys, b"", b"server", 0, bytes(40))
    other = long_header_packet(2, keys, b"other", b"server", 0, bytes(40))
    for trailing in (bytes(100), other, b"\xc0\x00\x00\x00\x01", b"\x40short"):
        datagram = parse_datagram(initial + trailing)
        assert len(datagram.packets) == 1
        assert datagram.trailing == trailing


def test_a_packet_with_the_fixed_bit_zero_is_a_packet() -> None:
    short = Protection(some_keys("any"), header_protection=False).seal(b"\x00abcd", 3, 1, bytes(30))
    assert parse_datagram(short, 4).packets[0].type is PacketType.ONE_RTT


def test_packets_without_a_packet_number() -> None:
    cids = b"\x02cc\x03sss"
    (retry,) = parse_datagram(b"\xf0\x00\x00\x00\x01" + cids + bytes(30)).packets
    assert (retry.type, retry.source_cid, retry.sample) == (PacketType.RETRY, b"sss", b"")
    (negotiation,) = parse_datagram(b"\x80\x00\x00\x00\x00" + cids + b"\x00\x00\x00\x01").packets
    assert negotiation.type is PacketType.VERSION_NEGOTIATION
    with pytest.raises(WireError, match="the Retry packet has no protected payload"):
        unprotect(retry, some_keys("any"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x40" + bytes(40),
        b"\xc0\x00\x00",
        b"\xc0\x0a\x0a\x0a\x0a\x00\x00" + bytes(40),
        b"\xc0\x00\x00\x00\x01\x15" + bytes(60),
        b"\xc0\x00\x00\x00\x01\x00\x00\x00\x44\x00" + bytes(10),
        b"\xc0\x00\x00\x00\x01\x09abc",
    ],
)
def test_malformed_packets(data: bytes, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(WireError) as error:
        parse_datagram(data)
    assert wording.one_line(error.value) == snapshot


def test_a_short_header_packet_needs_room_for_its_tag() -> None:
    with pytest.raises(WireError, match="too short for a 1-RTT packet"):
        parse_datagram(b"\x40" + bytes(20), 8)


@pytest.mark.parametrize("seed", range(200))
def test_random_datagrams_raise_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(SERVER_INITIAL[: dice.randint(0, len(SERVER_INITIAL))])
    for _ in range(dice.randint(0, 6)):
        data[dice.randint(0, len(data)) :] = dice.randbytes(dice.randint(1, 40))
    try:
        datagram = parse_datagram(bytes(data), dice.choice([None, 0, 8, 20]))
    except WireError:
        return
    assert b"".join(p.data for p in datagram.packets) + datagram.trailing == bytes(data)
    for packet in datagram.packets:
        with suppress(WireError):
            assert unprotect(packet, initial_keys(DCID).server) == (1, SERVER_PAYLOAD)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_captures_raise_nothing_else(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    link = dice.choice([1, 101, 113, 276])
    frames = [DATAGRAM, tcp(SERVER, CLIENT, 1, b"x" * 40), ethernet(ip_packet("::1", "::2", 0, bytes(30)))]
    path = pcap(tmp_path / "c.pcap", frames, link=link)
    data = bytearray(path.read_bytes())
    for _ in range(dice.randint(1, 12)):
        data[dice.randrange(24, len(data))] = dice.randrange(256)
    path.write_bytes(data)
    try:
        packets = list(Capture(path, allow_truncated=True).packets())
    except CaptureError as error:
        packets = []
        assert str(error).startswith(f"{path}: at byte ")  # noqa: PT017
    assert len(packets) <= 3
