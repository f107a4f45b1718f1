"""Linear: every rank deals with every other one, or the root with all, in one step (Open MPI's `basic_linear`).

All-to-all is what NCCL's is too: all sends and receives in one group. All-reduce is reduce, then broadcast.
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, Schedule, listed, whole

COLLECTIVES = ("allreduce", "broadcast", "reduce", "alltoall")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    n = group.n
    if collective == "alltoall":
        # All begin with the next rank, so that they do not fall on one.
        source = np.tile(np.arange(n), n - 1)
        target = (source + np.repeat(np.arange(1, n), n)) % n
        return Schedule(n, (listed(source, target, (source * n + target)[:, None]),))
    others, root = np.arange(1, n), np.zeros(n - 1, dtype=np.int64)
    steps = []
    if collective != "broadcast":
        steps.append(whole(others, root, reduce=True))
    if collective != "reduce":
        steps.append(whole(root, others))
    return Schedule(1, tuple(steps))
