"""The traffic that a walk through memory makes, by address arithmetic: predicted before anything is measured.

Memory moves in sectors. Two counts bracket the truth: *unique* sectors of a whole launch are what moves if the caches
join all requests that want the same sector; sectors summed over *requests* (the lanes of one warp, one instruction) are
what moves if they join none. A sector written in part is read first, where the memory cannot mask bytes; a CPU reads
every line that it stores to (read for ownership), unless the store streams past the cache. Where elements lie apart,
its prefetcher may fetch the other line of each pair in vain: that is in the count by requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

from commbench.kernels._pattern import GUARD, Place, Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD = 16  # bytes that a lane of a GPU moves by one instruction at most


@dataclass(frozen=True)
class Memory:
    """The granules of a device's memory, in bytes."""

    lanes: int  # that make a request together
    sector: int  # what is moved
    line: int  # what a cache looks up at a time: one sector or more
    owns: bool = False  # stores read their line first
    pair: int = 0  # what a prefetcher may complete a sector that is read to; 0: none


# CUDA C++ Programming Guide and Nsight Compute's glossary: 32 lanes, sectors of 32 B in lines of 128 B.
NVIDIA = Memory(32, 32, 128)
# CDNA: a wave of 64 lanes; requests of the fabric are of 64 B and lines of 128 B (rocprofiler-compute's documentation).
AMD = Memory(64, 64, 128)
# x86-64: lines of 64 B, and stores own theirs. For requests: 64 neighbouring elements, a line of the smallest type, are
# taken to find the lines of one another in the nearest cache, and others not.
CPU = Memory(64, 64, 64, owns=True)
# Intel's spatial prefetcher completes lines that L2 fetches to aligned pairs of 128 B (Intel 64 and IA-32 Architectures
# Optimization Reference Manual, on data prefetching); AMD's up/down prefetcher fetches the next or the previous line
# too (Software Optimization Guide for the AMD Zen 4 Microarchitecture, 57647). Neither does so always.
X86 = replace(CPU, pair=128)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch: those that are of use, and those that move.

    `unique` counts each sector of an arena once a direction, `requests` once for each request that wants it; both with
    sectors that are read only because they are written in part, or owned.

    `sectors` and `lines` are counts beside them, without those: for each arena and direction how many there are in the
    whole launch, each once, and how many all requests ask for: {("p", "read"): (unique, requests), ...}. `instructions`
    has how many requests there are.
    """

    useful: int
    unique: int
    requests: int
    sectors: dict[tuple[str, str], tuple[int, int]]
    lines: dict[tuple[str, str], tuple[int, int]]
    instructions: dict[tuple[str, str], int]

    @property
    def least(self) -> float:
        """Useful bytes of each moved one, where caches join no requests."""
        return self.useful / self.requests

    @property
    def most(self) -> float:
        """Useful bytes of each moved one, where caches join all requests for a sector."""
        return self.useful / self.unique

    def a_request(self, counts: Mapping[tuple[str, str], tuple[int, int]]) -> float:
        """Return how many of `sectors` or `lines` a request asks for: the mean over all loads and stores."""
        return sum(asked for _, asked in counts.values()) / sum(self.instructions.values())


def traffic(problem: Problem, memory: Memory) -> Traffic:
    """Return the traffic of one launch, exactly, by enumerating the addresses of all its elements.

    A sector that is written in part, or owned before it is written, is one read more; not among `unique` where the
    launch reads it anyway, and not among `requests` where it reads from that arena: stores follow loads of the same.
    """
    import numpy as np

    numbers, nth = _requests(problem, memory.lanes)
    reads: dict[str, list[tuple[NDArray[np.int64], NDArray[np.int64], int]]] = {}
    writes: dict[str, list[tuple[NDArray[np.int64], NDArray[np.int64], int]]] = {}
    for place, width in _accesses(problem, memory):
        words = -(-problem.access.vector * width // WORD)  # instructions that move a lane's neighbouring elements
        entry = (addresses(problem, place), numbers * words + nth * width // WORD, width)
        for kind, into in (("read", reads), ("write", writes)):
            if place.reads if kind == "read" else place.writes:
                into.setdefault(place.arena, []).append(entry)
    if problem.access.index:
        listed = GUARD + 4 * np.arange(problem.count, dtype=np.int64)
        reads["index"] = [(listed, numbers, 4)]
    found: dict[tuple[str, str], tuple[int, int]] = {}
    lines: dict[tuple[str, str], tuple[int, int]] = {}
    instructions: dict[tuple[str, str], int] = {}
    unique = requests = 0
    for arena in {**reads, **writes}:
        read, read_requests = _sectors(reads.get(arena, []), memory.sector)
        fetched = max(read_requests * memory.sector, _pairs(reads.get(arena, []), problem, memory))
        wrote, write_requests = _sectors(writes.get(arena, []), memory.sector)
        for kind, entries, sectors, asked in (
            ("read", reads, read, read_requests),
            ("write", writes, wrote, write_requests),
        ):
            if arena in entries:
                found[arena, kind] = (len(sectors), asked)
                lines[arena, kind] = found[arena, kind]
                if memory.line != memory.sector:
                    touched, looked_up = _sectors(entries[arena], memory.line)
                    lines[arena, kind] = (len(touched), looked_up)
                instructions[arena, kind] = sum(len(_distinct(entry[1])) for entry in entries[arena])
        if arena in writes:
            streamed = memory.owns and problem.access.hint == "streaming"
            first, first_requests = _read_first(writes[arena], wrote, memory, streamed)
            if arena in reads:  # in place: the sector is there already
                first, first_requests = np.setdiff1d(first, read), 0
            unique += len(first) * memory.sector
            owned = _pairs(writes[arena], problem, memory) if first_requests and memory.owns else 0
            requests += max(first_requests * memory.sector, owned)
        unique += (len(read) + len(wrote)) * memory.sector
        requests += fetched + write_requests * memory.sector
    return Traffic(problem.nbytes, unique, requests, found, lines, instructions)


def _accesses(problem: Problem, memory: Memory) -> list[tuple[Place, int]]:
    """Return what instructions of their own move of each element, and its bytes: streams, or the words of structs."""
    places = problem.places
    if problem.access.layout != "whole":
        return [(place, place.itemsize) for place in places]
    struct = problem.fields[1]
    word = struct if memory.owns else gcd(struct, WORD)
    found = []
    for arena in dict.fromkeys(place.arena for place in places):
        mine = [place for place in places if place.arena == arena]
        reads, writes = any(place.reads for place in mine), any(place.writes for place in mine)
        for start in range(0, struct, word):
            offset = GUARD + problem.access.offset * struct + start
            found.append((replace(mine[0], offset=offset, indexed=False, reads=reads, writes=writes), word))
    return found


def addresses(problem: Problem, place: Place) -> NDArray[np.int64]:
    """Return the byte address of each element of a launch in its arena, which begins at a page; shape (count,)."""
    import numpy as np

    index = problem.index
    places = np.arange(problem.count) if not place.indexed or index is None else index.astype(np.int64)
    return place.offset + place.pitch * places


def _requests(problem: Problem, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each element of a launch the number of its request, and its place in its lane's vector; both (count,).

    A request is `lanes` neighbouring lanes at one time, each with `vector` neighbouring elements. Elements behind the
    last whole vector of a tensor go one a lane, at place 0, in requests of their own. Where a vector takes several
    instructions, for more than WORD bytes, each is a request: `traffic` numbers them by the place.
    """
    import numpy as np

    vector, parts, places, begin = problem.access.vector, [], [], 0
    for size in problem.tensors:
        body = size // vector * vector
        number = np.arange(size, dtype=np.int64) // (lanes * vector)
        number[body:] = -(-body // (lanes * vector)) + np.arange(size - body) // lanes
        parts.append(begin + number)
        places.append(np.where(np.arange(size) < body, np.arange(size) % vector, 0))
        begin += int(number[-1]) + 1
    return np.concatenate(parts), np.concatenate(places)


def _sectors(
    entries: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], sector: int
) -> tuple[NDArray[np.int64], int]:
    """Return the sectors that accesses touch, each once, and how many their requests ask for together."""
    import numpy as np

    touched, asked = [np.zeros(0, dtype=np.int64)], 0
    for first, requests, width in entries:
        both = np.concatenate([first // sector, (first + width - 1) // sector])  # nothing is wider than a sector
        pairs = np.concatenate([requests, requests]) * (1 << 40) + both
        asked += len(_distinct(pairs))
        touched.append(_distinct(both))
    return _distinct(np.concatenate(touched)), asked


def _pairs(
    entries: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], problem: Problem, memory: Memory
) -> int:
    """Return the bytes that requests fetch in pairs of sectors where elements lie apart; elsewhere both are wanted."""
    apart = problem.access.stride > 1 or bool(problem.access.index)
    return _sectors(entries, memory.pair)[1] * memory.pair if apart and memory.pair else 0


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each value once, in order: np.unique, but fast on what is nearly in order, as addresses are."""
    import numpy as np

    ordered = np.sort(values, kind="stable")
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _read_first(
    entries: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]],
    wrote: NDArray[np.int64],
    memory: Memory,
    streamed: bool,
) -> tuple[NDArray[np.int64], int]:
    """Return the written sectors that are read first, and how many times requests want that."""
    import numpy as np

    if memory.owns and not streamed:
        return wrote, _sectors(entries, memory.sector)[1]
    filled = np.zeros(len(wrote), dtype=np.int64)
    partly = 0
    for first, requests, width in entries:
        _, once = np.unique(first, return_index=True)
        begins = first[once]
        for byte in np.arange(width) if width > 1 else [0]:  # a value may straddle two sectors
            np.add.at(filled, np.searchsorted(wrote, (begins + byte) // memory.sector), 1)
        _, held = np.unique(requests * (1 << 40) + first // memory.sector, return_counts=True)
        partly += int(np.count_nonzero(held * width < memory.sector))
    return wrote[filled < memory.sector], partly
