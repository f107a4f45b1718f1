"""Every instant of a step in exactly one layer.

The first rule that holds at an instant names its layer:

1. compute: a span of COMPUTE_WORK is active,
2. memory: a span of MEMORY_WORK is,
3. communication: a call that transfers is, or one of which nobody can tell (`Layers.unsplit`),
4. waiting: a call that waits for another rank is,
5. host: none of these.

Where a device worked, what the host did makes no layer. Else work is the operators' own time: at each instant a thread
does what it began last and has not ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from commbench.attribution.classes import COMPUTE_WORK, EVIDENCE, MEMORY_WORK, NEITHER, Classes
from commbench.attribution.intervals import union, within
from commbench.attribution.trace import DEVICE_KINDS, Spans, Step, Trace
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

COMPUTE, MEMORY, COMMUNICATION, WAITING, HOST = LAYERS = ("compute", "memory", "communication", "waiting", "host")

FOREVER = int(np.iinfo(np.int64).max)  # ns
APART = 0.01  # of a step: after a longer pause between two marks the next step is no continuation of the last


@dataclass(frozen=True)
class Window:
    """The part of a trace that is one step; times in ns, on the trace's own clock."""

    step: int | None  # its number; None: the whole trace
    start: int
    end: int

    @property
    def length(self) -> int:
        """How long it is (ns)."""
        return self.end - self.start


@dataclass(frozen=True)
class Layers:
    """One rank's window, each instant in one layer. Durations in ns."""

    window: Window
    edges: Times  # (n + 1,), from the window's start to its end
    labels: NDArray[np.uint8]  # (n,), places in LAYERS
    hidden: int  # communication and waiting under compute or memory
    communication: int  # what tools call communication: the instants in which any call is under way
    exposed: int  # those of them in which nothing else is: communication and waiting together
    latency_bound: int  # of compute and memory
    unsplit: int  # of communication: calls without a peer's trace, or unmatched; waiting may be in it
    evidence: Mapping[str, int]  # of compute and memory, by what its class was told from

    def total(self, layer: str) -> int:
        """Return the ns in a layer; over all layers they add up to the window exactly."""
        return int(np.diff(self.edges)[self.labels == LAYERS.index(layer)].sum())


def windows(trace: Trace) -> tuple[Window, ...]:
    """Return the steps of a trace, by when their work was launched; none where no step is marked.

    Of a device, a step begins with the first work that it launched and ends where the next one begins: what the host
    does before its first launch counts to the step before. The last step, and one whose mark ends a pause (APART)
    before the next, ends with its last work or its mark, whatever is later. A step that launched nothing is left out.
    Without a device the marks are the windows.
    """
    if not trace.on_device:
        return tuple(Window(step.number, step.start, step.end) for step in trace.steps if step.start < step.end)
    spans = trace.spans
    work = np.flatnonzero(np.isin(spans.kind, DEVICE_KINDS))
    work = work[np.argsort(spans.launched[work], kind="stable")]
    steps: list[Step] = []
    begins: list[int] = []
    ends: list[int] = []
    for step in trace.steps:
        mine = work[slice(*np.searchsorted(spans.launched[work], (step.start, step.end)))]
        if len(mine):
            steps.append(step)
            begins.append(max([int(spans.start[mine].min()), *begins[-1:]]))  # never before the step before
            ends.append(max(int(spans.end[mine].max()), step.end))
    for place, (step, after) in enumerate(pairwise(steps)):
        pauses = after.start - step.end > APART * (step.end - step.start)
        ends[place] = min(ends[place], begins[place + 1]) if pauses else begins[place + 1]
    found = (Window(step.number, begin, end) for step, begin, end in zip(steps, begins, ends, strict=True))
    return tuple(one for one in found if one.start < one.end)


def whole(trace: Trace) -> Window:
    """Return the window from the first work to the last; raise UsageError where a trace has none with a time."""
    work, calls = _work(trace), _calls(trace)
    starts, ends = (np.concatenate(both) for both in ((work.start, calls.start), (work.end, calls.end)))
    if not len(starts) or starts.min() == ends.max():
        what, activities = ("work of a device", "the device") if trace.on_device else ("operator", "the CPU")
        raise UsageError(
            f"{trace.source} says of no {what} and of no collective when it ran: record the activities of "
            f"{activities} too, or leave the file out{''.join(f'; {note}' for note in trace.notes)}"
        )
    return Window(None, int(starts.min()), int(ends.max()))


def layers(trace: Trace, windows: Sequence[Window], waits: Mapping[int, int], classes: Classes) -> tuple[Layers, ...]:
    """Return the layers of each window, in O(n log n) for all of them together.

    `waits`: until when (ns, the trace's own clock) a call waits, by its place; of a call that is not there nobody can
    tell, and all of it is communication.
    """
    if not windows:
        return ()
    sweep = _sweep(trace, windows, waits, classes)
    return tuple(sweep.cut(window) for window in windows)


@dataclass(frozen=True)
class _Stretches:
    """What was active when: `what`, a place among spans or calls, from `start` until `end`."""

    start: Times
    end: Times
    what: NDArray[np.int64]

    def union(self, these: Flags) -> Times:
        return union(self.start[these], self.end[these])


@dataclass(frozen=True)
class _Sweep:
    """A trace broken at every edge, with an entry for each interval between two."""

    edges: Times
    labels: NDArray[np.uint8]
    evidence: NDArray[np.uint8]  # of compute and memory: the best of what is active
    called: Flags
    latency_bound: Flags
    unsplit: Flags

    def cut(self, window: Window) -> Layers:
        first, last = np.searchsorted(self.edges, (window.start, window.end))
        part = slice(first, last)
        edges, labels = self.edges[first : last + 1], self.labels[part]
        durations = np.diff(edges)

        def total(these: Flags) -> int:
            return int(durations[these].sum())

        works = labels <= LAYERS.index(MEMORY)
        changes = np.flatnonzero(np.diff(labels)) + 1
        return Layers(
            window,
            edges=edges[np.r_[0, changes, len(labels)]],
            labels=labels[np.r_[0, changes]],
            hidden=total(self.called[part] & works),
            communication=total(self.called[part]),
            exposed=total(self.called[part] & ~works),
            latency_bound=total(self.latency_bound[part]),
            unsplit=total(self.unsplit[part]),
            evidence={
                name: duration
                for place, name in enumerate(EVIDENCE)
                if (duration := total(works & (self.evidence[part] == place)))
            },
        )


def _sweep(trace: Trace, windows: Sequence[Window], waits: Mapping[int, int], classes: Classes) -> _Sweep:
    work, calls = _work(trace), _calls(trace)
    kind, evidence, idles = classes.work[work.what], classes.evidence[work.what], classes.latency_bound[work.what]
    known = np.isin(calls.what, list(waits))
    until = calls.start.copy()
    until[known] = np.clip([waits[place] for place in calls.what[known].tolist()], calls.start[known], calls.end[known])

    ranks = range(len(EVIDENCE))
    sets = [work.union((kind == one) & (evidence == rank)) for one in (COMPUTE_WORK, MEMORY_WORK) for rank in ranks]
    sets += [work.union((kind != NEITHER) & ~idles), calls.union(~known)]
    sets += [union(until[known], calls.end[known]), union(calls.start, until)]
    bounds = [bound for window in windows for bound in (window.start, window.end)]
    edges = np.unique(np.concatenate([*(one.ravel() for one in sets), bounds]).astype(np.int64))
    *active, busy, unsplit, transfer, waiting = (within(one, edges[:-1]) for one in sets)
    compute, memory = active[: len(ranks)], active[len(ranks) :]

    labels = np.full(len(edges) - 1, LAYERS.index(HOST), dtype=np.uint8)
    best = np.zeros_like(labels)
    # From the last rule to the first, and from the weakest evidence to the best: what comes later stands.
    rules = {WAITING: [waiting], COMMUNICATION: [transfer | unsplit], MEMORY: memory, COMPUTE: compute}
    for layer, those in rules.items():
        for rank, where in reversed(list(enumerate(those))):
            labels[where], best[where] = LAYERS.index(layer), rank
    return _Sweep(
        edges,
        labels,
        best,
        called=unsplit | transfer | waiting,
        latency_bound=(labels <= LAYERS.index(MEMORY)) & ~busy,
        unsplit=(labels == LAYERS.index(COMMUNICATION)) & ~transfer,
    )


def _work(trace: Trace) -> _Stretches:
    """Return when each span of a device was active; without a device, when each was what its thread did."""
    spans = trace.spans
    if not trace.on_device:
        return _own(spans)
    work = np.flatnonzero(np.isin(spans.kind, DEVICE_KINDS))
    return _Stretches(spans.start[work], spans.end[work], work)


def _calls(trace: Trace) -> _Stretches:
    """Return when each call was under way; a call without times is where its spans are."""
    told = [
        (one.start, one.end, place)
        for place, one in enumerate(trace.calls)
        if one.start is not None and one.end is not None
    ]
    start, end, place = np.array(told, dtype=np.int64).reshape(-1, 3).T
    spans = trace.spans
    rest = (spans.call >= 0) & ~np.isin(spans.call, place)
    if trace.on_device:
        rest &= np.isin(spans.kind, DEVICE_KINDS)
    return _Stretches(
        np.concatenate((start, spans.start[rest])),
        np.concatenate((end, spans.end[rest])),
        np.concatenate((place, spans.call[rest])),
    )


def _own(spans: Spans) -> _Stretches:
    """Return each span's own time: at each instant a thread is in what it began last and has not ended."""
    found: list[tuple[int, int, int]] = []
    begun: list[tuple[int, int]] = []  # end and place of what the thread began, the last one last
    lane, now = -1, 0

    def go_on(until: int) -> None:
        nonlocal now
        while begun and now < until:
            end, place = begun[-1]
            if now < (stop := min(end, until)):
                found.append((now, stop, place))
                now = stop
            if end <= until:
                begun.pop()

    order = np.lexsort((-spans.end, spans.start, spans.lane))
    columns = (one[order].tolist() for one in (spans.lane, spans.start, spans.end))
    for place, where, start, end in zip(order.tolist(), *columns, strict=True):
        go_on(start if where == lane else FOREVER)
        lane, now = where, start
        begun.append((end, place))
    go_on(FOREVER)
    return _Stretches(*np.array(found, dtype=np.int64).reshape(-1, 3).T)
