"""Calls of collectives in a trace of PyTorch's profiler: what its events say of each, put together."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers import _words
from commbench.attribution.readers._kineto_facts import Facts, number
from commbench.attribution.readers._kineto_rows import Found
from commbench.attribution.readers._kineto_table import Table
from commbench.attribution.trace import (
    BY_ARGUMENTS,
    BY_NAME,
    KERNEL,
    POINT_TO_POINT,
    ROOTED,
    UNKNOWN,
    Call,
    Operator,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """What `distributedInfo` says."""

    rank: int | None = None
    size: int | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # this rank's, in the order they were made
    descriptions: Mapping[str, str] = field(default_factory=dict)
    backends: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Any) -> Job:
        """Return what is told; nothing of what is malformed."""
        if not isinstance(told, dict):
            return cls()
        groups, descriptions, backends = {}, {}, {}
        configured = told.get("pg_config")
        for one in configured if isinstance(configured, list) else ():
            if not isinstance(one, dict) or not isinstance(one.get("ranks"), list):
                continue
            ranks = tuple(rank for rank in map(number, one["ranks"]) if rank is not None)
            name = str(one.get("pg_name", ""))
            if ranks and len(ranks) == len(one["ranks"]):
                groups[name] = ranks
                descriptions[name] = str(one.get("pg_desc") or "")
                backends[name] = str(one.get("backend_config") or "")
        rank, size = number(told.get("rank")), facts.ranks_in(told.get("world_size"))
        return cls(rank, size, groups, descriptions, backends)

    def group(self, said: Sequence[Facts]) -> tuple[int, ...] | None:
        """Return the ranks of a group, by whatever tells."""
        for one in said:
            if one.ranks:
                return one.ranks
        for one in said:
            if one.group_name in self.groups:
                return self.groups[one.group_name]
        for one in said:
            if one.size and one.size == self.size:
                return tuple(range(one.size))
            if one.size and one.stride and one.first is not None:
                return tuple(range(one.first, one.first + one.size * one.stride, one.stride))
        return None

    def title(self, name: str, description: str = "") -> str:
        """Return what a group is called."""
        told = description or self.descriptions.get(name, "")
        return name if not told or told in ("undefined", name) else f"{name} ({told})"


@dataclass
class _Host:
    """What the host's events say, by thread in order of time."""

    starts: dict[int, list[int]]
    ones: dict[int, list[tuple[int, Found]]]
    external: dict[int, tuple[int, Found]]

    @classmethod
    def of(cls, found: Sequence[Found], table: Table) -> _Host:
        host = cls(defaultdict(list), defaultdict(list), {})
        placed = [(int(table.places[one.row]), one) for one in found if one.role in _HOST_ROLES]
        for place, one in sorted((pair for pair in placed if pair[0] >= 0), key=lambda pair: pair[0]):
            lane = int(table.lane[place])
            host.starts[lane].append(int(table.start[place]))
            host.ones[lane].append((place, one))
            if (link := int(table.external[place])) >= 0 and one.role != facts.MARKED:
                host.external.setdefault(link, (place, one))
        return host

    def around(self, table: Table, place: int) -> list[tuple[int, Found]]:
        """Return what is around a row on its thread, the innermost first."""
        lane, time = int(table.lane[place]), int(table.start[place])
        last = bisect.bisect_right(self.starts.get(lane, []), time)
        near = self.ones[lane][max(0, last - _NESTED) : last] if last else []
        return [(other, one) for other, one in reversed(near) if table.end[other] >= time and other != place]


_HOST_ROLES = (facts.ASKED, facts.DESCRIBED, facts.MARKED)
_NESTED = 8  # events of one collective that can be within one another


def find_calls(
    found: Sequence[Found],
    table: Table,
    names: Sequence[str],
    operators: Sequence[Operator],
    cause: Times,
    job: Job,
    threads: Sequence[Any],
    notes: list[str],
) -> tuple[tuple[Call, ...], NDArray[np.int32], Times]:
    """Return the calls in order of time, and of each row its call and when it was asked for (-1: none)."""
    host = _Host.of(found, table)
    placed = [(place, one) for one in found if (place := int(table.places[one.row])) >= 0]
    placed.sort(key=lambda pair: pair[0])
    kernels = [(place, one) for place, one in placed if one.role == facts.KERNEL]
    runs = [(place, one) for place, one in placed if one.role == facts.RUN]
    made: list[tuple[Call, list[int]]] = []
    made += [(_kernel(place, one, host, table, names, operators, cause, job), [place]) for place, one in kernels]
    if runs:
        made += _runs(runs, host, table, names, job, threads, notes)
    if not made:
        made += _asked_only(host, table, names, job, notes)
    made.sort(key=lambda pair: pair[0].arrival or 0)
    call = np.full(len(table.start), -1, dtype=np.int32)
    asked = np.full(len(table.start), -1, dtype=np.int64)
    for place, (one, rows) in enumerate(made):
        call[rows] = place
        if one.enqueued is not None:
            asked[rows] = np.minimum(one.enqueued, table.start[rows])
    if not made and job.size != 1:
        notes.append(_none_recognised(table, names))
    return tuple(one for one, _ in made), call, asked


def _kernel(
    place: int,
    found: Found,
    host: _Host,
    table: Table,
    names: Sequence[str],
    operators: Sequence[Operator],
    cause: Times,
    job: Job,
) -> Call:
    """Return the call that a kernel is."""
    launch = int(cause[place])
    around = host.around(table, launch) if launch >= 0 else []
    if not around and (linked := host.external.get(int(table.external[place]))):
        around = [linked, *host.around(table, linked[0])]
    own, name = found.facts, names[table.name[place]]
    by_role = {role: one for role in _HOST_ROLES for _, one in reversed(around) if one.role == role}
    described, asked, marked = (by_role.get(role) for role in (facts.DESCRIBED, facts.ASKED, facts.MARKED))
    said = [own] if own.by_arguments else []
    said += [one.facts for one in (described, asked, marked) if one is not None]
    said.append(facts.named(name))
    sequence = found.sequence if found.sequence is not None or described is None else described.sequence
    enqueued = min((int(table.start[other]) for other, _ in around), default=None)
    if enqueued is None and launch >= 0:
        enqueued = int(table.start[launch])
    call = _call(said, job.group(said), job, sequence)
    if call.elements_in is None and (operator := int(table.operator[place])) >= 0:
        call = _sized(call, operators[operator])
    return _timed(call, table, [place], enqueued, name)


def _call(said: Sequence[Facts], group: tuple[int, ...] | None, job: Job, sequence: int | None = None) -> Call:
    """Return what facts, the best first, say together."""

    def first(key: str) -> Any:
        return next((value for one in said if (value := getattr(one, key)) not in (None, "")), None)

    operation = next((one.operation for one in said if one.operation != UNKNOWN), UNKNOWN)
    index = first("place")
    place = group[index] if index is not None and group is not None and index < len(group) else None
    size = len(group) if group else first("size")
    name = first("group_name") or ""
    elements_in, elements_out = first("elements_in"), first("elements_out")
    if size and operation == "allgather" and elements_out is None and elements_in is not None:
        elements_out = elements_in * size
    if size and operation == "reducescatter" and elements_in is None and elements_out is not None:
        elements_in = elements_out * size
    return Call(
        operation,
        group=group,
        group_name=job.title(name, first("description") or ""),
        group_size=size,
        sequence=sequence,
        elements_in=elements_in,
        elements_out=elements_out,
        dtype=first("dtype") or "",
        root=place if operation in ROOTED else None,
        peer=(first("peer") if first("peer") is not None else place) if operation in POINT_TO_POINT else None,
        coalesced=any(one.coalesced for one in said),
        evidence=BY_ARGUMENTS if any(one.by_arguments for one in said) else BY_NAME,
    )


def _timed(call: Call, table: Table, rows: Sequence[int], enqueued: int | None, name: str) -> Call:
    """Return a call with the times of its spans."""
    return dataclasses.replace(
        call,
        enqueued=enqueued,
        start=int(table.start[rows].min()),
        end=int(table.end[rows].max()),
        name=name,
    )


def _sized(call: Call, operator: Operator) -> Call:
    """Return a call of a library of its own with the size of what its operator was asked to reduce."""
    if call.operation != "allreduce" or not operator.shapes:
        return call
    count = math.prod(operator.shapes[0])
    return dataclasses.replace(
        call, elements_in=count, elements_out=count, dtype=_words.dtype(next(iter(operator.dtypes), ""))
    )


def _runs(
    runs: Sequence[tuple[int, Found]],
    host: _Host,
    table: Table,
    names: Sequence[str],
    job: Job,
    threads: Sequence[Any],
    notes: list[str],
) -> list[tuple[Call, list[int]]]:
    """Return the calls that spans of the work itself are, each with its rows: Gloo makes several of some."""
    own = {place: request for place, _ in runs if (request := _requested_here(host, table, place))}
    requests = {**own, **_requests([pair for pair in runs if pair[0] not in own], host, own.values())}
    together: dict[tuple[bool, int], list[tuple[int, Found]]] = defaultdict(list)
    for place, run in runs:
        request = requests.get(place)
        together[request is None, place if request is None else request[0]].append((place, run))
    group_of = _groups_of_threads(
        [(int(table.lane[place]), requests.get(place)) for place, _ in runs if place not in own], threads, job
    )
    made, untold = [], 0
    for one in together.values():
        rows = [place for place, _ in one]
        request = requests.get(rows[0])
        said = _said(request[1].facts if request else None, one[0][1].facts)
        name = group_of.get(int(table.lane[rows[0]])) if rows[0] not in own else _group_of_peer(said, job)
        untold += name is None
        call = _call(said, None if name is None else job.groups[name], job)
        call = dataclasses.replace(call, group_name="" if name is None else job.title(name))
        enqueued = int(table.start[request[0]]) if request else None
        made.append((_timed(call, table, rows, enqueued, names[table.name[rows[0]]]), rows))
    if untold:
        notes.append(f"of {untold} operations on the CPU the trace does not tell the group")
    return made


def _said(asked: Facts | None, run: Facts) -> list[Facts]:
    """Return what a request and a span of it say together: the request knows the sizes, the span the data type."""
    if asked is None:
        return [run]
    if asked.operation == "barrier":
        return [asked]
    if asked.elements_in is None and asked.elements_out is None:
        return [asked, run]
    return [asked, dataclasses.replace(run, elements_in=None, elements_out=None)]


def _requested_here(host: _Host, table: Table, place: int) -> tuple[int, Found] | None:
    """Return the request that a span on the caller's own thread is within."""
    return next((pair for pair in host.around(table, place) if pair[1].role == facts.ASKED), None)


def _requests(
    runs: Sequence[tuple[int, Found]], host: _Host, taken: Iterable[tuple[int, Found]]
) -> dict[int, tuple[int, Found]]:
    """Return the request of each span on a thread of the library.

    Nothing links the two but order: of those that show the same tensors, the last span has the last request before it,
    and so on backwards. A request that failed and has no span is left over, wherever it stands.
    """
    used = {place for place, _ in taken}
    queues: dict[Any, list[tuple[int, Found]]] = defaultdict(list)
    for ones in host.ones.values():
        for place, one in ones:
            if one.role == facts.ASKED and place not in used:
                queues[_shown(one.facts)].append((place, one))
    for queue in queues.values():
        queue.sort(key=lambda pair: pair[0])
    requests = {}
    for place, run in sorted(runs, key=lambda pair: pair[0], reverse=True):
        queue = queues.get(_shown(run.facts), [])
        while queue and queue[-1][0] > place:
            queue.pop()
        if queue:
            requests[place] = queue[-1]
            if not queue[-1][1].facts.repeated:
                queue.pop()
    return requests


def _shown(one: Facts) -> tuple[str, facts.Shapes]:
    """Return what a request and its spans have in common. Gloo reduces before it scatters, and says so."""
    return "allreduce" if one.operation == "reducescatter" else one.operation, one.shapes or ()


_WORKERS = 2  # threads that PyTorch gives each group of Gloo


def _groups_of_threads(
    used: Sequence[tuple[int, tuple[int, Found] | None]], threads: Sequence[Any], job: Job
) -> dict[int, str]:
    """Return the names of the groups of Gloo's threads (lanes), of those that can be told.

    No event names its group, but each group has two threads of its own, begun with it one right after the other: so
    threads by number are groups in the order in which they were made. What tensors and roots tell of a group's size
    rules out some, and a thread is told for certain where only one group is left.
    """
    names = [name for name in job.groups if "gloo" in job.backends[name] or not job.backends[name]]
    lanes = sorted({lane for lane, _ in used}, key=lambda lane: facts.number(threads[lane]) or 0)
    if len(names) == 1:
        return dict.fromkeys(lanes, names[0])
    sizes = [len(job.groups[name]) for name in names]
    allowed = {lane: set(range(len(names))) for lane in lanes}
    for lane, request in used:
        if request is not None:
            one = request[1].facts
            allowed[lane] -= {
                place
                for place, size in enumerate(sizes)
                if (one.ratio and one.ratio != size) or (one.place is not None and one.place >= size)
            }
    numbers = [facts.number(threads[lane]) or 0 for lane in lanes]
    # Forwards: (group, how many threads it has so far) of each thread; then backwards, what leads to an end.
    reached: list[set[tuple[int, int]]] = []
    for place, lane in enumerate(lanes):
        beside = place > 0 and numbers[place] == numbers[place - 1] + 1
        before = reached[-1] if reached else {(-1, _WORKERS)}
        reached.append(_states(before, allowed[lane], beside))
    told = {}
    ahead = reached[-1] if reached else set()
    for place in reversed(range(len(lanes))):
        if len(groups := {group for group, _ in ahead}) == 1:
            told[lanes[place]] = names[next(iter(groups))]
        if place:
            beside = numbers[place] == numbers[place - 1] + 1
            ahead = {state for state in reached[place - 1] if _states({state}, allowed[lanes[place]], beside) & ahead}
    return told


def _states(before: set[tuple[int, int]], allowed: set[int], beside: bool) -> set[tuple[int, int]]:
    """Return the groups, with the number of their threads, that the next thread can be of."""
    after = {(group, count + 1) for group, count in before if count < _WORKERS and group in allowed}
    if beside or not before:
        return after
    first = min(group for group, _ in before)
    return after | {(group, 1) for group in allowed if group > first}


def _group_of_peer(said: Sequence[Facts], job: Job) -> str | None:
    """Return the group of a message, where only one has such a place for its peer."""
    place = next((one.place for one in said if one.place is not None), None)
    names = [
        name for name, ranks in job.groups.items() if place is None or (place < len(ranks) and ranks[place] != job.rank)
    ]
    return names[0] if len(names) == 1 else None


def _asked_only(
    host: _Host, table: Table, names: Sequence[str], job: Job, notes: list[str]
) -> list[tuple[Call, list[int]]]:
    """Return calls of which only the asking was recorded: the profiler did not watch the device."""
    if (table.kind == KERNEL).any():
        return []
    placed = [pair for ones in host.ones.values() for pair in ones]
    roles = Counter(one.role for _, one in placed)
    role = facts.MARKED if roles[facts.MARKED] else facts.DESCRIBED
    made: list[tuple[Call, list[int]]] = []
    for place, one in placed:
        if one.role == role:
            around = [one for _, one in host.around(table, place)]
            said = [one.facts, *(other.facts for other in around)]
            said.sort(key=lambda one: not one.by_arguments)
            sequence = next((other.sequence for other in (one, *around) if other.sequence is not None), None)
            call = _call(said, job.group(said), job, sequence)
            start, name = int(table.start[place]), names[table.name[place]]
            made.append((dataclasses.replace(call, enqueued=start, name=name), []))
    if made:
        notes.append(
            f"no device work is in this trace, only that {len(made)} collectives were asked for: "
            "arrivals are compared, durations cannot be"
        )
    return made


def _none_recognised(table: Table, names: Sequence[str]) -> str:
    """Return a note with the names that could have been communication, or else the commonest ones."""
    kernels = table.kind == KERNEL
    place, counts = np.unique(table.name[kernels if kernels.any() else slice(None)], return_counts=True)
    common = [names[place[at]] for at in np.argsort(-counts, kind="stable")]
    likely = [name for name in common if _words.operation(name) != UNKNOWN] or common
    shown = ", ".join(name[:60] for name in likely[:8])
    more = f" and {len(likely) - 8} more" if len(likely) > 8 else ""
    return f"no collective recognised; names seen: {shown}{more}"
