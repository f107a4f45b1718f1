"""Is every wrong answer seen, and no right one called wrong? A library simulated in NumPy, first right, then broken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest

from commbench.measure.collective import REDOPS, Collective
from commbench.measure.dtypes import DTYPES, Dtype
from commbench.measure.verify import (
    MOST_PROBES,
    POISON,
    Checker,
    bfloat16_to_float32,
    float32_to_bfloat16,
    neutral,
    periods,
    probes,
)
from tests.numpy_collectives import COLLECTIVES, Array, Reduce, carry_out

MANY = 300
WIDTHS = ("int8", "float16", "float32", "float64")


Fault: TypeAlias = Callable[["Case", int], list[Array]]  # what a broken library lets each rank receive


@dataclass(frozen=True)
class Case:
    """One cell on all ranks."""

    collective: Collective
    dtype: Dtype
    redop: str | None
    n: int
    count: int
    root: int = 0

    def __str__(self) -> str:
        return f"{self.collective.name} {self.dtype.name} {self.redop} n={self.n} count={self.count} root={self.root}"

    def checker(self, rank: int) -> Checker:
        return Checker(self.collective, self.dtype, self.redop, self.count, rank, self.n, self.root)

    def inputs(self, salt: int) -> list[Array]:
        """What each rank sends, one row a block."""
        blocks = [self.collective.send_blocks(rank, self.n, self.root) for rank in range(self.n)]
        sends = [np.full(number * self.count, 77, self.dtype.storage) for number in blocks]
        for rank, send in enumerate(sends):
            self.checker(rank).fill(send, salt)
        return [send.reshape(-1, self.count) for send in sends]

    def outputs(self, sends: Sequence[Array], combine: Reduce | None = None) -> list[Array]:
        """What a perfect library (or one that reduces by `combine`) lets each rank receive."""
        return carry_out(self.collective, sends, self.root, combine or self.combine)

    def combine(self, contributions: Sequence[Array]) -> Array:
        return reduction(self.dtype, self.redop or "sum", self.n)(contributions)

    def wrong(self, outputs: Sequence[Array], salt: int) -> int:
        """The wrong elements that the ranks find; of many ranks, some look."""
        ranks = range(self.n) if self.n < 10 else sorted({0, 1, self.n // 2, self.n - 1, self.root})
        return sum(self.checker(rank).wrong(outputs[rank].reshape(-1), salt) for rank in ranks)

    def salts(self, checks: int = 1) -> range:
        """The salts of one check (or of a few), as the sweep takes them: some calls where a message is short."""
        return range(4, 4 + checks * probes(self.redop, self.count, self.n))

    def is_caught(self, broken: Fault, checks: int = 1) -> bool:
        return any(self.wrong(broken(self, salt), salt) for salt in self.salts(checks))


def reduction(dtype: Dtype, redop: str, n: int, backwards: bool = False) -> Reduce:
    """A reduction as a library does it: two by two, each result rounded to the type."""
    plain = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[redop]

    def pair(one: Array, other: Array) -> Array:
        if dtype.name == "bfloat16":
            return round_to_bfloat16(plain(widen_bfloat16(one), widen_bfloat16(other)))
        return np.asarray(plain(one, other))

    def scaled(total: Array) -> Array:
        if dtype.name == "bfloat16":
            return round_to_bfloat16(widen_bfloat16(total) / n)
        if dtype.is_float:
            return np.asarray(total / total.dtype.type(n))
        return np.array([int(one) // n for one in total.flat], total.dtype).reshape(total.shape)

    def combine(contributions: Sequence[Array]) -> Array:
        ordered = list(contributions)[::-1] if backwards else list(contributions)
        if backwards:  # a tree, so that intermediate results differ too
            while len(ordered) > 1:
                pairs = [pair(a, b) for a, b in zip(ordered[::2], ordered[1::2], strict=False)]
                ordered = pairs + ordered[len(pairs) * 2 :]
        total = functools.reduce(pair, ordered)
        return scaled(total) if redop == "avg" else total

    return combine


def widen_bfloat16(bits: Array) -> Array:
    return np.array(bits.astype(np.uint32) << 16, np.uint32).view(np.float32).astype(np.float64)


def round_to_bfloat16(values: Array) -> Array:
    """Round to eight significant bits, ties to even, by arithmetic instead of by bits."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)
    return np.asarray(rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def kinds(collective: Collective) -> Iterator[tuple[Dtype, str | None]]:
    for dtype in DTYPES.values():
        for redop in REDOPS if collective.reduces else (None,):
            yield dtype, redop


KINDS = [
    pytest.param(collective, dtype, redop, id=f"{collective.name}-{dtype.name}-{redop or 'moved'}")
    for collective in COLLECTIVES.values()
    for dtype, redop in kinds(collective)
]
for_every_kind = pytest.mark.parametrize(("collective", "dtype", "redop"), KINDS)
# Counts around the periods and some multiples of one; few elements on many ranks and the reverse.
SHAPES = [
    *((1, 1), (1, 1021), (2, 1), (2, 1021), (3, 2), (3, 1000), (4, 1), (4, 5), (4, 4084), (7, 1), (7, 1013)),
]


@for_every_kind
def test_a_right_answer_is_right(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    for n, count in SHAPES:
        case = Case(collective, dtype, redop, n, count, root=(count % n) if collective.rooted else 0)
        for salt in case.salts()[:2]:
            assert case.wrong(case.outputs(case.inputs(salt)), salt) == 0, f"{case} salt={salt}"


@pytest.mark.parametrize("count", [1, 30])
@for_every_kind
def test_a_right_answer_is_right_on_many_ranks(
    collective: Collective, dtype: Dtype, redop: str | None, count: int
) -> None:
    n = MANY if collective.send_blocks(0, 2, 0) == 1 else 70
    case = Case(collective, dtype, redop, n, count, root=n - 1 if collective.rooted else 0)
    assert case.wrong(case.outputs(case.inputs(5)), 5) == 0


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_a_right_sum_in_another_order_is_right(dtype: Dtype, redop: str) -> None:
    for n, count in [(3, 1000), (7, 5), (64, 1000), (MANY, 30)]:
        case = Case(COLLECTIVES["allreduce"], dtype, redop, n, count)
        backwards = reduction(dtype, redop, n, backwards=True)
        assert case.wrong(case.outputs(case.inputs(2), backwards), 2) == 0, str(case)


@pytest.mark.parametrize(("name", "dtype", "redop"), [("allreduce", "float32", "sum"), ("alltoall", "int8", None)])
def test_a_right_answer_of_many_elements_is_right(name: str, dtype: str, redop: str | None) -> None:
    case = Case(COLLECTIVES[name], DTYPES[dtype], redop, 3, 700_001)  # more than is compared at once
    outputs = case.outputs(case.inputs(1))
    assert case.wrong(outputs, 1) == 0
    for place in (0, 350_000, 700_000):  # and a wrong one still shows, once
        flip(outputs[1], place)
    assert case.wrong(outputs, 1) == 3


# What a library may do wrong. Each takes a case and a salt; `which` is a rank.


def lost(case: Case, salt: int, which: int) -> list[Array]:
    """A reduction without one rank's contribution."""
    return case.outputs(case.inputs(salt), lambda x: case.combine([v for r, v in enumerate(x) if r != which]))


def doubled(case: Case, salt: int, which: int) -> list[Array]:
    return case.outputs(case.inputs(salt), lambda x: case.combine([*x, x[which]]))


def replaced(case: Case, salt: int, which: int) -> list[Array]:
    """The data of the rank before where that of `which` belongs: in a reduction one is lost and the other doubled."""
    sends = case.inputs(salt)
    case.checker((which - 1) % case.n).fill(sends[which].reshape(-1), salt)
    return case.outputs(sends)


def swapped(case: Case, salt: int, which: int) -> list[Array]:
    """Two ranks in each other's place."""
    sends, other = case.inputs(salt), (which + 1) % case.n
    case.checker(other).fill(sends[which].reshape(-1), salt)
    case.checker(which).fill(sends[other].reshape(-1), salt)
    return case.outputs(sends)


def stale(case: Case, salt: int) -> list[Array]:
    """The data of the call before."""
    return case.outputs(case.inputs(salt - 1))


def blocks_reversed(case: Case, salt: int) -> list[Array]:
    sends = case.inputs(salt)
    if case.collective.recv_blocks(case.root, case.n, case.root) > 1:
        return [received[::-1] for received in case.outputs(sends)]
    return case.outputs([send[::-1] for send in sends])


def shifted(case: Case, salt: int) -> list[Array]:
    return [np.roll(received, 1) for received in case.outputs(case.inputs(salt))]


def unwritten(case: Case, salt: int) -> list[Array]:
    outputs = case.outputs(case.inputs(salt))
    for received in outputs:
        received.view(np.uint8)[:] = POISON
    return outputs


def other_extreme(case: Case, salt: int) -> list[Array]:
    other = {"min": "max", "max": "min"}[case.redop or ""]
    return case.outputs(case.inputs(salt), reduction(case.dtype, other, case.n))


def narrower(case: Case, salt: int) -> list[Array]:
    """A reduction in the next narrower type."""
    kind = {"float64": "float32", "float32": "float16", "float16": "bfloat16"}[case.dtype.name]
    combine = reduction(DTYPES[kind], case.redop or "", case.n)

    def narrowed(contributions: Sequence[Array]) -> Array:
        if kind == "bfloat16":
            total = combine([round_to_bfloat16(x.astype(np.float64)) for x in contributions])
            return widen_bfloat16(total).astype(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            return combine([x.astype(kind) for x in contributions]).astype(case.dtype.storage)

    return case.outputs(case.inputs(salt), narrowed)


def flip(received: Array, place: int, bit: int = 0) -> None:
    received.reshape(-1).view(f"uint{8 * received.dtype.itemsize}")[place] ^= 1 << bit


FAULT_SHAPES = [(2, 1), (3, 5), (4, 1021), (7, 1)]  # ranks, elements of a block
VISIT = 3  # checks: before the timed loop, of it, after it


def those(selected: Callable[[Collective, Dtype, str | None], bool]) -> pytest.MarkDecorator:
    """Parametrize by the kinds that are selected; of what is only moved, one type of each width."""
    params = []
    for collective in COLLECTIVES.values():
        for dtype, redop in kinds(collective):
            if selected(collective, dtype, redop) and (redop or dtype.name in WIDTHS):
                params.append(
                    pytest.param(collective, dtype, redop, id=f"{collective.name}-{dtype.name}-{redop or 'moved'}")
                )
    return pytest.mark.parametrize(("collective", "dtype", "redop"), params)


def missed(
    fault: Fault,
    collective: Collective,
    dtype: Dtype,
    redop: str | None,
    shapes: Sequence[tuple[int, int]] = FAULT_SHAPES,
) -> list[str]:
    """The cases of a kind in which a fault is not seen, by one check; by those of a visit, where one may miss it."""
    cases = [Case(collective, dtype, redop, n, count) for n, count in shapes]
    return [str(case) for case in cases if not case.is_caught(fault, checks(dtype, redop))]


def checks(dtype: Dtype, redop: str | None) -> int:
    """How many checks it takes: where there are few values, two results may be equal by chance."""
    return VISIT if redop and (dtype.itemsize == 1 or (redop == "prod" and dtype.is_float)) else 1


def at_rank(fault: Callable[[Case, int, int], list[Array]], rank: int, case: Case, salt: int) -> list[Array]:
    return fault(case, salt, rank)


def missed_ranks(
    fault: Callable[[Case, int, int], list[Array]],
    collective: Collective,
    dtype: Dtype,
    redop: str | None,
    shapes: Sequence[tuple[int, int]] = FAULT_SHAPES,
    repeated: int | None = None,
) -> list[str]:
    """The cases of a kind, and the ranks with data in them, in which a fault of one rank is not seen."""
    found = []
    for n, count in shapes:
        case = Case(collective, dtype, redop, n, count)
        for rank in (rank for rank, send in enumerate(case.inputs(0)) if send.size):
            broken = partial(at_rank, fault, rank)
            if not case.is_caught(broken, repeated or checks(dtype, redop)):
                found.append(f"{case} rank {rank}")
    return found


@those(lambda collective, dtype, redop: redop is not None)
def test_a_lost_rank_is_caught(collective: Collective, dtype: Dtype, redop: str) -> None:
    assert missed_ranks(lost, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: redop in ("sum", "prod", "avg"))
def test_a_doubled_rank_is_caught(collective: Collective, dtype: Dtype, redop: str) -> None:
    assert missed_ranks(doubled, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: True)
def test_a_rank_in_another_ones_place_is_caught(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    assert missed_ranks(replaced, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: redop is None)
def test_two_ranks_swapped_are_caught(collective: Collective, dtype: Dtype, redop: None) -> None:
    assert missed_ranks(swapped, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: True)
def test_a_stale_answer_is_caught(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    assert missed(stale, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: True)
def test_an_answer_that_was_not_written_is_caught(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    assert missed(unwritten, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: collective.size_blocks(3) == 3)
def test_blocks_out_of_order_are_caught(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    assert missed(blocks_reversed, collective, dtype, redop) == []


@pytest.mark.parametrize("salt", range(3, 6))
@pytest.mark.parametrize(("name", "redop"), [("alltoall", None), ("allgather", None), ("reducescatter", "max")])
def test_blocks_as_long_as_the_sequence_are_told_apart(name: str, redop: str | None, salt: int) -> None:
    for period in periods(4, redop):
        case = Case(COLLECTIVES[name], DTYPES["int32"], redop, 4, 2 * period)
        assert case.wrong(blocks_reversed(case, salt), salt) > 0, str(case)


@those(lambda collective, dtype, redop: True)
def test_elements_shifted_by_one_are_caught(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    shapes = [(n, count) for n, count in FAULT_SHAPES if count > 1]
    assert missed(shifted, collective, dtype, redop, shapes=shapes) == []


@those(lambda collective, dtype, redop: redop in ("min", "max"))
def test_the_other_extreme_is_caught(collective: Collective, dtype: Dtype, redop: str) -> None:
    assert missed(other_extreme, collective, dtype, redop) == []


@those(lambda collective, dtype, redop: dtype.exact_bits > 8 and redop in ("sum", "avg"))
def test_a_reduction_in_a_narrower_type_is_caught(collective: Collective, dtype: Dtype, redop: str) -> None:
    # A single average of two or three bits less may be within its tolerance.
    shapes = [(2, 1000), (7, 50), (8, 1000), *([] if dtype.name == "float16" else FAULT_SHAPES)]
    assert missed(narrower, collective, dtype, redop, shapes=shapes) == []


@for_every_kind
def test_each_wrong_element_is_counted_once(collective: Collective, dtype: Dtype, redop: str | None) -> None:
    bit = 3 if redop == "avg" else 0  # an average may be off by a rounding or two
    for n, count in [(1, 1), (3, 1021), (4, 2500)]:
        case = Case(collective, dtype, redop, n, count)
        outputs = case.outputs(case.inputs(3))
        places = {(rank, place) for rank in range(n) for place in (0, outputs[rank].size // 2, outputs[rank].size - 1)}
        places = {(rank, place) for rank, place in places if 0 <= place < outputs[rank].size}
        for rank, place in places:
            flip(outputs[rank], place, bit)
        assert case.wrong(outputs, 3) == len(places) > 0, str(case)


@pytest.mark.parametrize("redop", ["min", "max"])
def test_a_lost_rank_among_more_than_one_check_has_calls_for_is_caught_by_the_checks_of_a_visit(redop: str) -> None:
    assert probes(redop, 1, 13) < 13 <= 2 * probes(redop, 1, 13)
    assert missed_ranks(lost, COLLECTIVES["allreduce"], DTYPES["float32"], redop, shapes=[(13, 1)], repeated=2) == []


@pytest.mark.parametrize(
    "n",
    [
        64,
        300,
        2000,
    ],
)
def test_every_rank_of_many_holds_the_extreme_somewhere_in_a_long_message(n: int) -> None:
    case = Case(COLLECTIVES["allreduce"], DTYPES["int8"], "max", n, 4000)
    owners: set[int] = set()
    for salt in case.salts():
        owners.update(np.stack([send[0] for send in case.inputs(salt)]).argmax(axis=0).tolist())
    assert owners == set(range(n))


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *(("float32", 32), ("float32", 64), ("float16", 32), ("float16", 64), ("float16", 128)),
        *(("bfloat16", 8), ("bfloat16", 32), ("bfloat16", 64), ("int8", 64)),
    ],
)
@pytest.mark.parametrize("fault", [stale, shifted], ids=["stale", "shifted"])
def test_a_stale_or_shifted_sum_over_many_ranks_is_caught(fault: Fault, dtype: str, n: int) -> None:
    assert missed(fault, COLLECTIVES["allreduce"], DTYPES[dtype], "sum", shapes=[(n, 1000)]) == []


@pytest.mark.parametrize(
    ("name", "dtype", "redop", "n"),
    [
        ("allgather", "float16", None, 300),
        ("allreduce", "float32", "sum", 300),
        ("allreduce", "float16", "sum", 32),
        ("allreduce", "bfloat16", "sum", 16),
        ("allreduce", "int8", "sum", 128),
        ("allgather", "int8", None, 300),
        ("allreduce", "int8", "sum", 300),
        ("allreduce", "float16", "sum", 300),
        ("allreduce", "bfloat16", "sum", 64),
    ],
)
def test_no_two_of_many_ranks_send_the_same(name: str, dtype: str, redop: str | None, n: int) -> None:
    case = Case(COLLECTIVES[name], DTYPES[dtype], redop, n, 1000)
    assert len({send.tobytes() for send in case.inputs(2)}) == n


@pytest.mark.parametrize("redop", ["min", "max"])
def test_short_messages_of_extremes_are_checked_until_each_rank_up_to_a_bound_had_its_own(redop: str) -> None:
    for n in range(1, 40):
        for count in range(1, 60):
            calls = probes(redop, count, n)
            assert 1 <= calls <= MOST_PROBES
            assert calls * count >= n or calls == MOST_PROBES
            assert calls == 1 or (calls - 1) * count < n, "no call too many"


@pytest.mark.parametrize("redop", ["sum", "prod", "avg", None])
def test_where_every_rank_shows_in_every_element_one_call_is_enough(redop: str | None) -> None:
    assert {probes(redop, count, n) for n in (1, 2, 300) for count in (1, 5, 4084)} == {1}


def test_the_periods_are_primes_so_that_no_chunk_of_an_algorithm_lines_up() -> None:
    for n in (1, 4, 32, 33, 256, 5000, 10**6):
        found = periods(n, "sum")
        assert len(set(found)) == 3 and max(found) <= 1021
        assert all(all(period % divisor for divisor in range(2, period)) for period in found)
        assert min(found) * n <= 1 << 15 or max(found) == 61
        assert periods(n, "max") == periods(n, None) == (1021, 1019, 1013)


def test_rounding_to_bfloat16_is_to_the_nearest_and_ties_to_even() -> None:
    # Every finite bfloat16, and infinity at the place of the number that it stands for when rounding.
    bits = np.arange(0x7F80 + 1, dtype=np.uint32)
    numbers = (bits << 16).view(np.float32).astype(np.float64)
    numbers[-1] = 2.0**128
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (bits[:-1, None] << 16 | low).view(np.float32)

    exact = values.astype(np.float64)
    below, above = numbers[:-1, None], numbers[1:, None]
    down, up = bits[:-1, None], bits[1:, None]
    even = np.where(down % 2 == 0, down, up)
    nearest = np.select([exact - below < above - exact, exact - below > above - exact], [down, up], even)

    assert (float32_to_bfloat16(values) == nearest).all()
    assert (float32_to_bfloat16(-values) == nearest + 0x8000).all()


def test_every_bfloat16_widens_to_its_number_and_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    sign, exponent, fraction = bits >> 15, bits >> 7 & 0xFF, bits & 0x7F
    finite = exponent < 0xFF
    magnitude = np.where(
        exponent == 0, np.ldexp(fraction / 128.0, -126), np.ldexp(1 + fraction / 128.0, exponent.astype(np.int32) - 127)
    )
    wide = bfloat16_to_float32(bits)
    assert (wide[finite] == np.where(sign == 1, -magnitude, magnitude)[finite]).all()
    assert np.isnan(wide[(exponent == 0xFF) & (fraction > 0)]).all()
    assert (float32_to_bfloat16(wide) == bits).all()


@those(lambda collective, dtype, redop: collective.name == "allreduce")
def test_data_for_timing_in_place_stays_as_it_is(collective: Collective, dtype: Dtype, redop: str) -> None:
    for n in (2, 7):
        data = np.full((1, 5), 77, dtype.storage)
        neutral(data, dtype, redop)
        assert (reduction(dtype, redop, n)([data] * n) == data).all()
        values = widen_bfloat16(data) if dtype.name == "bfloat16" else data
        assert (values == (1 if redop == "prod" else 0)).all()
