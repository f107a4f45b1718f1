"""Slurm's topology.conf, of topology/tree or topology/block (topology.conf(5)).

    SwitchName=leaf1 Nodes=n[01-04]                  BlockName=b1 Nodes=n[01-30]
    SwitchName=spine Switches=leaf[1-2]              BlockSizes=30,120

It has no bandwidth and no latency: LinkSpeed is read by Slurm and not used.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from commbench.results.findings import DOUBT, Finding, finding
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.readers import _slurm
from commbench.topology.reading import Faults, Reading, TopologyError
from commbench.topology.validate import NodesLine, SwitchLine, check_tree, hosts_at

TITLE = "Slurm topology.conf"

LONGEST_SWITCH = 63  # characters that Slurm keeps of a switch's name

_BEGIN = re.compile(r"^[ \t]*(?:SwitchName|BlockName|BlockSizes)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_ALMOST = re.compile(r"^[ \t]*(?:Nodes|Switches|LinkSpeed|\w{0,64}Switch\w{0,64})[ \t]*=", re.IGNORECASE | re.MULTILINE)
_KEYS = ("switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes")


def recognise(text: str) -> float:
    """Return 0.9 where a line names a switch or a block; something for what Slurm would take for an empty file."""
    if _BEGIN.search(text):
        return 0.9
    if _ALMOST.search(text):
        return 0.3
    return 0.1 if all(line.lstrip().startswith("#") or not line.strip() for line in text.splitlines()) else 0.0


def read(text: str, source: str, nodes: Collection[str] | None = None) -> Reading:
    """Return the tree or the blocks; `nodes` are those that slurm.conf has, where they are known.

    Raises TopologyError with all that is wrong: of lines that cannot be read, and of the tree that the others declare.
    """
    faults = Faults(source)
    lines = list(_slurm.lines(text, source, _KEYS, faults))
    block = next((line for line in lines if line.fields.keys() & {"blockname", "blocksizes"}), None)
    tree = next((line for line in lines if line.fields.keys() & {"switchname", "switches", "linkspeed"}), None)
    if block and tree:
        later = max(block, tree, key=lambda line: line.number)
        other = min(block, tree, key=lambda line: line.number).number
        faults.add(later.number, f"a file has switches or blocks, not both (line {other} has the other)")
        faults.check()
    if block:
        faults.check()
        return _blocks(lines, source, nodes)
    return _tree(lines, faults, nodes)


def node_names(text: str, source: str) -> tuple[str, ...]:
    """Return the nodes that slurm.conf declares, which `read` can hold a topology against."""
    found: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if (declared := re.match(r"\s*NodeName\s*=\s*(\S+)", line, re.IGNORECASE)) and declared[1].upper() != "DEFAULT":
            found |= dict.fromkeys(hosts_at(declared[1], source, number))
    return tuple(found)


def _tree(lines: list[_slurm.Line], faults: Faults, nodes: Collection[str] | None) -> Reading:
    source = faults.source
    switches: list[SwitchLine] = []
    groups: list[NodesLine] = []
    speeds: dict[str, int] = {}
    for line in lines:
        with faults.gathered():
            switch, group, speed = _switch(line, source)
            switches.append(switch)
            groups += [group] if group else []
            if speed is not None:
                speeds[switch.name] = speed
    tree = check_tree(source, switches, groups, existing=nodes, faults=faults)
    made = tuple(
        Switch(name, parent, annotations={"LinkSpeed": speeds[name]} if name in speeds else {})
        for name, parent in tree.parents.items()
    )
    cluster = Cluster(switches=made, blocks=tuple(Block(group.nodes, group.on) for group in groups))
    return Reading((cluster,), (*tree.findings, *long_names(source, switches)))


def _switch(line: _slurm.Line, source: str) -> tuple[SwitchLine, NodesLine | None, int | None]:
    """Return the switch of a line, its nodes and its LinkSpeed, where it has them."""
    name = line.fields.get("switchname")
    if name is None:
        raise TopologyError(source, line.number, "a line begins with SwitchName, and this one has none")
    speed = _slurm.whole(line, "linkspeed", source)
    below, on = line.fields.get("switches"), line.fields.get("nodes")
    if below is None and on is None:
        raise TopologyError(source, line.number, f"switch {name} has neither Switches nor Nodes; take it out")
    switch = SwitchLine(name, line.number, hosts_at(below, source, line.number) if below else ())
    return switch, NodesLine(hosts_at(on, source, line.number), line.number, (name,)) if on is not None else None, speed


def long_names(source: str, switches: list[SwitchLine]) -> list[Finding]:
    """Return a finding where names are longer than Slurm takes."""
    long = [one for one in switches if len(one.name) > LONGEST_SWITCH]
    if not long:
        return []
    value = f"{len(long)} switches have names of more than {LONGEST_SWITCH} characters: {long[0].name[:60]}..."
    return [finding("long name", DOUBT, source, [one.line for one in long], value, "shorten them: Slurm refuses these")]


def _blocks(lines: list[_slurm.Line], source: str, nodes: Collection[str] | None) -> Reading:
    declared: list[_slurm.BlockLine] = []
    sizes: list[int] = []
    sizes_line = None
    for line in lines:
        name, on = line.fields.get("blockname"), line.fields.get("nodes")
        if (name is None) != (on is None):
            raise TopologyError(source, line.number, "a block has BlockName and Nodes, and this line has one of them")
        if name is not None and on is not None:
            declared.append(_slurm.BlockLine(name, on, line.number))
        if "blocksizes" in line.fields:
            if sizes_line:
                raise TopologyError(
                    source, line.number, f"BlockSizes stands already, in line {sizes_line}; say it once"
                )
            sizes_line = line.number
            parts = line.fields["blocksizes"].split(",")
            sizes = [_slurm.number(part, "a block size", source, line.number) for part in parts]
    blocks, findings = _slurm.blocks_of(source, declared, sizes, sizes_line, nodes)
    return Reading((Cluster(blocks=blocks, block_sizes=tuple(sizes)),), findings)
