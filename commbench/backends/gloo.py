"""Gloo through torch.distributed, on host memory. Gloo chooses its algorithms and does not say which.

The calls are those of torch's process group itself, without the functions of torch.distributed around it. Where they
have one buffer (all-reduce, reduce), a cell out of place copies its input there first, inside the timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from commbench.backends._torch_store import store
from commbench.backends.base import (
    AUTO,
    DEFAULTS,
    Algorithm,
    Availability,
    Call,
    OnHost,
    Selection,
    Settings,
    own_block,
)
from commbench.backends.mpi import average
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

_UNSIGNED = {"uint32": "int32", "uint64": "int64"}  # which torch's Gloo lacks; to be moved, they go as these
_OPERATIONS = {"sum": "SUM", "avg": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
_PATIENCE = timedelta(days=1)  # the watchdog ends what hangs
_TAG = 79


class Backend(OnHost):
    """Gloo on host memory."""

    name = "gloo"
    simulated = False
    method = "barrier"
    needs_mpi = False

    @staticmethod
    def probe() -> Availability:
        """Say whether torch is there, without loading it; whether it has Gloo shows when it loads."""
        from importlib.util import find_spec

        if find_spec("torch"):
            return Availability(True)
        return Availability(False, "torch is not installed: pip install 'commbench[torch]'")

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        """Make a process group of the ranks of `world`, over a store whose port the system chooses."""
        import torch
        from torch import distributed

        lacking = "" if distributed.is_available() and distributed.is_gloo_available() else torch.__version__
        if lacking := world.first_text(lacking):
            raise UsageError(f"the gloo backend needs a torch that was built with Gloo, and torch {lacking} was not")
        self._torch: Any = torch
        self._rank, self._size = world.rank, world.size
        self.library = f"Gloo of torch {torch.__version__}"
        self.library_file = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
        with store(world) as (met, self._interface):
            self._group: Any = distributed.ProcessGroupGloo(met, world.rank, world.size, _PATIENCE)

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        """Return `auto`: torch offers no choice."""
        return [Algorithm(AUTO, AUTO)]

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        """Return why torch's Gloo cannot carry out `call`."""
        name = call.collective.name
        if name not in _CALLS:
            return f"torch's Gloo has no {call.collective.title}"
        if call.collective.reduces and call.dtype in _UNSIGNED:
            return f"torch's Gloo does not reduce {call.dtype}"
        if name == "sendrecv" and len(ranks) == 1:
            return "torch's Gloo has no message from a rank to itself"
        if call.inplace and name == "broadcast":
            return "a broadcast has one buffer on each rank: see the row out of place"
        if call.inplace and name in ("alltoall", "sendrecv"):
            return f"torch's Gloo has no {call.collective.title} in place"
        return ""

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        """Return where input and output lie in place: the smaller one in the rank's own block of the larger."""
        if not call.inplace and call.collective.name != "broadcast":
            return None
        return own_block(call, rank, n)

    def allocate(self, nbytes: int, buffer: str) -> NDArray[Any]:
        """Return page-aligned host memory, which torch's tensors share."""
        import numpy as np

        raw = np.empty(nbytes + 4096, dtype=np.uint8)
        start = -raw.ctypes.data % 4096
        return raw[start : start + nbytes]

    def using(self, collective: Any, algorithm: Algorithm) -> AbstractContextManager[None]:
        """Nothing to switch."""
        return nullcontext()

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> GlooPlan:
        """Prepare the calls on each pair of buffers."""
        runs = []
        for send, recv in slots:
            run = _CALLS[call.collective.name](self, call, send, recv)
            if call.redop == "avg" and recv.size:
                run = partial(_in_turn, run, partial(average, recv, self._size, call.dtype))
            runs.append(run)
        return GlooPlan(runs)

    def barrier(self) -> Callable[[], Any]:
        """Return the group's barrier."""
        barrier = self._group.barrier
        return lambda: barrier().wait()

    def facts(self) -> dict[str, Any]:
        """Return versions, files and settings."""
        return {
            "library": self.library,
            "library_file": self.library_file,
            "version": self._torch.__version__,
            "interface": self._interface,
            "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("GLOO_")},
        }

    def close(self) -> None:
        """Leave the group."""
        self._group.barrier().wait()  # no rank closes what another still reads from
        del self._group

    def _tensor(self, array: NDArray[Any], dtype: str) -> Any:
        """Return a tensor on the memory of `array`, whose elements are `dtype`."""
        import numpy as np

        if dtype == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array.view(_UNSIGNED.get(dtype, dtype)))

    def _blocks(self, array: NDArray[Any], call: Call) -> list[Any]:
        return list(self._tensor(array, call.dtype).split(call.count)) if array.size else []

    def _options(self, kind: str, call: Call) -> Any:
        """Return torch's options of a call, with its reduction and its root."""
        from torch import distributed

        options = getattr(distributed, f"{kind}Options")()
        if call.redop:
            options.reduceOp = getattr(distributed.ReduceOp, _OPERATIONS[call.redop])
        if call.collective.rooted:
            options.rootRank = call.root
        return options

    def _allreduce(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        tensors, options, group = [self._tensor(recv, call.dtype)], self._options("Allreduce", call), self._group
        if call.inplace:
            return lambda: group.allreduce(tensors, options).wait()
        return partial(_copied, recv, send, lambda: group.allreduce(tensors, options).wait())

    def _reduce(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        """The call leaves nobody's buffer as it was, so that ranks that keep their input give it a copy."""
        import numpy as np

        into = recv if recv.size else np.empty_like(send)
        tensors, options, group = [self._tensor(into, call.dtype)], self._options("Reduce", call), self._group
        if call.inplace and recv.size:
            return lambda: group.reduce(tensors, options).wait()
        return partial(_copied, into, send, lambda: group.reduce(tensors, options).wait())

    def _reducescatter(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        out, into = self._tensor(recv, call.dtype), self._tensor(send, call.dtype)
        options, call_it = self._options("ReduceScatter", call), self._group._reduce_scatter_base
        return lambda: call_it(out, into, options).wait()

    def _allgather(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        out, into, call_it = self._tensor(recv, call.dtype), self._tensor(send, call.dtype), self._group._allgather_base
        return lambda: call_it(out, into).wait()

    def _broadcast(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        tensors = [self._tensor(send if self._rank == call.root else recv, call.dtype)]
        options, broadcast = self._options("Broadcast", call), self._group.broadcast
        return lambda: broadcast(tensors, options).wait()

    def _alltoall(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        out, into, call_it = self._tensor(recv, call.dtype), self._tensor(send, call.dtype), self._group.alltoall_base
        return lambda: call_it(out, into, [], []).wait()

    def _gather(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        outs = [self._blocks(recv, call)] if recv.size else []
        ins, options, gather = [self._tensor(send, call.dtype)], self._options("Gather", call), self._group.gather
        return lambda: gather(outs, ins, options).wait()

    def _scatter(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        ins = [self._blocks(send, call)] if send.size else []
        outs, options, scatter = [self._tensor(recv, call.dtype)], self._options("Scatter", call), self._group.scatter
        return lambda: scatter(outs, ins, options).wait()

    def _sendrecv(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], Any]:
        outs, ins, group = [self._tensor(recv, call.dtype)], [self._tensor(send, call.dtype)], self._group
        after, before = (self._rank + 1) % self._size, (self._rank - 1) % self._size

        def run() -> None:
            sent, received = group.send(ins, after, _TAG), group.recv(outs, before, _TAG)
            sent.wait()
            received.wait()

        return run


# By the collective's name: the call on one pair of buffers, as a function without arguments.
_CALLS: dict[str, Callable[[Backend, Call, NDArray[Any], NDArray[Any]], Callable[[], Any]]] = {
    "allreduce": Backend._allreduce,
    "allgather": Backend._allgather,
    "reducescatter": Backend._reducescatter,
    "broadcast": Backend._broadcast,
    "reduce": Backend._reduce,
    "alltoall": Backend._alltoall,
    "gather": Backend._gather,
    "scatter": Backend._scatter,
    "sendrecv": Backend._sendrecv,
}


class GlooPlan:
    """The calls of a cell, prepared for each slot."""

    calls = 1

    def __init__(self, runs: Sequence[Callable[[], Any]]) -> None:
        self.runs = runs

    def native(self) -> None:
        """None: torch is called from Python."""

    def witness(self, slot: int) -> Selection:
        """Run once."""
        self.runs[slot]()
        return Selection(None, "unknown: Gloo chooses and does not say")


def _copied(into: NDArray[Any], out: NDArray[Any], run: Callable[[], Any]) -> None:
    into[:] = out
    run()


def _in_turn(*calls: Callable[[], Any]) -> None:
    for call in calls:
        call()
