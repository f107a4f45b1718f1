"""What is to be said of the inside of a node: which NIC each GPU uses and over what, and what slows its traffic down.

Ways have the names of `nvidia-smi topo -m`: PIX (at most one PCIe switch), PXB (several), PHB (through one CPU), NODE
(through the CPUs' part of one NUMA node), SYS (between NUMA nodes); NV# and XGMI between GPUs with links of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from commbench.results.findings import DOUBT, NOTE, Finding
from commbench.topology.node import BRIDGE, BUS, CPU, FABRIC, NVLINK, NVSWITCH, PCIE, SOCKET, XGMI, Hop, Nic, NodeClass
from commbench.topology.rates import counts_both

NONE, PIX, PXB, PHB, NODE, SYS = "", "PIX", "PXB", "PHB", "NODE", "SYS"
_SHOWN = 6  # pairs or names in one finding
_TOLERANCE = 1.02  # rates within this are alike


def table(node: NodeClass) -> list[dict[str, Any]]:
    """Return a row for each device: `gpu`, `nic` (the nearest), `way`, `gbps` (of the narrowest part of the way).

    Without a NIC that can be reached `nic` and `way` are empty; `gbps` is None where a part of the way is unknown.
    """
    rows = []
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
    every = [
        _both_directions(node, source),
        *_nics(node, source),
        *_slots(node, source),
    ]
    if any(device.vendor != "cpu" for device in node.devices):
        every += [_shared_uplinks(node, source), _across_sockets(node, source), *_fabric(node, source)]
    return [one for one in every if one is not None]


def _say(rule: str, level: str, source: str, of: Sequence[str], value: str, remedy: str) -> Finding:
    shown = ", ".join(of[:_SHOWN]) + (f" and {len(of) - _SHOWN} more" if len(of) > _SHOWN else "")
    return Finding(rule, level, source, (), len(of), value.format(shown), remedy)


def _between(node: NodeClass, route: Sequence[Hop]) -> list[str]:
    """Return the vertices within a route, without its ends."""
    links = [node.links[hop.link] for hop in route]
    return [link.b if hop.forward else link.a for hop, link in zip(route[:-1], links[:-1], strict=True)]


def _both_directions(node: NodeClass, source: str) -> Finding | None:
    found = [f"{link.a}-{link.b} ({link.kind}) {link.gbps:g} Gb/s" for link in node.links if counts_both(link)]
    return found and _say("both-directions", DOUBT, source, found, "{}: more than any generation in one direction",
                          "give the rate of one direction: data sheets add both up") or None  # fmt: skip


def _nics(node: NodeClass, source: str) -> list[Finding | None]:
    if not node.nics:
        return []
    rows = table(node)
    without = [row["gpu"] for row in rows if not row["nic"]]
    far = [f"{row['gpu']} ({row['nic']})" for row in rows if row["way"] == SYS]
    sharing: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        sharing[row["nic"]].append(row["gpu"])
    shared = [f"{nic}: {' '.join(gpus)}" for nic, gpus in sharing.items() if nic and len(gpus) > 1]
    idle = [node.nics[place].id for place in node.compute_nics if node.nics[place].id not in sharing]
    gpus = any(device.vendor != "cpu" for device in node.devices)
    return [
        without and _say("no-nic", DOUBT, source, without, "no way from {} to a NIC is known",
                         "describe the PCIe tree, such as by NCCL_TOPO_DUMP_FILE") or None,
        far and gpus and _say("far-nic", DOUBT, source, far, "the nearest NIC is across NUMA nodes for {}",
                              "bind such ranks to a NIC by hand, or move the card") or None,
        shared and gpus and _say("shared-nic", NOTE, source, shared, "GPUs share a NIC: {}",
                                 "their traffic out of the node divides its rate") or None,
        idle and gpus and _say("idle-nic", NOTE, source, idle, "no GPU is nearest to {}",
                               "it may serve storage: say so by `role: storage`") or None,
    ]  # fmt: skip


def _slots(node: NodeClass, source: str) -> list[Finding | None]:
    slot = {end: link.gbps for link in node.links if link.kind == PCIE for end in (link.a, link.b) if link.gbps}
    narrow = [
        f"{nic.id} of {nic.gbps:g} Gb/s in {slot[nic.id]:.4g} Gb/s"
        for nic in node.nics
        if nic.gbps and nic.id in slot and nic.gbps > _TOLERANCE * (slot[nic.id] or 0)
    ]
    cards: dict[str, list[Nic]] = defaultdict(list)
    for nic in node.nics:
        if nic.busid and nic.gbps and slot.get(nic.id):
            cards[nic.busid.rpartition(".")[0] or nic.busid].append(nic)
    crowded = []
    for ports in cards.values():
        rate, total = slot[ports[0].id] or 0, sum(nic.gbps or 0 for nic in ports)
        if len(ports) > 1 and total > _TOLERANCE * rate:
            crowded.append(f"{' '.join(nic.id for nic in ports)} of {total:g} Gb/s in {rate:.4g} Gb/s")
    slow = [
        f"{nic.id} of {nic.gbps:g} Gb/s in {slot[nic.id]:.4g} Gb/s"
        for nic in node.nics
        if nic.gbps and nic.id in slot and 2 * nic.gbps < (slot[nic.id] or 0)
    ]
    rates = {device.id: round(slot[device.id] or 0, 3) for device in node.devices if device.id in slot}
    usual = Counter(rates.values()).most_common(1)[0][0] if rates else 0.0
    below = [f"{gpu} {rate:.4g}" for gpu, rate in rates.items() if rate * _TOLERANCE < usual]
    return [
        narrow and _say("narrow-slot", DOUBT, source, narrow, "the PCIe slot is slower than the NIC: {}",
                        "move it to a slot of more lanes, or see why the link trained down; "
                        "or its rate counts both directions") or None,
        crowded and _say("shared-slot", DOUBT, source, crowded, "ports of one card are faster together than its slot: {}",
                         "count on the slot's rate when both are used") or None,
        slow and _say("slow-nic", NOTE, source, slow, "the NIC has less than half of its PCIe slot's rate: {}",
                      "a faster NIC would fit") or None,
        below and _say("unlike-slots", DOUBT, source, below, f"GPUs with less than the others' {usual:.4g} Gb/s: {{}}",
                       "see why their PCIe links trained down") or None,
    ]  # fmt: skip


def _uplinks(node: NodeClass) -> dict[str, tuple[int, ...]]:
    """Return the PCIe links between each device and its CPU."""
    cpus = [hub.id for hub in node.hubs if hub.kind in (CPU, BUS)]
    found = {}
    for device in node.devices:
        ways = [way for cpu in cpus if (way := node.route(device.id, cpu)) is not None]
        nearest = min(ways, key=len, default=())
        found[device.id] = tuple(hop.link for hop in nearest if node.links[hop.link].kind == PCIE)
    return found


def _shared_uplinks(node: NodeClass, source: str) -> Finding | None:
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
    return found and _say("shared-uplink", NOTE, source, found, "GPUs share one PCIe link to their CPU: {}",
                          "what they send to the host, or to far GPUs and NICs, divides its rate") or None  # fmt: skip


def _across_sockets(node: NodeClass, source: str) -> Finding | None:
    pairs = [
        f"{a.id}-{b.id}" for a, b in combinations(node.devices, 2) if way(node, node.route(a.id, b.id)) == SYS
    ]  # fmt: skip
    told = any(link.kind in FABRIC for link in node.links)
    unless = "" if told else " (no NVLink or xGMI is described)"
    return pairs and _say("across-sockets", DOUBT if told else NOTE, source, pairs,
                          f"pairs of GPUs that meet between NUMA nodes only{unless}: {{}}",
                          "keep ranks that talk much on the same side") or None  # fmt: skip


def _fabric(node: NodeClass, source: str) -> list[Finding | None]:
    links = [link for link in node.links if link.kind in FABRIC]
    if not links or len(node.devices) < 2:
        return []
    switches = {hub.id for hub in node.hubs if hub.kind == NVSWITCH}
    groups = islands(node)
    direct = {frozenset((link.a, link.b)) for link in links}
    missing = []
    for group in groups:
        on_switch = {one for one in group if any(frozenset((one, switch)) in direct for switch in switches)}
        missing += [f"{a}-{b}" for a, b in combinations(group, 2)
                    if not {a, b} <= on_switch and frozenset((a, b)) not in direct]  # fmt: skip
    apart = [" ".join(group) for group in groups]
    kinds = {link.kind for link in links}
    forwarded = "traffic between them goes through other GPUs" if XGMI in kinds else "they meet over PCIe"
    return [
        len(apart) > 1 and _say("islands", DOUBT, source, apart, "links join these GPUs only among themselves: {}",
                                "keep a group of ranks within one of them") or None,
        missing and _say("partial-mesh", DOUBT, source, missing, "pairs without a direct link: {}",
                         f"{forwarded}: order rings along the links that there are") or None,
    ]  # fmt: skip


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

