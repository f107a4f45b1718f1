"""Traces of PyTorch's profiler (Kineto), old and new: CUDA, ROCm, and Gloo on CPUs.

A file is read in blocks and kept in columns, so that one of a GiB takes a third of that. What Python's own functions
did (with_stack) is left out, and so are arrows between events and annotations repeated on the device.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers import _values
from commbench.attribution.readers._json_events import Events
from commbench.attribution.readers._kineto_calls import Job, find_calls
from commbench.attribution.readers._kineto_rows import Rows
from commbench.attribution.readers._kineto_table import Table, base_of, causes, serve, tabulate
from commbench.attribution.trace import (
    DEVICE_KINDS,
    OPERATOR,
    RUNTIME,
    SYNC,
    Operator,
    Spans,
    Step,
    Trace,
)
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "PyTorch profiler trace"
_EVENTS = "traceEvents"
_WANTED = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name")


def recognise(head: bytes) -> bool:
    """Return whether an object begins here that has events or Kineto's keys, or a list of events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"[":
        return b'"ph"' in head
    return start == b"{" and any(word in head for word in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"'))


def read(stream: BinaryIO, source: str) -> list[Trace]:
    """Return the trace of the rank that wrote this file; raise UsageError where no event of work is in it."""
    events = Events(stream, _EVENTS, _WANTED)
    rows = Rows()
    with _no_collection():
        for block in events:
            rows.add(block)
    notes = []
    if events.unreadable:
        notes.append(f"{events.unreadable} events are no JSON: they are left out")
    if not events.complete:
        notes.append("the file breaks off: what stands before that was read; copy it again, or trace fewer steps")
    if not rows.count:
        why = notes[-1] if notes else f"the {rows.others} others are of no category that is known here"
        raise UsageError(f"{source} holds no event of operators, kernels or annotations: {why}")
    return [replace(_trace(rows, events.rest, source, notes), whole=events.complete)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles, of which decoded JSON has none: it would take half of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _trace(rows: Rows, rest: Mapping[str, Any], source: str, notes: list[str]) -> Trace:
    unix, base = base_of(rows, rest.get("baseTimeNanoseconds"))
    table = tabulate(rows, base)
    notes += table.notes
    if not len(table.start):
        raise UsageError(f"{source} holds no event with a time: {notes[-1]}")
    names = tuple(_plain(name) for name in rows.names)
    operators = tuple(Operator(names[name], shapes, dtypes, values) for name, shapes, dtypes, values in rows.asked)
    device = np.isin(table.kind, DEVICE_KINDS)
    cause = causes(table, device)
    launched = table.start.copy()
    known = cause >= 0
    launched[known] = np.minimum(table.start[cause[known]], table.start[known])
    serve(table, device, cause)
    job = Job.of(rest.get("distributedInfo"))
    rank = job.rank
    if rank is None and (rank := _values.rank_in_name(source)) is not None:
        notes.append(f"the trace has no rank: {rank} is that in its file's name")
    if rest.get("deviceProperties") and not device.any():
        notes.append("no device work is in this trace, though there is a device: profile with its activity too")
    threads = [thread for _, thread in rows.lanes]
    calls, call, asked = find_calls(rows.found, table, names, operators, cause, job, threads, notes)
    launched[asked >= 0] = asked[asked >= 0]
    spans = Spans(table.start, table.end, table.kind, table.name, table.lane, launched, table.operator, call)
    return Trace(
        source=source,
        format=NAME,
        rank=rank,
        ranks=job.size,
        host=str(rest.get("host_name") or ""),
        device=_device(names, table, device, rows),
        model=_model(rest.get("deviceProperties")),
        unix=unix,
        spans=spans,
        calls=calls,
        steps=_steps(rows, table, names, notes),
        names=names,
        operators=operators,
        notes=tuple(notes),
    )


def _steps(rows: Rows, table: Table, names: Sequence[str], notes: list[str]) -> tuple[Step, ...]:
    """Return the steps marked on the host, each once, none reaching into the next."""
    places = sorted(place for row in rows.steps if (place := int(table.places[row])) >= 0)
    steps: dict[int, tuple[int, int]] = {}
    again = 0  # marks that are another time, not another thread
    for place in places:
        mark = int(table.start[place]), int(table.end[place])
        first = steps.setdefault(facts.step(names[table.name[place]]), mark)
        again += mark[0] > first[0] and mark[0] >= first[1]
    if again:
        notes.append(
            f"{again} marks have the number of a step before them: they are left out, and with them their time"
        )
    following = [start for start, _ in steps.values()][1:]
    return tuple(
        Step(number, start, end if limit is None else min(end, limit))
        for (number, (start, end)), limit in zip_longest(steps.items(), following)
    )


def _device(names: Sequence[str], table: Table, device: NDArray[np.bool_], rows: Rows) -> str:
    """Return where work ran."""
    if device.any():
        used = np.unique(table.name[np.isin(table.kind, (RUNTIME, SYNC))])
        prefixes = {names[name][:2] for name in used}
        return "hip" if "hi" in prefixes else "cuda" if "cu" in prefixes else ""
    marked = any(one.role == facts.MARKED for one in rows.found)
    return "" if marked or not (table.kind == OPERATOR).any() else "cpu"


def _model(properties: Any) -> str:
    """Return how the vendor calls the host's devices; "" where they are of several models."""
    devices = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    models = {_plain(one.get("name") or "") for one in devices}
    return models.pop() if len(models) == 1 else ""


def _plain(name: Any) -> str:
    """Return a name that can be printed everywhere."""
    text = str(name)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
