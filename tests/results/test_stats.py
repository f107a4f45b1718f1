"""Order statistics, held against NumPy and against counting every case."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from commbench.results.stats import CONFIDENCE, FEWEST_ROUNDS, median, median_interval, quantile

CHANCE = random.Random("stats")
SAMPLES = [[CHANCE.choice([CHANCE.expovariate(1), 1.0, 2.0]) for _ in range(n)] for n in [1, 2, 3, 4, 5, 10, 101, 128]]


@pytest.mark.parametrize("q", [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0])
@pytest.mark.parametrize("values", SAMPLES, ids=len)
def test_a_quantile_is_that_of_numpy(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


@pytest.mark.parametrize("values", SAMPLES, ids=len)
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)), rel=1e-12)


def test_values_may_come_in_any_order_and_stay_in_it() -> None:
    values = [3.0, 1.0, 2.0]
    assert (median(values), quantile(values, 1.0), values) == (2.0, 3.0, [3.0, 1.0, 2.0])


def coverage(k: int, n: int) -> Fraction:
    """How likely the k-th smallest and k-th largest of n enclose the median: not fewer than k on either side."""
    return 1 - 2 * Fraction(sum(comb(n, below) for below in range(k)), 2**n)


@pytest.mark.parametrize("n", range(FEWEST_ROUNDS, 60))
def test_the_interval_is_the_narrowest_that_covers_the_median_well_enough(n: int) -> None:
    values = list(range(1, n + 1))
    CHANCE.shuffle(values)
    k = max(k for k in range(1, n // 2 + 1) if coverage(k, n) >= CONFIDENCE)
    assert median_interval(values) == (k, n + 1 - k)


@pytest.mark.parametrize("n", range(FEWEST_ROUNDS, 13))
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    # Every way in which n values fall above or below a median of 0, all of them equally likely.
    signs = itertools.product([-1, 1], repeat=n)
    intervals = [median_interval([sign * (i + 1) for i, sign in enumerate(row)]) for row in signs]
    covering = sum(interval is not None and interval[0] <= 0 <= interval[1] for interval in intervals)
    assert covering / 2**n >= CONFIDENCE


def test_below_five_rounds_there_is_no_interval() -> None:
    assert [median_interval([1.0] * n) for n in range(FEWEST_ROUNDS)] == [None] * FEWEST_ROUNDS
    assert median_interval([1.0] * FEWEST_ROUNDS) == (1.0, 1.0)


def test_equal_values_make_an_interval_of_no_width() -> None:
    assert median_interval([7.5] * 12) == (7.5, 7.5)
