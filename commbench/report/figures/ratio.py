"""How far two sides differ: the ratio of times against size, with its interval over launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from commbench.report.compare import FASTER, SLOWER, Row
from commbench.report.content import PLACES, Content
from commbench.report.drawing import Drawing, colours_and_markers, plain, size_axis
from commbench.results.kernels import KERNELS

PLACE = 1


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each collective of each comparison."""
    for found in content.comparisons:
        a, b = content.letter(found.a), content.letter(found.b)
        for name in dict.fromkeys(row.cell.collective for row in found.rows if row.cell.collective != KERNELS):
            rows = [row for row in found.rows if row.cell.collective == name and row.cell.size > 0]
            if rows:
                yield Drawing(
                    f"ratio-{a}-{b}-{name}",
                    f"{name}: time of {b} over time of {a}",
                    f"Above 1 {b} is slower. Bars: interval over launches, at least 95 %, of that cell alone; filled: "
                    f"beyond chance (in all cells together); shaded: within {100 * content.margin:g} %.",
                    partial(draw, rows, content.margin, f"{b} / {a}"),
                )


def draw(rows: Sequence[Row], margin: float, text: str) -> Any:
    """Return the picture."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots()
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(_series(row), []).append(row)
    colours, markers = colours_and_markers(series)
    for name, those in series.items():
        ordered = sorted(those, key=lambda row: row.cell.size)
        sizes = [row.cell.size for row in ordered]
        axes.plot(sizes, [row.ratio for row in ordered], color=colours[name], linewidth=0.8, alpha=0.6)
        for row in ordered:
            if row.low is not None and row.high is not None:
                axes.vlines(row.cell.size, row.low, row.high, color=colours[name], linewidth=1.5)
            sure = row.verdict in (SLOWER, FASTER)
            face = colours[name] if sure else "white"
            axes.plot(row.cell.size, row.ratio, markers[name], color=colours[name], markerfacecolor=face, markersize=6)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.axhspan(1 - margin, 1 + margin, color="grey", alpha=0.15, linewidth=0)
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    size_axis(axes, [row.cell.size for row in rows])
    axes.set_ylabel(f"time, {text}")
    handles = [axes.plot([], [], markers[name], color=colours[name], label=plain(name))[0] for name in series]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False)
    return figure


_TICKS = (
    *(1 / 64, 1 / 32, 1 / 16, 1 / 8, 0.25, 0.5, 0.67, 0.8, 0.9, 0.95),
    *(1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 8, 16, 32, 64),
)


def _series(row: Row) -> str:
    one, other = row.algorithms
    name = one if one == other else row.way
    place = PLACES[{True: "in", False: "out"}.get(row.cell.inplace, "")]
    return f"{name}, {place}, {row.cell.dtype}, {row.cell.scale}"
