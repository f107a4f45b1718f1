"""What commbench's start-up is held against: mpi4py, numpy and all-reduces of float32, nothing else.

    mpirun -n 4 python benchmarks/bare.py 8:200:150 64:200:150

Each argument is BYTES:CALLS:BARRIERS: that many all-reduces of so many bytes, and barriers before as many of them.
"""

import sys

import mpi4py

mpi4py.rc.threads = False  # as commbench: mpi4py's default costs up to twice the latency

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD
for argument in sys.argv[1:]:
    size, calls, barriers = map(int, argument.split(":"))
    send, recv = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    for i in range(calls):
        if i < barriers:
            comm.Barrier()
        comm.Allreduce(send, recv)
    if recv[0] != comm.Get_size():
        raise SystemExit(f"the sum of {size} B is {recv[0]}")
