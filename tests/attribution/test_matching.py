"""Which calls of the ranks are one and the same, and which are refused."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.matching import Matches, Meeting, match
from commbench.attribution.trace import Call, Step, Trace
from commbench.errors import UsageError
from tests.attribution.jobs import MS, WORLD, call, trace, world

PAIR = (0, 1)


def calls_of(matches: Matches) -> list[dict[int, int]]:
    return [dict(meeting.calls) for meeting in matches.meetings]


def reasons(matches: Matches) -> list[str]:
    return [f"{refusal.group}: {refusal.reason} ({refusal.calls})" for refusal in matches.refusals]


def series(n: int, begin: int = 0, each: int = 10 * MS, **changes: Any) -> list[Call]:
    """Calls of two ranks, one after another, of sizes of their own."""
    made = [
        call((begin + k) * each, (begin + k) * each + MS, group=PAIR, elements_in=k + 1, elements_out=k + 1)
        for k in range(n)
    ]
    return [replace(one, **changes) for one in made]


# Collectives in order


def test_the_kth_call_of_a_group_meets_the_kth_of_all_others() -> None:
    found = match(world(*[[call(0, 5), call(10, 15)]] * 4))
    assert calls_of(found) == [dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 1)]
    first = found.meetings[0]
    assert (first.operation, first.group, first.group_name, first.number) == ("allreduce", WORLD, "world", 0)
    assert (first.size, first.dtype, first.missing, found.refusals) == (4096, "float32", (), ())


def test_groups_are_matched_each_by_itself() -> None:
    near = [call(0, 5, group=(0, 1), group_name="a"), call(10, 15)]
    far = [call(0, 5), call(10, 15, group=(2, 3), group_name="b")]
    found = match(world(near, near, far, far))
    by_group = {meeting.group: dict(meeting.calls) for meeting in found.meetings}
    assert by_group == {(0, 1): {0: 0, 1: 0}, WORLD: {0: 1, 1: 1, 2: 0, 3: 0}, (2, 3): {2: 1, 3: 1}}


def test_two_groups_of_the_same_ranks_are_told_apart_by_name() -> None:
    found = match(world(*[[call(0, 1, group=PAIR, group_name="dp"), call(2, 3, group=PAIR, group_name="tp")]] * 2))
    assert sorted(meeting.group_name for meeting in found.meetings) == ["dp", "tp"]
    assert [meeting.number for meeting in found.meetings] == [0, 0]


def test_a_group_that_each_rank_calls_by_a_name_of_its_own_is_one() -> None:
    columns = [[call(0, 1, group=PAIR, group_name=name)] for name in ("pg 1", "pg 7")]
    assert calls_of(match(world(*columns))) == [{0: 0, 1: 0}]


def test_calls_that_were_under_way_at_once_may_begin_in_unlike_order() -> None:
    big = {"elements_in": 4096, "elements_out": 4096, "group": PAIR}
    one = [call(0, 90, group=PAIR), call(10, 80, **big)]
    other = [call(0, 80, **big), call(10, 90, group=PAIR)]
    assert calls_of(match(world(one, other))) == [{0: 0, 1: 1}, {0: 1, 1: 0}]


def test_by_the_order_in_which_they_were_asked_for_even_alike_ones_are_told_apart() -> None:
    one = [call(0, 90, enqueued=0, group=PAIR), call(10, 80, enqueued=1, group=PAIR)]
    other = [call(20, 80, enqueued=8, group=PAIR), call(0, 90, enqueued=7, group=PAIR)]  # its second queue was quicker
    assert calls_of(match(world(one, other))) == [{0: 0, 1: 1}, {0: 1, 1: 0}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"operation": "allgather"},
            "call 0 is allreduce of 1024 float32 on rank 0, allgather of 1024 float32 on rank 1",
        ),
        ({"dtype": "bfloat16"}, "call 0 is allreduce of 1024 float32 on rank 0, allreduce of 1024 bfloat16 on rank 1"),
        (
            {"elements_in": 8, "elements_out": 8},
            "call 0 is allreduce of 1024 float32 on rank 0, allreduce of 8 float32 on rank 1",
        ),
    ],
)
def test_what_differs_is_refused_with_who_says_what(changes: dict[str, Any], said: str) -> None:
    found = match(world([call(group=PAIR)], [call(group=PAIR, **changes)]))
    assert found.meetings == ()
    assert reasons(found) == [f"group world (ranks 0-1): {said} (2)"]


def test_a_root_that_differs_is_refused_and_one_that_is_not_told_is_not() -> None:
    changes: dict[str, Any] = {"group": PAIR, "operation": "broadcast"}
    found = match(world([call(**changes, root=0)], [call(**changes, root=1)]))
    assert reasons(found) == ["group world (ranks 0-1): root 0 on rank 0, 1 on rank 1 (2)"]
    assert [m.root for m in match(world([call(**changes)], [call(**changes, root=1)])).meetings] == [1]


def test_a_rank_that_recorded_no_call_of_the_group_is_named() -> None:
    found = match(world([call(group=PAIR)], []))
    assert reasons(found) == ["group world (ranks 0-1): rank 1 recorded none of them (1)"]


def test_a_rank_that_is_not_of_its_own_group_is_refused() -> None:
    found = match(world([call(group=(1, 2))], [call(group=(1, 2))], [call(group=(1, 2))]))
    assert reasons(found) == ["group world (ranks 1-2): rank 0 is not of the group (3)"]


# Recordings that begin or end elsewhere


def test_by_numbers_recordings_are_aligned_and_the_rest_is_said() -> None:
    one, other = series(5), series(5, begin=1)
    one = [replace(c, sequence=10 + k, elements_in=1, elements_out=1) for k, c in enumerate(one)]
    other = [replace(c, sequence=11 + k, elements_in=1, elements_out=1) for k, c in enumerate(other)]
    found = match(world(one, other))
    assert calls_of(found) == [{0: k + 1, 1: k} for k in range(4)]
    assert [meeting.number for meeting in found.meetings] == [11, 12, 13, 14]
    assert reasons(found) == [
        "group world (ranks 0-1): not recorded by all ranks: rank 0 has numbers 10 (1)",
        "group world (ranks 0-1): not recorded by all ranks: rank 1 has numbers 15 (1)",
    ]


def test_a_number_that_one_rank_lost_does_not_move_the_others() -> None:
    one = [replace(c, sequence=k) for k, c in enumerate(series(4))]
    assert calls_of(match(world(one, [one[0], *one[2:]]))) == [{0: 0, 1: 0}, {0: 2, 1: 1}, {0: 3, 1: 2}]


def test_numbers_from_which_on_calls_differ_are_refused_and_those_before_kept() -> None:
    one = [replace(c, sequence=k) for k, c in enumerate(series(4))]
    other = [one[1], replace(one[2], operation="allgather"), one[3]]
    found = match(world(one, other))
    assert calls_of(found) == [{0: 1, 1: 0}]
    assert reasons(found) == [
        "group world (ranks 0-1): from number 2 on: operation allreduce on rank 0, allgather on rank 1 (4)",
        "group world (ranks 0-1): not recorded by all ranks: rank 0 has numbers 0 (1)",
    ]


def test_numbers_may_count_each_operation_by_itself() -> None:
    gathers = {"operation": "allgather", "elements_out": 2048}
    mine = [
        call(0, 1, group=PAIR, sequence=1),
        call(2, 3, group=PAIR, sequence=1, **gathers),
        call(4, 5, group=PAIR, sequence=2),
    ]
    assert calls_of(match(world(mine, mine[1:]))) == [{0: 1, 1: 0}, {0: 2, 1: 1}]


def test_without_numbers_lists_are_aligned_where_just_one_shift_agrees() -> None:
    found = match(world(series(6), series(6)[2:], host=""))
    assert calls_of(found) == [{0: k + 2, 1: k} for k in range(4)]
    assert [refusal.calls for refusal in found.refusals] == [2]


def test_without_numbers_a_list_that_repeats_itself_is_refused_if_counts_differ() -> None:
    alike = [call(k, k + 1, group=PAIR) for k in range(5)]
    found = match(world(alike, alike[1:], host=""))
    assert reasons(found) == ["group world (ranks 0-1): rank 0 recorded 5 calls and rank 1 4, without numbers (9)"]


def test_on_one_host_time_tells_which_calls_of_a_list_that_repeats_itself_are_the_same() -> None:
    alike = [call(k * 10 * MS, k * 10 * MS + MS, group=PAIR) for k in range(6)]
    assert calls_of(match(world(alike[:5], alike[1:]))) == [{0: k + 1, 1: k} for k in range(4)]  # as many on both
    assert calls_of(match(world(alike, alike[2:]))) == [{0: k + 2, 1: k} for k in range(4)]


def test_on_one_host_lists_of_which_no_shift_is_possible_are_refused() -> None:
    early = [call(k * 10 * MS, k * 10 * MS + MS, group=PAIR) for k in range(4)]
    late = [call(c.start + 5 * MS, c.end + 5 * MS, group=PAIR) for c in early if c.start is not None and c.end]
    found = match(world(early, late))
    assert reasons(found) == [
        "group world (ranks 0-1): in order, ranks of one host would have ended calls that others had not begun (8)"
    ]


def in_steps(numbers: range, host: str = "", offset: int = 0) -> dict[str, Any]:
    """A rank that marks these steps and asks for two alike all-reduces in each."""
    times = [number * 100 * MS + offset for number in numbers]
    calls = [call(t + k * MS, t + (k + 1) * MS, enqueued=t + k * MS, group=PAIR) for t in times for k in (1, 2)]
    marks = tuple(Step(number, t, t + 100 * MS) for number, t in zip(numbers, times, strict=True))
    return {"calls": calls, "steps": marks, "ranks": 2, "host": host}


def test_steps_tell_which_calls_of_lists_that_repeat_themselves_are_the_same() -> None:
    traces = [trace(0, **in_steps(range(3, 7), "a")), trace(1, **in_steps(range(4, 8), "b", offset=1000 * MS))]
    assert calls_of(match(traces)) == [{0: k + 2, 1: k} for k in range(6)]


def test_on_one_host_time_tells_more_than_how_ranks_count_their_steps() -> None:
    other = in_steps(range(3, 7), "a")
    other["steps"] = tuple(replace(step, number=step.number + 50) for step in other["steps"])
    assert calls_of(match([trace(0, **in_steps(range(3, 7), "a")), trace(1, **other)])) == [
        {0: k, 1: k} for k in range(8)
    ]
    found = match([trace(0, **in_steps(range(3, 7), "a")), trace(1, **other | {"host": "b"})])
    assert reasons(found) == [
        "group world (ranks 0-1): call 0 (allreduce of 1024 float32) is in unlike steps on rank 0 and rank 1 (16)"
    ]


def without(places: set[int], **changes: Any) -> dict[str, Any]:
    """Steps 3 to 8, of two unlike calls each, but for some of them."""
    whole = in_steps(range(3, 9), **changes)
    unlike = [replace(one, elements_out=1024 + place % 2) for place, one in enumerate(whole["calls"])]
    return whole | {"calls": [one for place, one in enumerate(unlike) if place not in places]}


def test_steps_in_which_one_rank_lacks_calls_are_named() -> None:
    found = match([trace(0, **without(set(), host="a")), trace(1, **without({2, 6, 7}, host="b"))])
    assert reasons(found) == ["group world (ranks 0-1): rank 1 lacks calls that others recorded in steps 4,6 (5)"]
    assert calls_of(found) == [{0: 0, 1: 0}, {0: 1, 1: 1}, {0: 4, 1: 3}, {0: 5, 1: 4}] + [
        {0: k, 1: k - 3} for k in (8, 9, 10, 11)
    ]
    early = without(set(), host="a")
    early["calls"] = [replace(early["calls"][0], enqueued=0), *early["calls"]]
    found = match([trace(0, **early), trace(1, **without({5}, host="b"))])
    assert reasons(found)[0].endswith("rank 1 lacks calls that others recorded in step 5 and before the first step (4)")


def test_a_recording_that_begins_later_within_a_step_loses_no_more_of_it() -> None:
    found = match([trace(0, **without(set(), host="a")), trace(1, **without({0}, host="b"))])
    assert calls_of(found) == [{0: k, 1: k - 1} for k in range(1, 12)]
    assert reasons(found) == ["group world (ranks 0-1): not recorded by all ranks: rank 0 begins or ends elsewhere (1)"]


@pytest.mark.parametrize(
    ("kinds", "steps", "hosts", "gone", "each", "first", "late"),
    [
        # In step 5 rank 0 lacks the first of calls that are alike and rank 1 the last.
        pytest.param([1] * 5, 8, "ab", [{25}, {16, 29}], 10 * MS, 0, set(), id="alike"),
        pytest.param([1] * 5, 16, "aa", [{25}, {16, 29}], 10 * MS, 0, set(), id="by time, few of all"),
        pytest.param([1, 1, 1, 2], 16, "aa", [{20}, {12, 22}], MS // 4, 0, set(), id="closer than clocks tell"),
        # Rank 0 lacks its first step, which would show that rank 1 counts from one on.
        pytest.param([1, 2, 3], 6, "ab", [{0, 1, 2, 10}, set()], 10 * MS, 1, set(), id="steps numbered apart"),
        # Rank 1 asks for the first call when step 1 has begun, and lacks the one of step 1.
        pytest.param([1], 8, "ab", [set(), {1, 4}], 10 * MS, 0, {0}, id="one a step"),
    ],
)
def test_where_what_another_rank_lacks_would_not_show_all_are_refused(
    kinds: list[int], steps: int, hosts: str, gone: list[set[int]], each: int, first: int, late: set[int]
) -> None:
    """`first`: how rank 1 calls its first step; `late`: what it asks for in the next step."""
    traces = []
    for rank in PAIR:
        calls = []
        for k in sorted({*range(len(kinds) * steps)} - gone[rank]):
            step, place = divmod(k, len(kinds))
            t, count = (10 * step + place) * each, kinds[place]
            asked = t + 10 * each if rank and k in late else t
            about = {"enqueued": asked, "elements_in": count, "elements_out": count}
            calls.append(call(t, t + each * 6 // 10, group=PAIR, **about))
        marks = tuple(Step(first * rank + n, 10 * n * each, 10 * (n + 1) * each) for n in range(steps))
        traces.append(trace(rank, calls, ranks=2, steps=marks, host=hosts[rank]))
    found = match(traces)
    assert (found.meetings, len(found.refusals)) == ((), 1)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({2}, {6}),  # both lack some, and may lack others where nothing shows it
        (set(), {0, 2, 4, 6, 8}),  # of its 7 calls 5 are in such steps
    ],
)
def test_where_what_is_lacking_leaves_doubts_all_are_refused(one: set[int], two: set[int]) -> None:
    found = match([trace(0, **without(one, host="a")), trace(1, **without(two, host="b"))])
    assert (found.meetings, len(found.refusals)) == ((), 1)


def test_calls_of_a_step_that_time_rules_out_are_not_met() -> None:
    """One host: rank 1, which calls each step by the number after its own, lacks the last."""
    other = in_steps(range(3, 8), "a")
    other["steps"] = tuple(replace(step, number=step.number + 1) for step in other["steps"])
    found = match([trace(0, **in_steps(range(3, 9), "a")), trace(1, **other)])
    assert calls_of(found) == [{0: k, 1: k} for k in range(10)]


def of_steps(draw: random.Random, ranks: int, steps: int, one_host: bool) -> list[Trace]:
    """Ranks that ask in each step for the same few calls, many of them alike where one clock tells them apart."""
    kinds = draw.choices([1, 2], k=draw.randint(1, 4)) if one_host else list(range(draw.randint(2, 5)))
    columns: list[list[Call]] = [[] for _ in range(ranks)]
    for number in range(steps):
        for k, count in enumerate(kinds):
            t = (number * 10 + k) * 10 * MS
            for column in columns:
                asked = t + draw.randint(0, 5 * MS)
                about = {"enqueued": asked, "elements_in": count, "elements_out": count}
                column.append(call(asked, t + 6 * MS, group=tuple(range(ranks)), **about))
    marks = tuple(Step(number, number * 100 * MS, (number + 1) * 100 * MS) for number in range(steps))
    hosts = ["a" if one_host else f"node{rank}" for rank in range(ranks)]
    return [trace(rank, columns[rank], ranks=ranks, steps=marks, host=host) for rank, host in enumerate(hosts)]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(3, 9), st.booleans())
def test_whatever_one_rank_lacks_in_some_steps_the_calls_of_the_others_are_met(
    seed: int, ranks: int, steps: int, one_host: bool
) -> None:
    draw = random.Random(seed)
    traces = of_steps(draw, ranks, steps, one_host)
    short, where = draw.randrange(ranks), draw.sample(range(1, steps - 1), draw.randint(1, (steps - 1) // 2))
    each = len(traces[0].calls) // steps
    gone = {step * each + k for step in where for k in draw.sample(range(each), draw.randint(1, each))}
    places = [[k for k in range(steps * each) if rank != short or k not in gone] for rank in range(ranks)]
    kept = [replace(one, calls=tuple(one.calls[k] for k in its)) for one, its in zip(traces, places, strict=True)]

    found = match(kept)
    met = [{places[place][index] for place, index in one.calls.items()} for one in found.meetings]
    assert met == [{k} for k in range(steps * each) if k // each not in where]
    (refusal,) = found.refusals
    assert refusal.reason.startswith(f"rank {short} lacks calls that others recorded in step")
    assert refusal.calls == ranks * each * len(where) - len(gone)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(0, 6))
def test_whatever_is_cut_off_at_the_ends_numbers_bring_the_same_calls_together(seed: int, ranks: int, cut: int) -> None:
    draw = random.Random(seed)
    group = tuple(range(ranks))
    whole = [
        call(k, k + 1, group=group, sequence=k, elements_in=e, elements_out=e)
        for k, e in enumerate(draw.choices([1, 2], k=16))
    ]
    kept = [whole[draw.randint(0, cut) : len(whole) - draw.randint(0, cut)] for _ in range(ranks)]
    found = match(world(*kept))
    met = {m.number: {kept[place][index].sequence for place, index in m.calls.items()} for m in found.meetings}
    assert met == {k: {k} for k in set.intersection(*({c.sequence for c in one} for one in kept)) if k is not None}
    assert sum(len(m.calls) for m in found.meetings) + sum(r.calls for r in found.refusals) == sum(map(len, kept))


# Groups that nobody tells


def test_without_a_group_the_world_is_taken_if_all_are_there_and_agree() -> None:
    columns = [[call(0, 5, group=None, group_name="")]] * 4
    (meeting,) = match(world(*columns)).meetings
    assert (meeting.group, meeting.supposed) == (WORLD, True)
    (pair,) = match(world(*columns[:2])).meetings
    assert not pair.supposed  # two ranks form no other group


def test_a_group_known_by_name_and_size_is_the_ranks_that_name_it() -> None:
    named = [call(0, 5, group=None, group_name="dp", group_size=2)]
    found = match(world(named, [], named, []))
    assert [(m.group, m.supposed) for m in found.meetings] == [((0, 2), False)]
    found = match(world(named, named, named, named))  # two groups of one name
    assert reasons(found) == ["group dp: nothing tells which ranks belong together (4)"]


def test_a_group_known_by_name_alone_is_the_ranks_whose_numbers_go_by_it() -> None:
    numbered = [call(0, 5, group=None, group_name="dp", sequence=7)]
    found = match(world(numbered, [], numbered, [], ranks=None))
    assert [(m.group, m.supposed, m.number) for m in found.meetings] == [((0, 2), True, 7)]
    without = [call(0, 5, group=None, group_name="dp")]
    assert reasons(match(world(without, [], without, []))) == [
        "group dp: nothing tells which ranks belong together (2)"
    ]


def test_without_a_group_some_ranks_alone_are_refused() -> None:
    column = [call(group=None, group_name="")]
    found = match([trace(0, column), trace(1, column)], partial=True)
    assert reasons(found) == ["unknown group: nothing tells which ranks belong together (2)"]


def test_send_receive_kernels_without_metadata_are_refused() -> None:
    column = [Call("sendrecv", start=0, end=1, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", evidence="name")] * 10
    found = match([trace(0, column, ranks=128), trace(1, column, ranks=128)], partial=True)
    assert found.meetings == ()
    assert reasons(found) == ["unknown group: nothing tells whom a sendrecv is with (20)"]


def test_communication_of_an_unknown_kind_is_refused_by_its_name() -> None:
    column = [call(operation="unknown", name="multimem_all_reduce_kernel")]
    found = match(world(*[column] * 4))
    assert reasons(found) == ["group world (ranks 0-3): nothing tells what they do (multimem_all_reduce_kernel) (4)"]


# Messages


def messages(*sends: tuple[int, int, int], ranks: int = 3) -> list[Trace]:
    """The traces of ranks of which these (from, to, elements) send, one message after another."""
    columns: list[list[Call]] = [[] for _ in range(ranks)]
    for k, (sender, receiver, elements) in enumerate(sends):
        here: dict[str, Any] = {"group_name": "pp", "group": tuple(range(ranks))}
        columns[sender].append(
            call(k, k + 2, operation="send", peer=receiver, elements_in=elements, elements_out=None, **here)
        )
        columns[receiver].append(
            call(k + 1, k + 2, operation="recv", peer=sender, elements_in=None, elements_out=elements, **here)
        )
    return world(*columns)


def test_the_kth_message_to_a_rank_is_its_kth_from_there() -> None:
    found = match(messages((0, 1, 4), (2, 1, 8), (0, 1, 16), (1, 0, 2)))
    met = {(m.group, m.number): (m.operation, m.size, dict(m.calls)) for m in found.meetings}
    assert met == {
        ((0, 1), 0): ("sendrecv", 16, {0: 0, 1: 0}),
        ((2, 1), 0): ("sendrecv", 32, {2: 0, 1: 1}),
        ((0, 1), 1): ("sendrecv", 64, {0: 1, 1: 2}),
        ((1, 0), 0): ("sendrecv", 8, {1: 3, 0: 2}),
    }
    assert found.refusals == ()


def test_messages_of_which_one_side_lacks_some_are_refused() -> None:
    sender, receiver, third = messages((0, 1, 4), (0, 1, 4))
    found = match([sender, replace(receiver, calls=receiver.calls[:1], host=""), third])
    assert reasons(found) == ["messages of rank 0 to rank 1: rank 0 recorded 2 calls and rank 1 1, without numbers (3)"]


def test_an_exchange_is_one_meeting_of_two() -> None:
    columns = [[call(k, 9, operation="sendrecv", group=PAIR, peer=1 - k)] for k in PAIR]
    (meeting,) = match(world(*columns)).meetings
    assert (meeting.group, dict(meeting.calls)) == (PAIR, {0: 0, 1: 0})


# Sizes, unevenness


@pytest.mark.parametrize(
    ("operation", "sends", "gets", "size"),
    [
        ("allreduce", 10, 10, 40),
        ("allgather", 10, 40, 160),
        ("allgather", 10, None, 160),  # Gloo tells inputs alone
        ("reducescatter", 40, 10, 160),
        ("alltoall", 40, 40, 160),
        ("gather", 10, None, 160),
        ("scatter", None, 10, 160),
        ("barrier", None, None, None),
    ],
)
def test_sizes_are_those_of_nccl_tests(operation: str, sends: int | None, gets: int | None, size: int | None) -> None:
    column = [call(operation=operation, elements_in=sends, elements_out=gets)]
    (meeting,) = match(world(*[column] * 4)).meetings
    assert (meeting.size, meeting.uneven) == (size, False)


@pytest.mark.parametrize(("dtype", "size"), [("bytes", 1000), ("bool", 1000), ("int16", 2000), ("strange", None)])
def test_types_that_only_traces_have_have_a_size_as_well(dtype: str, size: int | None) -> None:
    calls = [call(0, 5, group=(0, 1), elements_in=1000, elements_out=1000, dtype=dtype)]
    (meeting,) = match(world(calls, calls)).meetings
    assert meeting.size == size


def test_an_uneven_all_to_all_is_matched_and_marked() -> None:
    sends, gets = [10, 20], [15, 15]
    columns = [
        [call(operation="alltoall", group=PAIR, elements_in=i, elements_out=o)]
        for i, o in zip(sends, gets, strict=True)
    ]
    (meeting,) = match(world(*columns)).meetings
    assert (meeting.uneven, meeting.size) == (True, 80)


def test_an_all_to_all_that_receives_what_nobody_sent_is_refused() -> None:
    columns = [[call(operation="alltoall", group=PAIR, elements_in=10, elements_out=n)] for n in (10, 11)]
    assert reasons(match(world(*columns))) == [
        "group world (ranks 0-1): ranks send 20 elements in all and receive 21 (2)"
    ]


def test_several_operations_in_one_are_marked() -> None:
    columns = [[call(group=PAIR, coalesced=True)]] * 2
    assert [meeting.coalesced for meeting in match(world(*columns)).meetings] == [True]


# What is no set of traces of one job


def test_ranks_without_a_trace_are_named_unless_a_partial_answer_is_asked_for() -> None:
    some = [trace(0, [call()]), trace(2, [call()])]
    with pytest.raises(UsageError, match=r"2 of 4 have none \(1,3\)"):
        match(some)
    (meeting,) = match(some, partial=True).meetings
    assert (meeting.missing, dict(meeting.calls)) == ((1, 3), {0: 0, 1: 0})


def test_members_of_groups_count_as_ranks_where_the_job_does_not_tell_its_own() -> None:
    with pytest.raises(UsageError, match=r"2 of 4 have none \(2-3\)"):
        match(world([call()], [call()], ranks=None))


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"job": "b"}, r"rank0\.json and other\.json are of different ones \(job a and b\)"),
        ({"job": "a", "ranks": 8}, r"rank0\.json and other\.json are of different ones \(number of ranks 4 and 8\)"),
        ({"rank": 0}, r"rank0\.json and other\.json are both of rank 0"),
        ({"rank": None}, r"other\.json does not say its own"),
    ],
)
def test_traces_that_do_not_belong_together_are_refused_by_name(others: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {"rank": 1, "source": "other.json"} | others
    other = trace(**fields)
    with pytest.raises(UsageError, match=said):
        match([trace(0, job="a"), other], partial=True)


def test_of_no_traces_and_of_traces_without_calls_nothing_is_said() -> None:
    assert match([]) == Matches((), ())
    assert match(world([], [])) == Matches((), ())


def test_meetings_come_in_order_of_time() -> None:
    pair = [call(3, 4, group=PAIR, group_name="tp"), call(1, 2, group=PAIR, group_name="dp")]
    found: list[Meeting] = list(match(world(pair, pair)).meetings)
    assert [meeting.group_name for meeting in found] == ["dp", "tp"]
