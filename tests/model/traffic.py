"""What a schedule moves, counted from its steps."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from commbench.model.schedule import Group, Schedule

# Of a step's transfers, source and target: those that count.
Which = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sent(group: Group, schedule: Schedule, which: Which | None = None, received: bool = False) -> list[Fraction]:
    """How many whole buffers each rank sends (or receives) in all, then each domain's switch, then the network's."""
    blocks = np.zeros(group.n + group.domains + 1, dtype=np.int64)
    for step in schedule.steps:
        taken = which(step.source, step.target) if which else np.ones(len(step.source), dtype=bool)
        end = step.target if received else step.source
        np.add.at(blocks, end[taken], step.count[taken] * step.times)
    return [Fraction(int(count), schedule.blocks) for count in blocks]


def repetitions(schedule: Schedule) -> int:
    """How many steps follow one another."""
    return sum(step.times for step in schedule.steps)
