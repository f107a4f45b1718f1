"""Two levels: what stays in the domain, and what crosses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from commbench.backends.base import AUTO
from commbench.backends.model import Backend
from commbench.model.cost import Cost, cost
from commbench.model.library import LIBRARIES
from commbench.model.placement import Placement, fill
from commbench.model.schedule import NotApplicable, make
from commbench.topology.reading import read
from commbench.topology.shipped import find
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


def load(found: Cost, tier: str) -> float:
    """Seconds for each byte that a tier's fullest link needs, over all steps."""
    return float(found.times @ found.load[:, found.tiers.index(tier)])


def test_with_two_vendors_the_rings_within_are_each_librarys_own() -> None:
    cluster = read(find("a100-mi250x")).cluster
    both = cost("allreduce", "hierarchical", fill(cluster, 256), LIBRARIES["mpi"])
    for first, library, tier in ((0, "nccl", "dgx-a100 nvlink"), (16, "rccl", "mi250x xgmi")):
        node = Placement(cluster, np.full(8, first), np.arange(8))
        alone = cost("allreduce", "ring", node, LIBRARIES[library])
        assert load(both, tier) == pytest.approx(load(alone, tier))


def test_with_two_vendors_it_is_all_that_the_best_is_chosen_from() -> None:
    backend = Backend(read(find("a100-mi250x")).cluster, LIBRARIES["mpi"])
    assert backend.predict("allreduce", AUTO, 256, [8, 1 << 30])[1] == ["hierarchical"] * 2
    assert "hierarchical" not in backend.predict("allreduce", AUTO, 128, [8, 1 << 30])[1]
