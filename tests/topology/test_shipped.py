"""The descriptions that come with commbench: each is valid, and says what its data sheets do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.node import DEFAULT
from commbench.topology.reading import read
from commbench.topology.shipped import find, shipped


def cluster(name: str) -> Cluster:
    return read(find(name)).cluster


@pytest.mark.parametrize("name", shipped())
def test_a_description_is_valid_and_named_as_its_file(name: str) -> None:
    reading = read(find(name))
    assert reading.findings == ()
    assert reading.cluster.name == name
    for node in reading.cluster.classes:
        links, nics, devices = list(node.links), list(node.nics), [device.id for device in node.devices]
        assert {one.source for one in links} | {one.source for one in nics} == {DEFAULT}
        assert all(one.gbps and one.us for one in links)
        assert all(one.gbps and one.us for one in nics)
        assert all(node.route(a, b) is not None for a in devices for b in devices)


def test_the_h100_has_eight_rails_at_full_bisection() -> None:
    it = cluster("h100-nvlink")
    assert (it.nodes, it.devices) == (32, 256)
    (node,) = it.classes
    assert [link.gbps for link in node.links if link.kind == "nvlink"] == [3600] * 8
    assert node.switch is not None
    assert node.switch.reduces
    assert not any(switch.reduces for switch in it.switches)
    assert node.nearest_nics == tuple(range(8))
    assert it.arrays.leaf.shape == (32, 8)
    assert len(set(it.arrays.leaf[0].tolist())) == 8
    for leaf in it.switches[1:]:
        assert leaf.gbps == it.nodes * 400


def test_two_vendors_share_a_fabric() -> None:
    it = cluster("a100-mi250x")
    assert (it.nodes, it.devices) == (32, 256)
    a100, _ = it.classes
    assert {device.vendor for device in a100.devices} == {"nvidia"}
    assert [link.gbps for link in a100.links if link.kind == "nvlink"] == [2400] * 8
    assert len(it.arrays.leaf) == 32


def test_the_mesh_of_mi250x_is_partial_and_connected() -> None:
    (node,) = (one for one in cluster("a100-mi250x").classes if one.name == "mi250x")
    peers: dict[str, set[str]] = {}
    for link in node.links:
        if link.kind == "xgmi":
            assert link.gbps == 400 * link.count
            peers.setdefault(link.a, set()).add(link.b)
            peers.setdefault(link.b, set()).add(link.a)
    # As in the topology file that RCCL ships for eight dies of MI250X: three peers each.
    assert {one: sorted(int(peer[3:]) for peer in those) for one, those in sorted(peers.items())} == {
        "gpu0": [1, 2, 6],
        "gpu1": [0, 3, 5],
        "gpu2": [0, 3, 4],
        "gpu3": [1, 2, 7],
        "gpu4": [2, 5, 6],
        "gpu5": [1, 4, 7],
        "gpu6": [0, 4, 7],
        "gpu7": [3, 5, 6],
    }


def test_an_l40s_has_pcie_4_whatever_its_host_has() -> None:
    (node,) = cluster("l40s-pcie").classes
    assert {link.gbps for link in node.links if link.kind == "pcie"} == {256}
    assert not any(link.kind in ("nvlink", "xgmi") for link in node.links)


def test_a_name_is_a_shipped_file_and_a_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("two-core") == shipped()["two-core"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two-core").write_text("")
    assert find("two-core") == Path("two-core")


def test_what_is_neither_is_an_error() -> None:
    with pytest.raises(UsageError, match="did you mean h100-nvlink"):
        find("h100-nvlin")
    with pytest.raises(UsageError, match="is not there"):
        find("missing/cluster.yaml")


def test_nodes_are_found_by_name_and_a_cluster_stays_equal_when_it_is_sent_on() -> None:
    it = cluster("l40s-pcie")
    arrays = it.arrays
    assert [arrays.nodes[arrays.places[name]] for name in arrays.nodes] == list(arrays.nodes)
    assert arrays.places["n03"] == arrays.nodes.index("n03") and len(arrays.places) == it.nodes
    again = pickle.loads(pickle.dumps(it))
    assert again == it and again.arrays.places == arrays.places
