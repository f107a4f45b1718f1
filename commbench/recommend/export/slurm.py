"""Slurm: a job script that asks for the planned nodes, and seats each rank.

srun takes an exact order by SLURM_HOSTFILE, one bare host on a line for each rank, with --distribution=arbitrary: in
it `n02*2`, `n[05-06]` and `slots=2` mean nothing to it (measured with 22.05.8). Where a version refuses that, a
wrapper does the seating (wrappers.py).

A wrapper tells each rank its number as PyTorch reads it, which srun does not, and shows it its device. srun binds none:
with ConstrainDevices in cgroup.conf a task has in its cgroup what it is bound to and no more, as its device 0, and the
ranks of a node cannot open one another's memory by CUDA IPC (open-mpi/ompi#11949, NVIDIA/nccl#1066).

sbatch runs a copy of the script, in a folder of slurmd's: so the script knows where it was exported, and takes the
files of its own plan alone, from there, from beside it (bash) or, after a move, from where it was submitted.

What which version takes is from its CHANGELOG and the man pages: --gpu-bind=none 21.08.1 (before it nothing was bound
unless a job asked for that), --segment 24.05, --segment with --nodelist 25.11 if these are all nodes of the job, no
`arbitrary` with topology/block from 26.05. doc/html/topology.shtml: the nodes of a job are a multiple of its segment.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator

from commbench.errors import UsageError
from commbench.recommend.export import wrappers
from commbench.recommend.export._settings import CORES, NotExported, Settings, checked, on_gpus, ranks_of
from commbench.recommend.plan import NAME, Plan
from commbench.topology.hosts import fold
from commbench.topology.show import counted
from commbench.units import expand_ranges

TITLE = "Slurm job"
HOSTFILE, JOB = "hosts.slurm", "job.sbatch"

SEGMENT, SEGMENT_OF_NODELIST, NO_ARBITRARY_IN_BLOCKS, BLOCKS = (24, 5), (25, 11), (26, 5), (23, 11)
NO_BINDING = (21, 8, 1)  # the first with --gpu-bind=none


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the job script, and the host file and the wrappers that it uses."""
    checked(plan)
    deny(plan, settings)
    made = {JOB: "\n".join(_job(plan, settings)) + "\n"}
    if not settings.nodelist:
        return made
    if wrapped(settings):
        return made | wrappers.ranks(plan, settings)
    made[HOSTFILE] = hostfile(plan)
    return made | wrappers.device(plan, settings)


def hostfile(plan: Plan) -> str:
    """Return the text of the file that SLURM_HOSTFILE names."""
    return "".join(f"{seat.host}\n" for seat in checked(plan).seats)


def parse(text: str) -> list[str]:
    """Return the host of each rank, as srun reads them."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def wrapped(settings: Settings) -> bool:
    """Whether ranks are seated by a wrapper: asked for, or since this Slurm may refuse an order of tasks.

    With topology/block it does from 26.05 on; where the version is not known it may.
    """
    refuses = settings.slurm is None or settings.slurm >= NO_ARBITRARY_IN_BLOCKS
    return settings.wrapper or (settings.plugin == "block" and refuses)


def deny_blocks(settings: Settings) -> None:
    """Raise UsageError for blocks in a version of Slurm that knows none."""
    if settings.plugin == "block" and settings.slurm is not None and settings.slurm < BLOCKS:
        release = ".".join(map(str, settings.slurm))
        raise UsageError(f"topology/block came with Slurm 23.11, and this one is {release}: export for a tree")


def deny(plan: Plan, settings: Settings) -> None:
    """Raise UsageError for what this version of Slurm refuses, or cannot mean."""
    release = ".".join(map(str, settings.slurm or ()))
    known = settings.slurm or (10**9,)
    nodes = len(plan.hosts)
    deny_blocks(settings)
    if settings.segment is not None:
        if known < SEGMENT:
            raise UsageError(f"--segment came with Slurm 24.05, and this one is {release}: leave it out")
        if settings.plugin == "tree":
            raise UsageError("--segment is for topology/block, and this one is a tree: use a number of switches")
        if settings.nodelist and known < SEGMENT_OF_NODELIST:
            raise UsageError(
                f"--segment with --nodelist came with Slurm 25.11, and this one is {release}: leave one out"
            )
        if nodes > settings.segment and nodes % settings.segment:
            raise UsageError(
                f"the nodes of a job are a multiple of its segment, and {nodes} are none of {settings.segment}"
            )
    if settings.switches is not None:
        if settings.plugin == "block":
            raise UsageError("--switches is for topology/tree, and this one has blocks: use a segment")
        if settings.nodelist:
            raise UsageError("a list of nodes leaves no choice of switches: leave --switches out, or the list")


def _job(plan: Plan, settings: Settings) -> Iterator[str]:
    nodes, most = len(plan.hosts), max(plan.per_host.values())
    release = ".".join(map(str, settings.slurm)) if settings.slurm else "of any version"
    yield "#!/usr/bin/env bash"
    where = f"{counted(len(plan.seats), 'rank')} on {counted(nodes, 'node')}"
    how = "as commbench planned" if settings.nodelist else "that Slurm chooses, in its own order"
    yield f"# {where} {how}, for Slurm {release}. From any folder:"
    yield f"#   sbatch .../{JOB} COMMAND..."
    if settings.nodelist:
        yield f"# or, in a job that has these nodes: bash .../{JOB} COMMAND..."
    yield f"#SBATCH --nodes={nodes}"
    yield f"#SBATCH --ntasks-per-node={most}"
    yield "#SBATCH --exclusive"
    if settings.partition:
        yield f"#SBATCH --partition={settings.partition}"
    if on_gpus(plan):
        yield f"#SBATCH --gres=gpu:{_gpus(plan, settings)}"
    if settings.nodelist:
        yield f"#SBATCH --nodelist={fold(plan.hosts)}"
    if settings.switches is not None:
        yield f"#SBATCH --switches={settings.switches}{'@' if settings.wait else ''}{settings.wait}"
    if settings.segment is not None:
        yield f"#SBATCH --segment={settings.segment}"
    if settings.features:
        yield f'#SBATCH --constraint="{settings.features}"'
    yield "set -euo pipefail"
    yield f': "${{1:?the command is missing: sbatch {JOB} COMMAND...}}"'
    if settings.nodelist:
        yield from _folder(plan, settings)
    yield "unset RANK  # of the shell that submitted this"
    yield from _launch(plan, settings)
    if settings.nodelist:
        yield "# Where ranks sit is checked first, which needs commbench in the nodes' python3."
        yield f'"${{launch[@]}}" python3 -m commbench.verify "$folder/{NAME}"'
    yield 'exec "${launch[@]}" "$@"'


def _folder(plan: Plan, settings: Settings) -> Iterator[str]:
    """Find the files that belong to this script: sbatch runs a copy of it, elsewhere."""
    digest = hashlib.sha256(wrappers.table(plan).encode()).hexdigest()
    written = [shlex.quote(settings.folder)] if settings.folder else []
    places = ['"$(dirname -- "${BASH_SOURCE[0]}")"', *written, '"${SLURM_SUBMIT_DIR:-$PWD}"']
    yield "# The files of this plan: beside this script, where it was exported, or where it was submitted."
    yield f"places=({' '.join(places)})"
    yield '[ -z "${COMMBENCH_PLACEMENT:-}" ] || places=("$COMMBENCH_PLACEMENT")'
    yield 'for folder in "${places[@]}"; do'
    yield f'  [ "$(sha256sum 2>/dev/null <"$folder/{wrappers.TABLE}")" != "{digest}  -" ] || break'
    yield "  folder="
    yield "done"
    yield 'if [ -z "$folder" ]; then'
    yield f'  echo "{JOB}: the plan of this job is in none of ${{places[*]}}: export and submit again," \\'
    yield '    "or name its folder as COMMBENCH_PLACEMENT" >&2'
    yield "  exit 2"
    yield "fi"


def _launch(plan: Plan, settings: Settings) -> Iterator[str]:
    total = len(plan.seats)
    if not settings.nodelist:
        yield "# Which nodes come is known only now: Slurm's own order stands. To plan on what was granted:"
        yield "#   python3 -m commbench.recommend --allocation"
        yield "# PyTorch reads its rank from these; rank 0 is on the first node."
        yield 'read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
        told = f"WORLD_SIZE={total} MASTER_ADDR=$0 MASTER_PORT=${{MASTER_PORT:-{settings.port}}}"
        told = f'[ -n "${{RANK:-}}" ] || export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID {told}; exec "$@"'
        yield f"""launch=(srun --ntasks={total} bash -c '{told}' "$first")"""
        return
    if not any(seat.cpus for seat in plan.seats):
        yield f"# The plan names no cores, and Slurm binds as it is set up: {CORES}."
    wrapper = wrappers.DEVICE
    if wrapped(settings):
        yield "# This Slurm may refuse --distribution=arbitrary: a wrapper gives each task the rank of its place."
        yield "# MPI gets its ranks from srun, whatever a wrapper does: start MPI programs by openmpi.sh instead."
        wrapper = wrappers.RANKS
    else:
        yield f'export SLURM_HOSTFILE="$folder/{HOSTFILE}"'
        yield f"unset SLURM_NTASKS_PER_NODE  # {HOSTFILE} says how many ranks each host has"
    binds = ", and shows its device; srun binds none, which may hide from it the others of its node"
    yield f"# {wrapper} tells each rank its number, as PyTorch reads it{binds if on_gpus(plan) else ''}."
    yield f'launch=(srun {" ".join(options(plan, settings))} "$folder/{wrapper}")'


def options(plan: Plan, settings: Settings) -> list[str]:
    """Return what srun is told, beside SLURM_HOSTFILE where no wrapper gives ranks, by which each sits as planned."""
    said = [f"--nodes={len(plan.hosts)}", f"--ntasks={len(plan.seats)}"]  # a job may have more nodes
    if wrapped(settings):
        nodes = f'"--nodelist={fold(plan.hosts)}"'  # quoted: bash would expand its brackets
        said += [f"--ntasks-per-node={max(plan.per_host.values())}", nodes]
    else:
        said.append("--distribution=arbitrary")
    if on_gpus(plan) and (settings.slurm is None or settings.slurm >= NO_BINDING):
        said.append("--gpu-bind=none")
    if masks := _masks(plan):
        said.append(f"--cpu-bind=mask_cpu:{','.join(masks)}")
    return said


def _masks(plan: Plan) -> list[str]:
    """Return the cores by local rank, as masks, where they are known and the same on all hosts."""
    alike = {tuple(plan.seats[rank].cpus for rank in ranks) for ranks in ranks_of(plan).values()}
    if len(alike) != 1 or not all(cpus := next(iter(alike))):
        return []
    return [hex(sum(1 << cpu for cpu in set(expand_ranges(one)))) for one in cpus]


def _gpus(plan: Plan, settings: Settings) -> int:
    """Return how many devices of a host to ask for: all that it has, so that their numbers are those of the plan."""
    needed = 1 + max(seat.device for seat in plan.seats)
    if settings.cluster is None:
        return needed
    used = set(plan.hosts)
    blocks = (block for block in settings.cluster.blocks if block.node_class and used & set(block.nodes))
    counts = {len(settings.cluster.by_class[block.node_class].devices) for block in blocks}
    if len(counts) > 1:
        raise NotExported(
            "no job script: hosts of the plan have unlike numbers of devices; plan for nodes of one class"
        )
    return max(counts, default=needed) or needed
