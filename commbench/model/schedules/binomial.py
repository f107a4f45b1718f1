"""Binomial: in each step every rank that has the data sends it to one that has not, the farthest first.

MPICH's `binomial` (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
2005). Open MPI's sends to the nearest first. Reduce goes the same ways back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, Schedule, whole

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("broadcast", "reduce")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    edges = [(parent, child) for parent, child, _ in branches(group.n)]
    if collective == "broadcast":
        return Schedule(1, tuple(whole(parent, child) for parent, child in edges))
    return Schedule(1, tuple(whole(child, parent, reduce=True) for parent, child in reversed(edges)))


def branches(n: int) -> list[tuple[Ints, Ints, Ints]]:
    """Return for each distance, the farthest first: the parents, their children, and how many ranks hang on each child.

    These are the child and the ranks that follow it.
    """
    found = []
    for bit in reversed(range((n - 1).bit_length())):
        distance = 1 << bit
        child = np.arange(distance, n, 2 * distance)
        found.append((child - distance, child, np.minimum(distance, n - child)))
    return found
