"""Groups in one launch: each has its own right records, with its ranks and hosts; a run of groups can be resumed."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import Done, launch
from tests.mpi.test_bad_input import check_refused

DOOR = "commbench.allreduce"
HOST = os.uname().nodename
SIZES = [8, 64, 512, 4096, 32768]
QUICK = ["-n", "2", "--format", "json", "--out", "run"]
SWEEP = ["-b", "8", "-e", "64K", "-f", "8", "--algo", "auto,ring", "--rounds", "1", *QUICK]
SMALL = ["-b", "8", "-e", "64", "-f", "8", "--algo", "auto", *QUICK]
HALVES = "left: 0-1\nright: 3,2  # backwards\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "halves").write_text(HALVES, encoding="utf-8")
    return tmp_path


def right(done: Done, groups: dict[str, str], sizes: list[int], algorithms: tuple[str, ...] = ("auto",)) -> Any:
    """Check that each group (its ranks, as text) has a right record of each cell; return the records."""
    assert done.code == 0, done.stdout + done.stderr
    assert done.left == 0
    cells = [(group, algorithm, size) for group in groups for algorithm in algorithms for size in sizes]
    found = done.records
    assert Counter((r["group"], r["algorithm"], r["size"]) for r in found) == Counter(cells)
    for record in found:
        n = len(members(groups[record["group"]]))
        assert (record["ranks"], record["nranks"]) == (groups[record["group"]], n)
        assert (record["hosts"], record["nnodes"]) == (HOST, 1)
        if record["status"] == "ok":
            assert record["wrong"] == 0 and record["time_us"] > 0
            if record["collective"] == "allreduce":
                assert record["busbw"] == pytest.approx(record["algbw"] * 2 * (n - 1) / n)
        else:  # ring, with fewer elements than ranks
            assert (record["algorithm"], record["status"]) in {("ring", "rejected"), ("ring", "not_applicable")}
    return found


def members(text: str) -> list[int]:
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [rank for first, *last in ends for rank in range(first, (last or [first])[0] + 1)]


def visits(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "visits.jsonl").read_text().splitlines()]


def test_growing_groups_are_swept_in_one_launch() -> None:
    done = launch(4, DOOR, "--ranks", "2,3,4", *SWEEP)

    groups = {"first 2": "0-1", "first 3": "0-2", "all": "0-3"}
    records = right(done, groups, SIZES, ("auto", "ring"))
    assert "ok" in {record["status"] for record in records if record["algorithm"] == "ring"}


@pytest.mark.parametrize("concurrent", ["off", "on"])
def test_groups_of_a_file_run_one_after_another_or_at_once(folder: Path, concurrent: str) -> None:
    done = launch(4, DOOR, "--groups", "halves", "--concurrent", concurrent, *SWEEP, cwd=folder)

    right(done, {"left": "0-1", "right": "3,2"}, SIZES, ("auto", "ring"))
    assert ("all groups run at once" in done.stderr) == (concurrent == "on")


@pytest.mark.parametrize("concurrent", ["off", "on"])
def test_rank_0_leads_groups_that_it_is_not_in(tmp_path: Path, concurrent: str) -> None:
    (tmp_path / "others").write_text("pair: 2-3\nlone: 1\n", encoding="utf-8")

    done = launch(4, DOOR, "--groups", "others", "--concurrent", concurrent, "--rounds", "2", *SMALL, cwd=tmp_path)

    records = right(done, {"pair": "2-3", "lone": "1"}, [8, 64])
    assert {record["rounds"] for record in records} == {2}


def test_the_ranks_of_a_node_are_a_group() -> None:
    right(launch(3, DOOR, "--groups", "node", "--rounds", "1", *SMALL), {f"node {HOST}": "0-2"}, [8, 64])


@pytest.mark.parametrize("concurrent", ["off", "on"])
def test_groups_of_unlike_size_have_cells_of_their_own(tmp_path: Path, concurrent: str) -> None:
    """An all-gather among three ranks has other sizes than one of one, and more algorithms."""
    (tmp_path / "unlike").write_text("one: 3\nthree: 0-2\n", encoding="utf-8")
    words = ["-b", "8", "-e", "512", "-f", "8", "--algo", "auto,ring", "--rounds", "1", *QUICK]

    done = launch(4, "commbench.allgather", "--groups", "unlike", "--concurrent", concurrent, *words, cwd=tmp_path)

    assert done.code == 0, done.stderr
    found = {(r["group"], r["algorithm"], r["size"]): r["status"] for r in done.records}
    three = {("three", name, size): "ok" for name in ("auto", "ring") for size in (12, 60, 504)}
    statuses = {"auto": "ok", "ring": "not_applicable"}
    one = {("one", name, size): status for name, status in statuses.items() for size in (8, 64, 512)}
    assert found == three | one


@pytest.mark.parametrize("door", ["broadcast", "gather"])
def test_a_root_is_a_rank_of_each_group(folder: Path, door: str) -> None:
    words = ["--groups", "halves", "-r", "1", "--concurrent", "on", "--rounds", "1", *SMALL]
    records = right(launch(4, f"commbench.{door}", *words, cwd=folder), {"left": "0-1", "right": "3,2"}, [8, 64])

    assert {record["root"] for record in records} == {1}


def test_each_group_has_a_common_clock_of_its_own(folder: Path) -> None:
    words = ["--groups", "halves", "--concurrent", "on", "--method", "clock", "--rounds", "1", *SMALL]
    records = right(launch(4, DOOR, *words, cwd=folder), {"left": "0-1", "right": "3,2"}, [8, 64])

    assert {(record["method"], len(record["arrival_skew_us"])) for record in records} == {("clock", 2)}


def test_tables_name_the_groups(folder: Path) -> None:
    for form, heading in (("table", "# Group right: 2 ranks (3,2) on "), ("nccl-tests", "# Group: right, ranks 3,2")):
        words = ["--groups", "halves", "--rounds", "1", *SMALL, "--format", form, "--out", form]
        done = launch(4, DOOR, *words, cwd=folder)
        assert done.code == 0, done.stderr
        assert heading in done.stdout


# Resume


@pytest.mark.parametrize("concurrent", ["off", "on"])
def test_a_run_of_groups_goes_on(folder: Path, concurrent: str) -> None:
    words = ["--groups", "halves", "--concurrent", concurrent, "--rounds", "1", *SMALL]
    assert launch(4, DOOR, *words, cwd=folder).code == 0
    (folder / "halves").unlink()  # the plan is in the manifest

    done = launch(4, DOOR, "--resume", "--rounds", "3", "--format", "json", "--out", "run", cwd=folder)

    records = right(done, {"left": "0-1", "right": "3,2"}, [8, 64])
    assert {(record["rounds"], record["iterations"]) for record in records} == {(3, 6)}
    assert Counter((visit["cell"], visit["round"]) for visit in visits(folder)) == Counter(
        (cell, number) for cell in range(4) for number in range(3)
    )


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_run_of_groups_at_once_that_was_killed_is_completed(folder: Path, kept: int) -> None:
    words = ["--groups", "halves", "--concurrent", "on", "--rounds", "1", *SMALL]
    assert launch(4, DOOR, *words, cwd=folder).code == 0
    path = folder / "run" / "visits.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))

    done = launch(4, DOOR, "--resume", "--format", "json", "--out", "run", cwd=folder)

    records = right(done, {"left": "0-1", "right": "3,2"}, [8, 64])
    assert {record["status"] for record in records} == {"ok"}


# Bad input


@pytest.mark.parametrize(
    ("door", "words", "said"),
    [
        (DOOR, "--ranks 2,5", ["--ranks", "4", "5"]),
        (DOOR, "--ranks 2 --groups node", ["--ranks", "--groups"]),
        (DOOR, "--ranks 2,4 --concurrent on", ["--concurrent", "rank 0", "'first 2'", "'all'"]),
        (DOOR, "--groups leaf", ["--groups leaf", "topology", "FILE"]),
        (DOOR, "--groups rail", ["--groups rail", "node"]),
        (DOOR, "--groups nodes", ["--groups", "'nodes'", "node, leaf, rail"]),
        (DOOR, "--groups unknown", ["unknown:1", "0 to 3", "'4'"]),
        (DOOR, "--groups broken", ["broken:2", "b 2-3"]),
        (DOOR, "--groups shared --concurrent on", ["--concurrent", "rank 1", "'a'", "'b'"]),
        (DOOR, "--groups halves --concurrent perhaps", ["--concurrent", "perhaps"]),
        ("commbench.broadcast", "--groups halves -r 2", ["-r", "(2)", "2"]),
        ("commbench.broadcast", "--ranks 1,4 -r 1", ["-r", "(1)", "1"]),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("--") else "",
)
def test_bad_groups_are_refused_in_one_line(folder: Path, door: str, words: str, said: list[str]) -> None:
    (folder / "unknown").write_text("a: 0,4\n", encoding="utf-8")
    (folder / "broken").write_text("a: 0\nb 2-3\n", encoding="utf-8")
    (folder / "shared").write_text("a: 0,1\nb: 1,2\n", encoding="utf-8")
    before = sorted(folder.iterdir())

    check_refused(launch(4, door, *words.split(), "-b", "8", "-e", "8", "--out", "run", cwd=folder), *said)

    assert sorted(folder.iterdir()) == before
