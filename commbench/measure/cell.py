"""A cell of the sweep and the group of ranks that visits it: what every rank knows of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commbench.backends.base import Algorithm, Call
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES

ALL = "all"  # the group of all ranks
PLANNED = "planned"


@dataclass(frozen=True)
class Group:
    """Some ranks under a name, in their order."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One point of the sweep; sizes in bytes, `count` in elements of a block."""

    algorithm: str
    native: str
    protocol: str | None
    dtype: str
    redop: str | None
    root: int | None
    size: int
    count: int
    inplace: bool
    buffer: str = "host"
    group: str = ALL
    status: str = PLANNED
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = "" if self.group == ALL else f"in group {self.group}"
        parts = (
            self.algorithm,
            self.protocol,
            self.dtype,
            self.redop,
            f"{self.size} B",
            "in place" * self.inplace,
            where,
        )
        return " ".join(part for part in parts if part)

    def call(self, collective: Collective) -> Call:
        """Return the cell as a backend sees it."""
        return Call(
            collective,
            Algorithm(self.algorithm, self.native, self.protocol),
            self.dtype,
            DTYPES[self.dtype].itemsize,
            self.redop,
            self.count,
            self.root or 0,
            self.inplace,
            self.buffer,
        )


def batches(cells: Sequence[Cell], concurrent: bool) -> dict[int, list[int]]:
    """Return the cells that are visited at once, under the first of each: each alone, or its likes in all groups."""
    if not concurrent:
        return {index: [index] for index in range(len(cells))}
    places: Counter[tuple[Any, ...]] = Counter()  # of sizes, which unlike groups may round differently
    likes: dict[tuple[Any, ...], list[int]] = {}
    for index, cell in enumerate(cells):
        kind = (cell.algorithm, cell.protocol, cell.dtype, cell.redop, cell.inplace, cell.buffer)
        likes.setdefault((*kind, places[cell.group, kind]), []).append(index)
        places[cell.group, kind] += 1
    return {next((index for index in some if cells[index].status == PLANNED), some[0]): some for some in likes.values()}
