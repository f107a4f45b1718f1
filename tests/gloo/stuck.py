"""An all-reduce by Gloo in which the last rank stops itself once it was measured a while: `python -m tests.gloo.stuck`.

It is stopped as by SIGSTOP from outside, so that only the others can end the run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from commbench.allreduce import ALLREDUCE
from commbench.backends.base import Call
from commbench.backends.gloo import Backend, GlooPlan
from commbench.measure.cli import main

CALLS = 5


def stopping(run: Callable[[], Any]) -> Callable[[], Any]:
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        if calls == CALLS:
            os.kill(os.getpid(), signal.SIGSTOP)
        run()

    return counted


class LastStops(Backend):
    """Gloo whose last rank stops."""

    def plan(self, call: Call, slots: Sequence[tuple[Any, Any]]) -> GlooPlan:
        plan = super().plan(call, slots)
        if self._rank == self._size - 1:
            plan.runs = [stopping(run) for run in plan.runs]
        return plan


if __name__ == "__main__":
    import commbench.backends.gloo as module

    module.Backend = LastStops  # type: ignore[misc]
    main(ALLREDUCE, ["--backend", "gloo", *sys.argv[1:]])
