"""Scattered: all-to-all with so many messages of each rank at a time, and the next ones when all of these are through.

MPICH's `scattered`; MPIR_CVAR_ALLTOALL_THROTTLE is how many, 32 unless it is set.
"""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group, Schedule, Step, listed

COLLECTIVES = ("alltoall",)
AT_ONCE = 32


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return a step for each 32 distances between ranks; distance 0 is the rank's own copy."""
    return Schedule(group.n, tuple(_step(group.n, first) for first in range(0, group.n, AT_ONCE)))


def _step(n: int, first: int) -> Step:
    distances = np.arange(max(first, 1), min(first + AT_ONCE, n))
    source = np.tile(np.arange(n), len(distances))
    target = (source + np.repeat(distances, n)) % n
    return listed(source, target, (source * n + target)[:, None])
