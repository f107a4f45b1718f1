"""A launcher whose ranks measure nothing: it writes the run folder that a door would, at once.

python -m tests.fake_door [scale=1.2] [seed=3] [code=1] [sleep=60] python -m commbench.allreduce ... --out DIR

`scale` multiplies all times, `seed` is of their noise beside the launch's number, `code` ends so, without a run where
it is 2; `sleep` stops for so many seconds amid the run.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commbench.results.journal import Journal
from commbench.results.launch import launch_number
from commbench.results.record import FORMAT

SIZES = (8, 512)
ROUNDS = 3


def write_run(folder: Path, times: Mapping[int, float], chance: random.Random, **facts: Any) -> Journal:
    """Write a run: of each size, some rounds around a time in microseconds. `facts` differ, `algorithm` among them."""
    algorithm = facts.pop("algorithm", "auto")
    group = {"ranks": "0-1", "order": [0, 1], "hosts": "one", "nranks": 2, "nnodes": 1, "busbw_factor": 1.0}
    shared = {
        "collective": "allreduce",
        "backend": "mpi",
        "library": "MPICH 5.0.2",
        "method": "barrier",
        "launch": launch_number(folder),
        "simulated": False,
        "groups": {"all": group},
    }
    cell = {"algorithm": algorithm, "native": algorithm, "protocol": None, "dtype": "float32", "redop": "sum"}
    cell |= {"root": None, "inplace": False, "buffer": "host", "group": "all", "status": "planned", "reason": ""}
    cells = [{**cell, "size": size, "count": size // 4} for size in times]
    plan = {"facts": shared | facts, "asked": {}, "effort": {}, "notes": [], "cells": cells}
    journal = Journal.create(folder, {"version": FORMAT, "plan": plan, "sessions": [{}]})
    for number in range(ROUNDS):
        for index, time_us in enumerate(times.values()):
            samples = sorted(time_us * chance.lognormvariate(0, 0.01) for _ in range(5))
            figures = {"median_us": samples[2], "mean_us": samples[2], "min_us": samples[0], "max_us": samples[-1]}
            about = {"cell": index, "round": number, "session": 0, "status": "ok", "reason": "", "loop": "plain"}
            journal.append({**about, **figures, "iterations": 5, "samples_us": samples, "seconds": 0.1})
    return journal


def main() -> int:
    settings = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    words = sys.argv[1:]
    algorithm = words[words.index("--algo") + 1] if "--algo" in words else "auto"
    code = int(settings.get("code", 0))
    print("a word on standard output", flush=True)
    print(f"the last word, exit {code}", file=sys.stderr)
    if code == 2:
        return code
    chance = random.Random(f"{settings.get('seed')} {folder.name}")
    scale = float(settings.get("scale", 1.0)) * chance.lognormvariate(0, 0.02)
    journal = write_run(folder, {size: scale * (size + 10) for size in SIZES}, chance, algorithm=algorithm)
    time.sleep(float(settings.get("sleep", 0)))
    journal.write_records()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
