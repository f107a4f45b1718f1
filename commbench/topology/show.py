"""A cluster in text: its tree of switches with hosts as lists, its tiers, and each class of nodes with its links."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from textwrap import fill

from commbench.topology import hosts, inside
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import BRIDGE, COMPUTE, CPU, NodeClass

MOST_LINES = 12  # of those below one switch, and of blocks on none
MOST_DEVICES = 16  # that a matrix has
MOST_SIGNS = 60  # of a list of hosts
_FOLDS = re.compile(r"[\w.-]+")  # other signs mean something to ClusterShell
LEGEND = {
    "NV": "NVLinks, by their number",
    "XGMI": "xGMI",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one CPU, or memory",
    "NODE": "several CPUs of one socket",
    "SYS": "several sockets",
}


def text(cluster: Cluster) -> str:
    """Return all that is to be seen of a cluster."""
    parts = [_head(cluster)]
    if cluster.blocks or cluster.switches:
        parts.append("\n".join(("fabric", *_fabric(cluster))))
    if cluster.switches:
        parts.append("\n".join(("tiers", *_tiers(cluster))))
    parts += ["\n".join(_node_class(one)) for one in cluster.classes]
    return "\n\n".join(parts)


def counted(number: int, what: str) -> str:
    """Return "1 node", "2 nodes", "3 switches", "0 classes"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith(('ch', 'ss')) else 's'}"


def fold(names: Iterable[str]) -> str:
    """Return a list of hosts, shortened in its middle where it is long."""
    every = list(names)
    whole = hosts.fold(every) if all(map(_FOLDS.fullmatch, every)) else ",".join(every)
    return whole if len(whole) <= MOST_SIGNS else f"{whole[: MOST_SIGNS - 13]}...{whole[-10:]}"


def figures(gbps: float | None, us: float | None, count: int | None, source: str) -> str:
    """Return what is known of a link in words."""
    cables = f" ({counted(count, 'cable')})" if count and count > 1 else ""
    rate = "? Gb/s" if gbps is None else f"{gbps:g} Gb/s"
    return ", ".join([f"{rate}{cables}", *([] if us is None else [f"{us:g} us"]), source])


def ratio(below: float | None, above: float | None) -> str:
    """Return how far more comes from below than can go up, "" where that is not known."""
    return f"{below / above:.3g}:1" if below and above else ""


def _head(cluster: Cluster) -> str:
    facts = [counted(cluster.nodes, "node")]
    if cluster.classes and cluster.devices:
        facts.append(counted(cluster.devices, "device"))
    if cluster.switches:
        facts.append(counted(len(cluster.switches), "switch"))
    if cluster.step_us is not None:
        facts.append(f"{cluster.step_us:g} us a step in software ({cluster.step_source})")
    return f"{cluster.name or 'cluster'}: {', '.join(facts)}"


class _Fabric:
    """The tree, by who is below whom."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.below: dict[str | None, list[Switch]] = defaultdict(list)
        for switch in cluster.switches:
            self.below[switch.parent].append(switch)
        self.on: dict[str, list[int]] = defaultdict(list)
        for place, block in enumerate(cluster.blocks):
            for leaf in dict.fromkeys(block.leaves):
                self.on[leaf].append(place)

    def lines(self, parent: str | None, indent: str) -> Iterator[str]:
        groups: dict[tuple[object, ...], list[Switch]] = {}
        for switch in self.below[parent]:
            alike = (switch.gbps, switch.us, switch.cables, switch.source, switch.reduces, *self.on[switch.name])
            same = alike if not self.below[switch.name] else (switch.name,)
            groups.setdefault(same, []).append(switch)
        if len(groups) > MOST_LINES:  # too many: leaves are alike where as many nodes of one class are on each
            groups = self.alike(parent)
        for group in islice(groups.values(), MOST_LINES):
            yield f"{indent}{self.line(group)}"
            every = dict.fromkeys(place for switch in group for place in self.on[switch.name])
            yield from (f"{indent}  {one}" for one in _together([self.cluster.blocks[place] for place in every]))
            if len(group) == 1:
                yield from self.lines(group[0].name, f"{indent}  ")
        if len(groups) > MOST_LINES:
            rest = [switch for group in islice(groups.values(), MOST_LINES, None) for switch in group]
            yield f"{indent}... and {counted(len(rest), 'switch')} more: {fold(one.name for one in rest)}"

    def alike(self, parent: str | None) -> dict[tuple[object, ...], list[Switch]]:
        groups: dict[tuple[object, ...], list[Switch]] = {}
        for switch in self.below[parent]:
            blocks = [self.cluster.blocks[place] for place in self.on[switch.name]]
            sizes = [(len(one.nodes), one.node_class, len(one.leaves)) for one in blocks]
            alike = (switch.gbps, switch.us, switch.cables, switch.source, switch.reduces, *sizes)
            same = alike if not self.below[switch.name] else (switch.name,)
            groups.setdefault(same, []).append(switch)
        return groups

    def line(self, group: Sequence[Switch]) -> str:
        one = group[0]
        facts = [fold(switch.name for switch in group)]
        if one.gbps is not None or one.us is not None:
            each = " each" if len(group) > 1 else ""
            facts.append(f"up{each} {figures(one.gbps, one.us, one.cables, one.source)}")
        if found := ratio(self.from_below(one.name), one.gbps):
            facts.append(f"{found} oversubscribed" if found != "1:1" else "1:1")
        if one.reduces:
            facts.append("adds up (SHARP)")
        return "  ".join(facts)

    def from_below(self, name: str) -> float | None:
        if children := self.below[name]:
            known = [child.gbps for child in children if child.gbps is not None]
            return sum(known) if len(known) == len(children) else None
        return self.cluster.from_nodes(name)


def _fabric(cluster: Cluster) -> Iterator[str]:
    yield from _Fabric(cluster).lines(None, "  ")
    bare = [block for block in cluster.blocks if not block.leaves]
    for block in bare[:MOST_LINES]:
        yield f"  {_block(block)}{', on no switch' if cluster.switches else ''}"
    if len(bare) > MOST_LINES:
        yield f"  ... and {counted(len(bare) - MOST_LINES, 'block')} more"


def _together(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield a line a block; one for all of many."""
    if len(blocks) <= MOST_LINES:
        yield from map(_block, blocks)
        return
    nodes = [node for block in blocks for node in block.nodes]
    each = dict.fromkeys(len(block.nodes) for block in blocks)
    classes = dict.fromkeys(block.node_class for block in blocks if block.node_class)
    of = f" of {', '.join(classes)}" if classes else ""
    yield f"{fold(nodes)}: {counted(len(nodes), 'node')}{of}, {' or '.join(map(str, each))} each"


def _block(block: Block) -> str:
    facts = [counted(len(block.nodes), "node")]
    if block.node_class:
        facts[0] += f" of {block.node_class}"
    if len(block.leaves) > 1:
        facts.append(f"on {len(block.leaves)} leaves, one a rail")
    facts += [f"NVLink domain {block.domain}"] if block.domain else []
    facts += [f"block {block.name}"] if block.name else []
    return f"{fold(block.nodes)}: {', '.join(facts)}"


def _tiers(cluster: Cluster) -> Iterator[str]:
    tiers = cluster.arrays.tier
    for tier in sorted({int(one) for one in tiers}):
        here = [switch for switch, height in zip(cluster.switches, tiers, strict=True) if height == tier]
        rates = [switch.gbps for switch in here if switch.parent is not None]
        up = "" if not rates else ", up ? Gb/s" if None in rates else f", up {sum(filter(None, rates)):g} Gb/s together"
        yield f"  {tier}: {counted(len(here), 'switch')}{up}"


def _node_class(node: NodeClass) -> Iterator[str]:
    kinds = [
        f"{vendor} {arch}".strip() for vendor, arch in dict.fromkeys((one.vendor, one.arch) for one in node.devices)
    ]
    facts = [counted(len(node.devices), "device") + (f" ({', '.join(filter(None, kinds))})" if any(kinds) else "")]
    if node.nics:
        facts.append(f"{counted(len(node.nics), 'NIC')} on {counted(node.rails, 'rail')}")
    for kind, word in ((CPU, "CPU"), (BRIDGE, "PCIe switch")):
        if number := sum(hub.kind == kind for hub in node.hubs):
            facts.append(counted(number, word))
    if node.switch:
        facts.append("NVSwitch" + (", which adds up (NVLS)" if node.switch.reduces else ""))
    if node.relays:
        facts.append("sends by the receiver's rail (PXN)")
    yield f"class {node.name}: {'; '.join(facts)}"
    yield from _links(node)
    if len(node.devices) > MOST_DEVICES:
        yield f"  (the matrix of {len(node.devices)} devices is left out)"
    elif len(node.devices) > 1:
        yield from _matrix(node)
    for one in inside.findings(node, ""):
        yield fill(f"{one.value}; {one.remedy}", 120, initial_indent="  - ", subsequent_indent="    ")


def _links(node: NodeClass) -> Iterator[str]:
    ends: dict[tuple[str, str], int] = defaultdict(int)
    what = {hub.id: hub.kind for hub in node.hubs} | {one.id: "device" for one in node.devices}
    for link in node.links:
        a, b = (what.get(end, "NIC") for end in (link.a, link.b))
        ends[f"{link.kind} {a} - {b}", figures(link.gbps, link.us, link.count, link.source)] += 1
    groups: dict[tuple[str, str], int] = ends
    for nic in node.nics:
        role = "" if nic.role == COMPUTE else f" ({nic.role})"
        groups[f"network{role} NIC - switch", figures(nic.gbps, nic.us, 1, nic.source)] += 1
    wide = max((len(name) for name, _ in groups), default=0)
    most = max((len(str(count)) for count in groups.values()), default=0)
    for (name, known), count in groups.items():
        yield f"  {count:>{most}} x {name:<{wide}}  {known}"


def _matrix(node: NodeClass) -> Iterator[str]:
    rows, seen = [], set()
    nearest = node.nearest_nics
    for here, a in enumerate(node.devices):
        cells = []
        for b in node.devices:
            hops = None if a.id == b.id else node.route(a.id, b.id)
            cells.append("-" if a.id == b.id else ".")
            if hops is not None:
                word = inside.way(node, hops)
                seen.add("NV" if word.startswith("NV") else word)
                rates = [node.links[hop.link].gbps for hop in hops]
                cells[-1] = word if None in rates else f"{word} {min(filter(None, rates)):g}"
        nic = nearest[here]
        rows.append([a.id, *cells, *([""] if nic is None else [node.nics[nic].id]) * bool(node.nics)])
    head = ["", *(one.id for one in node.devices), *(["its NIC"] * bool(node.nics))]
    wide = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
    words = [f"{word}: {meaning}" for word, meaning in LEGEND.items() if word in seen]
    words += [".: no way"] * any("." in row for row in rows)
    yield f"  Gb/s of the narrowest link on the way; {', '.join(words)}"
