"""Topology XML of NCCL and RCCL, written for these tests."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.topology.node import C2C, NVLINK, NVSWITCH, PCIE, NodeClass
from commbench.topology.reading import Reading, TopologyError, read_text
from tests.topology import nodes

pytest.importorskip("defusedxml")


def read(text: str) -> tuple[Reading, NodeClass]:
    found = read_text(text, "node.xml")
    assert found.format == "nccl_xml"
    return found, found.cluster.classes[0]


def rules(found: Reading) -> set[str]:
    return {one.rule for one in found.findings}


def links(node: NodeClass, kind: str) -> list[tuple[Any, ...]]:
    return [(link.a, link.b, link.gbps, link.count) for link in node.links if link.kind == kind]


@pytest.mark.parametrize(
    ("sm", "each", "adds"), [(80, 20.0, False), (90, 20.6, True), (100, 40.1, True), (70, 20.0, False)]
)
def test_nvlinks_into_switches_have_nccls_rate_for_the_generation(sm: int, each: float, adds: bool) -> None:
    gpus = "".join(nodes.nccl_gpu(n, nodes.nvswitch(18), sm=sm) for n in range(2))
    found, node = read(nodes.nccl(gpus))
    assert links(node, NVLINK) == [(f"gpu{n}", "nvswitch", pytest.approx(18 * each * 8), 18) for n in range(2)]
    assert [(hub.id, hub.reduces) for hub in node.hubs if hub.kind == NVSWITCH] == [("nvswitch", adds)]
    assert {device.arch for device in node.devices} == {f"sm{sm}"}
    assert rules(found) == {"default-rates"}


def test_a_link_between_two_gpus_is_one_whichever_end_says_it() -> None:
    found, node = read(nodes.nccl(nodes.nccl_gpu(0, nodes.nvlink(1, 4)) + nodes.nccl_gpu(1, nodes.nvlink(0, 4))))
    assert links(node, NVLINK) == [("gpu0", "gpu1", pytest.approx(4 * 20.6 * 8), 4)]
    assert "one-sided-link" not in rules(found)


def test_ends_that_disagree_are_said_with_their_lines() -> None:
    cpus = nodes.nccl_gpu(0, nodes.nvlink(1, 4)), nodes.nccl_gpu(1, nodes.nvlink(0, 2))
    found, node = read(nodes.nccl(*cpus))
    assert links(node, NVLINK)[0][3] == 2
    (said,) = (one for one in found.findings if one.rule == "one-sided-link")
    assert said.lines == (2, 3)


def test_links_to_gpus_that_are_not_in_the_file_are_left_out_and_said() -> None:
    found, node = read(nodes.nccl(nodes.nccl_gpu(0, nodes.nvlink(5, 4))))
    assert links(node, NVLINK) == []
    assert "unknown-target" in rules(found)


def test_c2c_is_megabytes_per_second_a_link_and_direction() -> None:
    _, node = read(nodes.nccl(nodes.nccl_gpu(0, '<c2c bw="44712" count="10"/>')))
    assert links(node, C2C) == [("gpu0", "cpu0", pytest.approx(3576.96), 10)]


def test_a_pcilink_joins_two_bridges() -> None:
    one = nodes.bridge("0000:01:00.0", '<pcilink target="0000:02:00.0"/>', nodes.nccl_gpu(0, ""))
    other = nodes.bridge("0000:02:00.0", '<pcilink target="0000:01:00.0"/>', nodes.nccl_nic(0))
    _, node = read(nodes.nccl(one + other))
    assert ("0000:01:00.0", "0000:02:00.0", None, 1) in links(node, PCIE)
    assert [hop.link for hop in node.route("gpu0", "mlx5_0") or ()] != []


def test_speeds_of_slots_and_nics_are_gigabits_per_direction() -> None:
    _, node = read(nodes.nccl(nodes.nccl_gpu(0, "", lanes=8) + nodes.nccl_nic(0, speed=400000)))
    rates = {link.a: link.gbps for link in node.links if link.kind == PCIE}
    assert rates == {"gpu0": pytest.approx(252.06, abs=0.01), "mlx5_0": pytest.approx(504.12, abs=0.01)}
    assert [(nic.gbps, nic.us, nic.source) for nic in node.nics] == [(400.0, None, "discovered")]


def test_a_nic_that_says_no_speed_is_unknown_and_said() -> None:
    found, node = read(nodes.nccl(nodes.nccl_gpu(0, "") + nodes.nccl_nic(0, speed=-1)))
    assert [nic.gbps for nic in node.nics] == [None]
    assert "no-net-speed" in rules(found)


def test_lanes_that_a_virtual_machine_does_not_say_are_a_default() -> None:
    _, node = read(nodes.nccl(nodes.nccl_gpu(0, "", lanes=0)))
    (link,) = (link for link in node.links if link.kind == PCIE)
    assert link.gbps == pytest.approx(504.12, abs=0.01)
    assert link.source == "default"


def test_several_hosts_become_several_nodes_of_one_class() -> None:
    gpus = "".join(nodes.nccl_gpu(n, nodes.nvswitch(18)) for n in range(4))
    hosts = [nodes.nccl(gpus, host=f'host_hash="0x{n}"').split("\n", 1)[1].rsplit("</system>", 1)[0] for n in (7, 9)]
    found, node = read(f'<system version="1">\n{"".join(hosts)}</system>')
    assert [(block.nodes, block.domain) for block in found.cluster.blocks] == [(("node0", "node1"), "nvlink")]
    assert (len(found.cluster.classes), len(node.devices)) == (1, 4)
    assert "several-hosts" in rules(found)


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<graphs version="1"><graph id="0"/></graphs>', "NCCL_TOPO_DUMP_FILE"),
        ('<system version="7"><cpu numaid="0"/></system>', "not <system version='7'>"),
        ('<system version="1"></system>', "no <cpu>"),
        ('<system version="1"><cpu numaid="0"/></system>', "no GPU"),
        ('<system version="1">\n<cpu numaid="0">', "node.xml:2: the XML is broken"),
        (f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><system version="1">&l9;</system>', "no DTD and no entities"),
        ('<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><system version="1">&f;</system>', "no DTD"),
        ('<!DOCTYPE x SYSTEM "http://localhost/x.dtd"><system version="1"/>', "no DTD"),
        ('<system version="1">' + '<pci class="0x060400">' * 200 + "</pci>" * 200 + "</system>", "within one another"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_text(text, "node.xml")
