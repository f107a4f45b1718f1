"""Say whether ranks sit where a plan has them, at the start of a job.

mpirun -n N python -m commbench.verify placement.json
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from commbench.backends.world import Launch, launch, leave_the_word
from commbench.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, UsageError, printable
from commbench.measure.parser import Parser
from commbench.measure.streams import Patient
from commbench.recommend.plan import Plan, Seat, read
from commbench.topology.hosts import same_host

SHOWN = 16  # ranks that are named
SECONDS = 300.0  # for ranks to meet

EXAMPLES = """examples:
  mpirun -n 16 python -m commbench.verify placement.json && mpirun -n 16 python train.py
  cd out && sbatch job.sbatch true    # in Slurm: the exported job checks itself, and this one does no more
  SLURM_HOSTFILE=hosts.slurm srun --ntasks=256 --distribution=arbitrary --gpu-bind=none ./device.sh \\
      python -m commbench.verify placement.json    # the same in a job script of your own
  torchrun ... -m commbench.verify placement.json --warn

exit codes: 0 all ranks sit as planned; 1 some do not, and are named; 2 bad usage
"""


def parser() -> Parser:
    """Return the options."""
    it = Parser(
        prog="commbench verify",
        description="Say whether ranks sit where a plan has them. Any launcher may start it, as it will start the job.",
        epilog=EXAMPLES,
    )
    it.add_argument("plan", metavar="PLAN", help="placement.json, or the folder of an export")
    it.add_argument("--warn", action="store_true", help="only say it, and exit 0")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Compare, and exit with one code on all ranks.

    Each rank looks at itself. Under an mpirun they agree by MPI, and rank 0 speaks for all. Elsewhere no word passes
    between them: those that sit wrong say so and exit 1, and srun and torchrun end with the code of the worst.
    """
    sys.stdout, sys.stderr = Patient(sys.stdout), Patient(sys.stderr)
    launched = launch()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(words):
        if launched.rank == 0:
            print(parser().format_help())
        raise SystemExit(EXIT_OK)
    trouble, warn, plan = "", False, None
    try:
        options = parser().parse_args(words)
        warn, plan = options.warn, read(Path(options.plan))
    except UsageError as error:
        trouble = str(error)
    if launched.by_mpirun:
        _agree(plan, trouble, warn)
    speaks = 0 in (launched.rank, launched.node_rank)  # a file may be missing on one host alone
    if trouble or plan is None:
        _usage(trouble, launched, speaks)
    device = device_of(os.environ, plan)
    try:
        if not launched.launcher and len(plan.seats) > 1:
            raise UsageError(
                f"the plan has {len(plan.seats)} ranks, and nothing tells which one this is: start it as the job will "
                "be started, by mpirun, srun or torchrun, or with RANK and WORLD_SIZE set"
            )
        wrong = compare(plan, launched.rank, launched.size, host_of(os.environ), device)
    except UsageError as error:
        _usage(str(error), launched, speaks)
    if wrong:
        print(f"commbench verify: {_level(warn)}: {wrong}", file=sys.stderr, flush=True)
    elif launched.rank == 0:
        text = f"rank 0 of {launched.size} sits as planned, and so do all that say nothing"
        print(f"commbench verify: {text}{_unseen(plan, device)}", flush=True)
    raise SystemExit(EXIT_FAILED if wrong and not warn else EXIT_OK)


def compare(plan: Plan, rank: int, size: int, host: str, device: int | None) -> str:
    """Return how this rank's seat differs from the planned one, empty if it does not; `device` None: not known.

    UsageError where the job has another number of ranks than the plan, or no such rank.
    """
    if rank >= size:
        raise UsageError(f"the launcher calls this rank {rank} of {size}, which are numbered from 0: correct RANK")
    if size != len(plan.seats):
        raise UsageError(f"the plan has {len(plan.seats)} ranks, and this job {size}: start as many as were planned")
    seat = plan.seats[rank]
    if same_host(seat.host, host) and device in (None, seat.device):
        return ""
    there = "" if device is None else f" on device {device}"
    return f"rank {rank} is planned on {_at(seat)}, and sits on {host}{there}"


def host_of(environment: Mapping[str, str]) -> str:
    """Return this host's name: what Slurm calls it, else its own."""
    return environment.get("SLURMD_NODENAME") or os.uname().nodename


def device_of(environment: Mapping[str, str], plan: Plan) -> int | None:
    """Return the number of this rank's device, None where the environment does not tell.

    A rank that is shown one device has that. One that is shown several, or all, takes that of its local rank, as
    programs do.
    """
    if plan.vendor == "cpu":
        return None
    local = launch(environment).node_rank
    shown: list[int] | None = None
    for name in _VISIBLE.get(plan.vendor, _VISIBLE["nvidia"] + _VISIBLE["amd"]):
        if name not in environment:
            continue
        places = _numbers(environment[name])
        if places is None:
            return None  # by a UUID, or none at all
        if shown is not None and plan.vendor == "amd":  # HIP counts among those that ROCR shows
            places = [shown[place] for place in places if place < len(shown)]
        elif shown is not None:
            continue
        elif (places := _on_node(places, environment)) is None:
            return None
        shown = places
    if shown is None:
        return local
    if len(shown) == 1:
        return shown[0]
    return shown[local] if local is not None and local < len(shown) else None


_VISIBLE = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}


def _on_node(shown: list[int], environment: Mapping[str, str]) -> list[int] | None:
    """Return the node's own numbers of devices that a task is shown; None where they may be one or the other.

    Under ConstrainDevices Slurm shows them by their places among those granted, else by the node's numbers. Those
    granted it names by the node's own (srun(1)): a task's in SLURM_STEP_GPUS, a batch script's in SLURM_JOB_GPUS, which
    tasks on other nodes inherit.
    """
    batch = "" if "SLURM_STEP_ID" in environment else environment.get("SLURM_JOB_GPUS", "")
    granted = _numbers(environment.get("SLURM_STEP_GPUS") or batch)
    if granted is None:
        return shown
    by_place = [granted[place] for place in shown if place < len(granted)]
    if len(by_place) < len(shown) or by_place == shown:
        return shown
    return None if set(shown) <= set(granted) else by_place


def _numbers(text: str) -> list[int] | None:
    """Return a list of numbers, None where it is none."""
    numbers = [number.strip() for number in text.split(",")]
    return [int(number) for number in numbers] if all(map(str.isdecimal, numbers)) else None


def _agree(plan: Plan | None, trouble: str, warn: bool) -> NoReturn:
    """Compare under an mpirun: all ranks exit with one code, and rank 0 says why. Only if some sit wrong more than a
    sum passes between them.
    """
    from commbench.backends._mpi_world import open_mpi
    from commbench.measure.door import bounded

    launched = launch()
    try:
        with bounded(SECONDS, "MPI_Init"):
            world = open_mpi()
    except UsageError as error:
        _usage(trouble or str(error), launched, launched.rank == 0)
    wrong, device = "", None
    if plan is not None:
        try:
            device = device_of(os.environ, plan)
            wrong = compare(plan, world.rank, world.size, host_of(os.environ), device)
        except UsageError as error:
            trouble = str(error)
    bad, count = world.total(bool(trouble), bool(wrong))
    if bad:
        text = world.first_text(trouble)
        if world.rank == 0:
            _complain(text)
        world.close()
        raise SystemExit(EXIT_USAGE)
    if count:
        told = world.gather_text(wrong)
        if told is not None:
            lines = [text for text in told if text]
            more = [f"{count - SHOWN} more ranks sit elsewhere than planned"] if count > SHOWN else []
            for line in [*lines[:SHOWN], *more]:
                print(f"commbench verify: {_level(warn)}: {line}", file=sys.stderr, flush=True)
    elif world.rank == 0 and plan is not None:
        print(f"commbench verify: all {world.size} ranks sit as planned{_unseen(plan, device)}", flush=True)
    world.close()
    raise SystemExit(EXIT_FAILED if count and not warn else EXIT_OK)


def _usage(text: str, launched: Launch, speaks: bool) -> NoReturn:
    if speaks:
        _complain(text)
    leave_the_word(launched, speaks)
    raise SystemExit(EXIT_USAGE)


def _complain(text: str) -> None:
    print(f"commbench verify: error: {printable(text)}", file=sys.stderr, flush=True)


def _unseen(plan: Plan, device: int | None) -> str:
    return (
        " (hosts only: the environment tells no device by its number)"
        if device is None and plan.vendor != "cpu"
        else ""
    )


def _level(warn: bool) -> str:
    return "warning" if warn else "error"


def _at(seat: Seat) -> str:
    return f"{seat.host}, device {seat.device}"


if __name__ == "__main__":
    main()
