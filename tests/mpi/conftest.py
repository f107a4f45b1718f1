"""Everything in this folder starts mpirun, and is skipped where this environment has none."""

from __future__ import annotations

import pytest

from tests.mpi.launch import MPIRUN, library


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.mpi)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if library():
        return
    for item in items:
        if item.get_closest_marker("mpi"):
            item.add_marker(pytest.mark.skip(reason=f"no mpirun beside this interpreter ({MPIRUN})"))
