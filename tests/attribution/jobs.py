"""Traces of several ranks, in memory: their calls, with whatever a test wants to differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.attribution.trace import Call, Trace

MS = 1_000_000  # ns
WORLD = (0, 1, 2, 3)


def call(start: int | None = 0, end: int | None = 0, **changes: Any) -> Call:
    """An all-reduce of 1024 floats by the world of four ranks; times in ns."""
    fields: dict[str, Any] = {
        "operation": "allreduce",
        "group": WORLD,
        "group_name": "world",
        "elements_in": 1024,
        "elements_out": 1024,
        "dtype": "float32",
        "start": start,
        "end": end,
    } | changes
    if fields["group"] is not None:
        fields.setdefault("group_size", len(fields["group"]))
    return Call(**fields)


def trace(rank: int | None, calls: Sequence[Call] = (), **changes: Any) -> Trace:
    """The trace of one of four ranks of one host."""
    fields: dict[str, Any] = {
        "source": f"rank{rank}.json",
        "format": "made up",
        "rank": rank,
        "ranks": len(WORLD),
        "host": "here",
        "unix": True,
        "calls": tuple(calls),
    }
    return Trace(**fields | changes)


def world(*columns: Sequence[Call], **changes: Any) -> list[Trace]:
    """The traces of as many ranks as there are lists of calls, all of the job."""
    return [trace(rank, calls, **{"ranks": len(columns)} | changes) for rank, calls in enumerate(columns)]
