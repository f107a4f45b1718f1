"""Send-receive: every rank sends its block to the next rank and receives the one of the rank before.

mpirun -n 4 python -m commbench.sendrecv -b 8 -e 1M -f 8
"""

from __future__ import annotations

from commbench.measure.collective import Collective, flat

SENDRECV = Collective(
    name="sendrecv",
    title="send-receive",
    mpi="Sendrecv",
    sources=lambda block, rank, n, root: (((rank - 1) % n,), 0),
    send_blocks=lambda rank, n, root: 1,
    recv_blocks=lambda rank, n, root: 1,
    busbw=flat,
)

if __name__ == "__main__":
    from commbench.measure.cli import main

    main(SENDRECV)
