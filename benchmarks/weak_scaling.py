"""What advice on placement would do to weak scaling to 256 GPUs, over a grid of assumptions; predicted, not measured.

    python benchmarks/weak_scaling.py

A study that this project set out from reports a weak-scaling efficiency of 63 % at 256 GPUs, and 89 % after its tuning.
It does not say with which model, batch, overlap or network, so that no single figure can be held against it. Here each
shipped topology is made as large as four such jobs (whole units under a core, `commbench/model/growth.py`), half of
its nodes, at random, are free, and a job of 256 GPUs trains by data parallelism:

    before    a random choice of the free nodes, in random order, as where names and scheduler know nothing of switches
    after     the nodes and the order that commbench recommends, or what there is where the model finds that no slower

A step computes 6 x parameters x tokens operations (Kaplan et al., "Scaling laws for neural language models", 2020) and
adds up gradients of 4 bytes a parameter in buckets of 25 MiB (the default of torch's DistributedDataParallel), each by
the fastest algorithm of the library on these seats, as the cost model has it. Of that is hidden what overlaps with the
backward pass, two thirds of the computing, all but the last bucket:

    hidden = min(communication x (1 - 1 / buckets), overlap x 2/3 x computing)

Efficiency is the time of a step on one node's eight GPUs over that on 256, with as much work for each GPU.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from _launch import ROOT, BenchmarkError, add_options, head, publish, say, table

if TYPE_CHECKING:
    from commbench.model.placement import Placement
    from commbench.topology.cluster import Cluster

STUDY = 0.63, 0.89
GPUS = 256
BUCKET = 25 << 20  # bytes
# Operations per second in 16 bits, dense, of one device: data sheets of H100 SXM, A100, L40S; half of an MI250X.
PEAKS = {"sm90": 989e12, "sm80": 312e12, "sm89": 181e12, "gfx90a": 191.5e12}


@dataclass(frozen=True)
class Grid:
    """What is assumed: every combination."""

    parameters: tuple[float, ...] = (0.34e9, 1.5e9, 7e9)
    tokens: tuple[int, ...] = (1024, 4096, 16384, 65536)  # of one GPU in a step
    utilisation: tuple[float, ...] = (0.3, 0.5)  # of the peak, while computing
    overlap: tuple[float, ...] = (0.0, 0.5, 0.9)
    oversubscription: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)  # of all uplinks, against what is shipped


@dataclass(frozen=True)
class Job:
    """The seconds of one bucket on one node and on all GPUs, and what a device can compute."""

    alone: float
    together: float
    peak: float

    def efficiency(self, parameters: float, tokens: int, utilisation: float, overlap: float) -> float:
        """Return the time of a step on one node over that on all GPUs."""
        compute = 6 * parameters * tokens / (utilisation * self.peak)
        buckets = max(1, round(4 * parameters / BUCKET))

        def step(bucket: float) -> float:
            communication = buckets * bucket
            hidden = min(communication * (1 - 1 / buckets), overlap * 2 / 3 * compute)
            return compute + communication - hidden

        return step(self.alone) / step(self.together)


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with uplinks that carry so many times less."""
    switches = tuple(replace(one, gbps=one.gbps / factor if one.gbps else one.gbps) for one in cluster.switches)
    return replace(cluster, switches=switches)


def bucket(placement: Placement) -> float:
    """Return the seconds of one bucket by the fastest algorithm of the devices' library."""
    from commbench.model.cost import cost
    from commbench.model.library import choices, of_vendors
    from commbench.model.routes import Routes
    from commbench.model.schedule import NotApplicable

    library = of_vendors(placement.vendors())
    routes, found, reasons = Routes(placement, library), [], []
    for name in choices(library, placement.vendors()):
        try:
            found.append(float(cost("allreduce", name, placement, library, routes).seconds(BUCKET)[0]))
        except NotApplicable as reason:
            reasons.append(str(reason))
    if not found:
        raise BenchmarkError(f"{placement.cluster.name} has no all-reduce on {placement.n} ranks: {'; '.join(reasons)}")
    return min(found)


def seats(cluster: Cluster, nodes: Sequence[int], gpus: int) -> Placement:
    """Return a rank on each device of the nodes, one node after another, `gpus` in all."""
    import numpy as np

    from commbench.model.placement import Placement

    sizes = {node: len(cluster.classes[int(cluster.arrays.node_class[node])].devices) for node in nodes}
    places = [(node, device) for node in nodes for device in range(sizes[node])][:gpus]
    return Placement(cluster, np.array([node for node, _ in places]), np.array([device for _, device in places]))


def advised(cluster: Cluster, free: Sequence[int], gpus: int) -> tuple[Placement, str]:
    """Return the placement that commbench recommends, and how it was chosen."""
    import numpy as np

    from commbench.model.library import of_vendors
    from commbench.recommend import nodes
    from commbench.recommend.order import search, seated
    from commbench.recommend.score import Judge
    from commbench.recommend.traffic import step
    from commbench.recommend.tree import tree

    units = tree(cluster)
    chosen = nodes.choose(cluster, units, np.array(sorted(free)), gpus)
    first = seats(cluster, chosen.nodes.tolist(), gpus)
    judge = Judge(step({"dp": gpus}, {"dp": (1, BUCKET)}), of_vendors(first.vendors()))
    found = search(judge, first, units, seconds=2.0)
    return seated(first, found.seat), f"{chosen.how}: {chosen.pods} pods, {chosen.leaves} leaves; {found.how}"


def experiment(name: str, gpus: int, grid: Grid, seeds: int) -> dict[str, Any]:
    """Return the efficiencies of one topology before and after, over the grid and over several free lists."""
    from commbench.model.growth import grow
    from commbench.topology import shipped
    from commbench.topology.reading import read

    cluster = read(shipped.find(name)).cluster
    needed = 4 * -(-gpus * cluster.nodes // cluster.devices)
    cluster = grow(cluster, needed)
    settings, how = [], []
    for seed, factor in itertools.product(range(1, seeds + 1), grid.oversubscription):
        say(f"{name}: free list {seed} of {seeds}, uplinks of 1/{factor:g}")
        draw, wide = random.Random(seed), slowed(cluster, factor)
        free = draw.sample(range(wide.nodes), wide.nodes // 2)
        after, text = advised(wide, free, gpus)
        kind = {int(wide.arrays.node_class[node]) for node in after.node.tolist()}
        # Before, too, of one vendor: else there would be no library to compare with.
        alike = [node for node in free if int(wide.arrays.node_class[node]) in kind]
        before = seats(wide, alike, gpus)
        node = wide.classes[kind.pop()]
        alone = bucket(seats(wide, alike[:1], gpus))
        peak = PEAKS[node.devices[0].arch]
        as_it_is, as_advised = bucket(before), bucket(after)
        if as_advised >= as_it_is:
            text += "; kept as it was"
        how.append(f"free list {seed}, uplinks 1/{factor:g}: {text}")
        jobs = [Job(alone, seconds, peak) for seconds in (as_it_is, min(as_it_is, as_advised))]
        for point in itertools.product(grid.parameters, grid.tokens, grid.utilisation, grid.overlap):
            settings.append(
                {
                    **dict(zip(("parameters", "tokens", "utilisation", "overlap"), point, strict=True)),
                    **{"oversubscription": factor, "seed": seed},
                    "efficiency": [job.efficiency(*point) for job in jobs],
                    "bucket_s": [alone, *(job.together for job in jobs)],
                }
            )
    return {"topology": cluster.name, "nodes": cluster.nodes, "how": how, "settings": settings}


def lines_of(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table: ranges over the grid, never one figure."""
    rows = []
    for one in found:
        factors = sorted({it["oversubscription"] for it in one["settings"]})
        for factor in (*factors, None):
            those = [it for it in one["settings"] if factor in (None, it["oversubscription"])]
            before, after = zip(*(it["efficiency"] for it in those), strict=True)
            gains = [b / a for a, b in zip(before, after, strict=True)]
            like = sum(a <= STUDY[0] and b >= STUDY[1] for a, b in zip(before, after, strict=True))
            name = "all" if factor is None else f"1/{factor:g}"
            rows.append(
                [one["topology"], name, _span(before), _span(after), _span(gains, 1, 2), f"{like} of {len(those)}"]
            )
    header = ["topology", "uplinks", "before %", "after %", "after / before", "63 % or less to 89 % or more"]
    return table(header, rows)


def _span(values: Sequence[float], scale: float = 100, digits: int = 0) -> str:
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{low:.{digits}f} .. {middle:.{digits}f} .. {high:.{digits}f}"


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--topologies", metavar="T,...", help="(default: those shipped that have GPUs)")
    it.add_argument("--gpus", type=int, default=GPUS, metavar="N", help=f"of the job (default {GPUS})")
    it.add_argument("--free-lists", type=int, default=3, metavar="N", help="random ones (default 3)")
    add_options(it)
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    names = options.topologies.split(",") if options.topologies else ["h100-nvlink", "a100-mi250x", "l40s-pcie"]
    grid = Grid()
    lines = head(["benchmarks/weak_scaling.py", *(sys.argv[1:] if arguments is None else arguments)])
    found = [experiment(name, options.gpus, grid, options.free_lists) for name in names]
    lines += ["# predicted, not measured; least .. median .. largest over the grid:"]
    lines += [f"#   {name}: {', '.join(f'{one:g}' for one in values)}" for name, values in vars(grid).items()]
    lines += ["", *lines_of(found), ""]
    for one in found:
        kept = sum(text.endswith("kept as it was") for text in one["how"])
        lines.append(f"# {one['topology']}: advised to keep what there is in {kept} of {len(one['how'])} cases")
    lines += [f"# the study: {100 * STUDY[0]:.0f} % before, {100 * STUDY[1]:.0f} % after"]
    publish("weak_scaling", lines, {"topologies": found}, options)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"weak_scaling: {error}")
