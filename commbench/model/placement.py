"""Which node and device each rank sits on, and the group that schedules see of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.errors import UsageError
from commbench.model.library import Library
from commbench.model.rings import rings
from commbench.model.schedule import Group
from commbench.topology.cluster import Cluster
from commbench.topology.node import NodeClass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


SHARING = 256  # ranks on one core, at most


@dataclass(frozen=True)
class Placement:
    """Ranks on a cluster: the place of each one's node among the cluster's, and of its device in the node; (n,)."""

    cluster: Cluster
    node: Ints
    device: Ints

    @property
    def n(self) -> int:
        """How many ranks there are."""
        return len(self.node)

    def classes(self) -> list[tuple[NodeClass, Ints]]:
        """Return the node classes in use, each with its ranks; raise UsageError for a node whose class nobody said."""
        import numpy as np

        of_rank = self.cluster.arrays.node_class[self.node]
        if (of_rank < 0).any():
            name = self.cluster.arrays.nodes[int(self.node[int(np.argmin(of_rank))])]
            raise UsageError(
                f"a cost needs to know what is in a node, and node {name} has no class: add `classes:` and name one in "
                "its block"
            )
        return [(self.cluster.classes[one], np.flatnonzero(of_rank == one)) for one in np.unique(of_rank)]

    def vendors(self) -> set[str]:
        """Return the vendors of the ranks' devices, as far as they are said."""
        every = {
            node.devices[place].vendor for node, ranks in self.classes() for place in set(self.device[ranks].tolist())
        }
        return every - {""}

    def numbers(self) -> Ints:
        """Return a number for each rank's device, alike for all ranks of the cluster that are on the same one."""
        return self.node * max((len(one.devices) for one in self.cluster.classes), default=1) + self.device

    @property
    def shares_devices(self) -> bool:
        """Whether several ranks are on one device."""
        import numpy as np

        return len(np.unique(self.numbers())) < self.n


def fill(cluster: Cluster, ranks: int, per_node: int | None = None) -> Placement:
    """Return `ranks` ranks on the nodes in their order, each node's devices in theirs, `per_node` on each node.

    By default a node has as many as it has devices. More ranks than devices share them on CPUs alone, up to SHARING.
    """
    import numpy as np

    arrays = cluster.arrays
    sizes = np.array([len(one.devices) for one in cluster.classes] + [0], dtype=np.int64)[arrays.node_class]
    cores = np.array([all(one.vendor == "cpu" for one in node.devices) for node in cluster.classes] + [False])
    shared = cores[arrays.node_class]
    if per_node is not None:
        room = np.where(shared, sizes * SHARING, sizes)
        most = np.minimum(room, min(per_node, int(room.max(initial=0))))
    else:
        each = min(SHARING, -(-ranks // max(1, int(sizes.sum())))) if shared.all() else 1
        most = sizes * max(1, each)
    if ranks < 1 or ranks > most.sum():
        here = f"{cluster.name or 'this cluster'} has {int(most.sum())} in {len(most)} nodes"
        rule = f"a core has at most {SHARING} ranks" if shared.any() else "each rank needs a device of its own"
        raise UsageError(f"{rule}: {here}, so --ranks is 1 to that, not {ranks}")
    node = np.repeat(np.arange(len(most)), most)[:ranks]
    begin = np.cumsum(most) - most
    place = np.arange(ranks) - begin[node]
    return Placement(cluster, node, place % np.maximum(1, sizes)[node])


def group(placement: Placement, library: Library) -> Group:
    """Return what schedules see of a placement under the habits of a library."""
    import numpy as np

    arrays, classes = placement.cluster.arrays, placement.classes()
    rail = np.zeros(placement.n, dtype=np.int64)
    for node_class, ranks in classes:
        nics = [0 if nic is None else node_class.nics[nic].rail for nic in node_class.nearest_nics]
        rail[ranks] = np.array(nics, dtype=np.int64)[placement.device[ranks]]
    node = _renumbered(placement.node)
    domain = _renumbered(arrays.domain[placement.node])
    reduces = all(one.switch is not None and one.switch.reduces for one, _ in classes)
    switches = placement.cluster.switches
    return Group(
        node,
        rail,
        domain,
        _orders(placement, library, node, rail, classes),
        reduces,
        bool(switches) and all(one.reduces for one in switches),
        len(placement.vendors()) or 1,
    )


def _orders(
    placement: Placement, library: Library, node: Ints, rail: Ints, classes: list[tuple[NodeClass, Ints]]
) -> tuple[Ints, ...]:
    import numpy as np

    if not library.by_node and len(placement.vendors()) < 2:
        return (np.arange(placement.n),)
    # Of several vendors each node's rings are its own library's, and MPI is between nodes alone: see hierarchical.py.
    several = int(node.max()) > 0
    inside = {one.name: rings(one, sorted(set(placement.device[ranks].tolist()))) for one, ranks in classes}
    rails, most = int(rail.max()) + 1 if several else 1, max(len(found) for found in inside.values())
    channels = rails * -(-most // rails)  # as many on each rail
    orders = []
    for channel in range(channels):
        place = np.zeros(placement.n, dtype=np.int64)
        for one, ranks in classes:
            found = inside[one.name]
            ring = found[channel % len(found)]
            first = _begin(one, ring, channel) if several else 0
            turned = ring[first:] + ring[:first]
            table = np.zeros(len(one.devices), dtype=np.int64)
            table[turned] = np.arange(len(turned))
            place[ranks] = table[placement.device[ranks]]
        orders.append(np.lexsort((place, node)))
    return tuple(orders)


def _begin(node_class: NodeClass, ring: list[int], channel: int) -> int:
    """Return the place in a ring of the first device whose NIC is on the channel's rail, or of as many as there are."""
    rails = [None if nic is None else node_class.nics[nic].rail for nic in node_class.nearest_nics]
    wanted = channel % max(1, node_class.rails)
    return next((place for place, device in enumerate(ring) if rails[device] == wanted), 0)


def _renumbered(values: NDArray[np.integer]) -> Ints:
    """Return numbers from 0 on in order of first appearance."""
    import numpy as np

    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]
