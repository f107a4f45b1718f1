"""Traces of PyTorch's profiler (Kineto), old and new: CUDA, ROCm, and Gloo on CPUs.

A file is read in blocks and kept in columns, so that one of a GiB takes a third of that. What Python's own functions
did (with_stack) is left out, and so are arrows between events and annotations repeated on the device.
"""

from __future__ import annotations

import gc
import marshal
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers import _values
from commbench.attribution.readers._json_events import Events
from commbench.attribution.readers._kineto_calls import Found, Job, Table, find_calls
from commbench.attribution.trace import (
    ANNOTATION,
    DEVICE_KINDS,
    KERNEL,
    MEMCPY,
    MEMSET,
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

    Times = NDArray[np.int64]

NAME = "PyTorch profiler trace"
_EVENTS = "traceEvents"
_WANTED = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name")

_CATEGORIES = {
    **{"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET, "cpu_op": OPERATOR},
    **{"cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "hip_runtime": RUNTIME, "user_annotation": ANNOTATION},
    **{"xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME},
    # Before 2022.
    **{"Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET, "Operator": OPERATOR, "Runtime": RUNTIME},
}
_VALUED = re.compile("conv|attention")  # operators whose stride, or mask, tells how much they do
_BLOCKING = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)Synchronize")
_LATEST = 4e15  # us: the year 2096; what is later is no time
_ABSOLUTE = 1e15  # us: times since 1970 are later than that, those since a machine's start are not
_SLACK = 2000  # ns by which a span may reach into the next one on its stream: older traces have whole us
_DAY = 86_400 * 10**9  # ns: a span that goes on for longer after all others began is no span


def recognise(head: bytes) -> bool:
    """Return whether an object begins here that has events or Kineto's keys, or a list of events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"[":
        return b'"ph"' in head
    return start == b"{" and any(word in head for word in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"'))


def read(stream: BinaryIO, source: str) -> list[Trace]:
    """Return the trace of the rank that wrote this file; raise UsageError where no event of work is in it."""
    events = Events(stream, _EVENTS, _WANTED)
    rows = _Rows()
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


class _Rows:
    """Events in columns, as they come."""

    def __init__(self) -> None:
        self.start: list[NDArray[np.float64]] = []  # us
        self.length: list[NDArray[np.float64]] = []  # us
        self.kind = array("B")
        self.name = array("i")
        self.lane = array("i")
        self.operator = array("i")
        self.correlation: list[Times] = []
        self.external: list[Times] = []
        self.names: dict[Any, int] = {}
        self.lanes: dict[tuple[Any, Any], int] = {}
        self.on_device: set[int] = set()  # lanes
        self.operators: dict[Any, int] = {}
        self.asked: list[tuple[int, tuple[tuple[int, ...], ...], tuple[str, ...], tuple[str, ...]]] = []
        self.found: list[Found] = []
        self.steps: list[int] = []  # rows
        self.malformed = 0
        self.others = 0
        self._roles: list[int] = []
        self._valued: list[bool] = []
        self._categories = dict(_CATEGORIES)
        self._said: dict[bytes, facts.Facts | None] = {}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.kind)

    def add(self, events: Sequence[Any]) -> None:
        """Take in events; those that are none of work are counted."""
        start: list[Any] = []
        length: list[Any] = []
        correlation: list[Any] = []
        external: list[Any] = []
        for event in events:
            try:
                if event.get("ph") != "X":
                    self.others += 1
                    continue
                kind = self._categories.get(event.get("cat"))
                if kind is None:
                    self.others += 1
                    continue
                name = self.names.setdefault(event["name"], len(self.names))
                if name == len(self._roles):
                    self._roles.append(facts.role(str(event["name"])))
                    self._valued.append(_VALUED.search(str(event["name"])) is not None)
                where = event.get("pid"), event.get("tid")
                lane = self.lanes.setdefault(where, len(self.lanes))
                began = event["ts"]
                args = event.get("args") or {}
                link = args.get("correlation", -1)
                outer = args.get("External id")
                if outer is None:
                    outer = args.get("external id", -1)
                operator = self._asked(name, args) if kind == OPERATOR else -1
                if kind == RUNTIME and _BLOCKING.match(event["name"]):
                    kind = SYNC
                if (role := self._roles[name]) or "Collective name" in args:
                    self._keep(kind, role, event["name"], args)
            except (AttributeError, KeyError, TypeError, ValueError):
                self.malformed += 1
                continue
            start.append(began)
            length.append(event.get("dur"))
            correlation.append(link)
            external.append(outer)
            self.kind.append(kind)
            self.name.append(name)
            self.lane.append(lane)
            self.operator.append(operator)
            if kind in DEVICE_KINDS:
                self.on_device.add(lane)
        self.start.append(_floats(start))
        self.length.append(_floats(length))
        self.correlation.append(_wholes(correlation))
        self.external.append(_wholes(external))

    def _asked(self, name: int, args: Mapping[str, Any]) -> int:
        """Return the place of what an operator was asked."""
        shapes, dtypes = args.get("Input Dims"), args.get("Input type")
        values = args.get("Concrete Inputs") if self._valued[name] else None
        key = name if shapes is None else (name, marshal.dumps((shapes, dtypes, values), 2))
        place = self.operators.setdefault(key, len(self.operators))
        if place == len(self.asked):
            self.asked.append((name, *_inputs(shapes, dtypes, values)))
        return place

    def _keep(self, kind: int, role: int, name: str, args: Mapping[str, Any]) -> None:
        """Keep what an event says of communication or of steps."""
        row = self.count
        if kind in DEVICE_KINDS:
            if kind == KERNEL and (role == facts.KERNEL or "Collective name" in args):
                said = self._once(facts.described, args) or facts.named(name)
                self.found.append(Found(row, facts.KERNEL, said, facts.number(args.get("Seq"))))
        elif role == facts.STEP:
            self.steps.append(row)
        elif role == facts.DESCRIBED:
            if (said := self._once(facts.described, args)) is not None:
                self.found.append(Found(row, role, said, facts.number(args.get("Seq"))))
        elif role in (facts.ASKED, facts.MARKED, facts.RUN):
            say = facts.asked if role == facts.ASKED else facts.marked
            self.found.append(Found(row, role, self._once(say, args, name)))

    def _once(self, say: Any, args: Mapping[str, Any], *name: str) -> Any:
        """Return what arguments say, worked out only once for those that are alike."""
        key = marshal.dumps((name, [args.get(word) for word in facts.WORDS]), 2)
        if key not in self._said:
            self._said[key] = say(*name, args)
        return self._said[key]


def _inputs(
    shapes: Any, dtypes: Any, values: Any
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], tuple[str, ...]]:
    """Return the shapes of an operator's inputs, () for one that is no tensor, their types, and what else is told."""
    if not isinstance(shapes, list):
        return (), (), ()
    sizes = tuple(
        tuple(one) if isinstance(one, list) and all(type(size) is int for size in one) else () for one in shapes
    )
    types, told = (tuple(map(str, one)) if isinstance(one, list) else () for one in (dtypes, values))
    return sizes, types, told


def _floats(values: list[Any]) -> NDArray[np.float64]:
    """Return numbers, NaN for what is none."""
    try:
        return np.array(values, dtype=np.float64).reshape(len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values], dtype=np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _wholes(values: list[Any]) -> Times:
    """Return whole numbers, -1 for what is none."""
    try:
        return np.array(values, dtype=np.int64).reshape(len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = map(facts.number, values)
        return np.array([-1 if number is None else number for number in numbers], dtype=np.int64)


def _trace(rows: _Rows, rest: Mapping[str, Any], source: str, notes: list[str]) -> Trace:
    unix, base = _base(rows, rest.get("baseTimeNanoseconds"))
    table = _table(rows, base)
    notes += table.notes
    if not len(table.start):
        raise UsageError(f"{source} holds no event with a time: {notes[-1]}")
    names = tuple(_plain(name) for name in rows.names)
    operators = tuple(Operator(names[name], shapes, dtypes, values) for name, shapes, dtypes, values in rows.asked)
    device = np.isin(table.kind, DEVICE_KINDS)
    cause = _causes(table, device)
    launched = table.start.copy()
    known = cause >= 0
    launched[known] = np.minimum(table.start[cause[known]], table.start[known])
    _serve(table, device, cause)
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
        lanes=tuple(_lane(where, place in rows.on_device) for where, place in rows.lanes.items()),
        operators=operators,
        notes=tuple(notes),
    )


def _base(rows: _Rows, written: Any) -> tuple[bool, int]:
    """Return whether times are since 1970, and what they lack (ns) to be so."""
    latest = max((float(np.nanmax(part)) for part in rows.start if len(part) and not np.isnan(part).all()), default=0.0)
    base = facts.number(written)
    if latest >= _ABSOLUTE:
        return True, 0
    return (True, base) if base and base < 4 * 10**18 else (False, 0)


def _table(rows: _Rows, base: int) -> Table:
    """Return the rows sorted, without those that have no time, and with no span that cannot have been so long."""
    began, length = np.concatenate(rows.start), np.concatenate(rows.length)
    notes = []
    with np.errstate(invalid="ignore"):
        kept = np.abs(began) < _LATEST
        negative = kept & (length < 0)
        untold = kept & np.isnan(length)
    if lost := len(kept) - int(kept.sum()) + rows.malformed:
        notes.append(f"{lost} events are left out: they have no time, or are malformed")
    if count := int(negative.sum()):
        notes.append(f"{count} events have a negative duration: taken as 0")
    if count := int(untold.sum()):
        notes.append(f"{count} events have no duration: taken as 0")
    length[negative | untold] = 0
    began, length = began[kept], np.minimum(length[kept], _LATEST)
    start = _nanoseconds(began) + base
    end = start + _nanoseconds(length)
    order = np.lexsort((-end, start))
    places = np.full(len(kept), -1, dtype=np.int64)
    places[np.flatnonzero(kept)[order]] = np.arange(len(order))

    def column(values: Any, dtype: Any) -> Any:
        return np.asarray(values, dtype=dtype)[kept][order]

    table = Table(
        start[order],
        end[order],
        column(rows.kind, np.uint8),
        column(rows.name, np.int32),
        column(rows.lane, np.int32),
        column(rows.operator, np.int32),
        column(np.concatenate(rows.correlation), np.int64),
        column(np.concatenate(rows.external), np.int64),
        places,
        notes,
    )
    _clip(table)
    return table


def _nanoseconds(microseconds: NDArray[np.float64]) -> Times:
    """Return whole ns; whole and part apart, since a double of us holds more of them than one of ns."""
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def _clip(table: Table) -> None:
    """Cut off spans that overflowed.

    A stream does one thing after the other, but what a graph launches with one call, so a span that is mostly in the
    time of a later launch on its stream ends where that begins.
    """
    if not len(table.start):
        return
    device = np.flatnonzero(np.isin(table.kind, DEVICE_KINDS))
    rows = device[np.argsort(table.lane[device], kind="stable")]
    if len(rows) > 1:
        lane, correlation, start, end = (
            column[rows] for column in (table.lane, table.correlation, table.start, table.end)
        )
        other = (lane[1:] != lane[:-1]) | (correlation[1:] != correlation[:-1]) | (correlation[1:] < 0)
        changes = np.append(np.flatnonzero(other) + 1, len(rows))  # rows that begin another launch, or another stream
        following = changes[np.searchsorted(changes, np.arange(len(rows)), side="right")]
        last = following == len(rows)
        following[last] = 0
        limit = np.where(last | (lane[following] != lane), np.iinfo(np.int64).max, start[following])
        over = (end > limit) & (end - np.minimum(limit, end) > _SLACK) & (2 * limit.clip(max=2**61) < start + end)
        if over.any():
            table.end[rows[over]] = limit[over]
            table.notes.append(
                f"{int(over.sum())} spans reach far into the next one on their stream, which cannot be: cut off there"
            )
    horizon = int(table.start.max())
    endless = table.end > horizon + _DAY
    if endless.any():
        table.end[endless] = horizon
        table.notes.append(f"{int(endless.sum())} spans go on for days after all others began: cut off there")


def _causes(table: Table, device: NDArray[np.bool_]) -> Times:
    """Return the row of the call that launched each row, -1 where it is not in the trace."""
    cause = np.full(len(table.start), -1, dtype=np.int64)
    calls = np.flatnonzero(np.isin(table.kind, (RUNTIME, SYNC)) & (table.correlation >= 0))
    if not len(calls):
        return cause
    calls = calls[np.argsort(table.correlation[calls], kind="stable")]
    known = table.correlation[calls]
    asking = np.flatnonzero(device & (table.correlation >= 0))
    found = np.searchsorted(known, table.correlation[asking]).clip(max=len(known) - 1)
    fits = known[found] == table.correlation[asking]
    cause[asking[fits]] = calls[found[fits]]
    return cause


def _serve(table: Table, device: NDArray[np.bool_], cause: Times) -> None:
    """Give work and launches the operator that they serve.

    That is told by the external id; traces before 2023 repeat the correlation there, and then it is the innermost
    operator around the launch.
    """
    ops = np.flatnonzero(table.kind == OPERATOR)
    if not len(ops):
        return
    ranked = ops[np.argsort(table.external[ops], kind="stable")]
    ids = table.external[ranked]
    asking = np.flatnonzero(
        (device | np.isin(table.kind, (RUNTIME, SYNC))) & (table.external >= 0) & (table.external != table.correlation)
    )
    found = np.searchsorted(ids, table.external[asking]).clip(max=len(ids) - 1)
    fits = ids[found] == table.external[asking]
    table.operator[asking[fits]] = table.operator[ranked[found[fits]]]
    asking = np.flatnonzero(device & (table.operator < 0) & (cause >= 0))
    for lane in np.unique(table.lane[cause[asking]]):
        these = asking[table.lane[cause[asking]] == lane]
        around = _innermost(table, ops[table.lane[ops] == lane], table.start[cause[these]])
        table.operator[these[around >= 0]] = table.operator[around[around >= 0]]


def _innermost(table: Table, ops: Times, times: Times) -> Times:
    """Return the row of the innermost of nested operators, in order, at each of the times; -1 for none."""
    if not len(ops):
        return np.full(len(times), -1, dtype=np.int64)
    ends = table.end[ops]
    parents = np.full(len(ops), -1, dtype=np.int64)
    open_ones: list[int] = []
    for place, (start, end) in enumerate(zip(table.start[ops].tolist(), ends.tolist(), strict=True)):
        while open_ones and ends[open_ones[-1]] <= start:
            open_ones.pop()
        parents[place] = open_ones[-1] if open_ones else -1
        if end > start:
            open_ones.append(place)
    at = np.searchsorted(table.start[ops], times, side="right") - 1
    while (beyond := (at >= 0) & (ends[at] < times)).any():
        at[beyond] = parents[at[beyond]]
    return np.where(at >= 0, ops[at], -1)


def _steps(rows: _Rows, table: Table, names: Sequence[str], notes: list[str]) -> tuple[Step, ...]:
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


def _device(names: Sequence[str], table: Table, device: NDArray[np.bool_], rows: _Rows) -> str:
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


def _lane(where: tuple[Any, Any], on_device: bool) -> str:
    return f"device {where[0]} stream {where[1]}" if on_device else f"thread {where[1]}"


def _plain(name: Any) -> str:
    """Return a name that can be printed everywhere."""
    text = str(name)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
