"""Gloo, started by mpirun and by torchrun: every door, every type, and what Gloo lacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import MPIRUN, ROOT, Done, Job, launch, library, python, run
from tests.numpy_collectives import COLLECTIVES

pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
needs_mpirun = pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")

QUICK = ["--backend", "gloo", "-n", "3", "--rounds", "1", "--json", "--out", "run"]
GRID = ["-b", "96", "-e", "6K", "-f", "64", "--inplace", "both"]
TYPES = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"}
NOT_IN_PLACE = {"broadcast", "alltoall", "sendrecv"}
REDUCING = {name for name, collective in COLLECTIVES.items() if collective.reduces}


def torchrun(n: int, module: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return [*command, "-m", module, *arguments]


def exists(record: dict[str, Any], n: int) -> bool:
    door = record["collective"]
    if door == "sendrecv" and n == 1:
        return False
    if door in REDUCING and record["dtype"] in ("uint32", "uint64"):
        return False
    return not (record["inplace"] and door in NOT_IN_PLACE)


def check(done: Done, door: str, n: int, cells: int) -> None:
    assert done.code == 0, done.stderr
    assert done.left == 0
    assert len(done.records) == cells
    for record in done.records:
        about = (record["collective"], record["backend"], record["nranks"], record["algorithm"])
        assert about == (door, "gloo", n, "auto")
        assert record["library"].startswith("Gloo of torch ")
        if exists(record, n):
            assert (record["status"], record["wrong"]) == ("ok", 0), record
            assert record["observed_algorithm"] is None and record["evidence"].startswith("unknown: Gloo chooses")
        else:
            assert record["status"] == "not_applicable" and record["reason"] and record["time_us"] is None


@needs_mpirun
@pytest.mark.mpi
@pytest.mark.parametrize(("door", "n"), [(door, 1 + i % 4) for i, door in enumerate(sorted(COLLECTIVES))])
def test_every_door_under_mpirun(door: str, n: int) -> None:
    check(launch(n, f"commbench.{door}", *GRID, *QUICK), door, n, 4)


@pytest.mark.parametrize("door", ["allreduce", "alltoall", "gather"])  # torch takes its time to load
def test_doors_under_torchrun_without_mpi4py(door: str) -> None:
    check(run(torchrun(4, "tests.gloo.no_mpi", door, *GRID, *QUICK)), door, 4, 4)


@needs_mpirun
@pytest.mark.mpi
@pytest.mark.parametrize("n", [2, 3])
def test_every_type_is_reduced_by_every_reduction(n: int) -> None:
    words = ["-b", "1K", "-e", "1K", "-d", "all", "-o", "all", "--inplace", "both"]
    done = launch(n, "commbench.allreduce", *words, *QUICK)
    check(done, "allreduce", n, 10 * 5 * 2)
    assert {record["dtype"] for record in done.records} == TYPES


@pytest.mark.parametrize("door", ["alltoall", "scatter"])
def test_every_type_is_moved_and_scattered(door: str) -> None:
    root = ["-r", "2"] if COLLECTIVES[door].rooted else []
    done = run(torchrun(3, f"commbench.{door}", "-b", "1K", "-e", "1K", "-d", "all", *root, *QUICK))
    check(done, door, 3, 10)


def test_groups_in_an_order_of_their_own_at_once(tmp_path: Path) -> None:
    (tmp_path / "halves").write_text("left: 2,0\nright: 3,1\n", encoding="utf-8")
    words = ["-b", "1K", "-e", "1K", "--groups", str(tmp_path / "halves"), "--concurrent", "on"]
    done = run(torchrun(4, "commbench.allgather", *words, *QUICK))
    assert done.code == 0, done.stderr
    assert [(record["group"], record["status"]) for record in done.records] == [("left", "ok"), ("right", "ok")]


def test_one_rank_meets_nobody() -> None:
    check(run(python("tests.gloo.no_mpi", "reducescatter", *GRID, *QUICK)), "reducescatter", 1, 4)


def test_the_manifest_says_by_what_and_over_which_interface(tmp_path: Path) -> None:
    done = run(torchrun(2, "commbench.allreduce", "-b", "8", "-e", "8", *QUICK), cwd=tmp_path)
    assert done.code == 0, done.stderr
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))["library"]
    assert facts["interface"] == "lo" and facts["version"]
    assert Path(facts["library_file"]).exists()
    assert facts["environment"] == {}


# How it is refused, and how it ends


def test_torchrun_hides_the_exit_code_so_that_the_message_says_it() -> None:
    done = run(torchrun(2, "commbench.allreduce", "--backend", "gloo", "--rounds", "none"))
    assert done.code == 1
    assert len(done.complaints) == 1
    assert "commbench allreduce: ended (exit code 2; torchrun's own is 1)" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "mpi"], "the mpi backend cannot be launched by torchrun: use mpirun or srun"),
        (["--backend", "glue"], "unknown backend 'glue': did you mean gloo?"),
        (["--backend", "gloo", "--method", "clock"], "--method clock needs ranks that speak MPI"),
        (["--backend", "gloo", "--rendezvous", "here:0"], "--rendezvous HOST:PORT has a port from 1 to 65535"),
        (["--backend", "mpi", "--rendezvous", "here:1"], "--rendezvous is for ranks that meet without MPI"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:3]),
)
def test_what_does_not_go_without_mpi_is_refused_once(words: list[str], said: str) -> None:
    done = run(torchrun(2, "commbench.allreduce", "-b", "8", "-e", "8", *words))
    assert len(done.complaints) == 1, done.stderr
    assert said in done.complaints[0]
    assert "exit code 2" in done.stderr
    assert done.stdout == ""


def test_pairs_is_refused_under_torchrun() -> None:
    done = run(torchrun(2, "commbench.pairs"))
    assert len(done.complaints) == 1 and "use mpirun or srun" in done.complaints[0]


@needs_mpirun
@pytest.mark.mpi
def test_the_common_clock_serves_where_mpirun_launched() -> None:
    done = launch(2, "commbench.allreduce", "-b", "8", "-e", "8", "--method", "clock", *QUICK)
    check(done, "allreduce", 2, 1)
    assert done.records[0]["method"] == "clock"


def test_a_rank_that_stops_is_named_and_all_others_end_with_124(tmp_path: Path) -> None:
    """Each rank a process of the test, so that each one's code is seen."""
    with ExitStack() as stack:
        jobs = []
        words = ["-b", "8", "-e", "8", "-T", "2", "-n", "50", "--out", "run", "--rendezvous", str(tmp_path / "place")]
        for rank in range(3):
            env = {"RANK": str(rank), "WORLD_SIZE": "3"}
            jobs.append(stack.enter_context(Job(python("tests.gloo.stuck", *words), tmp_path, env)))
        found = [job.wait(120) for job in jobs[:2]]
    assert [done.code for done in found] == [124, 124]
    said = "".join(done.stderr for done in found)
    assert said.count("timeout (-T 2)") == 1
    assert "rank 2 not arrived: no sign of life" in said and "(exit code 124; torchrun's own is 1)" in said
    visits = [json.loads(line) for line in (tmp_path / "run" / "visits.jsonl").read_text().splitlines()]
    assert visits[-1]["status"] == "timeout"


def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    command = torchrun(3, "commbench.allreduce", "--backend", "gloo", "-b", "8", "-e", "8", "--rounds", "1000")
    command += ["--precision", "0", "--out", "run"]
    with Job(command, tmp_path) as job:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "visits.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        ranks = [pid for pid in job.processes() if _is_rank(pid)]
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGKILL)
        done = job.wait(60)
    assert done.code == 1
    assert done.left == 0


def _is_rank(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"commbench.allreduce" in words and b"torch.distributed.run" not in words


def test_naming_the_backend_loads_no_torch() -> None:
    code = (
        "import sys; from commbench.backends.base import find; print(find('gloo').probe().ok, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "True False\n"
