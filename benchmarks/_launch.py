"""What the benchmarks share: the environments to measure, starting jobs in them, one call made ready, and tables."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commbench.backends.base import Call
    from commbench.backends.mpi import Backend
    from commbench.backends.world import World

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
CORES = len(os.sched_getaffinity(0))

# Open MPI refuses to run as root, as containers do, and more ranks than cores, unless told otherwise.
_OPEN_MPI_PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class BenchmarkError(Exception):
    """What keeps a benchmark from running, said to the person in one line."""


@dataclass(frozen=True)
class Environment:
    """A Python and the tools of the MPI library that it uses."""

    python: str
    mpirun: str
    mpicc: str  # empty where there is none
    vendor: str

    def run(
        self, n: int, *arguments: str, cwd: str | Path, extra: Mapping[str, str] | None = None, timeout: float = 900
    ) -> str:
        """Start `n` ranks of this Python with `arguments` and return what they print on standard output."""
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **(extra or {})}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
        if self.vendor == "Open MPI":
            variables = {**_OPEN_MPI_PERMISSIONS, **variables}
        command = [self.mpirun, "-n", str(n), self.python, *arguments]
        with subprocess.Popen(
            command, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as job:
            try:
                out, complaints = job.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                job.terminate()  # the launcher ends its ranks, which killing it would leave behind
                raise BenchmarkError(f"no end after {timeout:g} s: {' '.join(command)}") from None
        if job.returncode:
            raise BenchmarkError(f"exit code {job.returncode}: {' '.join(command)}\n{out[-2000:]}{complaints[-4000:]}")
        return out


def environment(python: str) -> Environment:
    """Return the environment of `python`: the tools beside it (as the PyPI wheels put them), else those in PATH."""
    found = shutil.which(python)
    if not found:
        raise BenchmarkError(f"there is no Python {python!r}")
    beside = f"{Path(found).absolute().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    mpirun, mpicc = (shutil.which(tool, path=beside) for tool in ("mpirun", "mpicc"))
    if not mpirun:
        raise BenchmarkError(f"no mpirun beside {python} nor in PATH: pip install 'commbench[mpich]', or load an MPI")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, env=os.environ).stdout
    vendor = "Open MPI" if "Open MPI" in version else "MPICH" if "HYDRA" in version else "other"
    return Environment(str(Path(found).absolute()), mpirun, mpicc or "", vendor)


def prepare(world: World, size: int) -> tuple[Backend, Call, list[tuple[Any, Any]]]:
    """Return an open MPI backend, the float32 all-reduce of `size` bytes, and its slots as commbench lays them out."""
    from commbench.allreduce import ALLREDUCE
    from commbench.backends.base import AUTO, Algorithm, Call
    from commbench.backends.mpi import Backend
    from commbench.measure.buffers import Arenas, layout

    backend = Backend()
    backend.open(world)
    call = Call(ALLREDUCE, Algorithm(AUTO, AUTO), "float32", 4, "sum", size // 4, 0, False)
    cut = layout(backend, call, world.rank, world.size)
    slots = Arenas(backend, [cut]).slots(cut, "float32")
    for send, recv in slots:
        send[:], recv[:] = world.rank + 1, 0
    return backend, call, slots


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--out", metavar="FILE", help="the table (default: results/NAME-<UTC time>.txt)")
    parser.add_argument("--json", metavar="FILE", help="all figures, as JSON")


def head(words: Sequence[str]) -> list[str]:
    """Return the first lines of a table: command, time and load, without which a figure says nothing."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    load = os.getloadavg()[0]
    return [f"# {' '.join(['python', *words])}", f"# {now}, {CORES} cores, load {load:.1f} at the start"]


def publish(name: str, lines: Sequence[str], figures: Any, options: argparse.Namespace) -> None:
    """Print the table, write it to its file, and the figures to theirs."""
    text = "".join(f"{line}\n" for line in (*lines, f"# load {os.getloadavg()[0]:.1f} at the end"))
    print(text, end="", flush=True)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    out = Path(options.out or ROOT / "results" / f"{name}-{stamp}.txt")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"# written to {os.path.relpath(out)}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]


def say(text: str) -> None:
    """Say how far the benchmark is, on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)
