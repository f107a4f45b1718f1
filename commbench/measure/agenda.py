"""Which cell is visited next, and for how long: what rank 0 decides and the other ranks follow.

First one short pass over all cells, `auto` first, each from small to large (where choosing an algorithm is costly, one
algorithm after another); then rounds that refine: blocks of one algorithm in shuffled order, their cells shuffled
inside. A cell is done when its interval over rounds is narrow
enough, when it had its rounds or its seconds, or when the budget is spent.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from commbench.backends.base import AUTO
from commbench.measure.cell import PLANNED, Cell
from commbench.measure.effort import Effort, fitting
from commbench.results.journal import Journal
from commbench.results.stats import median, median_interval
from commbench.results.status import FAILED, LASTING, NOT_MEASURED, OK, TIMEOUT

SHORT_VISIT, FULL_VISIT = 0.005, 0.03  # seconds of timed iterations that a visit aims at
RECORDS_EVERY = 10.0  # seconds, at least: folding all records is work while the other ranks wait
FIRST_PASS_SHARE, AUTO_SHARE = 0.7, 0.4  # of the budget: until the first pass ends, and `auto` in it


class Agenda:
    """The order of visits of one launch, from the journal as it grows; only rank 0 has one."""

    def __init__(
        self,
        cells: list[Cell],
        together: Mapping[int, list[int]],
        journal: Journal,
        effort: Effort,
        by_algorithm: bool = False,
    ) -> None:
        """`together` names, under the first of them, the cells that are visited at once (see cell.batches).

        `by_algorithm`: the first pass goes through the sizes of one algorithm before it turns to the next.
        """
        self._by_algorithm = by_algorithm
        self._cells, self._together, self._journal, self._effort = cells, together, journal, effort
        self._begin = perf_counter()
        self._switching = 0.0  # seconds that are no part of the budget
        self._cut: dict[int, str] = {}  # cells passed over, and why
        self._first_seconds: dict[tuple[Any, ...], list[tuple[int, float]]] = {}  # by kin, in rising order of size
        for index in journal.visits:
            self._note_first(index)
        self._algorithms = list(dict.fromkeys((cell.algorithm, cell.protocol) for cell in cells))

    def steps(self) -> Iterator[tuple[int, float]]:
        """Yield (cell, seconds of timed iterations that the visit should take)."""
        for auto, others in ((AUTO_SHARE, FIRST_PASS_SHARE), (1.0, 1.0)):  # what is left is for what was cut at first
            yield from self._first_pass(auto, others)
            yield from self._rounds()
        for index, reason in (
            (index, reason) for first, reason in self._cut.items() for index in self._together[first]
        ):
            number = len(self._journal.visits[index])
            about = {"cell": index, "round": number, "session": self._journal.session}
            self._journal.append({**about, "status": NOT_MEASURED, "reason": reason})

    def _rounds(self) -> Iterator[tuple[int, float]]:
        """Yield the cells that another visit would refine, round after round."""
        while True:
            left = [first for first, all_ in self._together.items() if any(map(self.unfinished, all_))]
            if not left or self._spent() >= 1:
                return
            for index in self._shuffled(left):
                if self._spent() >= 1:
                    return
                yield index, FULL_VISIT
            self._journal.write_records(RECORDS_EVERY)

    def leave_out(self, seconds: float) -> None:
        """Take what switching took out of the budget: a forced communicator may take seconds to make."""
        self._switching += seconds

    def iterations(self, index: int, seconds: float) -> int:
        """Return how many iterations the visit should have: as asked for, or by the pace of the visit before.

        0 where the cell has no pace yet, and where groups run at once, each at its own: then the ranks find out by
        warming up.
        """
        if self._effort.iterations or len(self._together[index]) > 1:
            return self._effort.iterations or 0
        paces = [visit["pace_us"] for visit in self._journal.visits[index] if visit.get("pace_us")]
        return fitting(paces[-1] / 1e6, seconds) if paces else 0

    def unfinished(self, index: int) -> bool:
        """Whether another visit would refine a cell that went well so far."""
        visits = self._journal.visits[index]
        if not visits or any(visit["status"] in LASTING for visit in visits) or visits[-1]["status"] != OK:
            return False
        good = [visit for visit in visits if visit["status"] == OK]
        if len(good) >= self._effort.rounds:
            return False
        seconds = sum(map(_seconds, visits))
        if self._effort.max_seconds and seconds >= self._effort.max_seconds:
            return False
        return self._effort.iterations is not None or not precise(good, self._effort.precision)

    def finished(self) -> int:
        """Return how many cells need no further visit, as far as is known now."""
        return sum(
            cell.status != PLANNED or (bool(self._journal.visits[index]) and not self.unfinished(index))
            for index, cell in enumerate(self._cells)
        )

    def seconds_left(self) -> float | None:
        """Return the seconds that the budget still allows, None without one."""
        return max(0.0, (1 - self._spent()) * self._effort.budget) if self._effort.budget else None

    def _first_pass(self, auto: float, others: float) -> Iterator[tuple[int, float]]:
        """Yield each cell that has no good visit yet, as far as these shares of the budget go."""
        if not any(cell.status == PLANNED and cell.algorithm != AUTO for cell in self._cells):
            auto = others
        for index in sorted(self._together, key=self._first_key):
            cell = self._cells[index]
            planned = [other for other in self._together[index] if self._cells[other].status == PLANNED]
            if not any(self._missing(self._journal.visits[other]) for other in planned):
                continue
            self._cut.pop(index, None)
            if reason := self._too_long(index, auto if cell.algorithm == AUTO else others):
                self._cut[index] = reason
            else:
                fresh = [other for other in planned if not self._journal.visits[other]]
                yield index, SHORT_VISIT
                for other in fresh:
                    self._note_first(other)
        self._journal.write_records(RECORDS_EVERY)

    def _note_first(self, index: int) -> None:
        """Keep what a cell's first visit took, where it went well."""
        visits, cell = self._journal.visits[index], self._cells[index]
        if visits and visits[0]["status"] == OK:
            insort(self._first_seconds.setdefault(_kin(cell), []), (cell.size, _seconds(visits[0])))

    def _missing(self, visits: list[dict[str, Any]]) -> bool:
        """Whether a cell still needs its first good visit: what an earlier session could not do is tried again."""
        if not visits or visits[-1]["status"] == NOT_MEASURED:
            return True
        return visits[-1]["status"] in (TIMEOUT, FAILED) and visits[-1]["session"] < self._journal.session

    def _first_key(self, index: int) -> tuple[Any, ...]:
        cell = self._cells[index]
        block = self._algorithms.index((cell.algorithm, cell.protocol)) if self._by_algorithm else 0
        return (cell.algorithm != AUTO, block, cell.size, index)

    def _shuffled(self, left: list[int]) -> list[int]:
        """Return `left` in blocks of one algorithm and protocol, blocks and their cells shuffled."""
        import random  # not on every rank: it brings OpenSSL

        rounds = min(len(self._journal.visits[index]) for index in left)
        chance = random.Random(f"{self._effort.seed}/{rounds}")
        blocks = [
            [i for i in left if (self._cells[i].algorithm, self._cells[i].protocol) == a] for a in self._algorithms
        ]
        chance.shuffle(blocks)
        for block in blocks:
            chance.shuffle(block)
        return [index for block in blocks for index in block]

    def _spent(self) -> float:
        """Return the fraction of the budget that is gone."""
        return (perf_counter() - self._begin - self._switching) / self._effort.budget if self._effort.budget else 0.0

    def _too_long(self, index: int, share: float) -> str:
        """Return why a first visit does not fit this share of the budget any more, empty if it does.

        Its time is foreseen from the same cell at smaller sizes.
        """
        left = (share - self._spent()) * self._effort.budget if self._effort.budget else math.inf
        if left <= 0:
            return f"the budget of {self._effort.budget:g} s was spent on other cells"
        cell = self._cells[index]
        measured = self._first_seconds.get(_kin(cell), [])
        smaller = bisect_left(measured, (cell.size,))
        if smaller:
            foreseen = foresee(measured[max(0, smaller - 2) : smaller], cell.size)
            expected = f"a visit was foreseen to take {foreseen:.1f} s"
            if foreseen > left:
                return f"{expected}, and {left:.1f} s of the budget were left for it"
            if self._effort.max_seconds and foreseen > self._effort.max_seconds:
                return f"{expected}, and a cell may take {self._effort.max_seconds:g} s (--max-seconds)"
        return ""


def foresee(measured: list[tuple[int, float]], size: int) -> float:
    """Return the seconds that `size` will take, from (size, seconds) of smaller ones in rising order.

    The last two sizes give the growth, which is taken to be at most linear; one size gives its own seconds.
    """
    last_size, last = measured[-1]
    if len(measured) == 1:
        return last
    size_before, before = measured[-2]
    exponent = math.log(last / before) / math.log(last_size / size_before)
    return last * (size / last_size) ** min(1.0, max(0.0, exponent))


def precise(visits: list[dict[str, Any]], precision: float) -> bool:
    """Whether the interval over rounds is within `precision` of the median to both sides."""
    medians = [visit["median_us"] for visit in visits]
    interval = median_interval(medians)
    middle = median(medians)
    return interval is not None and max(middle - interval[0], interval[1] - middle) <= precision * middle


def _seconds(visit: dict[str, Any]) -> float:
    """Return what a visit took, but for choosing its algorithm, which may take seconds and tells nothing of a cell."""
    return max(1e-6, float(visit.get("seconds", 0.0)) - float(visit.get("switch_us", 0.0)) / 1e6)


def _kin(cell: Cell) -> tuple[Any, ...]:
    return (cell.algorithm, cell.protocol, cell.dtype, cell.redop, cell.inplace, cell.buffer, cell.group)
