"""Broadcast as a binomial scatter, then an all-gather by recursive doubling, for long messages.

MPICH's `scatter_recursive_doubling_allgather` and Open MPI's `scatter_allgather` (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

from commbench.model.schedule import Group, Schedule, Step, ranges
from commbench.model.schedules import recursive_doubling
from commbench.model.schedules.binomial import branches

COLLECTIVES = ("broadcast",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    gather = recursive_doubling.schedule("allgather", group)
    return Schedule(group.n, (*scatter(group.n), *gather.steps))


def scatter(n: int) -> list[Step]:
    """Return the steps after which rank r has block r of the root's n."""
    return [ranges(parent, child, child, follow, blocks=n) for parent, child, follow in branches(n)]
