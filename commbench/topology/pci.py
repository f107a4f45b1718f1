"""The PCI tree of a machine, drawn together to what matters: switches with several ways down, and the slots' rates.

Linux and hwloc list every port of every switch as a bridge. A port with one thing behind it is nothing but a piece of
the way, so that a switch is one hub, and root ports are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commbench.topology.draft import Draft
from commbench.topology.node import BRIDGE, PCIE, Hub


@dataclass(eq=False)
class Slot:
    """A PCI device or bridge: the rate of its link upwards, what the node has in it, and what is behind it."""

    busid: str
    gbps: float | None = None
    parts: list[str] = field(default_factory=list)  # ids of GPUs and NICs
    behind: list[Slot] = field(default_factory=list)


def hang(slot: Slot, parent: str, draft: Draft, numa: int | None, gbps: float | None = None) -> None:
    """Add the links of `slot` and all behind it, below the hub `parent`; `gbps` is of ports already passed.

    The functions of one card hang on the same hub, each with the rate of the slot that they share.
    """
    useful = [one for one in slot.behind if _any(one)]
    rates = [rate for rate in (slot.gbps, gbps) if rate is not None]
    narrow = min(rates, default=None)
    for part in slot.parts:
        draft.link(part, parent, PCIE, narrow)
    if slot.busid and len({one.busid.rpartition(".")[0] for one in useful}) > 1:  # a host bridge has no address
        parent, hub = draft.hub(Hub(slot.busid, BRIDGE, numa)), parent
        draft.link(parent, hub, PCIE, narrow)
        narrow = None
    for one in useful:
        hang(one, parent, draft, numa, narrow)


def _any(slot: Slot) -> bool:
    return bool(slot.parts) or any(_any(one) for one in slot.behind)
