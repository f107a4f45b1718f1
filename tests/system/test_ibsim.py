"""Simulated InfiniBand fabrics, read through the real ibnetdiscover, to the model and to topology.conf.

ibsim answers what switches and adapters would; every cable of it is 4xSDR, 10 Gb/s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest

from commbench.topology.cluster import Cluster
from commbench.topology.reading import read_text
from commbench.topology.writers import slurm_conf

TOOLS = ("ibsim", "ibnetdiscover")
PRELOAD = next(iter(sorted(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"))), None)
CABLE = 10.0  # Gb/s

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)) or PRELOAD is None,
    reason="no simulated InfiniBand: install Debian's ibsim-utils and infiniband-diags",
)

Ports = dict[str, list[tuple[str, int]]]


class Fabric:
    """Devices and cables, as they are drawn for the simulator."""

    def __init__(self) -> None:
        self.ports: dict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
        self.adapters: list[str] = []

    def adapter(self, name: str, switch: str) -> None:
        self.adapters.append(name)
        self.cable(name, switch)

    def cable(self, a: str, b: str, times: int = 1) -> None:
        for _ in range(times):
            one, other = len(self.ports[a]) + 1, len(self.ports[b]) + 1
            self.ports[a][one], self.ports[b][other] = (b, other), (a, one)

    def text(self) -> str:
        """The simulator's own format: a device, and a line for each of its ports."""
        devices = []
        for name, ports in self.ports.items():
            kind = "Hca 1" if name in self.adapters else f"Switch {len(ports)}"
            lines = [f'[{port}] "{peer}"[{other}]' for port, (peer, other) in ports.items()]
            devices.append("\n".join([f'{kind} "{name}"', *lines, ""]))
        return "\n".join(devices)

    def discover(self, folder: Path, *flags: str) -> str:
        """What ibnetdiscover prints, seen from the first adapter."""
        (folder / "net").write_text(self.text())
        environment = {**os.environ, "IBSIM_SOCKNAME": f"commbench-{folder.name}-{os.getpid()}"}
        command = ["ibsim", "-s", "-n", "-N", "4096", "-S", "512", "-P", "65536", "net"]
        with (
            open(folder / "ibsim.out", "w") as log,
            subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            ) as sim,
        ):
            try:
                environment |= {"SIM_HOST": self.adapters[0], "LD_PRELOAD": str(PRELOAD)}
                for attempt in count(1):
                    done = subprocess.run(["ibnetdiscover", *flags], env=environment, capture_output=True, text=True)
                    if done.returncode == 0 or attempt == 100:
                        assert done.returncode == 0, (done.stderr, (folder / "ibsim.out").read_text()[-2000:])
                        return done.stdout
                    time.sleep(0.1)  # until it listens
            finally:
                sim.kill()
        raise AssertionError


def two_tiers(leaves: int = 3, hosts: int = 4, spines: int = 2, parallel: int = 2) -> Fabric:
    fabric = Fabric()
    for leaf in range(1, leaves + 1):
        for host in range(1, hosts + 1):
            fabric.adapter(f"n{leaf}{host:02}", f"leaf{leaf}")
        for spine in range(1, spines + 1):
            fabric.cable(f"leaf{leaf}", f"spine{spine}", parallel)
    return fabric


def three_tiers() -> Fabric:
    fabric = Fabric()
    for pod in (1, 2, 3):
        for leaf in (1, 2):
            for host in (1, 2, 3):
                fabric.adapter(f"p{pod}l{leaf}h{host}", f"leaf{pod}{leaf}")
            for spine in (1, 2):
                fabric.cable(f"leaf{pod}{leaf}", f"spine{pod}{spine}", 2)
        for spine in (1, 2):
            for core in (1, 2):
                fabric.cable(f"spine{pod}{spine}", f"core{core}")
    return fabric


def rails(groups: int = 2, hosts: int = 3, width: int = 4) -> Fabric:
    fabric = Fabric()
    for group in range(1, groups + 1):
        for host in range(1, hosts + 1):
            for rail in range(width):
                fabric.adapter(f"g{group}h{host} mlx5_{rail}", f"leaf{group}r{rail}")
        for rail in range(width):
            fabric.cable(f"leaf{group}r{rail}", "spine1", 2)
            fabric.cable(f"leaf{group}r{rail}", "spine2")
    return fabric


def leaves_of(cluster: Cluster) -> Mapping[str, Sequence[str]]:
    return {node: block.leaves for block in cluster.blocks for node in block.nodes}


def tree_of(cluster: Cluster) -> Mapping[str, tuple[str | None, float | None, int | None]]:
    return {one.name: (one.parent, one.gbps, one.cables) for one in cluster.switches}


@pytest.fixture(params=["default", "-p"])
def style(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return () if request.param == "default" else (request.param,)


def test_two_tiers_with_parallel_cables(tmp_path: Path, style: tuple[str, ...]) -> None:
    reading = read_text(two_tiers().discover(tmp_path, *style), "simulated")
    assert (reading.format, reading.findings) == ("ibnetdiscover", ())
    assert leaves_of(reading.cluster) == {
        f"n{leaf}{host:02}": (f"leaf{leaf}",) for leaf in (1, 2, 3) for host in (1, 2, 3, 4)
    }
    uplink = ("tier1", 4 * CABLE, 4)  # two cables to each of two spines
    assert tree_of(reading.cluster) == {**{f"leaf{k}": uplink for k in (1, 2, 3)}, "tier1": (None, None, None)}
    assert {(one.a, one.b): (one.gbps, one.count) for one in reading.cluster.cables} == {
        (f"leaf{leaf}", f"spine{spine}"): (2 * CABLE, 2) for leaf in (1, 2, 3) for spine in (1, 2)
    }
    (node,) = reading.cluster.classes
    assert [(nic.gbps, nic.rail, nic.source) for nic in node.nics] == [(CABLE, 0, "discovered")]


def test_three_tiers(tmp_path: Path, style: tuple[str, ...]) -> None:
    reading = read_text(three_tiers().discover(tmp_path, *style), "simulated")
    assert reading.findings == ()
    found = tree_of(reading.cluster)
    pods = {pod: f"tier1-{pod}" for pod in (1, 2, 3)}
    assert found == {
        **{f"leaf{pod}{leaf}": (pods[pod], 4 * CABLE, 4) for pod in pods for leaf in (1, 2)},
        **dict.fromkeys(pods.values(), ("tier2", 4 * CABLE, 4)),
        "tier2": (None, None, None),
    }
    assert reading.cluster.by_switch["tier1-2"].annotations == {"switches": ["spine21", "spine22"]}


def test_hosts_with_a_leaf_for_each_rail(tmp_path: Path, style: tuple[str, ...]) -> None:
    reading = read_text(rails().discover(tmp_path, *style), "simulated")
    assert reading.findings == ()
    assert leaves_of(reading.cluster) == {
        f"g{group}h{host}": tuple(f"leaf{group}r{rail}" for rail in range(4)) for group in (1, 2) for host in (1, 2, 3)
    }
    (node,) = reading.cluster.classes
    assert [(nic.id, nic.rail) for nic in node.nics] == [(f"mlx5_{rail}", rail) for rail in range(4)]
    assert all(
        tree_of(reading.cluster)[f"leaf{g}r{rail}"] == ("tier1", 3 * CABLE, 3) for g in (1, 2) for rail in range(4)
    )


def test_a_host_on_a_spine_has_a_leaf_of_its_own(tmp_path: Path) -> None:
    fabric = two_tiers()
    fabric.adapter("manager", "spine1")
    reading = read_text(fabric.discover(tmp_path), "simulated")
    assert [finding.rule for finding in reading.findings] == ["hosts above leaves"]
    assert leaves_of(reading.cluster)["manager"] == ("spine1-hosts",)
    assert tree_of(reading.cluster)["spine1-hosts"] == ("tier1", CABLE, 1)
    assert tree_of(reading.cluster)["leaf1"] == ("tier1", 4 * CABLE, 4)


def test_two_switches_side_by_side_are_likened_to_a_tree(tmp_path: Path) -> None:
    fabric = Fabric()
    for name, switch in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        fabric.adapter(name, switch)
    fabric.cable("a", "b", 3)
    reading = read_text(fabric.discover(tmp_path), "simulated")
    assert [finding.rule for finding in reading.findings] == ["not a tree"]
    assert tree_of(reading.cluster) == {"a": ("tier1", 30.0, 3), "b": ("tier1", 30.0, 3), "tier1": (None, None, None)}


@pytest.mark.parametrize("fabric", [two_tiers(), three_tiers(), rails(), two_tiers(12, 16, 4, 1)])
def test_what_is_discovered_comes_back_from_topology_conf(tmp_path: Path, fabric: Fabric) -> None:
    found = read_text(fabric.discover(tmp_path), "simulated").cluster
    again = read_text(slurm_conf.write(found), "written").cluster
    first = {name: leaves[0] for name, leaves in leaves_of(found).items()}
    assert {name: leaves[0] for name, leaves in leaves_of(again).items()} == first
    parents = {one.name: one.parent for one in again.switches}
    assert parents == {one.name: one.parent for one in found.switches if one.name in parents}
    assert set(parents) >= set(first.values())
