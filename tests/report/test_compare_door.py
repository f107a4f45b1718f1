"""`commbench.compare` from its command line, over run folders made up here."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commbench.compare import fraction, main
from commbench.errors import UsageError
from tests.report import doors
from tests.results import logs
from tests.results.test_launches import write_set

ROOT = Path(__file__).resolve().parents[2]
SIZES = (8, 512, 65536)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of eight launches, and one that was not repeated."""
    top = tmp_path_factory.mktemp("runs")
    write_set(top / "before", "a", 8, sizes=SIZES)
    write_set(top / "after", "b", 8, scale=1.2, sizes=(*SIZES, 1 << 20))
    write_set(top / "once", "a", 1, scale=1.2, sizes=SIZES)
    write_set(top / "other", "c", 8, sizes=SIZES, library="Open MPI 5.0.11")
    write_set(top / "model", "m", 1, sizes=SIZES, simulated=True)
    write_set(top / "pair", "a", 5, sizes=SIZES)
    write_set(top / "pair", "b", 5, sizes=SIZES, scale=1.2)
    (top / "empty").mkdir()
    (top / "log.txt").write_text("no run of ours\n")
    return top


def door(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> doors.Said:
    return doors.say(main, runs, monkeypatch, capsys, words)


@pytest.fixture
def say(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: door(runs, monkeypatch, capsys, *words)


def test_the_table_says_what_is_slower_what_is_unmatched_and_how(say: Any) -> None:
    code, out, err = say("before", "after")
    assert (code, err) == (0, "")
    assert out.startswith("# A: before: 8 launches of MPICH 5.0.2; 2 ranks on 1 node\n# B: after: 8 launches of ")
    assert (
        "# B is slower than A in 3 cells, by more than shuffled launches are apart (in 95 % of ways); most in " in out
    )
    assert "# allreduce, 2 ranks on 1 node, float32, sum, auto: A is faster from 8 to 64K, up to 1." in out
    only = "# only in B: allreduce auto float32 sum host barrier 2 ranks on 1 node: 1M"
    assert f"# Unmatched: 1 cell\n{only}\n" in out
    rows = [line.split() for line in out.splitlines() if line.endswith("  slower") and not line.startswith("#")]
    assert [row[0] for row in rows] == ["8", "512", "65536"]
    assert all(float(row[4]) == pytest.approx(1.2, rel=0.05) for row in rows)
    assert re.search(r"allreduce +2 ranks on 1 node +float32 +auto +latency +up to 32 KiB +2 ", out)


def test_one_launch_gives_the_ratio_and_says_that_it_may_be_noise(say: Any) -> None:
    code, out, _ = say("before", "once")
    assert code == 0
    assert "# in 3 cells cannot tell whether the ratio is noise: a test takes 5 launches of each side" in out


def test_other_libraries_are_said_to_be_compared_by_what_they_chose(say: Any) -> None:
    _, out, _ = say("before", "other")
    assert "# auto: what each library chose by itself (auto), whichever algorithm that was\n" in out
    assert re.search(r"library +MPICH 5.0.2 +Open MPI 5.0.11", out)


def test_a_folder_of_two_sets_is_two_sides(say: Any) -> None:
    code, out, _ = say("pair", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {(line["a"], line["b"]) for line in lines} == {("pair (a)", "pair (b)")}


def test_the_lines_of_json_hold_everything(say: Any) -> None:
    code, out, _ = say("before", "after", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["kind"] for line in lines] == ["cell"] * 3 + ["band"] * 2 + ["unmatched"]
    first = lines[0]
    assert (first["size"], first["algorithm_a"], first["launches_b"], first["verdict"]) == (8, "auto", 8, "slower")
    assert first["low"] < first["ratio"] < first["high"] and first["p"] <= 0.05
    assert (lines[-1]["size"], lines[-1]["why"]) == (1 << 20, "only in after")


def test_the_csv_has_a_line_a_matched_cell(say: Any) -> None:
    _, out, _ = say("before", "after", "other", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["b"], row["size"], row["way"]) for row in rows] == [
        (name, str(size), "auto") for name in ("after", "other") for size in SIZES
    ]
    assert all(float(row["ratio"]) > 0 and row["verdict"] for row in rows)


def test_markdown_has_tables_and_takes_text_of_logs_for_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "x", "a", 1, library="MPICH 5|<b>")
    write_set(tmp_path / "y", "a", 1)
    code, out, _ = door(tmp_path, monkeypatch, capsys, "x", "y", "--format", "md")
    assert code == 0
    assert "| library | MPICH 5\\|&lt;b> | MPICH 5.0.2 |" in out
    tables = re.findall(r"(?:^\|.*\n)+", out, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("words", "expected", "last"),
    [
        (["before", "after", "--fail-if-slower", "5%"], 1, "failed: 3 of 3 cells slower by more than 5 %"),
        (["before", "after", "--fail-if-slower", "0.05"], 1, "failed: 3 of 3 cells slower by more than 5 %"),
        (["before", "after", "--fail-if-slower", "50%"], 0, "passed: 0 of 3 cells slower by more than 50 %"),
        (["after", "before", "--fail-if-slower", "5%"], 0, "passed: 0 of 3 cells slower by more than 5 %"),
        (["before", "once", "--fail-if-slower", "5%"], 3, "cannot tell: 0 of 3 cells slower by more than 5 %"),
        (["before", "other", "after", "--fail-if-slower", "8%"], 1, "failed: 3 of 6 cells slower by more than 8 %"),
    ],
)
def test_the_gate(say: Any, words: list[str], expected: int, last: str) -> None:
    code, out, err = say(*words)
    assert code == expected
    *cells, outcome = err.splitlines()
    assert outcome.startswith(f"# --fail-if-slower: {last}")
    assert len(cells) == {0: 0, 1: 3, 3: 3}[expected]
    assert all(
        re.match(r"# (slower|cannot tell) in [BC]: allreduce auto at \w+, 2 ranks on 1 node, ", c) for c in cells
    )
    assert out.startswith("# A: ")


def test_text_of_a_log_does_not_reach_the_terminal_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "x", "a", 1, library="MPICH 5\x1b[2J\nB is faster")
    write_set(tmp_path / "y", "a", 1)
    _, out, _ = door(tmp_path, monkeypatch, capsys, "x", "y")
    assert "\x1b" not in out and "\nB is faster" not in out
    assert "MPICH 5\\x1b[2J\\nB is faster" in out


def test_a_reader_who_left_does_not_change_the_code(runs: Path) -> None:
    command = [sys.executable, "-m", "commbench.compare", "before", "after", "--fail-if-slower", "50%"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=runs, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as it:
        assert it.stdout and it.stderr
        it.stdout.close()
        said = it.stderr.read().decode()
    assert (it.returncode, said.count("\n")) == (0, 1)


def test_the_gate_does_not_pass_a_cell_that_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "x", "a", 5, sizes=SIZES)
    write_set(tmp_path / "y", "a", 5, sizes=SIZES, scale=0.5)
    path = tmp_path / "y" / "a-03" / "visits.jsonl"
    wrong = {"cell": 1, "round": 3, "session": 0, "status": "wrong", "reason": "1 element differs", "wrong": 1}
    path.write_text(path.read_text() + json.dumps(wrong) + "\n")
    code, out, err = door(tmp_path, monkeypatch, capsys, "x", "y", "--fail-if-slower", "5%")
    assert code == 3
    assert "# cannot tell in B: allreduce auto at 512 ended as wrong: 1 element differs\n" in err
    assert "# allreduce auto at 512 ended as wrong in B (1 launch): 1 element differs\n" in out


def test_all_files_of_a_run_are_one_launch_of_it(runs: Path, say: Any) -> None:
    """A pattern that reaches manifest, visits and records of a run must not make three launches of one."""
    code, out, _ = say("before/*/[mrv]*.json*", "after/*", "--json")
    rows = [line for line in map(json.loads, out.splitlines()) if line["kind"] == "cell"]
    assert code == 0
    assert {(row["launches_a"], row["launches_b"]) for row in rows} == {(8, 8)}


def test_logs_of_unlike_systems_are_sides_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [(1 << p, 10.0, 11.0) for p in range(10, 14)]
    (tmp_path / "logs").mkdir()
    for name, device in (
        ("one", "NVIDIA H100 80GB HBM3"),
        ("two", "NVIDIA A100-SXM4-80GB"),
        ("three", "NVIDIA A100-SXM4-80GB"),
    ):
        (tmp_path / "logs" / f"{name}.log").write_text(logs.nccl_tests(times, device=device))
    _, out, _ = door(tmp_path, monkeypatch, capsys, "logs")
    assert "# A: logs (NVIDIA H100 80GB HBM3): 1 launch of NCCL" in out
    assert "# B: logs (NVIDIA A100-SXM4-80GB): 2 launches of NCCL" in out
    assert "# auto: what each library chose by itself" in out and "verdict" not in out


def test_an_empty_call_is_in_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "x", "a", 1, sizes=(0, 8))
    write_set(tmp_path / "y", "a", 1, sizes=(0, 8), scale=2.0)
    _, out, _ = door(tmp_path, monkeypatch, capsys, "x", "y", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    (row,) = [line for line in lines if line["kind"] == "cell" and line["size"] == 8]
    (band,) = [line for line in lines if line["kind"] == "band"]
    assert (band["cells"], band["ratio"]) == (1, pytest.approx(row["ratio"]))


REFUSED = [
    ([], "the following arguments are required: PATH"),
    (["before"], "a comparison takes two sides, and before is one"),
    (["before", "before"], "each side is another one, and before is named twice"),
    (["before", "nowhere"], "there is no nowhere"),
    (["before", "empty"], "empty holds no run"),
    (["before", "before/a-01"], "a-01 is in before and in before/a-01"),
    (["pa*r/*", "before"], "pa*r/* reaches the sets a and b, which are sides of their own"),
    (["before", "log.txt"], "log.txt is of no format that is known here"),
    (["before", "model"], "simulated results are not compared with measured ones, and model has simulated ones"),
    (["before", "after", "--match", "gpus"], "--match gpus needs each rank's device, and before does not tell"),
    (["before", "after", "--match", "racks"], "invalid choice: 'racks'"),
    (["before", "after", "--json", "--format", "md"], "not allowed with argument"),
    (["before", "after", "--fail-if-slower", "5"], "--fail-if-slower is a part of the time: write 5%"),
    (["before", "after", "--fail-if-slower=-5%"], "--fail-if-slower is a number of at least 0"),
    (["before", "after", "--fail-if-slower", "much"], "--fail-if-slower is a number of at least 0, not 'much'"),
    (["before", "after", "--frobnicate"], "unrecognized arguments: --frobnicate"),
]


@pytest.mark.parametrize(("words", "answer"), REFUSED, ids=[" ".join(words) or "nothing" for words, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(say: Any, words: list[str], answer: str) -> None:
    code, out, err = say(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("commbench compare: error: ") and answer in err


def test_a_part_is_a_percentage_or_a_fraction() -> None:
    assert (fraction("5%", "x"), fraction(" 0.05 ", "x"), fraction("150%", "x"), fraction("0%", "x")) == (
        0.05,
        0.05,
        1.5,
        0,
    )
    with pytest.raises(UsageError, match="x is a part of the time"):
        fraction("1", "x")


def test_who_leads_is_said_by_the_largest_ratio_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 / 4 out of place and 10 / 5 in place: their mean, 2.24, stands in no row."""
    (tmp_path / "a.log").write_text(logs.nccl_tests([(1024, 10.0, 10.0), (2048, 10.0, 20.0)]))
    (tmp_path / "b.log").write_text(logs.nccl_tests([(1024, 4.0, 5.0), (2048, 40.0, 60.0)]))
    _, out, _ = door(tmp_path, monkeypatch, capsys, "a.log", "b.log")
    assert "auto: B is faster at 1K, up to 2.5 times; A is faster at 2K, up to 4 times\n" in out


def test_a_log_without_rows_is_left_out_of_a_folder_that_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, time in (("a", 10.0), ("b", 20.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "good.log").write_text(logs.nccl_tests([(1024, time, time)]))
    (tmp_path / "a" / "cut.log").write_text(f"# nThread 1 nGpus 1 minBytes 8 maxBytes 8192\n{logs.HEAD}\n")
    code, out, err = door(tmp_path, monkeypatch, capsys, "a", "b", "--json")
    assert (code, err) == (0, "# note: a/cut.log has no rows, and is left out\n")
    cells = [line for line in map(json.loads, out.splitlines()) if line["kind"] == "cell"]
    assert [(cell["size"], cell["ratio"]) for cell in cells] == [(1024, 2.0)] * 2

    (tmp_path / "a" / "good.log").unlink()  # then the folder has nothing to compare, and that is an error
    code, _, err = door(tmp_path, monkeypatch, capsys, "a", "b")
    assert code == 2 and "no cell of a has a time" in err
