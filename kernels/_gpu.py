"""What the back ends of GPUs share: launches of a problem, times by events behind a gate, what a GPU is and tells."""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from commbench.errors import CommbenchError, UsageError
from commbench.kernels import _backend
from commbench.kernels._pattern import Access, Problem

THREADS = 256  # of a block: eight warps, and enough blocks a multiprocessor at 32 to 64 registers a thread
BATCH = 64  # launches that are enqueued behind one gate; a queue holds some hundreds
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
        """Return the seconds of each launch, between events. The host is through before the first one begins."""
        found: list[float] = []
        while len(found) < launches:
            found += self._batch(launch, min(BATCH, launches - len(found)))
        return found

    def _batch(self, launch: Callable[[], None], launches: int) -> list[float]:
        while self._gate <= LAST_GATE:
            self.gate(self._gate)
            opened = self.event()
            events = [self.event()]
            for _ in range(launches):
                launch()
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
        resident: how many are to fit; 0 for as many as do.
        on_multiprocessor, reserved, most: bytes that a multiprocessor has, that each block takes beside, and that a
            block has at most.

    Raises UsageError where one block cannot take as much.
    """
    if not resident:
        return 0
    nbytes = on_multiprocessor // resident // 128 * 128 - reserved  # allotted by 128 bytes
    if nbytes > most:
        least = -(-on_multiprocessor // (most + reserved))
        raise UsageError(f"a block takes at most {most} bytes of shared memory here: resident is {least} or more")
    return max(0, nbytes)


def nvidia_health(bus: str) -> dict[str, float]:
    """Return clocks (MHz), temperature (C) and power (W) as nvidia-smi tells them; empty where it does not."""
    asked = {
        "clock_mhz": "clocks.sm",
        "memory_clock_mhz": "clocks.mem",
        "temperature_c": "temperature.gpu",
        "power_w": "power.draw",
    }
    smi = shutil.which("nvidia-smi")
    if not smi:
        return {}
    command = [smi, f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader,nounits", f"--id={bus}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return read_query(list(asked), done.stdout) if done.returncode == 0 else {}


def read_query(names: list[str], text: str) -> dict[str, float]:
    """Return the numbers of the first line of nvidia-smi's CSV by `names`; what is "[N/A]" is left out."""
    found = {}
    for name, cell in zip(names, (text.splitlines() or [""])[0].split(","), strict=False):
        with suppress(ValueError):
            found[name] = float(cell)
    return found


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
