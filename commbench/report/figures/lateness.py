"""Which ranks come late, on the common clock."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import Content, Frame, title
from commbench.report.drawing import Drawing
from commbench.units import expand_ranges

PLACE = 3


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each family that was measured by `--method clock`."""
    for number, (side, family, rows) in enumerate(content.families()):
        late = rows[rows["arrival_skew_us"].map(lambda value: isinstance(value, list))]
        if len(late):
            error = late["skew_error_us"].max()
            yield Drawing(
                f"lateness-{side}-{number}",
                f"{side}: how late each rank arrives: {title(family)}",
                f"A point a cell: how long after the first rank of its group it entered, the median over iterations; "
                f"off by at most {error:.3g} us.",
                partial(draw, late),
            )


def draw(rows: Frame) -> Any:
    """Return the picture: ranks along, lateness up, coloured by size."""
    import numpy as np
    import seaborn
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    points = [
        (rank, skew, size)
        for ranks, skews, size in zip(rows["ranks"], rows["arrival_skew_us"], rows["size"], strict=True)
        for rank, skew in zip(expand_ranges(ranks), skews, strict=True)
    ]
    ranks, skews, sizes = np.array(points).T
    figure: Any = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    norm = LogNorm(sizes.min(), max(sizes.max(), 2 * sizes.min()))
    jitter = (np.arange(len(ranks)) % 7 - 3) * 0.05  # points of one rank beside each other
    drawn = axes.scatter(
        ranks + jitter, skews, c=sizes, norm=norm, s=14, cmap=seaborn.color_palette("viridis", as_cmap=True)
    )
    bar = figure.colorbar(drawn, ax=axes)
    size_ticks(bar, rows["size"])
    axes.set_xlabel("rank")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("late by (us)")
    return figure


def size_ticks(bar: Any, sizes: Any) -> None:
    """Label a bar of colours by sizes."""
    from commbench.units import format_size

    ticks = sorted({int(size) for size in sizes})
    shown = ticks[:: -(-len(ticks) // 6)]
    bar.set_ticks(shown, labels=[format_size(size) for size in shown])
    bar.minorticks_off()
    bar.set_label("size (B)")
