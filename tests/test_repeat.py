"""`commbench.repeat` from its command line, with a launcher that measures nothing, and once with mpirun."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.repeat import Plan, check_command, main
from tests.fake_door import write_run
from tests.mpi.launch import MPIRUN, library, mpirun, run

ROOT = Path(__file__).resolve().parents[1]
DOOR = ["python", "-m", "commbench.allreduce", "-b", "8"]


def fake(*settings: str, door: list[str] = DOOR) -> list[str]:
    return [sys.executable, "-m", "tests.fake_door", *settings, *door]


def repeat(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commbench.repeat", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def about(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "launch.json").read_text())
    return found


def running(word: str) -> list[bytes]:
    """The command lines of processes that have the word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may end by itself
            found.append(path.read_bytes())
    return [line for line in found if word.encode() in line]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Four launches of each of two commands, a fifth apart."""
    folder = tmp_path_factory.mktemp("pair")
    against = shlex.join(fake("seed=2", door=[*DOOR, "--algo", "ring"]))
    words = ["--launches", "4", "--out", "set", "--against", against, "--", *fake("scale=1.2", "seed=1")]
    return folder, repeat(folder, *words)


def test_two_commands_run_by_turns_into_one_folder(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = pair
    assert done.returncode == 0, done.stderr
    names = ["a-01", "b-01", "b-02", "a-02", "a-03", "b-03", "b-04", "a-04"]
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == names
    assert lines[2].startswith("# b-02 (3 of 8): 2 cells ok, exit 0, ")
    assert sorted(path.name for path in (folder / "set").iterdir()) == sorted(
        [*names, *(f"{name}.log" for name in names), "repeat.json"]
    )
    assert "a word on standard output\nthe last word, exit 0" in (folder / "set" / "a-01.log").read_text()
    kept = about(folder / "set", "b-03")
    assert (kept["launch"], kept["set"], kept["code"]) == (3, "b", 0)
    assert kept["command"][-2:] == ["--out", str(folder / "set" / "b-03")]


def test_all_launches_load_with_their_numbers(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    pytest.importorskip("pandas")
    frame = commbench.load(pair[0] / "set")
    assert len(frame) == 16
    assert (frame["run"].str[2:].astype(int) == frame["launch"]).all()


def test_the_table_says_what_differs(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    text = pair[1].stdout
    assert "# a: 4 launches of " in text and "# b: 4 launches of " in text
    assert "# a against b: algorithm auto and ring\n" in text
    _, _, table = text.partition("# a against b: algorithm auto and ring\n")
    rows = [line.split() for line in table.splitlines() if not line.startswith("#") and line]
    assert [row[0] for row in rows] == ["8", "512"]
    assert all(float(row[1]) == pytest.approx(1.2, rel=0.1) and row[-1] == "different" for row in rows)


def test_the_summary_of_a_folder_is_printed_again(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = pair
    again = repeat(folder, "--summary", "set")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")


def test_the_summary_is_lines_of_json_too(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = repeat(pair[0], "--summary", "set", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["cell"] * 4 + ["comparison"] * 2
    assert lines[0]["launches"] == 4 and len(lines[0]["times_us"]) == 4 and lines[0]["time_us_low"] is None
    assert (lines[4]["algorithm"], lines[4]["verdict"]) == (["auto", "ring"], "different")
    assert lines[4]["p"] <= 0.05 and lines[4]["low"] < lines[4]["ratio"] < lines[4]["high"]


def test_too_few_launches_cannot_tell(tmp_path: Path) -> None:
    against = shlex.join(fake("seed=2"))
    done = repeat(tmp_path, "--launches", "2", "--out", "set", "--against", against, "--", *fake("scale=2"))
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("cannot tell") == 2


def test_eight_launches_are_halved(tmp_path: Path) -> None:
    done = repeat(tmp_path, "--launches", "8", "--out", "set", "--", *fake())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# halves ") == 2
    lines = [json.loads(line) for line in repeat(tmp_path, "--summary", "set", "--json").stdout.splitlines()]
    assert [line["halves"] for line in lines if line["kind"] == "halves"] == ["by turns", "first against last"]


def test_a_launch_that_ends_badly_is_said_and_kept(tmp_path: Path) -> None:
    done = repeat(tmp_path, "--launches", "2", "--out", "set", "--", *fake("code=1"))
    assert done.returncode == 1
    assert "# a-02 (2 of 2): 2 cells ok, exit 1, " in done.stderr
    assert "# a: 2 launches" in done.stdout
    again = repeat(tmp_path, "--out", "set", "--resume")
    assert (again.returncode, again.stderr) == (1, "")


def test_a_command_that_measures_nothing_stops_the_set(tmp_path: Path) -> None:
    done = repeat(tmp_path, "--launches", "3", "--out", "set", "--", *fake("code=2"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "commbench repeat: error: a-01 ended with exit 2 without results, as the next would: see set/a-01.log "
        "(the last word, exit 2); mend it and go on by --out set --resume, or start another set\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_set_ends_its_child_and_goes_on_later(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--launches", "2", "--out", "set", "--", *fake("sleep=60")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "commbench.repeat", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        visits = tmp_path / "set" / "a-01" / "visits.jsonl"
        deadline = time.monotonic() + 30
        while not visits.exists() or visits.read_text().count("\n") < 6:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == "# stopped; what was measured is kept: --out set --resume goes on with the launches that lack\n"
    assert about(tmp_path / "set", "a-01")["code"] is None
    assert not running(str(tmp_path / "set" / "a-01"))
    assert "# a: 1 launch of" in repeat(tmp_path, "--summary", "set").stdout

    plan = json.loads((tmp_path / "set" / "repeat.json").read_text())
    plan["commands"]["a"] = fake()
    (tmp_path / "set" / "repeat.json").write_text(json.dumps(plan))
    done = repeat(tmp_path, "--out", "set", "--resume")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "# a-01 did not come to its end before, and is made anew"
    assert [line.split()[1] for line in lines[1:]] == ["a-01", "a-02"]


def test_more_launches_are_added_to_a_set(tmp_path: Path) -> None:
    assert repeat(tmp_path, "--launches", "2", "--out", "set", "--", *fake()).returncode == 0
    done = repeat(tmp_path, "--launches", "3", "--out", "set", "--resume", "--", *fake())
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["a-03"]


REFUSED: list[tuple[list[str], str]] = [
    ([], "the command is missing: put it behind --"),
    (["--", "hostname"], "the command runs a door of commbench"),
    (["--", "bash", "-c", "python -m commbench.allreduce"], "in words of its own rather than inside a shell's"),
    (["--", "python", "-m", "commbench.alreduce"], "NAME one of allgather, allreduce"),
    (["--", "python", "-m", "commbench.repeat", "--", *DOOR], "the command runs a door of commbench"),
    (["--", "python", "-m", "commbench.doctor"], "the command runs a door of commbench"),
    (["--", "python", "-m", "commbench.compare", "x", "y"], "the command runs a door of commbench"),
    (["--", *DOOR, "--out", "x"], "leave --out out of it"),
    (["--", *DOOR, "--out=x"], "leave --out=x out of it"),
    (["--", *DOOR, "--resume"], "leave --resume out of it"),
    (["--against", "hostname", "--", *DOOR], "--against runs a door of commbench"),
    (["--against", "'", "--", *DOOR], "--against is a command in one word, No closing quotation"),
    (["--launches", "1", "--", *DOOR], "--launches is a whole number of at least 2, not '1'"),
    (["--pause", "-1", "--", *DOOR], "--pause is a number of at least 0, not '-1'"),
    (["--margin", "x", "--", *DOOR], "--margin is a number of at least 0, not 'x'"),
    (["--seed", "x", "--", *DOOR], "--seed is a whole number"),
    (["--frobnicate", "--", *DOOR], "unrecognized arguments: --frobnicate"),
    (["--launches", "2", "mpirun", "-n", "2", *DOOR], "'mpirun' is no option: put the command behind -- (mpirun -n 4"),
    (["--resume"], "--resume goes on with the set in --out DIR: name its folder"),
    (["--out", "nowhere", "--resume"], "nowhere holds no set of launches (no repeat.json in it)"),
    (["--summary", "nowhere"], "nowhere holds no run"),
    (["--summary", "x", "--", *DOOR], "--summary runs nothing"),
    (["--out", "file/set", "--", *DOOR], "cannot write to file/set: Not a directory; name another folder by --out"),
    (["--out", "set", "--", "no such launcher", *DOOR], "cannot run 'no such launcher' python"),
]


@pytest.mark.parametrize(("words", "answer"), REFUSED, ids=[" ".join(words) or "nothing" for words, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(
    words: list[str],
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as raised:
        main(words)
    for number, handler in handlers:
        signal.signal(number, handler)
    said = capsys.readouterr()
    assert raised.value.code == 2
    assert said.err.startswith("commbench repeat: error: ") and answer in said.err
    assert (said.err.count("\n"), said.out) == (1, "")


def test_a_folder_with_results_is_not_taken_for_a_new_one(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    for folder in ("set", "set/a-01"):
        done = repeat(pair[0], "--out", folder, "--", *fake())
        assert done.returncode == 2
        held = f"{folder}/{'repeat.json' if folder == 'set' else 'manifest.json'}"
        text = f"{folder} holds results already ({held}): go on with a set by --resume, or name another --out"
        assert text in done.stderr


def test_a_set_is_of_its_own_launches_alone(tmp_path: Path) -> None:
    """Runs and sets below a folder keep it from being a set's, and are none of its launches where they come later."""
    write_run(tmp_path / "late" / "first", {8: 9.0}, random.Random(1)).close()
    done = repeat(tmp_path, "--launches", "2", "--out", "late", "--", *fake())
    assert (done.returncode, done.stdout) == (2, "")
    assert "late holds results already (late/first/manifest.json): " in done.stderr
    assert sorted(path.name for path in (tmp_path / "late").iterdir()) == ["first"]

    assert repeat(tmp_path, "--launches", "2", "--out", "set", "--", *fake()).returncode == 0
    write_run(tmp_path / "set" / "first", {8: 9.0}, random.Random(1)).close()
    shutil.copytree(tmp_path / "set" / "a-01", tmp_path / "set" / "other" / "a-01")
    done = repeat(tmp_path, "--launches", "3", "--out", "set", "--resume")
    assert done.returncode == 0, done.stderr
    assert "# a: 3 launches of " in done.stdout and "(unknown)" not in done.stdout


def test_a_set_does_not_go_on_with_another_command(pair: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = repeat(pair[0], "--out", "set", "--resume", "--", *fake("scale=9"))
    assert done.returncode == 2
    assert "set holds another command a: " in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_spoilt_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "repeat.json").write_text(text)
    done = repeat(tmp_path, "--out", ".", "--resume")
    assert done.returncode == 2
    assert "repeat.json is not the plan of a set of launches" in done.stderr


def test_the_order_is_by_turns_or_shuffled_in_pairs_and_stays_when_launches_are_added() -> None:
    commands = {"a": ["x"], "b": ["y"]}
    assert [name for name, _ in Plan(commands, 4, False, 1).order()] == list("abbaabba")
    shuffled = list(Plan(commands, 50, True, 1).order())
    firsts = [name for name, _ in shuffled[::2]]
    assert set(firsts) == {"a", "b"} and 10 < firsts.count("a") < 40
    assert all({*shuffled[i : i + 2]} == {("a", i // 2 + 1), ("b", i // 2 + 1)} for i in range(0, 100, 2))
    assert list(Plan(commands, 60, True, 1).order())[:100] == shuffled
    assert list(Plan(commands, 50, True, 2).order()) != shuffled


@pytest.mark.parametrize("words", [["commbench", "allreduce"], ["mpirun", "/x/bin/commbench", "sendrecv", "-b", "8"]])
def test_the_short_form_of_a_door_is_one_too(words: list[str]) -> None:
    assert check_command(words, "the command") == words


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_launches_of_mpirun(tmp_path: Path) -> None:
    command = mpirun(2, "commbench.allreduce", "-b", "8", "-e", "64", "-f", "8", "--algo", "auto", "-n", "5")
    words = [sys.executable, "-m", "commbench.repeat", "--launches", "2", "--out", "set", "--json", "--", *command]
    done = run(words, cwd=tmp_path, timeout=120)
    assert done.code == 0, done.stderr
    assert [(record["size"], record["launches"]) for record in done.records] == [(8, 2), (64, 2)]
    for number in (1, 2):
        lines = (tmp_path / "set" / f"a-{number:02d}" / "records.jsonl").read_text().splitlines()
        assert [json.loads(line)["launch"] for line in lines] == [number] * 2
    assert done.left == 0
