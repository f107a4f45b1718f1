"""Transfers held against our own measurements of the same collective, and what counters say of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.attribution.collectives import Split
from commbench.attribution.counters import Series
from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    from commbench.results.record import Record


@dataclass(frozen=True)
class Excess:
    """All meetings of one operation, size and group against what it takes alone. Durations in ns."""

    operation: str
    size: int  # bytes
    ranks: int
    meetings: int
    transfer: int  # the median one
    alone: int | None  # by our records, interpolated between sizes; None: no record fits
    record: str  # which one, or why none
    excess: int | None  # a meeting: transfer less alone; never called congestion by itself
    congestion: str  # what counters say: "" no counters, else in words, with the figures
    congested: bool = False  # counters rose in these windows and not beside them


def excess(
    traces: Sequence[Trace], splits: Sequence[Split], records: Sequence[Record], counters: Sequence[Series]
) -> tuple[Excess, ...]:
    """Return what transfers took beyond what they take alone, the most time in all first."""
    raise NotImplementedError
