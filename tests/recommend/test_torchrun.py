"""The script for torchrun, run by the real one: two nodes, of which both are this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.recommend.export._settings import Settings
from commbench.recommend.exporting import texts, write
from commbench.recommend.plan import Plan, Seat

TORCHRUN = Path(sys.executable).with_name("torchrun")

SCRIPT = """
import os, pathlib
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")
seat = " ".join(os.environ[name] for name in names)
pathlib.Path(__file__).with_name("seat-" + os.environ["RANK"]).write_text(seat)  # processes share one standard output
"""


@pytest.mark.skipif(not TORCHRUN.is_file(), reason="no torchrun beside this interpreter")
def test_torchrun_numbers_processes_as_planned(tmp_path: Path) -> None:
    """Left to itself torchrun would begin with the second host, whose name comes first."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # Rank 0 listens on the first host, whose name has to lead to this machine.
    first = socket.gethostname()
    seats = (Seat(first, 3), Seat(first, 1), Seat("a-name-before-it", 0), Seat("a-name-before-it", 2))
    plan = Plan("t", seats, vendor="nvidia")
    write(texts(plan, Settings(port=port))[0], tmp_path / "out")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["bash", str(tmp_path / "out" / "torchrun.sh"), str(tmp_path / "train.py")]
    path = f"{TORCHRUN.parent}{os.pathsep}{os.environ['PATH']}"
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "PATH": path, "SLURMD_NODENAME": host},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in plan.hosts
    ]
    try:
        done = [one.communicate(timeout=120) for one in running]
    finally:
        for one in running:
            one.kill()
    assert [one.returncode for one in running] == [0, 0], done
    assert [path.read_text() for path in sorted(tmp_path.glob("seat-*"))] == [
        f"0 0 4 {first} 3,1",
        f"1 1 4 {first} 3,1",
        "2 0 4 a-name-before-it 0,2",
        "3 1 4 a-name-before-it 0,2",
    ]
