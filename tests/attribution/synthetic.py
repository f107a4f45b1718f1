"""Training jobs of which the truth is known: what each rank does is written down, and what it records follows.

A rank carries out its program on one stream of compute; collectives run on a stream a group, messages on one of their
own. A collective begins on a rank when the rank asks for it and its stream is free, and ends everywhere `transfer`
after the last one began. All times are whole microseconds, so that the true layers can be counted microsecond by
microsecond, without any algebra of intervals.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from commbench.attribution.classes import COMPUTE_WORK, MEMORY_WORK, NEITHER, Classes
from commbench.attribution.layers import COMMUNICATION, COMPUTE, HOST, LAYERS, MEMORY, WAITING
from commbench.attribution.trace import Call, Step, Trace
from tests.attribution import making

US = 1000  # ns
BEGIN = 1_796_000_000_000_000 * US  # ns since 1970: when the job starts, on the first rank's clock


@dataclass(frozen=True)
class Work:
    """What a rank does alone; nothing is active where it is the host's."""

    layer: str  # COMPUTE, MEMORY or HOST
    us: int


@dataclass(frozen=True)
class Collective:
    """What a group does together; overlapped: the rank goes on meanwhile, until an Await."""

    group: str
    transfer: int  # us
    operation: str = "allreduce"
    elements: int = 1 << 20  # of a rank's larger side
    overlapped: bool = False


@dataclass(frozen=True)
class Await:
    """Where the rank goes on only when its overlapped collectives of a group have ended."""

    group: str


@dataclass(frozen=True)
class Message:
    """A message to, or from, another rank of the group "world"."""

    operation: str  # send or recv
    peer: int
    transfer: int  # us; that of the sender counts
    elements: int = 1 << 16


Op = Work | Collective | Await | Message
Program = Sequence[Sequence[Op]]  # of each step


@dataclass(frozen=True)
class Job:
    """Programs of the ranks, their groups, hosts and clocks."""

    programs: Sequence[Program]
    groups: Mapping[str, tuple[int, ...]]
    hosts: Sequence[str] = ()  # one for all where none are given
    offsets: Sequence[int] = ()  # ns, of each rank's clock
    drifts: Sequence[float] = ()  # seconds a second
    ragged: int = 0  # us: by how much ends of collectives are scattered
    seed: int = 0


@dataclass
class Event:
    """What a rank did from `start` until `end`, in us since the job began; `until` it waited."""

    name: str
    stream: int
    asked: int
    start: int
    end: int = -1
    layer: str = ""  # of work
    op: Collective | Message | None = None
    until: int = -1


@dataclass
class Run:
    """A job as it went."""

    job: Job
    events: list[list[Event]]  # of each rank, in the order in which it asked for them
    marks: list[list[tuple[int, int]]]  # of each rank's steps, us

    def clock(self, rank: int, time: float) -> int:
        """Return what a rank's clock shows (ns) some us after the job began."""
        offset = self.job.offsets[rank] if self.job.offsets else 0
        drift = self.job.drifts[rank] if self.job.drifts else 0.0
        return BEGIN + round(time * US * (1 + drift)) + offset

    def host(self, rank: int) -> str:
        return self.job.hosts[rank] if self.job.hosts else "node0"

    def windows(self, rank: int) -> list[tuple[int, int]]:
        """Return from when until when (us) each step is: from its first work to that of the next one."""
        work = [[e for e in self.events[rank] if begin <= e.asked < end] for begin, end in self.marks[rank]]
        begins = [min(event.start for event in of) for of in work]
        last = max([self.marks[rank][-1][1], *(event.end for event in work[-1])])
        return list(zip(begins, [*begins[1:], last], strict=True))

    def truth(self, rank: int) -> list[dict[str, int]]:
        """Return the ns of each layer in each step, counted microsecond by microsecond."""
        length = max(max(event.end for event in self.events[rank]), self.marks[rank][-1][1])
        labels = np.full(length, LAYERS.index(HOST))
        for layer in (WAITING, COMMUNICATION, MEMORY, COMPUTE):  # what comes later stands
            for event in self.events[rank]:
                if event.layer == layer:
                    labels[event.start : event.end] = LAYERS.index(layer)
                elif event.op is not None and layer == WAITING:
                    labels[event.start : event.until] = LAYERS.index(layer)
                elif event.op is not None and layer == COMMUNICATION:
                    labels[event.until : event.end] = LAYERS.index(layer)
        return [
            {layer: int((labels[begin:end] == place).sum()) * US for place, layer in enumerate(LAYERS)}
            for begin, end in self.windows(rank)
        ]


@dataclass
class _Meeting:
    members: Sequence[int]
    arrived: dict[int, Event] = field(default_factory=dict)

    def resolve(self, run: Run, draw: random.Random) -> None:
        """End it, once all are there."""
        if len(self.arrived) < len(self.members):
            return
        last = max(event.start for event in self.arrived.values())
        lengths = [event.op.transfer for event in self.arrived.values() if event.op is not None]
        for event in self.arrived.values():
            event.until = last
            event.end = last + max(lengths) + draw.randint(0, run.job.ragged)


def run(job: Job) -> Run:
    """Carry out a job: each rank goes on as far as it can, over and over."""
    ranks = range(len(job.programs))
    it = Run(job, [[] for _ in ranks], [[] for _ in ranks])
    walkers = [_Rank(it, rank, program) for rank, program in enumerate(job.programs)]
    meetings: dict[Any, _Meeting] = {}
    draw = random.Random(job.seed)
    while any(walker.todo for walker in walkers):
        moved = [walker.advance(meetings, draw) for walker in walkers]
        assert any(moved), "the ranks wait for one another for ever"
    return it


class _Rank:
    """One rank on its way through its program."""

    def __init__(self, it: Run, rank: int, program: Program) -> None:
        self.run, self.rank, self.now, self.begun = it, rank, 0, 0
        self.todo: list[Op | None] = [op for step in program for op in (*step, None)]  # None: the step ends
        self.streams: dict[str, Event] = {}  # the last of each
        self.counts: Counter[Any] = Counter()
        self.blocked: Event | None = None  # what it waits for

    def advance(self, meetings: dict[Any, _Meeting], draw: random.Random) -> bool:
        """Go on until something is not known yet; return whether that was any way."""
        before = len(self.todo), self.blocked
        while self.todo and self.step(self.todo[0], meetings, draw):
            self.todo.pop(0)
        return (len(self.todo), self.blocked) != before

    def step(self, op: Op | None, meetings: dict[Any, _Meeting], draw: random.Random) -> bool:
        """Carry out an operation; return whether it is over for the rank."""
        events = self.run.events[self.rank]
        if op is None:
            self.run.marks[self.rank].append((self.begun, self.now))
            self.begun = self.now
        elif isinstance(op, Work):
            if op.layer != HOST:
                name = "ampere_sgemm_128x64_tn" if op.layer == COMPUTE else "vectorized_elementwise_kernel"
                events.append(Event(name, 7, self.now, self.now, self.now + op.us, op.layer))
            self.now += op.us
        elif isinstance(op, Await):
            if (last := self.streams.get(op.group)) is not None:
                self.now = max(self.now, last.end)
                return last.end >= 0
        else:
            return self.meet(op, meetings, draw)
        return True

    def meet(self, op: Collective | Message, meetings: dict[Any, _Meeting], draw: random.Random) -> bool:
        if self.blocked is None:
            stream = op.group if isinstance(op, Collective) else "messages"
            before = self.streams.get(stream)
            if before is not None and before.end < 0:
                return False
            start = self.now if before is None else max(self.now, before.end)
            number = 20 + [*self.run.job.groups, "messages"].index(stream)
            event = Event(_kernel(op), number, self.now, start, op=op)
            self.run.events[self.rank].append(event)
            self.streams[stream] = self.blocked = event
            key, members = _key(op, self.rank, self.run.job)
            meeting = meetings.setdefault((key, self.counts[key]), _Meeting(members))
            self.counts[key] += 1
            meeting.arrived[self.rank] = event
            meeting.resolve(self.run, draw)
        if isinstance(op, Message) or not op.overlapped:
            if self.blocked.end < 0:
                return False
            self.now = self.blocked.end
        self.blocked = None
        return True


def _key(op: Collective | Message, rank: int, job: Job) -> tuple[Any, tuple[int, ...]]:
    """Return by what an operation meets those of other ranks, and whose they are."""
    if isinstance(op, Collective):
        return op.group, job.groups[op.group]
    ends = (rank, op.peer) if op.operation == "send" else (op.peer, rank)
    return ends, ends


def _kernel(op: Collective | Message) -> str:
    words = {"allreduce": "AllReduce_Sum_f32", "allgather": "AllGather", "reducescatter": "ReduceScatter_Sum_f32"}
    return f"ncclDevKernel_{words.get(op.operation, 'SendRecv')}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


# What a rank records


def _elements(op: Collective | Message, n: int) -> tuple[int, int]:
    """Return how many elements a rank puts in and gets out."""
    block = op.elements // n if isinstance(op, Collective) else op.elements
    return {"allgather": (block, block * n), "reducescatter": (block * n, block)}.get(
        op.operation, (op.elements, op.elements)
    )


def trace(run: Run, rank: int) -> tuple[Trace, Classes]:
    """Return a rank's trace without a detour over a file, and the classes of its spans."""
    spans: list[making.Span] = []
    calls: list[Call] = []
    work = {COMPUTE: COMPUTE_WORK, MEMORY: MEMORY_WORK}
    for event in run.events[rank]:
        start, end, asked = (run.clock(rank, time) for time in (event.start, event.end, event.asked))
        spans.append(
            making.Span(
                start,
                end,
                name=event.name,
                lane=event.stream,
                launched=asked,
                call=len(calls) if event.op is not None else -1,
                work=work.get(event.layer, NEITHER),
            )
        )
        if event.op is not None:
            calls.append(_call(run, event, rank))
    steps = tuple(
        Step(number, run.clock(rank, begin), run.clock(rank, end))
        for number, (begin, end) in enumerate(run.marks[rank])
    )
    facts = {"source": f"rank{rank}.json", "rank": rank, "ranks": len(run.events), "host": run.host(rank)}
    made = making.trace(spans, calls, steps=steps, unix=True, device="cuda", **facts)
    return made, making.classes(spans)


def _call(run: Run, event: Event, rank: int) -> Call:
    op = event.op
    assert op is not None
    name = op.group if isinstance(op, Collective) else "world"
    group = run.job.groups[name]
    entering, leaving = _elements(op, len(group))
    return Call(
        op.operation,
        group=group,
        group_name=name,
        group_size=len(group),
        elements_in=None if op.operation == "recv" else entering,
        elements_out=None if op.operation == "send" else leaving,
        dtype="float32",
        peer=op.peer if isinstance(op, Message) else None,
        enqueued=run.clock(rank, event.asked),
        start=run.clock(rank, event.start),
        end=run.clock(rank, event.end),
        name=event.name,
    )


def write(run: Run, folder: Path) -> list[Path]:
    """Write each rank's trace as PyTorch's profiler does on GPUs (2024 and later); return the files."""
    paths = []
    for rank in range(len(run.events)):
        base = BEGIN // 10**9 * 10**9
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(_file(run, rank, base)))
    return paths


def _file(run: Run, rank: int, base: int) -> dict[str, Any]:
    def span(begin: float, end: float) -> dict[str, float]:
        first, last = run.clock(rank, begin) - base, run.clock(rank, end) - base
        return {"ts": first / US, "dur": (last - first) / US}

    events: list[dict[str, Any]] = []
    for number, (begin, end) in enumerate(run.marks[rank]):
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 99, "tid": 99}
        events.append({**mark, **span(begin, end), "args": {"External id": number + 1}})
    for number, event in enumerate(run.events[rank], start=1000):
        args: dict[str, Any] = {"correlation": number, "External id": number}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 99, "tid": 99}
        events.append({**launch, **span(event.asked, event.asked + 0.5), "args": args})
        args = {**args, "device": rank, "context": 1, "stream": event.stream, "grid": [64, 1, 1], "block": [256, 1, 1]}
        if event.op is not None:
            args |= _arguments(run, event.op, rank)
        kernel = {"ph": "X", "cat": "kernel", "name": event.name, "pid": rank, "tid": event.stream}
        events.append({**kernel, **span(event.start, event.end), "args": args})
    ranks = len(run.events)
    groups = [{"pg_name": name, "pg_desc": name, "ranks": list(of)} for name, of in run.job.groups.items()]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": groups},
        "host_name": run.host(rank),
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }


def _arguments(run: Run, op: Collective | Message, rank: int) -> dict[str, Any]:
    names = {"allgather": "_allgather_base", "reducescatter": "_reduce_scatter_base"}
    group = op.group if isinstance(op, Collective) else "world"
    ranks = run.job.groups[group]
    entering, leaving = _elements(op, len(ranks))
    found = {
        "Collective name": names.get(op.operation, op.operation),
        "In msg nelems": entering,
        "Out msg nelems": leaving,
        "Group size": len(ranks),
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": group,
        "Process Group Ranks": str(list(ranks)),
    }
    if isinstance(op, Message):
        ends = (rank, op.peer) if op.operation == "send" else (op.peer, rank)
        found |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
    return found


def write_readings(run: Run, folder: Path, error: int, seed: int = 0) -> list[Path]:
    """Write what each rank read on its clock at the start and the end, off by at most `error` ns; return the files."""
    draw = random.Random(seed)
    end = max(event.end for events in run.events for event in events)
    paths = []
    for rank in range(len(run.events)):
        readings = [
            {
                "local": run.clock(rank, time),
                "common": run.clock(0, time) + (draw.randint(-error, error) if rank else 0),
                "error": error if rank else 0,
            }
            for time in (0, 1, end, end + 1)
        ]
        content = {"format": 1, "rank": rank, "host": run.host(rank), "readings": readings}
        paths.append(folder / f"clock-rank{rank}.json")
        paths[-1].write_text(json.dumps(content))
    return paths
