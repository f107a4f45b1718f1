"""The machine around the libraries: cores, memory, the kernel's settings that change times, what killed jobs left."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from commbench import cgroup
from commbench.diagnose.system import BROKEN, SLOW, Check, Finding, System
from commbench.units import approximate_size, expand_ranges

_SMALL_SHM = 1 << 30  # bytes; containers start with 64 MiB, and NCCL's guide asks for 1 GiB
_GIB = 1 << 30


def cpu(system: System) -> Check:
    """The processor, and the cores that this process may use."""
    model = re.search(r"^model name\s*: (.*)$", system.read("/proc/cpuinfo"), re.MULTILINE)
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", system.read("/proc/self/status"), re.MULTILINE)
    quota = cgroup.cores(system.path("/sys/fs/cgroup"), system.path("/proc/self/cgroup"))
    allowed = len(expand_ranges(mask[1])) if mask else None
    here = len(system.glob("/sys/devices/system/cpu/cpu[0-9]*"))
    text = f"{model[1] if model else 'unknown processor'}; {allowed or 'unknown'} of {here or 'unknown'} cores allowed"
    facts: dict[str, Any] = {"model": model[1] if model else "", "allowed": mask[1] if mask else "", "cores": here}
    if quota is None:
        return Check(f"{text}, no quota", facts={**facts, "quota": None})
    found: tuple[Finding, ...] = ()
    if allowed and quota < allowed:
        remedy = "ask for whole cores (Kubernetes: static CPU manager; Docker: --cpuset-cpus; Slurm: -c)"
        value = f"a quota of {quota:g} cores on {allowed}"
        found = (Finding(SLOW, "ranks have whole cores: a quota stops them in the middle", value, remedy),)
    return Check(f"{text}, quota {quota:g}", facts={**facts, "quota": quota}, findings=found)


def memory(system: System) -> Check:
    """Memory, and what control groups leave of it."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", system.read("/proc/meminfo"), re.MULTILINE)
    size = 1024 * int(total[1]) if total else None
    left = cgroup.memory_left(system.path("/sys/fs/cgroup"), system.path("/proc/self/cgroup"))
    limit = "no limit" if left is None else f"{approximate_size(left)} left below the limit of a control group"
    facts = {"bytes": size, "left_bytes": left}
    return Check(f"{approximate_size(size) if size else 'unknown'}, {limit}", facts=facts)


def numa(system: System) -> Check:
    """NUMA nodes, and whether the kernel moves pages between them."""
    nodes = {
        folder.rpartition("node")[2]: system.read(f"{folder}/cpulist")
        for folder in system.glob("/sys/devices/system/node/node[0-9]*")
    }
    balancing = system.read("/proc/sys/kernel/numa_balancing")
    said = {"": "unknown", "0": "off"}.get(balancing, "on")
    listed = ", ".join(f"{node}: {cpus}" for node, cpus in nodes.items())
    text = f"{len(nodes) or 'unknown'} node{'' if len(nodes) == 1 else 's'} ({listed}); balancing {said}"
    found = Finding(
        SLOW,
        "the kernel does not move pages while times are taken",
        f"kernel.numa_balancing = {balancing}",
        "sysctl -w kernel.numa_balancing=0",
    )
    facts = {"nodes": nodes, "balancing": balancing}
    return Check(text, facts=facts, findings=(found,) if said == "on" else ())


def iommu(system: System) -> Check:
    """Whether an IOMMU stands between devices: it takes peer access between GPUs and adapters through the CPU."""
    units = [folder.rpartition("/")[2] for folder in system.glob("/sys/class/iommu/*")]
    line = system.read("/proc/cmdline")
    asked = re.findall(r"\b(?:intel_iommu|amd_iommu|iommu)=\S+", line)
    passing = any(word in ("iommu=pt", "iommu.passthrough=1") for word in asked + line.split())
    state = "off" if not units else "on, passthrough" if passing else "on, translating"
    text = " ".join([state, *asked])
    devices = (
        system.glob("/proc/driver/nvidia/gpus/*") + system.glob("/dev/kfd") + system.glob("/sys/class/infiniband/*")
    )
    found = Finding(
        SLOW,
        "GPUs and adapters reach one another directly: a translating IOMMU sends their traffic through the CPU",
        f"{len(units)} IOMMU units, kernel command line without iommu=pt",
        "boot with iommu=pt, or turn the IOMMU off in the firmware (virtual machines need it)",
    )
    slow = units and not passing and devices
    return Check(text, facts={"units": units, "asked": asked}, findings=(found,) if slow else ())


def hugepages(system: System) -> Check:
    """Transparent huge pages."""
    text = system.read("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    return Check(chosen[1] if chosen else "unknown", facts={"enabled": text})


def governor(system: System) -> Check:
    """What sets the frequency of the cores."""
    paths = system.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    kinds = sorted({system.read(path) for path in paths} - {""})
    found = Finding(
        SLOW,
        "the CPU frequency does not follow the load",
        f"governor {', '.join(kinds)}",
        "cpupower frequency-set -g performance",
    )
    text = ", ".join(kinds) or "not told (a virtual machine, or fixed in the firmware)"
    return Check(text, facts={"governors": kinds}, findings=(found,) if kinds and kinds != ["performance"] else ())


def shared_memory(system: System) -> Check:
    """The room in /dev/shm, through which ranks of a node communicate."""
    try:
        there = os.statvfs(system.path("/dev/shm"))
    except OSError as error:
        remedy = "mount it: mount -t tmpfs tmpfs /dev/shm"
        found = Finding(BROKEN, "/dev/shm is there, for ranks of one node", error.strerror or str(error), remedy)
        return Check(f"/dev/shm: {error.strerror}", facts={"bytes": None}, findings=(found,))
    size, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    found = Finding(
        BROKEN if free < _SMALL_SHM >> 5 else SLOW,
        "/dev/shm holds at least 1 GiB: NCCL and MPI put the traffic of a node there",
        f"{approximate_size(size)}, {approximate_size(free)} free",
        "docker run --shm-size=1g (or --ipc=host); else mount -o remount,size=1g /dev/shm, or remove what fills it",
    )
    text = f"{approximate_size(size)}, {approximate_size(free)} free"
    return Check(text, facts={"bytes": size, "free_bytes": free}, findings=(found,) if free < _SMALL_SHM else ())


def memlock(system: System) -> Check:
    """How much memory may be locked: network adapters and GPUs take only locked memory."""
    limit = re.search(r"^Max locked memory\s+(\S+)", system.read("/proc/self/limits"), re.MULTILINE)
    if not limit:
        return Check("unknown", facts={"bytes": None})
    size = int(limit[1]) if limit[1].isdigit() else None
    found: tuple[Finding, ...] = ()
    if size is not None and size < _GIB and system.glob("/sys/class/infiniband/*"):
        remedy = "ulimit -l unlimited (limits.conf; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimits)"
        value = f"{approximate_size(size)}, with an InfiniBand adapter"
        found = (Finding(BROKEN, "memory for network adapters can be locked", value, remedy),)
    return Check("unlimited" if size is None else approximate_size(size), facts={"bytes": size}, findings=found)


def sessions(system: System) -> Check:
    """What killed launchers of Open MPI left: PRRTE names the folder of a session by its launcher's process.

    A later launcher that is given the same process number finds the old contact file, and refuses to start.
    """
    top = system.environment.get("TMPDIR") or "/tmp"
    there = {path: path.rpartition(".")[2] for path in system.glob(f"{glob.escape(top)}/ompi.*")}
    left = [path for path, pid in there.items() if pid.isdecimal() and not system.glob(f"/proc/{pid}")]
    left = [path for path in left if _own(system.path(path))]  # processes of others may be hidden
    if not left:
        return Check(f"none left behind in {top}", facts={"left": []})
    more = ", ..." if len(left) > 3 else ""
    found = Finding(
        BROKEN,
        "a launch of Open MPI that is killed leaves nothing behind: an mpirun that is given its process number fails, "
        "as the PMIx server's listener thread failed to start",
        f"{len(left)} left, of processes that are gone: {', '.join(left[:3])}{more}",
        "remove them",
    )
    return Check(f"{len(left)} left behind in {top}", facts={"left": left}, findings=(found,))


def _own(path: str) -> bool:
    with suppress(OSError):
        return os.stat(path).st_uid == os.geteuid()
    return False


CHECKS: dict[str, Callable[[System], Check]] = {
    "cpu": cpu,
    "memory": memory,
    "numa": numa,
    "iommu": iommu,
    "hugepages": hugepages,
    "governor": governor,
    "shm": shared_memory,
    "memlock": memlock,
    "sessions": sessions,
}
