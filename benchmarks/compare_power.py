"""How often commbench.compare calls equal runs different, and how often it finds a slowdown, on simulated launches.

    python benchmarks/compare_power.py                      # 1,000 pairs of each kind
    python benchmarks/compare_power.py --like results/set   # with the noise of a set that commbench.repeat made

A pair is two sets of launches. The logarithm of a cell's time in a launch is normal: --together is what all cells of a
launch share, --spread what each has for itself, --rounds and --round-spread how far the median of its rounds strays.
In --stalls of all launches one cell, any, takes half as long again, on either side. The second set of a pair is as the
first; or slower by --slowdown in one cell; or in all of them. What decides is the code behind commbench.compare.
The figures are of this noise only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _launch import ROOT, add_options, head, publish, say, table

ALARMS_BAR, FOUND_BAR = 0.05, 0.90
EQUAL, ONE, ALL = "equal", "one cell slower", "all cells slower"


def launches(chance: Any, options: argparse.Namespace, kind: str) -> tuple[Any, Any]:
    """Return the times of both sets, by launch and cell."""
    import numpy as np

    sides = []
    for _ in range(2):
        shape = (options.launches, options.cells)
        logs = chance.normal(0, options.together, (options.launches, 1)) + chance.normal(0, options.spread, shape)
        logs = logs + np.median(chance.normal(0, options.round_spread, (options.rounds, *shape)), axis=0)
        stalled = chance.random(options.launches) < options.stalls
        logs[stalled, chance.integers(options.cells, size=stalled.sum())] += np.log(1.5)
        sides.append(10 * np.exp(logs))
    a, b = sides
    b[:, {EQUAL: slice(0), ONE: slice(1), ALL: slice(None)}[kind]] *= 1 + options.slowdown
    return a, b


def measured(folder: str) -> dict[str, float]:
    """Return the noise of a set of launches: medians over its cells, and what they share by their covariance."""
    import numpy as np

    from commbench.results.launches import read_sets

    one = read_sets(Path(folder))[0]
    keys = [key for key in one.keys if all(one.times(key))]
    if len(keys) < 2 or len(one.launches) < 3:
        raise SystemExit(
            f"compare_power: --like takes a set of three launches or more with two cells or more: {folder}"
        )
    logs = np.log(np.array([one.times(key) for key in keys], dtype=float))
    covariance = np.cov(logs)
    shared = max(0.0, (covariance.sum() - np.trace(covariance)) / (covariance.size - len(keys)))
    spreads = [one.cell(key)["spread"] for key in keys]
    launch, round_ = (float(np.median([of[name] or 0.0 for of in spreads])) for name in ("launches", "rounds"))
    found = {"together": shared**0.5, "spread": max(0.0, launch**2 - shared) ** 0.5, "round_spread": round_}
    return {name: round(value, 4) for name, value in found.items()}


def sides_of(a: Any, b: Any) -> list[Any]:
    """Return two sides as commbench.report.sides has them."""
    from commbench.report.sides import Cell, Shape, Side

    shared = ("2 ranks on 1 node", "float32", "sum", None)
    found = []
    for name, times in (("a", a), ("b", b)):
        side = Side(name)
        side.launches, side.simulated = len(times), {True}
        for i, of_cell in enumerate(times.T):
            cell = Cell("allreduce", *shared, 8 << i, False, "host", "", "barrier", "auto", None)
            side.times["simulated", cell] = of_cell.tolist()
            side.shapes["simulated", cell] = Shape(2, 1, 1.0)
        found.append(side)
    return found


def count(options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Return which part of the pairs of one kind has which outcome."""
    import numpy as np

    from commbench.report.compare import FASTER, SLOWER, compare

    chance = np.random.default_rng([options.seed, len(kind)])
    found = {"any": 0, "first": 0, "others": 0, "failed": 0, "open": 0, "share": 0.0}
    for pair in range(options.pairs):
        (result,) = compare(sides_of(*launches(chance, options, kind)), options.limit)
        real = [row.verdict in (SLOWER, FASTER) for row in result.rows]
        found["any"] += any(real)
        found["first"] += result.rows[0].verdict == SLOWER
        found["others"] += any(real[1:])
        found["share"] += sum(row.verdict == SLOWER for row in result.rows) / len(real)
        failed = bool(result.failing(options.limit))
        found["failed"] += failed
        found["open"] += not failed and bool(result.open(options.limit))
        if (pair + 1) % 250 == 0:
            say(f"{kind}: {pair + 1} of {options.pairs} pairs")
    return {name: number / options.pairs for name, number in found.items()}


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def wilson(part: float, number: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a probability that showed in this part of so many trials."""
    z = 1.96
    middle, wide = part + z**2 / (2 * number), z * (part * (1 - part) / number + (z / (2 * number)) ** 2) ** 0.5
    return (middle - wide) / (1 + z**2 / number), (middle + wide) / (1 + z**2 / number)


def report(options: argparse.Namespace, outcomes: dict[str, dict[str, float]]) -> list[str]:
    """Return the lines of the table."""

    def rate(part: float) -> str:
        low, high = wilson(part, options.pairs)
        return f"{percent(part)} ({100 * low:.1f} to {100 * high:.1f})"

    equal, one, all_ = (outcomes[kind] for kind in (EQUAL, ONE, ALL))
    slower = f"{100 * options.slowdown:g} %"
    rows = [
        ["equal: any cell called slower or faster", rate(equal["any"]), f"at most {percent(ALARMS_BAR)}"],
        [f"one cell {slower} slower: that cell found", rate(one["first"]), f"at least {percent(FOUND_BAR)}"],
        ["one cell slower: any other cell called", rate(one["others"]), f"at most {percent(ALARMS_BAR)}"],
        [f"all cells {slower} slower: found in some cell", rate(all_["any"]), f"at least {percent(FOUND_BAR)}"],
        ["all cells slower: share of cells found", percent(all_["share"]), "-"],
    ]
    for kind, outcome in outcomes.items():
        passed = 1 - outcome["failed"] - outcome["open"]
        codes = " / ".join(map(percent, (passed, outcome["failed"], outcome["open"])))
        rows.append([f"{kind}: --fail-if-slower {100 * options.limit:g}% exits 0 / 1 / 3", codes, "-"])
    noise = (
        f"# launch-level noise: {options.together} shared by the cells of a launch, {options.spread} of each cell, "
        f"median of {options.rounds} rounds of {options.round_spread}; stalls in {options.stalls} of launches"
    )
    about = f"# {options.pairs} pairs of each kind, {options.launches} launches a side, {options.cells} cells"
    return [about, noise, "# in brackets: 95 % interval", *table(["pairs", "outcome", "bar"], rows)]


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--pairs", type=int, default=1000, metavar="N", help="simulated pairs of each kind (default 1000)")
    it.add_argument("--launches", type=int, default=5, metavar="N", help="launches of each side (default 5)")
    it.add_argument("--cells", type=int, default=24, metavar="N", help="cells of a run (default 24)")
    it.add_argument("--slowdown", type=float, default=0.2, metavar="P", help="of the slower cells (default 0.2)")
    it.add_argument("--together", type=float, default=0.02, metavar="S", help="default 0.02")
    it.add_argument("--spread", type=float, default=0.03, metavar="S", help="default 0.03")
    it.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds of a cell in a launch (default 6)")
    it.add_argument("--round-spread", type=float, default=0.03, metavar="S", help="default 0.03")
    it.add_argument("--stalls", type=float, default=0.05, metavar="P", help="default 0.05")
    it.add_argument("--like", metavar="DIR", help="a set of launches: --together, --spread and --round-spread from it")
    it.add_argument("--limit", type=float, default=0.1, metavar="P", help="of --fail-if-slower (default 0.1)")
    it.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    add_options(it)
    return it


def main(words: Sequence[str]) -> None:
    """Simulate, print and write the table."""
    options = parser().parse_args(words)
    sys.path.insert(0, str(ROOT))  # the clone's commbench, installed or not
    if options.like:
        vars(options).update(measured(options.like))
    lines = head(["benchmarks/compare_power.py", *words])
    outcomes = {kind: count(options, kind) for kind in (EQUAL, ONE, ALL)}
    publish("compare_power", [*lines, *report(options, outcomes)], {**vars(options), "outcomes": outcomes}, options)


if __name__ == "__main__":
    main(sys.argv[1:])
