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
from commbench.topology.reading import Reading, TopologyError
from commbench.topology.validate import NodesLine, SwitchLine, check_tree, hosts_at
from commbench.topology.yaml_tree import Yaml, load

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
    root = load(text, source)
    _only(root, source, "a model", ("switches", "blocks"))
    switches: list[SwitchLine] = []
    kept: dict[str, dict[str, Any]] = {}
    top = (root.entries or {}).get("switches")
    for name, one in _entries(top, source, "switches") if top else ():
        line = top.keys[name] if top else one.line
        if one.text == "":  # a leaf that is named, and no more
            switches.append(SwitchLine(name, line))
            continue
        _only(one, source, f"switch {name[:60]}", ("switches", "labels", "annotations"))
        entries = one.entries or {}
        below = _words(entries["switches"], source, "switches") if "switches" in entries else ()
        switches.append(SwitchLine(name, line, below))
        kept[name] = _kept(one, source)
    groups: list[NodesLine] = []
    blocks: list[Block] = []
    for one in _items((root.entries or {}).get("blocks"), source):
        _only(one, source, "a block", ("switch", "nodes", "labels", "annotations", "name"))
        entries = one.entries or {}
        leaf = _words(entries["switch"], source, "switch") if "switch" in entries else ()
        if "nodes" not in entries:
            raise TopologyError(source, one.line, "a block has nodes, and this one has none; take it out")
        nodes = _words(entries["nodes"], source, "nodes")
        annotations = _kept(one, source)
        name = _words(entries["name"], source, "name")[0] if "name" in entries else ""
        groups.append(NodesLine(nodes, one.line, leaf))
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


def _kept(one: Yaml, source: str) -> dict[str, Any]:
    """Return labels and annotations as one: annotations as they are, labels under that word."""
    entries = one.entries or {}
    found = dict(_entries(entries["annotations"], source, "annotations")) if "annotations" in entries else {}
    plain: dict[str, Any] = {key: value.value for key, value in found.items()}
    if "labels" in entries:
        plain["labels"] = {key: value.value for key, value in _entries(entries["labels"], source, "labels")}
    return plain


def _only(one: Yaml, source: str, what: str, known: tuple[str, ...]) -> None:
    for key, _ in _entries(one, source, what):
        if key not in known:
            text = f"{what} has no key {key[:60]!r}; known: {', '.join(known)}"
            raise TopologyError(source, one.keys[key], text)


def _entries(one: Yaml, source: str, what: str) -> list[tuple[str, Yaml]]:
    if one.entries is None:
        raise TopologyError(source, one.line, f"{what} is keys with values, not {one.shown}")
    return list(one.entries.items())


def _items(one: Yaml | None, source: str) -> list[Yaml]:
    if one is None:
        return []
    if one.items is None:
        raise TopologyError(source, one.line, f"blocks is a list, not {one.shown}")
    return one.items


def _words(one: Yaml, source: str, what: str) -> tuple[str, ...]:
    """Return the names of a word or a list of words, each a list of hosts."""
    found: list[str] = []
    for part in [one] if one.items is None else one.items:
        if not part.text:
            raise TopologyError(source, part.line, f"{what} is a name or a list of names, not {part.shown}")
        found += hosts_at(part.text, source, part.line)
    return tuple(found)
