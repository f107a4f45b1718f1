"""Runs and logs, wherever they are: files, folders and patterns, each read by the format it has."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError
from commbench.results import regime
from commbench.results.findings import DOUBT, NOTE
from commbench.results.health import check
from commbench.results.journal import MANIFEST, RECORDS, VISITS, read_manifest, read_records
from commbench.results.reading import Reading, read

OWN = "commbench run"


def collect(paths: Iterable[str | Path]) -> list[Reading]:
    """Return what the files, run folders, folders of either, and patterns (`logs/*.txt`) in `paths` hold, each once.

    In a folder, files of no known format are left out; the first reading of the folder has a finding that names them.
    Raises ResultsError for a file that was named and cannot be read, and where there is nothing.
    """
    found: dict[Path, Reading] = {}  # several paths, and all files of a run, may lead to one thing
    for path in paths:
        for place in expanded(path):
            if not place.exists():
                raise ResultsError(f"there is no {place}")
            if place.is_dir():
                for reading in _folder(place):
                    found.setdefault(Path(reading.source).resolve(), reading)
            elif (thing := _run_of(place).resolve()) not in found:
                found[thing] = read_run(place.parent) if thing.is_dir() else read(place)
    return list(found.values())


def expanded(path: str | Path) -> list[Path]:
    """Return the places that a pattern fits; a name that is there, or fits nothing, is itself."""
    if not str(path):
        raise ResultsError("a path is empty, which would stand for the folder one is in: write . for that")
    names = [] if Path(path).exists() else sorted(glob.glob(str(path), recursive=True))
    return [Path(name) for name in names] or [Path(path)]


def _run_of(path: Path) -> Path:
    """Return the run folder that a file is a part of, else the file."""
    own = path.name in (MANIFEST, VISITS, RECORDS) and (path.parent / MANIFEST).exists()
    return path.parent if own else path


def read_run(folder: Path) -> Reading:
    """Return what a run folder holds."""
    reading = Reading.of(str(folder), OWN, read_records(folder))
    reading.manifest = read_manifest(folder)
    reading.findings += check(reading)
    for text in _conditions(reading.manifest):
        reading.say("conditions", DOUBT, (), text, "measure again where that is not so, or compare launches")
    return reading


def _conditions(manifest: Mapping[str, Any]) -> list[str]:
    """Return what was to be said of the machine when a run was begun, each once; nothing of a manifest made by hand."""
    try:
        told = [
            regime.findings(session["site"], manifest["machine"], session["load"]) for session in manifest["sessions"]
        ]
    except (KeyError, TypeError):
        return []
    return list(dict.fromkeys(text for texts in told for text in texts))


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
