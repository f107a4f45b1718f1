"""The run: cells visited in shuffled rounds, each visit checked, timed, checked again and journaled.

Rank 0 decides what comes next and tells the others; so all ranks share every decision.
First one short pass over all cells, `auto` first, each from small to large; then rounds that refine: blocks of one
algorithm in shuffled order, their cells shuffled inside. A cell is done when its interval over rounds is narrow
enough, when it had its rounds or its seconds, or when the budget is spent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from commbench.backends.base import AUTO, Backend, Plan, Selection
from commbench.backends.world import World
from commbench.errors import DiskError, NotApplicable, Rejected
from commbench.measure import compiled, timing
from commbench.measure.buffers import Arenas, layout
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES
from commbench.measure.plan import PLANNED, Cell
from commbench.measure.verify import POISON, Checker, neutral, probes
from commbench.results.journal import Journal
from commbench.results.record import FAILED, NOT_MEASURED, OK, REJECTED, TIMEOUT, WRONG
from commbench.results.stats import median, median_interval, quantile

SHORT_VISIT, FULL_VISIT = 0.005, 0.03  # seconds of timed iterations that a visit aims at
FEWEST_ITERATIONS, MOST_ITERATIONS = 3, 1000
ROUNDS, FEW_ROUNDS = 12, 5  # few: with fixed iterations, and where ranks outnumber cores, which no round mends
KEPT_SAMPLES = 128  # samples of a visit that the journal keeps, evenly over its time
FIRST_PASS_SHARE, AUTO_SHARE = 0.5, 0.25  # of the budget: until the first pass ends, and `auto` in it
_STOP = -1
BETWEEN = -1  # no cell: what a rank is at between two visits


@dataclass(frozen=True)
class Effort:
    """How much is spent: `iterations` None lets precision decide; times in seconds, None without limit."""

    iterations: int | None
    warmup: int
    rounds: int
    precision: float
    max_seconds: float | None
    budget: float | None
    check: bool
    method: str
    average: str  # how the ranks' times of an iteration become one: max, mean, min, rank0
    seed: int


class Verdict(NamedTuple):
    """What a check of the answer said, on all ranks together."""

    status: str
    reason: str
    wrong: int | None


class Sweep:
    """One launch over the cells of a plan. Every rank has one; rank 0 has the journal too."""

    def __init__(
        self,
        world: World,
        backend: Backend,
        collective: Collective,
        cells: list[Cell],
        effort: Effort,
        begin: Callable[[int, int], None],
    ) -> None:
        """`begin(cell, round)` is told what this rank turns to next; (BETWEEN, 0) is what lies between visits."""
        self.world, self.backend, self.collective, self.cells, self.effort = world, backend, collective, cells, effort
        self._begin = begin
        self._calls = [cell.call(collective) for cell in cells]
        planned = [call for cell, call in zip(cells, self._calls, strict=True) if cell.status == PLANNED]
        layouts = [layout(backend, call, world.rank, world.size) for call in dict.fromkeys(planned)]
        self._arenas = Arenas(backend, layouts)
        # Compiled loops spin in C; where ranks share cores, the scheduler's share hides what they would save.
        self._compiled = not world.crowded and not world.largest(int(not compiled.available()))[0]

    def lead(self, journal: Journal, schedule: Schedule, watch: Callable[[int], None]) -> None:
        """Visit what the schedule says, on rank 0; `watch` is told of each cell after its visit."""
        try:
            for index, seconds in schedule.steps():
                number = len(journal.visits[index])
                self.world.command((index, number, int(seconds * 1e9)))
                visit = self._visit(index, number, seconds)
                self._begin(BETWEEN, 0)
                journal.append({"cell": index, "round": number, "session": journal.session, **visit})
                watch(index)
        except DiskError:
            self.world.command((_STOP, 0, 0))
            raise
        self.world.command((_STOP, 0, 0))

    def follow(self) -> None:
        """Visit what rank 0 says; on every other rank."""
        while True:
            self._begin(BETWEEN, 0)
            index, number, nanoseconds = self.world.command((0, 0, 0))
            if index == _STOP:
                return
            self._visit(index, number, nanoseconds / 1e9)

    def _visit(self, index: int, number: int, seconds: float) -> dict[str, Any]:
        """Check, time and check again one cell; return what the journal keeps of it, whole on rank 0 only."""
        self._begin(index, number)
        begin = perf_counter()
        call = self._calls[index]
        dtype = DTYPES[call.dtype]
        cut = layout(self.backend, call, self.world.rank, self.world.size)
        slots = self._arenas.slots(cut, dtype.storage)
        checker = Checker(self.collective, dtype, call.redop, call.count, self.world.rank, self.world.size, call.root)
        tries = probes(call.redop, call.count, self.world.size)
        salt = number * (2 * tries + 1)  # each check, and the timed loop, has data of its own
        timed_salt = salt + 2 * tries
        attempt = _Attempt()
        switching = perf_counter()
        with attempt, self.backend.using(self.collective, call.algorithm):
            switch_us = (perf_counter() - switching) * 1e6
            plan = self.backend.plan(call, slots)
            attempt.wrong = self._check(checker, slots[0], partial(self._witness, plan, attempt), salt)
        verdict = self._agree(attempt)
        if verdict.status != OK:
            return self._kept(verdict, attempt.selection, begin)
        # The control traffic between the contexts must not run with the forced algorithm, which need not suit it.
        taken = 0.0
        with attempt, self.backend.using(self.collective, call.algorithm):
            attempt.wrong += self._check_again(checker, slots, plan.runs, range(salt + 1, salt + tries))
            for send, recv in slots:
                checker.fill(send, timed_salt)
                if cut.shared and call.redop:
                    neutral(max(send, recv, key=len), dtype, call.redop)
            taken = self._warm_up(plan.runs, number)
        iterations = self._iterations(taken, seconds)
        mine, loop = np.zeros(iterations), ""
        with attempt, self.backend.using(self.collective, call.algorithm):
            mine, loop = self._time(plan, iterations)
            if self.effort.check and not cut.shared:
                attempt.wrong += checker.wrong(slots[(iterations - 1) % len(slots)][1], timed_salt)
        merged = self.world.merge(mine, self.effort.average)
        with attempt, self.backend.using(self.collective, call.algorithm):
            attempt.wrong += self._check_again(checker, slots, plan.runs, range(salt + tries, salt + 2 * tries))
        verdict = self._agree(attempt)
        kept = self._kept(verdict, attempt.selection, begin)
        if verdict.status == OK and self.world.rank == 0:
            kept |= summary(merged * 1e6) | {"loop": loop, "calls": plan.calls, "switch_us": round(switch_us, 1)}
        return kept

    def _time(self, plan: Plan, iterations: int) -> tuple[Any, str]:
        """Return each iteration's seconds on this rank, and the name of the loop that took them."""
        native = plan.native() if self._compiled else None
        if native is None:
            return timing.durations(self.effort.method, plan.runs, self.backend.barrier(), iterations), timing.PLAIN
        return compiled.durations(self.effort.method, native, iterations), compiled.COMPILED

    def _witness(self, plan: Plan, attempt: _Attempt) -> None:
        attempt.selection = plan.witness(0)

    def _check(self, checker: Checker, slot: tuple[Any, Any], run: Callable[[], Any], salt: int) -> int:
        """Carry the collective out once on data of `salt` and return this rank's wrong elements."""
        send, recv = slot
        if self.effort.check:
            recv.view("uint8")[:] = POISON
            checker.fill(send, salt)
        run()
        return checker.wrong(recv, salt) if self.effort.check else 0

    def _check_again(self, checker: Checker, slots: Any, runs: Any, salts: range) -> int:
        """Check once for each of `salts`, on one slot after another; return this rank's wrong elements."""
        if not self.effort.check:
            return 0
        return sum(
            self._check(checker, slots[i % len(slots)], runs[i % len(slots)], salt) for i, salt in enumerate(salts)
        )

    def _agree(self, attempt: _Attempt) -> Verdict:
        """Return the verdict of all ranks on this attempt."""
        objection = attempt.selection.objection if attempt.selection else ""
        rejected = attempt.rejected or objection
        counts = self.world.total(int(bool(attempt.failed)), int(bool(rejected)), attempt.wrong)
        failures, rejections, wrong = counts
        if failures or rejections:
            reason = self.world.first_text(attempt.failed or rejected)
            return Verdict(FAILED if failures else REJECTED, reason, None)
        if not self.effort.check:
            return Verdict(OK, "", None)
        if wrong:
            return Verdict(WRONG, f"{wrong} elements differ from the definition of {self.collective.title}", wrong)
        return Verdict(OK, "", 0)

    def _warm_up(self, runs: Any, number: int) -> float:
        """Warm up, and return the seconds that the last iteration took on this rank, its barrier included."""
        barrier = self.backend.barrier() if self.effort.method == "barrier" else None
        begin = perf_counter()
        for i in range(max(1, self.effort.warmup if number == 0 else 1)):
            begin = perf_counter()
            if barrier:
                barrier()
            runs[i % len(runs)]()
        return perf_counter() - begin

    def _iterations(self, taken: float, seconds: float) -> int:
        """Return how many iterations fit into `seconds` by the slowest rank's warm-up, or as many as were asked for."""
        if self.effort.iterations:
            return self.effort.iterations
        (slowest,) = self.world.largest(max(1, int(taken * 1e9)))
        return max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(seconds * 1e9 / slowest)))

    def _kept(self, verdict: Verdict, selection: Selection | None, begin: float) -> dict[str, Any]:
        kept: dict[str, Any] = {"status": verdict.status, "reason": verdict.reason, "wrong": verdict.wrong}
        if selection is not None:
            kept |= {"observed_algorithm": selection.algorithm, "evidence": selection.evidence}
            kept |= {"observed_protocol": selection.protocol, "channels": selection.channels}
        return kept | {"seconds": round(perf_counter() - begin, 6)}


class _Attempt:
    """What went wrong on this rank: used as a context, it keeps the error for `_agree` instead of raising it."""

    def __init__(self) -> None:
        self.failed = self.rejected = ""
        self.wrong = 0
        self.selection: Selection | None = None

    def __enter__(self) -> _Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Rejected | NotApplicable):
            self.rejected = str(error)
        elif isinstance(error, Exception):
            self.failed = f"{type(error).__name__}: {error}"
        return isinstance(error, Exception)


def summary(samples_us: Any) -> dict[str, Any]:
    """Return what a visit keeps of its samples (microseconds): exact figures over all, and some of them as they are."""
    every = samples_us.tolist()
    kept = every if len(every) <= KEPT_SAMPLES else [every[i * len(every) // KEPT_SAMPLES] for i in range(KEPT_SAMPLES)]
    return {
        "iterations": len(every),
        "median_us": round(median(every), 4),
        "mean_us": round(sum(every) / len(every), 4),
        "min_us": round(min(every), 4),
        "max_us": round(max(every), 4),
        "p99_us": round(quantile(every, 0.99), 4),
        "samples_us": [round(sample, 3) for sample in kept],
    }


class Schedule:
    """Which cell is visited next, and for how long; only rank 0 knows."""

    def __init__(self, cells: list[Cell], journal: Journal, effort: Effort) -> None:
        self._cells, self._journal, self._effort = cells, journal, effort
        self._begin = perf_counter()
        self._algorithms = list(dict.fromkeys((cell.algorithm, cell.protocol) for cell in cells))

    def steps(self) -> Iterator[tuple[int, float]]:
        """Yield (cell, seconds of timed iterations that the visit should take)."""
        yield from self._first_pass()
        while True:
            left = [index for index in range(len(self._cells)) if self.unfinished(index)]
            if not left or self._spent() >= 1:
                return
            for index in self._shuffled(left):
                if self._spent() >= 1:
                    return
                yield index, FULL_VISIT
            self._journal.write_records()

    def unfinished(self, index: int) -> bool:
        """Whether another visit would refine a cell that went well so far."""
        visits = self._journal.visits[index]
        if not visits or any(visit["status"] in (WRONG, REJECTED) for visit in visits) or visits[-1]["status"] != OK:
            return False
        good = [visit for visit in visits if visit["status"] == OK]
        if len(good) >= self._effort.rounds:
            return False
        seconds = sum(visit.get("seconds", 0.0) for visit in visits)
        if self._effort.max_seconds and seconds >= self._effort.max_seconds:
            return False
        return self._effort.iterations is not None or not precise(good, self._effort.precision)

    def finished(self) -> int:
        """Return how many cells need no further visit, as far as is known now."""
        return sum(
            cell.status != PLANNED or (bool(self._journal.visits[index]) and not self.unfinished(index))
            for index, cell in enumerate(self._cells)
        )

    def seconds_left(self) -> float | None:
        """Return the seconds that the budget still allows, None without one."""
        return max(0.0, (1 - self._spent()) * self._effort.budget) if self._effort.budget else None

    def _first_pass(self) -> Iterator[tuple[int, float]]:
        """Yield each cell that has no good visit yet; pass over what would take too long."""
        others = {cell.algorithm for cell in self._cells if cell.status == PLANNED} - {AUTO}
        for index in sorted(range(len(self._cells)), key=self._first_key):
            cell, visits = self._cells[index], self._journal.visits[index]
            if cell.status != PLANNED or not self._missing(visits):
                continue
            share = AUTO_SHARE if cell.algorithm == AUTO and others else FIRST_PASS_SHARE
            if reason := self._too_long(index, share):
                skipped = {"cell": index, "round": len(visits), "session": self._journal.session}
                self._journal.append(skipped | {"status": NOT_MEASURED, "reason": reason})
                continue
            yield index, SHORT_VISIT
        self._journal.write_records()

    def _missing(self, visits: list[dict[str, Any]]) -> bool:
        """Whether a cell still needs its first good visit: what an earlier session could not do is tried again."""
        if not visits or visits[-1]["status"] == NOT_MEASURED:
            return True
        return visits[-1]["status"] in (TIMEOUT, FAILED) and visits[-1]["session"] < self._journal.session

    def _first_key(self, index: int) -> tuple[Any, ...]:
        cell = self._cells[index]
        return (cell.algorithm != AUTO, cell.size, index)

    def _shuffled(self, left: list[int]) -> list[int]:
        """Return `left` in blocks of one algorithm and protocol, blocks and their cells shuffled."""
        rounds = min(len(self._journal.visits[index]) for index in left)
        chance = random.Random(f"{self._effort.seed}/{rounds}")
        blocks = [
            [i for i in left if (self._cells[i].algorithm, self._cells[i].protocol) == a] for a in self._algorithms
        ]
        chance.shuffle(blocks)
        for block in blocks:
            chance.shuffle(block)
        return [index for block in blocks for index in block]

    def _spent(self) -> float:
        """Return the fraction of the budget that is gone."""
        return (perf_counter() - self._begin) / self._effort.budget if self._effort.budget else 0.0

    def _too_long(self, index: int, share: float) -> str:
        """Return why a first visit does not fit this share of the budget any more, empty if it does.

        Its time is foreseen from the same cell at smaller sizes.
        """
        if not self._effort.budget:
            return ""
        left = (share - self._spent()) * self._effort.budget
        if left <= 0:
            return f"the first pass had its part of the budget of {self._effort.budget:g} s"
        cell = self._cells[index]
        smaller = [
            (other.size, visits[0]["seconds"])
            for other, visits in zip(self._cells, self._journal.visits.values(), strict=True)
            if visits and other.size < cell.size and _kin(other) == _kin(cell) and visits[0]["status"] == OK
        ]
        if smaller:
            foreseen = foresee(sorted(smaller), cell.size)
            if foreseen > left or (self._effort.max_seconds and foreseen > self._effort.max_seconds):
                return f"a visit was foreseen to take {foreseen:.1f} s, and {left:.1f} s were left for the first pass"
        return ""


def foresee(measured: list[tuple[int, float]], size: int) -> float:
    """Return the seconds that `size` will take, from (size, seconds) of smaller ones in rising order.

    The last two sizes give the growth, which is taken to be at most linear; one size gives its own seconds.
    """
    last_size, last = measured[-1]
    if len(measured) == 1:
        return last
    size_before, before = measured[-2]
    exponent = math.log(last / before) / math.log(last_size / size_before)
    return last * (size / last_size) ** min(1.0, max(0.0, exponent))


def precise(visits: list[dict[str, Any]], precision: float) -> bool:
    """Whether the interval over rounds is within `precision` of the median to both sides."""
    medians = [visit["median_us"] for visit in visits]
    interval = median_interval(medians)
    middle = median(medians)
    return interval is not None and max(middle - interval[0], interval[1] - middle) <= precision * middle


def _kin(cell: Cell) -> tuple[Any, ...]:
    return (cell.algorithm, cell.protocol, cell.dtype, cell.redop, cell.inplace, cell.buffer)
