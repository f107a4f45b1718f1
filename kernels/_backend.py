"""What a back end is: it compiles a problem for one device, launches it, and times launches by the device's clock.

Back ends are `_numba_cpu.py`, `_cupy.py` (NVIDIA and AMD) and `_numba_cuda.py`. They know no kernel by name: all that
they need stands in the `Problem`. Memory is handed over as blocks (arenas) of bytes, whose guards they never write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.kernels._pattern import Access, Pattern, Problem
from commbench.kernels._traffic import Memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

BACKENDS = {"cpu": ("numba_cpu",), "cuda": ("cupy", "numba_cuda"), "rocm": ("cupy",)}  # by device, the default first


@dataclass(frozen=True)
class Facts:
    """What a back end's device is. None is what it does not tell."""

    name: str  # "NVIDIA H100 80GB HBM3"
    library: str  # "numba 0.68.1"
    memory: Memory  # the granules of its traffic
    cache: int  # bytes of the last-level cache; buffers are several times larger
    free: int  # bytes of memory that may be allocated
    dtypes: frozenset[str]  # element types that it can convert
    peak: float | None = None  # GB/s of the data sheet
    peak_source: str = ""  # where that is from
    identity: str = ""  # what tells it from other devices of the host: a PCI address, cores
    uuid: str = ""  # of a GPU, or of its partition, which has the address of the whole


class Backend(ABC):
    """One device. All that is enqueued runs in order; arrays of the host are NumPy's, of uint8 and one dimension."""

    name: str
    facts: Facts
    factors: frozenset[str]  # the fields of Access that it can vary, and "whole" where it moves structs as a whole

    workers = 1  # threads that may call `take` at once
    enough = 10 << 20  # elements that a row is checked on, but for the baseline: two rounds of any grid-stride loop

    @staticmethod
    @abstractmethod
    def probe(device: str) -> str:
        """Return why no device of this kind ("cpu", "cuda", "rocm") can be used here; empty where it can."""

    @abstractmethod
    def __init__(self, device: str, ordinal: int) -> None:
        """Take device number `ordinal` of this node; raise UsageError where there is none.

        Where this process sees fewer, it is that modulo their number: a launcher may have shown each rank its own.
        """

    def share(self, ranks: int, cores: int) -> None:  # noqa: B027 (a GPU is one rank's)
        """Take into account that `ranks` of this node have this device, of `cores` cores together."""

    def baseline(self, pattern: Pattern) -> Access:
        """Return the walk that is the best case on this device."""
        return pattern.baseline()

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Return memory of the device."""

    @abstractmethod
    def put(self, memory: Any, values: NDArray[Any]) -> None:
        """Copy `values` to the start of `memory`; done when it returns."""

    @abstractmethod
    def take(self, memory: Any, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of bytes `start` to `stop`, after all that was enqueued."""

    def on_host(self, memory: Any) -> NDArray[Any] | None:
        """Return memory as bytes that the host writes in place; None where it cannot."""
        return None

    @abstractmethod
    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        """Compile, and return what enqueues one launch of the problem on these arenas (named as problem.arenas).

        With `pattern.sums` the arenas hold one more, "sum": a float64 that a launch overwrites with the sum.
        """

    @abstractmethod
    def times(self, launch: Callable[[], None], launches: int) -> list[float]:
        """Return the seconds of each of so many launches, one after another, by the device's clock."""

    def health(self) -> dict[str, float]:
        """Return what the device tells of itself now: clock_mhz, memory_clock_mhz, temperature_c, power_w."""
        return {}

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Let the device go."""


def shared(devices: Sequence[Sequence[str]]) -> str:
    """Return which ranks have one GPU together, and what to do; empty where each has its own.

    `devices` are the host, the identity and the UUID of each rank's; a CPU, which ranks may share, has no UUID.
    """
    first: dict[tuple[str, ...], int] = {}
    for rank, (host, identity, uuid) in enumerate(devices):
        other = first.setdefault((host, identity, uuid), rank)
        if uuid and other != rank:
            return (
                f"each rank has a device of its own, but ranks {other} and {rank} both have {identity} of {host}: "
                "start as many ranks on a node as it has devices, each of which sees all of them, or only its own "
                "(srun --gpus-per-task=1)"
            )
    return ""


def find(device: str, name: str | None = None) -> type[Backend]:
    """Return the back end for `device`, the default one unless named; raise UsageError where it cannot run here."""
    from importlib import import_module

    from commbench.errors import unknown_name

    if device not in BACKENDS:
        raise unknown_name("device", device, BACKENDS)
    names = BACKENDS[device]
    if name is not None and name not in names:
        raise unknown_name(f"back end for {device}", name, names)
    module = import_module(f"commbench.kernels._{name or names[0]}")
    kind: type[Backend] = module.Backend
    if reason := kind.probe(device):
        raise UsageError(f"--device {device} cannot be used here: {reason}")
    return kind
