"""One visit of one cell: the answer checked, the loop timed, the answer checked again.

All ranks make a visit together. An error on one is kept until all agree on it, so that the ranks stay in step: after
the timed loop, and in a cell's first visit before it too. In later visits a rank that cannot begin ends the job, since
agreeing before each timed loop would cost every visit a collective of control traffic for what all ranks could do
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np

from commbench.backends.base import AUTO, Algorithm, Backend, Call, DevicePlan, Plan, Selection, Timed, batching
from commbench.backends.world import World
from commbench.errors import Rejected
from commbench.measure import clock as clocks
from commbench.measure import compiled, timing
from commbench.measure.buffers import Arenas, layout
from commbench.measure.clock import Clock, Laps, laps
from commbench.measure.dtypes import DTYPES
from commbench.measure.effort import Effort, fitting
from commbench.measure.verify import POISON, Checker, neutral, probes
from commbench.results.stats import median, quantile
from commbench.results.status import FAILED, OK, REJECTED, SUBSTITUTED, WRONG

T = TypeVar("T")

# The common clock: seconds between two starts beside twice the pace, before the first one, and how late is late.
WINDOW_SLACK, WINDOW_LEAD, LATE_START = 50e-6, 2e-3, 5e-6
WINDOW_TRIES, WINDOW_GROWTH = 4, 4
PACES = 3  # warm-ups of which the fastest tells the pace: a window after one that lost its core would take for ever
KEPT_SAMPLES = 128  # samples of a visit that the journal keeps, evenly over its time


class Visit:
    """A visit, the `number`-th of its cell, to be carried out once."""

    def __init__(
        self,
        world: World,
        backend: Backend,
        arenas: Arenas,
        call: Call,
        effort: Effort,
        number: int,
        fresh: bool,
        compile_loop: bool,
        clock: Clock | None,
    ) -> None:
        """`fresh`: the cell had no good visit yet, so that it is warmed up, and may turn out not to run at all."""
        self._world, self._backend, self._call, self._effort = world, backend, call, effort
        self._fresh, self._compile_loop, self._clock = fresh, compile_loop, clock
        self._dtype = DTYPES[call.dtype]
        self._layout = layout(backend, call, world.rank, world.size)
        self._slots = arenas.slots(self._layout, self._dtype.storage)
        self._checker = Checker(call.collective, self._dtype, call.redop, call.count, world.rank, world.size, call.root)
        # Each check, and the timed loop, has data of its own: a result left from before is wrong.
        tries = probes(call.redop, call.count, world.size)
        first = number * (2 * tries + 1)
        self._salts_before = range(first, first + tries)
        self._salts_after = range(first + tries, first + 2 * tries)
        self._timed_salt = first + 2 * tries
        # The last warm-up tells how many iterations fit, where no number is asked for, and how long one may take.
        warmup = effort.warmup if fresh else 0
        self._warmup = max(PACES, warmup) if clock else warmup if effort.iterations else max(1, warmup)
        self._failed = self._rejected = ""
        self._wrong, self._pace = 0, 0.0
        self._last = 0  # the slot of the last timed iteration
        self._selection: Selection | None = None

    def carry_out(self, seconds: float, iterations: int) -> dict[str, Any]:
        """Time so many iterations, or as many as fit into `seconds` where that is 0.

        Return what the journal keeps of the visit, whole on rank 0 only.
        """
        begin = perf_counter()
        kept: dict[str, Any] = {"status": OK}
        # Control traffic stays outside the contexts: it must not run with a forced algorithm, which need not suit it.
        plan = self._guard(partial(self._begin, begin, kept), None)
        if self._fresh:
            self._agree(kept)
        elif plan is None:  # all ranks could do this before: the others are on their way into the timed loop
            raise RuntimeError(
                f"a cell that ran before must be able to begin again, and on rank {self._world.rank} it was not: "
                f"{self._failed or self._rejected}; --resume goes on with what is on disk, and smaller sizes (-e) or "
                "fewer ranks a node need less memory"
            )
        if kept["status"] == OK and plan is not None:  # it is not None on any rank
            self._pace = self._guard(partial(self._get_ready, plan), 0.0)
            iterations = iterations or self._fitting(self._pace, seconds)
            if self._clock is None:
                merged = self._time(plan, iterations, kept)
            else:
                merged = self._time_on_clock(self._clock, plan, iterations, seconds, kept)
            self._guard(partial(self._check_after, plan), None)
            self._agree(kept)
            if kept["status"] == OK and self._world.rank == 0:
                kept |= {"calls": plan.calls, **summary(merged * 1e6)}
        if self._selection is not None:
            kept |= {"observed_algorithm": self._selection.algorithm, "evidence": self._selection.evidence}
            kept |= {"observed_protocol": self._selection.protocol, "channels": self._selection.channels}
        return kept | {"seconds": round(perf_counter() - begin, 6)}

    def _guard(self, work: Callable[[], T], otherwise: T) -> T:
        """Return what `work` gives, run with the cell's algorithm; an error is kept for `_agree`, not raised.

        Only the first error is kept: what comes after it may be its consequence.
        """
        try:
            with self._backend.using(self._call.collective, self._call.algorithm):
                return work()
        except Exception as error:
            if not (self._failed or self._rejected):
                if isinstance(error, Rejected):
                    self._rejected = str(error)
                else:
                    self._failed = f"{type(error).__name__}: {error}"
        return otherwise

    def _begin(self, began: float, kept: dict[str, Any]) -> Plan:
        """Prepare the call, carry it out for the first time, before a witness, and check its answer."""
        kept["switch_us"] = round((perf_counter() - began) * 1e6, 1)
        plan = self._backend.plan(self._call, self._slots)

        def run() -> None:
            self._selection = plan.witness(0)

        self._check_one(self._slots[0], run, self._salts_before[0])
        return plan

    def _get_ready(self, plan: Plan) -> float:
        """Check again where one check is not enough, lay out the data that is timed, and warm up."""
        self._check(plan, self._salts_before[1:])
        self._fill()
        return self._warm_up(plan)

    def _check_after(self, plan: Plan) -> None:
        """Check what the timed loop left, what it leaves on data of its own, and the plain call."""
        self._check_timed()
        if self._effort.check:
            self._check_one(self._slots[0], partial(self._run_as_timed, plan), self._salts_after[0])
        self._check(plan, self._salts_after[1:])

    def _check(self, plan: Plan, salts: Sequence[int]) -> None:
        """Check once for each of `salts`, on one slot after another."""
        for i, salt in enumerate(salts if self._effort.check else ()):
            slot = i % len(self._slots)
            self._check_one(self._slots[slot], plan.runs[slot], salt)

    def _check_one(self, slot: tuple[Any, Any], run: Callable[[], Any], salt: int) -> None:
        send, recv = slot
        if self._effort.check:
            self._put(recv, _poison)
            self._put(send, partial(self._checker.fill, salt=salt))
        run()
        if self._effort.check:
            self._wrong += self._checker.wrong(self._backend.take(recv), salt)

    def _put(self, array: Any, fill: Callable[[Any], None]) -> None:
        """Fill a buffer, wherever it lies."""
        staged = self._backend.staging(array)
        fill(staged)
        self._backend.put(array, staged)

    def _fill(self) -> None:
        """Give every slot the data that is timed."""
        filled = None  # host memory that holds it already: computing it for each slot costs many ranks a core's time
        for send, recv in self._slots:
            staged = self._backend.staging(send)
            if filled is None:
                self._checker.fill(staged, self._timed_salt)
            else:
                np.copyto(staged, filled)
            self._backend.put(send, staged)
            filled = send if staged is send else None
            if self._layout.shared and self._call.redop:
                self._put(max(send, recv, key=len), partial(neutral, dtype=self._dtype, redop=self._call.redop))

    def _warm_up(self, plan: Plan) -> float:
        """Warm up, and return the seconds that the last iteration took on this rank, its barrier included.

        On the common clock, it is the fastest.
        """
        barrier = self._backend.barrier() if self._effort.method == "barrier" else None
        taken = [0.0]
        for i in range(self._warmup):
            begin = perf_counter()
            if barrier:
                barrier()
            plan.runs[i % len(plan.runs)]()
            taken.append(perf_counter() - begin)
        return min(taken[1:]) if self._clock else taken[-1]

    def _fitting(self, taken: float, seconds: float) -> int:
        """Return how many iterations fit into `seconds` by the slowest rank's warm-up."""
        (slowest,) = self._world.largest(max(1, int(taken * 1e9)))
        return fitting(slowest / 1e9, seconds)

    def _time(self, plan: Plan, iterations: int, kept: dict[str, Any]) -> Any:
        """Return each sample's seconds a collective, of all ranks together, on rank 0."""
        batch, samples = 1, iterations
        if self._backend.on_device:
            batch, samples = batching(self._effort.method, iterations, self._effort.graph)
        none = Timed(np.zeros(samples), batch, 0.0, timing.PLAIN, 0)  # of a rank that fails
        timed = self._guard(partial(self._durations, plan, iterations), none)
        self._last = timed.last
        kept |= {"loop": timed.loop, "batch": timed.batch, "pace_us": round(timed.host_seconds * 1e6, 3)}
        return self._world.merge(timed.seconds, self._effort.average)

    def _durations(self, plan: Plan, iterations: int) -> Timed:
        """Time the loop on this rank, by the device's clock or the host's; switching is no part of the pace."""
        method = self._effort.method
        if self._backend.on_device:
            return cast(DevicePlan, plan).timed(method, iterations, self._effort.graph)
        started = perf_counter()
        native = plan.native() if self._compile_loop else None
        if native is None:
            taken, loop = timing.durations(method, plan.runs, self._backend.barrier(), iterations), timing.PLAIN
        else:
            taken, loop = compiled.durations(method, native, iterations), compiled.COMPILED
        return Timed(taken, 1, (perf_counter() - started) / iterations, loop, (iterations - 1) % len(self._slots))

    def _time_on_clock(self, clock: Clock, plan: Plan, iterations: int, seconds: float, kept: dict[str, Any]) -> Any:
        """Return each iteration's seconds from first entry to last exit, and keep the ranks' skews, on rank 0.

        An iteration that a rank began late, since the one before was not over, is discarded on all ranks. Where most
        are, and the window was too short for what they took, it is tried anew, longer. Where most still are, all are
        kept: a rank that is late however long the window is, is a finding.
        """
        world = self._world
        clock.refresh()
        window = needed = WINDOW_SLACK + 2 * world.elementwise(np.array([self._pace]), "max")[0]
        for attempt in range(WINDOW_TRIES):
            if attempt:
                window = min(needed, WINDOW_GROWTH * window)
                iterations = self._effort.iterations or fitting(window, seconds)
            lead = WINDOW_LEAD + window  # where word of it takes long, so does what is timed
            (start,) = world.command((int((clock.common(clocks.now()) + lead) * 1e9),))
            none = Laps(np.zeros(iterations), np.zeros(iterations))
            mine = self._guard(partial(laps, clock, plan.runs, start / 1e9, window, iterations), none)
            entry = world.elementwise(mine.entries, "min")
            times = world.elementwise(mine.exits, "max") - entry
            # Entries are told from when each rank's own clock says that it is due: no error of the clocks is in them.
            good = world.elementwise(mine.entries, "max") <= LATE_START
            enough = 2 * np.count_nonzero(good) >= len(times)
            needed = WINDOW_SLACK + 2 * float(np.median(times))
            if enough or needed <= window:
                break
        arrivals = world.gather_numbers(float(np.median(mine.entries - entry)))
        first_exit = world.elementwise(mine.exits, "min")
        exits = world.gather_numbers(float(np.median(mine.exits - first_exit)))
        (error,) = world.elementwise(np.array([clock.error]), "max")
        self._last = (len(times) - 1) % len(self._slots)
        kept |= {"loop": timing.PLAIN, "batch": 1, "pace_us": round(window * 1e6, 3)}
        kept["arrival_skew_us"] = [round(seconds * 1e6, 3) for seconds in arrivals]
        kept["exit_skew_us"] = [round(seconds * 1e6, 3) for seconds in exits]
        kept["skew_error_us"] = round(2 * float(error) * 1e6, 3)  # a skew compares two ranks, each off by so much
        kept["late_starts"] = int(len(times) - np.count_nonzero(good))
        return times[good] if enough else times

    def _run_as_timed(self, plan: Plan) -> None:
        """Carry the collective out on the first slot, by the very loop that was timed.

        Once, but for a graph out of place, which is replayed whole.
        """
        if self._backend.on_device:
            graph = min(1, self._effort.graph)
            iterations = self._effort.iterations if graph and not self._layout.shared else None
            cast(DevicePlan, plan).timed(self._effort.method, iterations or 1, graph)
            return
        native = plan.native() if self._compile_loop else None
        if native is None:
            plan.runs[0]()
        else:
            compiled.durations(self._effort.method, native, 1)

    def _check_timed(self) -> None:
        """Check what the last timed iteration left; in place there is nothing to tell by."""
        if self._effort.check and not self._layout.shared:
            left = self._slots[self._last][1]
            self._wrong += self._checker.wrong(self._backend.take(left), self._timed_salt)

    def _agree(self, kept: dict[str, Any]) -> None:
        """Set status, reason and wrong elements by what all ranks saw so far."""
        rejected = self._rejected or (self._selection.objection if self._selection else "")
        asked, ran, substituted = self._call.algorithm, self._selection, False
        if ran is not None and asked.name != AUTO:
            substituted = ran.algorithm not in (None, asked.name) or (
                None not in (asked.protocol, ran.protocol) and (asked.protocol != ran.protocol)
            )
        failures, rejections, substitutions, wrong = self._world.total(
            bool(self._failed), bool(rejected), substituted, self._wrong
        )
        kept |= {"status": OK, "reason": "", "wrong": wrong if self._effort.check else None}
        if failures or rejections:
            reason = self._world.first_text(self._failed if failures else rejected)
            kept |= {"status": FAILED if failures else REJECTED, "reason": reason, "wrong": None}
            self._selection = Selection(None, "none: the cell did not run as asked")
            self._backend.recover(bool(failures))
        elif substitutions:
            reason = self._world.first_text(
                f"{_named(ran)} ran instead of {_named(asked)}" if substituted and ran else ""
            )
            kept |= {"status": SUBSTITUTED, "reason": reason}
        elif wrong:
            reason = f"{wrong} elements differ from the definition of {self._call.collective.title}"
            kept |= {"status": WRONG, "reason": reason}


def _poison(array: Any) -> None:
    array.view(np.uint8)[:] = POISON


def _named(what: Algorithm | Selection) -> str:
    name = what.name if isinstance(what, Algorithm) else what.algorithm
    return f"{name} {what.protocol}" if what.protocol else f"{name}"


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
