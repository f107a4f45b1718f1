"""Pairwise: in n - 1 steps every rank meets every other one, one a step (MPICH's and Open MPI's `pairwise`).

In an all-to-all rank r exchanges with r ^ step where n is a power of two (MPICH; Open MPI never does), else it sends to
r + step and receives from r - step; in a reduce-scatter always the latter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, Schedule, Step

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("alltoall", "reducescatter")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    n = group.n
    exchange = collective == "alltoall" and n & (n - 1) == 0
    return Schedule(n, tuple(_step(collective, n, step, exchange) for step in range(1, n)))


def _step(collective: str, n: int, step: int, exchange: bool) -> Step:
    rank = np.arange(n)
    target = rank ^ step if exchange else (rank + step) % n

    def moved(repetition: int) -> tuple[Ints, Ints]:
        return rank, rank * n + target if collective == "alltoall" else target

    return Step(rank, target, np.ones(n, dtype=np.int64), moved, reduce=collective == "reducescatter")
