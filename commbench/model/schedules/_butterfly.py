"""The exchanges of pairs of ranks at distances 1, 2, 4, ... that several algorithms are made of.

They take a power of two of ranks. Where there are more, the first ones are folded: of each two neighbours the even one
gives its data to the odd one and waits for the result, as in MPICH (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Step, ranges

if TYPE_CHECKING:
    from commbench.model.schedule import Ints


def fold(n: int) -> tuple[Ints, Ints]:
    """Return the ranks that take part, a power of two, and those that wait, each of which is folded into the next."""
    extra = n - (1 << n.bit_length() - 1)
    return np.concatenate([np.arange(1, 2 * extra, 2), np.arange(2 * extra, n)]), np.arange(0, 2 * extra, 2)


def distances(members: int) -> list[int]:
    """Return 1, 2, 4, ... below the number of members."""
    return [1 << bit for bit in range(members.bit_length() - 1)]


def halving(members: Ints, order: Sequence[int], bounds: Ints) -> tuple[list[Step], Ints]:
    """Return a reduce-scatter in which pairs at the distances of `order` share what they have in halves.

    Share k is the blocks from bounds[k] to bounds[k + 1]; there are as many shares as members. Second: the share that
    each member ends with.
    """
    steps, me, width = [], np.arange(len(members)), len(members)
    first = np.zeros_like(me)  # of the shares that each member still sums up
    for distance in order:
        width //= 2
        upper = me & distance > 0
        steps.append(_exchange(members, distance, np.where(upper, first, first + width), width, bounds, reduce=True))
        first = np.where(upper, first + width, first)
    return steps, first


def doubling(members: Ints, order: Sequence[int], bounds: Ints, first: Ints) -> list[Step]:
    """Return the all-gather of the shares `first`: the way of `halving` back, which took `order` reversed."""
    steps, me, width = [], np.arange(len(members)), 1
    for distance in order:
        steps.append(_exchange(members, distance, first, width, bounds, reduce=False))
        first = np.where(me & distance > 0, first - width, first)
        width *= 2
    return steps


def _exchange(members: Ints, distance: int, first: Ints, width: int, bounds: Ints, reduce: bool) -> Step:
    """Each member sends the one at this distance `width` shares from `first` on."""
    target = members[np.arange(len(members)) ^ distance]
    count = bounds[first + width] - bounds[first]
    return ranges(members, target, bounds[first], count, blocks=int(bounds[-1]), reduce=reduce)
