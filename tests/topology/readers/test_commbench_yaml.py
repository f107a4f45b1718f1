"""Our YAML, read: the short and the long form, and every fault with its line and remedy."""

from __future__ import annotations

import pytest

from commbench.topology import hosts
from commbench.topology.cluster import Block, Cable, Switch
from commbench.topology.node import DECLARED, DEFAULT, Device, Hub, Link, Nic, NodeClass
from commbench.topology.readers.commbench_yaml import read, recognise
from commbench.topology.reading import TopologyError, read_text

WHOLE = """version: 1
name: small
source: default
step: {us: 1.5, source: measured}
block_sizes: [2, 4]
switches:
  spine: {switches: ["leaf[1-2]"], sharp: true, labels: {zone: a}}
  "leaf[1-2]": {uplink: {gbps: 1600, us: 0.2, cables: 4}}
classes:
  short:
    devices: 2
    vendor: nvidia
    arch: sm90
    fabric: {kind: nvswitch, gbps: 3600, us: 0.3, cables: 18, sharp: true}
    pcie: {gbps: 512}
    sockets: {count: 2, gbps: 176, source: measured}
    nics: 2
    nic: {gbps: 400, us: 0.7}
    rails: 2
    pxn: true
  long:
    devices: [{id: a, vendor: amd, arch: gfx90a, busid: "0000:c1:00.0", numa: 0}, {id: b}]
    nics: [{id: n, gbps: 25, role: storage, guid: "0x1", rail: 1, source: discovered}]
    hubs: [{id: c, kind: cpu, numa: 0}]
    links: [{a: a, b: b, kind: xgmi, gbps: 800, us: 1, count: 2}]
blocks:
- switch: ["leaf1", "leaf2"]
  nodes: ["n[01-02]", n10]
  class: short
  domain: d
  name: b1
  annotations: {x: [1, {y: no}]}
- {nodes: 010, class: long}
cables:
- {a: leaf1, b: spine, gbps: 400, count: 4}
"""


def test_everything_that_can_be_said_is_read() -> None:
    cluster = read(WHOLE, "f").cluster
    assert (cluster.name, cluster.step_us, cluster.step_source, cluster.block_sizes) == (
        "small",
        1.5,
        "measured",
        (2, 4),
    )
    assert cluster.switches == (
        Switch("spine", reduces=True, annotations={"labels": {"zone": "a"}}),
        Switch("leaf1", "spine", 1600, 0.2, 4, DEFAULT),
        Switch("leaf2", "spine", 1600, 0.2, 4, DEFAULT),
    )
    assert cluster.blocks == (
        Block(("n01", "n02", "n10"), ("leaf1", "leaf2"), "short", "d", "b1", {"x": [1, {"y": "no"}]}),
        Block(("010",), (), "long"),
    )
    assert cluster.cables == (Cable("leaf1", "spine", 400, 4),)
    assert cluster.by_class["long"] == NodeClass(
        "long",
        (Device("a", "amd", "gfx90a", "0000:c1:00.0", 0), Device("b")),
        (Nic("n", 25, None, 1, guid="0x1", role="storage", source="discovered"),),
        (Hub("c", "cpu", 0),),
        (Link("a", "b", "xgmi", 800, 1, 2, DEFAULT),),
    )


def test_the_short_form_becomes_a_graph() -> None:
    node = read(WHOLE, "f").cluster.by_class["short"]
    assert node == NodeClass(
        "short",
        (Device("gpu0", "nvidia", "sm90", numa=0), Device("gpu1", "nvidia", "sm90", numa=1)),
        (Nic("nic0", 400, 0.7, 0, numa=0, source=DEFAULT), Nic("nic1", 400, 0.7, 1, numa=1, source=DEFAULT)),
        (Hub("nvswitch", "nvswitch", reduces=True), Hub("cpu0", "cpu", 0), Hub("cpu1", "cpu", 1)),
        (
            Link("gpu0", "nvswitch", "nvlink", 3600, 0.3, 18, DEFAULT),
            Link("gpu1", "nvswitch", "nvlink", 3600, 0.3, 18, DEFAULT),
            Link("gpu0", "cpu0", "pcie", 512, source=DEFAULT),
            Link("gpu1", "cpu1", "pcie", 512, source=DEFAULT),
            Link("nic0", "cpu0", "pcie", 512, source=DEFAULT),
            Link("nic1", "cpu1", "pcie", 512, source=DEFAULT),
            Link("cpu0", "cpu1", "socket", 176, source="measured"),
        ),
        relays=True,
    )


def test_figures_are_declared_where_nothing_else_is_said() -> None:
    text = "version: 1\nclasses: {a: {devices: 2, fabric: {kind: mesh, gbps: 400}}}\nblocks: [{nodes: n1, class: a}]\n"
    assert read(text, "f").cluster.classes[0].links == (Link("gpu0", "gpu1", "nvlink", 400, source=DECLARED),)


def test_it_is_told_from_the_model_of_topograph() -> None:
    assert recognise(WHOLE) == 0.95
    assert recognise("switches:\n  core: {switches: [leaf]}\n") == 0
    assert recognise("blocks: []\nclasses: {}\n") == 0.95
    assert recognise("# classes: 1\nSwitchName=x\n") == 0
    assert read_text(WHOLE, "f").format == "commbench_yaml"


TREE = "version: 1\nswitches:\n  spine: {switches: [leaf1]}\n  leaf1: {}\n"
NODE = "version: 1\nclasses:\n  a:\n    devices: 8\n    vendor: nvidia\n    arch: sm90\n"
LISTED = "version: 1\nclasses:\n  a:\n    devices: [{id: x}, {id: y}]\n"
REFUSED = [
    # what is not there, or not known
    ("switches: {}\nblocks: []\nclasses: {}\n", 1, "begins with version: 1, and this one has none"),
    ("version: 2\nblocks: [{nodes: a}]\n", 1, "begins with version: 1, and this one has 2"),
    ("version: 1\nblock: []\nblocks: []\n", 2, "unknown key 'block': did you mean blocks"),
    (TREE + "  leaf2: {uplnk: {gbps: 1}}\n", 5, "unknown key 'uplnk': did you mean uplink"),
    (TREE + "  leaf2: {uplink: {gb: 1}}\n", 5, "unknown key 'gb': did you mean gbps"),
    (NODE + "    fabric: {kind: nvswich}\n", 7, "unknown kind of fabric 'nvswich': did you mean nvswitch"),
    (NODE + "    gpus: 8\n", 7, "unknown key 'gpus'"),
    (NODE + "    pcie: {gbps: 1, source: guessed}\n", 7, "unknown source 'guessed'"),
    (NODE + "blocks:\n- {nodes: n1, class: b}\n", 8, "unknown class 'b'"),
    (NODE + "    nics: 2\n", 7, "say pcie"),
    (NODE + "    pcie: {}\n    nics: 2\n    rails: 8\n", 9, "2 are no 8"),
    (NODE + "    fabric: {kind: mesh, sharp: true}\n", 7, "only an nvswitch adds up"),
    ("version: 1\nclasses:\n  a: {vendor: x}\nblocks: [{nodes: n}]\n", 3, "says its devices"),
    (LISTED + "    links: [{a: x, b: z, kind: pcie}]\n", 5, "unknown id 'z'"),
    (LISTED + "    links: [{a: x, b: x, kind: pcie}]\n", 5, "not x with itself"),
    (LISTED + "    links: [{a: x, b: y}]\n", 5, "says its kind"),
    (LISTED + "    nics: [{id: x}]\n", 5, "has 'x' already"),
    ("version: 1\nblocks:\n- {class: a}\n", 3, "a block has nodes"),
    # trees that are none
    (TREE + "  other: {switches: [leaf1]}\nblocks: [{switch: leaf1, nodes: n1}]\n", 5, "leaf1 is below spine already"),
    ("version: 1\nswitches:\n  a: {switches: [b]}\n  b: {switches: [a]}\n", 3, "a cycle"),
    (TREE + "  leaf1: {}\n", 5, "already, in line 4"),
    (TREE + "blocks:\n- {switch: leaf1, nodes: n1}\n- {switch: leaf1, nodes: n1}\n", 7, "node n1 is declared already"),
    (TREE + "blocks:\n- {switch: spine, nodes: n1}\n", 3, "both switches and nodes"),
    (TREE + 'blocks:\n- {switch: leaf1, nodes: "n[01-08"}\n', 6, "closed brackets"),
    (TREE + "cables: [{a: leaf1, b: nobody}]\nblocks: [{switch: leaf1, nodes: n1}]\n", 5, "'nobody' is none"),
    # figures
    (NODE + "    pcie: {gbps: -1}\n", 7, "above 0"),
    (NODE + "    pcie: {gbps: 0}\n", 7, "leave out what is not known"),
    (NODE + "    pcie: {gbps: 100001}\n", 7, "at most 100,000 a cable"),
    (NODE + "    pcie: {gbps: 1e999}\n", 7, "at most 100,000 a cable"),
    (NODE + "    pcie: {gbps: .nan}\n", 7, "without a unit, not .nan: write a plain number"),
    (NODE + "    pcie: {us: 1000001}\n", 7, "a second"),
    (NODE + "    pcie: {us: -1}\n", 7, "from 0 to"),
    (NODE + "    fabric: {kind: nvswitch, gbps: 450GB/s}\n", 7, "without a unit, not 450GB/s: write 3600"),
    (NODE + "    fabric: {kind: nvswitch, gbps: 450 GB/s}\n", 7, "write 3600"),
    (NODE + "    pcie: {gbps: 400Gb/s}\n", 7, "write 400"),
    (NODE + '    pcie: {gbps: "400"}\n', 7, "write 400"),
    (NODE + "    pcie: {us: 600ns}\n", 7, "write 0.6"),
    (NODE + "    pcie: {gbps: [1]}\n", 7, "not a list"),
    (NODE + "    nics: 1.5\n    pcie: {}\n", 7, "a whole number from 0 to 256, not 1.5"),
    (NODE + "    pxn: yes\n", 7, "true or false, not yes"),
    ("version: 1\nclasses:\n  a: {devices: 1000, fabric: {kind: mesh}}\nblocks: [{nodes: n}]\n", 3, "0 to 256"),
]  # fmt: skip


def test_a_vendor_that_chooses_a_library_has_one_spelling() -> None:
    for said in ("devices: 1, vendor: NVIDIA", "devices: [{id: a, vendor: NVIDIA}]"):
        with pytest.raises(TopologyError, match="it:3: vendor is written nvidia, not NVIDIA"):
            read_text(f"version: 1\nclasses:\n  c: {{{said}}}\n", "it")


@pytest.mark.parametrize(("text", "line", "why"), REFUSED)
def test_a_fault_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:{line}: ")
    assert why in str(caught.value)


DOUBTED = [
    (TREE + "blocks:\n- {switch: leaf1, nodes: n1}\n- {nodes: n2}\n", "nodes on no switch", 7),
    (TREE + '  other: {switches: [leaf2]}\nblocks: [{switch: "leaf[1-2]", nodes: n1}]\n', "no common root", 3),
    (NODE + "    fabric: {kind: nvswitch, gbps: 7200}\n", "both directions", 7),
    (NODE + "    pcie: {gbps: 1024}\n", "both directions", 7),
    (NODE.replace("sm90", "sm80") + "    fabric: {kind: nvswitch, gbps: 4800}\n", "both directions", 7),
    (NODE.replace("sm90", "sm100") + "    fabric: {kind: nvswitch, gbps: 14400}\n", "both directions", 7),
    (NODE.replace("nvidia", "amd").replace("sm90", "gfx90a")
     + "    links: [{a: gpu0, b: gpu1, kind: xgmi, gbps: 3200, count: 4}]\n", "both directions", 7),
    ("version: 1\nswitches:\n  leaf: {uplink: {gbps: 10}}\nblocks: [{switch: leaf, nodes: n1}]\n", "no parent", 3),
    (NODE + "blocks:\n- {nodes: n1, class: a, switch: [x, y]}\n", "rails", 8),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "line"), DOUBTED)
def test_what_may_be_meant_is_a_doubt(text: str, rule: str, line: int) -> None:
    found = {one.rule: one for one in read(text, "f").findings}
    assert rule in found
    assert line in found[rule].lines


def test_figures_of_one_direction_are_no_doubt() -> None:
    for arch, gbps in (("sm80", 2400), ("sm90", 3600), ("sm100", 7200)):
        text = NODE.replace("sm90", arch) + f"    fabric: {{kind: nvswitch, gbps: {gbps}}}\n    pcie: {{gbps: 256}}\n"
        assert read(text, "f").findings == ()


def test_a_doubt_says_what_one_direction_has() -> None:
    (found,) = read(NODE + "    fabric: {kind: nvswitch, gbps: 7200, cables: 18}\n", "f").findings
    assert "3600 each" in found.value


def test_the_uplink_of_a_tier_drawn_together_may_be_large_where_its_cables_are_counted() -> None:
    text = TREE.replace("leaf1: {}", "leaf1: {uplink: {gbps: 819200%s}}") + "blocks: [{switch: leaf1, nodes: n}]\n"
    assert read(text % ", cables: 2048", "f").cluster.by_switch["leaf1"].gbps == 819200
    with pytest.raises(TopologyError, match="all `cables`"):
        read(text % "", "f")


HOSTILE = [
    "version: 1\nblocks: &a [*a, *a]\n",
    "version: 1\nclasses: !!python/object/apply:os.system [id]\nblocks: []\n",
    "version: 1\nblocks: " + "[" * 100_000,
    "version: 1\nblocks: " + "- " * 100_000,
    "version: 1\nblocks: [{nodes: 'n[1-9999999999]'}]\n",
    "version: 1\nclasses:\n" + "".join(f"  a{one}: {{devices: 256, fabric: {{kind: mesh}}}}\n" for one in range(9999)),
    "version: 1\nblocks: []\n" + "#" * (1 << 23),
    "version: 1\nblocks: []\n--- \nblocks: []\n",
    "version: 1\nblocks: [{nodes: a}]\n\x00",
    "version: 1\nblocks: \"unclosed\n",
    "version: 1\nblocks: [{nodes: a, ? [x]: y}]\n",
    "[version: 1, blocks: 2]",
]  # fmt: skip


def test_all_names_of_a_file_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "MOST", 5000)
    lists = "".join(f"- {{nodes: 'n{one}-[1-1999]'}}\n" for one in range(3))
    with pytest.raises(TopologyError, match=r"^f:5: .* at most 5,000 nodes and switches"):
        read(f"version: 1\nblocks:\n{lists}", "f")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_file_made_to_harm_is_refused_before_it_does(text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert len(str(caught.value)) < 500


FABRIC = """version: 1
switches:
  spine: {switches: "leaf[1-3]"}
  leaf1: {uplink: {gbps: 800, us: 0.5}}
  leaf2: {uplink: {us: 0.5}}
classes:
  node: {devices: 2, vendor: nvidia, pcie: {gbps: 512, us: 0.5}, nics: 1, nic: {gbps: 400, us: 0.7}}
blocks:
- {switch: leaf1, nodes: "n[1-2]", class: node}
- {switch: leaf2, nodes: "n[3-4]", class: node}
"""


def test_slips_of_a_fabric_are_doubted_by_name_and_line() -> None:
    found = {one.rule: one for one in read(FABRIC, "x").findings}
    assert set(found) == {"uplink without bandwidth", "empty leaf"}
    bare, empty = found["uplink without bandwidth"], found["empty leaf"]
    assert "of 2 switches are: leaf2, leaf3" in bare.value and 5 in bare.lines
    assert empty.value.endswith("have no nodes: leaf3") and empty.lines == (3,)
    mended = FABRIC.replace("leaf[1-3]", "leaf[1-2]").replace("{us: 0.5}}\nclasses", "{gbps: 800, us: 0.5}}\nclasses")
    assert read(mended, "x").findings == ()


@pytest.mark.parametrize(
    ("before", "after", "rule", "remedy"),
    [
        ("pcie: {gbps: 512", "pcie: {gbps: 32", "low rate", "if GB/s are meant it is 256"),
        ("gbps: 400, us: 0.7", "gbps: 400, us: 500", "long latency", "if ns are meant it is 0.5"),
        ("gbps: 512, us: 0.5", "gbps: 512, us: 500", "long latency", "if ns are meant it is 0.5"),
    ],
)
def test_figures_in_another_unit_are_doubted_unless_measured(before: str, after: str, rule: str, remedy: str) -> None:
    text = FABRIC.replace(before, after)
    (found,) = (one for one in read(text, "x").findings if one.rule == rule)
    assert found.lines == (7,) and remedy in str(found)
    measured = text.replace("version: 1", "version: 1\nsource: measured")
    assert all(one.rule != rule for one in read(measured, "x").findings)
