"""The short form of a node against graphs written out by hand."""

from __future__ import annotations

import pytest

from commbench.topology.node import Link
from commbench.topology.shape import Figures, Shape, shape_of


def ends(links: tuple[Link, ...], kind: str) -> list[str]:
    return [f"{link.a}-{link.b}" for link in links if link.kind == kind]


def test_parts_are_dealt_in_equal_shares() -> None:
    node = Shape(4, pcie=Figures(256), sockets=2, bridges=2, nics=2, rails=2).node_class("n")
    assert ends(node.links, "pcie") == [
        *("gpu0-bridge0", "gpu1-bridge0", "gpu2-bridge1", "gpu3-bridge1"),
        *("nic0-bridge0", "nic1-bridge1"),
        *("bridge0-cpu0", "bridge1-cpu1"),
    ]
    assert ends(node.links, "socket") == ["cpu0-cpu1"]
    assert [device.numa for device in node.devices] == [0, 0, 1, 1]
    assert [(nic.rail, nic.numa) for nic in node.nics] == [(0, 0), (1, 1)]
    assert node.nearest_nics == (0, 0, 1, 1)


def test_without_pcie_switches_all_is_plugged_into_sockets() -> None:
    node = Shape(2, pcie=Figures(), nics=1).node_class("n")
    assert ends(node.links, "pcie") == ["gpu0-cpu0", "gpu1-cpu0", "nic0-cpu0"]


@pytest.mark.parametrize(("vendor", "kind"), [("nvidia", "nvlink"), ("", "nvlink"), ("amd", "xgmi")])
def test_a_mesh_joins_every_two(vendor: str, kind: str) -> None:
    node = Shape(3, vendor, fabric="mesh", fabric_link=Figures(400, 0.6, 2)).node_class("n")
    assert node.links == tuple(
        Link(a, b, kind, 400, 0.6, 2) for a, b in (("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu1", "gpu2"))
    )


def test_cores_meet_in_memory() -> None:
    node = Shape(2, "cpu", fabric="bus", fabric_link=Figures(200)).node_class("n")
    assert ends(node.links, "memory") == ["core0-memory", "core1-memory"]
    way = node.route("core0", "core1")
    assert way is not None
    assert [node.links[hop.link].kind for hop in way] == ["memory", "memory"]


def test_a_graph_that_differs_in_one_thing_has_no_short_form() -> None:
    shape = Shape(4, "nvidia", "sm90", "nvswitch", Figures(3600), pcie=Figures(512), nics=2)
    node = shape.node_class("n")
    assert shape_of(node) == shape
    links = list(node.links)
    links[1] = Link("gpu1", "nvswitch", "nvlink", 1800)
    assert shape_of(type(node)("n", node.devices, node.nics, node.hubs, tuple(links))) is None
    assert shape_of(type(node)("n", node.devices[::-1], node.nics, node.hubs, node.links)) is None


def test_a_huge_node_is_not_guessed_at() -> None:
    assert shape_of(Shape(2000).node_class("n")) is None
