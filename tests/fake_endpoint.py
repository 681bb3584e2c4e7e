"""An endpoint that keeps the contract without any network, and misbehaves on demand.

`behaviour.json` beside the program maps a role to what it does: `ok`, `hang`, `crash`, `garbage`, `truncated`, `short`,
`wrong-content`, `wrong-cipher`, `wrong-aead`, `unsupported`, `never-ready`, `ignore-sigterm`, `failed-connection`,
`slow` (busy waiting is reported as run delay), with an optional list of the first executions it applies to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SUITES = {
    "aes-128-gcm": "TLS_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_CHACHA20_POLY1305_SHA256",
}
ERRORS = {
    "failed-connection": "handshake failed: bad certificate",
    "wrong-content": "content differs at byte 3",
}


def main() -> int:
    role = Path(sys.argv[0]).name
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    here = Path(sys.argv[0]).parent
    behaviour = behaviour_of(here, role)
    with Path(options["--events"]).open("w", encoding="utf-8") as out:

        def emit(event: str, **fields: object) -> None:
            out.write(json.dumps({"event": event, "t": time.monotonic_ns(), **fields}) + "\n")
            out.flush()

        if behaviour == "unsupported":
            emit("unsupported", reason="this build cannot do that")
            emit("end", **end(0, 0))
            return 127
        emit(
            "start",
            contract=1,
            role=role,
            library="fake",
            version="1",
            pid=os.getpid(),
            options={"congestion_control": options["--congestion-control"]},
        )
        if role == "server":
            return server(behaviour, options, emit)
        return client(behaviour, options, emit, out)


def behaviour_of(here: Path, role: str) -> str:
    plan = json.loads((here / "behaviour.json").read_text(encoding="utf-8")).get(role, ["ok"])
    counter = here / f"{role}.count"
    count = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(count + 1))
    return str(plan[min(count, len(plan) - 1)])


def end(connections: int, failed: int, delay: int = 0) -> dict[str, int]:
    return {
        "connections": connections,
        "failed": failed,
        "cpu_user_ns": 1,
        "cpu_system_ns": 1,
        "run_delay_ns": delay,
        "max_rss_bytes": 1,
    }


def connection(behaviour: str, options: dict[str, str]) -> dict[str, object]:
    protection = options.get("--header-protection")
    return {
        "index": 0,
        "ok": behaviour not in ERRORS,
        "error": ERRORS.get(behaviour),
        "cipher": "TLS_AES_256_GCM_SHA384" if behaviour == "wrong-cipher" else SUITES[options["--cipher"]],
        "group": options["--group"],
        "signature": None,
        "alpn": "hq-interop",
        "tls_version": "TLSv1.3",
        "aead": "standard" if behaviour == "wrong-aead" else options["--aead"],
        "header_protection": protection,
        "handshake_packets_sent": 3,
        "handshake_packets_received": 3,
        "handshake_bytes_sent": 3600,
        "handshake_bytes_received": 3600,
        "packets_sent": 10,
        "packets_received": 10,
        "packets_lost": 0,
        "cpu_user_ns": 1_000_000,
        "cpu_system_ns": 1_000_000,
    }


def server(behaviour: str, options: dict[str, str], emit) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "ignore-sigterm" else lambda *_: stopped.append(1))
    if behaviour == "crash":
        print("server: cannot bind", file=sys.stderr)
        return 1
    if behaviour != "never-ready":
        host, _, port = options["--listen"].rpartition(":")
        emit("ready", address=host, port=int(port))
    while not stopped:
        time.sleep(0.005)
    now = time.monotonic_ns()
    emit(
        "connection",
        **connection(behaviour, options),
        t_accept=now - 5_000_000,
        t_handshake_complete=now - 4_000_000,
        t_close=now - 1_000_000,
        bytes_sent=int(options["--content"]),
    )
    emit("end", **end(1, 0))
    return 0


def client(behaviour: str, options: dict[str, str], emit, out) -> int:
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    wanted = int(options["--bytes"])
    begin = time.monotonic_ns()
    time.sleep(0.02)
    now = time.monotonic_ns()
    content_ok = behaviour not in {"short", "wrong-content"}
    if behaviour == "garbage":
        out.write("goodput: 100 furlongs\n")
    emit(
        "connection",
        **connection(behaviour, options),
        t_client_hello=begin,
        t_handshake_complete=begin + 1_000_000,
        t_request_sent=begin + 1_100_000,
        t_first_byte=begin + 2_000_000,
        t_last_byte=now - 100_000,
        t_close=now,
        bytes_requested=wanted,
        bytes_received=wanted - 1 if behaviour == "short" else wanted,
        content_ok=content_ok,
    )
    if behaviour == "truncated":
        out.write('{"event": "end", "t": 12')
        return 0
    failed = behaviour in ERRORS
    emit("end", **end(1, int(failed), delay=(now - begin) if behaviour == "slow" else 0))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
