"""Who was late, how often, and what that rank was doing before it came.

A rank is late where the others had to wait for it by more than twice what the clocks may be off, and that is no chance
where it goes on from step to step (`chance.py`). Why is told by its own
layers: since the last meeting of the same group it spent more time in some layer than the others did (their median),
the time in that meeting itself left out. Where that layer is waiting, an earlier collective of another group held it
up, and whoever was late there is asked in turn, up to the first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from commbench.attribution.chance import by_chance
from commbench.attribution.collectives import Split
from commbench.attribution.intervals import total, union
from commbench.attribution.layers import COMMUNICATION, LAYERS, WAITING, Layers, Window
from commbench.attribution.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

EARLIER = "earlier collective"  # a cause beside those of LAYERS
STANDS_OUT = 0.5  # of a lateness, that a layer explains before it is called its cause
_TOGETHER = [LAYERS.index(COMMUNICATION), LAYERS.index(WAITING)]  # what a meeting itself takes
_MOST_CARRIED = 64  # meetings back, in search of where a lateness came from


@dataclass(frozen=True)
class Culprit:
    """A rank that others waited for. Durations in ns."""

    rank: int
    meetings: int  # at which it came last, for certain
    of: int  # of so many that it took part in and where one was late for certain
    steps: int  # in which it was the one most waited for
    of_steps: int
    lateness: int  # the median one of its late arrivals
    longest: int  # of these
    waited: int  # by all other ranks together, for it, each instant of each of them once
    behind: int  # by them, for it and for those that it had held up themselves
    cause: str  # a layer of LAYERS, "earlier collective", or "" where nothing stands out
    before: Mapping[str, int]  # by layer: its time before it arrived, less that of the others, where that is the cause
    chance: float = 1.0  # how likely others wait for a rank as much as for it, at most, were all alike
    upstream: tuple[int, ...] = ()  # whom it had waited for itself, followed to the first
    through: str = ""  # the group in which that was


def culprits(
    traces: Sequence[Trace], splits: Sequence[Split], layers: Sequence[Sequence[Layers]]
) -> tuple[Culprit, ...]:
    """Return who was late, the one behind the longest waits first. `layers`: of each trace, its steps."""
    lines = [_Timeline.of(steps) for steps in layers]
    history = _History(traces, splits, lines)
    certain = [split for split in splits if split.culprit is not None and split.distinguishable]
    late: dict[int, list[Split]] = defaultdict(list)  # by place of the trace
    by_step: dict[int | None, dict[int, list[Split]]] = defaultdict(lambda: defaultdict(list))
    for split in certain:
        late[place := _culprit(split)].append(split)
        window = lines[place].window(_arrival(traces, split, place))
        if window is not None:
            by_step[window.step][place].append(split)
    marked = any(step is not None for step in by_step)
    chances = by_chance(
        [*map(_waits, [its.values() for its in by_step.values()] if marked else [[[one]] for one in certain])]
    )
    took_part: dict[int, list[Split]] = defaultdict(list)
    for split in certain:
        for place in split.places:
            took_part[place].append(split)
    worst = Counter(max(its, key=lambda place: waited(its[place])) for its in by_step.values())
    steps = {one.window.step for of_trace in layers for one in of_trace}
    why = {place: [history.reason(split, place) for split in those] for place, those in late.items()}
    held_up: dict[int, list[Split]] = defaultdict(list)  # by rank: late arrivals of others that began with it
    for place, those in late.items():
        for split, reason in zip(those, why[place], strict=True):
            for first in reason.upstream[-1:]:
                held_up[first].append(split)
    found = []
    for place, those in late.items():
        reasons, rank = why[place], _rank(traces, place)
        main = _main([split.lateness for split in those], reasons)
        told = [reason.before for reason in reasons if reason.before is not None and reason.cause == main.cause]
        before = np.rint(np.median(told, axis=0)).astype(int).tolist() if told else None
        found.append(
            Culprit(
                rank=rank,
                meetings=len(those),
                of=len(took_part[place]),
                steps=worst[place],
                of_steps=len(steps),
                lateness=round(float(np.median([split.lateness for split in those]))),
                longest=max(split.lateness for split in those),
                waited=waited(those),
                behind=waited([*those, *held_up[rank]], but=place),
                cause=main.cause,
                before={} if before is None else dict(zip(LAYERS, before, strict=True)),
                chance=chances.get(place, 1.0),
                upstream=main.upstream,
                through=main.through,
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.behind, -one.waited, one.rank)))


def _waits(late: Iterable[Sequence[Split]]) -> dict[int, int]:
    """Return how long (ns) others waited for each who could have been late, of a step's meetings by who was late.

    Meetings at which only one could have been late tell nothing: the root of a broadcast.
    """
    known = [those for meetings in late if (those := [one for one in meetings if len(one.candidates) > 1])]
    found = dict.fromkeys((place for those in known for one in those for place in one.candidates), 0)
    return found | {_culprit(those[0]): waited(those) for those in known}


def _rank(traces: Sequence[Trace], place: int) -> int:
    rank = traces[place].rank
    return place if rank is None else rank


def _culprit(split: Split) -> int:
    if split.culprit is None:
        raise ValueError("nobody was late")
    return split.culprit


def _main(latenesses: Sequence[int], reasons: Sequence[_Reason]) -> _Reason:
    """Return the reason that explains most lateness: first the cause, then among its reasons whom it came from."""
    causes: Counter[str] = Counter()
    sources: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for lateness, reason in zip(latenesses, reasons, strict=True):
        causes[reason.cause] += lateness
        sources[reason.cause, reason.upstream, reason.through] += lateness
    cause = causes.most_common(1)[0][0]
    _, upstream, through = next(source for source, _ in sources.most_common() if source[0] == cause)
    return _Reason(cause, None, upstream, through)


def waited(splits: Iterable[Split], but: int | None = None) -> int:
    """Return how long (ns) ranks waited for who was late, in all: each instant of each of them once.

    `but`: the place of the one whose waits are left out.
    Collectives that are under way at once would count one wait twice. Where only arrivals are known, a wait is from a
    rank's own arrival to that of who was late.
    """
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by place of the trace
    for split in splits:
        last = split.arrival[split.places.index(_culprit(split))]
        waits = np.maximum(last - split.arrival, 0) if split.skew_only else split.wait
        for place, arrival, wait in zip(split.places, split.arrival.tolist(), waits.tolist(), strict=True):
            spans[place].append((arrival, arrival + wait))
    return sum(total(union(*np.array(its, dtype=np.int64).T)) for place, its in spans.items() if place != but)


def _arrival(traces: Sequence[Trace], split: Split, place: int) -> int:
    """Return when a rank arrived, on its own clock."""
    return traces[place].calls[split.meeting.calls[place]].arrival or 0


@dataclass(frozen=True)
class _Timeline:
    """The layers of one trace over all its windows."""

    windows: tuple[Window, ...]  # in order of time
    edges: Times  # (n,)
    labels: NDArray[np.uint8]  # (n,), from each edge on; len(LAYERS): in no window
    until: Times  # (n, layers): ns in each layer before each edge

    @classmethod
    def of(cls, steps: Sequence[Layers]) -> _Timeline:
        ordered = sorted(steps, key=lambda one: one.window.start)
        edges = np.concatenate([np.zeros(0, dtype=np.int64), *(one.edges for one in ordered)])
        outside = np.array([len(LAYERS)], dtype=np.uint8)
        labels = np.concatenate([outside[:0], *(part for one in ordered for part in (one.labels, outside))])
        spent = np.zeros((len(edges), len(LAYERS) + 1), dtype=np.int64)
        if len(edges):
            spent[np.arange(1, len(edges)), labels[:-1]] = np.diff(edges)
        return cls(tuple(one.window for one in ordered), edges, labels, np.cumsum(spent, axis=0))

    def window(self, time: int) -> Window | None:
        """Return the window that a time is in."""
        at = bisect_right(self.windows, time, key=lambda window: window.start) - 1
        return self.windows[at] if at >= 0 and time < self.windows[at].end else None

    def spent(self, since: int, until: int) -> Times:
        """Return the ns in each layer between two times."""
        return (self._before(until) - self._before(since))[: len(LAYERS)]

    def _before(self, time: int) -> Times:
        at = int(np.searchsorted(self.edges, time, side="right")) - 1
        if at < 0:
            return np.zeros(len(LAYERS) + 1, dtype=np.int64)
        before = self.until[at].copy()
        before[self.labels[at]] += time - int(self.edges[at])
        return before


@dataclass(frozen=True)
class _Reason:
    """Why a rank was late at one meeting."""

    cause: str
    before: Times | None  # (layers,)
    upstream: tuple[int, ...] = ()
    through: str = ""


class _History:
    """What each rank took part in, in order of its own time."""

    def __init__(self, traces: Sequence[Trace], splits: Sequence[Split], lines: Sequence[_Timeline]) -> None:
        self.traces, self.lines = traces, lines
        self.mine: dict[int, list[tuple[int, Split]]] = defaultdict(list)  # by arrivals
        self.of_group: dict[tuple[int, frozenset[int]], list[tuple[int, Split]]] = defaultdict(list)
        for split in splits:
            for place in split.places:
                self.mine[place].append((_arrival(traces, split, place), split))
                self.of_group[place, frozenset(split.meeting.group)].append((_arrival(traces, split, place), split))
        for those in (*self.mine.values(), *self.of_group.values()):
            those.sort(key=_time)

    def end(self, split: Split, place: int) -> int:
        end = self.traces[place].calls[split.meeting.calls[place]].end
        return _arrival(self.traces, split, place) if end is None else end

    def reason(self, split: Split, place: int) -> _Reason:
        """Return why a rank was late, by its layers and those of whom it had waited for."""
        cause, since, before = self.own(split, place)
        if before is None or cause != WAITING:
            return _Reason(cause, before)
        first, chain, through, seen = place, [], "", {id(split)}
        while cause == WAITING:
            earlier = self.longest_wait(place, since, split)
            if earlier is None or id(earlier) in seen or earlier.culprit in (place, first):
                break  # nobody waits for itself, though its own lateness may have come round to it
            seen.add(id(earlier))
            split, place = earlier, _culprit(earlier)
            chain.append(_rank(self.traces, place))
            through = through or split.meeting.label
            cause, since, _ = self.own(split, place)
        return _Reason(EARLIER if chain else WAITING, before, tuple(chain), through)

    def own(self, split: Split, place: int) -> tuple[str, int, Times | None]:
        """Return the layer in which a rank was longer than the others, since when, and its excess in each layer.

        Since the last meeting of the group; where no layer explains the lateness since then, and the rank had come late
        to that meeting as well, it has carried that along, as nobody stood still meanwhile: since the one before.
        """
        passed: list[Split] = []
        first: tuple[str, int, Times | None] = ("", 0, None)
        earlier = self.before(split, place)
        for _ in range(_MOST_CARRIED):
            if earlier is not None:
                passed.append(earlier)
            since, excess = self.excess(split, passed, place)
            if excess is None:
                break
            most = int(np.argmax(excess))
            if excess[most] >= max(STANDS_OUT * split.lateness, split.error):
                return LAYERS[most], since, excess
            if first[2] is None:
                first = ("", since, excess)
            if earlier is None or earlier.culprit != place:
                break
            earlier = self.before(earlier, place)
        return first

    def excess(self, split: Split, passed: Sequence[Split], place: int) -> tuple[int, Times | None]:
        """Return since when a rank's ns by layer are counted, and how much they exceed the others' median."""
        mine = self.spent(split, passed, place)
        others = [
            spent[1]
            for other in split.places
            if other != place and (spent := self.spent(split, passed, other)) is not None
        ]
        if mine is None or not others:
            return 0, None
        return mine[0], mine[1] - np.rint(np.median(others, axis=0)).astype(np.int64)

    def spent(self, split: Split, passed: Sequence[Split], place: int) -> tuple[int, Times] | None:
        """Return since when, and a rank's ns by layer until its arrival; those in `passed` itself do not count.

        Since its arrival at the last of `passed`, which go back in time; without any, since its step began.
        """
        line, arrival = self.lines[place], _arrival(self.traces, split, place)
        if not len(line.edges) or any(place not in one.places for one in passed):
            return None
        window = line.window(arrival)
        if not passed:
            return None if window is None else (window.start, line.spent(window.start, arrival))
        since = min(_arrival(self.traces, passed[-1], place), arrival)
        spent = line.spent(since, arrival)
        for one in passed:
            there = line.spent(
                *(min(time, arrival) for time in (_arrival(self.traces, one, place), self.end(one, place)))
            )
            spent[_TOGETHER] -= there[_TOGETHER]
        return since, np.maximum(spent, 0)

    def before(self, split: Split, place: int) -> Split | None:
        """Return the meeting of the same group to which a rank came last before another one."""
        those = self.of_group[place, frozenset(split.meeting.group)]
        at = bisect_left(those, _arrival(self.traces, split, place), key=_time) - 1
        return those[at][1] if at >= 0 else None

    def longest_wait(self, place: int, since: int, until: Split) -> Split | None:
        """Return at which meeting of another group, before one, a rank waited longest for someone late for certain."""
        those, group = self.mine[place], set(until.meeting.group)
        end = _arrival(self.traces, until, place)
        waits = [
            (int(split.wait[split.places.index(place)]), split)
            for _, split in those[bisect_left(those, since, key=_time) : bisect_left(those, end, key=_time)]
            if split.culprit is not None and split.distinguishable and set(split.meeting.group) != group
        ]
        wait, split = max(waits, key=itemgetter(0), default=(0, None))
        return split if wait > 0 else None


def _time(one: tuple[int, Split]) -> int:
    return one[0]
