"""How the time of a collective grows with the number of nodes, where its growth changes, and what causes that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.model.cost import Cost, cost
from commbench.model.growth import grow
from commbench.model.library import Library, choices, of_vendors
from commbench.model.placement import fill
from commbench.model.routes import Routes
from commbench.model.schedule import NotApplicable
from commbench.topology.cluster import Cluster

FLAT, LOGARITHMIC, LINEAR, STEEPER = "flat", "logarithmic", "linear", "steeper"
_FLAT = 0.02  # of the time: growth by less is none
# Of one doubling of the nodes to the one before: 1 where time is a logarithm of them, 2 where it is a line.
_LOGARITHMIC, _LINEAR = 1.5, 3.0


@dataclass(frozen=True)
class Point:
    """The fastest algorithm at one number of nodes."""

    nodes: int
    ranks: int
    algorithm: str  # empty: none exists
    seconds: float
    parts: tuple[tuple[str, float], ...]  # what the time is mostly made of, seconds
    growth: str = ""  # since half as many nodes
    cause: str = ""  # what grew most since then


def scaling(
    collective: str,
    cluster: Cluster,
    nodes: Sequence[int],
    size: int,
    library: Library | None = None,
    algorithms: Sequence[str] | None = None,
) -> list[Point]:
    """Return a point for each number of nodes, ascending; each node has a rank a device, filled in the cluster's order.

    `algorithms` are those to choose the fastest from; by default what the library has, and `hierarchical`, which is all
    that there is, where the vendors in use have no library in common.
    """
    if not cluster.devices:
        raise UsageError(
            f"{cluster.name or 'this cluster'} has no devices: a prediction needs nodes whose class says theirs"
        )
    points: list[Point] = []
    for count in nodes:
        grown = grow(cluster, count)
        ranks = int(_devices(grown, count))
        placement = fill(grown, ranks)
        vendors = placement.vendors()
        habits = library or of_vendors(vendors)
        names = algorithms or choices(habits, vendors)
        best: tuple[float, str, Cost] | None = None
        routes = Routes(placement, habits)
        for name in names:
            try:
                found = cost(collective, name, placement, habits, routes)
            except NotApplicable:
                continue
            seconds = float(found.seconds(size)[0])
            if best is None or seconds < best[0]:
                best = seconds, name, found
        if best is None:
            points.append(Point(count, ranks, "", float("nan"), ()))
        else:
            points.append(Point(count, ranks, best[1], best[0], tuple(best[2].limits(size))))
    return _grown(points)


def _devices(cluster: Cluster, nodes: int) -> int:
    """Return the devices of the first nodes."""
    arrays = cluster.arrays
    sizes = [len(one.devices) for one in cluster.classes]
    if (arrays.node_class[:nodes] < 0).any():
        raise UsageError(
            "nodes without a class have no devices that are known: add `classes:` and name one in each block"
        )
    return sum(sizes[place] for place in arrays.node_class[:nodes].tolist())


def _grown(points: Sequence[Point]) -> list[Point]:
    """Return the points with how each grew since half as many nodes, and what of it grew most."""
    from dataclasses import replace

    by_nodes = {point.nodes: point for point in points}
    found = []
    for point in points:
        before = by_nodes.get(point.nodes // 2) if point.nodes % 2 == 0 else None
        earlier = by_nodes.get(point.nodes // 4) if point.nodes % 4 == 0 else None
        if before is None or not point.algorithm or not before.algorithm:
            found.append(point)
            continue
        more = point.seconds - before.seconds
        parts = dict(before.parts)
        cause = max(point.parts, key=lambda part: part[1] - parts.get(part[0], 0.0))[0] if point.parts else ""
        growth = FLAT if more <= _FLAT * before.seconds else ""
        if not growth and earlier is not None and earlier.algorithm:
            last = max(before.seconds - earlier.seconds, _FLAT * earlier.seconds)
            growth = LOGARITHMIC if more <= _LOGARITHMIC * last else LINEAR if more <= _LINEAR * last else STEEPER
        found.append(replace(point, growth=growth, cause="" if growth == FLAT else cause))
    return found


def turns(points: Sequence[Point]) -> list[Point]:
    """Return the points at which growth is other than it was, from the first that is told."""
    found: list[Point] = []
    last = ""
    for point in points:
        if point.growth and point.growth != last:
            found.append(point)
            last = point.growth
    return found
