"""MPICH by control variables, for collectives that have one algorithm at all sizes.

A choice by size would take MPICH's JSON file of selections, which ends the job where it lacks any collective that is
used (measured with 5.0.2): none is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from commbench.recommend.export._settings import NotExported, Settings, one_for_all
from commbench.recommend.plan import Plan

TITLE = "MPICH settings"
LIBRARIES = ("MPICH",)  # whose records it may be told of
NAME = "mpich.env"

FUNCTIONS = {
    "allgather": "ALLGATHER",
    "allreduce": "ALLREDUCE",
    "alltoall": "ALLTOALL",
    "broadcast": "BCAST",
    "reduce": "REDUCE",
    "reducescatter": "REDUCE_SCATTER_BLOCK",
}
# MPICH's words for commbench's names, where they differ.
_BRUCK = {"bruck": "brucks", "k_bruck": "k_brucks", "nonblocking": "nb"}
ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "allgather": _BRUCK | dict.fromkeys(("recursive_doubling", "ring", "recexch_doubling", "recexch_halving"), ""),
    "allreduce": {
        "rabenseifner": "reduce_scatter_allgather",
        "k_rabenseifner": "k_reduce_scatter_allgather",
        "nonblocking": "nb",
        **dict.fromkeys(("smp", "recursive_doubling", "recursive_multiplying", "tree", "recexch", "ring"), ""),
    },
    "alltoall": _BRUCK | dict.fromkeys(("pairwise", "pairwise_sendrecv_replace", "scattered"), ""),
    "broadcast": {
        "scatter_allgather": "scatter_recursive_doubling_allgather",
        "scatter_allgather_ring": "scatter_ring_allgather",
        "nonblocking": "nb",
        **dict.fromkeys(("binomial", "smp", "pipelined_tree", "tree"), ""),
    },
    "reduce": {"rabenseifner": "reduce_scatter_gather", "nonblocking": "nb", "binomial": "", "smp": ""},
    "reducescatter": {
        "nonblocking": "nb",
        **dict.fromkeys(("recursive_doubling", "recursive_halving", "pairwise", "noncommutative"), ""),
    },
}


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return lines for the shell; raise NotExported where no collective has one algorithm for all sizes."""
    whole, others = one_for_all(one for one in plan.choices if one.collective in FUNCTIONS)
    if not whole:
        text = "a control variable is for all sizes and ranks, and no collective of the plan has one algorithm for all"
        raise NotExported("; ".join([f"no MPICH settings: {text}", *others]))
    lines = [f"# Left to the library: {text}" for text in others]
    for collective, function in FUNCTIONS.items():
        if (one := whole.get(collective)) is not None:
            known = ALGORITHMS[collective]
            if (name := one.algorithm) not in known:
                raise NotExported(f"no MPICH settings: {collective} has {', '.join(known)} here, and not {name[:40]!r}")
            lines.append(f"export MPIR_CVAR_{function}_INTRA_ALGORITHM={known[name] or name}")
    device = "# The device's own collectives would come before these.\nexport MPIR_CVAR_DEVICE_COLLECTIVES=none"
    return {NAME: "\n".join([f"# source {NAME}", *lines, device]) + "\n"}


def parse(text: str) -> dict[str, str]:
    """Return the variables that the lines set."""
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines() if line.startswith("export "))
    return {name: value for name, _, value in pairs}
