"""A cluster as a picture: the fabric, then a node of each class. Colours say what a link is, widths what it carries."""

from __future__ import annotations

from collections import Counter, defaultdict
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.node import (
    BRIDGE,
    BUS,
    C2C,
    CPU,
    FABRIC,
    MEMORY,
    NVLINK,
    NVSWITCH,
    PCIE,
    SOCKET,
    XGMI,
    NodeClass,
)
from commbench.topology.show import counted, fold

MOST_BOXES = 40  # of a tier; more are drawn as one box a group
MOST_CLASSES = 4
SUFFIXES = (".png", ".svg", ".pdf")
NETWORK = "network"
# Colours of Okabe and Ito, which colour-blind readers can tell apart.
COLOURS = {
    NVLINK: "#009E73",
    XGMI: "#D55E00",
    PCIE: "#0072B2",
    C2C: "#56B4E9",
    SOCKET: "#7F7F7F",
    MEMORY: "#E69F00",
    NETWORK: "#CC79A7",
}
FILLS = {"device": "#E8F4EA", "NIC": "#F9EAF3", "switch": "#F3DDEA", "node": "#EEEEEE"}
HUB_FILL = "#DDE8F3"
_BULGE = 1.5  # an arc bulges by half of its bend times its width, and a panel is three times as wide as it is tall


def check(path: Path) -> None:
    """Raise UsageError where no picture of that name can be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a picture's name ends with {', '.join(SUFFIXES)}, not {path.name!r}")
    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: pip install 'commbench[report]'")


def save(cluster: Cluster, path: Path) -> None:
    """Draw a cluster into a file, of the format that its name ends with."""
    check(path)
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 8, "svg.hashsalt": "commbench", "text.parse_math": False})
        figure = _figure(cluster)
        try:
            figure.savefig(path, dpi=130, bbox_inches="tight")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _figure(cluster: Cluster) -> Any:
    from matplotlib.figure import Figure

    classes = cluster.classes[:MOST_CLASSES]
    fabric = bool(cluster.switches)
    rows = fabric + len(classes)
    figure = Figure(figsize=(11, 3.6 * max(1, rows)), layout="constrained")
    panels = list(figure.subplots(max(1, rows), 1, squeeze=False)[:, 0])
    for panel in panels:
        panel.axis("off")
    if fabric:
        _draw_fabric(panels.pop(0), cluster)
    for node, panel in zip(classes, panels, strict=False):
        _draw_node(panel, node)
    return figure


class _Sheet:
    """A panel that boxes and lines are put on, and the legend of its lines."""

    def __init__(self, panel: Any, title: str) -> None:
        self.panel = panel
        self.kinds: Counter[tuple[str, float | None]] = Counter()
        panel.set_title(title, loc="left", fontsize=9, fontweight="bold")

    def box(self, at: tuple[float, float], text: str, fill: str, size: float = 7) -> None:
        style = {"boxstyle": "round,pad=0.3", "facecolor": fill, "edgecolor": "#555555", "linewidth": 0.6}
        self.panel.text(*at, text, ha="center", va="center", fontsize=size, bbox=style, zorder=3)

    def line(
        self,
        a: tuple[float, float],
        b: tuple[float, float],
        kind: str,
        gbps: float | None,
        bend: float = 0.0,
        many: int = 1,
    ) -> None:
        from matplotlib.patches import FancyArrowPatch

        self.kinds[kind, gbps] += 1
        style = f"arc3,rad={bend}" if bend else "arc3"
        thin = 1.0 if many <= 64 else max(0.25, 64 / many)
        self.panel.add_patch(
            FancyArrowPatch(
                a, b, arrowstyle="-", connectionstyle=style, color=COLOURS[kind], linewidth=_width(gbps) * thin,
                linestyle="-" if gbps else ":", alpha=0.85 if thin == 1.0 else 0.5, zorder=2, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip

    def finish(self, wide: float, low: float, high: float) -> None:
        from matplotlib.lines import Line2D

        self.panel.set_xlim(-0.7, wide - 0.3)
        self.panel.set_ylim(low, high)
        known = sorted(self.kinds, key=lambda one: (list(COLOURS).index(one[0]), -(one[1] or 0)))
        lines = [
            Line2D([], [], color=COLOURS[kind], linewidth=_width(gbps), linestyle="-" if gbps else ":")
            for kind, gbps in known
        ]
        words = [f"{kind} {'? Gb/s' if gbps is None else f'{gbps:g} Gb/s'}" for kind, gbps in known]
        if lines:
            self.panel.legend(
                lines, words, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7.5, handlelength=3
            )


def _width(gbps: float | None) -> float:
    """Return the width of a line in points: 1 at 100 Gb/s, a half more each time that it doubles."""
    return 0.8 if not gbps else min(6.0, max(0.6, 1 + 0.5 * log2(gbps / 100)))


def _draw_fabric(panel: Any, cluster: Cluster) -> None:
    facts = [counted(cluster.nodes, "node"), counted(len(cluster.switches), "switch")]
    sheet = _Sheet(panel, f"{cluster.name or 'fabric'}: {', '.join(facts)}")
    tiers = cluster.arrays.tier
    height = int(tiers.max()) + 1
    groups = _groups(cluster)  # of switches, the name of the group by switch
    members: dict[str, list[str]] = defaultdict(list)
    tier_of: dict[str, int] = {}
    for switch, tier in zip(cluster.switches, tiers, strict=True):
        members[groups[switch.name]].append(switch.name)
        tier_of[groups[switch.name]] = int(tier)
    rows: dict[int, list[str]] = defaultdict(list)
    for group, tier in tier_of.items():
        rows[tier].append(group)
    nodes = _node_boxes(cluster)
    wide = max([len(nodes), *map(len, rows.values()), 6])
    at: dict[str, tuple[float, float]] = {}
    for tier, names in rows.items():
        for place, name in enumerate(names):
            at[name] = (_spread(place, len(names), wide), tier + 1.0)
            shown = members[name]
            label = fold(shown) if len(shown) > 1 else shown[0]
            sheet.box(at[name], _short(label, wide / max(1, len(names))), FILLS["switch"])
    drawn: Counter[tuple[str, str, float | None]] = Counter()
    for switch in cluster.switches:
        if switch.parent:
            drawn[groups[switch.name], groups[switch.parent], switch.gbps] += 1
    for (below, above, gbps), _ in drawn.items():
        sheet.line(at[below], at[above], NETWORK, gbps)
    lines = [(place, groups[leaf], place_of) for place, (_, leaves, _, _) in enumerate(nodes)
             for place_of, leaf in enumerate(leaves)]  # fmt: skip
    once = {(place, group): rail for place, group, rail in reversed(lines)}
    for place, (text, leaves, node_class, many) in enumerate(nodes):
        here = (_spread(place, len(nodes), wide), 0.0)
        for (whose, group), rail in once.items():
            if whose == place:
                sheet.line(here, at[group], NETWORK, _rate(cluster, node_class, rail, len(leaves)), many=len(once))
        label = text if many == 1 else f"{text}\n{counted(many, 'node')}"
        sheet.box(here, _short(label, wide / len(nodes)), FILLS["node"], 7 if len(nodes) <= 16 else 5.5)
    sheet.finish(wide, -0.6, height + 0.5)


def _groups(cluster: Cluster) -> dict[str, str]:
    """Return the box of each switch: its own, or where a tier has too many, one with those that have its parent."""
    tiers = [int(one) for one in cluster.arrays.tier]
    crowd = Counter(tiers)
    found = {}
    for switch, tier in zip(cluster.switches, tiers, strict=True):
        found[switch.name] = switch.name if crowd[tier] <= MOST_BOXES // 2 else f"{tier}\0{switch.parent}"
    parents = {name for name in found.values() if "\0" in name}
    if len(parents) > MOST_BOXES // 2:  # still too many: one box a tier
        found = {name: group.split("\0")[0] if "\0" in group else group for name, group in found.items()}
    return found


def _node_boxes(cluster: Cluster) -> list[tuple[str, tuple[str, ...], str, int]]:
    """Return boxes of nodes, one a node, a block or a class, as there is room: text, leaves, class, how many."""
    if cluster.nodes <= MOST_BOXES:
        return [(node, one.leaves, one.node_class, 1) for one in cluster.blocks for node in one.nodes]
    if len(cluster.blocks) <= MOST_BOXES // 2:
        return [(fold(one.nodes), one.leaves, one.node_class, len(one.nodes)) for one in cluster.blocks]
    found: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for block in cluster.blocks:
        found[block.node_class][0].extend(block.nodes)
        found[block.node_class][1].extend(block.leaves)
    return [
        (name or "nodes", tuple(dict.fromkeys(leaves)), name, len(nodes)) for name, (nodes, leaves) in found.items()
    ]


def _rate(cluster: Cluster, name: str, rail: int, leaves: int) -> float | None:
    """Return the Gb/s of a node's NICs that are on a leaf."""
    if not name:
        return None
    rates = [nic.gbps for nic in cluster.by_class[name].nics if leaves == 1 or nic.rail == rail]
    return sum(one or 0.0 for one in rates) or None


def _draw_node(panel: Any, node: NodeClass) -> None:
    kinds = {f"{one.vendor} {one.arch}".strip() for one in node.devices}
    facts = [counted(len(node.devices), "device"), *sorted(filter(None, kinds))]
    sheet = _Sheet(panel, f"class {node.name}: {', '.join(facts)}")
    if len(node.vertices) > 100:
        sheet.box((3, 0.5), f"{len(node.vertices)} devices, NICs and hubs are too many to draw", FILLS["node"])
        sheet.finish(6, 0, 1)
        return
    rows: list[list[str]] = [
        [hub.id for hub in node.hubs if hub.kind in (NVSWITCH, BUS)],
        [one.id for one in node.devices],
        [hub.id for hub in node.hubs if hub.kind == BRIDGE],
        [hub.id for hub in node.hubs if hub.kind == CPU],
    ]
    wide = max(6, *map(len, rows))
    at: dict[str, tuple[float, float]] = {}
    for height, names in zip((4.0, 3.0, 2.0, 0.5), rows, strict=True):
        for place, name in enumerate(names):
            at[name] = (_spread(place, len(names), wide), height)
    _place_nics(node, at, wide)
    for link in node.links:
        level = at[link.a][1] == at[link.b][1]
        bend = 0.0
        if level and abs(at[link.a][0] - at[link.b][0]) > 0:
            rightwards = at[link.a][0] < at[link.b][0]
            bend = (-0.35 if rightwards else 0.35) * (1 if link.kind in FABRIC else -0.4)
        sheet.line(at[link.a], at[link.b], link.kind, link.gbps, bend)
    hubs = {hub.id for hub in node.hubs}
    nics = {nic.id: nic for nic in node.nics}
    for name, where in at.items():
        fill = HUB_FILL if name in hubs else FILLS["NIC"] if name in nics else FILLS["device"]
        rate = f"\n{nics[name].gbps:g} Gb/s" if name in nics and nics[name].gbps is not None else ""
        sheet.box(where, _short(name, 1.5) + rate, fill, 7 if wide <= 12 else 5.5)
    heights = [height for _, height in at.values()] or [0.0]
    low, high = min(heights), max(heights)
    arcs: dict[float, float] = defaultdict(float)  # the widest at each height, as a share of the panel
    for link in node.links:
        if at[link.a][1] == at[link.b][1]:
            arcs[at[link.a][1]] = max(arcs[at[link.a][1]], abs(at[link.a][0] - at[link.b][0]) / wide)
    above, below = _BULGE * 0.35 * arcs[3.0], _BULGE * 0.14 * arcs[0.5]
    tall = (high - low + 0.8) / (1 - above - below)
    sheet.finish(wide, min(low, 0.5 - below * tall) - 0.4, max(high, 3.0 + above * tall) + 0.4)


def _place_nics(node: NodeClass, at: dict[str, tuple[float, float]], wide: int) -> None:
    """Put each NIC by the hub that it is plugged into, on the side away from that hub's own link to a CPU."""
    hubs = {hub.id: hub.kind for hub in node.hubs}
    beside: dict[str, list[str]] = defaultdict(list)
    for nic in node.nics:
        ends = (link.b if link.a == nic.id else link.a for link in node.links if nic.id in (link.a, link.b))
        beside[next((end for end in ends if end in hubs), "")].append(nic.id)
    for hub, nics in beside.items():
        if hub not in at:
            at |= {nic: (_spread(place, len(nics), wide), -0.5) for place, nic in enumerate(nics)}
            continue
        x, height = at[hub]
        ends = (link.b if link.a == hub else link.a for link in node.links if hub in (link.a, link.b))
        cpu = next((end for end in ends if hubs.get(end) == CPU), None)
        if hubs[hub] == CPU or cpu is None:
            at |= {nic: (x + 0.55 * (place - (len(nics) - 1) / 2), height - 1) for place, nic in enumerate(nics)}
            continue
        side = 0.55 if at[cpu][0] < x else -0.55
        in_order = nics if side > 0 else reversed(nics)
        at |= {nic: (x + side * (place + 0.2), height - 0.65) for place, nic in enumerate(in_order)}


def _spread(place: int, count: int, wide: float) -> float:
    return (place + 0.5) * wide / max(1, count) - 0.5


def _short(text: str, room: float) -> str:
    """Return a label cut to the room that its box has, in units of the panel."""
    most = max(6, int(9 * room))
    lines = (line if len(line) <= most else f"{line[: most - 2]}.." for line in text.split("\n"))
    return "\n".join(lines)
