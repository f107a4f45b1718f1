"""Tests for commbench.attribution.layers: against each instant of a short time labelled by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.classes import COMPUTE_WORK, COUNTERS, EVIDENCE, MEMORY_WORK, NAME, NEITHER, NONE, ROOFLINE
from commbench.attribution.layers import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    LAYERS,
    MEMORY,
    WAITING,
    Layers,
    Window,
    layers,
    whole,
    windows,
)
from commbench.attribution.trace import ANNOTATION, KERNEL, MEMCPY, OPERATOR, Call, Step, Trace
from commbench.errors import UsageError
from tests.attribution.making import Span, classes, trace

LAST = 40  # of the short time
TIMES = st.tuples(st.integers(0, LAST), st.integers(0, 12)).map(lambda both: (both[0], sum(both)))


def _span(times: tuple[int, int], kind: int, lane: int, work: int, evidence: str, latency: bool) -> Span:
    return Span(*times, kind=kind, lane=lane, work=work, evidence=evidence, latency_bound=bool(work) and latency)


def spans(*kinds: int) -> st.SearchStrategy[list[Span]]:
    work = st.sampled_from((NEITHER, COMPUTE_WORK, MEMORY_WORK))
    lanes, evidence = st.integers(0, 2), st.sampled_from(EVIDENCE)
    return st.lists(st.builds(_span, TIMES, st.sampled_from(kinds), lanes, work, evidence, st.booleans()), max_size=10)


CALLS = st.lists(TIMES.map(lambda times: Call("allreduce", start=times[0], end=times[1])), max_size=4)
WAITS = st.dictionaries(st.integers(0, 3), st.integers(-5, LAST + 15), max_size=4)
WINDOWS = st.lists(
    st.tuples(st.integers(-3, LAST), st.integers(1, 20)).map(lambda both: Window(0, both[0], sum(both))), max_size=3
)


def active(spans: Sequence[Span], instant: int, on_device: bool) -> list[Span]:
    """What is worked on at an instant: all on a device, else of each thread what it began last."""
    now = [span for span in spans if span.start <= instant < span.end]
    if on_device:
        return [span for span in now if span.kind in (KERNEL, MEMCPY)]
    return [max((span for span in now if span.lane == lane), key=_innermost) for lane in {span.lane for span in now}]


def _innermost(span: Span) -> tuple[int, int]:
    return span.start, -span.end


def label(now: Sequence[Span], calls: Sequence[tuple[int, Call]], instant: int, waits: Mapping[int, int]) -> str:
    """The rules, one after another."""
    work = {span.work for span in now}
    if COMPUTE_WORK in work:
        return COMPUTE
    if MEMORY_WORK in work:
        return MEMORY
    if any(place not in waits or instant >= waits[place] for place, _ in calls):
        return COMMUNICATION
    return WAITING if calls else HOST


def check(one: Layers, spans: Sequence[Span], calls: Sequence[Call], waits: Mapping[int, int], device: bool) -> None:
    """Every field of a window's layers against what holds at each of its instants."""
    expected: Counter[str] = Counter()
    evidence: Counter[str] = Counter()
    labels = []
    for instant in range(one.window.start, one.window.end):
        now = active(spans, instant, device)
        under_way = [(i, call) for i, call in enumerate(calls) if (call.start or 0) <= instant < (call.end or 0)]
        labels.append(label(now, under_way, instant, waits))
        works = labels[-1] in (COMPUTE, MEMORY)
        if works:
            kind = COMPUTE_WORK if labels[-1] == COMPUTE else MEMORY_WORK
            evidence[min((span.evidence for span in now if span.work == kind), key=EVIDENCE.index)] += 1
            expected["latency"] += all(span.latency_bound for span in now if span.work != NEITHER)
        expected["called"] += bool(under_way)
        expected["hidden"] += bool(under_way) and works
        expected["exposed"] += bool(under_way) and not works
        transfers = any(place in waits and instant >= waits[place] for place, _ in under_way)
        expected["unsplit"] += labels[-1] == COMMUNICATION and not transfers
    assert [LAYERS[place] for place in np.repeat(one.labels, np.diff(one.edges))] == labels
    assert [one.edges[0], one.edges[-1]] == [one.window.start, one.window.end] and np.all(np.diff(one.edges) > 0)
    assert {layer: one.total(layer) for layer in LAYERS} == {layer: labels.count(layer) for layer in LAYERS}
    assert (one.hidden, one.communication, one.exposed) == tuple(expected[x] for x in ("hidden", "called", "exposed"))
    assert (one.latency_bound, one.unsplit) == (expected["latency"], expected["unsplit"])
    assert one.evidence == evidence


@given(spans(KERNEL, MEMCPY, OPERATOR), CALLS, WAITS, WINDOWS)
def test_each_instant_of_a_device_has_the_first_layer_whose_rule_holds(
    spans: list[Span], calls: list[Call], waits: dict[int, int], windows: list[Window]
) -> None:
    found = layers(trace(spans, calls, device="cuda"), windows, waits, classes(spans))
    assert [one.window for one in found] == windows
    for one in found:
        check(one, spans, calls, waits, device=True)


def _distinct(spans: list[Span]) -> list[Span]:
    """Spans of a thread that begin at different times: of two that begin at once nobody knows which is inside."""
    return list({(span.lane, span.start): span for span in spans}.values())


@given(spans(OPERATOR, ANNOTATION).map(_distinct), CALLS, WAITS, WINDOWS)
def test_without_a_device_each_thread_works_on_what_it_began_last(
    spans: list[Span], calls: list[Call], waits: dict[int, int], windows: list[Window]
) -> None:
    for one in layers(trace(spans, calls, device="cpu"), windows, waits, classes(spans)):
        check(one, spans, calls, waits, device=False)
