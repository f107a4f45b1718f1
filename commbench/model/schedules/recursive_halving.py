"""Recursive halving: a reduce-scatter between ranks at distances n/2, n/4, ..., each time half of what is left.

MPICH's and Open MPI's `recursive_halving` (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005). Of two folded ranks one sums up the shares of both and sends the other's in the end.
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, Schedule, listed, whole
from commbench.model.schedules._butterfly import distances, fold, halving

COLLECTIVES = ("reducescatter",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    n = group.n
    members, waiting = fold(n)
    before = [whole(waiting, waiting + 1, n, reduce=True)] if len(waiting) else []
    after = [listed(waiting + 1, waiting, waiting[:, None])] if len(waiting) else []
    # A member's share ends with its own block and begins where that of the one before it ends.
    steps, _ = halving(members, distances(len(members))[::-1], bounds=np.append(0, members + 1))
    return Schedule(n, (*before, *steps, *after))
