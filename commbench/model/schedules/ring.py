"""Ring: each rank sends to the next one, in the order of the channel.

All-reduce is a reduce-scatter of n - 1 steps and an all-gather of as many, each step an n-th of the buffer (Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). Broadcast and reduce go once
around, pipelined, from the root or to it (NCCL's `src/device/broadcast.h` and `reduce.h`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, Schedule, Step

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the ring of one channel."""
    ring = group.orders[channel]
    root = int(np.flatnonzero(ring == 0)[0])
    if collective == "broadcast":
        return along(np.roll(ring, -root))
    if collective == "reduce":
        return along(np.roll(ring, -root - 1), reduce=True)
    steps = []
    if collective != "allgather":
        steps.append(turns(ring, behind=1, reduce=True))
    if collective != "reducescatter":
        steps.append(turns(ring, behind=0, reduce=False))
    return Schedule(group.n, tuple(steps))


def turns(ring: Ints, behind: int, reduce: bool) -> Step:
    """Return n - 1 turns of the ring; each rank first sends the block of the one so many places behind it."""
    n = len(ring)

    def moved(turn: int) -> tuple[Ints, Ints]:
        return np.arange(n), ring[(np.arange(n) - behind - turn) % n]

    return Step(ring, np.roll(ring, -1), np.ones(n, dtype=np.int64), moved, reduce, n - 1)


def along(chain: Ints, reduce: bool = False) -> Schedule:
    """Return the whole buffer's way along a chain of ranks, pipelined."""
    one, zero = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)

    def moved(repetition: int) -> tuple[Ints, Ints]:
        return zero, zero

    hops = (Step(chain[at : at + 1], chain[at + 1 : at + 2], one, moved, reduce) for at in range(len(chain) - 1))
    return Schedule(1, tuple(hops), pipelined=True)
