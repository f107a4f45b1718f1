"""The facts of a machine: what changes numbers is kept, secrets never."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from itertools import pairwise
from typing import Any

import pytest

from commbench import cgroup
from commbench.results import manifest

CHANCE = random.Random("manifest")


def test_variables_of_communication_libraries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "NCCL_ALGO": "Ring",
        "UCX_TLS": "rc",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "FI_PROVIDER": "efa",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_CPU_BIND": "cores",
    }
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    assert wanted.items() <= manifest.environment().items()


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH", "HOME", "SLURM_JWT", "WANDB_API_KEY", "MY_NCCL_ALGO"),
        *("NCCL_AUTH_TOKEN", "UCX_SECRET", "OMPI_MCA_PASSWORD", "FI_API_KEY", "MPI4PY_CREDENTIALS", "PMIX_MCA_COOKIE"),
    ],
)
def test_no_other_variable_and_no_secret_is_kept(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hunter2")
    assert name not in manifest.environment()
    assert "hunter2" not in json.dumps([manifest.environment(), manifest.machine()])


def test_a_secret_with_a_lower_case_name_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_MCA_psec_token", "hunter2")
    assert "hunter2" not in json.dumps(manifest.environment())


@pytest.mark.parametrize(
    ("cpus", "text"),
    [({0}, "0"), ({0, 1}, "0-1"), ({0, 1, 2, 3, 8}, "0-3,8"), ({2, 4, 6}, "2,4,6"), ({9, 10, 11, 0}, "0,9-11")],
)
def test_the_cpus_of_a_process_are_told_as_ranges(monkeypatch: pytest.MonkeyPatch, cpus: set[int], text: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus, raising=False)
    assert manifest.affinity() == text


def test_the_ranges_hold_each_cpu_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(100):
        cpus = set(CHANCE.sample(range(64), CHANCE.randint(1, 64)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: cpus, raising=False)
        ends = [[int(end) for end in part.split("-")] for part in manifest.affinity().split(",")]
        assert [cpu for part in ends for cpu in range(part[0], part[-1] + 1)] == sorted(cpus)
        assert all(after[0] > before[-1] + 1 for before, after in pairwise(ends))


def test_where_affinity_is_unknown_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert manifest.affinity() == ""


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB"


@pytest.mark.parametrize(
    ("meminfo", "left", "available"),
    [
        *((MEMINFO, None, 8_192_000_000), (MEMINFO, 2000, 2000), (MEMINFO, 0, 0), (MEMINFO, 1 << 50, 8_192_000_000)),
        *(("", 2000, 2000), ("", None, None)),
    ],
)
def test_available_memory_is_the_kernels_estimate_within_the_control_groups_limit(
    monkeypatch: pytest.MonkeyPatch, meminfo: str, left: int | None, available: int | None
) -> None:
    monkeypatch.setattr(manifest, "_read", {"/proc/meminfo": meminfo}.__getitem__)
    monkeypatch.setattr(cgroup, "memory_left", lambda: left)
    assert manifest.memory_available() == available


def test_what_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_read", lambda path: "")
    assert manifest.machine()["settings"] == {}


def test_facts_of_the_machine_can_be_kept_as_json_and_hold_what_changes_numbers() -> None:
    facts: dict[str, Any] = json.loads(json.dumps(manifest.machine()))
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["cpus"] == os.cpu_count()
    assert {"numpy", "mpi4py"} <= facts["packages"].keys()
    assert facts["memory_bytes"] > 1 << 20


def test_a_file_that_is_no_text_is_read_as_nothing(tmp_path: Any) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert [manifest._read(f"{tmp_path}/{name}") for name in ("binary", "missing", "")] == ["", "", ""]


def test_the_time_sorts_as_text_and_makes_a_file_name() -> None:
    assert re.fullmatch(r"20\d{6}T\d{6}Z", manifest.now())
