"""Waiting told from transfer, in each collective on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.attribution.clocks import Alignment
from commbench.attribution.matching import Meeting
from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """One meeting's time on each rank whose trace is there; arrays of one length, in the order of `places`. Times in ns."""

    meeting: Meeting
    places: tuple[int, ...]  # of the traces
    arrival: Times  # common time
    end: Times  # common time
    wait: Times  # by arrivals: until the last one came
    transfer: Times  # the rest
    wait_by_duration: Times | None  # without clocks: what exceeds the shortest; None where that means nothing
    error: int  # how far a wait by arrivals may be off, from the clocks
    culprit: int | None  # the place of who came last; None where nobody can be told to be late
    lateness: int  # ns: the last arrival less the median one
    skew_only: bool = False  # waits mean nothing here, arrivals do: coalesced, uneven, or enqueue times only
    low_confidence: str = ""  # why the number is not to be trusted much, or nothing

    @property
    def distinguishable(self) -> bool:
        """Whether the lateness is more than twice what the clocks may be off."""
        return self.lateness > 2 * self.error


def split(meeting: Meeting, traces: Sequence[Trace], alignments: Sequence[Alignment]) -> Split:
    """Split one meeting's time."""
    raise NotImplementedError
