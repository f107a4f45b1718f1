"""Skews on the common clock: folded over rounds, and the ranks that are late again and again."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.results.record import Record, fold
from commbench.results.skew import LATE_US, laggards
from tests.runs import bad_visit, cell, facts, group, record, visit


def on_clock(arrivals: list[float], **changes: Any) -> Record:
    fields: dict[str, Any] = {"method": "clock", "arrival_skew_us": arrivals, "exit_skew_us": [0.0] * len(arrivals)}
    return record(**(fields | {"skew_error_us": 0.5, "late_starts": 0} | changes))


def visit_on_clock(arrivals: list[float], exits: list[float], error: float, late: int) -> dict[str, Any]:
    return visit(arrival_skew_us=arrivals, exit_skew_us=exits, skew_error_us=error, late_starts=late)


# Folding


def test_a_ranks_skew_is_its_median_over_rounds_and_the_error_the_largest() -> None:
    visits = [
        visit_on_clock([0.0, 5.0, 1.0], [3.0, 0.0, 1.0], 0.25, 1),
        visit_on_clock([1.0, 9.0, 0.0], [2.0, 0.0, 1.0], 0.75, 0),
        visit_on_clock([0.0, 6.0, 2.0], [9.0, 0.0, 1.0], 0.5, 4),
    ]
    three = facts(groups={"all": group(nranks=3)})
    found = fold(three, cell(), visits)
    assert (found.arrival_skew_us, found.exit_skew_us) == ([0.0, 6.0, 1.0], [3.0, 0.0, 1.0])
    assert (found.skew_error_us, found.late_starts) == (0.75, 5)


def test_without_the_clock_there_is_no_skew() -> None:
    found = fold(facts(), cell(), [visit()])
    assert found.arrival_skew_us is None and found.exit_skew_us is None
    assert found.skew_error_us is None and found.late_starts is None


def test_visits_that_failed_have_no_say() -> None:
    visits = [bad_visit("failed"), visit_on_clock([0.0, 5.0], [1.0, 0.0], 0.25, 0)]
    found = fold(facts(groups={"all": group(nranks=2)}), cell(), visits)
    assert found.arrival_skew_us == [0.0, 5.0]
    assert fold(facts(), cell(), visits[:1]).arrival_skew_us is None


# Laggards


def test_a_rank_that_is_late_in_most_cells_is_named_with_how_much_and_how_sure() -> None:
    cells = [on_clock([0.0, 2000.0, 1.0, 3.0]), on_clock([0.0, 2100.0, 1.0, 3.0]), on_clock([0.0, 1900.0, 1.0, 3.0])]
    assert laggards(cells) == ["rank 1 is late: it arrives 2000 us after the first (± 0.5 us) in 3 of 3 cells"]


def test_several_may_be_late() -> None:
    lines = laggards([on_clock([0.0, 20.0, 0.0, 90.0])] * 4)
    assert [line.partition(" is ")[0] for line in lines] == ["rank 1", "rank 3"]


def test_late_now_and_then_is_not_late() -> None:
    late, prompt = on_clock([0.0, 2000.0, 0.0, 0.0]), on_clock([0.0, 1.0, 0.0, 0.0])
    assert laggards([late, late, prompt, prompt]) == []
    assert laggards([late, late, late, prompt, prompt]) != []


def test_two_cells_are_too_few() -> None:
    assert laggards([on_clock([0.0, 2000.0, 0.0, 0.0])] * 2) == []


@pytest.mark.parametrize(
    ("skew", "error", "late"), [(LATE_US, 0.0, 0), (LATE_US + 1, 0.0, 1), (50, 20, 0), (61, 20, 1)]
)
def test_what_the_clocks_error_may_explain_is_not_late(skew: float, error: float, late: int) -> None:
    assert len(laggards([on_clock([0.0, skew, 0.0, 0.0], skew_error_us=error)] * 3)) == late


def test_groups_have_laggards_of_their_own_named_by_their_rank_in_the_launch() -> None:
    left = [on_clock([0.0, 70.0], group="left", ranks="8,3", nranks=2)] * 3
    right = [on_clock([0.0, 1.0], group="right", ranks="1-2", nranks=2)] * 3
    assert [line.partition(" is late")[0] for line in laggards([*left, *right])] == ["rank 3 (group left)"]


def test_cells_without_a_time_or_a_clock_have_no_laggards() -> None:
    assert laggards([record()] * 5) == []
    assert laggards([on_clock([0.0, 2000.0, 0.0, 0.0], status="failed")] * 5) == []
