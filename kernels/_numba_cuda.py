"""NVIDIA GPUs by Numba: each problem becomes the source of one kernel in Python, and elements travel as plain bits.

Wide accesses, streaming ones and 16-bit numbers take instructions that Python has no word for: `primitives` gives them
as functions. The tests put others in their place, and so run the very source in Numba's simulator.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.kernels import _gpu
from commbench.kernels._backend import Facts
from commbench.kernels._pattern import GUARD, Pattern, Place, Problem
from commbench.kernels._traffic import NVIDIA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDEST = 16  # bytes of one access


class Backend(_gpu.Gpu):
    """One NVIDIA device by numba-cuda."""

    name = "numba_cuda"
    # Numba cannot ask for more shared memory than a block has by default, which `resident` takes.
    factors = _gpu.Gpu.factors - {"resident"}

    @staticmethod
    def probe(device: str) -> str:
        from importlib.util import find_spec

        if find_spec("numba_cuda") is None:
            return "numba-cuda is not installed: pip install 'numba-cuda[cu12]' (or cu13)"
        from numba import cuda

        try:
            found = len(cuda.gpus)
        except Exception as error:  # no driver, no device: each has its own class
            why = " ".join(str(error).split())
            return f"Numba finds no device ({why}): see nvidia-smi, and python -m commbench.doctor"
        return "" if found else "Numba sees no device"

    def __init__(self, device: str, ordinal: int) -> None:
        from numba import __version__ as numba_version
        from numba import cuda

        if not len(cuda.gpus):
            raise UsageError("Numba sees no device")
        self._cuda = cuda
        cuda.select_device(ordinal % len(cuda.gpus))
        one = cuda.get_current_device()
        self._stream = cuda.stream()
        name = one.name.decode() if isinstance(one.name, bytes) else one.name
        self._bus = f"{one.PCI_DOMAIN_ID:08X}:{one.PCI_BUS_ID:02X}:{one.PCI_DEVICE_ID:02X}.0"
        peak, source = _gpu.peak(name)
        native = tuple(one.compute_capability) >= (8, 0)
        self.facts = Facts(
            name=name,
            library=f"numba {numba_version}, numba-cuda {_numba_cuda_version()}",
            memory=NVIDIA,
            cache=_gpu.cache(name, int(one.L2_CACHE_SIZE)),
            free=int(cuda.current_context().get_memory_info().free),
            dtypes=frozenset({"float16", "float32", "float64"} | ({"bfloat16"} if native else set())),
            peak=peak,
            peak_source=source,
            identity=self._bus,
            uuid=str(one.uuid),
        )
        self._gate_kernel = cuda.jit(compiled(GATE, {"cuda": cuda})["gate"])

    def allocate(self, nbytes: int) -> Any:
        memory = self._cuda.device_array(nbytes, dtype="uint8", stream=self._stream)
        return memory

    def put(self, memory: Any, values: NDArray[Any]) -> None:
        memory[: len(values)].copy_to_device(values, stream=self._stream)
        self._stream.synchronize()

    def take(self, memory: Any, start: int, stop: int) -> NDArray[Any]:
        copied: NDArray[Any] = memory[start:stop].copy_to_host(stream=self._stream)
        self._stream.synchronize()
        return copied

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        import numpy as np

        threads = problem.access.threads or _gpu.THREADS
        _gpu.check(problem.access, threads)
        update, total = kernels(problem, threads)
        memory = views(problem, arenas)
        parts = _gpu.launches(problem, threads)
        blocks = sum(part.blocks for part in parts)
        partial = self.allocate(8 * blocks).view(np.float64) if problem.pattern.sums else None
        real = np.dtype(problem.pattern.compute).type
        constants = [real(value) for value in problem.pattern.constants.values()]
        slot = 0
        calls: list[Callable[[], None]] = []

        def enqueue(kernel: Any, arguments: list[Any]) -> None:
            calls.append(lambda: kernel(*arguments))

        for part in parts:
            sums = [] if partial is None else [partial[slot : slot + part.blocks]]
            arguments = [np.int64(part.first), np.int64(part.count), *memory, *sums, *constants]
            enqueue(update[part.blocks, threads, self._stream], arguments)
            slot += part.blocks
        if partial is not None:
            enqueue(total[1, threads, self._stream], [partial, arenas["sum"][:8].view(np.float64)])
        return _gpu.Pass(calls, len(calls))

    def event(self) -> Any:
        event = self._cuda.event()
        event.record(self._stream)
        return event

    def done(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        event.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def gate(self, seconds: float) -> None:
        import numpy as np

        self._gate_kernel[1, 1, self._stream](np.int64(seconds * 1e6))

    def health(self) -> dict[str, float]:
        return _gpu.nvidia_health(self._bus)


def _numba_cuda_version() -> str:
    from importlib.metadata import version

    return version("numba-cuda")


def kernels(problem: Problem, threads: int) -> tuple[Any, Any]:
    """Return kernels `update` and `total` of a problem, to be compiled for what they are launched with."""
    from numba import cuda

    space = primitives(problem.access.hint == "streaming")
    return build(problem, threads, space, cuda.jit(**bounds(threads)), cuda.jit(device=True, inline="always"))


def bounds(threads: int) -> dict[str, Any]:
    """Return what a kernel is compiled with: one block a multiprocessor will do, else ptxas puts off loads."""
    return {"launch_bounds": (threads, 1)}


def build(
    problem: Problem,
    threads: int,
    space: Mapping[str, Any],
    kernel: Callable[[Any], Any],
    function: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """Return the kernels of a problem: its source, given what it calls, and how a kernel and a function are made."""
    names = compiled(source(problem, threads), space)
    names["rule"] = function(names["rule"])  # `update` looks it up when it is compiled
    return kernel(names["update"]), kernel(names["total"])


def compiled(text: str, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a source defines. Tracebacks show its lines."""
    file = f"<commbench kernel {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = dict(space)
    exec(compile(text, file, "exec"), names)
    return names


def views(problem: Problem, arenas: Mapping[str, Any]) -> list[Any]:
    """Return the arrays that `update` takes, of unsigned integers: the index, then one a place, or the structs.

    `arenas` are arrays of bytes, NumPy's or a device's.
    """
    import numpy as np

    found = []
    if problem.access.index:
        found.append(arenas["index"][GUARD : GUARD + 4 * problem.count].view(np.uint32))
    if problem.access.layout == "whole":
        size = _wide(problem)
        start, struct = _structs(problem), problem.fields[1]
        found.append(arenas["structs"][start : start + struct * problem.count].view(f"uint{8 * size}"))
        return found
    for place in problem.places:
        # A view of larger elements takes whole ones; the last place may be short of a pitch, and the guard fills it up.
        length = place.pitch * (problem.total if place.indexed else problem.count)
        array = arenas[place.arena][place.offset : place.offset + length].view(f"uint{8 * place.itemsize}")
        found.append(array if place.pitch == place.itemsize else array[:: place.pitch // place.itemsize])
    return found


def _structs(problem: Problem) -> int:
    """Return where the first struct begins."""
    place = problem.places[0]
    return place.offset - problem.fields[0][place.stream.name]


# The source


GATE = """
def gate(microseconds):
    for _ in range(microseconds // 100):
        cuda.nanosleep(100_000)
"""

_TOTAL = """
def total(partial, sum_):
    lane = cuda.threadIdx.x
    mine = float64(0)
    for i in range(lane, partial.size, {threads}):
        mine += partial[i]
{over_block}
    if lane == 0:
        sum_[0] = part[0]
"""

_OVER_BLOCK = """\
    part = cuda.shared.array({threads}, {number})
    part[lane] = mine
    cuda.syncthreads()
    half = {threads} // 2
    while half > 0:
        if lane < half:
            part[lane] += part[lane + half]
        cuda.syncthreads()
        half //= 2"""


def source(problem: Problem, threads: int) -> str:
    """Return `rule`, `update` and `total` in Python, for blocks of `threads`, a power of two.

    `update` takes the first element, their number, the arrays of `views`, where the pattern sums an array of float64
    for the sum of each block, and the constants; `total` adds the sums up. A constant is no literal: compilers leave
    out what multiplies by one and stores what was there.
    """
    over_block = _OVER_BLOCK.format(threads=threads, number="float64")
    return "\n".join(
        (_rule(problem.pattern), _update(problem, threads), _TOTAL.format(threads=threads, over_block=over_block))
    )


def _rule(pattern: Pattern) -> str:
    lines = [f"{left} = {right.replace('sqrt(', 'math.sqrt(')}" for left, right in pattern.assignments]
    results = [stream.name for stream in pattern.streams if stream.writes]
    if pattern.sums:
        results = [pattern.sums]
    given = [*(stream.name for stream in pattern.streams if stream.reads), *pattern.constants]
    return _function(f"rule({', '.join(given)})", [*lines, f"return {', '.join(results)}"])


def _update(problem: Problem, threads: int) -> str:
    pattern, walk = problem.pattern, problem.access
    arrays = ["index"] if walk.index else []
    arrays += ["structs"] if walk.layout == "whole" else [_array(place) for place in problem.places]
    vector, items = walk.vector, range(walk.items)
    lines = ["lane = cuda.threadIdx.x", "block = cuda.blockIdx.x", f"vectors = count // {vector}"]
    lines += [f"begin = block * {walk.items * threads}"]
    # Doubles are slow on many GPUs: a step is summed in the arithmetic's type, and so is a block of one pass. Each has
    # at most 65,536 elements, so that small whole numbers are summed exactly.
    total = "float64" if walk.blocks else pattern.compute
    begin_sum, end_sum = ([f"step = {pattern.compute}(0)"], ["mine += step"]) if pattern.sums else ([], [])
    lines += [f"mine = {total}(0)"] if pattern.sums else []
    body = [*begin_sum]
    one = [f"i = first + vector * {vector}", *_load(problem, "", vector), *_apply(problem, "", vector)]
    if walk.items == 1:
        body += ["vector = begin + lane", "if vector < vectors:", *_indented(one)]
    else:  # a condition on each would have compilers load one after another
        together = []
        for item in items:
            together += [f"i{item} = first + (begin + {item * threads} + lane) * {vector}"]
            together += _load(problem, item, vector)
        for item in items:
            together += _apply(problem, item, vector)
        body += [f"if begin + {walk.items * threads} <= vectors:", *_indented(together)]
        one.append(f"vector += {threads}")
        body += ["else:", "    vector = begin + lane", "    while vector < vectors:", *_indented(_indented(one))]
    body += end_sum
    if walk.blocks:
        lines += ["while begin < vectors:", *_indented([*body, f"begin += cuda.gridDim.x * {walk.items * threads}"])]
    else:
        lines += body
    if vector > 1:
        alone = [f"i = first + vectors * {vector} + lane"]
        alone += [*begin_sum, *_load(problem, "", 1), *_apply(problem, "", 1), *end_sum]
        lines += ["# Elements behind the last whole vector.", f"if block == 0 and lane < count - vectors * {vector}:"]
        lines += _indented(alone)
    if pattern.sums:
        arrays.append("partial")
        lines += [line[4:] for line in _OVER_BLOCK.format(threads=threads, number=total).splitlines()]
        lines += ["if lane == 0:", "    partial[block] = part[0]"]
    return _function(f"update(first, count, {', '.join([*arrays, *pattern.constants])})", lines)


def _array(place: Place) -> str:
    return f"{place.stream.name}_{'in' if place.reads else ''}{'out' if place.writes else ''}"


def _load(problem: Problem, item: int | str, vector: int) -> list[str]:
    """Return the lines that load the bits of elements `i{item}` on."""
    lines = []
    if problem.access.index:
        lines.append(f"at{item} = load1(index, i{item})")
    if problem.access.layout == "whole":
        return [*lines, *_load_whole(problem, item)] if problem.pattern.bytes_read else lines
    for place in problem.places:
        if place.reads:
            at = f"{'at' if place.indexed else 'i'}{item}"
            for start, n in _words(vector, place.itemsize):
                bits = [f"{place.stream.name}{item}_{k}" for k in range(start, start + n)]
                lines.append(f"{', '.join(bits)} = load{n}({_array(place)}, {at}{f' + {start}' if start else ''})")
    return lines


def _apply(problem: Problem, item: int | str, vector: int) -> list[str]:
    """Return the lines that compute and store what was loaded."""
    pattern, lines = problem.pattern, []
    given = [stream for stream in pattern.streams if stream.reads]
    results = [stream for stream in pattern.streams if stream.writes]
    for k in range(vector):
        bits = {stream.name: f"{stream.name}{item}_{k}" for stream in pattern.streams}
        values = [bits[one.name] if pattern.moves else f"widen_{one.dtype}({bits[one.name]})" for one in given]
        call = f"rule({', '.join([*values, *pattern.constants])})"
        if pattern.sums:
            lines.append(f"step += {call}")
            continue
        names = [f"{stream.name}_" for stream in results]
        lines.append(f"{', '.join(names)} = {call}")
        for stream, name in zip(results, names, strict=True):
            lines.append(f"{bits[stream.name]} = {name if pattern.moves else f'narrow_{stream.dtype}({name})'}")
    if problem.access.layout == "whole":
        return [*lines, *_store_whole(problem, item)] if pattern.bytes_written else lines
    for place in problem.places:
        if place.writes:
            at = f"{'at' if place.indexed else 'i'}{item}"
            for start, n in _words(vector, place.itemsize):
                bits_ = [f"{place.stream.name}{item}_{k}" for k in range(start, start + n)]
                lines.append(f"store{n}({_array(place)}, {at}{f' + {start}' if start else ''}, {', '.join(bits_)})")
    return lines


def _words(vector: int, itemsize: int) -> list[tuple[int, int]]:
    """Return how so many elements are moved: the first one and the number of each access."""
    n = min(vector, _WIDEST // itemsize)
    return [(start, n) for start in range(0, vector, n)]


def _load_whole(problem: Problem, item: int | str) -> list[str]:
    """Return the lines that load a struct, and take its fields out of its words."""
    offsets, size = problem.fields
    wide = _wide(problem)
    lines = []
    for start, n in _struct_words(problem):
        words = [f"word{item}_{k}" for k in range(start, start + n)]
        lines.append(f"{', '.join(words)} = load{n}(structs, i{item} * {size // wide} + {start})")
        lines += [f"{word} = kept({word})" for word in words] if wide == 4 else []
    for stream in problem.pattern.streams:
        if stream.reads:
            lines.append(f"{stream.name}{item}_0 = {_field(stream.itemsize, offsets[stream.name], wide, item)}")
    return lines


def _field(itemsize: int, offset: int, wide: int, item: int | str) -> str:
    word = f"word{item}_{offset // wide}"
    if itemsize == wide:
        return word
    return f"{'high' if offset % wide else 'low'}({word})"


def _store_whole(problem: Problem, item: int | str) -> list[str]:
    """Return the lines that put the fields that were written into their words, and store all."""
    offsets, size = problem.fields
    wide = _wide(problem)
    lines = []
    for stream in problem.pattern.streams:
        if stream.writes:
            offset, bits = offsets[stream.name], f"{stream.name}{item}_0"
            word = f"word{item}_{offset // wide}"
            if stream.itemsize == wide:
                lines.append(f"{word} = {bits}")
            else:
                both = f"low({word}), {bits}" if offset % wide else f"{bits}, high({word})"
                lines.append(f"{word} = pair({both})")
    for start, n in _struct_words(problem):
        words = [f"word{item}_{k}" for k in range(start, start + n)]
        lines.append(f"store{n}(structs, i{item} * {size // wide} + {start}, {', '.join(words)})")
    return lines


def _wide(problem: Problem) -> int:
    """Return the bytes of the words that structs are cut into: of the widest type, two halves together."""
    widest = problem.pattern.widest
    return 4 if widest == 2 and problem.fields[1] % 4 == 0 else widest


def _struct_words(problem: Problem) -> list[tuple[int, int]]:
    """Return by which accesses a struct is moved, in words: the first one and the number of each."""
    size, wide = problem.fields[1], _wide(problem)
    n = gcd(size, _WIDEST) // wide
    return [(start, n) for start in range(0, size // wide, n)]


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([f"def {head}:", *_indented(lines), ""])


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


# What the source calls


@cache
def primitives(streaming: bool) -> dict[str, Any]:
    """Return the functions that the source calls, for the device.

    load1, load2, load4, load8 (array, i): so many elements from i on, as bits, by one access; store1, ... likewise.
    widen_*, narrow_*: bits to a number and back, rounded to the nearest, ties to even.
    low, high, pair: the halves of a word of 32 bits, and such a word of two halves.
    kept: the same word, of which the compiler no longer knows that it is in memory; else it stores what has changed.
    """
    import math

    from llvmlite import ir
    from numba import cuda
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic

    def pointer(context: Any, builder: Any, array_type: Any, array: Any, i: Any) -> Any:
        struct = context.make_array(array_type)(context, builder, value=array)
        if array_type.layout == "C":
            return builder.gep(struct.data, [i])
        # Numba's own way goes by an integer, behind which LLVM no longer sees an address of global memory.
        stride = cgutils.unpack_tuple(builder, struct.strides)[0]
        return builder.gep(builder.bitcast(struct.data, ir.IntType(8).as_pointer()), [builder.mul(i, stride)])

    half, word, single, double = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.DoubleType()

    def number(k: int) -> Any:
        return ir.Constant(word, k)

    # Halves are cut out of words by shifts: a load that is cast to eight of them is split in two by LLVM.

    def lower(builder: Any, value: Any) -> Any:
        return builder.trunc(value, half)

    def upper(builder: Any, value: Any) -> Any:
        return builder.trunc(builder.lshr(value, number(16)), half)

    def joined(builder: Any, low: Any, high: Any) -> Any:
        return builder.or_(builder.zext(low, word), builder.shl(builder.zext(high, word), number(16)))

    def vector(array_type: Any, n: int) -> tuple[Any, int, str, str]:
        """Return the LLVM type of an access, its bytes, its PTX type, and the registers of its parts."""
        bits = array_type.dtype.bitwidth
        nbytes = n * bits // 8
        part = max(bits // 8, min(4, nbytes))
        parts = nbytes // part
        kind = ir.VectorType(ir.IntType(8 * part), parts) if parts > 1 else ir.IntType(8 * part)
        ptx = f"{f'v{parts}.' if parts > 1 else ''}b{8 * part}"
        return kind, nbytes, ptx, {2: "h", 4: "r", 8: "l"}[part]

    def load(n: int) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def load(typingctx: Any, array: Any, i: Any) -> Any:
            element = array.dtype
            result = types.UniTuple(element, n) if n > 1 else element

            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                kind, nbytes, ptx, register = vector(array, n)
                at = builder.bitcast(pointer(context, builder, array, args[0], args[1]), kind.as_pointer())
                if streaming:
                    word = _load_streaming(ir, builder, at, kind, ptx, register)
                else:
                    word = builder.load(at)
                    word.align = nbytes
                if n == 1:
                    return word
                parts = [word]
                if isinstance(kind, ir.VectorType):
                    parts = [builder.extract_element(word, number(k)) for k in range(kind.count)]
                if element.bitwidth < parts[0].type.width:
                    parts = [half for part in parts for half in (lower(builder, part), upper(builder, part))]
                return context.make_tuple(builder, result, parts)

            return result(array, types.int64), codegen

        return load

    def store(n: int) -> Any:
        def typed(array: Any, i: Any, values: tuple[Any, ...]) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                kind, nbytes, ptx, register = vector(array, n)
                at = builder.bitcast(pointer(context, builder, array, args[0], args[1]), kind.as_pointer())
                parts = list(args[2:])
                if n > 1 and array.dtype.bitwidth == 16:
                    parts = [joined(builder, *parts[k : k + 2]) for k in range(0, n, 2)]
                word = parts[0]
                if len(parts) > 1:
                    word = ir.Constant(kind, ir.Undefined)
                    for k, part in enumerate(parts):
                        word = builder.insert_element(word, part, number(k))
                if streaming:
                    _store_streaming(ir, builder, at, word, kind, ptx, register)
                else:
                    builder.store(word, at).align = nbytes
                return context.get_dummy_value()

            return types.void(array, types.int64, *[array.dtype] * n), codegen

        # An intrinsic's parameters are counted.
        names = [f"v{k}" for k in range(n)]
        text = (
            f"def store(typingctx, array, i, {', '.join(names)}):\n    return typed(array, i, ({', '.join(names)},))\n"
        )
        return intrinsic(compiled(text, {"typed": typed})["store"])

    def one(take: Any, give: Any, emit: Callable[[Any, Any], Any]) -> Any:
        """Return a function of one value."""

        @intrinsic  # type: ignore[untyped-decorator]
        def convert(typingctx: Any, value: Any) -> Any:
            return give(take), lambda context, builder, signature, args: emit(builder, args[0])

        return convert

    def assembly(text: str, constraints: str, give: Any, take: Any) -> Callable[[Any, Any], Any]:
        function = ir.FunctionType(give, [take])
        return lambda builder, value: builder.call(ir.InlineAsm(function, text, constraints), [value])

    @intrinsic  # type: ignore[untyped-decorator]
    def pair(typingctx: Any, low: Any, high: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return joined(builder, *args)

        return types.uint32(types.uint16, types.uint16), codegen

    def from_upper(builder: Any, value: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(value, word), number(16)), single)

    to_half = assembly("cvt.rn.f16.f32 $0, $1;", "=h,f", half, single)
    to_bfloat = assembly("cvt.rn.bf16.f32 $0, $1;", "=h,f", half, single)
    from_half = assembly("cvt.f32.f16 $0, $1;", "=f,h", single, half)
    return {
        "cuda": cuda,
        "math": math,
        "float32": types.float32,
        "float64": types.float64,
        **{f"load{n}": load(n) for n in (1, 2, 4, 8)},
        **{f"store{n}": store(n) for n in (1, 2, 4, 8)},
        "widen_float16": one(types.uint16, types.float32, from_half),
        "widen_bfloat16": one(types.uint16, types.float32, from_upper),
        "widen_float32": one(types.uint32, types.float32, lambda builder, value: builder.bitcast(value, single)),
        "widen_float64": one(types.uint64, types.float64, lambda builder, value: builder.bitcast(value, double)),
        "narrow_float16": one(types.float32, types.uint16, to_half),
        "narrow_bfloat16": one(types.float32, types.uint16, to_bfloat),
        "narrow_float32": one(types.float32, types.uint32, lambda builder, value: builder.bitcast(value, word)),
        "narrow_float64": one(
            types.float64, types.uint64, lambda builder, value: builder.bitcast(value, ir.IntType(64))
        ),
        "low": one(types.uint32, types.uint16, lower),
        "high": one(types.uint32, types.uint16, upper),
        "pair": pair,
        "kept": one(types.uint32, types.uint32, assembly("mov.b32 $0, $1;", "=r,r", word, word)),
    }


def _load_streaming(ir: Any, builder: Any, at: Any, kind: Any, ptx: str, register: str) -> Any:
    """Return what `ld.cs` loads: it is likely not to be wanted again."""
    n = getattr(kind, "count", 1)
    if n == 1:
        function = ir.FunctionType(kind, [at.type])
        return builder.call(ir.InlineAsm(function, f"ld.global.cs.{ptx} $0, [$1];", f"={register},l"), [at])
    results = ir.LiteralStructType([kind.element] * n)
    places = ", ".join(f"${k}" for k in range(n))
    constraints = ",".join([f"={register}"] * n + ["l"])
    function = ir.FunctionType(results, [at.type])
    parts = builder.call(ir.InlineAsm(function, f"ld.global.cs.{ptx} {{{places}}}, [${n}];", constraints), [at])
    word = ir.Constant(kind, ir.Undefined)
    for k in range(n):
        word = builder.insert_element(word, builder.extract_value(parts, k), ir.Constant(ir.IntType(32), k))
    return word


def _store_streaming(ir: Any, builder: Any, at: Any, word: Any, kind: Any, ptx: str, register: str) -> None:
    n = getattr(kind, "count", 1)
    parts = [word]
    if n > 1:
        parts = [builder.extract_element(word, ir.Constant(ir.IntType(32), k)) for k in range(n)]
    places = ", ".join(f"${k + 1}" for k in range(n))
    places = f"{{{places}}}" if n > 1 else places
    function = ir.FunctionType(ir.VoidType(), [at.type, *(part.type for part in parts)])
    constraints = ",".join(["l"] + [register] * n + ["~{memory}"])
    builder.call(
        ir.InlineAsm(function, f"st.global.cs.{ptx} [$0], {places};", constraints, side_effect=True), [at, *parts]
    )
