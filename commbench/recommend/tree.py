"""The switches as nested units: nodes that are near one another, and what can leave them at once.

The lowest unit is an NVLink domain, mostly a node. A node of a rail-optimised fabric hangs on a leaf a rail, so that no
leaf holds it alone: nodes that share a leaf, or a switch of a higher tier, are one unit of that tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.topology.cluster import Cluster
from commbench.topology.node import BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tree:
    """Units by level, the smallest first; each unit lies in one of the next level.

    `unit`, (levels, nodes): the unit of each node of the cluster. `out`, of each level an array (units,): bytes per
    second that leave a unit over all uplinks of its switches, inf where nobody said or nothing limits it. Level 0 is
    the domains, whose way out are the NICs of their nodes; a level k > 0 is the switches of tier k - 1.
    """

    unit: Ints
    out: tuple[Floats, ...]
    us: tuple[float, ...]  # (levels,) the least latency of a way out, one way; 0 of domains

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.out)


def tree(cluster: Cluster) -> Tree:
    """Return the units of a cluster; one level, the domains, where nobody said a switch."""
    import numpy as np

    arrays = cluster.arrays
    _, domain = np.unique(arrays.domain, return_inverse=True)
    nics = np.array(
        [sum((one.nics[nic].gbps or np.inf) for nic in one.compute_nics) for one in cluster.classes] + [np.inf]
    )
    levels, out, us = [domain], [_limits(np.bincount(domain, weights=nics[arrays.node_class]))], [0.0]
    gbps = np.array([np.inf if one.gbps is None else one.gbps for one in cluster.switches])
    latency = np.array([one.us or 0.0 for one in cluster.switches])
    above = np.arange(len(cluster.switches))  # the highest switch above each, up to the tier
    first = _first_nodes(cluster)
    # A NIC on no switch that anyone said is taken to reach all others without limit.
    whole = all(
        len(one.leaves) == 1
        or len(one.leaves) >= max(1, cluster.by_class[one.node_class].rails if one.node_class else 1)
        for one in cluster.blocks
    )
    for tier in range(int(arrays.tier.max(initial=-1)) + 1):
        parent = arrays.parent[above]
        higher = (parent >= 0) & (arrays.tier[parent] <= tier)
        while higher.any():
            above = np.where(higher, parent, above)
            parent = arrays.parent[above]
            higher = (parent >= 0) & (arrays.tier[parent] <= tier)
        unit, of_switch = _components(arrays.leaf[first], above, arrays.domain[first])
        levels.append(unit[arrays.block])
        ways = np.flatnonzero((of_switch >= 0) & (arrays.parent >= 0))
        found = np.bincount(of_switch[ways], weights=gbps[ways], minlength=int(unit.max()) + 1)
        out.append(_limits(found) if whole else np.full(len(found), np.inf))
        own = whole and len(ways) > 0 and (arrays.tier[ways] == tier).all()  # none was a way out of a lower unit too
        us.append(float(latency[ways].min()) if own else 0.0)
    return Tree(np.stack(levels).astype(np.int64), tuple(out), tuple(us))


def _limits(gbps: NDArray[Any]) -> Floats:
    """Return bytes per second; what has no way out, as the highest switch, is not limited by it."""
    import numpy as np

    return np.where(gbps > 0, gbps, np.inf) * BYTES


def _first_nodes(cluster: Cluster) -> Ints:
    """Return the first node of each block, whose leaves and domain are those of the whole block or its own."""
    import numpy as np

    sizes = np.array([len(block.nodes) for block in cluster.blocks], dtype=np.int64)
    return np.cumsum(sizes) - sizes


def _components(leaf: NDArray[Any], above: NDArray[Any], domain: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the unit of each block, and of each switch that is its blocks' way out, -1: of none.

    Blocks are together that share a switch of the tier, or an NVLink domain; all those without a switch are one unit.
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    blocks, rails = leaf.shape
    block = np.repeat(np.arange(blocks), rails)
    flat = leaf.ravel().astype(np.int64)
    there = flat >= 0
    ends = np.where(there, above[np.maximum(flat, 0)] if len(above) else 0, len(above))  # one vertex more: no switch
    ends = np.where(there | np.repeat((leaf < 0).all(axis=1), rails), ends, -1)
    keep = ends >= 0
    _, domains = np.unique(domain, return_inverse=True)
    switches = len(above) + 1
    rows = np.concatenate([block[keep], np.arange(blocks)])
    columns = np.concatenate([blocks + ends[keep], blocks + switches + domains])
    count = blocks + switches + int(domains.max()) + 1
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    _, unit = np.unique(label[:blocks], return_inverse=True)
    of_label = np.full(int(label.max()) + 1, -1, dtype=np.int64)
    of_label[label[:blocks]] = unit
    of_switch = np.full(len(above), -1, dtype=np.int64)
    used = np.unique(ends[keep & (ends < len(above))])
    of_switch[used] = of_label[label[blocks + used]]
    return unit, of_switch


def depth_first(units: Tree, nodes: Ints) -> Ints:
    """Return nodes in the order of a walk that enters each unit once; in a unit they keep the cluster's order."""
    import numpy as np

    nodes = np.sort(nodes)
    return nodes[np.lexsort([nodes, *units.unit[:, nodes]])]
