"""The clocks of ranks made one, and what each may be off."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.clocks import (
    ASSUMED,
    FROM_TRACES,
    MEASURED,
    SHARED,
    UNKNOWN_ERROR,
    Alignment,
    Reading,
    align,
    known,
    read_readings,
    theil_sen,
)
from commbench.attribution.matching import match
from commbench.attribution.trace import Call, Trace
from commbench.errors import UsageError
from tests.attribution.jobs import MS, call, trace, world

EPOCH = 1_796_000_000_000_000_007  # ns: beyond what a float holds exactly
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def clock(true: int, offset: int, drift: float) -> int:
    """What a clock shows that was `offset` ns ahead at EPOCH and gains `drift` seconds a second."""
    return true + offset + round((true - EPOCH) * drift)


def job(clocks: list[tuple[int, float]], n: int = 24, jitter: int = 0, seed: int = 1, **changes: Any) -> list[Trace]:
    """Ranks on hosts of their own, with n all-reduces over a minute whose ends are scattered by jitter."""
    draw = random.Random(seed)
    group = tuple(range(len(clocks)))
    columns = []
    for offset, drift in clocks:
        column = []
        for k in range(n):
            end = EPOCH + (k + 1) * MINUTE // n + draw.randint(-jitter, jitter)
            start = end - draw.randint(1, 5) * MS
            column.append(call(clock(start, offset, drift), clock(end, offset, drift), group=group))
        columns.append(column)
    return [
        trace(rank, column, ranks=len(clocks), host=f"node{rank}", **changes) for rank, column in enumerate(columns)
    ]


def off(alignment: Alignment, offset: int, drift: float, reference: tuple[int, float] = (0, 0.0)) -> int:
    """How far common times are off in the worst case over the minute."""
    times = [EPOCH + k * MINUTE // 10 for k in range(11)]
    return max(abs(alignment.common(clock(t, offset, drift)) - clock(t, *reference)) for t in times)


# One host


def test_ranks_of_one_host_share_its_clock_to_the_resolution_of_the_files() -> None:
    fine = align(world([call(1, 2)], [call(1, 2)]), {})
    assert [(one.source, one.offset, one.error, one.resolution) for one in fine] == [(SHARED, 0, 1, 1)] * 2
    coarse = align(world([call(1000, 2000)], [call(1000, 3000)]), {})
    assert [(one.error, one.resolution) for one in coarse] == [(1000, 1000)] * 2
    assert fine[0].clock == fine[1].clock


def test_times_that_are_not_since_1970_are_on_a_clock_of_their_own() -> None:
    one, two = align(world([call(1, 2)], [call(1, 2)], unix=False), {})
    assert one.clock != two.clock and two.source == ASSUMED and two.error >= UNKNOWN_ERROR


def test_readings_do_not_move_ranks_of_one_host_apart() -> None:
    readings = {1: [Reading(0, 5000, 100)]}
    assert [one.offset for one in align(world([call(1, 2)], [call(1, 2)]), readings)] == [0, 0]


# Readings


def readings_of(offset: int, drift: float, errors: tuple[int, ...], seed: int = 0) -> list[Reading]:
    """Readings at the start and at the end of the minute, each wrong by no more than it says."""
    draw = random.Random(seed)
    found = []
    for true in (EPOCH, EPOCH + MINUTE):
        for error in errors:
            found.append(Reading(clock(true, offset, drift), true + draw.randint(-error, error), error))
            true += MS
    return found


@settings(max_examples=30)
@given(
    st.integers(-10 * SECOND, 10 * SECOND),
    st.floats(-5e-5, 5e-5),
    st.lists(st.integers(0, 50_000), min_size=1, max_size=5),
)
def test_by_readings_common_times_are_within_the_stated_error(offset: int, drift: float, errors: list[int]) -> None:
    clocks = [(0, 0.0), (offset, drift)]
    readings = {rank: readings_of(*of, tuple(errors), rank) for rank, of in enumerate(clocks)}
    found = align(job(clocks), readings)
    assert [one.source for one in found] == [MEASURED] * 2
    assert off(found[1], *clocks[1]) <= found[1].error
    assert found[1].error <= min(errors) * 1.5 + 10  # the best readings decide


def test_a_single_reading_leaves_the_drift_open_and_says_so() -> None:
    clocks = [(0, 0.0), (5 * MS, 2e-5)]
    readings = {0: readings_of(0, 0.0, (0,)), 1: readings_of(*clocks[1], (100,))[:1]}
    found = align(job(clocks), readings)
    assert found[1].drift == 0.0
    assert off(found[1], *clocks[1]) <= found[1].error == pytest.approx(6 * MS, rel=0.1)  # 100 ppm of a minute


def test_ranks_of_a_host_take_the_readings_of_the_one_among_them_that_read_best() -> None:
    traces = [trace(0, [call(1, 2)], host="a"), trace(1, [call(1, 2)], host="b"), trace(2, [call(1, 2)], host="b")]
    found = align(traces, {0: [Reading(0, 0, 0)], 1: [Reading(0, 70, 50)], 2: [Reading(0, 90, 10)]})
    assert [one.offset for one in found] == [0, 90, 90]
    assert found[1].clock == found[2].clock != found[0].clock


def test_a_clock_that_does_not_drift_evenly_is_off_by_what_other_readings_say() -> None:
    clocks = [(0, 0.0), (0, 0.0)]
    bent = [
        Reading(EPOCH, EPOCH, 10),
        Reading(EPOCH + MINUTE // 2, EPOCH + MINUTE // 2 + 5000, 20),
        Reading(EPOCH + MINUTE, EPOCH + MINUTE, 10),
    ]
    found = align(job(clocks), {0: readings_of(0, 0.0, (0,)), 1: bent})
    assert found[1].error == 5000 + 20 + 1


# From the traces


@settings(max_examples=30)
@given(st.integers(-SECOND, SECOND), st.floats(-5e-5, 5e-5), st.integers(0, 10**6), st.sampled_from([0, 2_000, 50_000]))
def test_by_ends_common_times_are_within_the_stated_error(offset: int, drift: float, seed: int, jitter: int) -> None:
    clocks = [(0, 0.0), (offset, drift), (-offset, 2e-5)]
    traces = job(clocks, jitter=jitter, seed=seed)
    found = align(traces, {}, match(traces).meetings)
    assert [one.source for one in found] == [ASSUMED, FROM_TRACES, FROM_TRACES]
    for one, of in zip(found[1:], clocks[1:], strict=True):
        assert off(one, *of) <= one.error
        assert one.error <= 6 * jitter + 10


def test_collectives_that_end_late_on_one_rank_now_and_then_do_not_move_its_clock() -> None:
    clocks = [(0, 0.0), (3 * MS, 1e-5)]
    traces = job(clocks, jitter=1000)
    column = list(traces[1].calls)
    for k in range(0, len(column), 4):
        column[k] = call(column[k].start, (column[k].end or 0) + 20 * MS, group=(0, 1))
    found = align([traces[0], trace(1, column, ranks=2, host="node1")], {}, match(traces).meetings)
    assert off(found[1], *clocks[1]) < 2000


def test_a_clock_that_no_collective_ties_to_the_first_is_tied_by_one_in_between() -> None:
    times = [EPOCH + k * SECOND for k in range(10)]
    near = [call(t, t + MS, group=(0, 1)) for t in times]
    far = [call(t + 2 * MS, t + 3 * MS, group=(1, 2)) for t in times]
    middle = [
        call((c.start or 0) + 7, (c.end or 0) + 7, group=c.group) for pair in zip(near, far, strict=True) for c in pair
    ]
    last = [call((c.start or 0) + 500, (c.end or 0) + 500, group=c.group) for c in far]
    traces = [trace(rank, c, ranks=3, host=str(rank)) for rank, c in enumerate((near, middle, last))]
    assert [one.offset for one in align(traces, {}, match(traces).meetings)] == [0, -7, -500]


def test_without_anything_to_tell_by_nothing_is_claimed() -> None:
    found = align(job([(0, 0.0), (5, 0.0)]), {})
    assert [(one.source, one.error >= UNKNOWN_ERROR) for one in found] == [(ASSUMED, False), (ASSUMED, True)]
    assert align([], {}) == ()


def test_rooted_collectives_and_messages_set_no_clock() -> None:
    columns = [[call(0, 1, operation="broadcast", root=0)], [call(5, 6, operation="broadcast", root=0)]]
    traces = [trace(rank, column, host=str(rank)) for rank, column in enumerate(columns)]
    assert align(traces, {}, match(traces, partial=True).meetings)[1].source == ASSUMED


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-1000, 1000)), min_size=2, max_size=40))
def test_the_slope_is_the_median_over_all_pairs(points: list[tuple[int, int]]) -> None:
    points.sort()
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    x, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    assert theil_sen(x, y) == pytest.approx(np.median(slopes) if slopes else 0.0)


def test_of_many_points_the_slope_comes_from_a_bounded_number_of_pairs() -> None:
    generator = np.random.default_rng(5)
    x = np.arange(200_000, dtype=float)
    y = 3e-3 * x + generator.standard_cauchy(len(x))
    assert theil_sen(x, y) == pytest.approx(3e-3, rel=1e-3)


# Common times


@given(st.integers(0, 10**12), st.integers(-(10**12), 10**12), st.floats(-1e-4, 1e-4))
def test_an_array_of_times_becomes_what_each_of_them_becomes(local: int, offset: int, drift: float) -> None:
    one = Alignment(MEASURED, offset, drift, since=EPOCH)
    times = [EPOCH + local, EPOCH + 2 * local]
    assert one.common(np.array(times)).tolist() == [one.common(time) for time in times]


def test_an_error_that_is_not_known_stays_so_along_a_chain_of_clocks() -> None:
    """One meeting of each pair of neighbours: one end has no scatter, and nothing tells how far it is off."""
    hosts = 5
    columns: list[list[Call]] = [[] for _ in range(hosts)]
    for one in range(hosts - 1):
        at = (one + 1) * 50 * MS
        for rank in (one, one + 1):
            columns[rank].append(call(at, at + 2 * MS, group=(one, one + 1), group_name=f"pair{one}"))
    traces = [trace(rank, calls, ranks=hosts, host=f"h{rank}") for rank, calls in enumerate(columns)]
    found = align(traces, {}, match(traces).meetings)
    assert [known(one.error) is None for one in found] == [False] + [True] * (hosts - 1)


# Files


def write(path: Path, **changes: Any) -> Path:
    readings = [{"local": 1, "common": 2, "error": 3}]
    path.write_text(json.dumps({"format": 1, "rank": 0, "host": "a", "readings": readings} | changes))
    return path


def test_files_of_readings_are_read_by_rank(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"clock-rank{n}.json", rank=n, readings=[{"local": EPOCH + n, "common": EPOCH, "error": 7}])
        for n in (1, 0)
    ]
    assert read_readings(paths) == {n: (Reading(EPOCH + n, EPOCH, 7),) for n in (0, 1)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, r"have format 1, and .*rank0\.json has 2"),
        ({"readings": []}, "has no readings"),
        ({"readings": [{"local": 1, "common": 2, "error": -1}]}, "negative errors"),
        ({"readings": [{"local": 1}]}, "KeyError 'common'"),
        ({"readings": 5}, "no file of clock readings"),
        ({"rank": None}, "no file of clock readings"),
        ({"readings": [{"local": 1, "common": float("inf"), "error": 1}]}, "no file of clock readings"),
        ({"readings": [{"local": 1, "common": -(10**30), "error": 1}]}, "which no clock shows"),
    ],
)
def test_files_that_hold_something_else_are_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "clock-rank0.json", **changes)
    with pytest.raises(UsageError, match=said):
        read_readings([path])


def test_files_that_are_not_there_or_twice_of_a_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_readings([tmp_path / "clock-rank0.json"])
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"deep\.json is no file of clock readings \(RecursionError"):
        read_readings([tmp_path / "deep.json"])
    paths = [write(tmp_path / name) for name in ("a.json", "b.json")]
    with pytest.raises(UsageError, match=r"a\.json and .*b\.json are both of 0"):
        read_readings(paths)
