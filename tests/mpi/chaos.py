"""Ranks stopped, killed and astray: does every run end as it should, with nothing lost, and does --resume complete it?

    python -m tests.mpi.chaos --runs 20

prints a line a run and a table at the end. `test_ends.py` makes one run of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mpi.launch import MPICH, Job, library, mpirun

RANKS = 3
DEADLINE = 4.0  # seconds, -T
LATEST = 30.0  # seconds in which such a run ends on a machine however busy, and without its deadline would not
DOOR = "commbench.allreduce"
SWEEP = (
    "-b",
    "64",
    "-e",
    "32K",
    "-f",
    "8",
    "--precision",
    "0",
    "--rounds",
    "3",
    "--algo",
    "auto,ring,recursive_doubling",
)
CELLS, ROUNDS = 12, 3
_RANK_VARIABLES = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")


def visits(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of the visits as they stand on disk."""
    path = folder / "visits.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def await_visits(job: Job, folder: Path, number: int) -> None:
    """Wait until so many visits are on disk."""
    until = time.monotonic() + 60
    while len(visits(folder)) < number:
        assert job.running, f"the job ended before it was disturbed: {job.wait(1)}"
        assert time.monotonic() < until, f"{len(visits(folder))} visits in a minute"
        time.sleep(0.01)


def process_of(job: Job, rank: int, door: str = DOOR) -> int:
    """Return the process of a rank."""
    for pid in job.processes():
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        is_rank = any(name + str(rank).encode() in entries for name in _RANK_VARIABLES)
        if is_rank and door.encode() in command and Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python"):
            return pid
    raise AssertionError(f"no process of rank {rank}")


def resumed(folder: Path, before: Sequence[Mapping[str, Any]]) -> None:
    """Go on with a run and assert that it is complete, that nothing was lost and nothing measured twice."""
    command = mpirun(RANKS, DOOR, "--resume", "--out", folder.name, "--format", "json")
    with Job(command, folder.parent) as job:
        done = job.wait(90)
    assert done.code == 0, done.stderr
    after = visits(folder)
    assert after[: len(before)] == list(before)
    good = Counter(visit["cell"] for visit in after if visit["status"] == "ok")
    assert good == dict.fromkeys(range(CELLS), ROUNDS), good
    assert [record["status"] for record in done.records] == ["ok"] * CELLS


def timed_out(
    folder: Path, rank: int, environment: Mapping[str, str], disturb: Callable[[Job], None], *more: str
) -> None:
    """Run, disturb, and assert that the job ends by its deadline, naming the rank and the cell."""
    command = mpirun(RANKS, DOOR, *SWEEP, *more, "-T", f"{DEADLINE:g}", "--out", folder.name)
    with Job(command, folder.parent, environment) as job:
        disturb(job)
        done = job.wait(LATEST)
    assert done.code == 124, (done.code, done.stderr)
    assert done.left == 0
    said = [line for line in done.stderr.splitlines() if "commbench: timeout" in line]
    assert len(said) == 1, done.stderr
    named = re.search(r"ranks? ([\d, ]+?) (?:at|not arrived)", said[0])
    assert named and named.group(1) == str(rank), said[0]
    last = visits(folder)[-1]
    assert last["status"] == "timeout", last
    cell = json.loads((folder / "manifest.json").read_text())["plan"]["cells"][last["cell"]]
    assert f"allreduce {cell['algorithm']} {cell['dtype']} {cell['redop']} {cell['size']} B" in said[0]


def stopped(folder: Path, chance: random.Random) -> None:
    """A rank gets SIGSTOP amid the sweep."""
    rank = chance.randrange(RANKS)
    kept: list[dict[str, Any]] = []

    def disturb(job: Job) -> None:
        await_visits(job, folder, chance.randrange(1, CELLS))
        os.kill(process_of(job, rank), signal.SIGSTOP)
        kept.extend(visits(folder))

    timed_out(folder, rank, {}, disturb)
    assert visits(folder)[: len(kept)] == kept
    resumed(folder, visits(folder))


def skipping(folder: Path, chance: random.Random) -> None:
    """A rank leaves one collective out."""
    rank = chance.randrange(RANKS)
    settings = {"COMMBENCH_TESTS_RANK": str(rank), "COMMBENCH_TESTS_CALL": str(chance.randrange(20, 300))}

    def disturb(job: Job) -> None:
        while job.running and not any(visit["status"] == "timeout" for visit in visits(folder)):
            before = len(visits(folder))
            time.sleep(DEADLINE / 4)
            if len(visits(folder)) == before:
                return  # it hangs by now, for a second at most

    timed_out(folder, rank, settings, disturb, "--backend", "tests.mpi.skipping", "-n", "10")


def killed(folder: Path, chance: random.Random) -> None:
    """A rank gets SIGKILL: the launcher ends the job with its own code."""
    _signalled(folder, chance, lambda job: process_of(job, chance.randrange(RANKS)), signal.SIGKILL, {9, 137})


def interrupted(folder: Path, chance: random.Random) -> None:
    """mpirun gets SIGINT, as from Ctrl-C."""
    _signalled(folder, chance, lambda job: job.launcher, signal.SIGINT, {11, 1, 2, 130, 255})


def terminated(folder: Path, chance: random.Random) -> None:
    """mpirun gets SIGTERM, as from a scheduler."""
    _signalled(folder, chance, lambda job: job.launcher, signal.SIGTERM, {15, 1, 143, 255})


def _signalled(
    folder: Path, chance: random.Random, target: Callable[[Job], int], number: signal.Signals, codes: set[int]
) -> None:
    command = mpirun(RANKS, DOOR, *SWEEP, "--out", folder.name)
    with Job(command, folder.parent) as job:
        await_visits(job, folder, chance.randrange(1, CELLS))
        os.kill(target(job), number)
        kept = visits(folder)
        done = job.wait(30)
    assert done.code % 256 in codes, done.code
    assert done.left == 0
    assert visits(folder)[: len(kept)] == kept
    resumed(folder, visits(folder))


KINDS: tuple[Callable[[Path, random.Random], None], ...] = (stopped, skipping, killed, interrupted, terminated)


def main() -> None:
    """Make the runs and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(kind.__name__ for kind in KINDS))
    options = parser.parse_args()
    table = []
    for kind in KINDS:
        if kind.__name__ not in options.kinds.split(","):
            continue
        failures = 0
        for number in range(options.runs):
            with tempfile.TemporaryDirectory() as place:
                try:
                    kind(Path(place) / "run", random.Random(f"{options.seed}/{kind.__name__}/{number}"))
                    print(f"{kind.__name__} {number}: as it should", flush=True)
                except AssertionError as error:
                    failures += 1
                    print(f"{kind.__name__} {number}: FAILED: {str(error)[:2000]}", flush=True)
        table.append((kind.__name__, options.runs - failures, options.runs))
    print(f"\n{library() or MPICH}, {RANKS} ranks")
    for name, right, runs in table:
        print(f"{name:12} {right:3d} of {runs} runs ended as they should")
    sys.exit(any(right < runs for _, right, runs in table))


if __name__ == "__main__":
    main()
