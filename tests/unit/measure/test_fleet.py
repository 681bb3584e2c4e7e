"""Copies of a program as one: what each is asked, and what their events and ends become."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clone import ROOT
from fakeproject import INTERPRETER
from quicbed.config.model import Project, SshHost
from quicbed.config.model import Testbed as Settings
from quicbed.contract import events
from quicbed.measure import fleet
from quicbed.plan.fleet import FLEET

PROGRAM = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
number = int(options["--events"][-1])
out = open(options["--events"], "w")
def emit(event, **fields):
    out.write(json.dumps({"event": event, "t": 100 + number, **fields}) + "\\n")
    out.flush()
emit("start", contract=2, role="server", library="fake", version="1", pid=os.getpid(), options=options)
"""
TOLD = {
    **dict.fromkeys(
        (
            *("t_handshake_complete", "t_handshake_confirmed", "hello_retry_request", "retry", "t_close", "cipher"),
            *("group", "signature", "alpn", "tls_version", "aead", "header_protection", "packets_sent"),
            *("packets_received", "packets_lost", "cpu_user_ns", "cpu_system_ns", "bytes_sent"),
            *(f"handshake_{what}" for what in ("packets_sent", "packets_received", "bytes_sent", "bytes_received")),
        )
    ),
    "ok": True,
    "error": None,
}
END = {"connections": 2, "failed": 0, "cpu_user_ns": 5, "cpu_system_ns": None, "run_delay_ns": 3, "max_rss_bytes": 7}
SERVES = f"""
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
time.sleep(0.1 * number)
emit("ready", address="127.0.0.1", port=int(options["--listen"].rpartition(":")[2]))
while not stopped:
    time.sleep(0.005)
for index in range(2):
    emit("connection", index=index, t_accept=10 * (index + 1) - number, **{TOLD!r})
emit("end", **{END!r})
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The program that runs on hosts."""
    specification = importlib.util.spec_from_file_location("fleet_program", ROOT / FLEET)
    assert specification is not None
    assert specification.loader is not None
    found = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(found)
    return found


def start(directory: Path, script: str, *options: str, copies: int = 2) -> tuple[subprocess.Popen[str], Path]:
    """Copies of a program with this script, started as the driver does."""
    program = directory / "program"
    program.write_text(INTERPRETER + PROGRAM + script, encoding="utf-8")
    program.chmod(0o755)
    log = directory / "server.jsonl"
    runs_them = fleet.provided(Project(ROOT, {"paths": {"build": str(directory / "build")}})) / "bin" / fleet.PROGRAM
    argv = [str(runs_them), str(copies), str(program), "--events", str(log), *options]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True), log


def told(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_each_copy_has_its_port_and_its_share(module: ModuleType) -> None:
    options = ["--events", "/x/client.jsonl", "--connect", "10.0.0.1:4433", "--connections", "7", "--rate", "300"]
    options += ["--seed", str(2**63 - 1), "--server-name", "server", "--bytes", "1"]
    one, two = (dict(zip(made[::2], made[1::2], strict=True)) for made in (
        module.of_copy(options, number, 2) for number in range(2)
    ))  # fmt: skip
    assert (one["--events"], two["--events"]) == ("/x/client.jsonl.0", "/x/client.jsonl.1")
    assert (one["--connect"], two["--connect"]) == ("10.0.0.1:4433", "10.0.0.1:4434")
    assert (one["--connections"], two["--connections"]) == ("4", "3")
    assert (one["--rate"], two["--rate"]) == ("150", "150")
    assert (one["--seed"], two["--seed"]) == (str(2**63 - 1), "0")
    assert one["--bytes"] == two["--bytes"] == "1"
    assert module.of_copy(["--listen", "[::1]:1"], 3, 4) == ["--listen", "[::1]:4"]


def test_servers_are_ready_when_all_are_and_their_events_are_those_of_one(tmp_path: Path) -> None:
    process, log = start(tmp_path, SERVES, "--listen", "127.0.0.1:4433", copies=3)
    deadline = time.monotonic() + 20
    while not (log.exists() and "ready" in log.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline
        assert not (log.exists() and log.read_text(encoding="utf-8").strip() and len(told(log)) > 2)
        time.sleep(0.01)
    assert all("ready" in log.with_name(f"server.jsonl.{number}").read_text(encoding="utf-8") for number in range(3))
    process.terminate()
    assert process.wait(20) == 0
    seen = events.read(log, "server")
    assert seen.start.pid == process.pid
    assert [one.t_accept for one in seen.connections] == [8, 9, 10, 18, 19, 20]
    assert [one.index for one in seen.connections] == [*range(6)]
    assert (seen.end.connections, seen.end.cpu_user_ns, seen.end.cpu_system_ns) == (6, 15, None)
    assert (seen.end.run_delay_ns, seen.end.max_rss_bytes) == (9, 21)
    assert [event["event"] for event in told(log)][:2] == ["start", "ready"]
    assert not [*tmp_path.glob("server.jsonl.*")]


def test_a_copy_that_is_killed_ends_all_by_its_signal(tmp_path: Path) -> None:
    crash = "\nif number == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
    process, log = start(tmp_path, crash + f'emit("end", **{END!r})\n', "--connect", "127.0.0.1:1")
    assert process.wait(20) == -signal.SIGSEGV
    # without an end, as of a program that has crashed
    assert [event["event"] for event in told(log)] == ["start"]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    refuses = """
if number == 1:
    emit("unsupported", reason="no such group")
    sys.exit(127)
"""
    process, log = start(tmp_path, refuses + SERVES, "--listen", "127.0.0.1:4433")
    time.sleep(0.5)
    process.terminate()
    assert process.wait(20) == 127
    assert [event["reason"] for event in told(log) if event["event"] == "unsupported"] == ["no such group"]


def test_what_is_no_event_is_left_for_the_reader_to_name(tmp_path: Path) -> None:
    odd = f'\nout.write("goodput: 100 furlongs\\n")\nemit("end", **{END!r})\n'
    process, log = start(tmp_path, odd, "--connect", "127.0.0.1:1")
    assert process.wait(20) == 0
    with pytest.raises(events.EventError, match=r"server\.jsonl"):
        events.read(log, "server")


def test_programs_are_as_many_as_processors() -> None:
    local = Project(ROOT).testbeds["local"]
    assert [fleet.copies(local, {"cpus": cpus}) for cpus in (1, 2, 3, 4, 16)] == [1, 1, 1, 2, 8]
    host = {"address": "a", "interface": {"name": "eth0"}, "ip": "10.0.0.1", "directory": "/tmp/x"}
    held = {"client": SshHost(**host), "server": SshHost(**host | {"ip": "10.0.0.2", "cpus": "2-7"})}
    dedicated = Settings.model_construct(**{**local.model_dump(), "hosts": held})
    assert [fleet.copies(dedicated, {"cpus": cpus}) for cpus in (4, 16)] == [4, 6]


@pytest.mark.parametrize(
    "words", [(), ("2", "server"), ("two", "server", "--events", "x"), ("2", "server", "--listen")]
)
def test_it_says_how_it_is_used_and_needs_the_standard_library_alone(words: tuple[str, ...]) -> None:
    argv = [sys.executable, "-ISB", str(ROOT / FLEET), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = "usage: fleet COPIES PROGRAM OPTION..., with --events FILE among the options\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
