"""What is asked for by name runs, is refused with a reason, or is unknown; and the switch really switches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.mpi.launch import MPICH, OPEN_MPI, launch, library

DOOR = "commbench.allreduce"
QUICK = ["-n", "2", "--rounds", "1", "--format", "json", "--out", "run"]
only_mpich = pytest.mark.skipif(library() != MPICH, reason="about MPICH's way of refusing an algorithm")
only_open_mpi = pytest.mark.skipif(library() != OPEN_MPI, reason="about Open MPI's way of refusing an algorithm")


def by_algorithm(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["size"]):
        found.setdefault(record["algorithm"], []).append(record)
    return found


def test_what_was_asked_for_ran_or_says_why_it_did_not() -> None:
    asked = [
        "-b",
        "8",
        "-e",
        "1M",
        "-f",
        "8",
        "--algo",
        "ring,recursive_doubling,tree,nvls",
        "--format",
        "json",
        "--rounds",
        "2",
        "--out",
        "run",
    ]

    done = launch(4, DOOR, *asked, timeout=120)

    assert done.code == 0, done.stderr
    found = by_algorithm(done.records)
    sizes = [8, 64, 512, 4096, 32768, 262144]
    assert {name: [record["size"] for record in records] for name, records in found.items()} == dict.fromkeys(
        ["ring", "recursive_doubling", "tree", "nvls"], sizes
    )
    for record in found.pop("nvls"):
        assert record["status"] == "not_applicable"
        assert library() in record["reason"] and "nvls" in record["reason"]
    if library() == OPEN_MPI:
        for record in found.pop("tree"):
            assert record["status"] == "not_applicable" and "tree" in record["reason"]
        # Two elements on four ranks: Open MPI would run another algorithm without a word.
        first = found["ring"].pop(0)
        assert first["status"] == "not_applicable" and "recursive_doubling" in first["reason"]
    for name, records in found.items():
        for record in records:
            assert record["status"] == "ok", record
            assert record["observed_algorithm"] == name
            assert "control variable read back" in record["evidence"]
            assert record["wrong"] == 0 and record["time_us"] > 0


def test_an_algorithm_is_found_by_the_librarys_own_name_too() -> None:
    native = {MPICH: "reduce_scatter_allgather", OPEN_MPI: "basic_linear"}[library()]
    canonical = {MPICH: "rabenseifner", OPEN_MPI: "linear"}[library()]

    done = launch(2, DOOR, "-b", "64", "-e", "64", "--algo", f"{native},{canonical}", *QUICK)

    assert done.code == 0, done.stderr
    assert [record["algorithm"] for record in done.records] == [canonical]


def test_an_unknown_algorithm_is_answered_with_the_nearest_names() -> None:
    done = launch(2, DOOR, "--algo", "recursiv_doubling", *QUICK)

    assert done.code == 2
    assert done.stdout == ""
    assert len(done.complaints) == 1
    assert "'recursiv_doubling'" in done.complaints[0] and "recursive_doubling" in done.complaints[0]
    assert done.left == 0


@only_mpich
def test_what_mpich_falls_back_from_is_rejected_in_its_own_words_and_out_of_sight() -> None:
    done = launch(3, DOOR, "-b", "8", "-e", "64K", "-f", "64", "--algo", "smp", *QUICK)

    assert done.code == 0, done.stderr
    records = done.records
    assert len(records) == 3
    for record in records:
        assert record["status"] == "rejected"
        assert record["reason"] == "the library says: Allreduce smp cannot be applied"
        assert record["observed_algorithm"] is None and record["time_us"] is None
    assert "cannot be applied" not in done.stderr and "not usable" not in done.stderr


@only_mpich
def test_mpichs_rejected_algorithms_do_not_spoil_what_comes_after() -> None:
    words = [
        "-b",
        "64",
        "-e",
        "64K",
        "-f",
        "64",
        "--algo",
        "ring,smp,recursive_doubling",
        "-n",
        "5",
        "--rounds",
        "3",
        "--format",
        "json",
        "--out",
        "run",
    ]

    done = launch(4, DOOR, *words)

    assert done.code == 0, done.stderr
    found = by_algorithm(done.records)
    assert {name: {record["status"] for record in records} for name, records in found.items()} == {
        "ring": {"ok"},
        "smp": {"rejected"},
        "recursive_doubling": {"ok"},
    }
    assert {record["rounds"] for name in ("ring", "recursive_doubling") for record in found[name]} == {3}


@only_open_mpi
@pytest.mark.parametrize(
    ("door", "n", "algorithm", "runs"),
    [
        ("allreduce", 4, "ring", "recursive_doubling"),
        ("allgather", 3, "neighbor_exchange", "ring"),
        ("allgather", 3, "recursive_doubling", "bruck"),
    ],
)
def test_what_open_mpi_would_quietly_replace_is_not_applicable(door: str, n: int, algorithm: str, runs: str) -> None:
    done = launch(n, f"commbench.{door}", "-b", "8", "-e", "8", "--algo", algorithm, *QUICK)

    assert done.code == 0, done.stderr
    (record,) = done.records
    assert record["status"] == "not_applicable"
    assert f"would run {runs} instead" in record["reason"]


def test_the_switch_switches_inside_one_run_and_back() -> None:
    third = {MPICH: "tree", OPEN_MPI: "linear"}[library()]
    names = ["auto", "ring", "recursive_doubling", third, "auto", "ring", "auto"]

    done = launch(4, "tests.mpi.fingerprint", *names)

    assert done.code == 0, done.stderr
    auto, ring, doubling, other, auto_again, ring_again, auto_at_last = json.loads(done.stdout)
    assert len({ring, doubling, other}) == 3, "three ways of adding, three results"
    assert auto == auto_again == auto_at_last
    assert ring == ring_again
