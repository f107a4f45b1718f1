"""One clock for all ranks: collectives start at an agreed instant, and entry and exit of all ranks are comparable.

Ranks of a node share its clock. Between nodes, the first rank of each learns its offset from the first rank of a lower
one, up a binomial tree, by ping-pong: the reply of the fastest round trip was sent half a round trip ago, give or take
half of it. That is the error, and errors add up along the tree. A second measurement, some time later, gives the
slope as well; what was foretold then, and what is measured, narrow each other. (Hunold and Carpen-Amarie,
"Hierarchical Clock Synchronization in MPI", CLUSTER 2018: HCA2.) Slopes change with temperature: a slope is that of the
last half minute, and is trusted to within `WANDER`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import CLOCK_MONOTONIC_RAW, clock_gettime, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.backends.world import World
from commbench.measure.timing import without_gc

if TYPE_CHECKING:
    from numpy.typing import NDArray

PING_PONGS = 20
STEADY = 0.5  # seconds between two measurements from which on their slope is used
BASELINE = 30.0  # seconds that a slope is taken over, or since the reading before the last if that is longer
DRIFT = 500e-6  # what two clocks may drift apart while their slope is unknown, a second a second: what NTP can mend
# What two clocks may drift apart beside that slope: quartz without an oven changes by about 1 ppm a degree (D. Hart,
# ntp.org questions, February 2012), and a machine's temperature by less than a degree in half a minute.
WANDER = 1e-6
_TAG = 77
_DOZE = 2e-3  # seconds before a start from which on a rank spins: a sleeper may wake late

# Seconds on this node's clock, which its processes share. The raw one: it is not slewed, so that its slope lasts.
now: Callable[[], float] = partial(clock_gettime, CLOCK_MONOTONIC_RAW)
clock_per_node = True  # the tests give each rank a clock of its own


class Reading(NamedTuple):
    """At `local` seconds on this clock, the common one showed `common`, give or take `error`."""

    local: float
    common: float
    error: float


class Clock:
    """The common clock (that of rank 0's node) as seen from this rank."""

    def __init__(self, world: World) -> None:
        import numpy as np

        self._world, self._mpi = world, world.mpi
        node = world.node if clock_per_node else world.rank
        own = world.node_rank == 0 if clock_per_node else True
        self._nodes = world.comm.Split(0 if own else self._mpi.UNDEFINED, node)  # one rank of each clock
        self._own = own
        self._room = np.zeros(2)
        self._readings: deque[Reading] = deque()  # those of the last BASELINE, and the one before
        self._last = Reading(0.0, 0.0, 0.0)  # until the first refresh, below
        self._shared = clock_per_node and world.nodes == 1  # the common clock is every rank's own
        self._slope = 1.0
        self._drift = 0.0 if self._shared else DRIFT  # what the slope leaves, at most
        self.refresh()

    def refresh(self) -> None:
        """Measure the offset again; on every rank together."""
        if self._shared:
            return
        if self._own:
            self._measure()
        if clock_per_node:
            last, self._slope, self._drift = self._world.share_on_node((self._last, self._slope, self._drift))
            self._last = Reading(*last)

    def common(self, local: Any) -> Any:
        """Return the common time of `local` (seconds, a number or an array)."""
        return self._last.common + (local - self._last.local) * self._slope

    def local(self, common: float) -> float:
        """Return when, on this rank's clock, the common one shows `common`."""
        return self._last.local + (common - self._last.common) / self._slope

    @property
    def error(self) -> float:
        """The seconds by which this rank's common time may be off now."""
        return self._error_at(now())

    def _error_at(self, local: float) -> float:
        return self._last.error + self._drift * (local - self._last.local)

    def close(self) -> None:
        if self._own:
            self._nodes.Free()

    def _measure(self) -> None:
        """Learn from the parent in the tree, then teach the children; the root's clock is the common one."""
        rank, size = self._nodes.Get_rank(), self._nodes.Get_size()
        if rank == 0:
            moment = now()
            self._last, self._drift = Reading(moment, moment, 0.0), 0.0
        else:
            self._keep(self._learn(rank ^ (1 << (rank.bit_length() - 1))))
        bit = 1
        while bit < size:
            child = rank | bit
            if rank < bit and child < size:
                self._teach(child)
            bit <<= 1

    def _learn(self, parent: int) -> Reading:
        best = Reading(0.0, 0.0, float("inf"))
        for _ in range(PING_PONGS):
            sent = now()
            self._nodes.Send(self._room, dest=parent, tag=_TAG)
            self._nodes.Recv(self._room, source=parent, tag=_TAG)
            back = now()
            half = (back - sent) / 2
            common, error = self._room.tolist()
            if half + error < best.error:
                best = Reading(sent + half, common, half + error)
        return best

    def _teach(self, child: int) -> None:
        for _ in range(PING_PONGS):
            self._nodes.Recv(self._room, source=child, tag=_TAG)
            moment = now()
            self._room[:] = self.common(moment), self._error_at(moment)
            self._nodes.Send(self._room, dest=child, tag=_TAG)

    def _keep(self, reading: Reading) -> None:
        """Take a reading in: it and what was foretold are each right within their errors, so the truth is in both."""
        if self._readings:
            foretold, off = self.common(reading.local), self._error_at(reading.local)
            low = max(foretold - off, reading.common - reading.error)
            high = min(foretold + off, reading.common + reading.error)
            if low <= high:
                reading = Reading(reading.local, (low + high) / 2, (high - low) / 2)
            else:  # a clock was set, or its speed changed: begin anew
                self._readings.clear()
        self._readings.append(reading)
        while len(self._readings) > 1 and reading.local - self._readings[1].local >= BASELINE:
            self._readings.popleft()
        first, self._last = self._readings[0], reading
        span = reading.local - first.local
        self._slope, self._drift = 1.0, DRIFT
        if span >= STEADY:
            self._slope = (reading.common - first.common) / span
            self._drift = (first.error + reading.error) / span + WANDER


class Laps(NamedTuple):
    """What a timed loop on the common clock gave on this rank: seconds after each agreed start."""

    entries: NDArray[Any]
    exits: NDArray[Any]


def wait_until(local: float) -> None:
    """Return when this rank's clock shows `local`, or at once if it is past."""
    while (left := local - now()) > 0:
        if left > _DOZE:  # 256 ranks that spin on two cores keep those from them that have work left
            sleep(left - _DOZE / 2)


def laps(clock: Clock, runs: Sequence[Callable[[], Any]], start: float, window: float, iterations: int) -> Laps:
    """Carry out `iterations` collectives, the i-th at `start` + i x `window` on the common clock."""
    import numpy as np

    entries, exits = np.empty(iterations), np.empty(iterations)
    cycle = [runs[i % len(runs)] for i in range(iterations)]
    starts = [clock.local(start + i * window) for i in range(iterations)]
    with without_gc():
        for i, run in enumerate(cycle):
            wait_until(starts[i])
            entries[i] = now()
            run()
            exits[i] = now()
    due = start + window * np.arange(iterations)
    return Laps(clock.common(entries) - due, clock.common(exits) - due)
