"""The grid of cells (algorithm x data type x reduction x size x place), resolved once, before all else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from commbench.backends._algorithms import KNOWN, canonical
from commbench.backends.base import AUTO, Algorithm, Backend, Call
from commbench.errors import UsageError, unknown_name
from commbench.measure.buffers import layout
from commbench.measure.cell import Cell, Group
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES
from commbench.results.status import NOT_APPLICABLE, NOT_MEASURED
from commbench.units import approximate_size, format_size

LARGEST_DEFAULT = 8 << 30
_MOST_CELLS = 100_000
TOO_LARGE = "it would take more than half of the free memory"
_DEFAULT_SHARE = 2  # the default range takes at most half of the memory there is


@dataclass(frozen=True)
class Request:
    """What the user asked to be swept. `largest` None: as far as memory goes; `step` None: sizes grow by `factor`."""

    smallest: int
    largest: int | None
    factor: float
    step: int | None
    dtypes: list[str]
    redops: list[str]
    algorithms: list[str]  # empty: all
    inplace: list[bool]
    root: int
    protocols: list[str] | None = None  # None: as the library likes; empty: all
    buffers: list[str] | None = None  # None: the library's first kind; empty: all


def sizes(smallest: int, largest: int, factor: float, step: int | None) -> Iterator[int]:
    """Yield the sizes asked for, from small to large."""
    exact = float(smallest)
    size = smallest
    while size <= largest:
        yield size
        if step:
            size += step
        else:
            exact = max(exact * factor, size + 1.0) if factor != int(factor) else 0.0
            size = int(exact) if exact else size * int(factor)


def resolve_algorithms(backend: Backend, collective: Collective, asked: Sequence[str], n: int) -> list[Algorithm]:
    """Return the algorithms to visit: what the library offers, or what was asked for by canonical or native name."""
    offered = list(backend.algorithms(collective))
    if not asked:
        return offered if n > 1 else offered[:1]
    names = {algorithm.name: algorithm for algorithm in offered}
    natives = {algorithm.native.lower(): algorithm for algorithm in offered}
    chosen = []
    for name in asked:
        algorithm = names.get(name) or natives.get(name) or names.get(canonical(name))
        if algorithm is None:
            if canonical(name) not in KNOWN:
                raise unknown_name("algorithm", name, [*KNOWN, *names])
            reason = f"{backend.library} has no {name} {collective.title}; it has {', '.join(names)}"
            algorithm = Algorithm(canonical(name), name, refusal=reason)
        elif n == 1 and algorithm.name != AUTO:
            algorithm = replace(algorithm, refusal="one rank has nothing to choose: only auto runs")
        if algorithm not in chosen:
            chosen.append(algorithm)
    return chosen


def with_protocols(algorithms: Sequence[Algorithm], request: Request, backend: Backend) -> list[Algorithm]:
    """Return the algorithms, those that can be chosen once with each protocol that was asked for."""
    if request.protocols is None:
        return list(algorithms)
    protocols = _among(request.protocols, backend.protocols, "--proto", backend.name)
    return [
        replace(algorithm, protocol=protocol)
        for algorithm in algorithms
        for protocol in ([None] if algorithm.name == AUTO else protocols)
    ]


def _among(asked: Sequence[str], known: Sequence[str], flag: str, name: str) -> Sequence[str]:
    """Return what was asked for, or all; raise UsageError for what the backend has not."""
    if not known:
        raise UsageError(f"{flag} is for libraries that have a choice of it, and {name} has none: leave it out")
    for word in asked:
        if word not in known:
            raise UsageError(f"{flag} of {name} is among {', '.join(known)}, not {word!r}")
    return asked or known


def build(
    request: Request, collective: Collective, backend: Backend, group: Group, allowance: int | None
) -> tuple[list[Cell], list[str]]:
    """Return the cells of one group in the order of the table, and what the user should be told about them.

    `allowance` is the bytes that one rank may have (None: unknown).
    """
    n = len(group.ranks)
    if collective.rooted and request.root >= n:
        raise UsageError(f"-r names a rank of each group, below its number of ranks ({n}), not {request.root}")
    notes: dict[str, None] = {}  # in order, each once
    fits = _fitting_size(request, collective, backend, n, allowance, notes)
    algorithms = with_protocols(resolve_algorithms(backend, collective, request.algorithms, n), request, backend)
    buffers = backend.buffers[:1]
    if request.buffers is not None:
        buffers = _among(request.buffers, backend.buffers, "--buffer", backend.name)
    if n == 1:
        notes["one rank: nothing is sent, and only auto runs"] = None
    redops: Sequence[str | None] = request.redops if collective.reduces else (None,)
    if "avg" in redops and not backend.averages:
        notes[f"avg: {backend.name} sums, then scales; both are inside the timing"] = None
    cells: list[Cell] = []
    for dtype in request.dtypes:
        grid = _grid(request, collective, DTYPES[dtype].itemsize, n, notes)
        if len(cells) + len(grid) * len(redops) * len(request.inplace) * len(buffers) * len(algorithms) > _MOST_CELLS:
            raise UsageError(f"a sweep has at most {_MOST_CELLS} cells: take a larger step or fewer kinds")
        for redop in redops:
            for inplace, buffer, (size, count) in product(request.inplace, buffers, grid):
                for algorithm in algorithms:
                    cell = Cell(
                        *(algorithm.name, algorithm.native, algorithm.protocol, dtype, redop),
                        *(request.root if collective.rooted else None, size, count, inplace),
                        *(buffer, group.name),
                    )
                    if refusal := algorithm.refusal or backend.refusal(cell.call(collective), group.ranks):
                        cell = replace(cell, status=NOT_APPLICABLE, reason=refusal)
                    elif fits is not None and size > fits:
                        cell = replace(cell, status=NOT_MEASURED, reason=TOO_LARGE)
                    cells.append(cell)
    return cells, list(notes)


def memory(call: Call, backend: Backend, n: int, kinds: int = 1) -> int:
    """Return the bytes that a rank needs for `call` at most: its slots, in memory of so many kinds, and the size again.

    That is for the library's copy, or the host's of what lies on a device.
    """
    ranks = {call.root, (call.root + 1) % n}
    arenas = max(sum(layout(backend, call, rank, n).nbytes) for rank in ranks)
    return kinds * arenas + call.collective.size_blocks(n) * call.count * call.itemsize


def _grid(
    request: Request, collective: Collective, itemsize: int, n: int, notes: dict[str, None]
) -> list[tuple[int, int]]:
    """Return (size, count) of each size asked for, as far as whole elements for every rank allow; no size twice."""
    share = itemsize * collective.size_blocks(n)
    largest = max(request.smallest, LARGEST_DEFAULT) if request.largest is None else request.largest
    grid: dict[int, int] = {}
    for asked in islice(sizes(request.smallest, largest, request.factor, request.step), _MOST_CELLS + 1):
        count = max(1, asked // share)
        grid[count * share] = count
    if request.largest is not None and request.step is None and asked < largest:
        notes[f"sizes end at {format_size(asked)}: the next one would be above -e {format_size(largest)}"] = None
    smallest = min(grid)
    if smallest > request.smallest:
        why = f"{n} ranks need an element of {itemsize} B each" if collective.size_blocks(n) > 1 else "one element"
        notes[f"sizes below {format_size(smallest)} are raised to it: {why}"] = None
    return list(grid.items())


def _fitting_size(
    request: Request, collective: Collective, backend: Backend, n: int, allowance: int | None, notes: dict[str, None]
) -> int | None:
    """Return the largest size of the default range that fits, None where all do; refuse a given one beyond memory."""
    itemsize = max(DTYPES[dtype].itemsize for dtype in request.dtypes)
    redop = request.redops[0] if collective.reduces else None
    kinds = 1 if request.buffers is None else len(request.buffers or backend.buffers)  # each has arenas of its own

    def need(size: int) -> int:
        count = max(1, size // (itemsize * collective.size_blocks(n)))
        algorithm = Algorithm(AUTO, AUTO)
        call = Call(
            collective, algorithm, request.dtypes[0], itemsize, redop, count, request.root % n, request.inplace[0]
        )
        return memory(call, backend, n, kinds)

    if allowance is None:
        return None
    flag, given = ("-b", request.smallest) if request.largest is None else ("-e", request.largest)
    if need(given) > allowance:
        raise UsageError(
            f"{flag} {format_size(given)} does not fit the memory: a rank needs {approximate_size(need(given))}, and "
            f"{approximate_size(allowance)} is free for each rank of the fullest node; lower {flag} or start fewer "
            "ranks a node"
        )
    if request.largest is not None:
        return None
    fits = request.smallest  # asked for, if only by default: it may have all of the memory
    for size in sizes(request.smallest, max(request.smallest, LARGEST_DEFAULT), request.factor, request.step):
        if size > fits and need(size) > allowance // _DEFAULT_SHARE:
            notes[
                f"sizes from {format_size(size)} on are cut: a rank would need {approximate_size(need(size))}, more "
                f"than half of the {approximate_size(allowance)} that are free for it (-e SIZE asks for more)"
            ] = None
            return fits
        fits = size
    return None
