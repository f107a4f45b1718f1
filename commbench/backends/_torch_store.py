"""Where the ranks of a world meet for a process group of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from commbench.backends._network import route
from commbench.errors import UsageError

if TYPE_CHECKING:
    from commbench.backends.world import World

_INTERFACE = "GLOO_SOCKET_IFNAME"


@contextmanager
def store(world: World) -> Iterator[tuple[Any, str]]:
    """Give a store of torch's on rank 0, its port chosen by the system, and the interface by which it is reached.

    A Gloo group that the body makes takes that interface, unless GLOO_SOCKET_IFNAME names another. Collective.
    """
    from torch import distributed

    address, interface = route(world)
    chosen = os.environ.get(_INTERFACE)
    interface = chosen or interface
    if nameless := world.first_text("" if interface else str(world.rank)):
        raise UsageError(f"the interface by which rank {nameless} reaches the others has no name: set {_INTERFACE}")
    os.environ[_INTERFACE] = interface
    try:
        leads = world.rank == 0
        found = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False) if leads else None
        port = world.broadcast(found.port if found else None)
        if found is None:
            found = distributed.TCPStore(address, port, is_master=False, wait_for_workers=False)
        yield found, interface
    finally:
        if chosen is None:  # another group may take another way
            del os.environ[_INTERFACE]
