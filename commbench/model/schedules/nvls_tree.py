"""NVLS in each NVLink domain, and the double binary tree between domains, pipelined.

Each rank has a share of the buffer, of which its domain's switch gives it the sum; ranks of the same place reduce
theirs over both trees of tree.py and multicast the result (NCCL's `src/graph/connect.cc`, connectNvls).
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, NotApplicable, Schedule, listed, places, whole
from commbench.model.schedules.nvls import check
from commbench.model.schedules.tree import both_ways, double_tree

COLLECTIVES = ("allreduce",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule of one channel."""
    check(group)
    if group.domains == 1:
        raise NotApplicable("a single NVLink domain: there is no tree between domains, nvls does it all")
    grid = places(group, channel)
    each = grid.shape[1]
    ranks, switch = np.arange(group.n), group.n + group.domain
    blocks = 2 * np.arange(each) + np.arange(2)[:, None]  # (trees, places): each tree has half of a share
    share = np.empty((group.n, 2), dtype=np.int64)
    share[grid] = blocks.T
    ups = [above for above, _ in double_tree(group.domains)]
    steps = (
        *(whole(ranks, switch, 2 * each, reduce=True), listed(switch, ranks, share)),
        *both_ways(ups, grid, blocks),
        *(listed(ranks, switch, share), whole(switch, ranks, 2 * each)),
    )
    return Schedule(2 * each, steps, pipelined=True)
