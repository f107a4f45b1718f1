"""Waiting told from transfer: by arrivals, by durations, and where neither means anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.clocks import Alignment, align
from commbench.attribution.collectives import Split, split
from commbench.attribution.matching import match
from commbench.attribution.trace import Call, Trace
from tests.attribution.jobs import MS, call, trace, world


def splits(traces: list[Trace], partial: bool = False) -> list[Split]:
    meetings = match(traces, partial).meetings
    alignments = align(traces, {}, meetings)
    return [split(meeting, traces, alignments) for meeting in meetings]


def of(spans: list[tuple[int, int]], **changes: Any) -> Split:
    """The split of one call that these ranks of one host were in from start to end."""
    group = tuple(range(len(spans)))
    (found,) = splits(world(*[[call(start, end, **{"group": group} | changes)] for start, end in spans]))
    return found


def message(send: tuple[int, int], receive: tuple[int, int]) -> Split:
    """The split of one message of rank 0 to rank 1."""
    one = call(*send, operation="send", group=(0, 1), peer=1, elements_out=None)
    two = call(*receive, operation="recv", group=(0, 1), peer=0, elements_in=None)
    (found,) = splits(world([one], [two]))
    return found


# Where all wait for all


def test_each_rank_waits_until_the_last_one_comes() -> None:
    found = of([(0, 110), (40, 110), (90, 110), (100, 110)])
    assert found.wait.tolist() == [100, 60, 10, 0]
    assert found.transfer.tolist() == [10] * 4
    assert found.wait_by_duration is not None and found.wait_by_duration.tolist() == [100, 60, 10, 0]
    assert (found.culprit, found.lateness, found.low_confidence, found.skew_only) == (3, 60, "", False)
    assert found.distinguishable


spans_of_ranks = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=2, max_size=8).map(
    lambda spans: [(start, max(start, max(s for s, _ in spans)) + length) for start, length in spans]
)


@settings(max_examples=40)
@given(spans_of_ranks)
def test_waits_follow_the_definition_and_add_up(spans: list[tuple[int, int]]) -> None:
    found = of(spans)
    start, end = np.array(spans).T
    assert (found.wait == np.clip(start.max() - start, 0, end - start)).all()
    assert (found.wait + found.transfer == end - start).all()
    assert found.wait[start == start.max()].tolist() == [0] * (start == start.max()).sum()
    assert found.wait_by_duration is not None
    assert (found.wait_by_duration == (end - start) - (end - start).min()).all()
    assert found.lateness == max(start) - sorted(start)[(len(start) - 1) // 2]
    assert found.culprit is None or start[found.culprit] == start.max()


@settings(max_examples=40)
@given(spans_of_ranks, st.integers(-(10**15), 10**15))
def test_a_common_shift_of_all_clocks_changes_nothing(spans: list[tuple[int, int]], shift: int) -> None:
    one, two = of(spans), of([(start + shift, end + shift) for start, end in spans])
    assert (one.wait == two.wait).all() and (one.transfer == two.transfer).all()
    assert (one.culprit, one.lateness) == (two.culprit, two.lateness)
    assert (two.arrival - one.arrival == shift).all()


@settings(max_examples=40)
@given(spans_of_ranks, st.integers(-(10**12), 10**12), st.floats(-1e-5, 1e-5))
def test_what_an_alignment_takes_back_changes_nothing_beyond_its_rounding(
    spans: list[tuple[int, int]], offset: int, drift: float
) -> None:
    one = of(spans)
    clock = Alignment("ping-pong", -offset, -drift / (1 + drift), since=offset, error=10, clock="other")
    calls = [call(*(t + offset + round(t * drift) for t in span), group=tuple(range(len(spans)))) for span in spans]
    traces = world(*[[each] for each in calls])
    (meeting,) = match([trace(r, [c], ranks=len(calls), host=str(r)) for r, c in enumerate(calls)]).meetings
    two = split(meeting, traces, [clock] * len(spans))
    assert np.abs(one.wait - two.wait).max() <= 4 and np.abs(one.arrival - two.arrival).max() <= 2


def test_of_two_ranks_one_is_late_by_the_whole_gap() -> None:
    assert of([(0, 50), (30, 50)]).lateness == 30


def test_nobody_is_late_where_all_come_at_once() -> None:
    found = of([(5, 9), (5, 9)])
    assert (found.culprit, found.lateness, found.distinguishable) == (None, 0, False)


def test_of_several_late_ones_nobody_is_named() -> None:
    assert of([(0, 99), (50, 99), (50, 99), (50, 99)]).culprit is None  # the median one is as late


def test_a_call_that_was_asked_for_early_arrives_when_it_begins_to_run() -> None:
    traces = world([call(0, 50, group=(0, 1), enqueued=-900)], [call(30, 50, group=(0, 1), enqueued=-999)])
    (found,) = splits(traces)
    assert found.wait.tolist() == [30, 0]


def test_calls_that_overlap_are_split_each_by_itself() -> None:
    one = [call(0, 100, group=(0, 1)), call(10, 60, group=(0, 1), elements_in=4, elements_out=4)]
    two = [call(80, 100, group=(0, 1)), call(20, 60, group=(0, 1), elements_in=4, elements_out=4)]
    assert [found.wait.tolist() for found in splits(world(one, two))] == [[80, 0], [10, 0]]


# Rooted, messages


@pytest.mark.parametrize("operation", ["broadcast", "scatter"])
def test_all_wait_for_the_root_and_it_for_nobody(operation: str) -> None:
    found = of([(40, 60), (0, 60), (50, 60)], operation=operation, root=0, elements_out=None)
    assert found.wait.tolist() == [0, 40, 0]
    assert (found.culprit, found.lateness, found.wait_by_duration) == (None, 0, None)
    late = of([(55, 60), (0, 60), (50, 60)], operation=operation, root=0, elements_out=None)
    assert (late.culprit, late.lateness) == (0, 5)


@pytest.mark.parametrize("operation", ["reduce", "gather"])
def test_the_root_waits_for_the_last_one_that_sends_and_nobody_else_waits(operation: str) -> None:
    found = of([(10, 60), (0, 20), (50, 60)], operation=operation, root=0, elements_out=None)
    assert found.wait.tolist() == [40, 0, 0]
    assert (found.culprit, found.lateness) == (2, 40)
    early = of([(55, 60), (0, 20), (50, 60)], operation=operation, root=0, elements_out=None)
    assert early.culprit is None and early.wait.tolist() == [0, 0, 0]


def test_without_a_root_there_are_only_arrivals() -> None:
    found = of([(0, 60), (50, 60)], operation="broadcast", root=None)
    assert found.skew_only and found.low_confidence == "nothing tells the root"


def test_each_end_of_a_message_waits_for_the_other() -> None:
    late_sender, late_receiver = message((50, 60), (0, 60)), message((0, 60), (50, 60))
    assert (late_sender.wait.tolist(), late_sender.culprit, late_sender.lateness) == ([0, 50], 0, 50)
    assert (late_receiver.wait.tolist(), late_receiver.culprit) == ([50, 0], 1)


def test_the_sender_of_a_message_that_was_buffered_waits_for_nobody() -> None:
    found = message((0, 5), (50, 60))
    assert (found.wait.tolist(), found.culprit, found.lateness, found.low_confidence) == ([0, 0], None, 0, "")


# Only arrivals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coalesced": True}, "several operations in one"),
        ({"operation": "unknown", "sequence": 1}, "nothing tells what it does"),
    ],
)
def test_of_what_has_no_waits_only_arrivals_are_told(changes: dict[str, Any], said: str) -> None:
    found = of([(0, 60), (50, 60)], **changes)
    assert found.skew_only and found.low_confidence == said
    assert (found.wait.tolist(), found.transfer.tolist(), found.wait_by_duration) == ([0, 0], [60, 10], None)
    assert (found.culprit, found.lateness) == (1, 50)


def test_of_an_uneven_all_to_all_only_arrivals_are_told() -> None:
    columns = [
        [call(s, 60, operation="alltoall", group=(0, 1), elements_in=n, elements_out=30 - n)]
        for s, n in ((0, 10), (9, 20))
    ]
    (found,) = splits(world(*columns))
    assert found.skew_only and found.lateness == 9


def test_where_only_the_asking_is_recorded_arrivals_are_those() -> None:
    columns = [[call(None, None, group=(0, 1), enqueued=t, sequence=1)] for t in (0, 30 * MS)]
    (found,) = splits(world(*columns))
    assert found.skew_only and found.low_confidence == "only when it was asked for is recorded"
    assert (found.arrival.tolist(), found.lateness, found.culprit) == ([0, 30 * MS], 30 * MS, 1)
    assert found.transfer.tolist() == [0, 0]


# Only durations


def lasting(*durations: int | None, **changes: Any) -> Split:
    """The split of one call of which only these durations on the ranks are known."""
    group = tuple(range(len(durations)))
    calls = [[call(None, None, **{"group": group, "duration": one, "sequence": 1} | changes)] for one in durations]
    (found,) = splits([trace(r, c, ranks=len(group), host=str(r)) for r, c in enumerate(calls)])
    return found


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=8))
def test_without_times_waits_are_what_exceeds_the_shortest_duration(durations: list[int]) -> None:
    found = lasting(*durations)
    assert found.wait.tolist() == [one - min(durations) for one in durations]
    assert found.transfer.tolist() == [min(durations)] * len(durations)
    assert found.wait_by_duration is not None and (found.wait_by_duration == found.wait).all()
    assert found.durations_only and not found.skew_only
    assert (found.culprit, found.lateness, found.distinguishable) == (None, 0, False)
    assert found.low_confidence == "only durations are known: all are taken to end at once"


def test_durations_split_as_arrivals_do_where_all_end_at_once() -> None:
    spans = [(0, 110), (40, 110), (90, 110), (100, 110)]
    by_arrivals, by_durations = of(spans), lasting(*(end - start for start, end in spans))
    assert (by_arrivals.wait == by_durations.wait).all() and (by_arrivals.transfer == by_durations.transfer).all()
    assert (np.diff(by_arrivals.arrival) == np.diff(by_durations.arrival)).all()


def test_when_hosts_asked_for_it_does_not_matter_where_devices_told_durations() -> None:
    calls = [[call(None, None, group=(0, 1), enqueued=t, duration=d, sequence=1)] for t, d in ((0, 50), (900, 70))]
    (found,) = splits(world(*calls))
    assert (found.durations_only, found.wait.tolist(), found.culprit) == (True, [0, 20], None)


def test_times_are_taken_where_all_ranks_tell_them() -> None:
    assert not of([(0, 60), (50, 60)], duration=7).durations_only


def test_ranks_without_a_trace_are_said_of_durations_too() -> None:
    traces = [trace(r, [call(None, None, duration=d, sequence=1)]) for r, d in ((0, 5), (2, 9))]
    (found,) = splits(traces, partial=True)
    assert found.wait.tolist() == [0, 4]
    assert found.low_confidence.endswith("; ranks without a trace (1,3): waits are at least these")


@pytest.mark.parametrize(
    "changes", [{"operation": "broadcast", "root": 0}, {"coalesced": True}, {"operation": "unknown"}]
)
def test_durations_tell_nothing_of_what_does_not_synchronise_or_is_several(changes: dict[str, Any]) -> None:
    found = lasting(5, 9, **changes)
    assert found.skew_only and not found.durations_only and found.wait_by_duration is None


def test_where_a_rank_has_no_duration_there_are_none() -> None:
    assert lasting(5, None).low_confidence == "no times are recorded"


# How sure


def test_a_wait_that_the_clocks_may_explain_is_not_distinguishable() -> None:
    traces = [
        trace(0, [call(0, 50, group=(0, 1))], ranks=2, host="a"),
        trace(1, [call(30, 50, group=(0, 1))], ranks=2, host="b"),
    ]
    (meeting,) = match(traces).meetings
    for error, certain in ((7, True), (8, False)):
        found = split(
            meeting, traces, [Alignment("ping-pong", error=e, clock=c) for e, c in ((error, "a"), (error, "b"))]
        )
        assert (found.error, found.distinguishable) == (2 * error, certain)


def test_on_one_clock_only_the_resolution_counts_however_uncertain_the_clock_is() -> None:
    traces = world([call(0, 50, group=(0, 1))], [call(30, 50, group=(0, 1))])
    (meeting,) = match(traces).meetings
    assert split(meeting, traces, [Alignment("ping-pong", error=900, clock="a", resolution=3)] * 2).error == 3


def test_where_arrivals_and_durations_differ_the_number_is_marked() -> None:
    found = of([(0, 100_000), (50_000, 60_000)])  # it ended early: 90 us by durations
    assert found.low_confidence == "rank 0 waits 50 us by arrivals, 90 us by durations"
    assert of([(0, 100_000), (50_000, 109_000)]).low_confidence == ""  # within a tenth of the duration


def test_times_that_cannot_be_are_said() -> None:
    found = of([(0, 100), (5000, 6000)])
    assert "rank 0 ended before the last one began" in found.low_confidence
    assert found.wait.tolist() == [100, 0]


def test_clocks_that_were_set_by_the_ends_leave_durations_alone_to_tell() -> None:
    times = [k * 10 * MS for k in range(10)]
    columns = [[call(t + s, t + MS, group=(0, 1)) for t in times] for s in (0, 500_000)]
    found = splits([trace(r, c, ranks=2, host=str(r)) for r, c in enumerate(columns)])
    assert all("only durations tell" in one.low_confidence for one in found)
    assert [one.wait.tolist() for one in found] == [[500_000, 0]] * 10


def test_clocks_that_nothing_sets_are_said_and_nobody_is_late() -> None:
    traces = [
        trace(r, [call(r, 50, group=(0, 1), operation="broadcast", root=1)], ranks=2, host=str(r)) for r in (0, 1)
    ]
    (found,) = splits(traces)
    assert "clocks are not set against one another" in found.low_confidence and not found.distinguishable


def test_ranks_without_a_trace_and_a_supposed_group_are_said() -> None:
    columns: list[list[Call]] = [[call(0, 60)], [call(50, 60)]]
    (found,) = splits([trace(r, c) for r, c in enumerate(columns)], partial=True)
    assert found.low_confidence == "ranks without a trace (2-3): waits are at least these"
    (alone,) = splits([trace(0, columns[0])], partial=True)
    assert alone.skew_only and alone.low_confidence.startswith("no other rank's trace") and alone.culprit is None
    supposed = of([(0, 60)] * 3, group=None, group_name="")
    assert supposed.low_confidence == "nothing tells the group: taken to be ranks 0-2"


def test_of_calls_without_any_time_nothing_is_told() -> None:
    found = of([(None, None)] * 2)  # type: ignore[list-item]
    assert found.skew_only and found.places == () and found.low_confidence == "no times are recorded"


def test_a_group_of_one_waits_for_nobody() -> None:
    found = of([(0, 60)])
    assert (found.wait.tolist(), found.transfer.tolist(), found.skew_only) == ([0], [60], False)
