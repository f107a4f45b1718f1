"""The all-reduce's door on ranks whose clocks differ: rank r is 5 ms x r ahead, and drifts.

`python -m tests.mpi.skewed --compare` asks how well the common clock is found instead, against the machine's own: rank
0 prints a line for each look at it. In the environment, COMMBENCH_TESTS_LATE names a rank that is late by 2 ms.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, sleep

from commbench.allreduce import ALLREDUCE
from commbench.backends._mpi_world import open_mpi
from commbench.backends.world import launch
from commbench.measure import clock

OFFSET, LATE = 5e-3, 2e-3
RANK = launch().rank
DRIFT = (0.0, 50e-6, 100e-6, -50e-6)[RANK % 4]
PAUSES = ((False, 0.0), (False, clock.STEADY + 0.1), (True, 0.0), (False, 0.5), (True, 0.0))  # refresh, seconds


def skewed() -> float:
    return perf_counter() * (1 + DRIFT) + OFFSET * RANK


def wait_until_and_sleep(local: float) -> None:
    wait_until(local)
    sleep(LATE)


def compare() -> None:
    """Print of each rank, for each look, how far off the common time is and its error (seconds), and the slope's."""
    world = open_mpi()
    common = clock.Clock(world)
    looks = []
    for refresh, pause in PAUSES:
        if refresh:
            common.refresh()
        sleep(pause)
        before, found, after = perf_counter(), common.common(clock.now()), perf_counter()
        off = max(0.0, before - found, found - after)
        looks.append({"rank": RANK, "off": off, "error": common.error, "slope": common.local(1.0) - common.local(0.0)})
    for found in world.gather(looks) or []:
        for look in found:
            print(json.dumps(look))
    common.close()
    world.close()


wait_until = clock.wait_until

if __name__ == "__main__":
    clock.clock_per_node = False
    clock.now = skewed
    if os.environ.get("COMMBENCH_TESTS_LATE") == str(RANK):
        clock.wait_until = wait_until_and_sleep
    if sys.argv[1:] == ["--compare"]:
        compare()
    else:
        from commbench.measure.cli import main

        main(ALLREDUCE)
