"""The doors of kernels as a user meets them: tables, records, bad input, runs that go on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.results.journal import read_records
from tests.mpi.launch import MPIRUN, launch, library

pytest.importorskip("numba", reason="numba is not installed: pip install 'commbench[kernels]'")

SMALL = ("--device", "cpu", "--size", "64K", "--rounds", "2")


def door(*arguments: str, name: str = "kernels", cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"commbench.{name}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


BAD = [
    (("--size", "64T", "--device", "cpu"), "--size 64T does not fit the memory"),
    (("--size", "1"), "--size is at least 4096 bytes, not '1'"),
    (("--factor", "strid"), "unknown factor 'strid': did you mean stride"),
    (("--kernel", "copi"), "unknown kernel 'copi': did you mean copy?"),
    (("--variant", "adm", "--device", "cpu"), "unknown variant 'adm': did you mean adam"),
    (("--device", "gpu"), "unknown device 'gpu': did you mean cpu?"),
    (("--device", "cpu", "--dtype", "int32"), "--device cpu has no int32"),
    (
        ("--device", "cpu", "--dtype", "float64", "--kernel", "sgd_momentum"),
        "none of these kernels is defined for float64",
    ),
    (
        ("--device", "cpu", "--factor", "occupancy"),
        "occupancy: only on a GPU, not on cpu; there are misalignment, stride",
    ),
    (("--device", "cpu", "--library", "cupy"), "unknown back end for cpu 'cupy': known: numba_cpu"),
    (("--kernel", "adamw"), "adamw is a variant of weight_update, not a kernel: --kernel weight_update"),
    (("--device", "cpu", "--dtype", "none"), "unknown data type 'none'"),
    (("--kernel", "none"), "unknown kernel 'none'"),
    (
        ("--device", "cpu", "--kernel", "copy", "--variant", "x"),
        "unknown variant 'x': these kernels have none, leave --variant out",
    ),
    (("--device", "cpu", "--out", "x" * 300), "cannot write to xxx"),
    (("--resume",), "--resume goes on with the run in --out DIR"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_gets_one_line_and_exit_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = door(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"commbench kernels: error: {message}")
    assert not any(tmp_path.iterdir())


def test_a_size_beyond_memory_says_what_is_needed_and_what_is_free(tmp_path: Path) -> None:
    done = door("--size", "64T", "--device", "cpu", "--factor", "none", name="kernels.copy", cwd=tmp_path)
    assert re.search(r"copy needs 96 TiB on each rank, and [\d.]+ [KMG]iB is free for each", done.stderr)


def test_a_waterfall_is_measured_kept_and_taken_up_again(tmp_path: Path) -> None:
    done = door(*SMALL, "--factor", "stride", "--out", "run", name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "# 8 of 8 cells ok" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("   stride")]
    assert [row[1] for row in rows] == ["2", "4", "8", "16", "32"]
    assert all("hint none" in " ".join(row) for row in rows)  # whose stores do not stream either
    assert "2 rounds: no interval" in done.stdout and re.search(r"# \d+ s: .*\d+ measuring", done.stdout)
    records = read_records(tmp_path / "run")
    assert {(record.status, record.wrong, record.rounds) for record in records} == {("ok", 0, 2)}
    beside = [json.loads(line) for line in (tmp_path / "run" / "kernels.jsonl").read_text().splitlines()]
    assert [entry["factor"] for entry in beside] == ["ceiling", "baseline", *["stride"] * 5, "hint"]
    # Of each element 6 bytes move there, of each line of 32 elements 192.
    assert [entry["predicted_high"] for entry in beside[2:7]] == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32])
    assert all(entry["launch_us"] > 0 for entry in beside)
    assert beside[2]["against"] == "hint none" and beside[7]["against"] == beside[1]["against"] == "baseline"
    assert beside[7]["of_reference"] == beside[7]["of_baseline"]
    assert (beside[1]["sectors_per_request"], beside[1]["lines_per_request"]) == (2, 2)  # 64 elements of 2 B: 128 B
    assert beside[1]["sectors"] == beside[1]["size"] / 64
    assert beside[1]["of_baseline"] == 1 and beside[0]["size"] == beside[0]["count"] * 4

    again = door("--out", "run", "--resume", "--rounds", "3", "--json", name="kernels.copy", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert [json.loads(line)["rounds"] for line in again.stdout.splitlines()] == [3] * 8
    other = door("--out", "run", "--resume", "--size", "128K", name="kernels.copy", cwd=tmp_path)
    assert other.returncode == 2 and "holds another plan" in other.stderr


def test_a_budget_that_is_spent_leaves_ceiling_and_baseline_and_says_what_it_went_into(tmp_path: Path) -> None:
    done = door(*SMALL, "--budget", "0.001", "--out", "run", name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "run")
    assert [record.status for record in records[:2]] == ["ok", "ok"]
    assert {(record.status, record.reason) for record in records[2:]} == {
        ("not_measured", "the budget was spent on checks and set-up")
    }
    assert "set-up" in done.stdout and "the budget was spent after 0 to" in done.stdout


def test_the_folder_of_another_door_is_refused_in_a_line(tmp_path: Path) -> None:
    first = door(*SMALL, "--factor", "none", "--out", "run", name="kernels.copy", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    other = door("--out", "run", "--resume", name="kernels.fill", cwd=tmp_path)
    assert other.returncode == 2 and other.stderr.count("\n") == 1
    assert "holds a plan of other kernels" in other.stderr and "KeyError" not in other.stderr


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_ranks_measure_at_once_and_have_rows_of_their_own(tmp_path: Path) -> None:
    done = launch(2, "commbench.kernels.fill", *SMALL, "--factor", "none", "--json", timeout=200, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert [(one["rank"], one["factor"]) for one in done.records] == [
        *((0, "ceiling"), (1, "ceiling"), (0, "baseline"), (1, "baseline"))
    ]


@pytest.mark.parametrize("setting", ["NUMBA_NUM_THREADS=0", "NUMBA_DISABLE_JIT=1", "NUMBA_THREADING_LAYER=bogus"])
def test_settings_that_numba_cannot_work_with_are_said(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*setting.split("="))
    done = door(*SMALL, name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("commbench kernels.copy: error: Numba cannot work here (")


def test_a_timeout_longer_than_timers_take_is_one(tmp_path: Path) -> None:
    done = door(*SMALL, "--factor", "none", "-T", "1e300", name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""


def test_rounds_without_end_are_cut_by_the_budget(tmp_path: Path) -> None:
    arguments = (*SMALL, "--factor", "none", "--rounds", str(1 << 62), "--budget", "0.5")
    done = door(*arguments, name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the budget was spent after" in done.stdout


HOSTILE = [
    {"effort": {}},
    {"effort": {"rounds": "x", "budget": None, "size": None, "seed": 1}},
    {"effort": {"rounds": 2, "budget": "x", "size": None, "seed": 1}},
    {"effort": None},
    {"notes": 5},
    {"facts": []},
    {"cells": [5]},
]


def test_a_changed_manifest_is_one_line_and_a_full_disk_leaves_what_was_measured(tmp_path: Path) -> None:
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
    limited += "from commbench.kernels._door import main; from commbench.kernels.copy import PATTERNS; main(PATTERNS)"
    command = [sys.executable, "-c", limited, *SMALL, "--factor", "none", "--rounds", "500", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("cannot write run/visits.jsonl: File too large; the visits written before") == 1
    assert {record.status for record in read_records(tmp_path / "run")} == {"ok"}

    path = tmp_path / "run" / "manifest.json"
    kept = json.loads(path.read_text())
    for change in HOSTILE:
        path.write_text(json.dumps({**kept, "plan": kept["plan"] | change}))
        done = door("--out", "run", "--resume", name="kernels.copy", cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, (change, done.stderr)

    path.write_text(json.dumps(kept))
    done = door("--out", "run", "--resume", "--rounds", "3", name="kernels.copy", cwd=tmp_path)
    assert done.returncode == 0 and "2 of 2 cells ok" in done.stdout


def test_memory_that_runs_out_is_one_line(tmp_path: Path) -> None:
    limited = "from commbench.kernels._door import main; "
    limited += "from commbench.kernels.copy import PATTERNS; from commbench.kernels import _numba_cpu\n"
    limited += "def allocate(*_): raise MemoryError('Unable to allocate 1 GiB')\n"
    limited += "_numba_cpu.Backend.allocate = allocate; main(PATTERNS)"
    command = [sys.executable, "-c", limited, *SMALL, "--factor", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "memory ran out on rank 0 (Unable to allocate 1 GiB); give a smaller --size" in done.stderr


def test_a_wrong_element_fails_and_is_not_laid_to_the_budget(tmp_path: Path) -> None:
    broken = """
from commbench.kernels import _numba_cpu
from commbench.kernels._door import main
from commbench.kernels.copy import PATTERNS

prepare = _numba_cpu.Backend.prepare

def breaking(self, problem, arenas):
    right = prepare(self, problem, arenas)
    def launch():
        right()
        arenas["b"][5000] ^= 1
    return launch

_numba_cpu.Backend.prepare = breaking
main(PATTERNS)
"""
    command = [sys.executable, "-c", broken, *SMALL, "--factor", "none", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "# 0 of 2 cells ok" in done.stdout
    assert "budget" not in done.stdout
    assert {(record.status, record.algbw) for record in read_records(tmp_path / "run")} == {("wrong", None)}
