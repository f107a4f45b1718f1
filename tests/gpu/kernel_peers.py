"""Times of our kernels and of others' for the same work, in turns: `python -m tests.gpu.kernel_peers`; prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from commbench.kernels import _backend
from commbench.kernels._cupy import Backend
from commbench.kernels._pattern import Problem
from commbench.kernels._study import patterns
from commbench.kernels._verify import Check

ELEMENTS = 1 << 26  # 1.8 GB of an AdamW in FP32: many times any cache
ROUNDS, LAUNCHES = 9, 5


@dataclass(frozen=True)
class Pair:
    """Our kernel, and another's that moves the same bytes."""

    ours: str
    peer: str
    launch: Callable[[], None]
    other: Callable[[], None]


def ours(
    backend: _backend.Backend, name: str, variant: str, dtype: str, elements: int = ELEMENTS
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Return what launches a kernel's baseline, and its arenas; raise RuntimeError where its answer is wrong."""
    pattern = next(one for one in patterns(name) if one.variant == variant).of(dtype)
    problem = Problem(pattern, backend.baseline(pattern), elements)
    check = Check(problem, backend.workers)
    arenas = {arena: backend.allocate(size) for arena, size in problem.arenas.items()}
    for arena, memory in arenas.items():
        backend.put(memory, check.contents(arena))
    launch = backend.prepare(problem, arenas)
    launch()
    if wrong := check.wrong(lambda arena, start, stop: backend.take(arenas[arena], start, stop)):
        raise RuntimeError(f"{pattern.label} {dtype}: {wrong} elements or bytes beside them are wrong after one launch")
    return launch, arenas


def copies(backend: Backend) -> list[Pair]:
    """Return our copy beside the driver's copy and CuPy's."""
    import cupy

    launch, arenas = ours(backend, "copy", "", "float16")
    source, target = arenas["a"].view("float16"), arenas["b"].view("float16")
    by_driver = lambda: target.data.copy_from_device_async(source.data, source.nbytes)  # noqa: E731
    by_cupy = lambda: cupy.copyto(target, source)  # noqa: E731
    scaled, _ = ours(backend, "scale", "", "float16")
    by_ufunc = lambda: cupy.multiply(source, cupy.float16(0.4), out=target)  # noqa: E731
    return [
        Pair("copy float16", "the driver's copy", launch, by_driver),
        Pair("copy float16", "cupy.copyto", launch, by_cupy),
        Pair("scale float16", "cupy.multiply", scaled, by_ufunc),
    ]


def updates(backend: Backend, stream: int) -> tuple[list[Pair], str]:
    """Return our AdamW beside torch's fused one on state of the same types, and why there is none."""
    try:
        import torch
    except ImportError:
        return [], "torch is not installed"
    if not torch.cuda.is_available():
        return [], f"torch {torch.__version__} finds no GPU: install its CUDA build"
    found = []
    for variant, dtype, kind in (("adamw32", "float32", torch.float32), ("adamw16", "bfloat16", torch.bfloat16)):
        weight = torch.nn.Parameter(torch.ones(ELEMENTS, dtype=kind, device="cuda"))
        weight.grad = torch.full_like(weight, 1e-2)
        optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=1e-2, fused=True)
        other = _on(torch.cuda.ExternalStream(stream), optimizer.step)
        launch, _ = ours(backend, "weight_update", variant, dtype)
        found.append(Pair(f"weight_update {variant} {dtype}", f"torch {torch.__version__} fused AdamW", launch, other))
    return found, ""


def _on(stream: Any, work: Callable[[], Any]) -> Callable[[], None]:
    import torch

    def launch() -> None:
        with torch.cuda.stream(stream):
            work()

    return launch


def ratio(backend: Backend, pair: Pair, shuffle: Random) -> dict[str, Any]:
    """Return the median over rounds of the other's time over ours, and of ours over ours again."""
    sides = {"ours": pair.launch, "again": pair.launch, "peer": pair.other}
    for launch in sides.values():
        backend.times(launch, 2)
    rounds = []
    for _ in range(ROUNDS):
        order = shuffle.sample(sorted(sides), len(sides))
        rounds.append({side: median(backend.times(sides[side], LAUNCHES)) for side in order})
    return {
        "ours": pair.ours,
        "peer": pair.peer,
        "ours_us": median(taken["ours"] for taken in rounds) * 1e6,
        "ratio": median(taken["peer"] / taken["ours"] for taken in rounds),
        "control": median(taken["again"] / taken["ours"] for taken in rounds),
        "rounds": rounds,
    }


def main() -> None:
    backend, shuffle = Backend("cuda", 0), Random(1)
    adam, without = updates(backend, backend.stream)
    found = [ratio(backend, pair, shuffle) for pair in [*copies(backend), *adam]]
    print(json.dumps({"device": backend.facts.name, "without": without, "ratios": found}))


if __name__ == "__main__":
    main()
