"""Scatter: rank r ends with the root's block r.

mpirun -n 4 python -m commbench.scatter -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, all_but_own

SCATTER = Collective(
    name="scatter",
    title="scatter",
    mpi="Scatter",
    sources=lambda block, rank, n, root: ((root,), rank),
    send_blocks=lambda rank, n, root: n * (rank == root),
    recv_blocks=lambda rank, n, root: 1,
    busbw=all_but_own,
    rooted=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(SCATTER)
