"""What Slurm says to anybody, without privilege: its switches, which nodes are idle, and which a job has.

Inside a job `granted()` takes one `scontrol show topology`, or, where that says nothing, one task on each node that
prints the address that Slurm gave it (SLURM_TOPOLOGY_ADDR).
"""

from __future__ import annotations

from commbench.errors import UsageError
from commbench.system import System
from commbench.topology.cluster import Block, Cluster
from commbench.topology.hosts import expand
from commbench.topology.reading import read_text

_PRINT = (
    'echo "SLURM_TOPOLOGY_ADDR=$SLURM_TOPOLOGY_ADDR"; echo "SLURM_TOPOLOGY_ADDR_PATTERN=$SLURM_TOPOLOGY_ADDR_PATTERN"'
)


def idle(system: System, partition: str = "") -> tuple[list[str], set[str]]:
    """Return the nodes that are idle, and which of them have no GPU where Slurm says of others that they have some."""
    asked = ("-h", *(["-p", partition] if partition else []))
    answer = system.run("sinfo", *asked, "-N", "-t", "idle", "-o", "%N %G")
    gpus: dict[str, bool] = {}
    for line in answer.text.splitlines():
        name, _, gres = line.strip().partition(" ")
        for host in expand(name) if name else ():
            gpus[host] = gpus.get(host, False) or _has_gpus(gres)
    if not gpus:
        where = f" in {partition}" if partition else ""
        why = f" ({answer.trouble})" if answer.trouble else ""
        raise UsageError(f"no node is idle{where}, says Slurm{why}: name some with --free")
    counted = any(gpus.values()) or any(map(_has_gpus, system.run("sinfo", *asked, "-o", "%G").text.splitlines()))
    return list(gpus), {host for host, some in gpus.items() if counted and not some}


def _has_gpus(gres: str) -> bool:
    """Whether a list of generic resources, gpu:h100:8(S:0-1),nvme:1, has GPUs."""
    return any(one.strip().partition(":")[0] == "gpu" for one in gres.split(","))


def topology(system: System) -> Cluster:
    """Return the switches or blocks that Slurm runs with."""
    answer = system.run("scontrol", "show", "topology")
    if not answer.text.strip():
        why = answer.trouble or "topology/flat, most likely"
        raise UsageError(f"Slurm shows no topology ({why}): describe it in a file, and name that with --topology")
    return read_text(answer.text, "scontrol show topology").cluster


def in_job(system: System) -> bool:
    """Whether this runs inside a job of Slurm's."""
    return bool(system.environment.get("SLURM_JOB_NODELIST"))


def granted(system: System) -> list[str]:
    """Return the nodes of this job."""
    nodes = system.environment.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        raise UsageError("--allocation orders the nodes of a job, and SLURM_JOB_NODELIST is not set: run it in a job")
    return expand(nodes)


def topology_of_job(system: System, nodes: list[str]) -> Cluster:
    """Return the switches above the nodes of a job; a cluster without any where Slurm knows none."""
    shown = system.run("scontrol", "show", "topology")
    if shown.text.strip():
        cluster = read_text(shown.text, "scontrol show topology").cluster
        if set(nodes) <= set(cluster.arrays.nodes):
            return cluster
    told = system.run("srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--label",
                      "--overlap", "sh", "-c", _PRINT)  # fmt: skip
    if "SLURM_TOPOLOGY_ADDR=" in told.text:
        cluster = read_text(told.text, "SLURM_TOPOLOGY_ADDR of each node").cluster
        if missing := sorted(set(nodes) - set(cluster.arrays.nodes)):
            raise UsageError(
                f"Slurm told no address of {', '.join(missing[:3])}, which the job has: name --topology FILE"
            )
        return cluster
    return Cluster("job", blocks=(Block(tuple(nodes)),))
