"""Who was late, how often, and what that rank was doing before it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.attribution.collectives import Split
from commbench.attribution.layers import Layers
from commbench.attribution.trace import Trace


@dataclass(frozen=True)
class Culprit:
    """A rank that others waited for. Durations in ns."""

    rank: int
    meetings: int  # at which it came last, for certain
    of: int  # of so many that it took part in and where one was late for certain
    steps: int  # in which it was the one most waited for
    of_steps: int
    lateness: int  # the median one of its late arrivals
    waited: int  # by all other ranks together, for it
    cause: str  # a layer of LAYERS, "earlier collective", or "" where nothing stands out
    before: Mapping[str, int]  # by layer: its time before it arrived, less the median of the others, a meeting
    upstream: tuple[int, ...] = ()  # whom it had waited for itself, followed to the first
    through: str = ""  # the group in which that was


def culprits(
    traces: Sequence[Trace], splits: Sequence[Split], layers: Sequence[Sequence[Layers]]
) -> tuple[Culprit, ...]:
    """Return who was late, the one most waited for first. `layers`: of each trace, its steps."""
    raise NotImplementedError
