"""One GPU, by CuPy: memory, a stream, events and graphs, on NVIDIA and AMD alike.

The tests of the backends above put a device of host memory in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from commbench.backends.base import AMD, NVIDIA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_READY = 600  # cudaErrorNotReady, hipErrorNotReady


@dataclass(frozen=True)
class Identity:
    """Which device this is: what tells it from others on its host, and what a library asks about it."""

    vendor: str
    name: str
    index: int  # among the visible ones
    bus: str  # PCI address
    uuid: str  # one for each partition, where a device is partitioned
    capability: tuple[int, int] | None  # compute capability, NVIDIA's only


class Device(Protocol):
    """What the NCCL and RCCL backends need of a device. Seconds are by its own clock."""

    identity: Identity
    stream: int  # the address of the stream that everything is enqueued on

    def free(self) -> int:
        """Return the bytes that are free on the device."""

    def allocate(self, nbytes: int) -> NDArray[Any]:
        """Return memory of the device, as bytes."""

    def wrap(self, address: int, nbytes: int) -> NDArray[Any]:
        """Return memory that a library allocated, as bytes."""

    def address(self, array: NDArray[Any]) -> int:
        """Return where an array lies; 0 for an empty one."""

    def staging(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return host memory of the size and type of `array`."""

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy host memory into `array`, after what was enqueued before."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of `array` in host memory."""

    def event(self) -> Any:
        """Return an event, recorded on the stream now."""

    def done(self, event: Any) -> bool:
        """Whether everything before the event is complete; raise RuntimeError where the device failed."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two events that are done."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what replays the work that is enqueued by `work`, which is captured, sent to the device, not run."""


def count(vendor: str) -> tuple[int, str]:
    """Return how many devices of `vendor` CuPy sees, and why there are none. Never raises."""
    from importlib.util import find_spec

    if find_spec("cupy") is None:
        extra = "'commbench[cuda12]' (or cuda13)" if vendor == NVIDIA else "'commbench[rocm]'"
        return 0, f"CuPy, which reaches {vendor} devices, is not installed: pip install {extra}"
    try:
        from cupy.cuda import runtime

        if runtime.is_hip != (vendor == AMD):
            return 0, f"the CuPy that is installed is for {NVIDIA if vendor == AMD else AMD} devices: install the other"
        devices = int(runtime.getDeviceCount())
    except Exception as error:  # no driver, no device, a library that is missing: each has its own class
        return 0, f"CuPy finds no device ({str(error).splitlines()[0]}): see nvidia-smi, and python -m commbench.doctor"
    return devices, "" if devices else "CuPy sees no device"


class CupyDevice:
    """A device by CuPy."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self._cupy = cupy
        cupy.cuda.Device(index).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self._stream.ptr)
        facts = runtime.getDeviceProperties(index)
        hip = bool(runtime.is_hip)
        self.identity = Identity(
            AMD if hip else NVIDIA,
            facts["name"].decode(),
            index,
            cupy.cuda.Device(index).pci_bus_id,
            # A partition (MIG) has a UUID of its own; where CuPy does not tell it, the address must do.
            bytes(facts["uuid"]).hex() if facts.get("uuid") else cupy.cuda.Device(index).pci_bus_id,
            None if hip else (int(facts["major"]), int(facts["minor"])),
        )

    def use_stream(self) -> None:
        """Make this device's stream the one that CuPy enqueues on."""
        self._stream.use()

    def free(self) -> int:
        from cupy.cuda import runtime

        return int(runtime.memGetInfo()[0])

    def allocate(self, nbytes: int) -> NDArray[Any]:
        """Return memory by cudaMalloc, past CuPy's pool, whose blocks other arrays would share."""
        with self._cupy.cuda.using_allocator(self._cupy.cuda.memory._malloc):
            array: NDArray[Any] = self._cupy.zeros(nbytes, dtype="uint8")
        self._cupy.cuda.Device().synchronize()  # zeroed on another stream than ours
        return array

    def wrap(self, address: int, nbytes: int) -> NDArray[Any]:
        memory = self._cupy.cuda.UnownedMemory(address, nbytes, owner=self)
        array: NDArray[Any] = self._cupy.ndarray(nbytes, "uint8", self._cupy.cuda.MemoryPointer(memory, 0))
        return array

    def address(self, array: Any) -> int:
        return int(array.data.ptr) if array.size else 0

    def staging(self, array: Any) -> NDArray[Any]:
        import numpy as np

        return np.empty(array.shape, dtype=array.dtype)

    def put(self, array: Any, values: NDArray[Any]) -> None:
        array.set(values, stream=self._stream)
        self._stream.synchronize()

    def take(self, array: Any) -> NDArray[Any]:
        values: NDArray[Any] = array.get(stream=self._stream)
        self._stream.synchronize()
        return values

    def event(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record(self._stream)
        return event

    def done(self, event: Any) -> bool:
        from cupy.cuda import runtime

        code = runtime.eventQuery(event.ptr)  # Event.done takes an error for work that goes on
        if code not in (0, _NOT_READY):
            runtime.check_status(code)  # raises CUDARuntimeError, a RuntimeError
        return code == 0

    def seconds(self, begin: Any, end: Any) -> float:
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.begin_capture()
        try:
            work()
        finally:
            graph = self._stream.end_capture()
        graph.upload(stream=self._stream)

        def launch() -> None:
            graph.launch(stream=self._stream)

        return launch
