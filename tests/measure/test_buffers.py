"""Where the data lies: slots apart from each other, input and output where the library wants them."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np
import pytest

from commbench.backends.base import AUTO, Algorithm, Backend, Call
from commbench.backends.mpi import Backend as MpiBackend
from commbench.measure.buffers import MOST_SLOTS, SLOT_MEMORY, Arenas, Layout, layout
from commbench.measure.collective import Collective
from tests.numpy_collectives import COLLECTIVES, Array

LINE = 128
every_collective = pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=list(COLLECTIVES))


class FakeBackend:
    """Memory from NumPy, MPI's rules of what is shared, and a book of what was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.arenas: list[Array] = []

    def shared_buffer(self, call: Call, rank: int, n: int) -> tuple[int, int] | None:
        return MpiBackend().shared_buffer(call, rank, n)

    def allocate(self, nbytes: int, buffer: str) -> Array:
        self.asked.append(nbytes)
        self.arenas.append(np.zeros(nbytes, np.uint8))
        return self.arenas[-1]


def fake() -> Backend:
    return cast(Backend, FakeBackend())


def call(collective: Collective, count: int, itemsize: int = 4, root: int = 0, inplace: bool = False) -> Call:
    redop = "sum" if collective.reduces else None
    return Call(collective, Algorithm(AUTO, AUTO), "float32", itemsize, redop, count, root, inplace)


def cases(collective: Collective) -> list[tuple[Call, int, int]]:
    """Calls of many kinds, with a rank and the number of ranks."""
    return [
        (call(collective, count, root=root, inplace=inplace), rank, n)
        for n in (1, 2, 3, 5)
        for root in (range(n) if collective.rooted else [0])
        for inplace in (False, True)
        for count in (1, 31, 1000)
        for rank in range(n)
    ]


def span(array: Array) -> tuple[int, int]:
    """First and last address of an array, as numbers."""
    return array.ctypes.data, array.ctypes.data + array.nbytes


@every_collective
def test_buffers_hold_what_the_rank_sends_and_receives(collective: Collective) -> None:
    for one, rank, n in cases(collective):
        cut = layout(fake(), one, rank, n)
        for send, recv in Arenas(fake(), [cut]).slots(cut, "float32"):
            assert send.dtype == recv.dtype == np.float32
            assert send.size == one.count * collective.send_blocks(rank, n, one.root)
            assert recv.size == one.count * collective.recv_blocks(rank, n, one.root)


@every_collective
def test_slots_lie_apart_on_lines_of_their_own(collective: Collective) -> None:
    for one, rank, n in cases(collective):
        cut = layout(fake(), one, rank, n)
        arenas = Arenas(fake(), [cut])
        slots = arenas.slots(cut, "uint8")
        assert len(slots) == cut.slots
        spans = [[span(array) for array in slot if array.size] for slot in slots]
        whole = sorted((min(low for low, _ in slot), max(high for _, high in slot)) for slot in spans if slot)
        if cut.shared:
            assert all(low >= before for (_, before), (low, _) in pairwise(whole))
        else:
            apart = sorted(part for slot in spans for part in slot)
            assert all(low >= before for (_, before), (low, _) in pairwise(apart))
        for side in (0, 1):
            starts = [slot[side].ctypes.data for slot in slots if slot[side].size]
            assert all((start - starts[0]) % LINE == 0 for start in starts)


@every_collective
def test_writing_every_buffer_of_every_slot_changes_no_other(collective: Collective) -> None:
    for one, rank, n in cases(collective):
        if one.inplace or collective.mpi == "Bcast":
            continue  # there they overlap on purpose
        cut = layout(fake(), one, rank, n)
        buffers = [array for slot in Arenas(fake(), [cut]).slots(cut, "uint32") for array in slot]
        for mark, array in enumerate(buffers):
            array[:] = mark
        assert all((array == mark).all() for mark, array in enumerate(buffers))


def offsets(one: Call, rank: int, n: int) -> tuple[int, int]:
    """The elements at which input and output begin, counted from the first of both."""
    cut = layout(fake(), one, rank, n)
    ((send, recv), *_) = Arenas(fake(), [cut]).slots(cut, "float32")
    first = min(send.ctypes.data, recv.ctypes.data)
    return (send.ctypes.data - first) // 4, (recv.ctypes.data - first) // 4


@pytest.mark.parametrize(
    ("name", "rank", "root", "expected"),
    [
        ("allreduce", 2, 0, (0, 0)),
        ("allgather", 2, 0, (14, 0)),  # a rank's own block is its input
        ("alltoall", 2, 0, (0, 0)),
        ("reducescatter", 2, 0, (0, 0)),  # MPI begins at the first block
        ("gather", 1, 1, (7, 0)),
        ("scatter", 2, 2, (0, 14)),
        ("reduce", 3, 3, (0, 0)),
        ("sendrecv", 1, 0, (0, 0)),
    ],
)
def test_in_place_input_and_output_lie_as_mpi_has_them(
    name: str, rank: int, root: int, expected: tuple[int, int]
) -> None:
    assert offsets(call(COLLECTIVES[name], 7, root=root, inplace=True), rank, 4) == expected


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_has_one_buffer_where_the_root_sends_what_it_holds(root: int, inplace: bool) -> None:
    for rank in range(4):
        one = call(COLLECTIVES["broadcast"], 7, root=root, inplace=inplace)
        cut = layout(fake(), one, rank, 4)
        for send, recv in Arenas(fake(), [cut]).slots(cut, "float32"):
            assert recv.size == 7
            assert (send.size, send.ctypes.data) == ((7, recv.ctypes.data) if rank == root else (0, send.ctypes.data))


@every_collective
def test_the_number_of_slots_is_the_same_on_every_rank(collective: Collective) -> None:
    for n in (1, 2, 5):
        for count in (1, 1000, 3_000_000, 20_000_000):
            for root in range(n) if collective.rooted else [0]:
                slots = {layout(fake(), call(collective, count, root=root), rank, n).slots for rank in range(n)}
                assert len(slots) == 1


@pytest.mark.parametrize("size", [4, 1 << 20, SLOT_MEMORY // 8, SLOT_MEMORY // 3, SLOT_MEMORY, SLOT_MEMORY * 4])
def test_small_messages_rotate_and_a_large_one_has_one_slot(size: int) -> None:
    slots = layout(fake(), call(COLLECTIVES["allreduce"], size // 4), 0, 4).slots
    assert slots == max(1, min(MOST_SLOTS, SLOT_MEMORY // size))
    assert slots == 1 or slots * size <= SLOT_MEMORY


@every_collective
def test_the_arenas_are_as_large_as_the_largest_cell_needs(collective: Collective) -> None:
    backend = FakeBackend()
    cuts = [
        layout(fake(), call(collective, count, inplace=inplace), 0, 3)
        for count, inplace in [(1, False), (5000, False), (5000, True), (40, True)]
    ]
    arenas = Arenas(cast(Backend, backend), cuts)
    assert backend.asked == [max(cut.nbytes[side] for cut in cuts) for side in (0, 1)]
    for cut in cuts:  # each fits, to its last byte
        for send, recv in arenas.slots(cut, "float32"):
            assert send.nbytes == cut.send_blocks * cut.block_bytes
            assert recv.nbytes == cut.recv_blocks * cut.block_bytes


def test_in_place_there_is_one_arena() -> None:
    backend = FakeBackend()
    Arenas(cast(Backend, backend), [layout(fake(), call(COLLECTIVES["allgather"], 5000, inplace=True), 0, 3)])
    assert backend.asked == [0, 8 * 3 * 5000 * 4 + 8 * (-3 * 5000 * 4 % LINE)]


def test_a_rank_that_sends_nothing_needs_no_memory_for_it() -> None:
    backend = FakeBackend()
    Arenas(cast(Backend, backend), [layout(fake(), call(COLLECTIVES["scatter"], 5000, root=1), 0, 3)])
    assert backend.asked[0] == 0


def test_without_any_cell_there_is_no_memory() -> None:
    backend = FakeBackend()
    Arenas(cast(Backend, backend), [])
    assert backend.asked == []


def test_sizes_beyond_32_bits_are_counted_whole() -> None:
    cut = layout(fake(), call(COLLECTIVES["allgather"], 3 << 31), 0, 4)
    assert isinstance(cut, Layout)
    assert cut.nbytes == (4 * (3 << 31) * 4,) * 2
