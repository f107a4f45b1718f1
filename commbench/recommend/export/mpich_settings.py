"""MPICH by control variables, for collectives that have one algorithm at all sizes.

A choice by size would take MPICH's JSON file of selections, which ends the job where it lacks any collective that is
used (measured with 5.0.2): none is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.plan import Plan

TITLE = "MPICH settings"
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
    lines = []
    for collective, function in FUNCTIONS.items():
        mine = [one for one in plan.choices if one.collective == collective]
        if len(mine) == 1 and mine[0].least == 0 and mine[0].below is None:
            known = ALGORITHMS[collective]
            if (name := mine[0].algorithm) not in known:
                raise NotExported(f"no MPICH settings: {collective} has {', '.join(known)} here, and not {name[:40]!r}")
            lines.append(f"export MPIR_CVAR_{function}_INTRA_ALGORITHM={known[name] or name}")
    if not lines:
        text = "a control variable holds for all sizes, and no collective of the plan has one algorithm for all"
        raise NotExported(f"no MPICH settings: {text}")
    device = "# The device's own collectives would come before these.\nexport MPIR_CVAR_DEVICE_COLLECTIVES=none"
    return {NAME: "\n".join([f"# source {NAME}", *lines, device]) + "\n"}


def parse(text: str) -> dict[str, str]:
    """Return the variables that the lines set."""
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines() if line.startswith("export "))
    return {name: value for name, _, value in pairs}
