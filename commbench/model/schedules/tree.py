"""NCCL's double binary tree over nodes, with a chain in each node, pipelined.

Each of two trees carries half of the buffer up and down. A node that is inner in one is a leaf of the other, so that
none has more than two children in both and every link is in use both ways (Sanders, Speck and Träff, "Two-tree
algorithms for full bandwidth broadcast, reduction and scan", 2009). Of an odd number of nodes, node 0 alone is inner in
both, with one child in each. After NCCL's `src/graph/trees.cc` (ncclGetBtree, ncclGetDtree) and, for which ranks of a
node the trees pass through, `src/graph/connect.cc` with its default "balanced" pattern: the head of the chain has the
parent and the second child, the rank after it the first child. MPICH's `tree` is another algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, Schedule, Step, listed

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allreduce",)


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return both trees of one channel; on a single node they are one chain."""
    order = group.orders[channel]
    chains = order[np.argsort(group.node[order], kind="stable")]  # node after node
    size = np.bincount(group.node)
    head = np.cumsum(size) - size  # where the chain of each node begins
    trees = double_tree(group.nodes)[: group.nodes]
    ups = []
    for above, second in trees:
        up = np.arange(group.n) - 1
        up[head] = np.where(above < 0, -1, head[above] + np.minimum(1 - second, size[above] - 1))
        ups.append(up)
    blocks = np.arange(len(trees))[:, None]
    return Schedule(len(trees), tuple(both_ways(ups, chains[:, None], blocks)), pipelined=True)


def double_tree(nodes: int) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Return two trees: the parent of each node, -1 for the root's, and which child it is: 0 or 1, the second.

    In the first one a node is on the level of its lowest bit. The second is the first mirrored or, of an odd number of
    nodes, shifted by one.
    """
    node = np.arange(nodes)
    low = node & -node
    above = (node ^ low) | low << 1
    above = np.where(above < nodes, above, node ^ low)
    above[0] = -1
    second = (node > above).astype(np.int64)
    if nodes % 2:
        other = np.roll(np.where(above < 0, -1, (above + 1) % nodes), 1), np.roll(second, 1)
    else:
        other = np.where(above < 0, -1, nodes - 1 - above)[::-1], second[::-1]
    return (above, second), other


def both_ways(ups: list[Ints], ranks: Ints, blocks: Ints) -> list[Step]:
    """Return the steps up all trees to their roots and down again, a level at a time.

    `ups` has the parent of each place in each tree, -1 for the root's. At place p stand the ranks ranks[p], (places,
    abreast), each with the block blocks[tree], (trees, abreast), of its own.
    """
    edges = []  # of each tree, (4, edges): how deep the child is, child, parent, block
    for up, block in zip(ups, blocks, strict=True):
        child = np.flatnonzero(up >= 0)
        columns = np.broadcast_arrays(_depth(up)[child, None], ranks[child], ranks[up[child]], block)
        edges.append(np.stack([column.ravel() for column in columns]))
    depth, child, parent, block = np.concatenate(edges, axis=1)
    levels = [depth == level for level in range(1, int(depth.max()) + 1)]
    climb = [listed(child[at], parent[at], block[at, None], reduce=True) for at in reversed(levels)]
    return climb + [listed(parent[at], child[at], block[at, None]) for at in levels]


def _depth(up: Ints) -> Ints:
    """Return how many edges each place is below its root."""
    depth, at = np.zeros_like(up), up
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, up[at], -1)
    return depth
