"""What one_gpu.py has done in processes of their own: `python -m tests.gpu.on_device TASK`; rank 0 prints JSON.

With a library behind the task, it is that one, over host memory: a fake, for the tests.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
import tempfile
from json import dumps
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from commbench.backends import nccl
from commbench.backends._device import CupyDevice, Device
from commbench.backends._nccl_bindings import Library, load
from commbench.backends.base import AUTO, Algorithm, Call
from commbench.backends.world import World

SOURCE = Path(__file__).with_name("loop.c")
LARGE, CALLS, PATIENCE = 64 << 20, 16, 20.0  # bytes and number of the calls that are aborted; seconds to drain
SIZES = (8, 1 << 10, 32 << 10, 1 << 20, 16 << 20, 64 << 20)
BATCH, SAMPLES, ROUNDS = 20, 20, 9


def library(lib: Library, device: Device) -> dict[str, Any]:
    """Return what is there."""
    name, capability = device.identity.name, device.identity.capability
    facts = {"library": lib.name, "version": lib.version, "file": lib.file, "bindings": lib.bindings}
    return facts | {"device": name, "capability": capability, "choice per call": lib.has_call_config}


def abort(lib: Library, device: Device) -> dict[str, Any]:
    """Abort a communicator while rank 0 uses it and the others stay away; a new one must work."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    send, recv = device.allocate(LARGE), device.allocate(LARGE)
    addresses, count = (device.address(send), device.address(recv)), LARGE // 4

    def communicator() -> int:
        return lib.init_rank(world.size, world.bcast(lib.unique_id() if world.rank == 0 else b""), world.rank)

    def right(comm: int) -> bool:
        """Whether ones are summed to the number of ranks."""
        ones = device.staging(send)
        ones.view(np.float32)[:] = 1
        device.put(send, ones)
        lib.call("AllReduce", *addresses, count, "float32", "sum", 0, comm, device.stream)
        drained(device, device.event())
        return bool((device.take(recv).view(np.float32) == world.size).all())

    comm = communicator()
    before = right(comm)  # connects, which a rank alone could not
    if world.rank == 0:
        for _ in range(CALLS):
            lib.call("AllReduce", *addresses, count, "float32", "sum", 0, comm, device.stream)
    event = device.event()
    busy = not device.done(event)
    world.Barrier()
    begin = perf_counter()
    lib.abort(comm)
    drained(device, event)
    seconds = perf_counter() - begin
    after = right(communicator())
    everyone = world.allreduce(before and after, MPI.LAND)
    return {"ranks": world.size, "busy": busy, "abort_s": round(seconds, 4), "right": everyone}


def drained(device: Device, event: Any) -> None:
    """Return when the event is complete; raise TimeoutError where that takes too long."""
    end = perf_counter() + PATIENCE
    while not device.done(event):
        if perf_counter() > end:
            raise TimeoutError(f"the device was not through after {PATIENCE:g} s")


class Alone:
    """The world of one rank."""

    rank = node = node_rank = 0
    size = nodes = node_size = 1

    def first_text(self, text: str) -> str:
        return text

    def gather_text(self, text: str) -> list[str]:
        return [text]

    def broadcast(self, text: str) -> str:
        return text


def overhead(lib: Library, device: Device) -> dict[str, Any]:
    """Return, round by round, the microseconds of a collective by commbench's loop and by the one in C."""
    from commbench.allreduce import ALLREDUCE

    backend = nccl.Backend()
    backend.open(cast(World, Alone()))
    backend.connect()
    device, shuffle = backend.device_in_use, Random(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        loop = ctypes.CDLL(str(compiled(Path(folder), backend.library_file))).loop
    for size in SIZES:
        send, recv = device.allocate(size), device.allocate(size)
        call = Call(ALLREDUCE, Algorithm(AUTO, AUTO), "float32", 4, "sum", size // 4, 0, False, "plain")
        with backend.using(ALLREDUCE, call.algorithm):
            plan = backend.plan(call, [(send, recv)])
            pointers = map(ctypes.c_void_p, (backend._comm, device.stream, device.address(send), device.address(recv)))
            arguments = (*pointers, ctypes.c_size_t(size // 4), BATCH, SAMPLES)

            def ours(plan: Any = plan) -> float:
                return float(np.median(plan.timed("loop", BATCH * SAMPLES, 0).seconds))

            def in_c(arguments: Any = arguments) -> float:
                seconds = (ctypes.c_double * SAMPLES)()
                if code := loop(*arguments, seconds):
                    raise RuntimeError(f"the loop in C failed with {code} (NCCL's code; CUDA's from 1000 on)")
                return median(seconds)

            sides = {"ours": ours, "c": in_c, "c_again": in_c}
            for side in sides.values():
                side()
            rounds = []
            for _ in range(ROUNDS):
                order = shuffle.sample(sorted(sides), len(sides))
                rounds.append({side: sides[side]() * 1e6 for side in order})
        found.append({"size": size, "rounds": rounds})
    backend.close()
    return {"sizes": found}


def compiled(folder: Path, libnccl: str) -> Path:
    """Compile the loop in C against a loaded libnccl and the CUDA runtime that is found."""
    includes, runtime = places("include"), cudart()
    command = ["cc", "-O2", "-shared", "-fPIC", *(f"-I{place}" for place in includes), str(SOURCE), libnccl]
    output = folder / "loop.so"
    command += [str(runtime), f"-Wl,-rpath,{runtime.parent}", "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return output


def cudart() -> Path:
    """Return a libcudart; raise FileNotFoundError where there is none."""
    found = [file for place in places("lib", "lib64") for file in sorted(place.glob("libcudart.so.*"))]
    if not found:
        raise FileNotFoundError("no libcudart: install nvidia-cuda-runtime-cu12 (or -cu13), or set CUDA_HOME")
    return found[0]


def places(*names: str) -> list[Path]:
    """Return the folders called so of NVIDIA's wheels, then those of a CUDA toolkit."""
    wheels = sorted(
        each for name in names for each in Path(sysconfig.get_paths()["purelib"], "nvidia").glob(f"*/{name}")
    )
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return wheels + [toolkit / name for name in names if (toolkit / name).is_dir()]


def stand_in(path: str) -> tuple[Library, Device]:
    from tests.nccl.host_device import HostDevice

    return load(path), HostDevice(0)


if __name__ == "__main__":
    tasks = {task.__name__: task for task in (library, abort, overhead)}
    ready = stand_in(sys.argv[2]) if sys.argv[2:] else (load(), cast(Device, CupyDevice(0)))
    answer = tasks[sys.argv[1]](*ready)
    if int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))) == 0:
        print(dumps(answer))
