"""All-reduce by recursive halving, then recursive doubling: Rabenseifner's with the farthest rank first.

Half of the buffer goes the farthest and the smallest part to the neighbour, which suits other orders of the ranks than
rabenseifner.py does. It is recursive_halving.py, then the all-gather of recursive_doubling.py.
"""

from __future__ import annotations

from commbench.model.schedule import Group, Schedule
from commbench.model.schedules._butterfly import distances, fold
from commbench.model.schedules.rabenseifner import at

COLLECTIVES = ("allreduce",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    return at(distances(len(fold(group.n)[0]))[::-1], group.n)
