"""A fabric as discovery finds it, switches with cables in any pattern, drawn together to a tree.

    leaves      the switches that hosts hang on: tier 0
    tier t      switches that are t cables away from the nearest leaf
    a switch    of the tree stands for all switches of a tier that the tiers up to it connect: the spines of a pod are
                one, and what leads from a leaf to any of them is one uplink, with the cables counted and their rates
                added up

So a fat tree keeps its oversubscription, and loses which of its spines a cable goes to. Where cables do not go from
tier to tier the tree is a likeness, and a finding says so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.cluster import Block, Cable, Cluster, Switch
from commbench.topology.node import DISCOVERED, Nic, NodeClass
from commbench.topology.reading import TopologyError
from commbench.topology.validate import DEEPEST, NodesLine, SwitchLine, check_tree


@dataclass(frozen=True)
class FoundSwitch:
    """A switch, where the listing has it, and whether it adds up (SHARP)."""

    name: str
    line: int
    reduces: bool = False


@dataclass(frozen=True)
class Adapter:
    """A host's port, and the switch that it is plugged into; `gbps` per direction."""

    device: str
    switch: str
    gbps: float | None = None


_Near = Mapping[str, Mapping[str, list[float | None]]]  # the rates of the cables between two switches
_Plugged = Mapping[str, list[float | None]]  # the rates of the cables from a switch to hosts


@dataclass
class _Unit:
    """Some switches that the tree knows as one, and what it says of them so far."""

    name: str
    members: set[str]


@dataclass
class _Drawing:
    """The tree as it grows: the parent and uplink of each of its switches."""

    parents: dict[str, str] = field(default_factory=dict)
    uplinks: dict[str, list[float | None]] = field(default_factory=dict)  # the rates of the cables
    members: dict[str, list[str]] = field(default_factory=dict)


def draw(
    source: str,
    switches: Sequence[FoundSwitch],
    hosts: Mapping[str, tuple[int, Sequence[Adapter]]],
    cables: Sequence[Cable],
) -> tuple[Cluster, tuple[Finding, ...]]:
    """Return the tree of a fabric: `hosts` by name with their line and adapters, `cables` between switches, each once.

    Cables that run beside one another come back as one in Cluster.cables, with their count and the sum of their rates.
    """
    found = {one.name: one for one in switches}
    beside = _beside(cables)
    near: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    for (a, b), rates in beside.items():
        near[a][b] = near[b][a] = rates
    plugged: dict[str, list[float | None]] = defaultdict(list)
    for _, adapters in hosts.values():
        for one in adapters:
            plugged[one.switch].append(one.gbps)
    tiers = _tiers(near, plugged)
    if max(tiers.values(), default=0) >= DEEPEST:
        far = max(tiers, key=tiers.__getitem__)
        raise TopologyError(source, found[far].line, f"switch {far} is {DEEPEST} or more cables away from any host")
    drawing = _draw(near, plugged, tiers, found)
    drawn = {one for members in drawing.members.values() for one in members}
    findings = _odd(source, found, beside, plugged, tiers, drawn)
    aside = _hosts_above_leaves(drawing, plugged, tiers, found)
    reduces = {name: all(found[one].reduces for one in members) for name, members in drawing.members.items()}
    made = tuple(
        Switch(
            name,
            drawing.parents.get(name),
            gbps=_sum(drawing.uplinks.get(name, [])),
            cables=len(drawing.uplinks[name]) if name in drawing.uplinks else None,
            source=DISCOVERED,
            reduces=reduces[name],
            annotations={"switches": members} if members != [name] else {},
        )
        for name, members in drawing.members.items()
    )
    classes, blocks = _blocks(hosts, aside)
    lines = {name: min(found[one].line for one in members) for name, members in drawing.members.items()}
    below: dict[str, list[str]] = defaultdict(list)
    for name, parent in drawing.parents.items():
        below[parent].append(name)
    tree = check_tree(
        source,
        [SwitchLine(name, lines[name], tuple(below[name])) for name in drawing.members],
        [NodesLine((name,), hosts[name][0], block.leaves) for block in blocks for name in block.nodes],
    )
    found_cables = tuple(Cable(a, b, _sum(rates), len(rates)) for (a, b), rates in sorted(beside.items()))
    cluster = Cluster(classes=classes, switches=made, blocks=blocks, cables=found_cables)
    return cluster, (*tree.findings, *findings)


def natural(text: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts names with numbers as people do: mlx5_2 before mlx5_10."""
    parts = re.split(r"([0-9]{1,18})", text)
    return [(0, int(part)) if part.isdecimal() and part.isascii() else (1, part) for part in parts if part]


def _sum(rates: Iterable[float | None]) -> float | None:
    """Return the sum of rates in Gb/s, None where one of them is not known, or there are none."""
    known = list(rates)
    return None if not known or None in known else sum(rate for rate in known if rate is not None)


def _beside(cables: Iterable[Cable]) -> dict[tuple[str, str], list[float | None]]:
    """Return the rates of the cables between each two switches; a cable from a switch to itself leads nowhere."""
    found: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for cable in cables:
        if cable.a != cable.b:
            found[min(cable.a, cable.b), max(cable.a, cable.b)].append(cable.gbps)
    return found


def _tiers(near: _Near, plugged: _Plugged) -> dict[str, int]:
    """Return the tier of each switch that some host can reach."""

    def share(name: str) -> float:
        """The part of its cables that go to hosts."""
        inner = sum(len(rates) for rates in near.get(name, {}).values())
        return len(plugged[name]) / (len(plugged[name]) + inner)

    # A host may hang on a spine (a fabric manager, a gateway), which does not make it a leaf: beside the real leaves
    # around it, it has few hosts for its cables.
    leaves = [
        name
        for name in plugged
        if not any(other in plugged and share(name) < share(other) / 2 for other in near.get(name, ()))
    ]
    tiers = dict.fromkeys(leaves, 0)
    edge = leaves
    while edge:
        beyond: dict[str, None] = {}
        for name in edge:
            beyond |= dict.fromkeys(other for other in near.get(name, ()) if other not in tiers)
        for name in beyond:
            tiers[name] = tiers[edge[0]] + 1
        edge = list(beyond)
    return tiers


def _draw(near: _Near, plugged: _Plugged, tiers: Mapping[str, int], found: Mapping[str, FoundSwitch]) -> _Drawing:
    """Join units tier by tier, each with what a tier's switches connect."""
    leaves = sorted((name for name, tier in tiers.items() if tier == 0), key=natural)
    drawing = _Drawing(members={name: [name] for name in leaves})
    units = [_Unit(name, {name}) for name in leaves]
    for tier in range(1, max(tiers.values(), default=0) + 2):  # one more: leaves may have cables between them
        here = sorted((name for name, one in tiers.items() if one == tier), key=natural)
        groups = _joined(units, here, near, plugged)
        names = iter(_names(tier, [spines for parts, spines, joins in groups if joins], {*found, *drawing.members}))
        units = []
        for parts, spines, joins in groups:
            reach = set(spines).union(*(part.members for part in parts))
            if not joins:
                units.append(_Unit(parts[0].name, reach))
                continue
            name = next(names)
            drawing.members[name] = spines or sorted(reach, key=natural)
            for part in parts:
                drawing.parents[part.name] = name
                drawing.uplinks[part.name] = _between(part.members, reach - part.members, near)
            units.append(_Unit(name, reach))
    return drawing


def _joined(
    units: Sequence[_Unit], here: Sequence[str], near: _Near, plugged: _Plugged
) -> list[tuple[list[_Unit], list[str], bool]]:
    """Return the units that a tier's switches, or cables between them, connect: with those switches, and whether the
    two make a switch of the tree.
    """
    owner = {name: unit.name for unit in units for name in unit.members}
    dead_ends = {  # a leaf whose hosts are all down looks like a spine that leads nowhere else
        name for name in here if name not in plugged and len({owner.get(other, other) for other in near[name]}) == 1
    }
    spines = [name for name in here if name not in dead_ends]
    owner |= {name: name for name in spines}
    group = {name: name for name in owner.values()}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for name in owner:
        for other in near.get(name, ()):
            if other in owner:
                group[root(owner[other])] = root(owner[name])
    parts: dict[str, tuple[list[_Unit], list[str]]] = {}
    for unit in units:
        parts.setdefault(root(unit.name), ([], []))[0].append(unit)
    for name in spines:
        parts[root(name)][1].append(name)
    return [(below, above, len(below) > 1 or any(name in plugged for name in above)) for below, above in parts.values()]


def _between(members: set[str], others: set[str], near: _Near) -> list[float | None]:
    """Return the rates of the cables from some switches to others."""
    return [
        rate
        for name in sorted(members)
        for other, rates in near.get(name, {}).items()
        if other in others
        for rate in rates
    ]


def _names(tier: int, groups: Sequence[list[str]], taken: set[str]) -> list[str]:
    """Return a name for each group of a tier's switches: its own where it is one, else the tier's."""
    drawn = sum(len(group) != 1 for group in groups)
    names = []
    for place, group in enumerate(groups, start=1):
        name = group[0] if len(group) == 1 else _free(f"tier{tier}" if drawn == 1 else f"tier{tier}-{place}", taken)
        taken.add(name)
        names.append(name)
    return names


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _hosts_above_leaves(
    drawing: _Drawing,
    plugged: _Plugged,
    tiers: Mapping[str, int],
    found: Mapping[str, FoundSwitch],
) -> dict[str, str]:
    """Give the hosts of each spine a leaf of their own, as wide as their cables; return it by the spine."""
    unit = {one: name for name, members in drawing.members.items() for one in members}
    taken = {*found, *drawing.members}
    aside: dict[str, str] = {}
    for spine in sorted((name for name in plugged if tiers[name]), key=natural):
        leaf = aside[spine] = _free(f"{spine}-hosts", taken)
        taken.add(leaf)
        drawing.members[leaf] = [spine]
        drawing.parents[leaf], drawing.uplinks[leaf] = unit[spine], plugged[spine]
    return aside


def _blocks(
    hosts: Mapping[str, tuple[int, Sequence[Adapter]]], aside: Mapping[str, str]
) -> tuple[tuple[NodeClass, ...], tuple[Block, ...]]:
    """Return the classes by their NICs, and the hosts that are alike in class and leaves."""
    classes: dict[tuple[tuple[str, float | None], ...], NodeClass] = {}
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    labels: Counter[str] = Counter()
    for name in sorted(hosts, key=natural):
        adapters = sorted(hosts[name][1], key=lambda one: natural(one.device))
        shape = tuple((one.device, one.gbps) for one in adapters)
        if shape not in classes:
            rates = {one.gbps for one in adapters}
            rate = next(iter(rates)) if len(rates) == 1 else None
            label = f"{len(shape)}x{rate:g}" if rate else f"{len(shape)}-nics"
            labels[label] += 1
            label = f"{label}-{labels[label]}" if labels[label] > 1 else label
            nics = (Nic(one.device, one.gbps, rail=rail, source=DISCOVERED) for rail, one in enumerate(adapters))
            classes[shape] = NodeClass(label, nics=tuple(nics))
        leaves = tuple(aside.get(one.switch, one.switch) for one in adapters)
        leaves = leaves[:1] if len(set(leaves)) == 1 else leaves
        alike.setdefault((classes[shape].name, leaves), []).append(name)
    blocks = tuple(Block(tuple(nodes), leaves, node_class) for (node_class, leaves), nodes in alike.items())
    return tuple(classes.values()), blocks


def _odd(
    source: str,
    found: Mapping[str, FoundSwitch],
    beside: Mapping[tuple[str, str], list[float | None]],
    plugged: _Plugged,
    tiers: Mapping[str, int],
    drawn: Collection[str],
) -> list[Finding]:
    """Return what does not look like a tree of tiers."""
    said = []
    if lonely := [one for name, one in found.items() if name not in drawn]:
        value = f"{len(lonely)} switches are on no way between hosts: {_some([one.name for one in lonely])}"
        lines = [one.line for one in lonely]
        said.append(finding("switch without hosts", NOTE, source, lines, value, "they are left out"))
    if level := [pair for pair in beside if pair[0] in tiers and tiers[pair[0]] == tiers[pair[1]]]:
        value = f"{len(level)} pairs of switches of one tier have cables between them: {_some(map(' - '.join, level))}"
        lines = [found[a].line for a, _ in level]
        remedy = "costs between them are those of a switch above both; a mesh or a dragonfly is only likened to a tree"
        said.append(finding("not a tree", DOUBT, source, lines, value, remedy))
    if above := [found[name] for name in plugged if tiers.get(name)]:
        value = f"hosts hang on {len(above)} switches above the leaves: {_some([one.name for one in above])}"
        remedy = "they have a leaf of their own in the tree"
        said.append(finding("hosts above leaves", NOTE, source, [one.line for one in above], value, remedy))
    return said


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
