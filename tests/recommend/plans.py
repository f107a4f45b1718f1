"""Plans to export."""

from __future__ import annotations

import random
from collections.abc import Sequence

from commbench.recommend.plan import Choice, Plan, Seat


def whole(names: Sequence[str], each: int = 8, vendor: str = "nvidia", cpus: Sequence[str] = ()) -> Plan:
    """Hosts in the order given; local rank i has device i."""
    seats = tuple(Seat(host, device, cpus=cpus[device] if cpus else "") for host in names for device in range(each))
    return Plan("test", seats, vendor=vendor)


def shuffled(names: Sequence[str], each: int = 8, seed: int = 0) -> Plan:
    """Ranks anywhere."""
    seats = [Seat(host, device) for host in names for device in range(each)]
    random.Random(seed).shuffle(seats)
    return Plan("test", tuple(seats), vendor="nvidia")


def choice(
    collective: str,
    algorithm: str,
    least: int = 0,
    below: int | None = None,
    protocol: str | None = "simple",
    channels: int | None = 8,
    ranks: int = 16,
    nodes: int = 2,
) -> Choice:
    return Choice(collective, ranks, nodes, least, below, algorithm, protocol, channels, source="measured")
