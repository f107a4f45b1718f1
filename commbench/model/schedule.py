"""What an algorithm does, as pure steps: who sends which blocks to whom, and whether they are added up there.

A schedule is a function of the group alone, in `commbench/model/schedules/NAME.py`:

    COLLECTIVES = ("allreduce", "allgather")
    def schedule(collective, group, channel=0): ...

which returns a Schedule, or raises NotApplicable with the reason; `make` calls it by name. A channel carries an equal
part of the `size` that nccl-tests counts (the larger of what a rank sends and receives). That part is `Schedule.blocks`
equal blocks, so that a schedule holds for every size. Endpoints 0 to n-1 are the ranks of the group; n + d is the
switch of its domain d, and n + domains the network's, where those add up. The root of rooted collectives is rank 0.

Which block is whose, where n ranks have a share each (all-gather, reduce-scatter): `blocks` is a multiple of n, and the
blocks of rank r are the r-th n-th of them. In an all-to-all block s * n + d is what rank s has for rank d, and
`blocks` is n.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# Of one repetition of a step: which transfer (its place in the step) carries which block, as two arrays of one shape.
Moved = Callable[[int], "tuple[Ints, Ints]"]


class NotApplicable(Exception):
    """The algorithm does not exist for this collective or group; the text says why."""


@dataclass(frozen=True)
class Group:
    """Where the ranks of a group sit, as far as a schedule asks; ranks are numbered 0 to n-1 within the group."""

    node: Ints  # (n,) the node of each rank, numbered in order of first appearance
    rail: Ints  # (n,) the rail of the NIC that each rank uses
    domain: Ints  # (n,) of NVLink, numbered likewise: the node's, where it does not span several
    # A permutation of the ranks for each channel, in which a ring, a chain or a tree passes through them: by nodes
    # where the library orders ranks so (NCCL), else as they are numbered (MPI).
    orders: tuple[Ints, ...]
    domain_reduces: bool = False  # the switch of every domain adds up (NVLink SHARP)
    network_reduces: bool = False  # the network's switches add up (SHARP)
    vendors: int = 1  # kinds of devices that have no library in common

    @property
    def n(self) -> int:
        """How many ranks there are."""
        return len(self.node)

    @property
    def channels(self) -> int:
        """How many channels share the buffer, each with an equal part."""
        return len(self.orders)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return int(self.node.max()) + 1

    @property
    def domains(self) -> int:
        """How many NVLink domains there are."""
        return int(self.domain.max()) + 1


@dataclass(frozen=True)
class Step:
    """Transfers that begin together; all of them end before the next step begins, unless the schedule is pipelined.

    `source`, `target` and `count` have the shape (transfers,); a transfer carries `count` blocks. `reduce`: the target
    adds them to what it has; else they take the place of it. The step is made `times` times, between the same
    endpoints, each time with the blocks that `moved(repetition)` names. Only the proof asks for these.
    """

    source: Ints
    target: Ints
    count: Ints
    moved: Moved
    reduce: bool = False
    times: int = 1


@dataclass(frozen=True)
class Schedule:
    """The steps of one algorithm on one group.

    Of a `pipelined` one the buffer is cut into chunks that follow one another through the steps, all of them at work at
    the same time.
    """

    blocks: int  # that `size` is cut into
    steps: tuple[Step, ...]
    pipelined: bool = False


def names() -> list[str]:
    """Return the algorithms that there are schedules of, by their canonical names."""
    files = (entry.name for entry in os.scandir(os.path.join(os.path.dirname(__file__), "schedules")))
    return sorted(file[:-3] for file in files if file.endswith(".py") and not file.startswith("_"))


def collectives(name: str) -> tuple[str, ...]:
    """Return the collectives that the schedule of an algorithm is known for; `name` is among `names()`."""
    from importlib import import_module

    known: tuple[str, ...] = import_module(f"commbench.model.schedules.{name}").COLLECTIVES
    return known


def make(name: str, collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule of an algorithm, called by its canonical name, for one channel.

    Raises NotApplicable with the reason where there is none. What holds for all algorithms is looked at here, so that a
    schedule may rely on it: two ranks or more, and one vendor unless the file says `SPANS_VENDORS = True`.
    """
    from importlib import import_module

    if name not in names():
        raise NotApplicable(f"the model has no schedule of {name}; it has {', '.join(names())}")
    module = import_module(f"commbench.model.schedules.{name}")
    if collective not in module.COLLECTIVES:
        raise NotApplicable(f"{name} has no {collective}: it has {', '.join(module.COLLECTIVES)}")
    if group.n < 2:
        raise NotApplicable(f"{name} takes two ranks, there is {group.n}")
    if group.vendors > 1 and not getattr(module, "SPANS_VENDORS", False):
        raise NotApplicable(f"{name} is of one communicator, and no NCCL or RCCL communicator spans vendors")
    made: Schedule = module.schedule(collective, group, channel)
    return made


def places(group: Group, channel: int = 0) -> Ints:
    """Return the ranks of each domain in the order of the channel, (domains, ranks each): a column is a place.

    Raises NotApplicable where domains are of unequal size: their places have no partners.
    """
    import numpy as np

    sizes = np.bincount(group.domain)
    if sizes.min() != sizes.max():
        raise NotApplicable(f"domains of {sizes.min()} to {sizes.max()} ranks: all must have equally many")
    order = group.orders[channel]
    return order[np.argsort(group.domain[order], kind="stable")].reshape(group.domains, -1)


def whole(source: Ints, target: Ints, blocks: int = 1, reduce: bool = False) -> Step:
    """Return a step whose transfers carry all blocks."""
    import numpy as np

    return listed(source, target, np.broadcast_to(np.arange(blocks), (len(source), blocks)), reduce)


def listed(source: Ints, target: Ints, blocks: Ints, reduce: bool = False) -> Step:
    """Return a step whose transfers carry equally many blocks: `blocks` has the shape (transfers, blocks each)."""
    import numpy as np

    transfers, each = blocks.shape

    def moved(repetition: int) -> tuple[Ints, Ints]:
        return np.repeat(np.arange(transfers), each), blocks.ravel()

    return Step(source, target, np.full(transfers, each), moved, reduce)


def ranges(
    source: Ints, target: Ints, first: Ints, count: Ints, *, blocks: int, shift: int = 0, **more: bool | int
) -> Step:
    """Return a step whose transfers carry `count` neighbouring blocks from `first` on, modulo `blocks`.

    In repetition t they begin `t * shift` further on.
    """
    import numpy as np

    def moved(repetition: int) -> tuple[Ints, Ints]:
        transfer = np.repeat(np.arange(len(source)), count)
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return transfer, (np.repeat(first, count) + repetition * shift + within) % blocks

    return Step(source, target, count, moved, **more)  # type: ignore[arg-type]
