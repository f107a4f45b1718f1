"""The faults of a tree: what Slurm does with each was measured with slurmctld 22.05.8."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from commbench.topology.readers import slurm_conf
from commbench.topology.reading import TopologyError, read, read_text
from commbench.topology.validate import NodesLine, SwitchLine, check_tree

GOOD = "SwitchName=leaf1 Nodes=n[01-04]\nSwitchName=leaf2 Nodes=n[05-08]\nSwitchName=s Switches=leaf[1-2]\n"
NODES = [f"n{k:02}" for k in range(1, 9)]

# Slurm ends over these, or loses nodes, or takes one of two meanings.
REFUSED = {
    "unclosed range": (GOOD.replace("n[01-04]", "n[01-04"), 1, "ranges in closed brackets"),
    "two parents": (f"{GOOD}SwitchName=t Switches=leaf1\n", 4, "leaf1 is below s already, in line 3"),
    "node on two leaves": (GOOD.replace("n[05-08]", "n[04-08]"), 2, "node n04 is declared already, in line 1"),
    "empty file": ("# nothing\n\n", None, "no switch and no node"),
    "child not defined": (GOOD.replace("leaf[1-2]", "leaf[1-3]"), 3, "above 'leaf3', which is not declared"),
    "duplicate switch": (f"{GOOD}SwitchName=leaf2 Nodes=n09\n", 4, "leaf2 is declared already, in line 2"),
    "cycle": (f"{GOOD}SwitchName=a Switches=b\nSwitchName=b Switches=a\n", 4, "a cycle: a < b < a"),
    "nodes and switches together": (
        *(GOOD.replace("Switches=leaf[1-2]", "Switches=leaf[1-2] Nodes=n09"), 3),
        "switch s has both switches and nodes",
    ),
    "neither nodes nor switches": (f"{GOOD}SwitchName=leaf3\n", 4, "leaf3 has neither"),
    "unknown key": (GOOD.replace("Switches", "Switchez"), 3, "unknown key 'Switchez'"),
    "speed that is no number": (
        GOOD.replace("leaf[1-2]", "leaf[1-2] LinkSpeed=fast"),
        3,
        "linkspeed is a whole number",
    ),
    "blocks among switches": (f"{GOOD}BlockName=b Nodes=n09\n", 4, "switches or blocks, not both"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_would_end_slurm_or_lose_nodes_is_refused_with_its_line(fault: str) -> None:
    text, line, says = REFUSED[fault]
    place = f"topology.conf:{line}: " if line else "topology.conf: "
    with pytest.raises(TopologyError, match=f"^{re.escape(place)}.*{re.escape(says)}"):
        read_text(text, "topology.conf")


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=re.escape(f"{tmp_path}/topology.conf: cannot be read (No such file")):
        read(tmp_path / "topology.conf")


@pytest.mark.parametrize(
    ("fault", "text", "rule", "lines", "value"),
    [
        ("unknown node", GOOD.replace("n[05-08]", "n[05-08],zz1"), "unknown node", (2,), "zz1"),
        ("nodes on no switch", GOOD.replace("n[05-08]", "n[05-06]"), "nodes on no switch", (), "n07, n08"),
        ("no common root", GOOD[: GOOD.index("SwitchName=s")], "no common root", (1, 2), "leaf1, leaf2"),
    ],
)
def test_what_may_be_meant_is_a_finding(fault: str, text: str, rule: str, lines: tuple[int, ...], value: str) -> None:
    reading = slurm_conf.read(text, "topology.conf", NODES)
    (found,) = reading.findings
    assert (found.rule, found.level, found.lines) == (rule, "doubt", lines)
    assert value in found.value


def test_a_tree_without_faults_has_no_findings() -> None:
    reading = slurm_conf.read(GOOD, "topology.conf", NODES)
    assert reading.findings == ()
    assert {one.name: one.parent for one in reading.cluster.switches} == {"leaf1": "s", "leaf2": "s", "s": None}


def test_the_nodes_that_there_are_stand_in_slurm_conf() -> None:
    text = (
        "NodeName=DEFAULT CPUs=8\n# NodeName=x\nnodename = n[01-03] CPUs=8\nNodeName=m1,m2\nPartitionName=p Nodes=ALL\n"
    )
    assert slurm_conf.node_names(text, "slurm.conf") == ("n01", "n02", "n03", "m1", "m2")


def test_leaves_may_be_implied_and_hollow() -> None:
    switches = [SwitchLine("core", 1, ("a", "b")), SwitchLine("c", 2)]
    tree = check_tree("x", switches, [NodesLine(("n1", "n2"), 3, ("a", "d"))], implied=True, hollow=True)
    assert tree.parents == {"core": None, "c": None, "a": "core", "b": "core", "d": None}
    with pytest.raises(TopologyError, match="x:1: switch core is above 'a'"):
        check_tree("x", switches, [], hollow=True)
    with pytest.raises(TopologyError, match="x:2: switch c has neither"):
        check_tree("x", switches, [], implied=True)


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a[1]", "a\x00", "a" * 256, "a\u202eb"])
def test_names_that_no_list_can_hold_are_refused(name: str) -> None:
    with pytest.raises(TopologyError, match=r"^x:7: a name has 1 to 255 printable characters"):
        check_tree("x", [], [NodesLine((name,), 7)])
    with pytest.raises(TopologyError, match=r"^x:7: a name has 1 to 255 printable characters"):
        check_tree("x", [SwitchLine(name, 7)], [])


@pytest.mark.parametrize("ring", [False, True])
def test_a_chain_of_a_million_is_refused_soon(ring: bool) -> None:
    links = [SwitchLine(f"s{k}", k + 1, (f"s{k + 1}",)) for k in range(200_000)]
    last = SwitchLine("s200000", 200_001, ("s0",) if ring else ())
    begin = time.process_time()
    with pytest.raises(TopologyError, match="a cycle" if ring else "at most 32 tiers deep"):
        check_tree("x", [*links, last], [NodesLine(("n",), 1, ("s200000",))] if not ring else [])
    assert time.process_time() - begin < 30  # some seconds at worst; a search in each search takes hours


def test_all_faults_of_a_file_are_told_and_none_that_follow_from_others() -> None:
    text = (
        "SwitchName=leaf1 Nodes=n[01-04\n"  # an unclosed range: that leaf1 is missing follows
        "SwitchName=leaf2 Nodes=n[05-08] LinkSpeed=fast\n"
        "SwitchName=leaf3 Nodes=n[09-12]\n"
        "SwitchName=leaf4 Nodes=n[12-13]\n"
        "SwitchName=spine Switches=leaf[1-4]\n"
        "SwitchName=other Switches=leaf3\n"
    )
    with pytest.raises(TopologyError) as caught:
        read_text(text, "t.conf")
    assert [re.match(r"t.conf:(\d)", one)[1] for one in caught.value.faults] == ["1", "2", "4", "6"]  # type: ignore[index]
    assert "\n" not in str(caught.value) and str(caught.value).startswith("t.conf:1: ")
    assert "beside 3 more" in str(caught.value)


def test_many_faults_are_told_up_to_a_bound() -> None:
    with pytest.raises(TopologyError) as caught:
        read_text("".join(f"SwitchName=s{k} Nodez=n{k}\n" for k in range(1000)), "t.conf")
    assert len(caught.value.faults) == 21 and caught.value.faults[-1] == "t.conf: 980 more"
