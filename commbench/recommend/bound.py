"""What no order of ranks on the chosen nodes can be faster than, by the cost model: a proof, not an estimate.

For one flow these floors hold in every order:

- a device's own links: in an all-reduce each rank sends its buffer at least once (with a ring 2 (n - 1) / n of it),
  whatever takes it;
- the uplinks of a unit of the tree (tree.py) that has a part of a group: at least `cut` bytes leave it, since the
  others need what is in it;
- latency: of the turns of a ring one at least leads out of each unit that has a part of it.

For all flows together, see each unit as a set of c cells of the grid. Of axis a it touches p_a groups, and by Loomis
and Whitney ("An inequality related to the isoperimetric inequality", 1949) the product of all p_a is at least
c^(d - 1): who keeps one axis inside cuts the others. Two bounds follow.

One unit (`least_time`). Whole groups of n ranks take n cells each, so that of p touched groups u are cut with
p <= u (1 - 1/n) + c / n. The least sum over axes of max(floor_a, cut_a u_a / out) is found by bisection on the
multiplier; the unit with the largest one bounds the step.

All units (`least_mean`). A group on m units sends k (m - 1) buffers out of them altogether: k is 2 for an all-reduce
unless switches of the network add up (Patarasuk and Yuan, 2009), 2 for a sendrecv, which is both ways, else 1; for an
all-to-all that holds of each unit by itself. Summed over units this is k (p - c / n) each, so that the time of axis a
is at least floor_a, and at least the sum over units of k s (p_a - c / n_a), divided by what leaves all units in a
second. With weights w in [0, 1] the larger of both is at least (1 - w) floor + w sum; for given weights each unit's
least is that of a linear function over whole numbers p whose product is large enough, and weights are chosen so that
the bound is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from commbench.model.placement import Placement
from commbench.recommend.score import DIRECT, Judge
from commbench.recommend.traffic import ALLREDUCE, ALLTOALL, SENDRECV, Flow
from commbench.recommend.tree import Tree
from commbench.topology.node import BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_ROUNDS = ("recursive_doubling", "rabenseifner", "distance_halving", "recursive_halving", "binomial", "bruck")
_NEVER = 1e6  # times the bytes, for a group that cannot be cut
_BISECTIONS = 60
_POINTS = 20_000  # of a unit's numbers of groups that are looked at


@dataclass(frozen=True)
class _Ladder:
    """The least latency, and the most bytes per second, of one transfer that leaves units of a level; level 0: ranks
    that share a domain. Both (levels + 1,), latency ascending and rate descending."""

    latency: Floats
    rate: Floats


def bound(judge: Judge, seats: Placement, units: Tree) -> float:
    """Return seconds that the communication of a step takes at least, in every order on these seats."""
    places = _Places(seats, units)
    alone, joint, sent = 0.0, [], []
    for flow in judge.traffic.flows:
        names = places.possible(judge, flow)
        least = min(places.floor(judge, flow, one) for one in names)
        alone += least
        times = flow.times * (_NEVER if places.stays(names) else 1)
        joint.append((least, min(cut_bytes(flow, one) for one in names) * times, flow))
        sent.append(min(_buffers(flow, one) for one in names) * flow.size * times)
    if any(flow.matrix is not None for flow in judge.traffic.flows):
        return alone
    floors = np.array([least for least, _, _ in joint])
    n = np.array([flow.n for _, _, flow in joint], dtype=float)
    mean = places.mean(floors, np.array(sent), n)
    return max(alone, mean, places.together([(least, cut, flow.n) for least, cut, flow in joint]))


def _buffers(flow: Flow, algorithm: str) -> int:
    """Return k: a group on m units sends k (m - 1) buffers out of them at least."""
    both = flow.collective == SENDRECV or (flow.collective == ALLREDUCE and algorithm != "nvls")
    return 2 if both else 1


def cut_bytes(flow: Flow, algorithm: str) -> float:
    """Return bytes that leave a unit at least for a group of which it has a part; for those that come in the same.

    What an all-reduce needs to know of a part is a buffer's worth of sums. Of all-gather, reduce-scatter and broadcast
    a buffer crosses in one direction or the other: half of it as the mean of both.
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

    def floor(self, judge: Judge, flow: Flow, algorithm: str) -> float:
        """Return seconds that one flow takes at least with an algorithm."""
        n, size = flow.n, flow.size
        if flow.matrix is not None:
            return self._matrix(flow, flow.matrix)
        turns = {ALLREDUCE: 2 * (n - 1), "allgather": n - 1, "reducescatter": n - 1}.get(flow.collective, 0)
        sent = {ALLREDUCE: size, SENDRECV: size, "broadcast": 0.0, "allgather": size / n}.get(
            flow.collective, size * (n - 1) / n
        )
        chained = algorithm == "ring" and turns > 0
        full = max((turns * size / n if chained else sent) / self.device, self._alone(judge, flow, algorithm))
        if not chained:  # latencies, and what the fullest link of each step needs, add up
            return (self._waits(flow, algorithm) + full) * flow.times
        # how many channels share a turn's block depends on the order: of several the least share is none
        block = 0.0 if judge.library.by_node else size / n
        step = (self.seats.cluster.step_us or 0.0) * 1e-6
        return max(full, turns * (step + self._turn(n, block))) * flow.times

    def _waits(self, flow: Flow, algorithm: str) -> float:
        """Return the latency and software of the steps that a flow takes at least.

        Where each rank sends one message a step, what one rank has is on at most twice as many ranks, and in at most
        twice as many units, after a step: log2 of them steps lead out of units. Else one step does.
        """
        rounds = algorithm in _ROUNDS
        step = (self.seats.cluster.step_us or 0.0) * 1e-6
        steps = int(np.ceil(np.log2(flow.n))) if rounds else 1
        total = steps * (step + self.ladder.latency[0])
        for level in range(self.units.levels):
            met = _fewest(self.held[level], flow.n)
            if met > 1:
                some = int(np.ceil(np.log2(met))) if rounds else 1
                total += some * (self.ladder.latency[level + 1] - self.ladder.latency[level])
        return float(total)

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

    def stays(self, names: list[str]) -> bool:
        """Whether a flow has nothing but NVLS, in a network that does not add up: its groups are never cut."""
        return names == ["nvls"] and not all(one.reduces for one in self.seats.cluster.switches)

    def _turn(self, n: int, block: float) -> float:
        """Return the mean over the ranks of a ring of what a transfer takes that is alone on its way."""
        lowest = self.ladder.latency + block / self.ladder.rate
        total = n * lowest[0]
        for level in range(self.units.levels):
            met = _fewest(self.held[level], n)
            if met > 1:
                total += met * (lowest[level + 1] - lowest[level])
        return float(total / n)

    def _alone(self, judge: Judge, flow: Flow, algorithm: str) -> float:
        """Return the seconds that the uplinks of units need for the one group of a flow, which all units have part of.

        Besides the fullest one: m units send k (m - 1) buffers altogether, of which one has its share by its uplinks.
        """
        found = 0.0
        if judge.traffic.ranks != flow.n:
            return found
        for held, out in zip(self.held, self.units.out, strict=True):
            met = np.flatnonzero(held)
            if len(met) < 2:
                continue
            cut = np.full(len(met), cut_bytes(flow, algorithm))
            if flow.collective == ALLTOALL:
                cut = flow.size / flow.n * held[met] * (flow.n - held[met])
            found = max(found, float((cut / out[met]).max()))
            total = _buffers(flow, algorithm) * (len(met) - 1) * flow.size
            if flow.collective != ALLTOALL:
                found = max(found, total / float(out[met].sum()))
        return found

    def _matrix(self, flow: Flow, matrix: Floats) -> float:
        """Return what the busiest rank needs for the bytes that it sends or gets, by a device's own links."""
        most = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
        return float(most / self.device) * flow.times

    def mean(self, floors: Floats, sent: Floats, n: Floats) -> float:
        """Return the bound over all units of a level, the largest of all levels; `sent` is k times the bytes."""
        best = float(floors.sum())
        for held, out in zip(self.held, self.units.out, strict=True):
            met = held > 0
            if met.sum() > 1 and np.isfinite(out[met]).all():
                best = max(best, least_mean(held[met], float(out[met].sum()), floors, sent, n))
        return best

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


def least_mean(cells: Ints, out: float, floors: Floats, sent: Floats, n: Floats) -> float:
    """Return seconds of a step at least when units hold so many cells each, and together send `out` bytes per second.

    Of each axis: the floor in seconds, k times the bytes of a buffer, the ranks of a group. See the head of the file.
    """
    sizes, count = np.unique(cells, return_counts=True)
    parts = [_touched(int(size), n) for size in sizes]

    def least(weights: Floats) -> Floats:  # (trials, axes)
        total = (1 - weights) @ floors
        for points, number in zip(parts, count.tolist(), strict=True):
            total = total + number / out * (weights * sent @ points.T).min(axis=1)
        return np.asarray(total)

    axes = len(n)
    grid = np.linspace(0, 1, 5 if axes <= 3 else 3)
    trials = (
        np.stack(np.meshgrid(*[grid] * axes, indexing="ij"), axis=-1).reshape(-1, axes)
        if axes <= 4
        else np.ones((1, axes))
    )
    step = grid[1]
    best, value = trials[0], -np.inf
    for _ in range(5):
        found = least(trials)
        place = int(found.argmax())
        if found[place] > value:
            best, value = trials[place], float(found[place])
        step /= 2
        near = np.stack(np.meshgrid(*[[-step, 0.0, step]] * min(axes, 4), indexing="ij"), axis=-1).reshape(
            -1, min(axes, 4)
        )
        trials = np.clip(best + near, 0, 1) if axes <= 4 else trials
    return value


def _touched(cells: int, n: Floats) -> Floats:
    """Return p - cells / n for groups that a unit may touch, (points, axes): no others are cheaper on all axes.

    p are whole numbers with a product of cells^(d - 1) at least, where there are few; else a grid of powers that lies
    below all of them.
    """
    axes = len(n)
    low = np.ceil(cells / n - 1e-9)
    need = float(cells) ** (axes - 1)
    most = _POINTS ** (1 / max(1, axes - 1))
    if cells <= most:
        some = [np.arange(one, cells + 1) for one in low[:-1]]
    else:  # rounded down to the next power: cheaper than what they stand for, and the last axis as if rounded up
        some = [np.unique(np.concatenate([np.geomspace(max(one, 1), cells, int(most)), [one]])) for one in low[:-1]]
    mesh = np.stack(np.meshgrid(*some, indexing="ij"), axis=-1).reshape(-1, axes - 1) if axes > 1 else np.zeros((1, 0))
    above = mesh
    if axes > 1 and cells > most:
        step = [np.append(one[1:], one[-1]) for one in some]
        above = np.stack(np.meshgrid(*step, indexing="ij"), axis=-1).reshape(-1, axes - 1)
    last = need / above.prod(axis=1)
    last = np.maximum(np.ceil(last - 1e-9) if cells <= most else last, low[-1])
    fits = last <= cells
    return np.concatenate([mesh, last[:, None]], axis=1)[fits] - cells / n


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
    if len(np.unique(seats.node)) == seats.n or not np.isfinite(inside) or seats.shares_devices:
        inside, fastest_inside = 0.0, np.inf  # nobody has company, or ranks share a device
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
    return (most or np.inf) * BYTES if not seats.shares_devices else np.inf
