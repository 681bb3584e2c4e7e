"""How many bytes a ratio of goodputs takes until its 95 % interval is narrow, by the design of a measurement.

Everything is resampled from runs that were measured, the shipped ones. Three designs are compared:

- *paired*: blocks of one run of each of both cells, whose ratio is formed within the block, as quicbed does;
- *apart*: as many runs of the same size, the cells measured one after the other; their ratio is that of means;
- *long*: the same with repetitions of 8 GiB, as in A Quantum of QUIC (25 of them) and QUIC on the Highway (50).

A repetition of 8 GiB is put together of as many runs as it takes, drawn at random: what disturbs one of them is thought
to be gone in the next. What really disturbs a machine lasts longer than a run, so that the bytes of *apart* and *long*
are the least that they can be.

Whether a disturbance lasts for a block is seen from the A/A arm: the order within a block is random, so that the two
baselines stand at every distance, from next to each other to a whole block apart.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtrit

from quicbed.analysis import comparison
from quicbed.base import statistics

GIB = 2**30
REPETITION_BYTES = 8 * GIB
REPETITIONS: Mapping[str, int] = {"A Quantum of QUIC": 25, "QUIC on the Highway": 50}
"""Of a cell, each a download of `REPETITION_BYTES`."""
HALF_WIDTH = 0.02
DRAWS = 200
SEED = 20240603
MOST = 20_000
"""More blocks or runs than that are not tried."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Needed:
    """Bytes of both cells of a ratio until the middle one of its resampled intervals has `HALF_WIDTH`."""

    library: str
    label: str
    paired: float
    apart: float
    long: float
    """With at least two repetitions of each cell; infinite for more than can be tried, as the other two."""
    reached: Mapping[str, float]
    """Half width that repetitions of 8 GiB reach in the number that a paper has."""


def needed(campaign: pl.DataFrame, labels: Sequence[str], least_blocks: int) -> list[Needed]:
    """What the ratios of a campaign take whose cells have these labels and *least_blocks* blocks or more."""
    table = comparison.figure_table(campaign)
    values = comparison.block_values(campaign, "goodput_mbps")
    found = []
    for cell in table.filter((pl.col("arm") == "main") & pl.col("label").is_in(labels)).sort("cell").to_dicts():
        own, other = values.get(cell["cell"], {}), values.get(cell["baseline"] or "", {})
        blocks = sorted(own.keys() & other.keys())
        if len(blocks) < least_blocks or not cell["workload_bytes"]:
            continue
        both = np.log(np.array([[one[block] for block in blocks] for one in (own, other)]))
        found.append(_needed(cell["client_library"], cell["label"], both, float(cell["workload_bytes"])))
    return found


def baselines_by_distance(campaign: pl.DataFrame, parts: int = 4) -> list[tuple[int, int, float]]:
    """How far the two baselines of a block are from each other in goodput, by how far they are apart in its order.

    All A/A pairs of a campaign, sorted by their distance in runs, in *parts* of equal number: the least distance of a
    part, its greatest, and the median of the absolute logarithm of their ratio. The order is random, so that all parts
    have the same mixture of libraries, which differ in noise.
    """
    used = comparison.counted(campaign).filter(pl.col("goodput_mbps") > 0)
    first = used.select("block", "order", "goodput_mbps", baseline="cell")
    pairs = used.filter(pl.col("arm") == "aa").join(first, on=["block", "baseline"], suffix="_first")
    found = pairs.select(
        "cell",
        "block",
        distance=(pl.col("order") - pl.col("order_first")).abs(),
        apart=(pl.col("goodput_mbps") / pl.col("goodput_mbps_first")).log().abs(),
    ).sort("distance", "cell", "block")
    count = found.height
    rows = [found[count * part // parts : count * (part + 1) // parts] for part in range(parts)]
    return [
        (row["distance"][0], row["distance"][-1], float(np.median(row["apart"].to_numpy())))
        for row in rows
        if not row.is_empty()
    ]


def _needed(library: str, label: str, logs: Values, size: float) -> Needed:
    """*logs*: of the goodput of both cells, by block; *size*: bytes of a run."""
    parts = math.ceil(REPETITION_BYTES / size)

    def paired(count: int) -> float:
        return half_width_paired(logs[0] - logs[1], count)

    def apart(count: int) -> float:
        return half_width_apart(logs, count)

    def long(count: int) -> float:
        return half_width_apart(logs, count, parts)

    return Needed(
        library,
        label,
        2 * size * _least(paired),
        2 * size * _least(apart),
        2 * parts * size * _least(long),
        {paper: long(count) for paper, count in REPETITIONS.items()},
    )


def _least(width: Callable[[int], float]) -> float:
    """The least count of blocks or runs with `HALF_WIDTH`, two at least; infinite for more than `MOST`."""
    enough = 2
    while width(enough) > HALF_WIDTH:
        if enough > MOST:
            return math.inf
        enough *= 2
    return bisect.bisect_left(range(enough + 1), True, lo=2, key=lambda count: width(count) <= HALF_WIDTH)


def half_width_paired(logs: Values, count: int) -> float:
    """Middle half width of the intervals of the mean of *count* values that are drawn from *logs*."""
    drawn = _draw(logs, (DRAWS, count))
    return _student(count - 1) * float(np.median(drawn.std(axis=1, ddof=1))) / math.sqrt(count)


def half_width_apart(logs: Values, count: int, parts: int = 1) -> float:
    """The same of the ratio of means of *count* repetitions of each of two cells, each of *parts* runs.

    The goodput of a repetition is that of all its bytes in the time that its runs take together.
    """
    variances = np.zeros(DRAWS)
    for own in logs:
        speeds = np.exp(own)
        if parts == 1:
            drawn = _draw(speeds, (DRAWS, count))
        else:
            # of many runs of a repetition the time is all but normal
            times = 1 / speeds
            normal = np.random.default_rng(SEED).normal(size=(DRAWS, count))
            drawn = 1 / (times.mean() + times.std(ddof=1) / math.sqrt(parts) * normal)
        variances += (drawn.std(axis=1, ddof=1) / drawn.mean(axis=1)) ** 2
    return _student(2 * count - 2) * math.sqrt(float(np.median(variances)) / count)


def _draw(values: Values, shape: tuple[int, int]) -> Values:
    found: Values = np.random.default_rng(SEED).choice(values, size=shape)
    return found


def _student(freedom: int) -> float:
    return -float(stdtrit(freedom, (1 - statistics.CONFIDENCE) / 2))
