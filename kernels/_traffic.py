"""The traffic that a walk through memory makes, by address arithmetic: predicted before anything is measured.

Memory moves in sectors. Two counts bracket the truth: *unique* sectors of a whole launch are what moves if the caches
join all requests that want the same sector; sectors summed over *requests* (the lanes of one warp, one instruction) are
what moves if they join none. A sector written in part is read first, where the memory cannot mask bytes; a CPU reads
every line that it stores to (read for ownership), unless the store streams past the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.kernels._pattern import Place, Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Memory:
    """The granules of a device's memory, in bytes."""

    lanes: int  # that make a request together
    sector: int  # what is moved
    line: int  # what is looked up
    owns: bool = False  # stores read their line first


# CUDA C++ Programming Guide and Nsight Compute's glossary: 32 lanes, sectors of 32 B in lines of 128 B.
NVIDIA = Memory(32, 32, 128)
# CDNA: a wave of 64 lanes; requests of the fabric are of 64 B and lines of 128 B (rocprofiler-compute's documentation).
AMD = Memory(64, 64, 128)
# x86-64: lines of 64 B, and stores own theirs; a vector register of AVX-512 makes the request: 16 lanes of 4 B.
CPU = Memory(16, 64, 64, owns=True)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch: useful ones, and those moved as far as `unique` and as `requests` have it."""

    useful: int
    unique: int
    requests: int

    @property
    def least(self) -> float:
        """The share of useful bytes among the moved ones, where caches join nothing."""
        return self.useful / self.requests

    @property
    def most(self) -> float:
        """The same, where caches join all."""
        return self.useful / self.unique


def addresses(problem: Problem, place: Place) -> NDArray[np.int64]:
    """Return the byte address of each element of a launch in its arena, whose start is aligned to a page; (count,)."""
    import numpy as np

    index = problem.index
    places = np.arange(problem.count) if not place.indexed or index is None else index.astype(np.int64)
    return place.offset + place.pitch * places


def sectors(first: NDArray[np.int64], width: int, granule: int, lanes: int) -> tuple[int, int]:
    """Return how many granules a launch touches once, and how many its requests ask for together.

    `first` are the addresses of `width` bytes each in the order of lanes; `lanes` of them make a request.
    """
    import numpy as np

    low, high = first // granule, (first + width - 1) // granule
    both = np.stack([low, high], axis=1)  # no access is wider than a granule, and so none touches three
    requests = np.arange(len(first)) // lanes
    wanted = np.unique(np.stack([np.repeat(requests, 2), both.ravel()]), axis=1).shape[1]
    return len(np.unique(both)), int(wanted)
