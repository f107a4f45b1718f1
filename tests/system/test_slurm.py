"""A real Slurm of many nodes: every export runs there, each rank sits where the plan says, and what we say of a
topology.conf is held against what slurmctld does with it.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.recommend import slurm as commands
from commbench.recommend.export._settings import Settings
from commbench.recommend.exporting import export
from commbench.recommend.plan import Plan, Seat, read
from commbench.system import System
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.hosts import fold
from commbench.topology.readers import slurm_conf, slurm_show
from commbench.topology.reading import TopologyError
from commbench.topology.writers import slurm_conf as writer
from tests.system.slurm import ROOT, Slurm, files, processes, slurm, trouble

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(bool(trouble()), reason=f"no Slurm: {trouble()}")]

NODES, GPUS = 32, 8
HERE = Settings(slurm=(22, 5, 8))
OPEN_MPI = Path(os.environ.get("COMMBENCH_OTHER_VENV", ""), "bin", "mpirun")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Prints the rank that a program would take, its node, its place there, the device that it is shown, and what PyTorch
# would take.
PROBE = """\
#!/bin/bash
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-$RANK}}}
torch="${RANK-none},${WORLD_SIZE-none},${LOCAL_RANK-none},${MASTER_ADDR-none},${MASTER_PORT-none}"
echo "seat $rank $SLURMD_NODENAME ${LOCAL_RANK:-0} ${CUDA_VISIBLE_DEVICES-none} $torch"
"""


def fabric(nodes: int) -> Cluster:
    """Two spines of four leaves; nodes are scattered over the leaves, as names are on real clusters."""
    names = [f"n{place:02}" for place in range(1, nodes + 1)]
    leaves = [f"leaf{place}" for place in range(1, 9)]
    switches = [Switch("core"), Switch("spine1", "core"), Switch("spine2", "core")]
    switches += [Switch(leaf, f"spine{1 + place // 4}") for place, leaf in enumerate(leaves)]
    blocks = [Block(tuple(names[place::8]), (leaf,)) for place, leaf in enumerate(leaves)]
    return Cluster(switches=tuple(switches), blocks=tuple(blocks))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm(NODES, writer.write(fabric(NODES)), GPUS) as built:
        probe = built.folder / "probe"
        probe.write_text(PROBE)
        probe.chmod(0o755)
        yield built


def shuffled(seed: int, names: Sequence[str], each: int = GPUS, cpus: str = "") -> Plan:
    """Every rank anywhere: the devices of hosts come in unlike orders."""
    seats = [Seat(name, device, cpus=cpus) for name in names for device in range(each)]
    random.Random(seed).shuffle(seats)
    return Plan("test", tuple(seats), vendor="nvidia")


def alike(seed: int, names: Sequence[str], each: int = GPUS) -> Plan:
    """Hosts in any order, rank by rank; on all of them local ranks have the same devices."""
    draw = random.Random(seed)
    hosts = [name for name in names for _ in range(each)]
    draw.shuffle(hosts)
    devices = draw.sample(range(each), each)
    given: dict[str, Iterator[int]] = {name: iter(devices) for name in names}
    return Plan("test", tuple(Seat(host, next(given[host])) for host in hosts), vendor="nvidia")


def by_node(seed: int, names: Sequence[str], each: int = GPUS) -> Plan:
    """Hosts in any order, all ranks of one after another; devices in unlike orders."""
    draw = random.Random(seed)
    seats = [Seat(host, device) for host in draw.sample(names, len(names)) for device in draw.sample(range(each), each)]
    return Plan("test", tuple(seats), vendor="nvidia")


def job(cluster: Slurm, folder: Path, *command: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Submit a job, wait for its end, and return what it wrote."""
    words = ["sbatch", "--parsable", "--open-mode=truncate", "-o", "job.out", "-e", "job.err", *command]
    number = cluster.out(*words, cwd=folder, env=env).strip()
    end = time.monotonic() + 120
    while True:
        state = dict(
            field.split("=", 1)
            for field in cluster.out("scontrol", "show", "job", number).split()
            if field.startswith(("JobState=", "ExitCode="))
        )
        if state["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"):
            break
        assert time.monotonic() < end, state
        time.sleep(0.1)
    said = (folder / "job.out").read_text()
    assert state["ExitCode"] == f"{code}:0", (state, said[-2000:], (folder / "job.err").read_text()[-2000:])
    return said


def seats(text: str) -> dict[int, tuple[str, str]]:
    """Host and device by rank, as probes printed them."""
    found = {}
    for line in text.splitlines():
        if line.startswith("seat "):
            _, rank, host, place, devices, *_ = line.split()
            assert int(rank) not in found, line
            shown = devices.split(",")
            found[int(rank)] = (host, shown[0] if len(shown) == 1 else shown[int(place)])
    return found


def told(text: str) -> dict[int, tuple[str, ...]]:
    """By rank what PyTorch would read, as probes printed it."""
    rows = [line.split() for line in text.splitlines() if line.startswith("seat ")]
    return {int(row[1]): tuple(row[5].split(",")) for row in rows}


def planned(plan: Plan) -> dict[int, tuple[str, str]]:
    return {rank: (seat.host, str(seat.device)) for rank, seat in enumerate(plan.seats)}


def unchecked(folder: Path) -> dict[str, str]:
    """The environment of a job that leaves out the check of its script: 256 Pythons take long on a small machine."""
    (folder / "python3").write_text("#!/bin/sh\n")
    (folder / "python3").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


# Where ranks land

Draw = Callable[[int, Sequence[str]], Plan]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("plan_of", [shuffled, alike], ids=["unlike devices", "alike devices"])
def test_the_job_script_seats_each_of_256_ranks(cluster: Slurm, tmp_path: Path, plan_of: Draw, seed: int) -> None:
    plan = plan_of(seed, cluster.names)
    export(plan, replace(HERE, cluster=fabric(NODES)), tmp_path / "out")
    text = (tmp_path / "out" / "job.sbatch").read_text()
    assert "--gpu-bind=none" in text and "device.sh" in text
    said = job(
        cluster, tmp_path, "out/job.sbatch", str(cluster.folder / "probe"), env={**unchecked(tmp_path), "RANK": "7"}
    )
    assert seats(said) == planned(plan)
    first = plan.seats[0].host
    assert told(said) == {rank: (str(rank), "256", "0", first, "29500") for rank in range(256)}


TRAIN = """
import os, sys, torch
import torch.distributed as dist
said = os.environ["MASTER_ADDR"]
os.environ["MASTER_ADDR"] = "127.0.0.1"  # all nodes are this machine, whose names lead nowhere
dist.init_process_group("gloo")
mine = torch.tensor([float(dist.get_rank())])
dist.all_reduce(mine)
print("rank", dist.get_rank(), dist.get_world_size(), os.environ["SLURMD_NODENAME"], said, mine.item(), flush=True)
"""


def test_a_program_of_pytorch_starts_from_its_own_folder(cluster: Slurm, tmp_path: Path) -> None:
    """As the README has it: the command is found where it was submitted, the plan where it was exported."""
    pytest.importorskip("torch")
    plan = shuffled(15, cluster.names[:2], 2)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        here = replace(HERE, cluster=fabric(NODES), port=found.getsockname()[1])
    export(plan, here, tmp_path / "out")
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    environment = pythons(tmp_path / "bin")
    said = job(cluster, tmp_path, "out/job.sbatch", "python", "train.py", env=environment)
    assert "rank 0 of 4 sits as planned" in said
    first = plan.seats[0].host
    ranks = sorted(line for line in said.splitlines() if line.startswith("rank ") and " of " not in line)
    assert ranks == [f"rank {rank} 4 {seat.host} {first} 6.0" for rank, seat in enumerate(plan.seats)]


def test_a_job_that_keeps_no_variable_finds_its_plan_and_tells_its_ranks(cluster: Slurm, tmp_path: Path) -> None:
    """Where sbatch --export=NONE is the default; and an export that was moved, from its own folder."""
    plan = shuffled(16, cluster.names[:2], 2)
    export(plan, HERE, tmp_path / "out")
    text = (tmp_path / "out" / "job.sbatch").read_text()
    # The check is left out, for which this machine's python3 would need commbench.
    (tmp_path / "out" / "job.sbatch").write_text(re.sub(r"\n.*commbench\.verify.*\n", "\n", text))
    none = {"SBATCH_EXPORT": "NONE"}
    said = job(cluster, tmp_path, "out/job.sbatch", str(cluster.folder / "probe"), env=none)
    assert seats(said) == planned(plan)
    assert {row[3] for row in told(said).values()} == {plan.seats[0].host}
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert seats(job(cluster, moved, "job.sbatch", str(cluster.folder / "probe"), env=none)) == planned(plan)
    said = job(cluster, tmp_path, "moved/job.sbatch", str(cluster.folder / "probe"), code=2, env=none)
    assert "the plan of this job is in none of" in (tmp_path / "job.err").read_text() and seats(said) == {}


@pytest.mark.parametrize("plan_of", [shuffled, by_node])
def test_the_wrapper_seats_each_of_256_ranks(cluster: Slurm, tmp_path: Path, plan_of: Draw) -> None:
    plan = plan_of(4, cluster.names)
    export(plan, replace(HERE, wrapper=True), tmp_path / "out")
    assert "arbitrary" not in (tmp_path / "out" / "job.sbatch").read_text().replace("--distribution=arbitrary:", "")
    said = job(cluster, tmp_path / "out", "job.sbatch", str(cluster.folder / "probe"), env=unchecked(tmp_path))
    assert seats(said) == planned(plan)


def test_hosts_may_have_unlike_numbers_of_ranks(cluster: Slurm, tmp_path: Path) -> None:
    whole = shuffled(5, cluster.names[:6])
    plan = replace(whole, seats=tuple(seat for seat in whole.seats if seat.device < int(seat.host[1:])))
    assert sorted(plan.per_host.values()) == [1, 2, 3, 4, 5, 6]
    done = export(plan, HERE, tmp_path / "out")
    assert "hosts have from 1 to 6 ranks" in done.refused["wrappers"]
    said = job(cluster, tmp_path / "out", "job.sbatch", str(cluster.folder / "probe"), env=unchecked(tmp_path))
    assert seats(said) == planned(plan)


def batch(folder: Path, script: str, plan: Plan) -> str:
    """A job of the plan's hosts that starts one of the exported scripts."""
    each = max(plan.per_host.values())
    head = f"#SBATCH -N{len(plan.hosts)} --ntasks-per-node={each} --exclusive --gres=gpu:{GPUS} -w {fold(plan.hosts)}"
    (folder / "job").write_text(f'#!/bin/bash\n{head}\nexec ./{script} "$@"\n')
    return "job"


def test_mpich_seats_each_of_256_ranks(cluster: Slurm, tmp_path: Path) -> None:
    plan = shuffled(6, cluster.names)
    export(plan, HERE, tmp_path)
    said = job(cluster, tmp_path, batch(tmp_path, "mpich.sh", plan), str(cluster.folder / "probe"))
    assert seats(said) == planned(plan)


MPI_RANK = (
    "import os; from mpi4py import MPI; d = os.environ['CUDA_VISIBLE_DEVICES']; "
    "print('seat', MPI.COMM_WORLD.rank, os.environ['SLURMD_NODENAME'], 0, d, flush=True); "
    "assert MPI.COMM_WORLD.allreduce(1) == 12"
)


def test_mpich_itself_has_these_ranks(cluster: Slurm, tmp_path: Path) -> None:
    plan = shuffled(7, cluster.names[10:16], 2)
    export(plan, HERE, tmp_path)
    script = batch(tmp_path, "mpich.sh", plan)
    said = job(cluster, tmp_path, script, sys.executable, "-c", MPI_RANK)
    assert seats(said) == planned(plan)
    said = job(cluster, tmp_path, script, sys.executable, "-m", "commbench.verify", "placement.json")
    assert "rank 0 of 12 sits as planned" in said


needs_open_mpi = pytest.mark.skipif(not OPEN_MPI.is_file(), reason="no Open MPI: COMMBENCH_OTHER_VENV names its place")


def with_open_mpi() -> dict[str, str]:
    return {"PATH": f"{OPEN_MPI.parent}{os.pathsep}{os.environ['PATH']}", **AS_ROOT}


@needs_open_mpi
@pytest.mark.parametrize("cpus", ["", "0"], ids=["sequence", "rankfile"])
def test_open_mpi_seats_each_of_256_ranks(cluster: Slurm, tmp_path: Path, cpus: str) -> None:
    plan = shuffled(8, cluster.names, cpus=cpus)
    export(plan, HERE, tmp_path)
    assert (tmp_path / "openmpi.rankfile").exists() == bool(cpus)
    # All nodes are this machine, whose few cores their ranks share.
    more = {**with_open_mpi(), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    said = job(cluster, tmp_path, batch(tmp_path, "openmpi.sh", plan), str(cluster.folder / "probe"), env=more)
    assert seats(said) == planned(plan)


@needs_open_mpi
def test_open_mpi_itself_has_these_ranks(cluster: Slurm, tmp_path: Path) -> None:
    plan = shuffled(9, cluster.names[20:26], 2)
    export(plan, HERE, tmp_path)
    python = str(OPEN_MPI.with_name("python"))
    more = {**with_open_mpi(), "OMPI_MCA_btl": "^ofi"}
    script = batch(tmp_path, "openmpi.sh", plan)
    said = job(cluster, tmp_path, script, python, "-c", MPI_RANK, env=more)
    assert seats(said) == planned(plan)
    assert job(cluster, tmp_path, script, python, "-m", "commbench.verify", "placement.json", env=more) == (
        "commbench verify: all 12 ranks sit as planned\n"
    )


def test_torchrun_is_told_the_place_of_each_node(cluster: Slurm, tmp_path: Path) -> None:
    plan = by_node(10, cluster.names[:12], 4)
    export(plan, HERE, tmp_path)
    (tmp_path / "torchrun").write_text('#!/bin/bash\necho "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $*"\n')
    (tmp_path / "torchrun").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    words = ("-N12", "--ntasks-per-node=1", "-w", fold(plan.hosts))
    said = cluster.out("srun", *words, "./torchrun.sh", "train.py", "--lr", "a b", cwd=tmp_path, env={"PATH": path})
    expected = []
    for place, host in enumerate(plan.hosts):
        devices = ",".join(str(seat.device) for seat in plan.seats if seat.host == host)
        told = f"--nnodes=12 --nproc-per-node=4 --node-rank={place} --rdzv-backend=static"
        expected.append(
            f"{host} {devices} {told} --master-addr={plan.seats[0].host} --master-port=29500 train.py --lr a b"
        )
    assert sorted(said.splitlines()) == sorted(expected)


# The check at the start of a job


def pythons(folder: Path) -> dict[str, str]:
    """An environment whose python and python3 have commbench."""
    for name in ("python", "python3"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_the_job_checks_itself_and_does_not_start_where_ranks_sit_wrong(cluster: Slurm, tmp_path: Path) -> None:
    plan = shuffled(11, cluster.names[:12], 1)
    export(plan, HERE, tmp_path)
    (tmp_path / "bin").mkdir()
    environment = pythons(tmp_path / "bin")
    said = job(cluster, tmp_path, "job.sbatch", str(cluster.folder / "probe"), env=environment)
    assert "commbench verify: rank 0 of 12 sits as planned, and so do all that say nothing\n" in said
    assert seats(said) == planned(plan)

    hosts = [seat.host for seat in plan.seats]
    hosts[3], hosts[7] = hosts[7], hosts[3]
    (tmp_path / "hosts.slurm").write_text("".join(f"{host}\n" for host in hosts))
    said = job(cluster, tmp_path, "job.sbatch", str(cluster.folder / "probe"), code=1, env=environment)
    assert seats(said) == {}
    complaints = [line for line in (tmp_path / "job.err").read_text().splitlines() if "commbench" in line]
    assert sorted(complaints) == [
        f"commbench verify: error: rank 3 is planned on {hosts[7]}, device 0, and sits on {hosts[3]} on device 0",
        f"commbench verify: error: rank 7 is planned on {hosts[3]}, device 0, and sits on {hosts[7]} on device 0",
    ]


def in_allocation(
    cluster: Slurm, folder: Path, nodes: Sequence[str], script: str, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script in a job that was granted these nodes, as from the shell that salloc gives."""
    words = ("salloc", "-N", str(len(nodes)), "-w", fold(nodes), "--exclusive", f"--gres=gpu:{GPUS}")
    return cluster.run(*words, "bash", "-euc", script, cwd=folder, env=env, timeout=120)


def test_the_documented_check_is_of_the_layout_that_is_planned(cluster: Slurm, tmp_path: Path) -> None:
    plan = replace(whole := shuffled(14, cluster.names[:4], 2), seats=whole.seats[:6])
    assert [seat.host for seat in plan.seats] != sorted(seat.host for seat in plan.seats)
    export(plan, HERE, tmp_path)
    (tmp_path / "bin").mkdir()
    ours = pythons(tmp_path / "bin")
    page = (ROOT / "docs" / "placement-export.md").read_text()
    (documented,) = (line for line in page.splitlines() if line.startswith("SLURM_HOSTFILE="))
    documented = documented.replace("--ntasks=16", "--ntasks=6")
    good = in_allocation(cluster, tmp_path, plan.hosts, documented, ours)
    assert good.stdout == "commbench verify: rank 0 of 6 sits as planned, and so do all that say nothing\n"
    assert good.returncode == 0, good.stderr
    assert "rank 0 of 6 sits as planned" in job(cluster, tmp_path, "job.sbatch", "true", env=ours)

    without = documented.replace("SLURM_HOSTFILE=hosts.slurm ", "")
    assert in_allocation(cluster, tmp_path, plan.hosts, without, ours).returncode != 0  # srun has no order to keep
    by_name = in_allocation(cluster, tmp_path, plan.hosts, without.replace("--distribution=arbitrary ", ""), ours)
    assert by_name.returncode == 1
    assert "commbench verify: error: rank " in by_name.stderr and " is planned on " in by_name.stderr


@pytest.mark.parametrize("more", [[], ["--wrapper"]], ids=["order", "wrapper"])
def test_in_an_allocation_what_is_printed_runs_on_its_nodes(cluster: Slurm, tmp_path: Path, more: list[str]) -> None:
    """More nodes are granted than it takes, on two leaves by turns: the order is not that of names."""
    (tmp_path / "bin").mkdir()
    ours = pythons(tmp_path / "bin")
    leaves = [sorted(block.nodes) for block in fabric(NODES).blocks]
    nodes = [leaf[place] for place in (0, 1) for leaf in leaves[:2]] + leaves[2][-1:]
    advice = "python -m commbench.recommend --allocation --axes dp=8 --algo dp=ring --gpus-per-node 2 --time 0.2"
    words = " ".join(["--oversubscription", "16", "--export", "'o u t'", *more])
    script = f"""\
{advice} {words} > said
next=$(sed -n 's/^# next: //p' said)
eval "${{next/COMMAND.../{cluster.folder}/probe}}"
squeue -h | wc -l
"""
    done = in_allocation(cluster, tmp_path, nodes, script, ours)
    assert done.returncode == 0, (done.stdout, done.stderr)
    plan = read(tmp_path / "o u t" / "placement.json")
    assert len(plan.hosts) == 4 < len(nodes) and list(plan.hosts) != sorted(plan.hosts)
    assert "sits as planned, and so do all that say nothing\n" in done.stdout
    assert seats(done.stdout) == planned(plan)
    assert done.stdout.splitlines()[-1] == "1"  # this job, and none that waits for the nodes that it has


def test_idle_nodes_are_those_of_a_partition_with_their_gpus(cluster: Slurm) -> None:
    system = System(environment={**os.environ, **cluster.environment})
    assert sorted(commands.idle(system, "main")[0]) == sorted(cluster.names)
    assert commands.idle(system)[1] == set()
    with pytest.raises(UsageError, match="no node is idle in none, says Slurm"):
        commands.idle(system, "none")


# What the job asks of Slurm


def test_the_options_of_the_job_are_those_of_slurm(cluster: Slurm, tmp_path: Path) -> None:
    """Four nodes of any one leaf: which leaf is Slurm's choice."""
    plan = shuffled(12, cluster.names[:4], 1)
    anywhere = replace(HERE, cluster=fabric(NODES), nodelist=False, switches=1, wait="00:05:00", partition="main")
    export(plan, anywhere, tmp_path)
    said = job(cluster, tmp_path, "job.sbatch", str(cluster.folder / "probe"))
    by_rank = {int(line.split()[1]): line.split()[2] for line in said.splitlines() if line.startswith("seat ")}
    assert told(said) == {rank: (str(rank), "4", "0", by_rank[0], "29500") for rank in range(4)}
    used = {host for host, _ in seats(said).values()}
    leaves = [set(block.nodes) for block in fabric(NODES).blocks]
    assert len(used) == 4
    assert used in leaves

    names = fold(leaves[2])
    cluster.out("scontrol", "update", f"nodename={names}", "AvailableFeatures=quick", "ActiveFeatures=quick")
    export(plan, replace(anywhere, features="quick"), tmp_path)
    said = job(cluster, tmp_path, "job.sbatch", str(cluster.folder / "probe"))
    assert {host for host, _ in seats(said).values()} == leaves[2]


def test_what_this_slurm_refuses_is_not_exported_for_it(cluster: Slurm) -> None:
    """It has no --segment and no topology/block: so we say before it does."""
    refused = cluster.run("sbatch", "--segment=4", "-N4", "--wrap", "true")
    assert refused.returncode != 0
    assert "--segment" in refused.stderr
    plan = shuffled(13, cluster.names[:4], 1)
    with pytest.raises(UsageError, match=r"--segment came with Slurm 24\.05, and this one is 22\.5\.8"):
        export(plan, replace(HERE, segment=4, nodelist=False), cluster.folder / "segment")
    with pytest.raises(UsageError, match=r"topology/block came with Slurm 23\.11"):
        export(plan, replace(HERE, topology="block"), cluster.folder / "block")


# topology.conf


def test_our_topology_conf_is_what_slurm_then_shows(cluster: Slurm) -> None:
    shown = slurm_show.read(cluster.out("scontrol", "show", "topology"), "shown")
    wanted = fabric(NODES)
    assert shown.findings == ()
    assert {one.name: one.parent for one in shown.cluster.switches} == {one.name: one.parent for one in wanted.switches}
    assert leaves_of(shown.cluster) == leaves_of(wanted)


def leaves_of(cluster: Cluster) -> Mapping[str, Sequence[str]]:
    return {node: block.leaves for block in cluster.blocks for node in block.nodes}


GOOD = "SwitchName=leaf1 Nodes=n[01-08]\nSwitchName=leaf2 Nodes=n[09-16]\nSwitchName=s Switches=leaf[1-2]\n"
WITHOUT_ROOT = GOOD[: GOOD.index("SwitchName=s")]
NAMES = [f"n{place:02}" for place in range(1, 17)]
FATAL, RUNS = "ends", "runs"
BAD_FILE = "something wrong with opening/reading"

# The content, what slurmctld does, a part of what its log says of it, and what we say: an error with its line, or a
# finding. Where it runs on and we refuse, nodes would be lost or the file has two meanings.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "unknown node": (
        GOOD.replace("n[09-16]", "n[09-16],zz1"),
        RUNS,
        "Invalid hostnames in switch configuration: zz1",
        "unknown node",
    ),
    "node on two leaves": (
        GOOD.replace("n[09-16]", "n[08-16]"),
        RUNS,
        "Multiple leaf switches contain nodes: n08",
        ":2: node n08 is declared already, in line 1",
    ),
    "nodes on no switch": (
        GOOD.replace("n[09-16]", "n[09-12]"),
        RUNS,
        "switches lack access to 4 nodes: n[13-16]",
        "nodes on no switch",
    ),
    "no common root": (WITHOUT_ROOT, RUNS, "no switch can reach all nodes", "no common root"),
    "unclosed range": (GOOD.replace("n[01-08]", "n[01-08"), RUNS, "", ":1: a list of hosts is written like"),
    "two parents": (f"{GOOD}SwitchName=t Switches=leaf1\n", RUNS, "", ":4: switch leaf1 is below s already"),
    "empty file": ("# nothing\n", RUNS, "No switches configured", ": it declares no switch and no node"),
    "child not defined": (
        GOOD.replace("leaf[1-2]", "leaf[1-3]"),
        FATAL,
        "has invalid child (leaf3)",
        ":3: switch s is above 'leaf3', which is not declared",
    ),
    "duplicate switch": (
        f"{GOOD}SwitchName=leaf2 Nodes=n16\n",
        FATAL,
        "Switch (leaf2) has already been defined",
        ":4: switch leaf2 is declared already, in line 2",
    ),
    "cycle": (
        f"{GOOD}SwitchName=a Switches=b\nSwitchName=b Switches=a\n",
        FATAL,
        "is not a tree",
        ":4: switches are a tree, and these a cycle",
    ),
    "nodes and switches": (
        GOOD.replace("Switches=leaf[1-2]", "Switches=leaf[1-2] Nodes=n16"),
        FATAL,
        "has both child switches and nodes",
        ":3: switch s has both",
    ),
    "neither": (
        f"{GOOD}SwitchName=leaf3\n",
        FATAL,
        "has neither child switches nor nodes",
        ":4: switch leaf3 has neither",
    ),
    "unknown key": (
        GOOD.replace("Switches=", "Switchez="),
        FATAL,
        "Parsing error at unrecognized key: Switchez",
        ":3: unknown key 'Switchez'",
    ),
    "speed that is no number": (
        GOOD.replace("leaf[1-2]", "leaf[1-2] LinkSpeed=fast"),
        FATAL,
        BAD_FILE,
        ":3: linkspeed is a whole number",
    ),
    "blocks among switches": (f"{GOOD}BlockName=b Nodes=n16\n", FATAL, BAD_FILE, ":4: a file has switches or blocks"),
}


def controller(text: str) -> tuple[str, str]:
    """What slurmctld does with a topology.conf, and its log."""
    with files(16, text) as cluster, ExitStack() as stack:
        daemon = cluster.start("slurmctld", "-D", "-c", log="slurmctld")
        stack.callback(daemon.wait)
        stack.callback(daemon.kill)
        end = time.monotonic() + 30
        while daemon.poll() is None and "UP" not in cluster.run("scontrol", "ping").stdout:
            assert time.monotonic() < end, cluster.log()
            time.sleep(0.1)
        return (RUNS if daemon.poll() is None else FATAL), cluster.log()


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, tuple[str, str]]:
    with ThreadPoolExecutor(5) as pool:
        texts = [text for text, *_ in FAULTS.values()]
        return dict(zip(FAULTS, pool.map(controller, texts), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_we_say_of_a_topology_conf_is_what_slurm_does_with_it(
    fault: str, outcomes: Mapping[str, tuple[str, str]]
) -> None:
    text, does, says, ours = FAULTS[fault]
    done, log = outcomes[fault]
    assert done == does, log
    assert says in log
    try:
        rules = [found.rule for found in slurm_conf.read(text, "topology.conf", NAMES).findings]
    except TopologyError as error:
        assert ours in str(error)
    else:
        assert does == RUNS  # what ends the controller is refused, never only doubted
        assert rules == [ours]


# Coming and going


def test_a_killed_test_leaves_no_daemon_behind() -> None:
    script = (
        "import json, time; from tests.system.slurm import slurm, MARK\n"
        "with slurm(2, 'SwitchName=s Nodes=n[1-2]\\n') as c:\n"
        "    print(json.dumps([c.environment[MARK], str(c.folder)]), flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        mark, folder = json.loads(killed.stdout.readline())
        assert len(processes(mark)) >= 3
        os.kill(killed.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while processes(mark) or Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
