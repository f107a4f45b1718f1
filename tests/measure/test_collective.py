"""Each door states its collective truly: who receives what, how much, and how its bus bandwidth is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from commbench.__main__ import doors
from commbench.measure.collective import Collective
from commbench.results.record import fold
from commbench.units import gigabytes_per_second
from tests.numpy_collectives import COLLECTIVES, Array, carry_out
from tests.runs import cell, facts, group, visit

RANKS = (1, 2, 3, 4, 5, 8, 16)
every_collective = pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=list(COLLECTIVES))


def label(rank: int, block: int, n: int) -> int:
    """A number for a rank's block; sums of them count how often each was added, as digits to the base n + 2."""
    return int((n + 2) ** (rank * n + block))


def total(contributions: Sequence[Array]) -> Array:
    return np.asarray(np.add.reduce(list(contributions)))


def roots(collective: Collective, n: int) -> range:
    return range(n) if collective.rooted else range(1)


@every_collective
@pytest.mark.parametrize("n", RANKS)
def test_the_definition_is_what_numpy_gives(collective: Collective, n: int) -> None:
    for root in roots(collective, n):
        blocks = [range(collective.send_blocks(rank, n, root)) for rank in range(n)]
        sends = [
            np.array([label(rank, block, n) for block in blocks[rank]], dtype=object).reshape(-1, 1)
            for rank in range(n)
        ]
        received = carry_out(collective, sends, root, total)
        stated = []
        for rank in range(n):
            sources = [
                collective.sources(block, rank, n, root) for block in range(collective.recv_blocks(rank, n, root))
            ]
            stated.append([sum(label(source, block, n) for source in ranks) for ranks, block in sources])
        assert [one[:, 0].tolist() for one in received] == stated, f"root {root}"


@every_collective
@pytest.mark.parametrize("n", RANKS)
def test_several_ranks_data_in_one_block_means_that_it_is_reduced(collective: Collective, n: int) -> None:
    for root in roots(collective, n):
        for rank in range(n):
            for block in range(collective.recv_blocks(rank, n, root)):
                ranks, _ = collective.sources(block, rank, n, root)
                assert list(ranks) == list(range(n)) if collective.reduces else len(ranks) == 1


# The `size` column of nccl-tests, in units of count x typesize, and the factor of the *GetBw function of each file.
NCCL_TESTS: dict[str, tuple[Callable[[int], int], Callable[[int], float]]] = {
    "allreduce": (lambda n: 1, lambda n: 2 * (n - 1) / n),
    "allgather": (lambda n: n, lambda n: (n - 1) / n),
    "reducescatter": (lambda n: n, lambda n: (n - 1) / n),
    "alltoall": (lambda n: n, lambda n: (n - 1) / n),
    "gather": (lambda n: n, lambda n: (n - 1) / n),
    "scatter": (lambda n: n, lambda n: (n - 1) / n),
    "broadcast": (lambda n: 1, lambda n: 1.0),
    "reduce": (lambda n: 1, lambda n: 1.0),
    "sendrecv": (lambda n: 1, lambda n: 1.0),
}


@pytest.mark.parametrize("name", NCCL_TESTS)
@pytest.mark.parametrize("n", [*RANKS, 72, 4096])
def test_size_and_bus_bandwidth_are_those_of_nccl_tests(name: str, n: int) -> None:
    blocks, factor = NCCL_TESTS[name]
    assert COLLECTIVES[name].size_blocks(n) == blocks(n)
    assert COLLECTIVES[name].busbw(n) == pytest.approx(factor(n), rel=1e-15)


@every_collective
@pytest.mark.parametrize("n", RANKS)
def test_the_size_is_the_larger_of_what_any_rank_sends_and_receives(collective: Collective, n: int) -> None:
    for root in roots(collective, n):
        sent = [collective.send_blocks(rank, n, root) for rank in range(n)]
        received = [collective.recv_blocks(rank, n, root) for rank in range(n)]
        assert collective.size_blocks(n) == max(*sent, *received)


GOLDEN = [  # collective, size, microseconds, ranks, algbw, busbw: printed by others, see the sources in the comments
    ("allreduce", 17179869184, 61974.0, 8, 277.210914, 485.119099),  # NCCL's inspector, its README
    ("allreduce", 17179869184, 127997.0, 8, 134.22, 234.89),  # 8 x A100, ml-engineering
    ("allreduce", 1073741824, 9306.7, 2, 115.37, 115.37),  # 2 x H100 PCIe, nccl-tests#194
    ("reducescatter", 65536 * 32, 110.0, 32, 19.065018, 18.469236),  # the inspector's exporter; 64 KiB a rank
]


@pytest.mark.parametrize(("name", "size", "time_us", "n", "algbw", "busbw"), GOLDEN)
def test_rates_are_those_that_others_printed(
    name: str, size: int, time_us: float, n: int, algbw: float, busbw: float
) -> None:
    digits = 6 if algbw != round(algbw, 2) else 2
    everyone = group(busbw_factor=COLLECTIVES[name].busbw(n))
    record = fold(facts(groups={"all": everyone}), cell(size=size), [visit([time_us])])
    assert record.algbw is not None
    assert record.busbw is not None
    assert (round(record.algbw, digits), round(record.busbw, digits)) == (algbw, busbw)
    assert round(gigabytes_per_second(size, time_us * 1e-6), digits) == algbw


@pytest.mark.parametrize("n", [2, 3, 8, 72])
def test_the_number_of_ranks_is_found_again_in_the_ratio_of_the_rates(n: int) -> None:
    assert 2 / (2 - COLLECTIVES["allreduce"].busbw(n)) == pytest.approx(n)
    for name in ("allgather", "reducescatter", "alltoall"):
        assert 1 / (1 - COLLECTIVES[name].busbw(n)) == pytest.approx(n)


@every_collective
def test_a_door_is_named_after_its_collective(collective: Collective) -> None:
    assert collective.name in doors()


def test_every_collective_of_nccl_tests_and_mpi_has_its_door() -> None:
    assert NCCL_TESTS.keys() <= COLLECTIVES.keys()
