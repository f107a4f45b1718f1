"""Waiting told from transfer, in each collective on each rank.

Where no rank can end before all began (all-reduce, all-gather, ...), with starts s and ends e on one clock:

    wait = min(max(s) - s, e - s)           transfer = (e - s) - wait

and, without clocks, if all ended at once: wait = (e - s) - min(e - s). Both are biased: transfer counts from the last
arrival on, while a pipelined algorithm moves data among those that are there; and the shortest duration is too short
where ends are ragged. So where the two differ the number is marked. Where files say how long calls ran and not
when, the second is all there is (TraceLens also takes the shortest for the transfer), and nobody is late by any clock.

In a broadcast or scatter ranks wait for the root alone, in a reduce or gather the root alone waits; of a message each
end waits for the other, unless it was buffered and its sender has gone on. A rank arrives when its call began to run:
behind an earlier one on its stream, or in the queue of its threads (Gloo), it has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commbench.attribution.clocks import FROM_TRACES, UNKNOWN_ERROR, Alignment
from commbench.attribution.matching import Meeting
from commbench.attribution.trace import MESSAGE, SYNCHRONISING, Call, Trace
from commbench.units import format_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

DIFFER = 0.1  # of a call's duration, by which waits by arrivals and by durations may differ


@dataclass(frozen=True)
class Split:
    """One meeting's time on each rank whose trace is there; arrays of one length, in the order of `places`. In ns."""

    meeting: Meeting
    places: tuple[int, ...]  # of the traces
    arrival: Times  # common time
    end: Times  # common time
    wait: Times  # by arrivals: until the last one came
    transfer: Times  # the rest
    wait_by_duration: Times | None  # without clocks: what exceeds the shortest; None where that means nothing
    error: int  # how far a wait by arrivals may be off, from the clocks
    culprit: int | None  # the place of who came last; None where nobody can be told to be late
    lateness: int  # ns: the last arrival less the median one (of two the first) of those who wait
    candidates: tuple[int, ...] = ()  # places of those who could have been late: that any other waits for
    skew_only: bool = False  # waits mean nothing here, arrivals do: coalesced, uneven, or enqueue times only
    low_confidence: str = ""  # why the number is not to be trusted much, or nothing
    durations_only: bool = False  # `arrival` and `end` count from the end, as if it were one for all; nobody is late

    @property
    def distinguishable(self) -> bool:
        """Whether the lateness is more than twice what the clocks may be off."""
        return self.lateness > 2 * self.error


def split(meeting: Meeting, traces: Sequence[Trace], alignments: Sequence[Alignment]) -> Split:
    """Split one meeting's time. `alignments` is as long as `traces`."""
    calls = {place: traces[place].calls[index] for place, index in sorted(meeting.calls.items())}
    if (durations := _durations(meeting, list(calls.values()))) is not None:
        return _by_durations(meeting, tuple(calls), durations)
    calls = {place: call for place, call in calls.items() if call.arrival is not None}
    places, clocks = tuple(calls), [alignments[place] for place in calls]
    ranks = [traces[place].rank for place in places]
    arrival = _common([call.arrival for call in calls.values()], clocks)
    end = _common([call.arrival if call.end is None else call.end for call in calls.values()], clocks)
    end = np.maximum(arrival, end)
    error = _error(clocks)
    awaited = _awaited(meeting, ranks)
    # A small message is buffered: its sender goes on before the receiver has come.
    sends = np.array([call.operation == "send" for call in calls.values()], dtype=bool)
    awaited &= ~(sends[:, None] & (end[:, None] < arrival[None, :] - error))
    timed = all(call.start is not None and call.end is not None for call in calls.values())
    skew = _skew_only(meeting, len(places), timed)
    last, lateness = _culprit(arrival, awaited)
    doubts = _doubts(meeting, clocks)
    wait, by_duration = np.zeros_like(arrival), None
    if skew:
        doubts.insert(0, skew)
    else:
        until = np.where(awaited, arrival[None, :], arrival[:, None]).max(axis=1)
        wait = np.minimum(until, end) - arrival
        if meeting.operation in SYNCHRONISING:
            by_duration = (end - arrival) - (end - arrival).min()
        doubts += _differences(ranks, arrival, end, wait, by_duration, awaited, error)
    return Split(
        meeting=meeting,
        places=places,
        arrival=arrival,
        end=end,
        wait=wait,
        transfer=end - arrival - wait,
        wait_by_duration=by_duration,
        error=error,
        culprit=None if last is None else places[last],
        lateness=lateness,
        candidates=tuple(np.array(places)[awaited.any(axis=0)].tolist()),
        skew_only=bool(skew),
        low_confidence="; ".join(doubts),
    )


def _durations(meeting: Meeting, calls: Sequence[Call]) -> Times | None:
    """Return how long a meeting's calls ran, where that splits it, and not all of them say when they did."""
    known = [call.duration for call in calls if call.duration is not None]
    timed = all(call.start is not None and call.end is not None for call in calls)
    if timed or len(known) < len(calls) or meeting.operation not in SYNCHRONISING or _skew_only(meeting, len(calls)):
        return None
    return np.array(known, dtype=np.int64)


def _by_durations(meeting: Meeting, places: tuple[int, ...], durations: Times) -> Split:
    """Return a meeting split as if all had ended at once: the last to come is in it for the transfer alone."""
    wait = durations - durations.min()
    return Split(
        meeting=meeting,
        places=places,
        arrival=-durations,
        end=np.zeros_like(durations),
        wait=wait,
        transfer=durations - wait,
        wait_by_duration=wait,
        error=UNKNOWN_ERROR,
        culprit=None,
        lateness=0,
        low_confidence="; ".join(["only durations are known: all are taken to end at once", *_doubts(meeting, ())]),
        durations_only=True,
    )


def _common(local: Sequence[int | None], clocks: Sequence[Alignment]) -> Times:
    return np.array([clock.common(time) for time, clock in zip(local, clocks, strict=True)], dtype=np.int64)


def _error(alignments: Sequence[Alignment]) -> int:
    """Return how far two times on unlike clocks may be off: each by its own error, the worst two together."""
    if len({one.clock for one in alignments}) < 2:
        return max((one.resolution for one in alignments), default=0)
    worst: dict[str, int] = {}
    for one in alignments:
        worst[one.clock] = max(one.error, worst.get(one.clock, 0))
    return min(sum(sorted(worst.values())[-2:]), UNKNOWN_ERROR)


def _awaited(meeting: Meeting, ranks: Sequence[int | None]) -> NDArray[np.bool_]:
    """Return (n, n) whether the rank of a row waits until the rank of a column is there."""
    n = len(ranks)
    others = ~np.eye(n, dtype=bool)
    root = np.array([rank == meeting.root for rank in ranks], dtype=bool)
    if meeting.operation in ("broadcast", "scatter"):
        return others & root[None, :]
    if meeting.operation in ("reduce", "gather"):
        return others & root[:, None]
    return others


def _skew_only(meeting: Meeting, n: int, timed: bool = True) -> str:
    """Return why a meeting has no waits, or nothing."""
    if not n:
        return "no times are recorded"
    if n < 2 and len(meeting.group) > 1:
        return "no other rank's trace"
    if not timed:
        return "only when it was asked for is recorded"
    if meeting.coalesced:
        return "several operations in one"
    if meeting.uneven:
        return "unlike numbers of elements on the ranks"
    if meeting.operation in (*SYNCHRONISING, MESSAGE):
        return ""
    if meeting.operation not in ("broadcast", "scatter", "reduce", "gather"):
        return "nothing tells what it does"
    if meeting.root is None:
        return "nothing tells the root"
    return "the root has no trace" if meeting.root in meeting.missing else ""


def _culprit(arrival: Times, awaited: NDArray[np.bool_]) -> tuple[int | None, int]:
    """Return who came last of those that are waited for, and how late after who waits; None where nobody waited."""
    candidates = np.nonzero(awaited.any(axis=0))[0]
    if not len(candidates):
        return None, 0
    last = int(candidates[np.argmax(arrival[candidates])])
    those = arrival[awaited[:, last] | (np.arange(len(arrival)) == last)]
    lateness = int(arrival[last] - np.sort(those)[(len(those) - 1) // 2])
    return (last, lateness) if lateness > 0 else (None, 0)


def _doubts(meeting: Meeting, alignments: Sequence[Alignment]) -> list[str]:
    """Return what is uncertain about a meeting before any number is looked at."""
    found = []
    if meeting.missing:
        found.append(f"ranks without a trace ({format_ranges(sorted(meeting.missing))}): waits are at least these")
    if meeting.supposed:
        found.append(f"nothing tells the group: taken to be ranks {format_ranges(sorted(meeting.group))}")
    if len({one.clock for one in alignments}) < 2:
        return found
    if any(one.error >= UNKNOWN_ERROR for one in alignments):
        found.append("clocks are not set against one another")
    elif any(one.source == FROM_TRACES for one in alignments):
        found.append("clocks were set by the ends of collectives: only durations tell")
    return found


def _differences(
    ranks: Sequence[int | None],
    arrival: Times,
    end: Times,
    wait: Times,
    by_duration: Times | None,
    awaited: NDArray[np.bool_],
    error: int,
) -> list[str]:
    """Return where the two estimates of waits differ, or times are impossible."""
    found = []
    early = (awaited & (arrival[None, :] > end[:, None] + error)).any(axis=1)
    if early.any():
        one = int(np.nonzero(early)[0][0])
        found.append(f"rank {ranks[one]} ended before the last one began, by these clocks")
    if by_duration is not None:
        apart = np.abs(wait - by_duration)
        beyond = apart - np.maximum(error, DIFFER * (end - arrival))
        if (beyond > 0).any():
            one = int(np.argmax(beyond))
            both = f"{wait[one] / 1e3:.0f} us by arrivals, {by_duration[one] / 1e3:.0f} us by durations"
            found.append(f"rank {ranks[one]} waits {both}")
    return found
