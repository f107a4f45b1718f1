"""Emulated hosts for the tests that need more than one node, skipped where this machine cannot have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.emulated_hosts import Cluster, cluster, trouble


@pytest.fixture(scope="session")
def emulation() -> None:
    """For tests that build clusters of their own."""
    if reason := trouble():
        pytest.skip(f"no emulated hosts: {reason}")


@pytest.fixture(scope="session")
def emulated(emulation: None) -> Iterator[Cluster]:
    """Hosts hA0 and hA1 on one leaf, hB0 and hB1 on another; the trunk between them has a quarter of a host's rate."""
    with cluster() as built:
        yield built
