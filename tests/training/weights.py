"""One rank of each way of training: `mpirun -n 3 python -m tests.training.weights`, which prints what rank 0 ends with.

Of data parallelism all three ranks compute, of a parameter server two.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from commbench.backends._mpi_world import open_mpi
from commbench.training.model import PRESETS
from commbench.training.options import DDP, PS, Options
from commbench.training.parameter_server import ASYNCHRONOUS, SYNCHRONOUS
from commbench.training.run import Place, _group, _mode
from commbench.training.workload import Workload

WORK = Workload(PRESETS["tiny"], batch=2, sequence=16, accumulate=2)
STEPS = 3
WAYS = ((DDP, SYNCHRONOUS), (PS, SYNCHRONOUS), (PS, ASYNCHRONOUS))


def flat(module: Any) -> Any:
    return np.concatenate([one.detach().numpy().ravel() for one in module.parameters()])


def main() -> None:
    import torch

    world = open_mpi()
    torch.set_num_threads(1)
    place = Place("gloo", "", torch.device("cpu"), "CPU")
    found: dict[str, Any] = {}
    with _group(world, place):
        for way, updates in WAYS:
            asked = {"mode": way, "updates": updates, "work": WORK, "faults": (), "warmup": 0, "alternate": False}
            options = cast(Options, SimpleNamespace(**asked, bucket=64 << 10))
            mode: Any = _mode(world, options, place)[0]
            laps = [mode.step(number) for number in range(STEPS)]
            end = mode._weights.numpy() if way == PS else flat(mode._replica.module)
            told = {
                "weights": np.asarray(end, dtype=np.float64)[::37].tolist(),  # of all tensors some
                "losses": [None if lap.loss is None else lap.loss.item() for lap in laps],
                "exchanges": [lap.exchange for lap in laps],
            }
            ranks = world.gather(told)
            if way == PS and world.rank == 0:
                state = next(iter(mode._optimizer.state.values()))
                found[f"{updates} updates"] = int(state["step"])
            found[f"{way} {updates}"] = ranks
    if world.rank == 0:
        print(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main()
