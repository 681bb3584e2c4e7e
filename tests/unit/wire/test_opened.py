"""Packets opened with key logs: versions, key updates, the ClientHello that counts, and lines of no use.

The captures in tests/data/captures are connections of aioquic, made in memory: the client is 10.0.0.1 port 50000, the
server 10.0.0.2 port 4433.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import wirefixtures
from clone import ROOT
from quicbed.cli.commands import main
from quicbed.report.look import _rows
from quicbed.wire import layers, proof, quicwire, tshark
from quicbed.wire.handshake import HandshakeError, details_of, examine, openings, quic_connections
from quicbed.wire.messages import CLIENT_HELLO
from quicbed.wire.pcap import Capture, CaptureError
from quicbed.wire.quicwire import PacketType
from quicbed.wire.tshark import TsharkError, read_key_log

CAPTURES = ROOT / "tests" / "data" / "captures"
HANDSHAKES = ROOT / "tests" / "data" / "handshakes"
ADDRESS, PORT = "10.0.0.2", 4433
NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")

# packets of client and server, bytes of the ClientHello and of the content
RIGHT = {
    "version-2": ((3, 2), 471, 4096),
    "draft-34": ((3, 2), 467, 4096),
    "key-update-by-server": ((3, 2), 471, 30_720),
    "key-update-by-client": ((3, 2), 471, 30_720),
    "second-client-hello": ((4, 3), 471, 4096),
    "padding-outside": ((3, 2), 471, 4096),
}
ONE = "padding-outside"


def contents(capture: Path, keys: Path) -> list[tuple[int, int]]:
    """Bytes of content, and those that could not be opened, of every connection."""
    return [
        (sum(unit.layers.get("content", 0) for unit in one.units), one.opaque)
        for one in layers.read(capture, keys, port=PORT)
    ]


@pytest.mark.parametrize("name", RIGHT)
def test_a_connection_is_opened_whole(name: str) -> None:
    capture, keys = CAPTURES / f"{name}.pcap", CAPTURES / f"{name}.keys"
    counted, client_hello, content = RIGHT[name]
    (one,) = examine(capture, keys, server_ip=ADDRESS, server_port=PORT, transport="quic")
    assert (one.packets, one.decrypted, one.problem) == (counted, True, None)
    assert (one.group, one.messages.client_hello, one.messages.certificate) == (23, client_hello, 309)
    assert one.retry == (name == "second-client-hello")
    assert contents(capture, keys) == [(content, 0)]
    (opening,) = openings(capture, server_ip=ADDRESS, server_port=PORT)
    assert opening.ttfb_ms
    seen = proof.examine(capture, server_ip=ADDRESS, server_port=PORT, transport="quic", mtu=1500)
    assert (seen.connections, seen.unattributed_packets, seen.initial_standard) == (1, 0, True)


@NEEDS_TSHARK
@pytest.mark.parametrize(
    "capture",
    [*sorted(CAPTURES.glob("*.pcap")), *(one for one in HANDSHAKES.glob("*.pcap") if not one.stem.startswith("tcp"))],
    ids=lambda path: path.stem,
)
def test_tshark_opens_packets_alike(capture: Path) -> None:
    keys = capture.with_suffix(".keys")
    packets = [packet for packet in Capture(capture).packets() if packet.protocol == "udp"]
    (server,) = {(one.source, one.source_port) for one in packets if one.source_port == PORT}
    theirs = tshark.dissect(capture, keys, port=PORT, transport="quic")
    compared = 0
    for connection in quic_connections(packets, server):
        for unit, opened in zip(connection.units, connection.open(read_key_log(keys)).packets, strict=True):
            # what it takes for one more packet is padding
            for ours, other in zip(map(details_of, opened), theirs[unit.frame].quic, strict=False):
                if not other.decrypted:
                    continue  # it reads the first ClientHello alone, and no packet before the one with its keys
                number = ours.packet_number if other.packet_number is None else other.packet_number
                # nor does it find the one after a Retry
                known = other.messages or tuple(one for one in ours.messages if one.type == CLIENT_HELLO)
                assert ours == replace(other, packet_number=number, messages=known)
                compared += 1
    assert compared > 2


def changed(name: str, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], link: int = 1) -> Path:
    """A copy of a capture with other frames."""
    return wirefixtures.pcap(
        tmp_path / "c.pcap", change([one.data for one in Capture(CAPTURES / f"{name}.pcap")]), link=link
    )


@pytest.mark.parametrize("name", ["key-update-by-server", "key-update-by-client"])
def test_packets_of_the_phase_before_may_come_late(name: str, tmp_path: Path) -> None:
    """RFC 9001, 6.4. Every two datagrams behind the handshake are swapped, so that the first of a phase is early."""

    def swapped(frames: list[bytes]) -> list[bytes]:
        for odd in (0, 1):
            for at in range(5 + odd, len(frames) - 1, 2):
                frames[at], frames[at + 1] = frames[at + 1], frames[at]
        return frames

    assert contents(changed(name, tmp_path, swapped), CAPTURES / f"{name}.keys") == [(30_720, 0)]


def test_what_is_no_packet_of_the_keys_does_not_change_them(tmp_path: Path) -> None:
    def damaged(frames: list[bytes]) -> list[bytes]:
        return [part for frame in frames for part in (frame, frame[:-1] + bytes([frame[-1] ^ 1]))]

    name = "key-update-by-server"
    ((content, opaque),) = contents(changed(name, tmp_path, damaged), CAPTURES / f"{name}.keys")
    assert content == 30_720
    assert opaque > 30_720


def test_of_two_pieces_of_a_stream_the_first_counts() -> None:
    """Whatever is in them."""
    assert quicwire.joined([(0, b"bb"), (0, b"aaaa"), (3, b"cc")]) == b"bbaac"


# ---- versions that are not read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0x0A0A0A0A, 0x51303530])
def test_a_version_that_is_not_read_is_named(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def other(frames: list[bytes]) -> list[bytes]:
        return [frame[:43] + version.to_bytes(4, "big") + frame[47:] if frame[42] & 0x80 else frame for frame in frames]

    capture, keys = changed(ONE, tmp_path, other), CAPTURES / f"{ONE}.keys"
    said = f"0x{version:08x}"
    with pytest.raises(HandshakeError, match=said):
        examine(capture, keys, server_ip=ADDRESS, server_port=PORT, transport="quic")
    with pytest.raises(HandshakeError, match=said):
        openings(capture, server_ip=ADDRESS, server_port=PORT)
    with pytest.raises(CaptureError, match=said):
        layers.read(capture, keys, port=PORT)
    seen = proof.examine(capture, server_ip=ADDRESS, server_port=PORT, transport="quic", mtu=1500)
    (sentence,) = proof.check(seen, Anything())
    assert said in sentence
    assert main(["handshake", str(capture), str(keys), "--server", f"{ADDRESS}:{PORT}"]) == 1
    written = capsys.readouterr()
    assert (written.out, said in written.err) == ("", True)


class Anything:
    aead, header_protection, cipher_suite, group = "standard", True, 0x1301, 0x001D


def test_what_is_passed_over_beside_a_connection_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a client begins with a version that servers must answer with a negotiation."""

    def before(frames: list[bytes]) -> list[bytes]:
        return [frames[0][:43] + b"\x0a\x1a\x2a\x3a" + frames[0][47:], *frames]

    capture = changed(ONE, tmp_path, before)
    assert main(["handshake", str(capture), str(CAPTURES / f"{ONE}.keys"), "--server", f"{ADDRESS}:{PORT}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[3] == "3/2"
    assert f"{capture}: passes over 1 datagrams, 1 of QUIC version 0x0a1a2a3a" in "\n".join(lines)


# ---- key logs --------------------------------------------------------------------------------------------------------

HELLO = "ab" * 32
LINES = {
    "comment": b"# a comment \xc3\xa4\xff\n",
    "another key": f"ECH_CONFIG {HELLO} {'0a' * 100}\nECH_SECRET {HELLO} {'0a' * 32}\n".encode(),
    "RSA": f"RSA 0123456789abcdef {'0a' * 48}\nRSA Session-ID:00 Master-Key:{'0a' * 48}\n\t\n".encode(),
    "byte order mark": b"\xef\xbb\xbf",
}


@pytest.mark.parametrize("what", LINES)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b" \t\n"])
def test_lines_of_no_use_are_passed_over(what: str, ends: bytes, tmp_path: Path) -> None:
    keys = tmp_path / "some.keys"
    plain = (CAPTURES / f"{ONE}.keys").read_bytes()
    cut_off = f"CLIENT_TRAFFIC_SECRET_0 {HELLO} 0a0a".encode()
    keys.write_bytes(LINES[what] + plain.replace(b"\n", ends) + cut_off)
    assert read_key_log(keys).items() >= read_key_log(CAPTURES / f"{ONE}.keys").items()
    assert contents(CAPTURES / f"{ONE}.pcap", keys) == [(4096, 0)]


@pytest.mark.parametrize("content", [b"nonsense\n", b"RSA 00 00\n", b"\x7fELF\x02\x01\x00"])
def test_a_file_without_any_secret_is_no_key_log(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "some.keys").write_bytes(content)
    with pytest.raises(TsharkError, match="key log"):
        read_key_log(tmp_path / "some.keys")


# ---- the table of versions, and packets that are none ----------------------------------------------------------------


def test_versions_are_those_of_the_rfcs() -> None:
    """RFC 9369, 3.2 and Appendix A.1; RFC 9001, Appendix A.1."""
    cid = bytes.fromhex("8394c8f03e515708")
    two = quicwire.initial_keys(cid, quicwire.VERSION_2).client
    assert (two.key.hex(), two.iv.hex()) == ("8b1a0bc121284290a29e0971b5cd045d", "91f73e2351d8fa91660e909f")
    assert two.header_protection.hex() == "45b95e15235d6f45a6b19cbcb0294ba9"
    assert quicwire.VERSIONS[quicwire.VERSION_2].types[0] is PacketType.RETRY
    # the last drafts have the salt of version 1
    for draft in (33, 34):
        assert quicwire.initial_keys(cid, 0xFF000000 + draft) == quicwire.initial_keys(cid)
    assert len(quicwire.VERSIONS) == 14


@NEEDS_TSHARK
@pytest.mark.parametrize("name", [ONE, "version-2"])
def test_only_packets_have_rows(name: str) -> None:
    rows = list(_rows(CAPTURES / f"{name}.pcap", CAPTURES / f"{name}.keys", 6))
    assert [(row[2], row[4], row[5]) for row in rows] == [
        ("client", "Initial", "0"),
        ("server", "Initial", "0"),
        ("server", "Handshake", "1"),
        ("client", "Initial", "1"),
        ("client", "Handshake", "2"),
        ("client", "1-RTT", "3"),
    ]


def test_a_fifo_is_neither_a_key_log_nor_a_capture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TsharkError, match="fifo: the key log cannot be read: is not a regular file"):
        read_key_log(tmp_path / "fifo")
    with pytest.raises(CaptureError, match="fifo: cannot be opened: is not a regular file"):
        Capture(tmp_path / "fifo")
