"""Broadcasts and reduces of MPI: steps and bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from commbench.model.schedule import make
from tests.model.groups import group
from tests.model.traffic import repetitions, sent


@pytest.mark.parametrize("n", range(2, 40))
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_binomial_tree_doubles_those_who_have_it(collective: str, n: int) -> None:
    some = group(n)
    made = make("binomial", collective, some)
    assert repetitions(made) == (n - 1).bit_length()
    assert sum(sent(some, made)) == n - 1
    root = sent(some, made, received=collective == "reduce")[0]
    assert root == (n - 1).bit_length()


def test_the_farthest_ranks_come_first() -> None:
    made = make("binomial", "broadcast", group(6))
    pairs = [list(zip(step.source.tolist(), step.target.tolist(), strict=True)) for step in made.steps]
    assert pairs == [[(0, 4)], [(0, 2)], [(0, 1), (2, 3), (4, 5)]]


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
@pytest.mark.parametrize(("name", "gathering"), [("scatter_allgather", "log"), ("scatter_allgather_ring", "n")])
def test_scatter_and_allgather_take_two_buffers_of_the_root(name: str, gathering: str, n: int) -> None:
    some, bits = group(n), n.bit_length() - 1
    made = make(name, "broadcast", some)
    assert sent(some, made)[0] == 2 * Fraction(n - 1, n)
    # Each block of the scatter travels once for each bit of its rank, half of the bits of all being set.
    assert sum(sent(some, made)) == Fraction(bits, 2) + n - 1
    assert repetitions(made) == bits + (bits if gathering == "log" else n - 1)


def test_linear_is_all_of_the_root() -> None:
    some = group(5)
    assert sent(some, make("linear", "broadcast", some))[0] == 4
    assert sent(some, make("linear", "reduce", some), received=True)[0] == 4
    assert sent(some, make("linear", "allreduce", some)) == [4, 1, 1, 1, 1, 0, 0]
