"""The sweep: rank 0 says which cell is next, all ranks visit it together, rank 0 keeps what it gave.

So every decision is shared; the other ranks know the plan, but neither the journal nor the clock of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from commbench.backends.base import AUTO, Algorithm, Backend, Call
from commbench.backends.world import World
from commbench.errors import DiskError
from commbench.measure import compiled
from commbench.measure.agenda import Agenda, Effort
from commbench.measure.buffers import Arenas, layout
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES
from commbench.measure.plan import PLANNED, Cell
from commbench.measure.visit import Visit
from commbench.results.journal import Journal
from commbench.results.record import OK

_STOP = -1
BETWEEN = -1  # no cell: what a rank is at between two visits


class Sweep:
    """One launch over the cells of a plan, on every rank."""

    def __init__(
        self,
        world: World,
        backend: Backend,
        collective: Collective,
        cells: Sequence[Cell],
        effort: Effort,
        begin: Callable[[int, int], None],
    ) -> None:
        """`begin(cell, round)` is told what this rank turns to next; (BETWEEN, 0) is what lies between visits."""
        self._world, self._backend, self._effort, self._begin = world, backend, effort, begin
        self._calls = [cell.call(collective) for cell in cells]
        planned = [call for cell, call in zip(cells, self._calls, strict=True) if cell.status == PLANNED]
        self._arenas = Arenas(backend, [layout(backend, call, world.rank, world.size) for call in planned])
        # A compiled loop saves a microsecond a call: nothing where ranks wait for a core.
        self._compile_loop = not world.crowded and not world.largest(not compiled.available())[0]
        # In C, calls of a door are alike but for these two.
        for call in {(call.redop, call.inplace): call for call in reversed(planned)}.values():
            if self._compile_loop:
                self._compile(call)

    def _compile(self, call: Call) -> None:
        """Compile the timed loop for calls like this one, before the budget's clock starts."""
        cut = layout(self._backend, call, self._world.rank, self._world.size)
        with self._backend.using(call.collective, Algorithm(AUTO, AUTO)):
            native = self._backend.plan(call, self._arenas.slots(cut, DTYPES[call.dtype].storage)).native()
            if native is not None:
                compiled.prepare(self._effort.method, native)

    def lead(self, journal: Journal, agenda: Agenda, watch: Callable[[int], None]) -> None:
        """Visit what the agenda says, on rank 0; `watch` is told of each cell after its visit."""
        try:
            for index, seconds in agenda.steps():
                number = len(journal.visits[index])
                iterations = agenda.iterations(index, seconds)
                first = not any(visit["status"] == OK for visit in journal.visits[index])
                self._world.command((index, number, int(seconds * 1e9), iterations, first))
                visit = self._visit(index, number, first).carry_out(seconds, iterations)
                self._begin(BETWEEN, 0)
                journal.append({"cell": index, "round": number, "session": journal.session, **visit})
                watch(index)
        except DiskError:
            self._world.command((_STOP, 0, 0, 0, 0))
            raise
        self._world.command((_STOP, 0, 0, 0, 0))

    def follow(self) -> None:
        """Visit what rank 0 says, on every other rank."""
        while True:
            self._begin(BETWEEN, 0)
            index, number, nanoseconds, iterations, first = self._world.command((0, 0, 0, 0, 0))
            if index == _STOP:
                return
            self._visit(index, number, bool(first)).carry_out(nanoseconds / 1e9, iterations)

    def _visit(self, index: int, number: int, first: bool) -> Visit:
        self._begin(index, number)
        warmup = self._effort.warmup if first else 0
        call = self._calls[index]
        return Visit(self._world, self._backend, self._arenas, call, self._effort, number, warmup, self._compile_loop)
