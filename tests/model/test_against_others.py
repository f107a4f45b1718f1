"""The cost model against a simulator, and against what others published, as the benchmarks hold them together."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def figures(script: str, *arguments: str, folder: Path) -> Any:
    """Run a benchmark and return its figures."""
    out, found = folder / "table.txt", folder / "figures.json"
    command = [sys.executable, f"benchmarks/{script}", *arguments, "--out", str(out), "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8") in done.stdout
    return json.loads(found.read_text(encoding="utf-8"))


@pytest.mark.skipif(not shutil.which("smpirun"), reason="no SimGrid here: apt-get install libsimgrid-dev")
def test_simgrid_gives_the_same_times(tmp_path: Path) -> None:
    found = figures("model_vs_simgrid.py", "--ranks", "16", "--sizes", "4K,256K", folder=tmp_path)
    assert {(cell["platform"], cell["algorithm"]) for cell in found["cells"]} == {
        (platform, algorithm)
        for platform in ("star", "tree", "fat tree 2:1")
        for algorithm in ("ring", "recursive_doubling", "rabenseifner")
    }
    # Simulated time is the same in every run. At other sizes SMPI's rings wait for messages to arrive, and ours do not.
    assert all(abs(cell["error"]) < 0.03 for cell in found["cells"]), found["cells"]


def test_every_published_figure_has_its_error_beside_it(tmp_path: Path) -> None:
    found = figures("model_vs_published.py", folder=tmp_path)
    assert len(found) >= 15
    for one in found:
        assert one["error"] == pytest.approx(one["predicted"] / one["busbw"] - 1)
    rings = {one["system"]: one["predicted"] for one in found if (one["algorithm"], one["ranks"]) == ("ring", 8)}
    # A ring has the bandwidth of a link, each way, GB/s, by the data sheet; of seven links of a mesh six have a ring.
    assert rings["8 x A100 SXM"] == pytest.approx(300, rel=0.01)
    assert rings["8 x H100 SXM"] == pytest.approx(450, rel=0.01)
    assert rings["8 x MI300X"] == pytest.approx(6 * 64, rel=0.01)
