"""Every instant of a step in exactly one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.attribution.classes import Classes
from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

COMPUTE, MEMORY, COMMUNICATION, WAITING, HOST = LAYERS = ("compute", "memory", "communication", "waiting", "host")


@dataclass(frozen=True)
class Window:
    """The part of a trace that is one step; times in ns, on the trace's own clock."""

    step: int | None  # its number; None: the whole trace
    start: int
    end: int


@dataclass(frozen=True)
class Layers:
    """One rank's window, each instant in one layer. Durations in ns."""

    window: Window
    edges: Times  # (n + 1,), from the window's start to its end
    labels: NDArray[np.uint8]  # (n,), places in LAYERS
    hidden: int  # communication and waiting under compute or memory
    communication: int  # what tools call communication: the instants in which any call is under way
    exposed: int  # those of them in which nothing else is: communication and waiting together
    latency_bound: int  # of compute and memory
    unsplit: int  # of communication: calls without a peer's trace, or unmatched; waiting may be in it
    evidence: Mapping[str, int]  # of compute and memory, by what its class was told from

    def total(self, layer: str) -> int:
        """Return the ns in a layer; over all layers they add up to the window exactly."""
        raise NotImplementedError


def windows(trace: Trace) -> tuple[Window, ...]:
    """Return the steps of a trace, by when their work was launched; none where no step is marked."""
    raise NotImplementedError


def whole(trace: Trace) -> Window:
    """Return the window from the first work to the last."""
    raise NotImplementedError


def layers(trace: Trace, window: Window, waits: Mapping[int, int], classes: Classes) -> Layers:
    """Return the layers of a window. `waits`: until when (ns, the trace's own clock) a call waits, by its place."""
    raise NotImplementedError
