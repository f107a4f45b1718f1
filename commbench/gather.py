"""Gather: the root ends with every rank's block, in the order of the ranks.

mpirun -n 4 python -m commbench.gather -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, all_but_own

GATHER = Collective(
    name="gather",
    title="gather",
    mpi="Gather",
    sources=lambda block, rank, n, root: ((block,), 0),
    send_blocks=lambda rank, n, root: 1,
    recv_blocks=lambda rank, n, root: n * (rank == root),
    busbw=all_but_own,
    rooted=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(GATHER)
