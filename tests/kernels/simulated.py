"""Runs the source of the Numba CUDA kernels in Numba's simulator, and logs every access.

`python -m tests.kernels.simulated` prints one line of JSON a problem. It is a process of its own, as the simulator is
chosen before Numba is imported.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.kernels import _numba_cuda
from commbench.kernels._gpu import launches
from commbench.kernels._pattern import Problem
from commbench.kernels._verify import Check, decode, encode
from tests.kernels.walks import problems

TOTAL, THREADS = 515, 64  # elements, so that some are left over; two warps a block
LANES, SECTOR = 32, 32


class Log:
    """Which sectors each request touched."""

    def __init__(self) -> None:
        self.requests: dict[tuple[object, ...], set[int]] = defaultdict(set)
        self._seen: Counter[tuple[object, ...]] = Counter()

    def access(self, bits: Bits, i: int, n: int, kind: str) -> None:
        """Note that a lane moves `n` elements from number `i` on. One line of the source is one instruction."""
        thread: Any = threading.current_thread()
        line = sys._getframe(2).f_lineno
        lane, block = thread.threadIdx.x, thread.blockIdx.x
        self._seen[bits.launch, block, lane, line] += 1
        warp = (bits.launch, block, lane // LANES, line, self._seen[bits.launch, block, lane, line])
        first = bits.address + i * bits.pitch
        width = n * bits.values.itemsize
        assert first % width == 0, f"an access of {width} bytes at {first}"
        assert n == 1 or bits.pitch == bits.values.itemsize, "neighbours are moved that are none"
        self.requests[(bits.arena, kind, *warp)] |= {byte // SECTOR for byte in range(first, first + width)}

    def sectors(self) -> dict[str, tuple[int, int]]:
        """Return, by arena and direction, sectors touched at all, and summed over requests."""
        unique: dict[str, set[int]] = defaultdict(set)
        asked: Counter[str] = Counter()
        for (arena, kind, *_), sectors in self.requests.items():
            unique[f"{arena} {kind}"] |= sectors
            asked[f"{arena} {kind}"] += len(sectors)
        return {key: (len(found), asked[key]) for key, found in unique.items()}


class Bits:
    """An array of unsigned integers in the kernel's place of one; not NumPy's, so that the simulator copies nothing."""

    def __init__(self, values: NDArray[Any], arena: str, address: int) -> None:
        self.values, self.arena, self.address = values, arena, address
        self.pitch = values.strides[0]
        self.launch = 0


def space(log: Log) -> dict[str, Any]:
    """Return what stands for _numba_cuda.primitives."""
    import math

    from numba import cuda

    def load(n: int) -> Callable[[Bits, int], Any]:
        def load(bits: Bits, i: int) -> Any:
            log.access(bits, i, n, "read")
            return tuple(bits.values[i : i + n]) if n > 1 else bits.values[i]

        return load

    def store(n: int) -> Callable[..., None]:
        def store(bits: Bits, i: int, *values: Any) -> None:
            log.access(bits, i, n, "write")
            assert len(values) == n
            bits.values[i : i + n] = values

        return store

    def widen(dtype: str) -> Callable[[Any], Any]:
        compute = np.float64 if dtype == "float64" else np.float32
        storage = {"bfloat16": "uint16"}.get(dtype, dtype)
        return lambda bits: compute(decode(np.array([bits]).view(storage), dtype)[0])

    def narrow(dtype: str) -> Callable[[Any], Any]:
        def narrow(number: Any) -> Any:
            stored = encode(np.array([number]), dtype)
            return stored.view(f"uint{8 * stored.itemsize}")[0]

        return narrow

    types = ("float16", "bfloat16", "float32", "float64")
    return {
        "cuda": cuda,
        "math": math,
        "float32": np.float32,
        "float64": np.float64,
        **{f"load{n}": load(n) for n in (1, 2, 4, 8)},
        **{f"store{n}": store(n) for n in (1, 2, 4, 8)},
        **{f"widen_{dtype}": widen(dtype) for dtype in types},
        **{f"narrow_{dtype}": narrow(dtype) for dtype in types},
        "kept": lambda word: word,
        "low": lambda word: np.uint16(word & 0xFFFF),
        "high": lambda word: np.uint16(word >> 16),
        "pair": lambda low, high: np.uint32(int(low) | int(high) << 16),
    }


def run(problem: Problem) -> dict[str, Any]:
    """Return what one launch touched, and how many elements are wrong after it."""
    from numba import cuda

    log, check = Log(), Check(problem)
    update, total = _numba_cuda.build(problem, THREADS, space(log), cuda.jit, lambda function: function)
    memory = {arena: check.contents(arena) for arena in problem.arenas}
    arrays = [
        Bits(values, arena, values.ctypes.data - memory[arena].ctypes.data)
        for values, arena in zip(_numba_cuda.views(problem, memory), arenas(problem), strict=True)
    ]
    constants = [np.dtype(problem.pattern.compute).type(value) for value in problem.pattern.constants.values()]
    parts = launches(problem, THREADS)
    partial, slot, sum_ = np.zeros(sum(part.blocks for part in parts)), 0, np.zeros(1)
    for number, part in enumerate(parts):
        for array in arrays:
            array.launch = number
        sums = [partial[slot : slot + part.blocks]] if problem.pattern.sums else []
        update[part.blocks, THREADS](part.first, part.count, *arrays, *sums, *constants)
        slot += part.blocks
    if problem.pattern.sums:
        total[1, THREADS](partial, sum_)

    def take(arena: str, start: int, stop: int) -> NDArray[np.uint8]:
        return memory[arena][start:stop]

    return {"sectors": log.sectors(), "wrong": int(check.wrong(take, float(sum_[0])))}


def arenas(problem: Problem) -> list[str]:
    """Return the arena of each array of _numba_cuda.views."""
    index = ["index"] if problem.access.index else []
    return index + (["structs"] if problem.access.layout == "whole" else [place.arena for place in problem.places])


def main(every: Mapping[str, Problem]) -> None:
    for name, problem in every.items():
        print(json.dumps({"problem": name, **run(problem)}), flush=True)


if __name__ == "__main__":
    np.seterr(all="ignore")  # the simulator's own arithmetic is no matter here
    main(problems(TOTAL))
