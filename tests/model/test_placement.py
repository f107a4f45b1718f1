"""Channels of a placement: which rail each one passes by."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from commbench.model.cost import cost
from commbench.model.library import LIBRARIES
from commbench.model.placement import Placement, fill, group
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import NVSWITCH, Device, NodeClass
from commbench.topology.shape import MESH, Figures, Shape

SHAPE = Shape(
    devices=4,
    vendor="nvidia",
    fabric_link=Figures(800, 0.5),
    pcie=Figures(512, 0.5),
    bridges=2,
    nics=2,
    nic=Figures(200, 1.0),
    rails=2,
)


def cluster(fabric: str) -> Cluster:
    """Four nodes of four GPUs and two NICs, a leaf a rail."""
    node = Shape(**{**vars(SHAPE), "fabric": fabric}).node_class("node")
    leaves = tuple(Switch(f"rail{rail}", "spine", 1600, 0.5) for rail in range(2))
    nodes = Block(tuple(f"n{place}" for place in range(4)), ("rail0", "rail1"), "node")
    return Cluster("four", (node,), (*leaves, Switch("spine")), (nodes,))


@pytest.mark.parametrize("fabric", [MESH, NVSWITCH])
def test_rings_of_a_mesh_use_each_rail_as_often_as_another(fabric: str) -> None:
    placed = fill(cluster(fabric), 16)
    found = group(placed, LIBRARIES["nccl"])
    first = Counter(int(found.rail[order[0]]) for order in found.orders)
    assert set(first.values()) == {found.channels // 2}


def test_a_ring_over_nodes_has_the_rate_of_their_nics_whatever_joins_the_devices() -> None:
    """Two NICs of 200 Gb/s are 50 GB/s: of a ring's 2 (n - 1) / n of the buffer each node sends as much."""
    size = 1 << 34
    for fabric in (MESH, NVSWITCH):
        seconds = float(
            cost("allreduce", "ring", fill(cluster(fabric), 16), LIBRARIES["nccl"]).seconds(np.array([size]))[0]
        )
        assert 2 * 15 / 16 * size / seconds / 1e9 == pytest.approx(50, rel=0.01)


def test_each_device_has_a_number_of_its_own_in_nodes_of_any_size() -> None:
    large = NodeClass("large", tuple(Device(f"gpu{place}") for place in range(5000)))
    two = Cluster("two", (large, replace(large, name="small", devices=large.devices[:2])), (), (
        Block(("a", "b"), (), "large"), Block(("c",), (), "small")))  # fmt: skip
    node, device = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 4096, 4999, 0, 904, 1])
    apart = Placement(two, node, device)
    assert len(set(apart.numbers().tolist())) == 6 and not apart.shares_devices
    order = np.array([3, 0, 5, 1, 4, 2])
    assert Placement(two, node[order], device[order]).numbers().tolist() == apart.numbers()[order].tolist()
    assert Placement(two, node[[0, 1, 1]], device[[0, 1, 1]]).shares_devices
