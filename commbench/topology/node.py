"""The inside of a node: its devices and NICs, what joins them, and the way that bytes take between two of them.

A node is a graph. Devices, NICs and hubs are its vertices, and links its edges. Bandwidth is Gb/s per direction, and
latency microseconds one way; each says where it comes from. What nobody said is None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

# Where a figure comes from, the most trusted first. A default is a vendor's or a library's, for what was not said.
MEASURED, DISCOVERED, DECLARED, DEFAULT = "measured", "discovered", "declared", "default"
SOURCES = (MEASURED, DISCOVERED, DECLARED, DEFAULT)

BYTES = 1.25e8  # a second, of one Gb/s
NVLINK, XGMI, PCIE, C2C, SOCKET, MEMORY = "nvlink", "xgmi", "pcie", "c2c", "socket", "memory"
LINKS = (NVLINK, XGMI, PCIE, C2C, SOCKET, MEMORY)
FABRIC = (NVLINK, XGMI)  # links that are for devices only

NVSWITCH, BRIDGE, CPU, BUS = "nvswitch", "bridge", "cpu", "bus"
HUBS = (NVSWITCH, BRIDGE, CPU, BUS)  # a bus: memory that cores or devices meet in

COMPUTE, STORAGE = "compute", "storage"
ROLES = (COMPUTE, STORAGE)


@dataclass(frozen=True)
class Device:
    """A GPU as a rank sees it (an MI250X is two), or a core of a CPU."""

    id: str
    vendor: str = ""  # "nvidia", "amd", "cpu"
    arch: str = ""  # "sm90", "gfx942"
    busid: str = ""
    numa: int | None = None


@dataclass(frozen=True)
class Nic:
    """A port into the network; `us` is that of its cable and of both its ends."""

    id: str
    gbps: float | None = None
    us: float | None = None
    rail: int = 0  # the column of its block's leaves that it is plugged into
    busid: str = ""
    numa: int | None = None
    guid: str = ""
    role: str = COMPUTE
    source: str = DECLARED


@dataclass(frozen=True)
class Hub:
    """What joins links: an NVSwitch, a PCIe bridge, a CPU with its memory."""

    id: str
    kind: str
    numa: int | None = None
    reduces: bool = False  # adds up what devices send through it (NVLink SHARP)
    us: float | None = None  # that this takes, each time that devices send to it, beside their links
    source: str = DECLARED  # of us


@dataclass(frozen=True)
class Link:
    """An edge between two vertices: `count` cables or lanes' bundles, `gbps` of all of them, per direction."""

    a: str
    b: str
    kind: str
    gbps: float | None = None
    us: float | None = None
    count: int = 1
    source: str = DECLARED


@dataclass(frozen=True)
class Hop:
    """A link as it is taken: the place of the link among the node's, and whether from `a` to `b`."""

    link: int
    forward: bool


@dataclass(frozen=True)
class NodeClass:
    """The shape of a node, shared by all nodes that have it. Ids are unique within."""

    name: str
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    hubs: tuple[Hub, ...] = ()
    links: tuple[Link, ...] = ()
    relays: bool = False  # sends to another node by the NIC on the receiver's rail, over NVLink (NCCL's PXN)

    @cached_property
    def vertices(self) -> tuple[str, ...]:
        """The ids of devices, NICs and hubs, in this order."""
        return tuple(one.id for group in (self.devices, self.nics, self.hubs) for one in group)

    @cached_property
    def switch(self) -> Hub | None:
        """The NVSwitch that devices hang on, if there is one: all of a node's are one plane."""
        return next((hub for hub in self.hubs if hub.kind == NVSWITCH), None)

    @cached_property
    def rails(self) -> int:
        """Columns of leaves that its NICs are plugged into."""
        return 1 + max((nic.rail for nic in self.nics), default=-1)

    @property
    def compute_nics(self) -> list[int]:
        """The places of the NICs that collectives may use."""
        return [place for place, nic in enumerate(self.nics) if nic.role == COMPUTE]

    def route(self, start: str, end: str) -> tuple[Hop, ...] | None:
        """Return the way between two vertices, None where there is none.

        Devices meet by the links that are theirs (NVLink, xGMI) where those connect them, and else over the host. xGMI
        is forwarded by devices between, as in the partial mesh of MI250X; NVLink is not.
        """
        devices = {device.id for device in self.devices}
        if {start, end} <= devices | {hub.id for hub in self.hubs if hub.kind == NVSWITCH}:
            found = self._shortest(start, end, self._fabric)
            if found is not None:
                return found
        return self._shortest(start, end, self._host)

    @cached_property
    def nearest_nics(self) -> tuple[int | None, ...]:
        """The place of the NIC that each device uses: the nearest by links, and of those the least used so far."""
        used = dict.fromkeys(self.compute_nics, 0)
        found: list[int | None] = []
        for device in self.devices:
            ways = {place: self.route(device.id, self.nics[place].id) for place in used}
            near = [(len(way), used[place], place) for place, way in ways.items() if way is not None]
            best = min(near, default=None)
            found.append(best[2] if best else None)
            if best:
                used[best[2]] += 1
        return tuple(found)

    @cached_property
    def _fabric(self) -> Mapping[str, list[tuple[str, Hop]]]:
        return self._edges(link for link in range(len(self.links)) if self.links[link].kind in FABRIC)

    @cached_property
    def _host(self) -> Mapping[str, list[tuple[str, Hop]]]:
        return self._edges(link for link in range(len(self.links)) if self.links[link].kind not in FABRIC)

    def _edges(self, places: Iterable[int]) -> dict[str, list[tuple[str, Hop]]]:
        found: dict[str, list[tuple[str, Hop]]] = {}
        for place in places:
            link = self.links[place]
            found.setdefault(link.a, []).append((link.b, Hop(place, True)))
            found.setdefault(link.b, []).append((link.a, Hop(place, False)))
        return found

    def _shortest(self, start: str, end: str, edges: Mapping[str, list[tuple[str, Hop]]]) -> tuple[Hop, ...] | None:
        if start == end:
            return ()
        hubs = {hub.id for hub in self.hubs}
        before: dict[str, tuple[str, Hop]] = {start: (start, Hop(-1, True))}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for there, hop in edges.get(here, ()):
                if there in before:
                    continue
                before[there] = (here, hop)
                if there == end:
                    way: list[Hop] = []
                    while there != start:
                        there, hop = before[there]
                        way.append(hop)
                    return tuple(reversed(way))
                if there in hubs or self.links[hop.link].kind == XGMI:  # nothing else forwards
                    queue.append(there)
        return None
