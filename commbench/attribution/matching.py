"""Which calls of the ranks are one and the same collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.attribution.trace import Trace


@dataclass(frozen=True)
class Meeting:
    """One collective, or one message, as all ranks saw it whose traces are there."""

    operation: str
    group: tuple[int, ...]  # ranks of the job; of a message the sender, then the receiver
    group_name: str
    number: int  # among the group's, from 0
    calls: Mapping[int, int]  # place of the trace -> place in its calls
    size: int | None  # bytes, as nccl-tests counts them: the larger of what a rank sends in all and receives in all
    dtype: str
    root: int | None
    coalesced: bool = False
    missing: tuple[int, ...] = ()  # ranks of the group without a trace


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


def match(traces: Sequence[Trace]) -> Matches:
    """Match the calls of traces of one job, one trace a rank."""
    raise NotImplementedError
