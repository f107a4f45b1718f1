"""What Slurm can know of a cluster: a tree with one leaf for a node, or blocks of nodes; its two files say the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.readers.slurm_conf import LONGEST_SWITCH

TREE, BLOCK = "tree", "block"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True)
class Row:
    """A switch of Slurm's: the switches below it, or its nodes; `stands_for` are the leaves of a node's other rails."""

    name: str
    below: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()


def kind_of(cluster: Cluster, kind: str = "") -> str:
    """Return `kind`, or where it is empty the one that the cluster has: switches before blocks."""
    if kind not in ("", TREE, BLOCK):
        raise UsageError(f"Slurm's topology is {TREE} or {BLOCK} here, not {kind!r}")
    if any("topology" in block.annotations for block in cluster.blocks):
        raise UsageError("a ring or a torus is not written: the cluster holds its nodes, and not how they are joined")
    if not cluster.nodes:
        raise UsageError("a topology has nodes, and this cluster has none")
    return kind or (TREE if cluster.switches else BLOCK)


def tree_of(cluster: Cluster) -> list[Row]:
    """Return the switches, those above first.

    Slurm knows one leaf for a node. Leaves that the same nodes use as rails become one, below the lowest switch that
    is above all of them; what then has nothing below it is left out. UsageError where a node has no leaf.
    """
    if not cluster.switches:
        raise UsageError(f"a tree has switches, and this cluster has none: write it as {BLOCK}")
    if bare := [block.nodes[0] for block in cluster.blocks if block.nodes and not block.leaves]:
        raise UsageError(f"each node is on a switch in a tree, and {bare[0]} is on none: name its leaf")
    parents = {one.name: one.parent for one in cluster.switches}
    first = _joined(cluster)
    nodes: dict[str, list[str]] = {}
    for block in cluster.blocks:
        if block.nodes:
            nodes.setdefault(first[block.leaves[0]], []).extend(block.nodes)
    others: dict[str, list[str]] = {}
    for leaf, name in first.items():
        others.setdefault(name, []).append(leaf)
    for name, leaves in others.items():
        parents[name] = _lowest_above(leaves, parents)
    gone = {leaf for leaf, name in first.items() if leaf != name}
    kept = {name: parent for name, parent in parents.items() if name not in gone}
    needed: dict[str, None] = {}
    for name in nodes:
        here: str | None = name
        while here is not None and here not in needed:
            needed[here] = None
            here = kept[here]
    below: dict[str, list[str]] = {}
    for name, parent in kept.items():
        if parent is not None and name in needed:
            below.setdefault(parent, []).append(name)
    rows = [
        Row(checked(name), tuple(below.get(name, ())), _nodes(nodes.get(name, ())), tuple(others.get(name, ())[1:]))
        for name in kept
        if name in needed
    ]
    return sorted(rows, key=lambda row: bool(row.nodes))


def blocks_of(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Return nodes by the name of their block: that of Slurm's, else the NVLink domain that they share.

    UsageError where nodes are in neither: a block promises its nodes what a leaf of a network does not give.
    """
    found: dict[str, list[str]] = {}
    for block in cluster.blocks:
        if block.nodes:
            found.setdefault(block.name or block.domain, []).extend(block.nodes)
    named = {block.name for block in cluster.blocks}
    alone = next(
        (nodes[0] for name, nodes in found.items() if not name or (name not in named and len(nodes) < 2)), None
    )
    if alone is not None:
        raise UsageError(
            "a block of topology/block is an NVLink domain of several nodes (`domain` of a block, as of a GB200 rack), "
            f"and {alone} shares none: write it as {TREE}"
        )
    return {checked(name): _nodes(nodes) for name, nodes in found.items()}


def checked(name: str) -> str:
    """Return a name that Slurm takes; raise UsageError for one that it does not."""
    if len(name) > LONGEST_SWITCH or not _NAME.fullmatch(name):
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        rule = f"Slurm's names have up to {LONGEST_SWITCH} letters, digits and _.:/-"
        raise UsageError(f"{rule}, not {shown!r} ({len(name)} characters): rename it")
    return name


def compare(rows: Iterable[Row], read: Cluster) -> None:
    """Raise UsageError where what was written does not say `rows` when it is read back."""
    nodes = {name: set(block.nodes) for block in read.blocks for name in block.leaves[:1]}
    parents: dict[str, str | None] = {row.name: None for row in rows}
    parents |= {name: row.name for row in rows for name in row.below}
    same = parents == {one.name: one.parent for one in read.switches}
    if not same or nodes != {row.name: set(row.nodes) for row in rows if row.nodes}:
        raise UsageError("the file does not say what it should when it is read back: a name of the cluster misleads it")


def compare_blocks(blocks: Mapping[str, tuple[str, ...]], read: Cluster) -> None:
    """The same of blocks."""
    if {block.name: set(block.nodes) for block in read.blocks} != {name: set(nodes) for name, nodes in blocks.items()}:
        raise UsageError("the file does not say what it should when it is read back: a name of the cluster misleads it")


def _joined(cluster: Cluster) -> dict[str, str]:
    """Return for each leaf the one that stands for it: of leaves that share nodes the first."""
    first: dict[str, str] = {}

    def root(name: str) -> str:
        while first.setdefault(name, name) != name:
            name = first[name] = first[first[name]]
        return name

    for block in cluster.blocks:
        for leaf in block.leaves:
            a, b = root(block.leaves[0]), root(leaf)
            if a != b:
                first[b] = a
    return {name: root(name) for name in list(first)}


def _lowest_above(leaves: list[str], parents: Mapping[str, str | None]) -> str | None:
    """Return the lowest switch that is above all of these."""

    def way(name: str) -> list[str]:
        found = []
        here = parents[name]
        while here is not None:
            found.append(here)
            here = parents[here]
        return found

    common = way(leaves[0])
    for leaf in leaves[1:]:
        above = set(way(leaf))
        common = [name for name in common if name in above]
    return common[0] if common else None


def _nodes(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(checked(name) for name in names)
