"""What is written as topology.conf, given to a real slurmctld: what `scontrol show topology` says of it is the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from commbench.topology.cluster import Block, Cluster, Switch
from commbench.topology.reading import read_text
from commbench.topology.writers import slurm_conf

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, ("slurmctld", "scontrol"))),
        reason="no Slurm: install Debian's slurm-wlm and slurm-wlm-basic-plugins",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="a slurmctld of one's own, as SlurmUser=root, needs root"),
]

# Closed to this machine, and without daemons on the nodes: nothing can be run on it.
CONF = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldAddr=127.0.0.1
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
TopologyPlugin=topology/tree
MailProg=/bin/true
MpiDefault=none
StateSaveLocation={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
PartitionName=main Nodes=ALL Default=YES
"""


@contextmanager
def controller(folder: Path, topology: str, nodes: list[str]) -> Iterator[Mapping[str, str]]:
    """A slurmctld with this topology, and the environment to ask it in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    declared = "".join(f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=1\n" for name in nodes)
    (folder / "slurm.conf").write_text(CONF.format(port=port, folder=folder) + declared)
    (folder / "topology.conf").write_text(topology)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (
        open(folder / "out", "w") as out,
        subprocess.Popen(["slurmctld", "-D", "-c"], env=environment, stdout=out, stderr=out) as process,
    ):
        try:
            yield environment
        finally:
            process.kill()


def shown(folder: Path, environment: Mapping[str, str]) -> str:
    done = None
    for _ in range(100):
        done = subprocess.run(["scontrol", "show", "topology"], env=environment, capture_output=True, text=True)
        if done.returncode == 0 and "SwitchName" in done.stdout:
            return done.stdout
        time.sleep(0.1)
    raise AssertionError((done, (folder / "slurmctld.log").read_text()[-2000:]))


CLUSTERS = {
    "three tiers": Cluster(
        switches=(
            *(Switch("core"), Switch("pod1", "core"), Switch("pod2", "core")),
            *(Switch(f"leaf{pod}{leaf}", f"pod{pod}") for pod in (1, 2) for leaf in (1, 2, 3)),
        ),
        blocks=tuple(
            Block(tuple(f"n{pod}{leaf}{host:02}" for host in range(1, 13)), (f"leaf{pod}{leaf}",))
            for pod in (1, 2)
            for leaf in (1, 2, 3)
        ),
    ),
    "names of many kinds": Cluster(
        switches=(
            Switch("tier1"),
            Switch("big/L01:U1", "tier1"),
            Switch("0x12.a_b", "tier1"),
            Switch("s" * 63, "tier1"),
        ),
        blocks=(
            Block(("zz1", "zz2-ib", "zz3-ib"), ("big/L01:U1",)),
            Block(("zz-2.x_y", "p08", "p09", "p10", "p011", "9"), ("0x12.a_b",)),
            Block(("host-e09d73030034612c", "host-e09d730300346128", "r1n1", "r1n2", "r2n1", "r2n2"), ("s" * 63,)),
        ),
    ),
    "rails": Cluster(
        switches=(Switch("spine"), *(Switch(f"g{group}r{rail}", "spine") for group in (1, 2) for rail in range(8))),
        blocks=tuple(
            Block((f"a{group}", f"b{group}"), tuple(f"g{group}r{rail}" for rail in range(8))) for group in (1, 2)
        ),
    ),
}


@pytest.mark.parametrize("kind", CLUSTERS)
def test_slurm_shows_the_tree_that_was_written(tmp_path: Path, kind: str) -> None:
    text = slurm_conf.write(CLUSTERS[kind])
    written = read_text(text, "topology.conf").cluster
    nodes = [node for block in written.blocks for node in block.nodes]
    with controller(tmp_path, text, nodes) as environment:
        again = read_text(shown(tmp_path, environment), "shown")
    assert (again.format, again.findings) == ("slurm_show", ())
    assert placed(again.cluster) == placed(written)


def placed(cluster: Cluster) -> tuple[Mapping[str, str | None], Mapping[str, tuple[str, ...]]]:
    """The parent of each switch, and the leaf of each node."""
    return (
        {one.name: one.parent for one in cluster.switches},
        {node: block.leaves for block in cluster.blocks for node in block.nodes},
    )
