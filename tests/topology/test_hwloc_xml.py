"""hwloc's XML: authored for GPUs, and from lstopo itself for the synthetic machines that it can make up."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest

from commbench.topology.inside import way
from commbench.topology.node import BUS, MEMORY, PCIE, SOCKET, XGMI
from commbench.topology.reading import Reading, TopologyError, read_text
from tests.topology import nodes

pytest.importorskip("defusedxml")

LSTOPO = shutil.which("lstopo-no-graphics")


def read(text: str) -> Reading:
    found = read_text(text, "node.xml")
    assert found.format == "hwloc_xml"
    return found


def test_gpus_nics_and_xgmi_of_version_2() -> None:
    found = read(nodes.HWLOC)
    (node,) = found.cluster.classes
    assert found.cluster.blocks[0].nodes == ("gpu-17",)
    assert [(one.id, one.vendor, one.busid) for one in node.devices] == [
        ("rsmi0", "amd", "0000:01:00.0"),
        ("rsmi1", "amd", "0000:02:00.0"),
    ]
    assert [(link.a, link.b, link.gbps) for link in node.links if link.kind == XGMI] == [("rsmi0", "rsmi1", 800.0)]
    # A port's own rate and that of what is in it: the slower one counts. The ports of a card share their slot.
    slots = {link.a: link.gbps for link in node.links if link.kind == PCIE}
    assert slots == {
        "rsmi0": pytest.approx(126.03, abs=0.01),
        "rsmi1": pytest.approx(252.06, abs=0.01),
        "mlx5_0": pytest.approx(126.03, abs=0.01),
        "mlx5_1": pytest.approx(126.03, abs=0.01),
    }
    assert found.findings == ()


def test_devices_below_a_package_of_two_numa_nodes_are_near_to_both() -> None:
    (node,) = read(nodes.HWLOC).cluster.classes
    assert [device.numa for device in node.devices] == [None, None]
    assert {link.b for link in node.links if link.kind == MEMORY} == {"cpu0", "cpu1"}
    assert way(node, node.route("rsmi0", "mlx5_0")) == "PHB"


def test_gpus_without_any_drivers_device_are_told_by_class() -> None:
    found = read(nodes.HWLOC.replace('name="rsmi', 'name="card'))
    assert [device.id for device in found.cluster.classes[0].devices] == ["gpu0", "gpu1"]
    assert "by-class" in [one.rule for one in found.findings]


def test_a_matrix_that_does_not_fit_is_left_out() -> None:
    found = read(nodes.HWLOC.replace("0 100000 100000 0", "0 100000 0"))
    assert not any(link.kind == XGMI for link in found.cluster.classes[0].links)
    assert "bad-matrix" in [one.rule for one in found.findings]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nodes.HWLOC.replace(' version="2.0"', ""), "version 1"),
        ('<!DOCTYPE t [<!ENTITY a "b">]>' + nodes.HWLOC.split("\n", 2)[2], "no DTD and no entities"),
        ('<topology version="2.0"><object type="Machine"/></topology>', "neither a GPU nor a core"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_text(text, "node.xml")


@pytest.mark.skipif(LSTOPO is None, reason="lstopo is not installed: apt-get install hwloc-nox")
@pytest.mark.parametrize(("packages", "numa", "cores"), [(2, 2, 4), (1, 1, 3), (4, 1, 1)])
def test_a_machine_without_gpus_has_its_cores(packages: int, numa: int, cores: int) -> None:
    synthetic = f"pack:{packages} numa:{numa} core:{cores} pu:2"
    text = subprocess.run(
        [str(LSTOPO), "-i", synthetic, "--of", "xml"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    (node,) = read(text).cluster.classes
    count = packages * numa
    assert {device.vendor for device in node.devices} == {"cpu"}
    assert Counter(device.numa for device in node.devices) == dict.fromkeys(range(count), cores)
    assert [hub.kind for hub in node.hubs] == [BUS] * count
    assert sum(link.kind == SOCKET for link in node.links) == count * (count - 1) // 2
    assert {link.gbps for link in node.links} == {None}
