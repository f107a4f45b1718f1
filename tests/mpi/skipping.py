"""The MPI backend with one rank that leaves a collective out: the others wait for it for ever.

The environment says which rank (COMMBENCH_TESTS_RANK) and which of its calls (COMMBENCH_TESTS_CALL).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from commbench.backends import mpi
from commbench.backends.base import DEFAULTS, Call, Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World


class Backend(mpi.Backend):
    """MPI, but for one call of one rank."""

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        super().open(world, settings)
        left_out = (
            int(os.environ["COMMBENCH_TESTS_CALL"]) if world.rank == int(os.environ["COMMBENCH_TESTS_RANK"]) else -1
        )
        numbers = count()

        def unless_left_out(run: Callable[[], Any]) -> None:
            if next(numbers) != left_out:
                run()

        self._unless_left_out = unless_left_out

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> mpi.MpiPlan:
        plan = super().plan(call, slots)
        plan.runs = [partial(self._unless_left_out, run) for run in plan.runs]
        plan.native = lambda: None
        return plan
