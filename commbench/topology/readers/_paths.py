"""A tree from the way up of each node, as some descriptions have it: n1 is on leaf1, that on spine1, that on core."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from commbench.results.findings import Finding
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.validate import NodesLine, SwitchLine, check_tree


@dataclass(frozen=True)
class Path:
    """A node, the line that says so, and the switches above it, the closest first."""

    node: str
    line: int
    above: tuple[str, ...]
    domain: str = ""
    block: str = ""
    annotations: Mapping[str, Any] = field(default_factory=dict)


def cluster_of(source: str, paths: Iterable[Path]) -> tuple[Cluster, tuple[Finding, ...]]:
    """Return the cluster: nodes alike in all but their names are one block. Raises TopologyError as check_tree does."""
    below: dict[str, dict[str, None]] = {}
    lines: dict[str, int] = {}
    groups: list[NodesLine] = []
    blocks: dict[str, tuple[Path, list[str]]] = {}
    for path in paths:
        for name in path.above:
            lines.setdefault(name, path.line)
            below.setdefault(name, {})
        for low, high in pairwise(path.above):
            below[high][low] = None
        groups.append(NodesLine((path.node,), path.line, path.above[:1]))
        alike = json.dumps([path.above[:1], path.domain, path.block, path.annotations], sort_keys=True, default=str)
        blocks.setdefault(alike, (path, []))[1].append(path.node)
    tree = check_tree(source, [SwitchLine(name, lines[name], tuple(under)) for name, under in below.items()], groups)
    cluster = Cluster(
        switches=tuple(Switch(name, parent) for name, parent in tree.parents.items()),
        blocks=tuple(
            Block(tuple(nodes), one.above[:1], domain=one.domain, name=one.block, annotations=one.annotations)
            for one, nodes in blocks.values()
        ),
    )
    return cluster, tree.findings
