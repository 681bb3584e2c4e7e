"""A generator of raw runs for tests: the format of run.json, values drawn at random."""

from __future__ import annotations

import json
import math
import random
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from clone import DATA
from quicbed.wire import handshake

CAPTURES = DATA / "handshakes"
OVER_LOOPBACK = {"tcp-tls-hrr", "nginx-h3-resumed", "tcp-tls-early-data", "tcp-tls-resumed-tls12"}
START = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
AES128 = {"cipher": "aes-128-gcm"}
AES256 = {"cipher": "aes-256-gcm"}
CHACHA = {"cipher": "chacha20-poly1305"}
NOOP = {"cipher": "aes-128-gcm", "aead": "noop"}
NO_HP = {"header_protection": False}
PATCHED = {"flavour": "noop"}

# label, variant, label of the baseline, arm, effect on the goodput
EXPERIMENTS: dict[str, list[tuple[str, dict[str, Any], str | None, str, float]]] = {
    "aead-goodput": [
        ("AES-128-GCM", AES128, None, "main", 1.0),
        ("AES-256-GCM", AES256, "AES-128-GCM", "main", 0.985),
        ("ChaCha20-Poly1305", CHACHA, "AES-128-GCM", "main", 0.88),
        ("NOOP", NOOP | NO_HP, "AES-128-GCM", "main", 1.16),
        ("AES-128-GCM", AES128, "AES-128-GCM", "aa", 1.0),
    ],
    "header-protection": [
        ("AES-128-GCM in the noop build", AES128 | PATCHED, None, "main", 0.95),
        ("AES-128-GCM without HP", AES128 | NO_HP, "AES-128-GCM in the noop build", "main", 0.96),
        ("ChaCha20-Poly1305 in the noop build", CHACHA | PATCHED, "AES-128-GCM in the noop build", "main", 0.88),
        ("ChaCha20-Poly1305 without HP", CHACHA | NO_HP, "ChaCha20-Poly1305 in the noop build", "main", 0.92),
        ("NOOP with HP", NOOP, "AES-128-GCM in the noop build", "main", 1.14),
        ("NOOP", NOOP | NO_HP, "NOOP with HP", "main", 1.16),
        ("AES-128-GCM", AES128, "AES-128-GCM in the noop build", "control", 1.0),
        ("AES-128-GCM in the noop build", AES128 | PATCHED, "AES-128-GCM in the noop build", "aa", 0.95),
    ],
}
GOODPUT_MBPS = {"quiche": 3100.0, "quinn": 2300.0, "tcp-tls": 8900.0}


def make_run(**changes: Any) -> dict[str, Any]:
    """One complete run.json; *changes* replace top-level keys."""
    endpoint = {
        "library": "quinn",
        "flavour": "stock",
        "version": "0.11.12",
        "build": "quinn-stock-000000000001",
    }
    evidence = {
        "cipher": "TLS_AES_128_GCM_SHA256",
        "group": "x25519",
        "signature": "ecdsa_secp256r1_sha256",
        "aead": "standard",
        "header_protection": "on",
    }
    run = {
        "format": 2,
        "testbed": {
            "name": "local",
            "kind": "local",
            "host_id": "h0",
            "cpu_model": "Example CPU",
            "cpus": 2,
            "kernel": "6.1.0",
        },
        "link": {"mode": "throughput", "mtu": 1500, "rate_mbit": None},
        "experiment": "aead-goodput",
        "campaign": "c0ffee00",
        "scale": "quick",
        "cell": {
            "id": "00000001",
            "slug": "quinn-aes-128-gcm",
            "arm": "main",
            "label": "AES-128-GCM",
            "baseline": None,
        },
        "block": 0,
        "order": 0,
        "attempt": 0,
        "seed": 1,
        "client": endpoint,
        "server": endpoint,
        "variant": {
            "cipher": "aes-128-gcm",
            "aead": "standard",
            "header_protection": True,
            "group": "x25519",
        },
        "workload": {"kind": "bulk", "bytes": 268435456, "connections": 1},
        "status": "ok",
        "reason": None,
        "contaminated": False,
        "contamination": [],
        "metrics": {
            "goodput_mbps": 2000.0,
            "ttfb_ms": 1.9,
            "first_byte_ms": 2.4,
            "bytes": 268435456,
            "client_cpu_s": 0.5,
            "server_cpu_s": 0.75,
            "wall_s": 1.07,
            "overhead_s": 0.12,
        },
        "evidence": {"client": evidence, "server": evidence, "proof": "proof-1"},
        "host": {
            "before": {},
            "delta": {},
            "run_delay_s": {"client": 0.01, "server": 0.02},
            "psi_cpu_some_s": 0.03,
            "load_1m": 1.5,
            "foreign_cpu_share": 0.01,
        },
        "started_at": START.isoformat().replace("+00:00", "Z"),
    }
    return run | changes


def place(run: dict[str, Any]) -> str:
    """The directory of a run below raw/."""
    block = "excluded" if run["block"] is None else f"b{run['block']:04d}"
    cell = run["cell"]
    return (
        f"{run['testbed']['name']}/{run['experiment']}/{run['campaign']}/{block}/"
        f"{cell['slug']}-{cell['id']}.{run['attempt']}"
    )


def write_run(raw: Path, run: dict[str, Any]) -> Path:
    directory = raw / place(run)
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
    return directory


def campaign(
    experiment: str,
    *,
    blocks: int = 8,
    seed: int = 1,
    campaign_id: str = "c0ffee00",
    libraries: tuple[str, ...] | None = None,
    scale: str = "quick",
    noise: float = 0.01,
    incidents: bool = True,
    start: datetime = START,
) -> Iterator[dict[str, Any]]:
    """All runs of a campaign; *incidents* adds failed, contaminated and unsupported ones."""
    generator = random.Random(f"{experiment}-{seed}")
    if libraries is None:
        libraries = ("quiche", "quinn") + (("tcp-tls",) if experiment == "aead-goodput" else ())
    cells = []
    for library in libraries:
        ids: dict[str, str] = {}
        for position, (label, variant, baseline, arm, effect) in enumerate(EXPERIMENTS[experiment]):
            identity = f"{libraries.index(library):x}{position:07x}"
            if arm == "main":
                ids[label] = identity
            cells.append((library, identity, label, variant, ids.get(baseline or ""), arm, effect))
    refused = ("quinn", "NOOP") if incidents else None
    moment = start
    drift = 0.0
    for library, identity, label, variant, baseline_id, arm, _ in cells:
        if (library, label) == refused:
            yield _run(experiment, campaign_id, scale, library, identity, label, variant,
                       baseline_id, arm, moment) | {
                "block": None, "order": None, "status": "unsupported", "metrics": {},
                "reason": "quinn has no NOOP AEAD",
            }  # fmt: skip
    for block in range(blocks):
        order = list(cells)
        generator.shuffle(order)
        drift = 0.7 * drift + generator.gauss(0, 3 * noise)
        for position, cell in enumerate(order):
            library, identity, label, variant, baseline_id, arm, effect = cell
            if (library, label) == refused:
                continue
            attempts = 0
            while True:
                moment += timedelta(seconds=2)
                run = _run(experiment, campaign_id, scale, library, identity, label, variant,
                           baseline_id, arm, moment)  # fmt: skip
                run |= {"block": block, "order": position, "attempt": attempts}
                goodput = GOODPUT_MBPS[library] * effect * math.exp(drift + generator.gauss(0, noise))
                contaminated = incidents and generator.random() < 0.06
                if contaminated:
                    goodput *= generator.uniform(0.6, 0.95)
                    run |= {
                        "contaminated": True,
                        "contamination": ["run delay 0.21 of wall time > 0.15"],
                    }
                if incidents and generator.random() < 0.01:
                    run |= {
                        "status": "failed",
                        "reason": "client: connection 0: timed out after 60 s",
                        "metrics": {},
                    }
                else:
                    run["metrics"] = run["metrics"] | {
                        "goodput_mbps": goodput,
                        "client_cpu_s": 1800.0 / goodput,
                        "server_cpu_s": 1900.0 / goodput,
                    }
                yield run
                attempts += 1
                if not contaminated or attempts == 3:
                    break


def _run(
    experiment: str,
    campaign_id: str,
    scale: str,
    library: str,
    identity: str,
    label: str,
    variant: dict[str, Any],
    baseline: str | None,
    arm: str,
    moment: datetime,
) -> dict[str, Any]:
    full = {"aead": "standard", "header_protection": True, "group": "x25519"} | variant
    if library == "tcp-tls":
        full["header_protection"] = None
    patched = full["aead"] == "noop" or full["header_protection"] is False
    flavour = full.pop("flavour", "noop" if patched else "stock")
    endpoint = {
        "library": library,
        "flavour": flavour,
        "version": "1.0",
        "build": f"{library}-{flavour}-0123456789ab",
    }
    slug = f"{library}-{label}".lower().replace(" ", "-") + ("" if arm == "main" else f"-{arm}")
    return make_run(
        experiment=experiment,
        campaign=campaign_id,
        scale=scale,
        cell={"id": identity, "slug": slug, "arm": arm, "label": label, "baseline": baseline},
        client=endpoint,
        server=endpoint,
        variant=full,
        started_at=moment.isoformat().replace("+00:00", "Z"),
    )


CAMPAIGN: dict[str, Any] = {
    "format": 2,
    "id": "c0ffee00",
    "experiment": "aead-goodput",
    "scale": "quick",
    "testbed": "local",
    "machine": {"host_id": "h0"},
    "bytes": 1 << 26,
    "connections": [40, 4],
    "workload": {"kind": "bulk"},
    "link": {"mode": "throughput"},
}
"""A campaign.json."""


def plan(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of *runs* as a session records what it plans."""
    return list({run["cell"]["id"]: run["cell"] for run in runs}.values())


def write_session(
    raw: Path, experiment: str, cells: list[dict[str, Any]], started_at: datetime, campaign_id: str = "c0ffee00"
) -> Path:
    """What the driver leaves at every start, also when nothing is left to measure."""
    directory = raw / "local" / experiment / campaign_id
    (directory / "sessions").mkdir(parents=True, exist_ok=True)
    (directory / "campaign.json").write_text(json.dumps(CAMPAIGN | {"id": campaign_id, "experiment": experiment}))
    file = directory / "sessions" / f"{started_at:%Y%m%dT%H%M%S}-7.json"
    moment = started_at.isoformat().replace("+00:00", "Z")
    file.write_text(json.dumps({"started_at": moment, "cells": cells}))
    return file


def write_campaign(raw: Path, experiment: str, **options: Any) -> list[dict[str, Any]]:
    """Write a campaign measured in one session below *raw* and return its runs."""
    runs = list(campaign(experiment, **options))
    for run in runs:
        write_run(raw, run)
    start, campaign_id = options.get("start", START), runs[0]["campaign"]
    write_session(raw, experiment, plan(runs), start, campaign_id)
    return runs


def write_external(raw: Path, library: str, campaign_id: str, day: int, scale: str = "quick", **facts: str) -> None:
    """A campaign of an external endpoint alone, that many days after others; *facts* are of its host."""
    start = START + timedelta(days=day)
    end = {"library": library, "external": True}
    cells = []
    for run in campaign("aead-goodput", libraries=("quinn",), campaign_id=campaign_id, scale=scale, start=start):
        cell = run["cell"] | {"id": f"{library[0]}{run['cell']['id'][1:]}"}
        if cell["baseline"] is not None:
            cell["baseline"] = f"{library[0]}{cell['baseline'][1:]}"
        ends = {role: run[role] | end for role in ("client", "server")}
        cells.append(run | ends | {"cell": cell, "testbed": run["testbed"] | facts})
        write_run(raw, cells[-1])
    write_session(raw, "aead-goodput", plan(cells), start, campaign_id)


def write_captured(raw: Path, name: str, **changes: Any) -> Path:
    """The proof of a series of handshakes that a capture in tests/data/handshakes would be; returns its directory."""
    cell = {"id": "0000000f", "slug": name, "arm": "proof", "label": name, "baseline": None}
    run = make_run(
        **{
            "experiment": "proofs",
            "cell": cell,
            "block": None,
            "link": {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0},
            "workload": {"kind": "handshake", "bytes": 1, "connections": 1},
            "metrics": {"connections": 1, "ttfb_ms": 1.5},
        }
        | changes
    )
    directory: Path = raw / "local" / "proofs" / run["campaign"] / f"{name}-{cell['id']}.0"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
    for suffix, target in ((".pcap", "capture.pcap"), (".keys", "keys.log")):
        shutil.copy(CAPTURES / f"{name}{suffix}", directory / target)
    (directory / "handshakes.json").write_text(captured(name), encoding="utf-8")
    return directory


@cache
def captured(name: str) -> str:
    """The handshakes.json of a capture in tests/data/handshakes."""
    seen = handshake.examine(
        CAPTURES / f"{name}.pcap",
        CAPTURES / f"{name}.keys",
        server_ip="127.0.0.1" if name in OVER_LOOPBACK else "10.113.0.2",
        server_port=4433,
        transport="tcp" if name.startswith("tcp") else "quic",
    )
    return json.dumps([one.model_dump(mode="json") for one in seen])


def archive(raw: Path, testbed: str, experiment: str, out: Path) -> Path:
    """Pack the runs of one experiment as reference data is packed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz" if out.suffix == ".xz" else "w:gz") as packed:
        packed.add(raw / testbed / experiment, arcname=f"{testbed}/{experiment}")
    return out


PAIRS: dict[str, list[tuple[str, str, float]]] = {
    # label, its baseline, and the ratio of processor time per byte
    "aead-pairs": [
        ("AES-256-GCM", "AES-128-GCM", 1.02),
        ("ChaCha20-Poly1305", "AES-128-GCM", 1.12),
        ("NOOP", "AES-128-GCM", 0.85),
        ("AES-128-GCM", "AES-128-GCM", 1.0),
    ],
    "header-protection-pairs": [
        ("AES-128-GCM without HP", "AES-128-GCM in the noop build", 0.99),
        ("ChaCha20-Poly1305 without HP", "ChaCha20-Poly1305 in the noop build", 0.95),
        ("NOOP", "NOOP with HP", 0.985),
        ("AES-128-GCM in the noop build", "AES-128-GCM in the noop build", 1.0),
    ],
    "floor": [("AES-128-GCM", "AES-128-GCM", 1.5), ("NOOP", "AES-128-GCM", 0.8)],
}


def write_pairs(
    raw: Path,
    experiment: str = "aead-pairs",
    *,
    blocks: int = 6,
    libraries: tuple[str, ...] = ("quiche", "quinn"),
    beside: str | None = None,
) -> None:
    """Write a campaign of concurrent pairs of runs; clients take 40 % of the processor time of both ends.

    *beside* each run is one of this library, or of its own.
    """
    generator = random.Random(experiment)
    variants = {label: variant for _, cells in EXPERIMENTS.items() for label, variant, *_ in cells}
    planned: list[dict[str, Any]] = []
    for library in libraries:
        for position, (label, baseline, ratio) in enumerate(PAIRS[experiment]):
            own, other = (f"{libraries.index(library):x}{arm}{position:06x}" for arm in "ba")
            arm = "aa" if label == baseline and beside is None else "main"
            for block in range(blocks):
                speed, moment = math.exp(generator.gauss(0, 0.2)), START + timedelta(seconds=10 * block)
                described = ((own, label, other, arm, ratio), (other, baseline, None, "beside", 1.0))
                for side, (identity, name, against, which, cost) in zip("ba", described, strict=True):
                    of = library if side == "b" else beside or library
                    run = _run(experiment, "c0ffee00", "quick", of, identity, name, variants[name],
                               against, which, moment)  # fmt: skip
                    seconds = speed * cost * math.exp(generator.gauss(0, 0.005))
                    pair = f"c0ffee00/b{block:04d}/{library}-{own}.0"
                    run |= {
                        "block": block,
                        "together": {
                            "pair": pair,
                            "beside": "a" if side == "b" else "b",
                            "first": (side == "a") == bool(block % 2),
                            "port": 4433 + (side == "b") ^ block % 2,
                            "processors": {"server": 0, "client": 1},
                            "seconds": seconds,
                            "overlap": 0.97,
                            "client_cpu_s": 0.4 * seconds,
                            "server_cpu_s": 0.6 * seconds,
                        },
                    }
                    directory = raw / "local" / experiment / pair / side
                    directory.mkdir(parents=True)
                    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
                    planned.append(run)
    write_session(raw, experiment, plan(planned), START)
