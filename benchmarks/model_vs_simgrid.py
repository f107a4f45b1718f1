"""The cost model against SimGrid: the same all-reduce on the same platforms, in predicted and in simulated time.

    python benchmarks/model_vs_simgrid.py                     # the whole grid, some minutes
    python benchmarks/model_vs_simgrid.py --ranks 16 --sizes 1M

SimGrid's SMPI (Debian: libsimgrid-dev) carries out a small MPI program of ours message by message, with its plain
network model (CM02): declared latency, declared bandwidth, shared fairly. The platforms are a star, a two-level tree,
and a fat tree with half the uplinks that it would need, each with ranks in the order of the leaves and dealt out over
them. What SimGrid cannot judge: channels, rails, NVLS, chunks of a pipeline, which it does not have.

In a ring of the model no rank waits until what it sent has arrived. In SMPI it does for messages of 64 KiB and more, so
that each turn lasts as long as the slowest way; with --eager 1G it never does.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from _launch import HERE, ROOT, BenchmarkError, add_options, head, publish, say, table

if TYPE_CHECKING:
    from commbench.topology.cluster import Cluster

LEAF = 8  # hosts
HOST_GBPS, HOST_US = 100.0, 1.0  # of a host's cable, one way
UP_US = 0.5  # of an uplink
ALGORITHMS = {"ring": "lr", "recursive_doubling": "rdb", "rabenseifner": "rab"}  # ours: SMPI's
# Declared bandwidth and latency alone: crosstraffic would take 5 % of each link's bandwidth for acknowledgements.
SETTINGS = (
    *("network/model:CM02", "network/crosstraffic:no"),
    *("smpi/simulate-computation:no", "smpi/wtime:0", "smpi/init:0"),
)


@dataclass(frozen=True)
class Platform:
    """A network of `leaves` switches with LEAF hosts each, whose uplinks have a share of what the hosts have."""

    name: str
    uplinks: float  # bandwidth of a leaf's uplinks as a share of its hosts'; 0: all hosts on one switch
    parallel: bool = False  # as cables beside one another, of which a pair of hosts uses one

    def describe(self, ranks: int) -> str:
        """Return the platform as SimGrid reads it."""
        leaves, up = ranks // LEAF, HOST_GBPS * LEAF * self.uplinks
        host = f'speed="1Tf" bw="{HOST_GBPS / 8}GBps" lat="{HOST_US}us"'
        if not self.uplinks:
            body = f'<cluster id="c" prefix="n" suffix="" radical="0-{ranks - 1}" {host}/>'
        elif self.parallel:
            cables = round(LEAF * self.uplinks)
            shape = f"2;{LEAF},{leaves};1,{cables};1,1"
            body = f'<cluster id="c" prefix="n" suffix="" radical="0-{ranks - 1}" {host} topology="FAT_TREE" '
            body += f'topo_parameters="{shape}"/>'
        else:
            lines = ['<zone id="all" routing="Full">']
            for leaf in range(leaves):
                radical = f"{leaf * LEAF}-{leaf * LEAF + LEAF - 1}"
                lines.append(
                    f'<cluster id="leaf{leaf}" prefix="n" suffix="" radical="{radical}" {host} router_id="r{leaf}"/>'
                )
            lines += [
                f'<link id="up{leaf}" bandwidth="{up / 8}GBps" latency="{UP_US}us" sharing_policy="SPLITDUPLEX"/>'
                for leaf in range(leaves)
            ]
            for a in range(leaves):
                for b in range(leaves):
                    if a != b:
                        lines.append(
                            f'<zoneRoute src="leaf{a}" dst="leaf{b}" gw_src="r{a}" gw_dst="r{b}" symmetrical="NO">'
                            f'<link_ctn id="up{a}" direction="UP"/><link_ctn id="up{b}" direction="DOWN"/></zoneRoute>'
                        )
            body = "".join([*lines, "</zone>"])
        return (
            "<?xml version='1.0'?><!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">"
            f'<platform version="4.1">{body}</platform>'
        )

    def cluster(self, ranks: int) -> Cluster:
        """Return the platform as the model has it."""
        from commbench.topology.cluster import Block, Cluster, Switch
        from commbench.topology.node import PCIE, Device, Link, Nic, NodeClass

        # nothing inside a host costs anything: SimGrid's hosts have no inside
        host = NodeClass(
            "host",
            (Device("core0", "cpu"),),
            (Nic("nic0", HOST_GBPS, 2 * HOST_US),),
            links=(Link("core0", "nic0", PCIE, 1e9, 0.0),),
        )
        names = [f"n{rank}" for rank in range(ranks)]
        if not self.uplinks:
            return Cluster("star", (host,), (Switch("star"),), (Block(tuple(names), ("star",), "host"),))
        up = HOST_GBPS * LEAF * self.uplinks
        us = HOST_US if self.parallel else UP_US
        leaves = [f"leaf{leaf}" for leaf in range(ranks // LEAF)]
        return Cluster(
            self.name,
            (host,),
            (*(Switch(leaf, "spine", up, us) for leaf in leaves), Switch("spine")),
            tuple(
                Block(tuple(names[place * LEAF : (place + 1) * LEAF]), (leaf,), "host")
                for place, leaf in enumerate(leaves)
            ),
        )


PLATFORMS = (Platform("star", 0), Platform("tree", 1.0), Platform("fat tree 2:1", 0.5, parallel=True))


def orders(platform: Platform, ranks: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the hosts of the ranks: leaf by leaf, and dealt out over the leaves."""
    yield "by leaf", list(range(ranks))
    if platform.uplinks:
        yield "dealt out", [host for first in range(LEAF) for host in range(first, ranks, LEAF)]


def simulate(
    program: Path, platform: Path, hosts: Path, ranks: int, algorithm: str, sizes: Sequence[int], eager: int
) -> dict[int, float]:
    """Return SimGrid's seconds of each size."""
    eagerly = (f"smpi/async-small-thresh:{eager}", f"smpi/send-is-detached-thresh:{eager}")
    settings = [f"--cfg={one}" for one in (*SETTINGS, *eagerly, f"smpi/allreduce:{ALGORITHMS[algorithm]}")]
    command = ["smpirun", "-np", str(ranks), "-platform", str(platform), "-hostfile", str(hosts), *settings]
    done = subprocess.run([*command, str(program), *map(str, sizes)], capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise BenchmarkError(f"smpirun gave {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
    return {int(size): float(seconds) for size, seconds in map(str.split, done.stdout.splitlines())}


def predict(platform: Platform, ranks: int, hosts: Sequence[int], algorithm: str, sizes: Sequence[int]) -> list[float]:
    """Return the model's seconds of each size."""
    import numpy as np

    from commbench.model.cost import cost
    from commbench.model.library import LIBRARIES
    from commbench.model.placement import Placement

    placement = Placement(platform.cluster(ranks), np.array(hosts), np.zeros(ranks, dtype=np.int64))
    seconds: list[float] = cost("allreduce", algorithm, placement, LIBRARIES["mpi"]).seconds(np.array(sizes)).tolist()
    return seconds


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--ranks", default="16,32,64", metavar="N,...", help="multiples of 8 (default 16,32,64)")
    it.add_argument("--sizes", default="4K,64K,1M,16M,64M", metavar="S,...", help="bytes (default 4K,64K,1M,16M,64M)")
    it.add_argument(
        "--eager",
        default="64K",
        metavar="S",
        help="bytes below which messages travel before they are asked for, as all of the model's do (default 64K)",
    )
    add_options(it)
    return it


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    lines = head(["benchmarks/model_vs_simgrid.py", *(sys.argv[1:] if arguments is None else arguments)])
    sys.path.insert(0, str(ROOT))
    from commbench.units import format_size, parse_size

    if not shutil.which("smpicc") or not shutil.which("smpirun"):
        raise BenchmarkError("SimGrid's smpicc and smpirun are not here: apt-get install libsimgrid-dev")
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    eager = parse_size(options.eager)
    figures: list[dict[str, Any]] = []
    took = {"model": 0.0, "simgrid": 0.0}
    with tempfile.TemporaryDirectory() as top:
        program = Path(top, "allreduce")
        compiled = subprocess.run(
            ["smpicc", "-O2", str(HERE / "allreduce_smpi.c"), "-o", str(program)], capture_output=True, text=True
        )
        if compiled.returncode:
            raise BenchmarkError(f"smpicc: {compiled.stderr[-2000:]}")
        predict(PLATFORMS[0], LEAF, range(LEAF), "ring", sizes)  # what is imported is no cost of the model
        for ranks in map(int, options.ranks.split(",")):
            for platform in PLATFORMS:
                described = Path(top, "platform.xml")
                described.write_text(platform.describe(ranks), encoding="utf-8")
                for order, hosts in orders(platform, ranks):
                    listed = Path(top, "hosts")
                    listed.write_text("".join(f"n{host}\n" for host in hosts), encoding="utf-8")
                    for algorithm in ALGORITHMS:
                        say(f"{platform.name}, {ranks} ranks {order}, {algorithm}")
                        begin = perf_counter()
                        simulated = simulate(program, described, listed, ranks, algorithm, sizes, eager)
                        middle = perf_counter()
                        predicted = predict(platform, ranks, hosts, algorithm, sizes)
                        took["simgrid"] += middle - begin
                        took["model"] += perf_counter() - middle
                        for size, seconds in zip(sizes, predicted, strict=True):
                            figures.append(
                                {
                                    **{"platform": platform.name, "ranks": ranks, "order": order},
                                    **{"algorithm": algorithm, "size": size},
                                    **{"model_s": seconds, "simgrid_s": simulated[size]},
                                    "error": seconds / simulated[size] - 1,
                                }
                            )
    rows = [
        [
            *(str(one[name]) for name in ("platform", "ranks", "order", "algorithm")),
            format_size(one["size"]),
            *(f"{one[name] * 1e6:.1f}" for name in ("model_s", "simgrid_s")),
            f"{100 * one['error']:+.1f}",
        ]
        for one in figures
    ]
    lines += [
        "",
        *table(["platform", "ranks", "order", "algorithm", "size", "model us", "SimGrid us", "error %"], rows),
    ]
    errors = [abs(one["error"]) for one in figures]
    far = [one for one in figures if abs(one["error"]) > 0.15]
    lines += [
        "",
        f"# median error {100 * statistics.median(errors):.2f} %, largest {100 * max(errors):.1f} %, "
        f"{len(far)} of {len(figures)} cells beyond 15 %",
        f"# the model took {took['model']:.2f} s, SimGrid {took['simgrid']:.1f} s",
    ]
    publish("model_vs_simgrid", lines, {"cells": figures, "seconds": took}, options)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"model_vs_simgrid: {error}")
