"""JSON lines of NCCL's Inspector, a profiler plugin: how long each collective ran on a rank, and with events, when.

Versions 4.0 to 4.3, of plugins/profiler/inspector/inspector_json.cc: since 4.3 a line is a call alone, and the line of
`dump_stats` before it says whose. `coll_exec_time_us` has the waiting in it. Only the kernel events of
NCCL_INSPECTOR_DUMP_VERBOSE=1 tell a start: `dump_timestamp_us` is when the line was written. `coll_sn` counts each
operation of a communicator by itself (seqNumber, src/include/comm.h). Sizes are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from commbench.attribution.readers import _nccl, _values, _words
from commbench.attribution.readers._nccl import Membership
from commbench.attribution.trace import BYTES, POINT_TO_POINT, Call, Trace
from commbench.errors import UsageError

NAME = "NCCL Inspector"

_LONGEST_LINE = 1 << 20  # bytes: events of a hundred channels have a tenth of it
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_KEYS = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')


def recognise(head: bytes) -> bool:
    """Return whether it is JSON with one of the Inspector's records."""
    return head.lstrip()[:1] == b"{" and b"n_ranks" in head and any(key in head for key in _KEYS)


@dataclass
class _Process:
    """What one process wrote: it may be several ranks, and a rank has several communicators."""

    host: str
    calls: dict[Membership, list[Call]] = field(default_factory=dict)
    dropped: dict[Membership, int] = field(default_factory=dict)


def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
    """Return a trace for each rank of the file; raise UsageError where no line is a record."""
    processes: dict[tuple[str, int], _Process] = {}
    context: Mapping[str, Any] = {}
    broken = 0
    for raw in iter(lambda: stream.readline(_LONGEST_LINE), b""):
        if not raw.strip():
            continue
        try:
            entry = json.loads(raw)
            context = entry if "header" in entry else context
            header, metadata = context["header"], context["metadata"]
            joined = Membership(
                _values.text(header["id"]), _values.whole(header["rank"]), _values.whole(header["n_ranks"])
            )
            host = _values.text(metadata["hostname"])
            call = _call(entry, joined)
            dropped = _dropped(entry)
            process = processes.setdefault((host, _values.whole(metadata["pid"])), _Process(host))
        except _BROKEN:
            broken += 1
            context = {}  # it may have been the line that says whose the next ones are
            continue
        process.dropped[joined] = max(dropped, process.dropped.get(joined, 0))
        calls = process.calls.setdefault(joined, [])
        if call is not None:
            calls.append(call)
    traces = [trace for process in processes.values() for trace in _traces(process, source, broken)]
    if not traces:
        raise UsageError(f"{source} holds no record of the Inspector that can be read: {broken} lines are none")
    return traces


def _call(entry: Mapping[str, Any], joined: Membership) -> Call | None:
    """Return a line's call, in the communicator's ranks; None of a line about something else."""
    kind = next((kind for kind in ("coll", "p2p") if f"{kind}_perf" in entry), None)
    if kind is None:
        return None
    perf = entry[f"{kind}_perf"]
    name = _values.text(perf[kind])
    operation = _words.operation(name)
    given, got = _nccl.counts(operation, _values.whole(perf[f"{kind}_msg_size_bytes"]), joined.ranks)
    events = perf.get("event_trace_ts", {})
    begun = [_microseconds(one["kernel_start_ts"]) for one in events.get("kernel_events", ())]
    ended = [_microseconds(one["kernel_stop_ts"]) for one in events.get("kernel_events", ())]
    known = bool(begun) and min(begun) > 0 and max(begun) <= max(ended) and min(ended) > 0
    called = _microseconds(events.get(f"{kind}_start_ts", 0))
    return Call(
        operation=operation,
        group_name=joined.communicator,
        group_size=joined.ranks,
        sequence=None if operation in POINT_TO_POINT else _values.whole(perf[f"{kind}_sn"]),
        elements_in=given,
        elements_out=got,
        dtype=BYTES,
        peer=_values.whole(perf["p2p_peer"]) if kind == "p2p" else None,
        enqueued=called or None,
        start=min(begun) if known else None,
        end=max(ended) if known else None,
        duration=_microseconds(perf[f"{kind}_exec_time_us"]) or None,
        name=name,
    )


def _microseconds(value: Any) -> int:
    """Return whole us as ns."""
    return _values.whole(_values.whole(value) * 1000)


def _dropped(entry: Mapping[str, Any]) -> int:
    """Return how many records its communicator has lost so far, as a line of statistics says."""
    stats = entry.get("dump_stats", {})
    names = ("dropped_total", "coll_dropped_total", "p2p_dropped_total")
    return sum(_values.whole(stats.get(name, 0)) for name in names)


def _traces(process: _Process, source: str, broken: int) -> list[Trace]:
    """Return a trace for each rank of a process; the largest communicators tell several apart."""
    joined = list(process.calls)
    if len({one.communicator for one in joined}) == len(joined):
        return [_trace(process, _nccl.place(joined), joined, source, broken)]
    size = max(one.ranks for one in joined)
    ranks: dict[int, list[Membership]] = {}
    for one in joined:
        if one.ranks == size:
            ranks.setdefault(one.rank, []).append(one)
    lost = sum(len(process.calls[one]) for one in joined if one.ranks != size)
    return [_trace(process, mine[0], mine, source, broken, lost) for mine in ranks.values()]


def _trace(
    process: _Process, place: Membership | None, joined: Sequence[Membership], source: str, broken: int, lost: int = 0
) -> Trace:
    groups = _nccl.groups([joined]) if place else {}
    calls = tuple(_named(call, groups.get(one.communicator)) for one in joined for call in process.calls[one])
    notes = [
        "calls below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192), and those whose kernel was not timed, are not in it"
    ]
    if place is None:
        notes.append("its rank is not known: its largest communicators disagree")
    if dropped := sum(process.dropped[one] for one in joined):
        notes.append(f"{dropped} records were overwritten: set a larger NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")
    if lost:
        notes.append(f"its process is several ranks: nothing tells whose {lost} calls in smaller communicators are")
    if broken:
        notes.append(f"{broken} lines are no records, and are left out: a killed job leaves the last one cut")
    if all(call.start is None for call in calls):
        notes.append("it holds durations, their waiting included, and no starts: set NCCL_INSPECTOR_DUMP_VERBOSE=1")
    rank, ranks = (place.rank, place.ranks) if place else (None, None)
    return Trace(source, NAME, rank, ranks, host=process.host, unix=True, calls=calls, notes=tuple(notes))


def _named(call: Call, group: tuple[int, ...] | None) -> Call:
    """Return a call with the ranks of the job in place of those of its communicator."""
    peer = group[call.peer] if group and call.peer is not None and call.peer < len(group) else None
    return replace(call, group=group, peer=peer)
