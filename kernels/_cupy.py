"""NVIDIA and AMD GPUs by CuPy: the C++ source of a problem, compiled at run time by NVRTC or HIPRTC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from commbench.backends._device import CupyDevice, count
from commbench.backends.base import AMD as AMD_DEVICE
from commbench.backends.base import NVIDIA as NVIDIA_DEVICE
from commbench.errors import UsageError
from commbench.kernels import _cpp, _gpu
from commbench.kernels._backend import Facts
from commbench.kernels._pattern import Problem
from commbench.kernels._traffic import AMD, NVIDIA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VENDORS = {"cuda": NVIDIA_DEVICE, "rocm": AMD_DEVICE}
_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory


class Backend(_gpu.Gpu):
    """One device by CuPy."""

    name = "cupy"

    @staticmethod
    def probe(device: str) -> str:
        return count(_VENDORS[device])[1]

    def __init__(self, device: str, ordinal: int) -> None:
        import cupy
        from cupy.cuda import runtime

        there, reason = count(_VENDORS[device])
        if not there:
            raise UsageError(reason)
        ordinal %= there
        self._cupy = cupy
        self._device = CupyDevice(ordinal)
        self._device.use_stream()  # kernels are launched on the current one
        self.stream = self._device.stream  # its address, for other libraries
        self._hip = device == "rocm"
        self._properties: dict[str, Any] = runtime.getDeviceProperties(ordinal)
        identity = self._device.identity
        peak, source = _gpu.peak(identity.name)
        native = self._hip or (identity.capability or (0, 0)) >= (8, 0)
        self.facts = Facts(
            name=identity.name,
            library=f"CuPy {cupy.__version__}, {'HIP' if self._hip else 'CUDA'} {runtime.runtimeGetVersion()}",
            memory=AMD if self._hip else NVIDIA,
            cache=_gpu.cache(identity.name, int(self._properties["l2CacheSize"])),
            free=self._device.free(),
            dtypes=frozenset({"float16", "float32", "float64"} | ({"bfloat16"} if native else set())),
            peak=peak,
            peak_source=source,
            identity=identity.bus,
            uuid=identity.uuid,
        )
        self._gate_kernel = cupy.RawModule(code=_cpp.shared(_gpu.THREADS)).get_function("gate")

    def allocate(self, nbytes: int) -> NDArray[Any]:
        return self._device.allocate(nbytes)

    def put(self, memory: NDArray[Any], values: NDArray[Any]) -> None:
        self._device.put(memory[: len(values)], values)

    def take(self, memory: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        return self._device.take(memory[start:stop])

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        import numpy as np

        threads = problem.access.threads or _gpu.THREADS
        _gpu.check(problem.access, threads)
        module = self._cupy.RawModule(code=_cpp.source(problem, threads))
        update, total = module.get_function("update"), module.get_function("total")
        extra = self._hold_down(update, threads, problem.access.resident)
        memory = [arenas[name] for name in problem.arenas]
        parts = _gpu.launches(problem, threads)
        calls: list[Callable[[], None]] = []

        def enqueue(kernel: Any, blocks: int, *arguments: Any, shared: int = 0) -> None:
            calls.append(lambda: kernel((blocks,), (threads,), arguments, shared_mem=shared))

        real = np.dtype(problem.pattern.compute).type
        constants = [real(value) for value in problem.pattern.constants.values()]
        partial = self.allocate(8 * sum(part.blocks for part in parts)) if problem.pattern.sums else None
        slot = 0
        for part in parts:
            sums = [] if partial is None else [partial[8 * slot :]]
            arguments = (*memory, np.int64(part.first), np.int64(part.count), *sums, *constants)
            enqueue(update, part.blocks, *arguments, shared=extra)
            slot += part.blocks
        if partial is not None:
            enqueue(total, 1, partial, np.int64(slot), arenas["sum"])

        one = _gpu.Pass(calls, len(calls))
        # Many launches are replayed as a graph, which takes the host less. CuPy has no graphs on AMD.
        return one if len(parts) == 1 or self._hip else _gpu.Pass([self._device.capture(one)], len(calls))

    def _hold_down(self, kernel: Any, threads: int, resident: int) -> int:
        """Return the dynamic shared memory that leaves room for `resident` blocks."""
        from cupy.cuda import driver

        if not resident:
            return 0
        facts = self._properties
        in_all = int(facts.get("sharedMemPerMultiprocessor") or facts["sharedMemPerBlock"])
        reserved = int(facts.get("reservedSharedMemPerBlock") or 0)
        most = int(facts.get("sharedMemPerBlockOptin") or facts["sharedMemPerBlock"])
        static = int(kernel.shared_size_bytes)
        extra = _gpu.shared_memory(resident, in_all, reserved + static, most - static)
        if extra > _WITHOUT_ASKING and not self._hip:
            kernel.max_dynamic_shared_size_bytes = extra
        fit = int(driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, threads, extra))
        if fit > resident:
            raise RuntimeError(
                f"{fit} blocks fit on a multiprocessor beside {extra} bytes of shared memory each, not {resident}"
            )
        return extra

    def event(self) -> Any:
        return self._device.event()

    def done(self, event: Any) -> bool:
        return self._device.done(event)

    def wait(self, event: Any) -> None:
        event.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return self._device.seconds(begin, end)

    def gate(self, seconds: float) -> None:
        import numpy as np

        self._gate_kernel((1,), (1,), (np.int64(seconds * 1e9),))

    def health(self) -> dict[str, float]:
        bus = self._device.identity.bus
        return _gpu.amd_health(bus) if self._hip else _gpu.nvidia_health(bus)
