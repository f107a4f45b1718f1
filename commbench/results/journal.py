"""The run folder: a manifest, the visits as they happen, the records folded from them.

    results/<run id>/manifest.json    what was planned, on which machine, with which settings
                     visits.jsonl     one line per visit of a cell, appended and flushed: a killed job loses at most
                                      the visit in flight
                     records.jsonl    the visits folded into one record a cell, replaced whole now and then

Only rank 0 touches it, but for a timeout (`append_beside`). A reader of an unfinished run folds the visits itself
(`read_records`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from commbench.errors import DiskError, ResultsError
from commbench.results.record import FORMAT, Record, fold
from commbench.results.status import OK, STATUSES

MANIFEST, VISITS, RECORDS = "manifest.json", "visits.jsonl", "records.jsonl"

# What a line must hold to be a visit, and to be one that measured, or the model's: names, and int, str, list or float
# (a time).
_ALWAYS = (("cell", int), ("round", int), ("session", int), ("status", str))
_MEASURED = (
    *((name, float) for name in ("median_us", "mean_us", "min_us", "max_us", "seconds")),
    *(("iterations", int), ("samples_us", list)),
)
_PREDICTED = (("predicted_us", float),)


class Journal:
    """An open run folder. `manifest["plan"]` is what was resolved at the start and is never derived anew."""

    def __init__(self, folder: Path, manifest: dict[str, Any], visits: list[dict[str, Any]], stream: TextIO) -> None:
        """`stream` is what `lock` returned: nobody else writes from before the manifest and the visits were read."""
        self.folder, self.manifest, self._stream = folder, manifest, stream
        self._written = float("-inf")
        self.visits: dict[int, list[dict[str, Any]]] = {index: [] for index in range(len(self.cells))}
        for visit in visits:
            self.visits[visit["cell"]].append(visit)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The planned cells, in the order of the table."""
        cells: list[dict[str, Any]] = self.manifest["plan"]["cells"]
        return cells

    @property
    def session(self) -> int:
        """The number of this launch among those that went on with the run, from 0."""
        return len(self.manifest["sessions"]) - 1

    def begin_session(self, session: dict[str, Any]) -> None:
        """Note in the manifest that another launch goes on with the run."""
        self.manifest["sessions"].append(session)
        try:
            replace(self.folder / MANIFEST, json.dumps(self.manifest, indent=1))
        except OSError as error:
            raise ResultsError(f"cannot write {self.folder / MANIFEST}: {error.strerror}") from None

    @classmethod
    def create(cls, folder: Path, manifest: dict[str, Any]) -> Journal:
        """Make the folder of a new run; refuse one that holds a run already."""
        try:
            _refuse_a_run(folder)  # before anything is written to it
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as on_error:
                stream = on_error.enter_context(lock(folder))
                _refuse_a_run(folder)  # that began, and ended, meanwhile
                replace(folder / MANIFEST, json.dumps(manifest, indent=1))
                on_error.pop_all()
        except OSError as error:
            raise _cannot_write_to(folder, error) from None
        return cls(folder, manifest, [], stream)

    @classmethod
    def reopen(cls, folder: Path) -> Journal:
        """Open the folder of an earlier run to go on with it, past a last line that was cut short."""
        read_manifest(folder)  # nothing is written to what is no run
        try:
            with ExitStack() as on_error:
                stream = on_error.enter_context(lock(folder))
                _cut_partial_line(folder / VISITS)
                manifest = read_manifest(folder)
                visits = list(read_visits(folder, len(manifest["plan"]["cells"])))
                on_error.pop_all()
        except OSError as error:
            raise ResultsError(f"cannot write {folder / VISITS}: {error.strerror}") from None
        return cls(folder, manifest, visits, stream)

    def append(self, visit: dict[str, Any]) -> None:
        """Keep one visit: on disk when this returns, as far as the operating system is concerned."""
        self._write(visit)
        self.visits[visit["cell"]].append(visit)

    def _write(self, visit: dict[str, Any]) -> None:
        with self._saying(VISITS):
            self._stream.write(json.dumps(visit) + "\n")
            self._stream.flush()

    @contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        """Turn what the disk objects to into one error that tells what is safe."""
        try:
            yield
        except OSError as error:
            raise DiskError(
                f"cannot write {self.folder / name}: {error.strerror}; the visits written before stay readable, "
                "and --resume goes on from there"
            ) from None

    def record(self, index: int) -> Record:
        """Return the record of cell `index` as its visits stand now."""
        return fold(self.manifest["plan"]["facts"], self.cells[index], self.visits[index])

    def records(self) -> list[Record]:
        """Return one record a cell, in the plan's order."""
        return [self.record(index) for index in range(len(self.cells))]

    def write_records(self, every: float = 0.0) -> None:
        """Replace records.jsonl by the records as they stand now, unless that was done in the last `every` seconds."""
        if monotonic() < self._written + every:
            return
        self._written = monotonic()
        self.write_beside(RECORDS, "".join(json.dumps(record.to_dict()) + "\n" for record in self.records()))

    def write_beside(self, name: str, text: str) -> None:
        """Replace another file of the run folder."""
        with self._saying(name):
            replace(self.folder / name, text)

    def close(self) -> None:
        with suppress(OSError):  # a full disk was said when it showed
            self._stream.close()


def lock(folder: Path) -> TextIO:
    """Return the open visits of a run folder, for this process alone until they are closed.

    Refuses a folder that another run writes to; where the file system knows no locks, there is none.
    """
    import fcntl

    _refuse_a_pipe(folder / VISITS)
    try:
        stream = open(folder / VISITS, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
    except OSError as error:
        raise ResultsError(f"cannot write {folder / VISITS}: {error.strerror}") from None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise ResultsError(f"another run is writing to {folder}: wait for its end, or give another --out") from None
    except OSError:
        pass
    return stream


def new_folder(path: str) -> Path:
    """Make and return a folder that is nobody else's: `path`, numbered where that is taken."""
    numbers = count(1)
    while True:
        number = next(numbers)
        found = Path(path if number == 1 else f"{path}-{number}")
        try:
            found.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_write_to(found, error) from None
        return found


def _refuse_a_run(folder: Path) -> None:
    visits = folder / VISITS
    # Empty visits alone were left by a launch that was killed before it wrote its plan.
    begun = visits.exists() and visits.stat().st_size > 0
    if begun or any((folder / name).exists() for name in (MANIFEST, RECORDS)):
        raise ResultsError(f"{folder} holds a run already: go on with it by --resume, or name another --out")


def _refuse_a_pipe(path: Path) -> None:
    """Raise ResultsError where opening a file would wait for somebody at the other end."""
    if path.is_fifo():
        raise ResultsError(f"{path} is a pipe, not a file of a run: remove it, or name another folder")


def _cannot_write_to(folder: Path, error: OSError) -> ResultsError:
    return ResultsError(f"cannot write to {folder}: {error.strerror}; name another folder by --out")


def append_beside(folder: Path, visit: dict[str, Any]) -> None:
    """Append a visit from outside the process that has the journal open, which may have stopped amid a line."""
    path = folder / VISITS
    _cut_partial_line(path)
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(visit) + "\n")


def _cut_partial_line(path: Path) -> None:
    """Cut a last line without its end off."""
    if path.exists():
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(path, whole)


def replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, whole."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run folder."""
    path = folder / MANIFEST
    try:
        _refuse_a_pipe(path)
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not 0 < manifest["version"] <= FORMAT:
            raise ResultsError(
                f"{path} has format {manifest['version']}; this commbench reads up to {FORMAT}: update it"
            )
        if not {"cells", "facts"} <= manifest["plan"].keys():
            raise KeyError("plan")
    except FileNotFoundError:
        raise ResultsError(f"{folder} holds no run (no {MANIFEST} in it)") from None
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path} is not a manifest of commbench ({error!r})") from None
    return manifest


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return _is_time(value)
    return isinstance(value, kind) and not isinstance(value, bool) and value != []


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def read_visits(folder: Path, cells: int) -> Iterator[dict[str, Any]]:
    """Yield the visits of a run folder; a last line without its end was cut short and is left out."""
    path = folder / VISITS
    try:
        _refuse_a_pipe(path)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            visit = json.loads(line)
            fields = (*_ALWAYS, *(_PREDICTED if "predicted_us" in visit else _MEASURED) * (visit["status"] == OK))
            if not all(_is(visit[name], kind) for name, kind in fields) or visit["status"] not in STATUSES:
                raise TypeError
            if not all(map(_is_time, visit.get("samples_us", ()))) or visit.get("iterations", 1) < 1:
                raise ValueError
            if not 0 <= visit["cell"] < cells:
                raise ResultsError(f"{path}:{number} speaks of cell {visit['cell']}; the plan has {cells}")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ResultsError(f"{path}:{number} is not a visit; remove the line to go on without it") from None
        yield visit


def read_records(folder: Path) -> list[Record]:
    """Return the records of a run folder, folded from its visits: finished or not, the answer is the same."""
    from commbench.results.trust import trusted

    plan = read_manifest(folder)["plan"]
    try:
        visits: list[list[dict[str, Any]]] = [[] for _ in plan["cells"]]
        for visit in read_visits(folder, len(visits)):
            visits[visit["cell"]].append(visit)
        return [trusted(fold(plan["facts"], cell, those)) for cell, those in zip(plan["cells"], visits, strict=True)]
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise ResultsError(f"{folder} does not hold what commbench writes ({error}): its files were changed") from None
