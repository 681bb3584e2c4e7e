"""A broken or hostile endpoint costs its run, which says why: what is measured beside it goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import fakeproject
import hostile
from fakeproject import EXPERIMENT, HEAD, INTERPRETER, behave, once, run, runs
from faketestbed import FakeTestbed
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import event_logs, judge
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.testbed import Exit, TestbedError

START = (
    'emit(json.dumps({"event": "start", "t": 1, "contract": 2, "role": "client", "library": "x", "version": "1", '
    '"pid": 1, "options": {}}))\n'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


def become(project: Project, role: str, body: str, library: str = "quiche") -> None:
    """Let a program of the stock build do this."""
    behave(project, library, "stock")
    file = project.build / f"{library}-stock" / "bin" / role
    file.write_text(f"{INTERPRETER}{HEAD}{body}", encoding="utf-8")


HOSTILE = {
    "real-time signal": ("os.kill(os.getpid(), 40)", "the client was killed by signal 40"),
    "list": ("emit('[]'); sys.exit(1)", "the client exited with 1"),
    "null": ("emit('null'); emit('3'); emit('\"x\"'); sys.exit(127)", "the client exited with 127"),
    "nesting": ("emit('[' * 100000); sys.exit(127)", "the client exited with 127"),
    "list and success": ("emit('[]')", "client.jsonl: line 1: the line is no event"),
    "object as reason": (
        START + 'emit(\'{"event": "error", "t": 2, "reason": {"a": [1]}}\'); sys.exit(1)',
        "the client exited with 1",
    ),
    "dangling link": ("os.symlink('/nowhere/else', log)", "left what is no file of its own in the run's directory"),
    # the fake server reads it to its end
    "fifo": (
        "os.mkfifo(log); sys.exit(3)",
        "the server did not stop within 0.5 s of SIGTERM; the client exited with 3",
    ),
    "fifo as errors": (
        "os.unlink(log[:-5] + 'err'); os.mkfifo(log[:-5] + 'err'); sys.exit(3)",
        "left what is no file of its own in the run's directory: client.err",
    ),
    "link to secrets": ("os.symlink('/etc/passwd', log); sys.exit(1)", "left what is no file of its own"),
    "directory": ("os.mkdir(log)", "client.jsonl: cannot be read: Is a directory"),
    "planted openings": (
        "os.mkdir(log[:-6] + '.logs'); open(log[:-6] + '.logs/../openings.json', 'w').write('[]'); sys.exit(1)",
        "left what is no file of its own in the run's directory: openings.json",
    ),
    "directory in the place of a partial file": (
        "os.makedirs(os.path.join(os.path.dirname(log), '.run.json.partial', 'x')); sys.exit(1)",
        "left what is no file of its own in the run's directory: .run.json.partial",
    ),
    "directory in the place of a trace": (
        "os.mkdir(os.path.join(os.path.dirname(log), 'trace.pcap.gz')); sys.exit(1)",
        "left what is no file of its own in the run's directory: trace.pcap.gz",
    ),
    "planted gaps": (
        "open(os.path.join(os.path.dirname(log), 'pacing.json'), 'w').write('{}'); sys.exit(1)",
        "left what is no file of its own in the run's directory: pacing.json",
    ),
    "directories within each other": (
        "os.chdir(os.path.dirname(log))\nfor _ in range(1100): os.mkdir('d' * 20); os.chdir('d' * 20)\nsys.exit(1)",
        "more than 64 directories deep",
    ),
    "infinite option": (
        START.replace('"options": {}', '"options": {"x": 1e999}')
        .replace("1e999", "7")
        .replace("}))", "}).replace('7', '1e999'))"),
        "the line is not JSON",
    ),
    "control characters": (
        "emit('\\x1b[2J'); print('\\x1b]0;x\\x07\\n', file=sys.stderr); sys.exit(1)",
        "exited with 1",
    ),
    "surrogate": ('emit(\'{"event": "error", "t": 2, "reason": "\\\\ud800"}\'); sys.exit(1)', "exited with 1"),
    "long line": ("emit('x' * (2 << 20))", "client.jsonl: line 1: the line is longer than"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_client_costs_its_run_and_says_why(project: Project, tmp_path: Path, kind: str) -> None:
    body, reason = HOSTILE[kind]
    become(project, "client", body)
    attempt = once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.reason is not None
    assert reason in attempt.reason
    assert attempt.reason.isprintable()
    json.dumps(attempt.__dict__, allow_nan=False).encode()


def test_unsupported_without_a_reason_and_with_an_object_as_reason(project: Project, tmp_path: Path) -> None:
    for number, more in enumerate(("", ', "reason": {"a": 1}', ', "reason": null', ', "reason": "a\\u0000b"')):
        become(
            project,
            "client",
            f'emit(\'{{"event": "unsupported", "t": 2{more}}}\'); sys.exit(127)'.replace("\\u", "\\\\u"),
        )
        attempt = once(project, tmp_path / f"run{number}")
        assert attempt.status == "unsupported"
        assert attempt.reason == ("a b" if number == 3 else "the program does not say why")


def test_a_server_that_is_waited_for_is_no_fifo(project: Project, tmp_path: Path) -> None:
    become(project, "server", "os.mkfifo(log); time.sleep(60)")
    attempt = once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.reason is not None
    assert "the server was not ready after 1 s" in attempt.reason


def test_other_cells_are_measured_beside_a_hostile_one_and_again_after_a_restart(project: Project) -> None:
    become(project, "client", "os.symlink('/nowhere', log); os.kill(os.getpid(), 50)")
    for _ in range(2):
        with pytest.raises(MeasureError, match="quiche"):
            run(project)
        done = runs(project)
        assert {entry["status"] for entry in done} == {"ok"}
        assert {entry["client"]["build"] for entry in done} == {"quiche-noop", "quinn-stock", "quinn-noop"}
        assert len({entry["block"] for entry in done}) == 3


def test_what_judging_does_not_understand_is_a_failed_run(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(events, "goodput_mbps", broken)
    attempt = once(project, tmp_path / "run")
    assert (attempt.status, attempt.reason) == ("failed", "cannot be judged: ZeroDivisionError: a b")


def test_a_host_whose_files_cannot_be_taken_costs_the_run(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faketestbed import FakeHost

    def refused(*_: Any) -> None:
        raise TestbedError("server (a): names '../x', which is not in the directory of the run")

    monkeypatch.setattr(FakeHost, "collect", refused)
    attempt = once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.reason == "server (a): names '../x', which is not in the directory of the run"


def test_a_forged_goodput_is_a_failed_run(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake endpoints send nothing at all."""
    monkeypatch.setattr(FakeTestbed, "sent_by_server", lambda _: 0, raising=False)
    attempt = once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.reason is not None
    assert "1000 bytes" in attempt.reason
    assert "the server's interface sent 0" in attempt.reason


def connection_with(**times: int) -> events.ClientConnection:
    """A connection with times in ms."""
    told = honest()[1] | {name: value * 10**6 for name, value in times.items()} | {"t": 10**9, "t_close": 10**9}
    return events.ClientConnection.model_validate({key: value for key, value in told.items() if key != "event"})


def test_no_time_is_shorter_than_the_way_to_the_server_and_back() -> None:
    told = {
        "t_intended": 0,
        "t_begun": 0,
        "t_connect": 0,
        "t_client_hello": 0,
        "t_handshake_complete": 50,
        "t_handshake_confirmed": 50,
        "t_request_sent": 50,
        "t_first_byte": 100,
        "t_last_byte": 100,
    }
    assert judge._too_quick(connection_with(**told), 50) is None
    assert judge._too_quick(connection_with(**told), 0) is None
    early = told | {"t_handshake_complete": 1, "t_handshake_confirmed": 1, "t_request_sent": 1}
    problem = judge._too_quick(connection_with(**early), 50)
    assert problem is not None
    assert "the end of its handshake 1.000 ms after its first packet" in problem
    assert "round-trip time of 50 ms" in problem


def test_no_connection_takes_more_of_the_processor_than_its_program() -> None:
    connection = connection_with().model_copy(update={"cpu_user_ns": 10**9, "cpu_system_ns": 0})
    for spent_s, status in ((1.0, "ok"), (0.97, "ok"), (0.9, "failed")):
        attempt = Attempt()
        judge.held_against_kernel(attempt, "client", [connection], spent_s)
        assert attempt.status == status


def test_bytes_that_no_interface_has_sent_are_not_believed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = FakeTestbed.counters
    monkeypatch.setattr(FakeTestbed, "counters", lambda self: counters(self) | {"server.lo.tx_bytes": 5.0})
    attempt = once(project, tmp_path / "run")
    assert attempt.reason == "the client reports 1000 bytes, and the server's interface sent 0 during the whole run"


PARTS = 4
INPUTS = (hostile.INPUTS or 2500) // PARTS
TEXTS = ["", "x", "\x1b[2J", "\ud800", "\n", "y" * 5000, "\u2028", "start", "9" * 30]
NUMBERS = [0, 1, -1, 2**63, -(2**63), 10**400, 1.5, float("nan"), float("inf"), -0.0, 1e308]
NAMES = ["start", "ready", "connection", "unsupported", "error", "end", "primitive", ""]
FIELDS = [*events.ClientConnection.model_fields, *events.Start.model_fields, *events.End.model_fields, "reason", "name"]


def value_of(chosen: random.Random, depth: int = 0) -> Any:
    """Any JSON value, as Python writes it."""
    kind = chosen.randrange(7 if depth < 3 else 5)
    if kind < 2:
        return chosen.choice([None, True, False])
    if kind < 5:
        return chosen.choice([*TEXTS, *NUMBERS])
    inner = [value_of(chosen, depth + 1) for _ in range(chosen.randrange(4))]
    return inner if kind == 5 else {chosen.choice([*TEXTS, *FIELDS]): one for one in inner}


def line_of(chosen: random.Random) -> bytes:
    """Any line: bytes, JSON, or an event with any fields."""
    kind = chosen.randrange(4)
    if kind == 0:
        return chosen.randbytes(chosen.randrange(60))
    if kind == 1:
        return json.dumps(value_of(chosen)).encode()
    fields = {chosen.choice(FIELDS): value_of(chosen) for _ in range(chosen.randrange(40))}
    text = json.dumps(fields | {"event": chosen.choice([*NAMES, value_of(chosen)])})
    return text.encode()[: chosen.randrange(len(text)) if kind == 2 else None]


def honest() -> list[dict[str, Any]]:
    """What a client says that keeps the contract."""
    known = dict.fromkeys(events.ClientConnection.model_fields)
    times = {name: 2 for name in known if name.startswith("t_")}
    connection = (
        known
        | times
        | {
            "event": "connection",
            "t": 3,
            "index": 0,
            "ok": True,
            "content_ok": True,
            "bytes_requested": 5,
            "bytes_received": 5,
        }
    )
    start = {"contract": 2, "role": "client", "library": "x", "version": "1", "pid": 1, "options": {}}
    ended = dict.fromkeys(events.End.model_fields) | {"connections": 1, "failed": 0}
    return [{"event": "start", "t": 1, **start}, connection, {**ended, "event": "end", "t": 4}]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_file_of_events_ends_in_anything_but_an_event_error(tmp_path: Path, part: int) -> None:
    """Any lines, and lines that keep the contract but for one value."""
    for number in range(INPUTS):
        look_at(tmp_path, random.Random(f"{part}/{number}"))


def look_at(tmp_path: Path, chosen: random.Random) -> None:
    file = tmp_path / "client.jsonl"
    lines = [line_of(chosen) for _ in range(chosen.randrange(6))]
    mutated = honest()
    event = chosen.choice(mutated)
    event[chosen.choice(sorted(event))] = value_of(chosen)
    for content in (lines, [json.dumps(event).encode() for event in mutated]):
        file.write_bytes(b"\n".join(content) + b"\n")
        problem = "-"
        try:
            log = events.read(file, "client")
        except events.EventError as error:
            problem = str(error)
        else:
            json.dumps([connection.model_dump() for connection in log.connections], allow_nan=False).encode()
            json.dumps(log.start.options, allow_nan=False).encode()
        assert problem.isprintable()
        for text in (
            event_logs.complaint(file),
            event_logs.unsupported_event(file) or "",
            event_logs.exit_text("client", Exit(1, 0, 0, 0), tmp_path),
        ):
            assert text == "" or text.isprintable()
            text.encode()


def test_a_reason_is_one_line() -> None:
    attempt = Attempt()
    attempt.fail("a\nb\x1b")
    assert attempt.reason == "a b"
