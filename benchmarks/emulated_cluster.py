"""Does the advice help? Measure, fit, recommend, and measure again, on real MPICH traffic between emulated hosts.

    python benchmarks/emulated_cluster.py                    # as root; some twenty minutes a shape
    python benchmarks/emulated_cluster.py --shapes 2x2 --orders 3 --repeats 2 --sizes 64K

Hosts hang on leaf switches whose trunks are slower than what the hosts could send (`emulated_hosts.py`), and their
names are scattered over the leaves, as names on real clusters are. With ranks in the order of names commbench measures
pairs of hosts one by one and all-reduces; the model is fitted to these records and to nothing else. It foretells all
other orders: the recommended one, the worst one that a search finds, and random ones. Then all orders are measured, in
several repeats, each in a new shuffled order, and each with launches of its own.

A gain is the median over repeats of the ratio within one repeat. The rank correlation (Spearman's) is that of predicted
times and one repeat's, over the random orders; its noise ceiling is that of one repeat and another one. All hosts share
this machine's cores: only orders and ratios mean something.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import emulated_hosts
from _launch import ROOT, BenchmarkError, add_options, head, publish, say, table

if TYPE_CHECKING:
    from commbench.results.record import Record
    from commbench.topology.cluster import Cluster

Order = tuple[str, ...]  # the host of each rank

ALGORITHMS = {"ring": "ring", "rabenseifner": "reduce_scatter_allgather"}  # MPICH's own names
BY_NAME, RECOMMENDED, WORST = "by name", "recommended", "worst found"
FASTER_THAN_NAMES, FASTER_THAN_WORST, CORRELATION = 1.3, 1.5, 0.8  # the bars
_SEARCHES = 4  # for the worst order, each from another start
_TIMEOUT = 600  # s, of one launch


@dataclass(frozen=True)
class Shape:
    """So many leaves with so many hosts each."""

    leaves: int
    hosts: int

    def __str__(self) -> str:
        return f"{self.leaves} leaves of {self.hosts} hosts"


class Predictor:
    """The model: seconds of an algorithm in an order of hosts, kept so that no order is asked for twice."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._place = cluster.arrays.places
        self._known: dict[tuple[str, Order], Any] = {}

    def seconds(self, algorithm: str, order: Order, size: int) -> float:
        import numpy as np

        from commbench.model.cost import cost
        from commbench.model.library import LIBRARIES
        from commbench.model.placement import Placement

        if (algorithm, order) not in self._known:
            places = np.array([self._place[host] for host in order])
            placement = Placement(self.cluster, places, np.zeros(len(places), dtype=np.int64))
            self._known[algorithm, order] = cost("allreduce", algorithm, placement, LIBRARIES["mpi"])
        return float(self._known[algorithm, order].seconds(size)[0])

    def worst(self, algorithm: str, size: int, draw: random.Random) -> Order:
        """Return the slowest order that swaps of two hosts lead to, from several random ones."""
        starts = [tuple(draw.sample(sorted(self._place), len(self._place))) for _ in range(_SEARCHES)]
        return max(
            (self._climb(algorithm, size, one) for one in starts), key=lambda it: self.seconds(algorithm, it, size)
        )

    def _climb(self, algorithm: str, size: int, order: Order) -> Order:
        while True:
            near = max(_swapped(order), key=lambda it: self.seconds(algorithm, it, size))
            if self.seconds(algorithm, near, size) <= self.seconds(algorithm, order, size) * (1 + 1e-9):
                return order
            order = near


def _swapped(order: Order) -> Iterable[Order]:
    for i, j in itertools.combinations(range(len(order)), 2):
        changed = list(order)
        changed[i], changed[j] = changed[j], changed[i]
        yield tuple(changed)


def described(built: emulated_hosts.Cluster) -> Cluster:
    """Return the cluster as its owner would describe it: the rates that were set, latencies of a guess."""
    from commbench.topology.cluster import Block, Cluster, Switch
    from commbench.topology.shape import Figures, Shape

    gbps = {name: rate / 1e9 for name, rate in built.rates.items()}
    leaves = [f"leaf{chr(ord('A') + place)}" for place in range(len(built.leaves))]
    host = Shape(
        devices=1, vendor="cpu", pcie=Figures(100.0, 0.5), nics=1, nic=Figures(gbps[built.hosts[0]], 20.0)
    ).node_class("host")
    switches = [Switch("trunk"), *(Switch(leaf, "trunk", gbps[leaf], 20.0) for leaf in leaves)]
    blocks = [Block(names, (leaf,), "host") for leaf, names in zip(leaves, built.leaves, strict=True)]
    return Cluster("emulated", (host,), tuple(switches), tuple(blocks))


def run(built: emulated_hosts.Cluster, order: Order, module: str, *arguments: str) -> list[Record]:
    """Run a door of commbench on a rank per host, in this order, and return its records."""
    from commbench.results.journal import read_records

    with tempfile.TemporaryDirectory() as top:
        words = [sys.executable, "-m", f"commbench.{module}", *arguments, "--json", "--progress", "off"]
        command = emulated_hosts.mpirun(built, [*words, "--out", f"{top}/run"], order)
        variables = {**os.environ, **emulated_hosts.ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as job:
            try:
                _, complaints = job.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                job.terminate()
                raise BenchmarkError(f"no end after {_TIMEOUT} s: {' '.join(words)}") from None
        if job.returncode:
            raise BenchmarkError(f"exit code {job.returncode}: {' '.join(words)}\n{complaints[-3000:]}")
        return list(read_records(Path(top, "run")))


def times(
    built: emulated_hosts.Cluster, order: Order, sizes: Sequence[int], iterations: int
) -> dict[str, dict[int, float]]:
    """Return the seconds of the slowest rank in one launch, by algorithm and size."""
    found: dict[str, dict[int, float]] = {name: {} for name in ALGORITHMS}
    effort = ["-n", str(iterations), "-w", "0", "-c", "0", "--rounds", "1"]
    for one in run(built, order, "allreduce", *_grid(sizes), *effort):
        if not one.time_us:
            raise BenchmarkError(f"{one.algorithm} of {one.size} B has no time: {one.status} {one.reason}")
        found[one.algorithm][one.size] = one.time_us * 1e-6
    return found


def _grid(sizes: Sequence[int]) -> list[str]:
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    return ["-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", str(factor), "--algo", ",".join(ALGORITHMS.values())]


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def recommended(cluster: Cluster, algorithm: str, size: int, by_name: Order) -> Order:
    """Return the order that commbench recommends to a job that makes such all-reduces, and has ranks by name."""
    import numpy as np

    from commbench.model.library import LIBRARIES
    from commbench.model.placement import Placement
    from commbench.recommend.order import search
    from commbench.recommend.score import Judge
    from commbench.recommend.traffic import step
    from commbench.recommend.tree import tree

    nodes, number = cluster.arrays.nodes, len(by_name)
    judge = Judge(step({"dp": number}, {"dp": (1, size)}), LIBRARIES["mpi"], {"dp": algorithm})
    seats = Placement(cluster, np.arange(number), np.zeros(number, dtype=np.int64))
    names = np.array([nodes.index(host) for host in by_name])
    found = search(judge, seats, tree(cluster), {"by name": names})
    return tuple(nodes[place] for place in seats.node[found.seat])


def experiment(shape: Shape, options: argparse.Namespace, sizes: Sequence[int]) -> dict[str, Any]:
    """Build a cluster of this shape, and do all of it."""
    from commbench.model.fit import apply, fit

    draw = random.Random(f"{options.seed} {shape}")
    number = shape.leaves * shape.hosts
    names = [f"n{place:02}" for place in range(1, number + 1)]
    with emulated_hosts.cluster(
        *(shape.leaves, shape.hosts),
        host_rate=options.host_rate,
        trunk_rate=options.trunk_rate,
        names=draw.sample(names, number),
    ) as built:
        by_name = tuple(names)
        say(f"{shape}: measuring what the model is fitted to")
        largest = max(sizes)
        pairs = run(built, by_name, "pairs", "--concurrent", "off", "--rounds", "2", "--budget", str(options.budget))
        known = [largest >> place for place in (9, 6, 3, 0)]
        sweep = run(built, by_name, "allreduce", *_grid(known), "-n", "2", "--rounds", "2")
        fitted = fit([pairs, sweep], described(built), hold_out=False)
        model = Predictor(apply(described(built), fitted))
        orders: dict[str, Order] = {BY_NAME: by_name}
        for name in ALGORITHMS:
            orders[f"{RECOMMENDED} {name}"] = recommended(model.cluster, name, largest, by_name)
            orders[f"{WORST} {name}"] = model.worst(name, largest, draw)
        for place in range(1, options.orders + 1):
            orders[f"random {place}"] = tuple(draw.sample(names, number))
        measured: dict[Order, list[dict[str, dict[int, float]]]] = {order: [] for order in orders.values()}
        for repeat in range(1, options.repeats + 1):
            for place, order in enumerate(draw.sample(list(measured), len(measured)), start=1):
                say(f"{shape}: repeat {repeat} of {options.repeats}, order {place} of {len(measured)}")
                measured[order].append(times(built, order, sizes, options.iterations))
        cells = [
            {
                **{"order": name, "hosts": order, "algorithm": algorithm, "size": size},
                "predicted_s": model.seconds(algorithm, order, size),
                "measured_s": [one[algorithm][size] for one in measured[order]],
            }
            for name, order in orders.items()
            for algorithm in ALGORITHMS
            for size in sizes
        ]
        leaves = {host: chr(ord("A") + place) for place, leaf in enumerate(built.leaves) for host in leaf}
        return {
            "shape": str(shape),
            "leaf": leaves,
            "fit": fitted.to_dict(),
            "fit_lines": fitted.lines(),
            "cells": cells,
        }


def judged(found: Mapping[str, Any], algorithm: str, size: int) -> dict[str, Any]:
    """Return gains and correlations of one algorithm at one size."""
    cells = {one["order"]: one for one in found["cells"] if (one["algorithm"], one["size"]) == (algorithm, size)}
    ours = cells[f"{RECOMMENDED} {algorithm}"]["measured_s"]

    def gain(name: str) -> list[float]:
        return [theirs / own for theirs, own in zip(cells[name]["measured_s"], ours, strict=True)]

    chance = [one for name, one in cells.items() if name.startswith("random ")]
    repeats = list(zip(*(one["measured_s"] for one in chance), strict=True))
    predicted = [one["predicted_s"] for one in chance]
    return {
        **{"algorithm": algorithm, "size": size},
        "by_name": gain(BY_NAME),
        "worst": gain(f"{WORST} {algorithm}"),
        "correlations": [correlation(predicted, one) for one in repeats],
        "ceilings": [correlation(one, other) for one, other in itertools.combinations(repeats, 2)],
    }


def lines_of(found: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one shape's part of the page."""
    from commbench.units import format_size

    scattered = " ".join(found["leaf"][host] for host in sorted(found["leaf"]))
    lines = ["", f"# {found['shape']}; by name the leaves are {scattered}"]
    lines += [f"#   {line}" for line in found["fit_lines"]]
    rows = []
    for verdict in verdicts:
        algorithm, size = verdict["algorithm"], verdict["size"]
        shown = (BY_NAME, f"{WORST} {algorithm}", f"{RECOMMENDED} {algorithm}")
        cells = [one for one in found["cells"] if (one["algorithm"], one["size"]) == (algorithm, size)]
        chance = [one for one in cells if one["order"].startswith("random ")]
        picked = [one for name in shown for one in cells if one["order"] == name]
        if chance:
            picked.append(
                {
                    "order": f"random, median of {len(chance)}",
                    "predicted_s": statistics.median(one["predicted_s"] for one in chance),
                    "measured_s": [statistics.median(one["measured_s"]) for one in chance],
                }
            )
        for one in picked:
            measured = [1e3 * second for second in one["measured_s"]]
            span = f"{min(measured):.0f} to {max(measured):.0f}"
            order = one["order"].removesuffix(f" {algorithm}")
            row = [algorithm, format_size(size), order, f"{1e3 * one['predicted_s']:.0f}"]
            rows.append([*row, f"{statistics.median(measured):.0f}", span])
    lines += ["", *table(["algorithm", "size", "order", "predicted ms", "measured ms", "of repeats"], rows), ""]
    rows = []
    for verdict in verdicts:
        row = [verdict["algorithm"], format_size(verdict["size"])]
        for name in ("by_name", "worst"):
            gains = verdict[name]
            row += [f"{statistics.median(gains):.2f}", f"{min(gains):.2f} to {max(gains):.2f}"]
        for name in ("correlations", "ceilings"):
            those = verdict[name]
            row.append(f"{statistics.median(those):.2f} ({', '.join(f'{one:.2f}' for one in those)})" if those else "-")
        rows.append(row)
    header = ["algorithm", "size", "by name / recommended", "of repeats", "worst / recommended", "of repeats"]
    return [*lines, *table([*header, "predicted, one repeat", "one repeat, another"], rows)]


def bars(found: Sequence[tuple[str, Mapping[str, Any]]], largest: int) -> list[str]:
    """Return which bars are met, at the largest size."""
    lines = [""]
    for shape, verdict in found:
        if verdict["size"] != largest:
            continue
        text = f"# {shape}, {verdict['algorithm']}: "
        by_name, worst = statistics.median(verdict["by_name"]), statistics.median(verdict["worst"])
        parts = [
            f"{by_name:.2f} x the default ({_met(by_name >= FASTER_THAN_NAMES)}: {FASTER_THAN_NAMES})",
            f"{worst:.2f} x the worst ({_met(worst >= FASTER_THAN_WORST)}: {FASTER_THAN_WORST})",
        ]
        ours, ceiling = (statistics.median(verdict[name] or [float("nan")]) for name in ("correlations", "ceilings"))
        held = _met(ours >= CORRELATION) if max(ours, ceiling) >= CORRELATION else "the noise does not allow"
        parts.append(f"correlation {ours:.2f} of a ceiling of {ceiling:.2f} ({held}: {CORRELATION})")
        lines.append(text + "; ".join(parts))
    return lines


def _met(yes: bool) -> str:
    return "met" if yes else "NOT met"


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--shapes", default="2x4,4x4", metavar="LEAVESxHOSTS,...", help="(default 2x4,4x4)")
    it.add_argument("--sizes", default="1M,8M", metavar="S,S", help="one, or several by one factor (default 1M,8M)")
    it.add_argument("--orders", type=int, default=20, metavar="N", help="random orders (default 20)")
    it.add_argument("--repeats", type=int, default=3, metavar="N", help="(default 3)")
    it.add_argument("--iterations", type=int, default=2, metavar="N", help="timed calls of a launch (default 2)")
    it.add_argument("--host-rate", default="800mbit", metavar="RATE", help="of each host's link (default 800mbit)")
    it.add_argument("--trunk-rate", default="200mbit", metavar="RATE", help="of each leaf's (default 200mbit)")
    it.add_argument("--budget", type=int, default=120, metavar="S", help="seconds for pairs (default 120)")
    it.add_argument("--seed", type=int, default=1, metavar="N", help="of names and orders (default 1)")
    add_options(it)
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    lines = head(["benchmarks/emulated_cluster.py", *(sys.argv[1:] if arguments is None else arguments)])
    sys.path.insert(0, str(ROOT))
    from commbench.units import parse_size

    if reason := emulated_hosts.trouble():
        raise BenchmarkError(reason)
    emulated_hosts.tidy_when_terminated()
    sizes = sorted(parse_size(size) for size in options.sizes.split(","))
    if any(later * sizes[0] != before * sizes[1] for before, later in itertools.pairwise(sizes)):
        raise BenchmarkError(f"--sizes are larger by the same factor each, not {options.sizes}")
    shapes = [Shape(*map(int, text.split("x"))) for text in options.shapes.split(",")]
    everything, verdicts = [], []
    for shape in shapes:
        found = experiment(shape, options, sizes)
        of_shape = [judged(found, algorithm, size) for algorithm in ALGORITHMS for size in sizes]
        lines += lines_of(found, of_shape)
        verdicts += [(str(shape), one) for one in of_shape]
        everything.append({**found, "verdicts": of_shape})
    lines += bars(verdicts, sizes[-1])
    publish("emulated_cluster", lines, {"shapes": everything}, options)


if __name__ == "__main__":
    try:
        main()
    except (BenchmarkError, emulated_hosts.EmulationError) as error:
        sys.exit(f"emulated_cluster: {error}")
