"""One launch: the process group opened, steps carried out and timed, traces left, and what is printed of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from commbench.backends._torch_store import store
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, UsageError
from commbench.measure.door import on_rank_0
from commbench.measure.site import memory_available
from commbench.measure.watchdog import RESTING, SETUP, Watchdog
from commbench.results.training import TRAINING
from commbench.training import profiling, summary
from commbench.training.ddp import DataParallel
from commbench.training.inject import Injection
from commbench.training.options import AUTO, GLOO, NAME, NCCL, PS, Options
from commbench.training.parameter_server import SERVER, Server, Worker
from commbench.training.profiling import CONTROL, INJECTED, Recorder
from commbench.training.workload import Lap, Replica, seconds
from commbench.units import approximate_size

_PATIENCE = timedelta(days=1)  # the watchdog ends what hangs


@dataclass(frozen=True)
class Place:
    """What a rank trains on, and by which library ranks exchange."""

    backend: str
    why: str
    device: Any  # torch.device
    name: str  # of the device, as torch calls it


class Mode(Protocol):
    """One rank's part in a way of training."""

    def step(self, number: int) -> Lap:
        """Carry out a step."""


def run(world: World, watchdog: Watchdog, options: Options, words: Sequence[str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    _check(world, options)
    if folder := options.profile:
        on_rank_0(world, lambda: profiling.prepare(folder))
        profiling.keep_flight_record()
    import torch

    world.meet_asleep()  # ranks that wait in MPI would keep the cores from those that still load torch
    torch.set_num_threads(options.threads or max(1, world.cores // world.node_size))
    place = _place(world, options)
    if place.device.type == "cpu":
        _check_memory(world, options)
    watchdog.tell(_Guide(world.size, options.warmup))
    with _group(world, place):
        mode, injection = _mode(world, options, place)
        recorder = None
        if options.profile:  # a parameter server's sends and receives are not kept by Gloo's Flight Recorder
            recorder = Recorder(world, options.profile, place.device, place.backend, options.mode != PS)
        found = _steps(world, watchdog, options, place.device, mode, injection, recorder)
        watchdog.begin(SETUP)
        if recorder and (note := recorder.finish()) and world.rank == 0:
            print(f"commbench {NAME}: note: {note}", file=sys.stderr, flush=True)
    told = world.gather(found)
    watchdog.begin(RESTING)  # whoever reads what is printed may take their time

    def conclude() -> int:
        assert told is not None
        content = summary.summary(world, options, place.backend, place.name, mode, told, words)
        return _conclude(content, options, place.why)

    code = on_rank_0(world, conclude)
    watchdog.begin(SETUP)
    return code


def _check(world: World, options: Options) -> None:
    """Raise UsageError where these ranks cannot do what is asked."""
    trouble = ""
    if options.threads and options.threads > world.cores:
        trouble = f"--threads is at most {world.cores}, the cores of {world.node}, not {options.threads}"
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)
    if options.mode == PS and world.size < 2:
        raise UsageError(f"--mode ps takes a server and a worker at least: mpirun -n 2 python -m commbench.{NAME}")
    for fault in options.faults:
        if fault.rank is not None and fault.rank >= world.size:
            raise UsageError(f"--inject {fault.text} names rank {fault.rank}, and ranks are 0 to {world.size - 1}")
        if options.mode == PS and fault.rank == SERVER:
            raise UsageError(f"--inject {fault.text} names the parameter server, and faults are of workers: rank 1 on")


def _check_memory(world: World, options: Options) -> None:
    """Raise UsageError on every rank where a node's ranks need more memory than it has."""
    trouble, available = "", memory_available()
    need = options.work.memory * world.node_size
    if available is not None and need > available:
        trouble = (
            f"the ranks on {world.node} need {approximate_size(need)} of memory at least, and it has "
            f"{approximate_size(available)}: choose a smaller --preset or --batch, or fewer ranks a node"
        )
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)


def _place(world: World, options: Options) -> Place:
    """Return this rank's device and the library; raise UsageError on every rank where one has not what is asked."""
    import torch
    from torch import distributed

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = torch.device("cuda", world.node_rank % gpus) if gpus else torch.device("cpu")
    about = ""
    if gpus:
        facts = torch.cuda.get_device_properties(own)
        about = f"{world.node} {getattr(facts, 'uuid', own.index)}"
    backend, why, trouble = GLOO, "as asked", ""
    if options.mode == PS:
        why = "which the parameter server speaks"
    elif options.backend != GLOO:
        lacking = world.broadcast(_without_own(world.gather(about)))
        backend, why = (GLOO, lacking) if options.backend == AUTO and lacking else (NCCL, "a GPU on every rank")
        if options.backend == NCCL:
            why, trouble = "as asked", lacking and f"--backend nccl takes a GPU for each rank, and {lacking}"
    if not trouble and not (distributed.is_available() and getattr(distributed, f"is_{backend}_available")()):
        trouble = f"torch {torch.__version__} was built without {backend}: install another build of torch"
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)
    if backend == GLOO:
        return Place(GLOO, why, torch.device("cpu"), "CPU")
    torch.cuda.set_device(own)
    return Place(NCCL, why, own, torch.cuda.get_device_name(own))


def _without_own(devices: Sequence[str] | None) -> str:
    """Return which rank has no GPU of its own, empty where all have; on rank 0, of each rank's device."""
    shared = Counter(devices or ())
    for rank, device in enumerate(devices or ()):
        if not device:
            return f"rank {rank} has no GPU"
        if shared[device] > 1:
            return f"rank {rank} shares its GPU with another"
    return ""


@contextmanager
def _group(world: World, place: Place) -> Iterator[None]:
    """Open torch's default process group among the ranks of `world`."""
    from torch import distributed

    with store(world) as (met, _):
        distributed.init_process_group(
            place.backend,
            store=met,
            rank=world.rank,
            world_size=world.size,
            timeout=_PATIENCE,
            device_id=place.device if place.backend == NCCL else None,
        )
    yield
    world.meet_asleep()  # no rank closes what another still reads from
    distributed.destroy_process_group()


def _mode(world: World, options: Options, place: Place) -> tuple[Mode, Injection]:
    """Return this rank's part, and its faults."""
    injection = Injection(options.faults, world.rank, options.warmup, options.alternate, options.work.seed)
    if options.mode != PS:
        return DataParallel(Replica(options.work, world.rank, place.device, injection), options.bucket), injection
    if world.rank == SERVER:
        return Server(options.work, world.size - 1, options.updates), injection
    return Worker(Replica(options.work, world.rank - 1, place.device, injection)), injection


def _steps(
    world: World,
    watchdog: Watchdog,
    options: Options,
    device: Any,
    mode: Mode,
    injection: Injection,
    recorder: Recorder | None,
) -> dict[str, list[Any]]:
    """Carry out all steps; return what this rank has to tell of them."""
    laps, times = [], []
    for number in range(options.warmup + options.steps):
        index = number - options.warmup
        if index == 0:
            if recorder:
                recorder.start()
            world.meet_asleep()
        watchdog.begin(number)
        about = (INJECTED if injection.acts(number) else CONTROL) if options.faults else ""
        with recorder.step(index, about) if recorder and index >= 0 else nullcontext():
            began = seconds(device)
            laps.append(_guarded(world, mode, number, index))
            times.append(seconds(device) - began)
    return {
        "seconds": times[options.warmup :],
        "losses": [None if lap.loss is None else float(lap.loss) for lap in laps],
        "exchanges": [lap.exchange and list(lap.exchange) for lap in laps[options.warmup :]],
        "injected": [injection.acts(options.warmup + index) for index in range(options.steps)],
    }


def _guarded(world: World, mode: Mode, number: int, index: int) -> Lap:
    """Carry out a step; where a rank is gone, which is a plain RuntimeError of Gloo's, say so and end the job."""
    try:
        return mode.step(number)
    except RuntimeError as error:
        if "gloo" not in str(error).lower():
            raise
        said = str(error).splitlines()[0].rpartition("] ")[2]
        text = f"commbench {NAME}: error: rank {world.rank} in step {index}: another rank is gone ({said})"
        print(text, file=sys.stderr, flush=True)
        world.abort(EXIT_FAILED)
        raise


def _conclude(content: dict[str, Any], options: Options, why: str) -> int:
    """Write and print the summary; return the exit code. Raises UsageError where it cannot be written."""
    import json

    if options.profile:
        path = options.profile / TRAINING
        try:
            profiling.write(path, content)
        except OSError as error:
            raise UsageError(f"cannot write {path} ({error.strerror}): the traces beside it are whole") from None
    if options.json:
        print(json.dumps(content), flush=True)
    else:
        print("\n".join(summary.lines(content, why, options.profile)), flush=True)
    if not (trouble := summary.not_learnt(content)):
        return EXIT_OK
    print(f"commbench {NAME}: error: {trouble}", file=sys.stderr, flush=True)
    return EXIT_FAILED


class _Guide:
    """Names steps for the watchdog."""

    def __init__(self, ranks: int, warmup: int) -> None:
        self._ranks, self._warmup = range(ranks), warmup

    def describe(self, cell: int) -> str:
        return f"in step {cell - self._warmup}" if cell >= self._warmup else "while warming up"

    def concerned(self, cell: int) -> Sequence[int]:
        return self._ranks

    def record(self, cell: int, number: int, reason: str) -> None:
        """Nothing: traces are written at the end."""

    def give_up(self) -> None:
        """Nothing to let go of."""
