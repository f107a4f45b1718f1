"""The algorithms that exchange in pairs, and Bruck's: partners and bytes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from commbench.model.schedule import make
from tests.model.groups import group
from tests.model.traffic import repetitions, sent

POWERS = [2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("n", POWERS)
@pytest.mark.parametrize(
    ("name", "collective", "of_n"),
    [
        ("rabenseifner", "allreduce", 2),
        ("distance_halving", "allreduce", 2),
        ("recursive_halving", "reducescatter", 1),
        ("recursive_doubling", "allgather", 1),
        ("bruck", "allgather", 1),
    ],
)
def test_a_power_of_two_of_ranks_moves_no_more_than_a_ring(name: str, collective: str, of_n: int, n: int) -> None:
    some = group(n)
    made = make(name, collective, some)
    assert sent(some, made)[:n] == [Fraction(of_n * (n - 1), n)] * n
    assert repetitions(made) == of_n * (n.bit_length() - 1)


@pytest.mark.parametrize(
    ("name", "collective", "distances", "parts"),
    [
        # MPICH's order: half of the buffer to the neighbour.
        ("rabenseifner", "allreduce", [1, 2, 4, 4, 2, 1], [4, 2, 1, 1, 2, 4]),
        ("distance_halving", "allreduce", [4, 2, 1, 1, 2, 4], [4, 2, 1, 1, 2, 4]),
        ("recursive_halving", "reducescatter", [4, 2, 1], [4, 2, 1]),
        ("recursive_doubling", "allgather", [1, 2, 4], [1, 2, 4]),
        ("recursive_doubling", "allreduce", [1, 2, 4], [1, 1, 1]),
    ],
)
def test_eight_ranks_meet_at_these_distances(
    name: str, collective: str, distances: list[int], parts: list[int]
) -> None:
    made = make(name, collective, group(8))
    for step, distance, part in zip(made.steps, distances, parts, strict=True):
        assert step.source.tolist() == list(range(8))
        assert step.target.tolist() == [rank ^ distance for rank in range(8)]
        assert set(step.count.tolist()) == {part}


@pytest.mark.parametrize("n", [3, 5, 6, 7, 11, 24, 31, 33])
@pytest.mark.parametrize("name", ["rabenseifner", "distance_halving", "recursive_doubling"])
def test_ranks_above_a_power_of_two_send_and_get_the_whole_buffer_once(name: str, n: int) -> None:
    some, members = group(n), 1 << (n.bit_length() - 1)
    made = make(name, "allreduce", some)
    every = sent(some, made)[:n]
    extra = n - members
    assert every[: 2 * extra : 2] == [1] * extra
    work = Fraction(n.bit_length() - 1) if name == "recursive_doubling" else Fraction(2 * (members - 1), members)
    assert every[1 : 2 * extra : 2] == [work + 1] * extra and every[2 * extra :] == [work] * (n - 2 * extra)
    assert sent(some, made, received=True)[:n] == every  # an exchange: what goes out comes in


def test_of_two_folded_ranks_one_sums_up_the_shares_of_both() -> None:
    made = make("recursive_halving", "reducescatter", group(6))
    # 0 folds into 1, 2 into 3; shares of 2, 2, 1 and 1 blocks for 1, 3, 4 and 5.
    assert [step.count.tolist() for step in made.steps] == [[6, 6], [2, 2, 4, 4], [2, 2, 1, 1], [1, 1]]
    last = made.steps[-1]
    assert (last.source.tolist(), last.target.tolist(), last.moved(0)[1].tolist()) == ([1, 3], [0, 2], [0, 2])


@pytest.mark.parametrize("n", range(2, 40))
def test_bruck_takes_the_fewest_steps(n: int) -> None:
    some = group(n)
    gather, exchange = make("bruck", "allgather", some), make("bruck", "alltoall", some)
    assert repetitions(gather) == repetitions(exchange) == int(np.ceil(np.log2(n)))
    assert sent(some, gather)[:n] == [Fraction(n - 1, n)] * n
    hops = sum(bin(distance).count("1") for distance in range(n))
    assert sent(some, exchange)[:n] == [Fraction(hops, n)] * n
