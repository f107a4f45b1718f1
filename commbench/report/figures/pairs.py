"""The picture of a run of `commbench.pairs`: latency and bandwidth of every pair as two maps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.report.drawing import Drawing, plain
from commbench.results.matrix import Matrices, read

if TYPE_CHECKING:
    from commbench.report.content import Content

PLACE = 5  # among the figures of a report
PICTURE = "pairs.png"
_MOST_NAMES = 40  # beyond, they run into each other


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each run of `commbench.pairs`."""
    for letter, side in content.sides.items():
        for number, reading in enumerate(side.readings):
            if reading.manifest is not None and reading.manifest["plan"].get("mode") == "pairs":
                yield Drawing(
                    f"pairs-{letter}-{number}",
                    f"{letter}: latency and bandwidth of every pair: {reading.source}",
                    "Medians over rounds; the diagonal, and what was not measured, is empty.",
                    partial(picture, Path(reading.source)),
                )


def draw(folder: Path) -> str:
    """Draw into a run folder, over an older picture; return the line that says where, or why not."""
    try:
        figure = picture(folder)
    except ImportError:
        return "no picture: it needs matplotlib (pip install 'commbench[report]')"
    path = folder / PICTURE
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        return f"no picture: cannot write {path}: {error.strerror}"
    return f"picture in {path}"


def picture(folder: Path) -> Any:
    """Return the picture of a run folder."""
    from matplotlib.figure import Figure

    matrices = read(folder)
    figure: Any = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _map(figure, left, matrices, matrices.latency_us, "latency (us)", "viridis_r")
    _map(figure, right, matrices, matrices.bandwidth, "bandwidth (GB/s), from row to column", "viridis")
    return figure


def _map(figure: Any, axes: Any, matrices: Matrices, values: Any, title: str, colours: str) -> None:
    image = axes.imshow(values, cmap=colours)
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_title(title)
    n = len(matrices.names)
    if n <= _MOST_NAMES:
        names = [plain(name) for name in matrices.names]
        axes.set_xticks(range(n), names, rotation=90)
        axes.set_yticks(range(n), names)
