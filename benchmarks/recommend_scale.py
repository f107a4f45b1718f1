"""How long advice takes, how much memory, and how far it is from the bound, on clusters of many GPUs.

    python benchmarks/recommend_scale.py

Each size runs in a process of its own: a made-up fabric of DGX H100, 32 nodes a leaf at 2:1, 16 leaves a pod at 2:1
again, names scattered over all nodes; one axis with a ring, and three axes. `s` is the whole of advise(), with the
choice of nodes out of a free list that is a tenth longer and fragmented, but no reading of files; `CPU s` is the same
in seconds of processors, which other jobs on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ONE = (64, 512, 4096, 32_768, 100_000)
THREE = ("tp=8,pp=4,dp=4", "tp=8,pp=8,dp=16", "tp=8,pp=8,dp=128")
PER_LEAF, PER_POD = 32, 16


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", default=",".join(map(str, ONE)), help="GPUs on one axis")
    parser.add_argument("--three", default=" ".join(THREE), help="grids, apart by blanks; empty: none")
    parser.add_argument("--time", type=float, default=5.0, help="seconds of the search for an order")
    parser.add_argument("--out", type=Path, help="write the table here too")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(one(options.only, options.time)))
        return
    grids = [f"dp={count}" for count in options.one.split(",") if count] + options.three.split()
    rows = [
        f"{'axes':<20} {'GPUs':>7} {'s':>7} {'CPU s':>7} {'MiB':>6} {'nodes':>6} {'leaves':>6} "
        f"{'gain':>6} {'gap':>7}  order"
    ]
    figures = []
    for grid in grids:
        command = [sys.executable, __file__, "--only", grid, "--time", str(options.time)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        it = json.loads(done.stdout)
        figures.append(it)
        rows.append(
            f"{grid:<20} {it['gpus']:>7} {it['seconds']:>7.2f} {it['cpu_seconds']:>7.2f} {it['mebibytes']:>6.0f} "
            f"{it['nodes']:>6} {it['leaves']:>6} "
            f"{100 * it['gain']:>5.1f}% {100 * it['gap']:>6.1f}%  {it['how']}"
        )
        print(rows[-1] if len(rows) > 2 else "\n".join(rows), flush=True)
    text = "\n".join(rows) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def one(grid: str, seconds: float) -> dict[str, object]:
    """Return the figures of one grid."""
    import numpy as np

    from commbench.model.library import LIBRARIES
    from commbench.recommend.advice import Wish, advise
    from commbench.recommend.score import Judge
    from commbench.recommend.traffic import axes, step

    sizes = axes(grid)
    traffic = step(sizes, {name: (1, 1 << 30 if name == "dp" else 1 << 28) for name in sizes})
    nodes = traffic.ranks // 8
    cluster = fabric(nodes + nodes // 5 + 4)
    draw = np.random.default_rng(1)
    free = np.sort(draw.permutation(cluster.nodes)[: nodes + nodes // 10 + 1])
    asked = {"tp": "nvls", "dp": "ring"} if len(sizes) > 1 else {"dp": "ring"}
    begin, busy = time.perf_counter(), time.process_time()
    found = advise(cluster, Wish(Judge(traffic, LIBRARIES["nccl"], asked), free, seconds=seconds))
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    times = found.plan.seconds
    return {
        "axes": grid,
        "gpus": traffic.ranks,
        "seconds": took,
        "cpu_seconds": busy,
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "nodes": len(found.nodes.nodes),
        "leaves": found.nodes.leaves,
        "gain": 1 - times["recommended"] / times["default"],
        "gap": found.plan.gap,
        "how": found.found.how,
    }


def fabric(nodes: int):  # type: ignore[no-untyped-def]
    """Return the made-up fabric, in which names are scattered over the leaves."""
    import numpy as np

    from commbench.topology.cluster import Block, Cluster, Switch
    from commbench.topology.reading import read
    from commbench.topology.shipped import find

    node = read(find("h100-nvlink")).cluster.classes[0]
    down = PER_LEAF * sum(nic.gbps or 0.0 for nic in node.nics)
    leaves = -(-nodes // PER_LEAF)
    number = np.random.default_rng(2).permutation(leaves * PER_LEAF)
    switches = [Switch("core")]
    switches += [Switch(f"pod{pod}", "core", PER_POD * down / 4, 0.2) for pod in range(-(-leaves // PER_POD))]
    switches += [Switch(f"leaf{leaf}", f"pod{leaf // PER_POD}", down / 2, 0.13) for leaf in range(leaves)]
    blocks = tuple(
        Block(
            tuple(f"n{number[leaf * PER_LEAF + place]:05d}" for place in range(PER_LEAF)), (f"leaf{leaf}",), node.name
        )
        for leaf in range(leaves)
    )
    return Cluster("made-up", (node,), tuple(switches), blocks)


if __name__ == "__main__":
    main()
