"""The fake library, built once; tests that need it are skipped by name where the wheels are missing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mpi.launch import MPIRUN, library
from tests.nccl.build import build, missing


@pytest.fixture(scope="session")
def wheels() -> None:
    """NVIDIA's headers, a C compiler and nccl4py."""
    if reason := missing():
        pytest.skip(reason)
    if not find_spec("nccl"):
        pytest.skip("no nccl4py in this environment: install nccl4py")


@pytest.fixture(scope="session")
def fake(wheels: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnccl.so.2 of the version that the installed nccl.h has."""
    _mpirun()
    return build(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def old_fake(wheels: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnccl.so.2 of 2.27.7."""
    _mpirun()
    return build(tmp_path_factory.mktemp("old"), old=True)


def _mpirun() -> None:
    if not library():
        pytest.skip(f"no mpirun beside this interpreter ({MPIRUN})")
