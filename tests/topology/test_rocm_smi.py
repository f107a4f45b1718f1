"""Matrices of rocm-smi --showtopo, the form of ROCm 5 and 6."""

from __future__ import annotations

import pytest

from commbench.topology.inside import findings
from commbench.topology.node import XGMI, NodeClass
from commbench.topology.reading import Reading, TopologyError, read_text
from tests.topology import nodes


def read(text: str) -> tuple[Reading, NodeClass]:
    found = read_text(text, "topo.txt")
    assert found.format == "rocm_smi"
    return found, found.cluster.classes[0]


def mesh(node: NodeClass) -> set[tuple[str, str]]:
    return {(link.a, link.b) for link in node.links if link.kind == XGMI}


def test_a_pair_that_is_two_hops_apart_has_no_link_of_its_own() -> None:
    found, node = read(nodes.ROCM)
    assert mesh(node) == {("gpu0", "gpu1"), ("gpu1", "gpu2")}
    assert [device.numa for device in node.devices] == [0, 1, None]
    assert found.findings == ()
    partial = next(one for one in findings(node, "x") if one.rule == "partial-mesh")
    assert partial.value.endswith("gpu0-gpu2")


def test_without_hops_every_pair_on_xgmi_is_taken_to_be_linked_and_that_is_said() -> None:
    head, _, rest = nodes.ROCM.partition(" Hops between two GPUs ")
    found, node = read(head.rstrip("=") + "=" + rest[rest.index(" Link Type") :])
    assert mesh(node) == {("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu1", "gpu2")}
    assert [one.value for one in found.findings] == ["there is no section Hops between two GPUs"]


def test_one_gpu_has_no_links() -> None:
    _, node = read("=== Link Type between two GPUs ===\n       GPU0\nGPU0   0\n")
    assert (len(node.devices), node.links) == (1, ())


def test_a_cut_matrix_is_said() -> None:
    lines = [line for line in nodes.ROCM.splitlines() if not line.startswith("GPU2 ")]
    found, node = read("\n".join(lines))
    assert len(node.devices) == 3
    assert "incomplete" in [one.rule for one in found.findings]


def test_a_section_without_gpus_is_refused() -> None:
    with pytest.raises(TopologyError, match="names a GPU"):
        read_text("=== Weight between two GPUs ===\n", "topo.txt")
