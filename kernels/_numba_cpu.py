"""The CPU by Numba: threads over cores, 16-bit numbers by conversion instructions, stores past the cache.

Each problem becomes the source of one function, which Numba compiles: one chunk a thread.
"""

from __future__ import annotations

import linecache
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.kernels import _backend
from commbench.kernels._backend import Facts
from commbench.kernels._numba_vectors import FAST_MATH, lanes, scalars, vectors
from commbench.kernels._pattern import GUARD, Access, Pattern, Place, Problem
from commbench.kernels._traffic import CPU, X86
from commbench.measure.dtypes import DTYPES
from commbench.measure.site import memory_available
from commbench.units import format_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAGE = 4096
_BLOCK = 4096  # elements of a loop: as many as a sum may add up in float32
_ENOUGH = 1 << 18  # elements of a check at least; there is no loop over a grid, and tails are in any number
_EXTRA = "'commbench[kernels]'"


class Backend(_backend.Backend):
    """The cores that this rank may use."""

    name = "numba_cpu"
    memory = X86 if platform.machine() in ("x86_64", "AMD64") else CPU
    factors = frozenset({"offset", "stride", "layout", "index", "tensors", "inplace", "hint", "warm", "threads"})

    @staticmethod
    def probe(device: str) -> str:
        from importlib.util import find_spec

        missing = [name for name in ("numba", "numpy") if find_spec(name) is None]
        return f"{' and '.join(missing)} is not installed: pip install {_EXTRA}" if missing else ""

    def __init__(self, device: str, ordinal: int) -> None:
        """Take this process's cores: there is one CPU, whatever its number."""
        self._numba = _numba()
        self._compiled: dict[Any, Any] = {}
        cores = (
            sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
        )
        self._cores = cores
        free = memory_available()
        self.facts = Facts(
            name=_model(),
            library=f"numba {self._numba.__version__}",
            memory=self.memory,
            cache=last_level_cache(cores),
            free=(1 << 62) if free is None else free,
            dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}),
        )
        self.share(1, len(cores))

    def share(self, ranks: int, cores: int) -> None:
        """Take this rank's part of the node's cores and of its memory."""
        self.threads = max(1, min(cores // ranks, len(self._cores), int(self._numba.config.NUMBA_NUM_THREADS)))
        self.workers = self.threads
        self.enough = max(_ENOUGH, 2 * _BLOCK * self.threads) + 77  # blocks of each thread, and a part of one
        plural = "s" * (self.threads > 1)
        identity = f"{self.threads} thread{plural} on cores {format_ranges(self._cores)}"
        self.facts = replace(self.facts, identity=identity, free=self.facts.free // ranks)

    def baseline(self, pattern: Pattern) -> Access:
        """Return the best case: stores go past the cache where nothing was read from their line before."""
        only_written = any(stream.writes and not stream.reads for stream in pattern.streams)
        return Access(hint="streaming" if only_written else "")

    def allocate(self, nbytes: int) -> NDArray[Any]:
        """Return memory whose pages each thread has touched first that will compute them: they are on its NUMA node."""
        import numpy as np

        memory = np.empty(nbytes + _PAGE, dtype=np.uint8)
        start = -memory.ctypes.data % _PAGE
        self._numba.set_num_threads(self.threads)
        _first_touch()(memory[start : start + nbytes], self.threads)
        return memory[start : start + nbytes]

    def put(self, memory: Any, values: NDArray[Any]) -> None:
        memory[: len(values)] = values

    def on_host(self, memory: Any) -> NDArray[Any]:
        there: NDArray[Any] = memory
        return there

    def take(self, memory: Any, start: int, stop: int) -> NDArray[Any]:
        copied: NDArray[Any] = memory[start:stop].copy()
        return copied

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        import numpy as np

        pattern, access = problem.pattern, problem.access
        function = self._function(problem)
        real = np.dtype(pattern.compute).type
        constants = [real(value) for value in pattern.constants.values()]
        threads = access.threads or self.threads
        views = [_view(arenas[place.arena], place, problem) for place in problem.places]
        index = [arenas["index"][GUARD : GUARD + 4 * problem.count].view(np.uint32)] if access.index else []
        total = arenas["sum"].view(np.float64) if pattern.sums else None
        launches, begin = [], 0
        for size in problem.tensors:
            launches.append((begin, begin + size))
            begin += size

        def launch() -> None:
            self._numba.set_num_threads(threads)
            for begin, end in launches:
                partial = function(begin, end, threads, *index, *views, *constants)
                if total is not None:
                    total[0] = partial

        return launch

    def _function(self, problem: Problem) -> Any:
        """Return the compiled function of a problem, the same one for any number of elements."""
        text = source(problem)
        key = (text, problem.pattern.streams)  # their types too: vectors know what they are made of
        if key not in self._compiled:
            self._compiled[key] = _compile(text, problem)
        return self._compiled[key]

    def times(self, launch: Callable[[], None], launches: int) -> list[float]:
        found = []
        for _ in range(launches):
            begin = perf_counter()
            launch()
            found.append(perf_counter() - begin)
        return found


def _numba() -> Any:
    """Return Numba, able to compile and to start threads; raise UsageError where the environment forbids it."""
    try:
        import numba

        if numba.config.DISABLE_JIT:
            raise ValueError("NUMBA_DISABLE_JIT is set")
        numba.set_num_threads(1)  # starts them
    except (ImportError, ValueError) as error:
        why = next(iter(str(error).splitlines()), "")
        raise UsageError(f"Numba cannot work here ({why}): see the environment's NUMBA_... settings") from None
    return numba


def last_level_cache(cores: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the bytes of the last-level caches that some cores have together, 32 MiB where the system does not tell.

    Each is counted once, however many cores share it (Linux's Documentation/ABI/testing/sysfs-devices-system-cpu).
    """
    found: dict[tuple[int, str], int] = {}
    for core in cores:
        mine = []
        for folder in (root / f"cpu{core}" / "cache").glob("index*"):
            try:
                level, size, shared = (
                    (folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            if match := re.fullmatch(r"(\d+)([KMG]?)", size):
                mine.append(((int(level), shared), int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))
        if mine:
            last, nbytes = max(mine)
            found[last] = nbytes
    return sum(found.values()) or 32 << 20


def _model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _view(arena: Any, place: Place, problem: Problem) -> Any:
    """Return the elements of a place as an array of their storage type, 16-bit numbers as uint16."""
    import numpy as np

    storage = (
        np.dtype(f"uint{8 * place.itemsize}") if place.itemsize == 2 else np.dtype(DTYPES[place.stream.dtype].storage)
    )
    if problem.pattern.moves:
        storage = np.dtype(f"uint{8 * place.itemsize}")
    reached = problem.total if place.indexed else problem.count  # an index reaches all elements
    return np.ndarray((reached,), storage, arena, place.offset, (place.pitch,))


@cache
def _first_touch() -> Any:
    """Return touch(memory, threads), which writes to each page, in the parts that a launch has."""
    import numba

    def touch(memory: Any, threads: Any) -> None:
        size = (len(memory) + threads - 1) // threads
        for thread in numba.prange(threads):
            for page in range(thread * size, min(len(memory), (thread + 1) * size), _PAGE):
                memory[page] = 0

    return numba.njit(touch, parallel=True)


# The source of a problem.


def source(problem: Problem) -> str:
    """Return the Python source of a problem's function: kernel(begin, end, threads, [index], streams, constants).

    Loops are over slices of a block, from 0: only there does LLVM know that no index is negative, which in Python
    counts from the end, and vectorises.
    """
    pattern, access = problem.pattern, problem.access
    names = [_array(place) for place in problem.places]
    arguments = ["begin", "end", "threads", *["index_all"] * bool(access.index), *names, *pattern.constants]
    lines = [
        f"def kernel({', '.join(arguments)}):",
        "    size = (end - begin + threads - 1) // threads",
        f"    size = (size + {_BLOCK - 1}) // {_BLOCK} * {_BLOCK}",
        *["    total = 0.0"] * bool(pattern.sums),
        "    for thread in prange(threads):",
        "        first = begin + thread * size",
        "        last = min(end, first + size)",
    ]
    streamed = streams(problem)
    if streamed:
        lines += [f"        {line}" for line in _streaming(problem)]
    elif pattern.moves and access.stride == 1 and access.layout == "soa" and not access.index:
        lines += [f"        {line}" for line in _moving(problem)]
    else:
        lines += [f"        {line}" for line in _computing(problem, "first", "last")]
    lines += ["        fence()"] * bool(streamed)
    lines += ["    return total"] * bool(pattern.sums)
    return "\n".join(lines) + "\n"


def _streaming(problem: Problem) -> list[str]:
    """Return the lines that compute a thread's elements by vectors, and one by one before and after whole ones."""
    width = lanes(streams(problem))
    addresses = ", ".join(f"np.uint64({_array(place)}.ctypes.data)" for place in problem.places)
    constants = "".join(f"{name}, " for name in problem.pattern.constants)
    index = "np.uint64(index_all.ctypes.data)" if problem.access.index else "np.uint64(0)"
    return [
        f"low = min(last, first + -(first + {problem.access.offset}) % {width})",
        f"high = low + (last - low) // {width} * {width}",
        f"vectors(low, high, {index}, ({addresses},), ({constants}))",
        "for begin_part, end_part in ((first, low), (high, last)):",
        *(f"    {line}" for line in _computing(problem, "begin_part", "end_part")),
    ]


def _moving(problem: Problem) -> list[str]:
    """Return the lines that move a thread's elements in one go."""
    sources = {place.stream.name: _array(place) for place in problem.places if place.reads}
    assigned = dict(problem.pattern.assignments)
    return [
        f"{_array(place)}[first:last] = {sources[assigned[place.stream.name]]}[first:last]"
        for place in problem.places
        if place.writes
    ]


def _computing(problem: Problem, first: str, last: str) -> list[str]:
    """Return the lines that compute elements `first` to `last` block by block; a sum is float32 within a block."""
    pattern, access = problem.pattern, problem.access
    lines = ["mine = 0.0"] * bool(pattern.sums)
    lines += [f"for block in range({first}, {last}, {_BLOCK}):", f"    end_block = min({last}, block + {_BLOCK})"]
    lines += ["    index = index_all[block:end_block]"] * bool(access.index)
    for place in problem.places:
        if not place.indexed:
            lines.append(f"    {_array(place)}_here = {_array(place)}[block:end_block]")
    lines += ["    partial = zero"] * bool(pattern.sums)
    lines += ["    for i in range(end_block - block):", *(f"        {line}" for line in _element(problem))]
    lines += ["    mine += partial"] * bool(pattern.sums)
    return lines + ["total += mine"] * bool(pattern.sums)


def _element(problem: Problem) -> list[str]:
    """Return the lines for element i of a block: load, convert, the rule, convert, store."""
    pattern = problem.pattern

    def element(place: Place) -> str:
        name = _array(place)
        return f"{name}[j]" if place.indexed else f"{name}_here[i]"

    def converted(value: str, functions: Mapping[str, str], place: Place) -> str:
        return value if pattern.moves else functions.get(place.stream.dtype, "{}").format(value)

    lines = ["j = index[i]"] * bool(problem.access.index)
    lines += [f"{one.stream.name} = {converted(element(one), _LOAD, one)}" for one in problem.places if one.reads]
    lines += [f"{left} = {right}" for left, right in pattern.assignments]
    lines += [f"partial += {pattern.sums}"] * bool(pattern.sums)
    lines += [f"{element(one)} = {converted(one.stream.name, _STORE, one)}" for one in problem.places if one.writes]
    return lines


_LOAD = {"float16": "half_to_float({})", "bfloat16": "bfloat_to_float({})"}
_STORE = {"float16": "float_to_half({})", "bfloat16": "float_to_bfloat({})"}


def _array(place: Place) -> str:
    return f"{place.stream.name}_new" if place.arena.endswith("_out") else f"{place.stream.name}_all"


def streams(problem: Problem) -> list[Place]:
    """Return where stores go past the cache: only whole lines can, from which nothing was read."""
    access = problem.access
    whole = access.hint == "streaming" and access.stride == 1 and access.layout == "soa"
    return [place for place in problem.places if whole and place.writes and not place.reads and not place.indexed]


def _compile(text: str, problem: Problem) -> Any:
    """Compile a source; what sums gets a zero of its arithmetic's type."""
    import numba
    import numpy as np

    space = {**scalars(), "np": np, "prange": numba.prange, "sqrt": np.sqrt, "zero": np.float32(0)}
    if streamed := streams(problem):
        space["vectors"] = vectors(problem, streamed)
    file = f"<commbench kernel {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(text, file, "exec"), space)
    return numba.njit(space["kernel"], parallel=True, fastmath=set(FAST_MATH), error_model="numpy")
