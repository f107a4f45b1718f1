"""`commbench NAME ...`: the doors listed, found, and started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import commbench
from commbench.__main__ import doors, help_text, main

ROOT = Path(__file__).resolve().parents[1]


def command(*arguments: str, module: str = "commbench") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_doors_are_the_files_that_can_be_run_with_their_first_line() -> None:
    listed = doors()
    assert listed["allreduce"] == "All-reduce: every rank ends with the reduction of every rank's block."
    runnable = {
        path.stem
        for path in (ROOT / "commbench").glob("[!_]*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    rooms = {path.parent.name for path in (ROOT / "commbench").glob("*/__main__.py")}
    assert listed.keys() == runnable | rooms
    assert {"errors", "units", "measure"} & listed.keys() == set()
    assert all(line.endswith(".") or line for line in listed.values())


def test_every_door_says_what_it_does_in_a_line() -> None:
    for name, line in doors().items():
        assert 10 < len(line) < 110, name


def test_listing_the_doors_imports_none_of_them() -> None:
    code = "import sys, commbench.__main__ as m; m.help_text(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("commbench")] == [
        "commbench",
        "commbench.__main__",
        "commbench.errors",
    ]
    assert "numpy" not in loaded


def test_help_lists_the_doors_and_not_every_module() -> None:
    done = command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"commbench {commbench.__version__}: measures collective communication"
    assert lines[2:4] == [
        "usage: commbench NAME [options]          one process",
        "       mpirun -n N commbench NAME ...    N ranks; the same as python -m commbench.NAME",
    ]
    names = [line.split()[0] for line in lines[5 : lines.index("", 5)]]
    assert names == sorted(doors())
    assert done.stdout == help_text() + "\n"
    assert command("-h").stdout == done.stdout


def test_a_kernel_is_run_by_its_name_and_parts_of_the_room_are_not() -> None:
    done = command("kernels.copy", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: commbench kernels.copy ")
    for name in ("kernels._run", "kernels.copi", "measure.door", "kernels."):
        assert command(name).returncode == 2, name


def test_without_a_name_the_help_is_shown_and_that_is_bad_usage() -> None:
    done = command()
    assert (done.returncode, done.stdout) == (2, help_text() + "\n")


def test_the_version_is_printed() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"{commbench.__version__}\n")


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_reader_who_left_is_no_error(word: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "commbench", word], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("alreduce", "unknown command 'alreduce': did you mean allreduce or reduce"),
        ("all_gather", "unknown command 'all_gather': did you mean allgather"),
        ("units", "unknown command 'units': "),
        ("measure", "unknown command 'measure': "),
        ("__main__", "unknown command '__main__': "),
        ("--frobnicate", "unknown command '--frobnicate': "),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(
    name: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name])
    said = capsys.readouterr()
    assert raised.value.code == 2
    assert said.err.startswith(f"commbench: {answer}")
    assert (said.err.count("\n"), said.out) == (1, "")


def test_a_command_is_the_same_as_its_module() -> None:
    assert command("broadcast", "--help").stdout == command("--help", module="commbench.broadcast").stdout
    one, other = command("broadcast", "-r", "x"), command("-r", "x", module="commbench.broadcast")
    assert (one.returncode, one.stderr) == (other.returncode, other.stderr)
    assert one.stderr == "commbench broadcast: error: -r is a whole number of at least 0, not 'x'\n"
