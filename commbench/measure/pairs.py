"""`commbench.pairs`: which node, link or trunk is slow, from every pair of nodes. Over MPI, one rank a node.

Rank 0 says which cells are visited at once; their ranks do so, all others wait without using their core; rank 0 keeps
what it gave. Three modes share this: pairs, `--incast` and `--halve` (see tournament.py).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, TextIO

from commbench.backends.base import Backend, find
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, DiskError, ResultsError, UsageError
from commbench.measure import folder, pairs_screen, screen, tournament
from commbench.measure.door import on_rank_0, run_door
from commbench.measure.messages import Messages, room
from commbench.measure.parser import Parser
from commbench.measure.progress import Progress
from commbench.measure.site import Seat, site
from commbench.measure.tournament import ALLREDUCE, HALVE, INCAST, PAIRS, Duty, Halving, Plan, Visit
from commbench.measure.watchdog import BETWEEN, RESTING, SETUP, Watchdog
from commbench.results import manifest
from commbench.results.journal import Journal, append_beside, new_folder
from commbench.results.record import FORMAT
from commbench.results.status import FAILURES, NOT_MEASURED, TIMEOUT
from commbench.units import approximate_size, format_size, parse_number, parse_size, parse_whole

NAME = "pairs"
FORMATS = ("table", "json", "csv")
_RENEWABLE = ("rounds", "budget")

EXAMPLES = """examples:
  srun --ntasks-per-node 1 python -m commbench.pairs
      every two nodes; tables of latency and bandwidth, and what the slow pairs share
  mpirun -n 4 python -m commbench.pairs -e 4M --rounds 8 --concurrent off --out results/pairs
  mpirun -n 4 python -m commbench.pairs --incast 3
  mpirun -n 4 python -m commbench.pairs --halve

exit codes: 0 all was measured, or cut by the budget (something slow is no failure); 1 data arrived wrong;
2 bad usage or input; 124 timeout
"""


@dataclass(frozen=True)
class Options:
    """The command line, understood."""

    plan: dict[str, Any]
    given: frozenset[str]  # the names in `plan` that the user gave
    format: str
    out: str | None
    resume: bool
    progress: str
    timeout: float


def parser() -> argparse.ArgumentParser:
    """Return the options of the door. All values stay text here; `read` understands them."""
    it = Parser(
        prog=f"commbench {NAME}",
        description="Measure every two nodes (of one node: every two ranks) over MPI, and name what slow pairs share.",
        epilog=EXAMPLES,
    )
    add = it.add_argument_group("what is measured").add_argument
    add("-b", "--minbytes", metavar="SIZE", default="8", help="message of the ping-pong (default 8)")
    add("-e", "--maxbytes", metavar="SIZE", default="1M", help="message that tells the bandwidth (default 1M)")
    add("--concurrent", choices=("on", "off"), default="on", help="disjoint pairs at once, or one by one (default on)")
    add("--incast", metavar="K", help="instead of pairs: K senders to one receiver, for every receiver")
    add("--halve", action="store_true", help="instead of pairs: all-reduce among halves, of which the slow is halved")
    add = it.add_argument_group("how it is measured").add_argument
    add("-n", "--iters", metavar="N", help="messages of a visit (default: as many as fit into a moment)")
    add("--rounds", metavar="N", default="5", help="visits of each pair, more make it surer (default 5)")
    add("--budget", metavar="S", default="120", help="seconds for all, 0: no limit (default 120)")
    add("-T", "--timeout", metavar="S", default="300", help="end the job when a visit takes longer (default 300)")
    add("--seed", metavar="N", default="1", help="of the order of visits (default 1)")
    add = it.add_argument_group("what comes out").add_argument
    add("--format", choices=FORMATS, default="table", help="on standard output (default table)")
    add("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    add("--out", metavar="DIR", help=f"the run folder (default results/<UTC time>-{NAME})")
    add("--resume", action="store_true", help="go on with the run in --out: its plan, what it lacks")
    add("--progress", choices=("auto", "on", "off"), default="auto", help="on standard error (default: on a terminal)")
    return it


def read(arguments: Sequence[str]) -> Options:
    """Understand the command line; raise UsageError on the first thing that cannot be."""
    raw, bare = parser().parse_args(arguments), vars(parser().parse_args([]))
    if raw.incast is not None and raw.halve:
        raise UsageError("--incast and --halve exclude each other: one run, one question")
    plan = {
        "mode": HALVE if raw.halve else PAIRS if raw.incast is None else INCAST,
        "senders": None if raw.incast is None else parse_whole(raw.incast, "--incast", least=1),
        "small": _size(raw.minbytes, "-b"),
        "large": _size(raw.maxbytes, "-e"),
        "concurrent": raw.concurrent == "on",
        "iterations": None if raw.iters is None else parse_whole(raw.iters, "-n", least=1),
        "rounds": parse_whole(raw.rounds, "--rounds", least=1),
        "budget": parse_number(raw.budget, "--budget") or None,
        "seed": parse_whole(raw.seed, "--seed"),
    }
    if raw.resume and not raw.out:
        raise UsageError("--resume goes on with the run in --out DIR: name its folder")
    given = {field for flag, field in _FIELDS.items() if vars(raw)[flag] != bare[flag]}
    timeout = parse_number(raw.timeout, "-T", least=1)
    return Options(plan, frozenset(given), raw.format, raw.out, raw.resume, raw.progress, timeout)


_FIELDS = {  # flag: the field of Options.plan that it sets
    "incast": "senders",
    "halve": "mode",
    "minbytes": "small",
    "maxbytes": "large",
    "concurrent": "concurrent",
    "iters": "iterations",
    "rounds": "rounds",
    "budget": "budget",
    "seed": "seed",
}


def _size(text: str, flag: str) -> int:
    size = parse_size(text, flag)
    if size < 1:
        raise UsageError(f"{flag} is a size of at least 1 byte, not {text!r}")
    return size


def main(draw: Callable[[Path], str], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the door; `draw` makes a picture of a run folder and says so, on rank 0 at the very end."""

    def work(world: World, watchdog: Watchdog, options: Options, words: Sequence[str]) -> int:
        return run(world, watchdog, options, words, draw)

    run_door(NAME, parser(), read, work, arguments)


def run(world: World, watchdog: Watchdog, options: Options, words: Sequence[str], draw: Callable[[Path], str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    if world.size < 2:
        raise UsageError(f"{NAME} needs at least 2 ranks, one on each node: mpirun -n 2 python -m commbench.{NAME}")
    backend: Backend = find("mpi")()
    backend.open(world)
    place = site(world)
    journal: Journal | None = None
    try:

        def prepare() -> dict[str, Any]:
            nonlocal journal
            journal = (_take_up if options.resume else _begin)(world, backend, options, words, place)
            plan = journal.manifest["plan"]
            return {
                "duties": _build(plan["effort"], plan["places"], plan["names"]).duties,
                "effort": plan["effort"],
                "folder": str(journal.folder.resolve()),
                "session": journal.session,
            }

        plan = on_rank_0(world, prepare)
        duties: list[Duty] = plan["duties"]
        messages = Messages(world, duties, plan["effort"]["iterations"])
        crew = _Crew(world, watchdog, duties, messages)
        watchdog.tell(_Guide(crew, Path(plan["folder"]), plan["session"]))
        code, cut = EXIT_OK, False
        if journal is None:
            crew.follow()
        else:
            pairs_screen.say_first(journal, backend, _aside(options))
            try:
                cut = _lead(crew, journal, options)
            except DiskError as error:
                code = EXIT_FAILED
                print(f"commbench {NAME}: error: {error}", file=sys.stderr, flush=True)
            crew.end()
        watchdog.begin(RESTING)  # whoever reads what is printed may take their time
        if journal is not None:
            code = max(code, _print_results(journal, options, cut, draw))
        (code,) = world.command((code,))
        watchdog.begin(SETUP)
        messages.close()
    except UsageError:  # on all ranks; after any other error this rank is alone, and closing together would wait
        backend.close()
        raise
    finally:
        if journal is not None:
            journal.close()
    backend.close()
    return code


class _Crew:
    """One launch over the cells of a plan, on every rank."""

    def __init__(self, world: World, watchdog: Watchdog, duties: Sequence[Duty], messages: Messages) -> None:
        self._world, self._watchdog, self._messages = world, watchdog, messages
        self.duties = duties
        self.now = Visit(0, ())  # what is under way

    def lead(self, visit: Visit) -> dict[int, dict[str, Any]]:
        """Let all ranks make a visit; return what each of its cells gave, on rank 0."""
        self._world.broadcast(visit)
        gathered = self._visit(visit) or []
        return dict(entry for entry in gathered if entry is not None)

    def end(self) -> None:
        """Tell all ranks that there are no more visits."""
        self._world.broadcast(None)

    def follow(self) -> None:
        """Visit what rank 0 says, on every other rank."""
        while True:
            self._watchdog.begin(BETWEEN)
            visit = self._world.broadcast(None)
            if visit is None:
                return
            self._visit(visit)

    def _visit(self, visit: Visit) -> list[Any] | None:
        self.now = visit
        self._watchdog.begin(visit.cells[0], visit.number)
        gave = None
        for cell in visit.cells:
            if self._world.rank in self.duties[cell].ranks:
                kept = self._messages.visit(self.duties[cell], visit.number)
                gave = None if kept is None else (cell, kept)
        self._world.meet_asleep()
        gathered = self._world.gather(gave)
        self._watchdog.begin(BETWEEN)
        return gathered


class _Guide:
    """Names visits for the watchdog; a timeout goes into the run folder from whichever rank is left."""

    def __init__(self, crew: _Crew, folder: Path, session: int) -> None:
        self._crew, self._folder, self._session = crew, folder, session

    def describe(self, cell: int) -> str:
        together = len(self._crew.now.cells)
        return f"at {NAME}, {self._crew.duties[cell].kind}" + f" of {together} pairs at once" * (together > 1)

    def concerned(self, cell: int) -> Sequence[int]:
        return sorted({rank for cell in self._crew.now.cells for rank in self._crew.duties[cell].ranks})

    def give_up(self) -> None:
        """MPI is ended by its abort."""

    def record(self, cell: int, number: int, reason: str) -> None:
        for lost in self._crew.now.cells:  # what the others of the visit gave is lost with it
            visit = {"cell": lost, "round": number, "session": self._session, "status": TIMEOUT, "reason": reason}
            append_beside(self._folder, visit)


def _build(effort: Mapping[str, Any], places: Sequence[int], names: Sequence[str]) -> Plan:
    if effort["mode"] == PAIRS:
        return tournament.pairs(places, names, effort["small"], effort["large"])
    if effort["mode"] == INCAST:
        return tournament.incasts(places, names, effort["senders"], effort["large"])
    return Halving(places, names, effort["large"]).plan


def _visits(journal: Journal) -> Iterator[Visit]:
    """Yield what is to be visited and was not yet, in order."""
    plan = journal.manifest["plan"]
    effort, n = plan["effort"], len(plan["places"])
    if effort["mode"] == HALVE:
        yield from Halving(plan["places"], plan["names"], effort["large"]).visits(journal.visits, effort["rounds"])
        return
    if effort["mode"] == PAIRS:
        every = tournament.pair_visits(n, effort["rounds"], effort["seed"], effort["concurrent"])
    else:
        every = tournament.incast_visits(n, effort["rounds"], effort["seed"])
    for visit in every:
        if any(tournament.left_over(journal.visits[cell], visit.number) for cell in visit.cells):
            yield visit


def _lead(crew: _Crew, journal: Journal, options: Options) -> bool:
    """Visit all that there is to visit, on rank 0; return whether the budget cut it short."""
    effort = journal.manifest["plan"]["effort"]
    begin, cut = perf_counter(), False

    def left() -> float | None:
        return None if effort["budget"] is None else max(0.0, effort["budget"] - (perf_counter() - begin))

    with Progress(options.progress, len(journal.cells)) as progress:
        for visit in _visits(journal):
            if left() == 0:
                cut = True
                break
            for cell, kept in crew.lead(visit).items():
                if tournament.left_over(journal.visits[cell], visit.number):
                    journal.append({"cell": cell, "round": visit.number, "session": journal.session, **kept})
            progress.update(lambda: sum(map(len, journal.visits.values())) // effort["rounds"], left)
    if effort["mode"] == HALVE and not cut:
        for cell in (cell for cell, visits in journal.visits.items() if not visits):
            about = {"cell": cell, "round": 0, "session": journal.session, "status": NOT_MEASURED}
            journal.append({**about, "reason": "off the way of the search"})
    journal.write_records()
    pairs_screen.keep(journal)
    return cut


def _print_results(journal: Journal, options: Options, cut: bool, draw: Callable[[Path], str]) -> int:
    """Print what was measured and what is slow, and return the exit code."""
    records, aside = journal.records(), _aside(options)
    if options.format == "json":
        print("".join(f"{screen.json_line(record)}\n" for record in records), end="", flush=True)
    elif options.format == "csv":
        screen.print_csv(records, sys.stdout)
    else:
        pairs_screen.print_table(journal, sys.stdout)
    failures = [record for record in records if record.status in FAILURES]
    screen.print_rest(failures, aside)
    counts = Counter(record.status for record in records).items()
    lines = [*pairs_screen.findings(journal), ", ".join(f"{number} cells {status}" for status, number in counts)]
    if cut:
        lines.append("the budget was spent before all rounds were: --resume goes on, a larger --budget goes further")
    if journal.manifest["plan"]["mode"] == PAIRS:
        lines.append(draw(journal.folder))
    _say([*lines, f"results in {journal.folder}"], aside)
    return EXIT_FAILED if failures else EXIT_OK


def _aside(options: Options) -> TextIO:
    return sys.stdout if options.format == "table" else sys.stderr


def _say(lines: Sequence[str], out: TextIO) -> None:
    print("".join(f"# {line}\n" for line in lines), file=out, end="", flush=True)


def _seats(site: Mapping[str, Any]) -> list[Seat]:
    return [Seat(**seat) for seat in site["seats"]]


def names_of(seats: Sequence[Seat]) -> tuple[list[int], list[str]]:
    """Return the ranks that take part, and their names: the first rank of each node, or all ranks of one node."""
    if len({seat.node for seat in seats}) == 1:
        return list(range(len(seats))), [f"rank {rank}" for rank in range(len(seats))]
    places = [rank for rank, seat in enumerate(seats) if seat.on_node == 0]
    hosts = [seats[rank].host for rank in places]
    distinct = len(set(hosts)) == len(hosts)
    return places, hosts if distinct else [f"{seats[rank].host} ({seats[rank].node})" for rank in places]


def _begin(world: World, backend: Backend, options: Options, words: Sequence[str], site: Mapping[str, Any]) -> Journal:
    """Make the plan of a new run and open its folder, on rank 0."""
    seats = _seats(site)
    places, names = names_of(seats)
    effort = options.plan
    plan = _build(effort, places, names)
    need = 2 * max(map(room, plan.duties))
    free = _memory(site, places)
    if free is not None and need > free // 2:
        raise UsageError(
            f"messages of {format_size(effort['large'])} (-e) need {approximate_size(need)} of memory a rank, and half "
            f"of what is free is {approximate_size(free // 2)}: take smaller ones"
        )
    cells = [_cell(duty, owner) for duty, owner in zip(plan.duties, plan.owners, strict=True)]
    contents = {
        "version": FORMAT,
        "plan": {
            "facts": folder.facts(NAME, backend, world, "loop")
            | {"groups": {group.name: folder.group_facts(group.ranks, seats, 1.0) for group in plan.groups}},
            "mode": effort["mode"],
            "places": places,
            "names": names,
            "effort": effort,
            "notes": _notes(site, effort),
            "cells": cells,
        },
        "library": backend.facts(),
        "machine": manifest.machine(),
        "sessions": [folder.session(words, site)],
    }
    return Journal.create(
        Path(options.out) if options.out else new_folder(f"results/{manifest.now()}-{NAME}"), contents
    )


def _memory(site: Mapping[str, Any], places: Sequence[int]) -> int | None:
    """Return the bytes that each rank that takes part may have: all ranks of one node share it, or a node has one."""
    if site["memory"] is None:
        return None
    return int(site["memory"]) // (len(places) if len({seat.node for seat in _seats(site)}) == 1 else 1)


def _take_up(
    world: World, backend: Backend, options: Options, words: Sequence[str], site: Mapping[str, Any]
) -> Journal:
    """Open the folder of an earlier run; its plan stands, and this launch must be able to go on with it."""
    journal = Journal.reopen(Path(options.out or ""))
    plan = journal.manifest["plan"]
    here = folder.facts(NAME, backend, world, "loop")
    here["places"], here["names"] = names_of(_seats(site))
    there = {**plan["facts"], "places": plan.get("places"), "names": plan.get("names")}
    folder.check_same(journal.folder, there, here, {**folder.SAME, "places": "ranks", "names": "places"})
    _check_plan(journal)
    folder.renew(journal, options.plan, options.given, plan["effort"], _RENEWABLE)
    journal.begin_session(folder.session(words, site))
    return journal


def _check_plan(journal: Journal) -> None:
    """Raise ResultsError where the plan of a run folder is not one that this door made."""
    plan = journal.manifest["plan"]
    try:
        built = _build(plan["effort"], plan["places"], plan["names"])
        cells = [_cell(duty, owner) for duty, owner in zip(built.duties, built.owners, strict=True)]
        if cells != plan["cells"] or not {*_FIELDS.values()} <= plan["effort"].keys():
            raise ValueError("its cells are others")
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise ResultsError(
            f"{journal.folder} holds no plan of commbench {NAME} ({type(error).__name__}: {error}): start another run "
            "by another --out"
        ) from None


def _cell(duty: Duty, owner: str) -> dict[str, Any]:
    reduces = duty.kind == ALLREDUCE
    return {
        "algorithm": duty.kind,
        "dtype": "int32" if reduces else "uint8",
        "redop": "sum" if reduces else None,
        "root": duty.root,
        "size": duty.volume,
        "count": max(1, duty.size // 4) if reduces else duty.size,
        "inplace": False,
        "buffer": "host",
        "group": owner,
        "status": "planned",
        "reason": "",
    }


def _notes(site: Mapping[str, Any], effort: Mapping[str, Any]) -> list[str]:
    notes = []
    if site["crowded"]:
        notes.append(f"ranks outnumber the cores of a machine ({site['cores']} here): times hold the wait for one too")
    if effort["mode"] == PAIRS and effort["concurrent"]:
        notes.append(
            "disjoint pairs at once: each has its part of a trunk that they share (--concurrent off: all of it)"
        )
    return notes
