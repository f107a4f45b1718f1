"""Canonical names of algorithms: one word for what libraries spell differently.

A name that is not listed is its own canonical name (dashes become underscores).
"""

from __future__ import annotations

_CANONICAL = {
    # MPICH
    "brucks": "bruck",
    "k_brucks": "k_bruck",
    "nb": "nonblocking",
    "reduce_scatter_allgather": "rabenseifner",
    "k_reduce_scatter_allgather": "k_rabenseifner",
    "reduce_scatter_gather": "rabenseifner",
    "scatter_ring_allgather": "scatter_allgather_ring",
    "scatter_recursive_doubling_allgather": "scatter_allgather",
    # Open MPI
    "basic_linear": "linear",
    "modified_bruck": "bruck",
    "two_proc": "two_rank",
    "neighbor": "neighbor_exchange",
    # NCCL and RCCL
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvlstree": "nvls_tree",
}
# What a user may ask for of any library and collective: a row says where it does not exist. A name that is not here is
# most likely a slip.
KNOWN = frozenset(
    (
        *("auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat", "smp", "nonblocking"),
        *("linear", "linear_sync", "linear_nb", "nonoverlapping", "segmented_ring", "chain", "pipeline", "sparbit"),
        *("recursive_doubling", "recursive_halving", "recursive_multiplying", "recexch", "recexch_doubling"),
        *("recexch_halving", "rabenseifner", "k_rabenseifner", "bruck", "k_bruck", "neighbor_exchange", "two_rank"),
        *("binary_tree", "split_binary_tree", "pipelined_tree", "binary", "in_order_binary", "binomial", "knomial"),
        *("scatter_allgather", "scatter_allgather_ring", "butterfly", "noncommutative", "scattered", "pairwise"),
        "pairwise_sendrecv_replace",
    )
)


def canonical(native: str) -> str:
    """Return the canonical name of an algorithm that a library calls `native`."""
    name = native.strip().lower().replace("-", "_").replace(" ", "_")
    return _CANONICAL.get(name, name)
