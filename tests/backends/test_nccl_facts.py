"""What NCCL and RCCL cannot do, each fact at both sides of its border; the tables here are written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.backends import _nccl_facts as facts

HOPPER, AMPERE, VOLTA, MAXWELL = (9, 0), (8, 0), (7, 0), (5, 2)


def refusal(function: str, algorithm: str, protocol: str | None = None, **changed: Any) -> str:
    """Eight Hopper GPUs behind an NVSwitch in one node, unless changed."""
    usual: dict[str, Any] = {
        "vendor": "NVIDIA",
        "version": 23203,
        "dtype": "bfloat16",
        "redop": "sum" if function in ("AllReduce", "ReduceScatter", "Reduce") else None,
        "n": 8,
        "nodes": 1,
        "ranks_per_node": 8,
        "nvswitch": True,
        "capability": HOPPER,
    }
    return facts.refusal(function=function, algorithm=algorithm, protocol=protocol, **usual | changed)


def exists(function: str, algorithm: str, protocol: str | None = None, **changed: Any) -> bool:
    said = refusal(function, algorithm, protocol, **changed)
    assert said == said.strip() and not said.endswith("."), said
    return said == ""


NODES: dict[str, Any] = {"n": 16, "nodes": 2}
ONE_A_NODE: dict[str, Any] = {"n": 4, "nodes": 4, "ranks_per_node": 1}
# The table of the NCCL user guide and src/graph/tuning.cc: who exists anywhere at all.
THERE = {
    "AllReduce": {"ring", "tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"},
    "AllGather": {"ring", "collnet_direct", "nvls", "pat"},
    "ReduceScatter": {"ring", "collnet_direct", "nvls", "pat"},
    "Broadcast": {"ring"},
    "Reduce": {"ring"},
}


@pytest.mark.parametrize("function", THERE)
@pytest.mark.parametrize("algorithm", facts.FACTS)
def test_an_algorithm_exists_for_the_collectives_of_the_table(function: str, algorithm: str) -> None:
    somewhere = any(exists(function, algorithm, **place) for place in ({}, NODES, ONE_A_NODE))
    assert somewhere == (algorithm in THERE[function])


def test_a_missing_pair_is_refused_by_what_there_is_instead() -> None:
    said = refusal("AllGather", "tree")
    assert said == "NCCL has no AllGather by tree: it has ring, collnet_direct, nvls and pat"
    assert refusal("Broadcast", "tree") == "NCCL has no Broadcast by tree: it has ring"


@pytest.mark.parametrize("function", ["AlltoAll", "Gather", "Scatter", "SendRecv"])
def test_point_to_point_has_nothing_to_choose(function: str) -> None:
    assert exists(function, "auto")
    assert exists(function, "auto", n=1)
    for choice in (("ring", None), ("auto", "ll"), ("pat", "simple")):
        assert "sends and receives" in refusal(function, *choice)


@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
def test_short_protocols_go_with_ring_and_tree_only(protocol: str) -> None:
    assert exists("AllReduce", "ring", protocol)
    assert exists("AllReduce", "tree", protocol)
    assert exists("AllReduce", "auto", protocol)
    assert exists("AllReduce", "nvls", protocol) == (protocol == "simple")
    assert exists("AllGather", "pat", protocol, **ONE_A_NODE) == (protocol == "simple")


@pytest.mark.parametrize(
    ("algorithm", "before", "first"),
    [("nvls_tree", 21710, 21801), ("pat", 22203, 22304), ("nvls", 21605, 21701), ("collnet_chain", 21304, 21403)],
)
def test_an_algorithm_is_refused_before_its_first_version(algorithm: str, before: int, first: int) -> None:
    function = "AllGather" if algorithm == "pat" else "AllReduce"
    place = ONE_A_NODE if algorithm == "pat" else NODES
    assert f"this is 2.{before // 100 % 100}.{before % 100}" in refusal(function, algorithm, version=before, **place)
    assert exists(function, algorithm, version=first, **place)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max", "avg"])
def test_switches_reduce_what_ncclNvlsSupported_says(dtype: str, redop: str) -> None:
    can = dtype not in ("int8", "uint8") and (
        redop == "sum" or (redop in ("min", "max") and dtype not in ("float32", "float64"))
    )
    for function in ("AllReduce", "ReduceScatter"):
        assert exists(function, "nvls", dtype=dtype, redop=redop) == can
    assert exists("AllReduce", "nvls_tree", dtype=dtype, redop=redop, **NODES) == can
    assert exists("AllReduce", "ring", dtype=dtype, redop=redop)
    assert exists("AllGather", "nvls", dtype=dtype)


def test_nvls_needs_hopper_a_switch_and_three_gpus() -> None:
    assert "9.0" in refusal("AllReduce", "nvls", capability=AMPERE)
    assert exists("AllReduce", "nvls", capability=(10, 0))
    assert "NVSwitch" in refusal("AllReduce", "nvls", nvswitch=False)
    assert not exists("AllReduce", "nvls", n=2, ranks_per_node=2)
    assert exists("AllReduce", "nvls", n=3, ranks_per_node=3)


def test_what_is_unknown_of_the_machine_is_not_refused() -> None:
    for algorithm in ("nvls", "nvls_tree", "collnet_direct", "collnet_chain"):
        assert exists("AllReduce", algorithm, nvswitch=None, capability=None, collnet=None, **NODES)


def test_between_nodes_nvls_needs_a_network_that_reduces_and_nvls_tree_does_not() -> None:
    assert "SHARP" in refusal("AllReduce", "nvls", collnet=False, **NODES)
    assert exists("AllReduce", "nvls", collnet=True, **NODES)
    assert exists("AllReduce", "nvls", collnet=False)
    assert exists("AllReduce", "nvls_tree", collnet=False, **NODES)
    assert "one" in refusal("AllReduce", "nvls_tree")


def test_collnet_needs_nodes_and_its_network_and_direct_a_switch_and_at_most_eight() -> None:
    for algorithm in ("collnet_direct", "collnet_chain"):
        assert not exists("AllReduce", algorithm)
        assert not exists("AllReduce", algorithm, collnet=False, **NODES)
        assert exists("AllReduce", algorithm, collnet=True, **NODES)
        assert exists("AllReduce", algorithm, nvswitch=False, **NODES) == (algorithm == "collnet_chain")
        wide: dict[str, Any] = {"n": 18, "nodes": 2, "ranks_per_node": 9}
        assert exists("AllReduce", algorithm, **wide) == (algorithm == "collnet_chain")


def test_pat_is_for_one_gpu_a_node() -> None:
    assert exists("ReduceScatter", "pat", **ONE_A_NODE)
    assert "NCCL_PAT_ENABLE" in refusal("ReduceScatter", "pat", n=8, nodes=4, ranks_per_node=2)
    assert not exists("ReduceScatter", "pat", capability=MAXWELL, **ONE_A_NODE)
    assert exists("ReduceScatter", "pat", capability=VOLTA, **ONE_A_NODE)


def test_one_rank_is_ring_with_simple() -> None:
    alone: dict[str, Any] = {"n": 1, "ranks_per_node": 1}
    for choice in (("auto", None), ("ring", None), ("ring", "simple"), ("auto", "simple")):
        assert exists("AllReduce", *choice, **alone)
    for choice in (("tree", None), ("ring", "ll"), ("auto", "ll128"), ("nvls", "simple")):
        assert "one rank" in refusal("AllReduce", *choice, **alone)


def test_rccl_has_ring_tree_and_pat() -> None:
    amd: dict[str, Any] = {"vendor": "AMD", "version": 23004, "capability": None, "nvswitch": None}
    assert exists("AllReduce", "ring", "ll128", **amd)
    assert exists("AllReduce", "tree", "ll", **amd)
    assert exists("AllGather", "pat", **amd | ONE_A_NODE)
    assert refusal("AllGather", "tree", **amd) == "RCCL has no AllGather by tree: it has ring and pat"
    for algorithm in ("nvls", "nvls_tree", "collnet_direct", "collnet_chain"):
        assert refusal("AllReduce", algorithm, **amd | NODES) == (
            f"RCCL has no algorithm {algorithm}: it has ring, tree and pat"
        )


def test_a_name_of_another_library_is_refused_by_the_names_there_are() -> None:
    assert "no algorithm bruck" in refusal("AllReduce", "bruck")
    assert "no protocol eager" in refusal("AllReduce", "ring", "eager")


@pytest.mark.parametrize(
    ("algorithm", "protocol", "rows"),
    [
        ("auto", None, ""),
        ("ring", None, "RING_LL+^RING_LL128,RING_LL128,RING_SIMPLE"),
        ("ring", "ll", "RING_LL+^RING_LL128"),
        ("ring", "ll128", "RING_LL128"),
        ("tree", "simple", "TREE_SIMPLE"),
        ("collnet_direct", None, "COLLNET_DIRECT_SIMPLE"),
        ("collnet_chain", "simple", "COLLNET_CHAIN_SIMPLE"),
        ("nvls", None, "NVLS_SIMPLE"),
        ("nvls_tree", None, "NVLSTREE_SIMPLE"),
        ("pat", None, "PAT_SIMPLE"),
        ("auto", "ll", "RING_LL+^RING_LL128,TREE_LL+^TREE_LL128"),
    ],
)
def test_rows_name_what_is_meant_and_nothing_that_begins_alike(algorithm: str, protocol: str | None, rows: str) -> None:
    assert facts.row(algorithm, protocol) == rows


def test_older_libraries_are_told_by_variables() -> None:
    old = 22304
    assert facts.environment(old, "AllReduce", "auto", None) == {}
    assert facts.environment(old, "AllReduce", "tree", None) == {"NCCL_ALGO": "tree"}
    both = {"NCCL_ALGO": "nvlstree", "NCCL_PROTO": "simple"}
    assert facts.environment(old, "AllReduce", "nvls_tree", "simple") == both
    assert facts.environment(old, "AllGather", "auto", "ll128") == {"NCCL_PROTO": "ll128"}
    assert facts.environment(old, "AlltoAll", "ring", "ll") == {}


def test_from_2_24_on_an_algorithm_is_chosen_for_one_function_so_that_a_barrier_keeps_its_own() -> None:
    assert facts.environment(22304, "AllGather", "pat", None) == {"NCCL_ALGO": "pat"}
    assert facts.environment(22400, "AllGather", "pat", None) == {"NCCL_ALGO": "allgather:pat"}
    assert facts.environment(22707, "ReduceScatter", "ring", "ll") == {
        "NCCL_ALGO": "reducescatter:ring",
        "NCCL_PROTO": "ll",
    }


@pytest.mark.parametrize(
    ("version", "text"), [(23203, "2.32.3"), (22707, "2.27.7"), (21000, "2.10.0"), (2804, "2.8.4")]
)
def test_versions_are_read_as_the_header_codes_them(version: int, text: str) -> None:
    assert facts.version_text(version) == text
