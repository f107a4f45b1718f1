"""Which calls of the ranks are one and the same collective, or one and the same message.

Calls of a group meet by their numbers where the files have some, else in order: the k-th with the k-th. What they say
of themselves (operation, elements, type, root) has to be the same on all ranks. Where nothing tells for certain which
calls belong together they are refused, with the reason: a wrong pair makes waits out of nothing.

Recordings may begin and end at different calls: rings drop the oldest ones, and profilers are not started at one
instant. By numbers they are aligned; without, in order (`queues.py`), and by the steps in which they were asked for
where all ranks mark those. A recording may lack calls in between as well, when buffers were full: without numbers the
steps are refused in which one rank lacks some, and all if another rank may lack some too and nothing would show it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.attribution.queues import Queues, elements, lacking
from commbench.attribution.trace import BYTES, MESSAGE, POINT_TO_POINT, SYNCHRONISING, UNKNOWN, Call, Trace
from commbench.errors import UsageError
from commbench.results.reading import ITEMSIZES
from commbench.units import format_ranges


@dataclass(frozen=True)
class Meeting:
    """One collective, or one message, as all ranks saw it whose traces are there."""

    operation: str
    group: tuple[int, ...]  # ranks of the job; of a message the sender, then the receiver
    group_name: str
    number: int  # among the group's: by the files where they count, else from 0
    calls: Mapping[int, int]  # place of the trace -> place in its calls
    size: int | None  # bytes, as nccl-tests counts them: the larger of what a rank sends in all and receives in all
    dtype: str
    root: int | None
    coalesced: bool = False
    missing: tuple[int, ...] = ()  # ranks of the group without a trace
    uneven: bool = False  # ranks take part with unlike numbers of elements, as in an all_to_allv
    supposed: bool = False  # nothing tells the group: all ranks were taken that may be of it

    @property
    def label(self) -> str:
        """How the group is called on screen."""
        if self.operation == MESSAGE:
            return f"rank {self.group[0]} to rank {self.group[1]}"
        return _label(self.group, self.group_name)


@dataclass(frozen=True)
class Refusal:
    """Calls that cannot be matched, and why."""

    group: str
    reason: str
    calls: int


@dataclass(frozen=True)
class Matches:
    """All that met, in order of time, and what could not be matched."""

    meetings: tuple[Meeting, ...]
    refusals: tuple[Refusal, ...]


def match(traces: Sequence[Trace], partial: bool = False) -> Matches:
    """Match the calls of traces of one job, one trace a rank.

    Raises UsageError for traces of several jobs, two of one rank, one that does not say its rank, and, unless
    `partial`, for ranks of the job without a trace.
    """
    world = _world(traces, partial)
    places = {trace.rank: place for place, trace in enumerate(traces) if trace.rank is not None}
    pools: dict[_Pool, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    refused: dict[tuple[str, str], int] = Counter()
    for place, trace in enumerate(traces):
        for index, call in enumerate(trace.calls):
            pool, reason = _pool(call, trace.rank)
            if pool is None:
                refused[_label(call.group, call.group_name), reason] += 1
            else:
                pools[pool][place].append(index)
    matcher = _Matcher(traces, places, world)
    for pool, lists in _same_names(pools).items():
        matcher.meet(pool, lists)
    matcher.refusals += [Refusal(group, reason, calls) for (group, reason), calls in refused.items()]
    return Matches(tuple(sorted(matcher.meetings, key=matcher.time)), tuple(matcher.refusals))


@dataclass(frozen=True)
class _Pool:
    """Calls among which those of the ranks are to be matched."""

    group: tuple[int, ...] | None
    name: str
    size: int | None = None  # of a group that is not told
    message: bool = False

    @property
    def label(self) -> str:
        if self.message and self.group:
            return f"messages of rank {self.group[0]} to rank {self.group[1]}"
        return _label(self.group, self.name)


def _label(group: tuple[int, ...] | None, name: str) -> str:
    """Return how a group is called on screen."""
    if group is None:
        return f"group {name}" if name else "unknown group"
    ranks = f"ranks {format_ranges(sorted(group))}"
    return f"group {name} ({ranks})" if name else ranks


def _world(traces: Sequence[Trace], partial: bool) -> tuple[int, ...] | None:
    """Return all ranks of the job if each has a trace; raises UsageError for what is no set of traces of one job."""
    seen: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            if len(traces) == 1:
                return None
            raise UsageError(
                f"traces are matched by rank, and {trace.source} does not say its own: name the file by it"
            )
        if trace.rank in seen:
            both = f"{seen[trace.rank].source} and {trace.source}"
            raise UsageError(f"a rank has one trace, and {both} are both of rank {trace.rank}: give one of them")
        seen[trace.rank] = trace
    _one_job("job", [(trace.source, trace.job) for trace in traces if trace.job])
    _one_job("number of ranks", [(trace.source, trace.ranks) for trace in traces if trace.ranks])
    ranks = next((trace.ranks for trace in traces if trace.ranks), None)
    grouped = {rank for trace in traces for call in trace.calls for rank in call.group or ()}
    job = set(range(ranks)) if ranks else grouped | set(seen)
    if missing := sorted((job | grouped) - set(seen)):
        if not partial:
            raise UsageError(
                f"waiting is told from transfer by the traces of all ranks of a job, and {len(missing)} of "
                f"{len(job | grouped)} have none ({format_ranges(missing)}): give theirs, or --partial goes on without"
            )
        return None
    return tuple(sorted(job)) if ranks else None


def _one_job(what: str, told: Sequence[tuple[str, Any]]) -> None:
    """Raise UsageError unless all files tell the same."""
    for source, value in told:
        if value != told[0][1]:
            raise UsageError(
                f"traces are matched within one job: {told[0][0]} and {source} are of different ones "
                f"({what} {told[0][1]} and {value}); give those of one"
            )


def _pool(call: Call, rank: int | None) -> tuple[_Pool | None, str]:
    """Return with which others a call is to be matched, or why it cannot be."""
    if call.operation in POINT_TO_POINT and not (call.coalesced and call.sequence is not None):
        if call.peer is None or rank is None:
            return None, f"nothing tells whom a {call.operation} is with"
        if call.operation == MESSAGE:  # both at once
            return _Pool((min(rank, call.peer), max(rank, call.peer)), call.group_name, message=True), ""
        ends = (rank, call.peer) if call.operation == "send" else (call.peer, rank)
        return _Pool(ends, call.group_name, message=True), ""
    if call.operation == UNKNOWN and call.sequence is None:
        return None, f"nothing tells what they do ({call.name or 'without a name'})"
    return _Pool(call.group, call.group_name, None if call.group else call.group_size), ""


def _same_names(pools: Mapping[_Pool, dict[int, list[int]]]) -> dict[_Pool, dict[int, list[int]]]:
    """Return the pools with those made one that are of the same ranks, and called differently by each of them."""
    by_group: dict[Any, list[_Pool]] = defaultdict(list)
    for pool in pools:
        by_group[pool.group, pool.message, pool.size].append(pool)
    found: dict[_Pool, dict[int, list[int]]] = {}
    for group, those in by_group.items():
        places = [place for pool in those for place in pools[pool]]
        if group[0] is not None and len(places) == len(set(places)):
            found[min(those, key=lambda pool: min(pools[pool]))] = {
                place: indices for pool in those for place, indices in pools[pool].items()
            }
        else:
            found.update({pool: pools[pool] for pool in those})
    return found


class _Matcher:
    """Meetings and refusals as they are found."""

    def __init__(self, traces: Sequence[Trace], places: Mapping[int, int], world: tuple[int, ...] | None) -> None:
        self.traces, self.places, self.world = traces, places, world
        self.meetings: list[Meeting] = []
        self.refusals: list[Refusal] = []

    def call(self, place: int, index: int) -> Call:
        return self.traces[place].calls[index]

    def time(self, meeting: Meeting) -> int:
        """Return about when a meeting was, on the clock of the first that takes part."""
        place = min(meeting.calls)
        return self.call(place, meeting.calls[place]).arrival or 0

    def meet(self, pool: _Pool, lists: dict[int, list[int]]) -> None:
        """Match the calls of one pool: `lists` has the places of calls for each trace."""
        group, supposed = pool.group, False
        if group is None:
            ranks = tuple(sorted(rank for rank, place in self.places.items() if place in lists))
            # PyTorch has no name twice in a job, and those that share name and numbers share the group.
            named = bool(pool.name) and self.has_numbers(lists)
            if pool.size != len(ranks) and (pool.size is not None or not (named or ranks == self.world)):
                self.refuse(pool, lists, "nothing tells which ranks belong together")
                return
            group, supposed = ranks, pool.size is None and (len(ranks) > 2 or ranks != self.world)
        lists = dict(sorted(lists.items()))
        if strange := [p for p in lists if self.traces[p].rank not in (*group, None)]:
            self.refuse(pool, lists, f"{self.traces[strange[0]].label} is not of the group")
            return
        absent = [rank for rank in group if self.places.get(rank, -1) not in lists]
        if silent := [rank for rank in absent if rank in self.places]:
            self.refuse(pool, lists, f"rank {format_ranges(sorted(silent))} recorded none of them")
            return
        rows = self.numbered(pool, lists) if self.has_numbers(lists) else self.ordered(pool, lists)
        for number, row in rows:
            self.meetings.append(self.meeting(pool, group, number, row, tuple(absent), supposed))

    def refuse(self, pool: _Pool, lists: Mapping[int, Sequence[int]], reason: str) -> None:
        self.refusals.append(Refusal(pool.label, reason, sum(map(len, lists.values()))))

    def has_numbers(self, lists: Mapping[int, list[int]]) -> bool:
        """Whether all calls have a number that means the same on all ranks, which those of messages do not."""
        calls = [self.call(place, index) for place, indices in lists.items() for index in indices]
        return all(
            call.sequence is not None and (call.operation not in POINT_TO_POINT or call.coalesced) for call in calls
        )

    def numbered(self, pool: _Pool, lists: dict[int, list[int]]) -> list[tuple[int, dict[int, int]]]:
        """Match by numbers, and refuse what some recordings lack and all from the first on that differ."""
        by_number: dict[int, dict[tuple[int, str], list[int]]] = {place: defaultdict(list) for place in lists}
        each = self.counts_each_operation(lists)
        for place, indices in lists.items():
            for index in indices:
                call = self.call(place, index)
                by_number[place][call.sequence or 0, call.operation if each else ""].append(index)
        rows: list[tuple[int, dict[int, int]]] = []
        some: dict[int, list[int]] = defaultdict(list)
        keys = sorted(set().union(*by_number.values()))
        for at, key in enumerate(keys):
            mine = {place: numbers.get(key, []) for place, numbers in by_number.items()}
            if len(set(map(len, mine.values()))) > 1:
                for place, indices in mine.items():
                    some[place] += indices
                continue
            found = [dict(zip(mine, row, strict=True)) for row in zip(*mine.values(), strict=True)]
            if differs := next(filter(None, map(self.difference, found)), ""):
                rest = {p: [i for k in keys[at:] for i in numbers.get(k, [])] for p, numbers in by_number.items()}
                self.refuse(pool, rest, f"from number {key[0]} on: {differs}")
                break
            rows += [(key[0], calls) for calls in found]
        for place, indices in some.items():
            if indices:
                numbers = format_ranges(sorted({self.call(place, index).sequence or 0 for index in indices}))
                reason = f"not recorded by all ranks: {self.traces[place].label} has numbers {numbers}"
                self.refuse(pool, {place: indices}, reason)
        return rows

    def counts_each_operation(self, lists: Mapping[int, list[int]]) -> bool:
        """Whether numbers count each operation of a group by itself, as those of NCCL Inspector do."""
        for place, indices in lists.items():
            operations: dict[int | None, set[str]] = defaultdict(set)
            for index in indices:
                if not (call := self.call(place, index)).coalesced:
                    operations[call.sequence].add(call.operation)
            if any(len(names) > 1 for names in operations.values()):
                return True
        return False

    def difference(self, row: Mapping[int, int]) -> str:
        """Return in what calls differ that are to be one, with who says what, or nothing."""
        calls = {place: self.call(place, index) for place, index in row.items()}
        for what, of in _ALIKE:
            told = {place: value for place, call in calls.items() if (value := of(call)) is not None}
            first = min(told, default=None)
            if first is not None and (other := next((p for p in told if told[p] != told[first]), None)) is not None:
                one, two = self.traces[first].label, self.traces[other].label
                return f"{what} {told[first]} on {one}, {told[other]} on {two}"
        return _unbalanced(list(calls.values()))

    def steps(self, lists: Mapping[int, list[int]]) -> dict[tuple[int, int], int | None]:
        """Return in which step each call was asked for; nothing unless all ranks mark steps and say when they asked."""
        found: dict[tuple[int, int], int | None] = {}
        for place, indices in lists.items():
            steps = self.traces[place].steps
            for index in indices:
                asked = self.call(place, index).enqueued
                if not steps or asked is None:
                    return {}
                at = bisect_right(steps, asked, key=lambda step: step.start) - 1
                found[place, index] = steps[at].number if at >= 0 else None
        return found

    def one_clock(self, places: Iterable[int]) -> bool:
        """Whether all traces are of one host, so that their times can be compared."""
        clocks = {(self.traces[place].host, self.traces[place].unix) for place in places}
        return len(clocks) == 1 and all(clocks.pop())

    def ordered(self, pool: _Pool, lists: dict[int, list[int]]) -> list[tuple[int, dict[int, int]]]:
        """Match in order, or refuse."""
        sender = pool.group[0] if pool.message and pool.group else None
        steps = self.steps(lists)
        queue, lost = Queues(self.traces, sender, lists, steps), ""
        rows, why = queue.rows()
        if rows is None and steps and (lack := lacking(self.traces, lists, steps, self.one_clock(lists))):
            kept = {place: [i for i in its if steps[place, i] not in lack.steps] for place, its in lists.items()}
            some = Queues(self.traces, sender, kept, steps)
            if (rows := some.possible(most=0)) is not None:
                label = self.traces[lack.place].label
                queue, lost = some, f"{label} lacks calls that others recorded {_within(lack.steps)}"
        if rows is None and self.one_clock(lists):  # time tells more than how each rank counts its steps
            queue = Queues(self.traces, sender, lists, {})
            rows, why = queue.rows()
        if rows is None:
            self.refuse(pool, lists, why)
            return []
        found = [queue.row(row) for row in rows.tolist()]
        if differs := next(filter(None, map(self.difference, found)), ""):
            self.refuse(pool, lists, differs)
            return []
        if lost:
            self.refuse(pool, {p: sorted({*lists[p]} - {*its}) for p, its in queue.lists.items()}, lost)
        for column, (place, indices) in enumerate(queue.lists.items()):
            if left := sorted(set(range(len(indices))) - set(rows[:, column].tolist())):
                reason = f"not recorded by all ranks: {self.traces[place].label} begins or ends elsewhere"
                self.refuse(pool, {place: left}, reason)
        return list(enumerate(found))

    def meeting(
        self,
        pool: _Pool,
        group: tuple[int, ...],
        number: int,
        row: dict[int, int],
        missing: tuple[int, ...],
        supposed: bool,
    ) -> Meeting:
        calls = [self.call(place, index) for place, index in row.items()]
        operation = MESSAGE if pool.message else calls[0].operation
        dtype = next((call.dtype for call in calls if call.dtype), "")
        return Meeting(
            operation=operation,
            group=group,
            group_name=pool.name,
            number=number,
            calls=row,
            size=_size(operation, calls, len(group), dtype),
            dtype=dtype,
            root=next((call.root for call in calls if call.root is not None), None),
            coalesced=any(call.coalesced for call in calls),
            missing=missing,
            uneven=operation != MESSAGE and _uneven(calls),
            supposed=supposed,
        )


def _within(steps: Iterable[int | None]) -> str:
    """Return in which steps something is, in words; None: before the first."""
    marked = sorted(step for step in steps if step is not None)
    words = [f"in {'steps' if len(marked) > 1 else 'step'} {format_ranges(marked)}"] if marked else []
    return " and ".join([*words, *["before the first step"] * (len(marked) < len({*steps}))])


# What is the same on all ranks of one call, by what it is called: None where it is not told.
_ALIKE = (
    ("operation", lambda call: MESSAGE if call.operation in POINT_TO_POINT else call.operation),
    ("elements", elements),
    ("type", lambda call: call.dtype or None),
    ("root", lambda call: call.root),
)


def _unbalanced(calls: Sequence[Call]) -> str:
    """Return what is wrong with an all-to-all of which all ranks are there, if they receive other than was sent."""
    if calls[0].operation != "alltoall" or calls[0].group_size != len(calls) or calls[0].coalesced:
        return ""
    sent = [call.elements_in for call in calls if call.elements_in is not None]
    got = [call.elements_out for call in calls if call.elements_out is not None]
    if len(sent) < len(calls) or len(got) < len(calls) or sum(sent) == sum(got):
        return ""
    return f"ranks send {sum(sent)} elements in all and receive {sum(got)}"


def _uneven(calls: Iterable[Call]) -> bool:
    """Whether ranks take part with unlike numbers of elements in what is the same for all otherwise."""
    kept = [call for call in calls if call.operation in SYNCHRONISING]
    return any(
        len({n for n in numbers if n is not None}) > 1
        for numbers in ([call.elements_in for call in kept], [call.elements_out for call in kept])
    )


_ITEMSIZES = {**ITEMSIZES, BYTES: 1, "bool": 1, "int16": 2}  # beside those of results, what only traces have


def _size(operation: str, calls: Sequence[Call], n: int, dtype: str) -> int | None:
    """Return the bytes of a call by nccl-tests' rule, from what any of the ranks says."""
    blocks_in = n if operation in ("allgather", "gather") else 1
    blocks_out = n if operation in ("reducescatter", "scatter") else 1
    counts = [
        count * blocks
        for call in calls
        for count, blocks in ((call.elements_in, blocks_in), (call.elements_out, blocks_out))
        if count is not None
    ]
    if not counts or dtype not in _ITEMSIZES:
        return None
    return max(counts) * _ITEMSIZES[dtype]
