"""Starts a job with the mpirun of this environment's MPI wheel, and leaves no process and no file of it behind.

Every process of a job carries a mark in its environment, by which it is found again: mpirun's own process group does
not hold all ranks, as launchers give them groups of their own.

Every job has a folder for temporary files of its own: a killed Open MPI leaves `ompi.PID` in it, and a later one that
is given the same process number refuses to start over that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).parent / "mpirun"
MPICH, OPEN_MPI = "MPICH", "Open MPI"

_SETTINGS = {
    # Open MPI refuses to run as root, as containers do, and more ranks than cores, as the tests need, unless told so.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # This component sleeps for a second in every MPI_Init, and is not what ranks of one node use.
    "OMPI_MCA_btl": "^ofi",
}
_MARK = "COMMBENCH_TESTS_JOB"
# By what an outer launcher, or the user, would change what the job sees.
_DROPPED = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPIR_CVAR_", "SLURM_", "MPI_LOCAL", "HYDRA_", "MPI4PY_")
_DROPPED_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class Done:
    """What a job left: its exit code, what it printed, and how many of its processes outlived mpirun."""

    code: int
    stdout: str
    stderr: str
    left: int

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of standard output, each one JSON object."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def complaints(self) -> list[str]:
        """The lines of standard error that are an error of ours."""
        return [line for line in self.stderr.splitlines() if ": error: " in line]


class Overdue(AssertionError):
    """A job did not end in its time; all its processes are gone by now."""


@cache
def library() -> str:
    """Return whose mpirun stands beside this interpreter: MPICH, Open MPI, or nothing where there is none."""
    if not MPIRUN.exists():
        return ""
    text = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, env=_environment({}, "")).stdout
    return OPEN_MPI if OPEN_MPI in text else MPICH if "HYDRA" in text else ""


def python(module: str, *arguments: str) -> list[str]:
    """Return the command of one rank: a module, by its dotted name, with its arguments."""
    return [sys.executable, "-m", module, *arguments]


def mpirun(n: int, module: str, *arguments: str) -> list[str]:
    """Return the command of `n` ranks."""
    return [str(MPIRUN), "-n", str(n), *python(module, *arguments)]


def launch(
    n: int,
    module: str,
    *arguments: str,
    timeout: float = 60,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run `module` on `n` ranks and wait for its end; without `cwd`, in a folder that is gone afterwards."""
    return run(mpirun(n, module, *arguments), timeout=timeout, cwd=cwd, env=env)


def run(
    command: Sequence[str], *, timeout: float = 60, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """Run a command, mpirun or not, and wait for its end, as `launch` does."""
    if cwd is None:
        with tempfile.TemporaryDirectory() as folder:
            return run(command, timeout=timeout, cwd=Path(folder), env=env)
    with Job(command, cwd, env) as job:
        return job.wait(timeout)


class Job:
    """A job under way. Leaving the context kills what is left of it."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        self._temporary = tempfile.TemporaryDirectory(prefix="job-")
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=_environment({"TMPDIR": self._temporary.name} | dict(env or {}), self._mark),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._process.communicate()
        self._temporary.cleanup()

    @property
    def launcher(self) -> int:
        """The process of mpirun."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float) -> Done:
        """Return what the job left, once mpirun has ended; raise Overdue when that takes too long."""
        try:
            stdout, stderr = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            commands = [_command(pid) for pid in self.processes()]
            self.kill()
            stdout, stderr = self._process.communicate()
            raise Overdue(
                f"no end after {timeout:g} s; running were {commands}\n-- stdout\n{stdout}\n-- stderr\n{stderr}"
            ) from None
        return Done(self._process.returncode, stdout, stderr, len(self._stragglers()))

    def processes(self) -> list[int]:
        """Return the processes of this job that run now, mpirun among them."""
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in _environ(pid)]

    def kill(self) -> None:
        """Kill every process of this job, as often as it takes."""
        for _ in range(50):
            found = self.processes()
            if not found:
                return
            for pid in found:
                _kill(pid)
            time.sleep(0.02)
        raise AssertionError(f"processes {found} of {self._process.args!r} cannot be killed")

    def _stragglers(self) -> list[int]:
        """Return what still runs a moment after mpirun has ended."""
        for _ in range(50):
            found = self.processes()
            if not found:
                break
            time.sleep(0.02)
        return found


def _environment(extra: Mapping[str, str], mark: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_DROPPED) and name not in _DROPPED_NAMES
    }
    return kept | _SETTINGS | {"PYTHONPATH": str(ROOT), _MARK: mark} | dict(extra)


def _environ(pid: int) -> list[bytes]:
    """Return the environment a process was started with; nothing of one that ends, is a zombie or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended)"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it may end by itself
        os.kill(pid, signal.SIGKILL)
