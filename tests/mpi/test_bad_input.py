"""Bad input gets one clear line of ours from rank 0 and exit 2, and every rank is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launch import MPICH, MPIRUN, Done, launch, library, python, run

DOOR = "commbench.allreduce"
SMALL = ["-b", "8", "-e", "8", "-n", "2", "--rounds", "1", "--out", "run"]


def check_refused(done: Done, *words: str) -> None:
    """One line of ours that holds these words, and nothing else."""
    assert done.code == 2, done.stdout + done.stderr
    assert len(done.complaints) == 1, done.stderr
    assert [word for word in words if word not in done.complaints[0]] == [], done.complaints
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.left == 0
    if library() == MPICH:  # Open MPI's mpirun has something to say about any exit code but 0
        assert done.stderr.splitlines() == done.complaints


# Understood before MPI is opened: what one process answers, all ranks answer.
ARGUMENTS = [
    ("-b 1M -e 1K", ["-b", "-e", "1M", "1K"]),
    ("-f 1", ["-f", "1"]),
    ("-f 0.5", ["-f", "0.5"]),
    ("-f nan", ["-f", "nan"]),
    ("-f inf", ["-f", "inf"]),
    ("-f -2", ["-f"]),
    ("-i 0", ["-i", "0"]),
    ("-f 2 -i 8", ["-f", "-i"]),
    ("-b 0", ["-b", "0"]),
    ("-b -8", ["-b"]),
    ("-b nan", ["nan"]),
    ("-e 8X", ["8X"]),
    ("-e 1e400", ["1e400"]),
    ("-e 999999999T", ["999999999T"]),
    ("-b 1.7", ["1.7"]),
    ("-d flot", ["'flot'", "float"]),
    ("-d float,,int8", ["-d"]),
    ("-o summ", ["'summ'", "sum"]),
    ("-n 0", ["-n", "0"]),
    ("-n 2.5", ["-n", "2.5"]),
    ("-n many", ["-n", "many"]),
    ("-w -1", ["-w"]),
    ("-a 4", ["-a", "4"]),
    ("-c 2", ["-c", "2"]),
    ("--precision nan", ["--precision", "nan"]),
    ("--precision -0.1", ["--precision"]),
    ("--budget nan", ["--budget", "nan"]),
    ("--budget -1", ["--budget"]),
    ("--max-seconds inf", ["--max-seconds", "inf"]),
    ("--rounds 0", ["--rounds", "0"]),
    ("--seed 1.5", ["--seed", "1.5"]),
    ("--algo ,", ["--algo"]),
    ("--inplace sideways", ["sideways"]),
    ("--format xml", ["xml"]),
    ("--method guess", ["guess"]),
    ("--no-such-option", ["--no-such-option"]),
    ("--resume", ["--resume", "--out"]),
    ("stray", ["stray"]),
]


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS, ids=[arguments for arguments, _ in ARGUMENTS])
def test_bad_arguments_are_refused_in_one_line(arguments: str, words: list[str]) -> None:
    check_refused(run(python(DOOR, *arguments.split())), *words)


# Understood by all ranks together; the first is one of the above, for all of those.
TOGETHER = [
    (DOOR, "-b 1M -e 1K", ["1M", "1K"]),
    (DOOR, "--algo rign", ["'rign'", "ring"]),
    (DOOR, "--backend mpii", ["'mpii'", "mpi"]),
    (DOOR, "--backend tests.mpi.no_such_module", ["no_such_module"]),
    (DOOR, "-e 4P", ["4P"]),
    (DOOR, "-b 900T -e 900T", ["900T", "memory", "needs", "free"]),
    ("commbench.broadcast", "-r 3", ["-r", "3"]),
]


@pytest.mark.parametrize(("door", "arguments", "words"), TOGETHER, ids=[arguments for _, arguments, _ in TOGETHER])
def test_ranks_refuse_together_and_one_speaks(door: str, arguments: str, words: list[str]) -> None:
    check_refused(launch(3, door, *arguments.split()), *words)


@pytest.mark.parametrize("out", ["a_file/run", "a_file", "/proc/commbench/run"])
def test_an_output_directory_that_cannot_be_written_is_refused(out: str, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("in the way")

    check_refused(launch(3, DOOR, "-b", "8", "-e", "8", "--out", out, cwd=tmp_path), out, "--out")

    assert (tmp_path / "a_file").read_text() == "in the way"


def unlike(*ranks: list[str]) -> Done:
    """Run ranks with a command each."""
    command = [str(MPIRUN)]
    for rank in ranks:
        command += ["-n", "1", *rank, ":"]
    return run(command[:-1], timeout=30)


def test_ranks_with_other_arguments_are_named() -> None:
    same, odd = python(DOOR, *SMALL), python(DOOR, *SMALL, "-w", "2")

    check_refused(unlike(same, odd, same), "same arguments", "rank 1")


def test_ranks_at_other_doors_are_refused() -> None:
    check_refused(unlike(python(DOOR, *SMALL), python("commbench.allgather", *SMALL)), "rank 1")


@pytest.mark.parametrize("odd", [0, 1])
def test_one_rank_alone_with_bad_arguments_ends_all(odd: int) -> None:
    ranks = [python(DOOR, *SMALL)] * 3
    ranks[odd] = python(DOOR, *SMALL, "-f", "1")

    check_refused(unlike(*ranks), "-f")


def test_help_is_printed_once() -> None:
    done = launch(3, DOOR, "-h")

    assert done.code == 0
    assert done.stderr == ""
    assert done.stdout.count("usage: commbench allreduce") == 1
    for flag in ["--minbytes", "--algo", "--inplace", "--resume", "--budget", "exit codes"]:
        assert flag in done.stdout


def test_bad_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    launch(2, DOOR, "--algo", "rign", "--out", "run", cwd=tmp_path)

    assert list(tmp_path.iterdir()) == []
