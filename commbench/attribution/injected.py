"""Steps into which a delay was put on purpose, held against those beside them that had none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.attribution.collectives import Split
from commbench.attribution.layers import LAYERS, WAITING, Layers
from commbench.attribution.trace import Trace
from commbench.errors import UsageError
from commbench.results.stats import median, median_interval
from commbench.results.training import FORMAT, TRAINING


@dataclass(frozen=True)
class Injection:
    """What was put into which steps."""

    faults: str  # as it was asked for: slow-rank=1:50ms
    ranks: tuple[int, ...]  # that were held up; (): all
    steps: frozenset[int]


@dataclass(frozen=True)
class Measured:
    """A median over pairs of steps, in ns, and its interval, of at least 93 %; None below five pairs."""

    value: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Effect:
    """What an injection added to a step, in ns: medians over pairs of a step with it and the one beside it without.

    The others are the ranks that were not held up, all where all were. They wait for the delay itself at the first
    collective of a step. At later ones part of it has passed already, and under work it does not hold up the step.
    """

    injection: Injection
    pairs: int
    step: float  # to the longest rank's step
    first: Measured | None  # to the waiting of the others at a step's first collective; None without collectives
    exposed: Measured  # to that of the others that nothing hides, at all collectives of a step
    layers: dict[str, float]  # to the mean of each layer on the ranks that were held up


def read_injection(paths: Iterable[str | Path]) -> Injection | None:
    """Return which faults acted in which steps, as the `training.json` of a folder says; None where none did.

    Raises UsageError for a file that is not as commbench.train writes it.
    """
    for folder in dict.fromkeys(path if path.is_dir() else path.parent for path in map(Path, paths)):
        path = folder / TRAINING
        if not path.exists():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (version := content["format"]) != FORMAT:
                raise UsageError(
                    f"{TRAINING} has format {FORMAT}, and {path} has {version!r}: read it with its own version"
                )
            faults = [str(text) for text in content["faults"]]
            steps = frozenset(int(one["step"]) for one in content["steps"] if one["injected"])
            ranks = {fault.partition("=")[2].partition(":")[0] for fault in faults}
            held = () if "*" in ranks else tuple(sorted(map(int, ranks)))
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"{path} is not as commbench.train writes it ({type(error).__name__}): remove it, or train anew"
            ) from None
        if steps:
            return Injection(", ".join(faults), held, steps)
    return None


def effect(
    traces: Sequence[Trace],
    layers: Sequence[Sequence[Layers]],
    splits: Mapping[int | None, Sequence[Split]],
    injection: Injection,
) -> Effect | None:
    """Return what an injection added; None where there are no steps without it, or no rank beside those held up.

    `splits`: of each step, in order of time.
    """
    every = range(len(traces))
    held = [place for place in every if not injection.ranks or traces[place].rank in injection.ranks]
    others = [place for place in every if not injection.ranks or place not in held]
    by_step = [{one.window.step: one for one in per if one.window.step is not None} for per in layers]
    known = sorted(set.intersection(*map(set, by_step))) if by_step else []
    pairs = _pairs([step for step in known if step is not None], injection.steps)
    if not pairs or not others or not held:
        return None

    def mean(places: Sequence[int], layer: str, step: int) -> float:
        return sum(by_step[place][step].total(layer) for place in places) / len(places)

    def length(step: int) -> int:
        return max(its[step].window.end - its[step].window.start for its in by_step)

    def added(places: Sequence[int], layer: str) -> list[float]:
        return [mean(places, layer, one) - mean(places, layer, other) for one, other in pairs]

    waits = {step: _first_wait(splits.get(step, ()), held, others) for pair in pairs for step in pair}
    first = [a - b for one, other in pairs if (a := waits[one]) is not None and (b := waits[other]) is not None]
    return Effect(
        injection,
        len(pairs),
        median([length(one) - length(other) for one, other in pairs]),
        _measured(first) if first else None,
        _measured(added(others, WAITING)),
        {layer: median(added(held, layer)) for layer in LAYERS},
    )


def _first_wait(splits: Sequence[Split], held: Sequence[int], others: Sequence[int]) -> float | None:
    """Return the mean wait (ns) of the others at the first collective at which they meet those held up."""
    for one in splits:
        waits = [wait for place, wait in zip(one.places, one.wait.tolist(), strict=True) if place in others]
        if waits and not one.skew_only and any(place in held for place in one.places):
            return float(sum(waits)) / len(waits)
    return None


def _measured(differences: Sequence[float]) -> Measured:
    low, high = median_interval(differences) or (None, None)
    return Measured(median(differences), low, high)


def _pairs(steps: Sequence[int], injected: frozenset[int]) -> list[tuple[int, int]]:
    """Return each step with an injection and the nearest one without, each used once."""
    free = [step for step in steps if step not in injected]
    pairs = []
    for step in steps:
        if step in injected and free:
            nearest = min(free, key=lambda other: (abs(other - step), other))
            free.remove(nearest)
            pairs.append((step, nearest))
    return pairs
