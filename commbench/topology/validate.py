"""What every description of a tree of switches must keep, whatever its format: said once, with lines.

A reader gathers what its file declares, `check_tree` says what is wrong with it, and the reader makes Switch and Block
of what is right:

    tree = check_tree(source, [SwitchLine("spine", 1, ("leaf",)), SwitchLine("leaf", 2)],
                      [NodesLine(("n1", "n2"), 2, on=("leaf",))])
    tree.parents["leaf"] == "spine"

The rules are those of Slurm, which ends its controller over some faults and runs on with others: with a leaf below two
spines, say, or with no nodes at all. What loses nodes or has two meanings is refused here; what may be meant is a
finding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.results.findings import DOUBT, Finding, finding
from commbench.topology import hosts
from commbench.topology.reading import Faults, TopologyError

DEEPEST = 32  # tiers: real fabrics have up to five
LONGEST_NAME = 255  # characters, of a switch or a node
_NAME = re.compile(r"[^\s,\[\]]+")


@dataclass(frozen=True)
class SwitchLine:
    """A switch, the line that declares it, and the switches below it."""

    name: str
    line: int
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodesLine:
    """Nodes, the line that declares them, and the switches they hang on: one, or one a rail; none where nobody said."""

    nodes: tuple[str, ...]
    line: int
    on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    """What was found right: the parent of every switch, None for a root, and what is odd."""

    parents: Mapping[str, str | None]  # in the order declared, implied leaves after
    findings: tuple[Finding, ...]


def check_tree(
    source: str,
    switches: Sequence[SwitchLine],
    groups: Sequence[NodesLine],
    *,
    implied: bool = False,
    hollow: bool = False,
    existing: Collection[str] | None = None,
    faults: Faults | None = None,
) -> Tree:
    """Return the tree that is declared, or raise TopologyError with all lines that cannot be.

    implied: a switch that only its parent or its nodes name is a leaf, and no mistake
    hollow: a leaf may be without nodes (as in Slurm since 25.05), which is a finding
    existing: the nodes that there are, where somebody knows; None: those that are declared
    faults: what the reader found wrong with other lines, which are not among these
    """
    faults = faults or Faults(source)
    whole = not faults.found  # else a line that could not be read may declare what seems to be missing
    if not switches and not any(group.nodes for group in groups) and whole:
        faults.add(None, "it declares no switch and no node; name each leaf with its nodes")
    lines = _lines(faults, switches)
    for group in groups:
        for name in group.on:
            if name not in lines:
                if not implied and whole:
                    faults.add(group.line, f"nodes are on a switch that is not declared: {_short(name)}")
                lines[_named(name, faults, group.line)] = group.line
    parents = _parents(faults, switches, lines, implied or not whole)
    _deny_cycles(faults, parents, lines)
    empty = _check_leaves(faults, switches, groups, lines, hollow or not whole)
    on = _nodes(faults, groups)
    faults.check()
    return Tree(
        parents,
        (
            *_roots(source, parents, lines),
            *_empty(source, empty, lines),
            *_unlike(source, groups, on, bool(switches), existing),
        ),
    )


def hosts_at(text: str, source: str, line: int) -> tuple[str, ...]:
    """Return the names that the list `text` has; raise TopologyError with the line where it is none."""
    try:
        return tuple(hosts.expand(text))
    except UsageError as error:
        raise TopologyError(source, line, str(error)) from None


def _named(name: str, faults: Faults, line: int) -> str:
    if not _NAME.fullmatch(name) or not name.isprintable() or len(name) > LONGEST_NAME:
        rule = f"a name has 1 to {LONGEST_NAME} printable characters, and no blank, comma or bracket"
        faults.add(line, f"{rule}, not {_short(name)}")
    return name


def _lines(faults: Faults, switches: Iterable[SwitchLine]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for one in switches:
        if one.name in lines:
            text = f"switch {one.name} is declared already, in line {lines[one.name]}; declare it once"
            faults.add(one.line, text)
            continue
        lines[_named(one.name, faults, one.line)] = one.line
    return lines


def _parents(
    faults: Faults, switches: Iterable[SwitchLine], lines: dict[str, int], implied: bool
) -> dict[str, str | None]:
    above: dict[str, SwitchLine] = {}
    for one in switches:
        for name in one.below:
            if name not in lines:
                if not implied:
                    text = (
                        f"switch {one.name} is above {_short(name)}, which is not declared; declare it, or take it out"
                    )
                    faults.add(one.line, text)
                lines[_named(name, faults, one.line)] = one.line
            if name in above:
                first = above[name]
                text = f"switch {name} is below {first.name} already, in line {first.line}; a switch has one parent"
                faults.add(one.line, f"{text}: draw spines of one tier together to one")
                continue
            above[name] = one
    return {name: above[name].name if name in above else None for name in lines}


def _deny_cycles(faults: Faults, parents: Mapping[str, str | None], lines: Mapping[str, int]) -> None:
    depth: dict[str, int] = {}  # of those that are known to end in a root
    for start in parents:
        way: dict[str, None] = {}
        here: str | None = start
        while here is not None and here not in depth:
            if here in way:
                ring = [*list(way)[list(way).index(here) :], here]
                shown = " < ".join(ring if len(ring) <= 6 else [*ring[:3], "...", *ring[-2:]])
                faults.add(lines[here], f"switches are a tree, and these a cycle: {shown}")
                return
            way[here] = None
            here = parents[here]
        base = depth[here] if here is not None else 0
        for place, name in enumerate(reversed(way), start=1):
            depth[name] = base + place
            if depth[name] > DEEPEST:
                faults.add(lines[name], f"switches are at most {DEEPEST} tiers deep: {name} is deeper")
                return


def _check_leaves(
    faults: Faults, switches: Iterable[SwitchLine], groups: Iterable[NodesLine], lines: Mapping[str, int], hollow: bool
) -> list[str]:
    """Return the leaves without nodes, where those may be."""
    with_nodes, above = _used(groups), {one.name for one in switches if one.below}
    for one in switches:
        if one.below and one.name in with_nodes:
            text = f"switch {one.name} has both switches and nodes (line {with_nodes[one.name]}) below it"
            faults.add(one.line, f"{text}; give the nodes a leaf of their own")
    empty = [name for name in lines if name not in above and name not in with_nodes]
    declared = {one.name for one in switches}
    for name in empty if not hollow else ():
        if name in declared:
            faults.add(lines[name], f"switch {name} has neither switches nor nodes; take it out")
    return empty if with_nodes else []


def _used(groups: Iterable[NodesLine]) -> dict[str, int]:
    """Return the switches that nodes are on, each with the line of some."""
    return {name: group.line for group in groups for name in group.on if group.nodes}


def _empty(source: str, leaves: Sequence[str], lines: Mapping[str, int]) -> list[Finding]:
    if not leaves:
        return []
    value = f"{len(leaves)} leaves have no nodes: {_some(leaves)}"
    remedy = "name their nodes, or correct the name where their nodes are"
    return [finding("empty leaf", DOUBT, source, [lines[name] for name in leaves], value, remedy)]


def _nodes(faults: Faults, groups: Iterable[NodesLine]) -> dict[str, int]:
    """Return the line of each node."""
    on: dict[str, int] = {}
    for group in groups:
        for name in group.nodes:
            if name in on:
                text = (
                    f"node {name} is declared already, in line {on[name]}; name it once, on the leaves of all its NICs"
                )
                faults.add(group.line, text)
                continue
            on[_named(name, faults, group.line)] = group.line
    return on


def _roots(source: str, parents: Mapping[str, str | None], lines: Mapping[str, int]) -> list[Finding]:
    roots = [name for name, parent in parents.items() if parent is None]
    if len(roots) < 2:
        return []
    value = f"{len(roots)} switches have none above them: {_some(roots)}"
    remedy = "right for fabrics that are apart; else name the switch that joins them"
    return [finding("no common root", DOUBT, source, [lines[name] for name in roots], value, remedy)]


def _unlike(
    source: str,
    groups: Iterable[NodesLine],
    on: Mapping[str, int],
    switched: bool,
    existing: Collection[str] | None,
) -> list[Finding]:
    """Return what is to be said where nodes that are declared, on a switch, and existing are not the same."""
    found = []
    known = set(on if existing is None else existing)
    if unknown := [name for name in on if name not in known]:
        value, remedy = (
            f"{len(unknown)} nodes are not of this cluster: {_some(unknown)}",
            "correct or take out the names",
        )
        found.append(finding("unknown node", DOUBT, source, {on[name] for name in unknown}, value, remedy))
    placed = {name for group in groups if group.on for name in group.nodes}
    if switched and (bare := [name for name in sorted(known | on.keys()) if name not in placed]):
        value = f"{len(bare)} nodes are on no switch: {_some(bare)}"
        remedy = "name their leaf: no job can span them and others"
        found.append(
            finding("nodes on no switch", DOUBT, source, {on[name] for name in bare if name in on}, value, remedy)
        )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
