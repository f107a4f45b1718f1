"""Many readings of single nodes as one cluster: alike nodes share a class, and odd ones are named.

Several readings may be of the same host, such as those of its ranks, each of which may see its own GPUs only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from commbench.errors import UsageError
from commbench.results.findings import DOUBT, NOTE, Finding
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import Device, NodeClass
from commbench.topology.reading import Reading

_SHOWN = 6  # hosts in one finding


def merge(readings: Iterable[Reading]) -> Reading:
    """Return all nodes in one cluster, in the order of the first reading of each.

    Each reading is of one node, as `discover()` and the readers of node formats give it. Nodes are of one shape where
    they differ in nothing but bus addresses and GUIDs. The shape that most have is the usual one; each other is a class
    of its own, and a finding. UsageError where there is no reading, or one is not of a single node.
    """
    views: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.cluster.nodes != 1 or len(reading.cluster.classes) != 1:
            raise UsageError(f"readings of single nodes can be merged; {reading.source or 'one'} is of several")
        views[reading.cluster.blocks[0].nodes[0]].append(reading)
    if not views:
        raise UsageError("there is nothing to merge: give a reading of each node")
    findings = [one for seen in views.values() for reading in seen for one in reading.findings]
    nodes: dict[str, NodeClass] = {}
    for host, seen in views.items():
        nodes[host], more = _one_host(host, [reading.cluster.classes[0] for reading in seen])
        findings += more
    shape_of = {host: shape(node) for host, node in nodes.items()}
    shapes: dict[NodeClass, list[str]] = defaultdict(list)
    for host, its in shape_of.items():
        shapes[its].append(host)
    usual = max(shapes, key=lambda one: len(shapes[one]))
    classes: dict[NodeClass, NodeClass] = {}
    for one in sorted(shapes, key=lambda one: one is not usual):  # the usual one first
        first = nodes[shapes[one][0]]
        alone = len(shapes[one]) == 1
        name = "node" if len(shapes) == 1 or one is usual else f"node-{len(classes)}"
        classes[one] = replace(first if alone else _of_all(first), name=name)
        if one is not usual:
            findings.append(_odd(shapes[one], nodes, shapes[usual], difference(usual, one)))
    switches, places, more = _switches(views)
    findings += more
    blocks: dict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
    for host, its in shape_of.items():
        leaves, name = places[host]
        blocks[classes[its].name, leaves, name].append(host)
    cluster = Cluster(
        classes=tuple(classes.values()),
        switches=switches,
        blocks=tuple(Block(tuple(hosts), leaf, kind, name=name) for (kind, leaf, name), hosts in blocks.items()),
    )
    every = [reading for seen in views.values() for reading in seen]
    return Reading((cluster,), tuple(dict.fromkeys(findings)), every[0].format, every[0].source)


def shape(node: NodeClass) -> NodeClass:
    """Return what alike nodes have in common: names by number, no bus addresses, no GUIDs."""
    new = {one.id: f"gpu{place}" for place, one in enumerate(node.devices)}
    new |= {one.id: f"nic{place}" for place, one in enumerate(node.nics)}
    new |= {one.id: f"hub{place}" for place, one in enumerate(node.hubs)}
    return NodeClass(
        "",
        tuple(replace(one, id=new[one.id], busid="") for one in node.devices),
        tuple(replace(one, id=new[one.id], busid="", guid="") for one in node.nics),
        tuple(replace(one, id=new[one.id]) for one in node.hubs),
        tuple(sorted((replace(one, a=new[one.a], b=new[one.b]) for one in node.links), key=lambda one: (one.a, one.b))),
    )


def difference(usual: NodeClass, odd: NodeClass) -> str:
    """Return how the shape `odd` differs from the `usual` one, in words."""
    said = []
    for what, ours, theirs in (
        (
            "GPUs",
            [_about(one, "vendor", "arch") for one in odd.devices],
            [_about(one, "vendor", "arch") for one in usual.devices],
        ),
        ("NICs", [_rate(one.gbps) for one in odd.nics], [_rate(one.gbps) for one in usual.nics]),
        ("hubs", [one.kind for one in odd.hubs], [one.kind for one in usual.hubs]),
        (
            "links",
            [f"{one.kind} {_rate(one.gbps)}" for one in odd.links],
            [f"{one.kind} {_rate(one.gbps)}" for one in usual.links],
        ),
    ):
        here, there = Counter(ours), Counter(theirs)
        if len(ours) != len(theirs):
            said.append(f"{len(ours)} {what} instead of {len(theirs)}")
        elif here != there:
            said.append(f"{what}: {_listed(here - there)} instead of {_listed(there - here)}")
    return "; ".join(said) or "the same parts, joined otherwise or on other NUMA nodes"


def _about(one: Any, *fields: str) -> str:
    return " ".join(value for name in fields if (value := getattr(one, name))) or "unknown"


def _rate(gbps: float | None) -> str:
    return "unknown" if gbps is None else f"{gbps:.4g} Gb/s"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in counts.items())


def _odd(hosts: list[str], nodes: Mapping[str, NodeClass], usual: list[str], how: str) -> Finding:
    shown = ", ".join(hosts[:_SHOWN]) + (f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else "")
    value = f"{shown}: {how}; the other {len(usual)} of {len(nodes)} nodes are as {usual[0]}"
    return Finding("odd-node", DOUBT, hosts[0], (), len(hosts), value, "mend the node, or leave it out of the job")


def _of_all(node: NodeClass) -> NodeClass:
    """Return a node without what is one node's only."""
    return replace(node, nics=tuple(replace(nic, guid="") for nic in node.nics))


def _one_host(host: str, views: list[NodeClass]) -> tuple[NodeClass, list[Finding]]:
    """Return the union of what several processes see of one host: parts are the same by bus address, else by id."""
    views = sorted(views, key=lambda one: -len(one.devices))  # stable: the widest view first
    whole = views[0]
    for view in views[1:]:
        whole = _union(whole, view)
    found = []
    if any(len(view.devices) != len(whole.devices) for view in views):
        seen = ", ".join(str(count) for count in sorted({len(view.devices) for view in views}))
        value = f"{len(views)} processes see {seen} of its {len(whole.devices)} devices each"
        found.append(
            Finding(
                "partial-view",
                NOTE,
                host,
                (),
                len(views),
                value,
                "devices of a job are bound to its tasks: links between them may be missing",
            )
        )
    return whole, found


def _union(whole: NodeClass, view: NodeClass) -> NodeClass:
    """Return `whole` with what only `view` has. Ids may be the same for two GPUs, as each process counts its own."""
    taken = set(whole.vertices)
    new: dict[str, str] = {}
    devices: list[Device] = []
    for device in view.devices:
        same = next((one.id for one in whole.devices if _key(one) == _key(device)), None)
        new[device.id] = same or _free(device.id, taken)
        taken.add(new[device.id])
        if same is None:
            devices.append(replace(device, id=new[device.id]))
    nics = [nic for nic in view.nics if nic.id not in taken]
    hubs = [hub for hub in view.hubs if hub.id not in taken]
    joined = {frozenset((link.a, link.b)) for link in whole.links}
    links = [replace(link, a=new.get(link.a, link.a), b=new.get(link.b, link.b)) for link in view.links]
    return NodeClass(
        whole.name,
        (*whole.devices, *devices),
        (*whole.nics, *nics),
        (*whole.hubs, *hubs),
        (*whole.links, *(link for link in links if frozenset((link.a, link.b)) not in joined)),
    )


def _key(device: Device) -> str:
    return device.busid or device.id


def _free(name: str, taken: set[str]) -> str:
    """Return an id that is not taken: for gpu0 the next gpu number."""
    stem, number = name.rstrip("0123456789"), 0
    found = name
    while found in taken:
        found, number = f"{stem}{number}", number + 1
    return found


def _switches(
    views: Mapping[str, list[Reading]],
) -> tuple[tuple[Switch, ...], dict[str, tuple[tuple[str, ...], str]], list[Finding]]:
    """Return the switches that any host names, of each host its leaves and the name of its block, and findings."""
    switches: dict[str, Switch] = {}
    unlike: dict[str, Finding] = {}
    places: dict[str, tuple[tuple[str, ...], str]] = {}
    for host, seen in views.items():
        for reading in seen:
            for switch in reading.cluster.switches:
                first = switches.setdefault(switch.name, switch)
                if switch.parent != first.parent and switch.name not in unlike:
                    value = (
                        f"switch {switch.name} is below {first.parent or 'none'}, and below {switch.parent or 'none'}"
                    )
                    remedy = "the first is taken: write the tree by hand, or read topology.conf"
                    unlike[switch.name] = Finding("odd-switch", DOUBT, host, (), 1, value, remedy)
        blocks = [reading.cluster.blocks[0] for reading in seen]
        leaves = next((block.leaves for block in blocks if block.leaves), ())
        places[host] = leaves, next((block.name for block in blocks if block.name), "")
    return tuple(switches.values()), places, list(unlike.values())
