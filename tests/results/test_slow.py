"""Which devices are called slow: the exact chance against a count of all cases, and runs of equal and unlike ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from commbench.results.slow import FALSE_ALARMS, Block, at_most, slow

Rates = list[dict[Block, float]]


def run(random: np.random.Generator, devices: int, blocks: int, factors: dict[int, float], noise: float) -> Rates:
    """Bandwidths of devices that are alike but for their factors: each block has its level, each visit its noise."""
    level = random.lognormal(0, 0.3, blocks)
    visits = level * random.lognormal(0, noise, (devices, blocks))
    for rank, factor in factors.items():
        visits[rank] *= factor
    return [{(0, 0, number): float(rate) for number, rate in enumerate(row)} for row in visits]


@pytest.mark.parametrize(("blocks", "number"), [(1, 4), (3, 2), (4, 3), (5, 4)])
def test_the_chance_of_a_sum_of_places_is_that_of_counting_all_cases(blocks: int, number: int) -> None:
    sums = [sum(case) for case in product(range(number), repeat=blocks)]
    for total in range(blocks * (number - 1) + 1):
        assert at_most(total, blocks, number) == pytest.approx(sum(one <= total for one in sums) / len(sums))


@pytest.mark.parametrize(("devices", "blocks"), [(2, 6), (3, 5), (8, 5), (8, 35), (32, 5)])
@pytest.mark.parametrize("factor", [1.0, 1 / 1.05])
def test_equal_devices_or_one_just_as_much_slower_are_seldom_named(devices: int, blocks: int, factor: float) -> None:
    """In a run of equal devices, and where one is as slow as is still allowed: 1 / SLOW."""
    random, runs = np.random.default_rng(11), 200
    alarms = sum(bool(slow(run(random, devices, blocks, {0: factor}, 0.1))) for _ in range(runs))
    assert alarms / runs <= FALSE_ALARMS + 3 * (FALSE_ALARMS * (1 - FALSE_ALARMS) / runs) ** 0.5


@pytest.mark.parametrize(("devices", "blocks", "slow_ones"), [(2, 6, [1]), (3, 5, [2]), (8, 5, [3]), (8, 6, [3, 4])])
def test_devices_that_are_a_fifth_slower_are_named_and_no_other(
    devices: int, blocks: int, slow_ones: list[int]
) -> None:
    random = np.random.default_rng(5)
    factors = dict.fromkeys(slow_ones, 0.8)
    found = [slow(run(random, devices, blocks, factors, 0.02)) for _ in range(50)]
    assert sum([one.rank for one in names] == slow_ones for names in found) >= 48
    assert all(one.share == pytest.approx(0.8, abs=0.05) and one.blocks == blocks for names in found for one in names)


def test_few_blocks_or_none_that_all_have_name_nobody() -> None:
    quick, tardy = {(0, 0, i): 10.0 for i in range(5)}, {(0, 0, i): 1.0 for i in range(5)}
    assert slow([quick, tardy]) == []  # five of two devices: one run in sixteen looks so
    six = {**quick, (0, 0, 5): 10.0}, {**tardy, (0, 0, 5): 1.0}
    assert [one.rank for one in slow(six)] == [1]
    assert slow([quick, {(0, 1, i): 1.0 for i in range(5)}]) == []
    assert slow([quick]) == []
