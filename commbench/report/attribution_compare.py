"""Two attributions held against each other, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from commbench.attribution.advice import convicted
from commbench.attribution.analyse import Attribution
from commbench.attribution.layers import LAYERS
from commbench.report.attribution_words import ms, percent, step_lengths, waiting
from commbench.report.summary import COMPARED, DOUBTED, SLOW, Statement
from commbench.report.tables import Cell, Table
from commbench.results.spread import difference_interval
from commbench.results.stats import median
from commbench.topology.show import counted
from commbench.units import format_size

STEP = "step"
ESTIMATOR = (
    "median of the differences of all pairs of steps, one of B less one of A, with its interval of about 95 %; "
    "not the difference of the medians in A and B, from which it may differ, in sign as well"
)
_NAMED = 4  # collectives in a statement
_ABOUT = (
    "steps of one run are not launches: intervals are over these steps, each alone, and equal launches differ by more"
)


@dataclass(frozen=True)
class Change:
    """What a layer takes of a step, the mean over ranks, in two runs. Durations in ns."""

    layer: str  # of LAYERS, or STEP: all of the longest rank's step
    a: float  # the median over steps
    b: float
    difference: float  # of b less a: the median over all pairs of steps
    low: float | None  # its interval over steps, about 95 %; None of few steps
    high: float | None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves no doubt of the difference's sign."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def verdict(self) -> str:
        """What B takes: "more", "less", or "cannot tell"."""
        return "cannot tell" if not self.certain else "more" if self.difference > 0 else "less"


def changes(a: Attribution, b: Attribution) -> list[Change]:
    """Return the change of the step, then of each layer; none where a run has no work."""
    found = []
    for layer in (STEP, *LAYERS):
        one, other = (_by_step(run, layer) for run in (a, b))
        if not one or not other:
            return []
        difference, low, high = difference_interval(one, other)
        assert difference is not None
        found.append(Change(layer, median(one), median(other), difference, low, high))
    return found


def _by_step(found: Attribution, layer: str) -> list[float]:
    """Return a layer's time (ns) in each step, the mean over ranks."""
    if layer == STEP:
        return [float(length) for length in step_lengths(found)]
    by_step: dict[int | None, list[int]] = {}
    for per, its in zip(found.layers, found.parts, strict=True):
        for one, parts in zip(per, its, strict=True):
            by_step.setdefault(one.window.step, []).append(parts[layer])
    return [sum(times) / len(times) for times in by_step.values()]


def words(a: Attribution, b: Attribution) -> list[Statement]:
    """Return the comparison in words: what changed for certain, the largest change first."""
    every = changes(a, b)
    if not every:
        return [Statement(DOUBTED, "one of the runs holds no work: nothing can be compared")]
    step, *layers = every
    side_a, side_b = _sides(a, b)
    found = [Statement(COMPARED, f"A: {side_a}, B: {side_b}"), Statement(COMPARED, _text(step))]
    certain = sorted((one for one in layers if one.certain), key=lambda one: -abs(one.difference))
    found += [Statement(COMPARED, _text(one)) for one in certain]
    rest = [one.layer for one in layers if not one.certain]
    if rest:
        found.append(Statement(COMPARED, f"no certain change: {', '.join(rest)}"))
    if any(one.splits for one in (a, b)):
        found.append(Statement(SLOW, f"late: in A {_late(a)}; in B {_late(b)}"))
    if len(a.traces) != len(b.traces):
        text = f"A has {counted(len(a.traces), 'rank')} and B {len(b.traces)}: parts of a rank's step are compared"
        found.append(Statement(DOUBTED, text))
    if unlike := "; ".join(_unlike(a, b)):
        found.append(Statement(DOUBTED, f"the collectives that were matched differ: {unlike}"))
    for name, one in (("A", a), ("B", b)):
        if one.unsplit >= 0.001:
            text = (
                f"in {percent(one.unsplit)} of {name} waiting cannot be told from transfer: it counts as communication"
            )
            found.append(Statement(DOUBTED, text))
    return [*found, Statement(DOUBTED, _ABOUT)]


def _late(found: Attribution) -> str:
    """Return who is late in a run, and how long the others wait for it."""
    late = [f"rank {one.rank} ({waiting(found, one)})" for one in convicted(found)[:_NAMED]]
    return ", ".join(late) or "no rank by more than chance gives"


def _sides(a: Attribution, b: Attribution) -> tuple[str, str]:
    """Return where the traces of each run are: their folders, or the files where the folders do not tell them apart."""
    files = [[trace.source for trace in run.traces] for run in (a, b)]
    folders = [[os.path.dirname(file) or "." for file in its] for its in files]
    one, other = map(_first, folders)
    return (one, other) if one != other else (_first(files[0]), _first(files[1]))


def _first(paths: Iterable[str]) -> str:
    first, *others = dict.fromkeys(paths)
    return f"{first} and {len(others)} more" if others else first


def _unlike(a: Attribution, b: Attribution) -> Iterator[str]:
    """Yield which operations and sizes of collectives only one of the runs has."""
    of_a, of_b = (dict.fromkeys((one.meeting.operation, one.meeting.size) for one in run.splits) for run in (a, b))
    for name, its, others in (("A", of_a, of_b), ("B", of_b, of_a)):
        only = [
            f"{what} of {'?' if size is None else format_size(size)}"
            for what, size in its
            if (what, size) not in others
        ]
        more = f" and {len(only) - _NAMED} more" if len(only) > _NAMED else ""
        if only:
            yield f"only {name} has {', '.join(only[:_NAMED])}{more}"


def _text(one: Change) -> str:
    text = f"{one.layer}: median {ms(one.a)} in A, {ms(one.b)} in B"
    if one.low is None or one.high is None:
        return f"{text}; not told apart: too few steps for an interval"
    if not one.certain:
        return f"{text}; not told apart: {_range(one.low, one.high)} a step"
    ends = _range(*sorted((abs(one.low), abs(one.high))))
    return f"{text}; {ms(abs(one.difference))} {one.verdict} a step ({ends} {one.verdict})"


def _range(low: float, high: float) -> str:
    """Return the ends of an interval, with one unit where both have the same."""
    (first, unit), last = ms(low).split(), ms(high)
    return f"{first} to {last}" if last.endswith(f" {unit}") else f"{first} {unit} to {last}"


def as_json(a: Attribution, b: Attribution) -> dict[str, Any]:
    """Return the comparison: which runs, its words, and a line a layer; no number that was not found."""
    names = ("a", "b", "difference", "low", "high")
    side_a, side_b = _sides(a, b)
    return {
        **{"a": side_a, "b": side_b, "difference": ESTIMATOR},
        "words": [{"kind": one.kind, "text": one.text} for one in words(a, b)],
        "layers": [
            {"layer": one.layer, **{f"{name}_ns": getattr(one, name) for name in names}, "verdict": one.verdict}
            for one in changes(a, b)
        ],
    }


def table(a: Attribution, b: Attribution) -> Table:
    """Return a line a layer."""
    lines = []
    for one in changes(a, b):
        ends = [Cell("-") if end is None else _ms(end) for end in (one.low, one.high)]
        lines.append([Cell(one.layer), _ms(one.a), _ms(one.b), _ms(one.difference), *ends, Cell(one.verdict)])
    return Table(["layer", "A (ms)", "B (ms)", "B less A (ms)", "low", "high", "in B"], lines)


def _ms(ns: float) -> Cell:
    return Cell(f"{ns / 1e6:.4g}", ns / 1e6)
