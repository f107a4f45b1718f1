"""How far equal launches differ, at which level, and whether two sets of launches differ from each other.

A cell was visited in several rounds of several launches, each visit with many iterations. The replicate of any claim
is the launch. Spreads are relative: standard deviations of the logarithm of time, where 0.05 is 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean, variance
from typing import Any, TypeVar

from commbench.results.stats import median

T = TypeVar("T")

LEVEL = 0.05  # how often equal sets are called different in some cell, at most
FEWEST_LAUNCHES = 5  # of each set, before a difference is called real
DIFFERENT, SAME, CANNOT_TELL = "different", "same", "cannot tell"
LAUNCHES, ROUNDS, ITERATIONS = "launches", "rounds", "iterations"

_NORMAL = 1.4826  # standard deviation / median absolute deviation, of a normal distribution
_MEDIAN_LOSS = math.pi / 2  # variance of a median / variance of a mean
_MOST_LABELLINGS = 20_000
_EXACT = 2_500  # differences
_TWO_SIDED = 1.96  # standard deviations of a normal distribution that 95 % lie within
_LEAST_ERROR = 1e-3  # of a difference: below 0.1 % clocks decide, not libraries
_SMALLER_PEAK, _VALLEY, _SORTED = 0.15, 0.5, 0.5
_PEAKS_APART, _PEAKS_APART_US = 0.05, 0.1


@dataclass(frozen=True)
class Round:
    """One visit of a cell that was timed."""

    time_us: float  # median of all its iterations
    iterations: int
    samples_us: Sequence[float]  # those that were kept


Cell = Sequence[Sequence[Round]]  # launch by launch


@dataclass(frozen=True)
class Spread:
    """What each level adds to the relative spread of a single iteration; None where nothing was repeated."""

    launches: float | None
    rounds: float | None
    iterations: float | None

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """How the variance divides among launches, rounds and iterations; None unless there is some, of all three."""
        if self.launches is None or self.rounds is None or self.iterations is None:
            return None
        squares = [self.launches**2, self.rounds**2, self.iterations**2]
        whole = sum(squares)
        return (squares[0] / whole, squares[1] / whole, squares[2] / whole) if whole else None


def components(cell: Cell) -> Spread:
    """Split the spread of a cell by level, as in nested analysis of variance, of the logarithms of the visits' medians.

    Iterations' own spread is robust (by the median absolute deviation): what a median ignores, as rare stalls, must
    not be subtracted from the spread of medians.
    """
    deviations = []
    for visit in (visit for launch in cell for visit in launch if len(visit.samples_us) > 1):
        logs = [_log(sample) for sample in visit.samples_us]
        middle, degrees = median(logs), math.sqrt(len(logs) / (len(logs) - 1))
        deviations += [abs(log - middle) * degrees for log in logs]
    iterations = _NORMAL * median(deviations) if deviations else None

    logs_of = [[_log(visit.time_us) for visit in launch] for launch in cell if launch]
    several = [logs for logs in logs_of if len(logs) > 1]
    within = rounds = launches = None
    if several:
        within = sum(variance(logs) * (len(logs) - 1) for logs in several) / sum(len(logs) - 1 for logs in several)
        inverse = fmean(1 / visit.iterations for launch in cell for visit in launch)
        rounds = _root(within - _MEDIAN_LOSS * (iterations or 0.0) ** 2 * inverse)
    if len(logs_of) > 1:
        between = variance([fmean(logs) for logs in logs_of])
        launches = _root(between - (within or 0.0) * fmean(1 / len(logs) for logs in logs_of))
    return Spread(launches, rounds, iterations)


def _log(time_us: float) -> float:
    return math.log(max(time_us, 1e-6))  # a time of zero is one below the clock's step


def _root(square: float) -> float:
    return math.sqrt(max(square, 0.0))


@dataclass(frozen=True)
class Peaks:
    """Two values around which a cell's times lie, and what changes from one to the other."""

    level: str  # launches: each launch lies at one of them; rounds: each visit does; iterations: visits have both
    low_us: float
    high_us: float
    high_share: float


def two_peaks(cell: Cell) -> Peaks | None:
    """Return the two peaks of a cell's samples, None where they have not clearly two.

    Otsu's cut of the logarithms, which leaves at least 15 % on either side, must explain more than 0.75 + 0.6/sqrt(n)
    of the variance (a flat distribution has 0.75); the middle third between the peaks must hold at most half of the
    samples that lie within a sixth around either; and the peaks must be 5 % and 0.1 us apart. n counts independent
    values, of which there are as many as launches where launches lie whole on one side, else as many as visits where
    visits do, else as many as samples.
    """
    import numpy as np

    visits = [(i, np.log(np.maximum(v.samples_us, 1e-6))) for i, launch in enumerate(cell) for v in launch]
    visits = [(i, logs) for i, logs in visits if len(logs)]
    if not visits:
        return None
    logs = np.concatenate([logs for _, logs in visits])
    ordered = np.sort(np.clip(logs, *np.quantile(logs, (0.025, 0.975))))
    size = len(ordered)
    below = np.arange(1, size)
    sums = np.cumsum(ordered)[:-1]
    gaps = (ordered.sum() - sums) / (size - below) - sums / below
    shares = below / size
    between = np.where(np.minimum(shares, 1 - shares) >= _SMALLER_PEAK, shares * (1 - shares) * gaps**2, 0.0)
    if not between.any():
        return None
    cut = int(between.argmax())
    low, high = float(np.median(ordered[: cut + 1])), float(np.median(ordered[cut + 1 :]))
    at_low, at_high, between_them = (
        np.count_nonzero(abs(ordered - centre) <= (high - low) / 6) for centre in (low, high, (low + high) / 2)
    )
    low_us, high_us = math.exp(low), math.exp(high)
    if (
        between_them > _VALLEY * min(at_low, at_high)
        or high_us < low_us * (1 + _PEAKS_APART)
        or high_us < low_us + _PEAKS_APART_US
    ):
        return None

    sides = [(i, logs > (ordered[cut] + ordered[cut + 1]) / 2) for i, logs in visits]
    launches = [np.concatenate([side for i, side in sides if i == launch]) for launch in sorted({i for i, _ in sides})]
    units = {LAUNCHES: launches, ROUNDS: [side for _, side in sides]}
    level = next((level for level, parts in units.items() if _sorted(parts)), ITERATIONS)
    independent = len(units[level]) if level in units else size
    if between[cut] <= (0.75 + 0.6 / math.sqrt(independent)) * ordered.var():
        return None
    return Peaks(level, low_us, high_us, float(np.mean(np.concatenate([side for _, side in sides]))))


def _sorted(parts: Sequence[Any]) -> bool:
    """Whether the two sides (False, True) are apart by part: half as well as could be, beyond what chance gives."""
    size = sum(map(len, parts))
    high = sum(int(part.sum()) for part in parts)
    bare = max(high, size - high)
    pure = sum(max(int(part.sum()), len(part) - int(part.sum())) for part in parts)
    return pure - bare > _SORTED * (size - bare)


@dataclass(frozen=True)
class Comparison:
    """What two sets of launches, a and b, say of one cell."""

    ratio: float | None  # time of a / time of b: median of all ratios of a launch of a and one of b
    low: float | None  # interval over launches, of this cell alone, at least 95 %
    high: float | None
    p: float  # how often equal sets differ so much in some cell
    verdict: str


Times = Sequence[float | None]  # launch by launch; None where the cell has no time


def compare(cells: Sequence[tuple[Times, Times]], margin: float) -> list[Comparison]:
    """Compare two sets of launches cell by cell.

    A cell is different where launches shuffled between the sets give so large a difference in any cell in at most 5 %
    of all ways (the maximum of Student's t over the cells, of logarithms: Westfall and Young), so that all cells
    together are wrong in at most 5 % of comparisons, however many and however dependent they are. Holm's correction
    of rank tests could never find anything in seven cells of five launches. A cell that is not different is the same
    where the interval lies within `margin`.
    """
    ps = family(cells)
    return [_compare_one(a, b, p, margin) for (a, b), p in zip(cells, ps, strict=True)]


def _compare_one(a: Times, b: Times, p: float, margin: float) -> Comparison:
    ratio, low, high = ratio_interval(a, b)
    verdict = CANNOT_TELL
    if ratio is not None and p <= LEVEL:
        verdict = DIFFERENT
    elif within(low, high, margin):
        verdict = SAME
    return Comparison(ratio, low, high, p, verdict)


def ratio_interval(a: Times, b: Times) -> tuple[float | None, float | None, float | None]:
    """Return the median of all ratios of a launch of a and one of b, and the ends of its interval, at least 95 %.

    The ends are None where so few launches give no such interval; all three where a set has no time.
    """
    ratios = sorted(one / other for one in a if one for other in b if other)
    if not ratios:
        return None, None, None
    k = _outside(sum(map(bool, a)), sum(map(bool, b)))
    low, high = (ratios[k - 1], ratios[-k]) if k else (None, None)
    return median(ratios), low, high


def difference_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the median of all differences, one of b less one of a, and the ends of its interval, about 95 %.

    The ends are None where so few values give no such interval; all three where a set is empty. Exact up to 2,500
    differences, beyond by the normal distribution of Mann and Whitney's statistic (Lehmann, as below, section 1.3).
    """
    differences = sorted(other - one for one in a for other in b)
    if not differences:
        return None, None, None
    n, m = len(a), len(b)
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    k = _outside(n, m) if n * m <= _EXACT else math.floor(n * m / 2 - _TWO_SIDED * spread)
    low, high = (differences[k - 1], differences[-k]) if k else (None, None)
    return median(differences), low, high


def within(low: float | None, high: float | None, margin: float) -> bool:
    """Whether an interval of a ratio says that the two times are the same within `margin`."""
    return low is not None and high is not None and low >= 1 / (1 + margin) and high <= 1 + margin


@cache
def _outside(n: int, m: int) -> int:
    """Return the k for which the k-th smallest and k-th largest of the n x m ratios enclose the true one with 95 %.

    0 where none do. By the exact distribution of Mann and Whitney's statistic (Lehmann, Nonparametrics, section 2.6).
    """
    ways = [[1] for _ in range(m + 1)]  # ways[j][u]: orders of i of one set and j of the other with statistic u
    for i in range(1, n + 1):
        row = [[1]]
        for j in range(1, m + 1):
            shifted = [0] * j + ways[j]
            row.append([sum(pair) for pair in _padded(row[j - 1], shifted, i * j + 1)])
        ways = row
    counts, k, tail = ways[m], 0, 0
    while k < len(counts) and 2 * (tail + counts[k]) <= LEVEL * math.comb(n + m, n):
        tail += counts[k]
        k += 1
    return k


def _padded(one: Sequence[int], other: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    return zip([*one, *[0] * (size - len(one))], [*other, *[0] * (size - len(other))], strict=True)


def family(cells: Sequence[tuple[Times, Times]]) -> list[float]:
    """Return each cell's p: the share of labellings of the launches whose largest |t| of all cells reaches its own.

    Each set has as many times in one cell as in any other, None among them; launches keep their place.
    """
    if not cells:
        return []
    import numpy as np

    logs = np.array([[math.nan if not time else math.log(time) for time in (*a, *b)] for a, b in cells]).T
    known = ~np.isnan(logs)
    middles = np.where(known, logs, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    logs = np.where(known, logs - middles, 0.0)
    first, launches = len(cells[0][0]), len(logs)
    observed = np.arange(launches) < first
    own = _students(np, observed[None], logs, known)[0]
    reached, labellings = np.zeros(len(cells)), 0
    for labels in _labellings(np, launches, first):
        largest = _students(np, labels, logs, known).max(axis=1)
        reached += (largest[:, None] >= own * (1 - 1e-9)).sum(axis=0)
        labellings += len(labels)
    return [float(p) for p in reached / labellings]


def _students(np: Any, labels: Any, logs: Any, known: Any) -> Any:
    """Return |t| of each labelling (True: in the first set) and cell; 0 where a set has fewer than two times."""
    sides = []
    for side in (labels, ~labels):
        count, total, squares = (side.astype(float) @ of for of in (known.astype(float), logs, logs**2))
        mean = total / np.maximum(count, 1)
        sides.append((count, mean, np.maximum(squares - count * mean**2, 0.0)))
    (n, mean_a, rest_a), (m, mean_b, rest_b) = sides
    pooled = (rest_a + rest_b) / np.maximum(n + m - 2, 1) * (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1))
    return np.where((n > 1) & (m > 1), np.abs(mean_a - mean_b) / (np.sqrt(pooled) + _LEAST_ERROR), 0.0)


def _labellings(np: Any, launches: int, first: int) -> Iterator[Any]:
    """Yield all ways of putting `first` of the launches into the first set, in blocks; where there are too many, the
    given one and as many random ones as are kept."""
    if math.comb(launches, first) <= _MOST_LABELLINGS:
        chosen = np.array(list(combinations(range(launches), first)), dtype=int)
    else:
        chance = np.random.default_rng(launches)
        order = chance.random((_MOST_LABELLINGS, launches)).argsort(axis=1)[:, :first]
        order[0] = np.arange(first)
        chosen = order
    labels = np.zeros((len(chosen), launches), dtype=bool)
    np.put_along_axis(labels, chosen, True, axis=1)
    for begin in range(0, len(labels), 1000):
        yield labels[begin : begin + 1000]


def by_turns(launches: Sequence[T]) -> tuple[list[T], list[T]]:
    """Divide launches in the order a b b a a b b a, in which two commands are run."""
    turns = [(i + 1) // 2 % 2 for i in range(len(launches))]
    return [one for one, turn in zip(launches, turns, strict=True) if not turn], [
        one for one, turn in zip(launches, turns, strict=True) if turn
    ]
