"""A cluster repeated, and how times grow on it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.model.growth import CORE, grow
from commbench.model.library import LIBRARIES
from commbench.model.scaling import FLAT, LINEAR, LOGARITHMIC, scaling, turns
from commbench.topology import shipped
from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.node import PCIE, Device, Link, Nic, NodeClass
from commbench.topology.reading import read

HOST = NodeClass(
    "host", (Device("core0", "cpu"),), (Nic("nic0", 100, 2),), links=(Link("core0", "nic0", PCIE, 1e6, 0),)
)


def star(nodes: int) -> Cluster:
    """Hosts of one core and one NIC on one switch."""
    return Cluster("star", (HOST,), (Switch("s"),), (Block(tuple(f"n{k}" for k in range(nodes)), ("s",), "host"),))


def test_what_has_the_nodes_stays_as_it_is() -> None:
    assert grow(star(4), 4) == star(4)
    with pytest.raises(UsageError, match="without nodes"):
        grow(Cluster(), 2)


def test_a_unit_is_repeated_under_a_core_with_the_bandwidth_of_what_is_below() -> None:
    grown = grow(star(4), 9)
    assert grown.nodes == 12
    assert len({node for block in grown.blocks for node in block.nodes}) == 12
    assert {one.parent for one in grown.switches if one.name != CORE} == {CORE}
    assert {one.gbps for one in grown.switches if one.name != CORE} == {4 * 100}
    h100 = read(shipped.find("h100-nvlink")).cluster
    roots = [one for one in grow(h100, 64).switches if one.parent == CORE]
    assert len(roots) == 2 and {one.gbps for one in roots} == {8 * 12800}


@pytest.mark.parametrize("reduces", [True, False])
def test_a_core_adds_up_where_all_switches_below_it_do(reduces: bool) -> None:
    unit = replace(star(4), switches=(Switch("s", reduces=reduces),))
    assert {one.reduces for one in grow(unit, 9).switches} == {reduces}


def test_the_growth_of_one_algorithm_is_what_its_formula_says() -> None:
    counts = [1 << k for k in range(1, 9)]
    mpi = LIBRARIES["mpi"]
    doubling = scaling("allreduce", star(256), counts, 8, mpi, ["recursive_doubling"])
    assert [point.growth for point in doubling[2:]] == [LOGARITHMIC] * 6
    for point in doubling:
        assert point.seconds == pytest.approx(math.log2(point.nodes) * (2e-6 + 8 / 12.5e9))
    ring = scaling("allreduce", star(256), counts, 8, mpi, ["ring"])
    assert [point.growth for point in ring[3:]] == [LINEAR] * 5
    assert {point.cause for point in ring[3:]} == {"latency of host nic"}
    large = scaling("allreduce", star(256), counts, 1 << 30, mpi, ["ring"])
    assert large[-1].growth == FLAT
    assert [turn.growth for turn in turns(ring)][-1] == LINEAR


def test_where_no_algorithm_exists_there_is_a_point_without_a_time() -> None:
    (point,) = scaling("allreduce", star(2), [2], 8, LIBRARIES["mpi"], ["nvls"])
    assert point.algorithm == "" and math.isnan(point.seconds)


def test_a_cluster_of_no_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="has no devices: a prediction needs nodes whose class says theirs"):
        scaling("allreduce", Cluster("empty"), [1], 8)


def door(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commbench.scaling", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_door_prints_draws_and_gives_json(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scaling.png"
    done = door("--topology", "h100-nvlink", "--nodes", "1-4", "--size", "8", "--json", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [point["nodes"] for point in points] == [1, 2, 4]
    assert all(point["seconds"] > 0 for point in points)
    assert picture.read_bytes().startswith(b"\x89PNG")
    words = door("--topology", "l40s-pcie", "--nodes", "1,2").stdout
    assert words.startswith("# allreduce on l40s-pcie: predicted, not measured")


def test_where_no_algorithm_exists_the_door_shows_no_time_and_draws_nothing(tmp_path: Path) -> None:
    words = ("--topology", "h100-nvlink", "--nodes", "2", "--algo", "nvls")
    assert "-  none exists" in door(*words).stdout
    done = door(*words, "--picture", str(tmp_path / "none.png"))
    assert done.returncode == 2
    assert done.stderr.startswith("commbench scaling: error: --picture has nothing to draw: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology", "h100-nvlnk"), "unknown topology 'h100-nvlnk': did you mean h100-nvlink?"),
        (("--topology", "h100-nvlink", "--nodes", "4-1"), "--nodes is a range"),
        (("--topology", "h100-nvlink", "--nodes", "1000000"), "--nodes is at most"),
        (("--topology", "h100-nvlink", "--algo", "rign"), "unknown algorithm 'rign': did you mean ring"),
        (("--topology", "h100-nvlink", "--library", ""), "unknown library ''"),
        (("--topology", "h100-nvlink", "--library", "nccll"), "unknown library 'nccll': did you mean nccl"),
        (("--topology", "h100-nvlink", "--nodes", "1", "--picture", "x.jpg"), "--picture ends in .png or .svg"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    done = door(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"commbench scaling: error: {message}") and done.stderr.count("\n") == 1
