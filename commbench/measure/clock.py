"""One clock for all ranks: collectives start at an agreed instant, and entry and exit of all ranks are comparable.

Ranks of a node share its clock. Between nodes, the first rank of each learns its offset from the first rank of a lower
one, up a binomial tree, by ping-pong: the reply of the fastest round trip was sent half a round trip ago, give or take
half of it. That is the error, and errors add up along the tree. A second measurement, some time later, gives the
slope as well. (Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI", CLUSTER 2018: HCA2.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.backends.world import World

if TYPE_CHECKING:
    from numpy.typing import NDArray

PING_PONGS = 20
STEADY = 0.5  # seconds between two measurements from which on their slope is used
DRIFT = 100e-6  # what two clocks may drift apart while their slope is unknown, a second a second
_TAG = 77

now = perf_counter  # seconds on this node's clock; CLOCK_MONOTONIC, which its processes share
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
        self._first = self._last = Reading(0.0, 0.0, 0.0)
        self._slope = 1.0
        self.refresh()

    def refresh(self) -> None:
        """Measure the offset again; on every rank together."""
        if self._own:
            self._keep(self._measure())
        if clock_per_node:
            numbers = self._world.share_on_node((self._first, self._last, self._slope))
            self._first, self._last, self._slope = Reading(*numbers[0]), Reading(*numbers[1]), numbers[2]

    def common(self, local: Any) -> Any:
        """Return the common time of `local` (seconds, a number or an array)."""
        return self._last.common + (local - self._last.local) * self._slope

    def local(self, common: float) -> float:
        """Return when, on this rank's clock, the common one shows `common`."""
        return self._last.local + (common - self._last.common) / self._slope

    @property
    def error(self) -> float:
        """The seconds by which this rank's common time may be off now."""
        drift = DRIFT if self._slope == 1.0 else self._slope_error
        exact = self._last.error == 0.0
        return 0.0 if exact else self._last.error + drift * (now() - self._last.local)

    def close(self) -> None:
        if self._own:
            self._nodes.Free()

    @property
    def _slope_error(self) -> float:
        return (self._first.error + self._last.error) / max(self._last.local - self._first.local, STEADY)

    def _measure(self) -> Reading:
        """Learn from the parent in the tree, then teach the children; the root's clock is the common one."""
        rank, size = self._nodes.Get_rank(), self._nodes.Get_size()
        if rank == 0:
            moment = now()
            reading = Reading(moment, moment, 0.0)
        else:
            reading = self._learn(rank ^ (1 << (rank.bit_length() - 1)))
        bit = 1
        while bit < size:
            child = rank | bit
            if rank < bit and child < size:
                self._teach(child, reading)
            bit <<= 1
        return reading

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

    def _teach(self, child: int, reading: Reading) -> None:
        slope = self._slope
        for _ in range(PING_PONGS):
            self._nodes.Recv(self._room, source=child, tag=_TAG)
            self._room[:] = reading.common + (now() - reading.local) * slope, reading.error
            self._nodes.Send(self._room, dest=child, tag=_TAG)

    def _keep(self, reading: Reading) -> None:
        if self._first.local == 0.0:
            self._first = reading
        elif reading.local - self._first.local >= STEADY:
            self._slope = (reading.common - self._first.common) / (reading.local - self._first.local)
        self._last = reading


class Laps(NamedTuple):
    """What a timed loop on the common clock gave on this rank: seconds after each agreed start."""

    entries: NDArray[Any]
    exits: NDArray[Any]


def wait_until(local: float) -> None:
    """Return when this rank's clock shows `local`, or at once if it is past."""
    while now() < local:
        pass


def laps(clock: Clock, runs: Sequence[Callable[[], Any]], start: float, window: float, iterations: int) -> Laps:
    """Carry out `iterations` collectives, the i-th at `start` + i x `window` on the common clock."""
    import numpy as np

    entries, exits = np.empty(iterations), np.empty(iterations)
    cycle = [runs[i % len(runs)] for i in range(iterations)]
    starts = [clock.local(start + i * window) for i in range(iterations)]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for i, run in enumerate(cycle):
            wait_until(starts[i])
            entries[i] = now()
            run()
            exits[i] = now()
    finally:
        if collecting:
            gc.enable()
    due = start + window * np.arange(iterations)
    return Laps(clock.common(entries) - due, clock.common(exits) - due)
