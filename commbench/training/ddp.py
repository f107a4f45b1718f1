"""Data parallelism: each rank has all of the model, and DistributedDataParallel adds up the gradients."""

from __future__ import annotations

from typing import Any

from commbench.training.profiling import span
from commbench.training.workload import OPTIMIZER, Lap, Replica, optimizer

BUCKET = 25 << 20  # bytes: torch's default
BUCKETS = 4  # at least, of a model that would have fewer


class DataParallel:
    """One rank of it. The default process group of torch.distributed is open, and all ranks do the same."""

    def __init__(self, replica: Replica, bucket: int | None = None) -> None:
        """`bucket`: bytes of gradients that are added up at once; None: `BUCKET`, less of a small model."""
        from torch.nn.parallel import DistributedDataParallel

        self.bucket = bucket or min(BUCKET, 4 * replica.work.preset.parameters // BUCKETS)
        self._replica = replica
        self._net: Any = DistributedDataParallel(
            replica.module,
            device_ids=[replica.device.index] if replica.device.type == "cuda" else None,
            bucket_cap_mb=self.bucket / (1 << 20),
            gradient_as_bucket_view=True,
        )
        self._optimizer = optimizer(replica.module.parameters())

    def step(self, number: int) -> Lap:
        """Carry out a step: only the last of its micro-batches sends gradients."""
        loss = self._replica.gradients(number, self._net, self._net.no_sync)
        with span(OPTIMIZER):
            self._optimizer.step()
            self._optimizer.zero_grad()
        return Lap(loss)
