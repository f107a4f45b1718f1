"""The door: what it prints and writes, Slurm asked by commands, and one clear line for bad input."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from commbench.recommend import advice, job
from commbench.recommend.__main__ import main
from commbench.recommend.export import mpich_settings, openmpi_rules
from commbench.recommend.plan import read
from commbench.results import collect
from commbench.results.collect import OWN
from commbench.results.journal import Journal
from commbench.results.record import Record
from commbench.topology.reading import read as read_topology
from commbench.topology.shipped import find
from tests.recommend.plans import choice, whole
from tests.runs import cell, facts, group, manifest, visit

TREE = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1,3,5,7]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[2,4,6,8]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]
"""


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--time", "0.2"])
    return int(ended.value.code or 0)


def command(folder: Path, name: str, text: str) -> None:
    """A command that prints `text`."""
    (folder / f"{name}.txt").write_text(text)
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec cat "{folder}/{name}.txt"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    command(folder, "scontrol", TREE)
    return folder


def test_a_plan_is_printed_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run("--topology", "h100-nvlink", "--gpus", "32", "--axes", "tp=8,dp=4", "--export", str(out)) == 0
    text = capsys.readouterr().out
    for words in (
        "predicted, not measured",
        "gap of recommended to the proven bound",
        "what limits",
        "nodes: n[01-04]",
    ):
        assert words in text
    plan = read(out / "placement.json")
    assert len(plan.seats) == 32 and plan.axes == {"tp": 8, "dp": 4} and plan.vendor == "nvidia"
    assert plan.seconds["bound"] <= plan.seconds["recommended"] <= plan.seconds["default"]
    assert plan.gap == pytest.approx(plan.seconds["recommended"] / plan.seconds["bound"] - 1)
    assert len({(seat.host, seat.device) for seat in plan.seats}) == 32
    assert all(seat.nic == f"nic{seat.device}" for seat in plan.seats)  # one PCIe switch a GPU and its NIC
    assert (out / "hosts.slurm").exists()


MADE_UP = (
    "#   h100-nvlink is shipped, and its node names are made up: Slurm knows none of them; "
    "for a job of yours give --topology slurm --free slurm instead"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (),
            [
                "#   nobody said which nodes are free: all 32 are taken to be (--free slurm, or a host list); "
                "job.sbatch waits for just n[01-02]",
                MADE_UP,
            ],
        ),
        (("--free", "n[03-04]"), [MADE_UP]),
    ],
)
def test_an_export_for_nodes_that_are_made_up_ends_with_how_to_plan_on_real_ones(
    words: tuple[str, ...], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a b"
    assert run("--topology", "h100-nvlink", "--gpus", "16", *words, "--export", str(out)) == 0
    lines = capsys.readouterr().out.splitlines()
    no_settings = "#   no settings of algorithms: the library's own choice stays; --results chooses from measurements"
    assert lines[lines.index(no_settings) + 1 :] == said


def test_nodes_of_ones_own_have_their_names(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(slurm, "sinfo", "n1\nn3\n")
    assert run("--topology", "slurm", "--free", "slurm", "--gpus", "16", "--export", str(tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == f"# next: sbatch {tmp_path}/out/job.sbatch COMMAND..."
    assert "made up" not in text and "nobody said which nodes are free" not in text
    assert "#SBATCH --nodelist=n[1,3]\n" in (tmp_path / "out" / "job.sbatch").read_text()


def test_a_node_of_a_topology_without_switches_is_no_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """srun takes an order there: MPICH has its script, and no wrapper gives ranks."""
    assert run("--topology", "two-core", "--gpus", "2", "--export", str(tmp_path)) == 0
    assert "taken to be" not in capsys.readouterr().out  # there is no other node
    assert (tmp_path / "mpich.sh").exists()
    text = (tmp_path / "job.sbatch").read_text()
    assert '\nlaunch=(srun --nodes=1 --ntasks=2 --distribution=arbitrary "$folder/device.sh")\n' in text
    assert "2 ranks on 1 node as" in text


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--topology", "l40s-pcie", "--axes", "dp=32", "--bytes", "dp=3x64M", "--cores", "64", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predicted"] is True
    assert found["plan"]["seats"][0]["cpus"]
    assert found["nodes"]["leaves"] == 1 and found["nodes"]["how"] == found["how"] == "by name"


def test_json_has_the_export_and_its_next_step(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a b"
    words = ("--topology", "slurm", "--gpus", "16", "--export", str(out))
    assert run(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)["export"]
    assert set(found["files"]) == {path.name for path in out.iterdir()} - {"export.json"}
    assert len(found["files"]) == len(set(found["files"])) and found["folder"] == str(out)
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [f"#   {note}" for note in found["notes"]] + [f"# next: {found['next']}"] == lines[-2:]
    assert len(found["notes"]) == 1 and found["next"] == f"sbatch '{out}'/job.sbatch COMMAND..."
    assert found["refused"]["openmpi_rules"] == "no Open MPI rules: the plan chooses no algorithm"
    assert found["refused"].keys().isdisjoint(("slurm", "openmpi", "mpich", "torchrun"))
    assert run(*words[:4], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["export"] is None and found["left"] is None


def test_groups_in_a_node_are_not_taken_apart_for_what_the_model_may_be_wrong_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--topology", "h100-nvlink", "--gpus", "128", "--axes", "tp=8,dp=16", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["advice"] == "keep what you have"
    assert found["gain"] < found["error"] and found["left"]["splits"] == ["tp"]


def test_json_has_the_order_that_was_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    from commbench.model.placement import Placement
    from commbench.recommend import robust
    from commbench.recommend.order import Found
    from commbench.recommend.score import Judge
    from tests.recommend.test_robust import GRID, spread

    def found(judge: Judge, seats: Placement, *_: object) -> Found:
        seat = np.arange(seats.n) if judge.preferred else spread(GRID)
        return Found(seat, judge.score(seats, seat), "as told")

    monkeypatch.setattr(robust, "search", found)
    words = ("--topology", "h100-nvlink", "--axes", "tp=8,dp=4", "--bytes", "tp=96x64M,dp=4G")
    assert run(*words) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left: ")]
    assert run(*words, "--json") == 0
    left = json.loads(capsys.readouterr().out)["left"]
    gains = [f"{name} {100 * gain:.1f} %" for name, gain in left["gain_if_the_library_runs"].items()]
    assert said == (
        f"left: an order which splits {', '.join(left['splits'])} over nodes, with a gain of "
        f"{100 * left['gain']:.1f} % with the fastest algorithms; if NCCL runs another one instead: {', '.join(gains)}"
    )
    assert left["splits"] == ["tp"] and left["how"] == "as told" and len(gains) > 1


def test_what_is_shown_of_nodes_is_of_those_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=l1 Nodes=n[1,3]\nSwitchName=l2 Nodes=n[2,4,5]\nSwitchName=spine Switches=l[1-2]\n")
    words = ("--topology", str(path), "--gpus", "24", "--bytes", "dp=1G")
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("nodes: n[1-3]")
    assert lines[at + 1] == "taken: 3 nodes, 2 leaves, 1 pod (by name)"
    assert lines[at + 2].startswith("order: by name; recommended below is ")
    assert lines[at + 2].endswith(", on other nodes: n[2,4-5]")
    assert "what limits the order by name:" in lines
    assert run(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["advice"] == "keep what you have" and found["how"] == "by name"
    assert sorted(found["recommended"]["nodes"]) == ["n2", "n4", "n5"]
    assert found["nodes"] == {
        **{"names": ["n1", "n2", "n3"], "devices": 24, "leaves": 2, "pods": 1, "slow": 0},
        **{"how": "by name", "bound": None, "gap": None},
    }
    assert run(*words, "--free", "n[2,4-5]", "--json") == 0  # kept too, on the nodes that the integer program takes
    found = json.loads(capsys.readouterr().out)["nodes"]
    assert (found["leaves"], found["how"], found["gap"]) == (1, "integer program", 0)


def test_slurm_is_asked_for_its_switches_and_idle_nodes(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(slurm, "sinfo", "n1\nn2\nn3\nn4\nn5\nn6\n")
    assert run("--topology", "slurm", "--free", "slurm", "--gpus", "24", "--oversubscription", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"]["names"] in (["n1", "n3", "n5"], ["n2", "n4", "n6"])  # of one leaf
    assert any("assumed" in note for note in found["plan"]["notes"])


def test_idle_nodes_that_the_topology_has_not_are_not_taken_for_all(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(slurm, "sinfo", "m1\nm2\n")
    assert run("--topology", "slurm", "--free", "slurm", "--gpus", "8") == 2
    assert "no node that Slurm says is idle is one of the topology" in capsys.readouterr().err


SINFO = """#!/bin/sh
echo "$*" >> "$0.asked"
case "$*" in *%N*) cat "$0.txt" ;; *) printf '%b' "{all}" ;; esac
"""


def sinfo(folder: Path, idle: str, kinds: str = "") -> Path:
    """Slurm's sinfo, with idle nodes, and the resources of all; return the file of what it was asked."""
    command(folder, "sinfo", idle)
    (folder / "sinfo").write_text(SINFO.replace("{all}", kinds))
    return folder / "sinfo.asked"


def test_idle_nodes_without_gpus_are_left_out_where_others_have_some(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sinfo(slurm, "n1 gpu:h100:8(S:0-1)\nn2 (null)\nn3 nvme:1,gpu:8\nn4 shard:gpu:8\nn4 (null)\nn5 gpu:8\nn5 gpu:8\n")
    words = ("--topology", "slurm", "--free", "slurm", "--json", "--gpus")
    assert run(*words, "24") == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["nodes"]["names"]) == ["n1", "n3", "n5"]
    assert "2 of 5 idle nodes have no GPU, says Slurm (gres/gpu): left out" in found["plan"]["notes"]
    assert run(*words, "32") == 2
    assert "32 GPUs are asked for, and the 3 free nodes have 24" in capsys.readouterr().err


def test_where_all_that_is_idle_has_no_gpu_that_is_said(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sinfo(slurm, "n1 (null)\nn2 (null)\n", "(null)\ngpu:8\n")
    words = ("--topology", "slurm", "--free", "slurm", "--gpus", "16")
    assert run(*words) == 2
    assert "2 of 2 idle nodes have no GPU, says Slurm (gres/gpu): wait for others" in capsys.readouterr().err
    sinfo(slurm, "n1 (null)\nn2 (null)\n", "(null)\n")  # a Slurm that counts no GPUs says nothing of them
    assert run(*words) == 0


def test_nodes_that_are_described_without_gpus_are_free_without(slurm: Path) -> None:
    name = read_topology(find("two-core")).cluster.arrays.nodes[0]
    sinfo(slurm, f"{name} (null)\n", "(null)\ngpu:8\n")
    assert run("--topology", "two-core", "--free", "slurm", "--gpus", "2") == 0


def test_a_partition_is_where_nodes_are_looked_for_and_the_job_runs(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = sinfo(slurm, "n1 gpu:8\nn2 gpu:8\n")
    words = ("--topology", "slurm", "--free", "slurm", "--gpus", "16", "--partition", "h100")
    assert run(*words, "--export", str(tmp_path / "out")) == 0
    assert asked.read_text() == "-h -p h100 -N -t idle -o %N %G\n"
    assert "\n#SBATCH --partition=h100\n" in (tmp_path / "out" / "job.sbatch").read_text()
    command(slurm, "sinfo", "")
    assert run(*words) == 2
    assert "no node is idle in h100, says Slurm: name some" in capsys.readouterr().err


def test_a_job_may_ask_for_any_nodes_on_few_switches(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ("--topology", "slurm", "--gpus", "16", "--export", str(out))
    assert run(*words, "--switches", "1@00:05:00") == 0
    said = capsys.readouterr().out
    assert "job.sbatch takes any nodes on so few switches" in said and "waits for just" not in said
    assert said.count("no scripts for named hosts") == 1
    job = (out / "job.sbatch").read_text()
    assert "\n#SBATCH --switches=1@00:05:00\n" in job and "nodelist" not in job
    assert run("--topology", "h100-nvlink", *words[2:], "--switches", "1") == 0
    said = capsys.readouterr().out  # no name that is made up reaches that job
    assert "made up" not in said and said.splitlines()[-1] == f"# next: sbatch {out}/job.sbatch COMMAND..."


def test_a_wrapper_may_seat_the_ranks(slurm: Path, tmp_path: Path) -> None:
    words = ("--topology", "slurm", "--gpus", "16", "--wrapper", "--slurm-version", "26.05")
    assert run(*words, "--export", str(tmp_path / "out")) == 0
    job = (tmp_path / "out" / "job.sbatch").read_text()
    assert '"$folder/ranks.sh"' in job and "export SLURM_HOSTFILE" not in job


def test_what_runs_in_a_job_that_has_its_nodes_is_not_queued_again(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    out = tmp_path / "a b"
    assert run("--export", str(out)) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"# next: bash '{out}'/job.sbatch COMMAND..."
    assert "# next: sbatch" not in said
    assert run("--export", str(out), "--switches", "1") == 2
    assert "--switches asks for any nodes, and this job has its nodes already" in capsys.readouterr().err


def test_in_a_job_of_more_devices_than_the_assumed_nodes_have_that_is_said(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "16")
    assert run() == 2
    assert "16 devices a node (--gpus-per-node, or SLURM_GPUS_ON_NODE of this job)" in capsys.readouterr().err


def test_in_a_job_its_nodes_are_ordered(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-6]")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert run("--json", "--algo", "dp=ring") == 0
    found = json.loads(capsys.readouterr().out)
    hosts = found["plan"]["seats"][::4]
    leaf = [int(seat["host"][1:]) % 2 for seat in hosts]
    assert len(leaf) == 6 and sum(a != b for a, b in zip(leaf, [*leaf[1:], leaf[0]], strict=True)) == 2


def test_nodes_of_a_job_are_not_chosen_among(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(advice, "choose", None)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1,3,2,4]")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    for gpus, nodes, leaves in (("16", 4, 2), ("8", 2, 1)):
        assert run("--json", "--algo", "dp=ring", "--gpus", gpus, "--oversubscription", "8") == 0
        found = json.loads(capsys.readouterr().out)["nodes"]
        assert (len(found["names"]), found["leaves"], found["how"], found["gap"]) == (nodes, leaves, "granted", None)


def test_in_a_job_nodes_say_their_own_place_where_scontrol_does_not(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(slurm, "scontrol", "")
    told = "".join(
        f"{task}: SLURM_TOPOLOGY_ADDR=spine.leaf{1 + node % 2}.n{node}\n"
        f"{task}: SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node\n"
        for task, node in enumerate(range(1, 5))
    )
    command(slurm, "srun", told)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    assert run("--allocation", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"]["leaves"] == 2 and len(found["plan"]["seats"]) == 32


def test_the_order_in_use_is_the_one_to_beat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n01\nn05\nn02\nn06\n")
    words = ("--topology", "l40s-pcie", "--gpus", "32", "--current", str(hosts), "--algo", "dp=ring")
    assert run(*words) == 0
    text = capsys.readouterr().out
    assert "in use " in text and "order" in text
    assert run(*words, "--json") == 0
    seconds = json.loads(capsys.readouterr().out)["plan"]["seconds"]
    assert seconds["recommended"] <= seconds["current"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--topology", "h100-nvlink", "--gpus", "1024"], "1024 GPUs are asked for, and the 32 free nodes have 256"),
        (["--topology", "h100-nvlink", "--gpus", "128", "--axes", "tp=8,dp=8"], "multiply to 64 ranks, and 128 GPUs"),
        (["--topology", "h100-nvlink", "--free", "x1", "--gpus", "8"], "x1 is to be chosen from, and is no node"),
        (["--topology", "h100-nvlink"], "how many"),
        (["--topology", "h100-nvlink", "--gpus", "8", "--free", ""], "--free names nodes to choose from"),
        (["--topology", "h100-nvlnk", "--gpus", "8"], "h100-nvlink"),
        (["--gpus", "8"], "advice needs a topology"),
        (["--topology", "h100-nvlink", "--gpus", "1"], "at least 2"),
        (["--topology", "h100-nvlink", "--axes", "tp=8,tp=2"], "tp stands there twice"),
        (["--topology", "h100-nvlink", "--axes", "dp=16", "--bytes", "tp=1G"], "unknown axis 'tp'"),
        (["--topology", "l40s-pcie", "--gpus", "2", "--bytes", "dp=0"], "--bytes says that no axis sends anything"),
        (["--topology", "h100-nvlink", "--axes", "tp=8,dp=2", "--bytes", "tp=0,dp=9x0"], "no axis sends anything"),
        (["--topology", "h100-nvlink", "--axes", "dp=16", "--algo", "dp=rign"], "did you mean ring"),
        (
            ["--topology", "h100-nvlink", "--axes", "dp=16", "--algo", "dp=nvls"],
            "no algorithm carries out the allreduce",
        ),
        (["--topology", "h100-nvlink", "--allocation", "--gpus", "8"], "SLURM_JOB_NODELIST is not set"),
        (
            ["--topology", "h100-nvlink", "--nodes", "2", "--gpus-per-node", "4"],
            "--gpus-per-node is for nodes nobody described, and h100-nvlink describes its own: leave it out",
        ),
        (["--topology", "h100-nvlink", "--gpus", "8", "--wrapper"], "--wrapper goes with --export: give both"),
        (["--topology", "h100-nvlink", "--gpus", "8", "--switches", "1"], "--switches goes with --export: give both"),
        (["--topology", "h100-nvlink", "--gpus", "8", "--partition", "p"], "--partition is for --free slurm, and"),
        (
            ["--topology", "h100-nvlink", "--gpus", "8", "--free", "slurm", "--partition", "p\n#SBATCH x"],
            "a partition's name has letters, digits and _.+-",
        ),
        *(
            (["--topology", "h100-nvlink", "--gpus", "8", "--export", "out", *more], says)
            for more, says in (
                (["--switches", "0"], "--switches is a whole number from 1 to 100000, not '0'"),
                (["--switches", "@1"], "--switches is a whole number from 1 to 100000, not ''"),
                (["--switches", "9" * 20], f"--switches is a whole number from 1 to 100000, not '{'9' * 20}'"),
                (["--switches", "200000"], "--switches is a whole number from 1 to 100000, not '200000'"),
                (["--partition", "gpu,,"], "a partition's name has letters, digits and _.+-, and a comma between two"),
                (["--switches", "2@"], "--switches is N or N@T, as 2@01:00:00, not '2@'"),
                (
                    ["--switches", "2@x"],
                    "the time to wait for --switches N@T is written as Slurm does (01:00:00)",
                ),
                (["--switches", ""], "--switches says nothing: leave it out"),
                (["--partition", ""], "--partition says nothing: leave it out"),
                (["--switches", "1", "--wrapper"], "--wrapper seats ranks on those recommended"),
            )
        ),
        (["--topology", "h100-nvlink", "--axes", "dp=16", "--preset", "gpt9"], "unknown preset"),
        (["--topology", "h100-nvlink", "--axes", "dp=16", "--batch", "64"], "give both --batch and --throughput"),
        (["--topology", "two-core", "--axes", "dp=2", "--picture", "p.gif"], "a picture is named NAME.png"),
        (
            ["--topology", "h100-nvlink", "--axes", "pp=2,dp=8", "--algo", "pp=ring,dp=ring"],
            "pp is a sendrecv, sent directly and by no algorithm, and --algo asks for ring: leave pp out of it",
        ),
        (
            ["--topology", "h100-nvlink", "--axes", "dp=16", "--collectives", "dp=sendrecv", "--algo", "dp=ring"],
            "dp is a sendrecv",
        ),
        *(
            (["--topology", "h100-nvlink", "--axes", "dp=16", name, "8"], f"{name} goes with {partner}: give both")
            for name, partner in {
                "--micro-batches": "--preset",
                "--micro-batch-size": "--batch",
                "--throughput": "--batch",
                "--slurm-version": "--export",
            }.items()
        ),
        (["--topology", "h100-nvlink", "--gpus", "16", "--other-cluster"], "--other-cluster goes with --results"),
        (
            ["--topology", "h100-nvlink", "--traffic", "no.npy", "--collectives", "dp=alltoall", "--axes", "dp=16"],
            "--traffic says all that is sent, each to each: leave out --axes, --collectives",
        ),
        (
            ["--topology", "h100-nvlink", "--traffic", "no.npy", "--micro-batches", "8", "--algo", "matrix=ring"],
            "leave out --micro-batches, --algo",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert error in said and said.startswith("commbench recommend: error: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("n01\n" * 9 + "n02\n" * 7, "puts more ranks on n01 than its 8 devices"),
        ("n01 slots=8\n", "has 8 ranks, and 16 are to be placed"),
        ("n01 slots=8\nq7 slots=8\n", "names q7, which is no node"),
        ("n01 8 things\n", ":1: a line of a host file"),
        ("{}", "a placement is what"),
        ('{"format": 1, "seats": [{"host": "n01", "device": true}]}', "a device's number"),
        (
            '{"format": 1, "topology": "", "seats": [{"host": "n01", "device": 0}], "vendor": [1]}',
            "its vendor is no text",
        ),
    ],
)
def test_an_order_in_use_that_contradicts_is_refused(
    text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text(text)
    assert run("--topology", "h100-nvlink", "--gpus", "16", "--current", str(tmp_path / "hosts")) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1


def test_a_faulty_topology_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=spine Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n5\n")
    assert run("--topology", str(path), "--gpus", "16") == 2
    said = capsys.readouterr().err
    assert f"{path}:" in said and said.count("\n") == 1


def in_place_of_results(monkeypatch: pytest.MonkeyPatch, launches: list[list[Record]], kind: str = OWN) -> None:
    """Launches in place of a folder."""
    runs = [SimpleNamespace(records=records, format=kind, source="here") for records in launches]
    monkeypatch.setattr(collect, "collect", lambda paths: runs)


def measured(monkeypatch: pytest.MonkeyPatch, rename: str = "{}", odd: str = "") -> None:
    """Records of pairs of nodes of l40s-pcie, of which n01 and n02 are twice as slow together, in place of a folder."""
    import numpy as np

    from commbench.model import cost
    from commbench.model.library import LIBRARIES
    from commbench.model.placement import Placement
    from tests.model.test_fit import SIZES, record

    cluster = read_topology(find("l40s-pcie")).cluster
    cluster = replace(cluster, step_us=1.0)
    records = []
    for first in range(0, 16, 2):
        placement = Placement(cluster, np.array([first, first + 1]), np.zeros(2, dtype=np.int64))
        found = cost.cost("allreduce", "ring", placement, LIBRARIES["mpi"]).seconds(np.array(SIZES, dtype=float))
        names = [cluster.arrays.nodes[node] for node in (first, first + 1)]
        hosts = ",".join(odd if odd and name == "n03" else rename.format(name) for name in names)
        for size, seconds in zip(SIZES, found.tolist(), strict=True):
            about = {"algorithm": "ring", "observed_algorithm": "ring", "size": size, "nranks": 2, "nnodes": 2}
            where = {"ranks": f"{first}-{first + 1}", "hosts": hosts, "group": f"pair {first}"}
            records.append(record(**about, **where, time_us=seconds * 1e6 * (2 if first == 0 else 1)))
    in_place_of_results(monkeypatch, [records])


def test_nodes_that_records_show_slow_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch)
    words = ("--topology", "l40s-pcie", "--free", "n[01-04]", "--nodes", "2", "--results", "here", "--json")
    assert run(*words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"]["slow"] == 0
    assert any(note.startswith("fitted to") for note in found["plan"]["notes"])
    assert found["error_source"].startswith("how far off the fit is")


def test_results_may_lie_in_several_places(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []

    def keep(paths: list[str]) -> list[object]:
        asked.append(paths)
        return []

    monkeypatch.setattr(collect, "collect", keep)
    assert run("--results", "monday", "tuesday", "--topology", "two-core", "--gpus", "2") == 0
    assert asked == [["monday", "tuesday"]]


def test_results_of_other_nodes_are_refused_unless_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, rename="x{}")
    words = ("--topology", "l40s-pcie", "--nodes", "2", "--results", "here")
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert "is of hosts that l40s-pcie does not have (xn01, xn02, xn03)" in said and said.count("\n") == 1
    assert run(*words, "--other-cluster") == 0
    assert "left out, as --other-cluster asks" in capsys.readouterr().out


def test_results_may_call_hosts_with_their_domain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--topology", "l40s-pcie", "--free", "n[01-04]", "--nodes", "2", "--results", "here", "--json")
    measured(monkeypatch)
    assert run(*words) == 0
    expected = json.loads(capsys.readouterr().out)
    measured(monkeypatch, rename="{}.hpc.example")
    assert run(*words) == 0
    found = json.loads(capsys.readouterr().out)
    said = "the results call n01 n01.hpc.example and 15 more alike: the same hosts but for the domain"
    assert said in found["plan"]["notes"]
    found["plan"]["notes"].remove(said)
    assert found["plan"]["seats"] == expected["plan"]["seats"]
    assert found["plan"]["notes"] == expected["plan"]["notes"]


@pytest.mark.parametrize("odd", ["n04.hpc.other", "n04", "q9"])
def test_names_that_could_be_another_hosts_are_not_taken_for_one(
    odd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """n03 under a name that is also that of n04.hpc.example without or with another domain, or nobody's."""
    measured(monkeypatch, rename="{}.hpc.example", odd=odd)
    assert run("--topology", "l40s-pcie", "--nodes", "2", "--results", "here") == 2
    said = capsys.readouterr().err
    assert f"does not have ({'q9' if odd == 'q9' else 'n04.hpc.example'}" in said and "n01" not in said


# What results say of algorithms: the ring takes half of the time of the library's own choice, at all sizes.


def sweeps(library: str, **changes: object) -> list[list[Record]]:
    """Five launches on two-core."""
    from tests.model.test_fit import run as sweep

    cluster = replace(read_topology(find("two-core")).cluster, step_us=0.3)
    found = []
    for seed in range(5):
        ring = sweep(cluster, [2], ["ring"], noise=0.01, seed=seed, library=library, **changes)
        auto = [replace(one, algorithm="auto", observed_algorithm=None, time_us=2 * (one.time_us or 0)) for one in ring]
        found.append([*ring, *auto])
    return found


WORDS = ("--topology", "two-core", "--axes", "dp=2", "--results", "here")


def test_algorithms_are_chosen_from_results_and_exported_for_their_library_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_place_of_results(monkeypatch, sweeps("MPICH 5.0.2"))
    assert run(*WORDS, "--export", str(tmp_path / "mpich")) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if "measured: 5 launches" in line]
    assert [row[:6] for row in table] == [["allreduce", "2", "on", "1", "node", "all"]] and table[0][6] == "ring"
    settings = mpich_settings.parse((tmp_path / "mpich" / "mpich.env").read_text())
    assert settings["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"] == "ring"
    assert not (tmp_path / "mpich" / "openmpi_rules.conf").exists()
    (choice,) = read(tmp_path / "mpich" / "placement.json").choices
    assert choice.library == "MPICH 5.0.2" and choice.gain == pytest.approx(2.0, rel=0.03)

    in_place_of_results(monkeypatch, sweeps("Open MPI 5.0.11"))
    assert run(*WORDS, "--export", str(tmp_path / "openmpi")) == 0
    rules = openmpi_rules.parse((tmp_path / "openmpi" / "openmpi_rules.conf").read_text())
    assert rules.version == 2  # as 5.0.11 reads it
    number = openmpi_rules.ALGORITHMS["allreduce"]["ring"]
    assert number in {rule.algorithm for rule in rules.rules[openmpi_rules.COLLECTIVES["allreduce"], 2]}
    assert not (tmp_path / "openmpi" / "mpich.env").exists()


@pytest.mark.parametrize(
    ("library", "known"),
    [
        *(("Open MPI " + release, None) for release in ("5..0", "5.0.1.2.3", "9" * 5000 + ".1", "1.2..3", "next")),
        ("Open MPI v5.0.", (5, 0)),
        ("Open MPI 5.0.11rc1", (5, 0, 11)),
        ("Open MPI v5.1.0a1", (5, 1, 0)),
        ("MPICH 5.0.2", None),
    ],
)
def test_a_version_of_open_mpi_that_cannot_be_read_is_not_known(library: str, known: tuple[int, ...] | None) -> None:
    assert (
        job.open_mpi(replace(whole(["n1"]), choices=(replace(choice("allreduce", "ring"), library=library),))) == known
    )


def test_an_export_does_without_a_version_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rules have the form then that all versions read."""
    in_place_of_results(monkeypatch, sweeps("Open MPI 5.0.1.2.3"))
    assert run(*WORDS, "--export", str(tmp_path / "out")) == 0
    assert openmpi_rules.parse((tmp_path / "out" / "openmpi_rules.conf").read_text()).version == 1


def nccl_run(
    folder: Path,
    collective: str,
    times: dict[str, tuple[float, ...]],
    seed: int,
    nodes: int = 2,
    library: str = "NCCL 2.30.7+cuda13",
) -> None:
    """A run of NCCL's on nodes of h100-nvlink as a launch leaves it: microseconds by algorithm, from 1 MiB on."""
    chance = random.Random(seed)
    n, hosts = 8 * nodes, ",".join(f"n{place + 1:02}" for place in range(nodes))
    where = group(ranks=f"0-{n - 1}", order=list(range(n)), hosts=hosts, nranks=n, nnodes=nodes)
    about = facts(collective=collective, backend="nccl", library=library, method="loop", groups={"all": where})
    cells, visits = [], []
    for algorithm, by_size in times.items():
        for place, time in enumerate(by_size):
            protocol = None if algorithm == "auto" else "simple"
            cells.append(cell(algorithm, 1 << (20 + 2 * place), protocol=protocol, buffer="device"))
            ran = {"observed_algorithm": algorithm, "observed_protocol": protocol} if protocol else {}
            visits.append(visit([time * chance.gauss(1, 0.002)], cell=len(cells) - 1, **ran))
    with closing(Journal.create(folder, manifest(*cells, plan={**manifest(*cells)["plan"], "facts": about}))) as it:
        for one in visits:
            it.append(one)


def test_what_nccl_is_faster_with_at_all_sizes_becomes_its_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From runs on disk to nccl.env: tree wins everywhere; the ring of all-gather at one size alone."""
    auto, tree, ring = (100.0, 200.0, 600.0), (80.0, 150.0, 500.0), (90.0, 250.0, 900.0)
    for seed in range(5):
        nccl_run(tmp_path / "runs" / f"r{seed}", "allreduce", {"auto": auto, "tree": tree, "ring": ring}, seed)
        nccl_run(tmp_path / "runs" / f"g{seed}", "allgather", {"auto": auto, "ring": ring}, 10 + seed)
    words = ("--topology", "h100-nvlink", "--free", "n[01-02]", "--nodes", "2", "--results", str(tmp_path / "runs"))
    assert run(*words, "--export", str(tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert "  allreduce   16 on 2 nodes  all    tree simple" in text and "  allgather " not in text
    (choice,) = read(tmp_path / "out" / "placement.json").choices
    assert (choice.least, choice.below, choice.library) == (0, None, "NCCL 2.30.7+cuda13")
    assert choice.gain == pytest.approx((100 / 80 * 200 / 150 * 600 / 500) ** (1 / 3), rel=0.01)
    said = subprocess.run(
        ["bash", "-euc", f"source {tmp_path}/out/nccl.env; env"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    found = dict(line.split("=", 1) for line in said.stdout.splitlines() if line.startswith("NCCL_"))
    assert found == {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:simple"}
    assert "nccl.env can say an algorithm" in text and not (tmp_path / "out" / "nccl_tuner.csv").exists()


@pytest.mark.parametrize("library", ["NCCL 2.30.7+cuda13", "MPICH 5.0.2"])
def test_an_algorithm_that_harms_within_a_node_is_not_asked_for_on_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], library: str
) -> None:
    """Settings hold for communicators of every size; on one node the library's own choice wins, which is no choice."""
    two: dict[str, tuple[float, ...]] = {"auto": (100.0, 200.0, 600.0), "tree": (80.0, 150.0, 500.0)}
    one: dict[str, tuple[float, ...]] = {"auto": (50.0, 100.0, 300.0), "tree": (150.0, 300.0, 900.0)}
    for seed in range(5):
        nccl_run(tmp_path / "runs" / f"two{seed}", "allreduce", two, seed, library=library)
        nccl_run(tmp_path / "runs" / f"one{seed}", "allreduce", one, 20 + seed, 1, library)
    words = ("--topology", "h100-nvlink", "--free", "n[01-02]", "--nodes", "2", "--results", str(tmp_path / "runs"))
    assert run(*words, "--export", str(tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert "# allreduce: tree simple is best with 16 ranks on 2 nodes and left out, since it is slower than" in text
    assert read(tmp_path / "out" / "placement.json").choices == ()
    assert {"nccl.env", "mpich.env"}.isdisjoint(path.name for path in (tmp_path / "out").iterdir())


def test_without_results_algorithms_are_predicted_and_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*WORDS[:4], "--export", str(tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert "algorithms, predicted and so not exported" in text
    assert text.count("no settings of algorithms: the library's own choice stays") == 1
    assert not any(line.startswith("#") and ": no " in line for line in text.splitlines())
    assert read(tmp_path / "out" / "placement.json").choices == ()
    assert {"mpich.env", "openmpi_rules.conf"}.isdisjoint(path.name for path in (tmp_path / "out").iterdir())


def test_logs_of_others_choose_no_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_place_of_results(monkeypatch, sweeps("MPICH 5.0.2"), kind="OSU")
    assert run(*WORDS, "--export", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "algorithms: the library's own choice stays" in said
    assert "no settings of algorithms" in said and "--results chooses" not in said  # who gave them knows


def test_results_that_cannot_be_compared_choose_no_algorithm_and_say_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_place_of_results(monkeypatch, [*sweeps("MPICH 5.0.2"), *sweeps("MPICH 4.1.3")])
    assert run(*WORDS) == 0
    text = capsys.readouterr().out
    assert "# no algorithm is chosen: algorithms are chosen from records of one library" in text
    assert "# fitted to records of MPICH 4.1.3, MPICH 5.0.2 alike: " in text
    assert "algorithms: the library's own choice stays, as none is chosen from these results (see above)" in text
    assert "show none that is faster" not in text


def test_a_fit_names_the_libraries_of_the_records_that_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of Gloo nobody knows which algorithm ran, so that its records are left out."""
    gloo = [[replace(one, observed_algorithm=None, algorithm="auto") for one in its] for its in sweeps("Gloo")[:1]]
    in_place_of_results(monkeypatch, [*sweeps("MPICH 5.0.2"), *gloo])
    assert run(*WORDS) == 0
    text = capsys.readouterr().out
    assert "# fitted to " in text and "the library did not say which algorithm ran" in text
    assert " alike: " not in text


def test_sizes_are_told_to_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """35,300,000,000 bytes are 32.9 GiB, at which no power of two ends."""
    words = (*WORDS[:4], "--bytes", "dp=35300000000")
    assert run(*words) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("  predicted")]
    assert row[:4] == ["allreduce", "2", "32.9", "GiB"]
    in_place_of_results(monkeypatch, sweeps("MPICH 5.0.2"))
    assert run(*words, *WORDS[4:]) == 0
    assert "dp sends 32.9 GiB at once, and the largest record is of " in capsys.readouterr().out


# The batch, and a picture


def test_a_batch_is_split_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "devices.csv").write_text("rank,samples_per_second,most_samples\n0,300,\n1,100,\n")
    words = (*WORDS[:4], "--throughput", str(tmp_path / "devices.csv"), "--batch", "64", "--micro-batch-size", "8")
    assert run(*words, "--export", str(tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert [line.split() for line in text.splitlines() if line.startswith(("  0 ", "  1 "))] == [
        ["0", "48", "6", "32", "1.5000"],
        ["1", "16", "2", "32", "0.5000"],
    ]
    assert "a step computes 0.16 s" in text and "split equally it takes 0.32 s, 2.00 x as long" in text
    plan = read(tmp_path / "out" / "placement.json")
    assert plan.samples == (48, 16) and plan.weights == (1.5, 0.5)
    assert run(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["batch"]["gain"] == 2.0


def test_a_batch_is_shared_by_the_data_parallel_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "devices.csv").write_text("rank,samples_per_second\n0,300\n1,100\n")
    words = ("--batch", "64", "--throughput", str(tmp_path / "devices.csv"), "--topology", "h100-nvlink")
    assert run(*words, "--axes", "tp=8,dp=2") == 0
    assert run(*words, "--axes", "tp=2,dp=4") == 2
    assert "has 2 ranks, and 4 share the batch" in capsys.readouterr().err


def test_a_picture_is_drawn(slurm: Path, tmp_path: Path) -> None:
    pytest.importorskip("seaborn")
    path = tmp_path / "placement.svg"
    words = ("--topology", "slurm", "--picture", str(path), "--oversubscription", "8")
    assert run(*words, "--gpus", "24", "--free", "n[1-6]") == 0
    text = path.read_text()
    for label in ("by name: ", "recommended: ", "leaf1", "n1: 0-7"):
        assert f"<!-- {label}" in text
    assert run(*words, "--gpus", "16", "--free", "n[1,3]") == 0
    text = path.read_text()
    assert "<!-- kept, as it is by name: " in text and "recommended" not in text
