"""A communication library that answers wrongly: each fault is an algorithm of it, and `auto` is the real library.

mpirun -n 3 python -m commbench.allreduce --backend tests.mpi.broken
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from commbench.backends import mpi
from commbench.backends.base import AUTO, DEFAULTS, Algorithm, Call, Plan, Selection, Settings
from commbench.errors import Rejected

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

_AUTO = Algorithm(AUTO, AUTO)
LATE = 5  # calls of a visit that go well before the late fault shows
ODD = 1  # the rank that is doubled, missing, or fails


class Step:
    """One call on one pair of buffers, and what a fault needs to know of it."""

    def __init__(
        self,
        run: Callable[[], Any],
        call: Call,
        slot: tuple[NDArray[Any], NDArray[Any]],
        rank: int,
        numbers: Iterator[int],
    ) -> None:
        self.run, self.call, self.rank = run, call, rank
        self.send, self.recv = slot
        self.numbers = numbers  # of the visit's calls, over all its buffers
        self.last: NDArray[Any] | None = None

    def block(self, number: int) -> NDArray[Any]:
        """The block of the result that comes from rank `number`."""
        return self.recv[number * self.call.count : (number + 1) * self.call.count]


def wrong_element(step: Step) -> None:
    """The least bit of one element, on one rank."""
    step.run()
    if step.rank == ODD:
        step.recv.view("uint8")[step.recv.size // 2 * step.recv.itemsize] ^= 1


def doubled_rank(step: Step) -> None:
    """One rank is counted twice."""
    if step.call.collective.reduces:
        _with_contribution(step, 2)
    else:
        step.run()
        step.block(0)[:] = step.block(ODD)


def missing_rank(step: Step) -> None:
    """One rank is left out: not counted, or its block not delivered."""
    if step.call.collective.reduces:
        _with_contribution(step, 0)
    else:
        before = step.block(ODD).copy()
        step.run()
        if step.rank != ODD:
            step.block(ODD)[:] = before


def swapped_ranks(step: Step) -> None:
    """Two ranks' contributions change places, which shows where order matters."""
    step.run()
    here, there = step.block(0).copy(), step.block(ODD).copy()
    step.block(0)[:], step.block(ODD)[:] = there, here


def nothing_done(step: Step) -> None:
    """Success is returned at once, and the buffer is as it was."""


def stale_answer(step: Step) -> None:
    """The answer is that of the call before."""
    step.run()
    now = step.recv.copy()
    if step.last is not None:
        step.recv[:] = step.last
    step.last = now


def late_fault(step: Step) -> None:
    """All is well at first."""
    (step.run if next(step.numbers) < LATE else partial(wrong_element, step))()


def raises(step: Step) -> None:
    """One rank meets an error after the others are done."""
    step.run()
    if step.rank == ODD:
        raise RuntimeError("made up by the tests")


def refuses(step: Step) -> None:
    """The library says no."""
    raise Rejected("made up by the tests")


def substituted(step: Step) -> None:
    """Right, but another algorithm ran (see `BrokenPlan.witness`)."""
    step.run()


Fault: TypeAlias = Callable[[Step], None]
WRONG: tuple[Fault, ...] = (wrong_element, doubled_rank, missing_rank, nothing_done, stale_answer, late_fault)
WRONG_IN_ORDER: tuple[Fault, ...] = (swapped_ranks,)
OTHER: tuple[Fault, ...] = (raises, refuses, substituted)
_FAULTS = {fault.__name__: fault for fault in (*WRONG, *WRONG_IN_ORDER, *OTHER)}


class Backend(mpi.Backend):
    """The MPI backend with faults for algorithms."""

    simulated = True

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        super().open(world, settings)
        self._rank = world.rank

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        return [_AUTO, *(Algorithm(name, name) for name in _FAULTS)]

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        if call.algorithm.name == swapped_ranks.__name__ and call.collective.reduces:
            return "the order of ranks does not matter to a reduction"
        return super().refusal(replace(call, algorithm=_AUTO), ranks)

    @contextmanager
    def using(self, collective: Any, algorithm: Algorithm) -> Iterator[None]:
        with super().using(collective, _AUTO):
            yield

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Any:
        plan = super().plan(replace(call, algorithm=_AUTO), slots)
        if call.algorithm.name == AUTO:
            return plan
        fault = _FAULTS[call.algorithm.name]
        numbers = count()
        steps = [Step(run, call, slot, self._rank, numbers) for run, slot in zip(plan.runs, slots, strict=True)]
        return BrokenPlan(plan, [partial(fault, step) for step in steps], call.algorithm.name)


class BrokenPlan:
    """A plan of the real library, spoilt."""

    def __init__(self, plan: Plan, runs: Sequence[Callable[[], Any]], name: str) -> None:
        self.runs, self.calls, self._name = runs, plan.calls, name

    def native(self) -> None:
        """Nothing to compile: the faults are in Python."""

    def witness(self, slot: int) -> Selection:
        self.runs[slot]()
        ran = "ring" if self._name == substituted.__name__ else self._name
        return Selection(ran, "made up by the tests")


def _with_contribution(step: Step, times: int) -> None:
    """Call with the odd rank's contribution (to a sum) taken `times`; its send buffer is as before afterwards."""
    if step.rank != ODD:
        step.run()
        return
    kept = step.send.copy()
    step.send[:] = kept * kept.dtype.type(times)
    step.run()
    if not step.call.inplace:
        step.send[:] = kept
