"""The timed loop compiled by LLVM over a library's C functions: what it costs beside the collective equals C.

LLVM comes by llvmlite, without Numba on top of it: a loop of twenty instructions needs neither Numba's 300 files nor
its second of compiling on each of 10,000 ranks. Imported only by ranks that use it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from commbench.backends.base import Functions, Native

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMPILED = "compiled"

_LLVM_TYPES = {ctypes.c_int32: "i32", ctypes.c_size_t: "i64"}
_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64

# The loop as LLVM's assembly. It fills `out` with `n` durations in seconds, rotating over `slots` pairs of addresses,
# and returns the bitwise or of the collectives' return codes (a barrier's is not looked at). For comments see
# https://llvm.org/docs/LangRef.html
_LOOP = """
define i32 @loop(ptr %send, ptr %recv, i64 %slots, i64 %n, ptr %out, {parameters}) {{
start:
  {before_all}
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %following, %body ]
  %code = phi i32 [ 0, %start ], [ %codes, %body ]
  %last = phi double [ {start}, %start ], [ %end, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %slot = urem i64 %i, %slots
  %send_place = getelementptr i64, ptr %send, i64 %slot
  %recv_place = getelementptr i64, ptr %recv, i64 %slot
  %send_address = load i64, ptr %send_place
  %recv_address = load i64, ptr %recv_place
  {before_each}
  %answer = call i32 {collective}({arguments})
  %end = call double {clock}()
  %taken = fsub double %end, {begin}
  %place = getelementptr double, ptr %out, i64 %i
  store double %taken, ptr %place
  %codes = or i32 %code, %answer
  %following = add i64 %i, 1
  br label %next
done:
  ret i32 %code
}}
"""
_BARRIER = "call i32 {barrier}({comm} %comm)"
_CLOCK = "%begin = call double {clock}()"


def available() -> bool:
    """Whether llvmlite is there, without importing it."""
    return find_spec("llvmlite") is not None


def prepare(method: str, native: Native) -> None:
    """Compile the loop for calls like `native`, so that no visit pays for it."""
    _loop_for(method, native)


def durations(method: str, native: Native, iterations: int) -> NDArray[Any]:
    """Carry out `iterations` collectives, rotating over the slots; return each one's seconds on this rank."""
    import numpy as np

    loop = _loop_for(method, native)
    send, recv = (np.array(addresses, dtype=np.uint64) for addresses in (native.send, native.recv))
    taken = np.zeros(iterations)  # written here, so that no first touch of a page is timed
    scalars = (native.comm, *native.head, *native.tail)
    if loop(send.ctypes.data, recv.ctypes.data, send.size, iterations, taken.ctypes.data, *scalars):
        raise RuntimeError("the library returned an error in the timed loop")
    return taken


def _loop_for(method: str, native: Native) -> Callable[..., int]:
    kinds = tuple(map(type, (native.comm, *native.head, *native.tail)))
    return _loop(native.functions, method, native.one_buffer, len(native.head), kinds)


@lru_cache
def _loop(
    functions: Functions, method: str, one_buffer: bool, heads: int, kinds: tuple[Any, ...]
) -> Callable[..., int]:
    """Return the compiled loop; `kinds` are the C types of the communicator, the head and the tail."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_assembly(functions, method, one_buffer, heads, kinds))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    # A ctypes call lets other threads have the interpreter meanwhile: the watchdog needs it.
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, _INT64, _INT64, _POINTER, *kinds)
    loop = prototype(engine.get_function_address("loop"))
    loop.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return loop


def _assembly(functions: Functions, method: str, one_buffer: bool, heads: int, kinds: tuple[Any, ...]) -> str:
    """Return the loop for these functions: with a barrier before each collective, or before all."""
    types = [_LLVM_TYPES[kind] for kind in kinds]
    names = ["comm", *(f"a{i}" for i in range(len(kinds) - 1))]
    scalars = [f"{kind} %{name}" for kind, name in zip(types, names, strict=True)]
    head, tail = scalars[1 : 1 + heads], scalars[1 + heads :]
    received = "i64 %recv_address"
    arguments = [received, *tail] if one_buffer else ["i64 %send_address", *head, received, *tail]
    collective, barrier, clock = _addresses(functions)
    opening = [_BARRIER.format(barrier=barrier, comm=types[0]), _CLOCK.format(clock=clock)]
    each = method == "barrier"
    return _LOOP.format(
        parameters=", ".join(scalars),
        before_all="" if each else "\n  ".join(opening),
        before_each="\n  ".join(opening) if each else "",
        start="0.0" if each else "%begin",
        begin="%begin" if each else "%last",
        arguments=", ".join(arguments),
        collective=collective,
        clock=clock,
    )


def _addresses(functions: Functions) -> Iterator[str]:
    """Yield the collective, the barrier and the clock as LLVM constants."""
    for function in (functions.collective, functions.barrier, functions.clock):
        yield f"inttoptr (i64 {ctypes.cast(function, ctypes.c_void_p).value} to ptr)"
