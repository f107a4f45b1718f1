"""`commbench.pairs` among real ranks: every pair, whatever their number; a bad one named; bad input refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import commbench
from tests.mpi.launch import MPICH, Done, launch, library, python, run

DOOR, ODD = "commbench.pairs", "tests.mpi.odd_rank"
QUICK = ["-e", "16K", "-n", "3", "--rounds", "2", "--out", "run"]


def visits(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "visits.jsonl").read_text().splitlines()]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "records.jsonl").read_text().splitlines()]


def suspects(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "run" / "suspects.json").read_text())
    return found


def check_refused(done: Done, *words: str) -> None:
    """One line of ours that holds these words, and nothing else."""
    assert done.code == 2, done.stdout + done.stderr
    assert len(done.complaints) == 1, done.stderr
    assert [word for word in words if word not in done.complaints[0]] == [], done.complaints
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.left == 0
    if library() == MPICH:
        assert done.stderr.splitlines() == done.complaints


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_pair_is_measured_both_ways_in_each_round(n: int, tmp_path: Path) -> None:
    done = launch(n, DOOR, *QUICK, "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    pairs = n * (n - 1) // 2
    assert Counter(visit["cell"] for visit in visits(tmp_path)) == dict.fromkeys(range(3 * pairs), 2)
    assert all(visit["wrong"] == 0 for visit in visits(tmp_path))
    kinds = Counter((record["algorithm"], record["group"]) for record in done.records)
    names = [f"rank {i} - rank {j}" for i in range(n) for j in range(i + 1, n)]
    assert kinds == {("pingpong", name): 1 for name in names} | {("stream", name): 2 for name in names}
    for record in done.records:
        assert record["status"] == "ok"
        assert record["time_us"] > 0
        assert record["rounds"] == 2
        one, other = (int(word) for word in record["group"].replace("rank ", "").split(" - "))
        assert record["root"] in ([None] if record["algorithm"] == "pingpong" else [one, other])
        assert record["size"] == (8 if record["algorithm"] == "pingpong" else 16 << 10)
    assert records(tmp_path) == done.records


def test_a_run_loads_as_others_do(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    assert launch(3, DOOR, *QUICK, cwd=tmp_path).code == 0
    frame = commbench.load(tmp_path)
    assert len(frame) == 9
    assert set(frame["collective"]) == {"pairs"}


def test_the_table_has_a_row_for_each_rank_and_says_where_results_are(tmp_path: Path) -> None:
    done = launch(3, DOOR, *QUICK, "--concurrent", "off", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    for title in ("# Latency (us)", "# Bandwidth (GB/s), from row to column"):
        _, _, rest = done.stdout.partition(title + "\n")
        rows = rest.splitlines()[1:4]
        assert [row.split()[:2] for row in rows] == [["rank", str(i)] for i in range(3)]
        assert [row.split()[2:].index("-") for row in rows] == [0, 1, 2]
    assert "# 9 cells ok" in done.stdout
    assert "picture" in done.stdout


def test_csv_has_a_row_for_each_record_and_nothing_else(tmp_path: Path) -> None:
    done = launch(2, DOOR, *QUICK, "--format", "csv", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    assert "3 cells ok" in done.stderr


def test_a_late_rank_is_named(tmp_path: Path) -> None:
    done = launch(4, ODD, "late", *QUICK, "--rounds", "4", cwd=tmp_path)
    assert done.code == 0, done.stderr
    (found,) = suspects(tmp_path)["bandwidth"]
    assert (found["kind"], found["names"]) == ("host", [["rank 2"]])
    assert "# rank 2 is slow" in done.stdout


def test_halving_finds_the_late_rank(tmp_path: Path) -> None:
    done = launch(4, ODD, "late", *QUICK, "--rounds", "4", "--halve", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "# rank 2 is slow: all-reduce takes" in done.stdout
    (found,) = suspects(tmp_path)["allreduce"]
    assert found["names"] == ["rank 2"]
    statuses = Counter(record["status"] for record in records(tmp_path))
    assert statuses == {"ok": 4, "not_measured": 2}


@pytest.mark.parametrize("senders", [1, 3])
def test_every_rank_receives_from_some(senders: int, tmp_path: Path) -> None:
    done = launch(4, DOOR, *QUICK, "--incast", str(senders), "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert [record["root"] for record in done.records] == [0, 1, 2, 3]
    for record in done.records:
        assert (record["status"], record["nranks"], record["wrong"]) == ("ok", senders + 1, 0)
        assert record["size"] == senders * (16 << 10)
        assert record["algbw"] > 0


@pytest.mark.parametrize("mode", [[], ["--incast", "2"]])
def test_what_arrives_wrong_is_said(mode: list[str], tmp_path: Path) -> None:
    done = launch(3, ODD, "wrong", *QUICK, *mode, cwd=tmp_path)
    assert done.code == 1, done.stdout + done.stderr
    assert "bytes did not arrive as they were sent" in done.stdout
    bad = [visit for visit in visits(tmp_path) if visit["status"] == "wrong"]
    assert bad
    assert all(visit["wrong"] > 0 for visit in bad)


def test_a_stuck_rank_ends_the_job(tmp_path: Path) -> None:
    done = launch(3, ODD, "stuck", *QUICK, "-T", "2", cwd=tmp_path, timeout=40)
    assert done.code == 124, done.stdout + done.stderr
    assert "timeout (-T 2) at pairs, pingpong" in done.stderr
    assert done.left == 0
    lost = [visit for visit in visits(tmp_path) if visit["status"] == "timeout"]
    assert lost
    done = launch(3, DOOR, "--out", "run", "--resume", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert {record["status"] for record in done.records} == {"ok"}


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    assert launch(3, DOOR, *QUICK, cwd=tmp_path).code == 0
    journal = tmp_path / "run" / "visits.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:7]) + lines[7][:20])
    done = launch(3, DOOR, "--out", "run", "--resume", "--rounds", "3", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert journal.read_text().startswith("".join(lines[:7]))
    seen = Counter((visit["cell"], visit["round"]) for visit in visits(tmp_path))
    assert seen == Counter((cell, number) for cell in range(9) for number in range(3))


def test_a_budget_that_is_spent_is_said_and_the_rest_is_not_measured(tmp_path: Path) -> None:
    done = launch(3, DOOR, *QUICK, "--budget", "0.000001", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "9 cells not_measured" in done.stdout
    assert "--resume" in done.stdout
    done = launch(3, DOOR, "--out", "run", "--resume", "--budget", "60", cwd=tmp_path)
    assert "9 cells ok" in done.stdout


def test_a_run_is_only_taken_up_as_it_was_begun(tmp_path: Path) -> None:
    assert launch(2, DOOR, *QUICK, cwd=tmp_path).code == 0
    check_refused(launch(3, DOOR, "--out", "run", "--resume", cwd=tmp_path), "number of ranks 2", "3")
    check_refused(launch(2, DOOR, "--out", "run", "--resume", "-e", "1K", cwd=tmp_path), "large", "16384", "1024")
    check_refused(launch(2, DOOR, *QUICK, cwd=tmp_path), "run", "--resume")
    check_refused(launch(2, "commbench.allreduce", "--out", "run", "--resume", cwd=tmp_path), "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"large": 16384', '"large": 4096'))
    check_refused(launch(2, DOOR, "--out", "run", "--resume", cwd=tmp_path), "run", "no plan of commbench pairs")


def test_one_rank_is_refused() -> None:
    check_refused(launch(1, DOOR), "at least 2 ranks")
    check_refused(run(python(DOOR)), "at least 2 ranks")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-b 0", ["-b", "0"]),
        ("-e 8X", ["-e", "8X"]),
        ("-e 900T", ["-e", "900T", "memory"]),
        ("-n 0", ["-n", "0"]),
        ("--rounds 0", ["--rounds", "0"]),
        ("--incast 3", ["--incast", "1 to 2", "3"]),
        ("--incast 2 --halve", ["--incast", "--halve"]),
        ("--halve", ["--halve", "at least 4", "3"]),
        ("--format xml", ["xml"]),
        ("--resume", ["--resume", "--out"]),
        ("--out a_file/run", ["a_file", "--out"]),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("in the way")
    check_refused(launch(3, DOOR, *arguments.split(), cwd=tmp_path), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


def test_help_is_printed_once() -> None:
    done = launch(2, DOOR, "--help")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count("usage: commbench pairs") == 1
