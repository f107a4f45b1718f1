"""Reduction in switches: what goes up and what comes down."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from commbench.model.schedule import NotApplicable, make
from tests.model.groups import group, spanning
from tests.model.traffic import sent


@pytest.mark.parametrize("n", [2, 5, 8, 72])
@pytest.mark.parametrize(
    ("collective", "up", "down"), [("allreduce", 1, 1), ("allgather", 0, 1), ("reducescatter", 1, 0)]
)
def test_one_domain_moves_a_buffer_and_a_share(collective: str, up: int, down: int, n: int) -> None:
    some = group(n, domain_reduces=True)
    made = make("nvls", collective, some)
    share = Fraction(1, n)
    assert made.pipelined
    assert sent(some, made)[:n] == [up + (share if down else 0)] * n
    assert sent(some, made, received=True)[:n] == [down + (share if up else 0)] * n


@pytest.mark.parametrize(("domains", "each"), [(2, 4), (3, 2), (8, 8)])
def test_between_domains_a_rank_sends_its_share_once_to_the_network(domains: int, each: int) -> None:
    some = group(*(each,) * domains, domain_reduces=True, network_reduces=True)
    network = some.n + some.domains

    def over(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.asarray((source == network) | (target == network))

    made = make("nvls", "allreduce", some)
    for received in (False, True):
        assert sent(some, made, over, received)[: some.n] == [Fraction(1, each)] * some.n
        assert sent(some, made, received=received)[: some.n] == [1 + 2 * Fraction(1, each)] * some.n


@pytest.mark.parametrize(("domains", "each"), [(2, 4), (3, 2), (8, 8), (13, 4)])
def test_trees_between_domains_carry_shares(domains: int, each: int) -> None:
    some = group(*(each,) * domains, domain_reduces=True)

    def over(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.asarray((source < some.n) & (target < some.n))

    made = make("nvls_tree", "allreduce", some)
    crossing = sent(some, made, over)[: some.n]
    assert sum(crossing) == 2 * (domains - 1)
    assert max(crossing) <= Fraction(2, each)
    for step in made.steps:
        ranks = over(step.source, step.target)
        assert (some.rail[step.source[ranks]] == some.rail[step.target[ranks]]).all()


def test_what_the_switches_cannot_do_is_said() -> None:
    with pytest.raises(NotApplicable, match=r"no switch that adds up \(NVLink SHARP\)"):
        make("nvls", "allreduce", group(8))
    with pytest.raises(NotApplicable, match=r"2 NVLink domains .* nvls_tree"):
        make("nvls", "allreduce", group(4, 4, domain_reduces=True))
    with pytest.raises(NotApplicable, match="nvls does it all"):
        make("nvls_tree", "allreduce", group(8, domain_reduces=True))
    # A domain that spans both nodes is one domain.
    make("nvls", "allreduce", spanning(group(4, 4, domain_reduces=True), 2))
