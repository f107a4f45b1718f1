"""What a description leaves open, taken from another cluster, and said: schedulers know switches, and no bandwidths."""

from __future__ import annotations

from dataclasses import replace

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.node import DEFAULT, NodeClass


def complete(
    cluster: Cluster, like: Cluster, oversubscription: float = 2.0, gpus: int | None = None
) -> tuple[Cluster, list[str]]:
    """Return a cluster of which every figure is known that the model needs, and what was assumed.

    Nodes without a class are like the first class of `like`, with `gpus` devices where that is said. An uplink of which
    nobody said how fast it is carries what the NICs below it can send, divided by `oversubscription`.
    """
    notes = []
    classes, blocks = cluster.classes, cluster.blocks
    if any(not one.node_class for one in blocks):
        node = like.classes[0]
        if gpus is not None and gpus > len(node.devices):
            raise UsageError(
                f"{gpus} devices a node (--gpus-per-node, or SLURM_GPUS_ON_NODE of this job), and the assumed nodes "
                f"(--like{like.name and f' {like.name}'}) have {len(node.devices)}: name other nodes with --like"
            )
        if gpus is not None:
            node = _fewer(node, gpus)
        taken = {one.name for one in classes}
        node = replace(node, name=node.name if node.name not in taken else f"assumed {node.name}")
        classes = (*classes, node)
        blocks = tuple(one if one.node_class else replace(one, node_class=node.name) for one in blocks)
        notes.append(f"nobody said what is in the nodes: assumed {len(node.devices)} devices as {node.name}'s (--like)")
    known = {one.name: one for one in classes}
    below: dict[str, float] = {}
    parents = {one.name: one.parent for one in cluster.switches}
    for block in blocks:
        sent = sum(nic.gbps or 0.0 for nic in known[block.node_class].nics) * len(block.nodes)
        for leaf in block.leaves:
            here: str | None = leaf
            while here is not None:
                below[here] = below.get(here, 0.0) + sent / len(block.leaves)
                here = parents[here]
    us = max((one.us for one in like.switches if one.us is not None), default=0.5)
    switches = []
    assumed = 0
    for one in cluster.switches:
        if one.parent is not None and one.gbps is None:
            assumed += 1
            one = replace(one, gbps=max(below.get(one.name, 0.0), 1.0) / oversubscription, source=DEFAULT)
        if one.parent is not None and one.us is None:
            one = replace(one, us=us, source=DEFAULT)
        switches.append(one)
    if assumed:
        notes.append(
            f"nobody said how fast {assumed} of {len(switches)} uplinks are: assumed what the NICs below can send, "
            f"divided by {oversubscription:g} (--oversubscription)"
        )
    return replace(cluster, classes=classes, blocks=blocks, switches=tuple(switches)), notes


def _fewer(node: NodeClass, gpus: int) -> NodeClass:
    """Return the class with its first devices alone, and the NICs that these use."""
    used = {place for place in node.nearest_nics[:gpus] if place is not None}
    gone = {device.id for device in node.devices[gpus:]}
    gone |= {nic.id for place, nic in enumerate(node.nics) if place not in used}
    return replace(
        node,
        devices=node.devices[:gpus],
        nics=tuple(nic for nic in node.nics if nic.id not in gone),
        links=tuple(link for link in node.links if link.a not in gone and link.b not in gone),
    )
