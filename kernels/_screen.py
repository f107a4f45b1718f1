"""What a person reads: a waterfall for each kernel and type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from commbench.kernels._study import Study
from commbench.results.kernels import BASELINE, CEILING, Result
from commbench.results.stats import median
from commbench.results.status import OK

NEAR = 0.1  # a share that far from the predicted bracket, relatively, is explained by it
CACHE = "cache"  # the factor whose rows are not of the memory
_BAR = 20  # characters for all of the baseline


def print_waterfalls(
    found: Sequence[Result], studies: Sequence[Study], names: Sequence[str], peak_source: str, out: TextIO
) -> None:
    """Print one table a study, its rows rank by rank."""
    for number, study in enumerate(studies):
        mine = [result for result in found if result.study == number]
        if all(one.record.algbw is None for one in mine):
            reasons = dict.fromkeys(f"{one.record.status}: {one.record.reason}" for one in mine)
            print(f"# {study.pattern.label} {study.dtype}: {'; '.join(reasons)}\n", file=out)
            continue
        _print_head(mine, study, names, peak_source, out)
        wide = f"{'rank':>4}  " * (len(names) > 1)
        print(
            f"#  {wide}{'factor':<13} {'level':<13} {'time (us)':>11}  {'GB/s':>8}  {'of baseline':>11}  "
            f"{'against':<10} {'share':>5} {'low':>5} {'high':>5}  {'predicted':>12}  {'#wrong':>6}",
            file=out,
        )
        for result in mine:
            print(_row(result, len(names) > 1), file=out)
        for line in _doubts(mine):
            print(f"# {line}", file=out)
        print(file=out)


def _doubts(mine: Sequence[Result]) -> list[str]:
    """Return what is to be said of a table's rows: launches that hide the memory, a peak that is none."""
    lines = []
    if any(one.by_launch for one in mine):
        takes = median([one.launch_us for one in mine if one.by_launch and one.launch_us is not None])
        lines.append(
            f"L: launches alone, of no elements, take more than a third of the time ({takes:,.1f} us), here or in the "
            "row against: such rows say little of memory, and nothing is predicted; give a larger --size, or a quiet "
            "machine"
        )
    if beyond := [one for one in mine if one.of_peak is not None and one.of_peak > 1 and one.factor != CACHE]:
        names = ", ".join(dict.fromkeys(f"{one.factor} {one.level}".rstrip() for one in beyond))
        lines.append(f"above the peak of the memory: {names}: caches have a part in it, or the peak is another one")
    return lines


def answers(found: Sequence[Result]) -> list[str]:
    """Say what was found: what baselines reach of a copy, what is lost beyond what is predicted, what that explains."""
    right = [one for one in found if one.record.algbw is not None and not one.by_launch]
    base = [one for one in right if one.factor == BASELINE and one.of_ceiling is not None]
    lines = []
    if base:
        reached = sorted((one.of_ceiling.ratio, _named(one)) for one in base if one.of_ceiling is not None)
        texts = [f"{_ratio(ratio)} ({name})" for ratio, name in (reached[0], reached[-1])]
        lines.append(f"of a copy of the same bytes, the baseline reaches {' to '.join(dict.fromkeys(texts))}")
    shares = [
        (one, one.of_reference.ratio / one.predicted_low, one.of_reference.ratio / one.predicted_high)
        for one in right
        if one.factor not in (BASELINE, CEILING) and one.of_reference and one.predicted_low and one.predicted_high
    ]
    if shares:
        worst, low, _ = min(shares, key=lambda one: one[1])
        inside = sum(low >= 1 - NEAR and high <= 1 + NEAR for _, low, high in shares)
        lines.append(
            f"bytes moved explain {inside} of {len(shares)} levels: these are within {NEAR:.0%} of what is predicted"
        )
        if low < 1 - NEAR and worst.of_reference:
            ratio, least = _ratio(worst.of_reference.ratio), _ratio(worst.predicted_low)
            lines.append(
                f"the largest loss beyond that: {_named(worst)} {worst.factor} {worst.level}, {ratio} where at least "
                f"{least} is predicted: latency, launches or prefetches in vain, not bytes that are wanted"
            )
    if not lines and any(one.by_launch for one in found):
        lines.append("nothing is said of memory: launches take most of the time")
    return lines


def _named(result: Result) -> str:
    return f"{result.kernel} {result.record.dtype}"


def _print_head(mine: Sequence[Result], study: Study, names: Sequence[str], peak_source: str, out: TextIO) -> None:
    pattern = study.pattern
    count = max(row.problem.count for row in study.rows)
    print(
        f"# {pattern.label} {study.dtype}: {pattern.bytes_read} + {pattern.bytes_written} B an element read and "
        f"written, {count:,} elements",
        file=out,
    )
    for result in mine:
        if result.factor == BASELINE and result.record.algbw is not None and result.of_ceiling is not None:
            ceiling = next(one for one in mine if one.factor == CEILING and one.rank == result.rank)
            where = f"{names[result.rank]}: " * (len(names) > 1)
            peak = f"{result.of_peak:.2f} of {peak_source}" if result.of_peak else "peak not known (--peak)"
            print(
                f"# {where}baseline {rate(result.record.algbw)} GB/s, {_ratio(result.of_ceiling.ratio)} of the same "
                f"bytes copied ({rate(ceiling.record.algbw or 0.0)} GB/s), {peak}",
                file=out,
            )


def _row(result: Result, several: bool) -> str:
    record, share = result.record, result.of_reference
    rank = f"{result.rank:>4}  " * several
    if record.status != OK or record.algbw is None:
        return f"   {rank}{result.factor:<13} {result.level:<13} {record.status}: {record.reason}"
    ratio, low, high = (None, None, None) if share is None else (share.ratio, share.low, share.high)
    of_baseline = None if result.of_baseline is None else result.of_baseline.ratio
    predicted = "-"
    if result.factor in (BASELINE, CEILING):
        predicted = ""
    elif not result.by_launch and result.predicted_low is not None and result.predicted_high is not None:
        predicted = _ratio(result.predicted_low)
        if _ratio(result.predicted_high) != predicted:
            predicted += f" to {_ratio(result.predicted_high)}"
    time = f"{record.time_us or 0.0:>11.1f}{'L' if result.by_launch else ' '}"
    wrong = "N/A" if record.wrong is None else record.wrong
    bar = "#" * round(_BAR * min(of_baseline or 0.0, 1.5))
    shares = f"{_ratio(ratio):>5} {_ratio(low):>5} {_ratio(high):>5}"
    return (
        f"   {rank}{result.factor:<13} {result.level:<13} {time} {rate(record.algbw):>8}  {_ratio(of_baseline):>11}  "
        f"{result.against:<10} {shares}  {predicted:>12}  {wrong:>6}  {bar}"
    ).rstrip()


def rate(value: float) -> str:
    """Return GB/s as text: two decimals, or two digits where that is more."""
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:#.2g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
