"""The cluster as the model and the recommender see it: blocks of alike nodes on switches in tiers.

Facts are few, since alike nodes share a class and a block: 100,000 GPUs are some hundred blocks. What works on every
node takes `Cluster.arrays`. A fabric of many spines is drawn together to one switch a tier, with the sum of the cables
as its capacity; the cables themselves stay for a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commbench.topology.node import COMPUTE, DECLARED, NodeClass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Switch:
    """A switch, and its uplink to its parent: `gbps` of all `cables` together, per direction; `us` one way."""

    name: str
    parent: str | None = None
    gbps: float | None = None
    us: float | None = None
    cables: int | None = None
    source: str = DECLARED  # of the uplink's figures
    reduces: bool = False  # adds up what passes through (SHARP)
    annotations: Mapping[str, Any] = field(default_factory=dict)  # of others, kept and not understood


@dataclass(frozen=True)
class Block:
    """Nodes that hang on the same leaves: one leaf for all NICs, or one a rail; none where nobody said."""

    nodes: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    node_class: str = ""
    domain: str = ""  # of NVLink over several nodes
    name: str = ""  # of a block of Slurm
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cable:
    """A cable between two switches as it was found, for a picture."""

    a: str
    b: str
    gbps: float | None = None
    count: int = 1


@dataclass(frozen=True)
class Arrays:
    """The nodes of a cluster, numbered block by block, and its switches."""

    nodes: tuple[str, ...]
    block: NDArray[np.int32]  # (nodes,) the place of a node's block
    node_class: NDArray[np.int32]  # (nodes,) the place of its class, -1: none
    leaf: NDArray[np.int32]  # (nodes, rails) the place of the switch of each rail, -1: none
    domain: NDArray[np.int32]  # (nodes,) a number for each NVLink domain; where none is named a node is its own
    parent: NDArray[np.int32]  # (switches,) the place of the parent, -1: none
    tier: NDArray[np.int32]  # (switches,) 0: has nodes or no children; else one above its highest child

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The places of the nodes by their names."""
        return {name: place for place, name in enumerate(self.nodes)}


@dataclass(frozen=True)
class Cluster:
    """A cluster. `step_us` is what a message costs in software, whatever way it takes."""

    name: str = ""
    classes: tuple[NodeClass, ...] = ()
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    step_us: float | None = None
    step_source: str = DECLARED
    block_sizes: tuple[int, ...] = ()  # of Slurm's topology/block
    cables: tuple[Cable, ...] = ()

    @cached_property
    def by_class(self) -> Mapping[str, NodeClass]:
        """The classes by their names."""
        return {one.name: one for one in self.classes}

    @cached_property
    def by_switch(self) -> Mapping[str, Switch]:
        """The switches by their names."""
        return {one.name: one for one in self.switches}

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(len(block.nodes) for block in self.blocks)

    @property
    def devices(self) -> int:
        """How many devices there are in nodes whose class is known."""
        return sum(
            len(block.nodes) * len(self.by_class[block.node_class].devices) for block in self.blocks if block.node_class
        )

    def from_nodes(self, leaf: str) -> float | None:
        """Return the Gb/s of all compute NICs that are plugged into a leaf; None where one is not known."""
        total = 0.0
        for block in self.blocks:
            if leaf not in block.leaves:
                continue
            if not block.node_class:
                return None
            for nic in self.by_class[block.node_class].nics:
                place = nic.rail if len(block.leaves) > 1 else 0
                if nic.role == COMPUTE and block.leaves[place : place + 1] == (leaf,):
                    if nic.gbps is None:
                        return None
                    total += nic.gbps * len(block.nodes)
        return total

    @cached_property
    def arrays(self) -> Arrays:
        """All nodes and switches as arrays."""
        import numpy as np

        names = [name for block in self.blocks for name in block.nodes]
        sizes = np.array([len(block.nodes) for block in self.blocks], dtype=np.int64)
        block = np.repeat(np.arange(len(self.blocks), dtype=np.int32), sizes)
        classes = {one.name: place for place, one in enumerate(self.classes)}
        places = {one.name: place for place, one in enumerate(self.switches)}
        of_block = np.array([classes.get(one.node_class, -1) for one in self.blocks], dtype=np.int32)
        rails = max((max(len(one.leaves), self._rails(one)) for one in self.blocks), default=1)
        leaf = np.full((len(self.blocks), max(1, rails)), -1, dtype=np.int32)
        for row, one in enumerate(self.blocks):
            leaves = [places[name] for name in one.leaves]
            leaf[row, :] = leaves[0] if len(leaves) == 1 else [*leaves, *[-1] * (leaf.shape[1] - len(leaves))]
        domain = np.arange(len(names), dtype=np.int32)
        named: dict[str, int] = {}
        begin = 0
        for one in self.blocks:
            if one.domain:
                domain[begin : begin + len(one.nodes)] = named.setdefault(one.domain, begin)
            begin += len(one.nodes)
        parent = np.array([places[one.parent] if one.parent else -1 for one in self.switches], dtype=np.int32)
        return Arrays(tuple(names), block, of_block[block], leaf[block], domain, parent, _tiers(parent))

    def _rails(self, block: Block) -> int:
        return self.by_class[block.node_class].rails if block.node_class else 0


def _tiers(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return how far each switch is above the lowest below it: 0 for leaves."""
    import numpy as np

    tier = np.zeros(len(parent), dtype=np.int32)
    for place in range(len(parent)):
        height, here = 0, int(parent[place])
        while here >= 0 and height < len(parent):
            height += 1
            tier[here] = max(tier[here], height)
            here = int(parent[here])
    return tier
