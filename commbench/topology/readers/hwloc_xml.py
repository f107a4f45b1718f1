"""hwloc's XML, as `lstopo --of xml` writes it: CPUs, NUMA nodes, the PCI tree, GPUs and NICs by their OS devices.

Format: hwloc 2 and 3, hwloc.dtd and hwloc/export; link speeds are GB/s per direction, those of NVLink and xGMI MB/s.
A GPU is a PCI device that a driver gave a CUDA, NVML, ROCm SMI, Level Zero or OpenCL device; a machine without any has
its cores as devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.draft import Draft, TooManyParts, bus_address, one_node
from commbench.topology.node import (
    BUS,
    COMPUTE,
    CPU,
    DISCOVERED,
    MEMORY,
    NVLINK,
    STORAGE,
    XGMI,
    Device,
    Hub,
    Nic,
)
from commbench.topology.pci import Slot, hang
from commbench.topology.rates import socket_gbps
from commbench.topology.readers._xml import Element, parse
from commbench.topology.reading import Reading, TopologyError

TITLE = "hwloc XML of lstopo"

_DOCTYPE = re.compile(r'<!DOCTYPE topology SYSTEM "hwloc2?\.dtd">')
_GPU = ("cuda", "nvml", "rsmi", "ze", "opencl")  # the first that a GPU has names it
_PCI_TYPE = re.compile(r"([\da-f]{4}) \[([\da-f]{4}):([\da-f]{4})\]", re.IGNORECASE)
_VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
_DISPLAY = ("0302", "0380", "1200")  # 3D and other displays, accelerators: what GPUs of servers are
# osdev_type: a number in version 2, a set of bits from version 3 on (hwloc.h, hwloc_obj_osdev_type_t).
_NETWORK, _RDMA = (2, 1 << 4), (3, 1 << 5)


def recognise(text: str) -> float:
    """Return how surely `text` has this format: 0 to 1."""
    return 1.0 if re.search(r"<topology\b[^<>]*>\s*<object\b", text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the node that `text` describes."""
    root = parse(_DOCTYPE.sub("", text, count=1), source)
    major = root.get("version").partition(".")[0]
    if root.tag != "topology" or major not in ("2", "3"):
        said = f"version {root.get('version') or '1'}" if root.tag == "topology" else f"<{root.tag}>"
        raise TopologyError(source, root.line, f"hwloc's XML of version 2 or 3 is read, not {said}: lstopo of hwloc 2")
    try:
        return _Machine(source, int(major)).read(root)
    except TooManyParts as many:
        raise TopologyError(source, root.line, str(many)) from None


@dataclass
class _Machine:
    source: str
    version: int
    draft: Draft = field(default_factory=Draft)
    findings: list[Finding] = field(default_factory=list)
    roots: list[tuple[Slot, Element]] = field(default_factory=list)  # below a host bridge, and what that belongs to
    ends: dict[str, str] = field(default_factory=dict)  # "OSDev:802" -> id of a GPU, or "nvswitch"
    silent: list[Element] = field(default_factory=list)  # GPUs without a driver's device
    switches: list[Element] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)  # bus address -> how many devices say it is theirs
    rdma: bool = False

    def read(self, root: Element) -> Reading:
        objects = [(element, parent) for element, parent in _objects(root)]
        pci = [element for element, _ in objects if element.get("type") == "PCIDev"]
        by_driver = any(self._gpu_device(one) for one in pci)
        self.rdma = any(self._is(one, _RDMA) for one, _ in objects)
        numa = [element for element, _ in objects if element.get("type") == "NUMANode"]
        gpus = by_driver or any(_class(one)[0] in _DISPLAY and _class(one)[1] in ("10de", "1002") for one in pci)
        for node in numa:
            number = node.number("os_index")
            self.draft.hub(Hub(f"{'cpu' if gpus else 'bus'}{number}", CPU if gpus else BUS, number))
        for element, parent in objects:
            if parent is not None and _is_pci(element) and not _is_pci(parent):
                slot = self._slot(element, _nodes(parent), by_driver)
                self.roots.append((slot, parent))
        for slot, parent in self.roots:
            hang(slot, self._cpu(parent, gpus), self.draft, _nodes(parent))
        if not gpus:
            cores = [element for element, _ in objects if element.get("type") == "Core"]
            self.draft.cores(_nodes(core) for core in cores)
        if not self.draft.devices:
            raise TopologyError(self.source, root.line, "there is neither a GPU nor a core in this XML")
        self.draft.join_cpus(_sockets(objects) if gpus else None)
        self._distances(root)
        self._say_of_gpus(by_driver)
        for bus, times in self.seen.items():
            if times > 1:
                self._say(
                    "repeated-address",
                    DOUBT,
                    [],
                    f"{times} PCI devices have the address {bus}",
                    "they are told apart by where they stand",
                )
        told = [info for info in root.walk() if info.tag == "info" and info.get("name") == "HostName"]
        host = told[0].get("value") if told and re.fullmatch(r"[\w.-]{1,255}", told[0].get("value")) else "node"
        return Reading((one_node(self.draft.build("node"), host),), tuple(self.findings))

    def _say(self, rule: str, level: str, lines: list[int], value: str, remedy: str) -> None:
        self.findings.append(finding(rule, level, self.source, lines, value, remedy))

    def _is(self, element: Element, kind: tuple[int, int]) -> bool:
        number = element.number("osdev_type", -1)
        if element.get("type") != "OSDev" or number < 0:
            return False
        return number == kind[0] if self.version == 2 else bool(number & kind[1])

    def _gpu_device(self, pci: Element) -> Element | None:
        """Return the OS device that names a GPU."""
        below = [one for one in pci.named("object") if one.get("type") == "OSDev"]
        for kind in _GPU:
            for one in below:
                if re.fullmatch(rf"{kind}\d+(d\d+)?", one.get("name")):
                    return one
        return None

    def _cpu(self, parent: Element, gpus: bool) -> str:
        """Return the hub of the CPU that PCI devices below `parent` hang on."""
        number = _nodes(parent)
        found = next((hub.id for hub in self.draft.hubs if hub.numa == number and hub.kind in (CPU, BUS)), None)
        if found and number is not None:
            return found
        # Of a package with several NUMA nodes, or of the whole machine: a hub that is near to each of them.
        name = f"{parent.get('type').lower() or 'machine'}{parent.get('os_index')}"
        if not any(hub.id == name for hub in self.draft.hubs):
            self.draft.hub(Hub(name, CPU if gpus else BUS))
            bits = _bits(parent.get("nodeset"))
            for hub in [hub for hub in self.draft.hubs if hub.numa is not None and hub.kind in (CPU, BUS)]:
                if not bits or hub.numa in bits:
                    self.draft.link(name, hub.id, MEMORY)
        return name

    def _slot(self, element: Element, numa: int | None, by_driver: bool) -> Slot:
        """Return the PCI device or bridge, with all behind it."""
        bus = bus_address(element.get("pci_busid"))
        try:
            speed = float(element.get("pci_link_speed") or "0")
        except ValueError:
            speed = 0.0
        slot = Slot(bus, 8 * speed if 0 < speed < 1000 else None)  # 0: unknown
        if element.get("type") == "PCIDev":
            self.seen[bus] = self.seen.get(bus, 0) + 1
            self._parts(element, slot, bus, numa, by_driver)
        for child in element.named("object"):
            if _is_pci(child):
                slot.behind.append(self._slot(child, numa, by_driver))
        return slot

    def _parts(self, pci: Element, slot: Slot, bus: str, numa: int | None, by_driver: bool) -> None:
        kind, vendor, _ = _class(pci)
        device = self._gpu_device(pci)
        if device or (not by_driver and kind in _DISPLAY and vendor in ("10de", "1002")):
            name = device.get("name") if device else f"gpu{len(self.draft.devices)}"
            gpu = self.draft.device(Device(name, _VENDORS.get(vendor, ""), busid=bus, numa=numa))
            slot.parts.append(gpu)
            for one in pci.named("object"):
                self.ends[f"OSDev:{one.number('gp_index', -1)}"] = gpu
            self.ends[f"PCIDev:{pci.number('gp_index', -1)}"] = gpu
        elif kind in _DISPLAY and vendor in ("10de", "1002"):
            self.silent.append(pci)
        elif pci.get("subtype") == "NVSwitch":
            self.ends[f"PCIDev:{pci.number('gp_index', -1)}"] = "nvswitch"
            self.switches.append(pci)
        elif kind.startswith("02"):
            below = pci.named("object")
            ports = [one for one in below if self._is(one, _RDMA)] or [one for one in below if self._is(one, _NETWORK)]
            for port in ports:
                # Collective libraries leave plain Ethernet alone where there are RDMA ports.
                role = COMPUTE if self._is(port, _RDMA) or not self.rdma else STORAGE
                guid = next((info.get("value") for info in port.named("info") if info.get("name") == "NodeGUID"), "")
                name = port.get("name") or f"nic{len(self.draft.nics)}"
                nic = Nic(name, busid=bus, numa=numa, guid=guid, role=role, source=DISCOVERED)
                slot.parts.append(self.draft.nic(nic))

    def _say_of_gpus(self, by_driver: bool) -> None:
        if self.silent:
            lines = [pci.line for pci in self.silent]
            shown = ", ".join(pci.get("pci_busid") for pci in self.silent[:4])
            self._say(
                "no-driver-device",
                DOUBT,
                lines,
                f"GPUs that no driver has a device for: {shown}",
                "they are left out: no rank can use them",
            )
        gpus = [device for device in self.draft.devices if device.vendor != "cpu"]
        if gpus and not by_driver:
            self._say(
                "by-class",
                DOUBT,
                [],
                "GPUs are told by their PCI class: lstopo knew neither CUDA nor ROCm",
                "an hwloc built with them numbers the GPUs and knows NVLink",
            )
        lost = [pci for pci in self.switches if _class(pci)[1] != "10de"]
        if lost:
            shown = ", ".join(pci.get("pci_busid") for pci in lost[:4])
            value = f"{len(lost)} of {len(self.switches)} NVSwitches does not say what it is: {shown}"
            self._say(
                "silent-nvswitch",
                DOUBT,
                [pci.line for pci in lost],
                value,
                "see the kernel's log: it may have fallen off the bus",
            )
        opencl = [device.id for device in gpus if device.id.startswith("opencl")]
        if opencl:
            self._say(
                "opencl-only",
                DOUBT,
                [],
                f"seen through OpenCL only: {', '.join(opencl)}",
                "NCCL and RCCL need CUDA or ROCm there",
            )
        if len(gpus) > 1 and not any(link.kind in (NVLINK, XGMI) for link in self.draft.links):
            self._say(
                "nvlink-unknown",
                NOTE,
                [],
                "NVLink and xGMI not described: unknown, not absent",
                "hwloc tells them if it is built with NVML or ROCm SMI",
            )

    def _distances(self, root: Element) -> None:
        """Add NVLink and xGMI: matrices of bandwidths between OS devices and NVSwitches."""
        for matrix in root.children:
            kind = {"NVLinkBandwidth": NVLINK, "XGMIBandwidth": XGMI}.get(matrix.get("name"))
            if kind is None or not matrix.tag.startswith("distances2"):
                continue
            names = " ".join(one.text for one in matrix.named("indexes")).split()
            prefix = "" if matrix.tag == "distances2hetero" else f"{matrix.get('type')}:"
            values = " ".join(one.text for one in matrix.named("u64values")).split()
            if len(values) != len(names) ** 2 or not all(value.isdecimal() and len(value) < 10 for value in values):
                self._say(
                    "bad-matrix",
                    DOUBT,
                    [matrix.line],
                    f"{matrix.get('name')} has {len(values)} values for {len(names)} ends",
                    "it is left out: write the XML anew",
                )
                continue
            ends = [self.ends.get(f"{prefix}{name}", "") for name in names]
            self._links(kind, ends, [int(value) for value in values])

    def _links(self, kind: str, ends: list[str], values: list[int]) -> None:
        size = len(ends)
        for row, a in enumerate(ends):
            if not a or a == "nvswitch":
                continue
            rates = values[row * size : (row + 1) * size]
            switched = [rate for rate, b in zip(rates, ends, strict=True) if b == "nvswitch" and rate]
            if switched:
                self.draft.nvlinks([a], sum(switched) * 8 / 1000, len(switched), DISCOVERED)
            for column in range(row + 1, size):
                b = ends[column]
                if b and b not in (a, "nvswitch") and rates[column]:
                    self.draft.link(a, b, kind, rates[column] * 8 / 1000)


def _objects(root: Element) -> list[tuple[Element, Element | None]]:
    """Return every object with the object that it is in, in the order of the file."""
    found: list[tuple[Element, Element | None]] = []
    stack: list[tuple[Element, Element | None]] = [(one, None) for one in reversed(root.named("object"))]
    while stack:
        element, parent = stack.pop()
        found.append((element, parent))
        stack += [(child, element) for child in reversed(element.named("object"))]
    return found


def _sockets(objects: list[tuple[Element, Element | None]]) -> float | None:
    """Return the default between CPUs of this make."""
    for element, _ in objects:
        facts = {info.get("name"): info for info in element.named("info")}
        if "CPUVendor" in facts and {"CPUFamilyNumber", "CPUModelNumber"} <= facts.keys():
            family, model = facts["CPUFamilyNumber"].number("value"), facts["CPUModelNumber"].number("value")
            return socket_gbps("x86_64", facts["CPUVendor"].get("value"), family, model)
    return None


def _is_pci(element: Element) -> bool:
    return element.get("type") in ("Bridge", "PCIDev")


def _class(pci: Element) -> tuple[str, str, str]:
    """Return class, vendor and device of a PCI device, in hexadecimal."""
    found = _PCI_TYPE.match(pci.get("pci_type"))
    return (found[1].lower(), found[2].lower(), found[3].lower()) if found else ("", "", "")


def _bits(text: str) -> set[int]:
    """Return the numbers in a bitmap such as 0x00000003 or 0xf...f,0x1."""
    words = text.split(",")
    if len(words) > 64 or not all(re.fullmatch(r"(0x)?[\da-fA-F]{1,8}", word) for word in words):
        return set()
    whole = 0
    for word in words:
        whole = whole << 32 | int(word, 16)
    return {bit for bit in range(whole.bit_length()) if whole >> bit & 1}


def _nodes(element: Element) -> int | None:
    """Return the NUMA node that an object is on, None where it is not one."""
    bits = _bits(element.get("nodeset"))
    return next(iter(bits)) if len(bits) == 1 else None
