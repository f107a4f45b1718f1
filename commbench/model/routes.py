"""The links that transfers between ranks take: numbered, with a rate and a latency each, and the tier they belong to.

A link counts once per direction. Its tier is the kind of link in a class of nodes ("dgx nvlink"), the NICs of a class
("dgx nic"), or the uplinks of a tier of switches ("uplink 1"): what a fit has one figure for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from commbench.errors import UsageError
from commbench.model.library import Library
from commbench.model.placement import Placement
from commbench.topology.node import BYTES, CPU, FABRIC, Hop, NodeClass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


ADDING = "nvswitch"  # the tier of what NVSwitches take to add up


class Routes:
    """The links of the nodes that a placement uses, and of the switches above them, as a library takes them.

    `rate` is bytes per second, `latency` seconds, `tier` the place of the tier in `tiers`; each of shape (links,). What
    nobody said is NaN: a rate that is needed and unknown is an error, a latency counts as none.
    """

    def __init__(self, placement: Placement, library: Library) -> None:
        import numpy as np

        self.placement = placement
        cluster = placement.cluster
        arrays = cluster.arrays
        self._nodes, self._at = np.unique(placement.node, return_inverse=True)
        self._class = arrays.node_class[self._nodes]
        self._tables = {int(one): _Inside(cluster.classes[one], library.by_node) for one in np.unique(self._class)}
        inside = max(2 * len(table.node.links) for table in self._tables.values())
        rails = max(1, max(len(table.node.nics) for table in self._tables.values()))
        self._width = inside + 2 * rails + 1  # of a node: its links, its NICs' cables, out and in, what adding up takes
        self._nics, self._adding = inside, inside + 2 * rails
        count = len(self._nodes) * self._width
        self._up = count  # then of each switch the way up, and down
        total = count + 2 * len(cluster.switches)
        self.rate = np.full(total, np.nan)
        self.latency = np.full(total, np.nan)
        self.tier = np.zeros(total, dtype=np.int64)
        self.tiers: list[str] = []
        self._fill()

    @property
    def links(self) -> int:
        """How many links there are, each direction counted."""
        return len(self.rate)

    @property
    def instant(self) -> list[str]:
        """The tiers of links whose bandwidth is known and whose latency is not."""
        import numpy as np

        silent = np.isnan(self.latency) & ~np.isnan(self.rate)
        return [name for place, name in enumerate(self.tiers) if silent[self.tier == place].any()]

    def _fill(self) -> None:
        import numpy as np

        rate = self.rate[: self._up].reshape(-1, self._width)
        latency = self.latency[: self._up].reshape(-1, self._width)
        tier = self.tier[: self._up].reshape(-1, self._width)
        for place, table in self._tables.items():
            rows = np.flatnonzero(self._class == place)
            node = table.node
            for number, link in enumerate(node.links):
                for column in (2 * number, 2 * number + 1):
                    rate[rows, column] = _number(link.gbps) * BYTES
                    latency[rows, column] = _number(link.us) * 1e-6
                    tier[rows, column] = self._tier(f"{node.name} {link.kind}")
            for number, nic in enumerate(node.nics):
                for column in (self._nics + 2 * number, self._nics + 2 * number + 1):
                    rate[rows, column] = _number(nic.gbps) * BYTES
                    latency[rows, column] = _number(nic.us) * 1e-6 / 2  # one of a cable's two ends
                    tier[rows, column] = self._tier(f"{node.name} nic")
            if table.adds:
                assert node.switch is not None
                rate[rows, self._adding] = np.inf
                latency[rows, self._adding] = _number(node.switch.us) * 1e-6
                tier[rows, self._adding] = self._tier(f"{node.name} {ADDING}")
        heights = self.placement.cluster.arrays.tier
        for number, switch in enumerate(self.placement.cluster.switches):
            for column in (self._up + 2 * number, self._up + 2 * number + 1):
                self.rate[column] = _number(switch.gbps) * BYTES
                self.latency[column] = _number(switch.us) * 1e-6
                if switch.parent is not None:
                    self.tier[column] = self._tier(f"uplink {heights[number]}")

    def _tier(self, name: str) -> int:
        if name not in self.tiers:
            self.tiers.append(name)
        return self.tiers.index(name)

    def name(self, link: int) -> str:
        """Return a link as a person knows it."""
        cluster = self.placement.cluster
        if link >= self._up:
            number, down = divmod(link - self._up, 2)
            switch = cluster.switches[number]
            ends = (switch.name, switch.parent or "")
            return " -> ".join(reversed(ends) if down else ends)
        row, column = divmod(link, self._width)
        host = cluster.arrays.nodes[int(self._nodes[row])]
        node = self._tables[int(self._class[row])].node
        if column == self._adding:
            return f"{host} {ADDING}"
        if column >= self._nics:
            number, inward = divmod(column - self._nics, 2)
            return f"{host} {node.nics[number].id} {'in' if inward else 'out'}"
        number, backward = divmod(column, 2)
        found = node.links[number]
        return f"{host} {' -> '.join((found.b, found.a) if backward else (found.a, found.b))}"

    def paths(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return the links of each transfer, as pairs (transfer, link) in two arrays.

        Endpoints are ranks; n + d is the switch of NVLink domain d, n + domains that of the whole network.
        """
        import numpy as np

        n = self.placement.n
        pairs: list[tuple[Ints, Ints]] = []
        ranks = (source < n) & (target < n)
        self._between(np.flatnonzero(ranks), source[ranks], target[ranks], pairs)
        top = n + self._domains
        for ends, others, out in ((source, target, True), (target, source, False)):
            chosen = np.flatnonzero((others >= n) & (others < top) & (ends < n))
            self._to_switch(chosen, ends[chosen], pairs, out)
            if out:
                self._add_up(chosen, ends[chosen], pairs)
            chosen = np.flatnonzero((others == top) & (ends < n))
            self._to_top(chosen, ends[chosen], pairs, out)
        if not pairs:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return np.concatenate([one for one, _ in pairs]), np.concatenate([links for _, links in pairs])

    @cached_property
    def _domain(self) -> Ints:
        domain: Ints = self.placement.cluster.arrays.domain[self.placement.node].astype("int64")
        return domain

    @cached_property
    def _domains(self) -> int:
        import numpy as np

        return len(np.unique(self._domain))

    def _between(self, transfer: Ints, source: Ints, target: Ints, pairs: list[tuple[Ints, Ints]]) -> None:
        at, device = self._at, self.placement.device
        near = at[source] == at[target]
        joined = ~near & (self._domain[source] == self._domain[target])
        for place, table in self._tables.items():
            chosen = near & (self._class[at[source]] == place)
            hops = table.pair[device[source[chosen]], device[target[chosen]]]
            self._hops(transfer[chosen], at[source[chosen]], hops, pairs)
        self._to_switch(transfer[joined], source[joined], pairs, out=True)
        self._to_switch(transfer[joined], target[joined], pairs, out=False)
        far = ~near & ~joined
        if far.any():
            self._network(transfer[far], source[far], target[far], pairs)

    def _to_switch(self, transfer: Ints, ranks: Ints, pairs: list[tuple[Ints, Ints]], out: bool) -> None:
        """The way between ranks and the NVSwitch of their domain, or back."""
        for place, table in self._tables.items():
            chosen = self._class[self._at[ranks]] == place
            hops = table.switch[self.placement.device[ranks[chosen]]]
            self._hops(transfer[chosen], self._at[ranks[chosen]], hops if out else table.reverse(hops), pairs)

    def _add_up(self, transfer: Ints, ranks: Ints, pairs: list[tuple[Ints, Ints]]) -> None:
        """What an NVSwitch takes beside its links for what is sent to it: as a link without a limit."""
        for place, table in self._tables.items():
            if table.adds:
                chosen = self._class[self._at[ranks]] == place
                pairs.append((transfer[chosen], self._at[ranks[chosen]] * self._width + self._adding))

    def _to_cable(
        self,
        transfer: Ints,
        ranks: Ints,
        nics: Ints,
        staged: NDArray[np.bool_],
        pairs: list[tuple[Ints, Ints]],
        out: bool,
    ) -> None:
        """The way from ranks to their NICs and out of these, or back; where it is `staged`, by the host's memory."""
        for place, table in self._tables.items():
            for way, which in ((table.nic, ~staged), (table.staged, staged)):
                chosen = (self._class[self._at[ranks]] == place) & which
                if chosen.any():
                    hops = way[self.placement.device[ranks[chosen]], nics[chosen]]
                    self._hops(transfer[chosen], self._at[ranks[chosen]], hops if out else table.reverse(hops), pairs)
        pairs.append((transfer, self._at[ranks] * self._width + self._nics + 2 * nics + (0 if out else 1)))

    def _network(self, transfer: Ints, source: Ints, target: Ints, pairs: list[tuple[Ints, Ints]]) -> None:
        """The way over the network: a device to its NIC, the NIC's cable, switches up and down, and the same back."""
        import numpy as np

        nic_in = self._nic_of(target, None)
        rail_in = self._rail(target, nic_in)
        nic_out = self._nic_of(source, rail_in)
        staged = self._vendor[source] != self._vendor[target]  # no library of theirs: through the hosts' memory
        self._to_cable(transfer, source, nic_out, staged, pairs, out=True)
        self._to_cable(transfer, target, nic_in, staged, pairs, out=False)
        leaves = self.placement.cluster.arrays.leaf
        here = leaves[self.placement.node[source], self._rail(source, nic_out)].astype(np.int64)
        there = leaves[self.placement.node[target], rail_in].astype(np.int64)
        self._climb(transfer, here, there, source, target, pairs)

    def _climb(
        self, transfer: Ints, here: Ints, there: Ints, source: Ints, target: Ints, pairs: list[tuple[Ints, Ints]]
    ) -> None:
        import numpy as np

        arrays = self.placement.cluster.arrays
        self._deny_apart((here >= 0) != (there >= 0), source, target)
        known = here >= 0  # no switch said: the network in between is taken to be without limits
        transfer, here, there, source, target = (one[known] for one in (transfer, here, there, source, target))
        parent, tier = arrays.parent.astype(np.int64), arrays.tier
        while len(transfer):
            apart = here != there
            transfer, here, there, source, target = (one[apart] for one in (transfer, here, there, source, target))
            rises, falls = tier[here] <= tier[there], tier[there] <= tier[here]
            lost = (rises & (parent[here] < 0)) | (falls & (parent[there] < 0))
            self._deny_apart(lost, source, target)
            pairs.append((transfer[rises], self._up + 2 * here[rises]))
            pairs.append((transfer[falls], self._up + 2 * there[falls] + 1))
            here, there = np.where(rises, parent[here], here), np.where(falls, parent[there], there)

    def _deny_apart(self, lost: NDArray[np.bool_], source: Ints, target: Ints) -> None:
        """Raise UsageError where a transfer is lost on its way."""
        if not lost.any():
            return
        one = int(lost.argmax())
        a, b = (self.placement.cluster.arrays.nodes[int(self.placement.node[rank[one]])] for rank in (source, target))
        raise UsageError(f"no switch joins the nodes {a} and {b}: give their switches a common root")

    def _to_top(self, transfer: Ints, ranks: Ints, pairs: list[tuple[Ints, Ints]], out: bool) -> None:
        """The way between ranks and the highest switch, or back."""
        import numpy as np

        if not len(transfer):
            return
        nics = self._nic_of(ranks, None)
        self._to_cable(transfer, ranks, nics, np.zeros(len(ranks), dtype=bool), pairs, out)
        arrays = self.placement.cluster.arrays
        here = arrays.leaf[self.placement.node[ranks], self._rail(ranks, nics)].astype(np.int64)
        while len(transfer):
            higher = (here >= 0) & (arrays.parent[here] >= 0)
            transfer, here = transfer[higher], here[higher]
            pairs.append((transfer, self._up + 2 * here + (0 if out else 1)))
            here = arrays.parent[here].astype(np.int64)

    @cached_property
    def _vendor(self) -> Ints:
        import numpy as np

        found = np.zeros(self.placement.n, dtype=np.int64)
        names: dict[str, int] = {}
        for node, ranks in self.placement.classes():
            numbers = np.array([names.setdefault(device.vendor, len(names)) for device in node.devices])
            found[ranks] = numbers[self.placement.device[ranks]]
        return found

    def _nic_of(self, ranks: Ints, rail: Ints | None) -> Ints:
        """Return the NIC that each rank uses: the nearest, or, where nodes relay, the one on the receiver's rail."""
        import numpy as np

        found = np.zeros(len(ranks), dtype=np.int64)
        for place, table in self._tables.items():
            chosen = self._class[self._at[ranks]] == place
            own = table.own[self.placement.device[ranks[chosen]]]
            if (own < 0).any():
                raise UsageError(
                    f"a node of class {table.node.name} sends over the network, and has no NIC that all of its devices "
                    "reach: add `nics` to the class"
                )
            if rail is not None and table.relays:
                on_rail = table.on_rail[np.minimum(rail[chosen], len(table.on_rail) - 1)]
                own = np.where((on_rail >= 0) & (rail[chosen] < len(table.on_rail)), on_rail, own)
            found[chosen] = own
        return found

    def _rail(self, ranks: Ints, nics: Ints) -> Ints:
        import numpy as np

        found = np.zeros(len(ranks), dtype=np.int64)
        for place, table in self._tables.items():
            chosen = self._class[self._at[ranks]] == place
            found[chosen] = table.rail[nics[chosen]]
        return found

    def _hops(self, transfer: Ints, at: Ints, hops: Ints, pairs: list[tuple[Ints, Ints]]) -> None:
        """Add the links of a node's own that `hops` (transfers, longest way) names; -1 is none, -2 no way at all."""
        import numpy as np

        if (hops[:, :1] == -2).any():
            one = int(np.argmax(hops[:, 0] == -2))
            node = self._tables[int(self._class[at[one]])].node
            raise UsageError(f"the class {node.name} has devices with no way between them: add the missing `links`")
        there = hops >= 0
        pairs.append((np.repeat(transfer, there.sum(axis=1)), (at[:, None] * self._width + hops)[there]))


class _Inside:
    """The ways within one class of nodes, as tables of links by place of device and NIC; -1 fills up."""

    def __init__(self, node: NodeClass, may_relay: bool) -> None:
        import numpy as np

        self.node = node
        self.relays = node.relays and may_relay
        ids = [device.id for device in node.devices]
        nics = [nic.id for nic in node.nics]
        pairs = [[node.route(a, b) if a != b else self._through(a) for b in ids] for a in ids]
        self.pair = _table(pairs)
        hub = node.switch
        self.switch = _table([[node.route(a, hub.id) if hub else None] for a in ids])[:, 0]
        self.adds = hub is not None and hub.us is not None
        self.own = np.array([-1 if nic is None else nic for nic in node.nearest_nics], dtype=np.int64)
        self.rail = np.array([nic.rail for nic in node.nics] or [0], dtype=np.int64)
        self.on_rail = np.full(max(1, node.rails), -1, dtype=np.int64)
        for place in reversed(node.compute_nics):
            self.on_rail[node.nics[place].rail] = place
        self.nic = _table([[self._to_nic(a, place) for place in range(len(nics))] for a in range(len(ids))])
        self.staged = _table([[self._over_host(a, nic) for nic in nics] for a in ids])

    def _through(self, device: str) -> tuple[Hop, ...]:
        """The way between two ranks that share a device: out by its first link, and back."""
        first = next((place for place, link in enumerate(self.node.links) if device in (link.a, link.b)), None)
        if first is None:
            return ()
        out = self.node.links[first].a == device
        return Hop(first, out), Hop(first, not out)

    def _to_nic(self, device: int, nic: int) -> tuple[Hop, ...] | None:
        """The way to a NIC: where another device is nearest to it and nodes relay, over that one."""
        node = self.node
        start, end = node.devices[device].id, node.nics[nic].id
        near = [place for place, own in enumerate(node.nearest_nics) if own == nic]
        if self.relays and near and device not in near:
            over = node.route(start, node.devices[near[0]].id)
            last = node.route(node.devices[near[0]].id, end)
            if over is not None and last is not None and any(node.links[hop.link].kind in FABRIC for hop in over):
                return over + last
        return node.route(start, end)

    def _over_host(self, device: str, nic: str) -> tuple[Hop, ...] | None:
        """The way to a NIC by the memory of the nearest CPU; the direct one where no CPU was named."""
        node = self.node
        ways = [
            (first, last)
            for hub in node.hubs
            if hub.kind == CPU
            and (first := node.route(device, hub.id)) is not None
            and (last := node.route(hub.id, nic)) is not None
        ]
        if not ways:
            return node.route(device, nic)
        first, last = min(ways, key=lambda way: len(way[0]) + len(way[1]))
        return first + last

    @staticmethod
    def reverse(hops: Ints) -> Ints:
        """Return ways walked backwards: the same links in their other direction."""
        import numpy as np

        return np.where(hops >= 0, hops ^ 1, hops)


def _table(ways: Sequence[Sequence[tuple[Hop, ...] | None]]) -> Ints:
    """Return ways as an array (rows, columns, longest): 2 l for link l, + 1 for the way back; -1 after, -2 none."""
    import numpy as np

    longest = max((len(way) for row in ways for way in row if way is not None), default=0)
    found = np.full((len(ways), max((len(row) for row in ways), default=0), max(1, longest)), -1, dtype=np.int64)
    for i, row in enumerate(ways):
        for j, way in enumerate(row):
            if way is None:
                found[i, j, 0] = -2
            else:
                found[i, j, : len(way)] = [2 * hop.link + (not hop.forward) for hop in way]
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
