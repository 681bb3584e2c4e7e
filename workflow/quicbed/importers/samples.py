"""Made-up data in the formats of the published sets, for the benchmark of the importers and for tests.

The text files have the lines that matter and some that do not; all values are given by the caller.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20
START_NS = 1_700_000_000_000_000_000
HOSTS = {"client": "alder", "server": "birch"}
SCRIPTS = ("start-pidstat.sh", "run-ethtool.sh", "run-netstat.sh", "set-rcvbuf.sh")

Files = dict[str, bytes]
"""Contents by path."""


def output(
    server: str,
    client: str,
    *,
    size: int = 8192 * MIB,
    duration_s: float = 20.0,
    verdict: str = "✓ Test successful",
    parameters: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = SCRIPTS,
    prefix: Mapping[str, str] | None = None,
    traces: Mapping[str, str] | None = None,
    before_verdict: str = "",
) -> bytes:
    """``output.txt``; *prefix* goes before the environment of an endpoint's command, *traces* are its stderr."""
    lines = [
        f"2030-01-02 03:04:05,001 Generated random file: /srv/file of size: {size}",
        "2030-01-02 03:04:05,002 Requests: https://server:4433/file",
    ]
    for role in ("server", "client"):
        told = {
            "implementation": server if role == "server" else client,
            "interface": "eth0",
            "hostname": HOSTS[role],
            "log_dir": f"/var/log/{role}",
            "role": role,
            **(parameters or {}),
        }
        lines += ["2030-01-02 03:04:06,001 Setting variables:", repr(told), f"on the host {HOSTS[role]}"]
    for role in ("server", "client"):
        lines += [f"2030-01-02 03:04:07,001 Run pre-post-scripts/{script} on {HOSTS[role]}" for script in scripts]
    for role in ("server", "client"):
        environment = f"{(prefix or {}).get(role, '')}TESTCASE=goodput LOGS=/var/log/{role}"
        lines += [f"2030-01-02 03:04:08,001 Starting {role}:", f" ssh {HOSTS[role]} '{environment} ./run.sh'", ""]
    cleared = dict.fromkeys(["implementation", "role", *(parameters or {})], "")
    lines += ["2030-01-02 03:05:08,001 Setting variables:", repr(cleared), f"on the host {HOSTS['server']}"]
    for role in ("client", "server"):
        lines += [f"2030-01-02 03:05:09,001 {role.title()} stderr", "2030-01-02 03:05:09,001 Warning: host added."]
        lines += [(traces or {}).get(role, ""), ""]
    lines.append(f"2030-01-02 03:05:10,001 Copy {HOSTS['server']}:/var/log/server to /srv")
    if before_verdict:
        lines.append(f"2030-01-02 03:05:10,002 {before_verdict}")
    if "successful" in verdict:
        goodput = 8 * size / duration_s / 1e6
        took = f"Transferring {size / 1e6:.2f} MB took {duration_s:.3f} s. Goodput: {goodput:.3f} Mbps"
        lines.append(f"2030-01-02 03:05:11,001 {took}")
    lines.append(f"2030-01-02 03:05:11,002 {verdict}")
    return ("\n".join(lines) + "\n").encode()


def time_json(duration_s: float, start_ns: int = START_NS) -> bytes:
    """``time.json`` of a client."""
    return json.dumps({"start": start_ns, "end": start_ns + round(duration_s * 1e9)}).encode()


def ethtool(queues: int, packets: int, extra: Mapping[str, int] | None = None) -> bytes:
    """``ethtool -S`` of a NIC whose queues have each received *packets*."""
    names = ("ucast_packets", "mcast_packets", "discards", "errors", "ucast_bytes", "mcast_bytes", "buf_errors")
    lines = ["NIC statistics:"]
    for queue in range(queues):
        for direction in ("rx", "tx"):
            for name in names:
                value = packets if (direction, name) == ("rx", "ucast_packets") else 0
                lines.append(f"     [{queue}]: {direction}_{name}: {value}")
    lines += [f"     {name}: {value}" for name, value in (extra or {}).items()]
    return ("\n".join(lines) + "\n").encode()


def netstat(received: int, errors: int, sent: int) -> bytes:
    """``netstat -su``."""
    return (
        f"IcmpMsg:\n    InType3: 80\nUdp:\n    {received} packets received\n    3 packets to unknown port received\n"
        f"    {errors} packet receive errors\n    {sent} packets sent\n    {errors} receive buffer errors\n"
        "    0 send buffer errors\n    IgnoredMulti: 7\nUdpLite:\nIpExt:\n    InOctets: 12345\n"
    ).encode()


def pidstat(samples: Sequence[float], command: str = "endpoint") -> bytes:
    """``pidstat 1`` with a row for every sample, and empty seconds before them."""
    header = "03:04:05 PM   UID       PID    %usr %system  %guest   %wait    %CPU   CPU  Command"
    lines = ["Linux 6.1.0 (alder) \t01/02/2030 \t_x86_64_\t(64 CPU)", "", header, "", header, ""]
    for value in samples:
        lines += [
            header,
            f"03:04:06 PM     0      6921   27.00   34.00    0.00    0.00  {value:6.2f}    46  {command}",
            "",
        ]
    mean = sum(samples) / max(1, len(samples))
    lines += [
        "Average:      UID       PID    %usr %system  %guest   %wait    %CPU   CPU  Command",
        f"Average:        0      6921   22.00   35.00    0.00    0.00  {mean:6.2f}     -  {command}",
    ]
    return ("\n".join(lines) + "\n").encode()


def tc_stats(dropped: int, rate: str = "40Mbit", delay_ms: int = 20, queue: int = 143) -> bytes:
    """``tc -s -d qdisc show`` of the client's interface and its ifb."""
    return (
        f"qdisc netem 1: root refcnt 9 limit 1000 delay {delay_ms}ms\n Sent 1 bytes 1 pkt (dropped 7, overlimits 0)\n"
        "qdisc ingress ffff: parent ffff:fff1 ----------------\n Sent 1 bytes 1 pkt (dropped 8, overlimits 0)\n"
        f"qdisc tbf 1: root refcnt 2 rate {rate} burst 1535b/1 lat 40ms\n Sent 1 bytes 1 pkt (dropped {dropped}, x 1)\n"
        f"qdisc netem 2: parent 1: limit {queue} delay {delay_ms}ms\n Sent 1 bytes 1 pkt (dropped {dropped}, x 1)\n"
    ).encode()


def repetition(
    server: str,
    client: str,
    duration_s: float,
    *,
    queues: int = 2,
    packets: int = 1000,
    errors: int = 5,
    cpu: Sequence[float] = (10.0, 20.0, 90.0, 92.0, 94.0, 20.0, 10.0),
    more: Mapping[str, int] | None = None,
    **log: Any,
) -> Files:
    """All files of a successful repetition, relative to it; *more* are further counters, *log* goes to `output`."""
    files = {
        "output.txt": output(server, client, duration_s=duration_s, **log),
        "client/time.json": time_json(duration_s),
    }
    for role in ("client", "server"):
        files |= {
            f"{role}/ethtool-start.txt": ethtool(queues, 100, more),
            f"{role}/ethtool-stop.txt": ethtool(queues, 100 + packets, more),
            f"{role}/netstat-start.txt": netstat(1000, 10, 500),
            f"{role}/netstat-stop.txt": netstat(1000 + packets, 10 + errors, 500 + packets // 10),
            f"{role}/pidstat.txt": pidstat(cpu),
        }
    return files


def result_json(
    pairs: Mapping[tuple[str, str], Sequence[float]], *, filesize: int = 8192, **changes: Any
) -> dict[str, Any]:
    """``result.json`` of the bare-metal runner: goodputs of the successful repetitions by server and client."""
    servers = list(dict.fromkeys(server for server, _ in pairs))
    clients = list(dict.fromkeys(client for _, client in pairs))
    return {
        "interop_start_time_unix_timestamp": 1700000000.5,
        "interop_end_time_unix_timestamp": 1700000900.5,
        "log_dir": "logs",
        "server_node_name": HOSTS["server"],
        "client_node_name": HOSTS["client"],
        "server_implementations": {name: f"{name}-commit" for name in servers},
        "client_implementations": {name: f"{name}-commit" for name in clients},
        "bandwidth_limit": "None",
        "tests": {"G": {"name": "goodput", "desc": "Measures connection goodput."}},
        "results": [[] for _ in clients for _ in servers],
        "measurements": [
            [
                {
                    "name": "goodput",
                    "abbr": "G",
                    "filesize": filesize * MIB,
                    "result": "succeeded" if pairs[server, client] else "failed",
                    "details": list(pairs[server, client]),
                    "server": server,
                    "client": client,
                }
            ]
            if (server, client) in pairs
            else []
            for client in clients
            for server in servers
        ],
        "args": {"filesize": filesize, "repetitions": 10},
    } | changes


def write(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], directory: Path) -> Path:
    """Files in a folder."""
    for name, data in files.items() if isinstance(files, Mapping) else files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def pack_files(files: Iterable[tuple[str, bytes]], archive: Path) -> Path:
    """Files in a tar archive, compressed as its name says."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    with openers.get(archive.suffix, open)(archive, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as packed:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return archive
