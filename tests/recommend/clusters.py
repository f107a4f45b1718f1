"""Small random clusters, and the best order on them by trying all."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np

from commbench.model.library import LIBRARIES
from commbench.model.placement import Placement, fill
from commbench.model.routes import Routes
from commbench.recommend.score import Judge
from commbench.recommend.traffic import step
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import BUS, NVSWITCH, Device, Hub, Link, Nic, NodeClass

ALLREDUCES = ("ring", "recursive_doubling", "rabenseifner", "distance_halving", "tree")


def node_class(devices: int, gbps: float = 400.0, name: str = "node", us: float = 1.0) -> NodeClass:
    """Devices on one switch, and one NIC on another."""
    return NodeClass(
        name,
        tuple(Device(f"gpu{place}", "nvidia") for place in range(devices)),
        (Nic("nic0", gbps, us),),
        (Hub("switch", NVSWITCH), Hub("bus", BUS)),
        (
            *(Link(f"gpu{place}", "switch", "nvlink", 8 * gbps, 0.2) for place in range(devices)),
            *(Link(f"gpu{place}", "bus", "pcie", 1.3 * gbps, 0.3) for place in range(devices)),
            Link("nic0", "bus", "pcie", 1.2 * gbps, 0.3),
        ),
    )


def two_tiers(leaves: list[int], devices: int = 1, uplinks: list[float] | None = None, gbps: float = 400.0) -> Cluster:
    """Leaves with so many nodes each under one spine."""
    names = (f"n{number}" for number in range(1000))
    rates = uplinks or [gbps] * len(leaves)
    return Cluster(
        "tiny",
        (node_class(devices, gbps),),
        (Switch("spine"), *(Switch(f"leaf{k}", "spine", rate, 0.5) for k, rate in enumerate(rates))),
        tuple(Block(tuple(next(names) for _ in range(count)), (f"leaf{k}",), "node") for k, count in enumerate(leaves)),
    )


def scaled(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with links so many times as fast, and without latencies."""
    from dataclasses import replace

    def fast(thing):  # type: ignore[no-untyped-def]
        return replace(thing, gbps=None if thing.gbps is None else thing.gbps * factor, us=0.0)

    return replace(
        cluster,
        classes=tuple(
            replace(one, links=tuple(map(fast, one.links)), nics=tuple(map(fast, one.nics))) for one in cluster.classes
        ),
        switches=tuple(map(fast, cluster.switches)),
    )


@dataclass(frozen=True)
class Case:
    """A cluster whose devices all have a rank, and the traffic of these."""

    cluster: Cluster
    seats: Placement
    judge: Judge

    def __str__(self) -> str:
        flows = [(one.axis, one.n, one.collective, one.size) for one in self.judge.traffic.flows]
        sizes = [len(block.nodes) for block in self.cluster.blocks]
        return f"leaves of {sizes}, {flows}, {dict(self.judge.asked)}, {self.judge.library.name}"


def case(number: int, ranks: tuple[int, ...] = (4, 5, 6)) -> Case:
    """A random case."""
    draw = random.Random(number)
    n = draw.choice(ranks)
    devices = draw.choice([one for one in (1, 2) if n % one == 0])
    nodes = n // devices
    leaves: list[int] = []
    while sum(leaves) < nodes:
        leaves.append(min(draw.randint(1, 3), nodes - sum(leaves)))
    uplinks = [draw.choice([100.0, 200.0, 400.0]) for _ in leaves]
    cluster = two_tiers(leaves, devices, uplinks)
    if draw.random() < 0.3:  # leaves that are not alike under two spines
        spines = [Switch(f"spine{k}", "core", draw.choice([100.0, 300.0]), 0.5) for k in range(2)]
        switches = [Switch("core"), *spines]
        switches += [Switch(one.name, f"spine{k % 2}", one.gbps, 0.5) for k, one in enumerate(cluster.switches[1:])]
        cluster = Cluster("tiny", cluster.classes, tuple(switches), cluster.blocks, step_us=draw.choice([None, 0.5]))
    grids = [(n,), *((a, n // a) for a in range(2, n) if n % a == 0)]
    grid = draw.choice(grids)
    axes = dict(zip(("tp", "dp"), grid, strict=False)) if len(grid) == 2 else {"dp": n}
    size = draw.choice([1 << 10, 1 << 20, 1 << 28])
    told = {name: (draw.choice([1, 3]), draw.choice([size, 4 * size])) for name in axes}
    library = LIBRARIES[draw.choice(["mpi", "mpi", "nccl"])]
    kinds = {
        name: draw.choice(["allreduce", "allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"])
        for name in axes
    }
    asked = {}
    for name, kind in kinds.items():
        names = {
            "allreduce": ALLREDUCES if not library.by_node else ("ring", "tree"),
            "alltoall": ("pairwise", "scattered"),
            "allgather": ("ring",),
            "reducescatter": ("ring",),
        }.get(kind)
        if names:
            asked[name] = draw.choice(names)
    return Case(cluster, fill(cluster, n), Judge(step(axes, told, kinds), library, asked))


def least(some: Case) -> float:
    """The time of the best order, by trying all."""
    alike: set[object] = set()
    best, routes = float("inf"), Routes(some.seats, some.judge.library)
    for order in itertools.permutations(range(some.seats.n)):
        seat = np.array(order)
        key = _alike(some, some.seats.node[seat].tolist())
        if key not in alike:
            alike.add(key)
            best = min(best, some.judge.score(some.seats, seat, routes=routes).seconds)
    return best


def _alike(some: Case, nodes: list[int]) -> tuple[tuple[int, int], ...]:
    """Return the same for orders that differ in which of a leaf's nodes, or of a node's devices, is which."""
    block = some.cluster.arrays.block
    seen: dict[int, dict[int, int]] = {}
    return tuple(
        (leaf := int(block[node]), (there := seen.setdefault(leaf, {})).setdefault(node, len(there))) for node in nodes
    )
