"""The command line of every collective's door: options in, a run folder and a table out."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from commbench.backends.base import AUTO, DEVICE, DEVICE_BUFFERS, MODEL, Settings
from commbench.backends.world import World
from commbench.errors import UsageError, unknown_name
from commbench.measure.collective import REDOPS, Collective
from commbench.measure.door import run_door
from commbench.measure.dtypes import DTYPES, find_dtype
from commbench.measure.effort import FEW_ROUNDS, ROUNDS
from commbench.measure.options import FORMATS, Options
from commbench.measure.parser import Parser
from commbench.measure.timing import METHODS
from commbench.measure.watchdog import Watchdog
from commbench.units import parse_number, parse_size, parse_whole

AVERAGES = ("rank0", "mean", "min", "max")  # by nccl-tests' numbers of -a
DEFAULT_BUDGET = 120.0
DEFAULT_SMALLEST, DEFAULT_FACTOR = "8", "8"

EXAMPLES = """examples:
  mpirun -n 4 python -m commbench.{name}
      every algorithm, sizes from 8 B by 8 as far as memory and 120 s go
  mpirun -n 4 python -m commbench.{name} -b 8 -e 1M -f 8 --algo ring,recursive_doubling --format json
  mpirun -n 4 python -m commbench.{name} -b 1M -e 64M -f 2 -n 50 --format nccl-tests
  mpirun -n 4 python -m commbench.{name} --out results/monday        and, when it was interrupted:
  mpirun -n 4 python -m commbench.{name} --out results/monday --resume

exit codes: 0 every cell ran, or was rejected, not applicable or not measured; 1 a cell failed, was wrong or
substituted; 2 bad usage or input; 124 timeout
"""


def parser(collective: Collective) -> argparse.ArgumentParser:
    """Return the options of a door. All values stay text here; `Options.read` understands them."""
    it = Parser(
        prog=f"commbench {collective.name}",
        description=f"Sweep {collective.title} over algorithms and sizes. One-letter flags are those of nccl-tests.",
        epilog=EXAMPLES.format(name=collective.name),
    )
    add = it.add_argument_group("what is swept").add_argument
    add("-b", "--minbytes", metavar="SIZE", help=f"smallest size, with K, M, G or T (default {DEFAULT_SMALLEST})")
    add("-e", "--maxbytes", metavar="SIZE", help="largest size (default: as far as half of the free memory goes)")
    add("-f", "--stepfactor", metavar="F", help=f"each size is the last one times F (default {DEFAULT_FACTOR})")
    add("-i", "--stepbytes", metavar="SIZE", help="each size is the last one plus SIZE (default: -f)")
    add("-d", "--datatype", metavar="TYPES", help="element types, by comma, or all (default float)")
    if collective.reduces:
        add("-o", "--op", metavar="OPS", help=f"{', '.join(REDOPS)}, by comma, or all (default sum)")
    if collective.rooted:
        add("-r", "--root", metavar="RANK", help="the root (default 0)")
    add("--algo", metavar="NAMES", help="algorithms, by comma, or all that the library has (default all)")
    add(
        "--proto",
        metavar="NAMES",
        help="ll, ll128, simple, by comma, or all, where a library has them (default: its choice)",
    )
    add("--buffer", metavar="KINDS", help="kinds of memory, by comma, or all that the library has (default its first)")
    add(
        "-R",
        "--local_register",
        metavar="0|1|2",
        help="--buffer plain, registered or symmetric, on devices (default 0)",
    )
    add(
        "--inplace", choices=("out", "in", "both"), help="out of place, in place (default out; nccl-tests format: both)"
    )
    add("--ranks", metavar="K,K,N", help="groups of the first K ranks, growing; N is all (default: all ranks)")
    add("--groups", metavar="KIND", help="groups by node, leaf or rail, or a FILE with lines like left: 0-3,8")
    add("--concurrent", choices=("off", "on"), help="groups one after another, or at once (default off)")
    add(
        "--backend",
        metavar="NAME",
        default="auto",
        help="mpi, nccl, rccl, gloo, model, or a module of yours by its name (default: that of the GPUs, else mpi)",
    )
    add("--rendezvous", metavar="PLACE", help="HOST:PORT or FILE to meet without MPI (default: as the launcher tells)")
    add("--library", metavar="FILE", help="the library's file, where it has one of its own (default: as it is found)")
    add("--share-devices", action="store_true", help="let several ranks have one device, where the library can")
    add = it.add_argument_group("how it is measured").add_argument
    add(
        "--method",
        choices=METHODS,
        help="a barrier before each, back to back, or at an agreed instant (default barrier; loop on devices)",
    )
    add(
        "-n",
        "--iters",
        metavar="N",
        help="iterations of a visit, fixed; turns --precision and the budget off (default: as time allows)",
    )
    add(
        "-G",
        "--cudagraph",
        metavar="N",
        help="on devices, launch a graph of the -n iterations N times (default 0; none)",
    )
    add("-w", "--warmup_iters", metavar="N", help="warm-up iterations of a cell's first visit (default 1)")
    add(
        "-a",
        "--average",
        metavar="0|1|2|3",
        help="a time is rank 0's, the ranks' mean, min or max (default 3)",
    )
    add("-c", "--check", metavar="0|1", help="check the answer before and after timing (default 1)")
    add(
        "--rounds",
        metavar="N",
        help=f"most visits of a cell (default {ROUNDS}; {FEW_ROUNDS} with -n, or with more ranks than cores)",
    )
    add(
        "--precision",
        metavar="P",
        help="stop at an interval of this half-width, relative (default 0.05)",
    )
    add("--max-seconds", metavar="S", help="most seconds for one cell, 0: no limit (default 30)")
    add(
        "--budget",
        metavar="S",
        help=f"seconds for the sweep, 0: no limit (default {DEFAULT_BUDGET:g}; with -n no limit)",
    )
    add(
        "-T",
        "--timeout",
        metavar="S",
        default="300",
        help="end the job when a visit takes longer, naming the late (default 300)",
    )
    add("--seed", metavar="N", help="of the order of visits (default 1)")
    add = it.add_argument_group(
        "what is predicted (--backend model; --library is nccl, rccl or mpi there)"
    ).add_argument
    add(
        "--topology",
        metavar="FILE",
        help="the cluster: a description, or the name of one that commbench brings (default none)",
    )
    add("--results", metavar="PATH", help="measured runs that the model is fitted to first (default: as described)")
    add("--per-node", metavar="K", help="ranks on each node, node after node (default: one a device)")
    add = it.add_argument_group("what comes out").add_argument
    add("--format", choices=FORMATS, default="table", help="on standard output (default table)")
    add("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    add("--out", metavar="DIR", help=f"the run folder (default results/<UTC time>-{collective.name})")
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --out: its plan, what it lacks, timed out or failed",
    )
    add("--progress", choices=("auto", "on", "off"), default="auto", help="on standard error (default: on a terminal)")
    return it


def read(collective: Collective, arguments: Sequence[str]) -> Options:
    """Understand the command line; raise UsageError on the first thing that cannot be."""
    raw = parser(collective).parse_args(arguments)
    given = frozenset(_FIELDS[flag] for flag, value in vars(raw).items() if value is not None and flag in _FIELDS)
    _check_model(raw)
    for flag, default in _DEFAULTS.items():
        if getattr(raw, flag, None) is None:
            setattr(raw, flag, default)
    largest = None if raw.maxbytes is None else _size(raw.maxbytes, "-e")
    smallest = _size(DEFAULT_SMALLEST if raw.minbytes is None else raw.minbytes, "-b")
    if largest is not None and raw.minbytes is None:
        smallest = min(smallest, largest)
    if largest is not None and largest < smallest:
        raise UsageError(f"-b must not be above -e, but {raw.minbytes} is above {raw.maxbytes}")
    if raw.stepfactor is not None and raw.stepbytes is not None:
        raise UsageError("-f and -i exclude each other: sizes grow by a factor or by a step")
    iterations = None if raw.iters is None else parse_whole(raw.iters, "-n", least=1)
    few = FEW_ROUNDS if iterations else None
    budget = None if iterations else DEFAULT_BUDGET
    if raw.budget is not None:
        budget = parse_number(raw.budget, "--budget") or None
    inplace = raw.inplace or ("both" if raw.format == "nccl-tests" else "out")
    plan = {
        "smallest": smallest,
        "largest": largest,
        "factor": _factor(DEFAULT_FACTOR if raw.stepfactor is None else raw.stepfactor),
        "step": None if raw.stepbytes is None else _size(raw.stepbytes, "-i"),
        "dtypes": list(dict.fromkeys(find_dtype(name).name for name in _names(raw.datatype, "-d", DTYPES))),
        "redops": _redops(raw.op),
        "algorithms": _names(raw.algo, "--algo", ()),
        "protocols": None if raw.proto is None else _names(raw.proto, "--proto", ()),
        "buffers": _buffers(raw.buffer, raw.local_register),
        "inplace": {"out": [False], "in": [True], "both": [False, True]}[inplace],
        "ranks": raw.ranks,
        "groups": raw.groups,
        "concurrent": raw.concurrent == "on",
        "root": parse_whole(raw.root, "-r"),
        "method": raw.method,
        "iterations": iterations,
        "warmup": parse_whole(raw.warmup_iters, "-w"),
        "average": AVERAGES[_choice(raw.average, "-a", len(AVERAGES))],
        "check": bool(_choice(raw.check, "-c", 2)),
        "rounds": few if raw.rounds is None else parse_whole(raw.rounds, "--rounds", least=1),
        "precision": parse_number(raw.precision, "--precision"),
        "max_seconds": parse_number(raw.max_seconds, "--max-seconds") or None,
        "budget": budget,
        "seed": parse_whole(raw.seed, "--seed"),
        "graph": parse_whole(raw.cudagraph, "-G"),
    }
    if raw.method == "clock" and "average" in given:
        raise UsageError("-a and --method clock exclude each other: its time is from first entry to last exit, of all")
    if plan["graph"] and not iterations and not raw.resume:
        raise UsageError("-G launches a graph that holds the iterations of -n: give -n too")
    timeout = parse_number(raw.timeout, "-T", least=1)
    if raw.out == "":
        raise UsageError("--out names a folder, not ''")
    if raw.resume and not raw.out:
        raise UsageError("--resume goes on with the run in --out DIR: name its folder")
    buffers = plan["buffers"]
    on_device = raw.resume if buffers is None else not buffers or DEVICE in buffers  # none named: all; resumed: as kept
    settings = Settings(raw.library, plan["algorithms"] != [AUTO], raw.share_devices, on_device)
    options = (raw.format, raw.out, raw.resume, raw.progress, timeout, raw.rendezvous)
    per_node = None if raw.per_node is None else parse_whole(raw.per_node, "--per-node", least=1)
    return Options(plan, given, raw.backend, settings, *options, raw.topology, raw.results, per_node)


def _check_model(raw: argparse.Namespace) -> None:
    """Refuse what only a measurement has where the model predicts, and what only the model has elsewhere."""
    of_model = {"topology": "--topology", "results": "--results", "per_node": "--per-node"}
    others = of_model if raw.backend != MODEL else _OF_MEASURING
    found = [flag for name, flag in others.items() if getattr(raw, name, None) not in (None, False)]
    if found and raw.backend != MODEL:
        raise UsageError(f"{', '.join(found)}: only --backend {MODEL} predicts, and --backend is {raw.backend}")
    if found:
        raise UsageError(f"--backend {MODEL} predicts and measures nothing, so leave out {', '.join(found)}")
    if raw.backend == MODEL and not raw.topology:
        raise UsageError(f"--backend {MODEL} needs to know the cluster: --topology FILE")
    if raw.backend == MODEL and getattr(raw, "root", None) not in (None, "0"):
        raise UsageError(f"--backend {MODEL} knows schedules from and to rank 0: leave out -r")


def _size(text: str, flag: str) -> int:
    size = parse_size(text, flag)
    if size < 1:
        raise UsageError(f"{flag} is a size of at least 1 byte, not {text!r}")
    return size


def _factor(text: str) -> float:
    with suppress(ValueError):
        if 1 < float(text) < math.inf:
            return float(text)
    raise UsageError(f"-f is a factor above 1, not {text!r}")


_OF_MEASURING = {  # what says how to measure, or which memory and ranks of a launch, and its flag
    **{"proto": "--proto", "buffer": "--buffer", "local_register": "-R", "groups": "--groups"},
    **{"concurrent": "--concurrent", "rendezvous": "--rendezvous", "share_devices": "--share-devices"},
    **{"method": "--method", "iters": "-n", "cudagraph": "-G", "warmup_iters": "-w", "average": "-a", "check": "-c"},
    **{"rounds": "--rounds", "precision": "--precision", "max_seconds": "--max-seconds", "budget": "--budget"},
    **{"seed": "--seed", "resume": "--resume"},
}

# What an option is where it was not given; on --resume that differs from giving it this value.
_DEFAULTS = {
    "datatype": "float",
    "op": "sum",
    "root": "0",
    "algo": "all",
    "concurrent": "off",
    "warmup_iters": "1",
    "average": "3",
    "check": "1",
    "precision": "0.05",
    "max_seconds": "30",
    "seed": "1",
    "cudagraph": "0",
}
_FIELDS = {  # flag: the field of Options.plan that it sets
    "minbytes": "smallest",
    "maxbytes": "largest",
    "stepfactor": "factor",
    "stepbytes": "step",
    "datatype": "dtypes",
    "op": "redops",
    "root": "root",
    "ranks": "ranks",
    "groups": "groups",
    "concurrent": "concurrent",
    "algo": "algorithms",
    "proto": "protocols",
    "buffer": "buffers",
    "local_register": "buffers",
    "cudagraph": "graph",
    "inplace": "inplace",
    "method": "method",
    "iters": "iterations",
    "average": "average",
    "check": "check",
    "seed": "seed",
    "warmup_iters": "warmup",
    "rounds": "rounds",
    "precision": "precision",
    "max_seconds": "max_seconds",
    "budget": "budget",
}


def _names(text: str, flag: str, every: Iterable[str]) -> list[str]:
    """Return the names in a list, each once and in small letters; `every` is what "all" stands for."""
    names = [name.strip().lower() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"{flag} is a list of names with commas between them, not {text!r}")
    return list(every) if names == ["all"] else list(dict.fromkeys(names))


def _buffers(names: str | None, number: str | None) -> list[str] | None:
    """Return the kinds of memory asked for: None for the library's first, an empty list for all."""
    if number is not None:
        if names is not None:
            raise UsageError("--buffer and -R exclude each other: they say the same")
        return [DEVICE_BUFFERS[_choice(number, "-R", len(DEVICE_BUFFERS))]]
    return None if names is None else _names(names, "--buffer", ())


def _redops(text: str) -> list[str]:
    names = _names(text, "-o", REDOPS)
    for name in names:
        if name not in REDOPS:
            raise unknown_name("reduction", name, REDOPS)
    return names


def _choice(text: str, flag: str, choices: int) -> int:
    if text not in map(str, range(choices)):
        raise UsageError(f"{flag} is a number from 0 to {choices - 1}, not {text!r}")
    return int(text)


def main(collective: Collective, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a door: parse, let the ranks meet, sweep, print, and exit with the code that all ranks agreed on."""

    from commbench.measure.run import (
        run,  # before MPI_Init: ranks that wait in it keep the cores from those that import
    )

    def work(world: World, watchdog: Watchdog, options: Options, words: Sequence[str]) -> int:
        return run(world, watchdog, collective, options, words)

    run_door(collective.name, parser(collective), partial(read, collective), work, arguments)
