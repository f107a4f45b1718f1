"""What is said of a node: nodes built by hand."""

from __future__ import annotations

import pytest

from commbench.topology.inside import findings, islands, table, way
from commbench.topology.node import (
    BRIDGE,
    C2C,
    CPU,
    NVLINK,
    NVSWITCH,
    PCIE,
    SOCKET,
    XGMI,
    Device,
    Hub,
    Link,
    Nic,
    NodeClass,
)
from commbench.topology.rates import pcie_gbps, socket_gbps


def node(links: list[Link], gpus: int = 2, nics: tuple[Nic, ...] = (), switch: bool = False) -> NodeClass:
    """GPUs g0, g1, ..., two CPUs with a socket link, two bridges."""
    hubs = [Hub("c0", CPU, 0), Hub("c1", CPU, 1), Hub("b0", BRIDGE, 0), Hub("b1", BRIDGE, 0)]
    if switch:
        hubs.append(Hub("s", NVSWITCH))
    devices = tuple(Device(f"g{place}", "nvidia") for place in range(gpus))
    return NodeClass("n", devices, nics, tuple(hubs), (Link("c0", "c1", SOCKET, 160.0), *links))


def said(of: NodeClass) -> dict[str, str]:
    return {one.rule: one.value for one in findings(of, "here")}


def pcie(a: str, b: str, gbps: float | None = 252.0) -> Link:
    return Link(a, b, PCIE, gbps)


def test_ways_have_the_names_of_nvidia_smi() -> None:
    nics = tuple(Nic(f"n{place}", 100.0) for place in range(5))
    links = [pcie("b0", "c0"), pcie("b1", "b0"), pcie("g0", "b1"), pcie("n0", "b1"), pcie("n1", "b0")]
    links += [pcie("n2", "c0"), pcie("n3", "c1"), pcie("g1", "c1"), Link("g0", "g1", NVLINK, 400.0, count=2)]
    one = node(links, nics=nics)
    assert [way(one, one.route("g0", nic.id)) for nic in nics] == ["PIX", "PXB", "PHB", "SYS", ""]
    assert way(one, one.route("g0", "g1")) == "NV2"


def test_the_table_has_the_nearest_nic_and_the_narrowest_part_of_the_way() -> None:
    links = [pcie("g0", "b0", 504.0), pcie("n0", "b0", 126.0), pcie("b0", "c0", 252.0), pcie("g1", "c1", None)]
    one = node(links, nics=(Nic("n0", 200.0),))
    assert table(one) == [
        {"gpu": "g0", "nic": "n0", "way": "PIX", "gbps": 126.0},
        {"gpu": "g1", "nic": "n0", "way": "SYS", "gbps": None},
    ]
    assert said(one)["far-nic"] == "the nearest NIC is across NUMA nodes for g1 (n0)"


def test_a_slot_slower_than_its_nic_and_a_nic_slower_than_its_slot() -> None:
    nics = (Nic("n0", 400.0), Nic("n1", 25.0), Nic("n2", 200.0))
    found = said(node([pcie("n0", "c0"), pcie("n1", "c0"), pcie("n2", "c0"), pcie("g0", "c0")], 1, nics))
    assert found["narrow-slot"] == "the PCIe slot is slower than the NIC: n0 of 400 Gb/s in 252 Gb/s"
    assert found["slow-nic"].endswith("n1 of 25 Gb/s in 252 Gb/s")


def test_two_ports_that_are_together_faster_than_their_slot() -> None:
    nics = (Nic("n0", 200.0, busid="0000:61:00.0"), Nic("n1", 200.0, busid="0000:61:00.1"))
    found = said(node([pcie("n0", "c0"), pcie("n1", "c0"), pcie("g0", "c0")], 1, nics))
    assert found["shared-slot"].endswith("n0 n1 of 400 Gb/s in 252 Gb/s")


def test_a_gpu_whose_link_trained_down() -> None:
    found = said(node([pcie("g0", "c0"), pcie("g1", "c0"), pcie("g2", "c0", 63.0)], 3))
    assert found["unlike-slots"].endswith("g2 63")


def test_gpus_behind_one_bridge_share_its_uplink() -> None:
    links = [pcie("g0", "b1"), pcie("g1", "b1"), pcie("b1", "b0", 100.0), pcie("b0", "c0"), pcie("g2", "c0")]
    assert said(node(links, 3))["shared-uplink"].endswith("g0 g1 (100 Gb/s)")


def test_gpus_on_two_sockets_without_nvlink_meet_between_them() -> None:
    apart = node([pcie("g0", "c0"), pcie("g1", "c1")])
    assert said(apart)["across-sockets"].endswith("g0-g1")
    joined = node([*apart.links[1:], Link("g0", "g1", NVLINK, 400.0)])
    assert "across-sockets" not in said(joined)


def test_a_ring_of_xgmi_is_a_partial_mesh_and_two_pairs_are_islands() -> None:
    ring = node([Link(f"g{a}", f"g{(a + 1) % 4}", XGMI, 288.0) for a in range(4)], 4)
    assert said(ring)["partial-mesh"].endswith("g0-g2, g1-g3")
    pairs = node([Link("g0", "g1", XGMI, 288.0), Link("g2", "g3", XGMI, 288.0)], 4)
    assert islands(pairs) == [["g0", "g1"], ["g2", "g3"]]
    assert said(pairs)["islands"].endswith("g0 g1, g2 g3")
    assert "partial-mesh" not in said(pairs)


def test_an_nvswitch_joins_all_that_hang_on_it() -> None:
    links = [Link(f"g{place}", "s", NVLINK, 3600.0, count=18) for place in range(3)]
    assert said(node(links, 3, switch=True)) == {}
    assert said(node(links, 4, switch=True))["islands"].endswith("g0 g1 g2, g3")


@pytest.mark.parametrize(
    ("link", "both"),
    [
        (Link("g0", "g1", NVLINK, 3600.0, count=18), False),
        (Link("g0", "g1", NVLINK, 7200.0, count=18), False),  # NVLink 5
        (Link("g0", "g1", NVLINK, 7200.0, count=12), True),
        (Link("g0", "g1", NVLINK, 3600.0), False),  # all of an H100's, not counted
        (Link("g0", "g1", NVLINK, 14400.0), True),
        (Link("g0", "c0", C2C, 3600.0, count=10), False),
        (Link("g0", "c0", C2C, 7200.0, count=10), True),
        (Link("g0", "c0", PCIE, 504.0), False),
        (Link("g0", "c0", PCIE, 1024.0), True),
        (Link("g0", "g1", XGMI, 1024.0), True),
    ],
)
def test_a_figure_of_both_directions_is_warned_of(link: Link, both: bool) -> None:
    assert ("both-directions" in said(node([link]))) == both


@pytest.mark.parametrize(
    ("speed", "lanes", "gbps"),
    [
        ("2.5 GT/s PCIe", 1, 2.0),
        ("5 GT/s", 8, 32.0),
        ("8.0 GT/s PCIe", 16, 126.03),
        ("32.0 GT/s PCIe", 16, 504.12),
        ("64.0 GT/s PCIe", 16, 968.0),
        ("Unknown", 16, None),
        ("16.0 GT/s PCIe", 0, None),
        ("16.0 GT/s PCIe", 63, None),  # what the kernel says of a device that does not answer
        ("7 GT/s", 16, None),
        ("", 16, None),
    ],
)
def test_rates_of_slots(speed: str, lanes: int, gbps: float | None) -> None:
    assert pcie_gbps(speed, lanes) == (None if gbps is None else pytest.approx(gbps, abs=0.01))


def test_rates_between_sockets_are_nccls() -> None:
    assert socket_gbps("x86_64", "GenuineIntel", 6, 0x55) == 80.0
    assert socket_gbps("x86_64", "GenuineIntel", 6, 0x8F) == 176.0
    assert socket_gbps("x86_64", "GenuineIntel", 6, 0xAD) == 320.0
    assert socket_gbps("x86_64", "AuthenticAMD", 25, 1) == 192.0
    assert socket_gbps("riscv", "", 0, 0) is None
