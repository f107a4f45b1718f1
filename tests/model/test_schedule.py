"""All schedules, called by name: each is proved by sets on many groups, and the proof sees a schedule that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pytest

from commbench.backends._algorithms import canonical
from commbench.model.schedule import Group, NotApplicable, Schedule, Step, listed, make, names, places
from tests.model.groups import SHAPES, cyclic, group, spanning
from tests.model.proof import goal, prove

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

EVERY = [
    (name, collective)
    for name in names()
    for collective in import_module(f"commbench.model.schedules.{name}").COLLECTIVES
]


def groups() -> Iterator[Group]:
    """Every count of ranks from 2 to 33 on one node, on as many, on pairs and on nodes of unequal size; and others."""
    for n in range(2, 34):
        yield group(n, channels=2)
        yield group(*(1,) * n)
        yield group(n - n // 3, n // 3) if n > 2 else group(1, 1)
        if n % 2 == 0:
            yield group(*(2,) * (n // 2))
        if n % 3 == 0:
            yield group(*(3,) * (n // 3), by_node=False)
    for sizes in SHAPES:
        if sum(sizes) > 1:
            yield group(*sizes, channels=2)
    for nodes, each in ((2, 3), (3, 2), (4, 4), (5, 3), (3, 8)):
        yield cyclic(nodes, each, channels=2)
    yield spanning(group(*(4,) * 6, channels=2), 3)
    yield spanning(group(*(2,) * 8), 4)
    yield spanning(group(1, 3, 2, 2), 2)


def reason(name: str, collective: str, some: Group) -> str | None:
    """Why the algorithm does not exist for a group whose switches all add up, in words that its message must have."""
    sizes = np.unique(np.bincount(some.domain))
    doubles = (name, collective) == ("recursive_doubling", "allgather") or name == "scatter_allgather"
    if doubles and some.n not in (2, 4, 8, 16, 32):
        return "power of two"
    if name == "hierarchical" and some.domains == 1:
        return "single domain"
    if name in ("nvls", "nvls_tree") and sizes[0] == 1:
        return "single rank"
    if name == "nvls_tree" and some.domains == 1:
        return "single NVLink domain"
    return "equally many" if name in ("hierarchical", "nvls", "nvls_tree") and len(sizes) > 1 else None


@pytest.mark.parametrize(("name", "collective"), EVERY)
def test_a_schedule_computes_its_collective_or_says_why_not(name: str, collective: str) -> None:
    proved = 0
    for some in groups():
        some = replace(some, domain_reduces=True, network_reduces=True)
        why = reason(name, collective, some)
        for channel in range(some.channels):
            if why:
                with pytest.raises(NotApplicable, match=why):
                    make(name, collective, some, channel)
            else:
                prove(collective, some, make(name, collective, some, channel))
                proved += 1
    assert proved >= 10


def expanded(schedule: Schedule) -> list[Step]:
    """Every repetition as a step of its own, of transfers of one block each."""
    steps = []
    for step in schedule.steps:
        for repetition in range(step.times):
            transfer, block = step.moved(repetition)
            steps.append(listed(step.source[transfer], step.target[transfer], block[:, None], step.reduce))
    return steps


def only(step: Step, transfers: Ints) -> tuple[Step, ...]:
    """The step with these of its transfers; none is no step."""
    block = step.moved(0)[1][transfers, None]
    return (listed(step.source[transfers], step.target[transfers], block, step.reduce),) if len(transfers) else ()


@pytest.mark.parametrize(("name", "collective"), EVERY)
def test_the_proof_sees_a_transfer_that_is_missing_made_twice_or_not_added(name: str, collective: str) -> None:
    some = group(2, 2, 2, 2, domain_reduces=True, network_reduces=True)
    made = make(name, collective, some)
    steps = tuple(expanded(made))
    prove(collective, some, Schedule(made.blocks, steps))
    for at, step in enumerate(steps):
        every = np.arange(len(step.source))
        wrong = [only(step, np.append(0, every))]
        needed = every
        if "scatter_allgather" in name and at >= 3:
            # Ranks that handed blocks down in the scatter, its first three steps, get them again: only the odd ones
            # had none.
            needed = every[step.target % 2 == 1]
        for one in needed[[0, -1]]:
            same = (step.source == step.source[one]) & (step.target == step.target[one])
            wrong.append(only(step, every[~same]))
        if step.reduce:
            wrong.append((replace(step, reduce=False),))
        for other in wrong:
            with pytest.raises(AssertionError):
                prove(collective, some, Schedule(made.blocks, (*steps[:at], *other, *steps[at + 1 :])))


def test_every_file_is_called_by_a_canonical_name_and_computes_known_collectives() -> None:
    assert {"ring", "tree", "nvls"} <= set(names())
    for name, collective in EVERY:
        assert canonical(name) == name
        goal(collective, 2, 2)


def test_what_there_is_none_of_is_said() -> None:
    some = group(2, 2)
    with pytest.raises(NotApplicable, match=r"no schedule of collnet_chain; it has binomial, .* tree"):
        make("collnet_chain", "allreduce", some)
    with pytest.raises(NotApplicable, match="no schedule of _butterfly"):
        make("_butterfly", "allreduce", some)
    with pytest.raises(NotApplicable, match="tree has no allgather: it has allreduce"):
        make("tree", "allgather", some)


@pytest.mark.parametrize(("name", "collective"), EVERY)
def test_one_rank_takes_no_algorithm(name: str, collective: str) -> None:
    with pytest.raises(NotApplicable, match="takes two ranks, there is 1"):
        make(name, collective, group(1, domain_reduces=True, network_reduces=True))


@pytest.mark.parametrize(("name", "collective"), EVERY)
def test_only_hierarchical_spans_vendors(name: str, collective: str) -> None:
    some = group(4, 4, vendors=2, domain_reduces=True, network_reduces=True)
    if name == "hierarchical":
        prove(collective, some, make(name, collective, some))
    else:
        with pytest.raises(NotApplicable, match="no NCCL or RCCL communicator spans vendors"):
            make(name, collective, some)


def test_places_are_the_order_of_the_channel_in_each_domain() -> None:
    assert places(group(3, 3, channels=2), 1).tolist() == [[1, 2, 0], [4, 5, 3]]
    assert places(cyclic(2, 3)).shape == (2, 3)
    with pytest.raises(NotApplicable, match="domains of 1 to 3 ranks"):
        places(group(1, 3))


@pytest.mark.parametrize(("name", "steps"), [("ring", 2), ("hierarchical", 4)])
def test_repeated_turns_are_one_step_whatever_the_count_of_ranks(name: str, steps: int) -> None:
    made = make(name, "allreduce", group(*(8,) * 1000))
    assert len(made.steps) == steps and made.blocks == 8000
