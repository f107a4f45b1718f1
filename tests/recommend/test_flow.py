"""The whole flow on this machine: measure, recommend, export, start, verify."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.recommend.plan import read
from tests.mpi.launch import launch, python, run


@pytest.mark.mpi
def test_from_a_measurement_to_ranks_that_sit_as_planned(tmp_path: Path) -> None:
    sweep = ("-b", "1K", "-e", "64K", "-f", "8", "--algo", "auto,ring", "-n", "20", "--budget", "5")
    done = launch(2, "commbench.allreduce", *sweep, "--out", "results", cwd=tmp_path)
    assert done.code == 0, done.stderr

    asked = ("--topology", "two-core", "--gpus", "2", "--results", "results", "--time", "0.2", "--export", "out")
    done = run(python("commbench.recommend", *asked), cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "# fitted to" in done.stdout and "predicted and so not exported" not in done.stdout

    plan = read(tmp_path / "out" / "placement.json")
    assert plan.hosts == (os.uname().nodename,)  # and not as the topology calls any one machine
    assert all(choice.source.startswith("measured") and choice.gain > 1 for choice in plan.choices)

    placement = str(tmp_path / "out" / "placement.json")
    done = launch(2, "commbench.verify", placement, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "commbench verify: all 2 ranks sit as planned\n"), done.stderr
    done = launch(3, "commbench.verify", placement, cwd=tmp_path)
    assert done.code == 2 and "the plan has 2 ranks, and this job 3" in done.stderr
