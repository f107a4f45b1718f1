"""A kernel declared once: which streams it reads and writes, by which rule, and how it walks through memory.

From a `Pattern` come the bytes, the reference, the predicted traffic (`_traffic.py`) and the source of every back end.
`Access` is the walk: one factor of it is varied at a time from the baseline. `Problem` is both at a size: where each
element lies. Letters of the optimisers: g gradient, p master weight, m and v moments, w working weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from commbench.errors import UsageError
from commbench.measure.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORKING = "working"  # stands for the element type that --dtype names
GUARD = 4096  # bytes before and behind what a kernel may touch; keeps its start as aligned as a page
MOST_LISTED = (1 << 31) - 1  # elements that a list of places can tell apart
SPARSE = 8  # a list of places has one of each so many elements
LAYOUTS = ("soa", "aos", "whole")
INDICES = ("", "sorted", "random", "duplicate")
HINTS = ("", "streaming")

_NAME = re.compile(r"[a-z_]\w*")
_FUNCTIONS = {"sqrt"}


@dataclass(frozen=True)
class Stream:
    """One array of elements that a kernel reads, writes, or both."""

    name: str
    dtype: str = WORKING
    reads: bool = False
    writes: bool = False
    least: float = -1.0  # of the values that it begins with, of which the largest is 1

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize


def reads(name: str, dtype: str = WORKING) -> Stream:
    return Stream(name, dtype, reads=True)


def writes(name: str, dtype: str = WORKING) -> Stream:
    return Stream(name, dtype, writes=True)


def updates(name: str, dtype: str = WORKING, least: float = -1.0) -> Stream:
    return Stream(name, dtype, reads=True, writes=True, least=least)


@dataclass(frozen=True)
class Pattern:
    """What one kernel does to each element.

    `rule` is a list of assignments that mean the same in Python and in C: names, + - * /, sqrt() and parentheses. A
    name is a stream, a constant, or a value of its own; every number is a constant, so that each back end has it in its
    own type. Streams that are read have their old value before the first line; those that are written are stored,
    rounded to their type, after the last. With `sums` a kernel writes nothing, and gives the sum of that value over all
    elements.
    """

    name: str  # of its file
    title: str
    streams: tuple[Stream, ...]
    rule: tuple[str, ...]
    constants: Mapping[str, float] = field(default_factory=dict)
    variant: str = ""
    sums: str = ""
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")  # that --dtype may name; empty: nothing to choose

    def of(self, dtype: str) -> Pattern:
        """Return the pattern with `dtype` as its working type."""
        streams = tuple(replace(one, dtype=dtype) if one.dtype == WORKING else one for one in self.streams)
        return replace(self, streams=streams, dtypes=(dtype,) if self.dtypes else ())

    @property
    def label(self) -> str:
        """The name with the variant: "weight_update adamw"."""
        return f"{self.name} {self.variant}".rstrip()

    @property
    def assignments(self) -> list[tuple[str, str]]:
        """The rule as (name, expression) pairs."""
        return [(left.strip(), right.strip()) for left, _, right in (line.partition("=") for line in self.rule)]

    @property
    def values(self) -> list[str]:
        """Names that the rule assigns and that are no streams: registers, in C to be declared."""
        known = {stream.name for stream in self.streams}
        return list(dict.fromkeys(name for name, _ in self.assignments if name not in known))

    @property
    def copied(self) -> dict[str, str]:
        """Streams that end as another one is, rounded to their own type: a working weight and its master."""
        written = {stream.name for stream in self.streams if stream.writes}
        return {left: right for left, right in self.assignments if {left, right} <= written}

    @property
    def moves(self) -> bool:
        """Whether the rule only moves elements of one type: bits are copied, and no arithmetic is done."""
        plain = all(_NAME.fullmatch(right) and right not in self.constants for _, right in self.assignments)
        return plain and not self.sums and len({stream.dtype for stream in self.streams}) == 1

    @property
    def compute(self) -> str:
        """The type of arithmetic: float64 where a stream has it, else float32."""
        return "float64" if any(stream.dtype == "float64" for stream in self.streams) else "float32"

    @property
    def bytes_read(self) -> int:
        """Bytes that the rule needs of each element."""
        return sum(stream.itemsize for stream in self.streams if stream.reads)

    @property
    def bytes_written(self) -> int:
        """Bytes that the rule gives for each element."""
        return sum(stream.itemsize for stream in self.streams if stream.writes)

    @property
    def nbytes(self) -> int:
        """Bytes of each element, read and written: what bandwidth is counted by."""
        return self.bytes_read + self.bytes_written

    @property
    def widest(self) -> int:
        """Bytes of the largest element type."""
        return max(stream.itemsize for stream in self.streams)

    def ceiling(self) -> Pattern:
        """Return the same streams moved with next to no arithmetic: what its byte mix can reach, as a copy of it.

        Each stream that is read is used, and each that is written gets a value that the compiler cannot foresee.
        """
        first = next((stream for stream in self.streams if stream.reads and not stream.writes), None)
        rule: list[str] = []
        for stream in self.streams:
            if stream.writes:
                others = [first.name] if first and not stream.reads else []
                others = [one.name for one in self.streams if one.reads and not one.writes] if not rule else others
                terms = [f"one * {stream.name}"] * stream.reads + others
                rule.append(f"{stream.name} = {' + '.join(terms) or 'one'}")
        constants = {"one": 1.0} if any("one" in line for line in rule) else {}
        return replace(self, rule=tuple(rule), constants=constants)

    def baseline(self) -> Access:
        """Return the best case: flat, aligned, and 16 bytes a lane of the widest stream."""
        return Access(vector=max(1, 16 // self.widest))

    def check(self) -> None:
        """Raise ValueError where the rule uses a name that nothing gives, or leaves a stream unwritten."""
        known = {stream.name for stream in self.streams if stream.reads} | set(self.constants) | _FUNCTIONS
        for left, right in self.assignments:
            if unknown := set(_NAME.findall(right)) - known:
                raise ValueError(
                    f"{self.label}: {left} = {right} uses {', '.join(sorted(unknown))}, which nothing gives"
                )
            if re.search(r"(?<![\w.])\d", right):
                raise ValueError(f"{self.label}: {left} = {right} has a number: name it among the constants")
            known.add(left)
        missing = {stream.name for stream in self.streams if stream.writes} - {left for left, _ in self.assignments}
        if missing:
            raise ValueError(f"{self.label}: {', '.join(sorted(missing))} is written, and the rule gives no value")


@dataclass(frozen=True)
class Access:
    """How a kernel walks through memory. The defaults are those of every baseline, but for `vector`.

    On a GPU thread t of a launch takes `vector` neighbouring elements at a time; a warp's lanes are neighbours. It does
    so `items` times, a block's width apart, then is done (one pass), or goes on by the width of the grid where `blocks`
    says how many blocks there are (grid-stride).
    """

    vector: int = 1  # neighbouring elements that a lane has: of each stream one access, or more beyond 16 bytes
    offset: int = 0  # elements that every stream begins past an aligned address
    stride: int = 1  # elements from one that is used to the next
    layout: str = "soa"  # an array a stream; "aos": of structs, field by field; "whole": of structs, each by one access
    index: str = ""  # elements by a list of places: "sorted", "random" (each once), "duplicate" (what is only read)
    tensors: bool = False  # a launch for each of many small tensors, instead of one for all
    inplace: bool = True  # what is read and written is one array; else the new values go to another
    hint: str = ""  # "streaming": given up first by caches (ld.cs, st.cs, nt); on a CPU past them
    warm: bool = False  # small enough for a cache, and there already
    threads: int = 0  # of a block on a GPU, of the process on a CPU; 0: the back end's choice
    items: int = 1  # vectors a thread takes in one go
    blocks: int = 0  # blocks of a grid-stride launch; 0: one pass, as many as there is work for
    resident: int = 0  # blocks that may share a multiprocessor, held down by shared memory; 0: as many as fit

    def __post_init__(self) -> None:
        scattered = self.stride > 1 or self.layout != "soa" or bool(self.index)
        if scattered and self.vector > 1:
            raise UsageError(f"elements apart are moved one by one: vector is 1 there, not {self.vector}")
        if self.offset % self.vector:
            raise UsageError(f"an access of {self.vector} elements is aligned: offset is a multiple, not {self.offset}")
        if (self.stride > 1) + (self.layout != "soa") + bool(self.index) > 1:
            raise UsageError("stride, layout and index exclude each other: one factor at a time")
        if self.layout not in LAYOUTS or self.index not in INDICES or self.hint not in HINTS:
            raise UsageError(f"no such layout, index or hint: {self.layout!r}, {self.index!r}, {self.hint!r}")

    def differs(self, other: Access) -> dict[str, object]:
        """Return the fields in which this walk is another one than `other`."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value != getattr(other, name)}


@dataclass(frozen=True)
class Place:
    """Where a stream lies: element i is at byte `offset + pitch * place(i)` of the arena called `arena`."""

    stream: Stream
    arena: str
    offset: int
    pitch: int
    indexed: bool  # place(i) is index[i]; else it is i
    writes: bool  # the kernel writes here
    reads: bool

    @property
    def itemsize(self) -> int:
        return self.stream.itemsize


@dataclass(frozen=True)
class Problem:
    """A pattern, a walk, and `total` elements in each array: where all of it lies. Offsets and sizes are bytes."""

    pattern: Pattern
    access: Access
    total: int

    def __post_init__(self) -> None:
        if self.access.index and self.total < SPARSE:
            raise UsageError(f"a list takes one of each {SPARSE} elements: {self.total} are too few")

    @property
    def count(self) -> int:
        """How many elements one launch updates: fewer than there are where some are passed over."""
        if self.access.index in ("sorted", "random"):
            return self.total // SPARSE
        return -(-self.total // self.access.stride)

    @property
    def nbytes(self) -> int:
        """Bytes that one launch reads and writes, as bandwidth counts them: no index, no traffic beside."""
        return self.count * self.pattern.nbytes

    @property
    def fields(self) -> tuple[dict[str, int], int]:
        """The offset of each stream in a struct of all, aligned as in C, and the size of the struct."""
        offsets, end = {}, 0
        for stream in self.pattern.streams:
            end = -(-end // stream.itemsize) * stream.itemsize
            offsets[stream.name] = end
            end += stream.itemsize
        return offsets, -(-end // self.pattern.widest) * self.pattern.widest

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """One place a stream, in the pattern's order; two, the read one first, where new values go elsewhere."""
        found = []
        offsets, struct = self.fields
        for stream in self.pattern.streams:
            indexed = bool(self.access.index) and not (self.access.index == "duplicate" and stream.writes)
            if self.access.layout == "soa":
                size = stream.itemsize
                where = (stream.name, GUARD + self.access.offset * size, size * self.access.stride)
            else:
                where = ("structs", GUARD + self.access.offset * struct + offsets[stream.name], struct)
            apart = stream.reads and stream.writes and not self.access.inplace
            if not apart:
                found.append(Place(stream, *where, indexed, stream.writes, stream.reads))
            else:
                found.append(Place(stream, *where, indexed, False, True))
                found.append(Place(stream, f"{where[0]}_out", *where[1:], indexed, True, False))
        return tuple(found)

    @cached_property
    def arenas(self) -> dict[str, int]:
        """The size of each block of memory, guards included, by its name; "index" holds int32 where there is one."""
        sizes = {}
        for place in self.places:
            one = place.itemsize if self.access.layout == "soa" else self.fields[1]
            sizes[place.arena] = 2 * GUARD + (self.total + self.access.offset) * one
        if self.access.index:
            sizes["index"] = 2 * GUARD + 4 * self.count
        return sizes

    @cached_property
    def index(self) -> NDArray[np.int32] | None:
        """The list of places, int32 of shape (count,), alike in every process; None where elements follow in order."""
        if not self.access.index:
            return None
        import numpy as np

        random = np.random.default_rng(7)
        if self.access.index == "duplicate":
            return random.integers(0, self.total, self.count, dtype=np.int32)
        each = random.integers(0, SPARSE, self.count, dtype=np.int32)
        places = np.arange(self.count, dtype=np.int32) * np.int32(SPARSE) + each
        return places if self.access.index == "sorted" else random.permutation(places)

    @property
    def tensors(self) -> list[int]:
        """How many elements each launch of one pass takes, in order: all, or the tensors of a transformer."""
        return transformer(self.count) if self.access.tensors else [self.count]


def transformer(total: int) -> list[int]:
    """Return `total` elements as the sizes of parameters of a transformer: repeated layers of width 768, cut to fit.

    A layer of GPT-2 small (Radford et al. 2019): two norms, attention and feed-forward, weights and biases. By number
    three quarters of the tensors are vectors; by size nearly all are matrices.
    """
    d = 768
    layer = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    sizes, left = [], total
    while left > 0:
        for size in layer:
            if left > 0:
                sizes.append(min(size, left))
                left -= size
    return sizes
