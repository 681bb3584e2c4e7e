"""The table of a capture: what it says of every frame, next to tshark and the reader of proofs, and of bad captures."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import shutil
import socket
import struct
import subprocess
import tarfile
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import polars as pl
import pytest

from clone import ROOT
from hostile import damaged, property_of
from quicbed.base import untrusted
from quicbed.cli import commands
from quicbed.wire import numbers, pacing, packets, quicwire
from quicbed.wire.pacing import PacingError
from quicbed.wire.packets import Packets
from quicbed.wire.pcap import Capture, CaptureError, parse_frame
from wirefixtures import CLIENT, SERVER, QuicTransfer, ethernet, ip_packet, pcap, tcp, tls_transfer, udp, varint

SYN, ACK = 0x02, 0x10
HANDSHAKES = ROOT / "tests" / "data" / "handshakes"
RESERVED = bytes(12) + b"\x08\x06" + bytes(28)
"""A frame of ARP."""


class Reader:
    """Reads captures into tables below a directory."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        self.output = directory / "packets.parquet"

    def __call__(self, capture: Path, **options: object) -> tuple[Packets, pl.DataFrame]:
        self.output.unlink(missing_ok=True)
        if (log := options.pop("key_log", None)) is not None:
            options["keys"] = numbers.keys(log, options["server"])  # type: ignore[arg-type]
        found = packets.read(self.program, capture, self.output, **options)  # type: ignore[arg-type]
        return found, pl.read_parquet(self.output)

    def refuses(self, capture: Path, **options: object) -> str:
        """The line that says why; there is no table then."""
        with pytest.raises(CaptureError) as caught:
            self(capture, **options)
        told = str(caught.value)
        assert told.startswith(str(capture))
        assert "\n" not in told
        assert not self.output.exists()
        return told


@pytest.fixture
def read(capture_reader: Path, tmp_path: Path) -> Reader:
    return Reader(capture_reader, tmp_path)


# ---- what the columns say --------------------------------------------------------------------------------------------


def test_every_frame_is_a_row(read: Reader, tmp_path: Path) -> None:
    frames = [
        tcp(CLIENT, SERVER, 7, flags=SYN),
        RESERVED,
        tcp(SERVER, CLIENT, 9, flags=SYN | ACK),
        udp(CLIENT, SERVER, b"hi"),
    ]
    found, table = read(pcap(tmp_path / "c.pcap", frames))
    begin = 1_700_000_000 * 10**9
    assert table.rows() == [
        (1, 0, begin, 66, 66, "tcp", 0, "to_server", 0, None, None),
        (2, 0, begin + 10**6, 42, 42, None, None, None, None, None, None),
        (3, 0, begin + 2 * 10**6, 66, 66, "tcp", 0, "to_client", 0, None, None),
        # nothing tells who is the client
        (4, 0, begin + 3 * 10**6, 44, 44, "udp", 1, None, 2, None, None),
    ]
    assert (found.format, found.frames, found.connections, found.other_frames) == ("pcap", 4, 2, 1)
    assert found.problems(tmp_path / "c.pcap") == []


def test_packets_of_a_connection_without_header_protection_have_their_numbers(read: Reader, tmp_path: Path) -> None:
    # its packet numbers take two bytes, and pass 65535
    transfer = QuicTransfer(noop=True, header_protection=False, first_number=65_500, size=150_000)
    path = pcap(tmp_path / "c.pcap", transfer.run())
    _, table = read(path, visible_numbers=True)
    down = table.filter(pl.col("direction") == "to_client", pl.col("packet_type") == "1rtt")
    assert down["packet_number"].to_list() == list(range(65_500, 65_500 + down.height))
    assert down.height > 100
    assert table["packet_type"].to_list()[:3] == ["initial", "initial", "handshake"]
    _, hidden = read(path)
    assert hidden["packet_number"].null_count() == hidden.height
    assert hidden.drop("packet_number").equals(table.drop("packet_number"))


@pytest.mark.parametrize("server", [SERVER, CLIENT])
def test_the_caller_knows_the_server_best(read: Reader, tmp_path: Path, server: tuple[str, int]) -> None:
    """Of a capture that begins within the connection, and of one direction only."""
    frames = [frame for frame in QuicTransfer(size=20_000).run()[3:] if frame[26:30] == ip_address(SERVER[0]).packed]
    path = pcap(tmp_path / "c.pcap", frames)
    _, table = read(path, server=server)
    direction = "to_client" if server == SERVER else "to_server"
    assert set(table["direction"]) == {direction}
    assert set(table["packet_type"]) == {"1rtt"}
    _, table = read(path)
    assert set(table["direction"]) == {None}
    assert set(table["packet_type"]) == {None}


def test_a_new_connection_on_the_same_ports_is_another_one(read: Reader, tmp_path: Path) -> None:
    first = QuicTransfer(size=3000)
    second = QuicTransfer(size=3000, client_cid=b"\xd1" * 8, server_cid=b"\x52" * 16, original_cid=b"\x99" * 8)
    # what a Retry makes of the same connection, and an ID that the server has issued, are none
    third = QuicTransfer(size=3000, retry_cid=b"\x77" * 12, issued_cid=b"\x78" * 16, client=("10.0.0.2", 50_001))
    parts = [first.run(), second.run(), third.run(), tls_transfer(size=3000), tls_transfer(size=3000, sequence=1)]
    _, table = read(pcap(tmp_path / "c.pcap", list(itertools.chain(*parts))))
    expected = [number for number, part in enumerate(parts) for _ in part]
    assert table["connection"].to_list() == expected
    assert "retry" in table["packet_type"]


def test_clients_without_connection_ids_are_told_apart(read: Reader, tmp_path: Path) -> None:
    first = QuicTransfer(size=3000, client_cid=b"")
    second = QuicTransfer(size=3000, client_cid=b"", server_cid=b"\x52" * 16, original_cid=b"\x99" * 8)
    parts = [first.run(), second.run()]
    _, table = read(pcap(tmp_path / "c.pcap", list(itertools.chain(*parts))))
    assert table["connection"].to_list() == [number for number, part in enumerate(parts) for _ in part]


# ---- formats ---------------------------------------------------------------------------------------------------------


def option(code: int, value: bytes, order: str) -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(kind: int, body: bytes, order: str) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + size + body + size


def section(order: str) -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(order: str, resolution: int | None = None, offset: int | None = None, link: int = 1) -> bytes:
    options = b"" if resolution is None else option(9, bytes([resolution]), order)
    options += b"" if offset is None else option(14, struct.pack(f"{order}q", offset), order)
    return block(1, struct.pack(f"{order}HHI", link, 0, 0) + options, order)


def enhanced(order: str, ticks: int, frame: bytes, number: int = 0, wire: int | None = None) -> bytes:
    fields = (number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame) if wire is None else wire)
    return block(6, struct.pack(f"{order}IIIII", *fields) + frame + bytes(-len(frame) % 4), order)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("resolution", "offset", "ticks", "expected"),
    [
        (None, None, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (9, None, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (6, 1_700_000_000, 123_456, 1_700_000_000_123_456_000),
        (0x80 | 20, None, (1_700_000_000 << 20) + (1 << 19), 1_700_000_000_500_000_000),
        (12, 1_700_000_000, 1_500, 1_700_000_000_000_000_001),
        (0, None, 1_700_000_000, 1_700_000_000_000_000_000),
    ],
)
def test_times_of_every_unit(
    read: Reader, tmp_path: Path, order: str, resolution: int | None, offset: int | None, ticks: int, expected: int
) -> None:
    path = tmp_path / "c.pcapng"
    path.write_bytes(section(order) + interface(order, resolution, offset) + enhanced(order, ticks, RESERVED))
    found, table = read(path)
    assert found.format == "pcapng"
    assert table["time_ns"].to_list() == [expected]


def test_several_interfaces_and_sections_of_both_byte_orders(read: Reader, tmp_path: Path) -> None:
    first, second = udp(CLIENT, SERVER, b"1"), ip_packet(CLIENT[0], SERVER[0], 17, udp(CLIENT, SERVER, b"22")[34:])
    path = tmp_path / "c.pcapng"
    path.write_bytes(
        section("<")
        + interface("<", 9)
        + interface("<", 6, link=101)
        + enhanced("<", 5_000, first)
        + enhanced("<", 4, second, number=1)
        + block(5, struct.pack("<III", 0, 0, 0) + option(5, struct.pack("<Q", 3), "<"), "<")
        + block(0x0BAD, b"whatever", "<")
        + section(">")
        + interface(">", 9)
        + enhanced(">", 7_000, first)
        + block(3, struct.pack(">I", len(first)) + first, ">")
        + block(5, struct.pack(">III", 0, 0, 0) + option(7, struct.pack(">Q", 2), ">"), ">")
    )
    found, table = read(path)
    assert table["interface"].to_list() == [0, 1, 2, 2]
    assert table["time_ns"].to_list() == [5_000, 4_000, 7_000, None]
    assert table["payload_bytes"].to_list() == [1, 2, 1, 1]
    assert table["connection"].to_list() == [0, 0, 0, 0]
    # of two interfaces one may be behind the other, so these are no stamps that run backwards
    assert (found.interfaces, found.dropped_frames, found.unstamped_frames, found.backward_frames) == (3, 5, 1, 0)
    told = found.problems(path)
    assert [str(path) in line for line in told] == [True, True]
    assert "1 frames have no time" in told[0]
    assert "lost 5 frames" in told[1]


def repacked(path: Path, how: str) -> Path:
    out = path.with_name(f"{path.name}.{how}")
    if how == "gzip":
        half = path.stat().st_size // 2
        whole = path.read_bytes()
        out.write_bytes(gzip.compress(whole[:half]) + gzip.compress(whole[half:]))
    elif how == "zstd":
        subprocess.run(["zstd", "-q", str(path), "-o", str(out)], check=True)
    else:
        subprocess.run(["editcap", "-F", how, str(path), str(out)], check=True, capture_output=True)
    return out


@pytest.mark.parametrize("order", ["<", ">"])
def test_obsolete_packet_blocks_are_read(read: Reader, tmp_path: Path, order: str) -> None:
    frames = QuicTransfer(size=3000).run()
    path = tmp_path / "c.pcapng"
    blocks = [
        struct.pack(f"{order}HHIIII", 0, 0xFFFF, 0, at, len(frame), len(frame)) + frame
        for at, frame in enumerate(frames)
    ]
    path.write_bytes(section(order) + interface(order, 9) + b"".join(block(2, body, order) for body in blocks))
    found, table = read(path)
    assert (found.frames, found.problems(path)) == (len(frames), [])
    assert table["time_ns"].to_list() == list(range(len(frames)))
    _, same = read(pcap(tmp_path / "c.pcap", frames))
    assert table.drop("time_ns").equals(same.drop("time_ns"))
    path.write_bytes(section(order) + interface(order, 9) + block(2, blocks[0][:30], order))
    assert "damaged" in read.refuses(path)


@pytest.mark.parametrize("sections", [1, 2])
def test_a_packet_that_two_interfaces_have_captured_counts_once(read: Reader, tmp_path: Path, sections: int) -> None:
    frames = QuicTransfer(size=20_000).run()
    first, second = ([enhanced("<", at * 1000 + late, one, late) for at, one in enumerate(frames)] for late in (0, 1))
    path = tmp_path / "c.pcapng"
    if sections == 1:
        blocks = b"".join(a + b for a, b in zip(first, second, strict=True))
        path.write_bytes(section("<") + interface("<", 9) * 2 + blocks)
    else:
        again = [enhanced("<", at * 1000 + 1, one) for at, one in enumerate(frames)]
        head = section("<") + interface("<", 9)
        path.write_bytes(head + b"".join(first) + head + b"".join(again))
    read(path, server=SERVER)
    with pytest.raises(PacingError, match="from interfaces 0, 1, where each may be captured again; choose one"):
        pacing.server_packets(read.output)
    chosen = [pacing.server_packets(read.output, interface=one) for one in (0, 1)]
    assert chosen[0]["gap_ns"].equals(chosen[1]["gap_ns"])


def test_interfaces_of_a_cooked_capture_are_told_apart(read: Reader, tmp_path: Path) -> None:
    """As `tcpdump -i any` captures on a router."""
    frames = [
        frame[12:14] + bytes(2) + struct.pack("!I", number) + bytes(12) + frame[14:]
        for frame in QuicTransfer(size=3000).run()
        for number in (2, 7)
    ]
    found, table = read(pcap(tmp_path / "c.pcap", frames, link=276), server=SERVER)
    assert (found.interfaces, table["interface"].to_list()) == (2, [0, 65_536] * (len(frames) // 2))
    with pytest.raises(PacingError, match="interfaces 0, 65536"):
        pacing.server_packets(read.output)


@pytest.mark.parametrize("how", ["gzip", "zstd", "pcapng", "nsecpcap"])
def test_the_table_is_the_same_in_every_format(read: Reader, tmp_path: Path, how: str) -> None:
    path = pcap(tmp_path / "c.pcap", QuicTransfer(size=40_000).run())
    first, table = read(path)
    second, again = read(repacked(path, how))
    assert again.equals(table)
    assert (second.frames, second.connections) == (first.frames, first.connections)
    assert (second.packing, second.format) == (
        how if how in ("gzip", "zstd") else None,
        "pcapng" if how == "pcapng" else "pcap",
    )


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_pcap_of_every_byte_order_and_resolution(read: Reader, tmp_path: Path, order: str, nanoseconds: bool) -> None:
    path = pcap(tmp_path / "c.pcap", [RESERVED] * 2, order=order, nanoseconds=nanoseconds)  # type: ignore[arg-type]
    _, table = read(path)
    assert table["time_ns"].diff().to_list() == [None, 10**6]


# ---- agreement with others -------------------------------------------------------------------------------------------

LONG = {"0": "initial", "1": "0rtt", "2": "handshake", "3": "retry"}
FIELDS = (
    *("frame.number", "frame.time_epoch", "frame.len", "frame.cap_len", "udp.length", "tcp.len", "udp.stream"),
    *(
        "icmp.type",
        "tcp.stream",
        "udp.srcport",
        "tcp.srcport",
        "quic.header_form",
        "quic.long.packet_type",
        "quic.packet_number",
    ),
)


def by_tshark(capture: Path, port: int, keys: Path | None) -> list[dict[str, str]]:
    argv = ["tshark", "-n", "-r", str(capture), "-d", f"udp.port=={port},quic", "-T", "fields", "-E", "occurrence=f"]
    argv += [] if keys is None else ["-o", f"tls.keylog_file:{keys}"]
    argv += [word for name in FIELDS for word in ("-e", name)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return [dict(zip(FIELDS, line.split("\t"), strict=True)) for line in said.splitlines()]


def nanoseconds(epoch: str) -> int:
    """tshark writes seconds with nine digits, or a date."""
    seconds, _, fraction = epoch.partition(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def agrees_with_tshark(read: Reader, capture: Path, port: int, keys: Path | None = None) -> int:
    """Every frame, value by value; returns how many packet numbers were compared."""
    rows = by_tshark(capture, port, keys)
    server = next(packet.source for packet in Capture(capture).packets() if packet.source_port == port)
    _, table = read(capture, server=(server, port), key_log=keys)
    assert table.height == len(rows) > 0
    numbers = 0
    streams: dict[tuple[str, str], set[int]] = {}
    for row, theirs in zip(table.iter_rows(named=True), rows, strict=True):
        assert row["frame"] == int(theirs["frame.number"])
        assert row["time_ns"] == nanoseconds(theirs["frame.time_epoch"])
        assert (row["frame_bytes"], row["captured_bytes"]) == (int(theirs["frame.len"]), int(theirs["frame.cap_len"]))
        # ICMP brings the header of a datagram back
        inner = bool(theirs["icmp.type"])
        protocol = None if inner else "udp" if theirs["udp.length"] else "tcp" if theirs["tcp.len"] else None
        assert row["protocol"] == protocol
        if protocol is None:
            continue
        payload = int(theirs["udp.length"]) - 8 if protocol == "udp" else int(theirs["tcp.len"])
        assert row["payload_bytes"] == payload
        assert (row["direction"] == "to_client") == (int(theirs[f"{protocol}.srcport"]) == port)
        streams.setdefault((protocol, theirs[f"{protocol}.stream"]), set()).add(row["connection"])
        if protocol == "udp" and theirs["quic.header_form"]:
            known = LONG.get(theirs["quic.long.packet_type"]) if theirs["quic.header_form"] == "1" else "1rtt"
            assert row["packet_type"] == known
        number = theirs["quic.packet_number"]
        assert row["packet_number"] == (int(number) if number and keys else None)
        numbers += bool(number)
    # one of tshark's streams is one connection, and the other way round
    assert all(len(found) == 1 for found in streams.values())
    assert len(set().union(*streams.values())) == len(streams)
    return numbers


@pytest.mark.parametrize("name", sorted(path.stem for path in HANDSHAKES.glob("*.pcap")))
def test_it_agrees_with_tshark_on_handshakes(read: Reader, name: str) -> None:
    keys = HANDSHAKES / f"{name}.keys"
    compared = agrees_with_tshark(read, HANDSHAKES / f"{name}.pcap", 4433, keys)
    assert (compared > 0) == (not name.startswith("tcp"))


@pytest.mark.parametrize("experiment", ["aead-goodput", "header-protection", "table2-kem"])
def test_it_agrees_with_tshark_on_captures_of_the_reference_data(read: Reader, tmp_path: Path, experiment: str) -> None:
    compared = 0
    (packed,) = (ROOT / "raw" / "reference").glob(f"{experiment}.tar.*")
    with tarfile.open(packed) as archive:
        for member in archive:
            if member.name.endswith("/capture.pcap"):
                file = archive.extractfile(member)
                assert file is not None
                capture = tmp_path / "capture.pcap"
                capture.write_bytes(file.read())
                agrees_with_tshark(read, capture, 4433)
                compared += 1
    assert compared > 2


@pytest.mark.root
def test_it_agrees_with_tshark_on_a_capture_of_this_machine(read: Reader, tmp_path: Path) -> None:
    """UDP and TCP over the loopback, datagrams of any length."""
    capture, dice = tmp_path / "lo.pcapng", random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        server.bind(("127.0.0.1", 0))
        port, tcp_port = server.getsockname()[1], listener.getsockname()[1]
        kept = f"udp port {port} or tcp port {tcp_port}"
        argv = ["dumpcap", "-q", "-i", "lo", "-s", "200", "-f", kept, "-w", str(capture)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as dumpcap:
            assert dumpcap.stderr is not None
            while "File:" not in dumpcap.stderr.readline():
                assert dumpcap.poll() is None
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect(("127.0.0.1", port))
                for _ in range(300):
                    client.send(dice.randbytes(dice.randint(0, 9000)))
                    answer, peer = server.recvfrom(65_536)
                    server.sendto(answer[:20], peer)
            with socket.create_connection(("127.0.0.1", tcp_port)) as client, listener.accept()[0] as accepted:
                client.sendall(dice.randbytes(60_000))
                client.shutdown(socket.SHUT_WR)
                while accepted.recv(65_536):
                    pass
            size = -1
            while size != (size := capture.stat().st_size):  # it writes in turns
                time.sleep(1)
            dumpcap.terminate()
    plain = tmp_path / "lo.pcap"
    subprocess.run(["editcap", "-F", "nsecpcap", str(capture), str(plain)], check=True)
    for path in (capture, plain):
        rows = by_tshark(path, 1, None)
        _, table = read(path)
        assert table.height == len(rows) > 600
        theirs = [
            (
                nanoseconds(row["frame.time_epoch"]),
                int(row["frame.len"]),
                int(row["frame.cap_len"]),
                int(row["udp.length"]) - 8 if row["udp.length"] else int(row["tcp.len"]),
            )
            for row in rows
        ]
        assert table.select("time_ns", "frame_bytes", "captured_bytes", "payload_bytes").rows() == theirs
        assert table.filter(pl.col("protocol") == "tcp")["direction"].null_count() == 0
        assert table["connection"].n_unique() == 2


def frames_like(rng: random.Random) -> list[bytes]:
    """Frames as they are, and with something else in their headers."""
    good = [
        *(udp(CLIENT, SERVER, rng.randbytes(rng.randint(0, 60))), tcp(SERVER, CLIENT, 1, b"x")),
        *(udp(("fd00::1", 1), ("fd00::2", 2), b"six"), ethernet(ip_packet("10.0.0.1", "10.0.0.2", 1, b"ping"), 2)),
        *(ethernet(ip_packet("fd00::1", "fd00::2", rng.choice([0, 43, 44, 60]), bytes([17, 0]) + bytes(30))), RESERVED),
        *(frame for frame in QuicTransfer(size=1).run()[:2]),
    ]
    found = []
    for _ in range(rng.randint(1, 12)):
        frame = bytearray(rng.choice(good))
        for _ in range(rng.choice([0, 1, 3])):
            frame[rng.randrange(12, min(len(frame), 70))] = rng.randrange(256)
        found.append(bytes(frame))
    return found


@pytest.fixture(scope="module")
def apart(capture_reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(capture_reader, tmp_path_factory.mktemp("apart"))


@property_of(batch=10, share=0.2)
def test_it_agrees_with_the_reader_of_proofs(apart: Reader, rng: random.Random) -> None:
    snapshot = rng.choice([14, 30, 42, 60, 100, 5000])
    path = pcap(apart.output.with_name("c.pcap"), frames_like(rng), snapshot=snapshot)
    found, table = apart(path)
    capture = Capture(path)
    read_there = list(capture.packets())
    left_out = {reason: one.frames for reason, one in capture.left_out.items()}
    assert len(read_there) + sum(left_out.values()) == found.frames == table.height
    assert (found.packets, found.fragment_frames) == (len(read_there), left_out.get("fragment", 0))
    assert found.other_frames == left_out.get("other", 0) + left_out.get("malformed", 0)
    for row, frame in zip(table.iter_rows(named=True), capture, strict=True):
        packet = parse_frame(frame, capture.link_type)
        assert (row["time_ns"], row["frame_bytes"]) == (frame.time_ns, frame.wire_bytes)
        assert row["captured_bytes"] == len(frame.data)
        expected = (packet.protocol, packet.payload_bytes) if packet else (None, None)
        assert (row["protocol"], row["payload_bytes"]) == expected


# ---- what is left out ----------------------------------------------------------------------------------------------


def test_both_readers_know_the_same_versions(read: Reader, tmp_path: Path) -> None:
    kinds = list(itertools.product(quicwire.VERSIONS, range(4)))
    cids = b"\x08" + bytes(8) + b"\x08" + bytes(8)
    rest = cids + b"\x00" + varint(1000) + bytes(1000)
    frames = [
        udp((CLIENT[0], 1000 + port), SERVER, bytes([0xC0 | code << 4]) + version.to_bytes(4, "big") + rest)
        for port, (version, code) in enumerate(kinds)
    ]
    _, table = read(pcap(tmp_path / "c.pcap", frames), server=SERVER)
    expected = [quicwire.VERSIONS[version].types[code].value.lower() for version, code in kinds]
    assert table["packet_type"].to_list() == [kind.replace("0-rtt", "0rtt") for kind in expected]


@pytest.mark.parametrize("server", [SERVER, None])
def test_a_version_that_is_not_read_is_named(read: Reader, tmp_path: Path, server: tuple[str, int] | None) -> None:
    other = udp(CLIENT, SERVER, b"\xc3\x0a\x0a\x0a\x0a\x08" + bytes(8) + b"\x00" + bytes(1200))
    path = pcap(tmp_path / "c.pcap", [other] * 2)
    found, table = read(path, server=server)
    assert table["packet_type"].null_count() == 2
    (told,) = found.problems(path)
    assert told.startswith(f"{path}: 2 datagrams, the first in frame 1, are of QUIC version 0x0a0a0a0a")


def test_a_packet_in_one_fragment_is_whole(read: Reader, tmp_path: Path) -> None:
    whole = udp(("fd00::1", 1), ("fd00::2", 2), b"hello")
    one = ethernet(ip_packet("fd00::1", "fd00::2", 44, bytes([17]) + bytes(7) + whole[54:]))
    found, table = read(pcap(tmp_path / "c.pcap", [whole, one]))
    assert found.fragment_frames == 0
    assert table["payload_bytes"].to_list() == [5, 5]


@pytest.mark.parametrize("source", ["10.0.0.1", "fd00::1"])
def test_fragments_are_told(read: Reader, tmp_path: Path, source: str) -> None:
    destination = "fd00::2" if ":" in source else "10.0.0.2"
    whole = udp((source, 1), (destination, 2), b"hello")
    if ":" in source:
        part = ethernet(ip_packet(source, destination, 44, bytes([17, 0, 0, 1]) + bytes(4) + whole[54:]))
    else:
        part = whole[:20] + b"\x20\x00" + whole[22:]
    path = pcap(tmp_path / "c.pcap", [whole, part, part])
    found, table = read(path)
    (told,) = found.problems(path)
    assert told.startswith(f"{path}: 2 frames, the first is frame 2, hold fragments of IP packets")
    assert table["protocol"].null_count() == 2
    with pytest.raises(PacingError, match="hold fragments"):
        pacing.counted(path, found)


def test_a_capture_without_a_packet_is_never_without_a_problem(read: Reader, tmp_path: Path) -> None:
    for frames in ([], [RESERVED] * 2):
        path = pcap(tmp_path / "c.pcap", frames)
        (told,) = read(path)[0].problems(path)
        assert told.startswith(f"{path}: none of its {len(frames)} frames has a UDP datagram")


def test_a_key_log_of_another_capture_is_told(read: Reader) -> None:
    captures = ROOT / "tests" / "data" / "captures"
    path, server = captures / "padding-outside.pcap", ("10.0.0.2", 4433)
    found, table = read(path, server=server, key_log=captures / "padding-outside.keys")
    assert (found.problems(path), table["packet_number"].null_count()) == ([], 0)
    other = captures / "draft-34.keys"
    found, table = read(path, server=server, key_log=other)
    (told,) = found.problems(path)
    assert told.startswith(f"{path}: none of the 6 1-RTT packets could be decrypted with {other}")


KEYED = ROOT / "tests" / "data" / "captures"


@pytest.mark.parametrize(
    "name",
    ["version-2", "draft-34", "key-update-by-server", "key-update-by-client", "second-client-hello", "padding-outside"],
)
@pytest.mark.parametrize("packing", [None, "pcapng", "gzip", "zstd"])
def test_every_packet_has_its_number_with_the_key_log(
    read: Reader, tmp_path: Path, name: str, packing: str | None
) -> None:
    path = Path(shutil.copy(KEYED / f"{name}.pcap", tmp_path))
    path = repacked(path, packing) if packing else path
    found, table = read(path, server=("10.0.0.2", 4433), key_log=KEYED / f"{name}.keys")
    assert found.problems(path) == []
    assert found.one_rtt > 0
    quic = table.filter(pl.col("packet_type").is_in(["initial", "handshake", "1rtt"]))
    assert quic["packet_number"].null_count() == 0
    # within a direction they only grow, but for those of another space
    one_rtt = quic.filter(pl.col("packet_type") == "1rtt")
    for direction in ("to_client", "to_server"):
        numbers = one_rtt.filter(pl.col("direction") == direction)["packet_number"].to_list()
        assert numbers == sorted(set(numbers))


def test_frames_of_several_kinds_of_links_are_not_opened(read: Reader, tmp_path: Path) -> None:
    frame = udp(CLIENT, SERVER, b"hi")
    blocks = [interface("<", 9), interface("<", 9, link=101)]
    blocks += [
        block(6, struct.pack("<IIIII", number, 0, 0, len(data), len(data)) + data, "<")
        for number, data in enumerate((frame, frame[14:]))
    ]
    path = tmp_path / "c.pcapng"
    path.write_bytes(section("<") + b"".join(blocks))
    assert read(path)[0].frames == 2
    told = read.refuses(path, server=SERVER, key_log=KEYED / "version-2.keys")
    assert "frame 2 is of link type 101 and those before of 1" in told


def test_zeros_behind_the_frames_are_no_frames(read: Reader, tmp_path: Path) -> None:
    capture, padded = KEYED / "version-2.pcap", tmp_path / "zeros.pcap"
    padded.write_bytes(capture.read_bytes() + bytes(1 << 20))
    found, table = read(padded, server=("10.0.0.2", 4433), key_log=KEYED / "version-2.keys")
    (told,) = found.problems(padded)
    assert "the file holds zeros from there on" in told
    assert table.height == read(capture)[1].height
    with pytest.raises(CaptureError, match="the file holds zeros from frame 9 on"):
        list(Capture(padded))


# ---- bad captures ----------------------------------------------------------------------------------------------------


def test_a_capture_may_be_cut_anywhere(read: Reader, tmp_path: Path) -> None:
    whole = pcap(tmp_path / "c.pcap", [udp(CLIENT, SERVER, b"1"), udp(SERVER, CLIENT, b"22")])
    _, table = read(whole)
    for path in (whole, repacked(whole, "pcapng")):
        content = path.read_bytes()
        # where each frame's record or block is whole
        sizes = {path: 16 + size for path, size in enumerate(table["captured_bytes"])}
        for size in range(len(content)):
            cut = tmp_path / "cut"
            cut.write_bytes(content[:size])
            if size < (24 if path is whole else int.from_bytes(content[4:8], "little")):
                assert "ends within its header" in read.refuses(cut)
                continue
            found, part = read(cut)
            assert part.equals(table.head(part.height))
            if path is whole:
                kept = sum(1 for until in itertools.accumulate(sizes.values(), initial=24) if until <= size) - 1
                assert part.height == kept
                at_an_end = size in itertools.accumulate(sizes.values(), initial=24)
                assert (found.truncated is None) == at_an_end
                if not at_an_end:
                    (told,) = found.problems(cut)
                    assert told.startswith(f"{cut}: at byte ")
                    assert told.endswith("capture again")


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_compressed_data_may_be_cut_anywhere(read: Reader, tmp_path: Path, how: str) -> None:
    whole = pcap(tmp_path / "c.pcap", QuicTransfer(size=20_000).run())
    _, table = read(whole)
    packed = repacked(whole, how).read_bytes()
    for size in (5, 30, len(packed) // 2, len(packed) - 5, len(packed) - 1):
        cut = tmp_path / "cut"
        cut.write_bytes(packed[:size])
        with suppress(CaptureError):
            found, part = read(cut)
            assert part.equals(table.head(part.height))
            assert found.truncated


def test_stamps_that_run_backwards_are_told(read: Reader, tmp_path: Path) -> None:
    order = "<"
    path = tmp_path / "c.pcapng"
    times = [5_000, 7_000, 6_999, 8_000, 100]
    path.write_bytes(section(order) + interface(order, 9) + b"".join(enhanced(order, t, RESERVED) for t in times))
    found, table = read(path)
    assert table["time_ns"].to_list() == times
    (told,) = found.problems(path)
    assert told.startswith(f"{path}: 2 frames, the first is frame 3, are stamped before")


# of the last but one the ports are known, and not whether it is QUIC
@pytest.mark.parametrize(("snapshot", "short", "unknown"), [(20, 3, 3), (41, 3, 3), (42, 3, 0), (43, 0, 0)])
def test_a_snap_length_may_be_too_short(read: Reader, tmp_path: Path, snapshot: int, short: int, unknown: int) -> None:
    path = pcap(tmp_path / "c.pcap", [RESERVED, *[udp(CLIENT, SERVER, b"\x40" * 300)] * 3], snapshot=snapshot)
    found, table = read(path)
    assert found.short_frames == short
    assert table["protocol"].null_count() == 1 + unknown
    assert any("snap length of at least 128" in line for line in found.problems(path)) == bool(short)


def test_the_snap_length_of_the_advice_is_enough(read: Reader, tmp_path: Path) -> None:
    transfer = QuicTransfer(
        client=("fd00::1", 5), server=("fd00::2", 443), client_cid=bytes(20), server_cid=bytes(range(20)), size=5000
    )
    path = pcap(tmp_path / "c.pcap", transfer.run(), snapshot=packets.SNAP_BYTES)
    found, table = read(path)
    assert found.short_frames == 0
    assert table["packet_type"].null_count() == 0


BAD = {
    "no capture": (b"this is no capture at all", "neither pcap nor pcapng"),
    "a captured length that no frame has": (
        struct.pack("<IHHIIIIIIII", 0xA1B23C4D, 2, 4, 0, 0, 0, 1, 1, 1, 1 << 31, 1 << 31) + bytes(100),
        "record longer than",
    ),
    "more captured than sent": (
        struct.pack("<IHHIIIIIIII", 0xA1B23C4D, 2, 4, 0, 0, 0, 1, 1, 1, 50, 40) + bytes(100),
        "50 bytes were captured of 40",
    ),
    "a fraction of a second that is none": (
        struct.pack("<IHHIIIIIIII", 0xA1B2C3D4, 2, 4, 0, 0, 0, 1, 1, 1_000_000, 40, 40) + bytes(100),
        "1000000 as its fraction",
    ),
    "another version": (struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 3, 0, 0, 0, 1) + bytes(100), "version 2.3"),
    "an unknown link": (
        struct.pack("<IHHIIIIIIII", 0xA1B2C3D4, 2, 4, 0, 0, 0, 105, 1, 1, 40, 40) + bytes(100),
        "link type 105",
    ),
    "a block longer than anything": (
        section("<") + interface("<") + struct.pack("<II", 6, 0xFFFFFFF0) + bytes(100),
        "record longer than",
    ),
    "a block that holds less than it says": (
        section("<") + interface("<") + block(6, struct.pack("<IIIII", 0, 0, 0, 4000, 4000) + bytes(8), "<"),
        "damaged",
    ),
    "an interface that is not described": (section("<") + enhanced("<", 1, RESERVED), "not described"),
    "a time beyond all clocks": (section("<") + interface("<", 0) + enhanced("<", 1 << 60, RESERVED), "no clock"),
    "a unit of time beyond all clocks": (section("<") + interface("<", 100) + enhanced("<", 1, RESERVED), "no clock"),
    "more interfaces than anything has": (section("<") + interface("<") * 70_000, "more than 65536 interfaces"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_capture_is_refused_in_a_line(read: Reader, tmp_path: Path, what: str) -> None:
    content, words = BAD[what]
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert words in read.refuses(path)


def test_a_missing_file_and_a_fifo_are_refused(read: Reader, tmp_path: Path) -> None:
    assert "is no file" in read.refuses(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    assert "is no file" in read.refuses(tmp_path / "fifo")


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_bomb_is_given_up(read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(untrusted, "MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr(untrusted, "UNPACKED_RATIO", 10)
    bomb = tmp_path / "bomb"
    bomb.write_bytes(
        struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 0, 1) + struct.pack("<IIII", 1, 0, 0, 60) * (4 << 20)
    )
    assert "unpacks to more than" in read.refuses(repacked(bomb, how))


def test_a_window_larger_than_memory_is_refused(read: Reader, tmp_path: Path) -> None:
    """The header of a Zstandard frame that asks for a window of 2 GiB (RFC 8878, 3.1.1.1.2)."""
    path = tmp_path / "wide.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + b"\x01\x00\x00" + bytes(100))
    assert "cannot be read" in read.refuses(path)


@property_of(batch=10, share=0.2)
def test_whatever_is_in_a_file_ends_in_a_table_or_a_line(apart: Reader, rng: random.Random) -> None:
    path = apart.output.with_name("c")
    frames = frames_like(rng)
    if rng.random() < 0.5:
        pcap(path, frames)
    else:
        order = rng.choice("<>")
        blocks = [enhanced(order, 10**15 + number, frame) for number, frame in enumerate(frames)]
        path.write_bytes(section(order) + interface(order, rng.choice([None, 6, 9])) + b"".join(blocks))
    content = damaged(rng, path.read_bytes())
    packing = rng.random()
    path.write_bytes(damaged(rng, gzip.compress(content)) if packing < 0.2 else content)
    try:
        found, table = apart(path)
    except CaptureError as error:
        told = [str(error)]
    else:
        assert table.height == found.frames
        told = found.problems(path)
    assert all(line.startswith(str(path)) and "\n" not in line and "panicked" not in line for line in told)


def test_memory_does_not_grow_with_the_capture(capture_reader: Path, tmp_path: Path) -> None:
    path = pcap(tmp_path / "c.pcap", [udp(CLIENT, SERVER, bytes(20))] * 30_000)
    frames = path.read_bytes()[24:]
    copies = 100
    with path.open("ab") as file:
        for _ in range(copies - 1):
            file.write(frames)
    # half of the file's size
    argv = ["prlimit", f"--as={len(frames) * copies // 2}", str(capture_reader), str(path), str(tmp_path / "c.parquet")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert pl.scan_parquet(tmp_path / "c.parquet").select(pl.len()).collect().item() == 30_000 * copies


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_table_and_says_what_is_wrong(
    capture_reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pcap(tmp_path / "c.pcap", QuicTransfer(size=5000).run())
    out = tmp_path / "c.parquet"
    assert commands.main(["capture", str(path), "-o", str(out)]) == 0
    frames = pl.read_parquet(out).height
    assert f"{out}: {frames} packets of 1 connections" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert commands.main(["capture", str(path), "-o", str(out), "--server", "10.0.0.1:4433"]) == 1
    assert pl.read_parquet(out).height == frames - 1
    assert f"{path}: at byte" in capsys.readouterr().err
    assert commands.main(["capture", str(path), "-o", str(out), "--server", "nowhere"]) == 1
    assert "give its address and port" in capsys.readouterr().err
