"""How far the sweep is, on standard error, for a person who waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

SECONDS = 20.0  # from one line to the next, where there is no bar


class Progress:
    """A bar of finished cells; `mode` is on, off, or auto: on where standard error is a terminal.

    With auto and no terminal there is a line now and then instead, where `unit` is another one than cells.
    """

    def __init__(self, mode: str, cells: int, unit: str = "cell") -> None:
        self._bar: Any = None
        self._cells, self._unit = cells, unit
        self._next = monotonic() + SECONDS if mode == "auto" and unit != "cell" and not sys.stderr.isatty() else None
        if mode == "on" or (mode == "auto" and sys.stderr.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(total=cells, unit=unit, leave=False, file=sys.stderr, mininterval=0.5)

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
        elif self._next is not None and monotonic() >= self._next:
            self._next = monotonic() + SECONDS
            left = seconds_left()
            more = "" if left is None else f", at most {left:.0f} s left"
            print(f"# {finished()} of {self._cells} {self._unit}s{more}", file=sys.stderr, flush=True)
