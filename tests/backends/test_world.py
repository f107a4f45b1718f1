"""What launchers say of a process, launchers and libraries that do not fit, and how ranks agree."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from commbench import cgroup
from commbench.backends.world import Launch, cores_of_the_job, launch, mismatch
from tests.mpi.launch import MPIRUN, library, mpirun, run

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}


def told(environment: dict[str, str]) -> tuple[str, int, int]:
    found = launch(environment)
    return found.launcher, found.rank, found.size


def test_without_a_launcher_a_process_is_alone() -> None:
    assert told({}) == ("", 0, 1)
    assert told({"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) == ("", 0, 1)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [(OPEN_MPI, "Open MPI"), (HYDRA, "MPICH"), (SRUN, "Slurm"), (TORCHRUN, "torchrun")],
    ids=["Open MPI", "Hydra", "srun", "torchrun"],
)
def test_each_launcher_tells_rank_and_size(environment: dict[str, str], launcher: str) -> None:
    assert told(environment) == (launcher, 2, 4)


def test_an_mpirun_inside_a_slurm_job_is_what_launched() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert told(OPEN_MPI | batch) == ("Open MPI", 2, 4)
    assert told(HYDRA | batch) == ("MPICH", 2, 4)


def test_srun_that_speaks_pmi_is_srun() -> None:
    assert told({"PMI_RANK": "2", "PMI_SIZE": "4"} | SRUN) == ("Slurm", 2, 4)


@pytest.mark.parametrize(
    ("environment", "on_node"), [(OPEN_MPI, 4), (HYDRA, 2), (SRUN, 2), (TORCHRUN, 4), ({}, 1), ({"PMI_RANK": "0"}, 1)]
)
def test_launchers_tell_how_many_ranks_share_a_node(environment: dict[str, str], on_node: int) -> None:
    assert launch(environment).on_node == on_node
    crowd = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS_PER_NODE": "2(x4)"}
    assert launch(crowd).on_node == 1  # not told in a way that is known


def test_launchers_tell_which_rank_of_its_node_a_process_is() -> None:
    assert launch({}).node_rank is None
    assert launch(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "3"}).node_rank == 3
    assert launch(HYDRA).node_rank == 0
    assert launch(SRUN | {"SLURM_LOCALID": "1"}).node_rank == 1
    assert launch({"PMI_RANK": "2", "PMI_SIZE": "4"} | SRUN | {"SLURM_LOCALID": "1"}).node_rank == 1
    assert launch(TORCHRUN | {"LOCAL_RANK": "2"}).node_rank == 2
    assert launch(TORCHRUN | {"LOCAL_RANK": "first"}).node_rank is None


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5"])
def test_variables_that_are_no_numbers_are_passed_over(value: str) -> None:
    assert told({"OMPI_COMM_WORLD_RANK": value, "OMPI_COMM_WORLD_SIZE": "4"}) == ("", 0, 1)
    assert told({"PMI_RANK": "0", "PMI_SIZE": value} | TORCHRUN) == ("torchrun", 2, 4)


def test_half_of_a_launchers_variables_is_no_launcher() -> None:
    assert told({"OMPI_COMM_WORLD_RANK": "1"}) == ("", 0, 1)
    assert told({"RANK": "1"}) == ("", 0, 1)


def test_a_launch_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Launch().rank = 1  # type: ignore[misc]


# Which launcher can start which library


def refusal(launcher: str, vendor: str, path: str = "/opt/lib/libmpi.so.12") -> str:
    return mismatch(Launch(launcher, 0, 4), vendor, path)


@pytest.mark.parametrize(
    ("launcher", "vendor"),
    [
        *(("Open MPI", "Open MPI"), ("MPICH", "MPICH"), ("MPICH", "Intel MPI"), ("MPICH", "MVAPICH")),
        *(("Slurm", "Open MPI"), ("Slurm", "MPICH"), ("", "Open MPI"), ("", "MPICH")),
        *(("Open MPI", "Some vendor's MPI"), ("MPICH", "HPE Cray MPICH")),  # not known: the sizes tell later
    ],
)
def test_what_fits_or_is_not_known_goes_on(launcher: str, vendor: str) -> None:
    assert refusal(launcher, vendor) == ""


def test_a_launcher_of_one_mpi_with_the_library_of_another_is_refused_with_the_remedy() -> None:
    assert refusal("Open MPI", "MPICH") == (
        "this job was launched by Open MPI's mpirun, but mpi4py loads MPICH (/opt/lib/libmpi.so.12): use the mpirun "
        "that belongs to MPICH, or point MPI4PY_LIBMPI at Open MPI's libmpi"
    )
    assert refusal("MPICH", "Open MPI", "").startswith(
        "this job was launched by MPICH's mpirun, but mpi4py loads Open MPI (path unknown): use the mpirun"
    )
    assert "Intel MPI" in refusal("Open MPI", "Intel MPI")


@pytest.mark.parametrize("vendor", ["Open MPI", "MPICH", "Some vendor's MPI"])
def test_torchrun_launches_no_mpi(vendor: str) -> None:
    assert refusal("torchrun", vendor) == "the mpi backend cannot be launched by torchrun: use mpirun or srun"


# The cores that a process may use


@pytest.mark.parametrize(
    ("quota", "cores"), [(None, 4), (8.0, 4), (2.0, 2), (1.5, 2), (0.2, 1), (3.4, 3)], ids=lambda value: str(value)
)
def test_the_cores_are_those_of_the_mask_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 7}, raising=False)
    monkeypatch.setattr(cgroup, "cores", lambda: quota)
    assert cores_of_the_job() == cores


# How ranks agree

AGREE = """
import numpy as np
from commbench.backends._mpi_world import open_mpi

world = open_mpi()
me, n = world.rank, world.size
assert (n, world.nodes, world.node_rank, world.node_size) == (3, 1, me, 3)
assert world.cores >= 1
assert world.crowded == (n > world.cores)
assert world.largest(me, -me, 2**62 - me) == (2, 0, 2**62)
assert world.total(me, 1, True) == (3, 3, 3)
assert world.command((me, 7)) == (0, 7)
for speakers, text in (((), ""), ((2,), "from 2"), ((1, 2), "from 1")):
    assert world.first_text(f"from {me}" if me in speakers else "") == text
assert world.gather_text("é" * me) == (["", "é", "éé"] if me == 0 else None)
assert world.gather_text("") == (["", "", ""] if me == 0 else None)
assert world.gather(me) == ([0, 1, 2] if me == 0 else None)
assert world.broadcast(str(me)) == "0"
assert world.share_on_node(str(me)) == "0"
world.meet_on_node()
for how, merged in (("rank0", [0.0, 10.0]), ("mean", [1.0, 10.0]), ("min", [0.0, 10.0]), ("max", [2.0, 10.0])):
    found = world.merge(np.array([float(me), 10.0]), how)
    assert me or found.tolist() == merged, how
assert world.node == 0
pairs = np.array([float(me), -float(me)])
assert world.elementwise(pairs, "min").tolist() == [0.0, -2.0]
assert world.elementwise(pairs, "max").tolist() == [2.0, 0.0]
assert world.gather_numbers(me / 2) == ([0.0, 0.5, 1.0] if me == 0 else [])
assert world.hand_over("kept", 0) == "kept"
if me in (0, 2):
    assert world.hand_over(f"from {me}", 2) == ("from 2" if me == 0 else None)
group = world.subgroup((2, 0))
assert (group is None) == (me == 1)
if group is not None:
    assert (group.rank, group.size, group.nodes, group.node_rank) == ({2: 0, 0: 1}[me], 2, 1, {2: 0, 0: 1}[me])
    assert group.command((me,)) == (2,)
    assert group.gather_text(str(me)) == (["2", "0"] if me == 2 else None)
    group.close()
assert world.total(1) == (3,)
world.close()
"""


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_ranks_come_to_one_answer(tmp_path: Path) -> None:
    (tmp_path / "agree.py").write_text(AGREE, encoding="utf-8")
    done = run(mpirun(3, "agree"), cwd=tmp_path)
    assert done.code == 0, done.stderr
