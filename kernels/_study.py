"""What is measured: studies (a kernel in a type), their rows (ceiling, baseline, levels of factors), planned once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError, UsageError, unknown_name
from commbench.kernels._backend import Backend, Facts
from commbench.kernels._factors import FACTORS, SAMPLE, Level, levels, sample
from commbench.kernels._pattern import MOST_LISTED, Access, Pattern, Problem
from commbench.kernels._traffic import Memory
from commbench.results.kernels import BASELINE, CEILING
from commbench.units import approximate_size, format_size

CACHES = 4  # arrays are so many times the last-level cache, so that a launch finds nothing of the last one there
_WARM = 4  # those of a warm launch are a part of it
LEAST = 2  # and what a launch touches of them so many times at least, though strides pass over most of it
_FLOOR = 64 << 20  # bytes, at least: below, starting a launch is measured as well


@dataclass(frozen=True)
class Row:
    """One row: a pattern, the walk through memory, and what is predicted for it."""

    pattern: Pattern
    level: Level
    total: int

    @cached_property
    def problem(self) -> Problem:
        pattern = self.pattern.ceiling() if self.level.factor == CEILING else self.pattern
        return Problem(pattern, self.level.access, self.total)

    @property
    def name(self) -> str:
        return f"{self.pattern.label} {self.level.name}"

    def touched(self, memory: Memory) -> int:
        """Return the bytes of the sectors that a launch touches, each counted once."""
        return round(_touched(self.problem.pattern, self.level.access, memory) * self.total)

    def traffic(self, memory: Memory) -> dict[str, float]:
        """Return the predicted sectors and lines: of a request, the mean, and of a launch, each once a direction."""
        found = sample(self.problem.pattern, self.level.access, memory)
        about: dict[str, float] = {}
        for name, counts in (("sectors", found.sectors), ("lines", found.lines)):
            about[f"{name}_per_request"] = found.a_request(counts)
            about[name] = round(sum(once for once, _ in counts.values()) * self.total / SAMPLE)
        return about


@dataclass(frozen=True)
class Study:
    """A kernel in one type: rows that are measured in the same rounds."""

    pattern: Pattern
    dtype: str
    rows: tuple[Row, ...]

    @property
    def arenas(self) -> dict[str, int]:
        """The memory that the rows share, each arena as large as the largest of its name; each has its own list."""
        sizes: dict[str, int] = {}
        for row in self.rows:
            for name, size in row.problem.arenas.items() - {("index", row.problem.arenas.get("index"))}:
                sizes[name] = max(size, sizes.get(name, 0))
        return sizes


def names() -> list[str]:
    """Return the kernels there are: the files beside this one whose name has no underscore first."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def patterns(name: str) -> tuple[Pattern, ...]:
    """Return the patterns of the kernel called `name`; raise UsageError with the nearest names where there is none."""
    if name not in names():
        raise unknown_name("kernel", name, names())
    found: tuple[Pattern, ...] = import_module(f"commbench.kernels.{name}").PATTERNS
    return found


def choose(kernels: Iterable[Pattern], variants: Sequence[str] | None) -> list[Pattern]:
    """Return the patterns of the variants asked for, or all; raise UsageError for a variant that none has."""
    every = list(kernels)
    known = {pattern.variant for pattern in every}
    for variant in variants or ():
        if variant not in known:
            if not any(known):
                raise UsageError(f"unknown variant {variant!r}: these kernels have none, leave --variant out")
            raise unknown_name("variant", variant, filter(None, known))
    return [pattern for pattern in every if variants is None or pattern.variant in variants]


def build(
    kernels: Sequence[Pattern],
    dtypes: Sequence[str],
    asked: Mapping[str, Sequence[str]],
    backend: Backend,
    facts: Facts,
    device: str,
    size: int | None,
) -> list[Study]:
    """Return the studies, each kernel in each of the types that it is defined for.

    `asked` has the factors of each kernel by its label, `facts` what all ranks' devices have. `size` is the bytes of
    all arrays; by default they are CACHES times the last-level cache, and more where a row would touch less than LEAST
    times that. Raises UsageError where the device has not a type, no kernel has, or the memory does not do.
    """
    for dtype in dtypes:
        if dtype not in facts.dtypes:
            raise UsageError(
                f"--device {device} has no {dtype} that kernels can use: --dtype is among "
                f"{', '.join(sorted(facts.dtypes))}"
            )
        if not any(dtype in pattern.dtypes for pattern in kernels if pattern.dtypes):
            defined = dict.fromkeys(name for pattern in kernels for name in pattern.dtypes)
            raise UsageError(f"none of these kernels is defined for {dtype}: --dtype is among {', '.join(defined)}")
    arrays = max(_FLOOR, CACHES * facts.cache) if size is None else size
    studies = []
    for pattern in kernels:
        for dtype in [name for name in dtypes if name in pattern.dtypes] if pattern.dtypes else ["float32"]:
            one = pattern.of(dtype)
            base = backend.baseline(one)
            plan = [Level(CEILING, "", base), Level(BASELINE, "", base)]
            plan += levels(one, base, facts.memory, backend.factors, asked[pattern.label])
            width = sum(stream.itemsize for stream in one.streams)
            cold, warm = max(1, arrays // width), max(1, facts.cache // _WARM // width)
            if size is None:
                least = min(_touched(one, level.access, facts.memory) for level in plan if not level.access.warm)
                cold = max(cold, round(LEAST * facts.cache / least))
            rows = tuple(Row(one, level, min(warm, cold) if level.access.warm else cold) for level in plan)
            studies.append(Study(one, dtype, rows))
    for study in studies:
        check_memory(study, facts.free, size)
        check_lists(study)
    return studies


def _touched(pattern: Pattern, access: Access, memory: Memory) -> float:
    """Return the bytes of the sectors that a launch touches, for each element of its arrays."""
    found = sample(pattern, access, memory).sectors
    arenas = dict.fromkeys(arena for arena, _ in found if arena != "index")
    once = (max(found.get((arena, kind), (0, 0))[0] for kind in ("read", "write")) for arena in arenas)
    return sum(once) * memory.sector / SAMPLE


def check_memory(study: Study, free: int, size: int | None) -> None:
    """Raise UsageError where the arenas of a study, and what checking them takes, are more than there is."""
    lists = sum(row.problem.arenas.get("index", 0) for row in study.rows)
    need = sum(study.arenas.values()) + lists + max(study.arenas.values())
    if need > free:
        default = "the default --size (four times the last-level cache, or more)"
        asked = default if size is None else f"--size {format_size(size)}"
        raise UsageError(
            f"{asked} does not fit the memory: {study.pattern.label} needs {approximate_size(need)} on each rank, and "
            f"{approximate_size(free)} is free for each; give a smaller --size, or start fewer ranks a node"
        )


def check_lists(study: Study) -> None:
    """Raise UsageError where a list of places is of more elements than its 32 bits tell apart."""
    for row in study.rows:
        if row.level.access.index and row.total > MOST_LISTED:
            raise UsageError(
                f"a list of places has 32 bits: at most {MOST_LISTED} elements, not {row.total}: give a smaller --size"
            )


def offered(studies: Sequence[Study], backend: Backend) -> list[str]:
    """Return the factors that a back end has for the kernels of some studies."""
    found: dict[str, None] = {}
    for study in studies:
        base = backend.baseline(study.pattern)
        every = levels(study.pattern, base, backend.facts.memory, backend.factors, FACTORS)
        found |= dict.fromkeys(level.factor for level in every)
    return list(found)


# A plan in the manifest, and back.


def to_cells(studies: Sequence[Study], memory: Memory, groups: Sequence[str], buffer: str) -> list[dict[str, Any]]:
    """Return the cells of a run: each row on each rank, whose group has its name."""
    return [
        {
            "algorithm": row.name,
            "protocol": None,
            "dtype": study.dtype,
            "redop": None,
            "root": None,
            "size": row.problem.nbytes,
            "count": row.problem.count,
            "inplace": row.level.access.inplace,
            "buffer": buffer,
            "group": group,
            "status": "planned",
            "reason": "",
            "study": number,
            "kernel": row.pattern.name,
            "variant": row.pattern.variant,
            "total": row.total,
            "level": asdict(row.level),
            "traffic": row.traffic(memory),
        }
        for number, study in enumerate(studies)
        for row in study.rows
        for group in groups
    ]


def from_cells(cells: Sequence[Mapping[str, Any]], ranks: int, known: Iterable[Pattern]) -> list[Study]:
    """Return the studies that cells were made of; raise ResultsError where they are none of ours."""
    by_name = {(pattern.name, pattern.variant): pattern for pattern in known}
    found: dict[int, list[Row]] = {}
    try:
        for cell in cells[::ranks]:
            pattern = by_name[cell["kernel"], cell["variant"]].of(cell["dtype"])
            level = Level(**{**cell["level"], "access": Access(**cell["level"]["access"])})
            row = Row(pattern, level, cell["total"])
            if row.problem.nbytes != cell["size"] or level.factor not in {BASELINE, CEILING, *FACTORS}:
                raise ValueError(row.name)
            found.setdefault(cell["study"], []).append(row)
        if not found:
            raise ValueError("no cells")
        return [Study(rows[0].pattern, cells_dtype(cells, number), tuple(rows)) for number, rows in found.items()]
    except (KeyError, TypeError, ValueError, UsageError):
        raise ResultsError(
            "the run folder holds a plan of other kernels, or of none: go on with it by the door that began it, or "
            "start another run by another --out"
        ) from None


def cells_dtype(cells: Sequence[Mapping[str, Any]], study: int) -> str:
    return next(str(cell["dtype"]) for cell in cells if cell["study"] == study)
