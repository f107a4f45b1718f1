"""`--backend model` from the command line: predicted rows in the formats and folders of measured ones, and stamped."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commbench
from commbench.errors import UsageError
from commbench.measure.cli import read
from commbench.model import cost as costs
from commbench.model.library import LIBRARIES
from commbench.model.placement import fill
from commbench.results.journal import read_manifest, read_records
from commbench.topology.reading import read as read_topology
from commbench.topology.shipped import find
from tests.mpi.launch import MPIRUN, library
from tests.mpi.launch import run as launch
from tests.numpy_collectives import COLLECTIVES
from tests.results.test_launches import write_set

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
H100 = ("--backend", "model", "--topology", "h100-nvlink")


def door(folder: Path, *words: str, collective: str = "allreduce", code: int = 0) -> Any:
    command = [sys.executable, "-m", f"commbench.{collective}", *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    words = (*H100, "--ranks", "8,64,256", "-b", "8", "-e", "8G", "-f", "4", "--out", "run")
    (folder / "table.txt").write_text(door(folder, *words).stdout)
    return folder / "run"


def test_a_table_of_predictions_needs_no_mpi(run: Path) -> None:
    text = (run.parent / "table.txt").read_text()
    assert text.startswith("# PREDICTED: nothing was measured; commbench ")
    assert "backend model; model of nccl on h100-nvlink\n" in text
    assert "# Group first 8: 8 ranks (0-7) on n01\n" in text
    assert " auto>nvls_tree " in text
    code = (
        "import sys; sys.modules['mpi4py'] = None; sys.argv = ['x', *{words!r}]; from commbench.measure.cli import main"
    )
    words = [*H100, "--ranks", "8", "-e", "64", "--out", "bare"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code.format(words=words)}; from commbench.allreduce import ALLREDUCE; main(ALLREDUCE)",
        ],
        cwd=run.parent,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_records_are_stamped_as_predictions(run: Path) -> None:
    timed = [record for record in read_records(run) if record.status == "ok"]
    assert {(r.backend, r.library, r.method) for r in timed} == {("model", "model of nccl on h100-nvlink", "model")}
    for record in timed:
        assert record.simulated
        assert record.evidence == "predicted by the model"
        assert record.predicted == record.time_us
        assert (record.wrong, record.rounds, record.iterations, record.time_us_low, record.calls) == (
            None,
            0,
            0,
            None,
            None,
        )
        assert record.nranks and record.time_us and record.algbw
        assert record.algbw == pytest.approx(record.size / record.time_us / 1e3)
        assert record.busbw == pytest.approx(record.algbw * 2 * (record.nranks - 1) / record.nranks)
    assert read_manifest(run)["machine"].keys() == {"commbench"}


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree", "recursive_doubling"])
def test_times_are_those_of_the_cost(run: Path, algorithm: str) -> None:
    cluster = read_topology(find("h100-nvlink")).cluster
    cost = costs.cost("allreduce", algorithm, fill(cluster, 64), LIBRARIES["nccl"])
    mine = [r for r in read_records(run) if r.nranks == 64 and r.algorithm == algorithm]
    expected = cost.seconds(np.array([r.size for r in mine])) * 1e6
    assert [r.time_us for r in mine] == pytest.approx(expected, abs=1e-4)


def test_auto_is_the_best_that_the_library_has_at_each_size(run: Path) -> None:
    records = [record for record in read_records(run) if record.status == "ok"]
    for record in records:
        if record.algorithm == "auto":
            rivals = {
                r.algorithm: r.time_us or 0.0
                for r in records
                if (r.nranks, r.size) == (record.nranks, record.size) and r.algorithm in LIBRARIES["nccl"].algorithms
            }
            assert record.time_us == min(rivals.values())
            assert rivals[record.observed_algorithm or ""] == record.time_us


def test_what_does_not_exist_says_why(run: Path) -> None:
    reasons = {(r.nranks, r.algorithm): r.reason for r in read_records(run) if r.status == "not_applicable"}
    assert reasons[256, "bruck"] == "the model has no such schedule of allreduce"
    assert "network whose switches do not add up" in reasons[256, "nvls"]
    assert (8, "nvls") not in reasons


def test_the_last_lines_say_where_the_best_changes_and_what_limits(run: Path) -> None:
    text = (run.parent / "table.txt").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("# 256 ranks: best of nccl's: "))
    assert " -> ring at " in line
    assert "# 256 ranks: ring at 8G is made of bandwidth of dgx-h100 nic 100%" in text
    (small,) = (
        line for line in text.splitlines() if line.startswith("# 256 ranks: nvls_tree at 8 is made of latency of ")
    )
    assert "dgx-h100 nic" in small


def test_all_formats_hold_the_predictions(run: Path) -> None:
    words = (*H100, "--ranks", "16", "-b", "1K", "-e", "1M", "-f", "32", "--algo", "auto,ring")
    lines = door(run.parent, *words, "--format", "json", "--out", "json").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [(r["algorithm"], r["size"]) for r in records] == [
        (name, size) for size in (1 << 10, 1 << 15, 1 << 20) for name in ("auto", "ring")
    ]
    rows = list(csv.DictReader(io.StringIO(door(run.parent, *words, "--format", "csv", "--out", "csv").stdout)))
    assert [float(row["time_us"]) for row in rows] == [r["time_us"] for r in records]
    table = door(run.parent, *words, "--format", "nccl-tests", "--out", "nccl").stdout
    assert "# Algorithm: ring" in table
    assert sum(len(line.split()) == 13 for line in table.splitlines() if not line.startswith("#")) == 6


@pytest.mark.parametrize("name", ["h100-nvlink", "of two; halves, really"])
def test_a_printed_table_is_read_back_as_predicted(tmp_path: Path, name: str) -> None:
    text = find("h100-nvlink").read_text().replace("name: h100-nvlink", f'name: "{name}"')
    (tmp_path / "it.yaml").write_text(text)
    words = ("--backend", "model", "--topology", "it.yaml", "--ranks", "8", "-e", "64", "--format", "nccl-tests")
    (tmp_path / "table.txt").write_text(door(tmp_path, *words).stdout)
    frame = commbench.load(tmp_path / "table.txt")
    assert len(frame) and frame["simulated"].all()
    assert set(frame["library"]) == {f"model of nccl on {name}"}
    assert set(zip(frame["backend"], frame["method"], frame["nranks"], strict=True)) == {("model", "model", 8)}
    read = subprocess.run(
        [sys.executable, "-m", "commbench.read", tmp_path / "table.txt"], capture_output=True, text=True
    )
    assert "# SIMULATED, nothing was measured: allreduce, model of nccl on" in read.stdout


def test_ranks_a_node_can_be_fewer_than_devices(run: Path) -> None:
    door(run.parent, *H100, "--ranks", "8", "--per-node", "2", "-e", "64", "--out", "spread")
    record = read_records(run.parent / "spread")[0]
    assert (record.nnodes, record.hosts) == (4, "n01,n02,n03,n04")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_door_predicts(run: Path, collective: str) -> None:
    words = (*H100, "--ranks", "16", "-b", "64K", "-e", "64K", "--out", collective)
    door(run.parent, *words, collective=collective)
    records = read_records(run.parent / collective)
    assert {record.status for record in records} <= {"ok", "not_applicable"}
    assert all(record.reason for record in records if record.status != "ok")


REFUSED = [
    (("-n", "5"), "measures nothing, so leave out -n"),
    (("-w", "0", "--rounds", "3"), "leave out -w, --rounds"),
    (("--resume", "--out", "x"), "leave out --resume"),
    (("--groups", "node"), "leave out --groups"),
    (("--proto", "ll"), "leave out --proto"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_only_a_measurement_has_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(COLLECTIVES["allreduce"], [*H100, *words])


def test_what_only_the_model_has_is_refused_elsewhere() -> None:
    with pytest.raises(UsageError, match="--topology, --per-node: only --backend model predicts, and --backend is mpi"):
        read(COLLECTIVES["allreduce"], ["--backend", "mpi", "--topology", "x", "--per-node", "2"])


def test_a_model_needs_a_topology_and_root_0() -> None:
    with pytest.raises(UsageError, match="needs to know the cluster: --topology FILE"):
        read(COLLECTIVES["allreduce"], ["--backend", "model"])
    with pytest.raises(UsageError, match="from and to rank 0: leave out -r"):
        read(COLLECTIVES["broadcast"], [*H100, "-r", "1"])


BAD = [
    (("--topology", "h100-nvlnk"), "unknown topology 'h100-nvlnk': did you mean h100-nvlink?"),
    (
        ("--topology", "h100-nvlink", "--ranks", "300"),
        "h100-nvlink has 256 in 32 nodes, so --ranks is 1 to that, not 300",
    ),
    (
        ("--topology", "two-core", "--ranks", "100000"),
        "a core has at most 256 ranks: two-core has 512 in 1 nodes, so --ranks is 1 to that, not 100000",
    ),
    (("--topology", "h100-nvlink", "--per-node", "9999999999"), "--ranks is 1 to that, not 319999999968"),
    (("--topology", "h100-nvlink", "--ranks", "²"), "each of --ranks is a whole number of at least 1, not '²'"),
    (("--topology", "h100-nvlink", "--results", ""), "a path is empty"),
    (("--topology", "h100-nvlink", "--library", "ncl"), "unknown library 'ncl': did you mean nccl or rccl?"),
    (("--topology", "h100-nvlink", "--ranks", "x"), "each of --ranks is a whole number of at least 1, not 'x'"),
]


NO_CLASS = """version: 1
blocks:
- {switch: s, nodes: "n[1-2]"}
"""
NO_LATENCY = """version: 1
name: silent
classes:
  c: {devices: 1, vendor: nvidia, pcie: {gbps: 512}, nics: 1, nic: {gbps: 400, us: 2}}
blocks:
- {switch: s, nodes: "n[1-2]", class: c}
"""


def test_nodes_of_no_class_have_no_devices_to_predict_for(tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text(NO_CLASS)
    done = door(tmp_path, "--backend", "model", "--topology", "bare.yaml", code=2)
    assert done.stderr.endswith("bare.yaml describes no devices: a prediction needs nodes whose class says theirs\n")
    assert done.stderr.count("\n") == 1


def test_nodes_without_devices_have_no_ranks(tmp_path: Path) -> None:
    text = NO_LATENCY.replace("classes:", "classes:\n  login: {devices: 0}")
    (tmp_path / "login.yaml").write_text(text + "- {switch: s, nodes: login, class: login}\n")
    out = door(tmp_path, "--backend", "model", "--topology", "login.yaml", "--per-node", "1", "-e", "8").stdout
    assert "# all-reduce on 2 ranks, 2 nodes" in out


def test_a_latency_that_nobody_said_is_told_and_a_single_rank_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "silent.yaml").write_text(NO_LATENCY)
    out = door(tmp_path, "--backend", "model", "--topology", "silent.yaml", "--ranks", "1,2", "-e", "8").stdout
    assert "# nobody said the latency of c pcie: it counts as none, and small sizes come out too fast\n" in out
    assert "plain): a collective takes two ranks, there is 1\n" in out
    assert "latency of" not in door(tmp_path, *H100, "--ranks", "2", "-e", "8").stdout.partition("# best")[0]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_answered_in_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = door(tmp_path, "--backend", "model", *words, code=2)
    assert done.stderr.startswith("commbench allreduce: error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "results").exists()


def test_results_are_fitted_first(tmp_path: Path) -> None:
    write_set(tmp_path / "measured", "a", 1, sizes=(8, 64, 512, 4096, 32768, 1 << 20))
    (plan,) = (tmp_path / "measured").rglob("manifest.json")
    plan.write_text(plan.read_text().replace('"algorithm": "auto"', '"algorithm": "ring"'))
    words = ("--backend", "model", "--topology", "two-core", "--ranks", "2,4", "--results", "measured", "--out", "run")
    text = door(tmp_path, *words).stdout
    assert "# fitted to " in text
    evidence = {record.evidence for record in read_records(tmp_path / "run") if record.nranks == 4}
    assert any("extrapolated: ranks beyond 2 to 2" in one for one in evidence)
    assert "not determined by these records" in text
    assert "cells are extrapolated: " in text
    assert read_manifest(tmp_path / "run")["library"]["fit"]["ranks"] == [2, 2]


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_more_than_one_process_is_refused_once(tmp_path: Path) -> None:
    done = launch([str(MPIRUN), "-n", "2", sys.executable, "-m", "commbench.allreduce", *H100], cwd=tmp_path)
    assert done.code == 2
    (complaint,) = done.complaints
    assert complaint.endswith("in one process, and 2 were launched: leave mpirun out, and say --ranks 2")
