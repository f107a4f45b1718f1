"""How much memory a kernel touches: sectors and lines counted from the addresses of its lanes. Pure arithmetic.

A *request* is one memory instruction of one warp (32 lanes, NVIDIA) or wave (64 lanes, AMD). What it asks for is counted
twice: by itself, which is the pressure on the caches, and over the whole launch, which is the traffic of the memory
where the caches merge neighbours. The truth of a device lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from commbench.kernels._pattern import GUARD, Problem
from commbench.kernels._traffic import Memory, Traffic

IDLE = -1  # the address, or the element, of a lane that takes no part
WIDEST = 16  # bytes that a lane moves by one instruction at most


@dataclass(frozen=True)
class Requests:
    """The requests of one instruction of a kernel.

    addresses: bytes from the beginning of memory, shape (requests, lanes), IDLE where a lane takes no part.
    width: bytes that a lane moves, from its address on.
    """

    addresses: NDArray[np.int64]
    width: int
    writes: bool = False


@dataclass(frozen=True)
class Touched:
    """What accesses of one direction touch. Sectors and lines are counted, `useful` and `distinct` are bytes."""

    requests: int = 0
    sectors: int = 0  # summed over requests
    lines: int = 0  # summed over requests
    useful: int = 0  # bytes that lanes ask for, each once a request
    unique: int = 0  # sectors touched at all
    partial: int = 0  # of these, sectors of which some bytes are not touched by any lane
    distinct: int = 0  # bytes touched at all


def touched(accesses: Iterable[Requests], memory: Memory) -> Touched:
    """Return what these accesses touch together; buffers differ by their addresses.

    Raises ValueError for requests of another number of lanes than the device's.
    """
    total = Touched()
    everywhere = []
    for access in accesses:
        if access.addresses.ndim != 2 or access.addresses.shape[1] != memory.lanes:
            raise ValueError(
                f"addresses must have the shape (requests, {memory.lanes}) on this device, "
                f"not {access.addresses.shape}: fill idle lanes with {IDLE}"
            )
        in_each = [_in_each_request(access, size) for size in (memory.sector, memory.line, 1)]
        total = replace(
            total,
            requests=total.requests + int((access.addresses != IDLE).any(axis=1).sum()),
            sectors=total.sectors + in_each[0],
            lines=total.lines + in_each[1],
            useful=total.useful + in_each[2],
        )
        everywhere.append(_bytes(access))
    everything = np.unique(np.concatenate(everywhere)) if everywhere else np.empty(0, np.int64)
    sectors, filled = np.unique(everything // memory.sector, return_counts=True)
    return replace(
        total, unique=len(sectors), partial=int((filled < memory.sector).sum()), distinct=len(everything)
    )


def _in_each_request(access: Requests, size: int) -> int:
    """Return how many pieces of `size` bytes the requests touch, each counted once a request and summed."""
    first = access.addresses // size
    last = (access.addresses + access.width - 1) // size
    most = (access.width + size - 2) // size + 1  # pieces that an access can touch
    pieces = np.minimum(first[..., None] + np.arange(most), last[..., None])
    pieces = np.where(access.addresses[..., None] == IDLE, IDLE, pieces).reshape(len(access.addresses), -1)
    pieces.sort(axis=1)
    new = np.diff(pieces, axis=1, prepend=IDLE) != 0  # idle lanes sort first, and are not new
    return int(new.sum())


def _bytes(access: Requests) -> NDArray[np.int64]:
    """Return the bytes that are touched, sorted, each once."""
    starts = np.unique(access.addresses[access.addresses != IDLE])
    bytes_: NDArray[np.int64] = np.unique((starts[:, None] + np.arange(access.width)).ravel())
    return bytes_


SAMPLE = 1 << 16  # elements that stand for a launch of more


def predict(problem: Problem, memory: Memory, threads: int) -> Traffic:
    """Return what one launch on blocks of `threads` moves, scaled up from `SAMPLE` elements where it has more.

    A sector that is written in part is read first where memory corrects errors in whole sectors, and merged in a cache
    without a read where it does not: that read belongs to the upper bound alone.
    """
    small = replace(problem, total=min(problem.total, SAMPLE * problem.access.stride))
    reads, writes = both(requests(small, memory, threads), memory)
    scale = memory.sector * problem.count / small.count
    return Traffic(
        problem.nbytes,
        unique=round(scale * (reads.unique + writes.unique)),
        requests=round(scale * (reads.sectors + writes.sectors + writes.partial)),
    )


def both(each: Iterable[Requests], memory: Memory) -> tuple[Touched, Touched]:
    """Return what requests read, and what they write."""
    split: tuple[list[Requests], list[Requests]] = ([], [])
    for one in each:
        split[one.writes].append(one)
    return touched(split[0], memory), touched(split[1], memory)


def requests(problem: Problem, memory: Memory, threads: int) -> Iterator[Requests]:
    """Yield what a problem's launches ask for, on blocks of `threads`: the walk that `Access` describes.

    No kernel is read for this: that the kernels do just so is what the tests show.
    """
    walk = problem.access
    first = 0
    for count in problem.tensors:
        vectors = count // walk.vector
        blocks = walk.blocks or max(1, -(-vectors // (threads * walk.items)))
        grid = np.arange(blocks * threads).reshape(-1, memory.lanes)
        block, lane = grid // threads, grid % threads
        for begin in range(0, max(1, vectors), blocks * walk.items * threads):
            for item in range(walk.items):
                vector = begin + (block * walk.items + item) * threads + lane
                elements = np.where(vector < vectors, first + vector * walk.vector, IDLE)
                yield from _moves(problem, elements, walk.vector)
        alone = count % walk.vector  # elements behind the last vector, one each for the first lanes of block 0
        if alone:
            elements = np.where(grid < alone, first + count - alone + grid, IDLE)
            yield from _moves(problem, elements, 1)
        first += count


def _moves(problem: Problem, elements: NDArray[np.int64], vector: int) -> Iterator[Requests]:
    """Yield the requests for `vector` elements from each of `elements` on, at most 16 bytes each; none for idle rows."""
    elements = elements[(elements != IDLE).any(axis=1)]
    idle = elements == IDLE
    base = bases(problem)

    def at(arena: str, offsets: NDArray[np.int64], nbytes: int, word: int, writes: bool) -> Iterator[Requests]:
        for part in range(0, nbytes, word):
            yield Requests(np.where(idle, IDLE, base[arena] + offsets + part), word, writes)

    indexed = elements
    if problem.index is not None and any(place.indexed for place in problem.places):
        indexed = problem.index[np.where(idle, 0, elements)].astype(np.int64)
        yield from at("index", GUARD + 4 * elements, 4, 4, False)
    if problem.access.layout == "whole":
        struct = problem.fields[1]
        place = problem.places[0]
        offsets = GUARD + struct * (elements + problem.access.offset)
        for writes in (False, True):
            if any(one.writes if writes else one.reads for one in problem.places):
                yield from at(place.arena, offsets, struct, gcd(struct, WIDEST), writes)
        return
    for place in problem.places:
        offsets = place.offset + place.pitch * (indexed if place.indexed else elements)
        nbytes = vector * place.itemsize
        for writes in (False, True):
            if place.writes if writes else place.reads:
                yield from at(place.arena, offsets, nbytes, min(nbytes, WIDEST), writes)


def bases(problem: Problem) -> dict[str, int]:
    """Return addresses for the arenas, each aligned as an allocation is."""
    found, end = {}, 0
    for name, size in problem.arenas.items():
        found[name] = end
        end += -(-size // GUARD) * GUARD
    return found
