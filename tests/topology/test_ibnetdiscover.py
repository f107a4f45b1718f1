"""What ibnetdiscover prints, in its two styles; tests/system/test_ibsim.py has whole fabrics from the real program."""

from __future__ import annotations

import pytest

from commbench.topology.fabric import natural
from commbench.topology.reading import Reading, TopologyError, read_text


def reading(text: str) -> Reading:
    return read_text(text, "x")


def found(text: str) -> list[str]:
    return [finding.rule for finding in reading(text).findings]


RATE = "4xNDR"


def listing(*cables: tuple[str, str], rate: str = RATE, boards: dict[str, str] | None = None) -> str:
    """A listing of cables between devices by description, which begins with S: for switches; each from both ends."""
    guids = {name: f"{place:016x}" for place, name in enumerate(dict.fromkeys(sum(cables, ())), start=0xA0)}
    ports: dict[str, list[str]] = {name: [] for name in guids}
    for a, b in cables:
        one, other = len(ports[a]) + 1, len(ports[b]) + 1
        for name, port, peer, far in ((a, one, b, other), (b, other, a, one)):
            kind, told = ("S", peer[2:]) if peer.startswith("S:") else ("H", peer)
            ports[name].append(f'[{port}]\t"{kind}-{guids[peer]}"[{far}]\t\t# "{told}" lid 7 {rate}')
    devices = []
    for name, lines in ports.items():
        head = f'Switch\t40 "S-{guids[name]}"\t\t# "{name[2:]}" enhanced port 0 lid 3 lmc 0'
        if not name.startswith("S:"):
            head = f'Ca\t{len(lines)} "H-{guids[name]}"\t\t# "{name}"'
        board = (boards or {}).get(name, guids[name])
        devices.append("\n".join([f"sysimgguid=0x{board.lstrip('0')}", head, *lines, ""]))
    return "#\n# Topology file\n#\n\n" + "\n".join(devices)


SMALL = (
    ("n1 mlx5_0", "S:leaf1"),
    ("n2 mlx5_0", "S:leaf1"),
    ("n3 mlx5_0", "S:leaf2"),
    ("S:leaf1", "S:spine"),
    ("S:leaf1", "S:spine"),
    ("S:leaf2", "S:spine"),
)


def test_parallel_cables_are_counted_and_their_rates_added() -> None:
    cluster = reading(listing(*SMALL)).cluster
    assert {one.name: (one.parent, one.gbps, one.cables) for one in cluster.switches} == {
        "leaf1": ("spine", 800, 2),
        "leaf2": ("spine", 400, 1),
        "spine": (None, None, None),
    }
    assert [(one.a, one.b, one.gbps, one.count) for one in cluster.cables] == [
        ("leaf1", "spine", 800, 2),
        ("leaf2", "spine", 400, 1),
    ]


@pytest.mark.parametrize(
    ("rate", "gbps"),
    [
        *(("4xSDR", 10), ("4xDDR", 20), ("4xQDR", 40), ("4xFDR10", 40), ("4xFDR", 56), ("4xEDR", 100)),
        *(
            ("4xHDR", 200),
            ("2xHDR", 100),
            ("4xNDR", 400),
            ("2xNDR", 200),
            ("1xNDR", 100),
            ("4xXDR", 800),
            ("12xQDR", 120),
        ),
    ],
)
def test_width_times_speed_is_the_rate(rate: str, gbps: float) -> None:
    (node,) = reading(listing(("n1 mlx5_0", "S:leaf1"), rate=rate)).cluster.classes
    assert node.nics[0].gbps == gbps


def test_a_rate_that_is_not_known_leaves_the_uplink_without_bandwidth() -> None:
    text = listing(*SMALL, rate="4xZDR")
    assert found(text) == ["unknown rate"]
    assert reading(text).cluster.by_switch["leaf1"].gbps is None
    assert reading(text).cluster.by_switch["leaf1"].cables == 2


def test_aggregation_nodes_are_no_hosts_and_say_that_the_switch_adds_up() -> None:
    aggregation = "Mellanox Technologies Aggregation Node"
    cluster = reading(listing(*SMALL, (aggregation, "S:leaf1"))).cluster
    assert cluster.nodes == 3
    assert [one.name for one in cluster.switches if one.reduces] == ["leaf1"]


def test_adapters_without_a_name_are_one_host_a_board() -> None:
    plain = "MT4129 ConnectX7   Mellanox Technologies"
    text = listing((plain, "S:leaf1"), ("localhost HCA-1", "S:leaf2"), ("n1 mlx5_0", "S:leaf1"))
    assert "unnamed adapter" in found(text)
    names = {node for block in reading(text).cluster.blocks for node in block.nodes}
    assert names == {"n1", "host-00000000000000a0", "host-00000000000000a2"}
    boards = dict.fromkeys((plain, "localhost HCA-1"), "ff")
    (rails,) = (
        block.leaves
        for block in reading(listing((plain, "S:leaf1"), ("localhost HCA-1", "S:leaf2"), boards=boards)).cluster.blocks
    )
    assert rails == ("leaf1", "leaf2")


def test_two_devices_of_one_name_are_not_taken_for_one_host() -> None:
    first = listing(("ubuntu mlx5_0", "S:leaf1"), ("n1 mlx5_0", "S:leaf1"))
    second = '\nsysimgguid=0x77\nCa\t1 "H-77"\t\t# "ubuntu mlx5_0"\n[1](77)\t"S-a1"[9]\t\t# "leaf1" lid 3 4xNDR\n'
    names = {node for block in reading(first + second).cluster.blocks for node in block.nodes}
    assert names == {"n1", "host-00000000000000a0", "host-0000000000000077"}
    assert "unnamed adapter" in found(first + second)


def test_hosts_that_lack_an_adapter_are_told() -> None:
    cables = [(f"n{host} mlx5_{rail}", f"S:leaf{rail}") for host in range(8) for rail in range(3)]
    assert found(listing(*cables)) == ["no common root"]
    assert found(listing(*cables[:-1])) == ["no common root", "fewer adapters"]


def test_an_adapter_with_two_ports_is_two_nics() -> None:
    cluster = reading(listing(("n1 mlx5_0", "S:a"), ("n1 mlx5_0", "S:b"))).cluster
    assert [nic.id for nic in cluster.classes[0].nics] == ["mlx5_0/1", "mlx5_0/2"]
    assert cluster.blocks[0].leaves == ("a", "b")


def test_a_leaf_whose_hosts_are_down_is_no_spine() -> None:
    cluster_text = listing(*SMALL, ("S:empty", "S:spine"), ("S:empty", "S:spine"))
    assert found(cluster_text) == ["switch without hosts"]
    assert [one.name for one in reading(cluster_text).cluster.switches] == ["leaf1", "leaf2", "spine"]


def test_one_slow_cable_is_told() -> None:
    lines = listing(*SMALL).split("\n")
    ends = [
        place for place, line in enumerate(lines) if line.startswith("[") and "leaf2" not in line and "spine" in line
    ]
    lines[ends[-1]] = lines[ends[-1]].replace("4xNDR", "4xHDR")
    assert found("\n".join(lines)) == ["slow cable"]


def test_names_of_mellanox_are_those_of_the_switch() -> None:
    cables = (("n1 mlx5_0", "S:MF0;leaf-1:MQM9701/U1"), ("n2 mlx5_0", "S:MF0;big:CS7500/L01/U1"))
    more = (("n3 mlx5_0", "S:MF0;big:CS7500/L02/U1"), ("n4 mlx5_0", "S:SwitchX -  Mellanox, [1]"))
    switches = [one.name for one in reading(listing(*cables, *more)).cluster.switches]
    assert sorted(switches) == ["SwitchX_-_Mellanox_1", "big/L01/U1", "big/L02/U1", "leaf-1"]


def test_switches_of_one_name_are_told_apart_by_their_guids() -> None:
    text = listing(("n1 mlx5_0", "S:a"), ("n2 mlx5_0", "S:b")).replace('"a"', '"same"').replace('"b"', '"same"')
    names = [one.name for one in reading(text).cluster.switches]
    assert names == ["same-00000000000000a1", "same-00000000000000a3"]


ROWS = """\
CA     1  1 0x0000000000000011 4x EDR - SW    10  1 0x00000000000000a1 ( 'n1 HCA-1' - 'leaf1' )
SW    10  1 0x00000000000000a1 4x EDR - CA     1  1 0x0000000000000011 ( 'leaf1' - 'n1 HCA-1' )
SW    10  2 0x00000000000000a1 4x SDR                                    'leaf1'
SW    10  3 0x00000000000000a1 4x ???                                    'leaf1'
"""


def test_rows_of_ports_without_a_peer_are_no_cables() -> None:
    cluster = reading(ROWS).cluster
    assert (found(ROWS), [one.name for one in cluster.switches], cluster.nodes) == ([], ["leaf1"], 1)
    assert cluster.classes[0].nics[0].gbps == 100


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (listing(("S:a", "S:b")), "2 switches, 0 other devices and no host on a switch; the listing may be cut off"),
        ('Ca\t1 "H-1"\t# "n1"\n', "x:1: 0 switches, 1 other devices"),
        ('[1]\t"H-1"[1]\n' + listing(*SMALL), "x:1: a port belongs to a device"),
        (
            f"{ROWS}{ROWS.replace('10  1', '10  4')}",
            "x:5: port 1 of 0000000000000011 has another cable already, in line 1",
        ),
        (f"{ROWS}SW {'x' * 2000}\n", "x:5: a line has at most 1000 characters"),
    ],
)
def test_listings_that_cannot_be_are_refused_with_their_lines(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        reading(text)


def test_a_listing_that_was_cut_off_says_so() -> None:
    text = listing(*SMALL)
    assert found(text[: text.rindex("Switch")]) == ["cable seen once"]


def test_names_with_numbers_are_sorted_as_people_do() -> None:
    assert sorted(["mlx5_10", "mlx5_2", "a", "2", "mlx5_²"], key=natural) == ["2", "a", "mlx5_2", "mlx5_10", "mlx5_²"]
