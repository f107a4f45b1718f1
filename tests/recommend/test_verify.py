"""The check at the start of a job, under each launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.recommend import plan as plans
from commbench.recommend.plan import Plan, Seat, read
from commbench.verify import device_of
from tests.mpi.launch import Done, launch, python, run
from tests.recommend.plans import whole

HERE = os.uname().nodename


def written(folder: Path, plan: Plan) -> str:
    (folder / "placement.json").write_text(plan.to_json())
    return str(folder / "placement.json")


def here(ranks: int, *others: int) -> Plan:
    """All ranks on this host, but those named: they are planned elsewhere."""
    seats = (Seat("elsewhere" if rank in others else HERE, 0) for rank in range(ranks))
    return Plan("t", tuple(seats), vendor="cpu")


# mpirun


@pytest.mark.mpi
def test_ranks_that_sit_as_planned_say_so_once(tmp_path: Path) -> None:
    for plan in (written(tmp_path, here(3)), str(tmp_path)):  # the file, or its folder
        done = launch(3, "commbench.verify", plan)
        assert (done.code, done.stdout, done.stderr) == (0, "commbench verify: all 3 ranks sit as planned\n", "")


@pytest.mark.mpi
@pytest.mark.parametrize(("words", "code", "level"), [((), 1, "error"), (("--warn",), 0, "warning")])
def test_ranks_that_sit_elsewhere_are_named(tmp_path: Path, words: tuple[str, ...], code: int, level: str) -> None:
    done = launch(4, "commbench.verify", written(tmp_path, here(4, 1, 3)), *words)
    assert done.code == code
    assert done.stderr.splitlines() == [
        f"commbench verify: {level}: rank {rank} is planned on elsewhere, device 0, and sits on {HERE}"
        for rank in (1, 3)
    ]


@pytest.mark.mpi
def test_of_many_wrong_ranks_some_are_named(tmp_path: Path) -> None:
    done = launch(20, "commbench.verify", written(tmp_path, here(20, *range(20))), timeout=120)
    lines = done.stderr.splitlines()
    assert (done.code, len(lines)) == (1, 17)
    assert lines[-1] == "commbench verify: error: 4 more ranks sit elsewhere than planned"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("{}", "a placement is what `commbench recommend` writes"),
        (replace(here(3), samples=(8, 8, 8)).to_json(), "it has 3 samples, and 0 weights"),
        (here(2).to_json(), "the plan has 2 ranks, and this job 3: start as many as were planned"),
    ],
)
def test_a_plan_that_does_not_fit_is_bad_usage(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "placement.json").write_text(content)
    done = launch(3, "commbench.verify", str(tmp_path / "placement.json"))
    assert done.code == 2
    (line,) = done.complaints
    assert says in line


# Launchers without MPI: each rank for itself


def alone(plan: Plan, folder: Path, env: Mapping[str, str], *words: str) -> Done:
    return run(python("commbench.verify", written(folder, plan), *words), env=env)


def slurm_task(rank: int, size: int, host: str, local: int, **more: str) -> dict[str, str]:
    ours = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(local)}
    return {**ours, "SLURMD_NODENAME": host, **more}


def test_a_task_of_slurm_goes_by_the_name_that_slurm_has_for_its_node(tmp_path: Path) -> None:
    plan = whole(["n02", "n01"], 2)
    good = alone(plan, tmp_path, slurm_task(0, 4, "n02", 0, CUDA_VISIBLE_DEVICES="0"))
    assert (good.code, good.stderr) == (0, "")
    assert good.stdout == "commbench verify: rank 0 of 4 sits as planned, and so do all that say nothing\n"
    assert alone(plan, tmp_path, slurm_task(2, 4, "n01", 0, CUDA_VISIBLE_DEVICES="0")).stdout == ""
    bad = alone(plan, tmp_path, slurm_task(2, 4, "n02", 0, CUDA_VISIBLE_DEVICES="1"))
    assert bad.code == 1
    assert bad.stderr == "commbench verify: error: rank 2 is planned on n01, device 0, and sits on n02 on device 1\n"
    assert alone(plan, tmp_path, slurm_task(2, 4, "n02", 0), "--warn").code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{", "cannot be read"),
        (b'{"a":' * 100_000, "recursion"),
        (b'{"format": 1, "seats": 5}', "not iterable"),
        (b'{"format": 1, "seats": [{"host": "n1", "device": ' + b"9" * 5000 + b"}]}", "4300 digits"),
        *(
            (
                b'{"format": 1, "topology": "t", "seats": [%b]}' % seat.encode(),
                "a seat has a host's name and a device's",
            )
            for seat in (
                "null",
                '"n1"',
                '{"host": "n1"}',
                '{"host": "n1", "device": true}',
                '{"host": "n1", "device": -1}',
                '{"host": "n1", "device": 0, "nic": ["x"]}',
                '{"host": "n1", "device": 0, "evil": 1}',
                '{"host": "n1\\nn2", "device": 0}',
                '{"host": "\\u001b[31m", "device": 0}',
                '{"host": "%s", "device": 0}' % ("n" * 1_000_000),
            )
        ),
    ],
)
def test_a_file_that_is_no_plan_is_bad_usage_in_one_short_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "placement.json").write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        read(tmp_path / "placement.json")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_a_file_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LARGEST_FILE", 1 << 20)
    with pytest.raises(UsageError, match="/dev/zero: a placement has at most 1 MiB"):
        read("/dev/zero")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "the plan has 16 ranks, and nothing tells which one this is"),
        ({"RANK": "3"}, "the plan has 16 ranks, and nothing tells which one this is"),
        ({"RANK": "x", "WORLD_SIZE": "16"}, "the plan has 16 ranks, and nothing tells which one this is"),
        ({"RANK": "16", "WORLD_SIZE": "16"}, "the launcher calls this rank 16 of 16"),
        ({"RANK": "0", "WORLD_SIZE": "15"}, "the plan has 16 ranks, and this job 15"),
    ],
)
def test_ranks_that_the_plan_does_not_have_are_bad_usage(tmp_path: Path, env: Mapping[str, str], says: str) -> None:
    done = alone(whole(["n1", "n2"]), tmp_path, {**env, "LOCAL_RANK": "0"})
    assert done.code == 2
    (line,) = done.complaints
    assert says in line


def test_a_missing_plan_is_told_by_one_rank_of_a_node(tmp_path: Path) -> None:
    command = python("commbench.verify", str(tmp_path / "none.json"))
    first, second = (run(command, env=slurm_task(8 + local, 16, "n02", local)) for local in (0, 1))
    assert (first.code, second.code) == (2, 2)
    assert "none.json: cannot be read" in first.stderr
    assert second.stderr == ""


def test_ranks_of_a_wrapper_or_torchrun_are_theirs(tmp_path: Path) -> None:
    plan = whole(["n02", "n01"], 2)
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURMD_NODENAME": "n01", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert alone(plan, tmp_path, env).code == 0
    torchrun = {**slurm_task(1, 2, "n01", 0), **env, "TORCHELASTIC_RUN_ID": "x"}
    assert alone(plan, tmp_path, torchrun).code == 0
    assert alone(plan, tmp_path, {**env, "CUDA_VISIBLE_DEVICES": "1,0"}).code == 1


def test_devices_that_are_not_told_by_number_are_not_compared(tmp_path: Path) -> None:
    plan = whole(["n02"], 1)
    done = alone(plan, tmp_path, slurm_task(0, 1, "n02", 0, CUDA_VISIBLE_DEVICES="GPU-8932f937"))
    assert done.code == 0
    assert "(hosts only: the environment tells no device by its number)" in done.stdout


def test_a_device_that_slurm_numbers_anew_is_told_by_its_own_number(tmp_path: Path) -> None:
    """As under ConstrainDevices, where each task is shown its one device as number 0."""
    plan = whole(["n02"], 4)
    own = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1"}
    assert alone(plan, tmp_path, slurm_task(1, 4, "n02", 1, **own)).code == 0
    bad = alone(plan, tmp_path, slurm_task(2, 4, "n02", 2, **own))
    assert bad.code == 1
    assert "rank 2 is planned on n02, device 2, and sits on n02 on device 1" in bad.stderr


LOCAL_1 = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("vendor", "environment", "device"),
    [
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "5"}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "5,6", **LOCAL_1}, 6),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "5", "ROCR_VISIBLE_DEVICES": "1", **LOCAL_1}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "5,6"}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "", **LOCAL_1}, None),
        ("nvidia", LOCAL_1, 1),
        ("nvidia", {}, None),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "2"}, 6),
        (
            "amd",
            {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1"},
            5,
        ),
        ("amd", {"HIP_VISIBLE_DEVICES": "3"}, 3),
        ("", {"CUDA_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "2"}, 2),
        ("cpu", LOCAL_1, None),
        # Those that Slurm granted have the node's numbers; those that it shows have too, or count from 0.
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1"}, 1),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1"}, 1),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}, 0),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "4,5,6,7", **LOCAL_1}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_STEP_GPUS": "4,5,6,7", **LOCAL_1}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "5", "SLURM_STEP_GPUS": "4,5,6,7"}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1,2,3"}, None),  # 1, or the second: 2
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "3", "SLURM_STEP_GPUS": "1"}, 3),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": "5"}, 5),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_GPUS": "5"}, 0),  # another node's
        ("amd", {"ROCR_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "6"}, 6),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "6,7"}, 7),
        ("amd", {"HIP_VISIBLE_DEVICES": "3", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}, 3),
    ],
)
def test_the_device_of_a_rank(vendor: str, environment: Mapping[str, str], device: int | None) -> None:
    assert device_of(environment, replace(whole(["n1"]), vendor=vendor)) == device
