"""Pairs: every two nodes measured, disjoint pairs at once; what all slow pairs share is named.

mpirun -n 8 python -m commbench.pairs
"""

from __future__ import annotations

from pathlib import Path


def draw(folder: Path) -> str:
    """Draw the matrices of a run folder; return what to say of it."""
    from commbench.report.figures import pairs

    return pairs.draw(folder)


if __name__ == "__main__":
    from commbench.measure.pairs import main

    main(draw)
