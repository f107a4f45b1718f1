"""Faults that are injected on purpose: a rank that is late, late data, more to compute, jitter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from commbench.errors import UsageError, unknown_name

SLOW_RANK, LATE_DATA, SLOW_COMPUTE, JITTER = "slow-rank", "late-data", "slow-compute", "jitter"
KINDS = (SLOW_RANK, LATE_DATA, SLOW_COMPUTE, JITTER)
EVERY = "*"
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>us|ms|s)")
LONGEST = 3600.0  # seconds of a fault: a step that takes longer is no step
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a rank."""

    kind: str
    rank: int | None  # None: every rank
    amount: float  # seconds; of SLOW_COMPUTE the operations of a step over those that it should have
    text: str  # as it was asked for

    def concerns(self, rank: int) -> bool:
        return self.rank is None or self.rank == rank


def parse(text: str) -> Fault:
    """Return the fault that `text` asks for: slow-rank=1:50ms, late-data=0:20ms, slow-compute=1:1.5, jitter=*:5ms."""
    kind, _, rest = text.partition("=")
    rank, _, amount = rest.partition(":")
    if not rank or not amount:
        raise UsageError(f"--inject is KIND=RANK:AMOUNT, such as slow-rank=1:50ms, not {text!r}")
    if kind not in KINDS:
        raise unknown_name("fault", kind, KINDS)
    if not (rank.isascii() and rank.isdecimal()) and rank != EVERY:
        raise UsageError(f"--inject {kind}=RANK:AMOUNT names a rank by its number, or * for every rank, not {rank!r}")
    return Fault(kind, None if rank == EVERY else int(rank), _amount(kind, amount, text), text)


def _amount(kind: str, amount: str, text: str) -> float:
    if kind == SLOW_COMPUTE:
        try:
            factor = float(amount)
        except ValueError:
            factor = 0.0
        if not 1 < factor <= 1000:
            raise UsageError(f"--inject {kind}=RANK:FACTOR has a factor above 1 and at most 1000, not {text!r}")
        return factor
    match = _DURATION.fullmatch(amount)
    if not match:
        raise UsageError(f"--inject {kind}=RANK:TIME has a time with its unit (50ms, 0.5s, 800us), not {text!r}")
    seconds = float(match["number"]) * _UNITS[match["unit"]]
    if seconds > LONGEST:
        raise UsageError(f"--inject {kind}=RANK:TIME has a time of {LONGEST:g} s at most, not {text!r}")
    return seconds


@dataclass(frozen=True)
class Injection:
    """The faults of one rank, and the steps in which they act: from `first` on, with `alternate` every other one."""

    faults: Sequence[Fault]
    rank: int
    first: int  # step
    alternate: bool = False
    seed: int = 1

    def acts(self, step: int) -> bool:
        """Whether faults act in a step, on whichever rank: alike on all, so that the others are a control."""
        return bool(self.faults) and step >= self.first and (not self.alternate or (step - self.first) % 2 == 1)

    def seconds(self, kind: str, step: int, micro: int = 0) -> float:
        """Return how long this rank is to be held up by faults of a kind; by jitter, uniformly up to its amount."""
        found = self._amounts(kind, step)
        if kind == JITTER:
            draw = Random(f"{self.seed} {self.rank} {step} {micro}")
            return sum(draw.uniform(0.0, amount) for amount in found)
        return sum(found)

    def factor(self, step: int) -> float:
        """Return the operations that this rank has to carry out over those that the step should have."""
        return 1.0 + sum(amount - 1.0 for amount in self._amounts(SLOW_COMPUTE, step))

    def _amounts(self, kind: str, step: int) -> list[float]:
        here = (fault for fault in self.faults if fault.kind == kind and fault.concerns(self.rank))
        return [fault.amount for fault in here] if self.acts(step) else []
