"""Which cell is visited next: the first pass, the shuffled rounds, and everything that ends them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, cast

import pytest

from commbench.measure import agenda as module
from commbench.measure.agenda import AUTO_SHARE, FIRST_PASS_SHARE, Agenda, foresee, precise
from commbench.measure.cell import Cell, batches
from commbench.measure.effort import FEWEST_ITERATIONS, MOST_ITERATIONS, Effort, fitting
from commbench.results.journal import Journal
from tests.runs import bad_visit, cell, planned, visit

SIZES = (8, 64, 512)
ALGORITHMS = ("ring", "auto", "tree")
CELLS = [cell(algorithm, size) for size in SIZES for algorithm in ALGORITHMS]


class FakeJournal:
    """Visits in memory."""

    def __init__(self, cells: int, session: int = 0) -> None:
        self.visits: dict[int, list[dict[str, Any]]] = {index: [] for index in range(cells)}
        self.session = session

    def append(self, visit: dict[str, Any]) -> None:
        self.visits[visit["cell"]].append(visit)

    def write_records(self, every: float) -> None:
        pass


class Clock:
    """Seconds that pass only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def effort(**changes: Any) -> Effort:
    """Ever more rounds, up to four, with neither precision nor time to end them sooner."""
    fields: dict[str, Any] = {
        "iterations": None,
        "warmup": 1,
        "rounds": 4,
        "precision": 0.0,
        "max_seconds": None,
        "budget": None,
        "concurrent": False,
    }
    return Effort(**(fields | {"check": True, "method": "barrier", "average": "max", "seed": 1} | changes))


def make(cells: list[dict[str, Any]], journal: FakeJournal, **changes: Any) -> Agenda:
    asked, plan = effort(**changes), planned(*cells)
    return Agenda(plan, batches(plan, asked.concurrent), cast(Journal, journal), asked)


Outcome = Callable[[int, int], dict[str, Any]]  # of cell and round


def good(index: int, number: int) -> dict[str, Any]:
    """A visit whose time differs from round to round, by a factor of up to two."""
    return visit([random.Random(f"{index}/{number}").uniform(1, 2)])


def carry_out(
    agenda: Agenda, journal: FakeJournal, clock: Clock, outcome: Outcome = good, seconds: float = 0.0, most: int = 1000
) -> list[int]:
    """Make the visits that the agenda asks for, each taking `seconds`, and return their cells."""
    visited = []
    for index, _ in agenda.steps():
        number = len(journal.visits[index])
        clock.now += seconds
        about = {"cell": index, "round": number, "session": journal.session, "seconds": seconds or 0.01}
        journal.append(outcome(index, number) | about)
        visited.append(index)
        assert len(visited) < most, "this never ends"
    return visited


def names(cells: Iterable[int]) -> list[tuple[str, int]]:
    return [(CELLS[index]["algorithm"], CELLS[index]["size"]) for index in cells]


def run(clock: Clock, cells: list[dict[str, Any]] = CELLS, **changes: Any) -> list[int]:
    journal = FakeJournal(len(cells))
    return carry_out(make(cells, journal, **changes), journal, clock)


# The first pass


def test_the_first_pass_visits_auto_first_then_the_others_each_from_small_to_large(clock: Clock) -> None:
    assert names(run(clock)[:9]) == [
        *(("auto", 8), ("auto", 64), ("auto", 512)),
        *(("ring", 8), ("tree", 8), ("ring", 64), ("tree", 64), ("ring", 512), ("tree", 512)),
    ]


def test_visits_of_the_first_pass_are_shorter_than_later_ones(clock: Clock) -> None:
    journal = FakeJournal(len(CELLS))
    seconds = []
    for index, aim in make(CELLS, journal, rounds=2).steps():
        journal.append(good(index, 0) | {"cell": index})
        seconds.append(aim)
    assert len(seconds) == 2 * len(CELLS)
    assert len(set(seconds[:9])) == len(set(seconds[9:])) == 1
    assert seconds[0] < seconds[9]


def test_cells_that_are_not_planned_are_never_visited(clock: Clock) -> None:
    cells = [cell("auto"), cell("nvls", status="not_applicable", reason="no NVLS on a CPU")]
    assert set(run(clock, cells)) == {0}


def test_nothing_planned_is_nothing_to_do(clock: Clock) -> None:
    assert run(clock, [cell("nvls", status="not_applicable", reason="no NVLS on a CPU")]) == []
    assert run(clock, []) == []


def test_no_cell_is_visited_twice_before_all_were_once(clock: Clock) -> None:
    assert sorted(run(clock)[:9]) == list(range(9))


def test_what_a_spent_share_of_the_budget_cuts_has_a_second_chance_and_is_then_not_measured(clock: Clock) -> None:
    journal = FakeJournal(len(CELLS))
    visited = []
    for index, _ in make(CELLS, journal, budget=40.0, rounds=1).steps():
        assert not any(one["status"] == "not_measured" for visits in journal.visits.values() for one in visits)
        clock.now += 9.0  # but little of it by the visit itself, so that nothing is foreseen
        journal.append(visit(cell=index))
        visited.append(index)
    # auto has 16 s: it may begin a second visit, not a third; the others have until 28 s.
    assert (AUTO_SHARE * 40, FIRST_PASS_SHARE * 40) == (16, 28)
    assert names(visited[:4]) == [("auto", 8), ("auto", 64), ("ring", 8), ("tree", 8)]
    assert names(visited[4:]) == [("auto", 512)]
    skipped = {index: visits for index, visits in journal.visits.items() if index not in visited}
    assert sorted(names(skipped)) == [("ring", 64), ("ring", 512), ("tree", 64), ("tree", 512)]
    for index, visits in skipped.items():
        assert [(one["cell"], one["round"], one["session"], one["status"]) for one in visits] == [
            (index, 0, 0, "not_measured")
        ]
        assert visits[0]["reason"] == "the budget of 40 s was spent on other cells"


def test_rounds_come_before_the_second_chance(clock: Clock) -> None:
    cells = [cell("auto", 8), cell("ring", 8), cell("ring", 64)]
    journal = FakeJournal(3)
    visited: list[int] = []
    for index, _ in make(cells, journal, budget=40.0, rounds=2).steps():
        clock.now += 15.0 if len(visited) < 2 else 1.0
        journal.append(visit(cell=index))
        visited.append(index)
    assert visited[:2] == [0, 1]
    assert sorted(visited[2:4]) == [0, 1]
    assert visited[4:] == [2, 2]  # its first visit, and then its rounds


def test_auto_alone_has_the_whole_first_pass(clock: Clock) -> None:
    cells = [cell("auto", size) for size in SIZES] + [cell("nvls", 8, status="not_applicable")]
    journal = FakeJournal(len(cells))
    visited = carry_out(make(cells, journal, budget=40.0), journal, clock, seconds=6.0)
    assert visited[:3] == [0, 1, 2]


def test_a_visit_that_is_foreseen_not_to_fit_is_not_begun(clock: Clock) -> None:
    cells = [cell("auto", size) for size in (1000, 10_000, 100_000, 1_000_000)]
    journal = FakeJournal(4)
    took = {0: 0.1, 1: 1.0, 2: 10.0}

    def outcome(index: int, number: int) -> dict[str, Any]:
        clock.now += took[index]
        return visit()

    agenda = make(cells, journal, budget=100.0, rounds=1)
    for index, _ in agenda.steps():
        journal.append(outcome(index, 0) | {"cell": index, "seconds": took[index]})
    assert [bool(one and one[0]["status"] == "ok") for one in journal.visits.values()] == [True, True, True, False]
    assert journal.visits[3][0]["reason"] == (
        "a visit was foreseen to take 100.0 s, and 88.9 s of the budget were left for it"
    )


def test_a_visit_foreseen_to_take_longer_than_a_cell_may_is_not_begun(clock: Clock) -> None:
    cells = [cell("auto", size) for size in (1000, 10_000, 100_000)]
    journal = FakeJournal(3)
    agenda = make(cells, journal, budget=1e6, max_seconds=5.0, rounds=1)
    for index, _ in agenda.steps():
        journal.append(visit(cell=index, seconds=10.0**index))
    assert [one[0]["status"] for one in journal.visits.values()] == ["ok", "ok", "not_measured"]
    assert journal.visits[2][0]["reason"] == (
        "a visit was foreseen to take 100.0 s, and a cell may take 5 s (--max-seconds)"
    )


def test_choosing_the_algorithm_is_no_part_of_a_cells_time(clock: Clock) -> None:
    cells = [cell("ring", size) for size in (1000, 10_000, 100_000)]
    journal = FakeJournal(3)
    agenda = make(cells, journal, budget=1e6, max_seconds=5.0, rounds=3)
    for index, _ in agenda.steps():
        journal.append(visit(cell=index, seconds=60.1, switch_us=60e6))
    assert [len(one) for one in journal.visits.values()] == [3, 3, 3]
    assert {one["status"] for visits in journal.visits.values() for one in visits} == {"ok"}


def test_where_a_choice_is_costly_the_first_pass_makes_each_once(clock: Clock) -> None:
    journal = FakeJournal(len(CELLS))
    plan, asked = planned(*CELLS), effort(rounds=1)
    agenda = Agenda(plan, batches(plan, False), cast(Journal, journal), asked, by_algorithm=True)
    visited = names(carry_out(agenda, journal, clock))
    assert visited[0][0] == "auto" and len(visited) == len(CELLS)
    blocks = [algorithm for algorithm, _ in groupby(visited, key=lambda one: one[0])]
    assert len(blocks) == len(set(blocks)) > 1
    for algorithm in blocks:
        sizes = [size for name, size in visited if name == algorithm]
        assert sizes == sorted(sizes)


def test_another_algorithm_or_data_type_tells_nothing_of_a_cells_time(clock: Clock) -> None:
    cells = [cell("auto", 8), cell("auto", 64, dtype="int8"), cell("ring", 64), cell("auto", 64, inplace=True)]
    journal = FakeJournal(4)
    agenda = make(cells, journal, budget=100.0, rounds=1, max_seconds=1.0)
    for index, _ in agenda.steps():
        journal.append(visit(cell=index, seconds=50.0 if index == 0 else 0.1))
    assert [one[0]["status"] for one in journal.visits.values()] == ["ok"] * 4


# The rounds


def test_each_round_visits_every_cell_once_in_blocks_of_one_algorithm(clock: Clock) -> None:
    visited = run(clock)
    assert len(visited) == 4 * 9
    for number in (1, 2, 3):
        in_round = visited[9 * number : 9 * number + 9]
        assert sorted(in_round) == list(range(9))
        assert len([name for name, _ in groupby(algorithm for algorithm, _ in names(in_round))]) == len(ALGORITHMS)


def test_cells_are_shuffled_within_their_block_and_blocks_among_each_other(clock: Clock) -> None:
    rounds = [names(run(clock, seed=seed))[9 * number : 9 * number + 9] for seed in range(20) for number in (1, 2, 3)]
    for algorithm in ALGORITHMS:
        assert len({tuple(size for name, size in one if name == algorithm) for one in rounds}) == 6  # all orders of 3
    assert len({tuple(dict.fromkeys(name for name, _ in one)) for one in rounds}) == 6


def test_protocols_make_blocks_of_their_own(clock: Clock) -> None:
    cells = [cell("ring", size, protocol=protocol) for size in SIZES for protocol in ("ll", "simple")]
    in_round = run(clock, cells)[6:12]
    assert len([protocol for protocol, _ in groupby(cells[index]["protocol"] for index in in_round)]) == 2


def test_the_seed_decides_the_order_and_rounds_differ(clock: Clock) -> None:
    orders = {seed: run(clock, seed=seed) for seed in (1, 2, 3)}
    assert orders[1] == run(clock, seed=1)
    assert len({tuple(order[9:18]) for order in orders.values()}) > 1
    assert all(order[:9] == orders[1][:9] for order in orders.values())
    assert orders[1][9:18] != orders[1][18:27]


# What ends them


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_a_cell_has_its_rounds(clock: Clock, rounds: int) -> None:
    visited = run(clock, rounds=rounds)
    assert {visited.count(index) for index in range(9)} == {rounds}


def test_a_cell_that_is_precise_enough_has_no_more_rounds(clock: Clock) -> None:
    journal = FakeJournal(2)

    def outcome(index: int, number: int) -> dict[str, Any]:
        return visit([10.0]) if index == 0 else visit([10.0 + number])  # steady, and drifting

    cells = [cell("auto"), cell("ring")]
    visited = carry_out(make(cells, journal, precision=0.01, rounds=9), journal, clock, outcome)
    assert (visited.count(0), visited.count(1)) == (5, 9)  # the least that has an interval


def test_fixed_iterations_turn_precision_off(clock: Clock) -> None:
    journal = FakeJournal(1)
    agenda = make([cell()], journal, iterations=20, precision=1.0, rounds=9)
    assert len(carry_out(agenda, journal, clock, lambda index, number: visit([10.0]))) == 9


def test_a_cell_has_no_more_than_its_seconds(clock: Clock) -> None:
    journal = FakeJournal(1)
    agenda = make([cell()], journal, rounds=100, max_seconds=10.0)
    assert len(carry_out(agenda, journal, clock, seconds=3.0)) == 4


def test_a_spent_budget_ends_the_run_in_the_middle_of_a_round(clock: Clock) -> None:
    journal = FakeJournal(len(CELLS))
    visited = carry_out(make(CELLS, journal, budget=20.0, rounds=100), journal, clock, seconds=1.0)
    assert len(visited) == 20


def test_without_a_budget_nothing_is_cut(clock: Clock) -> None:
    journal = FakeJournal(len(CELLS))
    visited = carry_out(make(CELLS, journal, rounds=3), journal, clock, seconds=1e6)
    assert len(visited) == 27
    assert make(CELLS, journal).seconds_left() is None


@pytest.mark.parametrize("status", ["wrong", "rejected", "substituted", "failed", "timeout"])
def test_a_cell_that_went_badly_is_not_visited_again_in_this_session(clock: Clock, status: str) -> None:
    journal = FakeJournal(2)

    def outcome(index: int, number: int) -> dict[str, Any]:
        return bad_visit(status) if index == 0 else good(index, number)

    visited = carry_out(make([cell("auto"), cell("ring")], journal), journal, clock, outcome)
    assert (visited.count(0), visited.count(1)) == (1, 4)


def test_a_cell_that_goes_badly_later_stops_there(clock: Clock) -> None:
    journal = FakeJournal(1)

    def outcome(index: int, number: int) -> dict[str, Any]:
        return bad_visit("wrong") if number == 2 else good(index, number)

    assert len(carry_out(make([cell()], journal, rounds=9), journal, clock, outcome)) == 3


# Resumed


def resumed(*visits: dict[str, Any], session: int = 1) -> FakeJournal:
    """The journal of one cell with the visits of earlier sessions."""
    journal = FakeJournal(1, session)
    journal.visits[0] = list(visits)
    return journal


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ([], 4),
        ([visit()], 3),
        ([visit()] * 4, 0),
        ([bad_visit("failed")], 4),
        ([bad_visit("timeout")], 4),
        ([visit(), bad_visit("timeout")], 3),
        ([bad_visit("not_measured")], 4),
        ([bad_visit("wrong")], 0),
        ([bad_visit("rejected")], 0),
        ([bad_visit("substituted")], 0),
        ([visit(), bad_visit("wrong")], 0),
        ([bad_visit("failed", session=1)], 0),
    ],
    ids=[
        "nothing",
        "ok",
        "all ok",
        "failed",
        "timeout",
        "ok, timeout",
        "not measured",
        "wrong",
        "rejected",
        "substituted",
        "ok, wrong",
        "failed in this session",
    ],
)
def test_a_resumed_run_goes_on_with_what_it_lacks(clock: Clock, before: list[dict[str, Any]], again: int) -> None:
    journal = resumed(*before)
    assert len(carry_out(make([cell()], journal), journal, clock)) == again


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_what_failed_is_tried_once_in_each_session(clock: Clock, status: str) -> None:
    for session in (1, 2, 3):
        journal = resumed(*(bad_visit(status, session=earlier) for earlier in range(session)), session=session)
        visited = carry_out(make([cell()], journal), journal, clock, lambda index, number: bad_visit(status))
        assert visited == [0]


def test_a_resumed_run_measures_nothing_twice(clock: Clock) -> None:
    whole = FakeJournal(len(CELLS))
    carry_out(make(CELLS, whole), whole, clock)
    for killed in (1, 5, 9, 10, 23, 36):
        journal = FakeJournal(len(CELLS))
        steps = make(CELLS, journal).steps()
        for _ in range(killed):
            index, _ = next(steps)
            number = len(journal.visits[index])
            journal.append(good(index, number) | {"cell": index, "round": number})
        journal.session = 1
        again = carry_out(make(CELLS, journal), journal, clock)
        assert killed + len(again) == 36
        assert {index: len(visits) for index, visits in journal.visits.items()} == dict.fromkeys(range(9), 4)


# What a person sees meanwhile


def test_finished_cells_are_counted(clock: Clock) -> None:
    cells = [cell("auto"), cell("ring"), cell("tree"), cell("nvls", status="not_applicable")]
    journal = FakeJournal(4)
    agenda = make(cells, journal)
    assert agenda.finished() == 1
    journal.append(bad_visit("rejected", cell=1))
    assert agenda.finished() == 2
    for number in range(4):
        assert agenda.finished() == 2
        journal.append(good(0, number))
    assert agenda.finished() == 3
    carry_out(agenda, journal, clock)
    assert agenda.finished() == 4


def test_the_seconds_left_count_down_to_none(clock: Clock) -> None:
    agenda = make(CELLS, FakeJournal(len(CELLS)), budget=50.0)
    left = []
    for _ in range(4):
        left.append(agenda.seconds_left())
        clock.now += 20.0
    assert left == pytest.approx([50.0, 30.0, 10.0, 0.0])


# How many iterations


def test_iterations_that_were_asked_for_are_made(clock: Clock) -> None:
    journal = resumed(visit(pace_us=100.0))
    assert make([cell()], journal, iterations=20).iterations(0, 0.03) == 20


def test_the_pace_of_the_visit_before_says_how_many_fit(clock: Clock) -> None:
    journal = resumed(visit(pace_us=10.0), visit(pace_us=100.0))
    assert make([cell()], journal).iterations(0, 0.03) == 300


@pytest.mark.parametrize("before", [[], [visit()], [bad_visit("failed")]], ids=["nothing", "no pace", "failed"])
def test_without_a_pace_the_ranks_find_out(clock: Clock, before: list[dict[str, Any]]) -> None:
    assert make([cell()], resumed(*before)).iterations(0, 0.03) == 0


@pytest.mark.parametrize(
    ("pace", "iterations"), [(1e-4, 300), (1e-9, MOST_ITERATIONS), (1.0, FEWEST_ITERATIONS), (0.011, FEWEST_ITERATIONS)]
)
def test_iterations_stay_within_bounds(pace: float, iterations: int) -> None:
    assert fitting(pace, 0.03) == iterations
    assert (FEWEST_ITERATIONS, MOST_ITERATIONS) == (3, 1000)


# Foreseen from smaller sizes


@pytest.mark.parametrize(
    ("measured", "size", "seconds"),
    [
        ([(100, 2.0)], 1000, 2.0),  # one alone says nothing of growth
        ([(100, 2.0), (1000, 20.0)], 10_000, 200.0),  # linear
        ([(100, 2.0), (1000, 200.0)], 10_000, 2000.0),  # never more than linear
        ([(100, 2.0), (1000, 2.0)], 10_000, 2.0),  # latency only
        ([(100, 2.0), (1000, 1.0)], 10_000, 1.0),  # never less than the last
        ([(100, 1.0), (10_000, 10.0)], 1_000_000, 100.0),  # the square root
        ([(1, 7.0), (100, 2.0), (1000, 20.0)], 10_000, 200.0),  # the last two
    ],
)
def test_the_time_of_a_size_is_foreseen_by_the_growth_of_the_last_two(
    measured: list[tuple[int, float]], size: int, seconds: float
) -> None:
    assert foresee(measured, size) == pytest.approx(seconds)


def test_precision_is_the_wider_half_of_the_interval_over_the_median() -> None:
    visits = [visit([time]) for time in (98.0, 99.0, 100.0, 101.0, 104.0)]
    assert precise(visits, 0.04)
    assert not precise(visits, 0.039)
    assert not precise(visits[:4], 1.0), "below five rounds there is no interval"


def test_a_cells_time_is_foreseen_without_a_look_at_all_others(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    looks, kin = 0, module._kin

    def counted(cell: Cell) -> tuple[Any, ...]:
        nonlocal looks
        looks += 1
        return kin(cell)

    monkeypatch.setattr(module, "_kin", counted)
    cells = [cell(algorithm, size) for size in range(8, 1608, 8) for algorithm in ALGORITHMS]
    journal = FakeJournal(len(cells))
    carry_out(make(cells, journal, rounds=1, budget=1e9), journal, clock)
    assert len(cells) < looks < 4 * len(cells)


def test_what_was_foreseen_in_an_earlier_session_is_foreseen_again(clock: Clock) -> None:
    cells = [cell("auto", size) for size in (8, 64, 512)]
    journal = FakeJournal(3, session=1)
    for index, seconds in ((0, 1.0), (1, 8.0)):
        journal.append(visit() | {"cell": index, "session": 0, "seconds": seconds})
    carry_out(make(cells, journal, rounds=1, max_seconds=30.0), journal, clock)
    assert journal.visits[2][0]["reason"].startswith("a visit was foreseen to take 64.0 s")
