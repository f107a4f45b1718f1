"""The cost model against bus bandwidths that others published, from data sheets alone.

    python benchmarks/model_vs_published.py

Each machine is described by its data sheet, and the model says what the largest published size would take. Nothing was
tuned to come nearer: what links do not deliver of their data sheets, and what protocols and kernels cost, is the error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from _launch import ROOT, add_options, head, publish, table

sys.path.insert(0, str(ROOT))

from commbench.model.cost import cost
from commbench.model.library import of_vendors
from commbench.model.placement import fill
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import NVSWITCH
from commbench.topology.shape import MESH, Figures, Shape

GIB = 1 << 30
# As in topologies/, from NCCL's own model; they hardly matter at these sizes, but for NVLS's at the smaller ones.
_NVLINK_US, _PCIE_US, _NIC_US, _NVLS_US = 0.3, 0.5, 0.7, 12.5


def _dgx(arch: str, nvlink_gbps: float, pcie_gbps: float, nic_gbps: float, reduces: bool, nics: int = 8) -> Shape:
    return Shape(
        devices=8,
        vendor="nvidia",
        arch=arch,
        fabric=NVSWITCH,
        fabric_link=Figures(nvlink_gbps, _NVLINK_US),
        reduces=reduces,
        reduces_us=_NVLS_US if reduces else None,
        pcie=Figures(pcie_gbps, _PCIE_US),
        sockets=2,
        socket=Figures(176, _PCIE_US),
        bridges=nics,
        nics=nics,
        nic=Figures(nic_gbps, _NIC_US),
        rails=nics,
        relays=True,
    )


# By data sheets, each way. NVLink: A100 600 GB/s both ways, H100 and H200 900, B200 1800. xGMI: MI300X has seven links
# of 128 GB/s both ways. PCIe 4.0 x16: 64 GB/s both ways, 5.0: 128.
SHAPES = {
    "8 x A100 SXM": _dgx("sm80", 2400, 256, 200, reduces=False),
    "8 x H100 SXM": _dgx("sm90", 3600, 512, 400, reduces=True),
    "8 x H200": _dgx("sm90", 3600, 512, 400, reduces=True),
    "8 x B200": _dgx("sm100", 7200, 512, 400, reduces=True),
    "8 x MI300X": Shape(
        devices=8, vendor="amd", arch="gfx942", fabric=MESH, fabric_link=Figures(512, 0.6), pcie=Figures(512, _PCIE_US)
    ),
    "4 x HDR, A100 SXM": _dgx("sm80", 2400, 256, 200, reduces=False, nics=4),
}


@dataclass(frozen=True)
class Claim:
    """A bus bandwidth that somebody published, GB/s, and what it was of."""

    system: str
    collective: str
    algorithm: str  # empty: what the library chose
    busbw: float
    source: str
    size: int = 16 * GIB
    ranks: int = 8
    nodes: int = 1


_ML = "ml-engineering, network"
CLAIMS = (
    Claim("8 x A100 SXM", "allreduce", "ring", 234.89, _ML),
    Claim("8 x H100 SXM", "allreduce", "ring", 370, "nccl-tests#212"),
    Claim("8 x H100 SXM", "allreduce", "nvls", 480, "nccl-tests#212"),
    Claim("8 x H200", "allreduce", "ring", 367.61, _ML),
    Claim("8 x H200", "allreduce", "nvls", 482.26, _ML),
    Claim("8 x H200", "allreduce", "nvls", 346.51, _ML, 64 << 20),
    Claim("8 x H200", "allreduce", "nvls", 39.93, _ML, 1 << 20),
    Claim("8 x H200", "allreduce", "nvls", 363.3, _ML, 8 * GIB, ranks=4),
    Claim("8 x H200", "allgather", "ring", 361.4, _ML),
    Claim("8 x H200", "reducescatter", "ring", 362.9, _ML),
    Claim("8 x H200", "allreduce", "ring", 364.65, f"{_ML}, 4 nodes", ranks=32, nodes=4),
    Claim("8 x H200", "allreduce", "nvls_tree", 310.07, f"{_ML}, 4 nodes", ranks=32, nodes=4),
    Claim("8 x H200", "allreduce", "nvls_tree", 486.80, f"{_ML}, 2 nodes", ranks=16, nodes=2),
    Claim("8 x B200", "allreduce", "nvls", 845.67, _ML),
    Claim("8 x B200", "allreduce", "ring", 682, _ML, 8 * GIB),
    Claim("4 x HDR, A100 SXM", "allreduce", "ring", 96, "nccl-tests#119, 3 nodes", ranks=24, nodes=3),
    Claim("8 x MI300X", "allreduce", "ring", 312.9, f"{_ML}, and others", 4 * GIB),
    Claim("8 x MI300X", "allreduce", "ring", 47.7, f"{_ML}, and others", 4 * GIB, ranks=2),
)


def cluster(claim: Claim) -> Cluster:
    """Return the machine of a claim: its nodes, on one switch a rail where there are several."""
    node = SHAPES[claim.system].node_class("node")
    names = tuple(f"n{place}" for place in range(claim.nodes))
    leaves = [f"rail{rail}" for rail in range(node.rails)] if claim.nodes > 1 else []
    up = claim.nodes * (node.nics[0].gbps or 0.0) if leaves else None  # as many cables up as down
    uplinks = [Switch(leaf, "spine", up, 0.0) for leaf in leaves]
    switches = (*uplinks, Switch("spine")) if leaves else ()
    return Cluster(claim.system, (node,), switches, (Block(names, tuple(leaves), "node"),))


def predict(claim: Claim) -> float:
    """Return the bus bandwidth that the model gives for a claim, GB/s."""
    placement = fill(cluster(claim), claim.ranks, claim.ranks // claim.nodes)
    found = cost(claim.collective, claim.algorithm, placement, of_vendors(placement.vendors()))
    factor = (1 + (claim.collective == "allreduce")) * (claim.ranks - 1) / claim.ranks
    return float(factor * claim.size / found.seconds(claim.size)[0] / 1e9)


def main(arguments: Sequence[str] | None = None) -> None:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(it)
    options = it.parse_args(arguments)
    from commbench.units import approximate_size

    lines = head(["benchmarks/model_vs_published.py", *(sys.argv[1:] if arguments is None else arguments)])
    rows, figures = [], []
    for claim in CLAIMS:
        found = predict(claim)
        error = found / claim.busbw - 1
        system = f"{claim.system}, {claim.ranks} of {claim.nodes} node{'s' * (claim.nodes > 1)}"
        figures.append({**vars(claim), "predicted": found, "error": error})
        rows.append(
            [
                *(system, claim.collective, claim.algorithm, approximate_size(claim.size), f"{claim.busbw:g}"),
                *(f"{found:.1f}", f"{100 * error:+.0f}", claim.source),
            ]
        )
    header = ["system", "collective", "algorithm", "size", "published GB/s", "predicted", "error %", "source"]
    publish("model_vs_published", [*lines, "", *table(header, rows)], figures, options)


if __name__ == "__main__":
    main()
