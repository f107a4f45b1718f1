"""What NCCL and RCCL have in common: collectives enqueued on a device's stream, by communicators that may be forced.

From NCCL 2.31 on an algorithm is chosen for each call, on one communicator. Before, NCCL_ALGO and NCCL_PROTO are read
when a communicator is made: one forced communicator is alive at a time. What ran is told by the library's tuning log,
which a separate call is made for, never a timed one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.backends import _device, _nccl_facts, _nccl_log
from commbench.backends._nccl_bindings import INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, Failure, Library, load
from commbench.backends.base import (
    AUTO,
    DEFAULTS,
    DEVICE_BUFFERS,
    Algorithm,
    Availability,
    Call,
    Selection,
    Settings,
    Timed,
    batching,
    own_block,
)
from commbench.errors import Rejected, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
FUNCTIONS = {  # by MPI's names, which a collective has
    "Allreduce": "AllReduce",
    "Allgather": "AllGather",
    "Reduce_scatter_block": "ReduceScatter",
    "Bcast": "Broadcast",
    "Reduce": "Reduce",
    "Alltoall": "AlltoAll",
    "Gather": "Gather",
    "Scatter": "Scatter",
    "Sendrecv": "SendRecv",
}
POINT_TO_POINT = ("AlltoAll", "Gather", "Scatter", "SendRecv")
_CHOOSING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_SYM_KERNEL", "RCCL_OVERRIDE_ALGO", "RCCL_OVERRIDE_PROTO")
_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING,COLL"}  # COLL: RCCL's paths beside ring and tree
_REFUSED = (INVALID_ARGUMENT, INVALID_USAGE)  # a choice that cannot be; every other code is an error
_SPINS, _NAP = 200, 50e-6  # looks at an event before a rank naps between looks, and the nap's seconds
_NOTHING = Algorithm(AUTO, AUTO)
_UNFORCED = ("", _NOTHING)


class Xccl:
    """The backend of one vendor; a subclass says which."""

    name: str
    vendor: str
    simulated = False
    needs_mpi = False
    method = "loop"
    buffers: Sequence[str] = DEVICE_BUFFERS
    protocols: Sequence[str] = PROTOCOLS
    averages = True
    graphs = True
    on_device = True
    side_paths: ClassVar[Mapping[str, str]] = {}  # what turns off paths that no algorithm is chosen for

    @classmethod
    def probe(cls) -> Availability:
        """Say whether this vendor's devices are here; the library itself is loaded by `open`."""
        devices, reason = _device.count(cls.vendor)
        return Availability(devices > 0, reason)

    @staticmethod
    def device(index: int) -> _device.Device:
        """Return the device that this rank uses from now on."""
        return _device.CupyDevice(index)

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        """Take a device, load the library, and hold the ranks' devices and libraries against one another."""
        if settings.forced:
            for name, value in self.side_paths.items():
                os.environ.setdefault(name, value)
        self._lib: Library | None = None
        trouble, mine = "", ""
        try:
            devices, reason = self.count()
            if not devices:
                raise UsageError(reason)
            if chosen := chosen_already(os.environ):
                raise UsageError(
                    f"the sweep chooses the algorithm, but {chosen} does already: unset it, and name one by --algo"
                )
            if os.environ.get("NCCL_COMM_BLOCKING", "1") == "0":
                raise UsageError("calls that return before they enqueued cannot be timed: unset NCCL_COMM_BLOCKING")
            self._device = self.device(world.node_rank % devices)
            self._lib = lib = load(settings.library)
            if lib.vendor != self.vendor:
                raise UsageError(f"it is for {self.vendor} devices, and {lib.file} is {lib.name}: name another file")
            about = {"library": lib.name, "bindings": lib.bindings, "per_call": lib.has_call_config}
            about |= {"host": os.uname().nodename, "node": world.node, **asdict(self._device.identity)}
            mine = json.dumps(about)
        except (UsageError, RuntimeError) as error:
            trouble = f"backend {self.name} cannot run: {error}"
        if trouble := world.first_text(trouble):
            raise UsageError(trouble)
        seats = world.gather_text(mine)
        self._seats = [json.loads(seat) for seat in seats] if seats else []
        sharing = max(map(len, _owners(self._seats).values()), default=1)
        fault, self._sharing = world.broadcast([faults(self._seats, settings) if seats else "", sharing])
        if fault:
            raise UsageError(fault)
        assert self._lib is not None
        self._forced = settings.forced
        self.library = self._lib.name
        self.library_file = self._lib.file
        # Of the process, for all groups: a library's memory by its kind, as (address, bytes), and the barrier's element
        self._kinds: dict[str, list[tuple[int, int]]] = {kind: [] for kind in DEVICE_BUFFERS}
        self._scratch = self._device.allocate(8)
        self._owns = True
        self._among(world)

    def join(self, world: World, settings: Settings = DEFAULTS) -> Xccl:
        """Return the backend of a group: a communicator of its own, on this rank's device and memory."""
        joined = copy(self)
        joined._owns = False
        joined._among(world)
        return joined

    def _among(self, world: World) -> None:
        """Be the backend of these ranks, who have no communicator yet."""
        self._world = world
        self._comm, self._made_for = 0, _UNFORCED
        self.generation = 0  # of communicators: a plan of an earlier one is void
        self._lost = self._given_up = False
        self._selected = _NOTHING
        self._function = ""
        self._registered: dict[str, list[Callable[[], None]]] = {}  # by kind of memory: how each is let go
        self._seen: dict[Call, Selection] = {}
        self._meet: Callable[[], None] = self._no_communicator

    @classmethod
    def count(cls) -> tuple[int, str]:
        """Return how many devices this rank sees, and why there are none."""
        return _device.count(cls.vendor)

    def connect(self) -> None:
        """Make the first communicator."""
        trouble = ""
        try:
            self._communicate(_NOTHING)
        except (Failure, RuntimeError) as error:
            trouble = f"{self.library} makes no communicator: {error}"
        if trouble := self._world.first_text(trouble):
            raise UsageError(trouble)

    def devices(self) -> list[str]:
        """Return, on rank 0, a line for each rank, in words of nccl-tests, and one for what is turned off."""
        lines = [
            f"Rank {rank:3d} on {seat['host']:>12} device {seat['index']:2d} [{seat['bus']}] {seat['name']}"
            for rank, seat in enumerate(self._seats)
        ]
        if self._forced and self.side_paths:
            off = ", ".join(f"{name}={os.environ.get(name, '')}" for name in self.side_paths)
            lines.append(f"paths beside the algorithms are off, for auto too: {off} (--algo auto alone leaves them on)")
        return lines

    def allowance(self) -> int | None:
        """Return this rank's share of what is free on its device."""
        return self._device.free() // int(self._sharing)

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        """Return every algorithm's name: which of them do not apply to a call, `refusal` says."""
        if FUNCTIONS[collective.mpi] in POINT_TO_POINT:
            return [_NOTHING]
        return [_NOTHING, *(Algorithm(name, name) for name in ALGORITHMS)]

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        """Return why the library cannot carry out `call`, as far as is known before the attempt."""
        function = FUNCTIONS[call.collective.mpi]
        if call.inplace and function in ("AlltoAll", "SendRecv"):
            return f"{self.library} has no {call.collective.title} in place"
        if lacking := self._library.lacks(call.buffer):
            return lacking
        nodes = Counter(self._seats[rank]["node"] for rank in ranks)
        return _nccl_facts.refusal(
            self.vendor,
            self._library.version,
            function,
            call.algorithm.name,
            call.algorithm.protocol,
            call.dtype,
            call.redop,
            len(ranks),
            len(nodes),
            max(nodes.values()),
            None,  # whether there is an NVSwitch, the library knows: it refuses what needs one
            self._device.identity.capability,
        )

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        """Return where the library has input and output in place: the smaller at the rank's own block of the larger."""
        if not call.inplace:
            return None
        return own_block(call, rank, n)

    def allocate(self, nbytes: int, buffer: str) -> NDArray[Any]:
        """Return memory of the device; of the library's own allocator where it is to be registered."""
        if buffer == "plain" or not nbytes:
            return self._device.allocate(nbytes)
        address = self._library.mem_alloc(nbytes)
        self._kinds[buffer].append((address, nbytes))
        return self._device.wrap(address, nbytes)

    def staging(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return host memory for `array`."""
        return self._device.staging(array)

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy to the device."""
        self._device.put(array, values)

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Copy from the device."""
        return self._device.take(array)

    @contextmanager
    def using(self, collective: Any, algorithm: Algorithm) -> Iterator[None]:
        """Let calls inside run with `algorithm`: a row for each call, or a communicator made for it."""
        self._function, self._selected = FUNCTIONS[collective.mpi], algorithm
        try:
            self._communicate(_NOTHING if self._library.has_call_config else algorithm)
            yield
        except Failure as error:
            if error.code in _REFUSED and algorithm.name != AUTO:
                raise Rejected(str(error)) from None
            raise
        finally:
            self._selected = _NOTHING

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> XcclPlan:
        """Prepare `call` on each pair of buffers, registered with the communicator in use."""
        self._register(call.buffer)
        row, algorithm = None, self._selected
        if self._library.has_call_config and algorithm.name != AUTO:
            row = _nccl_facts.row(algorithm.name, algorithm.protocol)
        what = (call.count, call.dtype, call.redop, call.root, self._comm, self._device.stream, row)
        addresses = [(self._device.address(send), self._device.address(recv)) for send, recv in slots]
        # Where a rank has one buffer only, the library ignores the other address, but not a null.
        enqueues = [self._library.prepare(self._function, s or r, r or s, *what) for s, r in addresses]
        return XcclPlan(self, call, enqueues)

    def barrier(self) -> Callable[[], Any]:
        """Return a small all-reduce that is waited for."""

        def barrier() -> None:
            self.enqueue_barrier()
            self.wait()

        return barrier

    def facts(self) -> dict[str, Any]:
        """Return the library's version, file and binding, the ranks' devices, and what was turned off."""
        return {
            "library": self.library,
            "library_file": self.library_file,
            "bindings": self._library.bindings,
            "choice": "per call" if self._library.has_call_config else "per communicator",
            "devices": self._seats,
            "side_paths": {name: os.environ.get(name, "") for name in self.side_paths},
            "configuration_files": {str(path): lines for path, lines in configuration().items()},
        }

    def recover(self, failed: bool) -> None:
        """Abort the communicator where it failed, or was made for what was refused: the next cell has a new one."""
        if failed or not self._library.has_call_config:
            self._forget()
        self._lost = False

    def give_up(self) -> None:
        """Abort the communicator, so that what hangs on the device ends; the main thread never touches it again."""
        self._given_up = True
        if self._comm:
            self._library.abort(self._comm)

    def close(self) -> None:
        """Free the communicator and what the library allocated."""
        self._drop()
        for kinds in self._kinds.values() if self._owns else ():
            for address, _ in kinds:
                self._library.mem_free(address)

    # What a plan is made of

    def enqueue_barrier(self) -> None:
        """Enqueue an all-reduce of one element, which no rank's stream passes before all came."""
        self.pass_by()
        self._meet()

    def wait(self) -> None:
        """Return when everything that was enqueued is complete; raise RuntimeError on an asynchronous error."""
        event, looks = self._device.event(), 0
        while not self._device.done(event):
            looks += 1
            self.pass_by()
            if looks > _SPINS:
                sleep(_NAP)
            if looks % _SPINS == 0:
                code = self._library.async_error(self._comm)
                if code != SUCCESS:
                    self._broken(code)

    def observe(self, call: Call, run: Callable[[], None]) -> Selection:
        """Run once and say what ran, from the tuning log; what a communicator was seen to run is not logged again."""
        if call in self._seen:
            run()
            return self._seen[call]
        with tempfile.TemporaryDirectory() as folder:
            with self._logging(folder):
                run()
            text = "".join(file.read_text(errors="replace") for file in Path(folder).iterdir())
        self._seen[call] = selection(text, FUNCTIONS[call.collective.mpi])
        return self._seen[call]

    def pass_by(self) -> None:
        """Go on, unless the process is about to end: then never, since the communicator is being freed."""
        while self._given_up:
            sleep(1)

    @property
    def device_in_use(self) -> _device.Device:
        """The rank's device."""
        return self._device

    # Inside

    @property
    def choice_is_costly(self) -> bool:
        """Whether each choice takes a communicator of its own."""
        return not self._library.has_call_config

    @property
    def _library(self) -> Library:
        assert self._lib is not None
        return self._lib

    def _broken(self, code: int) -> None:
        """Abort a communicator that failed here; there is none until all ranks `recover` together."""
        text = ": ".join(filter(None, (self._library.error_text(code), self._library.last_error(self._comm))))
        self._say(f"{self.library}: {text}")
        self._forget()
        self._lost = True
        raise RuntimeError(f"{self.library}: {text}")

    def _say(self, text: str) -> None:
        """Tell at once: other ranks may wait for this one for ever, and should the deadline pass, this tells why."""
        print(f"commbench: rank {self._world.rank}: {text}", file=sys.stderr, flush=True)

    def _forget(self) -> None:
        """Abort the communicator; what was registered with it goes with it."""
        comm = self._comm
        self._without()
        if comm:
            with suppress(Failure):
                self._library.abort(comm)

    def _communicate(self, algorithm: Algorithm) -> None:
        """Have a communicator that runs calls with `algorithm`: the one there is, or a new one in its place."""
        if self._lost:
            raise RuntimeError(f"{self.library} lost its communicator, and no rank makes another one alone")
        made_for = (self._function, algorithm) if algorithm.name != AUTO else _UNFORCED
        if self._comm and made_for == self._made_for:
            return
        self._drop()
        self._lost = True  # until it is made
        world, library = self._world, self._library
        unique_id = self._unique_id()
        choice = (self._function, algorithm.name, algorithm.protocol)
        forced = _nccl_facts.environment(library.version, *choice) if made_for[0] else {}
        with _environment(forced):
            try:
                self._comm = library.init_rank(world.size, unique_id, world.rank)
            except Failure as error:
                if not (forced and error.code in _REFUSED):
                    self._say(str(error))
                raise
            place = self._device.address(self._scratch)
            what = (1, "float32", "sum", 0, self._comm, self._device.stream)
            self._meet = library.prepare("AllReduce", place, place, *what)
        self._made_for, self._lost = made_for, False

    def _unique_id(self) -> bytes:
        """Return rank 0's new id, on every rank; raise RuntimeError on every rank where it makes none."""
        text, error = "", ""
        if self._world.rank == 0:
            try:
                text = self._library.unique_id().hex()
            except Failure as failure:
                error = str(failure)
        text, error = self._world.broadcast([text, error])
        if error:
            raise RuntimeError(error)
        return bytes.fromhex(text)

    def _no_communicator(self) -> None:
        raise RuntimeError(f"{self.library} has no communicator")

    def _register(self, kind: str) -> None:
        """Make memory of a kind known to the communicator, in the same order on every rank."""
        if kind == "plain" or kind in self._registered:
            return
        library, comm = self._library, self._comm
        make, undo = {
            "registered": (library.register, library.deregister),
            "symmetric": (library.window_register, library.window_deregister),
        }[kind]
        try:
            made = [make(comm, address, nbytes) for address, nbytes in self._kinds[kind]]
        except Failure as error:  # no refusal of an algorithm; what was made goes with the communicator
            raise RuntimeError(f"memory cannot be {kind}: {error}") from None
        self._registered[kind] = [partial(undo, comm, handle) for handle in made]

    def _drop(self) -> None:
        """Free the communicator."""
        if self._comm:
            for releases in self._registered.values():
                for release in releases:
                    release()
            self._library.destroy(self._comm)
        self._without()

    def _without(self) -> None:
        """Have no communicator, and nothing that was made of one."""
        self._comm, self._made_for, self._registered, self._meet = 0, _UNFORCED, {}, self._no_communicator
        self._seen = {}
        self.generation += 1

    @contextmanager
    def _logging(self, folder: str) -> Iterator[None]:
        """Let the library write its tuning log into a folder, on rank 0, which is the one that writes it."""
        if self._world.rank:
            yield
            return
        try:
            with _environment({**_LOG, "NCCL_DEBUG_FILE": f"{folder}/log.%h.%p"}):
                self._library.reset_debug()
                yield
        finally:
            self._library.reset_debug()


class XcclPlan:
    """One call, enqueued on one slot or another."""

    calls = 1

    def __init__(self, backend: Xccl, call: Call, enqueues: Sequence[Callable[[], None]]) -> None:
        self._backend, self._call, self._enqueues = backend, call, enqueues
        self._generation = backend.generation
        self.runs = [partial(self._run, slot) for slot in range(len(enqueues))]

    def native(self) -> None:
        """What is enqueued is timed by events: no compiled loop."""

    def witness(self, slot: int) -> Selection:
        """Run once and say what ran."""
        return self._backend.observe(self._call, self.runs[slot])

    def timed(self, method: str, iterations: int, graph: int) -> Timed:
        """Time batches by events on the stream; a barrier is enqueued before each sample, outside it, or before all."""
        backend, device = self._backend, self._backend.device_in_use
        batch, samples = batching(method, iterations, graph)
        launch = device.capture(partial(self._enqueue_batch, 0, batch)) if graph else None
        begins: list[Any] = []
        ends: list[Any] = []
        backend.barrier()()
        started = perf_counter()
        for sample in range(samples):
            if method == "barrier":
                backend.enqueue_barrier()
            if method == "barrier" or not ends:
                begins.append(device.event())
            else:
                begins.append(ends[-1])
            if launch is not None:
                launch()
            else:
                self._enqueue_batch(sample * batch, batch)
            ends.append(device.event())
        backend.wait()
        host = (perf_counter() - started) / (samples * batch)
        seconds = [device.seconds(begin, end) / batch for begin, end in zip(begins, ends, strict=True)]
        last = ((batch if graph else samples * batch) - 1) % len(self._enqueues)
        import numpy as np

        return Timed(np.array(seconds), batch, host, "graph" if graph else "events", last)

    def _run(self, slot: int) -> None:
        self._enqueue_batch(slot, 1)
        self._backend.wait()

    def _enqueue_batch(self, first: int, batch: int) -> None:
        if self._generation != self._backend.generation:
            raise RuntimeError("a plan ends with the communicator that it was made for, and that one is gone")
        for i in range(first, first + batch):
            self._backend.pass_by()
            self._enqueues[i % len(self._enqueues)]()


def selection(log: str, function: str) -> Selection:
    """Return what the library's tuning log says of a call of `function`."""
    found = [line for line in _nccl_log.parse(log) if line.function in (None, function)]  # older ones do not name it
    if found:
        line = found[-1]
        return Selection(line.algorithm, "library's tuning log", line.protocol, line.channels)
    odd = _nccl_log.unknown(log)
    return Selection(
        None,
        f"unknown: a line of the tuning log is not understood: {odd}" if odd else "unknown: no line in the tuning log",
    )


def faults(seats: Sequence[Mapping[str, Any]], settings: Settings) -> str:
    """Return what is wrong with the ranks' devices and libraries, and the remedy; nothing if they will do."""
    for what in ("library", "per_call"):
        other = next((rank for rank, seat in enumerate(seats) if seat[what] != seats[0][what]), None)
        if other is not None:
            named = [f"{seat['library']} through {seat['bindings']}" for seat in (seats[0], seats[other])]
            return (
                f"all ranks need the same library, called in the same way: rank 0 has {named[0]}, rank {other} "
                f"{named[1]}: install the same on every node, or name one file (--library)"
            )
    vendors = {seat["vendor"] for seat in seats}
    if len(vendors) > 1:
        firsts = {seat["vendor"]: rank for rank, seat in reversed(list(enumerate(seats)))}
        ranks = ", ".join(f"rank {rank} has {vendor}'s" for vendor, rank in firsts.items())
        return f"one communicator takes devices of one vendor, and {ranks}: launch each vendor's ranks by themselves"
    shared = next((ranks for ranks in _owners(seats).values() if len(ranks) > 1), None)
    if shared and not settings.share_devices:
        seat = seats[shared[0]]
        there = [other for other in seats if other["node"] == seat["node"]]
        devices = len({other["uuid"] or other["bus"] for other in there})
        names = ", ".join(map(str, shared))
        return (
            f"a rank needs a device of its own, and ranks {names} have device {seat['index']} [{seat['bus']}] of "
            f"{seat['host']}, where {len(there)} ranks see {devices} device{'s' * (devices != 1)}: start fewer ranks a "
            "node, show each its device (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1), or allow it (--share-devices)"
        )
    return ""


def _owners(seats: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, str], list[int]]:
    """Return the ranks of each device."""
    owners: dict[tuple[Any, str], list[int]] = {}
    for rank, seat in enumerate(seats):
        owners.setdefault((seat["node"], seat["uuid"] or seat["bus"]), []).append(rank)
    return owners


def chosen_already(environment: Mapping[str, str]) -> str:
    """Return which variable or file forces an algorithm already, empty if none does."""
    for name in _CHOOSING:
        if environment.get(name):
            return f"{name}={environment[name]} in the environment"
    for path, lines in configuration(environment).items():
        for line in lines:
            if line.partition("=")[0].strip() in _CHOOSING:
                return f"{line.strip()} in {path}"
    return ""


def configuration(environment: Mapping[str, str] = os.environ) -> dict[Path, list[str]]:
    """Return the settings in the files that the library reads: NCCL_CONF_FILE, or ~/.nccl.conf, and /etc/nccl.conf.

    Source: NCCL's environment variables, section "System configuration".
    """
    named = environment.get("NCCL_CONF_FILE")
    found = {}
    for path in (Path(named) if named else Path.home() / ".nccl.conf", Path("/etc/nccl.conf")):
        with suppress(OSError, UnicodeDecodeError):
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
            found[path] = [line for line in lines if line and not line.startswith("#")]
    return found


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Have these variables set inside, and as they were afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
