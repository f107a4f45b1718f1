"""The benchmarks of advice: each starts, measures a little, and prints the table that its README describes."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.emulated_hosts import trouble
from tests.mpi.launch import MPIRUN, library

ROOT = Path(__file__).resolve().parents[1]
needs_mpirun = pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The module of a benchmark, which finds its parts in its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(request.param)


def run(tmp_path: Path, script: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark and return its page and its figures."""
    out, figures = tmp_path / "out.txt", tmp_path / "out.json"
    command = [sys.executable, f"benchmarks/{script}", *arguments, "--out", str(out), "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert text in done.stdout
    return text, json.loads(figures.read_text())


def test_weak_scaling_prints_a_range_for_each_topology(tmp_path: Path) -> None:
    text, figures = run(tmp_path, "weak_scaling.py", "--topologies", "l40s-pcie", "--gpus", "32", "--free-lists", "1")
    (found,) = figures["topologies"]
    settings = found["settings"]
    assert len(settings) == 3 * 4 * 2 * 3 * 4  # the whole grid
    before, after = zip(*(one["efficiency"] for one in settings), strict=True)
    assert all(0 < one <= 1 for one in (*before, *after))
    assert min(b / a for a, b in zip(before, after, strict=True)) > 1 - 1e-9  # advice never harms
    low, high = re.search(r"l40s-pcie +all +(\d+) \.\. \d+ \.\. (\d+)", text).groups()  # type: ignore[union-attr]
    assert (int(low), int(high)) == (round(100 * min(before)), round(100 * max(before)))
    assert "# the study: 63 % before, 89 % after" in text and "predicted, not measured" in text


@pytest.mark.parametrize("benchmark", ["weak_scaling"], indirect=True)
def test_efficiency_is_that_of_a_step_with_what_overlaps_hidden(benchmark: ModuleType) -> None:
    """By hand: 2.5 GiB of gradients are 102 buckets, 0.01 and 0.05 s each; computing takes 10 s."""
    job = benchmark.Job(alone=0.01, together=0.05, peak=6 * 0.67e9 * 1000 / 10)
    assert job.efficiency(0.67e9, 1000, 1.0, 0.0) == pytest.approx((10 + 1.02) / (10 + 5.1))
    # half of two thirds of 10 s hides 3.33 s of the 5.1 s, and all but one bucket of the 1.02 s
    assert job.efficiency(0.67e9, 1000, 1.0, 0.5) == pytest.approx((10 + 0.01) / (10 + 5.1 - 10 / 3))


@needs_mpirun
@pytest.mark.mpi
def test_tuning_measures_each_state_and_proves_what_ran(tmp_path: Path) -> None:
    page, figures = run(
        tmp_path, "tuning.py", "-n", "2", "--sizes", "1K", "--launches", "1", "--budget", "3", "--turn", "5"
    )
    (found,) = figures["libraries"]
    assert set(found["states"]) >= {"default", "bad", "recovered", "best"}
    for launches in found["states"].values():
        assert all(time > 0 for one in launches for time in one["times"]["1024"])
    forced = found["forced"]["1024"]
    (bad,) = found["states"]["bad"]
    assert bad["fingerprints"]["1024"] == {"auto": forced[found["worst"]]}
    if library() == "MPICH":
        assert "# read back: default auto; bad " in page
    assert re.search(r"# won of what the best win over the bad default: -?\d+ %", page)


@pytest.mark.mpi
@pytest.mark.skipif(bool(trouble()), reason=f"no emulated hosts: {trouble()}")
def test_the_emulated_cluster_goes_from_measuring_to_measuring_again(tmp_path: Path) -> None:
    arguments = ["--shapes", "2x2", "--orders", "2", "--repeats", "1", "--sizes", "16K", "--budget", "5"]
    page, figures = run(tmp_path, "emulated_cluster.py", *arguments)
    (found,) = figures["shapes"]
    assert sorted(found["leaf"]) == ["n01", "n02", "n03", "n04"]
    orders = {one["order"] for one in found["cells"]}
    assert orders >= {"by name", "random 1", "random 2", "recommended ring", "worst found rabenseifner"}
    assert all(second > 0 for one in found["cells"] for second in (*one["measured_s"], one["predicted_s"]))
    own = [one for one in found["cells"] if one["order"] == f"recommended {one['algorithm']}"]
    for one in own:
        same = [it for it in found["cells"] if (it["algorithm"], it["size"]) == (one["algorithm"], one["size"])]
        assert one["predicted_s"] == min(it["predicted_s"] for it in same)
    assert len(re.findall(r"^# 2 leaves of 2 hosts, (ring|rabenseifner): ", page, re.MULTILINE)) == 2


@pytest.mark.parametrize("benchmark", ["emulated_cluster"], indirect=True)
def test_gains_are_of_one_repeat_and_correlations_beside_their_ceiling(benchmark: ModuleType) -> None:
    def cell(order: str, predicted: float, *measured: float) -> dict[str, Any]:
        return {"order": order, "algorithm": "ring", "size": 8, "predicted_s": predicted, "measured_s": measured}

    cells = [
        *(cell("by name", 2, 3.0, 8.0), cell("recommended ring", 1, 1.0, 2.0), cell("worst found ring", 3, 4.0, 8.0)),
        *(cell("random 1", 1, 1.0, 1.0), cell("random 2", 2, 2.0, 3.0), cell("random 3", 3, 3.0, 2.0)),
    ]
    found = benchmark.judged({"cells": cells}, "ring", 8)
    assert (found["by_name"], found["worst"]) == ([3.0, 4.0], [4.0, 4.0])
    assert found["correlations"] == pytest.approx([1.0, 0.5]) and found["ceilings"] == pytest.approx([0.5])
    (line,) = filter(None, benchmark.bars([("2x2", found)], 8))
    assert "3.50 x the default (met: 1.3)" in line and "correlation 0.75 of a ceiling of 0.50 (the noise" in line
    (line,) = filter(None, benchmark.bars([("2x2", {**found, "ceilings": [0.9]})], 8))
    assert "correlation 0.75 of a ceiling of 0.90 (NOT met: 0.8)" in line
