"""What NCCL and commbench do on a machine with one NVIDIA GPU: `python -m tests.gpu.one_gpu --json one_gpu.json`.

Each step is a process of its own, with a time limit; one that fails is recorded, and the next goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from commbench import __version__
from commbench.backends.base import DEVICE_BUFFERS
from tests.mpi.launch import MPIRUN, Done, Overdue, run

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
SHARING = 23000  # the first NCCL that takes two ranks on one GPU, as ncclGetVersion has it
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NET_GDR_LEVEL": "LOC"}


class Skip(Exception):
    """A step that does not apply here, and why."""


class Found(NamedTuple):
    """What a step found: a line, all of it, and what is printed of it at the end."""

    note: str
    data: Any = None
    shown: str = ""


class Trouble(Exception):
    """What is wrong, and what was found all the same."""

    def __init__(self, note: str, data: Any = None, shown: str = "") -> None:
        super().__init__(note)
        self.found = Found(note, data, shown)


class Step(NamedTuple):
    """One step: `work` is given its seconds."""

    name: str
    limit: float
    work: Callable[[float], Found]


@dataclass(frozen=True)
class Outcome:
    """What became of a step; seconds of the wall clock."""

    name: str
    status: str
    seconds: float
    note: str
    data: Any = None
    shown: str = ""


def carry_out(steps: Sequence[Step], say: Callable[[str], None] = print) -> list[Outcome]:
    """Carry out every step, whatever becomes of the others."""
    outcomes = []
    for step in steps:
        say(f"{step.name} (at most {step.limit:g} s) ...")
        begin = perf_counter()
        status = FAILED
        try:
            status, found = OK, step.work(step.limit)
        except Skip as reason:
            status, found = SKIPPED, Found(str(reason))
        except Overdue as overdue:
            found = Found(f"did not end within {step.limit:g} s", str(overdue))
        except Trouble as trouble:
            found = trouble.found
        except Exception as error:
            found = Found(f"{type(error).__name__}: {error}")
        outcomes.append(Outcome(step.name, status, round(perf_counter() - begin, 1), *found))
        say(f"  {status}: {found.note}")
    return outcomes


def process(limit: float, *command: str, env: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)) -> Done:
    """Run a command to its end; raise Trouble for another exit code, Overdue where it takes too long."""
    done = run(command, timeout=limit, env=env)
    if done.code not in codes:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise Trouble(f"exit {done.code}: {last}", {"stdout": done.stdout[-4000:], "stderr": done.stderr[-4000:]})
    return done


def answer(done: Done) -> Any:
    """Return the JSON of the last line; raise Trouble where it is none."""
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Trouble("the last line is no JSON", {"stdout": done.stdout[-4000:]}) from None


def records(done: Done) -> list[dict[str, Any]]:
    """Return the records of a sweep; raise Trouble where it left none."""
    if not done.stdout.strip():
        raise Trouble(f"no records: {(done.stderr.strip() or 'and no word').splitlines()[-1]}", done.stderr[-4000:])
    return done.records


# The steps


def look(limit: float) -> Found:
    """Return what commbench.doctor found."""
    done = run([sys.executable, "-m", "commbench.doctor", "--json"], timeout=limit)
    if "No module named commbench.doctor" in done.stderr:
        raise Skip("this commbench has no doctor")
    report = answer(done)
    rows = [[each[key] for key in ("level", "check", "rule", "value")] for each in report["findings"]]
    return Found(f"{len(rows)} findings", report, table(("level", "check", "rule", "here"), rows))


def on_device(task: str, limit: float, ranks: int = 1, env: Mapping[str, str] | None = None) -> Any:
    """Return what a task of on_device.py found."""
    start = [str(MPIRUN), "-n", str(ranks)] if ranks > 1 else []
    return answer(process(limit, *start, sys.executable, "-m", "tests.gpu.on_device", task, env=env))


def library(found: dict[str, Any], limit: float) -> Found:
    """Put into `found` which library and device there are."""
    found |= on_device("library", limit)
    return Found(f"{found['library']} ({found['file']}) on {found['device']}", dict(found))


def sweep(door: str, graph: bool, limit: float) -> Found:
    """Sweep one rank over sizes and kinds of memory."""
    options = ["--backend", "nccl", "--algo", "auto", "--buffer", "all", "-b", "8", "-e", "64M", "-f", "8"]
    options += ["--rounds", "3", "--budget", str(int(limit / 3)), "--json", *(["-G", "20"] if graph else [])]
    cells = records(process(limit, sys.executable, "-m", f"commbench.{door}", *options, codes=(0, 1)))
    if faults := faults_of_sweep(cells, "graph" if graph else "events"):
        raise Trouble("; ".join(faults), cells, times(cells))
    return Found(f"{sum(cell['status'] == 'ok' for cell in cells)} cells ok", cells, times(cells))


def faults_of_sweep(records: Sequence[Mapping[str, Any]], loop: str) -> list[str]:
    """Return what is wrong with a sweep of one rank: cells that failed, kinds of memory that no cell has."""
    faults = [
        f"{record['size']} B {record['buffer']}: {record['status']} ({record['reason']})"
        for record in records
        if record["status"] not in ("ok", "not_measured")
    ]
    good = [record for record in records if record["status"] == "ok"]
    faults += [f"no cell in {kind} memory" for kind in DEVICE_BUFFERS if kind not in {each["buffer"] for each in good}]
    if others := {str(record["loop"]) for record in good} - {loop}:
        faults.append(f"timed by {', '.join(sorted(others))} instead of {loop}")
    return faults


def abort(limit: float) -> Found:
    """Abort a communicator of one rank while it is in use."""
    return judged_abort(on_device("abort", limit))


def withheld(found: Mapping[str, Any], limit: float) -> Found:
    """Abort where one of two ranks stays away."""
    sharing(found)
    return judged_abort(on_device("abort", limit, ranks=2, env=SHARED))


def judged_abort(answer: Mapping[str, Any]) -> Found:
    """Return what an abort showed; raise Trouble where sums are wrong, or nothing was in use."""
    if not answer["right"]:
        raise Trouble("sums were wrong, before the abort or after it", answer)
    if not answer["busy"]:
        raise Trouble("the communicator was through before it was aborted: nothing is shown", answer)
    return Found(f"{answer['ranks']} rank(s): gone after {answer['abort_s']} s; a new communicator works", answer)


def sharing(found: Mapping[str, Any]) -> None:
    """Raise Skip unless two ranks can have this GPU."""
    if found.get("version", 0) < SHARING:
        raise Skip(f"two ranks on one GPU take NCCL 2.30, and this is {found.get('library', 'not known')}")
    if not MPIRUN.exists():
        raise Skip(f"no mpirun beside this interpreter ({MPIRUN})")


def two_ranks(found: Mapping[str, Any], limit: float) -> Found:
    """Ask two ranks on the GPU for every algorithm and protocol, and see what ran."""
    sharing(found)
    command = [str(MPIRUN), "-n", "2", sys.executable, "-m", "commbench.allreduce", "--backend", "nccl", "--json"]
    command += ["--share-devices", "--algo", "auto,ring,tree,nvls", "--proto", "all"]
    command += ["-b", "1K", "-e", "1M", "-f", "32", "--rounds", "1"]
    command += ["--budget", str(int(limit / 2)), "-T", str(int(limit / 3))]
    cells = records(process(limit, *command, env=SHARED, codes=(0, 1)))
    rows = [(each["size"], _asked(each), _observed(each) or "-", each["status"], each["evidence"]) for each in cells]
    shown = table(("bytes", "asked", "observed", "status", "evidence"), rows)
    if faults := faults_of_two_ranks(cells):
        raise Trouble("; ".join(faults), cells, shown)
    return Found(f"{sum(cell['status'] == 'ok' for cell in cells)} cells ran as asked", cells, shown)


def faults_of_two_ranks(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where another thing ran than what was asked, or where that is not known; nvls must not run at all."""
    faults = []
    for record in records:
        what, ran = f"{_asked(record)} at {record['size']} B", _observed(record)
        if record["status"] in ("failed", "wrong", "timeout", "substituted"):
            faults.append(f"{what}: {record['status']} ({record['reason']})")
        elif record["status"] != "ok":
            continue
        elif record["algorithm"] == "nvls":
            faults.append(f"{what}: ran, without a switch")
        elif record["observed_algorithm"] is None:
            faults.append(f"{what}: what ran is {record['evidence']}")
        elif record["algorithm"] != "auto" and ran != _asked(record):
            faults.append(f"{what}: {ran} ran")
    ok = {_asked(record) for record in records if record["status"] == "ok"}
    # ll128 is not on every GPU
    forced = [f"{algorithm} {protocol}" for algorithm in ("ring", "tree") for protocol in ("ll", "simple")]
    return faults + [f"{each} did not run at any size" for each in forced if each not in ok]


def _asked(record: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (record["algorithm"], record["protocol"])))


def _observed(record: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (record["observed_algorithm"], record["observed_protocol"])))


def overhead(limit: float) -> Found:
    """Hold commbench's loop against the one in C."""
    sizes = on_device("overhead", limit)["sizes"]
    rows = ratios(sizes)
    shown = [(row["size"], f"{row['c_us']:.2f}", f"{row['ours/c']:.3f}", f"{row['c/c']:.3f}") for row in rows]
    worst = max(rows, key=lambda row: float(row["ours/c"]))
    note = f"ours/C at most {worst['ours/c']:.3f}, at {worst['size']} B"
    return Found(note, {"ratios": rows, "sizes": sizes}, table(("bytes", "C us", "ours/C", "C/C"), shown))


def ratios(sizes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, of each size, the median over rounds of the ratio of two times of one round; `c/c` is the control."""
    return [
        {
            "size": each["size"],
            "c_us": median(taken["c"] for taken in each["rounds"]),
            "ours/c": median(taken["ours"] / taken["c"] for taken in each["rounds"]),
            "c/c": median(taken["c_again"] / taken["c"] for taken in each["rounds"]),
        }
        for each in sizes
    ]


def steps() -> list[Step]:
    """Return the steps, in their order: 430 s together at most."""
    found: dict[str, Any] = {}
    sweeps = [
        Step(f"{door}, {'graphs' if graph else 'events'}", 35, partial(sweep, door, graph))
        for door in ("allreduce", "allgather")
        for graph in (False, True)
    ]
    return [
        Step("doctor", 30, look),
        Step("library", 30, partial(library, found)),
        *sweeps,
        Step("abort", 40, abort),
        Step("two ranks on one GPU", 90, partial(two_ranks, found)),
        Step("abort, one rank withheld", 40, partial(withheld, found)),
        Step("our loop against C", 60, overhead),
    ]


# What is printed


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return lines of columns, as wide as what they hold."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the table of steps, and what each has to show."""
    steps = table(
        ("step", "status", "s", "note"), [(each.name, each.status, each.seconds, each.note) for each in outcomes]
    )
    return "\n\n".join([*(f"{each.name}\n{each.shown}" for each in outcomes if each.shown), steps])


def times(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the microseconds of a sweep: a row a size, a column a kind of memory."""
    taken = {(each["size"], each["buffer"]): each["time_us"] for each in cells if each["time_us"] is not None}
    sizes = sorted({each["size"] for each in cells})
    rows = [
        [size, *(f"{taken[size, kind]:.2f}" if (size, kind) in taken else "-" for kind in DEVICE_BUFFERS)]
        for size in sizes
    ]
    return table(("bytes", *DEVICE_BUFFERS), rows)


def main(arguments: Sequence[str] | None = None, planned: Sequence[Step] | None = None, name: str = "one_gpu") -> int:
    """Carry out the steps; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.gpu.{name}", description="Steps on one GPU.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything that was found")
    asked = parser.parse_args(arguments)
    outcomes = carry_out(steps() if planned is None else planned)
    print(f"\n{report(outcomes)}")
    if asked.json:
        whole = {"commbench": __version__, "steps": [asdict(outcome) for outcome in outcomes]}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.status == FAILED for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
