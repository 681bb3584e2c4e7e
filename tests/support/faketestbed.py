"""A testbed without namespaces: programs run on this machine, the link is not touched. For tests of the driver."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fake_endpoint
import nursery
from quicbed.testbed import Capture, Completed, Confined, Exit, Host, LinkSettings, Process, Role, Testbed, TestbedError
from quicbed.testbed.agent import pin, pinned, send_to_all

FAKE_ENDPOINT = Path(fake_endpoint.__file__).read_text(encoding="utf-8")
"""What the programs of a build have in them after their first line."""


def _is_fake_endpoint(program: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(program).read_text(encoding="utf-8").partition("\n")[2] == FAKE_ENDPOINT
    return False


class FakeProcess(Process):
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: Exit | None = None

    def poll(self) -> Exit | None:
        if self.ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.ended = Exit(code, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)
        return self.ended

    def wait(self, timeout: float) -> Exit:
        deadline = time.monotonic() + timeout
        while (ended := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.002)
        return ended

    def signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which the nursery has not told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(10)

    def sample_run_delay(self) -> float | None:
        return None

    def hold(self) -> None:
        if self.poll() is None:
            send_to_all(self.pid, signal.SIGSTOP)

    def release(self) -> None:
        if self.poll() is None:
            send_to_all(self.pid, signal.SIGCONT)

    def pin(self, cpu: int) -> None:
        if self.poll() is None:
            pin(self.pid, cpu)

    def pinned(self, cpu: int) -> bool:
        return self.poll() is not None or pinned(self.pid, cpu)

    memory: Sequence[int] = (10 << 20, 11 << 20)
    """What is found one after the other, in bytes; None after that."""

    def sample_memory(self) -> int | None:
        taken, *self.memory = self.memory or (None,)
        return taken


class Nursery:
    """Starts fake endpoints as copies of one process that has imported all they need (`nursery.py`).

    A driver starts thousands of them, and Python takes longer to start than they do for their work.
    """

    def __init__(self) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-S", nursery.__file__, str(os.getpid()), "." * 16384]
        with theirs:
            self._process = subprocess.Popen(argv, stdin=theirs, start_new_session=True)
        self.of = os.getpid()
        self._socket = own
        atexit.register(self._close)

    def _close(self) -> None:
        if self.of == os.getpid():
            self._socket.close()
            self._process.wait()

    def start(self, argv: Sequence[str], out: int, err: int, env: Mapping[str, str], cwd: Path | None) -> FakeProcess:
        reading, writing = os.pipe()
        asked = {"argv": list(argv), "env": dict(env), "cwd": None if cwd is None else str(cwd)}
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [out, err, writing])
        finally:
            os.close(writing)
        return Nursling(reading)


class Nursling(FakeProcess):
    """What a nursery has started: a line tells its PID, and another one how it has ended."""

    def __init__(self, told: int) -> None:
        self._told = open(told, "rb", buffering=0)  # noqa: SIM115 (until it has ended)
        super().__init__(json.loads(self._told.readline()))
        os.set_blocking(told, False)

    def poll(self) -> Exit | None:
        if self.ended is None and (line := self._told.read()) is not None:
            self._told.close()
            # nothing where the nursery was killed, with what it had started
            self.ended = Exit(*json.loads(line or b"[-9, 0.0, 0.0, 0]"))
        return self.ended


_nursery: Nursery | None = None


def _nursery_of_this_process() -> Nursery:
    global _nursery
    if _nursery is None or _nursery.of != os.getpid():
        _nursery = Nursery()
    return _nursery


class FakeHost(Host):
    def __init__(self, name: Role) -> None:
        self.name = name
        self.spawned: list[list[str]] = []
        self.address = "127.0.0.1"
        self.interface = "lo"
        self.rtt_ms = 0.0
        """What endpoints behave as if the link had."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30,
        check: bool = True,
        input: str | None = None,  # noqa: A002
    ) -> Completed:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=check, input=input)
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    def on_processor(self, cpu: int, argv: Sequence[str]) -> list[str]:
        del cpu  # they are kept to it afterwards
        return list(argv)

    def has_unread(self, port: int) -> bool:
        del port  # nothing is sent
        return True

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        confined: Confined | None = None,
    ) -> Process:
        del confined
        self.spawned.append(list(argv))
        with stdout.open("wb") as out, stderr.open("wb") as err:
            whole = {**os.environ, "QUICBED_FAKE_RTT_MS": str(self.rtt_ms), **(env or {})}
            if _is_fake_endpoint(argv[0]):
                return _nursery_of_this_process().start(argv, out.fileno(), err.fileno(), whole, cwd)
            # it must not outlive a driver that a test kills, nor one that was killed before this could be asked for
            begin = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
            argv = [*begin, *argv]
            popen = subprocess.Popen(argv, stdout=out, stderr=err, env=whole, cwd=cwd, start_new_session=True)
            popen.returncode = 0  # it is waited for here
            return FakeProcess(popen.pid)


class FakeTestbed(Testbed):
    """Records the link settings that were applied, the programs started and the lengths to which captures are cut."""

    def __init__(self) -> None:
        self.name = "local"
        self.kind = "local"
        self.hosts = {"client": FakeHost("client"), "middle": FakeHost("middle"), "server": FakeHost("server")}
        self.applied: list[LinkSettings] = []
        self.snaplens: list[int] = []
        self.no_delay: str | None = None
        self.no_loss: str | None = None
        self.no_reorder: str | None = None
        self.misplaced = 0
        """Packets that each run loses while the link is to put them back."""
        self._misplaced = 0
        self.seeds: list[int] = []
        self.rates: list[float] = []
        self.machine = {"host_id": "0123456789ab", "cpu_model": "fake", "kernel": "6.1", "memory_bytes": 2**33}
        self.refusals = 0
        self.lost = 0
        """Packets that captures lack."""

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def apply(self, link: LinkSettings) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TestbedError("testbed local: no TCP connection from client to server")
        self.applied.append(link)
        for host in self.hosts.values():
            host.rtt_ms = link.rtt_ms

    def unsupported(self, link: LinkSettings) -> str | None:
        problems = {
            self.no_delay: link.rtt_ms,
            self.no_loss: link.loss_percent,
            self.no_reorder: link.reorder_packets,
        }
        return next((problem for problem, asked in problems.items() if problem and asked), None)

    def seed_losses(self, seed: int) -> None:
        self.seeds.append(seed)

    def set_rate(self, rate_mbit: float) -> None:
        self.rates.append(rate_mbit)

    def facts(self) -> dict[str, Any]:
        return self.machine | {"cpus": 2}

    def counters(self) -> dict[str, float]:
        if self.applied and self.applied[-1].reorder_packets is not None:
            self._misplaced += self.misplaced
        return {"time_s": time.monotonic(), "machine.load_1m": 0.0, "link.reorder_lost_to_client": self._misplaced}

    @contextlib.contextmanager
    def capture(
        self,
        path: Path,
        *,
        snaplen: int = 128,
        count: int | None = None,
        filter: str = "",  # noqa: A002, ARG002
    ) -> Iterator[Capture]:
        del count
        self.snaplens.append(snaplen)
        path.write_bytes(b"")
        yield Capture(path, packets_captured=7, packets_dropped=self.lost)


class Sending(FakeTestbed):
    """A fake testbed that keeps programs to processors, and whose server sends whatever is asked for."""

    sent = 0
    pinned: Mapping[Any, int] | str = {"server": min(os.sched_getaffinity(0)), "client": max(os.sched_getaffinity(0))}

    def pins(self) -> Mapping[Any, int] | str:
        return self.pinned

    def sent_by_server(self) -> int:
        self.sent += 1 << 30
        return self.sent
