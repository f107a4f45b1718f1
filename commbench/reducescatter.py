"""Reduce-scatter: rank r ends with the reduction of every rank's block r.

mpirun -n 4 python -m commbench.reducescatter -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, all_but_own

REDUCESCATTER = Collective(
    name="reducescatter",
    title="reduce-scatter",
    mpi="Reduce_scatter_block",
    sources=lambda block, rank, n, root: (range(n), rank),
    send_blocks=lambda rank, n, root: n,
    recv_blocks=lambda rank, n, root: 1,
    busbw=all_but_own,
    reduces=True,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(REDUCESCATTER)
