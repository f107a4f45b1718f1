"""JSON of rocprofv3 (rocprofiler-sdk): kernels and copies of AMD devices, the calls of HIP and of RCCL.

Of source/lib/output/generateJSON.cpp there: an entry a process, times in ns since the machine was started. Kernels of
RCCL bear one name, ncclDevKernel_Generic: what one carries out is what the call of RCCL that launched it asked for,
where --rccl-trace and --hip-trace were on. Steps are ranges of ROCTX called ProfilerStep#7. Sizes and groups of calls
are not in it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers import _values, _words
from commbench.attribution.trace import (
    ANNOTATION,
    BY_ARGUMENTS,
    BY_NAME,
    KERNEL,
    MEMCPY,
    RUNTIME,
    SYNC,
    UNKNOWN,
    Call,
    Spans,
    Step,
    Trace,
)
from commbench.errors import UsageError

NAME = "rocprofv3 JSON"

_LARGEST = 1 << 30  # bytes: it is read at once, and takes some ten times that in memory
_BROKEN = (ValueError, LookupError, TypeError, AttributeError)


def recognise(head: bytes) -> bool:
    """Return whether it begins as the tool's JSON."""
    return head.lstrip()[:1] == b"{" and b'"rocprofiler-sdk-tool"' in head


def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
    """Return a trace for each process; raise UsageError for a file that is cut, or in which nothing ran."""
    data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise UsageError(f"{source} has more than {_LARGEST >> 30} GiB: record fewer steps")
    try:
        processes = json.loads(data.decode("utf-8", "replace"))["rocprofiler-sdk-tool"]
    except (*_BROKEN, RecursionError) as error:
        raise UsageError(f"{source} is not whole: {str(error)[:80]}; copy the file again") from None
    processes = [one for one in (processes if isinstance(processes, list) else [processes]) if isinstance(one, dict)]
    if len(processes) == 1:
        rank = _values.rank_in_name(source)
        told = f"rank {rank} is taken from the file's name"
        if rank is None:
            told = "nothing tells its rank: give the file a name that ends in it, such as rank3.json"
    else:
        rank, told = None, "the file has several processes, and nothing tells their ranks: write a file for each"
    traces = [_trace(process, rank, source, told) for process in processes]
    if not any(len(trace.spans) for trace in traces):
        raise UsageError(f"{source} holds no kernel, copy or call: run rocprofv3 with --sys-trace or --kernel-trace")
    return traces


class _Span(NamedTuple):
    start: int
    end: int
    kind: int
    name: str
    lane: str
    launched: int
    call: Call | None = None


@dataclass(frozen=True)
class _Asked:
    """What one call of RCCL, or one group of calls, asked for, between two instants of a thread (ns)."""

    start: int
    end: int
    operations: tuple[str, ...]


def _trace(process: Mapping[str, Any], rank: int | None, source: str, told: str) -> Trace:
    records = _Records(process)
    spans = [*records.host("hip_api"), *records.host("rccl_api")]
    asked = records.asked()
    marks = list(records.marks())
    spans += [*records.kernels(asked), *records.copies(), *marks]
    notes = [told, "groups and sizes of calls are not in it, and its clock is that of its machine alone"]
    if records.broken:
        notes.append(f"{records.broken} records are not as rocprofv3 writes them, and are left out")
    if not asked and any(span.call for span in spans):
        notes.append("what RCCL was asked for is told by the names of kernels alone: add --rccl-trace --hip-trace")
    steps = tuple(
        Step(facts.step(mark.name), mark.start, mark.end)
        for mark in sorted(marks)
        if facts.role(mark.name) == facts.STEP
    )
    return replace(_columns(sorted(spans, key=lambda span: span.start), rank, source, notes), steps=steps)


class _Records:
    """The records of one process."""

    def __init__(self, process: Mapping[str, Any]) -> None:
        self.broken = 0
        self._process = process
        buffers = process.get("buffer_records")
        self._buffers: Mapping[str, Any] = buffers if isinstance(buffers, dict) else {}
        self._names = _operations(process)
        self._kernels = _kernel_names(process)
        self._launches: dict[int, tuple[int, int]] = {}  # start and thread of a call of HIP, by correlation

    def _each(self, buffer: str) -> Iterator[tuple[Mapping[str, Any], int, int]]:
        """Yield records with start and end."""
        records = self._buffers.get(buffer, ())
        for record in records if isinstance(records, list) else ():
            try:
                start, end = _values.whole(record["start_timestamp"]), _values.whole(record["end_timestamp"])
                if end < start:
                    raise ValueError
            except _BROKEN:
                self.broken += 1
            else:
                yield record, start, end

    def host(self, buffer: str) -> Iterator[_Span]:
        """Yield the calls of the host."""
        for record, start, end in self._each(buffer):
            try:
                thread, name = _values.whole(record["thread_id"]), self._name(record)
                if buffer == "hip_api":
                    self._launches[_values.whole(record["correlation_id"]["internal"])] = start, thread
            except _BROKEN:
                self.broken += 1
                continue
            yield _Span(start, end, SYNC if "Synchronize" in name else RUNTIME, name, f"thread {thread}", start)

    def kernels(self, asked: Mapping[int, Sequence[_Asked]]) -> Iterator[_Span]:
        """Yield the kernels; those of communication with their calls."""
        for record, start, end in self._each("kernel_dispatch"):
            try:
                info = record["dispatch_info"]
                name = self._kernels.get(_values.whole(info["kernel_id"]), "a kernel without a name")
                lane = f"{_handle(info['agent_id'])} queue {_handle(info['queue_id'])}"
                launched, thread = self._launches.get(
                    _values.whole(record["correlation_id"]["internal"]), (start, _values.whole(record["thread_id"]))
                )
            except _BROKEN:
                self.broken += 1
                continue
            launched = min(launched, start)
            call = _call(name, _under_way(asked.get(thread, ()), launched), start, end, launched)
            yield _Span(start, end, KERNEL, name, lane, launched, call)

    def copies(self) -> Iterator[_Span]:
        """Yield the copies between memories."""
        for record, start, end in self._each("memory_copy"):
            try:
                lane = f"copies {_handle(record['src_agent_id'])} to {_handle(record['dst_agent_id'])}"
                yield _Span(start, end, MEMCPY, self._name(record), lane, start)
            except _BROKEN:
                self.broken += 1

    def marks(self) -> Iterator[_Span]:
        """Yield the ranges that the program marked."""
        texts = _marks(self._process)
        for record, start, end in self._each("marker_api"):
            try:
                name = texts.get(_values.whole(record["correlation_id"]["internal"]))
                if name is not None:
                    yield _Span(start, end, ANNOTATION, name, f"thread {_values.whole(record['thread_id'])}", start)
            except _BROKEN:
                self.broken += 1

    def asked(self) -> Mapping[int, Sequence[_Asked]]:
        """Return by thread, in order of time, what RCCL was asked for: by a call, or by the calls of one group."""
        threads: dict[int, list[tuple[int, int, str]]] = {}
        for record, start, end in self._each("rccl_api"):
            try:
                threads.setdefault(_values.whole(record["thread_id"]), []).append((start, end, self._name(record)))
            except _BROKEN:
                continue  # counted where the calls of the host are
        return {thread: list(_groups(sorted(calls))) for thread, calls in threads.items()}

    def _name(self, record: Mapping[str, Any]) -> str:
        kind, operation = _values.whole(record["kind"]), _values.whole(record["operation"])
        return self._names.get((kind, operation), f"operation {operation} of kind {kind}")


def _operations(process: Mapping[str, Any]) -> dict[tuple[int, int], str]:
    """Return the names of operations: `strings` has for each kind its operations, in the order of their numbers."""
    found = {}
    try:
        for number, kind in enumerate(process["strings"]["buffer_records"]):
            for operation, name in enumerate(kind["operations"]):
                found[number, operation] = _values.text(name)
    except _BROKEN:
        pass  # numbers stand for the names
    return found


def _marks(process: Mapping[str, Any]) -> dict[int, str]:
    """Return the texts of marks by their correlation."""
    try:
        return {_values.whole(one["key"]): _values.text(one["value"]) for one in process["strings"]["marker_api"]}
    except _BROKEN:
        return {}


def _kernel_names(process: Mapping[str, Any]) -> dict[int, str]:
    found = {}
    symbols = process.get("kernel_symbols")
    for symbol in symbols if isinstance(symbols, list) else ():
        try:
            names = (symbol.get(f"{kind}_kernel_name") for kind in ("formatted", "demangled", "truncated"))
            name = next((one for one in names if one), symbol.get("kernel_name"))
            found[_values.whole(symbol["kernel_id"])] = _values.text(name)
        except _BROKEN:
            continue
    return found


def _handle(one: Mapping[str, Any]) -> int:
    """Return by which number an agent or a queue is known."""
    return _values.whole(one["handle"])


def _groups(calls: Sequence[tuple[int, int, str]]) -> Iterator[_Asked]:
    """Yield what a thread's calls (start, end, name) asked for; in a group that is launched by the end of it."""
    depth = 0
    pending: list[str] = []
    for start, end, name in calls:
        operation = _words.operation(name)
        if name == "ncclGroupStart":
            depth += 1
        elif name == "ncclGroupEnd":
            depth = max(depth - 1, 0)
            if depth == 0:
                yield _Asked(start, end, tuple(pending))
                pending = []
        elif operation != UNKNOWN and depth:
            pending.append(operation)
        elif operation != UNKNOWN:
            yield _Asked(start, end, (operation,))


def _under_way(asked: Sequence[_Asked], launched: int) -> tuple[str, ...]:
    """Return the operations asked for by what was under way when a kernel was launched."""
    place = bisect_right(asked, launched, key=lambda one: one.start) - 1
    return asked[place].operations if place >= 0 and launched <= asked[place].end else ()


@lru_cache(4096)
def _by_name(kernel: str) -> str | None:
    """Return the operation that a kernel's name tells; None where it does not communicate."""
    return _words.operation_of_kernel(kernel) if _words.COMMUNICATION.search(kernel) else None


def _call(name: str, operations: Sequence[str], start: int, end: int, launched: int) -> Call | None:
    """Return the call that a kernel is; None where it does not communicate."""
    operation = _by_name(name)
    if operation is None:
        return None
    if operations:
        different = set(operations)
        operation = operations[0] if len(different) == 1 else "sendrecv" if different == {"send", "recv"} else UNKNOWN
    return Call(
        operation=operation,
        enqueued=launched,
        start=start,
        end=end,
        coalesced=len(operations) > 1,
        evidence=BY_ARGUMENTS if operations else BY_NAME,
        name=name,
    )


def _columns(spans: Sequence[_Span], rank: int | None, source: str, notes: Sequence[str]) -> Trace:
    """Return the trace of spans that are in order of time."""
    names = {name: place for place, name in enumerate(dict.fromkeys(span.name for span in spans))}
    lanes = {lane: place for place, lane in enumerate(dict.fromkeys(span.lane for span in spans))}
    calls = [(place, span) for place, span in enumerate(spans) if span.call]
    of = np.full(len(spans), -1, dtype=np.int32)
    of[[place for place, _ in calls]] = np.arange(len(calls), dtype=np.int32)
    columns = Spans(
        start=np.array([span.start for span in spans], dtype=np.int64),
        end=np.array([span.end for span in spans], dtype=np.int64),
        kind=np.array([span.kind for span in spans], dtype=np.uint8),
        name=np.array([names[span.name] for span in spans], dtype=np.int32),
        lane=np.array([lanes[span.lane] for span in spans], dtype=np.int32),
        launched=np.array([span.launched for span in spans], dtype=np.int64),
        operator=np.full(len(spans), -1, dtype=np.int32),
        call=of,
    )
    return Trace(
        source,
        NAME,
        rank,
        device="hip",
        spans=columns,
        calls=tuple(span.call for _, span in calls if span.call),
        names=tuple(names),
        notes=tuple(notes),
    )
