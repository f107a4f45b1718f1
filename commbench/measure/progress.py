"""How far the sweep is, on standard error, for a person who waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Progress:
    """A bar of finished cells; `mode` is on, off, or auto: on where standard error is a terminal."""

    def __init__(self, mode: str, cells: int) -> None:
        self._bar: Any = None
        if mode == "on" or (mode == "auto" and sys.stderr.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(total=cells, unit="cell", leave=False, file=sys.stderr, mininterval=0.5)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, finished: Callable[[], int], seconds_left: Callable[[], float | None]) -> None:
        """Show how many cells are done and how much of the budget is left; neither is asked for in vain."""
        if self._bar is not None:
            self._bar.n = finished()
            left = seconds_left()
            if left is not None:
                self._bar.set_postfix_str(f"at most {left:.0f} s left", refresh=False)
            self._bar.update(0)
