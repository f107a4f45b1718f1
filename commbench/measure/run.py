"""One launch: the backend opened, the plan made or taken up again, the sweep, and what is printed of it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, TextIO, TypeVar

from commbench import __version__
from commbench.backends.base import Backend, find
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, DiskError, ResultsError, UsageError
from commbench.measure import screen
from commbench.measure.agenda import FEW_ROUNDS, ROUNDS, Agenda, Effort
from commbench.measure.collective import Collective
from commbench.measure.plan import PLANNED, Cell, Request, build
from commbench.measure.progress import Progress
from commbench.measure.sweep import BETWEEN, Sweep
from commbench.measure.watchdog import Watchdog
from commbench.results import manifest
from commbench.results.journal import Journal, append_beside
from commbench.results.record import FAILURES, FORMAT, NOT_MEASURED, TIMEOUT, Record

T = TypeVar("T")

_WHOSE_TIME = {
    "rank0": "rank 0",
    "mean": "all ranks, their mean",
    "min": "the fastest rank",
    "max": "the slowest rank (-a 3; nccl-tests' default is 1, the mean)",
}
# What may be asked for anew when a run is resumed: how long and how well, not what and how.
_RENEWABLE = ("rounds", "precision", "max_seconds", "budget", "warmup")


@dataclass(frozen=True)
class Options:
    """The command line, understood. `plan` decides which cells there are and how they are timed."""

    plan: dict[str, Any]
    given: frozenset[str]  # the names in `plan` that the user gave
    backend: str
    format: str
    out: str | None
    resume: bool
    progress: str
    timeout: float  # seconds for a visit


def run(world: World, collective: Collective, options: Options, words: Sequence[str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    name, why = ("mpi", "the default") if options.backend == "auto" else (options.backend, "as asked")
    backend = _open(name, world)
    journal: Journal | None = None
    try:
        site = _site(world)

        def prepare() -> dict[str, Any]:
            nonlocal journal
            journal = (_take_up if options.resume else _begin)(world, collective, backend, options, words, site)
            plan = journal.manifest["plan"]
            where = {"folder": str(journal.folder.resolve()), "session": journal.session}
            return {"cells": plan["cells"], "effort": plan["effort"], **where}

        plan = _on_rank_0(world, prepare)
        cells = [Cell(**cell) for cell in plan["cells"]]
        effort = Effort(**plan["effort"])
        watchdog = _guard(world, collective, cells, options.timeout, plan["folder"], plan["session"])
        sweep = Sweep(world, backend, collective, cells, effort, watchdog.begin)
        code = EXIT_OK
        if journal is None:
            sweep.follow()
        else:
            _say_first(journal, backend, collective, options, f"{name}: {why}")
            try:
                code = _lead(sweep, cells, Agenda(cells, journal, effort), journal, options)
            except DiskError as error:
                code = EXIT_FAILED
                print(f"commbench {collective.name}: error: {error}", file=sys.stderr, flush=True)
        code = world.command((code,))[0]
        watchdog.close()
        return code
    finally:
        if journal is not None:
            journal.close()
        backend.close()


def _guard(
    world: World, collective: Collective, cells: list[Cell], timeout: float, folder: str, session: int
) -> Watchdog:
    """Start the watchdog; what it has to say of a cell goes into the run folder from whichever rank is left."""

    def describe(cell: int) -> str:
        return f"{collective.name} {cells[cell]}" if cell != BETWEEN else f"{collective.name}, between two visits"

    def record(cell: int, number: int, reason: str) -> None:
        if cell != BETWEEN:
            visit = {"cell": cell, "round": number, "session": session, "status": TIMEOUT, "reason": reason}
            append_beside(Path(folder), visit)

    return Watchdog(world, timeout, describe, record)


def _open(name: str, world: World) -> Backend:
    kind = find(name)
    available = kind.probe()
    if trouble := world.first_text("" if available.ok else f"backend {name} cannot run here: {available.reason}"):
        raise UsageError(trouble)
    backend = kind()
    backend.open(world)
    return backend


def _site(world: World) -> dict[str, Any]:
    """Return, on rank 0, where the ranks sit and the memory that each may have; empty elsewhere."""
    available = manifest.memory_available()
    share = (1 << 62) if available is None else available // world.node_size
    least = -world.largest(-share)[0]
    hosts, cpus = world.gather_text(os.uname().nodename), world.gather_text(manifest.affinity())
    if hosts is None or cpus is None:
        return {}
    return {
        "hosts": hosts,
        "cpus": cpus,
        "cores": world.cores,
        "crowded": world.crowded,
        "allowance": None if least == 1 << 62 else least,
    }


def _begin(
    world: World, collective: Collective, backend: Backend, options: Options, words: Sequence[str], site: dict[str, Any]
) -> Journal:
    """Resolve the plan of a new run and open its folder."""
    asked = options.plan
    method = asked["method"] or backend.method
    rounds = asked["rounds"] or (FEW_ROUNDS if world.crowded else ROUNDS)
    crowded = f"ranks outnumber the cores of a node ({world.cores} here): times hold the wait for a core too"
    cells, notes = build(_pick(Request, asked), collective, backend, world.size, site["allowance"])
    plan = {
        "facts": _facts(world, collective, backend, method),
        "asked": asked,
        "effort": asdict(_pick(Effort, asked | {"method": method, "rounds": rounds})),
        "notes": [crowded, *notes] if world.crowded else notes,
        "cells": [cell.to_dict() for cell in cells],
    }
    contents = {
        "version": FORMAT,
        "plan": plan,
        "library": backend.facts(),
        "machine": manifest.machine(),
        "sessions": [_session(words, site)],
    }
    return Journal.create(
        Path(options.out) if options.out else _unused(f"results/{manifest.now()}-{collective.name}"), contents
    )


def _session(words: Sequence[str], site: dict[str, Any]) -> dict[str, Any]:
    """Return what the manifest keeps of each launch that went into the run."""
    about = {"started": manifest.now(), "arguments": list(words)}
    return {**about, "site": site, "environment": manifest.environment(), "load": os.getloadavg()[0]}


def _unused(path: str) -> Path:
    """Return `path`, numbered where another run began in the same second."""
    return next(found for i in count(1) if not (found := Path(path if i == 1 else f"{path}-{i}")).exists())


def _take_up(
    world: World, collective: Collective, backend: Backend, options: Options, words: Sequence[str], site: dict[str, Any]
) -> Journal:
    """Open the folder of an earlier run; its plan stands, and this launch must be able to go on with it."""
    journal = Journal.reopen(Path(options.out or ""))
    backend.algorithms(collective)  # refuses settings that choose the algorithm already
    plan = journal.manifest["plan"]
    ours = _facts(world, collective, backend, plan["facts"]["method"])
    for name in ("collective", "backend", "library", "nranks", "nnodes"):
        if plan["facts"][name] != ours[name]:
            raise ResultsError(
                f"{journal.folder} was begun with {name} {plan['facts'][name]}, this launch has {ours[name]}: "
                "resume as it was begun, or start another run by another --out"
            )
    for name in sorted(options.given.difference(_RENEWABLE)):
        if options.plan[name] != plan["asked"][name]:
            raise ResultsError(
                f"{journal.folder} holds another plan: {name} is {plan['asked'][name]} there and {options.plan[name]} "
                "here; --resume needs no arguments but --out, or start another run by another --out"
            )
    plan["effort"] |= {name: options.plan[name] for name in options.given.intersection(_RENEWABLE)}
    journal.begin_session(_session(words, site))
    return journal


def _facts(world: World, collective: Collective, backend: Backend, method: str) -> dict[str, Any]:
    """Return what all records of the run share."""
    return {
        "collective": collective.name,
        "backend": backend.name,
        "library": backend.library,
        "group": "all",
        "nranks": world.size,
        "nnodes": world.nodes,
        "method": method,
        "launch": 0,
        "busbw_factor": collective.busbw(world.size),
        "simulated": backend.simulated,
    }


def _pick(kind: type[T], asked: Mapping[str, Any]) -> T:
    """Return a `kind` (a dataclass) made of those of the options that are its fields."""
    return kind(**{field.name: asked[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _on_rank_0(world: World, work: Callable[[], T]) -> T:
    """Return on every rank what `work` gives on rank 0; raise its UsageError on every rank."""
    outcome: tuple[Any, str] = (None, "")
    if world.rank == 0:
        try:
            outcome = (work(), "")
        except UsageError as error:
            outcome = (None, str(error))
    result, trouble = world.broadcast(outcome)
    if trouble:
        raise UsageError(trouble)
    return result


def _aside(options: Options) -> TextIO:
    """Return where comments go: standard output takes them only where its format has comments."""
    return sys.stdout if options.format in ("table", "nccl-tests") else sys.stderr


def _say_first(journal: Journal, backend: Backend, collective: Collective, options: Options, backend_why: str) -> None:
    plan = journal.manifest["plan"]
    facts, effort = plan["facts"], plan["effort"]
    whose = _WHOSE_TIME[effort["average"]]
    lines = [
        f"commbench {__version__}, backend {backend_why}; {backend.library}, {backend.library_file or 'path unknown'}",
        f"{collective.title} on {facts['nranks']} rank{'s' * (facts['nranks'] > 1)}, "
        f"{facts['nnodes']} node{'s' * (facts['nnodes'] > 1)}; method {facts['method']}; time of {whose}",
        "time is the median of the rounds' medians, low and high an interval over rounds within this launch "
        "(other launches differ by more)",
        *plan["notes"],
        f"results in {journal.folder}",
    ]
    print("".join(f"# {line}\n" for line in lines), file=_aside(options), end="", flush=True)


def _lead(sweep: Sweep, cells: Sequence[Cell], agenda: Agenda, journal: Journal, options: Options) -> int:
    """Run the sweep on rank 0, print its results and return the exit code."""
    printed: set[int] = set()

    def print_json(index: int) -> None:
        if options.format == "json" and index not in printed:
            printed.add(index)
            print(screen.json_line(journal.record(index)), flush=True)

    with Progress(options.progress, len(cells)) as progress:

        def watch(index: int) -> None:
            if not agenda.unfinished(index):
                print_json(index)
            progress.update(agenda.finished, agenda.seconds_left)

        for index, cell in enumerate(cells):
            if cell.status != PLANNED:
                print_json(index)
        sweep.lead(journal, agenda, watch)
    journal.write_records()
    for index in range(len(cells)):
        print_json(index)
    records = journal.records()
    if options.format == "csv":
        screen.print_csv(records, sys.stdout)
    elif options.format == "nccl-tests":
        screen.print_nccl_tests(records, sys.stdout)
    elif options.format == "table":
        screen.print_table(records, sys.stdout)
    failures = [record for record in records if record.status in FAILURES]
    screen.print_rest(failures if options.format == "json" else records, _aside(options))
    _say_last(records, journal, options)
    return EXIT_FAILED if any(record.status in FAILURES for record in records) else EXIT_OK


def _say_last(records: Sequence[Record], journal: Journal, options: Options) -> None:
    counts = Counter(record.status for record in records)
    lines = [", ".join(f"{number} cells {status}" for status, number in counts.items())]
    if counts[NOT_MEASURED]:
        lines.append(
            f"{counts[NOT_MEASURED]} cells were cut: --resume goes on with them, a larger --budget leaves fewer"
        )
    lines.append(f"results in {journal.folder}: commbench.load({str(journal.folder)!r}) is their pandas table")
    print("".join(f"# {line}\n" for line in lines), file=_aside(options), end="", flush=True)
