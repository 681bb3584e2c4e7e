"""An endpoint that does no QUIC and misbehaves, or tells what it is given, as the variable MISBEHAVE says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    how = os.environ.get("MISBEHAVE", "")
    if os.environ["TESTCASE"] not in ("goodput", "handshake"):
        return 0 if how == "does anything" else 127
    if how == "leaves children":
        subprocess.Popen(["sleep", "987"], start_new_session=True)
    if how == "exits with 3":
        print("something of its own went wrong")
        return 3
    if how == "refuses":
        return 127
    if how == "tells":
        tell()
    if sys.argv[1] == "server":
        return serve(how)
    if how == "hangs":
        time.sleep(987)
    if how in ("works on", "tells a nanosecond"):
        return work_on(how)
    for request in os.environ["REQUESTS"].split():
        size = int(request.rpartition("/")[2])
        data = bytearray((b"".join(b"quicbed%08x\n" % i for i in range(4093)) * (size // 65488 + 1))[:size])
        if how == "wrong bytes":
            data[size // 2] ^= 1
        if how == "too short":
            data.pop()
        if how != "no file":
            (Path(os.environ["DOWNLOADS"]) / str(size)).write_bytes(data)
    if text := os.environ.get("REPORT"):
        Path(os.environ["QUICBED_EVENTS"]).write_text(text)
    if how == "reports":
        report()
    if how == "keeps a ticket":
        ticket = Path(os.environ["LOGS"]) / "ticket"
        if ticket.exists():
            print("it is resumed")
            return 3
        ticket.touch()
    stopwatch = Path(os.environ["LOGS"]) / "time.json"
    times = {
        "unreadable time": '{"start": 1, "e',
        "time goes back": '{"start": 2, "end": 1}',
        "too much time": '{"start": 0, "end": 99000000000}',
        "its own time": '{"start": 5, "end": 1000005}',
    }
    if how in times:
        stopwatch.write_text(times[how])
    return 0


def work_on(how: str) -> int:
    """Take a tenth of the files at a time, counted in `arrived`, and then something else to do."""
    logs = Path(os.environ["LOGS"])
    begin = time.monotonic_ns()
    for _ in range(10):
        time.sleep(0.01)
        with (logs / "arrived").open("ab") as arrived:
            arrived.write(b".")
    end = begin + 1 if how == "tells a nanosecond" else time.monotonic_ns()
    (logs / "time.json").write_text(json.dumps({"start": begin, "end": end}))
    for request in os.environ["REQUESTS"].split():
        size = int(request.rpartition("/")[2])
        data = (b"".join(b"quicbed%08x\n" % i for i in range(4093)) * (size // 65488 + 1))[:size]
        (Path(os.environ["DOWNLOADS"]) / str(size)).write_bytes(data)
    time.sleep(1)
    return 0


def report() -> None:
    """Report a connection of a millisecond that ended a millisecond ago."""
    end = time.monotonic_ns()
    time.sleep(0.002)
    times = {"t_client_hello": end, "t_handshake_complete": end + 500_000}
    times |= {"t_request_sent": end + 500_000, "t_first_byte": end + 600_000, "t_last_byte": end + 1_500_000}
    spent = {"cpu_user_ns": 3000, "cpu_system_ns": 2000}
    lines = [
        {"event": "start", "options": {"receive_buffer": 1234}},
        {"event": "connection", "cipher": "TLS_AES_128_GCM_SHA256", "group": "secp256r1", **times, **spent},
    ]
    Path(os.environ["QUICBED_EVENTS"]).write_text("\n".join(map(json.dumps, lines)))


def tell() -> None:
    """Write what the script is given to LOGS and, where there is one, to QLOGDIR."""
    environment = dict(os.environ)
    told = {
        "directory": str(Path.cwd()),
        "environment": environment,
        "files": {
            name: sorted(path.name for path in Path(environment[name]).iterdir())
            for name in ("WWW", "CERTS")
            if name in environment
        },
        "variables": json.loads(Path("/tmp/interop-variables.json").read_text()),
    }
    for name in ("LOGS", "QLOGDIR"):
        if name in environment:
            (Path(environment[name]) / "told.json").write_text(json.dumps(told))


def serve(how: str) -> int:
    if how == "never ready":
        time.sleep(987)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((os.environ["IP"], int(os.environ["PORT"])))
        if how == "reports late":
            time.sleep(0.1)
            start = {"event": "start", "options": {"receive_buffer": 1234}}
            Path(os.environ["QUICBED_EVENTS"]).write_text(json.dumps(start) + "\n")
        time.sleep(987)
    return 0


sys.exit(main())
