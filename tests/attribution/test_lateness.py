"""Who was late, how often, and what that rank was doing before it came."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from commbench.attribution.clocks import align
from commbench.attribution.collectives import Split, split
from commbench.attribution.lateness import Culprit, culprits
from commbench.attribution.layers import COMPUTE, HOST, LAYERS, MEMORY, WAITING, Layers, layers, windows
from commbench.attribution.matching import match
from commbench.attribution.trace import Trace
from tests.attribution.jobs import MS, call, world
from tests.attribution.synthetic import Await, Collective, Job, Message, Op, Work, run, trace

READY = Work(HOST, 20)  # us: what the host does before the first work of a step


def split_all(job: Job) -> tuple[list[Trace], list[Split], list[tuple[Layers, ...]]]:
    """The traces of a job, its meetings and the layers of its steps."""
    made = [trace(run(job), rank) for rank in range(len(job.programs))]
    traces = [one for one, _ in made]
    meetings = match(traces).meetings
    alignments = align(traces, {}, meetings)
    splits = [split(meeting, traces, alignments) for meeting in meetings]
    found = []
    for place, (one, classes) in enumerate(made):
        waits = {
            each.meeting.calls[place]: (one.calls[each.meeting.calls[place]].start or 0)
            + int(each.wait[each.places.index(place)])
            for each in splits
            if place in each.places
        }
        found.append(layers(one, windows(one), waits, classes))
    return traces, splits, found


def late(job: Job) -> tuple[Culprit, ...]:
    return culprits(*split_all(job))


def steps(*own: Sequence[Op], n: int = 5, groups: Mapping[str, tuple[int, ...]] | None = None, **changes: Any) -> Job:
    """A job in which each rank does its own each step."""
    names = groups or {"world": tuple(range(len(own)))}
    return Job([[[READY, *ops]] * n for ops in own], names, **changes)


SUM = Collective("world", transfer=50)
USUAL: Sequence[Op] = [Work(COMPUTE, 300), SUM]


@pytest.mark.parametrize("layer", [COMPUTE, MEMORY, HOST])
def test_the_rank_that_does_more_of_something_is_late_because_of_it(layer: str) -> None:
    usual: list[Op] = [Work(COMPUTE, 300), Work(MEMORY, 100), SUM]
    slow = [*usual[:2], Work(layer, 400), SUM]
    (found,) = late(steps(usual, usual, slow, usual))
    assert (found.rank, found.cause, found.meetings, found.of) == (2, layer, 5, 5)
    assert (found.steps, found.of_steps) == (5, 5)
    assert (found.lateness, found.waited) == (400_000, 5 * 3 * 400_000)
    assert found.before == {name: 400_000 * (name == layer) for name in LAYERS}
    assert (found.upstream, found.through) == ((), "")


def test_nobody_is_late_where_all_come_at_once() -> None:
    assert late(steps(USUAL, USUAL, USUAL)) == ()


def test_a_lateness_that_clocks_may_explain_names_nobody() -> None:
    traces, splits, found = split_all(steps([Work(COMPUTE, 300), SUM], [Work(COMPUTE, 340), SUM]))
    assert [one.rank for one in culprits(traces, splits, found)] == [1]
    assert culprits(traces, [replace(one, error=20_000) for one in splits], found) == ()


def test_of_ranks_that_are_late_in_turn_each_has_its_own_steps() -> None:
    usual: list[Op] = [READY, Work(COMPUTE, 300), SUM]
    slow: list[Op] = [READY, Work(COMPUTE, 500), SUM]
    job = Job([[slow, usual, usual], [usual, slow, slow], [usual] * 3], {"world": (0, 1, 2)})
    found = late(job)
    assert [(one.rank, one.meetings, one.of, one.steps, one.of_steps) for one in found] == [
        (1, 2, 3, 2, 3),
        (0, 1, 3, 1, 3),
    ]


def test_only_what_the_rank_did_since_the_last_meeting_counts() -> None:
    """It catches up with what it did more before, and is late for what it did after."""
    usual: list[Op] = [Work(COMPUTE, 300), SUM, Work(MEMORY, 100), SUM]
    slow: list[Op] = [Work(COMPUTE, 300), SUM, Work(MEMORY, 350), SUM]
    (found,) = late(steps(usual, slow, usual))
    assert (found.cause, found.before[MEMORY], found.before[COMPUTE]) == (MEMORY, 250_000, 0)


# Earlier collectives


def chain(first: int = 400) -> Job:
    """Rank 0 holds up rank 1 in one group, and that is late for rank 2 in another."""
    groups = {"pair a": (0, 1), "pair b": (1, 2)}
    a, b = Collective("pair a", 30), Collective("pair b", 30)
    rank0: list[Op] = [Work(COMPUTE, 100 + first), a, Work(COMPUTE, 500)]
    rank1: list[Op] = [Work(COMPUTE, 100), a, Work(COMPUTE, 50), b]
    rank2: list[Op] = [Work(COMPUTE, 150), b]
    return steps(rank0, rank1, rank2, groups=groups)


def test_a_rank_that_waited_itself_is_followed_to_whom_it_waited_for() -> None:
    found = {one.rank: one for one in late(chain())}
    assert found[1].cause == "earlier collective"
    assert (found[1].upstream, found[1].through) == ((0,), "group pair a (ranks 0-1)")
    assert found[1].before[WAITING] > found[1].before[COMPUTE]
    assert (found[0].cause, found[0].upstream) == (COMPUTE, ())


def test_the_first_of_those_that_held_up_each_other_comes_first_with_all_their_waits() -> None:
    first, second = late(chain())
    assert (first.rank, second.rank) == (0, 1)
    assert first.waited < second.waited  # other ranks wait for each of them
    assert (first.behind, second.behind) == (first.waited + second.waited, second.waited)


def test_a_chain_of_groups_is_followed_to_the_first() -> None:
    ranks = 5
    groups = {f"pair {k}": (k, k + 1) for k in range(ranks - 1)}
    programs: list[list[Op]] = []
    for rank in range(ranks):
        ops: list[Op] = [Work(MEMORY, 700 if rank == 0 else 100)]
        ops += [Collective(f"pair {rank - 1}", 30)] * (rank > 0) + [Collective(f"pair {rank}", 30)] * (rank + 1 < ranks)
        programs.append(ops)
    found = {one.rank: one for one in late(steps(*programs, groups=groups))}
    assert found[3].upstream == (2, 1, 0)
    assert found[3].through == "group pair 2 (ranks 2-3)"
    assert found[0].cause == MEMORY


def test_a_rank_to_whom_its_own_lateness_comes_round_has_not_waited_for_itself() -> None:
    """Rank 0 holds up rank 1, that rank 2, that rank 3, that rank 0, and that rank 4."""
    groups = {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (0, 3), "e": (0, 4)}
    a, b, c, d, e = (Collective(name, 30) for name in groups)
    more = Work(COMPUTE, 200)
    ring: list[list[Op]] = [[Work(COMPUTE, 500), a, d, e], [a, more, b], [b, more, c], [c, more, d], [e]]
    found = {one.rank: one for one in late(steps(*ring, n=1, groups=groups))}
    assert {rank: one.upstream for rank, one in found.items()} == {0: (3, 2, 1), 1: (0,), 2: (1, 0), 3: (2, 1, 0)}
    # Of rank 0 at 520 us, of rank 1 at 750, of rank 2 at 980, of rank 3 at 1210 and of rank 0 again at 1240 the others
    # wait since 20 us, but rank 0 for rank 3 since 550.
    assert found[0].waited == (500 + 1220) * 1000
    assert found[0].behind == (500 + 730 + 960 + 1220) * 1000


def test_a_stage_of_a_pipeline_waits_for_the_one_before_and_that_is_not_its_own_fault() -> None:
    def stage(rank: int) -> list[Op]:
        ops: list[Op] = []
        for _ in range(3):
            ops += [Message("recv", rank - 1, 10)] * (rank > 0)
            ops += [Work(COMPUTE, 600 if rank == 1 else 100)]
            ops += [Message("send", rank + 1, 10)] * (rank < 2)
        return ops

    found = {one.rank: one for one in late(steps(*map(stage, range(3)), groups={"world": (0, 1, 2)}))}
    assert max(found.values(), key=lambda one: one.waited).rank == 1
    assert found[1].cause == COMPUTE


def test_a_common_shift_of_all_clocks_changes_nothing() -> None:
    assert late(replace(chain(), offsets=(12_345_678,) * 3)) == late(chain())


def test_waits_of_collectives_that_are_under_way_at_once_count_once() -> None:
    times = ((0, 40), (10, 50), (100, 140))  # ms: the first two overlap, the third is apart
    early = [call(start * MS, end * MS, group=(0, 1), sequence=k) for k, (start, end) in enumerate(times)]
    late_ones = [replace(one, start=(one.end or 0) - 5 * MS) for one in early]
    traces = world(early, late_ones)
    meetings = match(traces).meetings
    splits = [split(meeting, traces, align(traces, {}, meetings)) for meeting in meetings]
    (found,) = culprits(traces, splits, [(), ()])
    assert [int(one.wait[0]) // MS for one in splits] == [35, 35, 35]
    assert found.waited == (45 + 35) * MS  # from 0 to 45, and from 100 to 135


# What is not told


def test_with_arrivals_alone_who_was_late_is_named_and_why_is_not() -> None:
    columns = [
        [call(None, None, group=(0, 1), enqueued=k * 100 * MS + t, sequence=k) for k in range(4)] for t in (0, 30 * MS)
    ]
    traces = world(*columns)
    meetings = match(traces).meetings
    splits = [split(meeting, traces, align(traces, {}, meetings)) for meeting in meetings]
    (found,) = culprits(traces, splits, [(), ()])
    assert (found.rank, found.meetings, found.lateness, found.waited) == (1, 4, 30 * MS, 4 * 30 * MS)
    assert (found.cause, found.before, found.steps, found.of_steps) == ("", {}, 0, 0)


def test_overlapped_collectives_are_late_by_what_the_rank_computed_before_it_asked() -> None:
    usual: list[Op] = [Work(COMPUTE, 200), replace(SUM, overlapped=True), Work(COMPUTE, 300), Await("world")]
    slow: list[Op] = [Work(COMPUTE, 450), *usual[1:]]
    (found,) = late(steps(usual, slow, n=1))
    assert (found.rank, found.cause, found.lateness) == (1, COMPUTE, 250_000)


def test_a_lateness_that_is_carried_along_under_overlapped_collectives_has_the_cause_that_it_began_with() -> None:
    def rank(extra: int) -> list[Op]:
        bucket: list[Op] = [Work(COMPUTE, 400), replace(SUM, overlapped=True)]
        return [
            Work(HOST, 20 + extra),
            Work(COMPUTE, 300),
            *bucket,
            *bucket,
            *bucket,
            Await("world"),
            Work(MEMORY, 100),
        ]

    (found,) = late(steps(rank(0), rank(0), rank(500)))
    assert (found.rank, found.cause, found.meetings, found.of) == (2, HOST, 15, 15)
    assert found.before == {name: 500_000 * (name == HOST) for name in LAYERS}


def test_causes_are_found_in_jobs_at_random() -> None:
    draw = random.Random(3)
    for _ in range(10):
        ranks, layer, extra = draw.randint(2, 6), draw.choice([COMPUTE, MEMORY, HOST]), draw.randint(200, 2000)
        slow = draw.randrange(ranks)
        programs: list[list[Op]] = []
        for rank in range(ranks):
            ops: list[Op] = [Work(COMPUTE, 300 + draw.randint(0, 20)), Work(MEMORY, 100 + draw.randint(0, 20))]
            programs.append([*ops, *[Work(layer, extra)] * (rank == slow), SUM])
        found = late(steps(*programs))[0]
        assert (found.rank, found.cause) == (slow, layer)
        assert abs(found.before[layer] - extra * 1000) <= 20_000
