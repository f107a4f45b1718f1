"""Runs the back end of Numba CUDA in Numba's simulator: memory, launches, answers, times.

`python -m tests.kernels.simulated_backend` prints one line of JSON. The simulator has neither a device's attributes nor
the instructions of `primitives` and of the gate: stand-ins are put in their place.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from commbench.kernels import _numba_cuda
from commbench.kernels._verify import Check
from tests.kernels.simulated import Log, space
from tests.kernels.walks import problems

CHOSEN = (
    "weight_update_adamw_float16",
    "weight_update_adamw_float16_layout_aos",
    "weight_update_adamw_float16_layout_whole",
    "weight_update_adamw_float16_gather_random",
    "weight_update_adamw_float16_tensors_many_small",
    "copy_float16_stride_8",
    "read_float16",
)
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    L2_CACHE_SIZE=50 << 20,
    PCI_DOMAIN_ID=0,
    PCI_BUS_ID=0x1B,
    PCI_DEVICE_ID=0,
    uuid="GPU-1b",
)


def elementwise() -> dict[str, Any]:
    """Return the primitives on the simulator's own arrays."""

    def load(n: int) -> Callable[[Any, int], Any]:
        return lambda array, i: tuple(array[i + k] for k in range(n)) if n > 1 else array[i]

    def store(n: int) -> Callable[..., None]:
        def store(array: Any, i: int, *values: Any) -> None:
            for k in range(n):
                array[i + k] = values[k]

        return store

    moves = {f"{word.__name__}{n}": word(n) for word in (load, store) for n in (1, 2, 4, 8)}
    return space(Log()) | moves


def main() -> None:
    from numba import cuda

    jit = cuda.jit
    plain = lambda function: function  # noqa: E731
    cuda.jit = lambda function=None, device=False, **_: jit(function) if function else plain if device else jit
    cuda.get_current_device = lambda: H100
    cuda.current_context = lambda: SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=1 << 36))
    _numba_cuda.primitives = lambda streaming: elementwise()  # type: ignore[assignment]
    # Rank 3 of a node that sees one device: its own.
    backend, every = _numba_cuda.Backend("cuda", 3), problems(515)
    wrong = {}
    for name in CHOSEN:
        problem = every[name]
        check = Check(problem)
        # As in a run, where rows share memory, arenas may be larger than a problem needs.
        memory = {arena: backend.allocate(size + 64) for arena, size in problem.arenas.items()}
        for arena in problem.arenas:
            backend.put(memory[arena], check.contents(arena))
        if problem.pattern.sums:
            memory["sum"] = backend.allocate(8)
        launch = backend.prepare(problem, memory)
        launch()
        total = float(backend.take(memory["sum"], 0, 8).view(np.float64)[0]) if problem.pattern.sums else None
        wrong[name] = int(check.wrong(lambda *part, memory=memory: backend.take(memory[part[0]], *part[1:]), total))
    backend.gate = lambda seconds: None  # type: ignore[method-assign]
    backend.done = lambda event: False  # type: ignore[method-assign]
    backend.seconds = lambda begin, end: 5e-3  # type: ignore[method-assign]  # the simulator's events tell no time
    times = backend.times(launch, 3)
    facts = backend.facts
    print(json.dumps({"wrong": wrong, "times": times, "name": facts.name, "identity": facts.identity}))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
