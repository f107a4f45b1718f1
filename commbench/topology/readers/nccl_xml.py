"""NCCL's and RCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.

Format: NCCL and RCCL, src/graph/xml.cc and topo.cc. Speeds of NICs are in Mb/s, of C2C in MB/s a link; of NVLink and
xGMI only the number of links is told, so that their rates are the library's defaults. Clouds ship files without `gpu`
and `net`: there the class of a PCI device says what it is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.draft import Draft, TooManyParts, bus_address, one_node
from commbench.topology.node import (
    BRIDGE,
    C2C,
    CPU,
    DEFAULT,
    DISCOVERED,
    NVLINK,
    PCIE,
    XGMI,
    Device,
    Hub,
    Nic,
)
from commbench.topology.rates import nvlink_gbps, pcie_gbps, socket_gbps, xgmi_gbps
from commbench.topology.readers._xml import Element, parse
from commbench.topology.reading import Reading, TopologyError

TITLE = "NCCL or RCCL topology XML"

VERSIONS = {"1": "NCCL", "2": "RCCL"}
_NVSWITCH, _POWER_BRIDGE = "0x068000", "0x068001"
_VENDORS = {0x10DE: "nvidia", 0x1002: "amd"}
_GCN = {"910": "gfx90a"}  # HIP numbered it so; the others are their own names


def recognise(text: str) -> float:
    """Return how surely `text` has this format: 0 to 1."""
    return 1.0 if re.search(r"<(system|graphs)\b[^<>]*\bversion=", text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the node that `text` describes, or the nodes where it is that of several hosts."""
    root = parse(text, source)
    if root.tag == "graphs":
        rule = "this is a graph that NCCL searched out (NCCL_GRAPH_DUMP_FILE), not a topology"
        raise TopologyError(source, root.line, f"{rule}: give the file of NCCL_TOPO_DUMP_FILE")
    if root.tag != "system" or root.get("version") not in VERSIONS:
        said = f"<{root.tag} version={root.get('version')!r}>"
        raise TopologyError(source, root.line, f'a topology begins with <system version="1"> (RCCL: "2"), not {said}')
    hosts: dict[str, list[Element]] = {}
    for cpu in root.named("cpu"):
        hosts.setdefault(cpu.get("host_hash"), []).append(cpu)
    if not hosts:
        raise TopologyError(source, root.line, "there is no <cpu> in this topology: it describes nothing")
    readings = []
    for place, cpus in enumerate(hosts.values()):
        try:
            readings.append(_Host(source, root).read(cpus, "node" if len(hosts) == 1 else f"node{place}"))
        except TooManyParts as many:
            raise TopologyError(source, root.line, str(many)) from None
    if len(readings) == 1:
        return readings[0]
    from commbench.topology.merge import merge

    # NCCL puts hosts together where NVLink joins them.
    (cluster,) = merge(readings).clusters
    cluster = replace(cluster, blocks=tuple(replace(block, domain="nvlink") for block in cluster.blocks))
    value = f"{len(readings)} hosts are in this file"
    told = finding("several-hosts", NOTE, source, [root.line], value, "they are taken for one NVLink domain")
    return Reading((cluster,), (*(one for reading in readings for one in reading.findings), told))


@dataclass
class _Host:
    """One host of the file, while it is read."""

    source: str
    root: Element
    draft: Draft = field(default_factory=Draft)
    findings: list[Finding] = field(default_factory=list)
    gpus: dict[str, str] = field(default_factory=dict)  # bus address -> the id of the GPU
    archs: dict[str, str] = field(default_factory=dict)  # id -> architecture
    bridges: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, str, Element]] = field(default_factory=list)  # GPU, its CPU, a link of it
    pcilinks: list[tuple[str, Element]] = field(default_factory=list)
    named: bool = True  # GPUs have a `gpu` element
    networked: bool = True  # NICs have a `net` element

    def read(self, cpus: list[Element], name: str) -> Reading:
        inside = {element.tag for cpu in cpus for element in cpu.walk()}
        self.named, self.networked = "gpu" in inside, "net" in inside
        for cpu in cpus:
            self._cpu(cpu)
        self._fabric()
        self._pcilinks()
        rates = {socket_gbps(cpu.get("arch"), cpu.get("vendor"), *_model(cpu)) for cpu in cpus}
        self.draft.join_cpus(rates.pop() if len(rates) == 1 else None)
        if not self.draft.devices:
            raise TopologyError(self.source, self.root.line, "there is no GPU in this topology")
        if not self.named:
            lines = [self.root.line]
            self._say(
                "no-gpu-tags",
                DOUBT,
                lines,
                "GPUs are told by their PCI class, and numbered as they stand",
                "a file that NCCL_TOPO_DUMP_FILE wrote on the machine has numbers and NVLink",
            )
            self._say(
                "nvlink-unknown",
                DOUBT,
                lines,
                "NVLink not described: unknown, not absent",
                "give the file of NCCL_TOPO_DUMP_FILE, or say `fabric` in the cluster's own YAML",
            )
        return Reading((one_node(self.draft.build(name), name),), tuple(self.findings))

    def _say(self, rule: str, level: str, lines: list[int], value: str, remedy: str) -> None:
        self.findings.append(finding(rule, level, self.source, lines, value, remedy))

    def _cpu(self, cpu: Element) -> None:
        numa = cpu.number("numaid", -1)
        if not 0 <= numa < 1 << 16:
            # NCCL writes -1 for a machine that tells nothing of NUMA: its only CPU.
            numa = 0
        here = self.draft.hub(Hub(f"cpu{numa}", CPU, numa))
        stack = [(child, here) for child in reversed(cpu.children)]
        while stack:
            element, parent = stack.pop()
            if element.tag == "nic":
                self._nets(element, parent, None, numa, "")
            elif element.tag == "pci":
                below = self._pci(element, parent, here, numa)
                if below:
                    stack += [(child, below) for child in reversed(element.children)]

    def _pci(self, pci: Element, parent: str, cpu: str, numa: int) -> str | None:
        """Add a PCI device; return its id where others can be behind it."""
        bus, kind = bus_address(pci.get("busid")), pci.get("class").lower()
        lanes = pci.number("link_width")
        # NCCL takes 16 lanes where the kernel says 0, which is what virtual machines say.
        gbps = pcie_gbps(pci.get("link_speed"), lanes or 16)
        source = DISCOVERED if lanes else DEFAULT
        gpus, nics = pci.named("gpu"), pci.named("nic")
        if gpus or (not self.named and kind.startswith(("0x03", "0x12"))):
            for gpu in gpus or [pci]:
                self._gpu(gpu, pci, bus, parent, cpu, numa, gbps, source)
            self._width(pci, lanes, f"GPU {bus}")
        elif any(nic.named("net") for nic in nics):
            self._card(nics, pci, bus, parent, numa, gbps, source)
        elif not self.networked and kind.startswith("0x02"):
            nic = self.draft.nic(Nic(f"nic{len(self.draft.nics)}", busid=bus, numa=numa, source=DISCOVERED))
            self.draft.link(nic, parent, PCIE, gbps, source=source)
            self._width(pci, lanes, f"NIC {bus}")
        elif kind.startswith("0x06") and kind not in (_NVSWITCH, _POWER_BRIDGE):
            bridge = self.draft.hub(Hub(bus, BRIDGE, numa))
            self.bridges[bus] = bridge
            self.draft.link(bridge, parent, PCIE, gbps, source=source)
            self.pcilinks += [(bridge, link) for link in pci.named("pcilink")]
            return bridge
        return None

    def _gpu(
        self, gpu: Element, pci: Element, bus: str, parent: str, cpu: str, numa: int, gbps: float | None, source: str
    ) -> None:
        vendor = _VENDORS.get(pci.number("vendor"), "")
        gcn = gpu.get("gcn")
        if gcn:
            vendor, arch = "amd", _GCN.get(gcn, gcn if gcn.startswith("gfx") else f"gfx{gcn}")
        else:
            arch = f"sm{gpu.number('sm')}" if gpu.number("sm") else ""
            vendor = "nvidia" if arch else vendor
        number = gpu.number("dev", -1) if gpu is not pci else len(self.draft.devices)
        device = Device(f"gpu{number if number >= 0 else len(self.draft.devices)}", vendor, arch, bus, numa)
        name = self.draft.device(device)
        self.draft.link(name, parent, PCIE, gbps, source=source)
        self.gpus.setdefault(bus, name)
        self.archs[name] = arch
        self.links += [(name, cpu, link) for link in gpu.children if link.tag in ("nvlink", "xgmi", "c2c")]

    def _card(
        self, nics: list[Element], pci: Element, bus: str, parent: str, numa: int, gbps: float | None, source: str
    ) -> None:
        ports = [net for nic in nics for net in nic.named("net")]
        for nic in nics:
            self._nets(nic, parent, gbps, numa, bus, source)
        self._width(pci, pci.number("link_width"), f"NIC {', '.join(net.get('name') for net in ports)}")

    def _nets(
        self, nic: Element, parent: str, gbps: float | None, numa: int, bus: str, source: str = DISCOVERED
    ) -> None:
        for net in nic.named("net"):
            speed = net.number("speed", -1)
            if speed <= 0:
                value = f"{net.get('name')}: speed {net.get('speed') or 'missing'}"
                self._say(
                    "no-net-speed", DOUBT, [net.line], value, "NCCL takes 10 Gb/s for such a NIC; it is unknown here"
                )
            try:
                latency = float(net.get("latency", "0"))
            except ValueError:
                latency = 0.0
            rail = net.number("rail")
            port = Nic(
                net.get("name") or f"nic{len(self.draft.nics)}",
                speed / 1000 if speed > 0 else None,
                latency if 0 < latency < 1e6 else None,
                rail if 0 <= rail < 64 else 0,
                bus,
                numa,
                net.get("guid") if net.number("guid") else "",
                source=DISCOVERED,
            )
            self.draft.link(self.draft.nic(port), parent, PCIE, gbps, source=source)

    def _width(self, pci: Element, lanes: int, what: str) -> None:
        if lanes == 1:
            self._say(
                "x1-slot",
                DOUBT,
                [pci.line],
                f"{what} is on one lane of PCIe ({pci.get('link_speed')})",
                "see that the card sits in a slot of its width, and reseat it",
            )

    def _fabric(self) -> None:
        """Add NVLink, xGMI and C2C: a link between two GPUs stands in the file at both of them."""
        between: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        outside: list[int] = []
        for gpu, cpu, link in self.links:
            count = max(1, min(link.number("count", 1), 1024))
            arch = self.archs[gpu]
            target = link.get("tclass").lower()
            if link.tag == "c2c":
                each = link.number("bw")
                self.draft.link(gpu, cpu, C2C, each * count * 8 / 1000 if each > 0 else None, count=count)
            elif link.tag == "nvlink" and target == _POWER_BRIDGE:
                self.draft.link(gpu, cpu, C2C, count * nvlink_gbps(arch), count=count, source=DEFAULT)
            elif link.tag == "nvlink" and not target.startswith(("0x03", "0x12")):
                switch = self.draft.switch(self.archs.values())
                self.draft.link(gpu, switch, NVLINK, count * nvlink_gbps(arch), count=count, source=DEFAULT)
            elif (other := self.gpus.get(bus_address(link.get("target")))) and other != gpu:
                kind = NVLINK if link.tag == "nvlink" else XGMI
                between.setdefault((kind, *sorted((gpu, other))), []).append((count, link.line))  # type: ignore[arg-type]
            else:
                outside.append(link.line)
        for (kind, a, b), seen in between.items():
            count = min(each for each, _ in seen)
            rate = nvlink_gbps(self.archs[a]) if kind == NVLINK else xgmi_gbps(self.archs[a])
            self.draft.link(a, b, kind, count * rate if rate else None, count=count, source=DEFAULT)
        unlike = [key for key, seen in between.items() if len(seen) != 2 or len({count for count, _ in seen}) != 1]
        if unlike:
            lines = [line for key in unlike for _, line in between[key]]
            pairs = ", ".join(f"{a}-{b}" for _, a, b in unlike[:4])
            self._say(
                "one-sided-link",
                DOUBT,
                lines,
                f"the two ends of {pairs} do not say the same of their link",
                "the smaller number is taken; dump the topology anew",
            )
        if outside:
            self._say(
                "unknown-target",
                DOUBT,
                outside,
                f"{len(outside)} links lead to what is not in the file",
                "they are left out: dump the topology with all GPUs of the node in the job",
            )
        if rates := Counter(link.kind for link in self.draft.links if link.source == DEFAULT and link.kind != PCIE):
            what = " and ".join(sorted(rates))
            self._say(
                "default-rates",
                NOTE,
                [],
                f"the file has the number of {what} links, not their rates",
                "the library's defaults are taken; measure with python -m commbench.pairs",
            )

    def _pcilinks(self) -> None:
        done: set[frozenset[str]] = set()
        for bridge, link in self.pcilinks:
            other = self.bridges.get(bus_address(link.get("target")))
            if other and other != bridge and frozenset((bridge, other)) not in done:
                done.add(frozenset((bridge, other)))
                self.draft.link(bridge, other, PCIE)  # of a switch that shows as several: as fast as it is inside


def _model(cpu: Element) -> tuple[int, int]:
    return cpu.number("familyid"), cpu.number("modelid")
