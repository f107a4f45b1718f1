"""What `commbench.pairs` visits, and when: the pairs of a round-robin tournament, the halves of a group, the incasts.

Pure functions of the places (the ranks that take part), a seed, and what was measured so far.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from commbench.errors import UsageError
from commbench.measure.cell import Group
from commbench.results.stats import median
from commbench.results.status import NOT_MEASURED, OK, TIMEOUT, WRONG
from commbench.results.suspects import SLOWER, STEADY, sign_test

PAIRS, INCAST, HALVE = "pairs", "incast", "halve"
PINGPONG, STREAM, ALLREDUCE = "pingpong", "stream", "allreduce"
MOST_PAIRS = 33_000  # 100,000 cells
FEWEST_TO_HALVE = 4


@dataclass(frozen=True)
class Duty:
    """What the ranks of a cell do together: `root` is the sender of a stream, or the receiver of an incast."""

    kind: str
    ranks: tuple[int, ...]
    root: int | None
    size: int  # bytes of a message

    @property
    def volume(self) -> int:
        """The bytes that a rate is about: those of one message, or of one from each sender."""
        return self.size * (len(self.ranks) - 1) if self.kind == INCAST else self.size


@dataclass(frozen=True)
class Visit:
    """Cells that are visited at once, in which round."""

    number: int
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Cells, and the group that each belongs to."""

    groups: list[Group]
    duties: list[Duty]
    owners: list[str]  # the group of each duty, by name


def pairs(places: Sequence[int], names: Sequence[str], small: int, large: int) -> Plan:
    """Return the plan of every pair: ping-pong, a stream there and a stream back, in this order for each pair."""
    if len(places) * (len(places) - 1) // 2 > MOST_PAIRS:
        raise UsageError(
            f"there can be at most {MOST_PAIRS} pairs, and {len(places)} nodes or ranks have "
            f"{len(places) * (len(places) - 1) // 2}: take fewer at a time, or --halve"
        )
    groups, duties, owners = [], [], []
    for (i, one), (j, other) in combinations(enumerate(places), 2):
        groups.append(Group(f"{names[i]} - {names[j]}", (one, other)))
        ends = (one, other)
        duties += [
            Duty(PINGPONG, ends, None, small),
            Duty(STREAM, ends, one, large),
            Duty(STREAM, ends, other, large),
        ]
        owners += [groups[-1].name] * 3
    return Plan(groups, duties, owners)


def pair_visits(n: int, rounds: int, seed: int, concurrent: bool) -> Iterator[Visit]:
    """Yield the visits of `rounds` tournaments among `n` places, each in another order: who meets at once differs."""
    index = {pair: number for number, pair in enumerate(combinations(range(n), 2))}
    for number in range(rounds):
        places = list(range(n))
        random.Random(f"{seed} {number}").shuffle(places)
        for turn in circle(places):
            for kind in range(3):
                cells = tuple(3 * index[pair] + kind for pair in turn)
                yield from [Visit(number, cells)] if concurrent else [Visit(number, (cell,)) for cell in cells]


def circle(places: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield turns of disjoint pairs (lower, higher), in which everyone meets everyone once: the circle method.

    One place stays, the others move around it; with an odd number of places, one sits out each turn.
    """
    ring: list[int | None] = [*places, *([None] if len(places) % 2 else [])]
    half = len(ring) // 2
    for _ in range(len(ring) - 1):
        turn = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in turn if a is not None and b is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def incasts(places: Sequence[int], names: Sequence[str], senders: int, large: int) -> Plan:
    """Return the plan of `senders` to one, for every receiver; the senders are those that follow it."""
    n = len(places)
    if not 1 <= senders < n:
        raise UsageError(f"--incast is a number of senders from 1 to {n - 1} with {n} nodes or ranks, not {senders}")
    groups, duties = [], []
    for i, receiver in enumerate(places):
        ranks = (receiver, *(places[(i + step) % n] for step in range(1, senders + 1)))
        groups.append(Group(f"{senders} to {names[i]}", ranks))
        duties.append(Duty(INCAST, ranks, receiver, large))
    return Plan(groups, duties, [group.name for group in groups])


def incast_visits(n: int, rounds: int, seed: int) -> Iterator[Visit]:
    """Yield each incast by itself, in shuffled order."""
    for number in range(rounds):
        cells = list(range(n))
        random.Random(f"{seed} {number}").shuffle(cells)
        yield from (Visit(number, (cell,)) for cell in cells)


@dataclass(frozen=True)
class Split:
    """Two groups of equal size to be compared: one with the first half of `suspects` in it, one with the second.

    What a half lacks to the common size is filled up by places that are known to be good.
    """

    halves: tuple[tuple[int, ...], tuple[int, ...]]
    first: int  # its two cells are `first` and the next


class Halving:
    """The search for one bad place by halving: each question is whether one half is slower than the other.

    The places that fill a half up are the ones that an earlier question cleared, so that every group that may be asked
    about is known from the start, and is a cell; those off the way of the search are never measured.
    """

    def __init__(self, places: Sequence[int], names: Sequence[str], large: int) -> None:
        n = len(places)
        if n < FEWEST_TO_HALVE:
            raise UsageError(f"--halve needs at least {FEWEST_TO_HALVE} nodes (of one node: ranks), and there are {n}")
        self._places, self._names, self._large = places, names, large
        self.plan = Plan([], [], [])
        self._splits: dict[tuple[int, ...], Split] = {}
        even = tuple(range(n - n % 2))
        self._ask(even, ())
        self.start = even
        self.spare = () if n % 2 == 0 else (n - 1,)
        if self.spare:  # held against one of the others, which are alike when it comes to this
            self._splits[self.spare] = self._pair_up(self.spare, (0,), (1, 2))

    def _ask(self, suspects: tuple[int, ...], good: tuple[int, ...]) -> None:
        if len(suspects) < 2:
            return
        one, other = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        self._splits[suspects] = self._pair_up(one, other, good)
        self._ask(one, good + other)
        self._ask(other, good + one)

    def _pair_up(self, one: tuple[int, ...], other: tuple[int, ...], good: tuple[int, ...]) -> Split:
        width = max(2, len(one), len(other))
        first = len(self.plan.duties)
        for half in (one, other):
            filled = half + good[: width - len(half)]
            ranks = tuple(self._places[place] for place in filled)
            label = f"with {self._label(half)}" + (f" and {self._label(filled[len(half) :])}" * (filled != half))
            number = len(self.plan.groups)
            self.plan.groups.append(Group(f"{number}: {label}", ranks))
            self.plan.duties.append(Duty(ALLREDUCE, ranks, None, self._large))
            self.plan.owners.append(self.plan.groups[-1].name)
        return Split((one, other), first)

    def _label(self, places: Sequence[int]) -> str:
        shown = [self._names[place] for place in places]
        return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]} to {shown[-1]} ({len(shown)})"

    def visits(self, journal: Mapping[int, Sequence[Mapping[str, Any]]], rounds: int) -> Iterator[Visit]:
        """Yield what is to be measured next; `journal` (visits by cell) grows meanwhile."""
        while True:
            asked, _ = self._follow(journal, rounds)
            if asked is None:
                return
            split = self._splits[asked]
            if any(visit["status"] == WRONG for cell in (split.first, split.first + 1) for visit in journal[cell]):
                return
            number = min(len(_times(journal, cell)) for cell in (split.first, split.first + 1))
            turn = (split.first, split.first + 1)
            for cell in turn if number % 2 == 0 else reversed(turn):
                if len(_times(journal, cell)) == number:
                    yield Visit(number, (cell,))

    def verdict(self, journal: Mapping[int, Sequence[Mapping[str, Any]]], rounds: int) -> Verdict | None:
        """Return what the search has come to, None while it is not at its end."""
        return self._follow(journal, rounds)[1]

    def _follow(
        self, journal: Mapping[int, Sequence[Mapping[str, Any]]], rounds: int
    ) -> tuple[tuple[int, ...] | None, Verdict | None]:
        """Follow the answers so far: return the suspects to be asked about next, or the verdict."""
        suspects, p, factor, fewest = self.start, 0.0, 1.0, rounds
        while len(suspects) > 1 or suspects == self.spare:
            split = self._splits[suspects]
            times = [_times(journal, cell)[:rounds] for cell in (split.first, split.first + 1)]
            if min(map(len, times)) < rounds:
                return suspects, None
            ratios = [one / other for one, other in zip(*times, strict=True)]
            middle = median(ratios)
            slow = 0 if middle >= 1 / SLOWER else 1 if middle <= SLOWER else None
            shown = sum(ratio >= 1 / SLOWER if slow == 0 else ratio <= SLOWER for ratio in ratios)
            if slow is None or shown < STEADY * rounds or (suspects == self.spare and slow == 1):
                if suspects == self.start and self.spare:
                    suspects = self.spare
                    continue
                return None, Verdict(() if suspects in (self.start, self.spare) else suspects, 1.0, 1.0, 0)
            p = min(1.0, round(p + sign_test(shown, rounds), 4))  # a wrong answer to any question misleads the search
            fewest = min(fewest, shown)
            factor = middle if slow == 0 else 1 / middle
            if suspects == self.spare:
                break
            suspects = split.halves[slow]
        return None, Verdict(suspects, factor, p, fewest)


@dataclass(frozen=True)
class Verdict:
    """Where the halving ended: the places left (none: all halves are alike), how much slower groups with them are."""

    places: tuple[int, ...]
    factor: float
    p: float  # of the sign tests of all halvings together: at most the sum of theirs; 1 where the last showed nothing
    rounds_shown: int  # the fewest of any halving


def _times(journal: Mapping[int, Sequence[Mapping[str, Any]]], cell: int) -> list[float]:
    return [visit["median_us"] for visit in journal[cell] if visit["status"] == OK]


def left_over(visits: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Whether a cell with these visits still lacks the one of round `number`."""
    return not any(visit["round"] == number and visit["status"] not in (NOT_MEASURED, TIMEOUT) for visit in visits)
