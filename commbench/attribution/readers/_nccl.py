"""What all files of NCCL and RCCL have in common: how they count, and communicators in place of ranks of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from commbench.attribution.readers._values import MOST_RANKS

# ncclDataType_t, nccl.h
DTYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3", "float8_e5m2"),
)


@dataclass(frozen=True)
class Membership:
    """A process's place in one communicator; raises ValueError where there can be no such place."""

    communicator: str  # the same on all its ranks; "" where nothing is
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks <= MOST_RANKS:
            raise ValueError


def counts(operation: str, count: int, ranks: int) -> tuple[int | None, int | None]:
    """Return how much a rank gives and gets, where NCCL counts `count` (nccl.h: a rank's share where there are shares).

    In rooted operations the root differs, and nobody is taken to be it.
    """
    return {
        "allgather": (count, count * ranks),
        "reducescatter": (count * ranks, count),
        "alltoall": (count * ranks, count * ranks),
        "send": (count, None),
        "recv": (None, count),
        "gather": (count, None),
        "scatter": (None, count),
    }.get(operation, (count, count))


def place(memberships: Collection[Membership]) -> Membership | None:
    """Return the place in the largest communicator, which is taken to span the job; None where that is not one."""
    size = max((one.ranks for one in memberships), default=0)
    largest = [one for one in memberships if one.ranks == size]
    return largest[0] if len({one.rank for one in largest}) == 1 else None


def groups(processes: Iterable[Collection[Membership]]) -> Mapping[str, tuple[int, ...]]:
    """Return who is in each communicator, by ranks of the job: where it spans the job, or all its ranks are here."""
    spanning: dict[str, tuple[int, ...]] = {}
    found: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    for memberships in processes:
        world = place(memberships)
        for one in memberships if world else ():
            if world is not None and one.ranks == world.ranks:
                spanning.setdefault(one.communicator, tuple(range(one.ranks)))
            elif world is not None:
                sizes[one.communicator] = one.ranks
                found.setdefault(one.communicator, {})[one.rank] = world.rank
    whole = {
        name: tuple(ranks[rank] for rank in sorted(ranks))
        for name, ranks in found.items()
        if name and len(set(ranks.values())) == sizes[name]
    }
    return {**whole, **spanning}
