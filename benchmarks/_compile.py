"""Two ranks that say what LLVM costs them: seconds to import it, and to compile the timed loop."""

import json
from time import perf_counter

from _launch import prepare

from commbench.backends._mpi_world import open_mpi
from commbench.measure import compiled

world = open_mpi()
backend, call, slots = prepare(world, 8)
with backend.using(call.collective, call.algorithm):
    native = backend.plan(call, slots).native()
    assert native is not None
    begin = perf_counter()
    import llvmlite.binding  # noqa: F401

    imported = perf_counter()
    compiled.durations("barrier", native, 1)
    done = perf_counter()
    again = perf_counter()
    compiled.durations("barrier", native, 1)
    plain = perf_counter() - again
times = world.largest(int((imported - begin) * 1e9), int((done - imported - plain) * 1e9))
backend.close()
if world.rank == 0:
    print(json.dumps({"import_s": times[0] / 1e9, "compile_s": times[1] / 1e9}), flush=True)
world.close()
