"""Our own description of a cluster: topograph's `switches:` and `blocks:`, with what links carry and what nodes are.

docs/topology.md has the keys. A switch's key, and every name, may be a list of hosts: "leaf[1-4]".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from commbench.errors import unknown_name
from commbench.results.findings import DOUBT, Finding, finding
from commbench.topology.cluster import Block, Cable, Cluster, Switch
from commbench.topology.fields import Fields
from commbench.topology.figures import LONG_US, both_ways, in_bytes
from commbench.topology.node import (
    COMPUTE,
    DECLARED,
    HUBS,
    LINKS,
    MEASURED,
    NVLINK,
    NVSWITCH,
    PCIE,
    ROLES,
    SOURCES,
    XGMI,
    Device,
    Hub,
    Link,
    Nic,
    NodeClass,
)
from commbench.topology.reading import Reading
from commbench.topology.shape import FABRICS, MESH, MOST, NONE, Figures, Shape
from commbench.topology.validate import NodesLine, SwitchLine, check_tree
from commbench.topology.yaml_tree import Yaml, load

TITLE = "commbench YAML"
VERSION = "1"

KEYS = ("version", "name", "source", "step", "switches", "classes", "blocks", "block_sizes", "cables")
FIGURES = ("gbps", "us", "cables", "source")
SWITCH = ("switches", "uplink", "sharp", "labels", "annotations")
BLOCK = ("switch", "nodes", "class", "domain", "name", "labels", "annotations")
SHORT = ("devices", "vendor", "arch", "fabric", "pcie", "sockets", "bridges", "nics", "nic", "rails", "pxn", "links")
LONG = ("devices", "nics", "hubs", "links", "pxn")
DEVICE = ("id", "vendor", "arch", "busid", "numa")
VENDORS = ("nvidia", "amd", "cpu")  # that choose a library, or a kind of link
NIC = ("id", "gbps", "us", "rail", "busid", "numa", "guid", "role", "source")
HUB = ("id", "kind", "numa", "sharp", "us", "source")
LINK = ("a", "b", "kind", "gbps", "us", "count", "source")
MOST_EDGES = 1_000_000  # links of all classes together
_MOST = 1 << 31

_VERSION = re.compile(r"^version[ \t]*:", re.MULTILINE)
_CLASSES = re.compile(r"^classes[ \t]*:", re.MULTILINE)
_OTHERS = re.compile(r"^(?:switches|blocks)[ \t]*:", re.MULTILINE)


def recognise(text: str) -> float:
    """Return 0.95 for a version or classes beside switches or blocks, little for classes alone."""
    classes = _CLASSES.search(text)
    if _OTHERS.search(text) and (classes or _VERSION.search(text)):
        return 0.95
    return (0.95 if _VERSION.search(text) else 0.5) if classes else 0.0


def read(text: str, source: str) -> Reading:
    """Return what the file says."""
    return _Reader(source).read(load(text, source))


class _Reader(Fields):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.origin = DECLARED  # of figures that do not say theirs
        self.edges = 0
        self.doubts: list[Finding] = []

    def read(self, root: Yaml) -> Reading:
        top = self.mapping(root, "a description", KEYS)
        version = top.get("version")
        if version is None or version.text != VERSION:
            seen = "none" if version is None else version.shown
            line = version.line if version else root.line
            raise self.error(line, f"a description begins with version: {VERSION}, and this one has {seen}")
        self.origin = self.choice(top.get("source"), "source", SOURCES, DECLARED)
        classes = (
            {}
            if "classes" not in top
            else {name: self.node_class(name, one) for name, one in self.mapping(top["classes"], "classes").items()}
        )
        switches, blocks = self.fabric(top, classes)
        step = self.figures(top.get("step"), "step", ("us", "source"))
        sizes = self.items(top["block_sizes"], "block_sizes") if "block_sizes" in top else ()
        cluster = Cluster(
            self.word(top.get("name"), "name"),
            tuple(classes.values()),
            switches,
            blocks,
            step.us,
            step.source,
            tuple(self.whole(one, "a block size", 1, _MOST, 0) for one in sizes),
            self.cables(top.get("cables"), {one.name for one in switches}),
        )
        return Reading((cluster,), tuple(self.doubts))

    def doubt(self, rule: str, line: int, value: str, remedy: str) -> None:
        self.doubts.append(finding(rule, DOUBT, self.source, [line], value, remedy))

    # ---- figures

    def figures(
        self, it: Yaml | None, what: str, known: tuple[str, ...] = FIGURES, more: tuple[str, ...] = ()
    ) -> Figures:
        if it is None:
            return Figures()
        entries = self.mapping(it, what, (*more, *known))
        cables = self.whole(entries.get("cables"), f"{what}: cables", 1, _MOST, 1)
        gbps = self.gbps(entries.get("gbps"), f"{what}: gbps", cables)
        us = self.us(entries.get("us"), f"{what}: us")
        source = self.choice(entries.get("source"), "source", SOURCES, self.origin)
        self.check_latency(entries.get("us"), what, us, source)
        return Figures(gbps, us, cables, source)

    def check_latency(self, it: Yaml | None, what: str, us: float | None, source: str) -> None:
        if it is not None and us is not None and us >= LONG_US and source != MEASURED:
            self.doubt("long latency", it.line, f"{what} takes {us:g} us", f"if ns are meant it is {us / 1000:g}")

    def check_figure(self, it: Yaml | None, kind: str, arch: str, found: Figures) -> None:
        if it is None or not found.gbps:
            return
        entries = it.entries or {}
        line = entries["gbps"].line if "gbps" in entries else it.line
        if known := both_ways(kind, arch, found.gbps, found.cables):
            self.doubt("both directions", line, known, "a link has what it carries in one direction")
        elif found.source != MEASURED and (odd := in_bytes(kind, found.gbps, found.cables)):
            self.doubt("low rate", line, odd, "a link is stated in Gb/s, in one direction")

    # ---- the fabric

    def fabric(
        self, top: Mapping[str, Yaml], classes: Mapping[str, NodeClass]
    ) -> tuple[tuple[Switch, ...], tuple[Block, ...]]:
        lines: list[SwitchLine] = []
        said: dict[str, Switch] = {}
        for key, one in self.mapping(top["switches"], "switches").items() if "switches" in top else ():
            names = self.names(Yaml(top["switches"].keys[key], key), "a switch")
            below, like = self.switch(one, names[0])
            lines += [SwitchLine(name, top["switches"].keys[key], below) for name in names]
            said |= dict.fromkeys(names, like)
        blocks, groups = [], []
        for one in self.items(top["blocks"], "blocks") if "blocks" in top else ():
            block = self.block(one, classes)
            blocks.append(block)
            groups.append(NodesLine(block.nodes, one.line, block.leaves))
        if not lines and not groups and classes:
            return (), ()
        tree = check_tree(self.source, lines, groups, implied=True, hollow=True)
        self.doubts += tree.findings
        made = [replace(said.get(name, Switch("")), name=name, parent=above) for name, above in tree.parents.items()]
        self.check_uplinks(made, lines, groups)
        for switch in made:
            if switch.parent is None and switch.gbps is not None:
                line = next((one.line for one in lines if one.name == switch.name), 1)
                self.doubt("no parent", line, f"{switch.name} has an uplink and no parent", "name the switch above it")
        return tuple(made), tuple(blocks)

    def check_uplinks(self, made: list[Switch], lines: list[SwitchLine], groups: list[NodesLine]) -> None:
        """Doubt uplinks of which nobody said what they carry, where others say so, or their latency is said."""
        bare = [one.name for one in made if one.parent is not None and one.gbps is None]
        said = any(one.gbps is not None for one in made) or any(one.us is not None for one in made)
        if not bare or not said:
            return
        where = {name: group.line for group in groups for name in group.on} | {one.name: one.line for one in lines}
        shown = ", ".join(bare[:4]) + (f" and {len(bare) - 4} more" if len(bare) > 4 else "")
        at = [where[name] for name in bare if name in where]
        value = f"nobody said how fast the uplinks of {len(bare)} switches are: {shown}"
        self.doubts.append(
            finding("uplink without bandwidth", DOUBT, self.source, at, value, "say uplink: {gbps: ...}")
        )

    def switch(self, it: Yaml, name: str) -> tuple[tuple[str, ...], Switch]:
        if it.text == "" and not it.quoted:  # named, and no more
            return (), Switch(name)
        what = f"switch {name}"
        entries = self.mapping(it, what, SWITCH)
        below = self.names(entries["switches"], f"{what}: switches") if "switches" in entries else ()
        uplink = self.figures(entries.get("uplink"), f"{what}: uplink")
        stated = "uplink" in entries and "cables" in (entries["uplink"].entries or {})
        return below, Switch(
            name,
            None,
            uplink.gbps,
            uplink.us,
            uplink.cables if stated else None,
            uplink.source,
            self.truth(entries.get("sharp"), f"{what}: sharp"),
            self.annotations(entries, what),
        )

    def block(self, it: Yaml, classes: Mapping[str, NodeClass]) -> Block:
        entries = self.mapping(it, "a block", BLOCK)
        nodes = self.names(entries["nodes"], "nodes") if "nodes" in entries else ()
        if not nodes:
            raise self.error(it.line, 'a block has nodes: ["n[01-04]"], and this one none; take it out')
        leaves = self.names(entries["switch"], "switch") if "switch" in entries else ()
        node_class = self.word(entries.get("class"), "class")
        if node_class and node_class not in classes:
            raise self.error(entries["class"].line, f"{unknown_name('class', node_class[:60], classes)}")
        rails = classes[node_class].rails if node_class else 0
        if len(leaves) > 1 and node_class and len(leaves) != rails:
            seen = f"{len(leaves)} leaves for nodes of {rails} rails (class {node_class})"
            self.doubt("rails", it.line, seen, "name one leaf for all, or one a rail")
        return Block(
            nodes,
            leaves,
            node_class,
            self.word(entries.get("domain"), "domain"),
            self.word(entries.get("name"), "name"),
            self.annotations(entries, "a block"),
        )

    def cables(self, it: Yaml | None, switches: set[str]) -> tuple[Cable, ...]:
        found = []
        for one in self.items(it, "cables") if it else ():
            entries = self.mapping(one, "a cable", ("a", "b", "gbps", "count"))
            a, b = (self.needed(entries, key, one, "a cable") for key in "ab")
            for end in (a, b):
                if end not in switches:
                    raise self.error(one.line, f"a cable joins two switches, and {end[:60]!r} is none that is named")
            count = self.whole(entries.get("count"), "a cable: count", 1, _MOST, 1)
            found.append(Cable(a, b, self.gbps(entries.get("gbps"), "a cable: gbps", count), count))
        return tuple(found)

    def needed(self, entries: Mapping[str, Yaml], key: str, it: Yaml, what: str) -> str:
        if not self.word(entries.get(key), f"{what}: {key}"):
            raise self.error(it.line, f"{what} says its {key}")
        return self.word(entries[key], key)

    # ---- nodes

    def node_class(self, name: str, it: Yaml) -> NodeClass:
        devices = (it.entries or {}).get("devices")
        what = f"class {name[:60]}"
        if devices is None:
            self.mapping(it, what, SHORT if "nic" in (it.entries or {}) else (*SHORT, "hubs"))
            raise self.error(it.line, f"{what} says its devices: how many (devices: 8), or a list of them")
        made = self.short(it, what).node_class(name) if devices.items is None else self.long(name, it, what)
        self.edges += len(made.links)
        self.budget(it)
        return made

    def budget(self, it: Yaml) -> None:
        if self.edges > MOST_EDGES:
            raise self.error(it.line, f"classes have at most {MOST_EDGES:,} links together; share classes among blocks")

    def short(self, it: Yaml, what: str) -> Shape:
        entries = self.mapping(it, what, SHORT)

        def count(key: str, least: int, default: int) -> int:
            return self.whole(entries.get(key), f"{what}: {key}", least, MOST, default)

        devices, nics, bridges = count("devices", 0, 0), count("nics", 0, 0), count("bridges", 0, 0)
        rails = count("rails", 1, 1)
        if rails > max(1, nics):
            raise self.error(entries["rails"].line, f"{what}: a rail has a NIC of each node, and {nics} are no {rails}")
        fabric = entries.get("fabric")
        kind, fabric_link, sharp, sharp_us = NONE, Figures(), False, None
        if fabric is not None and fabric.text is not None:
            kind = self.choice(fabric, "fabric", FABRICS, NONE)
        elif fabric is not None:
            fabric_link = self.figures(fabric, f"{what}: fabric", more=("kind", "sharp", "sharp_us"))
            inside = fabric.entries or {}
            kind = self.choice(inside.get("kind"), "kind of fabric", FABRICS, NONE)
            sharp = self.truth(inside.get("sharp"), f"{what}: fabric: sharp")
            sharp_us = self.us(inside.get("sharp_us"), f"{what}: fabric: sharp_us")
            if "kind" not in inside:
                raise self.error(fabric.line, f"{what}: a fabric says its kind: {', '.join(FABRICS)}")
            if sharp and kind != NVSWITCH:
                raise self.error(fabric.line, f"{what}: only an nvswitch adds up (sharp), no {kind}")
            if sharp_us is not None and not sharp:
                raise self.error(fabric.line, f"{what}: sharp_us is of a fabric that adds up: say sharp: true too")
        vendor, arch = self.vendor(entries.get("vendor")), self.word(entries.get("arch"), "arch")
        pcie = self.figures(entries["pcie"], f"{what}: pcie") if "pcie" in entries else None
        sockets, socket = self.sockets(entries.get("sockets"), what)
        for key in ("sockets", "bridges", "nics"):
            if pcie is None and key in entries:
                raise self.error(entries[key].line, f"{what}: {key} are joined by PCIe: say pcie: {{gbps: ...}} too")
        shape = Shape(
            devices, vendor, arch, kind, fabric_link, sharp, sharp_us, pcie, sockets, socket, bridges, nics,
            self.figures(entries.get("nic"), f"{what}: nic", ("gbps", "us", "source")), rails,
            self.truth(entries.get("pxn"), f"{what}: pxn"),
        )  # fmt: skip
        self.edges += devices**2 if kind == MESH else 0
        self.budget(it)
        joins = XGMI if vendor == "amd" else NVLINK
        self.check_figure(fabric, joins if kind in (NVSWITCH, MESH) else "", arch, fabric_link)
        self.check_figure(entries.get("pcie"), PCIE, arch, pcie or Figures())
        if "links" not in entries:
            return shape
        vertices = set(shape.node_class("").vertices)
        links = tuple(self.link(one, vertices, arch) for one in self.items(entries["links"], f"{what}: links"))
        return replace(shape, links=links)

    def sockets(self, it: Yaml | None, what: str) -> tuple[int, Figures]:
        if it is None or it.entries is None:
            return self.whole(it, f"{what}: sockets", 1, MOST, 1), Figures()
        joined = self.figures(it, f"{what}: sockets", more=("count",))
        return self.whole(it.entries.get("count"), f"{what}: sockets: count", 1, MOST, 1), joined

    def long(self, name: str, it: Yaml, what: str) -> NodeClass:
        entries = self.mapping(it, what, LONG)
        parts = {
            key: self.items(entries[key], f"{what}: {key}") if key in entries else ()
            for key in ("devices", "nics", "hubs", "links")
        }
        devices = tuple(self.device(one) for one in parts["devices"])
        nics = tuple(self.nic(one) for one in parts["nics"])
        hubs = tuple(self.hub(one) for one in parts["hubs"])
        vertices: set[str] = set()
        every = (*parts["devices"], *parts["nics"], *parts["hubs"])
        for name_of, where in zip(NodeClass("", devices, nics, hubs).vertices, every, strict=True):
            if name_of in vertices:
                raise self.error(where.line, f"{what} has {name_of[:60]!r} already; ids are unique in a class")
            vertices.add(name_of)
        arch = devices[0].arch if devices else ""
        links = tuple(self.link(one, vertices, arch) for one in parts["links"])
        return NodeClass(name, devices, nics, hubs, links, self.truth(entries.get("pxn"), f"{what}: pxn"))

    def device(self, it: Yaml) -> Device:
        entries = self.mapping(it, "a device", DEVICE)
        arch, busid = (self.word(entries.get(key), key) for key in ("arch", "busid"))
        vendor = self.vendor(entries.get("vendor"))
        return Device(self.needed(entries, "id", it, "a device"), vendor, arch, busid, self.numa(entries))

    def vendor(self, it: Yaml | None) -> str:
        """Return any vendor; those that choose a library or a kind of link have one spelling."""
        word = self.word(it, "vendor")
        if it is not None and word.lower() in VENDORS and word not in VENDORS:
            raise self.error(it.line, f"vendor is written {word.lower()}, not {it.shown}")
        return word

    def numa(self, entries: Mapping[str, Yaml]) -> int | None:
        return self.whole(entries["numa"], "numa", 0, _MOST, 0) if "numa" in entries else None

    def nic(self, it: Yaml) -> Nic:
        entries = self.mapping(it, "a NIC", NIC)
        us = self.us(entries.get("us"), "a NIC: us")
        source = self.choice(entries.get("source"), "source", SOURCES, self.origin)
        self.check_latency(entries.get("us"), "a NIC", us, source)
        return Nic(
            self.needed(entries, "id", it, "a NIC"),
            self.gbps(entries.get("gbps"), "a NIC: gbps"),
            us,
            self.whole(entries.get("rail"), "a NIC: rail", 0, MOST - 1, 0),
            self.word(entries.get("busid"), "busid"),
            self.numa(entries),
            self.word(entries.get("guid"), "guid"),
            self.choice(entries.get("role"), "role", ROLES, COMPUTE),
            source,
        )

    def hub(self, it: Yaml) -> Hub:
        entries = self.mapping(it, "a hub", HUB)
        if "kind" not in entries:
            raise self.error(it.line, f"a hub says its kind: {', '.join(HUBS)}")
        kind = self.choice(entries["kind"], "kind of hub", HUBS, "")
        sharp = self.truth(entries.get("sharp"), "a hub: sharp")
        us = self.us(entries.get("us"), "a hub: us")
        source = self.choice(entries.get("source"), "source", SOURCES, self.origin if us is not None else DECLARED)
        return Hub(self.needed(entries, "id", it, "a hub"), kind, self.numa(entries), sharp, us, source)

    def link(self, it: Yaml, vertices: set[str], arch: str) -> Link:
        entries = self.mapping(it, "a link", LINK)
        a, b = (self.needed(entries, key, it, "a link") for key in "ab")
        for end in (a, b):
            if end not in vertices:
                raise self.error(it.line, f"a link joins two of its class: {unknown_name('id', end[:60], vertices)}")
        if a == b:
            raise self.error(it.line, f"a link joins two, not {a[:60]} with itself")
        if "kind" not in entries:
            raise self.error(it.line, f"a link says its kind: {', '.join(LINKS)}")
        kind = self.choice(entries["kind"], "kind of link", LINKS, "")
        count = self.whole(entries.get("count"), "a link: count", 1, _MOST, 1)
        gbps = self.gbps(entries.get("gbps"), "a link: gbps", count)
        us = self.us(entries.get("us"), "a link: us")
        source = self.choice(entries.get("source"), "source", SOURCES, self.origin)
        self.check_latency(entries.get("us"), "a link", us, source)
        self.check_figure(it, kind, arch, Figures(gbps, us, count, source))
        return Link(a, b, kind, gbps, us, count, source)
