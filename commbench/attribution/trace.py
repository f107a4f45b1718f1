"""What the trace of one rank says, whichever tool wrote it: spans of work, calls of collectives, marks of steps.

All times are whole nanoseconds: since 1970 where the file tells (`Trace.unix`), else since an instant of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

# What a span is (`Spans.kind`). The first three are work of a device, the others are of the host.
KERNEL, MEMCPY, MEMSET, OPERATOR, RUNTIME, SYNC, ANNOTATION = range(7)
DEVICE_KINDS = (KERNEL, MEMCPY, MEMSET)

# What a call does (`Call.operation`): commbench's names of collectives, and what has none among them.
SYNCHRONISING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")  # no rank ends before all began
ROOTED = ("broadcast", "reduce", "gather", "scatter")
MESSAGE = "sendrecv"  # both at once; and of what two ranks did together, one sending and the other receiving
POINT_TO_POINT = ("send", "recv", MESSAGE)
UNKNOWN = "unknown"  # communication for certain, but nothing tells which

# By what a call was recognised (`Call.evidence`), the best first.
BY_ARGUMENTS, BY_NAME = "arguments", "name"

# What a note begins with that names files, or traces, of no use.
LEFT_OUT = "left out: "

# The `Call.dtype` of files that count bytes and say nothing of their type.
BYTES = "bytes"


@dataclass(frozen=True)
class Operator:
    """What a framework's operator was asked: its name and its inputs, each of them once in a trace."""

    name: str  # aten::mm
    shapes: tuple[tuple[int, ...], ...] = ()  # of its inputs; () for what is no tensor
    dtypes: tuple[str, ...] = ()  # as the trace spells them
    values: tuple[str, ...] = ()  # of what is no tensor, as the trace spells it: "[2, 2]"; "" for a tensor


@dataclass(frozen=True)
class Spans:
    """Work in columns of one length, sorted by start."""

    start: Times  # ns
    end: Times  # ns, never before its start
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]  # a place in `Trace.names`
    lane: NDArray[np.int32]  # a number for each thread and stream
    launched: Times  # ns: when the host launched it; its start where nobody tells
    operator: NDArray[np.int32]  # a place in `Trace.operators` of the operator that it is or serves; -1: not told
    call: NDArray[np.int32]  # a place in `Trace.calls` of the communication that it is; -1: none

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def none(cls) -> Spans:
        """Return no spans."""
        empty = np.zeros(0, dtype=np.int64)
        few = np.zeros(0, dtype=np.int32)
        return cls(empty, empty, np.zeros(0, dtype=np.uint8), few, few, empty, few, few)


@dataclass(frozen=True)
class Call:
    """One collective or point-to-point operation, as one rank saw it. None: not told."""

    operation: str
    group: tuple[int, ...] | None = None  # ranks of the job, in the group's order
    group_name: str = ""
    group_size: int | None = None
    sequence: int | None = None  # its number among its group's, where the file has one
    elements_in: int | None = None  # of this rank
    elements_out: int | None = None
    dtype: str = ""  # float32, bfloat16, ... : commbench's names where there is one; BYTES
    root: int | None = None  # a rank of the job
    peer: int | None = None  # of a send or a receive, a rank of the job
    enqueued: int | None = None  # ns: when the host asked for it
    start: int | None = None  # ns: when it began to run, which is when this rank arrived
    end: int | None = None  # ns
    duration: int | None = None  # ns: how long it ran, its waiting too, where a file measured that by itself
    coalesced: bool = False  # several operations in one: only their skew means something
    evidence: str = BY_ARGUMENTS
    name: str = ""  # of what was seen: a kernel, an annotation

    @property
    def arrival(self) -> int | None:
        """When this rank arrived (ns): its start, or when it was asked for, where a file tells no more."""
        return self.enqueued if self.start is None else self.start


@dataclass(frozen=True)
class Step:
    """The mark of one training step on the host."""

    number: int
    start: int  # ns
    end: int  # ns


@dataclass(frozen=True)
class Trace:
    """One rank's trace."""

    source: str  # the file
    format: str  # the reader's name
    rank: int | None = None
    ranks: int | None = None  # of the job
    host: str = ""
    device: str = ""  # "cuda", "hip" or "cpu": where work ran; "": not told
    model: str = ""  # of the device, by its vendor's name: NVIDIA A100-SXM4-80GB
    unix: bool = False  # times are since 1970
    job: str = ""  # what traces of one job have in common, where the file has such a thing
    spans: Spans = field(default_factory=Spans.none)
    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()  # in order of time
    names: tuple[str, ...] = ()
    operators: tuple[Operator, ...] = ()
    whole: bool = True  # the file did not break off
    notes: tuple[str, ...] = ()  # what was clipped, left out or not understood, each in a sentence

    @property
    def on_device(self) -> bool:
        """Whether work is what ran on a device, so also where nobody tells: operators may only have launched it."""
        return self.device != "cpu"

    @property
    def label(self) -> str:
        """How the rank is called on screen."""
        return f"rank {self.rank}" if self.rank is not None else self.source
