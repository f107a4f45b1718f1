"""Measuring: what a collective is, the sweep over cells, the timed loop, the check of every answer."""

import os

# Before numpy is loaded: its OpenBLAS starts a thread for each core in every rank, and they spin (on two cores, loading
# numpy took 0.23 core seconds instead of 0.13). Nothing here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
