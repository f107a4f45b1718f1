"""Open MPI: the order of ranks in a file, and the command that gives it to mpirun.

Where the plan names cores it is a rank file, which binds to them; else a host for each rank, taken in turn (`seq`) and
bound to nothing, since a rank file always binds. The option moved from --rankfile (4) to --map-by rankfile:file= (5;
openpmix/prrte#1396). 4 does not take a plain host file as an order (open-mpi/ompi#13199).
"""

from __future__ import annotations

from commbench.recommend.export import wrappers
from commbench.recommend.export._settings import CORES, Settings, checked, on_gpus
from commbench.recommend.plan import Plan

TITLE = "Open MPI"
NAMES_HOSTS = True
RANKFILE, SEQUENCE, HOSTFILE, SCRIPT = "openmpi.rankfile", "openmpi.sequence", "openmpi.hosts", "openmpi.sh"
BY_MAP = 5  # the first version whose --map-by takes files


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the order, the hosts with their slots, and the command."""
    checked(plan)
    name = RANKFILE if _bound(plan) else SEQUENCE
    order = rankfile(plan) if _bound(plan) else "".join(f"{seat.host}\n" for seat in plan.seats)
    hosts = "".join(f"{host} slots={count}\n" for host, count in plan.per_host.items())
    made = {name: order, HOSTFILE: hosts, SCRIPT: _script(plan, settings)}
    return made | (wrappers.device(plan, settings) if on_gpus(plan) else {})


def rankfile(plan: Plan) -> str:
    """Return a line for each rank, whose slot is the cores to bind to."""
    return "".join(f"rank {rank}={seat.host} slot={seat.cpus}\n" for rank, seat in enumerate(plan.seats))


def parse(text: str) -> list[str]:
    """Return the host of each rank."""
    hosts = {}
    for line in text.splitlines():
        rank, _, place = line.removeprefix("rank ").partition("=")
        hosts[int(rank)] = place.split()[0]
    return [hosts[rank] for rank in range(len(hosts))]


def _bound(plan: Plan) -> bool:
    return all(seat.cpus for seat in plan.seats)


def _script(plan: Plan, settings: Settings) -> str:
    device = f'"$folder/{wrappers.DEVICE}" ' if on_gpus(plan) else ""
    asked = r"$(mpirun --version | sed -n '1s/^[^0-9]*\([0-9]*\)\..*/\1/p')"
    major = str(settings.openmpi[0]) if settings.openmpi else asked
    if _bound(plan):
        order = f"""\
major={major}
if [ "$major" -ge {BY_MAP} ]; then
  order=(--map-by "rankfile:file=$folder/{RANKFILE}")
else
  order=(--rankfile "$folder/{RANKFILE}")
fi
# A job of Slurm has told mpirun its hosts.
[ -n "${{SLURM_JOB_ID:-}}" ] || order+=(--hostfile "$folder/{HOSTFILE}")"""
    else:
        order = f"# The plan names no cores, and no rank is bound to any: {CORES}.\n"
        order += f'order=(--hostfile "$folder/{SEQUENCE}" --map-by seq --bind-to none)'
    return f"""\
#!/usr/bin/env bash
# Starts a command on {len(plan.seats)} ranks as commbench planned them, by Open MPI's mpirun, in a job or outside:
#   ./{SCRIPT} COMMAND...          (MPIRUN_OPTIONS are added)
set -euo pipefail
folder=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
{order}
read -ra more <<<"${{MPIRUN_OPTIONS:-}}"
exec mpirun -np {len(plan.seats)} "${{order[@]}}" ${{more[@]+"${{more[@]}}"}} {device}"$@"
"""
