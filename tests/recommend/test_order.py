"""Orders: which one suits which algorithm, and what must not change them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice, pairwise, permutations, product
from math import prod

import numpy as np
import pytest

from commbench.model.library import LIBRARIES
from commbench.model.placement import fill
from commbench.recommend import order
from commbench.recommend.advice import Wish, advise
from commbench.recommend.order import bit_reversal, search
from commbench.recommend.score import Judge
from commbench.recommend.traffic import Flow, Traffic, step
from commbench.recommend.tree import depth_first, tree
from commbench.topology.cluster import Block, Cluster, Switch
from tests.recommend.clusters import case, scaled, two_tiers

BIG = 1 << 30


def judge(traffic: Traffic, library: str = "mpi", **asked: str) -> Judge:
    return Judge(traffic, LIBRARIES[library], asked)


def test_bits_are_reversed() -> None:
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(bit_reversal(11).tolist()) == list(range(11))


@pytest.mark.parametrize("algorithm", ["ring", "rabenseifner", "distance_halving"])
def test_the_order_suits_the_algorithm(algorithm: str) -> None:
    cluster = two_tiers([4] * 4, uplinks=[100.0] * 4)
    some = judge(step({"dp": 16}, {"dp": (1, BIG)}), dp=algorithm)
    seats = fill(cluster, 16)
    walk = some.score(seats).seconds
    backwards = some.score(seats, np.argsort(bit_reversal(16))).seconds
    found = search(some, seats, tree(cluster), exact=False)
    assert found.score.seconds <= min(walk, backwards)
    if algorithm == "distance_halving":  # the walk is its worst order
        assert found.score.seconds < 0.35 * walk
        assert found.score.seconds <= backwards
    else:
        assert found.score.seconds == pytest.approx(walk)
        assert walk < 0.35 * backwards


def test_axes_are_tiled_so_that_the_one_with_most_bytes_stays_inside() -> None:
    cluster = two_tiers([4] * 4, uplinks=[100.0] * 4)
    for heavy, light in (("tp", "dp"), ("dp", "tp")):
        some = judge(step({"tp": 4, "dp": 4}, {heavy: (1, BIG), light: (1, BIG // 64)}), tp="ring", dp="ring")
        found = search(some, fill(cluster, 16), tree(cluster), exact=False)
        flow = next(flow for flow in some.traffic.flows if flow.axis == heavy)
        leaf = found.seat // 4
        assert (leaf[flow.members] == leaf[flow.members[:, :1]]).all()


TOLD = {"tp": (96, 64 << 20), "dp": (1, 4 << 30), "pp": (8, 16 << 20), "cp": (16, 64 << 20)}


@pytest.mark.parametrize(
    ("devices", "library", "grid", "asked"),
    [
        (8, "nccl", {"tp": 8, "dp": 16}, {"tp": "ring", "dp": "ring"}),
        (8, "nccl", {"tp": 8, "dp": 16}, {"tp": "tree", "dp": "tree"}),
        (8, "nccl", {"tp": 8, "pp": 2, "dp": 8}, {"tp": "ring", "dp": "ring"}),
        (8, "mpi", {"tp": 8, "dp": 16}, {}),
        (4, "mpi", {"tp": 4, "dp": 8}, {"tp": "ring", "dp": "rabenseifner"}),
        (4, "nccl", {"tp": 4, "cp": 2, "pp": 2, "dp": 4}, {"tp": "ring", "dp": "ring"}),
    ],
)
def test_it_does_not_matter_which_axis_is_named_first(
    monkeypatch: pytest.MonkeyPatch, devices: int, library: str, grid: dict[str, int], asked: dict[str, str]
) -> None:
    monkeypatch.setattr(order, "_RANKS_SWAPPED", 0)  # what tiles find, which single ranks swapped could hide
    nodes = prod(grid.values()) // devices
    cluster = two_tiers([nodes // 2] * 2, devices, uplinks=[100.0 * nodes] * 2)
    seats, units = fill(cluster, prod(grid.values())), tree(cluster)
    walks, found = [], []
    every = list(permutations(grid))
    for axes in every[:: -(-len(every) // 6)]:
        some = judge(step({name: grid[name] for name in axes}, {name: TOLD[name] for name in axes}), library, **asked)
        walks.append(some.score(seats).seconds)
        found.append(search(some, seats, units, seconds=60.0, exact=False).score.seconds)
    # The walk of a grid is the tiling of all others with the same axes inside.
    assert max(found) <= min(walks) * 1.001 and max(found) <= min(found) * 1.001


def test_tiles_of_many_axes_are_each_looked_at() -> None:
    cluster = two_tiers([8, 8], devices=8)
    grid = {"dp": 2, "pp": 4, "cp": 4, "tp": 4}
    found = order._tilings(grid, fill(cluster, 128), tree(cluster))
    tiles = {tile for tile, _, _ in islice(found, order._TILINGS)}
    assert tiles == {tile for tile in product((1, 2), (1, 2, 4), (1, 2, 4), (1, 2, 4)) if prod(tile) == 8}


def test_never_worse_than_a_given_order() -> None:
    draw = np.random.default_rng(0)
    for number in range(8):
        some = case(number, (8,))
        given = draw.permutation(8)
        found = search(some.judge, some.seats, tree(some.cluster), {"given": given}, exact=False)
        assert found.score.seconds <= some.judge.score(some.seats, given).seconds * (1 + 1e-12)


def test_of_many_ranks_a_given_order_that_is_better_by_little_is_taken_and_one_made_up_is_not() -> None:
    cluster = two_tiers([36, 36])
    pairs = np.arange(72).reshape(2, 36).T  # each on two leaves in the walk
    # All to all, 36 x 36 GB leave a leaf at 50 GB/s: 25.92 s in any order. A pair on one leaf spares twice 0.5 us.
    flows = (
        Flow("all", "alltoall", np.arange(72)[None, :], 72e9),
        Flow("pairs", "alltoall", pairs, 2.0, 13_000),
    )
    some, seats, given = judge(Traffic(72, flows)), fill(cluster, 72), np.empty(72, dtype=np.int64)
    given[pairs.ravel()] = np.arange(72)
    walk, better = some.score(seats).seconds, some.score(seats, given).seconds
    assert 1 - better / walk == pytest.approx(13_000 * 1e-6 / 25.92, rel=0.01)  # 0.05 %
    found = search(some, seats, tree(cluster), {"given": given}, 0.5)
    assert found.how == "given" and found.score.seconds == better
    assert search(some, seats, tree(cluster), {}, 0.5).how == "depth-first"


def test_the_walk_enters_each_unit_once() -> None:
    cluster = two_tiers([3, 1, 2])
    units = tree(cluster)
    walk = depth_first(units, np.array([5, 0, 3, 2, 4, 1]))
    leaves = units.unit[1][walk].tolist()
    assert len(list(dict.fromkeys(leaves))) == sum(a != b for a, b in zip([-1, *leaves], leaves, strict=False))


def test_rails_are_one_unit_and_spines_another() -> None:
    nodes = two_tiers([1]).classes
    switches = [Switch("core")]
    blocks = []
    for spine in range(2):
        switches.append(Switch(f"spine{spine}", "core", 100.0))
        rails = [f"s{spine}r{rail}" for rail in range(2)]
        switches += [Switch(name, f"spine{spine}", 50.0) for name in rails]
        blocks += [Block((f"n{spine}{half}",), tuple(rails), nodes[0].name) for half in range(2)]
    units = tree(Cluster("rails", nodes, tuple(switches), tuple(blocks)))
    assert units.unit.tolist() == [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert units.out[1].tolist() == [100 * 1.25e8] * 2  # both rails
    assert units.out[2].tolist() == [100 * 1.25e8] * 2


def advice(cluster: Cluster, some: Judge, free: list[str] | None = None, **more: object):  # type: ignore[no-untyped-def]
    places = cluster.arrays.places
    where = np.array([places[name] for name in (free or places)])
    return advise(cluster, Wish(some, where, **more))  # type: ignore[arg-type]


def test_names_change_nothing() -> None:
    for number in range(10):
        some = case(number, (4, 5))
        names = list(some.cluster.arrays.nodes)
        random.Random(number).shuffle(names)
        new = dict(zip(some.cluster.arrays.nodes, names, strict=True))
        blocks = tuple(replace(one, nodes=tuple(new[node] for node in one.nodes)) for one in some.cluster.blocks)
        other = replace(some.cluster, blocks=blocks)
        before, after = (advice(one, some.judge).plan.seconds for one in (some.cluster, other))
        assert after["bound"] == pytest.approx(before["bound"])
        assert after["recommended"] == pytest.approx(before["recommended"])


def test_links_that_are_all_faster_keep_the_order() -> None:
    for number in range(5):
        some = case(number, (6, 8))
        slow, fast = (scaled(replace(some.cluster, step_us=None), factor) for factor in (1.0, 4.0))
        before, after = (  # seconds enough to end by itself, so that both look at the same orders
            search(some.judge, fill(one, some.seats.n), tree(one), seconds=60.0, exact=False) for one in (slow, fast)
        )
        assert before.seat.tolist() == after.seat.tolist()
        assert after.score.seconds == pytest.approx(before.score.seconds / 4)


def test_more_free_nodes_never_hurt() -> None:
    cluster = two_tiers([4, 4, 4], uplinks=[100.0, 100.0, 100.0])
    some = judge(step({"dp": 4}, {"dp": (1, BIG)}), dp="ring")
    names = list(cluster.arrays.nodes)
    random.Random(1).shuffle(names)
    times = [advice(cluster, some, names[:count]).plan.seconds["recommended"] for count in range(4, 13)]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(times)), times
    assert times[-1] < times[0]


def test_what_is_not_worth_it_is_kept() -> None:
    cluster = two_tiers([4, 4], uplinks=[400.0, 400.0])
    some = judge(step({"dp": 8}, {"dp": (1, BIG)}), dp="ring")
    kept = advice(cluster, some)
    assert kept.plan.advice == "keep what you have"
    assert [seat.host for seat in kept.plan.seats] == sorted(cluster.arrays.nodes)


def test_names_scattered_over_leaves_are_put_in_order() -> None:
    cluster = two_tiers([4, 4], uplinks=[100.0, 100.0])
    names = ["n0", "n2", "n4", "n6"], ["n1", "n3", "n5", "n7"]
    blocks = tuple(replace(one, nodes=tuple(some)) for one, some in zip(cluster.blocks, names, strict=True))
    found = advice(replace(cluster, blocks=blocks), judge(step({"dp": 8}, {"dp": (1, BIG)}), dp="ring"))
    assert found.plan.advice == "take it"
    assert found.plan.seconds["default"] == pytest.approx(4 * found.plan.seconds["recommended"], rel=0.01)
    halves = {frozenset(seat.host for seat in found.plan.seats[start : start + 4]) for start in (0, 4)}
    # the ring enters each leaf once, wherever it begins
    turned = [seat.host for seat in found.plan.seats]
    assert sum(int(a[1]) % 2 != int(b[1]) % 2 for a, b in zip(turned, turned[1:] + turned[:1], strict=True)) == 2, (
        halves
    )
