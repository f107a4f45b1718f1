"""Matrices of nvidia-smi topo -m: the tree that is made of one gives the matrix back."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from commbench.diagnose import gpus
from commbench.topology.inside import way
from commbench.topology.node import NVLINK, NodeClass
from commbench.topology.reading import Reading, TopologyError, read_text
from tests.diagnose.machines import OUTPUTS
from tests.topology import nodes


def read(text: str) -> tuple[Reading, NodeClass]:
    found = read_text(text, "topo.txt")
    assert found.format == "nvidia_smi"
    return found, found.cluster.classes[0]


@pytest.mark.parametrize("name", ["h100_topo.txt", "a100_topo.txt"])
def test_nearest_adapters_are_those_that_the_doctor_finds(name: str) -> None:
    text = (OUTPUTS / name).read_text(encoding="utf-8")
    _, node = read(text)
    known = gpus.read_topology(text)
    assert {int(device.id[3:]): device.numa for device in node.devices} == known.numa
    for gpu, (level, adapters) in known.nearest.items():
        ways = {nic.id: way(node, node.route(f"gpu{gpu}", nic.id)) for nic in node.nics}
        assert {nic for nic, name in ways.items() if name == level} == set(adapters)


def matrix(rng: random.Random, ends: list[str]) -> list[list[str]]:
    """A matrix that a machine could have: ends in a random tree of sockets, hosts, switches."""
    places = [(rng.randrange(2), rng.randrange(2), rng.randrange(2), rng.randrange(2)) for _ in ends]
    levels = ["SYS", "NODE", "PHB", "PXB", "PIX"]

    def level(a: tuple[int, ...], b: tuple[int, ...]) -> str:
        return levels[next((depth for depth in range(4) if a[depth] != b[depth]), 4)]

    return [["X" if i == j else level(a, b) for j, b in enumerate(places)] for i, a in enumerate(places)]


@pytest.mark.parametrize("seed", range(40))
def test_the_tree_gives_the_matrix_back(seed: int) -> None:
    rng = random.Random(seed)
    ends = [f"GPU{n}" for n in range(rng.randrange(2, 6))] + [f"NIC{n}" for n in range(rng.randrange(1, 6))]
    cells = matrix(rng, ends)
    found, node = read(nodes.smi(cells, ends))
    assert [one.rule for one in found.findings] == []
    names = [end.replace("GPU", "gpu") for end in ends]
    for a, b in combinations(range(len(ends)), 2):
        assert way(node, node.route(names[a], names[b])) == cells[a][b]


def test_few_links_join_gpus_directly() -> None:
    cells = [["X", "NV2", "NV1"], ["NV2", "X", "NV1"], ["NV1", "NV1", "X"]]
    _, node = read(nodes.smi(cells, ["GPU0", "GPU1", "GPU2"]))
    links = {(link.a, link.b): link.count for link in node.links if link.kind == NVLINK}
    assert links == {("gpu0", "gpu1"): 2, ("gpu0", "gpu2"): 1, ("gpu1", "gpu2"): 1}


def test_older_matrices_name_nics_in_the_head_and_newer_ones_in_a_legend() -> None:
    cells = [["X", "PHB"], ["PHB", "X"]]
    _, old = read(nodes.smi(cells, ["GPU0", "mlx5_2"]))
    _, new = read(nodes.smi(cells, ["GPU0", "NIC0"]) + "\nNIC Legend:\n\n  NIC0: mlx5_2\n")
    assert [nic.id for nic in old.nics] == [nic.id for nic in new.nics] == ["mlx5_2"]


def test_cells_that_contradict_one_another_are_said() -> None:
    cells = [["X", "PIX", "SYS"], ["PIX", "X", "PIX"], ["SYS", "PIX", "X"]]
    found, _ = read(nodes.smi(cells, ["GPU0", "GPU1", "GPU2"]))
    assert [one.rule for one in found.findings] == ["contradiction"]
    found, _ = read(nodes.smi([["X", "PIX"], ["SYS", "X"]], ["GPU0", "GPU1"]))
    assert "unsymmetric" in [one.rule for one in found.findings]


def test_two_matrices_in_one_file_are_refused() -> None:
    one = nodes.smi([["X", "PIX"], ["PIX", "X"]], ["GPU0", "GPU1"])
    with pytest.raises(TopologyError, match="GPU0 has a second row"):
        read_text(one + one, "topo.txt")


def test_a_digit_that_is_no_number_is_no_numa_node() -> None:
    cells = [["X", "PIX"], ["PIX", "X"]]
    _, node = read(nodes.smi(cells, ["GPU0", "GPU1"], affinity=["0-3\t²", "0-3\t0"]))
    assert [device.numa for device in node.devices] == [None, 0]


def test_no_nvlinks_are_no_link() -> None:
    found, node = read(nodes.smi([["X", "NV0"], ["NV0", "X"]], ["GPU0", "GPU1"]))
    assert not any(link.kind == NVLINK for link in node.links)
    assert [one.rule for one in found.findings] == ["unknown-word"]
