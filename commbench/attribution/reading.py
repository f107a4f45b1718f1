"""Anybody's traces of ranks: which format a file has is told by what is in it, never by its name.

    for trace in read(["traces/"]): ...

A format is one file of `commbench/attribution/readers/`:

    NAME = "PyTorch profiler trace"

    def recognise(head: bytes) -> bool:
        # Whether a file that begins with these HEAD bytes, unpacked, has the format.

    def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
        # What the file holds: a trace a rank. The stream is at the file's start, unpacked, and never raises.
        # What cannot be understood is said in the trace's notes; UsageError only where nothing can be used at all.

At most one reader may recognise a file. A gzip stream that breaks off ends the bytes, and the notes say so.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import io
import pkgutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from commbench.attribution.trace import Trace
from commbench.errors import UsageError

HEAD = 1 << 16  # bytes that a format is told by
_BLOCK = 1 << 20  # bytes read at once


class Reader(Protocol):
    """A file of `readers/`."""

    NAME: str

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file that begins with `head` has this format."""

    @staticmethod
    def read(stream: BinaryIO, source: str) -> Sequence[Trace]:
        """Return what the file holds; raise UsageError where nothing of it can be used."""


@cache
def readers() -> tuple[Reader, ...]:
    """Return the formats, found as files."""
    from commbench.attribution import readers as folder

    names = sorted(name for _, name, _ in pkgutil.iter_modules(folder.__path__) if not name.startswith("_"))
    return tuple(cast(Reader, importlib.import_module(f"{folder.__name__}.{name}")) for name in names)


def read(paths: Iterable[str | Path]) -> list[Trace]:
    """Return what files, and the files in folders, hold, each file once; plain or gzipped.

    In a folder, files of no known format are left out, and the first trace of the folder has a note that names them.
    Raises UsageError for a file that was named and cannot be read, and for a folder in which nothing can.
    """
    found: list[Trace] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if path.is_dir():
            found += _folder(path, seen)
        elif path.resolve() not in seen:
            seen.add(path.resolve())
            found += read_file(path)
    return found


def read_file(path: str | Path) -> list[Trace]:
    """Return what one file holds; raise UsageError where that is nothing that is known here."""
    source = str(path)
    try:
        with open(path, "rb") as raw:
            unpacked = _Unpacked(raw)
            with io.BufferedReader(unpacked, _BLOCK) as stream:
                reader = _recognised(stream.peek(HEAD)[:HEAD], source)
                traces = list(reader.read(cast(BinaryIO, stream), source))
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None
    if unpacked.broken:
        return [
            _noted(trace, f"the gzip stream ends early ({unpacked.broken}): copy the file again") for trace in traces
        ]
    return traces


def _folder(top: Path, seen: set[Path]) -> list[Trace]:
    found: list[Trace] = []
    left_out: list[str] = []
    files = list(_files(top))
    for path in files:
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            found += read_file(path)
        except UsageError as error:
            left_out.append(str(error))
    if not found and len(left_out) == len(files):
        raise UsageError(f"{top} holds no trace that is known here; known: {_known()}")
    if found and left_out:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        found[0] = _noted(found[0], f"left out: {'; '.join(left_out[:3])}{more}")
    return found


def _files(top: Path) -> Iterator[Path]:
    """Yield the files below `top` that are not hidden."""
    for path in sorted(top.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(top).parts):
            yield path


def _noted(trace: Trace, note: str) -> Trace:
    return dataclasses.replace(trace, notes=(*trace.notes, note))


class _Unpacked(io.RawIOBase):
    """The bytes of a file, plain or gzipped; a gzip stream that breaks off ends them, and `broken` says why."""

    def __init__(self, raw: BinaryIO) -> None:
        start = raw.read(2)
        raw.seek(0)
        self._stream: Any = gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return 0 if self.broken else int(self._stream.readinto(buffer))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.broken = str(error)
            return 0


def _recognised(head: bytes, source: str) -> Reader:
    if not head.strip():
        raise UsageError(f"{source} is empty: there is nothing to read")
    for reader in readers():
        if reader.recognise(head):
            return reader
    raise UsageError(f"{source} is of no format that is known here (it begins {head[:40]!r}); known: {_known()}")


def _known() -> str:
    return ", ".join(reader.NAME for reader in readers())
