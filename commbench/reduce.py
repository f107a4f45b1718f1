"""Reduce: the root ends with the reduction of every rank's block.

mpirun -n 4 python -m commbench.reduce -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, flat

REDUCE = Collective(
    name="reduce",
    title="reduce",
    mpi="Reduce",
    sources=lambda block, rank, n, root: (range(n), 0),
    send_blocks=lambda rank, n, root: 1,
    recv_blocks=lambda rank, n, root: int(rank == root),
    busbw=flat,
    reduces=True,
    rooted=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(REDUCE)
