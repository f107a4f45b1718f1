"""Runs of kernels in a report: the levels of each waterfall over devices and launches, and the outcome in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from commbench.report.compare import MARGIN
from commbench.report.content import Content
from commbench.results.kernels import BASELINE, CEILING
from commbench.results.status import OK

NEAR = 0.1  # a share so far from what is predicted, relatively, is explained by it
Frame: TypeAlias = Any  # a pandas.DataFrame


@dataclass(frozen=True)
class Level:
    """One level of a factor: of one device and launch its median and interval over rounds, of several theirs.

    Shares are of the baseline's bandwidth, and None where there is none: no data sheet, fewer than five rounds.
    """

    factor: str
    level: str
    share: float
    low: float | None  # of one row its interval over rounds; of several the least and the most of their medians
    high: float | None
    predicted_low: float | None
    predicted_high: float | None
    rate: float  # GB/s
    of_ceiling: float | None
    of_peak: float | None  # of the data sheet's bandwidth
    row: int  # of the table, the first one
    below_prediction: bool  # whether all intervals over rounds lie below the predicted bracket by more than 5 %
    by_launch: bool  # whether empty launches take most of its time: nothing is predicted then
    relative: bool  # whether its prediction is of another row than the baseline, and scaled by what that measured

    @property
    def name(self) -> str:
        """Factor and level."""
        return f"{self.factor} {self.level}".rstrip()


def studies(content: Content) -> Iterator[tuple[str, str, str, Frame]]:
    """Yield the right rows of each side, kernel and type: the side's letter, kernel, type, rows."""
    rows = content.kernels
    rows = rows[(rows["status"] == OK) & (rows["algbw"] > 0)]
    if len(rows):
        for (side, kernel, dtype), those in rows.groupby(["side", "kernel", "dtype"], sort=False):
            yield str(side), str(kernel), str(dtype), those


def levels(rows: Frame) -> list[Level]:
    """Return the levels of one study's rows, in the plan's order: medians over devices and launches."""
    found = []
    for (factor, level), those in rows.groupby(["factor", "level"], sort=False):
        shares = those["of_baseline"].dropna()
        if shares.empty:
            continue
        several = len(shares) > 1
        empty = bool(those["by_launch"].eq(True).any())
        scale = (those["of_baseline"] / those["of_reference"]).median()  # predictions are of the row held against
        found.append(
            Level(
                factor=str(factor),
                level=str(level),
                share=float(shares.median()),
                low=_known(shares.min() if several else those["of_baseline_low"].iloc[0]),
                high=_known(shares.max() if several else those["of_baseline_high"].iloc[0]),
                predicted_low=None if empty else _known(those["predicted_low"].median() * scale),
                predicted_high=None if empty else _known(those["predicted_high"].median() * scale),
                rate=float(those["algbw"].median()),
                of_ceiling=_known(those["of_ceiling"].median()),
                of_peak=_known(those["of_peak"].median()),
                row=int(those.index[0]),
                below_prediction=bool((those["of_reference_high"] * (1 + MARGIN) < those["predicted_low"]).all())
                and not empty,
                by_launch=empty,
                relative=any(those["against"] != BASELINE),
            )
        )
    return found


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def reached(content: Content) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Say what each side's baselines reached, with the rows that show it."""
    texts: dict[str, list[str]] = {}
    shown: dict[str, list[int]] = {}
    for side, kernel, dtype, rows in studies(content):
        base = rows[rows["factor"] == BASELINE]
        if base.empty:
            continue
        (level,) = levels(base)
        parts = [] if level.of_ceiling is None else [f"{ratio(level.of_ceiling)} of the same bytes copied"]
        parts += [] if level.of_peak is None else [f"{ratio(level.of_peak)} of the data sheet's peak"]
        several = [f"{rate(base['algbw'].min())} to {rate(base['algbw'].max())}"] if len(base) > 1 else []
        about = f" ({', '.join([*several, *parts])})" if several or parts else ""
        texts.setdefault(side, []).append(f"{kernel} {dtype} {rate(level.rate)} GB/s{about}")
        shown.setdefault(side, []).extend(map(int, base.index))
    for side, those in texts.items():
        yield f"{side}: baselines, medians over devices and launches: {'; '.join(those)}", tuple(shown[side])


def lost(content: Content) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Say which devices are slow, and which levels are below all that traffic explains, with their rows."""
    rows = content.kernels
    slow = rows[rows["slow"].eq(True)] if len(rows) else rows
    for (side, device), those in slow.groupby(["side", "device"], sort=False) if len(slow) else ():
        worst = those.loc[those["of_others"].idxmin()]
        text = (
            f"{side}: {device} is slow: {worst['kernel']} {worst['dtype']} at {worst['of_others']:.2f} of the others' "
            f"median ({worst['of_others_low']:.2f} to {worst['of_others_high']:.2f})"
        )
        kernels = len(those.drop_duplicates(["kernel", "dtype"]))
        yield text + (f", and {kernels - 1} more" if kernels > 1 else ""), tuple(those.index)
    for side, kernel, dtype, those in studies(content):
        below = [one for one in levels(those) if one.factor not in (BASELINE, CEILING) and one.below_prediction]
        if below:
            below.sort(key=lambda one: one.share / (one.predicted_low or 1.0))
            names = ", ".join(f"{one.name} ({ratio(one.share)}, predicted {predicted(one)})" for one in below)
            text = f"{side}: {kernel} {dtype}: more is lost than the bytes moved explain: {names} of the baseline"
            yield text, tuple(one.row for one in below)


def explained(content: Content) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Say of how many levels the bytes moved explain what is left, with their rows."""
    for side, kernel, dtype, rows in studies(content):
        found = [one for one in levels(rows) if one.factor not in (BASELINE, CEILING) and one.predicted_low is not None]
        if found:
            text = f"{side}: {kernel} {dtype}: bytes moved explain {sum(map(_explained, found))} of {len(found)} levels"
            yield f"{text} within {NEAR:.0%} of what is predicted", tuple(one.row for one in found)


def launched(content: Content) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Say which levels measured launches more than memory, with their rows."""
    for side, kernel, dtype, rows in studies(content):
        if found := [one for one in levels(rows) if one.by_launch]:
            text = (
                f"{side}: {kernel} {dtype}: empty launches take over a third of the time of {len(found)} levels, or "
                "of what they are held against: these say little of memory, a larger --size says more"
            )
            yield text, tuple(one.row for one in found)


def _explained(level: Level) -> bool:
    low, high = level.predicted_low, level.predicted_high
    return low is not None and high is not None and low * (1 - NEAR) <= level.share <= high * (1 + NEAR)


def predicted(level: Level) -> str:
    """Return the predicted bracket as text."""
    return bracket(level.predicted_low, level.predicted_high)


def bracket(low: float | None, high: float | None) -> str:
    """Return a bracket as text: one number where both ends print alike."""
    ends = list(dict.fromkeys(map(ratio, (low, high))))
    return " to ".join(ends)


def rate(value: float) -> str:
    """Return GB/s as text, with three digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Return a share as text."""
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
