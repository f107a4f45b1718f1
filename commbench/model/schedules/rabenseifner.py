"""Rabenseifner's all-reduce: a reduce-scatter by halving, then an all-gather by doubling.

The distance between ranks doubles while the buffer halves: half of it goes to the neighbour first, as in MPICH's
`reduce_scatter_allgather`, Open MPI's `rabenseifner` and Gloo's `halving_doubling` (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005). Ranks above a power of two are folded with the
whole buffer, as in MPICH. The other direction is distance_halving.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commbench.model.schedule import Group, Schedule, whole
from commbench.model.schedules._butterfly import distances, doubling, fold, halving

COLLECTIVES = ("allreduce",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    return at(distances(len(fold(group.n)[0])), group.n)


def at(order: Sequence[int], n: int) -> Schedule:
    """Return the all-reduce that halves at these distances in this order."""
    members, waiting = fold(n)
    blocks = len(members)
    bounds = np.arange(blocks + 1)
    before = [whole(waiting, waiting + 1, blocks, reduce=True)] if len(waiting) else []
    after = [whole(waiting + 1, waiting, blocks)] if len(waiting) else []
    scatter, share = halving(members, order, bounds)
    gather = doubling(members, order[::-1], bounds, share)
    return Schedule(blocks, (*before, *scatter, *gather, *after))
