"""The text of `scontrol show topology`, of topology/tree or topology/block.

    SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[01-08] Switches=leaf[1-2]
    SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-04]

    BlockName=b1 BlockIndex=0 Nodes=n[01-04] BlockSize=4

The nodes of a switch above others are all that can be reached through it, and so say nothing new.
"""

from __future__ import annotations

import re

from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.readers import _slurm
from commbench.topology.reading import Faults, Reading, TopologyError
from commbench.topology.validate import NodesLine, SwitchLine, check_tree, hosts_at

TITLE = "scontrol show topology"

_BEGIN = re.compile(
    r"^[ \t]*(?:SwitchName=\S+ +Level=\d|(?:BlockName|AggregatedBlock)=\S+ +BlockIndex=\d)",
    re.IGNORECASE | re.MULTILINE,
)
_KEYS = (
    *("switchname", "level", "linkspeed", "nodes", "switches"),
    *("blockname", "aggregatedblock", "blockindex", "blocksize"),
)
_NOTHING = ("", "(null)")


def recognise(text: str) -> float:
    """Return 1 where a switch has its level, or a block its index: no file of Slurm's has those."""
    return 1.0 if _BEGIN.search(text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the tree or the blocks."""
    switches: list[SwitchLine] = []
    groups: list[NodesLine] = []
    blocks: list[_slurm.BlockLine] = []
    sizes: set[int] = set()
    faults = Faults(source)
    lines = list(_slurm.lines(text, source, _KEYS, faults))
    faults.check()
    for line in lines:
        nodes, below = (line.fields.get(key, "") for key in ("nodes", "switches"))
        nodes = "" if nodes in _NOTHING else nodes
        if name := line.fields.get("switchname"):
            below = "" if below in _NOTHING else below
            switches.append(SwitchLine(name, line.number, hosts_at(below, source, line.number) if below else ()))
            if nodes and not below:
                groups.append(NodesLine(hosts_at(nodes, source, line.number), line.number, (name,)))
        elif (name := line.fields.get("blockname")) and nodes:
            blocks.append(_slurm.BlockLine(name, nodes, line.number))
        elif "aggregatedblock" not in line.fields:
            raise TopologyError(source, line.number, "a line is about a switch, or a block with nodes; this is neither")
        if size := _slurm.whole(line, "blocksize", source):
            sizes.add(size)
    if blocks and switches:
        raise TopologyError(source, switches[0].line, "it shows switches and blocks: keep one topology of the two")
    if blocks:
        made, findings = _slurm.blocks_of(source, blocks, (), None)
        return Reading((Cluster(blocks=made, block_sizes=tuple(sorted(sizes))),), findings)
    _deny_a_part(source, switches)
    tree = check_tree(source, switches, groups, hollow=True)
    cluster = Cluster(
        switches=tuple(Switch(name, parent) for name, parent in tree.parents.items()),
        blocks=tuple(Block(group.nodes, group.on) for group in groups),
    )
    return Reading((cluster,), tree.findings)


def _deny_a_part(source: str, switches: list[SwitchLine]) -> None:
    shown = {one.name for one in switches}
    for one in switches:
        if missing := next((name for name in one.below if name not in shown), None):
            text = f"switch {missing[:60]} is not shown: this is the way to some nodes, or was cut off"
            raise TopologyError(source, one.line, f"{text}; save all of `scontrol show topology`")
