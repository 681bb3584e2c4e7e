"""A testbed without namespaces: programs run on this machine, the link is not touched. For tests of the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quicbed.testbed import Capture, Completed, Confined, Exit, Host, LinkSettings, Process, Role, Testbed, TestbedError


class FakeProcess(Process):
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.ended: Exit | None = None

    def poll(self) -> Exit | None:
        if self.ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.popen.returncode = code
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
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(10)

    def sample_run_delay(self) -> float | None:
        return None

    memory: Sequence[int] = (10 << 20, 11 << 20)
    """What is found one after the other, in bytes; None after that."""

    def sample_memory(self) -> int | None:
        taken, *self.memory = self.memory or (None,)
        return taken


class FakeHost(Host):
    def __init__(self, name: Role) -> None:
        self.name = name
        self.spawned: list[list[str]] = []
        self.address = "127.0.0.1"
        self.interface = "lo"

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
            # it must not outlive a driver that a test kills, nor one that was killed before this could be asked for
            begin = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
            argv = [*begin, *argv]
            whole = {**os.environ, **(env or {})}
            return FakeProcess(
                subprocess.Popen(argv, stdout=out, stderr=err, env=whole, cwd=cwd, start_new_session=True)
            )


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

    def unsupported(self, link: LinkSettings) -> str | None:
        return (self.no_delay if link.rtt_ms else None) or (self.no_loss if link.loss_percent else None)

    def seed_losses(self, seed: int) -> None:
        self.seeds.append(seed)

    def set_rate(self, rate_mbit: float) -> None:
        self.rates.append(rate_mbit)

    def facts(self) -> dict[str, Any]:
        return self.machine | {"cpus": 2}

    def counters(self) -> dict[str, float]:
        return {"time_s": time.monotonic(), "machine.load_1m": 0.0}

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
