"""Hierarchical: a ring in each NVLink domain, and rings between domains among the ranks of the same place.

All-reduce is a reduce-scatter in the domains, an all-reduce between them of what each rank has summed up, and an
all-gather in the domains (the 2D-torus of Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a
flash", 2018): no more bytes cross the network than in one ring over all, in far fewer steps. With devices of several
vendors the rings within are NCCL's or RCCL's, and only those between domains cross from one vendor to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, NotApplicable, Schedule, Step, places

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allreduce", "allgather", "reducescatter")
SPANS_VENDORS = True


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule of one channel. Domains of one rank each are a single ring between domains."""
    if group.domains < 2:
        raise NotApplicable("a single domain has no second level: ring is the same")
    grid = places(group, channel)
    steps: list[Step] = []
    if collective != "allgather":
        steps += [within(grid, 1, reduce=True), between(grid, 1, reduce=True)]
    if collective != "reducescatter":
        steps += [between(grid, 0, reduce=False), within(grid, 0, reduce=False)]
    return Schedule(group.n, tuple(step for step in steps if step.times))


def within(grid: Ints, behind: int, reduce: bool) -> Step:
    """Return the rings of all domains, whose ranks pass on what the ranks of one place own together."""
    domains, each = grid.shape

    def moved(turn: int) -> tuple[Ints, Ints]:
        owners = grid.T[(np.arange(each) - behind - turn) % each]  # (each, domains)
        return np.repeat(np.arange(grid.size), domains), np.tile(owners.ravel(), domains)

    target = np.roll(grid, -1, axis=1).ravel()
    return Step(grid.ravel(), target, np.full(grid.size, domains), moved, reduce, each - 1)


def between(grid: Ints, behind: int, reduce: bool) -> Step:
    """Return the rings of all places, from domain to domain."""
    domains, _ = grid.shape

    def moved(turn: int) -> tuple[Ints, Ints]:
        return np.arange(grid.size), grid[(np.arange(domains) - behind - turn) % domains].ravel()

    target = np.roll(grid, -1, axis=0).ravel()
    return Step(grid.ravel(), target, np.ones(grid.size, dtype=np.int64), moved, reduce, domains - 1)
