"""A cluster in text."""

from __future__ import annotations

import pytest

from commbench.topology.cluster import Cluster
from commbench.topology.node import Device, Hub, Link, NodeClass
from commbench.topology.reading import read, read_text
from commbench.topology.shape import Figures, Shape
from commbench.topology.shipped import find
from commbench.topology.show import MOST_LINES, text, way


def test_a_small_cluster_is_shown_whole() -> None:
    assert text(read(find("two-core")).cluster) == (
        "two-core: 1 node, 2 devices, 0.3 us a step in software (default)\n"
        "\n"
        "fabric\n"
        "  localhost: 1 node of two-core\n"
        "\n"
        "class two-core: 2 devices (cpu)\n"
        "  2 x memory device - bus  204.8 Gb/s, 0.1 us, default\n"
        "             core0      core1\n"
        "  core0          -  MEM 204.8\n"
        "  core1  MEM 204.8          -\n"
        "  Gb/s of the narrowest link on the way; MEM: memory"
    )


def test_rails_are_one_line_with_what_is_oversubscribed() -> None:
    shown = text(read(find("h100-nvlink")).cluster)
    assert "    leaf[0-7]  up each 12800 Gb/s (32 cables), 0.13 us, default  1:1\n" in shown
    assert "      n[01-32]: 32 nodes of dgx-h100, on 8 leaves, one a rail\n" in shown
    assert "  0: 8 switches, up 102400 Gb/s together\n  1: 1 switch\n" in shown


def test_half_the_uplinks_are_two_to_one() -> None:
    tree = "version: 1\nswitches:\n  top: {switches: [leaf]}\n  leaf: {uplink: {gbps: 200}}\n"
    node = "classes: {a: {devices: 1, pcie: {}, nics: 1, nic: {gbps: 100}}}\n"
    assert "2:1 oversubscribed" in text(
        read_text(f"{tree}{node}blocks: [{{switch: leaf, nodes: 'n[1-4]', class: a}}]", "f").cluster
    )


def test_a_large_cluster_is_folded() -> None:
    leaves = [f"leaf{one:03}" for one in range(400)]
    lines = ["version: 1", "switches:", '  top: {switches: "leaf[000-399]"}', "blocks:"]
    lines += [f'- {{switch: {leaf}, nodes: "n{leaf[4:]}-[01-32]"}}' for leaf in leaves]
    shown = text(read_text("\n".join(lines), "f").cluster)
    assert "  leaf[000-399]\n" in shown
    assert "n[000-399]-[01-32]: 12,800 nodes, 32 each" in shown
    assert len(shown.splitlines()) < MOST_LINES


def test_many_that_differ_are_cut_with_their_number() -> None:
    lines = ["version: 1", "switches:", '  top: {switches: "leaf[1-50]"}', "blocks:"]
    lines += [f'- {{switch: leaf{one}, nodes: "n{one}-[1-{one}]"}}' for one in range(1, 51)]
    assert f"... and {50 - MOST_LINES} switches more: leaf[{MOST_LINES + 1}-50]" in text(
        read_text("\n".join(lines), "f").cluster
    )


@pytest.mark.parametrize(
    ("pair", "word"),
    [(("gpu0", "gpu1"), "PIX"), (("gpu0", "gpu2"), "PHB"), (("gpu0", "gpu7"), "SYS")],
)
def test_ways_over_pcie_have_the_words_of_nvidia_smi(pair: tuple[str, str], word: str) -> None:
    node = Shape(8, pcie=Figures(), sockets=2, bridges=4).node_class("n")
    hops = node.route(*pair)
    assert hops is not None
    assert way(node, hops) == word


def test_devices_that_do_not_meet_are_shown_so() -> None:
    node = NodeClass("n", (Device("a"), Device("b")), hubs=(Hub("c", "cpu"),), links=(Link("a", "c", "pcie"),))
    assert text(Cluster(classes=(node,))).endswith("Gb/s of the narrowest link on the way; .: no way")
