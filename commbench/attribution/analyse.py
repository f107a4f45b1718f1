"""The whole attribution of a set of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.attribution.ceilings import Ceilings
from commbench.attribution.clocks import Alignment
from commbench.attribution.collectives import Split
from commbench.attribution.excess import Excess
from commbench.attribution.lateness import Culprit
from commbench.attribution.layers import Layers
from commbench.attribution.matching import Refusal
from commbench.attribution.trace import Trace


@dataclass(frozen=True)
class Advice:
    """One finding in words, and the command of ours that goes on from it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Attribution:
    """Where the time of the steps went, on each rank. Places are those of `traces`, which are sorted by rank."""

    traces: tuple[Trace, ...]
    alignments: tuple[Alignment, ...]
    layers: tuple[tuple[Layers, ...], ...]  # of each trace, each of its windows in order
    splits: tuple[Split, ...]  # in order of time
    refusals: tuple[Refusal, ...]
    culprits: tuple[Culprit, ...]
    excesses: tuple[Excess, ...]
    ceilings: Ceilings
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]  # of all that was clipped, left out, assumed

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The numbers of all steps, in order."""
        return tuple(dict.fromkeys(one.window.step for per in self.layers for one in per))

    def totals(self, place: int) -> Mapping[str, int]:
        """Return a trace's ns in each layer over all its windows."""
        raise NotImplementedError
