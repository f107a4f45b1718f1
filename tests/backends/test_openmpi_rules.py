"""When Open MPI would silently run another algorithm: each rule at both sides of its border."""

from __future__ import annotations

import pytest

from commbench.backends._openmpi_rules import Situation, substitute
from commbench.backends.base import AUTO, Algorithm, Call
from tests.numpy_collectives import COLLECTIVES


def call(name: str, native: str, count: int, itemsize: int = 4, inplace: bool = False) -> Call:
    collective = COLLECTIVES[name]
    redop = "sum" if collective.reduces else None
    return Call(collective, Algorithm(native, native), "float32", itemsize, redop, count, 0, inplace)


# door, native algorithm, ranks, segment, and the count from which it runs as asked; what runs below
BY_COUNT = [
    ("allreduce", "ring", 4, 0, 4, "recursive_doubling"),
    ("allreduce", "ring", 7, 0, 7, "recursive_doubling"),
    ("allreduce", "segmented_ring", 4, 1024, 4 * 256, "ring"),
    ("allreduce", "segmented_ring", 3, 4, 3, "ring"),
    ("allreduce", "rabenseifner", 4, 0, 4, "linear"),
    ("allreduce", "rabenseifner", 7, 0, 4, "linear"),  # the power of two below the ranks
    ("broadcast", "split_binary_tree", 4, 0, 2, "chain"),
    ("broadcast", "split_binary_tree", 4, 1024, 512, "chain"),
    ("broadcast", "scatter_allgather", 5, 0, 5, "linear"),
    ("broadcast", "scatter_allgather_ring", 5, 0, 5, "linear"),
    ("reduce", "rabenseifner", 6, 0, 4, "linear"),
]


@pytest.mark.parametrize(("name", "native", "n", "segment", "least", "instead"), BY_COUNT)
def test_too_few_elements_make_another_algorithm_run(
    name: str, native: str, n: int, segment: int, least: int, instead: str
) -> None:
    for count in (least, least + 1, 1000 * least):
        assert substitute(call(name, native, count), n, segment) == ""
    for count in {1, least - 1}:
        said = substitute(call(name, native, count), n, segment)
        assert said.startswith(f"Open MPI would run {instead} instead of {native}: ")


def test_a_segmented_ring_without_segments_never_runs() -> None:
    for count in (1, 100, 1 << 30):
        assert "coll_tuned_allreduce_algorithm_segmentsize is 0" in substitute(
            call("allreduce", "segmented_ring", count), 4, 0
        )


@pytest.mark.parametrize("n", range(2, 18))
def test_doubling_gathers_among_powers_of_two_only(n: int) -> None:
    runs = substitute(call("allgather", "recursive_doubling", 100), n, 0) == ""
    assert runs == (n in (2, 4, 8, 16))


@pytest.mark.parametrize("n", range(2, 9))
def test_neighbors_exchange_in_pairs(n: int) -> None:
    assert (substitute(call("allgather", "neighbor", 100), n, 0) == "") == (n % 2 == 0)


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_what_is_for_two_ranks_is_for_two_ranks(name: str, n: int) -> None:
    said = substitute(call(name, "two_proc", 100), n, 0)
    assert said == ("" if n == 2 else f"Open MPI's two_proc is for 2 ranks only, not {n}")


def test_a_scattered_reduction_is_doubled_below_two_to_the_31() -> None:
    for n, count in ((4, 2**29 - 1), (2, 2**30 - 1)):
        assert substitute(call("reducescatter", "recursive_doubling", count), n, 0) == ""
        assert "run linear" in substitute(call("reducescatter", "recursive_doubling", count + 1), n, 0)


@pytest.mark.parametrize("native", ["pairwise", "linear", "modified_bruck"])
def test_all_to_all_in_place_is_the_same_whatever_is_forced(native: str) -> None:
    assert "one all-to-all in place" in substitute(call("alltoall", native, 100, inplace=True), 4, 0)
    assert substitute(call("alltoall", native, 100), 4, 0) == ""


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("allreduce", "recursive_doubling"),
        ("allreduce", "basic_linear"),
        ("broadcast", "binomial"),
        ("gather", "linear"),
    ],
)
def test_what_no_rule_speaks_of_runs_as_asked(name: str, native: str) -> None:
    for n in (2, 3, 8):
        for count in (1, 2, 1000):
            assert substitute(call(name, native, count), n, 0) == ""


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (1000, 512)])
def test_the_power_of_two_below_the_ranks(n: int, power: int) -> None:
    assert Situation(call("allreduce", AUTO, 1), n, 0).power == power
