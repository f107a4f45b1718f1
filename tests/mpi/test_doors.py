"""Every door, at 1 to 4 ranks, with every algorithm of the library: right answers, whole records, exit 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from commbench.results.status import FAILURES
from tests.mpi.launch import MPICH, OPEN_MPI, Done, launch, library, python, run

# What the issue promises to every reader of a record.
PROMISED = """
    collective backend library algorithm observed_algorithm evidence protocol observed_protocol channels status reason
    size count dtype redop inplace buffer group nranks nnodes method loop time_us time_us_low time_us_high time_us_mean
    time_us_min time_us_max time_us_p99 iterations rounds launch algbw busbw wrong simulated predicted
"""
KEYS = set(PROMISED.split())
DTYPES = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"}
NUMBERS = ["time_us", "time_us_mean", "time_us_min", "time_us_max", "time_us_p99", "algbw", "busbw"]

# Of each door: bus bandwidth over algorithm bandwidth, and whether its size counts a block for each rank.
Door = tuple[Callable[[int], float], bool]
DOORS: dict[str, Door] = {
    "allreduce": (lambda n: 2 * (n - 1) / n, False),
    "allgather": (lambda n: (n - 1) / n, True),
    "reducescatter": (lambda n: (n - 1) / n, True),
    "broadcast": (lambda n: 1.0, False),
    "reduce": (lambda n: 1.0, False),
    "alltoall": (lambda n: (n - 1) / n, True),
    "gather": (lambda n: (n - 1) / n, True),
    "scatter": (lambda n: (n - 1) / n, True),
    "sendrecv": (lambda n: 1.0, False),
}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
REDUCING = {"allreduce", "reducescatter", "reduce"}
QUICK = ["-n", "2", "--rounds", "1", "--format", "json", "--out", "run"]


def is_known_fault(record: dict[str, Any]) -> bool:
    """Whether this cell is one that the library really answers wrongly."""
    # Open MPI's all-gather sparbit, in place.
    names = [record[name] for name in ("library", "collective", "algorithm", "inplace")]
    return names == ["Open MPI 5.0.11", "allgather", "sparbit", True] and record["nranks"] > 1


def check_ends(done: Done, code: int = 0) -> None:
    bad = [line for line in done.stdout.splitlines() if any(f'"status": "{status}"' in line for status in FAILURES)]
    assert done.code == code, "\n".join([*bad, done.stderr])
    assert "Traceback" not in done.stderr
    assert done.left == 0


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("door", DOORS)
def test_every_algorithm_of_a_door_answers_right_and_leaves_whole_records(door: str, n: int) -> None:
    root = ["-r", str(n - 1)] if door in ROOTED else []
    done = launch(n, f"commbench.{door}", "-b", "8", "-e", "64K", "-f", "8192", "--inplace", "both", *root, *QUICK)

    records = done.records
    check_ends(done, int(any(map(is_known_fault, records))))
    factor, a_block_each = DOORS[door]
    share = 4 * n if a_block_each else 4
    sizes = [max(8, share) // share * share, 65536 // share * share]
    algorithms = list(dict.fromkeys(record["algorithm"] for record in records))
    cells = [(algorithm, size, place) for algorithm in algorithms for size in sizes for place in (False, True)]
    assert Counter((r["algorithm"], r["size"], r["inplace"]) for r in records) == Counter(cells)
    assert "auto" in algorithms
    assert len(algorithms) == 1 if n == 1 else len(algorithms) >= 5 or door not in ("allreduce", "broadcast")
    for record in records:
        check_record(record, door, n)
        assert record["count"] * share == record["size"]
        if record["busbw"] is not None:
            assert record["busbw"] == pytest.approx(record["algbw"] * factor(n))


def check_record(record: dict[str, Any], door: str, n: int) -> None:
    assert KEYS - record.keys() == set()
    asked = {"collective": door, "backend": "mpi", "nranks": n, "nnodes": 1, "dtype": "float32", "method": "barrier"}
    asked |= {"redop": "sum" if door in REDUCING else None, "simulated": False, "predicted": None}
    assert {name: record[name] for name in asked} == asked
    assert record["library"].startswith(library())
    status = record["status"]
    if is_known_fault(record):
        assert status == "wrong" and record["wrong"] > 0 and record["reason"], record
    elif door == "broadcast" and record["inplace"]:
        assert status == "not_applicable", record
    elif record["algorithm"] == "auto":
        assert status == "ok", record
    else:
        # Open MPI's refusals are known beforehand, MPICH's when it is asked.
        assert status in {MPICH: ("ok", "rejected"), OPEN_MPI: ("ok", "not_applicable")}[library()], record
    if status == "ok":
        assert record["reason"] == "" and record["wrong"] == 0
        assert (record["iterations"], record["rounds"]) == (2, 1)
        assert all(record[name] > 0 for name in NUMBERS if name != "busbw")
        assert record["time_us_min"] <= record["time_us"] <= record["time_us_max"]
        assert record["observed_algorithm"] == (None if record["algorithm"] == "auto" else record["algorithm"])
        assert record["evidence"]
    else:
        assert record["reason"]
        assert [record[name] for name in NUMBERS] == [None] * len(NUMBERS)
        assert (record["iterations"], record["rounds"]) == (0, 0)
    assert record["time_us_low"] is record["time_us_high"] is None  # one round has no interval


@pytest.mark.parametrize(("n", "size"), [(1, "64"), (2, "4K"), (3, "8")])
def test_every_data_type_is_reduced_exactly_by_every_reduction(n: int, size: str) -> None:
    words = f"-b {size} -e {size} -d all -o all --algo auto --inplace both".split()
    done = launch(n, "commbench.allreduce", *words, *QUICK)

    check_ends(done)
    records = done.records
    assert {r["dtype"] for r in records} == DTYPES
    assert {r["redop"] for r in records} == {"sum", "prod", "min", "max", "avg"}
    assert len(records) == 10 * 5 * 2
    # MPICH 5 sums bfloat16 and aborts on its products and comparisons; Open MPI has no such type.
    summed = {MPICH: {"sum", "avg"}, OPEN_MPI: set()}[library()]
    for record in records:
        exists = record["dtype"] != "bfloat16" or record["redop"] in summed
        assert record["status"] == ("ok" if exists else "not_applicable"), record
        assert record["wrong"] == (0 if exists else None)


@pytest.mark.parametrize("door", ["alltoall", "reducescatter"])
def test_every_data_type_is_moved_and_scattered_exactly(door: str) -> None:
    done = launch(
        3, f"commbench.{door}", *["-b", "4K", "-e", "4K", "-d", "all", "--algo", "auto", "--inplace", "both"], *QUICK
    )

    check_ends(done)
    assert len(done.records) == 10 * 2
    for record in done.records:
        unknown = library() == OPEN_MPI and door == "reducescatter" and record["dtype"] == "bfloat16"
        assert record["status"] == ("not_applicable" if unknown else "ok"), record


def test_back_to_back_is_a_method_of_its_own() -> None:
    done = launch(2, "commbench.allreduce", "-b", "8", "-e", "8", "--method", "loop", *QUICK)

    check_ends(done)
    assert {record["method"] for record in done.records} == {"loop"}
    assert "ok" in {record["status"] for record in done.records}


def test_one_rank_measures_auto_only_and_says_so() -> None:
    done = launch(1, "commbench.allgather", "-b", "8", "-e", "8", "--algo", "auto,ring,nvls", *QUICK)

    check_ends(done)
    assert "only auto runs" in done.stderr
    statuses = {record["algorithm"]: record["status"] for record in done.records}
    assert statuses == {"auto": "ok", "ring": "not_applicable", "nvls": "not_applicable"}
    reasons = {record["algorithm"]: record["reason"] for record in done.records}
    assert "only auto runs" in reasons["ring"] and "nvls" in reasons["nvls"]


def test_a_door_runs_without_any_launcher() -> None:
    done = run(python("commbench.allreduce", "-b", "8", "-e", "8", *QUICK))

    check_ends(done)
    assert [(r["algorithm"], r["status"], r["nranks"]) for r in done.records] == [("auto", "ok", 1)]


def test_sizes_too_small_for_an_element_each_are_raised_and_that_is_said() -> None:
    done = launch(3, "commbench.allgather", "-b", "1", "-e", "8", "-f", "2", "--algo", "auto", *QUICK)

    check_ends(done)
    assert [record["size"] for record in done.records] == [12]
    assert "raised" in done.stderr


@pytest.mark.parametrize("form", ["table", "nccl-tests", "csv"])
def test_standard_output_holds_nothing_but_the_format(form: str) -> None:
    done = launch(
        2,
        "commbench.allreduce",
        *[
            "-b",
            "8",
            "-e",
            "64",
            "-f",
            "8",
            "--algo",
            "auto,ring",
            "-n",
            "2",
            "--rounds",
            "1",
            "--out",
            "run",
            "--format",
        ],
        form,
    )

    check_ends(done)
    lines = done.stdout.splitlines()
    if form == "csv":
        assert KEYS - set(lines[0].split(",")) == set()
        assert len(lines) == 5
        return
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert {len(row) for row in rows} == {13 if form == "nccl-tests" else len(rows[0])}
    assert sorted(row[0] for row in rows) == ["64", "64", "8", "8"]
    assert done.stderr == ""
