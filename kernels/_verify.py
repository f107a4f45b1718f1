"""Is the answer right: every element against float64, and every byte that a kernel had no business with.

Values repeat after a prime number of elements, so that one stretch of reference serves for all of them, and an element
in a wrong place shows. All memory of a problem is first filled with one byte, guards and gaps included; afterwards
whatever the kernel did not have to write must still be as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commbench.kernels._pattern import GUARD, Pattern, Place, Problem, Stream
from commbench.measure.dtypes import DTYPES
from commbench.measure.verify import bfloat16_to_float32, float32_to_bfloat16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PERIOD = 65521  # the largest prime below 2^16
FILL = 0xA5
_STEP = 1 << 20  # elements compared at a time


def values(stream: Stream, order: int, sums: bool = False) -> NDArray[Any]:
    """Return the PERIOD values, in float64 and exact in the stream's type, that stream number `order` begins with.

    Of a sum they are small odd numbers, which every order of adding gets exactly, so that none can be missed.
    """
    import numpy as np

    random = np.random.default_rng([order, PERIOD])
    if sums:
        return random.choice(np.array([-3.0, -1.0, 1.0, 3.0]), PERIOD)
    return decode(encode(random.uniform(stream.least, 1.0, PERIOD), stream.dtype), stream.dtype)


def encode(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round numbers to nearest-even in `dtype`, as it is stored."""
    import numpy as np

    if dtype == "bfloat16":
        return float32_to_bfloat16(numbers.astype(np.float32))
    return numbers.astype(DTYPES[dtype].storage)


def decode(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Return stored numbers in float64."""
    import numpy as np

    wide = bfloat16_to_float32(stored) if dtype == "bfloat16" else stored
    return wide.astype(np.float64)


def reference(pattern: Pattern, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Carry out the rule in float64 on the values of the streams that are read; return those that are written."""
    import numpy as np

    names: dict[str, Any] = {**pattern.constants, **inputs}
    for name, expression in pattern.assignments:
        names[name] = eval(expression, {"sqrt": np.sqrt, "__builtins__": {}}, names)
    length = len(next(iter(inputs.values()))) if inputs else PERIOD
    return {
        one.name: np.broadcast_to(np.asarray(names[one.name], dtype=np.float64), (length,))
        for one in pattern.streams
        if one.writes
    }


def tolerance(dtype: str, compute: str) -> tuple[float, float]:
    """Return the relative and absolute error allowed: half a unit of the stored type, and a few of the arithmetic.

    Values are at most 1 in size, so that cancelling terms lose no more than the absolute part.
    """
    store = 2.0 ** -DTYPES[dtype].exact_bits
    arithmetic = 2.0 ** -DTYPES[compute].exact_bits
    return store + 4 * arithmetic, 16 * arithmetic + (2.0**-25 if dtype == "float16" else 0.0)


class Check:
    """What the arenas of a problem hold before and after one launch."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def contents(self, arena: str) -> NDArray[np.uint8]:
        """Return what an arena holds before a launch, as bytes."""
        import numpy as np

        problem = self.problem
        memory = np.full(problem.arenas[arena], FILL, dtype=np.uint8)
        if arena == "index":
            assert problem.index is not None
            memory[GUARD:-GUARD].view(np.int32)[:] = problem.index
            return memory
        for place in problem.places:
            if place.arena == arena and place.reads:
                stored = encode(self._values[place.stream.name], place.stream.dtype)
                self._all(memory, place)[:] = np.resize(stored, problem.total)
        return memory

    def wrong(self, take: Callable[[str], NDArray[np.uint8]], total: float | None = None) -> int:
        """Return how many elements, or bytes beside them, are not as they should be after one launch.

        `take` gives an arena's bytes, and `total` is the sum, where the pattern has one.
        """
        problem = self.problem
        wrong = 0
        if problem.pattern.sums:
            wrong += total != self._sum()
        ended: dict[str, NDArray[Any]] = {}
        for arena in problem.arenas:
            before, after = self.contents(arena), take(arena)
            for place in problem.places:
                if place.arena == arena and place.writes:
                    got = self._used(after, place)
                    wrong += self._differing(place, got)
                    if place.stream.name in {*problem.pattern.copied, *problem.pattern.copied.values()}:
                        ended[place.stream.name] = got.copy()
                    self._used(after, place)[:] = self._used(before, place)
            wrong += int((before != after).sum())
        return wrong + sum(self._unlike(one, other, ended) for one, other in problem.pattern.copied.items())

    @cached_property
    def _values(self) -> dict[str, NDArray[np.float64]]:
        sums = bool(self.problem.pattern.sums)
        return {one.name: values(one, order, sums) for order, one in enumerate(self.problem.pattern.streams)}

    def _all(self, memory: NDArray[Any], place: Place) -> NDArray[Any]:
        """Return every element of a place, used or not, in its storage type."""
        import numpy as np

        storage = np.dtype(DTYPES[place.stream.dtype].storage)
        access = self.problem.access
        pitch = place.pitch // access.stride
        return np.ndarray((self.problem.total,), storage, memory, place.offset, (pitch,))

    def _used(self, memory: NDArray[Any], place: Place) -> Any:
        """Return the elements of a place that a launch uses: a view, or for an indexed one what behaves like it."""
        every = self._all(memory, place)
        if place.indexed:
            return _Picked(every, self.problem.index)
        return every[:: self.problem.access.stride][: self.problem.count]

    def _differing(self, place: Place, got: Any) -> int:
        """Return how many elements of a written place are further from the reference than rounding explains."""
        import numpy as np

        pattern, dtype = self.problem.pattern, place.stream.dtype
        relative, absolute = tolerance(dtype, pattern.compute)
        wrong = 0
        for some, expected in self._expected(place.stream.name):
            numbers = decode(got[some], dtype)
            if pattern.moves:
                wrong += int((numbers != expected).sum())
            else:
                near = np.abs(numbers - expected) <= relative * np.abs(expected) + absolute
                wrong += int(np.count_nonzero(~near))  # a NaN is near nothing
        return wrong

    def _expected(self, name: str) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield stretches of a launch's elements and what `name` must be there."""
        import numpy as np

        problem = self.problem
        access, count = problem.access, problem.count
        if access.index != "duplicate":
            once = reference(problem.pattern, self._values)[name]
            step = PERIOD * max(1, _STEP // PERIOD)
            for begin in range(0, count, step):
                some = slice(begin, min(count, begin + step))
                if access.index:
                    assert problem.index is not None
                    yield some, once[problem.index[some] % PERIOD]
                else:
                    yield some, once[np.arange(some.start, some.stop) * access.stride % PERIOD]
            return
        assert problem.index is not None
        for begin in range(0, count, _STEP):
            some = slice(begin, min(count, begin + _STEP))
            place = np.arange(some.start, some.stop) % PERIOD
            listed = problem.index[some] % PERIOD
            inputs = {
                one.name: self._values[one.name][place if one.writes else listed]
                for one in problem.pattern.streams
                if one.reads
            }
            yield some, reference(problem.pattern, inputs)[name]

    def _sum(self) -> float:
        """Return the sum of what a launch reads, exactly."""
        import numpy as np

        problem, listed = self.problem, self.problem.index
        place = np.arange(problem.count) * problem.access.stride if listed is None else listed
        numbers = self._values[problem.pattern.sums]
        return float((numbers * np.bincount(place % PERIOD, minlength=PERIOD)).sum())

    def _unlike(self, one: str, other: str, ended: Mapping[str, NDArray[Any]]) -> int:
        """Return how many elements of `one` are not those of `other` rounded, bit for bit; NaNs aside."""
        import numpy as np

        types = {stream.name: stream.dtype for stream in self.problem.pattern.streams}
        wrong = 0
        for begin in range(0, len(ended[one]), _STEP):
            mine, theirs = ended[one][begin : begin + _STEP], ended[other][begin : begin + _STEP]
            numbers = decode(theirs, types[other])
            rounded = encode(numbers, types[one])
            wrong += int(np.count_nonzero((mine != rounded) & ~np.isnan(numbers)))
        return wrong


class _Picked:
    """Elements of an array by a list of places: read and assigned as if they were an array of their own."""

    def __init__(self, array: NDArray[Any], places: Any) -> None:
        self._array, self._places = array, places

    def __getitem__(self, some: slice) -> NDArray[Any]:
        picked: NDArray[Any] = self._array[self._places[some]]
        return picked

    def __setitem__(self, some: slice, values: Any) -> None:
        self._array[self._places[some]] = values[some] if isinstance(values, _Picked) else values

    def copy(self) -> NDArray[Any]:
        return self[slice(None)]
