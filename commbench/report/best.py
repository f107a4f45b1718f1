"""Which algorithm is fastest at which size, and where one takes over from another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from commbench.report.content import Content, Frame
from commbench.units import format_size

AUTO = "auto"
WORTH = 1.1  # auto's time over the fastest one's, from which on it is said


@dataclass(frozen=True)
class Best:
    """The fastest algorithm over a range of measured sizes."""

    side: str
    family: dict[str, Any]  # what the rows share
    place: str
    smallest: int  # bytes
    largest: int
    label: str
    unsure: tuple[str, ...]  # whose times it is not told apart from at some size of the range
    auto: (
        float | None
    )  # the library's own choice: its time over this one's, the most over the range; None: not measured
    worst_size: int | None  # where that is
    row: int  # of the table, at the smallest size

    @property
    def sizes(self) -> str:
        ends = [format_size(self.smallest), format_size(self.largest)]
        return ends[0] if self.smallest == self.largest else " to ".join(ends)


def best(content: Content) -> list[Best]:
    """Return the fastest algorithms of each family and place that has several, range after range of sizes."""
    found: list[Best] = []
    for side, family, rows in content.families():
        for place, those in rows.groupby("place", sort=False):
            if those["label"].nunique() > 1:
                found += _ranges(list(_at_sizes(side, family, str(place), those)))
    return found


def _at_sizes(side: str, family: dict[str, Any], place: str, rows: Frame) -> Iterator[Best]:
    for size, here in rows.groupby("size"):
        if here["label"].nunique() < 2:
            continue
        times = here.groupby("label")["time_us"]
        middle, several = times.median(), times.count() > 1
        # Of several launches their range, of one the interval over its rounds; nothing is told apart without either.
        low = times.min().where(several, here.groupby("label")["time_us_low"].min())
        high = times.max().where(several, here.groupby("label")["time_us_high"].max())
        fastest = str(middle.idxmin())
        unsure = [
            str(label)
            for label in middle.drop(fastest).sort_values().index
            if not low[label] > high[fastest]  # also where one of them is not known
        ]
        auto = float(middle[AUTO] / middle[fastest]) if AUTO in middle.index else None
        row = here.index[here["label"] == fastest][0]
        at = (int(size), int(size), fastest, tuple(unsure), auto, None if auto is None else int(size), int(row))
        yield Best(side, family, place, *at)


def _ranges(at_sizes: list[Best]) -> list[Best]:
    """Join neighbouring sizes that have the same fastest algorithm."""
    joined = at_sizes[:1]
    for _, one in pairwise(at_sizes):
        last = joined[-1]
        if one.label != last.label:
            joined.append(one)
            continue
        unsure = tuple(dict.fromkeys([*last.unsure, *one.unsure]))
        worse = one if (one.auto or 0) > (last.auto or 0) else last
        joined[-1] = replace(last, largest=one.largest, unsure=unsure, auto=worse.auto, worst_size=worse.worst_size)
    return joined
