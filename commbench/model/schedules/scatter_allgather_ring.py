"""Broadcast as a binomial scatter, then a ring that gathers: van de Geijn's, for long messages.

MPICH's `scatter_ring_allgather` and Open MPI's `scatter_allgather_ring`, for any number of ranks.
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, Schedule
from commbench.model.schedules.ring import turns
from commbench.model.schedules.scatter_allgather import scatter

COLLECTIVES = ("broadcast",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule, which is the same for all channels."""
    return Schedule(group.n, (*scatter(group.n), turns(np.arange(group.n), behind=0, reduce=False)))
