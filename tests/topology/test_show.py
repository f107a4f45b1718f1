"""A cluster in text."""

from __future__ import annotations

import re

from commbench.topology.cluster import Cluster
from commbench.topology.node import Device, Hub, Link, NodeClass
from commbench.topology.reading import read, read_text
from commbench.topology.shipped import find
from commbench.topology.show import MOST_LINES, text


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
        "  core0          -  PHB 204.8\n"
        "  core1  PHB 204.8          -\n"
        "  Gb/s of the narrowest link on the way; PHB: one CPU, or memory"
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
    assert ": 12,800 nodes, 32 each" in shown
    assert len(shown.splitlines()) < MOST_LINES


def test_many_that_differ_are_cut_with_their_number() -> None:
    lines = ["version: 1", "switches:", '  top: {switches: "leaf[1-50]"}', "blocks:"]
    lines += [f'- {{switch: leaf{one}, nodes: "n{one}-[1-{one}]"}}' for one in range(1, 51)]
    assert f"... and {50 - MOST_LINES} switches more: leaf[{MOST_LINES + 1}-50]" in text(
        read_text("\n".join(lines), "f").cluster
    )


def test_the_matrix_has_the_words_of_nvidia_smi_and_the_narrowest_rate() -> None:
    lines = text(read(find("l40s-pcie")).cluster).splitlines()
    row = next(line for line in lines if line.startswith("  gpu0"))
    assert re.split(r" {2,}", row.strip()) == [
        *("gpu0", "-", "PIX 256", "PHB 256", "PHB 256", "SYS 176", "SYS 176", "SYS 176", "SYS 176", "nic0"),
    ]
    assert (
        "  Gb/s of the narrowest link on the way; PIX: one PCIe switch, PHB: one CPU, or memory, SYS: several sockets"
        in lines
    )


def test_what_is_narrow_in_a_node_is_said() -> None:
    shown = text(read(find("l40s-pcie")).cluster)
    assert "  - GPUs share a NIC: nic0: gpu0 gpu1, nic1: gpu2 gpu3" in shown
    assert "\n  - " not in text(read(find("h100-nvlink")).cluster)


def test_devices_that_do_not_meet_are_shown_so() -> None:
    node = NodeClass("n", (Device("a"), Device("b")), hubs=(Hub("c", "cpu"),), links=(Link("a", "c", "pcie"),))
    assert text(Cluster(classes=(node,))).endswith("Gb/s of the narrowest link on the way; .: no way")
