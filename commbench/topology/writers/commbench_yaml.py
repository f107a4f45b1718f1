"""Our own description of a cluster, whose reader gives back the very same Cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.errors import UsageError
from commbench.topology import hosts
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import COMPUTE, DECLARED, Device, Hub, Link, Nic, NodeClass
from commbench.topology.shape import NONE, Figures, Shape, shape_of
from commbench.topology.yaml_tree import quote

TITLE = "commbench YAML"
_WIDTH = 110  # columns that a mapping on one line may take


def write(cluster: Cluster) -> str:
    """Return the text of a file; raise UsageError for a name that no list of hosts can hold."""
    return "\n".join(_Writer(cluster).lines()) + "\n"


class _Writer:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.shapes = {one.name: shape_of(one) for one in cluster.classes}
        self.origin = self.most_common_source()

    def most_common_source(self) -> str:
        """Return the source that stands once at the top, for figures that do not say theirs."""
        found = Counter(one.source for one in self.cluster.switches if one.gbps is not None or one.us is not None)
        if self.cluster.step_us is not None:
            found[self.cluster.step_source] += 1
        for name, shape in self.shapes.items():
            if shape:
                parts = (shape.fabric_link, shape.pcie or Figures(), shape.socket, shape.nic)
                found.update(one.source for one in parts if one.gbps is not None)
                found.update(one.source for one in shape.links)
            else:
                node = self.cluster.by_class[name]
                found.update([one.source for one in node.nics] + [one.source for one in node.links])
        return found.most_common(1)[0][0] if found else DECLARED

    def lines(self) -> Iterator[str]:
        it = self.cluster
        yield "version: 1"
        if it.name:
            yield f"name: {quote(it.name)}"
        if self.origin != DECLARED:
            yield f"source: {self.origin}"
        step = self.figures(Figures(us=it.step_us, source=it.step_source))
        if step is not None:
            yield f"step: {_flow(step)}"
        if it.block_sizes:
            yield f"block_sizes: {_flow(list(it.block_sizes))}"
        if it.switches:
            yield "switches:"
            yield from self.switches()
        if it.classes:
            yield "classes:"
            for one in it.classes:
                yield from self.node_class(one)
        if it.blocks:
            yield "blocks:"
            yield from map(self.block, it.blocks)
        if it.cables:
            yield "cables:"
            for cable in it.cables:
                yield f"- {_flow(_without(vars(cable), count=1))}"

    def figures(self, it: Figures) -> dict[str, Any] | None:
        """Return figures as a mapping; None where nothing has to be said."""
        if it == Figures():
            return None
        return _without(
            {"gbps": it.gbps, "us": it.us, "cables": it.cables, "source": it.source}, cables=1, source=self.origin
        )

    def switches(self) -> Iterator[str]:
        below: dict[str, list[str]] = {}
        for one in self.cluster.switches:
            if one.parent is not None:
                below.setdefault(one.parent, []).append(one.name)
        for names, one in _alike(self.cluster.switches, below):
            said: dict[str, Any] = {"switches": _names(below[one.name])} if one.name in below else {}
            plain = (one.gbps, one.us, one.cables, one.source) == (None, None, None, DECLARED)
            if not plain:
                said["uplink"] = _without(
                    {"gbps": one.gbps, "us": one.us, "cables": one.cables, "source": one.source}, source=self.origin
                )
            said |= _without({"sharp": one.reduces, "annotations": dict(one.annotations)}, sharp=False, annotations={})
            yield f"  {names}: {_flow(said)}"

    def block(self, it: Block) -> str:
        leaves: Any = _names(it.leaves)
        said = {
            "switch": leaves[0] if len(leaves) == 1 else leaves,
            "nodes": _names(it.nodes),
            "class": it.node_class,
            "domain": it.domain,
            "name": it.name,
            "annotations": dict(it.annotations),
        }
        empty = {"class": "", "domain": "", "name": "", "annotations": {}}
        return f"- {_flow(_without(said, switch=[], **empty))}"

    def node_class(self, it: NodeClass) -> Iterator[str]:
        yield f"  {quote(it.name)}:"
        shape = self.shapes[it.name]
        for key, value in (self.short(shape) if shape else self.long(it)).items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                yield f"    {key}:"
                yield from (f"    - {_flow(one)}" for one in value)
            else:
                yield f"    {key}: {_flow(value)}"

    def short(self, it: Shape) -> dict[str, Any]:
        fabric: Any = None
        if it.fabric != NONE:
            fabric = {"kind": it.fabric, **self.said(it.fabric_link)}
            fabric |= _without({"sharp": it.reduces, "sharp_us": it.reduces_us}, sharp=False, sharp_us=None)
        socket = self.figures(it.socket)
        said = {
            "devices": it.devices,
            "vendor": it.vendor,
            "arch": it.arch,
            "fabric": fabric,
            "pcie": None if it.pcie is None else self.said(it.pcie),
            "sockets": it.sockets if socket is None else {"count": it.sockets, **socket},
            "bridges": it.bridges,
            "nics": it.nics,
            "nic": self.figures(it.nic),
            "rails": it.rails,
            "pxn": it.relays,
            "links": [self.link(one) for one in it.links],
        }
        return _without(said, vendor="", arch="", sockets=1, bridges=0, nics=0, rails=1, pxn=False, links=[])

    def said(self, it: Figures) -> dict[str, Any]:
        """Return figures where their place has to be named, whatever is known."""
        found = self.figures(it)
        if found is not None:
            return found
        return {} if self.origin == DECLARED else {"source": DECLARED}

    def long(self, it: NodeClass) -> dict[str, Any]:
        said = {
            "devices": [_device(one) for one in it.devices],
            "nics": [self.nic(one) for one in it.nics],
            "hubs": [self.hub(one) for one in it.hubs],
            "links": [self.link(one) for one in it.links],
            "pxn": it.relays,
        }
        return _without(said, nics=[], hubs=[], links=[], pxn=False)

    def nic(self, it: Nic) -> dict[str, Any]:
        return _without(vars(it), rail=0, busid="", guid="", role=COMPUTE, source=self.origin)

    def hub(self, it: Hub) -> dict[str, Any]:
        said = {"id": it.id, "kind": it.kind, "numa": it.numa, "sharp": it.reduces, "us": it.us, "source": it.source}
        return _without(said, sharp=False, source=DECLARED if it.us is None else self.origin)

    def link(self, it: Link) -> dict[str, Any]:
        return _without(vars(it), count=1, source=self.origin)


def _device(it: Device) -> dict[str, Any]:
    return _without(vars(it), vendor="", arch="", busid="")


def _without(said: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Return what is said, without None and without what a reader takes where nothing is said."""
    return {
        key: value
        for key, value in said.items()
        if value is not None and not (key in defaults and type(value) is type(defaults[key]) and value == defaults[key])
    }


def _flow(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quote(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return quote(value)


def _alike(switches: Iterable[Switch], below: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Switch]]:
    """Yield switches with their name as a key; those in a row that differ in their name alone are one, a list."""
    run: list[Switch] = []

    def keys() -> Iterator[tuple[str, Switch]]:
        for name in _names([one.name for one in run]):
            yield quote(name), run[0]

    for one in switches:
        alike = run and one.name not in below and run[0].name not in below and _facts(run[0]) == _facts(one)
        if run and not alike:
            yield from keys()
            run = []
        run.append(one)
    if run:
        yield from keys()


def _facts(it: Switch) -> tuple[Any, ...]:
    return it.gbps, it.us, it.cables, it.source, it.reduces, it.annotations


def _names(names: Sequence[str]) -> list[str]:
    """Return names in their order, those that count up in a row as one range: n01, n02, n04 are n[01-02], n04."""
    found: list[str] = []
    place = 0
    while place < len(names):
        if not _plain(names[place]):
            raise UsageError(f"a name in YAML has no comma, bracket or blank, and {names[place][:60]!r} one: rename it")
        end, text = _range(names, place)
        found.append(text)
        place = end
    return found


def _plain(name: str) -> bool:
    try:
        return hosts.expand(name) == [name]
    except UsageError:
        return False


def _range(names: Sequence[str], begin: int) -> tuple[int, str]:
    """Return where the range that begins at a place ends, and the range."""
    name = names[begin]
    before = name.rstrip("0123456789")
    digits = name[len(before) :]
    if not digits or len(digits) > 9 or not digits.isascii():
        return begin + 1, name
    end, low = begin + 1, int(digits)
    while end < len(names) and names[end] == f"{before}{low + end - begin:0{len(digits)}}":
        end += 1
    high = names[end - 1][len(before) :]
    return end, name if end == begin + 1 else f"{before}[{digits}-{high}]"
