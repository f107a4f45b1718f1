"""The picture of a placement: nodes by leaf, each device in the colour of its rank's group, and the ways of its ring.

Groups that go through the same nodes in the same order have one colour, since a picture of nodes cannot tell them
apart. A line leads from each node to the next one of a group: thin inside a leaf, thick where it leaves one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.model.placement import Placement
from commbench.recommend.traffic import Traffic
from commbench.recommend.tree import tree
from commbench.report.drawing import plain
from commbench.topology.cluster import Cluster
from commbench.topology.hosts import fold
from commbench.units import format_ranges

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Place = tuple[float, float]  # the left lower corner of a node
MOST_NODES = 256  # beyond, they are too small to be told apart
_ACROSS = 8  # devices in a row of a node, and leaves in a row of a picture
_WIDTH, _HEIGHT = 8.4, 2.2  # of a node, where a device is 1 x 1 if there are eight
_SPACE, _GAP = 1.2, 5.2  # between nodes of a leaf, and between leaves
_REACH = 2.4  # how far lines go to the right of a leaf's nodes at most


@dataclass(frozen=True)
class Panel:
    """One placement and what to say above it."""

    title: str
    placed: Placement


def picture(traffic: Traffic, free: Ints, panels: Sequence[Panel]) -> Any:
    """Return a matplotlib Figure with one panel above the other.

    Shown is the axis `dp`, else the one with the largest groups. `free`: nodes that could have been taken, which are
    there without a colour. Raises UsageError where nodes are too many.
    """
    import numpy as np
    from matplotlib.figure import Figure

    cluster = panels[0].placed.cluster
    nodes = np.unique(np.concatenate([free, *(panel.placed.node for panel in panels)]))
    if len(nodes) > MOST_NODES:
        raise UsageError(
            f"a picture shows up to {MOST_NODES} nodes, and {len(nodes)} are free or in use: name fewer by --free, or "
            "leave --picture out"
        )
    units = tree(cluster)
    leaf = units.unit[min(1, units.levels - 1), nodes] if units.levels > 1 else np.zeros(len(nodes), dtype=np.int64)
    of_node = dict(zip(nodes.tolist(), leaf.tolist(), strict=True))
    where = _positions(of_node)
    across = min(_ACROSS, len(set(of_node.values())))
    width = max(7.0, across * (_WIDTH + _GAP) * 0.16)
    down = -min(y for _, y in where.values()) + 3 * _HEIGHT
    figure: Any = Figure(figsize=(width, len(panels) * (down * 0.16 + 0.4)), layout="constrained")
    for axes, panel in zip(np.atleast_1d(figure.subplots(len(panels), 1)), panels, strict=True):
        _draw(axes, panel, _groups(traffic), of_node, where)
    return figure


def _groups(traffic: Traffic) -> Ints:
    """Return the groups of ranks to show, (groups, n)."""
    import numpy as np

    shown = sorted(traffic.flows, key=lambda flow: (flow.axis != "dp", -flow.n))
    return shown[0].members if shown else np.arange(traffic.ranks)[None]


def _positions(of_node: dict[int, int]) -> dict[int, Place]:
    """Return the left lower corner of each node: a column for each leaf, and a new row of them after so many."""
    leaves: dict[int, list[int]] = {}
    for node, leaf in of_node.items():
        leaves.setdefault(leaf, []).append(node)
    found: dict[int, Place] = {}
    top = 0.0
    for number, members in enumerate(leaves.values()):
        column = number % _ACROSS
        if number and column == 0:
            top = min(y for _, y in found.values()) - 2.5 * _HEIGHT
        for place, node in enumerate(members):
            found[node] = column * (_WIDTH + _GAP), top - place * (_HEIGHT + _SPACE)
    return found


def _draw(axes: Any, panel: Panel, groups: Ints, of_node: dict[int, int], where: dict[int, Place]) -> None:
    import matplotlib
    import seaborn
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

    placed, cluster = panel.placed, panel.placed.cluster
    ways, way_of_rank = _ways(placed, groups)
    count = len(ways)
    colours = (
        seaborn.color_palette("colorblind", count)
        if count <= 10
        else matplotlib.colormaps["turbo"]([place / (count - 1) for place in range(count)])
    )
    on_node: dict[int, list[int]] = {}
    for rank, node in enumerate(placed.node.tolist()):
        on_node.setdefault(node, []).append(rank)
    for node, (x, y) in where.items():
        ranks = on_node.get(node, [])
        kind = cluster.classes[int(cluster.arrays.node_class[node])] if cluster.arrays.node_class[node] >= 0 else None
        size = len(kind.devices) if kind else 0
        scale = 8 / max(1, min(_ACROSS, size))  # few devices are as wide together as eight
        high = 1 / max(1, -(-size // _ACROSS))
        axes.add_patch(
            FancyBboxPatch((x, y), _WIDTH, _HEIGHT, boxstyle="round,pad=0.05", fc="white", ec="0.35", lw=0.8, zorder=2)
        )
        used = f"{cluster.arrays.nodes[node]}: {format_ranges(ranks)}" if ranks else cluster.arrays.nodes[node]
        ink = "black" if ranks else "0.5"
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over arrows
        axes.text(x + 0.2, y + 1.65, plain(_short(used)), fontsize=7, va="center", color=ink, bbox=ground, zorder=6)
        of_device = {int(placed.device[rank]): rank for rank in ranks}
        for device in range(size):
            row, column = divmod(device, _ACROSS)
            colour = colours[way_of_rank[of_device[device]]] if device in of_device else "0.93"
            corner = x + 0.2 + column * scale, y + 0.1 + (1 - (row + 1) * high)
            axes.add_patch(Rectangle(corner, scale * 0.9, high * 0.9, fc=colour, ec="none", zorder=3))
    _draw_leaves(axes, cluster, of_node, where)
    leaving, hops = 0, 0
    for number, way in enumerate(ways):
        for one, other in zip(way, [*way[1:], *way[: len(way) > 2]], strict=False):
            leaves = of_node[one] != of_node[other]
            leaving, hops = leaving + leaves, hops + 1
            ends = _ends(where[one], where[other])
            look = {"arrowstyle": "-|>", "mutation_scale": 7, "color": colours[number], "lw": 1.8 if leaves else 0.8}
            bend = f"arc3,rad={_bend(where[one], where[other])}"
            axes.add_patch(FancyArrowPatch(*ends, connectionstyle=bend, zorder=5, **look))
    text = f"; {leaving} of {hops} arrows leave a leaf" if hops else ""
    axes.set_title(plain(f"{panel.title}{text}"), fontsize=9, loc="left")
    axes.set_xlim(-1.6, max(x for x, _ in where.values()) + _WIDTH + _REACH + 0.6)
    axes.set_ylim(min(y for _, y in where.values()) - 1.5, _HEIGHT + 3.0)
    axes.set_aspect("equal", anchor="W")  # so that a title that is wider than its one leaf has room to the right
    axes.axis("off")


def _ways(placed: Placement, groups: Ints) -> tuple[list[list[int]], dict[int, int]]:
    """Return the ways through nodes that groups take, each once, and the way of each rank."""
    ways: dict[tuple[int, ...], int] = {}
    of_rank: dict[int, int] = {}
    for members in groups.tolist():
        nodes = placed.node[members].tolist()
        way = tuple(node for place, node in enumerate(nodes) if place == 0 or node != nodes[place - 1])
        number = ways.setdefault(way, len(ways))
        of_rank |= dict.fromkeys(members, number)
    return [list(way) for way in ways], of_rank


def _ends(one: Place, other: Place) -> tuple[tuple[float, float], ...]:
    """Return where a line leaves one node and reaches the other: the sides that face, right where one is above it."""
    (x1, y1), (x2, y2) = one, other
    right1, right2 = x1 <= x2, x2 < x1 or x1 == x2
    width = _WIDTH
    return (x1 + width * right1, y1 + 0.8), (x2 + width * right2, y2 + 0.8)


def _bend(one: Place, other: Place) -> float:
    """Return how far a line is bent: beside the nodes of a leaf to their right, else little."""
    if one[0] != other[0]:
        return 0.12
    far = min(0.3, 2 * _REACH / abs(one[1] - other[1]))  # half of it, of the distance, is how far the line goes out
    return far if one[1] < other[1] else -far


def _draw_leaves(axes: Any, cluster: Cluster, of_node: dict[int, int], where: dict[int, Place]) -> None:
    """Draw a ground with a name below the nodes of each leaf, or of each unit of leaves that share their nodes."""
    from matplotlib.patches import FancyBboxPatch

    leaves: dict[int, list[int]] = {}
    for node, leaf in of_node.items():
        leaves.setdefault(leaf, []).append(node)
    for members in leaves.values():
        switches = sorted({one for one in cluster.arrays.leaf[members].ravel().tolist() if one >= 0})
        name = _short(fold([cluster.switches[one].name for one in switches])) if switches else "no switch is known"
        x, top = where[members[0]][0], where[members[0]][1] + _HEIGHT
        bottom = min(where[node][1] for node in members)
        corner, high = (x - 0.7, bottom - 0.5), top - bottom + 2.4
        ground = FancyBboxPatch(corner, _WIDTH + 1.4, high, boxstyle="round,pad=0.1", fc="0.95", ec="none", zorder=1)
        axes.add_patch(ground)
        axes.text(x + _WIDTH / 2, top + 1.1, plain(name), fontsize=8, ha="center", va="center", weight="bold", zorder=6)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."
