"""A real Slurm of many nodes on this machine, for tests: Debian's slurm-wlm, in a folder and on ports of its own.

    with slurm(nodes=16, topology=text) as cluster:
        cluster.run("srun", "-N", "2", "hostname")

All nodes are processes here, and share its name and cores: this shows who is placed where, and no performance. There
is no authentication, so that everything listens for this machine alone to use, for as long as the tests take.

As a script it is the keeper of such a cluster: it waits until its standard input ends, as it does when the tests were
killed, and then ends every process that carries the cluster's mark, and removes the folder.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from commbench.topology.hosts import fold

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
MARK = "COMMBENCH_TESTS_SLURM"
CPUS = 8  # that each node claims

_CONF = """\
ClusterName=commbench
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmdPort={controller}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
SchedulerParameters=sched_interval=1,bf_interval=1,bf_resolution=1
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
NodeName={names} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}] CPUs={cpus} SocketsPerBoard=1 \
CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=1000 Gres=gpu:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def trouble() -> str:
    """Return why there can be no Slurm here, empty if there can."""
    if missing := [name for name in COMMANDS if not shutil.which(name)]:
        return f"no {', '.join(missing)}: install Debian's slurm-wlm and slurm-wlm-basic-plugins"
    return "" if os.geteuid() == 0 else "its daemons need root to run jobs"


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs."""

    folder: Path
    names: tuple[str, ...]
    environment: Mapping[str, str]

    def run(
        self, *command: str, timeout: float = 60, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that speaks to this cluster, and wait for its end."""
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def out(
        self, *command: str, timeout: float = 60, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Return what a command prints; it must end well."""
        done = self.run(*command, timeout=timeout, cwd=cwd, env=env)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a daemon that stays in the foreground, and writes to a file of that name."""
        with open(self.folder / "log" / log, "wb") as file:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def log(self, name: str = "slurmctld") -> str:
        return (self.folder / "log" / name).read_text(errors="replace")


@contextmanager
def files(nodes: int, topology: str, gpus: int = 8) -> Iterator[Slurm]:
    """Give the files of a cluster, of which nothing runs yet; at the end all that was started on them is killed."""
    mark, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="commbench-slurm-"))
    for name in ("state", "spool", "run", "log"):
        (folder / name).mkdir()
    width = len(str(nodes))
    names = tuple(f"n{place:0{width}}" for place in range(1, nodes + 1))
    first = _free_ports(nodes + 1)
    settings = {
        "folder": folder,
        "controller": first,
        "ports": f"{first + 1}-{first + nodes}",
        "names": fold(names),
        "cpus": CPUS,
        "gpus": gpus,
    }
    (folder / "slurm.conf").write_text(_CONF.format(**settings))
    (folder / "topology.conf").write_text(topology)
    for place in range(gpus):  # character devices, as Slurm wants them: each is a /dev/null
        os.mknod(folder / f"gpu{place}", 0o600 | 0o020000, os.makedev(1, 3))
    gres = f"AutoDetect=off\nNodeName={fold(names)} Name=gpu File={folder}/gpu[0-{gpus - 1}] Cores=0-{CPUS - 1}\n"
    (folder / "gres.conf").write_text(gres)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
    environment = {**clean, "SLURM_CONF": str(folder / "slurm.conf"), "PYTHONPATH": str(ROOT), MARK: mark}
    keeper = subprocess.Popen(
        [sys.executable, __file__, mark, str(folder)], stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield Slurm(folder, names, environment)
    finally:
        keeper.communicate()


@contextmanager
def slurm(nodes: int, topology: str, gpus: int = 8) -> Iterator[Slurm]:
    """Give a cluster whose nodes are idle."""
    with files(nodes, topology, gpus) as cluster, ExitStack() as stack:
        daemons = {
            "slurmctld": ["slurmctld", "-D", "-c"],
            **{name: ["slurmd", "-D", "-N", name] for name in cluster.names},
        }
        running = {name: cluster.start(*command, log=name) for name, command in daemons.items()}
        for daemon in running.values():
            stack.callback(daemon.wait)  # the keeper kills it
            stack.callback(daemon.kill)
        deadline = time.monotonic() + 60
        while cluster.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() != str(nodes):
            dead = [name for name, daemon in running.items() if daemon.poll() is not None]
            assert not dead, (dead, cluster.log(dead[0])[-2000:])
            assert time.monotonic() < deadline, cluster.log()[-2000:]
            time.sleep(0.1)
        yield cluster


def _free_ports(count: int) -> int:
    """Return the first of as many ports in a row that nobody has, below those that the system deals out."""
    for first in random.SystemRandom().sample(range(10_000, 32_000), 200):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no free ports")


def processes(mark: str) -> list[int]:
    """Return the processes that run on files of this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):  # it may have ended
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def main() -> None:
    mark, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    for _ in range(100):
        if not (found := processes(mark)):
            break
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
