"""Made-up runs of the experiment `capacity`: two servers, two signatures, four loads, three blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import fakeruns
from quicbed.analysis import capacity
from quicbed.store import details, runs

RATE = 1000.0
LOADS = (0.1, 0.5, 0.8, 1.0)
COSTS_MS = {"RSA": 1.0, "ML-DSA": 0.7}
SIGNATURES = {"RSA": "rsa-2048", "ML-DSA": "mldsa65"}
SIGN_MS = {"RSA": 0.6, "ML-DSA": 0.2}
P99_MS = (1.0, 1.0, 2.0, 8.0)
SERVERS = ("quiche", "quinn")


def _side(library: str) -> dict[str, str]:
    return {"library": library, "flavour": "pq", "version": "1", "build": f"{library}-pq"}


def _run(server: str, label: str, position: int, block: int, p99_ms: float, behind: bool) -> dict[str, Any]:
    load = LOADS[position]
    baseline = None if (label, position) == ("RSA", 0) else f"{server}-{label}-0" if position else f"{server}-RSA-0"
    cpu_ms = COSTS_MS[label]
    made = fakeruns.make_run(
        experiment=capacity.EXPERIMENT,
        cell={
            "id": f"{server}-{label}-{position}",
            "slug": f"ngtcp2-to-{server}-{label.lower()}-{position}",
            "label": f"{label}, load {load:g}",
            "arm": "main",
            "baseline": baseline,
        },
        client=_side("ngtcp2"),
        server=_side(server),
        variant={"cipher": "aes-128-gcm", "group": "x25519", "signature": SIGNATURES[label], "load": load},
        workload={"kind": "handshake", "bytes": 1, "connections": 500, "rate_per_s": RATE * load, "arrival_seed": 1},
        link={"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0},
        block=block,
        metrics={
            "ttfb_ms": p99_ms / 2,
            "ttfb_ms_p99": p99_ms,
            "handshakes_per_s": RATE * load,
            "late_ms_p99": 0.1,
            "late_share": 0.0,
            "most_in_flight": 3,
            "server_cpu_ms": cpu_ms,
            "client_cpu_ms": 0.4,
            "connections": 500,
        },
    )
    made["host"] |= {"max_rss_bytes": {"client": 1 << 20, "server": 1 << 26}}
    if behind:
        made |= {"status": "failed", "reason": "the client fell behind"}
        made["metrics"] |= {"late_ms_p99": p99_ms}
    return made


def write(
    raw: Path,
    *,
    p99_ms: Sequence[float] = P99_MS,
    behind: Collection[tuple[str, float]] = (),
    blocks_behind: Collection[int] = range(3),
) -> None:
    """Write runs below *raw*; the client of those of these labels and loads has fallen *behind* in these blocks."""
    for server in SERVERS:
        for label in COSTS_MS:
            for position, load in enumerate(LOADS):
                for block in range(3):
                    fell = (label, load) in behind and block in blocks_behind
                    fakeruns.write_run(raw, _run(server, label, position, block, p99_ms[position], fell))


HELD = 1000
NONE_BYTES = 8 << 20
HELD_KIB = {"RSA": 20.0, "ML-DSA": 25.0}
"""Of a connection that is held open, in the first block; one more in each next one."""


def write_held(raw: Path, failed: Collection[str] = ()) -> None:
    """Write runs with connections that are held open; those of *failed* servers have failed."""
    for server in SERVERS:
        for label, kib in HELD_KIB.items():
            for block in range(3):
                run = _run(server, label, 1, block, 1.0, behind=False)
                each = 1024 * (kib + block)
                run["cell"] |= {"id": f"{server}-{label}-held", "slug": f"{server}-{label.lower()}-held"}
                run["cell"] |= {"label": f"{label}, held"}
                run["variant"] |= {"held": HELD}
                run["workload"] |= {"connections": HELD}
                run["metrics"] |= {
                    "connections": HELD,
                    "memory_none_bytes": NONE_BYTES,
                    "memory_held_bytes": NONE_BYTES + round(HELD * each),
                    "memory_per_connection_bytes": each,
                }
                if server in failed:
                    run |= {"status": "failed", "reason": "ended while it was held open"}
                fakeruns.write_run(raw, run)


COPIES = 4
SCALING = {"quiche": 3.5, "quinn": 2.0}
"""Times the rate of a single program that all of a server's take."""


def write_scaling(raw: Path) -> None:
    """Write runs of `capacity-cores`: each server on one processor and on all, whose connections cost a tenth more."""
    for server in SERVERS:
        for position in range(len(LOADS)):
            for block in range(3):
                one = _run(server, "RSA", position, block, P99_MS[position], behind=False)
                one["experiment"] = capacity.CORES
                fakeruns.write_run(raw, one)
                every = _run(server, "RSA", position, block, P99_MS[position], behind=False)
                every["experiment"] = capacity.CORES
                load = LOADS[position]
                every["cell"] |= {"id": f"{server}-all-{position}", "slug": f"{server}-all-{position}"}
                every["cell"] |= {"label": f"RSA, all processors, load {load:g}"}
                every["variant"] |= {"processors": "all"}
                every["workload"] |= {"rate_per_s": RATE * load * SCALING[server], "copies": COPIES}
                every["metrics"] |= {"server_cpu_ms": 1.1 * COSTS_MS["RSA"]}
                fakeruns.write_run(raw, every)


def measured(directory: Path, **chosen: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The campaign of such runs (`write`), and primitives of both servers."""
    write(directory / "raw", **chosen)
    table = runs.table(directory / "raw")
    rows = [
        {
            "library": server,
            "kind": kind,
            "name": name,
            "operation": operation,
            "block": block,
            "median_ns": 1.0,
            "mean_ns": 1e6 * ms + disturbed_ns,
        }
        for block, disturbed_ns in enumerate((0.0, 5e6))
        for server in SERVERS
        for kind, name, operation, ms in (
            ("group", "x25519", "encapsulate", 0.05),
            *(("signature", SIGNATURES[label], "sign", ms) for label, ms in SIGN_MS.items()),
        )
    ]
    primitives = pl.DataFrame(rows, schema=details.PRIMITIVE_TIMES)
    return runs.select_campaign(table, capacity.EXPERIMENT), primitives
