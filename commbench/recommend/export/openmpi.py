"""Open MPI: a rank file, and the command that gives it to mpirun.

The option moved from --rankfile (4) to --map-by rankfile:file= (5; openpmix/prrte#1396). 4 does not take a host file as
an order (open-mpi/ompi#13199), a rank file it does.
"""

from __future__ import annotations

from commbench.recommend.export import wrappers
from commbench.recommend.export._settings import Settings, checked, on_gpus, ranks_of
from commbench.recommend.plan import Plan

TITLE = "Open MPI"
RANKFILE, HOSTFILE, SCRIPT = "openmpi.rankfile", "openmpi.hosts", "openmpi.sh"
BY_MAP = (5,)  # the first version that has --map-by rankfile:file=


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the rank file, the hosts with their slots, and the command."""
    checked(plan)
    hosts = "".join(f"{host} slots={count}\n" for host, count in plan.per_host.items())
    made = {RANKFILE: rankfile(plan), HOSTFILE: hosts, SCRIPT: _script(plan, settings)}
    return made | (wrappers.device(plan) if on_gpus(plan) else {})


def rankfile(plan: Plan) -> str:
    """Return a line for each rank; its slot is the cores to bind to: those near the device, else one by local rank."""
    places = {rank: place for ranks in ranks_of(plan).values() for place, rank in enumerate(ranks)}
    rows = (f"rank {rank}={seat.host} slot={seat.cpus or places[rank]}\n" for rank, seat in enumerate(plan.seats))
    return "".join(rows)


def parse(text: str) -> list[str]:
    """Return the host of each rank."""
    hosts = {}
    for line in text.splitlines():
        rank, _, place = line.removeprefix("rank ").partition("=")
        hosts[int(rank)] = place.split()[0]
    return [hosts[rank] for rank in range(len(hosts))]


def _script(plan: Plan, settings: Settings) -> str:
    device = f'"$folder/{wrappers.DEVICE}" ' if on_gpus(plan) else ""
    asked = r"$(mpirun --version | sed -n '1s/^[^0-9]*\([0-9]*\)\..*/\1/p')"
    major = str(settings.openmpi[0]) if settings.openmpi else asked
    # Without cores that somebody named, where ranks may run is left to the system: the slots of the file say who sits
    # where, and no more.
    free = "" if all(seat.cpus for seat in plan.seats) else " --bind-to none"
    return f"""\
#!/usr/bin/env bash
# Starts a command on {len(plan.seats)} ranks as commbench planned them, by Open MPI's mpirun, in a job or outside:
#   ./{SCRIPT} COMMAND...          (MPIRUN_OPTIONS are added)
set -euo pipefail
folder=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
major={major}
hosts=()
# In a job of Slurm mpirun knows its hosts; to be told them again would be refused where names differ.
[ -n "${{SLURM_JOB_ID:-}}" ] || hosts=(--hostfile "$folder/{HOSTFILE}")
if [ "$major" -ge {BY_MAP[0]} ]; then
  order=(--map-by "rankfile:file=$folder/{RANKFILE}")
else
  order=(--rankfile "$folder/{RANKFILE}")
fi
read -ra more <<<"${{MPIRUN_OPTIONS:-}}"
exec mpirun -np {len(plan.seats)} ${{hosts[@]+"${{hosts[@]}}"}} "${{order[@]}}"{free} ${{more[@]+"${{more[@]}}"}} \\
  {device}"$@"
"""
