"""`benchmarks/compare_power.py`: it starts, simulates a little, and prints what its README describes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.results.test_launches import write_set

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "compare_power.py"


def power(folder: Path, *words: str) -> tuple[str, dict[str, dict[str, float]]]:
    """The table, and the outcomes of each kind of pairs."""
    files = ["--out", str(folder / "table.txt"), "--json", str(folder / "figures.json")]
    done = subprocess.run([sys.executable, str(SCRIPT), *words, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = (folder / "table.txt").read_text()
    assert text in done.stdout
    return text, json.loads((folder / "figures.json").read_text())["outcomes"]


def test_what_is_large_is_found_and_counted(tmp_path: Path) -> None:
    text, outcomes = power(tmp_path, "--pairs", "10", "--cells", "4", "--slowdown", "3")
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if not line.startswith("#")]
    assert ["one cell 300 % slower: that cell found", "100.0 % (72.2 to 100.0)", "at least 90.0 %"] in rows
    assert (outcomes["one cell slower"]["first"], outcomes["one cell slower"]["failed"]) == (1.0, 1.0)
    assert outcomes["all cells slower"]["share"] == 1.0
    assert outcomes["equal"]["any"] <= 0.5


def test_below_five_launches_nothing_is_found(tmp_path: Path) -> None:
    _, outcomes = power(tmp_path, "--pairs", "5", "--cells", "4", "--launches", "4", "--slowdown", "3")
    assert {outcome["any"] for outcome in outcomes.values()} == {0.0}
    assert {outcome["open"] for outcome in outcomes.values()} == {1.0}


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    first, again, other = (power(tmp_path, "--pairs", "20", "--seed", seed)[1] for seed in "112")
    assert first == again != other


def test_the_noise_can_be_that_of_a_set(tmp_path: Path) -> None:
    write_set(tmp_path / "set", "a", 40, sizes=tuple(8 << i for i in range(8)))
    text, _ = power(tmp_path, "--pairs", "2", "--like", str(tmp_path / "set"))
    found = re.search(r"noise: (\S+) shared by the cells of a launch, (\S+) of each cell", text)
    assert found
    shared, own = map(float, found.groups())
    assert own == pytest.approx(0.02, rel=0.2) and shared < 0.01
