"""The factors: what is changed, one thing at a time, against which row, and what the traffic says that it will cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from commbench.errors import unknown_name
from commbench.kernels._pattern import Access, Pattern, Problem, Stream
from commbench.kernels._traffic import Memory, Traffic, traffic
from commbench.results.kernels import BASELINE

SAMPLE = 98304  # elements that traffic is predicted from; a multiple of every stride, vector and request

Levels = list[tuple[str, Access]]


@dataclass(frozen=True)
class Factor:
    """One thing that a walk through memory can do otherwise: the question, and its levels from a baseline."""

    name: str
    question: str
    levels: Callable[[Pattern, Access], Levels]
    by_traffic: bool = True  # whether bytes moved can tell what it costs
    only: str = ""  # "GPU" or "CPU", where the other has no such thing


def _width(pattern: Pattern, base: Access) -> Levels:
    vectors = [8, 4, 2, 1]
    return [
        (f"{vector * pattern.widest} B", replace(base, vector=vector)) for vector in vectors if vector != base.vector
    ]


def _misalignment(pattern: Pattern, base: Access) -> Levels:
    one = [("1 element", replace(base, vector=1, offset=1))]
    return [*one, ("1 vector", replace(base, offset=base.vector))] if base.vector > 1 else one


def _one_by_one(base: Access) -> Access:
    """Return how elements that lie apart are moved: none with its neighbours, and no whole line past a cache."""
    return replace(base, vector=1, hint="")


def _stride(pattern: Pattern, base: Access) -> Levels:
    return [(f"{stride}", replace(_one_by_one(base), stride=stride)) for stride in (2, 4, 8, 16, 32)]


def _layout(pattern: Pattern, base: Access) -> Levels:
    apart = _one_by_one(base)
    return [(name, replace(apart, layout=name)) for name in ("aos", "whole")] * (len(pattern.streams) > 1)


def _gather(pattern: Pattern, base: Access) -> Levels:
    kinds = ["sorted", "random"]
    if any(stream.reads and not stream.writes for stream in pattern.streams):
        kinds.append("duplicate")
    return [(kind, replace(_one_by_one(base), index=kind)) for kind in kinds]


def _tensors(pattern: Pattern, base: Access) -> Levels:
    return [] if pattern.sums else [("many small", replace(base, tensors=True))]


def _occupancy(pattern: Pattern, base: Access) -> Levels:
    return [(f"{blocks} block{'s' * (blocks > 1)}", replace(base, resident=blocks)) for blocks in (4, 2, 1)]


def _blocks(pattern: Pattern, base: Access) -> Levels:
    # The most blocks of one of PyTorch's multi-tensor launches: with 4 KB of kernel arguments, and with 32 KB (from
    # CUDA 12.1 on; ATen/native/cuda/MultiTensorApply.cuh). Of 320 some of an H100's 132 multiprocessors have three.
    return [(f"{blocks}", replace(base, blocks=blocks)) for blocks in (320, 2240)]


def _elements(pattern: Pattern, base: Access) -> Levels:
    return [(f"{items} vectors", replace(base, items=items)) for items in (2, 4, 8)]


def _hint(pattern: Pattern, base: Access) -> Levels:
    if base.hint:
        return [("none", replace(base, hint=""))]
    return [("streaming", replace(base, hint="streaming"))] * any(stream.writes for stream in pattern.streams)


def _inplace(pattern: Pattern, base: Access) -> Levels:
    both = any(stream.reads and stream.writes for stream in pattern.streams)
    return [("out of place", replace(base, inplace=False))] * both


def _cache(pattern: Pattern, base: Access) -> Levels:
    return [("warm", replace(base, warm=True, hint=""))]


def _threads(pattern: Pattern, base: Access) -> Levels:
    return [("1", replace(base, threads=1))]


FACTORS = {
    factor.name: factor
    for factor in (
        Factor("width", "bytes that a lane moves at a time, of the widest stream", _width, only="GPU"),
        Factor("misalignment", "every stream begins past an aligned address", _misalignment),
        Factor("stride", "every n-th element is used", _stride),
        Factor("layout", "an array of structures, field by field or each as a whole", _layout),
        Factor(
            "gather",
            "elements by a list: one of each eight, in order or at random; or what is only read, with repetitions",
            _gather,
        ),
        Factor("tensors", "a launch for each tensor of a transformer", _tensors),
        Factor("occupancy", "so many blocks at a time on a multiprocessor", _occupancy, only="GPU"),
        Factor("blocks", "a grid-stride loop of so few blocks, instead of one pass", _blocks, only="GPU"),
        Factor("elements", "vectors that a thread takes in one pass", _elements, only="GPU"),
        Factor("hint", "stores past the caches, or not; on GPUs loads and stores that caches give up first", _hint),
        Factor("inplace", "new values go to arrays of their own", _inplace),
        Factor("cache", "a problem that fits a cache and is there already", _cache, by_traffic=False),
        Factor("threads", "one thread", _threads, only="CPU"),
    )
}


@dataclass(frozen=True)
class Level:
    """One row of the waterfall: a walk, the row that it is held against, and the share of its bandwidth predicted.

    `against` is "baseline", or the factor and level of another row. The bracket is from no request to every request
    being joined by the caches; (None, None) where traffic cannot tell.
    """

    factor: str
    level: str
    access: Access
    predicted_low: float | None = 1.0
    predicted_high: float | None = 1.0
    against: str = BASELINE

    @property
    def name(self) -> str:
        return f"{self.factor} {self.level}".rstrip()


def reference(base: Access, access: Access) -> Access:
    """Return the walk that a level is held against: it differs from the level in one thing.

    That is the baseline; where a level cannot have its vectors or its stores past the cache, as strides cannot, it
    is the baseline without these.
    """
    along = replace(base, vector=access.vector, hint=access.hint)
    return base if along == access else along


def levels(pattern: Pattern, base: Access, memory: Memory, offers: Iterable[str], asked: Iterable[str]) -> list[Level]:
    """Return the levels of the factors `asked` for that a device has, which varies what it `offers` (Backend.factors).

    The rows that they are held against are among them. Predictions are relative to these, on the same memory: the ratio
    of bytes moved for each useful byte.
    """
    may, wanted = set(offers), set(asked)
    there = []
    for factor in FACTORS.values():
        for level, access in factor.levels(pattern, base):
            new = access.differs(base).keys() | ({"whole"} if access.layout == "whole" else set())
            if new <= may:
                there.append((factor, level, access))
    named = {access: f"{factor.name} {level}" for factor, level, access in reversed(there)} | {base: BASELINE}
    needed = {reference(base, access) for factor, _, access in there if factor.name in wanted}
    found = []
    for factor, level, access in there:
        if factor.name in wanted or access in needed:
            other = reference(base, access)
            low, high = predict(pattern, other, access, memory) if factor.by_traffic else (None, None)
            found.append(Level(factor.name, level, access, low, high, named[other]))
    return found


def predict(pattern: Pattern, other: Access, access: Access, memory: Memory) -> tuple[float, float]:
    """Return the bracket of a walk's bandwidth as shares of another one's."""
    best, here = sample(pattern, other, memory), sample(pattern, access, memory)
    low, high = sorted((here.least / best.least, here.most / best.most))
    return low, high


def sample(pattern: Pattern, access: Access, memory: Memory) -> Traffic:
    """Return the traffic of a launch on so many elements that it stands for one on any larger number."""
    return _sample(pattern.streams, access, memory)


@cache
def _sample(streams: tuple[Stream, ...], access: Access, memory: Memory) -> Traffic:
    return traffic(Problem(Pattern("", "", streams, ()), access, SAMPLE), memory)


def find_factor(name: str) -> Factor:
    """Return the factor called `name`; raise UsageError with the nearest names where there is none."""
    if name not in FACTORS:
        raise unknown_name("factor", name, FACTORS)
    return FACTORS[name]
