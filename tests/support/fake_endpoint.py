"""An endpoint that keeps the contract without any network, and misbehaves on demand.

`behaviour.json` beside the program maps a role to what it does, one entry per execution, the last one repeating: `ok`,
`hang`, `crash`, `garbage`, `truncated`, `short`, `wrong-content`, `wrong-cipher`, `wrong-group`, `wrong-aead`,
`unsupported`, `never-ready`, `ignore-sigterm`, `failed-connection`, `slow` (tells of ten seconds of run delay),
`hello-retry-request`, `wrong-signature`, `wrong-retry` (the opposite of what was asked for), `lost-connection` (the
server forgets one), `lacking` (an algorithm without primitives), `older` (the same on an older processor), `by-file`
(the server tells of a connection for every size it was told to expect), `by-file-short` (it sent a byte less), `loader`
(ends as where a library is missing), `behind` (the client begins late where it is asked for a rate),
`early` (the client closes what it is to hold open), `lasting` and `trailing` (the client takes half a second, and three
times as long).
Of several connections the second is the one that is wrong.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
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
TLS12_SUITES = {"aes-128-gcm": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
BEHIND_NS = 50_000_000
ERRORS = {
    "failed-connection": "handshake failed: TLS alert bad_certificate (42)",
    "wrong-content": "content differs at byte 3",
}


def main() -> int:
    role = Path(sys.argv[0]).name
    options: dict[str, str] = {}
    repeated: dict[str, list[str]] = {}
    for name, value in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        options[name] = value
        repeated.setdefault(name, []).append(value)
    here = Path(sys.argv[0]).parent
    behaviour = behaviour_of(here, role)
    if behaviour == "loader":
        print(f"{role}: error while loading shared libraries: libx.so", file=sys.stderr)
        return 127
    with Path(options["--events"]).open("w", encoding="utf-8") as out:

        def emit(event: str, **fields: object) -> None:
            out.write(json.dumps({"event": event, "t": time.monotonic_ns(), **fields}) + "\n")
            out.flush()

        asked = options.get("--gso")
        sending = {"gso": asked != "off", "gso_paced": asked == "paced"} if asked is not None else {}
        if "--gro" in options:
            sending["gro"] = options["--gro"] == "on"
        if "--io" in options:
            sending |= {"gso": False, "gro": False, "io": "gso" if behaviour == "other io" else options["--io"]}
        if "--pacing" in options:
            sending["pacing"] = "off" if behaviour == "unpaced" else options["--pacing"]
        if "--etf" in options:
            sending["etf"] = behaviour != "no etf"
        seen = {"--congestion-control": "congestion_control", "--initial-size": "initial_size"}
        emit(
            "start",
            contract=2,
            role=role,
            library="fake",
            version="1",
            pid=os.getpid(),
            options={key: options[name] for name, key in seen.items() if name in options}
            | sending
            | {"aes_hardware": None if behaviour == "silent" else "OPENSSL_ia32cap" not in os.environ}
            | ({"receive_buffer": "much"} if behaviour == "odd-option" else {}),
        )
        if behaviour == "unsupported":
            emit("unsupported", reason="this build cannot do that")
            emit("end", **end(0, 0))
            return 127
        if role == "primitives":
            return primitives(behaviour, repeated, emit)
        if role == "server":
            return server(behaviour, options, [int(size) for size in repeated["--content"]], emit)
        return client(behaviour, options, emit, out)


def behaviour_of(here: Path, role: str) -> str:
    plan = json.loads((here / "behaviour.json").read_text(encoding="utf-8")).get(role, ["ok"])
    count = 0
    # where it may not write there, it behaves the same each time
    with contextlib.suppress(OSError), (here / f"{role}.count").open("a+", encoding="utf-8") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)  # copies begin at once
        counter.seek(0)
        # empty where the driver and what it started were killed
        count = int(counter.read() or 0)
        counter.truncate(0)
        counter.write(str(count + 1))
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


def tls_name(kind: str, name: str) -> str:
    """What a TLS library calls an algorithm, from the table beside this program."""
    table = Path(sys.argv[0]).with_name("algorithms.csv")
    with table.open(encoding="utf-8") as rows:
        return next(row["tls_name"] for row in csv.DictReader(rows) if (row["kind"], row["name"]) == (kind, name))


def connection(behaviour: str, options: dict[str, str], index: int = 0) -> dict[str, object]:
    protection = options.get("--header-protection")
    version = options.get("--tls-version", "TLSv1.3")
    suites = SUITES if version == "TLSv1.3" else TLS12_SUITES
    return {
        "index": index,
        "ok": behaviour not in ERRORS,
        "error": ERRORS.get(behaviour),
        "cipher": "TLS_AES_256_GCM_SHA384" if behaviour == "wrong-cipher" else suites[options["--cipher"]],
        "group": "secp384r1" if behaviour == "wrong-group" else tls_name("group", options["--group"]),
        "signature": "ed448" if behaviour == "wrong-signature" else tls_name("signature", options["--signature"]),
        "hello_retry_request": behaviour == "hello-retry-request",
        "retry": (options["--retry"] == "on") != (behaviour == "wrong-retry") if "--retry" in options else None,
        "alpn": "hq-interop",
        "tls_version": "TLSv1.3" if behaviour == "wrong-version" else version,
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


def behaviours(behaviour: str, count: int) -> list[str]:
    """What each of several connections does."""
    wrong = 0 if count == 1 else 1
    return [behaviour if index == wrong else "ok" for index in range(count)]


def server(behaviour: str, options: dict[str, str], files: list[int], emit) -> int:
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
    # the client's events tell how many connections there were, of which each of several copies had its share
    log = Path(options["--events"]).with_name("client.jsonl")
    count = log.read_text(encoding="utf-8").count('"event": "connection"') if log.exists() else 1
    count //= max(1, len(list(log.parent.glob("server.jsonl.*"))))
    if behaviour == "lost-connection":
        count -= 1
    sizes = files if behaviour.startswith("by-file") else [sum(files)] * count
    if behaviour == "by-file-short":
        sizes[-1] -= 1
    for index, one in enumerate(behaviours(behaviour, len(sizes))):
        now = time.monotonic_ns()
        emit(
            "connection",
            **connection(one, options, index),
            t_accept=now - 5_000_000,
            t_handshake_complete=now - 4_000_000,
            t_handshake_confirmed=now - 4_000_000,
            t_close=now - 1_000_000,
            bytes_sent=sizes[index],
        )
    emit("end", **end(len(sizes), 0))
    return 0


def client(behaviour: str, options: dict[str, str], emit, out) -> int:
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if "--key-log" in options:
        Path(options["--key-log"]).write_text("# secrets\n", encoding="utf-8")
    wanted = int(options["--bytes"])
    count = int(options["--connections"])
    failed = 0
    held: list[dict[str, object]] = []
    if behaviour == "behind":
        time.sleep(BEHIND_NS / 1e9)
    for index, one in enumerate(behaviours(behaviour, count)):
        begin = time.monotonic_ns()
        # a round trip for the handshake, one for the request
        rtt = round(float(os.environ.get("QUICBED_FAKE_RTT_MS", "0")) * 1e6)
        time.sleep({"lasting": 0.5, "trailing": 1.5}.get(behaviour, 0.02) / count + 2 * rtt / 1e9)
        now = time.monotonic_ns()
        if one == "garbage":
            out.write("goodput: 100 furlongs\n")
        step = (now - begin - 2 * rtt) // 10
        told = dict(
            **connection(one, options, index),
            **intended(behaviour, options, begin),
            t_client_hello=begin,
            t_handshake_complete=begin + rtt + (index + 1) * step // count,
            t_handshake_confirmed=begin + rtt + 4 * step,
            t_request_sent=begin + rtt + 2 * step,
            t_first_byte=begin + 2 * rtt + 5 * step,
            t_last_byte=begin + 2 * rtt + 9 * step,
            t_close=now,
            bytes_requested=wanted,
            bytes_received=wanted - 1 if one == "short" else wanted,
            content_ok=one not in {"short", "wrong-content"},
        )
        failed += one in ERRORS
        if "--hold" in options:
            held.append(told)
        else:
            emit("connection", **told)
    if held:
        print(f"held {count}", flush=True)
        time.sleep(0.1)
        for told in held:
            emit("connection", **(told if behaviour == "early" else told | {"t_close": time.monotonic_ns()}))
    if behaviour == "truncated":
        out.write('{"event": "end", "t": 12')
        return 0
    emit("end", **end(count, failed, delay=10**10 if behaviour == "slow" else 0))
    return int(failed > 0)


def intended(behaviour: str, options: dict[str, str], begin: int) -> dict[str, int]:
    """When a connection of a rate was to begin, and did."""
    if "--rate" not in options:
        return {}
    return {"t_intended": begin - (BEHIND_NS if behaviour == "behind" else 1_000), "t_begun": begin}


OPERATIONS = {"group": ("keygen", "encapsulate", "decapsulate"), "signature": ("sign", "verify", "verify-chain")}


def primitives(behaviour: str, repeated: dict[str, list[str]], emit) -> int:
    named = [("group", name) for name in repeated.get("--group", [])]
    named += [("signature", value.partition("=")[0]) for value in repeated.get("--signature", [])]
    for kind, name in named:
        if (behaviour == "lacking" and kind == "signature") or (behaviour == "older" and name.endswith("-avx2")):
            emit("unsupported", name=name, reason="this build has no such algorithm")
            continue
        for operation in OPERATIONS[kind]:
            emit(
                "primitive",
                kind=kind,
                name=name,
                operation=operation,
                implementation="fake 1",
                samples_ns=[30_000, 10_000, 20_000],
                bytes=None if operation in {"decapsulate", "verify"} else 100,
            )
    if behaviour == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    emit("end", **end(0, 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
