"""Lists of hosts as Slurm writes them, n[01-04,07], and back: by ClusterShell, which the extra `topology` brings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from commbench.errors import UsageError

MOST = 2_000_000  # hosts of one list: more are a slip, and would fill the memory
_PARTS = re.compile(r",(?![^\[]*\])")  # commas outside brackets
_OTHER = re.compile(r"[&!^@*?\s]")  # ClusterShell's operators on sets, which no list of Slurm's has


def expand(text: str) -> list[str]:
    """Return the hosts that `text` names, as often and in the order that it does; UsageError where it is no list."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    hosts: list[str] = []
    for part in _PARTS.split(text.strip()):
        if not part or _OTHER.search(part) or part.count("[") != part.count("]"):
            raise UsageError(_rule(text, "each part is a name, with ranges in closed brackets"))
        try:
            found = NodeSet(part, resolver=RESOLVER_NOGROUP)
        except NodeSetException as error:
            raise UsageError(_rule(text, str(error))) from None
        if len(hosts) + len(found) > MOST:
            raise UsageError(_rule(text, f"it names more than {MOST} hosts"))
        hosts += found
    return hosts


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as one list in ranges, sorted, each once."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(list(hosts), resolver=RESOLVER_NOGROUP))


def _rule(text: str, why: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"a list of hosts is written like n[01-04,07], not {shown!r}: {why}"
