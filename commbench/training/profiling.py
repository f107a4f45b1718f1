"""What a rank leaves behind in the folder of traces.

rankN.json.gz       of torch.profiler: operators with their shapes, steps as ProfilerStep#k, the spans below
flight-rankN.json   of torch's Flight Recorder, where this torch can tell
clock-rankN.json    what the common clock showed, at the start and at the end
training.json       of rank 0: what was trained, which faults acted in which steps, how long steps took
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.measure import clock
from commbench.results.training import CLOCKS, TRAINING

if TYPE_CHECKING:
    from commbench.backends.world import World

FORMAT = 1  # of readings of clocks
CONTROL, INJECTED = "control step", "injected step"  # spans around steps of a run with faults
_RING = "20000"  # collectives that the Flight Recorder keeps
_EMPTY = (  # where collectives ran
    "torch's Flight Recorder kept none; TORCH_FR_BUFFER_SIZE says how many it keeps, or in older versions "
    "TORCH_NCCL_TRACE_BUFFER_SIZE, which you may set"
)
_DUMP, _OWN_DUMP = "_dump_fr_trace_json", {"nccl": "_dump_nccl_trace_json"}  # of backends with their own recorder
_ENTRY = b'"collective_seq_id"'  # what each call has in a dump
_LOOKS = 20  # at two clocks of a host: the closest pair counts


def span(name: str) -> AbstractContextManager[Any]:
    """Return a context that a trace shows as a span of this name."""
    from torch.profiler import record_function

    return record_function(name)


def prepare(folder: Path) -> None:
    """Make the folder; raise UsageError where that fails, or where traces of another run lie in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        old = [*folder.glob("*rank*.json*"), *folder.glob(TRAINING)]
    except OSError as error:
        raise UsageError(f"--profile {folder} cannot be made ({error.strerror}): name another folder") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--profile {folder} cannot be written to: name another folder")
    if old:
        raise UsageError(f"--profile takes a new folder, and {folder} holds {old[0].name} of another run: name another")


def keep_flight_record() -> None:
    """Have torch record collectives; before it is loaded."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _RING)


class Recorder:
    """Records the measured steps of one rank. Every method but `step` is collective."""

    def __init__(self, world: World, folder: Path, device: Any, backend: str, collectives: bool) -> None:
        """`backend`: by which library ranks exchange; `collectives`: by calls that the Flight Recorder keeps."""
        from torch.profiler import ProfilerActivity, profile

        self._world, self._folder = world, folder
        self._backend, self._collectives = backend, collectives
        self._clocks = Clocks(world)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profile: Any = profile(activities=activities, record_shapes=True)

    def start(self) -> None:
        self._clocks.read()
        with _silent():
            self._profile.start()

    @contextmanager
    def step(self, index: int, about: str) -> Iterator[None]:
        """Mark a step, which counts from 0; `about`: CONTROL, INJECTED or nothing."""
        with span(f"ProfilerStep#{index}"), span(about) if about else nullcontext():
            yield

    def finish(self) -> str:
        """Stop, and write this rank's files; return what is to be said of them, the same on all ranks."""
        rank, record = self._world.rank, b""
        with _silent():
            self._profile.stop()
        self._clocks.read()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # other nodes may have disks of their own
            with _silent():
                self._profile.export_chrome_trace(str(self._folder / f"rank{rank}.json.gz"))
            if record := flight_record(self._backend):
                (self._folder / f"flight-rank{rank}.json").write_bytes(record)
            if clocks := self._clocks.found():
                write(self._folder / CLOCKS.replace("*", str(rank)), clocks)
            trouble = ""
        except OSError as error:
            trouble = f"rank {rank} cannot write its traces to {self._folder} ({error.strerror})"
        if trouble := self._world.first_text(trouble):
            raise UsageError(trouble)
        empty = self._collectives and record and _ENTRY not in record
        return self._world.first_text(f"flight-rank{rank}.json holds no call: {_EMPTY}" if empty else "")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class Clocks:
    """This rank's clock, in ns since 1970 as traces have it, against that of rank 0's node. Every method is collective.

    Ranks of one node share a clock. Between nodes it takes MPI; without, nothing is said of clocks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._shared = world.nodes == 1 and clock.clock_per_node
        self._clock = clock.Clock(world) if world.mpi and not self._shared else None
        self._readings: list[dict[str, int]] = []

    def read(self) -> None:
        """Look at the clocks."""
        if self._shared:
            local = time_ns()
            self._readings.append({"local": local, "common": local, "error": 0})
        elif self._clock:
            self._clock.refresh()
            raw, ahead, off = _unix()
            ahead_0, off_0 = self._world.broadcast([ahead, off])
            common = round(self._clock.common(raw) * 1e9) + ahead_0
            error = round(self._clock.error * 1e9) + off + off_0
            self._readings.append({"local": round(raw * 1e9) + ahead, "common": common, "error": error})

    def found(self) -> dict[str, Any]:
        """Return all readings; nothing where there are none."""
        if self._clock:
            self._clock.close()
        if not self._readings:
            return {}
        about = {"format": FORMAT, "rank": self._world.rank, "host": os.uname().nodename}
        return {**about, "readings": self._readings}


def _unix() -> tuple[float, int, int]:
    """Return a time on the clock of `measure.clock` (s), how far time since 1970 is ahead of it (ns), and the error."""
    found = []
    for _ in range(_LOOKS):
        before, unix, after = clock.now(), time_ns(), clock.now()
        found.append((after - before, (before + after) / 2, unix))
    width, raw, unix = min(found)
    return raw, unix - round(raw * 1e9), round(width / 2 * 1e9)


def flight_record(backend: str) -> bytes:
    """Return the Flight Recorder's dump, empty where this torch has none in JSON, which nobody need unpickle.

    Torch has two recorders: NCCL keeps its calls in one of its own, where torch was built with it, others in the common
    one; a torch that has made one of both gives the same by either name.
    """
    with suppress(ImportError):
        c10d = import_module("torch._C._distributed_c10d")
        own = getattr(c10d, _OWN_DUMP[backend], None) if backend in _OWN_DUMP else None
        if dump := own or getattr(c10d, _DUMP, None):
            return bytes(dump())
    return b""


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what C++ prints in the body: the profiler notes its start and its end, on one stream or the other."""
    kept, nowhere = {stream: os.dup(stream) for stream in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
