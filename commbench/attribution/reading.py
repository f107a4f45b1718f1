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
import os
import pkgutil
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from commbench.attribution.counters import FILES
from commbench.attribution.trace import LEFT_OUT, Trace
from commbench.errors import UsageError
from commbench.results.training import CLOCKS, TRAINING

HEAD = 1 << 16  # bytes that a format is told by
_BLOCK = 1 << 20  # bytes read at once
_BESIDE = (CLOCKS, TRAINING, FILES)  # what others of this room read
_PACKED = {  # what else a file may be packed by: where its mark stands, and the mark
    **{"tar": (257, b"ustar"), "zip": (0, b"PK\x03\x04"), "bzip2": (0, b"BZh")},
    **{"xz": (0, b"\xfd7zXZ"), "zstd": (0, b"\x28\xb5\x2f\xfd")},
}


class _Unknown(UsageError):
    """A file of no format that is known here."""


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


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What was named: a file, or a folder."""

    top: Path
    folder: bool
    files: tuple[Path, ...]  # that did not come before
    again: int  # files that did

    @property
    def size(self) -> int:
        """The bytes of the files, as they are on disk."""
        return sum(map(_size, self.files))


def choose(paths: Iterable[str | Path]) -> list[Chosen]:
    """Return what was named, each file once."""
    seen: set[str] = set()
    chosen = []
    for path in map(Path, paths):
        folder = path.is_dir()
        named = list(_files(path)) if folder else [path]
        # Not Path.resolve(), which raises for links that lead back to themselves: opening them will say so.
        files = {real: file for file in named if (real := os.path.realpath(file)) not in seen}
        seen.update(files)
        chosen.append(Chosen(path, folder, tuple(files.values()), len(named) - len(files)))
    return chosen


def read(paths: Iterable[str | Path]) -> list[Trace]:
    """Return what files, and the files in folders, hold, each file once; plain or gzipped.

    In a folder, files that cannot be read are left out, and a note of the folder's traces names them. Raises UsageError
    for a file that was named and cannot be read, and for a folder in which nothing can.
    """
    return read_chosen(choose(paths))


def read_chosen(chosen: Sequence[Chosen], processes: int = 1, told: Callable[[], None] | None = None) -> list[Trace]:
    """Return what `read` returns, reading so many files at once, each by a process of its own.

    With more than one, a script that calls this has to keep its own work under `if __name__ == "__main__"`. `told` is
    called after each file.
    """
    found: list[Trace] = []
    with closing(_outcomes([file for one in chosen for file in one.files], processes)) as outcomes:
        for one in chosen:
            known: dict[Path, list[Trace] | UsageError] = {}
            for file in one.files:
                known[file] = outcome = next(outcomes)
                if told is not None:
                    told()
                if isinstance(outcome, UsageError) and not one.folder:
                    raise outcome
            found += _used(one, known)
    return found


def _size(path: Path) -> int:
    with suppress(OSError):  # reading it will say why
        return path.stat().st_size
    return 0


def _outcomes(files: Sequence[Path], processes: int) -> Generator[list[Trace] | UsageError, None, None]:
    """Yield what each file holds, or why it cannot be read, in their order."""
    private = any(file.is_relative_to(top) for file in files for top in ("/dev", "/proc"))  # as pipes are, to a process
    if private or min(processes, len(files)) < 2:
        yield from map(_outcome, files)
        return
    from commbench.attribution.processes import side_by_side

    yield from side_by_side(_outcome, files, processes)


def _outcome(path: Path) -> list[Trace] | UsageError:
    try:
        return read_file(path)
    except UsageError as error:
        return error
    except MemoryError:
        return UsageError(f"{path} takes more memory than there is: read fewer at once (--processes 1), or trace less")


def read_file(path: str | Path) -> list[Trace]:
    """Return what one file holds; raise UsageError where that is nothing that is known here."""
    source = str(path)
    try:
        with open(path, "rb") as raw:
            unpacked = _Unpacked(raw)
            with io.BufferedReader(unpacked, _BLOCK) as stream:
                head = stream.peek(HEAD)[:HEAD]
                try:
                    traces = list(_recognised(head, source).read(cast(BinaryIO, stream), source))
                except UsageError as error:
                    if not unpacked.broken:
                        raise
                    raise UsageError(f"{error}; {unpacked.broken}") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None
    if not unpacked.broken:
        return traces
    return [dataclasses.replace(trace, whole=False, notes=(*trace.notes, unpacked.broken)) for trace in traces]


def _used(chosen: Chosen, known: Mapping[Path, list[Trace] | UsageError]) -> list[Trace]:
    """Return the traces of what was named, with what could not be used of a folder."""
    found = [trace for traces in known.values() if not isinstance(traces, UsageError) for trace in traces]
    strange = [str(file) for file, error in known.items() if isinstance(error, _Unknown)]
    refused = [str(error) for error in known.values() if isinstance(error, UsageError) and type(error) is not _Unknown]
    if chosen.folder and not found and not chosen.again and len(strange) + len(refused) == len(known):
        why = f"can be used: {_first(refused)}" if refused else f"is known here; known: {_known()}"
        raise UsageError(f"{chosen.top} holds no trace that {why}")
    notes = [f"{LEFT_OUT}{_first(refused)}"] if refused else []
    notes += [f"{LEFT_OUT}{_first(strange)}: of no format that is known here"] if strange else []
    return [dataclasses.replace(trace, notes=(*trace.notes, *notes)) for trace in found]


def _first(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return f"{'; '.join(texts[:3])}{more}"


def _files(top: Path) -> Iterator[Path]:
    """Yield the files below `top` that may be traces and are not hidden."""
    for path in sorted(top.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(top).parts)
        if path.is_file() and not hidden and not any(map(path.match, _BESIDE)):
            yield path


class _Unpacked(io.RawIOBase):
    """The bytes of a file, plain or gzipped; a gzip stream that breaks off ends them, and `broken` says why."""

    def __init__(self, raw: io.BufferedReader) -> None:
        packed = raw.peek(2).startswith(b"\x1f\x8b")  # a pipe cannot be gone back in
        self._stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = 0
        try:  # bit by bit: what was unpacked before the stream breaks off is kept
            while not self.broken and (more := int(self._stream.readinto1(buffer[size:]))):
                size += more
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.broken = f"the gzip stream ends early ({error}): copy the file again"
        return size


def _recognised(head: bytes, source: str) -> Reader:
    if not head.strip():
        raise UsageError(f"{source} is empty: there is nothing to read")
    for reader in readers():
        if reader.recognise(head):
            return reader
    for name, (at, mark) in _PACKED.items():
        if head.startswith(mark, at):
            raise _Unknown(f"{source} is packed by {name}: unpack it, and name what is in it")
    raise _Unknown(f"{source} is of no format that is known here (it begins {head[:40]!r}); known: {_known()}")


def _known() -> str:
    return ", ".join(reader.NAME for reader in readers())
