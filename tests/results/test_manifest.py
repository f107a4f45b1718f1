"""The facts of a machine: what changes numbers is kept, secrets never."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from typing import Any

import pytest

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
