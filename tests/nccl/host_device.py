"""A "device" of host memory in the place of CuPy's: what the fake library enqueues is complete when it returns.

Its clock is the host's. An event is never done once the library says that it is busy for ever.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from time import perf_counter

import numpy as np

from commbench.backends._device import Identity
from commbench.backends.base import NVIDIA
from tests.numpy_collectives import Array

STREAM = 77


class HostDevice:
    """One of FAKE_NCCL_DEVICES (default 8) devices of a host."""

    stream = STREAM
    _taken = False

    def __init__(self, index: int) -> None:
        if HostDevice._taken:
            raise RuntimeError("a process has one device, and this one takes a second")
        HostDevice._taken = True
        vendor = os.environ.get("FAKE_NCCL_VENDOR", NVIDIA)
        bus = f"0000:{index:02x}:00.0"
        self.identity = Identity(vendor, "host memory", index, bus, f"uuid-{index}", (9, 0))
        self._capturing: list[Callable[[], None]] | None = None

    def free(self) -> int:
        return int(os.environ.get("FAKE_NCCL_MEMORY", 1 << 40))

    def allocate(self, nbytes: int) -> Array:
        if nbytes > self.free():
            raise MemoryError(f"no {nbytes} bytes on the device")
        return np.zeros(nbytes, np.uint8)

    def wrap(self, address: int, nbytes: int) -> Array:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def address(self, array: Array) -> int:
        return int(array.ctypes.data) if array.size else 0

    def staging(self, array: Array) -> Array:
        return np.empty_like(array)

    def put(self, array: Array, values: Array) -> None:
        array[:] = values

    def take(self, array: Array) -> Array:
        return array.copy()

    def event(self) -> float:
        return perf_counter()

    def done(self, event: float) -> bool:
        return not _busy(self.stream)

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work itself: the fake library has no streams that could hold it back.

        FAKE_NCCL_GRAPH=lost: what was captured does nothing.
        """
        return (lambda: None) if os.environ.get("FAKE_NCCL_GRAPH") == "lost" else work


def _busy(stream: int) -> bool:
    library = ctypes.CDLL("libnccl.so.2")  # the fake, which is loaded
    return bool(library.fake_nccl_busy(ctypes.c_void_p(stream)))
