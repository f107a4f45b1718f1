"""The way to each node that Slurm tells a job's tasks, without root and without files.

    SLURM_TOPOLOGY_ADDR=core.spine1.leaf1.n01
    SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.switch.node

`srun --label env | grep SLURM_TOPOLOGY_ADDR` gathers them from all nodes of a job; the labels may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from commbench.results.findings import NOTE, finding
from commbench.topology.readers._paths import Path, cluster_of
from commbench.topology.reading import Reading, TopologyError
from commbench.topology.validate import hosts_at

TITLE = "SLURM_TOPOLOGY_ADDR"

_LINE = re.compile(
    r"^[ \t]*(?:(?P<label>\d{1,9}):[ \t]*)?(?:export[ \t]+|declare -x[ \t]+)?"
    r"SLURM_TOPOLOGY_ADDR(?P<pattern>_PATTERN)?=[\"']?(?P<value>[^\s\"']*)",
    re.MULTILINE,
)


def recognise(text: str) -> float:
    """Return 1 where a line sets the variable."""
    return 1.0 if _LINE.search(text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the nodes that lines are about, and the switches above them."""
    patterns: dict[str, dict[str, None]] = {}
    addresses: list[tuple[int, str, str]] = []
    line, before = 1, 0
    for found in _LINE.finditer(text):
        line += text.count("\n", before, found.start())
        before = found.start()
        label = found["label"] or ""
        if found["pattern"]:
            patterns.setdefault(label, {})[found["value"]] = None
        else:
            addresses.append((line, label, found["value"]))
    paths: dict[str, Path] = {}
    for line, label, address in addresses:
        its = path(address, patterns.get(label, ()), source, line)
        first = paths.setdefault(its.node, its)
        if (first.above, first.block) != (its.above, its.block):
            text = f"node {its.node} is elsewhere in line {first.line}; keep the lines of one cluster and one time"
            raise TopologyError(source, line, text)
    cluster, findings = cluster_of(source, paths.values())
    value = f"{len(paths)} nodes are described: those whose tasks said where they are"
    said = finding("nodes of a job", NOTE, source, (), value, "take topology.conf for the whole cluster")
    return Reading((cluster,), (*findings, said))


def path(address: str, patterns: Iterable[str], source: str, line: int = 0) -> Path:
    """Return the way up that `address` tells by the one of the `patterns` that fits; TopologyError where none does."""
    parts = address.split(".")
    kinds = _kinds(parts, [pattern.split(".") for pattern in patterns], source, line)
    parts[len(kinds) - 1 :] = [".".join(parts[len(kinds) - 1 :])]  # a node's name may have dots
    switches, block = [], ""
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "node" or not part:  # a tier with no switch above this node
            continue
        names = hosts_at(part, source, line)
        if len(names) > 1:
            text = f"{part[:60]} are several, and a node has one switch of a tier above it; draw them together to one"
            raise TopologyError(source, line, text)
        if kind == "switch":
            switches.append(names[0])
        else:
            block = names[0]
    return Path(parts[-1], line, tuple(reversed(switches)), block=block)


def _kinds(parts: Sequence[str], patterns: Sequence[list[str]], source: str, line: int) -> list[str]:
    """Return the kind of each part by the pattern that fits: as many parts, or fewer where names have dots."""
    fits = [one for one in patterns if len(one) == len(parts)] or [one for one in patterns if len(one) < len(parts)]
    if len(fits) != 1:
        text = f"{len(fits)} patterns fit an address of {len(parts)} parts"
        raise TopologyError(source, line, f"{text}; give each node's SLURM_TOPOLOGY_ADDR_PATTERN beside its address")
    kinds = fits[0]
    if kinds[-1] != "node" or not set(kinds[:-1]) <= {"switch", "block"}:
        text = f"a pattern is switches or blocks and then a node, not {'.'.join(kinds)[:60]!r}"
        raise TopologyError(source, line, text)
    return kinds
