"""The server: makes the files that will be asked for, runs `run-server.sh` and waits until its UDP port is bound."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any, cast

from endpoint import told
from endpoint.folder import (
    SETTINGS,
    ExternalEvents,
    Folder,
    FolderError,
    Stopped,
    Unsupported,
    check,
)
from quicbed_contract import FAILED, content
from quicbed_contract.clock import now_ns
from quicbed_contract.events import one_line
from quicbed_contract.options import ServerOptions, from_command_line, unsupported

SCRIPT = "run-server.sh"
READY_TIMEOUT = 15.0
"""Seconds until the port must be bound."""
REPORT_TIMEOUT = 1.0
"""Seconds from then on in which a script may report what is in force."""


def main() -> int:
    """Serve until stopped; returns the exit code."""
    if sys.argv[1:] == ["--check"]:
        problem = check("server")
        print(problem or "", end="")
        return FAILED if problem else 0
    options = cast(ServerOptions, from_command_line("server", SETTINGS["describe"]))
    events = ExternalEvents("server", options)
    if (reason := unsupported(options, SETTINGS["describe"])) is not None:
        return events.unsupported(reason)
    folder = Folder("server", options.events)
    begin = now_ns()
    problem: str | None = None
    try:
        _serve(folder, options, events)
    except Stopped:
        pass
    except Unsupported as error:
        return events.unsupported(str(error))
    except (FolderError, OSError) as error:
        problem = one_line(error)
    finally:
        left = folder.stop()
        _copy_keys(folder, options)
        folder.close()
    if problem is None and left:
        problem = f"{SCRIPT} left processes behind that had to be killed: {', '.join(left)}"
    problem = problem or _report(folder, events, begin)
    if problem is not None:
        return events.error(problem)
    events.end()
    return 0


def _options(folder: Folder, begin: int) -> dict[str, Any]:
    """What the script, begun at *begin* (ns), reports to be in force; it may do so after it has bound its port."""
    expected = {"receive_buffer", "gso", "gro", "pacing"} & set(SETTINGS["told"])
    deadline = time.monotonic() + REPORT_TIMEOUT
    while True:
        options = told.read(folder.reported, "server", begin, now_ns(), unfinished=True).options
        if options or not expected or time.monotonic() > deadline:
            return options
        time.sleep(0.005)


def _report(folder: Folder, events: ExternalEvents, begin: int) -> str | None:
    """Pass on what the script has reported of its connections since *begin* (ns); returns what is wrong with that."""
    try:
        report = told.read(folder.reported, "server", begin, now_ns())
    except told.ReportError as error:
        return str(error)
    for index, values in enumerate(report.connections):
        events.connection({**values, "index": index, "ok": True, "error": None})
    return None


def _serve(folder: Folder, options: ServerOptions, events: ExternalEvents) -> None:
    if not (options.listen and options.certificate and options.private_key):
        raise RuntimeError("the command line was not checked")
    address, port = options.listen[0], options.listen[1]
    if not port:
        raise FolderError("--listen: an external server needs the number of its port")
    if bound(port):
        raise FolderError(f"UDP port {port} is in use already")
    www, certs = folder.directory("www"), folder.directory("certs")
    for size in options.content:
        write_content(www / str(size), size)
    shutil.copyfile(options.certificate, certs / "cert.pem")
    shutil.copyfile(options.private_key, certs / "priv.key")
    environment = folder.environment(
        options, WWW=f"{www}/", CERTS=f"{certs}/", IP=address, PORT=str(port), SERVERNAME="server", ROLE="server"
    )
    folder.set_up("server", address, environment)
    begin = folder.start(SCRIPT, environment)
    deadline = time.monotonic() + READY_TIMEOUT
    while not bound(port):
        if (code := folder.wait(0.005)) is not None:
            what = folder.describe_exit(SCRIPT, code) if code else f"{SCRIPT} exited with 0"
            raise FolderError(f"{what}, before it was ready")
        if time.monotonic() > deadline:
            raise FolderError(f"{SCRIPT} did not become ready: UDP port {port} not bound after {READY_TIMEOUT:g} s")
    try:
        events.options |= _options(folder, begin)
    except told.ReportError as error:
        raise FolderError(str(error)) from None
    events.ready(address, port)
    code = folder.wait(None)
    assert code is not None  # noqa: S101 (there was no time limit)
    what = folder.describe_exit(SCRIPT, code) if code else f"{SCRIPT} exited with 0"
    raise FolderError(f"{what}, without being stopped")


def _copy_keys(folder: Folder, options: ServerOptions) -> None:
    keys = folder.logs / "keys.log"
    if options.key_log and keys.is_file():
        with open(options.key_log, "ab") as out:
            out.write(keys.read_bytes())


def bound(port: int) -> bool:
    """Whether a UDP socket of this network namespace is bound to a port (proc(5), /proc/net/udp)."""
    suffix = f":{port:04X}"
    for name in ("udp", "udp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        if any(line.split()[1].endswith(suffix) for line in lines):
            return True
    return False


def write_content(file: Path, size: int) -> None:
    """A file with the first `size` bytes of content."""
    block = content.at(0, content.PERIOD)
    with file.open("wb") as out:
        for _ in range(size // content.PERIOD):
            out.write(block)
        out.write(block[: size % content.PERIOD])
