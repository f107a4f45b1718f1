"""Small clusters to cost schedules on, with round figures."""

from __future__ import annotations

from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import NVLINK, NVSWITCH, PCIE, Device, Hub, Link, Nic, NodeClass

GB = 1e9


def node(devices: int = 8, relays: bool = True, reduces: bool = True) -> NodeClass:
    """GPUs on an NVSwitch, 400 GB/s and 1 us for a link; each with a NIC of its own rail, 50 GB/s and 4 us a cable."""
    gpus = tuple(Device(f"gpu{i}", "nvidia") for i in range(devices))
    nics = tuple(Nic(f"nic{i}", 400, 4.0, i) for i in range(devices))
    fabric = [Link(gpu.id, "nvswitch", NVLINK, 3200, 1.0) for gpu in gpus]
    host = [Link(gpu.id, nic.id, PCIE, 512, 0.5) for gpu, nic in zip(gpus, nics, strict=True)]
    return NodeClass("gpus", gpus, nics, (Hub("nvswitch", NVSWITCH, reduces=reduces),), (*fabric, *host), relays)


def one_switch(nodes: int, step_us: float | None = None, gbps: float = 400) -> Cluster:
    """Nodes of one GPU and one NIC on one switch; PCIe is no limit and has no latency."""
    single = NodeClass(
        "single", (Device("gpu", "nvidia"),), (Nic("nic", gbps, 4.0),), (), (Link("gpu", "nic", PCIE, 1e6, 0.0),)
    )
    names = tuple(f"n{place:03}" for place in range(nodes))
    return Cluster("flat", (single,), (Switch("leaf"),), (Block(names, ("leaf",), "single"),), step_us)


def two_leaves(each: int, gbps: float) -> Cluster:
    """Two leaves of single-GPU nodes below a root, with an uplink of `gbps` and 2 us each."""
    flat = one_switch(each)
    switches = (Switch("a", "root", gbps, 2.0), Switch("b", "root", gbps, 2.0), Switch("root"))
    blocks = tuple(Block(tuple(f"{leaf}{i:02}" for i in range(each)), (leaf,), "single") for leaf in "ab")
    return Cluster("two leaves", flat.classes, switches, blocks)


def rails(nodes: int, per_unit: int, relays: bool = True, devices: int = 8) -> Cluster:
    """Scalable units of `per_unit` nodes: a leaf for each rail and unit, all below one spine."""
    switches: list[Switch] = []
    blocks = []
    for unit in range(nodes // per_unit):
        leaves = tuple(f"u{unit}r{rail}" for rail in range(devices))
        switches += [Switch(leaf, "spine", 400.0 * per_unit, 0.5) for leaf in leaves]
        names = tuple(f"n{place:04}" for place in range(unit * per_unit, (unit + 1) * per_unit))
        blocks.append(Block(names, leaves, "gpus"))
    return Cluster("rails", (node(devices, relays),), (*switches, Switch("spine")), tuple(blocks))
