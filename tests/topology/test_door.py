"""`commbench.topology` from its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.topology.__main__ import main, writers
from commbench.topology.reading import read, read_text
from commbench.topology.shipped import find
from tests.mpi.launch import MPIRUN, library, run

ROOT = Path(__file__).resolve().parents[2]
DOUBTFUL = "version: 1\nswitches: {s: }\nblocks:\n- {switch: s, nodes: a}\n- {nodes: b}\n"
BROKEN = "version: 1\nswitches:\n  a: {switches: [b]}\n  b: {switches: [a]}\n"


def door(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def file(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_shipped_cluster_is_shown_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = door(capsys, "show", "two-core")
    assert (code, err) == (0, "")
    assert out.startswith("two-core: 1 node, 2 devices")


def test_a_byte_order_mark_is_no_part_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, "\ufeffSwitchName=s Nodes=n[1-2]\n")
    code, out, _ = door(capsys, "check", path)
    assert (code, out) == (0, f"fine: {path}: slurm_conf, 2 nodes, 1 switch, 0 node classes\n")


def test_doubts_are_said_beside_what_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, DOUBTFUL)
    code, out, err = door(capsys, "show", path)
    assert code == 0
    assert out.startswith("cluster: 2 nodes, 1 switch\n")
    assert err.startswith(f"# doubt: {path}:5: 1 nodes are on no switch: b")


def test_json_has_all_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = door(capsys, "show", "--json", "h100-nvlink", "two-core")
    assert code == 0
    first, second = json.loads(out)["topologies"]
    (cluster,) = first["clusters"]
    assert (cluster["nodes"], cluster["devices"], len(cluster["switches"])) == (32, 256, 9)
    assert len(cluster["classes"][0]["links"]) == 33
    assert (first["format"], first["findings"]) == ("commbench_yaml", [])
    assert second["clusters"][0]["name"] == "two-core"


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = door(capsys, "show", "two-core", "--picture", tmp_path / "it.png")
    assert (code, err) == (0, f"# drawn to {tmp_path / 'it.png'}\n")
    assert "two-core" in out
    assert (tmp_path / "it.png").exists()
    code, _, err = door(capsys, "show", "two-core", "l40s-pcie", "--picture", "it.png")
    assert code == 2
    assert "2 files are given" in err


def test_what_is_fine_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = door(capsys, "check", "--strict", "l40s-pcie")
    assert (code, err) == (0, "")
    assert out == f"fine: {find('l40s-pcie')}: commbench_yaml, 16 nodes, 5 switches, 1 node class\n"


def test_doubts_fail_a_strict_check_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, DOUBTFUL)
    code, out, _ = door(capsys, "check", path)
    assert code == 0
    assert out.splitlines()[0].startswith(f"1 doubt: {path}")
    assert "nodes on no switch" in out
    assert door(capsys, "check", "--strict", path)[0] == 1


def test_a_refused_file_fails_a_check_that_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, BROKEN)
    code, out, _ = door(capsys, "check", path, "two-core", "nobody/has.it")
    assert code == 2
    lines = out.splitlines()
    assert lines[0].startswith(f"refused: {path}:3: switches are a tree")
    assert lines[1].startswith("fine: ")
    assert lines[2].startswith("refused: a topology is a file")
    code, out, _ = door(capsys, "check", "--json", path)
    assert code == 2
    assert "a cycle" in json.loads(out)["files"][0]["error"]


def test_every_writer_is_a_format_to_convert_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = read(find("l40s-pcie")).cluster
    for name in writers():
        out = tmp_path / name
        code, shown, err = door(capsys, "convert", "l40s-pcie", "--to", name, "--out", out)
        assert (code, shown, err) == (0, "", f"# written to {out}\n")
        after = read(out)
        assert after.format == name
        assert after.cluster.arrays.nodes == before.arrays.nodes
        assert {one.name: one.parent for one in after.cluster.switches} == {
            one.name: one.parent for one in before.switches
        }
    assert {"commbench_yaml", "slurm_conf", "slurm_yaml"} <= set(writers())


def test_nodes_of_slurm_conf_are_held_against_topology_conf(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slurm, topology = tmp_path / "slurm.conf", tmp_path / "topology.conf"
    slurm.write_text("ClusterName=c\nNodeName=n[01-06] CPUs=2\n")
    topology.write_text("SwitchName=s1 Nodes=n[01-04],zz1\n")
    code, out, _ = door(capsys, "check", topology, "--slurm-conf", slurm)
    first, unknown, bare = out.splitlines()
    assert (code, first) == (0, f"2 doubts: {topology}: slurm_conf, 5 nodes, 1 switch, 0 node classes")
    assert unknown.startswith(f"  doubt: {topology}:1: 1 nodes are not of this cluster: zz1 (unknown node)")
    assert bare.startswith(f"  doubt: {topology}: 2 nodes are on no switch: n05, n06")
    assert door(capsys, "check", "two-core", "--slurm-conf", slurm)[0] == 2
    assert "has no line with NodeName=" in door(capsys, "check", topology, "--slurm-conf", topology)[2]


def test_a_format_goes_to_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = door(capsys, "convert", "l40s-pcie", "--to", "commbench_yaml")
    assert (code, err) == (0, "")
    assert read_text(out, "it").cluster == read(find("l40s-pcie")).cluster
    code, out, _ = door(capsys, "convert", "l40s-pcie", "--to", "slurm_conf", "--kind", "tree")
    assert (code, out.splitlines()[1].split()[1]) == (0, "Nodes=n[01-04]")
    code, out, err = door(capsys, "convert", "l40s-pcie", "--to", "slurm_conf", "--kind", "block")
    assert (code, out) == (2, "") and "n01 shares none: write it as tree" in err


def test_nodes_are_put_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = []
    for node in ("n1", "n2"):
        path = tmp_path / f"{node}.yaml"
        path.write_text(f"version: 1\nclasses: {{a: {{devices: 2}}}}\nblocks: [{{nodes: {node}, class: a}}]\n")
        names.append(path)
    code, out, _ = door(capsys, "convert", *names, "--to", "commbench_yaml")
    assert code == 0
    assert read_text(out, "it").cluster.arrays.nodes == ("n1", "n2")
    assert len(read_text(out, "it").cluster.classes) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "required: show|check|convert|discover"),
        (("shov", "x"), "invalid choice"),
        (("show",), "required: FILE"),
        (("show", "h100"), "did you mean h100-nvlink"),
        (("show", "/dev/null/x.yaml"), "is not there"),
        (("convert", "two-core", "--to", "slurm"), "invalid choice: 'slurm'"),
        (("show", "l40s-pcie", "--picture", ""), "a picture's name ends with"),
        (("convert", "l40s-pcie", "--to", "commbench_yaml", "--kind", "tree"), "--kind is for Slurm's"),
        (("convert", "l40s-pcie", "--to", "commbench_yaml", "--out", "/"), "and / is none"),
        (("convert", "l40s-pcie", "--to", "commbench_yaml", "--out", "/no/where"), "cannot write /no/where"),
        (("discover", "--outt", "x"), "unrecognized"),
    ],
)
def test_bad_usage_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str) -> None:
    code, out, err = door(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("commbench topology: error: ")
    assert why in err
    assert len(err.splitlines()) == 1


def test_help_has_examples_and_the_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = door(capsys, "--help")
    assert code == 0
    assert "python -m commbench.topology show h100-nvlink" in out
    assert "a100-mi250x, h100-nvlink" in out
    assert door(capsys, "discover", "--help")[0] == 0


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "commbench.topology", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_this_machine_is_discovered_and_can_be_read(tmp_path: Path) -> None:
    done = command(tmp_path, "discover", "--out", "here.yaml")
    assert (done.returncode, done.stdout) == (0, "")
    assert "# written to here.yaml" in done.stderr
    assert "# 1 node, " in done.stderr and "switches are not seen from a node: add them" in done.stderr
    reading = read(tmp_path / "here.yaml")
    assert reading.cluster.nodes == 1
    assert reading.cluster.devices >= 1


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_ranks_of_one_node_discover_it_once(tmp_path: Path) -> None:
    done = run([str(MPIRUN), "-n", "2", sys.executable, "-m", "commbench.topology", "discover"], cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert read_text(done.stdout, "it").cluster.nodes == 1


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "topology.conf"
    for _ in range(2):  # the same again is nothing new
        assert door(capsys, "convert", "l40s-pcie", "--to", "slurm_conf", "--out", str(out))[0] == 0
    out.write_text("precious")
    code, _, err = door(capsys, "convert", "l40s-pcie", "--to", "slurm_conf", "--out", str(out))
    assert code == 2 and "is there with other content" in err
    assert out.read_text() == "precious"
