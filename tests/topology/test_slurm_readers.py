"""What Slurm writes and reads of a cluster: topology.conf, topology.yaml, scontrol show topology, a job's variables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from commbench.topology.cluster import Cluster
from commbench.topology.reading import TopologyError, read_text


def parents(cluster: Cluster) -> Mapping[str, str | None]:
    return {one.name: one.parent for one in cluster.switches}


def nodes(cluster: Cluster) -> Mapping[str, tuple[str, ...]]:
    return {block.name or "".join(block.leaves): block.nodes for block in cluster.blocks}


def rules(text: str) -> list[str]:
    return [finding.rule for finding in read_text(text, "x").findings]


def test_topology_conf_takes_comments_continued_lines_and_keys_in_any_case() -> None:
    text = (
        "# top\nSWITCHNAME=s switches=l[1-2] LinkSpeed=100 # fast\r\n"
        'SwitchName=l1 \\\n Nodes=a,b\nSwitchName=l2 Nodes="c"\n'
    )
    reading = read_text(text, "x")
    assert (reading.format, reading.findings) == ("slurm_conf", ())
    assert parents(reading.cluster) == {"s": None, "l1": "s", "l2": "s"}
    assert nodes(reading.cluster) == {"l1": ("a", "b"), "l2": ("c",)}
    assert reading.cluster.by_switch["s"].annotations == {"LinkSpeed": 100}


def test_a_name_longer_than_slurm_takes_is_a_finding() -> None:
    assert rules(f"SwitchName={'s' * 64} Nodes=n1\n") == ["long name"]
    assert rules(f"SwitchName={'s' * 63} Nodes=n1\n") == []


def test_blocks_keep_their_names_and_sizes() -> None:
    reading = read_text("BlockName=b1 Nodes=n[01-04]\nBlockName=b2 Nodes=n[05-08]\nBlockSizes=4,8\n", "x")
    assert reading.findings == ()
    assert nodes(reading.cluster) == {"b1": ("n01", "n02", "n03", "n04"), "b2": ("n05", "n06", "n07", "n08")}
    assert reading.cluster.block_sizes == (4, 8)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("BlockSizes=4,12", "x:2: block sizes grow, and each is the first one times a power of two, not 4, 12"),
        ("BlockSizes=8,4", "x:2: block sizes grow"),
        ("BlockSizes=0", "x:2: block sizes grow"),
        ("BlockSizes=4,x", "x:2: a block size is a whole number, not 'x'"),
        ("BlockName=b1 Nodes=n9", "x:2: block b1 is declared already, in line 1"),
        ("BlockName=b2 Nodes=n1", "x:2: node n1 is declared already, in line 1"),
        ("BlockName=b2", "x:2: a block has BlockName and Nodes"),
    ],
)
def test_blocks_that_slurm_refuses_are_refused(line: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        read_text(f"BlockName=b1 Nodes=n[1-4]\n{line}\n", "x")


def test_block_sizes_that_cannot_be_filled_are_findings() -> None:
    assert rules("BlockName=b Nodes=n[1-4]\nBlockSizes=4,8\n") == ["block size above all nodes"]
    assert rules("BlockName=b Nodes=n[1-4]\nBlockName=c Nodes=m1\nBlockSizes=4\n") == ["small block"]


SHOWN = """\
SwitchName=s Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=l[1-2]
SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=l2 Level=0 LinkSpeed=1 Nodes=n[3-4]
"""


def test_shown_switches_are_the_tree_again() -> None:
    reading = read_text(SHOWN, "x")
    assert (reading.format, reading.findings) == ("slurm_show", ())
    assert parents(reading.cluster) == {"s": None, "l1": "s", "l2": "s"}
    assert nodes(reading.cluster) == {"l1": ("n1", "n2"), "l2": ("n3", "n4")}


def test_the_way_to_one_node_is_no_tree() -> None:
    with pytest.raises(TopologyError, match=r"x:1: switch l2 is not shown.*save all of `scontrol show topology`"):
        read_text(SHOWN.replace("SwitchName=l2 Level=0 LinkSpeed=1 Nodes=n[3-4]\n", ""), "x")


def test_shown_blocks_are_read_and_those_above_them_say_nothing_new() -> None:
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
    )
    cluster = read_text(text, "x").cluster
    assert nodes(cluster) == {"b1": ("n1", "n2"), "b2": ("n3", "n4")}
    assert cluster.block_sizes == (2, 4)


ADDRESSES = """\
0: SLURM_TOPOLOGY_ADDR=core.spine1.leaf1.n01
0: SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.switch.node
2: SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.switch.node
2: SLURM_TOPOLOGY_ADDR=core.spine1.leaf1.n02
1: SLURM_TOPOLOGY_ADDR=core..leaf2.n03.example.org
1: SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.switch.node
3: SLURM_TOPOLOGY_ADDR=core.spine1.leaf1.n01
3: SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.switch.node
"""


@pytest.mark.parametrize("labelled", [True, False])
def test_addresses_of_tasks_make_a_tree(labelled: bool) -> None:
    text = ADDRESSES if labelled else "".join(line[3:] for line in ADDRESSES.splitlines(keepends=True))
    reading = read_text(text, "x")
    assert (reading.format, [finding.rule for finding in reading.findings]) == ("slurm_addr", ["nodes of a job"])
    assert parents(reading.cluster) == {"leaf1": "spine1", "spine1": "core", "core": None, "leaf2": "core"}
    assert nodes(reading.cluster) == {"leaf1": ("n01", "n02"), "leaf2": ("n03.example.org",)}


def test_an_address_in_a_block_and_one_without_topology() -> None:
    blocks = "export SLURM_TOPOLOGY_ADDR='b8.n1'\nexport SLURM_TOPOLOGY_ADDR_PATTERN='block.node'\n"
    assert nodes(read_text(blocks, "x").cluster) == {"b8": ("n1",)}
    assert read_text("SLURM_TOPOLOGY_ADDR=n1\nSLURM_TOPOLOGY_ADDR_PATTERN=node\n", "x").cluster.nodes == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SLURM_TOPOLOGY_ADDR=a.n1\n", "x:1: 0 patterns fit an address of 2 parts"),
        (f"{ADDRESSES}2: SLURM_TOPOLOGY_ADDR=core.spine1.leaf9.n01\n", "x:9: node n01 is elsewhere in line 1"),
        ("SLURM_TOPOLOGY_ADDR=l[1-2].n\nSLURM_TOPOLOGY_ADDR_PATTERN=switch.node\n", r"x:1: l\[1-2\] are several"),
        ("SLURM_TOPOLOGY_ADDR=l1.n\nSLURM_TOPOLOGY_ADDR_PATTERN=rack.node\n", "x:1: a pattern is switches or blocks"),
    ],
)
def test_addresses_that_do_not_fit_are_refused(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        read_text(text, "x")


YAML = """\
- topology: fabric
  cluster_default: false
  tree:
    switches:
    - {switch: s, children: "l[1-2]"}
    - {switch: l1, nodes: "n[1-2]"}
    - {switch: l2, nodes: "n[3-4]"}
- topology: racks
  cluster_default: true
  block:
    block_sizes: [2, 4]
    blocks: [{block: b1, nodes: "n[1-2]"}, {block: b2, nodes: "n[3-4]"}]
- topology: any
  cluster_default: false
  flat: true
"""


def test_topology_yaml_has_its_default_first() -> None:
    reading = read_text(YAML, "x")
    assert (reading.format, [cluster.name for cluster in reading.clusters]) == (
        "slurm_yaml",
        ["racks", "fabric", "any"],
    )
    assert reading.cluster.block_sizes == (2, 4)
    assert nodes(reading.cluster) == {"b1": ("n1", "n2"), "b2": ("n3", "n4")}
    assert parents(reading.clusters[1]) == {"s": None, "l1": "s", "l2": "s"}
    assert [(finding.rule, finding.lines) for finding in reading.findings] == [("flat topology", (15,))]


def test_two_defaults_or_none_are_a_finding() -> None:
    assert "not one default" in rules(YAML.replace("true", "false", 1))
    assert "not one default" in rules(YAML.replace("false", "true", 1))


def test_rings_and_toruses_are_nodes_whose_distances_are_not_known() -> None:
    ring = "- topology: r\n  ring: {rings: [{ring: a, nodes: 'n[1-3]'}]}\n"
    torus = "- topology: t\n  torus3d: {toruses: [{name: a, dims: {x: 2, y: 1, z: 2}, nodes: 'm[1-4]'}]}\n"
    reading = read_text(ring + torus, "x")
    assert [(one.name, one.nodes, one.switches) for one in reading.clusters] == [("r", 3, ()), ("t", 4, ())]
    assert rules(ring) == ["topology without switches"]
    with pytest.raises(TopologyError, match="x:2: torus a is 2x1x3 = 6 nodes, and has 4"):
        read_text(torus.replace("z: 2", "z: 3"), "x")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("children", "child", "x:5: unknown key 'child'; known here: switch, children, nodes"),
        ("  tree:", "  tree: {}\n  block:", "x:1: topology fabric has one kind of tree, block"),
        ("  tree:", "  mesh:", "x:1: topology fabric has one kind .* not mesh"),
        ("racks", "fabric", "x:8: topology fabric is declared already, in line 1"),
        ("[2, 4]", "[2, 6]", "x:11: block sizes grow"),
        ("default: true", "default: maybe", "x:9: cluster_default is true or false, not maybe"),
        ('nodes: "n[3-4]"}\n', 'nodes: "n[3-4"}\n', "x:7: a list of hosts"),
        ("{switch: l1", "{switch: &a l1, x: *a", "x:6: aliases"),
        ("{switch: l1", "{switch: !!python/name:os.system l1", "x:6: "),
    ],
)
def test_faults_of_topology_yaml_are_refused_with_their_lines(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        read_text(YAML.replace(old, new, 1), "x")
