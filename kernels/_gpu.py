"""What the back ends of GPUs share: launches of a problem, times by events behind a gate, what a GPU is and tells."""

from __future__ import annotations

import ctypes
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache as once
from itertools import pairwise
from pathlib import Path
from typing import Any

from commbench.errors import CommbenchError, UsageError
from commbench.kernels import _backend
from commbench.kernels._pattern import Access, Problem

THREADS = 256  # of a block: eight warps, and enough blocks a multiprocessor at 32 to 64 registers a thread
# Kernels and events that are enqueued behind one gate. A stream of CUDA takes about 1,000, then the host waits for the
# first to end (forums.developer.nvidia.com/t/68937), here for the gate. No document says so: a quarter of it.
QUEUE = 256
WARM_UP = 0.01  # seconds of launches before any is timed, in which clocks that fell while nothing ran may rise again
FIRST_GATE, LAST_GATE = 1e-3, 4.0  # seconds

# GB/s and, for caches that the runtime does not name, bytes, of data sheets; the longest name that fits counts.
_SHEETS: dict[str, tuple[float, int]] = {
    "H200": (4800, 0),
    "H100 80GB HBM3": (3350, 0),
    "H100 PCIe": (2000, 0),
    "A100-SXM4-80GB": (2039, 0),
    "A100 80GB PCIe": (1935, 0),
    "A100-SXM4-40GB": (1555, 0),
    "A100-PCIE-40GB": (1555, 0),
    "L40S": (864, 0),
    "L40": (864, 0),
    "L4": (300, 0),
    "A40": (696, 0),
    "MI300X": (5300, 256 << 20),  # Infinity Cache, before the memory
    "MI250X": (1638.4, 0),  # of one die, which is one device
    "MI210": (1638.4, 0),
}


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: `count` elements from `first` on."""

    first: int
    count: int
    blocks: int


@dataclass(frozen=True)
class Pass:
    """What enqueues one pass over a problem: its calls in order, which are so many kernels together."""

    calls: Sequence[Callable[[], None]]
    kernels: int

    def __call__(self) -> None:
        for call in self.calls:
            call()


def launches(problem: Problem, threads: int) -> list[Launch]:
    """Return the launches that make one pass over a problem, in order."""
    walk = problem.access
    found, first = [], 0
    for count in problem.tensors:
        blocks = walk.blocks or max(1, -(-(count // walk.vector) // (threads * walk.items)))
        found.append(Launch(first, count, blocks))
        first += count
    return found


def check(access: Access, threads: int) -> None:
    """Raise UsageError for a walk that no GPU kernel takes."""
    if access.vector & (access.vector - 1):
        raise UsageError(f"a GPU moves 1, 2, 4, 8, ... elements a lane: vector is a power of two, not {access.vector}")
    if threads & (threads - 1) or not 64 <= threads <= 1024:
        raise UsageError(f"a block has 64 to 1024 threads, a power of two, not {threads}")
    if access.layout == "whole" and not access.inplace:
        raise UsageError("a struct that is moved whole goes back to its place: inplace is true there")


def peak(name: str) -> tuple[float | None, str]:
    """Return GB/s of the data sheet and where they are from; None for a device that is not in the list."""
    sheet = _sheet(name)
    return (_SHEETS[sheet][0], f"the vendor's data sheet of {sheet}") if sheet else (None, "")


def cache(name: str, told: int) -> int:
    """Return the bytes of the last-level cache: what the runtime tells, or the larger one of the data sheet."""
    sheet = _sheet(name)
    return max(told, _SHEETS[sheet][1] if sheet else 0)


def _sheet(name: str) -> str:
    """Return the longest entry of the list that is a word of its own in a name: a GH200 is no H200, an A4000 no A40."""
    found = (sheet for sheet in _SHEETS if re.search(rf"(?<!\w){re.escape(sheet)}(?!\w)", name))
    return max(found, key=len, default="")


class Gpu(_backend.Backend):
    """A GPU, by whatever library: subclasses give memory, events, a gate and kernels."""

    factors = frozenset({field.name for field in fields(Access)} - {"threads"} | {"whole"})  # threads are CPUs'

    @abstractmethod
    def event(self) -> Any:
        """Return an event that is recorded now."""

    @abstractmethod
    def done(self, event: Any) -> bool:
        """Whether all before the event has ended."""

    @abstractmethod
    def wait(self, event: Any) -> None:
        """Return when all before the event has ended."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two events that are done."""

    @abstractmethod
    def gate(self, seconds: float) -> None:
        """Enqueue what holds back all that is enqueued after it, for so long."""

    _gate = FIRST_GATE

    def times(self, launch: Callable[[], None], launches: int) -> list[float]:
        """Return the seconds of each launch, between events. The host is through before the first one begins.

        A pass that is more calls than a queue takes is timed in parts, each behind a gate of its own, and these are
        added up: what lies between two parts is left out.
        """
        one = launch if isinstance(launch, Pass) else Pass((launch,), 1)
        self._warm_up(one)
        if len(one.calls) > QUEUE:
            parts = [Pass(one.calls[k : k + QUEUE], QUEUE) for k in range(0, len(one.calls), QUEUE)]
            return [sum(self._batch(part, 1)[0] for part in parts) for _ in range(launches)]
        found: list[float] = []
        most = max(1, QUEUE // (one.kernels + 1))
        while len(found) < launches:
            found += self._batch(one, min(most, launches - len(found)))
        return found

    def _warm_up(self, one: Pass) -> None:
        spent = 0.0
        while spent < WARM_UP:
            begin = self.event()
            one()
            end = self.event()
            self.wait(end)
            spent += self.seconds(begin, end)

    def _batch(self, one: Pass, launches: int) -> list[float]:
        while self._gate <= LAST_GATE:
            self.gate(self._gate)
            opened = self.event()
            events = [self.event()]
            for _ in range(launches):
                one()
                events.append(self.event())
            in_time = not self.done(opened)
            self.wait(events[-1])
            if in_time:
                return [self.seconds(begin, end) for begin, end in pairwise(events)]
            self._gate *= 2  # the device has waited for the host, and these times hold that
        raise CommbenchError(
            f"the host needs more than {LAST_GATE:g} s to enqueue {launches} launches: is this machine overloaded?"
        )


def shared_memory(resident: int, on_multiprocessor: int, reserved: int, most: int) -> int:
    """Return the dynamic shared memory of a block, in bytes, with which `resident` blocks fill a multiprocessor.

    Args:
        resident: how many are to fit.
        on_multiprocessor, reserved, most: bytes that a multiprocessor has, that each block takes beside, and that a
            block has at most.

    Raises UsageError where one block cannot take as much.
    """
    nbytes = on_multiprocessor // resident // 128 * 128 - reserved  # allotted by 128 bytes
    if nbytes > most:
        least = -(-on_multiprocessor // (most + reserved))
        raise UsageError(f"a block takes at most {most} bytes of shared memory here: resident is {least} or more")
    return max(0, nbytes)


def nvidia_health(bus: str, library: str = "libnvidia-ml.so.1") -> dict[str, float]:
    """Return clocks (MHz), temperature (C) and power (W) as NVML tells them; what it does not tell is left out.

    NVML comes with the driver, and answers in microseconds: clocks have not fallen yet. nvidia-smi, which asks it too,
    takes longer than what was measured. Functions and numbers are those of nvml.h.
    """
    nvml, device = _nvml(library), ctypes.c_void_p()
    if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(device)) != 0:
        return {}
    asked: dict[str, tuple[str, list[int], float]] = {  # name: function, its arguments, and how many of its units
        "clock_mhz": ("nvmlDeviceGetClockInfo", [1], 1),  # NVML_CLOCK_SM
        "memory_clock_mhz": ("nvmlDeviceGetClockInfo", [2], 1),  # NVML_CLOCK_MEM
        "temperature_c": ("nvmlDeviceGetTemperature", [0], 1),  # NVML_TEMPERATURE_GPU
        "power_w": ("nvmlDeviceGetPowerUsage", [], 1e3),
    }
    found = {}
    for name, (function, arguments, unit) in asked.items():
        value = ctypes.c_uint()
        if getattr(nvml, function)(device, *arguments, ctypes.byref(value)) == 0:
            found[name] = value.value / unit
    return found


@once
def _nvml(library: str) -> ctypes.CDLL | None:
    """Return NVML, for as long as the process lives; None where there is none."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def amd_health(bus: str, root: Path = Path("/sys/bus/pci/devices")) -> dict[str, float]:
    """Return the same by the files of the amdgpu driver (Linux's Documentation/gpu/amdgpu/thermal.rst)."""
    files = {  # name: file, and how many of its units make ours
        "clock_mhz": ("freq1_input", 1e6),
        "memory_clock_mhz": ("freq2_input", 1e6),
        "temperature_c": ("temp1_input", 1e3),
        "power_w": ("power1_average", 1e6),
    }
    found = {}
    for folder in sorted((root / bus.lower()).glob("hwmon/hwmon*")):
        for name, (file, unit) in files.items():
            with suppress(OSError, ValueError):
                found[name] = int((folder / file).read_text()) / unit
    return found
