"""Is the answer right? Data whose every lost, doubled, misplaced or stale contribution shows, and an exact oracle.

The data of a rank is a short sequence, repeated. Its length is a prime, so that no power-of-two chunk of an algorithm
lines up with it, and the expected result is computed by NumPy over one period only: a check costs one pass over
the buffer at any size and any number of ranks. Every block starts at another place of the sequence, every check uses
another *salt*, hence other data and another prime, and results are poisoned before the call: a stale buffer is wrong.

What makes a wrong contribution visible in a single element:
- moved data: unsigned integers of the element's width, different on every rank;
- sum: integers so small that the sum is exact in the type in any order (Σ|x| <= 2^p for p bits of precision), yet
  so large that a reduction in a narrower type rounds; none is zero. With more ranks than
  2^p (256 for bfloat16) some sit out at an element, other ones at the next. Integers wrap, and are odd; those of
  8 bits do not, since Open MPI saturates some of them (open-mpi/ompi#8045), and are small as the floats are;
- prod: powers of two of either sign that cannot overflow in any order, never 1; odd integers other than 1;
- min, max: one rank holds the extreme of an element, the next rank that of the next one.
  A message of fewer elements than ranks is checked several times (`probes`), so that the extreme moves on; with very
  many ranks it takes several visits until each had its turn.
- avg: as sum. What is rounded away cannot show: 8-bit averages of a dozen ranks and more may hide one in one element.
So floats are compared exactly; only `avg` has a tolerance: the exact sum, scaled, is off by a rounding or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from commbench.measure.collective import Collective
from commbench.measure.dtypes import Dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"

LONGEST_PERIOD, SHORTEST_PERIOD = 1021, 61
MOST_VALUES = 1 << 14  # that an expected reduction is computed from: more would cost 256 ranks more than the calls do
MOST_PROBES = 8
POISON = 0xFF  # NaN in every float type
_CHUNK = 1 << 18  # elements compared at once: bounds the temporary
_EXPONENTS = {"float16": 14, "bfloat16": 120, "float32": 120, "float64": 1000}


@lru_cache
def periods(n: int, redop: str | None) -> tuple[int, ...]:
    """Return the three lengths that the data of `n` ranks takes in turn: primes.

    They are shorter with more ranks where a result is computed from the data of all; an extreme is its owner's.
    """
    most = LONGEST_PERIOD
    if redop not in (None, "min", "max"):
        most = max(SHORTEST_PERIOD, min(most, MOST_VALUES // n))
    primes = (length for length in range(most, 1, -1) if all(length % factor for factor in range(2, length)))
    return tuple(islice(primes, 3))


def probes(redop: str | None, count: int, n: int) -> int:
    """Return how many calls one check of `count` elements on `n` ranks takes.

    One, but for min and max: there only the rank that holds an element's extreme shows in it.
    """
    return min(MOST_PROBES, -(-n // min(count, *periods(n, redop)))) if redop in ("min", "max") else 1


class Checker:
    """Fills and checks the buffers of one rank for one cell.

    `send` and `recv` below are one-dimensional arrays of the dtype's storage type: whole blocks of `count` elements.
    """

    def __init__(
        self, collective: Collective, dtype: Dtype, redop: str | None, count: int, rank: int, n: int, root: int
    ) -> None:
        self.collective, self.dtype, self.redop = collective, dtype, redop if collective.reduces else None
        self.count, self.rank, self.n, self.root = count, rank, n, root

    def fill(self, send: Array, salt: int) -> None:
        """Write this rank's contribution for `salt`."""
        blocks = np.arange(send.size // self.count)
        self._spread(send, np.full(blocks.size, self.rank), blocks, salt)

    def wrong(self, recv: Array, salt: int) -> int:
        """Return how many elements of the result differ from what the collective's definition says."""
        blocks = recv.size // self.count
        if not blocks:
            return 0
        sources = [self.collective.sources(block, self.rank, self.n, self.root) for block in range(blocks)]
        if self.redop:
            return sum(
                self._differing(recv[b * self.count : (b + 1) * self.count], self._reduced(ranks, block, salt)[None])
                for b, (ranks, block) in enumerate(sources)
            )
        ranks = np.array([ranks[0] for ranks, _ in sources])
        return self._differing(recv, self._values(ranks, np.array([block for _, block in sources]), salt))

    def _spread(self, into: Array, ranks: Array, blocks: Array, salt: int) -> None:
        """Write block after block into `into`, each the repeated sequence of its rank and block."""
        patterns = self._encode(self._values(ranks, blocks, salt))
        for target, pattern in zip(into.reshape(-1, self.count), patterns, strict=True):
            whole = self.count // pattern.size * pattern.size
            target[:whole].reshape(-1, pattern.size)[:] = pattern
            target[whole:] = pattern[: self.count - whole]

    def _reduced(self, ranks: Sequence[int], block: int, salt: int) -> Array:
        """Return the reduction over `ranks` of one period of their block `block`."""
        if self.redop in ("min", "max"):
            owners = self._owners(self._places(np.array([block]), salt), salt)
            return np.asarray(self._values(owners, np.array([block]), salt)[0])
        values = self._values(np.asarray(ranks), np.full(len(ranks), block), salt)
        if self.redop == "prod":
            return np.asarray(np.multiply.reduce(values, axis=0, dtype=values.dtype))
        total = np.add.reduce(values, axis=0, dtype=values.dtype)
        if self.redop == "avg":
            wide = np.uint64 if self.dtype.name == "uint64" else np.int64  # holds the number of ranks, as int8 need not
            return total / self.n if self.dtype.is_float else (total.astype(wide) // wide(self.n)).astype(total.dtype)
        return np.asarray(total)

    def _values(self, ranks: Array, blocks: Array, salt: int) -> Array:
        """Return one period (or `count` elements, if fewer) for each pair of rank and block: shape (pairs, length).

        Floats come as float64, in which all of them are exact; integers in their own type; moved data as unsigned.
        `ranks` may also differ from element to element: shape (pairs, length).
        """
        places = self._places(blocks, salt)
        here = places.astype(np.uint64) + np.uint64(salt << 20)
        rank = (ranks if ranks.ndim == 2 else ranks[:, None]).astype(np.uint64)
        if self.redop is None:
            # Ranks differ at every place, as far as the type has values; beyond, it is up to chance.
            bits = np.uint64(8 * self.dtype.itemsize)
            group = rank >> bits if bits < 64 else np.uint64(0)
            return (_mix(here + (group << np.uint64(40))) + rank * np.uint64(0x9E37)).astype(f"uint{bits}")
        noise = _mix(here + (rank << np.uint64(40)))
        if self.redop in ("min", "max"):
            level = np.where(
                self._owners(places, salt) == rank, 100 + noise % np.uint64(20), noise % np.uint64(89)
            ).astype(np.int64)
            level = level if self.redop == "max" else 120 - level
            return level.astype(np.float64 if self.dtype.is_float else self.dtype.storage)
        return self._factors(noise, rank) if self.redop == "prod" else self._terms(noise)

    def _places(self, blocks: Array, salt: int) -> Array:
        """Return where in the sequence each element of one period of each block is: shape (blocks, length)."""
        period = periods(self.n, self.redop)[salt % 3]
        step = self.count % period or 1  # blocks differ even where the count is a multiple of the period
        return (blocks[:, None] * step + np.arange(min(self.count, period))) % period

    def _owners(self, places: Array, salt: int) -> Array:
        """Return which rank holds the extreme at each place."""
        return (places + salt * min(places.shape[1], *periods(self.n, self.redop))) % self.n

    def _terms(self, noise: Array) -> Array:
        """Return what is summed."""
        if not self.dtype.is_float and self.dtype.itemsize > 1:
            return (noise | np.uint64(1)).astype(self.dtype.storage)
        most = 2**self.dtype.exact_bits if self.dtype.is_float else int(np.iinfo(self.dtype.storage).max)
        largest = most // self.n
        kind = np.float64 if self.dtype.is_float else self.dtype.storage
        if not largest:  # more ranks than the type can count: some sit out, others at the next element
            return (noise % np.uint64(-(-self.n // most)) == 0).astype(kind)
        # An average of integers is rounded, which would hide what is no multiple of the ranks.
        unit = self.n if self.redop == "avg" and not self.dtype.is_float and largest >= self.n else 1
        largest //= unit
        if self.dtype.name == "uint8":
            return (unit * (noise % np.uint64(largest) + np.uint64(1)).astype(np.int64)).astype(kind)
        shifted = (noise % np.uint64(2 * largest)).astype(np.int64) - largest
        return (unit * np.where(shifted >= 0, shifted + 1, shifted)).astype(kind)

    def _factors(self, noise: Array, rank: Array) -> Array:
        """Return what is multiplied."""
        if not self.dtype.is_float:
            odd = (noise | np.uint64(1)).astype(self.dtype.storage)
            return np.where(odd == 1, odd.dtype.type(3), odd)
        room = _EXPONENTS[self.dtype.name]
        reach = max(1, min(8, room // self.n))
        exponent = (noise % np.uint64(2 * reach + 1)).astype(np.int64) - reach
        stride = np.uint64(-(-self.n // room))  # 1 unless the product could overflow
        exponent = np.where(rank % stride == 0, exponent, 0)
        negative = (exponent == 0) | (noise >> np.uint64(63) == 1)
        return np.where(negative, -1.0, 1.0) * np.exp2(exponent.astype(np.float64))

    def _encode(self, values: Array) -> Array:
        """Return `values` (from `_values`) in the dtype's storage."""
        if self.redop is None:
            return values.view(self.dtype.storage)
        if self.dtype.name == "bfloat16":
            return float32_to_bfloat16(values.astype(np.float32))
        with np.errstate(over="ignore"):
            return values.astype(self.dtype.storage)

    def _differing(self, recv: Array, expected: Array) -> int:
        """Count the elements of `recv` that are not as the rows of `expected`, each repeated over a block, say."""
        rows = recv.reshape(expected.shape[0], -1)
        length = expected.shape[1]
        total = 0
        if rows.shape[1] == length:
            return self._mismatches(rows, expected)
        for row, pattern in zip(rows, expected, strict=True):
            whole = row.size // length * length
            periods = row[:whole].reshape(-1, length)
            step = max(1, _CHUNK // length)
            for start in range(0, len(periods), step):
                total += self._mismatches(periods[start : start + step], pattern)
            total += self._mismatches(row[whole:], pattern[: row.size - whole])
        return total

    def _mismatches(self, got: Array, expected: Array) -> int:
        if self.redop != "avg" or not self.dtype.is_float:
            return int(np.count_nonzero(_bits(got) != _bits(self._encode(expected))))
        if self.dtype.name == "bfloat16":
            got = bfloat16_to_float32(got)
        tolerance = 2.0 ** (2 - self.dtype.exact_bits) * np.abs(expected)
        return int(np.count_nonzero(~(np.abs(got.astype(np.float64) - expected) <= tolerance)))


def neutral(recv: Array, dtype: Dtype, redop: str | None) -> None:
    """Fill `recv` with what a reduction leaves as it is: data for timing in place, call after call.

    Anything else would grow to infinity or sink to subnormal numbers, which some processors add slowly.
    """
    if redop == "prod":
        recv[:] = 0x3F80 if dtype.name == "bfloat16" else 1
    else:
        recv[:] = 0


def float32_to_bfloat16(values: Array) -> Array:
    """Round float32 `values` to nearest-even bfloat16, kept as uint16."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bfloat16_to_float32(bits: Array) -> Array:
    """Return bfloat16 numbers, kept as uint16, as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bits(values: Array) -> Array:
    """View `values` as unsigned integers: equality without NaN and signed zeros in the way."""
    return np.ascontiguousarray(values).view(f"uint{8 * values.dtype.itemsize}")


def _mix(x: Array) -> Array:
    """Return well-mixed 64-bit integers (the finalizer of splitmix64, Steele et al., OOPSLA 2014)."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
