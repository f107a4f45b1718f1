"""The collectives in a log of NCCL or RCCL: which rank called what, in which order, how large. A trace a process.

Lines of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,COLL: those of COLL are of ncclEnqueueCheck, src/enqueue.cc, in one
form since 2.4; those of INIT say which rank a process is in a communicator. `opCount` is no number of the collective:
it counts launches, so that calls of one group share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import BinaryIO

from commbench.attribution.readers import _nccl, _words
from commbench.attribution.readers._nccl import Membership
from commbench.attribution.trace import POINT_TO_POINT, ROOTED, UNKNOWN, Call, Trace
from commbench.errors import UsageError

NAME = "NCCL log"

_LONGEST_LINE = 1 << 16  # bytes
# [2026-05-05 06:16:47.123456] host:pid:thread [device] NCCL INFO ..., the time with NCCL_DEBUG_TIMESTAMP_LEVELS (2.26)
_LINE = re.compile(
    r"(?:\[(?P<second>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?\] )?"
    r"(?<![\w.-])(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:\d+ )?NCCL INFO (?P<message>.*)"
)
_MEMBERSHIP = re.compile(
    r"\bcomm (?P<pointer>0x[0-9a-f]+) rank (?P<rank>\d{1,9}) n[rR]anks (?P<ranks>\d{1,9})\b"
    r"(?:.* commId (?P<id>0x[0-9a-f]+))?"
)
_CALL = re.compile(
    r"(?P<name>\w+): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ count (?P<count>\d{1,18}) datatype (?P<dtype>\d{1,3}) "
    r"op \d+ root (?P<root>-?\d{1,9}) comm (?P<pointer>0x[0-9a-f]+) \[nranks=(?P<ranks>\d{1,9})\]"
    r"(?:.* globalrank (?P<rank>\d{1,9}))?"  # RCCL: the rank in the communicator
)


def recognise(head: bytes) -> bool:
    """Return whether lines of the library's log are in it."""
    return b" NCCL INFO " in head and head.lstrip()[:1] != b"{"


@dataclass
class _Process:
    """What one process says, or one device of it."""

    host: str
    memberships: dict[str, Membership] = field(default_factory=dict)  # by the communicator's address, the latest
    seen: set[Membership] = field(default_factory=set)
    calls: list[tuple[Membership | None, Call]] = field(default_factory=list)

    def join(self, pointer: str, rank: str, ranks: str, communicator: str = "") -> Membership | None:
        """Keep what a line says of a communicator; a later one at the same address takes its place."""
        before = self.memberships.get(pointer)
        try:
            joined = Membership(communicator, int(rank), int(ranks))
        except ValueError:
            return before
        if before is None or communicator or (before.rank, before.ranks) != (joined.rank, joined.ranks):
            self.memberships[pointer] = joined
            self.seen.add(joined)
        return self.memberships[pointer]


def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
    """Return a trace for each process (and device) that calls; raise UsageError where none does."""
    processes: dict[tuple[str, str, str], _Process] = {}
    unknown, whole_seconds = 0, False
    for raw in iter(lambda: stream.readline(_LONGEST_LINE), b""):
        line = _LINE.search(raw.decode("utf-8", "replace")) if b" NCCL INFO " in raw else None
        if line is None:
            unknown += b" NCCL INFO " in raw and b": opCount " in raw
            continue
        process = processes.setdefault((line["host"], line["pid"], line["device"]), _Process(line["host"]))
        if call := _CALL.match(line["message"]):
            joined = process.memberships.get(call["pointer"])
            if joined is None and call["rank"]:
                joined = process.join(call["pointer"], call["rank"], call["ranks"])
            process.calls.append((joined, _call(call, line)))
            whole_seconds |= bool(line["second"]) and not line["fraction"]
        elif member := _MEMBERSHIP.search(line["message"]):
            process.join(member["pointer"], member["rank"], member["ranks"], member["id"] or "")
        else:
            unknown += ": opCount " in line["message"]
    traces = _traces(processes, source)
    if not traces:
        raise UsageError(
            f"{source} is a log of NCCL without a collective in it: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"
        )
    notes = []
    if unknown:
        notes.append(f"{unknown} lines look like collectives in a form that is not known here, and are left out")
    if whole_seconds:
        notes.append('its times are whole seconds, and are left out: set NCCL_DEBUG_TIMESTAMP_FORMAT="[%F %T.%6f] "')
    return [replace(trace, notes=(*trace.notes, *notes)) for trace in traces]


def _call(found: re.Match[str], line: re.Match[str]) -> Call:
    operation = _words.operation(found["name"])
    ranks, dtype = int(found["ranks"]), int(found["dtype"])
    given, got = _nccl.counts(operation, int(found["count"]), ranks)
    return Call(
        operation=operation,
        group_size=ranks,
        elements_in=given,
        elements_out=got,
        dtype=_nccl.DTYPES[dtype] if dtype < len(_nccl.DTYPES) else "",
        root=int(found["root"]) if operation in ROOTED else None,  # in the communicator, until its ranks are known
        peer=int(found["root"]) if operation in POINT_TO_POINT else None,
        enqueued=_time(line["second"], line["fraction"]),
        name=found["name"],
    )


def _time(second: str | None, fraction: str | None) -> int | None:
    """Return ns since 1970 by the clock on the wall, whose zone no log tells; None of whole seconds."""
    if not second or not fraction:
        return None
    try:
        return int(datetime.fromisoformat(f"{second}+00:00").timestamp()) * 10**9 + int(fraction.ljust(9, "0"))
    except ValueError:  # the 31st of February
        return None


def _traces(processes: Mapping[tuple[str, str, str], _Process], source: str) -> list[Trace]:
    calling = [process for process in processes.values() if process.calls]
    places = [_nccl.place(process.seen) for process in calling]
    told = [place.rank for place in places if place]
    unique = len(set(told)) == len(told)  # else no communicator spans the job, and the largest are parts of it
    groups = _nccl.groups(process.seen for process in processes.values()) if unique else {}
    traces = []
    for process, place in zip(calling, places, strict=True):
        calls = tuple(_named(call, joined, groups) for joined, call in process.calls)
        notes = []
        if place is None or not unique:
            reason = "no communicator spans the job" if told else "no line says which it is"
            notes.append(f"its rank is not known: {reason}; NCCL_DEBUG_SUBSYS=INIT,COLL is needed on all ranks")
            place = None
        if any(call.group is None for call in calls):
            notes.append("of some communicators the log does not hold who is in them")
        if names := sorted({call.name for call in calls if call.operation == UNKNOWN}):
            notes.append(f"operations not known here: {', '.join(names)[:80]}")
        if all(call.enqueued is None for call in calls):
            notes.append("the log holds no times: calls are matched and counted, and nothing can be said of waiting")
        else:
            notes.append("its times are when the host called, in the time zone of the host")
        rank, ranks = (place.rank, place.ranks) if place else (None, None)
        traces.append(Trace(source, NAME, rank, ranks, host=process.host, calls=calls, notes=tuple(notes)))
    return sorted(traces, key=lambda trace: -1 if trace.rank is None else trace.rank)


def _named(call: Call, joined: Membership | None, groups: Mapping[str, tuple[int, ...]]) -> Call:
    """Return a call with the ranks of the job in place of those of its communicator."""
    name = joined.communicator if joined else ""
    group = groups.get(name)
    if group is not None and len(group) != call.group_size:  # before 2.17 no communicator has a name
        group = None
    return replace(call, group=group, group_name=name, root=_of(group, call.root), peer=_of(group, call.peer))


def _of(group: tuple[int, ...] | None, local: int | None) -> int | None:
    return group[local] if group is not None and local is not None and 0 <= local < len(group) else None
