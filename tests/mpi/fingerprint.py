"""Prints, on rank 0, a hash of one float32 all-reduce for each algorithm named: another order of adding, another hash.

mpirun -n 4 python -m tests.mpi.fingerprint auto ring auto
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from commbench.allreduce import ALLREDUCE
from commbench.backends._mpi_world import open_mpi
from commbench.backends.base import Call
from commbench.backends.mpi import Backend

COUNT = 4096


def main() -> None:
    world = open_mpi()
    backend = Backend()
    backend.open(world)
    offered = {algorithm.name: algorithm for algorithm in backend.algorithms(ALLREDUCE)}
    random = np.random.default_rng(world.rank)
    send = (random.random(COUNT) * 10.0 ** random.integers(-3, 4, COUNT)).astype(np.float32)
    found = []
    for name in sys.argv[1:]:
        recv = np.zeros_like(send)
        with backend.using(ALLREDUCE, offered[name]):
            plan = backend.plan(Call(ALLREDUCE, offered[name], "float32", 4, "sum", COUNT, 0, False), [(send, recv)])
            plan.runs[0]()
        found.append(hashlib.sha256(recv.tobytes()).hexdigest())
    everywhere = world.gather(found)
    if everywhere is not None:
        assert everywhere == [found] * world.size, "ranks have different results"
        print(json.dumps(found))
    backend.close()
    world.close()


if __name__ == "__main__":
    main()
