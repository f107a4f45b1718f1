"""Lines of keys and values, as Slurm writes and reads them: comments, continued lines, keys in any case."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from commbench.results.findings import DOUBT, Finding, finding
from commbench.topology.cluster import Block
from commbench.topology.reading import Faults, TopologyError
from commbench.topology.validate import NodesLine, check_tree, hosts_at

_COMMENT = re.compile(r"(?<!\\)#.*")
_FIELD = re.compile(r'\s*([A-Za-z]\w{0,63})\s*=\s*("[^"]*"|\S+)')
_WHOLE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Line:
    """A line, from the number it begins at: its keys in lower case."""

    number: int
    fields: dict[str, str]


def lines(text: str, source: str, known: Collection[str], faults: Faults) -> Iterator[Line]:
    """Yield the lines that say something; a fault are those with a key that is not in `known` (all lower case)."""
    begin, held = 0, ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = (_COMMENT.sub("", raw) if "#" in raw else raw).rstrip()
        if not line and not held:
            continue
        begin = begin or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if (held + line).strip():
            fields = None
            with faults.gathered():
                fields = _fields(held + line, source, begin, known)
            if fields is not None:
                yield Line(begin, fields)
        begin, held = 0, ""
    if held.strip():
        faults.add(begin, "the last line ends in \\, and nothing goes on with it")


def whole(line: Line, key: str, source: str) -> int | None:
    """Return the whole number of a key, None where the line has no such key."""
    text = line.fields.get(key)
    return None if text is None else number(text, key, source, line.number)


def number(text: str, what: str, source: str, line: int) -> int:
    """Return the whole number that `text` is."""
    if not _WHOLE.fullmatch(text):
        raise TopologyError(source, line, f"{what} is a whole number, not {text[:60]!r}")
    return int(text)


@dataclass(frozen=True)
class BlockLine:
    """A block of topology/block as its line declares it."""

    name: str
    nodes: str
    line: int


def blocks_of(
    source: str,
    declared: Sequence[BlockLine],
    sizes: Sequence[int],
    sizes_line: int | None,
    existing: Collection[str] | None = None,
) -> tuple[tuple[Block, ...], tuple[Finding, ...]]:
    """Return the blocks of topology/block, and what is odd; raise TopologyError where they cannot be used."""
    first: dict[str, int] = {}
    groups = []
    for one in declared:
        if one.name in first:
            text = f"block {one.name} is declared already, in line {first[one.name]}; declare it once"
            raise TopologyError(source, one.line, text)
        first[one.name] = one.line
        groups.append(NodesLine(hosts_at(one.nodes, source, one.line), one.line))
    tree = check_tree(source, [], groups, existing=existing)
    blocks = tuple(Block(group.nodes, name=one.name) for one, group in zip(declared, groups, strict=True))
    return blocks, (*tree.findings, *_sizes(source, groups, sizes, sizes_line))


def _sizes(source: str, groups: Sequence[NodesLine], sizes: Sequence[int], line: int | None) -> list[Finding]:
    """Each size is a power of two times the first (topology.conf(5)), and there are nodes for it."""
    found: list[Finding] = []
    if not sizes:
        return found
    multiples = [size // sizes[0] if sizes[0] and size % sizes[0] == 0 else 0 for size in sizes]
    if any(times == 0 or times & (times - 1) for times in multiples) or sorted(set(sizes)) != list(sizes):
        rule = "block sizes grow, and each is the first one times a power of two"
        raise TopologyError(source, line, f"{rule}, not {', '.join(map(str, sizes[:8]))}")
    places = () if line is None else (line,)
    nodes = sum(len(group.nodes) for group in groups)
    if sizes[-1] > nodes:
        value = f"the largest block size is {sizes[-1]}, and there are {nodes} nodes"
        found.append(finding("block size above all nodes", DOUBT, source, places, value, "leave that size out"))
    if small := [group.line for group in groups if len(group.nodes) < sizes[0]]:
        value = f"{len(small)} blocks have fewer nodes than the smallest block size, {sizes[0]}"
        found.append(finding("small block", DOUBT, source, small, value, "make the smallest size that of such a block"))
    return found


def _fields(text: str, source: str, line: int, known: Collection[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = 0
    while end < len(text):
        found = _FIELD.match(text, end)
        if not found or (found.end() < len(text) and not text[found.end()].isspace()):
            raise TopologyError(source, line, f"a line is keys with values, Key=value, not {text[end:].strip()[:60]!r}")
        key = found[1].lower()
        if key not in known:
            raise TopologyError(source, line, f"unknown key {found[1]!r}; known here: {', '.join(sorted(known))}")
        if key in fields:
            raise TopologyError(source, line, f"{found[1]} stands twice in this line; say it once")
        fields[key] = found[2].strip('"')
        end = found.end()
    return fields
