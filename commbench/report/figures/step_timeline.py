"""One step over all ranks, on one clock: what runs when, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.attribution.analyse import Attribution
from commbench.attribution.clocks import known
from commbench.attribution.layers import LAYERS, WAITING, Layers
from commbench.report.drawing import LAYER_COLOURS, Drawing, plain, thinned
from commbench.results.stats import median

PLACE = 10.2  # among the figures of an attribution
_ROWS = 48  # ranks that are shown
_PIXELS = 1400  # spans that are shorter than one are drawn as what most of it is


def of_steps(found: Attribution) -> Iterator[Drawing]:
    """Yield the median step, and the longest one where there are several."""
    lengths = _lengths(found)
    if not lengths:
        return
    middle = median(list(lengths.values()))
    usual = min(lengths, key=lambda step: abs(lengths[step] - middle))
    longest = max(lengths, key=lambda step: lengths[step])
    off = known(max(one.error for one in found.alignments))
    clocks = (
        "Ranks on one clock." if off is not None else "Nothing tells how the ranks' clocks are set: each has its own."
    )
    for name, step in {"median": usual, "longest": longest}.items():
        if name == "longest" and step == usual:
            continue
        what = "all of the traces" if step is None else f"step {step}, the {name} of {len(lengths)}"
        rows = len(_places(found, step))
        which = "all" if rows <= _ROWS else f"{_ROWS} of {rows}"
        some = "" if rows <= _ROWS else f" {which} ranks are shown, the most and the least waiting among them."
        yield Drawing(
            f"step-timeline-{name}",
            f"one step over {which} ranks: {what}",
            f"{clocks} Hatched: waiting for a rank that has not arrived; "
            f"triangles: the last arrivals that others waited for longest.{some}",
            partial(draw, found, step),
        )


def draw(found: Attribution, step: int | None) -> Any:
    """Return the picture: ranks up, milliseconds since the first of them began the step along."""
    import numpy as np
    from matplotlib.figure import Figure

    shown = _places(found, step)
    rows = thinned({place: one.total(WAITING) for place, one in shown.items()}, _ROWS)
    starts = {place: int(found.alignments[place].common(shown[place].window.start)) for place in rows}
    begin = min(starts.values())
    end = max(int(found.alignments[place].common(shown[place].window.end)) for place in rows)
    figure: Any = Figure(figsize=(11, 1.5 + max(0.16, 0.4 - 0.005 * len(rows)) * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row, place in enumerate(rows):
        edges = (np.asarray(found.alignments[place].common(shown[place].edges)) - begin) / 1e6
        edges, labels = _visible(edges, shown[place].labels, (end - begin) / 1e6 / _PIXELS)
        for number, layer in enumerate(LAYERS):
            at = labels == number
            bars = list(zip(edges[:-1][at].tolist(), np.diff(edges)[at].tolist(), strict=True))
            axes.broken_barh(bars, (row - 0.4, 0.8), **LAYER_COLOURS[layer])
    _arrivals(axes, found, rows, begin, end)
    for layer in LAYERS:
        axes.barh(0, 0, label=layer, **LAYER_COLOURS[layer])
    axes.set_yticks(range(len(rows)), [plain(found.traces[place].label) for place in rows])
    axes.tick_params(axis="y", labelsize="small" if len(rows) <= 32 else "xx-small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, (end - begin) / 1e6)
    axes.set_xlabel("since the first rank began (ms)")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=len(LAYERS) + 1, frameon=False, fontsize="small")
    return figure


def _arrivals(axes: Any, found: Attribution, rows: list[int], begin: int, end: int) -> None:
    """Mark the last arrivals that cost most."""
    late = [
        (int(one.wait.sum()), int(one.arrival.max()), one.culprit)
        for one in found.splits
        if one.culprit in rows and one.distinguishable and not one.skew_only and begin <= int(one.arrival.max()) < end
    ]
    late = sorted(late)[-12:]
    if late:
        times = [(at - begin) / 1e6 for _, at, _ in late]
        lanes = [rows.index(place) - 0.4 for *_, place in late if place is not None]
        axes.plot(times, lanes, "v", color="black", markersize=5, clip_on=False, zorder=5, label="last to arrive")


def _lengths(found: Attribution) -> dict[int | None, float]:
    """Return how long each step that all ranks have took on the longest one."""
    longest: dict[int | None, float] = {}
    for one in (one for per in found.layers for one in per):
        longest[one.window.step] = max(longest.get(one.window.step, 0), one.window.length)
    return {step: length for step, length in longest.items() if length}


def _places(found: Attribution, step: int | None) -> dict[int, Layers]:
    """Return the layers of a step, by the trace's place."""
    return {place: one for place, per in enumerate(found.layers) for one in per if one.window.step == step}


def _visible(edges: Any, labels: Any, pixel: float) -> tuple[Any, Any]:
    """Return intervals of which none is far below a pixel: of each pixel the label that most of it has."""
    import numpy as np

    if len(labels) <= _PIXELS:
        return edges, labels
    grid = np.linspace(edges[0], edges[-1], 1 + max(1, round((edges[-1] - edges[0]) / pixel)))
    cuts = np.unique(np.concatenate([edges, grid]))
    middle = (cuts[:-1] + cuts[1:]) / 2
    label = labels[np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, len(labels) - 1)]
    cell = np.clip(np.searchsorted(grid, middle, side="right") - 1, 0, len(grid) - 2)
    time = np.zeros((len(grid) - 1, len(LAYERS)))
    np.add.at(time, (cell, label), np.diff(cuts))
    most = time.argmax(axis=1)
    changes = np.flatnonzero(np.diff(most)) + 1
    return np.concatenate([grid[:1], grid[changes], grid[-1:]]), most[np.concatenate([[0], changes])]
