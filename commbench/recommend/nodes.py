"""Which nodes to take of those that are free: few pods, then few leaves, then few nodes, then no slow ones.

These are integer programs, solved exactly by HiGHS (scipy.optimize.milp) one after another, each with what the ones
before it found as a condition. Alike nodes of a leaf are one variable, so that a cluster of 12,500 nodes is some
hundreds of them. Where the time limit strikes, a greedy choice stands beside what was found until then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commbench.errors import UsageError
from commbench.recommend.tree import Tree, depth_first
from commbench.topology.cluster import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

EXACT, GREEDY = "integer program", "greedy: the time limit struck"


@dataclass(frozen=True)
class Chosen:
    """Nodes, by their places in the cluster and in depth-first order, and how well they were chosen.

    `bound` is the proven least number of (pods, leaves), `gap` how far the choice is from it: 0 is optimal. Both are
    None of nodes that come from elsewhere, which `how` says.
    """

    nodes: Ints
    devices: int  # that are on them
    pods: int
    leaves: int
    slow: float  # sum of the weights of slow nodes among them
    how: str
    bound: tuple[float, float] | None = None
    gap: float | None = None


def devices_of(cluster: Cluster) -> Ints:
    """Return how many devices each node of the cluster has."""
    return np.array([len(one.devices) for one in cluster.classes] + [0])[cluster.arrays.node_class]


def choose(
    cluster: Cluster,
    units: Tree,
    free: Ints,
    devices: int,
    slow: Mapping[int, float] | None = None,
    seconds: float = 10.0,
) -> Chosen:
    """Return nodes out of `free` with at least so many devices; raise UsageError where they have fewer.

    Devices of one vendor are preferred, since no NCCL or RCCL communicator spans two. `slow`: weights of nodes to be
    avoided, such as how much longer than others they take.
    """
    arrays, size = cluster.arrays, devices_of(cluster)
    if int(size[free].sum()) < devices:
        raise UsageError(
            f"{devices} GPUs are asked for, and the {len(free)} free nodes have {int(size[free].sum())}: ask for "
            "fewer, or name more nodes with --free"
        )
    vendor = np.array([min((d.vendor for d in one.devices), default="") for one in cluster.classes] + [""])
    sets = [free[vendor[arrays.node_class[free]] == one] for one in sorted(set(vendor[arrays.node_class[free]]))]
    enough = [some for some in sets if int(size[some].sum()) >= devices] or [free]
    found = [_choose(units, some, size, devices, slow or {}, seconds / len(enough)) for some in enough]
    sends = np.array([sum(nic.gbps or 0.0 for nic in one.nics) for one in cluster.classes] + [0.0])[arrays.node_class]

    def worse(
        one: Chosen,
    ) -> tuple[float, ...]:  # of equally near nodes of two vendors those are taken that send faster
        return one.pods, one.leaves, len(one.nodes), one.slow, -float(sends[one.nodes].sum())

    return min(found, key=worse)


def _choose(units: Tree, free: Ints, size: Ints, devices: int, slow: Mapping[int, float], seconds: float) -> Chosen:
    weight = np.zeros(int(free.max()) + 1)
    for node, value in slow.items():
        if node < len(weight):
            weight[node] = value
    leaf, pod = _leaf_and_pod(units)
    program = _Program(free, size[free], leaf[free], pod[free], weight[free], devices)
    nodes, bound, proven = program.solve(time.monotonic() + seconds)
    how = EXACT
    if not proven:
        other = greedy(free, size[free], leaf[free], pod[free], weight[free], devices)
        if nodes is None or _worth(other, leaf, pod) < _worth(nodes, leaf, pod):
            nodes, how = other, GREEDY
        else:
            how = "integer program, stopped by the time limit"
    assert nodes is not None
    gap = max(0.0, sum(_worth(nodes, leaf, pod)) - sum(bound)) / max(1.0, sum(bound)) if not proven else 0.0
    return replace(described(units, nodes, size, slow, how), bound=bound, gap=gap)


def described(units: Tree, nodes: Ints, size: Ints, slow: Mapping[int, float], how: str) -> Chosen:
    """Return what is to be said of nodes, wherever they come from; `size` is the devices of each node."""
    pods, leaves = _worth(nodes, *_leaf_and_pod(units))
    weight = sum(slow.get(node, 0.0) for node in nodes.tolist())
    return Chosen(depth_first(units, nodes), int(size[nodes].sum()), pods, leaves, weight, how)


def _leaf_and_pod(units: Tree) -> tuple[Ints, Ints]:
    """Return the leaf of each node, and the pod; the highest unit where there are fewer levels."""
    return units.unit[min(1, units.levels - 1)], units.unit[min(2, units.levels - 1)]


def _worth(nodes: Ints, leaf: Ints, pod: Ints) -> tuple[int, int]:
    return len(np.unique(pod[nodes])), len(np.unique(leaf[nodes]))


def greedy(free: Ints, size: Ints, leaf: Ints, pod: Ints, weight: Floats, devices: int) -> Ints:
    """Return nodes by best fit: the pod, and in it the leaf, that just holds what is still needed, else the largest."""
    taken: list[int] = []
    left = devices
    room = np.ones(len(free), dtype=bool)
    while left > 0:
        some = np.flatnonzero(room)
        for unit in (pod, leaf):
            _, inverse = np.unique(unit[some], return_inverse=True)
            held = np.bincount(inverse, weights=size[some])
            fits = np.flatnonzero(held >= left)
            best = fits[held[fits].argmin()] if len(fits) else held.argmax()
            some = some[inverse == best]
        for place in some[np.lexsort((weight[some], -size[some]))].tolist():
            if left <= 0:
                break
            taken.append(place)
            room[place] = False
            left -= int(size[place])
    return free[np.array(taken, dtype=np.int64)]


class _Program:
    """The integer programs: how many of each leaf's alike nodes, which leaves, which pods."""

    def __init__(self, free: Ints, size: Ints, leaf: Ints, pod: Ints, weight: Floats, devices: int) -> None:
        self.devices = devices
        order = np.lexsort((free, weight, size, leaf))
        self.free = free[order]
        columns = np.stack([leaf[order], size[order]], axis=1)
        if weight.any():  # nodes that are not alike
            columns = np.concatenate([columns, weight[order][:, None].round(6) * 1e6], axis=1).astype(np.int64)
        kinds, first, kind = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        self.kind = kind.ravel()
        self.size, self.weight = size[order][first], weight[order][first]
        self.room = np.bincount(self.kind)
        self.leaves, of_leaf = np.unique(kinds[:, 0], return_inverse=True)
        self.of_leaf = of_leaf.ravel()
        _, at = np.unique(leaf[order], return_index=True)
        _, self.pod_of_leaf = np.unique(pod[order][at], return_inverse=True)
        self.pods = int(self.pod_of_leaf.max()) + 1

    def solve(self, end: float) -> tuple[Ints | None, tuple[float, float], bool]:
        """Return nodes, None where none were found in time; proven least (pods, leaves); whether all was proven."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array, vstack

        k, leaves, pods = len(self.size), len(self.leaves), self.pods
        n = k + leaves + pods
        rows = np.arange(leaves)

        def matrix(row: Sequence[int] | Ints, column: Ints, value: Floats | Ints, height: int) -> coo_array:
            return coo_array((np.asarray(value, dtype=float), (row, column)), shape=(height, n))

        held = np.bincount(self.of_leaf, weights=self.room, minlength=leaves)
        enough = matrix(np.zeros(k, dtype=int), np.arange(k), self.size, 1)
        in_leaf = matrix(self.of_leaf, np.arange(k), np.ones(k), leaves) - matrix(rows, k + rows, held, leaves)
        in_pod = matrix(rows, k + rows, np.ones(leaves), leaves) - matrix(
            rows, k + leaves + self.pod_of_leaf, np.ones(leaves), leaves
        )
        constraints = [
            LinearConstraint(enough, self.devices, np.inf),
            LinearConstraint(vstack([in_leaf, in_pod]).tocsr(), -np.inf, 0),
        ]
        bounds = Bounds(np.zeros(n), np.concatenate([self.room, np.ones(leaves + pods)]))
        goals = [np.zeros(n) for _ in range(4)]
        goals[0][k + leaves :] = 1
        goals[1][k : k + leaves] = 1
        goals[2][:k] = 1
        goals[3][:k] = self.weight
        nodes: Ints | None = None
        least = [0.0, 0.0]
        for number, goal in enumerate(goals):
            if not goal.any():
                continue
            left = end - time.monotonic()
            if left <= 0:
                return nodes, (least[0], least[1]), False
            whole = np.ones(n)
            options = {"time_limit": left, "mip_rel_gap": 0.0}
            found = milp(goal, constraints=constraints, bounds=bounds, integrality=whole, options=options)
            if found.x is not None:
                nodes = self._nodes(np.rint(found.x[:k]).astype(int))
            if number < 2 and found.mip_dual_bound is not None:
                least[number] = float(np.ceil(found.mip_dual_bound - 1e-6))
            if found.status != 0 or found.x is None:
                return nodes, (least[0], least[1]), False
            value = float(np.rint(found.fun)) if number < 3 else float(found.fun)
            constraints.append(LinearConstraint(goal[None, :], -np.inf, value + 1e-6))
        return nodes, (least[0], least[1]), True

    def _nodes(self, counts: Ints) -> Ints:
        begin = np.zeros(len(self.room), dtype=np.int64)
        order = np.argsort(self.kind, kind="stable")
        begin[1:] = np.cumsum(self.room)[:-1]
        places = [order[begin[kind] : begin[kind] + count] for kind, count in enumerate(counts.tolist()) if count]
        return self.free[np.concatenate(places)]
