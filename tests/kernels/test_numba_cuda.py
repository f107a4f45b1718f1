"""The Numba CUDA kernels, compiled for a GPU that is not here: their accesses are those that are declared."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commbench.kernels import _numba_cuda
from commbench.kernels._pattern import Problem
from tests.kernels import isa
from tests.kernels.test_cpp import nvdisasm
from tests.kernels.walks import problems

REASON = "numba-cuda is not installed: pip install -c constraints.txt '.[test-kernels]'"
THREADS = 256
PROBLEMS = problems(1 << 16)
# Each takes two seconds to compile: mixed types, structs, half a word, a list of places, elements apart, a sum.
CHOSEN = (
    "weight_update_adamw_float16",
    "weight_update_adamw_float16_hint_streaming",
    "weight_update_adamw_float16_layout_whole",
    "copy_float16_layout_whole",
    "copy_float16_gather_random",
    "copy_float16_stride_8",
    "read_float16",
    "weight_update_adamw_float16_elements_2_vectors",
)


def ptxas() -> Path:
    found = Path(sysconfig.get_paths()["purelib"], "nvidia", "cuda_nvcc", "bin", "ptxas")
    if not found.exists():
        pytest.skip("no ptxas in this environment: pip install -c constraints.txt '.[test-kernels]'")
    return found


def machine_code(problem: Problem, folder: Path) -> str:
    """Return a problem's kernel for an H100, disassembled."""
    from numba import cuda
    from numba.cuda import types

    def typed(array: Any) -> Any:
        return types.Array(getattr(types, str(array.dtype)), 1, "C" if array.flags.c_contiguous else "A")

    update, _ = _numba_cuda.build(
        problem,
        THREADS,
        _numba_cuda.primitives(problem.access.hint == "streaming"),
        lambda function: function,
        cuda.jit(device=True, inline="always"),
    )
    memory = {name: np.zeros(size, np.uint8) for name, size in problem.arenas.items()}
    arguments = [types.int64, types.int64, *map(typed, _numba_cuda.views(problem, memory))]
    arguments += [types.float64[::1]] if problem.pattern.sums else []
    arguments += [getattr(types, problem.pattern.compute)] * len(problem.pattern.constants)
    bounds = _numba_cuda.bounds(THREADS)
    ptx, _ = cuda.compile(update, tuple(arguments), cc=(9, 0), abi="numba", device=False, output="ptx", **bounds)
    (folder / "update.ptx").write_bytes(ptx if isinstance(ptx, bytes) else ptx.encode())
    subprocess.run([ptxas(), "-arch=sm_90", "-o", folder / "update.cubin", folder / "update.ptx"], check=True)
    done = subprocess.run([nvdisasm(), "-c", folder / "update.cubin"], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CHOSEN)
def test_the_accesses_are_those_that_are_declared(name: str, tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda", reason=REASON)
    text, problem = machine_code(PROBLEMS[name], tmp_path), PROBLEMS[name]
    assert isa.in_sass(text) == isa.declared(problem)
    assert isa.waits_in_sass(text, problem) == []
    assert not isa.NVIDIA_LOCAL.search(text)
    streaming = {".EF" in suffixes for _, suffixes in isa.NVIDIA.findall(text)}
    assert streaming == {problem.access.hint == "streaming"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_beside_the_update_compiles_too() -> None:
    pytest.importorskip("numba_cuda", reason=REASON)
    from numba import cuda
    from numba.cuda import types

    def ptx(kernel: Any, *arguments: Any) -> str:
        text, _ = cuda.compile(kernel, arguments, cc=(9, 0), abi="numba", device=False, output="ptx")
        return text.decode() if isinstance(text, bytes) else str(text)

    assert "nanosleep.u32" in ptx(_numba_cuda.compiled(_numba_cuda.GATE, {"cuda": cuda})["gate"], types.int64)
    space = _numba_cuda.primitives(False)
    _, total = _numba_cuda.build(PROBLEMS["read_float16"], THREADS, space, lambda function: function, lambda rule: rule)
    assert "bar.sync" in ptx(total, types.float64[::1], types.float64[::1])
