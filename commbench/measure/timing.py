"""The timed loop: a stamp per iteration on every rank.

`barrier`: a barrier before each iteration, outside the stamps, as the OSU benchmarks do.
`loop`: back to back, as nccl-tests do.
`clock`: started at an agreed instant on a common clock (see clock.py). The three are never compared with each other.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("barrier", "loop", "clock")
PLAIN = "plain"  # the loop in Python; the compiled one says its own name in the record


def durations(
    method: str, runs: Sequence[Callable[[], Any]], barrier: Callable[[], Any], iterations: int
) -> NDArray[Any]:
    """Carry out `iterations` collectives, rotating over the slots' `runs`; return each one's seconds on this rank."""
    import numpy as np

    cycle = [runs[i % len(runs)] for i in range(iterations)]
    with without_gc():
        stamps = _with_barrier(cycle, barrier) if method == "barrier" else _back_to_back(cycle, barrier)
    return np.array(stamps)


@contextmanager
def without_gc() -> Iterator[None]:
    """Keep Python's garbage collector, which would stop a rank now and then, from running in the body."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _with_barrier(cycle: Sequence[Callable[[], Any]], barrier: Callable[[], Any]) -> list[float]:
    taken = []
    for run in cycle:
        barrier()
        start = perf_counter()
        run()
        taken.append(perf_counter() - start)
    return taken


def _back_to_back(cycle: Sequence[Callable[[], Any]], barrier: Callable[[], Any]) -> list[float]:
    barrier()
    stamps = [perf_counter()]
    for run in cycle:
        run()
        stamps.append(perf_counter())
    return [end - start for start, end in pairwise(stamps)]
