"""The C++ source of every kernel, run on the CPU, a thread after another: right answers, guards, aligned accesses."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from commbench.kernels import _cpp
from commbench.kernels._gpu import launches
from commbench.kernels._pattern import Problem
from commbench.kernels._verify import Check
from tests.kernels.walks import problems

# One thread, which sums have here, takes one element behind the last whole vector.
PROBLEMS = problems(5003) | {name: one for name, one in problems(5001).items() if one.pattern.sums}
PAGE = 4096


def threads(problem: Problem) -> int:
    """Return the threads of a block: one where they would have to wait for one another."""
    return 1 if problem.pattern.sums else 64


def entry(problem: Problem, name: str) -> str:
    """Return a C function that is one launch of a kernel."""
    number = "double" if problem.pattern.compute == "float64" else "float"
    arguments = [f"arena[{k}]" for k in range(len(problem.arenas))] + ["first", "count"]
    arguments += ["partial"] if problem.pattern.sums else []
    arguments += [f"constant[{k}]" for k in range(len(problem.pattern.constants))]
    return (
        f'extern "C" void launch_{name}'
        f"(int64 n, char **arena, int64 first, int64 count, double *partial, {number} *constant) {{\n"
        f"    the_blocks = n;\n    EVERY_THREAD({name}_parts::{name}({', '.join(arguments)}))\n}}\n"
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ctypes.CDLL]:
    """Every kernel, in a library for each number of threads."""
    clang = shutil.which("clang-19")
    if clang is None:
        pytest.skip("no clang-19, which has 16-bit floats in C++ on CPUs: apt-get install clang-19 (Debian)")
    folder = tmp_path_factory.mktemp("host")
    libraries = {}
    for number in sorted({threads(problem) for problem in PROBLEMS.values()}):
        mine = {name: problem for name, problem in PROBLEMS.items() if threads(problem) == number}
        parts = [_cpp.kernel(problem, name) + entry(problem, name) for name, problem in mine.items()]
        # Behind THREADS, and before all that is shared.
        define, shared = _cpp.shared(number).split("\n", 1)
        host = Path(__file__).with_name("host.hpp").read_text()
        source, library = folder / f"kernels{number}.cpp", folder / f"kernels{number}.so"
        source.write_text("\n".join([define, host, shared, *parts]))
        command = [clang, "-std=c++17", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        libraries[number] = ctypes.CDLL(str(library))
    return libraries


def aligned(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy that begins at a page."""
    memory = np.empty(len(values) + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    memory[start : start + len(values)] = values
    return memory[start : start + len(values)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_answers_are_right_and_guards_are_untouched(compiled: dict[int, ctypes.CDLL], name: str) -> None:
    problem = PROBLEMS[name]
    check, number = Check(problem), threads(problem)
    memory = {arena: aligned(check.contents(arena)) for arena in problem.arenas}
    pointers = (ctypes.c_void_p * len(memory))(*(values.ctypes.data for values in memory.values()))
    constants = np.array(list(problem.pattern.constants.values()), problem.pattern.compute)
    total = 0.0
    for part in launches(problem, number):
        partial = np.zeros(part.blocks)
        arguments = (pointers, ctypes.c_int64(part.first), ctypes.c_int64(part.count))
        tail = (ctypes.c_void_p(partial.ctypes.data), ctypes.c_void_p(constants.ctypes.data))
        compiled[number][f"launch_{name}"](ctypes.c_int64(part.blocks), *arguments, *tail)
        total += float(partial.sum())

    def take(arena: str, start: int, stop: int) -> NDArray[np.uint8]:
        return memory[arena][start:stop]

    assert check.wrong(take, total) == 0


def test_bfloat16_is_rounded_as_the_reference_does(compiled: dict[int, ctypes.CDLL], tmp_path: Path) -> None:
    """Ties to even, infinities, and NaNs that stay such: random bit patterns, and those near the edges."""
    from commbench.measure.verify import float32_to_bfloat16

    define, shared = _cpp.shared(1).split("\n", 1)
    text = """
extern "C" void narrowed(const float *from, bfloat16 *to, int64 n) {
    for (int64 i = 0; i < n; i++)
        narrow(from[i], to[i]);
}
"""
    (tmp_path / "narrow.cpp").write_text(
        "\n".join([define, Path(__file__).with_name("host.hpp").read_text(), shared, text])
    )
    command = ["clang-19", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", "narrow.so", "narrow.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    random = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    edges = np.array([0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0xFF800000, 0x3F808000, 0x3F818000, 0x7F800001], np.uint32)
    values = np.concatenate([random, edges]).view(np.float32)
    got = np.empty(len(values), np.uint16)
    library = ctypes.CDLL(str(tmp_path / "narrow.so"))
    addresses = (ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(got.ctypes.data))
    library.narrowed(*addresses, ctypes.c_int64(len(values)))
    nan = np.isnan(values)
    assert (got[~nan] == float32_to_bfloat16(values[~nan])).all()
    assert ((got[nan] & 0x7FFF) > 0x7F80).all()
