"""Costs against formulas that are written out by hand, and against themselves on clusters that differ in one thing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.model import cost as costs
from commbench.model.library import LIBRARIES, Library
from commbench.model.placement import Placement, fill
from commbench.model.routes import Routes
from commbench.topology.cluster import Block, Cluster
from tests.model.clusters import GB, node, one_switch, rails, two_leaves

MPI, NCCL = LIBRARIES["mpi"], LIBRARIES["nccl"]
SIZES = np.array([8.0, 4096.0, 1e6, 1e9])
WIRE = 4e-6  # a cable into the switch and one out of it, each half of a NIC's latency
STEP = 1e-6


def seconds(cluster: Cluster, algorithm: str, n: int, collective: str = "allreduce", library: Library = MPI) -> Any:
    return costs.cost(collective, algorithm, fill(cluster, n), library).seconds(SIZES)


def load(cost: costs.Cost, tier: str) -> float:
    """Seconds for each byte that a tier's fullest link needs, over all steps."""
    return float(cost.times @ cost.load[:, cost.tiers.index(tier)]) if tier in cost.tiers else 0.0


@pytest.mark.parametrize("n", [2, 3, 7, 16])
def test_a_ring_on_one_switch_is_the_textbooks(n: int) -> None:
    expected = 2 * (n - 1) * (STEP + WIRE) + 2 * (n - 1) / n * SIZES / (50 * GB)
    assert seconds(one_switch(n, step_us=1.0), "ring", n) == pytest.approx(expected)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_recursive_doubling_on_one_switch_is_the_textbooks(n: int) -> None:
    expected = np.log2(n) * (STEP + WIRE + SIZES / (50 * GB))
    assert seconds(one_switch(n, step_us=1.0), "recursive_doubling", n) == pytest.approx(expected)


@pytest.mark.parametrize("n", [4, 16])
def test_rabenseifner_on_one_switch_is_the_textbooks(n: int) -> None:
    expected = 2 * np.log2(n) * (STEP + WIRE) + 2 * (n - 1) / n * SIZES / (50 * GB)
    assert seconds(one_switch(n, step_us=1.0), "rabenseifner", n) == pytest.approx(expected)


def test_a_linear_broadcast_leaves_by_the_roots_link_and_takes_the_roots_software_once_for_each_rank() -> None:
    expected = 7 * STEP + WIRE + 7 * SIZES / (50 * GB)
    assert seconds(one_switch(8, step_us=1.0), "linear", 8, "broadcast") == pytest.approx(expected)


def test_pairwise_all_to_all_on_one_switch_is_the_textbooks() -> None:
    expected = 7 * (STEP + WIRE) + 7 / 8 * SIZES / (50 * GB)
    assert seconds(one_switch(8, step_us=1.0), "pairwise", 8, "alltoall") == pytest.approx(expected)


def test_an_uplink_is_shared_by_all_that_cross_it() -> None:
    # 4 + 4 ranks, numbered leaf by leaf: with their partners 4 away, all of a leaf cross its uplink at once.
    cluster = two_leaves(4, gbps=800)  # two cables' worth: oversubscribed 2 to 1
    inside, across = WIRE, WIRE + 2 * 2e-6  # up from a leaf, and down to the other
    expected = 2 * (inside + SIZES / (50 * GB)) + across + 4 * SIZES / (100 * GB)
    assert seconds(cluster, "recursive_doubling", 8) == pytest.approx(expected)


def test_a_ring_crosses_leaves_once_each_way_in_order_and_everywhere_out_of_order() -> None:
    cluster = two_leaves(4, gbps=200)
    ordered, mixed = np.arange(8), np.array([0, 4, 1, 5, 2, 6, 3, 7])
    loads = []
    for order in (ordered, mixed):
        found = costs.cost("allreduce", "ring", Placement(cluster, order, np.zeros(8, dtype=np.int64)), MPI)
        loads.append(load(found, "uplink 0"))
    assert loads == pytest.approx([14 / 8 / (25 * GB), 4 * 14 / 8 / (25 * GB)])


def test_a_ring_of_a_scalable_unit_keeps_to_its_rails_leaves() -> None:
    inside = costs.cost("allreduce", "ring", fill(rails(4, per_unit=4), 32), NCCL)
    assert load(inside, "uplink 0") == 0
    assert load(inside, "gpus nic") > 0


def test_a_ring_over_scalable_units_loads_the_spine() -> None:
    assert load(costs.cost("allreduce", "ring", fill(rails(4, per_unit=2), 32), NCCL), "uplink 0") > 0


@pytest.mark.parametrize(("library", "relays", "spine"), [(NCCL, True, False), (NCCL, False, True), (MPI, True, True)])
def test_between_rails_a_transfer_takes_the_spine_unless_the_library_relays(
    library: Library, relays: bool, spine: bool
) -> None:
    # The last rank of a node sends to the first of the next one, on another rail.
    found = costs.cost("allreduce", "ring", fill(rails(4, per_unit=4, relays=relays), 32), library)
    assert (load(found, "uplink 0") > 0) is spine


def test_every_nic_of_a_node_has_its_channel_of_the_ring() -> None:
    found = costs.cost("allreduce", "ring", fill(rails(4, per_unit=4), 32), NCCL)
    assert load(found, "gpus nic") == pytest.approx(2 * 31 / 32 / (8 * 50 * GB))


def test_what_a_switch_adds_up_crosses_each_link_once() -> None:
    found = costs.cost("allreduce", "nvls", fill(cluster_of_one(), 8), NCCL)
    ring = costs.cost("allreduce", "ring", fill(cluster_of_one(), 8), NCCL)
    # Up and down at the same time on links that carry both ways: the buffer once, where a ring sends it 2 x 7/8 times.
    assert found.together.max() <= (1 + 1 / 8) / (400 * GB) + 1e-18
    assert load(ring, "gpus nvlink") == pytest.approx(2 * 7 / 8 / (400 * GB))


def cluster_of_one() -> Cluster:
    return Cluster("one", (node(),), (), (replace(rails(2, 2).blocks[0], leaves=()),))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "recursive_doubling", "nvls_tree"])
def test_names_of_nodes_and_switches_do_not_matter(algorithm: str) -> None:
    cluster = rails(4, per_unit=2)
    switches = tuple(
        replace(one, name=f"x{one.name}", parent=one.parent and f"x{one.parent}") for one in cluster.switches
    )
    blocks = tuple(
        replace(
            one,
            nodes=tuple(f"z{99 - i}{name}" for i, name in enumerate(one.nodes)),
            leaves=tuple(f"x{leaf}" for leaf in one.leaves),
        )
        for one in cluster.blocks
    )
    renamed = replace(cluster, switches=switches, blocks=blocks)
    assert seconds(renamed, algorithm, 32, library=NCCL) == pytest.approx(seconds(cluster, algorithm, 32, library=NCCL))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "rabenseifner", "linear"])
def test_twice_the_bandwidth_takes_half_of_the_time_that_is_not_latency(algorithm: str) -> None:
    def without_latency(gbps: float) -> Any:
        found = costs.cost("allreduce", algorithm, fill(one_switch(8, gbps=gbps), 8), MPI)
        return found.seconds(SIZES) - found.seconds(0.0)

    assert without_latency(800) == pytest.approx(without_latency(400) / 2, rel=1e-3)  # PCIe is not faster


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree", "rabenseifner"])
def test_factors_of_tiers_are_clusters_with_other_figures(algorithm: str) -> None:
    cluster = rails(4, per_unit=2)
    (kind,) = cluster.classes
    nics = tuple(replace(nic, gbps=400 / 3, us=4.0 * 5) for nic in kind.nics)
    changed = costs.cost("allreduce", algorithm, fill(replace(cluster, classes=(replace(kind, nics=nics),)), 32), NCCL)
    found = costs.cost("allreduce", algorithm, fill(cluster, 32), NCCL)
    nic = np.array([tier == "gpus nic" for tier in found.tiers])
    # Which link of a ring's transfer is the fullest was settled with the declared figures: that is less than 1 %.
    factored = found.seconds(SIZES, np.where(nic, 3.0, 1.0), np.where(nic, 5.0, 1.0))
    assert factored == pytest.approx(changed.seconds(SIZES), rel=0.01)


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
def test_a_pipeline_is_never_slower_than_the_whole_buffer_at_once(algorithm: str) -> None:
    found = costs.cost("allreduce", algorithm, fill(rails(4, per_unit=4), 32), NCCL)
    whole = replace(found, pipelined=False)
    assert (found.seconds(SIZES) <= whole.seconds(SIZES) * (1 + 1e-12)).all()
    assert found.seconds(1e9)[0] < whole.seconds(1e9)[0] / 2


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
def test_more_bytes_never_take_less_time_in_a_pipeline(algorithm: str) -> None:
    found = costs.cost("allreduce", algorithm, fill(rails(4, per_unit=4), 32), NCCL)
    assert (np.diff(found.seconds(np.arange(1.0, 1 << 17, 7))) >= 0).all()


def test_nodes_on_a_switch_and_nodes_on_none_are_not_joined() -> None:
    flat = one_switch(2)
    bare = replace(flat, blocks=(*flat.blocks, Block(("m1",), (), "single")))
    with pytest.raises(UsageError, match="no switch joins the nodes n001 and m1"):
        seconds(bare, "ring", 3)
    nowhere = replace(flat, switches=(), blocks=(replace(flat.blocks[0], leaves=()),))
    assert seconds(nowhere, "ring", 2) == pytest.approx(seconds(flat, "ring", 2))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "tree"])
def test_what_limits_names_the_parts_of_a_time(algorithm: str) -> None:
    found = costs.cost("allreduce", algorithm, fill(one_switch(8, step_us=1.0), 8), MPI)
    small, large = found.limits(8), found.limits(8e9)
    assert small[0][0] == "latency of single nic"
    assert dict(small)["software"] > 0
    assert large[0][0] == "bandwidth of single nic"


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "tree", "nvls_tree", "hierarchical"])
@pytest.mark.parametrize("size", SIZES.tolist())
def test_the_parts_of_a_time_add_up_to_it(algorithm: str, size: float) -> None:
    found = costs.cost("allreduce", algorithm, fill(replace(rails(4, per_unit=2), step_us=1.0), 32), NCCL)
    assert sum(part for _, part in found.limits(size)) == pytest.approx(found.seconds(size)[0])


def test_a_bandwidth_that_nobody_said_is_named_when_it_is_taken() -> None:
    cluster = two_leaves(4, gbps=800)
    silent = replace(cluster, switches=tuple(replace(one, gbps=None) for one in cluster.switches))
    assert seconds(silent, "ring", 4)[0] > 0  # within a leaf nothing crosses
    with pytest.raises(UsageError, match=r"bandwidth of every link .* a -> root \(uplink 0\): give its gbps"):
        seconds(silent, "ring", 8)


def test_100_000_ranks_fit_a_gigabyte() -> None:
    code = """
        import resource
        import numpy as np
        from commbench.model import cost
        from commbench.model.library import LIBRARIES
        from commbench.model.placement import fill
        from tests.model.clusters import rails

        placement = fill(rails(12500, 125 * 4), 100_000)
        found = cost.cost("allreduce", "ring", placement, LIBRARIES["nccl"])
        assert found.seconds(np.array([8.0, 8e9])).all()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024


def test_routes_may_be_shared_by_algorithms() -> None:
    placement = fill(rails(4, per_unit=2), 32)
    routes = Routes(placement, NCCL)
    for algorithm in ("ring", "tree"):
        alone = costs.cost("allreduce", algorithm, placement, NCCL).seconds(SIZES)
        assert costs.cost("allreduce", algorithm, placement, NCCL, routes).seconds(SIZES) == pytest.approx(alone)


def test_what_a_switch_takes_to_add_up_counts_once_for_each_pass_into_it() -> None:
    plain = node()
    slow = replace(plain, hubs=(replace(plain.hubs[0], us=12.5),))
    times = []
    for one in (plain, slow):
        cluster = Cluster("one", (one,), (), (Block(("n",), (), one.name),))
        times.append([seconds(cluster, name, 8, library=NCCL)[0] for name in ("nvls", "ring")])
    assert times[1][0] - times[0][0] == pytest.approx(2 * 12.5e-6)
    assert times[1][1] == times[0][1]
