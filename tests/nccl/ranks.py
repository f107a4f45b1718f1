"""One rank of a job on the fake library: `python -m tests.nccl.ranks LIBRARY TASK [cupy]`; rank 0 prints the findings.

With a third argument nccl4py is hidden, so that CuPy's module makes the calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from commbench.backends import _nccl_log
from commbench.backends._nccl_bindings import DTYPES, Failure, Library, load

Array = NDArray[Any]
WORLD = MPI.COMM_WORLD
N, RANK = WORLD.Get_size(), WORLD.Get_rank()
FUNCTIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
PEER_TO_PEER = ("AlltoAll", "Gather", "Scatter", "SendRecv")
COUNT, ROOT = 5, N - 1
REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Ready:
    """A communicator of all ranks, or of some, with calls on NumPy arrays."""

    def __init__(self, lib: Library, members: list[int] | None = None) -> None:
        self.lib, members = lib, members or list(range(N))
        one = lib.unique_id() if members[0] == RANK else b""
        one = WORLD.bcast(one, root=members[0])
        self.comm = 0
        if RANK in members:
            self.comm = lib.init_rank(len(members), one, members.index(RANK))

    def call(
        self,
        function: str,
        send: Array,
        recv: Array,
        count: int,
        dtype: str,
        redop: str | None = None,
        root: int = 0,
        row: str | None = None,
    ) -> int:
        self.lib.call(function, send.ctypes.data, recv.ctypes.data, count, dtype, redop, root, self.comm, 0, row)
        return self.lib.async_error(self.comm)

    def sum(self, count: int = COUNT, row: str | None = None) -> list[float]:
        recv = np.zeros(count, np.float32)
        self.call("AllReduce", np.full(count, RANK + 1, np.float32), recv, count, "float32", "sum", 0, row)
        return [float(x) for x in recv]

    def tried(self, function: str, row: str | None = None) -> list[Any]:
        """The refusal of one call, as code and text; nothing where there is none."""
        buffer = np.zeros(N * COUNT, np.float32)
        try:
            self.call(function, buffer, buffer.copy(), COUNT, "float32", "sum", 0, row)
        except Failure as failure:
            return [failure.code, str(failure)]
        return []


def encoded(values: Array, dtype: str) -> Array:
    """Small whole numbers as elements of `dtype`: the upper half of a float32 is a bfloat16."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def block(rank: int, index: int) -> Array:
    """Block `index` of what `rank` sends: 1 to 4, so that products and averages of few are exact in every type."""
    return 1 + (np.arange(COUNT) * (rank + 2) + 3 * index + rank) % 4


def reduced(blocks: list[Array], redop: str, dtype: str) -> Array:
    total = reduce(REDUCE[redop], blocks)
    if redop != "avg":
        return total
    return total / N if "float" in dtype else total // N


def expected(function: str, redop: str, dtype: str) -> Array | None:
    """What this rank receives, by the definition of each function; None where it receives nothing."""
    everyone = range(N)
    if function in ("Reduce", "Gather") and RANK != ROOT:
        return None
    blocks = {
        "AllReduce": lambda: [reduced([block(rank, 0) for rank in everyone], redop, dtype)],
        "Reduce": lambda: [reduced([block(rank, 0) for rank in everyone], redop, dtype)],
        "ReduceScatter": lambda: [reduced([block(rank, RANK) for rank in everyone], redop, dtype)],
        "AllGather": lambda: [block(rank, 0) for rank in everyone],
        "Gather": lambda: [block(rank, 0) for rank in everyone],
        "AlltoAll": lambda: [block(rank, RANK) for rank in everyone],
        "Broadcast": lambda: [block(ROOT, 0)],
        "Scatter": lambda: [block(ROOT, RANK)],
        "SendRecv": lambda: [block((RANK - 1) % N, 0)],
    }[function]()
    return encoded(np.concatenate(blocks), dtype)


def collectives(lib: Library) -> dict[str, Any]:
    """Every function, type and reduction against NumPy; the ones that came out otherwise."""
    ready, wrong, done = Ready(lib), [], 0
    for function in (*FUNCTIONS, *PEER_TO_PEER):
        redops = REDUCE if function in ("AllReduce", "Reduce", "ReduceScatter") else ("sum",)
        for dtype in DTYPES:
            for redop in redops:
                send = encoded(np.concatenate([block(RANK, index) for index in range(N)]), dtype)
                recv = np.zeros_like(send)
                ready.call(function, send, recv, COUNT, dtype, redop, ROOT)
                want = expected(function, redop, dtype)
                done += 1
                if want is not None and not close(recv[: want.size], want, dtype):
                    wrong.append([function, dtype, redop, recv[: want.size].tolist(), want.tolist()])
    lib.destroy(ready.comm)
    return {"version": lib.version, "config": lib.has_call_config, "done": done, "wrong": wrong}


def close(got: Array, want: Array, dtype: str) -> bool:
    """Equal, but for the last bit of an average of three."""
    if "float" not in dtype:
        return bool((got == want).all())
    if dtype == "bfloat16":  # neighbours in order: bits count up with the value
        return bool((np.abs(got.astype(int) - want.astype(int)) <= 1).all())
    return bool(np.allclose(got, want, rtol=2 * np.finfo(dtype).eps))


def in_place(lib: Library) -> dict[str, Any]:
    """All-reduce, all-gather and reduce-scatter on one buffer, as NCCL defines in place."""
    ready = Ready(lib)
    whole = np.concatenate([block(RANK, index) for index in range(N)]).astype(np.int32)
    own, size = RANK * COUNT, 4
    call = lib.call
    reduced_all, gathered, scattered = whole.copy(), whole.copy(), whole.copy()
    at = reduced_all.ctypes.data
    call("AllReduce", at, at, COUNT, "int32", "sum", 0, ready.comm, 0)
    at = gathered.ctypes.data
    call("AllGather", at + own * size, at, COUNT, "int32", None, 0, ready.comm, 0)
    at = scattered.ctypes.data
    call("ReduceScatter", at, at + own * size, COUNT, "int32", "sum", 0, ready.comm, 0)
    everyone = range(N)
    right = [
        (reduced_all[:COUNT] == sum(block(rank, 0) for rank in everyone)).all(),
        (gathered == np.concatenate([block(rank, rank) for rank in everyone])).all(),
        (scattered[own : own + COUNT] == sum(block(rank, RANK) for rank in everyone)).all(),
    ]
    return {"right": [bool(each) for each in right]}


def choices(lib: Library) -> dict[str, Any]:
    """What a call may choose, and what is refused in which words."""
    ready = Ready(lib)
    rows = ["RING_LL", "RING_LL,RING_LL128,RING_SIMPLE", "tree", "NVLS_SIMPLE", "NVLSTREE_SIMPLE", "PAT_SIMPLE"]
    rows += ["COLLNET_DIRECT_SIMPLE", "WITCHCRAFT"]
    return {
        "AllReduce": {row: ready.tried("AllReduce", row) for row in rows},
        "AllGather": {row: ready.tried("AllGather", row) for row in ("TREE_LL", "PAT_SIMPLE", "RING_LL128")},
        "AlltoAll": {"RING_LL": ready.tried("AlltoAll", "RING_LL")},
        "after": ready.sum(),
    }


def variables(lib: Library) -> dict[str, Any]:
    """NCCL_ALGO and NCCL_PROTO while a communicator is made."""
    found: dict[str, Any] = {}
    algorithms = [("ring", "simple"), ("tree", ""), ("nvls", ""), ("^nvls", "ll"), ("warp", ""), ("", "LL128")]
    for algo, proto in (*algorithms, ("pat", ""), ("allgather:pat", "")):
        with environment(NCCL_ALGO=algo, NCCL_PROTO=proto):
            try:
                ready = Ready(lib)
            except Failure as failure:
                found[f"{algo}/{proto}"] = ["init", failure.code, str(failure)]
                continue
        found[f"{algo}/{proto}"] = [ready.tried("AllReduce"), ready.tried("AllGather")]
        lib.destroy(ready.comm)
    return found


def log(lib: Library) -> dict[str, Any]:
    """Tuning lines, by what was forced, read back by the parser: [function, bytes, algorithm, protocol, channels]."""
    ready, lines, large = Ready(lib), {}, 1 << 14
    steps: dict[str, Callable[[], Any]] = {
        "small": lambda: ready.sum(),
        "large": lambda: ready.sum(large),
        "gather": lambda: ready.tried("AllGather"),
        "sends": lambda: ready.tried("SendRecv"),
    }
    if lib.has_call_config:
        steps["tree ll128"] = lambda: ready.sum(COUNT, "TREE_LL128")
        steps["any ring"] = lambda: ready.sum(large, "RING_LL,RING_LL128,RING_SIMPLE")
    for name, step in steps.items():
        path = Path(f"log.{name.replace(' ', '_')}.{RANK}")
        wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": f"{path}.%h.%p"}
        with environment(**wanted):
            lib.reset_debug()
            step()
        lib.reset_debug()
        step()  # nobody listens
        text = "".join(file.read_text() for file in Path().glob(f"{path}.*.{os.getpid()}"))
        lines[name] = [list(vars(tuned).values()) for tuned in _nccl_log.parse(text)]
        lines[name] += [["?", line] for line in [_nccl_log.unknown(text)] if line]
    return lines


def faults(lib: Library) -> dict[str, Any]:
    """Five all-reduces with a fault injected by the environment: results, state, and whether the device is busy."""
    ready = Ready(lib)
    busy = ctypes.CDLL(lib.file).fake_nccl_busy
    results, states = [], []
    for _ in range(5):
        recv = np.zeros(COUNT, np.float32)
        states.append(ready.call("AllReduce", np.full(COUNT, RANK + 1, np.float32), recv, COUNT, "float32", "sum"))
        results.append([float(x) for x in recv])
    before = busy(None)
    lib.abort(ready.comm)
    return {"results": results, "states": states, "busy": [before, busy(None)]}


def groups(lib: Library) -> dict[str, Any]:
    """Communicators of fewer ranks, one after another: the last two, turned round; each alone."""
    pair = Ready(lib, [N - 1, N - 2])
    of_pair = pair.sum() if pair.comm else []
    alone = [Ready(lib, [rank]) for rank in range(N)][RANK]
    return {"pair": of_pair, "alone": alone.sum(), "refused alone": alone.tried("AllReduce", "NVLS_SIMPLE")}


def unready(lib: Library) -> dict[str, Any]:
    """Two calls, one straight after the other, and one after a look at the communicator's state."""
    ready = Ready(lib)
    ready.lib.async_error(ready.comm)
    buffer = np.zeros(COUNT, np.float32)
    what = ("AllReduce", buffer.ctypes.data, buffer.ctypes.data, COUNT, "float32", "sum", 0, ready.comm, 0)
    lib.call(*what)
    return {"at once": ready.tried("AllReduce"), "later": (lib.async_error(ready.comm), ready.tried("AllReduce"))[1]}


def memory(lib: Library) -> dict[str, Any]:
    """Buffers of the library, registered in both ways, and what it says where it cannot."""
    ready = Ready(lib)
    pointer = lib.mem_alloc(4096)
    handle = lib.register(ready.comm, pointer, 4096)
    window = lib.window_register(ready.comm, pointer, 4096)
    lib.window_deregister(ready.comm, window)
    lib.deregister(ready.comm, handle)
    try:
        lib.window_register(ready.comm, pointer + 8, 64)
        refused = ""
    except Failure as failure:
        refused = str(failure)
    lib.mem_free(pointer)
    return {"made": bool(pointer and handle and window), "refused": refused}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


if __name__ == "__main__":
    tasks: dict[str, Callable[[Library], dict[str, Any]]] = {
        task.__name__: task
        for task in (collectives, in_place, choices, variables, log, faults, groups, unready, memory)
    }
    if sys.argv[3:]:
        sys.modules["nccl"] = None  # type: ignore[assignment]
    lib = load(sys.argv[1])
    found = WORLD.gather({"bindings": lib.bindings, **tasks[sys.argv[2]](lib)})
    if found:
        print(dumps(found))
