"""Two or more sides, compared on matched cells only.

Ratios are of times, the later side's over the first one's: above 1 the later side is slower. A difference is real where
launches shuffled between the two sides give one as large in any cell in at most 5 % of all ways (`results/spread.py`);
of fewer than five launches a side, and of logs that others wrote, only the ratio is known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from commbench.errors import ResultsError
from commbench.report.bounds import Links, algbw_bound
from commbench.report.sides import FIELDS, Cell, Key, Side, Times
from commbench.results.kernels import BASELINE, CEILING, KERNELS
from commbench.results.spread import CANNOT_TELL, FEWEST_LAUNCHES, LEVEL, SAME, family, ratio_interval, within
from commbench.results.stats import median
from commbench.results.status import FAILURES
from commbench.units import approximate_size

SLOWER, FASTER = "slower", "faster"  # of the later side
MARGIN = 0.05
BY_ALGORITHM, AUTO, BEST, BY_KERNEL = "same algorithm", "auto", "best", "same kernel"
# By size in bytes, up to and with the limit: how long one takes, a mixture, how much a second carries.
BANDS = (("latency", 32 << 10), ("middle", 4 << 20), ("bandwidth", None))
# Of kernels, whose size says which kernel it is, by what the row is.
KERNEL_BANDS = {BASELINE: "baselines", CEILING: "the same bytes copied", "factors": "levels of factors"}

K = TypeVar("K")


@dataclass(frozen=True)
class Row:
    """One matched cell: a is the first side's, b the later one's."""

    cell: Cell
    way: str  # how it was matched: same algorithm, auto, best
    algorithms: tuple[str, str]  # those whose times these are
    observed: tuple[str | None, str | None]  # what ran, as far as that is known
    launches: tuple[int, int]
    time_us: tuple[float, float]  # medians over launches
    ratio: float  # time of b / time of a: median of all ratios of a launch of b and one of a
    low: float | None  # interval of the ratio over launches, of this cell alone, at least 95 %
    high: float | None
    p: float | None  # how often equal sides differ so much in some cell; None: not tested
    verdict: str
    of_bound: tuple[float | None, float | None]  # algbw / the highest that the links allow; None: links not given

    @property
    def band(self) -> str:
        if self.cell.collective == KERNELS:
            row = self.cell.algorithm.rsplit(" ", 1)[-1]
            return row if row in KERNEL_BANDS else "factors"
        return band(self.cell.size)


@dataclass(frozen=True)
class Band:
    """The cells of one collective, scale and type whose sizes lie in one band: all algorithms, in and out of place.

    Of kernels: the rows of one kind.
    """

    collective: str
    scale: str
    dtype: str
    way: str
    band: str
    limits: str
    cells: int
    ratio: float  # geometric mean
    smallest: float
    largest: float
    slower: int  # cells that are so beyond chance
    faster: int


@dataclass(frozen=True)
class Unmatched:
    """A cell that one side lacks; `cell` is of the other one."""

    cell: Cell
    why: str


@dataclass(frozen=True)
class Failure:
    """A cell that ended badly on one side, in some launches at least."""

    side: str
    cell: Cell
    status: str
    reason: str
    launches: int
    new: bool  # it did not on the first side


@dataclass(frozen=True)
class Setting:
    """What was set to one thing in a, and to another in b; None: not set, or not known."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class Comparison:
    """Two sides, compared."""

    a: Side
    b: Side
    rows: list[Row]
    unmatched: list[Unmatched]
    bands: list[Band]
    settings: list[Setting]
    failures: list[Failure]

    def failing(self, limit: float) -> list[Row]:
        """The cells that are slower beyond chance, and by more than `limit` (0.05: 5 %) as measured."""
        return [row for row in self.rows if row.verdict == SLOWER and row.ratio > 1 + limit]

    def open(self, limit: float) -> list[Row]:
        """The cells that are not failing, and of which it is not known that they are not slower by more than that."""
        failing = {id(row) for row in self.failing(limit)}
        return [
            row
            for row in self.rows
            if id(row) not in failing and (row.p is None or row.high is None or row.high > 1 + limit)
        ]


def compare(
    sides: Sequence[Side], margin: float = MARGIN, links: Mapping[str, Links] | None = None, of: int | None = None
) -> list[Comparison]:
    """Compare each later side with the first one; raise ResultsError where that cannot be done soundly.

    With several later sides, p is as many times as large (Bonferroni), so that all comparisons together are wrong in
    at most 5 %; `of` is their number where these are a part of them. `links`: of sides, by name.
    """
    for side in sides:
        if not side.timed:
            raise ResultsError(f"no cell of {side.name} has a time: there is nothing to compare")
    for side in sides:
        if len(side.of_model) > 1:
            raise ResultsError(f"predictions are a side of their own, and {side.name} holds other results beside them")
    simulated = {side.name: side.simulated for side in sides if not side.predicted}
    if len(set().union(*simulated.values())) > 1:
        names = ", ".join(name for name, kinds in simulated.items() if True in kinds)
        raise ResultsError(f"simulated results are not compared with measured ones, and {names} has simulated ones")
    first, *later = sides
    return [_compare_two(first, side, of or len(later), margin, links or {}) for side in later]


def _compare_two(a: Side, b: Side, times: int, margin: float, links: Mapping[str, Links]) -> Comparison:
    if a.predicted != b.predicted:
        ours, theirs = ({key[1].method for key in side.timed} for side in (a, b))
        a, b = (a.timed_by(theirs), b) if a.predicted else (a, b.timed_by(ours))
    matched, unmatched = _match(a, b)
    if not matched:
        raise ResultsError(f"{a.name} and {b.name} have no cell in common: {_apart(a, b)}")
    tested = [one for one in matched if a.tested and b.tested and min(one.launches) >= FEWEST_LAUNCHES]
    ps = family([(_padded(one.b, tested, 1), _padded(one.a, tested, 0)) for one in tested])
    by_cell = {id(one): min(1.0, times * p) for one, p in zip(tested, ps, strict=True)}
    rows = [_row(a, b, one, by_cell.get(id(one)), margin, links) for one in matched]
    settings = [
        Setting(name, _text(a.settings.get(name)), _text(b.settings.get(name)))
        for name in sorted(a.settings.keys() | b.settings.keys())
        if a.settings.get(name) != b.settings.get(name)
    ]
    failures = [*_failures(a, a), *_failures(b, a)]
    return Comparison(a, b, rows, unmatched, _bands(rows), settings, failures)


def _failures(side: Side, first: Side) -> list[Failure]:
    return [
        Failure(side.name, key[1], status, reason, number, side is not first and status not in _statuses(first, key))
        for key, found in side.without.items()
        for (status, reason), number in found.items()
        if status in FAILURES
    ]


def _statuses(side: Side, key: Key) -> set[str]:
    return {status for status, _ in side.without.get(key, ())}


@dataclass(frozen=True, eq=False)
class _Match:
    cell: Cell
    way: str
    keys: tuple[Key, Key]  # whose times these are; of best: mostly
    a: Times
    b: Times

    @property
    def launches(self) -> tuple[int, int]:
        return sum(map(bool, self.a)), sum(map(bool, self.b))


def _padded(times: Times, matches: Sequence[_Match], side: int) -> Times:
    longest = max(len((one.a, one.b)[side]) for one in matches)
    return times + [None] * (longest - len(times))


def _match(a: Side, b: Side) -> tuple[list[_Match], list[Unmatched]]:
    """Match cells: by algorithm where both sides have libraries of one vendor, else auto with auto, best with best."""
    shared = set(a.vendors) & set(b.vendors)
    if shared:
        both = [key for key in a.timed if key in b.timed]
        matched = [_Match(key[1], _way(key[1]), (key, key), a.times[key], b.times[key]) for key in both]
        return matched, [*_lacking(a, b, set(both)), *_lacking(b, a, set(both))]
    for side in (a, b):
        if len(side.vendors) > 1:
            raise ResultsError(
                f"sides of different libraries are compared one with one, and {side.name} holds "
                f"{' and '.join(side.vendors)}: give the folder of one"
            )
    ours, theirs = _by_base(a), _by_base(b)
    matched, used = [], set()
    for base, candidates in ours.items():
        others = theirs.get(base)
        if others is None:
            continue
        used |= {*candidates.values(), *others.values()}
        key_a, key_b = candidates.get((AUTO, None)), others.get((AUTO, None))
        if key_a and key_b:
            matched.append(_Match(key_a[1], AUTO, (key_a, key_b), a.times[key_a], b.times[key_b]))
        if len(candidates) == len(others) == 1 and key_a and key_b:
            continue  # best would be auto again
        best_a, times_a = best({key: a.times[key] for key in candidates.values()})
        best_b, times_b = best({key: b.times[key] for key in others.values()})
        matched.append(_Match(base, BEST, (best_a, best_b), times_a, times_b))
    return matched, [*_lacking(a, b, used), *_lacking(b, a, used)]


def _way(cell: Cell) -> str:
    """Return how cells of one library are matched: what it chose by itself need not be the same algorithm twice."""
    if cell.collective == KERNELS:
        return BY_KERNEL
    return AUTO if cell.algorithm == AUTO else BY_ALGORITHM


def _by_base(side: Side) -> dict[Cell, dict[tuple[str, str | None], Key]]:
    """Return the timed cells that differ in algorithm and protocol only, together."""
    found: dict[Cell, dict[tuple[str, str | None], Key]] = defaultdict(dict)
    for key in side.timed:
        base = replace(key[1], algorithm=BEST, protocol=None)
        found[base][key[1].algorithm, key[1].protocol] = key
    return found


def best(candidates: Mapping[K, Times]) -> tuple[K, Times]:
    """Return the fastest candidate, and for each launch the time of the one that was fastest in all other launches.

    So a launch that was lucky does not choose for itself: the fastest of many would else look faster than it is. Some
    candidate must have a time.
    """
    longest = max(map(len, candidates.values()))
    times = {name: of + [None] * (longest - len(of)) for name, of in candidates.items()}
    launches = range(longest)
    chosen: Times = []
    for launch in launches:
        there = {name: of for name, of in times.items() if of[launch]}
        name = _fastest(there, [other for other in launches if other != launch]) or _fastest(there, launches)
        chosen.append(None if name is None else there[name][launch])
    fastest = _fastest(times, launches)
    assert fastest is not None
    return fastest, chosen


def _fastest(times: Mapping[K, Times], launches: Iterable[int]) -> K | None:
    where = list(launches)
    medians = {name: median(those) for name, of in times.items() if (those := [t for i in where if (t := of[i])])}
    return min(medians, key=medians.__getitem__, default=None)


def _name(cell: Cell) -> str:
    return cell.algorithm if cell.protocol is None else f"{cell.algorithm}/{cell.protocol}"


def _observed(side: Side, key: Key) -> str | None:
    return ", ".join(sorted(side.algorithms.get(key, ()))) or None


def _lacking(side: Side, other: Side, used: set[Key]) -> list[Unmatched]:
    """Return the timed cells of `side` that `other` has no time for."""
    found = []
    for key in side.timed:
        if key in used:
            continue
        statuses = other.without.get(key)
        (status, reason), _ = statuses.most_common(1)[0] if statuses else (("", ""), 0)
        why = f"{status} in {other.name}{f': {reason}' if reason else ''}" if status else f"only in {side.name}"
        found.append(Unmatched(key[1], why))
    return found


def _apart(a: Side, b: Side) -> str:
    """Return what keeps the cells of two sides from matching."""
    values = [{name: {getattr(key[1], name) for key in side.timed} for name in FIELDS} for side in (a, b)]
    apart = [name for name in FIELDS if not values[0][name] & values[1][name]]
    kernels = all(key[1].collective == KERNELS for side in (a, b) for key in side.timed)
    same = "; give both the same --size, kernels and number of ranks" * kernels
    if not apart:
        return f"each name and size occurs on both sides, but no combination of them; let both sweep the same{same}"
    texts = [f"{name} {_some(values[0][name])} and {_some(values[1][name])}" for name in apart]
    hint = same
    if apart == ["algorithm"]:
        hint = "; algorithms of one library are compared by commbench.repeat --against"
    if "scale" in apart:
        hint = "; --match compares by ranks, nodes or GPUs"
    return f"they differ in {'; '.join(texts)}{hint}"


def _some(values: Iterable[Any]) -> str:
    texts = sorted(map(str, values))
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


def _text(values: set[str] | None) -> str | None:
    return " | ".join(sorted(values)) if values else None


def _row(a: Side, b: Side, one: _Match, p: float | None, margin: float, links: Mapping[str, Links]) -> Row:
    ratio, low, high = ratio_interval(one.b, one.a)
    assert ratio is not None  # both have a time in some launch
    verdict = CANNOT_TELL
    gap = fmean(math.log(time) for time in one.b if time) - fmean(math.log(time) for time in one.a if time)
    if p is not None and p <= LEVEL and gap * math.log(ratio) > 0:  # else the test's mean and this median disagree
        verdict = SLOWER if ratio > 1 else FASTER
    elif p is not None and p > LEVEL and within(low, high, margin):
        verdict = SAME
    names = (_name(one.keys[0][1]), _name(one.keys[1][1]))
    observed = (_observed(a, one.keys[0]), _observed(b, one.keys[1]))
    ours, theirs = (round(median([time for time in side if time]), 4) for side in (one.a, one.b))
    about = (one.cell, one.way, names, observed, one.launches, (ours, theirs))
    parts = (_of_bound(a, one.keys[0], ours, links), _of_bound(b, one.keys[1], theirs, links))
    return Row(*about, ratio, low, high, p, verdict, parts)


def _of_bound(side: Side, key: Key, time_us: float, links: Mapping[str, Links]) -> float | None:
    shape, cell = side.shapes[key], key[1]
    most = algbw_bound(cell.collective, shape.nranks, shape.nnodes, links.get(side.name, Links()))
    return None if most is None else round(cell.size / time_us / 1e3 / most, 4)


def band(size: int) -> str:
    """Return the name of the band that a size in bytes lies in."""
    return next(name for name, limit in BANDS if limit is None or size <= limit)


def limits(name: str) -> str:
    """Return a band's limits in words."""
    if name in KERNEL_BANDS:
        return KERNEL_BANDS[name]
    place = [one for one, _ in BANDS].index(name)
    limit, before = BANDS[place][1], BANDS[place - 1][1] if place else None
    if limit is None:
        return f"above {approximate_size(before or 0)}"
    if before is None:
        return f"up to {approximate_size(limit)}"
    return f"above {approximate_size(before)}, up to {approximate_size(limit)}"


def _bands(rows: Sequence[Row]) -> list[Band]:
    found = []
    groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.cell.size == 0:  # an empty call: it would only thin the mean
            continue
        groups[row.cell.collective, row.cell.scale, row.cell.dtype, row.way].append(row)
    for (collective, scale, dtype, way), those in groups.items():
        for name in (*dict(BANDS), *KERNEL_BANDS):
            inside = [row for row in those if row.band == name]
            if not inside:
                continue
            ratios = [row.ratio for row in inside]
            verdicts = Counter(row.verdict for row in inside)
            mean = math.exp(fmean(map(math.log, ratios)))
            span = (mean, min(ratios), max(ratios))
            about = (collective, scale, dtype, way, name, limits(name), len(inside))
            found.append(Band(*about, *span, verdicts[SLOWER], verdicts[FASTER]))
    return found
