"""PyTorch: torchrun once on each node, told its place; or each process told its rank.

torchrun left to itself numbers nodes by the order of their names (pytorch/pytorch#191190). With a static rendezvous it
takes the number that it is given, and numbers the processes of a node one after another: a plan in which the ranks of a
host do not follow one another is for ranks.sh.
"""

from __future__ import annotations

from commbench.recommend.export import wrappers
from commbench.recommend.export._settings import NotExported, Settings, checked, ranks_of
from commbench.recommend.plan import Plan

TITLE = "torchrun"
NAMES_HOSTS = True
SCRIPT = "torchrun.sh"


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the script for each node, and the table by which it finds its place."""
    checked(plan)
    groups = ranks_of(plan)
    if len({len(ranks) for ranks in groups.values()}) > 1:
        raise NotExported(f"no {SCRIPT}: torchrun starts as many processes on each node, and this plan does not")
    if any(ranks[-1] - ranks[0] != len(ranks) - 1 for ranks in groups.values()):
        text = "torchrun numbers the processes of a node one after another, and this plan does not"
        raise NotExported(f"no {SCRIPT}: {text}; start each process by {wrappers.RANKS}")
    each = len(plan.seats) // len(groups)
    made = wrappers.ranks(plan, settings)
    made[SCRIPT] = f"""\
#!/usr/bin/env bash
# Starts torchrun on this node as commbench planned it; to be started once on each node:
#   srun --nodes={len(groups)} --ntasks-per-node=1 ./{SCRIPT} train.py ...
set -euo pipefail
folder=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
# As place 0 of this host ranks.sh knows the first rank, and the devices in the order of their ranks.
unset SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID
export LOCAL_RANK=0
exec "$folder/{wrappers.RANKS}" bash -c '
  node=$((RANK / {each}))
  unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
  exec torchrun --nnodes={len(groups)} --nproc-per-node={each} --node-rank="$node" \\
    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"' {SCRIPT} "$@"
"""
    return made
