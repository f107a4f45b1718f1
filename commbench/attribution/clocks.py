"""The clocks of ranks made one, with what each may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

# How a rank's clock was set against the first one's (`Alignment.source`).
SHARED, MEASURED, FROM_TRACES, ASSUMED = "one host", "ping-pong", "the traces", "none"


@dataclass(frozen=True)
class Reading:
    """At `local` ns on a rank's clock the common one showed `common` ns, give or take `error`."""

    local: int
    common: int
    error: int


@dataclass(frozen=True)
class Alignment:
    """How a trace's clock becomes the common one: common = local + offset + (local - since) x drift."""

    source: str
    offset: int = 0  # ns
    drift: float = 0.0  # seconds a second
    since: int = 0  # ns, local
    error: int = 0  # ns: how far common times may be off

    def common(self, local: Any) -> Any:
        """Return common times (ns) of local ones, a number or an array."""
        raise NotImplementedError


def align(traces: Sequence[Trace], readings: Mapping[int, Sequence[Reading]]) -> tuple[Alignment, ...]:
    """Return each trace's alignment. `readings`: those of ranks that measured their clocks."""
    raise NotImplementedError
