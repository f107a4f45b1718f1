"""The advice: which nodes, which rank where, what that brings beside other orders, and how far it is from the bound."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.errors import UsageError
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.recommend import inside, robust
from commbench.recommend.bound import bound
from commbench.recommend.nodes import Chosen, choose, described, devices_of
from commbench.recommend.order import Found, seated
from commbench.recommend.plan import Plan, Seat
from commbench.recommend.robust import Held
from commbench.recommend.score import Judge, Score
from commbench.recommend.traffic import WITHIN, Flow, Traffic
from commbench.recommend.tree import depth_first, tree
from commbench.topology.cluster import Cluster
from commbench.topology.hosts import fold

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

TAKE, TRY, KEEP = "take it", "try it", "keep what you have"
DEFAULT, CURRENT, RANDOM, RECOMMENDED, BOUND = "default", "current", "random", "recommended", "bound"
SHOWN = {DEFAULT: "by name", CURRENT: "in use"}  # what people read for them
GRANTED = "granted"  # how nodes were taken that were not chosen here
# Of a gain, where nothing was fitted: at worst the model is off for one of two orders as little as for any published
# time, and for the other one as much.
_LEAST, _MOST = robust.PUBLISHED
ASSUMED_ERROR = 1 - _LEAST / _MOST
_SEEDS = (1, 2, 3)  # of random orders, whose mean is told; one where ranks are many
_MANY = 20_000  # ranks
_LIMITS = 4


@dataclass(frozen=True)
class Wish:
    """What is to be placed. `free` are places of nodes; `current` the seats in use; `slow` weights of slow nodes.

    `error` is how far a predicted gain may be off, as a fraction, and `error_source` where that is from. `granted`:
    the nodes are a job's, and are filled one after another as the switches are walked, not chosen among.
    """

    judge: Judge
    free: Ints
    current: tuple[Seat, ...] = ()
    slow: Mapping[int, float] = field(default_factory=dict)
    error: float = ASSUMED_ERROR
    error_source: str = f"data sheets alone: published times are {_LEAST} to {_MOST} times those predicted from them"
    granted: bool = False
    cores: int | None = None  # of each node, for the ranges of cores
    seconds: float = 5.0  # for the search of an order


@dataclass(frozen=True)
class Advice:
    """A plan, and what led to it."""

    plan: Plan
    nodes: Chosen  # the plan's
    hosts: tuple[str, ...]  # of the recommended order and of `left`, which are not the plan's where another is kept
    held: Held  # the recommended order against the reference
    left: Held | None  # the order that gains most with the fastest algorithms, where another one was preferred
    torn: tuple[str, ...]  # axes that it splits over NVLink domains, and the order there is does not
    doubts: tuple[str, ...]  # why a gain is not sure, or that there is none
    scores: Mapping[str, Score]  # of default, current, recommended
    error: float
    error_source: str
    before: Placement  # the order in use, else that by name
    after: Placement  # the plan's
    reference: str  # which of the scores gains are against: CURRENT or DEFAULT
    judge: Judge

    @property
    def found(self) -> Found:
        """The recommended order."""
        return self.held.found

    @property
    def how(self) -> str:
        """How the plan's order was found: where none was better it is the one there is."""
        return SHOWN[self.reference] if self.plan.advice == KEEP else self.found.how

    @property
    def elsewhere(self) -> bool:
        """Whether the recommended order, and `left`, are on other nodes than the plan."""
        return set(self.hosts) != set(self.plan.hosts)


def advise(cluster: Cluster, wish: Wish) -> Advice:
    """Return the advice; raise UsageError where the wish cannot be granted."""
    units = tree(cluster)
    judge, ranks = wish.judge, wish.judge.traffic.ranks
    chosen = None if wish.granted else choose(cluster, units, wish.free, ranks, wish.slow)
    seats = seats_on(cluster, chosen.nodes if chosen else depth_first(units, wish.free), ranks)
    orders = {DEFAULT: default(cluster, wish.free, ranks)}
    if wish.current:
        orders[CURRENT] = _placement(cluster, wish.current)
    scores = {name: judge.score(order) for name, order in orders.items()}
    reference = CURRENT if wish.current else DEFAULT
    before = orders[reference]
    given = {SHOWN[name]: seat for name, order in orders.items() if (seat := _on(seats, order)) is not None}
    factor = _slowness(wish, before.node) / _slowness(wish, seats.node)
    held, left = robust.choose(judge, seats, units, given, scores[reference], factor, wish.seconds)
    placed = seated(seats, held.found.seat)
    placed, score = _devices_ordered(judge, placed, held.score)
    held = robust.held(held.found, score, scores[reference], factor)
    scores[RECOMMENDED] = score
    best = left or held  # with the fastest algorithms, which the bound is of
    least = min(score.seconds, best.score.seconds if best.found.exact else bound(judge, seats, units))
    doubts: tuple[str, ...] = ()
    split = tuple(_split(judge.traffic, before, placed))
    # Groups that are whole within nodes are not taken apart for what the model may be wrong about.
    whole = bool(split) and held.least < wish.error
    if held.gain < robust.WORTH or held.loses or whole:
        said, after, after_score = KEEP, before, scores[reference]
        doubts = tuple(map(_unknown, _apart(judge.traffic, before)))
    else:
        doubts = tuple(_doubts(wish, held, before, placed))
        said, after, after_score = TRY if doubts else TAKE, placed, score
    seconds = {name: one.seconds for name, one in scores.items()}
    plan = Plan(
        topology=cluster.name,
        seats=_seats(after, wish.cores),
        vendor=_vendor(after),
        axes=dict(judge.traffic.axes),
        advice=said,
        seconds={**seconds, RANDOM: _random(judge, seats), BOUND: least},
        gap=score.seconds / least - 1 if least > 0 else None,
        limits=tuple(_limits(after_score, after, judge)),
        notes=(*judge.traffic.notes, *_slow(wish, before)),
    )
    nodes = np.unique(after.node)
    if chosen is None or set(nodes.tolist()) != set(chosen.nodes.tolist()):
        how = GRANTED if chosen is None else SHOWN[reference] if said == KEEP else chosen.how
        chosen = described(units, nodes, devices_of(cluster), wish.slow, how)
    torn = split if whole else ()
    if left is not None:
        torn = tuple(_split(judge.traffic, before, seated(seats, left.found.seat)))
    elif whole:
        left = held
    hosts = tuple(cluster.arrays.nodes[node] for node in dict.fromkeys(seats.node.tolist()))
    return Advice(
        plan,
        chosen,
        hosts,
        held,
        left,
        torn,
        doubts,
        scores,
        wish.error,
        wish.error_source,
        before,
        after,
        reference,
        judge,
    )


def _doubts(wish: Wish, held: Held, before: Placement, after: Placement) -> list[str]:
    """Return why it is not sure that an order gains."""
    traffic = wish.judge.traffic
    found = []
    if traffic.unsure:
        bytes_ = ",".join(f"{name}=NxSIZE" for name in traffic.assumed)
        found.append(
            f"what {', '.join(traffic.assumed)} sends was assumed, and which axis counts more follows from that "
            f"(say it: --bytes {bytes_}, or --preset)"
        )
    if split := _split(traffic, before, after):
        found.append(_unknown(", ".join(split)))
    if held.least < wish.error:
        found.append(f"the least gain, {100 * held.least:.1f} %, is below what it may be off by")
    return found


def _unknown(axes: str) -> str:
    """Return what the model does not know of axes that are split over nodes."""
    return (
        f"{axes} fits in a node and is split over nodes, and the model knows no kernels or libraries "
        "that want such a group within one"
    )


def _slowness(wish: Wish, nodes: Ints) -> float:
    """Return how many times as long the slowest of these nodes makes all of them take."""
    return 1 + max((wish.slow.get(node, 0.0) for node in set(nodes.tolist())), default=0.0)


def _slow(wish: Wish, before: Placement) -> list[str]:
    """Return what is to be said of slow nodes in the order that there is."""
    names = before.cluster.arrays.nodes
    some = [names[node] for node in sorted(set(before.node.tolist())) if wish.slow.get(node, 0.0) > 0]
    if not some:
        return []
    times = _slowness(wish, before.node)
    return [f"the order there is has nodes that results show slow, up to {times:.2f} x: {fold(some)}; gains count that"]


def _split(traffic: Traffic, before: Placement, after: Placement) -> list[str]:
    """Return the axes whose groups were each within an NVLink domain, and are not any more."""
    return [flow.axis for flow in traffic.flows if _inside(before, flow) and not _inside(after, flow)]


def _apart(traffic: Traffic, placed: Placement) -> list[str]:
    """Return the axes wanted within a node that are not, though the domains in use have room for each group."""
    room = np.bincount(placed.cluster.arrays.domain[placed.node])
    return [
        flow.axis
        for flow in traffic.flows
        if flow.axis in WITHIN and not _inside(placed, flow) and int((room // flow.n).sum()) >= len(flow.members)
    ]


def _inside(placed: Placement, flow: Flow) -> bool:
    """Return whether each group of a flow is within an NVLink domain."""
    domain = placed.cluster.arrays.domain[placed.node][flow.members]
    return bool((domain == domain[:, :1]).all())


def seats_on(cluster: Cluster, nodes: Ints, ranks: int) -> Placement:
    """Return seats that fill nodes one after another, each node's devices in theirs."""
    size = devices_of(cluster)[nodes]
    if int(size.sum()) < ranks:
        raise UsageError(f"{ranks} GPUs are asked for, and these {len(nodes)} nodes have {int(size.sum())}")
    node = np.repeat(np.asarray(nodes, dtype=np.int64), size)[:ranks]
    begin = np.repeat(np.cumsum(size) - size, size)[:ranks]
    return Placement(cluster, node, np.arange(ranks) - begin)


def default(cluster: Cluster, free: Ints, ranks: int) -> Placement:
    """Return ranks on the first free nodes by name, as schedulers and launchers place them: n2 before n10.

    Of nodes with devices of several vendors, those of one that has enough.
    """
    arrays = cluster.arrays
    order = free[np.argsort(_by_name([arrays.nodes[node] for node in free.tolist()]), kind="stable")]
    vendors = [{one.vendor for one in node.devices} for node in cluster.classes]
    size = devices_of(cluster)
    for vendor in dict.fromkeys(min(vendors[one], default="") for one in arrays.node_class[order].tolist() if one >= 0):
        same = order[[one >= 0 and vendor in vendors[one] for one in arrays.node_class[order].tolist()]]
        if int(size[same].sum()) >= ranks:
            return seats_on(cluster, same, ranks)
    return seats_on(cluster, order, ranks)


def _by_name(names: Sequence[str]) -> Ints:
    """Return the rank of each name among all, with numbers in names as numbers."""
    keys = [[int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)] for name in names]
    found = np.empty(len(names), dtype=np.int64)
    found[sorted(range(len(names)), key=lambda place: keys[place])] = np.arange(len(names))
    return found


def _placement(cluster: Cluster, seats: Sequence[Seat]) -> Placement:
    node = np.array([cluster.arrays.places[seat.host] for seat in seats], dtype=np.int64)
    return Placement(cluster, node, np.array([seat.device for seat in seats], dtype=np.int64))


def _on(seats: Placement, order: Placement) -> Ints | None:
    """Return the seat of each rank of an order; None where it has other seats."""
    here, there = seats.numbers(), order.numbers()
    place = np.argsort(here)
    found = np.searchsorted(here[place], there)
    if (found >= len(here)).any() or (here[place][found] != there).any():
        return None
    return np.asarray(place[found])


def _devices_ordered(judge: Judge, placed: Placement, score: Score) -> tuple[Placement, Score]:
    """Return ranks with the devices of each node exchanged among its ranks where that is faster, and the score."""
    traffic = _inside_nodes(judge, placed, score) if placed.n <= _MANY else None
    if traffic is None:
        return placed, score
    device = placed.device.copy()
    for node, ranks in placed.classes():
        # of each class of nodes the first one stands for all
        first = ranks[placed.node[ranks] == placed.node[ranks[0]]]
        mine = placed.device[first].tolist()
        order = inside.device_order(node, mine, traffic[np.ix_(first, first)].toarray())
        table = np.arange(len(node.devices))
        table[mine] = order
        device[ranks] = table[placed.device[ranks]]
    if (device == placed.device).all():
        return placed, score
    other = Placement(placed.cluster, placed.node, device)
    better = judge.score(other)
    return (other, better) if better.seconds < score.seconds * (1 - 1e-3) else (placed, score)


def _inside_nodes(judge: Judge, placed: Placement, score: Score) -> Any:
    """Return the bytes that ranks of a node send one another, as a sparse matrix; None where no class is uneven."""
    from scipy.sparse import coo_array

    if all(node.switch is not None or len(node.devices) < 3 for node, _ in placed.classes()):
        return None
    source, target, count = [], [], []
    for part in score.parts:
        for schedule in judge.schedules(part.flow, part.algorithm, placed):
            for step in schedule.steps:
                near = (step.source < placed.n) & (step.target < placed.n)
                here, there = step.source[near], step.target[near]
                same = placed.node[here] == placed.node[there]
                source.append(here[same])
                target.append(there[same])
                count.append(step.count[near][same] * (step.times * part.flow.size * part.flow.times))
    rows = coo_array((np.concatenate(count), (np.concatenate(source), np.concatenate(target))), shape=(placed.n,) * 2)
    return rows.tocsr()


def _random(judge: Judge, seats: Placement) -> float:
    """Return the mean time of orders in which the nodes come in any order."""
    _, at = np.unique(seats.node, return_inverse=True)
    routes = Routes(seats, judge.library)
    times = []
    for seed in _SEEDS if seats.n <= _MANY else _SEEDS[:1]:
        number = np.random.default_rng(seed).permutation(int(at.max()) + 1)
        times.append(judge.score(seats, np.argsort(number[at], kind="stable"), routes=routes).seconds)
    return float(np.mean(times))


def _limits(score: Score, placed: Placement, judge: Judge) -> list[str]:
    """Return what the step waits for, and on which link."""
    total = score.seconds
    found = [f"{what}: {100 * part / total:.0f} %" for what, part in score.limits()[:_LIMITS] if part >= 0.02 * total]
    if placed.n <= _MANY and score.parts:
        part = max(score.parts, key=lambda one: one.seconds)
        routes = Routes(placed, judge.library)
        load = np.zeros(routes.links)
        channels = judge.schedules(part.flow, part.algorithm, placed)
        for schedule in channels:
            for step in schedule.steps:
                transfer, link = routes.paths(step.source, step.target)
                load += np.bincount(link, weights=step.count[transfer] * step.times, minlength=routes.links)
        needs = np.where(load > 0, load / routes.rate, 0.0)
        fullest = int(needs.argmax())
        if needs[fullest] > 0:
            found.append(f"{part.axis}: the fullest link is {routes.name(fullest)}")
    return found


def _seats(placed: Placement, cores: int | None) -> tuple[Seat, ...]:
    """Return the seats of a plan, with NICs and cores."""
    names = placed.cluster.arrays.nodes
    nic: dict[tuple[int, tuple[int, ...]], dict[int, tuple[str, str]]] = {}
    devices: dict[int, list[int]] = {}
    for node, device in zip(placed.node.tolist(), placed.device.tolist(), strict=True):
        devices.setdefault(node, []).append(device)
    near = {}
    for node, some in devices.items():
        number = int(placed.cluster.arrays.node_class[node])
        key = number, tuple(sorted(set(some)))
        if key not in nic:
            kind = placed.cluster.classes[number]
            used = list(key[1])
            ranges = inside.cpus(kind, used, cores) if cores else [""] * len(used)
            nic[key] = dict(zip(used, zip(inside.nics(kind, used), ranges, strict=True), strict=True))
        near[node] = nic[key]
    return tuple(
        Seat(names[node], device, *near[node][device])
        for node, device in zip(placed.node.tolist(), placed.device.tolist(), strict=True)
    )


def _vendor(placed: Placement) -> str:
    vendors = placed.vendors()
    return next(iter(vendors)) if len(vendors) == 1 else ""
