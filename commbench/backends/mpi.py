"""MPI through mpi4py: Open MPI and MPICH with every algorithm that the library offers, other libraries with `auto`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.backends import _device, _mpi_device, _mpi_t
from commbench.backends.base import (
    AMD,
    AUTO,
    DEFAULTS,
    DEVICE,
    HOST,
    NVIDIA,
    Algorithm,
    Availability,
    Call,
    Native,
    OnHost,
    Selection,
    Settings,
)
from commbench.errors import Rejected, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

INT_MAX = 2**31 - 1
_TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float16": "FLOAT16_T",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
_OPERATIONS = {"sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}
_CHUNKED = ("Allreduce", "Reduce", "Bcast", "Sendrecv")  # one block a rank: goes in pieces, one after another
_CHUNK = 1 << 30  # elements
_MPIX_BFLOAT16 = 0x4C00024C


class Backend(OnHost):
    """MPI on host memory, and on that of devices where the library says that it takes it."""

    name = "mpi"
    buffers = (HOST, DEVICE)
    simulated = False
    method = "barrier"
    needs_mpi = True
    _gpu: ClassVar[_device.Device | None] = None  # one a process: the backend of a group has the launch's

    @staticmethod
    def probe() -> Availability:
        """Say whether mpi4py is there; which library it finds shows when it loads."""
        from importlib.util import find_spec

        return Availability(True) if find_spec("mpi4py") else Availability(False, "mpi4py is not installed")

    def open(self, world: World, settings: Settings = DEFAULTS) -> None:
        """Duplicate the world's communicator and find out how this library switches algorithms."""
        world.need_mpi("the mpi backend")
        self._mpi: Any = world.mpi
        vendor, version = self._mpi.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.library_file = _mpi_t.library_file()
        self._base = self._comm = world.comm.Dup()
        self._base.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._size: int = self._base.Get_size()
        self._selected: Algorithm | None = None
        self._variables: _mpi_t.ControlVariables | None = None
        self._switch: Any = None
        self._rules: ModuleType | None = None
        self._no_device = "device memory was not asked for"
        if settings.device_memory:
            self._no_device = world.first_text(self._take_device(world))
        if vendor in ("Open MPI", "MPICH") and self.library_file:
            self._variables = _mpi_t.ControlVariables(self.library_file)
            if vendor == "MPICH":
                from commbench.backends import _mpich as library
            else:
                from commbench.backends import _openmpi as library  # type: ignore[no-redef]
                from commbench.backends import _openmpi_rules

                self._rules = _openmpi_rules
            self._switch = library.Switch(self._variables, world.crowded)

    def algorithms(self, collective: Any) -> Sequence[Algorithm]:
        """Return the library's own list for this MPI function; refuse where the user's settings have chosen already."""
        if self._switch is None:
            return [Algorithm(AUTO, AUTO)]
        if chosen := self._switch.chosen_already(collective.mpi):
            raise UsageError(
                f"the sweep chooses the algorithm, but {chosen} is set, by the environment or a configuration file: "
                "unset it, and name the algorithm by --algo"
            )
        found: dict[str, Algorithm] = {}
        for algorithm in self._switch.algorithms(collective.mpi):
            found.setdefault(algorithm.name, algorithm)
        return list(found.values())

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        """Return why the library cannot carry out `call`, as far as that is known before the attempt."""
        if call.buffer == DEVICE and self._no_device:
            return self._no_device
        if call.buffer == DEVICE and call.redop == "avg":
            return "avg is MPI's sum and a division by the host, which device memory is out of reach for"
        if call.inplace and call.collective.mpi == "Bcast":
            return "MPI_Bcast has one buffer on each rank: see the row out of place"
        reduces = call.collective.reduces
        if reduces and self._datatype(call) is None:
            return f"{self.library} does not reduce {call.dtype} by {call.redop}"
        if reduces and call.collective.mpi == "Reduce_scatter_block" and self._too_long(call):
            return f"{self.library} takes at most {INT_MAX} elements a block here, and these blocks cannot go in chunks"
        if self._rules is None or call.algorithm.name == AUTO:
            return ""
        name = f"coll_tuned_{call.collective.mpi.lower()}_algorithm_segmentsize"
        segment = self._variables.read(name) if self._variables and name in self._variables else 0
        return str(self._rules.substitute(call, len(ranks), segment))

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        """Return where MPI_IN_PLACE has input and output: the smaller one in the rank's own block of the larger.

        Reductions begin at the first block (MPI 4.1, section 6.10); MPI_Bcast knows no two buffers.
        """
        if not call.inplace and call.collective.mpi != "Bcast":
            return None
        sends = call.collective.send_blocks(rank, n, call.root)
        receives = call.collective.recv_blocks(rank, n, call.root)
        if call.collective.reduces or sends == receives or not sends or not receives:
            return 0, 0
        return (rank, 0) if sends < receives else (0, rank)

    def allocate(self, nbytes: int, buffer: str = HOST) -> NDArray[Any]:
        """Return page-aligned host memory, or a device's."""
        if buffer == DEVICE:
            if self._gpu is None:  # on no rank, if on this one
                raise UsageError(f"--buffer {DEVICE} cannot be had: {self._no_device}")
            return self._gpu.allocate(nbytes)
        import numpy as np

        raw = np.empty(nbytes + 4096, dtype=np.uint8)
        start = -raw.ctypes.data % 4096
        return raw[start : start + nbytes]

    def staging(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return host memory for `array`, which is `array` where it is the host's."""
        device = self._device_of(array)
        return device.staging(array) if device else array

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy to the device what was filled in for it, and wait: MPI knows nothing of the copy's stream."""
        if device := self._device_of(array):
            device.put(array, values)

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what `array` holds, in host memory."""
        device = self._device_of(array)
        return device.take(array) if device else array

    def _device_of(self, array: NDArray[Any]) -> _device.Device | None:
        """Return the device that holds `array`: a plain NumPy array is the host's."""
        import numpy as np

        return None if type(array) is np.ndarray else self._gpu

    def _address(self, array: NDArray[Any]) -> int:
        if device := self._device_of(array):
            return device.address(array)
        return int(array.ctypes.data) if array.size else 0

    @contextmanager
    def using(self, collective: Any, algorithm: Algorithm) -> Iterator[None]:
        """Let calls inside run with `algorithm`; on Open MPI the first use makes a communicator."""
        if self._switch is None or self._size == 1:
            yield
            return
        if algorithm != self._selected:
            self._selected, self._comm = None, self._base  # in case the switch fails
            self._comm = self._switch.select(collective.mpi, algorithm, self._base)
            self._selected = algorithm
        if algorithm.name == AUTO:
            yield
            return
        self._switch.force(collective.mpi, algorithm)
        try:
            yield
        finally:
            self._switch.release(collective.mpi)

    def plan(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> MpiPlan:
        """Prepare the MPI call on each pair of buffers."""
        sequences = [self._sequence(call, send, recv) for send, recv in slots]
        calls = len(sequences[0])
        if call.redop == "avg":
            sequences = [
                [*sequence, partial(average, recv, self._size, call.dtype)] if recv.size else sequence
                for sequence, (_, recv) in zip(sequences, slots, strict=True)
            ]
        runs = [sequence[0] if len(sequence) == 1 else partial(_in_turn, sequence) for sequence in sequences]
        return MpiPlan(runs, calls, partial(self._observe, call), partial(self._native, call, slots))

    def _native(self, call: Call, slots: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Native | None:
        if self._variables is None or call.count > INT_MAX or call.redop == "avg":
            return None
        from commbench.backends._mpi_native import native

        types = (self._datatype(call), self._operation(call))
        return native(self._mpi, self.library_file, self._comm, call, slots, types, self._address)

    def _operation(self, call: Call) -> Any:
        return getattr(self._mpi, _OPERATIONS[call.redop or "sum"]) if call.collective.reduces else None

    def barrier(self) -> Callable[[], Any]:
        """Return MPI_Barrier of the communicator in use."""
        return self._comm.Barrier

    def facts(self) -> dict[str, Any]:
        """Return versions, files and control variables."""
        return {
            "library": self.library,
            "library_file": self.library_file,
            "version": self._mpi.Get_library_version().strip().rstrip("\0").splitlines()[0],
            "standard": ".".join(map(str, self._mpi.Get_version())),
            "thread_level": {0: "single", 1: "funneled", 2: "serialized", 3: "multiple"}[self._mpi.Query_thread()],
            "control_variables": self._switch.facts() if self._switch else {},
            "device": asdict(self._gpu.identity) if self._gpu else None,
        }

    def close(self) -> None:
        """Free the communicators and leave the tool interface."""
        if self._switch is not None:
            self._switch.close()
        self._base.Free()
        if self._variables is not None:
            self._variables.close()

    def _observe(self, call: Call, run: Callable[[], Any]) -> Selection:
        """Run once and say what ran."""
        try:
            if self._switch is None or call.algorithm.name == AUTO:
                run()
                return Selection(None, "unknown: the library chooses and does not say")
            objection = self._switch.witness(run)
        except self._mpi.Exception as error:
            raise Rejected(f"{self.library}: {error.Get_error_string().strip()}") from None
        return Selection(None if objection else call.algorithm.name, self._switch.evidence, objection=objection)

    # Device memory

    @staticmethod
    def aware(path: str, vendor: str) -> bool | None:
        """Return whether the library takes addresses of `vendor`'s devices; None where it cannot be asked."""
        return _mpi_device.aware(path, vendor)

    @staticmethod
    def count(vendor: str) -> tuple[int, str]:
        """Return how many devices of `vendor` this rank sees, and why there are none."""
        return _device.count(vendor)

    @staticmethod
    def device(index: int) -> _device.Device:
        """Return the device that this rank uses from now on."""
        return _device.CupyDevice(index)

    def _take_device(self, world: World) -> str:
        """Take the device of this rank's place on its node; return why there is none, empty where there is."""
        if self._gpu is not None:
            return ""
        answers = {vendor: self.aware(self.library_file, vendor) for vendor in (NVIDIA, AMD)}
        if set(answers.values()) == {None}:
            return f"{self.library} has no function that says whether it takes device memory (MPIX_Query_cuda_support)"
        why = f"{self.library} says that it takes no memory of NVIDIA's or AMD's devices"
        for vendor in (vendor for vendor, answer in answers.items() if answer):
            devices, why = self.count(vendor)
            if devices:
                try:
                    type(self)._gpu = self.device(world.node_rank % devices)
                    return ""
                except Exception as error:  # CuPy has a class for each kind
                    why = f"device {world.node_rank % devices} cannot be used: {type(error).__name__}: {error}"
        return why

    def _too_long(self, call: Call) -> bool:
        """Whether a block exceeds the library's counts: mpi4py uses 64-bit ones where the library has MPI 4's."""
        return call.count > INT_MAX and self._mpi.Get_version() < (4, 0)

    def _datatype(self, call: Call) -> Any:
        """Return the MPI datatype of `call`, or None where the library has none that it reduces by this operation."""
        mpi = self._mpi
        found = getattr(mpi, _TYPES[call.dtype], mpi.DATATYPE_NULL)
        if found != mpi.DATATYPE_NULL:
            return found
        if not call.collective.reduces:
            return mpi.UINT16_T  # what is only moved needs no meaning
        return self._mpich_bfloat16() if call.dtype == "bfloat16" and call.redop in ("sum", "avg") else None

    def _mpich_bfloat16(self) -> Any:
        """Return MPICH's own bfloat16 (5.0 and later), for which mpi4py has no constant; it sums only.

        MPICH 5.0.2 aborts the job when it is asked to multiply or compare these. The handle, from its mpi.h, is
        trusted only where the library calls it by its name.
        """
        if self._mpi.get_vendor() < ("MPICH", (5, 0, 0)) or self._mpi.get_vendor()[0] != "MPICH":
            return None
        try:
            found = self._mpi.Datatype.fromhandle(_MPIX_BFLOAT16)
            return found if found.Get_name() == "MPIX_BFLOAT16" else None
        except (self._mpi.Exception, AttributeError, OverflowError, TypeError):
            return None

    def _sequence(self, call: Call, send: NDArray[Any], recv: NDArray[Any]) -> list[Callable[[], Any]]:
        """Return the library calls that together carry out `call` once on these buffers."""
        datatype = self._datatype(call)
        if not self._too_long(call):
            return [self._one_call(call, send, recv, call.count, datatype)]
        if call.collective.mpi in _CHUNKED:
            pieces = [slice(start, min(start + _CHUNK, call.count)) for start in range(0, call.count, _CHUNK)]
            return [self._one_call(call, send[p], recv[p], p.stop - p.start, datatype) for p in pieces]
        return [self._one_call(call, send, recv, 1, self._block_type(datatype, call.count))]

    def _block_type(self, datatype: Any, count: int) -> Any:
        """Return a datatype of one whole block, for blocks longer than an int counts."""
        chunks, rest = divmod(count, _CHUNK)
        chunk = datatype.Create_contiguous(_CHUNK)
        many = chunk.Create_contiguous(chunks)
        tail = datatype.Create_contiguous(rest)
        block = self._mpi.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK * datatype.size], [many, tail]).Commit()
        for part in (chunk, many, tail):
            part.Free()
        return block

    def _one_call(
        self, call: Call, send: NDArray[Any], recv: NDArray[Any], count: int, datatype: Any
    ) -> Callable[[], Any]:
        """Return one MPI call; an empty buffer is one that this rank does not have."""
        name, comm, size = call.collective.mpi, self._comm, self._size
        method = getattr(comm, name)
        out = [recv, count, datatype] if recv.size else None
        into = [send, count, datatype] if send.size else None
        if name == "Bcast":
            return partial(method, into if comm.Get_rank() == call.root else out, root=call.root)
        if name == "Sendrecv":
            ring = {"dest": (comm.Get_rank() + 1) % size, "source": (comm.Get_rank() - 1) % size}
            return (
                partial(comm.Sendrecv_replace, out, **ring)
                if call.inplace
                else partial(method, into, recvbuf=out, **ring)
            )
        options: dict[str, Any] = {"root": call.root} if call.collective.rooted else {}
        if call.collective.reduces:
            options["op"] = self._operation(call)
        if call.inplace and send.size and recv.size:
            if name == "Scatter":
                out = self._mpi.IN_PLACE  # the root's share stays where it is
            else:
                out = [max(send, recv, key=len), count, datatype]
                into = self._mpi.IN_PLACE
        return partial(method, into, out, **options)


class MpiPlan:
    """One MPI call (or a few, in turn), prepared for each slot."""

    def __init__(
        self,
        runs: Sequence[Callable[[], Any]],
        calls: int,
        observe: Callable[[Callable[[], Any]], Selection],
        native: Callable[[], Native | None],
    ) -> None:
        self.runs, self.calls, self._observe, self.native = runs, calls, observe, native

    def witness(self, slot: int) -> Selection:
        """Run once and say what ran."""
        return self._observe(self.runs[slot])


def average(total: NDArray[Any], n: int, dtype: str) -> None:
    """Divide the sum over `n` ranks in place: MPI has no average. Integers are rounded down."""
    import numpy as np

    if dtype == "bfloat16":
        wide = (total.astype(np.uint32) << np.uint32(16)).view(np.float32) / np.float32(n)
        bits = wide.view(np.uint32)
        total[:] = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elif total.dtype.kind == "f":
        np.divide(total, total.dtype.type(n), out=total)
    elif n <= np.iinfo(total.dtype).max:
        np.floor_divide(total, total.dtype.type(n), out=total)
    else:
        total[:] = np.where(total < 0, -1, 0) if total.dtype.kind == "i" else 0


def _in_turn(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()
