"""How often commbench.compare calls equal commands different on this machine: real launches, by turns.

    python benchmarks/equal_pairs.py                    # 10 pairs of 5 + 5 launches
    python benchmarks/equal_pairs.py --pairs 20 --launches 8

Each pair is one `commbench.repeat --against` of a command with itself: its a and b differ in nothing but chance. Every
cell that compare calls slower or faster is a false alarm; at most 5 % of pairs should have any.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _launch import ROOT, BenchmarkError, add_options, environment, head, publish, say, table

SWEEP = ("-b", "8", "-e", "64K", "-f", "8", "--algo", "auto,ring", "--budget", "3")


def alarms(folder: Path) -> tuple[int, int, float]:
    """Return how many cells of a pair are called slower or faster, how many there are, and the largest change."""
    from commbench.report.compare import FASTER, SLOWER, compare
    from commbench.report.sides import read_sides

    (found,) = compare(read_sides(folder))
    most = max((row.ratio for row in found.rows), key=lambda ratio: max(ratio, 1 / ratio))
    return sum(row.verdict in (SLOWER, FASTER) for row in found.rows), len(found.rows), most


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--pairs", type=int, default=10, metavar="N", help="pairs (default 10)")
    it.add_argument("--launches", type=int, default=5, metavar="N", help="launches of each side (default 5)")
    it.add_argument("-n", type=int, default=2, metavar="N", help="ranks (default 2)")
    add_options(it)
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    words = list(sys.argv if arguments is None else [__file__, *arguments])
    lines = head(["benchmarks/equal_pairs.py", *words[1:]])
    sys.path.insert(0, str(ROOT))
    place = environment(sys.executable)
    command = [place.mpirun, "-n", str(options.n), sys.executable, "-m", "commbench.allreduce", *SWEEP]
    rows, figures = [], []
    with tempfile.TemporaryDirectory() as top:
        for pair in range(options.pairs):
            folder = Path(top, f"pair-{pair}")
            repeat = [
                sys.executable,
                "-m",
                "commbench.repeat",
                "--launches",
                str(options.launches),
                "--out",
                str(folder),
            ]
            done = subprocess.run(
                [*repeat, "--against", " ".join(command), "--", *command], cwd=ROOT, capture_output=True, text=True
            )
            if done.returncode not in (0, 3):  # 3: cannot tell of any cell
                raise BenchmarkError(f"commbench.repeat ended with {done.returncode}: {done.stderr.strip()}")
            called, cells, most = alarms(folder)
            figures.append({"called": called, "cells": cells, "largest": most})
            rows.append([str(pair + 1), str(called), str(cells), f"{100 * (most - 1):+.1f} %"])
            say(f"pair {pair + 1} of {options.pairs}: {called} of {cells} cells called different")
    some = sum(one["called"] > 0 for one in figures)
    lines += ["", f"# {' '.join(['mpirun', '-n', str(options.n), 'python', *command[4:]])}"]
    lines += [f"# {options.pairs} pairs of {options.launches} + {options.launches} launches, by turns"]
    lines += table(["pair", "called different", "cells", "largest change"], rows)
    lines.append(f"# pairs with an alarm: {some} of {options.pairs}")
    publish("equal_pairs", lines, figures, options)


if __name__ == "__main__":
    main()
