"""How long a log of many rows takes to read, and how much memory: nccl-tests text, written here.

    python benchmarks/readers.py
    python benchmarks/readers.py --rows 50000 --load

A row is a line with both placements, so that a million rows are two million records. The log is read in a process of
its own, whose peak is its VmHWM. --load makes the table of pandas too, which has no bar.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from _launch import ROOT, add_options, head, publish, say, table

SECONDS_BAR, GIB_BAR, BAR_ROWS = 30.0, 1.5, 1_000_000
READ = """
import json, sys, time
from commbench.results.reading import read
start, cpu = time.perf_counter(), time.process_time()
reading = read(sys.argv[1])
found = {"records": len(reading), "wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
found["findings"] = [finding.rule for finding in reading.findings]
if sys.argv[2] == "load":
    import commbench
    del reading
    found["rows"] = len(commbench.load(sys.argv[1]))
    found["wall_s"] = time.perf_counter() - start - found["wall_s"]
    found["cpu_s"] = time.process_time() - cpu - found["cpu_s"]
with open("/proc/self/status") as status:
    found["peak_gib"] = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**20
print(json.dumps(found))
"""


def number(value: float, width: int) -> str:
    """Return a time or rate as nccl-tests prints it."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text.rjust(width)
    return f"{value:.1e}".rjust(width)


def write(path: Path, rows: int) -> None:
    """Write an all-reduce over eight GPUs of so many rows, in cycles (-N) over 31 sizes."""
    rng = random.Random(1)
    busbw = 0.0
    with open(path, "w", encoding="utf-8") as out:
        out.write("# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) iters: 20\n# Using devices\n")
        for rank in range(8):
            out.write(
                f"#  Rank {rank:2d} Group  0 Pid     10 on node-a device {rank:2d} [0000:{rank:02x}:00] NVIDIA H100\n"
            )
        half = "     time   algbw   busbw #wrong"
        out.write(
            f"#       out-of-place       in-place\n#       size         count      type   redop    root{half * 2}\n"
        )
        for place in range(rows):
            size = 8 << place % 31
            line = f"{size:12d}  {size // 4:12d}     float     sum      -1"
            for _ in range(2):
                time = (20 + size / 3e5) * rng.uniform(0.95, 1.05)
                rate = number(size / time / 1e3 * 1.75, 6)
                busbw += float(rate)
                line += f"  {number(time, 7)}  {number(size / time / 1e3, 6)}  {rate}      0"
            out.write(line + "\n")
        out.write(f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {busbw / (2 * rows):g}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, default=BAR_ROWS, metavar="N", help=f"lines of results (default {BAR_ROWS})"
    )
    parser.add_argument("--load", action="store_true", help="make the table of pandas too")
    add_options(parser)
    options = parser.parse_args()
    if options.rows < 1:
        parser.error("--rows is at least 1")
    lines = head(["benchmarks/readers.py", *sys.argv[1:]])
    cells, figures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        say(f"writing {options.rows} rows")
        write(log, options.rows)
        for what in ("read", "load") if options.load else ("read",):
            say(what)
            command = [sys.executable, "-c", READ, str(log), what]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"readers: {done.stderr}")
            found = figures[what] = json.loads(done.stdout)
            if found["records"] != 2 * options.rows:
                raise SystemExit(f"readers: {found['records']} records of {options.rows} rows")
            cells.append(
                [what, f"{found['records']}", *(f"{found[key]:.2f}" for key in ("wall_s", "cpu_s", "peak_gib"))]
            )
    lines += table(["", "records", "wall (s)", "cpu (s)", "peak (GiB)"], cells)
    lines.append(f"# bar of read at {BAR_ROWS} rows: {SECONDS_BAR:g} s, {GIB_BAR:g} GiB")
    publish("readers", lines, {"rows": options.rows, **figures}, options)


if __name__ == "__main__":
    main()
