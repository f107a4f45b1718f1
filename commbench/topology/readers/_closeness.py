"""From a matrix of how near devices are to one another to the tree of hubs that makes it so.

Levels are those of `nvidia-smi topo -m`, nearest first: PIX, PXB, PHB, NODE, SYS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commbench.topology.draft import Draft
from commbench.topology.node import BRIDGE, CPU, PCIE, Hub

LEVELS = ("PIX", "PXB", "PHB", "NODE")  # SYS is what is left
_KINDS = {"PIX": BRIDGE, "PXB": BRIDGE, "PHB": CPU, "NODE": CPU}
_BELOW = {"PXB": "PIX", "NODE": "PHB"}


def tree(
    ends: Iterable[str], near: Mapping[tuple[str, str], str], numa: Mapping[str, int | str], draft: Draft
) -> list[str]:
    """Add hubs and PCIe links so that `ends` are as near as said; return pairs for which that cannot be.

    `near` holds the level of pairs, either way round; `numa` the NUMA nodes of those ends of which it is known, by
    number, or by any text where only which ends are together is known.
    """
    groups: dict[str, list[str]] = {end: [end] for end in ends}  # the hub or end on top -> the ends below it
    met: dict[tuple[str, str], str] = {}  # where each pair of `near` does meet
    for level in LEVELS:
        claims = [pair for pair, known in near.items() if known == level]
        above: dict[str, list[str]] = {}
        for tops in _joined(groups, claims, level, numa):
            members = [end for top in tops for end in groups[top]]
            known = (numa.get(end) for end in members)
            number = next((one for one in known if isinstance(one, int)), None)
            if len(tops) == 1 and (level != "NODE" or _is(tops[0], CPU, draft)):
                above[tops[0]] = members
                continue
            apart = level in _BELOW and any(pair[0] in members for pair in claims)
            hub = _hub(level, number, draft)
            for top in tops:
                if apart and not _is(top, _KINDS[level], draft):
                    # Farther than the level below, so that there is one hub more on the way.
                    below = _hub(_BELOW[level], number, draft, inner=True)
                    draft.link(top, below, PCIE)
                    top = below
                draft.link(top, hub, PCIE)
            above[hub] = members
        groups = above
        top_of = {end: top for top, members in groups.items() for end in members}
        met.update({pair: level for pair in near if pair not in met and top_of[pair[0]] == top_of[pair[1]]})
    draft.join_cpus(cpus=groups)
    return [f"{a}-{b} {level}" for (a, b), level in near.items() if met.get((a, b), "SYS") != level]


def _hub(level: str, number: int | None, draft: Draft, inner: bool = False) -> str:
    name = f"switch{len(draft.hubs)}" if _KINDS[level] == BRIDGE else f"host{len(draft.hubs)}"
    if level == "NODE" and number is not None:
        name = f"cpu{number}"
    return draft.hub(Hub(name, _KINDS[level], None if inner and _KINDS[level] == CPU else number))


def _is(top: str, kind: str, draft: Draft) -> bool:
    return any(hub.id == top and hub.kind == kind for hub in draft.hubs)


def _joined(
    groups: Mapping[str, list[str]], pairs: list[tuple[str, str]], level: str, numa: Mapping[str, int | str]
) -> list[list[str]]:
    """Return the tops that belong together at a level, in the order of `groups`."""
    top_of = {end: top for top, members in groups.items() for end in members}
    root = {top: top for top in groups}

    def find(top: str) -> str:
        while root[top] != top:
            top = root[top]
        return top

    for a, b in pairs:
        root[find(top_of[b])] = find(top_of[a])
    if level == "NODE":
        first: dict[int | str, str] = {}
        for end, number in numa.items():
            if end in top_of:
                root[find(top_of[end])] = find(first.setdefault(number, top_of[end]))
    found: dict[str, list[str]] = {}
    for top in groups:
        found.setdefault(find(top), []).append(top)
    return list(found.values())
