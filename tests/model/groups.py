"""Groups of ranks to prove schedules on: how many ranks each node has."""

from __future__ import annotations

from dataclasses import replace

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


def cyclic(nodes: int, each: int, channels: int = 1, **more: bool | int) -> Group:
    """A group whose ranks go round the nodes, in channels that pass through them in any order."""
    rank = np.arange(nodes * each)
    draw = np.random.default_rng(nodes * 100 + each)
    orders = tuple(draw.permutation(rank) for _ in range(channels))
    return Group(rank % nodes, rank // nodes, rank % nodes, orders, **more)  # type: ignore[arg-type]


def spanning(some: Group, nodes: int) -> Group:
    """The same group with NVLink domains that span so many nodes."""
    return replace(some, domain=some.node // nodes)


SHAPES = [(1,), (2,), (3,), (4,), (5,), (8,), (1, 1), (2, 2), (3, 3), (4, 4), (1, 1, 1), (2, 2, 2), (1,) * 7, (2,) * 8]
SHAPES += [(1, 2), (3, 1, 2), (4, 4, 4, 4), (8, 8, 8), (1,) * 16, (2,) * 5, (5, 3)]
