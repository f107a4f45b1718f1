"""NCCL's double binary tree: its shape, and what it moves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from commbench.model.schedule import make
from commbench.model.schedules.tree import double_tree
from tests.model.groups import SHAPES, group
from tests.model.traffic import repetitions, sent


def children(above: np.ndarray) -> np.ndarray:
    return np.bincount(above[above >= 0], minlength=len(above))


# As drawn in NCCL's src/graph/trees.cc: the parents of 0, 1, 2, ...
FIRST_OF_14 = [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
SECOND_OF_12 = [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, -1]
SECOND_OF_13 = [9, -1, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11]


def test_the_trees_are_those_that_nccl_draws() -> None:
    assert double_tree(14)[0][0].tolist() == FIRST_OF_14
    assert double_tree(12)[1][0].tolist() == SECOND_OF_12
    assert double_tree(13)[1][0].tolist() == SECOND_OF_13


@pytest.mark.parametrize("nodes", range(2, 130))
def test_no_node_is_inner_in_both_trees(nodes: int) -> None:
    first, second = (children(above) for above, _ in double_tree(nodes))
    assert (first + second).max() <= 2
    both = np.flatnonzero((first > 0) & (second > 0)).tolist()
    # The tree of an odd number is shifted, by which node 0, the root of the first, has one child in the second as well.
    assert both in ([], [0]) if nodes % 2 else both == []


@pytest.mark.parametrize("nodes", range(2, 130))
def test_a_tree_is_a_binary_tree_over_all_nodes_and_nearly_as_low_as_one_can_be(nodes: int) -> None:
    for above, which in double_tree(nodes):
        assert (above < 0).sum() == 1 and (above != np.arange(nodes)).all()
        inner = above >= 0
        assert len(set(zip(above[inner].tolist(), which[inner].tolist(), strict=True))) == nodes - 1
        steps, at = 0, above
        while (at >= 0).any():
            steps, at = steps + 1, np.where(at >= 0, above[at], -1)
        assert steps <= int(nodes - 1).bit_length()


@pytest.mark.parametrize("sizes", [sizes for sizes in SHAPES if len(sizes) > 1])
def test_a_node_sends_and_receives_at_most_two_buffers(sizes: tuple[int, ...]) -> None:
    some, nodes = group(*sizes, channels=2), len(sizes)

    def crosses(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.asarray(some.node[source] != some.node[target])

    for channel in range(2):
        tree = make("tree", "allreduce", some, channel)
        for received in (False, True):
            each = sent(some, tree, crosses, received)[: some.n]
            assert sum(each) == 2 * (nodes - 1)
            assert all(
                sum(one for one, node in zip(each, some.node, strict=True) if node == here) <= 2
                for here in range(nodes)
            )
        assert sum(sent(some, tree)) == 2 * (some.n - 1)
        # Down the chains and at most a rank more on each level, to the first child.
        assert tree.pipelined and repetitions(tree) <= 2 * (max(sizes) - 1 + 2 * (nodes - 1).bit_length())


def test_on_one_node_it_is_the_chain_both_ways() -> None:
    some = group(4, channels=2)
    tree = make("tree", "allreduce", some, 1)
    pairs = [(step.source.tolist(), step.target.tolist()) for step in tree.steps]
    assert pairs == [([0], [3]), ([3], [2]), ([2], [1]), ([1], [2]), ([2], [3]), ([3], [0])]
    assert sent(some, tree)[:4] == [Fraction(1), Fraction(1), Fraction(2), Fraction(2)]


def test_the_head_of_a_node_has_the_second_child_and_the_next_rank_the_first() -> None:
    tree = make("tree", "allreduce", group(*(2,) * 8))
    # Block 0 goes up the first tree: nodes 2 and 6 are the children of 4, and 4 is the one child of 0.
    up = {
        (int(step.source[one]), int(step.target[one]))
        for step in tree.steps
        if step.reduce
        for one, block in zip(*step.moved(0), strict=True)
        if block == 0
    }
    assert {(4, 9), (12, 8), (8, 0), (9, 8)} <= up
