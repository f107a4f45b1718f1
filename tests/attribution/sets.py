"""What sets of instants have in common and do not, which only tests ask; of `commbench.attribution.intervals`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.attribution.intervals import union, within

if TYPE_CHECKING:
    from commbench.attribution.intervals import Times


def intersection(one: Times, other: Times) -> Times:
    """Return the instants in both sets, (n, 2)."""
    return _where(one, other, True, True)


def difference(one: Times, other: Times) -> Times:
    """Return the instants in `one` that are not in `other`, (n, 2)."""
    return _where(one, other, True, False)


def _where(one: Times, other: Times, in_one: bool, in_other: bool) -> Times:
    edges = np.unique(np.concatenate((one.ravel(), other.ravel())))
    starts, ends = edges[:-1], edges[1:]
    wanted = (within(one, starts) == in_one) & (within(other, starts) == in_other)
    return union(starts[wanted], ends[wanted])
