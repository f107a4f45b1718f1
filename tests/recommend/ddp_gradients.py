"""Two unlike ranks of torch's DistributedDataParallel over Gloo, held against one process.

python -m tests.recommend.ddp_gradients FILE
"""

from __future__ import annotations

import sys
from typing import Any

from commbench.recommend.batch import Device, split

BATCH = 24


def gradient(rank: int, part: slice, weight: float) -> Any:
    """Return the gradient that rank's replica has after a backward pass over its part of the batch."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    x, y = torch.randn(BATCH, 5).double(), torch.randn(BATCH, 1).double()
    module: Any = model if rank < 0 else DistributedDataParallel(model)
    (weight * torch.nn.functional.mse_loss(module(x[part]), y[part])).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def work(rank: int, file: str) -> None:
    import torch
    import torch.distributed as dist

    found = split([Device(7.0), Device(2.0)], BATCH, 2)
    begin = sum(found.samples[:rank])
    part = slice(begin, begin + found.samples[rank])
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    weighted, bare = gradient(rank, part, found.weights[rank]), gradient(rank, part, 1.0)
    dist.destroy_process_group()
    if rank == 0:
        alone = gradient(-1, slice(0, BATCH), 1.0)
        for name, own in (("weighted", weighted), ("unweighted", bare)):
            print(name, "equal" if torch.allclose(own, alone, rtol=1e-9, atol=1e-12) else "different", flush=True)


if __name__ == "__main__":
    import torch.multiprocessing

    torch.multiprocessing.spawn(work, args=(sys.argv[1],), nprocs=2)
