"""A run that was killed goes on where it was; a run goes on only as it was begun."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import Done, Job, launch, mpirun

DOOR = "commbench.allreduce"
RANKS, ROUNDS = 2, 8
# 18 cells of 8 visits each: long enough to be killed half-way at any speed of the machine.
LONG = f"-b 8 -e 256K -f 8 --algo auto,ring,recursive_doubling -n 40 --rounds {ROUNDS} --format json --out run".split()
CELLS = 18
SHORT = [
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
    "2",
    "--format",
    "json",
    "--out",
    "run",
]
RESUME = ["--out", "run", "--resume", "--format", "json"]


def lines(folder: Path) -> list[str]:
    """The whole lines of the journal."""
    path = folder / "run" / "visits.jsonl"
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def visits(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(folder)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "run").iterdir()}


def measured(folder: Path) -> Counter[tuple[int, int]]:
    """How often each round of each cell was measured."""
    return Counter((visit["cell"], visit["round"]) for visit in visits(folder) if visit["status"] == "ok")


def go_on(folder: Path, *arguments: str, n: int = RANKS, door: str = DOOR) -> Done:
    return launch(n, door, *RESUME, *arguments, cwd=folder)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    contents = json.loads(path.read_text())
    change(contents)
    path.write_text(json.dumps(contents))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run that went well; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    done = launch(RANKS, DOOR, *SHORT, cwd=folder)
    assert done.code == 0, done.stderr
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be spoilt."""
    (tmp_path / "run").mkdir()
    for name, contents in files(finished).items():
        (tmp_path / "run" / name).write_bytes(contents)
    return tmp_path


@pytest.mark.parametrize("after", [5, 40])
def test_a_killed_run_goes_on_and_loses_only_the_visit_in_flight(tmp_path: Path, after: int) -> None:
    with Job(mpirun(RANKS, DOOR, *LONG), tmp_path) as job:
        deadline = time.monotonic() + 60
        while len(lines(tmp_path)) < after:
            assert job.running and time.monotonic() < deadline
            time.sleep(0.005)
        job.kill()
    kept = lines(tmp_path)
    assert after <= len(kept) < CELLS * ROUNDS, "the run ended before it was killed"

    done = go_on(tmp_path)

    assert done.code == 0, done.stderr
    assert lines(tmp_path)[: len(kept)] == kept
    sessions = [visit["session"] for visit in visits(tmp_path)]
    assert sessions == [0] * len(kept) + [1] * (CELLS * ROUNDS - len(kept))
    # Each round of each cell once: nothing measured twice, nothing missing.
    assert measured(tmp_path) == Counter((cell, number) for cell in range(CELLS) for number in range(ROUNDS))
    records = done.records
    assert len(records) == CELLS
    assert {(record["status"], record["rounds"], record["iterations"]) for record in records} == {
        ("ok", ROUNDS, 40 * ROUNDS)
    }
    stored = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert sorted(map(str, records)) == sorted(map(str, stored))


def test_a_visit_whose_line_was_cut_short_is_made_again(copy: Path) -> None:
    path = copy / "run" / "visits.jsonl"
    before = lines(copy)
    path.write_bytes(path.read_bytes()[:-20])

    done = go_on(copy)

    assert done.code == 0, done.stderr
    after = visits(copy)
    assert lines(copy)[:-1] == before[:-1]
    assert len(after) == len(before)
    assert (after[-1]["cell"], after[-1]["round"], after[-1]["session"]) == (
        *(json.loads(before[-1])[name] for name in ("cell", "round")),
        1,
    )


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_what_failed_or_timed_out_is_tried_again(copy: Path, status: str) -> None:
    kept = visits(copy)[:4]  # the first pass
    kept[1] = {name: kept[1][name] for name in ("cell", "round", "session")} | {"status": status, "reason": "made up"}
    (copy / "run" / "visits.jsonl").write_text("".join(json.dumps(visit) + "\n" for visit in kept))

    done = go_on(copy)

    assert done.code == 0, done.stderr
    assert {(record["status"], record["rounds"]) for record in done.records} == {("ok", 2)}


def test_a_finished_run_has_nothing_to_go_on_with(copy: Path) -> None:
    before = files(copy)

    done = go_on(copy)

    assert done.code == 0, done.stderr
    after = files(copy)
    assert (after["visits.jsonl"], after["records.jsonl"]) == (before["visits.jsonl"], before["records.jsonl"])
    assert len(done.records) == 4


def test_what_the_budget_cut_is_measured_when_the_run_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    words = [
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8",
        "--algo",
        "auto,ring",
        "--budget",
        "0.001",
        "--format",
        "json",
        "--out",
        "run",
    ]
    cut = launch(RANKS, DOOR, *words, cwd=tmp_path)
    assert cut.code == 0, cut.stderr
    missing = [record for record in cut.records if record["status"] == "not_measured"]
    assert len(cut.records) == 10 and missing
    assert all(record["time_us"] is None and "budget" in record["reason"] for record in missing)
    assert "cut" in cut.stderr

    done = go_on(tmp_path, "--budget", "60", "--rounds", "1")

    assert done.code == 0, done.stderr
    assert {record["status"] for record in done.records} == {"ok"}


OTHERWISE = [
    (("-b", "16"), "smallest"),
    (("--algo", "auto"), "algorithms"),
    (("-n", "3"), "iterations"),
]


@pytest.mark.parametrize(("arguments", "named"), OTHERWISE)
def test_a_run_does_not_go_on_with_other_arguments(finished: Path, arguments: tuple[str, ...], named: str) -> None:
    before = files(finished)

    done = go_on(finished, *arguments)

    assert done.code == 2
    assert len(done.complaints) == 1 and named in done.complaints[0]
    assert files(finished) == before


def test_a_run_goes_on_with_its_own_arguments_repeated(copy: Path) -> None:
    done = go_on(copy, *SHORT)

    assert done.code == 0, done.stderr


def test_a_run_does_not_go_on_with_another_number_of_ranks(finished: Path) -> None:
    before = files(finished)
    done = go_on(finished, n=3)

    assert done.code == 2
    assert len(done.complaints) == 1 and "number of ranks 2" in done.complaints[0]
    assert files(finished) == before


def test_a_run_does_not_go_on_with_another_collective(finished: Path) -> None:
    done = go_on(finished, door="commbench.broadcast")

    assert done.code == 2
    assert len(done.complaints) == 1 and "collective" in done.complaints[0]


def test_a_run_does_not_go_on_with_another_library(copy: Path) -> None:
    rewrite(copy / "run" / "manifest.json", lambda m: m["plan"]["facts"].update(library="Another MPI 9.9"))

    done = go_on(copy)

    assert done.code == 2
    assert len(done.complaints) == 1 and "Another MPI 9.9" in done.complaints[0]


def test_a_folder_with_a_run_is_not_taken_for_a_new_one(finished: Path) -> None:
    before = files(finished)

    done = launch(RANKS, DOOR, *SHORT, cwd=finished)

    assert done.code == 2
    assert len(done.complaints) == 1 and "--resume" in done.complaints[0]
    assert files(finished) == before


def test_a_folder_without_a_run_cannot_be_gone_on_with(tmp_path: Path) -> None:
    done = go_on(tmp_path)

    assert done.code == 2
    assert len(done.complaints) == 1 and "no run" in done.complaints[0]


SPOILT = [
    ("manifest.json", lambda text: "{", "manifest"),
    ("manifest.json", lambda text: text.replace('"version": 1', '"version": 99', 1), "format 99"),
    ("visits.jsonl", lambda text: "nonsense\n" + text, "visits.jsonl:1"),
    ("visits.jsonl", lambda text: text.replace('"cell": 0', '"cell": 4', 1), "cell 4"),
]


@pytest.mark.parametrize(("name", "spoil", "named"), SPOILT, ids=[f"{name} {named}" for name, _, named in SPOILT])
def test_a_spoilt_folder_is_refused_in_one_line(copy: Path, name: str, spoil: Callable[[str], str], named: str) -> None:
    path = copy / "run" / name
    path.write_text(spoil(path.read_text()))

    done = go_on(copy)

    assert done.code == 2
    assert len(done.complaints) == 1 and named in done.complaints[0]
    assert "Traceback" not in done.stderr
