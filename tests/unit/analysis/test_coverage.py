"""How often intervals as they are printed cover the truth, simulated: 95 % is what they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quicbed.analysis import capacity, ttfb
from quicbed.base import statistics

Values = np.ndarray[Any, np.dtype[np.float64]]
Draw = Callable[[np.random.Generator, int], Values]

TRIALS = 800
FEW = 0.95 - 4 * math.sqrt(0.95 * 0.05 / TRIALS)
"""Four standard errors below what they say; an interval that resamples three to five blocks is far below."""


def normal(random: np.random.Generator, n: int) -> Values:
    """Logarithms of runs of a quiet machine."""
    return random.normal(0, 0.02, n)


def slow_tail(random: np.random.Generator, n: int) -> Values:
    """The same of a shared machine, which makes runs slower and none faster."""
    return random.normal(0, 0.02, n) - random.exponential(0.03, n)


BLOCKS = [3, 4, 5, 7, 8, 12, 30]
DRAWS = pytest.mark.parametrize("draw", [normal, slow_tail])


def share(covers: Callable[[np.random.Generator], bool], trials: int = TRIALS) -> float:
    random = np.random.default_rng(11)
    return sum(covers(random) for _ in range(trials)) / trials


@DRAWS
@pytest.mark.parametrize("n", BLOCKS)
def test_a_paired_ratio_covers_the_truth(draw: Draw, n: int) -> None:
    def covers(random: np.random.Generator) -> bool:
        drift = random.normal(0, 0.1, n)  # of whole blocks, which cancels
        values, baseline = (np.exp(drift + draw(random, n)) for _ in range(2))
        found = statistics.paired_ratio(enumerate(1.1 * values), enumerate(baseline))
        return found.low <= 1.1 <= found.high

    assert FEW <= share(covers) <= 0.985


@DRAWS
@pytest.mark.parametrize("n", BLOCKS)
def test_a_mean_covers_the_truth(draw: Draw, n: int) -> None:
    truth = float(np.exp(draw(np.random.default_rng(0), 1_000_000)).mean())

    def covers(random: np.random.Generator) -> bool:
        low, high = statistics.mean_interval(np.exp(draw(random, n)))
        return low <= truth <= high

    # a mean of values that lean to one side needs more blocks than there are
    assert (FEW if draw is normal else 0.90) <= share(covers) <= 0.985


@pytest.mark.parametrize("n", [3, 5, 12])
def test_the_median_time_of_handshakes_covers_the_truth(n: int) -> None:
    def covers(random: np.random.Generator) -> bool:
        blocks = [np.exp(level + random.normal(0, 0.02, 20)) for level in normal(random, n)]
        _, low, high = ttfb.median_interval(blocks)
        return low <= 1 <= high

    assert FEW <= share(covers) <= 0.985


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("n", [4, 6, 15])
def test_a_ratio_of_counts_covers_the_truth(n: int, paired: bool) -> None:
    def covers(random: np.random.Generator) -> bool:
        level = random.normal(1, 0.2, n) if paired else np.ones(n)
        values, over = (random.poisson(np.maximum(0, mean * level)).astype(float) for mean in (20, 10))
        low, high = statistics.ratio_of_means(values, over, paired=paired)
        return low <= 2 <= high

    assert FEW <= share(covers) <= 0.99


@pytest.mark.parametrize("n", [3, 5, 12])
def test_a_rate_at_which_times_double_covers_the_truth(n: int) -> None:
    def covers(random: np.random.Generator) -> bool:
        level = random.normal(0, 0.3, n)  # a slow block is slow at every rate
        curve = [(float(rate), np.exp(level + rate / 100 * math.log(2) + normal(random, n))) for rate in (0, 75, 150)]
        _, low, high = capacity.doubling([(rate, values.tolist()) for rate, values in curve])
        return low <= 100 <= high

    # a fit of each resampling takes long
    assert share(covers, TRIALS // 4) >= 0.95 - 2 * (0.95 - FEW)


def test_a_ratio_to_what_may_be_zero_is_open_above() -> None:
    values, over = np.array([4.0, 5.0, 6.0]), np.array([0.0, 1.0, 0.0])
    low, high = statistics.ratio_of_means(values, over, paired=True)
    assert 0 < low < 15
    assert high == math.inf
    assert statistics.ratio_of_means(values, 0 * over, paired=True) == (math.inf, math.inf)
    low, high = statistics.ratio_of_means(over, values, paired=True)
    assert low == 0
    assert 1 / 15 < high < 1


def test_a_ratio_too_large_for_a_number_is_infinite() -> None:
    found = statistics.paired_ratio([(0, 1e150), (1, 1e-150)], [(0, 1.0), (1, 1.0)])
    assert (found.low, found.high) == (0, math.inf)
