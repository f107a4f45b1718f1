"""Run a measuring command several times: how far launches differ, and whether two commands do.

python -m commbench.repeat --launches 5 -- mpirun -n 4 python -m commbench.allreduce -b 8 -e 1M --budget 10
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from commbench.__main__ import doors
from commbench.errors import EXIT_CANNOT_TELL, EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT, EXIT_USAGE, ResultsError, UsageError
from commbench.measure.parser import Parser
from commbench.results import manifest
from commbench.results.journal import MANIFEST, new_folder, replace
from commbench.results.launch import LAUNCH, SET, read_launch
from commbench.results.launches import (
    KEY,
    Key,
    Launches,
    Versus,
    read_cells,
    read_sets,
    reasons,
    versus,
)
from commbench.results.spread import CANNOT_TELL, DIFFERENT, ITERATIONS, SAME, Comparison
from commbench.results.stats import median
from commbench.units import parse_number, parse_whole

ENDED = (EXIT_OK, EXIT_FAILED, EXIT_TIMEOUT)  # a launch with another exit code did not come to its end
NOT_MEASURING = {"repeat", "compare", "doctor"}  # doors that leave no results
HALVES = 8  # launches from which on halves can be told apart
EXAMPLE = "mpirun -n 4 python -m commbench.allreduce ..."
PATIENCE = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, None))

EXAMPLES = """examples:
  python -m commbench.repeat --launches 5 -- mpirun -n 4 python -m commbench.allreduce -b 8 -e 1M --budget 10
  python -m commbench.repeat --against "mpirun -n 4 python -m commbench.allreduce --algo ring -e 1M --budget 10" \\
      --out results/ring -- mpirun -n 4 python -m commbench.allreduce --algo auto -e 1M --budget 10
  python -m commbench.repeat --out results/ring --resume       after an interruption, or with more --launches
  python -m commbench.repeat --summary results/ring

exit codes: 0 all launches went well; 1 one did not; 2 bad usage or input; 3 with --against: cannot tell of any cell
"""


def parser() -> Parser:
    """Return the options, which stand before `--`; the command stands behind it."""
    it = Parser(
        prog="commbench repeat",
        usage="commbench repeat [options] -- mpirun ... python -m commbench.NAME ...",
        description="Run a measuring command several times: how far launches differ, and whether two commands do.",
        epilog=EXAMPLES,
    )
    it.add_argument("--launches", metavar="N", help="how often each command is run (default 5)")
    it.add_argument("--against", metavar="COMMAND", help="a second command, in one word; the two are run by turns")
    it.add_argument(
        "--out", metavar="DIR", help="the folder of all runs, and of no others (default results/<UTC time>-repeat)"
    )
    it.add_argument("--pause", metavar="S", default="0", help="seconds between launches (default 0)")
    it.add_argument("--shuffle", action="store_true", help="each pair of --against in random order (default a b b a)")
    it.add_argument("--seed", metavar="N", default="1", help="of --shuffle (default 1)")
    it.add_argument("--margin", metavar="P", default="0.05", help="two times are the same within this (default 0.05)")
    it.add_argument("--resume", action="store_true", help="go on with the set in --out: run the launches that it lacks")
    it.add_argument("--summary", metavar="DIR", help="run nothing: summarise the runs in DIR")
    it.add_argument("--json", action="store_true", help="the summary as one JSON object a line")
    return it


@dataclass(frozen=True)
class Plan:
    """What is run: kept in the folder of the set, so that --resume goes on with it."""

    commands: dict[str, list[str]]  # by the name of the set: a, and b with --against
    launches: int
    shuffle: bool
    seed: int

    def order(self) -> Iterator[tuple[str, int]]:
        """Yield (set, number of the launch), the sets by turns: a b b a, or each pair in random order."""
        names = list(self.commands)
        for number in range(1, self.launches + 1):
            turn = names if number % 2 else names[::-1]
            if self.shuffle:
                turn = random.Random(f"{self.seed} {number}").sample(names, len(names))
            yield from ((name, number) for name in turn)


def check_command(words: Sequence[str], what: str) -> list[str]:
    """Return a command that a folder can be appended to; raise UsageError for any other."""
    known = doors().keys() - NOT_MEASURING
    text = shlex.join(words)
    if not words:
        raise UsageError(f"{what} is missing: put it behind -- ({EXAMPLE})")
    modules = [after.partition("commbench.")[2] for word, after in pairwise(words) if word == "-m"]
    scripts = [a for word, a in pairwise(words) if Path(word).name == "commbench"]
    if not known & {*modules, *scripts} or NOT_MEASURING & {*modules, *scripts}:
        raise UsageError(
            f"{what} runs a door of commbench (python -m commbench.NAME, with NAME one of {', '.join(sorted(known))}), "
            f"in words of its own rather than inside a shell's; this one does not: {text}"
        )
    for word in words:
        if word.partition("=")[0] in ("--out", "--resume"):
            raise UsageError(f"{what} gets a folder for each launch from here: leave {word} out of it: {text}")
    return list(words)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the launches, print their summary, and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        code = _carry_out(words)
    except UsageError as error:
        print(f"commbench repeat: error: {error}", file=sys.stderr, flush=True)
        code = EXIT_USAGE
    raise SystemExit(code)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _carry_out(words: list[str]) -> int:
    options, command = parser().parse_with_command(words, EXAMPLE)
    margin = parse_number(options.margin, "--margin")
    if options.summary is not None:
        if command or options.against or options.resume or options.out:
            raise UsageError("--summary runs nothing: leave --out, --against, --resume and the command out")
        return summarise(Path(options.summary), margin, options.json)
    pause = parse_number(options.pause, "--pause")
    folder, plan = _prepare(options, command)
    failed = run(folder, plan, pause, again=options.resume)
    code = summarise(folder, margin, options.json)
    return EXIT_FAILED if failed else code


def _prepare(options: argparse.Namespace, command: list[str]) -> tuple[Path, Plan]:
    """Return the folder and the plan of the set: a new one, or the one that is gone on with."""
    commands = {}
    if command or not options.resume:
        commands["a"] = check_command(command, "the command")
    if options.against is not None:
        try:
            commands["b"] = check_command(shlex.split(options.against), "--against")
        except ValueError as error:
            raise UsageError(f"--against is a command in one word, {error}: {options.against}") from None
    launches = None if options.launches is None else parse_whole(options.launches, "--launches", least=2)
    seed = parse_whole(options.seed, "--seed")
    if not options.resume:
        folder = Path(options.out) if options.out else new_folder(f"results/{manifest.now()}-repeat")
        # What reads the folder of a set (commbench.load, a report) reads all that is below it.
        if other := next((path for name in (SET, MANIFEST) for path in folder.rglob(name)), None):
            raise ResultsError(
                f"{folder} holds results already ({other}): go on with a set by --resume, or name another --out"
            )
        plan = Plan(commands, launches or 5, options.shuffle, seed)
    else:
        if not options.out:
            raise UsageError("--resume goes on with the set in --out DIR: name its folder")
        folder = Path(options.out)
        plan = _read_plan(folder)
        for name, words in commands.items():
            if words != plan.commands.get(name):
                there = shlex.join(plan.commands.get(name, ["(none)"]))
                raise UsageError(
                    f"{folder} holds another command {name}: {there}; --resume needs none, or start another set"
                )
        plan = Plan(plan.commands, launches or plan.launches, plan.shuffle, plan.seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / SET, json.dumps({"version": 1, **asdict(plan)}, indent=1))
    except OSError as error:
        raise ResultsError(f"cannot write to {folder}: {error.strerror}; name another folder by --out") from None
    return folder, plan


def _read_plan(folder: Path) -> Plan:
    path = folder / SET
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Plan(kept["commands"], int(kept["launches"]), kept["shuffle"], kept["seed"])
    except FileNotFoundError:
        raise ResultsError(f"{folder} holds no set of launches (no {SET} in it)") from None
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} is not the plan of a set of launches ({error!r})") from None


def run(folder: Path, plan: Plan, pause: float, again: bool) -> bool:
    """Run the launches that the set lacks; return whether one ended badly."""
    order = list(plan.order())
    failed, started = False, False
    try:
        for place, (name, number) in enumerate(order, start=1):
            run_folder = folder / f"{name}-{number:02d}"
            kept = read_launch(run_folder)
            if kept.get("code") in ENDED and (run_folder / MANIFEST).exists():
                failed |= kept["code"] != EXIT_OK
                continue
            if kept and again:
                _say(f"{run_folder.name} did not come to its end before, and is made anew")
                shutil.rmtree(run_folder)
            if started and pause:
                time.sleep(pause)
            started = True
            about, said = _launch(run_folder, plan.commands[name], number)
            _say(f"{run_folder.name} ({place} of {len(order)}): {said}, exit {about['code']}, {about['seconds']:.1f} s")
            failed |= about["code"] != EXIT_OK
    except SystemExit:
        _say(f"stopped; what was measured is kept: --out {folder} --resume goes on with the launches that lack")
        raise
    return failed


def _launch(run_folder: Path, command: Sequence[str], number: int) -> tuple[dict[str, Any], str]:
    """Run one launch to its end; return what is kept of it, and its cells in words."""
    words = [*command, "--out", str(run_folder.resolve())]
    about: dict[str, Any] = {"launch": number, "set": run_folder.name.partition("-")[0], "command": words}
    about |= {"started": manifest.now(), "load": os.getloadavg()[0], "code": None, "seconds": None}
    log = run_folder.with_suffix(".log")
    try:
        run_folder.mkdir(exist_ok=True)
        replace(run_folder / LAUNCH, json.dumps(about, indent=1))
        begin = time.monotonic()
        about["code"] = _child(words, log)
        about["seconds"] = round(time.monotonic() - begin, 3)
        replace(run_folder / LAUNCH, json.dumps(about, indent=1))
    except OSError as error:
        raise UsageError(f"cannot run {shlex.join(words)}: {error}") from None
    if not (run_folder / MANIFEST).exists() or about["code"] == EXIT_USAGE:
        *_, last = ["", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
        raise UsageError(
            f"{run_folder.name} ended with exit {about['code']} without results, as the next would: see {log} "
            f"({last}); mend it and go on by --out {run_folder.parent} --resume, or start another set"
        )
    records = [record for record, _ in read_cells(run_folder)]
    states = Counter(record.status for record in records)
    return about, ", ".join(f"{number} cells {status}" for status, number in states.items())


def _child(words: Sequence[str], log: Path) -> int:
    """Return a command's exit code; end it when this process is to end. Its output goes to `log`."""
    with open(log, "wb") as output:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return child.wait()
        except BaseException:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            for number, seconds in PATIENCE:
                os.killpg(child.pid, number)
                try:
                    child.wait(seconds)
                    break
                except subprocess.TimeoutExpired:
                    continue
            raise


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def summarise(folder: Path, margin: float, as_json: bool) -> int:
    """Print the summary of the runs in a folder; return the exit code."""
    sets = read_sets(folder)
    against = versus(sets[0], sets[1], margin) if len(sets) > 1 else None
    for one in sets:
        halves = one.halves(margin) if len(one.launches) >= HALVES else {}
        if as_json:
            _print_json(one, halves)
        else:
            _print_table(one, halves)
    if against and as_json:
        for key, comparison in zip(against.keys, against.comparisons, strict=True):
            about = {"kind": "comparison", **dict(zip(KEY, key, strict=True)), **against.contrast}
            print(json.dumps({**about, **asdict(comparison), "margin": margin}))
    elif against:
        _print_versus(against, margin)
    if not as_json:
        print(f"# results in {folder}: commbench.load({str(folder)!r}) is their pandas table")
    sys.stdout.flush()
    undecided = against and all(one.verdict == CANNOT_TELL for one in against.comparisons)
    return EXIT_CANNOT_TELL if undecided else EXIT_OK


def _print_json(one: Launches, halves: Mapping[str, Sequence[Comparison]]) -> None:
    for key in one.keys:
        print(json.dumps({"kind": "cell", "set": one.name, **one.cell(key)}))
    for way, comparisons in halves.items():
        different = sum(comparison.verdict == DIFFERENT for comparison in comparisons)
        about = {"kind": "halves", "set": one.name, "halves": way, "cells": len(comparisons)}
        print(json.dumps({**about, "different": different, "smallest_p": min(c.p for c in comparisons)}))


def _labels(keys: Sequence[Key]) -> tuple[str, list[str]]:
    """Return what all cells share, in words, and the names of what tells them apart."""
    values = {name: {key[i] for key in keys} for i, name in enumerate(KEY)}
    columns = ["size", "algorithm"]
    columns += [name for name in KEY if name not in columns and len(values[name]) > 1]
    shared = {name: min(values[name]) for name in KEY if name not in columns and values[name] != {None}}
    words = [f"{name} {value}" for name, value in shared.items() if value is not False]
    return ", ".join(words), columns


def _row_start(key: Mapping[str, Any], columns: Sequence[str]) -> str:
    return " ".join(f"{'-' if key[name] is None else key[name]!s:>{_width(name)}}" for name in columns)


def _width(name: str) -> int:
    return 22 if name == "algorithm" else 11


def _print_table(one: Launches, halves: Mapping[str, Sequence[Comparison]]) -> None:
    cells = [one.cell(key) for key in one.keys]
    shared, columns = _labels(one.keys)
    launches = f"{len(one.launches)} launch{'es' * (len(one.launches) > 1)}"
    print(f"# {one.name}: {launches} of {shlex.join(one.command[:-2]) or '(unknown)'}\n# {shared}")
    print("# low and high: interval of the median over launches, at least 93 %, from five launches on")
    print("# spread: what launches, rounds and iterations add, relative to the time; share: of their variance together")
    start = " ".join(f"{name:>{_width(name)}}" for name in columns)
    below = " " * len(start)
    print(f"# {start} launches      time       low      high    spread (%)              share (%)")
    print(f"# {below}               (us)      (us)      (us)  launch  round   iter   launch  round   iter")
    for cell in cells:
        times = " ".join(_number(cell[name], 9, 2) for name in ("time_us", "time_us_low", "time_us_high"))
        spread = " ".join(_number(value, 6, 1, 100) for value in cell["spread"].values())
        share = " ".join(
            _number(value, 6, 0, 100) for value in (cell["share"] or dict.fromkeys(cell["spread"])).values()
        )
        print(f"  {_row_start(cell, columns)} {cell['launches']:>8} {times}  {spread}   {share}")
    print()
    whole = {name: [cell["share"][name] for cell in cells if cell["share"]] for name in cells[0]["spread"]}
    if all(whole.values()):
        text = ", ".join(f"{name} {100 * median(shares):.0f} %" for name, shares in whole.items())
        print(f"# share of the variance of single iterations, median over cells: {text}")
    for cell in cells:
        if peaks := cell["peaks"]:
            cell_name, level = " ".join(_row_start(cell, columns).split()), peaks["level"]
            share = 100 * peaks["high_share"]
            where = f"{peaks['low_us']:.2f} and {peaks['high_us']:.2f} us, {share:.0f} % of the samples near the latter"
            print(f"# two peaks: {cell_name}: {where}; {level} lie at {'either' if level != ITERATIONS else 'both'}")
    if one.without:
        print(f"# without a time: {reasons(one)}")
    for way, comparisons in halves.items():
        different = [
            " ".join(_row_start(dict(zip(KEY, key, strict=True)), columns).split())
            for key, comparison in zip(one.keys, comparisons, strict=True)
            if comparison.verdict == DIFFERENT
        ]
        found = f"{len(different)} of {len(comparisons)} cells different: {', '.join(different)}"
        smallest = min(comparison.p for comparison in comparisons)
        print(f"# halves {way}: {found if different else 'no cell different'} (smallest p {smallest:.3f})")
    print()


def _print_versus(found: Versus, margin: float) -> None:
    _, columns = _labels(found.keys)
    columns = [name for name in columns if name not in found.contrast]
    differ = ", ".join(f"{name} {a} and {b}" for name, (a, b) in found.contrast.items())
    print(f"# a against b{f': {differ}' if differ else ''}")
    print(
        "# p and different: of all cells together; low and high: 95 % interval of a/b over launches, of each cell alone"
    )
    print(f"# {' '.join(f'{name:>{_width(name)}}' for name in columns)}     a/b     low    high       p  verdict")
    for key, one in zip(found.keys, found.comparisons, strict=True):
        numbers = " ".join(_ratio(value) for value in (one.ratio, one.low, one.high))
        verdict = f"same within {100 * margin:g} %" if one.verdict == SAME else one.verdict
        print(f"  {_row_start(dict(zip(KEY, key, strict=True)), columns)} {numbers} {one.p:7.4f}  {verdict}")
    print()


def _ratio(value: float | None) -> str:
    return _number(value, 7, 3) if value is None or 0.01 <= value < 1000 else f"{value:7.1e}"


def _number(value: float | None, width: int, decimals: int, factor: float = 1.0) -> str:
    return f"{'-':>{width}}" if value is None else f"{factor * value:{width}.{decimals}f}"


if __name__ == "__main__":
    main()
