"""How much of their time do workers of a parameter server wait, by the micro-batches that they accumulate?

    python benchmarks/parameter_server.py --picture parameter_server.png

A study that this project set out from reports 11.7 % of idle time at the parameter server when accumulation exceeds
four steps; it does not say whose time, with how many workers, or how long a step takes. Here one server serves 1 to 3
workers by the code of `commbench.train --mode ps`: gradients and weights of 1.77 million parameters really move (Gloo,
over loopback), and AdamW really updates them. Only computing is emulated, by sleeping, so that two cores do
not measure their own scheduler. Four set-ups, K micro-batches before each push:

    even        each micro-batch takes the same time
    unequal     the slowest worker takes 1.5 times as long as the fastest, those between in even steps
    jitter      a micro-batch takes 0.5 to 1.5 times as long, drawn uniformly
    both        of the last two

A worker waits while the server serves others (`queue`) or updates (`update`), by stamps of both sides; bytes that move
are no waiting but communication (`moving`). Shares are of the time of all workers. The server is idle when it neither
receives, updates nor sends. A figure is the median over rounds, in shuffled order, beside the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from _launch import ROOT, BenchmarkError, add_options, environment, head, publish, say, table

STUDY = 0.117
PARAMETERS = 1_770_000
SETUPS = ("even", "unequal", "jitter", "both")
SLOWEST = 1.5  # times the fastest
JITTER = 0.5  # of a micro-batch's time, more or less
_WARMUP = 2  # pushes of each worker
_FEWEST, _MOST = 6, 30  # pushes


# One rank of a launch.


def measure(spec: Mapping[str, Any]) -> None:
    """Be one rank: rank 0 serves, the others push, cell by cell; on rank 0 print each cell's shares."""
    from commbench.backends._mpi_world import open_mpi

    world = open_mpi()
    import torch
    from torch import distributed

    from commbench.backends._torch_store import store
    from commbench.training.parameter_server import SYNCHRONOUS, serve
    from commbench.training.workload import optimizer

    torch.set_num_threads(1)
    workers = world.size - 1
    weights = torch.zeros(spec["parameters"])
    gradients = torch.rand(spec["parameters"])
    with store(world) as (met, _):
        distributed.init_process_group("gloo", store=met, rank=world.rank, world_size=world.size)
    update = None
    if world.rank == 0:
        whole = torch.nn.Parameter(weights)
        whole.grad = gradients
        update = optimizer([whole]).step
    together = workers if spec["updates"] == SYNCHRONOUS else 1
    for index, (setup, accumulate) in enumerate(spec["cells"]):
        pushes = _pushes(spec, accumulate)
        told = None
        world.meet_asleep()
        if update:
            for _ in range(_WARMUP + pushes):
                serve(weights, gradients, update, workers, together)
        else:
            draw = random.Random(f"{spec['seed']} {index} {world.rank}")
            told = _work(spec, setup, accumulate, pushes, world.rank - 1, workers, draw, gradients, weights)
        ranks = world.gather(told)
        if ranks is not None:
            print(json.dumps({"setup": setup, "accumulate": accumulate, **_shares(ranks[1:])}), flush=True)
    world.meet_asleep()
    distributed.destroy_process_group()
    world.close()


def _pushes(spec: Mapping[str, Any], accumulate: int) -> int:
    """Return how many pushes of a worker fill a cell's seconds, by what they compute."""
    return max(_FEWEST, min(_MOST, round(spec["seconds"] / (accumulate * spec["compute"]))))


def _work(
    spec: Mapping[str, Any],
    setup: str,
    accumulate: int,
    pushes: int,
    worker: int,
    workers: int,
    draw: random.Random,
    gradients: Any,
    weights: Any,
) -> dict[str, float]:
    """Compute, by sleeping, and push; return the seconds of this worker: all, and those of its exchanges."""
    from commbench.training.parameter_server import exchange

    factor = 1.0
    if setup in ("unequal", "both") and workers > 1:
        factor += (SLOWEST - 1) * worker / (workers - 1)
    found = dict.fromkeys(("all", "queue", "update", "move"), 0.0)
    for number in range(_WARMUP + pushes):
        began = time.perf_counter()
        for _ in range(accumulate):
            uneven = draw.uniform(1 - JITTER, 1 + JITTER) if setup in ("jitter", "both") else 1.0
            time.sleep(spec["compute"] * factor * uneven)
        parts = exchange(gradients, weights)
        if number >= _WARMUP:
            found["all"] += time.perf_counter() - began
            for name, seconds in parts._asdict().items():
                found[name] += seconds
    return found


def _shares(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the shares of all workers' time, and of the server's that it is idle."""
    total = {name: sum(one[name] for one in told) for name in told[0]}
    shares = {name: total[name] / total["all"] for name in ("queue", "update", "move")}
    wall = max(one["all"] for one in told)
    return {
        **shares,
        "waiting": shares["queue"] + shares["update"],
        "idle": 1 - (total["update"] + total["move"]) / wall,
    }


# The launches.


def launch(python: str, workers: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all cells with so many workers, in shuffled rounds; return what each gave."""
    counts = [int(one) for one in options.accumulate.split(",")]
    setups = [name for name in SETUPS if workers > 1 or name in ("even", "jitter")]
    draw, cells = random.Random(workers), []
    for _ in range(options.rounds):
        those = [(setup, count) for setup in setups for count in counts]
        draw.shuffle(those)
        cells += those
    say(f"{workers} workers: {len(cells)} cells")
    spec = {
        "parameters": options.parameters,
        "compute": options.compute / 1e3,
        "seconds": options.seconds,
        "updates": options.updates,
        "seed": 1,
        "cells": cells,
    }
    with tempfile.TemporaryDirectory() as folder:
        words = (str(ROOT / "benchmarks" / "parameter_server.py"), "--rank", json.dumps(spec))
        out = environment(python).run(workers + 1, *words, cwd=folder)
    return [{"workers": workers, **json.loads(line)} for line in out.splitlines()]


def fold(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each set-up and K: medians over rounds, and of waiting the least and the largest."""
    places = sorted({(one["workers"], SETUPS.index(one["setup"]), one["accumulate"]) for one in found})
    rows = []
    for workers, setup, accumulate in places:
        place = (workers, SETUPS[setup], accumulate)
        those = [one for one in found if (one["workers"], one["setup"], one["accumulate"]) == place]
        row = {name: median(one[name] for one in those) for name in ("waiting", "queue", "update", "move", "idle")}
        waits = [one["waiting"] for one in those]
        about = {"workers": workers, "setup": SETUPS[setup], "accumulate": accumulate}
        rows.append({**about, **row, "least": min(waits), "largest": max(waits)})
    return rows


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table, and what it says about the study."""
    names = ("waiting", "queue", "update", "move", "idle")
    header = [
        "workers",
        "set-up",
        "K",
        "waiting %",
        "least .. largest",
        "queue %",
        "update %",
        "moving %",
        "server idle %",
    ]
    cells = []
    for row in rows:
        waiting, *others = (f"{100 * row[name]:.1f}" for name in names)
        span = f"{100 * row['least']:.1f} .. {100 * row['largest']:.1f}"
        cells.append([str(row["workers"]), row["setup"], str(row["accumulate"]), waiting, span, *others])
    lines = [*table(header, cells), ""]
    for workers, setup in dict.fromkeys((row["workers"], row["setup"]) for row in rows):
        curve = [row for row in rows if (row["workers"], row["setup"]) == (workers, setup)]
        shares = [row["waiting"] for row in curve]
        way = "falls" if shares == sorted(shares, reverse=True) else "rises" if shares == sorted(shares) else "turns"
        below = [str(row["accumulate"]) for row in curve if row["waiting"] < STUDY]
        under = (
            f"below the study's {100 * STUDY:.1f} % at K = {', '.join(below)}" if below else "nowhere below the study's"
        )
        lines.append(f"# {workers} worker{'s' * (workers > 1)}, {setup}: waiting {way} with K; {under}")
    return lines


def draw_picture(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw the curves, a panel for each number of workers."""
    from matplotlib.figure import Figure

    counts = sorted({row["workers"] for row in rows})
    figure: Any = Figure(figsize=(4 * len(counts), 4), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for axes, workers in zip(panels, counts, strict=True):
        for setup in SETUPS:
            curve = [row for row in rows if (row["workers"], row["setup"]) == (workers, setup)]
            if not curve:
                continue
            k, y = [row["accumulate"] for row in curve], [100 * row["waiting"] for row in curve]
            off = [[100 * abs(row["waiting"] - row[end]) for row in curve] for end in ("least", "largest")]
            axes.errorbar(k, y, yerr=off, marker="o", markersize=4, capsize=2, label=setup)
        axes.axhline(100 * STUDY, color="grey", linestyle="--", linewidth=1, label=f"the study: {100 * STUDY:.1f} %")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("micro-batches before a push")
        axes.set_title(f"{workers} worker{'s' * (workers > 1)}", loc="left")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("workers' time spent waiting (%)")
    panels[0].set_ylim(bottom=0)
    panels[-1].legend()
    figure.savefig(path, dpi=150)


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--python", default=sys.executable, metavar="PATH", help="of the ranks (default: this one)")
    it.add_argument("--workers", default="1,2,3", metavar="N,...", help="(default 1,2,3)")
    it.add_argument("--accumulate", default="1,2,4,8,16", metavar="K,...", help="micro-batches (default 1,2,4,8,16)")
    it.add_argument(
        "--updates", choices=("asynchronous", "synchronous"), default="asynchronous", help="(default: the first)"
    )
    it.add_argument("--compute", type=float, default=10.0, metavar="MS", help="of a micro-batch (default 10)")
    it.add_argument("--parameters", type=int, default=PARAMETERS, metavar="N", help=f"(default {PARAMETERS})")
    it.add_argument("--seconds", type=float, default=0.3, metavar="S", help="of computing in a cell (default 0.3)")
    it.add_argument("--rounds", type=int, default=3, metavar="N", help="(default 3)")
    it.add_argument("--picture", metavar="FILE", help="draw it too")
    it.add_argument("--rank", metavar="JSON", help=argparse.SUPPRESS)
    add_options(it)
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.rank:
        measure(json.loads(options.rank))
        return
    lines = head(["benchmarks/parameter_server.py", *(sys.argv[1:] if arguments is None else arguments)])
    found = [one for workers in options.workers.split(",") for one in launch(options.python, int(workers), options)]
    rows = fold(found)
    lines += [
        f"# {options.updates} updates, {options.parameters:,} weights: {4 * options.parameters / 1e6:.1f} MB each way",
        f"# computing is emulated: a micro-batch sleeps for {options.compute:g} ms; all else is real",
        "",
        *lines_of(rows),
        f"# the study: {100 * STUDY:.1f} % idle when accumulation exceeds four steps, not said whose",
    ]
    publish("parameter_server", lines, {"cells": found, "rows": rows}, options)
    if options.picture:
        draw_picture(rows, options.picture)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"parameter_server: {error}")
