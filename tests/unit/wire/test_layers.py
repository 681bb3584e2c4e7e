"""Bytes of decrypted captures by layer: exact on connections made by hand, and as tshark counted on shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from openedcaptures import (
    CERTIFICATE,
    CLIENT_HELLO,
    DRAFT_27,
    EXTENSIONS,
    FINISHED,
    GET,
    HEAD,
    REQUEST,
    SIZE,
    TICKET,
    Quic,
    Tls,
    key_log,
)
from quicbed.wire import layers, quicwire
from quicbed.wire.layers import LAYERS, Connection
from quicbed.wire.pcap import CaptureError
from quicbed.wire.quicwire import PacketType, WireError
from quicbed.wire.tshark import TsharkError
from wirefixtures import CLIENT, SERVER, pcap, server_hello, tcp, udp, varint

SUITES = [0x1301, 0x1302, 0x1303]
LONG, SHORT = 1 + 4 + 9 + 9 + 2 + 2, 1 + 8 + 2  # header with two connection IDs of 8 bytes, length and number
HELLO = len(server_hello())


def read(directory: Path, frames: list[bytes], keys: str | None, *, clear: bool = False) -> list[Connection]:
    key_file = directory / "keys.log"
    if keys is not None:
        key_file.write_text(keys)
    capture = pcap(directory / "capture.pcap", frames)
    found = layers.read(capture, None if keys is None else key_file, port=SERVER[1], clear=clear)
    for connection in found:
        for unit in connection.units:
            assert sum(unit.layers.values()) == unit.frame_bytes
            assert set(unit.layers) <= set(LAYERS)
    return found


UDP = {"link": 14, "ip": 20, "udp_tcp": 8}
CRYPTO = 5  # type, offset and length
STREAM = 6


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("version", [quicwire.VERSION_1, quicwire.VERSION_2, DRAFT_27])
def test_every_byte_of_a_quic_connection_is_in_its_layer(tmp_path: Path, suite: int, version: int) -> None:
    (found,) = read(tmp_path, Quic(suite, version).frames(), key_log(suite))
    flight = len(EXTENSIONS + CERTIFICATE + FINISHED)
    assert [unit.layers for unit in found.units] == [
        UDP | {"quic_long": LONG + 1, "tag": 16, "frames": CRYPTO, "padding": 1000, "tls": len(CLIENT_HELLO)},
        UDP | {"quic_long": 2 * LONG + 1, "tag": 32, "frames": 5 + 2 * CRYPTO, "tls": HELLO + flight},
        UDP
        | {"quic_long": LONG, "quic_short": SHORT, "tag": 32, "frames": CRYPTO + STREAM}
        | {"tls": len(FINISHED), "http": len(REQUEST)},
        UDP | {"quic_short": SHORT, "tag": 16, "frames": 1 + STREAM, "content": 1000},
        UDP | {"quic_short": SHORT, "tag": 16, "frames": CRYPTO + STREAM, "tls": len(TICKET), "content": 2000},
        UDP | {"quic_short": SHORT, "tag": 16, "frames": 3, "padding": 9},
    ]
    assert found.opaque == 0


def test_another_version_may_be_negotiated(tmp_path: Path) -> None:
    """RFC 9369, 4.1: the client's first packet is of version 1."""
    made = Quic(0x1301, quicwire.VERSION_2, first_version=quicwire.VERSION_1)
    (found,) = read(tmp_path, made.frames(), key_log(0x1301))
    (plain,) = read(tmp_path, Quic(0x1301).frames(), key_log(0x1301))
    assert found.opaque == 0
    assert [unit.layers for unit in found.units] == [unit.layers for unit in plain.units]


def test_a_client_may_keep_the_keys_of_its_first_version(tmp_path: Path) -> None:
    """As that of aioquic does."""
    made = Quic(0x1301, quicwire.VERSION_2, first_version=quicwire.VERSION_1, keeps_keys=True)
    (found,) = read(tmp_path, made.frames(), key_log(0x1301))
    assert found.opaque == 0
    assert found.units[2].label.startswith("Initial: ACK + Handshake: Finished")


def test_packets_are_named_by_messages_and_frames(tmp_path: Path) -> None:
    (found,) = read(tmp_path, Quic().frames(), key_log(0x1301))
    assert [(unit.role, unit.label) for unit in found.units] == [
        ("client", "Initial: ClientHello"),
        ("server", "Initial: ACK, ServerHello + Handshake: EncryptedExtensions, Certificate, Finished"),
        ("client", "Handshake: Finished + 1-RTT: STREAM"),
        ("server", "1-RTT: HANDSHAKE_DONE, STREAM"),
        ("server", "1-RTT: Ticket, STREAM"),
        ("client", "1-RTT: CONNECTION_CLOSE"),
    ]
    begin = found.units[0].time_ns
    assert found.moment("client", "Finished") == begin + 2_000_000
    assert [time - begin for time in found.contents] == [3_000_000, 4_000_000]
    assert found.moment("client", "Certificate") is None


TCP = {"link": 14, "ip": 20, "udp_tcp": 32}


@pytest.mark.parametrize("suite", SUITES)
def test_every_byte_of_a_tls_connection_is_in_its_layer(tmp_path: Path, suite: int) -> None:
    (found,) = read(tmp_path, Tls(suite).frames(), key_log(suite))
    assert [unit.layers for unit in found.units] == [
        TCP,
        TCP,
        TCP | {"records": 5, "tls": len(CLIENT_HELLO)},
        TCP | {"tag": 16, "records": 5 + 6, "tls": HELLO + len(EXTENSIONS + CERTIFICATE + FINISHED)},
        TCP | {"tag": 32, "records": 12, "tls": len(FINISHED), "http": len(GET)},
        TCP | {"records": 5, "http": len(HEAD), "content": 1400 - 5 - len(HEAD)},
        TCP | {"content": 1400},
        TCP | {"content": 1400},  # what is sent again counts again
        TCP | {"tag": 16, "records": 1, "content": SIZE - (1400 - 5 - len(HEAD)) - 1400},
        TCP,
        TCP,
    ]
    assert [unit.label for unit in found.units] == [
        "SYN",
        "SYN, ACK",
        "ClientHello",
        "ServerHello, EncryptedExtensions, Certificate, Finished",
        "Finished, data",
        *["data"] * 4,
        "ACK",
        "FIN",
    ]
    assert found.moment("client", "Finished") == found.units[4].time_ns


def test_a_build_with_the_noop_aead_needs_no_keys(tmp_path: Path) -> None:
    for made in (Quic(noop=True), Tls(noop=True)):
        (found,) = read(tmp_path, made.frames(), None, clear=True)
        assert found.opaque == 0
        assert sum(unit.layers.get("content", 0) for unit in found.units) >= SIZE
    (opened,) = read(tmp_path, Quic().frames(), key_log(0x1301))
    (bare,) = read(tmp_path, Quic(noop=True).frames(), None, clear=True)
    assert [unit.layers for unit in opened.units] == [unit.layers for unit in bare.units]


def test_what_cannot_be_decrypted_is_opaque(tmp_path: Path) -> None:
    other = key_log(0x1301).replace("00010203", "ff010203")
    for keys in (None, other):
        (found,) = read(tmp_path, Quic().frames(), keys)
        # Initial packets need no keys
        assert [bool(unit.layers.get("opaque")) for unit in found.units] == [False, True, True, True, True, True]
        assert found.moment("client", "ClientHello") is not None
        (over_tcp,) = read(tmp_path, Tls().frames(), keys)
        assert over_tcp.opaque > SIZE
        # what is in the clear is named, and that there is more
        assert [unit.label for unit in over_tcp.units][2:8] == [
            "ClientHello",
            "ServerHello, protected",
            *["protected"] * 4,
        ]


def test_connections_are_told_apart_and_others_passed_over(tmp_path: Path) -> None:
    second = [frame.replace(CLIENT[1].to_bytes(2, "big"), b"\xc3\x51") for frame in Tls().frames()]
    stranger = tcp(("10.0.0.9", 1), ("10.0.0.8", 2), 1, b"hello")
    found = read(tmp_path, [stranger, *Tls().frames(), *second, udp(CLIENT, SERVER, b"x")], key_log(0x1301))
    assert [connection.index for connection in found] == [0, 1]
    assert [len(connection.units) for connection in found] == [11, 11]


def test_unusable_captures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no packet from or to port 1"):
        layers.read(pcap(tmp_path / "a.pcap", Quic().frames()), None, port=1)
    with pytest.raises(CaptureError, match="was cut off"):
        layers.read(pcap(tmp_path / "b.pcap", Quic().frames(), snapshot=200), None, port=SERVER[1])
    with pytest.raises(TsharkError, match="not a whole line of a key log"):
        read(tmp_path, Quic().frames(), "nonsense\n")


# ---- HTTP ------------------------------------------------------------------------------------------------------------


def spans(up: bytes, down: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    first, second = ([(span.start, span.end) for span in side] for side in layers._http(up, down))
    return first, second


def test_http_is_told_from_content() -> None:
    assert spans(b"GET /5\r\n", b"hello") == ([(0, 8)], [])
    twice = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    assert spans(GET, twice + b"hello" + twice + b"hello")[1] == [(0, 38), (43, 81)]
    assert spans(b"any message", b"another") == ([], [])
    headers, data = b"\x01\x03abc", b"\x00" + varint(1000)
    assert spans(headers, headers + data + bytes(1000) + b"\x00\x02hi") == ([(0, 5)], [(0, 5), (5, 8), (1008, 1010)])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings, block = b"\x00\x00\x00\x04" + bytes(5), b"\x00\x00\x05\x00" + bytes(5) + b"hello"
    assert spans(preface + settings, settings + block) == ([(0, 24), (24, 33)], [(0, 9), (9, 18)])


# ---- keys and frames -------------------------------------------------------------------------------------------------


def test_the_example_of_chacha20_in_the_rfc() -> None:
    """RFC 9001, A.5."""
    secret = bytes.fromhex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")
    keys = quicwire.traffic_keys(secret, 0x1303)
    assert keys.iv.hex() == "e0459b3474bdd0e44a41c144"
    data = bytes.fromhex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb")
    packet = quicwire.QuicPacket(PacketType.ONE_RTT, data, b"", None, None, 1)
    assert quicwire.unprotect(packet, keys, 654_360_563) == (654_360_564, b"\x01")


@pytest.mark.parametrize(
    ("draft", "key"),
    [(27, "af7fd7efebd21878ff66811248983694"), (29, "175257a31eb09dea9366d8bb79ad80ba")],
)
def test_drafts_have_salts_of_their_own(draft: int, key: str) -> None:
    """Appendix A.1 of draft-ietf-quic-tls-27 and -29."""
    cid = bytes.fromhex("8394c8f03e515708")
    assert quicwire.initial_keys(cid, 0xFF000000 + draft).client.key.hex() == key


def test_every_frame_of_the_rfc_is_read() -> None:
    one = b"\x01"
    bodies = {
        *(
            b"\x01",
            b"\x02" + bytes(4),
            b"\x03\x05\x00\x01\x00\x00\x00\x01\x02\x03",
            b"\x04" + one * 3,
            b"\x05" + one * 2,
        ),
        *(b"\x06\x00\x02hi", b"\x07\x02hi", b"\x08\x00hi", b"\x0f\x00\x01\x02hi", b"\x10\x01", b"\x11\x00\x01"),
        *(b"\x12\x01", b"\x14\x01", b"\x15\x00\x01", b"\x16\x01", b"\x18\x01\x00\x02hi" + bytes(16), b"\x19\x00"),
        *(b"\x1a" + bytes(8), b"\x1b" + bytes(8), b"\x1c\x00\x00\x02hi", b"\x1d\x00\x02hi", b"\x1e"),
    }
    for body in bodies:
        (frame,) = quicwire.frames(body)
        assert frame.size == len(body)
        assert frame.name
        assert frame.data in (b"", b"hi")
        if body[0] != 0x08:  # without a length the data go to the end
            assert [one.size for one in quicwire.frames(body + bytes(3) + body)] == [len(body), 3, len(body)]
    with pytest.raises(WireError, match="type 0x21"):
        list(quicwire.frames(b"\x21"))
    with pytest.raises(WireError, match="cipher suite 0x1304"):
        quicwire.traffic_keys(bytes(32), 0x1304)
