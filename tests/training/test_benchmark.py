"""A smoke run of benchmarks/parameter_server.py: the table that its README describes, of whatever was measured."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import MPIRUN, ROOT, library


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("parameter_server")


@pytest.mark.mpi
@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_shares_add_up_to_less_than_all(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["--workers", "2", "--accumulate", "1,2", "--rounds", "1", "--seconds", "0.01", "--compute", "1"]
    command = [sys.executable, "benchmarks/parameter_server.py", *words, "--parameters", "1000"]
    command += ["--out", str(tmp_path / "table.txt"), "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cells = json.loads(figures.read_text())["cells"]
    assert sorted((cell["setup"], cell["accumulate"]) for cell in cells) == sorted(
        (setup, accumulate) for setup in ("even", "unequal", "jitter", "both") for accumulate in (1, 2)
    )
    for cell in cells:
        assert min(cell["queue"], cell["update"], cell["move"]) >= 0
        assert cell["waiting"] == pytest.approx(cell["queue"] + cell["update"])
        assert cell["waiting"] + cell["move"] < 1
    assert "workers   set-up  K  waiting %" in done.stdout and "the study: 11.7 % idle" in done.stdout


def test_shares_are_of_all_workers_time(benchmark: Any) -> None:
    one = {"all": 2.0, "queue": 0.2, "update": 0.1, "move": 0.3}
    other = {"all": 3.0, "queue": 0.8, "update": 0.1, "move": 0.2}
    shares = benchmark._shares([one, other])
    assert shares == pytest.approx({"queue": 0.2, "update": 0.04, "move": 0.1, "waiting": 0.24, "idle": 1 - 0.7 / 3})


def test_the_curve_is_read_as_it_is(benchmark: Any) -> None:
    def lines(*waits: float) -> str:
        cells = [
            {
                "workers": 2,
                "setup": "even",
                "accumulate": k,
                "waiting": wait,
                "queue": wait,
                "update": 0,
                "move": 0,
                "idle": 0,
            }
            for k, wait in zip((1, 4, 8), waits, strict=True)
        ]
        return str(benchmark.lines_of(benchmark.fold(cells))[-1])

    assert lines(0.5, 0.2, 0.1) == "# 2 workers, even: waiting falls with K; below the study's 11.7 % at K = 8"
    assert lines(0.05, 0.2, 0.3) == "# 2 workers, even: waiting rises with K; below the study's 11.7 % at K = 1"
    assert lines(0.5, 0.2, 0.3) == "# 2 workers, even: waiting turns with K; nowhere below the study's"


def test_a_cell_has_as_many_pushes_as_fill_its_seconds(benchmark: Any) -> None:
    spec = {"seconds": 1.0, "compute": 0.01}
    assert [benchmark._pushes(spec, k) for k in (1, 4, 16)] == [30, 25, 6]
