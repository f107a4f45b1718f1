"""One launch: the backend opened, the plan made or taken up again, the sweep, and what is printed of it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from commbench import __version__
from commbench.backends.base import Backend, find
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, DiskError, UsageError
from commbench.measure import screen
from commbench.measure.agenda import Agenda, Effort
from commbench.measure.collective import Collective
from commbench.measure.door import on_rank_0
from commbench.measure.folder import Launch, begin, take_up
from commbench.measure.groups import Group, Seat, leaf_of_this_node
from commbench.measure.plan import PLANNED, TOO_LARGE, Cell, batches
from commbench.measure.progress import Progress
from commbench.measure.sweep import Sweep, Team
from commbench.measure.watchdog import RESTING, SETUP, Watchdog
from commbench.results import manifest
from commbench.results.journal import Journal, append_beside
from commbench.results.record import FAILURES, NOT_MEASURED, TIMEOUT, Record
from commbench.results.skew import laggards

T = TypeVar("T")

_WHOSE_TIME = {
    "rank0": "rank 0",
    "mean": "all ranks, their mean",
    "min": "the fastest rank",
    "max": "the slowest rank (-a 3; nccl-tests' default is 1, the mean)",
}


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


def run(world: World, watchdog: Watchdog, collective: Collective, options: Options, words: Sequence[str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    name, why = ("mpi", "the default") if options.backend == "auto" else (options.backend, "as asked")
    backend = _open(name, world)
    teams: dict[str, Team] = {}
    journal: Journal | None = None
    try:
        launch = Launch(world, backend, collective, options.plan, options.given, words, _site(world))

        def prepare() -> dict[str, Any]:
            nonlocal journal
            journal = (take_up if options.resume else begin)(launch, options.out)
            plan = journal.manifest["plan"]
            groups = {name: facts["order"] for name, facts in plan["facts"]["groups"].items()}
            where = {"folder": str(journal.folder.resolve()), "session": journal.session}
            return {"cells": plan["cells"], "effort": plan["effort"], "groups": groups, **where}

        plan = on_rank_0(world, prepare)
        cells, effort = [Cell(**cell) for cell in plan["cells"]], Effort(**plan["effort"])
        groups = [Group(name, tuple(ranks)) for name, ranks in plan["groups"].items()]
        together = batches(cells, effort.concurrent)
        watchdog.tell(Guide(collective, cells, groups, Path(plan["folder"]), plan["session"]))
        teams |= _teams(world, backend, groups)
        sweep = Sweep(world, backend, teams, groups, collective, cells, together, effort, watchdog.begin)
        code = EXIT_OK
        if journal is None:
            sweep.follow()
        else:
            _say_first(journal, backend, collective, options, f"{name}: {why}")
            if sweep.trouble:
                screen.note(f"{sweep.trouble}: timing by the plain loop, a microsecond slower a call")
            agenda = Agenda(cells, together, journal, effort)
            try:
                _lead(sweep, cells, agenda, journal, options)
            except DiskError as error:
                code = EXIT_FAILED
                print(f"commbench {collective.name}: error: {error}", file=sys.stderr, flush=True)
        watchdog.begin(RESTING)  # whoever reads what is printed may take their time
        if journal is not None:
            code = max(code, _print_results(journal, options))
        (code,) = world.command((code,))
        watchdog.begin(SETUP)
        return code
    finally:
        if journal is not None:
            journal.close()
        for team in teams.values():
            if team.backend is not backend:
                team.backend.close()
                team.world.close()
        backend.close()


def _teams(world: World, backend: Backend, groups: Sequence[Group]) -> dict[str, Team]:
    """Return the teams of this rank, by the name of their group: each has a library opened among its ranks."""
    teams: dict[str, Team] = {}
    for group in groups:
        if group.ranks == tuple(range(world.size)):
            teams[group.name] = Team(world, backend)
            continue
        own = world.subgroup(group.ranks)
        if own is not None:
            teams[group.name] = Team(own, type(backend)())
            teams[group.name].backend.open(own)
    return teams


class Guide:
    """Names cells for the watchdog; a timeout goes into the run folder from whichever rank is left."""

    def __init__(
        self, collective: Collective, cells: Sequence[Cell], groups: Sequence[Group], folder: Path, session: int
    ) -> None:
        self._collective, self._cells, self._folder, self._session = collective, cells, folder, session
        self._members = {group.name: group.ranks for group in groups}

    def describe(self, cell: int) -> str:
        return f"at {self._collective.name} {self._cells[cell]}"

    def concerned(self, cell: int) -> Sequence[int]:
        return self._members[self._cells[cell].group]

    def record(self, cell: int, number: int, reason: str) -> None:
        visit = {"cell": cell, "round": number, "session": self._session, "status": TIMEOUT, "reason": reason}
        append_beside(self._folder, visit)


def _open(name: str, world: World) -> Backend:
    """Return the backend called `name`, open; raise UsageError on every rank where one lacks it."""
    trouble = ""
    try:
        kind = find(name)
        available = kind.probe()
        trouble = "" if available.ok else f"backend {name} cannot run here: {available.reason}"
    except UsageError as error:
        trouble = str(error)
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)
    backend = kind()
    backend.open(world)
    return backend


def _site(world: World) -> dict[str, Any]:
    """Return, on rank 0, where the ranks sit and the memory that each may have; empty elsewhere."""
    available = manifest.memory_available()
    share = (1 << 62) if available is None else available // world.node_size
    least = -world.largest(-share)[0]
    seat = f"{os.uname().nodename}/{world.node}/{world.node_rank}/{leaf_of_this_node()}"
    gathered, cpus = world.gather_text(seat), world.gather_text(manifest.affinity())
    if gathered is None:
        return {}
    seats = [Seat(host, int(node), int(place), leaf) for host, node, place, leaf in (t.split("/") for t in gathered)]
    return {
        "seats": [asdict(seat) for seat in seats],
        "cpus": cpus,
        "cores": world.cores,
        "crowded": world.crowded,
        "allowance": None if least == 1 << 62 else least,
    }


def _aside(options: Options) -> TextIO:
    """Return where comments go: standard output takes them only where its format has comments."""
    return sys.stdout if options.format in ("table", "nccl-tests") else sys.stderr


def _say_first(journal: Journal, backend: Backend, collective: Collective, options: Options, backend_why: str) -> None:
    plan = journal.manifest["plan"]
    facts, effort = plan["facts"], plan["effort"]
    whose = "first entry to last exit" if facts["method"] == "clock" else f"of {_WHOSE_TIME[effort['average']]}"
    lines = [
        f"commbench {__version__}, backend {backend_why}; {backend.library}, {backend.library_file or 'path unknown'}",
        f"{collective.title} on {facts['size']} rank{'s' * (facts['size'] > 1)}, "
        f"{facts['nodes']} node{'s' * (facts['nodes'] > 1)}; method {facts['method']}; time {whose}",
        "time: median of the rounds' medians; low, high: interval over rounds (launches differ by more)",
        *plan["notes"],
        f"results in {journal.folder}",
    ]
    print("".join(f"# {line}\n" for line in lines), file=_aside(options), end="", flush=True)


def _lead(sweep: Sweep, cells: Sequence[Cell], agenda: Agenda, journal: Journal, options: Options) -> None:
    """Run the sweep on rank 0; JSON is printed as cells are done."""
    printed: set[int] = set()

    def print_json(index: int) -> None:
        if options.format == "json" and index not in printed:
            printed.add(index)
            print(screen.json_line(journal.record(index)), flush=True)

    try:
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
    finally:
        for index in range(len(cells)):
            print_json(index)


def _print_results(journal: Journal, options: Options) -> int:
    """Print what was measured, and return the exit code that it deserves."""
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
    return EXIT_FAILED if failures else EXIT_OK


def _say_last(records: Sequence[Record], journal: Journal, options: Options) -> None:
    counts = Counter(record.status for record in records)
    lines = [", ".join(f"{number} cell{'s' * (number != 1)} {status}" for status, number in counts.items())]
    if cut := sum(record.status == NOT_MEASURED and record.reason != TOO_LARGE for record in records):
        lines.append(f"{cut} cut for want of time: --resume goes on with them, a larger --budget leaves fewer")
    drifting = [f"{r.algorithm} {r.size} B {r.drift:+.0%}" for r in records if r.drift is not None]
    if drifting:
        more = f" and {len(drifting) - 5} more" if len(drifting) > 5 else ""
        lines.append(f"drifted over their rounds, so the machine changed meanwhile: {', '.join(drifting[:5])}{more}")
    lines += laggards(records)
    lines.append(f"read with commbench.load({str(journal.folder)!r}), which needs pandas")
    print("".join(f"# {line}\n" for line in lines), file=_aside(options), end="", flush=True)
