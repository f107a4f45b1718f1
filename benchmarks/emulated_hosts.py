"""An emulated cluster on one Linux machine: real MPICH over TCP, through links whose rates are limited.

A network namespace is a host, a bridge is a leaf switch, and veth pairs join hosts to leaves and leaves to each other:
two leaves directly, more through a spine. `tc tbf` limits each link, both ways. Hosts are called hA0, hA1, ..., hB0, by
leaf. Each is a node of its own to MPI, with its own host name and its own /dev/shm. The switches are in a namespace
too, and mpirun starts there, so that nothing is added to this machine's own network, no address can clash with one of
its own, and several clusters can be up at once.

All hosts share this machine's cores: orders and ratios of times mean something, the times themselves do not.

examples, as root:
  # which is better over a slow trunk? (COMMAND runs on one rank per host)
  python benchmarks/emulated_hosts.py -- python -m commbench.allreduce -b 1M -e 1M --algo ring,tree

  # the same with neighbours on different leaves
  python benchmarks/emulated_hosts.py --hosts hA0,hB0,hA1,hB1 -- python -m commbench.allreduce -b 1M -e 1M

  # eight hosts on four leaves: one host throttled, and one leaf with a slow trunk
  python benchmarks/emulated_hosts.py --leaves 4 --slow hC1=400mbit --slow leafB=100mbit -- python bench.py
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
MPIRUN = Path(sys.executable).parent / "mpirun"

# Without these the libraries pick what they like best, such as shared memory or the loopback interface.
ENVIRONMENT: Mapping[str, str] = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}

_NAMESPACES = Path("/var/run/netns")
_PREFIX = "commbench"
_NAME = re.compile(rf"({_PREFIX}-(\d+)-(\d+)-[0-9a-f]+)(-\w+)?")  # its owner: process, and when that started
_HOST = re.compile(r"[a-z][a-z0-9]{0,13}", re.ASCII | re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")
_SUBNET = "10.77"
_SWITCHES = f"{_SUBNET}.255.254"  # where processes on the hosts call mpirun back
_MOST_LEAVES, _MOST_HOSTS = 26, 250

# What mpirun calls instead of ssh: options, host, words of a shell command.
_LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "%s-$host" unshare --uts --mount sh -c \\
    'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec sh -c "$1"' "$host" "$*"
"""


class EmulationError(Exception):
    """Why there is no cluster, said to the person in one line."""


@dataclass(frozen=True)
class Cluster:
    """What is up."""

    name: str  # the switches' namespace; a host's is called name-host
    leaves: tuple[tuple[str, ...], ...]  # the hosts of each leaf
    rates: Mapping[str, int]  # bit/s of each host (hA0), and of each leaf's way to the others (leafA)
    launcher: Path

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for leaf in self.leaves for host in leaf)


def trouble() -> str:
    """Return why this machine, or this environment, cannot have such a cluster; empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if missing := [tool for tool in ("ip", "tc", "unshare", "mount", "hostname") if not shutil.which(tool)]:
        return f"no {' and no '.join(missing)} in PATH (Debian packages iproute2, util-linux, mount, hostname)"
    # In namespaces that end with the shell. Containers may forbid this to their root, and kernels lack a module.
    rehearsal = (
        "mount -t tmpfs tmpfs /dev/shm && ip link add dev leaf type bridge && ip link add dev up type veth && "
        "tc qdisc add dev up root tbf rate 1mbit burst 64kb latency 50ms"
    )
    done = subprocess.run(["unshare", "-num", "sh", "-c", rehearsal], capture_output=True, text=True)
    if done.returncode:
        return f"no permission to make network namespaces, or no kernel support: {_last_line(done.stderr)}"
    if not MPIRUN.exists():
        return f"no mpirun beside this interpreter ({MPIRUN}): pip install 'commbench[mpich]'"
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout
    return "" if "HYDRA" in version else f"{MPIRUN} is not MPICH's: pip install 'commbench[mpich]'"


@contextmanager
def cluster(
    leaves: int = 2,
    hosts_per_leaf: int = 2,
    *,
    host_rate: str = "1600mbit",
    trunk_rate: str = "400mbit",
    slow: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> Iterator[Cluster]:
    """Build a cluster, and take it down with all that runs on it; `slow` gives a host or a leaf's trunk its own rate.

    `names` are what hosts are called, leaf after leaf, where that is not hA0, hA1, ..., hB0: letters and digits.
    Takes down first what crashed processes left behind. Raises EmulationError where it cannot be built.
    """
    if not (1 <= leaves <= _MOST_LEAVES and 1 <= hosts_per_leaf <= _MOST_HOSTS):
        raise EmulationError(f"there can be 1 to {_MOST_LEAVES} leaves, with 1 to {_MOST_HOSTS} hosts on each")
    letters = [chr(ord("A") + i) for i in range(leaves)]
    called = iter(names or [f"h{letter}{i}" for letter in letters for i in range(hosts_per_leaf)])
    if names and (len(set(names)) != leaves * hosts_per_leaf or not all(map(_HOST.fullmatch, names))):
        raise EmulationError(f"{leaves * hosts_per_leaf} hosts have as many names, of letters and digits: {names}")
    hosts = tuple(tuple(next(called) for _ in range(hosts_per_leaf)) for _ in letters)
    rates = {f"leaf{letter}": _bits(trunk_rate) for letter in letters}
    rates |= {host: _bits(host_rate) for leaf in hosts for host in leaf}
    if unknown := [name for name in slow or {} if name not in rates]:
        raise EmulationError(f"there is no {' and no '.join(unknown)}, only {', '.join(rates)}")
    rates |= {name: _bits(rate) for name, rate in (slow or {}).items()}
    if leaves == 2:  # two names of one trunk
        rates["leafA"] = rates["leafB"] = min(rates["leafA"], rates["leafB"])

    _sweep()
    name = f"{_PREFIX}-{os.getpid()}-{_started(os.getpid())}-{os.urandom(4).hex()}"
    built = Cluster(name, hosts, rates, _folder(name) / "launch")
    try:
        _build(built)
        yield built
    finally:
        _demolish(name)


def mpirun(
    built: Cluster, command: Sequence[str], hosts: Sequence[str] | None = None, *, ranks_per_host: int = 1
) -> list[str]:
    """Return the command that runs `command` on `hosts` (default: all), ranks in their order; see `ENVIRONMENT`."""
    chosen = built.hosts if hosts is None else tuple(hosts)
    if unknown := [host for host in chosen if host not in built.hosts]:
        raise EmulationError(f"there is no {' and no '.join(unknown)}, only {', '.join(built.hosts)}")
    if len(set(chosen)) < len(chosen):  # mpirun would make two nodes of it
        raise EmulationError(f"a host is named twice in {','.join(chosen)}: give it more ranks instead")
    if ranks_per_host < 1:
        raise EmulationError(f"each host has at least 1 rank, not {ranks_per_host}")
    return [
        *("ip", "netns", "exec", built.name, str(MPIRUN)),
        *("-launcher", "ssh", "-launcher-exec", str(built.launcher), "-localhost", _SWITCHES),
        *("-hosts", ",".join(f"{host}:{ranks_per_host}" for host in chosen)),
        *("-n", str(ranks_per_host * len(chosen)), *command),
    ]


def on(built: Cluster, host: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on one host, without MPI."""
    return [str(built.launcher), host, shlex.join(command)]


def processes(built: Cluster, host: str | None = None) -> list[int]:
    """Return what runs on a host, or on the whole cluster."""
    return _inside([f"{built.name}-{host}"] if host else _namespaces(built.name))


def _build(built: Cluster) -> None:
    built.launcher.parent.mkdir(mode=0o700)
    built.launcher.write_text(_LAUNCHER % built.name, encoding="utf-8")
    built.launcher.chmod(0o700)
    _batch("ip", "", [f"netns add {name}" for name in (built.name, *(f"{built.name}-{host}" for host in built.hosts))])

    leaves = [f"leaf{chr(ord('A') + i)}" for i in range(len(built.leaves))]
    links = [f"link add dev {bridge} type bridge" for bridge in leaves]
    limits: list[str] = []
    if len(leaves) == 2:
        trunks = [("upA", "leafA", "upB", "leafB")]
    elif len(leaves) > 2:
        links.append("link add dev spine type bridge")
        trunks = [(f"up{leaf[4:]}", leaf, f"down{leaf[4:]}", "spine") for leaf in leaves]
    else:
        trunks = []
    for near, leaf, far, other in trunks:
        links += [f"link add dev {near} type veth peer name {far}"]
        links += [f"link set {near} master {leaf}", f"link set {far} master {other}"]
        limits += [_limit(near, built.rates[leaf]), _limit(far, built.rates[leaf])]
    for leaf, names in zip(leaves, built.leaves, strict=True):
        for host in names:
            links += [f"link add dev {host} type veth peer name eth0 netns {built.name}-{host}"]
            links += [f"link set {host} master {leaf}"]
            limits += [_limit(host, built.rates[host])]
    ups = [line.split()[3] for line in links if line.startswith("link add")] + [far for _, _, far, _ in trunks]
    links += [f"link set {device} up" for device in ("lo", *ups)]
    _batch("ip", built.name, [*links, f"address add {_SWITCHES}/16 dev leafA"])
    _batch("tc", built.name, limits)
    for number, names in enumerate(built.leaves):
        for place, host in enumerate(names, start=1):
            address = f"address add {_SUBNET}.{number}.{place}/16 dev eth0"
            _batch("ip", f"{built.name}-{host}", ["link set lo up", address, "link set eth0 up"])
            _batch("tc", f"{built.name}-{host}", [_limit("eth0", built.rates[host])])


def _limit(device: str, rate: int) -> str:
    # The burst, which passes at any rate, is a millisecond: enough for late timers, little for a measurement. Packets
    # wait rather than get lost: a lost one costs TCP 200 ms, far beyond what the rates explain.
    burst = max(1 << 16, rate // 8000)
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {32 << 20}"


def _bits(rate: str) -> int:
    match = _RATE.fullmatch(rate.lower())
    bits = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]] if match else 0
    if bits < 1e5:
        raise EmulationError(f"{rate!r} is no rate of a link: write 400mbit or 1.6gbit, and at least 100kbit")
    return int(bits)


def _batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Run the lines by one process of `ip` or `tc`."""
    if lines:
        command = [tool, *(["-n", namespace] if namespace else []), "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
        if done.returncode:
            failed = re.search(r"-:(\d+)", done.stderr)
            line = lines[int(failed[1]) - 1] if failed else lines[0]
            raise EmulationError(f"{tool} {line}: {done.stderr.strip().splitlines()[0] if done.stderr else 'failed'}")


def _sweep() -> None:
    """Take down the clusters whose processes are gone."""
    found = [*_namespaces(""), *(path.name for path in _folder("").glob(f"{_PREFIX}-*"))]
    for match in filter(None, map(_NAME.fullmatch, found)):
        if _started(int(match[2])) != int(match[3]):
            _demolish(match[1])


def _demolish(name: str) -> None:
    namespaces = _namespaces(name)
    for _ in range(100):
        left = _inside(namespaces)
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sleep(0.02)
    for namespace in namespaces:  # one by one, as another process may sweep too
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
    shutil.rmtree(_folder(name), ignore_errors=True)


def _namespaces(name: str) -> list[str]:
    """Return the namespaces of a cluster, or of all."""
    found = (_NAME.fullmatch(path.name) for path in _NAMESPACES.glob(f"{_PREFIX}-*"))
    return [match[0] for match in found if match and name in ("", match[1])]


def _inside(namespaces: Sequence[str]) -> list[int]:
    """Return the processes in any of the namespaces."""
    places = set()
    for name in namespaces:
        with suppress(OSError):
            places.add(os.stat(_NAMESPACES / name).st_ino)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it may have ended
            if os.stat(f"/proc/{pid}/ns/net").st_ino in places:
                found.append(int(pid))
    return found


def _started(pid: int) -> int:
    """Return when a process started, in ticks since boot; -1 where there is none: numbers of processes are reused."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def _folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / name


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed without a word"])[-1]


def tidy_when_terminated() -> None:
    """Let what ends this process, SIGTERM or a lost terminal, take the hosts down first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [OPTIONS] -- COMMAND...",
    )
    parser.add_argument("--leaves", type=int, default=2, metavar="N", help="leaf switches (default 2)")
    parser.add_argument("--hosts-per-leaf", type=int, default=2, metavar="N", help="hosts on each (default 2)")
    parser.add_argument(
        "--host-rate", default="1600mbit", metavar="RATE", help="of each host's link (default 1600mbit)"
    )
    parser.add_argument("--trunk-rate", default="400mbit", metavar="RATE", help="between leaves (default 400mbit)")
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        metavar="NAME=RATE",
        help="a host (hA1) or the trunk of a leaf (leafA) with a rate of its own; repeatable",
    )
    parser.add_argument("--hosts", metavar="LIST", help="where ranks go, in their order: hA0,hB0,... (default: all)")
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="N", help="(default 1)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what each rank runs")
    options = parser.parse_args()
    slow = dict(item.partition("=")[::2] for item in options.slow)
    environment = {**os.environ, **ENVIRONMENT}
    # So that `python` is this one, which has the MPI library of this mpirun, and finds commbench.
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", ROOT)):
        environment[name] = os.pathsep.join(filter(None, [str(first), environment.get(name)]))
    tidy_when_terminated()
    try:
        if reason := trouble():
            raise EmulationError(reason)
        with cluster(
            options.leaves,
            options.hosts_per_leaf,
            host_rate=options.host_rate,
            trunk_rate=options.trunk_rate,
            slow=slow,
        ) as built:
            hosts = options.hosts.split(",") if options.hosts else None
            command = mpirun(built, options.command, hosts, ranks_per_host=options.ranks_per_host)
            with subprocess.Popen(command, env=environment) as job:
                try:
                    code = job.wait()
                except KeyboardInterrupt:  # which mpirun got too, and ends its ranks
                    with suppress(subprocess.TimeoutExpired):
                        job.wait(5)
                    code = 130
                finally:
                    job.kill()
    except EmulationError as error:
        print(f"emulated_hosts: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
