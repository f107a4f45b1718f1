"""What rank 0 alone does in a launch: the plan and its folder, the order of visits, and what is printed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TextIO

from commbench import __version__
from commbench.backends.base import Backend
from commbench.backends.world import World
from commbench.errors import EXIT_FAILED, EXIT_OK, DiskError
from commbench.measure import screen
from commbench.measure.agenda import Agenda
from commbench.measure.cell import ALL, PLANNED, Cell
from commbench.measure.collective import Collective
from commbench.measure.effort import Effort
from commbench.measure.folder import Launch, begin, take_up
from commbench.measure.options import Options
from commbench.measure.plan import TOO_LARGE
from commbench.measure.progress import Progress
from commbench.measure.sweep import Sweep
from commbench.results.journal import Journal
from commbench.results.record import Record
from commbench.results.regime import drifts_by_chance
from commbench.results.skew import laggards
from commbench.results.status import FAILURES, NOT_MEASURED

_WHOSE_TIME = {
    "rank0": "rank 0",
    "mean": "all ranks, their mean",
    "min": "the fastest rank",
    "max": "the slowest rank (-a 3; nccl-tests' default is 1, the mean)",
}


class Lead:
    """Rank 0's part of one launch."""

    def __init__(
        self, world: World, backend: Backend, collective: Collective, options: Options, words: Sequence[str]
    ) -> None:
        self._world, self._backend, self._collective = world, backend, collective
        self._options, self._words = options, words
        self._journal: Journal | None = None

    def prepare(self, site: Mapping[str, Any]) -> dict[str, Any]:
        """Make the plan, or take an earlier one up; return what every rank is to know of it."""
        options = self._options
        asked = options.plan, options.given, self._words
        launch = Launch(self._world, self._backend, self._collective, *asked, site)
        self._journal = journal = (take_up if options.resume else begin)(launch, options.out)
        plan = journal.manifest["plan"]
        groups = {name: facts["order"] for name, facts in plan["facts"]["groups"].items()}
        where = {"folder": str(journal.folder.resolve()), "session": journal.session}
        return {"cells": plan["cells"], "effort": plan["effort"], "groups": groups, "crowded": site["crowded"], **where}

    def say_first(self, backend: str) -> None:
        """Say what is about to be measured, on what."""
        assert self._journal is not None
        _say_first(self._journal, self._backend, self._collective, self._options, backend)

    def sweep(self, sweep: Sweep, cells: list[Cell], together: Mapping[int, list[int]], effort: Effort) -> int:
        """Lead the ranks through what is to be measured; return the exit code."""
        assert self._journal is not None
        if sweep.trouble:
            screen.note(f"{sweep.trouble}: timing by the plain loop, a microsecond slower a call")
        try:
            agenda = Agenda(cells, together, self._journal, effort, self._backend.choice_is_costly)
            _lead(sweep, cells, agenda, self._journal, self._options)
        except DiskError as error:
            print(f"commbench {self._collective.name}: error: {error}", file=sys.stderr, flush=True)
            return EXIT_FAILED
        return EXIT_OK

    def print_results(self) -> int:
        """Print what was measured, and return the exit code that it deserves."""
        assert self._journal is not None
        return _print_results(self._journal, self._options)

    def close(self) -> None:
        """Leave the run folder to others."""
        if self._journal is not None:
            self._journal.close()


def _aside(options: Options) -> TextIO:
    """Return where comments go: standard output takes them only where its format has comments."""
    return sys.stdout if options.format in ("table", "nccl-tests") else sys.stderr


def _say_first(journal: Journal, backend: Backend, collective: Collective, options: Options, backend_why: str) -> None:
    plan = journal.manifest["plan"]
    facts, effort = plan["facts"], plan["effort"]
    whose = "first entry to last exit" if facts["method"] == "clock" else f"of {_WHOSE_TIME[effort['average']]}"
    simulated = "SIMULATED: what is measured is a stand-in, and no figure below is a library's; " * backend.simulated
    lines = [
        f"{simulated}commbench {__version__}, backend {backend_why}; {backend.library}, "
        f"{backend.library_file or 'path unknown'}",
        f"{collective.title} on {facts['size']} rank{'s' * (facts['size'] > 1)}, "
        f"{facts['nodes']} node{'s' * (facts['nodes'] > 1)}; method {facts['method']}; time {whose}",
        "time: median of the rounds' medians; low, high: interval over rounds (launches differ by more)",
        *plan["notes"],
        *backend.devices(),
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
    drifting = [
        f"{r.algorithm} {r.size} B {'' if r.group == ALL else f'in {r.group} '}{r.drift:+.0%}"
        for r in records
        if r.drift is not None
    ]
    if drifting:
        more = f" and {len(drifting) - 5} more" if len(drifting) > 5 else ""
        chance = drifts_by_chance([record.rounds or 0 for record in records])
        number = f"{len(drifting)} cell{'s' * (len(drifting) != 1)}"
        lines.append(
            f"{number} drifted from the first rounds to the last (scatter alone gives up to {chance:.2g}): "
            f"{', '.join(drifting[:5])}{more}"
        )
    lines += laggards(records)
    needed = "" if find_spec("pandas") else ", which needs pandas: pip install 'commbench[report]'"
    lines.append(f"read with commbench.load({str(journal.folder)!r}){needed}")
    print("".join(f"# {line}\n" for line in lines), file=_aside(options), end="", flush=True)
