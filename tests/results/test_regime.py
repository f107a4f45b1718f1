"""What makes a run's numbers uncertain: crowding, unbound ranks, load, frequency, moving pages, drift."""

from __future__ import annotations

import math
import random
from itertools import permutations
from typing import Any

import pytest

from commbench.results.regime import FEWEST_ROUNDS, STEADY, drift, drifts_by_chance, findings

QUIET: dict[str, Any] = {"cores": 4, "crowded": False, "cpus": ["0", "1", "2", "3"]}
STILL: dict[str, Any] = {"governor": "performance", "numa_balancing": "0"}


def found(load: float = 0.0, site: dict[str, Any] | None = None, **settings: str) -> list[str]:
    return findings({**QUIET, **(site or {})}, {"settings": {**STILL, **settings}}, load)


def test_of_a_quiet_machine_with_bound_ranks_there_is_nothing_to_say() -> None:
    assert found() == []
    assert findings(QUIET, {"settings": {}}, 0.1) == []  # settings that a kernel has not


def test_ranks_that_outnumber_the_cores_are_said_and_binding_is_then_no_remedy() -> None:
    (said,) = found(site={"crowded": True, "cpus": ["0-3"] * 8})
    assert said.startswith("ranks outnumber the cores of a node (4 here)")


@pytest.mark.parametrize(
    ("cpus", "cores", "unbound"),
    [
        (["0-3"] * 4, 4, True),
        (["0-3", "0-3"], 4, True),
        (["0-1", "0-1", "2-3", "2-3"], 4, False),  # to a socket
        (["0", "1"], 4, False),
        (["0-3"], 4, False),  # one rank alone has nobody to change places with
        (["0", "0"], 1, False),
    ],
)
def test_ranks_that_may_run_on_every_core_are_not_bound(cpus: list[str], cores: int, unbound: bool) -> None:
    said = found(site={"cpus": cpus, "cores": cores})
    assert [line.startswith("ranks are not bound to cores") for line in said] == [True] * unbound
    assert all("--bind-to core" in line for line in said)


@pytest.mark.parametrize(("load", "busy"), [(0.0, False), (2.0, False), (2.1, True), (40.0, True)])
def test_other_work_is_said_from_half_of_the_cores_on(load: float, busy: bool) -> None:
    said = found(load)
    assert len(said) == busy
    assert not busy or f"load {load:.1f} on 4 cores" in said[0]


@pytest.mark.parametrize("governor", ["powersave", "schedutil", "ondemand"])
def test_a_frequency_that_follows_the_load_is_said(governor: str) -> None:
    assert found(governor=governor) == [
        f"the CPU frequency follows the load (governor {governor}): set it to performance"
    ]


def test_pages_that_move_are_said() -> None:
    (said,) = found(numa_balancing="1")
    assert "set kernel.numa_balancing to 0" in said


def test_all_that_holds_is_said_at_once() -> None:
    said = found(3.0, {"cpus": ["0-3"] * 2}, governor="powersave", numa_balancing="1")
    assert len(said) == len(set(said)) == 4


# Drift


def test_a_change_from_the_first_half_to_the_second_is_a_drift() -> None:
    assert drift([10.0, 11.0, 10.5, 12.0, 13.0, 12.5]) == pytest.approx(12.5 / 10.5 - 1, abs=1e-4)
    assert drift([2.0, 2.0, 2.0, 1.0, 1.0, 1.0]) == -0.5


def test_of_an_odd_number_of_rounds_the_middle_one_is_in_no_half() -> None:
    assert drift([1.0, 1.0, 1.0, 999.0, 2.0, 2.0, 2.0]) == 1.0


@pytest.mark.parametrize(
    "medians",
    [
        [],
        [1.0, 1.0, 2.0, 2.0, 2.0],  # too few
        [1.0, 1.0, 2.5, 2.0, 2.0, 3.0],  # one round of the first half lies among the second
        [1.0] * 8,
        [1.0] * 3 + [1.0 + 0.9 * STEADY] * 3,  # small
    ],
)
def test_a_few_rounds_an_overlap_or_a_small_change_are_none(medians: list[float]) -> None:
    assert drift(medians) is None


def test_rounds_that_only_scatter_seldom_look_like_a_drift() -> None:
    chance = random.Random("regime")
    rounds = [[chance.lognormvariate(0, 0.3) for _ in range(12)] for _ in range(2000)]
    assert sum(drift(one) is not None for one in rounds) / len(rounds) < 0.01  # 2 / C(12, 6) = 0.0022
    assert FEWEST_ROUNDS == 6


@pytest.mark.parametrize("rounds", [6, 7, 8])
def test_chance_gives_no_more_drifts_than_it_is_said_to(rounds: int) -> None:
    orders = list(permutations([math.exp(i) for i in range(rounds)]))  # any is as likely as another
    share = sum(drift(order) is not None for order in orders) / len(orders)
    assert drifts_by_chance([rounds]) == pytest.approx(share)
    assert drifts_by_chance([rounds, rounds, 5, 0]) == pytest.approx(2 * share)
