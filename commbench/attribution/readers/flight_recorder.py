"""PyTorch's Flight Recorder: what one rank's process groups enqueued last, as a pickle or as JSON.

Dump versions 2.x, of torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp. `time_created_ns` is
when the host enqueued a call, since 1970. When a start and an end were discovered is no start and no end: a thread
looks every 100 ms, and can be stuck for longer. A duration lies between two events of the device, its waiting included,
where TORCH_NCCL_ENABLE_TIMING is set. Nothing is judged by `state` and `retired`: on Gloo the first stays "scheduled",
and both differ between the ranks of a run that was well. Gloo also records no sends and receives, and a reduce-scatter
as the all-reduce that it is made of.

A pickle can hold code. This one is put together here from plain values, and what could name, build or fetch anything
else is refused; Python's own loader would also take memory of any size for a file of eight bytes (LONG_BINPUT).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast

from commbench.attribution.readers import _values, _words
from commbench.attribution.trace import POINT_TO_POINT, UNKNOWN, Call, Trace
from commbench.errors import UsageError

NAME = "PyTorch Flight Recorder dump"

_LARGEST = 1 << 26  # bytes: a hundred thousand entries
_MOST_OPCODES = 10_000_000  # of a pickle, each of which may make an object of 64 bytes
_MOST_TENSORS, _MOST_DIMENSIONS = 65536, 64  # of one call: a pickle may name one list a million times
_POINT_TO_POINT = re.compile(
    r"(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$"
)  # nccl:send 0->1, nccl:recv 0<-1: this rank first
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


def recognise(head: bytes) -> bool:
    """Return whether it is a pickle of any kind, or JSON with the recorder's keys."""
    if head[:1] == b"\x80":
        return head[1:2] <= b"\x05"
    return head.lstrip()[:1] == b"{" and (b'"collective_seq_id"' in head or b'"pg_status"' in head)


def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
    """Return the dump's one trace; raise UsageError for a file that is none, or that holds more than plain values."""
    data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise UsageError(f"{source} has more than {_LARGEST >> 20} MiB, which no Flight Recorder dump has")
    dump = _unpickled(data, source) if data[:1] == b"\x80" else _parsed(data, source)
    if not isinstance(dump, dict) or not {"version", "pg_config", "pg_status"} & dump.keys():
        raise UsageError(f"{source} is no Flight Recorder dump: it has no version, pg_config or pg_status")
    version = dump.get("version")
    version = version[:20] if isinstance(version, str) else "not told"
    if version.partition(".")[0] != "2":
        raise UsageError(f"{source} is a Flight Recorder dump of version {version!r}; known: 2.x")
    return [_trace(dump, source)]


def _trace(dump: Mapping[str, Any], source: str) -> Trace:
    groups = _groups(dump.get("pg_config"))
    calls, broken, first = _calls(dump.get("entries", []), groups)
    rank, notes = _rank(groups, calls, source)
    if not calls:
        notes.append("the dump holds no call: set TORCH_FR_BUFFER_SIZE, and dump after some communication")
    if broken:
        notes.append(f"{broken} entries are not as the recorder writes them, and are left out")
    if first:
        notes.append(f"the {first} calls before these were overwritten: set a larger TORCH_FR_BUFFER_SIZE")
    if calls and all(call.duration is None for call in calls):
        notes.append("it holds when the host enqueued a call, not when it ran: its skew can be told, its wait cannot")
    if any(call.name.startswith("gloo:") for call in calls):
        notes.append("Gloo records no sends and receives, and reduce-scatters as all-reduces")
    world = next((ranks for description, ranks in groups.values() if description == "default_pg"), ())
    return Trace(source, NAME, rank, len(world) or None, unix=True, calls=tuple(calls), notes=tuple(notes))


def _groups(config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return description and ranks of each group by its name; without those of which no ranks are told (Gloo)."""
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        told = group.get("ranks") if isinstance(group, dict) else None
        words: Any = re.findall(r"\d{1,9}", told) if isinstance(told, str) else told
        try:
            ranks = tuple(int(word) for word in words)
        except _BROKEN:
            continue
        if ranks and len(set(ranks)) == len(ranks):
            found[name] = group.get("desc", ""), ranks
    return found


def _rank(
    groups: Mapping[str, tuple[str, tuple[int, ...]]], calls: Sequence[Call], source: str
) -> tuple[int | None, list[str]]:
    """Return the rank, which no dump states: who is in all its groups, else who sends, else the name; and notes."""
    members = [set(ranks) for _, ranks in groups.values()]
    candidates = set.intersection(*members) if members else set()
    if len(candidates) == 1:
        return candidates.pop(), []
    senders = set()
    for call in calls:
        found = _POINT_TO_POINT.search(call.name)
        if found and call.group and int(found[1]) < len(call.group):
            senders.add(call.group[int(found[1])])
    if len(senders) == 1:
        return senders.pop(), []
    named = _values.rank_in_name(source, last=True)
    if named is None:
        return None, ["nothing tells its rank: give the file a name that ends in it, such as rank3.json"]
    if candidates and named not in candidates:
        return None, [f"its name says rank {named}, which is in none of its groups: the rank is not known"]
    return named, [f"rank {named} is taken from the file's name"]


def _calls(entries: Any, groups: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[list[Call], int, int]:
    """Return the calls, how many entries are broken, and how many were overwritten before the first one."""
    found: dict[tuple[str, bool, int], list[Call]] = {}
    broken, first = 0, None
    for entry in entries if isinstance(entries, list) else ():
        try:
            key, call = _call(entry, groups)
            record = _values.whole(entry["record_id"])
        except _BROKEN:
            broken += 1
            continue
        first = record if first is None else min(first, record)
        found.setdefault(key, []).append(call)
    calls = [call for launched in found.values() for call in _coalesced(launched)]
    return sorted(calls, key=lambda call: call.enqueued or 0), broken, first or 0


def _call(
    entry: Mapping[str, Any], groups: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[tuple[str, bool, int], Call]:
    """Return what an entry was launched with (group, kind, number), and its call."""
    name = _values.text(entry["profiling_name"])
    group_name, description = map(_values.text, entry["process_group"])
    group = groups.get(group_name, ("", None))[1]
    peers = _POINT_TO_POINT.search(name)
    between = bool(entry.get("is_p2p")) or peers is not None
    sequence = _values.whole(entry["p2p_seq_id" if between else "collective_seq_id"])
    peer = None
    if peers is not None:
        local = int(peers[2])
        peer = group[local] if group else local if description == "default_pg" else None
    types = entry.get("input_dtypes") or entry.get("output_dtypes")
    duration = entry.get("duration_ms")
    call = Call(
        operation=_words.operation(name.partition(" ")[0]),
        group=group,
        group_name=group_name if description in ("", "undefined") else f"{group_name} ({description})",
        group_size=len(group) if group else None,
        sequence=None if between else sequence,  # a pair's numbers differ: each side counts all that it sends
        elements_in=_elements(entry["input_sizes"]),
        elements_out=_elements(entry["output_sizes"]),
        dtype=_words.dtype(_values.text(types[0])) if types else "",
        peer=peer,
        enqueued=_values.whole(entry["time_created_ns"]),
        duration=None if duration is None else _values.whole(round(duration * 1e6)),
        name=name,
    )
    return (group_name, between, sequence), call


def _elements(sizes: Sequence[Sequence[int]]) -> int | None:
    """Return the elements of tensors of these shapes; None of no tensor."""
    if len(sizes) > _MOST_TENSORS or any(len(shape) > _MOST_DIMENSIONS for shape in sizes):
        raise ValueError
    return sum(math.prod(map(_values.whole, shape)) for shape in sizes) if sizes else None


def _coalesced(launched: Sequence[Call]) -> Sequence[Call]:
    """Return what was launched under one number: a call, or several in one, which an entry without an operation ends.

    Of collectives one call stands for all of them. Sends and receives stay apart, since each has a peer of its own.
    """
    if len(launched) == 1:
        return [replace(one, coalesced="coalesced" in one.name) for one in launched]
    members = [one for one in launched if one.operation != UNKNOWN] or list(launched)
    if all(one.operation in POINT_TO_POINT for one in members):
        return [replace(one, coalesced=len(members) > 1) for one in members]
    same = len({one.operation for one in members}) == 1 and len({one.dtype for one in members}) == 1
    durations = [one.duration for one in launched if one.duration is not None]
    return [
        replace(
            members[0],
            operation=members[0].operation if same else UNKNOWN,
            elements_in=_sum(one.elements_in for one in members) if same else None,
            elements_out=_sum(one.elements_out for one in members) if same else None,
            dtype=members[0].dtype if same else "",
            enqueued=min(one.enqueued or 0 for one in members),
            duration=max(durations, default=None),
            coalesced=True,
        )
    ]


def _sum(values: Any) -> int | None:
    told = list(values)
    return None if None in told else sum(told)


def _parsed(data: bytes, source: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not whole: {str(error)[:80]}; copy the file again") from None


_ARGUMENTS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMING = frozenset(("GLOBAL", "STACK_GLOBAL", "INST"))


def _unpickled(data: bytes, source: str) -> Any:
    """Return the plain values of a pickle: dictionaries, lists, tuples, strings, numbers, None."""
    stack: list[Any] = []
    import pickletools

    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        taken = stack[start:]
        del stack[start:]
        return taken

    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            name, key = opcode.name, cast(int, argument)
            if name in _ARGUMENTS:
                stack.append(argument)
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[key])
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[key] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name == "EMPTY_DICT":
                stack.append({})
            elif name == "EMPTY_LIST":
                stack.append([])
            elif name == "MARK":
                marks.append(len(stack))
            elif name == "SETITEMS":
                taken = since_mark()
                _set(stack[-1], taken)
            elif name == "SETITEM":
                taken = [stack.pop(-2), stack.pop()]
                _set(stack[-1], taken)
            elif name == "APPENDS":
                taken = since_mark()
                stack[-1].extend(taken)
            elif name == "APPEND":
                taken = [stack.pop()]
                stack[-1].extend(taken)
            elif name == "TUPLE":
                stack.append(tuple(since_mark()))
            elif name in _TUPLES:
                taken = [stack.pop() for _ in range(_TUPLES[name])]
                stack.append(tuple(reversed(taken)))
            elif name == "STOP":
                return stack[-1]
            elif name not in ("PROTO", "FRAME"):
                named = stack[-2:] if name == "STACK_GLOBAL" else str(argument or "").split()
                names = ".".join(one for one in named if isinstance(one, str))[:80]
                what = f"names {names!r}" if name in _NAMING else f"has the opcode {name}"
                raise UsageError(
                    f"{source} {what}: a Flight Recorder dump holds plain values alone, "
                    "and a pickle that holds more can run any code; it was not loaded"
                )
            if number > _MOST_OPCODES:
                raise UsageError(f"{source} has more than {_MOST_OPCODES:,} opcodes, which no Flight Recorder dump has")
    except _BROKEN as error:
        raise UsageError(f"{source} is no whole pickle: {str(error)[:80]!r}; copy the file again") from None
    raise UsageError(f"{source} is no whole pickle: it has no end; copy the file again")


def _set(target: dict[str, Any], taken: Sequence[Any]) -> None:
    keys = taken[::2]
    if not isinstance(target, dict) or not all(type(key) in (str, int) for key in keys):
        raise ValueError("a key is neither text nor a number")
    target.update(zip(keys, taken[1::2], strict=True))
