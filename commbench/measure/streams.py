"""Standard output and error that never end a run: results are on disk, whatever becomes of who reads the screen."""

from __future__ import annotations

import errno
import io
from contextlib import suppress
from typing import Any, TextIO

_BROKEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # a disk's


class Patient(io.TextIOBase):
    """A stream whose end (closed, full, a name it cannot spell) is not the run's; `lost` says that it came.

    `trouble` is why, where that is not that its reader left: a disk that is full or breaks.
    """

    def __init__(self, stream: TextIO | Any | None) -> None:
        self._stream = stream
        self.lost = False
        self.trouble = ""
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    def write(self, text: str) -> int:
        if self._stream is not None and not self.lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None and not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def _lose(self, error: OSError | ValueError) -> None:
        self.lost = True
        if isinstance(error, OSError) and error.errno in _BROKEN:
            self.trouble = error.strerror or str(error)

    def isatty(self) -> bool:
        with suppress(AttributeError, OSError, ValueError):
            return bool(self._stream.isatty())  # type: ignore[union-attr]
        return False

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("this stream is closed")
        return self._stream.fileno()
