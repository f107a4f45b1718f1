"""How far times scatter: within a visit, and between rounds or launches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import FAMILY, Content, Frame
from commbench.report.drawing import Drawing, colours_and_markers, log_axis, plain, size_axis
from commbench.results.kernels import KERNELS

PLACE = 4


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each side whose records tell of single iterations, or that has several launches."""
    timed = content.timed[content.timed["collective"] != KERNELS]  # of those, waterfalls have intervals
    for letter in content.sides:
        rows = timed[(timed["side"] == letter) & (timed["size"] > 0)]
        spread = _spread(rows)
        if rows["time_us_p99"].notna().any() or len(spread):
            yield Drawing(
                f"variability-{letter}",
                f"{letter}: how far times scatter",
                "Left: the 99th percentile of the iterations over their median, a point a record (1: all alike). "
                "Right: how far a cell's times lie apart from launch to launch, or, within one launch, the interval "
                "over its rounds, as a part of the median.",
                partial(draw, rows, spread),
            )


def _spread(rows: Frame) -> Frame:
    """Return for each cell how far its launches lie apart, else the width of its interval, as a part of its time."""
    import pandas

    found = []
    for cell, those in rows.groupby([*FAMILY, "label", "place", "size"], dropna=False, sort=False):
        name, (label, place, size) = cell[0], cell[-3:]
        middle = those["time_us"].median()
        width = those["time_us"].max() - those["time_us"].min()
        if those["source"].nunique() < 2:
            width = (those["time_us_high"] - those["time_us_low"]).max()
        if width > 0:
            found.append((f"{name} {label} {place}", size, width / middle))
    return pandas.DataFrame(found, columns=["series", "size", "part"])


def draw(rows: Frame, spread: Frame) -> Any:
    """Return the picture."""
    from matplotlib.figure import Figure

    tails = rows[rows["time_us_p99"].notna()]
    tails = tails.assign(
        series=[f"{name} {label} {place}" for name, label, place in zip(*(tails[c] for c in _SERIES), strict=True)],
        part=tails["time_us_p99"] / tails["time_us"],
    )
    colours, markers = colours_and_markers([*tails["series"], *spread["series"]])
    figure: Any = Figure(figsize=(11, 4.2), layout="constrained")
    panels = [(tails, "99th percentile / median"), (spread, "spread / median")]
    panels = [(data, text) for data, text in panels if len(data)]
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (data, text) in zip(every, panels, strict=True):
        for name, those in data.groupby("series", sort=False):
            axes.plot(those["size"], those["part"], markers[name], color=colours[name], markersize=4, alpha=0.8)
        size_axis(axes, data["size"])
        log_axis(axes)
        axes.set_ylabel(text)
    handles = [
        every[0].plot([], [], markers[one], color=colours[one], label=plain(one))[0] for one in list(colours)[:_NAMED]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


_SERIES = ("collective", "label", "place")
_NAMED = 12  # in the legend
