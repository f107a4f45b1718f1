"""The public descriptions of shared/cases: every value of their index that these readers can see.

The files are not the project's, and never part of it: COMMBENCH_CASES names their folder, or ../shared/cases from the
root of the repository.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from commbench.topology.cluster import Cluster
from commbench.topology.readers import ibnetdiscover
from commbench.topology.reading import Reading, TopologyError, read
from commbench.topology.writers import slurm_conf, slurm_yaml

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

pytestmark = pytest.mark.skipif(not (CASES / "INDEX.md").exists(), reason=f"the public files are not here ({CASES})")


def case(name: str, reader: str) -> Reading:
    reading = read(CASES / name)
    assert reading.format == reader
    return reading


def rules(reading: Reading) -> list[str]:
    return [finding.rule for finding in reading.findings]


def nodes(cluster: Cluster) -> list[str]:
    return [name for block in cluster.blocks for name in block.nodes]


def parents(cluster: Cluster) -> dict[str, str | None]:
    return {one.name: one.parent for one in cluster.switches}


def test_blocks_of_topograph_for_slurm() -> None:
    reading = case("slurm/topograph_expected_slinky_block.conf", "slurm_conf")
    assert [len(block.nodes) for block in reading.cluster.blocks] == [8] * 12
    assert (nodes(reading.cluster)[0], nodes(reading.cluster)[-1]) == ("srv1101", "srv6208")
    assert (reading.cluster.block_sizes, rules(reading)) == ((8, 16, 32), [])


@pytest.mark.parametrize("root", [True, False])
def test_a_tree_with_and_without_its_root(root: bool) -> None:
    reading = case(f"slurm/like_topology_tree{'' if root else '_noroot'}.conf", "slurm_conf")
    found = parents(reading.cluster)
    assert len(found) == (15 if root else 14)
    assert {found["pod3"], found["pod7"]} == ({"core"} if root else {None})
    assert [found[f"edge{k}"] for k in range(40, 52)] == ["pod3"] * 6 + ["pod7"] * 6
    assert [len(block.nodes) for block in reading.cluster.blocks] == [16] * 12
    assert nodes(reading.cluster) == [f"n{k:04}" for k in range(200, 392)]
    assert rules(reading) == ([] if root else ["no common root"])


def test_padded_blocks_and_a_size_above_them_all() -> None:
    reading = case("slurm/like_topology_block_padded.conf", "slurm_conf")
    assert [len(block.nodes) for block in reading.cluster.blocks] == [6] * 6
    assert nodes(reading.cluster) == [f"cn{k:03}" for k in range(1, 37)]
    assert reading.cluster.block_sizes == (6, 12, 24, 48)
    assert [(one.rule, one.lines) for one in reading.findings] == [("block size above all nodes", (7,))]


def test_topologies_of_all_kinds() -> None:
    reading = case("slurm/like_topology_all_kinds.yaml", "slurm_yaml")
    assert [one.name for one in reading.clusters] == ["racks", "fabric", "any", "any_by_rank", "loops", "cube"]
    assert [one.nodes for one in reading.clusters] == [12, 12, 0, 0, 12, 24]
    assert reading.cluster.block_sizes == (3, 12)
    (torus,) = reading.clusters[-1].blocks
    assert torus.annotations["dims"] == {"x": 2, "y": 4, "z": 3}
    assert len(torus.annotations["placements"]) == 3
    assert rules(reading) == ["flat topology"] * 2 + ["topology without switches"] * 2


def test_two_trees_with_a_switch_of_one_name() -> None:
    reading = case("slurm/like_topology_two_trees.yaml", "slurm_yaml")
    west, east = reading.clusters
    assert (west.name, parents(west), nodes(west)) == (
        *("west", {"T1": None, "T6": "T1"}),
        ["Node407", "Node408", "Node409"],
    )
    assert (east.name, parents(east), nodes(east)) == ("east", {"T1": None, "T4": "T1"}, ["Node112", "Node118"])


def test_five_topologies() -> None:
    reading = case("slurm/like_topology_five.yaml", "slurm_yaml")
    assert [one.name for one in reading.clusters] == ["plain3", "chain", "plain1", "cell", "plain2"]
    chain, cell = reading.clusters[1], reading.clusters[3]
    assert parents(chain) == {"CORE5": None, "AGG2": "CORE5", "EDGE9": "AGG2"}
    assert nodes(chain) == ["Node112", "Node118"]
    assert ([len(block.nodes) for block in cell.blocks], cell.block_sizes) == ([3], (3,))


@pytest.mark.parametrize("name", ["cores_brackets", "expanded", "missing_device", "mixed_autodetect", "mps_autodetect"])
def test_gres_files_are_no_topology(name: str) -> None:
    with pytest.raises(TopologyError, match=rf"like_gres_{name}\.conf"):
        read(CASES / "slurm" / f"like_gres_{name}.conf")


def test_a_model_with_two_domains() -> None:
    reading = case("topograph_models/dual-xclr-regular.yaml", "topograph")
    found = parents(reading.cluster)
    assert len(found) == 19
    assert sorted(Counter(found.values()).values()) == [1, *[2] * 6, 6]
    assert [name for name, parent in found.items() if parent == "core"] == [f"spine-{k}" for k in range(1, 7)]
    assert [len(block.nodes) for block in reading.cluster.blocks] == [8] * 12
    assert (nodes(reading.cluster)[0], nodes(reading.cluster)[-1]) == ("srv1101", "srv6208")
    assert Counter(block.domain for block in reading.cluster.blocks) == {"nvl-1": 6, "nvl-2": 6}
    racks = [block.annotations["accelerator.topology.test/sub-domain"] for block in reading.cluster.blocks]
    assert racks == [f"rack{k:02}" for k in range(1, 13)]
    core = reading.cluster.by_switch["core"]
    assert core.annotations == {"labels": {"topology.kubernetes.io/region": "us-east"}}


def test_a_model_of_four_domains() -> None:
    reading = case("topograph_models/nvl72.yaml", "topograph")
    assert (len(reading.cluster.switches), reading.cluster.nodes) == (7, 72)
    assert [len(block.nodes) for block in reading.cluster.blocks] == [18] * 4
    assert (nodes(reading.cluster)[0], nodes(reading.cluster)[-1]) == ("node1101", "node2218")
    assert {block.domain for block in reading.cluster.blocks} == {"nvl-1-1", "nvl-1-2", "nvl-2-1", "nvl-2-2"}


def test_the_smallest_model() -> None:
    reading = case("topograph_models/small-tree.yaml", "topograph")
    assert parents(reading.cluster) == {"S1": None, "S2": "S1", "S3": "S1"}
    assert {block.domain: block.nodes for block in reading.cluster.blocks} == {
        "nvl2": ("I21", "I22", "I25"),
        "nvl3": ("I34", "I35", "I36"),
    }


def test_a_whole_fabric() -> None:
    name = "ibnetdiscover/topograph_example.out"
    listing = ibnetdiscover.parse((CASES / name).read_text(), name)
    kinds = {guid: end.kind for guid, end in listing.ends.items()}
    assert Counter(kinds.values()) == {"switch": 40, "adapter": 582}
    tiers = Counter("LEAF" in end.description for end in listing.ends.values() if end.kind == "switch")
    assert tiers == {True: 31, False: 9}
    assert sum("Aggregation Node" in end.description for end in listing.ends.values()) == 40
    assert {seen for _, seen, _ in listing.links.values()} == {2}
    inner = Counter(kinds[a] == kinds[b] for (a, _), (b, _) in listing.links)
    assert inner == {True: 532, False: 582}

    reading = case(name, "ibnetdiscover")
    cluster = reading.cluster
    assert sum("-dgx-" in node for node in nodes(cluster)) == 119
    assert sum(cable.count for cable in cluster.cables) == 532
    assert {cable.gbps for cable in cluster.cables if cable.count == 2} == {800}
    leaves = [one for one in cluster.switches if one.parent]
    assert (len(leaves), sum(one.cables or 0 for one in leaves)) == (31, 532)
    assert all(one.gbps == 400 * (one.cables or 0) and one.reduces for one in leaves)
    (spines,) = (one for one in cluster.switches if not one.parent)
    assert (len(spines.annotations["switches"]), spines.reduces) == (9, True)
    a08 = next(block for block in cluster.blocks if "a08-p1-dgx-04-c01" in block.nodes)
    assert a08.leaves == tuple(f"A09-P1-IBLEAF-0{rail}-04" for rail in (1, 2, 3, 4))
    assert {nic.gbps for nic in cluster.by_class[a08.node_class].nics} == {400}
    # 69 adapters have the name of their model, and three that of localhost.
    assert {one.rule: one.count for one in reading.findings} == {"unnamed adapter": 72, "fewer adapters": 10}
    for write in (slurm_conf.write, slurm_yaml.write):
        assert "Nodes=a08-p1-dgx-04-c[01-17]" in slurm_conf.write(cluster)
        assert write(cluster)


def test_a_listing_that_was_cut_off_is_refused_with_its_last_line() -> None:
    with pytest.raises(TopologyError, match=r"example-bad\.out:10: 0 switches, 1 other devices and no host"):
        read(CASES / "ibnetdiscover" / "topograph_example-bad.out")


def test_a_list_of_ports() -> None:
    name = "ibnetdiscover/treydock_p_test.out"
    listing = ibnetdiscover.parse((CASES / name).read_text(), name)
    # The fourth switch stands at the right of a line alone: ib-i1l2s01.
    assert Counter(end.kind for end in listing.ends.values()) == {"adapter": 3, "switch": 4}
    assert len(listing.links) == 4
    reading = case(name, "ibnetdiscover")
    assert sorted(nodes(reading.cluster)) == ["o0001", "o0002", "p0001"]
    assert {nic.gbps for one in reading.cluster.classes for nic in one.nics} == {100}
    assert sorted(rules(reading)) == ["cable seen once", "no common root", "switch without hosts"]
