"""A launcher of one MPI with the library of another is refused at once, instead of running as so many lone ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mpi.launch import MPICH, MPIRUN, OPEN_MPI, Done, launch, library, python, run

DOOR = "commbench.allreduce"
SMALL = ["-b", "8", "-e", "8", "-n", "2", "--rounds", "1", "--out", "run"]
SECONDS = 20  # "within seconds", on a busy machine


def launched_by(launcher: str, rank: int, size: int) -> dict[str, str]:
    """The variables by which a launcher tells a process who it is."""
    if launcher == "Slurm":
        return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size)}
    if launcher == "torchrun":
        return {"RANK": str(rank), "WORLD_SIZE": str(size)}
    prefix = {OPEN_MPI: "OMPI_COMM_WORLD", MPICH: "PMI"}[launcher]
    return {f"{prefix}_RANK": str(rank), f"{prefix}_SIZE": str(size)}


def other() -> str:
    return {MPICH: OPEN_MPI, OPEN_MPI: MPICH}[library()]


def check_refused(done: Done, *words: str) -> None:
    assert done.code == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(done.complaints) == 1, done.stderr
    assert [word for word in words if word not in done.complaints[0]] == [], done.complaints
    assert "Traceback" not in done.stderr
    assert done.left == 0


def test_the_variables_of_the_other_launcher_are_refused_with_the_remedy() -> None:
    done = run(python(DOOR, *SMALL), env=launched_by(other(), 0, 2), timeout=SECONDS)

    check_refused(done, f"launched by {other()}", f"loads {library()}", "use the mpirun", "MPI4PY_LIBMPI")


def test_only_the_launchers_first_rank_speaks() -> None:
    done = run(python(DOOR, *SMALL), env=launched_by(other(), 1, 2), timeout=SECONDS)

    assert done.code == 2
    assert (done.stdout, done.stderr) == ("", "")


def test_torchrun_is_refused_for_mpi_with_the_remedy() -> None:
    check_refused(
        run(python(DOOR, *SMALL), env=launched_by("torchrun", 0, 2), timeout=SECONDS), "torchrun", "mpirun or srun"
    )


def test_ranks_that_the_library_does_not_see_are_refused() -> None:
    # As when srun speaks no PMI that the library knows: each of its tasks is alone.
    done = run(python(DOOR, *SMALL), env=launched_by("Slurm", 0, 4), timeout=SECONDS)

    check_refused(done, "4 ranks", "1", "--mpi=")


OTHER = Path(os.environ.get("COMMBENCH_OTHER_VENV", "/nonexistent"))
needs_both = pytest.mark.skipif(
    not (OTHER / "bin" / "python").exists(),
    reason="COMMBENCH_OTHER_VENV names no virtual environment with the other MPI wheel (scripts/test sets it)",
)


@needs_both
def test_this_mpirun_with_the_other_environments_python_is_refused() -> None:
    command = [str(MPIRUN), "-n", "3", str(OTHER / "bin" / "python"), "-m", DOOR, *SMALL]

    done = run(command, timeout=SECONDS)

    check_refused(done, f"launched by {library()}", f"loads {other()}", str(OTHER))


def others_library() -> dict[str, str]:
    names = {MPICH: "libmpi.so.12", OPEN_MPI: "libmpi.so.40"}
    return {"MPI4PY_LIBMPI": str(OTHER / "lib" / names[other()])}


@needs_both
def test_this_mpirun_with_the_others_library_is_refused() -> None:
    done = launch(3, DOOR, *SMALL, env=others_library(), timeout=SECONDS)

    check_refused(done, f"launched by {library()}", f"loads {other()}", "MPI4PY_LIBMPI")


def with_a_late_rank_0(command: list[str]) -> list[str]:
    """Two ranks, of which the first starts two seconds after the other."""
    return [str(MPIRUN), "-n", "1", "sh", "-c", 'sleep 2; exec "$@"', "sh", *command, ":", "-n", "1", *command]


@needs_both
@pytest.mark.parametrize(
    "command",
    [python(DOOR, *SMALL), python("commbench.verify", "nowhere.json"), python("commbench.telemetry", "--no-such")],
    ids=["a door", "verify", "telemetry"],
)
def test_the_word_is_said_where_a_rank_that_has_none_fails_first(command: list[str]) -> None:
    # Open MPI's mpirun ends all ranks with the first that fails.
    done = run(with_a_late_rank_0(command), env=others_library(), timeout=SECONDS)

    check_refused(done)


def test_one_rank_says_for_all_that_the_plan_cannot_be_read() -> None:
    check_refused(launch(3, "commbench.verify", "nowhere.json", timeout=SECONDS), "nowhere.json")
