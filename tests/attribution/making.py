"""Traces as tests make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commbench.attribution.classes import COMPUTE_WORK, EVIDENCE, MEMORY_WORK, NAME, NEITHER, Classes
from commbench.attribution.trace import KERNEL, Call, Operator, Spans, Trace


@dataclass(frozen=True)
class Span:
    """One span, in words; `work` and what follows is what `classes` says of it."""

    start: int
    end: int
    kind: int = KERNEL
    name: str = "kernel"
    lane: int = 0
    launched: int | None = None
    operator: Operator | None = None
    call: int = -1
    work: int = NEITHER
    evidence: str = NAME
    latency_bound: bool = False


def trace(spans: Sequence[Span], calls: Sequence[Call] = (), **facts: Any) -> Trace:
    """Return a trace of spans in any order; `facts` are further fields."""
    spans = sorted(spans, key=lambda span: span.start)
    names = list(dict.fromkeys(span.name for span in spans))
    operators = list(dict.fromkeys(span.operator for span in spans if span.operator is not None))
    columns = Spans(
        start=np.array([span.start for span in spans], dtype=np.int64),
        end=np.array([span.end for span in spans], dtype=np.int64),
        kind=np.array([span.kind for span in spans], dtype=np.uint8),
        name=np.array([names.index(span.name) for span in spans], dtype=np.int32),
        lane=np.array([span.lane for span in spans], dtype=np.int32),
        launched=np.array([span.start if span.launched is None else span.launched for span in spans], dtype=np.int64),
        operator=np.array(
            [-1 if span.operator is None else operators.index(span.operator) for span in spans], dtype=np.int32
        ),
        call=np.array([span.call for span in spans], dtype=np.int32),
    )
    given: dict[str, Any] = {"source": "made.json", "format": "made", **facts}
    return Trace(spans=columns, calls=tuple(calls), names=tuple(names), operators=tuple(operators), **given)


def classes(spans: Sequence[Span]) -> Classes:
    """Return the classes that spans say of themselves, in the order that `trace` gives them."""
    spans = sorted(spans, key=lambda span: span.start)
    return Classes(
        work=np.array([span.work for span in spans], dtype=np.uint8),
        evidence=np.array([EVIDENCE.index(span.evidence) for span in spans], dtype=np.uint8),
        latency_bound=np.array([span.latency_bound for span in spans], dtype=np.bool_),
    )


__all__ = ["COMPUTE_WORK", "MEMORY_WORK", "NEITHER", "Span", "classes", "trace"]
