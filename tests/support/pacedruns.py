"""Runs with known gaps and trains: published ones in a copy of "QUIC Steps", and ours."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import polars as pl

import fakeruns
from quicbed.analysis.floors import Floor, Series
from quicbed.analysis.place import Place
from quicbed.importers import samples
from quicbed.papers import reading
from quicbed.papers.steps import analysis
from quicbed.papers.steps.analysis import Published
from quicbed.store import details, runs
from quicbed.wire import pacing
from quicbed.wire.trains import with_trains

MS = 1_000_000


def times(trains: list[int], gap: int = MS) -> list[int]:
    """Packets in trains of these lengths, 10 µs apart; *gap* ns between the last of a train and the next one."""
    steps = itertools.chain.from_iterable([gap, *[10_000] * (length - 1)] for length in trains)
    return list(itertools.accumulate(steps))


def copied(tmp_path: Path, repetitions: dict[str, list[list[int]]]) -> Published:
    """What is imported of a copy with gap files alone, by configuration and repetition from 1 on."""
    files = {}
    for name, found in repetitions.items():
        for number, packets in enumerate(found, 1):
            rows = [[moment, moment, 1482, -1] for moment in packets]
            files[f"build/data/{name}/{name}-rep{number}.pcap.json"] = json.dumps(rows).encode()
    reading.read("steps", samples.write(files, tmp_path / "copy"), tmp_path / "published")
    return analysis.published(tmp_path / "published")


def own(
    raw: Path,
    experiment: str,
    cells: dict[tuple[str, str], list[int]],
    *,
    blocks: int = 2,
    more: dict[str, float] | None = None,
    **changes: Any,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs of cells, by library and label, that are traced as told; the tables of runs and of their gaps and trains."""
    for (library, label), packets in cells.items():
        sent = with_trains(pl.LazyFrame({"time_ns": packets})).collect()
        kept = pacing.distributions(sent)
        gaps, trains = (kept.filter(pl.col("quantity") == name) for name in (pacing.GAPS, pacing.TRAINS))
        for block in range(1, blocks + 1):
            endpoint = {"library": library, "flavour": "stock", "version": "1", "build": library}
            cell = {"id": f"{library}-{label}", "slug": "x", "label": label, "arm": "main", "baseline": None}
            metrics = {"goodput_mbps": 30.0 + block, "bytes": 1 << 20, "dropped_packets": 10 * block} | (more or {})
            told = {"cell": cell, "client": endpoint, "server": endpoint, "metrics": metrics | pacing.metrics(sent)}
            run = fakeruns.make_run(experiment=experiment, block=block, **(told | changes))
            directory = fakeruns.write_run(raw, run)
            values = {"gap_ns": gaps["value"].to_list(), "gaps": gaps["count"].to_list()}
            values |= {"train_packets": trains["value"].to_list(), "packets": trains["count"].to_list()}
            (directory / "pacing.json").write_text(json.dumps({"format": 1, **values}), encoding="utf-8")
    return runs.table(raw), details.read(raw).pacing


def place(tmp_path: Path) -> Place:
    return Place(tmp_path, tmp_path / "raw", tmp_path / "artifacts", {})


FLOOR = Floor((Series(None, "sleep", "even", 300_000, 2000, 40_000.0, 1e5, None, 0.0),))


def at_rates(raw: Path, *, failing: tuple[float, bool] | None = None) -> pl.DataFrame:
    """Three blocks at two rates, with and without AES instructions: 10 and 20 µs, twice that without them."""
    for number, (rate, with_aes) in enumerate(
        (rate, with_aes) for rate in (40.0, 1000.0) for with_aes in (True, False)
    ):
        endpoint = {"library": "quiche", "flavour": "stock", "version": "1", "build": "quiche"}
        label = f"{rate:g} Mbit/s" + ("" if with_aes else ", no AES-NI")
        cell = {
            "id": str(number),
            "slug": "x",
            "label": label,
            "arm": "main",
            "baseline": None if with_aes else "40 Mbit/s",
        }
        for block in (1, 2, 3):
            told: dict[str, Any] = {"cell": cell, "client": endpoint, "server": endpoint}
            told["variant"] = {"cipher": "aes-128-gcm", "aes_hardware": with_aes}
            told["link"] = {"mode": "wire", "mtu": 1500, "rate_mbit": rate}
            if failing == (rate, with_aes):
                told |= {"status": "failed", "reason": "it was too slow", "metrics": {}}
            else:
                # the transfer takes bytes / rate seconds, of which the server computes a quarter, or half
                precision = (10.0 if rate < 100 else 20.0) * (1 if with_aes else 2) + (block - 2)
                told["metrics"] = {
                    "goodput_mbps": rate,
                    "bytes": 5_000_000,
                    "server_cpu_s": (0.25 if with_aes else 0.5) * 40 / rate,
                    "pacing_precision_us": precision,
                }
            fakeruns.write_run(raw, fakeruns.make_run(experiment="pacing-precision", block=block, **told))
    return runs.select_campaign(runs.table(raw), "pacing-precision")
