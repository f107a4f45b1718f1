"""Slurm's topology.yaml (topology.yaml(5), Slurm 25.05 and later): several topologies of one cluster, by name.

    - topology: fabric
      cluster_default: true
      tree: {switches: [{switch: top, children: "leaf[1-2]"}, {switch: leaf1, nodes: "n[01-04]"}, ...]}
    - topology: racks
      block: {block_sizes: [4, 16], blocks: [{block: b1, nodes: "n[01-04]"}]}

The topology that Slurm takes for partitions which name none comes first. A ring, a torus and a flat network have no
switches: they become nodes alone, and a finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.readers import _slurm
from commbench.topology.readers.slurm_conf import long_names
from commbench.topology.reading import Reading, TopologyError
from commbench.topology.validate import NodesLine, SwitchLine, check_tree, hosts_at
from commbench.topology.yaml_tree import Yaml, load

TITLE = "Slurm topology.yaml"

_BEGIN = re.compile(r"^[ \t]*(?:-[ \t]+)?[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*-", re.MULTILINE)


def recognise(text: str) -> float:
    """Return 0.95 for a list whose entries are topologies by name."""
    return 0.95 if _BEGIN.search(text) and _LIST.search(text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return every topology as a cluster of that name, the default first."""
    root = load(text, source)
    if not root.items:
        raise TopologyError(source, root.line, f"topology.yaml is a list of topologies, not {root.shown}")
    clusters: list[Cluster] = []
    findings: list[Finding] = []
    defaults: list[int] = []
    first: dict[str, int] = {}
    for place, one in enumerate(root.items):
        name = _word(one, "topology", source)
        if name in first:
            raise TopologyError(source, one.line, f"topology {name} is declared already, in line {first[name]}")
        first[name] = one.line
        if (default := _entries(one, source).get("cluster_default")) and _truth(default, source):
            defaults.append(place)
        cluster, found = _topology(one, name, source)
        clusters.append(cluster)
        findings += found
    if len(defaults) != 1 and len(clusters) > 1:
        chosen = clusters[defaults[0] if defaults else 0].name
        value = f"{len(defaults)} topologies are the default; {chosen} is taken"
        lines = [root.items[place].line for place in defaults]
        findings.append(finding("not one default", DOUBT, source, lines, value, "mark one with cluster_default: true"))
    if defaults:
        clusters.insert(0, clusters.pop(defaults[0]))
    return Reading(tuple(clusters), tuple(findings))


def _topology(one: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    kinds = {key: value for key, value in _entries(one, source).items() if key not in ("topology", "cluster_default")}
    if len(kinds) != 1 or not kinds.keys() <= _KINDS.keys():
        given = ", ".join(kinds)[:60] or "none"
        raise TopologyError(source, one.line, f"topology {name} has one kind of {', '.join(_KINDS)}, not {given}")
    kind, inside = next(iter(kinds.items()))
    return _KINDS[kind](inside, name, source)


def _tree(inside: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    switches: list[SwitchLine] = []
    groups: list[NodesLine] = []
    for one in _list(inside, "switches", source):
        switch = _word(one, "switch", source, allowed=("switch", "children", "nodes"))
        switches.append(SwitchLine(switch, one.line, _hosts(one, "children", source)))
        if nodes := _hosts(one, "nodes", source):
            groups.append(NodesLine(nodes, one.line, (switch,)))
    tree = check_tree(source, switches, groups, hollow=True)
    made = tuple(Switch(switch, parent) for switch, parent in tree.parents.items())
    blocks = tuple(Block(group.nodes, group.on) for group in groups)
    return Cluster(name, switches=made, blocks=blocks), (*tree.findings, *long_names(source, switches))


def _block(inside: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    declared = []
    for one in _list(inside, "blocks", source):
        block = _word(one, "block", source, allowed=("block", "nodes"))
        declared.append(_slurm.BlockLine(block, _word(one, "nodes", source), one.line))
    given = _entries(inside, source).get("block_sizes")
    sizes = _list(inside, "block_sizes", source) if given is not None else []
    numbers = tuple(_slurm.number(size.text or "", "a block size", source, size.line) for size in sizes)
    blocks, findings = _slurm.blocks_of(source, declared, numbers, given.line if given else None)
    return Cluster(name, blocks=blocks, block_sizes=numbers), findings


def _flat(inside: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    value = f"topology {name} is flat: it names neither switches nor nodes"
    return Cluster(name), (finding("flat topology", NOTE, source, [inside.line], value, "nothing is to be done"),)


def _ring(inside: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    return _unlike("ring", "ring", _list(inside, "rings", source), name, source)


def _torus(inside: Yaml, name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    toruses = _list(inside, "toruses", source)
    cluster, findings = _unlike("torus3d", "name", toruses, name, source)
    for one, block in zip(toruses, cluster.blocks, strict=True):
        dims = _entries(one, source).get("dims")
        if dims is None:
            raise TopologyError(source, one.line, f"torus {block.name} has no dims; give x, y and z")
        sides = [_slurm.number(_word(dims, axis, source), axis, source, dims.line) for axis in ("x", "y", "z")]
        if prod(sides) != len(block.nodes):
            shape = "x".join(map(str, sides))
            text = f"torus {block.name} is {shape} = {prod(sides)} nodes, and has {len(block.nodes)}"
            raise TopologyError(source, one.line, f"{text}; correct its dims or its nodes")
    return cluster, findings


def _unlike(kind: str, key: str, parts: list[Yaml], name: str, source: str) -> tuple[Cluster, tuple[Finding, ...]]:
    """Return the nodes of what has no switches: each ring or torus is a block of its name."""
    groups = [NodesLine(_hosts(one, "nodes", source), one.line) for one in parts]
    names = [_word(one, key, source) for one in parts]
    tree = check_tree(source, [], groups)
    blocks = tuple(
        Block(group.nodes, name=part, annotations={"topology": kind, **_rest(one, ("nodes", key))})
        for one, part, group in zip(parts, names, groups, strict=True)
    )
    value = f"topology {name} is a {kind}, which has no switches: its nodes are taken, and their distances are not"
    remedy = "describe the fabric as a tree to have costs told by distance"
    said = finding("topology without switches", DOUBT, source, [one.line for one in parts], value, remedy)
    return Cluster(name, blocks=blocks), (*tree.findings, said)


_KINDS: dict[str, Callable[[Yaml, str, str], tuple[Cluster, tuple[Finding, ...]]]] = {
    "tree": _tree,
    "block": _block,
    "flat": _flat,
    "ring": _ring,
    "torus3d": _torus,
}


def _entries(one: Yaml, source: str) -> dict[str, Yaml]:
    if one.entries is None:
        raise TopologyError(source, one.line, f"keys with values stand here, not {one.shown}")
    return one.entries


def _word(one: Yaml, key: str, source: str, allowed: tuple[str, ...] = ()) -> str:
    """Return the word of a key that must be there; `allowed`: no other keys may be."""
    entries = _entries(one, source)
    for other in entries if allowed else ():
        if other not in allowed:
            text = f"unknown key {other[:60]!r}; known here: {', '.join(allowed)}"
            raise TopologyError(source, one.keys[other], text)
    value = entries.get(key)
    if value is None or not value.text:
        raise TopologyError(source, value.line if value else one.line, f"{key} is missing here, or is no word")
    return value.text


def _list(one: Yaml, key: str, source: str) -> list[Yaml]:
    value = _entries(one, source).get(key)
    if value is None or not value.items:
        raise TopologyError(source, value.line if value else one.line, f"{key} is a list, and is missing or empty here")
    return value.items


def _hosts(one: Yaml, key: str, source: str) -> tuple[str, ...]:
    return hosts_at(_word(one, key, source), source, one.line) if key in _entries(one, source) else ()


def _rest(one: Yaml, taken: tuple[str, ...]) -> dict[str, Any]:
    return {key: value.value for key, value in (one.entries or {}).items() if key not in taken}


def _truth(value: Yaml, source: str) -> bool:
    if value.text not in ("true", "false", "True", "False"):
        raise TopologyError(source, value.line, f"cluster_default is true or false, not {value.shown}")
    return value.text.lower() == "true"
