"""Is the answer right: every element against float64, and every byte that a kernel had no business with.

Values repeat after a prime number of elements, so that one stretch of reference serves for all of them, and an element
in a wrong place shows. Where elements follow one another, a stretch that is bit for bit as one that was found right is
right too. Guards and gaps are first filled with one byte, guards with another one for each array, so that what is moved
from one into another shows; afterwards whatever the kernel did not have to write must still be as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from commbench.kernels._pattern import GUARD, Pattern, Place, Problem, Stream
from commbench.measure.dtypes import DTYPES
from commbench.measure.verify import bfloat16_to_float32, float32_to_bfloat16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PERIOD = 131071  # a prime, 2^17 - 1
FILL = 0xA5


@cache
def values(stream: Stream, order: int, sums: bool = False) -> NDArray[Any]:
    """Return the PERIOD values, in float64 and exact in the stream's type, that stream number `order` begins with.

    Of a sum they are small odd numbers, which every order of adding gets exactly, so that none can be missed.
    """
    import numpy as np

    random = np.random.default_rng([order, PERIOD])
    if sums:
        return random.choice(np.array([-3.0, -1.0, 1.0, 3.0]), PERIOD)
    exact = encode(random.uniform(stream.least, 1.0, PERIOD), stream.dtype)
    return decode(exact, stream.dtype).astype(np.float64)


def encode(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round numbers to nearest-even in `dtype`, as it is stored."""
    import numpy as np

    if dtype == "bfloat16":
        return float32_to_bfloat16(numbers.astype(np.float32))
    return numbers.astype(DTYPES[dtype].storage)


def decode(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return stored numbers in float32, or float64 where they are that."""
    import numpy as np

    if dtype == "bfloat16":
        return bfloat16_to_float32(stored)
    return stored.astype(np.float32) if dtype == "float16" else stored


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


def bounds(exact: NDArray[np.float64], dtype: str, compute: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the largest number of `dtype` that may stand for `exact`, as `ordered` has them.

    The error allowed is half a unit of the stored type and a few of the arithmetic. Values are at most 1 in size, so
    that what cancelling terms lose is in the absolute part; so is what float16 loses below its normal numbers.
    """
    import numpy as np

    store, arithmetic = 2.0 ** -DTYPES[dtype].exact_bits, 2.0 ** -DTYPES[compute].exact_bits
    margin = (store + 4 * arithmetic) * np.abs(exact) + 16 * arithmetic + 2.0**-25 * (dtype == "float16")
    ends = []
    for end, outwards in ((exact - margin, -1), (exact + margin, 1)):
        number = ordered(encode(end, dtype), dtype)
        if number.dtype.kind == "f":
            ends.append(np.nextafter(number, number.dtype.type(outwards * np.inf)))
        else:  # of 16 bits the rounded end is at most half a unit outside: no further
            inside = decode(encode(end, dtype), dtype) * outwards <= end * outwards
            ends.append(np.where(inside, number, number - outwards))
    return ends[0], ends[1]


def ordered(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return stored numbers as what compares like them and fast: of 16 bits whole numbers, NaNs beyond infinity."""
    import numpy as np

    if DTYPES[dtype].itemsize != 2:
        return stored
    bits = stored.view(np.int16)
    return np.where(bits < 0, bits ^ np.int16(0x7FFF), bits)


class Check:
    """What the arenas of a problem hold before and after one launch.

    An arena is a guard, perhaps a gap, elements of which PERIOD make up its `_body` again and again, and a guard. It is
    compared piece by piece, each of PERIOD elements, which the caches of a core hold.
    """

    def __init__(self, problem: Problem, workers: int = 1) -> None:
        """`workers` threads compare, and call `take` of `wrong`."""
        self.problem, self._workers = problem, workers
        self._streams = problem.pattern.streams
        sums = bool(problem.pattern.sums)
        self._fills = {name: FILL + order for order, name in enumerate(problem.arenas)}
        self._values = {one.name: values(one, order, sums) for order, one in enumerate(self._streams)}

    def contents(self, arena: str, memory: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Return what an arena holds before a launch, as bytes: at the start of `memory`, where that is given."""
        import numpy as np

        size = self.problem.arenas[arena]
        memory = np.empty(size, dtype=np.uint8) if memory is None else memory[:size]
        memory[: self._start(arena)] = memory[-GUARD:] = self._fills[arena]
        if arena == "index":
            assert self.problem.index is not None
            memory[GUARD:-GUARD].view(np.int32)[:] = self.problem.index
        else:
            body = self._bodies[arena]
            inside = memory[self._start(arena) : -GUARD]

            def write(begin: int) -> None:
                inside[begin : begin + len(body)] = body[: len(inside) - begin]

            with ThreadPoolExecutor(self._workers) as pool:
                list(pool.map(write, range(0, len(inside), len(body))))
        return memory

    def wrong(self, take: Callable[[str, int, int], NDArray[np.uint8]], total: float | None = None) -> int:
        """Return how many elements, or bytes beside them, are not as they should be after one launch.

        `take(arena, start, stop)` gives bytes as they are now, and `total` is the sum, where the pattern has one.
        """
        problem = self.problem
        wrong = int(bool(problem.pattern.sums) and total != self._sum())
        for arena, size in problem.arenas.items():
            wrong += _other_than(take(arena, 0, self._start(arena)), self._fills[arena])
            wrong += _other_than(take(arena, size - GUARD, size), self._fills[arena])
        if problem.index is not None:
            found = take("index", GUARD, GUARD + 4 * problem.count).view(problem.index.dtype)
            wrong += int((found != problem.index).sum())
        starts = range(0, problem.total, PERIOD)
        self._bodies, self._used(0, 1), self._expected(0, 1)  # once, before threads ask for them
        right: dict[str, NDArray[np.uint8]] = {}
        if self.problem.access.stride == 1 and not self.problem.access.index and problem.total >= 2 * PERIOD:
            first = self._pieces(take, 0, PERIOD)
            kept = {arena: piece.copy() for arena, piece in first.items()}
            bad = self._wrong_piece(first, 0, PERIOD)
            wrong, starts = wrong + bad, range(PERIOD, problem.total, PERIOD)
            right = {} if bad else kept
        with ThreadPoolExecutor(self._workers) as pool:

            def wrong_at(begin: int) -> int:
                end = min(begin + PERIOD, problem.total)
                pieces = self._pieces(take, begin, end)
                if right and all(_same(piece, right[arena][: len(piece)]) for arena, piece in pieces.items()):
                    return 0
                return self._wrong_piece(pieces, begin, end)

            return wrong + sum(pool.map(wrong_at, starts))

    def _pieces(
        self, take: Callable[[str, int, int], NDArray[np.uint8]], begin: int, end: int
    ) -> dict[str, NDArray[np.uint8]]:
        """Return the bytes of elements `begin` to `end` of each arena, as they are now."""
        found = {}
        for arena, body in self._bodies.items():
            unit, start = len(body) // PERIOD, self._start(arena)
            found[arena] = take(arena, start + begin * unit, start + end * unit)
        return found

    def _wrong_piece(self, pieces: Mapping[str, NDArray[np.uint8]], begin: int, end: int) -> int:
        """Return what is wrong in elements `begin` to `end` of all arenas; `begin` is a multiple of PERIOD."""
        wrong = 0
        used = self._used(begin, end)
        expected = self._expected(begin, end)
        ended = {}
        for arena, body in self._bodies.items():
            piece = pieces[arena]
            for place in self.problem.places:
                if place.arena == arena and place.writes:
                    elements = self._elements(piece, place, end - begin)
                    got = elements[used]
                    low, high = expected[place.stream.name]
                    numbers = ordered(got, place.stream.dtype)
                    wrong += len(got) - _number((numbers >= low) & (numbers <= high))  # a NaN is outside
                    ended[place.stream.name] = got.copy()
                    elements[used] = self._elements(body, place, end - begin)[used]  # the rest must be as before
            wrong += _number(piece != body[: len(piece)])
        types = {stream.name: stream.dtype for stream in self._streams}
        for one, other in self.problem.pattern.copied.items():  # rounded from what is there, bit for bit; NaNs aside
            numbers = decode(ended[other], types[other])
            wrong += _number((ended[one] != encode(numbers, types[one])) & (numbers == numbers))
        return wrong

    @cached_property
    def _bodies(self) -> dict[str, NDArray[np.uint8]]:
        """The bytes of PERIOD elements of each arena before a launch."""
        import numpy as np

        bodies: dict[str, NDArray[np.uint8]] = {}
        for place in self.problem.places:
            if place.arena not in bodies:
                unit = place.pitch // self.problem.access.stride
                bodies[place.arena] = np.full(PERIOD * unit, FILL, dtype=np.uint8)
            if place.reads:
                stored = encode(self._values[place.stream.name], place.stream.dtype)
                self._elements(bodies[place.arena], place, PERIOD)[:] = stored
        return bodies

    def _start(self, arena: str) -> int:
        """Return where an arena's elements begin: past the guard, and past what they are offset by."""
        if arena == "index":
            return GUARD
        place = next(place for place in self.problem.places if place.arena == arena)
        return GUARD + self.problem.access.offset * (place.pitch // self.problem.access.stride)

    def _elements(self, memory: NDArray[np.uint8], place: Place, count: int) -> NDArray[Any]:
        """Return the elements of a place, used or not, in bytes that begin with the first one's struct."""
        import numpy as np

        storage = np.dtype(DTYPES[place.stream.dtype].storage)
        offset = place.offset - self._start(place.arena)
        return np.ndarray((count,), storage, memory, offset, (place.pitch // self.problem.access.stride,))

    def _used(self, begin: int, end: int) -> Any:
        """Return which elements from `begin` to `end` a launch writes: a slice or a mask."""
        access = self.problem.access
        if access.index in ("sorted", "random"):
            return self._listed[begin:end]
        return slice(-begin % access.stride, None, access.stride)

    @cached_property
    def _listed(self) -> NDArray[np.bool_]:
        """Whether each element is in the list of places."""
        import numpy as np

        mask = np.zeros(self.problem.total, dtype=np.bool_)
        mask[self.problem.index] = True
        return mask

    @cached_property
    def _once(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """The bounds of PERIOD elements, where an element's inputs are all from its own place."""
        pattern = self.problem.pattern
        return _bounds_once(pattern.streams, pattern.rule, tuple(pattern.constants.items()), pattern.sums)

    def _expected(self, begin: int, end: int) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the bounds of those elements from `begin` to `end` that a launch writes."""
        if self.problem.access.index != "duplicate":
            used, length = self._used(begin, end), end - begin
            return {name: (low[:length][used], high[:length][used]) for name, (low, high) in self._once.items()}
        assert self.problem.index is not None
        listed = self.problem.index[begin:end] % PERIOD
        inputs = {
            one.name: self._values[one.name][: end - begin] if one.writes else self._values[one.name][listed]
            for one in self._streams
            if one.reads
        }
        return _bounds(self.problem.pattern, inputs)

    def _sum(self) -> float:
        """Return the sum of what a launch reads, exactly."""
        import numpy as np

        problem, listed = self.problem, self.problem.index
        numbers = self._values[problem.pattern.sums]
        if listed is not None:
            return float((numbers * np.bincount(listed % PERIOD, minlength=PERIOD)).sum())
        often, rest = divmod(problem.count, PERIOD)  # any stride visits all places of a prime period in turn
        return float(often * numbers.sum() + numbers[np.arange(rest) * problem.access.stride % PERIOD].sum())


@cache
def _bounds_once(
    streams: tuple[Stream, ...], rule: tuple[str, ...], constants: tuple[tuple[str, float], ...], sums: str
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    inputs = {one.name: values(one, order, bool(sums)) for order, one in enumerate(streams)}
    return _bounds(Pattern("", "", streams, rule, dict(constants), sums=sums), inputs)


def _bounds(
    pattern: Pattern, inputs: Mapping[str, NDArray[np.float64]]
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return the least and the largest number that may stand in each written stream, as `ordered` has them."""
    types = {stream.name: stream.dtype for stream in pattern.streams}
    exact = reference(pattern, {one.name: inputs[one.name] for one in pattern.streams if one.reads})
    if pattern.moves:
        same = {name: ordered(encode(numbers, types[name]), types[name]) for name, numbers in exact.items()}
        return {name: (numbers, numbers) for name, numbers in same.items()}
    return {name: bounds(numbers, types[name], pattern.compute) for name, numbers in exact.items()}


def _number(mask: NDArray[Any]) -> int:
    import numpy as np

    return int(np.count_nonzero(mask))


def _other_than(memory: NDArray[np.uint8], fill: int) -> int:
    return _number(memory != fill)


def _same(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Whether bytes are alike, eight at a time."""
    whole = len(one) // 8 * 8
    if not bool((one[:whole].view("uint64") == other[:whole].view("uint64")).all()):
        return False
    return bool((one[whole:] == other[whole:]).all())
