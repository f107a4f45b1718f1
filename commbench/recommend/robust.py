"""Orders that do not lose where the library chooses another algorithm than the model does.

A plan sets no algorithm that was not measured: the library chooses, by tables that the model does not know. What one
algorithm gains by an order another one may lose: a tree of switches that add up likes groups spread over all nodes, and
a ring does not. So an order is held against the one there is under each algorithm that the library might run, and one
that loses under none is preferred to one that gains more under the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commbench.model.placement import Placement
from commbench.recommend.order import Found, search
from commbench.recommend.score import Judge, Score
from commbench.recommend.tree import Tree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

PUBLISHED = 1.04, 1.75  # times over those predicted from data sheets, least and most: benchmarks/model_vs_published.py
# An algorithm that is predicted to take no more than the most of that beside the fastest one, in either order, may be
# what the library runs.
PLAUSIBLE = PUBLISHED[1]
WORTH = 0.03  # of a time: less is neither gain nor loss


@dataclass(frozen=True)
class Held:
    """An order held against another: gains are fractions of the other's time, negative for a loss.

    `otherwise` has the gain where the library runs the algorithm wherever it can, of those it might run and which are
    not the fastest of every flow in both orders anyway.
    """

    found: Found
    score: Score  # with the fastest algorithms
    gain: float
    otherwise: Mapping[str, float]

    @property
    def least(self) -> float:
        """The gain whatever the library runs."""
        return min(self.gain, *self.otherwise.values()) if self.otherwise else self.gain

    @property
    def loses(self) -> bool:
        """Whether there is an algorithm with which it is slower."""
        return self.least < -WORTH


def held(found: Found, score: Score, before: Score, factor: float = 1.0) -> Held:
    """Return an order against `before`, which takes `factor` times as long again, on nodes that are slow."""
    where: dict[str, set[str]] = {}  # the axes on which an algorithm may be run
    for part in (*before.parts, *score.parts):
        for name, seconds in part.others.items():
            if seconds <= PLAUSIBLE * part.seconds:
                where.setdefault(name, set()).add(part.axis)
    otherwise = {}
    for name, axes in where.items():
        there, here = (one.seconds_if(name, axes) for one in (before, score))
        if (there, here) != (before.seconds, score.seconds):
            otherwise[name] = _gain(here, factor * there)
    return Held(found, score, _gain(score.seconds, factor * before.seconds), otherwise)


def _gain(after: float, before: float) -> float:
    return 1 - after / before if before else 0.0


def choose(
    judge: Judge,
    seats: Placement,
    units: Tree,
    given: Mapping[str, Ints],
    before: Score,
    factor: float,
    seconds: float,
) -> tuple[Held, Held | None]:
    """Return the order to recommend against `before`, and the one with the fastest algorithms where that loses.

    Of orders that lose under no algorithm that may be run the one that gains most; else the one that loses least.
    `given` are orders on these seats by name, `factor` is as in `held`, `seconds` are for all searches.
    """

    def look(found: Found) -> Held:
        return held(found, judge.score(seats, found.seat), before, factor)

    several = any(len(judge.candidates(flow)) > 1 for flow in judge.traffic.flows)
    first = look(search(judge, seats, units, given, seconds / 2 if several else seconds))
    if not first.loses:
        return first, None
    others = [Found(seat, judge.score(seats, seat), how) for how, seat in given.items()]
    names = [name for name, gain in first.otherwise.items() if gain < 0]
    for name in names:
        found = search(replace(judge, preferred=name), seats, units, given, seconds / 2 / len(names))
        others.append(replace(found, exact=False))  # the best with this algorithm
    best = max((first, *map(look, others)), key=lambda one: (not one.loses, one.gain if not one.loses else one.least))
    return best, first
