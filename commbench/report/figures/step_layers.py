"""What a step of each rank consists of: layers stacked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.attribution.analyse import Attribution
from commbench.attribution.layers import LAYERS
from commbench.report.drawing import LAYER_COLOURS, Drawing, plain

PLACE = 10.1  # among the figures of an attribution
_NAMED = 64  # ranks with a bar each; of more, neighbours share one


def of_steps(found: Attribution) -> Iterator[Drawing]:
    """Yield one picture of all ranks."""
    if found.time:
        shared = "" if len(found.traces) <= _NAMED else f" Each bar is the mean of {_together(found)} ranks in order."
        yield Drawing(
            "step-layers",
            "where each rank's step goes",
            "The mean over steps, each instant in one layer: compute and memory before communication, that before "
            f"waiting, and the host where nothing runs.{shared}",
            partial(draw, found),
        )


def draw(found: Attribution) -> Any:
    """Return the picture: ranks up, milliseconds along; the ranks' parts in percent where there is room."""
    import numpy as np
    from matplotlib.figure import Figure

    each = _together(found)
    steps = np.array([[max(len(per), 1)] for per in found.layers])
    ms = np.array([[found.totals(place)[layer] for layer in LAYERS] for place in range(len(found.traces))]) / steps / 1e6
    bars = [(ms[first : first + each].mean(axis=0), first) for first in range(0, len(ms), each)]
    figure: Any = Figure(figsize=(9, 1.5 + max(0.16, 0.34 - 0.004 * len(bars)) * len(bars)), layout="constrained")
    axes = figure.subplots()
    longest = max(float(parts.sum()) for parts, _ in bars)
    for place, (parts, _) in enumerate(bars):
        left = 0.0
        for layer, width in zip(LAYERS, parts.tolist(), strict=True):
            axes.barh(place, width, left=left, height=0.8, label=layer if not place else None, **LAYER_COLOURS[layer])
            if width > 0.06 * longest and len(bars) <= 32:
                text = f"{100 * width / parts.sum():.0f} %"
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
                axes.text(left + width / 2, place, text, ha="center", va="center", fontsize="x-small", bbox=box)
            left += width
    axes.set_yticks(range(len(bars)), [_label(found, first, each) for _, first in bars])
    axes.tick_params(axis="y", labelsize="small" if len(bars) <= 32 else "xx-small")
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.01)
    axes.set_xlabel("a step (ms)")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=len(LAYERS), frameon=False, fontsize="small")
    return figure


def _together(found: Attribution) -> int:
    """Return how many ranks share a bar."""
    return -(-len(found.traces) // _NAMED)


def _label(found: Attribution, first: int, each: int) -> str:
    last = min(first + each, len(found.traces)) - 1
    if last == first:
        return plain(found.traces[first].label)
    return f"ranks {found.traces[first].rank}-{found.traces[last].rank}"
