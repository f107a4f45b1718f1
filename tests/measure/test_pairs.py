"""Who meets whom, what is asked next, and what a run's visits amount to; the messages themselves are in tests/mpi."""

from __future__ import annotations

import io
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.measure import messages, pairs, pairs_screen
from commbench.measure.pairs import names_of, read
from commbench.measure.site import Seat
from commbench.measure.tournament import (
    ALLREDUCE,
    FEWEST_TO_HALVE,
    INCAST,
    MOST_PAIRS,
    PINGPONG,
    STREAM,
    Duty,
    Halving,
    Verdict,
    circle,
    incast_visits,
    incasts,
    left_over,
    pair_visits,
)
from commbench.measure.tournament import pairs as all_pairs
from commbench.results import matrix
from commbench.results.status import NOT_MEASURED, OK, TIMEOUT, WRONG


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 33])
def test_everyone_meets_everyone_once_and_one_at_a_time(n: int) -> None:
    turns = list(circle(range(n)))
    assert len(turns) == n - 1 + n % 2
    for turn in turns:
        busy = [place for pair in turn for place in pair]
        assert len(set(busy)) == len(busy) == n - n % 2
    assert sorted(pair for turn in turns for pair in turn) == list(combinations(range(n), 2))


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_each_round_visits_each_cell_once(n: int, concurrent: bool) -> None:
    plan = all_pairs(range(n), [f"h{i}" for i in range(n)], 8, 1024)
    visits = list(pair_visits(n, 3, 1, concurrent))
    seen = Counter((visit.number, cell) for visit in visits for cell in visit.cells)
    assert seen == Counter((number, cell) for number in range(3) for cell in range(len(plan.duties)))
    for visit in visits:
        busy = [rank for cell in visit.cells for rank in plan.duties[cell].ranks]
        assert len(set(busy)) == len(busy)
        assert len({(plan.duties[cell].kind) for cell in visit.cells}) == 1
        assert concurrent or len(visit.cells) == 1


def test_who_meets_at_once_differs_between_rounds_and_is_the_same_again_with_the_same_seed() -> None:
    visits = list(pair_visits(8, 2, 1, True))
    assert {visit.cells for visit in visits if visit.number == 0} != {v.cells for v in visits if v.number == 1}
    assert visits == list(pair_visits(8, 2, 1, True))
    assert visits != list(pair_visits(8, 2, 2, True))


def test_a_pair_is_a_pingpong_and_a_stream_each_way() -> None:
    plan = all_pairs([0, 4], ["a", "b"], 8, 1024)
    assert plan.duties == [
        Duty(PINGPONG, (0, 4), None, 8),
        Duty(STREAM, (0, 4), 0, 1024),
        Duty(STREAM, (0, 4), 4, 1024),
    ]
    assert plan.owners == ["a - b"] * 3


def test_too_many_pairs_are_refused() -> None:
    n = int((2 * MOST_PAIRS) ** 0.5) + 2
    with pytest.raises(UsageError, match=f"{n} nodes or ranks"):
        all_pairs(range(n), ["h"] * n, 8, 8)


def test_an_incast_has_its_receiver_first_and_counts_what_it_gets() -> None:
    plan = incasts([0, 4, 8, 12], ["a", "b", "c", "d"], 2, 100)
    assert plan.duties[3] == Duty(INCAST, (12, 0, 4), 12, 100)
    assert plan.duties[3].volume == 200
    seen = Counter((visit.number, visit.cells) for visit in incast_visits(4, 2, 1))
    assert seen == Counter((number, (cell,)) for number in range(2) for cell in range(4))
    for senders in (0, 4):
        with pytest.raises(UsageError, match="from 1 to 3"):
            incasts([0, 4, 8, 12], ["a", "b", "c", "d"], senders, 100)


def test_what_a_receiver_has_room_for_is_bounded() -> None:
    assert messages.room(Duty(STREAM, (0, 1), 0, 1 << 20)) == 8 << 20
    assert messages.room(Duty(STREAM, (0, 1), 0, 1 << 30)) == 1 << 30
    assert messages.room(Duty(INCAST, (0, 1, 2, 3), 0, 16 << 20)) == 48 << 20
    assert messages.room(Duty(PINGPONG, (0, 1), None, 8)) == 8


def test_no_two_ranks_and_rounds_send_the_same() -> None:
    sent = [messages.pattern(rank, number, 4096).tobytes() for rank in range(8) for number in range(5)]
    assert len(set(sent)) == len(sent)
    assert messages.pattern(1, 0, 1 << 20).size == 1 << 20


def search(n: int, bad: set[int], rounds: int = 5, factor: float = 3.0) -> tuple[Verdict | None, set[int]]:
    """Halve `n` places of which some are bad; return the verdict and the cells that were measured."""
    halving = Halving(range(100, 100 + n), [f"h{i}" for i in range(n)], 1024)
    journal: dict[int, list[dict[str, Any]]] = {cell: [] for cell in range(len(halving.plan.duties))}
    random = np.random.default_rng(n)
    for visit in halving.visits(journal, rounds):
        (cell,) = visit.cells
        duty = halving.plan.duties[cell]
        assert duty.kind == ALLREDUCE
        assert len(set(duty.ranks)) == len(duty.ranks) >= 2
        slow = any(rank - 100 in bad for rank in duty.ranks)
        time = len(duty.ranks) * (factor if slow else 1.0) * float(np.exp(random.normal(0, 0.05)))
        assert left_over(journal[cell], visit.number)
        journal[cell].append({"status": OK, "round": visit.number, "median_us": time})
    assert all(len(visits) in (0, rounds) for visits in journal.values())
    return halving.verdict(journal, rounds), {cell for cell, visits in journal.items() if visits}


@pytest.mark.parametrize("n", [4, 5, 6, 7, 8, 9, 13, 33, 64])
def test_halving_finds_the_one_bad_place(n: int) -> None:
    for bad in range(n):
        verdict, measured = search(n, {bad})
        assert verdict is not None
        assert verdict.places == (bad,)
        assert verdict.factor == pytest.approx(3, rel=0.2)
        assert len(measured) <= 2 * (n.bit_length() + 1)
        # A question of two cells each, and of an odd number the first one may be answered: neither half.
        answered = len(measured) // 2 - (n % 2 == 1 and bad == n - 1)
        assert verdict.rounds_shown == 5
        assert verdict.p == pytest.approx(answered * 0.5**5, abs=0.001)


@pytest.mark.parametrize("n", [4, 5, 8, 9])
def test_halving_finds_nothing_where_nothing_is_wrong(n: int) -> None:
    verdict, measured = search(n, set())
    assert verdict == Verdict((), 1.0, 1.0, 0)
    assert len(measured) == 2 + 2 * (n % 2)


def test_halving_ends_where_both_halves_are_slow() -> None:
    verdict, _ = search(16, {9, 14})
    assert verdict is not None
    assert set(verdict.places) == set(range(8, 16))


def test_halves_have_one_size() -> None:
    for n in range(FEWEST_TO_HALVE, 40):
        duties = Halving(range(n), ["h"] * n, 8).plan.duties
        assert [len(one.ranks) for one in duties[::2]] == [len(other.ranks) for other in duties[1::2]]


def test_halving_needs_enough_places() -> None:
    with pytest.raises(UsageError, match="at least 4"):
        Halving(range(3), ["h"] * 3, 8)


def test_halving_stops_at_a_wrong_answer() -> None:
    halving = Halving(range(4), ["h"] * 4, 8)
    journal: dict[int, list[dict[str, Any]]] = {cell: [] for cell in range(len(halving.plan.duties))}
    journal[0].append({"status": WRONG, "round": 0})
    assert list(halving.visits(journal, 3)) == []
    assert halving.verdict(journal, 3) is None


def test_what_is_left_over() -> None:
    visits = [{"round": 0, "status": OK}, {"round": 1, "status": TIMEOUT}, {"round": 2, "status": NOT_MEASURED}]
    assert [left_over(visits, number) for number in range(4)] == [False, True, True, True]


def test_places_are_one_rank_a_node_or_all_ranks_of_one() -> None:
    two_nodes = [Seat("a", 0, 0, ""), Seat("a", 0, 1, ""), Seat("b", 1, 0, ""), Seat("b", 1, 1, "")]
    assert names_of(two_nodes) == ([0, 2], ["a", "b"])
    assert names_of(two_nodes[:2]) == ([0, 1], ["rank 0", "rank 1"])
    assert names_of([Seat("a", 0, 0, ""), Seat("a", 1, 0, "")]) == ([0, 1], ["a (0)", "a (1)"])


def test_the_options_are_understood() -> None:
    options = read(["-e", "4M", "--rounds", "3", "--budget", "0", "--concurrent", "off"])
    assert options.plan == {
        "mode": "pairs",
        "senders": None,
        "small": 8,
        "large": 4 << 20,
        "concurrent": False,
        "iterations": None,
        "rounds": 3,
        "budget": None,
        "seed": 1,
    }
    assert options.given == {"large", "rounds", "budget", "concurrent"}
    assert read(["--halve"]).plan["mode"] == "halve"
    assert read(["--incast", "3"]).plan["senders"] == 3
    assert read(["--json"]).format == "json"


@pytest.mark.parametrize(
    "arguments",
    [
        *("-b 0", "-e 8X", "-n 0", "--rounds 0", "--budget nan", "--seed x", "-T 0", "--incast 0", "--incast two"),
        *("--incast 2 --halve", "--resume", "--format xml", "--concurrent maybe", "stray", "--no-such-option"),
    ],
)
def test_bad_options_are_refused(arguments: str) -> None:
    with pytest.raises(UsageError, match=arguments.split()[0].strip("-") or None):
        read(arguments.split())


def made_up(names: list[str], rates: dict[tuple[int, int], float]) -> tuple[dict[str, Any], dict[int, Any]]:
    """A plan of pairs at ranks 10, 11, ..., and its visits: bandwidth as given (GB/s), latency 5 us."""
    places = [10 + place for place in range(len(names))]
    plan = all_pairs(places, names, 8, 1000)
    seats = [Seat(name, i, 0, "") for i, name in enumerate(names)]
    groups = {
        group.name: {"order": list(group.ranks), "hosts": ",".join(seats[rank - 10].host for rank in group.ranks)}
        for group in plan.groups
    }
    cells = [pairs._cell(duty, owner) for duty, owner in zip(plan.duties, plan.owners, strict=True)]
    visits: dict[int, Any] = {}
    for index, duty in enumerate(plan.duties):
        ends = [rank - 10 for rank in duty.ranks]
        key = (ends[0], ends[1]) if duty.root == duty.ranks[0] else (ends[1], ends[0])
        if duty.root is None:
            visits[index] = [{"status": OK, "round": 0, "median_us": 5.0}]
        elif key in rates:
            visits[index] = [{"status": OK, "round": 0, "median_us": 1.0 / rates[key]}]
    contents = {"facts": {"groups": groups}, "cells": cells, "places": places, "names": names, "mode": "pairs"}
    return contents, visits


def test_visits_are_folded_into_matrices() -> None:
    plan, visits = made_up(["a", "b", "c"], {(0, 1): 2.0, (1, 0): 3.0, (2, 0): 4.0})
    folded = matrix.fold(plan, visits)
    nan = np.nan
    assert np.array_equal(folded.bandwidth, [[nan, 2, nan], [3, nan, nan], [4, nan, nan]], equal_nan=True)
    assert np.array_equal(folded.latency_us, [[nan, 5, 5], [5, nan, 5], [5, 5, nan]], equal_nan=True)


def test_a_small_matrix_is_printed_whole() -> None:
    out = io.StringIO()
    values = np.array([[np.nan, 12.3456], [0.012345, np.nan]])
    pairs_screen._print_matrix("Bandwidth (GB/s)", ["a", "b"], values, True, out)
    assert out.getvalue().splitlines() == [
        "# Bandwidth (GB/s)",
        "          a      b",
        "  a       -   12.3",
        "  b  0.0123      -",
        "",
    ]


def test_long_names_have_numbers_above_the_columns() -> None:
    out = io.StringIO()
    values = np.array([[np.nan, 1.0], [2.0, np.nan]])
    pairs_screen._print_matrix("Bandwidth (GB/s)", ["rack01-node01", "rack01-node02"], values, True, out)
    lines = out.getvalue().splitlines()
    assert lines[1].split() == ["[0]", "[1]"]
    assert lines[3].split() == ["[1]", "rack01-node02", "2", "-"]


def test_a_large_matrix_is_summarised() -> None:
    out = io.StringIO()
    values = np.full((20, 20), 10.0)
    values[range(20), range(20)] = np.nan
    values[3, 7] = 1.5
    names = [f"h{i}" for i in range(20)]
    pairs_screen._print_matrix("Bandwidth (GB/s)", names, values, True, out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "# Bandwidth (GB/s): 380 of 380 directions of 20 places"
    assert [line.split()[-1] for line in lines[1:6]] == ["1.5", "10", "10", "10", "10"]
    assert lines[7].split() == ["1.5", "h3", ">", "h7"]
    assert len(lines) < 20
