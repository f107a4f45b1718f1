"""Tests for commbench.attribution.layers: against each instant of a short time labelled by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.classes import COMPUTE_WORK, EVIDENCE, MEMORY_WORK, NEITHER, ROOFLINE
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
    spans: list[Span], calls: list[Call], waits: dict[int, int], wanted: list[Window]
) -> None:
    found = layers(trace(spans, calls, device="cuda"), wanted, waits, classes(spans))
    assert [one.window for one in found] == wanted
    for one in found:
        check(one, spans, calls, waits, device=True)


def _distinct(spans: list[Span]) -> list[Span]:
    """Spans of a thread that begin at different times: of two that begin at once nobody knows which is inside."""
    return list({(span.lane, span.start): span for span in spans}.values())


@given(spans(OPERATOR, ANNOTATION).map(_distinct), CALLS, WAITS, WINDOWS)
def test_without_a_device_each_thread_works_on_what_it_began_last(
    spans: list[Span], calls: list[Call], waits: dict[int, int], wanted: list[Window]
) -> None:
    for one in layers(trace(spans, calls, device="cpu"), wanted, waits, classes(spans)):
        check(one, spans, calls, waits, device=False)


ALL = Window(None, 0, LAST + 15)


def totals(spans: Sequence[Span], calls: Sequence[Call], waits: Mapping[int, int], window: Window = ALL) -> list[int]:
    (one,) = layers(trace(spans, calls, device="cuda"), [window], waits, classes(spans))
    facts = [one.hidden, one.communication, one.exposed, one.latency_bound, one.unsplit]
    return [one.total(layer) for layer in LAYERS] + facts + [one.evidence.get(name, 0) for name in EVIDENCE]


@given(spans(KERNEL), CALLS, WAITS, st.integers(-1000, 2**60))
def test_a_clock_that_is_set_anew_changes_nothing(
    spans: list[Span], calls: list[Call], waits: dict[int, int], by: int
) -> None:
    moved = [replace(span, start=span.start + by, end=span.end + by) for span in spans]
    late = [replace(call, start=(call.start or 0) + by, end=(call.end or 0) + by) for call in calls]
    window = Window(None, ALL.start + by, ALL.end + by)
    later = {place: until + by for place, until in waits.items()}
    assert totals(moved, late, later, window) == totals(spans, calls, waits)


@given(spans(KERNEL), CALLS, WAITS, st.data())
def test_a_span_cut_in_two_changes_nothing(
    spans: list[Span], calls: list[Call], waits: dict[int, int], data: st.DataObject
) -> None:
    cuts = [data.draw(st.integers(span.start, span.end)) for span in spans]
    pieces = [replace(span, end=cut) for span, cut in zip(spans, cuts, strict=True)]
    pieces += [replace(span, start=cut) for span, cut in zip(spans, cuts, strict=True)]
    assert totals(pieces, calls, waits) == totals(spans, calls, waits)


@given(spans(KERNEL), CALLS, WAITS, TIMES)
def test_more_compute_takes_from_the_other_layers_only(
    spans: list[Span], calls: list[Call], waits: dict[int, int], times: tuple[int, int]
) -> None:
    before = totals(spans, calls, waits)
    after = totals([*spans, Span(*times, work=COMPUTE_WORK)], calls, waits)
    assert after[0] >= before[0] and all(now <= then for now, then in zip(after[1:5], before[1:5], strict=True))
    assert sum(after[:5]) == sum(before[:5]) == ALL.end - ALL.start
    assert after[6] == before[6]  # how long calls were under way


def test_the_rules_in_their_order() -> None:
    calls = [Call("allreduce", start=0, end=50), Call("allreduce", start=70, end=80)]
    spans = [
        Span(0, 10, work=COMPUTE_WORK, evidence=ROOFLINE, latency_bound=True),
        Span(5, 20, work=MEMORY_WORK),
        Span(0, 50, name="ncclDevKernel", call=0),
        Span(70, 80, name="ncclDevKernel", call=1),
    ]
    (one,) = layers(trace(spans, calls, device="cuda"), [Window(3, 0, 100)], {0: 30}, classes(spans))
    assert one.edges.tolist() == [0, 10, 20, 30, 50, 70, 80, 100]
    assert [LAYERS[label] for label in one.labels] == [
        *(COMPUTE, MEMORY, WAITING, COMMUNICATION, HOST, COMMUNICATION, HOST),
    ]
    assert (one.hidden, one.communication, one.exposed, one.unsplit) == (20, 60, 40, 10)
    assert one.latency_bound == 5  # then memory works beside it
    assert one.evidence == {ROOFLINE: 10, "name": 10}


def test_a_call_without_times_is_where_its_spans_are() -> None:
    spans = [Span(10, 20, call=0), Span(30, 35, call=0)]
    (one,) = layers(trace(spans, [Call("allreduce")], device="hip"), [Window(None, 0, 40)], {0: 12}, classes(spans))
    assert (one.total(WAITING), one.total(COMMUNICATION), one.communication) == (2, 13, 15)


def test_of_two_operators_that_begin_at_once_the_shorter_one_is_inside() -> None:
    spans = [
        Span(0, 4, kind=OPERATOR, work=MEMORY_WORK),
        Span(0, 10, kind=OPERATOR, work=COMPUTE_WORK),
    ]
    for those in (spans, spans[::-1]):
        (one,) = layers(trace(those, device="cpu"), [Window(None, 0, 10)], {}, classes(those))
        assert (one.total(MEMORY), one.total(COMPUTE)) == (4, 6)


def test_beside_a_device_what_the_host_asked_for_is_not_yet_communication() -> None:
    spans = [Span(0, 9, kind=OPERATOR, name="record_param_comms", call=0), Span(20, 30, call=0)]
    (one,) = layers(trace(spans, [Call("allreduce")], device="cuda"), [Window(None, 0, 40)], {}, classes(spans))
    assert (one.communication, one.total(HOST)) == (10, 30)


def test_no_window_has_no_layers() -> None:
    assert layers(trace([]), [], {}, classes([])) == ()


def device_steps(*marks: tuple[int, int], work: Sequence[tuple[int, int, int]]) -> list[tuple[int | None, int, int]]:
    """The windows of marks and of work: when it was launched, its start and end."""
    spans = [Span(start, end, launched=launched) for launched, start, end in work]
    steps = tuple(Step(number, *mark) for number, mark in enumerate(marks))
    return [(one.step, one.start, one.end) for one in windows(trace(spans, device="cuda", steps=steps))]


def test_steps_of_a_device_begin_with_the_first_work_they_launched() -> None:
    work = [(10, 30, 50), (90, 100, 140), (120, 150, 160), (190, 200, 260)]
    assert device_steps((0, 100), (100, 200), work=work) == [(0, 30, 150), (1, 150, 260)]


def test_what_was_launched_before_the_first_mark_is_in_no_step_but_by_its_time() -> None:
    assert device_steps((50, 100), work=[(10, 20, 40), (60, 70, 90)]) == [(0, 70, 100)]


def test_steps_between_which_marks_pause_stay_apart() -> None:
    work = [(10, 30, 120), (300, 310, 330), (510, 520, 530)]  # the second is of an evaluation in between
    assert device_steps((0, 100), (500, 600), work=work) == [(0, 30, 120), (1, 520, 600)]


def test_a_step_that_launched_nothing_is_left_out_and_keeps_its_neighbours_apart() -> None:
    work = [(10, 30, 50), (210, 230, 250)]
    assert device_steps((0, 100), (100, 200), (200, 300), work=work) == [(0, 30, 100), (2, 230, 300)]


def test_a_step_never_begins_before_the_step_before_it() -> None:
    work = [(10, 100, 150), (110, 90, 95), (120, 150, 170)]  # another stream goes ahead
    assert device_steps((0, 100), (100, 200), work=work) == [(1, 100, 200)]


def test_without_a_device_the_marks_are_the_windows() -> None:
    steps = (Step(7, 0, 10), Step(8, 12, 20), Step(9, 20, 20))
    made = trace([Span(0, 30, kind=OPERATOR)], device="cpu", steps=steps)
    assert windows(made) == (Window(7, 0, 10), Window(8, 12, 20))


def test_no_mark_no_step() -> None:
    assert windows(trace([Span(0, 3)])) == ()


def test_the_whole_trace_goes_from_the_first_work_to_the_last() -> None:
    spans = [Span(0, 5, kind=OPERATOR), Span(10, 20), Span(12, 90, kind=ANNOTATION)]
    assert whole(trace(spans, [Call("send", start=18, end=33)])) == Window(None, 10, 33)
    assert whole(trace([Span(3, 9, kind=OPERATOR)], device="cpu")) == Window(None, 3, 9)


@pytest.mark.parametrize(
    ("device", "kind", "what"),
    [("cuda", OPERATOR, "work of a device"), ("", OPERATOR, "work of a device"), ("cpu", None, "operator")],
)
def test_a_trace_without_work_is_refused(device: str, kind: int | None, what: str) -> None:
    spans = [] if kind is None else [Span(0, 9, kind=kind)]
    made = trace(spans, [Call("send", enqueued=3)], device=device, notes=("4 events are left out",))
    said = rf"made\.json says of no {what} and of no collective when it ran: record .*; 4 events are left out$"
    with pytest.raises(UsageError, match=said):
        whole(made)


@given(spans(KERNEL, MEMCPY, OPERATOR), CALLS, WAITS)
def test_windows_side_by_side_add_up_to_the_whole(spans: list[Span], calls: list[Call], waits: dict[int, int]) -> None:
    made: Trace = trace(spans, calls)
    parts = [Window(1, 0, 13), Window(2, 13, 14), Window(3, 14, ALL.end)]
    all_of_it, *found = layers(made, [ALL, *parts], waits, classes(spans))
    for layer in LAYERS:
        assert sum(one.total(layer) for one in found) == all_of_it.total(layer)
    assert sum(one.hidden for one in found) == all_of_it.hidden
