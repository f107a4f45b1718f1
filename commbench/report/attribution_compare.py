"""Two attributions held against each other, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from commbench.attribution.analyse import Attribution
from commbench.attribution.layers import LAYERS
from commbench.report.attribution_words import ms, percent, step_lengths
from commbench.report.summary import COMPARED, DOUBTED, Statement
from commbench.report.tables import Cell, Table
from commbench.results.spread import difference_interval
from commbench.results.stats import median
from commbench.topology.show import counted

STEP = "step"
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
    found = [Statement(COMPARED, _text(step))]
    certain = sorted((one for one in layers if one.certain), key=lambda one: -abs(one.difference))
    found += [Statement(COMPARED, _text(one)) for one in certain]
    rest = [one.layer for one in layers if not one.certain]
    if rest:
        found.append(Statement(COMPARED, f"no certain change: {', '.join(rest)}"))
    if len(a.traces) != len(b.traces):
        text = f"A has {counted(len(a.traces), 'rank')} and B {len(b.traces)}: parts of a rank's step are compared"
        found.append(Statement(DOUBTED, text))
    for name, one in (("A", a), ("B", b)):
        if one.unsplit >= 0.001:
            text = (
                f"in {percent(one.unsplit)} of {name} waiting cannot be told from transfer: it counts as communication"
            )
            found.append(Statement(DOUBTED, text))
    return [*found, Statement(DOUBTED, _ABOUT)]


def _text(one: Change) -> str:
    more = "more" if one.difference > 0 else "less"
    text = f"{one.layer}: {ms(one.a)} in A, {ms(one.b)} in B: {ms(abs(one.difference))} {more} a step"
    if one.low is None or one.high is None:
        return f"{text} (too few steps for an interval)"
    sure = "" if one.certain else ", which may be none"
    return f"{text} ({ms(one.low)} to {ms(one.high)}){sure}"


def table(a: Attribution, b: Attribution) -> Table:
    """Return a line a layer."""
    lines = []
    for one in changes(a, b):
        verdict = "cannot tell" if not one.certain else "more" if one.difference > 0 else "less"
        ends = [Cell("-") if end is None else _ms(end) for end in (one.low, one.high)]
        lines.append([Cell(one.layer), _ms(one.a), _ms(one.b), _ms(one.difference), *ends, Cell(verdict)])
    return Table(["layer", "A (ms)", "B (ms)", "B less A (ms)", "low", "high", "in B"], lines)


def _ms(ns: float) -> Cell:
    return Cell(f"{ns / 1e6:.4g}", ns / 1e6)
