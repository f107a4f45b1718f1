"""Rank 0 leads and the others follow: the same visits everywhere, and one end, whatever the disk says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from commbench.backends.base import Algorithm
from commbench.errors import DiskError
from commbench.measure import compiled
from commbench.measure.agenda import Agenda
from commbench.measure.cell import ALL, Group, batches
from commbench.measure.sweep import Sweep, Team
from commbench.measure.watchdog import BETWEEN
from commbench.results.journal import Journal
from tests.fakes import FakeLibrary, FakeWorld, effort
from tests.numpy_collectives import COLLECTIVES, Array
from tests.runs import cell, planned

CELLS = [cell("auto", 64), cell("ring", 64), cell("ring", 512, status="not_applicable", reason="no")]
Numbers = tuple[int, ...]


class FakeAgenda:
    """Visits of the first two cells in turn."""

    def __init__(self, *steps: tuple[int, float]) -> None:
        self._steps = steps

    def steps(self) -> Iterator[tuple[int, float]]:
        yield from self._steps

    def iterations(self, index: int, seconds: float) -> int:
        return 0 if seconds else 3

    def leave_out(self, seconds: float) -> None:
        assert seconds >= 0


class FakeJournal:
    def __init__(self, full_after: int = 1000) -> None:
        self.visits: dict[int, list[dict[str, Any]]] = {index: [] for index in range(len(CELLS))}
        self.session, self._left = 0, full_after

    def append(self, visit: dict[str, Any]) -> None:
        self._left -= 1
        if self._left < 0:
            raise DiskError("the disk is full")
        self.visits[visit["cell"]].append(visit)


class Commanding(FakeWorld):
    """A rank that hands its commands on, or (with `orders`) takes them."""

    def __init__(self, library: FakeLibrary, orders: Sequence[Numbers] = ()) -> None:
        super().__init__(library)
        self.said: list[Numbers] = []
        self._orders = iter(orders)
        self._follows = bool(orders)

    def command(self, numbers: Numbers) -> Numbers:
        self._control()
        numbers = next(self._orders) if self._follows else numbers
        self.said.append(numbers)
        return numbers


def sweep(world: Commanding, library: FakeLibrary, told: list[Numbers], crowded: bool = False, **changes: Any) -> Sweep:
    cells = planned(*CELLS)
    begin = lambda index, number: told.append((index, number))  # noqa: E731
    teams, groups = {ALL: Team(cast(Any, world), library.backend)}, [Group(ALL, (0,))]
    together, asked = batches(cells, concurrent=False), effort(**changes)
    reduction = COLLECTIVES["allreduce"]
    return Sweep(cast(Any, world), library.backend, teams, groups, reduction, cells, together, asked, crowded, begin)


def lead(steps: Sequence[tuple[int, float]], journal: FakeJournal) -> tuple[Commanding, FakeLibrary, list[Numbers]]:
    library = FakeLibrary()
    world, told, watched = Commanding(library), list[Numbers](), list[int]()
    agenda = cast(Agenda, FakeAgenda(*steps))
    sweep(world, library, told, iterations=None).lead(cast(Journal, journal), agenda, watched.append)
    assert watched == [index for index, _ in steps]
    return world, library, told


def test_every_visit_is_announced_made_and_kept() -> None:
    journal = FakeJournal()
    world, _, told = lead([(0, 0.001), (1, 0.001), (0, 0.0)], journal)
    assert world.said == [
        (0, 0, 1_000_000, 0, True),
        (1, 0, 1_000_000, 0, True),
        (0, 1, 0, 3, False),
        (-1, 0, 0, 0, 0),
    ]
    assert told == [(0, 0), (BETWEEN, 0), (1, 0), (BETWEEN, 0), (0, 1), (BETWEEN, 0)]
    kept = [(visit["cell"], visit["round"], visit["session"], visit["status"]) for visit in journal.visits[0]]
    assert kept == [(0, 0, 0, "ok"), (0, 1, 0, "ok")]
    assert journal.visits[0][1]["iterations"] == 3


def test_who_follows_makes_the_same_visits() -> None:
    leader, led, _ = lead([(0, 0.0), (1, 0.0), (0, 0.0)], FakeJournal())
    library, told = FakeLibrary(), list[Numbers]()
    follower = Commanding(library, leader.said)
    sweep(follower, library, told, iterations=None).follow()
    assert follower.said == leader.said
    assert library.seen == led.seen
    assert told == [(BETWEEN, 0), (0, 0), (BETWEEN, 0), (1, 0), (BETWEEN, 0), (0, 1), (BETWEEN, 0)]


def test_a_full_disk_ends_the_sweep_on_every_rank() -> None:
    library = FakeLibrary()
    world = Commanding(library)
    agenda = cast(Agenda, FakeAgenda((0, 0.001), (1, 0.001)))
    with pytest.raises(DiskError, match="the disk is full"):
        sweep(world, library, []).lead(cast(Journal, FakeJournal(full_after=1)), agenda, lambda index: None)
    assert [numbers[0] for numbers in world.said] == [0, 1, -1]


def test_each_cell_runs_with_its_own_algorithm() -> None:
    forced: list[Algorithm | None] = []

    def carry_out(number: int, send: Array, recv: Array) -> None:
        forced.append(library.in_force)
        recv[:] = send

    library = FakeLibrary(carry_out)
    world = Commanding(library)
    steps = cast(Agenda, FakeAgenda((0, 0.0), (1, 0.0)))
    sweep(world, library, []).lead(cast(Journal, FakeJournal()), steps, lambda index: None)
    assert list(dict.fromkeys(one.name for one in forced if one)) == ["auto", "ring"]


@pytest.mark.parametrize("crowded", [False, True])
def test_where_ranks_wait_for_a_core_no_loop_is_compiled(monkeypatch: pytest.MonkeyPatch, crowded: bool) -> None:
    tried: list[Sequence[int]] = []

    def compile_all(self: Sweep, mine: Sequence[int]) -> str:
        tried.append(mine)
        return ""

    monkeypatch.setattr(compiled, "available", lambda: True)
    monkeypatch.setattr(Sweep, "_compile_all", compile_all)
    library = FakeLibrary()
    sweep(Commanding(library), library, [], crowded)
    assert tried == ([] if crowded else [[0, 1]])


def test_the_loop_is_compiled_under_the_librarys_own_choice_which_each_rank_may_make_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, used = FakeLibrary(), list[str]()
    plan = library.plan

    def planned_under(call: Any, slots: Any) -> Any:
        used.append(library.in_force.name if library.in_force else "none")
        return plan(call, slots)

    monkeypatch.setattr(compiled, "available", lambda: True)
    monkeypatch.setattr(library, "plan", planned_under)
    sweep(Commanding(library), library, [])
    assert used == ["auto"]
