"""NCCL's example tuner plugin and RCCL's built-in tuner: one CSV format, two meanings of what it does not say.

    collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks          the first row that matches wins

NCCL's plugin (plugins/tuner/example, plugin.c and plugin.cc: pluginGetCollInfo begins with *nChannels = 1) sets one
channel for every call that no row matches, and for channels of -1, which its README calls the default; NCCL keeps its
own number for 0 alone (src/enqueue.cc). RCCL's (csv_tuner.cc) begins with 0, and leaves both to the library. So a file
for NCCL names its channels and covers every collective at every size, on communicators of any size: the choices for the
largest of them stand for the others too. It has no heading, which would be read as a rule: an unknown word is taken for
all-reduce, ring or simple without a sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from commbench.errors import UsageError
from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.plan import Choice, Plan

TITLE = "NCCL or RCCL tuner"
LIBRARIES = ("NCCL", "RCCL")  # whose records it may be told of
NCCL, RCCL = "nccl_tuner.csv", "rccl_tuner.csv"

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
PROTOCOLS = ("ll", "ll128", "simple")
# Which collectives have the algorithm (src/graph/tuning.cc, src/device/generate.py); other ones would be ignored.
ALGORITHMS = {
    "tree": ("allreduce",),
    "ring": COLLECTIVES,
    "collnet_direct": ("allreduce", "allgather", "reducescatter"),
    "collnet_chain": ("allreduce",),
    "nvls": ("allreduce", "allgather", "reducescatter"),
    "nvls_tree": ("allreduce",),
    "pat": ("allgather", "reducescatter"),
}
MOST_CHANNELS = 64
ANY = -1
NO_END = 2**63 - 1  # bytes: read with strtoull
LONGEST_LINE = 255  # characters: a longer one is taken for two


@dataclass(frozen=True)
class Row:
    """A rule: `least` to `most` bytes, both included; ANY matches whatever there is."""

    collective: str
    least: int
    most: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int

    @property
    def text(self) -> str:
        """The line of the file."""
        fields = (self.collective, self.least, self.most, self.algorithm, self.protocol)
        return ",".join(map(str, (*fields, self.channels, self.nodes, self.ranks)))


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the file of the vendor's library; raise NotExported where a file would do harm, or nothing."""
    choices = [one for one in plan.choices if one.collective in COLLECTIVES]
    if plan.vendor not in ("nvidia", "amd"):
        raise NotExported(
            "no tuner file: it is for NCCL or RCCL, and these devices are not all of one of their vendors"
        )
    if not choices:
        raise NotExported("no tuner file: the plan chooses no algorithm for a collective that a tuner knows")
    if bare := next((one for one in choices if one.protocol is None), None):
        raise NotExported(
            f"no tuner file: a rule has a protocol, and the choice of {bare.algorithm} has none; measure it"
        )
    rows = [_row(one) for one in choices]
    if plan.vendor == "nvidia":
        return {NCCL: _text(_for_nccl(choices, rows))}
    return {RCCL: _text(rows)}


def parse(text: str) -> list[Row]:
    """Return the rules of a file; raise UsageError for a line that the plugins would take for another.

    The two fields that may follow, pipelined operations and registered buffers, only narrow a rule, and are not kept.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.strip().split(",")
        if len(line) > LONGEST_LINE or not 8 <= len(fields) <= 10:
            raise UsageError(
                f"line {number}: a rule has 8 to 10 fields in {LONGEST_LINE} characters, not {line[:60]!r}"
            )
        words = dict(zip(("collective", "algorithm", "protocol"), (fields[0], fields[3], fields[4]), strict=True))
        known = {"collective": COLLECTIVES, "algorithm": tuple(ALGORITHMS), "protocol": PROTOCOLS}
        for what, word in words.items():
            if word not in known[what]:
                raise UsageError(f"line {number}: the {what} is one of {', '.join(known[what])}, not {word[:60]!r}")
        try:
            least, most, channels, nodes, ranks = map(int, (fields[1], fields[2], *fields[5:8]))
        except ValueError:
            raise UsageError(
                f"line {number}: sizes, channels, nodes and ranks are whole numbers: {line[:60]!r}"
            ) from None
        rows.append(Row(fields[0], least, most, fields[3], fields[4], channels, nodes, ranks))
    return rows


def chosen(rows: Iterable[Row], collective: str, size: int, nodes: int, ranks: int) -> Row | None:
    """Return the rule for a call, as both plugins look for it."""
    for row in rows:
        if (
            row.collective == collective
            and row.least <= size <= row.most
            and row.nodes in (ANY, nodes)
            and row.ranks in (ANY, ranks)
        ):
            return row
    return None


def _row(it: Choice) -> Row:
    algorithm, protocol = it.algorithm.lower(), str(it.protocol).lower()
    if it.collective not in ALGORITHMS.get(algorithm, ()):
        raise NotExported(f"no tuner file: {it.collective} has no algorithm {it.algorithm[:40]!r} in NCCL")
    if protocol not in PROTOCOLS or (algorithm not in ("ring", "tree") and protocol != "simple"):
        raise NotExported(f"no tuner file: {algorithm} has no protocol {str(it.protocol)[:40]!r} in NCCL")
    channels = ANY if it.channels is None else it.channels
    if channels != ANY and not 1 <= channels <= MOST_CHANNELS:
        raise NotExported(f"no tuner file: NCCL has 1 to {MOST_CHANNELS} channels, not {channels}")
    most = NO_END if it.below is None else it.below - 1
    return Row(it.collective, it.least, most, algorithm, protocol, channels, it.nodes, it.ranks)


def _for_nccl(choices: Sequence[Choice], rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with those of the largest communicator once more for all others."""
    if any(row.channels == ANY for row in rows):
        raise NotExported(
            "no tuner file: results tell of no fixed number of channels, and of -1 NCCL's example plugin makes one "
            "(*nChannels = 1 in its pluginGetCollInfo); nccl.env can say an algorithm that holds for all sizes"
        )
    largest = max((one.nodes, one.ranks) for one in choices)
    wide = [row for one, row in zip(choices, rows, strict=True) if (one.nodes, one.ranks) == largest]
    for collective in COLLECTIVES:
        if (gap := _gap([row for row in wide if row.collective == collective])) is not None:
            raise NotExported(
                f"no tuner file: the plan chooses nothing for {collective} of {gap} bytes, and what no rule matches "
                "NCCL's example plugin runs on one channel (*nChannels = 1 in its pluginGetCollInfo)"
            )
    others = [replace(row, nodes=ANY, ranks=ANY) for row in wide]
    return [*(row for row in rows if row not in wide), *others] if len(wide) == len(rows) else [*rows, *others]


def _gap(rows: Iterable[Row]) -> int | None:
    """Return the first size that no row has, None where there is none."""
    size = 0
    for row in sorted(rows, key=lambda row: row.least):
        if row.least > size:
            return size
        size = max(size, row.most + 1)
    return None if size > NO_END else size


def _text(rows: Iterable[Row]) -> str:
    return "".join(f"{line}\n" for line in _lines(rows))


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    yield "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks"
    yield from (row.text for row in rows)
