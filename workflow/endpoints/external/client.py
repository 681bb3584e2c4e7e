"""The client: runs `run-client.sh` once for every connection and checks the files that it downloaded."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Sequence
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
    files,
    workload,
)
from quicbed_contract import FAILED, content
from quicbed_contract.clock import now_ns
from quicbed_contract.events import one_line
from quicbed_contract.options import ClientOptions, from_command_line, unsupported

SCRIPT = "run-client.sh"


def main() -> int:
    """Download; returns the exit code."""
    if sys.argv[1:] == ["--check"]:
        problem = check("client")
        print(problem or "", end="")
        return FAILED if problem else 0
    options = cast(ClientOptions, from_command_line("client", SETTINGS["describe"]))
    events = ExternalEvents("client", options)
    if (reason := unsupported(options, SETTINGS["describe"])) is not None:
        return events.unsupported(reason)
    folder = Folder("client", options.events)
    try:
        environment = _prepare(folder, options)
        for index in range(options.connections):
            record = _connect(folder, options, environment, index, events.options)
            events.connection(record)
            if options.connections > 1:
                folder.put_aside(index)
            if record.get("hung"):
                break  # the others would take as long
        _copy_keys(folder, options)
    except Stopped:
        return events.error("stopped by a signal")
    except Unsupported as error:
        return events.unsupported(str(error))
    except (FolderError, OSError) as error:
        return events.error(one_line(error))
    finally:
        folder.stop()
        folder.close()
    events.end()
    return FAILED if events.failed else 0


def _prepare(folder: Folder, options: ClientOptions) -> dict[str, str]:
    if not (options.connect and options.server_name and options.ca and options.bytes is not None):
        raise RuntimeError("the command line was not checked")
    certs = folder.directory("certs")
    shutil.copyfile(options.ca, certs / "ca.pem")
    host, port = options.connect[0], options.connect[1]
    environment = folder.environment(
        options,
        CERTS=f"{certs}/",
        DOWNLOADS=f"{folder.directory('downloads')}/",
        REQUESTS=" ".join(f"https://{options.server_name}:{port}/{size}" for size in files(options.bytes)),
        ROLE="client",
    )
    folder.set_up(options.server_name, host, environment)
    return environment


def _connect(
    folder: Folder, options: ClientOptions, environment: dict[str, str], index: int, in_force: dict[str, Any]
) -> dict[str, Any]:
    """Run the script once; returns its `connection` event, and adds to the options that are *in_force*."""
    assert options.bytes is not None  # noqa: S101 (the command line has it)
    downloads = folder.scratch / "downloads"
    stopwatch = folder.logs / "time.json"
    stopwatch.unlink(missing_ok=True)
    record: dict[str, Any] = {"index": index, "ok": False, "bytes_requested": options.bytes, "bytes_received": 0}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = folder.start(SCRIPT, environment)
    code = folder.wait(options.timeout)
    end = now_ns()
    left = folder.kill_left()
    if code is None:
        hung = f"{SCRIPT} hung: not finished after {options.timeout:g} s"
        return record | {"error": hung, "t_close": end, "hung": True}
    if code:
        return record | {"error": folder.describe_exit(SCRIPT, code), "t_close": end}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    received, problem = verify(downloads, options.bytes)
    if problem is None and left:
        problem = f"{SCRIPT} left processes behind that had to be killed: {', '.join(left)}"
    try:
        duration = measured_ns(stopwatch)
    except FolderError as error:
        duration, problem = None, problem or str(error)
    if problem is None and duration is not None and duration > end - begin:
        problem = f"time.json: {duration / 1e9:g} s, longer than {SCRIPT} ran, {(end - begin) / 1e9:g} s"
    start = end - duration if duration is not None and problem is None else begin
    # neither is told apart from the other: the interval is the script's whole run, or as long as that of its own
    # time.json, whose clock may be any, and then put at the end
    times = {"t_client_hello": start, "t_request_sent": start, "t_last_byte": end}
    reported: dict[str, Any] = {}
    cpu = _processor_time(before, after)
    try:
        report = told.read(folder.reported, "client", begin, end)
        in_force |= report.options
        reported = _agreed(report.connections)
        if SETTINGS["times"]:
            times = _own_times(report.connections)
            cpu |= _own_processor_time(report.connections[0])
    except (told.ReportError, FolderError) as error:
        problem = problem or str(error)
    return record | {
        **reported,
        "ok": problem is None,
        "error": problem,
        "bytes_received": received,
        "content_ok": problem is None,
        **times,
        "t_close": end,
        **cpu,
    }


def _agreed(connections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a script reports of its connection, or that all its connections have negotiated."""
    if not connections:
        return {}
    counts = [name for name in connections[0] if "packets" in name or "bytes_" in name]
    names = [*told.NEGOTIATED, "hello_retry_request", "retry", *(counts if len(connections) == 1 else ())]
    for name in names:
        if len({one.get(name) for one in connections}) > 1:
            raise FolderError(f"{Folder.REPORT}: the connections differ in `{name}`")
    return {name: connections[0].get(name) for name in names}


def _own_times(connections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The times of the one connection, as the folder states that they are reported."""
    if len(connections) != 1:
        raise FolderError(f"{Folder.REPORT}: has {len(connections)} connections, and quicbed.yaml says `times: true`")
    known = {name: value for name, value in connections[0].items() if name.startswith("t_") and name != "t_close"}
    needed = ("t_client_hello", "t_handshake_complete", *(("t_request_sent", "t_last_byte") if _is_bulk() else ()))
    if missing := [name for name in needed if known.get(name) is None]:
        raise FolderError(f"{Folder.REPORT}: has no `{missing[0]}`, and quicbed.yaml says `times: true`")
    return known


def _own_processor_time(connection: dict[str, Any]) -> dict[str, int]:
    """That of the connection, without the start of the program, where the script reports it."""
    return {name: value for name, value in connection.items() if name.startswith("cpu_") and value is not None}


def _is_bulk() -> bool:
    return workload() == "bulk"


def _processor_time(before: resource.struct_rusage, after: resource.struct_rusage) -> dict[str, int | None]:
    """That of the script with all it started; of a handshake it is not told, because the start of the programs takes
    more.
    """
    if not _is_bulk():
        return {"cpu_user_ns": None, "cpu_system_ns": None}
    return {
        "cpu_user_ns": round((after.ru_utime - before.ru_utime) * 1e6) * 1000,
        "cpu_system_ns": round((after.ru_stime - before.ru_stime) * 1e6) * 1000,
    }


def verify(downloads: Path, total: int) -> tuple[int, str | None]:
    """Bytes of the files downloaded, and what is wrong with them if anything; they are removed."""
    received, problem = 0, None
    for size in files(total):
        file = downloads / str(size)
        if not file.is_file():
            problem = problem or f"{SCRIPT} exited with 0 without the file {size} in DOWNLOADS"
            continue
        checker = content.Checker(size)
        with file.open("rb") as data:
            while part := data.read(content.PERIOD):
                checker.receive(part)
        received += checker.received
        verdict = checker.verdict()
        if verdict:
            problem = problem or f"file {size}: {verdict}"
    for file in downloads.iterdir():
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    return received, problem


def measured_ns(file: Path) -> int | None:
    """Duration in nanoseconds that a script measured itself, None if it wrote none."""
    if not file.exists():
        return None
    try:
        data = json.loads(file.read_bytes())
        duration = data["end"] - data["start"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError('time.json: is not {"start": ns, "end": ns}') from None
    if not isinstance(duration, int) or duration <= 0:
        raise FolderError("time.json: `end` is not after `start`, in whole nanoseconds")
    return duration


def _copy_keys(folder: Folder, options: ClientOptions) -> None:
    keys = folder.logs / "keys.log"
    if options.key_log and keys.is_file():
        with open(options.key_log, "ab") as out:
            out.write(keys.read_bytes())
