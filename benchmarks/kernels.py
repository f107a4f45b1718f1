"""The Numba kernels on a CPU against the same operations in C: does Python cost bandwidth?

    python benchmarks/kernels.py
    python benchmarks/kernels.py --pairs 200 --size 256M

Both sides work on the same arrays, each is checked against float64 first, and they take turns: a pair is one launch of
each, in random order. A ratio is the median over pairs of C's time / Numba's: 1 is equal, above 1 Numba is faster.
The C is kernels.c, by gcc; that its loops are vectorised is seen in their disassembly, since a scalar one is no peer.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from _launch import HERE, add_options, head, publish, say, table

from commbench.errors import UsageError
from commbench.results.stats import median, median_interval, quantile
from commbench.units import approximate_size, parse_size

BAR = 0.95  # that commbench sets itself, for the paired median
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC")


@dataclass(frozen=True)
class Contest:
    """A kernel in Numba and its peer in C, and what the peer's disassembly must have."""

    name: str
    kernel: str
    dtype: str
    function: str
    streaming: bool
    instructions: tuple[str, ...]  # each must be in a loop, packed


CONTESTS = (
    Contest("copy", "copy", "float64", "copy_plain", False, ("vmovup[sd]",)),
    Contest("copy, streaming", "copy", "float64", "copy_streaming", True, ("vmovntp[sd]",)),
    Contest("triad", "triad", "float64", "triad_plain", False, (r"vfmadd\d+p[sd]",)),
    Contest("triad, streaming", "triad", "float64", "triad_streaming", True, (r"vfmadd\d+p[sd]", "vmovntp[sd]")),
    Contest("AdamW", "weight_update", "float16", "adamw_plain", False, ("vsqrtps", "vdivps", "vcvtph2ps")),
    Contest("AdamW, streaming", "weight_update", "float16", "adamw_streaming", True, ("vsqrtps", "vmovntdq")),
)


def build(folder: str) -> Path:
    """Compile kernels.c, make sure that its loops are vectorised, and return the library."""
    library = Path(folder, "kernels.so")
    gcc = shutil.which("gcc")
    if not gcc or not shutil.which("objdump"):
        raise SystemExit("kernels: gcc and objdump (binutils) are needed for the peers in C, and are not in PATH")
    done = subprocess.run(
        [gcc, *FLAGS, "-o", str(library), str(HERE / "kernels.c"), "-lm"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"kernels: gcc failed:\n{done.stderr}")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    )
    for contest in CONTESTS:
        if complaint := scalar(disassembly(listing.stdout, contest.function), contest.instructions):
            raise SystemExit(f"kernels: {contest.function} {complaint}: it is no peer")
    return library


def scalar(body: str, wanted: Sequence[str]) -> str:
    """Return why a function is not vectorised as it should be, or nothing.

    All instructions `wanted`, packed ones (vsqrtps; vsqrtss is scalar), are to be in one loop, on vector registers.
    """
    if "memcpy" in body:
        return "became a memcpy and is no loop any more"
    patterns = [re.compile(rf"\b(?:{name})\s.*%[xyz]mm") for name in wanted]
    if any(all(pattern.search(loop) for pattern in patterns) for loop in loops(body)):
        return ""
    return f"has no loop with {' and '.join(wanted)} on vector registers"


def loops(body: str) -> list[str]:
    """Return the innermost loops of a disassembly: the lines from an address to a jump back to it."""
    found = ((re.match(r"\s*([0-9a-f]+):\s", line), line) for line in body.splitlines())
    lines = [(int(address[1], 16), line) for address, line in found if address]
    spans = []
    for at, line in lines:
        jump = re.search(r"\bj\w+\s+([0-9a-f]+)\b", line)
        if jump and int(jump[1], 16) < at:
            spans.append((int(jump[1], 16), at))
    inner = [one for one in spans if not any(one != two and one[0] <= two[0] and two[1] <= one[1] for two in spans)]
    return ["\n".join(line for at, line in lines if begin <= at <= end) for begin, end in inner]


def disassembly(listing: str, function: str) -> str:
    """Return the instructions of a function and of its parallel part, which gcc makes a function of its own."""
    parts = re.split(r"\n(?=[0-9a-f]+ <)", listing)
    return "\n".join(part for part in parts if re.match(rf"[0-9a-f]+ <{function}(\._omp_fn\.\d+)?>:", part))


def peer(
    library: ctypes.CDLL, contest: Contest, problem: Any, arenas: Mapping[str, Any], threads: int
) -> Callable[[], None]:
    """Return what launches the C function on the same arrays."""
    from commbench.kernels._pattern import GUARD

    pattern = problem.pattern
    pointers = [ctypes.c_void_p(arenas[place.arena].ctypes.data + GUARD) for place in problem.places]
    values = list(pattern.constants.values())
    rest: list[Any] = [ctypes.c_double(value) for value in values]
    if contest.kernel == "weight_update":
        rest = [ctypes.byref((ctypes.c_float * len(values))(*values))]
    function = getattr(library, contest.function)
    function.restype = None
    arguments = [ctypes.c_int64(problem.count), ctypes.c_int64(threads), *pointers, *rest]
    return lambda: function(*arguments)


def contend(contest: Contest, library: ctypes.CDLL, size: int | None, pairs: int) -> dict[str, Any]:
    """Return the seconds of both sides, pair by pair."""
    from commbench.kernels._numba_cpu import Backend
    from commbench.kernels._pattern import Access, Problem
    from commbench.kernels._verify import Check

    backend = Backend("cpu", 0)
    pattern = import_module(f"commbench.kernels.{contest.kernel}").PATTERNS[0].of(contest.dtype)
    width = sum(stream.itemsize for stream in pattern.streams)
    access = Access(hint="streaming" if contest.streaming else "")
    problem = Problem(pattern, access, (size or 4 * backend.facts.cache) // width)
    arenas = {name: backend.allocate(nbytes) for name, nbytes in problem.arenas.items()}
    sides = {"numba": backend.prepare(problem, arenas), "C": peer(library, contest, problem, arenas, backend.threads)}
    check = Check(problem)
    for side, launch in sides.items():
        for name in arenas:
            backend.put(arenas[name], check.contents(name))
        launch()
        if wrong := check.wrong(lambda name, start, stop: backend.take(arenas[name], start, stop)):
            raise SystemExit(f"kernels: {contest.name} by {side}: {wrong} elements are wrong")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    order = list(sides)
    for _ in range(pairs):
        random.shuffle(order)
        for side in order:
            begin = perf_counter()
            sides[side]()
            seconds[side].append(perf_counter() - begin)
    return {"name": contest.name, "bytes": problem.nbytes, "threads": backend.threads, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, metavar="N", help="pairs of launches (default 60)")
    parser.add_argument("--size", metavar="SIZE", help="bytes of all arrays (default four times the last-level cache)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order in pairs (default 1)")
    add_options(parser)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs is at least 1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before any OpenMP is loaded: one side's threads must not
    random.seed(options.seed)  # keep the cores from the other's
    try:
        size = None if options.size is None else max(4096, parse_size(options.size, "--size"))
    except UsageError as error:
        parser.error(str(error))
    lines, figures, cells = head(["benchmarks/kernels.py", *sys.argv[1:]]), [], []
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(build(folder)))
        for contest in CONTESTS:
            say(contest.name)
            found = contend(contest, library, size, options.pairs)
            figures.append(found)
            cells.append(row(found))
    lines.append(f"# {options.pairs} pairs, {figures[0]['threads']} threads; a launch moves {volumes(figures)}")
    header = ["", "Numba/C", "low", "high", "middle half of pairs", "Numba GB/s", "C GB/s"]
    lines += table(header, cells)
    lines.append(f"# Numba/C: median of C's time / Numba's, pair by pair; low, high: its interval. Bar: {BAR}")
    publish("kernels", lines, {"pairs": options.pairs, "contests": figures}, options)


def volumes(figures: list[dict[str, Any]]) -> str:
    sizes = [found["bytes"] for found in figures]
    return f"{approximate_size(min(sizes))} to {approximate_size(max(sizes))}"


def row(found: Mapping[str, Any]) -> list[str]:
    """Return the cells of a contest."""
    numba, c = found["seconds"]["numba"], found["seconds"]["C"]
    ratios = [theirs / ours for ours, theirs in zip(numba, c, strict=True)]
    interval = median_interval(ratios)
    low, high = (f"{value:.3f}" for value in interval) if interval else ("-", "-")
    middle = f"{quantile(ratios, 0.25):.3f} to {quantile(ratios, 0.75):.3f}"
    rates = [f"{found['bytes'] / median(side) / 1e9:.2f}" for side in (numba, c)]
    return [found["name"], f"{median(ratios):.3f}", low, high, middle, *rates]


if __name__ == "__main__":
    main()
