"""This machine as a node: its GPUs and NICs, the PCIe tree, NVLink and xGMI, its place among Slurm's switches.

    reading = discover()                  # of the machine that it runs on
    merge(comm.gather(reading) or [])     # on rank 0 of a launch: one cluster of all nodes

Sources: the kernel's files (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband, KFD's topology), nvidia-smi,
rocm-smi where KFD says nothing, SLURM_TOPOLOGY_ADDR or scontrol in a job, lstopo where there is no sysfs. Nothing of it
has to be there: what is not told is unknown, and what should have been told is a finding. A machine without GPUs has
its cores as devices. A Reading is plain data, which ranks may pickle; several ranks of a host may send theirs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from commbench.errors import UsageError
from commbench.results.findings import DOUBT, NOTE, Finding
from commbench.system import System
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.draft import Draft, TooManyParts, bus_address
from commbench.topology.node import (
    BUS,
    COMPUTE,
    CPU,
    DEFAULT,
    DISCOVERED,
    MEMORY,
    NVLINK,
    STORAGE,
    XGMI,
    Device,
    Hub,
    Nic,
    NodeClass,
)
from commbench.topology.pci import Slot, hang
from commbench.topology.rates import nvlink_gbps, pcie_gbps, socket_gbps, xgmi_gbps
from commbench.topology.readers import hwloc_xml, nvidia_smi, rocm_smi, slurm_addr
from commbench.topology.reading import Reading, TopologyError
from commbench.units import expand_ranges

FORMAT = "discovered"
PATIENCE = 20.0  # seconds for one command: a broken driver lets nvidia-smi hang

_ADDRESS = re.compile(r"[\da-f]{4,8}:[\da-f]{2}:[\da-f]{2}\.[\da-f]", re.IGNORECASE)
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_GPU_CLASSES = ("0x0302", "0x0380", "0x1200")
_XGMI_TYPE = 11  # of KFD's links: HSA_IOLINK_TYPE_XGMI


def discover(system: System | None = None) -> Reading:
    """Return what `system`, by default this machine, says of itself: one node in a cluster.

    TopologyError where it has neither GPUs nor cores that can be seen.
    """
    machine = _Discovery(System(patience=PATIENCE) if system is None else system)
    return machine.read()


@dataclass(frozen=True)
class _Gpu:
    busid: str
    vendor: str
    arch: str = ""
    index: int | None = None  # as its vendor's command numbers it
    node: int | None = None  # as KFD numbers it


@dataclass
class _Discovery:
    system: System
    draft: Draft = field(default_factory=Draft)
    findings: list[Finding] = field(default_factory=list)
    roots: dict[tuple[str, int | None], Slot] = field(default_factory=dict)  # host bridge and NUMA node
    slots: dict[str, Slot] = field(default_factory=dict)

    def read(self) -> Reading:
        host = self._host()
        try:
            node = self._node(host)
        except TooManyParts as many:
            raise TopologyError(host, None, str(many)) from None
        switches, leaves, block = self._switches(host)
        cluster = Cluster(classes=(node,), switches=switches, blocks=(Block((host,), leaves, node.name, name=block),))
        return Reading((cluster,), tuple(self.findings), FORMAT, host)

    def _say(self, rule: str, level: str, value: str, remedy: str) -> None:
        self.findings.append(Finding(rule, level, self._host(), (), 0, value, remedy))

    def _host(self) -> str:
        environment = self.system.environment
        return environment.get("SLURMD_NODENAME") or self.system.read("/proc/sys/kernel/hostname") or "node"

    def _node(self, host: str) -> NodeClass:
        gpus = [*self._nvidia(), *self._amd()]
        kind = CPU if gpus else BUS
        cpus = self._cpus()
        if not gpus and not any(cpus.values()):
            return self._by_lstopo(host)
        for numa in cpus:
            self.draft.hub(Hub(f"{kind}{numa}", kind, numa))
        names: dict[str, str] = {}
        for place, gpu in enumerate(gpus):
            number = place if gpu.index is None else gpu.index
            device = Device(f"gpu{number}", gpu.vendor, gpu.arch, gpu.busid, self._numa(gpu.busid))
            names[gpu.busid] = self.draft.device(device)
            self._put(names[gpu.busid], gpu.busid)
        self._nics()
        for (_, on), root in self.roots.items():
            hang(root, self._cpu(on, kind), self.draft, on)
        if not gpus:
            self.draft.cores(numa for numa, cores in cpus.items() for _ in range(cores))
        self.draft.join_cpus(self._sockets() if gpus else None)
        self._nvlink(gpus, names)
        self._xgmi(gpus, names)
        return self.draft.build("node")

    # What the machine has

    def _cpus(self) -> dict[int, int]:
        """Return how many cores each NUMA node has, 0 where only its memory is known."""
        system = self.system
        numa_of: dict[int, int] = {}
        found: dict[int, int] = {}
        for folder in system.glob("/sys/devices/system/node/node[0-9]*"):
            numa = int(re.sub(r"\D", "", os.path.basename(folder)))
            cpus = _numbers(system.read(f"{folder}/cpulist"))
            if cpus:  # a node without CPUs is memory, or a GPU's
                found[numa] = 0
                numa_of |= dict.fromkeys(cpus, numa)
        cores: dict[str, int] = {}
        for folder in system.glob("/sys/devices/system/cpu/cpu[0-9]*"):
            cpu = int(re.sub(r"\D", "", os.path.basename(folder)))
            siblings = system.read(f"{folder}/topology/thread_siblings_list")
            if siblings and system.read(f"{folder}/online") != "0":
                cores.setdefault(siblings, numa_of.get(cpu, 0))
        for on in cores.values():
            found[on] = found.get(on, 0) + 1
        return dict(sorted(found.items())) or {0: 0}

    def _sockets(self) -> float | None:
        """Return the default between CPUs of this make."""
        first = self.system.read("/proc/cpuinfo").partition("\n\n")[0]
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
        family, model = facts.get("cpu family", ""), facts.get("model", "")
        if not (family.isdecimal() and model.isdecimal()):
            return None
        return socket_gbps("x86_64", facts.get("vendor_id", ""), int(family), int(model))

    def _by_class(self, vendor: str) -> list[str]:
        """Return the bus addresses of a vendor's GPUs."""
        found = []
        for folder in self.system.glob("/sys/bus/pci/devices/*"):
            mine = _VENDORS.get(self.system.read(f"{folder}/vendor")) == vendor
            if mine and self.system.read(f"{folder}/class").startswith(_GPU_CLASSES):
                found.append(os.path.basename(folder))
        return found

    def _nvidia(self) -> list[_Gpu]:
        there = self._by_class("nvidia")
        if not there and not self.system.commands("nvidia-smi"):
            return []
        found: list[_Gpu] = []
        for fields in ("index,pci.bus_id,compute_cap", "index,pci.bus_id"):  # drivers before 510 know no compute_cap
            answer = self.system.run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
            for line in answer.text.splitlines():
                row = re.match(r"(\d+), *([\da-fA-F:.]+)(?:, *(\d+)\.(\d))?\s*$", line)
                if row:
                    arch = f"sm{row[3]}{row[4]}" if row[3] else ""
                    found.append(_Gpu(bus_address(row[2]), "nvidia", arch, int(row[1])))
            if found or "not answer" in answer.trouble:
                break
        if not found and there:
            trouble = answer.trouble or "it lists none"
            self._say(
                "gpus-without-driver",
                DOUBT,
                f"{len(there)} NVIDIA GPUs on the bus, but nvidia-smi: {trouble}",
                "mend the driver; python -m commbench.doctor says more",
            )
            return [_Gpu(bus, "nvidia") for bus in there]
        return found

    def _amd(self) -> list[_Gpu]:
        found = []
        for folder in self.system.glob("/sys/class/kfd/kfd/topology/nodes/*"):
            facts = self._facts(f"{folder}/properties")
            if self.system.read(f"{folder}/gpu_id") in ("", "0") or not facts.get("simd_count"):
                continue
            place = facts.get("location_id", 0)  # bus, device, function
            bus = f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"
            found.append(_Gpu(bus, "amd", _gfx(facts.get("gfx_target_version", 0)), node=_last_number(folder)))
        found.sort(key=lambda gpu: gpu.node or 0)
        there = self._by_class("amd")
        if not found and there:
            self._say(
                "gpus-without-driver",
                DOUBT,
                f"{len(there)} AMD GPUs on the bus, but KFD knows none",
                "load amdgpu, or see that the container has /dev/kfd",
            )
            found = [_Gpu(bus, "amd") for bus in there]
        return found

    def _nics(self) -> None:
        system = self.system
        rdma = system.glob("/sys/class/infiniband/*")
        taken = set()
        for folder in rdma:
            bus = self._bus(f"{folder}/device")
            taken.add(bus)
            for port in system.glob(f"{folder}/ports/*"):
                number = os.path.basename(port)
                name = os.path.basename(folder) + (f":{number}" if number != "1" else "")
                state = system.read(f"{port}/state")
                if state and "ACTIVE" not in state:
                    self._say("port-down", DOUBT, f"the port {name} is {state}", "see its cable and its subnet manager")
                    continue
                rate = re.match(r"([\d.]+) Gb/sec", system.read(f"{port}/rate"))
                guid = system.read(f"{folder}/node_guid")
                self._nic(name, float(rate[1]) if rate else None, bus, COMPUTE, guid)
        role = STORAGE if self.draft.nics else COMPUTE  # libraries leave plain Ethernet alone beside RDMA ports
        for folder in system.glob("/sys/class/net/*"):
            if not os.path.lexists(system.path(f"{folder}/device")):  # lo, bridges, VLANs
                continue
            bus, state = self._bus(f"{folder}/device"), system.read(f"{folder}/operstate")
            if (bus and bus in taken) or state == "down":
                continue
            speed = system.read(f"{folder}/speed")
            gbps = int(speed) / 1000 if speed.isdecimal() and 0 < int(speed) < 1 << 31 else None
            self._nic(os.path.basename(folder), gbps, bus, role, "")

    def _nic(self, name: str, gbps: float | None, bus: str, role: str, guid: str) -> None:
        numa = self._numa(bus)
        nic = Nic(name, gbps, busid=bus, numa=numa, guid=guid, role=role, source=DISCOVERED)
        self._put(self.draft.nic(nic), bus)

    # The PCI tree

    def _chain(self, path: str) -> list[str]:
        """Return the bus addresses from the root port down to what `path` is."""
        parts = os.path.realpath(self.system.path(path)).split(os.sep)
        return [part.lower() for part in parts if _ADDRESS.fullmatch(part)]

    def _bus(self, path: str) -> str:
        return next(iter(reversed(self._chain(path))), "")

    def _numa(self, bus: str) -> int | None:
        text = self.system.read(f"/sys/bus/pci/devices/{bus}/numa_node") if bus else ""
        return int(text) if text.isdecimal() else None  # -1: not known

    def _put(self, part: str, bus: str) -> None:
        """Put a device or NIC into its slot, and the slot into the tree."""
        chain = self._chain(f"/sys/bus/pci/devices/{bus}") if bus else []
        numa = self._numa(bus)
        real = os.path.realpath(self.system.path(f"/sys/bus/pci/devices/{bus}"))
        bridge = re.search(r"pci[\da-f]{4,8}:[\da-f]{2}", real)
        above = self.roots.setdefault((bridge[0] if bridge else "", numa), Slot(""))
        for address in chain or [bus]:
            slot = self.slots.get(address) if address else None
            if slot is None:
                slot = Slot(address, self._rate(address) if address else None)
                self.slots[address or part] = slot
                above.behind.append(slot)
            above = slot
        above.parts.append(part)
        self._trained(part, bus)

    def _rate(self, bus: str) -> float | None:
        """Return what the link of a PCI device can carry: its lanes as they are, at the speed that both ends can.

        GPUs lower the speed when they are idle, never the lanes.
        """
        folder = f"/sys/bus/pci/devices/{bus}"
        lanes = self.system.read(f"{folder}/current_link_width")
        speeds = [self.system.read(f"{folder}/max_link_speed")]
        chain = self._chain(folder)
        if len(chain) > 1:
            speeds.append(self.system.read(f"/sys/bus/pci/devices/{chain[-2]}/max_link_speed"))
        rates = [pcie_gbps(speed, int(lanes)) for speed in speeds if lanes.isdecimal()]
        return min((rate for rate in rates if rate is not None), default=None)

    def _trained(self, part: str, bus: str) -> None:
        folder = f"/sys/bus/pci/devices/{bus}"
        now, most = (self.system.read(f"{folder}/{which}_link_width") for which in ("current", "max"))
        if now.isdecimal() and most.isdecimal() and 0 < int(now) < int(most) <= 32:
            self._say(
                "narrow-slot",
                DOUBT,
                f"{part} has {now} of its {most} PCIe lanes",
                "see that the card sits in a slot of its width, and reseat it",
            )

    def _cpu(self, numa: int | None, kind: str) -> str:
        """Return the hub that devices on `numa` hang on."""
        cpus = [hub for hub in self.draft.hubs if hub.kind == kind and hub.numa is not None]
        same = next((hub.id for hub in cpus if hub.numa == numa or len(cpus) == 1), None)
        if same:
            return same
        if any(hub.id == "machine" for hub in self.draft.hubs):
            return "machine"
        self._say(
            "numa-unknown",
            NOTE,
            "the kernel does not say which NUMA node some PCI devices are on",
            "common in virtual machines: they count as near to all",
        )
        self.draft.hub(Hub("machine", kind))
        for hub in cpus:
            self.draft.link("machine", hub.id, MEMORY)
        return "machine"

    # NVLink and xGMI

    def _nvlink(self, gpus: list[_Gpu], names: dict[str, str]) -> None:
        mine = {f"gpu{gpu.index}": gpu for gpu in gpus if gpu.vendor == "nvidia" and gpu.index is not None}
        if len(mine) < 2:
            return
        answer = self.system.run("nvidia-smi", "topo", "-m")
        try:
            matrix = nvidia_smi.read(answer.text, "nvidia-smi topo -m")
        except TopologyError as wrong:
            self._say(
                "nvlink-unknown",
                DOUBT,
                f"NVLink is unknown, not absent: {answer.trouble or wrong}",
                "run nvidia-smi topo -m by hand",
            )
            return
        rates = self._nvlink_rates()
        for link in matrix.cluster.classes[0].links:
            gpu = mine.get(link.a)
            if link.kind != NVLINK or gpu is None:
                continue
            told = rates.get(gpu.index)
            each, source = (told, DISCOVERED) if told else (nvlink_gbps(gpu.arch), DEFAULT)
            if link.b in mine:
                other = names[mine[link.b].busid]
            else:
                other = self.draft.switch(one.arch for one in mine.values())
            self.draft.link(names[gpu.busid], other, NVLINK, each * link.count, count=link.count, source=source)
        self.findings += [one for one in matrix.findings if one.rule in ("incomplete", "unsymmetric", "short-rows")]

    def _nvlink_rates(self) -> dict[int | None, float]:
        """Return what one NVLink of each GPU carries, by its index: nvidia-smi says GB/s per direction."""
        rates: dict[int | None, float] = {}
        gpu: int | None = None
        for line in self.system.run("nvidia-smi", "nvlink", "--status").text.splitlines():
            if found := re.match(r"GPU (\d+):", line):
                gpu = int(found[1])
            elif gpu is not None and (found := re.match(r"\s*Link \d+: (\d+(?:\.\d+)?) GB/s", line)):
                rates[gpu] = 8 * float(found[1])
        return rates

    def _xgmi(self, gpus: list[_Gpu], names: dict[str, str]) -> None:
        mine: dict[int | None, _Gpu] = {gpu.node: gpu for gpu in gpus if gpu.node is not None}
        done = set()
        for number, gpu in mine.items():
            for folder in self.system.glob(f"/sys/class/kfd/kfd/topology/nodes/{number}/io_links/*"):
                facts = self._facts(f"{folder}/properties")
                other = mine.get(facts.get("node_to"))
                if facts.get("type") != _XGMI_TYPE or other is None or other is gpu:
                    continue
                pair = frozenset((gpu.busid, other.busid))
                if pair in done:
                    continue
                done.add(pair)
                most, least = facts.get("max_bandwidth", 0), facts.get("min_bandwidth", 0)  # MB/s of all and of one
                count = most // least if least and most % least == 0 else 1
                default = xgmi_gbps(gpu.arch)
                rate, source = (most * 8 / 1000, DISCOVERED) if most else (default, DEFAULT)
                self.draft.link(names[gpu.busid], names[other.busid], XGMI, rate, count=count, source=source)
        amd = [gpu for gpu in gpus if gpu.vendor == "amd"]
        if len(amd) > 1 and not mine:
            self._xgmi_by_command(amd, names)

    def _xgmi_by_command(self, gpus: Iterable[_Gpu], names: dict[str, str]) -> None:
        buses: dict[str, str] = {}
        with suppress(ValueError, AttributeError):
            for card, facts in json.loads(self.system.run("rocm-smi", "--showbus", "--json").text).items():
                buses[f"gpu{card.removeprefix('card')}"] = bus_address(str(facts.get("PCI Bus", "")))
        answer = self.system.run("rocm-smi", "--showtopo")
        try:
            links = rocm_smi.read(answer.text, "rocm-smi --showtopo").cluster.classes[0].links
        except TopologyError as wrong:
            self._say(
                "xgmi-unknown",
                DOUBT,
                f"xGMI is unknown, not absent: {answer.trouble or wrong}",
                "run rocm-smi --showtopo by hand",
            )
            return
        for link in links:
            ends = [names.get(buses.get(end, "")) for end in (link.a, link.b)]
            if link.kind == XGMI and ends[0] and ends[1]:
                self.draft.link(ends[0], ends[1], XGMI)

    def _facts(self, path: str) -> dict[str, int]:
        """Return the numbers of a file of KFD's: a name and a number a line."""
        rows = (line.split() for line in self.system.read(path).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}

    # Beyond the node

    def _switches(self, host: str) -> tuple[tuple[Switch, ...], tuple[str, ...], str]:
        """Return the switches above this node, its leaves, and the block that Slurm puts it in."""
        environment = self.system.environment
        chain: list[str] = []  # the closest last
        block = ""
        if address := environment.get("SLURM_TOPOLOGY_ADDR", ""):
            pattern = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
            source = f"SLURM_TOPOLOGY_ADDR={address}"
            try:
                path = slurm_addr.path(address, [pattern], source)
                if path.node != environment.get("SLURMD_NODENAME", path.node):
                    raise TopologyError(source, None, f"by its pattern {pattern} it is of another node, {path.node}")
            except TopologyError as wrong:
                self._say("topology-address", DOUBT, str(wrong), "give topology.conf itself")
            else:
                chain, block = list(reversed(path.above)), path.block
        elif environment.get("SLURM_JOB_ID") and self.system.commands("scontrol"):
            shown = self.system.run("scontrol", "show", "topology", host).text
            levels = re.findall(r"SwitchName=(\S+) Level=(\d{1,3})\b", shown)
            chain = [name for name, _ in sorted(levels, key=lambda one: -int(one[1]))]
            if len({level for _, level in levels}) < len(levels):
                chain = []  # several switches of a level: not a chain
        switches = tuple(
            Switch(name, parent, source=DISCOVERED) for parent, name in zip([None, *chain], chain, strict=False)
        )
        return switches, tuple(chain[-1:]), block

    def _by_lstopo(self, host: str) -> NodeClass:
        """Return the node as hwloc sees it, on systems without sysfs."""
        answer = self.system.run("lstopo-no-graphics", "--of", "xml")
        try:
            reading = hwloc_xml.read(answer.text, "lstopo-no-graphics --of xml")
        except UsageError as wrong:
            why = answer.trouble or wrong
            text = f"neither GPUs nor cores can be seen in /sys, and lstopo does not help: {why}"
            raise TopologyError(host, None, f"{text}; describe the node in the cluster's YAML") from None
        self.findings += reading.findings
        return replace(reading.cluster.classes[0], name="node")


def _numbers(text: str) -> list[int]:
    """Return what a list of the kernel's names, such as 0-3,8; nothing where it is none."""
    with suppress(UsageError, ValueError):
        return expand_ranges(text)
    return []


def _last_number(path: str) -> int:
    name = os.path.basename(path)
    return int(name) if name.isdecimal() else -1


def _gfx(version: int) -> str:
    """Return the name of KFD's gfx_target_version: 90402 is gfx942, 90010 gfx90a."""
    if not version:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
