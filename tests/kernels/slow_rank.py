"""`commbench.kernels.copy` on CPUs with one slow rank, which does all that is timed four times.

mpirun -n 2 python -m tests.kernels.slow_rank --device cpu --size 4M --factor none
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from commbench.kernels import _numba_cpu
from commbench.kernels._door import main
from commbench.kernels._pattern import Problem
from commbench.kernels.copy import PATTERNS

SLOW, TIMES = 1, 4


class Backend(_numba_cpu.Backend):
    """The cores of a rank, a quarter as fast on rank SLOW of the node."""

    def __init__(self, device: str, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self._times = TIMES if ordinal == SLOW else 1

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        once = super().prepare(problem, arenas)

        def launch() -> None:
            for _ in range(self._times):  # a copy that is done again is the same
                once()

        return launch


if __name__ == "__main__":
    _numba_cpu.Backend = Backend  # type: ignore[misc]
    main(PATTERNS)
