"""What a person reads: a waterfall for each kernel and type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from commbench.kernels._study import Study
from commbench.results.kernels import BASELINE, CEILING, Result
from commbench.results.status import OK

_BAR = 20  # characters for all of the baseline


def print_waterfalls(
    found: Sequence[Result], studies: Sequence[Study], names: Sequence[str], peak_source: str, out: TextIO
) -> None:
    """Print one table a study, its rows rank by rank."""
    for number, study in enumerate(studies):
        mine = [result for result in found if result.study == number]
        _print_head(mine, study, names, peak_source, out)
        wide = f"{'rank':>4}  " * (len(names) > 1)
        print(
            f"#  {wide}{'factor':<13} {'level':<13} {'GB/s':>8}  {'of baseline':>11}  {'against':<10} {'share':>5} "
            f"{'low':>5} {'high':>5}  {'predicted':>12}  {'#wrong':>6}",
            file=out,
        )
        for result in mine:
            print(_row(result, len(names) > 1), file=out)
        print(file=out)


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
                f"# {where}baseline {result.record.algbw:.2f} GB/s, {_ratio(result.of_ceiling.ratio)} of the same "
                f"bytes copied ({ceiling.record.algbw or 0:.2f} GB/s), {peak}",
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
    elif result.predicted_low is not None and result.predicted_high is not None:
        predicted = _ratio(result.predicted_low)
        if _ratio(result.predicted_high) != predicted:
            predicted += f" to {_ratio(result.predicted_high)}"
    wrong = "N/A" if record.wrong is None else record.wrong
    bar = "#" * round(_BAR * min(of_baseline or 0.0, 1.5))
    shares = f"{_ratio(ratio):>5} {_ratio(low):>5} {_ratio(high):>5}"
    return (
        f"   {rank}{result.factor:<13} {result.level:<13} {record.algbw:>8.2f}  {_ratio(of_baseline):>11}  "
        f"{result.against:<10} {shares}  {predicted:>12}  {wrong:>6}  {bar}"
    ).rstrip()


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
