"""A library of one rank, in NumPy, that does as it is told: rightly, wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

from commbench.backends.base import AUTO, Algorithm, Backend, Call, Native, OnHost, Selection
from commbench.backends.world import World
from commbench.measure.effort import Effort
from tests.numpy_collectives import COLLECTIVES, Array

RING = Algorithm("ring", "ring")


def effort(**changes: Any) -> Effort:
    """A few iterations, checked."""
    fields: dict[str, Any] = {
        "iterations": 5,
        "warmup": 1,
        "rounds": 4,
        "precision": 0.0,
        "max_seconds": None,
        "budget": None,
        "concurrent": False,
    }
    return Effort(**(fields | {"check": True, "method": "barrier", "average": "max", "seed": 1} | changes))


def call(algorithm: Algorithm = RING, count: int = 100, **changes: Any) -> Call:
    fields: dict[str, Any] = {"dtype": "float32", "itemsize": 4, "redop": "sum", "root": 0, "inplace": False}
    return Call(COLLECTIVES["allreduce"], algorithm, count=count, **(fields | changes))


class FakeWorld:
    """One rank alone, which must not hear of a forced algorithm when it agrees with itself."""

    rank, size, crowded = 0, 1, False

    def __init__(self, library: FakeLibrary) -> None:
        self._library = library

    def _control(self) -> None:
        assert self._library.in_force is None, "control traffic ran with a forced algorithm"

    def largest(self, *values: int) -> tuple[int, ...]:
        self._control()
        return values

    total = largest

    def merge(self, samples: Array, how: str) -> Array:
        self._control()
        return samples

    def first_text(self, text: str) -> str:
        self._control()
        return text

    def elementwise(self, values: Array, how: str) -> Array:
        self._control()
        return values

    def gather_numbers(self, number: float) -> list[float]:
        self._control()
        return [number]

    def command(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        self._control()
        return numbers

    def hand_over(self, value: Any, giver: int) -> Any:
        self._control()
        assert giver == 0
        return value


class FakeLibrary(OnHost):
    """An all-reduce of one rank. `carry_out(number, send, recv)` is its call, `selection` what its witness says."""

    name, library, simulated, method = "fake", "FakeMPI 1.0", False, "barrier"

    def __init__(
        self,
        carry_out: Callable[[int, Array, Array], None] | None = None,
        selection: Selection | Exception | None = None,
    ) -> None:
        self._carry_out = carry_out or (lambda number, send, recv: recv.__setitem__(slice(None), send))
        self.selection = selection or Selection("ring", "said so")
        self.calls = 0
        self.barriers = 0
        self.seen: list[bytes] = []  # the data of each call
        self.in_force: Algorithm | None = None

    @property
    def backend(self) -> Backend:
        return cast(Backend, self)

    @property
    def world(self) -> World:
        return cast(World, FakeWorld(self))

    def run(self, send: Array, recv: Array) -> None:
        self.calls += 1
        self.seen.append(send.tobytes())
        self._carry_out(self.calls, send, recv)

    @contextmanager
    def using(self, collective: Any, algorithm: Algorithm) -> Iterator[None]:
        self.in_force = algorithm
        try:
            yield
        finally:
            self.in_force = None

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        return (0, 0) if call.inplace else None

    def allocate(self, nbytes: int, buffer: str) -> Array:
        return np.zeros(nbytes, np.uint8)

    def barrier(self) -> Callable[[], Any]:
        def barrier() -> None:
            self.barriers += 1

        return barrier

    def plan(self, call: Call, slots: Sequence[tuple[Array, Array]]) -> FakePlan:
        assert self.in_force == call.algorithm or call.algorithm.name == AUTO
        return FakePlan(self, [partial(self.run, send, recv) for send, recv in slots])


class FakePlan:
    calls = 1

    def __init__(self, library: FakeLibrary, runs: Sequence[Callable[[], Any]]) -> None:
        self.runs, self._library = runs, library

    def native(self) -> Native | None:
        return None

    def witness(self, slot: int) -> Selection:
        self.runs[slot]()
        if isinstance(self._library.selection, Exception):
            raise self._library.selection
        return self._library.selection
