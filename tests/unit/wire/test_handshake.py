"""Handshakes in captures: real ones of several libraries, taken on the local testbed, and damaged copies of them.

The captures are in tests/data/handshakes: quiche, quinn, OpenSSL's QUIC and nginx with curl, `tcp-tls-hrr` between
OpenSSL's s_client and s_server with a HelloRetryRequest, and a first and a second visit of nginx with curl
(`*-resumed*`, `*-early-data`).
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from syrupy.assertion import SnapshotAssertion

import fakeruns
import wirefixtures
import wording
from quicbed.cli.commands import main
from quicbed.config import algorithms
from quicbed.contract import events
from quicbed.report.look import _rows
from quicbed.wire.handshake import (
    Connection,
    Handshake,
    HandshakeError,
    Piece,
    Unit,
    _Examiner,
    _read,
    contradictions,
    count_differences,
    examine,
    openings,
    quic_connections,
)
from quicbed.wire.pcap import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, Capture, Frame
from quicbed.wire.quicwire import PacketType, QuicPacket
from quicbed.wire.tshark import QuicDetails, TsharkError

SERVER = "10.113.0.2"
PORT = 4433
UDP_AT = 34  # behind an Ethernet and an IPv4 header

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


@pytest.fixture(scope="session")
def data(repository: Path) -> Path:
    return repository / "tests/data/handshakes"


def look(
    capture: Path, key_log: Path, transport: Literal["quic", "tcp"] = "quic", server_ip: str = SERVER
) -> list[Handshake]:
    return examine(capture, key_log, server_ip=server_ip, server_port=PORT, transport=transport)


@pytest.fixture
def changed(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a copy of a capture with other frames."""

    def changed(name: str, change: Callable[[list[Frame]], list[Frame]]) -> Path:
        source = data / f"{name}.pcap"
        content = bytearray(source.read_bytes()[:FILE_HEADER_BYTES])
        capture = Capture(source)
        unit = 1 if capture.nanoseconds else 1000
        for frame in change(list(capture)):
            seconds, rest = divmod(frame.time_ns, 10**9)
            header = struct.pack("<IIII", seconds, rest // unit, len(frame.data), frame.wire_bytes)
            content += header + frame.data
        target = tmp_path / f"{name}.pcap"
        target.write_bytes(content)
        return target

    return changed


def from_server(frame: Frame) -> bool:
    return frame.data[UDP_AT : UDP_AT + 2] == PORT.to_bytes(2, "big")


# -- what the captures hold


def test_x25519_with_rsa_2048_takes_three_packets_of_each_role_as_published(data: Path) -> None:
    found = look(data / "quiche.pcap", data / "quiche.keys")
    assert [one.packets for one in found] == [(3, 3), (3, 3)]
    assert [(one.client.datagrams, one.server.datagrams) for one in found] == [(2, 2), (2, 2)]


def test_counts_and_messages_of_a_handshake(data: Path) -> None:
    one = look(data / "quiche.pcap", data / "quiche.keys")[0]
    assert one.decrypted
    assert one.problem is None
    assert (one.cipher, one.group, one.signature) == (0x1301, 0x001D, 0x0804)
    assert not one.retry
    assert not one.hello_retry_request
    levels = {name: (level.packets, level.crypto_bytes) for name, level in one.client.levels.items()}
    assert levels == {"initial": (2, 236), "handshake": (1, 36)}
    levels = {name: (level.packets, level.crypto_bytes) for name, level in one.server.levels.items()}
    assert levels == {"initial": (1, 90), "handshake": (2, 1205)}
    assert (one.client.ack_only_packets, one.server.ack_only_packets) == (1, 0)
    assert (one.client.bytes, one.server.bytes) == (2672, 1489)
    assert one.client.bytes_before_finished == 1200
    sizes = one.messages
    assert (sizes.client_hello, sizes.server_hello, sizes.signature) == (236, 90, 256)
    assert (sizes.client_key_share, sizes.server_key_share) == (32, 32)
    assert sizes.public_key == 256  # the modulus of RSA-2048
    # EncryptedExtensions to Finished are what the server's Handshake packets carry.
    assert sizes.encrypted_extensions is not None
    assert sizes.certificate
    assert sizes.certificate_verify
    assert sizes.encrypted_extensions + sizes.certificate + sizes.certificate_verify + 36 == 1205
    assert one.t_client_finished is not None
    assert one.t_server_hello is not None
    assert one.t_confirmed is not None
    assert one.t_client_hello < one.t_server_hello < one.t_client_finished < one.t_confirmed
    assert one.server_flights == 1
    assert one.amplification is not None
    assert one.amplification.limit_hits == 0
    assert one.amplification.bytes_before_validation == 1489
    assert one.amplification.limit_bytes == 3600


def test_client_hello_in_two_initial_packets(data: Path) -> None:
    (one,) = look(data / "quiche-x25519-mlkem768.pcap", data / "quiche-x25519-mlkem768.keys")
    assert one.problem is None
    assert one.group == 0x11EC
    # ML-KEM-768: 1184 and 1088 bytes (FIPS 203), X25519: 32
    assert (one.messages.client_key_share, one.messages.server_key_share) == (1184 + 32, 1088 + 32)
    assert one.client.levels["initial"].packets == 3
    assert one.client.levels["initial"].crypto_bytes == one.messages.client_hello == 1420


def test_a_server_that_waits_for_address_validation(data: Path) -> None:
    (one,) = look(data / "quinn-dilithium3-20ms.pcap", data / "quinn-dilithium3-20ms.keys")
    assert one.problem is None
    assert one.packets == (4, 9)
    # An early 1-RTT packet is listed, not counted.
    assert one.server.levels["1rtt"].packets == 1
    assert one.messages.certificate == 5519
    assert (one.messages.public_key, one.messages.signature) == (1952, 3293)
    assert one.amplification is not None
    assert one.amplification.bytes_before_validation == one.amplification.limit_bytes == 3600
    assert one.amplification.limit_hits == 1
    assert one.amplification.round_trips_blocked == 1
    assert one.server_flights == 2
    assert one.t_client_finished is not None
    assert one.t_client_finished - one.t_client_hello > 2 * 20e6


def test_retry(data: Path) -> None:
    (one,) = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    assert one.problem is None
    assert one.retry
    assert not one.hello_retry_request
    assert one.packets == (4, 4)
    assert one.server.levels["retry"].packets == 1
    assert one.amplification is not None
    # The token validates the address: nothing but the Retry packet came before.
    assert one.amplification.bytes_before_validation == one.server.levels["retry"].bytes
    assert one.amplification.received_before_validation == 1200
    assert one.server_flights == 2


def test_tcp(data: Path) -> None:
    (one,) = look(data / "tcp-tls.pcap", data / "tcp-tls.keys", "tcp")
    assert one.problem is None
    assert one.packets == (2, 1)
    assert (one.client.ack_only_packets, one.server.ack_only_packets) == (2, 1)
    assert one.client.levels == {}
    assert one.amplification is None
    assert (one.client.tls_records, one.server.tls_records) == (3, 6)
    assert one.client.tls_record_bytes == one.client.bytes
    assert one.messages.certificate == 800
    assert one.server_flights == 1


def test_hello_retry_request(data: Path) -> None:
    (one,) = look(data / "tcp-tls-hrr.pcap", data / "tcp-tls-hrr.keys", "tcp", server_ip="127.0.0.1")
    assert one.problem is None
    assert one.hello_retry_request
    assert one.group == 0x001D
    assert one.messages.client_key_share == 32
    assert one.packets == (3, 2)
    assert one.server_flights == 2


def test_a_client_port_used_again_is_another_connection(data: Path, changed: Callable[..., Path]) -> None:
    def one_port(frames: list[Frame]) -> list[Frame]:
        result = []
        for frame in frames:
            at = UDP_AT + 2 if from_server(frame) else UDP_AT
            moved = frame.data[:at] + struct.pack("!H", 50000) + frame.data[at + 2 :]
            result.append(Frame(frame.index, frame.time_ns, moved, frame.wire_bytes))
        return result

    found = look(changed("quiche", one_port), data / "quiche.keys")
    assert [one.client_port for one in found] == [50000, 50000]
    assert [one.packets for one in found] == [(3, 3), (3, 3)]
    assert [one.problem for one in found] == [None, None]


# -- damage


def test_without_the_keys_packets_by_level_are_still_right(data: Path, tmp_path: Path) -> None:
    whole = look(data / "quiche.pcap", data / "quiche.keys")
    lines = (data / "quiche.keys").read_text().splitlines(keepends=True)
    second = lines[-1].split()[1]
    keys = tmp_path / "half.keys"
    keys.write_text("".join(line for line in lines if line.split()[1] == second))
    first, other = look(data / "quiche.pcap", keys)
    assert other == whole[1]
    assert not first.decrypted
    assert first.problem is not None
    assert str(keys) in first.problem
    assert "CLIENT_HANDSHAKE_TRAFFIC_SECRET" in first.problem
    assert first.packets == whole[0].packets
    assert first.group == whole[0].group  # Initial packets need no key log
    assert first.signature is None
    assert first.messages.certificate is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"CLIENT_HANDSHAKE_TRAFFIC_SECRET 00", "line 1 is not a whole line"),
        (b"\xff\xfe", "not a key log"),
    ],
)
def test_damaged_key_log(data: Path, tmp_path: Path, content: bytes, reason: str) -> None:
    keys = tmp_path / "damaged.keys"
    keys.write_bytes(content)
    with pytest.raises(HandshakeError, match=reason) as caught:
        look(data / "quiche.pcap", keys)
    assert str(keys) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_last_line_that_is_cut_off_is_passed_over(data: Path, tmp_path: Path) -> None:
    keys = tmp_path / "cut.keys"
    content = (data / "quiche.keys").read_bytes()
    lost = content.splitlines()[-1].split()
    keys.write_bytes(content[:-20])
    first, second = look(data / "quiche.pcap", keys)
    assert first == look(data / "quiche.pcap", data / "quiche.keys")[0]
    # what it had is missing where it is needed
    needed = lost[0].endswith(b"HANDSHAKE_TRAFFIC_SECRET")
    assert (second.problem is not None) == needed
    keys.write_bytes(content[:100])
    with pytest.raises(HandshakeError, match="not a whole line of a key log, and neither is another"):
        look(data / "quiche.pcap", keys)


def test_missing_files(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HandshakeError, match=r"none\.keys: the key log cannot be read"):
        look(data / "quiche.pcap", tmp_path / "none.keys")
    with pytest.raises(HandshakeError, match=r"none\.pcap"):
        look(tmp_path / "none.pcap", data / "quiche.keys")


def test_capture_cut_within_a_frame(data: Path, tmp_path: Path) -> None:
    capture = tmp_path / "cut.pcap"
    capture.write_bytes((data / "quiche.pcap").read_bytes()[: FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 700])
    with pytest.raises(HandshakeError, match=r"cut\.pcap.*ends within frame 0"):
        look(capture, data / "quiche.keys")


def test_capture_with_cut_frames(data: Path, changed: Callable[..., Path]) -> None:
    capture = changed("quiche", lambda frames: [Frame(f.index, f.time_ns, f.data[:128], f.wire_bytes) for f in frames])
    with pytest.raises(HandshakeError, match="frame 0 holds 128 of 1242 bytes; capture whole frames"):
        look(capture, data / "quiche.keys")


def test_capture_of_another_server(data: Path) -> None:
    with pytest.raises(HandshakeError, match=r"quiche\.pcap: no UDP datagram from or to 10\.113\.0\.9 port 4433"):
        look(data / "quiche.pcap", data / "quiche.keys", server_ip="10.113.0.9")


def test_capture_that_ends_within_a_handshake(data: Path, changed: Callable[..., Path]) -> None:
    (one,) = look(changed("openssl-retry", lambda frames: frames[:4]), data / "openssl-retry.keys")
    assert one.problem is not None
    assert "before the client's Finished" in one.problem
    assert one.retry
    assert one.t_client_finished is None
    (one,) = look(changed("openssl-retry", lambda frames: frames[:1]), data / "openssl-retry.keys")
    assert one.problem is not None
    assert "no answer of the server" in one.problem


def test_capture_that_begins_within_a_connection(data: Path, changed: Callable[..., Path]) -> None:
    first, second = look(changed("quiche", lambda frames: frames[3:]), data / "quiche.keys")
    assert first.problem is not None
    assert "no whole ClientHello" in first.problem
    assert second.problem is None
    assert second.packets == (3, 3)


def server_datagrams(frames: list[Frame]) -> list[int]:
    return [place for place, frame in enumerate(frames) if from_server(frame)]


def test_packets_out_of_order_are_counted_all_the_same(data: Path, changed: Callable[..., Path]) -> None:
    def swap(frames: list[Frame]) -> list[Frame]:
        first, second = server_datagrams(frames)[1:3]
        frames[first], frames[second] = frames[second], frames[first]
        return frames

    (one,) = look(changed("quinn-dilithium3-20ms", swap), data / "quinn-dilithium3-20ms.keys")
    assert one.packets == (4, 9)


def test_a_lost_datagram_is_missing_in_the_count_and_told_apart_from_the_library(
    data: Path, changed: Callable[..., Path]
) -> None:
    def lose(frames: list[Frame]) -> list[Frame]:
        del frames[server_datagrams(frames)[1]]
        return frames

    found = look(changed("quinn-dilithium3-20ms", lose), data / "quinn-dilithium3-20ms.keys")
    assert found[0].packets == (4, 8)


# -- comparison


def test_a_cell_that_is_as_it_should_be_has_no_contradiction(data: Path, repository: Path) -> None:
    found = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    expected: dict[str, Any] = {"group": "x25519", "signature": "rsa-2048", "cipher": "aes-128-gcm"}
    table = algorithms.read(repository)
    expected["certificate_bytes"] = found[0].messages.certificate
    assert contradictions(found, table, connections=1, retry=True, udp_payload=1472, **expected) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"connections": 2},
        {"group": "p-256"},
        {"signature": "mldsa44"},
        {"cipher": "aes-256-gcm"},
        {"retry": False},
        {"hello_retry_request": True},
        {"certificate_bytes": 1},
        {"udp_payload": 1199},
    ],
    ids=wording.name,
)
def test_contradictions(data: Path, repository: Path, expected: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    found = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    (sentence,) = contradictions(found, algorithms.read(repository), **expected)
    assert wording.one_line(sentence) == snapshot


VISITS: dict[str, tuple[Literal["quic", "tcp"], bool]] = {
    "nginx-h3-resumed": ("quic", False),
    "tcp-tls-early-data": ("tcp", True),
    # the server's answer was captured before the early data, which the client had sent without it
    "tcp-tls-chromium-early-data": ("tcp", True),
    "tcp-tls-resumed-tls12": ("tcp", False),
}


@pytest.mark.parametrize("name", VISITS)
def test_a_second_visit_resumes_the_session_of_the_first(data: Path, repository: Path, name: str) -> None:
    transport, early = VISITS[name]
    server = "127.0.0.1" if name in fakeruns.OVER_LOOPBACK else "10.113.0.2"
    first, later = look(data / f"{name}.pcap", data / f"{name}.keys", transport, server)
    assert (first.resumed, first.early_data, first.early_bytes) == (False, False, 0)
    assert (later.resumed, later.early_data, later.early_bytes > 0) == (True, early, early)
    assert first.messages.certificate is not None
    assert later.messages.certificate is None
    assert (first.problem, later.problem) == (None, None)
    table = algorithms.read(repository)
    # what only a first visit has is not looked for in a later one
    old = name.endswith("tls12")
    expected = {} if old else {"signature": "rsa-2048", "certificate_bytes": first.messages.certificate}
    assert contradictions([first], table, **expected) == []
    assert contradictions([later], table, resumed=True, early_data=early, **expected) == []
    assert contradictions([first], table, resumed=True)[-1] == "connection 0: no resumed session, expected one"
    assert "connection 1: a resumed session, expected none" in contradictions([later], table)


def test_early_data_that_was_to_be_sent_is_missed(data: Path, repository: Path) -> None:
    name, table = "nginx-h3-resumed", algorithms.read(repository)
    _, later = look(data / f"{name}.pcap", data / f"{name}.keys", "quic", "127.0.0.1")
    assert contradictions([later], table, resumed=True, early_data=True) == [
        "connection 1: no request as early data, expected one",
        "connection 1: nothing before EndOfEarlyData, expected early data",
    ]


def test_an_undecrypted_connection_is_a_contradiction(data: Path, repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "empty.keys"
    keys.write_text("")
    found = look(data / "quiche.pcap", keys)
    reasons = contradictions(found, algorithms.read(repository), group="x25519")
    assert len(reasons) == 2
    assert all(str(keys) in reason for reason in reasons)


def library_events(
    data: Path, tmp_path: Path, **client: Any
) -> tuple[tuple[events.ClientConnection, ...], tuple[events.ServerConnection, ...]]:
    """What the endpoints of `openssl-retry` reported, with changes to the client's connection."""
    lines = []
    for line in (data / "openssl-retry.client.jsonl").read_text().splitlines():
        event = json.loads(line)
        lines.append(json.dumps({**event, **client} if event["event"] == "connection" else event))
    path = tmp_path / "client.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return (
        events.read(path, "client").connections,
        events.read(data / "openssl-retry.server.jsonl", "server").connections,
    )


def test_counts_of_the_library_are_those_of_the_capture(data: Path, tmp_path: Path) -> None:
    found = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    assert count_differences(found, *library_events(data, tmp_path)) == []


def test_counts_of_the_library_that_differ_are_named(data: Path, tmp_path: Path) -> None:
    found = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    (packets,) = count_differences(found, *library_events(data, tmp_path, handshake_packets_sent=40))
    assert packets.startswith("1 of 1 connections, first 0: the client counts 40 packets sent, the capture ")
    (size,) = count_differences(found, *library_events(data, tmp_path, handshake_bytes_sent=1))
    assert "the client counts 1 bytes sent" in size
    assert count_differences(found, *library_events(data, tmp_path, handshake_packets_sent=None)) == []


def test_another_number_of_connections_is_named(data: Path, tmp_path: Path) -> None:
    found = look(data / "openssl-retry.pcap", data / "openssl-retry.keys")
    client, server = library_events(data, tmp_path)
    assert count_differences([*found, *found], client, server) == [
        "the client reports 1 connections, the capture holds 2",
        "the server reports 1 connections, the capture holds 2",
    ]


def test_a_handshake_survives_json(data: Path) -> None:
    for one in look(data / "quiche.pcap", data / "quiche.keys"):
        assert Handshake.model_validate_json(one.model_dump_json()) == one


# -- command line


def test_command_prints_a_row_per_connection(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(data / "quiche.pcap"), str(data / "quiche.keys")]
    assert main(["handshake", *files, "--server", f"{SERVER}:{PORT}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].split()[3] == "3/3"
    assert lines[-1] == "median packets client/server: 3/3"


def test_command_with_wrong_files(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = str(tmp_path / "none.keys")
    assert main(["handshake", str(data / "quiche.pcap"), keys, "--server", f"{SERVER}:{PORT}"]) == 1
    assert capsys.readouterr().err.startswith(f"quicbed: {keys}: the key log cannot be read")
    assert main(["handshake", str(data / "quiche.pcap"), str(data / "quiche.keys"), "--server", SERVER]) == 1
    assert "give its address and port" in capsys.readouterr().err


# -- waiting, on made-up connections


def piece(
    kind: PacketType, size: int, number: int, *, crypto: tuple[int, int] | None = None, ack: int | None = None
) -> Piece:
    """A packet that could be decrypted."""
    data = bytes([0xC0, 0, 0, 0, 1, 0, 0, 0]).ljust(size, b"\0")  # no connection IDs, no token
    frames = (*((0x02,) if ack is not None else ()), *((0x06,) if crypto else ()))
    details = QuicDetails(size, True, number, frames, (crypto,) if crypto else (), ack, ())
    return Piece(QuicPacket(kind, data, b"", b"", 1, 8), details)


def server_flight(begin: int, datagrams: int, time_ns: int) -> list[Unit]:
    """Full datagrams with 1100 bytes of handshake data each; packet numbers go with the data."""
    return [
        Unit("server", time_ns, 1200, [piece(PacketType.HANDSHAKE, 1200, begin + i, crypto=((begin + i) * 1100, 1100))])
        for i in range(datagrams)
    ]


def waiting(units: list[Unit]) -> Handshake:
    return _Examiner(Connection(1, units), 0, "quic", {}, Path("none.keys")).handshake()


HELLO = Unit("client", 1, 1200, [piece(PacketType.INITIAL, 1200, 0, crypto=(0, 300))])
SERVER_HELLO = Unit("server", 2, 1200, [piece(PacketType.INITIAL, 1200, 0, crypto=(0, 90))])


def test_a_server_that_is_blocked_twice() -> None:
    probe = Unit("client", 5, 400, [piece(PacketType.INITIAL, 400, 1, ack=0)])
    acknowledgement = Unit("client", 9, 60, [piece(PacketType.HANDSHAKE, 60, 0, ack=2)])
    units = [
        *(HELLO, SERVER_HELLO),
        *server_flight(0, 2, 3),  # 3 x 1200 bytes are sent
        probe,  # allows 1200 bytes more, and does not validate
        *server_flight(2, 1, 6),
        acknowledgement,
        *server_flight(3, 5, 10),
    ]
    found = waiting(units)
    assert found.amplification is not None
    assert found.amplification.limit_hits == 2
    assert found.amplification.round_trips_blocked == 2
    assert found.amplification.bytes_before_validation == found.amplification.limit_bytes == 4800
    assert found.server_flights == 3


def test_datagrams_of_one_flight_of_the_client_end_one_round_trip() -> None:
    probes = [Unit("client", 5 + i, 400, [piece(PacketType.INITIAL, 400, 1 + i, ack=0)]) for i in range(2)]
    units = [
        *(HELLO, SERVER_HELLO, *server_flight(0, 2, 3)),
        *(probes[0], *server_flight(2, 1, 7), probes[1], *server_flight(3, 1, 8)),
    ]
    found = waiting(units)
    assert found.amplification is not None
    assert found.amplification.limit_hits == 2
    assert found.amplification.round_trips_blocked == 1


def test_a_client_that_speaks_while_the_server_may_send_blocks_nothing() -> None:
    acknowledgement = Unit("client", 4, 60, [piece(PacketType.INITIAL, 60, 1, ack=0)])
    units = [HELLO, SERVER_HELLO, acknowledgement, *server_flight(0, 2, 5)]
    found = waiting(units)
    assert found.amplification is not None
    assert found.amplification.limit_hits == 0


def test_waiting_for_the_congestion_window_is_not_the_anti_amplification_limit() -> None:
    validation = Unit("client", 5, 60, [piece(PacketType.HANDSHAKE, 60, 0, ack=0)])
    more = Unit("client", 8, 60, [piece(PacketType.HANDSHAKE, 60, 1, ack=9)])
    units = [
        *(HELLO, SERVER_HELLO, *server_flight(0, 1, 3), validation),
        *(*server_flight(1, 9, 6), more, *server_flight(10, 9, 9)),
    ]
    found = waiting(units)
    assert found.amplification is not None
    assert found.amplification.limit_hits == 0
    assert found.server_flights == 3


# -- connections


def test_an_initial_packet_to_an_id_issued_before_it_opens_no_connection(tmp_path: Path) -> None:
    """As OpenSSL's client, which has no ID itself, with ngtcp2's server."""
    address, port = wirefixtures.SERVER
    first = wirefixtures.QuicTransfer(client_cid=b"", issued_cid=b"issued in 1-RTT!", size=4000)
    second = wirefixtures.QuicTransfer(client_cid=b"", original_cid=b"another", server_cid=b"z" * 16, size=4000)
    frames = first.run() + second.run()
    packets = _read(wirefixtures.pcap(tmp_path / "two.pcap", frames), address, port, "quic")
    found = quic_connections(packets, (address, port))
    assert [len(one.units) for one in found] == [len(first.frames), len(second.frames)]


# -- without the secrets


def test_openings_need_no_secrets(data: Path) -> None:
    for name in ("quiche", "quinn-dilithium3-20ms", "openssl-retry"):
        known = look(data / f"{name}.pcap", data / f"{name}.keys")
        seen = openings(data / f"{name}.pcap", server_ip=SERVER, server_port=PORT)
        assert [(one.index, one.client_port, one.t_client_hello) for one in seen] == [
            (one.index, one.client_port, one.t_client_hello) for one in known
        ]
        for one, other in zip(seen, known, strict=True):
            assert one.t_client_one_rtt is not None
            assert other.t_client_finished is not None
            # the request leaves with the Finished or right behind it
            assert 0 <= one.t_client_one_rtt - other.t_client_finished < 5e6
            assert one.ttfb_ms == (one.t_client_one_rtt - one.t_client_hello) / 1e6


def test_an_opening_that_is_not_complete_has_no_time(data: Path, changed: Callable[..., Path]) -> None:
    cut = changed("openssl-retry", lambda frames: frames[:2])
    (one,) = openings(cut, server_ip=SERVER, server_port=PORT)
    assert one.t_client_one_rtt is None
    assert one.ttfb_ms is None
    assert openings(data / "quiche.pcap", server_ip=SERVER, server_port=PORT + 1) == []


def test_openings_of_a_file_that_is_no_capture(tmp_path: Path) -> None:
    (tmp_path / "capture.pcap").write_bytes(b"")
    with pytest.raises(HandshakeError, match=r"capture\.pcap"):
        openings(tmp_path / "capture.pcap", server_ip=SERVER, server_port=PORT)


# -- for looking


def test_packets_are_shown_in_order_with_their_messages(data: Path) -> None:
    rows = list(_rows(data / "quinn-dilithium3-20ms.pcap", data / "quinn-dilithium3-20ms.keys", 10))
    assert [row[0] for row in rows] == list(range(1, 11))
    assert [(row[2], row[4], row[7]) for row in rows if row[7]] == [
        ("client", "Initial", "ClientHello"),
        ("server", "Initial", "ServerHello"),
        ("server", "Handshake", "EncryptedExtensions"),
        ("server", "Handshake", "Certificate"),
    ]


def test_a_capture_that_cannot_be_shown_is_one_line(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "capture.pcap"
    broken.write_bytes(b"no capture at all, and long enough for a header")
    with pytest.raises(TsharkError, match=re.escape(f"{broken}: tshark: ")):
        list(_rows(broken, data / "quiche.keys", 3))
