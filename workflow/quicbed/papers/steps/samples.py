"""Made-up gap files as in the data set of the paper, drawn from a seed: for tests and benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def gap_files(packets: int, seed: int) -> tuple[bytes, bytes]:
    """``.pcap.json`` and ``.ipg.json`` of one repetition of "QUIC Steps"."""
    generator = np.random.default_rng(seed)
    gaps = np.where(generator.random(packets) < 0.7, 12_304, generator.integers(100_001, 900_000, packets))
    times = np.concatenate([[0], np.cumsum(gaps[1:])])
    rows = [[int(time), int(time) + 72_494_315_286, 1482, -1] for time in times]
    return json.dumps(rows).encode(), json.dumps([round(gap / 1e6, 6) for gap in gaps[1:].tolist()]).encode()


def steps(directory: Path, configs: int, repetitions: int, packets: int) -> int:
    """Gap files of "QUIC Steps", the same for all repetitions of a configuration; returns their bytes."""
    total = 0
    for number in range(configs):
        name = f"quiche-cubic-{number}"
        folder = directory / "analysis" / "build" / "data" / name
        folder.mkdir(parents=True)
        contents = gap_files(packets, number)
        for place in range(repetitions):
            suffix = f"-rep{place}" if place else ""
            for kind, data in zip(("pcap", "ipg"), contents, strict=True):
                (folder / f"{name}{suffix}.{kind}.json").write_bytes(data)
                total += len(data)
    return total
