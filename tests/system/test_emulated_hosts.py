"""Several nodes on one machine: what MPI and commbench see of them, a deadline across them, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.emulated_hosts import ROOT, Cluster, EmulationError, cluster, mpirun, on, processes
from tests.mpi import chaos
from tests.system.hosts import job, launch

pytestmark = pytest.mark.mpi

SCRIPT = ["benchmarks/emulated_hosts.py"]
MEGABYTES = str(4 << 20)


def namespaces(part: str) -> list[str]:
    """Return the names of namespaces that have `part` in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if part in line]


def sleeping(seconds: str) -> list[int]:
    """Return the processes that sleep so long."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it may have ended
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(pid))
    return found


def script(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *SCRIPT, *arguments]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# What ranks see


def test_each_host_is_a_node_with_a_name_and_a_trunk_is_slower_than_a_leaf(emulated: Cluster) -> None:
    (seen,) = launch(emulated, "tests.system.hosts", MEGABYTES, "0-1", "0-2", "3-2", "3-1").records
    assert seen["hosts"] == ["hA0", "hA1", "hB0", "hB1"]
    assert seen["nodes"] == [0, 1, 2, 3]
    seconds = seen["seconds"]
    assert min(seconds["0-2"], seconds["3-1"]) > 2 * max(seconds["0-1"], seconds["3-2"]), seconds


def test_ranks_go_where_they_are_sent(emulated: Cluster) -> None:
    (seen,) = launch(emulated, "tests.system.hosts", "1", hosts=["hB1", "hA0"], ranks_per_host=2).records
    assert seen["hosts"] == ["hB1", "hB1", "hA0", "hA0"]
    assert seen["nodes"] == [0, 0, 2, 2]
    with pytest.raises(EmulationError, match="there is no hC0, only hA0, hA1, hB0, hB1"):
        mpirun(emulated, ["true"], ["hA0", "hC0"])
    with pytest.raises(EmulationError, match="named twice in hA0,hB0,hA0"):
        mpirun(emulated, ["true"], ["hA0", "hB0", "hA0"])


@pytest.mark.usefixtures("emulated")  # a second cluster beside the first
def test_a_throttled_host_and_a_slow_trunk_slow_what_passes_them() -> None:
    with cluster(3, 2, trunk_rate="800mbit", slow={"hA1": "100mbit", "leafB": "100mbit"}) as built:
        pairs = {"0-1": True, "0-2": True, "0-4": False, "2-3": False, "1-5": True, "3-5": True, "5-0": False}
        (seen,) = launch(built, "tests.system.hosts", str(1 << 20), *pairs).records
    seconds = seen["seconds"]
    slow, fast = ([seconds[pair] for pair in pairs if pairs[pair] is is_slow] for is_slow in (True, False))
    assert min(slow) > 2 * max(fast), seconds


def test_an_allreduce_over_four_hosts_is_right(emulated: Cluster) -> None:
    sweep = "-b 8 -e 4K -f 8 --algo auto,ring -n 3 --rounds 1 --format json"
    done = launch(emulated, "commbench.allreduce", *sweep.split())
    assert done.code == 0, done.stderr
    seen = {(record["algorithm"], record["size"]): record for record in done.records}
    assert seen.keys() == {(algorithm, size) for algorithm in ("auto", "ring") for size in (8, 64, 512, 4096)}
    for (algorithm, _), record in seen.items():
        assert (record["status"], record["wrong"], record["nranks"], record["nnodes"]) == ("ok", 0, 4, 4)
        assert algorithm == "auto" or record["observed_algorithm"] == algorithm
    assert done.left == 0


# A deadline across nodes

# A backend whose timed loop is not compiled: the hosts share the cores of this machine, and on a busy one compiling on
# each of them would outlast the deadline.
SWEEP = [*chaos.SWEEP, "-T", f"{chaos.DEADLINE:g}", "--out", "run", "--backend", "tests.mpi.skipping"]


@contextmanager
def ends_in_time(emulated: Cluster, folder: Path, named: str, call: int = -1) -> Iterator[Callable[[int], int]]:
    """Run a sweep and assert that it ends at its deadline, naming that rank; gives the processes of its ranks."""
    settings = {"COMMBENCH_TESTS_RANK": "2", "COMMBENCH_TESTS_CALL": str(call)}  # which leaves that call out
    with job(emulated, folder, chaos.DOOR, *SWEEP, env=settings) as running:
        chaos.await_visits(running, folder / "run", 2)
        yield lambda rank: chaos.process_of(running, rank)
        done = running.wait(60)
    assert done.code == 124, (done.code, done.stderr)
    assert done.left == 0
    (said,) = (line for line in done.stderr.splitlines() if "commbench: timeout" in line)
    assert re.search(named, said), said
    last = chaos.visits(folder / "run")[-1]
    assert (last["status"], re.search(named, last["reason"]) is not None) == ("timeout", True), last


@pytest.mark.parametrize("rank", [3, 0])
def test_a_rank_stopped_on_one_host_is_named_from_another(emulated: Cluster, rank: int, tmp_path: Path) -> None:
    with ends_in_time(emulated, tmp_path, rf" rank {rank} not arrived: no sign of life") as process_of:
        os.kill(process_of(rank), signal.SIGSTOP)


def test_a_rank_that_leaves_a_collective_out_is_named_from_another_host(emulated: Cluster, tmp_path: Path) -> None:
    with ends_in_time(emulated, tmp_path, r" rank 2 at .* not arrived where the others wait, at ", call=150):
        pass


# Coming and going


def test_all_that_was_built_goes_with_all_that_runs_on_it(emulation: None) -> None:
    links = set(os.listdir("/sys/class/net"))
    trace = f"commbench-{uuid.uuid4().hex}"
    with cluster(1, 2) as built:
        assert len(namespaces(built.name)) == 3  # the switches' and two hosts'
        assert set(os.listdir("/sys/class/net")) <= links
        command = ["sh", "-c", f"touch /dev/shm/{trace}; setsid sleep 600 >/dev/null 2>&1 & hostname"]
        done = subprocess.run(on(built, "hA1", command), capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, "hA1\n"), done.stderr
        (left,) = processes(built, "hA1")
        assert processes(built, "hA0") == []
        assert not os.path.exists(f"/dev/shm/{trace}")
    assert left not in sleeping("600")
    assert namespaces(built.name) == []
    assert not built.launcher.parent.exists()


def test_what_a_killed_process_left_goes_when_the_next_cluster_is_built(emulation: None) -> None:
    seconds = f"600.{os.getpid()}"  # by which they are found
    command = [sys.executable, *SCRIPT, "--leaves", "1", "--", "sleep", seconds]
    with subprocess.Popen(command, cwd=ROOT) as killed:
        until(lambda: len(sleeping(seconds)) == 2)
        killed.kill()
    mine = f"commbench-{killed.pid}-"
    assert len(namespaces(mine)) == 3
    assert len(sleeping(seconds)) == 2
    with cluster(1, 1):
        assert namespaces(mine) == []
        assert sleeping(seconds) == []


# The script


def test_the_script_runs_a_command_on_each_host_and_passes_its_code_on(emulation: None) -> None:
    done = script("--leaves", "1", "--hosts", "hA1", "--ranks-per-host", "2", "--", "sh", "-c", "hostname; exit 7")
    assert (done.returncode, done.stdout) == (7, "hA1\nhA1\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--slow hC0=1mbit", "there is no hC0, only leafA, leafB, hA0, hA1, hB0, hB1"),
        ("--slow hA0", "'' is no rate of a link: write 400mbit or 1.6gbit, and at least 100kbit"),
        ("--trunk-rate 400", "'400' is no rate of a link: write 400mbit or 1.6gbit, and at least 100kbit"),
        ("--leaves 0", "there can be 1 to 26 leaves, with 1 to 250 hosts on each"),
        ("--ranks-per-host 0", "each host has at least 1 rank, not 0"),
    ],
)
def test_bad_options_are_said(emulation: None, arguments: str, said: str) -> None:
    done = script(*arguments.split(), "--", "true")
    assert (done.returncode, done.stderr) == (2, f"emulated_hosts: error: {said}\n")


def test_the_script_says_what_a_machine_lacks() -> None:
    done = script("--", "true", environment={"PATH": "/nowhere"})
    lacks = "network namespaces need Linux|making network namespaces needs root|no ip and no tc "
    assert done.returncode == 2
    assert re.match(f"emulated_hosts: error: ({lacks})", done.stderr)


def test_help_has_examples() -> None:
    done = script("--help")
    assert done.returncode == 0
    assert "python benchmarks/emulated_hosts.py -- python -m commbench.allreduce" in done.stdout


def test_hosts_may_have_names_of_their_own(emulation: None) -> None:
    with cluster(2, 1, names=["n02", "n01"]) as built:
        assert built.leaves == (("n02",), ("n01",))
        told = subprocess.run(on(built, "n01", ["hostname"]), capture_output=True, text=True, timeout=30)
        assert told.stdout.strip() == "n01"
    for names in (["n01"], ["n01", "n01"], ["n01", "n 2"], ["n01", "-n2"]):
        with pytest.raises(EmulationError, match="2 hosts have as many names"), cluster(2, 1, names=names):
            pass
