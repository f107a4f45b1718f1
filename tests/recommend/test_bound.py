"""The bound is never above the best order there is, found by trying all; and it is the best one where it can be."""

from __future__ import annotations

import numpy as np
import pytest

from commbench.model.library import LIBRARIES
from commbench.model.placement import fill
from commbench.recommend.bound import bound, least_mean, least_time
from commbench.recommend.order import search
from commbench.recommend.score import Judge
from commbench.recommend.traffic import step
from commbench.recommend.tree import tree
from tests.recommend.clusters import Case, case, least, two_tiers


@pytest.mark.parametrize("part", range(8))
def test_no_order_is_faster_than_the_bound(part: int) -> None:
    for number in range(1000 + 100 * part, 1100 + 100 * part):
        some = case(number, (3, 4))
        found = bound(some.judge, some.seats, tree(some.cluster))
        assert 0 < found <= least(some) * (1 + 1e-9), f"case {number}: {some}"


@pytest.mark.parametrize("part", range(8))
def test_the_recommended_order_is_the_best_there_is(part: int) -> None:
    for number in range(25 * part, 25 * part + 25):
        some = case(number, (4, 4, 4, 5))
        units = tree(some.cluster)
        best = least(some)
        found = search(some.judge, some.seats, units, exact=True)
        assert found.score.seconds == pytest.approx(best, rel=1e-9), f"case {number}: {some}"
        assert bound(some.judge, some.seats, units) <= best * (1 + 1e-9), f"case {number}: {some}"


@pytest.mark.parametrize("part", range(8))
def test_the_search_finds_the_best_order_without_trying_all(part: int) -> None:
    missed = []
    for number in range(25 * part, 25 * part + 25):
        some = case(number, (4, 4, 4, 5))
        found = search(some.judge, some.seats, tree(some.cluster), seconds=60.0, exact=False)
        if found.score.seconds > least(some) * (1 + 1e-9):
            missed.append(f"case {number}: {some}")
    assert not missed


def test_a_ring_over_alike_leaves_is_on_its_bound() -> None:
    # one device a node, uplinks slower than NICs: each leaf's uplink carries the ring once, whatever the order
    cluster = two_tiers([4, 4, 4, 4], uplinks=[100.0] * 4)
    some = Case(
        cluster, fill(cluster, 16), Judge(step({"dp": 16}, {"dp": (1, 1 << 30)}), LIBRARIES["mpi"], {"dp": "ring"})
    )
    seconds = 2 * 15 / 16 * (1 << 30) / (100 * 1.25e8)
    assert bound(some.judge, some.seats, tree(cluster)) == pytest.approx(seconds)
    assert some.judge.score(some.seats).seconds == pytest.approx(seconds)


def test_one_unit_is_cut_as_little_as_a_rectangle_can_be() -> None:
    """By trying all sets of cells of a small grid: the bytes that leave a set, when each cut group sends one."""
    import itertools

    for rows, columns in ((3, 3), (2, 4), (4, 2)):
        cells = list(itertools.product(range(rows), range(columns)))
        for count in range(1, len(cells)):
            for price in ((1.0, 1.0), (1.0, 3.0)):
                best = min(_cut(some, (rows, columns), price) for some in itertools.combinations(cells, count))
                flows = [(0.0, price[0], columns), (0.0, price[1], rows)]
                assert least_time(count, 1.0, flows) <= best + 1e-9


def _cut(some: tuple[tuple[int, int], ...], sizes: tuple[int, int], price: tuple[float, float]) -> float:
    rows, columns = sizes
    along = [sum(cell[0] == row for cell in some) for row in range(rows)]
    across = [sum(cell[1] == column for cell in some) for column in range(columns)]
    return price[0] * sum(0 < count < columns for count in along) + price[1] * sum(0 < count < rows for count in across)


def test_all_units_together_send_no_less_than_the_mean_says() -> None:
    """By trying all ways to cut a grid of 2 x 3 into three pairs: a group on m of them sends m - 1."""
    import itertools

    best = min(
        sum(
            len({order.index(cell) // 2 for cell in group}) - 1
            for group in ((0, 1, 2), (3, 4, 5), (0, 3), (1, 4), (2, 5))
        )
        for order in itertools.permutations(range(6))
    )
    found = least_mean(np.array([2, 2, 2]), 1.0, np.zeros(2), np.ones(2), np.array([3.0, 2.0]))
    assert 0 < found <= best
    assert found == pytest.approx(best)  # pairs that hold the short axis whole cut the long one twice each
