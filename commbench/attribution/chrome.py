"""An attribution as a trace of its own, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A process a rank, with the layer of each instant on one track and its collectives, parted into waiting and transfer, on
others, all on the common clock. The format is Chrome's Trace Event Format in JSON: complete events ("X"), in
microseconds, which on one track only follow or enclose one another. What overlaps is put on tracks side by side.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.attribution.clocks import known
from commbench.attribution.layers import LAYERS
from commbench.errors import UsageError

if TYPE_CHECKING:
    from commbench.attribution.analyse import Attribution
    from commbench.attribution.collectives import Split

LAYER_TRACK, FIRST_OF_WAITS = 1, 2


def write(path: str | Path, attribution: Attribution) -> None:
    """Write the trace; gzipped where the name ends in .gz. Raises UsageError for a file that cannot be written."""
    zero = _zero(attribution)
    head = {"displayTimeUnit": "ms", "otherData": {"written by": "commbench attribute", "ns at 0": zero}}
    try:
        with gzip.open(path, "wt") if str(path).endswith(".gz") else open(path, "w") as file:
            file.write(f'{json.dumps(head)[:-1]}, "traceEvents": [')
            for place, event in enumerate(events(attribution, zero)):
                file.write(f"{',' if place else ''}\n{json.dumps(event)}")
            file.write("\n]}\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def events(attribution: Attribution, zero: int) -> Iterator[dict[str, Any]]:
    """Yield the events; `zero`: the common time (ns) that their times are counted from."""
    for place, trace in enumerate(attribution.traces):
        host = f" on {trace.host}" if trace.host else ""
        yield _named("process", f"{trace.label}{host}", place)
        yield _named("thread", "layer", place, LAYER_TRACK)
        yield from _layers(attribution, place, zero)
        yield from _collectives(attribution, place, zero)


def _zero(attribution: Attribution) -> int:
    starts = [int(one.arrival.min()) for one in attribution.splits if len(one.arrival) and not one.durations_only]
    for alignment, layers in zip(attribution.alignments, attribution.layers, strict=True):
        starts += [int(alignment.common(one.window.start)) for one in layers]
    return min(starts, default=0)


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(name: str, category: str, process: int, thread: int, start: int, end: int, **args: Any) -> dict[str, Any]:
    """Return an event; `start`, `end`: ns since the zero."""
    times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, **times, "args": args}


def _layers(attribution: Attribution, place: int, zero: int) -> Iterator[dict[str, Any]]:
    """Yield each step, which encloses its layers."""
    for one in attribution.layers[place]:
        edges = (attribution.alignments[place].common(one.edges) - zero).tolist()
        name = "all" if one.window.step is None else f"step {one.window.step}"
        facts = {f"{layer}_us": one.total(layer) / 1e3 for layer in LAYERS}
        yield _complete(name, "step", place, LAYER_TRACK, edges[0], edges[-1], **facts)
        for label, start, end in zip(one.labels.tolist(), edges, edges[1:], strict=False):
            yield _complete(LAYERS[label], "layer", place, LAYER_TRACK, start, end)


def _collectives(attribution: Attribution, place: int, zero: int) -> Iterator[dict[str, Any]]:
    """Yield each collective of a rank, which encloses its waiting and its transfer."""
    placed = (one for one in attribution.splits if place in one.places and not one.durations_only)
    mine = [(one, one.places.index(place)) for one in placed]
    mine.sort(key=lambda both: both[0].arrival[both[1]])
    free: list[tuple[int, int]] = []  # when each track is free again, and which one
    for one, which in mine:
        start, end = (int(times[which]) - zero for times in (one.arrival, one.end))
        if free and free[0][0] <= start:
            track = heapq.heappop(free)[1]
        else:
            track = FIRST_OF_WAITS + len(free)
            yield _named("thread", "waits" if not free else f"waits {len(free) + 1}", place, track)
        heapq.heappush(free, (end, track))
        yield _complete(one.meeting.operation, "collective", place, track, start, end, **_facts(one))
        if not one.skew_only and start < end:
            came = min(start + int(one.wait[which]), end)
            last = "" if one.culprit is None else f" for {attribution.traces[one.culprit].label}"
            if start < came:
                yield _complete(f"waiting{last}", "waiting", place, track, start, came)
            if came < end:
                yield _complete("transfer", "transfer", place, track, came, end)


def _facts(one: Split) -> dict[str, Any]:
    meeting = one.meeting
    facts: dict[str, Any] = {"group": meeting.group_name, "number": meeting.number, "ranks": len(meeting.group)}
    facts |= {"bytes": meeting.size, "dtype": meeting.dtype}
    error = known(one.error)
    facts |= {"lateness_us": one.lateness / 1e3, "error_us": None if error is None else error / 1e3}
    facts |= {"low confidence": one.low_confidence}
    return {name: value for name, value in facts.items() if value not in (None, "")}
