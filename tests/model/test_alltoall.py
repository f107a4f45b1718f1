"""All-to-alls in which every block goes straight to its rank."""

from __future__ import annotations

import numpy as np
import pytest

from commbench.model.schedule import make
from tests.model.groups import group
from tests.model.traffic import repetitions


@pytest.mark.parametrize("n", [2, 3, 6, 8, 31, 32, 33, 70])
@pytest.mark.parametrize("name", ["linear", "scattered", "pairwise"])
def test_every_block_goes_once_and_straight(name: str, n: int) -> None:
    made = make(name, "alltoall", group(n))
    met = np.zeros((n, n), dtype=int)
    for step in made.steps:
        np.add.at(met, (step.source, step.target), step.count)
    assert (met == 1 - np.eye(n, dtype=int)).all()
    assert repetitions(made) == {"linear": 1, "scattered": -(-n // 32), "pairwise": n - 1}[name]


@pytest.mark.parametrize("n", [5, 8])
def test_in_a_step_of_pairwise_each_rank_sends_one_and_receives_one(n: int) -> None:
    for collective in ("alltoall", "reducescatter"):
        for step in make("pairwise", collective, group(n)).steps:
            assert sorted(step.source.tolist()) == sorted(step.target.tolist()) == list(range(n))


def test_pairwise_exchanges_among_a_power_of_two_and_shifts_else() -> None:
    exchanged = make("pairwise", "alltoall", group(8)).steps[2]
    assert exchanged.target.tolist() == [rank ^ 3 for rank in range(8)]
    for collective, n in (("alltoall", 6), ("reducescatter", 8)):
        shifted = make("pairwise", collective, group(n)).steps[2]
        assert shifted.target.tolist() == [(rank + 3) % n for rank in range(n)]


def test_scattered_has_at_most_32_messages_of_a_rank_under_way() -> None:
    for step in make("scattered", "alltoall", group(70)).steps:
        assert np.bincount(step.source).max() <= 32
