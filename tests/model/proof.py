"""The proof of a schedule: every block's contributions, as sets, carried through its steps.

Contributions are bits of an integer, so that adding one that is there already is seen: nothing may be lost, doubled or
taken from where it is not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commbench.model.schedule import Group, Schedule

Held = dict[tuple[int, int], int]  # (endpoint, block): the ranks whose data it is, as bits


def start(collective: str, n: int, blocks: int) -> Held:
    """What each rank has before: its own data of the blocks that it sends."""
    each = blocks // n
    mine: dict[str, Callable[[int], range]] = {
        "allreduce": lambda rank: range(blocks),
        "reducescatter": lambda rank: range(blocks),
        "reduce": lambda rank: range(blocks),
        "broadcast": lambda rank: range(blocks if rank == 0 else 0),
        "allgather": lambda rank: range(rank * each, (rank + 1) * each),
        "alltoall": lambda rank: range(rank * n, (rank + 1) * n),
    }
    return {(rank, block): 1 << rank for rank in range(n) for block in mine[collective](rank)}


def goal(collective: str, n: int, blocks: int) -> Held:
    """What must be where after."""
    every, each = (1 << n) - 1, blocks // n
    wanted: dict[str, Callable[[], Held]] = {
        "allreduce": lambda: {(rank, block): every for rank in range(n) for block in range(blocks)},
        "reducescatter": lambda: {(block // each, block): every for block in range(blocks)},
        "reduce": lambda: {(0, block): every for block in range(blocks)},
        "broadcast": lambda: {(rank, block): 1 for rank in range(n) for block in range(blocks)},
        "allgather": lambda: {(rank, block): 1 << block // each for rank in range(n) for block in range(blocks)},
        "alltoall": lambda: {(to, of * n + to): 1 << of for of in range(n) for to in range(n)},
    }
    return wanted[collective]()


def prove(collective: str, group: Group, schedule: Schedule) -> None:
    """Carry the schedule out on sets and hold what comes of it against the goal."""
    n = group.n
    if collective in ("allgather", "reducescatter"):
        assert schedule.blocks % n == 0, "every rank has an equal share"
    if collective == "alltoall":
        assert schedule.blocks == n
    held = start(collective, n, schedule.blocks)
    ids = n * n if collective == "alltoall" else schedule.blocks
    most = n + group.domains + 1
    for place, step in enumerate(schedule.steps):
        assert step.times >= 1 and len(step.source) == len(step.target) == len(step.count)
        assert (step.source != step.target).all(), "nobody sends to itself"
        ends = np.concatenate([step.source, step.target])
        assert ends.min() >= 0 and ends.max() < most
        for repetition in range(step.times):
            transfer, block = step.moved(repetition)
            assert (np.bincount(transfer, minlength=len(step.source)) == step.count).all(), "the count is what is moved"
            assert ((block >= 0) & (block < ids)).all()
            before = dict(held)
            replaced = set()
            for one, what in zip(transfer.tolist(), block.tolist(), strict=True):
                source, target = int(step.source[one]), int(step.target[one])
                assert (source, what) in before, f"step {place}: {source} has no block {what} to send"
                there = (target, what)
                if step.reduce:
                    assert not held.get(there, 0) & before[source, what], f"step {place}: {there} is added twice"
                    held[there] = held.get(there, 0) | before[source, what]
                else:
                    assert there not in replaced, f"step {place}: {there} is replaced twice"
                    replaced.add(there)
                    held[there] = before[source, what]
    for there, contributions in goal(collective, n, schedule.blocks).items():
        assert held.get(there, 0) == contributions, f"{there} ends with {held.get(there, 0):b}, not {contributions:b}"
