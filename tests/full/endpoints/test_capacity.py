"""The client of an open loop: connections begin at their times whatever the server does; and bad input."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback, Server, connections, read_events
from quicbed.builds import making
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import fleet
from quicbed.measure.judge import percentile_99

GENERATOR = "ngtcp2"
SERVERS = ("quiche", "quinn", "openssl")
MASK = (1 << 64) - 1

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)

Build = Callable[[str, str], Path]


def gaps_s(rate: float, seed: int) -> Iterator[float]:
    """The gaps that the contract has for a rate and a seed (ENDPOINT.md, "Rates")."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        yield -math.log(1 - ((mixed ^ (mixed >> 31)) >> 11) / 2**53) / rate


def client(server: Server, build_of: Build, *options: str) -> tuple[list[str], Path]:
    return server.client(*options, programs=build_of(GENERATOR, "pq") / "bin")


def told(log: Path) -> list[events.ClientConnection]:
    """The connections of a client, as their models have them."""
    return list(events.read(log, "client").connections)


@pytest.mark.parametrize("library", SERVERS)
@pytest.mark.parametrize(("group", "signature"), [("x25519", "rsa-2048"), ("x25519-mlkem768", "mldsa65")])
def test_connections_begin_at_the_times_of_the_rate(
    loopback: Loopback, build_of: Build, library: str, group: str, signature: str
) -> None:
    server = loopback.serve(library, "--group", group, flavour="pq", signature=signature)
    argv, log = client(server, build_of, "--group", group, "--connections", "50", "--rate", "200", "--seed", "7")
    assert subprocess.run(argv, check=False).returncode == 0
    seen = told(log)
    assert len(seen) == 50
    intended = [one.t_intended for one in seen]
    wanted = list(itertools.accumulate(itertools.islice(gaps_s(200, 7), 49), initial=0.0))
    for one, offset in zip(seen, wanted, strict=True):
        assert one.ok
        assert one.t_intended is not None
        assert intended[0] is not None
        assert one.t_intended - intended[0] == pytest.approx(offset * 1e9, abs=2)
        assert events.ttfb_from_intended_ms(one) > events.ttfb_ms(one) > 0  # type: ignore[operator]
    assert len(server.stop(50)) == 50


@pytest.mark.parametrize("library", SERVERS)
def test_a_server_that_stands_still_delays_no_later_beginning(
    loopback: Loopback, build_of: Build, library: str
) -> None:
    """No coordinated omission: what begins while nothing is answered waits, and is counted with what it waited."""
    server = loopback.serve(library, flavour="pq")
    argv, log = client(server, build_of, "--connections", "300", "--rate", "200", "--seed", "1")
    process = subprocess.Popen(argv)
    time.sleep(0.5)
    server.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic_ns()
    time.sleep(0.5)
    going_on = time.monotonic_ns()
    server.process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    seen = told(log)
    during = [one for one in seen if one.t_intended is not None and stopped < one.t_intended < going_on]
    # 100 in the mean; a client that waits for answers would begin one
    assert len(during) > 50
    begun = [one for one in during if one.t_begun is not None and one.t_begun < going_on]
    assert len(begun) > len(during) / 2
    for one in during:
        waited = events.ttfb_from_intended_ms(one)
        assert one.t_intended is not None
        assert waited is not None
        assert waited >= (going_on - one.t_intended) / 1e6
    times = [events.ttfb_from_intended_ms(one) for one in seen]
    assert percentile_99([value for value in times if value is not None]) > 400
    server.stop(300)


@pytest.mark.parametrize("library", SERVERS)
def test_connections_are_held_open_together(loopback: Loopback, build_of: Build, library: str) -> None:
    server = loopback.serve(library, flavour="pq")
    before = server.resident_kib()
    argv, log = client(server, build_of, "--connections", "60", "--rate", "300", "--hold", "1")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held 60\n"
    assert server.resident_kib() > before
    assert process.wait(60) == 0
    seen = told(log)
    assert all(one.ok for one in seen)
    answered, closed = [one.t_last_byte or 0 for one in seen], [one.t_close or 0 for one in seen]
    assert min(closed) - max(answered) > 0.9e9
    assert len(server.stop(60)) == 60


def free_ports(count: int) -> int:
    """The first of so many ports that follow each other and are free."""
    while True:
        with contextlib.ExitStack() as stack:
            first = 0
            try:
                for number in range(count):
                    one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    one.bind(("127.0.0.1", first + number if first else 0))
                    first = first or one.getsockname()[1]
            except (OSError, OverflowError):
                continue
            return first


@pytest.mark.parametrize("library", SERVERS)
def test_copies_of_server_and_client_are_one_of_each(loopback: Loopback, build_of: Build, library: str) -> None:
    runs_it = [str(fleet.provided(Project(ROOT)) / "bin" / fleet.PROGRAM), "2"]
    asked = ["--connections", "40", "--rate", "200", "--seed", "7"]
    server = loopback.serve(library, flavour="pq", runs_it=runs_it, port=free_ports(2))
    argv, log = client(server, build_of, *asked)
    assert subprocess.run([*runs_it, *argv], check=False).returncode == 0
    seen = told(log)
    assert [one.index for one in seen] == [*range(40)]
    assert all(one.ok for one in seen)
    times = [one.t_intended or 0 for one in seen]
    assert times == sorted(times)
    # both copies begin their share, at half of the rate
    assert 0.05e9 < times[-1] - times[0] < 1e9
    log_of_server = server.stopped()
    assert len(log_of_server.connections) == log_of_server.end.connections == 40


def test_a_server_that_is_gone_while_connections_are_held_open_fails_them(loopback: Loopback, build_of: Build) -> None:
    server = loopback.serve("quiche", flavour="pq")
    argv, log = client(server, build_of, "--connections", "5", "--rate", "300", "--hold", "1")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    server.process.send_signal(signal.SIGSTOP)
    assert process.wait(60) == 1
    server.process.send_signal(signal.SIGCONT)
    errors = {one["error"] for one in connections(read_events(log))}
    assert errors == {"the server did not answer a PING while it was held open"}


def test_a_connection_that_fails_holds_up_no_other(loopback: Loopback, build_of: Build) -> None:
    server = loopback.serve("quiche", flavour="pq")
    server.process.send_signal(signal.SIGSTOP)
    argv, log = client(server, build_of, "--connections", "20", "--rate", "400", "--timeout", "1")
    assert subprocess.run(argv, check=False).returncode == 1
    server.process.send_signal(signal.SIGCONT)
    seen = connections(read_events(log))
    assert {one["error"] for one in seen} == {"not finished within 1 s"}
    assert len({one["index"] for one in seen}) == 20
    # all begin before the first of them has failed
    assert max(one["t_intended"] for one in seen) < min(one["t_close"] for one in seen)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", "0"), "--rate: not a positive number of connections a second"),
        (("--rate", "many"), "--rate: not a positive number of connections a second"),
        (("--rate", "10", "--seed", "-1"), "--seed: not a whole number"),
        (("--seed", "1"), "--seed: only with --rate"),
        (("--hold", "1"), "--hold: only with --rate"),
        (("--rate", "1", "--hold", "99"), "--hold: not 0.1 to 20 seconds"),
    ],
)
def test_bad_input_is_one_line(loopback: Loopback, build_of: Build, options: tuple[str, ...], said: str) -> None:
    argv, _ = client(loopback.serve("quiche", flavour="pq"), build_of, *options)
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_rate_and_a_file_to_save_exclude_each_other(loopback: Loopback, build_of: Build, tmp_path: Path) -> None:
    server = loopback.serve("quiche", flavour="pq")
    argv, _ = client(server, build_of, "--rate", "10", "--save", str(tmp_path / "10"))
    at = argv.index("--bytes")
    done = subprocess.run([*argv[:at], *argv[at + 2 :]], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "--rate: not with --save\n")


def test_other_clients_refuse_a_rate(loopback: Loopback, build_of: Build) -> None:
    server = loopback.serve("quiche", flavour="pq")
    code, seen = server.run("--rate", "10")
    assert (code, seen) == (2, [])
    assert making.describe(build_of(GENERATOR, "pq") / "bin" / "client")["open_loop"] is True
