"""Recursive doubling: log2 n steps, between ranks at distances 1, 2, 4, ...

All-reduce exchanges the whole buffer in each step, the best for short messages; ranks above a power of two are folded.
All-gather sends all that was gathered so far and takes a power of two, as in MPICH (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, NotApplicable, Schedule, whole
from commbench.model.schedules._butterfly import distances, doubling, fold

COLLECTIVES = ("allreduce", "allgather")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    n = group.n
    members, waiting = fold(n)
    if collective == "allgather":
        if len(waiting):
            raise NotApplicable(f"{n} ranks: recursive doubling gathers from a power of two only")
        return Schedule(n, tuple(doubling(members, distances(n), bounds=np.arange(n + 1), first=members)))
    before = [whole(waiting, waiting + 1, reduce=True)] if len(waiting) else []
    after = [whole(waiting + 1, waiting)] if len(waiting) else []
    place = np.arange(len(members))
    steps = [whole(members, members[place ^ distance], reduce=True) for distance in distances(len(members))]
    return Schedule(1, (*before, *steps, *after))
