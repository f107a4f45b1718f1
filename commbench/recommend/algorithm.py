"""Which algorithm to ask for at which size: from records, and only where it beats the library's own choice for real.

At each measured size an algorithm may be chosen where its advantage over `auto` is real by the rule of
`commbench.compare`: from five launches on, where launches shuffled between the two give so large a difference in any
cell in at most 5 % of all ways (`results/spread.py`). Of fewer launches the rounds have to tell: in each launch the
interval of `auto` over its rounds lies above that of the algorithm, which says nothing of other launches. `source` says
which it was. An algorithm that takes longer than `auto` with one of several types, reductions, roots or places, by as
much as a change of choice is worth, is not chosen: what a choice is exported to does not tell these apart.

Among the sizes choices change as seldom as is worth it: of all ways to choose at each size what may be chosen there,
the one with the least sum of log(time) is taken, where each change from one size to the next counts as 3 % of a time.
So of two that are equally fast the one stays that was there before.

A choice reaches from half-way (as logarithms) between two measured sizes to half-way between two others, and never
beyond the sizes that were measured. All else stays the library's own. Where a library can be told of one algorithm for
all sizes or none (MPICH's control variables; NCCL, whose rules by size need one number of channels for every size,
and records tell those of the measured ones), `for_all_sizes` chooses it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from commbench.errors import ResultsError
from commbench.recommend.plan import Choice
from commbench.results.collect import OWN, collect
from commbench.results.record import Record
from commbench.results.spread import FEWEST_LAUNCHES, LEVEL, Times, family
from commbench.results.stats import median
from commbench.results.status import OK
from commbench.topology.show import counted

WORTH = math.log(1.03)  # what a change of choice has to bring, as a logarithm of time
# Libraries whose settings hold for all sizes: see export/mpich_settings.py and export/nccl_environment.py. RCCL's tuner
# keeps its own number of channels, and is told by size.
ONE_FOR_ALL = ("MPICH", "NCCL")
_ALONE = ("library", "method", "buffer", "simulated")  # of which records must have one value, to be compared

Label = tuple[str, str | None]  # algorithm, protocol
AUTO: Label = ("auto", None)
Scope = tuple[str, int, int]  # collective, ranks, nodes
Variant = tuple[Any, ...]  # what else cells of one size and label may differ in
Launch = dict[tuple[int, Label], dict[Variant, Record]]  # the timed records of one scope


def records_of(paths: Iterable[str | Path]) -> list[list[Record]]:
    """Return the records of all runs of commbench at these places, a list for each launch.

    Logs that others wrote are left out: nobody knows which of them are equal launches. Raises ResultsError where there
    is no run.
    """
    places = list(paths)
    readings = [reading for reading in collect(places) if reading.format == OWN]
    if not readings:
        raise ResultsError(f"algorithms are chosen from runs of commbench: {', '.join(map(str, places))} holds none")
    return [reading.records for reading in readings]


def choose(launches: Sequence[Sequence[Record]]) -> tuple[Choice, ...]:
    """Return what to ask for instead of the library's own choice, from the records of equal launches.

    Records without a time, and those of groups within a launch other than its first ranks, do not count. Raises
    ResultsError for records that cannot be compared: of several libraries or versions of one, methods, or kinds of
    memory, or simulated beside measured ones.
    """
    scopes, library = _scopes(launches), _library(launches)
    real = _real([rival for scope, those in scopes.items() for rival in _rivals(scope, those)])
    found: list[Choice] = []
    for scope, those in sorted(scopes.items()):
        sizes = sorted({size for launch in those for size, label in launch if label == AUTO})
        found += _choices(scope, sizes, [real[scope, size] for size in sizes], library)
    return tuple(found)


def for_library(launches: Sequence[Sequence[Record]]) -> tuple[Choice, ...]:
    """Return the choices in the way in which the library of the records can be told of them: by size, or one for all.

    Raises as `choose` does.
    """
    return for_library_with_notes(launches)[0]


def for_library_with_notes(launches: Sequence[Sequence[Record]]) -> tuple[tuple[Choice, ...], list[str]]:
    """Return what `for_library` does, and what to say of algorithms that would have been chosen but for other ranks."""
    return _one_for_all(launches) if _library(launches).startswith(ONE_FOR_ALL) else (choose(launches), [])


def for_all_sizes(launches: Sequence[Sequence[Record]]) -> tuple[Choice, ...]:
    """Return, for each collective, ranks and nodes, the one algorithm that is best over all measured sizes, if any is.

    It must be measured at each size, faster on average, for real at one size at least, and at none slower by as much as
    a change of choice is worth, whatever the ranks and nodes: what it is exported to holds for communicators of every
    size. The one with the largest mean gain is taken. The choice has no ends, as what it is exported to has none.
    Raises as `choose` does.
    """
    return _one_for_all(launches)[0]


def _one_for_all(launches: Sequence[Sequence[Record]]) -> tuple[tuple[Choice, ...], list[str]]:
    """Return the choices, and what to say of an algorithm that is best with some ranks and harms with others."""
    scopes, library = _scopes(launches), _library(launches)
    rivals = [rival for scope, those in scopes.items() for rival in _rivals(scope, those)]
    harmed: dict[tuple[str, Label], list[Scope]] = defaultdict(list)
    for rival in rivals:
        if rival.harms:
            harmed[rival.scope[0], rival.label].append(rival.scope)
    real, found, notes = _real(rivals), [], []
    for scope, those in sorted(scopes.items()):
        sizes = {size for launch in those for size, label in launch if label == AUTO}
        by_label: dict[Label, list[_Rival]] = defaultdict(list)
        for rival in rivals:
            if rival.scope == scope:
                by_label[rival.label].append(rival)
        ways = []
        for label, at in by_label.items():
            sources = [real[scope, one.size][label][1] for one in at if label in real[scope, one.size]]
            gain = fmean(one.gain for one in at)
            if sources and {one.size for one in at} == sizes and gain > 0 and scope not in harmed[scope[0], label]:
                ways.append((gain, label, "; ".join(dict.fromkeys(sources))))
        ways.sort(key=lambda way: -way[0])
        if ways and (elsewhere := harmed[scope[0], ways[0][1]]):
            notes.append(_left(scope, ways[0][1], elsewhere))
        for gain, label, source in [way for way in ways if not harmed[scope[0], way[1]]][:1]:
            found.append(Choice(*scope, 0, None, *label, gain=math.exp(gain), source=source, library=library))
    return tuple(found), notes


def _left(scope: Scope, label: Label, harmed: Iterable[Scope]) -> str:
    """Return why the best algorithm of a scope is not chosen."""
    (_, ranks, nodes), *more = sorted(set(harmed))
    others = f" and {counted(len(more), 'other size')} of communicators" if more else ""
    return (
        f"{scope[0]}: {' '.join(filter(None, label))} is best with {scope[1]} ranks on {counted(scope[2], 'node')} and "
        f"left out, since it is slower than the library's own choice with {ranks} ranks on {counted(nodes, 'node')}"
        f"{others}, and a setting holds for all"
    )


def _library(launches: Sequence[Sequence[Record]]) -> str:
    """Return the library of the records, with its version."""
    return next((one.library or "" for records in launches for one in records), "")


def _scopes(launches: Sequence[Sequence[Record]]) -> dict[Scope, list[Launch]]:
    """Return the records of each scope, launch by launch; a launch without any is none of the scope's."""
    found: dict[Scope, list[Launch]] = defaultdict(list)
    seen: dict[str, Any] = {}
    for records in launches:
        here: dict[Scope, Launch] = defaultdict(lambda: defaultdict(dict))
        for one in records:
            whole = one.group == "all" or one.group.startswith("first ")
            if one.status != OK or not one.time_us or not one.size or not one.nranks or not whole:
                continue
            for name in _ALONE:
                value = getattr(one, name)
                if seen.setdefault(name, value) != value:
                    raise ResultsError(
                        f"algorithms are chosen from records of one {name}, and these are of {seen[name]} and {value}: "
                        "give those of one"
                    )
            cell = one.size, (one.algorithm, one.protocol)
            here[one.collective, one.nranks, one.nnodes or 1][cell][one.dtype, one.redop, one.root, one.inplace] = one
        for scope, launch in here.items():
            found[scope].append(launch)
    return found


@dataclass(frozen=True)
class _Rival:
    """An algorithm and the library's own choice at one size: pairs of records, alike but for that, launch by launch."""

    scope: Scope
    size: int
    label: Label
    pairs: Sequence[Mapping[Variant, tuple[Record, Record]]]  # (auto, other)

    def times(self, which: int) -> Times:
        """Return the times of `auto` (0) or of the other (1) in each launch: the geometric mean over variants."""
        logs = [[math.log(pair[which].time_us or 1.0) for pair in those.values()] for those in self.pairs]
        return [math.exp(fmean(those)) if those else None for those in logs]

    @cached_property
    def gains(self) -> list[float]:
        """The logarithm of how many times as long `auto` takes, of each launch that has both."""
        return [math.log(a / b) for a, b in zip(self.times(0), self.times(1), strict=True) if a and b]

    @property
    def gain(self) -> float:
        return median(self.gains)

    @property
    def harms(self) -> bool:
        """Whether it is slower in some variant, by as much as a change is worth."""
        by_variant: dict[Variant, list[float]] = defaultdict(list)
        for variant, (auto, other) in (pair for those in self.pairs for pair in those.items()):
            by_variant[variant].append(math.log((auto.time_us or 1.0) / (other.time_us or 1.0)))
        return any(median(those) < -WORTH for those in by_variant.values())

    @property
    def better(self) -> bool:
        """Whether it seems faster, by median and by mean, and harms nowhere."""
        return self.gain > 0 and fmean(self.gains) > 0 and not self.harms

    @property
    def apart(self) -> bool:
        """Whether the intervals over rounds tell that `auto` takes longer, in each launch and variant."""
        return all(
            auto.time_us_low is not None and other.time_us_high is not None and auto.time_us_low > other.time_us_high
            for those in self.pairs
            for auto, other in those.values()
        )


def _rivals(scope: Scope, launches: Sequence[Launch]) -> list[_Rival]:
    cells = dict.fromkeys(cell for launch in launches for cell in launch)
    found = []
    for size, label in cells:
        pairs = []
        for launch in launches:
            auto, other = launch.get((size, AUTO), {}), launch.get((size, label), {})
            pairs.append({variant: (auto[variant], other[variant]) for variant in auto if variant in other})
        if label[0] != AUTO[0] and any(pairs):
            found.append(_Rival(scope, size, label, pairs))
    return found


def _real(rivals: Sequence[_Rival]) -> dict[tuple[Scope, int], dict[Label, tuple[float, str]]]:
    """Return what may be chosen at each size: its gain, as a logarithm, and what says that it is real."""
    found: dict[tuple[Scope, int], dict[Label, tuple[float, str]]] = defaultdict(dict)
    tested = [one for one in rivals if len(one.gains) >= FEWEST_LAUNCHES]
    longest = max((len(one.pairs) for one in tested), default=0)
    rest: list[float | None] = [None] * longest
    auto, other = ([[*one.times(which), *rest][:longest] for one in tested] for which in (0, 1))
    for one, p in zip(tested, family(list(zip(auto, other, strict=True))), strict=True):
        if p <= LEVEL and one.better:
            found[one.scope, one.size][one.label] = one.gain, f"measured: {len(one.gains)} launches"
    for one in rivals:
        if len(one.gains) < FEWEST_LAUNCHES and one.better and one.apart:
            launches = "one launch" if len(one.gains) == 1 else f"{len(one.gains)} launches"
            found[one.scope, one.size][one.label] = one.gain, f"measured: rounds of {launches}"
    return found


def _choices(
    scope: Scope, sizes: Sequence[int], real: Sequence[Mapping[Label, tuple[float, str]]], library: str
) -> list[Choice]:
    """Return a choice for each range of measured sizes that has one label, other than the library's own."""
    labels = _steady([{label: gain for label, (gain, _) in here.items()} for here in real])
    found, begin = [], 0
    for end in range(1, len(sizes) + 1):
        label = labels[begin]
        if end < len(sizes) and labels[end] == label:
            continue
        if label != AUTO:
            told = [real[place][label] for place in range(begin, end)]
            least = _between(*sizes[begin - 1 : begin + 1]) if begin else sizes[0]
            below = _between(*sizes[end - 1 : end + 1]) if end < len(sizes) else sizes[-1] + 1
            gain, sources = math.exp(fmean(gain for gain, _ in told)), dict.fromkeys(source for _, source in told)
            source = "; ".join(sources)
            found.append(Choice(*scope, least, below, *label, gain=gain, source=source, library=library))
        begin = end
    return found


def _steady(gains: Sequence[Mapping[Label, float]]) -> list[Label]:
    """Return a label for each size, such that the sum of gains is largest, less WORTH for each change.

    By dynamic programming over the sizes (Viterbi, 1967).
    """
    ways: dict[Label, tuple[float, list[Label]]] = {}
    for here in gains:
        last, ways = ways, {}
        for label, gain in ({AUTO: 0.0} | dict(here)).items():
            before = [(total - WORTH * (path[-1] != label), path) for total, path in last.values()]
            total, path = max(before, key=lambda way: way[0], default=(0.0, []))
            ways[label] = total + gain, [*path, label]
    return max(ways.values(), key=lambda way: way[0])[1] if ways else []


def _between(low: int, high: int) -> int:
    """Return the size half-way between two measured ones, as logarithms: above the one, at most the other."""
    return max(low + 1, round(math.sqrt(low * high)))
