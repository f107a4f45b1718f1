"""`commbench.pairs` on eight emulated hosts: a throttled host is named, and a slow trunk is told from one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import emulated_hosts

ROOT = Path(__file__).resolve().parents[2]
HOST_RATE, QUARTER = "200mbit", "50mbit"  # far below what the cores of this machine carry for four pairs


@pytest.fixture(autouse=True)
def _emulated_cluster() -> None:
    if reason := emulated_hosts.trouble():
        pytest.skip(reason)


def slow_ones(out: Path, *cluster: str) -> list[dict[str, Any]]:
    """Run pairs on an emulated cluster and return what is slow by bandwidth."""
    door = [sys.executable, "-m", "commbench.pairs", "-e", "128K", "--rounds", "4", "--out", str(out)]
    script = str(ROOT / "benchmarks" / "emulated_hosts.py")
    command = [sys.executable, script, *cluster, "--host-rate", HOST_RATE, "--", *door]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " cells ok" in done.stdout
    found: list[dict[str, Any]] = json.loads((out / "suspects.json").read_text())["bandwidth"]
    return found


def test_a_host_throttled_to_a_quarter_is_named(tmp_path: Path) -> None:
    (found,) = slow_ones(tmp_path / "run", "--leaves", "1", "--hosts-per-leaf", "8", "--slow", f"hA5={QUARTER}")
    assert (found["kind"], found["names"], found["way"]) == ("host", [["hA5"]], "both ways")
    assert found["factor"] < 0.8  # what the others reach depends on how busy this machine is
    assert found["p"] < 0.1


def test_a_slow_trunk_is_told_apart_from_a_host(tmp_path: Path) -> None:
    (found,) = slow_ones(tmp_path / "run", "--leaves", "2", "--hosts-per-leaf", "4", "--trunk-rate", "100mbit")
    sides = {tuple(side) for side in found["names"]}
    assert (found["kind"], sides) == ("trunk", {("hA0", "hA1", "hA2", "hA3"), ("hB0", "hB1", "hB2", "hB3")})
    assert found["p"] < 0.1
