"""The sweep: rank 0 says which cell is next, its group visits it together, rank 0 keeps what it gave.

So every decision is shared; the other ranks know the plan, but neither the journal nor the clock of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.backends.base import AUTO, Algorithm, Backend
from commbench.backends.world import World
from commbench.errors import DiskError
from commbench.measure import compiled
from commbench.measure.buffers import Arenas, layout
from commbench.measure.cell import PLANNED, Cell, Group
from commbench.measure.clock import Clock
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES
from commbench.measure.effort import Effort
from commbench.measure.visit import Visit
from commbench.measure.watchdog import BETWEEN
from commbench.results.status import OK

if TYPE_CHECKING:  # rank 0 alone has these, and loads them
    from commbench.measure.agenda import Agenda
    from commbench.results.journal import Journal

_STOP = -1


class Team(NamedTuple):
    """A group that this rank is in, and the library opened among its ranks."""

    world: World
    backend: Backend


class Sweep:
    """One launch over the cells of a plan, on every rank."""

    def __init__(
        self,
        world: World,
        backend: Backend,
        teams: Mapping[str, Team],
        groups: Sequence[Group],
        collective: Collective,
        cells: Sequence[Cell],
        together: Mapping[int, list[int]],
        effort: Effort,
        crowded: bool,
        begin: Callable[[int, int], None],
    ) -> None:
        """`backend` is open among all ranks; `teams` are this rank's, by their group; `together` is cell.batches'.

        `crowded`: ranks outnumber the cores of a machine, as the site has it.
        `begin(cell, round)` is told what this rank turns to next; (BETWEEN, 0) is what lies between visits.
        """
        self._world, self._teams, self._effort, self._begin = world, teams, effort, begin
        self._givers = {group.name: group.ranks[0] for group in groups}  # the ranks that know what a visit gave
        self._cells, self._together = cells, together
        self._calls = [cell.call(collective) for cell in cells]
        mine = [index for index, cell in enumerate(cells) if cell.status == PLANNED and cell.group in teams]
        self._arenas = Arenas(backend, [self._layout(index) for index in mine], world)
        on_clock = effort.method == "clock"
        self._clocks = {name: Clock(team.world) for name, team in teams.items()} if on_clock else {}
        # A compiled loop saves a microsecond a call: nothing where ranks wait for a core. A device times itself.
        worth = not (on_clock or crowded or backend.on_device)
        self._compile_loop = worth and not world.largest(not compiled.available())[0]
        self.trouble = ""  # why no loop is compiled, where that was tried
        if self._compile_loop:
            self.trouble = world.first_text(self._compile_all(mine))
            self._compile_loop = not self.trouble

    def lead(self, journal: Journal, agenda: Agenda, watch: Callable[[int], None]) -> None:
        """Visit what the agenda says, on rank 0; `watch` is told of each cell after its visit."""
        try:
            for first, seconds in agenda.steps():
                number = len(journal.visits[first])
                iterations = agenda.iterations(first, seconds)
                fresh = any(self._is_fresh(journal, index) for index in self._together[first])
                self._world.command((first, number, int(seconds * 1e9), iterations, fresh))
                visits = self._visit(first, number, seconds, iterations, fresh)
                agenda.leave_out(max((visit.get("switch_us", 0.0) for visit in visits.values()), default=0.0) / 1e6)
                for index, visit in visits.items():
                    journal.append({"cell": index, "round": number, "session": journal.session, **visit})
                    watch(index)
        except DiskError:
            self._world.command((_STOP, 0, 0, 0, 0))
            raise
        self._world.command((_STOP, 0, 0, 0, 0))

    def close(self) -> None:
        """Free the clocks; on every rank together."""
        for clock in self._clocks.values():
            clock.close()

    def follow(self) -> None:
        """Visit what rank 0 says, on every other rank."""
        self._begin(BETWEEN, 0)
        while True:
            first, number, nanoseconds, iterations, fresh = self._world.command((0, 0, 0, 0, 0))
            if first == _STOP:
                return
            self._visit(first, number, nanoseconds / 1e9, iterations, bool(fresh))

    def _visit(
        self, first: int, number: int, seconds: float, iterations: int, fresh: bool
    ) -> dict[int, dict[str, Any]]:
        """Make the visits that begin with cell `first`; return what each gave, on rank 0."""
        gave: dict[int, dict[str, Any]] = {}
        planned = [index for index in self._together[first] if self._cells[index].status == PLANNED]
        for index in planned:
            team = self._teams.get(self._cells[index].group)
            if team is not None:
                self._begin(index, number)
                call = self._calls[index]
                clock = self._clocks.get(self._cells[index].group)
                visit = Visit(*team, self._arenas, call, self._effort, number, fresh, self._compile_loop, clock)
                gave[index] = visit.carry_out(seconds, iterations)
        self._begin(BETWEEN, 0)
        for index in planned:
            giver = self._givers[self._cells[index].group]
            if self._world.rank in (0, giver):
                gave[index] = self._world.hand_over(gave.get(index), giver)
        return gave

    def _is_fresh(self, journal: Journal, index: int) -> bool:
        """Whether a cell is to be measured and had no good visit yet."""
        visits = journal.visits[index]
        return self._cells[index].status == PLANNED and not any(visit["status"] == OK for visit in visits)

    def _layout(self, index: int) -> Any:
        world, backend = self._teams[self._cells[index].group]
        return layout(backend, self._calls[index], world.rank, world.size)

    def _compile_all(self, mine: Sequence[int]) -> str:
        """Compile what this rank's cells need, and return what went wrong."""
        likes = {(self._calls[index].redop, self._calls[index].inplace): index for index in reversed(mine)}
        try:
            for index in likes.values():  # in C, calls of a door are alike but for these two
                self._compile(index)
        except Exception as error:  # no memory that may hold code, an LLVM unknown to us, ...
            return f"the timed loop cannot be compiled ({type(error).__name__}: {str(error).splitlines()[0]})"
        return ""

    def _compile(self, index: int) -> None:
        """Compile the timed loop for calls like this cell's, before the budget's clock starts; each rank alone."""
        call, backend = self._calls[index], self._teams[self._cells[index].group].backend
        with backend.using(call.collective, Algorithm(AUTO, AUTO)):
            slots = self._arenas.slots(self._layout(index), DTYPES[call.dtype].storage)
            native = backend.plan(call, slots).native()
            if native is not None:
                compiled.prepare(self._effort.method, native)
