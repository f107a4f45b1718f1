"""The choice of nodes, against trying all sets of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.recommend.nodes import EXACT, GREEDY, choose
from commbench.recommend.tree import tree
from commbench.topology.cluster import Block, Cluster, Switch
from tests.recommend.clusters import node_class, two_tiers


def pods(draw: random.Random) -> Cluster:
    """Up to eleven nodes, of two sizes, on leaves below two or three spines."""
    classes = (node_class(1, name="one"), node_class(2, name="two"))
    switches, blocks, number = [Switch("core")], [], 0
    for pod in range(draw.randint(2, 3)):
        switches.append(Switch(f"spine{pod}", "core", 400.0))
        for leaf in range(draw.randint(1, 2)):
            name = f"leaf{pod}{leaf}"
            switches.append(Switch(name, f"spine{pod}", 400.0))
            for one in classes:
                count = draw.randint(0, 2)
                if count:
                    blocks.append(Block(tuple(f"n{number + k}" for k in range(count)), (name,), one.name))
                    number += count
    return Cluster("pods", classes, tuple(switches), tuple(blocks))


def test_nodes_are_chosen_as_by_trying_all() -> None:
    draw = random.Random(5)
    tried = 0
    while tried < 60:
        cluster = pods(draw)
        count = cluster.nodes
        if not 3 <= count <= 11:
            continue
        units, arrays = tree(cluster), cluster.arrays
        free = np.array(sorted(draw.sample(range(count), draw.randint(2, count))))
        size = np.array([len(one.devices) for one in cluster.classes])[arrays.node_class]
        devices = draw.randint(1, int(size[free].sum()))
        slow = {node: draw.choice([0.1, 0.5]) for node in range(count) if draw.random() < 0.4}
        best = min(
            (len(set(units.unit[2][list(some)])), len(set(units.unit[1][list(some)])), len(some),
             sum(slow.get(node, 0.0) for node in some))
            for k in range(1, len(free) + 1)
            for some in itertools.combinations(free.tolist(), k)
            if size[list(some)].sum() >= devices
        )  # fmt: skip
        found = choose(cluster, units, free, devices, slow)
        assert found.how == EXACT and found.gap == 0
        assert set(found.nodes.tolist()) <= set(free.tolist()) and size[found.nodes].sum() >= devices
        assert (found.pods, found.leaves, len(found.nodes)) == best[:3]
        assert found.slow == pytest.approx(best[3])
        tried += 1


def test_a_slow_node_is_left_out_where_another_is_as_near() -> None:
    cluster = two_tiers([4, 4])
    found = choose(cluster, tree(cluster), np.arange(8), 3, {1: 0.3, 5: 0.3, 6: 0.3})
    assert found.nodes.tolist() == [0, 2, 3]


def test_without_time_the_choice_is_greedy_and_says_so() -> None:
    cluster = two_tiers([3, 4, 2])
    found = choose(cluster, tree(cluster), np.arange(9), 4, seconds=0.0)
    assert found.how == GREEDY
    assert found.nodes.tolist() == [3, 4, 5, 6]


def test_more_than_there_are_is_refused() -> None:
    cluster = two_tiers([2, 2], devices=2)
    with pytest.raises(UsageError, match="9 GPUs are asked for, and the 4 free nodes have 8"):
        choose(cluster, tree(cluster), np.arange(4), 9)


def test_of_two_vendors_that_are_equally_near_the_one_that_sends_faster_is_taken() -> None:
    from commbench.topology.reading import read
    from commbench.topology.shipped import find

    cluster = read(find("a100-mi250x")).cluster
    found = choose(cluster, tree(cluster), np.arange(cluster.nodes), 64)
    sends = {one.name: sum(nic.gbps or 0 for nic in one.nics) for one in cluster.classes}
    kinds = {cluster.classes[int(kind)].name for kind in cluster.arrays.node_class[found.nodes]}
    assert kinds == {max(sends, key=lambda name: sends[name])} and len(set(sends.values())) == 2
