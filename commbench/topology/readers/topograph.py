"""The model files of NVIDIA topograph: switches with those below them, and blocks of nodes on a switch.

    switches:
      core: {switches: [leaf-1, leaf-2], labels: {...}}
    blocks:
    - {switch: leaf-1, nodes: ["n[01-08]"], annotations: {accelerator.topology.test/domain: nvl-1}}

A leaf may be named by its parent or its block alone. Labels and annotations are kept as they are; of them, the
annotation of an accelerator's domain is understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.fields import Fields
from commbench.topology.reading import Reading
from commbench.topology.validate import NodesLine, SwitchLine, check_tree
from commbench.topology.yaml_tree import load

TITLE = "topograph model"

_OURS = re.compile(r"^(?:version|classes)[ \t]*:", re.MULTILINE)
_SWITCHES = re.compile(r"^[\"']?switches[\"']?[ \t]*:", re.MULTILINE)
_BLOCKS = re.compile(r"^[\"']?blocks[\"']?[ \t]*:", re.MULTILINE)


def recognise(text: str) -> float:
    """Return 0.9 for switches or blocks at the top level, little for files that have our own keys there too."""
    sure = 0.9 if _BLOCKS.search(text) else 0.8 if _SWITCHES.search(text) else 0.0
    return min(sure, 0.3) if _OURS.search(text) else sure


def read(text: str, source: str) -> Reading:
    """Return the tree."""
    it = Fields(source)
    top = it.mapping(load(text, source), "a model", ("switches", "blocks"))
    switches: list[SwitchLine] = []
    kept: dict[str, dict[str, Any]] = {}
    for name, one in it.mapping(top["switches"], "switches").items() if "switches" in top else ():
        line, what = top["switches"].keys[name], f"switch {name[:60]}"
        if one.text == "" and not one.quoted:  # a leaf that is named, and no more
            switches.append(SwitchLine(name, line))
            continue
        entries = it.mapping(one, what, ("switches", "labels", "annotations"))
        below = it.names(entries["switches"], "switches") if "switches" in entries else ()
        switches.append(SwitchLine(name, line, below))
        kept[name] = it.annotations(entries, what)
    groups: list[NodesLine] = []
    blocks: list[Block] = []
    for one in it.items(top["blocks"], "blocks") if "blocks" in top else ():
        entries = it.mapping(one, "a block", ("switch", "nodes", "labels", "annotations", "name"))
        leaf = it.names(entries["switch"], "switch") if "switch" in entries else ()
        if "nodes" not in entries:
            raise it.error(one.line, "a block has nodes, and this one has none; take it out")
        nodes = it.names(entries["nodes"], "nodes")
        annotations = it.annotations(entries, "a block")
        groups.append(NodesLine(nodes, one.line, leaf))
        name = it.word(entries.get("name"), "name")
        blocks.append(Block(nodes, leaf, domain=domain_of(annotations), name=name, annotations=annotations))
    tree = check_tree(source, switches, groups, implied=True, hollow=True)
    made = tuple(Switch(name, parent, annotations=kept.get(name, {})) for name, parent in tree.parents.items())
    return Reading((Cluster(switches=made, blocks=tuple(blocks)),), tree.findings)


def domain_of(annotations: Mapping[str, Any]) -> str:
    """Return the accelerator's domain that annotations or labels name, "" where none does."""
    for key, value in annotations.items():
        if isinstance(value, dict):
            if found := domain_of(value):
                return found
        elif key.endswith("/domain") and "accelerator" in key:
            return str(value)
    return ""
