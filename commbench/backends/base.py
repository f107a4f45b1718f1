"""The contract of a backend: the library that carries out a collective.

A backend lives in `commbench/backends/NAME.py` as class `Backend`; a dotted name (`--backend mylab.ucx`) is imported as
it stands. A plan's `runs` and the barrier block until the operation is complete on this rank. `open`, `using`, `close`
and what a plan runs are collective: every rank makes these calls, in the same order, with the same arguments. Only
`using` with AUTO, before another algorithm was in force, may be entered by one rank alone: the loop is compiled there.
All others are local to a rank, and some are made on rank 0 alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from commbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

AUTO = "auto"  # the library chooses
MODEL = "model"  # the backend that predicts: it runs no collective
HOST = "host"  # the kind of memory of libraries on hosts
DEVICE = "device"  # a device's, of a library that has the host's too
NVIDIA, AMD = "NVIDIA", "AMD"
_OF_VENDOR = {NVIDIA: "nccl", AMD: "rccl"}
# The variables that hide devices, each from what the one before it left.
_VISIBLE = {NVIDIA: ("CUDA_VISIBLE_DEVICES",), AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
_KFD = "sys/class/kfd/kfd/topology/nodes"  # a node is a CPU, whose gpu_id is 0, or a GPU
DEVICE_BUFFERS = ("plain", "registered", "symmetric")  # of devices, by nccl-tests' numbers of -R


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run here, and why not."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Settings:
    """What the user says of a library beside what is measured."""

    library: str | None = None  # the library's file, where not the one that the binding finds
    forced: bool = True  # algorithms other than the library's own choice may be asked for
    share_devices: bool = False  # several ranks may have one device
    device_memory: bool = False  # DEVICE may be asked for


DEFAULTS = Settings()


@dataclass(frozen=True)
class Algorithm:
    """What a library offers under a canonical name; `refusal` says why it does not apply here, empty if it does."""

    name: str
    native: str
    protocol: str | None = None
    refusal: str = ""


@dataclass(frozen=True)
class Call:
    """One cell as a library sees it; sizes in elements, `count` of them a block."""

    collective: Any  # measure.collective.Collective, which stands above this floor
    algorithm: Algorithm
    dtype: str
    itemsize: int
    redop: str | None  # None where nothing is reduced
    count: int
    root: int
    inplace: bool
    buffer: str = HOST


@dataclass(frozen=True)
class Selection:
    """What ran, how that is known, and what the library objected to (empty: nothing)."""

    algorithm: str | None
    evidence: str
    protocol: str | None = None
    channels: int | None = None
    objection: str = ""


@dataclass(frozen=True, eq=False)
class Functions:
    """C functions of a library as ctypes objects: what a loop is compiled over, once for each instance."""

    collective: Any
    barrier: Any  # barrier(comm)
    clock: Any  # clock() -> double, seconds


@dataclass(frozen=True)
class Native:
    """One call as C sees it: collective(send, *head, recv, *tail), or collective(recv, *tail) with one buffer.

    `send` and `recv` are addresses, one a slot; scalars are ctypes' of the C parameter's type.
    """

    functions: Functions
    one_buffer: bool
    send: Sequence[int]
    recv: Sequence[int]
    head: tuple[Any, ...]
    tail: tuple[Any, ...]
    comm: Any


class Timed(NamedTuple):
    """What a device's own clock gave: a sample is the mean of a batch of enqueued collectives."""

    seconds: NDArray[Any]  # of a collective, for each batch
    batch: int  # collectives in a batch
    host_seconds: float  # of a collective, from the first enqueued to the last complete, on the host's clock
    loop: str  # how: `events`, `graph`
    last: int  # the slot of the last collective


MOST_SAMPLES = 20  # batches of a visit that a device's clock times


def batching(method: str, iterations: int, graph: int) -> tuple[int, int]:
    """Return how many collectives a device's sample holds, and how many samples there are: alike on all ranks.

    `graph` launches of a graph are as many samples, and each holds all `iterations`, as in nccl-tests. Without one, a
    sample is a share of the iterations, or with a barrier before each collective, one.
    """
    if graph:
        return iterations, graph
    batch = 1 if method == "barrier" else max(1, iterations // MOST_SAMPLES)
    return batch, max(1, iterations // batch)


class Plan(Protocol):
    """One call on fixed buffers, ready to be repeated.

    `runs` holds one function per slot of the rotated buffers: each carries out the collective once and blocks.
    """

    runs: Sequence[Callable[[], Any]]
    calls: int  # library calls for one collective: more than one where it goes in chunks

    def native(self) -> Native | None:
        """Return the call for a compiled loop, or None where only `runs` will do."""

    def witness(self, slot: int) -> Selection:
        """Carry the collective out once, untimed, and say which algorithm ran."""


class DevicePlan(Plan, Protocol):
    """A plan of a backend that is `on_device`."""

    def timed(self, method: str, iterations: int, graph: int) -> Timed:
        """Time collectives by the device's clock, batched as `batching` says."""


class Backend(Protocol):
    """A communication library."""

    name: str
    library: str  # name and version, for a person
    library_file: str
    simulated: bool
    method: str  # the default way of timing: barrier on hosts, loop on devices
    needs_mpi: bool  # whether the ranks of its world must speak MPI, whoever launched them; a class's own
    buffers: Sequence[str]  # the kinds of memory it communicates from, the default first
    protocols: Sequence[str]  # what --proto may name; empty where there are none
    averages: bool  # it has `avg` of its own; else it sums, then scales
    graphs: bool  # what it enqueues on a device can be captured and replayed (-G)
    choice_is_costly: bool  # an algorithm is chosen by making a communicator: cells of one are best visited together
    on_device: bool  # time is the device's, by DevicePlan.timed; else the host's, over Plan.runs or Plan.native

    @staticmethod
    def probe() -> Availability:
        """Say whether this backend can run here; never raise, change nothing."""

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        """Make ready to communicate among the ranks of `world`; raise UsageError on all ranks where that cannot be."""

    def join(self, world: World, settings: Settings = DEFAULTS) -> Backend:
        """Return this library, open, among the ranks of `world`, a group of them; they use its memory too."""

    def connect(self) -> None:
        """Make the first communicator; raise UsageError on all ranks where that cannot be."""

    def devices(self) -> list[str]:
        """Return, on rank 0, a line for each rank's device and for what is turned off; none where there are none."""

    def allowance(self) -> int | None:
        """Return the bytes of its device's memory that this rank may have, None where it is the host's."""

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        """Return what can be chosen for `collective`, `auto` first."""

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        """Return why `call` among these ranks of the launch does not exist in this library, or nothing; on rank 0."""

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        """Return the blocks at which input and output begin in one buffer, or None where they have one each."""

    def allocate(self, nbytes: int, buffer: str) -> NDArray[Any]:
        """Return memory of a kind that the library communicates from, as bytes."""

    def staging(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return host memory of the size of `array`, which may be `array` itself, to be filled and `put`."""

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Give `array` the values that its `staging` was filled with."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return host memory that holds what `array` holds, which may be `array` itself."""

    def using(self, collective: Any, algorithm: Algorithm) -> AbstractContextManager[None]:
        """Let calls of `collective` inside the context run with `algorithm`; plans are made and run there."""

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Plan:
        """Prepare `call` on each pair of send and receive arrays."""

    def barrier(self) -> Callable[[], Any]:
        """Return the function that blocks until every rank has called it."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest keeps of the library: versions, files, settings read back."""

    def recover(self, failed: bool) -> None:
        """Leave behind what a call that failed, or was only refused, has spoilt: on every rank, after all agreed."""

    def give_up(self) -> None:
        """Let go of what hangs, from another thread, as the process is about to end."""

    def close(self) -> None:
        """Free what `open` and `using` made."""


def own_block(call: Call, rank: int, n: int) -> tuple[int, int]:
    """Return where input and output begin in one buffer in place: the smaller at the rank's own block of the larger."""
    sends = call.collective.send_blocks(rank, n, call.root)
    receives = call.collective.recv_blocks(rank, n, call.root)
    if sends == receives or not sends or not receives:
        return 0, 0
    return (rank, 0) if sends < receives else (0, rank)


class OnHost:
    """What backends of host memory have in common."""

    buffers: Sequence[str] = (HOST,)
    protocols: Sequence[str] = ()
    averages = False
    graphs = False
    choice_is_costly = False
    on_device = False

    def join(self, world: World, settings: Settings = DEFAULTS) -> Backend:
        """Return another one, open among the ranks of `world`."""
        joined: Any = type(self)()
        joined.open(world, settings)
        return cast(Backend, joined)

    def connect(self) -> None:
        """Nothing is to be done: `open` did it."""

    def devices(self) -> list[str]:
        """A host has none."""
        return []

    def allowance(self) -> int | None:
        """Return None: it is the host's."""
        return None

    def staging(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return `array`: it is the host's."""
        return array

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Nothing is to be done: `values` are `array`."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return `array`: it is the host's."""
        return array

    def recover(self, failed: bool) -> None:
        """A host's library needs nothing."""

    def give_up(self) -> None:
        """A host's library needs nothing."""


def names() -> list[str]:
    """Return the backends that stand beside this file."""
    support = ("base.py", "world.py")
    files = (entry.name for entry in os.scandir(os.path.dirname(__file__)))
    return sorted(f[:-3] for f in files if f.endswith(".py") and not f.startswith("_") and f not in support)


class Reach(NamedTuple):
    """What one rank most likely reaches: whose devices, and a name for each that tells them apart on their node."""

    vendor: str  # empty where there are none
    devices: Sequence[str]


def reachable(environment: Mapping[str, str] = os.environ, root: str = "/") -> Reach:
    """Return what this process most likely reaches, by the kernel's files and the variables that hide devices.

    Nothing is loaded for it. Only the devices of a CuPy that is installed count.
    """
    if importlib.util.find_spec("cupy") is not None:
        for vendor, devices in ((NVIDIA, _nvidia(root)), (AMD, _amd(root))):
            for variable in _VISIBLE[vendor]:
                devices = _left(devices, environment.get(variable))
            if devices:
                return Reach(vendor, devices)
    return Reach("", ())


def _nvidia(root: str) -> list[str]:
    numbers = sorted(int(file[6:]) for file in _entries(f"{root}/dev") if file[:6] == "nvidia" and file[6:].isdigit())
    return [f"nvidia{number}" for number in numbers]


def _amd(root: str) -> list[str]:
    found = []
    for node in sorted(filter(str.isdigit, _entries(f"{root}/{_KFD}")), key=int):
        with suppress(OSError), open(f"{root}/{_KFD}/{node}/gpu_id", encoding="ascii") as file:
            if file.read().strip() not in ("", "0"):
                found.append(f"kfd{node}")
    return found


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _left(devices: Sequence[str], visible: str | None) -> list[str]:
    """Return the devices that a variable leaves: numbers, UUIDs of devices or their partitions, up to one unknown.

    Source: CUDA C++ programming guide, "CUDA Environment Variables": what follows an invalid entry is not visible.
    """
    if visible is None or not devices:
        return list(devices)
    left: list[str] = []
    for entry in map(str.strip, visible.split(",")):
        if entry.isdigit() and int(entry) < len(devices):
            left.append(devices[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            left.append(entry)
        else:
            break
    return left


def default(reaches: Sequence[tuple[int, Reach]]) -> tuple[str, str]:
    """Return the backend where none is named, and why, from each rank's node and what it reaches there.

    It is a vendor's library where every rank reaches a device of that vendor, and each node shows as many as it has
    ranks; else MPI.
    """
    nodes: dict[int, tuple[int, set[str]]] = {}  # ranks and devices of each
    for rank, (node, reach) in enumerate(reaches):
        if not reach.devices:
            return "mpi", f"the default, as rank {rank} reaches no device by CuPy"
        if reach.vendor != reaches[0][1].vendor:
            return "mpi", f"the default, as rank {rank} reaches {reach.vendor}'s devices and rank 0 another vendor's"
        ranks, devices = nodes.get(node, (0, set()))
        nodes[node] = ranks + 1, devices | set(reach.devices)
    for node, (ranks, devices) in nodes.items():
        if len(devices) < ranks:
            shown = f"{len(devices)} device{'s' * (len(devices) > 1)}"
            return "mpi", f"the default, as node {node} shows {shown} to its {ranks} ranks (or name a backend)"
    vendor = reaches[0][1].vendor
    return _OF_VENDOR[vendor], f"the default where every rank has an {vendor} device"


def find(name: str) -> type[Backend]:
    """Return the backend class called `name`; raise UsageError with the nearest names where there is none."""
    if "." not in name and name not in names():
        raise unknown_name("backend", name, names())
    try:
        module = importlib.import_module(name if "." in name else f"commbench.backends.{name}")
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        missing = getattr(error, "name", None) or name
        if name == missing or name.startswith(missing + "."):
            raise unknown_name("backend", name, names()) from None
        raise
    if not hasattr(module, "Backend") or module.Backend is Backend:
        raise UsageError(f"a backend is a module with a class Backend in it, and {name!r} has none")
    backend: type[Backend] = module.Backend
    return backend
