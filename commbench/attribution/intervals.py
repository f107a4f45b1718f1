"""Sets of instants: rows of start and end (ns), sorted, apart from one another, none of them empty.

An interval holds its start and not its end. Each function takes O(n log n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


def union(starts: Times, ends: Times) -> Times:
    """Return the instants in any of the spans, (n, 2); spans come in any order, and those without length hold none."""
    some = starts < ends
    order = np.argsort(starts[some], kind="stable")
    starts, ends = starts[some][order], ends[some][order]
    if not len(starts):
        return np.zeros((0, 2), dtype=np.int64)
    reach = np.maximum.accumulate(ends)  # how far all spans up to here go
    apart = starts[1:] > reach[:-1]
    return np.column_stack((starts[np.r_[True, apart]], reach[np.r_[apart, True]]))


def total(intervals: Times) -> int:
    """Return how long a set is in all, ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def within(intervals: Times, instants: Times) -> NDArray[np.bool_]:
    """Return of each instant whether it is in the set."""
    # Starts and ends alternate: after an odd number of them one is inside.
    inside: NDArray[np.bool_] = np.searchsorted(intervals.ravel(), instants, side="right") % 2 == 1
    return inside
