"""One clock for all ranks, in a simulated cluster: every node has a clock of its own, and messages take their time."""

from __future__ import annotations

import math
import queue
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from commbench.backends.world import World
from commbench.measure import clock as module
from commbench.measure.clock import DRIFT, STEADY, Clock, Reading, laps, wait_until

T = TypeVar("T")
LOOK = 50e-9  # seconds that a look at the clock takes
Way = Callable[[random.Random, int, int], float]  # seconds of a message, from one rank to another


Bend = Callable[[float], float]  # seconds that a clock has gained beside its drift, after so many of true time


def even(chance: random.Random, source: int, dest: int) -> float:
    return chance.uniform(1e-6, 3e-6) + (1e-3 if chance.random() < 0.2 else 0.0)


def one_sided(chance: random.Random, source: int, dest: int) -> float:
    """Up the tree in no time, down in long: the worst that half a round trip can be told."""
    return 10e-6 if source < dest else 0.0


class Cluster:
    """Ranks on nodes. Their threads share no time: each has its own, which messages carry on."""

    def __init__(self, nodes: Sequence[int], clocks: Sequence[tuple[float, float]], way: Way = even) -> None:
        self.nodes, self.clocks, self.way = nodes, clocks, way
        self.bends: dict[int, Bend] = {}  # by node
        self.elapsed = [0.0] * len(nodes)  # seconds of true time, by rank
        self.chances = [random.Random(f"clock/{rank}") for rank in range(len(nodes))]
        self.mail: dict[tuple[int, int], queue.Queue[tuple[float, Any]]] = {
            (source, dest): queue.Queue() for source in range(len(nodes)) for dest in range(len(nodes))
        }
        self._here = threading.local()

    def now(self) -> float:
        rank: int = self._here.rank
        self.elapsed[rank] += LOOK
        return self.shows(self.nodes[rank], self.elapsed[rank])

    def shows(self, node: int, elapsed: float) -> float:
        offset, drift = self.clocks[node]
        bend = self.bends[node](elapsed) if node in self.bends else 0.0
        return 1000.0 + offset + elapsed * (1 + drift) + bend

    def truth(self) -> float:
        """What the common clock shows at this rank's moment."""
        return self.shows(0, self.elapsed[self._here.rank])

    def sleep(self, seconds: float) -> None:
        self.elapsed[self._here.rank] += seconds

    def run(self, work: Callable[[World], T]) -> list[T]:
        """Let every rank do `work` in a thread of its own; return what each gave."""
        gave: dict[int, T] = {}
        errors: list[BaseException] = []

        def main(rank: int) -> None:
            self._here.rank = rank
            try:
                gave[rank] = work(cast(World, SimulatedWorld(self, rank)))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=main, args=(rank,)) for rank in range(len(self.nodes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [gave[rank] for rank in range(len(self.nodes))]


class SimulatedWorld:
    UNDEFINED = -1

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self._cluster, self.rank, self.size = cluster, rank, len(cluster.nodes)
        self.mpi = self.comm = self
        self.node, self.nodes = cluster.nodes[rank], len(set(cluster.nodes))
        self.mates = [mate for mate, node in enumerate(cluster.nodes) if node == self.node]
        self.node_rank = self.mates.index(rank)

    def Split(self, color: int, key: int) -> Comm | None:
        if color == self.UNDEFINED:
            return None
        if not module.clock_per_node:
            return Comm(self._cluster, list(range(self.size)), self.rank)
        firsts = {node: rank for rank, node in reversed(list(enumerate(self._cluster.nodes)))}
        return Comm(self._cluster, [firsts[node] for node in sorted(firsts)], self.rank)

    def share_on_node(self, value: Any) -> Any:
        for mate in self.mates[1:] if self.node_rank == 0 else []:
            send(self._cluster, self.rank, mate, value)
        return value if self.node_rank == 0 else receive(self._cluster, self.mates[0], self.rank)


class Comm:
    def __init__(self, cluster: Cluster, ranks: list[int], rank: int) -> None:
        self._cluster, self._ranks, self._rank = cluster, ranks, rank

    def Get_rank(self) -> int:
        return self._ranks.index(self._rank)

    def Get_size(self) -> int:
        return len(self._ranks)

    def Send(self, values: Any, dest: int, tag: int) -> None:
        send(self._cluster, self._rank, self._ranks[dest], values.copy())

    def Recv(self, values: Any, source: int, tag: int) -> None:
        values[:] = receive(self._cluster, self._ranks[source], self._rank)

    def Free(self) -> None:
        self._ranks = []


def send(cluster: Cluster, source: int, dest: int, value: Any) -> None:
    arrival = cluster.elapsed[source] + cluster.way(cluster.chances[source], source, dest)
    cluster.mail[source, dest].put((arrival, value))


def receive(cluster: Cluster, source: int, dest: int) -> Any:
    try:
        arrival, value = cluster.mail[source, dest].get(timeout=10)
    except queue.Empty:
        raise AssertionError(f"rank {dest} waits for rank {source} for ever") from None
    cluster.elapsed[dest] = max(cluster.elapsed[dest], arrival)
    return value


def make(monkeypatch: pytest.MonkeyPatch, nodes: Sequence[int], way: Way = even) -> Cluster:
    """Clocks that are up to a second off, and drift by up to 50 ppm."""
    chance = random.Random(len(nodes))
    clocks = [(0.0, 0.0), *((chance.uniform(-1, 1), chance.uniform(-50e-6, 50e-6)) for _ in nodes)]
    cluster = Cluster(nodes, clocks, way)
    monkeypatch.setattr(module, "now", cluster.now)
    monkeypatch.setattr(module, "sleep", cluster.sleep)
    return cluster


# A node each: every shape of the tree up to four levels. Several ranks a node, in blocks and in turn.
PLACES = [*(range(n) for n in (*range(1, 10), 13, 16)), [0, 0, 1, 1], [0, 1, 2, 0, 1, 2], [0] * 5]


@pytest.mark.parametrize("way", [even, one_sided])
@pytest.mark.parametrize("nodes", PLACES, ids=lambda nodes: ",".join(map(str, nodes)))
def test_offsets_and_drifts_are_found_within_the_stated_error(
    monkeypatch: pytest.MonkeyPatch, nodes: Sequence[int], way: Way
) -> None:
    cluster = make(monkeypatch, nodes, way)

    def work(world: World) -> list[tuple[float, float]]:
        """How far off the common time is, and how far it may be: at once, later, with a slope, and later again."""
        found = []
        clock = Clock(world)
        for refresh, pause in ((False, 0.0), (False, STEADY + 0.1), (True, 0.0), (False, 1.0), (True, 10.0)):
            if refresh:
                clock.refresh()
            cluster.sleep(pause)
            found.append((abs(clock.common(module.now()) - cluster.truth()), clock.error))
        clock.close()
        return found

    for rank, found in enumerate(cluster.run(work)):
        for off, error in found:
            assert off <= error + 1e-12 * 1000, (rank, found)  # as exact as seconds since the start of a machine are
        errors = [error for _, error in found]
        if nodes[rank] == 0:
            assert errors == [0.0] * 5
        else:
            assert errors[1] > STEADY * DRIFT  # an unknown slope is feared,
            assert errors[3] < 3e-4  # a known one trusted
            assert errors[0] < 1e-4


def test_ranks_of_a_node_share_what_its_first_one_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0, 1, 1, 1])
    numbers = cluster.run(lambda world: float(Clock(world).common(1234.5)))
    assert len(set(numbers[1:])) == 1


def test_a_clock_for_each_rank_is_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, range(4))
    monkeypatch.setattr(module, "clock_per_node", False)
    monkeypatch.setattr(SimulatedWorld, "share_on_node", None)
    found = cluster.run(lambda world: abs(Clock(world).common(module.now()) - cluster.truth()))
    assert max(found) < 1e-4


def test_there_and_back_is_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, range(3))

    def work(world: World) -> float:
        clock = Clock(world)
        cluster.sleep(1.0)
        clock.refresh()
        moments = module.now() + np.array([-1.0, 0.0, 0.001, 5.0])
        back = np.array([clock.local(moment) for moment in clock.common(moments).tolist()])
        return float(abs(back - moments).max())

    assert max(cluster.run(work)) < 1e-9


def test_the_slope_comes_from_readings_far_enough_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0, 1])
    _, drift = cluster.clocks[1]

    def work(world: World) -> list[float]:
        clock = Clock(world)
        slopes = []
        for pause in (STEADY / 2, STEADY, 100.0):
            cluster.sleep(pause)
            clock.refresh()
            slopes.append(clock._slope)
        return slopes

    root, other = cluster.run(work)
    assert root[0] == other[0] == 1.0
    assert root == pytest.approx([1.0] * 3, abs=1e-12)
    assert other[1] == pytest.approx(1 / (1 + drift), abs=1e-5)
    assert other[2] == pytest.approx(1 / (1 + drift), abs=1e-7)


def test_a_slow_round_trip_does_not_make_a_known_clock_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [False]

    def way(chance: random.Random, source: int, dest: int) -> float:
        return 5e-3 if slow[0] else even(chance, source, dest)

    cluster = make(monkeypatch, [0, 1], way)

    def work(world: World) -> tuple[float, float, float]:
        clock = Clock(world)
        cluster.sleep(10.0)
        clock.refresh()
        before = clock.error
        slow[0] = True  # from now on a round trip alone would say: give or take 5 ms
        clock.refresh()
        return before, clock.error, abs(clock.common(module.now()) - cluster.truth())

    _, (before, after, off) = cluster.run(work)
    assert off <= after < before + 1e-4 < 5e-3


def test_a_clock_that_was_set_is_learned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0, 1])

    def work(world: World) -> tuple[float, float]:
        clock = Clock(world)
        cluster.sleep(10.0)
        clock.refresh()
        if world.rank == 1:
            offset, drift = cluster.clocks[1]
            cluster.clocks = [cluster.clocks[0], (offset + 3.0, drift)]
        clock.refresh()
        return abs(clock.common(module.now()) - cluster.truth()), clock.error

    off, error = cluster.run(work)[1]
    assert off <= error < 1e-3


@pytest.mark.parametrize(
    "bend",
    [
        lambda elapsed: 0.5 * 0.01e-6 * elapsed**2,  # 0.6 ppm faster each minute, as when a machine warms up
        lambda elapsed: -1.5e-6 * 600 / math.tau * math.cos(elapsed * math.tau / 600),  # 3 ppm in ten minutes
    ],
    ids=["warming", "to and fro"],
)
def test_a_clock_whose_speed_changes_with_temperature_stays_within_the_stated_error(
    monkeypatch: pytest.MonkeyPatch, bend: Bend
) -> None:
    cluster = make(monkeypatch, [0, 1, 2])  # rank 2 learns from rank 0, rank 1 too
    cluster.bends = {1: bend, 2: lambda elapsed: -bend(elapsed)}

    def work(world: World) -> list[tuple[float, float, float]]:
        clock = Clock(world)
        found = []
        for pause in [0.3, 3.0, 10.0, 30.0] * 20:
            for _ in range(3):
                cluster.sleep(pause / 3)
                found.append(
                    (cluster.elapsed[world.rank], abs(clock.common(module.now()) - cluster.truth()), clock.error)
                )
            clock.refresh()
        return found

    for found in cluster.run(work):
        for elapsed, off, error in found:
            assert off <= error + 1e-9, elapsed


def test_a_reading_is_a_moment_on_both_clocks() -> None:
    assert Reading(local=1.0, common=2.0, error=0.5)._asdict() == {"local": 1.0, "common": 2.0, "error": 0.5}


# Timed on the common clock


def test_waiting_ends_at_the_moment_or_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0])

    def work(world: World) -> None:
        end = module.now() + 1e-4
        wait_until(end)
        assert 0 <= module.now() - end < 3 * LOOK
        wait_until(end - 1.0)
        assert module.now() - end < 5 * LOOK

    cluster.run(work)


def test_laps_begin_when_they_are_due_and_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0, 1, 2])
    window, taken = 1e-3, 2e-4

    def work(world: World) -> tuple[list[int], Any]:
        clock = Clock(world)
        order: list[int] = []

        def slot(number: int) -> Callable[[], None]:
            def run() -> None:
                order.append(number)
                cluster.sleep(taken)

            return run

        # Agreed on by whoever knows best: far enough ahead for all ranks.
        return order, laps(clock, [slot(0), slot(1), slot(2)], cluster.shows(0, 0.1), window, 7)

    for order, found in cluster.run(work):
        assert order == [0, 1, 2, 0, 1, 2, 0]
        assert np.all((found.entries >= 0) & (found.entries < 3 * LOOK))
        assert found.exits == pytest.approx([taken] * 7, abs=5e-7)


def test_a_lap_that_takes_longer_than_the_window_makes_the_next_ones_late(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(monkeypatch, [0])

    def work(world: World) -> Any:
        return laps(Clock(world), [lambda: cluster.sleep(3e-3)], module.now() + 1e-3, 1e-3, 4)

    (found,) = cluster.run(work)
    assert found.entries == pytest.approx([0.0, 2e-3, 4e-3, 6e-3], abs=1e-6)
    assert found.exits - found.entries == pytest.approx([3e-3] * 4, abs=1e-6)
