"""Lists of hosts as Slurm writes them, n[01-04,07], and back; names of one host with and without its domain.

Lists with several ranges in a name are read by ClusterShell, which the extra `topology` brings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from commbench.errors import UsageError

MOST = 2_000_000  # hosts of one list: more are a slip, and would fill the memory
LONGEST_RANGE = 65_536  # hosts of one range: Slurm takes no longer one
_ENDING = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)
_ONE_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")  # the commonest list
_BRACKETS = re.compile(r"\[[^\]]*\]")
_RANGE = re.compile(r"(\d+)-(\d+)")
_ONE_RANGE = re.compile(r"([^\[\]]*)\[(\d{1,9})-(\d{1,9})\]([^\[\]]*)")
_STEP_OR_HUGE = re.compile(r"\[[^\]]*(?:/|\d{20})")  # steps are ClusterShell's own
_OTHER = re.compile(r"[&!^@*?\s]")  # ClusterShell's operators on sets, which no list of Slurm's has


def expand(text: str) -> list[str]:
    """Return the hosts that `text` names, as often and in the order that it does; UsageError where it is no list."""
    if _ONE_NAME.fullmatch(text):
        return [text]
    hosts: list[str] = []
    for part in _parts(text.strip()):
        if not part or _OTHER.search(part) or _STEP_OR_HUGE.search(part) or part.count("[") != part.count("]"):
            raise UsageError(_rule(text, "each part is a name, with ranges in closed brackets"))
        if len(hosts) + _at_least(part) > MOST:
            raise UsageError(_rule(text, f"it names more than {MOST:,} hosts"))
        if (plain := _plain(part)) is not None:
            hosts += plain
            continue
        module = _clustershell()
        try:
            hosts += module.NodeSet(part, resolver=module.RESOLVER_NOGROUP)
        except module.NodeSetException as error:
            raise UsageError(_rule(text, str(error))) from None
    return hosts


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as one list in ranges, sorted, each once, as Slurm takes it.

    Slurm refuses a range with something behind it (n[1-2]x), and one of more than 65,536 hosts.
    """
    parts = {name: _ENDING.fullmatch(name) for name in hosts}
    padded = {
        (found[1], len(found[2])) for found in parts.values() if found and len(found[2]) > 1 and found[2][0] == "0"
    }
    ranges: dict[tuple[str, int], list[int]] = {}
    listed: dict[tuple[str, int], str] = {}
    for name, found in parts.items():
        if not found:
            listed[name, 0] = name
            continue
        width = len(found[2]) if (found[1], len(found[2])) in padded else 0
        ranges.setdefault((found[1], width), []).append(int(found[2]))
    for (before, width), numbers in ranges.items():
        spans = [f"{low:0{width}}" + (f"-{high:0{width}}" if high > low else "") for low, high in _spans(numbers)]
        alone = len(spans) == 1 and "-" not in spans[0]
        listed[before, 1 + width] = before + (spans[0] if alone else f"[{','.join(spans)}]")
    return ",".join(listed[key] for key in sorted(listed))


def same_host(one: str, other: str) -> bool:
    """Whether two names are one host's: the same, or one of them the other without its domain."""
    return one == other or one.partition(".")[0] == other or other.partition(".")[0] == one


def counterparts(names: Iterable[str], known: Iterable[str]) -> Mapping[str, list[str]]:
    """Return for each of `names` those of `known` that are the same host's."""
    by_first: dict[str, list[str]] = {}
    for name in dict.fromkeys(known):
        by_first.setdefault(name.partition(".")[0], []).append(name)
    return {
        name: [other for other in by_first.get(name.partition(".")[0], ()) if same_host(name, other)] for name in names
    }


def _spans(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as the first and last of each run, of at most LONGEST_RANGE."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1 and number - spans[-1][0] < LONGEST_RANGE:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


def _clustershell() -> Any:
    try:
        from ClusterShell import NodeSet
    except ImportError:
        raise UsageError("lists of hosts need ClusterShell: pip install 'commbench[topology]'") from None
    return NodeSet


def _parts(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are outside brackets."""
    held: list[str] = []
    inside = 0
    for piece in text.split(","):
        held.append(piece)
        inside += piece.count("[") - piece.count("]")
        if inside <= 0:
            yield ",".join(held)
            held, inside = [], 0
    if held:
        yield ",".join(held)


def _plain(part: str) -> list[str] | None:
    """Return the hosts of the commonest lists, which ClusterShell takes long for: a name, one range. None: another."""
    if "[" not in part:
        return [part]
    found = _ONE_RANGE.fullmatch(part)
    if not found or int(found[2]) > int(found[3]) or len(found[2]) > len(found[3]):
        return None
    before, low, high, after = found.groups()
    return [f"{before}{number:0{len(low)}}{after}" for number in range(int(low), int(high) + 1)]


def _at_least(part: str) -> int:
    """Return how many hosts the ranges of `part` span, told without expanding them."""
    spans = ([max(1, int(high) - int(low) + 1) for low, high in _RANGE.findall(one)] for one in _BRACKETS.findall(part))
    return prod(sum(span) for span in spans if span)


def _rule(text: str, why: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"a list of hosts is written like n[01-04,07], not {shown!r}: {why}"
