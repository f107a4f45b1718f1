"""What a cost depends on beside topology and algorithm: how a library orders ranks, and what it can choose from."""

from __future__ import annotations

from dataclasses import dataclass

from commbench.errors import unknown_name


@dataclass(frozen=True)
class Library:
    """The habits of a library. `by_node`: it passes through nodes one after another, whatever the ranks' numbers, by
    one channel a rail, and sends by the receiver's rail where nodes relay (NCCL, RCCL); else it takes ranks as they are
    numbered, in one channel, and each sends by its own NIC (MPI)."""

    name: str
    by_node: bool
    algorithms: tuple[str, ...]  # what `auto` chooses from, of the schedules there are


_RCCL = ("ring", "tree", "scattered")  # all-to-all: sends and receives in a group, all at once
_MPI = (
    *("ring", "recursive_doubling", "rabenseifner", "bruck", "binomial", "scatter_allgather", "pairwise"),
    *("recursive_halving", "scattered", "linear"),
)
_NCCL = (*_RCCL, "nvls", "nvls_tree")
LIBRARIES = {
    one.name: one for one in (Library("nccl", True, _NCCL), Library("rccl", True, _RCCL), Library("mpi", False, _MPI))
}
_OF_VENDOR = {"nvidia": "nccl", "amd": "rccl"}


def find(name: str) -> Library:
    """Return the library called `name`; raise UsageError with the nearest names where there is none."""
    if name not in LIBRARIES:
        raise unknown_name("library", name, LIBRARIES)
    return LIBRARIES[name]


def choices(library: Library, vendors: set[str]) -> tuple[str, ...]:
    """Return what `auto` chooses from on devices of these vendors: where there are several, what spans them."""
    return library.algorithms if len(vendors) < 2 else ("hierarchical",)


def of_vendors(vendors: set[str]) -> Library:
    """Return the library of devices of these vendors: the vendor's own, MPI where there are several."""
    (vendor,) = vendors if len(vendors) == 1 else ("",)
    return LIBRARIES[_OF_VENDOR.get(vendor, "mpi")]
