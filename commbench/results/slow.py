"""Which devices of a run are slow: an exact test of their places among all, so that equal ones are seldom named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from commbench.results.stats import FEWEST_ROUNDS, median

SLOW = 1.05  # a device is named where it is slow even with its bandwidth raised by so much
FALSE_ALARMS = 0.05  # the share of runs of equal devices in which one is named at most

Block = tuple[int, int, int]  # study, session, round: in it all devices did the same at once


@dataclass(frozen=True)
class Slow:
    """A device that is slower than chance has it."""

    rank: int
    share: float  # of the others' median: the median over blocks
    blocks: int


def slow(rates: Sequence[Mapping[Block, float]]) -> list[Slow]:
    """Return which devices are surely slower than the others, by the bandwidth of each in each block.

    In a block, a device whose bandwidth is raised by SLOW has a place: how many of the others are no faster. Of equal
    devices every place is as likely as another, in each block anew, and so the chance of a sum of places at most as low
    is known exactly. A device is named where that chance, times the number of devices (Bonferroni), is at most
    FALSE_ALARMS: of two devices over six blocks at least; of more over FEWEST_ROUNDS, as intervals are.
    """
    number = len(rates)
    shared = sorted(set.intersection(*(set(one) for one in rates)))
    if number < 2 or len(shared) < FEWEST_ROUNDS:
        return []
    found = []
    for rank, mine in enumerate(rates):
        others = [one for other, one in enumerate(rates) if other != rank]
        places = [sum(one[block] <= SLOW * mine[block] for one in others) for block in shared]
        if number * at_most(sum(places), len(shared), number) <= FALSE_ALARMS:
            share = median([mine[block] / median([one[block] for one in others]) for block in shared])
            found.append(Slow(rank, share, len(shared)))
    return found


def at_most(total: int, blocks: int, number: int) -> float:
    """Return the chance that places, each evenly from 0 to `number` - 1, sum up to `total` at most over blocks."""
    return sum(_chances(blocks, number)[: total + 1])


@cache
def _chances(blocks: int, number: int) -> list[float]:
    """Return the chance of each sum of places."""
    chances = [1.0]
    for _ in range(blocks):
        sums = [0.0, *accumulate(chances)]
        last = len(chances)
        ends = ((max(0, k - number + 1), min(k + 1, last)) for k in range(last + number - 1))
        chances = [(sums[end] - sums[begin]) / number for begin, end in ends]
    return chances
