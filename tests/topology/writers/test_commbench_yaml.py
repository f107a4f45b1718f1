"""Our YAML, written: what is read of it is the very same cluster, in the fewest words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings

from commbench.errors import UsageError
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import NVLINK, Device, Link, NodeClass
from commbench.topology.readers import commbench_yaml as reader
from commbench.topology.reading import read, read_text
from commbench.topology.shape import Figures, Shape
from commbench.topology.shipped import shipped
from commbench.topology.writers.commbench_yaml import write
from tests.topology.clusters import clusters


@settings(max_examples=60)
@given(cluster=clusters())
def test_what_is_written_is_read_as_the_same(cluster: Cluster) -> None:
    text = write(cluster)
    assert reader.read(text, "written").cluster == cluster
    assert isinstance(yaml.safe_load(text), dict)  # for everybody else too


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_description_stays_what_it_is(name: str) -> None:
    cluster = read(shipped()[name]).cluster
    assert read_text(write(cluster), "written").cluster == cluster


def test_a_node_that_the_short_form_says_is_written_so() -> None:
    fabric = Figures(3600, 0.3, 18)
    shape = Shape(8, "nvidia", "sm90", "nvswitch", fabric, True, 12.5, Figures(512), 2, nics=8, rails=8)
    text = write(Cluster(classes=(shape.node_class("dgx"),)))
    assert text == (
        "version: 1\nclasses:\n  dgx:\n    devices: 8\n    vendor: nvidia\n    arch: sm90\n"
        "    fabric: {kind: nvswitch, gbps: 3600, us: 0.3, cables: 18, sharp: true, sharp_us: 12.5}\n"
        "    pcie: {gbps: 512}\n"
        "    sockets: 2\n    nics: 8\n    rails: 8\n"
    )


def test_links_beside_the_short_form_are_listed() -> None:
    made = Shape(2, "amd", pcie=Figures(256)).node_class("two")
    node = NodeClass("two", made.devices, links=made.links, hubs=made.hubs)
    linked = NodeClass("two", node.devices, (), node.hubs, (*node.links, Link("gpu0", "gpu1", "xgmi", 400)))
    assert "    devices: 2\n" in write(Cluster(classes=(linked,)))
    assert "    - {a: gpu0, b: gpu1, kind: xgmi, gbps: 400}\n" in write(Cluster(classes=(linked,)))


def test_a_link_between_sockets_where_there_are_none_is_listed() -> None:
    made = Shape(1, fabric="nvswitch").node_class("odd")
    node = replace(made, links=(*made.links, Link("gpu0", "nvswitch", "socket", 100)))
    cluster = Cluster(classes=(node,))
    assert reader.read(write(cluster), "written").cluster == cluster


def test_other_nodes_are_listed_whole() -> None:
    node = NodeClass("odd", (Device("b"), Device("a")), links=(Link("a", "b", NVLINK, 200),))
    assert write(Cluster(classes=(node,))) == (
        "version: 1\nclasses:\n  odd:\n    devices:\n    - {id: b}\n    - {id: a}\n"
        "    links:\n    - {a: a, b: b, kind: nvlink, gbps: 200}\n"
    )


def test_names_that_count_up_are_one_range_and_keep_their_order() -> None:
    names = ("n08", "n09", "n10", "n7", "n8", "x", "n3")
    assert "[n08-10]" in write(Cluster(blocks=(Block(names),))).replace('"n[', "[n").replace(']"', "]")
    assert write(Cluster(blocks=(Block(names),))).splitlines()[-1] == ('- {nodes: ["n[08-10]", "n[7-8]", x, n3]}')


def test_alike_switches_are_one_line() -> None:
    rails = tuple(Switch(f"leaf{rail}", "spine", 400.0) for rail in range(8))
    lines = write(Cluster(switches=(Switch("spine"), *rails), blocks=(Block(("n1",), ("leaf0",)),))).splitlines()
    assert lines[2:4] == ['  spine: {switches: ["leaf[0-7]"]}', '  "leaf[0-7]": {uplink: {gbps: 400}}']


def test_the_commonest_source_is_said_once() -> None:
    links = tuple(Link("a", "b", NVLINK, gbps, source=source) for gbps, source in ((1, "measured"), (2, "measured")))
    node = NodeClass("x", (Device("a"), Device("b")), links=(*links, Link("a", "b", NVLINK, 3)))
    lines = write(Cluster(classes=(node,))).splitlines()
    assert lines[1] == "source: measured"
    assert lines[-2:] == [
        "    - {a: a, b: b, kind: nvlink, gbps: 2}",
        "    - {a: a, b: b, kind: nvlink, gbps: 3, source: declared}",
    ]


def test_a_name_that_no_list_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="rename"):
        write(Cluster(blocks=(Block(("n[1",)),)))
    with pytest.raises(UsageError, match="rename"):
        write(Cluster(blocks=(Block(("n1,n2",)),)))
