"""Advice that stands whatever algorithm the library runs, and that is no surer than what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from commbench.model.library import LIBRARIES
from commbench.model.placement import Placement
from commbench.recommend import robust, screen
from commbench.recommend.advice import Advice, Wish, advise
from commbench.recommend.order import Found
from commbench.recommend.score import Judge
from commbench.recommend.traffic import Traffic, step
from commbench.recommend.tree import Tree
from commbench.topology.cluster import Cluster
from commbench.topology.reading import read
from commbench.topology.shipped import find
from tests.recommend.clusters import two_tiers

GRID = {"tp": 8, "dp": 4}
BYTES = {"tp": (96, 64 << 20), "dp": (1, 4 << 30)}


def shipped(name: str) -> Cluster:
    return read(find(name)).cluster


def on(cluster: Cluster, traffic: Traffic, library: str = "nccl", slow: Mapping[int, float] | None = None) -> Advice:
    judge = Judge(traffic, LIBRARIES[library])
    return advise(cluster, Wish(judge, np.arange(cluster.nodes), slow=slow or {}, seconds=1.0))


def scattered() -> Cluster:
    """Nodes whose names alternate between two leaves with slow uplinks: by name every neighbour is on the other one."""
    cluster = two_tiers([4, 4], devices=2, uplinks=[50.0, 50.0])
    names = ["n0", "n2", "n4", "n6"], ["n1", "n3", "n5", "n7"]
    blocks = tuple(replace(one, nodes=tuple(some)) for one, some in zip(cluster.blocks, names, strict=True))
    return replace(cluster, blocks=blocks)


def spread(sizes: Mapping[str, int]) -> NDArray[np.int64]:
    """Half of each tp group in a node, beside half of another: NVSwitches add up in both, and a ring crosses twice."""
    rank = np.arange(sizes["tp"] * sizes["dp"])
    tp, dp = rank % sizes["tp"], rank // sizes["tp"]
    half = sizes["tp"] // 2
    return (2 * (dp // 2) + tp // half) * sizes["tp"] + tp % half + half * (dp % 2)


@pytest.fixture
def tempting(monkeypatch: pytest.MonkeyPatch) -> Advice:
    """Advice where the search finds, with the fastest algorithms, an order that another algorithm is slower in."""

    def found(judge: Judge, seats: Placement, units: Tree, given: Mapping[str, NDArray[np.int64]], s: float) -> Found:
        seat = np.arange(seats.n) if judge.preferred else spread(GRID)
        return Found(seat, judge.score(seats, seat), "as told")

    monkeypatch.setattr(robust, "search", found)
    return on(shipped("h100-nvlink"), step(GRID, BYTES))


def test_an_order_that_loses_with_another_algorithm_is_not_recommended(tempting: Advice) -> None:
    assert tempting.left is not None and tempting.left.gain > 0.2 and tempting.left.otherwise["ring"] < -0.2
    assert not tempting.held.loses and tempting.plan.advice == "keep what you have"
    text = "\n".join(screen.lines(tempting, measured=False))
    assert "if NCCL runs another one instead: ring -" in text and "take it" not in text


def test_an_order_that_is_left_on_other_nodes_says_so(tempting: Advice) -> None:
    assert tempting.torn == ("tp",)
    said = "\n".join(screen.lines(tempting, measured=False))
    assert "left: an order which splits tp over nodes, with a gain of" in said
    other = replace(tempting, hosts=("n05", "n06", "n07", "n09"), torn=())
    assert "left: an order on other nodes, n[05-07,09], with a gain of" in "\n".join(screen.lines(other, False))


def test_a_gain_under_another_algorithm_is_that_of_a_library_that_has_no_other(tempting: Advice) -> None:
    assert tempting.left is not None
    only = replace(tempting.judge, library=replace(LIBRARIES["nccl"], algorithms=("ring",)))
    seats = tempting.before  # its nodes and devices, in the order that was left
    order = Placement(seats.cluster, seats.node[spread(GRID)], seats.device[spread(GRID)])
    gain = 1 - only.score(order).seconds / only.score(seats).seconds
    assert tempting.left.otherwise["ring"] == pytest.approx(gain)


def test_a_gain_with_every_algorithm_is_taken() -> None:
    found = on(scattered(), step({"dp": 16}, {"dp": (1, 1 << 30)}))
    assert found.plan.advice == "take it" and found.held.least > found.error
    assert all(gain > found.error for gain in found.held.otherwise.values())


def test_assumed_bytes_of_several_axes_are_no_ground_to_take_an_order() -> None:
    told = on(scattered(), step({"tp": 2, "dp": 8}, {"tp": (1, 1 << 30), "dp": (1, 1 << 30)}))
    assumed = on(scattered(), step({"tp": 2, "dp": 8}))
    assert told.plan.advice == "take it" and assumed.plan.advice == "try it"
    assert told.plan.seats == assumed.plan.seats
    text = "\n".join(screen.lines(assumed, measured=False))
    assert "--bytes tp=NxSIZE,dp=NxSIZE, or --preset" in text and "take it" not in text
    assert on(scattered(), step({"dp": 16})).plan.advice == "take it"  # one axis: its bytes favour no other one


def test_a_gain_below_what_it_may_be_off_by_is_to_be_measured() -> None:
    cluster = scattered()
    judge = Judge(step({"dp": 16}, {"dp": (1, 1 << 30)}), LIBRARIES["mpi"], {"dp": "ring"})
    for error, advice in ((0.03, "take it"), (0.99, "try it")):
        wish = Wish(judge, np.arange(cluster.nodes), error=error)
        assert advise(cluster, wish).plan.advice == advice


def test_where_nothing_was_fitted_a_gain_may_be_off_by_how_far_published_times_are_apart() -> None:
    wish = Wish(Judge(step({"dp": 2}), LIBRARIES["mpi"]), np.arange(1))
    assert wish.error == pytest.approx(0.4057, abs=5e-5)  # (1.75 - 1.04) / 1.75
    assert "1.04 to 1.75 times those predicted" in wish.error_source and robust.PLAUSIBLE == 1.75


def test_nodes_that_are_slow_are_left_though_the_model_sees_no_gain() -> None:
    cluster = two_tiers([4], devices=2)
    found = on(cluster, step({"dp": 4}, {"dp": (1, 1 << 30)}), slow={0: 1.0})
    assert found.held.gain == pytest.approx(0.5) and found.plan.advice == "take it"
    assert "n0" not in found.plan.hosts
    assert any("results show slow, up to 2.00 x: n0" in note for note in found.plan.notes)


def test_an_axis_that_is_taken_out_of_its_nodes_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(judge: Judge, seats: Placement, units: Tree, given: Mapping[str, NDArray[np.int64]], s: float) -> Found:
        seat = np.arange(16).reshape(2, 8).T.ravel()  # tp over nodes far apart, which has nearly nothing to send
        return Found(seat, judge.score(seats, seat), "as told")

    monkeypatch.setattr(robust, "search", found)
    split = on(scattered(), step({"tp": 2, "dp": 8}, {"tp": (1, 1 << 10), "dp": (1, 1 << 30)}))
    assert split.plan.advice == "try it"
    assert any(doubt.startswith("tp fits in a node and is split over nodes") for doubt in split.doubts)


def test_tp_is_put_into_its_nodes_wherever_it_is_named() -> None:
    cluster, asked = shipped("h100-nvlink"), {"tp": "ring", "dp": "ring"}

    def ringed(sizes: Mapping[str, int]) -> Advice:
        wish = Wish(Judge(step(sizes, BYTES), LIBRARIES["nccl"], asked), np.arange(cluster.nodes), seconds=60.0)
        return advise(cluster, wish)

    usual, other = ringed({"tp": 8, "dp": 16}), ringed({"dp": 16, "tp": 8})
    assert usual.plan.advice == "keep what you have" and other.plan.advice == "try it"
    assert other.plan.seconds["recommended"] == pytest.approx(usual.plan.seconds["default"])
    hosts = np.array([seat.host for seat in other.plan.seats]).reshape(8, 16)  # a group of tp is a column
    assert (hosts == hosts[:1]).all()


def test_a_kept_order_with_tp_out_of_its_nodes_says_so() -> None:
    cluster = two_tiers([4], devices=2)
    kept = on(cluster, step({"dp": 2, "tp": 4}, {"dp": (1, 1 << 30), "tp": (1, 1 << 10)}))
    assert kept.plan.advice == "keep what you have" and not kept.doubts  # four of tp fit in no node of two
    kept = on(cluster, step({"dp": 4, "tp": 2}, {"dp": (1, 1 << 30), "tp": (1, 1 << 10)}))
    assert kept.plan.advice == "keep what you have"
    assert [doubt.partition(",")[0] for doubt in kept.doubts] == ["tp fits in a node and is split over nodes"]
    assert "  but tp fits in a node" in "\n".join(screen.lines(kept, measured=False))
    usual = on(cluster, step({"tp": 2, "dp": 4}, {"tp": (1, 1 << 30), "dp": (1, 1 << 10)}))
    assert usual.plan.advice == "keep what you have" and not usual.doubts


def test_devices_of_two_vendors_have_the_algorithm_that_spans_them() -> None:
    cluster = shipped("a100-mi250x")
    found = on(cluster, step({"dp": cluster.devices}, {"dp": (1, 1 << 30)}), "mpi")
    assert found.scores["default"].algorithms == {"dp": "hierarchical"}
    with_tp = on(cluster, step({"tp": 4, "dp": 64}, {"tp": (1, 1 << 30), "dp": (1, 1 << 20)}), "mpi")
    assert with_tp.scores["default"].algorithms["tp"] != "hierarchical"  # devices of one vendor in each group
