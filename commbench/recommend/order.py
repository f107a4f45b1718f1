"""Which rank sits where on the nodes that were chosen: the order for the traffic and the algorithms in use.

Seats are numbered by a depth-first walk of the switches, which enters each unit once; an order names the seat of each
rank. No single one is right for all algorithms: rings and trees want the walk itself, butterflies whose farthest
exchange is the largest one want it bit-reversed, and a grid of axes wants tiles of it that fill nodes and leaves.

What is tried: those, and whatever order is given (the one in use, that by name); the best of them by the cost model is
then improved by swapping whole nodes, on loads that are kept up to date swap by swap, and in small cases by swapping
ranks on the model itself, in the smallest from several random orders too. Where every order can be tried, it is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import factorial, prod
from typing import TYPE_CHECKING

import numpy as np

from commbench.errors import UsageError
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.recommend.score import Judge, Score
from commbench.recommend.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Tile = tuple[int, ...]  # its side along each axis

BUTTERFLIES = ("recursive_doubling", "rabenseifner", "distance_halving", "recursive_halving")
ALL_TRIED = 720  # orders, at most: six ranks
_TILINGS = 600  # whose loads are looked at
_SCORED = 12  # of which the model scores so many, and one of each tile of a node anyway
_SWAPS = 40_000
_RANKS_SWAPPED = 64  # ranks, at most, that are swapped one by one on the model
_STARTED_ANEW, _STARTS = 10, 6  # ranks, at most, of which so many other orders are improved by swaps too: local optima
_WORTH = 1e-3  # of the time: where ranks are many, an order made up here is not worth its strangeness for less
_SAME = 1e-9  # of the time: by less no order is better
_EDGES = 4_000_000  # of a step's graph between nodes, that swaps keep up to date


@dataclass(frozen=True)
class Found:
    """An order: `seat` of each rank, its score, how it was found; `exact`: no other order is better."""

    seat: Ints
    score: Score
    how: str
    exact: bool = False


def seated(seats: Placement, seat: Ints) -> Placement:
    """Return ranks on seats."""
    return Placement(seats.cluster, seats.node[seat], seats.device[seat])


def search(
    judge: Judge,
    seats: Placement,
    units: Tree,
    given: Mapping[str, Ints] | None = None,
    seconds: float = 5.0,
    exact: bool = True,
) -> Found:
    """Return the best order that was found within about so many seconds; never worse than one of `given` by the model.

    `exact`: try every order where there are few.
    """
    end = time.monotonic() + seconds
    n, routes = seats.n, Routes(seats, judge.library)
    if exact and factorial(min(n, 20)) <= ALL_TRIED:
        return _every(judge, seats, routes)
    best = Found(np.arange(n), judge.score(seats, routes=routes), "depth-first")
    seen = {best.seat.tobytes()}
    made_up = _WORTH if n > _RANKS_SWAPPED else _SAME

    def consider(seat: Ints, how: str, algorithms: Mapping[str, str] | None = None, worth: float = made_up) -> bool:
        nonlocal best
        if seat.tobytes() in seen:
            return False
        seen.add(seat.tobytes())
        score = _scored(judge, seats, seat, algorithms, routes)
        if score is None:
            return False
        if score.seconds < best.score.seconds * (1 - worth):
            best = Found(seat, score, how)
            return True
        return False

    for how, seat in (given or {}).items():
        consider(seat, how, worth=_SAME)
    algorithms = best.score.algorithms
    if any(name in BUTTERFLIES for flow in judge.traffic.flows for name in judge.candidates(flow)):
        consider(_bit_reversed(n), "bit-reversed depth-first")
        consider(_nodes_bit_reversed(seats), "nodes in bit-reversed depth-first order")
    for seat, how, first in _promising(judge, seats, units, algorithms):
        if time.monotonic() > end:
            break
        consider(seat, how, None if first else algorithms)  # those of another tile may not suit the first of one
    while time.monotonic() < end:
        better = _swapped(judge, seats, units, best, end)
        if better is None or not consider(better, f"{best.how}, nodes swapped".replace(", nodes swapped" * 2, ""),
                                          best.score.algorithms):  # fmt: skip
            break
    if n <= _RANKS_SWAPPED:
        best = _ranks_swapped(judge, seats, routes, best, end)
    draw = np.random.default_rng(0)
    for _ in range(_STARTS if n <= _STARTED_ANEW else 0):
        seat = draw.permutation(n)
        score = _scored(judge, seats, seat, None, routes)
        if score is None or time.monotonic() > end:
            continue
        other = _ranks_swapped(judge, seats, routes, Found(seat, score, "a random order"), end)
        if other.score.seconds < best.score.seconds * (1 - made_up):
            best = other
    return best


def _ranks_swapped(judge: Judge, seats: Placement, routes: Routes, best: Found, end: float) -> Found:
    """Return an order with ranks swapped one by one as long as that helps; each swap is scored by the model."""
    how = f"{best.how}, ranks swapped"
    seen = {best.seat.tobytes()}
    improved = True
    while improved:
        improved = False
        for one, other in itertools.combinations(range(seats.n), 2):
            if time.monotonic() > end:
                return best
            seat = best.seat.copy()
            seat[[one, other]] = seat[[other, one]]
            if seat.tobytes() in seen:
                continue
            seen.add(seat.tobytes())
            score = _scored(judge, seats, seat, None, routes)
            if score is not None and score.seconds < best.score.seconds * (1 - _SAME):
                best, improved = Found(seat, score, how), True
    return best


def _scored(
    judge: Judge, seats: Placement, seat: Ints, algorithms: Mapping[str, str] | None, routes: Routes
) -> Score | None:
    """Return the score of an order: with these algorithms, with others where it has none of them, None without any."""
    for names in (algorithms, None) if algorithms else (None,):
        try:
            return judge.score(seats, seat, names, routes)
        except UsageError:
            continue
    return None


def _every(judge: Judge, seats: Placement, routes: Routes) -> Found:
    best: Found | None = None
    for order in itertools.permutations(range(seats.n)):
        score = _scored(judge, seats, np.array(order), None, routes)
        if score is None:
            continue
        if best is None or score.seconds < best.score.seconds * (1 - _SAME):
            best = Found(np.array(order), score, "every order tried", exact=True)
    if best is None:
        judge.score(seats, routes=routes)  # says why there is none
    assert best is not None
    return best


def bit_reversal(n: int) -> Ints:
    """Return 0 to n-1 by their bits read backwards; for a power of two that is its own inverse."""
    bits = max(1, (n - 1).bit_length())
    number = np.arange(n)
    backwards = np.zeros(n, dtype=np.int64)
    for bit in range(bits):
        backwards |= (number >> bit & 1) << (bits - 1 - bit)
    return np.argsort(backwards, kind="stable")


def _bit_reversed(n: int) -> Ints:
    seat = np.empty(n, dtype=np.int64)
    seat[bit_reversal(n)] = np.arange(n)
    return seat


def _nodes_bit_reversed(seats: Placement) -> Ints:
    """Return the order in which ranks fill the nodes one after another, bit-reversed."""
    begins = np.flatnonzero(np.concatenate([[True], seats.node[1:] != seats.node[:-1]]))
    ends = np.append(begins[1:], seats.n)
    return np.concatenate([np.arange(begins[node], ends[node]) for node in bit_reversal(len(begins))])


# Tiles: an axis is cut into what is in a node, what is in a leaf, and what is beyond.


def _promising(
    judge: Judge, seats: Placement, units: Tree, algorithms: Mapping[str, str]
) -> Iterator[tuple[Ints, str, bool]]:
    """Yield tilings, those first whose heaviest loaded units are loaded the least, and whether it is its tile's first.

    The best of each tile of a node comes before all others: loads see nothing inside a node, no latency and one
    algorithm, and so compare what is beyond nodes better than tiles of one.
    """
    if len(judge.traffic.axes) < 2:
        return
    graph = _ranks_graph(judge, seats, algorithms)
    found: list[tuple[float, int, Tile, Ints, str]] = []
    for tile, seat, how in itertools.islice(_tilings(judge.traffic.axes, seats, units), _TILINGS):
        found.append((graph.loaded(seats.node[seat], units), len(found), tile, seat, how))
    found.sort(key=lambda one: one[:2])
    firsts = {tile: number for _, number, tile, _, _ in reversed(found)}
    found.sort(key=lambda one: firsts[one[2]] != one[1])
    for _, number, tile, seat, how in found[: max(_SCORED, len(firsts))]:
        yield seat, how, firsts[tile] == number


def _tilings(axes: Mapping[str, int], seats: Placement, units: Tree) -> Iterator[tuple[Tile, Ints, str]]:
    """Yield tilings and their tile of a node, of each such tile in turn: where there are too many, none is left out."""
    sizes = list(axes.values())
    in_node = int(np.bincount(seats.node).max())
    leaf = units.unit[min(1, units.levels - 1)][seats.node]
    in_leaf = max(1, int(np.bincount(leaf).max()) // in_node)
    orders = list(itertools.permutations(range(len(sizes)))) if len(sizes) <= 4 else [tuple(range(len(sizes)))]

    def of(tile: Tile) -> Iterator[tuple[Tile, Ints, str]]:
        rest = [size // part for size, part in zip(sizes, tile, strict=True)]
        for outer in _tiles(rest, in_leaf):
            how = f"tiles of {_times(axes, tile)} in a node, {_times(axes, outer)} of them in a leaf"
            for order in orders:
                yield tile, _tiling(sizes, [tile, outer], order), how

    for some in itertools.zip_longest(*map(of, _tiles(sizes, in_node))):
        yield from (one for one in some if one is not None)


def _tiles(sizes: Sequence[int], most: int) -> list[Tile]:
    """Return tiles whose sides divide the axes, with at most so many cells: the fullest first, at most 24.

    Of those alike the ones first that cut the fewest axes, whichever axis comes first.
    """
    sides = [[side for side in range(1, min(size, most) + 1) if size % side == 0] for size in sizes]
    found = [tile for tile in itertools.product(*sides) if prod(tile) <= most]
    cut = {tile: sum(1 < side < size for side, size in zip(tile, sizes, strict=True)) for tile in found}
    found.sort(key=lambda tile: (-prod(tile), cut[tile], tuple(-side for side in tile)))
    full = [tile for tile in found if prod(tile) == prod(found[0])]
    return full[:24] if len(full) > 3 else found[: max(4, len(full))]


def _tiling(sizes: Sequence[int], tiles: Sequence[Sequence[int]], order: Sequence[int]) -> Ints:
    """Return the seat of each rank when seats go through a tile before the next one, axis by axis in this order."""
    rank = np.arange(prod(sizes))
    cell = []
    for size in sizes:
        rank, place = np.divmod(rank, size)
        cell.append(place)
    seat, stride = np.zeros(prod(sizes), dtype=np.int64), 1
    for number, tile in enumerate([*tiles, list(sizes)]):
        for axis in order if number else range(len(sizes)):
            side = min(tile[axis], sizes[axis])
            cell[axis], place = np.divmod(cell[axis], side)
            left = side if number < len(tiles) else sizes[axis] // prod(one[axis] for one in tiles)
            seat += place * stride
            stride *= left
    return seat


def _times(axes: Mapping[str, int], tile: Sequence[int]) -> str:
    return " x ".join(f"{name} {side}" for name, side in zip(axes, tile, strict=True) if side > 1) or "one"


# Loads of units, which stand for the time: the sum over phases of what the fullest unit needs.


@dataclass(frozen=True)
class _Graph:
    """Who sends to whom in each phase of a step, (edges,): in bytes of a whole step; phases follow one another."""

    source: Ints
    target: Ints
    weight: Floats
    phase: Ints
    phases: int

    def loaded(self, node: Ints, units: Tree) -> float:
        """Return the seconds that the fullest units need, with the ends of edges on these nodes."""
        total = np.zeros(self.phases)
        source, target = node[self.source], node[self.target]
        for level in range(units.levels):
            here, there = units.unit[level][source], units.unit[level][target]
            cross = here != there
            if not cross.any():
                continue
            count = len(units.out[level])
            for ends in (here, there):
                load = np.bincount(self.phase[cross] * count + ends[cross], weights=self.weight[cross],
                                   minlength=self.phases * count)  # fmt: skip
                total = np.maximum(total, (load.reshape(self.phases, count) / units.out[level]).max(axis=1))
        return float(total.sum())


def _ranks_graph(judge: Judge, seats: Placement, algorithms: Mapping[str, str]) -> _Graph:
    """Return the graph between ranks. A library that passes through nodes one after another makes rings of it."""
    parts = []
    for flow in judge.traffic.flows:
        if judge.library.by_node and flow.matrix is None and flow.collective != "alltoall":
            last = None if flow.wraps else -1
            source = flow.members[:, :last].ravel()
            target = np.roll(flow.members, -1, axis=1)[:, :last].ravel()
            parts.append([(source, target, np.full(len(source), 2 * flow.size * flow.times))])
        else:
            parts.append(_phases(judge, flow.axis, algorithms[flow.axis], seats))
    return _joined([phase for part in parts for phase in part])


def _phases(
    judge: Judge, axis: str, algorithm: str, seats: Placement, seat: Ints | None = None
) -> list[tuple[Ints, Ints, Floats]]:
    """Return the steps of a flow, each as (source, target, bytes); steps of a pipeline are one."""
    flow = next(one for one in judge.traffic.flows if one.axis == axis)
    channels = judge.schedules(flow, algorithm, seats, seat)
    n, scale = seats.n, flow.size * flow.times / len(channels)
    found: dict[bytes | int, list[tuple[Ints, Ints, Floats]]] = {}
    edges = 0
    for place in range(max(len(one.steps) for one in channels)):
        steps = [one.steps[place] for one in channels if place < len(one.steps)]
        source, target = (np.concatenate([getattr(step, end) for step in steps]) for end in ("source", "target"))
        weight = np.concatenate([step.count * (step.times * scale) for step in steps])
        keep = (source < n) & (target < n)
        phase = (source[keep], target[keep], weight[keep])
        edges += len(phase[0])
        if edges > _EDGES:
            break
        key: bytes | int = -1 if channels[0].pipelined else phase[0].tobytes() + phase[1].tobytes()
        found.setdefault(key, []).append(phase)
    return [tuple(np.concatenate(column) for column in zip(*phases, strict=True)) for phases in found.values()]  # type: ignore[misc]


def _joined(phases: Sequence[tuple[Ints, Ints, Floats]]) -> _Graph:
    return _Graph(
        np.concatenate([one[0] for one in phases]),
        np.concatenate([one[1] for one in phases]),
        np.concatenate([one[2] for one in phases]),
        np.repeat(np.arange(len(phases)), [len(one[0]) for one in phases]),
        len(phases),
    )


# Swaps of whole nodes.


def _swapped(judge: Judge, seats: Placement, units: Tree, best: Found, end: float) -> Ints | None:
    """Return a better order by loads, with what is on a node and what is on another one like it swapped; or None."""
    nodes, at = np.unique(seats.node, return_inverse=True)
    levels = [level for level in range(1, units.levels) if len(np.unique(units.unit[level][nodes])) > 1]
    if len(nodes) < 2 or not levels:
        return None
    phases = [
        phase for part in best.score.parts for phase in _phases(judge, part.axis, part.algorithm, seats, best.seat)
    ]
    graph = _joined(phases)
    if len(graph.source) > _EDGES:
        return None
    state = _Swaps(_between(graph, at, len(nodes)), units, nodes, levels)
    sat = state.improve(_kinds(seats, nodes, at), end)
    if sat is None:
        return None
    # What was on the k-th node goes to the sat[k]-th, device by device: alike nodes have their seats in one order.
    order = np.argsort(at, kind="stable")
    first = np.zeros(len(nodes), dtype=np.int64)
    first[at[order[::-1]]] = np.arange(seats.n)[::-1]
    place = np.empty(seats.n, dtype=np.int64)
    place[order] = np.arange(seats.n) - first[at[order]]
    return order[first[sat[at[best.seat]]] + place[best.seat]]


def _kinds(seats: Placement, nodes: Ints, at: Ints) -> Ints:
    """Return a number for each node, equal where the same class of node has the same devices in use."""
    used: list[list[int]] = [[] for _ in nodes]
    for place, device in zip(at.tolist(), seats.device.tolist(), strict=True):
        used[place].append(device)
    node_class = seats.cluster.arrays.node_class[nodes].tolist()
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    return np.array(
        [numbers.setdefault((one, tuple(some)), len(numbers)) for one, some in zip(node_class, used, strict=True)]
    )  # fmt: skip


def _between(graph: _Graph, at: Ints, nodes: int) -> _Graph:
    """Return the graph between nodes: edges of a phase with the same ends are one."""
    source, target = at[graph.source], at[graph.target]
    far = source != target
    key = (graph.phase[far] * nodes + source[far]) * nodes + target[far]
    ends, inverse = np.unique(key, return_inverse=True)
    weight: Floats = np.bincount(inverse, weights=graph.weight[far], minlength=len(ends)).astype(np.float64)
    return _Graph(ends // nodes % nodes, ends % nodes, weight, ends // nodes // nodes, graph.phases)


class _Swaps:
    """The loads of units, kept up to date while what sits on two nodes is swapped."""

    def __init__(self, graph: _Graph, units: Tree, nodes: Ints, levels: Sequence[int]) -> None:
        self.graph, self.nodes = graph, nodes
        unit, speed, first = [], [], 0
        for level in levels:
            _, here = np.unique(units.unit[level][nodes], return_inverse=True)
            unit.append(here + first)
            rates = np.full(int(here.max()) + 1, np.inf)
            rates[here] = units.out[level][units.unit[level][nodes]]
            speed.append(rates)
            first += len(rates)
        self.unit = np.stack(unit)  # (levels, nodes): numbered through all levels
        rate = np.concatenate(speed)
        self.slow = np.concatenate([1 / rate, 1 / rate])  # out of a unit, then into it
        self.count = first
        self.sat = np.arange(len(nodes))  # the node that what was on each one is on now
        self.load = np.zeros((graph.phases, 2 * first))
        ends = np.concatenate([graph.source, graph.target])
        order = np.argsort(ends, kind="stable")
        self.edges = np.tile(np.arange(len(graph.source)), 2)[order]
        self.begin = np.searchsorted(ends[order], np.arange(len(nodes) + 1))
        self._add(np.arange(len(graph.source)), 1.0)

    def _add(self, edges: Ints, sign: float) -> None:
        graph = self.graph
        here = self.unit[:, self.sat[graph.source[edges]]]
        there = self.unit[:, self.sat[graph.target[edges]]]
        cross = here != there
        phase = np.broadcast_to(graph.phase[edges], here.shape)[cross]
        weight = np.broadcast_to(graph.weight[edges] * sign, here.shape)[cross]
        np.add.at(self.load, (phase, here[cross]), weight)
        np.add.at(self.load, (phase, self.count + there[cross]), weight)

    def _cost(self) -> float:
        """Return what the fullest units need, and a little of what all need, so that each step down is seen."""
        needs = self.load * self.slow
        return float(needs.max(axis=1).sum() + 1e-3 * needs.mean(axis=1).sum())

    def improve(self, kinds: Ints, end: float) -> Ints | None:
        """Return where what was on each node is to go, None where no swap helps."""
        draw = np.random.default_rng(0)
        count = len(self.nodes)
        cost = begin = self._cost()
        idle = 0
        for tried in range(_SWAPS):
            if idle > 40 * count or (tried % 64 == 0 and time.monotonic() > end):
                break
            idle += 1
            one, other = (int(place) for place in draw.integers(count, size=2))
            if kinds[one] != kinds[other] or self.unit[0, self.sat[one]] == self.unit[0, self.sat[other]]:
                continue
            edges = np.unique(np.concatenate([self.edges[self.begin[place] : self.begin[place + 1]]
                                              for place in (one, other)]))  # fmt: skip
            self._swap(one, other, edges)
            found = self._cost()
            if found < cost * (1 - 1e-9):
                cost, idle = found, 0
            else:
                self._swap(one, other, edges)
        return self.sat if cost < begin * (1 - 1e-9) else None

    def _swap(self, one: int, other: int, edges: Ints) -> None:
        self._add(edges, -1.0)
        self.sat[[one, other]] = self.sat[[other, one]]
        self._add(edges, 1.0)
