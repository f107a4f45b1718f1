"""Open MPI's file of rules for coll/tuned, and the settings that make it read one.

    rule-file-version-2                                first line, from 5.0.7 on: a rule has a fifth number then
    COLLECTIVES {ID SIZES {RANKS RULES {BYTES ALGORITHM FAN SEGMENT [REQUESTS]}}}

A rule holds from its bytes on; the first is of 0 bytes, and algorithm 0 leaves the choice to the library. The bytes are
those that commbench calls the size: the vector of all-reduce, reduce and broadcast, all ranks' blocks together of the
others (coll_tuned_decision_dynamic.c). Each collective has one size of communicators, which holds for all of them: what
several would mean differs between versions. It is that of the choices on the most nodes, with the most ranks there. The
numbers of algorithms are ompi_info's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.plan import Choice, Plan
from commbench.topology.show import counted

TITLE = "Open MPI rules"
LIBRARIES = ("Open MPI",)  # whose records it may be told of
RULES, ENVIRONMENT = "openmpi_rules.conf", "openmpi.env"
VERSION_2 = (5, 0, 7)
_FIRST_LINE = "rule-file-version-2"

COLLECTIVES = {"allgather": 0, "allreduce": 2, "alltoall": 3, "broadcast": 7, "reduce": 11, "reducescatter": 13}
# In the names of variables; reducescatter is MPI_Reduce_scatter_block.
FUNCTIONS = {name: name for name in ("allgather", "allreduce", "alltoall", "reduce")} | {
    "broadcast": "bcast",
    "reducescatter": "reduce_scatter_block",
}
# By the names that commbench has for them.
ALGORITHMS: Mapping[str, Mapping[str, int]] = {
    "allreduce": {
        "linear": 1,
        "nonoverlapping": 2,
        "recursive_doubling": 3,
        "ring": 4,
        "segmented_ring": 5,
        "rabenseifner": 6,
    },
    "allgather": {
        "linear": 1,
        "bruck": 2,
        "recursive_doubling": 3,
        "ring": 4,
        "neighbor_exchange": 5,
        "two_rank": 6,
        "sparbit": 7,
    },
    "alltoall": {"linear": 1, "pairwise": 2, "bruck": 3, "linear_sync": 4, "two_rank": 5},
    "broadcast": {
        "linear": 1,
        "chain": 2,
        "pipeline": 3,
        "split_binary_tree": 4,
        "binary_tree": 5,
        "binomial": 6,
        "knomial": 7,
        "scatter_allgather": 8,
        "scatter_allgather_ring": 9,
    },
    "reduce": {
        "linear": 1,
        "chain": 2,
        "pipeline": 3,
        "binary": 4,
        "binomial": 5,
        "in_order_binary": 6,
        "rabenseifner": 7,
    },
    "reducescatter": {"linear": 1, "recursive_doubling": 2, "recursive_halving": 3, "butterfly": 4},
}


@dataclass(frozen=True)
class Rule:
    """From `size` bytes on this algorithm, by its number."""

    size: int
    algorithm: int
    fan: int = 0
    segment: int = 0
    requests: int | None = None  # of version 2


@dataclass(frozen=True)
class Rules:
    """What a file says: rules by the collective's number and the communicator's ranks."""

    version: int
    rules: Mapping[tuple[int, int], tuple[Rule, ...]]


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the rules, and the variables that name them; raise NotExported where there is nothing to say."""
    choices = [one for one in plan.choices if one.collective in COLLECTIVES]
    if not choices:
        raise NotExported("no Open MPI rules: the plan chooses no algorithm")
    latest = settings.openmpi is not None and settings.openmpi >= VERSION_2
    numbers = [len({one.collective for one in choices})]
    text = f"{_FIRST_LINE}\n" if latest else ""
    text += f"{numbers[0]} # collectives\n"
    for collective, number in COLLECTIVES.items():
        mine = [one for one in choices if one.collective == collective]
        if not mine:
            continue
        nodes, ranks = largest = max((one.nodes, one.ranks) for one in mine)
        rules = _rules([one for one in mine if (one.nodes, one.ranks) == largest])
        left = sorted({(one.nodes, one.ranks) for one in mine} - {largest})
        said = " or ".join(f"{count} on {counted(some, 'node')}" for some, count in left)
        said = f", as chosen for {ranks} ranks on {counted(nodes, 'node')}, not for {said}" if left else ""
        text += f"{number} # {collective}{said}\n1 # size of communicators\n{ranks} # ranks\n{len(rules)} # rules\n"
        text += "".join(f"{rule.size} {rule.algorithm} 0 0{' 0' * latest}\n" for rule in rules)
    return {RULES: text, ENVIRONMENT: _environment(choices)}


def _environment(choices: Sequence[Choice]) -> str:
    functions = [function for name, function in FUNCTIONS.items() if name in {one.collective for one in choices}]
    forced = " ".join(f"OMPI_MCA_coll_tuned_{function}_algorithm" for function in functions)
    return f"""\
# From the folder of this file:  source {ENVIRONMENT}
# An algorithm that is forced would come before the rules (measured with 5.0.11).
unset {forced}
# Open MPI says nothing of a file of rules that it does not find, so that the path is whole.
export OMPI_MCA_coll_tuned_use_dynamic_rules=1
export OMPI_MCA_coll_tuned_dynamic_rules_filename="$PWD/{RULES}"
"""


def parse(text: str) -> Rules:
    """Return what a file says, of either version; raise UsageError where Open MPI would not understand it."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    words = [word for line in lines for word in line]
    version = 2 if words[:1] == [_FIRST_LINE] else 1
    numbers = iter(words[version - 1 :])
    found: dict[tuple[int, int], tuple[Rule, ...]] = {}

    def number() -> int:
        word = next(numbers, None)
        if word is None or not word.isdecimal():
            raise UsageError(f"a file of rules is whole numbers to its end, and here is {word or 'its end too soon'!r}")
        return int(word)

    for _ in range(number()):
        collective = number()
        for _ in range(number()):
            ranks = number()
            rules = []
            for _ in range(number()):
                rules.append(Rule(*(number() for _ in range(3 + version))))
            sizes = [rule.size for rule in rules]
            if not sizes or sizes[0] != 0 or sizes != sorted(set(sizes)):
                raise UsageError(
                    f"rules begin with 0 bytes and ascend, and those of collective {collective} are {sizes[:8]}"
                )
            found[collective, ranks] = tuple(rules)
    if (rest := next(numbers, None)) is not None:
        raise UsageError(f"nothing follows the last rule, and here is {rest[:60]!r}")
    return Rules(version, found)


def _rules(choices: list[Choice]) -> list[Rule]:
    """Return rules from 0 bytes on; where no choice holds, the library's own."""
    rules: list[Rule] = []
    size: int | None = 0
    for one in sorted(choices, key=lambda one: one.least):
        if size is None or one.least < size:
            text = f"{one.collective} has two choices for {one.least} bytes with {one.ranks} ranks"
            raise NotExported(f"no Open MPI rules: {text}: correct the plan")
        known = ALGORITHMS[one.collective]
        if one.algorithm not in known:
            text = f"{one.collective} has {', '.join(known)} in Open MPI, and not {one.algorithm[:40]!r}"
            raise NotExported(f"no Open MPI rules: {text}")
        if one.least > size:
            rules.append(Rule(size, 0))
        rules.append(Rule(one.least, known[one.algorithm]))
        size = one.below
    if size is not None:
        rules.append(Rule(size, 0))
    return rules
