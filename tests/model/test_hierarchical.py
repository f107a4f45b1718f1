"""Two levels: what stays in the domain, and what crosses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from commbench.model.schedule import NotApplicable, make
from tests.model.groups import group, spanning
from tests.model.traffic import repetitions, sent


@pytest.mark.parametrize(("domains", "each"), [(2, 2), (2, 8), (3, 4), (7, 1), (16, 4)])
@pytest.mark.parametrize(("collective", "rounds"), [("allreduce", 2), ("allgather", 1), ("reducescatter", 1)])
def test_a_rank_sends_most_within_and_a_share_between(collective: str, rounds: int, domains: int, each: int) -> None:
    some = group(*(each,) * domains)

    def crosses(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.asarray(some.domain[source] != some.domain[target])

    made = make("hierarchical", collective, some)
    between = Fraction(rounds * (domains - 1), domains * each)
    assert sent(some, made, crosses)[: some.n] == [between] * some.n
    assert sent(some, made)[: some.n] == [between + Fraction(rounds * (each - 1), each)] * some.n
    assert repetitions(made) == rounds * (domains - 1 + each - 1)


def test_only_ranks_of_the_same_place_meet_across_domains() -> None:
    some = group(4, 4, 4, channels=3)
    for channel in range(3):
        for step in make("hierarchical", "allreduce", some, channel).steps:
            crosses = some.node[step.source] != some.node[step.target]
            assert (some.rail[step.source] == some.rail[step.target])[crosses].all()


def test_a_domain_may_span_nodes() -> None:
    with pytest.raises(NotApplicable, match="single domain"):
        make("hierarchical", "allreduce", spanning(group(4, 4), 2))
    assert repetitions(make("hierarchical", "allreduce", spanning(group(4, 4, 4, 4), 2))) == 2 * (7 + 1)
