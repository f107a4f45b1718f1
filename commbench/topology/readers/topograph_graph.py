"""The graph that NVIDIA topograph prints: for each instance the switches above it, the closest first.

    {"instances": [{"id": "n1", "network_layers": ["leaf1", "spine1"], "labels": {...}}]}

The accelerator's domain stands in a label; releases before had it as nvlink_domain, or as nvlink in the attributes.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.readers.topograph import domain_of
from commbench.topology.reading import Reading, TopologyError
from commbench.topology.validate import NodesLine, SwitchLine, check_tree

TITLE = "topograph graph"

_BEGIN = re.compile(r'\s*\{\s*"instances"\s*:')


def recognise(text: str) -> float:
    """Return 1 for a JSON object that begins with instances."""
    return 1.0 if _BEGIN.match(text) else 0.5 if '"network_layers"' in text else 0.0


def read(text: str, source: str) -> Reading:
    """Return the tree; instances alike in switches, domain and labels are one block."""
    try:
        graph = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(source, error.lineno, f"this is no JSON: {error.msg}") from None
    except (RecursionError, ValueError):
        raise TopologyError(source, None, "this is no JSON that can be read: too deep, or a number too long") from None
    instances = graph.get("instances") if isinstance(graph, dict) else None
    if not isinstance(instances, list) or not instances:
        raise TopologyError(source, None, "a graph has instances, a list of at least one")
    places = _Places(text)
    below: dict[str, dict[str, None]] = {}
    lines: dict[str, int] = {}
    blocks: dict[str, list[str]] = {}
    about: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {}
    groups = []
    for one in instances:
        name = one.get("id") if isinstance(one, dict) else None
        if not isinstance(name, str):
            raise TopologyError(source, None, f"an instance is an object with an id, not {json.dumps(one)[:60]}")
        line = places.line_of(name)
        layers = one.get("network_layers") or []
        if not isinstance(layers, list) or not all(isinstance(layer, str) and layer for layer in layers):
            raise TopologyError(source, line, f"network_layers of {name[:60]} is a list of names, the closest first")
        for low, high in pairwise(layers):
            below.setdefault(high, {})[low] = None
            lines.setdefault(high, line)
        for layer in layers[:1]:
            below.setdefault(layer, {})
            lines.setdefault(layer, line)
        groups.append(NodesLine((name,), line, tuple(layers[:1])))
        labels = one.get("labels") if isinstance(one.get("labels"), dict) else {}
        domain = _domain(one, labels)
        alike = json.dumps([layers[:1], domain, labels], sort_keys=True)
        blocks.setdefault(alike, []).append(name)
        about[alike] = (tuple(layers[:1]), domain, labels)
    switches = [SwitchLine(name, lines[name], tuple(under)) for name, under in below.items()]
    tree = check_tree(source, switches, groups)
    cluster = Cluster(
        switches=tuple(Switch(name, parent) for name, parent in tree.parents.items()),
        blocks=tuple(
            Block(tuple(nodes), about[alike][0], domain=about[alike][1], annotations=about[alike][2])
            for alike, nodes in blocks.items()
        ),
    )
    return Reading((cluster,), tree.findings)


def _domain(one: dict[str, Any], labels: dict[str, Any]) -> str:
    attributes = one.get("attributes") if isinstance(one.get("attributes"), dict) else {}
    clique = next((value for key, value in labels.items() if key.endswith("/gpu.clique")), "")
    said = (domain_of(labels), clique, one.get("nvlink_domain"), (attributes or {}).get("nvlink"))
    return next((str(value) for value in said if value and isinstance(value, str)), "")


class _Places:
    """The lines of ids in a text that the parser has forgotten, in the order that they stand in."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1

    def line_of(self, name: str) -> int:
        found = self._text.find(json.dumps(name), self._at)
        if found < 0:  # written with other escapes: the line of the one before, and no more searching
            self._at = len(self._text)
            return self._line
        self._line += self._text.count("\n", self._at, found)
        self._at = found
        return self._line
