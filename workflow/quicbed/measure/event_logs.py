"""What programs of endpoints say when they end: their events, and why there are none."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError, one_line, signal_name
from quicbed.config.model import Limits, Side
from quicbed.contract import events
from quicbed.measure.attempt import Attempt
from quicbed.testbed import Exit


@dataclass(frozen=True)
class Logs:
    """The events of both programs of a run."""

    client: events.EndpointLog[events.ClientConnection]
    server: events.EndpointLog[events.ServerConnection]


def read_logs(attempt: Attempt, directory: Path, exits: Mapping[Side, Exit | None], limits: Limits) -> Logs | None:
    """Both event files, after the exit codes have been looked at; None when the run has failed."""
    role: Side
    for role in ("server", "client"):
        # the dynamic loader and shells exit with 127 too, and write no event
        if (
            (exit_ := exits[role]) is not None
            and exit_.returncode == 127
            and (reason := unsupported_event(directory / f"{role}.jsonl")) is not None
        ):
            attempt.status, attempt.reason = "unsupported", reason
            return None
    problems = [attempt.reason] if attempt.reason else []
    client = server = None
    for role in ("client", "server"):
        if (exit_ := exits[role]) is None:
            continue
        if exit_.returncode != 0 or exit_.exceeded is not None:
            problems.append(exit_text(role, exit_, directory))
            continue
        try:
            if role == "client":
                client = events.read(directory / "client.jsonl", "client", limits)
            else:
                server = events.read(directory / "server.jsonl", "server", limits)
        except events.EventError as error:
            problems.append(str(error).replace(f"{directory}/", ""))
    if client is None or server is None or problems:
        attempt.status = "failed"
        attempt.reason = one_line("; ".join(problems)) or "the run did not finish"
        return None
    return Logs(client, server)


def exit_text(role: str, ended: Exit, directory: Path) -> str:
    """How a program ended that ended badly, and what it says of that."""
    if ended.exceeded is not None:
        return f"the {role} {ended.exceeded}"
    code = ended.returncode
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
    if code == -signal.SIGXFSZ:
        how += ", as a file was to be larger than limits.file_mib"
    detail = complaint(directory / f"{role}.jsonl")
    with contextlib.suppress(UntrustedError):
        if not detail:
            said = untrusted.end(directory / f"{role}.err", 4096)
            detail = one_line(said.decode(errors="replace").strip()[-300:])
    return f"the {role} {how}" + (f": {detail}" if detail else "")


def complaint(log: Path) -> str:
    """What a program's events, which may end anywhere, say went wrong: connections, then the program; may be empty."""
    connections: list[str] = []
    reason = ""
    for event in events.said(log):
        if event.get("event") == "connection":
            connections.append(_text(event.get("error")))
        else:
            reason = _text(event.get("reason")) or reason
    errors = [error for error in connections if error]
    complaints = [failures(len(errors), len(connections), errors[0])] if errors else []
    return "; ".join(complaints + ([reason] if reason else []))


def failures(failed: int, connections: int, first: str) -> str:
    """So many of so many connections failed."""
    return first if connections == 1 else f"{failed} of {connections} connections failed, the first because: {first}"


def unsupported_event(log: Path) -> str | None:
    """Why a program says that it cannot do what it was asked for, None if it does not say so."""
    for event in events.said(log):
        if event.get("event") == "unsupported":
            return _text(event.get("reason")) or "the program does not say why"
    return None


def _text(value: object) -> str:
    """What a program says as a text; empty for what is none."""
    return one_line(value) if isinstance(value, str) else ""
