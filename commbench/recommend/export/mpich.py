"""MPICH: srun where there is a job of Slurm, hydra's mpiexec elsewhere.

In a job of Slurm hydra ignores the order that it is given (measured with MPICH 5.0.2 and Slurm 22.05.8), while srun
--mpi=pmi2 keeps that of SLURM_HOSTFILE.
"""

from __future__ import annotations

from itertools import groupby

from commbench.recommend.export import slurm, wrappers
from commbench.recommend.export._settings import NotExported, Settings, checked, on_gpus
from commbench.recommend.plan import Plan

TITLE = "MPICH"
NAMES_HOSTS = True
HOSTFILE, SCRIPT = "mpich.hosts", "mpich.sh"


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the host files, and the command."""
    checked(plan)
    if slurm.wrapped(settings):
        text = "MPI takes its ranks from srun, which may refuse an order here, and hydra ignores one in a job of Slurm"
        raise NotExported(f"no {SCRIPT}: {text}; use Open MPI's mpirun with its rank file")
    made = {HOSTFILE: hostfile(plan), SCRIPT: _script(plan, settings), slurm.HOSTFILE: slurm.hostfile(plan)}
    return made | (wrappers.device(plan, settings) if on_gpus(plan) else {})


def hostfile(plan: Plan) -> str:
    """Return hydra's host file: hosts with the number of ranks that follow one another there."""
    return "".join(f"{host}:{len(list(run))}\n" for host, run in groupby(seat.host for seat in plan.seats))


def parse(text: str) -> list[str]:
    """Return the host of each rank."""
    rows = (line.rpartition(":") for line in text.splitlines())
    return [host for host, _, count in rows for _ in range(int(count))]


def _script(plan: Plan, settings: Settings) -> str:
    device = f'"$folder/{wrappers.DEVICE}" ' if on_gpus(plan) else ""
    return f"""\
#!/usr/bin/env bash
# Starts a command on {len(plan.seats)} ranks as commbench planned them, by MPICH, in a job of Slurm or outside:
#   ./{SCRIPT} COMMAND...
set -euo pipefail
folder=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
if [ -n "${{SLURM_JOB_ID:-}}" ]; then
  export SLURM_HOSTFILE="$folder/{slurm.HOSTFILE}"
  unset SLURM_NTASKS_PER_NODE
  exec srun --mpi=pmi2 {" ".join(slurm.options(plan, settings))} {device}"$@"
fi
exec mpiexec -f "$folder/{HOSTFILE}" -n {len(plan.seats)} {device}"$@"
"""
