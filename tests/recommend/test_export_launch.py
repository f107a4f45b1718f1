"""What is exported for launchers, without one: names that could be code, and scripts run against fake commands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.backends.world import launch
from commbench.errors import UsageError
from commbench.recommend.export import mpich, openmpi, slurm, slurm_topology, torchrun, wrappers
from commbench.recommend.export._settings import NotExported, Settings, version
from commbench.recommend.exporting import export, exporters, texts, write
from commbench.recommend.plan import Plan, Seat
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.readers import slurm_conf, slurm_yaml
from commbench.verify import device_of
from tests.mpi.launch import MPICH, MPIRUN, library, run
from tests.recommend.plans import choice, shuffled, whole

HOSTS = ["n03", "n01", "n02"]
HOSTILE = [
    "n1;touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "n1\ntouch pwned",
    "n1 slots=9",
    "n[1-2]",
    "n1,n2",
    "n1*2",
    "-x",
    "../n1",
    "n1#",
    "n1:8",
    "n1'",
    'n1"',
    "n1\\",
    "n1\x00",
    "ñ1",
    "",
    ".",
    "n1=n2",
    "a" * 254,
]
TREE = Cluster(
    switches=(Switch("core"), Switch("leaf1", "core"), Switch("leaf2", "core")),
    blocks=(Block(("n01", "n02"), ("leaf1",)), Block(("n03",), ("leaf2",))),
)
BLOCKS = Cluster(blocks=(Block(("n01", "n02"), name="b1"), Block(("n03", "n04"), name="b2")), block_sizes=(2, 4))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("target", exporters())
def test_a_name_that_could_be_code_is_refused_by_every_target(target: str, name: str) -> None:
    plan = Plan("t", (Seat("n01", 0), Seat(name, 0)), vendor="nvidia", choices=(choice("allreduce", "ring"),))
    if target in ("nccl_tuner", "nccl_environment", "openmpi_rules", "mpich_settings", "slurm_topology"):
        with pytest.raises(UsageError):
            texts(plan, Settings())
    else:
        with pytest.raises(UsageError, match="a host's name has up to 253 letters"):
            exporters()[target].files(plan, Settings())


@given(st.text(min_size=1, max_size=30))
def test_any_name_is_refused_or_plain_everywhere(name: str) -> None:
    """A name that passes is one word of the shell, of srun's host file and of a list of hosts."""
    plan = replace(whole(["n01", name], 1), topology=name, notes=(name,), limits=(name,), advice=name)
    try:
        made, _ = texts(plan, Settings())
    except UsageError:
        return
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert name[0] not in "-."
    assert slurm.parse(made["hosts.slurm"]) == ["n01", name]


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_of_a_plan_reaches_a_script(said: str, cpus: str) -> None:
    plain = whole(HOSTS, 1)
    odd = replace(plain, topology=said, advice=said, notes=(said,), limits=(said,), axes={said: 3})
    made, _ = texts(odd, Settings())
    unlike = {name for name, text in texts(plain, Settings())[0].items() if made[name] != text}
    assert unlike <= {"placement.json"}
    try:
        made, _ = texts(replace(plain, seats=tuple(replace(seat, cpus=cpus) for seat in plain.seats)), Settings())
    except UsageError:
        return
    assert set(cpus) <= set("0123456789-,")


def test_a_vendor_that_could_be_code_reaches_no_script() -> None:
    made, _ = texts(replace(whole(HOSTS), vendor="x; touch pwned"), Settings())
    assert not any("pwned" in text for name, text in made.items() if name != "placement.json")


@pytest.mark.parametrize("cluster", ["a\nb", "x y", "a'b", "$(touch pwned)"])
def test_a_cluster_whose_names_slurm_does_not_take_is_refused(cluster: str) -> None:
    with pytest.raises(UsageError, match="Slurm's names have up to 63"):
        slurm_topology.files(whole(HOSTS), Settings(cluster=replace(TREE, name=cluster), slurm=(25, 5)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"features": 'a"; touch pwned'}, "features are written as Slurm does"),
        ({"wait": "1\n#SBATCH --wrap"}, "the time to wait for --switches N@T is written as"),
        ({"switches": 0}, "switches is a whole number from 1"),
        ({"switches": 100_001}, "switches is a whole number from 1 to 100000"),
        ({"segment": -1}, "segment is a whole number from 1"),
        ({"topology": "torus"}, "tree or block, not 'torus'"),
        ({"wait": "10"}, "goes with a number of switches"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Mapping[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Settings(**settings)  # type: ignore[arg-type]


def test_versions_are_read_as_tools_print_them() -> None:
    assert version("slurm-wlm 22.05.8") == version("slurm 22.05.8\n") == version("22.05.8") == (22, 5, 8)
    with pytest.raises(UsageError, match="a version is numbers with dots"):
        version("newest")


# What Slurm of which version is asked


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_a_job_asks_for_the_nodes_of_the_plan() -> None:
    made = slurm.files(whole(HOSTS), Settings(slurm=(24, 11), cluster=TREE, features="[leaf1|leaf2]"))
    assert options(made["job.sbatch"]) == [
        "--nodes=3",
        "--ntasks-per-node=8",
        "--exclusive",
        "--gres=gpu:8",
        "--nodelist=n[01-03]",
        '--constraint="[leaf1|leaf2]"',
    ]
    assert slurm.parse(made["hosts.slurm"]) == [host for host in HOSTS for _ in range(8)]
    assert made["hosts.slurm"].count("\n") == 24  # from 25.11 on as many lines as tasks


def test_cores_are_bound_where_they_are_known() -> None:
    made = slurm.files(whole(HOSTS, 2, cpus=("0-3,8", "4-7")), Settings())
    assert "--cpu-bind=mask_cpu:0x10f,0xf0" in made["job.sbatch"]
    bare = slurm.files(whole(HOSTS, 2), Settings())["job.sbatch"]
    assert "--cpu-bind" not in bare
    assert "--cores N" in bare and "--cores N" not in made["job.sbatch"]
    assert "--cores N" in openmpi.files(whole(HOSTS, 2), Settings())["openmpi.sh"]


@pytest.mark.parametrize("devices", [(0, 1), (1, 0)], ids=["alike on all hosts", "unlike"])
@pytest.mark.parametrize(
    ("release", "says"), [(None, True), ((22, 5, 8), True), ((21, 8, 1), True), ((21, 8, 0), False), ((20, 11), False)]
)
def test_slurm_binds_no_gpu(release: tuple[int, ...] | None, says: bool, devices: tuple[int, int]) -> None:
    """--gpu-bind=none is new in 21.08.1, by Slurm's NEWS. What is bound might not reach the others of its node."""
    first, second = ([Seat(host, device) for device in own] for host, own in (("n01", (0, 1)), ("n02", devices)))
    plan = Plan("test", (*first, *second), vendor="nvidia")
    for made in (slurm.files(plan, Settings(slurm=release)), slurm.files(plan, Settings(slurm=release, wrapper=True))):
        assert ("--gpu-bind=none" in made["job.sbatch"], "_gpu" in made["job.sbatch"]) == (says, False)
    assert ("--gpu-bind=none" in mpich.files(plan, Settings(slurm=release))["mpich.sh"]) == says


def test_cores_are_bound_where_a_wrapper_seats_ranks_too() -> None:
    text = slurm.files(whole(HOSTS, 2, cpus=("0-3,8", "4-7")), Settings(wrapper=True))["job.sbatch"]
    seated = 'srun --nodes=3 --ntasks=6 --ntasks-per-node=2 "--nodelist=n[01-03]"'
    assert f'{seated} --gpu-bind=none --cpu-bind=mask_cpu:0x10f,0xf0 "$folder/ranks.sh"' in text


@pytest.mark.parametrize(("hosts", "says"), [(["n01"], "8 ranks on 1 node as"), (HOSTS, "24 ranks on 3 nodes as")])
def test_one_node_is_no_nodes(hosts: list[str], says: str) -> None:
    assert f"# {says} commbench planned" in slurm.files(whole(hosts), Settings())["job.sbatch"]


def test_ranks_on_a_cpu_ask_for_no_gpus() -> None:
    made = slurm.files(whole(HOSTS, vendor="cpu"), Settings())
    assert "gpu" not in made["job.sbatch"]
    assert set(made) == {"job.sbatch", "hosts.slurm", "device.sh", "ranks.tsv"}


@pytest.mark.parametrize(
    ("settings", "wrapped"),
    [
        (Settings(), False),
        (Settings(slurm=(26, 5), topology="tree"), False),
        (Settings(slurm=(25, 11), topology="block"), False),
        (Settings(slurm=(26, 5), topology="block"), True),
        (Settings(topology="block"), True),  # of which version nobody said
        (Settings(slurm=(22, 5), wrapper=True), True),
        (Settings(slurm=(26, 5), cluster=BLOCKS), True),
        (Settings(cluster=Cluster(blocks=(Block(("n01", "n02"), domain="rack1"),))), True),
        (Settings(cluster=Cluster(blocks=(Block(("n01",)), Block(("n02",))))), False),  # nothing joins these
    ],
)
def test_where_an_order_of_tasks_may_be_refused_a_wrapper_seats_ranks(settings: Settings, wrapped: bool) -> None:
    made = slurm.files(whole(["n01", "n02"], 2), settings)
    assert ("ranks.sh" in made, "hosts.slurm" in made) == (wrapped, not wrapped)
    assert ("--distribution=arbitrary " in made["job.sbatch"]) != wrapped
    if wrapped:
        with pytest.raises(NotExported, match="use Open MPI's mpirun"):
            mpich.files(whole(["n01", "n02"], 2), settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(slurm=(23, 11), segment=1, nodelist=False), r"--segment came with Slurm 24\.05"),
        (Settings(slurm=(25, 5), segment=1), r"--segment with --nodelist came with Slurm 25\.11"),
        (Settings(slurm=(25, 11), segment=2, topology="block"), "the nodes of a job are a multiple of its segment"),
        (Settings(slurm=(25, 11), segment=1, topology="tree"), "--segment is for topology/block"),
        (Settings(switches=1), "a list of nodes leaves no choice of switches"),
        (Settings(switches=1, nodelist=False, topology="block"), "--switches is for topology/tree"),
        (Settings(slurm=(23, 2), topology="block"), r"topology/block came with Slurm 23\.11"),
    ],
)
def test_what_a_version_refuses_is_refused(settings: Settings, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        slurm.files(whole(HOSTS), settings)


def test_a_partition_is_asked_for() -> None:
    assert "--partition=gpu-h100,gpu" in options(
        slurm.files(whole(HOSTS), Settings(partition="gpu-h100,gpu"))["job.sbatch"]
    )


@pytest.mark.parametrize(
    "name", ["a b", "a\n#SBATCH --wrap=x", "-x", "a;b", "$(x)", "a" * 254, 'a"', "a=b", "ä", "a,,b", "a,"]
)
def test_a_name_of_a_partition_cannot_be_more_than_one(name: str) -> None:
    with pytest.raises(UsageError, match="a partition's name has letters, digits"):
        Settings(partition=name)


def test_a_segment_may_stand_beside_all_nodes_of_a_job() -> None:
    made = slurm.files(whole(["n01", "n02"]), Settings(slurm=(25, 11), segment=1, topology="block"))
    assert options(made["job.sbatch"])[-2:] == ["--nodelist=n[01-02]", "--segment=1"]


def test_topology_files_are_those_that_the_version_reads() -> None:
    old = slurm_topology.files(whole(HOSTS), Settings(slurm=(22, 5), cluster=TREE))
    assert set(old) == {"topology.conf"}
    new = slurm_topology.files(whole(HOSTS), Settings(slurm=(25, 5), cluster=replace(BLOCKS, name="pod")))
    assert set(new) == {"topology.conf", "topology.yaml"}
    conf, yaml = (
        slurm_conf.read(new["topology.conf"], "conf").cluster,
        slurm_yaml.read(new["topology.yaml"], "yaml").cluster,
    )
    assert conf.blocks == yaml.blocks == BLOCKS.blocks
    assert conf.block_sizes == yaml.block_sizes == (2, 4)
    with pytest.raises(NotExported, match="made of a cluster, and none was given"):
        slurm_topology.files(whole(HOSTS), Settings())
    with pytest.raises(UsageError, match=r"topology/block came with Slurm 23\.11, and this one is 23\.2"):
        slurm_topology.files(whole(HOSTS), Settings(slurm=(23, 2), cluster=BLOCKS))


# Each format is read back by a reader of ours


@pytest.mark.parametrize("plan", [whole(HOSTS), shuffled(HOSTS), shuffled(HOSTS, seed=1)])
def test_orders_are_read_back(plan: Plan) -> None:
    hosts = [seat.host for seat in plan.seats]
    assert slurm.parse(slurm.hostfile(plan)) == hosts
    assert mpich.parse(mpich.hostfile(plan)) == hosts
    bound = replace(plan, seats=tuple(replace(seat, cpus=str(seat.device)) for seat in plan.seats))
    assert openmpi.parse(openmpi.rankfile(bound)) == hosts
    rows = [line.split("\t") for line in wrappers.table(plan).splitlines()]
    assert [(host, int(device)) for host, _, _, device in rows] == [(seat.host, seat.device) for seat in plan.seats]
    assert [int(rank) for _, _, rank, _ in rows] == list(range(len(hosts)))
    assert len({(host, place) for host, place, _, _ in rows}) == len(hosts)


# Scripts, run


class Commands:
    """Commands that print how they were called, beside an exported folder."""

    def __init__(self, folder: Path, plan: Plan, settings: Settings) -> None:
        self.out = folder / "it's $HOME; out"  # a folder may have any name
        write(texts(plan, settings)[0], self.out)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("srun", "mpiexec", "torchrun", "python3", "mpirun"):
            self.fake(
                name, f'printf "{name}"; printf " <%s>" "$@"; echo; env | grep -E "^(SLURM_|MASTER_|CUDA)" | sort'
            )

    def fake(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def run(self, script: str, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        path = self.out / script
        assert subprocess.run(["bash", "-n", path], capture_output=True).stderr == b""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        variables = {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", **(env or {})}
        done = subprocess.run(["bash", path, *words], cwd=self.out, env=variables, capture_output=True, text=True)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr


WORDS = ("train me.py", "--lr=$(touch pwned)", "*")
QUOTED = "<train me.py> <--lr=$(touch pwned)> <*>"


def test_the_job_script_hands_its_words_on(tmp_path: Path) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    lines = it.run("job.sbatch", *WORDS).splitlines()
    launch = f"srun <--nodes=3> <--ntasks=6> <--distribution=arbitrary> <--gpu-bind=none> <{it.out}/device.sh>"
    hostfile = f"SLURM_HOSTFILE={it.out}/hosts.slurm"
    check = f"<python3> <-m> <commbench.verify> <{it.out}/placement.json>"
    assert lines == [
        f"{launch} {check}",
        hostfile,
        f"{launch} {QUOTED}",
        hostfile,
    ]
    assert not (it.out / "pwned").exists()


def test_the_job_script_finds_the_files_of_its_own_plan(tmp_path: Path) -> None:
    """Slurm runs a copy of it elsewhere: files are where they were exported, or where it was submitted, or as told."""
    plan, other = shuffled(HOSTS), shuffled(HOSTS, seed=1)
    it = Commands(tmp_path, plan, Settings())
    out = tmp_path / "it's $(touch pwned)\nout"
    export(plan, Settings(), out)
    submitted, spool = tmp_path / "submitted", tmp_path / "spool"
    submitted.mkdir()
    spool.mkdir()

    def folder(script: Path, code: int = 0, **env: str) -> str:
        env = {"PATH": f"{it.bin}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(submitted), **env}
        done = subprocess.run(["bash", script, "true"], cwd=submitted, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return (
            re.sub(r".* <([^>]*)/placement\.json>.*", r"\1", done.stdout, flags=re.DOTALL) if code == 0 else done.stderr
        )

    spooled = (out / "job.sbatch").rename(spool / "slurm_script")
    assert folder(spooled) == str(out)
    export(other, Settings(), tmp_path / "other")
    moved = out.rename(tmp_path / "moved")
    export(other, Settings(), submitted)
    assert folder(spooled, COMMBENCH_PLACEMENT=str(moved)) == str(moved)
    said = folder(spooled, 2)  # the files that are there are of another plan
    assert said.startswith("job.sbatch: the plan of this job is in none of ")
    assert said.endswith(f"{submitted}: export and submit again, or name its folder as COMMBENCH_PLACEMENT\n")
    assert "in none of ../other: export" in folder(spooled, 2, COMMBENCH_PLACEMENT="../other")
    assert folder(tmp_path / "other" / "job.sbatch") == str(tmp_path / "other")
    export(plan, Settings(), submitted)
    assert folder(spooled) == str(submitted)
    spooled.rename(moved / "job.sbatch")
    assert folder(moved / "job.sbatch") == str(moved)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("settings", [Settings(), Settings(wrapper=True), Settings(nodelist=False)])
def test_a_job_without_a_command_says_so_before_it_starts_anything(tmp_path: Path, settings: Settings) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), settings)
    it.fake("srun", "touch started")
    path = it.out / "job.sbatch"
    done = subprocess.run(["bash", path], cwd=it.out, env={"PATH": f"{it.bin}:/usr/bin:/bin"}, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.decode().endswith("the command is missing: sbatch job.sbatch COMMAND...\n")
    assert not (it.out / "started").exists()


def test_a_job_that_sits_wrong_does_not_start(tmp_path: Path) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    it.fake("srun", 'case "$*" in *commbench.verify*) echo wrong >&2; exit 1 ;; esac; touch started')
    assert it.run("job.sbatch", "true", code=1) == "wrong\n"
    assert not (it.out / "started").exists()


@pytest.mark.parametrize(
    ("variables", "rank", "devices"),
    [
        ({"SLURMD_NODENAME": "n01", "SLURM_LOCALID": "1"}, 3, "0,1"),
        ({"SLURMD_NODENAME": "n01.cluster.example", "SLURM_LOCALID": "0"}, 2, "0,1"),
        ({"SLURMD_NODENAME": "n03", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1, "0,1"),
    ],
)
def test_the_wrapper_finds_the_rank_of_a_place(
    tmp_path: Path, variables: Mapping[str, str], rank: int, devices: str
) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    it.fake(
        "show", 'echo "$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $CUDA_VISIBLE_DEVICES ${SLURM_PROCID-none} $1"'
    )
    said = it.run("ranks.sh", "show", "a b", env={"SLURM_PROCID": "5", **variables})
    assert said == f"{rank} 6 2 n03 {devices} none a b\n"


def test_a_process_that_the_plan_does_not_have_is_told_so(tmp_path: Path) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    said = it.run("ranks.sh", "true", code=1, env={"SLURMD_NODENAME": "n09", "SLURM_LOCALID": "0"})
    assert said == "ranks.sh: the plan has no rank for place 0 on n09: start it on the planned hosts only\n"
    assert (
        it.run("device.sh", "true", code=1, env={"PMI_RANK": "6"})
        == "device.sh: the plan has no rank 6: it has ranks 0 to 5\n"
    )


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu", ""])
def test_a_rank_is_shown_its_device(tmp_path: Path, vendor: str) -> None:
    plan = replace(whole(HOSTS, 2), vendor=vendor)
    it = Commands(tmp_path, plan, Settings())
    it.fake("show", 'echo "${CUDA_VISIBLE_DEVICES-none} ${HIP_VISIBLE_DEVICES-none} ${ROCR_VISIBLE_DEVICES-none}"')
    expected = {"nvidia": "1 none none", "amd": "none 1 none", "cpu": "none none none", "": "1 1 none"}
    for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"):
        assert it.run("device.sh", "show", env={variable: "3"}) == f"{expected[vendor]}\n"


@pytest.mark.parametrize("vendor", ["nvidia", "cpu"])
def test_a_rank_that_nobody_told_is_told_as_torchrun_does(tmp_path: Path, vendor: str) -> None:
    it = Commands(tmp_path, replace(shuffled(HOSTS, 2), vendor=vendor), Settings(port=1234))
    it.fake("show", 'echo "${RANK-} ${WORLD_SIZE-} ${LOCAL_RANK-} ${MASTER_ADDR-} ${MASTER_PORT-}"')
    hosts = [seat.host for seat in shuffled(HOSTS, 2).seats]
    for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        for rank, host in enumerate(hosts):
            place = 0 if vendor == "nvidia" else hosts[:rank].count(host)  # of one device that is shown, the first
            said = it.run("device.sh", "show", env={variable: str(rank)})
            assert said == f"{rank} 6 {place} {hosts[0]} 1234\n"
    assert it.run("device.sh", "show", env={"SLURM_PROCID": "3", "MASTER_PORT": "7"}).endswith(f"{hosts[0]} 7\n")
    assert it.run("device.sh", "show", env={"SLURM_PROCID": "3", "RANK": "3"}) == "3    \n"
    # A daemon of Open MPI's that srun started hands its own number on to its ranks.
    assert it.run("device.sh", "show", env={"SLURM_PROCID": "1", "OMPI_COMM_WORLD_RANK": "4"}).startswith("4 6 ")


def test_what_a_job_tells_its_ranks_leaves_those_of_slurm_to_commbench(tmp_path: Path) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    it.fake("show", "exec env")
    slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1"}
    told = dict(line.split("=", 1) for line in it.run("device.sh", "show", env=slurm).splitlines())
    assert told["RANK"] == "3" and launch(told) == launch(slurm) and launch(slurm).launcher == "Slurm"
    assert device_of(told, whole(HOSTS, 2)) == 1


def test_torchrun_is_for_ranks_that_follow_one_another(tmp_path: Path) -> None:
    with pytest.raises(NotExported, match=r"start each process by ranks\.sh"):
        torchrun.files(shuffled(HOSTS), Settings())
    it = Commands(tmp_path, whole(HOSTS, 2), Settings(port=1234))
    first, *environment = it.run("torchrun.sh", *WORDS, env={"SLURMD_NODENAME": "n02"}).splitlines()
    assert first == (
        "torchrun <--nnodes=3> <--nproc-per-node=2> <--node-rank=2> <--rdzv-backend=static> <--master-addr=n03> "
        f"<--master-port=1234> {QUOTED}"
    )
    assert environment == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES=0,1",
        "MASTER_ADDR=n03",
        "MASTER_PORT=1234",
    ]


@pytest.mark.parametrize(("release", "option"), [("4.1.4", "--rankfile"), ("5.0.7", "--map-by")])
@pytest.mark.parametrize("stated", [True, False])
def test_open_mpi_is_told_as_its_version_wants(tmp_path: Path, release: str, option: str, stated: bool) -> None:
    settings = Settings(openmpi=version(release)) if stated else Settings()
    it = Commands(tmp_path, whole(HOSTS, 2, cpus=("0-3", "4-7")), settings)
    it.fake("mpirun", f'[ "$*" = --version ] && echo "mpirun (Open MPI) {release}" || printf "<%s>" "$@"')
    said = it.run("openmpi.sh", *WORDS, env={"MPIRUN_OPTIONS": "--tag-output -x A"})
    assert f"<{option}>" in said
    assert said.startswith("<-np><6>")
    assert said.endswith(f"<--tag-output><-x><A><{it.out}/device.sh>{QUOTED.replace('> <', '><')}")
    assert f"<--hostfile><{it.out}/openmpi.hosts>" in said
    assert "--hostfile" not in it.run("openmpi.sh", "true", env={"SLURM_JOB_ID": "1"})


def test_mpich_goes_by_srun_in_a_job(tmp_path: Path) -> None:
    it = Commands(tmp_path, whole(HOSTS, 2), Settings())
    first, *environment = it.run("mpich.sh", *WORDS, env={"SLURM_JOB_ID": "7"}).splitlines()
    own = f"<--nodes=3> <--ntasks=6> <--distribution=arbitrary> <--gpu-bind=none> <{it.out}/device.sh>"
    assert first == f"srun <--mpi=pmi2> {own} {QUOTED}"
    assert f"SLURM_HOSTFILE={it.out}/hosts.slurm" in environment
    (said,) = it.run("mpich.sh", *WORDS).splitlines()
    assert said == f"mpiexec <-f> <{it.out}/mpich.hosts> <-n> <6> <{it.out}/device.sh> {QUOTED}"


@pytest.mark.mpi
@pytest.mark.skipif(library() != MPICH, reason="no MPICH beside this interpreter")
def test_hydra_keeps_the_order_of_its_file(tmp_path: Path) -> None:
    """Outside a job; its launcher, told by a variable, starts all hosts here."""
    plan = replace(shuffled(["n3", "n1", "n2"], 4), vendor="cpu")
    write(texts(plan, Settings())[0], tmp_path / "out")
    fake = tmp_path / "launch"
    fake.write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexport HERE=$1; shift\nexec bash -c "$*"\n')
    fake.chmod(0o755)
    env = {
        "PATH": f"{MPIRUN.parent}{os.pathsep}{os.environ['PATH']}",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(fake),
        "HYDRA_LOCALHOST": "127.0.0.1",
    }
    done = run(["bash", str(tmp_path / "out" / "mpich.sh"), "sh", "-c", "echo $PMI_RANK $HERE"], env=env)
    assert done.code == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found == {str(rank): seat.host for rank, seat in enumerate(plan.seats)}
