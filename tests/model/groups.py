"""Groups of ranks to prove schedules on: how many ranks each node has."""

from __future__ import annotations

import numpy as np

from commbench.model.schedule import Group


def group(*sizes: int, channels: int = 1, by_node: bool = True, **more: bool | int) -> Group:
    """A group whose node k has `sizes[k]` ranks, rank after rank; in channel c each node's order is turned by c."""
    node = np.repeat(np.arange(len(sizes)), sizes)
    rail = np.concatenate([np.arange(size) for size in sizes])
    first = np.cumsum(sizes) - np.array(sizes)
    orders = tuple(
        np.concatenate([begin + np.roll(np.arange(size), -channel) for begin, size in zip(first, sizes, strict=True)])
        if by_node
        else np.arange(len(node))
        for channel in range(channels)
    )
    return Group(node, rail, node, orders, **more)  # type: ignore[arg-type]


SHAPES = [(1,), (2,), (3,), (4,), (5,), (8,), (1, 1), (2, 2), (3, 3), (4, 4), (1, 1, 1), (2, 2, 2), (1,) * 7, (2,) * 8]
SHAPES += [(1, 2), (3, 1, 2), (4, 4, 4, 4), (8, 8, 8), (1,) * 16, (2,) * 5, (5, 3)]
