"""Broadcast: every rank ends with the root's block.

mpirun -n 4 python -m commbench.broadcast -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, flat

BROADCAST = Collective(
    name="broadcast",
    title="broadcast",
    mpi="Bcast",
    sources=lambda block, rank, n, root: ((root,), 0),
    send_blocks=lambda rank, n, root: int(rank == root),
    recv_blocks=lambda rank, n, root: 1,
    busbw=flat,
    rooted=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(BROADCAST)
