"""Gloo over several nodes: the way to rank 0 is found, under mpirun and without MPI."""

from __future__ import annotations

import json
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.emulated_hosts import Cluster, on
from tests.mpi.launch import Job, python
from tests.system.hosts import launch

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter"),
]

WORDS = ["--backend", "gloo", "-b", "4K", "-e", "4K", "-n", "3", "--rounds", "1", "--json", "--out", "run"]


def check(records: list[dict[str, object]], manifest: Path, nodes: int, ranks: int) -> None:
    (record,) = records
    assert (record["status"], record["nnodes"], record["nranks"]) == ("ok", nodes, ranks), record
    assert json.loads(manifest.read_text(encoding="utf-8"))["library"]["interface"] == "eth0"


def test_ranks_of_several_nodes_meet_without_mpi(emulated: Cluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        jobs = []
        for rank, host in enumerate(("hA0", "hB0", "hB1")):
            command = python("tests.gloo.no_mpi", "allgather", *WORDS, "--rendezvous", str(tmp_path / "place"))
            env = {"RANK": str(rank), "WORLD_SIZE": "3"}
            jobs.append(stack.enter_context(Job(on(emulated, host, command), tmp_path, env)))
        found = [job.wait(90) for job in jobs]
    assert [done.code for done in found] == [0, 0, 0], "".join(done.stderr for done in found)
    check(found[0].records, tmp_path / "run" / "manifest.json", 3, 3)


def test_mpirun_over_several_nodes(emulated: Cluster, tmp_path: Path) -> None:
    done = launch(emulated, "commbench.allgather", *WORDS, hosts=["hA0", "hB1"], ranks_per_host=2, cwd=tmp_path)
    assert done.code == 0, done.stderr
    check(done.records, tmp_path / "run" / "manifest.json", 2, 4)


def test_a_rank_that_is_gone_with_its_node_ends_the_others(emulated: Cluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        jobs = []
        for rank, host in enumerate(("hA0", "hA1", "hB0")):
            command = python("tests.backends.tcp_rank", "die", str(tmp_path / "place"))
            jobs.append(
                stack.enter_context(Job(on(emulated, host, command), tmp_path, {"RANK": str(rank), "WORLD_SIZE": "3"}))
            )
        found = [job.wait(60) for job in jobs]
    assert [done.code for done in found[:2]] == [1, 1]
    assert found[0].stderr == "commbench: error: rank 2 ended without a word (killed, or its node is gone)\n"
