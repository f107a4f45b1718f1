"""A cluster made larger or smaller by whole nodes, as it would be built: the same unit again, under one more switch."""

from __future__ import annotations

from dataclasses import replace

from commbench.errors import UsageError
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import DEFAULT

CORE = "core"


def grow(cluster: Cluster, nodes: int) -> Cluster:
    """Return `cluster` with at least `nodes` nodes: itself where it has them, else repeated under a core.

    Each unit's way to the core has the bandwidth of all uplinks below its root, or, where leaves are roots, of all NICs
    of its nodes: the same oversubscription again. Its latency is the largest of an uplink. The core adds up (SHARP)
    where all switches do. The figures are defaults, since nobody built this.
    """
    units = -(-nodes // max(1, cluster.nodes))
    if units <= 1:
        return cluster
    if cluster.nodes == 0:
        raise UsageError("a cluster without nodes cannot be repeated")
    roots = [one.name for one in cluster.switches if one.parent is None]
    switches: list[Switch] = []
    blocks: list[Block] = []
    for unit in range(units):
        for one in cluster.switches:
            if one.parent is None:
                gbps, us = _up(cluster, one.name)
                switches.append(
                    replace(one, name=_of(one.name, unit), parent=CORE, gbps=gbps, us=us, cables=None, source=DEFAULT)
                )
            else:
                switches.append(replace(one, name=_of(one.name, unit), parent=_of(one.parent, unit)))
        blocks += [
            replace(
                one,
                nodes=tuple(_of(node, unit) for node in one.nodes),
                leaves=tuple(_of(leaf, unit) for leaf in one.leaves),
                domain=_of(one.domain, unit) if one.domain else "",
            )
            for one in cluster.blocks
        ]
    if roots:
        switches.append(Switch(CORE, reduces=all(one.reduces for one in cluster.switches)))
    return replace(cluster, name=f"{units} x {cluster.name}", switches=tuple(switches), blocks=tuple(blocks), cables=())


def _of(name: str, unit: int) -> str:
    return f"u{unit}.{name}"


def _up(cluster: Cluster, root: str) -> tuple[float | None, float | None]:
    """Return bandwidth and latency of a unit's way from `root` to the core; None where nobody said what is below."""
    us = max((one.us for one in cluster.switches if one.us is not None), default=None)
    below = [one.gbps for one in cluster.switches if one.parent == root]
    if not below:  # a leaf
        return cluster.from_nodes(root), us
    known = [gbps for gbps in below if gbps is not None]
    return sum(known) if known and len(known) == len(below) else None, us
