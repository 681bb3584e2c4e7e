"""Intervals for ratios and means of few values."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Values = np.ndarray[Any, np.dtype[np.float64]]

CONFIDENCE = 0.95


RESAMPLES = 10_000

MOST_BLOCKS = 1_000_000
"""More than so many are not asked for."""


SEED = 20240603


def _quantile_of_t(degrees: int, probability: float) -> float:
    """Quantile of Student's t distribution."""
    # most commands import this module and need no quantile, and scipy takes half a second to import
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


@dataclass(frozen=True)
class Interval:
    """A paired ratio with its 95 % interval; *low* and *high* are NaN for fewer than two pairs.

    *deviation* is the standard deviation of the logarithms of the pairs' ratios, NaN for fewer than two.
    """

    ratio: float
    low: float
    high: float
    n: int
    deviation: float = math.nan

    @property
    def half_width(self) -> float:
        """Half the length of the interval relative to the ratio; infinite when there is none."""
        if self.n < 2:
            return math.inf
        return (self.high - self.low) / (2 * self.ratio)


def paired_ratio(values: Iterable[tuple[Hashable, float]], baseline: Iterable[tuple[Hashable, float]]) -> Interval:
    """Ratio of *values* to *baseline*, each given as (block, value), paired by block.

    Blocks that only one of them has are left out. The order of the pairs does not matter.
    """
    own, other = _by_block(values), _by_block(baseline)
    shared = sorted(own.keys() & other.keys(), key=repr)
    logs = np.sort(np.array([math.log(own[block] / other[block]) for block in shared]))
    n = len(logs)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    ratio = math.exp(logs.mean())
    if n == 1:
        return Interval(ratio, math.nan, math.nan, 1)
    low, high = np.exp(mean_interval(logs))
    return Interval(ratio, float(low), float(high), n, float(logs.std(ddof=1)))


def blocks_for(deviation: float, half_width: float) -> int | None:
    """The least number of blocks of which a 95 % interval of the mean reaches *half_width* to either side; at least 2.

    *deviation* is the standard deviation over blocks, in the unit of *half_width*: of the logarithms of ratios for a
    fraction of the ratio. The interval is that of Student's t. None for more than `MOST_BLOCKS`.
    """

    def wide(count: int) -> bool:
        t = -_quantile_of_t(count - 1, (1 - CONFIDENCE) / 2)
        return bool(t * deviation / math.sqrt(count) > half_width)

    if not math.isfinite(deviation) or wide(MOST_BLOCKS):
        return None
    return bisect.bisect_left(range(MOST_BLOCKS + 1), True, lo=2, key=lambda count: not wide(count))


def _by_block(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    values: dict[Hashable, float] = {}
    for block, value in pairs:
        if block in values:
            raise ValueError(f"block {block!r} has two values")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"block {block!r}: a ratio needs positive values, found {value!r}")
        values[block] = value
    return values


def expanded_tail(n: int) -> float:
    """Quantile at which an expanded percentile interval of *n* values begins; it ends at one minus that."""
    t = _quantile_of_t(n - 1, (1 - CONFIDENCE) / 2)  # negative
    return NormalDist().cdf(math.sqrt(n / (n - 1)) * t)


def mean_interval(values: Values) -> tuple[float, float]:
    """Expanded percentile bootstrap interval of the mean of at least two values."""
    return _mean_interval(np.asarray(values, dtype=np.float64).tobytes())


@functools.lru_cache(maxsize=16_384)
def _mean_interval(content: bytes) -> tuple[float, float]:
    """The same ratios are shown in several figures and compared by several claims."""
    values = np.frombuffer(content)
    tail = expanded_tail(len(values))
    low, high = np.quantile(_resampled_means(values), [tail, 1 - tail])
    return float(low), float(high)


def _resampled_means(values: Values) -> Values:
    """Means over the first axis of values drawn from it with replacement, a row for every resample."""
    means: Values = values[_picks(len(values))].mean(axis=1)
    return means


@functools.lru_cache(maxsize=4)
def _picks(n: int) -> npt.NDArray[np.int64]:
    """Which of *n* values each resample has. To draw them is half of the work, and many intervals are of as many."""
    return np.random.default_rng(SEED).integers(0, n, size=(RESAMPLES, n))


@dataclass(frozen=True)
class Change:
    """Where a mean changes its sign for the last time, with its 95 % interval.

    *at*, *low* and *high* are minus infinity where it has the same sign at all positions, and *high* is infinity where
    the sign at the last position is not decided. *low* and *high* are NaN for fewer than two blocks.
    """

    at: float
    low: float
    high: float
    changes: int
    """How often the sign changes from one position to the next, but for those where it is zero."""


def last_change(positions: Sequence[float], values: Values) -> Change:
    """Where the mean over blocks changes its sign for the last time, by straight lines between rising *positions*.

    *values* have a row for every block and a column for every position. The interval is the expanded percentile one
    over resampled blocks, of each of which all columns are taken together.
    """
    at = np.asarray(positions, dtype=np.float64)
    means = values.mean(axis=0)
    signs = np.sign(means)
    last = signs[-1] or 1.0
    (found,) = _changes(at, last * means[np.newaxis, :])
    low = high = math.nan
    if len(values) > 1:
        tail = expanded_tail(len(values))
        drawn = np.sort(_changes(at, last * _resampled_means(values)))
        low, high = drawn[math.floor(tail * (RESAMPLES - 1))], drawn[math.ceil((1 - tail) * (RESAMPLES - 1))]
    known = signs[signs != 0]
    return Change(float(found), float(low), float(high), int(np.sum(known[1:] != known[:-1])))


def _changes(at: Values, means: Values) -> Values:
    """The position from which on every row of *means* is positive: infinity where its end is not."""
    found = np.full(len(means), -math.inf)
    for left in range(len(at) - 1):
        before, after = means[:, left], means[:, left + 1]
        rises = (before <= 0) & (after > 0)
        share = np.divide(-before, after - before, out=np.zeros_like(before), where=rises)
        found = np.where(rises, at[left] + share * (at[left + 1] - at[left]), found)
    found[means[:, -1] <= 0] = math.inf
    return found
