"""Which GPUs, links and network adapters there are, by the vendors' own commands and by the kernel's files.

Formats: nvidia-smi of drivers 470 to 580, rocm-smi of ROCm 5 and 6, amd-smi of ROCm 6.4 and 7; the kernel's
Documentation/ABI (sysfs-class-infiniband).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from commbench.diagnose.system import BROKEN, FORCED, SLOW, Check, Finding, System
from commbench.units import format_ranges

_QUERY = ("index", "name", "uuid", "pci.bus_id", "driver_version", "mig.mode.current")
_CLOSENESS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # nearest first, as in the legend of nvidia-smi topo -m
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_VISIBLE = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver's command lists it; what is not told is empty. `pci` is like 0000:1b:00.0."""

    index: int
    name: str
    uuid: str = ""
    pci: str = ""
    driver: str = ""
    mig: bool = False


@dataclass(frozen=True)
class Topology:
    """How devices are connected: `links` of each pair of GPUs, and each GPU's nearest adapters with their distance."""

    links: Mapping[tuple[int, int], str]  # NV18, PIX, SYS, XGMI, ...; the smaller GPU first
    nearest: Mapping[int, tuple[str, Sequence[str]]]  # GPU -> distance, names of adapters
    numa: Mapping[int, int]  # GPU -> NUMA node


@dataclass(frozen=True)
class Nic:
    """An InfiniBand or RoCE adapter's port; `numa` is -1 where the system does not say."""

    name: str
    pci: str
    numa: int
    layer: str  # InfiniBand or Ethernet
    state: str  # ACTIVE, DOWN, ...
    rate: str


def read_query(text: str) -> list[Gpu]:
    """Return the GPUs of `nvidia-smi --query-gpu=... --format=csv`, whatever fields it holds."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if "," in line]
    if not lines or lines[0][0] != "index":
        return []
    found = []
    for cells in lines[1:]:
        row = dict(zip(lines[0], cells, strict=False))
        if row["index"].isdigit():
            pci, mig = _address(row.get("pci.bus_id", "")), row.get("mig.mode.current") == "Enabled"
            found.append(
                Gpu(
                    int(row["index"]), row.get("name", ""), row.get("uuid", ""), pci, row.get("driver_version", ""), mig
                )
            )
    return found


def read_topology(text: str) -> Topology:
    """Return what `nvidia-smi topo -m` says. Columns are parted by tabs; older drivers name adapters in the table."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    head = next((line for line in lines if re.match(r"\s*GPU0\b", line) and "Affinity" in line), "")
    devices = [name for name in _cells(head) if "Affinity" not in name and "NUMA" not in name]
    names = dict(re.findall(r"^\s*(NIC\d+): (\S+)", text, re.MULTILINE))
    links: dict[tuple[int, int], str] = {}
    nearest: dict[int, tuple[str, Sequence[str]]] = {}
    numa: dict[int, int] = {}
    for line in lines:
        first, *cells = _cells(line)
        if not re.fullmatch(r"GPU\d+", first) or len(cells) < len(devices):
            continue
        gpu, row = int(first[3:]), dict(zip(devices, cells, strict=False))
        for other, kind in row.items():
            if re.fullmatch(r"GPU\d+", other) and gpu < int(other[3:]):
                links[gpu, int(other[3:])] = kind
        adapters = {names.get(name, name): kind for name, kind in row.items() if not name.startswith("GPU")}
        if near := min((kind for kind in adapters.values() if kind in _CLOSENESS), key=_CLOSENESS.index, default=""):
            nearest[gpu] = (near, [name for name, kind in adapters.items() if kind == near])
        affinity = cells[len(devices) + 1] if len(cells) > len(devices) + 1 else ""
        if affinity.isdigit():
            numa[gpu] = int(affinity)
    return Topology(links, nearest, numa)


def _cells(line: str) -> list[str]:
    """Return a table's cells: parted by tabs, or by spaces where a terminal or a web page made them of the tabs."""
    cells = line.strip().split("\t") if "\t" in line else re.split(r" {2,}", line.strip())
    return [cell.strip() for cell in cells]


def read_rocm_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `rocm-smi --showproductname --showuniqueid --showbus --showdriverversion --json`."""
    cards = _json(text)
    driver = next((str(value) for key, value in cards.get("system", {}).items() if key.lower() == "driver version"), "")
    found = []
    for card, row in cards.items():
        if not re.fullmatch(r"card\d+", card):
            continue
        about = {key.lower(): str(value) for key, value in row.items()}
        name = next((about[key] for key in ("card series", "device name", "card model") if about.get(key)), "")
        found.append(Gpu(int(card[4:]), name, about.get("unique id", ""), _address(about.get("pci bus", "")), driver))
    return sorted(found, key=lambda gpu: gpu.index)


def read_rocm_topology(text: str) -> Topology:
    """Return what `rocm-smi --showtopo --json` says."""
    cards = _json(text)
    links, numa = {}, {}
    for key, value in cards.get("system", {}).items():
        if match := re.search(r"Link type between DRM devices (\d+) and (\d+)", key):
            a, b = sorted((int(match[1]), int(match[2])))
            links[a, b] = str(value)
    for card, row in cards.items():
        node = str(row.get("(Topology) Numa Node", "")) if isinstance(row, dict) else ""
        if re.fullmatch(r"card\d+", card) and node.isdigit():
            numa[int(card[4:])] = int(node)
    return Topology(links, {}, numa)


def read_amd_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `amd-smi static --asic --bus --driver --json`: a list, in newer ones under "gpu_data"."""
    rows: Any = None
    with suppress(ValueError):
        rows = json.loads(text[min((at for at in (text.find("["), text.find("{")) if at >= 0), default=0) :])
    rows = rows.get("gpu_data", []) if isinstance(rows, dict) else rows
    return [
        Gpu(
            int(row["gpu"]),
            str(row.get("asic", {}).get("market_name", "")),
            str(row.get("asic", {}).get("asic_serial", "")),
            _address(str(row.get("bus", {}).get("bdf", ""))),
            str(row.get("driver", {}).get("version", "")),
        )
        for row in rows or ()
    ]


def _json(text: str) -> dict[str, Any]:
    """Return the object in what a command prints: warnings may stand before it."""
    with suppress(ValueError):
        found = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
        if isinstance(found, dict):
            return found
    return {}


def _address(pci: str) -> str:
    """Return a PCI address as the kernel writes it: 00000000:1B:00.0 is 0000:1b:00.0."""
    match = re.search(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2}\.\d)$", pci.strip().lower())
    return match[0] if match else ""


def nvidia(system: System) -> Check:
    """NVIDIA's GPUs, by nvidia-smi; where it fails, what the driver says of them in /proc."""
    words = ("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv")
    answer = system.run(*words)
    if "is not a valid field" in answer.text + answer.trouble:  # drivers before MIG
        answer = system.run(words[0], f"--query-gpu={','.join(_QUERY[:-1])}", words[2])
    gpus = [] if answer.trouble else read_query(answer.text)
    kernel = [
        dict(re.findall(r"^([^:\n]+):\s*(.*)$", system.read(f"{folder}/information"), re.MULTILINE))
        for folder in system.glob("/proc/driver/nvidia/gpus/*")
    ]
    facts: dict[str, Any] = {"gpus": [asdict(gpu) for gpu in gpus], "kernel": kernel}
    facts["driver"] = _first(system.read("/proc/driver/nvidia/version"))
    if not gpus:
        if not kernel and not system.commands(words[0]):
            return Check("none: nvidia-smi is not in PATH", False, "a GPU and its driver", facts)
        why = answer.trouble or "nvidia-smi lists no GPU"
        remedy = "bring driver and tools to one version and reload the driver; a reboot does both"
        found = (Finding(BROKEN, "nvidia-smi lists the NVIDIA GPUs", why, remedy),)
        return Check(f"{len(kernel)} seen by the kernel; {why}", False, remedy, facts, found)
    findings = []
    text = f"{_kinds(gpu.name for gpu in gpus)}, driver {gpus[0].driver}"
    if partitioned := [gpu for gpu in gpus if gpu.mig]:
        instances = re.findall(r"^\s+MIG +(\S+)\s+Device +\d+: \(UUID: (\S+?)\)", system.run(words[0], "-L").text, re.M)
        facts["mig"] = [{"profile": profile, "uuid": uuid} for profile, uuid in instances]
        where = format_ranges(gpu.index for gpu in partitioned)
        text += f"; MIG on {where}: {_kinds(profile for profile, _ in instances) or 'no instance'}"
        findings.append(
            Finding(
                FORCED,
                "collectives are measured on whole GPUs: MIG instances reach one another neither by NVLink nor by "
                "peer access over PCIe",
                f"MIG is on, GPU {where}",
                "nvidia-smi -i GPU -mig 0 (root, idle GPU); or take results as those of one instance",
            )
        )
    return Check(text, True, "", facts, tuple(findings))


def amd(system: System) -> Check:
    """AMD's GPUs, by rocm-smi, or amd-smi where that is not there."""
    answer = system.run("rocm-smi", "--showproductname", "--showuniqueid", "--showbus", "--showdriverversion", "--json")
    gpus = [] if answer.trouble else read_rocm_smi(answer.text)
    if not gpus:
        newer = system.run("amd-smi", "static", "--asic", "--bus", "--driver", "--json")
        gpus = [] if newer.trouble else read_amd_smi(newer.text)
        answer = newer if system.commands("amd-smi") else answer
    nodes = system.glob("/sys/module/amdgpu")
    facts = {"gpus": [asdict(gpu) for gpu in gpus], "driver": system.read("/sys/module/amdgpu/version")}
    if gpus:
        return Check(f"{_kinds(gpu.name for gpu in gpus)}, driver {gpus[0].driver or 'unknown'}", True, "", facts)
    if not nodes and not system.commands("rocm-smi") and not system.commands("amd-smi"):
        return Check("none: neither rocm-smi nor amd-smi is in PATH", False, "a GPU and its driver", facts)
    why = answer.trouble or "rocm-smi lists no GPU"
    remedy = "put /opt/rocm/bin into PATH; /dev/kfd must be readable (group render)"
    found = (Finding(BROKEN, "rocm-smi or amd-smi lists the AMD GPUs", why, remedy),)
    return Check(why, False, remedy, facts, found if nodes else ())


def cards(system: System) -> Check:
    """The graphics devices that the kernel has, whoever drives them."""
    found = []
    for folder in system.glob("/sys/class/drm/card*"):
        if re.fullmatch(r"card\d+", folder.rpartition("/")[2]):
            vendor = system.read(f"{folder}/device/vendor")
            about = {"card": folder.rpartition("/")[2], "vendor": _VENDORS.get(vendor, vendor)}
            found.append({**about, "pci": system.target(f"{folder}/device")})
    return Check(_kinds(card["vendor"] for card in found) or "none in /sys/class/drm", facts={"cards": found})


def links(system: System) -> Check:
    """How the GPUs are connected, and which adapters are nearest to each."""
    topology = read_topology(system.run("nvidia-smi", "topo", "-m").text)
    if not topology.links and not topology.nearest and system.commands("rocm-smi"):
        topology = read_rocm_topology(system.run("rocm-smi", "--showtopo", "--json").text)
        ports = adapters(system)
        near = {gpu: [nic.name for nic in ports if nic.numa == node] for gpu, node in topology.numa.items()}
        nearest = {gpu: ("NODE", names) for gpu, names in near.items() if names}
        topology = Topology(topology.links, nearest, topology.numa)
    facts = {
        "pairs": [{"gpus": list(pair), "kind": kind} for pair, kind in topology.links.items()],
        "nearest": [{"gpu": gpu, "distance": far, "nics": names} for gpu, (far, names) in topology.nearest.items()],
        "numa": {str(gpu): node for gpu, node in topology.numa.items()},
    }
    if not topology.links and not topology.nearest:
        return Check("no two GPUs, or no command that tells", facts=facts)
    kinds = Counter(topology.links.values())
    text = ", ".join(f"{number} {'pair' if number == 1 else 'pairs'} {kind}" for kind, number in kinds.most_common())
    by = ", ".join(f"GPU{gpu} {'+'.join(names)} ({far})" for gpu, (far, names) in topology.nearest.items())
    return Check("; nearest adapters ".join(filter(None, (text, by))), facts=facts)


def visible(system: System) -> Check:
    """The variables that hide GPUs or put them in another order."""
    there = {name: system.environment[name] for name in _VISIBLE if name in system.environment}
    text = " ".join(f"{name}={value}" for name, value in there.items()) or "no variable hides a GPU"
    hidden = [
        name for name, value in there.items() if "VISIBLE" in name and value.strip() in ("", "-1", "void", "none")
    ]
    found = tuple(
        Finding(BROKEN, "a variable leaves GPUs visible", f"{name}={there[name]!r} hides them all", f"unset {name}")
        for name in hidden
    )
    return Check(text, facts=there, findings=found)


def adapters(system: System) -> list[Nic]:
    """Return the ports of the InfiniBand and RoCE adapters."""
    found = []
    for port in system.glob("/sys/class/infiniband/*/ports/*"):
        folder = port.partition("/ports/")[0]
        numa = system.read(f"{folder}/device/numa_node")
        found.append(
            Nic(
                folder.rpartition("/")[2],
                system.target(f"{folder}/device"),
                int(numa) if numa.lstrip("-").isdigit() else -1,
                system.read(f"{port}/link_layer"),
                system.read(f"{port}/state").partition(": ")[2],
                system.read(f"{port}/rate"),
            )
        )
    return found


def infiniband(system: System) -> Check:
    """InfiniBand and RoCE adapters: bus address, NUMA node, state, rate."""
    ports = adapters(system)
    active = [nic for nic in ports if nic.state == "ACTIVE"]
    facts = {"ports": [asdict(nic) for nic in ports]}
    if not ports:
        return Check("none in /sys/class/infiniband", False, "an InfiniBand or RoCE adapter and its driver", facts)
    text = "; ".join(f"{nic.name} {nic.pci} node {nic.numa}, {nic.layer} {nic.state}, {nic.rate}" for nic in ports)
    down = [nic.name for nic in ports if nic.state != "ACTIVE"]
    remedy = "look at cable, switch port and subnet manager (ibstat), or leave it out by NCCL_IB_HCA"
    found = Finding(SLOW, "every port of an adapter is active", f"not active: {', '.join(down)}", remedy)
    return Check(text, bool(active), remedy, facts, (found,) if down else ())


def _kinds(names: Any) -> str:
    return ", ".join(f"{number} × {name}" for name, number in Counter(names).items())


def _first(text: str) -> str:
    return text.partition("\n")[0].strip()


CHECKS: dict[str, Callable[[System], Check]] = {
    "nvidia": nvidia,
    "amd": amd,
    "cards": cards,
    "links": links,
    "visible": visible,
    "infiniband": infiniband,
}
