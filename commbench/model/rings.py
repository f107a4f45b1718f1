"""The orders in which rings pass through the devices of a node: by links of their own where there are some.

Devices on a switch or behind the host have one order, since all ways are the same. In a mesh each ring takes links that
no other ring takes in that direction, as RCCL's do.
"""

from __future__ import annotations

from collections.abc import Sequence

from commbench.topology.node import FABRIC, NodeClass

_TRIES = 20_000  # steps of a search for one ring: a mesh of 16 devices takes far fewer


def rings(node: NodeClass, devices: Sequence[int]) -> list[list[int]]:
    """Return orders of `devices`, the places of a node's; one at least."""
    if node.switch is not None or len(devices) < 3:
        return [list(devices)]
    free = _free(node, devices)
    found: list[list[int]] = []
    while (ring := _search(free, devices)) is not None:
        found.append(ring)
        for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
            free[here, there] -= 1
    return found or [list(devices)]


def _free(node: NodeClass, devices: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return how many cables of the fabric lead from one device directly to another."""
    places = {node.devices[place].id: place for place in devices}
    free: dict[tuple[int, int], int] = {}
    for link in node.links:
        if link.kind in FABRIC and link.a in places and link.b in places:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                pair = places[here], places[there]
                free[pair] = free.get(pair, 0) + link.count
    return free


def _search(free: dict[tuple[int, int], int], devices: Sequence[int]) -> list[int] | None:
    """Return a ring through all devices over free links, None where none was found."""
    left = _TRIES

    def extend(ring: list[int]) -> list[int] | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        if len(ring) == len(devices):
            return ring if free.get((ring[-1], ring[0]), 0) > 0 else None
        ways = [device for device in devices if device not in ring and free.get((ring[-1], device), 0) > 0]
        # First where the fewest ways lead on: a device that is passed by may not be reached again.
        ways.sort(key=lambda device: sum(free.get((device, other), 0) > 0 for other in devices if other not in ring))
        for device in ways:
            if (found := extend([*ring, device])) is not None:
                return found
        return None

    return extend([devices[0]])
