"""The command line of every kernel's door, and of `python -m commbench.kernels`, which has them all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NoReturn

from commbench.backends.world import World
from commbench.errors import UsageError
from commbench.kernels._backend import BACKENDS
from commbench.kernels._factors import FACTORS, find_factor
from commbench.kernels._pattern import Pattern
from commbench.measure.door import run_door
from commbench.measure.dtypes import find_dtype
from commbench.measure.parser import Parser
from commbench.measure.watchdog import Watchdog
from commbench.units import parse_number, parse_size, parse_whole

FORMATS = ("table", "json", "csv")
DEFAULT_ROUNDS, DEFAULT_BUDGET = 5, 120.0
TYPES = ("float16", "bfloat16", "float32", "float64")

EXAMPLES = """kernels, their variants, and the working types of each:
{kernels}

factors:
{factors}

examples:
  python -m commbench.{name} --device cpu
  mpirun -n 2 python -m commbench.{name} --device cpu --factor {some}
      one rank a device, all at once; slow devices are named
  python -m commbench.{name} --out results/monday        and, when it was interrupted:
  python -m commbench.{name} --out results/monday --resume

exit codes: 0 all was measured, or cut by the budget; 1 an answer was wrong; 2 bad usage or input; 124 timeout
"""


@dataclass(frozen=True)
class Options:
    """The command line, understood. `plan` decides what is measured; None in it is the default."""

    name: str
    patterns: tuple[Pattern, ...]  # those that there are
    plan: dict[str, Any]
    given: frozenset[str]
    format: str
    out: str | None
    resume: bool
    progress: str
    timeout: float
    peak: float | None
    needs_mpi: bool = False  # ranks of an mpirun meet by MPI; a process alone needs none


def parser(name: str, patterns: Sequence[Pattern] = ()) -> argparse.ArgumentParser:
    """Return the options of a door that has these patterns. All values stay text here; `read` understands them."""
    every = name == "kernels"
    it = Parser(
        prog=f"commbench {name}",
        description="Measure what memory bandwidth a kernel gets, and what each factor of its walk takes away.",
        epilog=EXAMPLES.format(
            name=name,
            some="stride,misalignment",
            kernels="\n".join(map(_kernel_line, dict.fromkeys(one.name for one in patterns), repeat(patterns))),
            factors="\n".join(
                f"  {factor.name:<13} {f'({factor.only} only) ' * bool(factor.only)}{factor.question}"
                for factor in FACTORS.values()
            ),
        ),
    )
    add = it.add_argument_group("what is measured").add_argument
    if every:
        add("--kernel", metavar="NAMES", help="kernels, by comma, or all (default all)")
    add("--variant", metavar="NAMES", help="variants of a kernel, such as adam, by comma, or all (default the first)")
    add("-d", "--dtype", metavar="TYPES", help="working types, by comma, or all (default float16)")
    waterfall = "all for weight_update, none for others" if every else "all"
    add("--factor", metavar="NAMES", help=f"factors, by comma, all or none (default {waterfall})")
    add("--size", metavar="SIZE", help="bytes of all arrays together (default four times the last-level cache)")
    add(
        "--device",
        metavar="KIND",
        help=f"{', '.join(BACKENDS)}: one of each node for each rank (default: GPUs where each rank has one, else cpu)",
    )
    add("--library", metavar="NAME", help="cupy or numba_cuda, on cuda (default cupy)")
    add = it.add_argument_group("how it is measured").add_argument
    add("--rounds", metavar="N", help=f"visits of each row, in shuffled order (default {DEFAULT_ROUNDS})")
    add("--budget", metavar="S", help=f"seconds for all, 0: no limit (default {DEFAULT_BUDGET:g})")
    add("-T", "--timeout", metavar="S", default="300", help="end the job when a visit takes longer (default 300)")
    add("--seed", metavar="N", help="of the order of visits (default 1)")
    add("--peak", metavar="GB/s", help="the data sheet's bandwidth of a device (default: as far as it is known)")
    add = it.add_argument_group("what comes out").add_argument
    add("--format", choices=FORMATS, default="table", help="on standard output (default table)")
    add("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    add("--out", metavar="DIR", help=f"the run folder (default results/<UTC time>-{name})")
    add("--resume", action="store_true", help="go on with the run in --out: its plan, what it lacks")
    add("--progress", choices=("auto", "on", "off"), default="auto", help="on standard error (default: on a terminal)")
    return it


def _kernel_line(name: str, patterns: Sequence[Pattern]) -> str:
    mine = [one for one in patterns if one.name == name]
    variants = ", ".join(
        f"{one.variant or 'no variants'} ({', '.join(one.dtypes) or 'of types of its own'})" for one in mine
    )
    return f"  {name:<14} {variants}"


def read(name: str, patterns: Sequence[Pattern], arguments: Sequence[str]) -> Options:
    """Understand the command line; raise UsageError on the first thing that cannot be."""
    raw = vars(parser(name).parse_args(arguments))
    factors = None
    if raw["factor"] is not None:
        factors = [] if raw["factor"].strip().lower() == "none" else _names(raw["factor"], "--factor", list(FACTORS))
    for factor in factors or ():
        find_factor(factor)
    dtypes = _names(raw["dtype"] or "float16", "--dtype", TYPES)
    if raw["device"] is not None and raw["device"] not in BACKENDS:
        from commbench.errors import unknown_name

        raise unknown_name("device", raw["device"], BACKENDS)
    kernels = _names(raw.get("kernel") or "all", "--kernel", list(dict.fromkeys(one.name for one in patterns)))
    _check_kernels(kernels, patterns)
    _check_factors(factors, raw["device"])
    plan = {
        "kernels": kernels,
        "variants": None if raw["variant"] is None else _names(raw["variant"], "--variant", ("all",)),
        "dtypes": list(dict.fromkeys(find_dtype(one).name for one in dtypes)),
        "factors": factors,
        "size": None if raw["size"] is None else parse_size(raw["size"], "--size"),
        "device": raw["device"],
        "library": raw["library"],
        "rounds": parse_whole(raw["rounds"] or str(DEFAULT_ROUNDS), "--rounds", least=1),
        "budget": parse_number(raw["budget"] or f"{DEFAULT_BUDGET:g}", "--budget") or None,
        "seed": parse_whole(raw["seed"] or "1", "--seed"),
    }
    if plan["size"] is not None and plan["size"] < 4096:
        raise UsageError(f"--size is at least 4096 bytes, not {raw['size']!r}")
    if raw["out"] == "":
        raise UsageError("--out names a folder, not ''")
    if raw["resume"] and not raw["out"]:
        raise UsageError("--resume goes on with the run in --out DIR: name its folder")
    given = frozenset(field for flag, field in _FIELDS.items() if raw.get(flag) is not None)
    peak = None if raw["peak"] is None else parse_number(raw["peak"], "--peak", least=0.001)
    timeout = parse_number(raw["timeout"], "-T", least=1)
    found = tuple(patterns) if name != "kernels" else _registered(kernels)
    return Options(
        *(name, found, plan, given, raw["format"], raw["out"], raw["resume"], raw["progress"], timeout, peak)
    )


def _check_kernels(kernels: Sequence[str], patterns: Sequence[Pattern]) -> None:
    """Raise UsageError where the name of a variant stands for a kernel's."""
    names = {one.name for one in patterns}
    for name in kernels:
        of = list(dict.fromkeys(one.name for one in patterns if one.variant == name))
        if name not in names and of:
            raise UsageError(
                f"{name} is a variant of {' and '.join(of)}, not a kernel: --kernel {of[0]} --variant {name}"
            )


def _check_factors(factors: Sequence[str] | None, device: str | None) -> None:
    """Raise UsageError where a device, as far as it is named, has none of the factors."""
    if device is None or not factors:
        return
    other = "GPU" if device == "cpu" else "CPU"
    if all(FACTORS[name].only == other for name in factors):
        there = ", ".join(factor.name for factor in FACTORS.values() if factor.only != other)
        raise UsageError(f"{', '.join(factors)}: only on a {other}, not on {device}; there are {there}")


_FIELDS = {  # flag: the field of Options.plan that it sets
    "kernel": "kernels",
    "variant": "variants",
    "dtype": "dtypes",
    "factor": "factors",
    "size": "size",
    "device": "device",
    "library": "library",
    "rounds": "rounds",
    "budget": "budget",
    "seed": "seed",
}


def _registered(kernels: Sequence[str]) -> tuple[Pattern, ...]:
    from commbench.kernels import _study

    return tuple(pattern for name in kernels for pattern in _study.patterns(name))


def _names(text: str, flag: str, every: Sequence[str]) -> list[str]:
    """Return the names in a list, each once and in small letters; "all" stands for every one."""
    names = [name.strip().lower() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"{flag} is a list of names with commas between them, not {text!r}")
    return list(every) if names == ["all"] else list(dict.fromkeys(names))


def main(patterns: Sequence[Pattern] = (), arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the door of the kernel that has these patterns, or, without any, of all kernels."""
    name = f"kernels.{patterns[0].name}" if patterns else "kernels"
    if not patterns:
        from commbench.kernels import _study

        patterns = [pattern for kernel in _study.names() for pattern in _study.patterns(kernel)]

    def work(world: World, watchdog: Watchdog, options: Options, words: Sequence[str]) -> int:
        from commbench.kernels._run import run

        return run(world, watchdog, options, words)

    run_door(name, parser(name, patterns), partial(_read, name, patterns), work, arguments)


def _read(name: str, patterns: Sequence[Pattern], arguments: Sequence[str]) -> Options:
    options = read(name, patterns, arguments)
    from commbench.kernels import _run  # noqa: F401 (before ranks meet: those that wait keep the cores from importers)

    return options
