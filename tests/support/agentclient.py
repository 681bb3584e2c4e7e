"""The agent of a host without SSH: the controller's end of its pipes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quicbed.testbed import agent

PATIENCE_S = 20.0


class Client:
    """The controller's end of the pipes."""

    def __init__(self, directory: Path, program: str = agent.__file__) -> None:
        argv = [sys.executable, "-I", program, "serve", str(directory)]
        self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.numbers = itertools.count()

    def send(self, op: str, blob: bytes = b"", **more: Any) -> None:
        assert self.popen.stdin is not None
        header = json.dumps({"id": next(self.numbers), "op": op, **more}).encode()
        self.popen.stdin.write(agent.LENGTHS.pack(len(header), len(blob)) + header + blob)
        self.popen.stdin.flush()

    def receive(self) -> Any:
        assert self.popen.stdout is not None
        header, size = agent.LENGTHS.unpack(self.popen.stdout.read(agent.LENGTHS.size))
        answer = json.loads(self.popen.stdout.read(header))
        blob = self.popen.stdout.read(size)
        if "error" in answer:
            raise agent.AgentError(answer["error"])
        return blob if answer.get("bytes") else answer["result"]

    def ask(self, op: str, blob: bytes = b"", **more: Any) -> Any:
        self.send(op, blob, **more)
        return self.receive()

    def end(self) -> None:
        assert self.popen.stdin is not None
        if not self.popen.stdin.closed:
            self.popen.stdin.close()
        self.popen.wait(PATIENCE_S)
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()


def holder(session: str) -> dict[str, Any]:
    return {"session": session, "who": f"controller of {session}"}


def taken(host: Callable[[], Client], session: str = "a") -> Client:
    client = host()
    assert client.ask("acquire", holder=holder(session)) is None
    client.ask("recover")
    return client


def spawn(client: Client, directory: Path, script: str, **more: Any) -> int:
    out, err = directory / "out", directory / "err"
    pid: int = client.ask("spawn", argv=["sh", "-c", script], stdout=str(out), stderr=str(err), **more)
    return pid
