"""How much is spent on a cell: what all ranks are told, while the agenda decides on rank 0."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_ITERATIONS, MOST_ITERATIONS = 3, 1000  # of a visit
ROUNDS, FEW_ROUNDS = 12, 5  # few: with fixed iterations, and where ranks outnumber cores, which no round mends


@dataclass(frozen=True)
class Effort:
    """How much is spent: `iterations` None lets precision decide; times in seconds, None without limit."""

    iterations: int | None
    warmup: int
    rounds: int
    precision: float
    max_seconds: float | None
    budget: float | None
    check: bool
    concurrent: bool  # all groups at once, or one after another
    method: str
    average: str  # how the ranks' times of an iteration become one: max, mean, min, rank0
    seed: int
    graph: int = 0  # collectives in a captured graph, on devices; 0: none is captured


def fitting(pace: float, seconds: float) -> int:
    """Return how many iterations of `pace` seconds fit into `seconds`, within what makes sense."""
    return max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(seconds / pace)))
