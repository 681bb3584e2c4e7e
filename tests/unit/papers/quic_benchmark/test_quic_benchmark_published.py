"""Importing quic-benchmark: times by events and by captures, neither mixed nor rounded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarkfiles import CLIENT_EVENTS, FOLDER, PLACE, SERVER_EVENTS, STAMP, ping, sample
from clone import ROOT
from quicbed.importers import pcapng, samples
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.papers.quic_benchmark import published
from quicbed.wire import layers
from quicbed.wire.pcap import Capture
from wirefixtures import CLIENT, SERVER, pcap, tcp, udp, varint

SYN, FIN = 0x02, 0x11


def imported(directory: Path, files: dict[str, bytes]) -> Summary:
    return reading.read("quic-benchmark", samples.write(files, directory / "copy"), directory / "out")


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    return pl.read_parquet(directory / "out" / f"{name}.parquet").to_dicts()


# ---- events ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logged", ["39665290", 39665290])
def test_times_by_events_are_the_servers_and_keep_their_whole_seconds(tmp_path: Path, logged: str | int) -> None:
    server = SERVER_EVENTS | {"durations": {"handshakeDurationInNs": logged}}
    summary = imported(tmp_path, sample(quic__benchmark__server_json=json.dumps(server).encode()))
    (found,) = rows(tmp_path, "phases")
    assert found["basis"] == "events"
    assert found["handshake_ms"] == pytest.approx(39.66529)
    assert found["first_byte_ms"] == pytest.approx(39.66529 + 4)
    assert found["transfer_ms"] == pytest.approx(2000)
    assert found["close_ms"] == pytest.approx(10_018)
    assert found["problem"] is None
    (run,) = rows(tmp_path, "runs")
    assert (run["status"], run["rtt_ms"], run["rtt_mean_ms"], run["rtt_threshold_ms"]) == ("ok", 10.0, 13.912, 20.0)
    assert run["ttfb_ms"] == pytest.approx(39.66529)
    assert run["library"] == "quic"
    assert not summary.differences


def test_a_duration_of_zero_is_one(tmp_path: Path) -> None:
    events = SERVER_EVENTS["events"] | {"streamEnd": STAMP.format("51.841")}  # type: ignore[operator]
    server = SERVER_EVENTS | {"events": events}
    imported(tmp_path, sample(quic__benchmark__server_json=json.dumps(server).encode()))
    assert rows(tmp_path, "phases")[0]["transfer_ms"] == 0


def test_every_event_is_in_a_table_of_its_own(tmp_path: Path) -> None:
    imported(tmp_path, sample())
    found = {(row["role"], row["event"]) for row in rows(tmp_path, "events")}
    assert ("client", "ready") in found
    assert {name for role, name in found if role == "server"} == set(SERVER_EVENTS["events"])
    assert len(found) == 2 + len(SERVER_EVENTS["events"])


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"quic__benchmark__client_json": json.dumps(CLIENT_EVENTS | {"error": "timed out"})}, "failed", "timed out"),
        ({"quic__benchmark__server_json": '{"events": {'}, "unreadable", "truncated or corrupt JSON"),
        ({"quic__benchmark__server_json": None}, "unreadable", "no events of the server"),
        ({"ping_json": "[]"}, "unreadable", "not an object"),
    ],
)
def test_a_repetition_without_a_result_has_no_values(
    tmp_path: Path, changes: dict[str, str | None], status: str, reason: str
) -> None:
    imported(tmp_path, sample(**{name: None if text is None else text.encode() for name, text in changes.items()}))
    (run,) = rows(tmp_path, "runs")
    assert run["status"] == status
    assert reason in run["reason"]
    assert (run["ttfb_ms"], run["first_byte_ms"]) == (None, None)
    assert rows(tmp_path, "phases") == []  # neither of the events nor of the capture that it left


def test_files_that_are_missing_are_told_with_what_they_cost(tmp_path: Path) -> None:
    bare = {"ping_json": None, "quic__benchmark__server_json": None, "quic__benchmark__client_json": b"{"}
    files = sample(**bare) | sample(f"{FOLDER}/tcp/remote/1", tcp_pcap=b"") | {"nginx-measurements/1-run/tcp.pcap": b""}
    told = imported(tmp_path, files).skipped
    assert {reason: count for reason, count in told.items() if reason.startswith("sample without")} == {
        "sample without ping.json: network conditions are null": 1,
        "sample without quic-benchmark-server.json: the repetition has no times by events": 1,
        "sample without quic.pcap: there are no times by the capture": 1,
    }


def test_repetitions_are_numbered_by_their_time_within_a_transport(tmp_path: Path) -> None:
    times = ["2021-03-11 00-36-41.021645", "2021-03-11 00-31-37.626624", "2021-03-12 00-00-00.000000"]
    files: dict[str, bytes] = {}
    for transport in ("quic", "tcp"):
        for time in times:
            files |= sample(f"{FOLDER}/{transport}/remote/{time}")
    imported(tmp_path, files)
    found = {(row["library"], row["origin"].rpartition("/")[2]): row["repetition"] for row in rows(tmp_path, "runs")}
    for transport in ("quic", "tcp"):
        assert [found[transport, time] for time in sorted(times)] == [1, 2, 3]


def test_network_conditions_off_the_limits_are_told_and_kept(tmp_path: Path) -> None:
    summary = imported(tmp_path, sample(ping_json=ping("25.0", delay=20.0)))
    assert rows(tmp_path, "runs")[0]["rtt_mean_ms"] == 25.0
    assert sorted(summary.differences.values()) == [1, 1]


# ---- captures --------------------------------------------------------------------------------------------------------


def capture(directory: Path, frames: list[bytes]) -> bytes:
    """Frames a millisecond apart."""
    return pcap(directory / "made.pcap", frames).read_bytes()


def record(kind: int, length: int) -> bytes:
    return bytes([kind, 3, 3]) + length.to_bytes(2, "big") + bytes(length)


def tcp_frames() -> list[bytes]:
    """ClientHello, a server's flight, Finished and content in one segment, an alert, and both FIN."""
    hello, flight = record(22, 340), record(22, 118) + record(23, 1100)
    last = record(20, 1) + record(23, 69) + record(23, 56)
    sent = 1 + len(hello)
    return [
        tcp(CLIENT, SERVER, 0, flags=SYN),
        tcp(SERVER, CLIENT, 0, flags=SYN | 0x10),
        tcp(CLIENT, SERVER, 1, hello),
        tcp(SERVER, CLIENT, 1, flight),
        tcp(CLIENT, SERVER, sent, last),
        tcp(CLIENT, SERVER, sent + len(last), record(23, 19), flags=FIN),
        tcp(SERVER, CLIENT, 1 + len(flight), flags=FIN),
    ]


def tcp_phases(directory: Path, frames: list[bytes]) -> dict[str, Any]:
    place = PLACE.replace("/quic/", "/tcp/")
    imported(directory, sample(place, tcp_pcap=capture(directory, frames)))
    (found,) = (row for row in rows(directory, "phases") if row["basis"] == "capture")
    return found


def test_tls_records_tell_handshake_and_content_over_tcp(tmp_path: Path) -> None:
    found = tcp_phases(tmp_path, tcp_frames())
    times = {name: found[name] for name in ("handshake_ms", "first_byte_ms", "transfer_ms", "close_ms", "problem")}
    # from the ClientHello on, as the events: the handshake of TCP before it took 2 ms
    assert times == {"handshake_ms": 2, "first_byte_ms": 2, "transfer_ms": 0, "close_ms": 2, "problem": None}
    assert (found["client_packets"], found["server_packets"]) == (4, 3)
    assert found["client_bytes"] == sum(len(tcp_frames()[index]) for index in (0, 2, 4, 5))


def test_retransmitted_segments_change_no_record(tmp_path: Path) -> None:
    frames = tcp_frames()
    found = tcp_phases(tmp_path, [*frames[:4], frames[3], *frames[4:5], frames[4], *frames[5:]])
    assert (found["handshake_ms"], found["first_byte_ms"], found["transfer_ms"]) == (3, 3, 0)


def test_missing_segments_are_told(tmp_path: Path) -> None:
    frames = tcp_frames()
    found = tcp_phases(tmp_path, [*frames[:2], *frames[3:]])
    assert found["handshake_ms"] is None
    assert "missing from the capture" in found["problem"]


def long_header(kind: int, body: int, version: int = 0xFF00001B) -> bytes:
    """A QUIC packet of draft 27 with connection IDs of 8 and 5 bytes."""
    header = bytes([0xC0 | kind << 4]) + version.to_bytes(4, "big") + b"\x08" + bytes(8) + b"\x05" + bytes(5)
    return header + (b"\x00" if kind == 0 else b"") + varint(body) + bytes(body)


SHORT = b"\x40" + bytes(40)


def quic_frames() -> list[bytes]:
    return [
        udp(CLIENT, SERVER, long_header(0, 1100)),
        udp(SERVER, CLIENT, long_header(0, 90) + long_header(2, 900)),
        udp(SERVER, CLIENT, long_header(2, 300) + SHORT),
        udp(CLIENT, SERVER, long_header(0, 40) + bytes(30)),  # padding outside packets is no 1-RTT packet
        udp(CLIENT, SERVER, long_header(2, 80) + SHORT),
        udp(CLIENT, SERVER, SHORT),
        udp(SERVER, CLIENT, SHORT),
        udp(CLIENT, SERVER, SHORT),
    ]


def quic_phases(directory: Path, key_log: bytes | None) -> dict[str, Any]:
    imported(directory, sample(quic_pcap=capture(directory, quic_frames()), ssl__keys_log=key_log))
    (found,) = (row for row in rows(directory, "phases") if row["basis"] == "capture")
    return found


def test_without_keys_a_quic_capture_tells_the_handshake_only(tmp_path: Path) -> None:
    found = quic_phases(tmp_path, None)
    assert found["handshake_ms"] == 4
    assert found["first_byte_ms"] is None
    assert "no key log" in found["problem"]
    assert (found["client_packets"], found["server_packets"]) == (5, 3)


@pytest.mark.parametrize("name", ["draft-34", "key-update-by-server", "second-client-hello"])
def test_with_keys_stream_frames_tell_content(tmp_path: Path, name: str) -> None:
    file = ROOT / "tests" / "data" / "captures" / f"{name}.pcap"
    keys = file.with_suffix(".keys")
    imported(tmp_path, sample(quic_pcap=file.read_bytes(), ssl__keys_log=keys.read_bytes()))
    (found,) = (row for row in rows(tmp_path, "phases") if row["basis"] == "capture")
    assert found["problem"] is None
    assert 0 < found["handshake_ms"] <= found["first_byte_ms"]
    assert found["transfer_ms"] > 0
    packets = [packet for packet in Capture(file).packets() if packet.protocol == "udp"]
    (connection,) = layers.read(file, keys, port=packets[0].destination_port)
    began, content = connection.units[0].time_ns, connection.contents
    # the client's request, which comes first, is content here too
    assert found["first_byte_ms"] < (content[0] - began) / 1e6
    assert found["first_byte_ms"] + found["transfer_ms"] == pytest.approx((content[-1] - began) / 1e6)


def test_frames_in_another_order_than_their_times_give_the_same_times(tmp_path: Path) -> None:
    whole = capture(tmp_path, quic_frames())
    records, offset = [], 24
    while offset < len(whole):
        size = 16 + struct.unpack_from("<I", whole, offset + 8)[0]
        records.append(whole[offset : offset + size])
        offset += size
    found = []
    for data in (whole, whole[:24] + b"".join(reversed(records))):
        imported(tmp_path, sample(quic_pcap=data))
        found += [row for row in rows(tmp_path, "phases") if row["basis"] == "capture"]
    assert found[0] == found[1]


def test_keys_of_another_connection_are_told(tmp_path: Path) -> None:
    other = b"CLIENT_TRAFFIC_SECRET_0 " + b"ab" * 32 + b" " + b"cd" * 32 + b"\n"
    found = quic_phases(tmp_path, other)
    assert found["first_byte_ms"] is None
    assert "could be decrypted" in found["problem"]


@pytest.mark.parametrize("data", [b"", b"not a capture", b"\xd4\xc3\xb2\xa1", pcapng.MAGIC])
def test_a_damaged_capture_costs_only_its_times(tmp_path: Path, data: bytes) -> None:
    summary = imported(tmp_path, sample(quic_pcap=data))
    assert [row["basis"] for row in rows(tmp_path, "phases")] == ["events"]
    assert rows(tmp_path, "runs")[0]["status"] == "ok"
    assert any(reason.startswith("capture") for reason in summary.skipped)


def blocks(order: str, frames: list[bytes], resolution: int | None) -> bytes:
    """A pcapng file of frames a millisecond apart."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = struct.pack(f"{order}I", len(body) + 12)
        return struct.pack(f"{order}I", kind) + length + body + length

    option = b"" if resolution is None else struct.pack(f"{order}HHB3xHH", 9, 1, resolution, 0, 0)
    unit = 1_000_000 if resolution is None else 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    data = block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack(f"{order}HHI", 1, 0, 0) + option)
    data += block(5, bytes(12))  # statistics
    for index, frame in enumerate(frames):
        time = 1_700_000_000 * unit + index * unit // 1000
        head = struct.pack(f"{order}IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        data += block(6, head + frame)
    return data


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("resolution", [None, 6, 9, 0x80 | 20])
def test_captures_of_the_newer_format_are_read_too(tmp_path: Path, order: str, resolution: int | None) -> None:
    data = blocks(order, tcp_frames(), resolution)
    place = PLACE.replace("/quic/", "/tcp/")
    imported(tmp_path, sample(place, tcp_pcap=data))
    (found,) = (row for row in rows(tmp_path, "phases") if row["basis"] == "capture")
    assert (found["handshake_ms"], found["close_ms"]) == pytest.approx((2, 2), abs=0.002)
    assert (found["client_packets"], found["server_packets"]) == (4, 3)


def body_of(order: str, kind: int, frame: bytes, interface: int = 0) -> bytes:
    """A packet block of a second after 2023-11-14, or a simple one."""
    size = struct.pack(f"{order}II", len(frame), len(frame))
    if kind == 3:
        return size[:4] + frame
    time = struct.pack(f"{order}II", *divmod(1_700_000_000 * 1_000_000, 1 << 32))
    return struct.pack(f"{order}I" if kind == 6 else f"{order}Hxx", interface) + time + size + frame


def pcapng_of(order: str, *inside: tuple[int, bytes]) -> bytes:
    """A pcapng file of these blocks."""
    section = struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)
    data = b""
    for kind, body in ((0x0A0D0D0A, section), *inside):
        body += bytes(-len(body) % 4)
        length = struct.pack(f"{order}I", len(body) + 12)
        data += struct.pack(f"{order}I", kind) + length + body + length
    return data


@pytest.mark.parametrize("order", ["<", ">"])
def test_no_frame_of_the_newer_format_is_passed_over(tmp_path: Path, order: str) -> None:
    frame = udp(CLIENT, SERVER, b"content")
    one = (1, struct.pack(f"{order}HHI", 1, 0, 0))
    later = (1, one[1] + struct.pack(f"{order}HHqHH", 14, 8, 3600, 0, 0))
    both = [(kind, body_of(order, kind, frame)) for kind in (6, 2)]
    times = {}
    for name, described in (("plain", one), ("later", later)):
        file = tmp_path / f"{name}.pcap"
        file.write_bytes(pcapng.to_pcap(pcapng_of(order, described, *both)))
        found = list(Capture(file))
        assert [one.data for one in found] == [frame, frame]
        (times[name],) = {one.time_ns for one in found}
    assert times == {"plain": 1_700_000_000 * 10**9, "later": 1_700_003_600 * 10**9}
    for inside, told in (
        ([one, (3, body_of(order, 3, frame))], "without a time"),
        ([one, one, (6, body_of(order, 6, frame)), (6, body_of(order, 6, frame, 1))], "several interfaces"),
    ):
        with pytest.raises(pcapng.PcapngError, match=told):
            pcapng.to_pcap(pcapng_of(order, *inside))


def test_a_capture_that_ends_within_a_frame_counts_until_there(tmp_path: Path) -> None:
    data = capture(tmp_path, quic_frames())
    summary = imported(tmp_path, sample(quic_pcap=data[:-10]))
    (found,) = (row for row in rows(tmp_path, "phases") if row["basis"] == "capture")
    assert (found["client_packets"], found["server_packets"]) == (4, 3)
    assert sum(summary.differences.values()) == 1


def test_captures_of_nginx_have_no_events(tmp_path: Path) -> None:
    files = {
        "nginx-measurements/1st-run/tcp.pcap": capture(tmp_path, tcp_frames()),
        "nginx-measurements/2nd-run/tcp.pcap": capture(tmp_path, tcp_frames()),
        "nginx-measurements/1st-run/tcp_timestamps.csv": b"0.0",
    }
    summary = imported(tmp_path, files)
    assert [(row["repetition"], row["status"]) for row in rows(tmp_path, "runs")] == [(1, "ok"), (2, "ok")]
    assert {row["basis"] for row in rows(tmp_path, "phases")} == {"capture"}
    assert summary.skipped == {"made from a capture, which is read instead": 1}


def test_datagrams_of_drafts_are_told_apart_by_their_headers() -> None:
    assert published._has_one_rtt(SHORT)
    assert published._has_one_rtt(long_header(2, 80) + SHORT)
    assert not published._has_one_rtt(long_header(0, 80) + bytes(20))
    assert not published._has_one_rtt(long_header(0, 80)[:-20] + b"")
    assert not published._has_one_rtt(b"")
    # of version 2, whose types have other numbers, and of one that nobody knows
    assert published._has_one_rtt(long_header(3, 80, 0x6B3343CF) + SHORT)
    assert not published._has_one_rtt(long_header(2, 80, 0x0A0A0A0A) + SHORT)
