"""A library that answers wrongly is caught at every size, its bandwidth withdrawn, and the run ends with 1."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.mpi import broken
from tests.mpi.launch import Done, launch

WORDS = ["--backend", "tests.mpi.broken", "-n", "8", "--rounds", "1", "--format", "json", "--out", "run"]
SIZES = ["-b", "8", "-e", "64K", "-f", "64"]
RATES = ("time_us", "time_us_mean", "time_us_min", "time_us_max", "algbw", "busbw")


def names(faults: Iterable[broken.Fault]) -> set[str]:
    return {fault.__name__ for fault in faults}


def statuses(done: Done) -> dict[str, set[str]]:
    """Every algorithm's statuses."""
    found: dict[str, set[str]] = {}
    for record in done.records:
        found.setdefault(record["algorithm"], set()).add(record["status"])
    return found


@pytest.mark.parametrize(
    ("door", "n", "words"),
    [
        ("allreduce", 3, []),
        ("allreduce", 2, ["--inplace", "in", "-d", "int32"]),
        ("allreduce", 2, ["-d", "bfloat16,half,uint64"]),
        ("allgather", 3, []),
        ("allgather", 4, ["--inplace", "in", "-d", "double"]),
        ("alltoall", 2, ["-d", "uint8"]),
    ],
    ids=str,
)
def test_every_fault_is_caught_at_every_size(door: str, n: int, words: list[str]) -> None:
    wrong = names(broken.WRONG) | (set() if door == "allreduce" else names(broken.WRONG_IN_ORDER))

    done = launch(n, f"commbench.{door}", "--algo", ",".join(["auto", *sorted(wrong)]), *SIZES, *words, *WORDS)

    assert done.code == 1, done.stderr
    assert done.left == 0
    exists = [record for record in done.records if record["status"] != "not_applicable"]
    assert len(exists) >= len(wrong) * 3
    for record in exists:
        if record["algorithm"] == "auto":
            assert record["status"] == "ok" and record["wrong"] == 0 and record["busbw"] > 0, record
        else:
            assert record["status"] == "wrong" and record["wrong"] > 0, record
            assert [record[name] for name in RATES] == [None] * len(RATES)
            assert "differ" in record["reason"]
            assert "cells wrong" in done.stderr


def test_a_single_wrong_element_is_counted_as_one() -> None:
    done = launch(2, "commbench.allreduce", "--algo", "wrong_element", "-b", "64K", "-e", "64K", *WORDS)

    assert done.code == 1
    assert [record["wrong"] for record in done.records] == [1]


@pytest.mark.parametrize(
    ("faults", "code", "expected"),
    [
        ("auto,refuses", 0, {"auto": {"ok"}, "refuses": {"rejected"}}),
        ("auto,raises", 1, {"auto": {"ok"}, "raises": {"failed"}}),
        ("auto,substituted", 1, {"auto": {"ok"}, "substituted": {"substituted"}}),
    ],
)
def test_other_ends_of_a_cell_keep_the_run_going(faults: str, code: int, expected: dict[str, set[str]]) -> None:
    done = launch(3, "commbench.allreduce", "--algo", faults, *SIZES, *WORDS)

    assert statuses(done) == expected
    assert done.code == code
    assert done.left == 0
    assert {record["busbw"] for record in done.records if record["algorithm"] != "auto"} == {None}
    if "substituted" not in expected:
        assert all("made up" in record["reason"] for record in done.records if record["algorithm"] != "auto")


def test_without_the_check_nothing_is_claimed_about_the_answer() -> None:
    done = launch(2, "commbench.allreduce", "--algo", "wrong_element", "-c", "0", *SIZES, *WORDS)

    assert done.code == 0, done.stderr
    assert {(record["status"], record["wrong"]) for record in done.records} == {("ok", None)}


def test_what_a_test_library_gave_is_stamped_simulated() -> None:
    done = launch(2, "commbench.allreduce", "--algo", "auto", "-b", "8", "-e", "8", *WORDS)

    assert [record["simulated"] for record in done.records] == [True]
