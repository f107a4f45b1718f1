"""The grid of cells: sizes, algorithms, what does not exist, and what does not fit."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from commbench.backends.base import AUTO, Algorithm, Backend, Call
from commbench.errors import UsageError
from commbench.measure.cell import ALL, Cell, Group, batches
from commbench.measure.collective import REDOPS
from commbench.measure.dtypes import DTYPES, find_dtype
from commbench.measure.plan import Request, build, memory, resolve_algorithms, sizes
from tests.numpy_collectives import COLLECTIVES

CHANCE = random.Random("plan")
ALLREDUCE, ALLGATHER, BROADCAST = COLLECTIVES["allreduce"], COLLECTIVES["allgather"], COLLECTIVES["broadcast"]
GIB = 1 << 30


class FakeBackend:
    """A library with three algorithms, one of which is for small messages only."""

    name = "fake"
    library = "FakeMPI 1.0"
    buffers: Sequence[str] = ("host",)
    protocols: Sequence[str] = ()
    averages = False

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        return [
            Algorithm(AUTO, "ignore"),
            Algorithm("rabenseifner", "reduce_scatter_allgather"),
            Algorithm("ring", "ring"),
        ]

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        if call.dtype == "bfloat16" and call.redop:
            return "FakeMPI 1.0 does not reduce bfloat16"
        return "ring needs an element for each rank" if call.algorithm.name == "ring" and call.count < 4 else ""

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        return (0, 0) if call.inplace else None


def everyone(n: int) -> Group:
    return Group(ALL, tuple(range(n)))


BACKEND = cast(Backend, FakeBackend())
REQUEST = Request(8, 512, 8, None, ["float32"], ["sum"], [], [False], 0)


def request(**changes: Any) -> Request:
    return replace(REQUEST, **changes)


def cells(asked: Request, collective: Any = ALLREDUCE, n: int = 4) -> list[Cell]:
    return build(asked, collective, BACKEND, everyone(n), None)[0]


def notes(asked: Request, collective: Any = ALLREDUCE, n: int = 4, allowance: int | None = None) -> list[str]:
    return build(asked, collective, BACKEND, everyone(n), allowance)[1]


def every_size(asked: Request, collective: Any = ALLREDUCE, n: int = 4) -> list[int]:
    return list(dict.fromkeys(cell.size for cell in cells(asked, collective, n)))


# Sizes


@pytest.mark.parametrize(("smallest", "factor", "steps"), [(8, 8, 9), (1, 2, 40), (3, 5, 7), (1000, 10, 5)])
def test_sizes_grow_by_the_factor(smallest: int, factor: int, steps: int) -> None:
    expected = [smallest * factor**i for i in range(steps)]
    assert list(sizes(smallest, expected[-1], factor, None)) == expected
    assert list(sizes(smallest, expected[-1] + 1, factor, None)) == expected
    assert list(sizes(smallest, expected[-1] - 1, factor, None)) == expected[:-1]


@pytest.mark.parametrize(("smallest", "largest", "step"), [(8, 64, 8), (8, 63, 8), (5, 5, 100), (0 + 1, 1000, 333)])
def test_sizes_grow_by_the_step_whatever_the_factor(smallest: int, largest: int, step: int) -> None:
    assert list(sizes(smallest, largest, 8, step)) == list(range(smallest, largest + 1, step))


def test_a_broken_factor_is_followed_closely() -> None:
    assert list(sizes(1000, 100_000, 1.5, None)) == [int(1000 * 1.5**i) for i in range(12)]


def test_sizes_always_grow_however_small_the_factor() -> None:
    for _ in range(200):
        smallest, factor = CHANCE.randint(1, 50), 1 + CHANCE.random() ** 3
        largest = smallest + CHANCE.randint(0, 300)
        found = list(sizes(smallest, largest, factor, None))
        assert found[0] == smallest
        assert found == sorted(set(found))
        assert found[-1] <= largest
        assert all(after <= max((before + 1) * factor, before + 1) for before, after in pairwise(found))


def test_the_largest_sizes_are_exact() -> None:
    assert list(sizes(1 << 60, 1 << 62, 2, None)) == [1 << 60, 1 << 61, 1 << 62]
    assert list(sizes((1 << 53) + 1, 1 << 55, 3, None)) == [(1 << 53) + 1, 3 * ((1 << 53) + 1)]


# Whole elements for every rank


def test_a_size_is_rounded_down_to_whole_elements_for_every_rank() -> None:
    found = cells(request(smallest=100, largest=100), ALLGATHER, n=3)
    assert {(cell.size, cell.count) for cell in found} == {(96, 8)}


def test_too_small_sizes_are_raised_and_that_is_said() -> None:
    asked = request(smallest=1, largest=64, factor=2)
    assert every_size(asked, ALLGATHER, n=4) == [16, 32, 64]
    assert notes(asked, ALLGATHER, n=4) == ["sizes below 16 are raised to it: 4 ranks need an element of 4 B each"]
    assert every_size(asked, ALLREDUCE, n=4) == [4, 8, 16, 32, 64]
    assert notes(asked, ALLREDUCE, n=4) == ["sizes below 4 are raised to it: one element"]


def test_sizes_that_are_large_enough_are_not_spoken_of() -> None:
    assert notes(request(smallest=16, largest=128), ALLGATHER, n=4) == []


def test_a_largest_size_that_the_factor_does_not_hit_is_said() -> None:
    assert notes(request(smallest=8, largest=500)) == ["sizes end at 64: the next one would be above -e 500"]
    assert notes(request(smallest=8, largest=500, step=8)) == []


def test_nothing_is_said_twice() -> None:
    said = notes(request(smallest=8, largest=500, dtypes=["float32", "int8", "float64"]))
    assert len(said) == len(set(said))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_no_size_comes_twice_and_each_holds_an_element_for_every_rank(name: str) -> None:
    collective = COLLECTIVES[name]
    for dtype in DTYPES.values():
        for n in (1, 2, 3, 4, 7):
            asked = request(smallest=1, largest=300, step=1, dtypes=[dtype.name])
            found = [cell for cell in cells(asked, collective, n) if cell.algorithm == AUTO]
            counts = [cell.count for cell in found]
            assert counts == sorted(set(counts))
            assert counts[0] == 1
            assert all(cell.size == cell.count * dtype.itemsize * collective.size_blocks(n) for cell in found)


# The grid


def test_the_grid_is_every_combination_in_the_order_of_the_table() -> None:
    asked = request(dtypes=["float32", "int8"], redops=["sum", "max"], inplace=[False, True])
    expected = [
        (dtype, redop, inplace, size, algorithm)
        for dtype in ("float32", "int8")
        for redop in ("sum", "max")
        for inplace in (False, True)
        for size in (8, 64, 512)
        for algorithm in ("auto", "rabenseifner", "ring")
    ]
    found = [(cell.dtype, cell.redop, cell.inplace, cell.size, cell.algorithm) for cell in cells(asked)]
    assert found == expected


def test_what_is_only_moved_has_no_reduction_and_only_rooted_collectives_have_a_root() -> None:
    asked = request(redops=["sum", "max"], root=2)
    assert {(cell.redop, cell.root) for cell in cells(asked, ALLGATHER)} == {(None, None)}
    assert {(cell.redop, cell.root) for cell in cells(asked, BROADCAST)} == {(None, 2)}
    assert {(cell.redop, cell.root) for cell in cells(asked, ALLREDUCE)} == {("sum", None), ("max", None)}


def test_what_the_library_refuses_is_a_row_with_the_reason() -> None:
    found = {(cell.dtype, cell.size, cell.algorithm): cell for cell in cells(request(dtypes=["float32", "bfloat16"]))}
    small, large = found["float32", 8, "ring"], found["float32", 64, "ring"]
    assert (small.status, small.reason) == ("not_applicable", "ring needs an element for each rank")
    assert (large.status, large.reason) == ("planned", "")
    assert found["bfloat16", 64, "auto"].reason == "FakeMPI 1.0 does not reduce bfloat16"


def test_cells_survive_the_manifest() -> None:
    found = cells(request(inplace=[False, True]))
    assert [Cell(**json.loads(json.dumps(cell.to_dict()))) for cell in found] == found


def test_a_cell_is_called_as_it_was_planned() -> None:
    cell = cells(request(dtypes=["float64"], root=1), BROADCAST)[1]
    call = cell.call(BROADCAST)
    assert (call.dtype, call.itemsize, call.count, call.root) == ("float64", 8, 1, 1)
    assert call.algorithm == Algorithm("rabenseifner", "reduce_scatter_allgather")


def test_average_is_said_to_be_a_sum_and_a_scaling() -> None:
    assert "avg: fake sums, then scales; both are inside the timing" in notes(request(redops=["avg"]))
    assert notes(request(redops=["avg"], smallest=64), ALLGATHER) == []


# Algorithms


def asked_for(*names: str, n: int = 4) -> list[Algorithm]:
    return resolve_algorithms(BACKEND, ALLREDUCE, names, n)


def test_without_names_all_that_the_library_offers_is_swept() -> None:
    assert [algorithm.name for algorithm in asked_for()] == ["auto", "rabenseifner", "ring"]


def test_algorithms_go_by_canonical_and_by_native_name_once_each() -> None:
    expected = Algorithm("rabenseifner", "reduce_scatter_allgather")
    assert asked_for("rabenseifner", "reduce_scatter_allgather", "rabenseifner") == [expected]
    assert [algorithm.name for algorithm in asked_for("ring", "auto")] == ["ring", "auto"]


@pytest.mark.parametrize("name", ["nvls", "tree", "pat", "bruck"])
def test_what_only_other_libraries_have_is_a_row_with_the_reason(name: str) -> None:
    (found,) = asked_for(name)
    assert found.name == name
    assert found.refusal == f"FakeMPI 1.0 has no {name} all-reduce; it has auto, rabenseifner, ring"
    (row,) = cells(request(algorithms=[name], smallest=64, largest=64))
    assert (row.status, row.reason) == ("not_applicable", found.refusal)


@pytest.mark.parametrize("name", ["recursive_doubling", "binomial", "pairwise", "pipelined_tree", "chain"])
def test_what_another_collective_of_the_same_library_has_is_a_row_with_the_reason(name: str) -> None:
    (found,) = asked_for(name)
    assert found.refusal == f"FakeMPI 1.0 has no {name} all-reduce; it has auto, rabenseifner, ring"


@pytest.mark.parametrize(("name", "near"), [("rign", "ring"), ("rabenseifer", "rabenseifner"), ("nvsl", "nvls")])
def test_an_unknown_algorithm_is_refused_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown algorithm '{name}': did you mean .*\b{near}\b"):
        asked_for("auto", name)


def test_one_rank_has_nothing_to_choose_and_says_so() -> None:
    assert [algorithm.name for algorithm in asked_for(n=1)] == ["auto"]
    asked = request(algorithms=["auto", "ring", "nvls"], smallest=64, largest=64)
    found, said = build(asked, ALLREDUCE, BACKEND, everyone(1), None)
    assert [(cell.algorithm, cell.status, cell.reason) for cell in found] == [
        ("auto", "planned", ""),
        ("ring", "not_applicable", "one rank has nothing to choose: only auto runs"),
        ("nvls", "not_applicable", "FakeMPI 1.0 has no nvls all-reduce; it has auto, rabenseifner, ring"),
    ]
    assert said == ["one rank: nothing is sent, and only auto runs"]


def test_an_unknown_algorithm_is_refused_on_one_rank_too() -> None:
    with pytest.raises(UsageError, match="unknown algorithm 'rign': did you mean ring"):
        asked_for("rign", n=1)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_is_one_of_the_ranks(name: str, n: int) -> None:
    build(request(root=n - 1), COLLECTIVES[name], BACKEND, everyone(n), None)
    with pytest.raises(UsageError, match=rf"-r names a rank of each group, below its number of ranks \({n}\), not {n}"):
        build(request(root=n), COLLECTIVES[name], BACKEND, everyone(n), None)


# Memory


def needed(size: int) -> int:
    """What a rank needs for an all-reduce of this size: its buffers, and the message again for the library."""
    return memory(cells(request(smallest=size, largest=size))[0].call(ALLREDUCE), BACKEND, 4)


def test_a_rank_needs_the_buffers_of_all_slots_and_the_librarys_copy() -> None:
    assert needed(8 * GIB) == 3 * 8 * GIB  # one slot of each, and the copy
    assert needed(8) == 8 * 128 * 2 + 8  # eight slots on lines of their own
    call = cells(request(smallest=GIB, largest=GIB, inplace=[True]))[0].call(ALLREDUCE)
    assert memory(call, BACKEND, 4) == 2 * GIB


def test_the_root_needs_more_and_is_what_counts() -> None:
    gather = COLLECTIVES["gather"]
    call = cells(request(smallest=GIB, largest=GIB, root=2), gather)[0].call(gather)
    assert memory(call, BACKEND, 4) >= 2 * GIB


def test_an_explicit_largest_size_that_does_not_fit_is_refused_with_needed_and_free() -> None:
    with pytest.raises(UsageError) as raised:
        build(request(largest=4 * GIB), ALLREDUCE, BACKEND, everyone(4), 5 * GIB)
    assert str(raised.value) == (
        "-e 4G does not fit the memory: a rank needs 12 GiB, and 5 GiB is free for each rank of the fullest node; "
        "lower -e or start fewer ranks a node"
    )


def test_an_explicit_largest_size_fits_to_the_last_byte() -> None:
    build(request(largest=GIB), ALLREDUCE, BACKEND, everyone(4), needed(GIB))
    with pytest.raises(UsageError, match="does not fit"):
        build(request(largest=GIB), ALLREDUCE, BACKEND, everyone(4), needed(GIB) - 1)


def test_the_widest_data_type_decides_what_fits() -> None:
    # Elements of 8 B raise the smallest size of an all-gather among many ranks.
    asked = request(largest=8, smallest=8, dtypes=["int8", "float64"])
    needs = 2 * 8 * 8 * 1000 + 8 * 1000  # about: 1000 ranks, 8 slots of each buffer, the copy
    with pytest.raises(UsageError, match="does not fit"):
        build(asked, ALLGATHER, BACKEND, everyone(1000), needs // 4)


def test_where_the_memory_is_unknown_nothing_is_refused() -> None:
    assert cells(request(largest=4 * GIB))


def test_the_default_range_is_cut_to_half_of_the_memory_and_that_is_said() -> None:
    asked = request(largest=None, factor=2)
    found, said = build(asked, ALLREDUCE, BACKEND, everyone(4), 6 * GIB)
    largest = max(cell.size for cell in found if cell.status == "planned")
    assert needed(largest) <= 3 * GIB < needed(2 * largest)
    assert said == [
        "sizes from 2G on are cut: a rank would need 6 GiB, more than half of the 6 GiB that are free for it "
        "(-e SIZE asks for more)"
    ]


def test_what_the_default_range_leaves_out_is_in_the_results_as_not_measured() -> None:
    found, _ = build(request(largest=None, factor=2), ALLREDUCE, BACKEND, everyone(4), 6 * GIB)
    left_out = [cell for cell in found if cell.size >= 2 * GIB]
    reason = "it would take more than half of the free memory"
    assert {cell.size for cell in left_out} == {2 * GIB, 4 * GIB, 8 * GIB}
    assert {(cell.status, cell.reason) for cell in left_out} == {("not_measured", reason)}


def test_what_does_not_exist_is_not_applicable_however_large() -> None:
    found, _ = build(request(largest=None, algorithms=["nvls"]), ALLREDUCE, BACKEND, everyone(4), 6 * GIB)
    assert {cell.status for cell in found} == {"not_applicable"}


@pytest.mark.parametrize("allowance", [None, 1 << 62])
def test_the_default_range_ends_somewhere_however_much_memory_there_is(allowance: int | None) -> None:
    found, said = build(request(largest=None), ALLREDUCE, BACKEND, everyone(4), allowance)
    assert max(cell.size for cell in found) == 1 << 33
    assert said == []


def test_the_smallest_size_may_take_all_of_the_memory_and_no_more() -> None:
    asked = request(smallest=2 * GIB, largest=None, factor=2)
    found, said = build(asked, ALLREDUCE, BACKEND, everyone(4), needed(2 * GIB))
    assert {cell.size for cell in found if cell.status == "planned"} == {2 * GIB}
    assert [note.partition(":")[0] for note in said] == ["sizes from 4G on are cut"]
    with pytest.raises(UsageError, match=r"^-b 2G does not fit the memory: a rank needs 6 GiB, .* lower -b or start"):
        build(request(smallest=2 * GIB, largest=None), ALLREDUCE, BACKEND, everyone(4), needed(2 * GIB) - 1)


def test_a_sweep_has_a_bounded_number_of_cells() -> None:
    found = cells(request(smallest=4, largest=4 * 33_333, step=4))
    assert len(found) == 99_999
    for changes in ({"largest": 4 * 33_334}, {"inplace": [False, True]}, {"dtypes": ["float32", "int32"]}):
        with pytest.raises(UsageError, match=r"^a sweep has at most 100000 cells: take a larger step or fewer kinds$"):
            cells(replace(request(smallest=4, largest=4 * 33_333, step=4), **changes))


# Data types


@pytest.mark.parametrize(
    ("name", "found"),
    [("half", "float16"), ("float", "float32"), ("double", "float64"), ("FLOAT", "float32"), ("int8", "int8")],
)
def test_data_types_go_by_the_names_of_nccl_tests_and_numpy(name: str, found: str) -> None:
    assert find_dtype(name).name == found


def test_an_unknown_data_type_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match=r"unknown data type 'flaot32': did you mean float32"):
        find_dtype("flaot32")


def test_element_sizes_and_exact_bits_are_those_of_the_types() -> None:
    np = pytest.importorskip("numpy")
    for dtype in DTYPES.values():
        assert np.dtype(dtype.storage).itemsize == dtype.itemsize
        if dtype.is_float and dtype.name != "bfloat16":
            assert np.finfo(dtype.storage).nmant + 1 == dtype.exact_bits
        assert dtype.is_float == ("float" in dtype.name)
    assert (DTYPES["bfloat16"].exact_bits, set(REDOPS)) == (8, {"sum", "prod", "min", "max", "avg"})


# Groups


def of_groups(collective: Any = ALLREDUCE, **groups: int) -> list[Cell]:
    """The cells of groups of so many ranks each."""
    return [
        cell
        for name, n in groups.items()
        for cell in build(request(), collective, BACKEND, Group(name, tuple(range(n))), None)[0]
    ]


def test_each_group_has_cells_of_its_own() -> None:
    found = of_groups(left=2, right=4)
    assert [cell.group for cell in found] == ["left"] * 9 + ["right"] * 9
    assert [replace(cell, group="") for cell in found[:9]] == [replace(cell, group="") for cell in found[9:]]
    assert str(found[0]) == "auto float32 sum 8 B in group left"
    assert cells(request())[0].group == ALL
    assert {cell.count for cell in of_groups(ALLGATHER, three=3, six=6)} == {1, 2, 5, 21, 42}


def test_one_after_another_every_cell_is_visited_alone() -> None:
    found = of_groups(left=2, right=2)
    assert batches(found, concurrent=False) == {index: [index] for index in range(18)}


def test_at_once_the_likes_of_all_groups_are_visited_together() -> None:
    found = of_groups(left=2, middle=2, right=2)
    assert batches(found, concurrent=True) == {index: [index, index + 9, index + 18] for index in range(9)}


def test_what_is_visited_goes_by_a_cell_that_can_be() -> None:
    found = of_groups(left=2, right=2)
    found[0] = replace(found[0], status="not_applicable")
    assert batches(found, concurrent=True)[9] == [0, 9]


def test_unlike_cells_are_not_visited_together() -> None:
    """A group of one rank has auto only, one of three other sizes than one of six."""
    for groups in ({"one": 1, "four": 4}, {"three": 3, "six": 6}):
        found = of_groups(ALLGATHER, **groups)
        for together in batches(found, concurrent=True).values():
            assert len({found[index].algorithm for index in together}) == 1


def test_a_cell_is_named_shortly() -> None:
    text = str(cells(request(inplace=[True]))[0])
    assert re.fullmatch(r"auto float32 sum 8 B in place", text)
