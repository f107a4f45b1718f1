"""Clocks of ranks whose raw clocks differ by milliseconds, though the machine's time is one: tests.mpi.skewed's.

`mpirun -n 3 python -m tests.training.skewed` prints what each rank found.
"""

from __future__ import annotations

import json
from time import sleep

from commbench.backends._mpi_world import open_mpi
from commbench.measure import clock
from commbench.training.profiling import Clocks
from tests.mpi.skewed import skewed

if __name__ == "__main__":
    clock.clock_per_node = False
    clock.now = skewed
    world = open_mpi()
    clocks = Clocks(world)
    clocks.read()
    sleep(0.7)
    clocks.read()
    for found in world.gather(clocks.found()) or []:
        print(json.dumps(found))
    world.close()
