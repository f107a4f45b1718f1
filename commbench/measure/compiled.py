"""The timed loop compiled by Numba over a library's C functions: what it costs beside the collective equals C.

Imported only by ranks that use it: Numba takes 110 MB and 300 files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from commbench.backends.base import Functions, Native

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMPILED = "numba"


def available() -> bool:
    """Whether Numba is there, without importing it."""
    return find_spec("numba") is not None


def prepare(method: str, native: Native) -> None:
    """Compile the loop for calls like `native`, so that no visit pays for it."""
    durations(method, native, 0)


def durations(method: str, native: Native, iterations: int) -> NDArray[Any]:
    """Carry out `iterations` collectives, rotating over the slots; return each one's seconds on this rank."""
    import numpy as np

    loop = _loop(native.functions, native.one_buffer, method)
    send, recv = (np.array(addresses, dtype=np.uint64) for addresses in (native.send, native.recv))
    stamps = np.zeros(iterations + 1)  # none timed: the loop is compiled, and at most a barrier is called
    if loop(send, recv, native.head, native.tail, native.comm, stamps):
        raise RuntimeError("the library returned an error in the timed loop")
    return stamps[1:] if method == "barrier" else np.diff(stamps)


@lru_cache
def _loop(functions: Functions, one_buffer: bool, method: str) -> Callable[..., int]:
    """Return the loop; it fills `stamps[1:]` with durations (barrier), or `stamps` with times (loop)."""
    import numba

    collective, barrier, clock = functions.collective, functions.barrier, functions.clock
    if one_buffer:

        @numba.njit
        def arguments(send: Any, recv: Any, head: Any, tail: Any) -> Any:
            return (recv, *tail)
    else:

        @numba.njit
        def arguments(send: Any, recv: Any, head: Any, tail: Any) -> Any:
            return (send, *head, recv, *tail)

    @numba.njit(nogil=True)
    def with_barrier(send: Any, recv: Any, head: Any, tail: Any, comm: Any, stamps: Any) -> int:
        code = 0
        for i in range(1, stamps.size):
            slot = (i - 1) % send.size
            code |= barrier(comm)
            start = clock()
            code |= collective(*arguments(send[slot], recv[slot], head, tail))
            stamps[i] = clock() - start
        return code

    @numba.njit(nogil=True)
    def back_to_back(send: Any, recv: Any, head: Any, tail: Any, comm: Any, stamps: Any) -> int:
        code = barrier(comm) if stamps.size > 1 else 0  # none where the loop is only compiled
        stamps[0] = clock()
        for i in range(1, stamps.size):
            slot = (i - 1) % send.size
            code |= collective(*arguments(send[slot], recv[slot], head, tail))
            stamps[i] = clock()
        return code

    return with_barrier if method == "barrier" else back_to_back
