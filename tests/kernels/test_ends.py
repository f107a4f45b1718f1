"""Ranks of a kernels door that hang or lag: the job ends by its deadline and can be taken up; the slow one is named."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.mpi import chaos
from tests.mpi.launch import MPIRUN, Job, library, mpirun

pytest.importorskip("numba", reason="numba is not installed: pip install 'commbench[kernels]'")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})"),
]

DOOR = "commbench.kernels.copy"
RANKS, CELLS = 2, 4  # ceiling and baseline on each rank
SMALL = ("--device", "cpu", "--size", "4M", "--factor", "none", "--budget", "0", "--out", "run")


def test_a_rank_that_hangs_ends_the_job_in_time_and_the_run_goes_on_by_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*SMALL, "--rounds", "100000", "-T", f"{chaos.DEADLINE:g}")
    with Job(mpirun(RANKS, DOOR, *words), tmp_path) as job:
        chaos.await_visits(job, folder, 3 * CELLS)
        os.kill(chaos.process_of(job, 1, DOOR), signal.SIGSTOP)
        done = job.wait(chaos.LATEST)
    assert done.code == 124, (done.code, done.stderr)
    assert done.left == 0
    (said,) = [line for line in done.stderr.splitlines() if "commbench: timeout" in line]
    assert "rank 1" in said and "kernel copy" in said
    kept = chaos.visits(folder)
    assert [visit["status"] for visit in kept[-RANKS:]] == ["timeout"] * RANKS
    assert {visit["status"] for visit in kept[:-RANKS]} == {"ok"}

    rounds = max(visit["round"] for visit in kept) + 2
    command = mpirun(RANKS, DOOR, "--resume", "--out", "run", "--rounds", str(rounds), "--json")
    with Job(command, tmp_path) as job:
        done = job.wait(90)
    assert done.code == 0, done.stderr
    after = chaos.visits(folder)
    assert after[: len(kept)] == kept
    good = Counter(visit["cell"] for visit in after if visit["status"] == "ok")
    assert good == dict.fromkeys(range(CELLS), rounds)
    assert [(record["status"], record["wrong"]) for record in done.records] == [("ok", 0)] * CELLS


def test_a_rank_that_is_slow_is_named_and_no_other(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--size", "4M", "--factor", "none", "--budget", "0", "--rounds", "12")
    with Job(mpirun(RANKS, "tests.kernels.slow_rank", *words), tmp_path) as job:
        done = job.wait(90)
    assert done.code == 0, done.stderr
    named = [line for line in done.stdout.splitlines() if "is slow" in line]
    assert len(named) == 1 and named[0].startswith("# rank 1 (") and "copy float16 at 0." in named[0], done.stdout
