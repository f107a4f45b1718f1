"""Made-up runs of kernels on several devices: folders as the doors write them, with times that a test knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commbench.results.journal import Journal
from commbench.results.record import FORMAT

# factor, level, predicted low and high, the time for a useful byte over the baseline's, into how many the bytes are cut
LEVELS = (
    ("ceiling", "", 1.0, 1.0, 0.8, 1),
    ("baseline", "", 1.0, 1.0, 1.0, 1),
    ("stride", "2", 0.5, 0.5, 2.0, 2),
    ("stride", "32", 0.05, 0.06, 50.0, 32),  # 0.02 of the baseline: below what is predicted
    ("gather", "random", 0.05, 0.11, 12.5, 8),
    ("cache", "warm", None, None, 0.5, 4),
)
SIZE = 1 << 24  # useful bytes of the baseline
STUDIES = (("copy", "", "float16"), ("weight_update", "adamw", "float32"))
HEAD = {"backend": "cupy", "library": "CuPy 13.6.0, CUDA 12090", "method": "loop", "launch": 0, "simulated": False}


def write_kernels(
    folder: Path,
    speeds: Sequence[float],
    *,
    rounds: int = 5,
    device: str = "NVIDIA H200",
    peak: float | None = 4800.0,
    size: int = SIZE,
    head: Mapping[str, Any] = HEAD,
    launch_us: float = 0.1,
    identity: str = "",
    kind: str = "cuda",
) -> None:
    """Write a run; `speeds`: the baseline's GB/s on each rank's device. Rounds are 1 % apart, in all rows."""
    groups = {
        f"rank {rank}": {
            "ranks": f"{rank}",
            "order": [rank],
            "hosts": "n1",
            "nranks": 1,
            "nnodes": 1,
            "busbw_factor": 1.0,
        }
        for rank in range(len(speeds))
    }
    levels = {study: LEVELS if number else LEVELS[:2] for number, study in enumerate(STUDIES)}
    cells: list[dict[str, Any]] = [
        {
            **{"algorithm": " ".join(filter(None, (kernel, variant, factor, level))), "protocol": None, "dtype": dtype},
            **{"redop": None, "root": None, "size": size // part, "count": size // part // 4, "inplace": True},
            **{"buffer": "device", "group": group, "status": "planned", "reason": "", "study": number},
            **{"kernel": kernel, "variant": variant, "total": size // 4},
            "level": {"factor": factor, "level": level, "predicted_low": low, "predicted_high": high},
        }
        for number, (kernel, variant, dtype) in enumerate(STUDIES)
        for factor, level, low, high, _, part in levels[kernel, variant, dtype]
        for group in groups
    ]
    devices = [
        {
            **{"name": device, "library": "CuPy", "cache": 1 << 26, "free": 1 << 36, "peak": peak},
            "identity": identity or f"GPU-{rank}",
        }
        for rank in range(len(speeds))
    ]
    facts = {"collective": "kernels", "size": len(speeds), "nodes": 1, "groups": groups, **head}
    plan = {"facts": facts, "device": kind, "effort": {"rounds": rounds}, "notes": [], "cells": cells}
    manifest = {"version": FORMAT, "plan": plan, "library": {"devices": devices}, "machine": {}, "sessions": [{}]}
    journal = Journal.create(folder, manifest)
    slowness = {level[:2]: level[4] for level in LEVELS}
    for number in range(rounds):
        for index, cell in enumerate(cells):
            speed = speeds[index % len(speeds)] * (1 + 0.01 * number)
            time = cell["size"] / speed / 1e3 * slowness[cell["level"]["factor"], cell["level"]["level"]]
            figures = {"median_us": time, "mean_us": time, "min_us": time, "max_us": time, "samples_us": [time] * 3}
            figures["launch_us"] = launch_us
            about = {"session": 0, "status": "ok", "reason": "", "seconds": 0.1, "iterations": 3, "wrong": 0}
            journal.append({"cell": index, "round": number, **about, **figures})
    journal.write_records()
    journal.close()
