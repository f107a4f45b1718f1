"""The picture of a run of `commbench.pairs`: latency and bandwidth of every pair as two maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commbench.results.matrix import Matrices, read

PICTURE = "pairs.png"
_MOST_NAMES = 40  # beyond, they run into each other


def draw(folder: Path) -> str:
    """Draw into a run folder, over an older picture; return the line that says where, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: it needs matplotlib (pip install 'commbench[report]')"
    matrices = read(folder)
    figure: Any = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _map(figure, left, matrices, matrices.latency_us, "latency (us)", "viridis_r")
    _map(figure, right, matrices, matrices.bandwidth, "bandwidth (GB/s), from row to column", "viridis")
    path = folder / PICTURE
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        return f"no picture: cannot write {path}: {error.strerror}"
    return f"picture in {path}"


def _map(figure: Any, axes: Any, matrices: Matrices, values: Any, title: str, colours: str) -> None:
    image = axes.imshow(values, cmap=colours)
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_title(title)
    n = len(matrices.names)
    if n <= _MOST_NAMES:
        axes.set_xticks(range(n), matrices.names, rotation=90)
        axes.set_yticks(range(n), matrices.names)
