"""The order in use, as a file says it: a placement.json, or a host file of Slurm, Open MPI or MPICH."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from commbench.errors import UsageError
from commbench.recommend.plan import Seat, from_json, text_of
from commbench.topology.cluster import Cluster

_SLOTS = re.compile(r"(?P<host>[^\s:=]+)(?::(?P<colon>\d{1,6})|\s+(?:max[-_])?slots\s*=\s*(?P<slots>\d{1,6}).*)?")


def read(path: str | Path, cluster: Cluster, ranks: int) -> tuple[Seat, ...]:
    """Return the seat of each rank: UsageError where the file contradicts itself, the cluster, or the number of ranks.

    A line is a host, of one rank, or with `slots=N` or `:N` of so many; one line for each host of as many as there are
    devices is understood too. Ranks of a host have its devices in their order.
    """
    text = text_of(path)
    seats = from_json(text, str(path)).seats if text.lstrip().startswith("{") else _hosts(text, path, cluster, ranks)
    places = cluster.arrays.places
    if unknown := sorted({seat.host for seat in seats} - places.keys()):
        raise UsageError(
            f"{path}: the order in use names {unknown[0]}, which is no node of {cluster.name or 'the cluster'}"
        )
    if len(seats) != ranks:
        raise UsageError(
            f"{path}: the order in use has {len(seats)} ranks, and {ranks} are to be placed: give all of them"
        )
    for (host, device), count in Counter((seat.host, seat.device) for seat in seats).items():
        most = _devices(cluster, places[host])
        if device >= most:
            raise UsageError(f"{path}: the order in use puts more ranks on {host} than its {most} devices")
        if count > 1:
            raise UsageError(
                f"{path}: the order in use puts {count} ranks on device {device} of {host}: each has its own"
            )
    return seats


def _devices(cluster: Cluster, node: int) -> int:
    number = int(cluster.arrays.node_class[node])
    return len(cluster.classes[number].devices) if number >= 0 else 0


def _hosts(text: str, path: str | Path, cluster: Cluster, ranks: int) -> tuple[Seat, ...]:
    hosts: list[str] = []
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1)]
    told = False
    for number, line in lines:
        if not line:
            continue
        found = _SLOTS.fullmatch(line)
        if not found:
            raise UsageError(
                f"{path}:{number}: a line of a host file is a host, `HOST slots=N` or `HOST:N`, not {line[:60]!r}"
            )
        count = found["colon"] or found["slots"]
        told |= count is not None
        hosts += [found["host"]] * int(count or 1)
    if not told and len(hosts) < ranks and len(set(hosts)) == len(hosts):  # one line for each host
        places = cluster.arrays.places
        hosts = [host for host in hosts for _ in range(_devices(cluster, places[host]) if host in places else 1)]
    seats, used = [], Counter[str]()
    for host in hosts:
        seats.append(Seat(host, used[host]))
        used[host] += 1
    return tuple(seats)
