"""Runs and logs, wherever they are: files, folders and patterns, each read by the format it has."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from commbench.errors import ResultsError
from commbench.results.findings import NOTE
from commbench.results.health import check
from commbench.results.journal import MANIFEST, RECORDS, VISITS, read_manifest, read_records
from commbench.results.reading import Reading, read

OWN = "commbench run"


def collect(paths: Iterable[str | Path]) -> list[Reading]:
    """Return what the files, run folders, folders of either, and patterns (`logs/*.txt`) in `paths` hold.

    In a folder, files of no known format are left out; the first reading of the folder has a finding that names them.
    Raises ResultsError for a file that was named and cannot be read, and where there is nothing.
    """
    found = []
    for path in paths:
        for place in _expanded(path):
            found += _folder(place) if place.is_dir() or not place.exists() else [_file(place)]
    return found


def _expanded(path: str | Path) -> list[Path]:
    """Return the places that a pattern fits; a name that is there, or fits nothing, is itself."""
    names = [] if Path(path).exists() else sorted(glob.glob(str(path), recursive=True))
    return [Path(name) for name in names] or [Path(path)]


def _file(path: Path) -> Reading:
    if path.name in (MANIFEST, VISITS, RECORDS) and (path.parent / MANIFEST).exists():
        return read_run(path.parent)
    return read(path)


def read_run(folder: Path) -> Reading:
    """Return what a run folder holds."""
    reading = Reading.of(str(folder), OWN, read_records(folder))
    reading.manifest = read_manifest(folder)
    reading.findings += check(reading)
    return reading


def _folder(top: Path) -> list[Reading]:
    runs = sorted(path.parent for path in top.rglob(MANIFEST) if (path.parent / VISITS).exists())
    found, unknown = [read_run(folder) for folder in runs], []
    for path in _others(top, runs):
        try:
            found.append(read(path))
        except ResultsError as error:
            unknown.append(str(error))
    if not found:
        raise ResultsError(f"{top} holds no run: a run folder has a {MANIFEST}; nor does it hold a log that is known")
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        found[0].say("not read", NOTE, (), f"{'; '.join(unknown[:3])}{more}", "leave them out, or name one to see why")
    return found


def _others(top: Path, runs: list[Path]) -> Iterator[Path]:
    """Yield the files below `top` that are in no run's folder, and not hidden."""
    inside = set(runs)
    for path in sorted(top.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(top).parts)
        if path.is_file() and not hidden and not inside & set(path.parents):
            yield path
