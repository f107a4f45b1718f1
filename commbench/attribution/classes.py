"""Whether work is bound by arithmetic, by memory or by neither, and by which evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Classes of a span: what is neither is communication, or not work at all (a wrapper, a call of the runtime).
NEITHER, COMPUTE_WORK, MEMORY_WORK = range(3)
# Evidence of a span's class, the best first.
COUNTERS, ROOFLINE, NAME, NONE = "counters", "roofline", "name", "none"
EVIDENCE = (COUNTERS, ROOFLINE, NAME, NONE)


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at most."""

    bandwidth: float | None = None  # bytes/s, measured by our own kernels where there are records
    flops: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by data type
    source: str = ""  # in words


@dataclass(frozen=True)
class Classes:
    """The class of each span of a trace; arrays as long as its spans."""

    work: NDArray[np.uint8]  # NEITHER, COMPUTE_WORK or MEMORY_WORK
    evidence: NDArray[np.uint8]  # a place in EVIDENCE
    latency_bound: NDArray[np.bool_]  # takes far longer than arithmetic or memory would


def classify(trace: Trace, ceilings: Ceilings) -> Classes:
    """Return the class of each span, by the best evidence at hand."""
    raise NotImplementedError
