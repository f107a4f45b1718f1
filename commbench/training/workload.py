"""One rank's share of a training step: data, forward and backward passes of K micro-batches, the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from commbench.training.inject import JITTER, LATE_DATA, SLOW_COMPUTE, SLOW_RANK, Injection
from commbench.training.model import Preset, transformer
from commbench.training.profiling import span

RATE, BETAS, DECAY = (
    1e-3,
    (0.9, 0.95),
    0.1,
)  # of AdamW: those of GPT-3 (Brown et al., 2020, appendix B) but for the rate

# The spans of a step in a trace.
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"


@dataclass(frozen=True)
class Workload:
    """What every rank that computes does in a step."""

    preset: Preset
    batch: int  # sequences of a micro-batch
    sequence: int  # tokens of each
    accumulate: int  # micro-batches of a step
    dtype: str = "float32"  # of the matrix products; weights and gradients are float32
    seed: int = 1

    @property
    def tokens(self) -> int:
        """The tokens of one rank in one step."""
        return self.accumulate * self.batch * self.sequence

    @property
    def flops(self) -> int:
        """The operations of one rank in one step."""
        return self.tokens * self.preset.flops_per_token(self.sequence)

    @property
    def memory(self) -> int:
        """The bytes of one rank at least: weights, gradients and AdamW's two moments; logits and their gradients."""
        logits = self.batch * self.sequence * self.preset.vocabulary
        return 4 * (4 * self.preset.parameters + 2 * logits)

    def draw(self, share: int, step: int, micro: int) -> Any:
        """Return the tokens of a micro-batch, a tensor (batch, sequence + 1): low ones are frequent, which is learned.

        `share` tells the ranks that compute apart.
        """
        import numpy as np
        import torch

        shape = (self.batch, self.sequence + 1)
        uniform = np.random.default_rng([self.seed, share, step, micro]).random(shape)
        return torch.from_numpy((self.preset.vocabulary * uniform**3).astype(np.int64))


@dataclass(frozen=True)
class Lap:
    """What a step gave on one rank."""

    loss: Any = None  # of this rank's data before the step: a tensor without dimensions; None on a rank that has none
    exchange: Any = None  # with a parameter server


class Replica:
    """One rank's copy of the model, and its data."""

    def __init__(self, work: Workload, share: int, device: Any, injection: Injection) -> None:
        self.work, self.device = work, device
        self.module = transformer(work.preset, work.seed).to(device)
        self._share, self._injection = share, injection

    def gradients(
        self, step: int, net: Any = None, hold: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Any:
        """Add up the gradients of the step's micro-batches, their mean; return the mean loss, a tensor.

        `net` is what wraps the module, if anything does; all micro-batches but the last are carried out in `hold`.
        """
        import torch

        net = self.module if net is None else net
        work, losses = self.work, []
        self._late(SLOW_RANK, step)
        for micro in range(work.accumulate):
            with nullcontext() if micro == work.accumulate - 1 else hold():
                with span(DATA):
                    if micro == 0:
                        self._late(LATE_DATA, step)
                    tokens = work.draw(self._share, step, micro).to(self.device)
                self._late(JITTER, step, micro)
                kind = getattr(torch, work.dtype)
                with span(FORWARD):
                    self._more(step)
                    with torch.autocast(self.device.type, kind, enabled=work.dtype != "float32"):
                        loss = net(tokens)
                with span(BACKWARD):
                    (loss / work.accumulate).backward()
                losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _late(self, kind: str, step: int, micro: int = 0) -> None:
        if seconds := self._injection.seconds(kind, step, micro):
            with span(f"inject {kind}"):
                sleep(seconds)

    def _more(self, step: int) -> None:
        """Multiply matrices of the model's sizes, for the operations that a slow rank has beside its own."""
        factor = self._injection.factor(step)
        if factor == 1.0:
            return
        import torch

        work, h = self.work, self.work.preset.width
        rows = work.batch * work.sequence
        times = round((factor - 1.0) * work.flops / work.accumulate / (2 * rows * h * 4 * h))
        with span(f"inject {SLOW_COMPUTE}"), torch.no_grad():
            left = torch.ones(rows, h, device=self.device, dtype=getattr(torch, work.dtype))
            right = torch.ones(h, 4 * h, device=self.device, dtype=left.dtype)
            for _ in range(max(1, times)):
                left @ right


def optimizer(parameters: Any) -> Any:
    """Return the optimizer of every mode."""
    import torch

    return torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, weight_decay=DECAY)


def seconds(device: Any) -> float:
    """Return a time (s) at which all that was asked of the device is done."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return perf_counter()
