"""The CPU by Numba: threads over cores, 16-bit numbers by conversion instructions, stores past the cache.

Each problem becomes the source of one function, which Numba compiles: one chunk a thread, of it a block at a time.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from commbench.kernels import _backend
from commbench.kernels._backend import Facts
from commbench.kernels._pattern import GUARD, Access, Pattern, Place, Problem
from commbench.kernels._traffic import CPU
from commbench.measure.dtypes import DTYPES
from commbench.measure.site import memory_available
from commbench.units import format_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAGE = 4096
_BLOCK = 4096  # elements that are computed before they are streamed out: the results of a block stay in the L1 cache
_EXTRA = "'commbench[kernels]'"


class Backend(_backend.Backend):
    """The cores that this rank may use."""

    name = "numba_cpu"
    memory = CPU
    factors = frozenset({"offset", "stride", "layout", "index", "tensors", "inplace", "hint", "warm", "threads"})

    @staticmethod
    def probe(device: str) -> str:
        from importlib.util import find_spec

        missing = [name for name in ("numba", "numpy") if find_spec(name) is None]
        return f"{' and '.join(missing)} is not installed: pip install {_EXTRA}" if missing else ""

    def __init__(self, device: str, ordinal: int) -> None:
        """Take this process's cores: there is one CPU, whatever its number."""
        import numba

        self._numba = numba
        cores = (
            sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
        )
        self._cores = cores
        free = memory_available()
        self.facts = Facts(
            name=_model(),
            library=f"numba {numba.__version__}",
            memory=self.memory,
            cache=last_level_cache(),
            free=(1 << 62) if free is None else free,
            dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}),
        )
        self.share(1, len(cores))

    def share(self, ranks: int, cores: int) -> None:
        """Take this rank's part of the node's cores and of its memory."""
        self.threads = max(1, min(cores // ranks, len(self._cores), int(self._numba.config.NUMBA_NUM_THREADS)))
        self.workers = self.threads
        plural = "s" * (self.threads > 1)
        identity = f"{self.threads} thread{plural} on cores {format_ranges(self._cores)}"
        self.facts = replace(self.facts, identity=identity, free=self.facts.free // ranks)

    def baseline(self, pattern: Pattern) -> Access:
        """Return the best case: stores go past the cache where nothing was read from their line before."""
        only_written = any(stream.writes and not stream.reads for stream in pattern.streams)
        return Access(hint="streaming" if only_written else "")

    def allocate(self, nbytes: int) -> NDArray[Any]:
        import numpy as np

        memory = np.empty(nbytes + _PAGE, dtype=np.uint8)
        start = -memory.ctypes.data % _PAGE
        return memory[start : start + nbytes]

    def put(self, memory: Any, values: NDArray[Any]) -> None:
        memory[: len(values)] = values

    def take(self, memory: Any, start: int, stop: int) -> NDArray[Any]:
        copied: NDArray[Any] = memory[start:stop].copy()
        return copied

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        import numpy as np

        pattern, access = problem.pattern, problem.access
        function = _function(source(problem))
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

    def times(self, launch: Callable[[], None], launches: int) -> list[float]:
        found = []
        for _ in range(launches):
            begin = perf_counter()
            launch()
            found.append(perf_counter() - begin)
        return found


def last_level_cache() -> int:
    """Return the bytes of the largest cache of the first CPU, 32 MiB where the system does not tell."""
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if match := re.fullmatch(r"(\d+)([KM]?)", text):
            sizes.append(int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]])
    return max(sizes[1:], default=sizes[0])


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
    streamed = [place for place in problem.places if _streams(problem, place)]
    if pattern.moves and access.stride == 1 and access.layout == "soa" and not access.index:
        lines += [f"        {line}" for line in _moving(problem, streamed)]
    else:
        lines += [f"        {line}" for line in _computing(problem, streamed)]
    lines += ["        fence()"] * bool(streamed)
    lines += ["    return total"] * bool(pattern.sums)
    return "\n".join(lines) + "\n"


def _moving(problem: Problem, streamed: Sequence[Place]) -> list[str]:
    """Return the lines that move a thread's elements in one go."""
    sources = {place.stream.name: _array(place) for place in problem.places if place.reads}
    lines = []
    for place in problem.places:
        if place.writes:
            come_from = sources[dict(problem.pattern.assignments)[place.stream.name]]
            to, taken = f"{_array(place)}[first:last]", f"{come_from}[first:last]"
            lines.append(f"stream_out({to}, {taken})" if place in streamed else f"{to} = {taken}")
    return lines


def _computing(problem: Problem, streamed: Sequence[Place]) -> list[str]:
    """Return the lines that compute a thread's elements block by block; a sum is float32 within a block."""
    pattern, access = problem.pattern, problem.access
    lines = [f"{_array(place)}_block = np.empty({_BLOCK}, {_array(place)}.dtype)" for place in streamed]
    lines += ["mine = 0.0"] * bool(pattern.sums)
    lines += [f"for low in range(first, last, {_BLOCK}):", f"    high = min(last, low + {_BLOCK})"]
    lines += ["    index = index_all[low:high]"] * bool(access.index)
    for place in problem.places:
        if not place.indexed and place not in streamed:
            lines.append(f"    {_array(place)}_here = {_array(place)}[low:high]")
    lines += ["    partial = zero"] * bool(pattern.sums)
    lines += ["    for i in range(high - low):", *(f"        {line}" for line in _element(problem, streamed))]
    lines += ["    mine += partial"] * bool(pattern.sums)
    lines += [f"    stream_out({_array(one)}[low:high], {_array(one)}_block[: high - low])" for one in streamed]
    return lines + ["total += mine"] * bool(pattern.sums)


def _element(problem: Problem, streamed: Sequence[Place]) -> list[str]:
    """Return the lines for element i of a block: load, convert, the rule, convert, store."""
    pattern = problem.pattern

    def element(place: Place) -> str:
        name = _array(place)
        return f"{name}_block[i]" if place in streamed else f"{name}[j]" if place.indexed else f"{name}_here[i]"

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


def _streams(problem: Problem, place: Place) -> bool:
    """Whether stores to a place go past the cache: only whole lines can, from which nothing was read."""
    access = problem.access
    whole = access.stride == 1 and access.layout == "soa" and not place.indexed
    return access.hint == "streaming" and place.writes and not place.reads and whole


# What the source calls, compiled.


@cache
def _function(text: str) -> Any:
    """Compile a source; what sums gets a zero of its arithmetic's type."""
    import numba
    import numpy as np

    namespace = {**_helpers(), "np": np, "prange": numba.prange, "sqrt": np.sqrt, "zero": np.float32(0)}
    file = f"<commbench kernel {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(text, file, "exec"), namespace)
    # Contraction and reassociation are what a C compiler does for an FMA and a vectorised sum; NaN and infinity stay.
    return numba.njit(namespace["kernel"], parallel=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


@cache
def _helpers() -> dict[str, Any]:
    """Return the functions that the sources call."""
    import numba
    import numpy as np
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def half_to_float(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.FloatType())

        return types.float32(types.uint16), code

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def float_to_half(typing: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(builder.fptrunc(values[0], ir.HalfType()), ir.IntType(16))

        return types.uint16(types.float32), code

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def bfloat_to_float(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            wide = builder.shl(builder.zext(values[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
            return builder.bitcast(wide, ir.FloatType())

        return types.float32(types.uint16), code

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def float_to_bfloat(typing: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            i32 = ir.IntType(32)
            bits = builder.bitcast(values[0], i32)
            odd = builder.and_(builder.lshr(bits, ir.Constant(i32, 16)), ir.Constant(i32, 1))
            rounded = builder.add(bits, builder.add(odd, ir.Constant(i32, 0x7FFF)))  # to nearest, ties to even
            quiet = builder.or_(bits, ir.Constant(i32, 1 << 22))
            nan = builder.fcmp_unordered("uno", values[0], values[0])
            kept = builder.select(nan, quiet, rounded)
            return builder.trunc(builder.lshr(kept, ir.Constant(i32, 16)), ir.IntType(16))

        return types.uint16(types.float32), code

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def stream_lines(typing: Any, to: Any, come_from: Any, lines: Any) -> Any:
        """Store so many lines of 64 bytes past the cache; addresses as integers, `to` a multiple of 64."""

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            line = ir.VectorType(ir.IntType(32), 16)
            target = builder.inttoptr(values[0], line.as_pointer())
            origin = builder.inttoptr(values[1], line.as_pointer())
            flag = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            with cgutils.for_range(builder, values[2]) as loop:
                value = builder.load(builder.gep(origin, [loop.index]), align=1)
                builder.store(value, builder.gep(target, [loop.index]), align=64).set_metadata("nontemporal", flag)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.int64), code

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def fence(typing: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.fence("seq_cst")  # streaming stores are weakly ordered: what is read next must find them
            return context.get_dummy_value()

        return types.void(), code

    @numba.njit  # type: ignore[untyped-decorator, unused-ignore]
    def stream_out(to: Any, come_from: Any) -> None:
        size = to.itemsize
        head = min(len(to), (-to.ctypes.data % 64) // size)
        lines = (len(to) - head) * size // 64
        for i in range(head):
            to[i] = come_from[i]
        stream_lines(np.uint64(to.ctypes.data + head * size), np.uint64(come_from.ctypes.data + head * size), lines)
        for i in range(head + lines * 64 // size, len(to)):
            to[i] = come_from[i]

    return {
        "half_to_float": half_to_float,
        "float_to_half": float_to_half,
        "bfloat_to_float": bfloat_to_float,
        "float_to_bfloat": float_to_bfloat,
        "stream_out": stream_out,
        "fence": fence,
    }
