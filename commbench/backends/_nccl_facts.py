"""Which algorithm and protocol NCCL and RCCL have, for which call and on what machine.

What is not known here (a switch, a network that reduces) is not refused: the library is asked, and its answer stands.
File names are those of NCCL 2.30.7 unless another version is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commbench.backends.base import AUTO

PROTOCOLS = ("ll", "ll128", "simple")
_GATHERING = ("AllReduce", "AllGather", "ReduceScatter")
COLLECTIVES = (*_GATHERING, "Broadcast", "Reduce")
POINT_TO_POINT = ("AlltoAll", "Gather", "Scatter", "SendRecv")  # made of sends and receives: collectives.cc, enqueue.cc


class Fact(NamedTuple):
    """One algorithm: its names, its first NCCL, and what it exists for."""

    row: str  # in algSelection, before _PROTOCOL: src/config/algorithm_registry.cc of 2.31
    variable: str  # in NCCL_ALGO, whose case does not matter: user guide, env.rst
    since: int  # env.rst, NCCL_ALGO
    functions: tuple[str, ...]  # src/graph/tuning.cc, src/device/generate.py
    protocols: tuple[str, ...]  # src/device/generate.py: other than simple with ring and tree only
    rccl: bool  # RCCL's src/device/generate.py (2.30) builds kernels of three algorithms


FACTS = {
    "ring": Fact("RING", "ring", 2500, COLLECTIVES, PROTOCOLS, True),
    "tree": Fact("TREE", "tree", 2500, ("AllReduce",), PROTOCOLS, True),
    "collnet_direct": Fact("COLLNET_DIRECT", "collnetdirect", 21400, _GATHERING, ("simple",), False),
    "collnet_chain": Fact("COLLNET_CHAIN", "collnetchain", 21400, ("AllReduce",), ("simple",), False),
    "nvls": Fact("NVLS", "nvls", 21700, _GATHERING, ("simple",), False),
    "nvls_tree": Fact("NVLSTREE", "nvlstree", 21800, ("AllReduce",), ("simple",), False),
    "pat": Fact("PAT", "pat", 22300, ("AllGather", "ReduceScatter"), ("simple",), True),
}

# ncclNvlsSupported, src/include/device.h. The average is no sum there: hostToDevRedOp in src/enqueue.cc makes it a
# multiplication before (floating point) or a division after (integers), which the switch does not do.
_SUM_MIN_MAX = ("sum", "min", "max")
NVLS_REDUCES = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "float16", "bfloat16"), _SUM_MIN_MAX),
    **dict.fromkeys(("float32", "float64"), ("sum",)),
}
NVLS_CAPABILITY = (9, 0)  # required_cuda, src/device/generate.py
NVLS_LEAST = 3  # ncclNvlsInit, src/transport/nvls.cc: two GPUs that share a switch do without
COLLNET_NODES = 2  # NCCL_COLLNET_NODE_THRESHOLD, src/init.cc
COLLNET_DIRECT_MOST = 8  # NCCL_MAX_DIRECT_ARITY + 1, src/include/device.h
NAMES_FUNCTIONS = 22400  # NCCL_ALGO with functions: env.rst
PAT_CAPABILITY = (6, 0)  # ncclPatEnable, src/graph/tuning.cc


def refusal(
    vendor: str,
    version: int,
    function: str,
    algorithm: str,
    protocol: str | None,
    dtype: str,
    redop: str | None,
    n: int,
    nodes: int,
    ranks_per_node: int,
    nvswitch: bool | None,
    capability: tuple[int, int] | None,
    collnet: bool | None = None,
) -> str:
    """Return why the library of `vendor` ("NVIDIA" or "AMD") cannot carry out this call so, or nothing.

    `version` is ncclGetVersion's; `function` an NCCL name such as "AllReduce"; names of algorithms, protocols and types
    are canonical. `n` ranks on `nodes` nodes, at most `ranks_per_node` on one. `nvswitch`, `capability` and `collnet`
    (whether the network reduces, and NCCL_COLLNET_ENABLE lets it) are None where they are not known.
    """
    library = "RCCL" if vendor == "AMD" else "NCCL"
    chosen = algorithm if protocol is None else f"{algorithm} with {protocol}"
    if protocol is not None and protocol not in PROTOCOLS:
        return f"{library} has no protocol {protocol}: it has {_listed(PROTOCOLS)}"
    facts = {name: fact for name, fact in FACTS.items() if fact.rccl or vendor != "AMD"}
    if algorithm != AUTO and algorithm not in facts:
        return f"{library} has no algorithm {algorithm}: it has {_listed(list(facts))}"
    if algorithm == AUTO and protocol is None:
        return ""
    if function in POINT_TO_POINT:
        return f"{library} makes {function} of sends and receives, which have no algorithm or protocol to choose"
    if n == 1:  # ncclTopoTuneModel, src/graph/tuning.cc, returns before it reads NCCL_ALGO
        if algorithm in (AUTO, "ring") and protocol in (None, "simple"):
            return ""
        return f"{library} runs one rank as ring with simple, whatever is chosen: {chosen} needs two ranks or more"
    if algorithm == AUTO:
        return ""
    fact = facts[algorithm]
    if version < fact.since:
        return f"{algorithm} came with {library} {version_text(fact.since)}, and this is {version_text(version)}"
    if function not in fact.functions:
        there = [name for name, each in facts.items() if function in each.functions]
        return f"{library} has no {function} by {algorithm}: it has {_listed(there)}"
    if protocol is not None and protocol not in fact.protocols:
        return f"{library} has {protocol} with ring and tree only: {algorithm} goes with simple"
    if algorithm.startswith("nvls"):
        return _nvls_refusal(algorithm, function, dtype, redop, n, nodes, nvswitch, capability, collnet)
    if algorithm.startswith("collnet"):
        return _collnet_refusal(algorithm, nodes, ranks_per_node, nvswitch, collnet)
    if algorithm == "pat":
        return _pat_refusal(library, ranks_per_node, capability)
    return ""


def _nvls_refusal(
    algorithm: str,
    function: str,
    dtype: str,
    redop: str | None,
    n: int,
    nodes: int,
    nvswitch: bool | None,
    capability: tuple[int, int] | None,
    collnet: bool | None,
) -> str:
    if capability is not None and capability < NVLS_CAPABILITY:
        return f"{algorithm} needs GPUs of compute capability 9.0 or later, and these have {_dotted(capability)}"
    if nvswitch is False:
        return f"{algorithm} needs an NVSwitch that multicasts, and these GPUs have none"
    if function != "AllGather" and redop not in NVLS_REDUCES.get(dtype, ()):
        can = NVLS_REDUCES.get(dtype)
        return (
            f"NVLink switches reduce {dtype} by {_listed(can)} only, not {redop}"
            if can
            else (f"NVLink switches do not reduce {dtype}: they reduce {_listed(tuple(NVLS_REDUCES))}")
        )
    if n < NVLS_LEAST:
        return f"{algorithm} needs {NVLS_LEAST} GPUs or more, and there are {n}"
    if algorithm == "nvls_tree" and nodes == 1:
        return "nvls_tree joins nodes, and this is one: NCCL disables it there"
    if algorithm == "nvls" and nodes > 1 and collnet is False:
        return f"nvls on {nodes} nodes needs a network that reduces (SHARP) and NCCL_COLLNET_ENABLE=1"
    return ""


def _collnet_refusal(
    algorithm: str, nodes: int, ranks_per_node: int, nvswitch: bool | None, collnet: bool | None
) -> str:
    if nodes < COLLNET_NODES:
        return f"{algorithm} reduces in the network between nodes, and this is one node (NCCL_COLLNET_NODE_THRESHOLD)"
    if collnet is False:
        return f"{algorithm} needs a network that reduces (SHARP) and NCCL_COLLNET_ENABLE=1"
    if algorithm == "collnet_direct" and nvswitch is False:
        return "collnet_direct needs an NVSwitch, and these GPUs have none"
    if algorithm == "collnet_direct" and ranks_per_node > COLLNET_DIRECT_MOST:
        return f"collnet_direct takes at most {COLLNET_DIRECT_MOST} ranks a node, not {ranks_per_node}"
    return ""


def _pat_refusal(library: str, ranks_per_node: int, capability: tuple[int, int] | None) -> str:
    if capability is not None and capability < PAT_CAPABILITY:
        return f"pat needs GPUs of compute capability 6.0 or later, and these have {_dotted(capability)}"
    if ranks_per_node > 1:
        return f"{library} has pat with one GPU a node only (NCCL_PAT_ENABLE), and there are {ranks_per_node}"
    return ""


def row(algorithm: str, protocol: str | None) -> str:
    """Return what algSelection holds for a choice: row names, joined by commas; empty lets the library choose.

    Names match by prefix there (ncclAlgTagMask, src/config/algorithm_registry.cc of 2.31): NVLS alone would allow
    NVLSTREE_SIMPLE too, and RING_LL allows RING_LL128 unless that is taken out.
    """
    if algorithm == AUTO and protocol is None:
        return ""
    facts = FACTS.values() if algorithm == AUTO else [FACTS[algorithm]]
    rows = [f"{fact.row}_{each.upper()}" for fact in facts for each in fact.protocols if protocol in (None, each)]
    return ",".join(f"{each}+^{each}128" if each.endswith("_LL") else each for each in rows)


def environment(version: int, function: str, algorithm: str, protocol: str | None) -> dict[str, str]:
    """Return the variables that make a communicator, created while they are set, carry out `function` so.

    For libraries without algSelection. From 2.24 on they name the function, so that the others have all algorithms: one
    that an algorithm is not for would be refused, and a barrier is an all-reduce. An older library takes
    "allgather:pat" for an unknown algorithm and runs ring without a word, as it does where a choice is impossible.
    """
    if function in POINT_TO_POINT:
        return {}
    variables = {}
    if algorithm != AUTO:
        of_function = f"{function.lower()}:" if version >= NAMES_FUNCTIONS else ""
        variables["NCCL_ALGO"] = of_function + FACTS[algorithm].variable
    return variables if protocol is None else variables | {"NCCL_PROTO": protocol}


def version_text(version: int) -> str:
    """Return 2.27.7 of 22707; until 2.8 the middle number had one digit less (NCCL_VERSION, nccl.h)."""
    major, rest = divmod(version, 10000 if version >= 10000 else 1000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
