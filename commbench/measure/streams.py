"""Standard output and error that never end a run: results are on disk, whatever becomes of who reads the screen."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any, TextIO


class Patient(io.TextIOBase):
    """A stream whose end (closed, full, a name it cannot spell) is not the run's; `lost` says that it came."""

    def __init__(self, stream: TextIO | Any | None) -> None:
        self._stream = stream
        self.lost = False
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    def write(self, text: str) -> int:
        if self._stream is not None and not self.lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self.lost = True
        return len(text)

    def flush(self) -> None:
        if self._stream is not None and not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self.lost = True

    def isatty(self) -> bool:
        with suppress(AttributeError, OSError, ValueError):
            return bool(self._stream.isatty())  # type: ignore[union-attr]
        return False

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("this stream is closed")
        return self._stream.fileno()
