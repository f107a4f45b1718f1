"""What a step of each rank consists of: layers stacked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.attribution.analyse import Attribution
from commbench.attribution.layers import LAYERS, WAITING
from commbench.report.drawing import LAYER_COLOURS, Drawing, plain, thinned

PLACE = 10.1  # among the figures of an attribution
_ROWS = 48  # ranks that are shown


def of_steps(found: Attribution) -> Iterator[Drawing]:
    """Yield one picture of all ranks."""
    if found.time:
        ranks = len(found.traces)
        which = f"{_ROWS} of {ranks} ranks"
        some = "" if ranks <= _ROWS else f" {which} are shown, the most and the least waiting among them."
        yield Drawing(
            "step-layers",
            f"where each rank's step goes{'' if ranks <= _ROWS else f', {which}'}",
            "The mean over steps, each instant in one layer: compute and memory before communication, that before "
            f"waiting, and the host where nothing runs.{some}",
            partial(draw, found),
        )


def draw(found: Attribution) -> Any:
    """Return the picture: ranks up, milliseconds along; the ranks' parts in percent where there is room."""
    import numpy as np
    from matplotlib.figure import Figure

    rows = thinned({place: found.totals(place)[WAITING] for place in range(len(found.traces))}, _ROWS)
    bars = [
        np.array([found.totals(place)[layer] for layer in LAYERS]) / max(len(found.layers[place]), 1) / 1e6
        for place in rows
    ]
    figure: Any = Figure(figsize=(9, 1.5 + max(0.16, 0.34 - 0.004 * len(bars)) * len(bars)), layout="constrained")
    axes = figure.subplots()
    longest = max(float(parts.sum()) for parts in bars)
    for row, parts in enumerate(bars):
        left = 0.0
        for layer, width in zip(LAYERS, parts.tolist(), strict=True):
            axes.barh(row, width, left=left, height=0.8, label=layer if not row else None, **LAYER_COLOURS[layer])
            if width > 0.06 * longest and len(bars) <= 32:
                text = f"{100 * width / parts.sum():.0f} %"
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
                axes.text(left + width / 2, row, text, ha="center", va="center", fontsize="x-small", bbox=box)
            left += width
    axes.set_yticks(range(len(bars)), [plain(found.traces[place].label) for place in rows])
    axes.tick_params(axis="y", labelsize="small" if len(bars) <= 32 else "xx-small")
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.01)
    axes.set_xlabel("a step (ms)")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=len(LAYERS), frameon=False, fontsize="small")
    return figure
