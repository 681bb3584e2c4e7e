"""Intervals for ratios and means of few values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


RESAMPLES = 10_000


SEED = 20240603


@dataclass(frozen=True)
class Interval:
    """A paired ratio with its 95 % interval; *low* and *high* are NaN for fewer than two pairs."""

    ratio: float
    low: float
    high: float
    n: int

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
    return Interval(ratio, float(low), float(high), n)


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
    t = stdtrit(n - 1, (1 - CONFIDENCE) / 2)  # quantile of Student's t distribution, negative
    return NormalDist().cdf(math.sqrt(n / (n - 1)) * t)


def mean_interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Expanded percentile bootstrap interval of the mean of at least two values."""
    n = len(values)
    tail = expanded_tail(n)
    picks = np.random.default_rng(SEED).integers(0, n, size=(RESAMPLES, n))
    means = values[picks].mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
