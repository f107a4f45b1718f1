"""Slurm's topology.conf, of topology/tree or topology/block."""

from __future__ import annotations

from commbench.topology.cluster import Cluster
from commbench.topology.hosts import fold
from commbench.topology.readers import slurm_conf
from commbench.topology.writers import _slurm

TITLE = "Slurm topology.conf"


def write(cluster: Cluster, kind: str = "") -> str:
    """Return the text of a file, which was read back; `kind` is "tree" or "block", of itself what the cluster has.

    Raises UsageError for what Slurm cannot be told: a name that it does not take, a node on no switch.
    """
    lines = []
    if _slurm.kind_of(cluster, kind) == _slurm.TREE:
        rows = _slurm.tree_of(cluster)
        for row in rows:
            if row.stands_for:
                lines.append(f"# {row.name} stands for the leaves of all rails: also {fold(row.stands_for)}")
            inside = f"Switches={fold(row.below)}" if row.below else f"Nodes={fold(row.nodes)}"
            lines.append(f"SwitchName={row.name} {inside}")
        text = "\n".join(lines) + "\n"
        _slurm.compare(rows, slurm_conf.read(text, "what was written").cluster)
        return text
    blocks = _slurm.blocks_of(cluster)
    lines += [f"BlockName={name} Nodes={fold(nodes)}" for name, nodes in blocks.items()]
    if cluster.block_sizes:
        lines.append(f"BlockSizes={','.join(map(str, cluster.block_sizes))}")
    text = "\n".join(lines) + "\n"
    _slurm.compare_blocks(blocks, slurm_conf.read(text, "what was written").cluster)
    return text
