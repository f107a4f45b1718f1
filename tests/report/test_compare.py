"""Sides compared on matched cells only: from records made up here, with numpy and counting by hand as the oracles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from commbench.errors import ResultsError
from commbench.report.compare import (
    AUTO,
    BEST,
    BY_ALGORITHM,
    FASTER,
    SLOWER,
    Comparison,
    band,
    best,
    compare,
    limits,
)
from commbench.report.sides import Side, vendor
from commbench.results import spread
from commbench.results.record import Record
from tests.runs import manifest, record

SIZES = (8, 65536, 1 << 24)
Make = Callable[[int], list[Record]]


def side(name: str, launches: int, make: Make, *, match: str = "ranks", by: Any = None) -> Side:
    """A side of so many launches, each of what `make` gives for its number."""
    one = Side(name, match)
    for number in range(launches):
        one.add(make(number), manifest() if by is None else by)
    return one


def noisy(name: str, *, scale: float = 1.0, algorithms: Sequence[str] = ("auto",), **changes: Any) -> Make:
    """Launches with 2 % of noise; algorithm by algorithm ten times slower."""

    def make(launch: int) -> list[Record]:
        chance = random.Random(f"{name} {launch}")
        return [
            record(algorithm, size, scale * 10**i * size**0.5 * chance.lognormvariate(0, 0.02), **changes)
            for i, algorithm in enumerate(algorithms)
            for size in SIZES
        ]

    return make


def two(a: Side, b: Side) -> Comparison:
    (found,) = compare([a, b])
    return found


def test_cells_of_one_vendor_are_matched_by_algorithm_and_protocol() -> None:
    def ours(_: int) -> list[Record]:
        return [record("ring", 8, 10.0), record("ring", 64, 20.0), record("tree", 8, 7.0), record("tree", 64, 5.0)]

    def theirs(_: int) -> list[Record]:
        return [record("ring", 8, 15.0), record("tree", 64, 5.0, protocol="ll"), record("tree", 8, 7.0)]

    found = two(side("a", 1, ours), side("b", 1, theirs))
    assert [(row.cell.algorithm, row.cell.size, row.way, row.ratio) for row in found.rows] == [
        ("ring", 8, BY_ALGORITHM, 1.5),
        ("tree", 8, BY_ALGORITHM, 1.0),
    ]
    assert [(one.cell.algorithm, one.cell.protocol, one.cell.size, one.why) for one in found.unmatched] == [
        ("ring", None, 64, "only in a"),
        ("tree", None, 64, "only in a"),
        ("tree", "ll", 64, "only in b"),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"collective": "broadcast"},
        {"dtype": "float64"},
        {"redop": "max"},
        {"root": 1},
        {"size": 2048},
        {"inplace": True},
        {"buffer": "plain"},
        {"method": "loop"},
        {"nranks": 8},
        {"nnodes": 2},
        {"group": "node x"},
    ],
    ids=str,
)
def test_what_makes_another_cell_is_never_compared(changes: dict[str, Any]) -> None:
    a, b = side("a", 1, lambda _: [record()]), side("b", 1, lambda _: [record(**changes)])
    (name, value) = next(iter(changes.items()))
    shown = {"nranks": "4 ranks on 1 node and 8 ranks on 1 node", "nnodes": "4 ranks on 1 node and 4 ranks on 2 nodes"}
    with pytest.raises(ResultsError, match=f"a and b have no cell in common: .*{shown.get(name, value)}"):
        compare([a, b])


def test_algorithms_of_one_vendor_are_not_compared_with_each_other() -> None:
    a, b = side("a", 1, lambda _: [record("ring")]), side("b", 1, lambda _: [record("tree")])
    with pytest.raises(ResultsError, match=r"they differ in algorithm ring and tree; .*commbench\.repeat --against"):
        compare([a, b])


def test_libraries_of_two_vendors_are_matched_by_auto_and_by_their_best() -> None:
    def ours(_: int) -> list[Record]:
        return [record("auto", 8, 10.0, observed_algorithm="tree"), record("ring", 8, 8.0), record("tree", 8, 10.0)]

    def theirs(_: int) -> list[Record]:
        changed = {"library": "Open MPI 5.0.11"}
        return [record("auto", 8, 15.0, **changed), record("ring", 8, 99.0, **changed)]

    found = two(side("a", 1, ours), side("b", 1, theirs))
    assert [(row.way, row.algorithms, row.ratio) for row in found.rows] == [
        (AUTO, ("auto", "auto"), 1.5),
        (BEST, ("ring", "auto"), 15 / 8),
    ]
    assert [row.observed for row in found.rows] == [("tree", None), (None, None)]
    assert found.unmatched == []


def test_two_vendors_with_nothing_but_auto_are_matched_once() -> None:
    a = side("a", 1, lambda _: [record("auto", 8)])
    b = side("b", 1, lambda _: [record("auto", 8, library="Open MPI 5.0.11"), record("x", 64, library="Open MPI 5")])
    found = two(a, b)
    assert [row.way for row in found.rows] == [AUTO]
    assert [(one.cell.size, one.why) for one in found.unmatched] == [(64, "only in b")]


def test_a_side_of_several_vendors_is_not_held_against_another_one() -> None:
    both = [record(), record(backend="gloo", library="Gloo of torch 2.9.1")]
    with pytest.raises(ResultsError, match="a holds Gloo of torch and MPICH: give the folder of one"):
        compare([side("a", 1, lambda _: both), side("b", 1, lambda _: [record(library="Open MPI 5")])])


@pytest.mark.parametrize(
    ("library", "name"),
    [("MPICH 5.0.2", "MPICH"), ("Open MPI 5.0.11", "Open MPI"), ("NCCL 2.30.7+cuda13", "NCCL"), ("", "mpi")],
)
def test_the_vendor_is_the_library_without_its_version(library: str, name: str) -> None:
    assert vendor(record(library=library)) == name


def test_the_best_is_chosen_for_each_launch_by_the_others() -> None:
    ring, tree = [10.0, 9.0, 30.0, 10.5], [11.0, 12.0, 8.0, 12.0]
    # Without launch 2 ring's median is 10, so that its luckier tree does not count; without any other one, ring's too.
    assert best({"ring": list(ring), "tree": list(tree)}) == ("ring", ring)
    assert best({"ring": [10.0], "tree": [9.0]}) == ("tree", [9.0])
    assert best({"ring": [None, 10.0], "tree": [9.0, None]}) == ("tree", [9.0, 10.0])


def test_equal_candidates_do_not_look_faster_for_being_many() -> None:
    chance = np.random.default_rng(1)
    means = []
    for _ in range(300):
        many = {str(i): np.exp(chance.normal(0, 0.1, 5)).tolist() for i in range(8)}
        means.append(np.log(np.array(best(many)[1], dtype=float)).mean())
    assert abs(np.mean(means)) < 0.02  # the smallest of eight would be at -0.14


def test_a_slowdown_is_real_where_the_shared_permutation_test_says_so() -> None:
    a, b = side("a", 5, noisy("a")), side("b", 5, noisy("b", scale=1.2))
    found = two(a, b)
    cells = [(b.times[key], a.times[key]) for key in a.times]
    expected = spread.compare(cells, 0.05)
    assert [(row.p, row.ratio, row.low, row.high) for row in found.rows] == [
        (one.p, one.ratio, one.low, one.high) for one in expected
    ]
    assert {row.verdict for row in found.rows} == {SLOWER}
    assert {row.verdict for row in two(b, a).rows} == {FASTER}
    assert all(row.ratio == pytest.approx(1.2, rel=0.05) and row.launches == (5, 5) for row in found.rows)


def test_the_ratio_is_the_later_side_over_the_first() -> None:
    found = two(side("a", 1, lambda _: [record(time_us=10.0)]), side("b", 1, lambda _: [record(time_us=25.0)]))
    assert (found.rows[0].time_us, found.rows[0].ratio) == ((10.0, 25.0), 2.5)


def test_equal_sides_are_the_same_or_left_open() -> None:
    found = two(side("a", 8, noisy("a")), side("b", 8, noisy("b")))
    assert {row.verdict for row in found.rows} <= {spread.SAME, spread.CANNOT_TELL}
    assert spread.SAME in {row.verdict for row in found.rows}


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (4, 5), (5, 4), (4, 4)])
def test_below_five_launches_of_each_there_is_a_ratio_and_no_verdict(ours: int, theirs: int) -> None:
    found = two(side("a", ours, noisy("a")), side("b", theirs, noisy("b", scale=3.0)))
    assert {(row.p, row.verdict) for row in found.rows} == {(None, spread.CANNOT_TELL)}
    assert all(row.ratio == pytest.approx(3.0, rel=0.1) for row in found.rows)


def test_logs_that_others_wrote_have_no_verdict_however_many_they_are() -> None:
    a, b = side("a", 6, noisy("a")), Side("b")
    for number in range(6):
        b.add(noisy("b", scale=3.0)(number))
    assert {(row.p, row.verdict) for row in two(a, b).rows} == {(None, spread.CANNOT_TELL)}


def test_several_later_sides_share_the_level() -> None:
    sides = [side(name, 5, noisy(name, scale=scale)) for name, scale in (("a", 1.0), ("b", 1.2), ("c", 0.8))]
    alone = [row.p for row in two(sides[0], sides[1]).rows]
    found = compare(sides)
    assert [(one.a.name, one.b.name) for one in found] == [("a", "b"), ("a", "c")]
    assert [row.p for row in found[0].rows] == pytest.approx([min(1.0, 2 * p) for p in alone if p is not None])
    assert [{row.verdict for row in one.rows} for one in found] == [{SLOWER}, {FASTER}]


def test_equal_sides_of_many_cells_and_vendors_raise_few_alarms() -> None:
    alarms = 0
    for seed in range(200):
        algorithms = ("auto", "ring", "tree")
        a = side("a", 5, noisy(f"a {seed}", algorithms=algorithms))
        b = side("b", 5, noisy(f"b {seed}", algorithms=algorithms, library="Open MPI 5.0.11"))
        alarms += any(row.verdict in (SLOWER, FASTER) for row in two(a, b).rows)
    assert alarms <= 21  # a rate of 5 % gives more once in a thousand such tests


def test_runs_of_several_doors_in_one_folder_are_launches_of_each() -> None:
    def make(name: str, scale: float) -> Side:
        one = Side(name)
        for number in range(10):
            collective = ("allreduce", "broadcast")[number % 2]
            one.add(noisy(f"{name} {number}", scale=scale, collective=collective)(0), manifest())
        return one

    found = two(make("a", 1.0), make("b", 1.3))
    assert {row.launches for row in found.rows} == {(5, 5)}
    assert {row.verdict for row in found.rows} == {SLOWER}
    assert {row.cell.collective for row in found.rows} == {"allreduce", "broadcast"}


def test_a_cell_that_a_launch_lacks_is_compared_by_the_others() -> None:
    def make(launch: int) -> list[Record]:
        good = noisy("b", scale=1.3)(launch)
        return [record("auto", 8, None, status="timeout", reason="stuck"), *good[1:]] if launch == 2 else good

    found = two(side("a", 6, noisy("a")), side("b", 6, make))
    assert [row.launches for row in found.rows] == [(6, 5), (6, 6), (6, 6)]
    assert {row.verdict for row in found.rows} == {SLOWER}
    (failure,) = found.failures
    assert (failure.side, failure.cell.size, failure.status, failure.launches, failure.new) == (
        "b",
        8,
        "timeout",
        1,
        True,
    )


def test_a_cell_that_ended_badly_is_unmatched_with_its_reason() -> None:
    def wrong(_: int) -> list[Record]:
        return [record("auto", 8), record("auto", 64, None, status="wrong", reason="3 elements differ")]

    def good(_: int) -> list[Record]:
        return [record("auto", 8), record("auto", 64)]

    found = two(side("a", 1, good), side("b", 1, wrong))
    assert [(one.cell.size, one.why) for one in found.unmatched] == [(64, "wrong in b: 3 elements differ")]
    assert [one.new for one in found.failures] == [True]
    assert [one.new for one in two(side("a", 1, wrong), side("b", 1, wrong)).failures] == [False, False]


def test_the_mean_of_a_band_is_geometric() -> None:
    sizes = (8, 1024, 32768, 32769, 1 << 20, (4 << 20) + 1)
    ratios = dict(zip(sizes, (1.1, 0.9, 1.3, 2.0, 0.5, 3.0), strict=True))
    a = side("a", 1, lambda _: [record("auto", size, 10.0) for size in sizes])
    b = side("b", 1, lambda _: [record("auto", size, 10.0 * ratios[size]) for size in sizes])
    bands = two(a, b).bands
    assert [(one.band, one.cells) for one in bands] == [("latency", 3), ("middle", 2), ("bandwidth", 1)]
    expected = [np.exp(np.log(part).mean()) for part in ([1.1, 0.9, 1.3], [2.0, 0.5], [3.0])]
    assert [one.ratio for one in bands] == pytest.approx(expected)
    assert [one.smallest for one in bands] == pytest.approx([0.9, 0.5, 3.0])
    assert [one.largest for one in bands] == pytest.approx([1.3, 2.0, 3.0])


def test_the_limits_of_bands_are_stated() -> None:
    assert {name: limits(name) for name in ("latency", "middle", "bandwidth")} == {
        "latency": "up to 32 KiB",
        "middle": "above 32 KiB, up to 4 MiB",
        "bandwidth": "above 4 MiB",
    }
    assert [band(size) for size in (1, 32768, 32769, 4 << 20, (4 << 20) + 1)] == [
        *("latency", "latency", "middle", "middle", "bandwidth"),
    ]


def test_settings_that_differ_are_named_with_both_values() -> None:
    def about(algorithm: str | None, cpu: str) -> dict[str, Any]:
        environment = {"NCCL_ALGO": algorithm} if algorithm else {}
        return manifest(
            machine={"cpu": cpu, "executable": f"{cpu}/python", "settings": {"smt": "0"}},
            library={"library": "x", "library_file": "x.so", "controls": {"yield": True}},
            sessions=[{"environment": environment, "site": {"cores": 2, "crowded": False}, "load": 1.0}],
        )

    a = side("a", 2, lambda _: [record()], by=about("ring", "one"))
    b = side("b", 2, lambda _: [record(library="MPICH 5.0.3")], by=about(None, "other"))
    assert [(one.name, one.a, one.b) for one in two(a, b).settings] == [
        ("environment.NCCL_ALGO", "ring", None),
        ("library", "MPICH 5.0.2", "MPICH 5.0.3"),
        ("machine.cpu", "one", "other"),
    ]


def test_simulated_results_are_refused_beside_measured_ones() -> None:
    measured, simulated = record(), record(simulated=True)

    def mixed(_: int) -> list[Record]:
        return [measured, record(size=8, simulated=True)]

    for make in (lambda _: [simulated], mixed):
        with pytest.raises(ResultsError, match="simulated results are not compared with measured ones, and b has"):
            compare([side("a", 1, lambda _: [measured]), side("b", 1, make)])
    assert two(side("a", 1, lambda _: [simulated]), side("b", 1, lambda _: [simulated])).rows


def test_predictions_are_compared_with_measured_results_as_a_side_of_their_own() -> None:
    def predicted(_: int) -> list[Record]:
        facts: dict[str, Any] = {
            "backend": "model",
            "library": "model of mpi on two-core",
            "method": "model",
            "simulated": True,
        }
        return [record(**facts)]

    (row,) = two(side("a", 1, lambda _: [record()]), side("b", 1, predicted)).rows
    assert (row.cell.method, row.verdict) == (record().method, "cannot tell")
    assert two(side("a", 1, predicted), side("b", 1, lambda _: [record()])).rows
    with pytest.raises(ResultsError, match="predictions are a side of their own, and b holds other results"):
        two(side("a", 1, predicted), side("b", 1, lambda _: [record(size=8), *predicted(0)]))


def devices(name: str, number: int) -> dict[str, Any]:
    return manifest(library={"devices": [{"name": name, "host": "x"}] * number})


def test_eight_whole_gpus_match_sixteen_dies_by_nodes_and_by_gpus() -> None:
    def make(ranks: int, library: str) -> Make:
        return lambda _: [record("auto", 8, nranks=ranks, library=library)]

    nvidia = ("a", 1, make(8, "NCCL 2.30.7"), devices("NVIDIA H100 80GB HBM3", 8))
    amd = ("b", 1, make(16, "RCCL 2.26.6"), devices("AMD Instinct MI250X", 16))
    for match, scale in (("nodes", "1 node"), ("gpus", "8 GPUs")):
        a, b = (side(name, n, of, match=match, by=by) for name, n, of, by in (nvidia, amd))
        found = two(a, b)
        assert [row.cell.scale for row in found.rows] == [scale]
        assert ("ranks", "8", "16") in [(one.name, one.a, one.b) for one in found.settings]
    with pytest.raises(ResultsError, match="scale 8 ranks on 1 node and 16 ranks on 1 node; --match compares by"):
        compare([side(name, n, of, by=by) for name, n, of, by in (nvidia, amd)])


def test_a_die_is_no_gpu_only_where_two_make_one() -> None:
    for name, scale in (("AMD Instinct MI300X", "16 GPUs"), ("AMD Instinct MI250", "8 GPUs"), ("MI2500", "16 GPUs")):
        one = side("a", 1, lambda _: [record(nranks=16)], match="gpus", by=devices(name, 16))
        assert {key[1].scale for key in one.timed} == {scale}


def test_gpus_that_are_not_known_are_not_guessed() -> None:
    with pytest.raises(ResultsError, match="--match gpus needs each rank's device, and a does not tell"):
        side("a", 1, lambda _: [record()], match="gpus")


def test_several_numbers_of_ranks_on_a_node_are_not_one_scale() -> None:
    records = [record(nranks=2, group="first 2"), record()]
    with pytest.raises(ResultsError, match="a has 2 ranks on 1 node and 4 ranks on 1 node: --match ranks keeps"):
        side("a", 1, lambda _: records, match="nodes")
    assert len(side("a", 1, lambda _: records).timed) == 2


def test_the_first_ranks_of_a_larger_launch_match_a_launch_of_so_many() -> None:
    a, b = side("a", 1, lambda _: [record(group="first 4")]), side("b", 1, lambda _: [record()])
    assert [row.cell.group for row in two(a, b).rows] == [""]


def test_a_gate_fails_on_what_is_real_and_large_enough_and_leaves_open_what_it_cannot_tell() -> None:
    a, b = side("a", 8, noisy("a")), side("b", 8, noisy("b", scale=1.2))
    found = two(a, b)
    assert (len(found.failing(0.05)), found.open(0.05)) == (3, [])
    assert (found.failing(0.5), found.open(0.5)) == ([], [])  # real, but not so large
    assert found.failing(0.2) + found.open(0.2)  # about as large
    one = two(side("a", 1, noisy("a")), side("b", 1, noisy("b", scale=9.0)))
    assert (one.failing(0.05), len(one.open(0.05))) == ([], 3)
    faster = two(b, a)
    assert (faster.failing(0.05), faster.open(0.05)) == ([], [])
