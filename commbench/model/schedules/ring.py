"""Ring: each rank sends to the next one, in the order of the channel.

All-reduce is a reduce-scatter of n - 1 steps and an all-gather of as many, each step an n-th of the buffer (Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.model.schedule import Group, NotApplicable, Schedule, Step

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allreduce", "allgather", "reducescatter")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the ring of one channel."""
    if group.n < 2:
        raise NotApplicable("a ring takes two ranks")
    ring = group.orders[channel]
    steps = []
    if collective != "allgather":
        steps.append(turns(ring, behind=1, reduce=True))
    if collective != "reducescatter":
        steps.append(turns(ring, behind=0, reduce=False))
    return Schedule(group.n, tuple(steps))


def turns(ring: Ints, behind: int, reduce: bool) -> Step:
    """Return n - 1 turns of the ring; each rank first sends the block of the one so many places behind it."""
    import numpy as np

    n = len(ring)

    def moved(turn: int) -> tuple[Ints, Ints]:
        return np.arange(n), ring[(np.arange(n) - behind - turn) % n]

    return Step(ring, np.roll(ring, -1), np.ones(n, dtype=np.int64), moved, reduce, n - 1)
