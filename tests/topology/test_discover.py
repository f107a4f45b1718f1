"""A live machine, made of files and commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.system import System
from commbench.topology.discover import discover
from commbench.topology.inside import table
from commbench.topology.node import BRIDGE, BUS, MEMORY, NVLINK, PCIE, SOCKET, XGMI, NodeClass
from commbench.topology.reading import Reading, TopologyError
from tests.diagnose.machines import OUTPUTS, Machine
from tests.topology import nodes

QUERY = "--query-gpu=index,pci.bus_id,compute_cap --format=csv,noheader"


def pci(machine: Machine, chain: str, kind: str, vendor: str, numa: int, speed: str = "32.0", lanes: int = 16) -> None:
    """A PCI device: `chain` is its path, such as pci0000:00/0000:00:01.0/0000:01:00.0."""
    folder = f"/sys/devices/{chain}"
    bus = chain.rpartition("/")[2]
    facts = {
        "class": kind,
        "vendor": vendor,
        "numa_node": str(numa),
        "max_link_speed": f"{speed} GT/s PCIe",
        "current_link_speed": "2.5 GT/s PCIe",  # idle
        "current_link_width": str(lanes),
        "max_link_width": "16",
    }
    for name, text in facts.items():
        machine.file(f"{folder}/{name}", text + "\n")
    machine.link(f"/sys/bus/pci/devices/{bus}", folder)


def cpus(machine: Machine, numa: int = 2, cores: int = 2) -> None:
    """NUMA nodes with cores of two threads."""
    for node in range(numa):
        first = 2 * cores * node
        machine.file(f"/sys/devices/system/node/node{node}/cpulist", f"{first}-{first + 2 * cores - 1}\n")
        for cpu in range(first, first + 2 * cores):
            low = cpu - cpu % 2
            machine.file(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{low}-{low + 1}\n")
    machine.file("/proc/sys/kernel/hostname", "gpu-17\n")


def infiniband(
    machine: Machine, name: str, chain: str, rate: str = "400 Gb/sec (4X NDR)", state: str = "4: ACTIVE"
) -> None:
    machine.file(f"/sys/class/infiniband/{name}/ports/1/rate", rate + "\n")
    machine.file(f"/sys/class/infiniband/{name}/ports/1/state", state + "\n")
    machine.file(f"/sys/class/infiniband/{name}/node_guid", "1234:0000:0000:0001\n")
    machine.link(f"/sys/class/infiniband/{name}/device", f"/sys/devices/{chain}")


def one(reading: Reading) -> NodeClass:
    assert reading.cluster.nodes == 1
    return reading.cluster.classes[0]


def rules(reading: Reading) -> list[str]:
    return [finding.rule for finding in reading.findings]


SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"  # a root port, and the upstream port of a PCIe switch
FAR = "pci0000:80/0000:80:01.0"


def nvidia(machine: Machine) -> None:
    """Two H100 and a NIC behind a switch, one H100 on the other socket."""
    cpus(machine)
    for chain in ("pci0000:00/0000:00:01.0", SWITCH, f"{SWITCH}/0000:02:00.0", f"{SWITCH}/0000:02:01.0",
                  f"{SWITCH}/0000:02:02.0", FAR):  # fmt: skip
        pci(machine, chain, "0x060400", "0x15b3", 0)
    pci(machine, f"{SWITCH}/0000:02:00.0/0000:03:00.0", "0x030200", "0x10de", 0)
    pci(machine, f"{SWITCH}/0000:02:01.0/0000:04:00.0", "0x030200", "0x10de", 0, lanes=8)
    pci(machine, f"{SWITCH}/0000:02:02.0/0000:05:00.0", "0x020700", "0x15b3", 0)
    pci(machine, f"{FAR}/0000:81:00.0", "0x030200", "0x10de", 1, speed="16.0")
    infiniband(machine, "mlx5_0", f"{SWITCH}/0000:02:02.0/0000:05:00.0")
    gpus = "0, 00000000:03:00.0, 9.0\n1, 00000000:04:00.0, 9.0\n2, 00000000:81:00.0, 9.0"
    matrix = [["X", "NV18", "NV18"], ["NV18", "X", "NV18"], ["NV18", "NV18", "X"]]
    topo = nodes.smi(matrix, ["GPU0", "GPU1", "GPU2"])
    status = "".join(
        f"GPU {n}: NVIDIA H100 (UUID: x)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n" for n in range(3)
    )
    machine.command(
        "nvidia-smi",
        f"case \"$*\" in\n  '{QUERY}') printf '{gpus}\\n' ;;\n"
        f"  'topo -m') cat <<'END'\n{topo}END\n  ;;\n  'nvlink --status') cat <<'END'\n{status}END\n  ;;\n"
        "  *) exit 2 ;;\nesac",
    )


def test_gpus_nics_and_switches_of_an_nvidia_machine(machine: Machine) -> None:
    nvidia(machine)
    reading = discover(machine.system())
    node = one(reading)
    assert reading.cluster.blocks[0].nodes == ("gpu-17",)
    assert [(gpu.id, gpu.arch, gpu.busid, gpu.numa) for gpu in node.devices] == [
        ("gpu0", "sm90", "0000:03:00.0", 0),
        ("gpu1", "sm90", "0000:04:00.0", 0),
        ("gpu2", "sm90", "0000:81:00.0", 1),
    ]
    assert [(nic.id, nic.gbps, nic.numa, nic.guid) for nic in node.nics] == [
        ("mlx5_0", 400.0, 0, "1234:0000:0000:0001")
    ]
    assert [hub.id for hub in node.hubs if hub.kind == BRIDGE] == ["0000:01:00.0"]
    assert [(row["way"], row["nic"]) for row in table(node)] == [
        ("PIX", "mlx5_0"),
        ("PIX", "mlx5_0"),
        ("SYS", "mlx5_0"),
    ]


def test_slots_count_at_the_speed_that_they_can_though_gpus_are_idle(machine: Machine) -> None:
    nvidia(machine)
    reading = discover(machine.system())
    rates = {link.a: round(link.gbps or 0, 1) for link in one(reading).links if link.kind == PCIE}
    assert rates == {"gpu0": 504.1, "gpu1": 252.1, "gpu2": 252.1, "mlx5_0": 504.1, "0000:01:00.0": 504.1}
    assert [finding.value for finding in reading.findings] == ["gpu1 has 8 of its 16 PCIe lanes"]


def test_nvlink_has_the_rate_that_the_driver_says(machine: Machine) -> None:
    nvidia(machine)
    links = [link for link in one(discover(machine.system())).links if link.kind == NVLINK]
    assert {(link.a, link.b, link.count, link.source) for link in links} == {
        (f"gpu{n}", "nvswitch", 18, "discovered") for n in range(3)
    }
    assert {round(link.gbps or 0, 1) for link in links} == {round(18 * 8 * 26.562, 1)}


def test_a_driver_that_hangs_leaves_the_gpus_of_the_bus_and_is_said(machine: Machine) -> None:
    nvidia(machine)
    machine.command("nvidia-smi", "sleep 60")
    reading = discover(machine.system(patience=0.3))
    assert [gpu.busid for gpu in one(reading).devices] == ["0000:03:00.0", "0000:04:00.0", "0000:81:00.0"]
    said = next(finding for finding in reading.findings if finding.rule == "gpus-without-driver")
    assert said.value == "3 NVIDIA GPUs on the bus, but nvidia-smi: nvidia-smi did not answer within 0.3 s"


def test_an_older_driver_that_knows_no_compute_capability_still_lists_its_gpus(machine: Machine) -> None:
    nvidia(machine)
    script = (machine.bin / "nvidia-smi").read_text().replace(",compute_cap", "").replace(", 9.0", "")
    (machine.bin / "nvidia-smi").write_text(script)
    node = one(discover(machine.system()))
    assert [(gpu.id, gpu.arch) for gpu in node.devices] == [("gpu0", ""), ("gpu1", ""), ("gpu2", "")]


def test_sockets_have_nccls_default_for_the_make_of_the_cpu(machine: Machine) -> None:
    nvidia(machine)
    machine.file(
        "/proc/cpuinfo", "processor : 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\nprocessor : 1\n"
    )
    (link,) = (link for link in one(discover(machine.system())).links if link.kind == SOCKET)
    assert (link.gbps, link.source) == (192.0, "default")


def test_a_matrix_that_fails_makes_nvlink_unknown(machine: Machine) -> None:
    nvidia(machine)
    script = (machine.bin / "nvidia-smi").read_text().replace("'topo -m')", "'no')")
    (machine.bin / "nvidia-smi").write_text(script)
    reading = discover(machine.system())
    assert not any(link.kind == NVLINK for link in one(reading).links)
    assert "nvlink-unknown" in rules(reading)


def amd(machine: Machine, with_kfd: bool = True) -> None:
    """Two GCDs of an MI250X with four xGMI links between them."""
    cpus(machine)
    for number, bus in enumerate(("c1", "c5")):
        pci(machine, f"pci0000:c0/0000:c0:0{number + 1}.0/0000:{bus}:00.0", "0x038000", "0x1002", 0)
        if not with_kfd:
            continue
        folder = f"/sys/class/kfd/kfd/topology/nodes/{number + 2}"
        machine.file(f"{folder}/gpu_id", "51110\n")
        place = int(bus, 16) << 8
        machine.file(
            f"{folder}/properties",
            f"cpu_cores_count 0\nsimd_count 440\nlocation_id {place}\ndomain 0\ngfx_target_version 90010\n",
        )
        machine.file(
            f"{folder}/io_links/0/properties",
            f"type 11\nversion_major 0\nnode_from {number + 2}\nnode_to {3 - number}\nweight 15\n"
            "min_latency 0\nmax_latency 0\nmin_bandwidth 50000\nmax_bandwidth 200000\n",
        )
        machine.file(f"{folder}/io_links/1/properties", f"type 2\nnode_from {number + 2}\nnode_to 0\n")
    machine.file("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    machine.file("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n")


def test_amd_gpus_and_xgmi_come_from_the_kernel(machine: Machine) -> None:
    amd(machine)
    reading = discover(machine.system())
    node = one(reading)
    assert [(gpu.id, gpu.arch, gpu.busid) for gpu in node.devices] == [
        ("gpu0", "gfx90a", "0000:c1:00.0"),
        ("gpu1", "gfx90a", "0000:c5:00.0"),
    ]
    (link,) = (link for link in node.links if link.kind == XGMI)
    assert (link.a, link.b, link.gbps, link.count, link.source) == ("gpu0", "gpu1", 1600.0, 4, "discovered")
    assert rules(reading) == []


def test_where_kfd_is_hidden_rocm_smi_is_asked(machine: Machine) -> None:
    amd(machine, with_kfd=False)
    table = nodes.rocm_table("Link Type", [["0", "XGMI"], ["XGMI", "0"]])
    buses = '{"card0": {"PCI Bus": "0000:C1:00.0"}, "card1": {"PCI Bus": "0000:C5:00.0"}}'
    machine.command(
        "rocm-smi",
        f"case \"$*\" in\n  '--showbus --json') echo '{buses}' ;;\n  --showtopo) cat <<'END'\n{table}END\n  ;;\nesac",
    )
    reading = discover(machine.system())
    assert [(link.a, link.b, link.gbps) for link in one(reading).links if link.kind == XGMI] == [("gpu0", "gpu1", None)]
    assert rules(reading) == ["gpus-without-driver"]


def test_a_machine_without_gpus_has_its_cores_meeting_in_memory(machine: Machine) -> None:
    cpus(machine, numa=2, cores=3)
    machine.file("/sys/devices/system/cpu/cpu0/online", "1\n")
    node = one(discover(machine.system()))
    assert [(device.id, device.vendor, device.numa) for device in node.devices] == [
        *((f"core{n}", "cpu", 0) for n in range(3)),
        *((f"core{n}", "cpu", 1) for n in range(3, 6)),
    ]
    assert [(hub.id, hub.kind) for hub in node.hubs] == [("bus0", BUS), ("bus1", BUS)]
    assert {(link.kind, link.gbps) for link in node.links} == {(MEMORY, None), (SOCKET, None)}


def test_a_virtual_nic_on_an_unknown_numa_node_is_near_to_all(machine: Machine) -> None:
    cpus(machine)
    pci(machine, "pci0000:00/0000:00:03.0", "0x020000", "0x1af4", -1)
    machine.file("/sys/devices/pci0000:00/0000:00:03.0/virtio0/vendor", "0x1af4")
    machine.file("/sys/class/net/eth0/speed", "25000\n")
    machine.file("/sys/class/net/eth0/operstate", "up\n")
    machine.link("/sys/class/net/eth0/device", "/sys/devices/pci0000:00/0000:00:03.0/virtio0")
    machine.file("/sys/class/net/lo/speed", "")
    reading = discover(machine.system())
    node = one(reading)
    assert [(nic.id, nic.gbps, nic.numa, nic.role) for nic in node.nics] == [("eth0", 25.0, None, "compute")]
    assert rules(reading) == ["numa-unknown"]
    assert {row["nic"] for row in table(node)} == {"eth0"}


def test_beside_rdma_ports_ethernet_is_for_storage_and_ports_that_are_down_are_said(machine: Machine) -> None:
    nvidia(machine)
    pci(machine, f"{FAR}/0000:82:00.0", "0x020000", "0x8086", 1)
    machine.file("/sys/class/net/eno1/speed", "-1\n")
    machine.link("/sys/class/net/eno1/device", f"/sys/devices/{FAR}/0000:82:00.0")
    machine.link("/sys/class/net/ib0/device", f"/sys/devices/{SWITCH}/0000:02:02.0/0000:05:00.0")  # mlx5_0's
    infiniband(machine, "mlx5_9", f"{FAR}/0000:82:00.0", state="1: DOWN")
    reading = discover(machine.system())
    assert [(nic.id, nic.role) for nic in one(reading).nics] == [("mlx5_0", "compute")]
    assert "port-down" in rules(reading)
    for file in ("rate", "state"):
        os.unlink(machine.root / f"sys/class/infiniband/mlx5_9/ports/1/{file}")
    os.unlink(machine.root / "sys/class/infiniband/mlx5_9/device")
    nics = one(discover(machine.system())).nics
    assert ("eno1", None, "storage") in [(nic.id, nic.gbps, nic.role) for nic in nics]


@pytest.mark.parametrize(
    ("address", "pattern", "switches", "leaves", "block"),
    [
        (
            "core.spine1.leaf1.n01",
            "switch.switch.switch.node",
            [("core", None), ("spine1", "core"), ("leaf1", "spine1")],
            ("leaf1",),
            "",
        ),
        ("b1.n01", "block.node", [], (), "b1"),
        ("n01", "node", [], (), ""),
        ("a.b.n01", "switch.node", [], (), ""),
    ],
)
def test_a_job_of_slurm_knows_its_switches(
    machine: Machine, address: str, pattern: str, switches: list[tuple[str, str]], leaves: tuple[str, ...], block: str
) -> None:
    cpus(machine)
    more = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern, "SLURMD_NODENAME": "n01"}
    reading = discover(machine.system(more=more))
    assert [(switch.name, switch.parent) for switch in reading.cluster.switches] == switches
    (where,) = reading.cluster.blocks
    assert (where.nodes, where.leaves, where.name) == (("n01",), leaves, block)
    assert rules(reading) == (["topology-address"] if address.startswith("a.b") else [])


def test_a_nodes_name_may_have_dots_in_its_address(machine: Machine) -> None:
    cpus(machine)
    more = {"SLURM_TOPOLOGY_ADDR": "leaf1.n01.site", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}
    reading = discover(machine.system(more={**more, "SLURMD_NODENAME": "n01.site"}))
    (where,) = reading.cluster.blocks
    assert (where.nodes, where.leaves, rules(reading)) == (("n01.site",), ("leaf1",), [])


def test_scontrol_is_asked_where_the_job_has_no_address(machine: Machine) -> None:
    cpus(machine)
    machine.command(
        "scontrol",
        'test "$*" = "show topology n01" && echo "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-04]"'
        ' && echo "SwitchName=core Level=1 LinkSpeed=1 Nodes=n[01-08] Switches=leaf[1-2]"',
    )
    reading = discover(machine.system(SLURM_JOB_ID="7", SLURMD_NODENAME="n01"))
    assert [(switch.name, switch.parent) for switch in reading.cluster.switches] == [("core", None), ("leaf1", "core")]
    assert reading.cluster.blocks[0].leaves == ("leaf1",)


def test_without_sysfs_lstopo_helps(machine: Machine) -> None:
    pytest.importorskip("defusedxml")
    machine.file("/proc/sys/kernel/hostname", "bare\n")
    machine.command("lstopo-no-graphics", f"cat <<'END'\n{nodes.HWLOC}END")
    reading = discover(machine.system())
    assert [device.id for device in one(reading).devices] == ["rsmi0", "rsmi1"]
    assert reading.cluster.blocks[0].nodes == ("bare",)


def test_a_machine_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="neither GPUs nor cores can be seen in /sys"):
        discover(System(str(tmp_path), {"PATH": ""}))


def test_this_machine_is_a_node() -> None:
    node = one(discover())
    assert node.devices
    assert len(set(node.vertices)) == len(node.vertices)


def test_matrices_of_real_machines_can_be_used(machine: Machine) -> None:
    """The matrix of eight H100, where only two of the GPUs are on the bus of this machine."""
    nvidia(machine)
    script = (machine.bin / "nvidia-smi").read_text()
    (machine.bin / "nvidia-smi").write_text(
        script.replace("'topo -m') cat", f"'topo -m') cat {OUTPUTS}/h100_topo.txt; : cat")
    )
    links = [link for link in one(discover(machine.system())).links if link.kind == NVLINK]
    assert [(link.a, link.b) for link in links] == [(f"gpu{n}", "nvswitch") for n in range(3)]
