"""Copies of an endpoint's program as one program of the contract (workflow/endpoints/ENDPOINT.md), for all processors.

    fleet COPIES PROGRAM OPTION...

Copy *i* listens on, or connects to, the port of the options plus *i*, and has its share of the connections and of their
rate: independent Poisson processes are together one of the sum of their rates. Copy *i* of the client is therefore
served by copy *i* of the server. When all copies have ended, their events are merged into those of one program.

It runs with whatever Python a host has, and needs its standard library alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLL_S = 0.01
SEEDS = 1 << 63


def of_copy(options: Sequence[str], number: int, copies: int) -> list[str]:
    """The options of copy *number*, from those of all copies together."""
    own = list(options)
    for at, (name, value) in enumerate(itertools.pairwise(options), start=1):
        if name == "--events":
            own[at] = f"{value}.{number}"
        elif name in ("--listen", "--connect"):
            address, _, port = value.rpartition(":")
            own[at] = f"{address}:{int(port) + number}"
        elif name == "--connections":
            each, left = divmod(int(value), copies)
            own[at] = str(each + (number < left))
        elif name == "--rate":
            own[at] = f"{float(value) / copies:.9g}"
        elif name == "--seed":
            own[at] = str((int(value) + number) % SEEDS)
    return own


def events_of(options: Sequence[str]) -> Path:
    """The file that events go to."""
    return Path(options[options.index("--events") + 1])


class Fleet:
    """The copies while they run."""

    def __init__(self, copies: int, program: str, options: Sequence[str]) -> None:
        self._events = events_of(options)
        self._ended = False
        self._running: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGTERM, self._terminate)
        self._options = [of_copy(options, number, copies) for number in range(copies)]
        for own in self._options:
            self._running.append(subprocess.Popen([program, *own]))
        if self._ended:  # meanwhile
            self._terminate()
        self._serves = "--listen" in options

    def _terminate(self, *_: object) -> None:
        self._ended = True
        for process in self._running:
            if process.returncode is None:
                process.terminate()

    def run(self) -> int:
        """How the worst of them ended, once all have."""
        with self._events.open("w", encoding="utf-8") as out:
            started = self._serves and self._ready()
            if started:
                # the driver starts the clients when it reads this
                self._head(out)
                out.flush()
            codes = [process.wait() for process in self._running]
            logs = [_read(events_of(own)) for own in self._options]
            if not started:
                _write(out, [*_of(logs[0], "start")])
            for events in (_connections(logs), _of_all(logs, "unsupported"), _of_all(logs, "error"), _end(logs)):
                # now is when they are written
                _write(
                    out, [event | {"t": time.monotonic_ns()} if isinstance(event, dict) else event for event in events]
                )
        for own in self._options:
            events_of(own).unlink(missing_ok=True)
        killed = [code for code in codes if code < 0]
        return killed[0] if killed else max(codes)

    def _ready(self) -> bool:
        """Whether all copies accept connections; not when one has ended before."""
        waiting = [events_of(own) for own in self._options]
        while waiting:
            if any(process.poll() is not None for process in self._running):
                return False
            waiting = [log for log in waiting if not any(_of(_read(log), "ready"))]
            time.sleep(POLL_S)
        return True

    def _head(self, out: Any) -> None:
        first = _read(events_of(self._options[0]))
        _write(out, [event for kind in ("start", "ready") for event in _of(first, kind)])


def _read(log: Path) -> list[Any]:
    """Events as far as they are complete lines; what is no object stays text, which the reader names."""
    events: list[Any] = []
    with contextlib.suppress(OSError):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = line
            events.append(event if isinstance(event, dict) else line)
    return events


def _of(log: Sequence[Any], kind: str) -> list[dict[str, Any]]:
    found = [event for event in log if isinstance(event, dict) and event.get("event") == kind]
    # it is this program that the driver has started
    return [event | {"pid": os.getpid()} if kind == "start" else event for event in found]


def _of_all(logs: Sequence[Sequence[Any]], kind: str) -> list[dict[str, Any]]:
    return [event for log in logs for event in _of(log, kind)]


def _begin(connection: dict[str, Any]) -> int:
    times = (connection.get(name) for name in ("t_intended", "t_accept", "t_client_hello"))
    return next((time for time in times if isinstance(time, int)), 0)


def _connections(logs: Sequence[Sequence[Any]]) -> list[Any]:
    """Those of all copies in the order in which they began, numbered anew; what is no event at all comes first."""
    found = sorted(_of_all(logs, "connection"), key=_begin)
    strange = [event for log in logs for event in log if not isinstance(event, dict)]
    return [*strange, *(event | {"index": index} for index, event in enumerate(found))]


def _end(logs: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """One `end` with the sums of all copies; none where a copy has none, because it crashed."""
    ends = [event for log in logs for event in _of(log, "end")[-1:]]
    if len(ends) < len(logs):
        return []
    merged: dict[str, Any] = {"event": "end"}
    for name in ("connections", "failed", "cpu_user_ns", "cpu_system_ns", "run_delay_ns", "max_rss_bytes"):
        values = [end.get(name) for end in ends]
        merged[name] = None if None in values else sum(values)
    return [merged]


def _write(out: Any, events: Sequence[Any]) -> None:
    for event in events:
        out.write(event if isinstance(event, str) else json.dumps(event) + "\n")


def main() -> int:
    """Run the copies; a signal that ended one ends this program too."""
    if len(sys.argv) < 4 or not sys.argv[1].isdigit() or "--events" not in sys.argv:
        print("usage: fleet COPIES PROGRAM OPTION..., with --events FILE among the options", file=sys.stderr)
        return 2
    copies, program, *options = sys.argv[1:]
    code = Fleet(int(copies), program, options).run()
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
