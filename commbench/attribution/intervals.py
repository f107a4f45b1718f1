"""Sets of instants: rows of start and end (ns), sorted, apart from one another, none of them empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


def union(starts: Times, ends: Times) -> Times:
    """Return the instants in any of the spans, (n, 2)."""
    raise NotImplementedError
