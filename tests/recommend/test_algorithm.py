"""Which algorithm is chosen: only where it is faster for real, and without flapping."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import exp, log
from typing import Any

import pytest

from commbench.errors import ResultsError
from commbench.recommend.algorithm import (
    WORTH,
    choose,
    for_all_sizes,
    for_library,
    for_library_with_notes,
    records_of,
)
from commbench.recommend.plan import Choice
from commbench.results.record import Record
from tests.runs import record

Times = Mapping[str, Mapping[int, float]]  # microseconds by algorithm and size


def launch(times: Times, noise: random.Random | None = None, spread: float = 0.01, **changes: Any) -> list[Record]:
    """Return the records of one launch, each time off by chance, with intervals over rounds of twice the spread."""
    found = []
    for name, by_size in times.items():
        for size, time in by_size.items():
            own = time * exp(noise.gauss(0, spread)) if noise else time
            found.append(
                record(
                    name, size, own, time_us_low=own * (1 - 2 * spread), time_us_high=own * (1 + 2 * spread), **changes
                )
            )
    return found


def launches(times: Times, number: int = 5, spread: float = 0.01, seed: int = 1, **changes: Any) -> list[list[Record]]:
    noise = random.Random(seed)
    return [launch(times, noise, spread, **changes) for _ in range(number)]


def ranges(choices: Sequence[Choice]) -> list[tuple[int, int | None, str]]:
    return [(one.least, one.below, one.algorithm) for one in choices]


SIZES = (1024, 4096, 16384, 65536)


def test_what_is_faster_is_chosen_between_the_halves_of_its_neighbours() -> None:
    times = {"auto": dict.fromkeys(SIZES, 10.0), "ring": {1024: 15.0, 4096: 5.0, 16384: 5.0, 65536: 15.0}}
    (one,) = choose(launches(times))
    assert (one.collective, one.ranks, one.nodes, one.algorithm, one.protocol) == ("allreduce", 4, 1, "ring", None)
    assert (one.least, one.below) == (2048, 32768)
    assert one.gain == pytest.approx(2.0, rel=0.03) and one.source == "measured: 5 launches"


def test_nothing_is_said_beyond_the_sizes_that_were_measured() -> None:
    times = {"auto": dict.fromkeys(SIZES, 10.0), "ring": dict.fromkeys(SIZES, 5.0)}
    assert ranges(choose(launches(times))) == [(1024, 65537, "ring")]


def test_equal_algorithms_are_hardly_ever_told_apart() -> None:
    """The level is 5 % for all cells together, on either side: some three of 60 draws alarm."""
    times = {name: dict.fromkeys(SIZES, 10.0) for name in ("auto", *map(str, range(8)))}
    noises = [random.Random(seed) for seed in range(60)]
    assert sum(bool(choose([launch(times, noise, 0.1) for _ in range(6)])) for noise in noises) <= 6


def test_a_small_difference_takes_little_noise() -> None:
    times = {"auto": dict.fromkeys(SIZES, 10.0), "ring": dict.fromkeys(SIZES, 9.5)}
    assert choose(launches(times, spread=0.3, seed=2)) == ()
    assert ranges(choose(launches(times, spread=0.002))) == [(1024, 65537, "ring")]


def test_of_fewer_than_five_launches_the_rounds_of_each_must_tell() -> None:
    times = {"auto": {1024: 10.0}, "ring": {1024: 8.0}}
    one = launch(times)
    assert [choice.source for choice in choose([one])] == ["measured: rounds of one launch"]
    assert [choice.source for choice in choose([one, one])] == ["measured: rounds of 2 launches"]
    other = launch({"auto": {1024: 10.0}, "ring": {1024: 10.0}})
    assert choose([one, other]) == ()
    assert choose([[record("auto", 1024, 10.0), record("ring", 1024, 5.0)]]) == ()  # one round has no interval


def test_an_algorithm_stays_where_a_neighbour_gains_little() -> None:
    """Ring and tree take turns by 1 %: one of them stays."""
    ring = {size: 5.0 * (1.01 if place % 2 else 1.0) for place, size in enumerate(SIZES)}
    tree = {size: 5.0 * (1.0 if place % 2 else 1.01) for place, size in enumerate(SIZES)}
    found = choose(launches({"auto": dict.fromkeys(SIZES, 10.0), "ring": ring, "tree": tree}, spread=0.0001))
    assert len(found) == 1
    apart = {size: 5.0 * (1.3 if place % 2 else 1.0) for place, size in enumerate(SIZES)}
    found = choose(launches({"auto": dict.fromkeys(SIZES, 10.0), "ring": apart, "tree": tree}, spread=0.0001))
    assert len(found) == 1 and found[0].algorithm == "tree"


def test_choices_are_the_best_of_all_ways() -> None:
    """Against brute force: all labels at all sizes, where each change costs as much as it is worth."""
    for seed in range(30):
        draw = random.Random(seed)
        times = {
            name: {size: 10 * draw.uniform(0.85, 1.1) for size in SIZES} for name in ("ring", "tree", "linear")
        } | {"auto": dict.fromkeys(SIZES, 10.0)}
        found = choose([launch(times, spread=0.001)])

        def total(way: Sequence[str], times: Times = times) -> float:
            changes = sum(one != other for one, other in pairwise(way))
            return (
                sum(log(times["auto"][s] / times[name][s]) for name, s in zip(way, SIZES, strict=True))
                - changes * WORTH
            )

        def permitted(way: Sequence[str], times: Times = times) -> bool:
            apart = 1.002 / 0.998
            return all(name == "auto" or times[name][s] * apart < 10.0 for name, s in zip(way, SIZES, strict=True))

        best = max(filter(permitted, product(times, repeat=len(SIZES))), key=total)
        of_size = [
            next((one.algorithm for one in found if one.below and one.least <= size < one.below), "auto")
            for size in SIZES
        ]
        assert tuple(of_size) == best


def test_an_algorithm_that_harms_one_type_is_not_chosen_for_the_other() -> None:
    good, bad = {"auto": {1024: 10.0}, "ring": {1024: 5.0}}, {"auto": {1024: 10.0}, "ring": {1024: 11.0}}
    pairs = zip(launches(good), launches(bad, dtype="bfloat16"), strict=True)
    assert choose([one + other for one, other in pairs]) == ()
    pairs = zip(launches(good), launches(good, dtype="bfloat16"), strict=True)
    assert len(choose([one + other for one, other in pairs])) == 1


def test_scopes_are_chosen_for_apart_and_may_lie_in_launches_of_their_own() -> None:
    times = {"auto": {1024: 10.0}, "ring": {1024: 5.0}}
    found = choose([*launches(times), *launches(times, nranks=8), *launches(times, collective="allgather")])
    assert [(one.collective, one.ranks) for one in found] == [("allgather", 4), ("allreduce", 4), ("allreduce", 8)]
    assert {one.source for one in found} == {"measured: 5 launches"}


def test_without_the_library_s_own_choice_there_is_nothing_to_beat() -> None:
    assert choose(launches({"ring": {1024: 5.0}, "tree": {1024: 10.0}})) == ()
    assert choose([]) == ()


def test_protocols_are_labels_of_their_own() -> None:
    runs = launches({"auto": {1024: 10.0}})
    for own, more in zip(runs, launches({"ring": {1024: 5.0}}, protocol="ll"), strict=True):
        own += more
    (one,) = choose(runs)
    assert (one.algorithm, one.protocol) == ("ring", "ll")


@pytest.mark.parametrize(
    "change", [{"library": "MPICH 4.0"}, {"method": "loop"}, {"buffer": "device"}, {"simulated": True}]
)
def test_records_that_cannot_be_compared_are_refused(change: dict[str, Any]) -> None:
    times = {"auto": {1024: 10.0}, "ring": {1024: 5.0}}
    with pytest.raises(ResultsError, match=f"of one {next(iter(change))}"):
        choose([launch(times), launch(times, **change)])


def test_logs_of_others_are_no_launches(tmp_path: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError):
        records_of([tmp_path / "empty"])


def test_one_algorithm_for_all_sizes_is_the_best_that_harms_none() -> None:
    auto = dict.fromkeys(SIZES, 10.0)
    harms = {1024: 11.0, 4096: 2.0, 16384: 2.0, 65536: 2.0}
    steady, better = dict.fromkeys(SIZES, 8.0), {1024: 10.1, 4096: 5.0, 16384: 5.0, 65536: 5.0}
    times = {"auto": auto, "tree": harms, "ring": steady, "linear": better}
    (one,) = for_all_sizes(launches(times, spread=0.001))
    assert (one.algorithm, one.least, one.below) == ("linear", 0, None)
    assert one.gain == pytest.approx((10 / 10.1 * 8) ** 0.25, rel=0.01)
    gaps = {size: time for size, time in better.items() if size != 1024}
    (one,) = for_all_sizes(launches({**times, "linear": gaps}, spread=0.001))
    assert one.algorithm == "ring"  # nobody knows of the other one everywhere
    assert for_all_sizes(launches({"auto": auto, "tree": harms})) == ()
    loses = {1024: 9.5, 4096: 10.25, 16384: 10.25, 65536: 10.25}  # for real at one size, and as a whole a loss
    assert for_all_sizes(launches({"auto": auto, "ring": loses}, spread=0.001)) == ()
    assert ranges(for_all_sizes(launches({"auto": auto, "ring": {**loses, 1024: 9.0}}, spread=0.001))) == [
        (0, None, "ring")
    ]


def test_one_algorithm_for_all_sizes_harms_no_other_ranks() -> None:
    """It holds for communicators of every size: tree is best with 4 ranks, and three times as slow with 2."""

    def flat(**times: float) -> Times:
        return {name: dict.fromkeys(SIZES, time) for name, time in times.items()}

    here = launches(flat(auto=10.0, tree=7.0, ring=8.0), library="MPICH 5.0.2")
    there = launches(flat(auto=10.0, tree=30.0, ring=10.1), nranks=2, library="MPICH 5.0.2")
    found, notes = for_library_with_notes([*here, *there])
    assert [(one.ranks, one.algorithm) for one in found] == [(4, "ring")]  # the next best, which harms none
    assert notes == [
        "allreduce: tree is best with 4 ranks on 1 node and left out, since it is slower than the library's own choice "
        "with 2 ranks on 1 node, and a setting holds for all"
    ]
    slow = [launches(flat(auto=10.0, ring=11.0), nranks=n, library="MPICH 5.0.2") for n in (8, 16)]
    found, notes = for_library_with_notes([*here, *there, *slow[0], *slow[1]])
    assert found == () and len(notes) == 1
    rest = launches(flat(auto=10.0, tree=30.0), collective="allgather", library="MPICH 5.0.2")
    found, notes = for_library_with_notes([*here, *rest])  # of another collective that says nothing
    assert [(one.collective, one.algorithm) for one in found] == [("allreduce", "tree")] and notes == []
    found, notes = for_library_with_notes([*here, *launches(flat(auto=9.0, tree=9.1), nranks=2, library="MPICH 5.0.2")])
    assert [(one.ranks, one.algorithm) for one in found] == [(4, "tree")] and notes == []  # less than 3 %


def test_a_library_is_told_in_the_way_it_has() -> None:
    times = {"auto": dict.fromkeys(SIZES, 10.0), "ring": dict.fromkeys(SIZES, 5.0)}
    mpich, other = launches(times, library="MPICH 5.0.2"), launches(times, library="Open MPI 5.0.11")
    assert for_library(mpich) == for_all_sizes(mpich) != choose(mpich)
    assert for_library(other) == choose(other) != ()
    assert for_library([]) == ()
    nccl, rccl = launches(times, library="NCCL 2.30.7+cuda13"), launches(times, library="RCCL 2.27.7")
    assert for_library(nccl) == for_all_sizes(nccl) != choose(nccl)
    assert for_library(rccl) == choose(rccl) != ()  # its tuner is told by size
