"""Any cluster, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from commbench.topology.cluster import Block, Cable, Cluster, Switch
from commbench.topology.node import HUBS, LINKS, ROLES, SOURCES, Device, Hub, Link, Nic, NodeClass
from commbench.topology.shape import FABRICS, Figures, Shape

GBPS = st.none() | st.floats(1e-3, 1e5) | st.sampled_from([100, 400.0, 3600.0])
US = st.none() | st.floats(0, 1e6) | st.sampled_from([0.3, 1e-05, 2])
SOURCE = st.sampled_from(SOURCES)
NAMES = st.sampled_from(["n{}", "n{:02}", "n{:03}-ib", "gpu-{}", "a{}b", "{}", "no{}", "{}e1", "x{}.cluster.local"])
# Words that YAML may take for something else.
WORDS = st.sampled_from(
    ["", "no", "on", "true", "null", "~", "010", "1e3", "0x1f", "1_000", "12:30:45", "a: b", "# x"]
) | (st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8))
SOME = WORDS.filter(bool)
PLAIN = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e300, 1e300) | WORDS
VALUES = st.recursive(PLAIN, lambda it: st.lists(it, max_size=3) | st.dictionaries(SOME, it, max_size=3), max_leaves=4)
ANNOTATIONS = st.dictionaries(SOME, VALUES, max_size=2)


@st.composite
def names(draw: st.DrawFn, most: int) -> list[str]:
    """Up to so many names, all different, some of them counting up."""
    pattern = draw(NAMES)
    numbers = draw(st.lists(st.integers(0, 300), unique=True, max_size=most))
    runs = [number for first in numbers for number in range(first, first + draw(st.integers(1, 4)))]
    return [pattern.format(number) for number in dict.fromkeys(runs)][:most]


FIGURES = st.builds(Figures, GBPS, US, st.integers(1, 64), SOURCE)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A node in the short form."""
    fabric = draw(st.sampled_from(FABRICS))
    host = draw(st.booleans())
    nics = draw(st.integers(0, 4)) if host else 0
    nic = draw(st.builds(Figures, GBPS, US, st.just(1), SOURCE)) if nics else Figures()
    return Shape(
        devices=draw(st.integers(0, 5)),
        vendor=draw(st.sampled_from(["", "nvidia", "amd", "cpu"])),
        arch=draw(st.sampled_from(["", "sm90", "gfx942"])),
        fabric=fabric,
        fabric_link=draw(FIGURES) if fabric != "none" else Figures(),
        reduces=draw(st.booleans()) and fabric == "nvswitch",
        pcie=draw(FIGURES) if host else None,
        sockets=draw(st.integers(1, 3)) if host else 1,
        socket=draw(FIGURES) if host else Figures(),
        bridges=draw(st.integers(0, 3)) if host else 0,
        nics=nics,
        nic=nic,
        rails=draw(st.integers(1, max(1, nics))),
        relays=draw(st.booleans()),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeClass:
    """Any node: of the short form, or of parts joined at will."""
    if draw(st.booleans()):
        made = draw(shapes()).node_class(name)
        more = st.builds(_link(list(made.vertices)), *_LINK)
        extra = draw(st.lists(more, max_size=2)) if len(made.vertices) > 1 else []
        return NodeClass(name, made.devices, made.nics, made.hubs, (*made.links, *extra), made.relays)
    ids = draw(st.lists(SOME, unique=True, max_size=6))
    split = sorted(draw(st.lists(st.integers(0, len(ids)), min_size=2, max_size=2)))
    numa = st.none() | st.integers(0, 8)
    devices = [Device(one, draw(WORDS), draw(WORDS), draw(WORDS), draw(numa)) for one in ids[: split[0]]]
    nics = [
        Nic(one, draw(GBPS), draw(US), draw(st.integers(0, 9)), draw(WORDS), draw(numa), draw(WORDS),
            draw(st.sampled_from(ROLES)), draw(SOURCE))
        for one in ids[split[0] : split[1]]
    ]  # fmt: skip
    hubs = [
        Hub(one, draw(st.sampled_from(HUBS)), draw(numa), draw(st.booleans()), draw(US), draw(SOURCE))
        for one in ids[split[1] :]
    ]
    links = draw(st.lists(st.builds(_link(ids), *_LINK), max_size=6)) if len(ids) > 1 else []
    return NodeClass(name, tuple(devices), tuple(nics), tuple(hubs), tuple(links), draw(st.booleans()))


_LINK = (st.integers(0, 99), st.integers(1, 99), st.sampled_from(LINKS), GBPS, US, st.integers(1, 18), SOURCE)


def _link(ids: list[str]) -> Any:
    def build(a: int, step: int, kind: str, gbps: float | None, us: float | None, count: int, source: str) -> Link:
        first = a % len(ids)
        other = (first + 1 + step % (len(ids) - 1)) % len(ids)
        return Link(ids[first], ids[other], kind, gbps, us, count, source)

    return build


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any cluster that a description can have."""
    classes = [draw(nodes(name)) for name in draw(st.lists(SOME, unique=True, max_size=2))]
    switches: list[Switch] = []
    like = draw(st.builds(Switch, st.just(""), st.none(), GBPS, US, st.none() | st.integers(1, 64), SOURCE))
    tops = draw(st.integers(0, 2))
    for place, name in enumerate(f"s-{one}" for one in draw(names(6))):
        parent = None if place < tops or not tops else switches[draw(st.integers(0, tops - 1))].name
        other = draw(st.builds(Switch, st.just(""), st.none(), GBPS, US, st.none() | st.integers(1, 64), SOURCE))
        one = like if draw(st.booleans()) else other
        said = draw(ANNOTATIONS) if draw(st.booleans()) else {}
        switches.append(
            Switch(name, parent, one.gbps, one.us, one.cables, one.source, draw(st.booleans()), said)
        )  # fmt: skip
    leaves = [one.name for one in switches if one.name not in {child.parent for child in switches}]
    hosts, blocks = draw(names(9)), []
    while hosts:
        count = draw(st.integers(1, len(hosts)))
        here, hosts = hosts[:count], hosts[count:]
        on = draw(st.lists(st.sampled_from(leaves), unique=True, max_size=3)) if leaves else []
        node_class = draw(st.sampled_from(["", *(one.name for one in classes)]))
        blocks.append(Block(tuple(here), tuple(on), node_class, draw(WORDS), draw(WORDS), draw(ANNOTATIONS)))
    if not blocks and not switches and not classes:
        blocks = [Block(("n1",))]
    ends = st.sampled_from([one.name for one in switches]) if switches else st.nothing()
    cables = draw(st.lists(st.builds(Cable, ends, ends, GBPS, st.integers(1, 9)), max_size=2)) if switches else []
    sizes = draw(st.lists(st.integers(1, 64), max_size=2))
    step = draw(US)
    return Cluster(
        draw(WORDS), tuple(classes), tuple(switches), tuple(blocks), step, draw(SOURCE), tuple(sizes), tuple(cables)
    )  # fmt: skip
