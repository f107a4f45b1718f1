"""Calls of a group that have no numbers, matched in order: the k-th of each rank, or after one shift that alone agrees;
where one rank's recording lacks calls in some steps, the k-th of each rank in the other steps.

On one host time has a say too: nobody ends an all-reduce before all others began it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commbench.attribution.trace import MESSAGE, POINT_TO_POINT, ROOTED, SYNCHRONISING, UNKNOWN, Call, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLOCK = 1_000_000  # ns that the times of two processes of one host may be off: devices' clocks are converted
_IMPOSSIBLE = 0.1  # of pairs of calls, from which on they cannot be the same ones
_MOST_SHIFT = 1000  # calls by which recordings without numbers may begin apart


class Queues:
    """The calls of one group on each rank, in the order in which the program asked for them; rows are (n, ranks)."""

    def __init__(
        self,
        traces: Sequence[Trace],
        sender: int | None,
        lists: Mapping[int, list[int]],
        steps: Mapping[tuple[int, int], int | None],
    ) -> None:
        """`sender`: the rank that sends, where calls are messages; `steps`: in which calls were asked for, if known."""
        self.traces = traces
        self.lists = {place: _by_time(traces[place].calls, indices) for place, indices in lists.items()}
        calls = [[traces[place].calls[index] for index in indices] for place, indices in self.lists.items()]
        kinds: dict[Any, int] = {}
        self.marks = [
            np.array([kinds.setdefault((steps.get((place, i)), _mark(traces[place].calls[i])), len(kinds)) for i in of])
            for place, of in self.lists.items()
        ]
        self.starts = [np.array([np.nan if one.start is None else one.start for one in of]) for of in calls]
        self.ends = [np.array([np.nan if one.end is None else one.end for one in of]) for of in calls]
        # Who cannot end before whom began: of a message the receiver, of what synchronises everybody.
        self.sender = next((k for k, p in enumerate(self.lists) if traces[p].rank == sender), None)
        self.message = sender is not None
        self.checked = [np.array([self.message or one.operation in SYNCHRONISING for one in of]) for of in calls]

    def row(self, row: Sequence[int]) -> dict[int, int]:
        """Return a row as the place of the call of each trace."""
        return {place: indices[k] for (place, indices), k in zip(self.lists.items(), row, strict=True)}

    def rows(self) -> tuple[NDArray[np.int64] | None, str]:
        """Return which calls are the same ones, or None and why that is not certain."""
        if (rows := self.possible()) is not None:
            return rows, ""
        shifted = self.shifted()
        return shifted, "" if shifted is not None else self.why_not(self.straight())

    def possible(self, most: float = _IMPOSSIBLE) -> NDArray[np.int64] | None:
        """Return the k-th calls of each kind, if all have the same ones and time does not rule them out."""
        rows = self.straight()
        return None if rows is None or self.impossible(rows, most=most) else rows

    def straight(self) -> NDArray[np.int64] | None:
        """Return the k-th call of each kind with the k-th of the others, if all have the same ones.

        Calls of unlike kinds may have begun in unlike order on two ranks if both were under way at once.
        """
        if any(not np.array_equal(np.sort(marks), np.sort(self.marks[0])) for marks in self.marks):
            return None
        rows = np.stack([np.argsort(marks, kind="stable") for marks in self.marks], axis=1)
        rows = rows[np.argsort(rows[:, 0])]
        for column in range(1, rows.shape[1]):
            turned = np.nonzero(np.diff(rows[:, column]) < 0)[0]
            at_once = self.overlap(column, rows[turned, column], rows[turned + 1, column])
            at_once |= self.overlap(0, rows[turned, 0], rows[turned + 1, 0])
            if not at_once.all():
                return None
        return rows

    def overlap(self, column: int, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether calls of a rank were under way at once; not if nobody tells."""
        start, end = self.starts[column], self.ends[column]
        return (start[one] < end[other]) & (start[other] < end[one])

    def shifted(self) -> NDArray[np.int64] | None:
        """Return the calls that all recordings hold, where just one shift of each against the longest one agrees."""
        longest = max(range(len(self.marks)), key=lambda column: len(self.marks[column]))
        begins = [self.shift(longest, column) for column in range(len(self.marks))]
        known = [begin for begin in begins if begin is not None]
        if len(known) < len(begins):
            return None
        low = max(known)
        high = min(begin + len(marks) for begin, marks in zip(known, self.marks, strict=True))
        return np.arange(low, high)[:, None] - np.array(known)[None, :] if low < high else None

    def shift(self, longest: int, column: int) -> int | None:
        """Return at which call of the longest recording another one begins, None where that is uncertain."""
        if column == longest:
            return 0
        mine, theirs, found = self.marks[column], self.marks[longest], None
        least = (len(mine) + 1) // 2  # calls that must agree
        for shift in range(max(least - len(mine), -_MOST_SHIFT), min(len(theirs) - least, _MOST_SHIFT) + 1):
            at = np.arange(max(0, shift), min(len(theirs), shift + len(mine)))
            if np.array_equal(theirs[at], mine[at - shift]):
                if self.impossible(np.stack([at, at - shift], axis=1), (longest, column)):
                    continue
                if found is not None:
                    return None
                found = shift
        return found

    def impossible(
        self, rows: NDArray[np.int64], columns: Sequence[int] | None = None, most: float = _IMPOSSIBLE
    ) -> bool:
        """Whether on one host, so by one clock, ranks end before others began that they need something from.

        `most`: the part of the pairs of which that may be so all the same.
        """
        columns = range(len(self.marks)) if columns is None else columns
        places, hosts = list(self.lists), defaultdict(list)
        for at, column in enumerate(columns):
            if (trace := self.traces[places[column]]).host and trace.unix:
                hosts[trace.host].append((at, column))
        for together in hosts.values():
            starts = np.stack([self.starts[column][rows[:, at]] for at, column in together])
            ends = np.stack([self.ends[column][rows[:, at]] for at, column in together])
            if self.message:
                sends = np.array([column == self.sender for _, column in together])
                starts, ends = starts[sends], ends[~sends]
            if not len(starts) or not len(ends):
                continue
            gap = starts.max(axis=0) - ends.min(axis=0)  # NaN: not known
            known = self.checked[columns[0]][rows[:, 0]] & ~np.isnan(gap)
            if (gap[known] > _CLOCK).sum() > most * known.sum():
                return True
        return False

    def why_not(self, rows: NDArray[np.int64] | None) -> str:
        """Return the reason for which calls in order are not the same ones."""
        if rows is not None:
            return "in order, ranks of one host would have ended calls that others had not begun"
        (first, mine), *others = self.lists.items()
        for place, theirs in others:
            if len(theirs) != len(mine):
                labels = self.traces[first].label, self.traces[place].label
                return f"{labels[0]} recorded {len(mine)} calls and {labels[1]} {len(theirs)}, without numbers"
        for column, (place, theirs) in enumerate(self.lists.items()):
            for k in np.nonzero(self.marks[column] != self.marks[0])[0][:1].tolist():
                one, two = self.traces[first].calls[mine[k]], self.traces[place].calls[theirs[k]]
                labels = self.traces[first].label, self.traces[place].label
                if (words := (_words(one), _words(two)))[0] == words[1]:
                    return f"call {k} ({words[0]}) is in unlike steps on {labels[0]} and {labels[1]}"
                return f"call {k} is {words[0]} on {labels[0]}, {words[1]} on {labels[1]}"
        raise AssertionError("lists that are alike are matched")


def _by_time(calls: Sequence[Call], indices: list[int]) -> list[int]:
    """Return calls in the order in which the program asked for them, as far as the trace tells."""
    if all(calls[index].enqueued is not None for index in indices):
        return sorted(indices, key=lambda index: calls[index].enqueued or 0)
    return sorted(indices, key=lambda index: calls[index].arrival or 0)


class Lack(NamedTuple):
    """The trace that lacks calls which all others have, and in which steps."""

    place: int
    steps: frozenset[int | None]


def lacking(
    traces: Sequence[Trace],
    lists: Mapping[int, list[int]],
    steps: Mapping[tuple[int, int], int | None],
    one_clock: bool,
) -> Lack | None:
    """Return what one trace lacks, if the others agree and at least half of its calls are in other steps.

    Where two traces lack some, both may do so in one step, and as many each: that has to show, by time or by kind.
    """
    kinds: dict[int | None, dict[int, Counter[Any]]] = defaultdict(lambda: {place: Counter() for place in lists})
    for place, indices in lists.items():
        for index in indices:
            kinds[steps[place, index]][place][_mark(traces[place].calls[index])] += 1
    differ = {step: its for step, its in kinds.items() if any(one != other for one, other in pairwise(its.values()))}
    short = {min(its, key=lambda place: its[place].total()) for its in differ.values()}
    if len(short) != 1:
        return None
    lack = Lack(short.pop(), frozenset(differ))
    for its in differ.values():
        whole, *others = (one for place, one in its.items() if place != lack.place)
        if any(one != whole for one in others) or not its[lack.place] < whole:
            return None
    left = sum(its[lack.place].total() for its in differ.values())
    if 2 * left > len(lists[lack.place]):
        return None
    shows = (one_clock and _show_by_time(traces, lists)) or _show_by_kind(traces, kinds, differ)
    return lack if shows else None


def _show_by_time(traces: Sequence[Trace], lists: Mapping[int, list[int]]) -> bool:
    """Whether calls of a kind are so far apart that one clock tells each from the next."""
    for place, indices in lists.items():
        ends: dict[Any, float] = {}
        for call in (traces[place].calls[index] for index in _by_time(traces[place].calls, indices)):
            if call.operation not in SYNCHRONISING or call.start is None or call.end is None:
                return False
            if call.start - ends.get(_mark(call), -np.inf) <= _CLOCK:
                return False
            ends[_mark(call)] = call.end
    return True


def _show_by_kind(
    traces: Sequence[Trace], kinds: Mapping[int | None, Mapping[int, Counter[Any]]], differ: Container[int | None]
) -> bool:
    """Whether all traces mark the same steps, no step has two calls alike, and none that is whole has but one.

    What was asked for late counts in the next step: among several calls its order shows it, alone nothing does.
    """
    whole = [one for step, its in kinds.items() if step not in differ for one in its.values()]
    return (
        len({frozenset(step.number for step in traces[place].steps) for its in kinds.values() for place in its}) == 1
        and all(one.total() == len(one) for its in kinds.values() for one in its.values())
        and all(len(one) > 1 for one in whole)
    )


def elements(call: Call) -> int | None:
    """Return the elements that all ranks of a collective have alike, None where it has none such."""
    if call.operation in ("alltoall", "barrier", UNKNOWN) or call.coalesced:
        return None
    if call.operation in ("reducescatter", "gather"):
        return call.elements_in
    if call.operation == "scatter" or (call.operation == "allgather" and call.elements_out is not None):
        return call.elements_out
    return max((n for n in (call.elements_in, call.elements_out) if n is not None), default=None)


def _mark(call: Call) -> tuple[Any, ...]:
    """Return what tells kinds of calls apart; of rooted ones not all ranks may be told root and elements."""
    operation = MESSAGE if call.operation in POINT_TO_POINT else call.operation
    return operation, None if call.operation in ROOTED else elements(call), call.dtype


def _words(call: Call) -> str:
    """Return a call as a reason has it."""
    operation, count, dtype = _mark(call)
    return " ".join(str(word) for word in (operation, "of", count, dtype) if word) if count else operation
