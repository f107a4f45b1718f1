"""Where the ranks of a launch sit and what each may use: gathered on rank 0 before the plan is made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from commbench import cgroup
from commbench.backends.world import World
from commbench.units import expand_ranges, format_ranges

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Seat:
    """Where a rank sits: its host, the number of its node, its number on the node, and the leaf switch if known."""

    host: str
    node: int
    on_node: int
    leaf: str


def leaf_of_this_node(environment: Mapping[str, str] = os.environ) -> str:
    """Return the leaf switch above this node, as srun tells its tasks in SLURM_TOPOLOGY_ADDR, empty if unknown."""
    names = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    switches = [name for name, kind in zip(names, kinds, strict=False) if kind == "switch" and name]
    return switches[-1] if switches else ""


def site(world: World, of_device: int | None = None) -> dict[str, Any]:
    """Return, on rank 0, the ranks' seats and CPUs, this node's cores, and the memory of the fullest node.

    Empty elsewhere. `allowance` is the bytes that each rank may have if all take part, `memory` what a node has.
    `of_device` is what this rank may have of its device: what it has there it has on the host too, for a while.
    """
    available = memory_available() if world.node_rank == 0 else None
    share, whole = (_NO_LIMIT, _NO_LIMIT) if available is None else (available // world.node_size, available)
    lowest = world.largest(-(share if of_device is None else min(share, of_device)), -whole)
    seat = f"{os.uname().nodename}/{world.node}/{world.node_rank}/{leaf_of_this_node()}/{affinity()}/{_machine()}"
    told = world.gather_text(seat)
    if told is None:
        return {}
    seats, cpus, machines = [], [], dict[str, list[str]]()
    for host, node, place, leaf, mask, machine in (text.split("/") for text in told):
        seats.append({"host": host, "node": int(node), "on_node": int(place), "leaf": leaf})
        cpus.append(mask)
        machines.setdefault(machine, []).append(mask)
    allowance, memory = (None if value == -_NO_LIMIT else -value for value in lowest)
    return {
        "seats": seats,
        "cpus": cpus,
        "cores": world.cores,
        # Containers, and emulated hosts, are nodes of their own to MPI while they share the cores of one machine.
        "crowded": world.crowded or any(map(_outnumber, machines.values())),
        "allowance": allowance,
        "memory": memory,
    }


def affinity() -> str:
    """Return the CPUs that this process may run on, as ranges: "0-3,8"."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    return format_ranges(sorted(os.sched_getaffinity(0)))


def memory_available() -> int | None:
    """Return the bytes that new processes on this node can have: the kernel's estimate, within any limits."""
    lines = _read("/proc/meminfo").splitlines()
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    left = cgroup.memory_left()
    return min(found if left is None else [*found, left], default=None)


def _outnumber(masks: Sequence[str]) -> bool:
    """Whether the ranks of a machine, of which each has such CPUs (empty: unknown), outnumber these together."""
    cpus = {cpu for mask in masks for cpu in expand_ranges(mask)}
    return all(masks) and len(masks) > len(cpus)


def _machine() -> str:
    """Return what names this boot of this machine, whatever namespace a process is in; its host's name elsewhere."""
    return _read("/proc/sys/kernel/random/boot_id") or os.uname().nodename


def _read(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return file.read().strip()
    return ""
