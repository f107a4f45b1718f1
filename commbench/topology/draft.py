"""A node while it is being read: parts are added one by one, and ids made unique."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations

from commbench.topology.cluster import Block, Cluster
from commbench.topology.node import (
    BUS,
    CPU,
    DEFAULT,
    DISCOVERED,
    MEMORY,
    NVLINK,
    NVSWITCH,
    SOCKET,
    Device,
    Hub,
    Link,
    Nic,
    NodeClass,
)

MOST_PARTS = 4096  # of a kind in one node: more is a broken file
MOST_CPUS = 256  # all are joined in pairs
_SHARP = 90  # sm90: Hopper, the first whose NVSwitches add up


class TooManyParts(ValueError):
    """More parts than a node can have."""


@dataclass
class Draft:
    """The parts of a node so far."""

    devices: list[Device] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    hubs: list[Hub] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)

    def device(self, device: Device) -> str:
        """Add a device; return its id."""
        self.devices.append(replace(device, id=self._unique(device.id, self.devices)))
        return self.devices[-1].id

    def nic(self, nic: Nic) -> str:
        """Add a NIC; return its id."""
        self.nics.append(replace(nic, id=self._unique(nic.id, self.nics)))
        return self.nics[-1].id

    def hub(self, hub: Hub) -> str:
        """Add a hub; return its id."""
        self.hubs.append(replace(hub, id=self._unique(hub.id, self.hubs)))
        return self.hubs[-1].id

    def link(self, a: str, b: str, kind: str, gbps: float | None = None, **more: object) -> None:
        """Add a link, discovered unless `source` says otherwise."""
        if len(self.links) >= 16 * MOST_PARTS:
            raise TooManyParts(f"a node has at most {16 * MOST_PARTS} links")
        known: dict[str, object] = {"source": DISCOVERED, **more}
        self.links.append(Link(a, b, kind, gbps, **known))  # type: ignore[arg-type]

    def switch(self, archs: Iterable[str] = ()) -> str:
        """Return the id of the NVSwitch, of which a node has one plane; it is added where there is none.

        It adds up what GPUs send (NVLink SHARP) where one of them, of the `archs`, is a Hopper or later.
        """
        if (found := next((hub for hub in self.hubs if hub.kind == NVSWITCH), None)) is not None:
            return found.id
        newest = max((int(arch[2:]) for arch in archs if arch.startswith("sm")), default=0)
        return self.hub(Hub("nvswitch", NVSWITCH, reduces=newest >= _SHARP))

    def cpus(self) -> list[str]:
        """Return the ids of what NUMA nodes are."""
        return [hub.id for hub in self.hubs if hub.kind in (CPU, BUS) and hub.numa is not None]

    def join_cpus(self, gbps: float | None = None, cpus: Iterable[str] | None = None) -> None:
        """Link each CPU with each, by default every NUMA node; `gbps` is the default of such machines."""
        every = list(self.cpus() if cpus is None else cpus)
        if len(every) > MOST_CPUS:
            raise TooManyParts(f"a node has at most {MOST_CPUS} NUMA nodes, not {len(every)}")
        for a, b in combinations(every, 2):
            self.link(a, b, SOCKET, gbps, source=DISCOVERED if gbps is None else DEFAULT)

    def cores(self, numa: Iterable[int | None]) -> None:
        """Add CPU cores as devices, by the NUMA node that each is on: they meet in that node's memory, a bus."""
        known = {hub.numa: hub.id for hub in self.hubs if hub.kind == BUS}
        for place, on in enumerate(numa):
            if on not in known:
                known[on] = self.hub(Hub(f"bus{on if on is not None else ''}", BUS, on))
            core = self.device(Device(f"core{place}", "cpu", numa=on))
            self.link(core, known[on], MEMORY)

    def build(self, name: str) -> NodeClass:
        """Return the node."""
        return NodeClass(name, tuple(self.devices), tuple(self.nics), tuple(self.hubs), tuple(self.links))

    def nvlinks(self, ends: Iterable[str], gbps: float | None, count: int, source: str) -> None:
        """Hang devices on the NVSwitch, each by `count` links of `gbps` altogether."""
        switch = self.switch()
        for end in ends:
            self.link(end, switch, NVLINK, gbps, count=count, source=source)

    def _unique(self, name: str, kind: list[Device] | list[Nic] | list[Hub]) -> str:
        if len(kind) >= MOST_PARTS:
            raise TooManyParts(f"a node has at most {MOST_PARTS} devices, NICs or hubs")
        found, again = name, 1
        while found in self._taken:
            found, again = f"{name}.{again}", again + 1
        self._taken.add(found)
        return found


def one_node(node: NodeClass, host: str = "node") -> Cluster:
    """Return the cluster that is one node, named `host`."""
    return Cluster(classes=(node,), blocks=(Block((host,), node_class=node.name),))


def bus_address(text: str) -> str:
    """Return a PCI address the way Linux writes it: 0000:1b:00.0, of any of the forms in use."""
    found = re.fullmatch(r"(?:([\da-f]{4,8}):)?([\da-f]{2,4}:[\da-f]{2}(?:\.[\da-f])?)", text.strip().lower())
    if not found:
        return text.strip().lower()
    domain = (found[1] or "0000").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}"
