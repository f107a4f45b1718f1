"""However a run ends, it ends, and what was measured is kept. (`python -m tests.mpi.chaos` makes many such runs.)"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mpi import chaos
from tests.mpi.launch import Job, mpirun

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("kind", chaos.KINDS, ids=lambda kind: kind.__name__)
def test_a_run_that_is_disturbed_ends_as_it_should(kind: Callable[[Path, random.Random], None], tmp_path: Path) -> None:
    kind(tmp_path / "run", random.Random(kind.__name__))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a full disk needs a small file system, and mounting one needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_once_and_what_was_written_can_be_read_and_resumed(small_disk: Path) -> None:
    folder = small_disk / "run"
    with Job(mpirun(chaos.RANKS, chaos.DOOR, *chaos.SWEEP, "--out", "run", "--rounds", "40"), small_disk) as job:
        done = job.wait(60)
    assert done.code == 1
    (complaint,) = done.complaints
    assert "No space left on device" in complaint and "--resume" in complaint
    kept = chaos.visits(folder)
    assert kept
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    command = mpirun(
        chaos.RANKS, chaos.DOOR, "--resume", "--out", "run", "--rounds", str(chaos.ROUNDS), "--format", "json"
    )
    with Job(command, small_disk) as job:
        done = job.wait(60)
    assert done.code == 0, done.stderr
    assert {record["status"] for record in done.records} == {"ok"}
    assert chaos.visits(folder)[: len(kept)] == kept
