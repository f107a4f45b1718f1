"""What is slow is named from made-up matrices with noise, and nothing is where nothing is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from commbench.results.suspects import (
    BOTH,
    HOST,
    LINK,
    RECEIVER,
    RECEIVING,
    SENDING,
    TRUNK,
    Suspect,
    find,
    sentence,
    sign_test,
    slow_places,
)

SEEDS = range(5)


def noisy(n: int, seed: int, rounds: int = 5) -> NDArray[Any]:
    """Rates of a sound cluster: 10 % of noise between rounds, 3 % that stay, and now and then a stall to a third."""
    random = np.random.default_rng(seed)
    rates = 10 * np.exp(random.normal(0, 0.1, (rounds, n, n)) + random.normal(0, 0.03, (n, n)))
    rates[random.random(rates.shape) < 0.02] *= 0.3
    rates[:, range(n), range(n)] = np.nan
    return np.asarray(rates)


def slow_host(rates: NDArray[Any], host: int, factor: float) -> None:
    rates[:, host] *= factor
    rates[:, :, host] *= factor


def slow_trunk(rates: NDArray[Any], side: list[int], factor: float) -> None:
    across = np.isin(np.arange(rates.shape[1]), side)
    rates[:, across[:, None] != across[None, :]] *= factor


def kinds(found: list[Suspect]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    return [(suspect.kind, suspect.members) for suspect in found]


def test_nothing_is_named_in_200_sound_matrices() -> None:
    alarms = [(n, seed) for seed in range(200) for n in (4, 8, 16) if find(noisy(n, seed))]
    assert alarms == []


def test_nothing_is_named_in_large_sound_matrices() -> None:
    assert [seed for seed in range(10) if find(noisy(64, seed))] == []


@pytest.mark.parametrize(("n", "factor"), [(3, 0.25), *((n, factor) for n in (4, 8, 16, 64) for factor in (0.25, 0.6))])
def test_a_slow_host_is_named(n: int, factor: float) -> None:
    for seed in SEEDS:
        rates, host = noisy(n, seed), seed % n
        slow_host(rates, host, factor)
        (found,) = find(rates)
        assert (found.kind, found.members, found.way) == (HOST, ((host,),), BOTH)
        assert found.factor == pytest.approx(factor, rel=0.2)
        assert found.p == (sign_test(found.rounds_shown, 5) if n == 3 else 0.0312)


@pytest.mark.parametrize(("axis", "way"), [(1, SENDING), (2, RECEIVING)])
def test_a_host_that_is_slow_one_way_is_named_with_it(axis: int, way: str) -> None:
    for seed in SEEDS:
        rates = noisy(8, seed)
        rates.swapaxes(1, axis)[:, 3] *= 0.3
        (found,) = find(rates)
        assert (found.kind, found.members, found.way) == (HOST, ((3,),), way)


@pytest.mark.parametrize(("n", "side"), [(4, [0, 1]), (8, [0, 2, 4, 6]), (16, [1, 2, 3]), (64, list(range(32)))])
def test_a_slow_trunk_is_told_from_hosts(n: int, side: list[int]) -> None:
    for seed in SEEDS:
        rates = noisy(n, seed)
        slow_trunk(rates, side, 0.4)
        (found,) = find(rates)
        assert found.kind == TRUNK
        assert set(found.members) == {tuple(side), tuple(i for i in range(n) if i not in side)}
        assert found.way == BOTH


def test_a_trunk_that_is_slow_one_way_is_named_with_it() -> None:
    rates = noisy(8, 1)
    rates[:, :4, 4:] *= 0.3
    (found,) = find(rates)
    assert (found.kind, found.members, found.way) == (TRUNK, ((0, 1, 2, 3), (4, 5, 6, 7)), SENDING)


def test_leaves_on_slow_trunks_are_all_named() -> None:
    for seed in SEEDS:
        rates = noisy(12, seed)
        leaf = np.arange(12) // 3
        rates[:, leaf[:, None] != leaf[None, :]] *= 0.4
        (found,) = find(rates)
        assert (found.kind, len(found.members)) == (TRUNK, 4)


def test_a_single_slow_link_is_no_host() -> None:
    for n in (4, 8, 64):
        for seed in SEEDS:
            rates = noisy(n, seed)
            rates[:, 1, 2] *= 0.3
            (found,) = find(rates)
            assert (found.kind, found.members, found.way) == (LINK, ((1,), (2,)), SENDING)


def test_two_slow_hosts_are_both_named_with_their_own_factors() -> None:
    for n in (8, 16, 64):
        for seed in SEEDS:
            rates = noisy(n, seed)
            share = np.ones(n)
            share[1], share[3] = 0.25, 0.5
            rates *= np.minimum.outer(share, share)
            found = sorted(find(rates), key=lambda suspect: suspect.members)
            assert kinds(found) == [(HOST, ((1,),)), (HOST, ((3,),))]
            assert [suspect.factor for suspect in found] == [pytest.approx(0.25, rel=0.2), pytest.approx(0.5, rel=0.2)]


def test_a_slow_host_beside_a_slow_trunk_is_named_too() -> None:
    for seed in SEEDS:
        rates = noisy(16, seed)
        slow_trunk(rates, list(range(8)), 0.3)
        share = np.ones(16)
        share[5] = 0.1
        rates = np.fmin(rates, 10 * np.minimum.outer(share, share))
        found = kinds(find(rates))
        assert (HOST, ((5,),)) in found
        assert [kind for kind, _ in found].count(TRUNK) == 1
        assert len(found) == 2


def test_the_same_is_named_whatever_the_unit() -> None:
    rates = noisy(8, 3)
    slow_host(rates, 2, 0.4)
    assert find(rates) == find(rates * 1e-6)


def test_what_one_round_alone_shows_may_be_chance() -> None:
    rates = noisy(8, 1, rounds=1)
    slow_host(rates, 2, 0.2)
    (found,) = find(rates)
    assert (found.rounds_shown, found.rounds, found.p) == (1, 1, 0.5)


def test_what_only_some_rounds_show_is_not_named() -> None:
    rates = noisy(8, 1)
    slow_host(rates[:3], 2, 0.2)
    assert find(rates) == []


def test_a_round_cut_short_counts_for_what_it_has() -> None:
    rates = noisy(8, 1, rounds=4)
    slow_host(rates, 2, 0.3)
    rates[3, 2], rates[3, :, 2] = np.nan, np.nan
    (found,) = find(rates)
    assert (found.members, found.rounds_shown, found.rounds) == (((2,),), 3, 3)


def test_what_was_not_measured_is_no_matter() -> None:
    rates = noisy(8, 1)
    slow_host(rates, 2, 0.3)
    rates[:, 0, 1] = rates[:, 1, 0] = np.nan
    assert kinds(find(rates)) == [(HOST, ((2,),))]
    rates[:, :, :] = np.nan
    assert find(rates) == []


def test_one_way_measured_is_enough() -> None:
    rates = noisy(8, 1)
    slow_host(rates, 2, 0.3)
    rates[:, np.tri(8, dtype=bool)] = np.nan
    assert kinds(find(rates)) == [(HOST, ((2,),))]


def test_a_pair_alone_has_nothing_to_be_held_against() -> None:
    assert find(noisy(2, 0)) == []


def test_many_slow_hosts_are_named_while_most_are_sound() -> None:
    rates = noisy(16, 2)
    share = np.where(np.arange(16) < 5, 0.3, 1.0)
    rates *= np.minimum.outer(share, share)
    assert sorted(member for suspect in find(rates) for (member,) in suspect.members) == [0, 1, 2, 3, 4]


def test_a_receiver_that_gets_less_is_named() -> None:
    for seed in range(200):
        received = np.exp(np.random.default_rng(seed).normal(0, 0.05, (5, 8)))
        assert slow_places(received) == []
        received[:, 6] *= 0.4
        (found,) = slow_places(received)
        assert (found.kind, found.members) == (RECEIVER, ((6,),))


def test_the_sign_test() -> None:
    assert [sign_test(*counts) for counts in [(1, 1), (5, 5), (4, 5), (0, 5), (10, 10)]] == [
        0.5,
        0.0312,
        0.1875,
        1.0,
        0.001,
    ]


NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("suspect", "what", "said"),
    [
        (
            Suspect(HOST, ((1,),), 0.25, BOTH, 0.0312, 5, 5),
            "bandwidth",
            "b is slow: its pairs have 0.25 of the bandwidth of the others (in 5 of 5 rounds)",
        ),
        (
            Suspect(HOST, ((1,),), 0.25, SENDING, 0.0312, 5, 5),
            "bandwidth",
            "b is slow in sending: its pairs have 0.25 of the bandwidth of the others (in 5 of 5 rounds)",
        ),
        (
            Suspect(HOST, ((1,),), 0.25, BOTH, 0.0312, 5, 5),
            "latency",
            "b is slow: its pairs have 4 times the latency of the others (in 5 of 5 rounds)",
        ),
        (
            Suspect(RECEIVER, ((1,),), 0.25, RECEIVING, 0.0312, 5, 5),
            "bandwidth",
            "b receives slowly: 0.25 of the bandwidth of the others (in 5 of 5 rounds)",
        ),
        (
            Suspect(TRUNK, ((0, 1), (2, 3)), 0.5, BOTH, 0.125, 3, 3),
            "bandwidth",
            "the trunk between [a, b] and [c, d] is slow: pairs across have 0.5 of the bandwidth of those within "
            "(in 3 of 3 rounds)",
        ),
        (
            Suspect(LINK, ((0,), (3,)), 0.5, RECEIVING, 0.125, 3, 3),
            "bandwidth",
            "the link between a and d is slow, from d to a only: it has 0.5 of the bandwidth of other pairs "
            "(in 3 of 3 rounds)",
        ),
    ],
)
def test_what_is_said(suspect: Suspect, what: str, said: str) -> None:
    assert sentence(suspect, NAMES, what, of_ranks=False) == said


def test_between_ranks_of_a_node_a_trunk_is_called_otherwise() -> None:
    suspect = Suspect(TRUNK, ((0, 1), (2, 3)), 0.5, BOTH, 0.125, 3, 3)
    assert sentence(suspect, NAMES, "bandwidth", of_ranks=True).startswith("the way (sockets, NUMA nodes?) between [a")
