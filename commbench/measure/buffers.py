"""Where the data lies: slots of send and receive buffers, rotated so that a message is not found in the cache.

Small messages rotate over several slots; one that fills SLOT_MEMORY evicts itself, as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.backends.base import Backend, Call
from commbench.errors import UsageError
from commbench.units import approximate_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from commbench.backends.world import World

MOST_SLOTS = 8
SLOT_MEMORY = 64 << 20  # bytes that the slots of one buffer may take together
_LINE = 128  # slots begin on their own (pair of) cache lines


class Layout(NamedTuple):
    """One call's buffers on one rank: blocks in each, and where they begin if they share one."""

    send_blocks: int
    recv_blocks: int
    shared: tuple[int, int] | None
    slots: int
    block_bytes: int
    buffer: str  # the kind of memory

    @property
    def stride(self) -> int:
        """Bytes from slot to slot."""
        return -(-max(self.send_blocks, self.recv_blocks) * self.block_bytes // _LINE) * _LINE

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the two arenas that this layout needs."""
        whole = self.slots * self.stride
        return (0 if self.shared or not self.send_blocks else whole), whole


def layout(backend: Backend, call: Call, rank: int, n: int) -> Layout:
    """Return how the buffers of `call` lie on `rank`. The number of slots is the same on every rank."""
    collective = call.collective
    block_bytes = call.count * call.itemsize
    largest = collective.size_blocks(n) * block_bytes
    return Layout(
        collective.send_blocks(rank, n, call.root),
        collective.recv_blocks(rank, n, call.root),
        backend.shared_buffer(call, rank, n),
        max(1, min(MOST_SLOTS, SLOT_MEMORY // largest)),
        block_bytes,
        call.buffer,
    )


class Arenas:
    """The memory of one rank, taken once of each kind for the largest cell and cut into slots for each."""

    def __init__(self, backend: Backend, layouts: Sequence[Layout], world: World | None = None) -> None:
        """All ranks of `world` call this together, if it is given; raise UsageError on all where one lacks memory."""
        sizes: dict[str, Sequence[int]] = {}
        for cut in layouts:
            so_far = sizes.get(cut.buffer, (0, 0))
            sizes[cut.buffer] = [max(side) for side in zip(so_far, cut.nbytes, strict=True)]
        if world and backend.on_device:  # what is registered is so on all ranks together: of one size
            kinds = backend.buffers[1:]
            most = world.largest(*(nbytes for kind in kinds for nbytes in sizes.get(kind, (0, 0))))
            sizes |= {kind: most[2 * i : 2 * i + 2] for i, kind in enumerate(kinds) if any(most[2 * i : 2 * i + 2])}
        self._arenas: dict[str, list[NDArray[Any]]] = {}
        trouble = ""
        try:
            for buffer, sides in sizes.items():
                self._arenas[buffer] = [backend.allocate(nbytes, buffer) for nbytes in sides]
        except (MemoryError, RuntimeError) as error:
            whole = approximate_size(sum(map(sum, sizes.values())))
            trouble = f"the largest cells need {whole} of memory on a rank, and it has less ({error}): lower -e"
        if trouble := world.first_text(trouble) if world else trouble:
            raise UsageError(trouble)

    def slots(self, cut: Layout, storage: str) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the send and receive array of each slot; an array is empty where the rank has no such buffer."""
        pairs = []
        sends, receives = self._arenas[cut.buffer]
        for slot in range(cut.slots):
            start = slot * cut.stride
            if cut.shared:
                arena = receives
                ends = [start + block * cut.block_bytes for block in cut.shared]
            else:
                arena, ends = sends, [start, start]
            send = arena[ends[0] : ends[0] + cut.send_blocks * cut.block_bytes].view(storage)
            recv = receives[ends[1] : ends[1] + cut.recv_blocks * cut.block_bytes].view(storage)
            pairs.append((send, recv))
        return pairs
