"""Transfers held against our own measurements of the same collective, and what counters say of the difference.

What a collective takes alone is the time of records of ours (`commbench.allreduce`, ...) of the same operation,
library, number of ranks and nodes; between two sizes it lies on a straight line of logarithms, and beyond them nothing
is said. Records have an interval, and what lies within it is not called longer. The transfer of a meeting begins when
the last rank comes and ends when the last one is done, as in records.

What transfers take beyond that is called congestion only if counters of network ports say so: they rose in samples that
hold such a transfer, and hardly in those that hold none. Ports count for all that they carry, so that also bytes are
told: those that the adapters of a node sent in these samples, and those that it had to send at least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from commbench.attribution.collectives import Split
from commbench.attribution.counters import SENT, TROUBLE, WAITS, Series, increments
from commbench.attribution.trace import MESSAGE, Trace
from commbench.results.reading import UNKNOWN
from commbench.results.stats import median
from commbench.results.status import OK
from commbench.topology.hosts import counterparts
from commbench.topology.show import counted
from commbench.units import approximate_size, format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.results.record import Record

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Times = NDArray[np.int64]

MORE = 1.1  # times what a collective takes alone, from which on it takes longer: equal launches differ by as much
ROSE = 5.0  # times as fast as beside the windows, before a counter is said to have risen in them
METHODS = ("clock", "barrier", "loop")  # of measuring, that with the least skew first
_NAMED = 3  # ports in a message
NO_PORTS = "the counters given tell nothing of the ports of these hosts"
LIBRARIES = ("gloo", "mpi")  # that call their spans by their own name: gloo:all_reduce


@dataclass(frozen=True)
class Excess:
    """All meetings of one operation, size and group against what it takes alone. Durations in ns."""

    operation: str
    size: int  # bytes
    ranks: int
    meetings: int
    transfer: int  # the median one
    alone: int | None  # by our records, interpolated between sizes; None: no record fits
    record: str  # which one, or why none
    excess: int | None  # a meeting: transfer less alone; never called congestion by itself
    congestion: str  # what counters say: "" no counters, else in words, with the figures
    congested: bool = False  # longer than alone for certain, while counters rose that did not rise beside
    group: str = ""  # how it is called on screen
    alone_low: int | None = None  # the interval of alone: of several records the least and the most
    alone_high: int | None = None

    @property
    def longer(self) -> bool:
        """Whether the transfer is beyond all that was measured alone, and by more than equal launches differ."""
        return self.alone is not None and self.transfer > max(MORE * self.alone, self.alone_high or 0)


def excess_name(one: Excess, those: Sequence[Excess]) -> str:
    """Return operation, size and ranks in words; the exact size where another of `those` would be called the same."""
    size = approximate_size(one.size)
    alike = [other for other in those if (other.operation, other.ranks) == (one.operation, one.ranks)]
    if any(other.size != one.size and approximate_size(other.size) == size for other in alike):
        size = format_size(one.size)
    return f"{one.operation} of {size} on {counted(one.ranks, 'rank')}"


def excess(
    traces: Sequence[Trace], splits: Sequence[Split], records: Sequence[Record], counters: Sequence[Series]
) -> tuple[Excess, ...]:
    """Return what transfers took beyond what they take alone, the most time in all first.

    Meetings whose transfer is not known (skew alone, no size) and messages are left out.
    """
    alike: dict[_Kind, list[Split]] = defaultdict(list)
    for split in splits:
        if (kind := _kind(split, traces)) is not None:
            alike[kind].append(split)
    found = [_excess(kind, those, traces, records, counters) for kind, those in alike.items()]
    return tuple(sorted(found, key=lambda one: -one.meetings * (one.transfer if one.excess is None else one.excess)))


@dataclass(frozen=True)
class _Kind:
    """What meetings have in common that are held against one record."""

    operation: str
    size: int
    dtype: str
    group: tuple[int, ...]
    label: str = field(compare=False)
    backend: str  # "": not told
    hosts: frozenset[str]  # of those that say theirs
    nodes: int | None  # None: not all say their host


def _kind(split: Split, traces: Sequence[Trace]) -> _Kind | None:
    meeting = split.meeting
    if split.skew_only or not meeting.size or meeting.operation == MESSAGE or len(meeting.group) < 2:
        return None
    names = [traces[place].host for place in split.places]
    complete = all(names) and not meeting.missing
    hosts = frozenset(filter(None, names))
    first = split.places[0]
    backend = _backend(traces[first].calls[meeting.calls[first]].name, traces[first])
    nodes = len(hosts) if complete else None
    return _Kind(meeting.operation, meeting.size, meeting.dtype, meeting.group, meeting.label, backend, hosts, nodes)


def _backend(name: str, trace: Trace) -> str:
    """Return by which of our backends a call of this name was carried out, or "" where nothing tells.

    Names alone may not: NCCL Inspector's are bare (AllReduce), and kernels of RCCL are called ncclDevKernel.
    """
    word = name.lower()
    if library := next((one for one in LIBRARIES if word.startswith(f"{one}:")), ""):
        return library
    if trace.device == "cpu":
        return "gloo" if "gloo" in word else ""
    told = f"{word} {trace.format.lower()}"
    by_words = next((one for one in ("rccl", "nccl") if one in told), "")
    return {"hip": "rccl", "cuda": "nccl"}.get(trace.device, by_words)


def _excess(
    kind: _Kind, splits: Sequence[Split], traces: Sequence[Trace], records: Sequence[Record], counters: Sequence[Series]
) -> Excess:
    transfer = round(median([transfer_of(split) for split in splits]))
    (alone, low, high), record = _alone(kind, records)
    beyond = None if alone is None else transfer - alone
    said, rose = _ports(kind, splits, traces, counters)
    found = Excess(
        operation=kind.operation,
        size=kind.size,
        ranks=len(kind.group),
        meetings=len(splits),
        transfer=transfer,
        alone=alone,
        record=record,
        excess=beyond,
        congestion=said,
        group=kind.label,
        alone_low=low,
        alone_high=high,
    )
    return replace(found, congested=rose and found.longer)


def transfer_of(split: Split) -> int:
    """Return how long (ns) a meeting went on after the last rank had come."""
    return int(split.end.max() - split.arrival.max())


# What it takes alone


_NONE = None, None, None


def _alone(kind: _Kind, records: Sequence[Record]) -> tuple[tuple[int, int, int] | tuple[None, None, None], str]:
    """Return what a collective takes alone by records (ns), from and to, and which ones, or None and why none fits."""
    if not records:
        return _NONE, "no records were given"
    nodes = kind.nodes
    rules: list[tuple[str, Callable[[Record], bool]]] = [
        (f"of {kind.operation}", lambda one: one.collective == kind.operation),
        ("that was measured", lambda one: one.status == OK and bool(one.time_us) and not one.simulated),
        (f"by {kind.backend or 'its library, which the trace does not tell'}", lambda one: one.backend == kind.backend),
        (f"of {len(kind.group)} ranks", lambda one: one.nranks == len(kind.group)),
        (f"on {nodes} nodes", lambda one: None in (nodes, one.nnodes) or one.nnodes == nodes),
        (f"on {', '.join(sorted(kind.hosts))}", lambda one: _same_hosts(kind, one)),
    ]
    for words, rule in rules:
        records = [one for one in records if rule(one)]
        if not records:
            return _NONE, f"no record {words}"
    own = [one for one in records if one.algorithm == "auto"]
    if not own:
        return _NONE, "no record of the library's own choice (algorithm auto)"
    # Times of unlike types, libraries or methods are never mixed: those most like the job's are taken.
    own.sort(
        key=lambda one: (one.dtype != kind.dtype, METHODS.index(one.method) if one.method in METHODS else len(METHODS))
    )
    first = own[0]
    curve: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for one in own:
        if (one.dtype, one.method, one.library) == (first.dtype, first.method, first.library) and one.time_us:
            # Of too few rounds there is no interval; the time itself is all that is known then.
            its = one.time_us, one.time_us_low or one.time_us, one.time_us_high or one.time_us
            curve[one.size].append(its)
    words = f"{first.library}, {first.dtype}, method {first.method}"
    sizes = sorted(curve)
    if not sizes[0] <= kind.size <= sizes[-1]:
        known = f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
        return _NONE, f"no record of this size: those of {words} go from {known}"
    of_sizes = [zip(*curve[size], strict=True) for size in sizes]
    ends = [(median(times), min(lows), max(highs)) for times, lows, highs in of_sizes]
    alone, low, high = (
        round(float(np.exp(np.interp(np.log(kind.size), np.log(sizes), np.log(column)))) * 1e3)
        for column in zip(*ends, strict=True)
    )
    between = "" if kind.size in curve else ", interpolated between sizes"
    return (alone, low, high), f"{words}{between}"


def _same_hosts(kind: _Kind, record: Record) -> bool:
    """Whether a record is of the hosts of the trace, as far as both tell."""
    measured = {host for host in record.hosts.split(",") if host and host != UNKNOWN}
    return not measured or all(counterparts(kind.hosts, measured).values())


# What ports say


def _ports(
    kind: _Kind, splits: Sequence[Split], traces: Sequence[Trace], counters: Sequence[Series]
) -> tuple[str, bool]:
    """Return what counters of the hosts' ports say of the meetings' transfers, and whether any rose in them alone."""
    windows = _windows(splits, traces)
    ports = [series for series in counters if series.kind == "rdma" and series.host in windows and len(series.time) > 1]
    if not ports:
        return NO_PORTS if counters else "", False
    rose: dict[str, _Rise] = {}
    inside, beside = 0, 0
    for series in ports:
        within = _holding(series.time, windows[series.host])
        inside, beside = inside + int(within.sum()), beside + int((~within).sum())
        for name in series.values:
            if name in (*WAITS, *TROUBLE) or "pause" in name:
                one = _rise(series, name, within)
                if one.total > 0 and one.inside > ROSE * one.beside:
                    rose[name] = rose.get(name, _Rise()) + one
    said = []
    if not inside:
        return "no sample of the ports holds one of these transfers", False
    if not beside:
        said.append(
            "whether counters rose in these transfers alone is not known: every sample holds one; sample faster"
        )
    elif not rose:
        said.append("no counter of waits, pauses or retransmissions rose in these transfers more than beside them")
    else:
        for name, rise in sorted(rose.items(), key=lambda one: -one[1].total):
            rates = f"{rise.inside:.3g}/s in them, {rise.beside:.3g}/s beside"
            said.append(f"{name} rose by {rise.total:.0f} ({rates}; {', '.join(rise.where[:_NAMED])})")
    said += _bytes(kind, len(splits), ports, windows)
    return "; ".join(said), bool(rose) and beside > 0


@dataclass(frozen=True)
class _Rise:
    """By how much a counter rose in transfers, its rates (1/s) in them and beside them, and at which ports."""

    total: float = 0.0
    inside: float = 0.0
    beside: float = 0.0
    where: tuple[str, ...] = ()

    def __add__(self, other: _Rise) -> _Rise:
        total, inside, beside = self.total + other.total, self.inside + other.inside, self.beside + other.beside
        return _Rise(total, inside, beside, self.where + other.where)


def _windows(splits: Sequence[Split], traces: Sequence[Trace]) -> dict[str, Times]:
    """Return from when until when the transfers were on each host, (n, 2) ns since 1970 on its own clock."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for split in splits:
        for place, wait in zip(split.places, split.wait.tolist(), strict=True):
            trace = traces[place]
            call = trace.calls[split.meeting.calls[place]]
            if trace.host and trace.unix and call.start is not None and call.end is not None:
                found[trace.host].append((call.start + wait, call.end))
    return {host: np.array(sorted(windows), dtype=np.int64) for host, windows in found.items()}


def _holding(time: Times, windows: Times) -> Flags:
    """Return which of the intervals between samples hold a part of a window; windows are sorted by start."""
    latest = np.maximum.accumulate(windows[:, 1])
    begun = np.searchsorted(windows[:, 0], time[1:], side="left")  # windows that begin before the interval ends
    return (begun > 0) & (latest[np.maximum(begun - 1, 0)] > time[:-1])


def _rise(series: Series, name: str, within: Flags) -> _Rise:
    """Return by how much a port's counter rose in the intervals `within`, and its rates in them and in the others."""
    steps: Floats = increments(series, name, series.time[:-1], series.time[1:])
    seconds = np.diff(series.time) / 1e9
    known = ~np.isnan(steps)
    sums = [(float(steps[these & known].sum()), float(seconds[these & known].sum())) for these in (within, ~within)]
    here, there = (total / lasted if lasted else np.nan for total, lasted in sums)  # NaN, above nothing: not known
    return _Rise(sums[0][0], here, there, (f"{series.host} {series.source}",))


def _bytes(kind: _Kind, meetings: int, ports: Sequence[Series], windows: Mapping[str, Times]) -> list[str]:
    """Return what the adapters of the nodes sent in the samples of these transfers, and what they had to at least."""
    least = _least(kind)
    if least is None:
        return []
    by_host: dict[str, float] = defaultdict(float)
    for series in ports:
        name = next((name for name in SENT if name in series.values), None)
        if name is not None:
            by_host[series.host] += _rise(series, name, _holding(series.time, windows[series.host])).total
    if not by_host:
        return []
    host = min(by_host, key=lambda name: by_host[name])
    return [
        f"adapters of {host} sent {by_host[host] / 1e9:.3g} GB in these samples, where {meetings * least / 1e9:.3g} GB "
        "had to leave the node, unless switches take part"
    ]


def _least(kind: _Kind) -> float | None:
    """Return how many bytes have to leave a node by the algorithms that move least; None where nodes are not known.

    With m nodes of alike numbers of ranks: a bandwidth-optimal all-reduce sends 2 (m - 1) / m of the size from each
    (Patarasuk and Yuan 2009, with nodes for processes), its halves one of them; of an all-to-all each rank keeps what
    is for its node. Rooted operations differ from node to node, and are left out. Switches that reduce and multiply
    (SHARP) leave a node with less: of an all-reduce with the size, once.
    """
    m = kind.nodes
    if m is None or m < 2:
        return None
    share = (m - 1) / m * kind.size
    return {
        "allreduce": 2 * share,
        "allgather": share,
        "reducescatter": share,
        "alltoall": share * len(kind.group) / m,
    }.get(kind.operation)
