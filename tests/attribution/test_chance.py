"""How likely chance gives the waits that were seen: against a count of all ways to draw them."""

from __future__ import annotations

from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.chance import LEVEL, by_chance

Steps = list[dict[int, int]]


def exact(rank: int, steps: Steps) -> float:
    """The part of all draws, one of each step's waits, that sum up to what this rank has, or more."""
    sums = [sum(ones) for ones in product(*(step.values() for step in steps))]
    return fmean(one >= sum(step[rank] for step in steps) for one in sums)


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=6))
def test_the_bound_is_never_below_the_part_of_all_draws(rows: list[tuple[int, int, int]]) -> None:
    steps = [dict(enumerate(row)) for row in rows if any(row)]
    for rank, bound in by_chance(steps).items():
        most = sum(step[rank] == max(step.values()) for step in steps)
        ways = [sum(ones) for ones in product(*([1, 0, 0] for _ in steps))]
        signs = fmean(one >= most for one in ways)  # each is the most waited for in a third of all
        assert bound >= min(1.0, 2 * min(exact(rank, steps), signs)) - 1e-9


@pytest.mark.parametrize(("ranks", "steps"), [(2, 7), (3, 5), (8, 3), (64, 2)])
def test_a_rank_that_is_always_last_has_the_chance_of_so_many_draws(ranks: int, steps: int) -> None:
    found = by_chance([{rank: 9 * (rank == 1) for rank in range(ranks)}] * steps)
    assert found[1] == pytest.approx(2 * float(ranks) ** -steps, rel=1e-3)
    assert found[1] <= LEVEL / ranks
    assert found[0] == 1


def test_many_collectives_of_one_step_tell_no_more_than_one() -> None:
    assert by_chance([{0: 0, 1: 80 * 50}])[1] == pytest.approx(1)  # of two ranks one is always the last


def test_a_rank_far_behind_in_half_of_the_steps_is_no_chance_though_the_others_are_in_its_favour() -> None:
    """As with a fault in every other step. Most in 10 of 14 are 1471 of 16384 ways: the sign test is not enough."""
    steps: Steps = [{0: 0, 1: 50}] * 8 + [{0: 0, 1: 1}] * 2 + [{0: 1, 1: 0}] * 4
    assert by_chance(steps)[1] < LEVEL / 2


def test_one_huge_step_of_another_rank_does_not_hide_the_one_that_goes_on() -> None:
    steps: Steps = [{0: 0, 1: 3}] * 19 + [{0: 5000, 1: 0}]
    assert by_chance(steps)[1] < LEVEL / 2
    assert by_chance(steps)[0] > 0.5


def test_ranks_that_take_turns_are_chance() -> None:
    steps: Steps = [{rank: 4 * (rank == number % 3) for rank in range(3)} for number in range(30)]
    assert min(by_chance(steps).values()) > 0.5


def test_a_root_that_alone_can_be_late_tells_nothing() -> None:
    assert by_chance([{0: 30}] * 20) == {}
    assert by_chance([]) == {}


def test_of_healthy_jobs_no_more_are_convicted_than_the_level_says() -> None:
    """2000 jobs of 4 ranks and 20 steps whose waits are spread as widely as by a lognormal of sigma 2."""
    chance = np.random.default_rng(7)
    wrong = 0
    for _ in range(2000):
        waits = chance.lognormal(0, 2, (20, 4)) * (chance.random((20, 4)) < 0.6)
        wrong += min(by_chance([dict(enumerate(row)) for row in waits.tolist()]).values()) <= LEVEL / 4
    assert wrong <= 2000 * LEVEL
