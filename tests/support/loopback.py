"""Endpoints of builds over loopback: a server that listens, clients for it, and what both ends tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quicbed.contract import events

Events = list[dict[str, Any]]
READY_S = 60
"""Until a server listens; under Callgrind, Python takes ten seconds to start."""
Serve = Callable[..., "Server"]
"""Starts a server of one library, as `Loopback.serve`."""


def read_events(log: Path) -> Events:
    """What a program has written."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def connections(told: Events) -> Events:
    """Those that are of connections."""
    return [event for event in told if event["event"] == "connection"]


class ServerError(Exception):
    """A server that ended before it listened, with what it said on standard error."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.code = code


class Server:
    """A server on a free port, from when it listens."""

    def __init__(
        self,
        build: Path,
        identity: Path,
        log: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        runs_it: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        """*runs_it* is what starts the program, where that does not do so itself; 0 is any free port."""
        self.programs, self.identity, self.log = build / "bin", identity, log
        self.environment = os.environ | dict(environment or {})
        self.before_client: list[str] = []
        """What starts a client, where it does not start by itself."""
        self.signature = options[options.index("--signature") + 1] if "--signature" in options else None
        argv = [
            *runs_it,
            str(self.programs / "server"),
            "--listen",
            f"127.0.0.1:{port}",
            "--events",
            str(log),
            *options,
        ]
        argv += ["--certificate", str(identity / "server.pem"), "--private-key", str(identity / "server.key")]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=self.environment)
        deadline = time.monotonic() + READY_S
        while not (ready := [event for event in self.events() if event["event"] == "ready"]):
            if self.process.poll() is not None:
                raise ServerError(self.process.communicate()[1], self.process.returncode)
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)
        self.port: int = ready[0]["port"]
        self.address = f"127.0.0.1:{self.port}"

    def events(self) -> Events:
        """What it has told, but for a line that is not whole yet."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def cpu_ticks(self) -> int:
        # proc(5): utime and stime are the fields 14 and 15, the name before may have blanks
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def kill(self) -> None:
        """End it if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def stop(self, after: int = 0) -> Events:
        """Its connections; it is ended once it has told of so many, or does not for 20 s."""
        deadline = time.monotonic() + 20
        while len(connections(self.events())) < after and time.monotonic() < deadline:
            time.sleep(0.01)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        return connections(self.events())

    def stopped(self, after: int = 0) -> events.EndpointLog[events.ServerConnection]:
        """The same, as the models of events have it."""
        self.stop(after)
        return events.read(self.log, "server")

    def client(self, *options: str, port: int | None = None, programs: Path | None = None) -> tuple[list[str], Path]:
        """The command line of a client, which knows the server's CA and signature, and its file of events."""
        log = self.log.with_name(f"client-{time.monotonic_ns()}.jsonl")
        given = {
            "--connect": f"127.0.0.1:{port or self.port}",
            "--server-name": "server",
            "--ca": str(self.identity / "ca.pem"),
            "--bytes": None if "--page" in options else "1",
            "--timeout": "20",
            "--signature": self.signature,
        }
        argv = [str((programs or self.programs) / "client"), "--events", str(log), *options]
        argv += [part for name, value in given.items() if value and name not in options for part in (name, value)]
        return argv, log

    def run(self, *options: str, **place: Any) -> tuple[int, Events]:
        """Runs a client; returns its exit code and all that it tells."""
        argv, log = self.client(*options, **place)
        argv = [*self.before_client, *argv]
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=120, check=False, env=self.environment)
        return done.returncode, read_events(log)

    def download(self, *options: str, **place: Any) -> tuple[int, Events]:
        """Runs a client; returns its exit code and its connections."""
        code, told = self.run(*options, **place)
        return code, connections(told)

    def fetch(self, *options: str, **place: Any) -> Events:
        """Connections of a client, whose exit code tells whether one failed."""
        code, seen = self.download(*options, **place)
        assert code == (0 if all(connection["ok"] for connection in seen) else 1)
        return seen


class Loopback:
    """Starts servers, and ends those that a test left running."""

    def __init__(self, build_of: Callable[[str, str], Path], made: Callable[[str], Path], directory: Path) -> None:
        self.build_of, self.made, self.directory = build_of, made, directory
        self.servers: list[Server] = []

    def serve(
        self,
        library: str,
        *options: str,
        flavour: str = "stock",
        signature: str = "ecdsa-p-256",
        identity: Path | None = None,
        **place: Any,
    ) -> Server:
        """A server with a certificate of this signature algorithm, or those of a directory."""
        log = self.directory / f"server-{len(self.servers)}.jsonl"
        chosen = options if "--signature" in options else ("--signature", signature, *options)
        identity = identity or self.made(signature)
        server = Server(self.build_of(library, flavour), identity, log, *chosen, **place)
        if library == "msquic":
            # It gives a client new connection IDs when the client moves to another processor. A client that moves
            # twice in quick succession gets more than it accepts (docs/libraries/msquic.md).
            server.before_client = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        self.servers.append(server)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.kill()
