"""How far the sweep is, on standard error, for a person who waits."""

from __future__ import annotations

import sys
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

    def update(self, finished: int, seconds_left: float | None) -> None:
        """Show that `finished` cells are done and how much of the budget is left."""
        if self._bar is not None:
            self._bar.n = finished
            if seconds_left is not None:
                self._bar.set_postfix_str(f"at most {seconds_left:.0f} s left", refresh=False)
            self._bar.update(0)
