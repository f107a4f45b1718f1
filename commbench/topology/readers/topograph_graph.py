"""The graph that NVIDIA topograph prints: for each instance the switches above it, the closest first.

    {"instances": [{"id": "n1", "network_layers": ["leaf1", "spine1"], "labels": {...}}]}

The accelerator's domain stands in a label; releases before had it as nvlink_domain, or as nvlink in the attributes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from commbench.topology.readers._paths import Path, cluster_of
from commbench.topology.readers.topograph import domain_of
from commbench.topology.reading import Reading, TopologyError

TITLE = "topograph graph"

_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*")')
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
    cluster, findings = cluster_of(source, [_path(one, places, source) for one in instances])
    return Reading((cluster,), findings)


def _path(one: Any, places: _Places, source: str) -> Path:
    name = one.get("id") if isinstance(one, dict) else None
    if not isinstance(name, str):
        raise TopologyError(source, places.line, f"an instance is an object with an id, not {json.dumps(one)[:60]}")
    line = places.line_of(name)
    layers = one.get("network_layers") or []
    if not isinstance(layers, list) or not all(isinstance(layer, str) and layer for layer in layers):
        raise TopologyError(source, line, f"network_layers of {name[:60]} is a list of names, the closest first")
    labels = one["labels"] if isinstance(one.get("labels"), dict) else {}
    return Path(name, line, tuple(layers), _domain(one, labels), annotations=labels)


def _domain(one: dict[str, Any], labels: dict[str, Any]) -> str:
    attributes = one["attributes"] if isinstance(one.get("attributes"), dict) else {}
    clique = next((value for key, value in labels.items() if key.endswith("/gpu.clique")), "")
    said = (domain_of(labels), clique, one.get("nvlink_domain"), attributes.get("nvlink"))
    return next((value for value in said if value and isinstance(value, str)), "")


class _Places:
    """The lines of ids in a text that the parser has forgotten, in the order that they stand in."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self.line = text, 0, 1
        self._ids = _ID.finditer(text)

    def line_of(self, name: str) -> int:
        """Return the line of this id, which stands after those asked for before."""
        wanted = json.dumps(name)
        for found in self._ids:
            if found[1] == wanted:
                self.line += self._text.count("\n", self._at, found.start())
                self._at = found.start()
                break
        return self.line  # of the one before, where this one is written with other escapes
