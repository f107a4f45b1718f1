"""The columns of a trace of PyTorch's profiler in order of time, and which row caused or holds which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers._kineto_rows import Rows
from commbench.attribution.trace import DEVICE_KINDS, OPERATOR, RUNTIME, SYNC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

_LATEST = 4e15  # us: the year 2096; what is later is no time
_ABSOLUTE = 1e15  # us: times since 1970 are later than that, those since a machine's start are not
_SLACK = 2000  # ns by which a span may reach into the next one on its stream: older traces have whole us
_DAY = 86_400 * 10**9  # ns: a span that goes on for longer after all others began is no span


@dataclass
class Table:
    """The events of a trace as columns, sorted by start."""

    start: Times
    end: Times
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    operator: NDArray[np.int32]
    correlation: Times
    external: Times
    places: Times  # of each row that was read, -1 where it was left out
    notes: list[str] = field(default_factory=list)


def base_of(rows: Rows, written: Any) -> tuple[bool, int]:
    """Return whether times are since 1970, and what they lack (ns) to be so."""
    base, starts = facts.number(written), np.concatenate(rows.start)
    with np.errstate(invalid="ignore"):
        sound = np.abs(starts) < _LATEST
        absolute = sound & (starts >= _ABSOLUTE)
    if 2 * absolute.sum() > sound.sum():  # most of them: one broken time is none of all
        return True, 0
    return (True, base) if base and base < 4 * 10**18 else (False, 0)


def tabulate(rows: Rows, base: int) -> Table:
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


def causes(table: Table, device: NDArray[np.bool_]) -> Times:
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


def serve(table: Table, device: NDArray[np.bool_], cause: Times) -> None:
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
