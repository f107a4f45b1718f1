"""All-to-all: block j of rank r's result is block r of rank j.

mpirun -n 4 python -m commbench.alltoall -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, all_but_own

ALLTOALL = Collective(
    name="alltoall",
    title="all-to-all",
    mpi="Alltoall",
    sources=lambda block, rank, n, root: ((block,), rank),
    send_blocks=lambda rank, n, root: n,
    recv_blocks=lambda rank, n, root: n,
    busbw=all_but_own,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(ALLTOALL)
