"""Pipeline: the ranks are one chain as they are numbered; segments follow one another (Open MPI's `pipeline`).

NCCL's broadcast and reduce do the same in the order of its rings: see ring.py.
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, Schedule
from commbench.model.schedules.ring import along

COLLECTIVES = ("broadcast", "reduce")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the chain from the root, or the one to it."""
    ranks = np.arange(group.n)
    return along(ranks) if collective == "broadcast" else along(ranks[::-1], reduce=True)
