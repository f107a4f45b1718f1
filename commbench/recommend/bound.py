"""What no order of ranks on the chosen nodes can be faster than, by the cost model: a proof, not an estimate.

For one flow. Three floors hold for every order:

- a device's own links: in an all-reduce each rank sends its buffer at least once (with a ring 2 (n - 1) / n of it),
  whatever takes it;
- the units of the tree: ranks of a group that are in a unit, while others are not, are cut off by its uplinks. At least
  `cut` bytes leave the unit for each such group, since the others need what is in it;
- latency: of the turns of a ring one at least leads out of each unit that has a part of it.

For all flows together. A unit that holds c cells of a grid of d axes cuts u groups of axis a, and by Loomis and Whitney
("An inequality related to the isoperimetric inequality", 1949) the product over axes of the groups that it touches is
at least c^(d-1). A group of n ranks that is not cut takes n of the cells, so that at most u (1 - 1/n) + c / n groups
are touched. The least time of the step that these u allow,

    minimise  sum over a of max(floor_a, cut_a u_a / out)    with  0 <= u_a <= c,
              prod over a of (u_a (1 - 1 / n_a) + c / n_a)  >=  c^(d - 1)

is found by bisection on the multiplier, for each unit; the largest one is the bound. It is compared with the sum of the
floors of each flow alone, which for one axis counts the cut units exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from commbench.model.placement import Placement
from commbench.recommend.score import DIRECT, Judge
from commbench.recommend.traffic import ALLREDUCE, ALLTOALL, MATRIX, SENDRECV, Flow
from commbench.recommend.tree import Tree
from commbench.topology.node import BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_BISECTIONS = 60


@dataclass(frozen=True)
class _Ladder:
    """The least latency, and the most bytes per second, of one transfer that leaves units of a level; level 0: ranks
    that share a domain. Both (levels + 1,), latency ascending and rate descending."""

    latency: Floats
    rate: Floats


def bound(judge: Judge, seats: Placement, units: Tree) -> float:
    """Return seconds that the communication of a step takes at least, in every order on these seats."""
    places = _Places(seats, units)
    alone, joint = 0.0, []
    for flow in judge.traffic.flows:
        names = places.possible(judge, flow)
        alone += min(places.floor(judge, flow, one, cuts=True) for one in names)
        least = min(places.floor(judge, flow, one, cuts=False) for one in names)
        joint.append((least, min(cut_bytes(flow, one) for one in names) * flow.times, flow))
    return max(alone, places.together([(least, cut, flow.n) for least, cut, flow in joint if flow.matrix is None]))


def cut_bytes(flow: Flow, algorithm: str) -> float:
    """Return bytes that leave a unit at least for a group of which it has a part; for those that come in the same.

    What an all-reduce needs to know of a part is a buffer's worth of sums. Of all-gather, reduce-scatter and broadcast a
    buffer crosses in one direction or the other: half of it as the mean of both.
    """
    n, size = flow.n, flow.size
    if flow.matrix is not None:
        return 0.0
    if flow.collective == SENDRECV:
        return size  # one neighbour at least is across, and sends as much as it gets
    if flow.collective == ALLTOALL:
        return size * (n - 1) / n
    if algorithm == "ring" and flow.collective == ALLREDUCE:
        return 2 * (n - 1) / n * size
    if algorithm == "ring" and flow.collective in ("allgather", "reducescatter"):
        return (n - 1) / n * size
    return size if flow.collective == ALLREDUCE else size / 2


class _Places:
    """The seats as bounds see them: how many are in each unit, and how fast one leaves it."""

    def __init__(self, seats: Placement, units: Tree) -> None:
        self.seats, self.units = seats, units
        self.held = [np.bincount(unit[seats.node], minlength=len(out)) for unit, out in
                     zip(units.unit, units.out, strict=True)]  # fmt: skip
        self.ladder = _ladder(seats, units)
        self.device = _device_rate(seats)

    def floor(self, judge: Judge, flow: Flow, algorithm: str, cuts: bool) -> float:
        """Return seconds that one flow takes at least with an algorithm; `cuts`: those of its units counted too."""
        n, size, times = flow.n, flow.size, flow.times
        if flow.collective == MATRIX:
            return self._matrix(flow) if cuts else 0.0
        once = n - 1
        sent = {ALLREDUCE: size, SENDRECV: size, "broadcast": 0.0, "allgather": size / n}.get(
            flow.collective, size * once / n
        )
        if algorithm == "ring" and flow.collective != "broadcast":
            sent = (2 if flow.collective == ALLREDUCE else 1) * size * once / n
        found = sent / self.device
        step = (self.seats.cluster.step_us or 0.0) * 1e-6
        turns = {ALLREDUCE: 2 * once, "allgather": once, "reducescatter": once}.get(flow.collective, 0)
        if algorithm == "ring" and turns:
            # how many channels share a turn's block depends on the order: of several the least share is none
            block = 0.0 if judge.library.by_node else size / n
            found = max(found, turns * (step + self._turn(n, block, cuts)))
        elif algorithm == DIRECT:
            found = max(found, step + self.ladder.latency[0] + size / self.device)
        if cuts and judge.traffic.ranks == n:
            found = max(found, self._alone(flow, algorithm))
        return float(found * times)

    def possible(self, judge: Judge, flow: Flow) -> list[str]:
        """Return the algorithms that a flow may have in some order on these seats; all where that leaves none."""
        reduces = all(one.switch is not None and one.switch.reduces for one, _ in self.seats.classes())
        network = all(one.reduces for one in self.seats.cluster.switches)
        found = []
        for name in judge.candidates(flow):
            if name != DIRECT and flow.collective not in import_module(f"commbench.model.schedules.{name}").COLLECTIVES:
                continue
            if name in ("nvls", "nvls_tree") and not reduces:
                continue
            if name == "nvls" and flow.n > self.held[0].max() and not network:
                continue
            found.append(name)
        return found or list(judge.candidates(flow))

    def _turn(self, n: int, block: float, cuts: bool) -> float:
        """Return the mean over the ranks of a ring of what a transfer takes that is alone on its way."""
        lowest = self.ladder.latency + block / self.ladder.rate
        total = n * lowest[0]
        if cuts:
            for level in range(self.units.levels):
                met = _fewest(self.held[level], n)
                if met > 1:
                    total += met * (lowest[level + 1] - lowest[level])
        return float(total / n)

    def _alone(self, flow: Flow, algorithm: str) -> float:
        """Return the seconds that the uplinks of units need for the one group of a flow, which all units have part of.

        Besides the fullest one: without a network that adds up, an all-reduce on m units sends 2 (m - 1) buffers out of
        them altogether (Patarasuk and Yuan, 2009), so that one unit has its share of those by what its uplinks carry.
        """
        found = 0.0
        for held, out in zip(self.held, self.units.out, strict=True):
            met = np.flatnonzero(held)
            if len(met) < 2:
                continue
            cut = np.full(len(met), cut_bytes(flow, algorithm))
            if flow.collective == ALLTOALL:
                cut = flow.size / flow.n * held[met] * (flow.n - held[met])
            found = max(found, float((cut / out[met]).max()))
            if flow.collective == ALLREDUCE and algorithm != "nvls":
                found = max(found, 2 * (len(met) - 1) * flow.size / float(out[met].sum()))
        return found

    def _matrix(self, flow: Flow) -> float:
        """Return what the busiest rank needs for the bytes that it sends or gets, by a device's own links."""
        assert flow.matrix is not None
        most = max(flow.matrix.sum(axis=0).max(), flow.matrix.sum(axis=1).max())
        return float(most / self.device) * flow.times

    def together(self, flows: list[tuple[float, float, int]]) -> float:
        """Return the bound of all axes together: of (floor, bytes cut, ranks of a group) for each flow."""
        floors = sum(least for least, _, _ in flows)
        if not flows:
            return 0.0
        best = floors
        for held, out in zip(self.held, self.units.out, strict=True):
            pairs = np.unique(np.stack([held[held > 0], out[held > 0]], axis=1), axis=0)
            for cells, rate in pairs.tolist():
                if np.isfinite(rate) and cells < self.seats.n:
                    best = max(best, least_time(int(cells), rate, flows))
        return best


def least_time(cells: int, out: float, flows: list[tuple[float, float, int]]) -> float:
    """Return seconds of a step at least when a unit holds so many cells of the grid: see the head of this file.

    `out` is bytes per second out of the unit, and a flow is (floor in seconds, bytes that a cut group sends, n).
    """
    floor = np.array([one[0] for one in flows])
    price = np.array([one[1] for one in flows]) / out  # seconds for each group that is cut
    n = np.array([one[2] for one in flows], dtype=float)
    dear = price > 0
    total = float(floor[~dear].sum())
    floor, price, n = floor[dear], price[dear], n[dear]
    if not len(price):
        return total
    share, whole = 1 - 1 / n, cells / n
    # An axis that costs nothing may be cut everywhere: it touches as many groups as there are cells.
    need = (len(flows) - 1 - int((~dear).sum())) * np.log(cells)
    if len(price) == 1 and need <= 0:
        cut = 1.0 if cells % n[0] else 0.0
        return total + float(max(floor[0], price[0] * cut))
    free = np.minimum(cells, floor / price)  # cut at no further time

    def touched(cut: Floats) -> float:
        return float(np.log(cut * share + whole).sum())

    def at(multiplier: float) -> Floats:
        return np.clip(multiplier / price - whole / share, free, cells)

    low, high = 0.0, float((price * (cells + whole / share)).max())
    if touched(free) >= need:
        return total + float(floor.sum())
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if touched(at(middle)) >= need else (middle, high)
    return total + float(np.maximum(floor, price * at(low)).sum())


def _fewest(held: Ints, n: int) -> int:
    """Return how few units hold n ranks."""
    return int(np.searchsorted(np.cumsum(np.sort(held)[::-1]), n) + 1)


def _ladder(seats: Placement, units: Tree) -> _Ladder:
    """Return the least that a transfer takes within a domain, and from one unit of each level to another."""
    inside, out = np.inf, np.inf
    fastest_inside, fastest_nic = 0.0, 0.0
    for node, ranks in seats.classes():
        devices = sorted(set(seats.device[ranks].tolist()))
        ways = [node.route(node.devices[a].id, node.devices[b].id) or () for a in devices for b in devices if a != b]
        hub = node.switch
        if hub:
            ways += [node.route(node.devices[a].id, hub.id) or () for a in devices]
        for way in ways:
            links = [node.links[hop.link] for hop in way]
            inside = min(inside, sum(link.us or 0.0 for link in links))
            fastest_inside = max(fastest_inside, min((link.gbps or np.inf for link in links), default=np.inf))
        for nic in node.compute_nics:
            for a in devices:
                links = [node.links[hop.link] for hop in node.route(node.devices[a].id, node.nics[nic].id) or ()]
                out = min(out, sum(link.us or 0.0 for link in links) + (node.nics[nic].us or 0.0) / 2)
            fastest_nic = max(fastest_nic, node.nics[nic].gbps or np.inf)
    if len(np.unique(seats.node)) == seats.n or not np.isfinite(inside):
        inside, fastest_inside = 0.0, np.inf  # nobody has company, or ranks share a device
    if len(np.unique(seats.node * 4096 + seats.device)) < seats.n:
        inside, fastest_inside = 0.0, np.inf
    latency = [inside]
    network = 2 * out if np.isfinite(out) else 0.0
    for us in units.us:  # from one domain to another over a leaf, then up and down once more for each level
        network += 2 * us
        latency.append(network)
    rates = [fastest_inside or np.inf] + [fastest_nic or np.inf] * units.levels
    latency_ = np.minimum.accumulate(np.array(latency)[::-1])[::-1] * 1e-6
    rate = np.maximum.accumulate(np.array(rates)[::-1])[::-1] * BYTES
    return _Ladder(latency_, rate)


def _device_rate(seats: Placement) -> float:
    """Return the most bytes per second that all links of a device carry away together."""
    most = 0.0
    for node, ranks in seats.classes():
        for place in sorted(set(seats.device[ranks].tolist())):
            mine = node.devices[place].id
            most = max(most, sum(link.gbps or np.inf for link in node.links if mine in (link.a, link.b)))
    shared = len(np.unique(seats.node * 4096 + seats.device)) < seats.n
    return (most or np.inf) * BYTES if not shared else np.inf

