"""Runs jobs on emulated hosts as `tests.mpi.launch` does on this one.

As a script on each rank it says, on rank 0 and as JSON, where the ranks sit, and how long bytes take between pairs:

    python -m tests.system.hosts BYTES 0-1 0-2
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.emulated_hosts import ENVIRONMENT, Cluster, mpirun
from tests.mpi.launch import Done, Job, python, run


def launch(
    built: Cluster,
    module: str,
    *arguments: str,
    hosts: Sequence[str] | None = None,
    ranks_per_host: int = 1,
    timeout: float = 60,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run `module` on these hosts (default: all) and wait for its end."""
    command = mpirun(built, python(module, *arguments), hosts, ranks_per_host=ranks_per_host)
    return run(command, timeout=timeout, cwd=cwd, env={**ENVIRONMENT, **(env or {})})


def job(built: Cluster, cwd: Path, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Job:
    """Start `module` on all hosts."""
    return Job(mpirun(built, python(module, *arguments)), cwd, {**ENVIRONMENT, **(env or {})})


def main() -> None:
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    buffer = np.zeros(int(sys.argv[1]), dtype=np.uint8)
    pairs = sys.argv[2:]

    def move(pair: str) -> float:
        """Send from the first to the second, as seen by the first."""
        source, target = map(int, pair.split("-"))
        comm.Barrier()
        begin = perf_counter()
        if comm.rank == source:
            comm.Send(buffer, target)
            comm.Recv(buffer[:1], target)
        elif comm.rank == target:
            comm.Recv(buffer, source)
            comm.Send(buffer[:1], source)
        return comm.bcast(perf_counter() - begin, root=source)

    # In turns, and the best of each: other work on this machine only adds to a time.
    rounds = [[move(pair) for pair in pairs] for _ in range(6)]
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    sites = comm.gather((os.uname().nodename, node.bcast(comm.rank)))
    if sites:
        hosts, nodes = zip(*sites, strict=True)
        seconds = dict(zip(pairs, map(min, zip(*rounds, strict=True)), strict=True))
        print(json.dumps({"hosts": hosts, "nodes": nodes, "seconds": seconds}))


if __name__ == "__main__":
    main()
