"""All-reduce: every rank ends with the reduction of every rank's block.

mpirun -n 4 python -m commbench.allreduce -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective

ALLREDUCE = Collective(
    name="allreduce",
    title="all-reduce",
    mpi="Allreduce",
    sources=lambda block, rank, n, root: (range(n), 0),
    send_blocks=lambda rank, n, root: 1,
    recv_blocks=lambda rank, n, root: 1,
    busbw=lambda n: 2 * (n - 1) / n,
    reduces=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(ALLREDUCE)
