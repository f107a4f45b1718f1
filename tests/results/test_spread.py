"""The spread between launches, rounds and iterations, and what may be said of two sets: against pandas and by seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from commbench.results.spread import (
    CANNOT_TELL,
    DIFFERENT,
    LEVEL,
    SAME,
    Round,
    Spread,
    Times,
    _outside,
    by_turns,
    compare,
    components,
    two_peaks,
)

SEEDS = range(200)
# A rate of exactly LEVEL gives more alarms than this once in a thousand tests like these (scipy.stats.binom.isf).
MOST_ALARMS = 21


def made(
    seed: object,
    *,
    launches: int = 5,
    rounds: int = 6,
    samples: int = 32,
    spread: tuple[float, float, float] = (0.05, 0.03, 0.1),
    peaks: str = "",
    at: float = 2.0,
    often: float = 0.4,
) -> list[list[Round]]:
    """A cell around 10 us, spread so much by launch, round and iteration; at `peaks` it is, often, `at` times that."""
    chance = random.Random(f"spread {seed}")

    def factor(level: int, name: str) -> float:
        return chance.lognormvariate(0, spread[level]) * (at if name == peaks and chance.random() < often else 1.0)

    cell = []
    for _ in range(launches):
        of_launch, launch = 10 * factor(0, "launches"), []
        for _ in range(rounds):
            of_round = of_launch * factor(1, "rounds")
            times = [of_round * factor(2, "iterations") for _ in range(samples)]
            launch.append(Round(float(np.median(times)), samples, times))
        cell.append(launch)
    return cell


def test_the_components_are_those_of_nested_analysis_of_variance() -> None:
    pandas = pytest.importorskip("pandas")
    cell = made("anova", rounds=4)
    rows = [(i, np.log(visit.time_us)) for i, launch in enumerate(cell) for visit in launch]
    frame = pandas.DataFrame(rows, columns=["launch", "log"])
    within = frame.groupby("launch")["log"].var().mean()
    between = frame.groupby("launch")["log"].mean().var()
    deviations = np.concatenate(
        [abs(np.log(v.samples_us) - np.median(np.log(v.samples_us))) for launch in cell for v in launch]
    )
    single = 1.4826 * np.median(deviations) * math.sqrt(32 / 31)

    found = components(cell)

    assert found.iterations == pytest.approx(single)
    assert found.rounds == pytest.approx(math.sqrt(within - math.pi / 2 * single**2 / 32))
    assert found.launches == pytest.approx(math.sqrt(between - within / 4))
    squares = np.array([found.launches, found.rounds, found.iterations]) ** 2
    assert found.shares == pytest.approx(tuple(squares / squares.sum()))


@pytest.mark.parametrize("spread", [(0.05, 0.01, 0.02), (0.01, 0.05, 0.02), (0.0, 0.0, 0.1), (0.03, 0.03, 0.03)])
def test_what_was_put_in_at_each_level_is_found_again(spread: tuple[float, float, float]) -> None:
    found = components(made(spread, launches=60, rounds=12, spread=spread))
    assert (found.launches, found.rounds, found.iterations) == pytest.approx(spread, rel=0.25, abs=0.008)


def test_rare_stalls_are_no_spread_of_rounds() -> None:
    cell = made("stalls", spread=(0.0, 0.0, 0.02))
    stalled = [[Round(v.time_us, v.iterations, [*v.samples_us[1:], 1e4]) for v in launch] for launch in cell]
    assert components(stalled).iterations == pytest.approx(0.02, rel=0.2)


def test_what_was_not_repeated_has_no_spread() -> None:
    one = Round(10.0, 3, [9.0, 10.0, 11.0])
    assert components([[one]]).launches is None and components([[one]]).rounds is None
    assert components([[one], [one]]).rounds is None
    assert components([[Round(10.0, 1, [10.0])] * 2]).iterations is None
    assert components([]) == Spread(None, None, None)
    assert Spread(0.1, None, 0.1).shares is None
    assert Spread(0.0, 0.0, 0.0).shares is None


def test_times_below_the_step_of_the_clock_are_no_error() -> None:
    zeros = [[Round(0.0, 3, [0.0, 0.0, 0.0])] * 2] * 2
    assert components(zeros) == Spread(0.0, 0.0, 0.0)
    assert two_peaks(zeros) is None


@pytest.mark.parametrize("peaks", ["rounds", "iterations"])
def test_two_peaks_are_found_with_their_level(peaks: str) -> None:
    for seed in range(10):
        found = two_peaks(made(seed, launches=6, rounds=10, spread=(0.02, 0.02, 0.05), peaks=peaks))
        assert found is not None and found.level == peaks
        assert (found.low_us, found.high_us) == pytest.approx((10, 20), rel=0.05)
        assert 0.2 < found.high_share < 0.6


def test_peaks_by_launch_take_more_than_five_launches() -> None:
    cell = made("by launch", launches=12, spread=(0.01, 0.01, 0.05), peaks="launches")
    found = two_peaks(cell)
    assert found is not None and found.level == "launches"
    assert two_peaks(cell[:5]) is None


@pytest.mark.parametrize(
    "spread", [(0.05, 0.03, 0.1), (0.1, 0.01, 0.01), (0.01, 0.1, 0.01), (0.0, 0.0, 0.3), (0.05, 0.05, 0.01)]
)
@pytest.mark.parametrize("launches", [2, 5, 12])
def test_one_peak_is_not_called_two(spread: tuple[float, float, float], launches: int) -> None:
    found = [two_peaks(made(seed, launches=launches, rounds=5, samples=16, spread=spread)) for seed in range(40)]
    assert [peaks for peaks in found if peaks] == []


def shaped(values: Any) -> list[list[Round]]:
    return [[Round(float(np.median(values)), len(values), values.tolist())]]


def test_other_shapes_with_one_peak_are_not_called_two() -> None:
    chance = np.random.default_rng(1)
    shapes = (
        lambda: chance.uniform(1, 10, 100),
        lambda: chance.exponential(10, 100),
        lambda: np.exp(chance.standard_t(3, 100)),
        lambda: 10 + chance.standard_t(2, 100) ** 2,
    )
    for shape in shapes:
        assert sum(two_peaks(shaped(shape())) is not None for _ in range(200)) <= 4


def test_peaks_that_are_near_or_small_are_none() -> None:
    chance = np.random.default_rng(1)
    noise = chance.normal(0, 0.01, 1000)
    few = np.where(np.arange(1000) < 100, 20.0, 10.0)
    half = np.arange(1000) % 2
    assert two_peaks(shaped(few * np.exp(noise))) is None  # 10 % of the samples
    assert two_peaks(shaped(10 * 1.04**half * np.exp(noise / 5))) is None  # 4 % apart
    assert two_peaks(shaped(0.2 + 0.04 * half)) is None  # two steps of a clock
    assert two_peaks(shaped(10 * 1.1**half * np.exp(noise))) is not None
    assert two_peaks([]) is None


def launches_of(
    chance: random.Random, number: int, cells: int, *, shift: float = 1.0, spread: float = 0.03
) -> list[list[float]]:
    """Times of cells (cell by cell, launch by launch): launches share some of their spread; cell 0 is shifted."""
    together = [chance.lognormvariate(0, 0.02) for _ in range(number)]
    return [
        [(shift if cell == 0 else 1.0) * (10 + cell) * all_ * chance.lognormvariate(0, spread) for all_ in together]
        for cell in range(cells)
    ]


@pytest.mark.parametrize("number", [5, 6])
@pytest.mark.parametrize("cells", [1, 12])
def test_equal_sets_are_called_different_no_more_often_than_stated(number: int, cells: int) -> None:
    alarms = 0
    for seed in SEEDS:
        chance = random.Random(f"{seed}")
        halves = zip(launches_of(chance, number, cells), launches_of(chance, number, cells), strict=True)
        alarms += any(one.verdict == DIFFERENT for one in compare(list(halves), 0.05))
    assert alarms <= MOST_ALARMS


def test_halves_of_one_set_are_called_different_no_more_often_than_stated() -> None:
    alarms = 0
    for seed in SEEDS:
        sets = [by_turns(times) for times in launches_of(random.Random(f"halves {seed}"), 12, 6)]
        alarms += any(one.verdict == DIFFERENT for one in compare(sets, 0.05))
    assert alarms <= MOST_ALARMS


@pytest.mark.parametrize("cells", [1, 40])
def test_a_shift_of_a_fifth_is_found_by_five_launches_and_only_where_it_is(cells: int) -> None:
    found = []
    for seed in range(40):
        chance = random.Random(f"shift {seed}")
        a, b = launches_of(chance, 5, cells, shift=1.2), launches_of(chance, 5, cells)
        found.append([one.verdict == DIFFERENT for one in compare(list(zip(a, b, strict=True)), 0.05)])
    assert sum(row[0] for row in found) >= 38
    assert sum(any(row[1:]) for row in found) <= 4


def test_narrow_sets_are_the_same_and_wide_ones_leave_it_open() -> None:
    chance = random.Random("same")
    narrow = list(zip(launches_of(chance, 6, 3, spread=0.001), launches_of(chance, 6, 3, spread=0.001), strict=True))
    assert {one.verdict for one in compare(narrow, 0.1)} == {SAME}
    assert {one.verdict for one in compare(narrow, 0.0)} == {CANNOT_TELL}


@pytest.mark.parametrize("number", [2, 3])
def test_below_four_launches_of_each_nothing_can_be_told(number: int) -> None:
    (one,) = compare([([10.0] * number, [20.0] * number)], 0.05)
    assert (one.verdict, one.low, one.high) == (CANNOT_TELL, None, None)
    assert one.ratio == 0.5 and one.p > LEVEL


def test_p_counts_the_ways_of_labelling() -> None:
    a, b = [10.0, 11.0, 12.5, 11.5], [11.2, 12.0, 14.0, 13.0]
    logs = np.log([*a, *b])

    def student(chosen: Sequence[int]) -> float:
        one, other = logs[list(chosen)], np.delete(logs, list(chosen))
        scale = math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 2 * (1 / 4 + 1 / 4)) + 1e-3
        return abs(one.mean() - other.mean()) / scale

    ways = [student(chosen) for chosen in combinations(range(8), 4)]
    expected = np.mean([way >= ways[0] * (1 - 1e-9) for way in ways])
    assert compare([(a, b)], 0.05)[0].p == pytest.approx(expected)


def test_the_ratio_is_the_median_of_all_ratios_with_the_interval_of_mann_and_whitney() -> None:
    a, b = [10.0, 11.0, 12.0, 13.0, 14.0], [20.0, 21.0, 23.0, 24.0, 26.0]
    (one,) = compare([(a, b)], 0.05)
    ratios = np.sort(np.divide.outer(a, b).ravel())
    assert one.ratio == pytest.approx(np.median(ratios))
    assert (one.low, one.high) == pytest.approx((ratios[2], ratios[-3]))


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 4), (5, 5), (4, 6), (2, 7)])
def test_the_interval_covers_by_counting_every_order(n: int, m: int) -> None:
    counts = np.zeros(n * m + 1)
    for places in combinations(range(n + m), n):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    tails = np.cumsum(counts) / counts.sum()
    assert _outside(n, m) == int(np.sum(2 * tails <= LEVEL))


def test_launches_without_a_time_are_left_out() -> None:
    cells: list[tuple[Times, Times]] = [
        ([10.0, None, 10.1, 10.2, 10.0], [20.0, 20.1, None, 20.2, 20.1]),
        ([None] * 5, [1.0] * 5),
    ]
    shifted, nothing = compare(cells, 0.05)
    assert shifted.verdict == DIFFERENT and shifted.ratio == pytest.approx(0.5, rel=0.02)
    assert (nothing.verdict, nothing.ratio, nothing.p) == (CANNOT_TELL, None, 1.0)
    assert compare([], 0.05) == []


def test_many_launches_are_labelled_at_random_but_the_same_each_time() -> None:
    chance = random.Random("many")
    cells = list(zip(launches_of(chance, 12, 2, shift=1.1), launches_of(chance, 12, 2), strict=True))
    assert compare(cells, 0.05) == compare(cells, 0.05)
    assert compare(cells, 0.05)[0].verdict == DIFFERENT


def test_turns_are_those_in_which_two_commands_run() -> None:
    assert by_turns(list("abbaabba")) == (list("aaaa"), list("bbbb"))
