"""What each factor leaves of a kernel's bandwidth, beside what the bytes moved predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from commbench.report.content import Content
from commbench.report.drawing import Drawing, plain
from commbench.report.kernels import Level, levels, rate, ratio, studies
from commbench.results.kernels import BASELINE, CEILING

PLACE = 2.2  # among the figures of a report
_TICK = "ends of what is predicted: caches join no, or all requests"
_TICKS = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each side, kernel and type that has factors."""
    for side, kernel, dtype, rows in studies(content):
        found = levels(rows)
        if not any(one.factor not in (BASELINE, CEILING) for one in found):
            continue
        several = rows.groupby(["factor", "level"]).size().max() > 1
        bars = "from the least to the most of devices and launches" if several else "interval over rounds"
        yield Drawing(
            f"waterfall-{side}-{kernel}-{dtype}",
            f"{side}: what each factor leaves of {kernel} {dtype}",
            f"Points: measured, {'medians over devices and launches' if several else 'the median over rounds'}; lines: "
            f"{bars}. Grey: predicted by the bytes of memory moved, if caches join no or all requests; without it, "
            "bytes cannot tell. Right: useful bytes a second. The axis is logarithmic.",
            partial(draw, found),
        )


def draw(found: Sequence[Level]) -> Any:
    """Return the picture: a line a level, the share of the baseline along."""
    from matplotlib.figure import Figure
    from seaborn import color_palette

    blue, orange, green, *_ = color_palette("colorblind")
    marks = {one.factor: one for one in found if one.factor in (BASELINE, CEILING)}
    rows = [one for one in found if one.factor not in marks]
    figure: Any = Figure(figsize=(8.5, 1.7 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for number, factor in enumerate(dict.fromkeys(one.factor for one in rows)):
        places = [place for place, one in enumerate(rows) if one.factor == factor]
        if number % 2 == 0:
            axes.axhspan(places[0] - 0.5, places[-1] + 0.5, color="grey", alpha=0.08, linewidth=0)
    for place, one in enumerate(rows):
        if one.predicted_low is not None and one.predicted_high is not None:
            ends = (one.predicted_low, one.predicted_high)
            axes.plot(ends, (place, place), color="grey", alpha=0.55, linewidth=7, solid_capstyle="butt", zorder=2)
            axes.plot(ends, (place, place), "|", color="crimson", markersize=11, markeredgewidth=1.8, zorder=5)
        colour = orange if one.below_prediction else blue
        if one.low is not None and one.high is not None:
            axes.plot((one.low, one.high), (place, place), color=colour, linewidth=1.6, zorder=4)
        axes.plot(one.share, place, "o", color=colour, markersize=5, zorder=4)
        side = axes.get_yaxis_transform()
        axes.text(1.01, place, f"{rate(one.rate)} GB/s", transform=side, va="center", fontsize="small", clip_on=False)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=1.2, zorder=1.5)  # below the ticks of what is predicted
    ceiling, base = marks.get(CEILING), marks.get(BASELINE)
    if ceiling is not None:
        axes.axvline(ceiling.share, color=green, linestyle="--", linewidth=1.2)
    if base is not None and base.of_peak:
        axes.axvline(1 / base.of_peak, color="0.3", linestyle=":", linewidth=1.4)
    low, high = axes.get_xlim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    relative = any(one.relative and one.predicted_low is not None for one in rows)
    about = "; predictions are of the row held against, at what that reached" if relative else ""
    axes.set_xlabel(f"share of the baseline's bandwidth{about}")
    axes.set_yticks(range(len(rows)), [plain(one.name) for one in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    _legend(figure, axes, rows, ceiling, base, (blue, orange, green))
    return figure


def _legend(
    figure: Any, axes: Any, rows: Sequence[Level], ceiling: Level | None, base: Level | None, colours: Any
) -> None:
    blue, orange, green = colours
    handles = [axes.plot([], [], "o-", color=blue, label="measured")[0]]
    if any(one.below_prediction for one in rows):
        handles += axes.plot([], [], "o-", color=orange, label="measured, surely below what is predicted")
    handles += axes.plot([], [], color="grey", alpha=0.55, linewidth=7, label="predicted by bytes moved")
    handles += axes.plot([], [], "|", color="crimson", markersize=11, markeredgewidth=1.8, label=_TICK)
    if base is not None:
        handles += axes.plot([], [], color="black", label=f"baseline, {rate(base.rate)} GB/s")
    if ceiling is not None:
        label = f"the same bytes copied, {rate(ceiling.rate)} GB/s"
        handles += axes.plot([], [], color=green, linestyle="--", label=label)
    if base is not None and base.of_peak:
        peak = f"data sheet, {rate(base.rate / base.of_peak)} GB/s (baseline: {ratio(base.of_peak)} of it)"
        handles += axes.plot([], [], color="0.3", linestyle=":", label=peak)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
