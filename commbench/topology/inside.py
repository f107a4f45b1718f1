"""What is to be said of the inside of a node: which NIC each GPU uses and over what, and what slows its traffic down.

Ways have the names of `nvidia-smi topo -m`: PIX (at most one PCIe switch), PXB (several), PHB (through one CPU), NODE
(through the CPUs' part of one NUMA node), SYS (between NUMA nodes); NV# and XGMI between GPUs with links of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from commbench.results.findings import DOUBT, NOTE, Finding
from commbench.topology.node import BRIDGE, BUS, CPU, FABRIC, NVLINK, NVSWITCH, PCIE, SOCKET, XGMI, Hop, Nic, NodeClass
from commbench.topology.rates import counts_both

NONE, PIX, PXB, PHB, NODE, SYS = "", "PIX", "PXB", "PHB", "NODE", "SYS"
_SHOWN = 6  # pairs or names in one finding
Say = Callable[[str, str, Sequence[str], str, str], Finding | None]  # rule, level, of what, value, remedy

_TOLERANCE = 1.02  # rates within this are alike


def table(node: NodeClass) -> list[dict[str, Any]]:
    """Return a row for each device: `gpu`, `nic` (the nearest), `way`, `gbps` (of the narrowest part of the way).

    Without a NIC that can be reached `nic` and `way` are empty; `gbps` is None where a part of the way is unknown.
    """
    rows: list[dict[str, Any]] = []
    for device, place in zip(node.devices, node.nearest_nics, strict=True):
        if place is None:
            rows.append({"gpu": device.id, "nic": "", "way": NONE, "gbps": None})
            continue
        nic = node.nics[place]
        route = node.route(device.id, nic.id) or ()
        rates = [node.links[hop.link].gbps for hop in route] + [nic.gbps]
        known = [rate for rate in rates if rate is not None]
        gbps = min(known) if len(known) == len(rates) else None
        rows.append({"gpu": device.id, "nic": nic.id, "way": way(node, route), "gbps": gbps})
    return rows


def way(node: NodeClass, route: Sequence[Hop] | None) -> str:
    """Return the name of a route between two ends, empty where there is none."""
    if not route:
        return NONE
    links = [node.links[hop.link] for hop in route]
    if any(link.kind in FABRIC for link in links):
        nvlinks = min((link.count for link in links if link.kind == NVLINK), default=0)
        return f"NV{nvlinks}" if nvlinks else "XGMI"
    if any(link.kind == SOCKET for link in links):
        return SYS
    kinds = Counter({hub.id: hub.kind for hub in node.hubs}[one] for one in _between(node, route))
    cpus = kinds[CPU] + kinds[BUS]
    if cpus:
        return PHB if cpus == 1 else NODE
    return PIX if kinds[BRIDGE] <= 1 else PXB


def findings(node: NodeClass, source: str) -> list[Finding]:
    """Return what is to be said of `node`; `source` is the file or host that it came from."""
    say = partial(_say, source)
    every = [_both_directions(node, say), *_slots(node, say)]
    if any(device.vendor != "cpu" for device in node.devices):
        every += [*_nics(node, say), _shared_uplinks(node, say), _across_sockets(node, say), *_fabric(node, say)]
    return [one for one in every if one is not None]


def _say(source: str, rule: str, level: str, of: Sequence[str], value: str, remedy: str) -> Finding | None:
    """Return the finding about `of`, whose first ones stand for {} in `value`; None where there are none."""
    if not of:
        return None
    shown = ", ".join(of[:_SHOWN]) + (f" and {len(of) - _SHOWN} more" if len(of) > _SHOWN else "")
    return Finding(rule, level, source, (), len(of), value.format(shown), remedy)


def _between(node: NodeClass, route: Sequence[Hop]) -> list[str]:
    """Return the vertices within a route, without its ends."""
    links = [node.links[hop.link] for hop in route]
    return [link.b if hop.forward else link.a for hop, link in zip(route[:-1], links[:-1], strict=True)]


def _both_directions(node: NodeClass, say: Say) -> Finding | None:
    found = [f"{link.a}-{link.b} ({link.kind}) {link.gbps:g} Gb/s" for link in node.links if counts_both(link)]
    value = "{}: more than any generation carries in one direction"
    return say("both-directions", DOUBT, found, value, "give the rate of one direction: data sheets add both up")


def _nics(node: NodeClass, say: Say) -> list[Finding | None]:
    if not node.nics:
        return []
    rows = table(node)
    sharing: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        sharing[row["nic"]].append(row["gpu"])
    without = sharing.pop("", [])
    far = [f"{row['gpu']} ({row['nic']})" for row in rows if row["way"] == SYS]
    shared = [f"{nic}: {' '.join(gpus)}" for nic, gpus in sharing.items() if len(gpus) > 1]
    idle = [node.nics[place].id for place in node.compute_nics if node.nics[place].id not in sharing]
    return [
        say(
            "no-nic",
            DOUBT,
            without,
            "no way from {} to a NIC is known",
            "describe the PCIe tree, such as by NCCL_TOPO_DUMP_FILE",
        ),
        say(
            "far-nic",
            DOUBT,
            far,
            "the nearest NIC is across NUMA nodes for {}",
            "bind such ranks to a NIC by hand, or move the card",
        ),
        say(
            "shared-nic",
            NOTE,
            shared,
            "GPUs share a NIC: {}",
            "their traffic out of the node divides its rate",
        ),
        say(
            "idle-nic",
            NOTE,
            idle,
            "no GPU is nearest to {}",
            "it may serve storage: say so by `role: storage`",
        ),
    ]


def _slots(node: NodeClass, say: Say) -> list[Finding | None]:
    slot = {end: link.gbps for link in node.links if link.kind == PCIE and link.gbps for end in (link.a, link.b)}
    narrow, slow = [], []
    cards: dict[str, list[Nic]] = defaultdict(list)
    for nic in node.nics:
        if not nic.gbps or nic.id not in slot:
            continue
        text = f"{nic.id} of {nic.gbps:g} Gb/s in {slot[nic.id]:.4g} Gb/s"
        if nic.gbps > _TOLERANCE * slot[nic.id]:
            narrow.append(text)
        if 2 * nic.gbps < slot[nic.id]:
            slow.append(text)
        cards[nic.busid.rpartition(".")[0] or nic.id].append(nic)  # without the function
    crowded = []
    for ports in cards.values():
        total = sum(nic.gbps or 0.0 for nic in ports)
        if len(ports) > 1 and total > _TOLERANCE * slot[ports[0].id]:
            crowded.append(f"{' '.join(nic.id for nic in ports)} of {total:g} Gb/s in {slot[ports[0].id]:.4g} Gb/s")
    rates = {device.id: round(slot[device.id], 3) for device in node.devices if device.id in slot}
    usual = Counter(rates.values()).most_common(1)[0][0] if rates else 0.0
    below = [f"{gpu} {rate:.4g}" for gpu, rate in rates.items() if rate * _TOLERANCE < usual]
    return [
        say(
            "narrow-slot",
            DOUBT,
            narrow,
            "the PCIe slot is slower than the NIC: {}",
            "move it to a slot of more lanes, or see whether its rate counts both directions",
        ),
        say(
            "shared-slot",
            DOUBT,
            crowded,
            "the ports of a card are together faster than its slot: {}",
            "count on the slot's rate when both are used",
        ),
        say(
            "slow-nic",
            NOTE,
            slow,
            "the NIC has less than half of its PCIe slot's rate: {}",
            "a faster NIC would fit",
        ),
        say(
            "unlike-slots",
            DOUBT,
            below,
            f"GPUs with less than the others' {usual:.4g} Gb/s of PCIe: {{}}",
            "see why their links trained down",
        ),
    ]


def _uplinks(node: NodeClass) -> dict[str, tuple[int, ...]]:
    """Return the PCIe links between each device and its CPU."""
    cpus = [hub.id for hub in node.hubs if hub.kind in (CPU, BUS)]
    found = {}
    for device in node.devices:
        ways = [way for cpu in cpus if (way := node.route(device.id, cpu)) is not None]
        nearest = min(ways, key=len, default=())
        found[device.id] = tuple(hop.link for hop in nearest if node.links[hop.link].kind == PCIE)
    return found


def _shared_uplinks(node: NodeClass, say: Say) -> Finding | None:
    sharing: dict[int, list[str]] = defaultdict(list)
    for device, links in _uplinks(node).items():
        for link in links:
            sharing[link].append(device)
    # The same GPUs may share several links one after the other: they are said once, with the narrowest.
    narrowest: dict[tuple[str, ...], float | None] = {}
    for link, devices in sharing.items():
        if len(devices) > 1:
            rates = [rate for rate in (narrowest.get(tuple(devices)), node.links[link].gbps) if rate is not None]
            narrowest[tuple(devices)] = min(rates, default=None)
    found = [f"{' '.join(gpus)}{f' ({rate:.4g} Gb/s)' if rate else ''}" for gpus, rate in narrowest.items()]
    return say(
        "shared-uplink",
        NOTE,
        found,
        "GPUs share one PCIe link to their CPU: {}",
        "what they send to the host, or to far GPUs and NICs, divides its rate",
    )


def _across_sockets(node: NodeClass, say: Say) -> Finding | None:
    pairs = [f"{a.id}-{b.id}" for a, b in combinations(node.devices, 2) if way(node, node.route(a.id, b.id)) == SYS]
    told = any(link.kind in FABRIC for link in node.links)
    unless = "" if told else " (no NVLink or xGMI is described)"
    return say(
        "across-sockets",
        DOUBT if told else NOTE,
        pairs,
        f"pairs of GPUs that meet between NUMA nodes only{unless}: {{}}",
        "keep ranks that talk much on the same side",
    )


def _fabric(node: NodeClass, say: Say) -> list[Finding | None]:
    links = [link for link in node.links if link.kind in FABRIC]
    if not links:
        return []
    switches = {hub.id for hub in node.hubs if hub.kind == NVSWITCH}
    direct = {frozenset((link.a, link.b)) for link in links}
    groups = islands(node)
    missing = []
    for group in groups:
        switched = {one for one in group if any(frozenset((one, switch)) in direct for switch in switches)}
        pairs = [pair for pair in combinations(group, 2) if not switched.issuperset(pair)]
        missing += [f"{a}-{b}" for a, b in pairs if frozenset((a, b)) not in direct]
    apart = [" ".join(group) for group in groups] if len(groups) > 1 else []
    forwarded = any(link.kind == XGMI for link in links)
    between = "other GPUs forward what they send" if forwarded else "they meet over PCIe"
    return [
        say(
            "islands",
            DOUBT,
            apart,
            "links join these GPUs only among themselves: {}",
            "keep a group of ranks within one of them",
        ),
        say(
            "partial-mesh",
            DOUBT,
            missing,
            "pairs without a direct link: {}",
            f"{between}: order rings along the links that there are",
        ),
    ]


def islands(node: NodeClass) -> list[list[str]]:
    """Return the devices that NVLink or xGMI join, group by group, in the order of the node."""
    parent = {vertex: vertex for vertex in node.vertices}

    def top(one: str) -> str:
        while parent[one] != one:
            one = parent[one]
        return one

    for link in node.links:
        if link.kind in FABRIC and link.a in parent and link.b in parent:
            parent[top(link.a)] = top(link.b)
    groups: dict[str, list[str]] = defaultdict(list)
    for device in node.devices:
        groups[top(device.id)].append(device.id)
    return list(groups.values())
