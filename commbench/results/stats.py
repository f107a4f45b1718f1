"""Order statistics of a few numbers, in plain Python: rank 0 needs them after every visit, readers after every run.

The replicate is the round (one visit of a cell), never the iteration: iterations of one round share its state, and
intervals over them were seen to claim 0.7 % where equal launches differed by 13 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FEWEST_ROUNDS = 5  # below, no interval over rounds says anything
CONFIDENCE = 0.93  # at five rounds the extremes cover the median with 93.75 %


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the `q` quantile (0 to 1) of `values`, linear between neighbours, as numpy.quantile does."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return a distribution-free interval of the median that covers it with at least 93 %, or None below five values.

    The k-th smallest and k-th largest of n independent values enclose the median unless fewer than k of them fall on
    one side of it: a binomial tail (David and Nagaraja, Order Statistics, section 7.1).
    """
    n = len(values)
    if n < FEWEST_ROUNDS:
        return None
    ordered = sorted(values)
    k, outside = 1, 2.0 ** (1 - n)  # probability that all values fall on one side
    while k + 1 <= n // 2:
        wider = outside + 2.0 * math.comb(n, k) * 0.5**n
        if 1 - wider < CONFIDENCE:
            break
        k, outside = k + 1, wider
    return ordered[k - 1], ordered[n - k]
