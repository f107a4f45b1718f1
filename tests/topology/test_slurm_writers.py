"""What is written for Slurm says the same when it is read, and what Slurm cannot be told is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.reading import read_text
from commbench.topology.writers import slurm_conf, slurm_yaml


def parents(cluster: Cluster) -> Mapping[str, str | None]:
    return {one.name: one.parent for one in cluster.switches}


def leaf_of(cluster: Cluster) -> Mapping[str, str]:
    return {node: leaf for block in cluster.blocks for leaf in block.leaves for node in block.nodes}


def block_of(cluster: Cluster) -> Mapping[str, str]:
    return {node: block.name for block in cluster.blocks for node in block.nodes}


TREE = Cluster(
    switches=(Switch("s"), Switch("l1", "s"), Switch("l2", "s")),
    blocks=(Block(("n1", "n2"), ("l1",), domain="d1"), Block(("n3",), ("l1",), domain="d2"), Block(("n4",), ("l2",))),
)
BLOCKS = Cluster("racks", blocks=(Block(("n1", "n2"), name="b1"), Block(("n3", "n4"), name="b2")), block_sizes=(2, 4))


def test_a_tree_is_written_with_its_root_first() -> None:
    assert slurm_conf.write(TREE) == (
        "SwitchName=s Switches=l[1-2]\nSwitchName=l1 Nodes=n[1-3]\nSwitchName=l2 Nodes=n4\n"
    )


def test_blocks_keep_their_sizes() -> None:
    assert slurm_conf.write(BLOCKS) == "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n"


def test_several_topologies_make_one_yaml() -> None:
    flat = Cluster("any")
    back = read_text(slurm_yaml.write(BLOCKS, TREE, flat), "x").clusters
    assert [one.name for one in back] == ["racks", "default", "any"]
    assert (block_of(back[0]), back[0].block_sizes) == (block_of(BLOCKS), (2, 4))
    assert (parents(back[1]), leaf_of(back[1])) == (parents(TREE), leaf_of(TREE))
    assert back[2].nodes == 0


def test_the_leaves_of_a_nodes_rails_are_one_below_what_is_above_all() -> None:
    switches = (
        *(Switch("core"), Switch("rail0", "core"), Switch("rail1", "core")),
        *(Switch("a0", "rail0"), Switch("a1", "rail1"), Switch("b0", "rail0"), Switch("b1", "rail1")),
    )
    cluster = Cluster(switches=switches, blocks=(Block(("n1", "n2"), ("a0", "a1")), Block(("n3",), ("b0", "b1"))))
    assert slurm_conf.write(cluster) == (
        "SwitchName=core Switches=a0,b0\n"
        "# a0 stands for the leaves of all rails: also a1\nSwitchName=a0 Nodes=n[1-2]\n"
        "# b0 stands for the leaves of all rails: also b1\nSwitchName=b0 Nodes=n3\n"
    )


def test_switches_without_nodes_below_are_left_out() -> None:
    cluster = Cluster(switches=(Switch("s"), Switch("l", "s"), Switch("empty", "s")), blocks=(Block(("n",), ("l",)),))
    assert slurm_conf.write(cluster) == "SwitchName=s Switches=l\nSwitchName=l Nodes=n\n"


@pytest.mark.parametrize("write", [slurm_conf.write, slurm_yaml.write])
@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            Cluster(switches=(Switch("s" * 64),), blocks=(Block(("n",), ("s" * 64,)),)),
            "up to 63 letters.*64 characters",
        ),
        (Cluster(switches=(Switch("a;b"),), blocks=(Block(("n",), ("a;b",)),)), "not 'a;b'"),
        (Cluster(switches=(Switch("l"),), blocks=(Block(("n#1",), ("l",)),)), "not 'n#1'"),
        (Cluster(switches=(Switch("l"),), blocks=(Block(("n1",)), Block(("n2",), ("l",)))), "n1 is on none"),
        (
            Cluster(blocks=(Block(("n1",), name="r", annotations={"topology": "ring"}),)),
            "a ring or a torus is not written",
        ),
        (Cluster(blocks=(Block(("n1",), name="b"),), block_sizes=(2, 3)), "block sizes grow"),
        (Cluster(blocks=(Block(("n1",), name="b"), Block(("n1",), name="c"))), "node n1 is declared already"),
    ],
)
def test_what_slurm_cannot_be_told_is_refused(write: object, cluster: Cluster, says: str) -> None:
    assert callable(write)
    with pytest.raises(UsageError, match=says):
        write(cluster)


def test_a_conf_has_nodes_and_a_yaml_has_names_of_their_own() -> None:
    with pytest.raises(UsageError, match="a topology has nodes"):
        slurm_conf.write(Cluster())
    with pytest.raises(UsageError, match="each topology has a name of its own"):
        slurm_yaml.write(TREE, TREE)
    with pytest.raises(UsageError, match="tree or block here, not 'ring'"):
        slurm_conf.write(TREE, "ring")
    with pytest.raises(UsageError, match="a tree has switches"):
        slurm_conf.write(BLOCKS, "tree")


NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,11}", fullmatch=True)


@st.composite
def trees(draw: st.DrawFn) -> Cluster:
    """A tree of one to three tiers with any names that Slurm takes."""
    names = draw(st.lists(NAMES, min_size=4, max_size=24, unique=True))
    leaves = draw(st.integers(1, len(names) // 2))
    above = draw(st.integers(0, 3))
    switches = [Switch(name) for name in names[:above]]
    for name in names[above : above + leaves]:
        switches.append(Switch(name, draw(st.sampled_from(names[:above])) if above else None))
    blocks = []
    for place, node in enumerate(names[above + leaves :] or names[-1:]):
        blocks.append(Block((f"x{node}",), (names[above + place % leaves],)))
    return Cluster(switches=tuple(switches), blocks=tuple(blocks))


@given(trees())
@settings(max_examples=150)
def test_any_tree_comes_back_from_both_files(cluster: Cluster) -> None:
    for text in (slurm_conf.write(cluster), slurm_yaml.write(cluster)):
        back = read_text(text, "x").cluster
        assert leaf_of(back) == leaf_of(cluster)
        kept = parents(back)
        assert kept == {name: parent for name, parent in parents(cluster).items() if name in kept}
        assert set(kept) >= set(leaf_of(cluster).values())


def test_blocks_are_made_of_domains_of_several_nodes_alone() -> None:
    def cluster(*domains: str) -> Cluster:
        return Cluster("x", blocks=tuple(Block((f"n{k}",), domain=name) for k, name in enumerate(domains)))

    assert "BlockName=rack1 Nodes=n[0-1]" in slurm_conf.write(cluster("rack1", "rack1", "rack2", "rack2"), "block")
    for domains in (("", ""), ("rack1", "rack2"), ("rack1", "rack1", "")):
        with pytest.raises(UsageError, match=r"an NVLink domain of several nodes .*shares none: write it as tree"):
            slurm_conf.write(cluster(*domains), "block")
