"""How likely it is by chance that a rank is waited for as much, or as often, as it was.

What makes a rank late in one collective of a step makes it late in the next ones too, so that steps are counted and not
collectives. By chance, which rank has which of a step's waits is an even draw among those that could have been late,
from step to step anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.05  # how often chance convicts any rank of a job, at most
_SCALES = np.geomspace(
    1e-4, 1e4, 161
)  # any of them gives a bound; the least one is within a part of a step of the best


def by_chance(steps: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return for each rank a bound of the probability that chance makes others wait for it as they did.

    `steps`: how long others waited for each rank that could have been late, 0 where they did not. Of two tests the
    smaller probability counts, twice (Bonferroni): that of the time they waited in all, which finds a rank that is far
    behind in some steps, and that of the number of steps in which they waited for it most, which one huge step of
    another rank does not hide.
    """
    some = [step for step in steps if len(step) > 1 and any(step.values())]
    of_time = _of_time(some)
    return {rank: min(1.0, 2 * min(bound, _of_steps(rank, some))) for rank, bound in of_time.items()}


def _of_time(steps: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return for each rank a bound of the probability of so long a wait in all (Chernoff 1952).

    It is the least over t of the product over steps of the mean over ranks of exp(t (wait - this rank's wait)).
    """
    scale = max((max(step.values()) for step in steps), default=1)
    logs: dict[int, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(_SCALES)))
    for step in steps:
        waits = np.array([*step.values()]) / scale
        most = waits.max()
        mean = np.log(np.exp(np.outer(_SCALES, waits - most)).mean(axis=1)) + _SCALES * most
        for rank, wait in zip(step, waits.tolist(), strict=True):
            logs[rank] += mean - _SCALES * wait
    return {rank: math.exp(min(0.0, float(its.min()))) for rank, its in logs.items()}


def _of_steps(rank: int, steps: Sequence[Mapping[int, float]]) -> float:
    """Return the probability of being the one most waited for in so many steps: a sign test.

    Of steps in which unlike numbers of ranks could have been late the mean chance counts, whose tail is the longer one
    (Hoeffding 1956).
    """
    those = [step for step in steps if rank in step]
    most = [max(step.values()) for step in those]
    times = sum(step[rank] == longest for step, longest in zip(those, most, strict=True))
    alike = (
        [*step.values()].count(longest) / len(step) for step, longest in zip(those, most, strict=True)
    )  # with ties
    return tail(times, len(those), fmean(alike))


def tail(least: int, of: int, chance: float) -> float:
    """Return the probability of at least so many of `of` where each has this chance, above 0."""
    if chance >= 1:
        return 1.0
    yes, no = math.log(chance), math.log1p(-chance)
    ways = (math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(least, of + 1))
    return sum(math.exp(way + k * yes + (of - k) * no) for k, way in zip(range(least, of + 1), ways, strict=True))
