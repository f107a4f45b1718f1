"""Fits of records that were made from a known truth: figures come back, and what cannot be known is said to be so."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from commbench.errors import ResultsError, UsageError
from commbench.model import cost as costs
from commbench.model import fit as fits
from commbench.model.fit import BANDWIDTH, LATENCY, SOFTWARE, Figure, Fit
from commbench.model.library import LIBRARIES
from commbench.model.placement import fill
from commbench.results.record import Record
from commbench.topology.cluster import Block, Cluster
from commbench.topology.node import BUS, MEASURED, Device, Hub, Link, NodeClass
from tests.model.clusters import one_switch, rails, two_leaves

SIZES = [8 << 3 * step for step in range(10)]
NAMES = [field.name for field in fields(Record)]


def record(**values: Any) -> Record:
    every: dict[str, Any] = dict.fromkeys(NAMES)
    every |= {"collective": "allreduce", "backend": "mpi", "library": "MPI 1", "evidence": "forced", "status": "ok"}
    every |= {"reason": "", "dtype": "float32", "buffer": "host", "group": "all", "method": "loop", "launch": 0}
    every |= {"simulated": False, "version": 1} | values
    return Record(**every)


def run(
    truth: Cluster, counts: Sequence[int], algorithms: Sequence[str], noise: float = 0.0, seed: int = 0, **more: Any
) -> list[Record]:
    """A run on the cluster as it truly is, its times off by a factor of about 1 + noise."""
    backend = more.get("backend", "mpi")
    chance, found = np.random.default_rng(seed), []
    for n in counts:
        placement = fill(truth, n)
        hosts = list(dict.fromkeys(truth.arrays.nodes[node] for node in placement.node))
        where = {"ranks": f"0-{n - 1}", "hosts": ",".join(hosts), "nranks": n, "nnodes": len(hosts)}
        for algorithm in algorithms:
            cost = costs.cost("allreduce", algorithm, placement, LIBRARIES[backend])
            for size, seconds in zip(SIZES, cost.seconds(np.array(SIZES)), strict=True):
                time_us = float(seconds) * 1e6 * math.exp(chance.normal(0, noise))
                about = {"algorithm": algorithm, "observed_algorithm": algorithm, "size": size, "time_us": time_us}
                found.append(record(**where, **about, **more))
    return found


def figure(fitted: Fit, kind: str, tier: str = "") -> Figure:
    return next(one for one in fitted.figures if (one.kind, one.tier) == (kind, tier))


def off(cluster: Cluster, *figures: Figure, step_us: float | None = None) -> Cluster:
    """The cluster with other figures than declared."""
    nothing = Fit(figures, step_us, 0, {}, 0.0, (), (), (1, 1), (1, 1), (), ())
    return fits.apply(cluster, nothing)


def truly(kind: str, tier: str, factor: float) -> Figure:
    return Figure(kind, tier, factor, factor, factor)


MEMORY_LINKS = tuple(Link(f"core{i}", "memory", "memory", 200, 0.1) for i in range(2))
FLAT = one_switch(16, step_us=1.0)
TRUTH = off(FLAT, truly(BANDWIDTH, "single nic", 1.6), step_us=2.5)


def test_figures_come_back_from_records_without_noise() -> None:
    fitted = fits.fit([run(TRUTH, (2, 4, 8), ("ring", "linear"))], FLAT)
    assert figure(fitted, BANDWIDTH, "single nic").factor == pytest.approx(1.6, rel=0.01)
    assert figure(fitted, LATENCY, "single nic").factor == pytest.approx(1.0, rel=0.01)
    assert fitted.step_us == pytest.approx(2.5, rel=0.01)
    assert fitted.scatter < 0.005
    assert not fitted.slow


def test_intervals_hold_the_truth_in_most_runs() -> None:
    inside = {BANDWIDTH: 0, LATENCY: 0, SOFTWARE: 0}
    for seed in range(40):
        fitted = fits.fit([run(TRUTH, (2, 4, 8), ("ring", "linear"), noise=0.1, seed=seed)], FLAT, False)
        for kind, tier, true in ((BANDWIDTH, "single nic", 1.6), (LATENCY, "single nic", 1.0), (SOFTWARE, "", 2.5)):
            one = figure(fitted, kind, tier)
            assert one.low is not None and one.high is not None
            inside[kind] += one.low <= true <= one.high
    # Of 40, 38 are expected; 33 or fewer have a chance of one in 200 at 95 %.
    assert min(inside.values()) >= 34, inside


def test_latency_and_software_that_act_alike_are_not_told_apart() -> None:
    # A ring has one message and one way in each turn, whatever the number of ranks.
    fitted = fits.fit([run(TRUTH, (2, 4, 8), ("ring",), noise=0.02)], FLAT)
    told = [figure(fitted, LATENCY, "single nic"), figure(fitted, SOFTWARE)]
    assert [one.determined for one in told] == [True, False]
    assert told[1].why == "it acts on all of them as other figures do"
    # Together they are what they are: 4 us of latency, of which the declared software of 1 us is no part.
    assert told[0].factor * 4 + 1 == pytest.approx(4 + 2.5, rel=0.05)


def test_a_bandwidth_that_no_record_is_limited_by_is_not_determined() -> None:
    declared = two_leaves(4, gbps=6400)  # 16 times a NIC, and 4 ranks below it
    fitted = fits.fit([run(declared, (4, 8), ("ring", "recursive_doubling"), noise=0.02)], declared)
    uplink = figure(fitted, BANDWIDTH, "uplink 0")
    assert (uplink.determined, uplink.factor) == (False, 1.0)
    assert "not determined by these records (none of them is limited by it); kept as declared" in "\n".join(
        fitted.lines()
    )
    assert figure(fitted, BANDWIDTH, "single nic").determined


def test_a_link_that_is_slower_than_the_declared_limit_is_found() -> None:
    declared = two_leaves(4, gbps=6400)
    truth = off(declared, truly(BANDWIDTH, "uplink 0", 32.0))  # half a NIC
    fitted = fits.fit([run(truth, (4, 8), ("ring", "recursive_doubling"), noise=0.02)], declared)
    assert figure(fitted, BANDWIDTH, "uplink 0").factor == pytest.approx(32, rel=0.1)
    assert figure(fitted, BANDWIDTH, "single nic").factor == pytest.approx(1, rel=0.1)


def test_a_few_disturbed_records_do_not_move_the_figures() -> None:
    calm = run(TRUTH, (2, 4, 8), ("ring", "linear"), noise=0.03)
    disturbed = [
        replace(one, time_us=(one.time_us or 0) * 8) if place % 12 == 5 else one for place, one in enumerate(calm)
    ]
    before, after = (fits.fit([those], FLAT) for those in (calm, disturbed))
    for one, other in zip(before.figures, after.figures, strict=True):
        assert other.factor == pytest.approx(one.factor, rel=0.05)
    assert max(held.worst for held in after.hold_outs) > 5  # and are not hidden either


def test_the_fitted_cluster_foretells_what_the_true_one_takes() -> None:
    declared = rails(8, per_unit=4)
    truth = off(declared, truly(BANDWIDTH, "gpus nic", 1.3), truly(BANDWIDTH, "gpus nvlink", 1.2), step_us=1.5)
    runs = [run(truth, (8, 16, 32), ("ring", "tree"), noise=0.02, backend="nccl")]
    fitted = fits.apply(declared, fits.fit(runs, declared))
    sizes = np.array(SIZES)
    times = [
        costs.cost("allreduce", "ring", fill(cluster, 64), LIBRARIES["nccl"]).seconds(sizes)
        for cluster in (fitted, truth)
    ]
    assert times[0] == pytest.approx(times[1], rel=0.1)
    (kind,) = fitted.classes
    assert {link.source for link in kind.links if link.kind == "nvlink"} == {MEASURED}
    assert {nic.source for nic in kind.nics} == {MEASURED}


def test_hold_outs_tell_of_ranks_and_sizes_that_the_fit_did_not_see() -> None:
    calm = run(TRUTH, (2, 4, 8), ("ring", "linear"))
    strange = [replace(one, time_us=(one.time_us or 0) * 3) if one.nranks == 8 else one for one in calm]
    ranks, sizes = fits.fit([calm], FLAT).hold_outs
    assert (ranks.what, ranks.records) == ("8 ranks", 20)
    assert sizes.what == f"sizes from {SIZES[-2] >> 20}M on"
    assert max(ranks.worst, sizes.worst) < 0.02
    assert fits.fit([strange], FLAT).hold_outs[0].median == pytest.approx(2, rel=0.05)


def test_what_lies_beyond_the_records_is_named() -> None:
    fitted = fits.fit([run(TRUTH, (2, 4), ("ring",))], FLAT)
    assert fitted.beyond("allreduce", "ring", 4, 64, ["single nic"]) == ""
    beyond = fitted.beyond("allreduce", "tree", 16, 1 << 40, ["single nic", "uplink 0"])
    assert beyond == (
        f"ranks beyond 2 to 4, bytes beyond 8 to {SIZES[-1]}, no record of allreduce tree, no record loads uplink 0"
    )


def test_a_group_that_is_slower_than_its_tier_is_named() -> None:
    nodes = FLAT.arrays.nodes
    records = []
    for one in range(0, 16, 2):
        for each in run(TRUTH, (2,), ("ring",)):
            where: dict[str, Any] = {
                "ranks": f"{one}-{one + 1}",
                "hosts": f"{nodes[one]},{nodes[one + 1]}",
                "group": f"pair {one}",
            }
            records.append(replace(each, **where, time_us=(each.time_us or 0) * (2 if one == 6 else 1)))
    (slow,) = fits.fit([records], FLAT).slow
    assert (slow.hosts, slow.ranks) == ("n006,n007", "6-7")
    assert slow.factor == pytest.approx(2, rel=0.1)


def test_messages_of_pairs_tell_latency_and_bandwidth() -> None:
    # What commbench.pairs records: a ping-pong halved, and a stream from the root.
    records = []
    for one, other in ((0, 1), (0, 2), (1, 2)):
        where = {"ranks": f"{one},{other}", "hosts": f"n{one:03},n{other:03}", "nranks": 2, "nnodes": 2}
        for size, root in ((8, None), (1 << 24, one), (1 << 24, other)):
            about = {"collective": "pairs", "algorithm": "auto", "size": size, "root": root, "group": f"{one}-{other}"}
            records.append(record(**where, **about, time_us=1 + 4 + size / 25e9 * 1e6))  # half of the declared rate
    fitted = fits.fit([records], FLAT)
    assert figure(fitted, BANDWIDTH, "single nic").factor == pytest.approx(2, rel=0.01)
    assert fitted.schedules == ("pairs message",)


def test_records_that_tell_nothing_are_counted() -> None:
    good = run(TRUTH, (2, 4), ("ring",))
    odd = [
        replace(good[0], simulated=True),
        replace(good[0], status="failed", time_us=None),
        replace(good[0], algorithm="auto", observed_algorithm=None),
        replace(good[0], observed_algorithm="recexch"),
        replace(good[0], hosts=""),
    ]
    left_out = fits.fit([good + odd], FLAT).left_out
    assert left_out == {
        "simulated, or predicted": 1,
        "without a time (failed)": 1,
        "the library did not say which algorithm ran": 1,
        "the model has no schedule of recexch": 1,
        "of a log that does not tell ranks and hosts": 1,
    }


def test_ranks_that_share_a_core_are_left_out() -> None:
    cpu = NodeClass("cpu", tuple(Device(f"core{i}", "cpu") for i in range(2)), (), (Hub("memory", BUS),), MEMORY_LINKS)
    cluster = Cluster("two", (cpu,), (), (Block(("n",), (), "cpu"),))
    fitted = fits.fit([run(cluster, (2, 3, 4), ("ring",))], cluster)
    assert (fitted.ranks, fitted.left_out) == ((2, 2), {"of ranks that wait for a device or core which they share": 20})


def test_nothing_to_fit_is_refused_with_the_reasons() -> None:
    with pytest.raises(ResultsError, match=r"a fit needs records .* there are none: 1 x simulated, or predicted"):
        fits.fit([[replace(run(TRUTH, (2,), ("ring",))[0], simulated=True)]], FLAT)


def test_hosts_that_the_cluster_does_not_have_are_named() -> None:
    records = [replace(one, hosts="a,b") for one in run(TRUTH, (2,), ("ring",))]
    with pytest.raises(UsageError, match=r"flat has none called a, b: name its nodes as the hosts are called \(it has"):
        fits.fit([records], FLAT)


def test_one_unknown_host_is_a_node_where_all_are_alike() -> None:
    cluster = rails(2, per_unit=2)
    records = [replace(one, hosts="elsewhere") for one in run(cluster, (2, 4, 8), ("ring",), backend="nccl")]
    fitted = fits.fit([records], cluster)
    assert fitted.notes == ("elsewhere is no node of the cluster: taken for n0000, since all are of one class",)


def test_ranks_that_are_not_equally_many_on_each_host_are_refused() -> None:
    records = [replace(one, hosts="n000,n001", nnodes=2) for one in run(TRUTH, (3,), ("ring",))]
    with pytest.raises(UsageError, match="3 ranks are on 2 nodes called n000,n001"):
        fits.fit([records], FLAT)


def test_ranks_of_a_rail_sit_on_the_same_device_of_each_node() -> None:
    cluster = rails(4, per_unit=4)

    @cache
    def nic(rank: int) -> str:
        return f"gpu{rank % 8}"

    run_ = run(cluster, (32,), ("ring",), backend="nccl")
    hosts = ",".join(cluster.arrays.nodes[:4])
    rail = record(ranks="3,11,19,27", hosts=hosts, nranks=4, nnodes=4, size=8, time_us=1.0, algorithm="ring")
    seats = fits._Seats(cluster)
    placement = seats.placement(rail, seats.first_ranks([*run_, rail]))
    assert [nic(rank) for rank in (3, 11)] == [cluster.classes[0].devices[place].id for place in placement.device[:2]]
    assert placement.device.tolist() == [3, 3, 3, 3]
    assert placement.node.tolist() == [0, 1, 2, 3]


def test_a_fit_goes_through_json() -> None:
    fitted = fits.fit([run(TRUTH, (2, 4, 8), ("ring", "linear"), noise=0.05)], FLAT)
    assert Fit.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


def test_a_frame_of_records_is_as_good_as_records() -> None:
    pandas = pytest.importorskip("pandas")
    records = run(TRUTH, (2, 4, 8), ("ring", "linear"), noise=0.05)
    frame = pandas.DataFrame([one.to_dict() | {"source": "run"} for one in records])
    assert fits.fit(fits.records_of_frame(frame), FLAT) == fits.fit([records], FLAT)
