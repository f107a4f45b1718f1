"""Which algorithm is fastest at which size, and where one takes over from another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from commbench.report.content import Content, Frame
from commbench.units import format_size

AUTO = "auto"
WORTH = 1.1  # auto's time over the fastest one's, from which on it is said


@dataclass(frozen=True)
class Auto:
    """What the library chose by itself, at one size."""

    ratio: float  # its time over the fastest one's
    size: int  # bytes
    row: int  # of the table
    unsure: bool  # whether the two are not told apart


@dataclass(frozen=True)
class Best:
    """The fastest algorithm over a range of measured sizes."""

    side: str
    family: dict[str, Any]  # what the rows share
    place: str
    sizes: tuple[int, ...]  # bytes
    label: str
    unsure: dict[str, tuple[int, ...]]  # from which others it is not told apart, and at which of the sizes
    auto: Auto | None  # at the size where it takes longest, of those where it is told apart if there are any
    row: int  # of the table, at the smallest size

    @property
    def range(self) -> str:
        """The sizes in words."""
        return sizes_in_words(self.sizes)


def sizes_in_words(sizes: tuple[int, ...]) -> str:
    """Return the smallest and the largest of measured sizes."""
    return format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"


def best(content: Content) -> list[Best]:
    """Return the fastest algorithms of each family and place that has several, range after range of sizes."""
    found: list[Best] = []
    for side, family, rows in content.families():
        for place, those in rows.groupby("place", sort=False):
            if those["label"].nunique() > 1:
                found += _ranges(_at_sizes(side, family, str(place), those))
    return found


def _at_sizes(side: str, family: dict[str, Any], place: str, rows: Frame) -> Iterator[Best]:
    for number, here in rows.groupby("size"):
        if here["label"].nunique() < 2:
            continue
        size = int(number)
        times = here.groupby("label")["time_us"]
        middle, several = times.median(), times.count() > 1
        # Of several launches their range, of one the interval over its rounds; nothing is told apart without either.
        low = times.min().where(several, here.groupby("label")["time_us_low"].min())
        high = times.max().where(several, here.groupby("label")["time_us_high"].max())
        fastest = str(middle.idxmin())
        others = [str(label) for label in middle.drop(fastest).sort_values().index]
        unsure: dict[str, tuple[int, ...]] = {
            label: (size,)
            for label in others
            if not low[label] > high[fastest]  # also where one is not known
        }
        row = {label: int(here.index[here["label"] == label][0]) for label in (fastest, AUTO) if label in middle.index}
        auto = Auto(middle[AUTO] / middle[fastest], size, row[AUTO], AUTO in unsure) if AUTO in row else None
        yield Best(side, family, place, (size,), fastest, unsure, auto, row[fastest])


def _ranges(at_sizes: Iterable[Best]) -> list[Best]:
    """Join neighbouring sizes that have the same fastest algorithm."""
    joined: list[Best] = []
    for one in at_sizes:
        if not joined or one.label != joined[-1].label:
            joined.append(one)
            continue
        last = joined[-1]
        unsure = {label: last.unsure.get(label, ()) + one.unsure.get(label, ()) for label in (last.unsure | one.unsure)}
        auto = max(filter(None, (last.auto, one.auto)), key=lambda it: (not it.unsure, it.ratio), default=None)
        joined[-1] = replace(last, sizes=last.sizes + one.sizes, unsure=unsure, auto=auto)
    return joined
