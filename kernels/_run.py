"""One launch: the device taken, the plan made or taken up again, rows visited in shuffled rounds, and what is printed.

All ranks visit one row at a time, at once, each on its own device. Rank 0 keeps what they gave.
"""

from __future__ import annotations

import csv
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from commbench import __version__
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, DiskError, ResultsError, UsageError
from commbench.kernels import _study
from commbench.kernels._backend import BACKENDS, Backend, Facts, find, shared
from commbench.kernels._factors import FACTORS
from commbench.kernels._pattern import GUARD, SPARSE, Problem
from commbench.kernels._screen import answers, print_waterfalls
from commbench.kernels._study import Row, Study
from commbench.kernels._verify import Check
from commbench.measure import folder
from commbench.measure.door import on_rank_0
from commbench.measure.progress import Progress
from commbench.measure.screen import note
from commbench.measure.site import Seat, site
from commbench.measure.watchdog import BETWEEN, RESTING, SETUP, Watchdog
from commbench.results import manifest, regime
from commbench.results.journal import Journal, append_beside, new_folder, read_manifest
from commbench.results.kernels import KERNELS, Result, device_names, results, slow
from commbench.results.record import FORMAT
from commbench.results.regime import drifts_by_chance
from commbench.results.stats import FEWEST_ROUNDS
from commbench.results.status import FAILURES, NOT_MEASURED, OK, TIMEOUT, WRONG
from commbench.units import LARGEST, approximate_size

if TYPE_CHECKING:
    from commbench.kernels._door import Options

BESIDE = "kernels.jsonl"  # in the run folder: records with what kernels have beside
WATERFALL = "weight_update"  # the kernel whose factors are measured where all kernels are
BASE = 1  # the place of the baseline among the rows of a study
_VISIT = 0.02  # seconds of timed launches that a visit aims at
_LAUNCHES = (1, 50)  # of a visit
_EMPTY = 5  # launches of next to nothing beside them
SETTING_UP = 0.6  # of a study's time that checks and set-up may take, where it is limited
_RENEWABLE = ("rounds", "budget")
_SAME = {"collective": "door", "backend": "back end", "library": "library", "size": "number of ranks"}


def run(world: World, watchdog: Watchdog, options: Options, words: Sequence[str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    device, why = _choose(world, options)
    backend = _open(world, device, options.plan["library"])
    devices = world.gather(_about(backend, options.peak)) or []  # on rank 0
    launch = Launch(world, backend, device, options, words, site(world), devices)
    journal: Journal | None = None
    try:

        def prepare() -> dict[str, Any]:
            nonlocal journal
            journal = (_take_up if options.resume else _begin)(launch)
            plan = journal.manifest["plan"]
            about = {"folder": str(journal.folder.resolve()), "session": journal.session}
            return {"cells": plan["cells"], "effort": plan["effort"], **about}

        plan = on_rank_0(world, prepare)
        studies = _study.from_cells(plan["cells"], world.size, options.patterns)
        watchdog.tell(_Guide(studies, world.size, Path(plan["folder"]), plan["session"]))
        crew = _Crew(world, watchdog, backend, studies, plan["effort"], journal)
        if journal is not None:
            _say(_first_lines(journal, device, why), _aside(options))
        try:
            code = crew.carry_out(options.progress)
        except MemoryError as error:  # one rank's, which no other can wait for
            note(f"error: memory ran out on rank {world.rank} ({error}); give a smaller --size, or start fewer ranks")
            world.abort(EXIT_FAILED)
        watchdog.begin(RESTING)  # whoever reads what is printed may take their time
        if journal is not None:
            code = max(code, _print_results(journal, studies, devices, options, crew.spent))
        (code,) = world.command((code,))
        watchdog.begin(SETUP)
    finally:
        if journal is not None:
            journal.close()
    backend.close()
    return code


def _choose(world: World, options: Options) -> tuple[str, str]:
    """Return the kind of device, alike on all ranks, and why."""
    if options.plan["device"] is not None:
        return options.plan["device"], "as asked"
    if options.resume:
        return on_rank_0(world, lambda: _begun_on(Path(options.out or ""))), "as begun"
    for device in ("cuda", "rocm"):
        trouble = _trouble(device, options.plan["library"])
        if not world.largest(bool(trouble))[0]:
            return device, "the default, where every rank has one"
    return "cpu", "the default: not every rank has a GPU (--device cuda says why)"


def _begun_on(folder: Path) -> str:
    """Return the kind of device of an earlier run."""
    device = str(read_manifest(folder)["plan"].get("device"))
    if device not in BACKENDS:
        raise ResultsError(
            f"{folder} holds no run of kernels: name the folder of one, or start another by another --out"
        )
    return device


def _trouble(device: str, library: str | None) -> str:
    try:
        find(device, library)
    except UsageError as error:
        return str(error)
    return ""


def _open(world: World, device: str, library: str | None) -> Backend:
    """Return the back end for this rank's device; raise UsageError on every rank where one cannot have its own."""
    backend, trouble = None, ""
    try:
        backend = find(device, library)(device, world.node_rank)
    except UsageError as error:
        trouble = str(error)
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)
    assert backend is not None
    devices = world.gather([os.uname().nodename, backend.facts.identity, backend.facts.uuid])
    if trouble := world.broadcast("" if devices is None else shared(devices)):
        raise UsageError(trouble)
    backend.share(world.node_size, world.cores)
    return backend


def _about(backend: Backend, peak: float | None) -> dict[str, Any]:
    """Return what the manifest keeps of this rank's device; `peak` was given by --peak."""
    facts = backend.facts
    about = {name: getattr(facts, name) for name in ("name", "library", "cache", "free", "peak", "peak_source")}
    if peak is not None:
        about |= {"peak": peak, "peak_source": "the peak given by --peak"}
    return {**about, "identity": facts.identity, "health": backend.health()}


def _begin(launch: Launch) -> Journal:
    """Make the plan of a new run and open its folder, on rank 0."""
    world, backend, device, options, place = launch.world, launch.backend, launch.device, launch.options, launch.site
    asked = options.plan
    chosen = _patterns(options)
    factors = {pattern.label: asked["factors"] for pattern in chosen}
    if asked["factors"] is None:
        every = options.name == "kernels"
        first = next((one for one in chosen if one.name == WATERFALL), None)
        factors = {one.label: list(FACTORS) if one is first or not every else [] for one in chosen}
    chosen.sort(key=lambda one: bool(factors[one.label]))  # what has factors last: each baseline is there before them
    studies = _study.build(chosen, asked["dtypes"], factors, backend, launch.facts, device, asked["size"])
    machine, now = manifest.machine(), folder.session(launch.words, place)
    notes = [*_notes(launch, studies), *regime.findings(place, machine, now["load"])]
    seats = [Seat(**seat) for seat in place["seats"]]
    groups = {f"rank {rank}": folder.group_facts([rank], seats, 1.0) for rank in range(world.size)}
    contents = {
        "version": FORMAT,
        "plan": {
            "facts": {
                "collective": KERNELS,
                "backend": backend.name,
                "library": backend.facts.library,
                "method": "loop",
                "launch": 0,
                "simulated": False,
                "size": world.size,
                "nodes": world.nodes,
                "groups": groups,
            },
            "device": device,
            "effort": asked,
            "notes": notes,
            "cells": _study.to_cells(
                studies, backend.facts.memory, list(groups), "host" if device == "cpu" else "device"
            ),
        },
        "library": {"devices": list(launch.devices)},
        "machine": machine,
        "sessions": [now],
    }
    out = Path(options.out) if options.out else new_folder(f"results/{manifest.now()}-{options.name}")
    return Journal.create(out, contents)


def _patterns(options: Options) -> list[Any]:
    """Return the patterns asked for: by default each kernel's first variant."""
    asked = options.plan
    variants = None if asked["variants"] in (None, ["all"]) else asked["variants"]
    found = _study.choose([one for one in options.patterns if one.name in asked["kernels"]], variants)
    if asked["variants"] is None and options.name != "kernels":
        return found[:1]
    return found


def _notes(launch: Launch, studies: Sequence[Study]) -> list[str]:
    notes = []
    backend, device = launch.backend, launch.device
    asked, facts = launch.options.plan, launch.facts
    size = asked["size"]
    if size is not None and size < _study.CACHES * facts.cache:
        notes.append(
            f"arrays of {approximate_size(size)} are less than {_study.CACHES} times the cache of "
            f"{approximate_size(facts.cache)}: what is measured is the cache as well"
        )
    elif size is not None:
        rows = [row for study in studies for row in study.rows if not row.level.access.warm]
        few = [row.name for row in rows if row.touched(facts.memory) < _study.LEAST * facts.cache]
        if few:
            notes.append(
                f"touch less than {_study.LEAST} times the cache of {approximate_size(facts.cache)}, so that it is "
                f"measured as well: {', '.join(few)}; give a larger --size"
            )
    have = {row.level.factor for study in studies for row in study.rows}
    if lacking := [name for name in asked["factors"] or () if name not in have]:
        if set(lacking) == set(asked["factors"]):
            raise UsageError(
                f"{', '.join(lacking)}: no such factor on {device} by {backend.name} for these kernels; there are "
                f"{', '.join(_study.offered(studies, backend)) or 'none'}"
            )
        notes.append(f"not on {device} by {backend.name}: {', '.join(lacking)}")
    return notes


def _take_up(launch: Launch) -> Journal:
    """Open the folder of an earlier run; its plan stands, and this launch must be able to go on with it."""
    world, backend, options = launch.world, launch.backend, launch.options
    journal = Journal.reopen(Path(options.out or ""))
    plan = journal.manifest["plan"]
    here = {"collective": KERNELS, "backend": backend.name, "library": backend.facts.library, "size": world.size}
    try:
        folder.check_same(journal.folder, plan["facts"], here, _SAME)
        studies = _study.from_cells(plan["cells"], world.size, options.patterns)
        _check_effort(plan["effort"])
        folder.renew(journal, options.plan, options.given, plan["effort"], _RENEWABLE)
        results(journal.cells, journal.visits, journal.records(), [about["peak"] for about in launch.devices])
        _first_lines(journal, launch.device, "")
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ResultsError(
            f"{journal.folder} holds no run of these kernels ({type(error).__name__}: {error}): start another run by "
            "another --out"
        ) from None
    for study in studies:
        _study.check_memory(study, launch.facts.free, plan["effort"]["size"])
        _study.check_lists(study)
    journal.begin_session(folder.session(launch.words, launch.site))
    return journal


def _check_effort(effort: Mapping[str, Any]) -> None:
    """Raise where the effort in a manifest is none that `_begin` writes."""
    rounds, budget, size, _ = (effort[name] for name in ("rounds", "budget", "size", "seed"))
    if not (isinstance(rounds, int) and 1 <= rounds <= LARGEST):
        raise ValueError(f"rounds {rounds!r}")
    if not (budget is None or (isinstance(budget, int | float) and 0 < budget < inf)):
        raise ValueError(f"budget {budget!r}")
    if not (size is None or (isinstance(size, int) and 0 < size <= LARGEST)):
        raise ValueError(f"size {size!r}")


@dataclass(frozen=True)
class Launch:
    """What the plan of a run depends on: who is there, the device, what was asked for."""

    world: World
    backend: Backend
    device: str
    options: Options
    words: Sequence[str]  # the command line
    site: Mapping[str, Any]
    devices: Sequence[Mapping[str, Any]]  # of each rank, what the manifest keeps

    @property
    def facts(self) -> Facts:
        """What the devices of all ranks have: rank 0's, but the largest cache and the least memory of them."""
        caches, free = ([about[name] for about in self.devices] for name in ("cache", "free"))
        return replace(self.backend.facts, cache=max(caches), free=min(free))


class _Crew:
    """The ranks at work on the studies of a plan."""

    def __init__(
        self,
        world: World,
        watchdog: Watchdog,
        backend: Backend,
        studies: Sequence[Study],
        effort: Mapping[str, Any],
        journal: Journal | None,
    ) -> None:
        self._world, self._watchdog, self._backend = world, watchdog, backend
        self._studies, self._effort, self._journal = studies, effort, journal
        self._begin = perf_counter()
        self._spent: dict[str, float] = {}
        self._made = 0
        self._begun = False  # whether some study was
        self._takes = 0.0  # seconds until the baseline of the last one was ready: the next one takes them too
        self._full = False  # the disk, on rank 0: nothing more can be kept

    def carry_out(self, progress: str) -> int:
        """Measure all that there is to measure; return the exit code."""
        code, first = EXIT_OK, 0
        steps = sum(len(study.rows) for study in self._studies) * (1 + self._effort["rounds"])
        with Progress(progress if self._journal else "off", steps, "step") as self._bar:
            for number, study in enumerate(self._studies):
                left_rows = sum(len(other.rows) for other in self._studies[number:])
                deadline = self._deadline(len(study.rows) / left_rows)
                code = max(code, self._measure(study, first, deadline))
                first += len(study.rows) * self._world.size
                self._step(
                    sum(len(other.rows) for other in self._studies[: number + 1]) * (1 + self._effort["rounds"])
                    - self._made
                )
        if self._journal is not None and not self._full:
            self._write(self._journal.write_records)
        return EXIT_FAILED if self._full else code

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by what they went into."""
        return self._spent

    @contextmanager
    def _spending(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + perf_counter() - begin

    def _step(self, number: int = 1) -> None:
        """Note that so many steps are done: a row checked, or visited in a round."""
        self._made += number
        self._bar.update(lambda: self._made, self._seconds_left)

    def _seconds_left(self) -> float | None:
        budget = self._effort["budget"]
        return None if budget is None else max(0.0, self._begin + budget - perf_counter())

    def _late(self, deadline: float | None) -> bool:
        """Whether rank 0's clock is past a deadline, or its disk is full; the same on all ranks."""
        late = self._full or (deadline is not None and perf_counter() >= deadline)
        return bool(self._world.command((self._journal is not None and late,))[0])

    def _write(self, work: Callable[[], None]) -> None:
        """Let `work` write to the run folder, on rank 0; where the disk is full say so, and stop after this round."""
        try:
            if not self._full:
                work()
        except DiskError as error:
            note(str(error))
            self._full = True

    def _append(self, visit: dict[str, Any]) -> None:
        assert self._journal is not None
        self._write(partial(self._journal.append, visit))

    def _done(self, study: Study, first: int) -> list[set[int]]:
        """Return for each row the rounds in which all ranks have visited it."""
        ranks, rounds = self._world.size, self._effort["rounds"]
        done = None
        if self._journal is not None:
            cells = [self._journal.visits[first + i] for i in range(len(study.rows) * ranks)]
            each = [{visit["round"] for visit in visits if visit["status"] == OK} for visits in cells]
            done = [
                {number for number in set.intersection(*each[row * ranks : (row + 1) * ranks]) if number < rounds}
                for row in range(len(study.rows))
            ]
        found: list[set[int]] = self._world.broadcast(done)
        return found

    def _deadline(self, part: float) -> float | None:
        """Return when the next study ends at the latest: it has its part of what the budget has left."""
        if self._effort["budget"] is None:
            return None
        now = perf_counter()
        return now + part * max(0.0, self._begin + self._effort["budget"] - now)

    def _measure(self, study: Study, first: int, deadline: float | None) -> int:
        """Check the rows of a study, then visit them round by round, as far as the time goes.

        Checks take SETTING_UP of it at most; ceiling and baseline are there of each study that begins.
        """
        done = self._done(study, first)
        rows = [row for row, rounds in enumerate(done) if len(rounds) < self._effort["rounds"]]
        budget = self._effort["budget"]
        over = None if budget is None else self._begin + budget - self._takes
        if not rows or self._late(over if self._begun else None):  # a launch that measures nothing helps nobody
            self._note_cut(first, rows, "the budget was spent")
            return EXIT_OK
        self._begun = True
        begin = perf_counter()
        ready = None if deadline is None else begin + SETTING_UP * (deadline - begin)
        self._watchdog.begin(SETUP)
        with self._spending("set-up"):
            memory = {name: self._backend.allocate(size) for name, size in study.arenas.items()}
            if study.pattern.sums:
                memory["sum"] = self._backend.allocate(8)
        launches: dict[int, _Launches] = {}
        filled: set[str] = set()
        for row in sorted(rows, key=lambda row: row != BASE):  # the baseline first, and all of it
            if row > BASE and self._late(ready):
                break
            self._watchdog.begin(first + row * self._world.size)
            launches[row] = self._ready(study.rows[row].problem, memory, filled, whole=row == BASE)
            self._step()
            if row <= BASE:
                self._takes = perf_counter() - begin
        cut = [row for row in rows if row not in launches]
        self._note_cut(first, cut, "the budget was spent on checks and set-up")
        counts: dict[int, int] = {}
        code = EXIT_OK
        stop = False
        for number in range(self._effort["rounds"] if launches else 0):
            order = [row for row in rows if row in launches and number not in done[row]]
            random.Random(f"{self._effort['seed']} {first} {number}").shuffle(order)
            if number == 0:  # what others are shares of is there in any case
                order.sort(key=lambda row: row > BASE)
            for row in order:
                if stop := (number > 0 or row > BASE) and self._late(deadline):
                    break
                with self._spending("measuring"):
                    visit = self._visit(row, first, number, launches[row], study.rows[row], counts)
                code = max(code, self._keep(visit, launches[row].wrong, first, row, number))
                self._step()
            if stop or self._late(deadline if number else None):
                break
        self._note_cut(first, rows, "the budget was spent")
        if BASE in launches:  # once more, for all that shared its memory: what was right at first may be wrong by now
            self._watchdog.begin(first + BASE * self._world.size)
            with self._spending("checks"):
                again = self._check(self._part(study.rows[BASE].problem), memory)
            code = max(code, self._note_wrong(again, first, BASE))
        self._watchdog.begin(BETWEEN)
        return code

    def _ready(self, problem: Problem, memory: Mapping[str, Any], filled: set[str], *, whole: bool) -> _Launches:
        """Compile a row, check its answer, fill its memory (what is not in `filled` yet), and watch its guards."""
        with self._spending("set-up"):
            if problem.index is not None:  # the list is the row's own
                memory = {**memory, "index": self._backend.allocate(problem.arenas["index"])}
            empty = self._backend.prepare(_least(problem), memory)
            if problem.index is not None:
                self._fill(Check(problem, self._backend.workers), ["index"], memory)
            empty()
        with self._spending("checks"):
            wrong = self._check(problem if whole else self._part(problem), memory)
        with self._spending("set-up"):
            names = problem.arenas.keys() - (filled | (problem.arenas.keys() if whole else set()))
            self._fill(Check(problem, self._backend.workers), names, memory)
            filled |= problem.arenas.keys() - {"index"}
            launch = self._backend.prepare(problem, memory)
        with self._spending("checks"):
            wrong += changed_guards(self._backend, problem, memory, launch)
        return _Launches(launch, empty, len(problem.tensors), wrong)

    def _fill(self, check: Check, names: Iterable[str], memory: Mapping[str, Any]) -> None:
        """Put what arenas hold before a launch where they are."""
        for name in names:
            there = self._backend.on_host(memory[name])
            if there is None:
                self._backend.put(memory[name], check.contents(name))
            else:
                check.contents(name, there)

    def _part(self, problem: Problem) -> Problem:
        """Return a smaller problem of the same kind: the same compiled function, on fewer elements."""
        return replace(problem, total=min(problem.total, self._backend.enough))

    def _note_cut(self, first: int, rows: Sequence[int], reason: str) -> None:
        """Keep that rows were not reached, on rank 0, where they have no visit."""
        if self._journal is None:
            return
        about = {"round": 0, "session": self._journal.session, "status": NOT_MEASURED, "reason": reason}
        for row in rows:
            for cell in range(first + row * self._world.size, first + (row + 1) * self._world.size):
                if not self._journal.visits[cell]:
                    self._append({"cell": cell, **about})

    def _check(self, problem: Problem, memory: Mapping[str, Any]) -> int:
        """Return how many elements are wrong after one launch on fresh contents."""
        check = Check(problem, self._backend.workers)
        self._fill(check, problem.arenas, memory)
        self._backend.prepare(problem, memory)()
        total = None
        if problem.pattern.sums:
            total = float(self._backend.take(memory["sum"], 0, 8).view("float64")[0])
        return check.wrong(lambda name, start, stop: self._backend.take(memory[name], start, stop), total)

    def _visit(
        self, row: int, first: int, number: int, launches: _Launches, about: Row, counts: dict[int, int]
    ) -> dict[str, Any]:
        """Time some launches of a row, on all ranks at once; return what this rank's visit gave."""
        self._watchdog.begin(first + row * self._world.size, number)
        launch = launches.launch
        least, most = _LAUNCHES
        if row not in counts:
            (nanoseconds,) = self._world.largest(int(self._backend.times(launch, 1)[0] * 1e9))
            counts[row] = max(least, min(most, round(_VISIT * 1e9 / max(1, nanoseconds))))
        self._world.meet()
        begin = perf_counter()
        empty = sorted(self._backend.times(launches.empty, _EMPTY))[_EMPTY // 2] * launches.parts
        if about.level.access.warm:
            self._backend.times(launch, 2)
        samples = [round(seconds * 1e6, 3) for seconds in self._backend.times(launch, counts[row])]
        ordered = sorted(samples)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        self._watchdog.begin(BETWEEN)
        return {
            "status": OK,
            "median_us": middle,
            "mean_us": sum(samples) / len(samples),
            "min_us": ordered[0],
            "max_us": ordered[-1],
            "seconds": perf_counter() - begin,
            "iterations": len(samples),
            "samples_us": samples,
            "launch_us": round(empty * 1e6, 3),
            **self._backend.health(),
        }

    def _keep(self, visit: dict[str, Any], wrong: int, first: int, row: int, number: int) -> int:
        """Keep every rank's visit, on rank 0; return the exit code that it deserves."""
        visit["wrong"] = wrong
        if wrong:
            visit |= {"status": WRONG, "reason": f"{wrong} elements or bytes beside them are wrong after one launch"}
        gathered = self._world.gather(visit)
        if self._journal is None or gathered is None:
            return EXIT_OK
        for rank, one in enumerate(gathered):
            cell = first + row * self._world.size + rank
            if not any(old["round"] == number and old["status"] == OK for old in self._journal.visits[cell]):
                self._append({"cell": cell, "round": number, "session": self._journal.session, **one})
        return EXIT_FAILED if any(one["status"] != OK for one in gathered) else EXIT_OK

    def _note_wrong(self, wrong: int, first: int, row: int) -> int:
        """Keep a check after the rounds that found something, on rank 0."""
        gathered = self._world.gather(wrong)
        if self._journal is None or not any(gathered or ()):
            return EXIT_OK
        for rank, count in enumerate(gathered or ()):
            if count:
                cell = first + row * self._world.size + rank
                reason = f"{count} elements or bytes beside them are wrong after the last round"
                about = {"cell": cell, "round": self._effort["rounds"], "session": self._journal.session}
                self._append({**about, "status": WRONG, "reason": reason, "wrong": count})
        return EXIT_FAILED


def changed_guards(backend: Backend, problem: Problem, memory: Mapping[str, Any], launch: Callable[[], None]) -> int:
    """Return how many bytes of the guards one launch changes; they may hold anything before."""

    def guards() -> list[Any]:
        ends = [(name, end) for name, size in problem.arenas.items() for end in (GUARD, size)]
        return [backend.take(memory[name], end - GUARD, end) for name, end in ends]

    before = guards()
    launch()
    return sum(int((one != other).sum()) for one, other in zip(before, guards(), strict=True))


def _least(problem: Problem) -> Problem:
    """Return the same launch of next to no elements: its time is what a launch takes that moves nothing."""
    return replace(problem, total=min(problem.total, SPARSE))


@dataclass(frozen=True)
class _Launches:
    """What a row is measured by."""

    launch: Callable[[], None]
    empty: Callable[[], None]  # the same on next to nothing
    parts: int  # launches of one pass, each of which takes an empty one's time
    wrong: int  # elements, by the check before


class _Guide:
    """Names rows for the watchdog; a timeout goes into the run folder from whichever rank is left."""

    def __init__(self, studies: Sequence[Study], ranks: int, folder: Path, session: int) -> None:
        self._rows = [(row, study.dtype) for study in studies for row in study.rows]
        self._ranks, self._folder, self._session = ranks, folder, session

    def describe(self, cell: int) -> str:
        row, dtype = self._rows[cell // self._ranks]
        return f"at kernel {row.name} {dtype}"

    def concerned(self, cell: int) -> Sequence[int]:
        return range(self._ranks)

    def give_up(self) -> None:
        """A device is let go with its process."""

    def record(self, cell: int, number: int, reason: str) -> None:
        for rank in range(self._ranks):
            visit = {"cell": cell + rank, "round": number, "session": self._session, "status": TIMEOUT}
            append_beside(self._folder, {**visit, "reason": reason})


def _aside(options: Options) -> TextIO:
    return sys.stdout if options.format == "table" else sys.stderr


def _say(lines: Sequence[str], out: TextIO) -> None:
    print("".join(f"# {line}\n" for line in lines), file=out, end="", flush=True)


def _first_lines(journal: Journal, device: str, why: str) -> list[str]:
    plan = journal.manifest["plan"]
    ranks = plan["facts"]["size"]
    return [
        f"commbench {__version__}, kernels on {device}: {why}; {plan['facts']['backend']}, {plan['facts']['library']}",
        *(
            f"rank {rank}: {about['name']}, {about['identity']}, last-level cache {approximate_size(about['cache'])}"
            for rank, about in enumerate(journal.manifest["library"]["devices"])
        ),
        f"GB/s: bytes read and written / median time of the rounds{', all ranks at once' * (ranks > 1)}",
        "of baseline, and share (of the row that differs in one thing: against): medians of paired rounds; low, high: "
        "interval of the share within this launch",
        "predicted: that share by bytes moved, if caches join no or all requests",
        *plan["notes"],
        f"results in {journal.folder}",
    ]


def _print_results(
    journal: Journal,
    studies: Sequence[Study],
    devices: Sequence[Mapping[str, Any]],
    options: Options,
    spent: Mapping[str, float],
) -> int:
    """Print what was measured, keep it beside the records, and return the exit code."""
    found = results(journal.cells, journal.visits, journal.records(), [about["peak"] for about in devices])
    code = EXIT_OK
    try:
        journal.write_beside(BESIDE, "".join(json.dumps(one.to_dict()) + "\n" for one in found))
    except DiskError as error:
        note(str(error))
        code = EXIT_FAILED
    names = device_names(devices)
    if options.format == "json":
        print("".join(json.dumps(one.to_dict()) + "\n" for one in found), end="", flush=True)
    elif options.format == "csv":
        writer = csv.DictWriter(sys.stdout, list(found[0].to_dict()), lineterminator="\n")
        writer.writeheader()
        writer.writerows(one.to_dict() for one in found)
    else:
        print_waterfalls(found, studies, names, devices[0]["peak_source"], sys.stdout)
    _say([*answers(found), *slow(found, names), *_last(found, journal, spent)], _aside(options))
    return EXIT_FAILED if any(one.record.status in FAILURES for one in found) else code


def _last(found: Sequence[Result], journal: Journal, spent: Mapping[str, float]) -> list[str]:
    effort = journal.manifest["plan"]["effort"]
    rounds = [one.record.rounds or 0 for one in found if one.record.status not in FAILURES]
    lines = []
    if rounds and max(rounds) < FEWEST_ROUNDS:
        lines.append(f"{max(rounds)} round{'s' * (max(rounds) != 1)}: no interval, which takes {FEWEST_ROUNDS}")
    drifting = [one for one in found if one.record.drift is not None]
    if drifting:
        shown = ", ".join(f"{one.record.algorithm} {one.record.drift:+.0%}" for one in drifting[:3])
        chance = drifts_by_chance(rounds)
        lines.append(
            f"{len(drifting)} rows drifted from the first rounds to the last (scatter alone gives up to {chance:.2g}): "
            f"{shown}{', ...' * (len(drifting) > 3)}"
        )
    lines.append(f"{sum(one.record.status == OK for one in found)} of {len(found)} cells ok")
    if rounds and min(rounds) < effort["rounds"]:
        lines.append(
            f"the budget was spent after {min(rounds)} to {max(rounds)} rounds: --resume goes on, a larger --budget "
            "goes further"
        )
    parts = ", ".join(f"{seconds:.0f} {name}" for name, seconds in sorted(spent.items(), key=lambda one: -one[1]))
    if parts:
        lines.append(f"{sum(spent.values()):.0f} s: {parts}")
    return lines
