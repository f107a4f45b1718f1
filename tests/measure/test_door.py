"""By what the ranks of a launch meet: by what is the same on all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from commbench.backends.world import Launch
from commbench.errors import UsageError
from commbench.measure.door import _by_mpi


def by_mpi(launcher: str, **options: Any) -> bool:
    return _by_mpi(Launch(launcher, 0, 2), cast(Any, SimpleNamespace(timeout=1.0, **options)))


@pytest.mark.parametrize(
    ("launcher", "backend", "meets_by_mpi"),
    [
        *((mpirun, backend, True) for mpirun in ("Open MPI", "MPICH") for backend in ("auto", "mpi", "gloo", "nccl")),
        *((launcher, backend, False) for launcher in ("Slurm", "torchrun", "") for backend in ("gloo", "nccl", "rccl")),
        *((launcher, backend, True) for launcher in ("Slurm", "") for backend in ("auto", "mpi")),
        ("torchrun", "mpi", True),  # which is refused where MPI is opened
    ],
)
def test_the_launcher_and_the_name_of_the_backend_decide(launcher: str, backend: str, meets_by_mpi: bool) -> None:
    assert by_mpi(launcher, backend=backend) is meets_by_mpi


@pytest.mark.parametrize("launcher", ["Slurm", "", "MPICH"])
def test_the_devices_of_one_rank_decide_nothing(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of two kinds of node must not wait for one another in two places."""
    monkeypatch.setattr("importlib.util.find_spec", {"cupy": object()}.get)
    monkeypatch.setattr("os.path.exists", lambda path: True)
    monkeypatch.setattr("os.listdir", lambda path: ["nvidia0"])
    assert by_mpi(launcher, backend="auto")


def test_a_door_without_backends_meets_by_mpi() -> None:
    assert by_mpi("Slurm") and by_mpi("")


def test_torchrun_needs_the_name_of_a_backend() -> None:
    with pytest.raises(UsageError, match=r"name one that needs none .* or use mpirun or srun"):
        by_mpi("torchrun", backend="auto")


@pytest.mark.parametrize(
    ("launcher", "backend", "why"),
    [
        ("MPICH", "gloo", "MPICH's mpirun launched these"),
        ("Slurm", "auto", "no --backend names one that needs none"),
        ("", "mpi", "backend mpi needs MPI"),
    ],
)
def test_a_place_to_meet_is_refused_where_ranks_meet_by_mpi(launcher: str, backend: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^--rendezvous is for ranks that meet without MPI, and {why}"):
        by_mpi(launcher, backend=backend, rendezvous="h:1")
