"""Does the advice on algorithms help? Sweep, choose, export, and measure again with the exported settings.

    python benchmarks/tuning.py --python venv-mpich/bin/python --python venv-openmpi/bin/python

Sweeps of all algorithms (`commbench.allreduce`, several launches) give choices, which are exported as a user would have
them: Open MPI's file of rules, MPICH's control variables, sourced by a shell. Then, launch by launch in shuffled order,
all-reduces are timed as the library carries them out by itself:

    default     without any settings
    exported    with those that were chosen against the default
    bad         with a control variable that forces the slowest algorithm
    recovered   where that variable is set, and then the settings are sourced that were chosen against it
    best        without settings, each size with the algorithm that was fastest in the sweeps, forced by commbench

`exported` may nowhere be slower than `default` beyond chance (the test of commbench.compare), and `recovered` is to win
at least 90 % of what `best` wins over `bad`, as logarithms. What ran is told by the bits of a sum of numbers whose sum
depends on the order of adding, held against each algorithm that is forced (several may add in one order: "1 of 3"), and
in MPICH by reading the variable back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from _launch import (
    HERE,
    ROOT,
    BenchmarkError,
    Environment,
    add_options,
    environment,
    head,
    prepare,
    publish,
    say,
    table,
)

if TYPE_CHECKING:
    from commbench.recommend.plan import Choice
    from commbench.results.record import Record

AUTO = "auto"
DEFAULT, EXPORTED, BAD, RECOVERED, BEST = "default", "exported", "bad", "recovered", "best"
WINS = 0.9  # the bar
WORTHWHILE = 1.2  # times as long with the bad default as with the best: with less there is nothing to show
MARGIN = 0.05
_ROUNDS = 5
_LIBRARIES = ("OMPI_", "MPIR_")  # how their variables begin


# One rank of a launch.


def measure(spec: Mapping[str, Any]) -> None:
    """Be one rank: time each size, and on rank 0 print times, fingerprints, and what a control variable says."""
    from commbench.allreduce import ALLREDUCE
    from commbench.backends._mpi_world import open_mpi
    from commbench.measure.timing import durations

    world = open_mpi()
    times: dict[str, list[float]] = {}
    prints: dict[str, dict[str, str]] = {}
    variable = ""
    for size in spec["sizes"]:
        backend, call, slots = prepare(world, size)
        variable = _read_back(backend)
        name = spec["algorithms"].get(str(size), AUTO)
        offered = (
            {} if name == AUTO and not spec["fingerprints"] else {a.name: a for a in backend.algorithms(ALLREDUCE)}
        )
        if not spec["fingerprints"]:
            chosen = replace(call, algorithm=offered[name]) if name != AUTO else call
            with backend.using(ALLREDUCE, chosen.algorithm):
                plan, barrier = backend.plan(chosen, slots), backend.barrier()
                trial = durations("barrier", plan.runs, barrier, 3)
                (longest,) = world.largest(int(median(trial) * 1e9))
                number = max(5, min(1000, int(spec["seconds"] * 1e9 / max(1, longest))))
                rounds = [world.merge(durations("barrier", plan.runs, barrier, number), "max") for _ in range(_ROUNDS)]
            if world.rank == 0:
                times[str(size)] = [float(median(one)) * 1e6 for one in rounds]
        prints[str(size)] = {
            one: _fingerprint(backend, replace(call, algorithm=offered.get(one, call.algorithm)), slots, world)
            for one in (offered if spec["fingerprints"] else [name])
        }
        backend.close()
    if world.rank == 0:
        print(json.dumps({"times": times, "fingerprints": prints, "variable": variable}), flush=True)
    world.close()


def _fingerprint(backend: Any, call: Any, slots: Sequence[Any], world: Any) -> str:
    """Return a hash of a sum whose bits depend on the order of adding; empty where the call cannot be made."""
    import numpy as np

    if backend.refusal(call, range(world.size)):
        return ""
    draw = np.random.default_rng(world.rank)
    send, recv = slots[0]
    send[:] = (draw.random(len(send)) * 10.0 ** draw.integers(-3, 4, len(send))).astype(send.dtype)
    with backend.using(call.collective, call.algorithm):
        backend.plan(call, [(send, recv)]).runs[0]()
    return hashlib.sha256(recv.tobytes()).hexdigest()[:12]


def _read_back(backend: Any) -> str:
    """Return what MPICH's control variable of the all-reduce says; of Open MPI nothing, whose file has none."""
    switch = backend._switch
    natives = getattr(switch, "_natives", None)
    if natives is None:
        return ""
    return natives("Allreduce")[switch._variables.read("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM")]


# The launcher.


class Library:
    """One MPI library: how it is measured, and how it is told what to do."""

    def __init__(self, place: Environment, ranks: int, sizes: Sequence[int], seconds: float) -> None:
        self.place, self.ranks, self.sizes, self.seconds = place, ranks, sizes, seconds
        self.name = place.vendor

    def sweep(self, budget: float) -> list[Record]:
        """Return the records of one launch of all algorithms, without any settings."""
        from commbench.results.journal import read_records

        step = self.sizes[1] // self.sizes[0] if len(self.sizes) > 1 else 2
        grid = ["-b", str(self.sizes[0]), "-e", str(self.sizes[-1]), "-f", str(step)]
        with tempfile.TemporaryDirectory() as top:
            words = ["-m", "commbench.allreduce", *grid, "--budget", str(budget), "--rounds", str(_ROUNDS)]
            self.place.run(self.ranks, *words, "--progress", "off", "--out", f"{top}/run", cwd=top)
            return list(read_records(Path(top, "run")))

    def launch(
        self,
        settings: Mapping[str, str] | None = None,
        algorithms: Mapping[int, str] | None = None,
        fingerprints: bool = False,
    ) -> dict[str, Any]:
        """Time each size with these settings of the environment, or these algorithms."""
        named = {str(size): name for size, name in (algorithms or {}).items()}
        spec = {"sizes": self.sizes, "algorithms": named, "seconds": self.seconds, "fingerprints": fingerprints}
        with tempfile.TemporaryDirectory() as top:
            script = [str(HERE / "tuning.py"), "--rank", json.dumps(spec)]
            out = self.place.run(self.ranks, *script, cwd=top, extra=settings)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def forcing(self, native: str, number: int) -> dict[str, str]:
        """Return the control variables that force one algorithm at all sizes."""
        if self.name == "Open MPI":
            return {
                "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
                "OMPI_MCA_coll_tuned_allreduce_algorithm": str(number),
            }
        return {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": native, "MPIR_CVAR_DEVICE_COLLECTIVES": "none"}

    def export(
        self, choices: Sequence[Choice], library: str, folder: Path, before: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the files that tell the library so, and return what a shell has that had `before` and sourced them."""
        from commbench.recommend.export import mpich_settings, openmpi_rules
        from commbench.recommend.export._settings import Settings, version
        from commbench.recommend.plan import Plan, Seat

        seats = tuple(Seat(socket.gethostname(), rank) for rank in range(self.ranks))
        plan = Plan("this machine", seats, vendor="cpu", choices=tuple(choices))
        folder.mkdir()
        if self.name == "Open MPI":
            files, script = (
                openmpi_rules.files(plan, Settings(openmpi=version(library.split()[-1]))),
                openmpi_rules.ENVIRONMENT,
            )
        else:
            files, script = mpich_settings.files(plan, Settings()), mpich_settings.NAME
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        shell = ["bash", "-c", f"source {script} && env -0"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith(_LIBRARIES)}
        done = subprocess.run(shell, cwd=folder, env={**plain, **before}, capture_output=True, text=True, check=True)
        pairs = (line.partition("=") for line in done.stdout.split("\0") if line)
        return {name: value for name, _, value in pairs if name.startswith(_LIBRARIES)}


def under(record: Record, rounds: Sequence[float]) -> Record:
    """Return the record of the library's own choice as it is in these rounds, under settings that a sweep refuses."""
    from commbench.results.stats import median_interval

    low, high = median_interval(rounds) or (None, None)
    return replace(record, time_us=median(rounds), time_us_low=low, time_us_high=high)


def experiment(library: Library, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Do all of it with one library."""
    from commbench.recommend.algorithm import for_library

    draw, sizes = random.Random(options.seed), library.sizes
    sweeps = []
    for number in range(1, options.launches + 1):
        say(f"{library.name}: sweep {number} of {options.launches}")
        sweeps.append(library.sweep(options.budget))
    medians = {
        (one, size): median(those)
        for one, size in {(record.algorithm, record.size) for sweep in sweeps for record in sweep}
        if (
            those := [
                r.time_us for sweep in sweeps for r in sweep if (r.algorithm, r.size) == (one, size) and r.time_us
            ]
        )
    }
    everywhere = [
        one for one in {name for name, _ in medians} - {AUTO} if all((one, size) in medians for size in sizes)
    ]
    worst = options.bad or max(everywhere, key=lambda one: fmean(math.log(medians[one, size]) for size in sizes))
    if worst not in everywhere:
        raise BenchmarkError(f"--bad is an algorithm that was measured at all sizes: {', '.join(sorted(everywhere))}")
    best = {
        size: min((one for one, at in medians if at == size and one != AUTO), key=lambda one: medians[one, size])
        for size in sizes
    }
    forced = library.launch(fingerprints=True)["fingerprints"]
    native, value = natives(library)[worst]
    bad = library.forcing(native, value)
    disturbed = []
    for number in range(1, options.launches + 1):
        say(f"{library.name}: {worst} forced, launch {number} of {options.launches}")
        rounds = library.launch(bad)["times"]
        sweep = sweeps[number - 1]
        disturbed.append(
            [under(r, rounds[str(r.size)]) if r.algorithm == AUTO else r for r in sweep if r.status == "ok"]
        )
    chosen = {EXPORTED: for_library(sweeps), RECOVERED: for_library(disturbed)}
    version = sweeps[0][0].library
    settings: dict[str, dict[str, str]] = {DEFAULT: {}, BAD: bad}
    for state, choices in chosen.items():
        before = bad if state == RECOVERED else {}
        there = folder / f"{library.name} {state}"
        settings[state] = library.export(choices, version, there, before) if choices else before
    states = [DEFAULT, BAD, RECOVERED, BEST] + [EXPORTED] * bool(chosen[EXPORTED])
    found: dict[str, list[dict[str, Any]]] = {state: [] for state in states}
    for number in range(1, options.launches + 1):
        say(f"{library.name}: all states, launch {number} of {options.launches}")
        for state in draw.sample(states, len(states)):
            found[state].append(library.launch(settings.get(state), best if state == BEST else None))
    return {
        **{"library": version, "ranks": library.ranks, "worst": worst},
        "best": {str(size): name for size, name in best.items()},
        "choices": {state: [vars(one) for one in those] for state, those in chosen.items()},
        "settings": settings,
        "forced": forced,
        "states": found,
    }


def natives(library: Library) -> dict[str, tuple[str, int]]:
    """Return each algorithm's name in the library and its number there."""
    script = (
        "import json; from commbench.allreduce import ALLREDUCE; from commbench.backends._mpi_world import open_mpi\n"
        "from commbench.backends.mpi import Backend\n"
        "world = open_mpi(); backend = Backend(); backend.open(world)\n"
        "found = [(one.name, one.native) for one in backend.algorithms(ALLREDUCE)]\n"
        "world.rank or print(json.dumps(found), flush=True)\n"
        "backend.close(); world.close()"
    )
    pairs = json.loads(library.place.run(1, "-c", script, cwd=ROOT).splitlines()[-1])
    return {name: (native, place) for place, (name, native) in enumerate(pairs)}


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """Return one library's part of the page, and what is met."""
    from commbench.results.spread import DIFFERENT, compare
    from commbench.units import format_size

    sizes = [int(size) for size in found["best"]]
    times = {
        state: {size: [median(one["times"][str(size)]) for one in launches] for size in sizes}
        for state, launches in found["states"].items()
    }
    own = {state: {size: median(those) for size, those in at.items()} for state, at in times.items()}
    rows, verdicts = [], {}
    if EXPORTED in times:
        compared = compare([(times[EXPORTED][size], times[DEFAULT][size]) for size in sizes], MARGIN)
        verdicts = dict(zip(sizes, compared, strict=True))
    for size in sizes:
        row = [format_size(size), *(f"{own[state][size]:.1f}" if state in own else "-" for state in _SHOWN)]
        against = verdicts.get(size)
        row.append(f"{against.ratio:.2f} {against.verdict}" if against and against.ratio else "-")
        wins = math.log(own[BAD][size] / own[RECOVERED][size]), math.log(own[BAD][size] / own[BEST][size])
        row.append(f"{100 * wins[0] / wins[1]:.0f}" if wins[1] > 0 else "-")
        for state in (EXPORTED, RECOVERED):
            row.append(_in_short(found, state, size) if state in times else "-")
        rows.append(row)
    header = [
        "size",
        *(f"{state} us" for state in _SHOWN),
        "exported / default",
        "won %",
        "exported: ran",
        "recovered: ran",
    ]
    slower = [size for size, one in verdicts.items() if one.verdict == DIFFERENT and one.ratio and one.ratio > 1]
    there = fmean(math.log(own[BAD][size] / own[BEST][size]) for size in sizes)
    won = fmean(math.log(own[BAD][size] / own[RECOVERED][size]) for size in sizes) / there
    bar = f"{_met(won >= WINS)}: {100 * WINS:.0f} %" if there >= math.log(WORTHWHILE) else "there is little to win"
    wrong = [
        f"{state} {format_size(size)}"
        for state in (EXPORTED, RECOVERED)
        for size in sizes
        if state in times and not _as_asked(found, state, size)
    ]
    variables = {state: sorted({one["variable"] for one in found["states"][state]} - {""}) for state in times}
    lines = [
        f"# {found['library']}, {found['ranks']} ranks on this machine, {len(found['states'][DEFAULT])} launches; "
        f"the bad default is {found['worst']}",
        *(f"# {state}: {_in_words(found['choices'][state])}" for state in (EXPORTED, RECOVERED)),
        *table(header, rows),
        f"# slower than the default beyond chance: {_listed(map(format_size, slower))} ({_met(not slower)})",
        f"# won of what the best win over the bad default: {100 * won:.0f} % ({bar})",
        f"# another algorithm ran than was asked for: {_listed(wrong)} ({_met(not wrong)})",
    ]
    if any(variables.values()):
        lines.append("# read back: " + "; ".join(f"{state} {', '.join(names)}" for state, names in variables.items()))
    return lines


_SHOWN = (DEFAULT, EXPORTED, BAD, RECOVERED, BEST)


def _in_words(choices: Sequence[Mapping[str, Any]]) -> str:
    from commbench.units import format_size

    texts = [
        f"{one['algorithm']} from {format_size(one['least'])}"
        + (f" to below {one['below']}" if one["below"] else " on")
        + f" ({one['gain']:.2f} x, {one['source']})"
        for one in choices
    ]
    return "; ".join(texts) or "nothing is faster for real: the library's own choice stays"


def _asked(found: Mapping[str, Any], state: str, size: int) -> str:
    """Return which algorithm the choices ask for at one size."""
    for one in found["choices"][state]:
        if one["least"] <= size and (one["below"] is None or size < one["below"]):
            return str(one["algorithm"])
    return AUTO if found["choices"][state] or state == EXPORTED else str(found["worst"])


def _ran(found: Mapping[str, Any], state: str, size: int) -> set[str]:
    """Return the algorithms that have the fingerprint which a state had in all launches."""
    seen = {one["fingerprints"][str(size)][AUTO] for one in found["states"][state]}
    return {name for name, own in found["forced"][str(size)].items() if {own} == seen}


def _in_short(found: Mapping[str, Any], state: str, size: int) -> str:
    """Return what was asked for, and how many algorithms add in the order that was seen."""
    asked, ran = _asked(found, state, size), _ran(found, state, size)
    if asked in ran:
        return f"{asked} (1 of {len(ran)})" if len(ran) > 1 else asked
    return f"{asked} asked for, {' or '.join(sorted(ran)) or 'something else'} ran"


def _as_asked(found: Mapping[str, Any], state: str, size: int) -> bool:
    return _asked(found, state, size) in _ran(found, state, size)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nowhere"


def _met(yes: bool) -> str:
    return "met" if yes else "NOT met"


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--python", action="append", metavar="PATH", help="of an environment to measure; repeatable")
    it.add_argument("-n", type=int, default=4, metavar="N", help="ranks (default 4: of 2 all algorithms add alike)")
    it.add_argument("--sizes", default="1K,32K,1M", metavar="S,...", help="by one factor (default 1K,32K,1M)")
    it.add_argument("--launches", type=int, default=6, metavar="N", help="of each (default 6; 5 to be told apart)")
    it.add_argument("--budget", type=float, default=20, metavar="S", help="seconds for a sweep (default 20)")
    it.add_argument("--turn", type=float, default=200, metavar="MS", help="of timing one size in a round (default 200)")
    it.add_argument(
        "--bad", metavar="NAME", help="the algorithm of the bad default (default: the slowest of the sweeps)"
    )
    it.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of launches (default 1)")
    add_options(it)
    it.add_argument("--rank", metavar="SPEC", help=argparse.SUPPRESS)  # a rank of the job, not the person
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    if options.rank:
        measure(json.loads(options.rank))
        return
    from commbench.units import parse_size

    words = ["benchmarks/tuning.py", *(sys.argv[1:] if arguments is None else arguments)]
    lines, figures = head(words), []
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as top:
        for place in [environment(python) for python in options.python or [sys.executable]]:
            library = Library(place, options.n, sizes, options.turn / 1e3)
            figures.append(experiment(library, options, Path(top)))
            lines += ["", *lines_of(figures[-1])]
    publish("tuning", lines, {"command": words, "libraries": figures}, options)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"tuning: {error}")
