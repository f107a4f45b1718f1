"""What a door does around its work: help once, one line for bad input, ranks that meet, one exit code for all."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

from commbench.backends.base import AUTO, find
from commbench.backends.world import Launch, World, launch, leave_the_word
from commbench.errors import EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT, EXIT_USAGE, RendezvousError, UsageError
from commbench.measure import streams
from commbench.measure.watchdog import SETUP_SECONDS, Watchdog

DEFAULT_TIMEOUT = 300.0
INIT_SECONDS = 300.0  # at least, for ranks to meet: 256 ranks on two cores take a minute in MPI_Init

T = TypeVar("T")


class Timed(Protocol):
    """Options that bound a visit."""

    @property
    def timeout(self) -> float:
        """The seconds."""


Asked = TypeVar("Asked", bound=Timed)


def run_door(
    name: str,
    parser: argparse.ArgumentParser,
    read: Callable[[Sequence[str]], Asked],
    run: Callable[[World, Watchdog, Asked, Sequence[str]], int],
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Understand the arguments by `read`, let ranks meet, `run`, and exit with the code that it returns on all."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Ctrl-C ends a rank at once, quietly, even in a library's call; what was measured is on disk already.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    output = streams.Patient(sys.stdout)
    sys.stdout, sys.stderr = output, streams.Patient(sys.stderr)
    launched = launch()
    speaks = launched.rank == 0
    if {"-h", "--help"} & set(words):
        if speaks:
            print(parser.format_help())
        raise SystemExit(EXIT_OK)
    options, trouble, by_mpi = None, "", True
    try:
        options = read(words)
        by_mpi = _by_mpi(launched, options)
    except UsageError as error:
        trouble = str(error)
        if speaks:
            _complain(name, trouble)
    if trouble and (launched.size == 1 or launched.launcher == "torchrun"):  # which ends the other ranks
        _leave(name, EXIT_USAGE, launched)
    timeout = options.timeout if options else DEFAULT_TIMEOUT
    try:
        world = _meet(by_mpi, getattr(options, "rendezvous", None), max(timeout, INIT_SECONDS))
    except UsageError as error:
        if speaks and not trouble:
            _complain(name, str(error))
        _leave(name, EXIT_USAGE, launched)
    except RendezvousError as error:
        if str(error):
            print(f"commbench: timeout: {error}", file=sys.stderr, flush=True)
        _leave(name, EXIT_TIMEOUT, launched)
    code = EXIT_FAILED
    try:
        watchdog = Watchdog(world, timeout)
        spoken = trouble if world.rank == 0 else ""
        agree_on_arguments(world, [name, *words], trouble)
        assert options is not None
        code = run(world, watchdog, options, words)
    except UsageError as error:
        code = EXIT_USAGE
        if world.rank == 0 and str(error) != spoken:
            _complain(name, str(error))
    except BaseException:  # whatever it is, the other ranks must not wait for this one
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        world.abort(EXIT_FAILED)
    world.meet()
    watchdog.close()
    with bounded(SETUP_SECONDS, "MPI_Finalize" if world.mpi else "parting"):
        world.close()
    if code == EXIT_OK and output.lost:
        code = EXIT_FAILED
    _leave(name, code, launched, met=True)


def _by_mpi(launched: Launch, options: Timed) -> bool:
    """Whether the ranks meet by MPI: an mpirun launched them, or the backend needs it; raise UsageError for both.

    Only what is the same on every rank decides, lest they wait for one another in two places: the launcher and the
    backend's name. What `auto` stands for is not known before ranks have met: without an mpirun they do so by MPI.
    """
    if (needs := getattr(options, "needs_mpi", None)) is not None:  # a door without a backend of collectives
        return launched.by_mpirun or bool(needs)
    backend = getattr(options, "backend", "mpi")
    if backend == AUTO and launched.launcher == "torchrun":
        raise UsageError(
            "torchrun launches no MPI, by which ranks meet where no backend is named: name one that needs none "
            "(--backend nccl, rccl or gloo), or use mpirun or srun"
        )
    by_mpi = launched.by_mpirun or backend == AUTO or getattr(find(backend), "needs_mpi", True)
    if by_mpi and getattr(options, "rendezvous", None) is not None:
        who = f"backend {backend} needs MPI"
        if launched.by_mpirun:
            who = f"{launched.launcher}'s mpirun launched these"
        elif backend == AUTO:
            who = "no --backend names one that needs none"
        raise UsageError(f"--rendezvous is for ranks that meet without MPI, and {who}: leave it out")
    return by_mpi


def _meet(by_mpi: bool, rendezvous: str | None, seconds: float) -> World:
    """Return the world of this launch."""
    if by_mpi:
        from commbench.backends._mpi_world import open_mpi

        with bounded(seconds, "MPI_Init"):
            return open_mpi()
    from commbench.backends._tcp_world import open_tcp

    with bounded(2 * seconds + SETUP_SECONDS, "meeting"):  # beside a deadline of its own
        return open_tcp(rendezvous, seconds)


def _leave(name: str, code: int, launched: Launch, met: bool = False) -> NoReturn:
    """Exit with `code`, and say it where the launcher will not; `met`: rank 0 has said before why."""
    if code and (not met or launched.launcher == "torchrun"):
        leave_the_word(launched, speaks=launched.rank == 0)
    if code and launched.rank == 0 and (text := launched.own_code(code)):
        print(f"commbench {name}: ended{text}", file=sys.stderr, flush=True)
    raise SystemExit(code)


@contextmanager
def bounded(seconds: float, what: str) -> Iterator[None]:
    """End this process with 124 where the body takes longer: the watchdog lives between meeting and parting."""

    def give_up() -> None:
        text = f"commbench: timeout: {what} did not return in {seconds:g} s: a rank is missing"
        print(text, file=sys.stderr, flush=True)
        os._exit(EXIT_TIMEOUT)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def on_rank_0(world: World, work: Callable[[], T]) -> T:
    """Return on every rank what `work` gives on rank 0; raise its UsageError on every rank."""
    outcome: tuple[T | None, str] = (None, "")
    if world.rank == 0:
        try:
            outcome = (work(), "")
        except UsageError as error:
            outcome = (None, str(error))
    world.meet_asleep()  # its work takes long where the others, waiting, keep the cores busy
    result, trouble = world.broadcast(outcome)
    if trouble:
        raise UsageError(trouble)
    return result


def agree_on_arguments(world: World, words: Sequence[str], trouble: str) -> None:
    """Raise UsageError on all ranks where one has bad arguments or other ones than rank 0."""
    digest = zlib.crc32("\0".join(words).encode(errors="surrogateescape"))
    bad, most, least = world.largest(bool(trouble), digest, -digest)
    if bad:
        raise UsageError(world.first_text(trouble))
    if most != -least:
        (common,) = world.command((digest,))
        gathered = world.gather(None if digest == common else world.rank) or []
        ranks = [str(rank) for rank in gathered if rank is not None]
        raise UsageError(f"all ranks need the same arguments; those of rank {', '.join(ranks)} differ from rank 0's")


def _complain(name: str, text: str) -> None:
    print(f"commbench {name}: error: {text}", file=sys.stderr, flush=True)
