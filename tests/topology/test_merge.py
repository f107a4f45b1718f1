"""Nodes of a launch as one cluster."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from commbench.errors import UsageError
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.merge import merge
from commbench.topology.node import CPU, NVLINK, PCIE, Device, Hub, Link, Nic, NodeClass
from commbench.topology.reading import Reading


def gpu_node(gpus: int = 4, nic: float = 400.0, bus: int = 0, guid: str = "") -> NodeClass:
    devices = tuple(Device(f"gpu{n}", "nvidia", "sm90", f"0000:{bus + n:02x}:00.0", 0) for n in range(gpus))
    links = [Link(device.id, "cpu0", PCIE, 504.0) for device in devices]
    links += [Link("gpu0", f"gpu{n}", NVLINK, 400.0) for n in range(1, gpus)]
    links.append(Link("mlx5_0", "cpu0", PCIE, 504.0))
    return NodeClass("node", devices, (Nic("mlx5_0", nic, guid=guid),), (Hub("cpu0", CPU, 0),), tuple(links))


def view(host: str, node: NodeClass, leaf: str = "") -> Reading:
    switches = (Switch("core"), Switch(leaf, "core")) if leaf else ()
    blocks = (Block((host,), (leaf,) if leaf else (), node.name),)
    return Reading((Cluster(classes=(node,), switches=switches, blocks=blocks),), format="discovered", source=host)


def test_alike_nodes_share_a_class_whatever_their_addresses_and_guids() -> None:
    found = merge([view("a1", gpu_node(guid="x")), view("a2", gpu_node(bus=0x40, guid="y"))])
    assert [block.nodes for block in found.cluster.blocks] == [("a1", "a2")]
    (node,) = found.cluster.classes
    assert [nic.guid for nic in node.nics] == [""]
    assert found.findings == ()


@pytest.mark.parametrize(
    ("odd", "how"),
    [
        (gpu_node(3), "3 GPUs instead of 4"),
        (gpu_node(nic=200.0), "NICs: 1 x 200 Gb/s instead of 1 x 400 Gb/s"),
        (
            replace(gpu_node(), links=(*gpu_node().links[:-1], Link("mlx5_0", "cpu0", PCIE, 252.0))),
            "links: 1 x pcie 252 Gb/s instead of 1 x pcie 504 Gb/s",
        ),
        (
            replace(gpu_node(), devices=(Device("gpu0", "nvidia", "sm80", numa=0), *gpu_node().devices[1:])),
            "GPUs: 1 x nvidia sm80 instead of 1 x nvidia sm90",
        ),
    ],
)
def test_odd_nodes_are_named_with_how_they_differ(odd: NodeClass, how: str) -> None:
    readings = [view(f"a{n}", gpu_node()) for n in range(3)] + [view("a3", odd)]
    found = merge(readings)
    (finding,) = found.findings
    assert finding.rule == "odd-node"
    assert finding.value.startswith(f"a3: {how}")
    assert finding.value.endswith("the other 3 of 4 nodes are as a0")
    assert [(block.nodes, block.node_class) for block in found.cluster.blocks] == [
        (("a0", "a1", "a2"), "node"),
        (("a3",), "node-1"),
    ]
    assert [one.name for one in found.cluster.classes] == ["node", "node-1"]


def part(of: NodeClass, *places: int) -> NodeClass:
    """What a process that is bound to some of the GPUs sees: it counts them from 0."""
    new = {of.devices[place].id: f"gpu{here}" for here, place in enumerate(places)}
    devices = tuple(replace(of.devices[place], id=new[of.devices[place].id]) for place in places)
    ends = {*new, "mlx5_0", "cpu0"}
    kept = [link for link in of.links if {link.a, link.b} <= ends]
    links = tuple(replace(link, a=new.get(link.a, link.a), b=new.get(link.b, link.b)) for link in kept)
    return replace(of, devices=devices, links=links)


def test_the_views_of_the_ranks_of_a_host_are_one_node() -> None:
    whole = gpu_node()
    found = merge([view("a1", part(whole, 1)), view("a1", part(whole, 3, 0)), view("a1", part(whole, 2))])
    (node,) = found.cluster.classes
    assert found.cluster.nodes == 1
    assert sorted(device.busid for device in node.devices) == sorted(device.busid for device in whole.devices)
    assert len({device.id for device in node.devices}) == 4
    assert all(node.route(device.id, "mlx5_0") for device in node.devices)
    assert [one.rule for one in found.findings] == ["partial-view"]


def test_views_that_are_the_same_leave_nothing_to_say() -> None:
    found = merge([view("a1", gpu_node())] * 3)
    assert found.findings == ()
    assert len(found.cluster.classes[0].devices) == 4


def test_hosts_that_do_not_agree_on_a_switch_are_a_finding() -> None:
    other = replace(view("a2", gpu_node(), "leaf1").cluster, switches=(Switch("top"), Switch("leaf1", "top")))
    found = merge([view("a1", gpu_node(), "leaf1"), Reading((other,), source="a2")])
    assert found.cluster.by_switch["leaf1"].parent == "core"
    (finding,) = found.findings
    assert (finding.rule, finding.source) == ("odd-switch", "a2")
    assert finding.value == "switch leaf1 is below core, and below top"


def test_switches_of_all_hosts_make_one_tree() -> None:
    found = merge([view("a1", gpu_node(), "leaf1"), view("a2", gpu_node(), "leaf2"), view("a3", gpu_node(), "leaf1")])
    assert {switch.name: switch.parent for switch in found.cluster.switches} == {
        "core": None,
        "leaf1": "core",
        "leaf2": "core",
    }
    assert {block.leaves: block.nodes for block in found.cluster.blocks} == {
        ("leaf1",): ("a1", "a3"),
        ("leaf2",): ("a2",),
    }
    assert found.cluster.arrays.leaf.shape[0] == 3


def test_readings_travel_between_ranks() -> None:
    reading = view("a1", gpu_node(), "leaf1")
    assert pickle.loads(pickle.dumps(reading)) == reading


def test_nothing_and_clusters_cannot_be_merged() -> None:
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])
    two = Reading((Cluster(classes=(gpu_node(),), blocks=(Block(("a", "b"), node_class="node"),)),))
    with pytest.raises(UsageError, match="single nodes"):
        merge([two])
