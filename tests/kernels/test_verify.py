"""The check of a kernel's answer: the reference against optimisers written out by hand, and damage that must show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.kernels import _study
from commbench.kernels._pattern import GUARD, Access, Pattern, Problem
from commbench.kernels._verify import FILL, PERIOD, Check, bounds, decode, encode, ordered, reference
from commbench.measure.dtypes import DTYPES

ADAMW, ADAM, *_ = _study.patterns("weight_update")
SGD = _study.patterns("sgd_momentum")[0]
Arenas = dict[str, np.ndarray[Any, Any]]

numbers = st.floats(-2, 2, allow_nan=False)


@given(g=numbers, p=numbers, m=numbers, v=st.floats(0.01, 2))
def test_the_reference_of_adam_is_the_paper(g: float, p: float, m: float, v: float) -> None:
    """Kingma and Ba 2015, algorithm 1, at step 10; AdamW takes the decay off first, as PyTorch documents it."""
    m_new = 0.9 * m + (1 - 0.9) * g
    v_new = 0.999 * v + (1 - 0.999) * g**2
    step = 1e-3 * (m_new / (1 - 0.9**10)) / ((v_new / (1 - 0.999**10)) ** 0.5 + 1e-8)
    for pattern, start in ((ADAM, p), (ADAMW, p - 1e-3 * 1e-2 * p)):
        found = reference(
            pattern.of("float16"), {name: np.array([x]) for name, x in zip("gpmv", (g, p, m, v), strict=True)}
        )
        for name, expected in (("m", m_new), ("v", v_new), ("p", start - step), ("w", start - step)):
            assert found[name][0] == pytest.approx(expected, rel=1e-12, abs=1e-14)


@given(g=numbers, p=numbers, m=numbers)
def test_the_reference_of_sgd_keeps_its_momentum(g: float, p: float, m: float) -> None:
    found = reference(SGD.of("float16"), {"g": np.array([g]), "p": np.array([p]), "m": np.array([m])})
    assert found["m"][0] == pytest.approx(0.9 * m + g, rel=1e-12, abs=1e-14)
    assert found["w"][0] == pytest.approx(p - 1e-3 * (0.9 * m + g), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_bounds_take_in_the_rounded_number_and_not_the_second_next(dtype: str) -> None:
    exact = np.random.default_rng(1).uniform(0.5, 1, 1000) * np.random.default_rng(2).choice([-1, 1], 1000)
    low, high = bounds(exact, dtype, "float32")
    rounded = ordered(encode(exact, dtype), dtype)
    assert ((low <= rounded) & (rounded <= high)).all()
    apart = 2 if DTYPES[dtype].itemsize == 2 else 64 * 2.0**-24
    assert not ((low <= rounded + apart) & (rounded + apart <= high)).any()


def test_order_is_that_of_numbers_and_nan_is_beyond() -> None:
    numbers = np.array([-np.inf, -1, -(2.0**-24), 0, 2.0**-24, 0.5, 65504, np.inf], dtype=np.float16)
    assert (np.diff(ordered(numbers, "float16")) > 0).all()
    low, high = bounds(np.array([1.0]), "float16", "float32")
    for bits in (0x7E00, 0xFE00):
        nan = ordered(np.array([bits], dtype=np.uint16), "float16")
        assert not (low <= nan <= high)


def carry_out(problem: Problem, arenas: Arenas) -> None:
    """Update in float64, element by element, as the problem says."""
    for i in range(problem.count):
        at = {
            one: (int(problem.index[i]) if one.indexed and problem.index is not None else i) for one in problem.places
        }
        cells = {
            one: np.ndarray((1,), DTYPES[one.stream.dtype].storage, arenas[one.arena], one.offset + one.pitch * at[one])
            for one in problem.places
        }
        inputs = {one.stream.name: decode(cell, one.stream.dtype) for one, cell in cells.items() if one.reads}
        found = reference(problem.pattern, {name: value.astype(np.float64) for name, value in inputs.items()})
        ended = {one.stream.name: encode(found[one.stream.name], one.stream.dtype) for one in cells if one.writes}
        for name, other in problem.pattern.copied.items():
            types = {stream.name: stream.dtype for stream in problem.pattern.streams}
            ended[name] = encode(decode(ended[other], types[other]), types[name])
        for one, cell in cells.items():
            if one.writes:
                cell[:] = ended[one.stream.name]


def checked(problem: Problem, damage: Callable[[Arenas], None] = lambda arenas: None) -> int:
    """Return what the check finds after an update in float64, and the damage."""
    check = Check(problem)
    arenas = {name: check.contents(name) for name in problem.arenas}
    carry_out(problem, arenas)
    damage(arenas)
    return check.wrong(lambda name, start, stop: arenas[name][start:stop].copy())


WALKS: Mapping[str, Access] = {
    "flat": Access(),
    "offset": Access(offset=1),
    "stride": Access(stride=5),
    "structs": Access(layout="aos"),
    "sorted": Access(index="sorted"),
    "random": Access(index="random"),
    "duplicate": Access(index="duplicate"),
    "out of place": Access(inplace=False),
}


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
@pytest.mark.parametrize("pattern", [ADAMW.of("float16"), SGD.of("bfloat16")], ids=["adamw", "sgd"])
def test_a_right_answer_is_right_and_one_bit_beside_it_is_found(pattern: Pattern, walk: Access) -> None:
    problem = Problem(pattern, walk, 203)
    assert checked(problem) == 0
    for arena, size in problem.arenas.items():
        for byte in (0, GUARD - 1, size - GUARD, size - 1):

            def damage(arenas: Arenas, arena: str = arena, byte: int = byte) -> None:
                arenas[arena][byte] ^= 1

            assert checked(problem, damage) == 1, (arena, byte)


def test_an_element_that_was_not_updated_or_that_is_another_ones_is_found() -> None:
    problem = Problem(ADAMW.of("float16"), Access(), 300)
    before = Check(problem).contents("p")

    def forget(arenas: Arenas) -> None:
        arenas["p"][GUARD + 40 : GUARD + 44] = before[GUARD + 40 : GUARD + 44]

    def swap(arenas: Arenas) -> None:
        view = arenas["m"][GUARD:-GUARD].view(np.float32)
        view[[7, 8]] = view[[8, 7]]

    assert checked(problem, forget) == 2  # the master, and the weight that is not its rounding any more
    assert checked(problem, swap) == 2


def test_an_element_that_was_no_part_of_the_walk_and_changed_is_found() -> None:
    def touch(arenas: Arenas) -> None:
        arenas["p"][GUARD + 4 : GUARD + 8].view(np.float32)[:] += 0.25

    assert checked(Problem(ADAMW.of("float16"), Access(stride=2), 300), touch) > 0


def test_a_weight_that_is_not_its_rounded_master_is_found() -> None:
    def nudge(arenas: Arenas) -> None:
        arenas["w"][GUARD : GUARD + 2].view(np.int16)[:] += 1

    assert checked(Problem(ADAMW.of("float16"), Access(), 300), nudge) >= 1


def test_contents_repeat_after_a_prime_and_gaps_have_the_fill() -> None:
    problem = Problem(ADAMW.of("float16"), Access(), PERIOD + 10)
    assert PERIOD == 2**17 - 1 and all(PERIOD % k for k in range(2, 363))
    grads = Check(problem).contents("g")[GUARD:-GUARD].view(np.float16)
    assert (grads[:10] == grads[PERIOD:]).all() and len(np.unique(grads)) > 10_000
    assert (Check(problem).contents("w") == FILL).all()


def test_what_is_moved_from_one_guard_into_another_is_found() -> None:
    copy = _study.patterns("copy")[0].of("float32")

    def run_on(arenas: Arenas) -> None:
        arenas["b"][-GUARD : -GUARD + 8] = arenas["a"][-GUARD : -GUARD + 8]

    assert checked(Problem(copy, Access(), 300), run_on) == 8


def test_damage_far_behind_is_found_though_what_repeats_is_compared_as_bits() -> None:
    copy = _study.patterns("copy")[0].of("float32")
    problem = Problem(copy, Access(), 3 * PERIOD + 5)
    check = Check(problem, workers=2)
    arenas = {name: check.contents(name) for name in problem.arenas}
    size = 4 * problem.total
    arenas["b"][GUARD : GUARD + size] = arenas["a"][GUARD : GUARD + size]
    take = lambda name, start, stop: arenas[name][start:stop].copy()  # noqa: E731
    assert check.wrong(take) == 0
    for element in (0, PERIOD - 1, PERIOD, 2 * PERIOD + 7, problem.total - 1):
        arenas["b"][GUARD + 4 * element] ^= 1
        assert check.wrong(take) == 1, element
        arenas["b"][GUARD + 4 * element] ^= 1
