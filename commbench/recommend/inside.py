"""Inside a node: which device a local rank has, which NIC and cores are near to it.

NICs are assigned by the links between (scipy.optimize.linear_sum_assignment): each device gets one, no NIC more than
its share, over the fewest and fastest links altogether.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from commbench.topology.node import CPU, NodeClass
from commbench.units import format_ranges

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_TRIED = 8  # devices whose every order is tried


def nics(node: NodeClass, devices: list[int]) -> list[str]:
    """Return the id of the NIC for each of these devices, the places of a node's; empty where none is reached."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    places = node.compute_nics
    if not places or not devices:
        return [""] * len(devices)
    far = np.full((len(devices), len(places)), np.inf)
    for row, device in enumerate(devices):
        for column, place in enumerate(places):
            way = node.route(node.devices[device].id, node.nics[place].id)
            if way is not None:
                slowest = min((node.links[hop.link].gbps or np.inf for hop in way), default=np.inf)
                far[row, column] = len(way) + 1 / (1 + slowest)
    reached = np.isfinite(far).all(axis=1)
    if not reached.any():
        return [""] * len(devices)
    share = -(-int(reached.sum()) // len(places))  # each NIC stands there so many times
    cost = np.tile(np.where(np.isfinite(far), far, 1e6)[reached], (1, share))
    rows, columns = linear_sum_assignment(cost)
    found = [""] * len(devices)
    of = np.flatnonzero(reached)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        found[int(of[row])] = node.nics[places[column % len(places)]].id
    return found


def cpus(node: NodeClass, devices: list[int], cores: int) -> list[str]:
    """Return ranges of cores for each device: an equal part of those of its NUMA node; empty where that is unknown.

    Cores are taken to be numbered NUMA node by NUMA node, as Linux numbers the first hardware threads of all.
    """
    numas = sorted({hub.numa for hub in node.hubs if hub.kind == CPU and hub.numa is not None})
    each = cores // max(1, len(numas))
    found = []
    beside: dict[int | None, int] = {}
    for device in devices:
        numa = _numa(node, device)
        if numa not in numas or each < 1:
            found.append("")
            continue
        company = sum(_numa(node, other) == numa for other in devices)
        part = max(1, each // company)
        first = numas.index(numa) * each + beside.get(numa, 0) % each
        beside[numa] = beside.get(numa, 0) + part
        found.append(format_ranges(range(first, first + part)))
    return found


def _numa(node: NodeClass, device: int) -> int | None:
    """Return the NUMA node of a device: its own, or that of the nearest CPU."""
    it = node.devices[device]
    if it.numa is not None:
        return it.numa
    ways = [
        (len(way), hub.numa)
        for hub in node.hubs
        if hub.kind == CPU and hub.numa is not None and (way := node.route(it.id, hub.id)) is not None
    ]
    return min(ways)[1] if ways else None


def device_order(node: NodeClass, devices: list[int], traffic: Floats) -> list[int]:
    """Return the device for each local rank, so that what they send one another takes the shortest ways.

    `traffic`, (ranks, ranks), is in bytes; a byte costs the sum over the links of its way of what each needs for it.
    All orders are tried for up to eight devices; where ways are all alike, or devices more, they stay as they are.
    """
    import numpy as np

    n = len(devices)
    far = np.zeros((n, n))
    for row, one in enumerate(devices):
        for column, other in enumerate(devices):
            way = node.route(node.devices[one].id, node.devices[other].id) if one != other else ()
            far[row, column] = sum(1 / (node.links[hop.link].gbps or np.inf) for hop in way or ())
    apart = far[~np.eye(n, dtype=bool)]
    if n < 3 or n > MOST_TRIED or not traffic.any() or apart.max() <= apart.min() * (1 + 1e-9):
        return devices
    orders = np.array(list(itertools.permutations(range(n))))
    here, there = np.nonzero(traffic)
    cost = np.zeros(len(orders))
    for one, other in zip(here.tolist(), there.tolist(), strict=True):
        cost += traffic[one, other] * far[orders[:, one], orders[:, other]]
    best = int(cost.argmin())
    return [devices[place] for place in orders[best if cost[best] < cost[0] * (1 - 1e-9) else 0]]
