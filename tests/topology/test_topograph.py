"""topograph's model files and graphs."""

from __future__ import annotations

import json

import pytest

from commbench.topology.readers import topograph
from commbench.topology.reading import TopologyError, read_text

MODEL = """\
switches:
  core:
    labels: {region: east}
    switches: [leaf1, leaf2]
blocks:
- switch: leaf1
  nodes: ["n[1-2]", n5]
  annotations: {accelerator.topology.test/domain: nvl-1, accelerator.topology.test/sub-domain: rack01}
- switch: leaf2
  nodes: ["n[3-4]"]
"""


def test_a_model_keeps_labels_and_annotations_and_knows_the_domain() -> None:
    reading = read_text(MODEL, "x")
    assert (reading.format, reading.findings) == ("topograph", ())
    cluster = reading.cluster
    assert {one.name: one.parent for one in cluster.switches} == {"core": None, "leaf1": "core", "leaf2": "core"}
    assert cluster.by_switch["core"].annotations == {"labels": {"region": "east"}}
    first, second = cluster.blocks
    assert (first.nodes, first.leaves, first.domain) == (("n1", "n2", "n5"), ("leaf1",), "nvl-1")
    assert first.annotations["accelerator.topology.test/sub-domain"] == "rack01"
    assert (second.nodes, second.domain, second.annotations) == (("n3", "n4"), "", {})


def test_our_own_files_are_left_to_our_own_reader() -> None:
    assert topograph.recognise(MODEL) > 0.5
    assert topograph.recognise(f"version: 1\n{MODEL}") < 0.5
    assert topograph.recognise(f"classes: {{}}\n{MODEL}") < 0.5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[leaf1, leaf2]", "[leaf1, leaf1]", "x:2: switch leaf1 is below core already, in line 2"),
        ("n5]", "n3]", "x:9: node n3 is declared already, in line 6"),
        ("labels", "label", "x:3: switch core: unknown key 'label': did you mean labels?"),
        ('nodes: ["n[3-4]"]', "annotations: {}", "x:9: a block has nodes"),
        ("switch: leaf2", "switch: core", "x:2: switch core has both switches and nodes"),
        ('["n[3-4]"]', '["n[3-4"]', "x:10: a list of hosts"),
        ("leaf1, leaf2]", "leaf1, core]", "x:2: switches are a tree, and these a cycle: core < core"),
    ],
)
def test_faults_of_a_model_are_refused_with_their_lines(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        read_text(MODEL.replace(old, new, 1), "x")


def graph(*instances: object) -> str:
    return json.dumps({"instances": instances}, indent=1)


def test_a_graph_has_the_closest_switch_first() -> None:
    domain = {"accelerator.topology.test/domain": "nvl-1"}
    reading = read_text(
        graph(
            {"id": "n1", "network_layers": ["leaf1", "core"], "labels": domain},
            {"id": "n2", "network_layers": ["leaf1", "core"], "labels": domain},
            {"id": "n3", "network_layers": ["leaf2", "core"]},
        ),
        "x",
    )
    assert (reading.format, reading.findings) == ("topograph_graph", ())
    assert {one.name: one.parent for one in reading.cluster.switches} == {
        "leaf1": "core",
        "core": None,
        "leaf2": "core",
    }
    assert [(one.nodes, one.leaves, one.domain) for one in reading.cluster.blocks] == [
        (("n1", "n2"), ("leaf1",), "nvl-1"),
        (("n3",), ("leaf2",), ""),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"labels": {"nvidia.com/gpu.clique": "uuid.3"}},
        {"nvlink_domain": "uuid.3"},
        {"attributes": {"nvlink": "uuid.3", "status": "ok"}},
    ],
)
def test_a_domain_stands_where_the_release_put_it(said: dict[str, object]) -> None:
    assert read_text(graph({"id": "n1", "network_layers": ["l"], **said}), "x").cluster.blocks[0].domain == "uuid.3"


@pytest.mark.parametrize(
    ("instances", "says"),
    [
        (
            ({"id": "a", "network_layers": ["l"]}, {"id": "a", "network_layers": ["l"]}),
            "x:10: node a is declared already",
        ),
        (
            ({"id": "a", "network_layers": ["l", "s"]}, {"id": "b", "network_layers": ["l", "t"]}),
            "l is below s already",
        ),
        (({"network_layers": ["l"]},), "x:1: an instance is an object with an id"),
        (({"id": "a", "network_layers": "l"},), "x:4: network_layers of a is a list of names"),
        ((), "a graph has instances"),
        (({"id": "a", "network_layers": ["l", "s", "l"]},), "a cycle"),
    ],
)
def test_faults_of_a_graph_are_refused(instances: tuple[object, ...], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        read_text(graph(*instances), "x")


@pytest.mark.parametrize(
    "text", ['{"instances": ' + "[" * 100_000, '{"instances": [' + "9" * 10_000 + "]}", '{"instances": [}']
)
def test_json_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=r"this is no JSON|an instance is an object"):
        read_text(text, "x")
