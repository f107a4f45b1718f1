"""Slurm's topology.yaml, for Slurm 25.05 and later."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.hosts import fold
from commbench.topology.readers import slurm_yaml
from commbench.topology.writers import _slurm
from commbench.topology.yaml_tree import quote

TITLE = "Slurm topology.yaml"


def write(cluster: Cluster, *others: Cluster, kind: str = "") -> str:
    """Return the text of a file with these topologies, the first as the default, which was read back.

    Raises UsageError as slurm_conf.write does, and for two topologies of one name. A cluster without nodes is flat.
    """
    clusters = (cluster, *others)
    names = [_slurm.checked(one.name or "default") for one in clusters]
    if len(set(names)) != len(names):
        raise UsageError(f"each topology has a name of its own, and these have {', '.join(names)[:200]}: rename one")
    lines = ["---"]
    for place, (name, one) in enumerate(zip(names, clusters, strict=True)):
        lines += [f"- topology: {quote(name)}", f"  cluster_default: {quote(place == 0)}", *_lines(one, kind)]
    text = "\n".join(lines) + "\n"
    for one, back in zip(clusters, slurm_yaml.read(text, "what was written").clusters, strict=True):
        if one.nodes and _slurm.kind_of(one, kind) == _slurm.TREE:
            _slurm.compare(_slurm.tree_of(one), back)
        else:
            _slurm.compare_blocks(_slurm.blocks_of(one), back)
    return text


def _lines(cluster: Cluster, kind: str) -> Iterator[str]:
    if not cluster.nodes:
        yield "  flat: true"
    elif _slurm.kind_of(cluster, kind) == _slurm.TREE:
        yield "  tree:"
        yield "    switches:"
        for row in _slurm.tree_of(cluster):
            if row.stands_for:
                yield f"      # {row.name} stands for the leaves of all rails: also {fold(row.stands_for)}"
            yield f"      - switch: {quote(row.name)}"
            if row.below:
                yield f"        children: {quote(fold(row.below))}"
            else:
                yield f"        nodes: {quote(fold(row.nodes))}"
    else:
        yield "  block:"
        if cluster.block_sizes:
            yield "    block_sizes:"
            yield from (f"      - {size}" for size in cluster.block_sizes)
        yield "    blocks:"
        for name, nodes in _slurm.blocks_of(cluster).items():
            yield f"      - block: {quote(name)}"
            yield f"        nodes: {quote(fold(nodes))}"
