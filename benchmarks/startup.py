"""What commbench costs a job beside the collectives: wall time, peak memory and opened files per rank at -n N.

    python benchmarks/startup.py -n 16
    python benchmarks/startup.py -n 256 --repeat 1

It runs `mpirun -n N python -m commbench.allreduce -b 8 -e 1K -f 8 --algo auto` and then bare.py, which imports mpi4py
and numpy and makes the same all-reduces and barriers as commbench just did (timed ones, warm-up and those that were
checked, but checks nothing), with the same throttle where ranks outnumber cores. The two take turns, --repeat times.

A peak is VmHWM at the end, pages shared with other ranks included. Files are counted on ranks 0 and N-1 in launches of
their own, the same way for both sides: by strace where it is there (opened, and tried: those that do not exist too),
else by an audit hook (what Python opens) and the files mapped at the end. A first launch of each is not counted: after
it, both have their byte code and the disk's cache.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from _launch import CORES, HERE, BenchmarkError, Environment, add_options, environment, head, publish, say, table
from _rank import STRACE

OPTIONS = ("-b", "8", "-e", "1K", "-f", "8", "--algo", "auto")
THROTTLE = {  # what commbench sets for itself where ranks outnumber cores
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "16",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
CHECKS = 2  # all-reduces of a visit whose answers are checked: before the timed loop and after
METHODS = {"strace": "strace", "audit": "an audit hook and the mapped files"}
FILES_BAR = 1.3  # per rank, against the bare script's
FILES_BAR_COMPILED = 1.6
CROWD = 256  # where memory and wall time have bars
CROWD_BARS = {"wall": 1.5, "memory": 1.2}


class Bench:
    """The launches of both sides in one environment."""

    def __init__(self, place: Environment, n: int, folder: str) -> None:
        self.place, self.n, self.folder = place, n, Path(folder)
        self._launches = 0
        self._calls: list[str] = []  # what the bare script is to do, from commbench's last run

    def ours(self, how: str) -> tuple[float, Path]:
        """Launch commbench; return the seconds and the folder with what its ranks left."""
        results = self.folder / f"results{self._launches}"
        answer = self._launch(how, "commbench.allreduce", [*OPTIONS, "--out", str(results)], {})
        self._calls, self.counts = calls(results)
        return answer

    def bare(self, how: str) -> tuple[float, Path]:
        """Launch the bare script with the calls of commbench's last launch."""
        return self._launch(how, str(HERE / "bare.py"), self._calls, THROTTLE if self.n > CORES else {})

    def _launch(self, how: str, target: str, arguments: list[str], extra: dict[str, str]) -> tuple[float, Path]:
        left = self.folder / f"launch{self._launches}"
        left.mkdir()
        self._launches += 1
        begin = perf_counter()
        self.place.run(
            self.n, str(HERE / "_rank.py"), how, f"{left}/", target, *arguments, cwd=self.folder, extra=extra
        )
        return perf_counter() - begin, left


def calls(results: Path) -> tuple[list[str], dict[str, int]]:
    """Return the all-reduces and barriers of a run by size, as bare.py takes them, and how many were for what."""
    plan = json.loads((results / "manifest.json").read_text(encoding="utf-8"))["plan"]
    made: Counter[int] = Counter()
    barriers: Counter[int] = Counter()
    counts = {"timed": 0, "warm-up": 0, "checked": 0}
    for line in (results / "visits.jsonl").read_text(encoding="utf-8").splitlines():
        visit = json.loads(line)
        if visit["status"] != "ok":
            raise BenchmarkError(f"commbench says {visit['status']}: {visit.get('reason')}")
        cell = plan["cells"][visit["cell"]]
        warmup = plan["effort"]["warmup"] if visit["round"] == 0 else 1
        made[cell["size"]] += visit["iterations"] + warmup + CHECKS
        barriers[cell["size"]] += visit["iterations"] + warmup
        counts["timed"] += visit["iterations"]
        counts["warm-up"] += warmup
        counts["checked"] += CHECKS
    return [f"{size}:{made[size]}:{barriers[size]}" for size in made], counts


def warm_up(place: Environment, folder: str) -> None:
    """Launch both once, so that neither pays for byte code or a cold disk."""
    bench = Bench(place, 2, str(Path(folder, "warm-up")))
    bench.folder.mkdir()
    bench.ours("memory")
    bench.bare("memory")


def costs(bench: Bench, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Return wall seconds and peak memory (MB: the ranks' median, and the largest) of both sides, launch by launch."""
    found: dict[str, dict[str, list[float]]] = {
        side: {"wall": [], "memory": [], "memory, largest": []} for side in ("ours", "bare")
    }
    for turn in range(repeat):
        for side, entry in found.items():  # commbench first: the bare script repeats its calls
            seconds, left = getattr(bench, side)("memory")
            peaks = [json.loads(file.read_text())["peak_bytes"] / 1e6 for file in left.iterdir()]
            if len(peaks) != bench.n:
                raise BenchmarkError(f"{len(peaks)} of {bench.n} ranks said what they took")
            entry["wall"].append(seconds)
            entry["memory"].append(median(peaks))
            entry["memory, largest"].append(max(peaks))
            say(f"repetition {turn + 1} of {repeat}, {side}: {seconds:.1f} s")
    return found


def opened(bench: Bench, method: str) -> dict[str, dict[str, Any]]:
    """Return the files that ranks 0 and n-1 of both sides opened."""
    found: dict[str, dict[str, Any]] = {}
    last = bench.n - 1
    for side in ("ours", "bare"):
        _, left = getattr(bench, side)(method)
        found[side] = {name: _files(left / str(rank), method) for name, rank in (("rank 0", 0), ("last rank", last))}
        say(f"files, {side}")
    return found


def _files(file: Path, method: str) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    if method == "audit":
        left = json.loads(text)
        return {"opened": [*left["opened"], *left["mapped"]], "tried": None}
    tried = re.findall(r'open(?:at2?)?\([^"]*"([^"]*)".* = (-?\d+)', text)
    return {"opened": [name for name, code in tried if int(code) >= 0], "tried": len(tried)}


def can_trace() -> bool:
    """Whether strace is there and may trace: containers often forbid it."""
    if not shutil.which("strace"):
        return False
    return subprocess.run([*STRACE, "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def report(bench: Bench, found: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    compiles = bool(found["compiler"])
    rows = []

    def row(name: str, ours: float, bare: float, digits: int, bar: float | None) -> None:
        rows.append(
            [name, f"{ours:.{digits}f}", f"{bare:.{digits}f}", f"{ours / bare:.2f}", f"{bar:.1f}" if bar else "-"]
        )

    crowd = CROWD_BARS if bench.n >= CROWD else {}
    pairs = {name: (found["costs"]["ours"][name], found["costs"]["bare"][name]) for name in found["costs"]["ours"]}
    units = {"wall": "wall (s)", "memory": "peak memory (MB)", "memory, largest": "peak memory, largest (MB)"}
    for name, (ours, bare) in pairs.items():
        row(units[name], median(ours), median(bare), 1, crowd.get(name.partition(",")[0]))
    for rank in ("rank 0", "last rank") if found["files"] else ():
        mine, theirs = (found["files"][side][rank] for side in ("ours", "bare"))
        bar = FILES_BAR_COMPILED if compiles else FILES_BAR
        row(f"files opened, {rank}", len(mine["opened"]), len(theirs["opened"]), 0, bar)
        if mine["tried"]:
            row(f"opens tried, {rank}", mine["tried"], theirs["tried"], 0, None)
    counts = ", ".join(f"{number} {what}" for what, number in bench.counts.items())
    launches = len(pairs["wall"][0])
    method = f"; files by {METHODS[found['method']]}" if found["files"] else ""
    lines = [
        f"# {bench.place.vendor}, {bench.n} ranks: commbench.allreduce {' '.join(OPTIONS)} against bare.py; "
        f"medians of {launches} launch{'es' * (launches > 1)} each{method}",
        f"# all-reduces of commbench's last launch, which bare.py repeats: {counts}",
        *table(["", "commbench", "bare", "ratio", "at most"], rows),
    ]
    if compiles:
        seconds = found["compiler"]
        lines.append(f"# LLVM on: import {seconds['import_s']:.2f} s, compile {seconds['compile_s']:.2f} s")
    else:
        lines.append("# LLVM off: ranks outnumber cores, or it is not installed")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="the Python of an environment to measure; repeatable (default: this one)",
    )
    parser.add_argument("--repeat", type=int, metavar="R", help="launches of each side (default 5; from 64 ranks on 1)")
    parser.add_argument("--no-strace", action="store_true", help="count files by the audit hook even where strace is")
    parser.add_argument("--no-files", action="store_true", help="do not count files, which takes a launch of each side")
    parser.add_argument("--list-files", action="store_true", help="print which files only commbench opens, by folder")
    add_options(parser)
    options = parser.parse_args()
    repeat = options.repeat or (1 if options.n >= 64 else 5)
    if options.n < 1 or repeat < 1:
        parser.error("-n and --repeat are at least 1")
    method = "strace" if can_trace() and not options.no_strace else "audit"
    words = ["benchmarks/startup.py", *sys.argv[1:]]
    lines, figures = head(words), []
    try:
        for place in [environment(python) for python in options.python or [sys.executable]]:
            say(f"{place.vendor}: {place.mpirun}")
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(place, options.n, folder)
                found: dict[str, Any] = {"vendor": place.vendor, "n": options.n, "method": method}
                warm_up(place, folder)
                found["costs"] = costs(bench, repeat)
                found["files"] = {} if options.no_files else opened(bench, method)
                found["compiler"] = compiler(bench)
                lines += ["", *report(bench, found)]
                lines += extra_files(found["files"]) if options.list_files and found["files"] else []
            figures.append(found)
    except BenchmarkError as error:
        raise SystemExit(f"startup: {error}") from None
    publish("startup", lines, {"command": words, "libraries": figures}, options)


def compiler(bench: Bench) -> dict[str, float]:
    """Return what LLVM costs where commbench uses it, nothing elsewhere."""
    check = [bench.place.python, "-c", "from importlib.util import find_spec as f; raise SystemExit(not f('llvmlite'))"]
    if bench.n > CORES or subprocess.run(check).returncode:
        return {}
    taken: dict[str, float] = json.loads(bench.place.run(bench.n, str(HERE / "_compile.py"), cwd=bench.folder))
    return taken


def extra_files(files: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines that list, for each rank, what commbench opens more often than the bare script."""
    lines = []
    for rank in ("rank 0", "last rank"):
        more: Counter[str] = Counter(files["ours"][rank]["opened"]) - Counter(files["bare"][rank]["opened"])
        lines.append(f"# more than bare.py, {rank}: {more.total()}")
        lines += [f"#   {number:3} {name}" for name, number in sorted(more.items())]
    return lines


if __name__ == "__main__":
    main()
