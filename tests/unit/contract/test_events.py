"""The reader of event files accepts what ENDPOINT.md allows and names what is wrong otherwise."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from eventlines import Event, client_connection, end, ready, server_connection, start
from quicbed.contract import events
from quicbed.contract.events import EventError


def write(path: Path, *lines: Event | str | bytes) -> Path:
    file = path / "events.jsonl"
    encoded = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
        for line in lines
    ]
    file.write_bytes(b"".join(encoded))
    return file


def problem(path: Path, *lines: Event | str | bytes, role: Any = "client") -> str:
    file = write(path, *lines)
    with pytest.raises(EventError) as caught:
        events.read(file, role)
    message = str(caught.value)
    assert message.startswith(f"{file}: line ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: ")


def test_a_client_log(tmp_path: Path) -> None:
    second = client_connection(1, 40_000_000, ok=False, error="timeout", content_ok=None)
    second |= {"t_first_byte": None, "t_last_byte": None, "bytes_received": 0}
    log = events.read(write(tmp_path, start(), client_connection(), second, end(2, 1)), "client")
    assert log.start.library == "quinn"
    assert log.start.options["gso"] is True
    assert log.ready is None
    assert [c.ok for c in log.connections] == [True, False]
    assert log.connections[1].error == "timeout"
    assert (log.unsupported, log.errors) == (None, ())
    assert log.end.run_delay_ns == 7
    first, failed = log.connections
    assert events.goodput_mbps(first) == pytest.approx(1000)  # 8 Mbit in 8 ms
    assert events.ttfb_ms(first) == pytest.approx(1.5)
    assert events.confirmed_ms(first) == pytest.approx(1.9)
    assert events.first_byte_ms(first) == pytest.approx(2.1)
    assert events.goodput_mbps(failed) is None
    assert events.first_byte_ms(failed) is None


def test_a_server_log_with_connections_that_ended_in_another_order(tmp_path: Path) -> None:
    unknown = dict.fromkeys(["t_accept", "packets_sent", "aead", "bytes_sent"])
    lines = [start("server"), ready(), server_connection(1, **unknown), server_connection(0)]
    log = events.read(write(tmp_path, *lines, end(2)), "server")
    assert log.ready is not None
    assert log.ready.port == 4433
    assert [c.index for c in log.connections] == [0, 1]
    assert [c.bytes_sent for c in log.connections] == [1_000_000, None]


def test_goodput_of_no_time_is_unknown(tmp_path: Path) -> None:
    at_once = client_connection(t_last_byte=3_600_000, t_first_byte=3_600_000)
    log = events.read(write(tmp_path, start(), at_once, end()), "client")
    assert events.goodput_mbps(log.connections[0]) is None


def test_reasons_of_a_build_that_cannot_do_the_variant(tmp_path: Path) -> None:
    lines = [
        start(),
        {"event": "unsupported", "t": 2_000, "reason": "no group p-521"},
        {"event": "error", "t": 3_000, "reason": "giving up"},
        end(0),
    ]
    log = events.read(write(tmp_path, *lines), "client")
    assert (log.unsupported, log.errors) == ("no group p-521", ("giving up",))


def test_fields_beyond_the_contract_are_allowed(tmp_path: Path) -> None:
    log = events.read(write(tmp_path, start(), client_connection(rtt_ns=5), end()), "client")
    assert len(log.connections) == 1


def test_a_crash_keeps_what_the_program_said_before(tmp_path: Path) -> None:
    failed = client_connection(ok=False, error="connection refused", content_ok=False)
    crash = {"event": "error", "t": 20_000_000, "reason": "out of memory"}
    with pytest.raises(EventError, match="line 3: there is no end event") as caught:
        events.read(write(tmp_path, start(), failed, crash), "client")
    assert caught.value.reasons == ("connection refused", "out of memory")


@pytest.mark.parametrize("size", [1, 40, 150, 400])
def test_a_file_cut_within_a_line(tmp_path: Path, size: int) -> None:
    last = json.dumps(client_connection()).encode()[:size]
    assert problem(tmp_path, start(), last).startswith("line 2: the line is not JSON, the file ends within it: '{")


def test_an_empty_file(tmp_path: Path) -> None:
    assert "the file is empty" in problem(tmp_path)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(EventError, match=r"none\.jsonl: cannot be read: No such file"):
        events.read(tmp_path / "none.jsonl", "client")
    with pytest.raises(EventError, match="cannot be read: Is a directory"):
        events.read(tmp_path, "client")


@pytest.mark.parametrize(
    "line",
    [
        "thread 'main' panicked at src/main.rs:1",
        "",
        "[1, 2]",
        "17",
        '{"t": 5}',
        '{"event": 7, "t": 5}',
        '{"event": "error", "t": NaN, "reason": "x"}',
        "[" * 100_000,
        '{"event": "error", "t": ' + "9" * 5000 + "}",
        b"\xff\xfe\x00\n",
        b"x" * (events.MAXIMUM_LINE_BYTES + 1),
        '{"event": "progress", "t": 5000}',
    ],
    ids=wording.name,
)
def test_garbage_lines(tmp_path: Path, line: str | bytes, snapshot: SnapshotAssertion) -> None:
    assert wording.one_line(problem(tmp_path, start(), line, end(0)), names="line 2: ") == snapshot


@pytest.mark.parametrize(
    "changes",
    [
        {"t": "5"},
        {"t_last_byte": 5.5},
        {"t_close": True},
        {"t_client_hello": -1},
        {"cpu_user_ns": -1},
        {"t": 1 << 63},
        {"ok": 1},
        {"ok": None},
        {"aead": "none"},
        {"header_protection": True},
        {"index": -1},
        {"cipher": ["x"]},
        {"t_first_byte": 3_000_000},
        {"t_handshake_complete": 1_999_999},
        {"t": 11_000_000},
        {"t_handshake_confirmed": 3_499_999},
        {"t_handshake_complete": None, "t_request_sent": None, "t_first_byte": None},
        {"retry": "off"},
        {"ok": False},
        {"error": "lost"},
        {"content_ok": False},
        {"bytes_received": 999},
        {"kept": 1},
        {"kept": True},
        {"kept": True, "t_client_hello": None},
        {"kept": True, "resumed": True}
        | dict.fromkeys(["t_client_hello", "t_handshake_complete", "t_handshake_confirmed"]),
    ],
    ids=wording.name,
)
def test_wrong_values_of_a_connection(tmp_path: Path, changes: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    message = problem(tmp_path, start(), client_connection(**changes), end())
    assert message.startswith("line 2: event 'connection': ")
    assert wording.one_line(message) == snapshot


@pytest.mark.parametrize("field", sorted(set(client_connection()) - {"event"}))
def test_every_field_of_a_connection_is_required(tmp_path: Path, field: str) -> None:
    connection = client_connection()
    del connection[field]
    assert f"{field} is missing" in problem(tmp_path, start(), connection, end())


@pytest.mark.parametrize("field", sorted(set(server_connection()) - {"event"}))
def test_every_field_of_a_server_s_connection_is_required(tmp_path: Path, field: str) -> None:
    connection = server_connection()
    del connection[field]
    lines = [start("server"), ready(), connection, end()]
    assert f"{field} is missing" in problem(tmp_path, *lines, role="server")


@pytest.mark.parametrize(
    "lines",
    [
        [start(contract=3)],
        [start(contract=None)],
        [start(contract=2.0)],
        [start("server")],
        [start(role="proxy")],
        [start(options=None)],
        [client_connection()],
        [start(), start()],
        [start(), ready()],
        [start(), end(0), end(0)],
        [start(), client_connection(), client_connection(0, 50_000_000), end(2)],
        [start(), client_connection(), client_connection(2, 50_000_000), end(2)],
        [start(), client_connection(0, 50_000_000), client_connection(1), end(2)],
        [start(), end(0, t=999)],
        [start(), client_connection(), end(2)],
        [start(), client_connection(), end(1, 1)],
        [start(), end(0, run_delay_ns=-5)],
    ],
)
def test_files_that_do_not_fit_together(tmp_path: Path, lines: list[Event], snapshot: SnapshotAssertion) -> None:
    assert wording.one_line(problem(tmp_path, *lines)) == snapshot


def test_a_server_must_be_ready_once_and_before_connections(tmp_path: Path) -> None:
    lines = [start("server"), server_connection(), end()]
    assert "a connection before the ready event" in problem(tmp_path, *lines, role="server")
    lines = [start("server"), ready(), ready(), end(0)]
    assert "not a server's first one" in problem(tmp_path, *lines, role="server")
    lines = [start("server"), ready(port=0), end(0)]
    assert "port: Input should be greater than 0" in problem(tmp_path, *lines, role="server")


@pytest.mark.parametrize("seed", range(300))
def test_damaged_files_raise_nothing_else(tmp_path: Path, seed: int) -> None:
    """Whatever is done to a file, it is read or refused with the documented error."""
    dice = random.Random(seed)
    data = bytearray(
        write(tmp_path, start(), client_connection(), client_connection(1, 30_000_000), end(2)).read_bytes()
    )
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                del data[at : at + dice.randint(1, 60)]
            case 2:
                data[at:at] = dice.choice([b"\n", b"null", b'"', b"-", b"{}", b"1e999", b"\x00"])
            case 3:
                data[at:at] = data[at : at + dice.randint(1, 400)]
        if not data:
            data = bytearray(b"{")
    file = write(tmp_path, bytes(data))
    message = f"{file}: line "
    try:
        log = events.read(file, "client")
        assert len(log.connections) == log.end.connections
    except EventError as error:
        message = str(error)
    assert message.startswith(f"{file}: line ")


def primitive(**changes: Any) -> Event:
    return {
        "event": "primitive",
        "t": 5_000,
        "kind": "group",
        "name": "kyber768",
        "operation": "encapsulate",
        "implementation": "liboqs 0.13.0",
        "samples_ns": [30_000, 29_000, 31_000, 30_000, 30_000],
        "bytes": 1088,
    } | changes


def timed(path: Path, *lines: Event) -> events.PrimitivesLog:
    options = {"milliseconds": 20, "groups": ["kyber768"]}
    return events.read_primitives(write(path, start("primitives", options=options), *lines))


def test_a_log_of_primitives(tmp_path: Path) -> None:
    lacking = {"event": "unsupported", "t": 6_000, "name": "x448", "reason": "no such curve"}
    log = timed(tmp_path, primitive(), lacking, end(0))
    assert [(one.name, one.operation, one.bytes) for one in log.primitives] == [("kyber768", "encapsulate", 1088)]
    assert [(one.name, one.reason) for one in log.unsupported] == [("x448", "no such curve")]
    assert log.errors == ()


@pytest.mark.parametrize(
    "lines",
    [
        [primitive()],
        [primitive(samples_ns=[]), end(0)],
        [primitive(samples_ns=[-1]), end(0)],
        [primitive(samples_ns=[1.5]), end(0)],
        [primitive(operation="decrypt"), end(0)],
        [primitive(kind="cipher"), end(0)],
        [end(0), primitive()],
        [client_connection(), end(0)],
        [{"event": "unsupported", "t": 6_000, "reason": "no such curve"}, end(0)],
        [primitive(t=900_000_001), end(0)],
    ],
)
def test_wrong_logs_of_primitives(tmp_path: Path, lines: list[Event], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(EventError) as caught:
        timed(tmp_path, *lines)
    assert wording.one_line(caught.value, tmp_path, names="events.jsonl: line ") == snapshot
