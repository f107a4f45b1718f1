"""Bruck: ceil(log2 n) steps at distances 1, 2, 4, ..., for any number of ranks.

Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems", 1997; MPICH's `brucks`, Open MPI's `bruck` and `modified_bruck`. An all-gather moves no more
bytes than a ring; in an all-to-all a block travels once for each bit that is set in the distance between its ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, Schedule, Step, ranges

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allgather", "alltoall")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    n = group.n
    step = _gather if collective == "allgather" else _exchange
    return Schedule(n, tuple(step(n, 1 << bit) for bit in range((n - 1).bit_length())))


def _gather(n: int, distance: int) -> Step:
    """Each rank has the blocks from its own on, as many as `distance`; it sends them so far back."""
    rank = np.arange(n)
    return ranges(rank, (rank - distance) % n, rank, np.full(n, min(distance, n - distance)), blocks=n)


def _exchange(n: int, distance: int) -> Step:
    """Of the blocks that have so far to go, the bits below are gone already; now they go this one."""
    rank, togo = np.arange(n), np.arange(n)
    togo = togo[togo & distance > 0]
    target = (rank + distance) % n

    def moved(repetition: int) -> tuple[Ints, Ints]:
        owner = (rank[:, None] - (togo & (distance - 1))) % n
        return np.repeat(rank, len(togo)), (owner * n + (owner + togo) % n).ravel()

    return Step(rank, target, np.full(n, len(togo)), moved)
