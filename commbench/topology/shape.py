"""The short form of a node: what most nodes are is said in a few figures, and becomes the graph of a NodeClass.

    Shape(devices=8, vendor="nvidia", fabric=NVSWITCH, fabric_link=Figures(3600, 0.3), pcie=Figures(512, 0.5),
          sockets=2, bridges=8, nics=8, nic=Figures(400, 0.7), rails=8).node_class("dgx-h100")

Devices, NICs and PCIe switches are dealt to what is above them in equal shares, in their order: the first half of eight
devices is on the first of two sockets. What is not so is listed in the long form, or added to this one as `links`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from commbench.topology.node import (
    BRIDGE,
    BUS,
    CPU,
    DECLARED,
    MEMORY,
    NVLINK,
    NVSWITCH,
    PCIE,
    SOCKET,
    XGMI,
    Device,
    Hub,
    Link,
    Nic,
    NodeClass,
)

MOST = 256  # of each kind in a short form: a mesh of more is a slip
MESH, NONE = "mesh", "none"
FABRICS = (NVSWITCH, MESH, BUS, NONE)  # what joins devices, beside the host


@dataclass(frozen=True)
class Figures:
    """What is known of links that are alike: Gb/s per direction of all cables of one link, microseconds one way."""

    gbps: float | None = None
    us: float | None = None
    cables: int = 1
    source: str = DECLARED


@dataclass(frozen=True)
class Shape:
    """A node in few words."""

    devices: int = 0
    vendor: str = ""
    arch: str = ""
    fabric: str = NONE
    fabric_link: Figures = Figures()  # of a device to the NVSwitch or bus, or of each pair of a mesh
    reduces: bool = False  # the NVSwitch
    reduces_us: float | None = None  # what adding up takes; of the source that the fabric's figures have
    pcie: Figures | None = None  # None: nothing is known of the host, and there are no NICs
    sockets: int = 1
    socket: Figures = Figures()
    bridges: int = 0  # PCIe switches; 0: devices and NICs are plugged into the sockets
    nics: int = 0
    nic: Figures = Figures()
    rails: int = 1
    relays: bool = False
    links: tuple[Link, ...] = ()  # beside those that follow from the above

    def node_class(self, name: str) -> NodeClass:
        """Return the graph that this stands for."""
        prefix = "core" if self.vendor == "cpu" else "gpu"
        numa = [place * self.sockets // max(1, self.devices) if self.pcie else None for place in range(self.devices)]
        devices = tuple(
            Device(f"{prefix}{place}", self.vendor, self.arch, numa=numa[place]) for place in range(self.devices)
        )
        nics = tuple(
            Nic(
                f"nic{place}",
                self.nic.gbps,
                self.nic.us,
                place % self.rails,
                numa=place * self.sockets // self.nics,
                source=self.nic.source,
            )
            for place in range(self.nics)
        )
        ids = [device.id for device in devices]
        links = (*self._fabric(ids), *self._host(ids, [nic.id for nic in nics]), *self.links)
        return NodeClass(name, devices, nics, tuple(self._hubs()), links, self.relays)

    def _hubs(self) -> Iterator[Hub]:
        if self.fabric == NVSWITCH:
            source = self.fabric_link.source if self.reduces_us is not None else DECLARED
            yield Hub("nvswitch", NVSWITCH, reduces=self.reduces, us=self.reduces_us, source=source)
        if self.fabric == BUS:
            yield Hub("memory", BUS)
        if self.pcie:
            for place in range(self.bridges):
                yield Hub(f"bridge{place}", BRIDGE, numa=place * self.sockets // self.bridges)
            for place in range(self.sockets):
                yield Hub(f"cpu{place}", CPU, numa=place)

    def _fabric(self, devices: list[str]) -> Iterator[Link]:
        it = self.fabric_link
        kind = MEMORY if self.fabric == BUS else XGMI if self.vendor == "amd" else NVLINK
        if self.fabric == MESH:
            for a, b in combinations(devices, 2):
                yield Link(a, b, kind, it.gbps, it.us, it.cables, it.source)
        elif self.fabric != NONE:
            for device in devices:
                yield Link(device, "memory" if self.fabric == BUS else "nvswitch", kind, *_values(it))

    def _host(self, devices: list[str], nics: list[str]) -> Iterator[Link]:
        if not self.pcie:
            return
        above, kind = (self.bridges, "bridge") if self.bridges else (self.sockets, "cpu")
        for group in (devices, nics):
            for place, one in enumerate(group):
                yield Link(one, f"{kind}{place * above // len(group)}", PCIE, *_values(self.pcie))
        for place in range(self.bridges):
            yield Link(f"bridge{place}", f"cpu{place * self.sockets // self.bridges}", PCIE, *_values(self.pcie))
        for a, b in combinations(range(self.sockets), 2):
            yield Link(f"cpu{a}", f"cpu{b}", SOCKET, *_values(self.socket))


def shape_of(node: NodeClass) -> Shape | None:
    """Return the shape that stands for a node, None where only the long form says it.

    The shape is guessed from the first of each kind, and kept if it becomes the very same graph.
    """
    hubs = [hub.kind for hub in node.hubs]
    first = {kind: next((link for link in node.links if link.kind == kind), None) for kind in (PCIE, SOCKET)}
    device = node.devices[0] if node.devices else Device("")
    fabric = NVSWITCH if NVSWITCH in hubs else BUS if BUS in hubs else MESH
    link = next((link for link in node.links if link.a == device.id and link.kind in (NVLINK, XGMI, MEMORY)), None)
    pcie = _figures(first[PCIE]) if first[PCIE] else Figures() if CPU in hubs else None
    guess = Shape(
        devices=len(node.devices),
        vendor=device.vendor,
        arch=device.arch,
        fabric=fabric,
        fabric_link=_figures(link),
        reduces=any(hub.reduces for hub in node.hubs),
        reduces_us=node.switch.us if node.switch else None,
        pcie=pcie,
        sockets=hubs.count(CPU) or 1,
        socket=_figures(first[SOCKET]) if hubs.count(CPU) > 1 else Figures(),
        bridges=hubs.count(BRIDGE),
        nics=len(node.nics),
        nic=Figures(node.nics[0].gbps, node.nics[0].us, source=node.nics[0].source) if node.nics else Figures(),
        rails=max(1, node.rails),
        relays=node.relays,
    )
    if max(guess.devices, guess.nics, guess.bridges, guess.sockets) > MOST:
        return None
    plain = replace(guess, fabric=NONE, fabric_link=Figures(), reduces=False, reduces_us=None)
    for one in (guess, plain) if link or fabric != MESH else (plain,):
        made = one.node_class(node.name)
        whole = replace(one, links=node.links[len(made.links) :])
        if (whole.nics == 0 or whole.pcie) and whole.node_class(node.name) == node:
            return whole
    return None


def _values(it: Figures) -> tuple[float | None, float | None, int, str]:
    return it.gbps, it.us, it.cables, it.source


def _figures(link: Link | None) -> Figures:
    return Figures(link.gbps, link.us, link.count, link.source) if link else Figures()
