"""Smoke runs of benchmarks/: each starts, measures a little, and prints the table that its README describes."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import MPIRUN, library

ROOT = Path(__file__).resolve().parents[1]
MPICC = MPIRUN.with_name("mpicc")

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})"),
]
needs_compiler = pytest.mark.skipif(
    not (MPICC.exists() and shutil.which("cc")), reason=f"no C compiler, or no mpicc beside this interpreter ({MPICC})"
)


def rows(script: str, *arguments: str, out: Path) -> dict[str, list[str]]:
    """Run a benchmark and return its table: the cells of each row by the first one."""
    figures = out.with_suffix(".json")
    command = [sys.executable, f"benchmarks/{script}", *arguments, "--out", str(out), "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert text in done.stdout
    assert f"benchmarks/{script}" in text.splitlines()[0]
    assert [entry for entry in json.loads(figures.read_text())["libraries"] if library() in json.dumps(entry)]
    lines = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line and not line.startswith("#"))
    return {cells[0]: cells[1:] for cells in lines}


@needs_compiler
def test_fidelity_prints_a_ratio_for_every_size_and_loop(tmp_path: Path) -> None:
    table = rows("fidelity.py", "--rounds", "1", "--turn", "1", out=tmp_path / "fidelity.txt")
    assert table["bytes"] == ["C us", "ours/C", "C/C", "plain/C", "ours/once", "stamped/once", "once/once"]
    for size in (8, 64, 512, 4096, 32768, 262144, 1048576):
        assert all(float(cell) > 0 for cell in table[str(size)])
    ours = [float(table[str(size)][1]) for size in (8, 64, 512, 4096, 32768, 262144, 1048576)]
    assert float(table["worst"][0]) == max(ours)
    assert min(ours) <= float(table["geomean"][0]) <= max(ours)


def test_startup_prints_what_both_sides_cost(tmp_path: Path) -> None:
    table = rows("startup.py", "-n", "2", "--repeat", "1", "--no-strace", out=tmp_path / "startup.txt")
    assert table["commbench"] == ["bare", "ratio", "at most"]
    for name in ("wall (s)", "peak memory (MB)", "peak memory, largest (MB)", "files opened, last rank"):
        ours, bare, ratio, _ = table[name]
        assert float(ours) > 0
        assert float(bare) > 0
        assert float(ratio) == pytest.approx(float(ours) / float(bare), rel=0.5)  # of rounded figures


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    for script in ("fidelity.py", "startup.py"):
        command = [sys.executable, str(ROOT / "benchmarks" / script), "--python", missing]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == f"{script[:-3]}: there is no Python {missing!r}\n"


def test_readers_prints_what_a_log_costs(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/readers.py", "--rows", "100", "--out", str(tmp_path / "readers.txt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("read ")]
    assert row[1] == "200"
    assert all(float(cell) > 0 for cell in row[2:])


def test_attribution_speed_prints_what_a_trace_costs(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/attribution_speed.py", "--sizes", "100K", "--out", str(tmp_path / "out.txt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("ours ")]
    assert all(float(cell) > 0 for cell in row[1:])


def test_kernels_prints_a_ratio_for_every_contest(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install 'commbench[kernels]'")
    if not (shutil.which("gcc") and shutil.which("objdump")):
        pytest.skip("gcc and objdump (binutils) are not in PATH")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the peers in C take AVX2, FMA and F16C")
    out, figures = tmp_path / "kernels.txt", tmp_path / "kernels.json"
    command = [sys.executable, "benchmarks/kernels.py", "--pairs", "5", "--size", "64K", "--out", str(out)]
    done = subprocess.run([*command, "--json", str(figures)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    rows = re.findall(r"^ *(\S.*?) {2,}([\d.]+) +([\d.]+) +([\d.]+)  +[\d.]+ to [\d.]+ ", text, re.MULTILINE)
    contests = json.loads(figures.read_text())["contests"]
    assert [row[0] for row in rows] == [contest["name"] for contest in contests] and len(rows) == 6
    for (_, *cells), contest in zip(rows, contests, strict=True):
        ratio, low, high = map(float, cells)
        pairs = zip(contest["seconds"]["C"], contest["seconds"]["numba"], strict=True)
        assert ratio == pytest.approx(sorted(theirs / ours for theirs, ours in pairs)[2], abs=0.001)
        assert 0 < low <= ratio <= high


LISTING = """
0000000000001100 <triad>:
    1100:\tvxorpd %xmm0,%xmm0,%xmm0
    1104:\tvmovupd (%rdi),%ymm1
    1108:\tvfmadd213pd (%rsi),%ymm1,%ymm2
    110c:\tjne    1110 <triad+0x10>
    1110:\tvfmadd213sd (%rsi),%xmm1,%xmm2
    1114:\tvmovsd %xmm2,(%rdx)
    1118:\tjne    {target} <triad+0x4>
    111c:\tret
"""


def test_a_peer_in_c_is_one_only_if_its_loop_has_packed_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kernels = importlib.import_module("kernels")
    wanted = [r"vfmadd\d+p[sd]"]
    packed, scalar = (kernels.disassembly(LISTING.format(target=target), "triad") for target in ("1104", "1110"))
    assert kernels.scalar(packed, wanted) == ""
    assert kernels.scalar(scalar, wanted).startswith("has no loop with")  # the packed one is outside of it
    assert kernels.scalar(packed, [*wanted, "vsqrtpd"]).startswith("has no loop with")
    assert kernels.scalar(packed.replace("ret", "call memcpy"), wanted).startswith("became a memcpy")


def test_equal_pairs_counts_the_alarms_of_real_launches(tmp_path: Path) -> None:
    out = tmp_path / "pairs.txt"
    command = [sys.executable, "benchmarks/equal_pairs.py", "--pairs", "1", "--launches", "2", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert re.search(r"^ +1 +0 +10 +[-+]\d+\.\d %$", text, re.MULTILINE)  # of two launches a side nothing is called
    assert "# pairs with an alarm: 0 of 1\n" in text


def test_advice_at_scale_has_its_bound_beside_it(tmp_path: Path) -> None:
    out, figures = tmp_path / "scale.txt", tmp_path / "scale.json"
    command = [
        sys.executable,
        "benchmarks/recommend_scale.py",
        "--one",
        "64",
        "--three",
        "tp=8,pp=2,dp=4",
        "--time",
        "1",
    ]
    done = subprocess.run(
        [*command, "--out", str(out), "--json", str(figures)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8") == done.stdout
    one, three = json.loads(figures.read_text(encoding="utf-8"))
    assert (one["gpus"], three["gpus"]) == (64, 64)
    assert all(it["gap"] >= 0 and it["mebibytes"] < 1024 for it in (one, three))
