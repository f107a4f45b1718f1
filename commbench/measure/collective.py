"""What a collective is: who sends how much, what must arrive, and how its bus bandwidth is counted.

Vocabulary: `n` ranks; a *block* is `count` elements; `rank` and `root` are ranks of the group.
A collective is stated by its door (`commbench/allreduce.py`, ...) and knows of a library only its function's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

REDOPS = ("sum", "prod", "min", "max", "avg")


@dataclass(frozen=True)
class Collective:
    """One collective operation.

    sources(block, rank, n, root) says what block `block` of `rank`'s result holds: the ranks whose data it is
    (reduced when there are several) and which block of theirs. It is the definition that answers are checked against.
    send_blocks and recv_blocks(rank, n, root) are what `rank` sends and receives.
    busbw(n) is the factor from algorithm to bus bandwidth, as nccl-tests' doc/PERFORMANCE.md derives it for a ring.
    """

    name: str
    title: str
    mpi: str  # the MPI function's name, without MPI_
    sources: Callable[[int, int, int, int], tuple[Sequence[int], int]]
    send_blocks: Callable[[int, int, int], int]
    recv_blocks: Callable[[int, int, int], int]
    busbw: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False

    def size_blocks(self, n: int) -> int:
        """Return the blocks in what nccl-tests calls size: the larger of a rank's total send and receive bytes."""
        return max(max(self.send_blocks(rank, n, 0), self.recv_blocks(rank, n, 0)) for rank in range(min(n, 2)))


def flat(n: int) -> float:
    """Every byte crosses a link once: the factor of broadcast, reduce and send-receive."""
    return 1.0


def all_but_own(n: int) -> float:
    """A rank keeps its own n-th: the factor of all-gather, reduce-scatter, all-to-all, gather and scatter."""
    return (n - 1) / n
