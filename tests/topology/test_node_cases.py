"""The public node descriptions of shared/cases: every value of their index.

The files are not the project's, and never part of it: COMMBENCH_CASES names their folder, or ../shared/cases from the
root of the repository.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from commbench.results.findings import Finding
from commbench.topology.inside import findings, islands, table, way
from commbench.topology.node import BRIDGE, CPU, NVLINK, NVSWITCH, PCIE, SOCKET, XGMI, NodeClass
from commbench.topology.reading import Reading, read

pytest.importorskip("defusedxml")

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

pytestmark = pytest.mark.skipif(not (CASES / "INDEX.md").exists(), reason=f"the public files are not here ({CASES})")

GEN3, GEN4, GEN5 = 8 * 16 * 128 / 130, 16 * 16 * 128 / 130, 32 * 16 * 128 / 130  # Gb/s of sixteen lanes


def reading(name: str) -> tuple[Reading, NodeClass]:
    found = read(CASES / name)
    assert found.cluster.nodes == 1
    (node,) = found.cluster.classes
    return found, node


def rules(of: Reading | list[Finding]) -> set[str]:
    return {one.rule for one in (of.findings if isinstance(of, Reading) else of)}


def count(node: NodeClass, kind: str) -> int:
    return sum(hub.kind == kind for hub in node.hubs)


def parents(node: NodeClass) -> dict[str, str]:
    """The hub that each end hangs on."""
    ends = {device.id for device in node.devices} | {nic.id for nic in node.nics}
    return {link.a: link.b for link in node.links if link.kind == PCIE and link.a in ends}


def rates(node: NodeClass) -> set[float]:
    return {round(link.gbps or 0, 6) for link in node.links if link.kind == PCIE}


def per_gpu(node: NodeClass, kind: str) -> set[int]:
    """How many links each GPU has: all that occur."""
    ends = Counter(end for link in node.links if link.kind == kind for end in (link.a, link.b))
    return {ends[device.id] for device in node.devices}


def test_p4d_has_two_gpus_and_a_nic_behind_each_of_four_bridges() -> None:
    found, node = reading("nccl_topo/aws_p4d-24xl-topo.xml")
    assert (len(node.devices), len(node.nics), count(node, CPU), count(node, BRIDGE)) == (8, 4, 2, 4)
    assert Counter(parents(node).values()) == dict.fromkeys((f"ffff:ff:0{n}.0" for n in range(1, 5)), 3)
    assert rates(node) == {round(GEN3, 6)}
    assert {device.vendor for device in node.devices} == {"nvidia"}
    assert rules(found) == {"no-gpu-tags", "nvlink-unknown"}
    assert [row["way"] for row in table(node)] == ["PIX"] * 8
    assert {"shared-nic", "shared-uplink"} <= rules(findings(node, "p4d"))


def test_ndv2_has_its_only_nic_on_one_side_and_its_nvlink_is_unknown() -> None:
    found, node = reading("nccl_topo/azure_ndv2-topo.xml")
    assert Counter(device.numa for device in node.devices) == {0: 4, 1: 4}
    assert [(nic.busid, nic.numa, nic.gbps) for nic in node.nics] == [("0101:00:00.0", 0, None)]
    assert (count(node, CPU), count(node, BRIDGE)) == (2, 0)
    unknown = next(one for one in found.findings if one.rule == "nvlink-unknown")
    assert unknown.value == "NVLink not described: unknown, not absent"
    assert not any(link.kind == NVLINK for link in node.links)
    far = next(one for one in findings(node, "ndv2") if one.rule == "far-nic")
    assert far.count == 4


def test_ndv4_has_gpus_whose_bus_order_is_not_the_order_of_numa_nodes() -> None:
    _, node = reading("nccl_topo/azure_ndv4-topo.xml")
    assert (count(node, CPU), count(node, BRIDGE), len(node.nics)) == (4, 4, 8)
    on = {numa: {device.busid[:4] for device in node.devices if device.numa == numa} for numa in range(4)}
    assert on == {0: {"0003", "0004"}, 1: {"0001", "0002"}, 2: {"000d", "000e"}, 3: {"000b", "000c"}}


def test_ndv5_has_a_gpu_and_a_nic_behind_each_of_eight_bridges() -> None:
    _, node = reading("nccl_topo/azure_ndv5-topo.xml")
    assert (count(node, CPU), count(node, BRIDGE), len(node.devices), len(node.nics)) == (2, 8, 8, 8)
    assert set(Counter(parents(node).values()).values()) == {2}
    assert rates(node) == {round(GEN5, 6)}
    on = {numa: {device.busid[:4] for device in node.devices if device.numa == numa} for numa in range(2)}
    assert on == {0: {"0001", "0002", "0003", "0008"}, 1: {"0009", "000a", "000b", "000c"}}
    assert [row["nic"] for row in table(node)] == [nic.id for nic in node.nics]


def test_mi250x_is_one_partial_mesh_with_a_slow_nic_in_a_narrow_slot() -> None:
    found, node = reading("nccl_topo/rccl_topo_8p_90a.xml")
    assert {device.arch for device in node.devices} == {"gfx90a"}  # HIP's number for it is 910
    links = [link for link in node.links if link.kind == XGMI]
    assert 2 * len(links) == 24  # the file has both ends of each
    assert {(link.count, link.gbps, link.source) for link in links} == {(1, 8 * 36.0, "default")}
    assert per_gpu(node, XGMI) == {3}
    assert len(islands(node)) == 1
    partial = next(one for one in findings(node, "mi250x") if one.rule == "partial-mesh")
    assert partial.count == 8 * 7 // 2 - 12
    (nic,) = node.nics
    assert (nic.id, nic.gbps) == ("eth0", 1.0)
    assert next(link.gbps for link in node.links if link.a == "eth0") == 2.0
    (slot,) = (one for one in found.findings if one.rule == "x1-slot")
    assert slot.lines == (64,)


def test_mi300x_is_a_full_mesh_with_a_nic_for_each_gpu() -> None:
    _, node = reading("nccl_topo/rccl_topo_8p_940.xml")
    assert {device.arch for device in node.devices} == {"gfx942"}
    assert {device.vendor for device in node.devices} == {"amd"}
    assert (count(node, CPU), count(node, BRIDGE)) == (2, 24)
    assert 2 * sum(link.kind == XGMI for link in node.links) == 56
    assert per_gpu(node, XGMI) == {7}
    assert {nic.gbps for nic in node.nics} == {400.0}
    assert [row["nic"] for row in table(node)] == [f"mlx5_{n}" for n in range(8)]
    assert {row["gbps"] for row in table(node)} == {400.0}
    assert rules(findings(node, "mi300x")) == set()


def test_mi100_is_two_hives() -> None:
    _, node = reading("nccl_topo/rccl_topo_8p_rome_4n_2.xml")
    assert [hub.numa for hub in node.hubs if hub.kind == CPU] == [1, 3, 5, 7]
    assert {device.arch for device in node.devices} == {"gfx908"}
    assert 2 * sum(link.kind == XGMI for link in node.links) == 24
    assert per_gpu(node, XGMI) == {3}
    assert [len(group) for group in islands(node)] == [4, 4]
    assert [nic.gbps for nic in node.nics] == [100.0] * 4


def test_gpus_far_from_any_nic_and_two_rings_are_said() -> None:
    _, node = reading("nccl_topo/rccl_topo_8p_ts1_n4_2.xml")
    assert [hub.numa for hub in node.hubs if hub.kind == CPU] == [1, 2, 3, 4, 5, 7, 0, 6]
    assert {device.arch for device in node.devices} == {"gfx906"}
    assert 2 * sum(link.kind == XGMI for link in node.links) == 16
    assert per_gpu(node, XGMI) == {2}
    assert [len(group) for group in islands(node)] == [4, 4]
    assert [(nic.id, nic.gbps) for nic in node.nics] == [("mlx5_0", 200.0), ("mlx5_1", 100.0), ("mlx5_2", 200.0)]
    assert len({nic.busid for nic in node.nics}) == 2
    assert not {device.numa for device in node.devices} & {nic.numa for nic in node.nics}
    said = {one.rule: one for one in findings(node, "ts1")}
    assert said["far-nic"].count == 8
    assert said["partial-mesh"].count == 2 * 2  # the diagonals of two rings
    assert said["shared-slot"].value.endswith("mlx5_0 mlx5_1 of 300 Gb/s in 252.1 Gb/s")


def nvlinks(node: NodeClass) -> dict[frozenset[str], int]:
    return {frozenset((link.a, link.b)): link.count for link in node.links if link.kind == NVLINK}


def near(node: NodeClass, level: str) -> dict[str, set[str]]:
    """The NICs that are so near to each GPU."""
    return {
        device.id: {nic.id for nic in node.nics if way(node, node.route(device.id, nic.id)) == level}
        for device in node.devices
    }


def test_a_pair_with_two_nvlinks_and_no_numa_nodes() -> None:
    _, node = reading("smi_topo/nv_2gpu_nv2.txt")
    assert nvlinks(node) == {frozenset(("gpu0", "gpu1")): 2}
    assert [device.numa for device in node.devices] == [None, None]
    assert count(node, CPU) == 1  # both have the CPUs 0-23


@pytest.mark.parametrize(("name", "links"), [("nv_a100_nv12.txt", 12), ("nv_stas_h100_numa.txt", 18)])
def test_more_links_than_a_gpu_has_are_those_into_the_nvswitches(name: str, links: int) -> None:
    found, node = reading(f"smi_topo/{name}")
    assert nvlinks(node) == {frozenset((f"gpu{n}", "nvswitch")): links for n in range(8)}
    assert [device.numa for device in node.devices] == [0] * 4 + [1] * 4
    assert rules(found) == {"default-rates"}


def test_a_truncated_matrix_gives_what_it_has_and_says_so() -> None:
    found, node = reading("smi_topo/like_a100_amd_pxb_truncated.txt")
    told = {"gpu0": {"NIC3"}, "gpu1": {"NIC3"}, "gpu2": {"NIC4"}, "gpu3": {"NIC4"}, "gpu4": {"NIC0"}, "gpu5": {"NIC0"}}
    assert near(node, "PXB") == {**told, "gpu6": {"NIC1"}, "gpu7": set()}
    assert [device.numa for device in node.devices] == [3, 3, 1, 1, 7, 7, 5, None]
    idle = next(one for one in findings(node, "a100") if one.rule == "idle-nic")
    assert idle.value.endswith("NIC2, NIC5")
    (incomplete,) = (one for one in found.findings if one.rule == "incomplete")
    assert incomplete.value == "7 rows for 8 GPUs"


def test_nics_far_from_the_rows_that_are_there() -> None:
    found, node = reading("smi_topo/like_nv18_9nics_truncated.txt")
    assert near(node, "PIX") == {
        **{f"gpu{gpu}": {nic} for gpu, nic in enumerate(("NIC0", "NIC3", "NIC5", "NIC7"))},
        **{f"gpu{gpu}": set() for gpu in range(4, 8)},
    }
    assert near(node, "SYS")["gpu0"] == {"NIC1", "NIC2", "NIC4", "NIC6", "NIC8"}
    assert near(node, "NODE")["gpu0"] == {"NIC3", "NIC5", "NIC7"}
    (incomplete,) = (one for one in found.findings if one.rule == "incomplete")
    assert incomplete.value == "4 rows for 8 GPUs"


def test_one_gpu_alone_on_its_socket() -> None:
    _, node = reading("smi_topo/like_4gpu_sys_node.txt")
    ways = {(a, b): way(node, node.route(f"gpu{a}", f"gpu{b}")) for a in range(4) for b in range(a + 1, 4)}
    assert {pair for pair, name in ways.items() if name == "NODE"} == {(0, 1), (0, 2), (1, 2)}
    assert {pair for pair, name in ways.items() if name == "SYS"} == {(0, 3), (1, 3), (2, 3)}
    far = next(one for one in findings(node, "4gpu") if one.rule == "across-sockets")
    assert far.count == 3


def test_amd_gpus_on_pcie_meet_in_pairs() -> None:
    found, node = reading("smi_topo/like_rocm_4gpu_pcie.txt")
    assert not any(link.kind == XGMI for link in node.links)
    ways = {(a, b): way(node, node.route(f"gpu{a}", f"gpu{b}")) for a in range(4) for b in range(a + 1, 4)}
    assert {pair for pair, name in ways.items() if name == "PHB"} == {(0, 1), (2, 3)}
    assert {pair for pair, name in ways.items() if name == "SYS"} == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert rules(found) == {"missing-section"}


def test_the_older_form_of_rocm_smi_numbers_numa_nodes_otherwise_than_gpus() -> None:
    _, node = reading("smi_topo/like_rocm_4gpu_xgmi_oldformat.txt")
    assert [device.numa for device in node.devices] == [3, 1, 0, 2]
    assert sum(link.kind == XGMI for link in node.links) == 6
    assert {link.gbps for link in node.links} == {None}
    assert sum(link.kind == SOCKET for link in node.links) == 6


def test_lstopo_of_mixed_gpus_has_those_that_a_driver_knows() -> None:
    found, node = reading("lstopo/32em64t-2n8c2t-pci-normalio.xml")
    assert found.cluster.blocks[0].nodes == ("host1",)
    assert count(node, CPU) == 2
    assert [(one.id, one.busid, one.vendor) for one in node.devices] == [
        ("cuda0", "0000:84:00.0", "nvidia"),
        ("opencl0d1", "0000:84:00.1", "amd"),
    ]
    said = {one.rule: one for one in found.findings}
    assert said["no-driver-device"].value.endswith("0000:03:00.0, 0000:83:00.0")
    assert "opencl-only" in said
    assert said["repeated-address"].value == "2 PCI devices have the address 0000:04:00.0"
    rdma = next(nic for nic in node.nics if nic.id == "mlx5_0")
    assert (rdma.numa, rdma.guid, rdma.role) == (1, "248a:0703:001e:39fe", "compute")
    assert [nic.id for nic in node.nics if nic.role == "storage"] == ["eth0", "eth1"]
    assert {link.gbps for link in node.links} == {None}  # this hwloc could not see the speed of any link


def test_lstopo_of_a_dgx2_has_sixteen_gpus_on_one_plane_of_nvswitches() -> None:
    found, node = reading("lstopo/nvidiaDGX2.xml")
    assert [device.id for device in node.devices] == [f"nvml{n}" for n in range(16)]
    assert Counter(device.numa for device in node.devices) == {0: 8, 1: 8}
    assert (count(node, CPU), count(node, NVSWITCH)) == (2, 1)
    assert nvlinks(node) == {frozenset((f"nvml{n}", "nvswitch")): 6 for n in range(16)}
    assert {(link.gbps, link.source) for link in node.links if link.kind == NVLINK} == {(1200.0, "discovered")}
    silent = next(one for one in found.findings if one.rule == "silent-nvswitch")
    assert silent.value == "1 of 12 NVSwitches does not say what it is: 0000:66:00.0"
    assert {round(link.gbps or 0) for link in node.links if link.kind == PCIE} == {round(GEN3)}
