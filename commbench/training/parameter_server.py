"""A parameter server: rank 0 has the weights, the other ranks push gradients and pull weights, by send and receive.

A worker asks, and the server serves one worker at a time, in order of arrival:

    worker                          server
    ask          ------------->     has others to serve, perhaps: the worker waits
                 <-------------     grant: serving starts
    push         =============>     gradients
                                    update, in the synchronous way once all workers have pushed: the worker waits
                 <-------------     how long serving took
    pull         <=============     weights

So a worker tells moving bytes from waiting with nothing but durations on two clocks: what passes from asking until the
pull begins is waiting, but for the time that the server took to receive.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from commbench.training.model import transformer
from commbench.training.profiling import span
from commbench.training.workload import OPTIMIZER, Lap, Replica, Workload, optimizer

SERVER = 0
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
UPDATES = (SYNCHRONOUS, ASYNCHRONOUS)
_ASK, _GRANT, _PUSH, _SERVED, _PULL = range(1, 6)  # tags

# The spans of both sides in a trace.
WAIT, PUSH, PULL = "parameter server: wait", "parameter server: push", "parameter server: pull"
IDLE = "parameter server: idle"


class Exchange(NamedTuple):
    """Where the seconds of one exchange with the server went, on a worker."""

    queue: float  # waiting for the server, or in the synchronous way for other workers
    update: float  # waiting for the server's optimizer
    move: float  # gradients and weights on their way


def exchange(gradients: Any, weights: Any) -> Exchange:
    """Push `gradients` to the server and pull `weights`: two flat float32 tensors on the host, the model's size."""
    import torch
    from torch import distributed

    signal, served = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    asked = perf_counter_ns()
    with span(WAIT):
        distributed.send(signal, SERVER, tag=_ASK)
        distributed.recv(signal, SERVER, tag=_GRANT)
    with span(PUSH):
        distributed.send(gradients, SERVER, tag=_PUSH)
    with span(WAIT):
        distributed.recv(served, SERVER, tag=_SERVED)
    told = perf_counter_ns()
    with span(PULL):
        distributed.recv(weights, SERVER, tag=_PULL)
    pulled = perf_counter_ns()
    receive, update = served.tolist()
    return Exchange((told - asked - receive - update) / 1e9, update / 1e9, (receive + pulled - told) / 1e9)


def serve(weights: Any, gradients: Any, update: Callable[[], None], workers: int, together: int) -> None:
    """Serve as many pushes as there are `workers`, and after each `together` of them call `update`.

    It finds their mean in `gradients` and is to change `weights`: two flat float32 tensors on the host.
    """
    import torch
    from torch import distributed

    signal, came = torch.zeros(1, dtype=torch.int64), torch.empty_like(gradients)
    for _ in range(workers // together):
        served: list[tuple[int, int]] = []  # workers, and how many ns it took to receive
        for _ in range(together):
            with span(IDLE):
                worker = distributed.recv(signal, None, tag=_ASK)
            with span(PUSH):
                started = perf_counter_ns()
                distributed.send(signal, worker, tag=_GRANT)
                distributed.recv(came if served else gradients, worker, tag=_PUSH)
                took = perf_counter_ns() - started
            if served:
                gradients.add_(came)
            served.append((worker, took))
        started = perf_counter_ns()
        with span(OPTIMIZER):
            if together > 1:
                gradients.div_(together)
            update()
        updating = perf_counter_ns() - started
        for worker, took in served:
            with span(PULL):
                distributed.send(torch.tensor([took, updating]), worker, tag=_SERVED)
                distributed.send(weights, worker, tag=_PULL)


class Server:
    """Rank 0."""

    def __init__(self, work: Workload, workers: int, updates: str) -> None:
        import torch

        self._weights, self._gradients = flat(transformer(work.preset, work.seed))
        whole = torch.nn.Parameter(self._weights)  # AdamW treats each number by itself, so that one tensor will do
        whole.grad = self._gradients
        self._optimizer = optimizer([whole])
        self._workers, self._together = workers, workers if updates == SYNCHRONOUS else 1

    def step(self, number: int) -> Lap:
        """Serve as many pushes as there are workers, whosesoever they are."""
        serve(self._weights, self._gradients, self._optimizer.step, self._workers, self._together)
        return Lap()


class Worker:
    """Another rank."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._weights, self._gradients = flat(replica.module)

    def step(self, number: int) -> Lap:
        """Compute the step's gradients, push them, and pull the weights for the next one."""
        self._gradients.zero_()
        loss = self._replica.gradients(number)
        return Lap(loss, exchange(self._gradients, self._weights))


def flat(module: Any) -> tuple[Any, Any]:
    """Return the module's weights and gradients, each as one flat tensor whose memory the module uses from now on."""
    import torch

    parameters = list(module.parameters())
    weights = torch.cat([one.detach().flatten() for one in parameters])
    gradients = torch.zeros_like(weights)
    start = 0
    for one in parameters:
        part = slice(start, start + one.numel())
        one.data, one.grad = weights[part].view_as(one), gradients[part].view_as(one)
        start = part.stop
    return weights, gradients
