"""Scripts that seat ranks by themselves, under any launcher: for orders that a launcher does not take.

ranks.tsv has a line for each rank: host, its place there, rank, device. By it
ranks.sh gives a process that was started anywhere on the right hosts its rank, as PyTorch reads it;
device.sh leaves the rank as the launcher has it, tells PyTorch that too, and shows the process the device that the plan
has for it.
"""

from __future__ import annotations

from commbench.recommend.export._settings import NotExported, Settings, checked, on_gpus, ranks_of
from commbench.recommend.plan import Plan

TITLE = "Wrappers"
NAMES_HOSTS = True
RANKS, DEVICE, TABLE = "ranks.sh", "device.sh", "ranks.tsv"

_SHOW = """\
# Devices are numbered as the driver's own tools do.
show() {
  case $vendor in
    nvidia) export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$1 ;;
    amd) export HIP_VISIBLE_DEVICES=$1; unset ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ;;
    cpu) ;;
    *) export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$1 HIP_VISIBLE_DEVICES=$1; unset ROCR_VISIBLE_DEVICES ;;
  esac
}
"""


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the table and the scripts."""
    return {**ranks(plan, settings), **device(plan, settings)}


def table(plan: Plan) -> str:
    """Return the text of ranks.tsv."""
    checked(plan)
    places = {rank: place for ranks in ranks_of(plan).values() for place, rank in enumerate(ranks)}
    rows = (f"{seat.host}\t{places[rank]}\t{rank}\t{seat.device}\n" for rank, seat in enumerate(plan.seats))
    return "".join(rows)


def ranks(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return what gives a process its rank; raise NotExported where hosts have unlike numbers of ranks."""
    checked(plan)
    if len(counts := set(plan.per_host.values())) > 1:
        text = (
            f"hosts have from {min(counts)} to {max(counts)} ranks, and a launcher that knows no order starts as many"
        )
        raise NotExported(f"no {RANKS}: {text} on each; use a plan with equal numbers")
    return {
        TABLE: table(plan),
        RANKS: f"""\
#!/usr/bin/env bash
# Gives this process the rank that commbench planned for its host and its place there, and runs the command:
#   srun --ntasks={len(plan.seats)} --ntasks-per-node={max(counts)} ./{RANKS} COMMAND...
# The command learns its rank as under torchrun, from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. The
# launcher's own numbers are taken away, so that nothing goes by them; what gets its rank from MPI cannot be seated so.
set -euo pipefail
table=$(dirname -- "${{BASH_SOURCE[0]}}")/{TABLE}
vendor={plan.vendor if plan.vendor in ("nvidia", "amd", "cpu") else "any"}
{_SHOW}
host=${{SLURMD_NODENAME:-$(uname -n)}}
place=${{SLURM_LOCALID:-${{OMPI_COMM_WORLD_LOCAL_RANK:-${{MPI_LOCALRANKID:-${{LOCAL_RANK:-}}}}}}}}
# This host's line for this place, and all its devices in the order of their places.
found=$(awk -F'\\t' -v host="$host" -v place="$place" '
  function first(name) {{ sub(/\\..*/, "", name); return name }}
  $1 == host || $1 == first(host) || first($1) == host {{
    if ($2 == place) rank = $3
    devices = devices (devices == "" ? "" : ",") $4
    count++
  }}
  END {{ if (rank != "") print rank, count, devices }}' "$table")
if [ -z "$found" ]; then
  echo "{RANKS}: the plan has no rank for place ${{place:-(none)}} on $host: start it on the planned hosts only" >&2
  exit 1
fi
read -r RANK LOCAL_WORLD_SIZE devices <<<"$found"
export RANK LOCAL_WORLD_SIZE LOCAL_RANK=$place WORLD_SIZE={len(plan.seats)}
export MASTER_ADDR={plan.seats[0].host} MASTER_PORT=${{MASTER_PORT:-{settings.port}}}
unset SLURM_PROCID SLURM_LOCALID PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
show "$devices"
exec "$@"
""",
    }


def device(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return what shows a process of a rank its device, and tells PyTorch its rank where nobody else has."""
    local = "0  # the device that is shown, and no other" if on_gpus(plan) else "$place"
    return {
        TABLE: table(plan),
        DEVICE: f"""\
#!/usr/bin/env bash
# Shows this rank, whatever launcher numbered it, the one device that commbench planned for it, and runs the command:
#   mpirun ... ./{DEVICE} COMMAND...
# PyTorch finds the rank in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, unless RANK is there already.
set -euo pipefail
table=$(dirname -- "${{BASH_SOURCE[0]}}")/{TABLE}
vendor={plan.vendor if plan.vendor in ("nvidia", "amd", "cpu") else "any"}
{_SHOW}
rank=${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-${{SLURM_PROCID:-${{RANK:-}}}}}}}}
found=$(awk -F'\\t' -v rank="$rank" '$3 == rank {{ print $2, $4 }}' "$table")
if [ -z "$found" ]; then
  echo "{DEVICE}: the plan has no rank ${{rank:-(none)}}: it has ranks 0 to {len(plan.seats) - 1}" >&2
  exit 1
fi
read -r place device <<<"$found"
if [ -z "${{RANK:-}}" ]; then
  export RANK=$rank WORLD_SIZE={len(plan.seats)} LOCAL_RANK={local}
  export MASTER_ADDR={plan.seats[0].host} MASTER_PORT=${{MASTER_PORT:-{settings.port}}}
fi
show "$device"
exec "$@"
""",
    }
