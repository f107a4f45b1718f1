"""The Numba kernels on this CPU: every kernel, type and walk is right, and 16-bit numbers round as NumPy does it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commbench.kernels import _study
from commbench.kernels._factors import FACTORS, levels
from commbench.kernels._pattern import Access, Pattern, Problem
from commbench.kernels._traffic import CPU
from commbench.kernels._verify import Check, decode, encode

pytest.importorskip("numba", reason="numba is not installed: pip install 'commbench[kernels]'")

from commbench.kernels._numba_cpu import Backend, last_level_cache, source, streams
from commbench.kernels._numba_vectors import scalars, vectors
from commbench.kernels._run import changed_guards

EVERY = [pattern for name in _study.names() for pattern in _study.patterns(name)]
TOTAL = 9001  # blocks of 4096, and a remainder; threads with unlike parts
TYPES = {"weight_update": ("float16",), "sgd_momentum": ("bfloat16",)}  # compiling takes a second or two each


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend("cpu", 0)


def wrong(backend: Backend, problem: Problem) -> int:
    """Launch a problem once and return what its check finds."""
    check = Check(problem)
    arenas = {name: backend.allocate(size) for name, size in problem.arenas.items()}
    for name in arenas:
        backend.put(arenas[name], check.contents(name))
    if problem.pattern.sums:
        arenas["sum"] = backend.allocate(8)
    backend.prepare(problem, arenas)()
    total = float(arenas["sum"].view(np.float64)[0]) if problem.pattern.sums else None
    return check.wrong(lambda name, start, stop: backend.take(arenas[name], start, stop), total)


@pytest.mark.parametrize("pattern", EVERY, ids=lambda pattern: pattern.label)
def test_the_baseline_of_every_kernel_is_right_in_every_type(backend: Backend, pattern: Pattern) -> None:
    for dtype in TYPES.get(pattern.name, pattern.dtypes):
        one = pattern.of(dtype)
        assert wrong(backend, Problem(one, backend.baseline(one), TOTAL)) == 0


@pytest.mark.parametrize("name", ["triad", "weight_update"])
def test_the_ceiling_moves_what_it_says(backend: Backend, name: str) -> None:
    pattern = _study.patterns(name)[0].of("bfloat16").ceiling()
    assert wrong(backend, Problem(pattern, backend.baseline(pattern), TOTAL)) == 0


UPDATE = _study.patterns("weight_update")[0].of("float16")
LEVELS = levels(UPDATE, Access(hint="streaming"), Backend.memory, Backend.factors, FACTORS)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.factor} {level.level}")
def test_every_level_of_every_factor_is_right(backend: Backend, level: Any) -> None:
    assert wrong(backend, Problem(UPDATE, level.access, TOTAL)) == 0


@pytest.mark.parametrize("total", [1, 2, 31, 4096, 4097, 8193])
def test_any_number_of_elements_is_right(backend: Backend, total: int) -> None:
    assert wrong(backend, Problem(UPDATE, Access(hint="streaming"), total)) == 0


@pytest.mark.parametrize(
    "walk", [{}, {"inplace": False}, {"tensors": True}, {"threads": 1}, {"index": "duplicate"}], ids=str
)
def test_vectors_begin_where_they_are_aligned(backend: Backend, walk: dict[str, Any]) -> None:
    for total in (8, 100, TOTAL):
        assert wrong(backend, Problem(UPDATE, Access(hint="streaming", offset=33, **walk), total)) == 0


def test_a_sum_that_leaves_one_out_is_wrong(backend: Backend) -> None:
    pattern = _study.patterns("read")[0].of("float16")
    problem = Problem(pattern, Access(), TOTAL)
    check = Check(problem)
    contents = check.contents("a")
    total = decode(contents[4096:-4096].view(np.float16), "float16").sum(dtype=np.float64)
    take = {"a": contents}
    assert check.wrong(lambda name, start, stop: take[name][start:stop].copy(), float(total)) == 0
    assert check.wrong(lambda name, start, stop: take[name][start:stop].copy(), float(total) - 1) == 1


def test_16_bit_numbers_are_converted_as_numpy_does() -> None:
    import numba

    helpers = scalars()
    names = ("half_to_float", "float_to_half", "bfloat_to_float", "float_to_bfloat")
    half_up, half_down, brain_up, brain_down = (helpers[name] for name in names)

    @numba.njit  # type: ignore[untyped-decorator, unused-ignore]
    def up(bits: Any, half: Any, brain: Any) -> None:
        for i in range(len(bits)):
            half[i] = half_up(bits[i])
            brain[i] = brain_up(bits[i])

    @numba.njit  # type: ignore[untyped-decorator, unused-ignore]
    def down(numbers: Any, half: Any, brain: Any) -> None:
        for i in range(len(numbers)):
            half[i] = half_down(numbers[i])
            brain[i] = brain_down(numbers[i])

    bits = np.arange(1 << 16, dtype=np.uint16)
    half, brain = np.empty(1 << 16, dtype=np.float32), np.empty(1 << 16, dtype=np.float32)
    up(bits, half, brain)
    np.testing.assert_array_equal(half, bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(brain, (bits.astype(np.uint32) << 16).view(np.float32))
    random = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    ties = (np.arange(1 << 12, dtype=np.uint32) << 15).view(np.float32)
    numbers = np.concatenate([random, ties, half])
    rounded, cut = np.empty(len(numbers), dtype=np.uint16), np.empty(len(numbers), dtype=np.uint16)
    down(numbers, rounded, cut)
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    np.testing.assert_array_equal(rounded.view(np.float16), expected)  # NaNs are equal, whatever they carry
    there = ~np.isnan(numbers)
    np.testing.assert_array_equal(cut[there], encode(numbers[there], "bfloat16"))
    assert np.isnan(decode(cut[~there], "bfloat16")).all()


def test_a_baseline_streams_what_is_only_written() -> None:
    backend = Backend("cpu", 0)
    hints = {name: backend.baseline(_study.patterns(name)[0].of("float16")).hint for name in _study.names()}
    assert hints == {name: "" if name == "read" else "streaming" for name in hints} | {"sgd_momentum": "streaming"}
    problem = Problem(UPDATE, Access(hint="streaming"), 100)
    assert [place.stream.name for place in streams(problem)] == ["w"] and "vectors(" in source(problem)


def test_ranks_of_a_node_share_its_cores_and_memory() -> None:
    backend = Backend("cpu", 0)
    free = backend.facts.free
    backend.share(4, 2)
    assert backend.threads == 1 and backend.facts.free == free // 4


def test_last_level_caches_are_added_up_each_once(tmp_path: Path) -> None:
    def cache(core: int, index: int, **facts: str) -> None:
        folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in facts.items():
            (folder / name).write_text(text + "\n")

    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        cache(core, 0, level="1", size="48K", shared_cpu_list=f"{core}")
        cache(core, 3, level="3", size="32M", shared_cpu_list=shared)
    assert last_level_cache([0, 1, 2, 3], tmp_path) == 64 << 20
    assert last_level_cache([0, 1], tmp_path) == last_level_cache([3], tmp_path) == 32 << 20
    (tmp_path / "cpu4").mkdir()
    assert last_level_cache([4], tmp_path) == 32 << 20  # the system does not tell
    cache(5, 2, level="2", size="1G", shared_cpu_list="5")
    assert last_level_cache([0, 5], tmp_path) == (32 << 20) + (1 << 30)


@pytest.mark.parametrize(
    "pattern",
    [
        *(_study.patterns("triad")[0].of(dtype) for dtype in ("float64", "float32", "float16", "bfloat16")),
        *(UPDATE, _study.patterns("copy")[0].of("float16")),
    ],
    ids=lambda one: f"{one.label} {one.dtypes[0]}",
)
def test_stores_past_the_cache_are_of_whole_vectors(pattern: Pattern) -> None:
    import numba

    types: Any = numba.types
    problem = Problem(pattern, Access(hint="streaming"), TOTAL)
    update = vectors(problem, streams(problem))

    def carry_out(low: Any, high: Any, addresses: Any, constants: Any) -> None:
        update(low, high, np.uint64(0), addresses, constants)

    real = types.float64 if pattern.compute == "float64" else types.float32
    addresses = types.UniTuple(types.uint64, len(problem.places))
    constants = types.UniTuple(real, len(pattern.constants))
    compiled = numba.njit((types.int64, types.int64, addresses, constants))(carry_out)
    (assembly,) = compiled.inspect_asm().values()
    stores = [line for line in assembly.splitlines() if "movnt" in line]
    assert stores and all(re.search(r"%[xyz]mm", line) for line in stores)


def test_a_function_is_compiled_once_for_any_number_of_elements_and_anew_for_another_type() -> None:
    backend = Backend("cpu", 0)
    copy = _study.patterns("copy")[0]
    functions = [
        backend._function(Problem(copy.of(dtype), Access(hint="streaming"), total))
        for dtype, total in (("float16", 10), ("float16", 20), ("float32", 10))
    ]
    assert functions[0] is functions[1] is not functions[2]


def test_guards_that_a_launch_changes_are_found_whatever_they_held(backend: Backend) -> None:
    problem = Problem(UPDATE, Access(hint="streaming"), TOTAL)
    arenas = {name: backend.allocate(size + 64) for name, size in problem.arenas.items()}  # as where rows share them
    for number, memory in enumerate(arenas.values()):
        memory[:] = number + 1
    right = backend.prepare(problem, arenas)
    assert changed_guards(backend, problem, arenas, right) == 0

    def wild() -> None:
        right()
        arenas["p"][problem.arenas["p"] - 1] ^= 1
        arenas["w"][4095] ^= 1

    assert changed_guards(backend, problem, arenas, wild) == 2


def test_default_arrays_are_large_enough_for_the_longest_stride(backend: Backend) -> None:
    triad = _study.patterns("triad")[0]
    facts = replace(backend.facts, cache=64 << 20)
    for factors in ([], ["stride"], ["cache", "stride"]):
        (study,) = _study.build([triad], ["float64"], {"triad": factors}, backend, facts, "cpu", None)
        cold = [row for row in study.rows if not row.level.access.warm]
        assert all(row.total * 24 >= 4 * facts.cache - 24 for row in cold)
        assert min(row.touched(CPU) for row in cold) >= 2 * facts.cache - 4096
        assert study.rows[0].total * 24 <= (8 if factors else 4) * facts.cache + 4096  # of each 256 bytes a line
        assert all(row.total * 24 <= facts.cache // 4 for row in study.rows if row.level.access.warm)
    (study,) = _study.build([triad], ["float64"], {"triad": ["stride"]}, backend, facts, "cpu", 256 << 20)
    few = [row.level.name for row in study.rows if row.touched(CPU) < 2 * facts.cache - 4096]
    assert few == ["stride 32"]
